//! The servers: what listens, serves and is off for a while.

use super::clients::{Call, CallState};
use super::{SERVERS, World};
use crate::check::{self, ServerResult};
use crate::ends::End;
use crate::engine::{SERVER_PORT, find};
use crate::headers::{self, Incoming};
use crate::scenario::{ConnectionPlan, Fate, Scenario};
use crate::trouble::Troubles;
use e2d2::time::Instant;
use proxy_protocol::Parsed;
use std::net::SocketAddr;
use std::time::Duration;
use testkit::sim::tcp::{Socket, State};
use testkit::sim::{Ends, Host, SocketId};

/// Listening sockets of a server; there are more when more SYNs than that arrive at once.
const BACKLOG: usize = 6;

/// A socket of a server.
pub(super) struct Session {
    host: usize,
    socket: SocketId,
    ends: Option<Ends>,
    /// When its application wants to do more, if nothing happens before.
    due: Option<Instant>,
    /// Found when it ended ([`Host::neglects`]).
    was_neglected: bool,
    is_closed: bool,
    /// When it got its SYN.
    called: Instant,
    end: Option<End>,
    pub(super) id: Option<u8>,
    /// How much of its first word it has said ([`Scenario::banner`]).
    greeted: usize,
    /// What its PROXY header said, once that was read.
    told: Option<(SocketAddr, SocketAddr)>,
    /// Its client's header came after that client had been taken for one without.
    had_late_header: bool,
}

impl Session {
    /// Says its first word, as far as there is room for it.
    fn greet(&mut self, banner: &[u8], socket: &mut Socket<'_>) {
        if let Some(rest) = banner.get(self.greeted..).filter(|rest| !rest.is_empty()) {
            self.greeted += socket.send_slice(rest).unwrap_or(0);
        }
    }

    /// Reads what tells whose connection it is: the PROXY header, and the first byte of the stream.
    fn meet_client(
        &mut self,
        (scenario, troubles, now): (&Scenario, &Troubles, Instant),
        calls: &[Call],
        tcp: &mut Socket<'_>,
        faults: &mut Vec<String>,
    ) {
        let announced = scenario.headers.outgoing.is_some();
        if announced && self.told.is_none() {
            match read_header(tcp) {
                Ok(told) => self.told = told,
                Err(what) => faults.push(what),
            }
        }
        if !announced || self.told.is_some() {
            self.greet(scenario.banner(), tcp);
        }
        let mut is_header_whole = true;
        if self.id.is_none()
            && !self.had_late_header
            && announced == self.told.is_some()
            && let Some((plan, header)) = late_header((scenario, troubles, now), calls, self.told, tcp)
        {
            let was_there = headers::take_late(&plan, &header, tcp);
            is_header_whole = was_there.is_some();
            self.had_late_header = was_there == Some(true);
        }
        if self.id.is_none()
            && is_header_whole
            && (!announced || self.told.is_some())
            && let Ok([id, ..]) = tcp.peek(1)
        {
            self.id = Some(*id);
            let plan = find(&scenario.connections, *id);
            let right = plan.map(|plan| match self.had_late_header {
                true => headers::own(plan),
                false => scenario.headers.told(plan),
            });
            if announced && self.told != right {
                faults.push(format!(
                    "connection {id}: its server was told {:?}, not {right:?}",
                    self.told
                ));
            }
            self.end = plan.map(|plan| End::server(plan, scenario));
            if self.end.is_none() {
                faults.push(format!("a server got the first byte {id:#04x}, which no client sent"));
            }
        }
    }

    pub(super) fn result(&self) -> Option<ServerResult> {
        let end = self.end.as_ref()?;
        Some(ServerResult {
            id: self.id?,
            host: self.host,
            sent: end.sent,
            received: end.received,
            end_seen: end.end_seen,
            has_all: end.has_all(),
            is_complete: end.is_complete(),
            is_neglected: self.was_neglected,
            is_unread: false,
        })
    }

    pub(super) fn is_neglected(&self, now: Instant, servers: &[Host]) -> bool {
        self.ends.is_some_and(|ends| servers[self.host].neglects(now, ends))
    }
}

impl World<'_> {
    pub(super) fn run_sessions(&mut self, n: usize) -> Option<Instant> {
        self.accept(n);
        let plan = self.scenario.servers[n];
        let accept_after = match plan.fate {
            Fate::AcceptsLate { ms } => Duration::from_millis(ms),
            _ => Duration::ZERO,
        };
        let mut next: Option<Instant> = None;
        let course = (self.scenario, &self.troubles, self.now);
        let host = &mut self.hosts[SERVERS][n];
        for session in self.sessions.iter_mut().filter(|session| session.host == n) {
            if !host.take_stirred(session.socket) && session.due.is_none_or(|at| self.now < at) {
                next = [next, session.due].into_iter().flatten().min();
                continue;
            }
            session.due = None;
            if host.socket(session.socket).state() == State::SynReceived {
                let at = session.called + accept_after;
                if self.now >= at {
                    host.answer(session.socket);
                } else {
                    session.due = Some(at);
                }
            }
            let tcp = host.socket(session.socket);
            session.meet_client(course, &self.calls, tcp, &mut self.faults);
            if let Some(end) = &mut session.end {
                match end.work(self.now, tcp) {
                    Ok(at) => session.due = [session.due, at].into_iter().flatten().min(),
                    Err(what) => self.faults.push(what),
                }
            } else if tcp.state() == State::CloseWait {
                tcp.close();
            }
            session.is_closed = tcp.state() == State::Closed;
            next = [next, session.due].into_iter().flatten().min();
        }
        if self
            .sessions
            .iter()
            .any(|session| session.host == n && session.is_closed)
        {
            self.poll_host(SERVERS, n);
            self.end_sessions(n);
        }
        self.listen_to(n, BACKLOG);
        next
    }

    /// Makes sessions of the connections that a server has accepted.
    fn accept(&mut self, n: usize) {
        let host = &mut self.hosts[SERVERS][n];
        for socket in host.take_accepted() {
            self.sessions.push(Session {
                host: n,
                socket,
                ends: ends(host.socket(socket)),
                due: None,
                was_neglected: false,
                is_closed: false,
                called: self.now,
                end: None,
                id: None,
                greeted: 0,
                told: None,
                had_late_header: false,
            });
        }
    }

    /// Forgets the sessions of a server whose sockets are over.
    fn end_sessions(&mut self, n: usize) {
        let (now, host) = (self.now, &mut self.hosts[SERVERS][n]);
        self.sessions.retain_mut(|session| {
            let is_gone = session.host == n && session.is_closed && host.is_over(session.socket);
            if is_gone {
                session.was_neglected = session.ends.is_some_and(|ends| host.neglects(now, ends));
                host.remove(session.socket);
                self.server_results.extend(session.result());
            }
            !is_gone
        });
    }

    /// Makes sure that a server has so many listening sockets, unless it refuses all: a SYN without one is answered by RST,
    /// where the queue of a kernel has room for a hundred.
    pub(super) fn listen_to(&mut self, n: usize, calls: usize) {
        if self.scenario.servers[n].fate != Fate::Refuses {
            for _ in self.hosts[SERVERS][n].listening()..calls {
                self.listen(n);
            }
        }
    }

    fn listen(&mut self, n: usize) {
        let plan = self.scenario.servers[n];
        let late = matches!(plan.fate, Fate::AcceptsLate { ms: 1.. });
        let mut size = |most: usize| (most / 2).max(1_000) + self.sockets.within(0..=most as u64 / 2) as usize;
        let (receive, send) = (size(plan.receive_buffer), size(plan.send_buffer));
        self.hosts[SERVERS][n].listen(SERVER_PORT, (receive, send), late);
    }

    pub(super) fn next_fate(&self, fate: Fate) -> Option<Instant> {
        let (from, to) = fate_times(fate)?;
        [Some(from), to]
            .into_iter()
            .flatten()
            .map(|ms| self.at_ms(ms))
            .filter(|at| *at > self.now)
            .min()
    }

    pub(super) fn apply_fates(&mut self) {
        for n in 0..self.scenario.servers.len() {
            let Some((from, to)) = fate_times(self.scenario.servers[n].fate) else {
                continue;
            };
            let is_off = self.now >= self.at_ms(from) && to.is_none_or(|to| self.now < self.at_ms(to));
            let host = &mut self.hosts[SERVERS][n];
            if is_off && !host.is_off {
                // What it had is forgotten.
                self.sessions.retain(|session| {
                    if session.host == n {
                        let unread = host.socket(session.socket).recv_queue();
                        let is_unread = unread > 0 && session.end.as_ref().is_some_and(|end| end.lacks_only(unread));
                        let result = session.result();
                        self.server_results
                            .extend(result.map(|result| ServerResult { is_unread, ..result }));
                    }
                    session.host != n
                });
                host.forget_everything();
            }
            if is_off != host.is_off {
                host.is_off = is_off;
                self.wakes[SERVERS][n] = Some(self.now);
            }
        }
    }
}

/// Takes the PROXY header off a server's stream, when it is whole; returns what it says.
///
/// # Errors
/// What is wrong with it.
fn read_header(socket: &mut Socket<'_>) -> Result<Option<(SocketAddr, SocketAddr)>, String> {
    let Ok(bytes) = socket.peek(1_000) else {
        return Ok(None);
    };
    let (told, length) = match proxy_protocol::parse(bytes) {
        Ok(Parsed::Complete { header, length }) => (header.source().zip(header.destination()), length),
        Ok(Parsed::Incomplete { .. }) => return Ok(None),
        Err(error) => return Err(format!("a server got a wrong header: {error}: {bytes:02x?}")),
    };
    if told.is_none() {
        return Err("a server got a header without addresses".to_owned());
    }
    let taken = socket.recv(|bytes| (length, bytes.len()));
    match taken {
        Ok(there) if there >= length => Ok(told),
        _ => Err("a header that was there could not be read".to_owned()),
    }
}

/// The header of the client whose own address a server was told, or that its stream begins with if it is told none, if so much
/// of that client was lost that the listener may have waited for it in vain.
fn late_header(
    (scenario, troubles, now): (&Scenario, &Troubles, Instant),
    calls: &[Call],
    told: Option<(SocketAddr, SocketAddr)>,
    socket: &mut Socket<'_>,
) -> Option<(ConnectionPlan, Vec<u8>)> {
    if scenario.headers.incoming != Incoming::Optional {
        return None;
    }
    let bytes = socket.peek(1_200).unwrap_or_default();
    let began = |call: &Call| match &call.state {
        CallState::Waiting => None,
        CallState::Open { began, .. } => Some(*began),
        CallState::Over(result) => Some(result.began),
    };
    let may_be_late = |began: Instant, plan: &ConnectionPlan| {
        let (own, _) = headers::own(plan);
        let lost = troubles.of((own.ip(), own.port()), began, now).lost;
        lost >= check::LOST_IN_A_MINUTE && !scenario.headers.of(plan).is_empty()
    };
    let calls = calls.iter().filter_map(|call| Some((began(call)?, &call.plan)));
    let calls = calls.filter(|&(began, plan)| match told {
        Some(told) => headers::own(plan) == told,
        None => may_be_late(began, plan) && headers::may_be_of(bytes, plan, scenario),
    });
    let (began, plan) = calls.max_by_key(|(began, _)| *began)?;
    may_be_late(began, plan).then(|| (*plan, scenario.headers.of(plan)))
}

/// The two ends of a socket, if it has both.
fn ends(socket: &Socket<'_>) -> Option<Ends> {
    let (local, remote) = (socket.local_endpoint()?, socket.remote_endpoint()?);
    Some((local.port, (remote.addr.into(), remote.port)))
}

/// From when to when a server with this fate is off, in ms.
fn fate_times(fate: Fate) -> Option<(u64, Option<u64>)> {
    match fate {
        Fate::Absent => Some((0, None)),
        Fate::Restarts { from_ms, to_ms } => Some((from_ms, Some(to_ms))),
        Fate::Vanishes { at_ms } => Some((at_ms, None)),
        Fate::Well | Fate::Refuses | Fate::AcceptsLate { .. } => None,
    }
}
