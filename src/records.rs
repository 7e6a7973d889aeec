//! Makes session records of the connections that all cores have ended, and hands them to sinks while the engine runs and at its
//! end.
//!
//! One thread owns the receiving ends of the cores' rings and makes the records; each sink (`[[records]]`) has a ring and a thread
//! of its own. Nobody waits for anybody: a core whose ring is full loses its record and counts it, a sink that is slow or fails
//! loses its own records and counts them. What is wrong with an output is logged once, not once per record, and writing goes on
//! as soon as it works again.
//!
//! Without a sink the records are taken and counted all the same, so that the totals in the report mean the same with every
//! configuration.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use netfcts::format::{NameTable, RecordLines};
use netfcts::record::SessionRecord;
use netfcts::ring::RecordReceiver;

use crate::config::{Destination, RecordsConfig};
use crate::privileges;
use file::Lines;
use ipfix::Flows;
use sink::{Output, Sink, WatchedSink};
use socket::{Datagrams, Stream};

mod file;
mod filter;
mod ipfix;
mod sink;
mod socket;

pub use sink::SinkTotals;

/// Records that the ring between a core and the thread that takes them holds, and that to each sink (8 and 12 MiB): 65 ms at a
/// million connections per second, far more than a thread rests.
pub const RING_CAPACITY: usize = 65_536;

/// How long a thread rests when its rings are empty.
const PAUSE: Duration = Duration::from_millis(10);

/// What became of the records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordTotals {
    /// Written, the sum over all sinks; without one, counted only.
    pub written: u64,
    /// Lost: the ring of a core was full, or a sink's, or its output failed.
    pub lost: u64,
    /// Not written because somebody has switched writing off.
    pub left_out: u64,
}

/// A sink could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("session records cannot be written to {to}: {source}; name a file in a directory that exists and is writable")]
pub struct OpenError {
    /// Where to.
    to: String,
    /// What the system said.
    source: io::Error,
}

/// The thread that takes records, and those that write them. Dropping it without [`finish`](Self::finish) stops them, too, and
/// waits for them.
#[derive(Debug)]
pub struct RecordKeeper {
    seen: RecordWatch,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Counts {
    /// Of the rings of the cores.
    lost: AtomicU64,
    /// Taken where there is no sink.
    taken: AtomicU64,
    left_out: AtomicU64,
    is_off: AtomicBool,
    stop: AtomicBool,
    /// Names that hold from now on.
    names: Mutex<Option<NameTable>>,
}

impl RecordKeeper {
    /// Opens the sinks and starts the threads.
    ///
    /// # Errors
    /// A file cannot be opened, or the system has no thread left. A socket is not waited for: it is called when there are records.
    pub fn start(
        receivers: Vec<RecordReceiver>,
        sinks: &[RecordsConfig],
        names: NameTable,
    ) -> Result<RecordKeeper, OpenError> {
        let names = Arc::new(names);
        let mut started = Vec::with_capacity(sinks.len());
        for (number, sink) in (1..).zip(sinks) {
            let with_place = |source| OpenError {
                to: sink.to.to_string(),
                source,
            };
            let output = open(sink, &names, number).map_err(with_place)?;
            started.push(Sink::start(sink, output, Arc::clone(&names)).map_err(with_place)?);
        }
        Self::start_with(receivers, started).map_err(|source| OpenError {
            to: "-".to_owned(),
            source,
        })
    }

    fn start_with(receivers: Vec<RecordReceiver>, sinks: Vec<Sink>) -> io::Result<RecordKeeper> {
        let counts = Arc::new(Counts::default());
        let seen = RecordWatch {
            counts: Arc::clone(&counts),
            sinks: sinks.iter().map(Sink::watched).collect(),
        };
        let taker = Taker {
            receivers,
            sinks,
            counts,
        };
        let thread = std::thread::Builder::new().name("records".to_owned()).spawn(move || {
            privileges::enter_plain_thread();
            taker.run();
        })?;
        Ok(RecordKeeper {
            seen,
            thread: Some(thread),
        })
    }

    /// For whoever wants to know what became of the records, or to have files opened anew.
    pub fn watch(&self) -> RecordWatch {
        self.seen.clone()
    }

    /// Has numbers mean this from now on. Those that have had another meaning are in no record that is still to be written.
    pub fn set_names(&self, names: NameTable) {
        *self.seen.counts.names.lock().unwrap_or_else(PoisonError::into_inner) = Some(names);
    }

    /// Writes what is in the rings now, flushes and ends the threads. To be called when the cores have stopped.
    pub fn finish(mut self) -> RecordWatch {
        self.stop();
        self.seen.clone()
    }

    fn stop(&mut self) {
        self.seen.counts.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            if thread.join().is_err() {
                log::error!("the thread that takes session records has panicked");
            }
        }
    }
}

impl Drop for RecordKeeper {
    fn drop(&mut self) {
        self.stop();
    }
}

/// What became of the records of a [`RecordKeeper`] so far. One that was made for none has seen none.
#[derive(Clone, Debug, Default)]
pub struct RecordWatch {
    counts: Arc<Counts>,
    sinks: Vec<WatchedSink>,
}

impl RecordWatch {
    /// Of all sinks. Lines that were not flushed yet do not count as written.
    pub fn totals(&self) -> RecordTotals {
        let sinks = self.sinks();
        RecordTotals {
            written: self.counts.taken.load(Ordering::Relaxed) + sinks.iter().map(|sink| sink.written).sum::<u64>(),
            lost: self.lost_in_rings() + sinks.iter().map(|sink| sink.lost).sum::<u64>(),
            left_out: self.counts.left_out.load(Ordering::Relaxed),
        }
    }

    /// Of all that were lost, those that no sink has seen: the ring of a core was full.
    pub fn lost_in_rings(&self) -> u64 {
        self.counts.lost.load(Ordering::Relaxed)
    }

    /// Of each sink, in the order of the configuration.
    pub fn sinks(&self) -> Vec<SinkTotals> {
        self.sinks.iter().map(WatchedSink::totals).collect()
    }

    /// Has the files opened anew, within a second, whose names no longer lead to them: somebody has renamed them.
    pub fn reopen(&self) {
        self.sinks.iter().for_each(|sink| sink.fate.ask_to_reopen());
    }

    /// Whether records are written from now on; those that are not are counted.
    pub fn keep(&self, keep: bool) {
        self.counts.is_off.store(!keep, Ordering::Relaxed);
    }
}

/// What the thread owns.
struct Taker {
    receivers: Vec<RecordReceiver>,
    sinks: Vec<Sink>,
    counts: Arc<Counts>,
}

impl Taker {
    /// The sinks end when this does, and each writes before what is in its ring.
    fn run(mut self) {
        loop {
            // Read before the rings: whatever was sent before `stop` was set is still taken in this round.
            let last_round = self.counts.stop.load(Ordering::Acquire);
            self.take_names();
            let taken = self.drain(last_round);
            if last_round {
                return;
            }
            if taken == 0 {
                std::thread::park_timeout(PAUSE);
            }
        }
    }

    fn take_names(&mut self) {
        let names = self.counts.names.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(names) = names.map(Arc::new) {
            self.sinks.iter_mut().for_each(|sink| sink.set_names(&names));
        }
    }

    fn drain(&mut self, last_round: bool) -> usize {
        let Taker {
            receivers,
            sinks,
            counts,
        } = self;
        let is_off = counts.is_off.load(Ordering::Relaxed);
        let mut taken = 0;
        for receiver in &mut *receivers {
            taken += receiver.drain(|record| {
                if !is_off {
                    sinks.iter_mut().for_each(|sink| hand(sink, record, last_round));
                }
            });
        }
        if is_off {
            counts.left_out.fetch_add(taken as u64, Ordering::Relaxed);
        } else if sinks.is_empty() {
            counts.taken.fetch_add(taken as u64, Ordering::Relaxed);
        }
        let lost = receivers.iter().map(RecordReceiver::records_lost).sum();
        counts.lost.store(lost, Ordering::Relaxed);
        taken
    }
}

/// Gives a sink a record. At the end, when nobody is kept from anything, one that works is waited for.
fn hand(sink: &mut Sink, record: &SessionRecord, last_round: bool) {
    if last_round {
        sink.wait_for_room();
    }
    sink.offer(record);
}

fn open(sink: &RecordsConfig, names: &Arc<NameTable>, number: u32) -> io::Result<Box<dyn Output>> {
    let lines = RecordLines::new(sink.format, Arc::clone(names), sink.sample);
    Ok(match &sink.to {
        Destination::Stdout => Box::new(Lines::to(Box::new(io::stdout()), lines)?),
        Destination::File(path) => Box::new(Lines::create(path, sink.rotation, lines)?),
        Destination::Stream(path) => Box::new(Stream::new(path.clone(), lines)),
        Destination::Datagram(path) => Box::new(Datagrams::plain(path.clone(), lines)),
        Destination::Syslog(to) => Box::new(Datagrams::syslog(to.clone(), lines)),
        Destination::Ipfix(to) => Box::new(Flows::new(*to, Arc::clone(names), sink.sample, number)),
    })
}

#[cfg(test)]
mod tests;
