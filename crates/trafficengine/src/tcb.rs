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

mod receiving;
mod sending;
mod settings;

use std::time::Duration;

use bitflags::bitflags;
use e2d2::time::Instant;
use e2d2::wire::MacAddr;
use e2d2::wire::tcp::{TcpFlags, TcpOptions};
use netfcts::SeqNum;

use crate::payload::Close;

pub use settings::TcpSettings;

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

/// `snd_shift` when window scaling was not agreed on.
const NO_SCALE: u8 = u8::MAX;

/// See the module documentation. It begins with a cache line, or it would be in three of them.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
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
}
