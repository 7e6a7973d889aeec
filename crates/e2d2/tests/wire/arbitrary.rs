//! Random packets: values that can be written, frames that were written, and frames that were spoilt.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use e2d2::buffer::{BufferPool, HeapPool, PacketBuffer};
use e2d2::wire::frame::{is_martian_ipv4, is_martian_ipv6};
use e2d2::wire::icmpv4::Icmpv4Repr;
use e2d2::wire::icmpv6::{Icmpv6Repr, NdpRepr};
use e2d2::wire::tcp::{TcpFlags, TcpOptions, TcpRepr};
use e2d2::wire::{Envelope, MacAddr};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

/// A TCP segment that owns what [`TcpRepr`] borrows.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) envelope: Envelope,
    pub(crate) ports: (u16, u16),
    pub(crate) numbers: (u32, u32),
    pub(crate) flags: u8,
    pub(crate) window: u16,
    pub(crate) options: TcpOptions,
    pub(crate) sack_blocks: Vec<(u32, u32)>,
    pub(crate) payload: Vec<u8>,
}

impl Segment {
    pub(crate) fn repr(&self) -> TcpRepr<'_> {
        TcpRepr {
            envelope: self.envelope,
            src_port: self.ports.0,
            dst_port: self.ports.1,
            seq: self.numbers.0,
            ack: self.numbers.1,
            flags: TcpFlags::from_bits_retain(self.flags),
            window: self.window,
            options: self.options,
            sack_blocks: &self.sack_blocks,
            payload: &self.payload,
        }
    }

    pub(crate) fn frame(&self) -> Vec<u8> {
        emitted(|buffer| self.repr().emit(buffer).is_ok())
    }
}

/// What `emit` writes into a buffer that holds the largest frame of the tests.
pub(crate) fn emitted(emit: impl FnOnce(&mut e2d2::buffer::HeapBuffer) -> bool) -> Vec<u8> {
    let mut buffer = HeapPool::new(1, 2048).take().expect("a fresh pool has a buffer");
    assert!(emit(&mut buffer), "the message fits");
    buffer.data().to_vec()
}

fn mac() -> impl Strategy<Value = MacAddr> {
    any::<[u8; 6]>().prop_map(|mut octets| {
        octets[0] &= !1;
        MacAddr(octets)
    })
}

pub(crate) fn ipv4_addr() -> impl Strategy<Value = Ipv4Addr> {
    any::<u32>()
        .prop_map(Ipv4Addr::from)
        .prop_filter("of a host", |addr| !is_martian_ipv4(*addr))
}

pub(crate) fn ipv6_addr() -> impl Strategy<Value = Ipv6Addr> {
    any::<u128>()
        .prop_map(Ipv6Addr::from)
        .prop_filter("of a host", |addr| !is_martian_ipv6(*addr))
}

fn addresses() -> impl Strategy<Value = (IpAddr, IpAddr)> {
    prop_oneof![
        (ipv4_addr(), ipv4_addr()).prop_map(|(src, dst)| (src.into(), dst.into())),
        (ipv6_addr(), ipv6_addr()).prop_map(|(src, dst)| (src.into(), dst.into())),
    ]
}

fn envelope_between(addresses: impl Strategy<Value = (IpAddr, IpAddr)>) -> impl Strategy<Value = Envelope> {
    (mac(), mac(), addresses, any::<u8>()).prop_map(|(src_mac, dst_mac, (src_addr, dst_addr), hop_limit)| Envelope {
        src_mac,
        dst_mac,
        src_addr,
        dst_addr,
        hop_limit,
    })
}

pub(crate) fn options() -> impl Strategy<Value = TcpOptions> {
    (
        any::<Option<u16>>(),
        proptest::option::of(0..=14u8),
        any::<bool>(),
        any::<Option<(u32, u32)>>(),
    )
        .prop_map(|(mss, window_scale, sack_permitted, timestamps)| TcpOptions {
            mss,
            window_scale,
            sack_permitted,
            timestamps,
        })
}

pub(crate) fn segment() -> impl Strategy<Value = Segment> {
    (
        envelope_between(addresses()),
        any::<(u16, u16)>(),
        any::<(u32, u32)>(),
        any::<u8>(),
        any::<u16>(),
        options(),
        vec(any::<(u32, u32)>(), 0..=4),
        vec(any::<u8>(), 0..200),
    )
        .prop_map(
            |(envelope, ports, numbers, flags, window, options, sack_blocks, payload)| Segment {
                envelope,
                ports,
                numbers,
                flags,
                window,
                options,
                sack_blocks,
                payload,
            },
        )
}

/// An ICMP message over IPv4, and its frame.
pub(crate) fn icmpv4_frame() -> impl Strategy<Value = Vec<u8>> {
    let addresses = (ipv4_addr(), ipv4_addr()).prop_map(|(src, dst)| (src.into(), dst.into()));
    (
        envelope_between(addresses),
        0..5u8,
        any::<u8>(),
        any::<(u16, u16)>(),
        vec(any::<u8>(), 0..200),
    )
        .prop_map(|(envelope, which, code, (ident, seq), data)| {
            let repr = match which {
                0 => Icmpv4Repr::EchoRequest {
                    ident,
                    seq,
                    data: &data,
                },
                1 => Icmpv4Repr::EchoReply {
                    ident,
                    seq,
                    data: &data,
                },
                2 => Icmpv4Repr::Unreachable {
                    code: code % 16,
                    next_hop_mtu: seq,
                    original: &data,
                },
                3 => Icmpv4Repr::TimeExceeded {
                    code: code % 2,
                    original: &data,
                },
                _ => Icmpv4Repr::ParameterProblem {
                    code: 0,
                    pointer: code,
                    original: &data,
                },
            };
            emitted(|buffer| repr.emit(&envelope, buffer).is_ok())
        })
}

/// An ICMPv6 message, neighbour discovery included, and its frame.
pub(crate) fn icmpv6_frame() -> impl Strategy<Value = Vec<u8>> {
    let addresses = (ipv6_addr(), ipv6_addr()).prop_map(|(src, dst)| (src.into(), dst.into()));
    let data = (vec(any::<u8>(), 0..200), ipv6_addr(), proptest::option::of(mac()));
    (
        envelope_between(addresses),
        0..9u8,
        any::<u8>(),
        any::<(u16, u16)>(),
        data,
    )
        .prop_map(|(envelope, which, code, (ident, seq), (data, target, mac))| {
            let mac = mac.filter(|mac| mac.is_unicast());
            let repr = match which {
                0 => Icmpv6Repr::EchoRequest {
                    ident,
                    seq,
                    data: &data,
                },
                1 => Icmpv6Repr::EchoReply {
                    ident,
                    seq,
                    data: &data,
                },
                2 => Icmpv6Repr::Unreachable {
                    code: code % 7,
                    original: &data,
                },
                3 => Icmpv6Repr::PacketTooBig {
                    mtu: u32::from(ident) << 16 | u32::from(seq),
                    original: &data,
                },
                4 => Icmpv6Repr::TimeExceeded {
                    code: code % 2,
                    original: &data,
                },
                5 => Icmpv6Repr::ParameterProblem {
                    code: code % 3,
                    pointer: seq.into(),
                    original: &data,
                },
                6 => Icmpv6Repr::Ndp(NdpRepr::NeighbourSolicitation {
                    target,
                    source_mac: mac,
                }),
                7 => Icmpv6Repr::Ndp(NdpRepr::RouterSolicitation { source_mac: mac }),
                _ => Icmpv6Repr::Ndp(NdpRepr::NeighbourAdvertisement {
                    router: code & 1 != 0,
                    solicited: code & 2 != 0,
                    overrides: code & 4 != 0,
                    target,
                    target_mac: mac,
                }),
            };
            emitted(|buffer| repr.emit(&envelope, buffer).is_ok())
        })
}

/// Any sound frame.
pub(crate) fn frame() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![3 => segment().prop_map(|segment| segment.frame()), 1 => icmpv4_frame(), 1 => icmpv6_frame()]
}

/// A frame of which some bytes were changed, mostly in its headers, and the end cut off or padded.
pub(crate) fn spoilt_frame() -> impl Strategy<Value = Vec<u8>> {
    let changes = vec((0..80usize, any::<u8>()), 0..6);
    (frame(), changes, any::<Index>(), 0..40usize, any::<[bool; 2]>()).prop_map(
        |(mut frame, changes, cut, padding, [is_cut, is_right])| {
            for (at, byte) in changes {
                let at = at % frame.len();
                frame[at] = byte;
            }
            if is_cut {
                frame.truncate(cut.index(frame.len()));
            } else {
                frame.resize(frame.len() + padding, 0xa5);
            }
            if is_right {
                repair_ipv4_checksum(&mut frame);
            }
            frame
        },
    )
}

/// So that not every change ends at the checksum.
fn repair_ipv4_checksum(frame: &mut [u8]) {
    let Some(header_len) = frame
        .get(14)
        .map(|byte| usize::from(byte & 0xf) * 4)
        .filter(|len| *len >= 20)
    else {
        return;
    };
    if frame[12..14] == [8, 0]
        && let Some(header) = frame.get_mut(14..14 + header_len)
    {
        header[10..12].fill(0);
        let checksum = e2d2::wire::checksum::internet(header);
        header[10..12].copy_from_slice(&checksum.to_be_bytes());
    }
}
