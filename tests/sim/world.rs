//! One simulation: hosts, links and engine, moved from event to event in virtual time.

use crate::check::{self, ClientResult, Report, ServerResult};
use crate::ends::End;
use crate::engine::{Engine, IDLE_SECONDS, SERVER_PORT, SERVICE, find};
use crate::frames;
use crate::headers::{self, Incoming};
use crate::legs::{self, Figures, Truth};
use crate::scenario::{ConnectionPlan, Fate, Scenario};
use crate::trouble::{self, Troubles};
use e2d2::ports::{Direction, FrameWriter, InterfaceId};
use e2d2::time::Instant;
use netfcts::record::SessionRecord;
use proxy_protocol::Parsed;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::collections::BinaryHeap;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;
use testkit::sim::tcp::{Socket, State};
use testkit::sim::{Ends, Host, HostPlan, Link, Random, SocketId};

/// Listening sockets of a server; there are more when more SYNs than that arrive at once.
const BACKLOG: usize = 6;

/// After this long without any progress a client application gives up. With a fifth of the packets lost on each of the four
/// ways and a minute between two attempts, that is one in a million.
pub const PATIENCE: Duration = Duration::from_secs(1_500);

/// When the last connection has ended, everything must have been given back within the timers' sum.
const AFTERMATH: Duration = Duration::from_secs(2 * IDLE_SECONDS + 200);

/// Frames on their way at most: some hundred times what the hosts' windows and queues hold. More are a loop of answers.
const MOST_FLIGHTS: usize = 200_000;

/// The two sides of the engine.
const CLIENTS: usize = 0;
const SERVERS: usize = 1;

/// A frame on its way.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Flight {
    at: Instant,
    order: u64,
    side: usize,
    to_engine: bool,
    frame: Vec<u8>,
}

/// A connection of a client.
struct Call {
    plan: ConnectionPlan,
    state: CallState,
}

enum CallState {
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
struct Progress {
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

/// A socket of a server.
struct Session {
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
    id: Option<u8>,
    /// How much of its first word it has said ([`Scenario::banner`]).
    greeted: usize,
    /// What its PROXY header said, once that was read.
    told: Option<(SocketAddr, SocketAddr)>,
    /// Its client's header came after that client had been taken for one without.
    had_late_header: bool,
}

struct World<'a> {
    scenario: &'a Scenario,
    start: Instant,
    now: Instant,
    engine: Engine,
    hosts: [Vec<Host>; 2],
    /// By side: towards the engine, from it.
    links: [[Link; 2]; 2],
    flights: BinaryHeap<Reverse<Flight>>,
    order: u64,
    calls: Vec<Call>,
    /// Indices of the calls that have not begun, and of those that each client's host has open.
    waiting: Vec<usize>,
    open: [Vec<usize>; 2],
    /// When the next of those that wait begins; none of them may before, unless a call has ended since.
    next_start: Option<Instant>,
    has_ended: bool,
    sessions: Vec<Session>,
    server_results: Vec<ServerResult>,
    records: Vec<SessionRecord>,
    troubles: Troubles,
    wakes: [Vec<Option<Instant>>; 2],
    /// When the engine has something to do by itself.
    engine_wake: Option<Instant>,
    sockets: Random,
    capture: Option<Capture>,
    /// What has passed on both legs, if somebody asks.
    truth: Option<Truth>,
    digest: u64,
    faults: Vec<String>,
}

struct Capture {
    file: FrameWriter,
    interfaces: [InterfaceId; 2],
}

/// Runs a scenario to its end and judges it. Frames at the engine's ports are written to `capture`.
pub fn run(scenario: &Scenario, capture: Option<&Path>) -> Report {
    judged(&mut World::new(scenario, capture))
}

/// The same, with what has passed the engine on both legs, and what it tells of that.
pub fn run_told(scenario: &Scenario) -> (Report, [[Figures; 2]; 2]) {
    let mut world = World::new(scenario, None);
    world.truth = Some(Truth::default());
    let report = judged(&mut world);
    let truth = world.truth.iter().map(Truth::sums).next();
    (report, [truth.unwrap_or_default(), legs::told(&world.engine)])
}

fn judged(world: &mut World<'_>) -> Report {
    world.run();
    let scenario = world.scenario;
    let leaks = world.engine.leaks();
    let drops = world.engine.drops();
    if let Some(capture) = &mut world.capture {
        capture.file.flush().expect("the capture file can be written");
    }
    let clients = world.calls.iter().filter_map(|call| match &call.state {
        CallState::Over(result) => Some((call.plan, result.clone())),
        CallState::Waiting | CallState::Open { .. } => None,
    });
    let clients = clients.collect();
    let seconds = (world.now - world.start).as_secs();
    let course = check::Course {
        scenario,
        start: world.start,
        troubles: &world.troubles,
        servers: &world.server_results,
    };
    let mut report = check::judge(&course, clients, &world.records);
    if world.faults.is_empty() {
        report.faults.extend(leaks);
    } else {
        // It ended before its time: nothing else can be right.
        report.faults = std::mem::take(&mut world.faults);
    }
    report.drops = drops;
    report.seconds = seconds;
    report.digest = world.digest;
    report
}

impl<'a> World<'a> {
    fn new(scenario: &'a Scenario, capture: Option<&Path>) -> Self {
        let random = Random::new(scenario.seed);
        // Not at zero, and where the millisecond counters are about to wrap: they must not matter.
        let start = Instant::ZERO + Duration::from_millis(u64::from(u32::MAX) - 10_000);
        let mut seeds = random.fork("hosts");
        let client = |n: usize| HostPlan {
            mac: 0x11 + n as u8,
            addresses: addresses(
                scenario,
                &format!("10.0.0.{}/24", 1 + n),
                &format!("fd00::{}/64", 1 + n),
            ),
            mtu: scenario.client_mtu,
            options: scenario.clients[n],
        };
        let server = |n: usize| HostPlan {
            mac: 0x50 + n as u8,
            addresses: addresses(scenario, &format!("10.1.0.10{n}/24"), &format!("fd01::10{n}/64")),
            mtu: scenario.servers[n].mtu,
            options: scenario.servers[n].options,
        };
        let mut host = |plan: HostPlan| Host::new(&plan, seeds.bits(), start);
        let hosts = [
            (0..2).map(|n| host(client(n))).collect(),
            (0..3).map(|n| host(server(n))).collect::<Vec<_>>(),
        ];
        let link = |plan: &testkit::sim::Impairment, name: &str| Link::new(plan.clone(), random.fork(name), start);
        let mut world = World {
            scenario,
            start,
            now: start,
            engine: Engine::new(scenario, &mut random.fork("engine"), start),
            wakes: [vec![Some(start); 2], vec![Some(start); 3]],
            engine_wake: Some(start),
            hosts,
            links: [
                [link(&scenario.from_clients, "fc"), link(&scenario.to_clients, "tc")],
                [link(&scenario.from_servers, "fs"), link(&scenario.to_servers, "ts")],
            ],
            flights: BinaryHeap::new(),
            order: 0,
            calls: Vec::new(),
            waiting: (0..scenario.connections.len()).collect(),
            open: [Vec::new(), Vec::new()],
            next_start: Some(start),
            has_ended: false,
            sessions: Vec::new(),
            server_results: Vec::new(),
            records: Vec::new(),
            troubles: Troubles::default(),
            sockets: random.fork("sockets"),
            capture: capture.map(Capture::new),
            truth: None,
            digest: 0,
            faults: Vec::new(),
        };
        world.calls = scenario
            .connections
            .iter()
            .map(|&plan| Call {
                plan,
                state: CallState::Waiting,
            })
            .collect();
        world
    }

    fn at_ms(&self, ms: u64) -> Instant {
        self.start + Duration::from_millis(ms)
    }

    fn run(&mut self) {
        while self.faults.is_empty() && !self.all_over() {
            self.turn();
        }
        // What is still on its way, every timer, and the rest of every port.
        let limit = self.now + AFTERMATH;
        while self.faults.is_empty() && self.now < limit && self.engine.usage() != Default::default() {
            self.turn();
        }
        self.engine.records(|record| self.records.push(*record));
        self.sessions.drain(..).for_each(|session| {
            self.server_results.extend(session.result());
        });
    }

    fn all_over(&self) -> bool {
        self.waiting.is_empty() && self.open.iter().all(Vec::is_empty)
    }

    /// Everything that is due now, and then on to the next event.
    fn turn(&mut self) {
        self.start_calls();
        self.apply_fates();
        self.deliver();
        for side in [CLIENTS, SERVERS] {
            for host in 0..self.hosts[side].len() {
                if self.wakes[side][host].is_some_and(|at| at <= self.now) {
                    self.run_host(side, host);
                }
            }
        }
        if self.engine_wake.is_some_and(|at| at <= self.now) {
            self.run_engine();
        }
        let next = self.next_event();
        self.now = next.max(self.soon());
    }

    fn next_event(&self) -> Instant {
        let flight = self.flights.peek().map(|Reverse(flight)| flight.at);
        let hosts = self.wakes.iter().flatten().flatten().min().copied();
        // Calls that are open are in their host's wake.
        let fates = self
            .scenario
            .servers
            .iter()
            .filter_map(|server| self.next_fate(server.fate));
        let tick = Some(self.now + Duration::from_secs(1));
        [flight, hosts, self.next_start, fates.min(), self.engine_wake, tick]
            .into_iter()
            .flatten()
            .min()
            .unwrap_or(self.now)
    }

    // ---- frames ----

    fn deliver(&mut self) {
        let mut calls = [0; 3];
        while self.flights.peek().is_some_and(|Reverse(flight)| flight.at <= self.now) {
            let Some(Reverse(flight)) = self.flights.pop() else {
                break;
            };
            if flight.to_engine {
                self.note_frame(flight.side, Direction::Inbound, &flight.frame);
                if flight.side == CLIENTS {
                    self.note_syn(&flight.frame, true);
                }
                self.engine.receive(flight.side, &flight.frame);
                self.engine_wake = Some(self.now);
                continue;
            }
            let is_call = flight.side == SERVERS && frames::number_of_syn(&flight.frame).is_some();
            for (n, calls) in calls.iter_mut().enumerate().take(self.hosts[flight.side].len()) {
                let host = &mut self.hosts[flight.side][n];
                if !host.takes(&flight.frame) {
                    continue;
                }
                host.receive(flight.frame.clone());
                self.wakes[flight.side][n] = Some(self.now);
                if is_call {
                    *calls += 1;
                    self.listen_to(n, *calls);
                }
            }
        }
    }

    /// A client has sent a segment, or it has reached the engine: the first SYN of a call says when records can be its own.
    fn note_syn(&mut self, frame: &[u8], has_arrived: bool) {
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

    fn send(&mut self, side: usize, to_engine: bool, frame: Vec<u8>) {
        if side == CLIENTS && to_engine {
            self.note_syn(&frame, false);
        }
        let (flights, order) = (&mut self.flights, &mut self.order);
        let leg = trouble::leg_of(&frame, side == CLIENTS, to_engine);
        let treatment = self.links[side][usize::from(!to_engine)].send(self.now, frame, |at, frame| {
            *order += 1;
            flights.push(Reverse(Flight {
                at,
                order: *order,
                side,
                to_engine,
                frame,
            }));
        });
        self.troubles.note(self.now, leg, treatment);
        if self.flights.len() > MOST_FLIGHTS {
            let more = format!("more than {MOST_FLIGHTS} frames are on their way");
            self.faults.extend(self.faults.is_empty().then_some(more));
        }
    }

    fn run_engine(&mut self) {
        let mut sent = Vec::new();
        self.engine.run(self.now, |port, frame| sent.push((port, frame)));
        self.engine.records(|record| self.records.push(*record));
        for (side, frame) in sent {
            self.note_frame(side, Direction::Outbound, &frame);
            let mtu = [self.scenario.client_mtu, self.scenario.server_mtu][side];
            if frame.len() > usize::from(mtu) + 14 {
                self.faults
                    .push(format!("the engine sent {} bytes into an MTU of {mtu}", frame.len()));
            }
            if !self.scenario.spoils_frames()
                && let Err(what) = frames::check(&frame)
            {
                self.faults
                    .push(format!("the engine sent a wrong frame: {what}: {frame:02x?}"));
            }
            self.send(side, false, frame);
        }
        self.engine_wake = self.engine.next_deadline().map(|at| at.max(self.soon()));
    }

    /// The soonest that anything happens after what happens now.
    fn soon(&self) -> Instant {
        self.now + Duration::from_micros(10)
    }

    fn note_frame(&mut self, side: usize, direction: Direction, frame: &[u8]) {
        if let Some(truth) = &mut self.truth {
            truth.note(side, direction == Direction::Inbound, frame, self.now);
        }
        let time = (self.now - self.start).as_nanos() as u64;
        let (chunks, rest) = frame.as_chunks::<8>();
        let chunks = chunks.iter().map(|chunk| u64::from_le_bytes(*chunk));
        let rest = rest.iter().map(|byte| u64::from(*byte));
        let words = [time, side as u64, frame.len() as u64].into_iter();
        self.digest = words.chain(chunks).chain(rest).fold(self.digest, |digest, word| {
            (digest ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(5)
        });
        if let Some(capture) = &mut self.capture {
            let written = capture
                .file
                .write(capture.interfaces[side], direction, self.now - self.start, frame);
            written.expect("the capture file can be written");
        }
    }

    // ---- hosts ----

    /// Lets a host's TCP and applications work until both have nothing more to do now.
    fn run_host(&mut self, side: usize, n: usize) {
        self.poll_host(side, n);
        let next = match side {
            CLIENTS => self.run_calls(n),
            _ => self.run_sessions(n),
        };
        self.poll_host(side, n);
        let poll = self.hosts[side][n].next_poll(self.now);
        self.wakes[side][n] = [next, poll].into_iter().flatten().min().map(|at| at.max(self.soon()));
    }

    fn poll_host(&mut self, side: usize, n: usize) {
        let frames: Vec<_> = self.hosts[side][n].poll(self.now).collect();
        for frame in frames {
            self.send(side, true, frame);
        }
    }

    fn start_calls(&mut self) {
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

    fn run_calls(&mut self, n: usize) -> Option<Instant> {
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

    fn run_sessions(&mut self, n: usize) -> Option<Instant> {
        let plan = self.scenario.servers[n];
        let accept_after = match plan.fate {
            Fate::AcceptsLate { ms } => Duration::from_millis(ms),
            _ => Duration::ZERO,
        };
        let mut next: Option<Instant> = None;
        let course = (self.scenario, &self.troubles, self.now);
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
            let announced = self.scenario.headers.outgoing.is_some();
            if announced && session.told.is_none() {
                match read_header(tcp) {
                    Ok(told) => session.told = told,
                    Err(what) => self.faults.push(what),
                }
            }
            if !announced || session.told.is_some() {
                session.greet(self.scenario.banner(), tcp);
            }
            let mut is_header_whole = true;
            if session.id.is_none()
                && !session.had_late_header
                && announced == session.told.is_some()
                && let Some((plan, header)) = late_header(course, &self.calls, session.told, tcp)
            {
                let was_there = headers::take_late(&plan, &header, tcp);
                is_header_whole = was_there.is_some();
                session.had_late_header = was_there == Some(true);
            }
            if session.id.is_none()
                && is_header_whole
                && (!announced || session.told.is_some())
                && let Ok([id, ..]) = tcp.peek(1)
            {
                session.id = Some(*id);
                let plan = find(&self.scenario.connections, *id);
                let right = plan.map(|plan| match session.had_late_header {
                    true => headers::own(plan),
                    false => self.scenario.headers.told(plan),
                });
                if announced && session.told != right {
                    self.faults.push(format!(
                        "connection {id}: its server was told {:?}, not {right:?}",
                        session.told
                    ));
                }
                session.end = plan.map(|plan| End::server(plan, self.scenario));
                if session.end.is_none() {
                    self.faults
                        .push(format!("a server got the first byte {id:#04x}, which no client sent"));
                }
            }
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
    fn listen_to(&mut self, n: usize, calls: usize) {
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

    // ---- fates ----

    fn next_fate(&self, fate: Fate) -> Option<Instant> {
        let (from, to) = fate_times(fate)?;
        [Some(from), to]
            .into_iter()
            .flatten()
            .map(|ms| self.at_ms(ms))
            .filter(|at| *at > self.now)
            .min()
    }

    fn apply_fates(&mut self) {
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
                        self.server_results.extend(session.result());
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

/// The host of a client, or of one of its servers, has ceased to repeat what it must.
fn is_neglected(hosts: &[Vec<Host>; 2], sessions: &[Session], (n, own, id): (usize, Ends, u8), now: Instant) -> bool {
    let mut serving = sessions.iter().filter(|session| session.id == Some(id));
    hosts[CLIENTS][n].neglects(now, own) || serving.any(|session| session.is_neglected(now, &hosts[SERVERS]))
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

impl Session {
    /// Says its first word, as far as there is room for it.
    fn greet(&mut self, banner: &[u8], socket: &mut Socket<'_>) {
        if let Some(rest) = banner.get(self.greeted..).filter(|rest| !rest.is_empty()) {
            self.greeted += socket.send_slice(rest).unwrap_or(0);
        }
    }

    fn result(&self) -> Option<ServerResult> {
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
        })
    }

    fn is_neglected(&self, now: Instant, servers: &[Host]) -> bool {
        self.ends.is_some_and(|ends| servers[self.host].neglects(now, ends))
    }
}

impl Capture {
    fn new(path: &Path) -> Self {
        let mut file = FrameWriter::create(path).unwrap_or_else(|error| panic!("{error}"));
        let interfaces = ["client port", "server port"].map(|name| file.add_interface(name).expect("writable"));
        Capture { file, interfaces }
    }
}

fn addresses(scenario: &Scenario, v4: &str, v6: &str) -> Vec<String> {
    let mut addresses = vec![v4.to_owned()];
    if scenario.has_v6() {
        addresses.push(v6.to_owned());
    }
    addresses
}

/// Records by client, in the order of their begin.
pub fn by_client(records: &[SessionRecord]) -> BTreeMap<(IpAddr, u16), Vec<SessionRecord>> {
    let mut map: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for record in records {
        let client = (record.client(), record.client_port);
        map.entry(record.peer().unwrap_or(client)).or_default().push(*record);
    }
    map.values_mut()
        .for_each(|records| records.sort_by_key(SessionRecord::start));
    map
}
