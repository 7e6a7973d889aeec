//! What leaves out most segments of a batch before they are asked one by one.

use super::bits::Classes;
use crate::session::segment::Segment;

/// What tells of most frames that they are not captured.
#[derive(Clone, Copy)]
pub(crate) struct Sieve {
    /// Places of open connections that are captured.
    pub(super) open: Classes,
    /// Places of resting ones.
    pub(super) resting: Classes,
    /// The largest hash of a connection that may be.
    pub(super) most_drawn: u64,
}

impl Sieve {
    /// In the lowest bit, whether a segment may be captured, for what the flow table said of it when it was read.
    #[inline]
    pub(crate) fn may_have(&self, segment: &Segment) -> u64 {
        match segment.guess {
            None => u64::from(segment.hash <= self.most_drawn),
            // A SYN, or the ACK of a cookie, where a connection rests may begin another.
            Some(flow) if flow.is_time_wait() => {
                self.resting.may_have(flow.slot()) | u64::from(segment.hash <= self.most_drawn)
            }
            Some(flow) => self.open.may_have(flow.slot()),
        }
    }
}
