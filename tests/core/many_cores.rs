//! Several cores, each the whole graph on heap memory with cables of its own, and the rings between them. The test decides
//! on which core a frame lands.

use crate::graph_bench::{OneCore, Own};
use crate::harness::{PROXY_MAC, Receive, Selector};
use e2d2::buffer::{BufferPool, HeapBuffer, PacketBuffer, RxInfo};
use e2d2::handover::mesh;
use e2d2::port::PortId;
use e2d2::time::Instant;
use e2d2::wire::frame::{self, Kind};
use netfcts::FourTuple;
use netfcts::leg::mapped;
use netfcts::record::SessionRecord;
use netfcts::steering::SteeringPlan;
use proxyengine::config::{AcceptProxy, Bind, Config};
use proxyengine::pipeline::CoreLinks;
use splice::drop_reason::DropReason;
use splice::settings::CoreSteering;
use splice::steering::{SteeringEvent, SteeringTrouble};
use splice::{Proxy, Secrets};
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

/// Several cores.
pub struct ManyCores {
    cores: Vec<OneCore<Selector>>,
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
        let is_transparent = config.servers().iter().any(|server| server.transparent);
        for address in config.listeners().iter().flat_map(|listener| &listener.addresses) {
            plan.add_service(mapped(address.ip), address.ports.clone(), is_transparent);
        }
        for local in config.servers().iter().flat_map(|server| &server.local) {
            plan.add_address(mapped(local.ip));
        }
        let plan = Arc::new(make(plan));
        let asks_around = is_transparent
            && config
                .listeners()
                .iter()
                .any(|listener| listener.accept != AcceptProxy::Off);
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
        core.put(port, buffer);
    }

    /// Runs all cores until none finds work, and takes the frames that they have sent.
    pub fn run(&mut self) -> Vec<Vec<u8>> {
        let mut sent = Vec::new();
        for round in 0.. {
            assert!(round < 1000, "the cores still find work after 1000 rounds");
            let mut worked = false;
            for core in &mut self.cores {
                worked |= core.run(self.now, |buffer| sent.push(buffer.data().to_vec()));
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
        let of = |core: &OneCore<Selector>| {
            core.handle
                .look(|proxy| proxy.steering().map_or(0, |counters| counters[event]))
        };
        self.cores.iter().map(of).sum()
    }

    /// What the cores have to say of their ports, each at most one thing.
    pub fn troubles(&self) -> Vec<SteeringTrouble> {
        let of = |core: &OneCore<Selector>| core.handle.change(Proxy::take_steering_trouble);
        self.cores.iter().filter_map(of).collect()
    }

    /// What all cores have dropped for this reason.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        let of = |core: &OneCore<Selector>| core.handle.look(|proxy| proxy.drops()[reason]);
        self.cores.iter().map(of).sum()
    }

    /// Connections open on each core.
    pub fn open(&self) -> Vec<usize> {
        let of = |core: &OneCore<Selector>| core.handle.look(|proxy| proxy.usage().connections);
        self.cores.iter().map(of).collect()
    }

    /// The records of connections that have ended since the last call, by core.
    pub fn records(&mut self) -> Vec<Vec<SessionRecord>> {
        let of = |core: &mut OneCore<Selector>| {
            let mut records = Vec::new();
            core.records.drain(|record| records.push(*record));
            records
        };
        self.cores.iter_mut().map(of).collect()
    }

    /// Takes no more connections.
    pub fn begin_drain(&self) {
        self.cores
            .iter()
            .for_each(|core| core.handle.change(Proxy::begin_drain));
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
            core.assert_all_returned(&format!("core {index}"));
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
pub fn leg(segment: &Segment) -> FourTuple {
    FourTuple {
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

fn one_core(config: &Config, steering: CoreSteering, links: CoreLinks<HeapBuffer>, now: Instant) -> OneCore<Selector> {
    let index = steering.core;
    let own = Own {
        selector: Selector {
            asked: Default::default(),
            calls: Arc::default(),
            // A SYN says nothing that a server could be chosen by.
            pool_only: config.listeners().iter().any(|listener| listener.bind == Bind::Syn),
        },
        secrets: Secrets {
            cookie: [1, 6],
            table: [3 + index as u64, 4],
            isn: [6 + index as u8; 16],
            timestamp: 7_000_000 * (index as u32 + 1),
        },
        among: Some((steering, links)),
        kernel: None,
    };
    OneCore::new(config, own, now)
}
