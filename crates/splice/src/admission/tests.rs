//! A core under a flood, in virtual time: what new clients get, and what becomes of those who are connected.

use super::overload::{Overload, Sender};
use e2d2::BURST;
use e2d2::time::Instant;
use std::collections::VecDeque;
use std::time::Duration;

/// What a core takes for a SYN that it answers, in nanoseconds: four times what a fast one takes, so that there are fewer to play.
const ANSWER: u64 = 180;

/// For one that it drops: what it takes from the port, and the look at who sent it.
const DROP: u64 = 70;

/// For a segment of a connection among so many SYNs.
const SEGMENT: u64 = 480;

/// For a round besides.
const ROUND: u64 = 130;

/// Segments of a connection behind its SYN.
const SEGMENTS: u8 = 8;

/// How long the other ends take to answer.
const ROUND_TRIP: u64 = 20_000;

/// What fits into the queue of the port.
const QUEUE: usize = 1023;

/// When a SYN is sent again: one second after the first, and two more after that (RFC 6298 2.1 and 5.5).
const AGAIN: [u64; 2] = [1_000_000_000, 2_000_000_000];

/// Counted from then on: who lost the first SYN has sent it twice more.
const STEADY: u64 = 3_300_000_000;

/// Until then.
const END: u64 = 3_700_000_000;

#[derive(Clone, Copy)]
enum Packet {
    /// Of the flood.
    Stranger { hash: u64 },
    /// The first packet of a client, or the same again.
    Client { hash: u64, tries: usize },
    /// Of a connection that has so many more.
    Segment { left: u8 },
}

/// What a flood brings, by what the core can answer of SYNs, and by the connections that it can do; and what is stolen from the core.
struct Case {
    flood: f64,
    honest: f64,
    stolen: Option<(u64, u64)>,
}

#[derive(Default)]
struct Outcome {
    offered: u64,
    completed: u64,
    segments_lost: u64,
    segments: u64,
}

impl Outcome {
    fn success(&self) -> f64 {
        self.completed as f64 / self.offered as f64
    }
}

struct Core {
    overload: Overload,
    queue: VecDeque<Packet>,
    /// Segments, and SYNs that are sent again, in the order of their time.
    segments: VecDeque<(u64, u8)>,
    again: [VecDeque<(u64, u64)>; 2],
    now: u64,
    began: u64,
    returned: u64,
    random: u64,
    outcome: Outcome,
}

impl Core {
    fn new() -> Core {
        Core {
            overload: Overload::new(Some(Duration::from_millis(1)), Instant::from_nanos(0)),
            queue: VecDeque::new(),
            segments: VecDeque::new(),
            again: Default::default(),
            now: 0,
            began: 0,
            returned: 0,
            random: 0x9e37_79b9_7f4a_7c15,
            outcome: Outcome::default(),
        }
    }

    fn draw(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// The port has room for it, or it is lost: a client sends its SYN again.
    fn arrive(&mut self, packet: Packet) {
        if self.queue.len() < QUEUE {
            return self.queue.push_back(packet);
        }
        match packet {
            Packet::Stranger { .. } => {}
            Packet::Client { hash, tries } => self.send_again(hash, tries),
            Packet::Segment { .. } => self.outcome.segments_lost += u64::from(self.now >= STEADY),
        }
    }

    fn send_again(&mut self, hash: u64, tries: usize) {
        if let Some(after) = AGAIN.get(tries) {
            self.again[tries].push_back((self.now + after, hash));
        }
    }

    /// What is due of those who have been here.
    fn take_due(&mut self) {
        while let Some(&(_, left)) = self.segments.front().filter(|(at, _)| *at <= self.now) {
            self.segments.pop_front();
            self.arrive(Packet::Segment { left });
        }
        for tries in 0..AGAIN.len() {
            while let Some(&(_, hash)) = self.again[tries].front().filter(|(at, _)| *at <= self.now) {
                self.again[tries].pop_front();
                let tries = tries + 1;
                self.arrive(Packet::Client { hash, tries });
            }
        }
    }

    /// True if the core answers it.
    fn affords(&mut self, hash: u64) -> bool {
        if self.overload.affords_all() || self.overload.is_open_to(hash) {
            return true;
        }
        let count = self.overload.affordable(Sender::Stranger, 1) as u64;
        self.overload.pay(count);
        count > 0
    }

    fn round(&mut self) {
        let is_full = self.queue.len() >= BURST;
        let at = Instant::from_nanos;
        self.overload
            .note((at(self.began), at(self.now)), is_full, self.returned);
        self.began = self.now;
        let mut cost = ROUND;
        for _ in 0..self.queue.len().min(BURST) {
            let Some(packet) = self.queue.pop_front() else { break };
            cost += match packet {
                Packet::Segment { left } => self.segment(left),
                Packet::Stranger { hash } => match self.affords(hash) {
                    true => ANSWER,
                    false => self.drop(),
                },
                Packet::Client { hash, tries } => match self.affords(hash) {
                    true => {
                        self.segments.push_back((self.now + ROUND_TRIP, SEGMENTS));
                        ANSWER
                    }
                    false => {
                        self.send_again(hash, tries);
                        self.drop()
                    }
                },
            };
        }
        self.now += cost;
    }

    fn drop(&mut self) -> u64 {
        self.overload.note_drop(Instant::from_nanos(self.now));
        DROP
    }

    fn segment(&mut self, left: u8) -> u64 {
        let is_counted = self.now >= STEADY;
        self.outcome.segments += u64::from(is_counted);
        self.returned += u64::from(left == SEGMENTS);
        match left {
            1 => self.outcome.completed += u64::from(is_counted),
            _ => self.segments.push_back((self.now + ROUND_TRIP, left - 1)),
        }
        SEGMENT
    }
}

/// Plays a case.
fn play(case: &Case) -> Outcome {
    let mut core = Core::new();
    let every = |part: f64, cost: u64| cost as f64 / part;
    let flood = every(case.flood, ANSWER);
    let honest = every(case.honest, ANSWER + SEGMENT * u64::from(SEGMENTS));
    let (mut next_of_flood, mut next_client) = (0.0, 0.0);
    let mut next_stolen = case.stolen.map(|(every, _)| every);
    while core.now < END {
        while next_of_flood <= core.now as f64 {
            let hash = core.draw();
            core.arrive(Packet::Stranger { hash });
            next_of_flood += flood;
        }
        while next_client <= core.now as f64 {
            let hash = core.draw();
            core.outcome.offered += u64::from(core.now >= STEADY);
            core.arrive(Packet::Client { hash, tries: 0 });
            // As those of many come who know nothing of each other.
            let chance = (core.draw() >> 11) as f64 / (1_u64 << 53) as f64;
            next_client -= honest * (1.0 - chance).ln();
        }
        core.take_due();
        core.round();
        if let (Some((every, length)), Some(at)) = (case.stolen, next_stolen)
            && core.now >= at
        {
            core.now += length;
            next_stolen = Some(at + every);
        }
    }
    core.outcome
}

const MILLISECOND: u64 = 1_000_000;

#[test]
fn new_clients_get_through_a_flood_of_half_of_what_the_core_can_answer() {
    for stolen in [None, Some((100 * MILLISECOND, MILLISECOND))] {
        let outcome = play(&Case {
            flood: 0.5,
            honest: 0.5,
            stolen,
        });
        let success = outcome.success();
        assert!(success >= 0.9, "{stolen:?}: {success:.3} of {}", outcome.offered);
    }
}

#[test]
fn connections_go_on_under_a_flood_of_all_that_it_can_answer_and_twice_that() {
    for flood in [1.0, 2.0] {
        let outcome = play(&Case {
            flood,
            honest: 0.25,
            stolen: None,
        });
        let (segments, lost) = (outcome.segments, outcome.segments_lost);
        assert!(segments > 0 && lost == 0, "{flood}: {lost} lost, {segments} not");
    }
}
