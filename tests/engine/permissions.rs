//! Who may ask a running engine, and who may change something: by the socket's mode, and by who is at its other end.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};

use control::http::Endpoint;
use proxyengine::config::ControlConfig;
use proxyengine::log_levels::LogLevels;
use proxyengine::status;

use crate::proxy::Bench;
use crate::wire::assert_in_order;

const NOBODY: u32 = 65_534;

/// What `ctl` says to a user of this group who is not the engine's.
fn ctl_as(group: u32, program: &Path, socket: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(program);
    command.arg("ctl").arg("--socket").arg(socket).args(arguments);
    // Its working directory may be nobody's.
    command.current_dir("/").uid(NOBODY).gid(group);
    command.output().expect("ctl runs")
}

#[test]
fn the_group_reads_and_only_the_engines_user_changes_something() {
    if !rustix::process::geteuid().is_root() {
        return rig::skip("engine::permissions", "not root: nobody else can be asked as");
    }
    let bench = Bench::start("proxy-permissions", None);
    let folder = tempfile::tempdir().expect("a folder");
    let open = fs::Permissions::from_mode(0o755);
    fs::set_permissions(folder.path(), open.clone()).expect("chmod");
    // Where the program was built is not for everybody.
    let program = folder.path().join("proxyengine");
    fs::copy(env!("CARGO_BIN_EXE_proxyengine"), &program).expect("a copy");
    fs::set_permissions(&program, open).expect("chmod");
    let socket = folder.path().join("control");
    let config = ControlConfig {
        socket: Some(Endpoint::Unix(socket.clone())),
        ..ControlConfig::default()
    };
    let server = status::listen(&config).expect("a socket").expect("a server");
    let running = status::serve(server, bench.engine.watch(), LogLevels::default(), None).expect("a thread");
    let of_group = |arguments: &[&str]| ctl_as(0, &program, &socket, arguments);
    let shown = of_group(&["show", "connections", "--json"]);
    assert!(shown.status.success() && shown.stdout == b"[]\n", "{shown:?}");
    for change in [
        &["records", "off"][..],
        &["kill", "server", "one"],
        &["set", "log-level", "debug"],
        &["capture", "start", "--file", "capture.pcapng"],
    ] {
        let refused = of_group(change);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && said.contains("403"), "{change:?}: {said}");
    }
    let stranger = ctl_as(NOBODY, &program, &socket, &["show", "cores"]);
    let said = String::from_utf8_lossy(&stranger.stderr).into_owned();
    assert!(!stranger.status.success() && said.contains("denied"), "{said}");
    let root = Command::new(&program)
        .arg("ctl")
        .arg("--socket")
        .arg(&socket)
        .args(["kill", "server", "one"])
        .output();
    assert_eq!(root.expect("ctl runs").stdout, b"0 connections ended\n");
    drop(running);
    assert_in_order(&bench.engine.shutdown());
}
