//! Headers that must be accepted and headers that must not, each whole, byte by byte and with payload after it.

use proxy_protocol::{
    Addresses, Command, Error, ParseOptions, Parsed, Tlv, TlvError, Transport, V2_SIGNATURE, Version, kind, parse,
};

/// What a valid header says: `(version, command, transport, addresses as text)`.
type Expected<'a> = (Version, Command, Transport, &'a str);

/// A version 2 header from byte 13 on.
fn v2(version_command: u8, family: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = V2_SIGNATURE.to_vec();
    bytes.extend([version_command, family]);
    bytes.extend((body.len() as u16).to_be_bytes());
    bytes.extend(body);
    bytes
}

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .chars()
        .filter_map(|c| c.to_digit(16))
        .map(|digit| digit as u8)
        .collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

/// 203.0.113.7:40001 to 198.51.100.9:443.
fn inet() -> Vec<u8> {
    hex("cb007107 c6336409 9c41 01bb")
}

/// [2001:db8::7]:40001 to [2001:db8::9]:443.
fn inet6() -> Vec<u8> {
    hex("20010db8000000000000000000000007 20010db8000000000000000000000009 9c41 01bb")
}

fn with_tlv(mut body: Vec<u8>, kind: u8, value: &[u8]) -> Vec<u8> {
    body.push(kind);
    body.extend((value.len() as u16).to_be_bytes());
    body.extend(value);
    body
}

fn describe(addresses: &Addresses<'_>) -> String {
    match (addresses, addresses.as_pair()) {
        (_, Some((source, destination))) => format!("{source} {destination}"),
        (Addresses::Unix { source, destination }, _) => {
            let path = |bytes: &[u8; 108]| String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned();
            format!("{} {}", path(source), path(destination))
        }
        _ => String::new(),
    }
}

#[track_caller]
fn accepts(bytes: &[u8], (version, command, transport, addresses): Expected<'_>) {
    let mut with_payload = bytes.to_vec();
    with_payload.extend(b"PROXY TCP4 1.1.1.1 2.2.2.2 3 4\r\npayload");
    for input in [bytes, &with_payload] {
        match parse(input) {
            Ok(Parsed::Complete { header, length }) => {
                assert_eq!(length, bytes.len());
                assert_eq!(
                    (header.version, header.command, header.transport),
                    (version, command, transport)
                );
                assert_eq!(describe(&header.addresses), addresses);
            }
            other => panic!("{other:?} from {}", input.escape_ascii()),
        }
    }
    for cut in 0..bytes.len() {
        match parse(&bytes[..cut]) {
            Ok(Parsed::Incomplete { needed }) => {
                assert!((1..=bytes.len() - cut).contains(&needed), "{needed} at {cut}")
            }
            other => panic!("{other:?} from the first {cut} of {}", bytes.escape_ascii()),
        }
    }
}

/// Refused when whole, and at the latest there when it comes byte by byte, for the same reason.
#[track_caller]
fn refuses(bytes: &[u8], reason: Error) {
    assert_eq!(parse(bytes), Err(reason), "{}", bytes.escape_ascii());
    let first = (0..=bytes.len()).find_map(|cut| parse(&bytes[..cut]).err());
    assert!(first.is_some());
    for cut in 0..bytes.len() {
        assert!(
            !matches!(parse(&bytes[..cut]), Ok(Parsed::Complete { .. })),
            "accepted after {cut} bytes"
        );
    }
}

const TCP: (Version, Command, Transport) = (Version::V1, Command::Proxy, Transport::Stream);

#[track_caller]
fn accepts_v1(line: &str, addresses: &str) {
    accepts(line.as_bytes(), (TCP.0, TCP.1, TCP.2, addresses));
}

#[track_caller]
fn accepts_unknown(line: &[u8]) {
    accepts(line, (Version::V1, Command::Proxy, Transport::Unspecified, ""));
}

#[test]
fn v1_valid() {
    accepts_v1(
        "PROXY TCP4 203.0.113.7 198.51.100.9 40001 443\r\n",
        "203.0.113.7:40001 198.51.100.9:443",
    );
    accepts_v1("PROXY TCP4 0.0.0.0 0.0.0.0 0 0\r\n", "0.0.0.0:0 0.0.0.0:0");
    accepts_v1(
        "PROXY TCP4 255.255.255.255 255.255.255.255 65535 65535\r\n",
        "255.255.255.255:65535 255.255.255.255:65535",
    );
    accepts_v1(
        "PROXY TCP6 2001:db8::7 2001:DB8::9 40001 443\r\n",
        "[2001:db8::7]:40001 [2001:db8::9]:443",
    );
    accepts_v1("PROXY TCP6 :: :: 0 0\r\n", "[::]:0 [::]:0");
    accepts_v1(
        "PROXY TCP6 ::ffff:192.0.2.1 ::1 1 2\r\n",
        "[::ffff:192.0.2.1]:1 [::1]:2",
    );
    let longest =
        "PROXY TCP6 ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff 65535 65535\r\n";
    assert_eq!(longest.len(), 104);
    let all_ones = "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535";
    accepts_v1(longest, &format!("{all_ones} {all_ones}"));
}

#[test]
fn v1_unknown() {
    accepts_unknown(b"PROXY UNKNOWN\r\n");
    accepts_unknown(b"PROXY UNKNOWN \r\n");
    accepts_unknown(b"PROXY UNKNOWN 203.0.113.7 198.51.100.9 40001 443\r\n");
    accepts_unknown(b"PROXY UNKNOWN anything \x00\xff at all\r\n");
    let mut longest = b"PROXY UNKNOWN ".to_vec();
    longest.resize(105, b'f');
    longest.extend(b"\r\n");
    assert_eq!(longest.len(), 107);
    accepts_unknown(&longest);
    longest.insert(50, b'f');
    refuses(&longest, Error::V1TooLong);
}

#[test]
fn v1_invalid() {
    let cases: &[(&[u8], Error)] = &[
        (b"GET / HTTP/1.1\r\n", Error::NoHeader),
        (b"proxy TCP4 1.2.3.4 5.6.7.8 1 2\r\n", Error::NoHeader),
        (b"PROXYTCP4 1.2.3.4 5.6.7.8 1 2\r\n", Error::NoHeader),
        (b" PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n", Error::NoHeader),
        (b"PROXY tcp4 1.2.3.4 5.6.7.8 1 2\r\n", Error::V1Protocol),
        (b"PROXY UDP4 1.2.3.4 5.6.7.8 1 2\r\n", Error::V1Protocol),
        (b"PROXY  TCP4 1.2.3.4 5.6.7.8 1 2\r\n", Error::V1Protocol),
        (b"PROXY TCP41.2.3.4 5.6.7.8 1 2\r\n", Error::V1Protocol),
        (b"PROXY UNKNOWNX\r\n", Error::V1Protocol),
        (b"PROXY\r\n", Error::NoHeader),
        (b"PROXY \r\n", Error::V1Protocol),
        (b"PROXY TCP4\r\n", Error::V1Protocol),
        (b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\n", Error::V1LineEnd),
        (b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\rX", Error::V1LineEnd),
        (b"PROXY UNKNOWN\n", Error::V1Protocol),
        (b"PROXY UNKNOWN a\nb\r\n", Error::V1LineEnd),
        (b"PROXY TCP4 1.2.3.4  5.6.7.8 1 2\r\n", Error::V1Fields),
        (b"PROXY TCP4  1.2.3.4 5.6.7.8 1 2\r\n", Error::V1Fields),
        (b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2 \r\n", Error::V1Fields),
        (b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2 3\r\n", Error::V1Fields),
        (b"PROXY TCP4 1.2.3.4 5.6.7.8 1\r\n", Error::V1Fields),
        (b"PROXY TCP4 1.2.3.4 5.6.7.8\r\n", Error::V1Fields),
        (b"PROXY TCP4 \r\n", Error::V1Fields),
        (b"PROXY TCP4 1.2.3.4\t5.6.7.8 1 2\r\n", Error::V1Address),
        (b"PROXY TCP4 2001:db8::1 2001:db8::2 1 2\r\n", Error::V1Address),
        (b"PROXY TCP6 1.2.3.4 5.6.7.8 1 2\r\n", Error::V1Address),
        (b"PROXY TCP6 2001:db8::1 5.6.7.8 1 2\r\n", Error::V1Address),
        (b"PROXY TCP6 fe80::1%eth0 2001:db8::2 1 2\r\n", Error::V1Address),
        (b"PROXY TCP6 [::1] ::2 1 2\r\n", Error::V1Address),
        (b"PROXY TCP6 1::2::3 ::2 1 2\r\n", Error::V1Address),
        (b"PROXY TCP6 1:2:3:4:5:6:7 ::2 1 2\r\n", Error::V1Address),
        (b"PROXY TCP6 00001:: ::2 1 2\r\n", Error::V1Address),
        (b"PROXY TCP4 01.2.3.4 5.6.7.8 1 2\r\n", Error::V1Address),
        (b"PROXY TCP4 1.2.3 5.6.7.8 1 2\r\n", Error::V1Address),
        (b"PROXY TCP4 1.2.3.256 5.6.7.8 1 2\r\n", Error::V1Address),
        (b"PROXY TCP4 0x1.2.3.4 5.6.7.8 1 2\r\n", Error::V1Address),
        (b"PROXY TCP4 1.2.3.4 5.6.7.8 70000 2\r\n", Error::V1Port),
        (b"PROXY TCP4 1.2.3.4 5.6.7.8 65536 2\r\n", Error::V1Port),
        (b"PROXY TCP4 1.2.3.4 5.6.7.8 -1 2\r\n", Error::V1Address),
        (b"PROXY TCP4 1.2.3.4 5.6.7.8 1 +2\r\n", Error::V1Address),
        (b"PROXY TCP4 1.2.3.4 5.6.7.8 01 2\r\n", Error::V1Port),
        (b"PROXY TCP4 1.2.3.4 5.6.7.8 1 00\r\n", Error::V1Port),
        (b"PROXY TCP4 1.2.3.4 5.6.7.8 1.2 3\r\n", Error::V1Port),
    ];
    for &(bytes, reason) in cases {
        refuses(bytes, reason);
    }
}

#[test]
fn v1_without_end_is_refused_after_107_bytes() {
    let mut line = b"PROXY UNKNOWN ".to_vec();
    line.resize(105, b' ');
    assert_eq!(parse(&line), Ok(Parsed::Incomplete { needed: 2 }));
    line.push(b'\r');
    assert_eq!(parse(&line), Ok(Parsed::Incomplete { needed: 1 }));
    line[105] = b' ';
    assert_eq!(parse(&line), Err(Error::V1TooLong));
    line.resize(300, b' ');
    refuses(&line, Error::V1TooLong);
}

#[test]
fn garbage_is_told_apart_at_its_first_byte() {
    assert_eq!(parse(b""), Ok(Parsed::Incomplete { needed: 15 }));
    assert_eq!(parse(b"G"), Err(Error::NoHeader));
    assert_eq!(parse(b"PROX"), Ok(Parsed::Incomplete { needed: 11 }));
    assert_eq!(parse(b"PROXI"), Err(Error::NoHeader));
    assert_eq!(parse(b"\r\n\r\n\0\r\nQUIX"), Err(Error::NoHeader));
    assert_eq!(parse(b"\r"), Ok(Parsed::Incomplete { needed: 15 }));
    assert_eq!(parse(b"PROXY TCP4 GET"), Err(Error::V1Address));
}

#[track_caller]
fn accepts_v2(bytes: &[u8], transport: Transport, addresses: &str) {
    accepts(bytes, (Version::V2, Command::Proxy, transport, addresses));
}

#[test]
fn v2_valid() {
    let (v4, v6) = (
        "203.0.113.7:40001 198.51.100.9:443",
        "[2001:db8::7]:40001 [2001:db8::9]:443",
    );
    accepts_v2(&v2(0x21, 0x11, &inet()), Transport::Stream, v4);
    accepts_v2(&v2(0x21, 0x12, &inet()), Transport::Datagram, v4);
    accepts_v2(&v2(0x21, 0x21, &inet6()), Transport::Stream, v6);
    accepts_v2(&v2(0x21, 0x22, &inet6()), Transport::Datagram, v6);
    accepts_v2(
        &v2(0x21, 0x11, &hex("cb007107 c6336409 0000 0000")),
        Transport::Stream,
        "203.0.113.7:0 198.51.100.9:0",
    );
    accepts_v2(&v2(0x21, 0x00, &[]), Transport::Unspecified, "");
    let mut unix = [0; 216];
    unix[..5].copy_from_slice(b"/tmp/");
    unix[108..112].copy_from_slice(b"/run");
    accepts_v2(&v2(0x21, 0x31, &unix), Transport::Stream, "/tmp/ /run");
    accepts_v2(&v2(0x21, 0x32, &unix), Transport::Datagram, "/tmp/ /run");
}

#[test]
fn v2_local_ignores_family_and_skips_its_length() {
    let local = (Version::V2, Command::Local, Transport::Unspecified, "");
    for (family, body) in [
        (0x00, vec![]),
        (0x11, vec![]),
        (0x11, inet()),
        (0x21, inet()),
        (0x43, vec![1]),
        (0x00, with_tlv(vec![], kind::NOOP, &[0; 5])),
        (0x00, vec![1, 2]),
    ] {
        accepts(&v2(0x20, family, &body), local);
    }
}

#[test]
fn v2_invalid() {
    let too_short = |announced, required| Error::V2TooShort { announced, required };
    let cases = [
        (v2(0x11, 0x11, &inet()), Error::V2Version(1)),
        (v2(0x31, 0x11, &inet()), Error::V2Version(3)),
        (v2(0x22, 0x11, &inet()), Error::V2Command(2)),
        (v2(0x2f, 0x11, &inet()), Error::V2Command(15)),
        (v2(0x21, 0x41, &inet()), Error::V2Family(0x41)),
        (v2(0x21, 0x13, &inet()), Error::V2Family(0x13)),
        (v2(0x21, 0x10, &inet()), Error::V2Family(0x10)),
        (v2(0x21, 0x01, &inet()), Error::V2Family(0x01)),
        (v2(0x21, 0x11, &[]), too_short(0, 12)),
        (v2(0x21, 0x11, &inet()[..4]), too_short(4, 12)),
        (v2(0x21, 0x11, &inet()[..8]), too_short(8, 12)),
        (v2(0x21, 0x12, &inet()[..11]), too_short(11, 12)),
        (v2(0x21, 0x21, &inet()), too_short(12, 36)),
        (v2(0x21, 0x31, &inet6()), too_short(36, 216)),
    ];
    for (bytes, reason) in cases {
        refuses(&bytes, reason);
        // However much payload follows, it never serves as address.
        let mut with_payload = bytes.clone();
        with_payload.extend([7; 300]);
        assert_eq!(parse(&with_payload), Err(reason));
    }
}

#[test]
fn v2_tlvs_of_any_size() {
    for size in [0, 1, 300, 4000, 60_000, 65_535 - 12 - 3] {
        let bytes = v2(0x21, 0x11, &with_tlv(inet(), 0xf0, &vec![0x5a; size]));
        accepts_v2(&bytes, Transport::Stream, "203.0.113.7:40001 198.51.100.9:443");
    }
    let bytes = v2(0x21, 0x11, &with_tlv(inet(), 0xf0, &[0; 300]));
    let options = ParseOptions {
        max_len: bytes.len(),
        ..ParseOptions::default()
    };
    assert!(matches!(options.parse(&bytes), Ok(Parsed::Complete { .. })));
    let options = ParseOptions {
        max_len: bytes.len() - 1,
        ..ParseOptions::default()
    };
    let too_long = Err(Error::V2TooLong {
        length: bytes.len(),
        limit: bytes.len() - 1,
    });
    assert_eq!(options.parse(&bytes), too_long);
    assert_eq!(
        options.parse(&bytes[..16]),
        too_long,
        "refused as soon as the length is known"
    );
}

#[test]
fn fields_of_a_cloud_beside_those_of_a_client() {
    let body = with_tlv(inet(), kind::AUTHORITY, b"example.org");
    let bytes = v2(0x21, 0x11, &with_tlv(body, kind::AWS, b"\x01vpce-08d2bf15fac5001c9"));
    accepts_v2(&bytes, Transport::Stream, "203.0.113.7:40001 198.51.100.9:443");
    let Ok(Parsed::Complete { header, .. }) = parse(&bytes) else {
        panic!("accepted above")
    };
    let fields: Vec<Tlv<'_>> = header.tlvs.iter().collect();
    assert_eq!(
        fields,
        [
            Tlv::Authority(b"example.org"),
            Tlv::AwsVpcEndpoint(b"vpce-08d2bf15fac5001c9")
        ]
    );
}

#[test]
fn v2_tlv_rules() {
    let overrun = |kind| Error::Tlv(TlvError::Overrun { kind });
    let length = |kind, length| Error::Tlv(TlvError::Length { kind, length });
    let tlvs = |tlvs: &[u8]| v2(0x21, 0x11, &[inet(), tlvs.to_vec()].concat());
    let cases = [
        (tlvs(&[2]), overrun(None)),
        (tlvs(&[2, 0]), overrun(None)),
        (tlvs(&[2, 0, 1]), overrun(Some(2))),
        (tlvs(&[2, 0, 1, b'a', 4]), overrun(None)),
        (tlvs(&[2, 0xff, 0xff, 1, 2, 3]), overrun(Some(2))),
        (tlvs(&[3, 0, 3, 1, 2, 3]), length(3, 3)),
        (tlvs(&[3, 0, 5, 1, 2, 3, 4, 5]), length(3, 5)),
        (
            tlvs(&[3, 0, 4, 0, 0, 0, 0, 3, 0, 4, 0, 0, 0, 0]),
            Error::Tlv(TlvError::RepeatedChecksum),
        ),
        (tlvs(&[0x20, 0, 4, 1, 0, 0, 0]), length(0x20, 4)),
        (tlvs(&[0x20, 0, 8, 1, 0, 0, 0, 0, 0x21, 0, 1]), overrun(Some(0x21))),
        (tlvs(&[0x20, 0, 6, 1, 0, 0, 0, 0, 0x21]), overrun(None)),
        (
            v2(0x21, 0x11, &with_tlv(inet(), kind::UNIQUE_ID, &[1; 129])),
            length(5, 129),
        ),
        (v2(0x21, 0x00, &[1, 2]), overrun(None)),
    ];
    for (bytes, reason) in cases {
        refuses(&bytes, reason);
    }
    accepts_v2(
        &v2(0x21, 0x11, &with_tlv(inet(), kind::UNIQUE_ID, &[1; 128])),
        Transport::Stream,
        "203.0.113.7:40001 198.51.100.9:443",
    );
}

#[test]
fn checksum_of_published_headers() {
    // Captured from an AWS NLB (go-proxyproto's tests), and one computed by hand.
    let vpce = b"vpce-08d2bf15fac5001c9";
    let mut nlb = hex("0d0a0d0a000d0a515549540a 21 11 0054 ac1f0771 ac1f0a1f c8f2 0050 03 0004 e8d6892d ea 0017 01");
    nlb.extend(vpce);
    nlb.extend(hex("04 0024"));
    nlb.extend([0; 36]);
    let small = hex("0d0a0d0a000d0a515549540a 21 11 0013 cb007107 c6336409 9c40 01bb 03 0004 cd824643");
    accepts_v2(&nlb, Transport::Stream, "172.31.7.113:51442 172.31.10.31:80");
    accepts_v2(&small, Transport::Stream, "203.0.113.7:40000 198.51.100.9:443");

    let Ok(Parsed::Complete { header, .. }) = parse(&nlb) else {
        panic!("accepted above")
    };
    let fields: Vec<Tlv<'_>> = header.tlvs.iter().collect();
    assert_eq!(
        fields,
        [
            Tlv::Checksum(0xe8d6_892d),
            Tlv::AwsVpcEndpoint(vpce),
            Tlv::Noop(&[0; 36])
        ]
    );

    for bit in 0..small.len() * 8 {
        let mut broken = small.clone();
        broken[bit / 8] ^= 1 << (bit % 8);
        assert!(
            !matches!(parse(&broken), Ok(Parsed::Complete { .. }) if is_proxy(&broken)),
            "bit {bit}"
        );
    }
    let mut broken = small.clone();
    broken[20] ^= 1;
    assert!(matches!(
        parse(&broken),
        Err(Error::Checksum {
            received: 0xcd82_4643,
            ..
        })
    ));
    let lenient = ParseOptions {
        verify_checksum: false,
        ..ParseOptions::default()
    };
    assert!(matches!(lenient.parse(&broken), Ok(Parsed::Complete { .. })));
}

/// A flipped bit can turn PROXY into LOCAL (nothing is checked there) or the CRC's type into another (no CRC then).
fn is_proxy(bytes: &[u8]) -> bool {
    bytes[12] == 0x21 && bytes[28] == 3
}

#[test]
fn every_known_tlv_is_decoded() {
    let ssl = hex("05 00000000 21 0007 544c5376312e33 22 0002 636e");
    let fields: Vec<(u8, Vec<u8>)> = vec![
        (kind::ALPN, b"h2".to_vec()),
        (kind::AUTHORITY, b"example.org".to_vec()),
        (kind::NOOP, vec![]),
        (kind::UNIQUE_ID, vec![9; 16]),
        (kind::SSL, ssl),
        (kind::NETNS, b"blue".to_vec()),
        (kind::AWS, b"\x01vpce-1".to_vec()),
        (kind::AWS, b"\x02other".to_vec()),
        (kind::AZURE, vec![1, 0x78, 0x56, 0x34, 0x12]),
        (kind::AZURE, vec![1, 2, 3]),
        (kind::GCP, vec![0, 0, 0, 0, 0, 0, 1, 2]),
        (kind::ALIBABA, b"\x01ep".to_vec()),
        (0xf7, vec![1]),
    ];
    let body = fields
        .iter()
        .fold(inet(), |body, (kind, value)| with_tlv(body, *kind, value));
    let bytes = v2(0x21, 0x11, &body);
    let Ok(Parsed::Complete { header, .. }) = parse(&bytes) else {
        panic!("not accepted")
    };
    let decoded: Vec<Tlv<'_>> = header.tlvs.iter().collect();
    let Tlv::Ssl(ssl) = decoded[4] else {
        panic!("{:?}", decoded[4])
    };
    assert!(ssl.client.is_tls() && ssl.client.has_certificate());
    assert_eq!((ssl.verify, ssl.field(kind::SSL_VERSION)), (0, Some(&b"TLSv1.3"[..])));
    assert_eq!(ssl.field(kind::SSL_CN), Some(&b"cn"[..]));
    let expected = [
        Tlv::Alpn(b"h2"),
        Tlv::Authority(b"example.org"),
        Tlv::Noop(b""),
        Tlv::UniqueId(&[9; 16]),
        decoded[4],
        Tlv::Netns(b"blue"),
        Tlv::AwsVpcEndpoint(b"vpce-1"),
        Tlv::Other {
            kind: kind::AWS,
            value: b"\x02other",
        },
        Tlv::AzureLinkId(0x1234_5678),
        Tlv::Other {
            kind: kind::AZURE,
            value: &[1, 2, 3],
        },
        Tlv::GcpConnectionId(0x102),
        Tlv::Alibaba {
            subtype: 1,
            value: b"ep",
        },
        Tlv::Other {
            kind: 0xf7,
            value: &[1],
        },
    ];
    assert_eq!(decoded, expected);
    assert_eq!(header.tlvs.find(kind::AUTHORITY), Some(&b"example.org"[..]));
}
