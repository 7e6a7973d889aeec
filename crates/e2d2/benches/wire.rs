//! What the packet path pays per packet for wire formats: the parse, the checksums, the incremental update.
//!
//! The times are of headers that are in the L1 cache. Figures and budgets stand in the modules' documentation.

use std::hint::black_box;
use std::net::IpAddr;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use e2d2::buffer::{BufferPool, ChecksumStatus, HeapPool, PacketBuffer, RxInfo};
use e2d2::wire::checksum::{self, Delta};
use e2d2::wire::frame::{self, TcpLayout};
use e2d2::wire::tcp::{TcpFlags, TcpOptions, TcpRepr, options};
use e2d2::wire::{Envelope, MacAddr};

const BURST: usize = e2d2::BURST;

fn repr(src_addr: IpAddr, dst_addr: IpAddr, payload: &[u8]) -> TcpRepr<'_> {
    TcpRepr {
        envelope: Envelope {
            src_mac: MacAddr([2, 0, 0, 0, 0, 1]),
            dst_mac: MacAddr([2, 0, 0, 0, 0, 2]),
            src_addr,
            dst_addr,
            hop_limit: 64,
        },
        src_port: 40_000,
        dst_port: 443,
        seq: 1,
        ack: 2,
        flags: TcpFlags::ACK,
        window: 501,
        options: TcpOptions {
            timestamps: Some((5, 6)),
            ..TcpOptions::NONE
        },
        sack_blocks: &[],
        payload,
    }
}

fn v4(payload: &[u8]) -> TcpRepr<'_> {
    repr([192, 0, 2, 1].into(), [198, 51, 100, 2].into(), payload)
}

fn v6(payload: &[u8]) -> TcpRepr<'_> {
    repr(IpAddr::V6([0x20; 16].into()), IpAddr::V6([0x21; 16].into()), payload)
}

/// A burst of frames in different memory, as a port delivers them.
fn burst(repr: TcpRepr<'_>) -> (Vec<Vec<u8>>, TcpLayout) {
    let mut buffer = HeapPool::new(1, 1514).take().expect("fresh pool");
    let layout = repr.emit(&mut buffer).expect("the frame fits");
    (vec![buffer.data().to_vec(); BURST], layout)
}

fn bench_checksum(c: &mut Criterion) {
    let mut group = c.benchmark_group("checksum_sum");
    for len in [20, 40, 64, 576, 1460] {
        let bytes: Vec<u8> = (0..len).map(|index| index as u8).collect();
        group.throughput(Throughput::Bytes(len));
        group.bench_function(len.to_string(), |b| b.iter(|| checksum::sum(black_box(&bytes))));
    }
    group.finish();

    c.bench_function("delta_ports_seq_ack_applied", |b| {
        let kept = Delta::ZERO.replace32(1, 2).replace32(3, 4).replace32(5, 6);
        b.iter(|| {
            let (seq, ack) = black_box((1u32, 2u32));
            (kept
                .replace32(seq, seq.wrapping_add(77))
                .replace32(ack, ack.wrapping_sub(99)))
            .apply(black_box(0x1234))
        });
    });
}

fn bench_parse(c: &mut Criterion) {
    let mut group = c.benchmark_group("parse_burst_of_32");
    group.throughput(Throughput::Elements(BURST as u64));
    for (name, repr) in [("v4", v4(b"")), ("v6", v6(b""))] {
        let (frames, _) = burst(repr);
        let verified = RxInfo {
            ip_checksum: ChecksumStatus::Good,
            ..RxInfo::default()
        };
        group.bench_function(name, |b| {
            b.iter(|| {
                frames
                    .iter()
                    .filter(|frame| frame::parse(black_box(frame)).is_ok())
                    .count()
            });
        });
        group.bench_function(format!("{name}_verified_by_port"), |b| {
            b.iter(|| {
                frames
                    .iter()
                    .filter(|frame| frame::parse_with(black_box(frame), verified).is_ok())
                    .count()
            });
        });
    }
    group.finish();
}

/// What splicing does to a packet: both addresses, both ports, SEQ, ACK, timestamps, hop limit, checksums.
fn rewrite(frame: &mut [u8], layout: TcpLayout, src: IpAddr, dst: IpAddr) -> Option<()> {
    let mut parts = layout.split_mut(frame)?;
    let hops = parts.ip.hop_limit().saturating_sub(1);
    let mut delta = parts.ip.readdress(src, dst, hops)?;
    let (seq, ack) = (parts.tcp.seq(), parts.tcp.ack());
    let ports = (u32::from(parts.tcp.src_port()) << 16) | u32::from(parts.tcp.dst_port());
    delta = delta
        .replace32(ports, (1000 << 16) | 80)
        .replace32(seq, seq.wrapping_add(77))
        .replace32(ack, ack.wrapping_sub(99));
    parts.tcp.set_src_port(1000);
    parts.tcp.set_dst_port(80);
    parts.tcp.set_seq(seq.wrapping_add(77));
    parts.tcp.set_ack(ack.wrapping_sub(99));
    if let Some(at) = options::find_timestamps(parts.options) {
        let (value, echo) = options::read_timestamps(parts.options, at)?;
        delta += options::write_timestamps(parts.options, at, value.wrapping_add(5), echo);
    }
    parts.tcp.adjust_checksum(delta);
    Some(())
}

fn bench_rewrite(c: &mut Criterion) {
    let mut group = c.benchmark_group("rewrite_burst_of_32");
    group.throughput(Throughput::Elements(BURST as u64));
    let to_v6 = (IpAddr::V6([0xfd; 16].into()), IpAddr::V6([0x2a; 16].into()));
    for (name, repr, (src, dst)) in [
        ("v4", v4(b""), ([10, 1, 2, 3].into(), [10, 4, 5, 6].into())),
        ("v6", v6(b""), to_v6),
    ] {
        let (frames, layout) = burst(repr);
        group.bench_function(name, |b| {
            b.iter_batched_ref(
                || frames.clone(),
                |frames| {
                    frames
                        .iter_mut()
                        .filter_map(|frame| rewrite(frame, black_box(layout), src, dst))
                        .count()
                },
                BatchSize::SmallInput,
            );
        });
    }
    group.finish();
}

fn bench_emit(c: &mut Criterion) {
    let mut pool = HeapPool::new(1, 1514);
    let mut buffer = pool.take().expect("fresh pool");
    for (name, repr) in [("emit_ack_v4", v4(b"")), ("emit_ack_v6", v6(b""))] {
        c.bench_function(name, |b| b.iter(|| black_box(repr).emit(&mut buffer)));
    }
}

criterion_group!(benches, bench_checksum, bench_parse, bench_rewrite, bench_emit);
criterion_main!(benches);
