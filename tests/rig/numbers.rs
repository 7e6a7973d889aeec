//! Lines of text to three socat servers by the first number in them.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use rig::engine::EngineOptions;
use rig::{Place, RigOptions, SERVERS, servers};

use crate::setup::{LIMIT, Setup};

fn with_socat() -> Option<Setup> {
    let start = |rig: &rig::Rig| {
        (0..SERVERS)
            .flat_map(|index| servers::start_numbers(rig, index).expect("socat starts"))
            .collect()
    };
    Setup::new(RigOptions::default(), &EngineOptions::default(), &["socat"], start)
}

fn connect(setup: &Setup, number: usize) -> TcpStream {
    let at = SocketAddr::new(setup.rig.engine_addresses()[number % 2], servers::NUMBERS);
    let stream = setup
        .rig
        .at(Place::Clients, || TcpStream::connect(at))
        .expect("there")
        .expect("connected");
    stream.set_read_timeout(Some(LIMIT)).expect("a limit");
    stream
}

fn answer_to(mut stream: TcpStream) -> String {
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer and the end");
    answer
}

fn expected(number: usize, line: &str) -> String {
    format!("{} read: {line}\n", servers::name_of(number % SERVERS))
}

#[test]
fn the_first_number_chooses_the_server() {
    let Some(setup) = with_socat() else { return };
    for number in (0..30).chain([999, 65_535, 65_536, 4_294_967_295]) {
        let line = format!("we have {number} bottles and 7 glasses");
        let mut stream = connect(&setup, number);
        stream.write_all(format!("{line}\n").as_bytes()).expect("sent");
        assert_eq!(answer_to(stream), expected(number, &line));
    }
    let (report, _rig) = setup.finish();
    assert_eq!(report.records.len(), 34);
}

/// The client's end of stream comes while the answer is still due.
#[test]
fn a_half_closed_client_still_gets_its_answer() {
    let Some(setup) = with_socat() else { return };
    for number in 0..6 {
        let mut stream = connect(&setup, number);
        stream
            .write_all(format!("{number} at most\n").as_bytes())
            .expect("sent");
        stream.shutdown(Shutdown::Write).expect("half closed");
        assert_eq!(answer_to(stream), expected(number, &format!("{number} at most")));
    }
    setup.finish();
}

/// The first payload comes in pieces: the engine waits until there is a number that has ended.
#[test]
fn a_number_in_pieces_is_put_together() {
    let Some(setup) = with_socat() else { return };
    thread::scope(|scope| {
        for number in 10..16 {
            let setup = &setup;
            scope.spawn(move || {
                let mut stream = connect(setup, number);
                stream.set_nodelay(true).expect("no delay");
                let line = format!("bottles: {number}, all green");
                for piece in format!("{line}\n").as_bytes().chunks(3) {
                    stream.write_all(piece).expect("sent");
                    thread::sleep(Duration::from_millis(20));
                }
                assert_eq!(answer_to(stream), expected(number, &line));
            });
        }
    });
    setup.finish();
}
