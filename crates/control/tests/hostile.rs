//! What peers may try, on TCP and on a Unix socket: they get an answer or are closed, and others are served meanwhile.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use control::http::{
    ANSWER_TIME, Answer, Endpoint, MOST_CONNECTIONS, Peer, REQUEST_TIME, Request, Running, Server, client,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// More than the kernel keeps for a reader that does not read.
const LARGE: usize = 32 << 20;

fn handler(request: &Request<'_>) -> Answer {
    match (request.method, request.path, request.peer) {
        ("GET", "/large", _) => Answer::text("x".repeat(LARGE)),
        ("GET", "/long", _) => Answer::text("x".repeat(LARGE / 8)),
        ("GET", "/slow", _) => {
            std::thread::sleep(REQUEST_TIME + Duration::from_millis(500));
            Answer::text("slow")
        }
        ("GET", "/beside", _) => Answer::beside(|| {
            std::thread::sleep(REQUEST_TIME);
            Answer::refusal(409, "at last")
        }),
        ("GET", "/who", Peer::Local { uid }) => Answer::text(uid.to_string()),
        ("GET", "/endless", _) => Answer::stream("text/plain", |mut body| {
            while !body.is_enough() && body.send(b"again\n").is_ok() {
                std::thread::sleep(Duration::from_millis(1));
            }
            let _peer_may_be_gone = body.send(b"end\n").and_then(|()| body.finish());
        }),
        ("GET", "/broken", _) => Answer::stream("text/plain", |mut body| {
            let _peer_may_be_gone = body.send(b"begun\n");
        }),
        ("GET", "/who", Peer::Network) => Answer::text("network"),
        _ => Answer::not_found("/large, /who"),
    }
}

fn server() -> (Running, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let mut server = Server::new();
    server.listen_on(listener).expect("listener");
    (server.spawn("hostile", handler).expect("server"), address)
}

/// On a Unix socket, too.
fn on_both(socket: &Path) -> (Running, SocketAddr, Endpoint) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let local = Endpoint::Unix(socket.to_owned());
    let mut server = Server::new();
    server.listen(&local).expect("socket");
    server.listen_on(listener).expect("listener");
    (server.spawn("both", handler).expect("server"), address, local)
}

/// Asks for more than the kernel keeps, and reads none of it.
fn ask_without_reading(address: SocketAddr) -> TcpStream {
    let mut stream = connect(address);
    rustix::net::sockopt::set_socket_recv_buffer_size(&stream, 4096).expect("a small buffer");
    stream
        .write_all(b"GET /long HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .expect("request");
    stream
}

/// Descriptors up to the hard limit.
fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    setrlimit(Resource::Nofile, raised).expect("descriptors");
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
    stream.set_write_timeout(Some(PATIENCE)).expect("timeout");
    stream
}

fn who(address: SocketAddr) -> (u16, String) {
    client::ask(&Endpoint::Tcp(address), "GET", "/who").expect("an answer")
}

/// All that comes until the end of the connection, whichever end that is.
fn rest(mut stream: impl Read) -> Vec<u8> {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => panic!("neither answered nor closed"),
        _ => bytes,
    }
}

#[test]
fn a_thousand_silent_connections_keep_nobody_out_and_are_closed() {
    raise_limit();
    let (_server, address) = server();
    let silent: Vec<TcpStream> = (0..1000).map(|_| connect(address)).collect();
    assert_eq!(who(address), (200, "network".to_owned()));
    for stream in silent {
        assert!(rest(stream).is_empty());
    }
    assert_eq!(who(address), (200, "network".to_owned()));
}

#[test]
fn one_place_serves_one_after_the_other() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let mut server = Server::new();
    server.allow_connections(1);
    server.listen_on(listener).expect("listener");
    let _running = server.spawn("one place", handler).expect("server");
    for _ in 0..20 {
        let _silent = connect(address);
        assert_eq!(who(address), (200, "network".to_owned()));
    }
}

#[test]
fn a_request_that_comes_in_drops_is_closed() {
    let (_server, address) = server();
    let mut slow = connect(address);
    slow.write_all(b"GET /who HTTP/1.1\r\nHost: localhost\r\nA: ")
        .expect("the beginning");
    slow.set_read_timeout(Some(Duration::from_millis(100)))
        .expect("timeout");
    let begin = Instant::now();
    loop {
        assert!(begin.elapsed() < PATIENCE, "still open");
        let written = slow.write_all(b"a");
        match slow.read(&mut [0; 16]) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock && written.is_ok() => {}
            Ok(0) | Err(_) => break,
            Ok(_) => panic!("an answer to half a request"),
        }
    }
    assert_eq!(who(address).0, 200);
}

#[test]
fn readers_that_do_not_read_keep_nobody_out_and_are_closed() {
    let (_server, address) = server();
    // With all places taken by answers, those who come wait; nobody's answer is cut off by a newer connection.
    let readers: Vec<TcpStream> = (0..4)
        .map(|_| {
            let mut stream = connect(address);
            stream
                .write_all(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
                .expect("request");
            stream
        })
        .collect();
    assert_eq!(who(address).0, 200);
    std::thread::sleep(control::http::ANSWER_TIME + Duration::from_secs(1));
    for stream in readers {
        let got = rest(stream).len();
        assert!(got < LARGE, "{got} bytes for who has not read in time");
    }
    let (status, body) = client::ask(&Endpoint::Tcp(address), "GET", "/large").expect("an answer");
    assert_eq!((status, body.len()), (200, LARGE), "who reads gets all");
}

#[test]
fn huge_and_binary_requests_are_refused() {
    let (_server, address) = server();
    let mut huge = connect(address);
    let _ = huge.write_all(&vec![b'a'; 1 << 20]);
    let answer = rest(huge);
    assert!(
        answer.is_empty() || answer.starts_with(b"HTTP/1.1 4"),
        "{}",
        answer.len()
    );
    let mut seed = 1_u64;
    for _ in 0..4 * MOST_CONNECTIONS {
        let mut bytes = Vec::new();
        for _ in 0..64 {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            bytes.extend((seed >> 24).to_be_bytes());
        }
        let mut stream = connect(address);
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let answer = rest(stream);
        assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 4"), "{answer:?}");
    }
    assert_eq!(who(address).0, 200);
}

#[test]
fn a_unix_socket_says_who_asks_and_goes_with_its_server() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("control");
    let endpoint = Endpoint::Unix(path.clone());
    let mut server = Server::new();
    server.listen(&endpoint).expect("socket");
    let running = server.spawn("unix", handler).expect("server");
    let mode = std::fs::metadata(&path).expect("socket").permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
    let uid = rustix::process::geteuid().as_raw();
    assert_eq!(
        client::ask(&endpoint, "GET", "/who").expect("an answer"),
        (200, uid.to_string())
    );
    let silent = UnixStream::connect(&path).expect("connection");
    drop(running);
    assert!(rest(silent).is_empty());
    assert!(!path.exists());
}

#[test]
fn an_answer_goes_on_until_it_is_enough_and_one_that_breaks_off_is_an_error() {
    let (_running, address) = server();
    let endpoint = Endpoint::Tcp(address);
    let (mut answer, enough) = client::stream(&endpoint, "GET", "/endless").expect("an answer");
    let mut first = [0; 12];
    answer.read_exact(&mut first).expect("two lines");
    assert_eq!((answer.status, &first), (200, b"again\nagain\n"));
    // Others are served meanwhile.
    assert_eq!(who(address), (200, "network".to_owned()));
    enough.say().expect("said");
    let mut rest = String::new();
    answer.read_to_string(&mut rest).expect("an end");
    assert!(rest.ends_with("end\n"), "{rest}");
    let (mut broken, _enough) = client::stream(&endpoint, "GET", "/broken").expect("an answer");
    let mut begun = String::new();
    let error = broken.read_to_string(&mut begun).expect_err("no end");
    assert_eq!(
        (error.kind(), begun.as_str()),
        (std::io::ErrorKind::UnexpectedEof, "begun\n")
    );
    // A whole answer is read as one that goes on, too.
    let (mut whole, _enough) = client::stream(&endpoint, "GET", "/nowhere").expect("an answer");
    let mut text = String::new();
    whole.read_to_string(&mut text).expect("an end");
    assert_eq!((whole.status, text.as_str()), (404, "/large, /who"));
    // Who goes away without a word ends it as well.
    drop(client::stream(&endpoint, "GET", "/endless").expect("an answer"));
    assert_eq!(who(address), (200, "network".to_owned()));
}

#[test]
fn readers_over_tcp_that_do_not_read_keep_no_local_peer_out() {
    let folder = tempfile::tempdir().expect("folder");
    let (_server, address, local) = on_both(&folder.path().join("control"));
    let _readers: Vec<TcpStream> = (0..MOST_CONNECTIONS).map(|_| ask_without_reading(address)).collect();
    std::thread::sleep(Duration::from_secs(1));
    let begin = Instant::now();
    let (status, _) = client::ask(&local, "GET", "/who").expect("an answer");
    assert!(
        status == 200 && begin.elapsed() < ANSWER_TIME / 4,
        "{:?}",
        begin.elapsed()
    );
}

#[test]
fn a_thousand_connections_over_both_are_answered_or_closed() {
    raise_limit();
    let folder = tempfile::tempdir().expect("folder");
    let socket = folder.path().join("control");
    let (_server, address, local) = on_both(&socket);
    let _readers: Vec<TcpStream> = (0..8).map(|_| ask_without_reading(address)).collect();
    const REQUEST: &[u8] = b"GET /who HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let (mut network, mut locals) = (Vec::new(), Vec::new());
    for index in 0..500 {
        // Every other one says nothing.
        let request = if index % 2 == 0 { REQUEST } else { b"" };
        let mut stream = connect(address);
        // It may have had to go already.
        let _ = stream.write_all(request);
        network.push(stream);
        let mut stream = UnixStream::connect(&socket).expect("connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
        let _ = stream.write_all(request);
        locals.push(stream);
    }
    assert_eq!(client::ask(&local, "GET", "/who").expect("an answer").0, 200);
    network.into_iter().for_each(|stream| drop(rest(stream)));
    locals.into_iter().for_each(|stream| drop(rest(stream)));
    assert_eq!(who(address), (200, "network".to_owned()));
}

#[test]
fn nobody_is_closed_unread_for_what_others_have_asked() {
    let (_server, address) = server();
    let mut waiting = connect(address);
    std::thread::sleep(Duration::from_millis(200));
    let mut slow = connect(address);
    slow.write_all(b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .expect("request");
    std::thread::sleep(Duration::from_millis(200));
    waiting
        .write_all(b"GET /who HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .expect("request");
    for stream in [waiting, slow] {
        assert!(rest(stream).starts_with(b"HTTP/1.1 200"));
    }
}

#[test]
fn others_are_served_while_an_answer_is_made_beside() {
    let (_server, address) = server();
    let begin = Instant::now();
    let long = std::thread::spawn(move || client::ask(&Endpoint::Tcp(address), "GET", "/beside").expect("an answer"));
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(who(address), (200, "network".to_owned()));
    assert!(begin.elapsed() < REQUEST_TIME);
    assert_eq!(long.join().expect("asked"), (409, "at last".to_owned()));
}
