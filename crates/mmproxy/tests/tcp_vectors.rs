//! Every TCP header that must be accepted arrives at the server as the right client, whole and split in any way; every
//! other is refused, reaches no server, and the proxy lives on.

mod rig;
mod vectors;

use rig::{greeting, in_namespace, rest, tcp_server, v1};
use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::Ordering;
use std::time::Duration;
use vectors::{PAYLOAD, invalid, valid};

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
