//! What listeners accept from whom, and where they send it.

use crate::rig::{PATIENCE, Proxy, greeting, in_namespace, inet, metric, raw_v2, rest, serve, tcp_server, v1};
use crate::{address_of, file_with, header, is_refused, path};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::Ordering;

#[test]
fn allow_list_fails_closed() {
    let bad_line = file_with("127.0.0.0/8\nnot a network\n");
    let empty = file_with("# nobody\n");
    for list in [path(&bad_line), path(&empty), "/nonexistent"] {
        for option in ["-allowed-subnets", "--allowed-networks", "-a"] {
            let output = Command::new(env!("CARGO_BIN_EXE_mmproxy"))
                .args([option, list])
                .output()
                .expect("run");
            assert_eq!(output.status.code(), Some(1), "{list}");
            assert!(String::from_utf8_lossy(&output.stderr).contains(list));
        }
    }
    in_namespace(|| {
        let server = tcp_server("127.0.0.1:443");
        let others = file_with("# balancers\n10.0.0.0/8\n\n2001:db8::/32 ; more\n");
        let proxy = Proxy::tcp(&["-allowed-subnets", path(&others), "--metrics", "127.0.0.1:9110"]);
        assert!(is_refused(proxy.send(&header(1))));
        assert_eq!(server.accepted.load(Ordering::SeqCst), 0);
        assert!(metric("mmproxy_refused_total{reason=\"not_allowed\"}") >= 1);
    });
    in_namespace(|| {
        tcp_server("127.0.0.1:443");
        let host_bits = file_with("127.0.0.1/8\n");
        // The peer is seen as ::ffff:127.0.0.1 on a dual-stack socket.
        let proxy = Proxy::start(
            &["-l", "[::]:8443", "-4", "127.0.0.1:443", "-a", path(&host_bits)],
            "127.0.0.1:8443",
        );
        let mut client = proxy.send(&header(1));
        assert_eq!(greeting(&mut client).expect("served"), "203.0.113.7:1");
    });
}

#[test]
fn optional_headers() {
    in_namespace(|| {
        tcp_server("127.0.0.1:443");
        serve("127.0.0.1:444", |mut client, from| {
            let _ = writeln!(client, "{from}");
            let mut all = Vec::new();
            let _ = client.read_to_end(&mut all);
            let _ = client.write_all(&all);
        });
        let more = [
            "--header",
            "optional",
            "--header-timeout",
            "1",
            "--allow-source",
            "loopback",
        ];
        let proxy = Proxy::tcp(&more);
        let mut with = proxy.send(&header(1));
        assert_eq!(greeting(&mut with).expect("served"), "203.0.113.7:1");
        let mut plain = proxy.send(b"GET / HTTP/1.1\r\n");
        let seen = greeting(&mut plain).expect("served");
        assert_eq!(address_of(&seen), "127.0.0.1", "the peer is the client");
        plain.shutdown(Shutdown::Write).expect("end");
        assert_eq!(rest(&mut plain), b"GET / HTTP/1.1\r\n");
        // A client that waits for the server to speak.
        let mut silent = proxy.connect();
        assert_eq!(address_of(&greeting(&mut silent).expect("served")), "127.0.0.1");
        // What untrusted peers send is never taken for a header.
        let nobody = file_with("10.0.0.0/8\n");
        let usual = ["-l", "127.0.0.1:8444", "-4", "127.0.0.1:444", "-a", path(&nobody)];
        let proxy = Proxy::start(&[&usual[..], &more].concat(), "127.0.0.1:8444");
        let mut claim = proxy.send(&header(1));
        assert_eq!(address_of(&greeting(&mut claim).expect("served")), "127.0.0.1");
        claim.shutdown(Shutdown::Write).expect("end");
        assert_eq!(rest(&mut claim), header(1));
    });
}

#[test]
fn sources_that_gain_trust_are_refused_unless_permitted() {
    in_namespace(|| {
        let server = tcp_server("127.0.0.1:443");
        tcp_server("[::1]:443");
        let proxy = Proxy::tcp(&[]);
        for source in [
            "0.0.0.0:1",
            "224.0.0.1:1",
            "255.255.255.255:1",
            "127.0.0.1:5000",
            "[::]:1",
            "[::1]:5000",
            "[ff02::1]:1",
        ] {
            let destination = if source.starts_with('[') {
                "[2001:db8::9]:443"
            } else {
                "198.51.100.9:443"
            };
            assert!(is_refused(proxy.send(&v1(source, destination))), "{source}");
        }
        assert_eq!(server.accepted.load(Ordering::SeqCst), 0);
        let permissive = Proxy::start(
            &[
                "-l",
                "127.0.0.1:8444",
                "-4",
                "127.0.0.1:443",
                "--allow-source",
                "loopback",
            ],
            "127.0.0.1:8444",
        );
        let mut client = permissive.send(&v1("127.0.0.1:5000", "198.51.100.9:443"));
        assert_eq!(greeting(&mut client).expect("served"), "127.0.0.1:5000");
    });
}

#[test]
fn files_describe_ranges_unix_targets_rules_and_dynamic_destinations() {
    in_namespace(|| {
        for port in [9001, 9002, 9003] {
            tcp_server(&format!("127.0.0.1:{port}"));
        }
        let directory = tempfile::tempdir().expect("directory");
        let socket = directory.path().join("socket");
        unix_server(&socket);
        let config = file_with(&format!(
            "[[listener]]\nlisten = \"127.0.0.1:8001-8003\"\ntarget_v4 = \"127.0.0.1:9001-9003\"\n\
             [[listener]]\nlisten = \"127.0.0.1:8010\"\ntarget = \"unix:{}\"\nsend = \"v2\"\n\
             [[listener]]\nlisten = \"127.0.0.1:8011\"\ndynamic_destination = true\nallowed_destinations = [\"127.0.0.1/32\"]\n\
             [[listener]]\nlisten = \"127.0.0.1:8012\"\ntarget = \"127.0.0.1:9001\"\n\
             [[listener.rule]]\naction = \"allow\"\ntlv = \"aws-vpce\"\nvalue = \"vpce-1\"\n\
             [[listener.rule]]\naction = \"deny\"\n",
            socket.display()
        ));
        let proxy = Proxy::start(&["--config", path(&config)], "127.0.0.1:8001");
        let at = |port: u16, bytes: &[u8]| {
            let mut client = TcpStream::connect(("127.0.0.1", port)).expect("connected");
            client.set_read_timeout(Some(PATIENCE)).expect("timeout");
            client.write_all(bytes).expect("sent");
            client
        };
        for port in [8001, 8002, 8003] {
            assert_eq!(
                greeting(&mut at(port, &header(port))).expect("served"),
                format!("203.0.113.7:{port}")
            );
        }
        let tlvs = [crate::rig::tlv(2, b"example.org"), crate::rig::tlv(4, b"xyz")].concat();
        let with_tlvs = raw_v2(0x21, 0x11, &[inet(7), tlvs].concat());
        let mut client = at(8010, &with_tlvs);
        client.write_all(b"payload").expect("sent");
        client.shutdown(Shutdown::Write).expect("end");
        assert_eq!(
            rest(&mut client),
            [&with_tlvs[..], b"payload"].concat(),
            "passed on with its TLVs"
        );

        let to = |port: u16, destination: &str| at(port, &v1("203.0.113.7:77", destination));
        assert_eq!(
            greeting(&mut to(8011, "127.0.0.1:9002")).expect("served"),
            "203.0.113.7:77"
        );
        assert!(is_refused(to(8011, "127.0.0.2:9002")), "not in the list");
        assert!(is_refused(to(8011, "127.0.0.1:8011")), "itself");
        assert!(
            is_refused(to(8011, "127.0.0.1:8001")),
            "another listener of this process"
        );

        let vpce = |id: &str| {
            raw_v2(
                0x21,
                0x11,
                &[inet(9), crate::rig::tlv(0xea, &[b"\x01", id.as_bytes()].concat())].concat(),
            )
        };
        assert_eq!(
            greeting(&mut at(8012, &vpce("vpce-1"))).expect("served"),
            "203.0.113.7:9"
        );
        assert!(is_refused(at(8012, &vpce("vpce-2"))));
        assert!(is_refused(at(8012, &header(1))));
        drop(proxy);
    });
}

/// Answers with all it got.
fn unix_server(path: &Path) {
    let listener = std::os::unix::net::UnixListener::bind(path).expect("bound");
    std::thread::spawn(move || {
        while let Ok((mut client, _)) = listener.accept() {
            let mut all = Vec::new();
            let _ = client.read_to_end(&mut all);
            let _ = client.write_all(&all);
        }
    });
}

#[test]
fn sending_and_receiving_ends_make_a_tunnel() {
    in_namespace(|| {
        assert!(
            Command::new("ip")
                .args(["addr", "add", "10.9.9.1/32", "dev", "lo"])
                .status()
                .expect("ip")
                .success()
        );
        tcp_server("127.0.0.1:443");
        for form in ["v1", "v2"] {
            let receiver = Proxy::tcp(&["--allow-source", "own"]);
            let sender = Proxy::start(
                &[
                    "send",
                    "-l",
                    "127.0.0.1:7000",
                    "--target",
                    "127.0.0.1:8443",
                    "--send",
                    form,
                ],
                "127.0.0.1:7000",
            );
            let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("socket");
            let own: std::net::SocketAddr = "10.9.9.1:0".parse().expect("address");
            socket.bind(&own.into()).expect("bound");
            socket.connect(&sender.address.into()).expect("connected");
            let mut client: TcpStream = socket.into();
            client.set_read_timeout(Some(PATIENCE)).expect("timeout");
            let seen = greeting(&mut client).expect("the server speaks first");
            assert_eq!(address_of(&seen), "10.9.9.1");
            client.write_all(b"through both").expect("sent");
            client.shutdown(Shutdown::Write).expect("end");
            assert_eq!(rest(&mut client), b"through both");
            drop(receiver);
        }
    });
}

#[test]
fn listeners_for_tproxy_multipath_and_fast_open() {
    in_namespace(|| {
        tcp_server("127.0.0.1:443");
        serve("127.0.0.1:444", |mut client, _| {
            let _ = client.write_all(&vec![7; 20 << 20]);
        });
        let with = "[[listener]]\nlisten = \"198.51.100.9:8443\"\ntarget = \"127.0.0.1:443\"\ntransparent = true\n\
                    [[listener]]\nlisten = \"127.0.0.1:8444\"\ntarget = \"127.0.0.1:444\"\nmultipath = true\n\
                    [[listener]]\nlisten = \"127.0.0.1:8445\"\ntarget = \"127.0.0.1:443\"\nfast_open = 100\n";
        let config = file_with(with);
        let without = file_with(&with.replace("transparent = true\n", ""));
        let failed = Command::new(env!("CARGO_BIN_EXE_mmproxy"))
            .args(["--config", path(&without)])
            .output()
            .expect("run");
        assert_eq!(
            failed.status.code(),
            Some(1),
            "198.51.100.9 is not an address of this host"
        );
        let _proxy = Proxy::start(&["--config", path(&config)], "127.0.0.1:8445");
        for port in [8444, 8445] {
            let mut client = TcpStream::connect(("127.0.0.1", port)).expect("connected");
            client.set_read_timeout(Some(PATIENCE)).expect("timeout");
            client.write_all(&header(port)).expect("sent");
            if port == 8445 {
                assert_eq!(greeting(&mut client).expect("served"), "203.0.113.7:8445");
            } else {
                // Enough to be spliced, where the kernel can.
                assert_eq!(rest(&mut client).len(), 20 << 20);
            }
        }
    });
}

/// The congestion control of each of mmproxy's connections in this namespace, by its own end.
fn congestion() -> Vec<(String, String)> {
    let output = Command::new("ss").args(["-Htnpi"]).output().expect("ss");
    let text = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<&str> = text.lines().collect();
    let is_ours = |pair: &&[&str]| pair[0].contains("\"mmproxy\"");
    let ours = lines.windows(2).filter(is_ours).map(|pair| {
        let word = |line: &str, index: usize| line.split_whitespace().nth(index).unwrap_or_default().to_owned();
        (word(pair[0], 3), word(pair[1], 0))
    });
    ours.collect()
}

#[test]
fn one_ipv6_target_serves_clients_of_both_families() {
    in_namespace(|| {
        tcp_server("[::]:22");
        let _proxy = Proxy::start(
            &["-l", "127.0.0.1:2222", "-4", "[::1]:22", "-6", "[::1]:22"],
            "127.0.0.1:2222",
        );
        for (source, seen) in [
            ("203.0.113.7:4001", "[::ffff:203.0.113.7]:4001"),
            ("[2001:db8::7]:4002", "[2001:db8::7]:4002"),
        ] {
            let mut client = TcpStream::connect("127.0.0.1:2222").expect("connected");
            client.set_read_timeout(Some(PATIENCE)).expect("timeout");
            let destination = if source.starts_with('[') {
                "[2001:db8::1]:22"
            } else {
                "198.51.100.1:22"
            };
            client.write_all(&crate::rig::v1(source, destination)).expect("sent");
            assert_eq!(greeting(&mut client).expect("served"), seen);
        }
    });
}

#[test]
fn cloudflares_options_set_its_mark() {
    in_namespace(|| {
        tcp_server("127.0.0.1:22");
        // Whatever carries the mark is refused here.
        let rule = "add table inet cf; add chain inet cf out { type filter hook output priority 0; }; \
                    add rule inet cf out meta mark 123 tcp dport 22 counter reject with tcp reset";
        let nft = Command::new("nft").arg(rule).output();
        match nft {
            Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr)),
            Err(error) => return crate::rig::skip(&format!("nft: {error}")),
        }
        let networks = file_with("127.0.0.0/8\n");
        let usual = ["-l", "127.0.0.1:2222", "-4", "127.0.0.1:22", "-6", "[::1]:22"];
        for (option, is_marked) in [("--allowed-networks", true), ("-a", false)] {
            let proxy = Proxy::start(&[&usual[..], &[option, path(&networks)]].concat(), "127.0.0.1:2222");
            let mut client = proxy.send(&header(3001));
            assert_eq!(greeting(&mut client).is_err(), is_marked, "{option}");
        }
    });
}

#[test]
fn bbr_is_left_out_over_loopback_unless_it_is_named() {
    in_namespace(|| {
        tcp_server("127.0.0.1:443");
        let unknown =
            "[[listener]]\nlisten = \"127.0.0.1:8443\"\ntarget = \"127.0.0.1:443\"\ncongestion = \"no-such\"\n";
        let failed = Command::new(env!("CARGO_BIN_EXE_mmproxy"))
            .args(["--config", path(&file_with(unknown))])
            .output()
            .expect("run");
        let said = String::from_utf8_lossy(&failed.stderr).into_owned();
        assert_eq!(failed.status.code(), Some(1), "{said}");
        assert!(said.contains("congestion control no-such"), "{said}");

        // This thread's namespace alone. Where the kernel has no BBR there is nothing to be left out.
        if let Err(error) = std::fs::write("/proc/sys/net/ipv4/tcp_congestion_control", "bbr") {
            return crate::rig::lacking(&format!("the kernel has no BBR: {error}"));
        }
        let config = file_with(
            "[[listener]]\nlisten = \"127.0.0.1:8443\"\ntarget = \"127.0.0.1:443\"\n\
             [[listener]]\nlisten = \"0.0.0.0:8444\"\ntarget = \"127.0.0.1:443\"\n\
             [[listener]]\nlisten = \"127.0.0.1:8445\"\ntarget = \"127.0.0.1:443\"\ncongestion = \"bbr\"\n",
        );
        let _proxy = Proxy::start(&["--config", path(&config)], "127.0.0.1:8445");
        let clients: Vec<TcpStream> = [8443, 8444, 8445]
            .into_iter()
            .map(|port| {
                let mut client = TcpStream::connect(("127.0.0.1", port)).expect("connected");
                client.set_read_timeout(Some(PATIENCE)).expect("timeout");
                // Not the port itself, which is taken for all addresses.
                client.write_all(&header(port - 8000)).expect("sent");
                let source = format!("203.0.113.7:{}", port - 8000);
                assert_eq!(greeting(&mut client).expect("served"), source);
                client
            })
            .collect();
        let of = congestion();
        let expected = [(8443, "reno", "reno"), (8444, "bbr", "reno"), (8445, "bbr", "bbr")];
        for (port, towards_client, towards_server) in expected {
            let ends = [
                (format!("127.0.0.1:{port}"), towards_client),
                (format!("203.0.113.7:{}", port - 8000), towards_server),
            ];
            for (own, expected) in ends {
                let seen = of.iter().find(|(address, _)| *address == own);
                assert_eq!(seen.map(|(_, name)| name.as_str()), Some(expected), "{own} of {of:?}");
            }
        }
        drop(clients);
    });
}
