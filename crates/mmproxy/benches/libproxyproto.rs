//! `./build.sh bench libproxyproto --json FILE`: a server with and without the preloaded library: its rate, and its CPU time
//! per gigabyte and connection. The work is done by `mmproxy-bench preload`.

use std::path::Path;
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    if !arguments.iter().any(|argument| argument == "--bench") {
        return ExitCode::SUCCESS;
    }
    arguments.retain(|argument| argument != "--bench");
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("release");
    let built = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--release", "-p", "libproxyproto"])
        .status();
    if !built.is_ok_and(|status| status.success()) {
        eprintln!("libproxyproto cannot be built");
        return ExitCode::FAILURE;
    }
    let status = Command::new(env!("CARGO_BIN_EXE_mmproxy-bench"))
        .args(["preload", "--library"])
        .arg(target.join("libproxyproto.so"))
        .args(arguments)
        .status();
    if status.is_ok_and(|status| status.success()) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
