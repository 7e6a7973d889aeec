//! The checked configuration: plain data that holds no name that does not exist and no number out of range.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::time::Duration;

use e2d2::flow::NicModel;
use e2d2::wire::MacAddr;
use ipnet::IpNet;

use super::check_content::CheckContent;
use super::continued::Standing;
use super::device::Device;
use super::local_address::LocalAddress;
use super::names::NamedServers;
use super::routes::NextHop;
use super::rule::{ClassRule, Rule};
use splice::checks::Check;
use splice::ids::{CoreId, ListenerId, PoolId, PortIndex, ServerId};
use splice::limit::{ClientLimit, Limit};
use splice::settings::{AcceptProxy, Bind, HashSettings, Member, Policy, SendProxy, UnknownFlows, Verify};

/// `[engine]`: what concerns the process and each of its cores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineConfig {
    /// Name of this engine: prefix of DPDK's files, so that several engines can run on one machine.
    pub name: String,
    /// Cores that each run one worker. Not empty, no core twice.
    pub cores: Vec<CoreId>,
    /// Memory that DPDK takes at start, in MiB.
    pub memory_mib: u32,
    /// What a worker does in rounds without work.
    pub idle: Idle,
    /// Whether the engine answers for the addresses of listeners from its start on, or leaves them to another.
    pub announce: bool,
    /// How long open connections may go on after SIGTERM before both of their ends get RST.
    pub drain: Duration,
    /// What a segment of no known connection is answered with.
    pub unknown_flows: UnknownFlows,
    /// How many frames per second and core are sent to those who have neither connection nor valid cookie, SYN-ACKs
    /// excepted.
    pub replies_per_second: u32,
    /// After how long without an empty receive queue a core lets SYNs give way to all else; zero: never.
    pub overload_after: Duration,
    /// The legs of one connection in so many are watched; of none if that is zero.
    pub leg_sample: u32,
    /// Connections that one core holds at the same time.
    pub max_connections: u32,
    /// Bytes of memory with which one core holds requests of connections that wait for their servers.
    pub reassembly_memory: u64,
    /// How much of the memory for held payload one source may have, in percent: 1 to 100.
    pub reassembly_quota: u8,
    /// Which received TCP checksums are verified when the port has not done it.
    pub verify: Verify,
    /// Packet buffers of each core; at least what the descriptors of all ports take, and some more.
    pub buffers: u32,
    /// How the answers of servers find the core that owns their connection; says nothing to a core that is alone.
    pub steering: Steering,
    /// Which bits of a source port name its core where ports are steered by a mask: ones from the left. `None` takes as many
    /// as the cores need.
    pub port_mask: Option<u16>,
}

/// How packets find the core that owns their connection. Whatever is chosen, a packet on another core is handed over.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Steering {
    /// The first of the others that the ports can do, in this order.
    Auto,
    /// Each core takes the source ports whose answers the ports' own hash brings back to it.
    Rss,
    /// Each core has a range of source ports, and the ports rules for them.
    Port,
    /// Each core has source addresses, and the ports rules for them.
    Ip,
    /// Nothing is asked of the ports: what arrives on the wrong core is handed over.
    Software,
}

impl Steering {
    /// Its name in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Rss => "rss",
            Self::Port => "port",
            Self::Ip => "ip",
            Self::Software => "software",
        }
    }
}

/// What a worker does in rounds without work.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Idle {
    /// Sleeps, a little longer each time, never past the next timer.
    Adaptive,
    /// Polls on: for cores that nothing else wants.
    Poll,
}

/// `[[port]]`: one network interface that the engine drives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortConfig {
    /// Its number.
    pub id: PortIndex,
    /// Its name in the configuration, unique.
    pub name: String,
    /// The device behind it; no other port has it.
    pub device: Device,
    /// MAC address to use in place of the device's own; unicast.
    pub mac: Option<MacAddr>,
    /// Largest IP datagram, in bytes: 576 to 9000, and at least 1280 with an IPv6 address.
    pub mtu: u16,
    /// 802.1Q tag of all that is sent and accepted: 1 to 4094.
    pub vlan: Option<u16>,
    /// The engine's own addresses here, each with the length of the on-link prefix. No prefix overlaps another port's.
    pub addresses: Vec<IpNet>,
    /// Static entries of the neighbour table, each on-link.
    pub neighbours: Vec<(IpAddr, MacAddr)>,
    /// Receive descriptors.
    pub rx_descriptors: u16,
    /// Transmit descriptors.
    pub tx_descriptors: u16,
    /// Whether the device may verify and fill in checksums, if it can.
    pub checksum_offload: bool,
    /// The queues and rules that it gets in software; the device itself is opened with one queue then.
    pub software_nic: Option<SoftwareNicConfig>,
    /// What of its addresses the Linux kernel answers for.
    pub kernel: Option<KernelConfig>,
}

/// `software_nic` of a port: queues, RSS and flow rules in front of a device that has none.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct SoftwareNicConfig {
    /// The card whose limits it has.
    pub model: NicModel,
    /// Its queues: as many as there are cores, and no more than the card has.
    pub queues: u16,
    /// The core that moves its packets, which runs no worker; `None` leaves it to the first worker.
    pub core: Option<CoreId>,
}

/// `kernel` of a `[[port]]`: the way of what is not the engine's to the Linux kernel and back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelConfig {
    /// The name of the interface that is made for it.
    pub device: String,
    /// The network namespace that the interface is in; none: the engine's own.
    pub namespace: Option<String>,
    /// The kernel's addresses, each with the prefix that it is to know. They may be the engine's, too. Not empty.
    pub addresses: Vec<IpNet>,
    /// Frames a second that pass each way at most.
    pub rate: u32,
    /// TCP ports of these addresses that the engine leaves to connections that the kernel makes.
    pub local_ports: Option<RangeInclusive<u16>>,
}

impl PortConfig {
    /// The first own address of a family.
    pub fn address(&self, ipv6: bool) -> Option<IpAddr> {
        self.addresses
            .iter()
            .map(IpNet::addr)
            .find(|address| address.is_ipv6() == ipv6)
    }

    /// Whether `ip` is in one of its prefixes.
    pub fn is_on_link(&self, ip: IpAddr) -> bool {
        self.addresses.iter().any(|prefix| prefix.contains(&ip))
    }
}

/// `[[listener]]`: addresses on which clients are served, and how their server is chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerConfig {
    /// Its number.
    pub id: ListenerId,
    /// Whether the file has it.
    pub standing: Standing,
    /// Its name, unique.
    pub name: String,
    /// What it listens on; disjoint from every other listener.
    pub addresses: Vec<ListenAddress>,
    /// The ports on which its clients arrive. Not empty.
    pub ports: Vec<PortIndex>,
    /// When the server is chosen.
    pub bind: Bind,
    /// Asked in order, the first that matches decides.
    pub rules: Vec<Rule>,
    /// Asked in order, the first that matches says which class a client is in.
    pub classes: Vec<ClassRule>,
    /// How many connections it may have.
    pub limit: Option<Limit>,
    /// How many each of its clients may have.
    pub client_limit: Option<ClientLimit>,
    /// What becomes of a connection that no rule matches.
    pub default: Fallback,
    /// How long the first payload is waited for before the choice is made with what is there; less than the time `select`.
    pub inspect_delay: Option<Duration>,
    /// Its timers.
    pub timeouts: ListenerTimeouts,
    /// Whether its connections begin with a PROXY header.
    pub accept: AcceptProxy,
    /// Whose PROXY headers are believed; empty exactly when `accept` is off.
    pub trusted: Vec<IpNet>,
}

impl ListenerConfig {
    /// Whether its SYN-ACKs may have to be repeated.
    pub(super) fn needs_half_open(&self) -> bool {
        self.bind != Bind::Payload || self.inspect_delay.is_some()
    }

    /// Whether it passes SYNs on.
    pub(super) fn needs_forwarded_syns(&self) -> bool {
        self.bind == Bind::Syn
    }

    /// The pools that rules and default can lead to, each once, in the order of the rules.
    pub fn pools(&self) -> Vec<PoolId> {
        let default = match self.default {
            Fallback::Pool(pool) => Some(pool),
            Fallback::Reject => None,
        };
        let mut pools = Vec::new();
        for pool in self.rules.iter().filter_map(Rule::pool).chain(default) {
            if !pools.contains(&pool) {
                pools.push(pool);
            }
        }
        pools
    }
}

/// An address with one port or a range of ports.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ListenAddress {
    /// A unicast address.
    pub ip: IpAddr,
    /// Not empty, without 0.
    pub ports: RangeInclusive<u16>,
}

impl ListenAddress {
    /// Whether any address and port belongs to both.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.ip == other.ip && self.ports.start() <= other.ports.end() && other.ports.start() <= self.ports.end()
    }
}

/// `192.0.2.1:80`, `[2001:db8::1]:8000-8099`
impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", SocketAddr::new(self.ip, *self.ports.start()))?;
        if self.ports.start() != self.ports.end() {
            write!(f, "-{}", self.ports.end())?;
        }
        Ok(())
    }
}

/// What becomes of a connection that no rule matches.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Fallback {
    /// A server of this pool gets it.
    Pool(PoolId),
    /// It is reset.
    Reject,
}

/// `[[pool]]`: servers that can stand for one another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolConfig {
    /// Its number.
    pub id: PoolId,
    /// Whether the file has it.
    pub standing: Standing,
    /// Its name, unique.
    pub name: String,
    /// How a server is picked.
    pub policy: Policy,
    /// What is hashed, if the policy hashes.
    pub hash: HashSettings,
    /// How long a server that is back gets less than its weight.
    pub slow_start: Duration,
    /// Of how many of a hundred servers fewer have to be fit for all to be asked.
    pub panic_below: u8,
    /// Its servers, none twice: those with an address in the order of the file, then those of names. Empty as long as there are
    /// names only and nothing is known of them.
    pub members: Vec<Member>,
    /// The entries that name their servers.
    pub names: Vec<NamedServers>,
    /// How many of a hundred of its servers may be ejected.
    pub eject_most: u8,
    /// How many connections it may have.
    pub limit: Option<Limit>,
}

/// A server: one address and port, whatever number of pools it is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerConfig {
    /// Its number.
    pub id: ServerId,
    /// Whether the file has it.
    pub standing: Standing,
    /// The group that its source ports are in: that of the servers that came with it.
    pub group: u16,
    /// Its name, unique among servers.
    pub name: String,
    /// Where it listens.
    pub address: SocketAddr,
    /// The way there.
    pub next_hop: NextHop,
    /// MAC address frames to it are sent to, whatever the next hop's neighbour entry says; unicast.
    pub mac: Option<MacAddr>,
    /// From where the engine connects to it. Not empty, all of its address family.
    pub local: Vec<LocalAddress>,
    /// How long it may take to answer the SYN before the next server is tried.
    pub connect_timeout: Duration,
    /// Time to the first repetition of the SYN; doubled from then on.
    pub syn_retry: Duration,
    /// How often it is called anew for one connection when it has not answered in time and there is no other left to try.
    pub retries: u8,
    /// How many connections it may have at the same time, over all cores.
    pub max_connections: Option<u32>,
    /// After how many failures in a row it is passed over; never when 0.
    pub eject_after: u32,
    /// For how long the first time; doubled with each further failure.
    pub eject_for: Duration,
    /// The PROXY header that each connection to it begins with.
    pub announce: SendProxy,
    /// It is connected to from the client's own address and port.
    pub transparent: bool,
    /// Whether it is checked, and how.
    pub check: Option<Check>,
    /// What its checks say, if they say something.
    pub content: Option<CheckContent>,
}

/// `[timeouts]`: after how long what is ended. Those that a listener can override are resolved in its own
/// [`ListenerConfig::timeouts`], `connect` in [`ServerConfig::connect_timeout`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// From the client's handshake to the end of the selection.
    pub select: Duration,
    /// For the answer of one server to our SYN.
    pub connect: Duration,
    /// An established connection without a segment in either direction.
    pub idle: Duration,
    /// The same once one side has closed its half.
    pub half_close: Duration,
    /// How long the ports of a closed connection are not used again.
    pub time_wait: Duration,
}

/// The timers of one listener's connections, as in [`Timeouts`].
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct ListenerTimeouts {
    /// From the client's handshake to the end of the selection.
    pub select: Duration,
    /// An established connection without a segment in either direction.
    pub idle: Duration,
    /// The same once one side has closed its half.
    pub half_close: Duration,
}
