//! The proxy of one core as a device under test: the engine's own program, graph and ports on DPDK's ring ports, with
//! the load's ends of the rings beside it.
//!
//! Here everything is opened and put together: `proxy` on its `port`s with its `configuration`, a thread to `drain` its
//! records, and the `load`; `cores` has several such proxies, `memif` has the load in another process. `floor` is what the
//! packets cost without a proxy, `parts` what no proxy can do without, `pairs` what two measurements in turns say, and `placements`
//! what two kinds of proxy do, wherever their memory lies.

#![allow(dead_code, reason = "a module of several benches, each of which uses a part")]

pub(crate) mod cli;
pub(crate) mod compared;
mod configuration;
mod cores;
pub(crate) mod drain;
pub(crate) mod floor;
mod inspectors;
pub(crate) mod load;
mod memif;
pub(crate) mod pairs;
pub(crate) mod parts;
pub(crate) mod placements;
mod port;
pub(crate) mod proxy;

use std::error::Error;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use benchkit::{
    Arm, CpsSettings, DeviceCounts, DeviceUnderTest, Distance, InlineBench, LoadThread, RoundWork, TwoCoreBench,
    cps_arms, cps_server,
};
use e2d2::native::{DpdkQueue, Eal, EalConfig, MbufPool, PoolDemand, RegisteredThread, data_room, ring_pair};
use e2d2::port::{Port, PortId};
use e2d2::time::{Clock, Instant};
use e2d2::wire::MacAddr;
use trafficengine::Format;

use configuration::configuration;
pub(crate) use cores::Member;

use load::roles;
pub(crate) use port::LoadPort;
use port::mac_of;
pub(crate) use proxy::ProxyDevice;
use proxy::proxy;

pub(crate) type BoxError = Box<dyn Error + Send + Sync>;

/// Where the proxy listens.
pub(crate) const LISTENER: Ipv4Addr = Ipv4Addr::new(10, 1, 255, 254);

/// The same, for clients of either version of IP.
fn listener(ipv6: bool) -> SocketAddr {
    let address = match ipv6 {
        false => LISTENER.into(),
        true => IpAddr::from([0xfd00, 1, 0, 0, 0, 0, 0, 0xfffe]),
    };
    SocketAddr::new(address, 8080)
}

/// Servers behind the proxy, by default.
const SERVERS: u8 = 4;

/// Ports of an address that the proxy connects from, by default.
const PORTS: u32 = 64_512;

/// Packets that a ring holds: far more than are in motion, so that none is refused.
const DESCRIPTORS: u16 = 2047;

/// Packets that the load may hold on to besides those in rings.
const HELD_BY_LOAD: u32 = 8_192;

/// The largest payload of a segment without options: the MTU without the headers of IP and TCP.
fn mss(mtu: u16, ipv6: bool) -> u16 {
    mtu - if ipv6 { 60 } else { 40 }
}

/// Conditions of a bench.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Conditions {
    /// Connections open at once, how long ports rest, how long to measure.
    pub(crate) settings: CpsSettings,
    /// Connections that the proxy has room for; resting ones as many again.
    pub(crate) capacity: u32,
    /// Whether a record of each connection is kept and taken by another thread.
    pub(crate) records: bool,
    /// Whether that hands them to three sinks: `/dev/null`, and syslog and IPFIX at these ports of loopback.
    pub(crate) sinks: Option<[u16; 2]>,
    /// What the servers are chosen by.
    pub(crate) rules: Rules,
    /// What an inspector does to the bytes, if there is one.
    pub(crate) inspect: Option<Inspect>,
    /// Whether the proxy's cycles are counted by stage; not with an inspector.
    pub(crate) stage_cycles: bool,
    /// Whether the core shows its numbers, as a worker's does.
    pub(crate) shown: bool,
    /// Whether the servers get a PROXY header of version 2.
    pub(crate) proxy_out: bool,
    /// A list that a rule of the listener asks for, and limits on it, each client and a class; none without.
    pub(crate) guarded_by: Option<&'static str>,
    /// So many servers more, which take no connection and are checked by SYN ten times a second.
    pub(crate) checked: u16,
    /// Whether all speak IPv6.
    pub(crate) ipv6: bool,
    /// Requests of a connection, and the bytes of request and response.
    pub(crate) rounds: u16,
    pub(crate) request: u32,
    pub(crate) response: u32,
    /// Whether the proxy verifies the checksum of every segment, or of those that it acts on (its default).
    pub(crate) verify_all: bool,
    /// Connections that are not waiting to be drawn: two bursts keep an inline bench busy, two cores need more under way.
    pub(crate) depth: u32,
    /// MTU of the rings; segments carry what fits with time stamps.
    pub(crate) mtu: u16,
    /// Connections that start per second, each at its time; none: the next is drawn as soon as few enough are in motion.
    pub(crate) rate: Option<f64>,
    /// Packets that a ring holds: how long a core may be away before something is lost.
    pub(crate) descriptors: u16,
    /// Servers behind the proxy.
    pub(crate) servers: u8,
    /// Whether load and proxy take their packets from one pool: on two cores each then takes again what it has let go of, as a
    /// card and its driver do. Out of pools of their own every packet would go round through both.
    pub(crate) one_pool: bool,
}

impl Conditions {
    /// The ancestors' connection. Room for as many connections as can be open and, at a million per second, at rest.
    pub(crate) fn new(settings: CpsSettings) -> Conditions {
        // The proxy keeps a sixteenth of its room for connections that begin with payload; the bench holds them before.
        let room = (settings.open + BEING_REPLACED).div_ceil(15) * 16;
        let capacity = room.max(resting(&settings));
        Conditions {
            settings,
            capacity,
            descriptors: DESCRIPTORS,
            servers: SERVERS,
            one_pool: false,
            records: false,
            sinks: None,
            rules: Rules::Number,
            inspect: None,
            stage_cycles: false,
            shown: false,
            proxy_out: false,
            guarded_by: None,
            checked: 0,
            ipv6: false,
            rounds: 1,
            request: 16,
            response: 8,
            depth: 64,
            mtu: 1500,
            verify_all: true,
            rate: None,
        }
    }
}

/// What the servers are chosen by. All but the first are what no build has learned from (`bench training`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "lower")]
pub(crate) enum Rules {
    /// The first number of the payload.
    Number,
    /// A thousand hosts of HTTP requests, a rule for each.
    Http1000,
    /// A thousand server names of TLS hellos, a rule for each.
    Sni1000,
    /// Four regular expressions, tried in turn.
    Regex,
    /// Nothing: the pool picks one after the other.
    #[value(skip)]
    Pool,
}

impl Rules {
    /// Form of the requests, and their bytes.
    fn format(self) -> (Format, u32) {
        let domain = "example".to_owned();
        match self {
            Rules::Number | Rules::Regex | Rules::Pool => (Format::Text, 16),
            Rules::Http1000 => (Format::Http { domain }, 160),
            // As long as the hellos of today's clients without post-quantum keys.
            Rules::Sni1000 => (Format::Tls { domain }, 517),
        }
    }

    /// Keys that requests are drawn from.
    fn keys(self) -> u16 {
        match self {
            Rules::Number | Rules::Pool | Rules::Http1000 | Rules::Sni1000 => 1000,
            Rules::Regex => 10,
        }
    }
}

/// What an inspector does to all bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "lower")]
pub(crate) enum Inspect {
    /// Looks at them.
    Pass,
    /// Writes the same bytes in their place.
    Rewrite,
}

/// Connections that have ended on one side only, or whose successor has begun: in motion, and then some.
const BEING_REPLACED: u32 = 2_048;

/// Connections at rest at most: as many as end within the time, at 1.5 million per second, or at a million with so many
/// open that each costs some more cache misses.
fn resting(settings: &CpsSettings) -> u32 {
    let rate = if settings.open < 500_000 { 1.5e6 } else { 1e6 };
    (settings.time_wait.as_secs_f64() * rate) as u32
}

/// The proxy, and the load's ends of its rings, with no load on them yet.
pub(crate) struct Ends {
    pub(crate) device: ProxyDevice,
    /// To the clients' port and to the servers'.
    pub(crate) cables: [LoadPort; 2],
    /// The Ethernet addresses of the proxy's ports.
    pub(crate) macs: [MacAddr; 2],
    /// Where the load takes packets from.
    pub(crate) load_pool: MbufPool,
    /// Where the proxy does.
    pub(crate) proxy_pool: MbufPool,
    pub(crate) clock: Clock,
}

/// DPDK, and this thread's registration with it.
pub(crate) struct Host {
    // In this order: the registration ends first.
    _thread: RegisteredThread,
    eal: Eal,
}

impl Host {
    /// Starts DPDK with memory for `benches` benches at once, with rings of this MTU.
    pub(crate) fn start(benches: u32, mtu: u16) -> Result<Host, BoxError> {
        Host::start_on(benches, mtu, &[])
    }

    /// The same; the threads of DPDK itself keep off these CPUs.
    pub(crate) fn start_on(benches: u32, mtu: u16, packet_cores: &[usize]) -> Result<Host, BoxError> {
        // Two pools of 16 383 buffers each, and headers.
        let per_bench = 2 * 16 * (u32::from(data_room(mtu)) + 512) / 1024;
        let eal = Eal::start(&EalConfig {
            memory_mib: per_bench * 5 / 4 * benches + 128,
            packet_cores: packet_cores.to_vec(),
            ..EalConfig::default()
        })?;
        Ok(Host {
            _thread: eal.register_thread()?,
            eal,
        })
    }

    /// Opens rings, proxy and load; `name` is one letter, unique in the process.
    pub(crate) fn open(&self, name: char, conditions: &Conditions) -> Result<InlineProxy, BoxError> {
        open_on(&self.eal, name, conditions, None)
    }

    /// The same, once connections are open and ports are used again.
    pub(crate) fn open_warm(&self, name: char, conditions: &Conditions) -> Result<InlineProxy, BoxError> {
        Ok(warm(self.open(name, conditions)?, conditions))
    }

    /// The same of a member, on the thread of this host.
    pub(crate) fn open_member(
        &self,
        name: char,
        conditions: &Conditions,
        member: Member,
    ) -> Result<InlineProxy, BoxError> {
        Ok(warm(open_on(&self.eal, name, conditions, Some(member))?, conditions))
    }

    /// Opens rings and proxy, whose configuration is what `adjust` makes of the usual one.
    pub(crate) fn open_ends(
        &self,
        name: char,
        conditions: &Conditions,
        adjust: impl FnOnce(String) -> String,
    ) -> Result<Ends, BoxError> {
        open_ends_on(&self.eal, name, conditions, None, adjust)
    }

    /// The same load with its two ends joined by a ring and no proxy between: what its latencies are by themselves.
    pub(crate) fn open_direct(
        &self,
        name: char,
        conditions: &Conditions,
        clock: &Clock,
    ) -> Result<(Vec<Arm<LoadPort>>, MbufPool), BoxError> {
        let eal = &self.eal;
        let demand = PoolDemand {
            queues: 2 * u32::from(conditions.descriptors + 1),
            held: HELD_BY_LOAD,
            threads: 1,
        };
        let room = data_room(conditions.mtu);
        let pool = MbufPool::new(eal, &format!("direct{name}"), demand.buffers(), room, None)?;
        let ids = [PortId(0), PortId(10)];
        let pools: [&[&MbufPool]; 2] = [&[&pool], &[&pool]];
        let [(_, near), (_, far)] = ring_pair(
            eal,
            &format!("d{name}"),
            ids,
            conditions.descriptors,
            conditions.mtu,
            pools,
        )?;
        let end = |queues: Vec<DpdkQueue>| -> Result<LoadPort, BoxError> {
            let queue = queues.into_iter().next().ok_or("a port without a queue")?;
            Ok(LoadPort::from(queue))
        };
        let (client_end, server_end) = (end(near)?, end(far)?);
        let (mut client, _) = roles(conditions);
        client.servers = 1;
        let server = cps_server(&client, &client.targets.clone());
        let macs = [server_end.mac(), client_end.mac()];
        let arms = cps_arms(client, server, &macs, [client_end, server_end], clock.now());
        Ok((arms, pool))
    }
}

/// A device that does nothing, in the place of the proxy where there is none.
pub(crate) struct NoDevice;

impl DeviceUnderTest for NoDevice {
    fn round(&mut self, _now: Instant) -> RoundWork {
        std::hint::spin_loop();
        RoundWork::default()
    }

    fn counts(&self) -> DeviceCounts {
        DeviceCounts::default()
    }
}

impl Host {
    /// Puts the load of a bench on a thread of its own, on this CPU.
    pub(crate) fn part<D: DeviceUnderTest>(
        &self,
        inline: InlineBench<D, LoadPort, MbufPool, Clock>,
        cpu: Option<usize>,
    ) -> Result<TwoCoreBench<D, LoadThread>, BoxError> {
        let (device, arms, pool, clock) = inline.into_parts();
        let distance = cpu.map(Distance::to).transpose()?;
        if let Some(distance) = &distance {
            distance.bring_near(&clock);
        }
        let bench = TwoCoreBench::new(device, self.start_load(arms, pool, clock, cpu)?, clock);
        Ok(match distance {
            Some(distance) => bench.with_distance(distance),
            None => bench,
        })
    }

    /// Starts to play the arms on a thread of its own, on this CPU, in the time of this clock.
    pub(crate) fn start_load(
        &self,
        arms: Vec<Arm<LoadPort>>,
        pool: MbufPool,
        clock: Clock,
        cpu: Option<usize>,
    ) -> Result<LoadThread, BoxError> {
        let eal = self.eal.clone();
        let prepare = move || {
            // Not being where it was asked to be, or unregistered, costs speed only.
            let pinned = cpu.map(e2d2::scheduler::pin_current_thread);
            if let Some(Err(error)) = pinned {
                log::error!("{error}");
            }
            eal.register_thread()
        };
        Ok(LoadThread::start(arms, pool, clock, prepare)?)
    }
}

/// Load and proxy in one thread.
pub(crate) type InlineProxy = InlineBench<ProxyDevice, LoadPort, MbufPool, Clock>;

/// Has a proxy open its connections, and go on until ports are used again.
fn warm(mut inline: InlineProxy, conditions: &Conditions) -> InlineProxy {
    inline.warm_up(&conditions.settings);
    inline.settle();
    inline
}

/// Opens rings, proxy and load on the calling thread; one of several proxies if it is a member.
fn open_on(eal: &Eal, name: char, conditions: &Conditions, member: Option<Member>) -> Result<InlineProxy, BoxError> {
    let listener = member
        .as_ref()
        .map_or(listener(conditions.ipv6), |member| member.listener);
    let ends = open_ends_on(eal, name, conditions, member, |text| text)?;
    let (mut client, server) = roles(conditions);
    client.targets = vec![listener];
    let arms = cps_arms(client, server, &ends.macs, ends.cables, ends.clock.now());
    Ok(InlineBench::new(ends.device, arms, ends.load_pool, ends.clock))
}

/// The same without the load; what `adjust` makes of the configuration holds.
fn open_ends_on(
    eal: &Eal,
    name: char,
    conditions: &Conditions,
    member: Option<Member>,
    adjust: impl FnOnce(String) -> String,
) -> Result<Ends, BoxError> {
    let Cables {
        ports,
        ends,
        proxy_pool,
        load_pool,
    } = open_cables(eal, name, conditions)?;
    let macs = ports.each_ref().map(|port| mac_of(port.id()));
    let text = adjust(match &member {
        Some(member) => member.text.clone(),
        None => configuration(conditions, ["net_ring0", "net_ring1"], mac_of(ends[1].id())),
    });
    let clock = Clock::new();
    let device = proxy(conditions, &text, ports, proxy_pool.clone(), clock, member)?;
    Ok(Ends {
        device,
        cables: ends.map(LoadPort::from),
        macs,
        load_pool,
        proxy_pool,
        clock,
    })
}

/// The two rings of a bench, to the clients and to the servers, and the packets in them.
struct Cables {
    /// The device's ends.
    ports: [DpdkQueue; 2],
    /// The load's ends.
    ends: [DpdkQueue; 2],
    proxy_pool: MbufPool,
    load_pool: MbufPool,
}

fn open_cables(eal: &Eal, name: char, conditions: &Conditions) -> Result<Cables, BoxError> {
    let sides = if conditions.one_pool { 2 } else { 1 };
    let demand = PoolDemand {
        queues: sides * 2 * u32::from(conditions.descriptors + 1),
        held: sides * HELD_BY_LOAD,
        threads: sides,
    };
    let pool = |role| {
        MbufPool::new(
            eal,
            &format!("{role}{name}"),
            demand.buffers(),
            data_room(conditions.mtu),
            None,
        )
    };
    let proxy_pool = pool("proxy")?;
    let load_pool = match conditions.one_pool {
        true => proxy_pool.clone(),
        false => pool("load")?,
    };
    let pair = |role: char, first: u8| -> Result<(DpdkQueue, DpdkQueue), BoxError> {
        let (name, ids) = (format!("{role}{name}"), [PortId(first), PortId(first + 10)]);
        let pools: [&[&MbufPool]; 2] = [&[&proxy_pool], &[&load_pool]];
        let [(_, near), (_, far)] = ring_pair(eal, &name, ids, conditions.descriptors, conditions.mtu, pools)?;
        let one = |queues: Vec<DpdkQueue>| queues.into_iter().next().ok_or("a port without a queue");
        Ok((one(near)?, one(far)?))
    };
    let (client_port, client_end) = pair('c', 0)?;
    let (server_port, server_end) = pair('s', 1)?;
    Ok(Cables {
        ports: [client_port, server_port],
        ends: [client_end, server_end],
        proxy_pool,
        load_pool,
    })
}
