//! One sink: a ring, a thread and an output. Whatever befalls them is counted here and troubles nobody else.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
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

/// For how long a sink is waited for at the end.
const PATIENCE: Duration = Duration::from_secs(1);

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
    fn reopen(&mut self, _fate: &Fate) -> bool {
        true
    }
}

/// What becomes of a sink's records, and whether it is to end.
#[derive(Debug, Default)]
pub(super) struct Fate {
    written: AtomicU64,
    lost: AtomicU64,
    left_out: AtomicU64,
    reopen: AtomicBool,
    stop: AtomicBool,
    /// Names that hold from now on.
    names: Mutex<Option<Arc<NameTable>>>,
}

impl Fate {
    pub(super) fn write(&self, records: u64) {
        self.written.fetch_add(records, Ordering::Relaxed);
    }

    pub(super) fn lose(&self, records: u64) {
        self.lost.fetch_add(records, Ordering::Relaxed);
    }

    /// Records written or lost so far.
    fn settled(&self) -> u64 {
        self.written.load(Ordering::Relaxed) + self.lost.load(Ordering::Relaxed)
    }

    /// Whether the engine ends: what cannot be written now is lost.
    pub(super) fn is_ending(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    pub(super) fn ask_to_reopen(&self) {
        self.reopen.store(true, Ordering::Relaxed);
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

    /// Waits for the thread to end, as long as its output takes something every two seconds: one that takes nothing would hold up the end of
    /// the engine, or a reload, for ever.
    fn ends(&self, thread: &JoinHandle<()>) -> bool {
        let mut settled = self.fate.settled();
        let mut deadline = Instant::now() + 2 * PATIENCE;
        while !thread.is_finished() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
            if self.fate.settled() != settled {
                settled = self.fate.settled();
                deadline = Instant::now() + 2 * PATIENCE;
            }
        }
        thread.is_finished()
    }

    /// Has numbers mean this from now on.
    pub(super) fn set_names(&mut self, names: &Arc<NameTable>) {
        self.filter.set_names(Arc::clone(names));
        *self.fate.names.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(names));
    }

    /// Waits until there is room for a record; for a sink that takes nothing for a second, never again.
    pub(super) fn wait_for_room(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        while self.ring.is_full() && !self.is_stuck {
            std::thread::sleep(Duration::from_millis(1));
            self.is_stuck = Instant::now() >= deadline;
        }
    }

    pub(super) fn watched(&self) -> WatchedSink {
        WatchedSink {
            to: self.to.clone(),
            fate: Arc::clone(&self.fate),
        }
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.fate.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            if !self.ends(&thread) {
                log::error!("{} takes nothing: session records for it are lost", self.to);
                return self
                    .fate
                    .lose((self.pushed + self.refused).saturating_sub(self.fate.settled()));
            }
            if thread.join().is_err() {
                log::error!("the thread that writes session records to {} has panicked", self.to);
            }
        }
    }
}

/// A sink as others see it.
#[derive(Clone, Debug)]
pub(super) struct WatchedSink {
    to: String,
    pub(super) fate: Arc<Fate>,
}

impl WatchedSink {
    pub(super) fn totals(&self) -> SinkTotals {
        SinkTotals {
            to: self.to.clone(),
            written: self.fate.written.load(Ordering::Relaxed),
            lost: self.fate.lost.load(Ordering::Relaxed),
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
            if last_round || flushed_at.elapsed() >= FLUSH_INTERVAL {
                let flushed = self.output.flush(&self.fate);
                self.note(flushed, true);
                flushed_at = Instant::now();
            }
            if last_round {
                return self.fate.lose(self.output.pending());
            }
            if self.fate.reopen.swap(false, Ordering::Relaxed) && !self.output.reopen(&self.fate) {
                self.fate.reopen.store(true, Ordering::Relaxed);
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
