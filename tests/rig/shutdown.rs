//! SIGTERM: connections may finish for a while, then both of their ends are reset, and nothing is lost.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use rig::engine::EngineOptions;
use rig::process::Process;
use rig::{Place, Rig, RigOptions, servers};
use rustix::process::Signal;

use crate::setup::{LIMIT, Setup, assert_accounts_are_settled};

/// A connection through the engine with both of its ends in hand.
struct Connection {
    client: TcpStream,
    server: TcpStream,
}

impl Connection {
    /// Opens it through the numbers listener, to server 0, where `listener` listens.
    fn open(rig: &Rig, listener: &TcpListener, engine: IpAddr) -> Self {
        let at = SocketAddr::new(engine, servers::NUMBERS);
        let mut client = rig
            .at(Place::Clients, || TcpStream::connect(at))
            .expect("there")
            .expect("connected");
        client.write_all(b"0 is the first\n").expect("sent");
        let (mut server, _) = listener.accept().expect("accepted");
        for stream in [&client, &server] {
            stream.set_read_timeout(Some(LIMIT)).expect("a limit");
        }
        let mut first = [0; 15];
        server.read_exact(&mut first).expect("received");
        assert_eq!(&first, b"0 is the first\n");
        Self { client, server }
    }

    /// Says something in each direction and checks that it arrives.
    fn talk(&mut self) {
        exchange(&mut self.client, &mut self.server);
        exchange(&mut self.server, &mut self.client);
    }
}

fn exchange(from: &mut TcpStream, to: &mut TcpStream) {
    let mut heard = [0; 4];
    from.write_all(b"word").expect("sent");
    to.read_exact(&mut heard).expect("received");
    assert_eq!(&heard, b"word");
}

fn listen(rig: &Rig) -> [TcpListener; 2] {
    rig.server_addresses(0).map(|address| {
        let at = SocketAddr::new(address, servers::NUMBERS);
        rig.at(Place::Servers, || TcpListener::bind(at))
            .expect("there")
            .expect("bound")
    })
}

fn is_reset(stream: &mut TcpStream) -> bool {
    matches!(stream.read(&mut [0; 16]), Err(error) if error.kind() == ErrorKind::ConnectionReset)
}

#[test]
fn sigterm_lets_connections_finish_and_resets_the_rest() {
    let options = EngineOptions {
        engine: "drain = \"5s\"\n".into(),
        ..EngineOptions::default()
    };
    let Some(setup) = Setup::new(RigOptions::default(), &options, &[], |_| Vec::new()) else {
        return;
    };
    let listeners = listen(&setup.rig);
    let open = || -> Vec<Connection> {
        let pairs = listeners.iter().zip(setup.rig.engine_addresses());
        pairs
            .map(|(listener, engine)| Connection::open(&setup.rig, listener, engine))
            .collect()
    };
    let (finishing, mut staying) = (open(), open());
    let Setup { mut engine, rig, .. } = setup;
    let told = Instant::now();
    engine.process().signal(Signal::TERM);
    thread::sleep(Duration::from_millis(300));
    for mut connection in finishing {
        connection.talk();
        drop(connection.client);
        assert_eq!(connection.server.read(&mut [0; 16]).expect("an orderly end"), 0);
    }
    for connection in &mut staying {
        connection.talk();
    }
    for connection in &mut staying {
        assert!(is_reset(&mut connection.client), "the client is told");
        assert!(is_reset(&mut connection.server), "the server is told");
    }
    assert!(
        told.elapsed() >= Duration::from_millis(4_500),
        "only after the time to drain"
    );
    let report = engine.finish().expect("an orderly end");
    assert_accounts_are_settled(&report);
    assert_eq!(report.records.len(), 4);
    let ended = report
        .records
        .iter()
        .filter(|record| record.client_cause == "Shutdown")
        .count();
    assert_eq!(ended, 2, "{:?}", report.records);
    drop(rig);
}

#[test]
fn an_idle_engine_ends_at_once() {
    let options = EngineOptions {
        engine: "drain = \"30s\"\n".into(),
        ..EngineOptions::default()
    };
    let Some(setup) = Setup::new(RigOptions::default(), &options, &[], |_| Vec::new()) else {
        return;
    };
    let told = Instant::now();
    setup.finish();
    assert!(told.elapsed() < Duration::from_secs(15), "there is nothing to wait for");
}

/// A terminal that is closed, or a reload: the file is read again, and connections do not notice.
#[test]
fn a_hang_up_reads_the_file_again_and_ends_nothing() {
    let Some(setup) = Setup::new(RigOptions::default(), &EngineOptions::default(), &[], |_| Vec::new()) else {
        return;
    };
    let listeners = listen(&setup.rig);
    let engine = setup.rig.engine_addresses()[0];
    let mut before = Connection::open(&setup.rig, &listeners[0], engine);
    let Setup {
        engine: mut program,
        rig,
        ..
    } = setup;
    program.process().signal(Signal::HUP);
    let has_reloaded = |process: &Process| process.printed().contains("holds from now on");
    (program.process().wait_for("a reload", LIMIT, has_reloaded)).expect("a line in the log");
    before.talk();
    Connection::open(&rig, &listeners[0], engine).talk();
    drop(before);
    assert_accounts_are_settled(&program.stop(Signal::TERM).expect("an orderly end"));
    drop(rig);
}
