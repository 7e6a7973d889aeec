//! Packet memory from the heap: what tests, simulations, fuzzers and the kernel-facing ports use in place of mbufs.
//!
//! A pool allocates all its memory when it is made and recycles it, so a leak shows as a pool that runs dry, as it would
//! with DPDK. Buffers may be dropped on another thread than the one that took them (they can cross a hand-over queue);
//! the free list is behind a mutex for that, which is uncontended where one thread does all.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::buffer::{BufferPool, NoRoom, PacketBuffer, RxInfo, TxOffload};

/// Bytes before the data of a fresh buffer; the same as DPDK's `RTE_PKTMBUF_HEADROOM`.
const HEADROOM: usize = 128;

type FreeList = Arc<Mutex<Vec<Box<[u8]>>>>;

/// A bounded pool of [`HeapBuffer`]s. Clones share the same buffers.
#[derive(Clone, Debug)]
pub struct HeapPool {
    free: FreeList,
    capacity: usize,
}

/// A packet in heap memory; see [`PacketBuffer`].
#[derive(Debug)]
pub struct HeapBuffer {
    memory: Box<[u8]>,
    start: usize,
    end: usize,
    rx_info: RxInfo,
    tx_offload: Option<TxOffload>,
    home: FreeList,
}

impl HeapPool {
    /// A pool of `count` buffers that each hold a frame of `data_room` bytes besides the headroom of 128 bytes.
    pub fn new(count: usize, data_room: usize) -> Self {
        let free = (0..count)
            .map(|_| vec![0; HEADROOM + data_room].into_boxed_slice())
            .collect();
        Self {
            free: Arc::new(Mutex::new(free)),
            capacity: count,
        }
    }
}

impl BufferPool for HeapPool {
    type Buffer = HeapBuffer;

    fn take(&mut self) -> Option<HeapBuffer> {
        let memory = lock(&self.free).pop()?;
        let start = HEADROOM.min(memory.len());
        Some(HeapBuffer {
            memory,
            start,
            end: start,
            rx_info: RxInfo::default(),
            tx_offload: None,
            home: Arc::clone(&self.free),
        })
    }

    fn capacity(&self) -> usize {
        self.capacity
    }

    fn available(&self) -> usize {
        lock(&self.free).len()
    }
}

impl HeapBuffer {
    /// Sets what [`PacketBuffer::rx_info`] says, as a port does when it receives.
    pub fn set_rx_info(&mut self, rx_info: RxInfo) {
        self.rx_info = rx_info;
    }

    /// Takes what [`PacketBuffer::set_tx_offload`] asked for, as a port does when it transmits.
    pub fn take_tx_offload(&mut self) -> Option<TxOffload> {
        self.tx_offload.take()
    }
}

impl PacketBuffer for HeapBuffer {
    fn data(&self) -> &[u8] {
        &self.memory[self.start..self.end]
    }

    fn data_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.end]
    }

    fn len(&self) -> usize {
        self.end - self.start
    }

    fn headroom(&self) -> usize {
        self.start
    }

    fn tailroom(&self) -> usize {
        self.memory.len() - self.end
    }

    fn prepend(&mut self, n: usize) -> Result<(), NoRoom> {
        let start = self.start.checked_sub(n).ok_or(NoRoom)?;
        self.memory[start..self.start].fill(0);
        self.start = start;
        Ok(())
    }

    fn append(&mut self, n: usize) -> Result<(), NoRoom> {
        if n > self.tailroom() {
            return Err(NoRoom);
        }
        self.memory[self.end..self.end + n].fill(0);
        self.end += n;
        Ok(())
    }

    fn trim_front(&mut self, n: usize) {
        self.start += n.min(self.len());
    }

    fn truncate(&mut self, len: usize) {
        self.end = self.start + len.min(self.len());
    }

    fn rx_info(&self) -> RxInfo {
        self.rx_info
    }

    fn set_rss_hash(&mut self, hash: Option<u32>) {
        self.rx_info.rss_hash = hash;
    }

    fn set_tx_offload(&mut self, offload: TxOffload) {
        self.tx_offload = Some(offload);
    }

    fn prefetch(&self) {}
}

impl Drop for HeapBuffer {
    fn drop(&mut self) {
        lock(&self.home).push(core::mem::take(&mut self.memory));
    }
}

/// A thread that panicked while it held the lock left a good list: pushing and popping do not panic half-way.
fn lock(free: &FreeList) -> MutexGuard<'_, Vec<Box<[u8]>>> {
    free.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pool_is_bounded_and_recycles() {
        let mut pool = HeapPool::new(2, 64);
        assert_eq!((pool.capacity(), pool.available()), (2, 2));
        let first = pool.take().expect("one of two");
        let second = pool.take().expect("two of two");
        assert!(pool.take().is_none());
        assert_eq!(pool.available(), 0);
        drop(first);
        assert_eq!(pool.available(), 1);
        assert!(pool.take().is_some());
        drop(second);
        assert_eq!(pool.available(), 2);
    }

    #[test]
    fn room_is_used_to_the_last_byte_and_not_beyond() {
        let mut buffer = HeapPool::new(1, 64).take().expect("fresh");
        assert_eq!((buffer.headroom(), buffer.len(), buffer.tailroom()), (128, 0, 64));
        assert_eq!(buffer.append(65), Err(NoRoom));
        assert_eq!(buffer.append(64), Ok(()));
        assert_eq!(buffer.append(1), Err(NoRoom));
        assert_eq!(buffer.prepend(129), Err(NoRoom));
        assert_eq!(buffer.prepend(128), Ok(()));
        assert_eq!((buffer.headroom(), buffer.len(), buffer.tailroom()), (0, 192, 0));
    }

    #[test]
    fn new_bytes_are_zero_even_in_recycled_memory() {
        let mut pool = HeapPool::new(1, 8);
        let mut buffer = pool.take_copy(&[0xff; 8]).expect("fits");
        buffer.prepend(4).expect("headroom");
        buffer.data_mut().fill(0xee);
        drop(buffer);
        let mut buffer = pool.take().expect("recycled");
        buffer.append(8).expect("tailroom");
        buffer.prepend(4).expect("headroom");
        assert_eq!(buffer.data(), [0; 12]);
    }

    #[test]
    fn trimming_clamps() {
        let mut pool = HeapPool::new(1, 8);
        let mut buffer = pool.take_copy(&[1, 2, 3, 4]).expect("fits");
        buffer.truncate(9);
        assert_eq!(buffer.data(), [1, 2, 3, 4]);
        buffer.truncate(3);
        buffer.trim_front(1);
        assert_eq!(buffer.data(), [2, 3]);
        buffer.trim_front(5);
        assert!(buffer.is_empty());
    }

    #[test]
    fn copy_that_does_not_fit_returns_its_buffer() {
        let mut pool = HeapPool::new(1, 8);
        assert!(pool.take_copy(&[0; 9]).is_none());
        assert_eq!(pool.available(), 1);
    }

    #[test]
    fn fresh_buffer_knows_nothing_of_its_memorys_last_use() {
        let mut pool = HeapPool::new(1, 8);
        let mut buffer = pool.take().expect("fresh");
        buffer.set_rx_info(RxInfo {
            rss_hash: Some(7),
            ..RxInfo::default()
        });
        buffer.set_tx_offload(TxOffload::TcpIpv4 { l3: 14, l4: 34 });
        drop(buffer);
        let mut buffer = pool.take().expect("recycled");
        assert_eq!(buffer.rx_info(), RxInfo::default());
        assert_eq!(buffer.take_tx_offload(), None);
    }

    #[test]
    fn buffer_returns_to_its_pool_from_another_thread() {
        let mut pool = HeapPool::new(1, 8);
        let buffer = pool.take().expect("fresh");
        std::thread::spawn(move || drop(buffer)).join().expect("thread");
        assert_eq!(pool.available(), 1);
    }
}
