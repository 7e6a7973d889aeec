//! Time: [`Instant`] is what every function of the engine takes as its `now`; [`Clock`] is the only place that reads it
//! from the machine.
//!
//! The scheduler reads the clock once per round and hands the value down, so no packet costs a clock read and a test
//! runs in virtual time by making its own instants.
//!
//! Budget: [`Clock::now`] ≤ 30 cycles (one `rdtsc` and one 64×64 → 128 bit multiplication); 25 on a 2.6 GHz EPYC.

// `rdtsc` and `cpuid` are CPU instructions that the standard library exposes as unsafe functions.
#![allow(unsafe_code)]

use core::ops::{Add, AddAssign, Sub};
use core::time::Duration;

const NANOS_PER_SEC: u64 = 1_000_000_000;

/// A point in time: nanoseconds since an arbitrary start that is the same for all cores of a process.
///
/// Arithmetic saturates, it never wraps and never panics: the range is 584 years.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash)]
pub struct Instant(u64);

impl Instant {
    /// The arbitrary start.
    pub const ZERO: Self = Self(0);
    /// Later than anything that happens; the deadline of what has none.
    pub const MAX: Self = Self(u64::MAX);

    /// The instant `nanos` nanoseconds after the start.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// The instant `millis` milliseconds after the start.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// Nanoseconds since the start.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Whole microseconds since the start.
    pub const fn as_micros(self) -> u64 {
        self.0 / 1_000
    }

    /// Whole milliseconds since the start.
    pub const fn as_millis(self) -> u64 {
        self.0 / 1_000_000
    }

    /// The time that passed from `earlier` to `self`; zero if `earlier` is the later one.
    pub const fn saturating_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(saturating_nanos(duration)))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, duration: Duration) {
        *self = *self + duration;
    }
}

impl Sub<Duration> for Instant {
    type Output = Self;

    fn sub(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(saturating_nanos(duration)))
    }
}

impl Sub for Instant {
    type Output = Duration;

    fn sub(self, earlier: Self) -> Duration {
        self.saturating_since(earlier)
    }
}

/// Reads the time stamp counter and turns it into [`Instant`]s.
///
/// Make one per process and copy it to every core: copies agree on the start. Its rate is calibrated once against
/// `CLOCK_MONOTONIC` and then left alone, so it is as steady as the crystal and does not follow later NTP slewing.
/// Where the counter is not invariant (or does not exist) it reads `CLOCK_MONOTONIC` instead.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    source: Source,
    tsc_hz: u64,
}

#[derive(Clone, Copy, Debug)]
enum Source {
    /// `nanos = (tsc - start) * scale >> 32`
    Tsc {
        start: u64,
        scale: u64,
    },
    Monotonic {
        start: std::time::Instant,
    },
}

impl Clock {
    /// How long [`Clock::new`] compares the two clocks. Reading both takes under 100 ns, so 20 ms gives 5 ppm.
    const CALIBRATION: Duration = Duration::from_millis(20);

    /// Calibrates the counter; takes about 20 ms.
    #[expect(clippy::new_without_default, reason = "takes 20 ms, which a default should not")]
    pub fn new() -> Self {
        let (tsc_start, start) = read_both();
        std::thread::sleep(Self::CALIBRATION);
        let (tsc_end, end) = read_both();

        let nanos = saturating_nanos(end - start).max(1);
        let ticks = tsc_end.saturating_sub(tsc_start);
        let tsc_hz = mul_div(ticks, NANOS_PER_SEC, nanos);
        let source = if tsc_hz > 0 && cpu::has_invariant_tsc() {
            Source::Tsc {
                start: tsc_start,
                scale: mul_div(NANOS_PER_SEC, 1 << 32, tsc_hz),
            }
        } else {
            Source::Monotonic { start }
        };
        // A counter that stands still is none: then `tsc` counts nanoseconds.
        Self {
            source,
            tsc_hz: if ticks == 0 { NANOS_PER_SEC } else { tsc_hz },
        }
    }

    /// The time since this clock was made.
    #[inline]
    pub fn now(&self) -> Instant {
        match self.source {
            Source::Tsc { start, scale } => {
                // Another core's counter may be a few ticks behind the one that calibrated: never before the start.
                let ticks = cpu::tsc().saturating_sub(start);
                Instant(((u128::from(ticks) * u128::from(scale)) >> 32) as u64)
            }
            Source::Monotonic { start } => Instant(saturating_nanos(start.elapsed())),
        }
    }

    /// Ticks of [`Clock::tsc`] per second.
    pub fn tsc_hz(&self) -> u64 {
        self.tsc_hz
    }

    /// The raw counter, for measuring cycles. Not serialising: neighbouring instructions may move across it.
    #[inline]
    pub fn tsc(&self) -> u64 {
        cpu::tsc()
    }
}

/// One reading of both clocks, the tightest of a few tries so that a preemption between them does not spoil it.
fn read_both() -> (u64, std::time::Instant) {
    let mut best = (u64::MAX, 0, std::time::Instant::now());
    for _ in 0..8 {
        let before = cpu::tsc();
        let now = std::time::Instant::now();
        let after = cpu::tsc();
        let width = after.saturating_sub(before);
        if width < best.0 {
            best = (width, before + width / 2, now);
        }
    }
    (best.1, best.2)
}

fn saturating_nanos(duration: Duration) -> u64 {
    duration
        .as_secs()
        .saturating_mul(NANOS_PER_SEC)
        .saturating_add(u64::from(duration.subsec_nanos()))
}

fn mul_div(a: u64, b: u64, divisor: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    u64::try_from(product / u128::from(divisor)).unwrap_or(u64::MAX)
}

#[cfg(target_arch = "x86_64")]
mod cpu {
    use core::arch::x86_64::{__cpuid, _rdtsc};

    /// AMD64 manual volume 3, Fn8000_0007_EDX bit 8 (TscInvariant); Intel SDM 18.17.1 names the same bit.
    const LEAF_POWER_MANAGEMENT: u32 = 0x8000_0007;
    const INVARIANT_TSC: u32 = 1 << 8;

    #[inline]
    pub(super) fn tsc() -> u64 {
        // SAFETY: every x86-64 CPU has `rdtsc`; Linux leaves it enabled in user mode unless a process asks otherwise.
        unsafe { _rdtsc() }
    }

    #[allow(
        unused_unsafe,
        reason = "`__cpuid` became a safe function after our minimum Rust version"
    )]
    pub(super) fn has_invariant_tsc() -> bool {
        // SAFETY: every x86-64 CPU has `cpuid`; an unknown leaf returns data, it does not fault.
        let highest = unsafe { __cpuid(0x8000_0000) }.eax;
        // SAFETY: as above.
        highest >= LEAF_POWER_MANAGEMENT && unsafe { __cpuid(LEAF_POWER_MANAGEMENT) }.edx & INVARIANT_TSC != 0
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod cpu {
    use std::sync::OnceLock;
    use std::time::Instant;

    /// There is no counter to read: nanoseconds of `CLOCK_MONOTONIC` since the first call.
    #[inline]
    pub(super) fn tsc() -> u64 {
        static START: OnceLock<Instant> = OnceLock::new();
        super::saturating_nanos(START.get_or_init(Instant::now).elapsed())
    }

    pub(super) fn has_invariant_tsc() -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_saturate_at_both_ends() {
        assert_eq!(Instant::MAX + Duration::from_nanos(1), Instant::MAX);
        assert_eq!(Instant::ZERO - Duration::from_nanos(1), Instant::ZERO);
        assert_eq!(Instant::ZERO - Instant::from_nanos(1), Duration::ZERO);
        assert_eq!(Instant::from_nanos(1) + Duration::MAX, Instant::MAX);
    }

    #[test]
    fn adding_what_passed_gives_the_later_instant() {
        let (earlier, later) = (Instant::from_nanos(7), Instant::from_nanos(1_000_000_007));
        assert_eq!(earlier + (later - earlier), later);
        assert_eq!((later - earlier), Duration::from_secs(1));
        assert_eq!(later.as_millis(), 1_000);
        assert_eq!(Instant::from_millis(1_000).as_micros(), 1_000_000);
    }

    #[test]
    fn clock_keeps_pace_with_the_systems_clock() {
        let clock = Clock::new();
        let (start, reference) = (clock.now(), std::time::Instant::now());
        std::thread::sleep(Duration::from_millis(50));
        // The reference is read last and first: it encloses the measured span but for what the reads take.
        let (measured, real) = (clock.now() - start, reference.elapsed());
        let difference = measured.abs_diff(real);
        assert!(difference < Duration::from_millis(2), "{measured:?} against {real:?}");
    }

    #[test]
    fn copies_of_a_clock_agree_and_do_not_run_backwards() {
        let clock = Clock::new();
        let other = std::thread::spawn(move || clock.now()).join().expect("thread");
        let here = clock.now();
        assert!(here >= other, "{here:?} before {other:?}");
    }

    #[test]
    fn cycles_and_time_tell_the_same_rate() {
        let clock = Clock::new();
        let (ticks, start) = (clock.tsc(), clock.now());
        std::thread::sleep(Duration::from_millis(20));
        let (ticks, passed) = (clock.tsc() - ticks, clock.now() - start);
        let hz = ticks as f64 / passed.as_secs_f64();
        assert!(
            (hz / clock.tsc_hz() as f64 - 1.0).abs() < 0.05,
            "{hz} against {}",
            clock.tsc_hz()
        );
    }
}
