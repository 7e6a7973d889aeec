//! Conservation: every packet that enters a graph leaves it or is held by it, whatever limits are hit.

mod common;

use common::{arp_frame, cable, collect, inject, number_of, settle, strange_frame, tcp_frame, traffic};
use e2d2::buffer::{BufferPool, HeapBuffer, HeapPool, PacketBuffer};
use e2d2::fate::{DropReason, GraphCounters, Traffic};
use e2d2::operators::{Burst, Frame, Node, Outbox, Round, Source, merge, receive};
use e2d2::port::PortId;
use e2d2::time::Instant;
use e2d2::wire::frame::{Kind, Packet};
use proptest::collection::vec;
use proptest::prelude::*;

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

e2d2::reasons! {
    enum Class {
        Tcp = "tcp",
        Other = "other",
    }
}

/// What happens to a graph in one step of a random history.
#[derive(Clone, Debug)]
enum Step {
    /// This many TCP segments arrive, and then a frame that is none.
    Arrive(usize),
    /// The task runs.
    Run,
    /// The other end of the output takes what is there.
    Take,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (1..40_usize).prop_map(Step::Arrive),
        Just(Step::Run),
        Just(Step::Run),
        Just(Step::Take)
    ]
}

proptest! {
    /// A graph of all kinds of operators, with limits and a history drawn at random: nothing is lost uncounted, TCP
    /// segments stay in order, and all buffers come back.
    #[test]
    fn random_histories_lose_nothing(
        outbox in 0..200_usize,
        backlog in 0..100_usize,
        capacity in 0..100_usize,
        copies in 0..100_usize,
        history in vec(step(), 1..60),
    ) {
        let mut pool = HeapPool::new(2048, 128);
        let copy_pool = HeapPool::new(copies, 128);
        let (mut wire, mut input) = (cable(0, capacity), cable(1, 2048));
        let (counters, reader) = GraphCounters::new();
        let groups = receive(&input.near).parse().group_by(|packet| match packet.kind {
            Kind::Tcp(_) => Class::Tcp,
            _ => Class::Other,
        });
        let tripler = Tripler { pool: copy_pool.clone(), no_buffer: 0 };
        let tcp = groups.group(Class::Tcp).map(|packet| Packet { port: PortId(0), ..packet }).process(tripler, outbox);
        let other = groups.group(Class::Other).filter(|packet| packet.kind == Kind::Arp).map(Frame::from);
        let mut task = merge((tcp, other)).send([wire.near.clone()], backlog, counters);

        let (mut next, mut injected, mut taken) = (0, 0, Vec::new());
        for step in history {
            match step {
                Step::Arrive(count) => {
                    let mut frames: Vec<_> = (next..).take(count).map(tcp_frame).collect();
                    frames.push(if next % 2 == 0 { arp_frame() } else { strange_frame() });
                    next += count as u32;
                    // Beyond that the cable and its pool are full.
                    if injected + frames.len() > 2048 {
                        break;
                    }
                    injected += frames.len();
                    inject(&mut input.far, &mut pool, &frames);
                }
                Step::Run => {
                    let _ = e2d2::operators::Task::run(&mut task, common::NOW);
                }
                Step::Take => taken.extend(collect(&mut wire.far)),
            }
            prop_assert!(reader.held() >= 0, "{:?}", reader);
        }
        for _ in 0..200 {
            settle(&mut task);
            taken.extend(collect(&mut wire.far));
        }
        prop_assert_eq!(traffic(&reader, Traffic::Received), injected as u64);
        prop_assert_eq!(traffic(&reader, Traffic::Sent), taken.len() as u64);
        prop_assert!(taken.iter().map(|frame| number_of(frame)).is_sorted(), "reordered");
        if capacity > 0 {
            prop_assert_eq!(reader.held(), 0);
        }
        drop((task, groups, wire, input));
        prop_assert_eq!(pool.available(), pool.capacity());
        prop_assert_eq!(copy_pool.available(), copy_pool.capacity());
    }
}
