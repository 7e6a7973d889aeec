//! One sink: a ring, a thread and an output. Whatever befalls them is counted here and troubles nobody else.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use netfcts::format::NameTable;
use netfcts::record::SessionRecord;
use rtrb::{Consumer, Producer, PushError, RingBuffer};

use super::filter::Filter;
use super::{PAUSE, RING_CAPACITY};
use crate::config::RecordsConfig;
use crate::privileges;

/// How often a reader of the output sees new records at the latest.
const FLUSH_INTERVAL: Duration = Duration::from_secs(1);

/// For how long a sink that takes nothing is waited for at the end, before it is passed over.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long sinks may take to write what they have, once they are told to end: all of them together.
pub(super) const ENDING: Duration = Duration::from_secs(3);

/// How long one that has been given up may take to notice; more than a send to a socket lasts.
const NOTICING: Duration = Duration::from_millis(500);

/// What a sink writes to.
pub(super) trait Output: Send {
    /// Takes one record. It counts as written when it is out, and as lost when it never will be.
    ///
    /// # Errors
    /// The output does not work. The record counts as lost, or will be tried again.
    fn put(&mut self, record: &SessionRecord, fate: &Fate) -> io::Result<()>;

    /// Writes what is still here.
    ///
    /// # Errors
    /// As of [`put`](Self::put).
    fn flush(&mut self, fate: &Fate) -> io::Result<()>;

    /// How many records are still here.
    fn pending(&self) -> u64;

    /// Has numbers mean this from now on.
    fn set_names(&mut self, names: &Arc<NameTable>);

    /// Opens the file anew if its name no longer leads to it; nothing where there is no file. Returns false if that is to be asked again, as
    /// what goes to the file before has not gone there yet.
    fn reopen(&mut self, _keeps: Keeps, _fate: &Fate) -> bool {
        true
    }
}

/// What a file keeps that stands where a sink goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keeps {
    /// All: it is somebody's.
    All,
    /// Nothing: it is of a sink that was opened and never used.
    Nothing,
}

/// What becomes of a sink's records, and whether it is to end.
#[derive(Debug, Default)]
pub(super) struct Fate {
    outcome: Mutex<Outcome>,
    left_out: AtomicU64,
    reopen: AtomicBool,
    begin_anew: AtomicBool,
    stop: AtomicBool,
    is_given_up: AtomicBool,
    /// Names that hold from now on.
    names: Mutex<Option<Arc<NameTable>>>,
}

/// What became of records so far.
#[derive(Clone, Copy, Debug, Default)]
struct Outcome {
    written: u64,
    lost: u64,
    /// It is that of all records.
    is_settled: bool,
}

impl Fate {
    fn outcome(&self) -> MutexGuard<'_, Outcome> {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn write(&self, records: u64) {
        let mut outcome = self.outcome();
        if !outcome.is_settled {
            outcome.written += records;
        }
    }

    pub(super) fn lose(&self, records: u64) {
        let mut outcome = self.outcome();
        if !outcome.is_settled {
            outcome.lost += records;
        }
    }

    /// Of so many records handed over those that are neither written nor lost are lost. Whoever hangs in a write counts no more when
    /// it returns.
    fn settle(&self, all: u64) {
        let mut outcome = self.outcome();
        outcome.is_settled = true;
        outcome.lost = all.saturating_sub(outcome.written).max(outcome.lost);
    }

    /// Whether the engine ends: what cannot be written now is lost.
    pub(super) fn is_ending(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    pub(super) fn ask_to_reopen(&self) {
        self.reopen.store(true, Ordering::Relaxed);
    }

    /// The same where what stands under the name was never used.
    pub(super) fn ask_to_begin_anew(&self) {
        self.begin_anew.store(true, Ordering::Relaxed);
    }

    /// What the file is asked to be opened anew for, since this was asked last.
    fn asked(&self) -> Option<(&AtomicBool, Keeps)> {
        let asked = [(&self.begin_anew, Keeps::Nothing), (&self.reopen, Keeps::All)];
        asked
            .into_iter()
            .find(|(asked, _)| asked.swap(false, Ordering::Relaxed))
    }

    /// Whether what is not written yet is lost.
    fn is_given_up(&self) -> bool {
        self.is_given_up.load(Ordering::Acquire)
    }
}

/// What became of a sink's records so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct SinkTotals {
    /// Where it writes to.
    pub to: String,
    /// Written. What was not flushed yet does not count.
    pub written: u64,
    /// Lost, as the output failed or was too slow.
    pub lost: u64,
    /// Not for this sink: another one's by the filter, or not in the sample.
    pub left_out: u64,
}

/// The distributor's end of a sink. Dropping it ends the thread and waits for it.
#[derive(Debug)]
pub(super) struct Sink {
    to: String,
    filter: Filter,
    ring: Producer<SessionRecord>,
    /// At the end: it takes nothing.
    is_stuck: bool,
    /// Records handed over, and those that there was no room for.
    pushed: u64,
    refused: u64,
    fate: Arc<Fate>,
    thread: Option<JoinHandle<()>>,
}

impl Sink {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system has no thread left.
    pub(super) fn start(config: &RecordsConfig, output: Box<dyn Output>, names: Arc<NameTable>) -> io::Result<Sink> {
        let (ring, taken) = RingBuffer::new(RING_CAPACITY);
        let fate = Arc::new(Fate::default());
        let writer = Writer {
            to: config.to.to_string(),
            ring: taken,
            output,
            complained: false,
            fate: Arc::clone(&fate),
        };
        let thread = std::thread::Builder::new()
            .name("record sink".to_owned())
            .spawn(move || {
                privileges::enter_writer_thread();
                writer.run();
            })?;
        Ok(Sink {
            to: config.to.to_string(),
            filter: Filter::new(config, names),
            ring,
            is_stuck: false,
            pushed: 0,
            refused: 0,
            fate,
            thread: Some(thread),
        })
    }

    /// Hands a record over, if it is for this sink and there is room.
    pub(super) fn offer(&mut self, record: &SessionRecord) {
        if !self.filter.takes(record) {
            self.fate.left_out.fetch_add(1, Ordering::Relaxed);
        } else if let Err(PushError::Full(_)) = self.ring.push(*record) {
            self.fate.lose(1);
            self.refused += 1;
        } else {
            self.pushed += 1;
        }
    }

    fn tell_to_end(&self) {
        self.fate.stop.store(true, Ordering::Release);
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }

    fn is_at_work(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// What is not written by now is lost.
    fn give_up(&self) {
        if self.is_at_work() {
            log::error!("{} is too slow: the rest of its session records is lost", self.to);
            self.fate.is_given_up.store(true, Ordering::Release);
        }
    }

    /// Lets go of the thread, which has ended, or hangs in a write.
    fn let_go(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if !thread.is_finished() {
            self.fate.settle(self.pushed + self.refused);
        } else if thread.join().is_err() {
            log::error!("the thread that writes session records to {} has panicked", self.to);
        }
    }

    /// Has numbers mean this from now on.
    pub(super) fn set_names(&mut self, names: &Arc<NameTable>) {
        self.filter.set_names(Arc::clone(names));
        *self.fate.names.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(names));
    }

    /// Waits until there is room for a record, or until `deadline`; for a sink that takes nothing for a second, never again.
    pub(super) fn wait_for_room(&mut self, deadline: Instant) {
        let deadline = deadline.min(Instant::now() + PATIENCE);
        while self.ring.is_full() && !self.is_stuck {
            std::thread::sleep(Duration::from_millis(1));
            self.is_stuck = Instant::now() >= deadline;
        }
    }

    pub(super) fn watched(&self) -> WatchedSink {
        WatchedSink {
            to: self.to.clone(),
            fate: Arc::clone(&self.fate),
            is_past: false,
        }
    }

    /// The same, as it has no place any more.
    pub(super) fn leaving(&self) -> WatchedSink {
        WatchedSink {
            is_past: true,
            ..self.watched()
        }
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        end(std::slice::from_mut(self), Instant::now() + ENDING);
    }
}

/// Has sinks write what they have, all at the same time, and waits for them until `deadline`.
pub(super) fn end_all(mut sinks: Vec<Sink>, deadline: Instant) {
    end(&mut sinks, deadline);
}

fn end(sinks: &mut [Sink], deadline: Instant) {
    sinks.iter().for_each(Sink::tell_to_end);
    wait_for(sinks, deadline);
    sinks.iter().for_each(Sink::give_up);
    wait_for(sinks, Instant::now() + NOTICING);
    sinks.iter_mut().for_each(Sink::let_go);
}

fn wait_for(sinks: &[Sink], deadline: Instant) {
    while sinks.iter().any(Sink::is_at_work) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A sink as others see it.
#[derive(Clone, Debug)]
pub(super) struct WatchedSink {
    to: String,
    pub(super) fate: Arc<Fate>,
    /// It has no place any more, and writes what it has.
    pub(super) is_past: bool,
}

impl WatchedSink {
    /// Whether nothing of the sink is left but what it has counted.
    pub(super) fn has_ended(&self) -> bool {
        Arc::strong_count(&self.fate) == 1
    }

    pub(super) fn totals(&self) -> SinkTotals {
        let outcome = *self.fate.outcome();
        SinkTotals {
            to: self.to.clone(),
            written: outcome.written,
            lost: outcome.lost,
            left_out: self.fate.left_out.load(Ordering::Relaxed),
        }
    }
}

/// What the thread owns.
struct Writer {
    to: String,
    ring: Consumer<SessionRecord>,
    output: Box<dyn Output>,
    complained: bool,
    fate: Arc<Fate>,
}

impl Writer {
    fn run(mut self) {
        let mut flushed_at = Instant::now();
        loop {
            // Read before the ring: whatever was handed over before is still taken in this round.
            let last_round = self.fate.is_ending();
            let names = self.fate.names.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(names) = names {
                self.output.set_names(&names);
            }
            let taken = self.drain();
            if self.fate.is_given_up() {
                return self.fate.lose(self.output.pending() + self.ring.slots() as u64);
            }
            if last_round || flushed_at.elapsed() >= FLUSH_INTERVAL {
                let flushed = self.output.flush(&self.fate);
                self.note(flushed, true);
                flushed_at = Instant::now();
            }
            if last_round {
                return self.fate.lose(self.output.pending());
            }
            if let Some((asked, keeps)) = self.fate.asked()
                && !self.output.reopen(keeps, &self.fate)
            {
                asked.store(true, Ordering::Relaxed);
            }
            if taken == 0 {
                std::thread::park_timeout(PAUSE);
            }
        }
    }

    /// At most what one ring holds, so that a sink that always has work flushes, too.
    fn drain(&mut self) -> usize {
        let waiting = self.ring.slots();
        for _ in 0..waiting {
            if self.fate.is_given_up() {
                break;
            }
            let Ok(record) = self.ring.pop() else { break };
            let put = self.output.put(&record, &self.fate);
            self.note(put, false);
        }
        waiting
    }

    /// A trouble is logged once, and again after it was over: after a flush that went well.
    fn note(&mut self, result: io::Result<()>, flushed: bool) {
        match result {
            Ok(()) => self.complained &= !flushed,
            Err(error) if !self.complained => {
                self.complained = true;
                let to = &self.to;
                log::error!(
                    "session records cannot be written to {to}: {error}; they are counted as lost until it works again"
                );
            }
            Err(_) => (),
        }
    }
}
