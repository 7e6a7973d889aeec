//! Servers that know nothing of the PROXY protocol: who they say their clients are, whatever those send.

use super::{PATIENCE, REQUEST, connect, header, in_namespace, nginx, rest, runs, scratch, send_in_pieces, start};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

#[test]
fn netcat_says_the_clients_address() {
    in_namespace(&["nc", "ss"], || {
        let directory = std::env::temp_dir();
        let log = directory.join(format!("lpp-nc-{}", std::process::id()));
        let mut command = Command::new("nc");
        command
            .args(["-v", "-n", "-l", "127.0.0.1", "1122"])
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(&log).expect("log"));
        let _server = start(&mut command, 1122, true);
        let mut client = connect(1122);
        send_in_pieces(&mut client, &[header("203.0.113.7:40001"), b"x\n".to_vec()].concat(), 5);
        let begin = Instant::now();
        loop {
            let text = std::fs::read_to_string(&log).expect("log");
            if text.contains("203.0.113.7 40001") {
                break;
            }
            assert!(begin.elapsed() < PATIENCE, "{text}");
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = std::fs::remove_file(log);
    });
}

#[test]
fn nginx_logs_clients_and_is_not_held_up_by_slow_ones() {
    in_namespace(&["nginx", "ss"], || {
        let directory = scratch("nginx");
        let _server = start(&mut nginx(&directory, 2), 8080, true);
        let mut silent: Vec<TcpStream> = (0..50).map(|_| connect(8080)).collect();
        let mut partial: Vec<TcpStream> = (0..50)
            .map(|_| {
                let mut client = connect(8080);
                client.write_all(&header("203.0.113.9:1")[..20]).expect("sent");
                client
            })
            .collect();
        let begin = Instant::now();
        for (port, source, seen) in [
            (8080, "203.0.113.7:40001", "203.0.113.7 40001\n"),
            (8081, "[2001:db8::7]:40002", "2001:db8::7 40002\n"),
        ] {
            for step in [1000, 20, 5, 1] {
                let mut client = if port == 8081 {
                    TcpStream::connect("[::1]:8081").expect("connected")
                } else {
                    connect(port)
                };
                client.set_read_timeout(Some(PATIENCE)).expect("timeout");
                send_in_pieces(&mut client, &[&header(source), REQUEST].concat(), step);
                assert!(rest(&mut client).ends_with(seen), "{source} in pieces of {step}");
            }
        }
        // One after the other the silent ones would have had two seconds each.
        assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
        // A header that is completed late is served; those that never come are closed.
        let mut late = partial.pop().expect("fifty");
        late.write_all(&[&header("203.0.113.9:1")[20..], REQUEST].concat())
            .expect("sent");
        let answer = rest(&mut late);
        assert!(answer.is_empty() || answer.ends_with("203.0.113.9 1\n"), "{answer}");
        for client in silent.iter_mut().chain(&mut partial) {
            assert_eq!(rest(client), "");
        }
        let mut plain = connect(8080);
        plain.write_all(REQUEST).expect("sent");
        assert_eq!(rest(&mut plain), "", "headers are required");
        let log = std::fs::read_to_string(directory.join("access")).expect("log");
        assert!(
            log.contains("203.0.113.7 - ") && log.contains("2001:db8::7 - ") && !log.contains("127.0.0.1"),
            "{log}"
        );
        let _ = std::fs::remove_dir_all(directory);
    });
}

#[test]
fn malformed_headers_never_reach_the_server_and_optional_ones_may_be_missing() {
    in_namespace(&["nginx", "ss"], || {
        let directory = scratch("optional");
        let _server = start(&mut nginx(&directory, 1), 8080, false);
        let mut plain = connect(8080);
        plain.write_all(REQUEST).expect("sent");
        assert!(rest(&mut plain).contains("127.0.0.1 "));
        let short = [&proxy_protocol::V2_SIGNATURE[..], &[0x21, 0x11, 0, 4, 1, 2, 3, 4]].concat();
        for bad in [
            &b"PROXY TCP4 203.0.113.7 198.51.100.9\r\n"[..],
            b"PROXY TCP4 1.2.3.4 5.6.7.8 70000 1\r\n",
            &short,
        ] {
            let mut client = connect(8080);
            client.write_all(&[bad, REQUEST].concat()).expect("sent");
            assert_eq!(rest(&mut client), "", "{}", bad.escape_ascii());
        }
        // Ended within the header.
        let mut client = connect(8080);
        client.write_all(b"PROXY TCP4 203").expect("sent");
        client.shutdown(Shutdown::Write).expect("end");
        assert_eq!(rest(&mut client), "");
        // The largest header.
        let mut large = header("203.0.113.7:40001");
        large.extend([0xf0, 0xea, 0x60]);
        large.extend([7; 60_000]);
        let length = (large.len() - 16) as u16;
        large[14..16].copy_from_slice(&length.to_be_bytes());
        let mut client = connect(8080);
        client.write_all(&[&large, REQUEST].concat()).expect("sent");
        assert!(rest(&mut client).ends_with("203.0.113.7 40001\n"));
        let _ = std::fs::remove_dir_all(directory);
    });
}

#[test]
fn redis_lists_clients_by_their_own_address() {
    in_namespace(&["redis-server", "ss"], || {
        let mut command = Command::new("redis-server");
        command.args([
            "--port",
            "6379",
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
            "--protected-mode",
            "no",
            "--daemonize",
            "no",
        ]);
        let _server = start(command.stdout(Stdio::null()), 6379, true);
        let mut client = connect(6379);
        send_in_pieces(
            &mut client,
            &[header("203.0.113.7:40001"), b"CLIENT LIST\r\nQUIT\r\n".to_vec()].concat(),
            9,
        );
        let answer = rest(&mut client);
        assert!(answer.contains("addr=203.0.113.7:40001 "), "{answer}");
    });
}

#[test]
fn sshd_executes_itself_and_still_knows_the_client() {
    in_namespace(&["/usr/sbin/sshd", "ssh-keygen", "ss"], || {
        let directory = scratch("sshd");
        let key = directory.join("key");
        assert!(runs(
            "ssh-keygen",
            &["-q", "-t", "ed25519", "-N", "", "-f", key.to_str().expect("path")]
        ));
        std::fs::create_dir_all("/run/sshd").expect("sshd's directory");
        let log = directory.join("log");
        let mut command = Command::new("/usr/sbin/sshd");
        command.args([
            "-D",
            "-e",
            "-f",
            "/dev/null",
            "-p",
            "2222",
            "-o",
            "ListenAddress=127.0.0.1",
            "-o",
            "LogLevel=VERBOSE",
        ]);
        command
            .arg("-h")
            .arg(&key)
            .stderr(std::fs::File::create(&log).expect("log"));
        let _server = start(&mut command, 2222, true);
        let mut client = connect(2222);
        send_in_pieces(
            &mut client,
            &[header("203.0.113.7:40001"), b"SSH-2.0-test\r\n".to_vec()].concat(),
            10,
        );
        let mut banner = [0; 8];
        client.read_exact(&mut banner).expect("a banner");
        assert_eq!(&banner, b"SSH-2.0-");
        drop(client);
        let begin = Instant::now();
        loop {
            let text = std::fs::read_to_string(&log).expect("log");
            if text.contains("203.0.113.7 port 40001") {
                assert!(!text.contains("from 127.0.0.1"), "{text}");
                break;
            }
            assert!(begin.elapsed() < PATIENCE, "{text}");
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = std::fs::remove_dir_all(directory);
    });
}

/// Builds the server that serves each connection by a thread of its own.
fn threaded_server(directory: &Path) -> PathBuf {
    let binary = directory.join("server");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/threaded_server.c");
    let mut compiler = Command::new("cc");
    let built = compiler
        .args(["-O1", "-pthread", "-o"])
        .arg(&binary)
        .arg(source)
        .status();
    assert!(built.is_ok_and(|status| status.success()));
    binary
}

#[test]
fn a_threaded_server_with_3000_connections() {
    in_namespace(&["cc", "ss"], || {
        let directory = scratch("threads");
        let binary = threaded_server(&directory);
        let mut command = Command::new("sh");
        command.args(["-c", &format!("ulimit -n 8000; exec {} 7000", binary.display())]);
        let mut server = start(&mut command, 7000, true);
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
        let raised = rustix::process::Rlimit {
            current: limit,
            maximum: limit,
        };
        rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).expect("descriptors");
        let mut open = Vec::new();
        for index in 0..3000u32 {
            let source = format!("203.0.{}.{}:4000", 113 + index / 250, 1 + index % 250);
            let mut client = connect(7000);
            client
                .write_all(&[header(&source), b"?".to_vec()].concat())
                .expect("sent");
            open.push((source, client));
        }
        for (source, client) in &mut open {
            let mut answer = [0; 64];
            let length = client.read(&mut answer).expect("an answer");
            assert_eq!(String::from_utf8_lossy(&answer[..length]), format!("{source}\n"));
        }
        // Connections that come and go, many at a time: descriptors are closed and used again in all threads.
        drop(open);
        std::thread::scope(|scope| {
            for worker in 0..8 {
                scope.spawn(move || {
                    for index in 0..500 {
                        let source = format!("198.18.{worker}.{}:{}", 1 + index % 250, 1000 + index);
                        let mut client = connect(7000);
                        client
                            .write_all(&[header(&source), b"?".to_vec()].concat())
                            .expect("sent");
                        let mut answer = [0; 64];
                        let length = client.read(&mut answer).expect("an answer");
                        assert_eq!(String::from_utf8_lossy(&answer[..length]), format!("{source}\n"));
                    }
                });
            }
        });
        assert!(server.0.try_wait().expect("status").is_none(), "the server lives");
        let _ = std::fs::remove_dir_all(directory);
    });
}

#[test]
fn peers_that_complete_no_header_make_room_for_others() {
    in_namespace(&["cc", "ss"], || {
        let directory = scratch("room");
        let binary = threaded_server(&directory);
        let mut command = Command::new("sh");
        command.args([
            "-c",
            &format!("ulimit -n 200; LIBPROXYPROTO_TIMEOUT=60 exec {} 7001", binary.display()),
        ]);
        let mut server = start(&mut command, 7001, true);
        // More of them than the server has descriptors, and none of them will ever be done.
        let peers: Vec<TcpStream> = (0..400)
            .map(|_| {
                let mut peer = connect(7001);
                let _ = peer.write_all(b"PROXY ");
                peer
            })
            .collect();
        // Until the server has accepted them: a burst beyond twice the limit is closed as it comes.
        let begin = Instant::now();
        while !runs("sh", &["-c", "ss -Hltn 'sport = :7001' | awk '{ exit $2 != 0 }'"]) {
            assert!(begin.elapsed() < PATIENCE, "the server accepts nobody");
            std::thread::sleep(Duration::from_millis(20));
        }
        for index in 0..20 {
            let source = format!("203.0.113.7:{}", 4000 + index);
            let mut client = connect(7001);
            send_in_pieces(&mut client, &[header(&source), b"?".to_vec()].concat(), 10);
            let mut answer = [0; 64];
            let length = client.read(&mut answer).expect("an answer");
            assert_eq!(String::from_utf8_lossy(&answer[..length]), format!("{source}\n"));
        }
        assert!(server.0.try_wait().expect("status").is_none(), "the server lives");
        drop(peers);
        let _ = std::fs::remove_dir_all(directory);
    });
}

/// The connection that wakes a server on an address of its own comes from that address, which need not be in the list.
#[test]
fn a_held_connection_reaches_a_server_on_an_address_of_its_own() {
    in_namespace(&["nginx", "nc"], || {
        for address in ["10.9.9.1/32", "10.9.9.2/32"] {
            assert!(runs("ip", &["addr", "add", address, "dev", "lo"]));
        }
        let directory = scratch("own-address");
        let mut command = nginx(&directory, 1);
        let file = directory.join("nginx.conf");
        let text = std::fs::read_to_string(&file).expect("the configuration");
        std::fs::write(&file, text.replace("listen 8080", "listen 10.9.9.1:8080")).expect("written");
        let _server = start(command.env("LIBPROXYPROTO_ALLOWED", "10.9.9.2"), 8080, true);
        // The header comes in two pieces, so that it is waited for.
        let said = "(printf 'PROXY TCP4 203.'; sleep 0.3; printf '0.113.7 198.51.100.9 4001 443\\r\\nGET / HTTP/1.0\\r\\n\\r\\n'; \
                    sleep 3) | nc -s 10.9.9.2 10.9.9.1 8080";
        let answer = Command::new("sh").args(["-c", said]).output().expect("netcat");
        let answer = String::from_utf8_lossy(&answer.stdout).into_owned();
        assert!(answer.ends_with("203.0.113.7 4001\n"), "{answer}");
    });
}
