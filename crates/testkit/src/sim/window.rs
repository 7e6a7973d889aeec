//! Which windows count: those of old segments do not.
//!
//! RFC 9293 3.10.7.4: a segment with an older sequence number than the one that the window was taken from (SND.WL1), or with
//! the same and an older acknowledgement (SND.WL2), changes no window. smoltcp 0.14 takes every one: overtaken by the ACK
//! that opens a window, the one that closes it stops its sender for ever. So an old segment is shown with the newest window,
//! and so is one that is not acceptable, as a late one of the connection before, with the same ports.

use super::duty::Ends;
use e2d2::wire::checksum::Delta;
use netfcts::SeqNum;
use std::collections::BTreeMap;

/// The segment that a window was taken from, and the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window {
    /// SEG.SEQ.
    pub seq: SeqNum,
    /// SEG.ACK.
    pub ack: SeqNum,
    /// SEG.WND.
    pub window: u16,
}

/// No stream of a simulation is longer. A number so far away is of another connection.
const FAR: u32 = 1 << 20;

/// What a host knows of the windows of a connection.
#[derive(Debug)]
struct Known {
    /// The number of the host's own SYN.
    iss: SeqNum,
    newest: Option<Window>,
}

/// The newest windows of a host's connections.
#[derive(Debug, Default)]
pub(super) struct Windows(BTreeMap<Ends, Known>);

impl Windows {
    /// A host sends a SYN, or the answer to one: nothing is known of another connection's windows.
    pub(super) fn begin(&mut self, ends: Ends, iss: SeqNum) {
        if self.0.get(&ends).is_none_or(|known| known.iss != iss) {
            self.0.insert(ends, Known { iss, newest: None });
        }
    }

    /// The window that a segment is to have that a host gets.
    pub(super) fn newest(&mut self, ends: Ends, shown: Window) -> u16 {
        let Some(known) = self.0.get_mut(&ends) else {
            return shown.window;
        };
        let last = known.newest.unwrap_or(shown);
        let is_old = shown.seq < last.seq || shown.seq == last.seq && shown.ack < last.ack;
        let is_other = shown.seq > last.seq + FAR || shown.ack <= known.iss || shown.ack > known.iss + FAR;
        if is_old || is_other {
            return last.window;
        }
        known.newest = Some(shown);
        shown.window
    }

    /// True if the peer has closed its window.
    pub(super) fn is_closed(&self, ends: Ends) -> bool {
        let newest = self.0.get(&ends).and_then(|known| known.newest);
        newest.is_some_and(|newest| newest.window == 0)
    }
}

/// Writes another window into a TCP segment, and the checksum that goes with it.
pub(super) fn write(tcp: &mut [u8], window: u16) {
    let field = |at: usize| u16::from_be_bytes([tcp[at], tcp[at + 1]]);
    let sum = Delta::ZERO.replace16(field(14), window).apply(field(16));
    tcp[14..16].copy_from_slice(&window.to_be_bytes());
    tcp[16..18].copy_from_slice(&sum.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends() -> Ends {
        (1, (std::net::IpAddr::from([127, 0, 0, 1]), 2))
    }

    fn at(seq: u32, ack: u32, window: u16) -> Window {
        Window {
            seq: SeqNum(seq),
            ack: SeqNum(ack),
            window,
        }
    }

    #[test]
    fn the_window_of_an_old_segment_is_the_newest() {
        let ends = ends();
        let mut windows = Windows::default();
        windows.begin(ends, SeqNum(4));
        assert_eq!(windows.newest(ends, at(u32::MAX, 5, 100)), 100);
        assert!(!windows.is_closed(ends));
        assert_eq!(windows.newest(ends, at(0, 5, 0)), 0);
        assert!(windows.is_closed(ends));
        assert_eq!(windows.newest(ends, at(0, 9, 70)), 70);
        assert_eq!(windows.newest(ends, at(0, 5, 0)), 70, "an older ACK");
        assert_eq!(windows.newest(ends, at(u32::MAX, 9, 3)), 70, "an older number");
        windows.begin(ends, SeqNum(4));
        assert_eq!(windows.newest(ends, at(u32::MAX, 9, 3)), 70, "the SYN was repeated");
        assert_eq!(windows.newest(ends, at(0, 9, 0)), 0, "none is older");
    }

    /// Seed 26000001035: the FIN of the connection before came late, and its window stayed for good.
    #[test]
    fn the_window_of_another_connection_is_none() {
        let ends = ends();
        let mut windows = Windows::default();
        windows.begin(ends, SeqNum(4));
        assert_eq!(windows.newest(ends, at(7, 5, 100)), 100);
        assert_eq!(windows.newest(ends, at(8 + FAR, 5, 9)), 100, "by its number");
        assert_eq!(windows.newest(ends, at(8, 4, 9)), 100, "by its ACK");
        assert_eq!(windows.newest(ends, at(8, 5 + FAR, 9)), 100, "by its ACK");
        windows.begin(ends, SeqNum(1 << 30));
        assert_eq!(windows.newest(ends, at(8, 5, 100)), 100, "it is refused");
        assert_eq!(
            windows.newest(ends, at(77, (1 << 30) + 1, 3)),
            3,
            "the answer to the SYN"
        );
        assert_eq!(windows.newest(ends, at(8, 5, 100)), 3);
    }
}
