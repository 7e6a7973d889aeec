//! PROXY headers behind a forwarded SYN, before servers that speak first: two Linux stacks shake hands with each other, and the
//! server accepts nobody before the whole header.

use std::fmt::Write as _;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use rig::engine::EngineOptions;
use rig::{Place, Rig, RigOptions};

use crate::setup::{LIMIT, Setup};

const SMTP: u16 = 25;
const BANNER: &[u8] = b"220 ready\r\n";

/// A listener for each version of IP that takes headers from the clients' host.
fn tables(rig: &Rig) -> String {
    // Whichever of its addresses the clients' host takes.
    let from = ["10.77.0.0/24", "fd77::/64"];
    let mut text = String::new();
    for (at, engine) in rig.engine_addresses().into_iter().enumerate() {
        let (listens, server) = (
            SocketAddr::new(engine, SMTP),
            SocketAddr::new(rig.server_addresses(1)[at], SMTP),
        );
        let _ = write!(
            text,
            "[[listener]]\nname = \"l{at}\"\naddresses = [\"{listens}\"]\nports = [\"clients\"]\nbind = \"syn\"\n\
             default = \"p{at}\"\nproxy_protocol = {{ accept = \"required\", from = [\"{}\"] }}\n\
             [[pool]]\nname = \"p{at}\"\nservers = [{{ name = \"s{at}\", address = \"{server}\" }}]\n",
            from[at]
        );
    }
    text
}

/// The next client of the server, if one comes in this time.
fn accept(listener: &TcpListener, within: Duration) -> Option<TcpStream> {
    let until = Instant::now() + within;
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false).expect("a socket");
                return Some(stream);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock && Instant::now() < until => {
                thread::sleep(Duration::from_millis(10));
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
            Err(error) => panic!("{error}"),
        }
    }
}

fn connect(rig: &Rig, engine: SocketAddr) -> TcpStream {
    let connect = || TcpStream::connect_timeout(&engine, LIMIT);
    let client = rig.at(Place::Clients, connect).expect("there").expect("connected");
    client.set_read_timeout(Some(LIMIT)).expect("a limit");
    client.set_nodelay(true).expect("small segments");
    client
}

#[test]
fn a_server_that_speaks_first_accepts_nobody_before_the_whole_header() {
    let Some(rig) = Rig::for_test(RigOptions::default(), &[]) else {
        return;
    };
    let options = EngineOptions {
        services: Vec::new(),
        tables: tables(&rig),
        ..EngineOptions::default()
    };
    let setup = Setup::on(rig, &options, |_| Vec::new());
    let header = b"PROXY TCP4 192.0.2.7 198.51.100.9 5000 25\r\n";
    let ends = setup
        .rig
        .engine_addresses()
        .into_iter()
        .zip(setup.rig.server_addresses(1));
    for (engine, server) in ends {
        let bind = || TcpListener::bind(SocketAddr::new(server, SMTP));
        let listener = setup.rig.at(Place::Servers, bind).expect("there").expect("bound");
        listener.set_nonblocking(true).expect("a socket");
        let engine = SocketAddr::new(engine, SMTP);

        // Longer than the server waits before it repeats its SYN-ACK.
        let mut client = connect(&setup.rig, engine);
        assert!(accept(&listener, Duration::from_millis(700)).is_none());
        client.write_all(&header[..20]).expect("sent");
        assert!(accept(&listener, Duration::from_millis(700)).is_none());
        client.write_all(&header[20..]).expect("sent");
        let mut served = accept(&listener, LIMIT).expect("the whole header has come");
        served.write_all(BANNER).expect("greeted");
        let mut banner = [0; BANNER.len()];
        client.read_exact(&mut banner).expect("a greeting");
        assert_eq!(banner, BANNER);
        client.write_all(b"HELO client").expect("sent");
        client.shutdown(Shutdown::Write).expect("half closed");
        let mut heard = Vec::new();
        served.read_to_end(&mut heard).expect("heard");
        assert_eq!(heard, b"HELO client");
        drop(served);
        assert_eq!(client.read(&mut [0; 8]).expect("closed"), 0);

        // What is no header resets the client, and the server never hears of it.
        let mut client = connect(&setup.rig, engine);
        client.write_all(b"HELO client").expect("sent");
        let error = client.read(&mut [0; 8]).expect_err("no answer to this");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        assert!(accept(&listener, Duration::from_millis(300)).is_none());
    }
    let (report, _rig) = setup.finish();
    assert_eq!(report.records.len(), 4);
    let (good, bad): (Vec<_>, Vec<_>) = report
        .records
        .iter()
        .partition(|record| record.client_cause != "BadProxyHeader");
    assert_eq!((good.len(), bad.len()), (2, 2));
    for record in good {
        assert_eq!(record.client.to_string(), "192.0.2.7:5000");
        assert_eq!(
            (record.bytes_to_server, record.bytes_to_client),
            (11, BANNER.len() as u64)
        );
    }
}
