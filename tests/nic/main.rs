//! The engine on PCI cards that QEMU emulates: the way of a user on one, RSS on another, and a third that stays with Linux and
//! may not notice. One emulated machine, booted once; `./build.sh nic-lab` does more.

#![cfg(feature = "dpdk")]

use std::env;
use std::path::{Path, PathBuf};

use rig::lab::walk::{self, Binding, Programs, Walk};
use rig::lab::{self, Iommu, Machine, Model, rss};
use rig::{Place, Rig, RigOptions};

/// Connections of the RSS part; the lab itself makes five times as many.
const CONNECTIONS: usize = 2_000;

/// The way with its 72 requests, ssh, a pulled cable, a killed process, large tagged frames and the card given back; then every
/// packet of so many connections at the queue that the engine has forecast.
#[test]
fn cards_are_driven_as_documented() {
    const NAME: &str = "cards_are_driven_as_documented";
    let prepared = match rig::requirements(walk::TOOLS).and_then(|()| lab::prepare()) {
        Ok(prepared) => prepared,
        // Not every machine can have QEMU, or a kernel for it.
        Err(reason) => return rig::lacking(NAME, &reason),
    };
    let programs = Programs {
        engine: env!("CARGO_BIN_EXE_proxyengine").to_owned(),
        demo: demo_command(&env::current_exe().expect("this program")),
    };
    let host = Rig::new(RigOptions::default()).unwrap_or_else(|error| panic!("the rig does not come up: {error}"));
    rss::lay_tap(&host).unwrap_or_else(|error| panic!("no TAP: {error}"));
    let (way, queues) = (Walk::on(Model::E1000e, Binding::Vfio), lab::card_with_queues(2));
    let cards = [way.cards(), vec![queues]].concat();
    let place = Place::Switch.name(host.prefix());
    let mut machine = Machine::boot(&prepared, Iommu::PassThrough, &cards, Some(&place))
        .unwrap_or_else(|error| panic!("the machine does not boot: {error}"));

    let shown = walk::walk(&mut machine, &way, &programs).unwrap_or_else(|error| panic!("no answer: {error}"));
    assert!(shown.faults.is_empty(), "{}\n{:#?}", shown.transcript, shown.faults);
    assert_eq!(shown.requests, [72, 0, 0]);

    let steered = rss::steer(&mut machine, &host, &queues, &programs, CONNECTIONS)
        .unwrap_or_else(|error| panic!("no answer: {error}"));
    assert!(steered.faults.is_empty(), "{steered:#?}");
    assert_eq!((steered.connections, steered.mis_steered), (CONNECTIONS as u64, 0));
}

/// This program's other test, with the words that [`Programs::demo`] is given, in that order.
fn demo_command(program: &Path) -> String {
    let test = format!(
        "{} --ignored --exact demo_in_the_machine --nocapture",
        program.display()
    );
    format!("sh -c 'LAB_ENGINE=$4 LAB_CONFIG=$6 LAB_JSON=$8 exec {test}' demo")
}

/// What the emulated machine runs of this program: the demo's requests, on the card.
#[test]
#[ignore = "runs in the emulated machine"]
fn demo_in_the_machine() {
    let file = |name: &str| env::var_os(name).map(PathBuf::from);
    let (Some(engine), Some(config), Some(json)) = (file("LAB_ENGINE"), file("LAB_CONFIG"), file("LAB_JSON")) else {
        return rig::lacking("demo_in_the_machine", "this is not the emulated machine");
    };
    assert_eq!(rig::demo::on_rig("pe", &engine, &config, &json), Ok(true));
}
