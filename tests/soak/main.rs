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
