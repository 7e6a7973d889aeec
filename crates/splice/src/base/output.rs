//! What the core asks of the world around it: that frames go out, and the MAC addresses of next hops.

use crate::base::checks::{CheckId, CheckOrder};
use crate::base::stage::WorkStage;
use e2d2::port::PortId;
use e2d2::time::Instant;
use e2d2::wire::MacAddr;
use e2d2::wire::frame::Packet;
use std::sync::Arc;

/// Where frames go that the core sends.
pub trait Output<B> {
    /// Takes a frame for `port`. An outbox that is full drops it and counts that; the core does not wait.
    fn send(&mut self, port: PortId, frame: B);

    /// How many more frames it takes before it is full.
    fn room(&self) -> usize;

    /// True while frames wait for some port until there is hardly room for more: what can wait should.
    fn is_congested(&self) -> bool {
        false
    }

    /// Takes a packet for another core, which owns it.
    ///
    /// # Errors
    /// Gives it back if there is no such core or the way there is full.
    fn hand_over(&mut self, core: usize, packet: Packet<B>) -> Result<(), Packet<B>> {
        let _there_is_no_other = core;
        Err(packet)
    }

    /// Says what is done from now on, to whoever counts the core's time by stage; nobody does by default.
    #[inline(always)]
    fn enter(&mut self, stage: WorkStage) {
        let _nobody_counts = stage;
    }

    /// Begins a check with content, whose result is to be passed to [`end_check`](crate::Proxy::end_check). Returns false if
    /// it cannot be made now, which is the default.
    fn begin_check(&mut self, order: &CheckOrder) -> bool {
        let _nobody_makes_it = order;
        false
    }

    /// Takes an IP packet that a server has sent to this check. Returns false if there is no room for it.
    fn pass_to_check(&mut self, check: CheckId, packet: &[u8]) -> bool {
        let _nobody_makes_it = (check, packet);
        false
    }

    /// Takes a frame that `port` has received and that is the Linux kernel's; only of ports with a kernel behind them
    /// (`docs/kernel.md`).
    fn pass_to_kernel(&mut self, now: Instant, port: PortId, frame: B);
}

/// Who knows the MAC addresses of next hops.
pub trait NextHops {
    /// The MAC address of the next hop with this index; `None` if it is not resolved. Asking makes it be resolved.
    fn mac(&self, next_hop: usize) -> Option<MacAddr>;
}

impl<T: NextHops> NextHops for Arc<T> {
    #[inline]
    fn mac(&self, next_hop: usize) -> Option<MacAddr> {
        T::mac(self, next_hop)
    }
}
