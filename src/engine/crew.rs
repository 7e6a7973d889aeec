//! The worker threads of an engine as one: orders out, answers in.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use e2d2::scheduler::{IdleMode, Task};
use e2d2::time::Clock;

use super::StartError;
use super::board::Board;
use super::worker::{self, Control, Identity, Message, Parts, Phase, Program};
use crate::config::CoreId;
use crate::report::CoreReport;

/// How long a worker may take to start, and to end: far more than any does.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long a report waits until every worker has written its numbers: far more than any takes that does not hang.
const REPORT_PATIENCE: Duration = Duration::from_secs(1);

/// How often it looks.
const REPORT_PACE: Duration = Duration::from_micros(200);

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
    /// From its first round on.
    board: Option<Arc<Board>>,
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
        let body = move || worker::run(&identity, &clock, idle, &control, &messages, make);
        let thread = thread::Builder::new().name(format!("core-{core}")).spawn(body);
        let thread = thread.map_err(|source| StartError::Thread { core, source })?;
        self.workers.push(Worker {
            core,
            thread: Some(thread),
            board: None,
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

    /// Waits until every worker that runs has written its numbers once more.
    pub(super) fn refresh(&mut self) {
        let start = Instant::now();
        let boards = self.workers.iter().map(|worker| worker.board.clone());
        let turns: Vec<_> = boards
            .map(|board| board.map(|board| (board.next_turn(), board)))
            .collect();
        loop {
            self.read_messages();
            let is_fresh = |(worker, turn): (&Worker, &Option<(u64, Arc<Board>)>)| match turn {
                Some((turn, board)) => worker.state != WorkerState::Running || board.has_reached(*turn),
                None => true,
            };
            if self.workers.iter().zip(&turns).all(is_fresh) || start.elapsed() >= REPORT_PATIENCE {
                return;
            }
            thread::sleep(REPORT_PACE);
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
        self.workers.iter().map(Worker::report).collect()
    }

    /// Each worker's core and board, of those that have begun.
    pub(super) fn boards(&self) -> Vec<(CoreId, Arc<Board>)> {
        let board = |worker: &Worker| Some((worker.core, worker.board.clone()?));
        self.workers.iter().filter_map(board).collect()
    }

    /// Workers that have begun show themselves on these boards from now on.
    pub(super) fn set_boards(&mut self, boards: &[(CoreId, Arc<Board>)]) {
        for (core, board) in boards {
            if let Some(worker) = self.workers.iter_mut().find(|worker| worker.core == *core) {
                worker.board = Some(Arc::clone(board));
            }
        }
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
            Message::Ready(board) => (worker.state, worker.board) = (WorkerState::Running, Some(board)),
            Message::Ended => worker.state = WorkerState::Ended,
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
    /// Its latest numbers.
    fn report(&self) -> CoreReport {
        match &self.board {
            Some(board) => board.read().0,
            None => CoreReport {
                core: self.core.0,
                ..CoreReport::default()
            },
        }
    }

    fn is_over(&self) -> bool {
        matches!(self.state, WorkerState::Ended | WorkerState::Failed(_))
    }
}
