//! The worker threads of an engine as one: orders out, answers in.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use e2d2::scheduler::{IdleMode, Task};
use e2d2::time::Clock;
use rtrb::{Consumer, Producer, PushError, RingBuffer};

use super::StartError;
use super::worker::{self, Control, Identity, Message, Parts, Phase, Program, Reports};
use crate::config::CoreId;
use crate::report::CoreReport;

/// How long a worker may take to start, and to end: far more than any does.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long a report waits for the workers' numbers; an idle worker sleeps for half a millisecond at most.
const SNAPSHOT_PATIENCE: Duration = Duration::from_secs(1);

/// How often a report looks for the workers' numbers. They do not wake anybody: that would be a system call on their thread.
const SNAPSHOT_PACE: Duration = Duration::from_micros(100);

/// The threads. Dropping it ends them.
pub(super) struct Crew {
    control: Arc<Control>,
    messages: Receiver<(usize, Message)>,
    to_crew: Sender<(usize, Message)>,
    workers: Vec<Worker>,
}

/// What is known of a worker.
struct Worker {
    core: CoreId,
    thread: Option<JoinHandle<()>>,
    /// The latest.
    report: Box<CoreReport>,
    /// The next to be filled, unless it is on its way.
    spare: Option<Box<CoreReport>>,
    to_fill: Producer<Box<CoreReport>>,
    filled: Consumer<Box<CoreReport>>,
    state: WorkerState,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum WorkerState {
    Starting,
    Running,
    Ended,
    Failed(String),
}

impl Crew {
    /// Without a worker.
    pub(super) fn new() -> Self {
        let (to_crew, messages) = mpsc::channel();
        Self {
            control: Arc::default(),
            messages,
            to_crew,
            workers: Vec::new(),
        }
    }

    /// Starts a worker on `core`. `make` builds its parts there.
    pub(super) fn spawn<G, P: Program, T: Task + 'static>(
        &mut self,
        core: CoreId,
        clock: Clock,
        idle: IdleMode,
        make: impl FnOnce() -> Result<Parts<G, P, T>, String> + Send + 'static,
    ) -> Result<(), StartError> {
        let identity = Identity {
            index: self.workers.len(),
            core,
        };
        let (control, messages) = (Arc::clone(&self.control), self.to_crew.clone());
        let (to_fill, asked) = RingBuffer::new(1);
        let (filled_by_worker, filled) = RingBuffer::new(1);
        let reports = Reports {
            asked,
            filled: filled_by_worker,
        };
        let body = move || worker::run(&identity, &clock, idle, &control, &messages, reports, make);
        let thread = thread::Builder::new().name(format!("core-{core}")).spawn(body);
        let thread = thread.map_err(|source| StartError::Thread { core, source })?;
        self.workers.push(Worker {
            core,
            thread: Some(thread),
            report: Box::new(CoreReport {
                core: core.0,
                ..CoreReport::default()
            }),
            spare: None,
            to_fill,
            filled,
            state: WorkerState::Starting,
        });
        Ok(())
    }

    /// Waits until every worker runs.
    pub(super) fn wait_until_ready(&mut self) -> Result<(), StartError> {
        self.wait_for(PATIENCE, |crew| {
            crew.workers.iter().all(|worker| worker.state != WorkerState::Starting)
        });
        for worker in &self.workers {
            let reason = match &worker.state {
                WorkerState::Running => continue,
                WorkerState::Failed(reason) => reason.clone(),
                WorkerState::Starting | WorkerState::Ended => format!("it did not start within {PATIENCE:?}"),
            };
            return Err(StartError::Worker {
                core: worker.core,
                reason,
            });
        }
        Ok(())
    }

    /// Orders all workers to take no more connections.
    pub(super) fn drain(&self) {
        self.control.order(Phase::Drain);
    }

    /// Brings the workers' reports up to date.
    pub(super) fn refresh(&mut self) {
        let start = Instant::now();
        for worker in &mut self.workers {
            worker.ask();
        }
        loop {
            self.read_messages();
            let mut is_complete = true;
            for worker in &mut self.workers {
                worker.take_report();
                is_complete &= worker.state != WorkerState::Running || worker.spare.is_some();
            }
            if is_complete || start.elapsed() >= SNAPSHOT_PATIENCE {
                return;
            }
            thread::sleep(SNAPSHOT_PACE);
        }
    }

    /// Ends all workers and waits for them.
    pub(super) fn end(&mut self) {
        self.control.order(Phase::End);
        self.wait_for(PATIENCE, |crew| crew.workers.iter().all(Worker::is_over));
        for worker in &mut self.workers {
            if !worker.is_over() {
                worker.state = WorkerState::Failed(format!("it did not end within {PATIENCE:?}"));
            } else if let Some(thread) = worker.thread.take() {
                // Its panic, if there was one, has been caught and told.
                let _ = thread.join();
            }
        }
    }

    /// The latest numbers of each worker.
    pub(super) fn reports(&self) -> Vec<CoreReport> {
        self.workers.iter().map(|worker| (*worker.report).clone()).collect()
    }

    /// One sentence for each worker that has stopped without being told to.
    pub(super) fn failures(&mut self) -> Vec<String> {
        self.read_messages();
        let failure = |worker: &Worker| match &worker.state {
            WorkerState::Failed(reason) => Some(format!("core {}: {reason}", worker.core)),
            WorkerState::Starting | WorkerState::Running | WorkerState::Ended => None,
        };
        self.workers.iter().filter_map(failure).collect()
    }

    fn read_messages(&mut self) {
        while let Ok((index, message)) = self.messages.try_recv() {
            self.take(index, message);
        }
    }

    /// Takes messages until `done`, for `limit` at most.
    fn wait_for(&mut self, limit: Duration, done: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        self.read_messages();
        while !done(self) {
            let Some(left) = limit.checked_sub(start.elapsed()) else {
                return;
            };
            match self.messages.recv_timeout(left) {
                Ok((index, message)) => self.take(index, message),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn take(&mut self, index: usize, message: Message) {
        let Some(worker) = self.workers.get_mut(index) else {
            return;
        };
        match message {
            Message::Ready(report) => {
                worker.spare = Some(report.clone());
                (worker.state, worker.report) = (WorkerState::Running, report);
            }
            Message::Ended(report) => (worker.state, worker.report) = (WorkerState::Ended, report),
            Message::Failed(reason) => worker.state = WorkerState::Failed(reason),
            Message::Panicked(message) => {
                log::error!("core {} has panicked: {message}", worker.core);
                worker.state = WorkerState::Failed(format!("it panicked: {message}"));
            }
        }
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.end();
    }
}

impl Worker {
    /// Sends a report to be filled, unless one is on its way.
    fn ask(&mut self) {
        if self.state == WorkerState::Running
            && let Some(spare) = self.spare.take()
            && let Err(PushError::Full(spare)) = self.to_fill.push(spare)
        {
            self.spare = Some(spare);
        }
    }

    /// Takes the report that has come back, if there is one.
    fn take_report(&mut self) {
        if let Ok(report) = self.filled.pop() {
            // A worker that has ended since has told more.
            self.spare = Some(match self.state {
                WorkerState::Running => std::mem::replace(&mut self.report, report),
                _ => report,
            });
        }
    }

    fn is_over(&self) -> bool {
        matches!(self.state, WorkerState::Ended | WorkerState::Failed(_))
    }
}
