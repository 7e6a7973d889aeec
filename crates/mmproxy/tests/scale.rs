//! Full size: ten thousand peers that say nothing or next to nothing, a hundred thousand UDP clients, more clients than
//! there are descriptors. Each is bounded in time, and fits into 20 000 descriptors.

mod rig;

use rig::{Proxy, greeting, in_namespace, metric, tcp_server, udp_server, v1, v2, wait_for};
use rustix::process::{Resource, Rlimit};
use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

/// Raises this process's limit of descriptors; returns whether there are so many, and says so if not.
fn has_descriptors(wanted: u64) -> bool {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    if limit.maximum.is_some_and(|maximum| maximum < wanted) {
        rig::skip(&format!("{wanted} descriptors are needed"));
        return false;
    }
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    rustix::process::setrlimit(Resource::Nofile, raised).is_ok()
}

/// A connection to the proxy from 127.0.0.2: another peer than the one that is to be served meanwhile.
fn connect_as_stranger(to: SocketAddr) -> TcpStream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("socket");
    socket
        .bind(&SocketAddr::from(([127, 0, 0, 2], 0)).into())
        .expect("bound");
    socket.connect(&to.into()).expect("connected");
    socket.into()
}

/// Connects, asks, and returns how long it took to be served.
fn served_in(proxy: &Proxy, port: u16) -> Duration {
    let start = Instant::now();
    let source = format!("203.0.113.7:{port}");
    let mut client = proxy.send(&v1(&source, "198.51.100.9:443"));
    assert_eq!(greeting(&mut client).expect("served"), source);
    start.elapsed()
}

#[test]
fn ten_thousand_slow_peers_cost_little_and_end_at_their_deadline() {
    const PEERS: usize = 10_000;
    const DEADLINE: Duration = Duration::from_secs(20);
    in_namespace(|| {
        if !has_descriptors(PEERS as u64 + 500) {
            return;
        }
        tcp_server("127.0.0.1:443");
        let mut proxy = Proxy::tcp(&["--header-timeout", "20", "--metrics", "127.0.0.1:9110"]);
        let memory = proxy.private_kb();
        let begin = Instant::now();
        let mut peers: Vec<TcpStream> = (0..PEERS).map(|_| connect_as_stranger(proxy.address)).collect();
        assert!(served_in(&proxy, 1) < DEADLINE / 2, "beside silent peers");
        // Nine tenths of them send their header a byte at a time, and never the whole of it.
        let header = v1("203.0.113.9:4001", "198.51.100.9:443");
        for (round, byte) in header[..header.len() - 1].iter().take(20).enumerate() {
            for peer in peers.iter_mut().skip(PEERS / 10) {
                // Those that were turned away by then have heard of it.
                let _ = peer.write_all(&[*byte]);
            }
            let took = served_in(&proxy, 10 + round as u16);
            assert!(took < DEADLINE / 2, "beside slow peers, round {round}: {took:?}");
            if begin.elapsed() > DEADLINE / 2 {
                break;
            }
        }
        if begin.elapsed() < DEADLINE {
            let more = proxy.private_kb().saturating_sub(memory);
            eprintln!("{PEERS} peers without a header: {more} kB");
            assert!(more < 2 * PEERS as u64, "{more} kB");
        }
        for mut peer in peers {
            peer.set_read_timeout(Some(DEADLINE * 2)).expect("timeout");
            // Closed, with or without a reset for what was not read.
            assert!(!matches!(peer.read(&mut [0]), Ok(1..)), "somebody was served");
        }
        let took = begin.elapsed();
        assert!(
            took > DEADLINE - Duration::from_secs(1),
            "they had their time: {took:?}"
        );
        wait_for("nobody is left", || metric("mmproxy_tcp_active") == 0);
        let refused = metric("mmproxy_refused_total{reason=\"header_timeout\"}")
            + metric("mmproxy_refused_total{reason=\"rate_limited\"}");
        assert_eq!(refused, PEERS as u64, "each is counted");
        served_in(&proxy, 60);
        assert!(proxy.is_alive());
    });
}

/// The clients `from` to `to` of an imagined crowd: 50 000 ports on each address.
fn crowd(from: u32, to: u32) -> impl Iterator<Item = String> {
    (from..to).map(|number| {
        format!(
            "203.0.{}.{}:{}",
            113 + number / 50_000,
            1 + number % 200,
            1024 + number / 200 % 60_000
        )
    })
}

#[test]
fn a_hundred_thousand_udp_clients_come_and_go_within_the_descriptors() {
    const CLIENTS: u32 = 100_000;
    // What the receive buffer of an ordinary server takes.
    const AT_ONCE: u32 = 100;
    in_namespace(|| {
        udp_server("127.0.0.1:443");
        let mut proxy = Proxy::udp(&["-close-after", "1"]);
        let limit = 15_000;
        let balancer = UdpSocket::bind("127.0.0.1:0").expect("bound");
        balancer.connect("127.0.0.1:8443").expect("connected");
        balancer.set_read_timeout(Some(rig::PATIENCE)).expect("timeout");
        let mut buffer = [0; 2000];
        let begin = Instant::now();
        let mut most = 0;
        for first in (0..CLIENTS).step_by(AT_ONCE as usize) {
            let mut expected = HashSet::new();
            for source in crowd(first, first + AT_ONCE) {
                let header = v2(proxy_protocol::Transport::Datagram, &source, "198.51.100.9:443");
                balancer.send(&[&header[..], b"?"].concat()).expect("sent");
                expected.insert(format!("{source} ?"));
            }
            for _ in 0..AT_ONCE {
                let length = balancer.recv(&mut buffer).expect("an answer for each");
                let answer = String::from_utf8_lossy(&buffer[..length]).into_owned();
                assert!(expected.remove(&answer), "{answer}");
            }
            // Sessions end a second after their last datagram; on a fast machine more than fit would begin in that time.
            most = most.max(proxy.descriptors());
            wait_for("idle sessions end", || proxy.descriptors() < limit);
        }
        eprintln!(
            "{CLIENTS} UDP clients in {:?}, {most} descriptors at most",
            begin.elapsed()
        );
        assert_eq!(metric("mmproxy_udp_sessions_started_total"), u64::from(CLIENTS));
        wait_for("all have ended", || metric("mmproxy_udp_sessions") == 0);
        assert!(proxy.is_alive());
    });
}

#[test]
fn udp_clients_beyond_the_descriptors_are_refused_and_tcp_has_its_share() {
    in_namespace(|| {
        udp_server("127.0.0.1:443");
        tcp_server("127.0.0.1:443");
        let mut config = tempfile::NamedTempFile::new().expect("file");
        let text = "workers = 1\nmetrics = \"127.0.0.1:9110\"\n[[listener]]\nlisten = \"127.0.0.1:8443\"\n\
                    protocol = [\"tcp\", \"udp\"]\ntarget = \"127.0.0.1:443\"\n";
        config.write_all(text.as_bytes()).expect("written");
        let mut command = std::process::Command::new("sh");
        let line = format!(
            "ulimit -n 1000; exec {} --config {}",
            env!("CARGO_BIN_EXE_mmproxy"),
            config.path().display()
        );
        command.args(["-c", &line]);
        let mut proxy = Proxy::spawn(command, "127.0.0.1:9110");
        proxy.address = "127.0.0.1:8443".parse().expect("address");
        let balancer = UdpSocket::bind("127.0.0.1:0").expect("bound");
        balancer.connect("127.0.0.1:8443").expect("connected");
        for source in crowd(0, 3000) {
            let header = v2(proxy_protocol::Transport::Datagram, &source, "198.51.100.9:443");
            balancer.send(&[&header[..], b"?"].concat()).expect("sent");
            // Not more than a receive buffer at a time.
            std::thread::sleep(Duration::from_micros(200));
        }
        let refused = || metric("mmproxy_refused_total{reason=\"session_limit\"}");
        let sessions = || metric("mmproxy_udp_sessions");
        wait_for("every datagram is counted", || sessions() + refused() == 3000);
        assert!(
            (400..500).contains(&sessions()),
            "half of the descriptors: {}",
            sessions()
        );
        let mut clients: Vec<TcpStream> = (0..150)
            .map(|port| proxy.send(&v1(&format!("203.0.113.7:{}", 2000 + port), "198.51.100.9:443")))
            .collect();
        for client in &mut clients {
            greeting(client).expect("TCP is served");
        }
        assert!(proxy.is_alive());
    });
}

#[test]
fn peers_without_a_header_make_room_for_those_that_send_one() {
    in_namespace(|| {
        tcp_server("127.0.0.1:443");
        let mut command = std::process::Command::new("sh");
        let line = format!(
            "ulimit -n 200; exec {} -l 127.0.0.1:8443 -4 127.0.0.1:443 --workers 1 --header-timeout 60 --metrics 127.0.0.1:9110",
            env!("CARGO_BIN_EXE_mmproxy")
        );
        command.args(["-c", &line]);
        let mut proxy = Proxy::spawn(command, "127.0.0.1:8443");
        // More than there are descriptors; some have begun a header.
        let mut peers: Vec<TcpStream> = (0..500).map(|_| connect_as_stranger(proxy.address)).collect();
        for peer in peers.iter_mut().step_by(2) {
            let _ = peer.write_all(b"PROXY ");
        }
        // Those that are served stay, as many as fit.
        let mut served: Vec<TcpStream> = (0..40)
            .map(|port| proxy.send(&v1(&format!("203.0.113.7:{}", 3000 + port), "198.51.100.9:443")))
            .collect();
        for client in &mut served {
            greeting(client).expect("served though others wait");
        }
        assert!(metric("mmproxy_refused_total{reason=\"header_crowded\"}") >= 400);
        for client in &mut served {
            client.write_all(b"x").expect("sent");
            client.read_exact(&mut [0]).expect("nobody who is served makes room");
        }
        assert!(proxy.is_alive());
    });
}

#[test]
fn long_headers_that_are_never_completed_cost_bounded_memory() {
    in_namespace(|| {
        if !has_descriptors(2000) {
            return;
        }
        tcp_server("127.0.0.1:443");
        let usual = [
            "-l",
            "127.0.0.1:8443",
            "-4",
            "127.0.0.1:443",
            "--metrics",
            "127.0.0.1:9110",
        ];
        let more = ["--workers", "1", "--header-timeout", "60"];
        let proxy = Proxy::start(&[&usual[..], &more].concat(), "127.0.0.1:8443");
        let before = proxy.private_kb();
        // All but the last byte of the longest header there is.
        let mut body = rig::inet(4001);
        body.extend(rig::tlv(4, &vec![0; 65_535 - body.len() - 3]));
        let header = rig::raw_v2(0x21, 0x11, &body);
        let peers: Vec<TcpStream> = (0..900)
            .map(|_| {
                let mut peer = connect_as_stranger(proxy.address);
                let _ = peer.write_all(&header[..header.len() - 1]);
                peer
            })
            .collect();
        let crowded = || metric("mmproxy_refused_total{reason=\"header_crowded\"}");
        wait_for("the oldest make room", || crowded() > 500);
        let more = proxy.private_kb() - before;
        eprintln!("{} headers of 64 kB that are not whole: {more} kB", peers.len());
        assert!(more < 40_000, "{more} kB");
        // None of them is waited for.
        assert!(served_in(&proxy, 1) < Duration::from_secs(30));
    });
}

/// A server that accepts and never reads.
fn deaf_server() {
    let listener = rig::listen("127.0.0.1:443");
    std::thread::spawn(move || {
        let mut held = Vec::new();
        while let Ok(client) = listener.accept() {
            held.push(client);
        }
    });
}

#[test]
fn servers_that_do_not_read_cost_bounded_memory_and_descriptors() {
    const CLIENTS: u16 = 1200;
    in_namespace(|| {
        if !has_descriptors(4000) {
            return;
        }
        deaf_server();
        let usual = [
            "-l",
            "127.0.0.1:8443",
            "-4",
            "127.0.0.1:443",
            "--metrics",
            "127.0.0.1:9110",
        ];
        let proxy = Proxy::start(&[&usual[..], &["--workers", "1"]].concat(), "127.0.0.1:8443");
        let (before, descriptors) = (proxy.private_kb(), proxy.descriptors());
        let payload = vec![b'x'; 256 * 1024];
        let clients: Vec<TcpStream> = (0..CLIENTS)
            .map(|index| {
                let mut client = proxy.send(&v1(&format!("203.0.113.7:{}", 3000 + index), "198.51.100.9:443"));
                client.set_nonblocking(true).expect("non-blocking");
                for _ in 0..20 {
                    // Whatever the buffers on the way take.
                    let _ = client.write(&payload);
                }
                client
            })
            .collect();
        wait_for("all are connected", || {
            metric("mmproxy_tcp_connected_total") == u64::from(CLIENTS)
        });
        std::thread::sleep(Duration::from_millis(500));
        let more = proxy.private_kb() - before;
        let more_descriptors = proxy.descriptors() - descriptors;
        eprintln!(
            "{} clients of a server that does not read: {more} kB, {more_descriptors} descriptors",
            clients.len()
        );
        assert!(more < 64 * 1024 + u64::from(CLIENTS) * 16 + 8000, "{more} kB");
        assert!(more_descriptors <= 2 * usize::from(CLIENTS) + 128, "{more_descriptors}");
    });
}
