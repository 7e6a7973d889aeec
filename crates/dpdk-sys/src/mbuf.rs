//! The life of an mbuf as `rte_mbuf.h` has it inline: allocate, reset, free, and where its data is.
#![allow(unsafe_code)] // FFI is this crate's purpose.

use core::ptr;

use crate::mempool;
use crate::raw::{RTE_MBUF_F_EXTERNAL, RTE_MBUF_F_INDIRECT, RTE_MBUF_PORT_INVALID, RTE_PKTMBUF_HEADROOM};
use crate::raw::{rte_mbuf, rte_mempool, rte_pktmbuf_free_bulk};

/// `rte_pktmbuf_alloc`: one empty packet of one segment with the usual headroom, or null when the pool is empty.
///
/// # Safety
/// `pool` is a live packet pool.
#[inline(always)]
pub unsafe fn alloc(pool: *mut rte_mempool) -> *mut rte_mbuf {
    // SAFETY: objects of a packet pool are mbufs; this one is ours now.
    unsafe {
        let mbuf = mempool::get(pool).cast::<rte_mbuf>();
        if !mbuf.is_null() {
            reset(mbuf);
        }
        mbuf
    }
}

/// `rte_pktmbuf_reset`: an empty packet again. A free mbuf has `refcnt` 1, `nb_segs` 1 and no `next` already.
///
/// # Safety
/// The caller owns `mbuf`, a single direct segment.
#[inline(always)]
pub unsafe fn reset(mbuf: *mut rte_mbuf) {
    // SAFETY: plain fields of an mbuf that the caller owns.
    unsafe {
        (*mbuf).data_off = RTE_PKTMBUF_HEADROOM.min(u32::from((*mbuf).buf_len)) as u16;
        (*mbuf).nb_segs = 1;
        (*mbuf).port = RTE_MBUF_PORT_INVALID as u16;
        (*mbuf).ol_flags &= RTE_MBUF_F_EXTERNAL;
        (*mbuf).__bindgen_anon_1.packet_type = 0;
        (*mbuf).pkt_len = 0;
        (*mbuf).data_len = 0;
        (*mbuf).vlan_tci = 0;
        (*mbuf).vlan_tci_outer = 0;
        (*mbuf).__bindgen_anon_3.tx_offload = 0;
    }
}

/// `rte_pktmbuf_free`: gives the packet back to its pool, on any thread.
///
/// # Safety
/// The caller owns `mbuf` and does not use it again; its pool lives.
#[inline(always)]
pub unsafe fn free(mbuf: *mut rte_mbuf) {
    const ATTACHED: u64 = RTE_MBUF_F_INDIRECT | RTE_MBUF_F_EXTERNAL;
    // SAFETY: with one reference and one segment of its own memory there is nothing to undo, and the invariants of a free
    // mbuf (see `reset`) hold; everything else goes to the library.
    unsafe {
        if (*mbuf).nb_segs == 1 && (*mbuf).ol_flags & ATTACHED == 0 && references(mbuf) == 1 {
            mempool::put((*mbuf).pool, mbuf.cast());
        } else {
            free_slow(mbuf);
        }
    }
}

/// `rte_pktmbuf_mtod`: the first byte of the data.
///
/// # Safety
/// `mbuf` is live.
#[inline(always)]
pub unsafe fn data(mbuf: *const rte_mbuf) -> *mut u8 {
    // SAFETY: `data_off` stays within the buffer.
    unsafe { (*mbuf).buf_addr.cast::<u8>().add(usize::from((*mbuf).data_off)) }
}

/// How many owners the mbuf has; other owners may change it at any time.
#[inline(always)]
unsafe fn references(mbuf: *const rte_mbuf) -> u16 {
    // SAFETY: aligned and live. Volatile, because a clone's owner may be another thread; relaxed is enough, as DPDK does.
    unsafe { ptr::read_volatile(&raw const (*mbuf).refcnt) }
}

#[cold]
#[inline(never)]
unsafe fn free_slow(mbuf: *mut rte_mbuf) {
    let mut packets = [mbuf];
    // SAFETY: one owned packet; the library undoes references, chains and attachments.
    unsafe { rte_pktmbuf_free_bulk(packets.as_mut_ptr(), 1) };
}
