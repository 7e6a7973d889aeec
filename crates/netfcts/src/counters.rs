//! TCP counters under the names that ProxyEngine prints at its end, one set for the client and one for the server side.

use std::fmt;
use std::ops::{AddAssign, Index};

/// What is counted. Names are those of ProxyEngine's statistics; "Ack2" is the third packet of a handshake and "Pssv"
/// the second FIN of a close.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum TcpCounter {
    /// SYN sent.
    SentSyn,
    /// SYN-ACK sent.
    SentSynAck,
    /// ACK of a SYN-ACK sent.
    SentSynAck2,
    /// FIN sent before one was received.
    SentFin,
    /// FIN sent after one was received.
    SentFinPssv,
    /// ACK of a FIN sent.
    SentAck4Fin,
    /// Any other segment without payload sent.
    SentAck,
    /// SYN received.
    RecvSyn,
    /// SYN-ACK received.
    RecvSynAck,
    /// ACK of a SYN-ACK received.
    RecvSynAck2,
    /// FIN received before one was sent.
    RecvFin,
    /// FIN received after one was sent.
    RecvFinPssv,
    /// ACK of a FIN received.
    RecvAck4Fin,
    /// Any other segment without payload received.
    RecvAck,
    /// RST received.
    RecvRst,
    /// Segment that fits no state.
    Unexpected,
    /// Segment with payload received.
    RecvPayload,
    /// Segment with payload sent.
    SentPayload,
}

impl TcpCounter {
    /// Number of counters.
    pub const COUNT: usize = 18;

    /// All counters, in the order in which they are printed.
    pub const ALL: [TcpCounter; TcpCounter::COUNT] = [
        TcpCounter::SentSyn,
        TcpCounter::SentSynAck,
        TcpCounter::SentSynAck2,
        TcpCounter::SentFin,
        TcpCounter::SentFinPssv,
        TcpCounter::SentAck4Fin,
        TcpCounter::SentAck,
        TcpCounter::RecvSyn,
        TcpCounter::RecvSynAck,
        TcpCounter::RecvSynAck2,
        TcpCounter::RecvFin,
        TcpCounter::RecvFinPssv,
        TcpCounter::RecvAck4Fin,
        TcpCounter::RecvAck,
        TcpCounter::RecvRst,
        TcpCounter::Unexpected,
        TcpCounter::RecvPayload,
        TcpCounter::SentPayload,
    ];

    /// The name as printed.
    pub const fn name(self) -> &'static str {
        match self {
            TcpCounter::SentSyn => "SentSyn",
            TcpCounter::SentSynAck => "SentSynAck",
            TcpCounter::SentSynAck2 => "SentSynAck2",
            TcpCounter::SentFin => "SentFin",
            TcpCounter::SentFinPssv => "SentFinPssv",
            TcpCounter::SentAck4Fin => "SentAck4Fin",
            TcpCounter::SentAck => "SentAck",
            TcpCounter::RecvSyn => "RecvSyn",
            TcpCounter::RecvSynAck => "RecvSynAck",
            TcpCounter::RecvSynAck2 => "RecvSynAck2",
            TcpCounter::RecvFin => "RecvFin",
            TcpCounter::RecvFinPssv => "RecvFinPssv",
            TcpCounter::RecvAck4Fin => "RecvAck4Fin",
            TcpCounter::RecvAck => "RecvAck",
            TcpCounter::RecvRst => "RecvRst",
            TcpCounter::Unexpected => "Unexpected",
            TcpCounter::RecvPayload => "RecvPayload",
            TcpCounter::SentPayload => "SentPayload",
        }
    }
}

/// One value per [`TcpCounter`]. Owned by one core; sets of several cores add up with `+=`.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct TcpCounters([u64; TcpCounter::COUNT]);

impl TcpCounters {
    /// Counts one event.
    #[inline]
    pub fn count(&mut self, counter: TcpCounter) {
        self.0[counter as usize] += 1;
    }

    /// Names and values in the order of [`TcpCounter::ALL`].
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        TcpCounter::ALL.iter().map(|counter| (counter.name(), self[*counter]))
    }
}

impl Index<TcpCounter> for TcpCounters {
    type Output = u64;

    fn index(&self, counter: TcpCounter) -> &u64 {
        &self.0[counter as usize]
    }
}

impl AddAssign<&TcpCounters> for TcpCounters {
    fn add_assign(&mut self, other: &TcpCounters) {
        for (sum, value) in self.0.iter_mut().zip(other.0) {
            *sum += value;
        }
    }
}

/// One line per counter: the name and the value, in columns.
impl fmt::Display for TcpCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in self.iter() {
            writeln!(f, "{name:12} {value:>12}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_and_list_agree() {
        for (index, counter) in TcpCounter::ALL.into_iter().enumerate() {
            assert_eq!(counter as usize, index);
            assert_eq!(format!("{counter:?}"), counter.name());
        }
    }

    #[test]
    fn counts_add_up_over_cores() {
        let (mut one, mut two) = (TcpCounters::default(), TcpCounters::default());
        one.count(TcpCounter::SentSyn);
        (0..4).for_each(|_| two.count(TcpCounter::SentSyn));
        two.count(TcpCounter::SentPayload);
        one += &two;
        assert_eq!(one[TcpCounter::SentSyn], 5);
        assert_eq!(one.iter().map(|(_, value)| value).sum::<u64>(), 6);
        assert!(one.to_string().starts_with("SentSyn                 5\n"));
        assert_eq!(one.to_string().lines().count(), 18);
    }
}
