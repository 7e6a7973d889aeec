//! The programs and maps in the kernel, through libbpf.

use super::tcx::{self, Way};
use crate::inline::layout::{Entry, FLOW_KEY};
use libbpf_rs::{MapCore, MapFlags, Object, ObjectBuilder, PrintLevel, ProgramInput};
use rustix::fd::{AsFd, OwnedFd};
use std::io;

static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/inline.bpf.o"));

fn failed(error: libbpf_rs::Error) -> io::Error {
    io::Error::other(format!("{error:#}"))
}

/// Loaded programs. Those that are attached end with this value.
pub struct Kernel {
    object: Object,
    links: Vec<OwnedFd>,
}

impl Kernel {
    /// Loads the programs with room for `limit` connections.
    ///
    /// # Errors
    /// What the kernel reports: capabilities, or a kernel without what they need (Linux 6.9).
    pub fn load(limit: u32) -> io::Result<Self> {
        libbpf_rs::set_print(Some((PrintLevel::Warn, |_, text| {
            log::debug!("libbpf: {}", text.trim_end())
        })));
        let mut open = ObjectBuilder::default().open_memory(OBJECT).map_err(failed)?;
        for mut map in open.maps_mut() {
            if map.name() == "flows" {
                // One entry for each way.
                map.set_max_entries(limit.saturating_mul(2)).map_err(failed)?;
            }
        }
        let object = open.load().map_err(failed)?;
        Ok(Kernel { object, links: vec![] })
    }

    /// Attaches the programs to an interface.
    ///
    /// # Errors
    /// What the kernel reports.
    pub fn attach(&mut self, ifindex: u32) -> io::Result<()> {
        // The answers first: a connection is not begun before they find their way.
        for (name, way) in [("to_client", Way::Egress), ("to_server", Way::Ingress)] {
            let program = self.program(name)?;
            let link = tcx::attach(program.as_fd(), ifindex, way)?;
            self.links.push(link);
        }
        Ok(())
    }

    fn program(&self, name: &str) -> io::Result<libbpf_rs::ProgramMut<'_>> {
        self.object
            .progs_mut()
            .find(|program| program.name() == name)
            .ok_or_else(|| io::Error::other(format!("no program {name}")))
    }

    fn map(&self, name: &str) -> io::Result<libbpf_rs::Map<'_>> {
        self.object
            .maps()
            .find(|map| map.name() == name)
            .ok_or_else(|| io::Error::other(format!("no map {name}")))
    }

    /// Writes an entry.
    ///
    /// # Errors
    /// What the kernel reports: no room.
    pub fn put(&self, map: &str, entry: &Entry) -> io::Result<()> {
        let map = self.map(map)?;
        map.update(&entry.key, &entry.value, MapFlags::ANY).map_err(failed)
    }

    /// Deletes a key.
    ///
    /// # Errors
    /// What the kernel reports; not if there is no such key.
    pub fn delete(&self, map: &str, key: &[u8]) -> io::Result<()> {
        match self.map(map)?.delete(key) {
            Err(error) if error.kind() != libbpf_rs::ErrorKind::NotFound => Err(failed(error)),
            _ => Ok(()),
        }
    }

    /// All keys of a map. While others write, some may be missing or there twice.
    ///
    /// # Errors
    /// If there is no such map.
    pub fn keys(&self, map: &str) -> io::Result<Vec<Vec<u8>>> {
        Ok(self.map(map)?.keys().collect())
    }

    /// The counters, in the order of [`layout::COUNTERS`](crate::inline::layout::COUNTERS), summed over CPUs.
    ///
    /// # Errors
    /// What the kernel reports.
    pub fn counters(&self) -> io::Result<Vec<u64>> {
        let map = self.map("counters")?;
        let count = map.max_entries();
        (0..count)
            .map(|index| {
                let values = map.lookup_percpu(&index.to_ne_bytes(), MapFlags::ANY).map_err(failed)?;
                let number = |bytes: &Vec<u8>| bytes.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
                Ok(values.iter().flatten().map(number).sum())
            })
            .collect()
    }

    /// Forgets those of these connections for which there is no socket any more.
    ///
    /// # Errors
    /// What the kernel reports.
    pub fn sweep(&self, keys: &[u8]) -> io::Result<()> {
        const ETHERNET: usize = 14;
        const AT_ONCE: usize = 32;
        let program = self.program("sweep")?;
        for keys in keys.chunks(AT_ONCE * FLOW_KEY) {
            let mut data = vec![0; ETHERNET];
            data.extend_from_slice(keys);
            let input = ProgramInput {
                data_in: Some(&data),
                ..ProgramInput::default()
            };
            program.test_run(input).map_err(failed)?;
        }
        Ok(())
    }
}
