//! What one core has to know, with dense indices instead of names and addresses.
//!
//! Built once at start by whoever has read a configuration; nothing here changes afterwards.

use crate::base::addresses::Addresses;
use crate::base::checks::Check;
pub use crate::base::choice::{
    HashKey, HashSettings, Member, PayloadHash, Policy, PoolSettings, Seeker, counts_connections,
};
use crate::base::ids::PoolId;
use crate::base::limit::Limits;
use crate::base::path::Path;
pub use crate::base::source_sets::SourceSets;
pub use crate::base::syn_ack::{Pinned, SynAck, SynAckSettings};
use arrayvec::ArrayVec;
use e2d2::port::{Capabilities, PortId};
use e2d2::wire::{Checksums, MacAddr};
use ipnet::IpNet;
use netfcts::FourTuple;
use netfcts::pool::PortSet;
use netfcts::steering::SteeringPlan;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// A port of ours, as far as the core must know it.
#[derive(Clone, Copy, Debug)]
pub struct Device {
    /// Our MAC address on it.
    pub mac: MacAddr,
    /// Its MTU: the largest IP packet.
    pub mtu: u16,
    /// Who fills in the checksums of what we originate. What we pass on keeps its own, brought along incrementally.
    pub checksums: Checksums,
}

/// When the server of a connection is chosen.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Bind {
    /// When the client's first payload says enough.
    Payload,
    /// When the client's handshake is complete: for protocols in which the server speaks first.
    Handshake,
    /// When the client's SYN arrives, which is passed on.
    Syn,
}

/// Whether a listener takes PROXY headers.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum AcceptProxy {
    /// They are payload like any other.
    #[default]
    Off,
    /// A connection may begin with one.
    Optional,
    /// Every connection begins with one.
    Required,
}

/// A listener.
#[derive(Clone, Copy, Debug)]
pub struct Listener {
    /// When its servers are chosen.
    pub bind: Bind,
    /// The pool of connections that the selector leaves undecided when the wait is over.
    pub default: Option<PoolId>,
    /// After how long the selector is asked with what is there, however little that is.
    pub inspect_delay: Option<Duration>,
    /// How long a client may take until the selector can decide.
    pub select: Duration,
    /// How long both sides may be silent.
    pub idle: Duration,
    /// How long the second half may stay open.
    pub half_close: Duration,
    /// Whether its clients' streams begin with a PROXY header.
    pub accept: AcceptProxy,
}

impl Listener {
    /// A client may be connected and wait for us in silence: if its ACK is lost, it must be asked for it.
    pub fn serves_silence(&self) -> bool {
        self.bind != Bind::Payload || self.inspect_delay.is_some()
    }
}

/// A source address towards a server.
#[derive(Clone, Debug)]
pub struct Local {
    /// Index of the address.
    pub address: u16,
    /// The ports to choose from.
    pub ports: Arc<PortSet>,
}

/// How a server hears of the client's address.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum SendProxy {
    /// Not at all.
    #[default]
    Off,
    /// By a PROXY header of version 1.
    V1,
    /// By a PROXY header of version 2 with these fields.
    V2(SendProxyFields),
}

/// The optional fields (TLVs) of a PROXY header of version 2.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct SendProxyFields {
    /// `PP2_TYPE_AUTHORITY`: the server name of a TLS client, if it sent one.
    pub authority: bool,
    /// `PP2_TYPE_ALPN`: the first protocol that a TLS client offers, if any.
    pub alpn: bool,
    /// `PP2_TYPE_UNIQUE_ID`: client, listener and the time of the connection, unique on this engine.
    pub unique_id: bool,
    /// `PP2_TYPE_CRC32C`.
    pub crc32c: bool,
    /// The fields of the header that the client's connection began with, as far as there is room; they come before those
    /// of our own.
    pub incoming: bool,
}

/// Fields of a PROXY header as they are sent: room for two, whose values have 255 bytes at most.
pub type FieldBuf = ArrayVec<u8, { 2 * (3 + 255) }>;

/// Appends those of the wanted fields that a client's first bytes have a value for: `alpn`, then `authority`.
pub type PayloadFields = fn(SendProxyFields, &[u8], &mut FieldBuf);

/// A server.
#[derive(Clone, Debug)]
pub struct Server {
    /// Its address.
    pub address: u128,
    /// Its port.
    pub port: u16,
    /// Our port it is behind.
    pub device: PortId,
    /// Where its frames go: the index that the neighbour table gave the next hop.
    pub next_hop: usize,
    /// Our addresses to connect from.
    pub locals: Vec<Local>,
    /// The PROXY header that connections to it begin with.
    pub announce: SendProxy,
    /// It is connected to from the clients' own addresses and ports; from `locals` it is only probed.
    pub transparent: bool,
    /// After how long an unanswered SYN is repeated; doubled each time.
    pub syn_retry: Duration,
    /// How often it is called anew when there is no other.
    pub retries: u8,
    /// After how long the next server is tried.
    pub connect_timeout: Duration,
    /// Whether it is checked, and how.
    pub check: Option<Check>,
    /// The server whose source ports its checks use: all that go to one address and port use the same.
    pub check_source: u16,
}

/// What a segment of no known connection is answered with.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum UnknownFlows {
    /// RST, as a host without such a connection would (RFC 9293 3.10.7.1).
    Rst,
    /// Nothing.
    Silent,
}

/// Which received TCP checksums are verified when the port has not done it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Verify {
    /// Those of segments the engine acts on; the error of others is passed on with them.
    Acted,
    /// All.
    All,
}

/// A server, as far as it can be chosen or passed over.
#[derive(Clone, Debug)]
pub struct UpstreamServer {
    /// Where it listens.
    pub address: SocketAddr,
    /// How many connections it may have at the same time, over all cores.
    pub max_connections: Option<u32>,
    /// How long it may take to answer.
    pub connect_timeout: Duration,
    /// After how many failures in a row it is passed over; never when 0.
    pub eject_after: u32,
    /// For how long the first time; doubled with each further failure.
    pub eject_for: Duration,
}

/// What there is to choose servers from.
#[derive(Clone, Debug)]
pub struct UpstreamSettings {
    /// How many cores there are, over all of which a server may have so many connections.
    pub workers: usize,
    /// By pool.
    pub pools: Vec<PoolSettings>,
    /// By server.
    pub servers: Vec<UpstreamServer>,
}

impl UpstreamSettings {
    /// By server: how many connections all cores together may have to it. `None` if that does not matter, so that they are not
    /// even counted: for that a pool has to ask.
    pub(crate) fn limits(&self) -> Vec<Option<u32>> {
        let mut limits: Vec<_> = self.servers.iter().map(|server| server.max_connections).collect();
        let counting = self.pools.iter().filter(|pool| pool.counts_connections());
        for member in counting.flat_map(|pool| &pool.members) {
            if let Some(limit) = limits.get_mut(member.server.index()) {
                *limit = limit.or(Some(u32::MAX));
            }
        }
        limits
    }
}

/// How much memory a core sets aside.
#[derive(Clone, Copy, Debug)]
pub struct Capacity {
    /// Open connections.
    pub connections: usize,
    /// Resting connections.
    pub time_wait: usize,
    /// SYN-ACKs remembered for repetition; 0 without a listener that needs it.
    pub half_open: usize,
    /// SYNs remembered until their handshake is complete; 0 without a listener that passes them on.
    pub forwarded_syns: usize,
    /// Bytes of memory for held requests, reserved at start and touched as used.
    pub reassembly_memory: usize,
    /// Connections with bytes to retransmit to their server, and PROXY headers of those that have no server yet.
    pub rtx_queues: usize,
    /// Inspected connections; only for an engine with an inspector.
    pub inspected: usize,
    /// Blocks of 2 KiB for what inspectors put in the place of other bytes; only for an engine with an inspector.
    pub kept_blocks: usize,
    /// How much of the memory for held requests one source may have, in percent.
    pub reassembly_quota: u8,
}

/// Each inspected connection takes about 1.3 KiB beside its two cache lines: 85 MiB for these.
const MAX_INSPECTED: usize = 1 << 16;

impl Capacity {
    /// Sensible sizes for a number of open connections, half as many at rest, where the oldest makes room; with so many bytes for
    /// held requests, and as many retransmission queues as [these can be](crate::reassembly::most_in).
    pub fn for_connections(connections: usize, reassembly_memory: usize, rtx_queues: usize) -> Self {
        Capacity {
            connections,
            time_wait: (connections / 2).max(1024),
            half_open: 0,
            forwarded_syns: 0,
            reassembly_memory,
            rtx_queues,
            inspected: connections.min(MAX_INSPECTED),
            kept_blocks: (connections.min(MAX_INSPECTED) / 4).max(1024),
            reassembly_quota: 25,
        }
    }
}

/// What TCP goes to the Linux kernel, which has addresses behind our ports that may be ours, too.
#[derive(Clone, Debug, Default)]
pub struct ExceptionPath {
    addresses: Vec<KernelAddress>,
}

/// One address of the kernel's.
#[derive(Clone, Debug)]
struct KernelAddress {
    port: PortId,
    address: u128,
    /// The TCP ports of it that are the engine's.
    engine: PortSet,
}

impl ExceptionPath {
    /// The kernel has an address (as [`mapped`](netfcts::leg::mapped) gives it) behind `port`, but for its TCP ports that
    /// are the `engine`'s.
    pub fn add(&mut self, port: PortId, address: u128, engine: PortSet) {
        self.addresses.push(KernelAddress { port, address, engine });
    }

    /// Whether a TCP segment of no connection and no listener, to `local_port` of `local`, is the kernel's. Those to the
    /// ports that the engine connects from are the engine's, also when it knows them no more.
    pub fn takes_tcp(&self, port: PortId, local: u128, local_port: u16) -> bool {
        let of_kernel = (self.addresses.iter()).find(|of_kernel| of_kernel.address == local && of_kernel.port == port);
        of_kernel.is_some_and(|of_kernel| !of_kernel.engine.contains(local_port))
    }
}

/// What becomes of the records of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Records {
    /// None are kept.
    Off,
    /// One is kept of each open connection, which tells its times.
    Kept,
    /// It is also sent when the connection ends.
    Sent,
}

/// Everything that one core has to know.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The number of this core, for the records.
    pub core: u8,
    /// By port.
    pub devices: Vec<Device>,
    /// Our addresses: listeners' and local ones.
    pub addresses: Addresses,
    /// By listener.
    pub listeners: Vec<Listener>,
    /// By listener: whose PROXY headers are believed.
    pub trusted: Vec<Vec<IpNet>>,
    /// By server.
    pub servers: Vec<Server>,
    /// How many connections there may be.
    pub limits: Limits,
    /// How many rules are counted: one more than the largest number of one.
    pub rules: usize,
    /// Numbers that have gone to other rules since the selector was made, ascending: what it says of them is of no rule.
    pub renumbered_rules: Vec<u32>,
    /// Reads fields of PROXY headers from first bytes.
    pub payload_fields: PayloadFields,
    /// Hashes what pools choose servers by, of first bytes.
    pub payload_hash: PayloadHash,
    /// What SYN-ACKs promise.
    pub promises: SynAckSettings,
    /// How long a closed connection rests.
    pub time_wait: Duration,
    /// What a segment of no known connection is answered with.
    pub unknown_flows: UnknownFlows,
    /// So many frames a second, on average, go to strangers; as many are challenge ACKs, and as many ask receivers of
    /// what is out of every window.
    pub replies_per_second: u32,
    /// After how long without an empty receive queue SYNs give way to all else; `None`: never.
    pub overload_after: Option<Duration>,
    /// Which checksums are verified.
    pub verify: Verify,
    /// Memory.
    pub capacity: Capacity,
    /// What becomes of records.
    pub records: Records,
    /// The servers for which times and legs are counted one by one.
    pub timed_servers: Vec<u16>,
    /// The legs of one connection in so many are watched; of none if that is zero.
    pub leg_sample: u32,
    /// The core's place among several; nothing if it is alone.
    pub steering: Option<CoreSteering>,
    /// What the Linux kernel has of our addresses.
    pub kernel: ExceptionPath,
}

impl Settings {
    /// The way from our end of `key` to the other, to the station `mac` by the port `device`.
    #[inline(always)]
    pub(crate) fn path(&self, key: &FourTuple, mac: MacAddr, device: PortId) -> Path {
        let ours = &self.devices[usize::from(device.0)];
        Path {
            source_mac: ours.mac,
            destination_mac: mac,
            source: key.local,
            destination: key.remote,
            source_port: key.local_port,
            destination_port: key.remote_port,
            device,
            mtu: ours.mtu,
            checksums: ours.checksums,
        }
    }

    /// The core's place among all, and how many there are.
    pub(crate) fn place(&self) -> (usize, usize) {
        let steering = self.steering.as_ref();
        steering.map_or((0, 1), |steering| (steering.core, steering.plan.cores()))
    }

    /// True if some listener takes PROXY headers.
    pub fn accepts_headers(&self) -> bool {
        self.listeners
            .iter()
            .any(|listener| listener.accept != AcceptProxy::Off)
    }

    /// True if some server's connections begin with a PROXY header.
    pub fn writes_headers(&self) -> bool {
        self.servers.iter().any(|server| server.announce != SendProxy::Off)
    }

    /// True if some server gets the fields of the header that its client's connection began with.
    pub fn passes_fields_on(&self) -> bool {
        let passes = |server: &Server| matches!(server.announce, SendProxy::V2(fields) if fields.incoming);
        self.servers.iter().any(passes)
    }

    /// The fields of PROXY headers that some server gets, and that come from the client's first bytes.
    pub fn fields_from_payload(&self) -> SendProxyFields {
        let mut wanted = SendProxyFields::default();
        for server in &self.servers {
            if let SendProxy::V2(fields) = server.announce {
                wanted.alpn |= fields.alpn;
                wanted.authority |= fields.authority;
            }
        }
        wanted
    }

    /// True if the address that a PROXY header names can become a source towards a server.
    pub fn has_sources_of_headers(&self) -> bool {
        self.accepts_headers() && self.servers.iter().any(|server| server.transparent)
    }

    /// True if `listener` believes the PROXY headers of `peer`.
    pub fn trusts(&self, listener: u16, peer: std::net::IpAddr) -> bool {
        let prefixes = self.trusted.get(usize::from(listener));
        prefixes.is_some_and(|prefixes| prefixes.iter().any(|prefix| prefix.contains(&peer)))
    }

    /// One core of several: of the ports towards each server it has those whose answers come back to it. `sets` are this core's, of
    /// the settings before, whose plan had the same rules.
    #[must_use]
    pub fn among_others(mut self, steering: CoreSteering, sets: &mut SourceSets) -> Self {
        let of_core = (&*steering.plan, steering.core);
        let mut chooser = sets.begin();
        for server in &mut self.servers {
            let end = (server.address, server.port);
            for local in &mut server.locals {
                let address = self.addresses.value(local.address);
                local.ports = chooser.ours(of_core, (end, address), &local.ports);
            }
        }
        chooser.end();
        self.steering = Some(steering);
        self
    }

    /// Leaves the checksums of our own packets to those ports that can fill them in.
    #[must_use]
    pub fn with_capabilities(mut self, of_ports: &[Capabilities]) -> Self {
        for (device, capabilities) in self.devices.iter_mut().zip(of_ports) {
            device.checksums = if capabilities.tx_checksum {
                Checksums::Port
            } else {
                Checksums::Software
            };
        }
        self
    }
}

/// Secret random numbers of one core, drawn at start.
#[derive(Clone)]
pub struct Secrets {
    /// For cookies. The same on all cores that share addresses.
    pub cookie: [u64; 2],
    /// For the keys of the flow table's hashes.
    pub table: [u64; 2],
    /// For initial sequence numbers towards servers.
    pub isn: [u8; 16],
    /// The start of the timestamp clock towards clients.
    pub timestamp: u32,
}

/// A core's place among several.
#[derive(Clone, Debug)]
pub struct CoreSteering {
    /// Who owns what.
    pub plan: Arc<SteeringPlan>,
    /// Which of them this core is.
    pub core: usize,
    /// Sources towards servers can be addresses that PROXY headers name.
    pub asks_around: bool,
}
