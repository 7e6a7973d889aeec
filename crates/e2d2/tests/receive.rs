//! `receive`: what is taken ahead of a port, and that nobody but the cache is told of it.

mod common;

use std::collections::VecDeque;

use common::{NOW, cable, collect, inject, number_of, settle, tcp_frame, traffic};
use e2d2::BURST;
use e2d2::buffer::{BufferPool, HeapBuffer, HeapPool, PacketBuffer};
use e2d2::fate::{GraphCounters, Traffic};
use e2d2::operators::{Round, Source, Task, merge, receive, share};
use e2d2::port::{Capabilities, Port, PortId};
use e2d2::wire::MacAddr;
use proptest::collection::vec;
use proptest::prelude::*;

fn frames(numbers: std::ops::Range<u32>) -> Vec<Vec<u8>> {
    numbers.map(tcp_frame).collect()
}

/// Pulls from a port at which 80 packets wait: at most `max`, and then so many are to be given and to have been received
/// so far. All come, in order.
#[track_caller]
fn pull_all(pulls: &[(usize, usize, u64)]) {
    let mut pool = HeapPool::new(128, 128);
    let mut input = cable(0, 128);
    let (counters, reader) = GraphCounters::new();
    let mut source = receive(&input.near);
    inject(&mut input.far, &mut pool, &frames(0..80));
    let mut numbers = Vec::new();
    for &(max, given, received) in pulls {
        let mut round = Round::new(NOW, &counters);
        let pulled = source.pull(&mut round, max, |_, frame| {
            numbers.push(number_of(frame.buffer.data()));
        });
        assert_eq!((pulled, traffic(&reader, Traffic::Received)), (given, received));
        // Only what is given is work: whoever has packets ahead has also given some, and goes on at once.
        assert_eq!(round.work().count() as usize, given);
    }
    assert_eq!(numbers, (0..80).collect::<Vec<_>>());
}

#[test]
fn next_burst_is_taken_ahead_of_a_port_that_had_a_whole_one() {
    // None is asked for ahead where less than a burst was there.
    pull_all(&[(BURST, 32, 64), (BURST, 32, 80), (BURST, 16, 80), (BURST, 0, 80)]);
}

#[test]
fn nothing_is_taken_ahead_while_a_pull_leaves_something() {
    pull_all(&[(20, 20, 32), (20, 20, 64), (20, 20, 64), (20, 20, 80)]);
}

proptest! {
    /// A model that takes nothing ahead: each round gives the same packets, and says the same of the port.
    #[test]
    fn rounds_are_what_they_would_be_without(arrivals in vec(0..70_usize, 1..60)) {
        let mut pool = HeapPool::new(4096, 128);
        let mut input = cable(0, 4096);
        let (counters, _reader) = GraphCounters::new();
        let mut source = receive(&input.near);
        let (mut waiting, mut next) = (VecDeque::new(), 0);
        // Two more of nothing: what was taken ahead comes out, and then the port is known to be empty.
        for arrived in arrivals.into_iter().chain([0; 2]) {
            let new = next..next + arrived as u32;
            next = new.end;
            waiting.extend(new.clone());
            inject(&mut input.far, &mut pool, &frames(new));
            let is_backlogged = waiting.len() >= BURST;
            let expected: Vec<u32> = waiting.drain(..BURST.min(waiting.len())).collect();
            let mut round = Round::new(NOW, &counters);
            let mut given = Vec::new();
            source.pull(&mut round, BURST, |_, frame| given.push(number_of(frame.buffer.data())));
            prop_assert_eq!(given, expected);
            prop_assert_eq!(round.is_backlogged(), is_backlogged);
        }
    }
}

#[test]
fn two_ports_that_always_have_packets_get_the_same_share() {
    let mut pool = HeapPool::new(1024, 128);
    let (mut left, mut right) = (cable(0, 512), cable(1, 512));
    let (counters, _reader) = GraphCounters::new();
    let mut source = merge([receive(&left.near), receive(&right.near)]);
    for cable in [&mut left, &mut right] {
        inject(&mut cable.far, &mut pool, &frames(0..512));
    }
    let mut given = [0; 2];
    for _ in 0..12 {
        let mut round = Round::new(NOW, &counters);
        source.pull(&mut round, BURST, |_, frame| given[usize::from(frame.port.0)] += 1);
        assert!(round.is_backlogged());
    }
    assert_eq!(given, [6 * BURST; 2]);
}

#[test]
fn port_with_few_packets_waits_no_longer_beside_one_that_always_has_some() {
    let mut pool = HeapPool::new(1024, 128);
    let (mut busy, mut quiet) = (cable(0, 512), cable(1, 512));
    let (counters, _reader) = GraphCounters::new();
    let mut source = merge([receive(&busy.near), receive(&quiet.near)]);
    inject(&mut busy.far, &mut pool, &frames(0..512));
    let pull = |source: &mut _| {
        let mut from_quiet = 0;
        let mut round = Round::new(NOW, &counters);
        Source::pull(
            source,
            &mut round,
            BURST,
            |_, frame: e2d2::operators::Frame<HeapBuffer>| {
                from_quiet += u32::from(frame.port == PortId(1));
            },
        );
        from_quiet
    };
    for _ in 0..5 {
        inject(&mut quiet.far, &mut pool, &frames(0..3));
        assert_eq!(pull(&mut source) + pull(&mut source), 3);
    }
}

/// A port that says how many buffers of its memory are out when it is closed.
struct Owner {
    inner: e2d2::ports::LoopbackPort,
    memory: HeapPool,
    out_at_close: std::rc::Rc<std::cell::Cell<Option<usize>>>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.out_at_close
            .set(Some(self.memory.capacity() - self.memory.available()));
    }
}

impl Port for Owner {
    type Buffer = HeapBuffer;

    fn id(&self) -> PortId {
        self.inner.id()
    }

    fn mac(&self) -> MacAddr {
        self.inner.mac()
    }

    fn mtu(&self) -> u16 {
        self.inner.mtu()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn receive(&mut self, into: &mut arrayvec::ArrayVec<HeapBuffer, BURST>) -> usize {
        self.inner.receive(into)
    }

    fn transmit(&mut self, from: &mut arrayvec::ArrayVec<HeapBuffer, BURST>) -> usize {
        self.inner.transmit(from)
    }
}

#[test]
fn what_was_taken_ahead_comes_back_before_the_port_is_closed() {
    let mut pool = HeapPool::new(64, 128);
    let (inner, mut far) = e2d2::ports::LoopbackPort::pair(PortId(0), PortId(1), 64);
    let out_at_close = std::rc::Rc::default();
    let port = share(Owner {
        inner,
        memory: pool.clone(),
        out_at_close: std::rc::Rc::clone(&out_at_close),
    });
    let mut output = cable(0, 64);
    let (counters, reader) = GraphCounters::new();
    let mut task = receive(&port)
        .map(|frame| frame)
        .send([output.near.clone()], 0, counters);
    drop(port);
    inject(&mut far, &mut pool, &frames(0..40));
    let _ = task.run(NOW);
    assert_eq!(collect(&mut output.far).len(), BURST);
    assert_eq!((reader.held(), pool.available()), (8, 64 - 8), "what is ahead is held");
    drop(task);
    assert_eq!(out_at_close.get(), Some(0));
    assert_eq!(pool.available(), pool.capacity());
}

#[test]
fn task_finds_work_until_what_was_taken_ahead_is_out() {
    let mut pool = HeapPool::new(128, 128);
    let (mut input, mut output) = (cable(0, 128), cable(0, 128));
    let (counters, reader) = GraphCounters::new();
    let mut task = receive(&input.near).send([output.near], 0, counters);
    for count in [31, 32, 33, 64, 65, 96, 128] {
        inject(&mut input.far, &mut pool, &frames(0..count));
        settle(&mut task);
        assert_eq!(collect(&mut output.far).len(), count as usize);
        assert_eq!(reader.held(), 0);
    }
    assert_eq!(pool.available(), pool.capacity());
}
