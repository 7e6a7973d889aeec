//! Several cores: wherever a packet lands, the core that owns it deals with it.

use crate::harness::{CONFIG, Client, Receive, Server, bound_with_syn, close, nothing, only, spliced};
use crate::icmp::{error_about, read};
use crate::many_cores::{Landing, ManyCores, leg};
use e2d2::port::PortId;
use e2d2::rss::{DEFAULT_KEY, Rss, even_reta};
use e2d2::wire::tcp::TcpFlags;
use netfcts::steering::SteeringPlan;
use splice::drop_reason::DropReason;
use splice::steering::{SteeringEvent, SteeringTrouble};
use std::time::Duration;
use test_case::test_case;
use testkit::Segment;

fn by_hash(plan: SteeringPlan) -> SteeringPlan {
    plan
}

fn by_rss(plan: SteeringPlan) -> SteeringPlan {
    let cores = plan.cores() as u16;
    let rss = Rss::new(&DEFAULT_KEY, even_reta(128, cores));
    plan.spread_by(&rss, true, true).expect("a plan")
}

/// Connections that are opened, used both ways and closed, of both families; how many cores had some.
fn serve(cores: &mut ManyCores, connections: u16) -> usize {
    serve_some(cores, 0..connections)
}

fn serve_some(cores: &mut ManyCores, numbers: std::ops::Range<u16>) -> usize {
    let mut used = vec![false; cores.open().len()];
    for n in numbers {
        let (mut client, digit) = match n % 2 {
            0 => (Client::new(40_000 + n), b'1'),
            _ => (Client::new_v6(40_000 + n), b'4'),
        };
        client.connect(cores);
        let syn = only(client.send(cores, &[digit, b' ', n as u8]));
        let owner = cores.plan.owner(&leg(&client.syn()));
        let mut server = Server::from_syn(&syn);
        assert_eq!(
            cores.plan.owner(&leg(&server.syn_ack())),
            owner,
            "both legs are one core's"
        );
        used[owner.expect("ours")] = true;
        let (_, held) = server.accept(cores);
        assert_eq!(only(held).payload, [digit, b' ', n as u8]);
        server.ack = server.ack.wrapping_add(3);
        for payload in [&b"answer"[..], b"and more"] {
            assert_eq!(only(server.send(cores, payload)).payload, payload);
        }
        client.ack = client.ack.wrapping_add(14);
        assert_eq!(only(client.send(cores, b"thanks")).payload, b"thanks");
        server.ack = server.ack.wrapping_add(6);
        close(cores, &mut client, &mut server);
    }
    used.iter().filter(|used| **used).count()
}

#[test_case(2, Landing::Owner, by_hash; "two cores, steered")]
#[test_case(2, Landing::Owner, by_rss; "two cores, steered by RSS")]
#[test_case(3, Landing::Next, by_rss; "three cores, always the wrong one by RSS")]
#[test_case(2, Landing::Next, by_hash; "two cores, always the wrong one")]
#[test_case(4, Landing::Core(0), by_hash; "four cores behind one queue")]
#[test_case(4, Landing::Core(3), by_hash; "the last of four has the queue")]
#[test_case(8, Landing::Anywhere(7), by_hash; "eight cores, anywhere")]
#[test_case(8, Landing::Anywhere(8), by_rss; "eight cores, anywhere by RSS")]
fn every_connection_is_served_by_its_owner(n: usize, landing: Landing, make: fn(SteeringPlan) -> SteeringPlan) {
    let mut cores = ManyCores::new(CONFIG, n, landing, make);
    assert_eq!(serve(&mut cores, 40), n, "every core has connections");
    let (wrong, handed) = (
        cores.counted(SteeringEvent::MisSteered),
        cores.counted(SteeringEvent::HandedOver),
    );
    assert_eq!(wrong, handed);
    assert_eq!(handed, cores.counted(SteeringEvent::TakenOver));
    assert_eq!(handed == 0, matches!(landing, Landing::Owner), "{handed}");
    assert_eq!(cores.dropped(DropReason::UnknownFlow), 0);
    cores.wait(Duration::from_secs(6));
    let records = cores.records();
    assert_eq!(records.iter().map(Vec::len).sum::<usize>(), 40);
    assert!(records.iter().all(|of_core| !of_core.is_empty()));
    cores.assert_all_returned();
}

/// What the core next to the owner does not know goes to the owner, SYN or not, and one that nobody knows is answered once.
#[test]
fn strangers_are_answered_once_and_by_their_owner() {
    let mut cores = ManyCores::new(CONFIG, 3, Landing::Next, by_hash);
    let client = Client::new(40_000);
    let reset = only(cores.receive(&client.segment(TcpFlags::ACK, b"who am I")));
    assert_eq!((reset.flags, reset.to), (TcpFlags::RST, client.me));
    assert_eq!(cores.dropped(DropReason::UnknownFlow), 1);
    assert_eq!(cores.counted(SteeringEvent::TakenOver), 1);
    // To nobody's address: no other core would know it better.
    let mut astray = client.segment(TcpFlags::ACK, b"");
    astray.to.address.set_ip("10.0.0.77".parse().expect("an address"));
    cores.receive(&astray);
    assert_eq!(cores.counted(SteeringEvent::MisSteered), 1);
    cores.assert_all_returned();
}

/// The promise of a cookie is its owner's alone: SYN and ACK meet the same core, wherever they land.
#[test]
fn a_cookie_comes_back_to_the_core_that_baked_it() {
    for n in 0..20 {
        let mut cores = ManyCores::new(CONFIG, 4, Landing::Anywhere(n), by_rss);
        let mut client = Client::new(40_000 + n as u16);
        client.connect(&mut cores);
        let owner = cores.plan.owner(&leg(&client.syn())).expect("ours");
        let mut open = vec![0; 4];
        open[owner] = 1;
        assert_eq!(cores.open(), open);
        cores.assert_all_returned();
    }
}

#[test]
fn a_forwarded_syn_and_its_answer_meet_the_same_core() {
    let text = bound_with_syn("");
    for landing in [Landing::Next, Landing::Core(0), Landing::Anywhere(5)] {
        let mut cores = ManyCores::new(&text, 3, landing, by_rss);
        for port in 40_000..40_010 {
            let mut client = Client::new(port);
            let mut server = Server::from_syn(&only(cores.receive(&client.syn())));
            server.shake(&mut cores, &mut client);
            assert_eq!(only(cores.receive(&client.segment(TcpFlags::ACK, b""))).to, server.me);
            assert_eq!(only(client.send(&mut cores, b"hello")).payload, b"hello");
        }
        assert_eq!(cores.open().iter().sum::<usize>(), 10);
        cores.assert_all_returned();
    }
}

#[test_case(Landing::Owner; "where it belongs")]
#[test_case(Landing::Next; "on the wrong core")]
#[test_case(Landing::Core(1); "behind one queue")]
fn clients_own_addresses_are_one_cores_on_both_legs(landing: Landing) {
    let text = CONFIG
        .replace("name = \"all\"\n", "name = \"all\"\ntransparent = true\n")
        .replace("name = \"all6\"\n", "name = \"all6\"\ntransparent = true\n");
    for make in [by_hash, by_rss] {
        let mut cores = ManyCores::new(&text, 3, landing, make);
        assert_eq!(serve(&mut cores, 30), 3);
        let is_right = matches!(landing, Landing::Owner);
        assert_eq!(cores.counted(SteeringEvent::HandedOver) == 0, is_right);
        assert_eq!(cores.dropped(DropReason::UnknownFlow), 0);
        cores.assert_all_returned();
    }
}

/// Nobody can tell from the server's answer whose connection it is: the cores are asked one after the other.
#[test]
fn addresses_from_proxy_headers_are_asked_for() {
    let text = CONFIG
        .replace(
            "name = \"web\"\n",
            "name = \"web\"\nproxy_protocol = { accept = \"required\", from = [\"10.0.0.0/24\"] }\n",
        )
        .replace("name = \"all\"\n", "name = \"all\"\ntransparent = true\n");
    for n in 0..16_u16 {
        let mut cores = ManyCores::new(&text, 4, Landing::Anywhere(u64::from(n)), by_hash);
        let mut client = Client::new(40_000 + n);
        client.connect(&mut cores);
        let header = format!("PROXY TCP4 192.0.2.7 198.51.100.9 {} 443\r\n1 ", 5000 + n);
        let syn = client.send(&mut cores, header.as_bytes()).pop().expect("a SYN");
        let mut server = Server::from_syn(&syn);
        assert_eq!(server.proxy.address.to_string(), format!("192.0.2.7:{}", 5000 + n));
        server.accept(&mut cores);
        assert_eq!(only(server.send(&mut cores, b"answer")).to, client.me);
        // One that no core knows has gone round once, and is dropped.
        let before = cores.counted(SteeringEvent::PassedOn);
        let unknown = Client::new(50_000);
        let mut astray = server.segment(TcpFlags::ACK, b"");
        astray.to.address.set_port(unknown.me.address.port());
        cores.receive(&astray);
        let asked = cores.counted(SteeringEvent::PassedOn) - before;
        assert!((2..=3).contains(&asked), "{asked} of three others");
        assert_eq!(cores.dropped(DropReason::UnknownFlow), 1);
        cores.assert_all_returned();
    }
}

#[test]
fn an_icmp_error_finds_the_connection_it_is_about() {
    for (landing, handed) in [(Landing::Core(0), true), (Landing::Owner, false)] {
        let mut cores = ManyCores::new(CONFIG, 2, landing, by_hash);
        let owners_port = |cores: &ManyCores| {
            let is_last = |port: &u16| cores.plan.owner(&leg(&Client::new(*port).syn())) == Some(1);
            (40_000..).find(is_last).expect("some port")
        };
        let port = owners_port(&cores);
        let (mut client, server) = spliced(&mut cores, port);
        let request = only(client.send(&mut cores, b"more"));
        let (device, error) = error_about(&request, Some(1400));
        cores.put(if handed { 0 } else { 1 }, device, &error);
        let frames = cores.run();
        assert_eq!(frames.len(), 1);
        let (mtu, quoted) = read(&frames[0]);
        assert_eq!((mtu, quoted.src_port), (Some(1400), client.me.address.port()));
        assert_eq!(cores.counted(SteeringEvent::IcmpError), u64::from(handed));
        // About nothing that anyone sent: it goes no further than to its owner.
        let mut unsent = request.clone();
        unsent.to = server.me;
        unsent.from.address.set_port(server.proxy.address.port() ^ 0x100);
        let (device, error) = error_about(&unsent, Some(1400));
        cores.put(0, device, &error);
        assert!(cores.run().is_empty());
        assert_eq!(cores.dropped(DropReason::IcmpUnwanted), 1);
        cores.assert_all_returned();
    }
}

/// What does not fit into a ring is dropped for a reason and not lost track of; the peer repeats it.
#[test]
fn a_full_ring_drops_and_counts() {
    let mut cores = ManyCores::with_rings(CONFIG, (2, 4), Landing::Core(0), by_hash);
    let of_the_other: Vec<Client> = (40_000..)
        .map(Client::new)
        .filter(|client| cores.plan.owner(&leg(&client.syn())) == Some(1))
        .take(10)
        .collect();
    for client in &of_the_other {
        cores.put(0, PortId(0), &client.syn().frame());
    }
    // All ten are taken from the port in one round, before the other core has looked at its ring.
    assert_eq!(cores.wait(Duration::from_millis(1)).len(), 4);
    assert_eq!(cores.dropped(DropReason::HandoverRefused), 6);
    assert_eq!(cores.counted(SteeringEvent::HandedOver), 4);
    assert_eq!(cores.counted(SteeringEvent::MisSteered), 10);
    assert_eq!(only(cores.receive(&of_the_other[9].syn())).to, of_the_other[9].me);
    cores.assert_all_returned();
}

/// A core that comes back to a full ring has not heard what is still in it.
#[test]
fn a_core_that_was_away_blames_no_server_for_answers_that_wait_in_its_ring() {
    let mut cores = ManyCores::new(CONFIG, 2, Landing::Owner, by_hash);
    let ports = (40_000..).filter(|port| cores.plan.owner(&leg(&Client::new(*port).syn())) == Some(1));
    let ports: Vec<u16> = ports.take(41).collect();
    let mut call = |port: u16| {
        let mut client = Client::new(port);
        client.connect(&mut cores);
        Server::from_syn(&only(client.send(&mut cores, b"p hello")))
    };
    let mut servers: Vec<Server> = ports.into_iter().map(&mut call).collect();
    // From one that answers at once the core knows how long an answer takes.
    servers.pop().expect("a server").accept(&mut cores);
    cores.now += Duration::from_millis(100);
    for server in &servers {
        cores.put(0, PortId(1), &server.syn_ack().frame());
    }
    let sent: Vec<Segment> = cores.run().iter().map(|frame| Segment::read(frame)).collect();
    assert!(
        !sent.iter().any(|sent| sent.flags == TcpFlags::SYN),
        "nobody is called in a server's place"
    );
    assert_eq!(
        sent.iter().filter(|sent| sent.payload == b"p hello").count(),
        servers.len()
    );
    cores.assert_all_returned();
}

/// Late segments of a connection at rest are its core's, and so is the client that comes again from the same port.
#[test]
fn a_connection_at_rest_is_found_from_any_core() {
    let mut cores = ManyCores::new(CONFIG, 3, Landing::Next, by_rss);
    let (mut client, mut server) = spliced(&mut cores, 40_000);
    close(&mut cores, &mut client, &mut server);
    assert_eq!(cores.open(), [0, 0, 0]);
    let late = server.segment(TcpFlags::ACK, b"");
    assert_eq!(only(cores.receive(&late)).to, client.me);
    let mut again = Client::new(40_000);
    again.seq = client.seq.wrapping_add(100_000);
    again.tsval = client.tsval + 100;
    again.connect(&mut cores);
    assert_eq!(cores.open().iter().sum::<usize>(), 1);
    cores.assert_all_returned();
}

#[test]
fn a_draining_engine_takes_nothing_new_on_any_core() {
    let mut cores = ManyCores::new(CONFIG, 3, Landing::Anywhere(3), by_hash);
    let (mut client, server) = spliced(&mut cores, 40_000);
    cores.begin_drain();
    for port in 41_000..41_010 {
        nothing(cores.receive(&Client::new(port).syn()));
    }
    assert_eq!(cores.dropped(DropReason::Draining), 10);
    assert_eq!(only(client.send(&mut cores, b"still here")).payload, b"still here");
    let ended = cores.assert_all_returned();
    for side in [client.me, server.me] {
        // The server gets one for each number that it may have seen last.
        let is_end = |segment: &Segment| segment.to == side && segment.flags.contains(TcpFlags::RST);
        assert!(ended.iter().any(is_end), "{ended:#?}");
    }
}

/// A port whose hash is another than it was told: connections go on, and somebody hears of it once.
#[test]
fn a_hash_that_is_not_ours_is_told_once_and_connections_go_on() {
    let mut cores = ManyCores::new(CONFIG, 2, Landing::Owner, by_rss);
    cores.hash = Some(|right| right);
    serve(&mut cores, 8);
    assert!(cores.counted(SteeringEvent::HashRight) >= 16, "SYN and ACK of each");
    assert_eq!(cores.counted(SteeringEvent::HashWrong), 0);
    assert_eq!(cores.troubles(), []);
    cores.hash = Some(|right| right ^ 1);
    cores.landing = Landing::Next;
    serve_some(&mut cores, 8..16);
    let wrong = cores.counted(SteeringEvent::HashWrong);
    assert!(wrong >= 16);
    assert_eq!(
        cores.counted(SteeringEvent::HandedOver),
        cores.counted(SteeringEvent::MisSteered)
    );
    let troubles = cores.troubles();
    assert_eq!(troubles.len(), 2, "once on each core: {troubles:?}");
    assert!(
        troubles
            .iter()
            .all(|trouble| matches!(trouble, SteeringTrouble::Hash { .. }))
    );
    serve_some(&mut cores, 16..24);
    assert_eq!(cores.troubles(), []);
    cores.assert_all_returned();
}
