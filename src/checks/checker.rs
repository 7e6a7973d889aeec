//! The checks with content that are under way: time, orders and packets in, packets and results out.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use e2d2::time::Instant;
use netfcts::leg::unmapped;
use splice::checks::{CheckEnd, CheckId, CheckOrder};

use super::end_point::EndPoint;
use super::line::CheckerLine;
use super::talk::Talk;
use crate::config::Config;

/// Checks under way at a time, of all cores: enough for 25 600 servers at one check a second and an answer in 10 ms.
pub const MOST_AT_ONCE: usize = 256;

/// Messages taken from one core's rings before the next core's turn.
const BURST: usize = 64;

/// Makes checks with content.
pub struct Checker {
    lines: Vec<CheckerLine>,
    config: Arc<Config>,
    /// By core and check.
    under_way: HashMap<(usize, CheckId), EndPoint>,
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
            message: Vec::with_capacity(usize::from(u16::MAX)),
            seeds: RandomState::new(),
            made: 0,
        }
    }

    /// Takes another version of the configuration. Checks under way keep theirs.
    pub fn set_config(&mut self, config: Arc<Config>) {
        self.config = config;
    }

    /// Whether a check is under way.
    pub fn is_busy(&self) -> bool {
        !self.under_way.is_empty()
    }

    /// Takes orders and packets from the cores, runs what is due, and passes packets and results back; returns how many of all these
    /// there were.
    pub fn round(&mut self, now: Instant) -> usize {
        let mut moved = 0;
        for line in 0..self.lines.len() {
            moved += self.take(line, now);
        }
        let lines = &mut self.lines;
        self.under_way.retain(|(line, check), end_point| {
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
            let is_told = line.end(*check, CheckEnd { result, next_seq }).is_ok();
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
            match self.end_point_for(&order, now) {
                Some(end_point) => {
                    self.under_way.insert((line, order.check), end_point);
                }
                None => {
                    let (result, next_seq) = (None, order.isn.wrapping_add(1));
                    // If the core cannot be told, its own timer ends the check.
                    let _ = self.lines[line].end(order.check, CheckEnd { result, next_seq });
                }
            }
        }
        for _ in 0..BURST {
            let Some((check, packet)) = self.lines[line].packet(&mut self.message) else {
                break;
            };
            taken += 1;
            // Packets of a check that has ended are dropped.
            if let Some(end_point) = self.under_way.get_mut(&(line, check)) {
                end_point.receive(packet, now);
            }
        }
        taken
    }

    /// `None` if [`MOST_AT_ONCE`] are under way, or the server's number belongs to another server by now.
    fn end_point_for(&mut self, order: &CheckOrder, now: Instant) -> Option<EndPoint> {
        if self.under_way.len() >= MOST_AT_ONCE {
            return None;
        }
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
