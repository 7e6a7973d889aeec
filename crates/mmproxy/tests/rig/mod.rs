//! What the tests share: a network namespace of their own, servers that say who connected, the proxy itself.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "every test file includes it and uses its own part"
)]

use proxy_protocol::{Addresses, Header, Transport, V2_SIGNATURE};
use rustix::thread::ThreadNameSpaceType;
use std::fs::Permissions;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Longest wait for anything that should come at once.
pub const PATIENCE: Duration = Duration::from_secs(10);

static NAMESPACES: AtomicU32 = AtomicU32::new(0);

struct Namespace(String);

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

fn ip(arguments: &[&str]) -> bool {
    Command::new("ip")
        .args(arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// The harness names the thread of each test after it.
fn test_name() -> String {
    std::thread::current().name().unwrap_or("mmproxy").to_owned()
}

/// Says that the test, or a part of it, cannot run here.
pub fn skip(reason: &str) {
    ::rig::skip(&test_name(), reason);
}

/// The same of what a kernel or a processor may lack.
pub fn lacking(reason: &str) {
    ::rig::lacking(&test_name(), reason);
}

/// Runs `test` in a network namespace of its own, with loopback up and the routing rules installed. Without root it says
/// so and does nothing.
pub fn in_namespace(test: impl FnOnce() + Send + 'static) {
    in_bare_namespace(|_| {
        let setup = Command::new(env!("CARGO_BIN_EXE_mmproxy"))
            .arg("setup")
            .output()
            .expect("mmproxy setup");
        assert!(setup.status.success(), "{}", String::from_utf8_lossy(&setup.stderr));
        test();
    });
}

/// The same without routing rules; `test` gets the namespace's name.
pub fn in_bare_namespace(test: impl FnOnce(&str) + Send + 'static) {
    if !rustix::process::geteuid().is_root() || !ip(&["netns", "list"]) {
        return skip("network namespaces need root and iproute2");
    }
    let name = format!(
        "mmproxy-{}-{}",
        std::process::id(),
        NAMESPACES.fetch_add(1, Ordering::Relaxed)
    );
    assert!(ip(&["netns", "add", &name]), "cannot make namespace {name}");
    let namespace = Namespace(name);
    let name = namespace.0.clone();
    // Threads and processes that a thread starts are in its namespace.
    let inside = move || {
        enter(&name);
        assert!(ip(&["link", "set", "lo", "up"]));
        test(&name);
    };
    let result = std::thread::Builder::new()
        .name(test_name())
        .spawn(inside)
        .expect("thread")
        .join();
    drop(namespace);
    if let Err(panic) = result {
        std::panic::resume_unwind(panic);
    }
}

/// Moves this thread into a namespace.
fn enter(name: &str) {
    let file = std::fs::File::open(format!("/run/netns/{name}")).expect("namespace file");
    rustix::thread::move_into_thread_name_spaces(file.as_fd(), ThreadNameSpaceType::NETWORK).expect("setns");
}

/// A namespace beside this one, at 10.7.0.2 behind the interface `inside` of this one, as a container has it. It is
/// removed when dropped.
pub struct Container(Namespace);

impl Container {
    /// Makes it beside the namespace of this name.
    pub fn beside(name: &str) -> Container {
        let own = format!("{name}-c");
        assert!(ip(&["netns", "add", &own]));
        let container = Container(Namespace(own));
        let own = &container.0.0;
        for command in [
            format!("link add inside type veth peer name outside netns {own}"),
            "addr add 10.7.0.1/24 dev inside".into(),
            "link set inside up".into(),
            format!("-n {own} addr add 10.7.0.2/24 dev outside"),
            format!("-n {own} link set outside up"),
            format!("-n {own} link set lo up"),
            format!("-n {own} route add default via 10.7.0.1"),
        ] {
            assert!(ip(&command.split(' ').collect::<Vec<_>>()), "ip {command}");
        }
        container
    }

    /// One that is there already; it is removed when dropped.
    pub fn named(name: &str) -> Container {
        Container(Namespace(name.to_owned()))
    }

    /// Runs something in it, which may start threads that stay there.
    pub fn run<T: Send + 'static>(&self, act: impl FnOnce() -> T + Send + 'static) -> T {
        let name = self.0.0.clone();
        let inside = std::thread::spawn(move || {
            enter(&name);
            act()
        });
        inside.join().expect("it runs")
    }
}

/// Several threads, whatever the machine has, unless `more` says how many.
fn two_workers(more: &[&str]) -> &'static [&'static str] {
    if more.contains(&"--workers") {
        &[]
    } else {
        &["--workers", "2"]
    }
}

/// A running proxy; it is killed when dropped.
pub struct Proxy {
    pub child: Child,
    pub address: SocketAddr,
}

impl Proxy {
    /// Starts the proxy with these arguments and waits until it listens on `address` (TCP).
    pub fn start(arguments: &[&str], address: &str) -> Proxy {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mmproxy"));
        command.args(arguments);
        Self::spawn(command, address)
    }

    /// The same with the usual listener and targets, and more options.
    pub fn tcp(more: &[&str]) -> Proxy {
        let usual = ["-l", "127.0.0.1:8443", "-4", "127.0.0.1:443", "-6", "[::1]:443"];
        Self::start(&[&usual[..], two_workers(more), more].concat(), "127.0.0.1:8443")
    }

    /// The same where another proxy listens already, which would answer for one that has not begun.
    pub fn tcp_beside_another() -> Proxy {
        // The listener of the metrics is opened last.
        let usual = [
            "-l",
            "127.0.0.1:8443",
            "-4",
            "127.0.0.1:443",
            "--metrics",
            "127.0.0.1:9111",
        ];
        let mut proxy = Self::start(&usual, "127.0.0.1:9111");
        proxy.address = "127.0.0.1:8443".parse().expect("address");
        proxy
    }

    /// Clock ticks that all its threads have run, in user mode and in the kernel (proc(5)).
    pub fn cpu_ticks(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).expect("stat");
        // Behind the name in parentheses: the state is the first field.
        let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        let ticks = fields
            .skip(11)
            .take(2)
            .map(|ticks| ticks.parse::<u64>().expect("ticks"));
        ticks.sum()
    }

    /// The same for UDP.
    pub fn udp(more: &[&str]) -> Proxy {
        let usual = [
            "-p",
            "udp",
            "-l",
            "127.0.0.1:8443",
            "-4",
            "127.0.0.1:443",
            "-6",
            "[::1]:443",
        ];
        let metrics = ["--metrics", "127.0.0.1:9110"];
        let arguments = [&usual[..], &metrics, two_workers(more), more].concat();
        let mut proxy = Self::start(&arguments, "127.0.0.1:9110");
        proxy.address = "127.0.0.1:8443".parse().expect("address");
        proxy
    }

    pub fn spawn(command: Command, address: &str) -> Proxy {
        Self::spawn_saying(command, address, Stdio::null())
    }

    /// The same, whose log goes there.
    pub fn spawn_saying(mut command: Command, address: &str, log: Stdio) -> Proxy {
        let address: SocketAddr = address.parse().expect("address");
        // The kernel accepts as soon as there are sockets, when the proxy has neither its threads nor all its descriptors.
        let folder = tempfile::tempdir().expect("a folder");
        let manager = UnixDatagram::bind(folder.path().join("notify")).expect("a service manager");
        manager
            .set_read_timeout(Some(Duration::from_millis(50)))
            .expect("timeout");
        // Whoever the proxy runs as may tell.
        for path in [folder.path().to_owned(), folder.path().join("notify")] {
            std::fs::set_permissions(path, Permissions::from_mode(0o777)).expect("permissions");
        }
        let child = command
            .env("NOTIFY_SOCKET", folder.path().join("notify"))
            .stdin(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("the proxy starts");
        let mut proxy = Proxy { child, address };
        wait_for("the proxy is ready", || {
            assert!(proxy.is_alive(), "the proxy ended");
            let mut told = [0; 64];
            manager
                .recv(&mut told)
                .is_ok_and(|length| told[..length].starts_with(b"READY=1"))
        });
        proxy
    }

    pub fn is_alive(&mut self) -> bool {
        self.child.try_wait().expect("status").is_none()
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).expect("signal");
    }

    /// Stands still, all its threads, until it gets `CONT`.
    pub fn stop(&self) {
        self.signal(rustix::process::Signal::STOP);
        let tasks = format!("/proc/{}/task", self.child.id());
        let is_stopped = |task: std::fs::DirEntry| {
            let status = std::fs::read_to_string(task.path().join("status")).unwrap_or_default();
            status.contains("State:\tT")
        };
        wait_for("all threads stand still", || {
            let mut tasks = std::fs::read_dir(&tasks).expect("threads").filter_map(Result::ok);
            tasks.all(is_stopped)
        });
    }

    /// Connects and sends these bytes.
    pub fn send(&self, bytes: &[u8]) -> TcpStream {
        let mut client = self.connect();
        client.write_all(bytes).expect("sent");
        client
    }

    pub fn connect(&self) -> TcpStream {
        let client = TcpStream::connect(self.address).expect("connected");
        client.set_nodelay(true).expect("nodelay");
        client.set_read_timeout(Some(PATIENCE)).expect("timeout");
        client
    }

    pub fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id()))
            .expect("descriptors")
            .count()
    }

    /// Private memory in kilobytes: what is this process's own.
    pub fn private_kb(&self) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", self.child.id())).expect("smaps");
        let field = |line: &str| {
            line.split_whitespace()
                .nth(1)
                .and_then(|number| number.parse::<u64>().ok())
        };
        text.lines()
            .filter(|line| line.starts_with("Private_"))
            .filter_map(field)
            .sum()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits for something to become true, or fails.
#[track_caller]
pub fn wait_for(what: &str, mut is_true: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_true() {
        assert!(start.elapsed() < PATIENCE, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A TCP server that writes `ip:port` of its client and a newline, then echoes until the client ends.
pub struct Server {
    pub accepted: Arc<AtomicUsize>,
}

pub fn tcp_server(address: &str) -> Server {
    let accepted = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&accepted);
    serve(address, move |mut client, from| {
        count.fetch_add(1, Ordering::SeqCst);
        let greeting = format!("{from}\n");
        let mut buffer = vec![0; 64 * 1024];
        let _ = client.write_all(greeting.as_bytes());
        while let Ok(length @ 1..) = client.read(&mut buffer) {
            if client.write_all(&buffer[..length]).is_err() {
                return;
            }
        }
        let _ = client.shutdown(Shutdown::Write);
    });
    Server { accepted }
}

/// A TCP server with a thread for each client.
pub fn serve(address: &str, handle: impl Fn(TcpStream, SocketAddr) + Send + Sync + 'static) {
    let listener = listen(address);
    let handle = Arc::new(handle);
    std::thread::spawn(move || {
        while let Ok((client, from)) = listener.accept() {
            let handle = Arc::clone(&handle);
            std::thread::Builder::new()
                .stack_size(256 * 1024)
                .spawn(move || handle(client, from))
                .expect("thread");
        }
    });
}

pub fn listen(address: &str) -> TcpListener {
    let address: SocketAddr = address.parse().expect("address");
    let socket =
        socket2::Socket::new(socket2::Domain::for_address(address), socket2::Type::STREAM, None).expect("socket");
    socket.set_reuse_address(true).expect("reuse");
    socket.bind(&address.into()).expect("bound");
    socket.listen(4096).expect("listening");
    socket.into()
}

/// A UDP server that answers each datagram with `ip:port `, and the datagram.
pub fn udp_server(address: &str) {
    let socket = UdpSocket::bind(address).expect("bound");
    std::thread::spawn(move || {
        let mut buffer = vec![0; 70_000];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            let mut reply = format!("{from} ").into_bytes();
            // The largest datagrams are answered without their address, which would not fit.
            if length > 60_000 {
                reply.clear();
            }
            reply.extend_from_slice(&buffer[..length]);
            let _ = socket.send_to(&reply, from);
        }
    });
}

/// Reads the line that the server greets with.
pub fn greeting(client: &mut TcpStream) -> io::Result<String> {
    let mut line = Vec::new();
    let mut byte = [0];
    loop {
        match client.read(&mut byte)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            _ if byte[0] == b'\n' => return Ok(String::from_utf8_lossy(&line).into_owned()),
            _ => line.push(byte[0]),
        }
    }
}

/// What follows until the end of the connection; a reset counts as its end.
pub fn rest(client: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    match client.read_to_end(&mut bytes) {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {}
        Err(error) => panic!("the connection neither ends nor goes on: {error}"),
    }
    bytes
}

/// A version 1 header.
pub fn v1(source: &str, destination: &str) -> Vec<u8> {
    let pair = Addresses::from_pair(source.parse().expect("address"), destination.parse().expect("address"));
    encode(&Header::v1(pair))
}

/// A version 2 header.
pub fn v2(transport: Transport, source: &str, destination: &str) -> Vec<u8> {
    let pair = Addresses::from_pair(source.parse().expect("address"), destination.parse().expect("address"));
    encode(&Header::proxy(transport, pair))
}

pub fn encode(header: &Header<'_>) -> Vec<u8> {
    let mut out = vec![0; header.encoded_len()];
    header.encode(&mut out).expect("encoded");
    out
}

/// A version 2 header byte by byte: version and command, family and transport, and what follows the length.
pub fn raw_v2(version_command: u8, family: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = V2_SIGNATURE.to_vec();
    bytes.extend([version_command, family]);
    bytes.extend((body.len() as u16).to_be_bytes());
    bytes.extend(body);
    bytes
}

/// The body of a version 2 header: 203.0.113.7 with this port to 198.51.100.9:443.
pub fn inet(port: u16) -> Vec<u8> {
    let mut body = vec![203, 0, 113, 7, 198, 51, 100, 9];
    body.extend(port.to_be_bytes());
    body.extend(443u16.to_be_bytes());
    body
}

/// A type-length-value field.
pub fn tlv(kind: u8, value: &[u8]) -> Vec<u8> {
    let mut bytes = vec![kind];
    bytes.extend((value.len() as u16).to_be_bytes());
    bytes.extend(value);
    bytes
}

/// A value of the proxy's Prometheus text.
pub fn metric(name: &str) -> u64 {
    let mut connection = TcpStream::connect("127.0.0.1:9110").expect("metrics");
    connection
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .expect("request");
    let text = String::from_utf8(rest(&mut connection)).expect("text");
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
    value.unwrap_or_else(|| panic!("no {name} in {text}"))
}
