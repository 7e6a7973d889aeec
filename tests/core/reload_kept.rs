//! Other settings for what is kept of connections: their records, and how long they rest.

use crate::harness::{Bench, CONFIG, close, nothing, only, spliced};
use e2d2::wire::tcp::TcpFlags;
use netfcts::record::RecordFlags;
use splice::tally::Distribution;
use std::time::Duration;

fn resting(time_wait: &str) -> String {
    format!("{CONFIG}\n[timeouts]\ntime_wait = \"{time_wait}\"\n")
}

fn reload(bench: &mut Bench, text: &str) {
    bench.reload(text, |_| None);
}

/// One more connection rests, which came from this port of its client.
fn rest(bench: &mut Bench, port: u16) {
    let (mut client, mut server) = spliced(bench, port);
    close(bench, &mut client, &mut server);
}

#[test]
fn connections_rest_as_long_as_was_said_when_they_ended() {
    let mut bench = Bench::with_config(&resting("10s"));
    rest(&mut bench, 40_000);
    bench.wait(Duration::from_secs(8));
    reload(&mut bench, &resting("1s"));
    rest(&mut bench, 40_001);
    bench.wait(Duration::from_millis(1_500));
    // They leave in the order in which they came.
    assert_eq!(bench.proxy.usage().time_wait, 2);
    bench.wait(Duration::from_secs(1));
    assert_eq!(bench.proxy.usage().time_wait, 0);
    rest(&mut bench, 40_002);
    bench.wait(Duration::from_millis(1_500));
    assert_eq!(bench.proxy.usage().time_wait, 0, "a second is enough now");
    reload(&mut bench, &resting("10s"));
    rest(&mut bench, 40_003);
    bench.wait(Duration::from_secs(9));
    assert_eq!(bench.proxy.usage().time_wait, 1);
    bench.wait(Duration::from_secs(2));
    assert_eq!(bench.proxy.usage().time_wait, 0);
    bench.assert_all_returned();
}

/// Of two ports towards a server the one that rests longest is taken, and early only if it has not rested as long as was said
/// when it was given back.
#[test]
fn ports_rest_as_long_as_connections() {
    let two_ports = |time_wait: &str| {
        let all = resting(time_wait);
        let text = all.replace("name = \"all\"\n", "name = \"all\"\nlocal_ports = \"20000-20001\"\n");
        assert_ne!(text, all);
        text
    };
    let was_early = |bench: &mut Bench| {
        let records = bench.records();
        records
            .iter()
            .map(|record| record.flags().contains(RecordFlags::EARLY_PORT))
            .collect::<Vec<_>>()
    };
    let mut bench = Bench::with_config(&two_ports("60s"));
    reload(&mut bench, &two_ports("1s"));
    (40_000..40_002).for_each(|port| rest(&mut bench, port));
    bench.wait(Duration::from_secs(2));
    rest(&mut bench, 40_002);
    assert_eq!(was_early(&mut bench), [false, false, false]);
    reload(&mut bench, &two_ports("60s"));
    bench.wait(Duration::from_secs(2));
    (40_003..40_005).for_each(|port| rest(&mut bench, port));
    bench.wait(Duration::from_secs(2));
    rest(&mut bench, 40_005);
    assert_eq!(was_early(&mut bench), [false, false, true]);
    bench.wait(Duration::from_secs(61));
    bench.assert_all_returned();
}

/// Who looks on is told how long things take, whether or not records go anywhere.
#[test]
fn times_are_told_without_sinks_of_records_where_somebody_looks_on() {
    let without = CONFIG.split("[records]").next().expect("a head");
    for (more, told) in [("", 0), ("[control]\nsocket = \"/run/pe\"\n", 1)] {
        let mut bench = Bench::with_config(&format!("{without}{more}"));
        let (mut client, mut server) = spliced(&mut bench, 40_000);
        only(server.send(&mut bench, b"reply"));
        client.ack = client.ack.wrapping_add(5);
        close(&mut bench, &mut client, &mut server);
        assert!(bench.records().is_empty());
        let tally = bench.proxy.tally();
        // The selector names the servers itself.
        let none = tally.no_pool().expect("what is of no pool");
        for histogram in [none.choice(), none.first_byte(), none.duration()] {
            let mut all = Distribution::default();
            all.add(histogram);
            assert_eq!(all.count(), told, "{more}");
        }
    }
}

/// The first `[[records]]` and the last.
#[test]
fn records_begin_and_end_with_what_a_reload_says() {
    let without = CONFIG.split("[records]").next().expect("a head");
    let mut bench = Bench::with_config(without);
    let (mut before, mut its_server) = spliced(&mut bench, 40_000);
    rest(&mut bench, 40_001);
    reload(&mut bench, CONFIG);
    assert!(bench.records().is_empty());
    close(&mut bench, &mut before, &mut its_server);
    assert!(bench.records().is_empty(), "it was open before");
    rest(&mut bench, 40_002);
    let (mut during, mut its_server) = spliced(&mut bench, 40_003);
    let ports: Vec<u16> = bench.records().iter().map(|record| record.client_port).collect();
    assert_eq!(ports, [40_002]);
    reload(&mut bench, without);
    close(&mut bench, &mut during, &mut its_server);
    rest(&mut bench, 40_004);
    assert!(bench.records().is_empty());
    reload(&mut bench, CONFIG);
    let (client, _) = spliced(&mut bench, 40_005);
    only(bench.receive(&client.segment(TcpFlags::RST, b"")));
    assert_eq!(bench.records().len(), 1);
    nothing(bench.wait(Duration::from_millis(1)));
    bench.assert_all_returned();
}
