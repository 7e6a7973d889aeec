//! What strangers can make the core send, and what they learn from how much of it they get.

use crate::harness::{Bench, CONFIG, Client, close, nothing, only, spliced};
use crate::icmp::error_about;
use e2d2::wire::frame::{self, Kind};
use e2d2::wire::tcp::TcpFlags;
use splice::drop_reason::DropReason;
use std::time::Duration;
use testkit::Segment;

/// A second as the connections count it: 1 024 ms.
const SECOND: Duration = Duration::from_millis(1024);

fn with_budget(per_second: u32) -> String {
    CONFIG.replace(
        "max_connections",
        &format!("replies_per_second = {per_second}\nmax_connections"),
    )
}

/// A SYN in the name of the client with this port, by somebody who knows no number of its connection.
fn forged_syn(port: u16) -> Segment {
    let mut client = Client::new(port);
    client.seq = 0x1234_5678;
    client.syn()
}

fn challenges(bench: &mut Bench, port: u16, times: u32) -> u32 {
    let syn = forged_syn(port);
    (0..times)
        .filter(|_| {
            let sent = bench.receive(&syn);
            sent.iter().any(|segment| segment.flags == TcpFlags::ACK)
        })
        .count() as u32
}

/// CVE-2016-5696: somebody has a connection of his own, makes up segments of another one, and counts his challenge ACKs.
#[test]
fn who_has_one_connection_counts_the_same_whether_his_guesses_meet_another_or_not() {
    for epoch in 0..32 {
        let counted = |guessed: u16| -> Vec<u32> {
            let mut bench = Bench::restarted(CONFIG, epoch);
            spliced(&mut bench, 40000);
            spliced(&mut bench, 50000);
            (0..12)
                .map(|_| {
                    challenges(&mut bench, guessed, 1500);
                    bench.now += Duration::from_millis(256);
                    challenges(&mut bench, 50000, 100)
                })
                .collect()
        };
        let (hit, missed) = (counted(40000), counted(40001));
        assert_eq!(hit, missed, "epoch {epoch}");
        assert_eq!(hit.iter().sum::<u32>(), 4, "one in each second: {hit:?}");
    }
}

/// The same with so many connections of his own that he can use up the budget: another one takes at most one challenge ACK
/// from it in a second, and the number that he counts is random over a range ten times as wide.
#[test]
fn who_uses_up_the_budget_counts_a_random_number() {
    const BUDGET: u32 = 20;
    const OWN: std::ops::Range<u16> = 50000..50040;
    for epoch in [1, 2, 3] {
        let counted = |guessed: u16| -> Vec<u32> {
            let mut bench = Bench::restarted(&with_budget(BUDGET), epoch);
            spliced(&mut bench, 40000);
            for port in OWN {
                spliced(&mut bench, port);
            }
            (0..100)
                .map(|_| {
                    bench.now += SECOND;
                    challenges(&mut bench, guessed, 300);
                    OWN.map(|port| challenges(&mut bench, port, 2)).sum()
                })
                .collect()
        };
        let (hit, missed) = (counted(40000), counted(40001));
        assert!(
            hit.iter()
                .zip(&missed)
                .all(|(hit, missed)| (0..=1).contains(&(missed - hit))),
            "epoch {epoch}: {hit:?} {missed:?}"
        );
        for counts in [hit, missed] {
            let (least, most) = (counts.iter().min(), counts.iter().max());
            let width = most.expect("counts") - least.expect("counts");
            assert!(width > BUDGET - 4, "epoch {epoch}: {counts:?}");
        }
    }
}

/// What is out of every window makes the other end answer: that is counted as well as our own ACKs.
#[test]
fn segments_out_of_window_pass_the_same_whether_another_connection_has_some_or_not() {
    for epoch in 0..8 {
        let counted = |guessed: u16| -> Vec<usize> {
            let mut bench = Bench::restarted(CONFIG, epoch);
            spliced(&mut bench, 40000);
            let (own, _) = spliced(&mut bench, 50000);
            let far = |client: &Client| Segment {
                seq: client.seq.wrapping_add(1 << 30),
                ack: client.ack,
                ..Client::new(client.me.address.port()).segment(TcpFlags::PSH, b"x")
            };
            (0..8)
                .map(|_| {
                    let mut guess = far(&own);
                    guess.from.address.set_port(guessed);
                    (0..1500).for_each(|_| drop(bench.receive(&guess)));
                    bench.now += Duration::from_millis(256);
                    (0..50).map(|_| bench.receive(&far(&own)).len()).sum()
                })
                .collect()
        };
        assert_eq!(counted(40000), counted(40001), "epoch {epoch}");
    }
}

#[test]
fn strangers_do_not_silence_challenge_acks_nor_these_them() {
    let mut bench = Bench::with_config(&with_budget(2));
    spliced(&mut bench, 40000);
    let mut stranger = Client::new(41000);
    stranger.proxy.address.set_port(81);
    for _ in 0..100 {
        bench.receive(&stranger.syn());
    }
    assert!(bench.dropped(DropReason::RateLimited) >= 97, "RSTs");
    assert_eq!(challenges(&mut bench, 40000, 1), 1);
    bench.now += SECOND;
    for port in 40002..40010 {
        spliced(&mut bench, port);
        challenges(&mut bench, port, 10);
    }
    assert_eq!(
        only(bench.receive(&stranger.syn())).flags,
        TcpFlags::RST | TcpFlags::ACK
    );
}

/// Path-MTU discovery goes on in a flood of strangers, and while somebody makes the core send challenge ACKs and errors of
/// another connection.
#[test]
fn too_big_is_told_in_the_middle_of_a_flood() {
    let mut bench = Bench::with_config(&with_budget(1));
    let (client, _) = spliced(&mut bench, 40000);
    let (other, _) = spliced(&mut bench, 50000);
    let large = |client: &Client| client.segment(TcpFlags::PSH, &[b'x'; 1400]);
    let [passed, others] = [&client, &other].map(|client| only(bench.receive(&large(client))));
    let mut stranger = Client::new(41000);
    stranger.proxy.address.set_port(81);
    let (port, about_other) = error_about(&others, Some(1200));
    for _ in 0..2_000 {
        bench.receive(&stranger.syn());
        challenges(&mut bench, 50000, 1);
        bench.receive_icmp(port, &about_other);
    }
    let (port, error) = error_about(&passed, Some(1300));
    assert_eq!(bench.receive_icmp(port, &error).len(), 1);
    assert!(bench.receive_icmp(port, &error).is_empty(), "once a second");
    bench.now += SECOND;
    assert_eq!(bench.receive_icmp(port, &error).len(), 1);
}

/// The same for a link of our own that is too small.
#[test]
fn our_own_too_big_is_told_in_the_middle_of_a_flood() {
    let small = "device = \"net_null1\"\nmtu = 1400";
    let mut bench = Bench::with_config(&with_budget(1).replace("device = \"net_null1\"", small));
    let (client, _) = spliced(&mut bench, 40000);
    let mut stranger = Client::new(41000);
    stranger.proxy.address.set_port(81);
    for _ in 0..100 {
        bench.receive(&stranger.syn());
    }
    let too_large = client.segment(TcpFlags::PSH, &[b'x'; 1400]);
    let is_icmp = |frame: &Vec<u8>| matches!(frame::parse(frame), Ok(Kind::Icmpv4 { .. }));
    let errors = |bench: &mut Bench| bench.receive_raw(&too_large).iter().filter(|f| is_icmp(f)).count();
    assert_eq!((errors(&mut bench), errors(&mut bench)), (1, 0));
    bench.now += SECOND;
    assert_eq!(errors(&mut bench), 1);
}

/// The same about a late segment of a connection that is over.
#[test]
fn too_big_of_a_late_segment_is_told_in_the_middle_of_a_flood() {
    let small = "device = \"net_null1\"\nmtu = 1400";
    let mut bench = Bench::with_config(&with_budget(1).replace("device = \"net_null1\"", small));
    let (mut client, mut server) = spliced(&mut bench, 40000);
    close(&mut bench, &mut client, &mut server);
    let mut stranger = Client::new(41000);
    stranger.proxy.address.set_port(81);
    for _ in 0..100 {
        bench.receive(&stranger.syn());
    }
    let late = client.segment(TcpFlags::PSH, &[b'x'; 1400]);
    let sent = bench.receive_raw(&late);
    assert!(matches!(frame::parse(&sent[0]), Ok(Kind::Icmpv4 { .. })));
    assert!(bench.receive_raw(&late).is_empty(), "one a second");
}

#[test]
fn a_budget_of_nothing_is_silence() {
    let mut bench = Bench::with_config(&with_budget(0));
    spliced(&mut bench, 40000);
    assert_eq!(challenges(&mut bench, 40000, 10), 0);
    let mut stranger = Client::new(41000);
    stranger.proxy.address.set_port(81);
    nothing(bench.receive(&stranger.syn()));
}
