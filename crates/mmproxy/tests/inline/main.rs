//! Inline mode: the kernel takes the header off, and the server's own socket has the client as its peer. The balancer stands
//! in a namespace of its own behind a veth pair, at 10.7.0.2 and fd07::2; the server's host is 10.7.0.1 and fd07::1.

mod bench;
mod floods;
mod headers;
mod places;
mod restart;
#[path = "../rig/mod.rs"]
mod rig;
mod servers;
mod trouble;
#[path = "../vectors/mod.rs"]
mod vectors;

use proxy_protocol::Transport;
use rig::{Container, PATIENCE, Proxy, greeting, in_bare_namespace, metric, rest, serve, tcp_server, v1, v2, wait_for};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use vectors::{PAYLOAD, invalid, valid};

const V4: &str = "10.7.0.1:8443";
const V6: &str = "[fd07::1]:8443";

fn run(command: &str) {
    let words: Vec<&str> = command.split_whitespace().collect();
    let output = Command::new(words[0]).args(&words[1..]).output().expect("it runs");
    assert!(
        output.status.success(),
        "{command}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

fn skip_for_kernel(reason: &str) {
    ::rig::lacking(std::thread::current().name().unwrap_or("inline"), reason);
}

/// Why this kernel or build has no inline mode, found by starting it on loopback.
fn missing() -> Option<String> {
    if !cfg!(inline_built) {
        return Some("mmproxy is built without inline mode (feature `inline`, clang)".into());
    }
    let arguments = ["-l", "127.0.0.1:8442", "--inline", "-i", "lo", "-i", "nowhere"];
    let output = Command::new(env!("CARGO_BIN_EXE_mmproxy")).args(arguments).output();
    let text = String::from_utf8(output.expect("mmproxy runs").stderr).expect("text");
    // All goes well up to the interface that is not there.
    (!text.contains("interface nowhere")).then_some(text)
}

/// Runs `test` on the server's host with its balancer, unless this kernel lacks what it takes.
fn with_balancer(test: impl FnOnce(&Container) + Send + 'static) {
    in_bare_namespace(|name| {
        if let Some(reason) = missing() {
            return skip_for_kernel(&reason);
        }
        let container = Container::beside(name);
        for command in [
            "ip addr add fd07::1/64 dev inside nodad".to_owned(),
            format!("ip -n {name}-c addr add fd07::2/64 dev outside nodad"),
            "ip route add default via 10.7.0.2".into(),
            "ip route add default via fd07::2".into(),
            format!("{} setup", env!("CARGO_BIN_EXE_mmproxy")),
        ] {
            run(&command);
        }
        test(&container);
    });
}

const INLINE: [&str; 13] = [
    "-l",
    "[::]:8443",
    "-4",
    "127.0.0.1:443",
    "-6",
    "[::1]:443",
    "--workers",
    "1",
    "--inline",
    "-i",
    "inside",
    "--metrics",
    "127.0.0.1:9110",
];

fn inline(more: &[&str]) -> Proxy {
    let mut proxy = Proxy::start(&[&INLINE[..], more].concat(), "127.0.0.1:9110");
    proxy.address = V4.parse().expect("address");
    proxy
}

fn counted(name: &str) -> u64 {
    metric(&format!("mmproxy_inline_{name}_total"))
}

fn connect(to: &str) -> TcpStream {
    let to: SocketAddr = to.parse().expect("address");
    let client = TcpStream::connect_timeout(&to, PATIENCE).expect("connected");
    client.set_nodelay(true).expect("nodelay");
    client.set_read_timeout(Some(PATIENCE)).expect("timeout");
    client
}

/// Sends these pieces and the payload's rest; returns whom the server saw, after it has echoed the payload.
fn exchange(to: &str, pieces: &[Vec<u8>]) -> String {
    let (client, seen) = begin_exchange(to, pieces);
    end_exchange(client, pieces);
    seen
}

/// The first part of it: the connection is open.
fn begin_exchange(to: &str, pieces: &[Vec<u8>]) -> (TcpStream, String) {
    let mut client = connect(to);
    for piece in pieces {
        client.write_all(piece).expect("sent");
        if pieces.len() > 1 {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    let seen = greeting(&mut client).unwrap_or_else(|error| panic!("{error}: {}", start_of(pieces)));
    (client, seen)
}

/// The second part: nothing is left of the connection.
fn end_exchange(mut client: TcpStream, pieces: &[Vec<u8>]) {
    client.shutdown(Shutdown::Write).expect("end");
    assert!(rest(&mut client) == PAYLOAD, "payload behind {}", start_of(pieces));
}

fn start_of(pieces: &[Vec<u8>]) -> String {
    pieces[0][..pieces[0].len().min(60)].escape_ascii().to_string()
}

fn whole(header: &[u8]) -> Vec<Vec<u8>> {
    vec![[header, PAYLOAD].concat()]
}

/// The server saw `expected`: an address and port, or for a port that it chose or was in use, an address.
fn assert_seen(seen: &str, expected: &str, exact: bool) {
    if expected == "127.0.0.1:" {
        // A connection without a client comes from the balancer, or through mmproxy's own socket from this host.
        let of_balancer = ["10.7.0.2:", "[fd07::2]:", "127.0.0.1:", "[::1]:"];
        return assert!(
            of_balancer.iter().any(|one| seen.starts_with(one)),
            "the server saw {seen}"
        );
    }
    let ip = |text: &str| text.rsplit_once(':').map(|(ip, _)| ip.to_owned());
    let fits = if exact {
        seen.starts_with(expected)
    } else {
        ip(seen) == ip(expected)
    };
    assert!(fits, "the server saw {seen}, not {expected}");
}

fn numbered(port: u16) -> Vec<u8> {
    v2(Transport::Stream, &format!("203.0.113.7:{port}"), "198.51.100.9:443")
}
