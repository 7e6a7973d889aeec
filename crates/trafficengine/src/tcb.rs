//! One end of a TCP connection that sends and receives messages which nobody stores.
//!
//! Both roles use it. It decides what a received segment means and which segment goes out next; it sends nothing itself.
//! Because every byte of a message follows from a few numbers (see [`crate::payload`]), there is neither a send nor a
//! receive buffer: retransmission fills anew, and data out of order is checked where it stands and only its range kept.
//!
//! One message is under way in each direction at most, as requests and responses alternate.
//!
//! The states of RFC 9293 3.3.2 after the handshake are `Open` and three flags: FIN_QUEUED (we close: FIN-WAIT-1, CLOSING,
//! LAST-ACK), FIN_ACKED (FIN-WAIT-2, TIME-WAIT) and PEER_FIN (CLOSE-WAIT, CLOSING, LAST-ACK). Congestion control is
//! RFC 5681 with NewReno's partial acknowledgements (RFC 6582), the retransmission timer RFC 6298.
//!
//! Budget: 128 bytes, two cache lines.

use std::time::Duration;

use bitflags::bitflags;
use e2d2::time::Instant;
use e2d2::wire::MacAddr;
use e2d2::wire::tcp::{TcpFlags, TcpOptions};
use netfcts::SeqNum;

use crate::payload::Close;

/// What a TCP end point does, the same for all connections of a generator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpSettings {
    /// Largest segment that we take, options not counted; announced in SYN.
    pub mss: u16,
    /// Window that we announce, in bytes. Data is consumed at once, so it never shrinks.
    pub window: u32,
    /// Window scale that we offer, if any.
    pub window_scale: Option<u8>,
    /// Whether we offer timestamps.
    pub timestamps: bool,
    /// Whether we offer selective acknowledgements.
    pub sack: bool,
    /// Retransmission time-out before the round-trip time is known.
    pub rto_initial: Duration,
    /// Lower limit of the retransmission time-out.
    pub rto_min: Duration,
    /// Upper limit of the retransmission time-out, doubled ones included.
    pub rto_max: Duration,
    /// How long an acknowledgement waits for data to go with, where data may follow at any time: at most 500 ms (RFC 1122
    /// 4.2.3.2), and less than the peer's shortest retransmission time-out.
    pub ack_delay: Duration,
    /// Transmissions of the same thing without an answer after which a connection is given up.
    pub retries: u8,
}

impl Default for TcpSettings {
    fn default() -> TcpSettings {
        TcpSettings {
            mss: 1460,
            window: 1 << 20,
            window_scale: Some(7),
            timestamps: true,
            sack: true,
            // RFC 6298 2.1; Linux's lower limit, since RFC 6298's (1 s) is longer than any of our paths needs.
            rto_initial: Duration::from_secs(1),
            rto_min: Duration::from_millis(200),
            rto_max: Duration::from_secs(60),
            // As Linux.
            ack_delay: Duration::from_millis(40),
            retries: 8,
        }
    }
}

/// The time in the units that connections keep.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticks {
    pub(crate) now: Instant,
    pub(crate) micros: u32,
    pub(crate) tsval: u32,
}

impl Ticks {
    pub(crate) fn new(now: Instant, ts_offset: u32) -> Ticks {
        let micros = now.as_nanos() / 1_000;
        Ticks {
            now,
            micros: micros as u32,
            tsval: ((micros / 1_000) as u32).wrapping_add(ts_offset),
        }
    }
}

/// A received segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment<'a> {
    pub(crate) seq: SeqNum,
    pub(crate) ack: SeqNum,
    pub(crate) flags: TcpFlags,
    pub(crate) window: u16,
    pub(crate) options: TcpOptions,
    pub(crate) payload: &'a [u8],
}

impl Segment<'_> {
    fn has(&self, flags: TcpFlags) -> bool {
        self.flags.contains(flags)
    }

    /// SEG.LEN.
    pub(crate) fn sequence_len(&self) -> u32 {
        self.payload.len() as u32 + u32::from(self.has(TcpFlags::SYN)) + u32::from(self.has(TcpFlags::FIN))
    }
}

/// A segment to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outgoing {
    pub(crate) seq: SeqNum,
    pub(crate) len: u16,
    pub(crate) flags: TcpFlags,
    pub(crate) is_retransmission: bool,
}

/// New payload in a received segment: `payload[from..to]`, which begins at `seq`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NewData {
    pub(crate) seq: SeqNum,
    pub(crate) from: usize,
    pub(crate) to: usize,
}

/// What a received segment has brought about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Received {
    /// The handshake is complete.
    pub(crate) established: bool,
    /// The connection was reset; it is over.
    pub(crate) reset: bool,
    /// The peer's FIN has come, in order.
    pub(crate) peer_fin: bool,
    /// Something new was acknowledged.
    pub(crate) advanced: bool,
    /// Nothing new in it: a repetition of what had come before.
    pub(crate) duplicate: bool,
    /// Data that has not come before.
    pub(crate) data: Option<NewData>,
    /// Bytes of payload that are now complete in order.
    pub(crate) delivered: u32,
    /// An acknowledgement is due, at once or at the end of the burst.
    pub(crate) ack: Acknowledge,
    /// Answer with RST of this sequence number.
    pub(crate) answer_reset: Option<SeqNum>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Acknowledge {
    #[default]
    No,
    /// With the next segment, or at the end of the burst.
    Soon,
    Now,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum State {
    SynSent,
    SynReceived,
    Open,
}

bitflags! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Marks: u16 {
        const TIMESTAMPS = 1;
        const SACK = 1 << 1;
        /// `timed_seq` and `timed_at` mean something.
        const TIMED = 1 << 2;
        const RECOVERY = 1 << 3;
        /// The first unacknowledged segment is to be sent again.
        const RESEND_FIRST = 1 << 4;
        /// One byte may be sent into a closed window.
        const PROBE = 1 << 5;
        /// A FIN follows the message.
        const FIN_QUEUED = 1 << 6;
        const FIN_ACKED = 1 << 7;
        const PEER_FIN = 1 << 8;
        /// `out_of_order` is not empty.
        const GAP = 1 << 9;
        /// Waits for the end of the burst with an acknowledgement.
        const ACK_DUE = 1 << 10;
        /// Established and waiting to be drawn.
        const HELD = 1 << 11;
        /// The first byte of a response has come.
        const FIRST_BYTE = 1 << 12;
        /// All rounds are done.
        const DONE = 1 << 13;
        /// The beginning of the incoming request has been read.
        const HEAD_KNOWN = 1 << 14;
        /// The PROXY header before the first request has been taken off.
        const HEADER_TAKEN = 1 << 15;
    }
}

/// Upper limit of the congestion window: no peer announces more without a window scale above ours.
const MAX_CWND: u32 = 1 << 22;

/// See the module documentation.
#[derive(Clone, Debug)]
#[repr(C)]
pub(crate) struct Tcb {
    /// IPv6, or IPv4-mapped.
    pub(crate) remote: [u8; 16],
    pub(crate) mac: MacAddr,
    pub(crate) remote_port: u16,
    /// The role's number for the local address.
    pub(crate) local: u32,
    pub(crate) local_port: u16,
    mss: u16,
    snd_una: SeqNum,
    snd_nxt: SeqNum,
    /// Highest number sent, plus one: above `snd_nxt` after a time-out.
    snd_max: SeqNum,
    /// First byte of the message being sent.
    tx_start: SeqNum,
    /// End of the message being sent, where a FIN stands.
    tx_end: SeqNum,
    rcv_nxt: SeqNum,
    /// First byte of the message being received.
    rx_start: SeqNum,
    snd_wnd: u32,
    cwnd: u32,
    ssthresh: u32,
    recover: SeqNum,
    srtt: u32,
    rttvar: u32,
    timed_seq: SeqNum,
    timed_at: u32,
    out_of_order: (SeqNum, SeqNum),
    ts_recent: u32,
    /// When the connection should have started.
    pub(crate) intended: Instant,
    pub(crate) tag: u32,
    pub(crate) key: u16,
    pub(crate) round: u16,
    pub(crate) marks: Marks,
    pub(crate) state: State,
    snd_shift: u8,
    dup_acks: u8,
    backoff: u8,
    /// Server: who closes after the response.
    close: Close,
}

const _: () = assert!(size_of::<Tcb>() <= 128);

/// Where a connection leads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub(crate) remote: [u8; 16],
    pub(crate) remote_port: u16,
    pub(crate) mac: MacAddr,
    pub(crate) local: u32,
    pub(crate) local_port: u16,
}

impl Tcb {
    fn new(peer: Peer, iss: SeqNum, state: State, intended: Instant, settings: &TcpSettings) -> Tcb {
        let mut marks = Marks::empty();
        marks.set(Marks::TIMESTAMPS, settings.timestamps);
        marks.set(Marks::SACK, settings.sack);
        Tcb {
            remote: peer.remote,
            mac: peer.mac,
            remote_port: peer.remote_port,
            local: peer.local,
            local_port: peer.local_port,
            mss: settings.mss,
            snd_una: iss,
            snd_nxt: iss,
            snd_max: iss,
            tx_start: iss + 1,
            tx_end: iss + 1,
            rcv_nxt: SeqNum(0),
            rx_start: SeqNum(0),
            snd_wnd: 0,
            cwnd: 0,
            ssthresh: MAX_CWND,
            recover: iss,
            srtt: 0,
            rttvar: 0,
            timed_seq: iss,
            timed_at: 0,
            out_of_order: (iss, iss),
            ts_recent: 0,
            tag: 0,
            intended,
            key: 0,
            round: 0,
            marks,
            state,
            snd_shift: 0,
            dup_acks: 0,
            backoff: 0,
            close: Close::Open,
        }
    }

    /// A client's end; its SYN is the next segment.
    pub(crate) fn connect(peer: Peer, iss: SeqNum, intended: Instant, settings: &TcpSettings) -> Tcb {
        Tcb::new(peer, iss, State::SynSent, intended, settings)
    }

    /// A server's end for a SYN; its SYN-ACK is the next segment.
    pub(crate) fn accept(peer: Peer, iss: SeqNum, syn: &Segment<'_>, ticks: Ticks, settings: &TcpSettings) -> Tcb {
        let mut tcb = Tcb::new(peer, iss, State::SynReceived, ticks.now, settings);
        tcb.take_syn(syn, settings);
        tcb
    }

    /// Whether data or SYN or FIN is sent and not acknowledged, or data waits for the window to open.
    pub(crate) fn is_waiting_for_ack(&self) -> bool {
        self.snd_una != self.snd_max || self.snd_nxt.lt(self.tx_end)
    }

    /// Whether both FINs are sent, and ours is acknowledged.
    pub(crate) fn is_closed(&self) -> bool {
        self.marks.contains(Marks::FIN_ACKED | Marks::PEER_FIN)
    }

    /// Whether the message last queued is acknowledged, so that another may be queued.
    pub(crate) fn may_queue(&self) -> bool {
        self.snd_una == self.tx_end && !self.marks.contains(Marks::FIN_QUEUED)
    }

    /// Queues a message of `len` bytes; `may_queue` must hold.
    pub(crate) fn queue_message(&mut self, len: u32) {
        debug_assert!(self.may_queue());
        self.tx_start = self.tx_end;
        self.tx_end = self.tx_start + len;
    }

    /// Queues a FIN behind the message.
    pub(crate) fn queue_fin(&mut self) {
        self.marks.insert(Marks::FIN_QUEUED);
    }

    /// Place of a sequence number in the message being sent.
    pub(crate) fn tx_offset(&self, seq: SeqNum) -> u32 {
        (seq - self.tx_start).max(0) as u32
    }

    /// Place of a sequence number in the message being received; negative before it.
    pub(crate) fn rx_offset(&self, seq: SeqNum) -> i32 {
        seq - self.rx_start
    }

    /// Bytes of the incoming message that have come in order. A FIN is no byte.
    pub(crate) fn rx_complete(&self) -> u32 {
        let fin = u32::from(self.marks.contains(Marks::PEER_FIN));
        ((self.rcv_nxt - self.rx_start).max(0) as u32).saturating_sub(fin)
    }

    /// The incoming message is complete; the next begins behind it.
    pub(crate) fn next_incoming(&mut self, len: u32) {
        self.rx_start += len;
        self.round = self.round.wrapping_add(1);
    }

    /// The first `len` bytes of the incoming message are no part of it: it begins behind them.
    pub(crate) fn skip_incoming(&mut self, len: u32) {
        self.rx_start += len;
    }

    /// Who closes after the response to the last request.
    pub(crate) fn close(&self) -> Close {
        self.close
    }

    pub(crate) fn set_close(&mut self, close: Close) {
        self.close = close;
    }

    /// Sequence number for a segment without sequence length.
    pub(crate) fn snd_max(&self) -> SeqNum {
        self.snd_max
    }

    pub(crate) fn rcv_nxt(&self) -> SeqNum {
        self.rcv_nxt
    }

    /// Options of a segment that goes out now.
    pub(crate) fn options(&self, flags: TcpFlags, ticks: Ticks, settings: &TcpSettings) -> TcpOptions {
        let timestamps = self
            .marks
            .contains(Marks::TIMESTAMPS)
            .then_some((ticks.tsval, self.ts_recent));
        if !flags.contains(TcpFlags::SYN) {
            return TcpOptions {
                timestamps,
                ..TcpOptions::NONE
            };
        }
        // A SYN-ACK answers only what was offered: the marks say what is left.
        let window_scale = match self.state {
            State::SynSent => settings.window_scale,
            _ => settings.window_scale.filter(|_| self.snd_shift != NO_SCALE),
        };
        TcpOptions {
            mss: Some(settings.mss),
            window_scale,
            sack_permitted: self.marks.contains(Marks::SACK),
            timestamps,
        }
    }

    /// The block to report, if data has come out of order.
    pub(crate) fn sack_block(&self) -> Option<(u32, u32)> {
        let (start, end) = self.out_of_order;
        self.marks
            .contains(Marks::GAP | Marks::SACK)
            .then_some((start.0, end.0))
    }

    /// SEG.WND. RFC 7323 2.2: never scaled in a SYN.
    pub(crate) fn window(&self, flags: TcpFlags, settings: &TcpSettings) -> u16 {
        let scaled = !flags.contains(TcpFlags::SYN) && self.snd_shift != NO_SCALE;
        let shift = if scaled { settings.window_scale.unwrap_or(0) } else { 0 };
        (settings.window >> shift).min(0xffff) as u16
    }

    /// How long to wait for an acknowledgement.
    pub(crate) fn retransmission_timeout(&self, settings: &TcpSettings) -> Duration {
        let base = match self.srtt {
            0 => settings.rto_initial,
            // RFC 6298 2.2: the clock's granularity is that of the timer wheel.
            srtt => Duration::from_micros(u64::from(srtt) + u64::from(self.rttvar.saturating_mul(4).max(1_000))),
        };
        let doubled = base.max(settings.rto_min).saturating_mul(1 << self.backoff.min(20));
        doubled.min(settings.rto_max)
    }

    /// The retransmission timer has fired. Returns whether to go on; the next segment is a retransmission then.
    pub(crate) fn on_timeout(&mut self, settings: &TcpSettings) -> bool {
        if self.backoff >= settings.retries {
            return false;
        }
        self.backoff += 1;
        // RFC 6298 5.4: resend the earliest segment; RFC 5681 3.1: from a window of one segment.
        self.ssthresh = (self.in_flight() / 2).max(2 * u32::from(self.mss));
        self.cwnd = u32::from(self.mss);
        self.snd_nxt = self.snd_una;
        self.dup_acks = 0;
        self.marks.remove(Marks::TIMED | Marks::RECOVERY | Marks::RESEND_FIRST);
        // RFC 9293 3.8.6.1: a closed window is probed.
        self.marks.insert(Marks::PROBE);
        true
    }

    fn in_flight(&self) -> u32 {
        (self.snd_max - self.snd_una).max(0) as u32
    }

    fn payload_room(&self) -> u32 {
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

    fn take_syn(&mut self, syn: &Segment<'_>, settings: &TcpSettings) {
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

/// `snd_shift` when window scaling was not agreed on.
const NO_SCALE: u8 = u8::MAX;
