//! The checks with content that are under way: time, orders and packets in, packets and results out.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use e2d2::time::Instant;
use netfcts::leg::unmapped;
use splice::checks::{CheckEnd, CheckId, CheckOrder};

use super::end_point::EndPoint;
use super::line::CheckerLine;
use super::talk::Talk;
use super::turns::{Turns, Waiting};
use crate::config::Config;

/// Checks under way at a time, of all cores: enough for 25 600 servers at one check a second and an answer in 10 ms.
pub const MOST_AT_ONCE: usize = 256;

/// Messages taken from one core's rings before the next core's turn.
const BURST: usize = 64;

/// A check that is under way.
struct UnderWay {
    end_point: EndPoint,
    is_down: bool,
    waited: Duration,
}

/// Makes checks with content.
pub struct Checker {
    lines: Vec<CheckerLine>,
    config: Arc<Config>,
    /// By core and check.
    under_way: HashMap<(usize, CheckId), UnderWay>,
    turns: Turns,
    message: Vec<u8>,
    seeds: RandomState,
    made: u64,
}

impl Checker {
    /// A checker for the cores with these ends of the rings, and their configuration.
    pub fn new(lines: Vec<CheckerLine>, config: Arc<Config>) -> Self {
        Checker {
            lines,
            config,
            under_way: HashMap::with_capacity(MOST_AT_ONCE),
            turns: Turns::default(),
            message: Vec::with_capacity(usize::from(u16::MAX)),
            seeds: RandomState::new(),
            made: 0,
        }
    }

    /// Takes another version of the configuration. Checks under way keep theirs.
    pub fn set_config(&mut self, config: Arc<Config>) {
        self.config = config;
    }

    /// Whether a check is under way, or waits for its turn.
    pub fn is_busy(&self) -> bool {
        !self.under_way.is_empty() || !self.turns.is_empty()
    }

    /// Takes orders and packets from the cores, runs what is due, and passes packets and results back; returns how many of all these
    /// there were.
    pub fn round(&mut self, now: Instant) -> usize {
        let mut moved = 0;
        for line in 0..self.lines.len() {
            moved += self.take(line, now);
        }
        self.begin(now);
        let lines = &mut self.lines;
        self.under_way.retain(|(line, check), under_way| {
            let UnderWay { end_point, waited, .. } = under_way;
            end_point.poll(now);
            let line = &mut lines[*line];
            // What finds no room waits for the next round.
            while let Some(packet) = end_point.packet()
                && line.send(*check, packet).is_ok()
            {
                end_point.note_sent();
                moved += 1;
            }
            let Some((result, next_seq)) = end_point.end() else {
                return true;
            };
            let result = Some(result);
            let end = CheckEnd {
                result,
                next_seq,
                waited: *waited,
            };
            let is_told = line.end(*check, end).is_ok();
            moved += usize::from(is_told);
            !is_told
        });
        moved
    }

    fn take(&mut self, line: usize, now: Instant) -> usize {
        let mut taken = 0;
        while taken < BURST
            && let Some(order) = self.lines[line].order()
        {
            taken += 1;
            if !self.turns.add(line, order, now) {
                self.refuse(line, &order);
            }
        }
        for _ in 0..BURST {
            let Some((check, packet)) = self.lines[line].packet(&mut self.message) else {
                break;
            };
            taken += 1;
            // Packets of a check that has ended are dropped.
            if let Some(under_way) = self.under_way.get_mut(&(line, check)) {
                under_way.end_point.receive(packet, now);
            }
        }
        taken
    }

    /// Begins those whose turn it is, and gives up those that have waited for too long.
    fn begin(&mut self, now: Instant) {
        while let Some(overdue) = self.turns.pop_overdue(now) {
            self.refuse(overdue.line, &overdue.order);
        }
        let mut of_down = self.under_way.values().filter(|of| of.is_down).count();
        while let Some(next) = self.turns.next(self.under_way.len(), of_down) {
            let Waiting { line, order, since } = next;
            let Some(end_point) = self.end_point_for(&order, now) else {
                self.refuse(line, &order);
                continue;
            };
            of_down += usize::from(order.is_down);
            let under_way = UnderWay {
                end_point,
                is_down: order.is_down,
                waited: now.saturating_since(since),
            };
            self.under_way.insert((line, order.check), under_way);
        }
    }

    /// Tells a core that a check is not made. If it cannot be told, its own timer ends the check.
    fn refuse(&mut self, line: usize, order: &CheckOrder) {
        let end = CheckEnd {
            result: None,
            next_seq: order.isn.wrapping_add(1),
            waited: Duration::ZERO,
        };
        let _ = self.lines[line].end(order.check, end);
    }

    /// `None` if the server's number belongs to another server by now.
    fn end_point_for(&mut self, order: &CheckOrder, now: Instant) -> Option<EndPoint> {
        let server = self.config.servers().get(usize::from(order.check.server))?;
        let content = server.content.as_ref()?;
        if server.address.ip() != unmapped(order.key.remote) {
            return None;
        }
        self.made += 1;
        let seed = self.seeds.hash_one(self.made);
        let talk = Talk::new(content, server.announce, &order.key)?;
        EndPoint::new(order, talk, seed, now)
    }
}
