//! What a core holds of a port: a queue pair of the device, or of the software NIC in front of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrayvec::ArrayVec;
use e2d2::BURST;
use e2d2::native::{DpdkQueue, Mbuf};
use e2d2::operators::Task;
use e2d2::port::{Capabilities, Port, PortId};
use e2d2::ports::{NicQueue, NicSide};
use e2d2::scheduler::Work;
use e2d2::time::Instant;
use e2d2::wire::MacAddr;

use crate::engine::machine::DeviceSide;

/// A queue pair of a port. Which kind it is is the same for every burst, so it costs a predicted jump.
#[derive(Debug)]
pub struct EngineQueue(Kind);

#[derive(Debug)]
enum Kind {
    Nic(DpdkQueue),
    Soft {
        queue: NicQueue<Mbuf>,
        side: Option<Box<Side>>,
    },
}

impl EngineQueue {
    /// A queue pair of a software NIC, and the device's side if its core is to move the packets.
    pub(super) fn of_software(queue: NicQueue<Mbuf>, side: Option<Side>) -> Self {
        Self(Kind::Soft {
            queue,
            side: side.map(Box::new),
        })
    }

    /// The device's side, once.
    pub(super) fn take_side(&mut self) -> Option<Box<Side>> {
        match &mut self.0 {
            Kind::Nic(_) => None,
            Kind::Soft { side, .. } => side.take(),
        }
    }

    /// Packets that wait to be received, if the driver tells.
    pub(super) fn waiting(&self) -> Option<u64> {
        match &self.0 {
            Kind::Nic(queue) => queue.waiting().map(u64::from),
            Kind::Soft { queue, .. } => Some(queue.waiting() as u64),
        }
    }

    /// Packets that the device's queue has dropped by itself. A software NIC's are among the port's own counts.
    pub(super) fn drops(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let of_device = match &self.0 {
            Kind::Nic(queue) => Some(queue.counters().drops()),
            Kind::Soft { .. } => None,
        };
        of_device.into_iter().flatten()
    }
}

/// A queue pair of the device.
impl From<DpdkQueue> for EngineQueue {
    fn from(queue: DpdkQueue) -> Self {
        Self(Kind::Nic(queue))
    }
}

impl Port for EngineQueue {
    type Buffer = Mbuf;

    fn id(&self) -> PortId {
        match &self.0 {
            Kind::Nic(queue) => queue.id(),
            Kind::Soft { queue, .. } => queue.id(),
        }
    }

    fn mac(&self) -> MacAddr {
        match &self.0 {
            Kind::Nic(queue) => queue.mac(),
            Kind::Soft { queue, .. } => queue.mac(),
        }
    }

    fn mtu(&self) -> u16 {
        match &self.0 {
            Kind::Nic(queue) => queue.mtu(),
            Kind::Soft { queue, .. } => queue.mtu(),
        }
    }

    fn capabilities(&self) -> Capabilities {
        match &self.0 {
            Kind::Nic(queue) => queue.capabilities(),
            Kind::Soft { queue, .. } => queue.capabilities(),
        }
    }

    #[inline]
    fn receive(&mut self, into: &mut ArrayVec<Mbuf, BURST>) -> usize {
        match &mut self.0 {
            Kind::Nic(queue) => queue.receive(into),
            Kind::Soft { queue, .. } => queue.receive(into),
        }
    }

    #[inline]
    fn transmit(&mut self, from: &mut ArrayVec<Mbuf, BURST>) -> usize {
        match &mut self.0 {
            Kind::Nic(queue) => queue.transmit(from),
            Kind::Soft { queue, .. } => queue.transmit(from),
        }
    }
}

/// The device's side of a software NIC, for whichever thread runs it.
#[derive(Debug)]
pub(super) struct Side {
    nic: NicSide<DpdkQueue>,
    /// The queue of the worker that runs it; none on a core of its own.
    own: Option<u16>,
    drops: Arc<SideDrops>,
}

/// What the device's only queue has dropped by itself, for the thread that reports.
#[derive(Debug, Default)]
pub(super) struct SideDrops {
    rx: AtomicU64,
    tx: AtomicU64,
}

impl SideDrops {
    /// Packets that were received or were to be sent, and could not be.
    pub(super) fn rx_and_tx(&self) -> (u64, u64) {
        (self.rx.load(Ordering::Relaxed), self.tx.load(Ordering::Relaxed))
    }
}

impl Side {
    pub(super) fn new(nic: NicSide<DpdkQueue>, own: Option<u16>) -> Self {
        Self {
            nic,
            own,
            drops: Arc::default(),
        }
    }

    /// Where its drops can be read from.
    pub(super) fn drops(&self) -> Arc<SideDrops> {
        Arc::clone(&self.drops)
    }
}

impl Task for Side {
    fn run(&mut self, now: Instant) -> Work {
        let work = self.nic.run(now);
        if !work.is_none() {
            let counters = self.nic.port().counters();
            self.drops.rx.store(counters.rx_oversized, Ordering::Relaxed);
            let tx = counters.tx_oversized + counters.tx_unprepared;
            self.drops.tx.store(tx, Ordering::Relaxed);
        }
        work
    }

    fn next_deadline(&self) -> Option<Instant> {
        None
    }
}

impl DeviceSide for Side {
    fn is_needed(&self) -> bool {
        self.nic.is_needed_beside(self.own)
    }
}
