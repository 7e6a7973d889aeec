//! One simulation: hosts, links and engine, moved from event to event in virtual time.

mod clients;
mod servers;

use self::clients::{Call, CallState};
use self::servers::Session;
use crate::check::{self, Report, ServerResult};
use crate::engine::{Engine, IDLE_SECONDS};
use crate::frames;
use crate::legs::{self, Figures, Truth};
use crate::scenario::Scenario;
use crate::trouble::{self, Troubles};
use e2d2::ports::{Direction, FrameWriter, InterfaceId};
use e2d2::time::Instant;
use netfcts::record::SessionRecord;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::collections::BinaryHeap;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;
use testkit::sim::{Host, HostPlan, Link, Random};

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
