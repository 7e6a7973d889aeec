//! A network that takes every frame of a core.

use e2d2::buffer::HeapBuffer;
use e2d2::port::PortId;
use e2d2::time::Instant;
use splice::Output;

/// What the core has sent.
pub(crate) struct Sent(pub(crate) Vec<HeapBuffer>);

impl Output<HeapBuffer> for Sent {
    fn send(&mut self, _: PortId, frame: HeapBuffer) {
        self.0.push(frame);
    }

    fn room(&self) -> usize {
        usize::MAX
    }

    fn pass_to_kernel(&mut self, _: Instant, _: PortId, _: HeapBuffer) {}
}
