//! An engine that runs: it is looked at, goes on with another configuration, drains and ends.

use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use e2d2::port::PortId;
use e2d2::time::Clock;
use netfcts::format::{NameTable, Named};

use super::crew::Crew;
use super::generation::{GenerationError, Generations};
use super::links::LinkWatch;
use super::machine::{Machine, WatchedPool};
use super::reloader::{self, Before};
use super::server_watch::{Checked, ServerWatch};
use super::slow_servers::SlowWatch;
use super::steering::SteeringError;
use super::watch::{Noted, Services, Watch};
use crate::checks::CheckThread;
use crate::config::{self, Answers, Config, ConfigError, ListChange, Standing};
use crate::kernel::KernelLinks;
use crate::log_ring::LogWriter;
use crate::neighbour::{SharedNeighbours, Topology, TopologyError};
use crate::records::{OpenError, RecordKeeper, RecordWatch};
use crate::report::{Buffers, CoreReport, NameReport, NextHopTotals, PortReport, Report, ServerReport};
use splice::difference::Difference;

/// How often a draining engine looks whether connections are left.
const DRAIN_PACE: Duration = Duration::from_millis(20);

/// The first pause between attempts to take expired entries out of lists; it doubles with each failure.
const EXPIRES_AGAIN: Duration = Duration::from_secs(2);

/// The longest.
const EXPIRES_AGAIN_AT_LAST: Duration = Duration::from_secs(64);

/// How long the end of the engine waits for a capture whose reader is slow.
const CAPTURE_ENDS: Duration = Duration::from_secs(2);

/// Why an engine goes on with the configuration that it has.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// The file has an error, or differs in what needs a restart.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The addresses do not make a network.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// An engine would not start with it.
    #[error(transparent)]
    Steering(#[from] SteeringError),
    /// The cores.
    #[error(transparent)]
    Cores(#[from] GenerationError),
    /// A sink of records.
    #[error(transparent)]
    Records(#[from] OpenError),
    /// The engine was started by a program that has cores of its own.
    #[error("the cores of this engine keep the settings that they began with")]
    Fixed,
}

/// An engine whose workers run. Dropping it ends them without a report.
pub struct RunningEngine<M: Machine> {
    // In this order: the workers' ports and buffers go before the devices and pools.
    pub(super) crew: Crew,
    pub(super) _kernel: KernelLinks,
    pub(super) checks: CheckThread,
    pub(super) records: RecordKeeper,
    pub(super) log: LogWriter,
    pub(super) config: Arc<Config>,
    pub(super) links: LinkWatch,
    pub(super) machine: M,
    pub(super) pools: Vec<WatchedPool<M::Pool>>,
    pub(super) neighbours: Arc<SharedNeighbours>,
    pub(super) clock: Clock,
    pub(super) watch: Watch,
    pub(super) servers: ServerWatch,
    pub(super) slow: SlowWatch,
    pub(super) topology: Arc<Topology>,
    pub(super) names: Vec<NameReport>,
    /// Nothing where cores keep the settings that they began with.
    pub(super) generations: Option<Box<dyn Generations>>,
    /// What is in service in another version of the configuration; all that is new is if nobody says otherwise.
    pub(super) services: Option<ServicesOf>,
    /// Until when nothing is taken out of lists, and how long that is in all, since it has failed.
    pub(super) expiry_put_off: Option<(Instant, Duration)>,
}

/// What is in service and out in a version of the configuration.
pub(super) type ServicesOf = Box<dyn Fn(&Config) -> Services + Send>;

/// How an engine has ended.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The final counts.
    pub report: Report,
    /// What went wrong, one sentence per worker that did not end in order.
    pub failures: Vec<String>,
}

impl<M: Machine> RunningEngine<M> {
    /// Looks at the links of all ports: logs and counts those that went down or came up, and announces the addresses of ports
    /// whose link came up. A port whose device is taken away is logged, and no longer looked at. Logs servers that are passed
    /// over or back. To be called a few times a second, by a thread that handles no packets: some devices take a millisecond
    /// to answer.
    pub fn look_at_links(&mut self) {
        let Self {
            links,
            machine,
            neighbours,
            ..
        } = self;
        let came_up = |port: usize| {
            // Ports are numbered with eight bits.
            if let Ok(port) = u8::try_from(port) {
                neighbours.announce(PortId(port));
            }
        };
        links.look_for_removed(|port| machine.is_removed(port));
        links.look(|port| machine.is_link_up(port), came_up);
        self.note();
        let report = self.watch.report();
        let standby = self.watch.standby();
        let checked = |number: usize| {
            let server = self.config.servers().get(number);
            let is_checked = server.is_some_and(|of| of.standing != Standing::Nobody && of.check.is_some());
            let number = u16::try_from(number).ok().filter(|_| is_checked);
            number.map_or(Checked::Not, |number| match standby.server(number).down() {
                Some((failure, _)) => Checked::Down(failure),
                None => Checked::Up,
            })
        };
        self.servers.look(&report.servers, report.uptime_ms, checked);
        let slow = self.slow.look(&self.config, &self.watch.tallies(), report.uptime_ms);
        if let Some(slow) = slow {
            self.watch.note_slow(slow);
        }
    }

    /// Notes for the watch what only this thread can ask for.
    fn note(&self) {
        self.watch.note(Noted {
            log_lost: self.log.lost(),
            names: self.names.clone(),
            ports: self.links.add_to(self.machine.port_reports()),
            buffers: Buffers::of(self.pools.iter().map(WatchedPool::report).collect(), false),
        });
    }

    /// Goes on with another version of the configuration's file. Open connections go on; new ones are served by it.
    ///
    /// # Errors
    /// The file has an error, or differs in what needs a restart, or a core does not come round: all goes on as before.
    pub fn reload(&mut self, path: &Path) -> Result<(), ReloadError> {
        self.reload_with(path, |_| None)
    }

    /// The same. `answers` is shown the version that is made with the present answers of DNS, and says with which others it is to
    /// be made again, if there are others.
    ///
    /// # Errors
    /// The same.
    pub fn reload_with(
        &mut self,
        path: &Path,
        answers: impl FnOnce(&Config) -> Option<Answers>,
    ) -> Result<(), ReloadError> {
        let (mut config, mut difference) = self.config.reload(path)?;
        if let Some(answers) = answers(&config)
            && let Some(again) = self.config.answered(&config, &answers)?
        {
            (config, difference) = again;
        }
        self.go_on_with(config, &difference)
    }

    /// Goes on with what DNS answers now, and the file as it was read last. Open connections go on.
    ///
    /// # Errors
    /// There is no version of the configuration with these answers, or a core does not come round: all goes on as before.
    pub fn change_answers(&mut self, answers: &Answers) -> Result<(), ReloadError> {
        let (config, difference) = self.config.with_answers(answers)?;
        self.go_on_with(config, &difference)
    }

    /// What is shown of names from now on.
    pub fn set_names(&mut self, names: Vec<NameReport>) {
        self.names = names;
    }

    /// Goes on with another content of a list. Open connections go on.
    ///
    /// # Errors
    /// A sentence: what is wrong with the change, or a core does not come round; all goes on as before.
    pub fn change_list(&mut self, name: &str, change: ListChange) -> Result<(), String> {
        let config = self.config.with_list(name, change)?;
        self.go_on_with(config, &Difference::default())
            .map_err(|error| error.to_string())
    }

    /// Takes out what has had its time in a list. To be called a few times a second; after a failure, which takes a second and makes
    /// the table for nothing, most calls do nothing.
    pub fn expire_lists(&mut self) {
        let now = Instant::now();
        if self.expiry_put_off.is_some_and(|(until, _)| now < until) {
            return;
        }
        let done = match self.config.without_expired(now) {
            Ok(None) => Ok(()),
            Ok(Some(config)) => self
                .go_on_with(config, &Difference::default())
                .map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        let Err(error) = done else {
            self.expiry_put_off = None;
            return;
        };
        let pause = self.expiry_put_off.map_or(EXPIRES_AGAIN, |(_, pause)| pause * 2);
        let pause = pause.min(EXPIRES_AGAIN_AT_LAST);
        self.expiry_put_off = Some((Instant::now() + pause, pause));
        log::warn!("what has had its time stays in its list for {pause:?} more: {error}");
    }

    /// The configuration that it runs with.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Forgets listeners, pools and servers that the file no longer has, as soon as no connection names them. To be called
    /// now and then.
    pub fn forget_past(&mut self) {
        if !self.config.has_past() {
            return;
        }
        let named = (self.generations.as_mut()).and_then(|generations| generations.look(&self.config));
        if let Some((config, difference)) = named.and_then(|named| self.config.without_past(&named))
            && let Err(error) = self.go_on_with(config, &difference)
        {
            log::warn!("what is past is not forgotten: {error}");
        }
    }

    fn go_on_with(&mut self, config: Config, difference: &Difference) -> Result<(), ReloadError> {
        let Some(generations) = &mut self.generations else {
            return Err(ReloadError::Fixed);
        };
        let config = Arc::new(config);
        let changes_sinks = config.records() != self.config.records();
        let sinks = changes_sinks.then(|| self.records.prepare(config.records(), names_of(&config, &self.clock)));
        let sinks = sinks.transpose()?;
        let before = Before {
            macs: &self.machine.macs(),
            topology: &self.topology,
            neighbours: &self.neighbours,
            boards: self.crew.boards(),
        };
        // Before a core can call who comes by a number that was another's.
        let services = (self.services.as_ref()).map_or_else(|| Services::all_in(&config), |of| of(&config));
        let came_back = self.watch.begin(&self.config, (&config, difference), &services);
        let gone_on = reloader::go_on_with(&mut **generations, (&config, difference), before);
        let (topology, boards) = gone_on.inspect_err(|_| self.watch.go_back(&came_back))?;
        self.crew.set_boards(&boards);
        self.watch.end(&config, difference);
        if let Some(sinks) = sinks {
            self.records.replace(sinks);
        }
        self.records.set_names(names_of(&config, &self.clock));
        self.log.set_config(Arc::clone(&config));
        self.checks.set_config(Arc::clone(&config));
        self.watch
            .go_on_with(Arc::clone(&config), boards, Arc::clone(&topology));
        if config.engine().announce != self.config.engine().announce {
            self.watch.announce(config.engine().announce);
        }
        for (list, count) in config.emptied_lists(&self.config) {
            log::warn!("list {list}: its file has no prefix any more, {count} before");
        }
        (self.config, self.topology) = (config, topology);
        Ok(())
    }

    /// Asks `services` before cores go on with a version of the configuration, what in it is in service and what is not.
    pub fn follow_services(&mut self, services: impl Fn(&Config) -> Services + Send + 'static) {
        self.services = Some(Box::new(services));
    }

    /// Has the thread that talks to servers which are checked make no system calls but those that it needs; after the main thread has
    /// given up what it does not need.
    pub fn restrict_checks(&self) {
        self.checks.restrict();
    }

    /// A view of the engine for other threads.
    pub fn watch(&self) -> Watch {
        self.watch.clone()
    }

    /// The counts now; waits until every worker has written its own once more, a second at most.
    pub fn report(&mut self) -> Report {
        self.crew.refresh();
        self.note();
        self.watch.report()
    }

    /// Connections open now, on all cores.
    pub fn open_connections(&mut self) -> u64 {
        self.crew.refresh();
        self.crew.reports().iter().map(|core| core.connections_open).sum()
    }

    /// What has gone wrong so far: one sentence per worker that has stopped without being told to.
    pub fn failures(&mut self) -> Vec<String> {
        self.crew.failures()
    }

    /// Takes no more connections, and waits until the open ones have ended, for `limit` at most. Ends early when `stop`
    /// says so or a worker has failed. Returns the number of connections left.
    pub fn drain(&mut self, limit: Duration, mut stop: impl FnMut() -> bool) -> u64 {
        // Whoever asks whether it is ready learns of it before a SYN is not answered.
        self.watch.note_drain();
        self.crew.drain();
        let start = Instant::now();
        loop {
            let open = self.open_connections();
            if open == 0 || start.elapsed() >= limit || stop() || !self.failures().is_empty() {
                return open;
            }
            thread::sleep(DRAIN_PACE.min(limit.saturating_sub(start.elapsed())));
        }
    }

    /// Ends all connections with RST, the workers, the devices and the records, and counts the buffers.
    pub fn shutdown(self) -> Outcome {
        let Self {
            mut crew,
            _kernel: kernel,
            checks,
            records,
            log,
            config,
            links,
            machine,
            pools,
            neighbours,
            clock,
            watch,
            servers: _,
            slow: _,
            topology: _,
            names,
            generations: _,
            services: _,
            expiry_put_off: _,
        } = self;
        watch.note_drain();
        crew.end();
        watch.wait_for_capture(CAPTURE_ENDS);
        drop((kernel, checks));
        let failures = crew.failures();
        let ports = links.add_to(machine.port_reports());
        let records = records.finish();
        let parts = (crew.reports(), &records, ports);
        drop((crew, machine));
        let buffers = Buffers::of(pools.iter().map(WatchedPool::report).collect(), true);
        let report = Report {
            log_lost: log.lost(),
            servers: servers_of(&config),
            names,
            ..report(&clock, &neighbours, parts, buffers)
        };
        Outcome {
            report: report.summed(),
            failures,
        }
    }
}

pub(super) fn report(
    clock: &Clock,
    neighbours: &SharedNeighbours,
    (cores, records, ports): (Vec<CoreReport>, &RecordWatch, Vec<PortReport>),
    buffers: Buffers,
) -> Report {
    let totals = records.totals();
    Report {
        version: env!("CARGO_PKG_VERSION"),
        uptime_ms: clock.now().as_millis(),
        records: totals.written,
        records_lost: totals.lost,
        records_left_out: totals.left_out,
        record_sinks: records.sinks(),
        next_hops: NextHopTotals {
            resolved: neighbours.resolved() as u64,
            total: neighbours.len() as u64,
        },
        buffers,
        cores,
        ports,
        ..Report::default()
    }
}

/// The servers, of which nothing is known yet.
pub(super) fn servers_of(config: &Config) -> Vec<ServerReport> {
    let name = |server: &config::ServerConfig| match server.standing {
        Standing::Nobody => String::new(),
        Standing::InFile | Standing::Past => server.name.clone(),
    };
    let unknown = |server: &config::ServerConfig| ServerReport {
        name: name(server),
        ..ServerReport::default()
    };
    config.servers().iter().map(unknown).collect()
}

/// What the numbers in the records mean.
pub(super) fn names_of(config: &Config, clock: &Clock) -> NameTable {
    let named = |server: &config::ServerConfig| Named {
        name: server.name.clone(),
        address: server.address,
    };
    let since_1970 = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_nanos();
    NameTable {
        listeners: config
            .listeners()
            .iter()
            .map(|listener| listener.name.clone())
            .collect(),
        servers: config.servers().iter().map(named).collect(),
        local_addresses: config.addresses(),
        classes: config.classes().iter().map(|class| class.name.clone()).collect(),
        epoch_ns: u64::try_from(since_1970)
            .unwrap_or(u64::MAX)
            .saturating_sub(clock.now().as_nanos()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use e2d2::wire::MacAddr;
    use netfcts::leg::unmapped;
    use std::net::IpAddr;

    #[test]
    fn records_and_cores_number_our_addresses_alike() {
        let text = r#"
            [[port]]
            name = "left"
            device = "net_ring0"
            addresses = ["10.0.0.1/24", "2001:db8::1/64"]
            [[listener]]
            name = "a"
            addresses = ["10.0.0.7:80", "10.0.0.1:80-90", "10.0.0.7:443"]
            default = "four"
            [[listener]]
            name = "b"
            addresses = ["[2001:db8::7]:80"]
            default = "six"
            [[pool]]
            name = "four"
            local_addresses = ["10.0.0.9", "10.0.0.1"]
            servers = [{ name = "s4", address = "10.0.0.20:80" }]
            [[pool]]
            name = "six"
            local_addresses = ["2001:db8::9", "2001:db8::7"]
            servers = [{ name = "s6", address = "[2001:db8::20]:80" }]
        "#;
        let config = Config::parse(text, "test.toml").unwrap_or_else(|error| panic!("{error}"));
        let addresses = config.core_settings(0, &[MacAddr::default()], |_| 0).addresses;
        let of_cores: Vec<IpAddr> = (0..addresses.len() as u16)
            .map(|index| unmapped(addresses.value(index)))
            .collect();
        assert_eq!(config.addresses(), of_cores);
        assert_eq!(of_cores.len(), 5, "{of_cores:?}");
    }
}
