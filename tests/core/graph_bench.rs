//! A core with its graph, and the kernel behind its ports, in virtual time.

use crate::harness::{CONFIG, Calls, PROXY_MAC, Receive, Selector};
use e2d2::buffer::{BufferPool, HeapBuffer, PacketBuffer};
use e2d2::port::PortId;
use e2d2::time::Instant;
use e2d2::wire::MacAddr;
use e2d2::wire::frame;
use netfcts::record::SessionRecord;
use proxyengine::callbacks::SelectServer;
use proxyengine::config::Config;
use proxyengine::kernel::{
    Claims, FrameReceiver, FrameSender, KernelCounterReader, KernelDrop, KernelEnd, KernelEvent, Lane, frame_ring,
};
use splice::Secrets;
use splice::drop_reason::DropReason;
use std::sync::Arc;
use std::time::Duration;
use testkit::Segment;

#[path = "one_core.rs"]
mod one_core;

pub use one_core::{OneCore, Own, macs};

/// Packets that each cable holds each way.
pub const CABLE: usize = 256;

/// A core, and what is around it.
pub struct GraphBench<S = Selector> {
    pub core: OneCore<S>,
    pub now: Instant,
    /// What the selector was asked.
    pub calls: Calls,
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
        let now = Instant::ZERO + Duration::from_secs(100);
        let (kernel, end) = FakeKernel::new(&config, &macs(), now);
        let own = Own {
            selector,
            secrets: Secrets {
                cookie: [1, u64::from(secret)],
                table: [3, 4],
                isn: [secret; 16],
                timestamp: 7_000_000,
            },
            among: None,
            kernel: end,
        };
        GraphBench {
            core: OneCore::new(&config, own, now),
            now,
            calls: Calls::default(),
            kernel,
        }
    }

    /// Puts frames on the cables, runs the graph until it is idle, and takes what it sent.
    pub fn exchange(&mut self, frames: impl IntoIterator<Item = (PortId, HeapBuffer)>) -> Vec<HeapBuffer> {
        for (port, buffer) in frames {
            self.core.put(port, buffer);
        }
        let mut sent = Vec::new();
        for round in 0.. {
            assert!(round < 1000, "the graph still finds work after 1000 rounds");
            if !self.core.run(self.now, |buffer| sent.push(buffer)) {
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
        let buffer = self
            .core
            .pool
            .take_copy(frame)
            .expect("a buffer for the test's own frame");
        tcp_segments(&self.exchange([(port, buffer)]))
    }

    /// The records of connections that have ended since the last call.
    pub fn records(&mut self) -> Vec<SessionRecord> {
        let mut records = Vec::new();
        self.core.records.drain(|record| records.push(*record));
        records
    }

    /// What the proxy has dropped for this reason.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.core.handle.look(|proxy| {
            let mut drops = proxy.drops().iter();
            drops.find(|(counted, _)| *counted == reason).map_or(0, |(_, n)| n)
        })
    }

    /// What the graph has dropped for this reason, before or behind the proxy.
    pub fn graph_dropped(&self, reason: e2d2::fate::DropReason) -> u64 {
        self.core
            .reader
            .drops
            .snapshot()
            .iter()
            .find(|(counted, _)| *counted == reason)
            .map_or(0, |(_, n)| n)
    }

    /// Ends everything and checks that nothing is held.
    pub fn assert_all_returned(&mut self, case: &str) {
        self.core.handle.finish();
        for _ in 0..10 {
            self.exchange([]);
            self.now += Duration::from_secs(10);
        }
        self.core.assert_all_returned(case);
    }
}

impl<S: SelectServer> Receive for GraphBench<S> {
    fn receive(&mut self, segment: &Segment) -> Vec<Segment> {
        let port = PortId(u8::from(segment.to.mac.0[5] == PROXY_MAC[1]));
        let frame = segment.emit(&mut self.core.pool);
        tcp_segments(&self.exchange([(port, frame)]))
    }
}

fn tcp_segments(frames: &[HeapBuffer]) -> Vec<Segment> {
    let is_tcp = |buffer: &&HeapBuffer| matches!(frame::parse(buffer.data()), Ok(frame::Kind::Tcp(_)));
    let segments = frames.iter().filter(is_tcp);
    segments.map(|buffer| Segment::read(buffer.data())).collect()
}
