//! Makes session records of the connections that all cores have ended, and writes them to a file or standard output,
//! while the engine runs and at its end.
//!
//! One thread owns the receiving ends of the cores' rings and the output. It never makes a core wait: what it cannot keep
//! up with is lost in the ring and counted there, what the disk refuses is lost here and counted, too. A disk that is full
//! is reported once, not once per record, and writing goes on as soon as it works again.
//!
//! Without an output the records are taken and counted all the same, so that the totals in the report mean the same with
//! every configuration.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use netfcts::format::{NameTable, RecordFormat, RecordWriter};
use netfcts::record::SessionRecord;
use netfcts::ring::RecordReceiver;

/// Records that the ring between a core and the writing thread holds: 8 MiB per core, and 65 ms at a million
/// connections per second, far more than the writer rests.
pub const RING_CAPACITY: usize = 65_536;

/// How long the thread rests when all rings are empty.
const PAUSE: Duration = Duration::from_millis(10);

/// How often a reader of the file sees new lines at the latest.
const FLUSH_INTERVAL: Duration = Duration::from_secs(1);

/// Where records go, and how.
#[derive(Clone, Debug)]
pub struct RecordOutput {
    /// The file; `-` is standard output.
    pub path: PathBuf,
    /// How they are written.
    pub format: RecordFormat,
}

/// What became of the records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordTotals {
    /// Written, or only counted if there is no output.
    pub written: u64,
    /// Lost: the ring was full or the output failed.
    pub lost: u64,
    /// Not written because somebody has switched writing off.
    pub left_out: u64,
}

/// The output could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("session records cannot be written to {path}: {source}; name a file in a directory that exists and is writable", path = path.display())]
pub struct OpenError {
    /// The file.
    path: PathBuf,
    /// What the system said.
    source: io::Error,
}

/// The thread that writes records. Dropping it without [`finish`](Self::finish) stops it, too, and waits for it.
#[derive(Debug)]
pub struct RecordKeeper {
    counts: Arc<Counts>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Counts {
    written: AtomicU64,
    lost_in_rings: AtomicU64,
    lost_in_output: AtomicU64,
    left_out: AtomicU64,
    reopen: AtomicBool,
    is_off: AtomicBool,
    stop: AtomicBool,
}

impl Counts {
    fn totals(&self) -> RecordTotals {
        let lost = self.lost_in_rings.load(Ordering::Relaxed) + self.lost_in_output.load(Ordering::Relaxed);
        RecordTotals {
            written: self.written.load(Ordering::Relaxed),
            lost,
            left_out: self.left_out.load(Ordering::Relaxed),
        }
    }
}

impl RecordKeeper {
    /// Opens the output and starts the thread. A file of that name that is not empty is kept as `NAME.old`.
    ///
    /// # Errors
    /// The output cannot be opened, or the system has no thread left.
    pub fn start(
        receivers: Vec<RecordReceiver>,
        output: Option<RecordOutput>,
        names: NameTable,
    ) -> Result<Self, OpenError> {
        let path = output
            .as_ref()
            .map_or_else(|| PathBuf::from("-"), |output| output.path.clone());
        let with_path = |source| OpenError {
            path: path.clone(),
            source,
        };
        let sink: Option<Box<dyn Write + Send>> = match &output {
            None => None,
            Some(output) if output.path == Path::new("-") => Some(Box::new(io::stdout())),
            Some(output) => Some(Box::new(open(&output.path).map_err(with_path)?)),
        };
        let format = output.as_ref().map_or(RecordFormat::Text, |output| output.format);
        let file = output
            .filter(|output| output.path != Path::new("-"))
            .map(|output| Reopened {
                identity: identity(&output.path),
                path: output.path,
                format,
                names: names.clone(),
            });
        Self::start_writer(receivers, sink, format, names, file).map_err(with_path)
    }

    /// As [`start`](Self::start), with an output that is open already; `None` counts only.
    ///
    /// # Errors
    /// The header line cannot be written, or the system has no thread left.
    pub fn start_with(
        receivers: Vec<RecordReceiver>,
        sink: Option<Box<dyn Write + Send>>,
        format: RecordFormat,
        names: NameTable,
    ) -> io::Result<Self> {
        Self::start_writer(receivers, sink, format, names, None)
    }

    fn start_writer(
        receivers: Vec<RecordReceiver>,
        sink: Option<Box<dyn Write + Send>>,
        format: RecordFormat,
        names: NameTable,
        file: Option<Reopened>,
    ) -> io::Result<Self> {
        let counts = Arc::new(Counts::default());
        let writer = sink
            .map(|sink| RecordWriter::new(BufWriter::new(sink), format, names))
            .transpose()?;
        let keeper = Writer {
            receivers,
            writer,
            file,
            pending: 0,
            complained: false,
            counts: Arc::clone(&counts),
        };
        let thread = std::thread::Builder::new()
            .name("records".to_owned())
            .spawn(move || keeper.run())?;
        Ok(Self {
            counts,
            thread: Some(thread),
        })
    }

    /// The totals so far. Lines that were not flushed yet do not count as written.
    pub fn totals(&self) -> RecordTotals {
        self.counts.totals()
    }

    /// For whoever changes what becomes of them.
    pub fn switch(&self) -> RecordSwitch {
        RecordSwitch(Arc::clone(&self.counts))
    }

    /// Writes what is in the rings now, flushes and ends the thread. To be called when the cores have stopped.
    pub fn finish(mut self) -> RecordTotals {
        self.stop();
        self.counts.totals()
    }

    fn stop(&mut self) {
        self.counts.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            if thread.join().is_err() {
                log::error!("the thread that writes session records has panicked");
            }
        }
    }
}

impl Drop for RecordKeeper {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Changes what becomes of the records of a [`RecordKeeper`]. One that was made for none does nothing.
#[derive(Clone, Debug, Default)]
pub struct RecordSwitch(Arc<Counts>);

impl RecordSwitch {
    /// Has the file opened anew, within a second, if its name no longer leads to it: somebody has renamed it.
    pub fn reopen(&self) {
        self.0.reopen.store(true, Ordering::Relaxed);
    }

    /// Whether records are written from now on; those that are not are counted.
    pub fn keep(&self, keep: bool) {
        self.0.is_off.store(!keep, Ordering::Relaxed);
    }
}

/// A file that is opened again under its name.
struct Reopened {
    path: PathBuf,
    identity: Option<(u64, u64)>,
    format: RecordFormat,
    names: NameTable,
}

/// What the thread owns.
struct Writer {
    receivers: Vec<RecordReceiver>,
    writer: Option<RecordWriter<BufWriter<Box<dyn Write + Send>>>>,
    /// What it takes to open the file anew, if it is one.
    file: Option<Reopened>,
    /// Records handed to the writer since the last successful flush.
    pending: u64,
    complained: bool,
    counts: Arc<Counts>,
}

impl Writer {
    fn run(mut self) {
        let mut flushed_at = Instant::now();
        loop {
            // Read before the rings: whatever was sent before `stop` was set is still taken in this round.
            let last_round = self.counts.stop.load(Ordering::Acquire);
            let taken = self.drain();
            if last_round || flushed_at.elapsed() >= FLUSH_INTERVAL {
                self.flush(last_round);
                flushed_at = Instant::now();
            }
            if last_round {
                return;
            }
            if self.counts.reopen.swap(false, Ordering::Relaxed) {
                self.reopen();
            }
            if taken == 0 {
                std::thread::park_timeout(PAUSE);
            }
        }
    }

    fn drain(&mut self) -> usize {
        let mut receivers = std::mem::take(&mut self.receivers);
        let taken = receivers
            .iter_mut()
            .map(|receiver| receiver.drain(|record| self.write(record)))
            .sum();
        let lost = receivers.iter().map(RecordReceiver::records_lost).sum();
        self.counts.lost_in_rings.store(lost, Ordering::Relaxed);
        self.receivers = receivers;
        taken
    }

    fn write(&mut self, record: &SessionRecord) {
        if self.counts.is_off.load(Ordering::Relaxed) {
            self.counts.left_out.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let Some(writer) = &mut self.writer else {
            self.counts.written.fetch_add(1, Ordering::Relaxed);
            return;
        };
        match writer.write(record) {
            Ok(()) => self.pending += 1,
            Err(error) => self.lose(1, &error),
        }
    }

    fn flush(&mut self, last_round: bool) {
        let Some(writer) = &mut self.writer else { return };
        match writer.flush() {
            Ok(()) => {
                self.counts.written.fetch_add(self.pending, Ordering::Relaxed);
                self.pending = 0;
                self.complained = false;
            }
            // The buffer keeps its lines for the next attempt; after the last there is none.
            Err(error) if last_round => self.lose(self.pending, &error),
            Err(error) => self.lose(0, &error),
        }
    }

    fn reopen(&mut self) {
        self.flush(false);
        let Some(file) = &mut self.file else { return };
        // What could not be written is in the old writer's buffer: it is lost only if the disk takes it never.
        if self.pending > 0 || file.identity == identity(&file.path) {
            return;
        }
        let opened = open(&file.path).and_then(|opened| {
            let sink: Box<dyn Write + Send> = Box::new(opened);
            RecordWriter::new(BufWriter::new(sink), file.format, file.names.clone())
        });
        match opened {
            Ok(writer) => {
                file.identity = identity(&file.path);
                self.writer = Some(writer);
                log::info!("session records go on in a new {}", file.path.display());
            }
            Err(error) => log::error!(
                "{} cannot be opened again: {error}; records go on to the old file",
                file.path.display()
            ),
        }
    }

    fn lose(&mut self, count: u64, error: &io::Error) {
        self.counts.lost_in_output.fetch_add(count, Ordering::Relaxed);
        if !self.complained {
            self.complained = true;
            log::error!("session records cannot be written: {error}; they are counted as lost until it works again");
        }
    }
}

/// Which file a name leads to: device and inode.
fn identity(path: &Path) -> Option<(u64, u64)> {
    let metadata = fs::metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino()))
}

fn open(path: &Path) -> io::Result<File> {
    let holds_something = fs::metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.len() > 0);
    if holds_something {
        let mut old = path.as_os_str().to_owned();
        old.push(".old");
        fs::rename(path, PathBuf::from(old))?;
    }
    File::create(path)
}

#[cfg(test)]
mod tests;
