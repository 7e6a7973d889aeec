//! Properties: what is written is read back; nothing read panics; more bytes never change a verdict.

use core::net::{SocketAddrV4, SocketAddrV6};
use proptest::collection::vec;
use proptest::prelude::*;
use proxy_protocol::{
    Addresses, Command, EncodeError, Header, ParseOptions, Parsed, Ssl, SslClient, Tlv, TlvWriter, Tlvs, Transport,
    UNIX_LEN, V2_SIGNATURE, Version, kind, parse, spp,
};

#[derive(Clone, Debug)]
enum Pair {
    Unspecified,
    Inet(SocketAddrV4, SocketAddrV4),
    Inet6(SocketAddrV6, SocketAddrV6),
    Unix(Vec<u8>, Vec<u8>),
}

impl Pair {
    fn borrow(&self) -> Addresses<'_> {
        match self {
            Pair::Unspecified => Addresses::Unspecified,
            &Pair::Inet(source, destination) => Addresses::Inet { source, destination },
            &Pair::Inet6(source, destination) => Addresses::Inet6 { source, destination },
            Pair::Unix(source, destination) => Addresses::Unix {
                source: source.as_slice().try_into().expect("generated with this length"),
                destination: destination.as_slice().try_into().expect("generated with this length"),
            },
        }
    }
}

fn inet() -> impl Strategy<Value = SocketAddrV4> {
    (any::<[u8; 4]>(), any::<u16>()).prop_map(|(ip, port)| SocketAddrV4::new(ip.into(), port))
}

fn inet6() -> impl Strategy<Value = SocketAddrV6> {
    let ip = prop_oneof![
        any::<[u8; 16]>(),
        any::<[u8; 4]>().prop_map(|ip| std::net::Ipv4Addr::from(ip).to_ipv6_mapped().octets()),
    ];
    (ip, any::<u16>()).prop_map(|(ip, port)| SocketAddrV6::new(ip.into(), port, 0, 0))
}

fn pair() -> impl Strategy<Value = Pair> {
    let path = || vec(any::<u8>(), UNIX_LEN);
    prop_oneof![
        1 => Just(Pair::Unspecified),
        4 => (inet(), inet()).prop_map(|(a, b)| Pair::Inet(a, b)),
        4 => (inet6(), inet6()).prop_map(|(a, b)| Pair::Inet6(a, b)),
        1 => (path(), path()).prop_map(|(a, b)| Pair::Unix(a, b)),
    ]
}

/// Fields of any type and value that a writer takes, and perhaps a checksum at some place.
fn write_fields<'b>(fields: &[(u8, Vec<u8>)], checksum: Option<usize>, room: &'b mut [u8]) -> TlvWriter<'b> {
    let mut writer = TlvWriter::new(room);
    for (index, (kind, value)) in fields.iter().enumerate() {
        if checksum == Some(index) {
            writer.push_checksum().expect("room");
        }
        let pushed = match *kind {
            kind::SSL => {
                let fields = Tlvs::new(value).unwrap_or(Tlvs::EMPTY);
                let ssl = Ssl {
                    client: SslClient(1),
                    verify: 7,
                    fields,
                };
                writer.push(&Tlv::Ssl(ssl))
            }
            kind => writer.push(&Tlv::Other { kind, value }),
        };
        let forbidden = *kind == kind::CRC32C || (*kind == kind::UNIQUE_ID && value.len() > 128);
        assert_eq!(pushed.is_err(), forbidden, "{kind:#x} {}", value.len());
    }
    writer
}

proptest! {
    #[test]
    fn v2_returns_as_it_was_written(
        pair in pair(),
        datagram in any::<bool>(),
        local in any::<bool>(),
        fields in vec((any::<u8>(), vec(any::<u8>(), 0..200)), 0..8),
        checksum in proptest::option::of(0usize..8),
        payload in vec(any::<u8>(), 0..40),
    ) {
        let mut room = [0; 4096];
        let writer = write_fields(&fields, checksum, &mut room);
        let transport = if datagram { Transport::Datagram } else { Transport::Stream };
        let header = if local {
            Header::local()
        } else {
            Header::proxy(transport, pair.borrow()).with_tlvs(writer.tlvs())
        };
        let mut out = [0; 8192];
        let length = header.encode(&mut out).unwrap();
        prop_assert_eq!(length, header.encoded_len());
        prop_assert_eq!(header.encode(&mut out[..length - 1]), Err(EncodeError::NoRoom { required: length }));
        header.encode(&mut out[..length]).unwrap();

        let mut received = out[..length].to_vec();
        received.extend(&payload);
        let Ok(Parsed::Complete { header: again, length: read }) = parse(&received) else {
            return Err(TestCaseError::fail(format!("{:?}", parse(&received))));
        };
        prop_assert_eq!(read, length);
        prop_assert_eq!((again.version, again.command), (header.version, header.command));
        prop_assert_eq!((again.transport, again.addresses), (header.transport, header.addresses));
        let without_sums = |tlvs: Tlvs<'_>| {
            tlvs.raw().map(|(kind, value)| (kind, if kind == kind::CRC32C { vec![] } else { value.to_vec() })).collect::<Vec<_>>()
        };
        prop_assert_eq!(without_sums(again.tlvs), without_sums(header.tlvs));

        // With its checksum in it, the header is a fixed point.
        let mut twice = [0; 8192];
        prop_assert_eq!(again.encode(&mut twice), Ok(length));
        prop_assert_eq!(&twice[..length], &received[..length]);

        // Fields pushed to where they stay are the same header.
        let push = |room: &mut TlvWriter<'_>| {
            header.tlvs.iter().for_each(|tlv| {
                room.push(&tlv).expect("it was pushed before");
            });
        };
        let mut pushed = [0xee; 8192];
        prop_assert_eq!(header.encode_with(&mut pushed, push), Ok(length));
        prop_assert_eq!(&pushed[..length], &received[..length]);
        // What does not fit, the pusher hears of; the header is a whole one.
        let mut left = length - 1 - header.tlvs.as_bytes().len();
        prop_assert_eq!(
            header.encode_with(&mut pushed[..left], |_| {}),
            Err(EncodeError::NoRoom { required: left + 1 })
        );
        let mut fits = |room: &mut TlvWriter<'_>| {
            left += 1;
            for tlv in header.tlvs.iter() {
                let before = room.tlvs().as_bytes().len();
                if room.push(&tlv).is_ok() {
                    left += room.tlvs().as_bytes().len() - before;
                }
            }
        };
        let short = header.encode_with(&mut pushed[..length - 1], &mut fits);
        if header.tlvs.is_empty() {
            prop_assert!(short.is_err());
        } else {
            prop_assert_eq!(short, Ok(left));
            let is_whole = matches!(parse(&pushed[..left]), Ok(Parsed::Complete { length, .. }) if length == left);
            prop_assert!(is_whole);
        }

        for cut in 0..length {
            match parse(&received[..cut]) {
                Ok(Parsed::Incomplete { needed }) => prop_assert!(needed >= 1 && needed <= length - cut),
                other => return Err(TestCaseError::fail(format!("{other:?} at {cut}"))),
            }
        }
    }

    #[test]
    fn v1_returns_as_it_was_written(pair in pair(), local in any::<bool>()) {
        let mut header = Header::v1(pair.borrow());
        let mut out = [0; 128];
        if matches!(pair, Pair::Unix(..)) {
            prop_assert_eq!(header.encode(&mut out), Err(EncodeError::NotInV1));
            return Ok(());
        }
        if local {
            header = Header { command: Command::Local, addresses: Addresses::Unspecified, ..header };
        }
        let length = header.encode(&mut out).unwrap();
        prop_assert!(length <= proxy_protocol::V1_MAX_LEN);
        prop_assert_eq!(header.encode(&mut out[..length - 1]), Err(EncodeError::NoRoom { required: length }));
        let Ok(Parsed::Complete { header: again, length: read }) = parse(&out[..length]) else {
            return Err(TestCaseError::fail(format!("{}", out[..length].escape_ascii())));
        };
        prop_assert_eq!(read, length);
        prop_assert_eq!((again.version, again.addresses), (Version::V1, header.addresses));
        let mut pushed = [0; 128];
        prop_assert_eq!(header.encode_with(&mut pushed, |_| {}), Ok(length));
        prop_assert_eq!(&pushed[..length], &out[..length]);
        let pushes = header.encode_with(&mut pushed, |fields| {
            fields.push_checksum().expect("room");
        });
        prop_assert_eq!(pushes, Err(EncodeError::NotInV1));
    }

    #[test]
    fn random_bytes_never_panic_and_a_verdict_stays(bytes in vec(any::<u8>(), 0..400), start in 0usize..4) {
        let mut input = match start {
            0 => V2_SIGNATURE.to_vec(),
            1 => [&V2_SIGNATURE[..], &[0x21, 0x11, 0, 60]].concat(),
            2 => b"PROXY TCP4 ".to_vec(),
            _ => vec![],
        };
        input.extend(bytes);
        let mut verdict = None;
        for cut in 0..=input.len() {
            let now = parse(&input[..cut]);
            match (&verdict, now) {
                (None, Ok(Parsed::Incomplete { needed })) => prop_assert!(needed > 0),
                (None, decided) => verdict = Some(decided),
                // A line end right after may name the reason more precisely, but refused stays refused.
                (Some(Err(_)), now) => prop_assert!(now.is_err()),
                (Some(Ok(_)), now) => prop_assert_eq!(verdict.unwrap(), now),
            }
        }
        let _ = Tlvs::new(&input).map(|tlvs| tlvs.iter().count());
        let _ = spp::Header::parse(&input);
        let _ = ParseOptions { max_len: 40, verify_checksum: false }.parse(&input);
    }

    #[test]
    fn text_like_lines_never_panic(line in "PROXY (TCP4|TCP6|UNKNOWN) [0-9a-f:. ]{0,90}\r?\n?") {
        if let Ok(Parsed::Complete { header, length }) = parse(line.as_bytes()) {
            prop_assert_eq!(length, line.len());
            let mut out = [0; 128];
            let written = header.encode(&mut out).unwrap();
            let Ok(Parsed::Complete { header: again, .. }) = parse(&out[..written]) else {
                return Err(TestCaseError::fail("what was written is not accepted"));
            };
            prop_assert_eq!(again, header);
        }
    }

    #[test]
    fn spp_returns_as_it_was_written(client in inet6(), proxy in inet6(), payload in vec(any::<u8>(), 0..50)) {
        let canonical = |address: SocketAddrV6| (address.ip().to_canonical(), address.port()).into();
        let header = spp::Header { client: canonical(client), proxy: canonical(proxy) };
        let mut datagram = header.encode().to_vec();
        datagram.extend(&payload);
        prop_assert_eq!(spp::Header::parse(&datagram), Some((header, &payload[..])));
    }
}

#[test]
fn padding_reaches_the_length_or_says_why_not() {
    let mut room = [0xff; 64];
    let mut writer = TlvWriter::new(&mut room);
    writer.push(&Tlv::Alpn(b"h2")).unwrap();
    assert!(writer.pad_to(4).is_err(), "already longer");
    assert!(writer.pad_to(6).is_err(), "no field has one byte");
    assert!(writer.pad_to(7).is_err(), "no field has two bytes");
    writer.pad_to(5).unwrap().pad_to(8).unwrap().pad_to(40).unwrap();
    assert_eq!(writer.tlvs().as_bytes().len(), 40);
    assert!(matches!(writer.pad_to(65), Err(EncodeError::NoRoom { required: 65 })));
    assert!(
        writer
            .tlvs()
            .raw()
            .skip(1)
            .all(|(kind, value)| kind == kind::NOOP && value.iter().all(|&byte| byte == 0))
    );
    assert!(writer.push_checksum().is_ok() && writer.push_checksum().is_err());
}

#[test]
fn families_are_not_mixed() {
    let v4 = "192.0.2.1:1".parse().unwrap();
    let v6 = "[2001:db8::1]:2".parse().unwrap();
    let pair = |source, destination| Addresses::from_pair(source, destination).as_pair().unwrap();
    assert_eq!(pair(v4, v4), (v4, v4));
    assert_eq!(pair(v6, v4), (v6, "[::ffff:192.0.2.1]:1".parse().unwrap()));
    assert_eq!(pair(v4, v6), ("[::ffff:192.0.2.1]:1".parse().unwrap(), v6));
}
