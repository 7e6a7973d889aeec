//! What leaves out most segments of a batch before they are asked one by one.

use crate::session::segment::Segment;
use crate::session::table::Mark;

/// What tells of most frames that they are not captured.
#[derive(Clone, Copy)]
pub(crate) struct Sieve {
    /// All connections are captured.
    pub(super) is_all: bool,
    /// The largest hash of a connection that may be.
    pub(super) most_drawn: u64,
}

impl Sieve {
    /// Where nothing is captured. What still has its mark of an earlier capture passes.
    pub(crate) const NOTHING: Sieve = Sieve {
        is_all: false,
        most_drawn: 0,
    };

    /// Whether a segment may be captured, for what the flow table said of it when it was read.
    #[inline]
    pub(crate) fn may_have(self, segment: &Segment) -> bool {
        match segment.guess {
            None => self.is_drawn(segment),
            // A SYN, or the ACK of a cookie, where a connection rests may begin another.
            Some(flow) if flow.is_time_wait() => flow.has(Mark::Captured) | self.is_drawn(segment),
            Some(flow) => flow.has(Mark::Captured) | self.is_all,
        }
    }

    fn is_drawn(self, segment: &Segment) -> bool {
        segment.hash <= self.most_drawn
    }
}
