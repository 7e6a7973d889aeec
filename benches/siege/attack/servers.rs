//! Servers that are silent, away or far: what the clients of the others and their own get.
//!
//! Everything is the engine's default: which calls are overdue, how much is held, what is given up. All is played in the time
//! of the core, so that only `servers 100 ms away`, whose load is half of the core's maximum, depends on the machine.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::Serialize;
use trafficengine::stats::{ClientStats, Failure};
use trafficengine::{AddressRange, Pace};

use super::result::AttackResult;
use super::rows::{Rows, honest_maximum};
use crate::device::{BoxError, Conditions, Host, Rules};
use crate::siege::{Field, conditions, impatient};

/// What silence of one server may add to the 99th percentile, in milliseconds.
const ADDED: f64 = 100.0;

/// Servers where one of them is silent, and where all are away or far.
const SERVERS: u8 = 10;

/// Honest load before anything happens.
const BEFORE: Duration = Duration::from_millis(500);

/// How long the servers' machine stands still.
const AWAY: Duration = Duration::from_millis(200);

/// How long what was lost meanwhile may take: SYNs are repeated after one second and after two more.
const AFTER_AWAY: Duration = Duration::from_millis(3_300);

/// How far servers are away that are far.
const FAR: Duration = Duration::from_millis(100);

/// For how long the last connections go on in the core's own time: those to servers that are far have as many packets under
/// way as come in a tenth of a second, and time that passes faster than the core works would lose them at its queue.
const GOES_ON: Duration = Duration::from_secs(1);

/// How long the last connections may take to end.
const PATIENCE: Duration = Duration::from_secs(90);

/// Among what was dropped: what did not fit into the queues of the hosts.
const LOAD_OVERFLOW: &str = "load_overflow";

/// Connections while servers were in trouble. Names are those of the JSON.
#[derive(Serialize)]
pub(crate) struct ServerRow {
    pub(crate) name: &'static str,
    pub(crate) rate_per_second: f64,
    pub(crate) completed: u64,
    /// Connections that did not end as they should, for whatever reason.
    pub(crate) failed: u64,
    /// Those of them that got RST.
    pub(crate) reset: u64,
    pub(crate) failures: BTreeMap<&'static str, u64>,
    /// From when a connection should have started to the first byte of its response: the 99th percentile with the trouble
    /// less that without, and the longest.
    pub(crate) added_p99_ms: f64,
    pub(crate) longest_ms: f64,
    /// Rounds of more than 50 µs that nothing excuses: at full speed the queue overflows behind one of some hundred.
    pub(crate) rounds_over_50us: u64,
    /// What the engine did about calls.
    pub(crate) calls: BTreeMap<&'static str, u64>,
    /// What was dropped, by reason; `queue_overflow` is what did not fit into the queues of the core, `load_overflow` what did not into
    /// those of the hosts.
    pub(crate) drops: BTreeMap<String, u64>,
    pub(crate) met: bool,
    pub(crate) violated: Vec<String>,
}

/// What happens to the servers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Trouble {
    /// One of ten hears nothing.
    Silent,
    /// The machine that all of them are on does nothing for a while.
    Away,
    /// All are far.
    Far,
}

const EVENTS: [&str; 4] = ["given_up", "moved_on", "ejected_by_failure", "ejected_by_silence"];

/// All rows that are wanted.
pub(crate) fn run(
    host: &Host,
    seconds: f64,
    seed: u64,
    rows: &Rows<'_>,
    result: &mut AttackResult,
) -> Result<(), BoxError> {
    let time = Duration::from_secs_f64(seconds);
    for (letter, name, trouble) in [
        ('f', "silent server", Trouble::Silent),
        ('g', "servers away for 200 ms", Trouble::Away),
        ('h', "servers 100 ms away", Trouble::Far),
    ] {
        if !rows.wants(name) {
            continue;
        }
        let conditions = Conditions {
            servers: SERVERS,
            rules: Rules::Pool,
            ..conditions()
        };
        let mut field = Field::new(host.open_ends(letter, &conditions, impatient)?, &conditions, seed)?;
        let rate = match trouble {
            Trouble::Silent => 50_000.0,
            Trouble::Away => 80_000.0,
            Trouble::Far => 0.5 * honest_maximum(&mut field),
        };
        let row = measure(&mut field, name, trouble, (rate, time));
        println!("{row}");
        let place = match trouble {
            Trouble::Silent => &mut result.silent_server,
            Trouble::Away => &mut result.servers_away_200ms,
            Trouble::Far => &mut result.servers_100ms_away,
        };
        *place = Some(row);
        result.count_rounds(&field);
    }
    Ok(())
}

fn measure(field: &mut Field, name: &'static str, trouble: Trouble, (rate, time): (f64, Duration)) -> ServerRow {
    let without = load(field, rate, |field| field.run(BEFORE));
    let before = EVENTS.map(|event| calls(field, event));
    let dropped = drops(field);
    let work = field.work;
    let with = match trouble {
        Trouble::Silent => {
            field.servers.silent = "10.2.0.3-10.2.0.3".parse::<AddressRange>().ok();
            load(field, rate, |field| field.run(time))
        }
        Trouble::Away => load(field, rate, |field| {
            field.run(BEFORE);
            field.servers_away = true;
            field.run(AWAY);
            field.servers_away = false;
            field.run(AFTER_AWAY);
        }),
        Trouble::Far => {
            field.servers.delay = FAR;
            load(field, rate, |field| field.run(time))
        }
    };
    let p99 = |stats: &ClientStats| stats.latencies.first_byte.value_at_quantile(0.99) as f64 / 1e6;
    let failures = Failure::ALL.map(|failure| (failure.name(), with.connections.failed(failure)));
    let mut row = ServerRow {
        name,
        rate_per_second: rate,
        completed: with.connections.completed,
        failed: with.connections.failed_in_all() + with.connections.open(),
        reset: with.connections.failed(Failure::Reset) + with.connections.failed(Failure::Refused),
        failures: failures.into_iter().filter(|(_, count)| *count > 0).collect(),
        added_p99_ms: p99(&with) - p99(&without),
        longest_ms: with.latencies.first_byte.max() as f64 / 1e6,
        rounds_over_50us: field.work.since(&work).over_50us,
        calls: EVENTS
            .into_iter()
            .zip(before)
            .map(|(event, before)| (event, calls(field, event) - before))
            .collect(),
        drops: drops(field)
            .into_iter()
            .zip(dropped)
            .map(|((reason, now), (_, before))| (reason, now - before))
            .filter(|(_, count)| *count > 0)
            .collect(),
        met: false,
        violated: Vec::new(),
    };
    row.judge(trouble);
    row
}

/// Plays honest load and waits until its last connection has ended; what came of it.
fn load(field: &mut Field, rate: f64, play: impl FnOnce(&mut Field)) -> ClientStats {
    field.begin_honest(Pace::Open { rate }, |_| ());
    play(field);
    field.stop_honest();
    field.run(GOES_ON);
    field.rest(PATIENCE, |field| {
        field.honest().is_none_or(|honest| honest.open().0 == 0)
    });
    let stats = field.honest().and_then(|honest| honest.client_stats());
    stats.cloned().unwrap_or_default()
}

/// What was dropped so far, by reason.
fn drops(field: &Field) -> Vec<(String, u64)> {
    let mut drops = field.drops();
    drops.push(("queue_overflow".to_owned(), field.overflowed()));
    drops.push((LOAD_OVERFLOW.to_owned(), field.lost_by_load()));
    drops
}

/// What the proxy has counted of calls.
fn calls(field: &Field, event: &str) -> u64 {
    let counters = field.device.counters();
    counters
        .group("calls")
        .and_then(|group| group.count(event))
        .unwrap_or(0)
}

impl ServerRow {
    fn judge(&mut self, trouble: Trouble) {
        if self.completed == 0 {
            self.violated.push("nothing was completed".to_owned());
        }
        if self.reset > 0 {
            self.violated.push(format!("{} connections were reset", self.reset));
        }
        // What the hosts lose themselves says nothing of the engine. Who is away loses what its queue does not hold.
        let lost = self.drops.get(LOAD_OVERFLOW).copied().unwrap_or_default();
        if trouble != Trouble::Away && lost > 0 {
            self.violated.push(format!("the hosts had no room for {lost} packets"));
        }
        if trouble == Trouble::Silent {
            if self.failed > 0 {
                self.violated.push(format!("{} connections failed", self.failed));
            }
            // What is not a number meets nothing.
            if self.added_p99_ms.is_nan() || self.added_p99_ms > ADDED {
                let added = self.added_p99_ms;
                self.violated.push(format!(
                    "{added:.1} ms are added to the 99th percentile, more than {ADDED}"
                ));
            }
        }
        self.met = self.violated.is_empty();
    }
}

impl fmt::Display for ServerRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:<31} {:>9.0} connections/s: {} complete, {} failed {:?}, {} reset; {:.1} ms added at the 99th percentile, {:.1} ms \
             at most; {} rounds over 50 µs; calls {:?}; dropped {:?}; {}",
            self.name,
            self.rate_per_second,
            self.completed,
            self.failed,
            self.failures,
            self.reset,
            self.added_p99_ms,
            self.longest_ms,
            self.rounds_over_50us,
            self.calls,
            self.drops,
            if self.met {
                "met".to_owned()
            } else {
                format!("NOT MET: {}", self.violated.join("; "))
            },
        )
    }
}
