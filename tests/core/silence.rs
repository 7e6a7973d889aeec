//! What follows a refusal: silence for a minute, which nobody else can end, and no SYN-ACK again.

use crate::harness::{CONFIG, Client, nothing, only};
use crate::refusing::{FOUR, bench, bench_of, config, counted, reload};
use e2d2::wire::tcp::TcpFlags;
use splice::Usage;
use splice::drop_reason::DropReason;
use std::time::Duration;
use test_case::test_case;
use testkit::Station;

#[test]
fn after_a_payload_that_a_rule_drops_there_is_silence_for_a_minute() {
    let mut bench = bench("{ prefix = \"SSH-\", action = \"drop\" }");
    let mut client = Client::new(40000);
    client.connect(&mut bench);
    let request = client.segment(TcpFlags::PSH, b"SSH-2.0-scan\r\n");
    nothing(bench.receive(&request));
    assert_eq!((bench.dropped(DropReason::RuleDropped), counted(&bench, 0)), (1, 1));
    assert_eq!(bench.proxy.usage(), Usage::default());
    // The client repeats it: beyond the life of its cookie, to the end of the minute.
    for _ in 0..58 {
        nothing(bench.wait(Duration::from_secs(1)));
        nothing(bench.receive(&request));
        nothing(bench.receive(&client.segment(TcpFlags::FIN, b"")));
    }
    assert_eq!(bench.dropped(DropReason::RuleDropped), 1 + 2 * 58);
    nothing(bench.wait(Duration::from_secs(3)));
    assert_eq!(only(bench.receive(&request)).flags, TcpFlags::RST);
    // From the same port a connection can begin at any time.
    let mut again = Client {
        seq: 1000,
        ..Client::new(40000)
    };
    again.connect(&mut bench);
    assert_eq!(only(again.send(&mut bench, b"1 ")).flags, TcpFlags::SYN);
}

/// A RST of no connection is noted where SYN-ACKs are repeated, as it may end a handshake; nothing in it is verified.
#[test]
fn forged_resets_do_not_end_the_silence() {
    let text = config("{ prefix = \"SSH-\", action = \"drop\" }", "inspect_delay = \"1s\"\n");
    let mut bench = bench_of(&text);
    let mut client = Client::new(40000);
    client.connect(&mut bench);
    let request = client.segment(TcpFlags::PSH, b"SSH-2.0-scan\r\n");
    nothing(bench.receive(&request));
    // As many as fill a table of so few connections many times.
    for port in 1..2000 {
        let stranger = Client {
            me: Station::new(1, &format!("10.0.0.2:{port}")),
            ..Client::new(port)
        };
        nothing(bench.receive(&stranger.segment(TcpFlags::RST, b"")));
    }
    for _ in 0..58 {
        nothing(bench.wait(Duration::from_secs(1)));
        nothing(bench.receive(&request));
    }
    assert_eq!(bench.dropped(DropReason::RuleDropped), 1 + 58);
}

#[test_case("drop"; "drop")]
#[test_case("reject"; "reject")]
#[test_case("tarpit"; "tarpit")]
fn who_is_refused_at_the_ack_gets_no_more_syn_acks(action: &str) {
    let bound = CONFIG.replacen("name = \"web\"", "name = \"web\"\nbind = \"handshake\"", 1);
    let bound = bound.replacen(
        "rules = [{ first_number = true, pool = \"all\" }]\ndefault = \"reject\"",
        "default = \"all\"",
        1,
    );
    let refused = bound.replacen(
        "default = \"all\"",
        &format!("rules = [{{ {FOUR}, action = \"{action}\" }}]\ndefault = \"all\""),
        1,
    );
    let mut bench = bench_of(&bound);
    let mut client = Client::new(40000);
    client.take_syn_ack(&only(bench.receive(&client.syn())));
    reload(&mut bench, &refused);
    let answers = bench.receive(&client.segment(TcpFlags::ACK, b"")).len();
    assert_eq!(answers, usize::from(action != "drop"));
    for _ in 0..10 {
        nothing(bench.wait(Duration::from_secs(1)));
    }
    // A handshake that nobody has refused is asked for again.
    reload(&mut bench, &bound);
    only(bench.receive(&Client::new(40001).syn()));
    assert_eq!(
        only(bench.wait(Duration::from_millis(1050))).flags,
        TcpFlags::SYN | TcpFlags::ACK
    );
}
