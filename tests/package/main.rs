//! The Debian packages on a Debian that mmdebstrap makes: installed, started as their units say, upgraded while the engine
//! runs, purged; and made twice, to be equal; and images of them that serve. They are of the programs that this build has made: `build.sh package` optimises.

#![cfg(feature = "dpdk")]

mod containers;
mod root;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use root::Root;
use tempfile::TempDir;

const NAME: &str = "packages_install_run_upgrade_and_purge";

/// What they are made of.
const PROGRAMS: [&str; 5] = [
    "proxyengine",
    "trafficengine",
    "mmproxy",
    "libproxyproto.so",
    "libproxyproto_connect.so",
];

/// Every package, in the order of their names.
const PACKAGES: [&str; 4] = ["libproxyproto", "mmproxy", "proxyengine", "trafficengine"];

/// A configuration on a port that needs no device.
const RING: &str = r#"
[engine]
cores = [0]
memory_mib = 64
buffers = 4096
max_connections = 1000
drain = "100ms"

[[port]]
name = "left"
device = "net_ring0"
mac = "02:00:00:00:00:01"
addresses = ["10.0.0.1/24"]

[[listener]]
name = "web"
addresses = ["10.0.0.1:80"]
default = "pool"

[[pool]]
name = "pool"
servers = [{ name = "one", address = "10.0.0.9:80" }]
"#;

fn run(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{command:?}: {text}");
    text
}

/// A folder with the programs and libraries, after those of other packages have been built as well. They are copies: other tests have
/// cargo build some of them, too, in the folder that all share.
fn built() -> TempDir {
    let folder = Path::new(env!("CARGO_BIN_EXE_proxyengine")).with_file_name("");
    let profile = folder
        .file_name()
        .and_then(|name| name.to_str())
        .expect("a profile's folder");
    let profile = if profile == "debug" { "dev" } else { profile };
    let mut build = Command::new(env!("CARGO"));
    build
        .args(["build", "--quiet", "--locked", "--profile", profile])
        .args(rig::features_of_mmproxy())
        .current_dir(env!("CARGO_MANIFEST_DIR"));
    for name in ["trafficengine", "mmproxy", "libproxyproto", "libproxyproto-connect"] {
        build.args(["--package", name]);
    }
    run(&mut build);
    let copies = tempfile::tempdir().expect("a folder");
    for name in PROGRAMS {
        fs::copy(folder.join(name), copies.path().join(name)).expect("a copy");
    }
    copies
}

/// Makes the packages of one version of these programs in a folder, and returns their files by name.
fn packages(built: &TempDir, folder: &Path, version: &str) -> Vec<PathBuf> {
    let mut make = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("build.sh"));
    make.args(["package", "--built"])
        .arg(built.path())
        .arg("--out")
        .arg(folder);
    // Small packages are for those who load them.
    make.env("PACKAGE_VERSION", version)
        .env("PACKAGE_COMPRESSION", "-Zgzip -z1");
    run(make.env("PROXYENGINE_NO_INSTALL", "1"));
    PACKAGES
        .map(|name| folder.join(format!("{name}_{version}_amd64.deb")))
        .to_vec()
}

#[test]
fn packages_install_run_upgrade_and_purge() {
    if let Err(reason) = root::requirements() {
        return rig::skip(NAME, &reason);
    }
    let folder = tempfile::tempdir().expect("a folder");
    let built = built();
    let old = packages(&built, &folder.path().join("old"), "0.0.1");
    let again = packages(&built, &folder.path().join("the-same-in-another-folder"), "0.0.1");
    for (one, other) in old.iter().zip(&again) {
        assert!(
            fs::read(one).expect("a package") == fs::read(other).expect("a package"),
            "{one:?}"
        );
    }
    run(Command::new("lintian")
        .args(["--fail-on", "error", "--allow-root"])
        .args(&old));
    links_lead_somewhere(&old[2]);
    let new = packages(&built, &folder.path().join("new"), "0.0.2");

    let root = match Root::debian(&folder.path().join("root"), &old) {
        Ok(root) => root,
        // The archive is Debian's, and may be out of reach.
        Err(reason) => return rig::lacking(NAME, &reason),
    };
    root.install(&old);
    units_are_sound(&root);
    for library in ["libproxyproto.so", "libproxyproto_connect.so"] {
        let preload = format!("LD_PRELOAD=/usr/lib/proxyproto/{library}");
        assert_eq!(
            root.chroot(&["env", &preload, "true"]),
            "",
            "the loader says nothing of {library}"
        );
    }
    assert!(root.chroot(&["mmproxy", "--version"]).contains("mmproxy"));
    refuses_until_an_interface_is_named(&root);
    containers::serve(&folder.path().join("old"));
    runs_and_is_upgraded(&root, &new);
    root.chroot(&["dpkg", "--purge"].into_iter().chain(PACKAGES).collect::<Vec<_>>());
    for gone in [
        "etc/proxyengine",
        "var/lib/proxyengine",
        "var/log/proxyengine",
        "usr/lib/proxyproto",
        "usr/bin/mmproxy",
    ] {
        assert!(!root.path(gone).exists(), "{gone} is left");
    }
}

/// The manual that a package brings names no document that it does not bring.
fn links_lead_somewhere(package: &Path) {
    let folder = tempfile::tempdir().expect("a folder");
    run(Command::new("dpkg-deb").arg("-x").arg(package).arg(folder.path()));
    let documents = folder.path().join("usr/share/doc/proxyengine");
    let mut links = 0;
    for of in [documents.clone(), documents.join("reference")] {
        let pages = fs::read_dir(&of)
            .expect("documents")
            .map(|entry| entry.expect("a file").path());
        for page in pages.filter(|path| path.extension().is_some_and(|kind| kind == "md")) {
            let text = fs::read_to_string(&page).expect("text");
            let targets = text
                .split("](")
                .skip(1)
                .filter_map(|rest| rest.split([')', '#', ' ']).next());
            for target in targets.filter(|target| !target.is_empty() && !target.contains(':')) {
                assert!(of.join(target).exists(), "{page:?} names {target}");
                links += 1;
            }
        }
    }
    assert!(links > 100, "{links}");
}

/// What systemd says of the units, without running them: no fault, and little that they may do.
fn units_are_sound(root: &Root) {
    let folder = tempfile::tempdir().expect("a folder");
    let units = ["proxyengine", "proxyengine-devices", "mmproxy"].map(|name| format!("{name}.service"));
    let mut verify = Command::new("systemd-analyze");
    verify.args(["verify", "--man=no"]);
    for unit in &units {
        let text = fs::read_to_string(root.path("lib/systemd/system").join(unit)).expect("the unit");
        // systemd's own targets are this machine's, the programs are not.
        let programs = format!("{}/", root.path("usr/bin").display());
        let path = folder.path().join(unit);
        fs::write(&path, text.replace("/usr/bin/", &programs)).expect("written");
        verify.arg(path);
        let option = format!("--root={}", root.path("").display());
        let mut security = Command::new("systemd-analyze");
        security.args(["security", "--offline=true", "--no-pager", "--threshold=40"]);
        run(security.args([&option, unit]));
    }
    let said = run(&mut verify);
    assert!(!units.iter().any(|unit| said.contains(unit)), "{said}");
}

/// As it is installed, the configuration names the line to write.
fn refuses_until_an_interface_is_named(root: &Root) {
    let output = root.engine().output().expect("it can be run");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(
        said.contains("proxyengine.toml:") && said.contains("net_af_packet0,iface=eth1"),
        "{said}"
    );
}

/// The engine runs with the user and the capabilities of its unit, and goes on when the package is upgraded.
fn runs_and_is_upgraded(root: &Root, new: &[PathBuf]) {
    fs::write(root.path("etc/proxyengine/proxyengine.toml"), RING).expect("written");
    let ready = root.chroot(&[
        "proxyengine",
        "devices",
        "--dry-run",
        "/etc/proxyengine/proxyengine.toml",
    ]);
    assert!(!ready.is_empty());
    let log = root.path("tmp/engine.log");
    let errors = fs::File::create(&log).expect("a log");
    let mut engine = root
        .engine()
        .stdout(Stdio::null())
        .stderr(errors)
        .spawn()
        .expect("it starts");
    let said = || fs::read_to_string(&log).unwrap_or_default();
    let until = Instant::now() + Duration::from_secs(60);
    while !said().contains("running;") {
        assert!(engine.try_wait().expect("its state").is_none(), "{}", said());
        assert!(Instant::now() < until, "it does not start: {}", said());
        std::thread::sleep(Duration::from_millis(50));
    }
    let told = root.install(new);
    assert!(told.contains("version 0.0.1 goes on running"), "{told}");
    assert!(told.contains("systemctl restart proxyengine"), "{told}");
    // The administrator's configuration stays.
    let kept = fs::read_to_string(root.path("etc/proxyengine/proxyengine.toml"));
    assert_eq!(kept.expect("the configuration"), RING);
    assert!(engine.try_wait().expect("its state").is_none(), "{}", said());
    run(Command::new("kill").args(["-TERM", &engine.id().to_string()]));
    let status = engine.wait().expect("it ends");
    assert_eq!(status.code(), Some(0), "{}", said());
}
