//! PROXY headers of a simulation: which of its clients begin with one, in what pieces, and what servers must get.

use crate::scenario::{ConnectionPlan, Scenario};
use proxy_protocol::{Addresses, Header, Tlv, TlvWriter, Transport};
use std::net::SocketAddr;
use testkit::sim::Random;
use testkit::sim::tcp::Socket;

/// Ways of cutting a header into writes; a connection's number says which is its own.
pub const SEGMENTATIONS: usize = 20;

/// What listeners and pools say of headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Headers {
    pub incoming: Incoming,
    /// The version that servers get.
    pub outgoing: Option<u8>,
}

/// What listeners say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Incoming {
    #[default]
    Off,
    /// Every seventh client has none.
    Optional,
    Required,
}

/// What the header of a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    V1,
    V2,
    /// With fields of some hundred bytes.
    Long,
    Local,
    Unknown,
}

impl Headers {
    pub fn draw(r: &mut Random) -> Self {
        Headers {
            incoming: r.one_of(&[
                Incoming::Off,
                Incoming::Optional,
                Incoming::Required,
                Incoming::Required,
            ]),
            outgoing: r.one_of(&[None, Some(1), Some(2), Some(2)]),
        }
    }

    fn kind(self, plan: &ConnectionPlan) -> Option<Kind> {
        let kinds = [Kind::V1, Kind::V2, Kind::Long, Kind::Local, Kind::Unknown];
        match self.incoming {
            Incoming::Off => None,
            Incoming::Optional if plan.id.is_multiple_of(7) => None,
            Incoming::Optional | Incoming::Required => Some(kinds[usize::from(plan.id / 20) % kinds.len()]),
        }
    }

    /// The bytes that the client's stream begins with.
    pub fn of(self, plan: &ConnectionPlan) -> Vec<u8> {
        let Some(kind) = self.kind(plan) else { return Vec::new() };
        let (source, destination) = carried(kind, plan).unwrap_or_else(|| own(plan));
        let addresses = Addresses::from_pair(source, destination);
        let (mut room, mut out) = ([0; 1024], [0; 1200]);
        let mut tlvs = TlvWriter::new(&mut room);
        if kind == Kind::Long {
            let field = Tlv::Netns(&[b'n'; 300]);
            tlvs.push(&field)
                .and_then(|tlvs| tlvs.push_checksum())
                .and_then(|tlvs| tlvs.pad_to(700))
                .expect("room");
        }
        let header = match kind {
            Kind::V1 => Header::v1(addresses),
            Kind::V2 | Kind::Long => Header::proxy(Transport::Stream, addresses).with_tlvs(tlvs.tlvs()),
            Kind::Local => Header::local(),
            Kind::Unknown => Header::v1(Addresses::Unspecified),
        };
        let length = header.encode(&mut out).expect("room");
        out[..length].to_vec()
    }

    /// Whom the selector and the server must be told: the client, and what it connected to.
    pub fn told(self, plan: &ConnectionPlan) -> (SocketAddr, SocketAddr) {
        let carried = self.kind(plan).and_then(|kind| carried(kind, plan));
        carried.unwrap_or_else(|| own(plan))
    }
}

fn carried(kind: Kind, plan: &ConnectionPlan) -> Option<(SocketAddr, SocketAddr)> {
    let (host, port) = (plan.id, 1_000 + u16::from(plan.id));
    match kind {
        Kind::V1 | Kind::Long => Some((
            SocketAddr::from(([198, 51, 100, host], port)),
            SocketAddr::from(([192, 0, 2, 1], 443)),
        )),
        Kind::V2 => Some((
            SocketAddr::from(([0x2001, 0xdb8, 0, 0, 0, 0, 0, u16::from(host)], port)),
            SocketAddr::from(([0x2001, 0xdb8, 1, 0, 0, 0, 0, 1], 443)),
        )),
        Kind::Local | Kind::Unknown => None,
    }
}

/// The addresses of the connection itself: all that is known before the header.
pub fn own(plan: &ConnectionPlan) -> (SocketAddr, SocketAddr) {
    let (host, service) = (1 + plan.host, crate::engine::SERVICE);
    let (from, to) = if plan.v6 {
        (format!("[fd00::{host}]:{}", plan.port), format!("[fd00::9]:{service}"))
    } else {
        (format!("10.0.0.{host}:{}", plan.port), format!("10.0.0.9:{service}"))
    };
    let address = |text: String| text.parse().expect("an address");
    (address(from), address(to))
}

/// Takes the header of a connection off its server's stream, if it is there: whose client the listener has taken for one
/// without a header, because it was silent for as long as it may be, sends its header to the server. A client without
/// one may send a single byte that a header begins with.
///
/// Returns whether it was taken; `None` as long as a part of it is missing.
pub fn take_late(plan: &ConnectionPlan, header: &[u8], socket: &mut Socket<'_>) -> Option<bool> {
    let bytes = socket.peek(header.len()).unwrap_or_default();
    if bytes != header {
        let is_whole_stream = plan.to_server == 1 && bytes == [plan.id];
        return (!header.starts_with(bytes) || is_whole_stream).then_some(false);
    }
    let taken = socket.recv(|bytes| (header.len().min(bytes.len()), ()));
    Some(taken.is_ok())
}

/// True if a stream may begin with the header of this connection: what is there is of it and of the byte behind it. A client
/// without a header may say nothing but a byte that one begins with.
pub fn may_be_of(bytes: &[u8], plan: &ConnectionPlan, scenario: &Scenario) -> bool {
    let header = scenario.headers.of(plan);
    let says_one = |plan: &&ConnectionPlan| bytes == [plan.id] && plan.to_server == 1;
    if bytes.is_empty() || scenario.connections.iter().any(|plan| says_one(&plan)) {
        return false;
    }
    let is_followed = |rest: &[u8]| rest.first().is_none_or(|first| *first == plan.id);
    header.starts_with(bytes) || bytes.strip_prefix(&header[..]).is_some_and(is_followed)
}

/// Where the header of a connection is cut. A cut at its length parts it from the payload.
pub fn cuts(plan: &ConnectionPlan, length: usize) -> Vec<usize> {
    let every = |step: usize| (step..=length).step_by(step).collect();
    let cuts: Vec<usize> = match usize::from(plan.id) % SEGMENTATIONS {
        0 => vec![],
        1 => vec![length],
        2 => every(1),
        3 => vec![1],
        4 => vec![length.saturating_sub(1)],
        5 => vec![5],
        6 => vec![12],
        7 => vec![13],
        8 => vec![16],
        9 => vec![length / 2],
        10 => every(2),
        11 => every(3),
        12 => every(7),
        13 => every(16),
        14 => every(50),
        15 => vec![12, 16, length],
        16 => vec![1, 2, 3, length.saturating_sub(2), length.saturating_sub(1), length],
        17 => vec![length / 3, length * 2 / 3, length],
        18 => vec![6, 11, length],
        _ => (length / 2..=length).collect(),
    };
    cuts.into_iter().filter(|&cut| cut > 0 && cut <= length).collect()
}
