//! Every header, and whom the server sees.

use super::*;

/// TCP segments that this host has found damaged.
fn checksum_errors() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/net/snmp").expect("counters");
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
        // TCP4 (10), an IPv4 client as TCP6, UNIX; and without a client, up to 34 bytes, while sums are still to be completed (6).
        assert_eq!(vectors_over(container, V6), (all - 18, 18));
        // Checksums that are complete already: odd and even lengths.
        run("ethtool -K inside tx off rx off");
        container.run(|| run("ethtool -K outside tx off rx off"));
        assert_eq!(vectors_over(container, V4), (all - 9, 9));
        assert_eq!(vectors_over(container, V6), (all - 12, 12));
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

/// Headers that differ in their clients, and what the server must see to the port.
fn headers_with_ports(v6: bool) -> Vec<(Vec<u8>, String)> {
    let mut headers = Vec::new();
    for (number, port) in [1, 80, 1023, 1024, 40_001, 65_535].into_iter().enumerate() {
        let (client, server) = if v6 {
            (format!("[2001:db8::5:{}]:{port}", number + 1), "[2001:db8::9]:443")
        } else {
            (format!("203.0.113.{}:{port}", 100 + number), "198.51.100.9:443")
        };
        headers.push(if number % 2 == 0 {
            (v1(&client, server), client)
        } else {
            (v2(Transport::Stream, &client, server), client)
        });
    }
    headers
}

fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().expect("it runs");
    String::from_utf8(output.stdout).expect("text")
}

/// Connects with this header; what `accept`, `getpeername`, `ss` and nftables say of the client is the same, and returned.
fn client_seen_everywhere(container: &Container, to: &'static str, header: Vec<u8>) -> String {
    let (client, told) = container.run(move || {
        let mut client = connect(to);
        client.write_all(&header).expect("sent");
        let told = greeting(&mut client).expect("served");
        (client, told)
    });
    let (accepted, asked) = told.split_once(' ').expect("two");
    assert_eq!(accepted, asked);
    let listed = output("ss", &["-tnH"]);
    assert!(
        listed.split_whitespace().any(|word| word == accepted),
        "{accepted}: {listed}"
    );
    let (ip, port) = accepted.rsplit_once(':').expect("a port");
    let counted = output("nft", &["-n", "list", "table", "inet", "guard"]);
    let element = format!("{} . {port} counter packets ", ip.trim_matches(['[', ']']));
    assert!(counted.contains(&element), "{element}: {counted}");
    drop(client);
    accepted.to_owned()
}

/// For every header over both families; and to the port, where no two have the same client.
#[test]
fn the_server_sees_its_client_everywhere() {
    with_balancer(|container| {
        for address in ["127.0.0.1:443", "[::1]:443"] {
            serve(address, |mut client, accepted| {
                let asked = client.peer_addr().expect("a peer");
                let _ = client.write_all(format!("{accepted} {asked}\n").as_bytes());
                let _ = client.read_to_end(&mut Vec::new());
            });
        }
        let _proxy = inline(&[]);
        for rule in [
            "add table inet guard",
            "add set inet guard four { type ipv4_addr . inet_service ; flags dynamic ; size 1000 ; }",
            "add set inet guard six { type ipv6_addr . inet_service ; flags dynamic ; size 1000 ; }",
            "add chain inet guard input { type filter hook input priority 0 ; }",
            "add rule inet guard input tcp dport { 443, 8443 } update @four { ip saddr . tcp sport counter }",
            "add rule inet guard input tcp dport { 443, 8443 } update @six { ip6 saddr . tcp sport counter }",
        ] {
            run(&format!("nft {rule}"));
        }
        for to in [V4, V6] {
            for (header, expected) in valid() {
                assert_seen(&client_seen_everywhere(container, to, header), expected, false);
            }
            for (header, expected) in headers_with_ports(to == V6) {
                assert_eq!(client_seen_everywhere(container, to, header), expected);
            }
        }
    });
}

/// What `ss` says of the only connection to this address and port: each of the options that were agreed, and the MSS.
fn agreed(to: &str) -> Vec<String> {
    let text = output("ss", &["-tinoH", "dst", to]);
    let words = text.split_whitespace().map(str::to_owned);
    let is_option = |word: &String| {
        ["ts", "sack", "ecn"].contains(&word.as_str()) || word.starts_with("mss:") || word.starts_with("wscale:")
    };
    words.filter(is_option).collect()
}

/// The balancer's TCP has no part in this but its SYN, our SYN-ACK and the first data.
#[test]
fn both_ends_know_the_same_options() {
    with_balancer(|container| {
        tcp_server("127.0.0.1:443");
        let _proxy = inline(&[]);
        let rows = [
            [1, 1, 1, 1],
            [1, 1, 1, 0],
            [0, 1, 1, 1],
            [1, 0, 1, 0],
            [1, 1, 0, 0],
            [0, 0, 0, 0],
        ];
        for (port, [timestamps, sack, scaling, ecn]) in (40_001..).zip(rows) {
            let (balancer, client) = container.run(move || {
                run(&format!(
                    "sysctl -q -w net.ipv4.tcp_timestamps={timestamps} net.ipv4.tcp_sack={sack} \
                     net.ipv4.tcp_window_scaling={scaling} net.ipv4.tcp_ecn={ecn}"
                ));
                let mut client = connect(V4);
                client.write_all(&numbered(port)).expect("sent");
                greeting(&mut client).expect("served");
                (agreed(V4), client)
            });
            let server = agreed(&format!("203.0.113.7:{port}"));
            let has = |word: &str| server.iter().any(|one| one == word);
            // The first timestamp carries what is agreed on ECN.
            let expected = [timestamps, sack, ecn * timestamps].map(|is_on| is_on == 1);
            assert_eq!(["ts", "sack", "ecn"].map(has), expected, "{server:?}");
            let swapped = |word: &String| match word.strip_prefix("wscale:").and_then(|scales| scales.split_once(',')) {
                Some((ours, theirs)) => format!("wscale:{theirs},{ours}"),
                None => word.clone(),
            };
            assert_eq!(server, balancer.iter().map(swapped).collect::<Vec<_>>());
            assert_eq!(
                server.iter().any(|word| word.starts_with("wscale:")),
                scaling == 1,
                "{server:?}"
            );
            drop(client);
            wait_for("the connection has gone", || {
                agreed(&format!("203.0.113.7:{port}")).is_empty()
            });
        }
    });
}
