//! Headers over TCP that must be accepted, and bytes that must be refused.
#![allow(unreachable_pub, reason = "every test file includes it")]

use crate::rig::{encode, inet, raw_v2, tlv, v1, v2};
use proxy_protocol::{Addresses, Header, TlvWriter, Transport};

/// What follows the header: it looks like another one, and is payload.
pub const PAYLOAD: &[u8] = b"PROXY TCP4 1.1.1.1 2.2.2.2 3 4\r\nsecond header is payload";

/// A header and the client that the server must see; `local` for an address of this host.
pub fn valid() -> Vec<(Vec<u8>, &'static str)> {
    let local = "127.0.0.1:";
    let v6_longest =
        "PROXY TCP6 2001:0db8:ffff:ffff:ffff:ffff:ffff:ffff ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff 65535 65535\r\n";
    assert_eq!(v6_longest.len(), 104);
    let mut unknown = b"PROXY UNKNOWN ".to_vec();
    unknown.resize(105, b'x');
    unknown.extend(b"\r\n");
    let with = |port, more: Vec<u8>| raw_v2(0x21, 0x11, &[inet(port), more].concat());
    let mut room = [0; 16];
    let mut writer = TlvWriter::new(&mut room);
    writer.push_checksum().expect("room");
    let pair = Addresses::from_pair(
        "203.0.113.7:41012".parse().expect("ip"),
        "198.51.100.9:443".parse().expect("ip"),
    );
    let crc = encode(&Header::proxy(Transport::Stream, pair).with_tlvs(writer.tlvs()));
    vec![
        (v1("203.0.113.7:41001", "198.51.100.9:443"), "203.0.113.7:41001"),
        (v1("[2001:db8::7]:41002", "[2001:db8::9]:443"), "[2001:db8::7]:41002"),
        (v1("203.0.113.7:0", "198.51.100.9:443"), "203.0.113.7:"),
        (v1("203.0.113.7:41003", "198.51.100.9:0"), "203.0.113.7:41003"),
        (v6_longest.into(), "[2001:db8:ffff:ffff:ffff:ffff:ffff:ffff]:65535"),
        (
            b"PROXY TCP6 ::ffff:203.0.113.8 ::ffff:198.51.100.9 41004 443\r\n".to_vec(),
            "203.0.113.8:41004",
        ),
        (b"PROXY UNKNOWN\r\n".to_vec(), local),
        (b"PROXY UNKNOWN 203.0.113.7 198.51.100.9 1 2\r\n".to_vec(), local),
        (unknown, local),
        (
            v2(Transport::Stream, "203.0.113.7:41005", "198.51.100.9:443"),
            "203.0.113.7:41005",
        ),
        (
            v2(Transport::Stream, "[2001:db8::7]:41006", "[2001:db8::9]:443"),
            "[2001:db8::7]:41006",
        ),
        (raw_v2(0x21, 0x11, &inet(0)), "203.0.113.7:"),
        (raw_v2(0x20, 0x00, &[]), local),
        (raw_v2(0x20, 0x11, &inet(1)), local),
        (raw_v2(0x20, 0x11, &[]), local),
        (raw_v2(0x20, 0x00, &tlv(4, &[0; 9])), local),
        (raw_v2(0x21, 0x00, &[]), local),
        (raw_v2(0x21, 0x31, &[b'/'; 216]), local),
        (
            with(
                41007,
                [tlv(2, b"example.org"), tlv(0xea, b"\x01vpce-08d2bf15fac5001c9")].concat(),
            ),
            "203.0.113.7:41007",
        ),
        (with(41008, tlv(0xf0, &[7; 300])), "203.0.113.7:41008"),
        (with(41009, tlv(0xf0, &[7; 4000])), "203.0.113.7:41009"),
        (with(41010, tlv(0xf0, &[7; 60_000])), "203.0.113.7:41010"),
        (crc, "203.0.113.7:41012"),
    ]
}

/// Bytes that must be refused; `true` if only with the end of the client's data.
pub fn invalid() -> Vec<(Vec<u8>, bool)> {
    let text = |line: &str| (line.as_bytes().to_vec(), false);
    let mut long = b"PROXY UNKNOWN ".to_vec();
    long.resize(300, b'x');
    let mut too_long = b"PROXY UNKNOWN ".to_vec();
    too_long.resize(106, b'x');
    too_long.extend(b"\r\n");
    let mut bad_crc = raw_v2(0x21, 0x11, &[inet(1), tlv(3, &[1, 2, 3, 4])].concat());
    bad_crc.extend(b"more");
    let whole = raw_v2(0x21, 0x11, &inet(9));
    let with = |more: &[u8]| (raw_v2(0x21, 0x11, &[&inet(1), more].concat()), false);
    let mut cases: Vec<(Vec<u8>, bool)> = [
        "GET / HTTP/1.1\r\n\r\n",
        "proxy TCP4 203.0.113.7 198.51.100.9 1 2\r\n",
        "PROXY TCP4 203.0.113.7 198.51.100.9 1 2\n",
        "PROXY TCP4  203.0.113.7 198.51.100.9 1 2\r\n",
        "PROXY TCP4 203.0.113.7 198.51.100.9 1 2 3\r\n",
        "PROXY TCP4 203.0.113.7 198.51.100.9\r\n",
        "PROXY TCP4 2001:db8::1 2001:db8::2 1 2\r\n",
        "PROXY TCP6 203.0.113.7 198.51.100.9 1 2\r\n",
        "PROXY TCP6 fe80::1%lo 2001:db8::2 1 2\r\n",
        "PROXY TCP4 203.0.113.7 198.51.100.9 01 2\r\n",
        "PROXY TCP4 203.0.113.07 198.51.100.9 1 2\r\n",
        "PROXY TCP4 203.0.113.7 198.51.100.9 70000 2\r\n",
        "PROXY TCP4 203.0.113.7 198.51.100.9 -1 2\r\n",
        "PROXY TCP4 203.0.113.7 198.51.100.9 +1 2\r\n",
        "PROXY UDP4 203.0.113.7 198.51.100.9 1 2\r\n",
        "PROXYTCP4 203.0.113.7 198.51.100.9 1 2\r\n",
    ]
    .map(text)
    .into();
    cases.extend([
        (long, false),
        (too_long, false),
        (raw_v2(0x11, 0x11, &inet(1)), false),
        (raw_v2(0x31, 0x11, &inet(1)), false),
        (raw_v2(0x22, 0x11, &inet(1)), false),
        (raw_v2(0x21, 0x41, &inet(1)), false),
        (raw_v2(0x21, 0x13, &inet(1)), false),
        // Peers crash on these, or take the address from the payload that follows.
        (raw_v2(0x21, 0x11, &[]), false),
        ([raw_v2(0x21, 0x11, &[]), vec![1; 64]].concat(), false),
        ([raw_v2(0x21, 0x11, &[1, 2, 3, 4]), vec![1; 64]].concat(), false),
        (raw_v2(0x21, 0x11, &[1; 8]), false),
        (raw_v2(0x21, 0x21, &inet(1)), false),
        (raw_v2(0x21, 0x12, &inet(1)), false),
        with(&[2, 0, 9, b'x']),
        with(&tlv(0x20, &[1, 0, 0, 0, 0, 0x21, 0, 9, 1])),
        with(&[tlv(3, &[0; 4]), tlv(3, &[0; 4])].concat()),
        (bad_crc, false),
        (whole[..12].to_vec(), true),
        (whole[..13].to_vec(), true),
        (whole[..15].to_vec(), true),
        (whole[..16].to_vec(), true),
        (whole[..27].to_vec(), true),
        (b"PROXY TCP4 203.0.113.7".to_vec(), true),
    ]);
    cases
}
