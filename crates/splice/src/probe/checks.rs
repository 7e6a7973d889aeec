//! Checks of servers: by a SYN, which a listening server answers, or by a request, whose answer is read.
//!
//! Each server is checked by one core, that of its number modulo the cores; all have the result
//! ([`server_state`](crate::base::server_state)). A check is a probe with one SYN: no answer is a failed check, as is a refusal.
//! For a check with content the core chooses the port likewise, has the program make the connection
//! ([`Output::begin_check`](crate::Output::begin_check)), passes its packets both ways, and takes its result.
//! The next begins an `interval` after this one, or a `fast_interval` while the last result contradicts those before. The first
//! is at a part of the interval that chance gives each server on each engine, so that neither a core's checks nor those that
//! several engines send to a server come at once. A live call that is answered replaces a check by SYN: the next one begins an
//! interval after the last answer. It does not replace a check with content.
//!
//! Budget: 112 bytes a server, and 12 in the wheel. Those that are under way are found by their ports, through chains over the
//! servers: with ten thousand at a time, three are looked at.

use super::{Asks, Probe};
use crate::base::checks::{Check, CheckEnd, CheckId, CheckKind, PATIENCE};
use crate::base::difference::{Difference, MOST_SERVERS};
use crate::base::server_state::CheckFailure;
use crate::base::settings::{Server, Settings};
use crate::base::usual_time::UsualTime;
use e2d2::counters::Counters;
use e2d2::time::Instant;
use netfcts::FourTuple;
use netfcts::wheel::TimerWheel;
use siphasher::sip::SipHasher13;
use std::hash::Hasher;
use std::ops::Range;
use std::time::Duration;

/// Chains of checks under way.
const BUCKETS_SHIFT: u32 = 12;

/// The end of a chain: the number that no server has.
const NONE: u16 = MOST_SERVERS as u16;

/// The least that an answer may take, if nothing is configured: a host that repeats an ARP request is there by then.
const LEAST_TIMEOUT: Duration = Duration::from_millis(100);

/// The same for a check with content: a server may need time for an answer.
const LEAST_TIMEOUT_OF_CONTENT: Duration = Duration::from_secs(1);

/// How long after the last end of a check with content the core still waits for its result, which the program is to report.
const GRACE: Duration = Duration::from_secs(1);

/// And how many times as long as usual.
const TIMES_USUAL: u32 = 4;

e2d2::reasons! {
    /// What becomes of a check.
    pub enum CheckEvent {
        /// A SYN was sent.
        SynSent = "syn_sent",
        /// A check with content has begun.
        ContentBegun = "content_begun",
        /// The server has answered as expected.
        Passed = "passed",
        /// Nothing listens there.
        Refused = "refused",
        /// No answer, or no MAC address to ask.
        Unanswered = "unanswered",
        /// The answer was not the expected one.
        Wrong = "wrong",
        /// A check with content was not made: too many were under way, or their thread was late. Does not count against the
        /// server.
        NotMade = "not_made",
        /// Not sent, because a live call was answered since the last.
        Saved = "saved",
        /// Not sent, because no source port could be spared: this says nothing about the server.
        NoPort = "no_port",
        /// As many failed in a row as put a server out.
        Down = "down",
        /// As many passed in a row as bring a server back.
        Up = "up",
    }
}

/// A check that is under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnderWay {
    pub(crate) probe: Probe,
    /// When its SYN was sent; of one with content, before its end is known, when it was ordered.
    pub(crate) sent_at: Instant,
    /// If it is one with content: which of the core's.
    pub(crate) turn: Option<u16>,
}

impl UnderWay {
    fn asks(&self) -> Asks {
        let server = self.probe.server;
        self.turn
            .map_or(Asks::Life, |turn| Asks::Content(CheckId { server, turn }))
    }

    /// What it means if it is over now, without an end that was told.
    pub(crate) fn silence(&self) -> Option<Result<(), CheckFailure>> {
        self.turn.is_none().then_some(Err(CheckFailure::Unanswered))
    }
}

/// What is kept of each server.
#[derive(Clone, Copy, Debug)]
struct Checked {
    usual: UsualTime,
    under_way: Option<UnderWay>,
    /// The chain that it is in while a check of it is under way.
    bucket: u16,
    /// The next server of it.
    next: u16,
}

const _: () = assert!(size_of::<Checked>() <= 112);

const UNCHECKED: Checked = Checked {
    usual: UsualTime::NONE,
    under_way: None,
    bucket: 0,
    next: NONE,
};

/// The checks of one core.
pub(crate) struct Checks {
    /// By server: when to check, or when the check that is under way has failed.
    wheel: TimerWheel,
    servers: Vec<Checked>,
    /// The first server of each chain.
    buckets: Box<[u16]>,
    under_way: usize,
    /// The next one's with content.
    turn: u16,
    /// Which core this is, and of how many.
    place: (usize, usize),
    seed: u64,
    counters: Counters<CheckEvent>,
}

impl Checks {
    /// The checks of the servers of these settings; `seed` is the core's own.
    pub(crate) fn new(settings: &Settings, seed: u64, now: Instant) -> Self {
        let mut checks = Checks::with_room(settings, seed, now);
        (0..settings.servers.len() as u16).for_each(|server| checks.arm_first(server, settings, now));
        checks
    }

    /// What a core needs that begins to check servers with a change of its settings; made by another thread.
    pub(crate) fn for_change(settings: &Settings, before: &Settings) -> Option<Self> {
        (has_checks(settings) && !has_checks(before)).then(|| Checks::with_room(settings, 0, Instant::ZERO))
    }

    /// Room for checks of all servers that there can be; none if no server is checked.
    fn with_room(settings: &Settings, seed: u64, now: Instant) -> Self {
        let is_needed = has_checks(settings);
        let most = if is_needed { MOST_SERVERS } else { 0 };
        let buckets = if is_needed { 1 << BUCKETS_SHIFT } else { 0 };
        Checks {
            wheel: TimerWheel::new(most.max(1), now),
            servers: Vec::with_capacity(most),
            buckets: vec![NONE; buckets].into_boxed_slice(),
            under_way: 0,
            turn: 0,
            place: settings.place(),
            seed,
            counters: Counters::default(),
        }
    }

    /// Goes on with other settings: servers that are new, or are checked otherwise, have their first check in an interval.
    /// `made` is taken in if nothing could be checked until now.
    pub(crate) fn adopt(
        &mut self,
        made: &mut Option<Self>,
        settings: &Settings,
        difference: &Difference,
        now: Instant,
    ) {
        if let Some(made) = made
            && self.buckets.is_empty()
        {
            std::mem::swap(self, made);
            std::mem::swap(&mut self.counters, &mut made.counters);
            self.seed = made.seed;
            // It was made for the beginning of time: its clock goes on to now.
            self.wheel.pop_expired(now, &mut 1);
        }
        if self.buckets.is_empty() {
            return;
        }
        for server in difference.replaced() {
            self.wheel.disarm(u32::from(server));
            if let Some(checked) = self.servers.get_mut(usize::from(server)) {
                *checked = UNCHECKED;
            }
        }
        for &server in difference.new_servers.iter().chain(&difference.checks) {
            if self.of(server).is_none() {
                self.arm_first(server, settings, now);
            }
        }
    }

    /// A server is to be checked for the first time, if it is by this core.
    fn arm_first(&mut self, server: u16, settings: &Settings, now: Instant) {
        let (core, cores) = self.place;
        let Some((of, check)) = (settings.servers.get(usize::from(server))).and_then(|of| Some((of, of.check?))) else {
            return;
        };
        if usize::from(server) % cores.max(1) != core {
            return;
        }
        if self.servers.len() <= usize::from(server) {
            self.servers.resize(usize::from(server) + 1, UNCHECKED);
        }
        self.wheel.arm(u32::from(server), now + self.phase(of, &check));
    }

    /// A part of the interval, by chance.
    fn phase(&self, server: &Server, check: &Check) -> Duration {
        let mut hasher = SipHasher13::new_with_keys(self.seed, 0);
        hasher.write_u128(server.address);
        hasher.write_u16(server.port);
        let part = (u128::from(hasher.finish()) * check.interval.as_nanos()) >> 64;
        Duration::from_nanos(part as u64)
    }

    /// The next server that is due, to be checked or given up; what is moved on the way is paid for with `moves`.
    pub(crate) fn pop_due(&mut self, now: Instant, moves: &mut usize) -> Option<u16> {
        self.wheel.pop_expired(now, moves).map(|server| server as u16)
    }

    /// A server is due again at `at`.
    pub(crate) fn arm(&mut self, server: u16, at: Instant) {
        self.wheel.arm(u32::from(server), at);
    }

    /// A check is under way from now on: its SYN is about to go out. Returns how long it may take.
    pub(crate) fn begin(&mut self, probe: Probe, check: &Check, now: Instant) -> Duration {
        let Some(checked) = self.servers.get_mut(usize::from(probe.server)) else {
            return Duration::ZERO;
        };
        let bucket = bucket_of(&probe.key);
        let (turn, least, grace) = match check.kind {
            CheckKind::Syn => (None, LEAST_TIMEOUT, Duration::ZERO),
            CheckKind::Content => {
                self.turn = self.turn.wrapping_add(1);
                (Some(self.turn), LEAST_TIMEOUT_OF_CONTENT, PATIENCE + GRACE)
            }
        };
        checked.under_way = Some(UnderWay {
            probe,
            sent_at: now,
            turn,
        });
        checked.bucket = bucket as u16;
        checked.next = std::mem::replace(&mut self.buckets[bucket], probe.server);
        self.under_way += 1;
        let usually = || (checked.usual.value()).map_or(least, |usual| least.max(TIMES_USUAL * usual));
        let timeout = check.timeout.unwrap_or_else(usually);
        self.wheel.arm(u32::from(probe.server), now + timeout + grace);
        timeout
    }

    /// The check that a segment with this key answers, and what it is for.
    #[inline]
    pub(crate) fn find(&self, key: &FourTuple) -> Option<(Probe, Asks)> {
        if self.under_way == 0 {
            return None;
        }
        let mut next = *self.buckets.get(bucket_of(key))?;
        while let Some(checked) = self.servers.get(usize::from(next)) {
            let under_way = checked.under_way.as_ref()?;
            if under_way.probe.key == *key {
                return Some((under_way.probe, under_way.asks()));
            }
            next = checked.next;
        }
        None
    }

    /// A server's check, if one is under way.
    pub(crate) fn of(&self, server: u16) -> Option<UnderWay> {
        self.servers.get(usize::from(server))?.under_way
    }

    /// The check with content that has this number, if it is under way, which has sent no more than that.
    pub(crate) fn with_content(&mut self, check: CheckId, end: &CheckEnd) -> bool {
        let checked = self.servers.get_mut(usize::from(check.server));
        let under_way = checked.and_then(|checked| checked.under_way.as_mut());
        let Some(under_way) = under_way.filter(|of| of.turn == Some(check.turn)) else {
            return false;
        };
        under_way.probe.note_sent(end.next_seq);
        under_way.sent_at += end.waited;
        true
    }

    /// The probe of the check with content that has this number, if it is under way.
    pub(crate) fn probe_of(&self, check: CheckId) -> Option<Probe> {
        let under_way = self.of(check.server)?;
        (under_way.turn == Some(check.turn)).then_some(under_way.probe)
    }

    /// Ends a server's check, if one is under way.
    pub(crate) fn end(&mut self, server: u16) -> Option<UnderWay> {
        let checked = self.servers.get_mut(usize::from(server))?;
        let under_way = checked.under_way.take()?;
        let (bucket, after) = (usize::from(checked.bucket), std::mem::replace(&mut checked.next, NONE));
        self.under_way -= 1;
        if self.buckets[bucket] == server {
            self.buckets[bucket] = after;
            return Some(under_way);
        }
        let mut before = usize::from(self.buckets[bucket]);
        while self.servers.get(before)?.next != server {
            before = usize::from(self.servers[before].next);
        }
        self.servers[before].next = after;
        Some(under_way)
    }

    /// The numbers among which those of the servers are that are being checked.
    pub(crate) fn numbers(&self) -> Range<u16> {
        let is_any = self.under_way > 0;
        0..if is_any { self.servers.len() as u16 } else { 0 }
    }

    /// No server is checked any more.
    pub(crate) fn stop(&mut self) {
        // `Proxy::finish` calls this in each round.
        if self.wheel.is_empty() {
            return;
        }
        (0..self.servers.len() as u32).for_each(|server| self.wheel.disarm(server));
    }

    /// A server has answered its check after this time.
    pub(crate) fn note_time(&mut self, server: u16, took: Duration) {
        if let Some(checked) = self.servers.get_mut(usize::from(server)) {
            checked.usual.note(took);
        }
    }

    pub(crate) fn count(&mut self, event: CheckEvent) {
        self.counters.add(event, 1);
    }

    pub(crate) fn counters(&self) -> &Counters<CheckEvent> {
        &self.counters
    }

    /// How many are under way.
    pub(crate) fn len(&self) -> usize {
        self.under_way
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.wheel.next_deadline()
    }

    pub(crate) fn memory(&self) -> usize {
        self.wheel.memory() + size_of_val(&*self.servers) + size_of_val(&*self.buckets)
    }
}

fn has_checks(settings: &Settings) -> bool {
    settings.servers.iter().any(|server| server.check.is_some())
}

/// The chain of a key. Who answers is a server of ours, and our port is drawn by us: nobody else can make a chain longer.
fn bucket_of(key: &FourTuple) -> usize {
    let ports = u64::from(key.local_port) << 16 | u64::from(key.remote_port);
    let mixed =
        (key.remote as u64 ^ (key.remote >> 64) as u64 ^ ports.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> (64 - BUCKETS_SHIFT)) as usize
}
