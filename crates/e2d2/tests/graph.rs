//! Operators on heap memory: packets in, packets out.

mod common;

use common::{NOW, arp_frame, cable, collect, drops, inject, number_of, settle, tcp_frame, traffic};
use e2d2::buffer::{BufferPool, HeapBuffer, HeapPool, PacketBuffer};
use e2d2::fate::{DropReason, GraphCounters, Traffic};
use e2d2::operators::{Burst, Frame, Node, Outbox, Round, Source, Task, merge, receive};
use e2d2::port::PortId;
use e2d2::time::Instant;

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

#[test]
fn partly_pulled_burst_is_given_before_what_the_port_gives_next() {
    let mut pool = HeapPool::new(64, 128);
    let mut input = cable(0, 64);
    let (counters, reader) = GraphCounters::new();
    let mut round = Round::new(NOW, &counters);
    let mut source = receive(&input.near);
    inject(&mut input.far, &mut pool, &(0..40).map(tcp_frame).collect::<Vec<_>>());
    let mut numbers = Vec::new();
    for expected in [10, 10, 10, 10, 0] {
        let pulled = source.pull(&mut round, 10, |_, frame| numbers.push(number_of(frame.buffer.data())));
        assert_eq!(pulled, expected);
    }
    assert_eq!(numbers, (0..40).collect::<Vec<_>>());
    assert_eq!(traffic(&reader, Traffic::Received), 40);
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
