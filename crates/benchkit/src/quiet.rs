//! Tells whether the operating system took the core away for a while.

/// How often the scheduler has taken the core from the calling thread although it wanted to go on; `None` where the system
/// does not say.
///
/// A time slice lost to another process would be charged to whatever ran, ten million cycles at a time.
pub(crate) fn involuntary_switches() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/thread-self/status").ok()?;
    let line = status
        .lines()
        .find(|line| line.starts_with("nonvoluntary_ctxt_switches:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}
