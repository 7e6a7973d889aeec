//! What a splicer has seen of the two legs of a connection whose packets pass.
//!
//! Not of every connection: whoever keeps such figures keeps them of one in so many, and [`Legs::one_in`] says of how many this
//! one stands for. The figures of the connection itself are of all its segments.

use std::num::NonZeroU32;

use crate::leg::Side;

/// Both legs of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Legs {
    /// One connection in so many is watched like this one.
    pub one_in: NonZeroU32,
    /// The leg to the client, and what the client has sent.
    pub client: LegFigures,
    /// The leg to the server, and what the server has sent.
    pub server: LegFigures,
}

/// One leg, from the moment when packets began to pass. Counts stop at their largest value.
///
/// Segments are those with data or a FIN. Of one that lies below the highest number sent it is told whether its bytes have
/// passed before, and whether they had been acknowledged by then: that says on which side of the splicer something was lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LegFigures {
    /// Segments that this side has sent.
    pub segments: u32,
    /// Of these, those whose bytes had passed and were not acknowledged: lost behind the splicer, or their ACK.
    pub retransmitted: u32,
    /// Of these, those that filled a gap: lost, or overtaken, before the splicer.
    pub out_of_order: u32,
    /// Of these, those whose bytes had all been acknowledged: the ACK was lost before this side, or it was impatient.
    pub duplicate: u32,
    /// The smoothed round-trip time (RFC 6298 2) between the splicer and this side, in µs; zero if none was measured.
    pub smoothed_rtt: u32,
    /// The least round-trip time measured, in µs.
    pub least_rtt: u32,
    /// Round-trip times measured.
    pub rtts: u16,
    /// How often this side has closed its window (RFC 9293 3.8.6.1).
    pub zero_windows: u16,
}

/// What became of a segment with data, by what had passed before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// Its bytes are beyond all that was sent before.
    New,
    /// Its bytes had passed and were not acknowledged.
    Retransmitted,
    /// It fills a gap.
    OutOfOrder,
    /// All of it had been acknowledged.
    Duplicate,
}

const _: () = assert!(size_of::<Option<Legs>>() == 60);

impl Legs {
    /// Figures of nothing, for one connection in so many.
    pub fn new(one_in: NonZeroU32) -> Self {
        Legs {
            one_in,
            client: LegFigures::default(),
            server: LegFigures::default(),
        }
    }

    /// The leg to `side`.
    pub fn of(&self, side: Side) -> &LegFigures {
        match side {
            Side::Client => &self.client,
            Side::Server => &self.server,
        }
    }

    /// The same, to be changed.
    #[inline]
    pub fn of_mut(&mut self, side: Side) -> &mut LegFigures {
        match side {
            Side::Client => &mut self.client,
            Side::Server => &mut self.server,
        }
    }
}

impl LegFigures {
    /// Counts a segment that this side has sent.
    #[inline]
    pub fn count(&mut self, sent: Sent) {
        self.segments = self.segments.saturating_add(1);
        let count = match sent {
            Sent::New => return,
            Sent::Retransmitted => &mut self.retransmitted,
            Sent::OutOfOrder => &mut self.out_of_order,
            Sent::Duplicate => &mut self.duplicate,
        };
        *count = count.saturating_add(1);
    }

    /// Counts a window that this side has closed.
    #[inline]
    pub fn count_zero_window(&mut self) {
        self.zero_windows = self.zero_windows.saturating_add(1);
    }

    /// Takes a round-trip time in µs into account. RFC 6298 2.2, 2.3: the first is the smoothed time, of each other an eighth.
    #[inline]
    pub fn measure(&mut self, rtt: u32) {
        if self.rtts == 0 {
            (self.smoothed_rtt, self.least_rtt) = (rtt, rtt);
        }
        let smoothed = (u64::from(self.smoothed_rtt) * 7 + u64::from(rtt)) / 8;
        // No larger than the larger of both.
        self.smoothed_rtt = smoothed as u32;
        self.least_rtt = self.least_rtt.min(rtt);
        self.rtts = self.rtts.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_times_are_smoothed_and_the_least_is_kept() {
        let mut leg = LegFigures::default();
        for rtt in [800, 1_600, 400, u32::MAX] {
            leg.measure(rtt);
        }
        let expected = ((825_u64 * 7 + 25 + u64::from(u32::MAX)) / 8) as u32;
        assert_eq!((leg.rtts, leg.least_rtt), (4, 400));
        assert!(leg.smoothed_rtt.abs_diff(expected) <= 200, "{}", leg.smoothed_rtt);
        for rtt in [0, u32::MAX] {
            let mut constant = LegFigures::default();
            (0..100).for_each(|_| constant.measure(rtt));
            assert_eq!((constant.smoothed_rtt, constant.least_rtt), (rtt, rtt));
        }
    }

    #[test]
    fn counts_stop_at_their_largest() {
        let mut leg = LegFigures {
            segments: u32::MAX,
            duplicate: u32::MAX - 1,
            zero_windows: u16::MAX,
            rtts: u16::MAX,
            ..LegFigures::default()
        };
        (0..2).for_each(|_| leg.count(Sent::Duplicate));
        leg.count_zero_window();
        leg.measure(5);
        let counts = (
            leg.segments,
            leg.duplicate,
            leg.retransmitted,
            leg.zero_windows,
            leg.rtts,
        );
        assert_eq!(counts, (u32::MAX, u32::MAX, 0, u16::MAX, u16::MAX));
    }
}
