//! What the engine did, in numbers: printed at exit and on SIGUSR1, and written as JSON by `--report FILE`.
//!
//! A [`Report`] is a snapshot that [`crate::engine`] fills; nothing here counts. Groups of counters that the engine does
//! not know by name ([`CounterGroup`]) are shown as they come, so that a new drop reason needs no change here. The text
//! form leaves out what is zero, but for the TCP counters, whose 18 names per side are always there; JSON has everything.
//!
//! The keys of the JSON form are an interface: scripts and the test rig read `records`, `records_lost`, `buffers` and
//! `counters`.

mod counters;
mod text;

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

pub use self::counters::{CounterGroup, CounterGroups};
use crate::records::SinkTotals;

/// Everything that was counted.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Report {
    /// Version of the engine.
    pub version: &'static str,
    /// Milliseconds since the start.
    pub uptime_ms: u64,
    /// Session records written, the sum over all sinks; without one, counted only.
    pub records: u64,
    /// Session records lost, because a core's ring or a sink's was full or they could not be written.
    pub records_lost: u64,
    /// Session records not written because `ctl records off` has said so.
    pub records_left_out: u64,
    /// The same for each of `[[records]]`, in their order.
    pub record_sinks: Vec<SinkTotals>,
    /// Lines of the log lost, because nobody reads it as fast as the cores have something to say.
    pub log_lost: u64,
    /// Connections open now.
    pub connections_open: u64,
    /// Next hops with a MAC address, and next hops.
    pub next_hops: NextHopTotals,
    /// What the servers' TCP can do, as far as they have answered; in the order of the configuration.
    pub servers: Vec<ServerReport>,
    /// What DNS has said of each name that is asked for.
    pub names: Vec<NameReport>,
    /// Packet buffers.
    pub buffers: Buffers,
    /// The counters of all cores together.
    pub counters: CounterGroups,
    /// What each core did.
    pub cores: Vec<CoreReport>,
    /// What each port says of itself.
    pub ports: Vec<PortReport>,
}

/// State of the next-hop table.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct NextHopTotals {
    /// Those whose MAC address is known.
    pub resolved: u64,
    /// All.
    pub total: u64,
}

/// What a server has said of its TCP, and how it is doing.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct ServerReport {
    /// Its name in the configuration.
    pub name: String,
    /// Connections to it that are open, from the SYN on.
    pub connections_open: u64,
    /// Calls to it.
    pub calls: u64,
    /// Calls that it refused, for which it was unreachable, or to which it said nothing until the end.
    pub failures: u64,
    /// Times that a core has ejected it because calls had failed.
    pub ejected_by_failure: u64,
    /// Times that a core has ejected it because calls were overdue.
    pub ejected_by_silence: u64,
    /// Cores that pass it over, but for calls that try it.
    pub cores_out: u64,
    /// Since when the last core changed its mind about that, in milliseconds after the start.
    pub since_ms: u64,
    /// `None` as long as it has answered no SYN, or when servers are not asked.
    pub abilities: Option<ReportedServerCaps>,
}

/// What DNS has said of a name.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct NameReport {
    /// The name that is asked for.
    pub name: String,
    /// Addresses in the answer that holds.
    pub addresses: u64,
    /// Milliseconds since the last good answer; none as long as there was none since the start.
    pub age_ms: Option<u64>,
    /// Times that no name server has answered, or none with an address.
    pub failures: u64,
    /// Messages that did not answer what was asked, and were left alone.
    pub refused: u64,
}

/// What one core knows of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoreServer {
    /// `None` as long as it has answered no SYN.
    pub caps: Option<ReportedServerCaps>,
    /// Connections to it that are open.
    pub open: u64,
    /// Calls to it.
    pub calls: u64,
    /// Those that failed.
    pub failures: u64,
    /// Times that it was ejected because calls had failed.
    pub ejected_by_failure: u32,
    /// Times that it was ejected because calls were overdue.
    pub ejected_by_silence: u32,
    /// It was ejected, and has answered no call since.
    pub is_out: bool,
    /// Since when, in milliseconds after the start.
    pub since_ms: u64,
}

/// The options and the window of a server's SYN-ACKs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct ReportedServerCaps {
    /// The largest segment that it takes.
    pub mss: u16,
    /// The shift of its windows.
    pub window_scale: Option<u8>,
    /// It permits SACK.
    pub sack: bool,
    /// It sends timestamps.
    pub timestamps: bool,
    /// Its smallest window, unscaled.
    pub window: u16,
}

/// Packet buffers of all pools, and whether they came back.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Buffers {
    /// Buffers in all pools.
    pub capacity: u64,
    /// Buffers that were free before the ports were started.
    pub available_before: u64,
    /// Buffers that are free now; while the engine runs, ports and connections hold some.
    pub available_after: u64,
    /// Buffers that closed devices are known never to give back.
    pub kept_by_driver: u64,
    /// Buffers missing at the end besides those; `None` as long as the engine runs.
    pub leaked: Option<u64>,
    /// The same per pool.
    pub pools: Vec<PoolReport>,
}

/// One pool of packet buffers.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct PoolReport {
    /// Its name.
    pub name: String,
    /// Buffers in it.
    pub capacity: u64,
    /// Buffers that a closed device is known never to give back (AF_XDP's fill ring).
    pub kept_by_driver: u64,
    /// Free before the ports were started.
    pub available_before: u64,
    /// Free now.
    pub available_after: u64,
}

/// What one worker core did.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct CoreReport {
    /// The core as Linux numbers it.
    pub core: u16,
    /// Rounds of its scheduler that did something.
    pub busy_rounds: u64,
    /// Rounds that found nothing to do.
    pub idle_rounds: u64,
    /// TSC cycles of the busy rounds.
    pub busy_cycles: u64,
    /// Nanoseconds of the busy rounds.
    pub busy_ns: u64,
    /// Nanoseconds of the longest round in the last second, or up to two.
    pub longest_round_ns: u64,
    /// Connections open now.
    pub connections_open: u64,
    /// What it knows of each server, in the order of the configuration; told of all cores together.
    #[serde(skip)]
    pub servers: Vec<CoreServer>,
    /// Its counters.
    pub counters: CounterGroups,
}

/// Statistics that the device keeps.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct PortReport {
    /// Its name in the configuration.
    pub name: String,
    /// Packets received.
    pub rx_packets: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Packets that found no free descriptor.
    pub rx_missed: u64,
    /// Packets that arrived damaged.
    pub rx_errors: u64,
    /// Packets that found no free buffer.
    pub rx_no_buffer: u64,
    /// Packets that could not be sent.
    pub tx_errors: u64,
    /// Whether its link is up; none where the device does not say.
    pub link_up: Option<bool>,
    /// How often its link has gone down.
    pub link_downs: u64,
    /// Whether the device was taken away while the engine ran.
    pub removed: bool,
}

impl Report {
    /// Sums the cores' counters and connections into the totals. Of what they know of a server, the first that knows
    /// anything is believed; `servers` has their names already.
    pub fn summed(mut self) -> Self {
        for core in &self.cores {
            for (all, of_core) in self.servers.iter_mut().zip(&core.servers) {
                all.add(of_core);
            }
            self.counters.add_all(&core.counters);
            self.connections_open += core.connections_open;
        }
        self
    }

    /// The JSON form: one object, indented, with a final newline.
    pub fn to_json(&self) -> String {
        // Maps with string keys and integers always serialise.
        let mut text = serde_json::to_string_pretty(self).unwrap_or_default();
        text.push('\n');
        text
    }

    /// Writes the JSON form so that a reader sees the old file or the new one, never half of one.
    ///
    /// # Errors
    /// The file, or its neighbour with `.new` at the end, cannot be written.
    pub fn write_json(&self, path: &Path) -> io::Result<()> {
        let is_special = fs::metadata(path).is_ok_and(|metadata| !metadata.is_file());
        if is_special {
            // A pipe or terminal cannot be replaced.
            return fs::write(path, self.to_json());
        }
        let mut beside = path.as_os_str().to_owned();
        beside.push(".new");
        let beside = PathBuf::from(beside);
        let mut file = fs::File::create(&beside)?;
        file.write_all(self.to_json().as_bytes())?;
        fs::rename(&beside, path)
    }
}

impl ServerReport {
    fn add(&mut self, core: &CoreServer) {
        self.abilities = self.abilities.or(core.caps);
        self.connections_open += core.open;
        self.calls += core.calls;
        self.failures += core.failures;
        self.ejected_by_failure += u64::from(core.ejected_by_failure);
        self.ejected_by_silence += u64::from(core.ejected_by_silence);
        self.cores_out += u64::from(core.is_out);
        self.since_ms = self.since_ms.max(core.since_ms);
    }
}

impl Buffers {
    /// Sums the pools; `ended` says that every buffer should be back.
    pub fn of(pools: Vec<PoolReport>, ended: bool) -> Self {
        let sum = |of: fn(&PoolReport) -> u64| pools.iter().map(of).sum::<u64>();
        let missing = |pool: &PoolReport| {
            pool.available_before
                .abs_diff(pool.available_after + pool.kept_by_driver)
        };
        Self {
            capacity: sum(|pool| pool.capacity),
            available_before: sum(|pool| pool.available_before),
            available_after: sum(|pool| pool.available_after),
            kept_by_driver: sum(|pool| pool.kept_by_driver),
            leaked: ended.then(|| pools.iter().map(missing).sum()),
            pools,
        }
    }
}

/// The names of the groups that the text form shows side by side.
pub const TCP_CLIENT: &str = "tcp_client";
/// See [`TCP_CLIENT`].
pub const TCP_SERVER: &str = "tcp_server";

/// The name of the group of what waits now, in frames by where: nothing that only grows.
pub const WAITING: &str = "waiting";

#[cfg(test)]
mod tests {
    use super::*;

    fn core(number: u16, dropped: u64) -> CoreReport {
        let mut core = CoreReport {
            core: number,
            connections_open: 2,
            servers: vec![CoreServer {
                caps: (number == 2).then_some(ReportedServerCaps {
                    mss: 1400,
                    window_scale: None,
                    sack: true,
                    timestamps: false,
                    window: 1000,
                }),
                open: 2,
                calls: 10,
                failures: u64::from(number),
                is_out: number == 2,
                since_ms: u64::from(number) * 1000,
                ..CoreServer::default()
            }],
            ..CoreReport::default()
        };
        core.counters
            .add(TCP_CLIENT, &CounterGroup::new([("SentSyn", 0), ("RecvSyn", 3)]));
        core.counters
            .add(TCP_SERVER, &CounterGroup::new([("SentSyn", 4), ("RecvSyn", 0)]));
        core.counters
            .add("drops", &CounterGroup::new([("too_short", dropped), ("fragment", 0)]));
        core
    }

    fn report() -> Report {
        let pool = PoolReport {
            name: "core1".into(),
            capacity: 100,
            available_before: 100,
            available_after: 97,
            kept_by_driver: 1,
        };
        let report = Report {
            version: "1",
            records: 5,
            servers: vec![ServerReport {
                name: "one".into(),
                ..ServerReport::default()
            }],
            cores: vec![core(1, 1), core(2, 6)],
            buffers: Buffers::of(vec![pool], true),
            ..Report::default()
        };
        report.summed()
    }

    #[test]
    fn cores_are_summed_by_name() {
        let report = report();
        assert_eq!(report.connections_open, 4);
        assert_eq!(
            report
                .counters
                .group("drops")
                .and_then(|group| group.count("too_short")),
            Some(7)
        );
        assert_eq!(report.counters.group(TCP_SERVER).map(CounterGroup::total), Some(8));
    }

    #[test]
    fn groups_that_are_filled_again_keep_their_names_and_memory() {
        let mut groups = CounterGroups::default();
        let fill = |groups: &mut CounterGroups, more: u64| {
            groups.count("one", [("a", 1 + more), ("b", 2)]);
            groups.count("two", [("a", 5)]);
            // Another port's, with a name less.
            groups.count("one", [("b", 3)]);
        };
        fill(&mut groups, 0);
        let names = groups.groups.as_ptr();
        groups.set_to_zero();
        assert_eq!(groups.group("one").map(CounterGroup::total), Some(0));
        fill(&mut groups, 7);
        let one = groups.group("one").expect("there");
        assert_eq!((one.count("a"), one.count("b")), (Some(8), Some(5)));
        assert_eq!((groups.groups.as_ptr(), groups.groups.len()), (names, 2));
    }

    #[test]
    fn what_any_core_knows_of_a_server_is_told() {
        let report = report();
        let text = report.to_string();
        assert!(
            text.contains("server one: MSS 1400, no window scale, SACK, no timestamps, window 1000\n"),
            "{text}"
        );
        let silent = ServerReport {
            name: "two".into(),
            ..ServerReport::default()
        };
        assert_eq!(silent.to_string(), "server two: not heard of\n");
    }

    #[test]
    fn json_has_the_keys_that_scripts_read() {
        let json: serde_json::Value = serde_json::from_str(&report().to_json()).expect("valid JSON");
        assert_eq!((&json["records"], &json["records_lost"]), (&5.into(), &0.into()));
        assert_eq!(json["buffers"]["capacity"], 100);
        assert_eq!(json["buffers"]["available_before"], 100);
        assert_eq!(json["buffers"]["available_after"], 97);
        assert_eq!(json["buffers"]["leaked"], 2);
        assert_eq!(json["counters"]["tcp_client"]["RecvSyn"], 6);
        let server = &json["servers"][0];
        assert_eq!((&server["calls"], &server["failures"]), (&20.into(), &3.into()));
        assert_eq!((&server["cores_out"], &server["since_ms"]), (&1.into(), &2000.into()));
        assert_eq!(json["counters"]["drops"]["fragment"], 0);
    }

    #[test]
    fn every_key_is_in_the_manual() {
        let manual = include_str!("../docs/operation.md");
        let json = serde_json::to_value(report()).expect("serialises");
        for key in json.as_object().expect("an object").keys() {
            assert!(
                manual.contains(&format!("| `{key}` |")),
                "docs/operation.md does not explain `{key}`"
            );
        }
        for key in json["buffers"].as_object().expect("an object").keys() {
            assert!(
                manual.contains(&format!("`{key}`")),
                "docs/operation.md does not explain buffers.{key}"
            );
        }
    }

    #[test]
    fn text_shows_all_tcp_counters_and_only_the_drops_that_happened() {
        let text = report().to_string();
        assert!(text.contains("SentSyn                    0             8"), "{text}");
        assert!(text.contains("too_short") && !text.contains("fragment"), "{text}");
        assert!(text.contains("2 LOST"), "{text}");
    }

    #[test]
    fn buffers_of_a_running_engine_are_not_called_lost() {
        let pool = PoolReport {
            capacity: 10,
            available_before: 10,
            available_after: 4,
            ..PoolReport::default()
        };
        let buffers = Buffers::of(vec![pool], false);
        assert_eq!(buffers.leaked, None);
        assert!(buffers.to_string().ends_with("4 free now\n"), "{buffers}");
    }

    #[test]
    fn a_pool_with_more_than_before_does_not_hide_a_leak_in_another() {
        let pool = |after| PoolReport {
            capacity: 10,
            available_before: 9,
            available_after: after,
            ..PoolReport::default()
        };
        assert_eq!(Buffers::of(vec![pool(10), pool(8)], true).leaked, Some(2));
    }

    #[test]
    fn a_report_file_is_replaced_as_a_whole() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("report.json");
        fs::write(&path, "old").expect("write");
        report().write_json(&path).expect("report");
        assert_eq!(fs::read_to_string(&path).expect("read"), report().to_json());
        assert_eq!(fs::read_dir(dir.path()).expect("list").count(), 1);
        let missing = dir.path().join("missing").join("report.json");
        assert!(report().write_json(&missing).is_err());
    }
}
