//! The programs of the rig that are not tests.

use std::process::ExitCode;

use clap::Parser;
use rig::demo::{self, DemoOptions};
use rig::lab::{self, NicLabOptions};

/// Programs of the software rig.
#[derive(Parser)]
#[command(version)]
enum Arguments {
    /// Show real clients reaching the server that their first payload names. `build.sh demo` calls it.
    Demo(DemoOptions),
    /// Go a user's way on emulated PCI cards. `build.sh nic-lab` calls it.
    NicLab(NicLabOptions),
}

fn main() -> ExitCode {
    let (name, ended) = match Arguments::parse() {
        Arguments::Demo(options) => ("demo", demo::run(&options)),
        Arguments::NicLab(options) => ("nic-lab", lab::run(&options)),
    };
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(reason) => {
            eprintln!("{name}: {reason}");
            ExitCode::FAILURE
        }
    }
}
