//! The thread that keeps the programs informed: listeners and lists in, counters out, connections that have ended forgotten.

use crate::access::{Networks, SourceKind};
use crate::address::{Family, Target};
use crate::cli::RouteOptions;
use crate::config::{Bind, Config, Inline, Listener, Protocol};
use crate::inline::host::{self, Host};
use crate::inline::kernel::Kernel;
use crate::inline::layout::{self, ListId};
use crate::inline::spec::Spec;
use crate::metrics::InlineCounters;
use crate::plan::Surroundings;
use crate::privileges::{self, Role};
use crate::{netsetup, sockets};
use proxy_protocol::{Addresses, Header};
use rustix::event::{PollFd, PollFlags};
use std::collections::HashSet;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often counters are read and ended connections looked for.
const TICK: Duration = Duration::from_secs(1);

/// Entries of connections, two for each, that are looked at in one tick: some 20 ms.
const SWEPT_AT_ONCE: usize = 1 << 18;

/// Where `--pin` keeps connections, unless it says so.
pub const PINS: &str = "/sys/fs/bpf/mmproxy";

/// Connections when the configuration names no limit.
const LIMIT: usize = 1 << 17;

/// Those listeners of a configuration that can be inline.
///
/// # Errors
/// If one must be and cannot; those that may be and cannot are named in the log.
pub fn specs(listeners: &[Arc<Listener>], surroundings: &Surroundings) -> Result<Vec<Spec>, String> {
    let mut specs = Vec::new();
    for listener in listeners {
        // A listener for both protocols has its datagrams relayed as ever.
        if listener.inline == Inline::Off || listener.protocol != Protocol::Tcp {
            continue;
        }
        match (Spec::of(listener, surroundings), listener.inline) {
            (Ok(spec), _) => specs.push(spec),
            (Err(why), Inline::On) => return Err(format!("{}: {why}", listener.name)),
            (Err(why), _) => log::warn!("{}: two sockets: {why}", listener.name),
        }
    }
    Ok(specs)
}

/// The programs with what they were told last.
struct Engine {
    kernel: Kernel,
    next_list: ListId,
    key: [u64; 2],
    specs: Vec<Spec>,
    surroundings: Arc<Surroundings>,
    sweep: Sweep,
}

impl Engine {
    fn new(kernel: Kernel) -> io::Result<Self> {
        Ok(Engine {
            key: match kernel.pinned_settings()?.as_deref().and_then(layout::cookie_key) {
                Some(key) => key,
                None => random_key()?,
            },
            kernel,
            next_list: 0,
            specs: vec![],
            surroundings: Arc::default(),
            sweep: Sweep::default(),
        })
    }

    /// Makes a connection from a client that nobody is, in a network of its own.
    fn try_out(&mut self) -> io::Result<()> {
        let tried = std::thread::scope(|scope| scope.spawn(|| self.connect_in_private()).join());
        self.kernel.detach();
        tried.unwrap_or_else(|_| Err(io::Error::other("the test connection panicked")))
    }

    fn connect_in_private(&mut self) -> io::Result<()> {
        const WAIT: Duration = Duration::from_secs(2);
        self.kernel.attach_in_private()?;
        netsetup::setup(&RouteOptions::default())?;
        let (own, server) = (TcpListener::bind("127.0.0.1:0")?, TcpListener::bind("127.0.0.1:0")?);
        let listener = Listener {
            bind: Bind::Address(own.local_addr()?),
            target_v4: Some(Target::Inet(server.local_addr()?)),
            ..Listener::default()
        };
        self.specs = vec![Spec::of(&listener, &self.surroundings).map_err(io::Error::other)?];
        self.apply(false)?;
        let client = SocketAddr::new(sockets::test_source(Family::V4), 40_001);
        let header = Header::v1(Addresses::from_pair(client, own.local_addr()?));
        let mut bytes = vec![0; header.encoded_len()];
        header.encode(&mut bytes).map_err(io::Error::other)?;
        let mut balancer = TcpStream::connect_timeout(&own.local_addr()?, WAIT)?;
        balancer.write_all(&bytes)?;
        let mut poll = [PollFd::new(&server, PollFlags::IN)];
        let wait = rustix::time::Timespec::try_from(WAIT).map_err(io::Error::other)?;
        if rustix::event::poll(&mut poll, Some(&wait))? == 0 {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match server.accept()?.1 {
            peer if peer == client => Ok(()),
            peer => Err(io::Error::other(format!("the server saw {peer}, not {client}"))),
        }
    }

    /// Tells the programs of listeners and lists. Each listener changes at once with its lists: those get new numbers, and the
    /// old ones go when nothing names them any more.
    fn apply(&mut self, draining: bool) -> io::Result<()> {
        let mut lists: Vec<(ListId, Networks)> = Vec::new();
        let mut next = self.next_list;
        let mut number = |networks: &Networks| {
            next += 1;
            lists.push((next, networks.clone()));
            next
        };
        let own = self.surroundings.own.iter().copied().map(ipnet::IpNet::from);
        let own = number(
            &own.filter(|network| SourceKind::of(network.addr(), &[]).is_none())
                .collect(),
        );
        let entries: Vec<_> = self
            .specs
            .iter()
            .map(|spec| spec.entry(draining, &mut number))
            .collect();
        self.next_list = next;
        for (list, networks) in &lists {
            for network in networks.iter() {
                self.kernel.put("networks", &layout::network(*list, network))?;
            }
        }
        self.kernel
            .put("settings", &layout::settings(&Host::read(), self.key, own))?;
        for entry in &entries {
            self.kernel.put("listeners", &layout::listener(entry))?;
        }
        for words in layout::ports(self.specs.iter().map(|spec| spec.local().port())) {
            self.kernel.put("ports", &words)?;
        }
        let kept: HashSet<Vec<u8>> = entries.iter().map(|entry| layout::listener_key(entry.local)).collect();
        for key in self.kernel.keys("listeners")?.iter().filter(|key| !kept.contains(*key)) {
            self.kernel.delete("listeners", key)?;
        }
        let numbers: HashSet<ListId> = lists.iter().map(|(list, _)| *list).collect();
        for key in self.kernel.keys("networks")? {
            if layout::list_of_network(&key).is_none_or(|list| !numbers.contains(&list)) {
                self.kernel.delete("networks", &key)?;
            }
        }
        Ok(())
    }

    /// Looks at connections, some `at_most` entries and the rest next time, and forgets those without a socket. Returns how many
    /// there were when all had been looked at last.
    fn sweep(&mut self, at_most: usize) -> io::Result<usize> {
        let mut entries = 0;
        while entries < at_most {
            let swept = self.kernel.sweep(self.sweep.next, monotonic_seconds())?;
            entries += swept.entries;
            self.sweep.next = swept.next;
            self.sweep.active += swept.active;
            if swept.next.is_none() {
                self.sweep.all = std::mem::take(&mut self.sweep.active);
                break;
            }
        }
        Ok(self.sweep.all)
    }
}

/// How far the look at connections has come.
#[derive(Default)]
struct Sweep {
    next: Option<u32>,
    /// Connections so far.
    active: usize,
    /// Connections of the last look at all of them.
    all: usize,
}

fn monotonic_seconds() -> u32 {
    rustix::time::clock_gettime(rustix::time::ClockId::Monotonic).tv_sec as u32
}

enum Order {
    Apply(Vec<Spec>, Arc<Surroundings>, Sender<io::Result<()>>),
    Drain(Duration),
}

/// Programs that are loaded, told everything and attached, but not yet looked after.
pub struct Ready {
    engine: Engine,
    counters: Arc<InlineCounters>,
}

/// Loads the programs, tells them of the listeners and attaches them to the interfaces; `None` if no listener is inline.
///
/// # Errors
/// If a listener must be inline and cannot. Where all only may be, the log says why there are two sockets.
pub fn start(config: &Config, surroundings: &Arc<Surroundings>) -> Result<Option<Ready>, String> {
    let specs = specs(&config.listeners, surroundings)?;
    if specs.is_empty() {
        return Ok(None);
    }
    let must = config.listeners.iter().any(|listener| listener.inline == Inline::On);
    let findings = host::findings(&config.interfaces);
    if !must && !findings.is_empty() {
        log::warn!("two sockets for each connection: {}", findings.join("; "));
        return Ok(None);
    }
    findings.iter().for_each(|finding| log::warn!("inline mode: {finding}"));
    match try_start(config, specs, surroundings) {
        Ok(ready) => Ok(Some(ready)),
        Err(error) if must => Err(error.to_string()),
        Err(error) => {
            log::warn!("two sockets for each connection: {error}");
            Ok(None)
        }
    }
}

fn try_start(config: &Config, specs: Vec<Spec>, surroundings: &Arc<Surroundings>) -> io::Result<Ready> {
    let limit = config.max_connections.unwrap_or(LIMIT).clamp(1, 1 << 24);
    let named = |what: &str, error: io::Error| io::Error::new(error.kind(), format!("{what}: {error}"));
    let folder = config.pin.as_deref();
    if folder.is_none() && Path::new(PINS).exists() {
        let text = format!("an earlier mmproxy has pinned its programs in {PINS}: use --pin, or remove it");
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
    }
    let kernel = Kernel::load(limit as u32, folder).map_err(|error| named("inline mode", error))?;
    let mut engine = Engine::new(kernel)?;
    if config.listeners.iter().all(|listener| listener.inline != Inline::On) {
        engine.try_out().map_err(|error| named("test connection", error))?;
    }
    (engine.specs, engine.surroundings) = (specs, Arc::clone(surroundings));
    engine.apply(false)?;
    let index = |name: &String| ifindex(name).map_err(|error| named(&format!("interface {name}"), error));
    let interfaces = config.interfaces.iter().map(index).collect::<io::Result<Vec<_>>>()?;
    engine
        .kernel
        .attach(&interfaces)
        .map_err(|error| named("attaching", error))?;
    Ok(Ready {
        engine,
        counters: Arc::default(),
    })
}

/// Whether inline mode works on this kernel: loads the programs and makes a test connection, apart from all that runs.
///
/// # Errors
/// What is missing.
pub fn try_out() -> io::Result<()> {
    Engine::new(Kernel::load(1, None)?)?.try_out()
}

/// `ARPHRD_ETHER` and `ARPHRD_LOOPBACK`: what the programs read begins with an Ethernet header.
fn ifindex(name: &str) -> io::Result<u32> {
    let index = host::interface_index(name)?;
    let kind = std::fs::read_to_string(format!("/sys/class/net/{name}/type")).unwrap_or_default();
    if !matches!(kind.trim(), "1" | "772" | "") {
        return Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "its packets have no Ethernet header",
        ));
    }
    Ok(index)
}

fn random_key() -> io::Result<[u64; 2]> {
    let mut bytes = [0; 16];
    let (mut file, mut done) = (std::fs::File::open("/dev/urandom")?, 0);
    while done < bytes.len() {
        done += io::Read::read(&mut file, &mut bytes[done..])?;
    }
    let number = u128::from_ne_bytes(bytes);
    Ok([number as u64, (number >> 64) as u64])
}

impl Ready {
    /// What the programs count.
    pub fn counters(&self) -> Arc<InlineCounters> {
        Arc::clone(&self.counters)
    }

    /// Looks after the programs in a thread of its own, which is the only one that may call `bpf(2)` after this: call it before
    /// the others get their system call filter.
    ///
    /// # Errors
    /// If there are no threads.
    pub fn run(self, sandbox: bool) -> io::Result<Control> {
        let (orders, inbox) = channel();
        let thread = std::thread::Builder::new()
            .name("inline".into())
            .stack_size(512 * 1024)
            .spawn(move || {
                if sandbox && let Err(error) = privileges::enter_sandbox(Role::Inline) {
                    log::warn!("no system call filter: {error}");
                }
                look_after(self.engine, &self.counters, &inbox);
            })?;
        Ok(Control {
            orders,
            thread: Some(thread),
        })
    }
}

fn look_after(mut engine: Engine, counters: &InlineCounters, inbox: &Receiver<Order>) {
    let mut ends = None;
    loop {
        match inbox.recv_timeout(TICK) {
            Ok(Order::Apply(specs, surroundings, answer)) => {
                let old = std::mem::replace(&mut engine.specs, specs);
                let old_surroundings = std::mem::replace(&mut engine.surroundings, surroundings);
                let result = engine.apply(false);
                if result.is_err() {
                    (engine.specs, engine.surroundings) = (old, old_surroundings);
                    if let Err(error) = engine.apply(false) {
                        log::error!("inline mode: the old lists could not be put back: {error}");
                    }
                }
                // Who asked waits for this.
                let _ = answer.send(result);
            }
            Ok(Order::Drain(time)) => {
                // Connections that are pinned need nobody.
                ends = Some(
                    Instant::now()
                        + if engine.kernel.is_pinned() {
                            Duration::ZERO
                        } else {
                            time
                        },
                );
                if let Err(error) = engine.apply(true) {
                    log::error!("inline mode: {error}");
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        let active = engine.sweep(SWEPT_AT_ONCE).unwrap_or_else(|error| {
            log::error!("inline mode: connections cannot be looked at: {error}");
            0
        });
        match engine.kernel.counters() {
            Ok(values) => counters.set(&values, active as u64),
            Err(error) => log::error!("inline mode: no counters: {error}"),
        }
        if ends.is_some_and(|ends| active == 0 || Instant::now() >= ends) {
            return;
        }
    }
}

/// The thread that looks after the programs. They are detached when it ends.
pub struct Control {
    orders: Sender<Order>,
    thread: Option<JoinHandle<()>>,
}

impl Control {
    /// Replaces listeners and lists; the old ones stay if that fails.
    ///
    /// # Errors
    /// What the kernel reports.
    pub fn reload(&self, specs: Vec<Spec>, surroundings: Arc<Surroundings>) -> io::Result<()> {
        let gone = || io::Error::other("the thread for inline mode has ended");
        let (answer, result) = channel();
        self.orders
            .send(Order::Apply(specs, surroundings, answer))
            .map_err(|_| gone())?;
        result.recv().map_err(|_| gone())?
    }

    /// Takes no new connections; ends when the others have ended, or after this time.
    pub fn drain(&self, time: Duration) {
        // It only fails if the thread has ended already.
        let _ = self.orders.send(Order::Drain(time));
    }

    /// The thread, to wait for its end after [`drain`](Self::drain); once.
    pub fn take_thread(&mut self) -> Option<JoinHandle<()>> {
        self.thread.take()
    }
}

#[cfg(all(test, inline_built))]
mod tests {
    use super::*;
    use crate::inline::cost::{endpoints, put_flow};

    #[test]
    fn a_sweep_is_bounded_and_goes_on_where_the_last_has_ended() {
        const CONNECTIONS: usize = 3000;
        const AT_ONCE: usize = 1024;
        let kernel = match Kernel::load(CONNECTIONS as u32, None) {
            Ok(kernel) => kernel,
            Err(error) => return crate::inline::lacking(&error),
        };
        let [(balancer, _), client, server] = endpoints(false);
        for port in 1..=CONNECTIONS as u16 {
            put_flow(&kernel, (balancer, port), server, 0, (client.0, port)).expect("room");
            put_flow(&kernel, (client.0, port), server, 1, (balancer, port)).expect("room");
        }
        let mut engine = Engine::new(kernel).expect("a key");
        let left = |engine: &Engine| engine.kernel.keys("flows").expect("a map").len();
        let mut before = left(&engine);
        assert_eq!(before, 2 * CONNECTIONS);
        let mut sweeps = 0;
        loop {
            engine.sweep(1).expect("swept");
            sweeps += 1;
            let after = left(&engine);
            // Each that was looked at takes its other entry with it.
            assert!(before - after <= 2 * AT_ONCE, "{before}, then {after}");
            before = after;
            if engine.sweep.next.is_none() {
                break;
            }
        }
        assert!(sweeps > 2, "{sweeps}");
        assert_eq!((left(&engine), engine.sweep.all), (0, 0));
    }
}
