//! Runs the engine from its start to its report.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use control::http::Server;
use proxyengine::config::{Config, Destination, ListChange};
use proxyengine::engine::{DpdkMachine, Engine, Outcome, RunningEngine, StartError, Watch};
use proxyengine::journal::{self, Journal};
use proxyengine::log_levels::LogLevels;
use proxyengine::picture::Picture;
use proxyengine::privileges::{self, Limits};
use proxyengine::report::Report;
use proxyengine::stages::{Breakdown, Second};
use proxyengine::status::{self, Doors};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;

use super::ctl::RELOAD_PATIENCE;
use super::{Exit, RunArguments, complain, print};
use names::Names;
use service::Service;

#[path = "names.rs"]
mod names;
#[path = "service.rs"]
mod service;

/// How often the main thread looks after the workers.
const PACE: Duration = Duration::from_millis(200);

/// Signals that end nothing.
const KEEPS_RUNNING: [i32; 3] = [SIGHUP, SIGUSR1, SIGUSR2];

/// How often it is looked whether what the file no longer has can be forgotten.
const FORGETS: Duration = Duration::from_secs(1);

/// What the main thread is told.
enum Told {
    Signal(i32),
    /// Read the configuration again, and say what came of it.
    Reload(Sender<Result<(), String>>),
    /// Go on with another content of the list of this name, and say what came of it.
    List(String, ListChange, Sender<Result<(), String>>),
}

/// Has the main thread read the configuration again, for another thread.
fn reload_by(told: &Sender<Told>) -> Result<(), String> {
    tell(told, Told::Reload)
}

/// Has the main thread do something, and waits for what comes of it.
fn tell(told: &Sender<Told>, order: impl FnOnce(Sender<Result<(), String>>) -> Told) -> Result<(), String> {
    let (answer, answered) = mpsc::channel();
    let gone = |_| "the engine ends".to_owned();
    told.send(order(answer)).map_err(gone)?;
    match answered.recv_timeout(RELOAD_PATIENCE) {
        Ok(result) => result,
        Err(_) => Err(format!("no answer within {RELOAD_PATIENCE:?}")),
    }
}

/// How often `--progress` prints.
const PROGRESS: Duration = Duration::from_secs(1);

pub(super) fn run(config: Config, levels: LogLevels, arguments: &RunArguments) -> Exit {
    // Before anything is opened: a signal during the start must not leave a device half set up.
    let starting = Arc::new(AtomicBool::new(true));
    let (told, signals) = match watch_signals(Arc::clone(&starting)) {
        Ok(told) => told,
        Err(error) => return not_started(&format!("signals cannot be watched: {error}")),
    };
    let drain = config.engine().drain;
    let is_taken = config.records().iter().any(|sink| sink.to == Destination::Stdout);
    let show = if is_taken { complain } else { print };
    // Before the ports: a place that is taken is told at once.
    let control = match status::listen(config.control()) {
        Ok(control) => control,
        Err((place, error)) => return not_started(&not_listening(&place, &error)),
    };
    let (mut config, mut names) = Names::begin(config);
    let (limits, journal) = before_start(&mut config, arguments);
    let by_stage = arguments.stage_cycles.is_some();
    let engine = match start(config, by_stage, &limits, (&journal, &levels)) {
        Ok(engine) => engine,
        Err(error) => return not_started(&error.to_string()),
    };
    give_up_privileges(&limits);
    engine.restrict_checks();
    names.start();
    let doors = || Doors {
        journal: journal.clone(),
        file: arguments.file.clone(),
        list: {
            let told = told.clone();
            Box::new(move |name: &str, change| tell(&told, |answer| Told::List(name.to_owned(), change, answer)))
        },
        reload: Box::new(move || reload_by(&told)),
    };
    let control = control
        .map(without_privileges)
        .map(|server| status::serve(server, engine.watch(), levels.clone(), Some(doors())))
        .transpose();
    let control = match control {
        Ok(control) => control,
        Err(error) => return not_started(&format!("[control]: no thread: {error}")),
    };
    starting.store(false, Ordering::Relaxed);
    log::info!(
        "running; SIGINT or SIGTERM ends, SIGHUP reads the configuration again, SIGUSR1 shows the counters, SIGUSR2 opens the \
         records' file again"
    );
    let service = Service::started(engine.watch());
    let mut session = Session {
        engine,
        service,
        signals,
        arguments,
        show,
        cycles: CyclesByStage::new(),
        levels,
        journal: journal.clone(),
        names,
        drain,
        forgot_at: Instant::now(),
    };
    session.serve();
    let exit = session.end();
    // It answers to the end: that the engine drains is what is looked for then.
    drop(control);
    exit
}

/// An engine in which what ctl has changed holds before the first packet: who is out of service is not called, nor are addresses
/// announced that are another engine's. What comes with another version of its configuration begins so, too.
fn start(
    config: Config,
    by_stage: bool,
    limits: &Limits,
    (journal, levels): (&Journal, &LogLevels),
) -> Result<RunningEngine<DpdkMachine>, StartError> {
    let prepare = |watch: &Watch| journal.prepare(watch, levels);
    let mut engine = if by_stage {
        Engine::start_timed_by_rules(config, limits.clone(), &prepare)
    } else {
        Engine::start_by_rules(config, limits.clone(), &prepare)
    }?;
    journal.apply(&engine.watch(), levels);
    let journal = journal.clone();
    engine.follow_services(move |config| journal.services(config));
    Ok(engine)
}

/// Before the threads that read what strangers write; a kernel or a container that refuses it is no reason not to serve.
fn give_up_privileges(limits: &Limits) {
    if let Err(error) = limits.enter_main_thread() {
        log::warn!("privileges are not given up: {error}");
    }
}

/// The thread that reads what strangers write gives up what it does not need before it reads a byte.
fn without_privileges(mut server: Server) -> Server {
    server.begin_with(|| {
        if let Err(error) = Limits::enter_control_thread() {
            log::warn!("[control]: privileges are not given up: {error}");
        }
    });
    server
}

/// What the threads will keep, and the journal, while it can still be put aside.
fn before_start(config: &mut Config, arguments: &RunArguments) -> (Limits, Journal) {
    let kept_in = journal::path(config);
    let files = [&arguments.report, &arguments.stage_cycles, &kept_in];
    let limits = Limits::of(config, files.into_iter().flatten().map(PathBuf::as_path));
    if let Some(folders) = limits.only_folders() {
        config.set_writable(folders);
    }
    (limits, Journal::open(kept_in))
}

/// Why `[control]` is not there, and where a port is taken the command that says by whom.
fn not_listening(place: &str, error: &io::Error) -> String {
    let who = match place.rsplit_once(':') {
        Some((_, port)) if error.kind() == io::ErrorKind::AddrInUse => {
            format!("; who has it: ss -ltnp sport = :{port}")
        }
        _ => String::new(),
    };
    format!("[control]: {place} cannot be listened on: {error}{who}")
}

fn not_started(reason: &str) -> Exit {
    complain(&format!("proxyengine did not start: {reason}"));
    Exit::NotStarted
}

/// Hands signals over as they come; the thread that waits for them ends with the process. As long as the engine is
/// `starting`, nobody takes them, and a device's driver may never return: the first is kept until it does, the second ends
/// the process.
fn watch_signals(starting: Arc<AtomicBool>) -> std::io::Result<(Sender<Told>, Receiver<Told>)> {
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2])?;
    let (told, receiver) = mpsc::channel();
    let sender = told.clone();
    let forward = move || {
        privileges::enter_plain_thread();
        let mut ends = 0;
        for signal in signals.forever() {
            if starting.load(Ordering::Relaxed) && !KEEPS_RUNNING.contains(&signal) {
                ends += 1;
                if ends > 1 {
                    complain("proxyengine did not start: ended while a port was being opened");
                    // Without destructors: the thread that is stuck may hold whatever they need.
                    signal_hook::low_level::exit(Exit::NotStarted as i32);
                }
                complain(&format!(
                    "signal {signal}: ends when the ports are open; a second one ends at once"
                ));
            }
            if sender.send(Told::Signal(signal)).is_err() {
                return;
            }
        }
    };
    thread::Builder::new().name("signals".to_owned()).spawn(forward)?;
    Ok((told, receiver))
}

/// The running engine and what it is told.
struct Session<'a> {
    engine: RunningEngine<DpdkMachine>,
    service: Service,
    signals: Receiver<Told>,
    arguments: &'a RunArguments,
    show: fn(&str),
    cycles: CyclesByStage,
    levels: LogLevels,
    journal: Journal,
    names: Names,
    drain: Duration,
    forgot_at: Instant,
}

impl Session<'_> {
    /// Returns when a signal or a worker's failure ends the service.
    fn serve(&mut self) {
        let mut progress = Progress::new();
        let mut pictured = Report::default();
        loop {
            let pace = if self.arguments.progress {
                PACE.min(progress.due_in())
            } else {
                PACE
            };
            match self.signals.recv_timeout(pace) {
                Ok(Told::Reload(answer)) => _ = answer.send(self.reload()),
                Ok(Told::List(name, change, answer)) => _ = answer.send(self.engine.change_list(&name, change)),
                Ok(Told::Signal(SIGHUP)) => _ = self.reload(),
                Ok(Told::Signal(SIGUSR1)) => pictured = self.show_report(&pictured),
                Ok(Told::Signal(SIGUSR2)) => self.engine.watch().records().reopen(),
                Ok(Told::Signal(signal)) => {
                    log::info!("signal {signal}: no more connections; open ones may end");
                    return;
                }
                Err(RecvTimeoutError::Timeout) => {}
                // The thread that watches signals never ends by itself; without it nobody could end us.
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if !self.engine.failures().is_empty() {
                return;
            }
            self.engine.look_at_links();
            self.engine.expire_lists();
            if self.names.look(&mut self.engine) {
                self.journal.apply(&self.engine.watch(), &self.levels);
            }
            if self.forgot_at.elapsed() >= FORGETS {
                self.engine.forget_past();
                self.forgot_at = Instant::now();
            }
            self.service.tick();
            if self.arguments.progress && progress.due_in().is_zero() {
                complain(&progress.lines(self.engine.report()));
            }
            if self.arguments.stage_cycles.is_some() && self.cycles.is_due() {
                self.cycles.look(&self.engine.report());
            }
        }
    }

    /// Goes on with what the configuration's file says now; if that cannot be, as before. The log tells either.
    fn reload(&mut self) -> Result<(), String> {
        self.service.reloading();
        let began = Instant::now();
        let level = self.engine.config().log_level();
        let names = &mut self.names;
        let result = (self.engine).reload_with(&self.arguments.file, |new| names.before_reload(new));
        if result.is_err() {
            self.names.go_back(self.engine.config());
        }
        self.service.reloaded();
        let file = self.arguments.file.display();
        match result {
            Ok(()) => {
                self.drain = self.engine.config().engine().drain;
                // What `ctl set log-level` has said stays unless the file says something else now.
                let new = self.engine.config().log_level();
                if new != level
                    && let Err(error) = self.levels.set(new.as_str())
                {
                    log::warn!("the log keeps its level: {error}");
                }
                self.journal.apply(&self.engine.watch(), &self.levels);
                log::info!(
                    "{file} holds from now on; all cores took {} ms",
                    began.elapsed().as_millis()
                );
                Ok(())
            }
            Err(error) => {
                let reason = error.to_string();
                log::error!("{file} was read again and is not used: {reason}");
                Err(reason)
            }
        }
    }

    /// The counters where they are wanted, and in the log what each core did since the report `before`. Returns the report.
    fn show_report(&mut self, before: &Report) -> Report {
        let report = self.engine.report();
        (self.show)(&report.to_string());
        for line in Picture::between(before, &report).to_string().lines() {
            log::info!("{line}");
        }
        self.write_report(&report);
        report
    }

    /// Drains, ends, reports; a second signal ends at once.
    fn end(mut self) -> Exit {
        self.service.stopping();
        let (signals, service) = (&self.signals, &mut self.service);
        let left = self.engine.drain(self.drain, || {
            service.tick();
            let ends = |told| matches!(told, Told::Signal(signal) if !KEEPS_RUNNING.contains(&signal));
            signals.try_iter().any(ends)
        });
        if left > 0 {
            log::warn!("{left} connections are reset");
        }
        let Self {
            engine,
            arguments,
            show,
            mut cycles,
            ..
        } = self;
        let Outcome { report, failures } = engine.shutdown();
        show(&report.to_string());
        let is_drawn = arguments.stage_cycles.as_deref().is_none_or(|path| {
            cycles.look(&report);
            cycles.conclude(path, show)
        });
        let is_written = write_report(arguments.report.as_deref(), &report) && is_drawn;
        for failure in &failures {
            log::error!("{failure}");
        }
        let leaked = report.buffers.leaked.unwrap_or(0);
        if leaked > 0 {
            log::error!("{leaked} packet buffers did not come back");
        }
        // What a device that is gone had of the buffers is gone with it.
        let is_removed = report.ports.iter().any(|port| port.removed);
        match (failures.is_empty(), leaked, is_written) {
            (false, _, _) => Exit::WorkerFailed,
            (true, _, _) if is_removed => Exit::DeviceRemoved,
            (true, 1.., _) => Exit::Leaked,
            (true, 0, false) => Exit::NoReport,
            (true, 0, true) => Exit::Success,
        }
    }

    fn write_report(&self, report: &Report) {
        write_report(self.arguments.report.as_deref(), report);
    }
}

/// Whether the report was written, if it is wanted.
fn write_report(path: Option<&Path>, report: &Report) -> bool {
    let Some(path) = path else { return true };
    let result = report.write_json(path);
    if let Err(error) = &result {
        log::error!("the report cannot be written to {}: {error}", path.display());
    }
    result.is_ok()
}

/// What cores count by stage, looked at once a second.
struct CyclesByStage {
    looked_at: Instant,
    last: Breakdown,
    seconds: Vec<Second>,
}

/// Seconds that are remembered: a day.
const MOST_SECONDS: usize = 24 * 60 * 60;

impl CyclesByStage {
    fn new() -> Self {
        Self {
            looked_at: Instant::now(),
            last: Breakdown::default(),
            seconds: Vec::new(),
        }
    }

    fn is_due(&self) -> bool {
        self.looked_at.elapsed() >= PROGRESS && self.seconds.len() < MOST_SECONDS
    }

    fn look(&mut self, report: &Report) {
        self.looked_at = Instant::now();
        if let Some(now) = Breakdown::of(&report.counters) {
            self.seconds.push(Second::between(&self.last, &now));
            self.last = now;
        }
    }

    /// Shows the table and writes the picture; whether that was possible.
    fn conclude(&self, path: &Path, show: fn(&str)) -> bool {
        show(&self.last.to_string());
        let written = std::fs::write(path, self.last.to_svg(&self.seconds));
        if let Err(error) = &written {
            log::error!("the picture cannot be written to {}: {error}", path.display());
        }
        written.is_ok()
    }
}

/// Totals and rates, once a second, and what each core does.
struct Progress {
    shown_at: Instant,
    packets: (u64, u64),
    before: Report,
}

impl Progress {
    fn new() -> Self {
        Self {
            shown_at: Instant::now(),
            packets: (0, 0),
            before: Report::default(),
        }
    }

    fn due_in(&self) -> Duration {
        PROGRESS.saturating_sub(self.shown_at.elapsed())
    }

    /// A line of totals, then a line per core.
    fn lines(&mut self, report: Report) -> String {
        let picture = Picture::between(&self.before, &report);
        let lines = format!("{}\n{picture}", self.line(&report));
        self.before = report;
        lines
    }

    fn line(&mut self, report: &Report) -> String {
        let seconds = self.shown_at.elapsed().as_secs_f64();
        let sum = |of: fn(&proxyengine::report::PortReport) -> u64| report.ports.iter().map(of).sum::<u64>();
        let packets = (sum(|port| port.rx_packets), sum(|port| port.tx_packets));
        let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
        let line = format!(
            "{:8.1} s  open {}  records {}  lost {}  rx {:.0}/s  tx {:.0}/s  next hops {}/{}  servers {}/{}",
            report.uptime_ms as f64 / 1e3,
            report.connections_open,
            report.records,
            report.records_lost,
            rate(packets.0, self.packets.0),
            rate(packets.1, self.packets.1),
            report.next_hops.resolved,
            report.next_hops.total,
            report
                .servers
                .iter()
                .filter(|server| server.abilities.is_some())
                .count(),
            report.servers.len(),
        );
        (self.shown_at, self.packets) = (Instant::now(), packets);
        line
    }
}
