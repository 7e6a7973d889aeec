//! The clients: their connections, from the SYN to what came of them.

use super::servers::Session;
use super::{CLIENTS, SERVERS, World};
use crate::check::ClientResult;
use crate::ends::End;
use crate::engine::SERVICE;
use crate::scenario::ConnectionPlan;
use crate::{frames, headers, trouble};
use e2d2::time::Instant;
use std::net::SocketAddr;
use std::time::Duration;
use testkit::sim::tcp::{Socket, State};
use testkit::sim::{Ends, Host, SocketId};

/// After this long without any progress a client application gives up. With a fifth of the packets lost on each of the four
/// ways and a minute between two attempts, that is one in a million.
const PATIENCE: Duration = Duration::from_secs(1_500);

/// A connection of a client.
pub(super) struct Call {
    pub(super) plan: ConnectionPlan,
    pub(super) state: CallState,
}

pub(super) enum CallState {
    Waiting,
    Open {
        socket: SocketId,
        own: Ends,
        end: Box<End>,
        began: Instant,
        /// The number of its SYN, and when that has reached the engine undamaged.
        syn: Option<u32>,
        heard: Option<Instant>,
        progress: Progress,
        gave_up: bool,
        /// When its application wants to do more, if nothing happens before.
        due: Option<Instant>,
    },
    Over(ClientResult),
}

/// What a connection has come to, and when it came to that.
pub(super) struct Progress {
    state: State,
    acknowledged: u32,
    received: u32,
    since: Instant,
}

impl Progress {
    fn note(&mut self, now: Instant, end: &End, socket: &Socket<'_>) {
        let acknowledged = end.sent.saturating_sub(socket.send_queue() as u32);
        if (self.state, self.acknowledged, self.received) != (socket.state(), acknowledged, end.received) {
            *self = Progress {
                state: socket.state(),
                acknowledged,
                received: end.received,
                since: now,
            };
        }
    }
}

impl World<'_> {
    /// A client has sent a segment, or it has reached the engine: the first SYN of a call says when records can be its own.
    pub(super) fn note_syn(&mut self, frame: &[u8], has_arrived: bool) {
        let (Some(number), Ok(())) = (frames::number_of_syn(frame), frames::check(frame)) else {
            return;
        };
        let Some(own) = trouble::leg_of(frame, true, true).map(SocketAddr::from) else {
            return;
        };
        let open = self.open.iter().flatten();
        let call = open.copied().find(|&i| headers::own(&self.calls[i].plan).0 == own);
        if let Some(CallState::Open { syn, heard, .. }) = call.map(|i| &mut self.calls[i].state)
            && *syn.get_or_insert(number) == number
            && has_arrived
        {
            heard.get_or_insert(self.now);
        }
    }

    pub(super) fn start_calls(&mut self) {
        let is_time = self.next_start.is_some_and(|at| at <= self.now);
        if !is_time && !std::mem::take(&mut self.has_ended) {
            return;
        }
        let starts = self.waiting.iter().map(|&i| self.at_ms(self.calls[i].plan.start_ms));
        self.next_start = starts.filter(|at| *at > self.now).min();
        let mut at = 0;
        while let Some(&i) = self.waiting.get(at) {
            let plan = &self.calls[i].plan;
            let is_due = self.at_ms(plan.start_ms) <= self.now;
            let has_port = |&open: &usize| self.calls[open].plan.port == plan.port;
            if !is_due || self.open.iter().flatten().any(has_port) {
                at += 1;
                continue;
            }
            self.waiting.remove(at);
            let plan = *plan;
            self.open[plan.host].push(i);
            let host = &mut self.hosts[CLIENTS][plan.host];
            let socket = host.add_socket(plan.client_buffers.0, plan.client_buffers.1);
            let (from, to) = if plan.v6 {
                (format!("[fd00::{}]", 1 + plan.host), format!("[fd00::9]:{SERVICE}"))
            } else {
                (format!("10.0.0.{}", 1 + plan.host), format!("10.0.0.9:{SERVICE}"))
            };
            let from: SocketAddr = format!("{from}:{}", plan.port).parse().expect("an address");
            let to: SocketAddr = to.parse().expect("an address");
            host.connect(socket, to, from);
            self.calls[i].state = CallState::Open {
                socket,
                own: (from.port(), (to.ip(), to.port())),
                end: Box::new(End::client(&plan, self.scenario)),
                began: self.now,
                syn: None,
                heard: None,
                progress: Progress {
                    state: State::Closed,
                    acknowledged: 0,
                    received: 0,
                    since: self.now,
                },
                gave_up: false,
                due: None,
            };
            self.wakes[CLIENTS][plan.host] = Some(self.now);
        }
    }

    pub(super) fn run_calls(&mut self, n: usize) -> Option<Instant> {
        let mut next: Option<Instant> = None;
        let mut last_words = Vec::new();
        for &i in &self.open[n] {
            let call = &mut self.calls[i];
            let CallState::Open {
                socket,
                own,
                end,
                began,
                heard,
                progress,
                gave_up,
                due,
                ..
            } = &mut call.state
            else {
                continue;
            };
            let host = &mut self.hosts[CLIENTS][n];
            if !host.take_stirred(*socket) && due.is_none_or(|at| self.now < at) {
                next = [next, *due].into_iter().flatten().min();
                continue;
            }
            let tcp = host.socket(*socket);
            let outcome = end.work(self.now, tcp);
            progress.note(self.now, end, tcp);
            match outcome {
                Ok(at) => *due = [at, Some(progress.since + PATIENCE)].into_iter().flatten().min(),
                Err(what) => self.faults.push(what),
            }
            next = [next, *due].into_iter().flatten().min();
            if self.now >= progress.since + PATIENCE {
                *gave_up = true;
                tcp.abort();
            }
            if tcp.state() == State::Closed {
                // The RST of an abort leaves with the socket's last poll.
                last_words.extend(host.poll(self.now));
            }
            if host.is_over(*socket) {
                let is_neglected = is_neglected(&self.hosts, &self.sessions, (n, *own, call.plan.id), self.now);
                let host = &mut self.hosts[CLIENTS][n];
                let result = ClientResult {
                    sent: end.sent,
                    received: end.received,
                    end_seen: end.end_seen,
                    has_all: end.has_all(),
                    is_complete: end.is_complete(),
                    gave_up: *gave_up,
                    is_neglected,
                    began: *began,
                    heard: *heard,
                    ended: self.now,
                };
                host.remove(*socket);
                self.has_ended = true;
                call.state = CallState::Over(result);
            }
        }
        let calls = &self.calls;
        self.open[n].retain(|&i| matches!(calls[i].state, CallState::Open { .. }));
        for frame in last_words {
            self.send(CLIENTS, true, frame);
        }
        next
    }
}

/// The host of a client, or of one of its servers, has ceased to repeat what it must.
fn is_neglected(hosts: &[Vec<Host>; 2], sessions: &[Session], (n, own, id): (usize, Ends, u8), now: Instant) -> bool {
    let mut serving = sessions.iter().filter(|session| session.id == Some(id));
    hosts[CLIENTS][n].neglects(now, own) || serving.any(|session| session.is_neglected(now, &hosts[SERVERS]))
}
