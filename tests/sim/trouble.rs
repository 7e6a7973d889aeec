//! What the links did to each connection, and when each server was away: that, and not what they did to others, explains how
//! a connection ended.

use crate::scenario::{Fate, Scenario};
use e2d2::time::Instant;
use e2d2::wire::frame::{self, IpVersion, Kind};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::ops::RangeInclusive;
use std::time::Duration;
use testkit::sim::Treatment;

/// One leg of a connection: the host's address, and the client's port or our port towards the server.
pub type Leg = (IpAddr, u16);

/// What belongs to no connection: neighbours are asked for.
const OTHER: Leg = (IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// What a link did to frames, and when.
#[derive(Debug, Default)]
pub struct Troubles(BTreeMap<Leg, Vec<(Instant, Treatment)>>);

/// How many frames of a connection were not just carried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Touched {
    /// Lost or spoilt, so that their receiver cannot use them.
    pub lost: usize,
    /// Repeated or overtaken.
    pub disordered: usize,
}

impl Touched {
    pub fn plus(self, other: Touched) -> Touched {
        Touched {
            lost: self.lost + other.lost,
            disordered: self.disordered + other.disordered,
        }
    }

    pub fn any(self) -> bool {
        self.lost + self.disordered > 0
    }
}

/// What happened to one connection.
#[derive(Clone, Copy, Debug)]
pub struct Trouble {
    pub client: Touched,
    pub server: Touched,
    /// Frames lost of both legs in the last [`IDLE_SECONDS`](crate::engine::IDLE_SECONDS).
    pub lost_lately: usize,
    /// The server that it had, or one of those that it was to be tried at, did not do well meanwhile.
    pub by_server: bool,
}

impl Trouble {
    pub fn lost(self) -> usize {
        self.client.lost + self.server.lost
    }

    pub fn any_frame(self) -> bool {
        self.client.any() || self.server.any()
    }
}

impl Troubles {
    pub fn note(&mut self, now: Instant, leg: Option<Leg>, treatment: Treatment) {
        if treatment != Treatment::CARRIED {
            self.0.entry(leg.unwrap_or(OTHER)).or_default().push((now, treatment));
        }
    }

    /// What was done from one time to another to a leg.
    pub fn of(&self, leg: Leg, from: Instant, to: Instant) -> Touched {
        self.of_legs(leg..=leg, from, to)
    }

    /// The same to all legs of a host, and to what belongs to none.
    pub fn of_host(&self, host: IpAddr, from: Instant, to: Instant) -> Touched {
        let legs = self.of_legs((host, 0)..=(host, u16::MAX), from, to);
        legs.plus(self.of(OTHER, from, to))
    }

    fn of_legs(&self, legs: RangeInclusive<Leg>, from: Instant, to: Instant) -> Touched {
        let legs = self.0.range(legs).flat_map(|(_, events)| events);
        let within = legs.filter(|(at, _)| *at >= from && *at <= to);
        within.fold(Touched::default(), |sum, (_, treatment)| Touched {
            lost: sum.lost + usize::from(treatment.lost),
            disordered: sum.disordered + usize::from(treatment.disordered),
        })
    }
}

/// The leg of a frame on the way to the engine, or from it.
pub fn leg_of(frame: &[u8], side_is_clients: bool, to_engine: bool) -> Option<Leg> {
    let Ok(Kind::Tcp(layout)) = frame::parse(frame) else {
        return None;
    };
    let (l3, l4) = (usize::from(layout.l3), usize::from(layout.l4));
    let host: IpAddr = match layout.version {
        IpVersion::V4 => {
            let at = l3 + if to_engine { 12 } else { 16 };
            <[u8; 4]>::try_from(frame.get(at..at + 4)?).ok()?.into()
        }
        IpVersion::V6 => {
            let at = l3 + if to_engine { 8 } else { 24 };
            <[u8; 16]>::try_from(frame.get(at..at + 16)?).ok()?.into()
        }
    };
    // A client's port is its own; towards a server, ours tells connections apart.
    let at = l4 + if side_is_clients == to_engine { 0 } else { 2 };
    Some((host, u16::from_be_bytes(frame.get(at..at + 2)?.try_into().ok()?)))
}

/// The address of a server by the number that records have of it; `has_v6` servers follow the three of IPv4.
pub fn address_of_server(server: u16) -> IpAddr {
    let text = match server {
        0..=2 => format!("10.1.0.10{server}"),
        _ => format!("fd01::10{}", server - 3),
    };
    text.parse().expect("an address")
}

/// A server does something else than to serve between these times.
pub fn misbehaves(scenario: &Scenario, host: usize, start: Instant, (from, to): (Instant, Instant)) -> bool {
    let at = |ms: u64| start + Duration::from_millis(ms);
    match scenario.servers[host].fate {
        Fate::Well => false,
        Fate::Refuses | Fate::Absent | Fate::AcceptsLate { .. } => true,
        Fate::Restarts { from_ms, to_ms } => from <= at(to_ms) && to >= at(from_ms),
        Fate::Vanishes { at_ms } => to >= at(at_ms),
    }
}
