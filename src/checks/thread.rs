//! The thread that makes checks with content.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use e2d2::time::Clock;

use super::checker::Checker;
use super::line::CheckerLine;
use crate::config::Config;
use crate::privileges::{enter_checking_thread, enter_plain_thread};

/// Sleep between two rounds while a check is under way: the delay of each of its steps.
const REST_WITH_CHECKS: Duration = Duration::from_micros(500);

/// Sleep otherwise, if some server has a check with content: the delay of a check's start.
const REST_BETWEEN: Duration = Duration::from_millis(2);

/// Sleep while no server has one; a reload ends it.
const REST_WITHOUT: Duration = Duration::from_secs(10);

/// Messages to the thread.
struct Told {
    stop: AtomicBool,
    /// To give up all system calls but those that it needs.
    restrict: AtomicBool,
    /// Another version of the configuration, until the thread takes it.
    config: Mutex<Option<Arc<Config>>>,
}

/// The thread. Dropping it ends it; checks that are under way end with it.
pub struct CheckThread {
    told: Arc<Told>,
    thread: Option<JoinHandle<()>>,
}

impl CheckThread {
    /// Starts it for cores with these ends.
    ///
    /// # Errors
    /// The system has no thread.
    pub fn start(lines: Vec<CheckerLine>, config: Arc<Config>, clock: Clock) -> io::Result<Self> {
        let told = Arc::new(Told {
            stop: AtomicBool::new(false),
            restrict: AtomicBool::new(false),
            config: Mutex::new(None),
        });
        let theirs = Arc::clone(&told);
        let thread = thread::Builder::new()
            .name("checks".into())
            .spawn(move || run(lines, config, &clock, &theirs))?;
        Ok(CheckThread {
            told,
            thread: Some(thread),
        })
    }

    /// Goes on with another version of the configuration.
    pub fn set_config(&self, config: Arc<Config>) {
        *self.told.config.lock().unwrap_or_else(PoisonError::into_inner) = Some(config);
        self.wake();
    }

    /// Has it make no system calls but those that it needs, for good. Only after `sandbox::forbid_in_all_threads`: the kernel refuses a
    /// filter for all threads (TSYNC, seccomp(2)) once one of them has another.
    pub fn restrict(&self) {
        self.told.restrict.store(true, Ordering::Relaxed);
        self.wake();
    }

    fn wake(&self) {
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }
}

impl Drop for CheckThread {
    fn drop(&mut self) {
        self.told.stop.store(true, Ordering::Relaxed);
        self.wake();
        if let Some(thread) = self.thread.take() {
            // If it has panicked, the panic hook has said so.
            let _ = thread.join();
        }
    }
}

fn run(lines: Vec<CheckerLine>, config: Arc<Config>, clock: &Clock, told: &Told) {
    // This thread parses what servers send.
    enter_plain_thread();
    let mut has_checks = has_content(&config);
    let mut checker = Checker::new(lines, config);
    while !told.stop.load(Ordering::Relaxed) {
        if told.restrict.swap(false, Ordering::Relaxed) {
            enter_checking_thread();
        }
        let news = told.config.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(config) = news {
            has_checks = has_content(&config);
            checker.set_config(config);
        }
        let moved = checker.round(clock.now());
        thread::park_timeout(match (moved > 0 || checker.is_busy(), has_checks) {
            (true, _) => REST_WITH_CHECKS,
            (false, true) => REST_BETWEEN,
            (false, false) => REST_WITHOUT,
        });
    }
}

fn has_content(config: &Config) -> bool {
    config.servers().iter().any(|server| server.content.is_some())
}
