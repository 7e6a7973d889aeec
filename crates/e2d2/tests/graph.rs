//! Whole graphs on heap memory: packets in, packets out, and every packet accounted for.

mod common;

use std::rc::Rc;

use common::{NOW, arp_frame, collect, inject, number_of, strange_frame, tcp_frame};
use e2d2::BURST;
use e2d2::buffer::{BufferPool, HeapBuffer, HeapPool, PacketBuffer};
use e2d2::counters::{Counters, Reason};
use e2d2::fate::{DropReason, GraphCounters, GraphReader, Traffic};
use e2d2::handover;
use e2d2::operators::{
    Burst, Frame, Node, Outbox, Round, Source, Task, dequeue, from_cores, merge, merge_by_priority, receive, share,
};
use e2d2::port::PortId;
use e2d2::ports::LoopbackPort;
use e2d2::queue::Queue;
use e2d2::time::Instant;
use e2d2::wire::frame::{Kind, Packet};

/// A port of the graph and the far end of its cable, where the test sits.
struct Cable {
    near: e2d2::operators::SharedPort<LoopbackPort>,
    far: LoopbackPort,
}

fn cable(id: u8, capacity: usize) -> Cable {
    let (near, far) = LoopbackPort::pair(PortId(id), PortId(id + 100), capacity);
    Cable { near: share(near), far }
}

fn drops(reader: &GraphReader) -> Vec<(DropReason, u64)> {
    reader.drops.snapshot().nonzero().collect()
}

fn traffic(reader: &GraphReader, of: Traffic) -> u64 {
    reader.traffic.snapshot()[of]
}

/// Runs a task until it finds nothing to do.
fn settle(task: &mut impl Task) {
    for _ in 0..1_000 {
        if task.run(NOW).is_none() {
            return;
        }
    }
    panic!("the task still finds work after 1000 runs");
}

/// Swaps the Ethernet addresses and sends the frame back where it came from.
fn reflect(mut frame: Frame<HeapBuffer>) -> Frame<HeapBuffer> {
    if let Some((destination, rest)) = frame.buffer.data_mut().split_first_chunk_mut::<6>()
        && let Some(source) = rest.first_chunk_mut::<6>()
    {
        core::mem::swap(destination, source);
    }
    frame
}

#[test]
fn reflector_on_two_ports_returns_each_frame_to_its_port() {
    let mut pool = HeapPool::new(64, 128);
    let (mut left, mut right) = (cable(0, 64), cable(1, 64));
    let (counters, reader) = GraphCounters::new();
    let mut task =
        merge([receive(&left.near), receive(&right.near)])
            .map(reflect)
            .send([left.near, right.near], 0, counters);

    inject(&mut left.far, &mut pool, &[tcp_frame(1), tcp_frame(2)]);
    inject(&mut right.far, &mut pool, &[tcp_frame(3)]);
    settle(&mut task);

    let numbers = |frames: Vec<Vec<u8>>| frames.iter().map(|frame| number_of(frame)).collect::<Vec<_>>();
    let at_left = collect(&mut left.far);
    assert_eq!(at_left[0][..12], [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
    assert_eq!(numbers(at_left), [1, 2]);
    assert_eq!(numbers(collect(&mut right.far)), [3]);
    assert_eq!(
        (traffic(&reader, Traffic::Received), traffic(&reader, Traffic::Sent)),
        (3, 3)
    );
    assert_eq!(drops(&reader), []);
    assert_eq!(pool.available(), pool.capacity());
}

/// Emits three packets for each that comes in: the same and two copies, as far as there are buffers.
struct Tripler {
    pool: HeapPool,
    no_buffer: u64,
}

impl Node for Tripler {
    type Input = Packet<HeapBuffer>;
    type Output = Frame<HeapBuffer>;

    fn process(&mut self, round: &mut Round<'_>, batch: &mut Burst<Self::Input>, out: &mut Outbox<Self::Output>) {
        for packet in batch.drain(..) {
            let port = packet.port;
            for _ in 0..2 {
                match self.pool.take_copy(packet.buffer.data()) {
                    Some(buffer) => out.emit(round, Frame { buffer, port }),
                    None => self.no_buffer += 1,
                }
            }
            out.emit(round, packet.into());
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        None
    }
}

/// The conservation law, with every bounded place too small: outbox, backlog, cable and pool.
#[test]
fn every_packet_is_accounted_for_when_all_limits_are_hit() {
    for (outbox, backlog, cable_capacity) in [(256, 64, 1024), (40, 0, 30), (96, 10, 50), (1, 1, 1), (0, 5, 5)] {
        let mut pool = HeapPool::new(1024, 128);
        let mut wire = cable(0, cable_capacity);
        let mut input = cable(1, 1024);
        let (counters, reader) = GraphCounters::new();
        let tripler = Tripler {
            pool: HeapPool::new(150, 128),
            no_buffer: 0,
        };
        let copies = tripler.pool.clone();
        let mut task = receive(&input.near)
            .parse()
            .map(|packet| Packet {
                port: PortId(0),
                ..packet
            })
            .process(tripler, outbox)
            .send([wire.near], backlog, counters);

        let frames: Vec<_> = (0..200).map(tcp_frame).chain([vec![0; 13], strange_frame()]).collect();
        inject(&mut input.far, &mut pool, &frames);
        let mut sent = 0;
        for _ in 0..50 {
            settle(&mut task);
            sent += collect(&mut wire.far).len() as u64;
        }

        let case = format!("outbox {outbox}, backlog {backlog}, cable {cable_capacity}: {reader:?}");
        let dropped = reader.drops.snapshot();
        assert_eq!(traffic(&reader, Traffic::Received), 202, "{case}");
        assert_eq!(traffic(&reader, Traffic::Consumed), 201, "{case}");
        assert_eq!(traffic(&reader, Traffic::Sent), sent, "{case}");
        assert_eq!(dropped[DropReason::TooShort], 1, "{case}");
        let emitted = traffic(&reader, Traffic::Emitted);
        let lost = dropped[DropReason::OutboxFull] + dropped[DropReason::TxRefused];
        assert_eq!(emitted, sent + lost, "{case}");
        assert_eq!(dropped.total(), 1 + lost, "{case}");
        assert_eq!(reader.held(), 0, "{case}");
        assert_eq!(pool.available(), pool.capacity(), "{case}");
        assert_eq!(copies.available(), copies.capacity(), "{case}");
        assert_eq!(lost == 0, outbox == 256, "the limits were not hit: {case}");
    }
}

#[test]
fn refused_packets_wait_in_order_and_leave_when_there_is_room() {
    let mut pool = HeapPool::new(256, 128);
    let (mut wire, mut input) = (cable(0, 8), cable(1, 256));
    let (counters, reader) = GraphCounters::new();
    let mut task = receive(&input.near)
        .map(|frame| Frame {
            port: PortId(0),
            ..frame
        })
        .send([wire.near], 100, counters);

    // 8 in the cable, 32 staged, 100 in the backlog: the last 10 of 150 are lost.
    inject(&mut input.far, &mut pool, &(0..150).map(tcp_frame).collect::<Vec<_>>());
    settle(&mut task);
    assert_eq!(drops(&reader), [(DropReason::TxRefused, 10)]);
    assert_eq!(reader.held(), 132);
    let mut numbers = Vec::new();
    for _ in 0..20 {
        numbers.extend(collect(&mut wire.far).iter().map(|frame| number_of(frame)));
        settle(&mut task);
    }
    assert_eq!(numbers, (0..140).collect::<Vec<_>>());
    assert_eq!(reader.held(), 0);
    assert_eq!(pool.available(), pool.capacity());
}

#[test]
fn full_port_does_not_hold_up_another() {
    let mut pool = HeapPool::new(64, 128);
    let (full, mut free, mut input) = (cable(0, 0), cable(1, 64), cable(2, 64));
    let (counters, _reader) = GraphCounters::new();
    let mut task = receive(&input.near)
        .map(|frame| Frame {
            port: PortId((number_of(frame.buffer.data()) % 2) as u8),
            ..frame
        })
        .send([full.near, free.near], 64, counters);
    inject(&mut input.far, &mut pool, &(0..40).map(tcp_frame).collect::<Vec<_>>());
    settle(&mut task);
    assert_eq!(collect(&mut free.far).len(), 20);
}

#[test]
fn packets_without_a_way_out_are_counted() {
    let mut pool = HeapPool::new(8, 128);
    let mut input = cable(7, 8);
    let (counters, reader) = GraphCounters::new();
    let other = cable(0, 8);
    let mut task = receive(&input.near)
        .filter(|frame| frame.buffer.len() == 54)
        .send([other.near], 8, counters);
    inject(&mut input.far, &mut pool, &[tcp_frame(1), arp_frame()]);
    settle(&mut task);
    assert_eq!(
        drops(&reader),
        [(DropReason::Filtered, 1), (DropReason::UnknownPort, 1)]
    );
    assert_eq!(pool.available(), pool.capacity());
}

e2d2::reasons! {
    enum Class {
        Tcp = "tcp",
        Neighbour = "neighbour",
        Other = "other",
    }
}

fn class_of(packet: &Packet<HeapBuffer>) -> Class {
    match packet.kind {
        Kind::Tcp(_) => Class::Tcp,
        Kind::Arp | Kind::Icmpv4 { .. } | Kind::Icmpv6 { .. } => Class::Neighbour,
        Kind::Other { .. } => Class::Other,
    }
}

#[test]
fn groups_get_their_packets_and_untaken_groups_are_counted() {
    let mut pool = HeapPool::new(512, 128);
    let (mut tcp_out, mut arp_out, mut input) = (cable(0, 256), cable(1, 256), cable(2, 256));
    let (counters, reader) = GraphCounters::new();
    let groups = receive(&input.near).parse().group_by(class_of);
    let to = |port| {
        move |packet: Packet<HeapBuffer>| Packet {
            port: PortId(port),
            ..packet
        }
    };
    let tcp = groups.group(Class::Tcp).map(to(0));
    let arp = groups.group(Class::Neighbour).map(to(1));
    let mut task = merge((tcp, arp)).send([tcp_out.near, arp_out.near], 0, counters);

    let mut frames = Vec::new();
    for n in 0..60 {
        frames.extend([tcp_frame(n), arp_frame(), strange_frame()]);
    }
    inject(&mut input.far, &mut pool, &frames);
    settle(&mut task);
    let numbers: Vec<_> = collect(&mut tcp_out.far).iter().map(|frame| number_of(frame)).collect();
    assert_eq!(numbers, (0..60).collect::<Vec<_>>());
    assert_eq!(collect(&mut arp_out.far), vec![arp_frame(); 60]);
    assert_eq!(drops(&reader), [(DropReason::NoSuchGroup, 60)]);
    assert_eq!(pool.available(), pool.capacity());
}

/// A source that always has packets and counts how often it is asked.
struct Endless {
    asked: Rc<std::cell::Cell<usize>>,
}

impl Source for Endless {
    type Item = usize;

    fn pull(&mut self, round: &mut Round<'_>, max: usize, mut each: impl FnMut(&mut Round<'_>, usize)) -> usize {
        self.asked.set(self.asked.get() + 1);
        let count = max.min(BURST);
        (0..count).for_each(|n| each(round, n));
        count
    }

    fn next_deadline(&self) -> Option<Instant> {
        None
    }
}

#[test]
fn source_above_groups_is_asked_once_per_round() {
    let asked = Rc::new(std::cell::Cell::new(0));
    let source = Endless {
        asked: Rc::clone(&asked),
    };
    let groups = source.group_by(|n| Class::ALL[n % 3]);
    let (counters, reader) = GraphCounters::new();
    let mut round = Round::new(NOW, &counters);
    let mut merged = merge_by_priority(Class::ALL.iter().map(|class| groups.group(*class)).collect::<Vec<_>>());
    for rounds in 1..=5 {
        let mut got = Vec::new();
        assert_eq!(merged.pull(&mut round, usize::MAX, |_, n| got.push(n)), BURST);
        assert!(got.is_sorted_by_key(|n| n % 3), "{got:?}");
        assert_eq!(asked.get(), rounds);
    }
    assert_eq!(drops(&reader), []);
}

#[test]
fn rotating_merge_of_groups_loses_nothing_and_forgets_nobody() {
    let asked = Rc::default();
    let source = Endless {
        asked: Rc::clone(&asked),
    };
    let groups = source.group_by(|n| Class::ALL[n % 3]);
    let (counters, reader) = GraphCounters::new();
    let mut round = Round::new(NOW, &counters);
    let mut merged = merge([Class::Tcp, Class::Neighbour, Class::Other].map(|class| groups.group(class)));
    let mut got = [0; 3];
    for _ in 0..90 {
        merged.pull(&mut round, usize::MAX, |_, n| got[n % 3] += 1);
    }
    // Of each burst of 32, 11 are of the first two groups and 10 of the third; at most two bursts wait in the queues.
    let bursts = asked.get();
    assert!((80..=90).contains(&bursts), "{bursts} bursts in 90 rounds");
    for (group, share) in [11, 11, 10].into_iter().enumerate() {
        assert!(
            got[group] > share * (bursts - 3) && got[group] <= share * bursts,
            "{got:?} of {bursts} bursts"
        );
    }
    assert_eq!(drops(&reader), []);
}

/// A group that is pulled rarely holds the others up; it does not lose packets.
#[test]
fn slow_group_waits_without_loss() {
    let mut pool = HeapPool::new(1024, 128);
    let (mut output, mut input) = (cable(2, 1024), cable(2, 1024));
    let (counters, reader) = GraphCounters::new();
    let groups = receive(&input.near).parse().group_by(class_of);
    let mut fast = groups
        .group(Class::Tcp)
        .send([Rc::clone(&output.near)], 0, Rc::clone(&counters));
    let mut slow = groups
        .group(Class::Neighbour)
        .send([Rc::clone(&output.near)], 0, Rc::clone(&counters));

    let frames: Vec<_> = (0..400)
        .map(|n| if n % 2 == 0 { arp_frame() } else { tcp_frame(n) })
        .collect();
    inject(&mut input.far, &mut pool, &frames);
    settle(&mut fast);
    let before = collect(&mut output.far).len();
    assert!(
        before < 200,
        "the fast group went on although the slow one's queue was full"
    );
    for _ in 0..20 {
        settle(&mut slow);
        settle(&mut fast);
    }
    assert_eq!(before + collect(&mut output.far).len(), 400);
    assert_eq!(drops(&reader), []);
    assert_eq!(reader.held(), 0);
}

#[test]
fn merge_in_turn_is_fair_and_by_priority_is_not() {
    fn share_of_the_first(by_priority: bool) -> usize {
        let (counters, _reader) = GraphCounters::new();
        let mut round = Round::new(NOW, &counters);
        let queues = [Queue::shared(1024), Queue::shared(1024), Queue::shared(1024)];
        for (index, queue) in queues.iter().enumerate() {
            (0..1024).for_each(|_| queue.borrow_mut().push(index).expect("room"));
        }
        let sources = queues.each_ref().map(dequeue);
        let mut merged = if by_priority {
            merge_by_priority(sources)
        } else {
            merge(sources)
        };
        let mut of_the_first = 0;
        for _ in 0..30 {
            assert_eq!(
                merged.pull(&mut round, BURST, |_, index| of_the_first += usize::from(index == 0)),
                BURST
            );
        }
        of_the_first
    }
    assert_eq!(share_of_the_first(false), 10 * BURST);
    assert_eq!(share_of_the_first(true), 30 * BURST);
}

#[test]
fn lower_priority_gets_what_is_left_of_the_batch() {
    let (counters, _reader) = GraphCounters::new();
    let mut round = Round::new(NOW, &counters);
    let (urgent, bulk) = (Queue::shared(8), Queue::shared(8));
    for n in 0..8 {
        bulk.borrow_mut().push(n).expect("room");
    }
    urgent.borrow_mut().push(100).expect("room");
    let mut merged = merge_by_priority((dequeue(&urgent), dequeue(&bulk)));
    let mut got = Vec::new();
    assert_eq!(merged.pull(&mut round, 4, |_, n| got.push(n)), 4);
    assert_eq!(got, [100, 0, 1, 2]);
}

#[test]
fn partly_pulled_burst_is_given_before_the_port_is_asked_again() {
    let mut pool = HeapPool::new(64, 128);
    let mut input = cable(0, 64);
    let (counters, reader) = GraphCounters::new();
    let mut round = Round::new(NOW, &counters);
    let mut source = receive(&input.near);
    inject(&mut input.far, &mut pool, &(0..40).map(tcp_frame).collect::<Vec<_>>());
    let mut numbers = Vec::new();
    for expected in [10, 10, 10, 2, 8, 0] {
        let pulled = source.pull(&mut round, 10, |_, frame| numbers.push(number_of(frame.buffer.data())));
        assert_eq!(pulled, expected);
    }
    assert_eq!(numbers, (0..40).collect::<Vec<_>>());
    assert_eq!(traffic(&reader, Traffic::Received), 40);
}

#[test]
fn queue_between_two_tasks_drops_and_counts_what_it_refuses() {
    let mut pool = HeapPool::new(64, 128);
    let (mut input, mut output) = (cable(0, 64), cable(0, 64));
    let (counters, reader) = GraphCounters::new();
    let queue = Queue::shared(20);
    let mut filling = receive(&input.near).enqueue(Rc::clone(&queue), Rc::clone(&counters));
    let mut emptying = dequeue(&queue).send([output.near], 0, counters);
    inject(&mut input.far, &mut pool, &(0..30).map(tcp_frame).collect::<Vec<_>>());
    settle(&mut filling);
    settle(&mut emptying);
    assert_eq!(collect(&mut output.far).len(), 20);
    assert_eq!(drops(&reader), [(DropReason::QueueFull, 10)]);
    assert_eq!(
        (traffic(&reader, Traffic::ToQueue), traffic(&reader, Traffic::FromQueue)),
        (20, 20)
    );
    assert_eq!(reader.held(), 0);
    assert_eq!(pool.available(), pool.capacity());
}

/// Two cores on two threads: each owns the packets with its parity and hands the others over.
#[test]
fn packets_reach_the_core_that_owns_them() {
    fn core(link: handover::Links<Packet<HeapBuffer>>, ready: &std::sync::Barrier) -> (Vec<u32>, Counters<DropReason>) {
        let mut pool = HeapPool::new(64, 128);
        let (mut input, mut output) = (cable(0, 64), cable(0, 64));
        let (counters, reader) = GraphCounters::new();
        let owner = |packet: &Packet<HeapBuffer>| (number_of(packet.buffer.data()) % 2) as usize;
        let own = receive(&input.near).parse().hand_over(link.outgoing, owner);
        let mut task = merge((own, from_cores(link.incoming))).send([output.near], 0, counters);
        inject(&mut input.far, &mut pool, &(0..40).map(tcp_frame).collect::<Vec<_>>());
        settle(&mut task);
        ready.wait();
        settle(&mut task);
        let mut numbers: Vec<_> = collect(&mut output.far).iter().map(|frame| number_of(frame)).collect();
        numbers.sort_unstable();
        // Buffers of this core may still be in use by the other.
        ready.wait();
        assert_eq!(pool.available(), pool.capacity());
        (numbers, reader.drops.snapshot())
    }
    let ready = std::sync::Barrier::new(2);
    let results: Vec<_> = std::thread::scope(|scope| {
        let cores: Vec<_> = handover::mesh(2, 16)
            .into_iter()
            .map(|link| scope.spawn(|| core(link, &ready)))
            .collect();
        cores.into_iter().map(|core| core.join().expect("core")).collect()
    });
    for (core, (numbers, dropped)) in (0..).zip(results) {
        assert!(
            numbers.iter().all(|number| number % 2 == core),
            "core {core} got {numbers:?}"
        );
        // Of the 20 that belong to the other core, what its ring had no room for was dropped here and counted.
        let refused = dropped[DropReason::HandoverRefused];
        assert!(refused <= 4 && dropped.total() == refused, "core {core}: {dropped:?}");
        assert!((36..=40).contains(&numbers.len()), "core {core} got {}", numbers.len());
    }
}

/// Leaves every second packet in the batch.
struct Careless;

impl Node for Careless {
    type Input = Frame<HeapBuffer>;
    type Output = Frame<HeapBuffer>;

    fn process(&mut self, round: &mut Round<'_>, batch: &mut Burst<Self::Input>, out: &mut Outbox<Self::Output>) {
        let half = batch.len() / 2;
        for frame in batch.drain(..half) {
            out.emit(round, frame);
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        Some(Instant::from_millis(77))
    }
}

#[test]
fn what_a_node_leaves_is_dropped_and_counted() {
    let mut pool = HeapPool::new(64, 128);
    let (mut input, mut output) = (cable(0, 64), cable(0, 64));
    let (counters, reader) = GraphCounters::new();
    let mut task = receive(&input.near)
        .process(Careless, 64)
        .send([output.near], 0, counters);
    assert_eq!(task.next_deadline(), Some(Instant::from_millis(77)));
    inject(&mut input.far, &mut pool, &(0..10).map(tcp_frame).collect::<Vec<_>>());
    settle(&mut task);
    assert_eq!(collect(&mut output.far).len(), 5);
    assert_eq!(drops(&reader), [(DropReason::LeftByNode, 5)]);
    assert_eq!(reader.held(), 0);
    assert_eq!(pool.available(), pool.capacity());
}

#[test]
fn discard_ends_a_branch() {
    let mut pool = HeapPool::new(64, 128);
    let mut input = cable(0, 64);
    let (counters, reader) = GraphCounters::new();
    let mut task = receive(&input.near).discard(DropReason::Unwanted, counters);
    inject(&mut input.far, &mut pool, &vec![arp_frame(); 40]);
    settle(&mut task);
    assert_eq!(drops(&reader), [(DropReason::Unwanted, 40)]);
    assert_eq!(pool.available(), pool.capacity());
}

#[test]
fn dropping_a_graph_frees_what_it_holds() {
    let mut pool = HeapPool::new(64, 128);
    let (full, mut input) = (cable(0, 0), cable(0, 64));
    let (counters, reader) = GraphCounters::new();
    let mut task = receive(&input.near)
        .process(Careless, 64)
        .send([full.near], 64, counters);
    inject(&mut input.far, &mut pool, &vec![tcp_frame(0); 60]);
    settle(&mut task);
    assert_eq!(reader.held(), 30);
    assert_eq!(pool.available(), 34);
    drop(task);
    assert_eq!(pool.available(), pool.capacity());
}
