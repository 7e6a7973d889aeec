//! `bench attack` and `bench soak` in small: the engine's own core between honest clients, their servers and attackers, in
//! the time of its own work. Asserts what is left of them, never how fast anything is.

use trafficengine::Pace;
use trafficengine::attack::Kind;

#[path = "../../benches/device/shared/mod.rs"]
mod device;
#[path = "../../benches/siege/shared/mod.rs"]
mod siege;

use device::Host;
use siege::soak::{MESSAGES, Soak, WARM_UP};
use std::time::Duration;

/// One process has one DPDK: all of it is one test.
#[test]
fn nothing_is_left_of_honest_load_loss_and_attacks() {
    let host = Host::start(1, 1500).expect("DPDK starts");
    let seed = std::env::var("SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or(1);
    println!("SEED={seed}");
    let field = siege::open_with(&host, 's', (seed, MESSAGES), siege::limited).expect("the proxy opens");
    let mut soak = Soak::new(field, seed);
    for _ in 0..=WARM_UP {
        soak.turn();
    }
    let result = soak.result();
    assert!(result.valid, "{result}");
    println!("{result}");
    drop(soak);

    a_flood_of_syns_keeps_nothing_and_is_over_when_it_ends(&host);
    // One core knows at once what it has admitted: there is no excess of connections, and of a rate 1 + `rate` × 10 ms.
    limits_hold_attackers_back_and_nobody_else(&host, ('u', few_at_once), |_| AT_ONCE);
    limits_hold_attackers_back_and_nobody_else(&host, ('v', few_a_second), |seconds| {
        AT_ONCE + (f64::from(AT_ONCE) * (seconds + 0.01)) as u32 + 2
    });
}

fn a_flood_of_syns_keeps_nothing_and_is_over_when_it_ends(host: &Host) {
    let mut field = siege::open(host, 't', 7, (16, 8)).expect("the proxy opens");
    let at_rest = field.come_to_rest(Duration::from_secs(90)).expect("nothing goes on");
    field.begin_honest(Pace::Open { rate: 1_000.0 }, |_| ());
    let flood = field.attack_settings(Kind::Syn, 500_000.0, false, 0);
    field.begin_attack(flood);
    field.run(Duration::from_millis(200));
    assert!(field.attacker().is_some_and(|attacker| attacker.stats().sent > 50_000));
    // Two hundred honest connections have been offered; each is a matter of microseconds.
    assert!(field.completed() > 0);
    field.stop_attack();
    let completed = field.completed();
    field.run(Duration::from_secs(1));
    assert!(
        field.completed() - completed > 900,
        "{} in a second",
        field.completed() - completed
    );
    assert_eq!(field.come_to_rest(Duration::from_secs(90)), Some(at_rest));
}

/// Connections that a client may have at once: the one of the connections that stay has nearly as many.
const AT_ONCE: u32 = 320;

/// Addresses of attackers with connections.
const ATTACKERS: u32 = 16;

/// The attack's connections a second: in half a second twice as many as the attackers may have.
const CONNECTING: f64 = 20_000.0;

fn with_client_limit(limit: &str, text: String) -> String {
    let limit = format!("name = \"bench\"\nclient_limit = {{ {limit} }}\n");
    siege::impatient(text).replace("name = \"bench\"\n", &limit)
}

fn few_at_once(text: String) -> String {
    with_client_limit(&format!("connections = {AT_ONCE}, rate = 100000"), text)
}

fn few_a_second(text: String) -> String {
    with_client_limit(&format!("rate = {AT_ONCE}"), text)
}

/// Limits that the attackers reach soon, and nobody else does, hold them back to what `most_of_client` says of the seconds that the
/// attack has lasted.
fn limits_hold_attackers_back_and_nobody_else(
    host: &Host,
    (name, adjust): (char, fn(String) -> String),
    most_of_client: impl Fn(f64) -> u32,
) {
    let mut field = siege::open_with(host, name, (7, (16, 8)), adjust).expect("the proxy opens");
    let at_rest = field.come_to_rest(Duration::from_secs(90)).expect("nothing goes on");
    let refused = |field: &siege::Field| -> u64 {
        let drops = field.drops().into_iter();
        drops
            .filter(|(reason, _)| reason == "client_limit")
            .map(|(_, count)| count)
            .sum()
    };
    field.begin_honest(Pace::Open { rate: 2_000.0 }, |_| ());
    field.run(Duration::from_millis(50));
    assert_eq!(refused(&field), 0);
    let attack = field.attack_settings(Kind::Holder, CONNECTING, false, 20_000);
    field.begin_attack(attack);
    let began = field.now;
    field.run(Duration::from_millis(500));
    field.hush_attack();
    field.stop_honest();
    let is_over = |field: &siege::Field| field.honest().is_none_or(|honest| honest.open().0 == 0);
    assert!(field.rest(Duration::from_secs(10), is_over), "honest clients are stuck");
    let lasted = (field.now - began).as_secs_f64();
    // All that is open now stays or is of attackers.
    let held = field.usage("connections") - siege::STEADY_PORTS.len() as u64;
    let most = u64::from(ATTACKERS * most_of_client(lasted));
    assert!((most / 2..=most).contains(&held), "{held} of {most}");
    assert!(refused(&field) > 1_000, "{} refused", refused(&field));
    let honest = field
        .honest()
        .and_then(|honest| honest.client_stats())
        .expect("honest clients");
    let (completed, failed) = (honest.connections.completed, honest.connections.failed_in_all());
    assert!(completed > 900 && failed == 0, "{completed} completed, {failed} failed");
    assert_eq!((field.steady_failed(), field.wrong_of_honest()), (0, 0));
    assert_eq!(field.come_to_rest(Duration::from_secs(90)), Some(at_rest));
}
