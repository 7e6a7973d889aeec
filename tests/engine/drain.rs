//! Servers, listeners and the engine out of service and back, while connections are open.

use std::thread;
use std::time::{Duration, Instant};

use e2d2::wire::tcp::TcpFlags;
use proxyengine::engine::{NotReady, Subject, Watch};
use splice::standby::Service;
use testkit::{Segment, Station};

use crate::proxy::{Bench, count};
use crate::reload::{ONE, TWO, servers, talk, versions};
use crate::wire::assert_in_order;

/// Clients that have not been here.
fn clients(first: u16) -> impl Iterator<Item = Station> {
    (first..first + 100).map(|port| Station::new(6, "10.0.0.6:1").with_port(port))
}

/// Sends a SYN that nobody answers: it was received and dropped.
fn is_not_answered(bench: &Bench, watch: &Watch, client: Station) {
    let counts = || {
        let report = watch.report();
        (
            count(&report, "traffic", "received"),
            count(&report, "tcp_client", "SentSynAck"),
        )
    };
    // What was sent before has been counted: numbers are shown every few milliseconds.
    thread::sleep(Duration::from_millis(200));
    let (received, answered) = counts();
    let syn = Segment {
        seq: 1,
        flags: TcpFlags::SYN,
        ..Segment::between(client, Station::new(1, "10.0.0.1:80"))
    };
    bench.send(&syn.frame());
    let deadline = Instant::now() + Duration::from_secs(30);
    while counts().0 == received {
        assert!(Instant::now() < deadline, "never received");
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(counts(), (received + 1, answered));
}

#[test]
fn a_server_out_of_service_keeps_its_connections_and_gets_no_other() {
    let mut bench = Bench::start("proxy-drained-server", None);
    let [both] = versions(&bench, [format!("{ONE}, {TWO}")]);
    bench.engine.reload(&both).unwrap_or_else(|error| panic!("{error}"));
    let watch = bench.engine.watch();
    let (ends, one) = (bench.ends.clone(), servers()[0]);
    let opened_at_one = |first: u16| {
        let mut opened = clients(first).map(|client| ends.open_to(client, &servers()));
        opened.find(|(_, server)| server.from == one).expect("both are called")
    };
    let (mut client, mut server) = opened_at_one(20_000);
    assert!(watch.set_service(Subject::Server("three"), Service::Drained).is_err());
    watch
        .set_service(Subject::Server("one"), Service::Drained)
        .expect("a name");
    for client in clients(30_000).take(20) {
        let (_, server) = bench.ends.open_to(client, &servers()[1..]);
        assert_ne!(server.from, one);
    }
    talk(&bench.ends, &mut client, &mut server);
    // A reload leaves it out.
    bench.engine.reload(&both).unwrap_or_else(|error| panic!("{error}"));
    for client in clients(31_000).take(5) {
        bench.ends.open_to(client, &servers()[1..]);
    }
    watch.set_service(Subject::Server("one"), Service::In).expect("a name");
    opened_at_one(40_000);
    talk(&bench.ends, &mut client, &mut server);
    assert_in_order(&bench.engine.shutdown());
}

#[test]
fn a_listener_and_an_engine_out_of_service_answer_no_syn() {
    let bench = Bench::start("proxy-drained-listener", None);
    let watch = bench.engine.watch();
    let (mut client, mut server) = bench.open(Station::new(5, "10.0.0.5:50000"));
    let mut others = clients(20_000);
    let mut next = || others.next().expect("a client");
    for subject in [Subject::Listener("web"), Subject::Engine] {
        watch.set_service(subject, Service::Drained).expect("a name");
        assert_eq!(watch.is_ready() == Err(NotReady::Draining), subject == Subject::Engine);
        is_not_answered(&bench, &watch, next());
        talk(&bench.ends, &mut client, &mut server);
        watch.set_service(subject, Service::In).expect("a name");
        assert_ne!(watch.is_ready(), Err(NotReady::Draining));
        bench.open(next());
    }
    assert_in_order(&bench.engine.shutdown());
}

/// Who has gone from the file drains by itself; its last connections are ended when somebody says so.
#[test]
fn what_the_file_has_no_longer_can_be_closed() {
    let mut bench = Bench::start("proxy-closes-past", None);
    let watch = bench.engine.watch();
    let (client, server) = bench.open(Station::new(5, "10.0.0.5:50000"));
    let [two] = versions(&bench, [TWO.to_owned()]);
    bench.engine.reload(&two).unwrap_or_else(|error| panic!("{error}"));
    for (subject, is_there) in [(Subject::Server("one"), true), (Subject::Server("three"), false)] {
        assert_eq!(
            watch.set_service(subject, Service::Drained).is_ok(),
            is_there,
            "{subject}"
        );
    }
    watch
        .close(Subject::Server("one"), Duration::ZERO)
        .unwrap_or_else(|error| panic!("{error}"));
    for end in [client.from, server.from] {
        while !bench.segment_to(end).flags.contains(TcpFlags::RST) {}
    }
    let deadline = Instant::now() + Duration::from_secs(60);
    while bench.engine.config().has_past() {
        assert!(Instant::now() < deadline, "never forgotten");
        bench.engine.forget_past();
        thread::sleep(Duration::from_millis(20));
    }
    assert!(
        watch.set_service(Subject::Server("one"), Service::Drained).is_err(),
        "nobody has its number"
    );
    assert_in_order(&bench.engine.shutdown());
}
