//! A software NIC in front of a ring port: mbufs change threads and come home.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use e2d2::buffer::PacketBuffer;
use e2d2::flow::{FlowRule, NicModel};
use e2d2::native::ring_pair;
use e2d2::port::{Port, PortId};
use e2d2::ports::{NicConfig, NicEvent, NicParts, SoftwareNic};
use e2d2::rss::Toeplitz;
use e2d2::scheduler::Task;
use e2d2::time::Instant;

use crate::support::{Burst, eal, packet, pool, unique};

/// A TCP segment from 10.0.0.9 to 10.0.0.1:443; its last four bytes are `number`.
fn segment(sport: u16, number: u32) -> Vec<u8> {
    let mut frame = vec![2; 12];
    frame.extend([
        0x08, 0, 0x45, 0, 0, 44, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 9, 10, 0, 0, 1,
    ]);
    frame.extend([sport.to_be_bytes(), 443_u16.to_be_bytes()].concat());
    frame.extend([0; 16]);
    frame.extend(number.to_be_bytes());
    frame
}

#[test]
fn mbufs_cross_threads_with_their_hash_and_are_not_lost() {
    const PACKETS: u32 = 5_000;
    let (mut far_pool, near_pool) = (pool(4095, 1500), pool(4095, 1500));
    {
        let name = unique("softnic");
        let ids = [PortId(0), PortId(1)];
        let [near, far] = ring_pair(&eal(), &name, ids, 1024, 1500, [&[&near_pool], &[&far_pool]]).expect("rings");
        let (_near_port, mut near) = near;
        let (_far_port, mut far) = far;
        let (near, mut far) = (near.remove(0), far.remove(0));
        let NicParts {
            mut nic,
            mut side,
            queues,
        } = SoftwareNic::open(near, &NicConfig::new(NicModel::X710, 2)).expect("within the limits");
        let (rss, stop) = (nic.rss().clone(), Arc::new(AtomicBool::new(false)));
        let workers: Vec<_> = queues
            .into_iter()
            .map(|mut queue| {
                let (rss, stop) = (rss.clone(), Arc::clone(&stop));
                std::thread::spawn(move || {
                    let _registered = eal().register_thread().expect("an lcore id");
                    let toeplitz = Toeplitz::new(&rss.key);
                    let (mut burst, mut strangers) = (Burst::new(), 0);
                    while !stop.load(Ordering::Relaxed) {
                        if queue.receive(&mut burst) == 0 {
                            std::thread::yield_now();
                        }
                        for packet in &burst {
                            let data = packet.data();
                            let sport = u16::from_be_bytes([data[34], data[35]]);
                            let hash = toeplitz.tcp4([10, 0, 0, 9], [10, 0, 0, 1], sport, 443);
                            assert_eq!(packet.rx_info().rss_hash, Some(hash));
                            strangers += u32::from(rss.queue_of(hash) != queue.index());
                        }
                        while !burst.is_empty() {
                            queue.transmit(&mut burst);
                        }
                    }
                    strangers
                })
            })
            .collect();
        let (mut sent, mut back) = (0, Vec::new());
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while back.len() < PACKETS as usize && std::time::Instant::now() < deadline {
            // Half of the packets go where a rule says, whatever their hash is.
            if sent == PACKETS / 2 && back.len() == sent as usize {
                let rule = FlowRule {
                    destination: IpAddr::from([10, 0, 0, 1]),
                    port: None,
                    queue: 1,
                };
                nic.install(&[rule]).expect("the card takes it");
            }
            let most = if back.len() < PACKETS as usize / 2 {
                PACKETS / 2
            } else {
                PACKETS
            };
            let mut burst = Burst::new();
            while sent < most && !burst.is_full() && (sent as usize) < back.len() + 512 {
                burst.push(packet(&mut far_pool, &segment(sent as u16, sent)));
                sent += 1;
            }
            while !burst.is_empty() {
                far.transmit(&mut burst);
            }
            let _ = side.run(Instant::ZERO);
            while far.receive(&mut burst) > 0 {
                back.extend(burst.drain(..).map(|packet| {
                    let data = packet.data();
                    u32::from_be_bytes([data[54], data[55], data[56], data[57]])
                }));
            }
            std::thread::yield_now();
        }
        stop.store(true, Ordering::Relaxed);
        let strangers: Vec<u32> = workers
            .into_iter()
            .map(|worker| worker.join().expect("a worker"))
            .collect();
        back.sort_unstable();
        assert!(back.into_iter().eq(0..PACKETS), "all are back, none twice");
        assert_eq!(strangers[0], 0, "the rule leads to the other");
        let counts = nic.counts();
        assert_eq!(counts[NicEvent::ByRule], u64::from(PACKETS / 2));
        assert_eq!(counts[NicEvent::ByHash], u64::from(PACKETS / 2));
        assert!(u64::from(strangers[1]) < counts[NicEvent::ByRule] && strangers[1] > 0);
        assert_eq!(counts[NicEvent::Missed], 0);
    }
    assert_eq!((far_pool.in_use(), near_pool.in_use()), (0, 0));
}

#[test]
fn a_hash_can_be_taken_back() {
    let mut pool = pool(63, 1500);
    let mut mbuf = packet(&mut pool, &segment(1, 1));
    assert_eq!(mbuf.rx_info().rss_hash, None);
    mbuf.set_rss_hash(Some(0xdead_beef));
    assert_eq!(mbuf.rx_info().rss_hash, Some(0xdead_beef));
    mbuf.set_rss_hash(None);
    assert_eq!(mbuf.rx_info().rss_hash, None);
}
