//! Clients that are there twice, strangers, loss, ends, and errors from the network.

use super::*;

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

/// The server closes last, so that the client's address and port are free at once, before mmproxy looks for connections that ended.
#[test]
fn a_client_that_comes_back_with_its_port_keeps_it() {
    with_balancer(|container| {
        tcp_server("127.0.0.1:443");
        let _proxy = inline(&[]);
        for _ in 0..4 {
            container.run(|| {
                let mut client = connect(V4);
                client.write_all(&numbered(40_001)).expect("sent");
                assert_eq!(greeting(&mut client).expect("served"), "203.0.113.7:40001");
                client.shutdown(Shutdown::Write).expect("end");
                assert!(rest(&mut client).is_empty());
            });
            wait_for("the server's socket has gone", || {
                let arguments = ["-Htn", "state", "connected", "src", V4];
                let sockets = Command::new("ss").args(arguments).output().expect("ss runs");
                assert!(sockets.status.success());
                sockets.stdout.is_empty()
            });
        }
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

/// Lost before tc: what follows the first segment is of no connection that anyone knows, and must not be answered by RST. A drop at
/// the balancer would be known to its TCP, which then sends both in one segment: hence a port where nobody listens.
#[test]
fn a_second_segment_that_comes_first_waits_for_the_one_before() {
    with_balancer(|container| {
        tcp_server("127.0.0.1:443");
        tcp_server("[::1]:443");
        let proxy = inline(&[]);
        container.run(|| {
            run("nft add table netdev first");
            run("nft add chain netdev first out { type filter hook egress device outside priority 0 ; }");
            let clients = [
                (V4, "203.0.113.7:40001", "198.51.100.9:443"),
                (V6, "[2001:db8::7]:40001", "[2001:db8::9]:443"),
            ];
            for (to, from, destination) in clients {
                let lose = "tcp dport 8443 tcp flags & psh == psh numgen inc mod 1000 < 1 tcp dport set 9";
                run(&format!("nft add rule netdev first out {lose}"));
                let mut client = connect(to);
                client
                    .write_all(&v2(Transport::Stream, from, destination))
                    .expect("sent");
                client.write_all(b"and more").expect("sent");
                assert_eq!(greeting(&mut client).expect("served"), from);
                client.shutdown(Shutdown::Write).expect("end");
                assert_eq!(rest(&mut client), b"and more");
                run("nft flush chain netdev first out");
            }
        });
        wait_for("both are counted", || counted("not_yet") >= 2);
        assert_eq!(counted("bad_cookie"), 0);
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
        let sockets = std::fs::read_to_string("/proc/thread-self/net/tcp").expect("sockets");
        assert!(!sockets.contains("0200070A:"), "a socket for a silent peer: {sockets}");
        drop(silent);
        proxy.signal(rustix::process::Signal::TERM);
        wait_for("it has ended", || !proxy.is_alive());
    });
}

/// A balancer at 10.8.0.2 and fd08::2, behind the container as a router whose link to it is small.
fn balancer_behind_a_router(container: &Container) -> Container {
    container.run(|| {
        let name = format!("mmproxy-far-{:?}", std::thread::current().id()).replace(['(', ')'], "");
        let name = format!("{name}-{}", std::process::id());
        run(&format!("ip netns add {name}"));
        for command in [
            format!("ip link add near type veth peer name far netns {name}"),
            "ip addr add 10.8.0.1/24 dev near".into(),
            "ip addr add fd08::1/64 dev near nodad".into(),
            "ip link set near mtu 1280 up".into(),
            "sysctl -q -w net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1".into(),
            format!("ip -n {name} addr add 10.8.0.2/24 dev far"),
            format!("ip -n {name} addr add fd08::2/64 dev far nodad"),
            format!("ip -n {name} link set far up"),
            format!("ip -n {name} route add default via 10.8.0.1"),
            format!("ip -n {name} route add default via fd08::1"),
        ] {
            run(&command);
        }
        rig::Container::named(&name)
    })
}

/// A counter of ICMP, with IPv6 that of ICMPv6.
fn icmp_count(v6: bool, name: &str) -> u64 {
    let file = if v6 {
        "/proc/thread-self/net/snmp6"
    } else {
        "/proc/thread-self/net/snmp"
    };
    let text = std::fs::read_to_string(file).expect("counters");
    let of = |prefix: &str| {
        let lines = text.lines().filter_map(|line| line.strip_prefix(prefix));
        lines
            .map(|line| line.split_whitespace().collect::<Vec<_>>())
            .collect::<Vec<_>>()
    };
    let value = if v6 {
        of(&format!("Icmp6{name}"))[0][0]
    } else {
        let lines = of("Icmp:");
        lines[1][lines[0].iter().position(|&one| one == name).expect("counted")]
    };
    value.parse().expect("a number")
}

#[test]
fn errors_about_packets_to_the_balancer_find_the_servers_socket() {
    errors_are_heard(false);
}

#[test]
fn icmpv6_errors_about_packets_to_the_balancer_find_the_servers_socket() {
    errors_are_heard(true);
}

fn errors_are_heard(v6: bool) {
    with_balancer(move |container| {
        let (server, to, ip, family) = if v6 {
            ("[::1]:443", V6, "2001:db8::7", "ip6")
        } else {
            ("127.0.0.1:443", V4, "203.0.113.7", "ip")
        };
        let client = move |port: u16| {
            if v6 {
                format!("[{ip}]:{port}")
            } else {
                format!("{ip}:{port}")
            }
        };
        let header = move |port| {
            let source = client(port);
            v2(Transport::Stream, &source, &source)
        };
        serve(server, |mut client, from| {
            let _ = client.write_all(format!("{from}\n").as_bytes());
            let _ = client.write_all(&vec![7; 2_000_000]);
        });
        let _proxy = inline(&[]);
        // The balancer's link is told of by nobody but the router.
        let length = balancer_behind_a_router(container).run(move || {
            let mut balancer = connect(to);
            balancer.write_all(&header(40_001)).expect("sent");
            assert_eq!(greeting(&mut balancer).expect("served"), client(40_001));
            rest(&mut balancer).len()
        });
        assert_eq!(length, 2_000_000);
        wait_for("errors were translated", || counted("icmp") > 0);
        // The other way: this host refuses the client, and the balancer hears that it is about its connection.
        run("nft add table inet guard");
        run("nft add chain inet guard input { type filter hook input priority 0 ; }");
        let reject = if v6 {
            "icmpv6 type addr-unreachable"
        } else {
            "icmp type host-unreachable"
        };
        container.run(move || {
            let mut balancer = connect(to);
            balancer.write_all(&header(40_002)).expect("sent");
            assert_eq!(greeting(&mut balancer).expect("served"), client(40_002));
        });
        run(&format!(
            "nft add rule inet guard input {family} saddr {ip} reject with {reject}"
        ));
        let translated = counted("icmp");
        let (errors, wrong) = container.run(move || {
            let before = icmp_count(v6, "InDestUnreachs");
            let mut balancer = connect(to);
            balancer.write_all(&header(40_003)).expect("sent");
            std::thread::sleep(Duration::from_millis(100));
            let heard = icmp_count(v6, "InDestUnreachs") - before;
            (heard, icmp_count(v6, "InCsumErrors"))
        });
        assert!(errors > 0 && wrong == 0, "{errors} errors, {wrong} with a wrong sum");
        wait_for("they were translated", || counted("icmp") > translated);
    });
}
