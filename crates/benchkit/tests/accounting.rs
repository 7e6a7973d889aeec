//! The inline bench charges a device for exactly what it burns.

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use arrayvec::ArrayVec;
use benchkit::{
    Arm, CpsResult, CpsSettings, CycleCounter, DeviceCounts, DeviceUnderTest, InlineBench, RoundWork, cps_arms,
    cps_client, cps_server,
};
use e2d2::BURST;
use e2d2::buffer::{HeapBuffer, HeapPool};
use e2d2::port::{Port, PortId};
use e2d2::ports::LoopbackPort;
use e2d2::time::{Clock, Instant};

/// A counter that only moves when somebody burns cycles; time passes 10 µs with every look at it.
#[derive(Clone, Default)]
struct FakeCounter {
    cycles: Rc<Cell<u64>>,
    micros: Rc<Cell<u64>>,
    /// In how many of twenty pieces of ten milliseconds somebody else uses the core, where everything takes half as long again.
    shared: u64,
}

impl FakeCounter {
    fn burn(&self, cycles: u64) {
        self.cycles.set(self.cycles.get() + self.stretched(cycles));
    }

    fn stretched(&self, cycles: u64) -> u64 {
        let is_beside_others = self.micros.get() / 10_000 % 20 < self.shared;
        if is_beside_others { cycles * 3 / 2 } else { cycles }
    }
}

impl CycleCounter for FakeCounter {
    fn cycles(&self) -> u64 {
        self.cycles.get()
    }

    fn hz(&self) -> u64 {
        1_000_000_000
    }

    fn now(&self) -> Instant {
        self.micros.set(self.micros.get() + 10);
        Instant::from_nanos(self.micros.get() * 1_000)
    }

    fn fixed_work(&self) -> u64 {
        self.stretched(1_000)
    }
}

/// When a fake proxy does its work.
#[derive(Clone, Copy, PartialEq)]
enum Habit {
    /// As packets come.
    AtOnce,
    /// In the next round without packets; it says so.
    Later,
    /// In the next round without packets, and it denies it.
    Secretly,
}

/// Passes packets from one port to the other and burns cycles for each.
struct FakeProxy {
    ports: [LoopbackPort; 2],
    counter: FakeCounter,
    habit: Habit,
    per_packet: u64,
    owed: u64,
    /// Packets wait here until a round later, so that rounds without packets exist at all.
    packets: u64,
    waiting: [VecDeque<HeapBuffer>; 2],
    pause: bool,
}

impl FakeProxy {
    fn pass(&mut self) -> RoundWork {
        let mut work = RoundWork::default();
        for (from, to) in [(0, 1), (1, 0)] {
            let mut burst = ArrayVec::<HeapBuffer, BURST>::new();
            work.received += self.ports[from].receive(&mut burst) as u32;
            self.waiting[to].extend(burst);
            let mut out: ArrayVec<HeapBuffer, BURST> =
                self.waiting[to].drain(..self.waiting[to].len().min(BURST)).collect();
            work.sent += self.ports[to].transmit(&mut out) as u32;
            assert!(out.is_empty(), "the cable is long enough");
        }
        work
    }
}

impl DeviceUnderTest for FakeProxy {
    fn round(&mut self, _now: Instant) -> RoundWork {
        // Every other round takes no packets.
        self.pause = !self.pause && self.habit != Habit::AtOnce;
        if self.pause {
            self.counter.burn(std::mem::take(&mut self.owed));
            return RoundWork {
                other: u32::from(self.habit == Habit::Later),
                ..RoundWork::default()
            };
        }
        let work = self.pass();
        self.packets += u64::from(work.received);
        let cycles = u64::from(work.received) * self.per_packet;
        if self.habit == Habit::AtOnce {
            self.counter.burn(cycles);
        } else {
            self.owed += cycles;
        }
        work
    }

    fn counts(&self) -> DeviceCounts {
        DeviceCounts {
            open: 200,
            state_bytes: 200 * 100,
            ..DeviceCounts::default()
        }
    }
}

fn arms(settings: &CpsSettings, now: Instant) -> (Vec<Arm<LoopbackPort>>, [LoopbackPort; 2]) {
    let (client_end, device_client) = LoopbackPort::pair(PortId(0), PortId(1), 1024);
    let (server_end, device_server) = LoopbackPort::pair(PortId(2), PortId(3), 1024);
    let listener = "10.0.0.1:80".parse().unwrap();
    let mut client = cps_client(settings, "10.0.1.1-10.0.1.4".parse().unwrap(), listener, 1);
    client.max_open = settings.open + 100;
    let server = cps_server(&client, &[listener]);
    let next_hops = [server_end.mac(); 2];
    let arms = cps_arms(client, server, &next_hops, [client_end, server_end], now);
    (arms, [device_client, device_server])
}

fn run(habit: Habit, per_packet: u64) -> (CpsResult, u64, u64) {
    run_with(FakeCounter::default(), habit, per_packet)
}

fn run_with(counter: FakeCounter, habit: Habit, per_packet: u64) -> (CpsResult, u64, u64) {
    let settings = CpsSettings {
        open: 200,
        length: Duration::from_millis(200),
        time_wait: Duration::from_millis(10),
    };
    let (arms, ports) = arms(&settings, Instant::ZERO);
    let device = FakeProxy {
        ports,
        counter: counter.clone(),
        habit,
        per_packet,
        owed: 0,
        packets: 0,
        waiting: [VecDeque::new(), VecDeque::new()],
        pause: false,
    };
    let mut bench = InlineBench::new(device, arms, HeapPool::new(8192, 2048), counter);
    let result = bench.cps(&settings);
    (
        result,
        bench.accounts().busy_cycles,
        bench.device.packets * per_packet - bench.device.owed,
    )
}

#[test]
fn cycles_burnt_per_packet_are_charged_to_the_last_one() {
    let (result, busy, burnt) = run(Habit::AtOnce, 1_000);
    assert!(result.valid, "{result:#?}");
    assert_eq!(busy, burnt);
    assert!(
        (result.busy_cycles_per_connection - 7_000.0).abs() < 20.0,
        "{result:#?}"
    );
    assert_eq!(
        result.busy_cycles_per_connection,
        result.saturated_cycles_per_connection
    );
    let slices = result.busy_cycles_of_slices;
    assert!(
        slices.p10 <= slices.p50 && slices.p50 <= slices.p90 && (6_000..8_000).contains(&slices.p50),
        "{slices:?}"
    );
    assert!(result.connections > 1_000);
    assert_eq!(result.bytes_per_connection_state, 100.0);
}

#[test]
fn cycles_are_of_the_time_in_which_nobody_else_used_the_core() {
    let shared = FakeCounter {
        shared: 10,
        ..FakeCounter::default()
    };
    let (result, ..) = run_with(shared, Habit::AtOnce, 1_000);
    assert!(result.valid, "{result:#?}");
    // Slices cut connections in two.
    assert!(
        (result.busy_cycles_per_connection - 7_000.0).abs() < 100.0,
        "{result:#?}"
    );
    // Half of the time costs half as much again.
    assert!(
        (8_300.0..9_200.0).contains(&result.busy_cycles_all_slices),
        "{result:#?}"
    );
    assert!(
        (result.coverage.slices * 3 / 10..result.coverage.slices * 6 / 10).contains(&result.slices_alone),
        "{result:#?}"
    );
    let (alone, ..) = run(Habit::AtOnce, 1_000);
    assert_eq!(alone.slices_alone, alone.coverage.slices);
    assert_eq!(alone.coverage.slices_counted_share, 1.0);
    assert_eq!(alone.busy_cycles_all_slices, alone.busy_cycles_per_connection);
}

#[test]
fn a_figure_of_less_than_a_tenth_of_the_slices_is_not_valid() {
    // With the ten milliseconds of one piece in twenty it goes on for three times as long, and is still of a twentieth.
    for (shared, valid) in [(17, true), (19, false)] {
        let counter = FakeCounter {
            shared,
            ..FakeCounter::default()
        };
        let (result, ..) = run_with(counter, Habit::AtOnce, 1_000);
        assert_eq!(result.valid, valid, "{result:#?}");
        let share = result.coverage.slices_counted_share;
        assert_eq!(share >= 0.1, valid, "{result:#?}");
        assert_eq!(
            result
                .invalid_because
                .iter()
                .any(|reason| reason.contains("slices count")),
            !valid,
            "{result:#?}"
        );
    }
}

#[test]
fn work_put_off_into_rounds_without_packets_is_charged() {
    let (result, busy, burnt) = run(Habit::Later, 1_000);
    assert!(result.valid, "{result:#?}");
    assert_eq!(busy, burnt);
    assert!(
        (result.busy_cycles_per_connection - 7_000.0).abs() < 20.0,
        "{result:#?}"
    );
}

#[test]
fn work_that_is_denied_makes_the_result_invalid() {
    let (result, busy, burnt) = run(Habit::Secretly, 1_000);
    assert_eq!(busy, 0);
    assert!(burnt > 0 && !result.valid);
    assert!(
        (result.saturated_cycles_per_connection - 7_000.0).abs() < 20.0,
        "{result:#?}"
    );
    assert!(
        result
            .invalid_because
            .iter()
            .any(|reason| reason.contains("times the busy")),
        "{result:#?}"
    );
}

#[test]
fn the_real_counter_charges_at_least_what_is_burnt() {
    /// Spins for a number of cycles per packet.
    struct Spinner(FakeProxy, Clock);
    const PER_PACKET: u64 = 500;
    impl DeviceUnderTest for Spinner {
        fn round(&mut self, _now: Instant) -> RoundWork {
            let work = self.0.pass();
            let until = self.1.tsc() + u64::from(work.received) * PER_PACKET;
            while self.1.tsc() < until {
                std::hint::spin_loop();
            }
            work
        }

        fn counts(&self) -> DeviceCounts {
            DeviceCounts {
                open: 200,
                ..DeviceCounts::default()
            }
        }
    }
    let settings = CpsSettings {
        open: 200,
        length: Duration::from_millis(300),
        time_wait: Duration::from_millis(10),
    };
    let clock = Clock::new();
    let (arms, ports) = arms(&settings, clock.now());
    let proxy = FakeProxy {
        ports,
        counter: FakeCounter::default(),
        habit: Habit::AtOnce,
        per_packet: 0,
        owed: 0,
        packets: 0,
        waiting: [VecDeque::new(), VecDeque::new()],
        pause: false,
    };
    let mut bench = InlineBench::new(Spinner(proxy, clock), arms, HeapPool::new(8192, 2048), clock);
    let result = bench.cps(&settings);
    let packets = result.rx_packets_per_connection;
    assert!(
        result.busy_cycles_per_connection >= packets * PER_PACKET as f64,
        "{result:#?}"
    );
    assert_eq!(
        (result.lost, result.retransmitted, result.wrong_server, result.failed),
        (0, 0, 0, 0),
        "{result:#?}"
    );
    assert!(result.connections > 0 && result.latency_us.p50 > 0.0);
}
