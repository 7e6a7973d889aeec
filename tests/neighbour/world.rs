//! Two ports with their links, and one core's station between them.
//!
//! Port 0: 10.0.0.1/24, 2001:db8::1/64, listener 10.0.9.9; server 10.0.0.20 and 2001:db8::20, and 10.0.0.30 with a fixed
//! MAC address. Port 1: 192.168.7.1/24; gateway 192.168.7.254.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use e2d2::buffer::{BufferPool, HeapPool, PacketBuffer};
use e2d2::port::PortId;
use e2d2::time::Instant;
use e2d2::wire::MacAddr;
use e2d2::wire::frame::parse;
use proxyengine::neighbour::{
    Interface, Neighbour, NeighbourDrop, NeighbourEvent, NextHopId, SharedNeighbours, Station, Topology, Verdict,
};

use crate::frames::Mac;

pub(crate) const LEFT: PortId = PortId(0);
pub(crate) const RIGHT: PortId = PortId(1);
pub(crate) const OUR_MAC: Mac = [2, 0, 0, 0, 0, 1];
pub(crate) const OUR_RIGHT_MAC: Mac = [2, 0, 0, 0, 0, 2];
pub(crate) const CLIENT_MAC: Mac = [2, 0xc, 0, 0, 0, 5];
pub(crate) const SERVER_MAC: Mac = [2, 0x5, 0, 0, 0, 20];
pub(crate) const OTHER_MAC: Mac = [2, 0xe, 0, 0, 0, 99];
pub(crate) const STATIC_MAC: Mac = [2, 0x5, 0, 0, 0, 30];
/// Made of [`OUR_MAC`].
pub(crate) const OUR_LINK_LOCAL: &str = "fe80::ff:fe00:1";

pub(crate) struct World {
    pub(crate) topology: Arc<Topology>,
    pub(crate) shared: Arc<SharedNeighbours>,
    pub(crate) station: Station,
    pub(crate) now: Instant,
    pool: HeapPool,
}

pub(crate) fn topology() -> Topology {
    let net = |text: &str| text.parse().expect("network");
    let ip = |text: &str| text.parse().expect("address");
    let left = Interface {
        port: LEFT,
        mac: MacAddr(OUR_MAC),
        addresses: vec![net("10.0.0.1/24"), net("2001:db8::1/64")],
        aliases: vec![ip("10.0.9.9")],
    };
    let right = Interface {
        port: RIGHT,
        mac: MacAddr(OUR_RIGHT_MAC),
        addresses: vec![net("192.168.7.1/24")],
        aliases: vec![],
    };
    let neighbour = |port, address, mac: Option<Mac>| Neighbour {
        port,
        address: ip(address),
        mac: mac.map(MacAddr),
    };
    let neighbours = [
        neighbour(LEFT, "10.0.0.20", None),
        neighbour(LEFT, "2001:db8::20", None),
        neighbour(LEFT, "10.0.0.30", Some(STATIC_MAC)),
        neighbour(RIGHT, "192.168.7.254", None),
    ];
    Topology::new(vec![left, right], &neighbours).expect("topology")
}

impl World {
    /// The only core: it leads both ports, and nothing has been sent yet.
    pub(crate) fn new() -> Self {
        Self::leading(&[LEFT, RIGHT])
    }

    pub(crate) fn leading(leads: &[PortId]) -> Self {
        Self::of(topology(), leads)
    }

    /// An engine that also sends from its clients' own addresses.
    pub(crate) fn transparent() -> Self {
        Self::of(topology().with_transparent_sources(true), &[LEFT, RIGHT])
    }

    pub(crate) fn of(topology: Topology, leads: &[PortId]) -> Self {
        let topology = Arc::new(topology);
        let shared = Arc::new(SharedNeighbours::new(&topology));
        let station = Station::new(Arc::clone(&topology), Arc::clone(&shared), leads, 7, Instant::ZERO);
        Self {
            topology,
            shared,
            station,
            now: Instant::ZERO,
            pool: HeapPool::new(4, 2048),
        }
    }

    /// Another core of the same engine, with its own counters.
    pub(crate) fn other_core(&self, leads: &[PortId]) -> Self {
        let (topology, shared) = (Arc::clone(&self.topology), Arc::clone(&self.shared));
        let station = Station::new(Arc::clone(&topology), Arc::clone(&shared), leads, 8, self.now);
        Self {
            topology,
            shared,
            station,
            now: self.now,
            pool: HeapPool::new(4, 2048),
        }
    }

    /// Receives a frame as the pipeline would; a frame that does not parse is dropped before the station sees it.
    pub(crate) fn receive(&mut self, port: PortId, frame: &[u8]) -> (Verdict, Option<Vec<u8>>) {
        let mut buffer = self.pool.take_copy(frame).expect("a buffer that holds the frame");
        let Ok(kind) = parse(buffer.data()) else {
            return (Verdict::NotOurs, None);
        };
        let verdict = self.station.handle(self.now, port, kind, &mut buffer);
        let answer = matches!(verdict, Verdict::Answer(_)).then(|| buffer.data().to_vec());
        if !matches!(verdict, Verdict::Answer(_) | Verdict::Dropped(NeighbourDrop::NoRoom)) {
            assert_eq!(buffer.data(), frame, "a frame that is not answered was changed");
        }
        (verdict, answer)
    }

    /// The answer to a frame that must be answered.
    pub(crate) fn answer(&mut self, port: PortId, frame: &[u8]) -> Vec<u8> {
        let (verdict, answer) = self.receive(port, frame);
        answer.unwrap_or_else(|| panic!("{verdict:?} in place of an answer"))
    }

    /// The reason for which a frame must be dropped, which is counted.
    pub(crate) fn refuse(&mut self, port: PortId, frame: &[u8]) -> NeighbourDrop {
        let before = self.station.counters().drops;
        match self.receive(port, frame).0 {
            Verdict::Dropped(reason) => {
                assert_eq!(self.station.counters().drops[reason], before[reason] + 1);
                reason
            }
            other => panic!("{other:?} in place of a drop"),
        }
    }

    /// What a frame that must not be answered led to, which is counted.
    pub(crate) fn used(&mut self, port: PortId, frame: &[u8]) -> NeighbourEvent {
        let before = self.station.counters().events;
        match self.receive(port, frame).0 {
            Verdict::Used(event) => {
                assert_eq!(self.station.counters().events[event], before[event] + 1);
                event
            }
            other => panic!("{other:?} in place of an event"),
        }
    }

    /// Polls until nothing more is due now.
    pub(crate) fn poll(&mut self) -> Vec<(PortId, Vec<u8>)> {
        let mut frames = Vec::new();
        for _ in 0..1000 {
            let sent = self.station.poll(self.now, &mut |port, frame| {
                frames.push((port, frame.to_vec()));
                true
            });
            if sent == 0 {
                return frames;
            }
        }
        panic!("polling does not come to an end");
    }

    /// Lets time pass step by step from deadline to deadline; gives what was sent and when, in ms.
    pub(crate) fn run_until(&mut self, end: Instant) -> Vec<(u64, PortId, Vec<u8>)> {
        let mut sent = Vec::new();
        while self.station.next_deadline() <= end {
            self.now = self.now.max(self.station.next_deadline());
            let frames = self.poll();
            sent.extend(
                frames
                    .into_iter()
                    .map(|(port, frame)| (self.now.as_millis(), port, frame)),
            );
        }
        self.now = end;
        sent
    }

    pub(crate) fn pass(&mut self, time: Duration) {
        self.now += time;
    }

    pub(crate) fn hop(&self, port: PortId, address: &str) -> NextHopId {
        let address: IpAddr = address.parse().expect("address");
        self.topology.next_hop_of(port, address).expect("a next hop")
    }

    pub(crate) fn mac_of(&self, address: &str) -> Option<Mac> {
        let port = if address.starts_with("192") { RIGHT } else { LEFT };
        self.shared.mac(self.hop(port, address)).map(|mac| mac.0)
    }
}
