//! No operator allocates once the graph is built: counted by the allocator itself.

mod common;

use std::rc::Rc;

use common::{NOW, arp_frame, collect, inject, strange_frame, tcp_frame};
use e2d2::buffer::{BufferPool, HeapBuffer, HeapPool};
use e2d2::fate::GraphCounters;
use e2d2::operators::{Burst, Frame, Node, Outbox, Round, Source, merge, merge_by_priority, receive, share};
use e2d2::port::PortId;
use e2d2::ports::{LoopbackPort, VlanPort};
use e2d2::scheduler::{IdleMode, Priority, Scheduler};
use e2d2::time::Instant;
use e2d2::wire::frame::{Kind, Packet};

mod counting;

e2d2::reasons! {
    enum Class {
        Tcp = "tcp",
        Other = "other",
    }
}

struct Forward;

impl Node for Forward {
    type Input = Packet<HeapBuffer>;
    type Output = Frame<HeapBuffer>;

    fn process(&mut self, round: &mut Round<'_>, batch: &mut Burst<Self::Input>, out: &mut Outbox<Self::Output>) {
        for packet in batch.drain(..) {
            out.emit(round, packet.into());
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        None
    }
}

/// Every operator at least once, with an outbox that overflows and a port that refuses.
#[test]
fn running_graph_does_not_allocate() {
    let (counters, reader) = GraphCounters::new();
    let (near, mut far) = LoopbackPort::pair(PortId(0), PortId(1), 64);
    let (tight, _tight_far) = LoopbackPort::pair(PortId(2), PortId(3), 8);
    let (quiet, _quiet_far) = LoopbackPort::pair(PortId(6), PortId(7), 8);
    let (near, tight, quiet) = (share(near), share(tight), share(quiet));
    let (vlan, _vlan_far) = LoopbackPort::<HeapBuffer>::pair(PortId(4), PortId(5), 8);
    let vlan = share(VlanPort::new(vlan, 7.try_into().expect("a VLAN"), Rc::clone(&counters)));

    let groups = merge([receive(&near), receive(&quiet)])
        .parse()
        .filter(|packet| !matches!(packet.kind, Kind::Other { .. }))
        .group_by(|packet| match packet.kind {
            Kind::Tcp(_) => Class::Tcp,
            _ => Class::Other,
        });
    let tcp = groups.group(Class::Tcp).process(Forward, 10);
    let other = groups.group(Class::Other).map(Frame::from);
    let mut scheduler = Scheduler::new(IdleMode::Poll);
    let out = merge_by_priority((tcp, other)).map(|frame| Frame {
        port: PortId(2),
        ..frame
    });
    scheduler.add(Priority::PACKETS, out.send([tight], 8, Rc::clone(&counters)));
    scheduler.add(Priority::BACKGROUND, receive(&vlan).send([vlan], 8, counters));

    let mut pool = HeapPool::new(64, 128);
    let frames: Vec<_> = (0..64)
        .map(|n| match n % 4 {
            0 => arp_frame(),
            1 => strange_frame(),
            _ => tcp_frame(n),
        })
        .collect();
    let mut allocations = 0;
    for _ in 0..20 {
        let free = pool.available();
        inject(&mut far, &mut pool, &frames[..free.min(64)]);
        let before = counting::allocations();
        for _ in 0..10 {
            let _ = scheduler.round(NOW);
        }
        allocations += counting::allocations() - before;
        collect(&mut far);
    }
    let dropped: Vec<_> = reader
        .drops
        .snapshot()
        .nonzero()
        .map(|(reason, _)| reason.to_string())
        .collect();
    assert_eq!(dropped, ["filtered", "outbox_full", "tx_refused"]);
    assert_eq!(allocations, 0);
}
