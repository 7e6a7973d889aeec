//! A Debian in a folder, with what the packages need and nothing else.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::run;

/// Root to make it, and programs.
pub(crate) fn requirements() -> Result<(), String> {
    if !rustix::process::geteuid().is_root() {
        return Err("root is needed to make a Debian in a folder".to_owned());
    }
    for program in [
        "mmdebstrap",
        "dh",
        "help2man",
        "lintian",
        "systemd-analyze",
        "unshare",
        "setpriv",
        "chroot",
        "crun",
        "setcap",
        "ip",
        "nginx",
        "socat",
        "curl",
        "pgrep",
    ] {
        let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
        let found = path.split(':').any(|folder| Path::new(folder).join(program).exists());
        if !found {
            return Err(format!("{program} is not installed"));
        }
    }
    Ok(())
}

/// The system; its folder goes away with the test's.
pub(crate) struct Root(PathBuf);

impl Root {
    /// Debian 12 with what packages depend on. The error is that the archive cannot be reached.
    pub(crate) fn debian(folder: &Path, packages: &[PathBuf]) -> Result<Self, String> {
        let mut include = String::from("--include=procps");
        for name in dependencies(packages) {
            include += ",";
            include += &name;
        }
        let output = Command::new("mmdebstrap")
            .args([
                "--variant=essential",
                "--mode=root",
                "--quiet",
                "--dpkgopt=force-unsafe-io",
            ])
            .args([&include, "bookworm"])
            .arg(folder)
            .args(sources())
            .output()
            .map_err(|error| format!("mmdebstrap: {error}"))?;
        let said = String::from_utf8_lossy(&output.stderr);
        if output.status.success() {
            return Ok(Self(folder.to_owned()));
        }
        for wrong in [
            "Unable to locate package",
            "unmet dependencies",
            "no installation candidate",
        ] {
            assert!(
                !said.contains(wrong),
                "the packages depend on what Debian 12 does not have: {said}"
            );
        }
        Err(format!(
            "no Debian can be made: {}",
            said.lines().last().unwrap_or("no reason")
        ))
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.0.join(path)
    }

    /// A command in the system, with `/proc` and devices of its own, and without a network.
    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "--net", "--", "sh", "-c", INSIDE, "inside"])
            .arg(&self.0)
            .args(words);
        command
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("DEBIAN_FRONTEND", "noninteractive");
        command
    }

    /// Runs a command in the system as root, and returns what it says.
    pub(crate) fn chroot(&self, words: &[&str]) -> String {
        run(&mut self.command(words))
    }

    /// Installs packages, with nothing from elsewhere.
    pub(crate) fn install(&self, packages: &[PathBuf]) -> String {
        let inside: Vec<String> = packages
            .iter()
            .map(|package| {
                let name = package.file_name().expect("a file").to_string_lossy().into_owned();
                fs::copy(package, self.path("tmp").join(&name)).expect("copied");
                format!("/tmp/{name}")
            })
            .collect();
        let words: Vec<&str> = ["dpkg", "--install"]
            .into_iter()
            .chain(inside.iter().map(String::as_str))
            .collect();
        self.chroot(&words)
    }

    /// What the engine's unit starts, as the user that it names and with its capabilities.
    pub(crate) fn engine(&self) -> Command {
        let unit = fs::read_to_string(self.path("lib/systemd/system/proxyengine.service")).expect("the unit");
        let value = |key: &str| {
            let line = unit.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
            line.unwrap_or_else(|| panic!("no {key} in {unit}"))
        };
        let capabilities: Vec<String> = value("AmbientCapabilities")
            .split(' ')
            .map(|name| name.replace("CAP_", "+").to_lowercase())
            .collect();
        let set = |option: &str| format!("--{option}=-all,{}", capabilities.join(","));
        let user = [
            format!("--reuid={}", value("User")),
            format!("--regid={}", value("Group")),
        ];
        let sets = ["inh-caps", "ambient-caps", "bounding-set"].map(set);
        let mut words = vec!["setpriv", "--clear-groups", "--no-new-privs"];
        words.extend(user.iter().chain(&sets).map(String::as_str));
        words.extend(value("ExecStart").split(' '));
        self.command(&words)
    }
}

/// Mounts what a system has, and runs the command in it in this process's place.
const INSIDE: &str = r#"
mount -t proc proc "$1/proc" && mount --rbind /sys "$1/sys" && mount --rbind /dev "$1/dev" || exit 125
exec chroot "$@"
"#;

/// What packages depend on, but for each other: of alternatives the last, which is the smallest.
fn dependencies(packages: &[PathBuf]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for package in packages {
        let field = run(Command::new("dpkg-deb").arg("-f").arg(package).arg("Depends"));
        for one in field.trim().split(',').filter(|one| !one.trim().is_empty()) {
            let choice = one.split('|').find(|choice| choice.contains("standalone"));
            let choice = choice.or_else(|| one.split('|').next()).unwrap_or(one);
            let name = choice.split_whitespace().next().expect("a name");
            names.push(name.to_owned());
        }
    }
    names.sort();
    names.dedup();
    names
}

/// Where this machine has its packages from, if it is Debian's archive in one file.
fn sources() -> Option<PathBuf> {
    let files = ["/etc/apt/sources.list.d/debian.sources", "/etc/apt/sources.list"];
    files
        .map(PathBuf::from)
        .into_iter()
        .find(|file| fs::metadata(file).is_ok_and(|file| file.len() > 0))
}
