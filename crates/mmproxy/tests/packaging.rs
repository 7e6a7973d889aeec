//! What is handed out: the program is started as its unit says (the Debian package is tests/package's affair); the static binary
//! is built and started where there is nothing else; the image is built by its Dockerfile and started as the compose file says.
//! No registry is asked: where base images belong, stand-ins are made of what this machine has.

mod rig;

use rig::{Proxy, greeting, in_bare_namespace, tcp_server, v1, wait_for};
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/packaging");

/// What is built here for the static binary and the image stays, so that a second run takes seconds.
const BUILT: &str = env!("CARGO_TARGET_TMPDIR");

fn run(command: &mut Command) -> String {
    let output = command.output().expect("it can be run");
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{command:?}: {text}");
    text
}

#[test]
fn what_the_unit_starts_serves() {
    in_bare_namespace(|_| {
        let folder = tempfile::tempdir().expect("a folder");
        let unit = std::fs::read_to_string(format!("{FOLDER}/mmproxy.service")).expect("the unit");
        let lines = |key: &str| -> Vec<Vec<String>> {
            let of_key = unit
                .lines()
                .filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
            of_key
                .map(|line| line.trim_start_matches('+').split(' ').map(str::to_owned).collect())
                .collect()
        };
        let command = |words: &[String]| {
            assert_eq!(words[0], "/usr/bin/mmproxy");
            let mut command = Command::new(env!("CARGO_BIN_EXE_mmproxy"));
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

/// Starts a proxy that sees no service manager, and waits until it listens.
fn start(mut command: Command, address: &str) -> Proxy {
    let child = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn();
    let mut proxy = Proxy {
        child: child.expect("the proxy starts"),
        address: address.parse().expect("an address"),
    };
    wait_for("the proxy listens", || {
        assert!(proxy.is_alive(), "the proxy ended");
        TcpStream::connect(proxy.address).is_ok()
    });
    proxy
}

/// A client with a header gets through, and the server sees its address.
fn serves(proxy: &Proxy) {
    let mut client = proxy.send(&v1("203.0.113.7:4001", "198.51.100.9:443"));
    assert_eq!(greeting(&mut client).expect("served"), "203.0.113.7:4001");
}

fn is_there(program: &str) -> bool {
    let version = Command::new(program).arg("--version").output();
    version.is_ok_and(|output| output.status.success())
}

#[test]
fn the_static_binary_serves_where_nothing_else_is() {
    let library = Command::new("cc").arg("-print-file-name=libc.a").output();
    let library = library.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    if !library.is_ok_and(|path| Path::new(&path).is_absolute()) {
        return rig::skip("there is no static C library (package libc6-dev)");
    }
    in_bare_namespace(|_| {
        let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
        let built = Path::new(BUILT).join("static");
        let mut build = Command::new(env!("CARGO"));
        build.args([
            "build", "--quiet", "--locked", "-p", "mmproxy", "--bin", "mmproxy", "--target",
        ]);
        build.arg(&target).arg("--target-dir").arg(&built);
        build.env("RUSTFLAGS", "-C target-feature=+crt-static");
        run(build.current_dir(env!("CARGO_MANIFEST_DIR")));

        let root = tempfile::tempdir().expect("a folder");
        let program = built.join(target).join("debug/mmproxy");
        std::fs::copy(program, root.path().join("mmproxy")).expect("the program");
        let in_root = |words: &[&str]| {
            let mut command = Command::new("chroot");
            command.arg(root.path()).arg("/mmproxy").args(words);
            command
        };
        tcp_server("127.0.0.1:443");
        let words = ["-l", "127.0.0.1:8443", "-4", "127.0.0.1:443", "-6", "", "--routes"];
        serves(&start(in_root(&words), "127.0.0.1:8443"));
        run(&mut in_root(&["teardown"]));
    });
}

/// The compose file's value of a key of mmproxy, which is written as a list in one line.
fn composed(key: &str) -> Vec<String> {
    let compose = std::fs::read_to_string(format!("{FOLDER}/compose.yaml")).expect("the file");
    let line = compose
        .lines()
        .find_map(|line| line.trim().strip_prefix(key)?.strip_prefix(": "))
        .unwrap_or_else(|| panic!("no {key}"));
    let items = line.trim_start_matches('[').trim_end_matches(']').split(',');
    items.map(|item| item.trim().trim_matches('"').to_owned()).collect()
}

#[test]
fn the_containers_command_is_understood_and_its_files_are_there() {
    let parsed = mmproxy::cli::parse(composed("command")).expect("understood");
    let mmproxy::cli::Command::Run(source) = parsed else {
        panic!("{parsed:?}")
    };
    let config = source.load().expect("a configuration");
    assert!(config.routes && config.listeners[0].target_v6.is_none());
    let root = Path::new(FOLDER).join(&composed("context")[0]);
    assert!(root.join(&composed("dockerfile")[0]).exists());
}

/// Images, containers and their storage, all below one folder.
struct Images(tempfile::TempDir);

impl Images {
    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("buildah");
        for (option, folder) in [("--root", "images"), ("--runroot", "run")] {
            command.arg(option).arg(self.0.path().join(folder));
        }
        command.args(["--storage-driver", "vfs"]).args(words);
        command
    }

    /// Makes an image of what `fill` puts into a folder.
    fn stand_in(&self, name: &str, environment: &[String], fill: impl FnOnce(&Path)) {
        let folder = self.0.path().join(name.replace(':', "-"));
        std::fs::create_dir_all(folder.join("root/tmp")).expect("a folder");
        fill(&folder.join("root"));
        let lines: Vec<String> = environment.iter().map(|entry| format!("ENV {entry}\n")).collect();
        let text = format!("FROM scratch\nCOPY root /\n{}", lines.concat());
        std::fs::write(folder.join("Dockerfile"), text).expect("written");
        let name = format!("docker.io/library/{name}");
        run(self.command(&["bud", "--quiet", "-t", &name]).arg(folder));
    }
}

/// This machine's compiler in the place of the image that has one: what the build needs is mounted where it is here.
fn compiler(images: &Images) -> Vec<String> {
    let cargo = Path::new(env!("CARGO"));
    let toolchain = cargo.parent().and_then(Path::parent).expect("a toolchain").to_owned();
    let home = std::env::var("HOME").unwrap_or_default();
    let cargo_home = std::env::var("CARGO_HOME").unwrap_or(format!("{home}/.cargo"));
    let build = Path::new(BUILT).join("image");
    std::fs::create_dir_all(&build).expect("a folder");
    let path = format!("{}/bin:/usr/bin:/bin", toolchain.display());
    let environment = [
        format!("PATH={path} CARGO_HOME={cargo_home} CARGO_BUILD_BUILD_DIR=/build CARGO_NET_OFFLINE=true"),
        // What is shown does not depend on how well it is optimised.
        "CARGO_PROFILE_RELEASE_OPT_LEVEL=0 CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_DEBUG=0 \
         CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16"
            .to_owned(),
    ];
    images.stand_in("rust:1-slim-bookworm", &environment, |root| {
        for name in ["bin", "lib", "lib64", "sbin"] {
            if let Ok(target) = std::fs::read_link(Path::new("/").join(name)) {
                symlink(target, root.join(name)).expect("a link");
            }
        }
    });
    let same = |path: &str, mode: &str| format!("{path}:{path}:{mode}");
    vec![
        same("/usr", "ro"),
        same("/etc/alternatives", "ro"),
        same(&toolchain.to_string_lossy(), "ro"),
        same(&cargo_home, "rw"),
        format!("{}:/build:rw", build.display()),
    ]
}

/// The C library and the compiler's own, as the program's loader finds them here, and nothing else.
fn c_library(images: &Images) {
    let needed = run(Command::new("ldd").arg(env!("CARGO_BIN_EXE_mmproxy")));
    images.stand_in("debian:bookworm-slim", &[], |root| {
        for path in needed.split_whitespace().filter(|word| word.starts_with('/')) {
            let copy = root.join(&path[1..]);
            std::fs::create_dir_all(copy.parent().expect("a folder")).expect("a folder");
            std::fs::copy(path, copy).expect("a library");
        }
    });
}

#[test]
fn the_image_is_built_by_its_dockerfile_and_serves_as_the_compose_file_says() {
    if !is_there("buildah") {
        return rig::skip("buildah is not installed");
    }
    in_bare_namespace(|_| {
        let images = Images(tempfile::tempdir().expect("a folder"));
        let volumes = compiler(&images);
        c_library(&images);
        let context = Path::new(FOLDER).join(&composed("context")[0]);
        let dockerfile = context.join(&composed("dockerfile")[0]);
        let mut build = images.command(&["bud", "--quiet", "--pull-never", "--isolation", "chroot"]);
        build.args(volumes.iter().flat_map(|volume| ["--volume", volume]));
        run(build.args(["-t", "mmproxy", "-f"]).arg(dockerfile).arg(context));

        let container = run(&mut images.command(&["from", "--quiet", "--pull-never", "localhost/mmproxy"]));
        let container = container.trim();
        let format = "{{.OCIv1.Config.Entrypoint}}";
        let entry = run(&mut images.command(&["inspect", "--format", format, container]));
        let entry = entry.trim().trim_start_matches('[').trim_end_matches(']').split(' ');
        let mut start_it = images.command(&["run", "--isolation", "chroot"]);
        for capability in composed("cap_add") {
            start_it.arg(format!("--cap-add=CAP_{capability}"));
        }
        // It shares the server's network, as this process does that of the namespace.
        assert_eq!(composed("network_mode"), ["service:server"]);
        start_it.args([container, "--"]).args(entry).args(composed("command"));
        tcp_server("127.0.0.1:80");
        let mut proxy = start(start_it, "127.0.0.1:8443");
        serves(&proxy);
        proxy.signal(rustix::process::Signal::TERM);
        wait_for("the container has ended", || {
            !proxy.is_alive() && TcpStream::connect(proxy.address).is_err()
        });
    });
}
