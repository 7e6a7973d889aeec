//! Cost of the timer wheel's operations, with a table that fits the cache and one that does not.
//!
//! `connection` is what a proxied connection does to the wheel: armed once, pushed out a few times, disarmed and armed
//! for the quarantine, expired.

use std::hint::black_box;
use std::time::Duration;

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use e2d2::time::Instant;
use netfcts::TimerWheel;

/// Ids in an order that the prefetcher does not guess: multiples of a number prime to all capacities used.
fn scattered(step: u32, capacity: u32) -> u32 {
    (u64::from(step) * 7_368_787 % u64::from(capacity)) as u32
}

fn armed(capacity: u32) -> TimerWheel {
    let mut wheel = TimerWheel::new(capacity as usize, Instant::ZERO);
    for step in 0..capacity {
        let id = scattered(step, capacity);
        wheel.arm(id, Instant::from_nanos(1_000_000_000 + u64::from(step) * 60_000));
    }
    wheel
}

fn operations(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("wheel");
    for capacity in [10_000u32, 1_000_000] {
        group.throughput(Throughput::Elements(1));
        group.bench_function(BenchmarkId::new("rearm_later", capacity), |bench| {
            let (mut wheel, mut step) = (armed(capacity), 0);
            bench.iter(|| {
                step = (step + 1) % capacity;
                let after = Duration::from_secs(100) + Duration::from_micros(u64::from(step));
                wheel.arm(scattered(step, capacity), Instant::ZERO + after);
            });
        });
        group.bench_function(BenchmarkId::new("disarm_arm", capacity), |bench| {
            let (mut wheel, mut step) = (armed(capacity), 0);
            bench.iter(|| {
                step = (step + 1) % capacity;
                let id = scattered(step, capacity);
                wheel.disarm(id);
                wheel.arm(id, Instant::from_nanos(1_000_000_000 + u64::from(step) * 60_000));
            });
        });
        group.throughput(Throughput::Elements(u64::from(capacity)));
        group.bench_function(BenchmarkId::new("expire_all", capacity), |bench| {
            bench.iter_batched_ref(
                || armed(capacity),
                |wheel| {
                    let mut fired = 0u32;
                    let mut now = Instant::ZERO;
                    while !wheel.is_empty() {
                        now += Duration::from_millis(1);
                        while wheel.expire(now, &mut |_| fired += 1) {}
                    }
                    black_box(fired)
                },
                BatchSize::LargeInput,
            );
        });
    }
    group.throughput(Throughput::Elements(1));
    group.bench_function("expire_nothing_due", |bench| {
        let mut wheel = armed(10_000);
        bench.iter(|| wheel.expire(black_box(Instant::from_nanos(500_000)), &mut |_| ()));
    });
    group.finish();
}

fn connection(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("wheel");
    for capacity in [10_000u32, 1_000_000] {
        group.bench_function(BenchmarkId::new("connection", capacity), |bench| {
            let (mut wheel, mut step, mut now) = (armed(capacity), 0u32, Instant::from_nanos(1));
            bench.iter(|| {
                step = (step + 1) % capacity;
                let id = scattered(step, capacity);
                // A million connections per second, one second of quarantine.
                now += Duration::from_micros(1);
                wheel.arm(id, now + Duration::from_secs(3));
                for _ in 0..3 {
                    wheel.arm(id, now + Duration::from_secs(300));
                }
                wheel.disarm(id);
                wheel.arm(id, now + Duration::from_secs(1));
                wheel.expire(now, &mut |id| _ = black_box(id))
            });
        });
    }
    group.finish();
}

criterion_group!(benches, operations, connection);
criterion_main!(benches);
