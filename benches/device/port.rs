//! The ports of proxy and load: rings that count what passes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrayvec::ArrayVec;
use e2d2::BURST;
use e2d2::native::DpdkQueue;
use e2d2::port::{Capabilities, Port, PortId};
use e2d2::wire::MacAddr;

/// A ring port that counts what passes and has an address, which rings have not. It is used by one thread; the counters are
/// shared with the bench on the same thread.
pub(crate) struct CountingPort {
    inner: DpdkQueue,
    mac: MacAddr,
    passed: Arc<Passed>,
}

impl CountingPort {
    pub(super) fn new(inner: DpdkQueue, passed: &Arc<Passed>) -> CountingPort {
        let mac = MacAddr([2, 0, 0, 0, 0, inner.id().0]);
        CountingPort {
            inner,
            mac,
            passed: passed.clone(),
        }
    }
}

/// In lines of its own: on two cores the counters of the load's ends, which stand beside it on the heap, would take its line
/// away with every poll.
#[derive(Default)]
#[repr(align(128))]
pub(super) struct Passed {
    pub(super) received: AtomicU64,
    pub(super) sent: AtomicU64,
}

/// One thread writes: a load and a store, no locked instruction.
fn add(counter: &AtomicU64, count: usize) {
    counter.store(counter.load(Ordering::Relaxed) + count as u64, Ordering::Relaxed);
}

impl Port for CountingPort {
    type Buffer = e2d2::native::Mbuf;

    fn id(&self) -> PortId {
        self.inner.id()
    }

    fn mac(&self) -> MacAddr {
        self.mac
    }

    fn mtu(&self) -> u16 {
        self.inner.mtu()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    #[inline]
    fn receive(&mut self, into: &mut ArrayVec<Self::Buffer, BURST>) -> usize {
        let count = self.inner.receive(into);
        add(&self.passed.received, count);
        count
    }

    #[inline]
    fn transmit(&mut self, from: &mut ArrayVec<Self::Buffer, BURST>) -> usize {
        let count = self.inner.transmit(from);
        add(&self.passed.sent, count);
        count
    }
}
