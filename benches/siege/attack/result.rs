//! What the bench says, and whether that is good enough.

use std::collections::BTreeMap;
use std::fmt;

use benchkit::LEAST_SHARE;
use serde::Serialize;

use super::servers::ServerRow;
use crate::siege::Field;

/// The least part of their success without attack that honest clients have to keep.
pub(crate) const BAR: f64 = 0.9;

/// Seconds in which everything has to be as before.
pub(crate) const RECOVERY: f64 = 1.0;

/// Bytes that a SYN may make the process grow by: what is not a page for each thousand SYNs is not because of them.
const RESIDENT_PER_SYN: f64 = 0.25;

/// The least part of the honest maximum that guarding against overload must leave: the accuracy of the measurement.
const MAXIMUM_KEPT: f64 = 0.9;

/// What a row has to show.
#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Bar {
    /// Honest clients keep their success, nothing leaks, and all is as before within a second.
    Honest,
    /// The same but for the success: more is asked than there is.
    Recovery,
}

/// One attack. Names are those of the JSON.
#[derive(Serialize)]
pub(crate) struct AttackRow {
    pub(crate) name: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) bar: Bar,
    /// Packets per second, or connections where it has some.
    pub(crate) rate_per_second: f64,
    pub(crate) attack_packets: u64,
    pub(crate) attack_packets_not_sent: u64,
    pub(crate) honest_per_second: f64,
    pub(crate) honest_offered: f64,
    pub(crate) honest_completed: f64,
    /// Segments that honest clients had to send again, SYNs too.
    pub(crate) honest_retransmitted: u64,
    /// Completed by offered without the attack, during it, and the second by the first; medians of the turns.
    pub(crate) honest_without: f64,
    pub(crate) honest_during: f64,
    pub(crate) honest_ratio: f64,
    /// By itself, in bursts, with all that is answered to it; of attacks with connections, of each packet that the proxy
    /// received.
    pub(crate) cycles_per_attack_packet: Option<f64>,
    /// More state in use than with honest load alone, at most.
    pub(crate) peak_state_bytes: u64,
    pub(crate) leaked_bytes: u64,
    pub(crate) leaked_buffers: u64,
    /// All connections ended and every resting port was free again.
    pub(crate) came_to_rest: bool,
    /// The longest of all turns; none if it did not recover.
    pub(crate) recovered_after_s: Option<f64>,
    pub(crate) recovered: bool,
    /// Answers with wrong bytes or from wrong servers.
    pub(crate) wrong: u64,
    /// Connections of honest clients that were open all the time and were lost.
    pub(crate) steady_lost: u64,
    /// Rounds of more than 50 µs that nothing excuses.
    pub(crate) rounds_over_50us: u64,
    /// What was counted between the beginning of the attack and recovery, honest packets included.
    pub(crate) drops: BTreeMap<String, u64>,
    pub(crate) met: bool,
    pub(crate) violated: Vec<String>,
}

impl AttackRow {
    /// Compares the row with its bar.
    pub(crate) fn judge(&mut self) {
        let mut violated = Vec::new();
        // A ratio that is not a number meets nothing.
        let is_low = |ratio: f64| ratio.is_nan() || ratio < BAR;
        if self.bar == Bar::Honest && is_low(self.honest_ratio) {
            violated.push(format!("honest clients keep {:.3}, below {BAR}", self.honest_ratio));
        }
        if is_low(self.honest_without) {
            violated.push(format!("{:.3} is completed without any attack", self.honest_without));
        }
        if !self.recovered {
            violated.push(match self.recovered_after_s {
                Some(after) => format!("recovery took {after:.2} s, more than {RECOVERY}"),
                None => "it did not recover".to_owned(),
            });
        }
        if !self.came_to_rest {
            violated.push("some connection did not end".to_owned());
        }
        for (what, count) in [
            ("bytes of state leaked", self.leaked_bytes),
            ("buffers leaked", self.leaked_buffers),
            ("wrong answers", self.wrong),
            ("open connections were lost", self.steady_lost),
        ] {
            if count > 0 {
                violated.push(format!("{count} {what}"));
            }
        }
        if self.attack_packets == 0 {
            violated.push("no attack was sent".to_owned());
        }
        self.met = violated.is_empty();
        self.violated = violated;
    }
}

impl fmt::Display for AttackRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cycles = self
            .cycles_per_attack_packet
            .map_or_else(|| "–".to_owned(), |cycles| format!("{cycles:.0}"));
        let after = self
            .recovered_after_s
            .map_or_else(|| "never".to_owned(), |after| format!("{after:.2} s"));
        write!(
            f,
            "{:<31} {:>9} packets, {cycles:>5} cycles each; honest {:.3} → {:.3} ({:.3}); {} B at the peak, {} B left; \
             recovered: {after}; {}",
            self.name,
            self.attack_packets,
            self.honest_without,
            self.honest_during,
            self.honest_ratio,
            self.peak_state_bytes,
            self.leaked_bytes,
            if self.met {
                "met".to_owned()
            } else {
                format!("NOT MET: {}", self.violated.join("; "))
            },
        )
    }
}

/// What a core can do without an attack. Names are those of the JSON.
#[derive(Serialize)]
pub(crate) struct Capacity {
    /// Of honest connections alone, and of SYNs alone.
    pub(crate) honest_maximum_per_second: f64,
    pub(crate) syn_capacity_per_second: f64,
    pub(crate) cycles_per_syn: f64,
    /// The honest maximum with guarding against overload by that without, and the SYNs that it dropped then.
    pub(crate) honest_maximum_ratio: f64,
    pub(crate) overload_drops_at_honest_maximum: u64,
    #[serde(flatten)]
    pub(crate) per_syn: Option<PerSyn>,
}

/// What a flood of SYNs costs in memory. Names are those of the JSON.
#[derive(Serialize)]
pub(crate) struct PerSyn {
    /// State in use and memory of all structures at the height of a flood less that before, by SYNs.
    pub(crate) state_per_flood_syn_bytes: f64,
    /// The same of the whole process's resident memory.
    pub(crate) resident_per_flood_syn_bytes: f64,
    pub(crate) flood_syns: u64,
}

impl Capacity {
    fn judge(&self, violated: &mut Vec<String>) {
        match &self.per_syn {
            None => violated.push("the proxy does not come to rest".to_owned()),
            Some(per_syn) => per_syn.judge(violated),
        }
        // A ratio that is not a number meets nothing.
        let is_low = self.honest_maximum_ratio.is_nan() || self.honest_maximum_ratio < MAXIMUM_KEPT;
        if self.overload_drops_at_honest_maximum > 0 || is_low {
            violated.push(format!(
                "guarding against overload leaves {:.3} of the honest maximum and drops {} of its SYNs",
                self.honest_maximum_ratio, self.overload_drops_at_honest_maximum
            ));
        }
    }
}

impl PerSyn {
    fn judge(&self, violated: &mut Vec<String>) {
        if self.state_per_flood_syn_bytes != 0.0 {
            let bytes = self.state_per_flood_syn_bytes;
            violated.push(format!("a SYN of a flood costs {bytes} bytes"));
        }
        if self.resident_per_flood_syn_bytes > RESIDENT_PER_SYN {
            let grown = self.resident_per_flood_syn_bytes;
            violated.push(format!("the process grew by {grown:.2} bytes with each SYN of a flood"));
        }
    }
}

impl fmt::Display for Capacity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a core does {:.0} honest connections/s or {:.0} SYNs/s ({:.0} cycles each); guarding against overload leaves {:.3} of \
             the honest maximum",
            self.honest_maximum_per_second,
            self.syn_capacity_per_second,
            self.cycles_per_syn,
            self.honest_maximum_ratio,
        )?;
        let Some(per_syn) = &self.per_syn else { return Ok(()) };
        write!(
            f,
            "; {} bytes of state for each of {} SYNs ({:.3} bytes of the process)",
            per_syn.state_per_flood_syn_bytes, per_syn.flood_syns, per_syn.resident_per_flood_syn_bytes
        )
    }
}

/// Everything. Names are those of the JSON.
#[derive(Default, Serialize)]
pub(crate) struct AttackResult {
    pub(crate) tsc_hz: u64,
    /// None if not asked for.
    #[serde(flatten)]
    pub(crate) capacity: Option<Capacity>,
    /// Of the flood of SYNs at 50, 100 and 200 % of the capacity.
    pub(crate) honest_without: f64,
    pub(crate) honest_under_syn_flood: f64,
    pub(crate) honest_under_syn_flood_100: f64,
    pub(crate) honest_under_syn_flood_200: f64,
    /// The same at 50 and 100 % of honest clients each of whom connects once, from an address that has never been here.
    pub(crate) honest_new_under_syn_flood: f64,
    pub(crate) honest_new_under_syn_flood_100: f64,
    /// At 50 %, by the same without the flood.
    pub(crate) new_clients_under_syn_flood_50: f64,
    /// Whether everything was as before within a second of the end of each attack, and the longest time.
    pub(crate) recovered: bool,
    pub(crate) recovered_after_s: Option<f64>,
    pub(crate) rounds: u64,
    /// Rounds that figures rest on, the disturbed left out, and their part of all.
    pub(crate) rounds_counted: u64,
    pub(crate) rounds_counted_share: f64,
    /// Busy cycles of these as charged, by the same as the counter saw them: how much the correction for the machine's speed does.
    pub(crate) charged_by_counted: f64,
    /// Rounds of more than 50 µs in which the thread was switched out or the machine was slow or stopped: charged as the others.
    pub(crate) disturbed_rounds: u64,
    /// Those of them in which the kernel had to find pages that were not touched before.
    pub(crate) paged_rounds: u64,
    /// Those of them that are left to the machine's stops, and how many of these the same time of a fixed work sees.
    pub(crate) stopped_rounds: u64,
    pub(crate) stops_expected: f64,
    /// Rounds of more than 50 µs that nothing excuses: charged in full.
    pub(crate) rounds_over_50us: u64,
    /// Those of them that have moved so many packets that no stop of the machine excuses them.
    pub(crate) full_rounds_over_50us: u64,
    pub(crate) longest_round_us: f64,
    pub(crate) attacks: Vec<AttackRow>,
    #[serde(skip)]
    charged_cycles: f64,
    #[serde(skip)]
    counted_cycles: f64,
    /// One server of ten is silent, all are away for 200 ms, all are 100 ms away; none if not asked for.
    pub(crate) silent_server: Option<ServerRow>,
    pub(crate) servers_away_200ms: Option<ServerRow>,
    pub(crate) servers_100ms_away: Option<ServerRow>,
    pub(crate) met: bool,
    pub(crate) violated: Vec<String>,
}

impl AttackResult {
    /// Adds the rounds of a field that is done.
    pub(crate) fn count_rounds(&mut self, field: &Field) {
        let work = &field.work;
        self.tsc_hz = field.hz() as u64;
        self.rounds += work.rounds;
        self.disturbed_rounds += work.disturbed;
        self.paged_rounds += work.paged;
        self.stopped_rounds += work.stopped;
        self.stops_expected += field.stops_expected();
        self.rounds_over_50us += work.over_50us;
        self.full_rounds_over_50us += work.full_over_50us;
        self.charged_cycles += work.charged_cycles;
        self.counted_cycles += work.counted_cycles;
        let longest = work.longest as f64 / field.hz() * 1e6;
        self.longest_round_us = self.longest_round_us.max(longest);
    }

    /// Sums up, and compares with the bars.
    pub(crate) fn judge(&mut self) {
        let row = |name: &str| self.attacks.iter().find(|row| row.name == name);
        let during = |name: &str| row(name).map_or(f64::NAN, |row| row.honest_during);
        self.honest_without = row("syn flood at 50 %").map_or(f64::NAN, |row| row.honest_without);
        self.honest_under_syn_flood = during("syn flood at 50 %");
        self.honest_under_syn_flood_100 = during("syn flood at 100 %");
        self.honest_under_syn_flood_200 = during("syn flood at 200 %");
        self.honest_new_under_syn_flood = during("syn flood at 50 %, new clients");
        self.honest_new_under_syn_flood_100 = during("syn flood at 100 %, new clients");
        let new_clients = row("syn flood at 50 %, new clients");
        self.new_clients_under_syn_flood_50 = new_clients.map_or(f64::NAN, |row| row.honest_ratio);
        self.rounds_counted = self.rounds - self.disturbed_rounds;
        self.rounds_counted_share = self.rounds_counted as f64 / self.rounds.max(1) as f64;
        self.charged_by_counted = self.charged_cycles / self.counted_cycles.max(1.0);
        self.recovered = self.attacks.iter().all(|row| row.recovered);
        let times: Option<Vec<f64>> = self.attacks.iter().map(|row| row.recovered_after_s).collect();
        self.recovered_after_s = times.map(|times| times.into_iter().fold(0.0, f64::max));
        let mut violated: Vec<String> = self
            .attacks
            .iter()
            .filter(|row| !row.met)
            .map(|row| format!("{}: {}", row.name, row.violated.join("; ")))
            .collect();
        let servers = [&self.silent_server, &self.servers_away_200ms, &self.servers_100ms_away];
        for row in servers.into_iter().flatten().filter(|row| !row.met) {
            violated.push(format!("{}: {}", row.name, row.violated.join("; ")));
        }
        if self.rounds == 0 {
            violated.push("there is no row of that name".to_owned());
        } else if self.rounds_counted_share < LEAST_SHARE {
            violated.push(format!(
                "{} of {} rounds were disturbed",
                self.disturbed_rounds, self.rounds
            ));
        }
        if let Some(capacity) = &self.capacity {
            capacity.judge(&mut violated);
        }
        if self.rounds_over_50us > 0 {
            violated.push(format!(
                "{} rounds took more than 50 µs, {} of them with many packets, the longest {:.0}",
                self.rounds_over_50us, self.full_rounds_over_50us, self.longest_round_us
            ));
        }
        self.met = violated.is_empty();
        self.violated = violated;
    }
}

impl fmt::Display for AttackResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(capacity) = &self.capacity {
            writeln!(f, "{capacity}, at {:.2} GHz", self.tsc_hz as f64 / 1e9)?;
        }
        writeln!(
            f,
            "honest success {:.3} without a flood of SYNs, {:.3} with one at 50 %, {:.3} at 100 %, {:.3} at 200 %; of new \
             clients {:.3} at 50 %, {:.3} at 100 %",
            self.honest_without,
            self.honest_under_syn_flood,
            self.honest_under_syn_flood_100,
            self.honest_under_syn_flood_200,
            self.honest_new_under_syn_flood,
            self.honest_new_under_syn_flood_100,
        )?;
        writeln!(
            f,
            "{} of {} rounds were disturbed, {} of them by pages, {} by stops of the machine ({:.0} expected); {} others took more \
             than 50 µs",
            self.disturbed_rounds,
            self.rounds,
            self.paged_rounds,
            self.stopped_rounds,
            self.stops_expected,
            self.rounds_over_50us,
        )?;
        writeln!(
            f,
            "the correction for the machine's speed makes {:.3} of the cycles of the rounds that were not disturbed",
            self.charged_by_counted
        )?;
        match self.met {
            true => write!(f, "met"),
            false => write!(f, "NOT MET: {}", self.violated.join("\n         ")),
        }
    }
}
