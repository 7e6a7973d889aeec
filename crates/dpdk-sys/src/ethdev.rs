//! The burst functions of `rte_ethdev.h`, which are inline in C.
#![allow(unsafe_code)] // FFI is this crate's purpose.

use core::ptr;

use crate::raw::{rte_eth_call_rx_callbacks, rte_eth_call_tx_callbacks, rte_eth_fp_ops, rte_mbuf};

/// The fast-path entry of a port: function pointers and queue data, two cache lines.
///
/// # Safety
/// `port` must be below `RTE_MAX_ETHPORTS`. What the entry points to is valid while the port is started.
#[inline(always)]
pub unsafe fn fast_path(port: u16) -> *const rte_eth_fp_ops {
    // SAFETY: an array of RTE_MAX_ETHPORTS entries in librte_ethdev; only the address is taken.
    unsafe {
        (&raw const rte_eth_fp_ops)
            .cast::<rte_eth_fp_ops>()
            .add(usize::from(port))
    }
}

/// `rte_eth_rx_burst`: stores at most `count` received packets at `packets` and returns how many.
///
/// # Safety
/// The port is started, `queue` is one of its rx queues and no other thread uses it; `packets` has room for `count`.
#[inline(always)]
pub unsafe fn rx_burst(port: u16, queue: u16, packets: *mut *mut rte_mbuf, count: u16) -> u16 {
    // SAFETY: the caller vouches for port and queue; a started port has its function pointers set.
    unsafe {
        let ops = &*fast_path(port);
        let data = *ops.rxq.data.add(usize::from(queue));
        let Some(receive) = ops.rx_pkt_burst else { return 0 };
        let received = receive(data, packets, count);
        let callback = ptr::read_volatile(ops.rxq.clbk.add(usize::from(queue)));
        if callback.is_null() {
            return received;
        }
        rte_eth_call_rx_callbacks(port, queue, packets, received, count, callback)
    }
}

/// `rte_eth_tx_burst`: hands over at most `count` packets from `packets` and returns how many were taken, from the front.
///
/// # Safety
/// The port is started, `queue` is one of its tx queues and no other thread uses it; `packets` holds `count` owned mbufs.
#[inline(always)]
pub unsafe fn tx_burst(port: u16, queue: u16, packets: *mut *mut rte_mbuf, count: u16) -> u16 {
    // SAFETY: the caller vouches for port and queue; a started port has its function pointers set.
    unsafe {
        let ops = &*fast_path(port);
        let data = *ops.txq.data.add(usize::from(queue));
        let callback = ptr::read_volatile(ops.txq.clbk.add(usize::from(queue)));
        let count = if callback.is_null() {
            count
        } else {
            rte_eth_call_tx_callbacks(port, queue, packets, count, callback)
        };
        ops.tx_pkt_burst.map_or(0, |transmit| transmit(data, packets, count))
    }
}

/// `rte_eth_tx_prepare`: lets the driver finish the packets that ask for offloads; returns how many are ready, from the front.
///
/// # Safety
/// As [`tx_burst`]; nothing changes hands.
#[inline(always)]
pub unsafe fn tx_prepare(port: u16, queue: u16, packets: *mut *mut rte_mbuf, count: u16) -> u16 {
    // SAFETY: the caller vouches for port and queue; a driver without the step leaves the pointer null.
    unsafe {
        let ops = &*fast_path(port);
        let data = *ops.txq.data.add(usize::from(queue));
        ops.tx_pkt_prepare
            .map_or(count, |prepare| prepare(data, packets, count))
    }
}

/// `rte_eth_rx_queue_count`: how many packets wait in an rx queue; none if the driver does not tell.
///
/// # Safety
/// The port is started and `queue` is one of its rx queues.
pub unsafe fn rx_queue_count(port: u16, queue: u16) -> Option<u32> {
    // SAFETY: the caller vouches for port and queue; a driver that does not tell leaves the pointer null.
    let count = unsafe {
        let ops = &*fast_path(port);
        let data = *ops.rxq.data.add(usize::from(queue));
        ops.rx_queue_count?(data)
    };
    // The function that C calls returns it as an int, whose negative values are errors.
    i32::try_from(count).is_ok().then_some(count)
}
