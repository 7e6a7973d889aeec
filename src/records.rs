//! Makes session records of the connections that all cores have ended, and hands them to sinks while the engine runs and at its
//! end.
//!
//! One thread owns the receiving ends of the cores' rings and makes the records; each sink (`[[records]]`) has a ring and a thread
//! of its own. Nobody waits for anybody: a core whose ring is full loses its record and counts it, a sink that is slow or fails
//! loses its own records and counts them. What is wrong with an output is logged once, not once per record, and writing goes on
//! as soon as it works again. A sink that is to end has three seconds to write what it has.
//!
//! Without a sink the records are taken and counted all the same, so that the totals in the report mean the same with every
//! configuration.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use netfcts::format::{NameTable, RecordLines};
use netfcts::record::SessionRecord;
use netfcts::ring::RecordReceiver;

use crate::config::{Destination, RecordsConfig};
use crate::privileges;
use file::Lines;
use ipfix::Flows;
use sink::{ENDING, Fate, Output, Sink, WatchedSink, end_all};
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
    /// What the sinks are.
    configs: Vec<RecordsConfig>,
    /// How many have been started.
    started: u32,
    /// Threads that wait for sinks which have no place any more.
    leaving: Vec<JoinHandle<()>>,
}

/// Sinks for another version of the file, which are open. Dropping it ends those that are new, and has a file that one of them has put
/// aside begun anew by the sink that it was of.
pub struct Replacement {
    configs: Vec<RecordsConfig>,
    places: Vec<Place>,
    started: u32,
    /// A new one has begun to be opened, and may have put a file aside.
    has_begun: bool,
    seen: RecordWatch,
}

impl Drop for Replacement {
    fn drop(&mut self) {
        if self.has_begun {
            let new = self.places.drain(..).filter_map(|place| match place {
                Place::New(sink) => Some(sink),
                Place::Kept(_) => None,
            });
            end_all(new.collect(), Instant::now() + ENDING);
            self.seen.ask(Fate::ask_to_begin_anew);
        }
    }
}

/// Who takes a place among the sinks.
#[derive(Debug)]
enum Place {
    /// The one that had this number.
    Kept(usize),
    /// A new one.
    New(Sink),
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
    /// The sinks, as others see them.
    watched: Mutex<Vec<WatchedSink>>,
    /// Who takes which place from now on.
    places: Mutex<Option<Vec<Place>>>,
    /// Sinks that have no place any more, for whoever has ordered that.
    past: Mutex<Option<Vec<Sink>>>,
    /// What became of the records of sinks that are no more; changed while [`Counts::watched`] is locked.
    written_by_past: AtomicU64,
    lost_by_past: AtomicU64,
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
        let sinks: Vec<_> = (1..).zip(sinks).collect();
        let started = sinks.iter().map(|(number, sink)| started(sink, &names, *number));
        let started = started.collect::<Result<Vec<_>, _>>()?;
        let mut keeper = Self::start_with(receivers, started).map_err(|source| OpenError {
            to: "-".to_owned(),
            source,
        })?;
        keeper.started = sinks.len() as u32;
        keeper.configs = sinks.into_iter().map(|(_, sink)| sink.clone()).collect();
        Ok(keeper)
    }

    /// Opens the sinks of another version of the file that there are not already.
    ///
    /// # Errors
    /// As of [`RecordKeeper::start`]; then nothing has changed.
    pub fn prepare(&self, sinks: &[RecordsConfig], names: NameTable) -> Result<Replacement, OpenError> {
        let names = Arc::new(names);
        let mut replacement = Replacement {
            configs: sinks.to_vec(),
            places: Vec::with_capacity(sinks.len()),
            started: self.started,
            has_begun: false,
            seen: self.watch(),
        };
        let mut is_kept = vec![false; self.configs.len()];
        for sink in sinks {
            let known = self.configs.iter().zip(&mut is_kept).enumerate();
            let mut same = known.filter(|(_, (known, is_kept))| *known == sink && !**is_kept);
            replacement.places.push(match same.next() {
                Some((number, (_, is_kept))) => {
                    *is_kept = true;
                    Place::Kept(number)
                }
                None => {
                    replacement.started += 1;
                    replacement.has_begun = true;
                    Place::New(started(sink, &names, replacement.started)?)
                }
            });
        }
        Ok(replacement)
    }

    /// Hands records to these sinks from now on. Those that are no more write what they have on threads of their own.
    pub fn replace(&mut self, mut replacement: Replacement) {
        (self.configs, self.started) = (std::mem::take(&mut replacement.configs), replacement.started);
        replacement.has_begun = false;
        *locked(&self.seen.counts.places) = Some(std::mem::take(&mut replacement.places));
        let is_there = || self.thread.as_ref().is_some_and(|thread| !thread.is_finished());
        while is_there() {
            let past = locked(&self.seen.counts.past).take();
            if let Some(past) = past {
                return self.let_go(past);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Ends sinks without waiting for them: one may be slow.
    fn let_go(&mut self, past: Vec<Sink>) {
        self.leaving.retain(|thread| !thread.is_finished());
        if past.is_empty() {
            return;
        }
        let counts = Arc::clone(&self.seen.counts);
        let wait = move || {
            privileges::enter_plain_thread();
            end_all(past, Instant::now() + ENDING);
            counts.fold_past();
        };
        match std::thread::Builder::new()
            .name("record sinks end".to_owned())
            .spawn(wait)
        {
            Ok(thread) => self.leaving.push(thread),
            // They have ended with what was to wait for them.
            Err(error) => log::warn!("no thread to wait for sinks of session records: {error}"),
        }
    }

    fn start_with(receivers: Vec<RecordReceiver>, sinks: Vec<Sink>) -> io::Result<RecordKeeper> {
        let counts = Arc::new(Counts::default());
        *locked(&counts.watched) = sinks.iter().map(Sink::watched).collect();
        let seen = RecordWatch {
            counts: Arc::clone(&counts),
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
            configs: Vec::new(),
            started: 0,
            leaving: Vec::new(),
        })
    }

    /// For whoever wants to know what became of the records, or to have files opened anew.
    pub fn watch(&self) -> RecordWatch {
        self.seen.clone()
    }

    /// Has numbers mean this from now on. Those that have had another meaning are in no record that is still to be written.
    pub fn set_names(&self, names: NameTable) {
        *locked(&self.seen.counts.names) = Some(names);
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
        for thread in self.leaving.drain(..) {
            if thread.join().is_err() {
                log::error!("the thread that waits for sinks of session records has panicked");
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
}

impl RecordWatch {
    /// Of all sinks. Lines that were not flushed yet do not count as written.
    pub fn totals(&self) -> RecordTotals {
        let watched = locked(&self.counts.watched);
        let sinks: Vec<SinkTotals> = watched.iter().map(WatchedSink::totals).collect();
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let [written, lost] = [of(&self.counts.written_by_past), of(&self.counts.lost_by_past)];
        RecordTotals {
            written: written + of(&self.counts.taken) + sinks.iter().map(|sink| sink.written).sum::<u64>(),
            lost: lost + self.lost_in_rings() + sinks.iter().map(|sink| sink.lost).sum::<u64>(),
            left_out: self.counts.left_out.load(Ordering::Relaxed),
        }
    }

    /// Of all that were lost, those that no sink has seen: the ring of a core was full.
    pub fn lost_in_rings(&self) -> u64 {
        self.counts.lost.load(Ordering::Relaxed)
    }

    /// Of each sink, in the order of the configuration.
    pub fn sinks(&self) -> Vec<SinkTotals> {
        let watched = locked(&self.counts.watched);
        let present = watched.iter().filter(|sink| !sink.is_past);
        present.map(WatchedSink::totals).collect()
    }

    /// Has the files opened anew, within a second, whose names no longer lead to them: somebody has renamed them.
    pub fn reopen(&self) {
        self.ask(Fate::ask_to_reopen);
    }

    fn ask(&self, of: impl Fn(&Fate)) {
        let sinks = locked(&self.counts.watched);
        sinks
            .iter()
            .filter(|sink| !sink.is_past)
            .for_each(|sink| of(&sink.fate));
    }

    /// Whether records are written from now on; those that are not are counted.
    pub fn keep(&self, keep: bool) {
        self.counts.is_off.store(!keep, Ordering::Relaxed);
    }
}

impl Counts {
    /// Adds up what became of the records of sinks that have ended.
    fn fold_past(&self) {
        let mut watched = locked(&self.watched);
        for ended in watched.extract_if(.., |sink| sink.is_past && sink.has_ended()) {
            let totals = ended.totals();
            self.written_by_past.fetch_add(totals.written, Ordering::Relaxed);
            self.lost_by_past.fetch_add(totals.lost, Ordering::Relaxed);
        }
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
            self.take_places();
            self.take_names();
            let deadline = last_round.then(|| Instant::now() + ENDING);
            let taken = self.drain(deadline);
            if let Some(deadline) = deadline {
                return end_all(self.sinks, deadline);
            }
            if taken == 0 {
                std::thread::park_timeout(PAUSE);
            }
        }
    }

    /// Has the sinks take other places, if that was ordered. Who has none any more is given back: ending it takes time.
    fn take_places(&mut self) {
        let Some(places) = locked(&self.counts.places).take() else {
            return;
        };
        let mut before: Vec<Option<Sink>> = std::mem::take(&mut self.sinks).into_iter().map(Some).collect();
        self.sinks = (places.into_iter())
            .filter_map(|place| match place {
                Place::Kept(number) => before.get_mut(number)?.take(),
                Place::New(sink) => Some(sink),
            })
            .collect();
        let past: Vec<Sink> = before.into_iter().flatten().collect();
        let mut watched = locked(&self.counts.watched);
        let leaving = watched.drain(..).filter(|sink| sink.is_past);
        let leaving = leaving.chain(past.iter().map(Sink::leaving));
        *watched = (self.sinks.iter().map(Sink::watched))
            .chain(leaving.collect::<Vec<_>>())
            .collect();
        *locked(&self.counts.past) = Some(past);
    }

    fn take_names(&mut self) {
        let names = locked(&self.counts.names).take();
        if let Some(names) = names.map(Arc::new) {
            self.sinks.iter_mut().for_each(|sink| sink.set_names(&names));
        }
    }

    /// At the end, when nobody is kept from anything, sinks are waited for until `deadline`.
    fn drain(&mut self, deadline: Option<Instant>) -> usize {
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
                    sinks.iter_mut().for_each(|sink| hand(sink, record, deadline));
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

/// Nothing that is done while one of these is held can leave it half done.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Opens a sink and starts its thread.
fn started(sink: &RecordsConfig, names: &Arc<NameTable>, number: u32) -> Result<Sink, OpenError> {
    let started = open(sink, names, number).and_then(|output| Sink::start(sink, output, Arc::clone(names)));
    started.map_err(|source| OpenError {
        to: sink.to.to_string(),
        source,
    })
}

/// Gives a sink a record, for whose place it is waited until `deadline`.
fn hand(sink: &mut Sink, record: &SessionRecord, deadline: Option<Instant>) {
    if let Some(deadline) = deadline {
        sink.wait_for_room(deadline);
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
