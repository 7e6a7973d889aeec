//! `/sys`, `/proc` and the rest of a machine, below a root that tests can replace.

use std::fs;
use std::path::PathBuf;

use crate::config::CoreId;

/// A machine as its files show it.
#[derive(Clone, Debug)]
pub struct Root(PathBuf);

impl Root {
    /// The machine that this runs on.
    pub fn system() -> Self {
        Self::at("/")
    }

    /// A machine whose files are below `directory`.
    pub fn at(directory: impl Into<PathBuf>) -> Self {
        Self(directory.into())
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.0.join(path.trim_start_matches('/'))
    }

    /// A file's text without blanks around it; none if it cannot be read.
    pub fn read(&self, path: &str) -> Option<String> {
        let bytes = fs::read(self.path(path)).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// A file's number.
    pub fn number(&self, path: &str) -> Option<i64> {
        self.read(path)?.parse().ok()
    }

    /// The names in a directory, sorted; empty if there is none.
    pub fn names(&self, directory: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(directory)).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort();
        names
    }

    /// Whether there is anything of that name; a link counts whatever it leads to.
    pub fn exists(&self, path: &str) -> bool {
        self.path(path).symlink_metadata().is_ok()
    }

    /// Whether there is a directory of that name.
    pub fn is_directory(&self, path: &str) -> bool {
        self.path(path).is_dir()
    }

    /// The last part of what a link leads to.
    pub fn link(&self, path: &str) -> Option<String> {
        let target = fs::read_link(self.path(path)).ok()?;
        Some(target.file_name()?.to_str()?.to_owned())
    }

    /// The node whose memory is next to a core; none where there is only one, or the core does not exist.
    pub fn node_of_core(&self, core: CoreId) -> Option<u32> {
        let names = self.names(&format!("/sys/devices/system/cpu/cpu{core}"));
        names.iter().find_map(|name| name.strip_prefix("node")?.parse().ok())
    }

    /// The node that a device is at: that of a PCI address, or of a network interface.
    pub fn node_of_device(&self, pci_or_interface: &str) -> Option<u32> {
        let pci = format!("/sys/bus/pci/devices/{pci_or_interface}/numa_node");
        let interface = format!("/sys/class/net/{pci_or_interface}/device/numa_node");
        // -1: the firmware does not say, as on machines with one node.
        let node = self.number(&pci).or_else(|| self.number(&interface))?;
        u32::try_from(node).ok()
    }
}

/// What the kernel writes for a set of CPUs: `0-3,8`. Whatever is no number is left out; the ranges are those of the
/// kernel, so they are short.
pub fn cpu_list(text: &str) -> Vec<u16> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let first: u16 = first.trim().parse().ok()?;
        // `0-15:2/4` is a range with steps, which the kernel takes but never writes.
        let last: u16 = last.trim().parse().ok()?;
        Some(first..=last.min(8191))
    };
    text.split(',').filter_map(range).flatten().collect()
}

/// The same the other way round.
pub fn show_cpus(cpus: &[u16]) -> String {
    let mut sorted = cpus.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let mut ranges: Vec<(u16, u16)> = Vec::new();
    for cpu in sorted {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == cpu => *last = cpu,
            _ => ranges.push((cpu, cpu)),
        }
    }
    let shown: Vec<String> = ranges
        .iter()
        .map(|(first, last)| {
            if first == last {
                first.to_string()
            } else {
                format!("{first}-{last}")
            }
        })
        .collect();
    shown.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_of_cpus_are_read_and_written_as_the_kernel_does() {
        for (text, cpus) in [
            ("", vec![]),
            ("3", vec![3]),
            ("0-3,8", vec![0, 1, 2, 3, 8]),
            ("1,3-4\n", vec![1, 3, 4]),
            ("(null)", vec![]),
        ] {
            assert_eq!(cpu_list(text), cpus, "{text:?}");
        }
        assert_eq!(show_cpus(&[8, 2, 3, 0, 2]), "0,2-3,8");
        assert_eq!(show_cpus(&[]), "");
    }
}
