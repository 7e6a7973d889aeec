//! Listeners that bind with the SYN, when an end refuses, is silent, gives up or begins anew, or there is no room.

use crate::harness::{CLIENT_ISN, Client, Server, assert_reset_and_called_again, nothing, only};
use crate::syn::{SYN_ACK, answered, bench, bench_with, established, forwarded};
use e2d2::wire::tcp::{TcpFlags, TcpOptions};
use netfcts::{Cause, Side};
use splice::Usage;
use splice::drop_reason::DropReason;
use std::time::Duration;
use testkit::Segment;

const RST_ACK: TcpFlags = TcpFlags::RST.union(TcpFlags::ACK);

fn refusal(syn: &Segment) -> Segment {
    Segment {
        ack: syn.seq.wrapping_add(1),
        flags: RST_ACK,
        window: 0,
        ..Segment::between(syn.to, syn.from)
    }
}

#[test]
fn a_refused_syn_goes_to_the_next_server_and_at_last_the_client_is_told() {
    let mut bench = bench();
    let (client, first) = forwarded(&mut bench);
    let second = only(bench.receive(&refusal(&first)));
    let third = only(bench.receive(&refusal(&second)));
    for next in [&second, &third] {
        assert_eq!((next.flags, next.options), (TcpFlags::SYN, first.options));
    }
    let mut tried = [first.to, second.to, third.to].map(|station| station.address);
    tried.sort();
    assert!(tried[0] != tried[1] && tried[1] != tried[2]);
    let reset = only(bench.receive(&refusal(&third)));
    // RFC 9293 3.10.7.1.
    assert_eq!((reset.flags, reset.to), (RST_ACK, client.me));
    assert_eq!((reset.seq, reset.ack), (0, CLIENT_ISN.wrapping_add(1)));
    let record = bench.records()[0];
    assert_eq!(
        (record.cause(Side::Client), record.servers_tried()),
        (Cause::ServerRefused, 3)
    );
    assert_eq!(bench.proxy.usage(), Usage::default());
    bench.assert_all_returned();
}

#[test]
fn silent_servers_are_passed_over_without_the_clients_help() {
    let mut bench = bench_with("retries = 1");
    let (client, first) = forwarded(&mut bench);
    let sent = bench.wait(Duration::from_millis(10_100));
    let second = only(sent);
    assert_ne!(second.to, first.to);
    // Its repetition goes to whom it is now meant for.
    assert_eq!(only(bench.receive(&client.syn())), second);
    let mut sent = bench.wait(Duration::from_secs(31));
    let reset = sent.pop().expect("a reset");
    assert_eq!((reset.flags, reset.to), (RST_ACK, client.me));
    assert_eq!((reset.seq, reset.ack), (0, CLIENT_ISN.wrapping_add(1)));
    assert_eq!(sent.len(), 2, "the third, and once more the last: {sent:#?}");
    let record = bench.records()[0];
    assert_eq!(
        (record.cause(Side::Client), record.servers_tried()),
        (Cause::ServerTimeout, 4)
    );
    bench.assert_all_returned();
}

#[test]
fn a_fail_over_still_leads_to_a_connection() {
    let mut bench = bench();
    let (mut client, first) = forwarded(&mut bench);
    let second = only(bench.receive(&refusal(&first)));
    let mut server = Server::from_syn(&second);
    server.shake(&mut bench, &mut client);
    let hello = only(client.send(&mut bench, b"hello"));
    assert_eq!((hello.to, hello.seq, hello.ack), (server.me, server.ack, server.seq));
}

#[test]
fn a_server_in_time_wait_is_reset_and_called_again() {
    let mut bench = bench();
    let (_, syn) = forwarded(&mut bench);
    assert_reset_and_called_again(&mut bench, &syn);
}

#[test]
fn a_client_that_gives_up_takes_the_server_along() {
    for is_answered in [false, true] {
        let mut bench = bench();
        let (mut client, syn) = forwarded(&mut bench);
        client.seq = CLIENT_ISN.wrapping_add(1);
        if is_answered {
            only(bench.receive(&Server::from_syn(&syn).syn_ack()));
        }
        let blind = Segment {
            seq: client.seq.wrapping_sub(1),
            flags: TcpFlags::RST,
            ..client.segment(TcpFlags::RST, b"")
        };
        nothing(bench.receive(&blind));
        let doubtful = Segment {
            seq: client.seq.wrapping_add(1),
            ..blind.clone()
        };
        assert_eq!(only(bench.receive(&doubtful)).flags, TcpFlags::ACK, "a challenge");
        let reset = only(bench.receive(&Segment {
            seq: client.seq,
            ..blind
        }));
        assert_eq!((reset.flags, reset.to), (TcpFlags::RST, syn.to));
        assert_eq!(reset.seq, syn.seq.wrapping_add(1));
        assert_eq!(bench.records()[0].cause(Side::Client), Cause::ActiveRst);
        assert_eq!(bench.proxy.usage(), Usage::default());
        bench.assert_all_returned();
    }
}

#[test]
fn a_server_that_gives_up_after_its_answer_ends_the_connection() {
    for by_number in [false, true] {
        let mut bench = bench();
        let (client, server, _) = answered(&mut bench);
        let reset = Segment {
            seq: if by_number { server.seq } else { 0 },
            ack: if by_number { 0 } else { server.ack },
            flags: if by_number { TcpFlags::RST } else { RST_ACK },
            ..Segment::between(server.me, server.proxy)
        };
        let blind = Segment {
            seq: server.seq.wrapping_add(1),
            flags: TcpFlags::RST,
            ack: 0,
            ..reset.clone()
        };
        nothing(bench.receive(&blind));
        let passed = only(bench.receive(&reset));
        assert_eq!((passed.to, passed.seq, passed.ack), (client.me, client.ack, client.seq));
        assert!(passed.flags.contains(TcpFlags::RST));
        assert_eq!(bench.records()[0].cause(Side::Client), Cause::PassiveRst);
        bench.assert_all_returned();
    }
}

#[test]
fn a_client_that_begins_anew_is_challenged_and_then_believed() {
    let mut bench = bench();
    let (client, _) = forwarded(&mut bench);
    let mut fresh = Client::new(40000);
    fresh.seq = 900_000;
    let challenge = only(bench.receive(&fresh.syn()));
    assert_eq!(
        (challenge.flags, challenge.ack),
        (TcpFlags::ACK, CLIENT_ISN.wrapping_add(1))
    );
    // RFC 9293 3.10.7.3: its SYN-SENT answers with the number that was acknowledged.
    let reset = Segment {
        seq: challenge.ack,
        ack: 0,
        flags: TcpFlags::RST,
        options: TcpOptions::NONE,
        ..Segment::between(client.me, client.proxy)
    };
    only(bench.receive(&reset));
    let syn = only(bench.receive(&fresh.syn()));
    assert_eq!(syn.flags, TcpFlags::SYN);
}

#[test]
fn only_the_ack_of_the_syn_ack_opens() {
    let mut bench = bench();
    let (client, server, _) = answered(&mut bench);
    let good = client.segment(TcpFlags::ACK, b"");
    let wrong_ack = Segment {
        ack: good.ack.wrapping_add(1),
        ..good.clone()
    };
    let old = Segment {
        seq: good.seq.wrapping_sub(1),
        ..good.clone()
    };
    let beyond = Segment {
        seq: good.seq.wrapping_add(0xffff),
        ..good.clone()
    };
    for bad in [wrong_ack, old, beyond] {
        let challenge = only(bench.receive(&bad));
        assert_eq!(
            (challenge.to, challenge.seq, challenge.ack),
            (client.me, client.ack, client.seq)
        );
        bench.now += Duration::from_millis(1024);
    }
    // Nor does anything of the server's pass before.
    nothing(bench.receive(&server.segment(TcpFlags::PSH, b"too early")));
    assert_eq!(bench.dropped(DropReason::NotAnAnswer), 1);
    only(bench.receive(&good));
}

#[test]
fn a_challenge_offers_no_more_than_the_server_has() {
    for (shift, offered) in [(Some(0), 2_000), (Some(4), 125), (None, 2_000)] {
        let mut bench = bench();
        let (mut client, syn) = forwarded(&mut bench);
        let server = Server::from_syn(&syn);
        let mut answer = Segment {
            window: 2_000,
            ..server.syn_ack()
        };
        answer.options.window_scale = shift;
        client.take_syn_ack(&only(bench.receive(&answer)));
        let wrong = Segment {
            ack: client.ack.wrapping_add(1),
            ..client.segment(TcpFlags::ACK, b"")
        };
        let challenge = only(bench.receive(&wrong));
        // RFC 7323 2.2: the window of the SYN-ACK is not scaled, and this one is.
        assert_eq!((challenge.to, challenge.window), (client.me, offered), "{shift:?}");
    }
}

#[test]
fn a_client_that_never_acknowledges_is_let_go() {
    let mut bench = bench();
    let (client, server, _) = answered(&mut bench);
    nothing(bench.wait(Duration::from_millis(29_900)));
    let resets = bench.wait(Duration::from_millis(300));
    assert_eq!(resets.len(), 2);
    assert_eq!((resets[0].to, resets[0].seq), (client.me, client.ack));
    assert_eq!((resets[1].to, resets[1].seq), (server.me, server.ack));
    assert_eq!(bench.records()[0].cause(Side::Client), Cause::HandshakeTimeout);
    bench.assert_all_returned();
}

#[test]
fn past_the_mark_clients_are_answered_by_cookie_and_memory_does_not_grow() {
    let mut bench = bench();
    let memory = bench.proxy.memory();
    let mut answers = Vec::new();
    for n in 0..1000_u16 {
        answers.push(only(bench.receive(&Client::new(n).syn())));
    }
    let passed = answers.iter().filter(|answer| answer.flags == TcpFlags::SYN).count();
    assert_eq!(passed, 12, "three quarters of a quarter of the connections");
    assert_eq!(bench.proxy.usage().forwarded_syns, 12);
    assert_eq!(bench.dropped(DropReason::ForwardedSynsFull), 988);
    assert_eq!(bench.proxy.memory(), memory);
    // Who was answered by cookie is served all the same.
    let mut late = Client::new(999);
    late.take_syn_ack(answers.last().expect("an answer"));
    let syn = only(bench.receive(&late.segment(TcpFlags::ACK, b"")));
    let mut server = Server::from_syn(&syn);
    server.accept(&mut bench);
    assert_eq!(only(server.send(&mut bench, b"220 ready")).payload, b"220 ready");
    bench.finish();
    bench.assert_all_returned();
}

#[test]
fn while_the_last_connection_rests_a_syn_gets_a_cookie() {
    let mut bench = bench();
    let (mut client, _) = established(&mut bench);
    only(bench.receive(&client.segment(TcpFlags::RST, b"")));
    client.seq = 50_000_000;
    let syn_ack = only(bench.receive(&client.syn()));
    assert_eq!((syn_ack.flags, syn_ack.to), (SYN_ACK, client.me));
    client.take_syn_ack(&syn_ack);
    let syn = only(bench.receive(&client.segment(TcpFlags::ACK, b"")));
    assert_eq!(syn.flags, TcpFlags::SYN);
    bench.finish();
    bench.assert_all_returned();
}

#[test]
fn a_cookie_whose_ack_is_lost_is_repeated_though_the_last_connection_rests() {
    let mut bench = bench();
    let (mut client, _) = established(&mut bench);
    only(bench.receive(&client.segment(TcpFlags::RST, b"")));
    client.seq = 50_000_000;
    let syn_ack = only(bench.receive(&client.syn()));
    // The client waits for the server to speak. Its ACK never comes.
    let again = only(bench.wait(Duration::from_millis(1_100)));
    assert_eq!((again.flags, again.seq, again.to), (SYN_ACK, syn_ack.seq, client.me));
    client.take_syn_ack(&again);
    let syn = only(bench.receive(&client.segment(TcpFlags::ACK, b"")));
    assert_eq!(syn.flags, TcpFlags::SYN);
    // It has come, and is over: nothing is repeated to it.
    let refused = bench.receive(&refusal(&syn));
    let syn = only(refused);
    let refused = bench.receive(&refusal(&syn));
    let syn = only(refused);
    assert_eq!(only(bench.receive(&refusal(&syn))).to, client.me);
    nothing(bench.wait(Duration::from_secs(10)));
    bench.assert_all_returned();
}

#[test]
fn shutdown_tells_both_ends_whatever_they_know() {
    let mut bench = bench();
    let (client, syn) = forwarded(&mut bench);
    let resets = bench.finish();
    assert_eq!(resets.len(), 2);
    assert_eq!(
        (resets[0].to, resets[0].seq, resets[0].ack),
        (client.me, 0, CLIENT_ISN.wrapping_add(1))
    );
    assert_eq!((resets[1].to, resets[1].seq), (syn.to, syn.seq.wrapping_add(1)));
    bench.assert_all_returned();

    let mut bench = self::bench();
    let (client, server, _) = answered(&mut bench);
    let resets = bench.finish();
    assert_eq!((resets[0].to, resets[0].seq), (client.me, client.ack));
    assert_eq!((resets[1].to, resets[1].seq), (server.me, server.ack));
    bench.assert_all_returned();
    // And a core that drains takes none.
    let mut bench = self::bench();
    bench.proxy.begin_drain();
    nothing(bench.receive(&Client::new(40000).syn()));
    assert_eq!(bench.dropped(DropReason::Draining), 1);
}

#[test]
fn an_unknown_next_hop_is_waited_for_by_the_client() {
    let mut bench = bench();
    bench.hops.0.borrow_mut().extend([0, 1, 2]);
    let client = Client::new(40000);
    nothing(bench.receive(&client.syn()));
    bench.hops.0.borrow_mut().clear();
    let syn = only(bench.receive(&client.syn()));
    assert_eq!(syn.flags, TcpFlags::SYN);
}
