//! What cores have to say in the log, without writing there: events go by a bounded ring to a thread that words them.
//!
//! A packet thread neither formats nor writes: whoever reads standard error slowly, or not at all, would hold up every
//! connection of the core. It puts a [`LogEvent`] into its ring ([`LogSender`]), which is a copy of some 40 bytes; what finds the
//! ring full is lost and counted. One thread ([`LogWriter`]) empties the rings of all cores.

use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use e2d2::port::PortId;
use e2d2::wire::MacAddr;
use log::Level;
use rtrb::{Consumer, Producer, RingBuffer};

use crate::config::{Config, ServerId};
use crate::privileges;
use crate::report::ReportedServerCaps;
use splice::steering::SteeringTrouble;

/// Events that a core's ring holds: 40 KiB. A start with every next hop new (`MAX_NEXT_HOPS`) overflows it at worst, and loses lines
/// of the kind "is at".
pub const LOG_RING: usize = 1024;

/// How long the thread rests when all rings are empty.
const PAUSE: Duration = Duration::from_millis(20);

/// How long the end of the engine waits for the last lines: the log may be a pipe that nobody reads.
const PATIENCE: Duration = Duration::from_millis(500);

/// Something for the log, as numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogEvent {
    /// A server's TCP can do other things than was known.
    Server {
        /// The server.
        server: ServerId,
        /// What it can do.
        server_caps: ReportedServerCaps,
    },
    /// The ports do not steer as they were told.
    Steering(SteeringTrouble),
    /// A next hop's MAC address has become known.
    NeighbourFound {
        /// Its address.
        address: IpAddr,
        /// Its MAC address.
        mac: MacAddr,
        /// The port that it is behind.
        port: PortId,
    },
    /// It has another MAC address than before.
    NeighbourMoved {
        /// Its address.
        address: IpAddr,
        /// The MAC address that it had.
        old: MacAddr,
        /// The one that it has.
        mac: MacAddr,
        /// The port that it is behind.
        port: PortId,
    },
    /// It does not answer any more.
    NeighbourLost {
        /// Its address.
        address: IpAddr,
        /// The port that it was behind.
        port: PortId,
    },
    /// Another station uses an address of ours.
    DuplicateAddress {
        /// Our address.
        address: IpAddr,
        /// The other's MAC address.
        mac: MacAddr,
        /// The port that it is behind.
        port: PortId,
    },
    /// Events of neighbours that were not sent, as there were too many.
    NeighboursUnsaid(u32),
}

impl LogEvent {
    /// The line in the log. `server` gives a server's name.
    fn line<'a>(&self, server: impl Fn(ServerId) -> &'a str) -> (Level, String) {
        match self {
            Self::Server {
                server: id,
                server_caps,
            } => (Level::Info, format!("server {}: {server_caps}", server(*id))),
            Self::Steering(SteeringTrouble::Hash { told, expected }) => (
                Level::Warn,
                format!(
                    "steering: a port names the hash {told:#010x} for a packet where its key makes {expected:#010x}; what \
                     comes in on the wrong core is handed over (hash_wrong, mis_steered)"
                ),
            ),
            Self::Steering(SteeringTrouble::Queue { owner }) => (
                Level::Warn,
                format!(
                    "steering: a packet for core number {owner} came in on another; such packets are handed over \
                     (mis_steered)"
                ),
            ),
            Self::NeighbourFound { address, mac, port } => {
                (Level::Info, format!("{address} is at {mac} on port {}", port.0))
            }
            Self::NeighbourMoved {
                address,
                old,
                mac,
                port,
            } => (
                Level::Warn,
                format!("{address} has moved from {old} to {mac} on port {}", port.0),
            ),
            Self::NeighbourLost { address, port } => (
                Level::Warn,
                format!("{address} on port {} no longer answers; asking everyone for it", port.0),
            ),
            Self::DuplicateAddress { address, mac, port } => (
                Level::Warn,
                format!(
                    "{mac} on port {} uses our address {address}, too: connections will break until one of us stops",
                    port.0
                ),
            ),
            Self::NeighboursUnsaid(count) => (
                Level::Warn,
                format!("{count} events of neighbours before this one were not logged"),
            ),
        }
    }
}

/// A ring of `capacity` events: the end of the core, and that of the thread.
pub fn log_ring(capacity: usize) -> (LogSender, LogReceiver) {
    let (producer, consumer) = RingBuffer::new(capacity);
    let lost = Arc::new(Lost::default());
    let sender = LogSender {
        producer,
        lost: Arc::clone(&lost),
    };
    (sender, LogReceiver { consumer, lost })
}

/// Events that found the ring full; on lines that no other core writes.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Lost(AtomicU64);

/// The core's end of a ring. It never waits.
pub struct LogSender {
    producer: Producer<LogEvent>,
    lost: Arc<Lost>,
}

/// The same end for the several parts of one core.
pub type SharedLog = Rc<RefCell<LogSender>>;

impl LogSender {
    /// Puts an event into the ring, or counts it as lost if there is no room.
    pub fn send(&mut self, event: LogEvent) {
        if self.producer.push(event).is_err() {
            // Relaxed: the count stands for itself.
            self.lost.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// For several owners on this core.
    pub fn shared(self) -> SharedLog {
        Rc::new(RefCell::new(self))
    }
}

/// The thread's end of a ring.
pub struct LogReceiver {
    consumer: Consumer<LogEvent>,
    lost: Arc<Lost>,
}

impl LogReceiver {
    /// The oldest event.
    pub(crate) fn take(&mut self) -> Option<LogEvent> {
        self.consumer.pop().ok()
    }
}

/// The thread that writes what the cores have to say. Dropping it stops it, too.
#[derive(Debug)]
pub struct LogWriter {
    lost: Vec<Arc<Lost>>,
    stop: Arc<AtomicBool>,
    ended: Receiver<()>,
    thread: Option<JoinHandle<()>>,
    config: Arc<Mutex<Arc<Config>>>,
}

impl LogWriter {
    /// Starts the thread. It writes by the program's [`log`] facade.
    ///
    /// # Errors
    /// The system has no thread left.
    pub fn start(receivers: Vec<LogReceiver>, config: Arc<Config>) -> std::io::Result<Self> {
        let lost = receivers.iter().map(|receiver| Arc::clone(&receiver.lost)).collect();
        let stop = Arc::new(AtomicBool::new(false));
        let (end, ended) = mpsc::channel();
        let is_over = Arc::clone(&stop);
        let config = Arc::new(Mutex::new(config));
        let named = Arc::clone(&config);
        let body = move || {
            privileges::enter_writer_thread();
            write_until(receivers, &named, &is_over);
            drop(end);
        };
        let thread = std::thread::Builder::new().name("log".to_owned()).spawn(body)?;
        Ok(Self {
            lost,
            stop,
            ended,
            thread: Some(thread),
            config,
        })
    }

    /// Has numbers mean this from now on.
    pub fn set_config(&self, config: Arc<Config>) {
        *self.config.lock().unwrap_or_else(PoisonError::into_inner) = config;
    }

    /// Lines lost so far, because a core's ring was full.
    pub fn lost(&self) -> u64 {
        self.lost.iter().map(|lost| lost.0.load(Ordering::Relaxed)).sum()
    }
}

impl Drop for LogWriter {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        let Some(thread) = self.thread.take() else { return };
        thread.thread().unpark();
        // It sends nothing: its end is told by dropping the channel. One that cannot write is left behind.
        if self.ended.recv_timeout(PATIENCE) != Err(mpsc::RecvTimeoutError::Timeout) {
            let _ = thread.join();
        }
    }
}

fn write_until(mut receivers: Vec<LogReceiver>, config: &Mutex<Arc<Config>>, stop: &AtomicBool) {
    loop {
        // Read before the rings: whatever was sent before is still written.
        let is_last = stop.load(Ordering::Acquire);
        let config = Arc::clone(&config.lock().unwrap_or_else(PoisonError::into_inner));
        let name = |id: ServerId| {
            config
                .servers()
                .get(id.index())
                .map_or("", |server| server.name.as_str())
        };
        for receiver in &mut receivers {
            while let Some(event) = receiver.take() {
                let (level, line) = event.line(name);
                log::log!(level, "{line}");
            }
        }
        if is_last {
            return;
        }
        std::thread::park_timeout(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOST: LogEvent = LogEvent::NeighbourLost {
        address: IpAddr::V4(std::net::Ipv4Addr::LOCALHOST),
        port: PortId(1),
    };

    #[test]
    fn a_full_ring_loses_the_newest_and_counts() {
        let (mut sender, mut receiver) = log_ring(2);
        (0..5).for_each(|_| sender.send(LOST));
        assert_eq!(receiver.lost.0.load(Ordering::Relaxed), 3);
        assert_eq!(std::iter::from_fn(|| receiver.take()).count(), 2);
        sender.send(LOST);
        assert_eq!(receiver.take(), Some(LOST));
    }

    #[test]
    fn events_are_small_and_worded_with_names() {
        assert!(size_of::<LogEvent>() <= 40);
        let event = LogEvent::Server {
            server: ServerId(1),
            server_caps: ReportedServerCaps {
                mss: 1460,
                window_scale: Some(7),
                sack: true,
                timestamps: false,
                window: 65_535,
            },
        };
        let (level, line) = event.line(|id| if id == ServerId(1) { "one" } else { "another" });
        assert_eq!(level, Level::Info);
        assert_eq!(
            line,
            "server one: MSS 1460, window scale 7, SACK, no timestamps, window 65535"
        );
        assert_eq!(
            LOST.line(|_| "").1,
            "127.0.0.1 on port 1 no longer answers; asking everyone for it"
        );
    }
}
