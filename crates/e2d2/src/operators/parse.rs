//! `parse`: checks each frame once, so that everything behind it works with offsets that are known to be good.

use super::{Frame, Round, Source};
use crate::buffer::PacketBuffer;
use crate::time::Instant;
use crate::wire::frame::{Packet, parse_with};

/// See [`Source::parse`].
pub struct Parse<S> {
    source: S,
}

impl<S> Parse<S> {
    pub(super) fn new(source: S) -> Self {
        Self { source }
    }
}

impl<S: Source<Item = Frame<B>>, B: PacketBuffer> Source for Parse<S> {
    type Item = Packet<B>;

    #[inline]
    fn pull(&mut self, round: &mut Round<'_>, max: usize, mut each: impl FnMut(&mut Round<'_>, Self::Item)) -> usize {
        let mut passed = 0;
        self.source.pull(round, max, |round, frame| {
            let Frame { mut buffer, port } = frame;
            match parse_with(buffer.data(), buffer.rx_info()) {
                Ok(kind) => {
                    // Ethernet pads short frames to 60 bytes: what is behind the IP packet is nobody's data.
                    if let Some(end) = kind.end() {
                        buffer.truncate(usize::from(end));
                    }
                    passed += 1;
                    each(round, Packet { buffer, port, kind });
                }
                Err(error) => round.discard(buffer, error.into()),
            }
        });
        passed
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.source.next_deadline()
    }
}
