//! What all cores and the control thread know of a server together: one word each, in atomics.
//!
//! Who picks a server reads its word once, relaxed: it guards no other data. Whoever learns something changes it by
//! compare-and-swap, so that of several who learn the same at once exactly one is told that he has changed it.
//!
//! ```text
//!   bits   0      an operator has taken it out of service
//!          1      its checks say that it is down
//!          2–3    how its last check that failed has failed
//!          4      live calls to it are overdue, and it has answered none since
//!          5      it was to be ejected, but too few would have been left
//!          6      the operator wants it to be asked nothing, either
//!          7      it was ejected last because calls were overdue, not because they had failed
//!          8–15   checks in a row that contradict what bit 1 says, as a number
//!          16–25  live calls that have failed in a row, as a number
//!          26–63  until when it is ejected, in ms; 0 if it is not
//! ```
//!
//! An answer to a live call changes the word only if something of bits 4, 5 and 16 to 63 stands.
//!
//! The numbers of servers are stable by identity, so a word survives a reload; a number that is another's, or nobody's,
//! begins anew ([`Standby::forget_server`](super::standby::Standby::forget_server)).

use super::difference::MOST_SERVERS;
use super::standby::Service;
use e2d2::time::Instant;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How often an answer to a live call is noted at most, by all cores together: fifty cores that write the same line more
/// often than that would take it from each other.
const NOTED_EVERY: Duration = Duration::from_millis(8);

const DRAINED: u64 = 1;
const DOWN: u64 = 1 << 1;
const REASON_SHIFT: u32 = 2;
const REASON: u64 = 0b11 << REASON_SHIFT;
const STREAK_SHIFT: u32 = 8;
const STREAK: u64 = 0xff << STREAK_SHIFT;
const OVERDUE: u64 = 1 << 4;
const KEPT: u64 = 1 << 5;
const IN_MAINTENANCE: u64 = 1 << 6;
const SILENT: u64 = 1 << 7;
const FAILURES_SHIFT: u32 = 16;
const FAILURES: u64 = 0x3ff << FAILURES_SHIFT;
const UNTIL_SHIFT: u32 = 26;
const UNTIL: u64 = u64::MAX << UNTIL_SHIFT;

/// What one answered call takes back.
const OF_CALLS: u64 = OVERDUE | KEPT | FAILURES | UNTIL;

/// Overdue calls in a row that are silence. Where one call in 25 is lost, five in a row are one in ten million.
const SILENT_CALLS: usize = 5;

/// In what time these have to begin: of a server that is called less often nothing can be said.
const SILENT_WITHIN: Duration = Duration::from_secs(1);

/// The places in a server's part.
const WORD: usize = 0;
const ANSWERED_AT: usize = 1;
/// Since when it is out or in, in ms, above the 24 bits of how long it was ejected last, in ms.
const TIMES: usize = 2;
const EJECTED_FOR_BITS: u32 = 24;
/// When the last overdue calls began, in ns, in any order.
const BEGAN: usize = 3;

/// A server's part, a cache line's worth: zero is a server of which nothing is known, and which takes connections.
type Cell = [AtomicU64; BEGAN + SILENT_CALLS];

/// The states of all servers, by number. Memory is touched as it is used.
#[derive(Debug)]
pub(super) struct ServerStates(Box<[Cell]>);

impl Default for ServerStates {
    fn default() -> Self {
        // One more than there can be, so that every number has a place.
        ServerStates(bytemuck::zeroed_slice_box(MOST_SERVERS + 1))
    }
}

impl ServerStates {
    #[inline]
    pub(super) fn of(&self, server: u16) -> ServerState<'_> {
        ServerState(&self.0[usize::from(server)])
    }
}

/// The state of one server.
#[derive(Clone, Copy, Debug)]
pub struct ServerState<'a>(&'a Cell);

/// How a check has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckFailure {
    /// Nothing listens there.
    Refused,
    /// No answer within the check's timeout, or no MAC address to ask.
    Unanswered,
    /// It has answered, but not as it should.
    Wrong,
}

/// What the result of a check has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckNews {
    /// Nothing.
    None,
    /// The server is down from now on.
    Down,
    /// It is no longer.
    Up,
}

/// Why a server is ejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Calls have failed.
    Failure,
    /// Calls are overdue.
    Silence,
}

/// That a server has been ejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ejection {
    until: u64,
    /// It was not ejected before.
    pub(crate) is_new: bool,
    /// It was [kept](ServerState::keep) before.
    pub(crate) was_kept: bool,
}

/// A time in whole milliseconds, not before it; as many as there is room for, which are eight years.
fn milliseconds_up(at: Instant) -> u64 {
    at.as_nanos().div_ceil(1_000_000).clamp(1, UNTIL >> UNTIL_SHIFT)
}

/// What one reading of the word has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ServerWord(u64);

impl ServerWord {
    /// An operator has taken it out of service.
    pub(crate) fn is_drained(self) -> bool {
        self.0 & DRAINED != 0
    }

    /// What an operator has said of it.
    pub(super) fn service(self) -> Service {
        match (self.is_drained(), self.0 & IN_MAINTENANCE != 0) {
            (false, _) => Service::In,
            (true, false) => Service::Drained,
            (true, true) => Service::InMaintenance,
        }
    }

    /// Its checks say that it is down.
    pub(crate) fn is_down(self) -> bool {
        self.0 & DOWN != 0
    }

    /// It was ejected, and has answered no call since.
    pub(crate) fn is_ejected(self) -> bool {
        self.0 & UNTIL != 0
    }

    /// It is in service, and neither ejected nor kept.
    pub(crate) fn is_fit(self) -> bool {
        self.0 & (DRAINED | DOWN | KEPT | UNTIL) == 0
    }

    /// It is in service, and not ejected or a call may try it.
    pub(crate) fn may_be_asked(self, now: Instant) -> bool {
        self.is_in_service() && Instant::from_millis(self.until()) <= now
    }

    /// It is in service, and not ejected.
    #[inline]
    pub(crate) fn is_plain(self) -> bool {
        self.0 & (DRAINED | DOWN | UNTIL) == 0
    }

    fn until(self) -> u64 {
        self.0 >> UNTIL_SHIFT
    }

    /// Neither an operator nor its checks keep it from being called.
    pub(crate) fn is_in_service(self) -> bool {
        self.0 & (DRAINED | DOWN) == 0
    }

    /// Its last check has contradicted those before.
    pub(crate) fn is_doubted(self) -> bool {
        self.0 & STREAK != 0
    }

    /// The word after a check, and what that changes: `rise` passed in a row end a failure, `fall` failed in a row are one.
    fn after_check(self, result: Result<(), CheckFailure>, (rise, fall): (u8, u8)) -> (Self, CheckNews) {
        let reason = match result {
            Ok(()) => self.0 & REASON,
            Err(CheckFailure::Refused) => 1 << REASON_SHIFT,
            Err(CheckFailure::Unanswered) => 2 << REASON_SHIFT,
            Err(CheckFailure::Wrong) => 3 << REASON_SHIFT,
        };
        let rest = self.0 & !(STREAK | REASON) | reason;
        if result.is_err() == self.is_down() {
            return (ServerWord(rest), CheckNews::None);
        }
        let streak = ((self.0 & STREAK) >> STREAK_SHIFT) + 1;
        match result {
            Ok(()) if streak >= u64::from(rise) => (ServerWord(rest & !DOWN), CheckNews::Up),
            Err(_) if streak >= u64::from(fall) => (ServerWord(rest | DOWN), CheckNews::Down),
            _ => (ServerWord(rest | streak << STREAK_SHIFT & STREAK), CheckNews::None),
        }
    }
}

impl ServerState<'_> {
    #[inline]
    pub(crate) fn word(&self) -> ServerWord {
        ServerWord(self.0[WORD].load(Ordering::Relaxed))
    }

    /// An operator takes the server out of service, or back.
    pub(super) fn set_service(&self, service: Service) {
        let said = match service {
            Service::In => 0,
            Service::Drained => DRAINED,
            Service::InMaintenance => DRAINED | IN_MAINTENANCE,
        };
        self.0[WORD].fetch_and(said | !(DRAINED | IN_MAINTENANCE), Ordering::Relaxed);
        self.0[WORD].fetch_or(said, Ordering::Relaxed);
    }

    /// The number is another's from now on, or nobody's.
    pub(super) fn forget(&self) {
        self.0.iter().for_each(|word| word.store(0, Ordering::Relaxed));
    }

    /// The server is no longer checked.
    pub fn forget_checks(&self) {
        self.0[WORD].fetch_and(!(DOWN | REASON | STREAK), Ordering::Relaxed);
    }

    /// If its checks say that the server is down: how the last of them that failed has failed, and since when it is.
    pub fn down(&self) -> Option<(CheckFailure, Instant)> {
        let is_down = self.word().is_down();
        is_down.then(|| (self.failed_check().unwrap_or(CheckFailure::Unanswered), self.since()))
    }

    /// How its last failed check failed; none if it has been ejected since, unless it was down then.
    pub fn failed_check(&self) -> Option<CheckFailure> {
        match (self.word().0 & REASON) >> REASON_SHIFT {
            0 => None,
            1 => Some(CheckFailure::Refused),
            2 => Some(CheckFailure::Unanswered),
            _ => Some(CheckFailure::Wrong),
        }
    }

    /// Why it was ejected last, if it ever was.
    pub fn ejected_by(&self) -> Why {
        match self.word().0 & SILENT {
            0 => Why::Failure,
            _ => Why::Silence,
        }
    }

    /// Whether it is ejected or kept.
    pub(crate) fn is_out(&self) -> bool {
        self.word().0 & (KEPT | UNTIL) != 0
    }

    /// Since when it is out, or down, or neither.
    pub fn since(&self) -> Instant {
        Instant::from_millis(self.0[TIMES].load(Ordering::Relaxed) >> EJECTED_FOR_BITS)
    }

    /// Notes a time of the server: since when it is out or in, if that has changed, and how long it is ejected.
    fn set_times(&self, since: Option<Instant>, ejected_for: Duration) {
        let since = since.unwrap_or_else(|| self.since()).as_millis();
        let ejected_for = (ejected_for.as_millis() as u64).min((1 << EJECTED_FOR_BITS) - 1);
        self.0[TIMES].store(since << EJECTED_FOR_BITS | ejected_for, Ordering::Relaxed);
    }

    fn ejected_for(&self) -> Duration {
        let times = self.0[TIMES].load(Ordering::Relaxed);
        Duration::from_millis(times & ((1 << EJECTED_FOR_BITS) - 1))
    }

    /// A check has ended at `now`: `rise` that pass in a row are needed to end a failure, `fall` that fail to begin one.
    pub(crate) fn note_check(
        &self,
        result: Result<(), CheckFailure>,
        rise_and_fall: (u8, u8),
        now: Instant,
    ) -> CheckNews {
        let after = |word| ServerWord(word).after_check(result, rise_and_fall);
        let changed = |word| Some(after(word).0.0).filter(|after| *after != word);
        // A check that says what is known writes nothing.
        let (Ok(before) | Err(before)) = self.0[WORD].fetch_update(Ordering::Relaxed, Ordering::Relaxed, changed);
        let news = after(before).1;
        if news != CheckNews::None {
            self.set_times(Some(now), self.ejected_for());
        }
        if news == CheckNews::Up {
            self.end_ejection(now);
        }
        news
    }

    /// The server has answered a live call. Returns true if it was [kept](Self::keep) until now.
    #[inline]
    pub(crate) fn note_answer(&self, now: Instant) -> bool {
        let stands = self.word().0 & OF_CALLS != 0;
        if stands || now.saturating_since(self.answered_at()) >= NOTED_EVERY {
            self.0[ANSWERED_AT].store(now.as_nanos(), Ordering::Relaxed);
        }
        stands && self.take_back_calls(now)
    }

    fn take_back_calls(&self, now: Instant) -> bool {
        let before = self.0[WORD].fetch_and(!OF_CALLS, Ordering::Relaxed);
        if before & (KEPT | UNTIL) != 0 {
            self.set_times(Some(now), Duration::ZERO);
        }
        before & KEPT != 0
    }

    /// A live call has failed. Returns true if it is at least the `eject_after`th in a row; never if that is 0, or the server is
    /// ejected.
    pub(crate) fn note_failure(&self, eject_after: u32) -> bool {
        let failures = |word: u64| (word & FAILURES) >> FAILURES_SHIFT;
        let one_more = |word: u64| {
            let is_counted = word & UNTIL == 0 && eject_after != 0;
            let count = (failures(word) + 1).min(FAILURES >> FAILURES_SHIFT);
            is_counted.then_some(word & !FAILURES | count << FAILURES_SHIFT)
        };
        let before = self.0[WORD].fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
        before.is_ok_and(|before| failures(before) + 1 >= u64::from(eject_after))
    }

    /// A live call that began at `began` is overdue. Returns true if it makes enough of them: in a row, that began within a
    /// second.
    pub(crate) fn note_overdue(&self, began: Instant) -> bool {
        let word = self.word();
        if word.is_ejected() || began <= self.answered_at() {
            return false;
        }
        if word.0 & OVERDUE == 0 {
            self.0[WORD].fetch_or(OVERDUE, Ordering::Relaxed);
        }
        let all = &self.0[BEGAN..];
        let times = || all.iter().map(|began| began.load(Ordering::Relaxed));
        if let Some((earliest, time)) = all.iter().zip(times()).min_by_key(|(_, time)| *time) {
            // If another core was faster, its call takes the place.
            _ = earliest.compare_exchange(time, began.as_nanos(), Ordering::Relaxed, Ordering::Relaxed);
        }
        let (Some(first), Some(last)) = (times().min(), times().max()) else {
            return false;
        };
        let (first, last) = (Instant::from_nanos(first), Instant::from_nanos(last));
        first > self.answered_at() && last - first <= SILENT_WITHIN
    }

    /// Ejects the server for twice as long as the last time, within these bounds: if it is not ejected, or by a trial that
    /// was until this time. Nothing if that is no longer so.
    pub(crate) fn eject(
        &self,
        why: Why,
        trial: Option<u64>,
        (first, longest): (Duration, Duration),
        now: Instant,
    ) -> Option<Ejection> {
        let ejected_for = self.ejected_for().saturating_mul(2).clamp(first, longest);
        let until = milliseconds_up(now + ejected_for);
        let ejected = |word: u64| {
            let is_so = ServerWord(word).until() == trial.unwrap_or(0);
            // A server that is down keeps the reason of its last failed check.
            let failed_check = if ServerWord(word).is_down() { 0 } else { REASON };
            let silent = if why == Why::Silence { SILENT } else { 0 };
            is_so.then_some(word & !(OF_CALLS | SILENT | failed_check) | silent | until << UNTIL_SHIFT)
        };
        // Who counts those that are ejected after this sees it, or is seen.
        let before = self.0[WORD]
            .fetch_update(Ordering::SeqCst, Ordering::Relaxed, ejected)
            .ok()?;
        self.0[BEGAN..]
            .iter()
            .for_each(|began| began.store(0, Ordering::Relaxed));
        let was_out = before & (KEPT | UNTIL) != 0;
        self.set_times((!was_out).then_some(now), ejected_for);
        Some(Ejection {
            until,
            is_new: trial.is_none(),
            was_kept: before & KEPT != 0,
        })
    }

    /// The word as all cores see it that have ejected a server before they count.
    pub(crate) fn settled_word(&self) -> ServerWord {
        ServerWord(self.0[WORD].load(Ordering::SeqCst))
    }

    /// Takes an ejection back that leaves too few servers. Returns true unless something has changed since.
    pub(crate) fn keep(&self, ejection: &Ejection) -> bool {
        let kept = |word: u64| (ServerWord(word).until() == ejection.until).then_some(word & !OF_CALLS | KEPT);
        let is_kept = (self.0[WORD].fetch_update(Ordering::Relaxed, Ordering::Relaxed, kept)).is_ok();
        if is_kept {
            self.set_times(None, Duration::ZERO);
        }
        is_kept
    }

    /// Whether it is ejected, or on trial, until this time.
    pub(crate) fn is_ejected_until(&self, until: u64) -> bool {
        self.word().until() == until
    }

    /// If the server is ejected and its time is over, a call is to try it: until when nobody else does, which may be as long
    /// as `patience`.
    #[inline]
    pub(crate) fn begin_trial(&self, now: Instant, patience: Duration) -> Option<u64> {
        let word = self.word();
        if !word.is_ejected() || Instant::from_millis(word.until()) > now {
            return None;
        }
        let until = milliseconds_up(now + patience);
        let on_trial = word.0 & !UNTIL | until << UNTIL_SHIFT;
        let exchanged = self.0[WORD].compare_exchange(word.0, on_trial, Ordering::Relaxed, Ordering::Relaxed);
        exchanged.is_ok().then_some(until)
    }

    /// If the server is ejected, one call may try it from now on.
    pub(crate) fn end_ejection(&self, now: Instant) {
        let due = now.as_millis().max(1);
        let sooner = |word: u64| (ServerWord(word).until() > due).then_some(word & !UNTIL | due << UNTIL_SHIFT);
        if (self.0[WORD].fetch_update(Ordering::Relaxed, Ordering::Relaxed, sooner)).is_ok() {
            self.set_times(None, Duration::ZERO);
        }
    }

    /// When it last answered a live call, or up to 8 ms before.
    pub(crate) fn answered_at(&self) -> Instant {
        Instant::from_nanos(self.0[ANSWERED_AT].load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests;
