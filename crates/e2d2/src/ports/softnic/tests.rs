//! A software NIC between a cable and queues, on one thread and on several.

use std::net::IpAddr;

use arrayvec::ArrayVec;

use super::*;
use crate::BURST;
use crate::buffer::{BufferPool, HeapBuffer, HeapPool, PacketBuffer};
use crate::flow::MaskedPort;
use crate::port::PortId;
use crate::ports::LoopbackPort;
use crate::scheduler::{Task, Work};
use crate::time::Instant;
use crate::wire::vlan::VlanTag;

type Burst = ArrayVec<HeapBuffer, BURST>;

const OURS: [u8; 4] = [10, 0, 0, 1];

/// A TCP segment over IPv4 from port `sport` to `dport` of `OURS`; the last two bytes are `number`.
fn tcp4(sport: u16, dport: u16, number: u16) -> Vec<u8> {
    let mut frame = vec![2; 12];
    frame.extend([0x08, 0, 0x45, 0, 0, 42, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 9]);
    frame.extend(OURS);
    frame.extend([sport.to_be_bytes(), dport.to_be_bytes()].concat());
    frame.extend([0; 16]);
    frame.extend(number.to_be_bytes());
    frame
}

fn tcp6(sport: u16, dport: u16) -> Vec<u8> {
    let mut frame = vec![2; 12];
    frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 20, 6, 64]);
    frame.extend([0x20; 16]);
    frame.extend([0x21; 16]);
    frame.extend([sport.to_be_bytes(), dport.to_be_bytes()].concat());
    frame.extend([0; 16]);
    frame
}

fn number_of(packet: &HeapBuffer) -> u16 {
    let data = packet.data();
    u16::from_be_bytes([data[data.len() - 2], data[data.len() - 1]])
}

/// The far end of the cable, and everything at the near end.
struct World {
    pool: HeapPool,
    far: LoopbackPort,
    nic: SoftwareNic,
    side: NicSide<LoopbackPort>,
    queues: Vec<NicQueue<HeapBuffer>>,
}

impl World {
    fn new(config: &NicConfig, cable: usize) -> Self {
        let (near, far) = LoopbackPort::pair(PortId(3), PortId(9), cable);
        let NicParts { nic, side, queues } = SoftwareNic::open(near, config).expect("within the limits");
        Self {
            pool: HeapPool::new(4096, 256),
            far,
            nic,
            side,
            queues,
        }
    }

    fn with(model: NicModel, queues: u16) -> Self {
        Self::new(&NicConfig::new(model, queues), 4096)
    }

    fn send(&mut self, frame: &[u8]) {
        let mut burst: Burst = [self.pool.take_copy(frame).expect("a buffer")].into_iter().collect();
        assert_eq!(self.far.transmit(&mut burst), 1);
    }

    fn run(&mut self) -> Work {
        self.side.run(Instant::ZERO)
    }

    fn take(&mut self, queue: usize) -> Vec<HeapBuffer> {
        let mut taken = Vec::new();
        loop {
            let mut burst = Burst::new();
            if self.queues[queue].receive(&mut burst) == 0 {
                return taken;
            }
            taken.extend(burst);
        }
    }

    /// Where a frame ends up, and the hash that it has there.
    fn queue_of(&mut self, frame: &[u8]) -> (usize, Option<u32>) {
        self.send(frame);
        let _ = self.run();
        for queue in 0..self.queues.len() {
            if let Some(packet) = self.take(queue).pop() {
                assert_eq!(packet.data(), frame);
                return (queue, packet.rx_info().rss_hash);
            }
        }
        panic!("the frame is lost");
    }
}

#[test]
fn tcp_goes_where_its_hash_says_and_all_else_to_queue_0() {
    for (model, queues) in [(NicModel::Rss, 2), (NicModel::Intel82599, 3), (NicModel::X710, 8)] {
        let mut world = World::with(model, queues);
        let rss = world.nic.rss().clone();
        let toeplitz = Toeplitz::new(&rss.key);
        assert_eq!(
            (rss.key.len(), rss.reta.len()),
            (model.key_length(), model.reta_entries().into())
        );
        let mut met = vec![false; usize::from(queues)];
        for sport in 1000..1100 {
            let hash = toeplitz.tcp4([10, 0, 0, 9], OURS, sport, 443);
            let expected = usize::from(rss.queue_of(hash));
            met[expected] = true;
            assert_eq!(world.queue_of(&tcp4(sport, 443, 0)), (expected, Some(hash)));
            let hash = toeplitz.tcp6([0x20; 16], [0x21; 16], sport, 443);
            assert_eq!(
                world.queue_of(&tcp6(sport, 443)),
                (rss.queue_of(hash).into(), Some(hash))
            );
        }
        assert!(met.iter().all(|met| *met), "100 connections meet all queues");

        let mut fragment = tcp4(1001, 443, 0);
        fragment[20] = 0x20;
        let mut later = tcp4(1001, 443, 0);
        later[21] = 1;
        let mut udp = tcp4(1001, 443, 0);
        udp[23] = 17;
        let mut extended = tcp6(1001, 443);
        extended[20] = 0;
        let cut = tcp4(1001, 443, 0)[..36].to_vec();
        for frame in [
            fragment,
            later,
            udp,
            extended,
            cut,
            vec![1; 13],
            vec![],
            tcp6(1, 2)[..54].to_vec(),
        ] {
            assert_eq!(world.queue_of(&frame), (0, None), "{frame:?}");
        }
        let counts = world.nic.counts();
        assert_eq!((counts[NicEvent::ByHash], counts[NicEvent::ByDefault]), (200, 8));
        assert_eq!(counts[NicEvent::Missed], 0);
    }
}

#[test]
fn options_and_tags_are_looked_past() {
    let mut world = World::with(NicModel::X710, 4);
    let plain = tcp4(1234, 443, 0);
    let expected = world.queue_of(&plain);
    assert!(expected.1.is_some());
    let mut options = plain.clone();
    options[14] = 0x46;
    options.splice(34..34, [1, 1, 1, 0]);
    assert_eq!(world.queue_of(&options), expected);
    let mut tagged = world.pool.take_copy(&plain).expect("a buffer");
    for _ in 0..2 {
        VlanTag::new(7).insert(&mut tagged).expect("headroom");
        let frame = tagged.data().to_vec();
        assert_eq!(world.queue_of(&frame), expected);
    }
    VlanTag::new(7).insert(&mut tagged).expect("headroom");
    let thrice = tagged.data().to_vec();
    assert_eq!(world.queue_of(&thrice), (0, None));
}

#[test]
fn rules_go_before_the_hash_until_they_are_removed() {
    let mut world = World::with(NicModel::Intel82599, 4);
    let by_hash: Vec<_> = (0..8_u16).map(|n| world.queue_of(&tcp4(443, n << 13, 0))).collect();
    let quarters = [0, 1, 2, 3].map(|quarter: u16| FlowRule {
        destination: IpAddr::from(OURS),
        port: Some(MaskedPort {
            value: quarter << 14,
            mask: 0xc000,
        }),
        queue: 3 - quarter,
    });
    world.nic.install(&quarters).expect("the card takes them");
    assert_eq!(world.nic.rules(), quarters);
    for n in 0..8_u16 {
        let (queue, hash) = world.queue_of(&tcp4(443, n << 13, 0));
        assert_eq!((queue, hash), (usize::from(3 - n / 2), by_hash[usize::from(n)].1));
    }
    let (queue, hash) = world.queue_of(&tcp6(443, 1));
    assert_eq!(
        queue,
        world.nic.rss().queue_of(hash.expect("hashed")).into(),
        "no rule is for it"
    );
    world.nic.remove_rules();
    for n in 0..8_u16 {
        assert_eq!(world.queue_of(&tcp4(443, n << 13, 0)), by_hash[usize::from(n)]);
    }
    assert_eq!(world.nic.counts()[NicEvent::ByRule], 8);
}

#[test]
fn a_refused_rule_changes_nothing() {
    let mut world = World::with(NicModel::X710, 2);
    let all = FlowRule {
        destination: IpAddr::from(OURS),
        port: None,
        queue: 1,
    };
    let part = FlowRule {
        port: Some(MaskedPort { value: 0, mask: 0x8000 }),
        ..all
    };
    let error = world.nic.install(&[all, part]).expect_err("weakened");
    assert!(error.to_string().starts_with("port 3 would take the rule"), "{error}");
    for sport in 1..50 {
        let (queue, hash) = world.queue_of(&tcp4(sport, 443, 0));
        assert_eq!(queue, world.nic.rss().queue_of(hash.expect("hashed")).into());
    }
}

#[test]
fn packets_of_a_queue_stay_in_order_and_a_full_ring_is_counted() {
    let config = NicConfig {
        rx_ring: 40,
        ..NicConfig::new(NicModel::Rss, 2)
    };
    let mut world = World::new(&config, 4096);
    for number in 0..300_u16 {
        world.send(&tcp4(number, 443, number));
    }
    while !world.run().is_none() {}
    for queue in 0..2 {
        let numbers: Vec<_> = world.take(queue).iter().map(number_of).collect();
        assert_eq!(numbers.len(), 40, "the ring's first packets");
        assert!(numbers.is_sorted());
    }
    assert_eq!(world.nic.counts()[NicEvent::Missed], 300 - 2 * 40);
    assert_eq!(
        world.pool.available(),
        world.pool.capacity(),
        "what is dropped is freed"
    );
}

#[test]
fn what_workers_send_goes_out_in_order_even_if_the_port_refuses() {
    let config = NicConfig {
        tx_ring: 64,
        ..NicConfig::new(NicModel::Rss, 3)
    };
    // The cable holds 7 packets, no multiple of anything.
    let mut world = World::new(&config, 7);
    let (mut waiting, mut out) = (Vec::new(), Vec::new());
    for queue in 0..3_u16 {
        let frames = (0..100).map(|number| world.pool.take_copy(&tcp4(queue, 443, number)).expect("a buffer"));
        waiting.push(frames.collect::<std::collections::VecDeque<_>>());
    }
    let mut refused = 0;
    for _ in 0..200 {
        for (queue, waiting) in world.queues.iter_mut().zip(&mut waiting) {
            let count = waiting.len().min(BURST);
            let mut burst: Burst = waiting.drain(..count).collect();
            queue.transmit(&mut burst);
            refused += burst.len();
            burst.into_iter().rev().for_each(|packet| waiting.push_front(packet));
        }
        let _ = world.run();
        let mut burst = Burst::new();
        world.far.receive(&mut burst);
        out.extend(burst);
    }
    assert_eq!(out.len(), 300);
    assert!(refused > 0, "a full ring refuses");
    for queue in 0..3_u16 {
        let of_queue = out.iter().filter(|packet| packet.data()[34..36] == queue.to_be_bytes());
        assert!(of_queue.map(number_of).eq(0..100), "queue {queue}");
    }
    assert_eq!(world.nic.counts()[NicEvent::Sent], 300);
}

#[test]
fn queues_work_on_other_threads() {
    const PACKETS: u16 = 20_000;
    let mut world = World::with(NicModel::Rss, 2);
    // Each worker sends back what it gets until it has seen the last packet of all, whose number is odd for one and even
    // for the other.
    let workers: Vec<_> = world
        .queues
        .drain(..)
        .map(|mut queue| {
            std::thread::spawn(move || {
                let (mut count, mut burst) = (0_usize, Burst::new());
                loop {
                    let received = queue.receive(&mut burst);
                    count += received;
                    let is_over = burst.iter().any(|packet| number_of(packet) == u16::MAX);
                    while !burst.is_empty() {
                        if queue.transmit(&mut burst) == 0 {
                            std::thread::yield_now();
                        }
                    }
                    if is_over {
                        return count;
                    }
                    if received == 0 {
                        std::thread::yield_now();
                    }
                }
            })
        })
        .collect();
    // One goodbye for each queue.
    let rss = world.nic.rss().clone();
    let toeplitz = Toeplitz::new(&rss.key);
    let port_to = |queue| (1..).find(|sport| rss.queue_of(toeplitz.tcp4([10, 0, 0, 9], OURS, *sport, 443)) == queue);
    let goodbyes = [0, 1].map(|queue| tcp4(port_to(queue).expect("a port"), 443, u16::MAX));
    let (mut sent, mut back) = (0_u16, Vec::new());
    while sent < PACKETS || world.side.is_needed_beside(None) {
        // Few enough at once that no ring overflows.
        while sent < PACKETS && usize::from(sent) < back.len() + 512 {
            world.send(&tcp4(sent, 443, sent));
            sent += 1;
            if sent == PACKETS {
                goodbyes.iter().for_each(|frame| world.send(frame));
            }
        }
        if world.run().is_none() {
            std::thread::yield_now();
        }
        let mut burst = Burst::new();
        while world.far.receive(&mut burst) > 0 {
            back.extend(burst.drain(..).map(|packet| number_of(&packet)));
        }
    }
    let counts: Vec<_> = workers
        .into_iter()
        .map(|worker| worker.join().expect("a worker"))
        .collect();
    let mut burst = Burst::new();
    while world.far.receive(&mut burst) > 0 {
        back.extend(burst.drain(..).map(|packet| number_of(&packet)));
    }
    assert_eq!(counts.iter().sum::<usize>(), usize::from(PACKETS) + 2);
    assert!(counts.iter().all(|count| *count > 1000));
    assert_eq!(world.nic.counts()[NicEvent::Missed], 0);
    back.sort_unstable();
    assert!(
        back.into_iter().eq((0..PACKETS).chain([u16::MAX; 2])),
        "all are back, none twice"
    );
    assert_eq!(world.pool.available(), world.pool.capacity());
}

#[test]
fn the_side_is_needed_until_the_others_are_gone_and_all_is_sent() {
    let mut world = World::with(NicModel::Rss, 2);
    assert!(world.side.is_needed_beside(Some(0)));
    let mut other = world.queues.pop().expect("queue 1");
    let frame = world.pool.take_copy(&tcp4(1, 2, 3)).expect("a buffer");
    other.transmit(&mut [frame].into_iter().collect());
    drop(other);
    assert!(world.side.is_needed_beside(Some(0)), "its last packet is in the ring");
    let _ = world.run();
    assert!(!world.side.is_needed_beside(Some(0)));
    assert!(world.side.is_needed_beside(None), "queue 0 is somebody's");
    let frame = world.pool.take_copy(&tcp4(1, 2, 3)).expect("a buffer");
    world.queues[0].transmit(&mut [frame].into_iter().collect());
    assert!(world.side.is_needed_beside(Some(0)), "its own last packet, too");
}

#[test]
fn a_queue_is_a_port_like_the_one_behind_it() {
    let world = World::with(NicModel::X710, 2);
    for (index, queue) in world.queues.iter().enumerate() {
        assert_eq!(usize::from(queue.index()), index);
        assert_eq!(
            (queue.id(), queue.mac(), queue.mtu()),
            (PortId(3), world.side.port().mac(), 1500)
        );
        assert!(queue.capabilities().rss_hash);
    }
}

#[test]
fn more_queues_than_the_card_has_and_rings_for_nothing_are_refused() {
    let open = |config: &NicConfig| {
        let (near, _) = LoopbackPort::<HeapBuffer>::pair(PortId(0), PortId(1), 1);
        SoftwareNic::open(near, config).map(|parts| parts.queues.len())
    };
    for (model, most) in [(NicModel::Rss, 64), (NicModel::Intel82599, 16), (NicModel::X710, 64)] {
        assert_eq!(open(&NicConfig::new(model, most)), Ok(usize::from(most)));
        for asked in [0, most + 1] {
            let error = open(&NicConfig::new(model, asked)).expect_err("refused");
            assert_eq!(error, NicError::Queues { model, asked, most });
            assert!(error.to_string().contains(&format!("1 to {most} queues, and {asked}")));
        }
    }
    let no_ring = NicConfig {
        tx_ring: 0,
        ..NicConfig::new(NicModel::Rss, 1)
    };
    assert_eq!(open(&no_ring), Err(NicError::NoRing));
}
