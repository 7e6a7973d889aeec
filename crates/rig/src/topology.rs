//! The rig itself: raised by `prepNet.sh --soft`, removed when dropped.

use std::fs::{self, File};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::namespace::{Place, command_in, run_in};
use crate::process::{self, Output, Process};
use crate::{RigError, cleanup};

/// Names that the clients resolve to the engine. Each is meant for the server of the same rank.
pub const HOSTS: [&str; SERVERS] = ["one.test", "two.test", "three.test"];
/// How many server addresses there are.
pub const SERVERS: usize = 3;
/// How many client addresses there are.
const CLIENTS: usize = 4;

/// Programs without which there is no rig.
const TOOLS: &[&str] = &["ip", "ethtool", "sysctl", "bash", "ping"];
/// Raising and probing take a fraction of a second on an idle machine.
const RAISING: Duration = Duration::from_secs(30);

/// Is the engine beside the clients and servers, or between them?
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Arms {
    /// One port: clients and servers are on the same segment.
    #[default]
    One,
    /// Two ports: clients on the first, servers on the second.
    Two,
}

/// What kind of rig to raise.
#[derive(Clone, Debug)]
pub struct RigOptions {
    /// One or two ports of the engine.
    pub arms: Arms,
    /// MTU of every link, 1280 to 9000.
    pub mtu: u16,
    /// A name that stays the same from run to run; `None` makes one that meets no other rig.
    pub name: Option<String>,
}

impl Default for RigOptions {
    fn default() -> Self {
        Self {
            arms: Arms::One,
            mtu: 1500,
            name: None,
        }
    }
}

/// Says in one sentence what this machine lacks for a rig with these further programs.
///
/// # Errors
/// The sentence.
pub fn requirements(tools: &[&str]) -> Result<(), String> {
    if !rustix::process::geteuid().is_root() {
        return Err("needs root, to make network namespaces".into());
    }
    let missing: Vec<&str> = TOOLS
        .iter()
        .chain(tools)
        .copied()
        .filter(|tool| !is_on_path(tool))
        .collect();
    if !missing.is_empty() {
        return Err(format!("needs these programs: {}", missing.join(", ")));
    }
    static KERNEL: OnceLock<Result<(), String>> = OnceLock::new();
    KERNEL.get_or_init(probe_kernel).clone()
}

/// Makes and removes what a rig is made of.
fn probe_kernel() -> Result<(), String> {
    let probe = format!("{}-probe", cleanup::own_name(0));
    let ip = |arguments: &[&str]| process::run(Command::new("ip").args(arguments), b"", RAISING);
    let made = ip(&["netns", "add", &probe]).and_then(|_| {
        let add = |arguments: &[&str]| ip(&[&["-n", &probe, "link", "add", "name"], arguments].concat());
        let parts =
            add(&["probe0", "type", "veth", "peer", "name", "probe1"]).and_then(|_| add(&["probe2", "type", "bridge"]));
        ip(&["netns", "delete", &probe]).and(parts)
    });
    made.map(|_| ())
        .map_err(|error| format!("this kernel makes no namespaces, veth pairs or bridges for us: {error}"))
}

fn is_on_path(tool: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(tool).is_file())
}

/// Namespaces, cables and addresses, and a folder for the files of one test.
///
/// As many rigs are up at a time as the machine has CPUs: [`Rig::new`] waits for the others, whichever program made them.
#[derive(Debug)]
pub struct Rig {
    prefix: String,
    options: RigOptions,
    folder: PathBuf,
    kept: bool,
    /// Declared last, dropped last: the next rig may come up when this one is gone.
    _seat: File,
}

impl Rig {
    /// Waits for a seat, clears what killed programs have left, and raises the rig.
    ///
    /// # Errors
    /// When a step fails; what was made before it is removed.
    pub fn new(options: RigOptions) -> Result<Self, RigError> {
        static NUMBER: AtomicUsize = AtomicUsize::new(1);
        let seat = take_seat()?;
        cleanup::sweep();
        let prefix = match &options.name {
            Some(name) => {
                cleanup::take_down(name);
                name.clone()
            }
            None => cleanup::own_name(NUMBER.fetch_add(1, Ordering::Relaxed)),
        };
        // `prepNet.sh down` removes it with the rest.
        let folder = files_folder(&prefix);
        fs::create_dir(&folder).map_err(RigError::io(format!("making {}", folder.display())))?;
        cleanup::watch_over(&prefix);
        // Made before the script runs, so that dropping it removes what a failing script may leave.
        let rig = Self {
            prefix,
            options,
            folder,
            kept: false,
            _seat: seat,
        };
        let mut up = cleanup::prep_net();
        up.args([
            "up",
            "--soft",
            "--quiet",
            "--prefix",
            &rig.prefix,
            "--mtu",
            &rig.options.mtu.to_string(),
        ]);
        if rig.options.arms == Arms::Two {
            up.arg("--two-armed");
        }
        process::run(&mut up, b"", RAISING)?;
        Ok(rig)
    }

    /// The one-armed rig of this name that `prepNet.sh up` has raised, with a cable of any kind. It stays up when dropped.
    ///
    /// # Errors
    /// When no folder can be made for its files.
    pub fn adopt(name: &str, mtu: u16) -> Result<Self, RigError> {
        let seat = take_seat()?;
        let folder = files_folder(name);
        fs::create_dir_all(&folder).map_err(RigError::io(format!("making {}", folder.display())))?;
        Ok(Self {
            prefix: name.to_owned(),
            options: RigOptions {
                mtu,
                name: Some(name.to_owned()),
                ..RigOptions::default()
            },
            folder,
            kept: true,
            _seat: seat,
        })
    }

    /// A rig for a test, or `None` after saying why the test is skipped: [`crate::skip`], in the name of the thread, which
    /// is that of the test. `tools` are the programs that the test needs besides those of every rig.
    ///
    /// # Panics
    /// When the machine has all it takes, and yet the rig does not come up.
    pub fn for_test(options: RigOptions, tools: &[&str]) -> Option<Self> {
        if let Err(reason) = requirements(tools) {
            crate::skip(std::thread::current().name().unwrap_or("a test"), &reason);
            return None;
        }
        Some(Self::new(options).unwrap_or_else(|error| panic!("the rig does not come up: {error}")))
    }

    /// The name that all namespaces of this rig begin with.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// What was asked for.
    pub fn options(&self) -> &RigOptions {
        &self.options
    }

    /// A folder that lives as long as the rig.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// A file in the rig's folder.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The engine's address for clients.
    pub fn engine_v4(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, 0, 1)
    }

    /// The engine's address for clients.
    pub fn engine_v6(&self) -> Ipv6Addr {
        Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1)
    }

    /// The engine's addresses for clients, IPv4 first.
    pub fn engine_addresses(&self) -> [IpAddr; 2] {
        [self.engine_v4().into(), self.engine_v6().into()]
    }

    /// The engine's addresses on the servers' segment, IPv4 first; one-armed they are those for clients.
    pub fn engine_addresses_for_servers(&self) -> [IpAddr; 2] {
        let segment = self.server_segment();
        [
            Ipv4Addr::new(10, 77, segment, 1).into(),
            Ipv6Addr::new(0xfd77, 0, 0, segment.into(), 0, 0, 0, 1).into(),
        ]
    }

    /// Address of client `index`, 0 to 3.
    pub fn client_v4(&self, index: usize) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, 0, 101 + rank(index, CLIENTS))
    }

    /// Address of client `index`, 0 to 3.
    pub fn client_v6(&self, index: usize) -> Ipv6Addr {
        Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 0x101 + u16::from(rank(index, CLIENTS)))
    }

    /// Address of server `index`, 0 to 2.
    pub fn server_v4(&self, index: usize) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, self.server_segment(), 11 + rank(index, SERVERS))
    }

    /// Address of server `index`, 0 to 2.
    pub fn server_v6(&self, index: usize) -> Ipv6Addr {
        let segment = self.server_segment().into();
        Ipv6Addr::new(0xfd77, 0, 0, segment, 0, 0, 0, 0x11 + u16::from(rank(index, SERVERS)))
    }

    /// Addresses of server `index`, IPv4 first.
    pub fn server_addresses(&self, index: usize) -> [IpAddr; 2] {
        [self.server_v4(index).into(), self.server_v6(index).into()]
    }

    fn server_segment(&self) -> u8 {
        match self.options.arms {
            Arms::One => 0,
            Arms::Two => 1,
        }
    }

    /// A command that will run `program` at a place.
    pub fn command(&self, place: Place, program: &str) -> Command {
        command_in(&place.name(&self.prefix), program)
    }

    /// Runs a program at a place to its end.
    ///
    /// # Errors
    /// As [`process::run`].
    pub fn run(&self, place: Place, program: &str, arguments: &[&str], limit: Duration) -> Result<Output, RigError> {
        process::run(self.command(place, program).args(arguments), b"", limit)
    }

    /// Starts a program at a place; its log is `name.log` in the rig's folder.
    ///
    /// # Errors
    /// As [`Process::start`].
    pub fn start(&self, place: Place, name: &str, program: &str, arguments: &[&str]) -> Result<Process, RigError> {
        Process::start(
            self.command(place, program).args(arguments),
            &self.file(&format!("{name}.log")),
        )
    }

    /// Runs `work` at a place, on a thread of its own; its sockets belong to that place.
    ///
    /// # Errors
    /// When the namespace cannot be entered.
    ///
    /// # Panics
    /// When `work` does.
    pub fn at<T: Send>(&self, place: Place, work: impl FnOnce() -> T + Send) -> Result<T, RigError> {
        run_in(&place.name(&self.prefix), work)
    }

    /// Leaves the rig, its folder and what runs in it to the user; returns the folder.
    pub fn keep(mut self) -> PathBuf {
        cleanup::forget(&self.prefix);
        self.kept = true;
        self.folder.clone()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if !self.kept {
            cleanup::take_down(&self.prefix);
            cleanup::forget(&self.prefix);
        }
    }
}

/// Where the files of a rig's tests are; `prepNet.sh down` removes it.
fn files_folder(prefix: &str) -> PathBuf {
    PathBuf::from(format!("/tmp/proxyengine-{prefix}"))
}

/// The last part of an address, checked to be one that the rig has.
fn rank(index: usize, count: usize) -> u8 {
    assert!(index < count, "the rig has {count} of these, not {}", index + 1);
    index as u8
}

/// A seat for one rig, of as many as there are CPUs: its engine and its programs use about one. Held until the file is
/// closed.
fn take_seat() -> Result<File, RigError> {
    let folder = Path::new("/run/lock");
    let folder = if folder.is_dir() {
        folder.to_owned()
    } else {
        std::env::temp_dir()
    };
    let seats = std::thread::available_parallelism().map_or(1, NonZero::get);
    let path = |seat: usize| folder.join(format!("proxyengine-rig-{seat}.lock"));
    let open = |seat: usize| File::create(path(seat)).map_err(RigError::io(format!("making {}", path(seat).display())));
    for seat in 0..seats {
        let file = open(seat)?;
        if file.try_lock().is_ok() {
            return Ok(file);
        }
    }
    // All are taken: programs wait for different ones.
    let seat = std::process::id() as usize % seats;
    let file = open(seat)?;
    file.lock()
        .map_err(RigError::io(format!("locking {}", path(seat).display())))?;
    Ok(file)
}
