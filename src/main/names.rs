//! The main thread's part of servers by name: the first answers before the start, and another version of the configuration whenever
//! they change.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use proxyengine::config::{Answers, Config};
use proxyengine::engine::{DpdkMachine, RunningEngine};
use proxyengine::journal;
use proxyengine::names::{FirstAnswers, Resolving, store};

/// How long a start or a reload waits for answers that were never there.
const PATIENCE: Duration = Duration::from_secs(5);

/// Changes are this far apart at least: each is another version for all cores.
const APART: Duration = Duration::from_millis(500);

/// How long nothing is logged of changes after a line was.
const QUIET: Duration = Duration::from_secs(10);

/// Lines of one change.
const MOST_LINES: usize = 10;

/// The thread that asks, and what came of it.
pub(super) struct Names {
    first: Option<FirstAnswers>,
    resolving: Option<Resolving>,
    /// Where the answers are kept.
    path: Option<PathBuf>,
    /// The answers that were looked at last.
    seen: Answers,
    changed_at: Option<Instant>,
    /// Why they are not used, if they are not.
    refused: Option<String>,
    logged_at: Option<Instant>,
    unsaid: usize,
}

impl Names {
    /// Asks for what the configuration names, before the ports are open. Returns it with the answers, new or kept beside the journal.
    pub(super) fn begin(config: Config) -> (Config, Names) {
        let mut names = Names {
            first: None,
            resolving: None,
            path: journal::path(&config).as_deref().map(store::path),
            seen: Answers::new(),
            changed_at: None,
            refused: None,
            logged_at: None,
            unsaid: 0,
        };
        if config.questions().is_empty() {
            return (config, names);
        }
        let kept = names.path.as_deref().map(store::read).unwrap_or_default();
        names.seen = match names.ask(&config, kept.clone()) {
            Some(answers) => answers,
            None => kept,
        };
        let before = config.clone();
        let config = config.resolved(&names.seen).unwrap_or_else(|error| {
            log::error!("the answers of DNS are not used: {error}");
            before
        });
        names.keep();
        for (pool, named) in config.names() {
            let (name, count) = (&named.question.name, named.used.len());
            log::info!("pool {pool}: {name} is {count} servers");
            tell_unusable(name, &named.unusable);
        }
        (config, names)
    }

    fn ask(&mut self, config: &Config, known: Answers) -> Option<Answers> {
        match FirstAnswers::wait(config.dns(), config.questions(), known, PATIENCE) {
            Ok(first) => {
                let answers = first.answers().clone();
                self.first = Some(first);
                Some(answers)
            }
            Err(error) => {
                log::error!("DNS is not asked: {error}");
                None
            }
        }
    }

    /// Goes on asking, once the system calls of all threads are filtered: those of the thread are filtered more.
    pub(super) fn start(&mut self) {
        if let Some(first) = self.first.take() {
            match Resolving::start(first) {
                Ok(resolving) => self.resolving = Some(resolving),
                Err(error) => log::error!("DNS is not asked: {error}"),
            }
        }
    }

    /// The answers for a new version of the file, if it was made with others: what it asks for the first time is waited for.
    pub(super) fn before_reload(&mut self, new: &Config) -> Option<Answers> {
        self.follow(new);
        let answers = self.resolving.as_ref()?.answers();
        (answers != *new.answers()).then_some(answers)
    }

    /// Has this configuration's questions asked, and waits for answers to those that are new.
    pub(super) fn follow(&mut self, config: &Config) {
        let questions = config.questions();
        match &self.resolving {
            None if questions.is_empty() => {}
            None => {
                self.ask(config, self.seen.clone());
                self.start();
            }
            Some(_) if questions.is_empty() => self.resolving = None,
            Some(resolving) => {
                resolving.set_questions(config.dns(), questions);
                resolving.wait(PATIENCE);
            }
        }
    }

    /// Asks what this configuration asks again, as the new version of the file is not used: answers to that are known, and not waited for.
    pub(super) fn go_back(&mut self, config: &Config) {
        let questions = config.questions();
        match &self.resolving {
            Some(_) if questions.is_empty() => self.resolving = None,
            Some(resolving) => resolving.set_questions(config.dns(), questions),
            None if questions.is_empty() => {}
            None => {
                self.ask(config, self.seen.clone());
                self.start();
            }
        }
    }

    /// Has the engine go on with other answers, if there are. To be called a few times a second; whether it has changed.
    pub(super) fn look(&mut self, engine: &mut RunningEngine<DpdkMachine>) -> bool {
        let Some(resolving) = &self.resolving else { return false };
        engine.set_names(resolving.report());
        if self.changed_at.is_some_and(|at| at.elapsed() < APART) {
            return false;
        }
        let answers = resolving.answers();
        if answers == self.seen {
            return false;
        }
        self.changed_at = Some(Instant::now());
        let before = engine.config().clone();
        if let Err(error) = engine.change_answers(&answers) {
            let reason = error.to_string();
            if self.refused.as_ref() != Some(&reason) {
                log::error!("an answer of DNS is not used yet: {reason}");
            }
            self.refused = Some(reason);
            return false;
        }
        self.refused = None;
        self.seen = answers;
        self.keep();
        self.tell(&before, engine.config());
        true
    }

    fn keep(&self) {
        if let Some(path) = &self.path {
            store::write(path, &self.seen);
        }
    }

    fn tell(&mut self, before: &Config, now: &Config) {
        if self.logged_at.is_some_and(|at| at.elapsed() < QUIET) {
            self.unsaid += 1;
            return;
        }
        let lines = before.lines_of_difference(now);
        for line in lines.lines().filter(|line| !line.contains(" pool ")).take(MOST_LINES) {
            log::info!("DNS: {line}");
        }
        if self.unsaid > 0 {
            log::info!("DNS: {} changes before were not logged", self.unsaid);
        }
        for (_, named) in now.names() {
            tell_unusable(&named.question.name, &named.unusable);
        }
        (self.logged_at, self.unsaid) = (Some(Instant::now()), 0);
    }
}

fn tell_unusable(name: &str, unusable: &[(std::net::SocketAddr, String)]) {
    for (address, why) in unusable.iter().take(MOST_LINES) {
        log::warn!("DNS: {name} is {address}, which is not used: it {why}");
    }
}
