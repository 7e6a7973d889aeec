//! What leaves out most segments of a batch before they are asked one by one.

use super::bits::Classes;

/// What tells of most frames that they are not captured: in the lowest bit, whether one may be, for what the flow table said of it
/// when it was read.
pub(crate) trait Sift {
    /// A segment of the open connection in this place.
    fn open(&self, place: u32) -> u64;

    /// One where a connection rests: a SYN, or the ACK of a cookie, may begin another, with this hash.
    fn resting(&self, place: u32, hash: u64) -> u64;

    /// One of no connection.
    fn stranger(&self, hash: u64) -> u64;
}

/// Of the captures under way.
#[derive(Clone, Copy)]
pub(crate) struct Sieve {
    /// Places of open connections that are captured.
    pub(super) open: Classes,
    /// Places of resting ones.
    pub(super) resting: Classes,
    /// The largest hash of a connection that may be.
    pub(super) most_drawn: u64,
}

impl Sift for Sieve {
    #[inline]
    fn open(&self, place: u32) -> u64 {
        self.open.may_have(place)
    }

    #[inline]
    fn resting(&self, place: u32, hash: u64) -> u64 {
        self.resting.may_have(place) | self.stranger(hash)
    }

    #[inline]
    fn stranger(&self, hash: u64) -> u64 {
        u64::from(hash <= self.most_drawn)
    }
}

/// The same where at most one open connection is captured, which takes a third of the instructions: of a sample, most of the time.
#[derive(Clone, Copy)]
pub(crate) struct SieveForOne {
    /// Its place, or one that nobody has.
    pub(super) place: u32,
    /// For all else.
    pub(super) sieve: Sieve,
}

impl Sift for SieveForOne {
    #[inline]
    fn open(&self, place: u32) -> u64 {
        u64::from(place == self.place)
    }

    #[inline]
    fn resting(&self, place: u32, hash: u64) -> u64 {
        self.sieve.resting(place, hash)
    }

    #[inline]
    fn stranger(&self, hash: u64) -> u64 {
        self.sieve.stranger(hash)
    }
}

/// Where nothing is captured.
pub(crate) struct Nothing;

impl Sift for Nothing {
    #[inline]
    fn open(&self, _: u32) -> u64 {
        0
    }

    #[inline]
    fn resting(&self, _: u32, _: u64) -> u64 {
        0
    }

    #[inline]
    fn stranger(&self, _: u64) -> u64 {
        0
    }
}
