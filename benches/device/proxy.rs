//! The engine's program and graph of one core on the bench's ports.

use std::sync::Arc;

use e2d2::native::{DpdkQueue, MbufPool};
use e2d2::port::Port;
use e2d2::scheduler::{Task, Usage};
use e2d2::time::{Clock, Instant};
use netfcts::ring::record_ring;
use proxyengine::callbacks::inspected;
use proxyengine::commands::command_ring;
use proxyengine::config::{Config, CoreId};
use proxyengine::engine::machine::CoreParts;
use proxyengine::engine::{CoreStart, DpdkMachine, Engine, EngineQueue, Program, Shown, Watch};
use proxyengine::log_ring::{LOG_RING, log_ring};
use proxyengine::neighbour::{SharedNeighbours, Topology};
use proxyengine::records::{RING_CAPACITY, RecordKeeper};
use proxyengine::selectors::RuleSelector;
use trafficengine::bench::{DeviceCounts, DeviceUnderTest, RoundWork};

use super::inspectors::Inspector;
use super::port::mac_of;
use super::{BoxError, Conditions, Member, drain};

/// The proxy.
pub(crate) struct ProxyDevice {
    program: Box<dyn Program>,
    task: Box<dyn Task>,
    before: (u64, u64),
    records: Option<RecordKeeper>,
    shown: Option<Shown>,
    watch: Option<Watch>,
}

impl DeviceUnderTest for ProxyDevice {
    fn round(&mut self, now: Instant) -> RoundWork {
        let work = self.task.run(now);
        if let Some(shown) = &mut self.shown {
            shown.write_if_due(now, &Usage::default(), &*self.program);
        }
        let after = self.program.packets();
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
                .records
                .as_ref()
                .map_or(0, |records| records.watch().lost_in_rings()),
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

    /// Bytes of connection state that came into use since the start and are kept.
    pub(crate) fn state_grown(&self) -> u64 {
        self.program.state_grown()
    }

    /// A view of its numbers, if it shows them.
    pub(crate) fn watch(&self) -> Option<Watch> {
        self.watch.clone()
    }

    /// Shows its numbers now, if it does at all.
    pub(crate) fn show(&mut self, now: Instant) {
        if let Some(shown) = &mut self.shown {
            shown.write(now, &Usage::default(), &*self.program);
        }
    }

    /// Everything counted, by group.
    pub(crate) fn counters(&self) -> proxyengine::report::CounterGroups {
        self.program.counters()
    }
}

/// The engine's core program on these ports, and a thread that drains its records if it is to keep any.
pub(super) fn proxy(
    conditions: &Conditions,
    text: &str,
    ports: [DpdkQueue; 2],
    pool: MbufPool,
    clock: Clock,
    member: Option<Member>,
) -> Result<ProxyDevice, BoxError> {
    let config = Config::parse(text, "bench")?;
    let macs = [mac_of(ports[0].id()), mac_of(ports[1].id())];
    let parts: CoreParts<DpdkMachine> = CoreParts {
        core: CoreId(0),
        ports: ports.map(EngineQueue::from).into(),
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
    let config = Arc::new(config);
    let hops = (Arc::clone(&neighbours), Arc::clone(&topology));
    let (sender, receiver) = record_ring(RING_CAPACITY);
    let (commander, commands) = command_ring();
    let start = CoreStart {
        standby: Arc::default(),
        index: 0,
        leads: config.ports().iter().map(|port| port.id).collect(),
        config: Arc::clone(&config),
        parts,
        topology,
        neighbours,
        kernel: None,
        records: sender,
        log: log_ring(LOG_RING).0,
        others,
        commands: conditions.shown.then_some(commands),
        clock,
    };
    let (program, task) = match conditions.inspect {
        None if conditions.stage_cycles => Engine::timed_core_by_rules(start)?,
        None => Engine::core_by_rules(start)?,
        Some(inspect) => {
            let selectors = inspected(RuleSelector::new(&start.config), Inspector::factory(inspect));
            let (program, task) = Engine::core_program(start, &selectors)?;
            (Box::new(program) as Box<dyn Program>, Box::new(task) as Box<dyn Task>)
        }
    };
    let shown = conditions.shown.then(|| Shown::new(CoreId(0), &clock, &*program));
    let sinks = conditions.sinks.map_or(&[][..], |_| config.records());
    let records = conditions.records.then(|| drain::start(receiver, sinks)).transpose()?;
    let watch = shown
        .as_ref()
        .map(|shown| Watch::over(Arc::clone(&config), &[shown], hops, (clock, vec![commander])));
    Ok(ProxyDevice {
        shown,
        watch,
        program,
        task,
        before: (0, 0),
        records,
    })
}
