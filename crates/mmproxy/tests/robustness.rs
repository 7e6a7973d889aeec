//! What breaks other programs of this family: each test is an input that kills, stalls, confuses or truncates a peer.

mod rig;

use rig::{PATIENCE, Proxy, greeting, in_namespace, inet, metric, raw_v2, rest, serve, tcp_server, v1, wait_for};
use rustix::process::Signal;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::time::{Duration, Instant};

fn header(port: u16) -> Vec<u8> {
    v1(&format!("203.0.113.7:{port}"), "198.51.100.9:443")
}

/// Whether the proxy closes the connection without a byte.
fn is_refused(mut client: TcpStream) -> bool {
    // So that one that is served ends as well.
    let _ = client.shutdown(Shutdown::Write);
    rest(&mut client).is_empty()
}

#[test]
fn header_deadline_ends_silent_peers_and_nothing_else() {
    in_namespace(|| {
        tcp_server("127.0.0.1:443");
        let proxy = Proxy::tcp(&["--header-timeout", "1"]);
        let start = Instant::now();
        let silent = proxy.connect();
        let partial = proxy.send(b"PROXY TCP4 203.0");
        let mut served = proxy.send(&header(1));
        greeting(&mut served).expect("served");
        assert!([silent, partial].iter_mut().all(|client| rest(client).is_empty()));
        let took = start.elapsed();
        assert!(
            (Duration::from_millis(900)..Duration::from_secs(4)).contains(&took),
            "{took:?}"
        );
        // The deadline is the header's, not the stream's.
        served.write_all(b"later").expect("sent");
        let mut echo = [0; 5];
        served.read_exact(&mut echo).expect("still relayed");
    });
}

#[test]
fn slow_loris_does_not_keep_others_out() {
    in_namespace(|| {
        tcp_server("127.0.0.1:443");
        let proxy = Proxy::tcp(&[]);
        let silent: Vec<TcpStream> = (0..2000)
            .map(|index| {
                if index % 2 == 0 {
                    proxy.connect()
                } else {
                    proxy.send(b"PROXY ")
                }
            })
            .collect();
        let start = Instant::now();
        let mut client = proxy.send(&header(1));
        greeting(&mut client).expect("served");
        assert!(start.elapsed() < Duration::from_secs(1));
        drop(silent);
    });
}

fn file_with(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().expect("file");
    file.write_all(text.as_bytes()).expect("written");
    file
}

fn path(file: &tempfile::NamedTempFile) -> &str {
    file.path().to_str().expect("path")
}

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
fn running_out_of_descriptors_ends_nothing() {
    in_namespace(|| {
        tcp_server("127.0.0.1:443");
        let mut command = Command::new("sh");
        let binary = env!("CARGO_BIN_EXE_mmproxy");
        let line = format!("ulimit -n 96; exec {binary} -l 127.0.0.1:8443 -4 127.0.0.1:443 --workers 1");
        command.args(["-c", &line]);
        let mut proxy = Proxy::spawn(command, "127.0.0.1:8443");
        let mut clients: Vec<TcpStream> = (0..120).map(|index| proxy.send(&header(2000 + index))).collect();
        std::thread::sleep(Duration::from_millis(300));
        assert!(proxy.is_alive());
        // Those that wait in the queue are served as others leave.
        for mut client in clients.drain(..) {
            greeting(&mut client).expect("served in its turn");
        }
        assert!(proxy.is_alive());
    });
}

#[test]
fn failing_to_start_is_an_error() {
    let code = |arguments: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_mmproxy"))
            .args(arguments)
            .output()
            .expect("run")
            .status
            .code()
    };
    assert_eq!(code(&["--nonsense"]), Some(2));
    assert_eq!(code(&["-l", "192.0.2.250:1"]), Some(1), "not an address of this host");
    assert_eq!(code(&["-4", "name.invalid:1"]), Some(1), "a name that does not exist");
    assert_eq!(code(&["--config", "/nonexistent.toml"]), Some(1));
    assert_eq!(code(&["--help"]), Some(0));
}

#[test]
fn half_close_works_in_both_directions() {
    in_namespace(|| {
        // Answers only after the client has ended.
        serve("127.0.0.1:443", |mut client, _| {
            let mut request = Vec::new();
            let _ = client.read_to_end(&mut request);
            let _ = client.write_all(&request.repeat(3));
        });
        // Ends first, and still reads.
        let (send, received) = mpsc::channel();
        let send = std::sync::Mutex::new(send);
        serve("127.0.0.1:444", move |mut client, _| {
            let _ = client.write_all(b"bye");
            let _ = client.shutdown(Shutdown::Write);
            let mut request = Vec::new();
            let _ = client.read_to_end(&mut request);
            let _ = send.lock().expect("lock").send(request);
        });
        let proxy = Proxy::tcp(&[]);
        let mut client = proxy.send(&[header(1), b"request".to_vec()].concat());
        client.shutdown(Shutdown::Write).expect("end");
        assert_eq!(rest(&mut client), b"requestrequestrequest");

        let proxy = Proxy::start(
            &["-l", "127.0.0.1:8444", "-4", "127.0.0.1:444", "-6", ""],
            "127.0.0.1:8444",
        );
        let mut client = proxy.send(&header(2));
        assert_eq!(rest(&mut client), b"bye");
        client.write_all(b"late request").expect("sent");
        drop(client);
        let all = std::iter::from_fn(|| received.recv_timeout(PATIENCE).ok()).find(|request| !request.is_empty());
        assert_eq!(all.as_deref(), Some(&b"late request"[..]));
    });
}

fn reset(connection: TcpStream) {
    rustix::net::sockopt::set_socket_linger(&connection, Some(Duration::ZERO)).expect("linger");
}

#[test]
fn resets_pass_through() {
    in_namespace(|| {
        let (send, received) = mpsc::channel();
        let send = std::sync::Mutex::new(send);
        serve("127.0.0.1:443", move |mut client, _| {
            let mut byte = [0];
            let _ = client.read(&mut byte);
            if byte[0] == b'r' {
                return reset(client);
            }
            let _ = client.write_all(b"x");
            let end = client.read(&mut byte).map_err(|error| error.kind());
            let _ = send.lock().expect("lock").send(end);
        });
        let proxy = Proxy::tcp(&[]);
        let mut client = proxy.send(&[header(1), b"c".to_vec()].concat());
        client.read_exact(&mut [0]).expect("established");
        reset(client);
        assert_eq!(received.recv_timeout(PATIENCE), Ok(Err(ErrorKind::ConnectionReset)));

        let mut client = proxy.send(&[header(2), b"r".to_vec()].concat());
        let end = client.read(&mut [0]).map_err(|error| error.kind());
        assert_eq!(end, Err(ErrorKind::ConnectionReset));
    });
}

#[test]
fn nothing_is_lost_when_the_server_ends_before_a_slow_client_has_read() {
    in_namespace(|| {
        // The request is a length; the answer has so many bytes, and the end.
        serve("127.0.0.1:443", |mut client, _| {
            let mut length = [0; 4];
            if client.read_exact(&mut length).is_ok() {
                let pattern: Vec<u8> = (0..u32::from_be_bytes(length))
                    .map(|index| (index % 251) as u8)
                    .collect();
                let _ = client.write_all(&pattern);
            }
        });
        let proxy = Proxy::tcp(&[]);
        std::thread::scope(|scope| {
            for half_megabytes in (2..=24).chain([64]) {
                let proxy = &proxy;
                scope.spawn(move || {
                    let length = half_megabytes * 512 * 1024u32;
                    let mut client =
                        proxy.send(&[header(3000 + half_megabytes as u16), length.to_be_bytes().to_vec()].concat());
                    std::thread::sleep(Duration::from_millis(200));
                    let bytes = rest(&mut client);
                    assert_eq!(bytes.len(), length as usize);
                    assert!(
                        bytes
                            .iter()
                            .enumerate()
                            .all(|(index, &byte)| byte == (index % 251) as u8)
                    );
                });
            }
        });
    });
}

#[test]
fn a_large_upload_to_a_slow_server_arrives_whole_without_an_end() {
    in_namespace(|| {
        const LENGTH: usize = 32 << 20;
        // Reads slowly at first, and answers when all is there; the client does not end its side before.
        serve("127.0.0.1:443", |mut client, _| {
            let mut received = 0;
            let mut buffer = vec![0; 1 << 20];
            std::thread::sleep(Duration::from_millis(300));
            while received < LENGTH {
                match client.read(&mut buffer) {
                    Ok(length @ 1..) => received += length,
                    _ => return,
                }
            }
            let _ = client.write_all(b"all");
        });
        let proxy = Proxy::tcp(&[]);
        let mut client = proxy.send(&header(1));
        client.write_all(&vec![7; LENGTH]).expect("sent");
        let mut answer = [0; 3];
        client.read_exact(&mut answer).expect("the tail arrived");
        assert_eq!(&answer, b"all");
        // And many tiny writes.
        let mut client = proxy.send(&header(2));
        for _ in 0..LENGTH / 4096 {
            client.write_all(&[1; 4096]).expect("sent");
        }
        client.read_exact(&mut answer).expect("the tail arrived");
    });
}

#[test]
fn thousands_of_small_writes_arrive_at_once_and_in_order() {
    in_namespace(|| {
        tcp_server("127.0.0.1:443");
        let proxy = Proxy::tcp(&[]);
        let mut client = proxy.send(&header(1));
        greeting(&mut client).expect("served");
        let mut sent = Vec::new();
        for index in 0..5000usize {
            let piece = &b"0123456"[..index % 7 + 1];
            client.write_all(piece).expect("sent");
            sent.extend_from_slice(piece);
        }
        // The connection stays open: nothing may wait for its end.
        let mut echo = vec![0; sent.len()];
        client.read_exact(&mut echo).expect("all of it");
        assert_eq!(echo, sent);
        // Nor may a small piece wait for the acknowledgement of the one before it: Linux delays those by 40 ms and more.
        let mut quickest = Duration::MAX;
        for _ in 0..20 {
            let start = Instant::now();
            client.write_all(b"a").expect("sent");
            std::thread::sleep(Duration::from_millis(1));
            client.write_all(b"b").expect("sent");
            client.read_exact(&mut [0; 2]).expect("both");
            quickest = quickest.min(start.elapsed());
        }
        assert!(quickest < Duration::from_millis(30), "{quickest:?}");
    });
}

#[test]
fn the_same_client_twice_gets_another_port() {
    in_namespace(|| {
        tcp_server("127.0.0.1:443");
        let proxy = Proxy::tcp(&["--metrics", "127.0.0.1:9110"]);
        let mut first = proxy.send(&header(40001));
        assert_eq!(greeting(&mut first).expect("served"), "203.0.113.7:40001");
        let mut second = proxy.send(&header(40001));
        let seen = greeting(&mut second).expect("served as well");
        assert!(
            seen.starts_with("203.0.113.7:") && seen != "203.0.113.7:40001",
            "{seen}"
        );
        assert_eq!(metric("mmproxy_port_changed_total"), 1);
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
fn a_refused_or_silent_target_is_passed_on() {
    in_namespace(|| {
        let refused = Proxy::tcp(&["--metrics", "127.0.0.1:9110"]);
        let mut client = refused.send(&header(1));
        let end = client.read(&mut [0]).map_err(|error| error.kind());
        assert_eq!(end, Err(ErrorKind::ConnectionReset), "as without a proxy");
        assert_eq!(metric("mmproxy_refused_total{reason=\"connect_failed\"}"), 1);
        // A full queue does not answer.
        let listener = rig::listen("127.0.0.1:443");
        rustix::net::listen(&listener, 0).expect("a queue of one");
        let _fill: Vec<TcpStream> = (0..2)
            .map_while(|_| {
                let address = "127.0.0.1:443".parse().expect("address");
                TcpStream::connect_timeout(&address, Duration::from_millis(200)).ok()
            })
            .collect();
        let slow = Proxy::start(
            &["-l", "127.0.0.1:8444", "-4", "127.0.0.1:443", "--connect-timeout", "1"],
            "127.0.0.1:8444",
        );
        let start = Instant::now();
        let mut waiting = slow.send(&header(2));
        assert!(rest(&mut waiting).is_empty());
        assert!(start.elapsed() < Duration::from_secs(4));
    });
}

#[test]
fn reload_keeps_connections_and_a_bad_file_changes_nothing() {
    in_namespace(|| {
        tcp_server("127.0.0.1:443");
        let list = file_with("127.0.0.0/8\n");
        let config = file_with(&format!(
            "metrics = \"127.0.0.1:9110\"\n[[listener]]\nlisten = \"127.0.0.1:8443\"\ntarget = \"127.0.0.1:443\"\nallowed_subnets = \"{}\"\n",
            path(&list)
        ));
        let mut proxy = Proxy::start(&["--config", path(&config)], "127.0.0.1:8443");
        let mut old = proxy.send(&header(1));
        greeting(&mut old).expect("served");

        std::fs::write(list.path(), "10.0.0.0/8\n").expect("written");
        proxy.signal(Signal::HUP);
        wait_for("the new list counts", || is_refused(proxy.send(&header(2))));
        old.write_all(b"still").expect("sent");
        let mut echo = [0; 5];
        old.read_exact(&mut echo).expect("old connections stay");

        std::fs::write(list.path(), "127.0.0.0/8\nnonsense\n").expect("written");
        proxy.signal(Signal::HUP);
        std::thread::sleep(Duration::from_millis(300));
        assert!(proxy.is_alive());
        assert!(is_refused(proxy.send(&header(3))), "the last good list stays");

        // A listener more, and the first one elsewhere.
        let text = "[[listener]]\nlisten = \"127.0.0.1:8444-8446\"\ntarget = \"127.0.0.1:443\"\n";
        std::fs::write(config.path(), text).expect("written");
        proxy.signal(Signal::HUP);
        wait_for("the new listener is there", || {
            TcpStream::connect("127.0.0.1:8446").is_ok()
        });
        wait_for("the old listener is gone", || {
            TcpStream::connect("127.0.0.1:8443").is_err()
        });
        old.write_all(b"still").expect("sent");
        old.read_exact(&mut echo).expect("old connections stay");
    });
}

#[test]
fn sigterm_lets_connections_end() {
    in_namespace(|| {
        tcp_server("127.0.0.1:443");
        let mut proxy = Proxy::tcp(&[]);
        let mut client = proxy.send(&header(1));
        greeting(&mut client).expect("served");
        proxy.signal(Signal::TERM);
        wait_for("nothing more is accepted", || {
            TcpStream::connect("127.0.0.1:8443").is_err()
        });
        client.write_all(b"last words").expect("sent");
        client.shutdown(Shutdown::Write).expect("end");
        assert_eq!(rest(&mut client), b"last words");
        assert_eq!(proxy.child.wait().expect("it ends").code(), Some(0));
    });
    in_namespace(|| {
        tcp_server("127.0.0.1:443");
        let mut proxy = Proxy::tcp(&[]);
        let mut client = proxy.send(&header(1));
        greeting(&mut client).expect("served");
        proxy.signal(Signal::TERM);
        std::thread::sleep(Duration::from_millis(200));
        assert!(proxy.is_alive());
        proxy.signal(Signal::TERM);
        let start = Instant::now();
        assert_eq!(proxy.child.wait().expect("it ends").code(), Some(0));
        assert!(
            start.elapsed() < Duration::from_secs(3),
            "a second signal does not wait"
        );
    });
}

/// The address that a server saw. On one host the client's port is taken by the client itself, so another one is used.
fn address_of(seen: &str) -> &str {
    seen.rsplit_once(':').map_or("", |(address, _)| address)
}

#[test]
fn a_new_process_takes_over_without_a_gap() {
    in_namespace(|| {
        // What the old process has not accepted when it closes its socket goes to the new one.
        let migrate = "/proc/sys/net/ipv4/tcp_migrate_req";
        if let Err(error) = std::fs::write(migrate, "1") {
            return rig::skip(&format!("{migrate}: {error}"));
        }
        tcp_server("127.0.0.1:443");
        let mut old = Proxy::tcp(&[]);
        let mut kept = old.send(&header(1));
        greeting(&mut kept).expect("served by the old one");
        let new = Proxy::tcp_beside_another();
        old.signal(Signal::TERM);
        for port in 2..100 {
            let mut client = new.send(&header(port));
            assert_eq!(
                greeting(&mut client).expect("served by one of them"),
                format!("203.0.113.7:{port}")
            );
        }
        kept.write_all(b"x").expect("sent");
        kept.read_exact(&mut [0]).expect("the old connection goes on");
        drop(kept);
        assert_eq!(old.child.wait().expect("it ends").code(), Some(0));
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
fn header_less_peers_are_limited() {
    in_namespace(|| {
        tcp_server("127.0.0.1:443");
        let config = file_with(
            "max_header_failures = 5\nworkers = 1\nmetrics = \"127.0.0.1:9110\"\n\
             [[listener]]\nlisten = \"127.0.0.1:8443\"\ntarget = \"127.0.0.1:443\"\n",
        );
        let proxy = Proxy::start(&["--config", path(&config)], "127.0.0.1:8443");
        for _ in 0..20 {
            assert!(is_refused(proxy.send(b"GET / HTTP/1.1\r\n\r\n")));
        }
        assert!(metric("mmproxy_refused_total{reason=\"rate_limited\"}") >= 5);
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
        let tlvs = [rig::tlv(2, b"example.org"), rig::tlv(4, b"xyz")].concat();
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
                &[inet(9), rig::tlv(0xea, &[b"\x01", id.as_bytes()].concat())].concat(),
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
fn systemd_passes_sockets_and_is_told() {
    in_namespace(|| {
        tcp_server("127.0.0.1:443");
        let directory = tempfile::tempdir().expect("directory");
        let notify = directory.path().join("notify");
        let manager = std::os::unix::net::UnixDatagram::bind(&notify).expect("bound");
        manager.set_read_timeout(Some(PATIENCE)).expect("timeout");
        let listener = rig::listen("127.0.0.1:8443");
        let mut command = Command::new("sh");
        let binary = env!("CARGO_BIN_EXE_mmproxy");
        let line =
            format!("exec 3<&0 </dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec {binary} -l systemd -4 127.0.0.1:443");
        command.args(["-c", &line]).env("NOTIFY_SOCKET", &notify);
        command.stdin(std::os::fd::OwnedFd::from(listener));
        let mut child = command.spawn().expect("started");
        let mut state = [0; 64];
        let length = manager.recv(&mut state).expect("told");
        assert_eq!(&state[..length], b"READY=1");
        let mut client = TcpStream::connect("127.0.0.1:8443").expect("connected");
        client.set_read_timeout(Some(PATIENCE)).expect("timeout");
        client.write_all(&header(5)).expect("sent");
        assert_eq!(greeting(&mut client).expect("served"), "203.0.113.7:5");
        drop(client);
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, Signal::TERM).expect("signal");
        let length = manager.recv(&mut state).expect("told");
        assert_eq!(&state[..length], b"STOPPING=1");
        assert!(child.wait().expect("it ends").success());
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

#[test]
fn privileges_are_given_up() {
    in_namespace(|| {
        tcp_server("127.0.0.1:443");
        let proxy = Proxy::tcp(&["--user", "nobody"]);
        let mut client = proxy.send(&header(5));
        assert_eq!(greeting(&mut client).expect("still spoofs"), "203.0.113.7:5");
        for thread in std::fs::read_dir(format!("/proc/{}/task", proxy.child.id())).expect("threads") {
            let status = std::fs::read_to_string(thread.expect("thread").path().join("status")).expect("status");
            let field = |name: &str| {
                let line = status
                    .lines()
                    .find_map(|line| line.strip_prefix(name))
                    .unwrap_or_default();
                line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
            };
            assert!(field("Uid:").iter().all(|uid| uid == "65534"), "{status}");
            // CAP_NET_ADMIN is 12, CAP_NET_BIND_SERVICE is 10.
            assert_eq!(field("CapEff:"), ["0000000000001400"]);
            assert_eq!(field("NoNewPrivs:"), ["1"]);
            assert_eq!(field("Seccomp:"), ["2"]);
        }
    });
}

#[test]
fn workers_stay_on_their_cpus() {
    in_namespace(|| {
        tcp_server("127.0.0.1:443");
        let proxy = Proxy::tcp(&["--pin", "--workers", "2"]);
        let mut client = proxy.send(&header(5));
        greeting(&mut client).expect("served");
        let task =
            |id: &str, file: &str| std::fs::read_to_string(format!("/proc/{}/task/{id}/{file}", proxy.child.id()));
        let threads = std::fs::read_dir(format!("/proc/{}/task", proxy.child.id())).expect("threads");
        let mut cpus: Vec<String> = threads
            .filter_map(|thread| {
                let id = thread.ok()?.file_name().into_string().ok()?;
                let status = task(&id, "status").ok()?;
                let cpus = status
                    .lines()
                    .find_map(|line| line.strip_prefix("Cpus_allowed_list:\t"))?;
                task(&id, "comm").ok()?.starts_with("worker").then(|| cpus.to_owned())
            })
            .collect();
        cpus.sort();
        assert_eq!(cpus.len(), 2, "{cpus:?}");
        assert!(
            cpus.iter().all(|list| list.parse::<u32>().is_ok()),
            "one CPU each: {cpus:?}"
        );
        let many = std::thread::available_parallelism().is_ok_and(|count| count.get() > 1);
        assert_eq!(cpus[0] != cpus[1], many, "{cpus:?}");
    });
}

#[test]
fn idle_connections_cost_little() {
    in_namespace(|| {
        const COUNT: u64 = 9000;
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        if limit.maximum.is_some_and(|maximum| maximum < 2 * COUNT + 500) {
            return rig::skip("idle connections by the thousand need 18500 descriptors");
        }
        // The server holds its side without a thread for each.
        let listener = rig::listen("127.0.0.1:443");
        let server = std::thread::spawn(move || -> Vec<TcpStream> {
            (0..COUNT)
                .map_while(|_| listener.accept().ok().map(|(client, _)| client))
                .collect()
        });
        let raised = rustix::process::Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        };
        rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).expect("descriptors");
        let proxy = Proxy::tcp(&[]);
        let (memory, descriptors) = (proxy.private_kb(), proxy.descriptors());
        let mut clients = Vec::new();
        for index in 0..COUNT {
            let source = format!("203.0.{}.{}:4000", 113 + index / 250, 1 + index % 250);
            clients.push(proxy.send(&v1(&source, "198.51.100.9:443")));
        }
        let held = server.join().expect("accepted");
        assert_eq!(held.len() as u64, COUNT);
        let (more_memory, more_descriptors) = (proxy.private_kb() - memory, proxy.descriptors() - descriptors);
        eprintln!("{COUNT} idle connections: {more_memory} kB, {more_descriptors} descriptors");
        assert!(more_memory <= 4 * COUNT, "{more_memory} kB");
        assert!(
            more_descriptors as u64 <= 2 * COUNT + 4,
            "{more_descriptors} descriptors"
        );
    });
}
