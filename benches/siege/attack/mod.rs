//! `./build.sh bench attack`: what honest clients get while others attack, and what an attack leaves behind.
//!
//! The engine's own core runs inline between the load's hosts, in the time of its own work (`benches/siege`): what an
//! attack costs is counted in cycles, and a flood at half of the core's capacity is that whatever the machine does
//! meanwhile. `docs/traffic.md` describes conditions and fields.

use std::time::Duration;

use benchkit::median;
use trafficengine::Pace;

mod result;
mod rows;
mod servers;

use crate::device::cli::Common;
use crate::device::{BoxError, Conditions, Host};
use crate::siege::{Field, conditions, impatient};
use result::{AttackResult, Capacity};
use rows::{Row, Rows};

/// Connections under attack.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// How long each attack lasts, in seconds of the core's own time.
    #[arg(long, default_value_t = 1.5)]
    seconds: f64,
    /// In how many turns, with honest load alone before each.
    #[arg(long, default_value_t = 3)]
    turns: u32,
    /// Only rows whose name contains this; `capacity` is what the core can do of honest connections and of SYNs alone.
    #[arg(long, default_value = "")]
    only: String,
    /// Start of all random numbers.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    common: Common,
}

/// Returns whether every bar was met.
pub(crate) fn run(arguments: &Arguments) -> Result<bool, BoxError> {
    if !(0.05..=3600.0).contains(&arguments.seconds) || !(1..=100).contains(&arguments.turns) {
        return Err("--seconds: expected 0.05 to 3600, and --turns 1 to 100".into());
    }
    arguments.common.pin()?;
    // Two proxies at once when they are compared.
    let host = Host::start(2, 1500)?;
    let rows = Rows {
        attack: Duration::from_secs_f64(arguments.seconds / f64::from(arguments.turns)),
        turns: arguments.turns,
        only: &arguments.only,
    };
    let mut result = AttackResult::default();
    floods(&host, arguments, &rows, &mut result)?;
    exhaustions(&host, arguments, &rows, &mut result)?;
    servers::run(&host, arguments.seconds, arguments.seed, &rows, &mut result)?;
    result.judge();
    println!("{result}");
    arguments.common.write(&result)?;
    Ok(result.met)
}

/// What the core can do, and attacks, on a proxy with room for all.
fn floods(host: &Host, arguments: &Arguments, rows: &Rows<'_>, result: &mut AttackResult) -> Result<(), BoxError> {
    if !rows.wants(CAPACITY) && !rows.wants_floods() {
        return Ok(());
    }
    let conditions = conditions();
    let never: fn(String) -> String =
        |text| impatient(text).replace("max_connections", "overload_after = \"0s\"\nmax_connections");
    let open = |name, adjust: fn(String) -> String| -> Result<Field, BoxError> {
        Field::new(host.open_ends(name, &conditions, adjust)?, &conditions, arguments.seed)
    };
    let (mut unguarded, mut field) = (open('a', never)?, open('b', impatient)?);
    if rows.wants(CAPACITY) {
        result.capacity = Some(capacity((&mut field, &mut unguarded), arguments.turns));
    }
    rows.floods((&mut field, &mut unguarded), result);
    result.count_rounds(&field);
    Ok(())
}

/// The row of no attack.
const CAPACITY: &str = "capacity";

/// What a core can do of honest connections, with guarding against overload and without, and of SYNs.
fn capacity((field, unguarded): (&mut Field, &mut Field), turns: u32) -> Capacity {
    let pairs: Vec<(f64, f64)> = (0..2 * turns + 1)
        .map(|_| (rows::honest_maximum(field), rows::honest_maximum(unguarded)))
        .collect();
    let overload = field.drops().into_iter().find(|(name, _)| name == "overload");
    let cycles = rows::cycles_per_syn(unguarded);
    let syn_capacity = field.hz() / cycles;
    let per_syn = rows::state_per_syn(field, 0.5 * syn_capacity);
    Capacity {
        honest_maximum_per_second: median(&pairs.iter().map(|pair| pair.0).collect::<Vec<_>>()),
        syn_capacity_per_second: syn_capacity,
        cycles_per_syn: cycles,
        honest_maximum_ratio: median(&pairs.iter().map(|(with, without)| with / without).collect::<Vec<_>>()),
        overload_drops_at_honest_maximum: overload.map_or(0, |(_, count)| count),
        per_syn,
    }
}

/// Attacks on a proxy that has too little of something, at a load that it has enough for.
fn exhaustions(host: &Host, arguments: &Arguments, rows: &Rows<'_>, result: &mut AttackResult) -> Result<(), BoxError> {
    let usual = conditions();
    let few = |name, connections: u32, ports: &'static str| -> Result<Field, BoxError> {
        let conditions = Conditions {
            capacity: connections,
            ..usual
        };
        let adjust = move |text: String| impatient(text).replace("[[pool]]", &format!("[[pool]]\n{ports}"));
        Field::new(host.open_ends(name, &conditions, adjust)?, &conditions, arguments.seed)
    };
    if rows.wants("table full") {
        let mut field = few('c', 16_384, "")?;
        rows.exhaust(&mut field, Row::TABLE_FULL, result);
    }
    if rows.wants("ports exhausted") {
        let mut field = few('d', 65_536, "local_ports = \"20000-22047\"")?;
        rows.exhaust(&mut field, Row::PORTS, result);
    }
    if rows.wants("buffers exhausted") {
        let mut field = few('e', 65_536, "")?;
        rows.exhaust(&mut field, Row::BUFFERS, result);
    }
    Ok(())
}

/// An honest load that never waits for anything.
fn closed(open: u32) -> Pace {
    Pace::Closed { open }
}
