//! The whole graph of a core on heap memory, between two cables whose far ends the test holds.

use crate::harness::{CONFIG, Calls, PROXY_MAC, Receive, Selector};
use arrayvec::ArrayVec;
use e2d2::BURST;
use e2d2::buffer::{BufferPool, HeapBuffer, HeapPool, PacketBuffer};
use e2d2::fate::{GraphCounters, GraphReader};
use e2d2::operators::{Task, share};
use e2d2::port::{Port, PortId};
use e2d2::ports::LoopbackPort;
use e2d2::time::Instant;
use e2d2::wire::MacAddr;
use e2d2::wire::frame;
use netfcts::record::SessionRecord;
use netfcts::ring::{RecordReceiver, record_ring};
use proxyengine::backends::Backends;
use proxyengine::callbacks::SelectServer;
use proxyengine::config::Config;
use proxyengine::kernel::{
    Claims, FrameReceiver, FrameSender, KernelCounterReader, KernelDrop, KernelEnd, KernelEvent, Lane, frame_ring,
};
use proxyengine::neighbour::{Interface, Neighbour, SharedNeighbours, Station, Topology};
use proxyengine::pipeline::{self, Handle};
use proxyengine::proxy::drop_reason::DropReason;
use proxyengine::proxy::settings::Settings;
use proxyengine::proxy::{Proxy, Secrets, Usage};
use std::sync::Arc;
use std::time::Duration;
use testkit::Segment;

/// Packets that each cable holds each way.
pub const CABLE: usize = 256;

/// The graph, and what is around it.
pub struct GraphBench<S = Selector> {
    pub task: Box<dyn Task>,
    pub handle: Handle<HeapPool, S>,
    /// The far ends of the cables: the clients' and the servers'.
    pub far: [LoopbackPort<HeapBuffer>; 2],
    pub pool: HeapPool,
    pub now: Instant,
    pub reader: GraphReader,
    /// What the selector was asked.
    pub calls: Calls,
    pub records: RecordReceiver,
    /// The kernel behind the ports that have one.
    pub kernel: FakeKernel,
}

/// The far ends of the way to the kernel.
#[derive(Default)]
pub struct FakeKernel {
    lanes: Vec<(PortId, FrameReceiver, FrameSender)>,
    counters: Vec<KernelCounterReader>,
}

impl FakeKernel {
    /// Bytes of each ring.
    pub const RING: usize = 16 << 10;

    /// With the end of the core, if the configuration has a kernel.
    fn new(config: &Config, macs: &[MacAddr], now: Instant) -> (Self, Option<KernelEnd>) {
        let claims = Claims::new(config, macs);
        if claims.is_empty() {
            return (Self::default(), None);
        }
        let (mut far, mut near) = (Vec::new(), Vec::new());
        for port in config.ports() {
            let Some(kernel) = &port.kernel else { continue };
            let ((to, to_far), (from_far, from)) = (frame_ring(Self::RING), frame_ring(Self::RING));
            far.push((port.id, to_far, from_far));
            near.push(Lane {
                port: port.id,
                to,
                from: Some(from),
                rate: kernel.rate,
            });
        }
        let end = KernelEnd::new(Arc::new(claims), near, Vec::new(), now);
        let counters = end.counter_readers();
        (Self { lanes: far, counters }, Some(end))
    }

    /// What it has received on a port since the last call.
    pub fn received(&mut self, port: PortId) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        for (of, from, _) in &mut self.lanes {
            let mut frame = Vec::new();
            while *of == port && from.pop(&mut frame) {
                frames.push(frame.clone());
            }
        }
        frames
    }

    /// Lets it send a frame out of a port.
    pub fn send(&mut self, port: PortId, frame: &[u8]) {
        let lane = self
            .lanes
            .iter_mut()
            .find(|(of, ..)| *of == port)
            .expect("a kernel there");
        lane.2.push(frame).expect("room in the ring");
    }

    pub fn dropped(&self, reason: KernelDrop) -> u64 {
        self.counters.iter().map(|reader| reader.snapshot().drops[reason]).sum()
    }

    pub fn counted(&self, event: KernelEvent) -> u64 {
        self.counters.iter().map(|reader| reader.snapshot().events[event]).sum()
    }
}

impl GraphBench {
    pub fn new() -> Self {
        Self::with_config(CONFIG)
    }

    pub fn with_config(text: &str) -> Self {
        Self::with_secret(text, 6)
    }

    /// With another secret for cookies and initial sequence numbers.
    pub fn with_secret(text: &str, secret: u8) -> Self {
        let calls = Calls::default();
        let selector = Selector {
            asked: Default::default(),
            calls: Arc::clone(&calls),
            pool_only: false,
        };
        GraphBench {
            calls,
            ..Self::with_selector(text, secret, selector)
        }
    }
}

impl<S: SelectServer> GraphBench<S> {
    /// With a selector of the test's own, whose calls nobody notes.
    pub fn with_selector(text: &str, secret: u8, selector: S) -> Self {
        let config = Config::parse(text, "test").unwrap_or_else(|error| panic!("{error}"));
        let macs = PROXY_MAC.map(|mac| MacAddr([2, 0, 0, 0, 0, mac]));
        let interface = |(port, &mac): (&proxyengine::config::PortConfig, &MacAddr)| Interface {
            port: port.id,
            mac,
            addresses: port.addresses.clone(),
            aliases: vec![],
        };
        let interfaces = config.ports().iter().zip(&macs).map(interface).collect();
        // Static addresses, as those of the other benches: the numbers of the servers.
        let neighbours: Vec<Neighbour> = (config.servers().iter())
            .map(|server| Neighbour {
                port: server.next_hop.port,
                address: server.next_hop.ip,
                mac: Some(MacAddr([2, 0, 0, 0, 0, 0x50 + server.id.0 as u8])),
            })
            .collect();
        let topology = Arc::new(Topology::new(interfaces, &neighbours).expect("a topology"));
        let shared = Arc::new(SharedNeighbours::new(&topology));
        let now = Instant::ZERO + Duration::from_secs(100);
        let station = Station::new(
            Arc::clone(&topology),
            Arc::clone(&shared),
            &[PortId(0), PortId(1)],
            1,
            now,
        );
        let mut settings = Settings::from_config(&config, 0, &macs, |server| {
            topology
                .next_hop_of(server.next_hop.port, server.next_hop.ip)
                .expect("a next hop")
                .index()
        });
        // Nobody here answers unasked.
        settings.promises.probe = false;
        let pool = HeapPool::new(2048, 2048);
        let secrets = Secrets {
            cookie: [1, u64::from(secret)],
            table: [3, 4, 5],
            isn: [secret; 16],
            timestamp: 7_000_000,
        };
        let backends = Backends::new(&config, 0);
        let (sender, records) = record_ring(1024);
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
        let (near0, far0) = LoopbackPort::pair(PortId(0), PortId(100), CABLE);
        let (near1, far1) = LoopbackPort::pair(PortId(1), PortId(101), CABLE);
        let (counters, reader) = GraphCounters::new();
        let ports = vec![share(near0.with_mac(macs[0])), share(near1.with_mac(macs[1]))];
        let (kernel, end) = FakeKernel::new(&config, &macs, now);
        let (task, handle) = pipeline::build_linked(ports, proxy, station, counters, None, end);
        GraphBench {
            task: Box::new(task),
            handle,
            far: [far0, far1],
            pool,
            now,
            reader,
            calls: Calls::default(),
            records,
            kernel,
        }
    }

    /// Puts frames on the cables, runs the graph until it is idle, and takes what it sent.
    pub fn exchange(&mut self, frames: impl IntoIterator<Item = (PortId, HeapBuffer)>) -> Vec<HeapBuffer> {
        for (port, buffer) in frames {
            let mut burst: ArrayVec<HeapBuffer, BURST> = ArrayVec::new();
            burst.push(buffer);
            self.far[usize::from(port.0)].transmit(&mut burst);
            assert!(burst.is_empty(), "the cable is full");
        }
        let mut sent = Vec::new();
        for round in 0.. {
            assert!(round < 1000, "the graph still finds work after 1000 rounds");
            let worked = !self.task.run(self.now).is_none();
            for far in &mut self.far {
                let mut burst: ArrayVec<HeapBuffer, BURST> = ArrayVec::new();
                while far.receive(&mut burst) > 0 {
                    sent.extend(burst.drain(..));
                }
            }
            if !worked {
                return sent;
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
            sent.extend(tcp_segments(&self.exchange([])));
        }
        sent
    }

    /// Lets a frame come in by a port as it is, and returns the TCP segments sent in answer.
    pub fn receive_bytes(&mut self, port: PortId, frame: &[u8]) -> Vec<Segment> {
        let buffer = self.pool.take_copy(frame).expect("a buffer for the test's own frame");
        tcp_segments(&self.exchange([(port, buffer)]))
    }

    /// The records of connections that have ended since the last call.
    pub fn records(&mut self) -> Vec<SessionRecord> {
        let mut records = Vec::new();
        self.records.drain(|record| records.push(*record));
        records
    }

    /// What the proxy has dropped for this reason.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.handle.look(|proxy| {
            let mut drops = proxy.drops().iter();
            drops.find(|(counted, _)| *counted == reason).map_or(0, |(_, n)| n)
        })
    }

    /// What the graph has dropped for this reason, before or behind the proxy.
    pub fn graph_dropped(&self, reason: e2d2::fate::DropReason) -> u64 {
        self.reader
            .drops
            .snapshot()
            .iter()
            .find(|(counted, _)| *counted == reason)
            .map_or(0, |(_, n)| n)
    }

    /// Ends everything and checks that nothing is held.
    pub fn assert_all_returned(&mut self, case: &str) {
        self.handle.finish();
        for _ in 0..10 {
            self.exchange([]);
            self.now += Duration::from_secs(10);
        }
        assert!(self.handle.is_finished(), "{case}");
        assert_eq!(self.handle.look(|proxy| proxy.usage()), Usage::default(), "{case}");
        assert_eq!(self.reader.held(), 0, "{case}");
        assert_eq!(self.pool.available(), self.pool.capacity(), "{case}");
    }
}

impl<S: SelectServer> Receive for GraphBench<S> {
    fn receive(&mut self, segment: &Segment) -> Vec<Segment> {
        let port = PortId(u8::from(segment.to.mac.0[5] == PROXY_MAC[1]));
        let frame = segment.emit(&mut self.pool);
        tcp_segments(&self.exchange([(port, frame)]))
    }
}

fn tcp_segments(frames: &[HeapBuffer]) -> Vec<Segment> {
    let is_tcp = |buffer: &&HeapBuffer| matches!(frame::parse(buffer.data()), Ok(frame::Kind::Tcp(_)));
    let segments = frames.iter().filter(is_tcp);
    segments.map(|buffer| Segment::read(buffer.data())).collect()
}
