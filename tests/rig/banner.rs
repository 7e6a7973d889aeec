//! Servers that speak first, behind a listener that binds at the handshake.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;

use rig::engine::{Choice, EngineOptions, Service};
use rig::{Place, Rig, RigOptions, SERVERS, servers};

use crate::setup::{LIMIT, Setup};

const SMTP: u16 = 25;
const BANNER: &[u8] = b"220 server2 is ready\r\n";

/// Greets each client, repeats what it says, and closes after it.
fn serve(listener: &TcpListener, connections: usize) {
    for _ in 0..connections {
        let (mut stream, _) = listener.accept().expect("a client");
        stream.write_all(BANNER).expect("greeted");
        let mut heard = Vec::new();
        stream.read_to_end(&mut heard).expect("heard");
        stream.write_all(&heard).expect("repeated");
    }
}

#[test]
fn a_client_that_waits_hears_the_server_first() {
    const EACH: usize = 10;
    let service = Service {
        name: "smtp",
        port: SMTP,
        choice: Choice::AtHandshake(1),
    };
    let options = EngineOptions {
        services: vec![service],
        ..EngineOptions::default()
    };
    let Some(setup) = Setup::new(RigOptions::default(), &options, &[], |_| Vec::new()) else {
        return;
    };
    for (engine, server) in setup
        .rig
        .engine_addresses()
        .into_iter()
        .zip(setup.rig.server_addresses(1))
    {
        let bind = || TcpListener::bind(SocketAddr::new(server, SMTP));
        let listener = setup.rig.at(Place::Servers, bind).expect("there").expect("bound");
        thread::scope(|scope| {
            scope.spawn(|| serve(&listener, EACH));
            for _ in 0..EACH {
                let connect = || TcpStream::connect(SocketAddr::new(engine, SMTP));
                let mut client = setup
                    .rig
                    .at(Place::Clients, connect)
                    .expect("there")
                    .expect("connected");
                client.set_read_timeout(Some(LIMIT)).expect("a limit");
                let mut banner = [0; BANNER.len()];
                client
                    .read_exact(&mut banner)
                    .expect("a greeting before a word was said");
                assert_eq!(banner, BANNER);
                client.write_all(b"HELO client").expect("sent");
                client.shutdown(Shutdown::Write).expect("half closed");
                let mut repeated = Vec::new();
                client.read_to_end(&mut repeated).expect("an answer");
                assert_eq!(repeated, b"HELO client");
            }
        });
    }
    let (report, _rig) = setup.finish();
    assert_eq!(report.records.len(), 2 * EACH);
    for record in &report.records {
        assert_eq!(record.bytes_to_client, (BANNER.len() + 11) as u64);
        assert_eq!(record.bytes_to_server, 11);
    }
}

/// An SSH client and an SSH server that nobody here wrote: the server's identification comes first, and the key that the
/// client is shown is that of the server it was meant for.
#[test]
fn ssh_keyscan_is_shown_the_key_of_its_server() {
    let service = Service {
        name: "ssh",
        port: servers::SSH,
        choice: Choice::AtHandshake(1),
    };
    let options = EngineOptions {
        services: vec![service],
        ..EngineOptions::default()
    };
    let mut keys = Vec::new();
    let start = |rig: &Rig| {
        let started = (0..SERVERS).map(|index| servers::start_ssh(rig, index).expect("Dropbear starts"));
        let (servers, public): (Vec<_>, Vec<_>) = started.unzip();
        keys = public;
        servers
    };
    let tools = ["ssh-keyscan", "dropbear", "dropbearkey"];
    let Some(setup) = Setup::new(RigOptions::default(), &options, &tools, start) else {
        return;
    };
    let port = servers::SSH.to_string();
    for engine in setup.rig.engine_addresses() {
        let arguments = ["-T", "30", "-t", "ed25519", "-p", &port, &engine.to_string()];
        let scanned = setup
            .rig
            .run(Place::Clients, "ssh-keyscan", &arguments, LIMIT)
            .expect("a key");
        assert_eq!(scanned.text().trim(), format!("{engine} {}", keys[1]));
        let comment = String::from_utf8_lossy(&scanned.stderr).into_owned();
        assert!(comment.contains("SSH-2.0-dropbear"), "{comment}");
    }
    let (report, _rig) = setup.finish();
    assert_eq!(report.records.len(), 2);
}
