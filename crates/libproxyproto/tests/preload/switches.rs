//! Every switch of both libraries.

use super::{REQUEST, compile, connect, header, in_namespace, library, nginx, rest, runs, scratch, start};
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

#[test]
fn the_connecting_library_and_the_accepting_one_understand_each_other() {
    in_namespace(&["nginx", "nc", "ss"], || {
        let directory = scratch("both");
        let _server = start(&mut nginx(&directory, 1), 8080, true);
        let connecting = library("libproxyproto-connect", "libproxyproto_connect.so");
        for (version, address, seen) in [
            ("1", "203.0.113.7", "203.0.113.7 40001"),
            ("2", "203.0.113.8", "203.0.113.8 40001"),
        ] {
            let mut client = Command::new("nc")
                .args(["-N", "127.0.0.1", "8080"])
                .env("LD_PRELOAD", &connecting)
                .env("LIBPROXYPROTO_VERSION", version)
                .env("LIBPROXYPROTO_ADDR", address)
                .env("LIBPROXYPROTO_PORT", "40001")
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .expect("netcat");
            client.stdin.take().expect("input").write_all(REQUEST).expect("sent");
            let output = client.wait_with_output().expect("an answer");
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(text.contains(seen), "version {version}: {text}");
        }
        let _ = std::fs::remove_dir_all(directory);
    });
}

/// The words of a server's line by their names.
fn answer_of(port: u16, header: &[u8]) -> BTreeMap<String, i32> {
    let mut client = connect(port);
    client.write_all(&[header, b"x"].concat()).expect("sent");
    // A server that refuses the header may have reset the connection by now.
    if let Err(error) = client.shutdown(Shutdown::Write) {
        assert_eq!(error.kind(), ErrorKind::NotConnected, "{error}");
    }
    let line = rest(&mut client);
    let words = line.split_whitespace().filter_map(|word| word.split_once('='));
    words
        .map(|(name, port)| (name.to_owned(), port.parse().expect("a number")))
        .collect()
}

/// The ports of one header in both versions: the client's, and the one it came to.
const PEER: i32 = 4001;
const DESTINATION: i32 = 443;

fn both_versions() -> [Vec<u8>; 2] {
    let v1 = b"PROXY TCP4 203.0.113.7 198.51.100.9 4001 443\r\n".to_vec();
    [v1, header("203.0.113.7:4001")]
}

type Case<'a> = (&'a [(&'a str, &'a str)], [bool; 2], bool, bool, bool);

#[test]
fn each_switch_of_the_accepting_library_does_what_it_says() {
    in_namespace(&["cc", "ss"], || {
        let (folder, program) = compile("switches");
        // Which versions count; whether getpeername and getsockname show it; whether anything is said.
        let cases: [Case; 9] = [
            (&[], [true, true], true, false, false),
            (&[("VERSION", "0")], [false, false], true, false, false),
            (&[("VERSION", "1")], [true, false], true, false, false),
            (&[("VERSION", "2")], [false, true], true, false, false),
            (&[("VERSION", "3")], [true, true], true, false, false),
            (&[("GETPEERNAME_CACHE", "DISABLED")], [true, true], false, false, false),
            (
                &[("GETPEERNAME_CACHE", "ENABLED"), ("GETSOCKNAME", "1")],
                [true, true],
                true,
                true,
                false,
            ),
            (&[("DEBUG", "1")], [true, true], true, false, true),
            (&[("ALLOWED", "127.0.0.0/8, ::1")], [true, true], true, false, false),
        ];
        for (number, (switches, counts, shows_peer, shows_own, speaks)) in (0u16..).zip(cases) {
            let port = 7000 + number;
            let said = folder.path().join("said");
            let mut command = Command::new(&program);
            command
                .arg(port.to_string())
                .stderr(std::fs::File::create(&said).expect("a file"));
            command.envs(
                switches
                    .iter()
                    .map(|(name, value)| (format!("LIBPROXYPROTO_{name}"), value)),
            );
            let _server = start(&mut command, port, false);
            for (header, counts) in both_versions().iter().zip(counts) {
                let answer = answer_of(port, header);
                assert_eq!(answer.len(), 7, "{switches:?}: {answer:?}");
                assert_eq!(answer["accept"] == PEER, counts, "{switches:?}: {answer:?}");
                for copy in ["getpeername", "dup", "dup2", "dup3", "fcntl"] {
                    assert_eq!(
                        answer[copy] == PEER,
                        counts && shows_peer,
                        "{switches:?}, {copy}: {answer:?}"
                    );
                }
                let own = if shows_own && counts {
                    DESTINATION
                } else {
                    i32::from(port)
                };
                assert_eq!(answer["getsockname"], own, "{switches:?}");
            }
            let said = std::fs::read_to_string(&said).expect("the file");
            assert_eq!(said.contains("libproxyproto["), speaks, "{switches:?}: {said}");
        }
        // Whoever is not in the list is served as without a header: what it sends is data.
        let mut command = Command::new(&program);
        command.arg("7100").env("LIBPROXYPROTO_ALLOWED", "203.0.113.0/24");
        let _server = start(&mut command, 7100, false);
        assert_ne!(answer_of(7100, &both_versions()[0])["accept"], PEER);
        headers_may_be_required_and_are_whole_in_time(&program);
    });
}

/// `MUST_USE_PROTOCOL_HEADER` and `TIMEOUT`.
fn headers_may_be_required_and_are_whole_in_time(program: &Path) {
    for (port, required) in [(7101, false), (7102, true)] {
        let _server = start(Command::new(program).arg(port.to_string()), port, required);
        let answer = answer_of(port, b"");
        assert_eq!(answer.is_empty(), required, "without a header: {answer:?}");
        // `start` grants two seconds, for which there are ten without the switch.
        let begin = Instant::now();
        let mut client = connect(port);
        client.write_all(b"PROXY TCP4 203.0.113.7").expect("sent");
        assert_eq!(rest(&mut client), "");
        let took = begin.elapsed();
        assert!((2..10).contains(&took.as_secs()), "{took:?}");
    }
}

#[test]
fn each_switch_of_the_connecting_library_does_what_it_says() {
    in_namespace(&["cc"], || {
        let (_folder, program) = compile("switches");
        let connecting = library("libproxyproto-connect", "libproxyproto_connect.so");
        let v1 = "PROXY TCP4 203.0.113.7 127.0.0.1 4001 7200\r\n";
        let v1_ipv6 = "PROXY TCP6 2001:db8::7 ::1 4001 7200\r\n";
        let signature: &str = "\r\n\r\n\0\r\nQUIT\n";
        // Once for all: a program that another test starts has a copy of a listener until it is executed, and the address with it.
        let [on_ipv4, on_ipv6] = ["127.0.0.1", "::1"].map(|host| TcpListener::bind((host, 7200)).expect("bound"));
        for (version, host, address, begins) in [
            ("0", "127.0.0.1", "203.0.113.7", "payload"),
            ("1", "127.0.0.1", "203.0.113.7", v1),
            ("1", "::1", "2001:db8::7", v1_ipv6),
            ("2", "127.0.0.1", "203.0.113.7", signature),
            ("2", "::1", "2001:db8::7", signature),
        ] {
            for nonblocking in [false, true] {
                let listener = if host == "::1" { &on_ipv6 } else { &on_ipv4 };
                let mut command = Command::new(&program);
                command.args(["7200", host]).args(nonblocking.then_some("nonblocking"));
                let status = command
                    .env("LD_PRELOAD", &connecting)
                    .env("LIBPROXYPROTO_VERSION", version)
                    .env("LIBPROXYPROTO_ADDR", address)
                    .env("LIBPROXYPROTO_PORT", "4001")
                    .status();
                let about = format!("version {version} to {host}, non-blocking: {nonblocking}");
                assert_eq!(status.expect("run").code(), Some(0), "{about}");
                let mut bytes = Vec::new();
                listener
                    .accept()
                    .expect("a client")
                    .0
                    .read_to_end(&mut bytes)
                    .expect("read");
                assert!(
                    bytes.starts_with(begins.as_bytes()),
                    "{about}: {}",
                    bytes.escape_ascii()
                );
                assert!(bytes.ends_with(b"payload"), "{about}: {}", bytes.escape_ascii());
                let length = match (version, host) {
                    ("0", _) => 0,
                    ("1", _) => begins.len(),
                    (_, "::1") => 16 + 36,
                    _ => 16 + 12,
                };
                assert_eq!(bytes.len(), length + 7, "{about}: {}", bytes.escape_ascii());
            }
        }
        the_connecting_library_says_what_it_does_and_waits_as_long_as_it_may(&program, &connecting);
    });
}

/// `DEBUG`, and `TIMEOUT` of a server that does not answer.
fn the_connecting_library_says_what_it_does_and_waits_as_long_as_it_may(program: &Path, connecting: &Path) {
    let _listener = TcpListener::bind("127.0.0.1:7201").expect("bound");
    for (switch, says) in [
        (None, ""),
        (Some("1"), "libproxyproto_connect: header of 28 bytes sent\n"),
    ] {
        let mut command = Command::new(program);
        command.args(["7201", "127.0.0.1"]).env("LD_PRELOAD", connecting);
        command.envs(switch.map(|value| ("LIBPROXYPROTO_DEBUG", value)));
        let output = command.output().expect("run");
        assert_eq!(output.status.code(), Some(0));
        assert_eq!(String::from_utf8_lossy(&output.stderr), says);
    }
    // Nobody has this Ethernet address: the other end hears nothing.
    for words in [
        "link add silent0 type veth peer name silent1",
        "address add 192.0.2.2/24 dev silent0",
        "link set silent0 up",
        "link set silent1 up",
        "neigh replace 192.0.2.1 lladdr 02:00:00:00:00:01 dev silent0",
    ] {
        assert!(runs("ip", &words.split(' ').collect::<Vec<_>>()), "ip {words}");
    }
    let mut command = Command::new(program);
    command.args(["7201", "192.0.2.1", "nonblocking"]);
    command.env("LD_PRELOAD", connecting).env("LIBPROXYPROTO_TIMEOUT", "1");
    let begin = Instant::now();
    let status = command.status().expect("run");
    // The call fails after one second, for which there are ten without the switch.
    let took = begin.elapsed();
    assert_eq!(status.code(), Some(3), "{took:?}");
    assert!((1..10).contains(&took.as_secs()), "{took:?}");
}
