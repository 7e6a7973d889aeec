//! Which windows count: those of old segments do not.
//!
//! RFC 9293 3.10.7.4: a segment with an older sequence number than the one that the window was taken from (SND.WL1), or with
//! the same and an older acknowledgement (SND.WL2), changes no window. smoltcp 0.14 takes every one: overtaken by the ACK
//! that opens a window, the one that closes it stops its sender for ever. So an old segment is shown with the newest window.

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

/// The newest windows of a host's connections.
#[derive(Debug, Default)]
pub(super) struct Windows(BTreeMap<Ends, Window>);

impl Windows {
    /// The window that a segment is to have that a host gets; `begins` if it is a SYN.
    pub(super) fn newest(&mut self, ends: Ends, shown: Window, begins: bool) -> u16 {
        let last = self.0.entry(ends).or_insert(shown);
        let is_old = shown.seq < last.seq || shown.seq == last.seq && shown.ack < last.ack;
        if begins || !is_old {
            *last = shown;
        }
        last.window
    }

    /// True if the peer has closed its window.
    pub(super) fn is_closed(&self, ends: Ends) -> bool {
        self.0.get(&ends).is_some_and(|newest| newest.window == 0)
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

    #[test]
    fn the_window_of_an_old_segment_is_the_newest() {
        let ends = (1, (std::net::IpAddr::from([127, 0, 0, 1]), 2));
        let at = |seq, ack, window| Window {
            seq: SeqNum(seq),
            ack: SeqNum(ack),
            window,
        };
        let mut windows = Windows::default();
        assert_eq!(windows.newest(ends, at(u32::MAX, 5, 100), true), 100);
        assert!(!windows.is_closed(ends));
        assert_eq!(windows.newest(ends, at(0, 5, 0), false), 0);
        assert!(windows.is_closed(ends));
        assert_eq!(windows.newest(ends, at(0, 9, 70), false), 70);
        assert_eq!(windows.newest(ends, at(0, 5, 0), false), 70, "an older ACK");
        assert_eq!(windows.newest(ends, at(u32::MAX, 9, 3), false), 70, "an older number");
        assert_eq!(windows.newest(ends, at(0, 9, 0), false), 0, "none is older");
        assert_eq!(windows.newest(ends, at(7, 1, 8), true), 8, "another connection");
    }
}
