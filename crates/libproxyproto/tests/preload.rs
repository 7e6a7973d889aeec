//! Unmodified programs with the library preloaded: netcat, nginx, redis, sshd, and a threaded C server. Each runs in a
//! network namespace of its own; without root, or without the program, a test says so and does nothing.

use proxy_protocol::{Addresses, Header, Transport};
use rustix::thread::ThreadNameSpaceType;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(15);

/// The library, built by the cargo that runs this test.
fn library(package: &str, file: &str) -> PathBuf {
    static BUILT: OnceLock<()> = OnceLock::new();
    BUILT.get_or_init(|| {
        let built = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "-p", "libproxyproto", "-p", "libproxyproto-connect"])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status();
        assert!(
            built.is_ok_and(|status| status.success()),
            "the libraries cannot be built"
        );
    });
    // The test is in target/PROFILE/deps.
    let own = std::env::current_exe().expect("path");
    let path = own
        .ancestors()
        .nth(2)
        .expect("profile directory")
        .with_file_name("debug")
        .join(file);
    assert!(path.exists(), "{package}: no {}", path.display());
    path
}

fn server_library() -> PathBuf {
    library("libproxyproto", "libproxyproto.so")
}

struct Namespace(String);

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

fn runs(program: &str, arguments: &[&str]) -> bool {
    let status = Command::new(program)
        .args(arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    status.is_ok_and(|status| status.success())
}

/// Says that the test cannot run here: [`rig::skip`].
fn skip(reason: &str) {
    rig::skip(std::thread::current().name().unwrap_or("libproxyproto"), reason);
}

fn in_namespace(needs: &[&str], test: impl FnOnce() + Send + 'static) {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    if !rustix::process::geteuid().is_root() || !runs("ip", &["netns", "list"]) {
        return skip("network namespaces need root and iproute2");
    }
    if let Some(missing) = needs
        .iter()
        .find(|program| !runs("sh", &["-c", &format!("command -v {program}")]))
    {
        return skip(&format!("{missing} is not installed"));
    }
    let namespace = Namespace(format!(
        "lpp-{}-{}",
        std::process::id(),
        COUNT.fetch_add(1, Ordering::Relaxed)
    ));
    assert!(runs("ip", &["netns", "add", &namespace.0]));
    let file = std::fs::File::open(format!("/run/netns/{}", namespace.0)).expect("namespace file");
    let result = std::thread::spawn(move || {
        rustix::thread::move_into_thread_name_spaces(file.as_fd(), ThreadNameSpaceType::NETWORK).expect("setns");
        assert!(runs("ip", &["link", "set", "lo", "up"]));
        test();
    })
    .join();
    drop(namespace);
    if let Err(panic) = result {
        std::panic::resume_unwind(panic);
    }
}

/// A program that is killed when dropped, with what it started.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.0);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        std::thread::sleep(Duration::from_millis(100));
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a preloaded server and waits until it listens.
fn start(command: &mut Command, port: u16, required: bool) -> Running {
    command
        .env("LD_PRELOAD", server_library())
        .env("LIBPROXYPROTO_TIMEOUT", "2");
    if required {
        command.env("LIBPROXYPROTO_MUST_USE_PROTOCOL_HEADER", "1");
    }
    let running = Running(command.stdin(Stdio::null()).spawn().expect("the server starts"));
    let begin = Instant::now();
    // Connecting would be a connection to serve, which netcat has only one of.
    while !runs("sh", &["-c", &format!("ss -Hltn 'sport = :{port}' | grep -q .")]) {
        assert!(begin.elapsed() < PATIENCE, "nobody listens on {port}");
        std::thread::sleep(Duration::from_millis(20));
    }
    running
}

fn connect(port: u16) -> TcpStream {
    let client = TcpStream::connect(("127.0.0.1", port)).expect("connected");
    client.set_nodelay(true).expect("nodelay");
    client.set_read_timeout(Some(PATIENCE)).expect("timeout");
    client
}

fn header(source: &str) -> Vec<u8> {
    let source: SocketAddr = source.parse().expect("address");
    let destination = if source.is_ipv4() {
        "198.51.100.9:443"
    } else {
        "[2001:db8::9]:443"
    };
    let pair = Addresses::from_pair(source, destination.parse().expect("address"));
    let header = Header::proxy(Transport::Stream, pair);
    let mut out = vec![0; header.encoded_len()];
    header.encode(&mut out).expect("encoded");
    out
}

fn send_in_pieces(client: &mut TcpStream, bytes: &[u8], step: usize) {
    for piece in bytes.chunks(step) {
        client.write_all(piece).expect("sent");
        std::thread::sleep(Duration::from_millis(3));
    }
}

/// What comes until the end; a reset is an end.
fn rest(client: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    if let Err(error) = client.read_to_end(&mut bytes) {
        assert_eq!(
            error.kind(),
            std::io::ErrorKind::ConnectionReset,
            "neither ends nor goes on"
        );
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Compiles a C program of this folder.
fn compile(name: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/{name}.c"));
    let status = Command::new("cc")
        // Bound at start, or each child of a test would look up again what it calls.
        .args(["-O2", "-pthread", "-Wl,-z,now", "-o"])
        .args([&program, &source])
        .status();
    assert!(status.expect("a C compiler").success());
    (folder, program)
}

/// How often a way of being interrupted is tried, unless `LIBPROXYPROTO_TEST_TIMES` says otherwise: 1000000 takes a minute for
/// signals and for `vfork`, and some ten for `fork`.
fn times(usual: u32) -> u32 {
    let wanted = std::env::var("LIBPROXYPROTO_TEST_TIMES");
    wanted.ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// Runs tests/interrupted.c with two clients, 203.0.113.7:4001 and :4002.
fn interrupted(by: &str, times: u32) {
    let by = by.to_owned();
    in_namespace(&["ss", "cc"], move || {
        let (_folder, program) = compile("interrupted");
        let mut command = Command::new(program);
        let mut server = start(
            command.args([&by, &times.to_string(), "443"]).stdout(Stdio::piped()),
            443,
            true,
        );
        let clients = [4001, 4002].map(|port| {
            let mut client = connect(443);
            client.write_all(&header(&format!("203.0.113.7:{port}"))).expect("sent");
            // One after the other.
            std::thread::sleep(Duration::from_millis(50));
            client
        });
        let begin = Instant::now();
        let limit = Duration::from_secs(60) + Duration::from_micros(if by == "fork" { 10_000 } else { 500 }) * times;
        let status = loop {
            if let Some(status) = server.0.try_wait().expect("its status") {
                break status;
            }
            assert!(begin.elapsed() < limit, "it hangs: {by}");
            std::thread::sleep(Duration::from_millis(10));
        };
        drop(clients);
        eprintln!("{times} times {by} in {:?}", begin.elapsed());
        assert!(status.success(), "{by}: {status}");
    });
}

#[test]
fn calls_that_a_signal_interrupts_and_whose_handler_makes_them_again_go_on() {
    interrupted("signal", times(20_000));
}

#[test]
fn children_that_are_forked_during_a_call_are_not_stuck() {
    interrupted("fork", times(5_000));
}

#[test]
fn children_of_vfork_leave_their_parents_addresses_alone() {
    interrupted("vfork", times(20_000));
}

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

fn scratch(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("lpp-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&path).expect("directory");
    path
}

fn nginx(directory: &Path, workers: u32) -> Command {
    let config = directory.join("nginx.conf");
    let text = format!(
        "daemon off; master_process on; worker_processes {workers}; user root; pid {0}/pid; error_log {0}/error;\n\
         env LIBPROXYPROTO_TIMEOUT; env LIBPROXYPROTO_MUST_USE_PROTOCOL_HEADER;\n\
         events {{ worker_connections 256; }}\n\
         http {{ access_log {0}/access; client_body_temp_path {0}; proxy_temp_path {0}; fastcgi_temp_path {0};\n\
         uwsgi_temp_path {0}; scgi_temp_path {0};\n\
         server {{ listen 8080; listen [::]:8081; return 200 '$remote_addr $remote_port\\n'; }} }}\n",
        directory.display()
    );
    std::fs::write(&config, text).expect("configuration");
    let mut command = Command::new("nginx");
    command
        .arg("-c")
        .arg(config)
        .arg("-p")
        .arg(directory)
        .stderr(Stdio::null());
    command
}

const REQUEST: &[u8] = b"GET / HTTP/1.0\r\n\r\n";

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

#[test]
fn a_threaded_server_with_3000_connections() {
    in_namespace(&["cc", "ss"], || {
        let directory = scratch("threads");
        let binary = directory.join("server");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/threaded_server.c");
        let built = Command::new("cc")
            .arg("-O1")
            .arg("-pthread")
            .arg("-o")
            .arg(&binary)
            .arg(source)
            .status();
        assert!(built.is_ok_and(|status| status.success()));
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
        let binary = directory.join("server");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/threaded_server.c");
        let built = Command::new("cc")
            .arg("-pthread")
            .arg("-o")
            .arg(&binary)
            .arg(source)
            .status();
        assert!(built.is_ok_and(|status| status.success()));
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
    client.shutdown(Shutdown::Write).expect("end");
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
    });
}

#[test]
fn each_switch_of_the_connecting_library_does_what_it_says() {
    in_namespace(&["cc"], || {
        let (_folder, program) = compile("switches");
        let connecting = library("libproxyproto-connect", "libproxyproto_connect.so");
        let v1 = "PROXY TCP4 203.0.113.7 127.0.0.1 4001 7200\r\n";
        let v1_ipv6 = "PROXY TCP6 2001:db8::7 ::1 4001 7200\r\n";
        let signature: &str = "\r\n\r\n\0\r\nQUIT\n";
        for (version, host, address, begins) in [
            ("0", "127.0.0.1", "203.0.113.7", "payload"),
            ("1", "127.0.0.1", "203.0.113.7", v1),
            ("1", "::1", "2001:db8::7", v1_ipv6),
            ("2", "127.0.0.1", "203.0.113.7", signature),
            ("2", "::1", "2001:db8::7", signature),
        ] {
            for nonblocking in [false, true] {
                let listener = std::net::TcpListener::bind((host, 7200)).expect("bound");
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
    });
}

/// How often each system call named a socket, in a log of strace; of redis' own work ten times a second none does.
fn socket_calls(log: &str) -> BTreeMap<String, u64> {
    let mut calls = BTreeMap::new();
    for line in log.lines().filter(|line| line.contains("<socket:[")) {
        // The process comes first, then CALL(ARGUMENTS; what is resumed names no socket.
        let name = line
            .split_once(' ')
            .and_then(|(_, call)| call.trim_start().split_once('('));
        if let Some((name, _)) = name {
            *calls.entry(name.to_owned()).or_default() += 1;
        }
    }
    calls
}

/// Calls on redis' sockets for a client that is accepted, sends so many commands, each after the answer to the one before,
/// and ends the server.
fn traced(preloaded: bool, commands: u32) -> BTreeMap<String, u64> {
    let file = std::env::temp_dir().join(format!("lpp-strace-{}-{preloaded}", std::process::id()));
    let mut command = Command::new("strace");
    command.args(["-f", "-y", "-e", "trace=%desc,%network", "-o"]);
    command.arg(&file).args(["redis-server", "--port", "6379"]);
    command
        .args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
        .args(["--protected-mode", "no"])
        .stdout(Stdio::null())
        .stdin(Stdio::null());
    if preloaded {
        command.env("LIBPROXYPROTO_MUST_USE_PROTOCOL_HEADER", "1");
        // For strace itself it has no effect: it accepts nothing.
        command.env("LD_PRELOAD", server_library());
    }
    let mut child = command.spawn().expect("strace");
    let begin = Instant::now();
    while !runs("sh", &["-c", "ss -Hltn 'sport = :6379' | grep -q ."]) {
        assert!(begin.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut client = connect(6379);
    if preloaded {
        client.write_all(&header("203.0.113.7:1")).expect("sent");
    }
    let mut answer = [0; 7];
    for _ in 0..commands {
        client.write_all(b"PING\r\n").expect("sent");
        client.read_exact(&mut answer).expect("an answer");
    }
    client.write_all(b"SHUTDOWN NOSAVE\r\n").expect("sent");
    let _ = rest(&mut client);
    child.wait().expect("it ends");
    let log = std::fs::read_to_string(&file).expect("the log");
    let _ = std::fs::remove_file(file);
    socket_calls(&log)
}

#[test]
fn reading_and_writing_cost_no_further_system_call() {
    const COMMANDS: u32 = 500;
    in_namespace(&["redis-server", "strace", "ss"], || {
        let (with, without) = (traced(true, COMMANDS), traced(false, COMMANDS));
        let calls_of = |counts: &BTreeMap<String, u64>, name: &str| counts.get(name).copied().unwrap_or(0);
        for (name, calls) in &with {
            let more = calls.saturating_sub(calls_of(&without, name));
            // Accepting a connection and reading its header takes a handful; a call for every tenth command is 50.
            assert!(more < 30, "{more} more calls of {name}: {with:?} against {without:?}");
        }
        let written = calls_of(&without, "write") + calls_of(&without, "sendto");
        assert!(written >= u64::from(COMMANDS), "{without:?}");
    });
}
