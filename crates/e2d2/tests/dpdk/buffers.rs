//! `Mbuf` and `MbufPool`: room at both ends, counts, and packets that end on another thread.

use std::thread;

use e2d2::buffer::{BufferPool, NoRoom, PacketBuffer, RxInfo};
use e2d2::native::{MbufPool, PoolError};

use crate::support::{eal, frame, packet, pool, unique};

#[test]
fn a_new_buffer_is_empty_with_room_at_both_ends() {
    let mut pool = pool(127, 1500);
    let packet = pool.take().expect("a full pool");
    assert_eq!((packet.len(), packet.headroom(), packet.tailroom()), (0, 128, 2048));
    assert_eq!(packet.rx_info(), RxInfo::default());
}

#[test]
fn prepending_stops_at_the_headroom() {
    let mut pool = pool(127, 1500);
    let mut packet = packet(&mut pool, &[7; 10]);
    assert_eq!(packet.prepend(129), Err(NoRoom));
    assert_eq!(packet.data(), [7; 10]);
    assert_eq!(packet.prepend(128), Ok(()));
    assert_eq!(packet.headroom(), 0);
    assert_eq!(&packet.data()[..128], [0; 128]);
    assert_eq!(&packet.data()[128..], [7; 10]);
    assert_eq!(packet.prepend(1), Err(NoRoom));
    assert_eq!(packet.prepend(0), Ok(()));
}

#[test]
fn appending_stops_at_the_tailroom() {
    let mut pool = pool(127, 1500);
    let mut packet = packet(&mut pool, &[7; 48]);
    assert_eq!(packet.append(2001), Err(NoRoom));
    assert_eq!(packet.append(2000), Ok(()));
    assert_eq!((packet.len(), packet.tailroom()), (2048, 0));
    assert!(packet.data()[48..].iter().all(|&byte| byte == 0));
    assert_eq!(packet.append(1), Err(NoRoom));
}

#[test]
fn what_is_put_in_is_zeroed_even_over_old_bytes() {
    let mut pool = pool(127, 1500);
    let mut packet = packet(&mut pool, &[7; 100]);
    packet.trim_front(50);
    packet.truncate(30);
    packet.prepend(50).expect("the room just made");
    packet.append(20).expect("the room just made");
    assert_eq!(packet.data(), [[0; 50].as_slice(), &[7; 30], &[0; 20]].concat());
}

#[test]
fn trimming_is_clamped() {
    let mut pool = pool(127, 1500);
    let mut packet = packet(&mut pool, &[1, 2, 3, 4]);
    packet.truncate(5);
    assert_eq!(packet.data(), [1, 2, 3, 4]);
    packet.truncate(3);
    packet.trim_front(1);
    assert_eq!((packet.data(), packet.headroom()), ([2, 3].as_slice(), 129));
    packet.trim_front(usize::MAX);
    assert_eq!((packet.len(), packet.headroom()), (0, 131));
    packet.truncate(0);
    assert!(packet.is_empty());
}

#[test]
fn a_pool_gives_what_it_has_and_counts_it() {
    for registered in [false, true] {
        let _thread = registered.then(|| eal().register_thread().expect("an lcore id is left"));
        let mut pool = pool(255, 1500);
        assert_eq!((pool.capacity(), pool.available(), pool.in_use()), (255, 255, 0));
        let mut taken = Vec::new();
        taken.extend(std::iter::from_fn(|| pool.take()));
        assert_eq!(
            (taken.len(), pool.available(), pool.in_use()),
            (255, 0, 255),
            "registered: {registered}"
        );
        taken.truncate(100);
        assert_eq!(pool.in_use(), 100);
        drop(taken);
        assert_eq!(pool.available(), 255);
    }
}

#[test]
fn buffers_are_distinct_and_come_back_empty() {
    let _thread = eal().register_thread().expect("an lcore id is left");
    let mut pool = pool(511, 1500);
    for round in 0..3 {
        let mut packets: Vec<_> = (0..511).map(|number| packet(&mut pool, &frame(number, 60))).collect();
        for (number, packet) in packets.iter().enumerate() {
            assert_eq!(packet.data(), frame(number as u32, 60), "round {round}");
        }
        packets.iter_mut().for_each(|packet| packet.trim_front(20));
    }
}

#[test]
fn packets_may_end_on_another_thread() {
    let _here = eal().register_thread().expect("an lcore id is left");
    let mut pool = pool(1023, 1500);
    for registered in [false, true] {
        for _ in 0..4 {
            let packets: Vec<_> = (0..900).map(|number| packet(&mut pool, &frame(number, 60))).collect();
            let ended = thread::spawn(move || {
                let _there = registered.then(|| eal().register_thread().expect("an lcore id is left"));
                packets
                    .iter()
                    .enumerate()
                    .for_each(|(n, packet)| assert_eq!(packet.data(), frame(n as u32, 60)));
                drop(packets);
            });
            ended.join().expect("the contents are intact");
            assert_eq!(pool.in_use(), 0, "registered: {registered}");
        }
    }
}

#[test]
fn a_name_is_for_one_pool() {
    let name = unique("twice");
    let _first = MbufPool::new(&eal(), &name, 63, 2048, None).expect("enough memory");
    let second = MbufPool::new(&eal(), &name, 63, 2048, None);
    assert!(matches!(second, Err(PoolError::Refused { .. })), "{second:?}");
}

#[test]
fn buffers_of_ordinary_pages_begin_at_many_places_of_their_pages() {
    const PAGE: usize = 4096;
    let mut pool = pool(255, 1500);
    let packets: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
    assert_eq!(packets.len(), 255);
    let mut lines: Vec<_> = packets
        .iter()
        .map(|packet| packet.data().as_ptr().addr() % PAGE / 64)
        .collect();
    lines.sort_unstable();
    lines.dedup();
    assert!(lines.len() >= 28, "the sets of a first-level cache: {lines:?}");
    for packet in &packets {
        // The object's header, the mbuf and the headroom stand before the data.
        let (first, end) = (
            packet.data().as_ptr().addr() - 64 - 128 - 128,
            packet.data().as_ptr().addr() + 2048,
        );
        assert!(
            rustix::param::page_size() != PAGE || first / PAGE == (end - 1) / PAGE,
            "{first:x} to {end:x}"
        );
    }
}

#[test]
fn buffers_larger_than_a_page_are_all_there() {
    let mut pool = pool(127, 9000);
    let packets: Vec<_> = (0..127).map(|number| packet(&mut pool, &frame(number, 9000))).collect();
    for (number, packet) in packets.iter().enumerate() {
        assert_eq!(packet.data(), frame(number as u32, 9000));
    }
    assert!(pool.take().is_none());
}
