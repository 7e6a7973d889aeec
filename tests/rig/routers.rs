//! A router towards the clients fails and another takes its place: established connections go on.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

use rig::engine::{Choice, EngineOptions, Service};
use rig::{Place, Rig, RigOptions};

use crate::setup::{LIMIT, Setup};

const PORT: u16 = 7007;

/// A rig with a client behind two routers, the first of which forwards, and a server that sends back whatever comes.
fn start(rig: &Rig) {
    rig.add_routers().expect("two routers");
    rig.route_by(Place::FirstRouter).expect("the first forwards");
    for address in rig.server_addresses(0) {
        let listener = rig
            .at(Place::Servers, || TcpListener::bind((address, PORT)))
            .expect("the servers' namespace")
            .expect("a listener");
        thread::spawn(move || {
            for connection in listener.incoming() {
                let mut input = connection.expect("a connection");
                let mut output = input.try_clone().expect("a descriptor");
                thread::spawn(move || std::io::copy(&mut input, &mut output));
            }
        });
    }
}

fn connect(rig: &Rig, engine: SocketAddr) -> TcpStream {
    let client = rig.at(Place::Far, || TcpStream::connect_timeout(&engine, LIMIT));
    let client = client.expect("the client's namespace").expect("connected");
    client.set_read_timeout(Some(LIMIT)).expect("a time");
    client
}

#[track_caller]
fn ask(client: &mut TcpStream, question: &str) {
    client.write_all(question.as_bytes()).expect("sent");
    let mut answer = vec![0; question.len()];
    client.read_exact(&mut answer).expect("the answer");
    assert_eq!(answer, question.as_bytes());
}

#[test]
fn established_connections_follow_their_client_to_another_router() {
    let options = EngineOptions {
        services: vec![Service {
            name: "echo",
            port: PORT,
            choice: Choice::Always(0),
        }],
        ..EngineOptions::default()
    };
    let Some(setup) = Setup::new(RigOptions::default(), &options, &[], |rig| {
        start(rig);
        Vec::new()
    }) else {
        return;
    };
    let rig = &setup.rig;
    let engines = rig.engine_addresses().map(|address| SocketAddr::new(address, PORT));
    let mut clients = engines.map(|engine| connect(rig, engine));
    for client in &mut clients {
        ask(client, "by the first router");
    }
    for (router, question) in [
        (Place::SecondRouter, "by the second"),
        (Place::FirstRouter, "by the first again"),
    ] {
        rig.route_by(router).expect("the other forwards");
        for client in &mut clients {
            ask(client, question);
        }
    }
    drop(clients);
    let (report, _rig) = setup.finish();
    let bytes: Vec<u64> = report.records.iter().map(|record| record.bytes_to_client).collect();
    let all = "by the first router".len() + "by the second".len() + "by the first again".len();
    assert_eq!(bytes, [all as u64; 2]);
}
