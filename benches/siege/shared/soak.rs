//! Honest load, loss and attacks in turns, and nothing that may be left of any of them.
//!
//! Each turn is drawn from the seed: how rough the ways are, how much honest load, which attack and how hard. After each
//! turn everything has to come to rest: every connection ended, every byte right, every buffer, port, timer and byte of
//! state back, and the process no larger than after the first turns.

use std::fmt;
use std::time::Duration;

use benchkit::Roughness;
use serde::Serialize;
use trafficengine::Pace;
use trafficengine::attack::Kind;

use super::{Field, InUse, resident};

/// Turns after which the process has touched all memory that it will ever need: each kind of attack has had one.
pub(crate) const WARM_UP: u32 = Kind::ALL.len() as u32;

/// Bytes of requests and responses: some segments each, which are lost one by one.
pub(crate) const MESSAGES: (u32, u32) = (3_000, 6_000);

/// Bytes that the process may grow by after that: what allocator and kernel keep for themselves.
const SLACK: u64 = 16 << 20;

/// One in so many honest connections may fail, in the midst of loss of up to one packet in twenty each way and of attacks at
/// up to two million packets a second. Seen: one in ninety (seed 1) and one in thirty (seed 3, where the
/// turns of the worst loss had most).
const ONE_FAILS_IN: u64 = 10;

/// How long everything may take to end by itself.
const PATIENCE: Duration = Duration::from_secs(300);

/// Length of the loaded part of a turn, in the time of the core.
const TURN: Duration = Duration::from_millis(200);

/// Small numbers from a seed; any sequence serves.
struct Draw(u64);

impl Draw {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 20) % limit
    }
}

/// What a soak has seen. Names are those of the JSON.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct SoakResult {
    pub(crate) turns: u32,
    /// Of the core's own time.
    pub(crate) seconds: f64,
    pub(crate) honest_completed: u64,
    /// Connections of honest clients that did not end as they should, in turns with loss or attack.
    pub(crate) honest_failed: u64,
    pub(crate) honest_retransmitted: u64,
    pub(crate) attack_packets: u64,
    pub(crate) packets_lost_on_purpose: u64,
    pub(crate) packets_repeated: u64,
    pub(crate) packets_late: u64,
    pub(crate) wrong: u64,
    pub(crate) steady_lost: u64,
    pub(crate) resident_after_warm_up: u64,
    pub(crate) resident_at_end: u64,
    /// What was left when a turn was over, by what it was, and what else is not as it should be.
    pub(crate) left: Vec<String>,
    pub(crate) valid: bool,
}

impl fmt::Display for SoakResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} turns, {:.1} s of the core: {} honest connections complete, {} failed, {} segments again; {} attack \
             packets; {} packets lost, {} repeated, {} late; {} wrong bytes, {} open connections lost; {} MiB",
            self.turns,
            self.seconds,
            self.honest_completed,
            self.honest_failed,
            self.honest_retransmitted,
            self.attack_packets,
            self.packets_lost_on_purpose,
            self.packets_repeated,
            self.packets_late,
            self.wrong,
            self.steady_lost,
            self.resident_at_end >> 20,
        )?;
        self.left.iter().try_for_each(|what| write!(f, "\nLEFT: {what}"))
    }
}

/// A soak under way.
pub(crate) struct Soak {
    field: Field,
    draw: Draw,
    at_rest: Option<InUse>,
    wrong_of_gone: u64,
    result: SoakResult,
}

impl Soak {
    pub(crate) fn new(field: Field, seed: u64) -> Soak {
        Soak {
            field,
            draw: Draw(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            at_rest: None,
            wrong_of_gone: 0,
            result: SoakResult::default(),
        }
    }

    /// One turn, and the look at what it has left.
    pub(crate) fn turn(&mut self) {
        let began = self.field.now;
        let draw = &mut self.draw;
        let roughness = match draw.below(4) {
            0 => Roughness::default(),
            _ => Roughness {
                lost: draw.below(50) as u16,
                repeated: draw.below(30) as u16,
                late: draw.below(50) as u16,
            },
        };
        let honest = 1_000.0 + draw.below(30_000) as f64;
        // All of them in turn, so that a soak of as many turns has had each.
        let kind = Kind::ALL[self.result.turns as usize % Kind::ALL.len()];
        let rate = match kind.is_blind() {
            true => 100_000.0 + draw.below(2_000_000) as f64,
            false => 5_000.0 + draw.below(50_000) as f64,
        };
        let on_victims = draw.below(2) == 0;
        let field = &mut self.field;
        (field.clients.roughness, field.servers.roughness) = (roughness, roughness);
        field.begin_honest(Pace::Open { rate: honest }, |_| ());
        field.run(TURN / 4);
        let settings = field.attack_settings(kind, rate, on_victims && kind.is_blind(), 20_000);
        field.begin_attack(settings);
        field.run(TURN);
        let attack = field.attacker().map(|attacker| attacker.stats()).unwrap_or_default();
        self.result.attack_packets += attack.sent;
        field.stop_attack();
        field.run(TURN / 4);
        // What is still under way must be able to end.
        (field.clients.roughness, field.servers.roughness) = (Roughness::default(), Roughness::default());
        self.look(kind, began);
    }

    fn look(&mut self, kind: Kind, began: e2d2::time::Instant) {
        let field = &mut self.field;
        let turn = self.result.turns;
        let mut left = Vec::new();
        field.stop_honest();
        let gone = field.rest(PATIENCE, |field| {
            field.honest().is_none_or(|honest| honest.open().0 == 0)
        });
        if !gone {
            let open = field.honest().map_or(0, |honest| honest.open().0);
            left.push(format!("turn {turn} ({kind}): {open} honest connections are stuck"));
        }
        if let Some(stats) = field.honest().and_then(|honest| honest.client_stats()) {
            self.result.honest_completed += stats.connections.completed;
            self.result.honest_failed += stats.connections.failed_in_all();
            self.result.honest_retransmitted += stats.traffic.retransmitted;
        }
        // Of clients that are about to go; those that stay, and the servers, count on.
        self.wrong_of_gone += field.wrong_of_honest();
        match field.come_to_rest(PATIENCE) {
            None => left.push(format!(
                "turn {turn} ({kind}): {} connections do not end, {} rest",
                field.usage("connections"),
                field.usage("time_wait")
            )),
            Some(in_use) => match self.at_rest {
                None => self.at_rest = Some(in_use),
                Some(before) if in_use != before => {
                    left.push(format!("turn {turn} ({kind}): {in_use:?} in use, {before:?} before"));
                }
                Some(_) => {}
            },
        }
        self.result.seconds += (field.now - began).as_secs_f64();
        self.result.turns += 1;
        self.result.wrong = self.wrong_of_gone + field.wrong_of_others();
        self.result.steady_lost = field.steady_failed();
        let stats = [field.clients.stats(), field.servers.stats()];
        self.result.packets_lost_on_purpose = stats.iter().map(|stats| stats.lost).sum();
        self.result.packets_repeated = stats.iter().map(|stats| stats.repeated).sum();
        self.result.packets_late = stats.iter().map(|stats| stats.late).sum();
        self.result.resident_at_end = resident();
        if self.result.turns == WARM_UP {
            self.result.resident_after_warm_up = self.result.resident_at_end;
        }
        self.result.left.extend(left);
    }

    /// What was seen so far, and whether it is as it should be.
    pub(crate) fn result(&self) -> SoakResult {
        let mut result = self.result.clone();
        if result.turns > WARM_UP && result.resident_at_end > result.resident_after_warm_up + SLACK {
            result.left.push(format!(
                "the process has grown from {} to {} MiB",
                result.resident_after_warm_up >> 20,
                result.resident_at_end >> 20
            ));
        }
        let honest = result.honest_completed + result.honest_failed;
        if result.honest_failed * ONE_FAILS_IN > honest {
            let failed = result.honest_failed;
            result
                .left
                .push(format!("{failed} of {honest} honest connections have failed"));
        }
        if result.honest_completed == 0 || result.attack_packets == 0 {
            result.left.push("nothing was done".to_owned());
        }
        result.valid = result.left.is_empty() && result.wrong == 0 && result.steady_lost == 0;
        result
    }
}
