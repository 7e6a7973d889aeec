//! Which segment goes out next.

use e2d2::wire::tcp::TcpFlags;
use netfcts::SeqNum;

use super::{Marks, Outgoing, State, Tcb, Ticks};

impl Tcb {
    pub(super) fn in_flight(&self) -> u32 {
        (self.snd_max - self.snd_una).max(0) as u32
    }

    pub(super) fn payload_room(&self) -> u32 {
        // RFC 6691: the MSS does not count options, so they are taken off what a segment carries.
        let options = if self.marks.contains(Marks::TIMESTAMPS) { 12 } else { 0 };
        u32::from(self.mss).saturating_sub(options).max(1)
    }

    /// The next segment to send, if the windows allow one. It counts as sent.
    pub(crate) fn next_segment(&mut self, ticks: Ticks) -> Option<Outgoing> {
        match self.state {
            State::SynSent => return self.next_syn(TcpFlags::SYN, ticks),
            State::SynReceived => return self.next_syn(TcpFlags::SYN | TcpFlags::ACK, ticks),
            State::Open => {}
        }
        if self.marks.contains(Marks::RESEND_FIRST) {
            self.marks.remove(Marks::RESEND_FIRST);
            return self.data_segment(self.snd_una, u32::MAX, ticks);
        }
        let mut window = self.cwnd.min(self.snd_wnd);
        if self.marks.contains(Marks::PROBE) {
            window = window.max(1);
        }
        let room = (self.snd_una + window) - self.snd_nxt;
        let segment = self.data_segment(self.snd_nxt, room.max(0) as u32, ticks)?;
        self.marks.remove(Marks::PROBE);
        Some(segment)
    }

    fn next_syn(&mut self, flags: TcpFlags, ticks: Ticks) -> Option<Outgoing> {
        if self.snd_nxt != self.snd_una {
            return None;
        }
        let seq = self.snd_nxt;
        Some(Outgoing {
            seq,
            len: 0,
            flags,
            is_retransmission: self.sent(seq, 1, ticks),
        })
    }

    /// A segment at `seq` of at most `room` bytes, with FIN if it is due there.
    fn data_segment(&mut self, seq: SeqNum, room: u32, ticks: Ticks) -> Option<Outgoing> {
        let unsent = self.tx_end - seq;
        if unsent < 0 {
            return None;
        }
        let (unsent, full) = (unsent as u32, self.payload_room());
        let len = unsent.min(full).min(room);
        let fin = self.marks.contains(Marks::FIN_QUEUED) && len == unsent;
        // RFC 9293 3.8.6.2.1: no small segment into the rest of a window while others are under way.
        let is_silly = len < unsent && len < full && seq != self.snd_una;
        if len == 0 && !fin || is_silly {
            return None;
        }
        let mut flags = TcpFlags::ACK;
        flags.set(TcpFlags::PSH, len > 0 && len == unsent);
        flags.set(TcpFlags::FIN, fin);
        let is_retransmission = self.sent(seq, len + u32::from(fin), ticks);
        // `full` is below 2^16.
        Some(Outgoing {
            seq,
            len: len as u16,
            flags,
            is_retransmission,
        })
    }

    /// Notes that `len` numbers from `seq` on go out; returns whether any of them went out before.
    fn sent(&mut self, seq: SeqNum, len: u32, ticks: Ticks) -> bool {
        let (end, is_retransmission) = (seq + len, seq.lt(self.snd_max));
        self.snd_nxt = self.snd_nxt.later(end);
        self.snd_max = self.snd_max.later(end);
        if is_retransmission {
            // Karn's algorithm (RFC 6298 3): what is sent twice is not timed.
            self.marks.remove(Marks::TIMED);
        } else if !self.marks.contains(Marks::TIMED) {
            self.marks.insert(Marks::TIMED);
            (self.timed_seq, self.timed_at) = (end, ticks.micros);
        }
        is_retransmission
    }
}
