//! Inline mode: the kernel takes the header off, and the server's own socket has the client as its peer. The balancer stands
//! in a namespace of its own behind a veth pair, at 10.7.0.2 and fd07::2; the server's host is 10.7.0.1 and fd07::1.

mod rig;
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

fn inline(more: &[&str]) -> Proxy {
    let usual = [
        "-l",
        "[::]:8443",
        "-4",
        "127.0.0.1:443",
        "-6",
        "[::1]:443",
        "--workers",
        "1",
    ];
    let inline = ["--inline", "-i", "inside", "--metrics", "127.0.0.1:9110"];
    let mut proxy = Proxy::start(&[&usual[..], &inline, more].concat(), "127.0.0.1:9110");
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
    let mut client = connect(to);
    for piece in pieces {
        client.write_all(piece).expect("sent");
        if pieces.len() > 1 {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    let about = || pieces[0][..pieces[0].len().min(60)].escape_ascii().to_string();
    let seen = greeting(&mut client).unwrap_or_else(|error| panic!("{error}: {}", about()));
    client.shutdown(Shutdown::Write).expect("end");
    assert!(rest(&mut client) == PAYLOAD, "payload behind {}", about());
    seen
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

/// TCP segments that this host has found damaged.
fn checksum_errors() -> u64 {
    let text = std::fs::read_to_string("/proc/net/snmp").expect("counters");
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Tcp:"));
    let (names, values) = (lines.next().expect("names"), lines.next().expect("values"));
    let mut pairs = names.split_whitespace().zip(values.split_whitespace());
    let (_, value) = pairs.find(|(name, _)| *name == "InCsumErrors").expect("counted");
    value.parse().expect("a number")
}

/// Every valid header; those that are whole, short and of the connection's family without a second socket.
fn vectors_over(container: &Container, to: &'static str) -> (u64, u64) {
    let before = (counted("assigned") + counted("assigned_local"), counted("fall_back"));
    for (header, expected) in valid() {
        let seen = container.run(move || exchange(to, &whole(&header)));
        assert_seen(&seen, expected, false);
    }
    // Counters are read each second.
    std::thread::sleep(Duration::from_millis(1200));
    let after = (counted("assigned") + counted("assigned_local"), counted("fall_back"));
    (after.0 - before.0, after.1 - before.1)
}

#[test]
fn valid_headers_arrive_inline_or_by_mmproxys_own_socket() {
    with_balancer(|container| {
        tcp_server("127.0.0.1:443");
        tcp_server("[::1]:443");
        let _proxy = inline(&[]);
        let all = valid().len() as u64;
        // By mmproxy's own socket: TCP6 over IPv4 (4), port 0 (2), UNIX, more than 536 bytes (2).
        assert_eq!(vectors_over(container, V4), (all - 9, 9));
        // TCP4 over IPv6 and what is above; short headers whose checksum is still to be completed.
        let (inline, own) = vectors_over(container, V6);
        assert_eq!(inline + own, all);
        assert!(inline >= 3, "{inline} inline over IPv6");
        // Checksums that are complete already: odd and even lengths.
        run("ethtool -K inside tx off rx off");
        container.run(|| run("ethtool -K outside tx off rx off"));
        assert_eq!(vectors_over(container, V4), (all - 9, 9));
        assert_eq!(counted("failed"), 0);
        assert_eq!(checksum_errors(), 0);
    });
}

#[test]
fn split_headers_arrive_by_mmproxys_own_socket() {
    with_balancer(|container| {
        tcp_server("127.0.0.1:443");
        let _proxy = inline(&[]);
        let headers = [
            v1("203.0.113.7:41001", "198.51.100.9:443"),
            v2(Transport::Stream, "203.0.113.7:41005", "198.51.100.9:443"),
        ];
        container.run(move || {
            std::thread::scope(|scope| {
                for header in &headers {
                    for cut in 1..header.len() {
                        scope.spawn(move || {
                            let all = [header, PAYLOAD].concat();
                            let (front, back) = all.split_at(cut);
                            let seen = exchange(V4, &[front.to_vec(), back.to_vec()]);
                            assert_seen(&seen, "203.0.113.7:41001", false);
                        });
                    }
                }
            });
        });
    });
}

#[test]
fn invalid_headers_reach_no_server() {
    with_balancer(|container| {
        let servers = [tcp_server("127.0.0.1:443"), tcp_server("[::1]:443")];
        let _proxy = inline(&[]);
        for (bytes, needs_end) in invalid() {
            container.run(move || {
                let mut client = connect(V4);
                let _ = client.write_all(&bytes);
                if needs_end {
                    let _ = client.shutdown(Shutdown::Write);
                }
                assert!(rest(&mut client).is_empty(), "{} was answered", bytes.escape_ascii());
            });
        }
        assert_eq!(servers.map(|server| server.accepted.load(Ordering::SeqCst)), [0, 0]);
    });
}

#[test]
fn the_server_sees_its_client_everywhere() {
    with_balancer(|container| {
        serve("127.0.0.1:443", |mut client, accepted| {
            let asked = client.peer_addr().expect("a peer");
            let _ = client.write_all(format!("{accepted} {asked}\n").as_bytes());
            let _ = client.read(&mut [0; 1]);
        });
        let _proxy = inline(&[]);
        run("nft add table ip guard");
        for rule in [
            "add chain ip guard input { type filter hook input priority 0 ; }",
            "add rule ip guard input ip saddr 203.0.113.7 tcp dport 8443 counter",
        ] {
            run(&format!("nft {rule}"));
        }
        let client = container.run(|| {
            let mut client = connect(V4);
            let header = v2(Transport::Stream, "203.0.113.7:40001", "198.51.100.9:443");
            client.write_all(&header).expect("sent");
            assert_eq!(
                greeting(&mut client).expect("served"),
                "203.0.113.7:40001 203.0.113.7:40001"
            );
            client
        });
        let output = |program: &str, arguments: &[&str]| {
            let output = Command::new(program).args(arguments).output().expect("it runs");
            String::from_utf8(output.stdout).expect("text")
        };
        assert!(output("ss", &["-tnH"]).contains("203.0.113.7:40001"));
        assert!(!output("nft", &["list", "table", "ip", "guard"]).contains("packets 0"));
        drop(client);
    });
}

#[test]
fn one_client_three_times_at_once_and_after_its_end() {
    with_balancer(|container| {
        tcp_server("127.0.0.1:443");
        // It closes first, so that the client's address and port are in TIME-WAIT here.
        serve("127.0.0.2:444", |mut client, from| {
            let _ = client.write_all(format!("{from}\n").as_bytes());
        });
        let proxy = inline(&[]);
        let header = || v2(Transport::Stream, "203.0.113.7:40001", "198.51.100.9:443");
        container.run(move || {
            let mut open = Vec::new();
            let mut seen = Vec::new();
            for _ in 0..3 {
                let mut client = connect(V4);
                client.write_all(&header()).expect("sent");
                seen.push(greeting(&mut client).expect("served"));
                open.push(client);
            }
            assert_eq!(seen[0], "203.0.113.7:40001");
            seen.sort();
            seen.dedup();
            assert!(
                seen.len() == 3 && seen.iter().all(|one| one.starts_with("203.0.113.7:")),
                "{seen:?}"
            );
        });
        drop(proxy);
        let _proxy = inline(&["-4", "127.0.0.2:444"]);
        container.run(move || {
            for _ in 0..3 {
                let mut client = connect(V4);
                client.write_all(&header()).expect("sent");
                let seen = greeting(&mut client).expect("served");
                assert!(seen.starts_with("203.0.113.7:"), "{seen}");
                assert!(rest(&mut client).is_empty());
            }
        });
    });
}

#[test]
fn strangers_are_not_heard_and_nobody_speaks_for_a_client() {
    with_balancer(|container| {
        let server = tcp_server("127.0.0.1:443");
        let list = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(list.path(), "10.7.0.2\n").expect("written");
        let proxy = inline(&["-a", list.path().to_str().expect("a path")]);
        run("ip addr add 10.7.0.3/24 dev inside");
        let mut client = container.run(|| {
            let mut client = connect(V4);
            client
                .write_all(&v2(Transport::Stream, "203.0.113.7:40001", "198.51.100.9:443"))
                .expect("sent");
            assert_eq!(greeting(&mut client).expect("served"), "203.0.113.7:40001");
            client
        });
        let refused = |source: &'static str| {
            container.run(move || {
                run(&format!("ip addr add {source}/32 dev lo"));
                let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("socket");
                let from: SocketAddr = format!("{source}:40001").parse().expect("address");
                socket.set_reuse_address(true).expect("reuse");
                socket.bind(&from.into()).expect("bound");
                let to: SocketAddr = V4.parse().expect("address");
                assert!(socket.connect_timeout(&to.into(), Duration::from_millis(300)).is_err());
            });
        };
        refused("10.7.9.9");
        // The client's own address and port, from the wire.
        refused("203.0.113.7");
        client.write_all(b"still there").expect("sent");
        let mut echo = [0; 11];
        client.read_exact(&mut echo).expect("echoed");
        assert_eq!(&echo, b"still there");
        assert_eq!(server.accepted.load(Ordering::SeqCst), 1);
        wait_for("both were counted", || {
            counted("not_allowed") >= 1 && counted("claimed") >= 1
        });

        // The list changes, and connections stay.
        std::fs::write(list.path(), "10.7.9.0/24\n").expect("written");
        proxy.signal(rustix::process::Signal::HUP);
        std::thread::sleep(Duration::from_millis(500));
        client.write_all(b"still there").expect("sent");
        client.read_exact(&mut echo).expect("echoed");
        container.run(|| {
            let to: SocketAddr = V4.parse().expect("address");
            assert!(TcpStream::connect_timeout(&to, Duration::from_millis(300)).is_err());
        });
    });
}

#[test]
fn first_segments_that_are_lost_come_again_and_loss_harms_nothing() {
    with_balancer(|container| {
        tcp_server("127.0.0.1:443");
        let proxy = inline(&[]);
        // Behind tc: the translated packet never reaches the socket, and what follows it must not be answered by RST.
        run("nft add table ip lossy");
        run("nft add chain ip lossy input { type filter hook input priority 0 ; }");
        run("nft add rule ip lossy input ip saddr 203.0.113.7 tcp dport 8443 numgen inc mod 4 < 2 drop");
        container.run(|| {
            let mut client = connect(V4);
            let header = v2(Transport::Stream, "203.0.113.7:40001", "198.51.100.9:443");
            client.write_all(&header).expect("sent");
            std::thread::sleep(Duration::from_millis(5));
            client.write_all(b"and more").expect("sent");
            assert_eq!(greeting(&mut client).expect("served"), "203.0.113.7:40001");
            client.shutdown(Shutdown::Write).expect("end");
            assert_eq!(rest(&mut client), b"and more");
        });
        run("nft delete table ip lossy");
        for command in [
            "nft add table netdev loss",
            "nft add chain netdev loss in { type filter hook ingress device inside priority 0 ; }",
            "nft add rule netdev loss in meta l4proto tcp numgen random mod 1000 < 100 drop",
            "nft add chain netdev loss out { type filter hook egress device inside priority 0 ; }",
            "nft add rule netdev loss out meta l4proto tcp numgen random mod 1000 < 100 drop",
        ] {
            run(command);
        }
        let body: Arc<Vec<u8>> = Arc::new((0..100_000u32).map(|index| (index * 7 / 8) as u8).collect());
        container.run(move || {
            std::thread::scope(|scope| {
                for index in 0..40u16 {
                    let body = Arc::clone(&body);
                    scope.spawn(move || transfer(41_000 + index, &body));
                }
            });
        });
        drop(proxy);
    });
}

fn transfer(port: u16, body: &[u8]) {
    let client = TcpStream::connect(V4).expect("connected");
    client.set_read_timeout(Some(Duration::from_secs(60))).expect("timeout");
    let mut reader = client.try_clone().expect("clone");
    let header = v2(Transport::Stream, &format!("203.0.113.7:{port}"), "198.51.100.9:443");
    let sent = [&header[..], body].concat();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            (&client).write_all(&sent).expect("sent");
            client.shutdown(Shutdown::Write).expect("end");
        });
        assert_eq!(greeting(&mut reader).expect("served"), format!("203.0.113.7:{port}"));
        let mut received = Vec::new();
        reader.read_to_end(&mut received).expect("received");
        assert!(received == body, "{} bytes", received.len());
    });
}

#[test]
fn connections_end_and_leave_nothing() {
    with_balancer(|container| {
        tcp_server("127.0.0.1:443");
        let mut proxy = inline(&[]);
        let client = container.run(|| {
            let mut client = connect(V4);
            let header = v2(Transport::Stream, "203.0.113.7:40001", "198.51.100.9:443");
            client.write_all(&header).expect("sent");
            assert_eq!(greeting(&mut client).expect("served"), "203.0.113.7:40001");
            client
        });
        wait_for("it is counted", || metric("mmproxy_inline_active") == 1);
        drop(client);
        wait_for("it is forgotten", || metric("mmproxy_inline_active") == 0);
        // Peers that say nothing.
        let silent = container.run(|| (0..200).map(|_| connect(V4)).collect::<Vec<_>>());
        std::thread::sleep(Duration::from_millis(1200));
        assert_eq!(metric("mmproxy_inline_active"), 0);
        let sockets = std::fs::read_to_string("/proc/net/tcp").expect("sockets");
        assert!(!sockets.contains("0200070A:"), "a socket for a silent peer: {sockets}");
        drop(silent);
        proxy.signal(rustix::process::Signal::TERM);
        wait_for("it has ended", || !proxy.is_alive());
    });
}

/// A balancer at 10.8.0.2, behind the container as a router whose link to it is small. It is told so by nobody but the router.
#[test]
fn errors_about_packets_to_the_balancer_find_the_servers_socket() {
    with_balancer(|container| {
        serve("127.0.0.1:443", |mut client, from| {
            let _ = client.write_all(format!("{from}\n").as_bytes());
            let _ = client.write_all(&vec![7; 2_000_000]);
        });
        let _proxy = inline(&[]);
        let far = container.run(|| {
            let name = format!("mmproxy-far-{}", std::process::id());
            run(&format!("ip netns add {name}"));
            for command in [
                format!("ip link add near type veth peer name far netns {name}"),
                "ip addr add 10.8.0.1/24 dev near".into(),
                "ip link set near mtu 1280 up".into(),
                "sysctl -q -w net.ipv4.ip_forward=1".into(),
                format!("ip -n {name} addr add 10.8.0.2/24 dev far"),
                format!("ip -n {name} link set far up"),
                format!("ip -n {name} route add default via 10.8.0.1"),
            ] {
                run(&command);
            }
            rig::Container::named(&name)
        });
        let length = far.run(|| {
            let mut client = connect(V4);
            let header = v2(Transport::Stream, "203.0.113.7:40001", "198.51.100.9:443");
            client.write_all(&header).expect("sent");
            assert_eq!(greeting(&mut client).expect("served"), "203.0.113.7:40001");
            rest(&mut client).len()
        });
        assert_eq!(length, 2_000_000);
        wait_for("errors were translated", || counted("icmp") > 0);
        // The other way: this host refuses the client, and the balancer hears that it is about its connection.
        run("nft add table inet guard");
        run("nft add chain inet guard input { type filter hook input priority 0 ; }");
        container.run(|| {
            let mut client = connect(V4);
            let header = v2(Transport::Stream, "203.0.113.7:40002", "198.51.100.9:443");
            client.write_all(&header).expect("sent");
            assert_eq!(greeting(&mut client).expect("served"), "203.0.113.7:40002");
        });
        run("nft add rule inet guard input ip saddr 203.0.113.7 reject with icmp type host-unreachable");
        let errors = container.run(|| {
            let mut client = connect(V4);
            let header = v2(Transport::Stream, "203.0.113.7:40003", "198.51.100.9:443");
            client.write_all(&header).expect("sent");
            std::thread::sleep(Duration::from_millis(100));
            std::fs::read_to_string("/proc/net/snmp").expect("counters")
        });
        let lines: Vec<Vec<&str>> = errors
            .lines()
            .filter_map(|line| Some(line.strip_prefix("Icmp:")?.split_whitespace().collect()))
            .collect();
        let value = |name| {
            let at = lines[0].iter().position(|&one| one == name).expect("counted");
            lines[1][at].parse::<u64>().expect("a number")
        };
        assert!(value("InDestUnreachs") > 0 && value("InCsumErrors") == 0, "{errors}");
    });
}

/// Answers to clients have another next hop than those to the balancer, which nobody answers at.
#[test]
fn answers_go_to_the_balancer_where_clients_are_routed_elsewhere() {
    with_balancer(|container| {
        tcp_server("127.0.0.1:443");
        tcp_server("[::1]:443");
        let _proxy = inline(&[]);
        for command in [
            "ip neigh add 10.7.0.9 lladdr 02:00:00:00:00:09 dev inside",
            "ip route replace default via 10.7.0.9",
            "ip neigh add fd07::9 lladdr 02:00:00:00:00:09 dev inside",
            "ip -6 route replace default via fd07::9",
        ] {
            run(command);
        }
        container.run(|| {
            for (to, client) in [(V4, "203.0.113.7:40001"), (V6, "[2001:db8::7]:40001")] {
                let header = v2(Transport::Stream, client, client);
                assert_eq!(exchange(to, &whole(&header)), client);
            }
        });
    });
}

#[test]
fn status_shows_both_modes() {
    with_balancer(|container| {
        tcp_server("127.0.0.1:443");
        let _proxy = inline(&[]);
        container.run(|| exchange(V4, &whole(&v1("203.0.113.7:41001", "198.51.100.9:443"))));
        let status = || {
            let output = Command::new(env!("CARGO_BIN_EXE_mmproxy"))
                .arg("status")
                .output()
                .expect("it runs");
            String::from_utf8(output.stdout).expect("text")
        };
        let has = |text: &str, wanted: &[&str]| {
            text.lines()
                .any(|line| line.split_whitespace().eq(wanted.iter().copied()))
        };
        wait_for("it is counted", || has(&status(), &["assigned", "1"]));
        assert!(has(&status(), &["tcp_accepted", "0"]), "{}", status());
    });
}

#[test]
fn auto_is_inline_where_that_works_and_says_why_where_not() {
    with_balancer(|container| {
        tcp_server("127.0.0.1:443");
        let check = |more: &[&str]| {
            let output = Command::new(env!("CARGO_BIN_EXE_mmproxy"))
                .args([&["check", "--inline", "--interface", "inside"], more].concat())
                .output()
                .expect("it runs");
            (output.status.success(), String::from_utf8(output.stdout).expect("text"))
        };
        run("sysctl -q -w net.ipv4.conf.all.rp_filter=0");
        run("sysctl -q -w net.ipv4.conf.inside.rp_filter=0");
        let (good, text) = check(&[]);
        assert!(good && text.contains("[ ok ] inline mode: test connection"), "{text}");
        let seen = || container.run(|| exchange(V4, &whole(&v1("203.0.113.7:41001", "198.51.100.9:443"))));
        let proxy = inline(&["--inline=auto"]);
        assert_eq!(seen(), "203.0.113.7:41001");
        // One is the test connection.
        wait_for("it was inline", || counted("assigned") == 2);
        drop(proxy);

        run("sysctl -q -w net.ipv4.tcp_syncookies=0");
        let (good, text) = check(&[]);
        assert!(!good && text.contains("tcp_syncookies"), "{text}");
        let _proxy = inline(&["--inline=auto"]);
        assert_eq!(seen(), "203.0.113.7:41001");
        assert_eq!(metric("mmproxy_tcp_connected_total"), 1);
    });
}

fn numbered(port: u16) -> Vec<u8> {
    v2(Transport::Stream, &format!("203.0.113.7:{port}"), "198.51.100.9:443")
}

#[test]
fn balancers_on_loopback() {
    with_balancer(|container| {
        tcp_server("127.0.0.1:443");
        let _proxy = inline(&["-i", "lo"]);
        assert_eq!(
            exchange("127.0.0.1:8443", &whole(&numbered(40_001))),
            "203.0.113.7:40001"
        );
        let seen = container.run(|| exchange(V4, &whole(&numbered(40_002))));
        assert_eq!(seen, "203.0.113.7:40002");
        wait_for("both were inline", || counted("assigned") == 2);
        assert_eq!(counted("fall_back"), 0);
    });
}

/// Clients are reached through the interface without a tag, and its program sends the answers into the VLAN.
#[test]
fn balancers_in_a_vlan() {
    with_balancer(|container| {
        tcp_server("127.0.0.1:443");
        let add = "link add link inside name inside.5 type vlan id 5".split(' ');
        if !Command::new("ip")
            .args(add)
            .status()
            .is_ok_and(|status| status.success())
        {
            return skip_for_kernel("this kernel has no VLANs");
        }
        run("ip addr add 10.9.5.1/24 dev inside.5");
        run("ip link set inside.5 up");
        container.run(|| {
            run("ip link add link outside name outside.5 type vlan id 5");
            run("ip addr add 10.9.5.2/24 dev outside.5");
            run("ip link set outside.5 up");
        });
        let _proxy = inline(&["-i", "inside.5"]);
        let seen = container.run(|| exchange("10.9.5.1:8443", &whole(&numbered(40_001))));
        assert_eq!(seen, "203.0.113.7:40001");
        wait_for("it was inline", || counted("assigned") == 1);
    });
}

#[test]
fn all_of_a_reuseport_group_get_connections() {
    with_balancer(|container| {
        let accepted = [0; 2].map(|_| {
            let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("socket");
            socket.set_reuse_port(true).expect("reuse");
            let address: SocketAddr = "127.0.0.1:443".parse().expect("address");
            socket.bind(&address.into()).expect("bound");
            socket.listen(64).expect("listening");
            std::net::TcpListener::from(socket)
        });
        let _proxy = inline(&[]);
        let clients: Vec<TcpStream> = container.run(|| {
            (0..32u16)
                .map(|index| {
                    let mut client = connect(V4);
                    let source = format!("203.0.113.7:{}", 40_000 + index);
                    let header = v2(Transport::Stream, &source, "198.51.100.9:443");
                    client.write_all(&header).expect("sent");
                    client
                })
                .collect()
        });
        wait_for("all were handed over", || counted("assigned") == 32);
        let counts = accepted.map(|listener| {
            listener.set_nonblocking(true).expect("nonblocking");
            std::iter::from_fn(|| listener.accept().ok()).count()
        });
        assert_eq!(counts.iter().sum::<usize>(), 32);
        assert!(counts.iter().all(|&count| count > 0), "{counts:?}");
        drop(clients);
    });
}
