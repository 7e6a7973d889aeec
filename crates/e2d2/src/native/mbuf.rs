//! DPDK's packet memory as an owned value.
#![allow(unsafe_code)] // Reads and writes mbufs, whose layout dpdk-sys asserts.

use std::fmt;
use std::ptr::NonNull;
use std::slice;

use dpdk_sys as sys;
use sys::mbuf::{data, free};

use crate::buffer::{ChecksumStatus, NoRoom, PacketBuffer, RxInfo, TxOffload};

/// One mbuf of one segment, owned: dropping it, on any thread, gives it back to its pool.
///
/// The same size as a pointer, and so is an `Option` of it; an array of them is what DPDK's bursts take.
///
/// Invariant: the only reference to a live, direct, single-segment mbuf whose pool outlives it (a pool that is dropped with
/// packets out is never freed) and whose `data_off + data_len <= buf_len`.
#[repr(transparent)]
pub struct Mbuf(NonNull<sys::rte_mbuf>);

// SAFETY: an mbuf is plain memory with one owner; pools take it back from any thread.
unsafe impl Send for Mbuf {}

impl Mbuf {
    /// Takes ownership.
    ///
    /// # Safety
    /// `mbuf` fulfils the type's invariant and nobody else uses it from now on.
    #[inline(always)]
    pub(super) unsafe fn from_raw(mbuf: NonNull<sys::rte_mbuf>) -> Self {
        Self(mbuf)
    }

    #[inline(always)]
    fn raw(&self) -> &sys::rte_mbuf {
        // SAFETY: live and, by the invariant, changed by nobody while `self` is borrowed.
        unsafe { self.0.as_ref() }
    }

    #[inline(always)]
    fn raw_mut(&mut self) -> &mut sys::rte_mbuf {
        // SAFETY: live and, by the invariant, used by nobody else.
        unsafe { self.0.as_mut() }
    }

    /// Zeroes `n` bytes from `at`, counted from the start of the data.
    #[inline(always)]
    fn zero(&mut self, at: usize, n: usize) {
        self.data_mut()[at..at + n].fill(0);
    }
}

impl Drop for Mbuf {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: owned, and not used again.
        unsafe { free(self.0.as_ptr()) }
    }
}

/// Its length and the start of its data.
impl fmt::Debug for Mbuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.len().min(64);
        f.debug_struct("Mbuf")
            .field("len", &self.len())
            .field("data", &&self.data()[..shown])
            .finish()
    }
}

impl PacketBuffer for Mbuf {
    #[inline(always)]
    fn data(&self) -> &[u8] {
        // SAFETY: `data_len` bytes from `data_off` are inside the buffer; pool memory is always initialised (zeroed pages).
        unsafe { slice::from_raw_parts(data(self.0.as_ptr()), self.len()) }
    }

    #[inline(always)]
    fn data_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `data`, and nobody else uses the buffer.
        unsafe { slice::from_raw_parts_mut(data(self.0.as_ptr()), self.len()) }
    }

    #[inline(always)]
    fn len(&self) -> usize {
        usize::from(self.raw().data_len)
    }

    #[inline(always)]
    fn headroom(&self) -> usize {
        usize::from(self.raw().data_off)
    }

    #[inline(always)]
    fn tailroom(&self) -> usize {
        usize::from(self.raw().buf_len) - usize::from(self.raw().data_off) - self.len()
    }

    fn prepend(&mut self, n: usize) -> Result<(), NoRoom> {
        if n > self.headroom() {
            return Err(NoRoom);
        }
        let mbuf = self.raw_mut();
        mbuf.data_off -= n as u16;
        mbuf.data_len += n as u16;
        mbuf.pkt_len = u32::from(mbuf.data_len);
        self.zero(0, n);
        Ok(())
    }

    fn append(&mut self, n: usize) -> Result<(), NoRoom> {
        if n > self.tailroom() {
            return Err(NoRoom);
        }
        let len = self.len();
        let mbuf = self.raw_mut();
        mbuf.data_len += n as u16;
        mbuf.pkt_len = u32::from(mbuf.data_len);
        self.zero(len, n);
        Ok(())
    }

    #[inline]
    fn begin_anew(&mut self, n: usize) -> Result<(), NoRoom> {
        let fits = n <= self.len() + self.tailroom();
        let len = if fits { n as u16 } else { 0 };
        let mbuf = self.raw_mut();
        mbuf.data_len = len;
        mbuf.pkt_len = u32::from(len);
        if fits { Ok(()) } else { Err(NoRoom) }
    }

    #[inline]
    fn trim_front(&mut self, n: usize) {
        let n = n.min(self.len()) as u16;
        let mbuf = self.raw_mut();
        mbuf.data_off += n;
        mbuf.data_len -= n;
        mbuf.pkt_len = u32::from(mbuf.data_len);
    }

    #[inline]
    fn truncate(&mut self, len: usize) {
        let len = len.min(self.len()) as u16;
        let mbuf = self.raw_mut();
        mbuf.data_len = len;
        mbuf.pkt_len = u32::from(len);
    }

    #[inline]
    fn rx_info(&self) -> RxInfo {
        let mbuf = self.raw();
        // Most drivers of the software kind never say anything: one test for them.
        if mbuf.ol_flags & RX_SAYS == 0 {
            return RxInfo::default();
        }
        // SAFETY: plain numbers share the place; it means the RSS hash if the flag is set.
        let hash = unsafe { mbuf.__bindgen_anon_2.hash.rss };
        let has_hash = mbuf.ol_flags & u64::from(sys::RTE_MBUF_F_RX_RSS_HASH) != 0;
        RxInfo {
            ip_checksum: checksum_status(
                mbuf.ol_flags,
                sys::RTE_MBUF_F_RX_IP_CKSUM_GOOD,
                sys::RTE_MBUF_F_RX_IP_CKSUM_BAD,
            ),
            l4_checksum: checksum_status(
                mbuf.ol_flags,
                sys::RTE_MBUF_F_RX_L4_CKSUM_GOOD,
                sys::RTE_MBUF_F_RX_L4_CKSUM_BAD,
            ),
            rss_hash: has_hash.then_some(hash),
        }
    }

    #[inline]
    fn set_rss_hash(&mut self, hash: Option<u32>) {
        let mbuf = self.raw_mut();
        mbuf.ol_flags &= !u64::from(sys::RTE_MBUF_F_RX_RSS_HASH);
        if let Some(hash) = hash {
            mbuf.__bindgen_anon_2.hash.rss = hash;
            mbuf.ol_flags |= u64::from(sys::RTE_MBUF_F_RX_RSS_HASH);
        }
    }

    fn set_tx_offload(&mut self, offload: TxOffload) {
        let (version, l3, l4) = match offload {
            TxOffload::TcpIpv4 { l3, l4 } => (sys::RTE_MBUF_F_TX_IPV4 | sys::RTE_MBUF_F_TX_IP_CKSUM, l3, l4),
            TxOffload::TcpIpv6 { l3, l4 } => (sys::RTE_MBUF_F_TX_IPV6, l3, l4),
        };
        let l4_header = self
            .data()
            .get(usize::from(l4) + 12)
            .map_or(20, |byte| u64::from(byte >> 4) * 4);
        let mbuf = self.raw_mut();
        mbuf.ol_flags |= version | sys::RTE_MBUF_F_TX_TCP_CKSUM;
        // `tx_offload` of rte_mbuf_core.h: 7 bits l2_len, 9 bits l3_len, 8 bits l4_len, then what only segmentation uses.
        let l2_len = u64::from(l3) & 0x7f;
        let l3_len = u64::from(l4.saturating_sub(l3)) & 0x1ff;
        mbuf.__bindgen_anon_3.tx_offload = l2_len | l3_len << 7 | (l4_header & 0xff) << 16;
    }

    #[inline(always)]
    fn prefetch(&self) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch reads nothing, and `wrapping_add` only computes an address.
        unsafe {
            use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let header: *const i8 = self.0.as_ptr().cast();
            // Where the data begins stands in the header, which may be in another core's cache: to wait for it would double
            // the time that all this takes. A pool's buffer follows its header, and drivers leave the headroom as it is; of AF_XDP,
            // whose frames lie elsewhere, the two lines of data are asked for in vain.
            let start = header.wrapping_add(size_of::<sys::rte_mbuf>() + sys::RTE_PKTMBUF_HEADROOM as usize);
            _mm_prefetch::<_MM_HINT_T0>(header);
            _mm_prefetch::<_MM_HINT_T0>(start);
            // The headers of TCP with time stamps over IPv4 are two bytes longer than a line.
            _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(LINE));
        }
    }
}

/// Bytes of a cache line.
#[cfg(target_arch = "x86_64")]
const LINE: usize = 64;

/// Every flag by which a driver tells something that [`RxInfo`] holds.
const RX_SAYS: u64 = (sys::RTE_MBUF_F_RX_RSS_HASH
    | sys::RTE_MBUF_F_RX_IP_CKSUM_GOOD
    | sys::RTE_MBUF_F_RX_IP_CKSUM_BAD
    | sys::RTE_MBUF_F_RX_L4_CKSUM_GOOD
    | sys::RTE_MBUF_F_RX_L4_CKSUM_BAD) as u64;

/// Both bits set means "the packet has no such checksum", which says as little as neither.
fn checksum_status(flags: u64, good: u32, bad: u32) -> ChecksumStatus {
    match (flags & u64::from(good) != 0, flags & u64::from(bad) != 0) {
        (true, false) => ChecksumStatus::Good,
        (false, true) => ChecksumStatus::Bad,
        _ => ChecksumStatus::Unknown,
    }
}

const _: () = assert!(size_of::<Option<Mbuf>>() == size_of::<*mut sys::rte_mbuf>());

impl Mbuf {
    /// Whether the device is to fill something in.
    #[inline]
    pub(super) fn has_tx_offload(&self) -> bool {
        self.raw().ol_flags & sys::RTE_MBUF_F_TX_TCP_CKSUM != 0
    }
}

/// The bit fields of `tx_offload` are where [`Mbuf::set_tx_offload`] puts them.
const _: () = assert!(
    sys::RTE_MBUF_L2_LEN_BITS == 7 && sys::RTE_MBUF_L3_LEN_BITS == 9 && sys::RTE_MBUF_L4_LEN_BITS == 8,
    "rte_mbuf_core.h lays tx_offload out differently"
);
