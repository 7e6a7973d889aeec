//! What the kernel is told about the thread of a core: where it runs, and that its sleeps are short.

use core::num::NonZeroU64;

use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_setaffinity, set_current_timer_slack};

/// The thread could not be tied to a CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PinError {
    /// No kernel has a CPU of this number.
    #[error("CPU {cpu} does not exist: the highest number possible is {}", CpuSet::MAX_CPU - 1)]
    NoSuchCpu {
        /// The CPU that was asked for.
        cpu: usize,
    },
    /// The kernel refused, for the CPU is not there or not allowed to this process.
    #[error("the kernel does not let this thread run on CPU {cpu}: {errno}")]
    Refused {
        /// The CPU that was asked for.
        cpu: usize,
        /// What the kernel said.
        errno: Errno,
    },
}

/// Ties the calling thread to `cpu`.
///
/// # Errors
/// [`PinError`] if the CPU does not exist or is not allowed; the thread then runs where it did before.
pub fn pin_current_thread(cpu: usize) -> Result<(), PinError> {
    if cpu >= CpuSet::MAX_CPU {
        return Err(PinError::NoSuchCpu { cpu });
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).map_err(|errno| PinError::Refused { cpu, errno })
}

/// Asks the kernel to end the sleeps of the calling thread on time.
///
/// By default Linux adds up to 50 µs to each sleep so as to join wake-ups (`PR_SET_TIMERSLACK` in prctl(2)), which is more
/// than the shortest sleeps of [`super::IdleMode::Adaptive`]. It is an optimisation: failure is ignored.
pub(super) fn ask_for_precise_sleeps() {
    let _best_effort = set_current_timer_slack(NonZeroU64::new(1));
}

#[cfg(test)]
mod tests {
    use rustix::thread::{current_timer_slack, sched_getaffinity, sched_getcpu};

    use super::*;

    #[test]
    fn thread_runs_where_it_was_pinned() {
        let allowed = sched_getaffinity(None).expect("own affinity");
        for cpu in (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).take(4) {
            let ran_on = std::thread::spawn(move || {
                pin_current_thread(cpu).expect("an allowed CPU");
                sched_getcpu()
            });
            assert_eq!(ran_on.join().expect("pinned thread"), cpu);
        }
    }

    #[test]
    fn slack_of_sleeps_is_as_small_as_it_can_be() {
        let slack = std::thread::spawn(|| {
            ask_for_precise_sleeps();
            current_timer_slack()
        });
        assert_eq!(slack.join().expect("thread"), Ok(1));
    }

    #[test]
    fn impossible_cpus_are_refused() {
        let beyond = CpuSet::MAX_CPU;
        assert_eq!(pin_current_thread(beyond), Err(PinError::NoSuchCpu { cpu: beyond }));
        let allowed = sched_getaffinity(None).expect("own affinity");
        if let Some(cpu) = (0..CpuSet::MAX_CPU).rev().find(|cpu| !allowed.is_set(*cpu)) {
            assert!(matches!(pin_current_thread(cpu), Err(PinError::Refused { .. })));
        }
    }
}
