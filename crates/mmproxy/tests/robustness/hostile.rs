//! Peers that cost something: slow, silent, many.

use crate::rig::{Proxy, greeting, in_namespace, metric, rest, tcp_server, v1, wait_for};
use crate::{file_with, header, is_refused, path};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

#[test]
fn header_deadline_ends_silent_peers_and_nothing_else() {
    in_namespace(|| {
        tcp_server("127.0.0.1:443");
        // Ten seconds without this option.
        let proxy = Proxy::tcp(&["--header-timeout", "1"]);
        let start = Instant::now();
        let silent = proxy.connect();
        let partial = proxy.send(b"PROXY TCP4 203.0");
        let mut served = proxy.send(&header(1));
        greeting(&mut served).expect("served");
        assert!([silent, partial].iter_mut().all(|client| rest(client).is_empty()));
        let took = start.elapsed();
        assert!(
            (Duration::from_millis(900)..Duration::from_secs(9)).contains(&took),
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
        // They have ten seconds each.
        assert!(start.elapsed() < Duration::from_secs(5));
        drop(silent);
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
        proxy.stop();
        let mut clients: Vec<TcpStream> = (0..120).map(|index| proxy.send(&header(2000 + index))).collect();
        proxy.signal(rustix::process::Signal::CONT);
        std::thread::sleep(Duration::from_millis(300));
        assert!(proxy.is_alive());
        // Those that wait in the queue are served as others leave.
        for mut client in clients.drain(..) {
            greeting(&mut client).expect("served in its turn");
        }
        assert!(proxy.is_alive());
    });
}

/// A proxy with room for 16 sessions, whatever the number of CPUs.
fn with_64_descriptors() -> Proxy {
    let mut command = Command::new("sh");
    let binary = env!("CARGO_BIN_EXE_mmproxy");
    let line =
        format!("ulimit -n 64; exec {binary} -l 127.0.0.1:8443 -4 127.0.0.1:443 --workers 2 --metrics 127.0.0.1:9110");
    command.args(["-c", &line]);
    let mut proxy = Proxy::spawn(command, "127.0.0.1:9110");
    proxy.address = "127.0.0.1:8443".parse().expect("address");
    proxy
}

#[test]
fn sixteen_sessions_fit_into_64_descriptors_and_the_next_begins_when_one_ends() {
    const SESSIONS: u16 = 16;
    const TURNS: u16 = 120;
    const AFTERWARDS: u16 = 7;
    in_namespace(|| {
        tcp_server("127.0.0.1:443");
        let mut proxy = with_64_descriptors();
        let mut served: std::collections::VecDeque<TcpStream> = (0..SESSIONS)
            .map(|index| {
                let mut client = proxy.send(&header(2000 + index));
                greeting(&mut client).expect("there is room");
                client
            })
            .collect();
        // The next waits, until one ends.
        let mut took: Vec<Duration> = (0..TURNS)
            .map(|index| {
                let pauses = metric("mmproxy_accept_pauses_total");
                let mut next = proxy.send(&header(3000 + index));
                wait_for("it finds no room", || metric("mmproxy_accept_pauses_total") > pauses);
                let start = Instant::now();
                drop(served.pop_front());
                greeting(&mut next).expect("there is room now");
                served.push_back(next);
                start.elapsed()
            })
            .collect();
        took.sort();
        // Half of them: this machine may have other work during some. A pause of fixed length would make it 50 ms.
        let median = took[took.len() / 2];
        assert!(median < Duration::from_millis(20), "{took:?}");
        assert_eq!(metric("mmproxy_tcp_active"), u64::from(SESSIONS));
        drop(served);
        // When all have come and gone the next is served within 100 ms: half of these, and each within ten times that.
        let mut took: Vec<Duration> = (0..AFTERWARDS)
            .map(|index| {
                let start = Instant::now();
                greeting(&mut proxy.send(&header(4000 + index))).expect("served");
                start.elapsed()
            })
            .collect();
        println!("served after {took:?}");
        took.sort();
        assert!(took[took.len() / 2] <= Duration::from_millis(100), "{took:?}");
        assert!(took[took.len() - 1] < Duration::from_secs(1), "{took:?}");
        assert!(proxy.is_alive());
    });
}

#[test]
fn clients_that_come_at_once_wait_and_none_is_refused() {
    const CLIENTS: u16 = 120;
    in_namespace(|| {
        tcp_server("127.0.0.1:443");
        let mut proxy = with_64_descriptors();
        // All are connected before the first header is sent, and that may take longer than a header may where others wait.
        proxy.stop();
        let address = proxy.address;
        let clients: Vec<TcpStream> = (0..CLIENTS)
            .map(|_| TcpStream::connect(address).expect("connected"))
            .collect();
        let clients = clients.into_iter().enumerate().map(|(index, mut client)| {
            client.set_read_timeout(Some(crate::rig::PATIENCE)).expect("timeout");
            client.write_all(&header(2000 + index as u16)).expect("sent");
            std::thread::spawn(move || greeting(&mut client).map(|_| ()))
        });
        let clients: Vec<_> = clients.collect();
        proxy.signal(rustix::process::Signal::CONT);
        for client in clients {
            client.join().expect("no panic").expect("served in its turn");
        }
        assert_eq!(metric("mmproxy_refused_total{reason=\"header_crowded\"}"), 0);
        assert!(proxy.is_alive());
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

/// Whom a rule denies is a client of a balancer that has others.
#[test]
fn who_is_denied_is_no_failure_of_its_balancer() {
    in_namespace(|| {
        tcp_server("127.0.0.1:443");
        let config = file_with(
            "max_header_failures = 5\nworkers = 1\nmetrics = \"127.0.0.1:9110\"\n\
             [[listener]]\nlisten = \"127.0.0.1:8443\"\ntarget = \"127.0.0.1:443\"\n\
             [[listener.rule]]\naction = \"deny\"\nsource = [\"203.0.113.66\"]\n",
        );
        let proxy = Proxy::start(&["--config", path(&config)], "127.0.0.1:8443");
        for _ in 0..20 {
            assert!(is_refused(proxy.send(&v1("203.0.113.66:5", "198.51.100.9:443"))));
        }
        let mut client = proxy.send(&v1("203.0.113.7:5", "198.51.100.9:443"));
        assert_eq!(greeting(&mut client).expect("served"), "203.0.113.7:5");
        assert_eq!(metric("mmproxy_refused_total{reason=\"denied\"}"), 20);
    });
}

#[test]
fn idle_connections_cost_little() {
    in_namespace(|| {
        const COUNT: u64 = 9000;
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        if limit.maximum.is_some_and(|maximum| maximum < 2 * COUNT + 500) {
            return crate::rig::skip("idle connections by the thousand need 18500 descriptors");
        }
        // The server holds its side without a thread for each.
        let listener = crate::rig::listen("127.0.0.1:443");
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
