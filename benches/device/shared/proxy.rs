//! The engine's program and graph of one core on the bench's ports.

use std::sync::Arc;
use std::time::Duration;

use benchkit::{DeviceCounts, DeviceUnderTest, RoundWork};
use e2d2::native::{DpdkQueue, MbufPool};
use e2d2::port::Port;
use e2d2::scheduler::{Task, Usage};
use e2d2::time::{Clock, Instant};
use hdrhistogram::Histogram;
use netfcts::ring::record_ring;
use proxyengine::callbacks::inspected;
use proxyengine::commands::command_ring;
use proxyengine::config::{Config, CoreId};
use proxyengine::engine::machine::CoreParts;
use proxyengine::engine::{BoxedCore, CoreStart, Desk, DpdkMachine, Engine, EngineQueue, Program, Shown, Watch};
use proxyengine::log_ring::{LOG_RING, log_ring};
use proxyengine::neighbour::{SharedNeighbours, Topology};
use proxyengine::records::{RING_CAPACITY, RecordKeeper};
use proxyengine::selectors::RuleSelector;
use splice::tally::Tally;

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
    reloads: Option<Reloads>,
    /// While the core is [hidden](Self::hide): where it counts otherwise.
    hidden: Option<Arc<Tally>>,
}

impl DeviceUnderTest for ProxyDevice {
    fn round(&mut self, now: Instant) -> RoundWork {
        let began = self.reloads.as_ref().map(|_| used_by_thread());
        let work = self.task.run(now);
        if let (Some(shown), None) = (&mut self.shown, &self.hidden) {
            let followed = self.program.follow(now, shown);
            if let (true, Some(reloads), Some(began)) = (followed, &mut self.reloads, began) {
                reloads.note(used_by_thread().saturating_sub(began));
            }
            shown.write_if_due(now, &mut Usage::default(), &*self.program);
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

/// A second, in ns: what took longer counts as that.
const LONGEST_ROUND: u64 = 1_000_000_000;

/// Rounds in which there was an order to go on with another version, or to look at connections for what is past.
#[derive(Clone, Debug)]
pub(crate) struct Reloads {
    /// CPU time of each in ns: in memory that does not grow with them, as that of the engine is measured beside.
    pub(crate) rounds: Histogram<u64>,
    /// CPU time of the longest.
    pub(crate) longest: Duration,
    /// Those that took more than 50 µs of it.
    pub(crate) over_50us: u64,
}

impl Default for Reloads {
    fn default() -> Self {
        Self {
            rounds: Histogram::new_with_max(LONGEST_ROUND, 3).expect("a range and digits that there can be"),
            longest: Duration::ZERO,
            over_50us: 0,
        }
    }
}

impl Reloads {
    fn note(&mut self, used: Duration) {
        self.rounds.saturating_record(used.as_nanos() as u64);
        self.longest = self.longest.max(used);
        self.over_50us += u64::from(used > Duration::from_micros(50));
    }
}

/// CPU time that this thread has used: what others take away is no part of it.
fn used_by_thread() -> Duration {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(used.tv_sec as u64, used.tv_nsec as u32)
}

impl ProxyDevice {
    /// What rounds have taken since the last call in which it was told to go on with another version.
    pub(crate) fn take_reloads(&mut self) -> Reloads {
        self.reloads.replace(Reloads::default()).unwrap_or_default()
    }

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

    /// Counts and times nothing by listener, rule, pool and server, watches no more legs and shows no numbers, or does all that again.
    pub(crate) fn hide(&mut self, is_hidden: bool) {
        if let Some(mut counted) = self.hidden.take() {
            self.program.swap_tally(&mut counted);
        }
        self.hidden = is_hidden.then(|| {
            let mut tally = Arc::new(Tally::none());
            self.program.swap_tally(&mut tally);
            tally
        });
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
    let (topology, neighbours, others, desk) = match member {
        Some(member) => (member.topology, member.neighbours, Some(member.others), member.desk),
        None => {
            let topology = Arc::new(Topology::from_config(&config, &macs)?);
            let neighbours = Arc::new(SharedNeighbours::new(&topology));
            (topology, neighbours, None, None)
        }
    };
    let is_reloaded = desk.is_some();
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
        checks: None,
        clock,
    };
    let (program, task) = core(conditions, start, desk)?;
    let shown = conditions.shown.then(|| Shown::new(CoreId(0), &clock, &*program));
    let sinks = conditions.sinks.map_or(&[][..], |_| config.records());
    let records = conditions.records.then(|| drain::start(receiver, sinks)).transpose()?;
    let watch = shown
        .as_ref()
        .map(|shown| Watch::over(Arc::clone(&config), &[shown], hops, (clock, vec![commander])));
    Ok(ProxyDevice {
        reloads: is_reloaded.then(Reloads::default),
        hidden: None,
        shown,
        watch,
        program,
        task,
        before: (0, 0),
        records,
    })
}

/// The core as the conditions have it.
fn core(
    conditions: &Conditions,
    start: CoreStart<DpdkMachine>,
    desk: Option<Desk<RuleSelector>>,
) -> Result<BoxedCore, BoxError> {
    Ok(match conditions.inspect {
        None if conditions.stage_cycles => Engine::timed_core_by_rules(start)?,
        None => Engine::core_by_rules(start, desk)?,
        Some(inspect) => {
            let selectors = inspected(RuleSelector::new(&start.config), Inspector::factory(inspect));
            let (program, task) = Engine::core_program(start, &selectors)?;
            (Box::new(program) as Box<dyn Program>, Box::new(task) as Box<dyn Task>)
        }
    })
}
