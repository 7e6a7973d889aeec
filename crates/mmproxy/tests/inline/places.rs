//! Where balancers and servers stand, and what the operator is told.

use super::*;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

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

        run("nft add table inet guard");
        run("nft add chain inet guard input { type filter hook input priority 0 ; }");
        run("nft add rule inet guard input ct state new tcp flags & (fin|syn|rst|ack) != syn drop");
        let (good, text) = check(&[]);
        assert!(!good && text.contains("nftables drops connections"), "{text}");
        run("nft delete table inet guard");

        run("sysctl -q -w net.ipv4.tcp_syncookies=0");
        let (good, text) = check(&[]);
        assert!(!good && text.contains("tcp_syncookies"), "{text}");
        let _proxy = inline(&["--inline=auto"]);
        assert_eq!(seen(), "203.0.113.7:41001");
        assert_eq!(metric("mmproxy_tcp_connected_total"), 1);
    });
}

#[test]
fn tc_filters_of_the_interface_are_named_and_leave_auto_with_two_sockets() {
    with_balancer(|container| {
        tcp_server("127.0.0.1:443");
        run("sysctl -q -w net.ipv4.conf.all.rp_filter=0");
        run("sysctl -q -w net.ipv4.conf.inside.rp_filter=0");
        let check = || {
            let output = Command::new(env!("CARGO_BIN_EXE_mmproxy"))
                .args(["check", "--inline", "--interface", "inside"])
                .output()
                .expect("it runs");
            (output.status.success(), String::from_utf8(output.stdout).expect("text"))
        };
        run("tc qdisc add dev inside clsact");
        // It matches nothing.
        let filter = Command::new("tc")
            .args(["filter", "add", "dev", "inside", "ingress", "bpf", "bytecode"])
            .args(["1,6 0 0 0,"])
            .output()
            .expect("tc runs");
        if !filter.status.success() {
            return skip_for_kernel(&String::from_utf8_lossy(&filter.stderr));
        }
        let (good, text) = check();
        assert!(!good && text.contains("inside has tc filters"), "{text}");
        let proxy = inline(&["--inline=auto"]);
        let seen = || container.run(|| exchange(V4, &whole(&v1("203.0.113.7:41001", "198.51.100.9:443"))));
        assert_eq!(seen(), "203.0.113.7:41001");
        assert_eq!(metric("mmproxy_tcp_connected_total"), 1);
        drop(proxy);
        run("tc qdisc del dev inside clsact");
        // Programs of another mmproxy are none of others.
        let _proxy = inline(&[]);
        let (good, text) = check();
        assert!(good, "{text}");
    });
}

#[test]
fn what_the_unit_may_do_is_enough() {
    with_balancer(|container| {
        tcp_server("127.0.0.1:443");
        let unit = concat!(env!("CARGO_MANIFEST_DIR"), "/packaging/mmproxy.service");
        let unit = std::fs::read_to_string(unit).expect("the unit");
        let words = |key: &str| -> Vec<String> {
            let line = unit.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
            line.expect("the key").split(' ').map(str::to_owned).collect()
        };
        assert!(words("SystemCallFilter").contains(&"bpf".to_owned()));
        assert_eq!(words("AmbientCapabilities"), words("CapabilityBoundingSet"));
        let named = words("AmbientCapabilities").into_iter();
        let named: Vec<String> = named
            .map(|name| format!("+{}", name.trim_start_matches("CAP_").to_lowercase()))
            .collect();
        let only = format!("-all,{}", named.join(","));
        // Where this was built, nobody else may look.
        let folder = tempfile::tempdir().expect("a folder");
        let program = folder.path().join("mmproxy");
        std::fs::copy(env!("CARGO_BIN_EXE_mmproxy"), &program).expect("copied");
        std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).expect("permissions");
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs"]);
        for option in ["--bounding-set", "--inh-caps", "--ambient-caps"] {
            command.args([option, &only]);
        }
        command.arg(program).args(INLINE);
        let _proxy = Proxy::spawn(command, "127.0.0.1:9110");
        let seen = container.run(|| exchange(V4, &whole(&numbered(40_001))));
        assert_eq!(seen, "203.0.113.7:40001");
        wait_for("it was inline", || counted("assigned") == 1);
        wait_for("it is forgotten", || metric("mmproxy_inline_active") == 0);
    });
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

/// Each leaves to the other what is not its own.
#[test]
fn two_of_them_share_an_interface() {
    with_balancer(|container| {
        for address in ["127.0.0.1:443", "127.0.0.1:444"] {
            serve(address, |mut client, from| {
                let local = client.local_addr().expect("an address");
                let _ = client.write_all(format!("{from} {local}\n").as_bytes());
                let _ = client.read(&mut [0; 1]);
            });
        }
        let _first = inline(&[]);
        let usual = ["-l", "[::]:8445", "-4", "127.0.0.1:444", "--inline", "-i", "inside"];
        let more = ["--workers", "1", "--metrics", "127.0.0.1:9111"];
        let _second = Proxy::start(&[&usual[..], &more].concat(), "127.0.0.1:9111");
        for (to, port) in [("10.7.0.1:8443", 40_001), ("10.7.0.1:8445", 40_002)] {
            let seen = container.run(move || {
                let mut client = connect(to);
                client.write_all(&numbered(port)).expect("sent");
                greeting(&mut client).expect("served")
            });
            // The server's own address is the one that the balancer connects to: there is no second socket.
            assert_eq!(seen, format!("203.0.113.7:{port} {to}"));
        }
    });
}
