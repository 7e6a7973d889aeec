//! Time: what happens when nothing does.
//!
//! One timer a connection. While packets pass it is lazy: a packet only notes when it came, and the timer, when it
//! fires, looks whether enough time has really gone by. So a busy connection costs no timer work at all.

use crate::admission::round_budget::{LOOKED_INTO_PER_ROUND, RoundBudget};
use crate::base::callbacks::SelectServer;
use crate::base::output::{NextHops, Output};
use crate::base::settings::Server;
use crate::base::stage::WorkStage;
use crate::inspect::Inspection;
use crate::proxy::apply::ActionContext;
use crate::proxy::{Proxy, Rooms};
use crate::retransmit::rtx;
use crate::session::connection::{Attempts, Connection, SplicedFlags};
use crate::session::event::Event;
use crate::session::phase::{FinState, Phase};
use crate::session::state::{Stage, State};
use e2d2::buffer::BufferPool;
use e2d2::time::Instant;
use std::time::Duration;

/// Resting connections that one call forgets at most: each costs two look-ups.
const RESTS_PER_CALL: usize = 64;

/// How long after the first SYN of a call the next follows: the time doubles each time (RFC 6298 5.5).
pub(crate) fn next_syn_after(server: &Server, attempts: Attempts) -> Duration {
    if attempts.syns() == Attempts::MOST_SYNS {
        return Duration::MAX;
    }
    server.syn_retry.saturating_mul((1 << attempts.syns()) - 1)
}

/// This time in ms, rounded up: who waits from there on is never early.
pub(crate) fn milliseconds_after(now: Instant) -> u32 {
    now.as_nanos().div_ceil(NANOS_IN_MS) as u32
}

/// The time since such a one; none in the rest of its first millisecond.
pub(crate) fn time_since(now: Instant, then: u32) -> Duration {
    let whole = (now.as_millis() as u32).wrapping_sub(then);
    if whole == u32::MAX {
        return Duration::ZERO;
    }
    Duration::from_millis(whole.into()) + Duration::from_nanos(now.as_nanos() % NANOS_IN_MS)
}

const NANOS_IN_MS: u64 = 1_000_000;

impl<P: BufferPool, S: SelectServer, N: NextHops> Proxy<P, S, N> {
    /// Fires what is due. Returns true if anything was.
    pub fn poll_timers(&mut self, now: Instant, out: &mut impl Output<P::Buffer>) -> bool {
        self.rooms.set_now(now);
        out.enter(WorkStage::Timers);
        let mut worked = false;
        // The queue is empty: no burst will come of what was put off.
        if !self.deferred.is_empty() && self.rooms.admission.overload.keeps_up() {
            worked = true;
            self.handle_put_off(out);
        }
        let mut budget = self.rooms.admission.round_budget(now, self.has_places(), out);
        worked |= self.fire_due(&mut budget, out);
        worked |= self.retransmit_syn_acks(&mut budget, out);
        worked |= self.rooms.poll_probes(&mut budget, out);
        worked |= self.rooms.poll_checks(&mut budget, out);
        self.rooms.upstream.publish_due(&self.rooms.settings.limits, now);
        self.rooms.admission.quotas.settle();
        worked | self.rooms.expire_time_wait()
    }

    /// Fires the timers of connections that are due, as many as `budget` affords.
    fn fire_due(&mut self, budget: &mut RoundBudget, out: &mut impl Output<P::Buffer>) -> bool {
        let before = *budget.moves();
        while budget.affords_one(out)
            && let Some(slot) = self.rooms.timers.pop_expired(self.rooms.now, budget.moves())
        {
            budget.note_fired();
            if let Some(connection) = self.connections.get_mut(slot)
                && let Some(event) = self.rooms.due(slot, connection)
            {
                self.drive(slot, event, &mut ActionContext::nothing(), out);
            }
        }
        *budget.moves() < before
    }

    /// False where places for connections are short.
    fn has_places(&self) -> bool {
        self.connections.len() < self.connections.capacity() / 4 * 3
    }

    /// Ends open connections with a RST to both sides, and forgets those that rest: a round's part, in place of
    /// [`Proxy::poll_timers`]. Returns true when nothing is left.
    pub fn finish(&mut self, now: Instant, out: &mut impl Output<P::Buffer>) -> bool {
        self.rooms.set_now(now);
        (self.rooms.is_draining, self.rooms.is_finishing) = (true, true);
        self.handle_put_off(out);
        let mut budget = self.rooms.admission.round_budget(now, self.has_places(), out);
        for _ in 0..LOOKED_INTO_PER_ROUND {
            if self.connections.len() == 0 || !budget.affords_one(out) {
                break;
            }
            let slot = self.end_cursor;
            self.end_cursor = (slot + 1) % self.connections.capacity() as u32;
            if self.connections.get(slot).is_some() {
                *budget.moves() -= 1;
                budget.note_fired();
                self.drive(slot, Event::Shutdown, &mut ActionContext::nothing(), out);
            }
        }
        self.rooms.admission.quotas.settle();
        if self.connections.len() > 0 {
            return false;
        }
        self.rooms.end_probes();
        self.rooms.end_checks();
        self.rooms.handshake.half_open.clear();
        for _ in 0..RESTS_PER_CALL {
            self.rooms.look_ahead();
            if !self.rooms.evict_oldest_time_wait() {
                return true;
            }
        }
        false
    }

    /// When [`Proxy::poll_timers`] has something to do at the earliest.
    pub fn next_deadline(&self) -> Option<Instant> {
        let rooms = &self.rooms;
        let rest = rooms.time_wait.oldest().map(|(_, rested)| rested.until);
        let syn_ack = rooms.handshake.half_open.next_due(rooms.now.as_millis() as u32);
        let at = |until: u32| rooms.now + milliseconds_until(rooms.now, until);
        let of_ms = [rest, syn_ack].map(|until| until.map(at));
        let is_stale = rooms.handshake.syn_ack_options.is_stale();
        let others = [
            rooms.timers.next_deadline(),
            rooms.probes.next_deadline(),
            rooms.checks.next_deadline(),
            is_stale.then_some(rooms.now),
        ];
        of_ms.into_iter().chain(others).flatten().min()
    }
}

impl<P: BufferPool, S: SelectServer, N: NextHops> Rooms<P, S, N> {
    /// Forgets the resting connections whose time is over.
    fn expire_time_wait(&mut self) -> bool {
        let now_ms = self.now.as_millis() as u32;
        let is_over = |until: u32| now_ms.wrapping_sub(until) as i32 >= 0;
        let mut ended = false;
        for _ in 0..RESTS_PER_CALL {
            let is_due = self.time_wait.oldest().is_some_and(|(_, rested)| is_over(rested.until));
            if !is_due {
                break;
            }
            self.look_ahead();
            ended |= self.evict_oldest_time_wait();
        }
        ended
    }

    /// What the timer of `slot` means now; `None` if it was early and has been set again.
    fn due(&mut self, slot: u32, connection: &mut Connection) -> Option<Event> {
        match &connection.state {
            State::Opening(_, Stage::ServerSynSent(_) | Stage::SynForwarded(..)) => self.call_due(slot, connection),
            State::Opening(_, Stage::AwaitPayload | Stage::AwaitProxyHeader(..))
                if self.headers.received.is_awaited(slot) =>
            {
                self.header_overdue(slot, connection)
            }
            State::Opening(_, Stage::AwaitPayload) => {
                let listener = self.settings.listeners.get(usize::from(connection.listener))?;
                Some(match listener.inspect_delay {
                    Some(_) => Event::WaitOver,
                    None => Event::SelectTimeout,
                })
            }
            State::Opening(_, Stage::SynAckForwarded(..)) => Some(Event::HandshakeTimeout),
            State::Opening(_, Stage::AwaitProxyHeader(..)) => Some(Event::SelectTimeout),
            State::Opening(_, Stage::LastAck) => Some(Event::LastAckTimeout),
            State::Spliced(spliced) => {
                let now_ms = self.now.as_millis() as u32;
                if let Some(queue) = self.rtx.get(spliced.rtx)
                    && queue.timer.is_due(now_ms)
                {
                    return Some(if queue.timer.has_tried(rtx::MAX_TRIES) {
                        Event::RetransmitLimit
                    } else {
                        Event::RetryDue
                    });
                }
                if let Some(event) = self.kept_due(slot, now_ms) {
                    return Some(event);
                }
                let limit = self.silence_allowed(connection)?;
                let silent = now_ms.wrapping_sub(connection.spliced()?.last_seen);
                if u128::from(silent) >= limit.as_millis() {
                    return Some(match connection.phase() {
                        Phase::SPLICED if is_unheard(connection) => Event::SelectTimeout,
                        Phase::SPLICED => Event::IdleTimeout,
                        _ => Event::HalfCloseTimeout,
                    });
                }
                self.arm_spliced(slot, connection);
                None
            }
        }
    }

    /// What a call to a server has come to: it has taken its whole time, it is given up for another, its SYN is repeated, or
    /// it is looked at again later.
    fn call_due(&mut self, slot: u32, connection: &mut Connection) -> Option<Event> {
        let call = connection.state.call()?;
        let server = connection.ends.server(&self.settings)?;
        let waited = time_since(self.now, call.called_at);
        if waited >= server.connect_timeout {
            return Some(Event::ConnectTimeout);
        }
        let next_syn = next_syn_after(server, call.attempts);
        if self.may_give_call_up(connection) {
            return Some(Event::CallOverdue);
        }
        // A SYN that is passed on is repeated by its client.
        let repeats = matches!(connection.state.stage(), Some(Stage::ServerSynSent(_)));
        if repeats && waited >= next_syn {
            return Some(Event::RetryDue);
        }
        self.arm_call(slot, connection);
        None
    }

    /// Whether a call is overdue, and another server can have it. That it is overdue counts against the server, once.
    fn may_give_call_up(&mut self, connection: &mut Connection) -> bool {
        let now = self.now;
        // What has arrived since may be the answer.
        let unheard = self
            .admission
            .overload
            .heard_until()
            .map_or(Duration::ZERO, |until| now.saturating_since(until));
        let Some(leg) = connection.ends.leg else {
            return false;
        };
        let Some((call, pool)) = connection
            .state
            .call_mut()
            .and_then(|call| call.pool.map(|pool| (call, pool)))
        else {
            return false;
        };
        let waited = time_since(now, call.called_at);
        if !self.upstream.is_overdue(pool, waited.saturating_sub(unheard)) {
            return false;
        }
        if !call.attempts.is_overdue() {
            call.attempts.note_overdue();
            self.upstream.note_overdue(leg.server, now - waited, now);
        }
        call.attempts.given_up() < Attempts::MOST_GIVEN_UP
            && self.upstream.may_give_up(pool, leg.server, now, call.tried())
    }

    /// Sets the timer of a call to a server to the earliest time at which it can mean anything: when its SYN is repeated,
    /// when its whole time is over, when it is overdue, and then whenever it has waited half as long again.
    pub(crate) fn arm_call(&mut self, slot: u32, connection: &Connection) {
        let now = self.now;
        let (Some(call), Some(server)) = (connection.state.call(), connection.ends.server(&self.settings)) else {
            return;
        };
        let waited = time_since(now, call.called_at);
        let mut wait = server.connect_timeout.saturating_sub(waited);
        if matches!(connection.state.stage(), Some(Stage::ServerSynSent(_))) {
            let next_syn = next_syn_after(server, call.attempts);
            wait = wait.min(next_syn.saturating_sub(waited));
        }
        if let Some(bound) = call.pool.and_then(|pool| self.upstream.bound(pool)) {
            let look = match bound.checked_sub(waited) {
                Some(left) if !left.is_zero() => left,
                _ => bound.max(waited / 2),
            };
            wait = wait.min(look);
        }
        self.timers.arm(slot, now + wait);
    }

    /// Sets the timer of a spliced connection to the earliest time at which it can mean anything.
    pub(crate) fn arm_spliced(&mut self, slot: u32, connection: &Connection) {
        let now = self.now;
        let (Some(limit), Some(spliced)) = (self.silence_allowed(connection), connection.spliced()) else {
            return;
        };
        let silent = (now.as_millis() as u32).wrapping_sub(spliced.last_seen);
        let over = (now + limit).as_nanos().saturating_sub(u64::from(silent) * 1_000_000);
        let mut deadline = Instant::from_nanos(over);
        if let Some(queue) = self.rtx.get(spliced.rtx) {
            deadline = deadline.min(now + milliseconds_until(now, queue.timer.deadline()));
        }
        if let Some(kept) = self.inspections.of(slot).and_then(Inspection::deadline) {
            deadline = deadline.min(now + milliseconds_until(now, kept));
        }
        self.timers.arm(slot, deadline);
    }

    /// As [`Rooms::arm_spliced`] when a spliced connection has left the phase `before`. Only a time that has become shorter
    /// must be told to the timer: when it fires too early, it looks by itself how long there is still to wait.
    #[inline]
    pub(crate) fn arm_closing(&mut self, slot: u32, connection: &Connection, before: Phase) {
        let listener = self.settings.listeners.get(usize::from(connection.listener));
        let is_shorter = before == Phase::SPLICED && listener.is_some_and(|l| l.half_close < l.idle);
        // What is kept of an inspected connection has times of its own.
        if is_shorter || self.selector.inspects() {
            self.arm_spliced(slot, connection);
        }
    }

    /// How long both sides of a spliced connection may be silent.
    fn silence_allowed(&self, connection: &Connection) -> Option<Duration> {
        let listener = self.settings.listeners.get(usize::from(connection.listener))?;
        let spliced = connection.spliced()?;
        let is_open = (spliced.client_fin, spliced.server_fin) == (FinState::Open, FinState::Open);
        let usual = if is_open { listener.idle } else { listener.half_close };
        Some(usual.min(if is_unheard(connection) { listener.select } else { usual }))
    }
}

/// True if the copy of the client's first bytes was given up and no byte has passed since.
fn is_unheard(connection: &Connection) -> bool {
    connection
        .spliced()
        .is_some_and(|spliced| spliced.flags.contains(SplicedFlags::EVICTED))
        && connection.bytes_to_server == 0
}

fn milliseconds_until(now: Instant, until: u32) -> Duration {
    let left = until.wrapping_sub(now.as_millis() as u32) as i32;
    Duration::from_millis(left.max(0) as u64)
}
