//! The emulated machine: started, asked to do things, ended.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::card::Card;
use crate::process::{self, Process};
use crate::{RigError, cleanup};

/// A boot takes ten seconds on an idle machine, and many times that beside builds.
const BOOTING: Duration = Duration::from_secs(300);
/// Fetching the kernel and packing the first file system.
const PREPARING: Duration = Duration::from_secs(300);
/// QEMU's monitor answers at once.
const MONITOR: Duration = Duration::from_secs(5);
const QEMU: &str = "qemu-system-x86_64";
/// Nobody waits longer for a machine: it ends by itself, should its maker have been killed.
const LIFETIME_SECONDS: u32 = 1800;

/// What stands between the cards and memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Iommu {
    /// Intel's, with interrupt remapping, passing through what the kernel itself does: what vfio-pci wants.
    PassThrough,
    /// The same, translating for the kernel's own drivers, too: a uio driver's device reaches nothing.
    Translating,
    /// Without interrupt remapping: vfio refuses devices until told otherwise.
    NoRemapping,
    /// None.
    None,
}

impl Iommu {
    fn machine(self) -> &'static [&'static str] {
        match self {
            Self::PassThrough | Self::Translating => &[
                "-machine",
                "q35,kernel-irqchip=split",
                "-device",
                "intel-iommu,intremap=on,caching-mode=on",
            ],
            Self::NoRemapping => &["-machine", "q35", "-device", "intel-iommu,intremap=off,caching-mode=on"],
            Self::None => &["-machine", "q35"],
        }
    }

    fn kernel(self) -> &'static str {
        match self {
            Self::PassThrough | Self::NoRemapping => "intel_iommu=on iommu=pt",
            Self::Translating => "intel_iommu=on",
            Self::None => "",
        }
    }
}

/// What a command in the machine has done.
#[derive(Clone, Debug)]
pub struct Done {
    /// Its exit code.
    pub code: i32,
    /// What it printed, both streams.
    pub text: String,
}

/// An emulated machine with a processor for each queue of a card, two at least, and the file system of this one, read-only below
/// a layer in its memory.
///
/// Dropping it ends it. It ends by itself after half an hour, whatever happens to this program.
#[derive(Debug)]
pub struct Machine {
    process: Process,
    folder: PathBuf,
    commands: usize,
}

/// Where kernel and first file system of the machine are: beside this program, where cargo builds.
fn prepared_folder() -> PathBuf {
    let target = std::env::current_exe().ok().and_then(|program| {
        let folder = program
            .ancestors()
            .find(|folder| folder.join("CACHEDIR.TAG").exists())?;
        Some(folder.to_owned())
    });
    target.unwrap_or_else(std::env::temp_dir).join("nic-lab")
}

/// Fetches the kernel if it is not there and packs the first file system.
///
/// # Errors
/// A sentence about what this machine lacks for the lab.
pub fn prepare() -> Result<PathBuf, String> {
    if std::env::var_os("PROXYENGINE_LAB").is_some_and(|value| value == "0") {
        return Err("PROXYENGINE_LAB=0 leaves the NIC lab out".into());
    }
    let folder = prepared_folder();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/nic-lab/prepare.sh");
    process::run(Command::new(script).arg(&folder), b"", PREPARING).map_err(|error| match error {
        RigError::Failed { output, .. } => output.trim().to_owned(),
        other => other.to_string(),
    })?;
    Ok(folder)
}

impl Machine {
    /// Starts a machine with these cards from what [`prepare`] has left in `prepared`, and waits until it takes commands.
    /// `place` is the network namespace that its TAPs are in, where it has any.
    ///
    /// # Errors
    /// When it does not come up; with what it printed.
    pub fn boot(prepared: &Path, iommu: Iommu, cards: &[Card], place: Option<&str>) -> Result<Self, RigError> {
        // Killed with the thread that has started it, whatever ends that.
        let words = ["setpriv", "--pdeathsig", "KILL", QEMU];
        let command = match place {
            Some(place) => {
                let mut command = crate::namespace::command_in(place, words[0]);
                command.args(&words[1..]);
                command
            }
            None => {
                let mut command = Command::new(words[0]);
                command.args(&words[1..]);
                command
            }
        };
        Self::boot_by(command, prepared, iommu, cards)
    }

    /// Starts such a machine without TAPs, and leaves it running; returns its folder and its process.
    ///
    /// # Errors
    /// As [`Machine::boot`].
    pub fn boot_to_keep(prepared: &Path, iommu: Iommu, cards: &[Card]) -> Result<(PathBuf, u32), RigError> {
        let machine = Self::boot_by(Command::new(QEMU), prepared, iommu, cards)?;
        let kept = (machine.folder.clone(), machine.process.id());
        // Dropping it would end it.
        std::mem::forget(machine);
        Ok(kept)
    }

    fn boot_by(mut command: Command, prepared: &Path, iommu: Iommu, cards: &[Card]) -> Result<Self, RigError> {
        static NUMBER: AtomicUsize = AtomicUsize::new(1);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("proxyengine-lab-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::remove_dir_all(&folder).ok();
        fs::create_dir(&folder).map_err(RigError::io(format!("making {}", folder.display())))?;
        describe(&mut command, prepared, &folder, iommu);
        let queues = cards.iter().map(|card| card.model.queues()).max();
        command.args(processors(queues.unwrap_or(1)));
        for card in cards {
            command.args(card.arguments());
        }
        let mut machine = Self {
            process: Process::start(&mut command, &folder.join("qemu.log"))?,
            folder,
            commands: 0,
        };
        let up = machine.folder.join("up");
        let started = machine.process.wait_for("the machine is up", BOOTING, |_| up.exists());
        started.map_err(|error| machine.with_console(error))?;
        Ok(machine)
    }

    /// Runs a script of bash in the machine, as root, to its end. Of a script that takes longer than `limit` the machine
    /// can be asked nothing more.
    ///
    /// # Errors
    /// When it has not ended after `limit`, or the machine has.
    pub fn run(&mut self, script: &str, limit: Duration) -> Result<Done, RigError> {
        self.commands += 1;
        let file = |name: &str| self.folder.join(format!("{name}.{}", self.commands));
        let (part, command, code, output) = (file("part"), file("command"), file("code"), file("output"));
        fs::write(&part, script)
            .and_then(|()| fs::rename(&part, &command))
            .map_err(RigError::io(format!("writing {}", command.display())))?;
        let ended = self.process.wait_for(script, limit, |_| code.exists());
        let text = String::from_utf8_lossy(&fs::read(&output).unwrap_or_default()).into_owned();
        if let Err(error) = ended {
            return Err(match error {
                RigError::TimedOut { what, limit, .. } => RigError::TimedOut {
                    what,
                    limit,
                    output: text,
                },
                other => self.with_console(other),
            });
        }
        let code = fs::read_to_string(&code).map_err(RigError::io(format!("reading {}", code.display())))?;
        Ok(Done {
            code: code.trim().parse().unwrap_or(-1),
            text,
        })
    }

    /// Says something to QEMU's monitor: `set_link n4 off` pulls a cable, `device_del c4` a card.
    ///
    /// # Errors
    /// When the monitor is gone.
    pub fn monitor(&self, command: &str) -> Result<String, RigError> {
        let path = self.folder.join("monitor");
        let ask = || -> std::io::Result<String> {
            let mut stream = UnixStream::connect(&path)?;
            stream.set_read_timeout(Some(MONITOR))?;
            until_prompt(&mut stream)?;
            stream.write_all(format!("{command}\n").as_bytes())?;
            until_prompt(&mut stream)
        };
        ask().map_err(RigError::io(format!("asking {}", path.display())))
    }

    /// A folder that is `/lab` in the machine.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// An error with the end of what the machine's kernel printed.
    fn with_console(&self, error: RigError) -> RigError {
        let console = fs::read(self.folder.join("console")).unwrap_or_default();
        let console = String::from_utf8_lossy(&console);
        let lines: Vec<&str> = console.lines().rev().take(20).collect();
        let end: String = lines.into_iter().rev().map(|line| format!("{line}\n")).collect();
        RigError::Unreadable {
            path: self.folder.join("console"),
            reason: format!("{error}\n{end}"),
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.process.signal(rustix::process::Signal::KILL);
        let _ = self.process.wait(MONITOR);
        fs::remove_dir_all(&self.folder).ok();
    }
}

/// Tells QEMU of the machine without any card.
fn describe(command: &mut Command, prepared: &Path, folder: &Path, iommu: Iommu) {
    let guest = cleanup::root().join("scripts/nic-lab/guest.sh");
    // On a machine with little time for it, an emulated timer misses what the kernel expects of it when it checks its interrupts.
    let line = format!(
        "console=ttyS0 quiet panic=-1 mitigations=off tsc=reliable no_timer_check lab.script={} lab.modules={} lab.lifetime={LIFETIME_SECONDS} {}",
        guest.display(),
        prepared.display(),
        iommu.kernel()
    );
    command.args(["-cpu", "max", "-m", "2048"]);
    command.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
    command.args(iommu.machine());
    command.arg("-kernel").arg(prepared.join("vmlinuz"));
    command.arg("-initrd").arg(prepared.join("initrd.gz"));
    command.args(["-append", &line]);
    command.arg("-serial").arg(format!("file:{}/console", folder.display()));
    command
        .arg("-monitor")
        .arg(format!("unix:{}/monitor,server=on,wait=off", folder.display()));
    command.args([
        "-fsdev",
        "local,id=root,path=/,security_model=none,readonly=on,multidevs=remap",
    ]);
    command.args(["-device", "virtio-9p-pci,fsdev=root,mount_tag=root,addr=0x10"]);
    command
        .arg("-fsdev")
        .arg(format!("local,id=lab,path={},security_model=none", folder.display()));
    command.args(["-device", "virtio-9p-pci,fsdev=lab,mount_tag=lab,addr=0x11"]);
}

/// As many processors as a card has queues. It is pure emulation: the same on machines with and without KVM, and in machines
/// that are themselves guests. More than two of them take turns on one core of this machine.
fn processors(queues: u8) -> [String; 4] {
    let (thread, count) = if queues > 2 { ("single", queues) } else { ("multi", 2) };
    [
        "-accel".to_owned(),
        format!("tcg,thread={thread}"),
        "-smp".to_owned(),
        count.to_string(),
    ]
}

/// Reads what the monitor says until it waits for a command.
fn until_prompt(stream: &mut UnixStream) -> std::io::Result<String> {
    let (mut text, mut byte) = (Vec::new(), [0]);
    while !text.ends_with(b"(qemu) ") {
        if stream.read(&mut byte)? == 0 {
            break;
        }
        text.push(byte[0]);
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}
