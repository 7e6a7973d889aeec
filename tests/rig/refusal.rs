//! What cannot work is refused with a sentence, before any port is opened.

use std::fs;
use std::process::Command;
use std::time::Duration;

use rig::{Place, Rig, RigError, RigOptions, process};

use crate::setup::{LIMIT, binary};

/// A configuration that would work but for the device, which does not exist: who complains of anything else has looked
/// at the configuration before it opened ports.
const GOOD: &str = r#"
[engine]
cores = [0]

[[port]]
name = "cable"
device = "net_af_packet0,iface=pe-none"
addresses = ["10.77.0.1/24"]

[[listener]]
name = "web"
addresses = ["10.77.0.1:80"]
default = "web"

[[pool]]
name = "web"
servers = [{ name = "one", address = "10.77.0.11:80" }]
"#;

/// What the engine says of a configuration: it has to end by itself, with an error.
fn complaint_about(text: &str, subcommand: &str) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("wrong.toml");
    fs::write(&file, text).expect("written");
    let mut engine = Command::new(binary());
    engine.arg(subcommand).arg(&file);
    match process::run(&mut engine, b"", Duration::from_secs(20)) {
        Err(RigError::Failed { output, status, .. }) => {
            assert!(
                status.code().is_some_and(|code| code != 101),
                "a panic or a signal: {status}\n{output}"
            );
            assert!(!output.contains("panicked"), "{output}");
            output
        }
        other => panic!("expected a refusal, not {other:?}"),
    }
}

#[test]
fn a_wrong_configuration_is_named_by_file_key_and_value() {
    let cases = [
        ("cores = [0]", "cores = [0]\ncoars = 1", &["coars"][..]),
        ("cores = [0]", "cores = [-1]", &["cores", "-1"]),
        (
            "cores = [0]",
            "cores = [0]\nidle = \"sometimes\"",
            &["idle", "sometimes"],
        ),
        ("10.77.0.1/24", "10.77.0.1/33", &["addresses", "10.77.0.1/33"]),
        ("10.77.0.1:80", "10.77.0.1:99999", &["addresses", "10.77.0.1:99999"]),
        ("10.77.0.1:80", "127.0.0.1:80", &["addresses", "127.0.0.1:80"]),
        ("default = \"web\"", "default = \"wob\"", &["default", "wob"]),
        ("10.77.0.11:80", "10.77.0.11", &["address", "10.77.0.11"]),
        ("name = \"one\", ", "", &["name"]),
        ("[engine]", "[engine", &["wrong.toml:2"]),
    ];
    for (right, wrong, named) in cases {
        assert!(GOOD.contains(right));
        for subcommand in ["run", "check"] {
            let complaint = complaint_about(&GOOD.replacen(right, wrong, 1), subcommand);
            for word in named.iter().chain(&["wrong.toml"]) {
                assert!(
                    complaint.contains(word),
                    "{subcommand}: {wrong:?}: no {word:?} in\n{complaint}"
                );
            }
            assert!(!complaint.contains("pe-none"), "a port was opened before:\n{complaint}");
        }
    }
}

#[test]
fn a_missing_file_is_named() {
    let error = process::run(Command::new(binary()).args(["run", "/nowhere/x.toml"]), b"", LIMIT).expect_err("no file");
    assert!(error.to_string().contains("/nowhere/x.toml"), "{error}");
}

#[test]
fn a_missing_device_is_named_with_what_to_do() {
    let Some(rig) = Rig::for_test(RigOptions::default(), &[]) else {
        return;
    };
    let file = rig.file("engine.toml");
    fs::write(&file, GOOD).expect("written");
    let arguments = ["run", &file.to_string_lossy()];
    let error = rig
        .run(Place::Engine, &binary().to_string_lossy(), &arguments, LIMIT)
        .expect_err("no device");
    assert!(matches!(error, RigError::Failed { .. }), "{error}");
    assert!(error.to_string().contains("pe-none"), "{error}");
}
