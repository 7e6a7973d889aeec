//! The programs and maps in the kernel, through libbpf.

pub use super::cost::{Costs, costs};
use super::pins::Pins;
use super::system::{self, Way};
use crate::inline::layout::{self, Entry, FLOW_KEY, FLOW_VALUE, Swept};
use libbpf_rs::query::ProgInfoIter;
use libbpf_rs::{MapCore, MapFlags, MapHandle, Object, ObjectBuilder, OpenMapMut, PrintLevel, ProgramInput};
use rustix::fd::{AsFd, OwnedFd};
use std::io;
use std::path::Path;

static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/inline.bpf.o"));

fn failed(error: libbpf_rs::Error) -> io::Error {
    io::Error::other(format!("{error:#}"))
}

/// Names of the programs that links run on an interface's packets, without those of any mmproxy. None where the kernel has no such
/// links, or nobody is allowed to ask (`CAP_SYS_ADMIN`).
pub fn other_programs(ifindex: u32) -> Vec<String> {
    let ways = [Way::Ingress, Way::Egress];
    let ids = ways.map(|way| system::attached(ifindex, way).unwrap_or_default());
    ProgInfoIter::default()
        .filter(|program| ids.iter().flatten().any(|&id| id == program.id))
        .map(|program| program.name.to_string_lossy().into_owned())
        .filter(|name| PROGRAMS.iter().all(|(ours, _)| ours != name))
        .collect()
}

/// The answers first: a connection is not begun before they find their way.
const PROGRAMS: [(&str, Way); 2] = [("to_client", Way::Egress), ("to_server", Way::Ingress)];

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
        for (name, way) in PROGRAMS {
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

    pub(super) fn program(&self, name: &str) -> io::Result<libbpf_rs::ProgramMut<'_>> {
        self.object
            .progs_mut()
            .find(|program| program.name() == name)
            .ok_or_else(|| io::Error::other(format!("no program {name}")))
    }

    pub(super) fn map(&self, name: &str) -> io::Result<libbpf_rs::Map<'_>> {
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

    /// The counters, in the order of [`layout::COUNTERS`], summed over CPUs.
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

    /// Looks at some of the connections, from where the look before has ended, and forgets those that have no socket and are not
    /// quite new (`now` in seconds of `CLOCK_MONOTONIC`).
    ///
    /// # Errors
    /// What the kernel reports.
    pub fn sweep(&self, from: Option<u32>, now: u32) -> io::Result<Swept> {
        /// Entries that are read at once: 72 KiB.
        const ROOM: u32 = 1024;
        let batch = system::read_batch(&self.map("flows")?, from, ROOM)?;
        let keys = batch.keys.chunks_exact(FLOW_KEY);
        let entries = keys.len();
        let (mut old, mut active) = (Vec::new(), 0);
        for (key, value) in keys.zip(batch.values.chunks_exact(FLOW_VALUE)) {
            // The other way goes with it.
            if layout::is_to_server(key) {
                active += 1;
                if layout::may_have_ended(value, now) {
                    old.extend_from_slice(key);
                }
            }
        }
        Ok(Swept {
            entries,
            active: active - self.forget_ended(&old)?,
            next: batch.next,
        })
    }

    /// Forgets those of these connections for which there is no socket any more, and returns how many.
    fn forget_ended(&self, keys: &[u8]) -> io::Result<usize> {
        const ETHERNET: usize = 14;
        // A packet for the programs has a page at most.
        const AT_ONCE: usize = 64;
        let program = self.program("sweep")?;
        let mut ended = 0;
        for keys in keys.chunks(AT_ONCE * FLOW_KEY) {
            let mut data = vec![0; ETHERNET];
            data.extend_from_slice(keys);
            let input = ProgramInput {
                data_in: Some(&data),
                ..ProgramInput::default()
            };
            ended += program.test_run(input).map_err(failed)?.return_value as usize;
        }
        Ok(ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inline::cost::{Endpoint, endpoints, key, packet, put_flow};
    use crate::inline::host::Host;
    use crate::inline::layout::{self, ListenerEntry};
    use std::net::{Ipv4Addr, TcpListener};

    /// Programs with a port of ours; `None`, and the reason said, where they cannot be loaded.
    fn loaded() -> Option<Kernel> {
        let kernel = Kernel::load(16, None)
            .map_err(|error| crate::inline::lacking(&error))
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
            put_flow(&kernel, balancer, server, 0, client).expect("room");
            put_flow(&kernel, client, server, 1, balancer).expect("room");
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
    fn answers_are_redirected_unless_they_leave_for_the_balancer() {
        const PASS: u32 = 0;
        const REDIRECT: u32 = 7;
        // A connection of loopback's, where test packets are; whose balancer's packets come from 02:00:00:00:00:07.
        let value = |(address, port): Endpoint, interface: u32| {
            let flags = 3u16.to_ne_bytes();
            let place = [&interface.to_ne_bytes()[..], &[0, 0], &[2, 0, 0, 0, 0, 7]].concat();
            [&address[..], &port.to_be_bytes(), &flags, &place].concat()
        };
        let Some(kernel) = loaded() else { return };
        for v6 in [false, true] {
            let [balancer, client, server] = endpoints(v6);
            for (interface, last, expected) in [(1, 7, PASS), (1, 8, REDIRECT), (2, 7, REDIRECT)] {
                let (key, value) = (key(client, server, 1), value(balancer, interface));
                kernel.put("flows", &Entry { key, value }).expect("room");
                let mut bytes = packet(v6, server, client);
                bytes[..6].copy_from_slice(&[2, 0, 0, 0, 0, last]);
                let input = ProgramInput {
                    data_in: Some(&bytes),
                    ..ProgramInput::default()
                };
                let output = kernel.program("to_client").expect("a program").test_run(input);
                let verdict = output.expect("run").return_value;
                assert_eq!(verdict, expected, "interface {interface}, to {last}, IPv6: {v6}");
            }
        }
    }

    /// A segment of the balancer's with these numbers and this much payload; nobody looks at the sums of what has no socket yet.
    fn segment(server: Endpoint, flags: u8, number: u32, acknowledged: u32, payload: usize) -> Vec<u8> {
        let [balancer, ..] = endpoints(false);
        let mut bytes = packet(false, balancer, server);
        bytes.truncate(54 + payload);
        bytes[16..18].copy_from_slice(&(40 + payload as u16).to_be_bytes());
        bytes[38..42].copy_from_slice(&number.to_be_bytes());
        bytes[42..46].copy_from_slice(&acknowledged.to_be_bytes());
        bytes[47] = flags;
        bytes
    }

    /// The first segment of each connection is lost: its cookie is no reason to take a later one for it.
    #[test]
    fn what_follows_a_lost_first_segment_is_never_taken_for_it() {
        const CONNECTIONS: u32 = 100_000;
        const SYN: u8 = 2;
        const ACK: u8 = 16;
        let Some(kernel) = loaded() else { return };
        let socket = TcpListener::bind("127.0.0.1:0").expect("a socket that listens");
        let local = socket.local_addr().expect("address");
        let server = (Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets(), local.port());
        layout::ports([local.port()].into_iter())
            .iter()
            .for_each(|entry| kernel.put("ports", entry).expect("written"));
        let listener = ListenerEntry {
            local,
            target_v4: Some(local),
            target_v6: None,
            trusted: 0,
            verify_checksum: false,
            drop_duplicate: false,
            draining: false,
            slot: 600,
            header_limit: 536,
            rules: vec![],
        };
        kernel.put("listeners", &layout::listener(&listener)).expect("room");
        let settings = layout::settings(&Host::default(), [0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210], 0);
        kernel.put("settings", &settings).expect("room");
        let run = |bytes: &[u8]| {
            let mut out = vec![0; 256];
            let input = ProgramInput {
                data_in: Some(bytes),
                data_out: Some(&mut out),
                ..ProgramInput::default()
            };
            kernel
                .program("to_server")
                .expect("a program")
                .test_run(input)
                .expect("run");
            out
        };
        let mut first = 0x1234_5678u32;
        for index in 0..CONNECTIONS {
            first = first.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let answer = run(&segment(server, SYN, first, 0, 0));
            let cookie = u32::from_be_bytes(*answer[38..].first_chunk().expect("a number"));
            // Behind the shortest header, and up to where the window of the SYN-ACK ends.
            let later = first.wrapping_add(1 + 15 + index % 65_500);
            run(&segment(server, ACK, later, cookie.wrapping_add(1), 8));
        }
        let counters = kernel.counters().expect("counters");
        let counted = |name| {
            let at = layout::COUNTERS.iter().position(|&(one, _)| one == name);
            counters[at.expect("a counter")]
        };
        assert_eq!(counted("syn_answered"), u64::from(CONNECTIONS));
        assert_eq!(counted("not_yet"), u64::from(CONNECTIONS));
    }

    #[test]
    fn programs_of_others_are_named_and_ours_are_not() {
        let Some(mut kernel) = loaded() else { return };
        let named = std::thread::spawn(move || {
            // Loopback is the first interface of a network.
            kernel.attach_in_private().map(|()| {
                let before = other_programs(1);
                let program = kernel.program("sweep").expect("a program");
                let _link = system::attach(program.as_fd(), 1, Way::Egress).expect("attached");
                (before, other_programs(1))
            })
        });
        match named.join().expect("a thread") {
            Ok(named) => assert_eq!(named, (vec![], vec!["sweep".to_owned()])),
            Err(error) => crate::inline::lacking(&error),
        }
    }

    #[test]
    fn ip_options_and_fragments_are_dropped_for_our_connections_only() {
        // TC_ACT_UNSPEC: other programs decide.
        const PASS: u32 = u32::MAX;
        const DROP: u32 = 2;
        let Some(kernel) = loaded() else { return };
        let [balancer, client, server] = endpoints(false);
        put_flow(&kernel, balancer, server, 0, client).expect("room");
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
}
