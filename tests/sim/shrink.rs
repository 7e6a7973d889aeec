//! A failure, made as small as it still fails.

use crate::check::Report;
use crate::headers::Incoming;
use crate::scenario::{Fate, Scenario};
use crate::world;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use testkit::sim::SynOptions;

/// Simulations that making one smaller may take.
const MOST_RUNS: usize = 150;

/// Runs a scenario; a panic is a fault as well.
pub fn run(scenario: &Scenario, capture: Option<&Path>) -> Report {
    catch_unwind(AssertUnwindSafe(|| world::run(scenario, capture))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Report {
            faults: vec![format!("panic: {}", text.unwrap_or_default())],
            ..Report::default()
        }
    })
}

/// The smallest scenario found that fails like `scenario`, which does.
pub fn smallest(scenario: &Scenario) -> Scenario {
    let mut smallest = scenario.clone();
    let mut runs = 0;
    let kind = kind_of(&run(scenario, None));
    loop {
        let fails = |candidate: &Scenario| {
            runs += 1;
            runs <= MOST_RUNS && kind_of(&run(candidate, None)) == kind
        };
        let Some(smaller) = candidates(&smallest).find(fails) else {
            return smallest;
        };
        smallest = smaller;
    }
}

/// What a failure is about: its first line without the numbers in it. Another failure is not a smaller one.
fn kind_of(report: &Report) -> Option<String> {
    let first = report.faults.first()?.lines().next()?;
    Some(first.chars().filter(|c| !c.is_ascii_digit()).collect())
}

/// Smaller scenarios, the boldest first.
fn candidates(scenario: &Scenario) -> impl Iterator<Item = Scenario> + use<> {
    let count = scenario.connections.len();
    let mut parts = Vec::new();
    let mut size = count / 2;
    while size > 0 {
        for at in (0..count).step_by(size) {
            parts.push((at, (at + size).min(count)));
        }
        size /= 2;
    }
    let fewer = {
        let scenario = scenario.clone();
        parts.into_iter().map(move |(from, to)| {
            let mut smaller = scenario.clone();
            smaller.connections.drain(from..to);
            smaller
        })
    };
    let changes: [fn(&mut Scenario); 14] = [
        |s| s.headers.incoming = Incoming::Off,
        |s| s.headers.outgoing = None,
        |s| s.links_mut().into_iter().for_each(|link| link.loss /= 2),
        |s| s.links_mut().into_iter().for_each(|link| link.duplicate /= 2),
        |s| s.links_mut().into_iter().for_each(|link| link.reorder /= 2),
        |s| s.links_mut().into_iter().for_each(|link| link.corrupt /= 2),
        |s| s.links_mut().into_iter().for_each(|link| link.truncate /= 2),
        |s| s.links_mut().into_iter().for_each(|link| link.outages.clear()),
        |s| s.servers.iter_mut().for_each(|server| server.fate = Fate::Well),
        |s| s.servers.iter_mut().for_each(|server| server.options = SynOptions::ALL),
        |s| s.clients = [SynOptions::ALL; 2],
        |s| {
            s.connections
                .iter_mut()
                .for_each(|plan| plan.to_client = plan.to_client.div_ceil(2))
        },
        |s| {
            for plan in &mut s.connections {
                plan.to_server = plan.to_server.div_ceil(2);
                plan.needs = plan.needs.min(plan.to_server);
                plan.server.speaks_after = plan.server.speaks_after.min(plan.to_server);
            }
        },
        |s| s.links_mut().into_iter().for_each(|link| link.jitter_us = 0),
    ];
    let scenario = scenario.clone();
    let milder = changes.into_iter().filter_map(move |change| {
        let mut smaller = scenario.clone();
        change(&mut smaller);
        (format!("{smaller:?}") != format!("{scenario:?}")).then_some(smaller)
    });
    fewer.filter(|smaller| !smaller.connections.is_empty()).chain(milder)
}

/// Everything that a reader needs to look into a failure.
pub fn explain(scenario: &Scenario) -> String {
    let minimal = smallest(scenario);
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!(
        "sim-{:?}{}-{}.pcapng",
        scenario.binding,
        if scenario.is_rewritten { "-rewritten" } else { "" },
        scenario.seed
    ));
    let report = run(&minimal, Some(&path));
    format!(
        "seed {}: {} faults; smallest scenario that fails:\n{minimal:#?}\n{}\ndrops {:?}\nframes at the engine's ports: {}",
        scenario.seed,
        report.faults.len(),
        report.faults.join("\n"),
        report.drops,
        path.display()
    )
}
