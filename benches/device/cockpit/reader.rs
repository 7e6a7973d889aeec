//! A server of `[control]`, as the engine starts it, and a client that scrapes it, each on a thread of its own.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use control::http::{Endpoint, Running, client};
use proxyengine::config::ControlConfig;
use proxyengine::engine::Watch;
use proxyengine::log_levels::LogLevels;
use proxyengine::status;
use serde_json::Value;

use super::BoxError;

/// Interval between scrapes of `/metrics`.
const PACE: Duration = Duration::from_millis(100);

/// One scrape in so many also asks for what the status page shows.
const PAGE_EVERY: u64 = 10;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    Nothing,
    /// `/metrics` at intervals of [`PACE`], and at each tenth what the status page shows.
    Numbers,
    /// All open connections, page after page, and again from the first.
    Connections,
}

/// Threads that serve and ask.
pub(crate) struct Reader {
    endpoint: Endpoint,
    orders: Sender<Watch>,
    listens: Receiver<Result<(), String>>,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<Result<(), String>>>,
    _folder: tempfile::TempDir,
}

struct Shared {
    look: Mutex<Look>,
    is_over: AtomicBool,
    scrapes: AtomicU64,
    listed: AtomicU64,
}

impl Shared {
    fn look(&self) -> Look {
        *self.look.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reader {
    /// Threads on the CPUs that the caller's may use.
    pub(crate) fn start() -> Result<Reader, BoxError> {
        let folder = tempfile::tempdir()?;
        let endpoint = Endpoint::Unix(folder.path().join("control"));
        let (orders, watches) = mpsc::channel();
        let (tell, listens) = mpsc::channel();
        let shared = Arc::new(Shared {
            look: Mutex::new(Look::Nothing),
            is_over: AtomicBool::new(false),
            scrapes: AtomicU64::new(0),
            listed: AtomicU64::new(0),
        });
        let serving = endpoint.clone();
        // What it spawns is where it is itself.
        let server = thread::spawn(move || {
            let mut running = None;
            for watch in watches {
                // Two cannot have one socket.
                drop(running.take());
                let served = serve(&serving, watch).map(|server| running = Some(server));
                // The receiver is gone at the end only.
                let _ = tell.send(served.map_err(|error| error.to_string()));
            }
            Ok(())
        });
        let (asked, for_client) = (endpoint.clone(), Arc::clone(&shared));
        let client = thread::spawn(move || look(&asked, &for_client).map_err(|error| error.to_string()));
        Ok(Reader {
            endpoint,
            orders,
            listens,
            shared,
            threads: vec![server, client],
            _folder: folder,
        })
    }

    /// From now on this is what is served.
    pub(crate) fn look_at(&self, watch: Watch) -> Result<(), BoxError> {
        self.orders.send(watch)?;
        let answer = self.listens.recv()?;
        Ok(answer?)
    }

    /// From now on asks for this.
    pub(crate) fn ask_for(&self, look: Look) {
        *self.shared.look.lock().unwrap_or_else(PoisonError::into_inner) = look;
    }

    /// Connections that answers have had.
    pub(crate) fn listed(&self) -> u64 {
        self.shared.listed.load(Ordering::Relaxed)
    }

    /// Asks once, from the caller's thread: the bytes of the answer.
    pub(crate) fn ask(&self, path: &str) -> io::Result<usize> {
        ask(&self.endpoint, path)
    }

    /// Ends, and says how often it has asked for `/metrics`.
    pub(crate) fn finish(self) -> Result<u64, BoxError> {
        self.shared.is_over.store(true, Ordering::Relaxed);
        drop(self.orders);
        for thread in self.threads {
            thread.join().map_err(|_| "a reader has panicked")??;
        }
        Ok(self.shared.scrapes.load(Ordering::Relaxed))
    }
}

fn serve(endpoint: &Endpoint, watch: Watch) -> io::Result<Running> {
    let config = ControlConfig {
        socket: Some(endpoint.clone()),
        ..ControlConfig::default()
    };
    let server = status::listen(&config).map_err(|(_, error)| error)?;
    let server = server.ok_or(io::ErrorKind::NotFound)?;
    status::serve(server, watch, LogLevels::default(), None)
}

fn look(endpoint: &Endpoint, shared: &Shared) -> io::Result<()> {
    while !shared.is_over.load(Ordering::Relaxed) {
        match shared.look() {
            Look::Numbers => {
                ask(endpoint, "/metrics")?;
                let scrapes = shared.scrapes.fetch_add(1, Ordering::Relaxed);
                if scrapes.is_multiple_of(PAGE_EVERY) {
                    ask(endpoint, "/api/v1/status")?;
                }
                thread::sleep(PACE);
            }
            Look::Connections => list(endpoint, shared)?,
            Look::Nothing => thread::sleep(PACE / 10),
        }
    }
    Ok(())
}

/// Lists all connections as `ctl show connections` does, until something else is wanted.
fn list(endpoint: &Endpoint, shared: &Shared) -> io::Result<()> {
    let mut from = String::new();
    while shared.look() == Look::Connections {
        let (status, body) = client::ask(endpoint, "GET", &format!("/api/v1/connections{from}"))?;
        // A core that has ended its turn meanwhile does not answer.
        if shared.look() != Look::Connections {
            return Ok(());
        }
        let page: Value = serde_json::from_str(&body).map_err(|_| io::Error::other(format!("{status} {body}")))?;
        let count = page["connections"].as_array().map_or(0, Vec::len);
        shared.listed.fetch_add(count as u64, Ordering::Relaxed);
        match page["next"].as_str() {
            Some(next) => from = format!("?from={next}"),
            None => return Ok(()),
        }
    }
    Ok(())
}

fn ask(endpoint: &Endpoint, path: &str) -> io::Result<usize> {
    match client::ask(endpoint, "GET", path)? {
        (200, body) => Ok(body.len()),
        (status, body) => Err(io::Error::other(format!("{path}: {status} {body}"))),
    }
}
