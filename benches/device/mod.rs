//! The proxy of one core as a device under test: the engine's own program, graph and ports on DPDK's ring ports, with
//! the load's ends of the rings beside it.

#![allow(dead_code, reason = "a module of several benches, each of which uses a part")]

pub(crate) mod cli;
mod configuration;
mod cores;
mod memif;

use std::error::Error;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use arrayvec::ArrayVec;
use e2d2::BURST;
use e2d2::native::{DpdkQueue, Eal, EalConfig, MbufPool, PoolDemand, RegisteredThread, data_room, ring_pair};
use e2d2::port::{Capabilities, Port, PortId};
use e2d2::scheduler::Task;
use e2d2::time::{Clock, Instant};
use e2d2::wire::MacAddr;
use netfcts::ring::{RecordReceiver, record_ring};
use proxyengine::config::{Config, CoreId};
use proxyengine::engine::machine::{CoreParts, Machine, MachineError, Opened};
use proxyengine::engine::{CoreStart, Engine, Program};
use proxyengine::neighbour::{SharedNeighbours, Topology};
use proxyengine::records::RING_CAPACITY;
use proxyengine::report::PortReport;
use proxyengine::selectors::RuleSelector;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use trafficengine::bench::{
    Arm, CpsSettings, DeviceCounts, DeviceUnderTest, InlineBench, LoadThread, RoundWork, TwoCoreBench, cps_client,
    cps_server,
};
use trafficengine::{AddressRange, ClientSettings, Generator, GeneratorSettings, LinkSettings, Pace, ServerSettings};

use configuration::configuration;
pub(crate) use cores::Member;

pub(crate) type BoxError = Box<dyn Error + Send + Sync>;

/// Servers behind the proxy, chosen by the first number of the payload.
const SERVERS: u8 = 4;

/// Ports of an address that the proxy connects from, by default.
const PORTS: u32 = 64_512;

/// Packets that a ring holds: far more than are in motion, so that none is refused.
const DESCRIPTORS: u16 = 2047;

/// Packets that the load may hold on to besides those in rings.
const HELD_BY_LOAD: u32 = 8_192;

/// Conditions of a bench.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Conditions {
    /// Connections open at once, how long ports rest, how long to measure.
    pub(crate) settings: CpsSettings,
    /// Connections that the proxy has room for; resting ones as many again.
    pub(crate) capacity: u32,
    /// Whether a record of each connection is kept and drained by another thread.
    pub(crate) records: bool,
    /// Whether the servers get a PROXY header of version 2.
    pub(crate) proxy_out: bool,
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
            records: false,
            proxy_out: false,
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

/// Connections that have ended on one side only, or whose successor has begun: in motion, and then some.
const BEING_REPLACED: u32 = 2_048;

/// Connections at rest at most: as many as end within the time, at 1.5 million per second, or at a million with so many
/// open that each costs some more cache misses.
fn resting(settings: &CpsSettings) -> u32 {
    let rate = if settings.open < 500_000 { 1.5e6 } else { 1e6 };
    (settings.time_wait.as_secs_f64() * rate) as u32
}

/// A ring port that counts what passes and has an address, which rings have not. It is used by one thread; the counters are
/// shared with the bench on the same thread.
pub(crate) struct CountingPort {
    inner: DpdkQueue,
    mac: MacAddr,
    passed: Arc<Passed>,
}

impl CountingPort {
    fn new(inner: DpdkQueue, passed: &Arc<Passed>) -> CountingPort {
        let mac = MacAddr([2, 0, 0, 0, 0, inner.id().0]);
        CountingPort {
            inner,
            mac,
            passed: passed.clone(),
        }
    }
}

/// In lines of its own: on two cores the counters of the load's ends, which stand beside it on the heap, would take its line
/// away with every poll.
#[derive(Default)]
#[repr(align(128))]
struct Passed {
    received: AtomicU64,
    sent: AtomicU64,
}

/// One thread writes: a load and a store, no locked instruction.
fn add(counter: &AtomicU64, count: usize) {
    counter.store(counter.load(Ordering::Relaxed) + count as u64, Ordering::Relaxed);
}

impl Port for CountingPort {
    type Buffer = e2d2::native::Mbuf;

    fn id(&self) -> PortId {
        self.inner.id()
    }

    fn mac(&self) -> MacAddr {
        self.mac
    }

    fn mtu(&self) -> u16 {
        self.inner.mtu()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    #[inline]
    fn receive(&mut self, into: &mut ArrayVec<Self::Buffer, BURST>) -> usize {
        let count = self.inner.receive(into);
        add(&self.passed.received, count);
        count
    }

    #[inline]
    fn transmit(&mut self, from: &mut ArrayVec<Self::Buffer, BURST>) -> usize {
        let count = self.inner.transmit(from);
        add(&self.passed.sent, count);
        count
    }
}

/// The engine's machine as types only: the bench opens ports and pools itself.
pub(crate) struct BenchMachine;

impl Machine for BenchMachine {
    type Port = CountingPort;
    type Pool = MbufPool;
    type Thread = RegisteredThread;
    type Handle = Arc<Eal>;

    fn open(_: &Config) -> Result<Opened<Self>, MachineError> {
        Err("the bench opens its ports itself".into())
    }

    fn enter_thread(eal: &Arc<Eal>) -> Result<RegisteredThread, MachineError> {
        Ok(eal.register_thread()?)
    }

    fn handle(&self) -> Arc<Eal> {
        unreachable!("a value of this type is never made: `open` refuses")
    }

    fn macs(&self) -> Vec<MacAddr> {
        Vec::new()
    }

    fn port_reports(&self) -> Vec<PortReport> {
        Vec::new()
    }
}

/// The proxy.
pub(crate) struct ProxyDevice {
    program: Box<dyn Program>,
    task: Box<dyn Task>,
    passed: Arc<Passed>,
    before: (u64, u64),
    drain: Option<RecordDrain>,
}

impl DeviceUnderTest for ProxyDevice {
    fn round(&mut self, now: Instant) -> RoundWork {
        let work = self.task.run(now);
        let after = (
            self.passed.received.load(Ordering::Relaxed),
            self.passed.sent.load(Ordering::Relaxed),
        );
        let before = std::mem::replace(&mut self.before, after);
        let (received, sent) = ((after.0 - before.0) as u32, (after.1 - before.1) as u32);
        RoundWork {
            received,
            sent,
            other: u32::from(!work.is_none()),
        }
    }

    fn counts(&self) -> DeviceCounts {
        let counters = self.program.counters();
        let drops = ["proxy_drops", "graph_drops", "queue_drops"];
        let dropped: u64 = drops
            .iter()
            .filter_map(|name| counters.group(name))
            .map(|group| group.total())
            .sum();
        // A packet that was for the proxy itself ends there.
        let consumed = counters
            .group("proxy_drops")
            .and_then(|group| group.count("consumed"))
            .unwrap_or(0);
        DeviceCounts {
            lost: dropped - consumed,
            records_lost: self
                .drain
                .as_ref()
                .map_or(0, |drain| drain.lost.load(Ordering::Relaxed)),
            open: self.program.open_connections(),
            state_bytes: self.program.state_bytes().iter().map(|(_, bytes)| bytes).sum(),
        }
    }

    fn state_by_structure(&self) -> Vec<(&'static str, u64)> {
        self.program.state_bytes()
    }
}

impl ProxyDevice {
    /// Packets dropped that should not have been.
    pub(crate) fn lost(&self) -> u64 {
        DeviceUnderTest::counts(self).lost
    }

    /// Bytes of connection state in use.
    pub(crate) fn state_in_use(&self) -> u64 {
        self.program.state_in_use()
    }

    /// Everything counted, by group.
    pub(crate) fn counters(&self) -> proxyengine::report::CounterGroups {
        self.program.counters()
    }
}

/// Takes records out of the ring on a thread of its own.
struct RecordDrain {
    stop: Arc<AtomicBool>,
    lost: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl RecordDrain {
    fn start(mut receiver: RecordReceiver) -> Result<RecordDrain, BoxError> {
        let (stop, lost) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, lost_there) = (stop.clone(), lost.clone());
        let bench = sched_getaffinity(None)?;
        let thread = std::thread::Builder::new().name("records".to_owned()).spawn(move || {
            keep_off(&bench);
            while !stopped.load(Ordering::Relaxed) {
                receiver.drain(|record| _ = std::hint::black_box(record.bytes_to_client()));
                lost_there.store(receiver.records_lost(), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(5));
            }
        })?;
        Ok(RecordDrain {
            stop,
            lost,
            thread: Some(thread),
        })
    }
}

/// Moves this thread off the CPU that the bench is pinned to, which it would have inherited.
fn keep_off(bench: &CpuSet) {
    if bench.count() != 1 {
        return;
    }
    let mut others = CpuSet::new();
    (0..CpuSet::MAX_CPU)
        .filter(|&cpu| !bench.is_set(cpu))
        .for_each(|cpu| others.set(cpu));
    // With one CPU there is no other: then it stays.
    let _stays = sched_setaffinity(None, &others);
}

impl Drop for RecordDrain {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It cannot have panicked but by a defect, which would have been printed.
            let _ended = thread.join();
        }
    }
}

/// The proxy, and the load's ends of its rings, with no load on them yet.
pub(crate) struct Ends {
    pub(crate) device: ProxyDevice,
    /// To the clients' port and to the servers'.
    pub(crate) cables: [CountingPort; 2],
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
    ) -> Result<(Vec<Arm<CountingPort>>, MbufPool), BoxError> {
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
        let end = |queues: Vec<DpdkQueue>| -> Result<CountingPort, BoxError> {
            let queue = queues.into_iter().next().ok_or("a port without a queue")?;
            Ok(CountingPort::new(queue, &Arc::default()))
        };
        let (client_end, server_end) = (end(near)?, end(far)?);
        let (mut client, _) = roles(conditions);
        client.servers = 1;
        let server = cps_server(&client, &client.targets.clone());
        let macs = [server_end.mac(), client_end.mac()];
        Ok((arms(client, server, &macs, client_end, server_end, clock.now()), pool))
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
    pub(crate) fn part(&self, inline: InlineProxy, cpu: Option<usize>) -> Result<TwoCoreProxy, BoxError> {
        let (device, arms, pool, clock) = inline.into_parts();
        let load = self.start_load(arms, pool, clock, cpu)?;
        Ok(TwoCoreBench::new(device, load, clock))
    }

    /// Starts to play the arms on a thread of its own, on this CPU, in the time of this clock.
    pub(crate) fn start_load(
        &self,
        arms: Vec<Arm<CountingPort>>,
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

/// Load and proxy on two cores.
pub(crate) type TwoCoreProxy = TwoCoreBench<ProxyDevice, LoadThread>;

/// Load and proxy in one thread.
pub(crate) type InlineProxy = InlineBench<ProxyDevice, CountingPort, MbufPool, Clock>;

/// Opens rings, proxy and load on the calling thread; one of several proxies if it is a member.
fn open_on(eal: &Eal, name: char, conditions: &Conditions, member: Option<Member>) -> Result<InlineProxy, BoxError> {
    let listener = member
        .as_ref()
        .map_or(SocketAddr::new(LISTENER.into(), 8080), |member| member.listener);
    let ends = open_ends_on(eal, name, conditions, member, |text| text)?;
    let [client_end, server_end] = ends.cables;
    let (mut client, server) = roles(conditions);
    client.targets = vec![listener];
    let arms = arms(client, server, &ends.macs, client_end, server_end, ends.clock.now());
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
    let queues = 2 * u32::from(conditions.descriptors + 1);
    let demand = PoolDemand {
        queues,
        held: HELD_BY_LOAD,
        threads: 1,
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
    let (proxy_pool, load_pool) = (pool("proxy")?, pool("load")?);
    let pair = |role: char, first: u8| -> Result<(DpdkQueue, DpdkQueue), BoxError> {
        let (name, ids) = (format!("{role}{name}"), [PortId(first), PortId(first + 10)]);
        let pools: [&[&MbufPool]; 2] = [&[&proxy_pool], &[&load_pool]];
        let [(_, near), (_, far)] = ring_pair(eal, &name, ids, conditions.descriptors, conditions.mtu, pools)?;
        let one = |queues: Vec<DpdkQueue>| queues.into_iter().next().ok_or("a port without a queue");
        Ok((one(near)?, one(far)?))
    };
    let (client_port, client_end) = pair('c', 0)?;
    let (server_port, server_end) = pair('s', 1)?;

    let passed = Arc::new(Passed::default());
    let (client_port, server_port) = (
        CountingPort::new(client_port, &passed),
        CountingPort::new(server_port, &passed),
    );
    // What the load's ends count is asked of the generators.
    let [client_end, server_end] = [client_end, server_end].map(|end| CountingPort::new(end, &Arc::default()));
    let macs = [client_port.mac(), server_port.mac()];
    let text = adjust(match &member {
        Some(member) => member.text.clone(),
        None => configuration(conditions, ["net_ring0", "net_ring1"], server_end.mac()),
    });
    let clock = Clock::new();
    let ports = [client_port, server_port];
    let device = proxy(conditions, &text, ports, proxy_pool.clone(), clock, passed, member)?;
    Ok(Ends {
        device,
        cables: [client_end, server_end],
        macs,
        load_pool,
        proxy_pool,
        clock,
    })
}

/// The engine's core program on these ports, and a thread that drains its records if it is to keep any.
fn proxy(
    conditions: &Conditions,
    text: &str,
    ports: [CountingPort; 2],
    pool: MbufPool,
    clock: Clock,
    passed: Arc<Passed>,
    member: Option<Member>,
) -> Result<ProxyDevice, BoxError> {
    let config = Config::parse(text, "bench")?;
    let macs = [ports[0].mac(), ports[1].mac()];
    let parts: CoreParts<BenchMachine> = CoreParts {
        core: CoreId(0),
        ports: ports.into(),
        pool,
    };
    let (topology, neighbours, others) = match member {
        Some(member) => (member.topology, member.neighbours, Some(member.others)),
        None => {
            let topology = Arc::new(Topology::from_config(&config, &macs)?);
            let neighbours = Arc::new(SharedNeighbours::new(&topology));
            (topology, neighbours, None)
        }
    };
    let (sender, receiver) = record_ring(RING_CAPACITY);
    let selector = RuleSelector::new(&config);
    let start = CoreStart {
        index: 0,
        leads: config.ports().iter().map(|port| port.id).collect(),
        config: Arc::new(config),
        parts,
        topology,
        neighbours,
        kernel: None,
        records: sender,
        others,
        clock,
    };
    let (program, task) = Engine::core_program(start, &move |_: CoreId| selector.clone())?;
    Ok(ProxyDevice {
        program: Box::new(program),
        task: Box::new(task),
        passed,
        before: (0, 0),
        drain: conditions.records.then(|| RecordDrain::start(receiver)).transpose()?,
    })
}

fn server_addresses() -> Vec<SocketAddr> {
    (1..=SERVERS)
        .map(|last| SocketAddr::new(IpAddr::from([10, 2, 0, last]), 80))
        .collect()
}

pub(crate) const LISTENER: Ipv4Addr = Ipv4Addr::new(10, 1, 255, 254);

fn load(
    conditions: &Conditions,
    macs: &[MacAddr; 2],
    client_end: CountingPort,
    server_end: CountingPort,
    now: Instant,
) -> Vec<Arm<CountingPort>> {
    let (client, server) = roles(conditions);
    arms(client, server, macs, client_end, server_end, now)
}

/// What clients and servers do.
pub(crate) fn roles(conditions: &Conditions) -> (ClientSettings, ServerSettings) {
    // With 64 512 ports each: four million end points, and some that rest.
    let sources: AddressRange = "10.1.0.1-10.1.0.80".parse().expect("a range of addresses");
    let mut client = cps_client(
        &conditions.settings,
        sources,
        SocketAddr::new(LISTENER.into(), 8080),
        SERVERS,
    );
    (client.rounds, client.request, client.response) = (conditions.rounds, conditions.request, conditions.response);
    client.tcp[0].mss = conditions.mtu - 40;
    client.depth = conditions.depth;
    if let Some(rate) = conditions.rate {
        client.pace = Pace::Open { rate };
    }
    let mut server = cps_server(&client, &server_addresses());
    server.proxy_header = conditions.proxy_out;
    (client, server)
}

/// A role, or both, that sends everything to `next_hop`.
pub(crate) fn generator(
    client: Option<ClientSettings>,
    server: Option<ServerSettings>,
    next_hop: MacAddr,
    now: Instant,
) -> Generator<e2d2::native::Mbuf> {
    let link = LinkSettings {
        next_hop_mac: Some(next_hop),
        ..LinkSettings::default()
    };
    let settings = GeneratorSettings {
        link,
        client,
        server,
        verify_checksums: true,
    };
    Generator::new(settings, now)
}

/// Both ends of the load, which reach each other, or the proxy, at these addresses.
fn arms(
    client: ClientSettings,
    server: ServerSettings,
    macs: &[MacAddr; 2],
    client_end: CountingPort,
    server_end: CountingPort,
    now: Instant,
) -> Vec<Arm<CountingPort>> {
    let generator = |client, server, mac| generator(client, server, mac, now);
    vec![
        Arm {
            generator: generator(Some(client), None, macs[0]),
            port: client_end,
        },
        Arm {
            generator: generator(None, Some(server), macs[1]),
            port: server_end,
        },
    ]
}
