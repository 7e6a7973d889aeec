//! Crossed ring ports: the whole way of a packet without a device.

use std::thread;

use e2d2::buffer::BufferPool;
use e2d2::native::{DpdkPort, DpdkQueue, MbufPool, PortConfig, PortError, ring_pair};
use e2d2::port::{Port, PortId};

use crate::support::{Burst, eal, frame, packet, pool, receive, unique};

const IDS: [PortId; 2] = [PortId(3), PortId(4)];

fn pair(descriptors: u16, left: &[&MbufPool], right: &[&MbufPool]) -> [(DpdkPort, Vec<DpdkQueue>); 2] {
    ring_pair(&eal(), &unique("pair"), IDS, descriptors, 1500, [left, right]).expect("rings fit into memory")
}

#[test]
fn packets_cross_with_their_contents_intact_on_every_queue() {
    let (mut left_pool, right_pool) = (pool(1023, 1500), pool(1023, 1500));
    {
        let [(left, mut left_queues), (right, mut right_queues)] =
            pair(256, &[&left_pool, &left_pool], &[&right_pool, &right_pool]);
        assert_eq!((left.id(), right.id()), (PortId(3), PortId(4)));
        assert!(left.is_link_up() && right.is_link_up());
        for queue in 0..2 {
            let base = queue as u32 * 1000;
            for len in [60, 64, 1514, 1522] {
                let mut burst: Burst = (0..32)
                    .map(|number| packet(&mut left_pool, &frame(base + number, len)))
                    .collect();
                assert_eq!(left_queues[queue].transmit(&mut burst), 32);
                assert!(burst.is_empty());
                let expected: Vec<_> = (0..32).map(|number| frame(base + number, len)).collect();
                assert_eq!(receive(&mut right_queues[queue], 32), expected);
            }
        }
        let mut back: Burst = std::iter::once(packet(&mut left_pool, &frame(9, 60))).collect();
        assert_eq!(right_queues[1].transmit(&mut back), 1);
        assert_eq!(receive(&mut left_queues[1], 1), [frame(9, 60)]);
        let mut other = Burst::new();
        assert_eq!(left_queues[0].receive(&mut other), 0, "queues do not mix");
        assert_eq!((left.stats().tx_packets, right.stats().rx_packets), (256, 256));
        assert_eq!((left.stats().rx_packets, right.stats().tx_packets), (1, 1));
    }
    assert_eq!((left_pool.in_use(), right_pool.in_use()), (0, 0));
}

#[test]
fn refused_packets_stay_in_order() {
    let mut pool = pool(255, 1500);
    {
        // 63 fit into a ring of 64.
        let [(_, mut left), (_, mut right)] = pair(63, &[&pool], &[&pool]);
        let mut numbers = 0..;
        let mut burst = |pool: &mut MbufPool| -> Burst {
            numbers
                .by_ref()
                .take(32)
                .map(|number| packet(pool, &frame(number, 60)))
                .collect()
        };
        let mut first = burst(&mut pool);
        assert_eq!(left[0].transmit(&mut first), 32);
        let mut second = burst(&mut pool);
        assert_eq!(left[0].transmit(&mut second), 31);
        assert_eq!(second.len(), 1);
        assert_eq!(left[0].transmit(&mut second), 0, "the ring is full");
        assert_eq!(
            receive(&mut right[0], 63),
            (0..63).map(|number| frame(number, 60)).collect::<Vec<_>>()
        );
        assert_eq!(left[0].transmit(&mut second), 1);
        assert_eq!(receive(&mut right[0], 1), [frame(63, 60)]);
        assert_eq!(left[0].transmit(&mut second), 0, "nothing is left to send");
    }
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn a_burst_is_filled_up_and_no_more() {
    let mut pool = pool(255, 1500);
    let [(_, mut left), (_, mut right)] = pair(63, &[&pool], &[&pool]);
    let mut burst: Burst = (0..32).map(|number| packet(&mut pool, &frame(number, 60))).collect();
    left[0].transmit(&mut burst);
    let mut into: Burst = (100..130).map(|number| packet(&mut pool, &frame(number, 60))).collect();
    assert_eq!(right[0].receive(&mut into), 2);
    assert_eq!((into.len(), right[0].receive(&mut into)), (32, 0));
    assert_eq!(receive(&mut right[0], 30).len(), 30);
}

#[test]
fn what_is_under_way_goes_back_to_its_pool_when_the_ports_close() {
    let mut left_pool = pool(255, 1500);
    let right_pool = pool(255, 1500);
    for first_closed in 0..2 {
        let mut sides = pair(63, &[&left_pool], &[&right_pool]).map(Some);
        for side in sides.iter_mut().flatten() {
            let mut burst: Burst = (0..20)
                .map(|number| packet(&mut left_pool, &frame(number, 60)))
                .collect();
            assert_eq!(side.1[0].transmit(&mut burst), 20);
        }
        assert_eq!(left_pool.in_use(), 40);
        sides[first_closed] = None;
        sides[1 - first_closed] = None;
        assert_eq!(left_pool.in_use(), 0);
    }
}

#[test]
fn a_queue_keeps_its_port_open() {
    let mut pool = pool(255, 1500);
    let [(left, mut left_queues), (right, mut right_queues)] = pair(63, &[&pool], &[&pool]);
    drop((left, right));
    let mut burst: Burst = std::iter::once(packet(&mut pool, &frame(1, 60))).collect();
    assert_eq!(left_queues[0].transmit(&mut burst), 1);
    assert_eq!(receive(&mut right_queues[0], 1), [frame(1, 60)]);
}

#[test]
fn queues_work_on_other_threads() {
    const COUNT: u32 = 50_000;
    let (mut from, to) = (pool(1023, 1500), pool(255, 1500));
    {
        let [(_, mut left), (_, mut right)] = pair(255, &[&from], &[&to]);
        let sender = thread::spawn(move || {
            let _thread = eal().register_thread().expect("an lcore id is left");
            let mut burst = Burst::new();
            let mut next = 0;
            while next < COUNT || !burst.is_empty() {
                while next < COUNT && !burst.is_full() {
                    let Some(packet) = from.take_copy(&frame(next, 60)) else {
                        break;
                    };
                    burst.push(packet);
                    next += 1;
                }
                if left[0].transmit(&mut burst) == 0 {
                    thread::yield_now();
                }
            }
            from
        });
        let _thread = eal().register_thread().expect("an lcore id is left");
        let mut expected = 0;
        while expected < COUNT {
            for packet in receive(&mut right[0], 1) {
                assert_eq!(packet, frame(expected, 60));
                expected += 1;
            }
        }
        from = sender.join().expect("the sender ends");
    }
    assert_eq!((from.in_use(), to.in_use()), (0, 0));
}

#[test]
fn a_single_ring_port_hears_itself_and_can_be_opened_again() {
    let mut pool = pool(255, 1500);
    for _ in 0..3 {
        let config = PortConfig::new(PortId(0), "net_ring_self".parse().expect("a device"));
        let (port, mut queues) = DpdkPort::open(&eal(), &config, &[&pool, &pool]).expect("a ring port");
        assert_eq!((port.driver(), queues.len()), ("net_ring", 2));
        let again = DpdkPort::open(&eal(), &config, &[&pool]).expect_err("it is open already");
        assert!(
            matches!(
                again,
                PortError::Attach { .. } | PortError::Setup { .. } | PortError::InUse { .. }
            ),
            "{again}"
        );
        let mut burst: Burst = std::iter::once(packet(&mut pool, &frame(5, 60))).collect();
        assert_eq!(queues[1].transmit(&mut burst), 1);
        assert_eq!(receive(&mut queues[1], 1), [frame(5, 60)]);
    }
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn buffers_must_hold_a_frame_of_the_mtu() {
    let pool = pool(255, 1500);
    let device = || "net_ring_mtu".parse().expect("a device");
    let config = PortConfig {
        mtu: 1767,
        ..PortConfig::new(PortId(0), device())
    };
    assert!(matches!(
        DpdkPort::open(&eal(), &config, &[&pool]),
        Err(PortError::DataRoom {
            needed: 3072,
            actual: 2048,
            ..
        })
    ));
    let config = PortConfig {
        mtu: 1766,
        ..PortConfig::new(PortId(0), device())
    };
    DpdkPort::open(&eal(), &config, &[&pool]).expect("frames of this MTU fit");
    assert!(matches!(
        DpdkPort::open(&eal(), &config, &[]),
        Err(PortError::Queues { asked: 0, .. })
    ));
}

/// DPDK's own list of devices is not made for several threads: without our lock one of them loses its device now and then.
#[test]
fn ports_come_and_go_on_several_threads_at_once() {
    let threads: Vec<_> = (0..4)
        .map(|_| {
            std::thread::spawn(|| {
                let pool = pool(255, 1500);
                for _ in 0..1000 {
                    let config =
                        PortConfig::new(PortId(0), format!("net_null_{}", unique("n")).parse().expect("a name"));
                    DpdkPort::open(&eal(), &config, &[&pool]).unwrap_or_else(|error| panic!("{error}"));
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().expect("every port opened");
    }
}
