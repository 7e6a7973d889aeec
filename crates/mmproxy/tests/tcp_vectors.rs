//! Every TCP header that must be accepted arrives at the server as the right client, whole and split in any way; every
//! other is refused, reaches no server, and the proxy lives on.

mod rig;

use proxy_protocol::{Addresses, Header, TlvWriter, Transport};
use rig::{encode, greeting, in_namespace, inet, raw_v2, rest, tcp_server, tlv, v1, v2};
use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::Ordering;
use std::time::Duration;

const PAYLOAD: &[u8] = b"PROXY TCP4 1.1.1.1 2.2.2.2 3 4\r\nsecond header is payload";

/// A header and the client that the server must see; `local` for an address of this host.
fn valid() -> Vec<(Vec<u8>, &'static str)> {
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
fn invalid() -> Vec<(Vec<u8>, bool)> {
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

/// Sends the header in these pieces to this port, then payload, and checks what the server saw and echoed.
fn relay(port: u16, pieces: &[&[u8]], expected: &str) {
    let mut client = TcpStream::connect(("127.0.0.1", port)).expect("connected");
    client.set_read_timeout(Some(rig::PATIENCE)).expect("timeout");
    for piece in pieces {
        client.write_all(piece).expect("sent");
        if pieces.len() > 1 {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    let about = || {
        pieces.concat()[..pieces.concat().len().min(80)]
            .escape_ascii()
            .to_string()
    };
    let seen =
        greeting(&mut client).unwrap_or_else(|error| panic!("{error} for {} pieces of {}", pieces.len(), about()));
    assert!(
        seen.starts_with(expected),
        "the server saw {seen}, not {expected}: {}",
        about()
    );
    client.shutdown(Shutdown::Write).expect("end");
    assert!(rest(&mut client) == PAYLOAD, "payload of {}", about());
}

/// How often a header is sent: whole, in two pieces, and in many.
const WAYS: u16 = 24;

/// Ports that the proxy listens on, and those of its servers, one to one. Each connection has a pair of its own: at one that was used
/// a moment ago the client's port is in TIME-WAIT, and the kernel would take another for it.
const LISTENING: u16 = 20_000;
const SERVING: u16 = 30_000;

/// Sends a header in every way to the ports from `first` on.
fn relay_in_every_way(first: u16, header: &[u8], expected: &str) {
    let host = if expected.starts_with('[') {
        "[::1]"
    } else {
        "127.0.0.1"
    };
    let all = [header, PAYLOAD].concat();
    let end = header.len();
    let cuts = [
        1,
        5,
        6,
        7,
        8,
        11,
        12,
        13,
        15,
        16,
        17,
        20,
        28,
        29,
        end / 2,
        end - 2,
        end - 1,
        end,
        end + 1,
    ];
    let cuts = cuts.into_iter().filter(|&cut| cut <= end + 1);
    let step = if end > 400 { end / 50 } else { 1 };
    let in_two = cuts.map(|cut| vec![&all[..cut], &all[cut..]]);
    let ways = std::iter::once(vec![&all[..]])
        .chain(in_two)
        .chain([all.chunks(step).collect()]);
    for (pieces, port) in ways.zip(first..first + WAYS) {
        tcp_server(&format!("{host}:{}", SERVING + port));
        relay(LISTENING + port, &pieces, expected);
    }
}

#[test]
fn valid_headers_arrive_whole_and_split() {
    in_namespace(|| {
        let cases = valid();
        let last = cases.len() as u16 * WAYS - 1;
        let listen = format!("127.0.0.1:{LISTENING}-{}", LISTENING + last);
        let [v4, v6] = ["127.0.0.1", "[::1]"].map(|host| format!("{host}:{SERVING}-{}", SERVING + last));
        let arguments = ["-l", &listen, "-4", &v4, "-6", &v6, "--workers", "2"];
        let _proxy = rig::Proxy::start(&arguments, &format!("127.0.0.1:{LISTENING}"));
        std::thread::scope(|scope| {
            for (first, (header, expected)) in (0..).step_by(usize::from(WAYS)).zip(&cases) {
                scope.spawn(move || relay_in_every_way(first, header, expected));
            }
        });
    });
}

#[test]
fn invalid_headers_reach_no_server() {
    in_namespace(|| {
        let servers = [tcp_server("127.0.0.1:443"), tcp_server("[::1]:443")];
        let mut proxy = rig::Proxy::tcp(&["--metrics", "127.0.0.1:9110"]);
        for (bytes, needs_end) in invalid() {
            for split in [false, true] {
                let mut client = proxy.connect();
                let step = if split { 1 } else { bytes.len() };
                for piece in bytes.chunks(step.max(1)) {
                    // The proxy may have refused before all is sent.
                    if client.write_all(piece).is_err() {
                        break;
                    }
                }
                if needs_end {
                    let _ = client.shutdown(Shutdown::Write);
                }
                let answer = rest(&mut client);
                assert!(
                    answer.is_empty(),
                    "{} got {}",
                    bytes.escape_ascii(),
                    answer.escape_ascii()
                );
            }
        }
        assert!(proxy.is_alive());
        assert_eq!(servers.map(|server| server.accepted.load(Ordering::SeqCst)), [0, 0]);
        let bad = "mmproxy_refused_total{reason=\"bad_header\"}";
        let end = "mmproxy_refused_total{reason=\"header_end\"}";
        let transport = "mmproxy_refused_total{reason=\"wrong_transport\"}";
        let counted = rig::metric(bad) + rig::metric(end) + rig::metric(transport);
        assert_eq!(counted, 2 * invalid().len() as u64);
        relay(
            8443,
            &[&[&v1("203.0.113.7:41001", "198.51.100.9:443"), PAYLOAD].concat()],
            "203.0.113.7:41001",
        );
    });
}
