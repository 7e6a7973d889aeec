//! What a received segment means.

use e2d2::wire::tcp::TcpFlags;
use netfcts::SeqNum;

use super::{Acknowledge, MAX_CWND, Marks, NO_SCALE, NewData, Received, Segment, State, Tcb, TcpSettings, Ticks};

impl Tcb {
    /// Works on a received segment. Data out of order is taken only if the caller can check it.
    pub(crate) fn receive(
        &mut self,
        segment: &Segment<'_>,
        ticks: Ticks,
        settings: &TcpSettings,
        takes_out_of_order: bool,
    ) -> Received {
        let mut received = Received::default();
        if self.state == State::SynSent {
            self.receive_in_syn_sent(segment, ticks, settings, &mut received);
        } else if self.is_acceptable(segment, settings, &mut received) && self.take_ack(segment, ticks, &mut received) {
            self.take_payload(segment, takes_out_of_order, &mut received);
        }
        received
    }

    /// RFC 9293 3.10.7.3.
    fn receive_in_syn_sent(
        &mut self,
        segment: &Segment<'_>,
        ticks: Ticks,
        settings: &TcpSettings,
        received: &mut Received,
    ) {
        let acknowledges = segment.has(TcpFlags::ACK);
        if acknowledges && !(segment.ack.gt(self.snd_una) && segment.ack.le(self.snd_max)) {
            if !segment.has(TcpFlags::RST) {
                received.answer_reset = Some(segment.ack);
            }
            return;
        }
        if segment.has(TcpFlags::RST) {
            received.reset = acknowledges;
            return;
        }
        // A SYN without ACK would be a simultaneous open, which clients and servers do not do.
        if !(acknowledges && segment.has(TcpFlags::SYN)) {
            return;
        }
        self.take_syn(segment, settings);
        self.establish(segment, ticks);
        received.established = true;
        received.advanced = true;
        received.ack = Acknowledge::Now;
    }

    pub(super) fn take_syn(&mut self, syn: &Segment<'_>, settings: &TcpSettings) {
        let options = syn.options;
        self.rcv_nxt = syn.seq + 1;
        self.rx_start = self.rcv_nxt;
        // RFC 9293 3.7.1: 536 if the peer says nothing. Below 64 only a mistake could say.
        self.mss = settings.mss.min(options.mss.unwrap_or(536).max(64));
        if options.timestamps.is_none() {
            self.marks.remove(Marks::TIMESTAMPS);
        }
        if !options.sack_permitted {
            self.marks.remove(Marks::SACK);
        }
        self.ts_recent = options.timestamps.map_or(0, |(value, _)| value);
        self.snd_shift = match (settings.window_scale, options.window_scale) {
            (Some(_), Some(shift)) => shift,
            _ => NO_SCALE,
        };
        self.snd_wnd = u32::from(syn.window);
        // RFC 6928: ten segments.
        self.cwnd = 10 * self.payload_room();
    }

    fn establish(&mut self, segment: &Segment<'_>, ticks: Ticks) {
        self.state = State::Open;
        self.acknowledge(segment.ack, ticks);
    }

    /// Sequence number, RST, SYN and PAWS: RFC 9293 3.10.7.4, RFC 7323 5.3.
    fn is_acceptable(&mut self, segment: &Segment<'_>, settings: &TcpSettings, received: &mut Received) -> bool {
        let (len, distance) = (segment.sequence_len(), segment.seq - self.rcv_nxt);
        if let (true, Some((value, _))) = (self.marks.contains(Marks::TIMESTAMPS), segment.options.timestamps) {
            let age = value.wrapping_sub(self.ts_recent) as i32;
            if age < 0 && !segment.has(TcpFlags::RST) {
                received.duplicate = true;
                received.ack = Acknowledge::Now;
                return false;
            }
            if age > 0 && distance <= 0 {
                self.ts_recent = value;
            }
        }
        if segment.has(TcpFlags::RST) {
            received.reset = distance == 0;
            // RFC 5961 3.2: a reset that only lies in the window is asked about.
            let in_window = distance > 0 && (distance as u32) < settings.window;
            received.ack = if in_window { Acknowledge::Now } else { Acknowledge::No };
            return false;
        }
        if segment.has(TcpFlags::SYN) {
            // The peer has not seen our SYN-ACK or our ACK of its: say it again (RFC 9293 3.10.7.4, RFC 5961 4.2).
            received.duplicate = true;
            match self.state {
                State::SynReceived => self.snd_nxt = self.snd_una,
                _ => received.ack = Acknowledge::Now,
            }
            return false;
        }
        let is_old = distance < 0 && distance.unsigned_abs() >= len;
        if is_old || distance > settings.window as i32 {
            received.duplicate = len > 0;
            received.ack = if len > 0 || distance > 0 {
                Acknowledge::Now
            } else {
                Acknowledge::No
            };
            // An old segment's acknowledgement may still be news, as after a lost one of ours; data is not.
            if len > 0 || !segment.has(TcpFlags::ACK) {
                return false;
            }
        }
        segment.has(TcpFlags::ACK)
    }

    /// Returns whether the segment's payload may be looked at.
    fn take_ack(&mut self, segment: &Segment<'_>, ticks: Ticks, received: &mut Received) -> bool {
        if segment.ack.gt(self.snd_max) {
            if self.state == State::SynReceived {
                received.answer_reset = Some(segment.ack);
            } else {
                received.ack = Acknowledge::Now;
            }
            return false;
        }
        let is_news = segment.ack.gt(self.snd_una);
        if self.state == State::SynReceived {
            if !is_news {
                received.answer_reset = Some(segment.ack);
                return false;
            }
            self.snd_wnd = u32::from(segment.window) << self.shift();
            self.establish(segment, ticks);
            received.established = true;
            received.advanced = true;
            return true;
        }
        // RFC 5961 5.2: older than any window of the peer's can have been. A stranger has guessed it.
        if segment.ack.lt(self.snd_una - (u32::from(u16::MAX) << self.shift())) {
            received.ack = Acknowledge::Now;
            return false;
        }
        let window = u32::from(segment.window) << self.shift();
        if is_news {
            self.acknowledge(segment.ack, ticks);
            received.advanced = true;
        } else if segment.ack == self.snd_una
            && segment.sequence_len() == 0
            && window == self.snd_wnd
            && self.in_flight() > 0
        {
            self.count_duplicate_ack();
        }
        if segment.ack.ge(self.snd_una) {
            self.snd_wnd = window;
        }
        true
    }

    fn shift(&self) -> u8 {
        if self.snd_shift == NO_SCALE { 0 } else { self.snd_shift }
    }

    fn acknowledge(&mut self, ack: SeqNum, ticks: Ticks) {
        let acked = (ack - self.snd_una) as u32;
        if self.marks.contains(Marks::TIMED) && ack.ge(self.timed_seq) {
            self.marks.remove(Marks::TIMED);
            self.take_round_trip(ticks.micros.wrapping_sub(self.timed_at));
        }
        self.snd_una = ack;
        self.snd_nxt = self.snd_nxt.later(ack);
        self.backoff = 0;
        self.dup_acks = 0;
        let segment = self.payload_room();
        if self.marks.contains(Marks::RECOVERY) {
            // RFC 6582 3.2: a partial acknowledgement names the next hole.
            let is_partial = ack.lt(self.recover);
            self.marks.set(Marks::RECOVERY | Marks::RESEND_FIRST, is_partial);
            self.cwnd = self.ssthresh;
        } else if self.cwnd < self.ssthresh {
            self.cwnd += acked.min(2 * segment);
        } else {
            self.cwnd += (segment * segment / self.cwnd).max(1);
        }
        self.cwnd = self.cwnd.clamp(segment, MAX_CWND);
        if self.marks.contains(Marks::FIN_QUEUED) && ack == self.tx_end + 1 {
            self.marks.insert(Marks::FIN_ACKED);
        }
    }

    /// RFC 5681 3.2: the third duplicate resends the first segment and halves the window.
    fn count_duplicate_ack(&mut self) {
        self.dup_acks = self.dup_acks.saturating_add(1);
        if self.dup_acks == 3 && !self.marks.contains(Marks::RECOVERY) {
            self.ssthresh = (self.in_flight() / 2).max(2 * u32::from(self.mss));
            self.cwnd = self.ssthresh;
            self.recover = self.snd_max;
            self.marks.insert(Marks::RECOVERY | Marks::RESEND_FIRST);
        }
    }

    /// RFC 6298 2.2 and 2.3.
    fn take_round_trip(&mut self, micros: u32) {
        let sample = micros.clamp(1, 60_000_000);
        if self.srtt == 0 {
            (self.srtt, self.rttvar) = (sample, sample / 2);
            return;
        }
        self.rttvar = self.rttvar - self.rttvar / 4 + self.srtt.abs_diff(sample) / 4;
        self.srtt = (self.srtt - self.srtt / 8 + sample / 8).max(1);
    }

    fn take_payload(&mut self, segment: &Segment<'_>, takes_out_of_order: bool, received: &mut Received) {
        let (len, fin) = (segment.payload.len(), segment.has(TcpFlags::FIN));
        if len == 0 && !fin {
            return;
        }
        let end = segment.seq + len as u32;
        if self.marks.contains(Marks::PEER_FIN) {
            received.ack = Acknowledge::Now;
            return;
        }
        if segment.seq.gt(self.rcv_nxt) {
            received.ack = Acknowledge::Now;
            if takes_out_of_order && len > 0 && self.remember_gap(segment.seq, end) {
                received.data = Some(NewData {
                    seq: segment.seq,
                    from: 0,
                    to: len,
                });
            }
            return;
        }
        let before = self.rcv_nxt;
        let known = (before - segment.seq) as usize;
        if known < len {
            received.data = Some(NewData {
                seq: self.rcv_nxt,
                from: known,
                to: len,
            });
            self.rcv_nxt = end;
            received.ack = Acknowledge::Soon;
            if self.marks.contains(Marks::GAP) {
                self.close_gap();
                received.ack = Acknowledge::Now;
            }
        } else if len > 0 {
            received.duplicate = true;
            received.ack = Acknowledge::Now;
        }
        received.delivered = (self.rcv_nxt - before) as u32;
        if fin && self.rcv_nxt == end {
            self.rcv_nxt += 1;
            self.marks.insert(Marks::PEER_FIN);
            received.peer_fin = true;
            received.ack = Acknowledge::Now;
        }
    }

    /// Keeps a range that does not begin at `rcv_nxt`; one range is kept, what does not touch it must come again.
    fn remember_gap(&mut self, start: SeqNum, end: SeqNum) -> bool {
        if !self.marks.contains(Marks::GAP) {
            self.out_of_order = (start, end);
            self.marks.insert(Marks::GAP);
            return true;
        }
        let (kept_start, kept_end) = self.out_of_order;
        if start.gt(kept_end) || end.lt(kept_start) {
            return false;
        }
        self.out_of_order = (kept_start.earlier(start), kept_end.later(end));
        true
    }

    fn close_gap(&mut self) {
        let (start, end) = self.out_of_order;
        if start.le(self.rcv_nxt) {
            self.rcv_nxt = self.rcv_nxt.later(end);
            self.marks.remove(Marks::GAP);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Peer;
    use super::*;
    use e2d2::time::Instant;
    use e2d2::wire::MacAddr;
    use e2d2::wire::tcp::TcpOptions;

    const TICKS: Ticks = Ticks {
        now: Instant::ZERO,
        micros: 0,
        tsval: 0,
    };

    /// A connection without window scaling that has sent nothing but its SYN, 999.
    fn open(settings: &TcpSettings) -> Tcb {
        let peer = Peer {
            remote: [0; 16],
            remote_port: 80,
            mac: MacAddr([2, 0, 0, 0, 0, 9]),
            local: 0,
            local_port: 5_000,
        };
        let mut tcb = Tcb::connect(peer, SeqNum(999), Instant::ZERO, settings);
        tcb.snd_max = SeqNum(1_000);
        let syn_ack = segment(6_999, 1_000, TcpFlags::SYN | TcpFlags::ACK, &[]);
        assert!(tcb.receive(&syn_ack, TICKS, settings, false).established);
        tcb
    }

    fn segment(seq: u32, ack: u32, flags: TcpFlags, payload: &[u8]) -> Segment<'_> {
        Segment {
            seq: SeqNum(seq),
            ack: SeqNum(ack),
            flags,
            window: 1_000,
            options: TcpOptions::NONE,
            payload,
        }
    }

    #[test]
    fn data_with_an_impossible_acknowledgement_is_answered_and_not_taken() {
        let settings = TcpSettings::default();
        // The last one that can be, and the first that cannot, on either side.
        let oldest = 1_000_u32.wrapping_sub(65_535);
        for (ack, is_taken) in [
            (1_000, true),
            (1_001, false),
            (oldest, true),
            (oldest.wrapping_sub(1), false),
        ] {
            let mut tcb = open(&settings);
            let data = segment(7_000, ack, TcpFlags::ACK, b"data");
            let received = tcb.receive(&data, TICKS, &settings, true);
            assert_eq!(received.data.is_some(), is_taken, "{ack}");
            assert_eq!(
                received.ack,
                if is_taken { Acknowledge::Soon } else { Acknowledge::Now }
            );
        }
    }
}
