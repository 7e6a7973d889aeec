//! What the program gives up once its ports are open.
//!
//! A packet thread needs no capability, opens no file and makes none of the system calls that take a machine over. The main thread
//! keeps what ending takes: devices of the kernel are given back, DPDK's files removed; so does DPDK's own thread for interrupts.
//! The thread that answers `[control]` reads what strangers write: it makes the system calls of a server and no others; those that
//! ask name servers, and the one that talks to servers which are checked, likewise those that they need. Threads that are started
//! before the ports are open (signals, log, records, TAPs, sides of NICs) have given up their capabilities as their first act.

use std::io;
use std::path::{Path, PathBuf};

use ::control::http::Endpoint;
use rustix::thread::CapabilitySet;

use crate::config::{Config, Destination};

/// What ending the engine takes: links are set back, and a device of AF_XDP asks the kernel for its program by number. Whoever starts
/// the engine as root may have its report written into somebody else's folder.
const OF_MAIN: CapabilitySet = CapabilitySet::NET_ADMIN
    .union(CapabilitySet::NET_RAW)
    .union(CapabilitySet::BPF)
    .union(CapabilitySet::SYS_ADMIN)
    .union(CapabilitySet::DAC_OVERRIDE);

/// What writing files takes: whoever starts the engine as root may have them in somebody else's folder.
const OF_WRITER: CapabilitySet = CapabilitySet::DAC_OVERRIDE;

/// Where DPDK keeps files of the running engine, for root and for others.
const DPDK_FOLDERS: [&str; 2] = ["/run/dpdk", "/tmp/dpdk"];

/// What the threads of one configuration's engine keep.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Files below these are changed, made and removed.
    folders: Vec<PathBuf>,
}

impl Limits {
    /// Of the program that runs this configuration and writes `files`, those that the command line names.
    pub fn of<'a>(config: &Config, files: impl IntoIterator<Item = &'a Path>) -> Self {
        let named = config.ports().iter().map(|port| port.device.to_string());
        let sockets = [&config.control().socket, &config.control().http].into_iter().flatten();
        let mut folders: Vec<PathBuf> = named.flat_map(|device| folders_of_device(&device)).collect();
        folders.extend(sockets.filter_map(|endpoint| match endpoint {
            Endpoint::Unix(path) => Some(folder_of(path)),
            Endpoint::Tcp(_) => None,
        }));
        folders.extend(config.records().iter().filter_map(|sink| match &sink.to {
            Destination::File(path) => Some(folder_of(path)),
            _ => None,
        }));
        folders.extend(files.into_iter().map(folder_of));
        folders.extend(DPDK_FOLDERS.map(PathBuf::from));
        folders.extend(std::env::var_os("XDG_RUNTIME_DIR").map(|folder| Path::new(&folder).join("dpdk")));
        folders.extend(large_page_folders(
            &std::fs::read_to_string("/proc/mounts").unwrap_or_default(),
        ));
        Self { folders }
    }

    /// The folders below which files are changed, made and removed; nothing where the kernel does not restrict that.
    pub fn only_folders(&self) -> Option<&[PathBuf]> {
        sandbox::can_restrict_writing().then_some(&self.folders)
    }

    /// For a packet thread, once it has everything it needs.
    ///
    /// # Errors
    /// What the kernel reports; that it has no Landlock is no error.
    pub fn enter_packet_thread(&self) -> io::Result<()> {
        sandbox::keep_capabilities(CapabilitySet::empty(), None)?;
        write_only_below(&[]);
        Ok(())
    }

    /// For DPDK's own thread, which devices of memif and hotplug have work for.
    ///
    /// # Errors
    /// What the kernel reports; that it has no Landlock is no error.
    #[cfg(feature = "dpdk")]
    pub(crate) fn enter_driver_thread(&self) -> io::Result<()> {
        sandbox::keep_capabilities(OF_MAIN, None)?;
        self.write_only_below_folders();
        Ok(())
    }

    /// For the thread that answers `[control]`, as its first act; it is started by the main thread when that has given up its own.
    ///
    /// # Errors
    /// What the kernel reports.
    pub fn enter_control_thread() -> io::Result<()> {
        sandbox::keep_capabilities(OF_WRITER, None)?;
        sandbox::allow_only_serving()
    }

    /// For the thread that started the engine, when all others run: the system calls of all are filtered from now on; it and the
    /// threads that it starts later have few capabilities and folders.
    ///
    /// # Errors
    /// What the kernel reports; that it has no Landlock is no error.
    pub fn enter_main_thread(&self) -> io::Result<()> {
        sandbox::keep_capabilities(OF_MAIN, None)?;
        self.write_only_below_folders();
        sandbox::forbid_in_all_threads(&sandbox::TAKEOVER)
    }

    fn write_only_below_folders(&self) {
        let folders: Vec<&Path> = self.folders.iter().map(PathBuf::as_path).collect();
        write_only_below(&folders);
    }
}

/// For a thread of the engine that writes what others say, to files, sockets or the log, as its first act.
pub(crate) fn enter_writer_thread() {
    keep(OF_WRITER);
}

/// For any other thread that is started before the ports are open, as its first act.
pub fn enter_plain_thread() {
    keep(CapabilitySet::empty());
}

/// For the thread that asks name servers, as its first act: it opens sockets, and changes no file.
pub(crate) fn enter_asking_thread() {
    enter_plain_thread();
    write_only_below(&[]);
    if let Err(error) = sandbox::allow_only_asking() {
        log::warn!("the system calls of the thread that asks name servers are not restricted: {error}");
    }
}

/// For the thread that talks to servers which are checked, once the calls of all threads are filtered: no system calls but those for
/// memory, time, locks and open descriptors.
pub(crate) fn enter_checking_thread() {
    if let Err(error) = sandbox::allow_only_computing() {
        log::warn!("the system calls of the thread that makes checks are not restricted: {error}");
    }
}

/// A kernel or a container that refuses it is no reason not to serve.
fn keep(capabilities: CapabilitySet) {
    if let Err(error) = sandbox::keep_capabilities(capabilities, None) {
        log::warn!("a thread keeps its capabilities: {error}");
    }
}

fn write_only_below(folders: &[&Path]) {
    if let Err(error) = sandbox::write_only_below(folders) {
        log::debug!("files can be changed: {error}");
    }
}

pub(crate) fn folder_of(file: &Path) -> PathBuf {
    match file.parent() {
        Some(parent) if parent != Path::new("") => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// Folders of the files that a device's arguments name, such as `socket=/run/memif.sock`.
fn folders_of_device(device: &str) -> Vec<PathBuf> {
    let values = device.split(',').filter_map(|argument| argument.split_once('='));
    let files = values
        .map(|(_, value)| Path::new(value))
        .filter(|value| value.is_absolute());
    files.map(folder_of).collect()
}

/// Where file systems of hugepages are mounted: fields 2 and 3 of proc_pid_mounts(5).
fn large_page_folders(mounts: &str) -> Vec<PathBuf> {
    let fields = mounts.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    fields
        .filter(|fields| fields.get(2) == Some(&"hugetlbfs"))
        .map(|fields| PathBuf::from(fields[1]))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_those_of_files_that_are_named() {
        let folders = |device| folders_of_device(device);
        assert_eq!(
            folders("net_memif0,role=server,socket=/run/pe/m.sock,id=1"),
            [Path::new("/run/pe")]
        );
        assert!(folders("net_af_packet0,iface=eth0").is_empty());
        assert_eq!(folder_of(Path::new("report.json")), Path::new("."));
        let mounts = "proc /proc proc rw 0 0\nhugetlbfs /dev/hugepages hugetlbfs rw,pagesize=2M 0 0\n";
        assert_eq!(large_page_folders(mounts), [Path::new("/dev/hugepages")]);
    }
}
