//! Several cores, each the whole graph on heap memory with cables of its own, and the rings between them. The test decides
//! on which core a frame lands.

use crate::harness::{PROXY_MAC, Receive, Selector};
use arrayvec::ArrayVec;
use e2d2::BURST;
use e2d2::buffer::{BufferPool, HeapBuffer, HeapPool, PacketBuffer, RxInfo};
use e2d2::fate::{GraphCounters, GraphReader};
use e2d2::handover::mesh;
use e2d2::operators::{Task, share};
use e2d2::port::{Port, PortId};
use e2d2::ports::LoopbackPort;
use e2d2::time::Instant;
use e2d2::wire::MacAddr;
use e2d2::wire::frame::{self, Kind};
use netfcts::record::SessionRecord;
use netfcts::ring::{RecordReceiver, record_ring};
use netfcts::steering::{Leg, SteeringPlan, mapped};
use proxyengine::backends::Backends;
use proxyengine::config::{Accept, Bind, Config};
use proxyengine::neighbour::{Interface, Neighbour, SharedNeighbours, Station, Topology};
use proxyengine::pipeline::{self, CoreLinks, Handle};
use proxyengine::proxy::drop_reason::DropReason;
use proxyengine::proxy::settings::Settings;
use proxyengine::proxy::steering::{CoreSteering, SteeringEvent, SteeringTrouble};
use proxyengine::proxy::{Proxy, Secrets, Usage};
use std::sync::Arc;
use std::time::Duration;
use testkit::Segment;

/// Where frames land.
#[derive(Clone, Copy, Debug)]
pub enum Landing {
    /// On the core that owns them.
    Owner,
    /// On the one after it.
    Next,
    /// On this one, as behind a port with one queue.
    Core(usize),
    /// Anywhere, from this seed on.
    Anywhere(u64),
}

/// One core.
struct OneCore {
    task: Box<dyn Task>,
    handle: Handle<HeapPool, Selector>,
    far: [LoopbackPort<HeapBuffer>; 2],
    pool: HeapPool,
    reader: GraphReader,
    records: RecordReceiver,
}

/// Several of them.
pub struct ManyCores {
    cores: Vec<OneCore>,
    pub plan: Arc<SteeringPlan>,
    pub landing: Landing,
    pub now: Instant,
    /// What the ports say of a packet's hash, from the right one.
    pub hash: Option<fn(u32) -> u32>,
}

impl ManyCores {
    /// So many cores of this configuration, steered by what `make` makes of the plan of a hash of our own.
    pub fn new(text: &str, cores: usize, landing: Landing, make: impl FnOnce(SteeringPlan) -> SteeringPlan) -> Self {
        Self::with_rings(text, (cores, 256), landing, make)
    }

    /// The same with so many places in each ring.
    pub fn with_rings(
        text: &str,
        (cores, ring): (usize, usize),
        landing: Landing,
        make: impl FnOnce(SteeringPlan) -> SteeringPlan,
    ) -> Self {
        let config = Config::parse(text, "test").unwrap_or_else(|error| panic!("{error}"));
        let mut plan = SteeringPlan::software(cores, 0x1234_5678);
        let lends = config.servers().iter().any(|server| server.transparent);
        for address in config.listeners().iter().flat_map(|listener| &listener.addresses) {
            plan.add_service(mapped(address.ip), address.ports.clone(), lends);
        }
        for local in config.servers().iter().flat_map(|server| &server.local) {
            plan.add_address(mapped(local.ip));
        }
        let plan = Arc::new(make(plan));
        let asks_around = lends && config.listeners().iter().any(|listener| listener.accept != Accept::Off);
        let now = Instant::ZERO + Duration::from_secs(100);
        let links = mesh(cores, ring).into_iter().enumerate();
        let one = |(core, links): (usize, CoreLinks<HeapBuffer>)| {
            let steering = CoreSteering {
                plan: Arc::clone(&plan),
                core,
                asks_around,
            };
            one_core(&config, steering, links, now)
        };
        ManyCores {
            cores: links.map(one).collect(),
            plan,
            landing,
            now,
            hash: None,
        }
    }

    /// Where a segment lands.
    fn core_of(&mut self, segment: &Segment) -> usize {
        let owner = self.plan.owner(&leg(segment)).unwrap_or(0);
        match &mut self.landing {
            Landing::Owner => owner,
            Landing::Next => (owner + 1) % self.cores.len(),
            Landing::Core(core) => *core,
            Landing::Anywhere(state) => {
                *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (*state >> 33) as usize % self.cores.len()
            }
        }
    }

    /// Puts a frame on a cable of a core.
    pub fn put(&mut self, core: usize, port: PortId, frame: &[u8]) {
        self.put_hashed(core, port, frame, None);
    }

    fn put_hashed(&mut self, core: usize, port: PortId, frame: &[u8], rss_hash: Option<u32>) {
        let core = &mut self.cores[core];
        let mut buffer = core.pool.take_copy(frame).expect("a buffer for the test's own frame");
        buffer.set_rx_info(RxInfo {
            rss_hash,
            ..RxInfo::default()
        });
        let mut burst: ArrayVec<HeapBuffer, BURST> = ArrayVec::new();
        burst.push(buffer);
        core.far[usize::from(port.0)].transmit(&mut burst);
        assert!(burst.is_empty(), "the cable is full");
    }

    /// Runs all cores until none finds work, and takes the frames that they have sent.
    pub fn run(&mut self) -> Vec<Vec<u8>> {
        let mut sent = Vec::new();
        for round in 0.. {
            assert!(round < 1000, "the cores still find work after 1000 rounds");
            let mut worked = false;
            for core in &mut self.cores {
                worked |= !core.task.run(self.now).is_none();
                for far in &mut core.far {
                    let mut burst: ArrayVec<HeapBuffer, BURST> = ArrayVec::new();
                    while far.receive(&mut burst) > 0 {
                        sent.extend(burst.drain(..).map(|buffer| buffer.data().to_vec()));
                    }
                }
            }
            if !worked {
                break;
            }
        }
        sent
    }

    /// Lets time pass in steps of at most 50 ms and returns the TCP segments that are sent meanwhile.
    pub fn wait(&mut self, time: Duration) -> Vec<Segment> {
        let end = self.now + time;
        let mut sent = Vec::new();
        while self.now < end {
            self.now += Duration::from_millis(50).min(end - self.now);
            sent.extend(segments(self.run()));
        }
        sent
    }

    /// What all cores have counted.
    pub fn counted(&self, event: SteeringEvent) -> u64 {
        let of = |core: &OneCore| {
            core.handle
                .look(|proxy| proxy.steering().map_or(0, |counters| counters[event]))
        };
        self.cores.iter().map(of).sum()
    }

    /// What the cores have to say of their ports, each at most one thing.
    pub fn troubles(&self) -> Vec<SteeringTrouble> {
        let of = |core: &OneCore| core.handle.take_steering_trouble();
        self.cores.iter().filter_map(of).collect()
    }

    /// What all cores have dropped for this reason.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        let of = |core: &OneCore| core.handle.look(|proxy| proxy.drops()[reason]);
        self.cores.iter().map(of).sum()
    }

    /// Connections open on each core.
    pub fn open(&self) -> Vec<usize> {
        let of = |core: &OneCore| core.handle.look(|proxy| proxy.usage().connections);
        self.cores.iter().map(of).collect()
    }

    /// The records of connections that have ended since the last call, by core.
    pub fn records(&mut self) -> Vec<Vec<SessionRecord>> {
        let of = |core: &mut OneCore| {
            let mut records = Vec::new();
            core.records.drain(|record| records.push(*record));
            records
        };
        self.cores.iter_mut().map(of).collect()
    }

    /// Takes no more connections.
    pub fn begin_drain(&self) {
        self.cores.iter().for_each(|core| core.handle.begin_drain());
    }

    /// Ends everything on all cores and checks that nothing is held, neither here nor on the way between them.
    pub fn assert_all_returned(&mut self) -> Vec<Segment> {
        self.cores.iter().for_each(|core| core.handle.finish());
        let mut sent = Vec::new();
        for _ in 0..10 {
            sent.extend(segments(self.run()));
            self.now += Duration::from_secs(10);
        }
        for (index, core) in self.cores.iter().enumerate() {
            assert!(core.handle.is_finished(), "core {index}");
            assert_eq!(
                core.handle.look(|proxy| proxy.usage()),
                Usage::default(),
                "core {index}"
            );
            assert_eq!(core.reader.held(), 0, "core {index}");
            assert_eq!(core.pool.available(), core.pool.capacity(), "core {index}");
        }
        sent
    }
}

impl Receive for ManyCores {
    fn receive(&mut self, segment: &Segment) -> Vec<Segment> {
        let core = self.core_of(segment);
        let port = PortId(u8::from(segment.to.mac.0[5] == PROXY_MAC[1]));
        let hash = self.plan.rss_hash(&leg(segment));
        let hash = self.hash.and_then(|told| hash.map(told));
        self.put_hashed(core, port, &segment.frame(), hash);
        segments(self.run())
    }
}

/// The leg that a segment to us is on.
pub fn leg(segment: &Segment) -> Leg {
    Leg {
        remote: mapped(segment.from.address.ip()),
        local: mapped(segment.to.address.ip()),
        remote_port: segment.from.address.port(),
        local_port: segment.to.address.port(),
    }
}

fn segments(frames: Vec<Vec<u8>>) -> Vec<Segment> {
    let is_tcp = |frame: &&Vec<u8>| matches!(frame::parse(frame), Ok(Kind::Tcp(_)));
    frames.iter().filter(is_tcp).map(|frame| Segment::read(frame)).collect()
}

fn one_core(config: &Config, steering: CoreSteering, links: CoreLinks<HeapBuffer>, now: Instant) -> OneCore {
    let macs = PROXY_MAC.map(|mac| MacAddr([2, 0, 0, 0, 0, mac]));
    let interface = |(port, &mac): (&proxyengine::config::PortConfig, &MacAddr)| Interface {
        port: port.id,
        mac,
        addresses: port.addresses.clone(),
        aliases: vec![],
    };
    let interfaces = config.ports().iter().zip(&macs).map(interface).collect();
    let neighbours: Vec<Neighbour> = (config.servers().iter())
        .map(|server| Neighbour {
            port: server.next_hop.port,
            address: server.next_hop.ip,
            mac: Some(MacAddr([2, 0, 0, 0, 0, 0x50 + server.id.0 as u8])),
        })
        .collect();
    let topology = Arc::new(Topology::new(interfaces, &neighbours).expect("a topology"));
    let shared = Arc::new(SharedNeighbours::new(&topology));
    let leads: &[PortId] = if steering.core == 0 {
        &[PortId(0), PortId(1)]
    } else {
        &[]
    };
    let station = Station::new(Arc::clone(&topology), Arc::clone(&shared), leads, 1, now);
    let index = steering.core;
    let mut settings = Settings::from_config(config, index as u8, &macs, |server| {
        let hop = topology.next_hop_of(server.next_hop.port, server.next_hop.ip);
        hop.expect("a next hop").index()
    })
    .among_others(steering);
    // Nobody here answers unasked.
    settings.promises.probe = false;
    let pool = HeapPool::new(2048, 2048);
    let secrets = Secrets {
        cookie: [1, 6],
        table: [3 + index as u64, 4, 5],
        isn: [6 + index as u8; 16],
        timestamp: 7_000_000 * (index as u32 + 1),
    };
    let (sender, records) = record_ring(1024);
    let selector = Selector {
        asked: Default::default(),
        calls: Arc::default(),
        // A SYN says nothing that a server could be chosen by.
        pool_only: config.listeners().iter().any(|listener| listener.bind == Bind::Syn),
    };
    let backends = Backends::new(config, index);
    let proxy = Proxy::new(
        settings,
        pool.clone(),
        selector,
        shared,
        backends,
        Some(sender),
        &secrets,
        now,
    );
    let (near0, far0) = LoopbackPort::pair(PortId(0), PortId(100), 256);
    let (near1, far1) = LoopbackPort::pair(PortId(1), PortId(101), 256);
    let (counters, reader) = GraphCounters::new();
    let ports = vec![share(near0.with_mac(macs[0])), share(near1.with_mac(macs[1]))];
    let (task, handle) = pipeline::build_linked(ports, proxy, station, counters, Some(links), None);
    OneCore {
        task: Box::new(task),
        handle,
        far: [far0, far1],
        pool,
        reader,
        records,
    }
}
