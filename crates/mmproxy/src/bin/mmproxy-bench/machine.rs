//! How long the whole machine was busy, from `/proc/stat`: what a proxy has others do for it is in there, too.

/// Busy seconds of all CPUs together since the start: everything but idle, waiting for a disk, and what a hypervisor took. In units of
/// 10 ms, so that what is measured should last a good part of a second.
pub(crate) fn busy_seconds() -> Option<f64> {
    busy_ticks(&std::fs::read_to_string("/proc/stat").ok()?).map(|ticks| ticks as f64 / 100.0)
}

fn busy_ticks(stat: &str) -> Option<u64> {
    let line = stat.lines().find(|line| line.starts_with("cpu "))?;
    // proc(5): user nice system idle iowait irq softirq steal; guests are in user already.
    let fields: Vec<u64> = line
        .split_whitespace()
        .skip(1)
        .map(str::parse)
        .collect::<Result<_, _>>()
        .ok()?;
    let of = |index: &usize| fields.get(*index);
    [0, 1, 2, 5, 6].iter().map(of).sum()
}

#[cfg(test)]
mod tests {
    #[test]
    fn busy_is_what_is_not_idle_or_stolen() {
        let stat = "cpu  1 20 300 4000 50000 600000 7000000 80000000 9 9\ncpu0 1 1 1 1 1 1 1 1 0 0\n";
        assert_eq!(super::busy_ticks(stat), Some(7_600_321));
        assert_eq!(super::busy_ticks("intr 1"), None);
        assert!(super::busy_seconds() > Some(0.0));
    }
}
