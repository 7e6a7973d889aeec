//! How long a CPU was busy, from `/proc/stat`.
//!
//! Idle time is exact where the kernel stops the tick in idle (NO_HZ), because it is then measured and not sampled; so busy
//! time is what is left of the clock's: user, system, hard and soft interrupts, whoever caused them. What a hypervisor took
//! is not counted.

use std::time::{Duration, Instant};

use super::BoxError;

/// The unit of `/proc/stat`: USER_HZ, 100 on every architecture that Linux runs on today.
const TICK: Duration = Duration::from_millis(10);

/// A look at the clock and a CPU's idle time.
#[derive(Clone, Copy)]
pub(super) struct Sample {
    at: Instant,
    /// Idle, waiting for a disk, stolen.
    not_busy: Duration,
}

impl Sample {
    pub(super) fn take(cpu: usize) -> Result<Sample, BoxError> {
        let text = std::fs::read_to_string("/proc/stat")?;
        let name = format!("cpu{cpu}");
        let line = text.lines().find(|line| line.split_whitespace().next() == Some(&name));
        let fields: Vec<u32> = line
            .ok_or_else(|| format!("/proc/stat has no {name}"))?
            .split_whitespace()
            .skip(1)
            .map(str::parse)
            .collect::<Result<_, _>>()?;
        // proc(5): user nice system idle iowait irq softirq steal …
        let ticks = [3, 4, 7].iter().filter_map(|field| fields.get(*field)).sum::<u32>();
        Ok(Sample {
            at: Instant::now(),
            not_busy: TICK * ticks,
        })
    }

    /// Time and busy time from here to a later sample.
    pub(super) fn until(&self, later: &Sample) -> (Duration, Duration) {
        let time = later.at - self.at;
        (time, time.saturating_sub(later.not_busy - self.not_busy))
    }
}
