//! The service manager, if there is one: told when the engine runs, what it does, and that it goes on (sd_notify(3)).
//!
//! The watchdog is fed only when every core has come round since it was fed last: a core that hangs brings a restart, not
//! the thread that happens to be alive. A reload waits for DNS and for cores and reads long lists: for that time the watchdog is told
//! to wait longer.

use std::time::{Duration, Instant};

use proxyengine::engine::Watch;
use sd_notify::NotifyState;

use super::RELOAD_PATIENCE;

/// How often the manager is told in words what the engine does.
const STATUS: Duration = Duration::from_secs(5);

/// What the manager was told, and when.
pub(super) struct Service {
    watch: Watch,
    /// How often the watchdog wants to be fed at least.
    watchdog: Option<Duration>,
    fed_at: Instant,
    told_at: Option<Instant>,
}

impl Service {
    /// The engine runs.
    pub(super) fn started(watch: Watch) -> Self {
        tell(&[NotifyState::Ready]);
        Self {
            watch,
            watchdog: sd_notify::watchdog_enabled(),
            fed_at: Instant::now(),
            told_at: None,
        }
    }

    /// To be called several times a second.
    pub(super) fn tick(&mut self) {
        // Several chances within the time that the manager waits.
        if self.watchdog.is_some_and(|every| self.fed_at.elapsed() >= every / 4) && self.has_come_round() {
            tell(&[NotifyState::Watchdog]);
            self.fed_at = Instant::now();
        }
        if self.told_at.is_none_or(|at| at.elapsed() >= STATUS) {
            let state = match self.watch.is_ready() {
                Ok(()) => "ready".to_owned(),
                Err(reason) => reason.to_string(),
            };
            let open = self.watch.report().connections_open;
            tell(&[NotifyState::Status(&format!("{open} connections open; {state}"))]);
            self.told_at = Some(Instant::now());
        }
    }

    /// The configuration is read again.
    pub(super) fn reloading(&mut self) {
        tell(&[NotifyState::Reloading]);
        self.set_watchdog(RELOAD_PATIENCE);
    }

    /// It has been.
    pub(super) fn reloaded(&mut self) {
        tell(&[NotifyState::Ready]);
        self.set_watchdog(Duration::ZERO);
        self.told_at = None;
    }

    /// The watchdog waits for so much longer than it wants to, counted from now.
    fn set_watchdog(&self, longer: Duration) {
        if let Some(every) = self.watchdog {
            let micros = (every + longer).as_micros();
            tell(&[NotifyState::WatchdogUsec(u32::try_from(micros).unwrap_or(u32::MAX))]);
        }
    }

    /// The engine begins to end.
    pub(super) fn stopping(&mut self) {
        tell(&[NotifyState::Stopping]);
        self.told_at = None;
    }

    /// Whether every core has since the watchdog was fed.
    fn has_come_round(&self) -> bool {
        let since = self.fed_at.elapsed();
        self.watch.ages().into_iter().all(|(_, age)| age < since)
    }
}

/// A manager that cannot be told is no reason to stop.
fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        log::debug!("the service manager cannot be told: {error}");
    }
}
