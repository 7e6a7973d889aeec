//! What the parts of the core cost by themselves: cookie, flow table, rewriting.
//!
//! `./build.sh bench core`. Criterion's times are nanoseconds; at 2.6 GHz one is 2.6 cycles.

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use e2d2::buffer::{BufferPool, HeapPool, PacketBuffer};
use e2d2::time::Instant;
use e2d2::wire::frame::{self, IpVersion, Kind, TcpLayout};
use netfcts::seq::SeqNum;
use splice::cookie::{Agreed, CookieJar};
use splice::siit;
use splice::table::{FlowRef, FlowTable};
use splice::translate::{Rewrite, rewrite};
use std::hint::black_box;
use std::time::Duration;

mod samples;

use samples::{key, segment, values};

fn cookie(c: &mut Criterion) {
    let jar = CookieJar::new([1, 2]);
    let agreed = Agreed {
        mss: 1460,
        window_scale: Some(7),
        sack: true,
    };
    let now = Instant::ZERO + Duration::from_secs(100);
    c.bench_function("cookie/bake", |b| {
        b.iter(|| jar.bake(black_box(&key(7)), SeqNum(9), agreed, now))
    });
    let baked = jar.bake(&key(7), SeqNum(9), agreed, now);
    c.bench_function("cookie/open", |b| {
        b.iter(|| jar.open(black_box(&key(7)), SeqNum(9), baked, now))
    });
}

/// A table of a million flows, three fifths full, looked up at random: with and without asking for the line before.
fn table(c: &mut Criterion) {
    const FLOWS: u32 = 1_000_000;
    let mut table = FlowTable::new(FLOWS as usize, [3, 5]);
    for n in 0..FLOWS - 1 {
        table.insert(table.hash(&key(n)), FlowRef::client(n)).expect("room");
    }
    let mut state = 1_u64;
    let mut random = || {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (state >> 40) as u32 % (FLOWS - 1)
    };
    c.bench_function("table/find a burst of 32, not prefetched", |b| {
        b.iter_batched(
            || std::array::from_fn::<u32, 32, _>(|_| random()),
            |wanted| wanted.map(|n| table.find(table.hash(&key(n)), |flow| flow == FlowRef::client(n))),
            BatchSize::SmallInput,
        );
    });
    c.bench_function("table/find a burst of 32, prefetched", |b| {
        b.iter_batched(
            || std::array::from_fn::<u32, 32, _>(|_| random()),
            |wanted| {
                let hashes = wanted.map(|n| table.hash(&key(n)));
                hashes.iter().for_each(|&hash| table.prefetch(hash));
                std::array::from_fn::<_, 32, _>(|i| table.find(hashes[i], |flow| flow == FlowRef::client(wanted[i])))
            },
            BatchSize::SmallInput,
        );
    });
    let (hash, flow) = (table.hash(&key(FLOWS)), FlowRef::client(FLOWS));
    c.bench_function("table/insert and remove, hot", |b| {
        b.iter(|| {
            table.insert(black_box(hash), flow).expect("room");
            table.remove(hash, flow)
        });
    });
}

/// From IPv4 to IPv6 and back, so that the buffer is as before.
fn cross(c: &mut Criterion) {
    let frame = segment("10.0.0.1:40000", "10.0.0.9:80", 64).frame();
    let mut buffer = HeapPool::new(1, 256).take_copy(&frame).expect("a buffer");
    let Ok(Kind::Tcp(there)) = frame::parse(&frame) else {
        panic!("the bench's own frame")
    };
    let back = TcpLayout {
        version: IpVersion::V6,
        l3: there.l3,
        l4: there.l4 + 20,
        payload: there.payload + 20,
        end: there.end + 20,
    };
    let to_v4 = values();
    let to_v6 = Rewrite {
        source: 0xfd01 << 112 | 9,
        destination: 0xfd01 << 112 | 0x64,
        ..to_v4
    };
    c.bench_function("translate/v4 to v6 and back with timestamps", |b| {
        b.iter(|| {
            if let Some(hop_limit) = buffer.data_mut().get_mut(22) {
                *hop_limit = 64;
            }
            let there = siit::rewrite(black_box(&mut buffer), &there, &to_v6);
            let back = siit::rewrite(black_box(&mut buffer), &back, &to_v4);
            (there, back)
        });
    });
}

fn translate(c: &mut Criterion) {
    for (name, from, to) in [
        ("v4", "10.0.0.1:40000", "10.0.0.9:80"),
        ("v6", "[fd00::1]:40000", "[fd00::9]:80"),
    ] {
        let mut bytes = segment(from, to, 64).frame();
        let Ok(Kind::Tcp(layout)) = frame::parse(&bytes) else {
            panic!("the bench's own frame")
        };
        let values = values();
        let hop_limit_at = if name == "v4" { 22 } else { 21 };
        c.bench_function(&format!("translate/{name} with timestamps"), |b| {
            b.iter(|| {
                // Each pass takes one hop.
                bytes[hop_limit_at] = 64;
                rewrite(black_box(&mut bytes), &layout, &values)
            });
        });
    }
}

criterion_group!(benches, cookie, table, translate, cross);
criterion_main!(benches);
