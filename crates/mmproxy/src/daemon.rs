//! From a configuration to running workers, and what signals do to them.
//!
//! SIGHUP reads the configuration and the lists again; sessions stay. SIGTERM and SIGINT stop accepting, let sessions end
//! for the drain time, and exit; a second one exits at once.

use crate::cli::{RouteOptions, Source};
use crate::config::{Bind, Config, ConfigError, HeaderMode, Listener, Protocol};
use crate::inline::control::{self, Control};
use crate::metrics::{self, Counters};
use crate::netlink::Netlink;
use crate::plan::Surroundings;
use crate::privileges::{self, Role};
use crate::worker::{Mailbox, Order, PER_SESSION, Shares, Worker};
use crate::{netsetup, sockets, steering, sys};
use ::control::http::Running;
use rustix::fd::OwnedFd;
use sd_notify::NotifyState;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;

/// Descriptors of the process that are of no worker: three standard streams, two that signals come by, one for the service manager,
/// the socket of the metrics, the pair that ends it and the one connection to it, and what a reload has open for a moment: a file, a netlink
/// socket, the resolver's two, and the new sockets of a listener.
const OWN: u64 = 16;

/// Fewest descriptors that are kept from sessions, whatever the workers need: a limit of L leaves (L - 32) / 2 sessions.
const RESERVED: u64 = 32;

/// Descriptors of a worker besides its listening sockets: epoll and the mailbox.
const OF_WORKER: u64 = 2;

/// Fewest sessions that a worker is worth having for. The kernel spreads connections over the workers as it likes: with few each,
/// some would wait at one worker while another has room.
const LEAST_SESSIONS: u64 = 64;

/// Why the daemon does not run.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A listening socket.
    #[error("{name}: cannot listen on {address}: {source}{}", who_has(.address, .source))]
    Listen {
        /// Name of the listener.
        name: String,
        /// Its address.
        address: String,
        /// Why not.
        source: io::Error,
    },
    /// A listener must be inline and cannot.
    #[error("inline: {0}")]
    Inline(String),
    /// Something else of the system.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// Why not.
        source: io::Error,
    },
}

/// The command that says who has an address that is in use.
fn who_has(address: &str, error: &io::Error) -> String {
    match address.rsplit_once(':') {
        Some((_, port)) if error.kind() == io::ErrorKind::AddrInUse => {
            format!("; who has it: ss -lntup sport = :{port}")
        }
        _ => String::new(),
    }
}

fn system(what: &'static str) -> impl FnOnce(io::Error) -> DaemonError {
    move |source| DaemonError::System { what, source }
}

/// The running proxy.
pub struct Daemon {
    source: Source,
    config: Config,
    mailboxes: Vec<Arc<Mailbox>>,
    threads: Vec<JoinHandle<io::Result<()>>>,
    routes: bool,
    descriptors: u64,
    inline: Option<Control>,
    // Serves as long as the daemon lives.
    _metrics: Option<Running>,
}

impl Daemon {
    /// Opens all sockets, gives up privileges, and starts the workers.
    ///
    /// # Errors
    /// If anything of that fails; nothing is left running.
    pub fn start(source: Source, mut config: Config, signals: &Signals) -> Result<Self, DaemonError> {
        let descriptors = privileges::raise_descriptor_limit();
        let workers = workers_for(&config, descriptors);
        if workers < config.workers {
            log::info!(
                "{workers} workers instead of {}: {descriptors} descriptors are for few sessions",
                config.workers
            );
            config.workers = workers;
        }
        let sockets = open_sockets(&config, &[])?;
        let metrics = config
            .metrics
            .map(TcpListener::bind)
            .transpose()
            .map_err(system("metrics"))?;
        if config.routes {
            let report = netsetup::setup(&RouteOptions::default()).map_err(system("routes"))?;
            report.iter().for_each(|line| log::info!("{line}"));
        }
        if let Some(complaint) = netsetup::complaint(&config) {
            log::warn!("{complaint}");
        }
        let inline = control::start(&config, &Arc::new(surroundings(&config))).map_err(DaemonError::Inline)?;
        let inline_counters = inline.as_ref().map(control::Ready::counters);
        privileges::drop_privileges(&config).map_err(system("dropping privileges"))?;
        let inline = inline
            .map(|ready| ready.run(config.sandbox))
            .transpose()
            .map_err(system("inline"))?;
        if config.sandbox
            && let Err(error) = privileges::enter_sandbox(Role::Relay)
        {
            log::warn!("no system call filter: {error}");
        }
        let counters: Vec<Arc<Counters>> = (0..config.workers).map(|_| Arc::default()).collect();
        let (mut mailboxes, mut threads) = (Vec::new(), Vec::new());
        for (index, counters) in counters.iter().enumerate() {
            let mailbox = Arc::new(Mailbox::new().map_err(system("worker"))?);
            let worker = Worker::new(&config, Arc::clone(counters), Arc::clone(&mailbox));
            let worker = worker.map_err(system("worker"))?;
            let thread = std::thread::Builder::new()
                .name(format!("worker {index}"))
                .stack_size(512 * 1024);
            let alarm = Alarm(signals.handle());
            let cpu_affinity = config.cpu_affinity;
            let work = move || {
                let alarm = alarm;
                if cpu_affinity && let Err(error) = pin_worker(index) {
                    log::warn!("worker {index} is not kept on one CPU: {error}");
                }
                let result = worker.run();
                if result.is_ok() {
                    std::mem::forget(alarm);
                }
                result
            };
            let handle = thread.spawn(work).map_err(system("worker"))?;
            mailboxes.push(mailbox);
            threads.push(handle);
        }
        let metrics = metrics
            .map(|listener| metrics::serve(listener, counters, inline_counters))
            .transpose()
            .map_err(system("metrics"))?;
        let daemon = Daemon {
            source,
            routes: config.routes,
            config,
            mailboxes,
            threads,
            descriptors,
            inline,
            _metrics: metrics,
        };
        daemon.serve(sockets);
        Ok(daemon)
    }

    /// Gives each worker its sockets.
    fn serve(&self, mut sockets: Vec<Vec<Option<OwnedFd>>>) {
        let surroundings = Arc::new(surroundings(&self.config));
        let shares = shares(&self.config, self.descriptors);
        for mailbox in &self.mailboxes {
            let assigned = self.config.listeners.iter().zip(&mut sockets);
            let assigned = assigned
                .map(|(listener, fds)| (Arc::clone(listener), fds.pop().flatten()))
                .collect();
            mailbox.post(Order::Serve(assigned, Arc::clone(&surroundings), shares));
        }
    }

    /// Reads the configuration again. The old one stays if the new one has a fault.
    fn reload(&mut self) {
        let result = self.source.load().map_err(DaemonError::from).and_then(|mut config| {
            config.workers = self.config.workers;
            let sockets = open_sockets(&config, &self.config.listeners)?;
            self.reload_inline(&config)?;
            Ok((config, sockets))
        });
        match result {
            Ok((config, sockets)) => {
                self.config = config;
                self.serve(sockets);
                log::info!("configuration read again: {} listeners", self.config.listeners.len());
            }
            Err(error) => log::error!("the configuration stays as it was: {error}"),
        }
    }

    fn reload_inline(&self, config: &Config) -> Result<(), DaemonError> {
        let surroundings = Arc::new(surroundings(config));
        let specs = control::specs(&config.listeners, &surroundings).map_err(DaemonError::Inline)?;
        match &self.inline {
            Some(inline) => inline.reload(specs, surroundings).map_err(system("inline")),
            None if specs.is_empty() => Ok(()),
            None => {
                log::warn!("inline mode begins with the next start: the privileges for it are gone");
                Ok(())
            }
        }
    }

    /// Obeys signals until one ends the daemon and the workers have ended.
    ///
    /// # Errors
    /// If a worker failed.
    pub fn obey(mut self, signals: &mut Signals) -> Result<(), DaemonError> {
        let (mut draining, mut impatient) = (false, false);
        tell(&[NotifyState::Ready]);
        if let Some(interval) = sd_notify::watchdog_enabled() {
            let beat = move || {
                loop {
                    // Twice in it, as sd_watchdog_enabled(3) recommends.
                    std::thread::sleep(interval / 2);
                    tell(&[NotifyState::Watchdog]);
                }
            };
            std::thread::Builder::new()
                .name("watchdog".into())
                .spawn(beat)
                .map_err(system("watchdog"))?;
        }
        let handle = signals.handle();
        let threads = std::mem::take(&mut self.threads);
        let inline = self.inline.as_mut().and_then(Control::take_thread);
        let joiner = std::thread::spawn(move || {
            let panicked = |_| Err(io::Error::other("a worker panicked"));
            let joined = |thread: JoinHandle<io::Result<()>>| thread.join().unwrap_or_else(panicked);
            let results: Vec<io::Result<()>> = threads.into_iter().map(joined).collect();
            // Connections that are inline may finish, too.
            if inline.is_some_and(|thread| thread.join().is_err()) {
                log::error!("the thread for inline mode panicked");
            }
            handle.close();
            results
        });
        for signal in signals.forever() {
            match signal {
                SIGHUP => {
                    // Since systemd 253 it wants to know since when.
                    if let Ok(now) = NotifyState::monotonic_usec_now() {
                        tell(&[NotifyState::Reloading, now]);
                    }
                    self.reload();
                    tell(&[NotifyState::Ready]);
                }
                _ if draining => {
                    impatient = true;
                    break;
                }
                _ => {
                    draining = true;
                    tell(&[NotifyState::Stopping]);
                    log::info!("draining for up to {:?}", self.config.drain);
                    self.mailboxes
                        .iter()
                        .for_each(|mailbox| mailbox.post(Order::Drain(self.config.drain)));
                    if let Some(inline) = &self.inline {
                        inline.drain(self.config.drain);
                    }
                }
            }
        }
        if self.routes
            && let Err(error) = netsetup::teardown(&RouteOptions::default())
        {
            log::warn!("routing rules could not be removed: {error}");
        }
        if !draining {
            return Err(system("worker")(io::Error::other(
                "it ended without being asked to; see the log",
            )));
        }
        if impatient {
            // The sessions' sockets close with the process.
            return Ok(());
        }
        let results = joiner
            .join()
            .unwrap_or_else(|_| vec![Err(io::Error::other("waiting for workers failed"))]);
        results
            .into_iter()
            .collect::<io::Result<()>>()
            .map_err(system("worker"))
    }
}

/// Keeps this thread on one of the CPUs that the process may use: worker 0 on the first, and so on around.
fn pin_worker(index: usize) -> io::Result<()> {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    let allowed = sched_getaffinity(None)?;
    let mut cpus = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).cycle();
    let cpu = cpus
        .nth(index % CpuSet::MAX_CPU)
        .ok_or_else(|| io::Error::other("no CPU"))?;
    let mut one = CpuSet::new();
    one.set(cpu);
    Ok(sched_setaffinity(None, &one)?)
}

/// Ends the daemon when dropped: a worker failed or panicked, and what restarts daemons shall restart this one.
struct Alarm(signal_hook::iterator::Handle);

impl Drop for Alarm {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Tells the service manager, if there is one.
fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        log::debug!("service manager: {error}");
    }
}

/// One socket for each listener and worker, `None` where one of `open` has it already.
fn open_sockets(config: &Config, open: &[Arc<Listener>]) -> Result<Vec<Vec<Option<OwnedFd>>>, DaemonError> {
    let mut all = Vec::with_capacity(config.listeners.len());
    for listener in &config.listeners {
        if open.iter().any(|old| old.same_socket(listener)) {
            all.push((0..config.workers).map(|_| None).collect());
            continue;
        }
        let failed = |source| DaemonError::Listen {
            name: listener.name.clone(),
            address: describe(&listener.bind),
            source,
        };
        let fds: Vec<Option<OwnedFd>> = (0..config.workers)
            .map(|_| sockets::listen(listener).map(Some))
            .collect::<io::Result<_>>()
            .map_err(failed)?;
        steer(listener, &fds);
        all.push(fds);
    }
    Ok(all)
}

/// Keeps each UDP client with one worker.
fn steer(listener: &Listener, fds: &[Option<OwnedFd>]) {
    let groups = matches!(listener.bind, Bind::Address(_)) && fds.len() > 1;
    if listener.protocol != Protocol::Udp || listener.header == HeaderMode::Off || !groups {
        return;
    }
    if let Some(Some(last)) = fds.last()
        && let Err(error) = sys::attach_reuseport_program(last, &steering::by_client(fds.len() as u32))
    {
        log::warn!("{}: clients are not kept with one worker: {error}", listener.name);
    }
}

fn describe(bind: &Bind) -> String {
    match bind {
        Bind::Address(address) => address.to_string(),
        Bind::Passed(number, _) => format!("the passed socket {number}"),
    }
}

/// Descriptors that are not for sessions and pipes.
fn reserved(config: &Config, workers: u64) -> u64 {
    let own = OWN + workers * (OF_WORKER + config.listeners.len() as u64);
    own.max(RESERVED)
}

/// The workers that are asked for, or fewer where each would have hardly a session.
fn workers_for(config: &Config, descriptors: u64) -> usize {
    let asked = config.workers.max(1) as u64;
    let room = descriptors.saturating_sub(reserved(config, asked));
    let worth = room / PER_SESSION as u64 / LEAST_SESSIONS;
    usize::try_from(asked.min(worth.max(1))).unwrap_or(config.workers)
}

/// How many sessions each worker may have, so that neither protocol takes the other's descriptors: with listeners for both,
/// each gets half.
fn shares(config: &Config, descriptors: u64) -> Shares {
    let workers = config.workers.max(1) as u64;
    let room = descriptors.saturating_sub(reserved(config, workers));
    // The system lets users without privilege have 64 pipes of this size (fs.pipe-user-pages-soft); where descriptors are
    // few, an eighth of them may be for pipes. They are of what sessions leave.
    let pipes = (descriptors / 16).min(64);
    let serves = |protocol| config.listeners.iter().any(|listener| listener.protocol == protocol);
    let of_udp = match (serves(Protocol::Tcp), serves(Protocol::Udp)) {
        (true, true) => room / 2,
        (false, true) => room,
        (_, false) => 0,
    };
    let of_tcp = room - of_udp;
    let connections = config.max_connections.map_or(of_tcp, |limit| limit as u64);
    let per_worker = |all: u64| usize::try_from((all / workers).max(1)).unwrap_or(usize::MAX);
    Shares {
        connections: per_worker(connections),
        descriptors: per_worker(of_tcp).max(PER_SESSION),
        datagram_sessions: per_worker(of_udp),
        pipes: per_worker(pipes),
    }
}

fn surroundings(config: &Config) -> Surroundings {
    let own = Netlink::open()
        .and_then(|mut netlink| netlink.addresses())
        .unwrap_or_else(|error| {
            log::warn!("the addresses of this host are not known: {error}");
            vec![]
        });
    let address = |listener: &Arc<Listener>| match listener.bind {
        Bind::Address(address) => Some(address),
        Bind::Passed(_, local) => local,
    };
    let listening: Vec<SocketAddr> = config.listeners.iter().filter_map(address).collect();
    Surroundings {
        own,
        listening,
        paces: sockets::system_paces(),
    }
}

/// The signals that [`Daemon::obey`] obeys, blocked from having their default effect from here on.
///
/// # Errors
/// What the system reports.
pub fn signals() -> io::Result<Signals> {
    Signals::new([SIGHUP, SIGTERM, SIGINT])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(protocols: &[Protocol]) -> Config {
        let listener = |&protocol: &Protocol| {
            Arc::new(Listener {
                protocol,
                ..Listener::default()
            })
        };
        Config {
            workers: 2,
            listeners: protocols.iter().map(listener).collect(),
            ..Config::default()
        }
    }

    #[test]
    fn neither_protocol_takes_the_others_descriptors() {
        let of = |protocols: &[Protocol], descriptors| {
            let shares = shares(&config(protocols), descriptors);
            (shares.descriptors, shares.datagram_sessions)
        };
        assert_eq!(of(&[Protocol::Tcp], 20_032), (10_000, 1));
        assert_eq!(of(&[Protocol::Udp], 20_032), (2, 10_000));
        assert_eq!(of(&[Protocol::Tcp, Protocol::Udp], 20_032), (5000, 5000));
        assert_eq!(of(&[Protocol::Tcp, Protocol::Udp], 3), (2, 1));
        // Two workers with ten listeners have 24 descriptors of their own.
        assert_eq!(of(&[Protocol::Tcp; 10], 20_040), (10_000, 1));
    }

    #[test]
    fn a_worker_with_hardly_a_session_is_not_started() {
        let of = |asked, descriptors| {
            let config = Config {
                workers: asked,
                ..config(&[Protocol::Tcp])
            };
            workers_for(&config, descriptors)
        };
        assert_eq!(
            [of(2, 64), of(2, 287), of(2, 288), of(8, 288), of(1, 3)],
            [1, 1, 2, 1, 1]
        );
        assert_eq!((of(8, 1024), of(8, 1060), of(0, 1024)), (7, 7, 1));
    }
}
