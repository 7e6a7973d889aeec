//! What the graph costs per packet, in cycles of the time stamp counter.
//!
//! A burst of 32 goes round and round: in at one end of a loop-back cable, through the graph, and out again. `bare cable`
//! does the same without a graph: the difference is what the operators cost. Buffers are one pointer wide, as DPDK's are.
//! Each sample is the median turn, so that a turn in which the kernel ran something else does not count.
//!
//! `cargo bench -p e2d2 --bench graph`; the figure is cycles per packet, printed as `cycles/packet`.

use std::hint::black_box;
use std::rc::Rc;
use std::time::Duration;

use arrayvec::ArrayVec;
use criterion::{Criterion, criterion_group, criterion_main};
use e2d2::BURST;
use e2d2::buffer::{BufferPool, HeapBuffer, HeapPool, NoRoom, PacketBuffer, RxInfo, TxOffload};
use e2d2::fate::GraphCounters;
use e2d2::operators::{
    Burst, Frame, Node, Outbox, Round, SharedPort, Source, Task, merge, merge_by_priority, receive, share,
};
use e2d2::port::{Port, PortId};
use e2d2::ports::LoopbackPort;
use e2d2::scheduler::{IdleMode, Priority, Scheduler, pin_current_thread};
use e2d2::time::{Clock, Instant};
use e2d2::wire::frame::{Kind, Packet};

mod cycles;

use cycles::Cycles;

/// A heap buffer behind one pointer, so that moving it costs what moving an mbuf costs.
struct Slim(Box<HeapBuffer>);

impl PacketBuffer for Slim {
    fn data(&self) -> &[u8] {
        self.0.data()
    }
    fn data_mut(&mut self) -> &mut [u8] {
        self.0.data_mut()
    }
    fn headroom(&self) -> usize {
        self.0.headroom()
    }
    fn tailroom(&self) -> usize {
        self.0.tailroom()
    }
    fn prepend(&mut self, n: usize) -> Result<(), NoRoom> {
        self.0.prepend(n)
    }
    fn append(&mut self, n: usize) -> Result<(), NoRoom> {
        self.0.append(n)
    }
    fn trim_front(&mut self, n: usize) {
        self.0.trim_front(n);
    }
    fn truncate(&mut self, len: usize) {
        self.0.truncate(len);
    }
    fn rx_info(&self) -> RxInfo {
        self.0.rx_info()
    }
    fn set_rss_hash(&mut self, hash: Option<u32>) {
        self.0.set_rss_hash(hash);
    }
    fn set_tx_offload(&mut self, offload: TxOffload) {
        self.0.set_tx_offload(offload);
    }
    fn prefetch(&self) {
        self.0.prefetch();
    }
}

e2d2::reasons! {
    enum Class {
        Tcp = "tcp",
        Other = "other",
    }
}

/// Emits what it gets.
struct Forward;

impl Node for Forward {
    type Input = Packet<Slim>;
    type Output = Frame<Slim>;

    fn process(&mut self, round: &mut Round<'_>, batch: &mut Burst<Self::Input>, out: &mut Outbox<Self::Output>) {
        for packet in batch.drain(..) {
            out.emit(round, packet.into());
        }
    }
    fn next_deadline(&self) -> Option<Instant> {
        None
    }
}

/// A minimal TCP segment over IPv4; the header checksum is right.
const FRAME: [u8; 54] = [
    2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x08, 0x00, // Ethernet
    0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0x26, 0xce, 10, 0, 0, 1, 10, 0, 0, 2, // IPv4
    0x9c, 0x40, 0, 80, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0, // TCP
];

/// The near end for the graph, the far end and a burst for the bench.
struct Rig {
    near: SharedPort<LoopbackPort<Slim>>,
    far: LoopbackPort<Slim>,
    burst: ArrayVec<Slim, BURST>,
}

impl Rig {
    fn new() -> Self {
        let mut pool = HeapPool::new(BURST, 128);
        let (near, far) = LoopbackPort::pair(PortId(0), PortId(1), BURST);
        let burst = std::iter::from_fn(|| pool.take_copy(&FRAME))
            .map(|buffer| Slim(Box::new(buffer)))
            .collect();
        Self {
            near: share(near),
            far,
            burst,
        }
    }

    /// Times `turns` turns.
    fn time(&mut self, clock: &Clock, turns: u64, mut graph: impl FnMut()) -> u64 {
        median(clock, turns, || self.turn(&mut graph))
    }

    /// Sends the burst, lets `graph` run and gets the burst back: all of it, or the bench measures nothing.
    fn turn(&mut self, graph: impl FnOnce()) {
        self.far.transmit(&mut self.burst);
        graph();
        assert_eq!(self.far.receive(&mut self.burst), BURST);
    }
}

/// Times `turns` turns one by one: the median of them, times their number.
fn median(clock: &Clock, turns: u64, mut turn: impl FnMut()) -> u64 {
    let mut cycles: Vec<u64> = (0..turns)
        .map(|_| {
            let start = clock.tsc();
            turn();
            clock.tsc() - start
        })
        .collect();
    let middle = cycles.len() / 2;
    *cycles.select_nth_unstable(middle).1 * turns
}

fn bench_graph(c: &mut Criterion<Cycles>) {
    let _ = pin_current_thread(0);
    let mut group = c.benchmark_group("graph");
    let clock = Clock::new();

    let mut rig = Rig::new();
    let near = Rc::clone(&rig.near);
    let mut burst = ArrayVec::new();
    group.bench_function("bare cable", |b| {
        b.iter_custom(|turns| {
            rig.time(&clock, turns, || {
                let mut port = near.borrow_mut();
                port.receive(&mut burst);
                port.transmit(&mut burst);
            })
        });
    });

    fn bench(
        group: &mut criterion::BenchmarkGroup<'_, Cycles>,
        name: &str,
        clock: &Clock,
        graph: impl FnOnce(&SharedPort<LoopbackPort<Slim>>, Rc<GraphCounters>) -> Box<dyn Task>,
    ) {
        let mut rig = Rig::new();
        let (counters, reader) = GraphCounters::new();
        let mut task = graph(&rig.near, counters);
        let now = black_box(Instant::from_millis(1));
        group.bench_function(name, |b| {
            b.iter_custom(|turns| rig.time(clock, turns, || assert!(!task.run(now).is_none())));
        });
        assert_eq!((reader.held(), reader.drops.snapshot().total()), (0, 0));
    }

    bench(&mut group, "receive, send", &clock, |port, counters| {
        Box::new(receive(port).send([Rc::clone(port)], BURST, counters))
    });
    bench(&mut group, "receive, filter, map, send", &clock, |port, counters| {
        let wanted = |frame: &Frame<Slim>| frame.buffer.len() > 14;
        Box::new(
            receive(port)
                .filter(wanted)
                .map(|frame| frame)
                .send([Rc::clone(port)], BURST, counters),
        )
    });
    bench(&mut group, "receive, parse, send", &clock, |port, counters| {
        Box::new(receive(port).parse().send([Rc::clone(port)], BURST, counters))
    });
    bench(&mut group, "receive, parse, process, send", &clock, |port, counters| {
        Box::new(
            receive(port)
                .parse()
                .process(Forward, 4 * BURST)
                .send([Rc::clone(port)], BURST, counters),
        )
    });
    bench(&mut group, "the engine's shape", &clock, |port, counters| {
        let groups = merge([receive(port)]).parse().group_by(|packet| match packet.kind {
            Kind::Tcp(_) => Class::Tcp,
            _ => Class::Other,
        });
        let tcp = groups.group(Class::Tcp).process(Forward, 4 * BURST);
        let other = groups.group(Class::Other).process(Forward, 4 * BURST);
        Box::new(merge_by_priority((tcp, other)).send([Rc::clone(port)], BURST, counters))
    });
    group.finish();
}

/// A round without packets: what an idle core repeats, and what a busy one pays on top of its packets.
fn bench_idle_round(c: &mut Criterion<Cycles>) {
    let rig = Rig::new();
    let (counters, _reader) = GraphCounters::new();
    let mut scheduler = Scheduler::new(IdleMode::Poll);
    let task = receive(&rig.near)
        .parse()
        .process(Forward, BURST)
        .send([Rc::clone(&rig.near)], BURST, counters);
    scheduler.add(Priority::PACKETS, task);
    let clock = Clock::new();
    // As many rounds as a burst has packets, so that the figure is cycles per round.
    c.bench_function("empty round", |b| {
        b.iter_custom(|turns| {
            median(&clock, turns, || {
                for _ in 0..BURST {
                    let _ = black_box(scheduler.round(clock.now()));
                }
            })
        });
    });
}

criterion_group! {
    name = graph;
    config = Criterion::default()
        .with_measurement(Cycles(Clock::new()))
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .sample_size(30);
    targets = bench_graph, bench_idle_round
}
criterion_main!(graph);
