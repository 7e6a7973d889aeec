//! What the core under test sends, to the network and to the maker of its checks with content.

use e2d2::buffer::HeapBuffer;
use e2d2::port::PortId;
use e2d2::time::Instant;
use proxyengine::checks::CheckLine;
use splice::Output;
use splice::checks::{CheckId, CheckOrder};

/// Frames that the core has sent, and how many it may send; its line to the maker of checks, if there is one.
pub struct Sent(
    pub(super) Vec<(PortId, HeapBuffer)>,
    pub(super) usize,
    pub(super) Option<CheckLine>,
);

impl Output<HeapBuffer> for Sent {
    fn send(&mut self, port: PortId, frame: HeapBuffer) {
        self.0.push((port, frame));
    }

    fn room(&self) -> usize {
        self.1 - self.0.len()
    }

    fn begin_check(&mut self, order: &CheckOrder) -> bool {
        self.2.as_mut().is_some_and(|line| line.begin(order))
    }

    fn pass_to_check(&mut self, check: CheckId, packet: &[u8]) -> bool {
        self.2.as_mut().is_some_and(|line| line.pass(check, packet))
    }

    fn pass_to_kernel(&mut self, _now: Instant, port: PortId, _frame: HeapBuffer) {
        panic!("no kernel is behind port {port:?}");
    }
}
