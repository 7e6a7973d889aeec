//! Sends [checks](crate::probe::Checks), and has all cores know what came of them.

use crate::admission::round_budget::RoundBudget;
use crate::base::callbacks::SelectServer;
use crate::base::difference::Difference;
use crate::base::output::{NextHops, Output};
use crate::base::server_state::{CheckFailure, CheckNews};
use crate::base::settings::Check;
use crate::probe::CheckEvent;
use crate::proxy::{Proxy, Rooms};
use e2d2::buffer::BufferPool;
use e2d2::counters::Counters;

impl<P: BufferPool, S: SelectServer, N: NextHops> Proxy<P, S, N> {
    /// What came of this core's checks.
    pub fn checks(&self) -> &Counters<CheckEvent> {
        self.rooms.checks.counters()
    }
}

impl<P: BufferPool, S: SelectServer, N: NextHops> Rooms<P, S, N> {
    /// Checks the servers that it is time to check. Returns true if there was one.
    pub(crate) fn poll_checks(&mut self, budget: &mut RoundBudget, out: &mut impl Output<P::Buffer>) -> bool {
        let before = *budget.moves();
        while budget.affords_one(out)
            && let Some(server) = self.checks.pop_due(self.now, budget.moves())
        {
            budget.note_fired();
            if self.checks.of(server).is_some() {
                self.end_check(server, Err(CheckFailure::Unanswered));
            } else if !self.is_draining {
                self.begin_check(server, out);
            }
        }
        *budget.moves() < before
    }

    fn check_of(&self, server: u16) -> Option<Check> {
        self.settings.servers.get(usize::from(server))?.check
    }

    fn begin_check(&mut self, server: u16, out: &mut impl Output<P::Buffer>) {
        let now = self.now;
        let Some(check) = self.check_of(server) else { return };
        let standby = self.upstream.standby();
        if standby.is_in_maintenance(server) {
            return self.checks.arm(server, now + check.interval);
        }
        let state = standby.server(server);
        let (word, answered_at) = (state.word(), state.answered_at());
        if !word.is_down() && !word.is_doubted() && now.saturating_since(answered_at) < check.interval {
            self.checks.count(CheckEvent::Saved);
            return self.checks.arm(server, answered_at + check.interval);
        }
        let Some(probe) = self.take_probe(server) else {
            self.checks.count(CheckEvent::NoPort);
            return self.checks.arm(server, now + check.fast_interval);
        };
        self.checks.begin(probe, &self.settings, &check, now);
        // Without a MAC address nothing is sent, which nothing answers.
        if self.send_probe(&probe, out) {
            self.checks.count(CheckEvent::SynSent);
        }
    }

    /// The check of a server that is under way has this result.
    pub(crate) fn end_check(&mut self, server: u16, result: Result<(), CheckFailure>) {
        let now = self.now;
        let Some(ended) = self.checks.end(server) else { return };
        self.release_port_of(&ended.probe);
        self.checks.count(match result {
            Ok(()) => CheckEvent::Passed,
            Err(CheckFailure::Refused) => CheckEvent::Refused,
            Err(CheckFailure::Unanswered) => CheckEvent::Unanswered,
        });
        let Some(check) = self.check_of(server) else { return };
        if result.is_ok() {
            self.checks.note_time(server, now.saturating_since(ended.sent_at));
        }
        let state = self.upstream.standby().server(server);
        match state.note_check(result, (check.rise, check.fall), now) {
            CheckNews::None => {}
            CheckNews::Down => self.checks.count(CheckEvent::Down),
            CheckNews::Up => self.checks.count(CheckEvent::Up),
        }
        let pace = if state.word().is_doubted() {
            check.fast_interval
        } else {
            check.interval
        };
        self.checks.arm(server, now.max(ended.sent_at + pace));
    }

    /// Forgets the checks of servers that are no more.
    pub(crate) fn end_checks_of(&mut self, difference: &Difference) {
        for server in difference.replaced() {
            self.forget_check(server);
        }
    }

    /// Forgets all checks: the engine stops.
    pub(crate) fn end_checks(&mut self) {
        for server in self.checks.numbers() {
            self.forget_check(server);
        }
        self.checks.stop();
    }

    fn forget_check(&mut self, server: u16) {
        if let Some(ended) = self.checks.end(server) {
            self.release_port_of(&ended.probe);
        }
    }
}
