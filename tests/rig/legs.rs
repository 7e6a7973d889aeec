//! What records say of losses on either leg, against Linux's own count and that of what loses segments.

use rig::engine::EngineOptions;
use rig::loss::{Direction, Loss};
use rig::{Place, RigOptions, servers};
use serde_json::Value;

use crate::setup::{LIMIT, Setup};

/// Losses are few in each window, as they are on a link that people put up with.
const PER_MILLE: u16 = 4;

/// What a client that sends has seen, and what is told of it.
#[derive(Debug)]
struct Seen {
    /// Segments that it has sent again, by its TCP_INFO.
    retransmits: u64,
    /// Segments that nftables has dropped.
    dropped: u64,
    /// The legs of the record.
    client: Value,
    server: Value,
}

/// A client sends for some seconds, while segments of it in this direction are lost.
fn upload(lost: Direction) -> Option<Seen> {
    let engine = EngineOptions {
        engine: "drain = \"1s\"\nleg_sample = 1\n".into(),
        ..EngineOptions::default()
    };
    let start = |rig: &rig::Rig| vec![servers::start_iperf(rig).expect("iperf3 starts")];
    let setup = Setup::new(RigOptions::default(), &engine, &["iperf3", "nft"], start)?;
    let port = servers::IPERF.to_string();
    let expression = format!("tcp dport {port} numgen random mod 1000 < {PER_MILLE}");
    let loss = Loss::of(&setup.rig, &[lost], &expression).expect("nftables");
    let to = setup.rig.engine_addresses()[0].to_string();
    // All that the client sends it sends on one CPU, what ACKs bring as well: two would overtake each other.
    let client = format!(
        "for cpus in /sys/class/net/*/queues/rx-*/rps_cpus; do echo 1 > $cpus; done; \
         exec taskset -c 0 iperf3 --client {to} --port {port} --time 4 --bitrate 80M --json"
    );
    let output = setup.rig.run(Place::Clients, "sh", &["-c", &client], LIMIT);
    let account: Value = serde_json::from_slice(&output.expect("iperf3 runs").stdout).expect("JSON");
    let retransmits = account["end"]["sum_sent"]["retransmits"]
        .as_u64()
        .expect("Linux counts them");
    let dropped = loss.lost().expect("nftables counts them");
    drop(loss);
    let (_, rig) = setup.finish();
    let lines = std::fs::read_to_string(rig.file("records.jsonl")).expect("records");
    let records = lines
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    // The other is iperf3's own talk.
    let record = records
        .max_by_key(|record| record["bytes_to_server"].as_u64())
        .expect("a record");
    assert_eq!(record["legs_of_one_in"], 1, "{record}");
    let seen = Seen {
        retransmits,
        dropped,
        client: record["client_leg"].clone(),
        server: record["server_leg"].clone(),
    };
    println!("{lost:?}: {seen:?}");
    Some(seen)
}

fn number(leg: &Value, name: &str) -> u64 {
    leg[name].as_u64().unwrap_or_else(|| panic!("no {name} in {leg}"))
}

/// Within a tenth, and some that belong to iperf3's other connection, or were lost when they were sent again.
#[track_caller]
fn assert_near(seen: &Seen, told: u64, truth: u64) {
    assert!(
        told.abs_diff(truth) <= truth / 10 + 8,
        "{told} told, {truth} true: {seen:?}"
    );
}

#[test]
fn segments_lost_before_the_engine_are_told_as_the_clients_legs() {
    let Some(seen) = upload(Direction::FromClients) else {
        return;
    };
    assert!(seen.dropped >= 20, "{seen:?}");
    let again = ["retransmitted", "out_of_order", "duplicate"].map(|name| number(&seen.client, name));
    // What the sender's two CPUs have overtaken fills a gap, too, and is a duplicate when its sender takes it for lost.
    assert_near(&seen, again[1].saturating_sub(again[2]), seen.dropped);
    assert_near(&seen, again[0] + seen.dropped + again[2], seen.retransmits);
    assert!(again[1] > again[0] + again[2], "{seen:?}");
}

#[test]
fn segments_lost_behind_the_engine_are_told_as_the_servers_legs() {
    let Some(seen) = upload(Direction::FromEngine) else {
        return;
    };
    assert!(seen.dropped >= 20, "{seen:?}");
    let again = ["retransmitted", "out_of_order", "duplicate"].map(|name| number(&seen.client, name));
    assert_near(&seen, again[0], seen.dropped);
    // All that was sent again had passed. What is out of order was sent once: the sender's two CPUs may overtake each other.
    assert_near(&seen, again[0] + again[2], seen.retransmits);
    assert!(again[1] < again[0], "{seen:?}");
    assert!(number(&seen.server, "rtts") > 0, "{seen:?}");
    // The server sends nothing but its FIN, which has no time if it was sent twice, or if the client has reset the connection before.
    let of_client = seen.client["least_rtt_us"].as_u64();
    assert!(of_client.is_none_or(|rtt| rtt < 50_000), "{seen:?}");
}
