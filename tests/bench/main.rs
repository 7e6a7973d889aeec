//! `bench cps` in small: the engine's own core program between the generator's two ends, on ring ports. Asserts that the
//! result is valid (packets, servers, nothing lost), never how fast it is.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use benchkit::{CpsResult, CpsSettings, LoadProcess, Measured, TwoCoreBench, serve_load};

#[path = "../../benches/device/shared/mod.rs"]
mod device;

use device::compared::Compared;
use device::floor::{self, Floor};
use device::pairs::Pairs;
use device::{Conditions, Host, Inspect, Rules, cli, parts};
use e2d2::time::Clock;
use proxyengine::stages::{Breakdown, ROUNDS_PER_LOOK};

#[test]
fn a_short_bench_is_valid_inline_with_any_rules_over_either_ip_on_two_cores_and_over_memif() {
    let settings = CpsSettings {
        open: 500,
        length: Duration::from_millis(500),
        time_wait: Duration::from_millis(100),
    };
    let host = Host::start(2, 1500).expect("DPDK starts");
    let conditions = Conditions {
        records: true,
        capacity: 200_000,
        ..Conditions::new(settings)
    };
    let mut inline = host.open('t', &conditions).expect("the bench opens");
    let result = inline.cps(&settings);
    check(&result, &inline.device);
    drop(inline);
    beside_its_floor(&host, &conditions, result);
    what_no_build_has_learned_from(&host, &conditions);

    let over_ipv6 = Conditions {
        ipv6: true,
        ..conditions
    };
    let mut inline = host.open('s', &over_ipv6).expect("the bench opens");
    check(&inline.cps(&settings), &inline.device);
    drop(inline);

    let inline = host.open('u', &conditions).expect("the bench opens");
    let two_core = host.part(inline, None).expect("a thread");
    let (result, device, _totals) = two_core.cps("two-core", &settings).expect("a load that stays");
    check(&result, &device);
    drop(device);

    // One process has one DPDK: all of it is one test.
    over_memif(&host);
}

/// Slices of ten connections each: how many there are, how many count, and what a connection takes in those and in all.
fn turn(slices: u32, counted: u32, cycles: [u64; 2]) -> Vec<Measured> {
    let mut measured = Measured::default();
    for (sum, slices, cycles) in [
        (&mut measured.all, slices, cycles[1]),
        (&mut measured.quiet, slices, cycles[1]),
        (&mut measured.counted, counted, cycles[0]),
    ] {
        (sum.slices, sum.completed) = (slices, u64::from(slices) * 10);
        sum.accounts.busy_cycles = sum.completed * cycles;
    }
    vec![measured]
}

#[test]
fn pairs_of_turns_say_their_ratios_and_on_how_many_slices_they_rest() {
    for (counted, is_enough) in [(10, true), (9, false)] {
        // The second of each is disturbed by others: in the slices that count it takes half of the first, in all as much.
        let turns = vec![(turn(100, counted, [2_000, 3_000]), turn(100, counted, [1_000, 3_000])); 6];
        let pairs = Pairs::of(&turns);
        let json = cli::told(&pairs).expect("JSON");
        let number = |key: &str| json[key].as_f64().unwrap_or_else(|| panic!("{key} in {json:#}"));
        for (key, value) in [
            ("ratio", 2.0),
            ("ratio_all_slices", 1.0),
            ("slices", 1_200.0),
            ("slices_counted", f64::from(12 * counted)),
            ("slices_counted_share", f64::from(counted) / 100.0),
        ] {
            assert!((number(key) - value).abs() < 1e-9, "{key} in {json:#}");
        }
        assert!(
            json["pgo"].is_boolean() && json["interval"][0] == json["ratio"],
            "{json:#}"
        );
        assert_eq!(pairs.cycles, [2_000.0, 1_000.0]);
        assert_eq!(pairs.coverage.is_enough(), is_enough);
        let said = |limit, lost| pairs.verdict(limit, &pairs.reasons_against([("lost", lost), ("failed", 0)]));
        let too_few = "108 of 1200 slices count, fewer than 0.1 of them";
        assert_eq!(
            said(2.1, 0),
            if is_enough {
                "valid".to_owned()
            } else {
                format!("NOT VALID: {too_few}")
            }
        );
        assert_eq!(
            said(1.9, 3),
            match is_enough {
                true => "NOT VALID: lost is 3, and ABOVE ITS LIMIT".to_owned(),
                false => format!("NOT VALID: lost is 3; {too_few}, and ABOVE ITS LIMIT"),
            }
        );
    }
}

/// Where the process of the load finds the bench.
const FOLDER: &str = "PROXYENGINE_BENCH_FOLDER";

/// And that it is the floor's.
const OF_FLOOR: &str = "PROXYENGINE_BENCH_OF_FLOOR";

fn memif_conditions() -> Conditions {
    let settings = CpsSettings {
        open: 500,
        length: Duration::from_millis(500),
        time_wait: Duration::from_millis(100),
    };
    Conditions {
        capacity: 200_000,
        depth: 128,
        ..Conditions::new(settings)
    }
}

fn over_memif(host: &Host) {
    let (folder, conditions) = (tempfile::tempdir().expect("a folder"), memif_conditions());
    let opened = host.open_memif(folder.path(), &conditions, || {
        let mut load = Command::new(std::env::current_exe()?);
        load.args(["--ignored", "--exact", "--nocapture", "load_of_the_bench_over_memif"]);
        Ok(LoadProcess::start(load.env(FOLDER, folder.path()), folder.path())?)
    });
    let (device, load, clock) = opened.expect("two processes on a memif");
    let bench = TwoCoreBench::new(device, load, clock);
    let (result, device, _totals) = bench.cps("memif", &conditions.settings).expect("a load that stays");
    assert_eq!(beside_two_processes(&result), [""; 0], "{:#?}", device.counters());
    check_numbers(&result);
    floor_over_memif(host, &result);
}

fn floor_over_memif(host: &Host, of: &CpsResult) {
    let (folder, conditions) = (tempfile::tempdir().expect("a folder"), memif_conditions());
    let opened = host.open_memif_floor(folder.path(), &conditions, floor::pause_of(of), || {
        let mut load = Command::new(std::env::current_exe()?);
        load.args(["--ignored", "--exact", "--nocapture", "load_of_the_bench_over_memif"]);
        load.env(FOLDER, folder.path()).env(OF_FLOOR, "1");
        Ok(LoadProcess::start(&mut load, folder.path())?)
    });
    let (device, load, clock) = opened.expect("two processes on a memif");
    let bench = TwoCoreBench::new(device, load, clock);
    let (result, ..) = bench.cps("floor", &conditions.settings).expect("a load that stays");
    assert_eq!(beside_two_processes(&result), [""; 0], "{result:#?}");
    assert!(result.connections > 100, "{result:#?}");
}

/// The floor has the packets of the proxy, and the result beside it has all fields, which are each other's ratios.
fn beside_its_floor(host: &Host, conditions: &Conditions, result: CpsResult) {
    let conditions = floor::conditions(conditions);
    let mut inline = host
        .open_floor('f', &conditions, Duration::ZERO)
        .expect("the floor opens");
    let of_floor = inline.cps(&conditions.settings);
    assert_eq!(beside_the_machine(&of_floor), [""; 0], "{of_floor:#?}");
    for packets in [of_floor.rx_packets_per_connection, of_floor.tx_packets_per_connection] {
        assert!((packets - 7.0).abs() < 0.01, "{of_floor:#?}");
    }
    let (busy, parts) = (result.busy_cycles_per_connection, parts::measure(&Clock::new()));
    let compared = Compared::new(result, Floor::of(&of_floor, false), parts);
    let json = cli::told(&compared).expect("JSON");
    let number = |key: &str| json[key].as_f64().unwrap_or_else(|| panic!("{key} in {json:#}"));
    let nearly = |one: f64, other: f64| (one / other - 1.0).abs() < 1e-9;
    assert!(
        nearly(number("ratio_to_floor"), busy / number("floor_cycles")),
        "{json:#}"
    );
    assert!(
        nearly(number("ratio_to_parts"), busy / number("parts_cycles")),
        "{json:#}"
    );
    let parts = json["parts"].as_object().expect("the parts by name");
    let names: Vec<&str> = parts.keys().map(String::as_str).collect();
    assert_eq!(names, ["cookie_hash", "look_ups", "parse_and_checksum", "rewriting"]);
    let sum: f64 = parts.values().filter_map(serde_json::Value::as_f64).sum();
    assert!(nearly(number("parts_cycles"), sum) && sum > 0.0, "{json:#}");
    let share = number("slices_counted") / number("slices");
    assert!(nearly(number("slices_counted_share"), share), "{json:#}");
    assert!(
        number("busy_cycles_all_slices") > 0.0 && json["pgo"].is_boolean(),
        "{json:#}"
    );
    assert!(json.get("busy_cycles_beside_others").is_none(), "{json:#}");
}

/// Rules and inspectors of the bench: each request reaches the server that its key names, or the load says so.
fn what_no_build_has_learned_from(host: &Host, usual: &Conditions) {
    let usual = Conditions {
        records: false,
        settings: CpsSettings {
            length: Duration::from_millis(200),
            ..usual.settings
        },
        ..*usual
    };
    for (name, rules) in [('h', Rules::Http1000), ('n', Rules::Sni1000), ('r', Rules::Regex)] {
        let conditions = Conditions { rules, ..usual };
        let mut inline = host.open(name, &conditions).expect("the bench opens");
        check(&inline.cps(&conditions.settings), &inline.device);
    }
    let conditions = Conditions {
        stage_cycles: true,
        ..usual
    };
    let mut inline = host.open('y', &conditions).expect("the bench opens");
    check(&inline.cps(&conditions.settings), &inline.device);
    stages_add_up(&inline.device.counters());
    for (name, inspect) in [('p', Inspect::Pass), ('w', Inspect::Rewrite)] {
        let conditions = Conditions {
            inspect: Some(inspect),
            ..usual
        };
        let mut inline = host.open(name, &conditions).expect("the bench opens");
        let result = inline.cps(&conditions.settings);
        // What replaces bytes is packets of the proxy's own: their number may be another.
        let reasons = beside_the_machine(&result);
        let other = reasons.iter().find(|reason| !reason.contains("packets per connection"));
        assert_eq!(other, None, "{result:#?}");
        // There is room for inspected connections only where there is an inspector.
        assert!(
            result.connections > 100 && result.bytes_by_structure["inspections"] > 1.0,
            "{result:#?}"
        );
    }
}

/// Not a test: the other process of the bench over memif, which is this program once more.
#[test]
#[ignore = "the test of the bench runs it as a process of its own"]
fn load_of_the_bench_over_memif() {
    let folder = PathBuf::from(std::env::var_os(FOLDER).expect("the test of the bench starts it"));
    let is_floor = std::env::var_os(OF_FLOOR).is_some();
    let host = Host::start(1, 1500).expect("DPDK starts");
    let (arms, pool, clock) = host
        .load_memif(&folder, &memif_conditions(), is_floor)
        .expect("the bench is there");
    let counted = serve_load(arms, pool, &clock, &folder).expect("the bench stays");
    println!("\n{counted}");
}

/// One round in so many was timed, every stage of the connections' way took cycles, and nothing that never happened did.
fn stages_add_up(counters: &proxyengine::report::CounterGroups) {
    let stages = Breakdown::of(counters).expect("cycles by stage");
    let share = stages.timed_rounds as f64 / stages.rounds as f64 * ROUNDS_PER_LOOK as f64;
    assert!(stages.timed_rounds > 10 && (0.5..2.0).contains(&share), "{stages}");
    let names: Vec<&str> = stages.stages.iter().map(|(name, _)| *name).collect();
    for name in [
        "receive",
        "parse",
        "checksum",
        "look_up",
        "classify",
        "rewrite",
        "send",
        "action_send_cookie",
        "action_create_connection",
        "action_ask_selector",
        "action_connect_server",
        "action_splice",
        "action_send_held",
        "action_quarantine",
    ] {
        assert!(names.contains(&name), "{name} in {stages}");
    }
    assert!(!names.contains(&"action_next_server"), "{stages}");
}

/// Why a result is not valid, but for what a machine does that is busy with other tests: there the load may stand still while
/// the proxy turns, and few slices are undisturbed.
fn beside_the_machine(result: &CpsResult) -> Vec<&str> {
    let reasons = result.invalid_because.iter().map(String::as_str);
    reasons
        .filter(|reason| !reason.contains("times the busy") && !reason.contains("slices count"))
        .collect()
}

/// The same of two processes: while one of them has no core, the rings fill; what is lost then is sent again.
fn beside_two_processes(result: &CpsResult) -> Vec<&str> {
    let is_repeated = result.disturbed_slices > 0 && result.lost == result.retransmitted;
    let is_of_a_loss = |reason: &str| {
        ["lost is", "retransmitted is"]
            .iter()
            .any(|start| reason.starts_with(start))
    };
    let mut reasons = beside_the_machine(result);
    reasons.retain(|reason| !(is_repeated && is_of_a_loss(reason)));
    reasons
}

fn check(result: &CpsResult, device: &device::ProxyDevice) {
    assert_eq!(beside_the_machine(result), [""; 0], "{:#?}", device.counters());
    check_numbers(result);
}

fn check_numbers(result: &CpsResult) {
    assert!(result.connections > 100, "{result:#?}");
    assert!((430..=500).contains(&result.open_connections), "{result:#?}");
    assert!(
        result.mean_burst >= 1.0 && result.bytes_per_connection_state > 100.0,
        "{result:#?}"
    );
}
