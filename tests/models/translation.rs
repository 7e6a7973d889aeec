//! The translation of a segment, there and back: the identical segment, checksum and all, for all numbers and all options.

use e2d2::buffer::{BufferPool, HeapPool, PacketBuffer};
use e2d2::wire::MacAddr;
use e2d2::wire::frame::{self, IpVersion, Kind, TcpLayout};
use e2d2::wire::tcp::{TcpFlags, TcpOptions, TcpPacket};
use netfcts::leg::mapped;
use proptest::prelude::*;
use splice::siit;
use splice::translate::{self, Rewrite};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use testkit::{Segment, Station};

/// Any number, and those next to the places where numbers wrap.
fn number() -> impl Strategy<Value = u32> {
    prop_oneof![
        4 => any::<u32>(),
        1 => (prop_oneof![Just(0_u32), Just(1 << 31), Just(0xffff), Just(0xffff_0000)], 0..4_u32)
            .prop_map(|(place, near)| place.wrapping_add(near).wrapping_sub(2)),
    ]
}

/// What stands in a segment after its fixed header: as stacks write it, in odd places, or no options at all.
fn options() -> impl Strategy<Value = Vec<u8>> {
    let timestamps = (number(), number()).prop_map(|(value, echo)| {
        let mut raw = vec![8, 10];
        raw.extend(value.to_be_bytes());
        raw.extend(echo.to_be_bytes());
        raw
    });
    let sack = prop::collection::vec((number(), number()), 1..=4).prop_map(|blocks| {
        let mut raw = vec![5, 2 + 8 * blocks.len() as u8];
        for (left, right) in blocks {
            raw.extend(left.to_be_bytes());
            raw.extend(right.to_be_bytes());
        }
        raw
    });
    let other = (20..=253_u8, prop::collection::vec(any::<u8>(), 0..6)).prop_map(|(kind, data)| {
        let mut raw = vec![kind, 2 + data.len() as u8];
        raw.extend(data);
        raw
    });
    let part = prop_oneof![
        3 => timestamps,
        3 => sack,
        2 => Just(vec![1]),
        1 => Just(vec![2, 4, 5, 180]),
        1 => Just(vec![3, 3, 7]),
        1 => Just(vec![4, 2]),
        1 => other,
        1 => prop::collection::vec(any::<u8>(), 1..5),
    ];
    prop::collection::vec(part, 0..6).prop_map(|parts| {
        let mut raw: Vec<u8> = parts.concat();
        raw.truncate(40);
        raw.resize(raw.len().next_multiple_of(4), 0);
        raw
    })
}

#[derive(Clone, Debug)]
struct Case {
    ipv6: bool,
    numbers: [u32; 2],
    flags: u8,
    windows: [u16; 2],
    options: Vec<u8>,
    payload: Vec<u8>,
    /// What has become of SEQ, ACK, TSval, TSecr and the edges of SACK blocks.
    shifts: [u32; 5],
    addresses: [[u8; 16]; 4],
    ports: [u16; 4],
    /// Whether a checksum is wrong, and by what.
    error: u16,
}

fn case() -> impl Strategy<Value = Case> {
    (
        (any::<bool>(), [number(), number()], any::<u8>(), any::<[u16; 2]>()),
        (options(), prop::collection::vec(any::<u8>(), 0..64)),
        (
            [number(), number(), number(), number(), number()],
            any::<[[u8; 16]; 4]>(),
            any::<[u16; 4]>(),
        ),
        prop_oneof![3 => Just(0), 1 => any::<u16>()],
    )
        .prop_map(
            |((ipv6, numbers, flags, windows), (options, payload), (shifts, addresses, ports), error)| Case {
                ipv6,
                numbers,
                // Segments with SYN or RST are never translated by numbers.
                flags: if flags & 0x40 == 0 {
                    flags & 0x39 | 0x10
                } else {
                    flags & 0x29
                },
                windows,
                options,
                payload,
                shifts,
                addresses,
                ports,
                error,
            },
        )
}

/// An address that may be somebody's.
fn address(bytes: [u8; 16], ipv6: bool) -> IpAddr {
    if ipv6 {
        let mut bytes = bytes;
        bytes[0] = 0x20;
        return Ipv6Addr::from(bytes).into();
    }
    Ipv4Addr::new(10, bytes[1], bytes[2], bytes[3] | 1).into()
}

impl Case {
    fn end(&self, n: usize, ipv6: bool) -> Station {
        Station {
            mac: MacAddr([2, 0, 0, 0, 0, n as u8]),
            address: SocketAddr::new(address(self.addresses[n], ipv6), self.ports[n].max(1)),
        }
    }

    /// The segment as it was sent, with `error` added to its checksum.
    fn frame(&self) -> Vec<u8> {
        let flags = TcpFlags::from_bits_truncate(self.flags);
        let (from, to) = (self.end(0, self.ipv6), self.end(1, self.ipv6));
        let segment = Segment {
            seq: self.numbers[0],
            ack: self.numbers[1],
            flags,
            window: self.windows[0],
            options: TcpOptions::NONE,
            payload: [&self.options[..], &self.payload].concat(),
            ..Segment::between(from, to)
        };
        let mut frame = segment.frame();
        let l4 = usize::from(layout(&frame).l4);
        // The number of an ACK stays where there is no such flag: nobody reads it, and it must pass as it is.
        frame[l4 + 8..l4 + 12].copy_from_slice(&self.numbers[1].to_be_bytes());
        let mut packet = TcpPacket::new_checked(&mut frame[l4..]).expect("the test's own segment");
        packet.set_header_len(20 + self.options.len());
        packet.fill_checksum(from.address.ip(), to.address.ip());
        let checksum = u16::from_be_bytes([frame[l4 + 16], frame[l4 + 17]]);
        // 0xffff is no sender's: it means the same as 0, and 0 comes back.
        let wrong = checksum.wrapping_add(self.error).min(0xfffe);
        frame[l4 + 16..l4 + 18].copy_from_slice(&wrong.to_be_bytes());
        frame
    }

    /// The way there, to ends of the version `ipv6`.
    fn there(&self, ipv6: bool) -> Rewrite {
        let (from, to) = (self.end(2, ipv6), self.end(3, ipv6));
        let [seq, ack, tsval, tsecr, sack] = self.shifts;
        Rewrite {
            source_mac: from.mac,
            destination_mac: to.mac,
            source: mapped(from.address.ip()),
            destination: mapped(to.address.ip()),
            source_port: from.address.port(),
            destination_port: to.address.port(),
            seq: self.numbers[0].wrapping_add(seq),
            ack: self.numbers[1].wrapping_sub(ack),
            window: self.windows[1],
            tsval_shift: tsval,
            tsecr_shift: tsecr,
            sack_shift: sack,
            blank_sack: false,
            ip_id: 0x1234,
        }
    }

    /// The way back.
    fn back(&self) -> Rewrite {
        let (from, to) = (self.end(0, self.ipv6), self.end(1, self.ipv6));
        let [_, _, tsval, tsecr, sack] = self.shifts.map(u32::wrapping_neg);
        Rewrite {
            source_mac: from.mac,
            destination_mac: to.mac,
            source: mapped(from.address.ip()),
            destination: mapped(to.address.ip()),
            source_port: from.address.port(),
            destination_port: to.address.port(),
            seq: self.numbers[0],
            ack: self.numbers[1],
            window: self.windows[0],
            tsval_shift: tsval,
            tsecr_shift: tsecr,
            sack_shift: sack,
            ..self.there(self.ipv6)
        }
    }
}

fn layout(frame: &[u8]) -> TcpLayout {
    match frame::parse(frame) {
        Ok(Kind::Tcp(layout)) => layout,
        other => panic!("a TCP packet expected: {other:?}"),
    }
}

/// The segment without IP header and Ethernet padding.
fn tcp(frame: &[u8]) -> &[u8] {
    let layout = layout(frame);
    &frame[usize::from(layout.l4)..usize::from(layout.end)]
}

/// What the receiver of the translated segment reads.
fn check_translated(case: &Case, frame: &[u8]) -> Result<(), TestCaseError> {
    let (sent, passed) = (case.frame(), layout(frame));
    prop_assert_eq!(
        passed.is_checksum_valid(frame),
        layout(&sent).is_checksum_valid(&sent),
        "a wrong checksum stays wrong, and a right one right"
    );
    let [seq, ack, tsval, tsecr, sack] = case.shifts;
    let header = passed.tcp(frame).expect("a TCP header");
    prop_assert_eq!(header.seq(), case.numbers[0].wrapping_add(seq));
    if case.flags & 0x10 != 0 {
        prop_assert_eq!(header.ack(), case.numbers[1].wrapping_sub(ack));
    } else {
        prop_assert_eq!(header.ack(), case.numbers[1]);
    }
    prop_assert_eq!(header.window(), case.windows[1]);
    let raw = passed.options(frame).expect("options");
    prop_assert_eq!(raw.len(), case.options.len());
    let (before, after) = (walk(&case.options), walk(raw));
    // Of several timestamps the last one counts, as in Linux.
    let last = before.iter().rposition(|(kind, data)| (*kind, data.len()) == (8, 8));
    for (n, ((kind, old), (new_kind, new))) in before.iter().zip(&after).enumerate() {
        prop_assert_eq!(kind, new_kind);
        let expected: Vec<u32> = match *kind {
            8 if last == Some(n) => {
                let values = words(old);
                vec![values[0].wrapping_add(tsval), values[1].wrapping_sub(tsecr)]
            }
            5 if old.len() % 8 == 0 => words(old).into_iter().map(|edge| edge.wrapping_sub(sack)).collect(),
            _ => {
                prop_assert_eq!(old, new);
                continue;
            }
        };
        prop_assert_eq!(words(new), expected);
    }
    prop_assert_eq!(before.len(), after.len());
    Ok(())
}

fn words(bytes: &[u8]) -> Vec<u32> {
    let (words, _) = bytes.as_chunks::<4>();
    words.iter().map(|word| u32::from_be_bytes(*word)).collect()
}

/// Kind and data of every option up to the end or to one that cannot be read (RFC 9293 3.2).
fn walk(mut raw: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let mut options = Vec::new();
    loop {
        match *raw {
            [1, ref rest @ ..] => raw = rest,
            [kind, len, ..] if kind != 0 && (2..=raw.len()).contains(&usize::from(len)) => {
                let (option, rest) = raw.split_at(usize::from(len));
                options.push((kind, option[2..].to_vec()));
                raw = rest;
            }
            _ => return options,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn there_and_back_is_the_identical_segment(case in case()) {
        let sent = case.frame();
        let layout = layout(&sent);
        let mut frame = sent.clone();
        prop_assert_eq!(translate::rewrite(&mut frame, &layout, &case.there(case.ipv6)), Ok(()));
        check_translated(&case, &frame)?;
        prop_assert_eq!(translate::rewrite(&mut frame, &layout, &case.back()), Ok(()));
        prop_assert_eq!(tcp(&frame), tcp(&sent));
        // Two hops later, and nothing else: with its TTL and IP checksum it is the same packet.
        let l3 = usize::from(layout.l3);
        match layout.version {
            IpVersion::V4 => {
                prop_assert_eq!(frame[l3 + 8] + 2, sent[l3 + 8]);
                frame[l3 + 8] = sent[l3 + 8];
                frame[l3 + 10..l3 + 12].copy_from_slice(&sent[l3 + 10..l3 + 12]);
            }
            IpVersion::V6 => {
                prop_assert_eq!(frame[l3 + 7] + 2, sent[l3 + 7]);
                frame[l3 + 7] = sent[l3 + 7];
            }
        }
        prop_assert_eq!(frame, sent);
    }

    #[test]
    fn there_and_back_through_the_other_version_of_ip(case in case()) {
        let sent = case.frame();
        let mut buffer = HeapPool::new(1, 512).take_copy(&sent).expect("a buffer");
        let there = case.there(!case.ipv6);
        prop_assert_eq!(siit::rewrite(&mut buffer, &layout(&sent), &there), Ok(()));
        let passed = layout(buffer.data());
        prop_assert_ne!(passed.version, layout(&sent).version);
        check_translated(&case, buffer.data())?;
        prop_assert_eq!(siit::rewrite(&mut buffer, &passed, &case.back()), Ok(()));
        prop_assert_eq!(tcp(buffer.data()), tcp(&sent));
        prop_assert_eq!(layout(buffer.data()).ip(buffer.data()).map(|ip| (ip.src_addr(), ip.dst_addr())),
            layout(&sent).ip(&sent).map(|ip| (ip.src_addr(), ip.dst_addr())));
    }
}
