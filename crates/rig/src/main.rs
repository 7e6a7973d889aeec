//! The programs of the rig that are not tests.

use std::path::PathBuf;
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
    /// The demo on the rig `pe`, as the NIC lab runs it in its machine.
    #[command(hide = true)]
    NicLabDemo {
        /// The engine's program.
        engine: PathBuf,
        /// The engine's configuration.
        config: PathBuf,
        /// Where the totals are written to.
        json: PathBuf,
    },
}

fn main() -> ExitCode {
    let (name, ended) = match Arguments::parse() {
        Arguments::Demo(options) => ("demo", demo::run(&options)),
        Arguments::NicLab(options) => ("nic-lab", lab::run(&options)),
        Arguments::NicLabDemo { engine, config, json } => ("demo", demo::on_rig("pe", &engine, &config, &json)),
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
