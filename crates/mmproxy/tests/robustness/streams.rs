//! Streams of all shapes arrive whole: half-closes, resets, slow readers, small writes.

use crate::header;
use crate::rig::{PATIENCE, Proxy, greeting, in_namespace, metric, rest, serve, tcp_server};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc;
use std::time::{Duration, Instant};

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
fn directions_that_turn_bulk_are_counted() {
    in_namespace(|| {
        const LENGTH: usize = 32 << 20;
        serve("127.0.0.1:443", |mut client, _| {
            let mut request = [0];
            if client.read_exact(&mut request).is_ok() {
                let answer = if request == *b"l" { LENGTH } else { 1000 };
                let _ = client.write_all(&vec![7; answer]);
            }
        });
        let proxy = Proxy::tcp(&["--metrics", "127.0.0.1:9110"]);
        let mut client = proxy.send(&[header(1), b"s".to_vec()].concat());
        assert_eq!(rest(&mut client).len(), 1000);
        assert_eq!(metric("mmproxy_spliced_total"), 0);
        let mut client = proxy.send(&[header(2), b"l".to_vec()].concat());
        assert_eq!(rest(&mut client).len(), LENGTH);
        assert_eq!(metric("mmproxy_spliced_total"), 1, "the answer, not the request");
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
fn a_refused_or_silent_target_is_passed_on() {
    in_namespace(|| {
        let refused = Proxy::tcp(&["--metrics", "127.0.0.1:9110"]);
        let mut client = refused.send(&header(1));
        let end = client.read(&mut [0]).map_err(|error| error.kind());
        assert_eq!(end, Err(ErrorKind::ConnectionReset), "as without a proxy");
        assert_eq!(metric("mmproxy_refused_total{reason=\"connect_failed\"}"), 1);
        // A full queue does not answer.
        let listener = crate::rig::listen("127.0.0.1:443");
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
