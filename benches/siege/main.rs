//! The benches of the engine's own core under attack, which one program has together: the first argument is the name of one.

use std::process::ExitCode;

use clap::Parser;

mod attack;
#[path = "../device/shared/mod.rs"]
mod device;
#[path = "shared/mod.rs"]
mod siege;
mod soak;

/// Benches of the engine's own core under attack.
#[derive(Parser)]
enum Bench {
    Attack(attack::Arguments),
    Soak(soak::Arguments),
}

fn main() -> ExitCode {
    device::cli::one_of(|bench| match bench {
        Bench::Attack(arguments) => attack::run(&arguments),
        Bench::Soak(arguments) => soak::run(&arguments),
    })
}
