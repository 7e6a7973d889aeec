//! A TCP end point for what smoltcp does not do: it sends and uses SACK blocks, drops by PAWS, obeys path-MTU messages,
//! scales its window by any shift, delays or repeats ACKs, closes its window, sends urgent data, and answers SYNs as in
//! TIME-WAIT.
//!
//! It keeps both streams whole and counts from the start of each, so that what it asserts about a received segment is about
//! bytes, not about numbers. It has no congestion control: a fixed flight is enough to test what lies between two ends.

use crate::{Segment, Station};
use e2d2::time::Instant;
use e2d2::wire::tcp::{TcpFlags, TcpOptions};
use std::time::Duration;

/// How an end behaves.
#[derive(Clone, Copy, Debug)]
pub struct Habits {
    /// The MSS that it offers.
    pub mss: u16,
    /// The shift of its window, `None` without the option.
    pub window_scale: Option<u8>,
    /// Whether it offers SACK.
    pub sack: bool,
    /// Whether it offers timestamps.
    pub timestamps: bool,
    /// Bytes that it takes before its application reads them.
    pub buffer: u32,
    /// In-order segments for each ACK.
    pub ack_every: u32,
    /// How often it sends each ACK.
    pub ack_copies: u32,
    /// Its application sleeps so many ms of every 1000, and the window closes.
    pub sleeps_ms: u64,
    /// Whether bytes of its stream are urgent, those before each 1000th.
    pub urgent: bool,
    /// What it does with the first SYN (RFC 6191, RFC 9293 3.10.7.4).
    pub greeting: Greeting,
}

/// How a server answers a first SYN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Greeting {
    /// With a SYN-ACK.
    Accept,
    /// With the ACK of an old connection in TIME-WAIT; it accepts once that has been reset.
    OldAck,
}

/// What has been seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Segments dropped for their timestamps (RFC 7323 5.3) whose bytes had come before.
    pub old_timestamps: u32,
    /// Segments with new bytes dropped so: only where a link lets later segments overtake.
    pub new_bytes_dropped: u32,
    /// Bare ACKs dropped because they lack timestamps that were agreed on.
    pub without_timestamps: u32,
    /// Echoes from before its first segment, which a proxy makes of what its client had heard from the proxy.
    pub early_echoes: u32,
    /// SACK blocks received.
    pub blocks: u32,
    /// Segments sent again because blocks showed the hole.
    pub filled_holes: u32,
    /// Time-outs.
    pub timeouts: u32,
    /// Times that the other end's window was closed.
    pub closed_windows: u32,
    /// Segments with an urgent pointer, and of these such that point to a byte that is not urgent.
    pub urgent: u32,
    /// See `urgent`.
    pub misplaced_urgent: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Calling,
    /// A server that waits for the RST to its old ACK.
    OldConnection,
    Answering,
    Open,
    Reset,
}

const FLIGHT: u32 = 32 * 1024;
const URGENT_EVERY: u32 = 1_000;
const FIRST_TIMEOUT: Duration = Duration::from_millis(300);
const LONGEST_TIMEOUT: Duration = Duration::from_secs(5);
const DELAYED_ACK: Duration = Duration::from_millis(40);

/// One end of one connection.
pub struct Peer {
    /// Where it is.
    pub me: Station,
    /// Whom it talks to.
    pub other: Station,
    /// What has been seen.
    pub seen: Seen,
    habits: Habits,
    state: State,
    is_client: bool,
    begin: Instant,
    // Sending; offsets count from the first byte.
    isn: u32,
    data: Vec<u8>,
    una: u32,
    nxt: u32,
    sacked: Vec<(u32, u32)>,
    filled_at: Vec<(u32, Instant)>,
    edge: u32,
    mss: u32,
    shift: u8,
    timeout: Duration,
    timer: Option<Instant>,
    // Receiving.
    irs: u32,
    received: Vec<u8>,
    islands: Vec<(u32, Vec<u8>)>,
    fin: Option<u32>,
    read: u32,
    promised: u32,
    ts_recent: u32,
    acks_due: u32,
    ack_by: Option<Instant>,
    // What was agreed.
    sack: bool,
    timestamps: bool,
}

impl Peer {
    /// A client that is about to call and will send `data`.
    pub fn client(me: Station, other: Station, habits: Habits, isn: u32, data: Vec<u8>, now: Instant) -> Self {
        Peer {
            me,
            other,
            seen: Seen::default(),
            habits,
            state: State::Calling,
            is_client: true,
            begin: now,
            isn,
            data,
            una: 0,
            nxt: 0,
            sacked: Vec::new(),
            filled_at: Vec::new(),
            edge: 0,
            mss: 536,
            shift: 0,
            timeout: FIRST_TIMEOUT,
            timer: Some(now),
            irs: 0,
            received: Vec::new(),
            islands: Vec::new(),
            fin: None,
            read: 0,
            promised: 0,
            ts_recent: 0,
            acks_due: 0,
            ack_by: None,
            sack: false,
            timestamps: false,
        }
    }

    /// A server that got `syn` and will send `data`.
    pub fn server(syn: &Segment, habits: Habits, isn: u32, data: Vec<u8>, now: Instant) -> Self {
        let mut peer = Peer::client(syn.to, syn.from, habits, isn, data, now);
        peer.is_client = false;
        peer.state = match habits.greeting {
            Greeting::Accept => State::Answering,
            Greeting::OldAck => State::OldConnection,
        };
        peer.agree(syn);
        peer
    }

    /// What it has received in order.
    pub fn received(&self) -> &[u8] {
        &self.received
    }

    /// What it sends.
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    /// True if it has received `range` of the other's stream, in order or not.
    pub fn holds(&self, range: (u32, u32)) -> bool {
        range.1 <= self.received.len() as u32 + u32::from(self.fin_is_received())
            || self
                .islands
                .iter()
                .any(|(start, bytes)| *start <= range.0 && range.1 <= start + bytes.len() as u32)
    }

    /// Acknowledged bytes of its own stream.
    pub fn acknowledged(&self) -> u32 {
        self.una
    }

    /// True once both streams have ended and everything is acknowledged.
    pub fn is_done(&self) -> bool {
        self.una > self.data.len() as u32 && self.fin_is_received()
    }

    /// True if the other end has reset the connection.
    pub fn is_reset(&self) -> bool {
        self.state == State::Reset
    }

    fn fin_is_received(&self) -> bool {
        self.fin == Some(self.received.len() as u32)
    }

    /// A router says that packets of more than `mtu` bytes do not pass (RFC 1191).
    pub fn obey_mtu(&mut self, mtu: u16) {
        self.mss = self.mss.min(u32::from(mtu).saturating_sub(40)).max(88);
        // What was too large is lost.
        self.timer = Some(Instant::ZERO);
        self.timeout = FIRST_TIMEOUT;
    }

    /// The offset in its own stream of a sequence number somebody says is its.
    pub fn own_offset(&self, seq: u32) -> u32 {
        seq.wrapping_sub(self.isn).wrapping_sub(1)
    }

    fn clock(&self, now: Instant) -> u32 {
        // Near the wrap, so that every run crosses it.
        (u32::MAX - 300).wrapping_add((now - self.begin).as_millis() as u32)
    }

    fn agree(&mut self, syn: &Segment) {
        let options = syn.options;
        self.irs = syn.seq;
        self.mss = u32::from(options.mss.unwrap_or(536));
        self.sack = self.habits.sack && options.sack_permitted;
        self.timestamps = self.habits.timestamps && options.timestamps.is_some();
        self.shift = options
            .window_scale
            .filter(|_| self.habits.window_scale.is_some())
            .unwrap_or(0);
        if options.window_scale.is_none() {
            self.habits.window_scale = None;
        }
        self.ts_recent = options.timestamps.map_or(0, |(value, _)| value);
        self.edge = u32::from(syn.window);
        self.promised = self.habits.buffer.min(0xffff);
    }

    /// Takes a segment.
    ///
    /// # Panics
    /// If it cannot be meant for this end: an echo of a time that it never sent, blocks of bytes that it never sent, or
    /// an ACK of such bytes.
    pub fn handle(&mut self, now: Instant, segment: &Segment) {
        let has = |flag| segment.flags.contains(flag);
        if has(TcpFlags::RST) {
            return self.take_reset(segment);
        }
        match self.state {
            State::Calling if has(TcpFlags::SYN) => {
                assert_eq!(segment.ack, self.isn.wrapping_add(1), "a SYN-ACK for another SYN");
                self.agree(segment);
                self.state = State::Open;
                self.acks_due = self.habits.ack_every;
                self.restart_timer(now);
                return;
            }
            State::Answering if has(TcpFlags::SYN) => {
                self.timer = Some(now);
                return self.agree(segment);
            }
            State::Answering if segment.ack == self.isn.wrapping_add(1) => {
                self.state = State::Open;
                self.edge = u32::from(segment.window) << self.shift;
                self.restart_timer(now);
            }
            State::Open if has(TcpFlags::SYN) => return self.acks_due = self.habits.ack_every,
            State::Open => {}
            _ => return,
        }
        let offset = self.offset_of(segment);
        if !self.has_new_time(now, segment, offset) {
            return self.acks_due = self.habits.ack_every;
        }
        self.take_ack(now, segment);
        self.take_bytes(now, segment, offset);
    }

    fn take_reset(&mut self, segment: &Segment) {
        match self.state {
            State::OldConnection => (self.state, self.timer) = (State::Answering, None),
            State::Calling if segment.ack == self.isn.wrapping_add(1) => self.state = State::Reset,
            // RFC 5961 3.2: only one with the very next number is believed, another is asked about.
            State::Answering | State::Open
                if self.offset_of(segment) == self.received.len() as i64 + i64::from(self.fin_is_received()) =>
            {
                self.state = State::Reset;
            }
            State::Open => self.acks_due = self.habits.ack_every,
            _ => {}
        }
    }

    /// Where in the other's stream a segment begins; may be negative.
    fn offset_of(&self, segment: &Segment) -> i64 {
        let expected = self.irs.wrapping_add(1).wrapping_add(self.received.len() as u32);
        i64::from(segment.seq.wrapping_sub(expected) as i32) + self.received.len() as i64
    }

    /// RFC 7323 5.3 R1 to R3.
    fn has_new_time(&mut self, now: Instant, segment: &Segment, offset: i64) -> bool {
        let Some((value, echo)) = segment.options.timestamps.filter(|_| self.timestamps) else {
            if self.timestamps {
                // RFC 7323 3.2: such a segment is dropped; it must not be one that matters.
                assert!(
                    segment.is_empty(),
                    "no timestamps where they were agreed on: {segment:?}"
                );
                self.seen.without_timestamps += 1;
                return false;
            }
            return true;
        };
        let (first, last) = (self.clock(self.begin), self.clock(now));
        if echo.wrapping_sub(first) > last.wrapping_sub(first) {
            // Two clocks that were joined: what the other end had heard before this one spoke.
            let before = first.wrapping_sub(echo);
            assert!(
                !self.is_client && before < 60_000,
                "an echo of {echo}: never sent: {segment:?}"
            );
            self.seen.early_echoes += 1;
        }
        if (value.wrapping_sub(self.ts_recent) as i32) < 0 {
            if offset + i64::from(segment.len()) > self.received.len() as i64 + i64::from(self.fin_is_received()) {
                self.seen.new_bytes_dropped += 1;
            } else {
                self.seen.old_timestamps += 1;
            }
            return false;
        }
        if offset <= self.received.len() as i64 {
            self.ts_recent = value;
        }
        true
    }

    fn take_ack(&mut self, now: Instant, segment: &Segment) {
        let ack = self.own_offset(segment.ack);
        // Of an old connection, or a late one, or of the SYN alone.
        if (ack.wrapping_sub(self.una) as i32) < 0 {
            return;
        }
        assert!(
            ack <= self.nxt.max(self.una),
            "an ACK of what was not sent: {segment:?}"
        );
        for &(left, right) in &segment.sack {
            let (left, right) = (self.own_offset(left), self.own_offset(right));
            assert!(
                left < right && right <= self.nxt,
                "blocks of what was not sent: {segment:?}"
            );
            self.seen.blocks += 1;
            if !self.sacked.contains(&(left, right)) {
                self.sacked.push((left, right));
            }
        }
        if ack > self.una {
            self.una = ack;
            self.sacked.retain(|(_, right)| *right > ack);
            self.timeout = FIRST_TIMEOUT;
            self.restart_timer(now);
        }
        if ack == self.una {
            let edge = ack + (u32::from(segment.window) << self.shift);
            if edge == ack && edge != self.edge {
                self.seen.closed_windows += 1;
            }
            self.edge = edge;
        }
    }

    fn take_bytes(&mut self, now: Instant, segment: &Segment, offset: i64) {
        if segment.is_empty() {
            // RFC 9293 3.8.4: a probe for life is answered.
            if offset < self.received.len() as i64 {
                self.acks_due = self.habits.ack_every;
            }
            return;
        }
        if segment.flags.contains(TcpFlags::URG) {
            let points_to = offset + i64::from(segment.urgent);
            self.seen.urgent += 1;
            self.seen.misplaced_urgent += u32::from(points_to % i64::from(URGENT_EVERY) != 0);
        }
        let next = self.received.len() as i64;
        if segment.flags.contains(TcpFlags::FIN) {
            self.fin = Some((offset + segment.payload.len() as i64) as u32);
        }
        let skip = (next - offset).clamp(0, segment.payload.len() as i64);
        let bytes = &segment.payload[skip as usize..];
        let start = offset + skip;
        let is_in_order = start == next && !bytes.is_empty();
        if !bytes.is_empty() && start + bytes.len() as i64 <= i64::from(self.promised) + 1 {
            self.islands.push((start as u32, bytes.to_vec()));
            self.join();
        }
        if is_in_order && self.islands.is_empty() && !segment.flags.contains(TcpFlags::FIN) {
            self.acks_due += 1;
            self.ack_by.get_or_insert(now + DELAYED_ACK);
        } else {
            self.acks_due = self.habits.ack_every;
        }
    }

    /// Makes one island of those that touch, and the stream longer by the first. The newest stays in front (RFC 2018 4).
    fn join(&mut self) {
        let (mut start, mut bytes) = self.islands.pop().unwrap_or_default();
        while let Some(at) = self
            .islands
            .iter()
            .position(|(other, old)| *other <= start + bytes.len() as u32 && start <= other + old.len() as u32)
        {
            let (other, mut old) = self.islands.remove(at);
            let (first, second, from) = if other <= start {
                let from = (start - other) as usize;
                (&mut old, &bytes, from)
            } else {
                let from = (other - start) as usize;
                (&mut bytes, &old, from)
            };
            let common = (first.len() - from).min(second.len());
            assert_eq!(
                first[from..from + common],
                second[..common],
                "two versions of the same bytes"
            );
            let tail = second[common..].to_vec();
            first.extend(tail);
            if other <= start {
                (start, bytes) = (other, old);
            }
        }
        if start as usize == self.received.len() {
            self.received.extend(bytes);
        } else {
            self.islands.push((start, bytes));
        }
    }

    fn restart_timer(&mut self, now: Instant) {
        self.timer = (self.una <= self.data.len() as u32).then_some(now + self.timeout);
    }

    /// What it sends now.
    pub fn poll(&mut self, now: Instant) -> Vec<Segment> {
        let is_asleep = (now - self.begin).as_millis() as u64 % 1000 < self.habits.sleeps_ms;
        if !is_asleep && self.read < self.received.len() as u32 {
            let was_closed = self.window() < self.mss;
            self.read = self.received.len() as u32;
            if was_closed {
                self.acks_due = self.habits.ack_every;
            }
        }
        let mut out = Vec::new();
        let is_due = self.timer.is_none_or(|at| at <= now);
        match self.state {
            State::Calling | State::Answering if is_due => {
                out.push(self.syn(now));
                self.back_off(now);
            }
            State::OldConnection if is_due => {
                let old = self.irs.wrapping_sub(1 << 20);
                out.push(Segment {
                    seq: self.isn.wrapping_sub(1 << 20),
                    ack: old,
                    ..Segment::between(self.me, self.other)
                });
                self.back_off(now);
            }
            State::Open => self.send_bytes(now, &mut out),
            _ => {}
        }
        if self.state == State::Open {
            if !out.is_empty() {
                (self.acks_due, self.ack_by) = (0, None);
            } else if self.acks_due >= self.habits.ack_every || self.ack_by.is_some_and(|at| at <= now) {
                let ack = self.bare(now, self.nxt);
                out.extend(std::iter::repeat_n(ack, self.habits.ack_copies as usize));
                (self.acks_due, self.ack_by) = (0, None);
            }
        }
        out
    }

    fn back_off(&mut self, now: Instant) {
        self.timer = Some(now + self.timeout);
        self.timeout = (self.timeout * 2).min(LONGEST_TIMEOUT);
    }

    fn send_bytes(&mut self, now: Instant, out: &mut Vec<Segment>) {
        let end = self.data.len() as u32 + 1;
        if self.una < end && self.timer.is_some_and(|at| at <= now) {
            // RFC 2018 8: after a time-out what blocks have said does not count. With a closed window this is the probe.
            self.sacked.clear();
            if self.nxt > self.una || self.edge <= self.una {
                self.seen.timeouts += 1;
                let length = if self.edge > self.una { self.mss() } else { 1 };
                let length = length.min(end - self.una);
                out.push(self.bytes(now, self.una, length));
            }
            self.back_off(now);
        }
        self.fill_holes(now, out);
        let limit = self.edge.min(self.una + FLIGHT).min(end);
        while self.nxt < limit {
            // The FIN takes no window of a closed one.
            let length = self.mss().min(limit - self.nxt);
            out.push(self.bytes(now, self.nxt, length));
        }
    }

    /// RFC 6675, without its estimate: what lies below a block of the last ACK and was not sent again lately is lost.
    fn fill_holes(&mut self, now: Instant, out: &mut Vec<Segment>) {
        let Some(highest) = self.sacked.iter().map(|(left, _)| *left).max() else {
            return;
        };
        let mut at = self.una;
        self.filled_at.retain(|(_, when)| now - *when < FIRST_TIMEOUT);
        while at < highest {
            if let Some((_, right)) = self.sacked.iter().find(|(left, right)| *left <= at && at < *right) {
                at = *right;
                continue;
            }
            let next = self
                .sacked
                .iter()
                .map(|(left, _)| *left)
                .filter(|left| *left > at)
                .min();
            let length = self.mss().min(next.unwrap_or(highest) - at);
            if !self.filled_at.iter().any(|(from, _)| *from == at) {
                self.filled_at.push((at, now));
                self.seen.filled_holes += 1;
                out.push(self.bytes(now, at, length));
            }
            at += length;
        }
    }

    fn mss(&self) -> u32 {
        // RFC 6691: options come out of it.
        self.mss.saturating_sub(if self.timestamps { 12 } else { 0 }).max(64)
    }

    /// `length` bytes from an offset, of which the last may be the FIN.
    fn bytes(&mut self, now: Instant, offset: u32, length: u32) -> Segment {
        let last = (offset + length).min(self.data.len() as u32);
        let mut segment = self.bare(now, offset);
        segment.sack.clear();
        segment.payload = self.data[offset.min(last) as usize..last as usize].to_vec();
        segment.flags |= TcpFlags::PSH;
        // RFC 6093 3.1: the pointer leads behind the urgent byte.
        let behind = (offset / URGENT_EVERY + 1) * URGENT_EVERY;
        if self.habits.urgent && behind <= last {
            segment.flags |= TcpFlags::URG;
            segment.urgent = (behind - offset) as u16;
        }
        if offset + length > self.data.len() as u32 {
            segment.flags |= TcpFlags::FIN;
        }
        self.nxt = self.nxt.max(offset + length);
        segment
    }

    fn bare(&mut self, now: Instant, offset: u32) -> Segment {
        let next = self.received.len() as u32;
        self.promised = self.promised.max(next + self.window());
        let window = (self.promised - next) >> self.habits.window_scale.unwrap_or(0);
        let number = |offset: u32| self.irs.wrapping_add(1).wrapping_add(offset);
        let blocks = self.islands.iter().rev().take(3);
        Segment {
            seq: self.isn.wrapping_add(1).wrapping_add(offset),
            ack: number(next + u32::from(self.fin_is_received())),
            window: window.min(0xffff) as u16,
            options: TcpOptions {
                timestamps: self.timestamps.then(|| (self.clock(now), self.ts_recent)),
                ..TcpOptions::NONE
            },
            sack: if self.sack {
                blocks
                    .map(|(start, bytes)| (number(*start), number(start + bytes.len() as u32)))
                    .collect()
            } else {
                Vec::new()
            },
            ..Segment::between(self.me, self.other)
        }
    }

    /// Room in the buffer, in whole units of the window field.
    fn window(&self) -> u32 {
        let unread = self.received.len() as u32 - self.read;
        let shift = self.habits.window_scale.unwrap_or(0);
        let room = self.habits.buffer.saturating_sub(unread) >> shift;
        room.min(0xffff) << shift
    }

    fn syn(&self, now: Instant) -> Segment {
        let agreed = |offered: bool, agreed: bool| offered && (self.is_client || agreed);
        let habits = &self.habits;
        Segment {
            seq: self.isn,
            ack: if self.is_client { 0 } else { self.irs.wrapping_add(1) },
            flags: if self.is_client {
                TcpFlags::SYN
            } else {
                TcpFlags::SYN | TcpFlags::ACK
            },
            window: habits.buffer.min(0xffff) as u16,
            options: TcpOptions {
                mss: Some(habits.mss),
                window_scale: habits.window_scale,
                sack_permitted: agreed(habits.sack, self.sack),
                timestamps: agreed(habits.timestamps, self.timestamps).then(|| (self.clock(now), self.ts_recent)),
            },
            ..Segment::between(self.me, self.other)
        }
    }
}
