//! More packets than the core can do: SYNs go first.
//!
//! A NIC's queue that is full drops whatever comes next, and most of what comes in a flood is SYNs, while each segment of
//! a connection that is lost so costs somebody a retransmission. A SYN is the cheapest packet to lose: nothing is kept of
//! it, and who means it sends it again. So a core whose receive queues do not get empty any more serves the rest of each
//! batch first, then SYNs of clients who have come back with a cookie lately ([`validated_clients`](crate::admission::validated_clients)), and
//! last those of strangers. A SYN that it cannot afford is dropped before it costs a look-up or a cookie.
//!
//! ```text
//!            queues not empty for `overload_after`            nothing dropped for 100 ms
//!   calm ──────────────────────────────────────────► shedding ──────────────────────────► calm
//!
//!   while shedding, a SYN of        a queue was empty within    else
//!                                   the last four rounds
//!     a client who is known         is answered                 costs one of what was earned
//!     a stranger                    is answered in its turn     costs one of what was earned beyond half a bucket
//! ```
//!
//! Strangers stand on a circle, by the keyed hash of their addresses. A part of it is open, which goes around in 5 s, and is as
//! large as leaves the queue time to get empty. A client that was not in it comes again after one and after two
//! seconds more, to another place: nothing has to be remembered of a SYN that was dropped. Chance alone would drop each of them as often
//! as the first. A round that does not even fill a burst answers everyone.
//!
//! ICMP errors about no flow of this core are rate limited while shedding: they are advice, and a connection goes on without.
//!
//! How many a core can afford depends on all else that it does, so nothing is assumed about cycles. Four full rounds are an
//! eighth of a queue of 1024, which fills in 80 µs: whoever waits for averages loses segments meanwhile. As dropping is
//! cheaper than answering, the queue gets empty soon after, and what the core has time for is answered in between. A client
//! that comes back with its cookie proves that SYNs were worth their answer and gives two more a chance; where all are
//! honest each SYN has earned its place by the one before it, so that a load at the limit of the machine is never slowed
//! down by this.
//!
//! A core whose ports bring it other cores' packets hands SYNs over, and pays for them as for those that it answers; by their
//! cookies, which it hands over as well and which all cores can open, it earns.
//!
//! Budget: four branches for each round while calm, and a hash and a store for each connection. Source: `benches/siege/attack`.

use crate::session::segment;
use e2d2::buffer::PacketBuffer;
use e2d2::time::Instant;
use e2d2::wire::frame::{Kind, Packet};
use e2d2::wire::tcp::TcpFlags;
use std::time::Duration;

/// Rounds in a row that found a full queue, after which it is taken to be filling: 128 packets of one port.
const DEEP: u32 = 4;

/// Rounds for which segments are put off at most, to be dealt with many at a time: some 10 µs.
const PUT_OFF_FOR: u32 = 8;

/// Shedding ends when nothing has been dropped for so long.
const CALM: Duration = Duration::from_millis(100);

/// SYNs that a cookie which came back earns.
const EARNED: u64 = 2;

/// SYNs per second that are earned by nothing: what a core can always afford, some thousandths of its time.
const LEAST: u64 = 1_000;

/// One SYN, in units of the bucket: what a rate of one per second earns in a nanosecond.
const SYN: u64 = 1_000_000_000;

/// What the bucket holds when it is full, in SYNs: a queue of them, as honest clients send who have waited for the same
/// event. Less than a millisecond of a core's time.
const BURST_OF_SYNS: u64 = 1024;

/// What strangers have to leave in it, in SYNs.
const KEPT_FOR_KNOWN: u64 = BURST_OF_SYNS / 2;

/// The circle that the sources of SYNs stand on, by their hash: 2^32 places.
const CIRCLE: u64 = 1 << 32;

/// How long the open part of the circle takes to go around once. Who repeats a SYN after one second and after two more (RFC
/// 6298 2.1 and 5.5) comes at 0, 0.2 and 0.6 of it: no gap between these is longer than 0.4, so that each source has been in
/// the open part by its third SYN if that is so large.
const AROUND: Duration = Duration::from_secs(5);

/// The open part grows by the whole circle in this time: half a second.
const OPENS_IN: Duration = Duration::from_nanos(1 << 29);

/// It loses one of so many parts with each round that finds the queue filling.
const CLOSES_BY: u64 = 256;

/// What to do about SYNs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The queues get empty.
    Calm,
    /// They have not been empty since then.
    Busy { since: Instant },
    /// SYNs may be dropped.
    Shedding,
}

/// Whose SYN it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sender {
    /// A client that has come back with a cookie lately.
    Known,
    /// Anyone.
    Stranger,
}

/// Watches the receive queues of a core and says which SYNs it can afford.
#[derive(Clone, Debug)]
pub(crate) struct Overload {
    after: Option<Duration>,
    state: State,
    /// Full rounds in a row.
    full_rounds: u32,
    /// When the last round began that found nothing left behind; `None` while the present one does not either.
    emptied_at: Option<Instant>,
    level: u64,
    filled_at: Instant,
    dropped_at: Instant,
    /// How much of the circle is open, and where that begins now.
    open: u64,
    open_from: u32,
    /// Cookies that had come back by the last round.
    returned: u64,
}

impl Overload {
    /// A calm core, which is overloaded when its queues have not been empty for `after`; never if there is none.
    pub(crate) fn new(after: Option<Duration>, now: Instant) -> Self {
        Overload {
            after,
            state: State::Calm,
            full_rounds: 0,
            emptied_at: None,
            level: 0,
            filled_at: now,
            dropped_at: now,
            open: CIRCLE,
            open_from: 0,
            returned: 0,
        }
    }

    /// True while SYNs may be dropped.
    #[inline]
    pub(crate) fn is_shedding(&self) -> bool {
        self.state == State::Shedding
    }

    /// True if [`note`](Self::note) has to be told of a round; else nothing would change.
    #[inline]
    pub(crate) fn wants(&self, is_full: bool) -> bool {
        is_full || self.state != State::Calm || self.emptied_at.is_some()
    }

    /// All that had arrived by then has been dealt with; all that had arrived before this round if there is no such time.
    #[inline]
    pub(crate) fn heard_until(&self) -> Option<Instant> {
        self.emptied_at
    }

    /// A round begins; `is_full` says that a port gave as much as was asked of it, so that more may be waiting. So many
    /// cookies have come back since the core's start; the round before this began at `before`.
    pub(crate) fn note(&mut self, (before, now): (Instant, Instant), is_full: bool, returned: u64) {
        self.emptied_at = match is_full {
            true => self.emptied_at.or(Some(before)),
            false => None,
        };
        match self.state {
            State::Shedding => self.go_on(now, is_full, returned),
            _ if !is_full => self.state = State::Calm,
            State::Calm => self.state = State::Busy { since: now },
            State::Busy { since } => {
                let busy = now.saturating_since(since);
                if self.after.is_some_and(|after| busy >= after) {
                    self.begin(now, returned);
                }
            }
        }
    }

    pub(crate) fn begin(&mut self, now: Instant, returned: u64) {
        self.state = State::Shedding;
        self.full_rounds = DEEP;
        self.level = BURST_OF_SYNS * SYN;
        self.filled_at = now;
        self.dropped_at = now;
        self.open = CIRCLE;
        self.returned = returned;
    }

    pub(crate) fn go_on(&mut self, now: Instant, is_full: bool, returned: u64) {
        let passed = now.saturating_since(self.filled_at).as_nanos() as u64;
        self.filled_at = now;
        let came_back = returned.saturating_sub(self.returned);
        self.returned = returned;
        let earned = passed
            .saturating_mul(LEAST)
            .saturating_add(came_back.saturating_mul(EARNED * SYN));
        self.level = self.level.saturating_add(earned).min(BURST_OF_SYNS * SYN);
        self.full_rounds = if is_full { self.full_rounds.saturating_add(1) } else { 0 };
        if self.full_rounds >= DEEP {
            self.open -= self.open / CLOSES_BY;
        } else {
            self.open = CIRCLE.min(self.open + passed.saturating_mul(CIRCLE / OPENS_IN.as_nanos() as u64));
        }
        let around = AROUND.as_nanos() as u64;
        self.open_from = ((now.as_nanos() % around) * (CIRCLE / 1_000) / (around / 1_000)) as u32;
        if now.saturating_since(self.dropped_at) >= CALM {
            self.state = State::Calm;
        }
    }

    /// True if the last round has found a full queue.
    #[inline]
    pub(crate) fn is_behind(&self) -> bool {
        match self.state {
            State::Calm => false,
            State::Busy { .. } => true,
            State::Shedding => self.full_rounds > 0,
        }
    }

    /// True if the queue does not fill: nobody has to be put off.
    #[inline]
    pub(crate) fn keeps_up(&self) -> bool {
        !self.is_shedding() || self.full_rounds < DEEP
    }

    /// True if there is time for every SYN of this round.
    #[inline]
    pub(crate) fn affords_all(&self) -> bool {
        !self.is_shedding() || self.full_rounds == 0 || self.full_rounds < DEEP && self.open == CIRCLE
    }

    /// True if there is time in this round for the SYN of a source with this hash, be it a stranger's.
    #[inline]
    pub(crate) fn is_open_to(&self, hash: u64) -> bool {
        self.keeps_up() && u64::from(((hash >> 32) as u32).wrapping_sub(self.open_from)) < self.open
    }

    /// True if what was put off has waited for long enough.
    pub(crate) fn is_due(&self) -> bool {
        self.full_rounds.is_multiple_of(PUT_OFF_FOR)
    }

    /// How many of `count` SYNs can be afforded otherwise.
    pub(crate) fn affordable(&self, from: Sender, count: usize) -> usize {
        let kept = match from {
            Sender::Known => 0,
            Sender::Stranger => KEPT_FOR_KNOWN,
        };
        (self.level / SYN).saturating_sub(kept).min(count as u64) as usize
    }

    /// So many of them are paid for.
    pub(crate) fn pay(&mut self, count: u64) {
        self.level = self.level.saturating_sub(count * SYN);
    }

    /// Some were dropped.
    pub(crate) fn note_drop(&mut self, now: Instant) {
        self.dropped_at = now;
    }
}

/// The sender of a packet that is the first segment of a connection.
pub(crate) fn sender_of_syn<B: PacketBuffer>(packet: &Packet<B>) -> Option<u128> {
    let Kind::Tcp(layout) = packet.kind else { return None };
    let frame = packet.buffer.data();
    let flags = TcpFlags::from_bits_retain(*frame.get(usize::from(layout.l4) + 13)?);
    let is_syn = flags & (TcpFlags::SYN | TcpFlags::ACK | TcpFlags::RST) == TcpFlags::SYN;
    is_syn.then(|| segment::sender(frame, layout)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MICRO: Duration = Duration::from_micros(1);

    /// A core that does one packet per microsecond, SYNs that it drops for a twentieth.
    struct Core {
        overload: Overload,
        began: Instant,
        now: Instant,
        returned: u64,
        answered: u64,
        dropped: u64,
    }

    impl Core {
        fn new() -> Self {
            let now = Instant::from_millis(5);
            Core {
                overload: Overload::new(Some(Duration::from_millis(1)), now),
                began: now,
                now,
                returned: 0,
                answered: 0,
                dropped: 0,
            }
        }

        /// A round of SYNs and others that make it full or not, which takes as long as it costs; returns how many of the
        /// SYNs were answered.
        fn round(&mut self, from: Sender, syns: u64, others: u64, is_full: bool) -> u64 {
            self.overload.note((self.began, self.now), is_full, self.returned);
            self.began = self.now;
            let mut answered = syns;
            if self.overload.is_shedding() && !self.overload.keeps_up() {
                answered = self.overload.affordable(from, syns as usize) as u64;
                self.overload.pay(answered);
                if answered < syns {
                    self.overload.note_drop(self.now);
                }
            }
            self.answered += answered;
            self.dropped += syns - answered;
            self.now += MICRO * (answered + others) as u32 + MICRO * (syns - answered) as u32 / 20;
            answered
        }
    }

    #[test]
    fn a_core_whose_queue_gets_empty_sheds_nothing() {
        let mut core = Core::new();
        for n in 0..100_000 {
            core.round(Sender::Stranger, 24, 8, n % 30 != 0);
        }
        assert_eq!(core.dropped, 0);
        assert!(!core.overload.is_shedding());
    }

    #[test]
    fn what_arrived_before_the_last_round_that_left_nothing_is_heard() {
        for after in [None, Some(MICRO)] {
            let mut core = Core::new();
            core.overload = Overload::new(after, core.now);
            core.round(Sender::Stranger, 1, 1, false);
            assert_eq!(core.overload.heard_until(), None);
            let emptied = core.began;
            // It is away for a while and comes back to a queue, at last long after it was overloaded.
            core.now += Duration::from_secs(1);
            for _ in 0..100_000 {
                core.round(Sender::Known, 1, 31, true);
                assert_eq!(core.overload.heard_until(), Some(emptied));
            }
            core.round(Sender::Known, 1, 1, false);
            assert_eq!(core.overload.heard_until(), None);
        }
    }

    #[test]
    fn never_is_never() {
        let mut core = Core::new();
        core.overload = Overload::new(None, core.now);
        (0..100_000).for_each(|_| _ = core.round(Sender::Stranger, 32, 0, true));
        assert_eq!(core.dropped, 0);
    }

    #[test]
    fn strangers_are_answered_while_the_queue_gets_empty_and_dropped_while_it_fills() {
        let mut core = Core::new();
        (0..3000).for_each(|_| _ = core.round(Sender::Stranger, 16, 16, true));
        assert!(core.overload.is_shedding());
        assert_eq!(core.round(Sender::Stranger, 16, 16, true), 0, "the bucket is empty");
        assert_eq!(core.round(Sender::Stranger, 16, 8, false), 16, "so is the queue");
        for _ in 1..DEEP {
            assert_eq!(core.round(Sender::Stranger, 16, 16, true), 16);
        }
        assert_eq!(core.round(Sender::Stranger, 16, 16, true), 0);
    }

    #[test]
    fn half_of_the_bucket_is_for_those_who_are_known() {
        let mut core = Core::new();
        (0..3000).for_each(|_| _ = core.round(Sender::Stranger, 16, 16, true));
        let answered: u64 = (0..1000).map(|_| core.round(Sender::Known, 16, 16, true)).sum();
        // What time earns by itself comes on top.
        assert!((KEPT_FOR_KNOWN..KEPT_FOR_KNOWN + 50).contains(&answered), "{answered}");
        assert_eq!(core.round(Sender::Known, 16, 16, true), 0, "known is no right");
    }

    #[test]
    fn who_comes_back_earns_two_more() {
        for from in [Sender::Known, Sender::Stranger] {
            let mut core = Core::new();
            (0..3000).for_each(|_| _ = core.round(from, 16, 16, true));
            assert_eq!(core.round(from, 16, 16, true), 0);
            // All honest: as many come back as were answered the round before.
            let (answered, dropped) = (core.answered, core.dropped);
            for _ in 0..10_000 {
                core.returned += 5;
                core.round(from, 5, 27, true);
            }
            assert_eq!((core.answered - answered, core.dropped - dropped), (50_000, 0));
        }
    }

    /// The part of all sources that is open to one of its SYNs, first sent at `now`, repeated after one second and two more.
    fn answered(open: u64, now: Instant) -> f64 {
        let overload = |now: Instant| {
            let mut overload = Overload::new(Some(MICRO), now);
            overload.begin(now, 0);
            overload.full_rounds = 0;
            overload.go_on(now, true, 0);
            overload.open = open;
            overload
        };
        let tries = [0, 1, 3].map(|after| overload(now + Duration::from_secs(after)));
        let of = 10_000;
        let hashes = (0..of).map(|n| (n * (CIRCLE / of)) << 32);
        hashes
            .filter(|&hash| tries.iter().any(|overload| overload.is_open_to(hash)))
            .count() as f64
            / of as f64
    }

    #[test]
    fn who_comes_again_after_one_and_three_seconds_has_had_a_turn() {
        for start in [0, 700, 1_300, 4_999, 123_456] {
            let at = Instant::from_millis(start);
            let part = |percent: u64| answered(CIRCLE / 100 * percent, at);
            assert!(part(41) > 0.999, "{start}: {}", part(41));
            // By chance it would be 0.73, 0.58 and 0.27.
            assert!(part(35) >= 0.9 && part(25) >= 0.7 && part(10) >= 0.29, "{start}");
        }
    }

    #[test]
    fn it_ends_when_nothing_was_dropped_for_a_while() {
        let mut core = Core::new();
        (0..1000).for_each(|_| _ = core.round(Sender::Stranger, 16, 16, true));
        assert!(core.overload.is_shedding());
        let began = core.now;
        while core.overload.is_shedding() {
            core.round(Sender::Stranger, 0, 10, false);
        }
        let took = core.now - began;
        assert!((CALM - 40 * MICRO..CALM + 40 * MICRO).contains(&took), "{took:?}");
    }
}
