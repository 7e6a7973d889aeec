//! The engine under test: its real graph over loop-back ports, with its real neighbour discovery.

use crate::ends::{Way, byte_at, rewritten};
use crate::headers::{self, Headers, Incoming};
use crate::scenario::{Binding, Choice, ConnectionPlan, Families, Scenario};
use arrayvec::ArrayVec;
use e2d2::BURST;
use e2d2::buffer::{BufferPool, HeapPool, PacketBuffer};
use e2d2::counters::Reason;
use e2d2::fate::{GraphCounters, GraphReader};
use e2d2::operators::share;
use e2d2::port::{Port, PortId};
use e2d2::ports::LoopbackPort;
use e2d2::scheduler::Task;
use e2d2::time::Instant;
use netfcts::record::SessionRecord;
use netfcts::ring::{RecordReceiver, record_ring};
use proxyengine::callbacks::{
    ConnectionInfo, FirstPayload, InspectPayload, Inspected, Payload, SelectServer, Selection, Verdict,
};
use proxyengine::config::{Config, PoolId, ServerId};
use proxyengine::neighbour::{SharedNeighbours, Station, Topology};
use proxyengine::pipeline::{self, Handle};
use splice::tally::Tally;
use splice::upstream::Upstream;
use splice::{CoreParts, Proxy, Secrets, Usage};
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};
use testkit::sim::Random;

/// The listeners' port.
pub const SERVICE: u16 = 80;
/// The servers' port.
pub const SERVER_PORT: u16 = 8080;
/// Packets of the pool.
const BUFFERS: usize = 2_048;
/// Frames that a cable holds each way.
const CABLE: usize = 1_024;

/// What a chunk of 16 KiB for held requests takes with its blocks.
const HELD_CHUNK: usize = 16 * 1024 + 32 * 64 + 16;

/// How long a client may take until the selector has decided.
pub const SELECT_SECONDS: u64 = 60;

/// How long both ends may be silent.
pub const IDLE_SECONDS: u64 = 300;

/// The engine and the far ends of its cables.
pub struct Engine {
    task: Box<dyn Task>,
    handle: Handle<HeapPool, Inspected<Selector, Rewriter>>,
    far: [LoopbackPort; 2],
    pool: HeapPool,
    records: RecordReceiver,
    graph: GraphReader,
    complaints: Complaints,
}

/// What the selector found wrong.
pub type Complaints = Arc<Mutex<Vec<String>>>;

/// Decides by the connection's plan, which the first byte names.
pub struct Selector {
    plans: Arc<[ConnectionPlan]>,
    binding: Binding,
    families: Families,
    headers: Headers,
    complaints: Complaints,
}

impl SelectServer for Selector {
    fn select(&mut self, payload: &FirstPayload<'_>) -> Selection {
        if self.binding != Binding::Payload {
            return self.select_unheard(payload);
        }
        let Some(plan) = payload.bytes.first().and_then(|&id| find(&self.plans, id)) else {
            return Selection::Reject;
        };
        let wrong = (0..payload.bytes.len()).find(|&i| payload.bytes[i] != byte_at(plan.id, Way::ToServer, i as u32));
        if let Some(at) = wrong {
            self.complain(format!("connection {}: the selector got a wrong byte {at}", plan.id));
        }
        let told = (payload.client, payload.local);
        if payload.peer.port() != plan.port || told != self.headers.told(plan) {
            self.complain(format!(
                "connection {}: the selector got client {} of {} through {}",
                plan.id, payload.client, payload.local, payload.peer
            ));
        }
        if payload.bytes.len() < plan.needs as usize && !payload.complete {
            return Selection::NeedMore;
        }
        let family = u16::from(plan.server_v6);
        match (plan.choice, self.families) {
            (Choice::Server(server), _) => Selection::Server(ServerId(u16::from(server) + 3 * family)),
            (Choice::Pool, Families::Both) => Selection::Pool(PoolId(2)),
            (Choice::Pool, Families::Own | Families::Other) => Selection::Pool(PoolId(family)),
            (Choice::Reject, _) => Selection::Reject,
        }
    }
}

impl Selector {
    /// Nothing was said yet: who calls is all that is known, and of one whose SYN is passed on not even what its header says.
    fn select_unheard(&self, payload: &FirstPayload<'_>) -> Selection {
        let told = (payload.client, payload.local);
        // What came in one segment with a header is known already.
        let has_said = |id: u8| {
            (0..)
                .zip(payload.bytes)
                .all(|(at, byte)| *byte == byte_at(id, Way::ToServer, at))
        };
        // Who has been silent for as long as it may be has no header where one is optional. The world knows who was.
        let was_silent = self.headers.incoming == Incoming::Optional && payload.bytes.is_empty();
        let may_lack_header = self.binding == Binding::Syn || was_silent;
        let is_caller = |plan: &&ConnectionPlan| {
            (plan.port, plan.v6) == (payload.peer.port(), payload.peer.is_ipv6())
                && (self.headers.told(plan) == told || may_lack_header && headers::own(plan) == told)
                && has_said(plan.id)
        };
        let Some(plan) = self.plans.iter().find(is_caller) else {
            self.complain(format!(
                "the selector got client {} of {} through {} with {:02x?}",
                payload.client, payload.local, payload.peer, payload.bytes
            ));
            return Selection::Reject;
        };
        match self.families {
            Families::Both => Selection::Pool(PoolId(2)),
            Families::Own | Families::Other => Selection::Pool(PoolId(u16::from(plan.server_v6))),
        }
    }

    fn complain(&self, complaint: String) {
        self.complaints.lock().expect("one thread").push(complaint);
    }
}

/// Rewrites byte by byte, if the scenario has it so: in place where no length changes.
pub struct Rewriter {
    is_rewritten: bool,
    complaints: Complaints,
}

impl InspectPayload for Rewriter {
    /// How many bytes each direction has shown.
    type Context = [u64; 2];

    fn open(&mut self, _connection: &ConnectionInfo) -> Option<[u64; 2]> {
        self.is_rewritten.then_some([0; 2])
    }

    fn inspect(&mut self, shown: &mut [u64; 2], payload: &mut Payload<'_>) -> Verdict {
        let way = if payload.is_to_client() {
            Way::ToClient
        } else {
            Way::ToServer
        };
        let offset = payload.offset();
        let shown = &mut shown[usize::from(payload.is_to_client())];
        if *shown != offset {
            let complaint = format!("byte {offset} was shown after {shown}");
            self.complaints.lock().expect("one thread").push(complaint);
        }
        *shown = offset + payload.bytes().len() as u64;
        let made = |bytes: &[u8]| -> Vec<([u8; 2], usize)> {
            let bytes = bytes.iter().enumerate();
            bytes
                .map(|(i, byte)| rewritten(way, offset + i as u64, *byte))
                .collect()
        };
        let made = made(payload.bytes());
        if made.iter().all(|(_, count)| *count == 1) {
            let changes = payload
                .bytes()
                .iter()
                .zip(&made)
                .any(|(byte, (new, _))| *byte != new[0]);
            if changes {
                let bytes = payload.bytes_mut().iter_mut().zip(&made);
                bytes.for_each(|(byte, (new, _))| *byte = new[0]);
            }
            return Verdict::Pass;
        }
        let (_, output) = payload.replace();
        for (bytes, count) in made {
            output.write(&bytes[..count]).expect("no more than twice as many");
        }
        Verdict::Replace
    }
}

/// The plan of the connection with this number. Numbers are not indices: a scenario made smaller has gaps.
pub fn find(plans: &[ConnectionPlan], id: u8) -> Option<&ConnectionPlan> {
    plans.iter().find(|plan| plan.id == id)
}

fn config_text(scenario: &Scenario) -> String {
    let bind = match scenario.binding {
        Binding::Payload => "payload",
        Binding::Handshake => "handshake",
        Binding::Syn => "syn",
    };
    let v6 = scenario.has_v6();
    let address = |v4: &str, v6_address: &str| {
        if v6 {
            format!("\"{v4}\", \"{v6_address}\"")
        } else {
            format!("\"{v4}\"")
        }
    };
    let promise = &scenario.promise;
    let window_scale = promise
        .window_scale
        .map_or("\"off\"".to_owned(), |shift| shift.to_string());
    let promise = if promise.is_learned {
        format!("window = {}", promise.window)
    } else {
        format!(
            "probe = false\nwindow = {}\nwindow_scale = {window_scale}\nsack = {}\ntimestamps = {}",
            promise.window, promise.sack, promise.timestamps
        )
    };
    let last_port = 40_000 + scenario.local_ports - 1;
    let mut text = format!(
        "[engine]\nname = \"sim\"\ncores = [0]\nleg_sample = 1\nmax_connections = 256\nverify = \"{}\"\n\
         [timeouts]\nselect = \"{SELECT_SECONDS}s\"\nconnect = \"20s\"\nidle = \"{IDLE_SECONDS}s\"\nhalf_close = \"{IDLE_SECONDS}s\"\n\
         time_wait = \"{}ms\"\n\
         [syn_ack]\n{promise}\n\
         [records]\nfile = \"records.txt\"\n\
         [[port]]\nname = \"client\"\ndevice = \"net_null0\"\nmtu = {}\naddresses = [{}]\n\
         [[port]]\nname = \"server\"\ndevice = \"net_null1\"\nmtu = {}\naddresses = [{}]\n",
        if scenario.verify_all { "all" } else { "acted" },
        scenario.time_wait_ms,
        scenario.client_mtu,
        address("10.0.0.9/24", "fd00::9/64"),
        scenario.server_mtu,
        address("10.1.0.9/24", "fd01::9/64"),
    );
    let accept = match scenario.headers.incoming {
        Incoming::Off => "",
        Incoming::Optional => "proxy_protocol = { accept = \"optional\", from = [\"10.0.0.0/24\", \"fd00::/64\"] }\n",
        Incoming::Required => "proxy_protocol = { accept = \"required\", from = [\"10.0.0.0/24\", \"fd00::/64\"] }\n",
    };
    let send = match scenario.headers.outgoing {
        None => "",
        Some(1) => "proxy_protocol = { send = \"v1\" }\n",
        Some(_) => "proxy_protocol = { send = \"v2\", tlvs = [\"incoming\", \"unique_id\", \"crc32c\"] }\n",
    };
    let families = [
        ("4", "6", "10.0.0.9:80", "10.1.0.10"),
        ("6", "4", "[fd00::9]:80", "[fd01::10"),
    ];
    let mut servers = Vec::new();
    for (own, other, listener, server) in families.iter().take(1 + usize::from(v6)) {
        let bracket = if *own == "6" { "]" } else { "" };
        let of_family: Vec<String> = (0..3)
            .map(|n| format!("{{ name = \"s{own}{n}\", address = \"{server}{n}{bracket}:{SERVER_PORT}\" }}"))
            .collect();
        let default = match scenario.families {
            Families::Own => own,
            Families::Other => other,
            Families::Both => "both",
        };
        write!(
            text,
            "[[listener]]\nname = \"l{own}\"\naddresses = [\"{listener}\"]\ndefault = \"p{default}\"\n\
             bind = \"{bind}\"\n{accept}[[pool]]\nname = \"p{own}\"\n{send}local_ports = \"40000-{last_port}\"\nservers = [{}]\n",
            of_family.join(", ")
        )
        .expect("a string grows");
        servers.extend(of_family);
    }
    if scenario.families == Families::Both {
        write!(
            text,
            "[[pool]]\nname = \"pboth\"\n{send}local_ports = \"40000-{last_port}\"\nservers = [{}]\n",
            servers.join(", ")
        )
        .expect("a string grows");
    }
    text
}

impl Engine {
    pub fn new(scenario: &Scenario, random: &mut Random, now: Instant) -> Self {
        let text = config_text(scenario);
        let config = Config::parse(&text, "sim").unwrap_or_else(|error| panic!("{error}\n{text}"));
        let mtus = [scenario.client_mtu, scenario.server_mtu];
        let ends = [0_u8, 1].map(|n| {
            let (near, far) = LoopbackPort::pair(PortId(n), PortId(100 + n), CABLE);
            (near.with_mtu(mtus[usize::from(n)]), far)
        });
        let [first, second] = ends;
        let (near, far) = ([first.0, second.0], [first.1, second.1]);
        let macs = near.each_ref().map(Port::mac);
        let topology = Arc::new(Topology::from_config(&config, &macs).expect("the configuration was checked"));
        let neighbours = Arc::new(SharedNeighbours::new(&topology));
        let station = Station::new(
            Arc::clone(&topology),
            Arc::clone(&neighbours),
            &[PortId(0), PortId(1)],
            random.bits(),
            now,
        );
        let mut settings = config.core_settings(0, &macs, |server| {
            topology.next_hop_to(server).map_or(usize::MAX, |id| id.index())
        });
        if let Some(chunks) = scenario.held_chunks {
            settings.capacity.reassembly_memory = usize::from(chunks) * HELD_CHUNK;
            settings.capacity.reassembly_quota = 100;
        }
        let pool = HeapPool::new(BUFFERS, 14 + usize::from(scenario.client_mtu.max(scenario.server_mtu)));
        let complaints = Complaints::default();
        let selector = Selector {
            plans: scenario.connections.clone().into(),
            binding: scenario.binding,
            headers: scenario.headers,
            families: scenario.families,
            complaints: Arc::clone(&complaints),
        };
        let rewriter = Rewriter {
            is_rewritten: scenario.is_rewritten,
            complaints: Arc::clone(&complaints),
        };
        let secrets = Secrets {
            cookie: [random.bits(), random.bits()],
            table: [random.bits(), random.bits()],
            isn: random.bits().to_le_bytes().repeat(2).try_into().expect("16 bytes"),
            timestamp: random.bits() as u32,
        };
        let (sender, records) = record_ring(4_096);
        let parts = CoreParts {
            settings,
            pool: pool.clone(),
            selector: Inspected::new(selector, rewriter),
            next_hops: neighbours,
            upstream: Upstream::new(&config.upstream_settings(), 0),
            records: Some(sender),
            secrets: &secrets,
        };
        let proxy = Proxy::new(parts, now);
        let (counters, graph) = GraphCounters::new();
        let (task, handle) = pipeline::build(near.map(share).into(), proxy, station, counters);
        Engine {
            task: Box::new(task),
            handle,
            far,
            pool,
            records,
            graph,
            complaints,
        }
    }

    /// Puts a frame on the cable to a port. A frame that does not fit the cable or its buffers is lost.
    pub fn receive(&mut self, port: usize, frame: &[u8]) {
        let Some(mut buffer) = self.pool.take() else { return };
        if buffer.append(frame.len()).is_err() {
            return;
        }
        buffer.data_mut().copy_from_slice(frame);
        let mut one = ArrayVec::new();
        one.push(buffer);
        self.far[port].transmit(&mut one);
    }

    /// Runs the graph until it has nothing to do; `sent` gets the frames that leave, with their ports.
    pub fn run(&mut self, now: Instant, mut sent: impl FnMut(usize, Vec<u8>)) {
        loop {
            let work = self.task.run(now);
            let mut moved = false;
            for port in 0..2 {
                let mut burst: ArrayVec<_, BURST> = ArrayVec::new();
                while self.far[port].receive(&mut burst) > 0 {
                    moved = true;
                    for buffer in burst.drain(..) {
                        sent(port, buffer.data().to_vec());
                    }
                }
            }
            if work.is_none() && !moved {
                return;
            }
        }
    }

    pub fn next_deadline(&self) -> Option<Instant> {
        self.task.next_deadline()
    }

    pub fn records(&mut self, mut each: impl FnMut(&SessionRecord)) {
        self.records.drain(|record| each(record));
    }

    pub fn tally(&self) -> Arc<Tally> {
        self.handle.look(Proxy::tally)
    }

    pub fn usage(&self) -> Usage {
        self.handle.look(Proxy::usage)
    }

    /// What was not given back or is wrong, once everything should be over.
    pub fn leaks(&self) -> Vec<String> {
        let mut leaks = self.complaints.lock().expect("one thread").clone();
        if self.usage() != Usage::default() {
            leaks.push(format!("still in use: {:?}", self.usage()));
        }
        let (available, capacity) = (self.pool.available(), self.pool.capacity());
        if available != capacity {
            leaks.push(format!("{available} of {capacity} buffers are back"));
        }
        if self.graph.held() != 0 {
            leaks.push(format!("the graph has lost count of {} packets", self.graph.held()));
        }
        if self.records.records_lost() > 0 {
            leaks.push(format!("{} records lost", self.records.records_lost()));
        }
        leaks
    }

    /// Dropped packets by reason, the graph's and the core's.
    pub fn drops(&self) -> Vec<(&'static str, u64)> {
        let graph = self.graph.drops.snapshot();
        let mut drops: Vec<_> = graph.nonzero().map(|(reason, count)| (reason.name(), count)).collect();
        self.handle.look(|proxy| {
            drops.extend(proxy.drops().nonzero().map(|(reason, count)| (reason.name(), count)));
        });
        drops
    }
}
