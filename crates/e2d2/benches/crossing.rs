//! What it costs to pass packets between two cores while nothing is done with them: the floor under `bench cps --two-core`.
//!
//! A source keeps a window of packets under way over two pairs of ring ports, as the load of that bench does. An echo on another
//! core receives them, writes to both lines of the headers as a proxy would, and sends them back by the other port. The
//! figures are the echo's TSC cycles for each packet, received and sent, of the rounds in which there were any: so small
//! bursts cost what they cost. With one thread the same is done in turns, without another core's cache between.
//!
//! `recycled`: the packet goes back to where its buffer comes from. `fresh`: the echo drops it and answers from a pool of
//! its own, so that each core frees what the other has taken.

use std::env;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use arrayvec::ArrayVec;
use e2d2::BURST;
use e2d2::buffer::{BufferPool, PacketBuffer};
use e2d2::native::{DpdkQueue, Eal, EalConfig, Mbuf, MbufPool, PoolDemand, data_room, ring_pair};
use e2d2::port::{Port, PortId};
use e2d2::scheduler::pin_current_thread;
use e2d2::time::Clock;

/// Ethernet, IPv4 and TCP with time stamps, and the 16 bytes of a request.
const FRAME: usize = 14 + 20 + 32 + 16;

/// Packets that a ring holds.
const DESCRIPTORS: u16 = 2047;

/// How long each figure is taken.
const LENGTH: Duration = Duration::from_millis(1500);

/// Rounds before the figures are taken.
const WARM_UP: u64 = 20_000;

struct Side {
    ports: [DpdkQueue; 2],
    pool: MbufPool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Answer {
    Recycled,
    Fresh,
}

/// Packets, rounds in which there were any, and their cycles.
#[derive(Default)]
struct Sum {
    packets: u64,
    busy_rounds: u64,
    rounds: u64,
    busy_cycles: u64,
}

impl Sum {
    fn print(&self, what: &str, window: usize) {
        let per_packet = self.busy_cycles as f64 / self.packets.max(1) as f64;
        println!(
            "{what}, {window:4} under way: {per_packet:6.1} cycles/packet, {:5.0} for seven; bursts of {:4.1}, {:3.0} % of \
             rounds empty, {:4.1} M packets/s",
            7.0 * per_packet,
            self.packets as f64 / self.busy_rounds.max(1) as f64,
            100.0 - 100.0 * self.busy_rounds as f64 / self.rounds.max(1) as f64,
            self.packets as f64 / LENGTH.as_secs_f64() / 1e6,
        );
    }
}

fn sides(eal: &Eal, number: usize) -> (Side, Side) {
    let demand = PoolDemand {
        queues: 4 * u32::from(DESCRIPTORS + 1),
        held: 2048,
        threads: 2,
    };
    let pool = |role: &str| {
        let name = format!("{role}{number}");
        MbufPool::new(eal, &name, demand.buffers(), data_room(1500), None).expect("enough memory")
    };
    let (source, echo) = (pool("source"), pool("echo"));
    let pair = |index: u8| {
        let ids = [PortId(index), PortId(index + 10)];
        let name = format!("x{number}_{index}");
        let [(_, mut near), (_, mut far)] =
            ring_pair(eal, &name, ids, DESCRIPTORS, 1500, [&[&source], &[&echo]]).expect("ring ports");
        (near.remove(0), far.remove(0))
    };
    let ((near0, far0), (near1, far1)) = (pair(0), pair(1));
    let near = Side {
        ports: [near0, near1],
        pool: source,
    };
    let far = Side {
        ports: [far0, far1],
        pool: echo,
    };
    (near, far)
}

/// One turn of the source; `under_way` is how many packets there are.
fn feed(side: &mut Side, under_way: &mut usize, window: usize) {
    let mut burst = ArrayVec::<Mbuf, BURST>::new();
    for port in &mut side.ports {
        *under_way -= port.receive(&mut burst);
        burst.iter().for_each(PacketBuffer::prefetch);
        let read: u32 = burst
            .iter()
            .map(|packet| packet.data().iter().map(|&byte| u32::from(byte)).sum::<u32>())
            .sum();
        std::hint::black_box(read);
        burst.clear();
        let room = BURST.min((window - *under_way).div_ceil(2));
        while burst.len() < room
            && let Some(mut packet) = side.pool.take()
        {
            if packet.append(FRAME).is_err() {
                break;
            }
            burst.push(packet);
        }
        *under_way += port.transmit(&mut burst);
        burst.clear();
    }
}

/// One round of the echo; returns how many packets there were.
fn echo(side: &mut Side, answer: Answer) -> usize {
    let mut count = 0;
    let mut bursts = [const { ArrayVec::<Mbuf, BURST>::new_const() }; 2];
    for (port, burst) in side.ports.iter_mut().zip(&mut bursts) {
        count += port.receive(burst);
        burst.iter().for_each(PacketBuffer::prefetch);
        for packet in burst.iter_mut() {
            if answer == Answer::Fresh {
                let Some(mut fresh) = side.pool.take() else { continue };
                if fresh.append(FRAME).is_ok() {
                    *packet = fresh;
                }
            }
            for byte in packet.data_mut().iter_mut().take(66) {
                *byte = byte.wrapping_add(1);
            }
        }
    }
    let [first, second] = &mut bursts;
    side.ports[1].transmit(first);
    side.ports[0].transmit(second);
    count
}

fn charge(sum: &mut Sum, clock: &Clock, side: &mut Side, answer: Answer) {
    let before = clock.tsc();
    let count = echo(side, answer);
    let cycles = clock.tsc() - before;
    sum.rounds += 1;
    if count > 0 {
        sum.busy_rounds += 1;
        sum.busy_cycles += cycles;
        sum.packets += count as u64;
    }
}

fn one_core(eal: &Eal, number: usize, window: usize, answer: Answer) -> Sum {
    let _thread = eal.register_thread().expect("an lcore id is left");
    let (mut near, mut far) = sides(eal, number);
    let (clock, mut under_way, mut sum) = (Clock::new(), 0, Sum::default());
    for _ in 0..WARM_UP {
        feed(&mut near, &mut under_way, window);
        echo(&mut far, answer);
    }
    let end = clock.now() + LENGTH;
    while clock.now() < end {
        feed(&mut near, &mut under_way, window);
        charge(&mut sum, &clock, &mut far, answer);
    }
    sum
}

fn two_cores(eal: &Eal, cpus: (usize, usize), number: usize, window: usize, answer: Answer) -> Sum {
    let (mut near, mut far) = sides(eal, number);
    let (is_over, left) = (AtomicBool::new(false), AtomicUsize::new(0));
    let mut sum = Sum::default();
    thread::scope(|scope| {
        scope.spawn(|| {
            pin_current_thread(cpus.0).expect("a CPU of this process");
            let _thread = eal.register_thread().expect("an lcore id is left");
            let mut under_way = 0;
            while !is_over.load(Ordering::Relaxed) {
                feed(&mut near, &mut under_way, window);
            }
            left.store(under_way, Ordering::Relaxed);
        });
        pin_current_thread(cpus.1).expect("a CPU of this process");
        let _thread = eal.register_thread().expect("an lcore id is left");
        let clock = Clock::new();
        for _ in 0..WARM_UP {
            echo(&mut far, answer);
        }
        let end = clock.now() + LENGTH;
        while clock.now() < end {
            charge(&mut sum, &clock, &mut far, answer);
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert!(left.into_inner() <= window);
    sum
}

/// TSC cycles for a line to go to the other core and back.
fn ping_pong(cpus: (usize, usize)) -> f64 {
    const TURNS: usize = 200_000;
    #[repr(align(128))]
    struct Line(AtomicUsize);
    let line = Line(AtomicUsize::new(0));
    let clock = Clock::new();
    let mut cycles = 0;
    thread::scope(|scope| {
        scope.spawn(|| {
            pin_current_thread(cpus.0).expect("a CPU of this process");
            for turn in 0..TURNS {
                while line.0.load(Ordering::Acquire) != 2 * turn + 1 {
                    std::hint::spin_loop();
                }
                line.0.store(2 * turn + 2, Ordering::Release);
            }
        });
        pin_current_thread(cpus.1).expect("a CPU of this process");
        let mut start = 0;
        for turn in 0..TURNS {
            if turn == TURNS / 2 {
                start = clock.tsc();
            }
            line.0.store(2 * turn + 1, Ordering::Release);
            while line.0.load(Ordering::Acquire) != 2 * turn + 2 {
                std::hint::spin_loop();
            }
        }
        cycles = clock.tsc() - start;
    });
    cycles as f64 / (TURNS / 2) as f64
}

/// TSC cycles of arithmetic that touches no memory, by itself and while the other core does the same: what two cores that are
/// one core's two threads take from each other.
fn arithmetic(cpus: (usize, usize)) -> [f64; 2] {
    let work = || {
        let (mut a, mut b, mut c, mut d) = (1u64, 3u64, 5u64, 7u64);
        for step in 0..20_000_000u64 {
            a = a.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ step;
            b = b.rotate_left(7).wrapping_add(step);
            c = c.wrapping_add(step) ^ c >> 3;
            d = d.wrapping_sub(step) ^ d << 5;
        }
        std::hint::black_box(a ^ b ^ c ^ d);
    };
    let clock = Clock::new();
    let timed = || {
        let start = clock.tsc();
        work();
        (clock.tsc() - start) as f64 / 20e6
    };
    pin_current_thread(cpus.1).expect("a CPU of this process");
    let alone = (0..5).map(|_| timed()).fold(f64::MAX, f64::min);
    let is_over = AtomicBool::new(false);
    let beside = thread::scope(|scope| {
        scope.spawn(|| {
            pin_current_thread(cpus.0).expect("a CPU of this process");
            while !is_over.load(Ordering::Relaxed) {
                work();
            }
        });
        thread::sleep(Duration::from_millis(50));
        let beside = (0..5).map(|_| timed()).fold(f64::MAX, f64::min);
        is_over.store(true, Ordering::Relaxed);
        beside
    });
    [alone, beside]
}

fn main() {
    let cpus: Vec<usize> = env::args().filter_map(|argument| argument.parse().ok()).collect();
    let cpus = (cpus.first().copied().unwrap_or(0), cpus.get(1).copied().unwrap_or(1));
    let [alone, beside] = arithmetic(cpus);
    println!("arithmetic alone {alone:.2} cycles a step, {beside:.2} while the other core does the same");
    println!("a line to the other core and back: {:.0} cycles", ping_pong(cpus));
    let config = EalConfig {
        memory_mib: 256,
        ..EalConfig::default()
    };
    let eal = Eal::start(&config).expect("DPDK starts");
    let mut number = 0;
    for (name, answer) in [("recycled", Answer::Recycled), ("fresh", Answer::Fresh)] {
        for window in [4, 16, 64, 512] {
            number += 1;
            one_core(&eal, number, window, answer).print(&format!("one core,  {name:8}"), window);
        }
        for window in [4, 16, 64, 512, 1024] {
            number += 1;
            two_cores(&eal, cpus, number, window, answer).print(&format!("two cores, {name:8}"), window);
        }
    }
}
