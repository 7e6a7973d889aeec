//! Sends [checks](crate::probe::Checks), and has all cores know what came of them.

use crate::admission::round_budget::RoundBudget;
use crate::base::callbacks::SelectServer;
use crate::base::checks::{Check, CheckEnd, CheckId, CheckKind, CheckOrder};
use crate::base::difference::Difference;
use crate::base::drop_reason::DropReason;
use crate::base::output::{NextHops, Output};
use crate::base::server_state::{CheckFailure, CheckNews};
use crate::probe::{CheckEvent, Probe};
use crate::proxy::{Incoming, Proxy, Rooms};
use e2d2::buffer::{BufferPool, PacketBuffer};
use e2d2::counters::Counters;
use e2d2::time::Instant;
use e2d2::wire::ethernet;
use std::time::Duration;

impl<P: BufferPool, S: SelectServer, N: NextHops> Proxy<P, S, N> {
    /// What came of this core's checks.
    pub fn checks(&self) -> &Counters<CheckEvent> {
        self.rooms.checks.counters()
    }

    /// Sends an IP packet of a check with content to its server. One that belongs to no such check is dropped.
    pub fn send_for_check(&mut self, now: Instant, check: CheckId, packet: &[u8], out: &mut impl Output<P::Buffer>) {
        self.rooms.set_now(now);
        if let Err(reason) = self.rooms.send_for_check(check, packet, out) {
            self.rooms.emit.dropped(reason);
        }
    }

    /// Takes the result of a check with content; ignores one that is no longer under way.
    pub fn end_check(&mut self, now: Instant, check: CheckId, end: CheckEnd) {
        self.rooms.set_now(now);
        if self.rooms.checks.with_content(check, &end) {
            self.rooms.end_check(check.server, end.result);
        }
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
            if let Some(under_way) = self.checks.of(server) {
                self.end_check(server, under_way.silence());
            } else if !self.is_finishing {
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
        let settings = &self.settings.servers[usize::from(server)];
        let (source, port) = (settings.check_source, check.port.unwrap_or(settings.port));
        // A SYN-ACK to a live call replaces a check by SYN of the same port, not one with content. Of a server that has
        // answered none yet the time is zero, at which the engine's begins.
        if check.kind == CheckKind::Syn
            && port == settings.port
            && answered_at != Instant::ZERO
            && !word.is_down()
            && !word.is_doubted()
            && now.saturating_since(answered_at) < check.interval
        {
            self.checks.count(CheckEvent::Saved);
            return self.checks.arm(server, answered_at + check.interval);
        }
        let Some(probe) = self.take_probe(server, source, port) else {
            self.checks.count(CheckEvent::NoPort);
            return self.checks.arm(server, now + check.fast_interval);
        };
        let timeout = self.checks.begin(probe, &check, now);
        if check.kind == CheckKind::Content {
            return self.begin_content(&probe, timeout, out);
        }
        // Without a MAC address nothing is sent, which nothing answers.
        if self.send_probe(&probe, out) {
            self.checks.count(CheckEvent::SynSent);
        }
    }

    /// Begins the check with content that has this connection.
    fn begin_content(&mut self, probe: &Probe, timeout: Duration, out: &mut impl Output<P::Buffer>) {
        let under_way = self.checks.of(probe.server);
        let turn = under_way.and_then(|under_way| under_way.turn);
        let Some(turn) = turn else { return };
        let device = self.settings.servers[usize::from(probe.server)].device;
        let order = CheckOrder {
            check: CheckId {
                server: probe.server,
                turn,
            },
            key: probe.key,
            isn: probe.isn.0,
            mtu: self.settings.devices[usize::from(device.0)].mtu,
            timeout,
            is_down: self.upstream.standby().server(probe.server).word().is_down(),
        };
        if out.begin_check(&order) {
            self.checks.count(CheckEvent::ContentBegun);
        } else {
            self.end_check(probe.server, None);
        }
    }

    /// Passes a segment to the maker of this check.
    pub(crate) fn pass_to_check(
        &mut self,
        check: CheckId,
        incoming: Incoming<P::Buffer>,
        out: &mut impl Output<P::Buffer>,
    ) {
        let packet = incoming.buffer.data().get(ethernet::HEADER_LEN..).unwrap_or_default();
        let is_passed = out.pass_to_check(check, packet);
        self.emit.dropped(if is_passed {
            DropReason::Consumed
        } else {
            DropReason::CheckQueueFull
        });
    }

    fn send_for_check(
        &mut self,
        check: CheckId,
        packet: &[u8],
        out: &mut impl Output<P::Buffer>,
    ) -> Result<(), DropReason> {
        let probe = self.checks.probe_of(check).ok_or(DropReason::UnknownFlow)?;
        let path = self.path_of_probe(&probe).ok_or(DropReason::NoNeighbour)?;
        let mut buffer = self.emit.pool.take().ok_or(DropReason::NoBuffer)?;
        let frame = path.envelope().wrap(packet, &mut buffer);
        frame.map_err(|_| DropReason::NoBuffer)?;
        self.emit.send_own(path.device, buffer, out);
        Ok(())
    }

    /// Ends the check of a server with this result; `None` if it could not be made.
    pub(crate) fn end_check(&mut self, server: u16, result: Option<Result<(), CheckFailure>>) {
        let now = self.now;
        let Some(ended) = self.checks.end(server) else { return };
        self.release_port_of(&ended.probe);
        let Some(result) = result else {
            self.checks.count(CheckEvent::NotMade);
            let pace = self.check_of(server).map(|check| check.fast_interval);
            return self.checks.arm(server, now + pace.unwrap_or_default());
        };
        self.checks.count(match result {
            Ok(()) => CheckEvent::Passed,
            Err(CheckFailure::Refused) => CheckEvent::Refused,
            Err(CheckFailure::Unanswered) => CheckEvent::Unanswered,
            Err(CheckFailure::Wrong) => CheckEvent::Wrong,
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

    /// Forgets the checks of servers that are no more, or are checked otherwise from now on.
    pub(crate) fn end_checks_of(&mut self, difference: &Difference) {
        for server in difference.replaced().chain(difference.checks.iter().copied()) {
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
