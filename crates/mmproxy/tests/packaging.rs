//! What is handed out: the Debian package is built, unpacked, and what is in it started as its unit says; the container's files
//! are held against the program. No registry is asked: an image is not built here.

mod rig;

use rig::{Proxy, greeting, in_bare_namespace, tcp_server, v1};
use std::path::{Path, PathBuf};
use std::process::Command;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/packaging");

fn run(command: &mut Command) -> String {
    let output = command.output().expect("it can be run");
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{command:?}: {text}");
    text
}

/// The package, made of what this build has made, and unpacked.
fn unpacked(folder: &Path) -> PathBuf {
    let libraries = ["libproxyproto", "libproxyproto-connect"];
    let built = folder.join("built");
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--quiet"]).current_dir(env!("CARGO_MANIFEST_DIR"));
    run(build.args(libraries.iter().flat_map(|name| ["-p", name])));
    let debug = Path::new(env!("CARGO_BIN_EXE_mmproxy")).with_file_name("");
    std::fs::create_dir_all(built.join("release")).expect("a folder");
    for name in ["mmproxy", "libproxyproto.so", "libproxyproto_connect.so"] {
        std::fs::copy(debug.join(name), built.join("release").join(name)).expect(name);
    }
    run(Command::new(format!("{FOLDER}/deb.sh"))
        .arg(folder)
        .env("CARGO_TARGET_DIR", built));
    let package = std::fs::read_dir(folder)
        .expect("the folder")
        .flatten()
        .map(|entry| entry.path());
    let package = package
        .into_iter()
        .find(|path| path.extension().is_some_and(|end| end == "deb"))
        .expect("a package");
    let files = folder.join("files");
    run(Command::new("dpkg-deb").arg("-x").args([&package, &files]));
    let fields = run(Command::new("dpkg-deb").arg("-f").arg(&package));
    assert!(
        fields.contains("Package: mmproxy\n") && fields.contains("Depends: libc6"),
        "{fields}"
    );
    files
}

#[test]
fn the_debian_package_has_what_its_unit_starts_and_it_serves() {
    if !Command::new("dpkg-deb")
        .arg("--version")
        .output()
        .is_ok_and(|output| output.status.success())
    {
        return rig::skip("dpkg-deb is not installed");
    }
    in_bare_namespace(|_| {
        let folder = tempfile::tempdir().expect("a folder");
        let files = unpacked(folder.path());
        let unit = std::fs::read_to_string(files.join("lib/systemd/system/mmproxy.service")).expect("the unit");
        let lines = |key: &str| -> Vec<Vec<String>> {
            let of_key = unit
                .lines()
                .filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
            of_key
                .map(|line| line.trim_start_matches('+').split(' ').map(str::to_owned).collect())
                .collect()
        };
        let command = |words: &[String]| {
            let program = words[0].strip_prefix('/').expect("an absolute path");
            let mut command = Command::new(files.join(program));
            command.args(words[1..].iter().filter(|word| !word.ends_with(".toml")));
            command
        };
        let [before, start, after] = ["ExecStartPre", "ExecStart", "ExecStopPost"].map(|key| lines(key).remove(0));
        run(&mut command(&before));

        // The configuration of the unit is the administrator's; here it is as short as can be.
        assert_eq!(start.last().map(String::as_str), Some("/etc/mmproxy/mmproxy.toml"));
        let config = folder.path().join("mmproxy.toml");
        let text =
            "metrics = \"127.0.0.1:9110\"\n[[listener]]\nlisten = \"127.0.0.1:8443\"\ntarget = \"127.0.0.1:443\"\n";
        std::fs::write(&config, text).expect("written");
        tcp_server("127.0.0.1:443");
        let mut daemon = command(&start);
        daemon.arg(&config);
        let mut proxy = Proxy::spawn(daemon, "127.0.0.1:9110");
        proxy.address = "127.0.0.1:8443".parse().expect("address");
        let mut client = proxy.send(&v1("203.0.113.7:4001", "198.51.100.9:443"));
        assert_eq!(greeting(&mut client).expect("served"), "203.0.113.7:4001");
        drop((client, proxy));
        run(&mut command(&after));
        for name in [
            "usr/lib/mmproxy/libproxyproto.so",
            "usr/lib/mmproxy/libproxyproto_connect.so",
        ] {
            let loaded = run(Command::new("true").env("LD_PRELOAD", files.join(name)));
            assert_eq!(loaded, "", "the loader says nothing of {name}");
        }
    });
}

#[test]
fn the_unit_file_is_one_that_systemd_takes() {
    let Ok(version) = Command::new("systemd-analyze").arg("--version").output() else {
        return rig::skip("systemd-analyze (package systemd) is not installed");
    };
    assert!(version.status.success());
    let folder = tempfile::tempdir().expect("a folder");
    let unit = std::fs::read_to_string(format!("{FOLDER}/mmproxy.service")).expect("the unit");
    // The program is not installed here.
    let unit = unit.replace("/usr/bin/mmproxy", env!("CARGO_BIN_EXE_mmproxy"));
    let path = folder.path().join("mmproxy.service");
    std::fs::write(&path, unit).expect("written");
    let output = Command::new("systemd-analyze")
        .args(["verify", "--man=no"])
        .arg(&path)
        .output()
        .expect("run");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let ours: Vec<&str> = said.lines().filter(|line| line.contains("mmproxy.service")).collect();
    assert!(ours.is_empty(), "{said}");
}

#[test]
fn the_containers_command_is_understood_and_its_files_are_there() {
    let compose = std::fs::read_to_string(format!("{FOLDER}/compose.yaml")).expect("the file");
    let line = compose
        .lines()
        .find_map(|line| line.trim().strip_prefix("command: "))
        .expect("a command");
    let words: Vec<String> = serde_json::from_str(line).expect("a list");
    let parsed = mmproxy::cli::parse(words).expect("understood");
    let mmproxy::cli::Command::Run(source) = parsed else {
        panic!("{parsed:?}")
    };
    let config = source.load().expect("a configuration");
    assert!(config.routes && config.listeners[0].target_v6.is_none());
    assert!(compose.contains("cap_add: [NET_ADMIN]"));
    let dockerfile = std::fs::read_to_string(format!("{FOLDER}/Dockerfile")).expect("the file");
    assert!(compose.contains("dockerfile: crates/mmproxy/packaging/Dockerfile"));
    assert!(dockerfile.contains("cargo build --release --locked -p mmproxy --bin mmproxy"));
    rig::lacking("the image is not built: its base images would have to come from a registry");
}
