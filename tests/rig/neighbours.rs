//! What Linux asks of a neighbour: ARP, IPv6 neighbour discovery and ping.

use rig::engine::EngineOptions;
use rig::{Arms, Place, Rig, RigOptions};

use crate::setup::{LIMIT, Setup, family_option};

/// The addresses at which the stack at a place finds the engine.
fn engine_addresses_at(rig: &Rig, place: Place) -> [std::net::IpAddr; 2] {
    if place == Place::Servers {
        rig.engine_addresses_for_servers()
    } else {
        rig.engine_addresses()
    }
}

fn check_neighbour(rig: &Rig, place: Place, mac: &str) {
    for address in engine_addresses_at(rig, place) {
        let family = family_option(address);
        rig.run(place, "ip", &[family, "neighbour", "flush", "dev", "eth0"], LIMIT)
            .expect("forgotten");
        // One at a time: among several, ping waits for the last answer only twice as long as the others took.
        for size in ["0", "56", "700", "1300", "1400"] {
            let arguments = [family, "-n", "-c", "1", "-W", "5", "-s", size, &address.to_string()];
            rig.run(place, "ping", &arguments, LIMIT).expect("ping is answered");
        }
        let known = rig
            .run(place, "ip", &[family, "neighbour", "show", &address.to_string()], LIMIT)
            .expect("ip")
            .text();
        assert!(known.contains(&format!("lladdr {mac}")), "{known}");
    }
}

#[test]
fn linux_finds_and_pings_the_engine() {
    let Some(setup) = Setup::new(RigOptions::default(), &EngineOptions::default(), &[], |_| Vec::new()) else {
        return;
    };
    check_neighbour(&setup.rig, Place::Clients, "02:00:00:77:00:01");
    check_neighbour(&setup.rig, Place::Servers, "02:00:00:77:00:01");
    setup.finish();
}

#[test]
fn linux_finds_and_pings_each_of_two_arms() {
    let options = RigOptions {
        arms: Arms::Two,
        ..RigOptions::default()
    };
    let Some(setup) = Setup::new(options, &EngineOptions::default(), &[], |_| Vec::new()) else {
        return;
    };
    check_neighbour(&setup.rig, Place::Clients, "02:00:00:77:00:01");
    check_neighbour(&setup.rig, Place::Servers, "02:00:00:77:01:01");
    setup.finish();
}

#[test]
fn nobody_answers_for_addresses_that_are_not_the_engines() {
    let Some(setup) = Setup::new(RigOptions::default(), &EngineOptions::default(), &[], |_| Vec::new()) else {
        return;
    };
    for address in ["10.77.0.2", "fd77::2"] {
        let arguments = ["-n", "-c", "1", "-W", "1", address];
        setup
            .rig
            .run(Place::Clients, "ping", &arguments, LIMIT)
            .expect_err("nobody is there");
        let known = setup
            .rig
            .run(Place::Clients, "ip", &["neighbour", "show", address], LIMIT)
            .expect("ip")
            .text();
        assert!(!known.contains("lladdr"), "{known}");
    }
    setup.finish();
}
