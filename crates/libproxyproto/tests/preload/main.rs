//! Unmodified programs with the library preloaded: netcat, nginx, redis, sshd, and a threaded C server. Each runs in a
//! network namespace of its own; without root, or without the program, a test says so and does nothing.

mod interrupted;
mod servers;
mod switches;
mod system_calls;

use proxy_protocol::{Addresses, Header, Transport};
use rustix::thread::ThreadNameSpaceType;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
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

fn scratch(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("lpp-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&path).expect("directory");
    path
}

fn nginx(directory: &Path, workers: u32) -> Command {
    let config = directory.join("nginx.conf");
    let text = format!(
        "daemon off; master_process on; worker_processes {workers}; user root; pid {0}/pid; error_log {0}/error;\n\
         env LIBPROXYPROTO_TIMEOUT; env LIBPROXYPROTO_MUST_USE_PROTOCOL_HEADER; env LIBPROXYPROTO_ALLOWED;\n\
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
