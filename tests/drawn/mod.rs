//! Configurations that are drawn, each of which differs from another in a few things.

use proptest::prelude::*;
use proptest::sample::subsequence;

const PORTS: &str = r#"
[[port]]
name = "left"
device = "net_ring0"
addresses = ["10.0.0.1/24"]
[[port]]
name = "right"
device = "net_ring1"
addresses = ["10.1.0.1/24"]
"#;

/// One drawn file.
#[derive(Clone, Debug)]
pub(crate) struct Drawn {
    /// By listener: its number, the last byte of its address, how many rules, and whether the first goes last.
    listeners: Vec<(u8, u8, usize, bool)>,
    /// By pool: its servers with their weights.
    pools: [Vec<(u8, u16)>; 2],
    /// By pool: which of [`POLICIES`], and whether its first server is a backup, if there is another.
    policies: [(usize, bool); 2],
    /// Which of [`GUARDS`] all listeners have.
    guard: usize,
    /// How many connections each server may have, and how many seconds to answer.
    most: u16,
    idle: u16,
    drain: u8,
    /// Whether strangers are answered, and whether addresses of listeners are.
    answers: [bool; 2],
    /// Which of [`REST`], [`PROMISES`] and [`RECORDS`].
    core: [usize; 3],
    /// Which of [`RESTARTS`] are not as usual.
    pub(crate) restarts: [bool; 3],
}

/// What needs a restart: the key, what it is usually and what rarely, and where that stands.
pub(crate) const RESTARTS: [(&str, [&str; 2]); 3] = [
    (
        "engine.max_connections",
        ["max_connections = 64", "max_connections = 128"],
    ),
    (
        "engine.replies_per_second",
        ["replies_per_second = 1000", "replies_per_second = 2000"],
    ),
    ("control", ["", "[control]\nhttp = \"127.0.0.1:9000\""]),
];

const REST: [&str; 3] = ["", "time_wait = \"1s\"", "time_wait = \"2m\""];

const PROMISES: [&str; 4] = [
    "",
    "probe = false",
    "mss = 1000\ntimestamps = false",
    "mss = 536\nwindow_scale = 3\nsack = false\ntimestamps = true\nwindow = 2000",
];

const RECORDS: [&str; 3] = [
    "",
    "[[records]]\nfile = \"/tmp/r\"",
    "[[records]]\nfile = \"/tmp/q\"\n[[records]]\nsyslog = \"127.0.0.1:514\"",
];

const POLICIES: [&str; 5] = [
    "policy = \"round_robin\"",
    "policy = \"least_connections\"",
    "policy = \"client_hash\"",
    "policy = \"maglev\"\nhash = { seed = 1 }",
    "policy = \"maglev\"\nhash = { seed = 2, balance_factor = 150 }",
];

/// Keys of a listener, a rule that gives a class, and what is said of classes.
const GUARDS: [(&str, &str, &str); 4] = [
    ("", "", ""),
    (
        "limit = { connections = 9 }",
        "{ client = [\"10.9.0.0/16\"], class = \"a\" }",
        "",
    ),
    (
        "client_limit = { rate = 3 }",
        "{ client = [\"10.9.0.0/16\"], class = \"b\" }",
        "[[class]]\nname = \"b\"\nlimit = { connections = 5 }\n",
    ),
    (
        "",
        "{ listener_port = [\"80\"], class = \"a\" }",
        "[[class]]\nname = \"a\"\nrank = \"first\"\n",
    ),
];

pub(crate) fn drawn() -> impl Strategy<Value = Drawn> {
    let listener = (0_u8..5, 10_u8..14, 0_usize..3, any::<bool>());
    let listeners = proptest::collection::vec(listener, 1..4);
    let pool = || {
        let servers: Vec<u8> = (100..106).collect();
        let weights = proptest::collection::vec(1_u16..4, 6);
        (subsequence(servers, 1..5), weights).prop_map(|(servers, weights)| servers.into_iter().zip(weights).collect())
    };
    let rarely = || proptest::bool::weighted(0.05);
    let restarts = [rarely(), rarely(), rarely()];
    let core = [0..REST.len(), 0..PROMISES.len(), 0..RECORDS.len()];
    let policy = || (0..POLICIES.len(), any::<bool>());
    let choosing = ([policy(), policy()], 0..GUARDS.len());
    let small = (10_u16..13, 10_u16..13, 1_u8..4, any::<[bool; 2]>(), choosing);
    let parts = (listeners, [pool(), pool()], small, (core, restarts));
    parts.prop_map(
        |(mut listeners, pools, (most, idle, drain, answers, (policies, guard)), (core, restarts))| {
            listeners.sort_unstable();
            listeners.dedup_by_key(|listener| listener.0);
            let mut seen = std::collections::HashSet::new();
            listeners.retain(|listener| seen.insert(listener.1));
            Drawn {
                listeners,
                pools,
                policies,
                guard,
                most,
                idle,
                drain,
                answers,
                core,
                restarts,
            }
        },
    )
}

impl Drawn {
    pub(crate) fn text(&self) -> String {
        let [max_connections, replies, control] = self.usual_or_not();
        let [rest, promises, records] = self.core;
        let (time_wait, promises, records) = (REST[rest], PROMISES[promises], RECORDS[records]);
        let (flows, announce) = (["silent", "rst"], ["off", "on"]);
        let [flows, announce] = [
            flows[usize::from(self.answers[0])],
            announce[usize::from(self.answers[1])],
        ];
        let mut text = format!(
            "[engine]\nname = \"drawn\"\ncores = [0]\n{max_connections}\n{replies}\ndrain = \"{}s\"\nunknown_flows = \"{flows}\"\n\
             announce = \"{announce}\"\n[timeouts]\nidle = \"{}s\"\n{time_wait}\n[syn_ack]\n{promises}\n{records}\n{control}\n{PORTS}",
            self.drain, self.idle
        );
        for (name, address, rules, turned) in &self.listeners {
            let mut all = vec!["{ prefix = \"a\", pool = \"p0\" }", "{ prefix = \"b\", pool = \"p1\" }"];
            all.truncate(*rules);
            if *turned {
                all.reverse();
            }
            let (keys, class, _) = GUARDS[self.guard];
            all.extend(Some(class).filter(|class| !class.is_empty()));
            text += &format!(
                "[[listener]]\nname = \"l{name}\"\naddresses = [\"10.0.0.{address}:80\"]\nrules = [{}]\ndefault = \"p{}\"\n{keys}\n",
                all.join(", "),
                name % 2
            );
        }
        text += GUARDS[self.guard].2;
        for (pool, members) in self.pools.iter().enumerate() {
            let (policy, has_backup) = self.policies[pool];
            let (policy, most) = (POLICIES[policy], self.most);
            let line = |(place, (server, weight)): (usize, &(u8, u16))| {
                let backup = has_backup && place == 0 && members.len() > 1;
                format!(
                    "{{ name = \"s{server}\", address = \"10.1.0.{server}:80\", weight = {weight}, max_connections = {most}, \
                     backup = {backup} }}"
                )
            };
            let members: Vec<String> = members.iter().enumerate().map(line).collect();
            text += &format!(
                "[[pool]]\nname = \"p{pool}\"\n{policy}\nconnect_timeout = \"{most}s\"\nservers = [{}]\n",
                members.join(", ")
            );
        }
        text
    }
}

impl Drawn {
    fn usual_or_not(&self) -> [&'static str; 3] {
        std::array::from_fn(|index| RESTARTS[index].1[usize::from(self.restarts[index])])
    }
}

/// The text of a small file.
#[allow(dead_code)] // of one of the programs that share this
pub(crate) fn small() -> String {
    let drawn = Drawn {
        listeners: vec![(0, 10, 1, false)],
        pools: [vec![(100, 1)], vec![(101, 1)]],
        policies: [(0, false); 2],
        guard: 0,
        most: 10,
        idle: 10,
        drain: 1,
        answers: [true; 2],
        core: [0; 3],
        restarts: [false; 3],
    };
    drawn.text()
}
