//! The programs of the rig that are not tests.

use std::process::ExitCode;

use clap::Parser;
use rig::demo::{self, DemoOptions};

/// Programs of the software rig.
#[derive(Parser)]
#[command(version)]
enum Arguments {
    /// Show real clients reaching the server that their first payload names. `build.sh demo` calls it.
    Demo(DemoOptions),
}

fn main() -> ExitCode {
    let Arguments::Demo(options) = Arguments::parse();
    match demo::run(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(reason) => {
            eprintln!("demo: {reason}");
            ExitCode::FAILURE
        }
    }
}
