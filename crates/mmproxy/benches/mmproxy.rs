//! `./build.sh bench mmproxy --json FILE`: mmproxy against its peers. The work is done by `mmproxy-bench`, which is a
//! program of its own so that it can be used anywhere, and is tested; this finds it and its peers.
//!
//! mmproxy-rs is installed from its crate into the target folder, as it pins its dependencies (`--locked`); go-mmproxy,
//! HAProxy and nginx are Debian's packages and are left out, with a line that says so, where they are not installed.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    // `cargo test --all-targets` runs this too, without the argument that cargo bench gives.
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    if !arguments.iter().any(|argument| argument == "--bench") {
        return ExitCode::SUCCESS;
    }
    arguments.retain(|argument| argument != "--bench");
    let mut command = Command::new(env!("CARGO_BIN_EXE_mmproxy-bench"));
    command.args(arguments);
    if std::env::var_os("MMPROXY_RS").is_none()
        && let Some(program) = mmproxy_rs()
    {
        command.env("MMPROXY_RS", program);
    }
    for (program, package) in [
        ("go-mmproxy", "go-mmproxy"),
        ("haproxy", "haproxy"),
        ("nginx", "nginx-light libnginx-mod-stream"),
    ] {
        if !["/usr/bin", "/usr/sbin"]
            .iter()
            .any(|folder| Path::new(folder).join(program).exists())
        {
            eprintln!("{program} is left out: apt-get install {package}");
        }
    }
    match command.status() {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("mmproxy-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The peer's program, installed at the first use.
fn mmproxy_rs() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("peers");
    let program = root.join("bin/mmproxy");
    if !program.exists() {
        eprintln!("installing mmproxy-rs 0.2.2 into {}", root.display());
        let install = Command::new(env!("CARGO"))
            .args([
                "install",
                "--quiet",
                "mmproxy",
                "--version",
                "0.2.2",
                "--locked",
                "--root",
            ])
            .arg(&root)
            // It would build there a program of the same name as ours, and move it away.
            .env_remove("CARGO_TARGET_DIR")
            .env_remove("CARGO_BUILD_TARGET_DIR")
            .status();
        if !install.is_ok_and(|status| status.success()) {
            eprintln!("mmproxy-rs is left out: it cannot be installed");
            return None;
        }
    }
    Some(program)
}
