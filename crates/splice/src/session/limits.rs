//! How often a connection may cause what a stranger could make it cause: once a second each.

use e2d2::time::Instant;
use netfcts::Side;

/// What a connection is granted once a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LimitKind {
    /// An ACK that asks this side where it stands (RFC 5961 3.2, 4.2 and 7).
    Challenge(Side),
    /// A segment of this side is out of every window, and its receiver is asked where it stands.
    OutOfWindow(Side),
    /// This side hears that a packet was too big.
    TooBig(Side),
    /// One of the sides hears of any other ICMP error.
    IcmpError,
    /// The client's MAC address is learned anew.
    ClientMac,
}

impl LimitKind {
    const fn bit(self) -> u16 {
        1 << match self {
            LimitKind::Challenge(Side::Client) => 0,
            LimitKind::Challenge(Side::Server) => 1,
            LimitKind::OutOfWindow(Side::Client) => 2,
            LimitKind::OutOfWindow(Side::Server) => 3,
            LimitKind::TooBig(Side::Client) => 4,
            LimitKind::TooBig(Side::Server) => 5,
            LimitKind::IcmpError => 6,
            LimitKind::ClientMac => 7,
        }
    }
}

/// The grants that a connection has used up in the present second: two bytes.
///
/// Seconds are those of the core's clock, 1 024 ms long, and their number is kept modulo 256. A connection on which
/// nothing was granted for a multiple of 262 s may wait one second longer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionLimits(u16);

impl ConnectionLimits {
    /// Uses up `grant` for the present second. Returns false if it was used up before.
    pub(crate) fn take(&mut self, grant: LimitKind, now: Instant) -> bool {
        let second = ((now.as_millis() as u32 >> 10) as u16) << 8;
        if self.0 & 0xff00 != second {
            self.0 = second;
        }
        let is_left = self.0 & grant.bit() == 0;
        self.0 |= grant.bit();
        is_left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_is_given_once_a_second_and_each_by_itself() {
        let mut granted = ConnectionLimits::default();
        let all = [
            LimitKind::Challenge(Side::Client),
            LimitKind::Challenge(Side::Server),
            LimitKind::OutOfWindow(Side::Client),
            LimitKind::OutOfWindow(Side::Server),
            LimitKind::TooBig(Side::Client),
            LimitKind::TooBig(Side::Server),
            LimitKind::IcmpError,
            LimitKind::ClientMac,
        ];
        let at = Instant::from_millis;
        for second in 1..600 {
            for grant in all {
                assert!(granted.take(grant, at(second * 1024)), "{grant:?}");
                assert!(!granted.take(grant, at(second * 1024 + 1023)), "{grant:?}");
            }
        }
    }
}
