//! A server of `[control]`, as the engine starts it, and a client that scrapes it, each on a thread of its own.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use control::http::{Endpoint, Running, client};
use proxyengine::config::ControlConfig;
use proxyengine::engine::Watch;
use proxyengine::log_levels::LogLevels;
use proxyengine::status;

use super::BoxError;

/// Interval between scrapes of `/metrics`.
const PACE: Duration = Duration::from_millis(100);

/// One scrape in so many also asks for what the status page shows.
const PAGE_EVERY: u64 = 10;

/// Threads that serve and ask.
pub(crate) struct Reader {
    endpoint: Endpoint,
    orders: Sender<Watch>,
    listens: Receiver<Result<(), String>>,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<Result<(), String>>>,
    _folder: tempfile::TempDir,
}

#[derive(Default)]
struct Shared {
    looks: AtomicBool,
    is_over: AtomicBool,
    scrapes: AtomicU64,
}

impl Reader {
    /// Threads on the CPUs that the caller's may use.
    pub(crate) fn start() -> Result<Reader, BoxError> {
        let folder = tempfile::tempdir()?;
        let endpoint = Endpoint::Unix(folder.path().join("control"));
        let (orders, watches) = mpsc::channel();
        let (tell, listens) = mpsc::channel();
        let shared = Arc::new(Shared::default());
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

    /// Begins to ask, or ends that.
    pub(crate) fn go_on(&self, looks: bool) {
        self.shared.looks.store(looks, Ordering::Relaxed);
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
        if shared.looks.load(Ordering::Relaxed) {
            ask(endpoint, "/metrics")?;
            if shared
                .scrapes
                .fetch_add(1, Ordering::Relaxed)
                .is_multiple_of(PAGE_EVERY)
            {
                ask(endpoint, "/api/v1/status")?;
            }
        }
        thread::sleep(PACE);
    }
    Ok(())
}

fn ask(endpoint: &Endpoint, path: &str) -> io::Result<usize> {
    match client::ask(endpoint, "GET", path)? {
        (200, body) => Ok(body.len()),
        (status, body) => Err(io::Error::other(format!("{path}: {status} {body}"))),
    }
}
