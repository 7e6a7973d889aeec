//! A client and a server generator on the two ends of a cable, in virtual time.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "a module of several test crates, each of which uses a part"
)]

use std::collections::VecDeque;
use std::time::Duration;

use arrayvec::ArrayVec;
use e2d2::BURST;
use e2d2::buffer::{BufferPool, HeapBuffer, HeapPool, PacketBuffer};
use e2d2::port::{Capabilities, Port, PortId};
use e2d2::ports::LoopbackPort;
use e2d2::time::Instant;
use e2d2::wire::MacAddr;
use trafficengine::stats::{ClientStats, ServerStats};
use trafficengine::{
    ClientSettings, Close, Format, Generator, GeneratorSettings, LinkSettings, Listener, Pace, ServerSettings, Span,
    TcpSettings,
};

/// What a rough port does to what it receives, each of 1000 packets.
#[derive(Clone, Copy, Default)]
pub struct Roughness {
    pub lost: u64,
    pub repeated: u64,
    pub reordered: u64,
}

/// A port that loses, repeats and delays what it receives, by a seeded choice, and all of it by a fixed time.
pub struct Rough {
    inner: LoopbackPort,
    roughness: Roughness,
    random: u64,
    pool: HeapPool,
    ready: VecDeque<(Instant, HeapBuffer)>,
    late: Option<HeapBuffer>,
    pub delay: Duration,
    pub now: Instant,
    pub dropped: u64,
}

impl Rough {
    pub fn new(inner: LoopbackPort, seed: u64, roughness: Roughness) -> Rough {
        Rough {
            inner,
            roughness,
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            pool: HeapPool::new(4096, 2048),
            ready: VecDeque::new(),
            late: None,
            delay: Duration::ZERO,
            now: Instant::ZERO,
            dropped: 0,
        }
    }

    fn chance(&mut self, of_thousand: u64) -> bool {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 20) % 1000 < of_thousand
    }

    fn take_in(&mut self, buffer: HeapBuffer) {
        let at = self.now + self.delay;
        if self.chance(self.roughness.lost) {
            self.dropped += 1;
            return;
        }
        if self.chance(self.roughness.repeated) {
            self.ready
                .extend(self.pool.take_copy(buffer.data()).map(|copy| (at, copy)));
        }
        if self.late.is_none() && self.chance(self.roughness.reordered) {
            self.late = Some(buffer);
            return;
        }
        self.ready.push_back((at, buffer));
        self.ready.extend(self.late.take().map(|late| (at, late)));
    }
}

impl Port for Rough {
    type Buffer = HeapBuffer;

    fn id(&self) -> PortId {
        self.inner.id()
    }

    fn mac(&self) -> MacAddr {
        self.inner.mac()
    }

    fn mtu(&self) -> u16 {
        self.inner.mtu()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn receive(&mut self, into: &mut ArrayVec<HeapBuffer, BURST>) -> usize {
        let mut fresh = ArrayVec::new();
        self.inner.receive(&mut fresh);
        fresh.into_iter().for_each(|buffer| self.take_in(buffer));
        let mut count = 0;
        while !into.is_full() && self.ready.front().is_some_and(|(at, _)| *at <= self.now) {
            into.extend(self.ready.pop_front().map(|(_, buffer)| buffer));
            count += 1;
        }
        count
    }

    fn transmit(&mut self, from: &mut ArrayVec<HeapBuffer, BURST>) -> usize {
        self.inner.transmit(from)
    }
}

pub fn client_settings() -> ClientSettings {
    ClientSettings {
        sources: vec!["10.0.0.10-10.0.0.13".parse().unwrap()],
        ports: 1024..=65535,
        targets: vec!["10.0.0.1:80".parse().unwrap()],
        format: Format::Text,
        rounds: 1,
        request: 16,
        response: 8,
        close: Close::Server,
        keys: 1,
        servers: 1,
        check: true,
        pace: Pace::Closed { open: 10 },
        span: Span {
            ramp: Duration::ZERO,
            duration: None,
            total: Some(100),
        },
        max_open: 1000,
        depth: 64,
        idle: Duration::from_secs(120),
        tcp: [
            TcpSettings::default(),
            TcpSettings {
                mss: 1440,
                ..TcpSettings::default()
            },
        ],
        seed: 1,
    }
}

pub fn server_settings(client: &ClientSettings) -> ServerSettings {
    ServerSettings {
        listeners: client
            .targets
            .iter()
            .map(|address| Listener {
                address: *address,
                id: 0,
            })
            .collect(),
        format: client.format.clone(),
        request: client.request,
        response: client.response,
        check: true,
        proxy_header: false,
        max_open: client.max_open,
        idle: Duration::from_secs(120),
        tcp: client.tcp.clone(),
        seed: 2,
    }
}

/// Two generators, a cable, a clock.
pub struct Rig {
    pub client: Generator<HeapBuffer>,
    pub server: Generator<HeapBuffer>,
    pub client_port: Rough,
    pub server_port: Rough,
    pub pool: HeapPool,
    pub now: Instant,
}

impl Rig {
    pub fn new(client: ClientSettings, server: ServerSettings, roughness: Roughness, seed: u64) -> Rig {
        let link = LinkSettings::default();
        Rig::with_link(client, server, link, roughness, seed)
    }

    pub fn with_link(
        client: ClientSettings,
        server: ServerSettings,
        link: LinkSettings,
        roughness: Roughness,
        seed: u64,
    ) -> Rig {
        let (client_end, server_end) = LoopbackPort::pair(PortId(0), PortId(1), 1024);
        let settings = GeneratorSettings {
            link,
            verify_checksums: true,
            ..GeneratorSettings::default()
        };
        let now = Instant::from_nanos(1_000_000_000);
        Rig {
            client: Generator::new(
                GeneratorSettings {
                    client: Some(client),
                    ..settings.clone()
                },
                now,
            ),
            server: Generator::new(
                GeneratorSettings {
                    server: Some(server),
                    ..settings
                },
                now,
            ),
            client_port: Rough::new(client_end, seed, roughness),
            server_port: Rough::new(server_end, seed + 1000, roughness),
            pool: HeapPool::new(4096, 2048),
            now,
        }
    }

    /// Lets `step` pass and polls both ends.
    pub fn step(&mut self, step: Duration) {
        self.now += step;
        (self.client_port.now, self.server_port.now) = (self.now, self.now);
        let _work = self.client.poll(self.now, &mut self.client_port, &mut self.pool);
        let _work = self.server.poll(self.now, &mut self.server_port, &mut self.pool);
    }

    /// Runs until the load is done, in steps of `step`; panics after `limit`. Returns the time taken.
    pub fn run(&mut self, step: Duration, limit: Duration) -> Duration {
        let began = self.now;
        while !self.client.is_done(self.now) {
            self.step(step);
            let connections = &self.client_stats().connections;
            assert!(self.now - began < limit, "not done after {limit:?}: {connections:#?}");
        }
        // The server learns of the last acknowledgements.
        let took = self.now - began;
        for _ in 0..1000 {
            self.step(step.max(Duration::from_millis(1)));
        }
        took
    }

    pub fn client_stats(&self) -> &ClientStats {
        self.client.client_stats().unwrap()
    }

    pub fn server_stats(&self) -> &ServerStats {
        self.server.server_stats().unwrap()
    }

    /// All connections ended as they should, on both sides, and every buffer is back.
    #[track_caller]
    pub fn assert_clean(&mut self, expected: u64) {
        let (client, server) = (self.client_stats().clone(), self.server_stats().clone());
        assert_eq!(
            client.connections.completed, expected,
            "{:#?} {:#?}",
            client.connections, server.connections
        );
        assert_eq!(client.connections.failed_in_all(), 0, "{:#?}", client.connections);
        assert_eq!(server.connections.failed_in_all(), 0, "{:#?}", server.connections);
        assert_eq!(self.client.open(), (0, 0));
        assert_eq!(self.server.open(), (0, 0), "{:#?}", server.connections);
        assert_eq!(self.pool.available(), self.pool.capacity());
        assert_eq!(client.traffic.bad_checksums + server.traffic.bad_checksums, 0);
        assert_eq!(
            self.client.port_stats().malformed + self.server.port_stats().malformed,
            0
        );
    }
}
