//! The benches of the engine's own core on ring ports, which one program has together: the first argument is the name of one.

use std::process::ExitCode;

use clap::Parser;

mod capture;
mod cockpit;
mod cps;
#[path = "shared/mod.rs"]
mod device;
mod latency;
mod records;
mod reload;
mod scale;
mod scaling;
mod splice;

/// Benches of the engine's own core.
#[derive(Parser)]
enum Bench {
    Capture(capture::Arguments),
    Cockpit(cockpit::Arguments),
    Cps(cps::Arguments),
    Latency(latency::Arguments),
    Records(records::Arguments),
    Reload(reload::Arguments),
    Scale(scale::Arguments),
    Scaling(scaling::Arguments),
    Splice(splice::Arguments),
}

fn main() -> ExitCode {
    device::cli::one_of(|bench| match bench {
        Bench::Capture(arguments) => capture::run(&arguments),
        Bench::Cockpit(arguments) => cockpit::run(&arguments),
        Bench::Cps(arguments) => cps::run(&arguments),
        Bench::Latency(arguments) => latency::run(&arguments),
        Bench::Records(arguments) => records::run(&arguments),
        Bench::Reload(arguments) => reload::run(&arguments),
        Bench::Scale(arguments) => scale::run(&arguments),
        Bench::Scaling(arguments) => scaling::run(&arguments),
        Bench::Splice(arguments) => splice::run(&arguments),
    })
}
