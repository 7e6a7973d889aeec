//! A core that is to end: nothing new from then on, while what has begun goes on.

use crate::checks::{self, DEFAULT, Mood, SECOND, checked};
use crate::content_checks;
use crate::harness::{Bench, CONFIG, Client, close, nothing, only, spliced};
use e2d2::wire::tcp::TcpFlags;
use netfcts::{Cause, Side};
use splice::CheckEvent;
use splice::drop_reason::DropReason;
use std::time::Duration;
use testkit::Segment;

#[test]
fn a_draining_core_answers_no_syn() {
    let mut bench = Bench::new();
    let mut client = Client::new(40000);
    client.connect(&mut bench);
    bench.proxy.begin_drain();
    nothing(bench.receive(&Client::new(40001).syn()));
    // The one it has goes on.
    let syn = only(client.send(&mut bench, b"0 hello"));
    assert_eq!(syn.flags, TcpFlags::SYN);
    let resets = bench.finish();
    assert!(resets.iter().all(|segment| segment.flags.contains(TcpFlags::RST)));
    assert_eq!(resets.len(), 2);
    assert_eq!(bench.records()[0].cause(Side::Client), Cause::Shutdown);
    bench.assert_all_returned();
}

/// A SYN that is not answered begins nothing: the connection at rest keeps its late segments.
#[test]
fn a_syn_that_is_not_answered_leaves_the_connection_at_rest_as_it_is() {
    let mut bench = Bench::new();
    let (mut client, mut server) = spliced(&mut bench, 40000);
    close(&mut bench, &mut client, &mut server);
    bench.proxy.begin_drain();
    let again = Client {
        seq: client.seq.wrapping_add(100_000),
        ..Client::new(40000)
    };
    nothing(bench.receive(&again.syn()));
    let late = Segment {
        seq: server.seq.wrapping_sub(1),
        ..server.segment(TcpFlags::RST, b"")
    };
    assert_eq!(only(bench.receive(&late)).to, client.me);
}

/// Clients at these ports, with the SYN-ACK but before their ACK.
fn half_way<const N: usize>(bench: &mut Bench, ports: [u16; N]) -> [Client; N] {
    ports.map(|port| {
        let mut client = Client::new(port);
        let syn_ack = only(bench.receive(&client.syn()));
        client.take_syn_ack(&syn_ack);
        client
    })
}

#[test]
fn a_client_that_has_its_syn_ack_is_served_as_long_as_its_cookie_lives() {
    let mut bench = Bench::new();
    let [mut quick, mut slow, mut late] = half_way(&mut bench, [40000, 40001, 40002]);
    bench.proxy.begin_drain();
    assert_eq!(only(quick.send(&mut bench, b"0 hello")).flags, TcpFlags::SYN);
    // A cookie lives for 8 s at least, and for 16 s at most.
    bench.wait(Duration::from_secs(7));
    let sent = slow.send(&mut bench, b"0 hello");
    assert!(sent.iter().any(|segment| segment.flags == TcpFlags::SYN), "{sent:?}");
    // Nobody gets another cookie.
    nothing(bench.receive(&Client::new(40003).syn()));
    assert_eq!(bench.dropped(DropReason::Draining), 1);
    bench.wait(Duration::from_secs(10));
    let open = bench.proxy.usage().connections;
    let sent = late.send(&mut bench, b"0 hello");
    assert!(
        sent.iter().all(|segment| segment.flags.contains(TcpFlags::RST)),
        "{sent:?}"
    );
    assert_eq!(bench.proxy.usage().connections, open);
    bench.finish();
    bench.assert_all_returned();
}

/// Nor are its connections begun while the core ends what is left.
#[test]
fn a_core_that_ends_refuses_a_cookie() {
    let mut bench = Bench::new();
    let [mut client] = half_way(&mut bench, [40000]);
    bench.proxy.begin_drain();
    nothing(bench.finish());
    let refused = only(client.send(&mut bench, b"0 hello"));
    assert!(refused.flags.contains(TcpFlags::RST), "{refused:?}");
    bench.assert_all_returned();
}

/// Whose ACK was lost, and who waits for its server to speak, does not know that there is a drain.
#[test]
fn a_silent_client_is_asked_for_its_lost_ack_also_in_a_drain() {
    let text = CONFIG.replacen(
        "rules = [{ first_number = true, pool = \"all\" }]\ndefault = \"reject\"",
        "bind = \"handshake\"\ndefault = \"all\"",
        1,
    );
    let mut bench = Bench::for_pools(&text);
    let client = Client::new(40000);
    let first = only(bench.receive(&client.syn()));
    bench.proxy.begin_drain();
    let again = only(bench.wait(Duration::from_millis(1500)));
    assert_eq!((again.flags, again.seq, again.ack), (first.flags, first.seq, first.ack));
    nothing(bench.finish());
    bench.assert_all_returned();
}

#[test]
fn checks_go_on_in_a_drain_and_hold_nothing_up() {
    let mut farm = checks::Farm::new(&checked(DEFAULT));
    farm.run(Duration::from_secs(2));
    farm.bench.proxy.begin_drain();
    let before = farm.syns_to(1).len();
    farm.moods[0] = Mood::Silent;
    farm.time_until(true);
    farm.run(Duration::from_secs(3));
    assert!(farm.syns_to(1).len() >= before + 3);
    farm.moods[0] = Mood::Alive;
    farm.time_until(false);
    // In the middle of a check.
    farm.moods = [Mood::Silent; 6];
    while farm.bench.proxy.usage().probes == 0 {
        farm.step();
    }
    assert_eq!(farm.bench.proxy.usage().connections, 0, "a check is no connection");
    let before = farm.syns.len();
    farm.assert_all_returned();
    nothing(farm.bench.wait(Duration::from_secs(5)));
    assert_eq!(farm.syns.len(), before);
}

#[test]
fn checks_with_content_go_on_in_a_drain_and_hold_nothing_up() {
    let mut farm = content_checks::Farm::new(&checked("{ kind = \"http\" }"));
    farm.run(Duration::from_secs(2));
    farm.bench.proxy.begin_drain();
    let passed = farm.counted(CheckEvent::Passed);
    farm.run(3 * SECOND);
    assert!(farm.counted(CheckEvent::Passed) >= passed + 9);
    farm.lies = [content_checks::Lie::Silent; 3];
    farm.run(SECOND);
    assert!(farm.bench.proxy.usage().probes > 0);
    nothing(farm.bench.finish());
    farm.bench.assert_all_returned();
}
