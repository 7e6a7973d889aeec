//! Several cores behind software NICs on heap memory, with clients and servers, all in one thread: nothing waits for
//! anything else, and what happens depends on no scheduler.
//!
//! ```text
//!   clients ◄─► cable ◄─► software NIC ◄─► n queues ◄─┐
//!                                                      ├─► n cores: the engine's own program and graph
//!   servers ◄─► cable ◄─► software NIC ◄─► n queues ◄─┘      with rings between them
//! ```

use std::error::Error;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use benchkit::{Arm, CpsSettings, LoadTotals, cps_arms, cps_client, cps_server};
use e2d2::buffer::{HeapBuffer, HeapPool};
use e2d2::flow::{FlowError, FlowRule, NicModel};
use e2d2::operators::Task;
use e2d2::port::PortId;
use e2d2::ports::{LoopbackPort, NicConfig, NicParts, NicQueue, NicSide, SoftwareNic};
use e2d2::rss::Rss;
use e2d2::time::{Clock, Instant};
use e2d2::wire::MacAddr;
use netfcts::ring::record_ring;
use proxyengine::config::{Config, CoreId};
use proxyengine::engine::machine::{CoreParts, Machine, MachineError, Opened};
use proxyengine::engine::{CoreStart, Engine, Program};
use proxyengine::neighbour::{SharedNeighbours, Topology};
use proxyengine::report::{CounterGroups, PortReport};
use proxyengine::selectors::RuleSelector;
use serde::Serialize;
use trafficengine::{AddressRange, Pace};

pub(crate) type BoxError = Box<dyn Error + Send + Sync>;

/// Servers behind the proxy.
const SERVERS: u8 = 4;

/// Addresses that they are reached from: one for each of eight cores.
const LOCALS: u8 = 8;

const LISTENER: Ipv4Addr = Ipv4Addr::new(10, 1, 255, 254);

/// Packets that a cable or a ring holds: far more than are in motion.
const ROOM: usize = 4096;

/// Connections at once: a burst for each core, and some more.
const OPEN: u32 = 256;

/// After this long without a connection that ends, those that are open count as failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// What one run has shown. The names are those of its JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Outcome {
    /// How servers' answers found their core.
    pub(crate) mode: &'static str,
    /// Queues, and cores.
    pub(crate) queues: usize,
    /// Connections that were begun.
    pub(crate) connections: u64,
    /// TCP packets that came in on the wrong core.
    pub(crate) mis_steered: u64,
    /// Packets that changed cores.
    pub(crate) handed_over: u64,
    /// Connections that did not end as they should, or not at all.
    pub(crate) failed: u64,
}

/// The ways, and the card that each is tried on.
pub(crate) const MODES: [(&str, NicModel); 4] = [
    ("rss", NicModel::Rss),
    ("port", NicModel::Intel82599),
    ("ip", NicModel::X710),
    ("software", NicModel::Rss),
];

/// The cards.
struct FieldMachine {
    nics: Vec<SoftwareNic>,
}

impl Machine for FieldMachine {
    type Port = NicQueue<HeapBuffer>;
    type Pool = HeapPool;
    type Thread = ();
    type Handle = ();

    fn open(_: &Config) -> Result<Opened<Self>, MachineError> {
        Err("the bench opens its ports itself".into())
    }

    fn enter_thread((): &()) -> Result<(), MachineError> {
        Ok(())
    }

    fn handle(&self) {}

    fn macs(&self) -> Vec<MacAddr> {
        vec![near_mac(0), near_mac(1)]
    }

    fn rss(&self, port: usize) -> Option<Rss> {
        self.nics.get(port).map(|nic| nic.rss().clone())
    }

    fn install(&mut self, port: usize, rules: &[FlowRule]) -> Result<(), FlowError> {
        let Some(nic) = self.nics.get_mut(port) else {
            return Err(FlowError::no_rules("no port"));
        };
        nic.remove_rules();
        nic.install(rules)
    }

    fn port_reports(&self) -> Vec<PortReport> {
        Vec::new()
    }
}

fn near_mac(port: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 1, port])
}

/// What the engine makes for a core: what its thread talks to, and what it runs.
type Core = (Box<dyn Program>, Box<dyn Task>);

/// The whole field.
struct Field {
    arms: Vec<Arm<LoopbackPort<HeapBuffer>>>,
    load_pool: HeapPool,
    sides: Vec<NicSide<LoopbackPort<HeapBuffer>>>,
    cores: Vec<Core>,
    machine: FieldMachine,
    clock: Clock,
}

/// Runs so many connections through so many queues, and says what became of them.
///
/// # Errors
/// The configuration or the way is refused.
pub(crate) fn run(
    (mode, model): (&'static str, NicModel),
    queues: usize,
    connections: u64,
) -> Result<Outcome, BoxError> {
    let mut field = Field::new((mode, model), queues, connections)?;
    field.run();
    let totals = LoadTotals::of(&field.arms);
    let completed = field.completed();
    let mut counters = CounterGroups::default();
    for (program, _) in &field.cores {
        counters.add_all(&program.counters());
    }
    let count = |name| {
        counters
            .group("steering")
            .and_then(|group| group.count(name))
            .unwrap_or(0)
    };
    let outcome = Outcome {
        mode,
        queues,
        connections,
        mis_steered: count("mis_steered"),
        handed_over: count("handed_over"),
        failed: connections.saturating_sub(completed) + totals.failed + totals.wrong_server,
    };
    if count("hash_wrong") > 0 {
        return Err(format!("{mode}, {queues} queues: the NIC's hash is not ours").into());
    }
    let rules: usize = field.machine.nics.iter().map(|nic| nic.rules().len()).sum();
    if (rules > 0) != (matches!(mode, "port" | "ip") && queues > 1) {
        return Err(format!("{mode}, {queues} queues: the NICs have {rules} rules").into());
    }
    Ok(outcome)
}

impl Outcome {
    /// Whether all is as the mode promises.
    pub(crate) fn is_right(&self) -> bool {
        let is_steered = match (self.mode, self.queues) {
            ("software", 2..) => self.mis_steered > 0 && self.handed_over == self.mis_steered,
            _ => self.mis_steered == 0 && self.handed_over == 0,
        };
        is_steered && self.failed == 0
    }
}

impl Field {
    fn new((mode, model): (&str, NicModel), queues: usize, connections: u64) -> Result<Self, BoxError> {
        let clock = Clock::new();
        let config = Arc::new(Config::parse(&configuration(mode, queues), "bench")?);
        let (mut ends, mut nics, mut sides, mut queues_of) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for port in 0..2_u8 {
            let (near, far) = LoopbackPort::pair(PortId(port), PortId(100 + port), ROOM);
            let config = NicConfig {
                rx_ring: ROOM,
                tx_ring: ROOM,
                ..NicConfig::new(model, queues as u16)
            };
            let NicParts { nic, side, queues } = SoftwareNic::open(near.with_mac(near_mac(port)), &config)?;
            nics.push(nic);
            sides.push(side);
            queues_of.push(queues.into_iter());
            ends.push(far);
        }
        let mut machine = FieldMachine { nics };
        let cores = cores(&config, &mut machine, &mut queues_of, queues, clock)?;
        let mut ends = ends.into_iter();
        let (Some(clients), Some(servers)) = (ends.next(), ends.next()) else {
            return Err("a cable without ends".into());
        };
        Ok(Self {
            arms: arms(connections, [clients, servers], clock.now()),
            load_pool: HeapPool::new(8 * ROOM, 2048),
            sides,
            cores,
            machine,
            clock,
        })
    }

    /// Until every connection is over, or nothing moves any more.
    fn run(&mut self) {
        let mut last = (self.clock.now(), 0);
        loop {
            for _ in 0..64 {
                self.turn();
            }
            let (now, completed) = (self.clock.now(), self.completed());
            if completed != last.1 {
                last = (now, completed);
            }
            // The servers never know that there will be no more.
            let is_done = self.arms.iter().any(|arm| arm.generator.is_done(now));
            let is_over = is_done && self.arms.iter().all(|arm| arm.generator.open() == (0, 0));
            if is_over || now >= last.0 + PATIENCE {
                return;
            }
        }
    }

    fn turn(&mut self) -> Instant {
        let now = self.clock.now();
        for arm in &mut self.arms {
            let _units = arm.generator.poll(now, &mut arm.port, &mut self.load_pool);
        }
        for side in &mut self.sides {
            let _units = side.run(now);
        }
        for (_, task) in &mut self.cores {
            let _units = task.run(now);
        }
        now
    }

    fn completed(&self) -> u64 {
        let stats = self.arms.iter().filter_map(|arm| arm.generator.client_stats());
        stats.map(|stats| stats.connections.completed).sum()
    }
}

/// The engine's program for each core, as its threads would have it.
fn cores(
    config: &Arc<Config>,
    machine: &mut FieldMachine,
    queues_of: &mut [impl Iterator<Item = NicQueue<HeapBuffer>>],
    count: usize,
    clock: Clock,
) -> Result<Vec<Core>, BoxError> {
    let topology = Arc::new(Topology::from_config(config, &machine.macs())?);
    let neighbours = Arc::new(SharedNeighbours::new(&topology));
    let others = Engine::steer(config, machine, count)?;
    let rules = RuleSelector::new(config);
    let mut cores: Vec<Core> = Vec::new();
    for (index, others) in others.into_iter().enumerate() {
        let parts: CoreParts<FieldMachine> = CoreParts {
            core: CoreId(index as u16),
            ports: queues_of.iter_mut().filter_map(Iterator::next).collect(),
            pool: HeapPool::new(4 * ROOM, 2048),
        };
        let leads = config.ports().iter().map(|port| port.id).filter(|_| index == 0);
        let (records, _not_kept) = record_ring(1);
        let start = CoreStart {
            standby: Arc::default(),
            index,
            leads: leads.collect(),
            config: Arc::clone(config),
            parts,
            topology: Arc::clone(&topology),
            neighbours: Arc::clone(&neighbours),
            kernel: None,
            records,
            log: proxyengine::log_ring::log_ring(1).0,
            others,
            commands: None,
            checks: None,
            clock,
        };
        let (program, task) = Engine::core_program(start, &rules)?;
        cores.push((Box::new(program), Box::new(task)));
    }
    Ok(cores)
}

fn arms(connections: u64, ends: [LoopbackPort<HeapBuffer>; 2], now: Instant) -> Vec<Arm<LoopbackPort<HeapBuffer>>> {
    let settings = CpsSettings {
        open: OPEN,
        ..CpsSettings::default()
    };
    let sources: AddressRange = "10.1.0.1-10.1.0.80".parse().expect("a range of addresses");
    let mut client = cps_client(&settings, sources, SocketAddr::new(LISTENER.into(), 8080), SERVERS);
    client.pace = Pace::Closed { open: OPEN };
    client.span.total = Some(connections);
    let server = cps_server(&client, &server_addresses());
    cps_arms(client, server, &[near_mac(0), near_mac(1)], ends, now)
}

fn server_addresses() -> Vec<SocketAddr> {
    let address = |last| SocketAddr::new(IpAddr::from([10, 2, 0, last]), 80);
    (1..=SERVERS).map(address).collect()
}

/// The proxy's configuration, in the words of its users.
fn configuration(mode: &str, queues: usize) -> String {
    let server_mac = MacAddr([2, 0, 0, 0, 0, 101]);
    let list = |items: Vec<String>| items.join(", ");
    let server = |(index, address): (usize, SocketAddr)| {
        format!("{{ name = \"s{index}\", address = \"{address}\", mac = \"{server_mac}\" }}")
    };
    let servers = server_addresses().into_iter().enumerate().map(server).collect();
    let locals = (1..=LOCALS).map(|last| format!("\"10.2.100.{last}\"")).collect();
    format!(
        r#"
[engine]
cores = [{cores}]
max_connections = 16384
steering = "{mode}"
[[port]]
name = "clients"
device = "net_null0"
addresses = ["{LISTENER}/16"]
[[port]]
name = "servers"
device = "net_null1"
addresses = ["10.2.255.254/16"]
[[listener]]
name = "bench"
addresses = ["{LISTENER}:8080"]
rules = [{{ first_number = true, pool = "servers" }}]
default = "reject"
[timeouts]
time_wait = "1s"
[syn_ack]
probe = false
[[pool]]
name = "servers"
local_addresses = [{locals}]
servers = [{servers}]
"#,
        cores = list((0..queues).map(|core| core.to_string()).collect()),
        locals = list(locals),
        servers = list(servers),
    )
}
