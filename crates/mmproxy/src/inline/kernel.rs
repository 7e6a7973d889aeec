//! The programs and maps in the kernel, through libbpf.

use super::pins::Pins;
use super::system::{self, Way};
use crate::inline::layout::{Entry, FLOW_KEY, FLOW_VALUE};
use libbpf_rs::{MapCore, MapFlags, MapHandle, Object, ObjectBuilder, OpenMapMut, PrintLevel, ProgramInput};
use rustix::fd::{AsFd, OwnedFd};
use std::io;
use std::path::Path;

static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/inline.bpf.o"));

fn failed(error: libbpf_rs::Error) -> io::Error {
    io::Error::other(format!("{error:#}"))
}

/// Loaded programs. Those that are attached end with this value, unless they are pinned.
pub struct Kernel {
    object: Object,
    links: Vec<OwnedFd>,
    pins: Option<Pins>,
}

/// Uses the map that is pinned at `path`, if there is one, with the room that it has.
fn share(map: &mut OpenMapMut<'_>, path: &Path) -> io::Result<()> {
    if !path.exists() {
        return Ok(());
    }
    let pinned = MapHandle::from_pinned_path(path).map_err(failed)?;
    let sizes = (pinned.key_size(), pinned.value_size());
    if sizes != (FLOW_KEY as u32, FLOW_VALUE as u32) {
        let text = format!("{}: connections of another version; remove it", path.display());
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    map.set_max_entries(pinned.max_entries()).map_err(failed)?;
    map.reuse_fd(pinned.as_fd()).map_err(failed)
}

impl Kernel {
    /// Loads the programs with room for `limit` connections. With a folder in a BPF file system they share the connections that
    /// are pinned there.
    ///
    /// # Errors
    /// What the kernel reports: capabilities, a kernel without what they need (Linux 6.9), connections of another version.
    pub fn load(limit: u32, folder: Option<&Path>) -> io::Result<Self> {
        let pins = folder.map(Pins::open).transpose()?;
        libbpf_rs::set_print(Some((PrintLevel::Warn, |_, text| {
            log::debug!("libbpf: {}", text.trim_end())
        })));
        let mut open = ObjectBuilder::default().open_memory(OBJECT).map_err(failed)?;
        for mut map in open.maps_mut() {
            if map.name() == "flows" {
                // One entry for each way.
                map.set_max_entries(limit.saturating_mul(2)).map_err(failed)?;
                if let Some(pins) = &pins {
                    share(&mut map, &pins.flows())?;
                }
            }
        }
        let object = open.load().map_err(failed)?;
        let kernel = Kernel {
            object,
            links: vec![],
            pins,
        };
        kernel.pin_connections()?;
        Ok(kernel)
    }

    fn pin_connections(&self) -> io::Result<()> {
        match &self.pins {
            Some(pins) if !pins.flows().exists() => system::pin(self.map("flows")?.as_fd(), &pins.flows()),
            _ => Ok(()),
        }
    }

    /// Whether connections outlive this value.
    pub fn is_pinned(&self) -> bool {
        self.pins.is_some()
    }

    /// The settings that the mmproxy before has pinned.
    ///
    /// # Errors
    /// What the kernel reports.
    pub fn pinned_settings(&self) -> io::Result<Option<Vec<u8>>> {
        let Some(pins) = self.pins.as_ref().filter(|pins| pins.settings().exists()) else {
            return Ok(None);
        };
        let map = MapHandle::from_pinned_path(pins.settings()).map_err(failed)?;
        map.lookup(&[0; 4], MapFlags::ANY).map_err(failed)
    }

    /// Attaches the programs to these interfaces, and to no others. Where programs are pinned these take their place.
    ///
    /// # Errors
    /// What the kernel reports.
    pub fn attach(&mut self, interfaces: &[u32]) -> io::Result<()> {
        // The answers first: a connection is not begun before they find their way.
        for (name, way) in [("to_client", Way::Egress), ("to_server", Way::Ingress)] {
            for &ifindex in interfaces {
                let program = self.program(name)?;
                let link = match &self.pins {
                    Some(pins) => pins.attach(program.as_fd(), ifindex, way)?,
                    None => system::attach(program.as_fd(), ifindex, way)?,
                };
                self.links.push(link);
            }
        }
        let Some(pins) = &self.pins else { return Ok(()) };
        pins.detach_others(interfaces)?;
        if pins.settings().exists() {
            std::fs::remove_file(pins.settings())?;
        }
        system::pin(self.map("settings")?.as_fd(), &pins.settings())
    }

    /// Moves this thread into a network of its own, of loopback alone, and attaches the programs there.
    ///
    /// # Errors
    /// What the kernel reports: `CAP_SYS_ADMIN` is needed.
    pub fn attach_in_private(&mut self) -> io::Result<()> {
        const LOOPBACK: u32 = 1;
        system::enter_private_network()?;
        let pins = self.pins.take();
        let attached = self.attach(&[LOOPBACK]);
        self.pins = pins;
        attached
    }

    /// Ends what was attached.
    pub fn detach(&mut self) {
        self.links.clear();
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inline::layout;
    use std::net::Ipv6Addr;

    /// Bytes of a segment of 100 bytes with its right checksums, from `source` to `destination`.
    fn packet(v6: bool, source: ([u8; 16], u16), destination: ([u8; 16], u16)) -> Vec<u8> {
        let mut tcp = [source.1.to_be_bytes(), destination.1.to_be_bytes()].concat();
        tcp.extend([0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
        tcp.extend([7; 100]);
        let length = tcp.len() as u16;
        let sum = checksum(&[&source.0[..], &destination.0, &[0, 6], &length.to_be_bytes(), &tcp].concat());
        tcp[16..18].copy_from_slice(&sum.to_be_bytes());
        let mut bytes = vec![0; 12];
        if v6 {
            bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            bytes.extend(length.to_be_bytes());
            bytes.extend([6, 64]);
            bytes.extend([source.0, destination.0].concat());
        } else {
            let mut ip = vec![0x45, 0];
            ip.extend((length + 20).to_be_bytes());
            ip.extend([0, 0, 0x40, 0, 64, 6, 0, 0]);
            ip.extend([&source.0[12..], &destination.0[12..]].concat());
            let sum = checksum(&ip);
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
            bytes.extend([8, 0]);
            bytes.extend(ip);
        }
        bytes.extend(tcp);
        bytes
    }

    /// RFC 1071. The prefix of mapped addresses, twice ffff, adds nothing.
    fn checksum(bytes: &[u8]) -> u16 {
        let word = |pair: &[u8]| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
        let mut sum: u32 = bytes.chunks(2).map(word).sum();
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !(sum as u16)
    }

    fn key(remote: ([u8; 16], u16), local: ([u8; 16], u16), direction: u32) -> Vec<u8> {
        let ports = [remote.1.to_be_bytes(), local.1.to_be_bytes()].concat();
        [&remote.0[..], &local.0, &ports, &direction.to_ne_bytes()].concat()
    }

    type Endpoint = ([u8; 16], u16);

    fn put_flow(kernel: &Kernel, remote: Endpoint, local: Endpoint, direction: u32, other: Endpoint) {
        const LIVE: u16 = 1;
        let value = [&other.0[..], &other.1.to_be_bytes(), &LIVE.to_ne_bytes(), &[0; 12]].concat();
        let key = key(remote, local, direction);
        kernel.put("flows", &Entry { key, value }).expect("written");
    }

    fn endpoints(v6: bool) -> [Endpoint; 3] {
        let mapped = |address: [u8; 4]| std::net::Ipv4Addr::from(address).to_ipv6_mapped().octets();
        let six = |last| Ipv6Addr::new(0x2001, 0xdb8, 1, 2, 3, 4, 5, last).octets();
        let address = |v4, last| if v6 { six(last) } else { mapped(v4) };
        [
            (address([10, 7, 0, 2], 2), 50_001),
            (address([203, 0, 113, 7], 7), 40_001),
            (address([10, 7, 0, 1], 1), 8443),
        ]
    }

    /// Programs with a port of ours; `None`, and the reason said, where they cannot be loaded.
    fn loaded() -> Option<Kernel> {
        let kernel = Kernel::load(16, None)
            .map_err(|error| eprintln!("skipped: {error}"))
            .ok()?;
        layout::ports([8443].into_iter())
            .iter()
            .for_each(|entry| kernel.put("ports", entry).expect("written"));
        Some(kernel)
    }

    /// The whole packet is compared, so that a checksum that is one off shows.
    #[test]
    fn established_segments_are_translated_both_ways() {
        let Some(kernel) = loaded() else { return };
        for v6 in [false, true] {
            let [balancer, client, server] = endpoints(v6);
            put_flow(&kernel, balancer, server, 0, client);
            put_flow(&kernel, client, server, 1, balancer);
            let ways = [
                ("to_server", packet(v6, balancer, server), packet(v6, client, server)),
                ("to_client", packet(v6, server, client), packet(v6, server, balancer)),
            ];
            for (name, before, after) in ways {
                let mut out = vec![0; 512];
                let input = ProgramInput {
                    data_in: Some(&before),
                    data_out: Some(&mut out),
                    ..ProgramInput::default()
                };
                let output = kernel.program(name).expect("a program").test_run(input).expect("run");
                assert_eq!(output.return_value, 0);
                let data = output.data.expect("a packet");
                assert_eq!(data[..after.len()], after[..], "{name}, IPv6: {v6}");
            }
        }
    }

    #[test]
    fn ip_options_and_fragments_are_dropped_for_our_connections_only() {
        const PASS: u32 = 0;
        const DROP: u32 = 2;
        let Some(kernel) = loaded() else { return };
        let [balancer, client, server] = endpoints(false);
        put_flow(&kernel, balancer, server, 0, client);
        let verdict = |bytes: &[u8]| {
            let input = ProgramInput {
                data_in: Some(bytes),
                ..ProgramInput::default()
            };
            let program = kernel.program("to_server").expect("a program");
            program.test_run(input).expect("run").return_value
        };
        for (source, expected) in [(balancer, DROP), (client, PASS)] {
            let plain = packet(false, source, server);
            let mut options = plain.clone();
            options[14] = 0x46;
            options.splice(34..34, [1, 1, 1, 0]);
            assert_eq!(verdict(&options), expected, "options");
            let mut first = plain.clone();
            first[20] = 0x20;
            assert_eq!(verdict(&first), expected, "the first fragment");
            let mut later = plain;
            later[21] = 9;
            assert_eq!(verdict(&later), PASS, "a later fragment");
        }
    }

    /// The best of twelve runs: what else the machine does only adds. Limits are five times what a quiet machine takes.
    #[test]
    fn ns_per_packet() {
        let Some(kernel) = loaded() else { return };
        for v6 in [false, true] {
            let [balancer, _, server] = endpoints(v6);
            // A connection that stays itself, so that each turn finds it.
            put_flow(&kernel, balancer, server, 0, balancer);
            put_flow(&kernel, balancer, server, 1, balancer);
            let ways = [
                ("to_server", packet(v6, balancer, server)),
                ("to_client", packet(v6, server, balancer)),
            ];
            for (name, bytes) in ways {
                let program = kernel.program(name).expect("a program");
                let run = |_| {
                    let input = ProgramInput {
                        data_in: Some(&bytes),
                        repeat: 20_000,
                        ..ProgramInput::default()
                    };
                    program.test_run(input).expect("run").duration.as_nanos()
                };
                let best = (0..12).map(run).min().unwrap_or_default();
                println!("ns_per_packet {name} IPv{}: {best}", if v6 { 6 } else { 4 });
                assert!(best < 600, "{name}: {best} ns");
            }
        }
    }
}
