//! `prepNet.sh`, `prepNet.uio.sh` and `build.sh` as a person calls them.

use std::process::Command;
use std::time::Duration;

use rig::process;

const LIMIT: Duration = Duration::from_secs(30);

/// Calls a script of the project's root; returns its exit code and all it has printed.
fn call(script: &str, arguments: &[&str]) -> (i32, String) {
    let path = format!("{}/../../{script}", env!("CARGO_MANIFEST_DIR"));
    let output = Command::new(path)
        .args(arguments)
        .current_dir("/")
        .output()
        .expect("the script runs");
    let printed = [output.stdout, output.stderr].concat();
    (
        output.status.code().expect("no signal"),
        String::from_utf8_lossy(&printed).into_owned(),
    )
}

fn namespaces() -> String {
    process::run(Command::new("ip").args(["netns", "list"]), b"", LIMIT)
        .map(|output| output.text())
        .unwrap_or_default()
}

#[test]
fn wrong_arguments_are_refused_with_a_sentence() {
    let cases: [(&[&str], &str); 12] = [
        (&["fly"], "unknown verb 'fly'"),
        (&["up"], "which cable?"),
        (&["up", "--soft", "--pci", "07:00.0"], "exclude each other"),
        (
            &["up", "--soft", "--mtu", "1279"],
            "--mtu '1279': expected 1280 to 9000",
        ),
        (&["up", "--soft", "--mtu", "9001"], "--mtu '9001'"),
        (&["up", "--soft", "--prefix", "a b"], "--prefix 'a b'"),
        (&["up", "--soft", "--prefix", "../x"], "--prefix '../x'"),
        (&["up", "--soft", "--linux-if", "eth9"], "--linux-if goes with --pci"),
        (&["up", "--pci", "07:00.0"], "0 × --linux-if given: expected 1"),
        (
            &["up", "--pci", "07:00.0", "--linux-if", "a", "--two-armed"],
            "1 × --pci given: expected 2",
        ),
        (&["up", "--pci"], "--pci needs a value"),
        (&["status", "--loud"], "unknown option '--loud'"),
    ];
    for (arguments, sentence) in cases {
        for script in ["prepNet.sh", "prepNet.uio.sh"] {
            let (code, printed) = call(script, arguments);
            assert_ne!(code, 0, "{arguments:?}");
            assert!(printed.contains(sentence), "{arguments:?}: {printed}");
        }
    }
}

#[test]
fn a_dry_run_prints_every_step_and_does_none() {
    let (code, printed) = call(
        "prepNet.sh",
        &["up", "--soft", "--two-armed", "--dry-run", "--prefix", "pet-dry"],
    );
    assert_eq!(code, 0, "{printed}");
    for step in [
        "ip netns add pet-dry-engine",
        "pe-eng1",
        "ethtool -K",
        "10.77.1.11/24",
        "fd77::101/64",
    ] {
        assert!(printed.contains(step), "{step} in {printed}");
    }
    // Others may be made beside this test.
    assert!(!namespaces().contains("pet-dry"), "{}", namespaces());
}

#[test]
fn a_nic_is_bound_and_its_cable_connected_in_the_order_that_works() {
    let common = [
        "up",
        "--dry-run",
        "--pci",
        "ff:1f.7",
        "--linux-if",
        "nosuch0",
        "--prefix",
        "pet-dry",
    ];
    for (script, driver) in [("prepNet.sh", "vfio-pci"), ("prepNet.uio.sh", "igb_uio")] {
        let (code, printed) = call(script, &common);
        assert_eq!(code, 0, "{printed}");
        let steps = [
            format!("modprobe --quiet {driver}"),
            format!("dpdk-devbind.py --bind={driver} 0000:ff:1f.7"),
            "ip link set nosuch0 netns pet-dry-switch".to_owned(),
            "ip -n pet-dry-switch link set nosuch0 mtu 1500 master br0 up".to_owned(),
        ];
        let mut rest = printed.as_str();
        for step in steps {
            let place = rest
                .find(&step)
                .unwrap_or_else(|| panic!("{step} in its place in {printed}"));
            rest = &rest[place..];
        }
    }
}

#[test]
fn the_nic_of_the_default_route_is_refused() {
    const NAME: &str = "the_nic_of_the_default_route_is_refused";
    let routes = process::run(Command::new("ip").args(["route", "show", "default"]), b"", LIMIT);
    let text = routes.map(|output| output.text()).unwrap_or_default();
    let Some(interface) = text.split_whitespace().skip_while(|&word| word != "dev").nth(1) else {
        return rig::lacking(NAME, "this machine has no default route");
    };
    let (code, printed) = call(
        "prepNet.sh",
        &[
            "up",
            "--dry-run",
            "--pci",
            "ff:1f.7",
            "--linux-if",
            interface,
            "--prefix",
            "pet-dry",
        ],
    );
    assert_eq!(code, 1);
    assert!(
        printed.contains(&format!("--linux-if {interface}: it carries the default route")),
        "{printed}"
    );

    let device = std::fs::canonicalize(format!("/sys/class/net/{interface}/device")).unwrap_or_default();
    let is_pci_address = |part: &&str| part.len() == 12 && part.matches(':').count() == 2;
    let path = device.to_string_lossy().into_owned();
    let Some(address) = path.split('/').rfind(is_pci_address) else {
        return rig::lacking(NAME, "the default route is not on a PCI device");
    };
    let (code, printed) = call(
        "prepNet.sh",
        &[
            "up",
            "--dry-run",
            "--pci",
            address,
            "--linux-if",
            "nosuch0",
            "--prefix",
            "pet-dry",
        ],
    );
    assert_eq!(code, 1);
    assert!(
        printed.contains("carries the default route; it stays with the kernel"),
        "{printed}"
    );
}

#[test]
fn up_and_down_may_be_said_twice() {
    if let Err(reason) = rig::requirements(&[]) {
        return rig::skip("up_and_down_may_be_said_twice", &reason);
    }
    // Named after this process, to be swept up should it be killed.
    let prefix = format!("pet{}n999", std::process::id());
    let prep_net = |arguments: &[&str]| call("prepNet.sh", &[arguments, &["--prefix", &prefix]].concat());
    assert_eq!(prep_net(&["status"]).0, 1);
    assert_eq!(prep_net(&["up", "--soft", "--quiet"]), (0, String::new()));
    let (code, printed) = prep_net(&["up", "--soft"]);
    assert!(code == 0 && printed.contains("already up"), "{printed}");
    // Another kind of the same name takes its place.
    assert_eq!(prep_net(&["up", "--soft", "--two-armed", "--quiet"]).0, 0);
    let (code, printed) = prep_net(&["status"]);
    assert!(code == 0 && printed.contains("ARMS=2"), "{printed}");
    assert_eq!(prep_net(&["down"]).0, 0);
    let (code, printed) = prep_net(&["down"]);
    assert!(code == 0 && printed.contains("already down"), "{printed}");
    assert!(!namespaces().contains(&prefix));
}

#[test]
fn build_sh_tells_what_it_can_do_from_any_folder() {
    let (code, printed) = call("build.sh", &["--help"]);
    assert_eq!(code, 0);
    for command in ["demo", "test", "package", "run", "bench", "fuzz", "lint", "clean"] {
        assert!(printed.contains(&format!("  {command}")), "{command} in {printed}");
    }
    let (code, printed) = call("build.sh", &["fly"]);
    assert!(code != 0 && printed.contains("unknown command 'fly'"), "{printed}");
    let (code, printed) = call("build.sh", &["bench"]);
    for bench in [
        "choice  (proxyengine)",
        "cps  (proxyengine)",
        "generator  (trafficengine)",
    ] {
        assert!(
            code == 0 && printed.lines().any(|line| line == bench),
            "{bench} in {printed}"
        );
    }
    // The second is a program of several benches, and none itself.
    for name in ["no-such-bench", "device"] {
        let (code, printed) = call("build.sh", &["bench", name]);
        let refusal = format!("no benchmark '{name}'");
        assert!(code != 0 && printed.contains(&refusal), "{printed}");
    }
}

/// What a newcomer's machine may lack is said in a sentence: a compiler, one that is new enough, a network.
#[test]
fn build_sh_names_what_it_lacks_to_build_with() {
    let folder = std::env::temp_dir().join(format!("pet-compiler-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let path = format!("{}/../../build.sh", env!("CARGO_MANIFEST_DIR"));
    let said = |command: &str| {
        let mut build = Command::new(&path);
        build.arg(command).env("HOME", &folder).env_remove("CARGO_HOME");
        build.env("PATH", format!("{}:/usr/bin:/bin", folder.display()));
        build.env("PROXYENGINE_NO_INSTALL", "1");
        let output = build.output().expect("the script runs");
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    // Where there is one in any case, this would be a build.
    if !["/usr/bin/cargo", "/bin/cargo"]
        .iter()
        .any(|path| std::path::Path::new(path).exists())
    {
        let without = said("build");
        assert!(without.contains("cargo is missing: install Rust stable"), "{without}");
    }
    let program = |name: &str, text: &str| {
        let program = folder.join(name);
        std::fs::write(&program, format!("#!/bin/sh\n{text}\n")).expect("written");
        std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("executable");
    };
    program("cargo", "exit 1");
    program("rustc", "echo 'rustc 1.63.0 (4b91a6ea7 2022-08-08)'");
    let old = said("build");
    assert!(old.contains("Rust 1.63.0 is too old"), "{old}");
    // One that has no network: whatever it builds fails, and it says that sources are missing.
    program("rustc", "echo 'rustc 9.9.9'");
    let is_root = rustix::process::getuid().is_root();
    for command in ["test", "demo"].into_iter().take(1 + usize::from(is_root)) {
        let alone = said(command);
        assert!(
            alone.contains(&format!("{command}: the sources of some libraries are not here")),
            "{alone}"
        );
    }
    std::fs::remove_dir_all(&folder).expect("removed");
}
