//! What no engine can do without for a connection, each part by itself in a tight loop, with everything in the nearest cache:
//!
//! | part | how often for a connection |
//! |---|---|
//! | `parse_and_checksum` | each of the 7 packets that come in is parsed, and its TCP checksum verified |
//! | `cookie_hash` | the keyed hash of the cookie: once to make it, once to check it |
//! | `look_ups` | the flow of the client's leg and of the server's, once each |
//! | `rewriting` | the 4 packets that are passed on: request, response with FIN, FIN with ACK, ACK |
//!
//! They are the engine's own functions. Receiving and sending are not in them: those are `floor`.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::Duration;

use e2d2::BURST;
use e2d2::time::{Clock, Instant};
use e2d2::wire::frame::{self, Kind, TcpLayout};
use e2d2::wire::tcp::{TcpFlags, TcpOptions};
use netfcts::SeqNum;
use splice::cookie::{Agreed, CookieJar};
use splice::table::{FlowRef, FlowTable};
use splice::translate::rewrite;
use testkit::Segment;

#[path = "../../core/samples.rs"]
mod samples;

use samples::{key, segment, values};

/// How often each part is measured: the middle one counts, as the host takes the core away in some.
const TIMES: usize = 301;

/// Connections whose part is done at once, so that reading the counter does not matter.
const AT_ONCE: usize = BURST;

/// Flows in the table: as many as `bench cps` has open, on either leg.
const FLOWS: u32 = 20_000;

/// Cycles of each part for a connection.
pub(crate) fn measure(clock: &Clock) -> BTreeMap<&'static str, f64> {
    BTreeMap::from([
        ("parse_and_checksum", parse_and_checksum(clock)),
        ("cookie_hash", cookie_hash(clock)),
        ("look_ups", look_ups(clock)),
        ("rewriting", rewriting(clock)),
    ])
}

/// Cycles of `work` by the number of connections that it is done for, in the middle of many turns.
fn cycles(clock: &Clock, mut work: impl FnMut()) -> f64 {
    let mut turns: Vec<u64> = (0..TIMES)
        .map(|_| {
            let before = clock.tsc();
            work();
            clock.tsc().saturating_sub(before)
        })
        .collect();
    turns.sort_unstable();
    turns[TIMES / 2] as f64 / AT_ONCE as f64
}

/// The frames that come in during a connection.
fn incoming() -> [Segment; 7] {
    let (client, proxy, server) = ("10.0.0.1:40000", "10.0.0.9:80", "10.0.1.1:80");
    let syn = |flags, from, to| Segment {
        flags,
        options: TcpOptions {
            mss: Some(1460),
            window_scale: Some(7),
            sack_permitted: true,
            ..segment(from, to, 0).options
        },
        ..segment(from, to, 0)
    };
    let ack = |flags, from, to, payload| Segment {
        flags: flags | TcpFlags::ACK,
        ..segment(from, to, payload)
    };
    [
        syn(TcpFlags::SYN, client, proxy),
        ack(TcpFlags::ACK, client, proxy, 0),
        ack(TcpFlags::PSH, client, proxy, 16),
        syn(TcpFlags::SYN | TcpFlags::ACK, server, proxy),
        ack(TcpFlags::FIN, server, proxy, 8),
        ack(TcpFlags::FIN, client, proxy, 0),
        ack(TcpFlags::ACK, server, proxy, 0),
    ]
}

fn parse_and_checksum(clock: &Clock) -> f64 {
    let frames: Vec<Vec<u8>> = (0..AT_ONCE)
        .flat_map(|_| incoming().map(|segment| segment.frame()))
        .collect();
    let is_right = |frame: &&Vec<u8>| match frame::parse(black_box(frame)) {
        Ok(Kind::Tcp(layout)) => layout.is_checksum_valid(frame),
        _ => false,
    };
    let mut right = 0;
    let cycles = cycles(clock, || right = frames.iter().filter(is_right).count());
    assert_eq!(right, frames.len(), "the bench's own frames");
    cycles
}

fn cookie_hash(clock: &Clock) -> f64 {
    let jar = CookieJar::new([1, 2]);
    let agreed = Agreed {
        mss: 1460,
        window_scale: Some(7),
        sack: true,
    };
    let now = Instant::ZERO + Duration::from_secs(100);
    cycles(clock, || {
        for n in 0..AT_ONCE as u32 {
            let key = black_box(key(n));
            let cookie = jar.bake(&key, SeqNum(n), agreed, now);
            black_box(jar.open(&key, SeqNum(n), cookie, now));
        }
    })
}

fn look_ups(clock: &Clock) -> f64 {
    let mut table = FlowTable::new(FLOWS as usize * 2, [3, 5]);
    for n in 0..FLOWS {
        let inserted = table.insert(table.hash(&key(n)), FlowRef::client(n));
        assert!(inserted.is_ok(), "room for half of its capacity");
    }
    let mut next = 1_u32;
    cycles(clock, || {
        // Two flows of each connection, anywhere in the table.
        for _ in 0..2 {
            let wanted: [u32; AT_ONCE] = std::array::from_fn(|_| {
                next = next.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (next >> 8) % FLOWS
            });
            let hashes = wanted.map(|n| table.hash(&key(n)));
            hashes.iter().for_each(|&hash| table.prefetch(hash));
            for (hash, n) in hashes.into_iter().zip(wanted) {
                black_box(table.find(hash, |flow| flow == FlowRef::client(n)));
            }
        }
    })
}

fn rewriting(clock: &Clock) -> f64 {
    let sizes = [16, 8, 0, 0];
    let mut frames: Vec<(Vec<u8>, TcpLayout)> = (0..AT_ONCE)
        .flat_map(|_| sizes.map(|payload| segment("10.0.0.1:40000", "10.0.0.9:80", payload).frame()))
        .filter_map(|frame| match frame::parse(&frame) {
            Ok(Kind::Tcp(layout)) => Some((frame, layout)),
            _ => None,
        })
        .collect();
    let values = values();
    cycles(clock, || {
        for (frame, layout) in &mut frames {
            // Each pass takes one hop of the time to live.
            frame[22] = 64;
            // The frames are the bench's own: nothing refuses them.
            let _rewritten = black_box(rewrite(black_box(frame), layout, &values));
        }
    })
}
