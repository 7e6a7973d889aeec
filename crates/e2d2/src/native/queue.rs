//! One receive and transmit queue pair of a DPDK port, owned by one core: the packet path.
//!
//! Budget: besides what the driver costs, a burst is three loads and an indirect call each way, and a packet costs one look at
//! its segment count.
#![allow(unsafe_code)] // Bursts write mbuf pointers into, and take them out of, vectors of `Mbuf`.

use std::ptr::{self, NonNull};
use std::sync::Arc;

use arrayvec::ArrayVec;
use dpdk_sys as sys;

use super::mbuf::Mbuf;
use super::port::PortInner;
use crate::BURST;
use crate::buffer::PacketBuffer;
use crate::port::{Capabilities, Port, PortId};
use crate::wire::{MacAddr, partial};

/// Packets that a queue treated specially.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueCounters {
    /// Received in several segments and copied into one.
    pub rx_linearised: u64,
    /// Received in several segments that do not fit into one, and dropped.
    pub rx_oversized: u64,
    /// Larger than the port's MTU with header and two tags, and dropped: drivers refuse such a packet for ever, send it in
    /// pieces or copy it into a buffer that is too small. Ring ports pass it on.
    pub tx_oversized: u64,
    /// Refused by the driver because it cannot do the offload that the packet asks for, and dropped.
    pub tx_unprepared: u64,
}

impl QueueCounters {
    /// Every cause for which a packet was dropped here, by name.
    pub fn drops(&self) -> [(&'static str, u64); 3] {
        [
            ("rx_oversized", self.rx_oversized),
            ("tx_oversized", self.tx_oversized),
            ("tx_unprepared", self.tx_unprepared),
        ]
    }
}

/// One queue pair. It may move to another thread, and is then used by that thread alone.
#[derive(Debug)]
pub struct DpdkQueue {
    port: u16,
    queue: u16,
    needs_prepare: bool,
    /// Whether what comes in may have checksums that its sender has left to the device.
    may_be_partial: bool,
    /// Whether the driver may deliver packets of several segments.
    may_chain: bool,
    /// The largest frame that is sent; none: the driver does not mind.
    largest: Option<usize>,
    counters: QueueCounters,
    shared: Arc<PortInner>,
}

/// Whether a driver reads what the kernel sends to a virtual device on the same host. The kernel completes what it sends to
/// a TAP itself, and a device completes what comes from a wire.
fn has_partial_checksums(driver: &str) -> bool {
    matches!(driver, "net_af_packet" | "net_af_xdp")
}

impl DpdkQueue {
    /// One for each queue of the port; `PortInner` is started.
    pub(super) fn new(shared: &Arc<PortInner>, queue: u16) -> Self {
        Self {
            port: shared.port,
            queue,
            needs_prepare: shared.needs_prepare,
            may_be_partial: has_partial_checksums(&shared.driver),
            // What comes out of a ring has gone into it by a queue of ours, as an `Mbuf`: one segment. To look at it would be
            // to wait for its header from another core, before anything else of it has been asked for.
            may_chain: shared.driver != "net_ring",
            // A ring passes pointers; there the check would be a fifth of all that a packet costs (bench `native`).
            largest: (shared.driver != "net_ring").then(|| usize::from(shared.mtu) + 14 + 2 * 4),
            counters: QueueCounters::default(),
            shared: Arc::clone(shared),
        }
    }

    /// Its index in the port.
    pub fn index(&self) -> u16 {
        self.queue
    }

    /// Packets that were treated specially so far.
    pub fn counters(&self) -> QueueCounters {
        self.counters
    }

    /// Packets that wait to be received; none if the driver does not tell. For reports, not for the packet path.
    pub fn waiting(&self) -> Option<u32> {
        // SAFETY: the port is started as long as `shared` lives, and this is one of its queues.
        unsafe { sys::ethdev::rx_queue_count(self.port, self.queue) }
    }

    /// Drops the packets that are too large; returns how many.
    #[cold]
    #[inline(never)]
    fn drop_oversized(&mut self, packets: &mut ArrayVec<Mbuf, BURST>, largest: usize) -> usize {
        let before = packets.len();
        packets.retain(|packet| packet.len() <= largest);
        let dropped = before - packets.len();
        self.counters.tx_oversized += dropped as u64;
        dropped
    }

    /// Goes through the burst from the packet that has several segments at `first`; returns how many packets are left.
    ///
    /// # Safety
    /// The `count` packets at `packets` are owned.
    #[cold]
    #[inline(never)]
    unsafe fn join_segments(&mut self, packets: *mut *mut sys::rte_mbuf, first: usize, count: usize) -> usize {
        let mut kept = first;
        for index in first..count {
            // SAFETY: an owned packet of the burst; linearising frees the segments that it empties, freeing frees all.
            unsafe {
                let packet = *packets.add(index);
                if (*packet).nb_segs != 1 {
                    if sys::__rte_pktmbuf_linearize(packet) != 0 {
                        self.counters.rx_oversized += 1;
                        sys::mbuf::free(packet);
                        continue;
                    }
                    self.counters.rx_linearised += 1;
                }
                *packets.add(kept) = packet;
            }
            kept += 1;
        }
        kept
    }
}

impl Port for DpdkQueue {
    type Buffer = Mbuf;

    fn id(&self) -> PortId {
        self.shared.id
    }

    fn mac(&self) -> MacAddr {
        self.shared.mac
    }

    fn mtu(&self) -> u16 {
        self.shared.mtu
    }

    fn capabilities(&self) -> Capabilities {
        self.shared.capabilities
    }

    #[inline]
    fn receive(&mut self, into: &mut ArrayVec<Mbuf, BURST>) -> usize {
        let (start, room) = (into.len(), into.remaining_capacity());
        if room == 0 {
            return 0;
        }
        // SAFETY: the port is started as long as `shared` lives and this queue is used by this value alone. The vector has
        // room for that many more pointers, and an `Mbuf` is one. Received packets are owned by us and direct; those of
        // several segments are dealt with before the vector gets to see them.
        unsafe {
            let packets = into.as_mut_ptr().add(start).cast::<*mut sys::rte_mbuf>();
            let mut count = usize::from(sys::ethdev::rx_burst(self.port, self.queue, packets, room as u16));
            if self.may_chain
                && let Some(first) = (0..count).find(|&index| (**packets.add(index)).nb_segs != 1)
            {
                count = self.join_segments(packets, first, count);
            }
            into.set_len(start + count);
            if self.may_be_partial {
                for packet in &mut into[start..] {
                    partial::complete(packet.data_mut());
                }
            }
            count
        }
    }

    #[inline]
    fn transmit(&mut self, from: &mut ArrayVec<Mbuf, BURST>) -> usize {
        let mut dropped = 0;
        if let Some(largest) = self.largest {
            // The maximum instead of a search: no branch per packet.
            let longest = from.iter().fold(0, |longest, packet| packet.len().max(longest));
            if longest > largest {
                dropped = self.drop_oversized(from, largest);
            }
        }
        let count = from.len();
        if count == 0 {
            return dropped;
        }
        let packets = from.as_mut_ptr().cast::<*mut sys::rte_mbuf>();
        // SAFETY: as in `receive`; the packets are owned, and the driver owns those that it takes.
        unsafe {
            let mut ready = count as u16;
            // Nothing is paid for bursts in which nothing is left to the device: what passes has its checksums.
            if self.needs_prepare && from.iter().any(Mbuf::has_tx_offload) {
                ready = sys::ethdev::tx_prepare(self.port, self.queue, packets, ready);
            }
            let sent = usize::from(sys::ethdev::tx_burst(self.port, self.queue, packets, ready));
            let mut taken = sent;
            if sent == usize::from(ready) && sent < count {
                // All that is ready has gone: the next one is what the driver cannot send.
                drop(Mbuf::from_raw(NonNull::new_unchecked(*packets.add(sent))));
                self.counters.tx_unprepared += 1;
                taken += 1;
            }
            ptr::copy(packets.add(taken), packets, count - taken);
            from.set_len(count - taken);
            dropped + taken
        }
    }
}
