//! Servers that answer late, with the default configuration: clients wait, and none is reset.

use crate::harness::{Bench, CONFIG, Client, Server, nothing, only};
use e2d2::wire::tcp::TcpFlags;
use splice::drop_reason::DropReason;
use std::time::Duration;
use test_case::test_case;
use testkit::{Segment, Station};

/// So many requests of this length, all of which come before the first server answers; `given_up` are the least and the most
/// copies of them that may be given up.
#[test_case(16_000, 500, 0..=0; "away for 200 ms at 80 000 a second")]
#[test_case(50_000, 500, 0..=0; "100 ms away at 500 000 a second")]
#[test_case(50_000, 500, 0..=0; "one of ten silent for 10 s at 50 000 a second")]
#[test_case(35_000, 1_400, 7_000..=9_000; "more than there is memory for")]
fn nobody_is_reset_for_a_server_that_is_late(count: u32, length: usize, given_up: std::ops::RangeInclusive<u64>) {
    let mut bench = Bench::with_config(&CONFIG.replace("max_connections = 64\n", "max_connections = 65536\n"));
    let request = |n: u32| [&[b'0' + (n % 3) as u8][..], &vec![b'x'; length - 1]].concat();
    let mut called: Vec<(Client, Segment)> = Vec::new();
    for n in 0..count {
        let host = format!("10.0.0.{}:{}", 16 + n % 32, 1024 + n / 32);
        let mut client = Client {
            me: Station::new(1, &host),
            ..Client::new(1)
        };
        client.connect(&mut bench);
        let syn = only(client.send(&mut bench, &request(n)));
        called.push((client, syn));
        bench.now += Duration::from_micros(10);
    }
    for reason in [
        DropReason::ConnectionEvicted,
        DropReason::ReassemblyFull,
        DropReason::ReassemblyQuota,
    ] {
        assert_eq!(bench.dropped(reason), 0, "{reason:?}");
    }
    let copies = bench.dropped(DropReason::ReassemblyEvicted);
    assert!(given_up.contains(&copies), "{copies}");
    // Now they answer. Whose copy was given up repeats it.
    let mut repeated = 0;
    for (n, (client, syn)) in (0..).zip(&called) {
        let mut server = Server::from_syn(syn);
        let (_, mut sent) = server.accept(&mut bench);
        if sent.is_empty() {
            repeated += 1;
            sent = bench.receive(&Segment {
                seq: client.seq.wrapping_sub(length as u32),
                ..client.segment(TcpFlags::PSH, &request(n))
            });
        }
        assert_eq!(only(sent).payload, request(n));
    }
    assert_eq!(repeated, copies);
    assert_eq!(bench.proxy.usage().held, 0);
    bench.finish();
    nothing(bench.wait(Duration::ZERO));
}
