//! Pools of mbufs: one per core, counted, never freed under a packet that is still out.
#![allow(unsafe_code)] // FFI: creates, reads and frees mempools.

use std::ffi::CString;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use dpdk_sys as sys;

use super::eal::Eal;
use super::mbuf::Mbuf;
use super::spread;
use crate::BURST;
use crate::buffer::BufferPool;

/// Packets that a thread keeps for itself before it goes to the pool's shared ring. The largest that DPDK allows: the
/// larger, the rarer the atomic operations; the memory is in the size computed by [`PoolDemand::buffers`].
const CACHE: u32 = sys::RTE_MEMPOOL_CACHE_MAX_SIZE;

/// Why a pool could not be made.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PoolError {
    /// Not enough packet memory.
    #[error(
        "{buffers} packet buffers of {data_room} bytes do not fit into DPDK's memory ({reason}): raise its size by at least {mib} MiB"
    )]
    NoMemory {
        /// How many buffers were asked for.
        buffers: u32,
        /// The largest frame each is to hold.
        data_room: u16,
        /// `rte_strerror`.
        reason: String,
        /// What they need.
        mib: u64,
    },
    /// DPDK refused for another reason.
    #[error("the packet pool `{name}` was not created: {reason}{log}")]
    Refused {
        /// The pool's name.
        name: String,
        /// `rte_strerror`.
        reason: String,
        /// What DPDK logged about it.
        log: String,
    },
}

/// Where the buffers of one core's pool can be at the same time; from it follows how many there must be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolDemand {
    /// What the core's queue pairs can hold, summed: [`super::PortConfig::buffers`] of each port.
    pub queues: u32,
    /// Packets that the core may hold on to: queues, hand-over rings, packets that wait for an address.
    pub held: u32,
    /// Threads that take or drop its packets while registered, at least the owning one.
    pub threads: u32,
}

impl PoolDemand {
    /// How many buffers are enough even if everything is full at once.
    ///
    /// What queues and core hold, three bursts in the graph's hands, and for each thread a full cache, which is one and a
    /// half times its size. Rounded up to one less than a power of two, which is what fits a mempool's ring without waste.
    pub fn buffers(&self) -> u32 {
        let caches = u64::from(self.threads.max(1)) * u64::from(CACHE + CACHE / 2);
        let sum = u64::from(self.queues) + u64::from(self.held) + caches + 3 * BURST as u64;
        let rounded = (sum + 1).next_power_of_two() - 1;
        u32::try_from(rounded).unwrap_or(u32::MAX)
    }
}

/// Bytes of data that a buffer needs to hold any frame of a port with this MTU (at most 9000) in one segment.
///
/// The Ethernet header, two tags and the check sequence make 26 bytes; AF_XDP puts 256 bytes of its own in front, AF_PACKET
/// 66 in a frame of the same size; Intel NICs count buffers in units of 1024 bytes; less than 2048 saves nothing.
pub fn data_room(mtu: u16) -> u16 {
    (u32::from(mtu) + 26 + 256).next_multiple_of(1024).clamp(2048, 64512) as u16
}

/// A pool of packet buffers. Clones share the buffers.
#[derive(Clone, Debug)]
pub struct MbufPool(Arc<PoolInner>);

#[derive(Debug)]
pub(super) struct PoolInner {
    pool: NonNull<sys::rte_mempool>,
    capacity: u32,
    /// Buffers that a closed device never gave back and that nobody uses any more.
    lost: AtomicU32,
    data_room: u16,
    name: String,
    eal: Eal,
}

// SAFETY: a mempool takes gets and puts from any thread; everything else is read only.
unsafe impl Send for PoolInner {}
// SAFETY: as above.
unsafe impl Sync for PoolInner {}

impl MbufPool {
    /// Makes a pool of `buffers` buffers, each holding a frame of `data_room` bytes in front of 128 bytes of headroom.
    ///
    /// `name` must be unique in the process and at most 20 bytes long. `numa_node` is the node of the core that uses it.
    ///
    /// # Errors
    /// [`PoolError`] when the memory does not suffice or the name is taken.
    pub fn new(eal: &Eal, name: &str, buffers: u32, data_room: u16, numa_node: Option<u32>) -> Result<Self, PoolError> {
        eal.log().forget();
        let refused = |reason: String| PoolError::Refused {
            name: name.to_owned(),
            reason,
            log: eal.log().complaints(),
        };
        let c_name = CString::new(name).map_err(|_| refused("its name contains a NUL byte".to_owned()))?;
        let headroom = sys::RTE_PKTMBUF_HEADROOM as u16;
        let total_room = data_room
            .checked_add(headroom)
            .ok_or_else(|| refused("its buffers are too large".to_owned()))?;
        // A cache of more than two thirds of the pool is refused by DPDK.
        let cache = CACHE.min(buffers * 2 / 3);
        let node = numa_node.and_then(|node| i32::try_from(node).ok()).unwrap_or(ANY_NODE);
        let operations = spread::operations(eal.memory());
        // SAFETY: the EAL runs; the names are NUL-terminated. Without private data a buffer is header and data room.
        let pool = unsafe {
            sys::rte_pktmbuf_pool_create_by_ops(c_name.as_ptr(), buffers, cache, 0, total_room, node, operations)
        };
        let Some(pool) = NonNull::new(pool) else {
            let errno = sys::thread::errno();
            let reason = sys::thread::error_text(errno);
            return Err(if NO_MEMORY.contains(&errno) {
                let bytes = u64::from(buffers) * (u64::from(total_room) + 192);
                PoolError::NoMemory {
                    buffers,
                    data_room,
                    reason,
                    mib: bytes.div_ceil(1 << 20),
                }
            } else {
                refused(reason)
            });
        };
        let inner = PoolInner {
            pool,
            capacity: buffers,
            lost: AtomicU32::new(0),
            data_room,
            name: name.to_owned(),
            eal: eal.clone(),
        };
        Ok(Self(Arc::new(inner)))
    }

    /// How many packets are out: held by somebody, or in a device's queues. Once everything is dropped and every port that
    /// received into the pool is closed it is 0, or packets leaked. net_af_xdp keeps 2048 buffers of each queue when it is
    /// closed; they are taken off the pool's capacity and not counted here.
    pub fn in_use(&self) -> usize {
        self.0.in_use() as usize
    }

    /// The frame that each buffer holds behind its headroom, in bytes.
    pub fn data_room(&self) -> u16 {
        self.0.data_room
    }

    pub(super) fn share(&self) -> Arc<PoolInner> {
        Arc::clone(&self.0)
    }
}

impl BufferPool for MbufPool {
    type Buffer = Mbuf;

    #[inline(always)]
    fn take(&mut self) -> Option<Mbuf> {
        // SAFETY: the pool lives; a fresh mbuf is live, ours alone and one empty segment.
        unsafe { NonNull::new(sys::mbuf::alloc(self.0.pool.as_ptr())).map(|mbuf| Mbuf::from_raw(mbuf)) }
    }

    fn capacity(&self) -> usize {
        self.0.capacity() as usize
    }

    /// Reads the caches of all threads: for reports and checks, not for the packet path.
    fn available(&self) -> usize {
        self.0.available() as usize
    }
}

impl PoolInner {
    pub(super) fn as_ptr(&self) -> *mut sys::rte_mempool {
        self.pool.as_ptr()
    }

    pub(super) fn available(&self) -> u32 {
        // SAFETY: the pool lives. While others use it the parts are read at different times, hence the limit.
        unsafe { sys::mempool::available(self.pool.as_ptr()) }.min(self.capacity())
    }

    /// Counts buffers out of the pool for good: a device kept them when it was closed.
    pub(super) fn lose(&self, buffers: u32) {
        self.lost.fetch_add(buffers, Ordering::SeqCst);
    }

    fn capacity(&self) -> u32 {
        self.capacity.saturating_sub(self.lost.load(Ordering::SeqCst))
    }

    fn in_use(&self) -> u32 {
        self.capacity() - self.available()
    }
}

impl Drop for PoolInner {
    fn drop(&mut self) {
        let out = self.in_use();
        if out > 0 {
            log::error!(
                "packet pool `{}`: {out} of {} packets were not given back",
                self.name,
                self.capacity
            );
            self.eal.pin_memory();
            return;
        }
        // SAFETY: the last user of the pool is gone and all its packets are back, which `available` reads with acquire.
        unsafe { sys::rte_mempool_free(self.pool.as_ptr()) };
    }
}

/// `SOCKET_ID_ANY`.
const ANY_NODE: i32 = -1;

/// What DPDK says when memory runs out: `ENOMEM`, and `ENOBUFS` when only part of the pool fitted.
const NO_MEMORY: [i32; 2] = [12, 105];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_covers_everything_that_can_be_full_at_once() {
        assert_eq!(PoolDemand::default().buffers(), 1023);
        // 2048 + 1000 + 768 + 96 = 3912, and one more than 4095 doubles.
        let demand = PoolDemand {
            queues: 2048,
            held: 1000,
            threads: 1,
        };
        assert_eq!(demand.buffers(), 4095);
        assert_eq!(PoolDemand { held: 1183, ..demand }.buffers(), 4095);
        assert_eq!(PoolDemand { held: 1184, ..demand }.buffers(), 8191);
        assert_eq!(
            PoolDemand {
                held: u32::MAX,
                ..demand
            }
            .buffers(),
            u32::MAX
        );
    }

    #[test]
    fn a_frame_fits_into_one_segment_at_any_mtu() {
        for (mtu, room) in [(576, 2048), (1500, 2048), (1766, 2048), (1767, 3072), (9000, 10240)] {
            assert_eq!(data_room(mtu), room, "{mtu}");
        }
        assert!(u32::from(data_room(u16::MAX)) + 128 <= u32::from(u16::MAX));
    }
}
