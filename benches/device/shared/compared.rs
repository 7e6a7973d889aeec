//! The result of `bench cps` beside its floor and its parts, measured in the same run: two ratios that can be compared between
//! machines, whatever their counters count.

use std::collections::BTreeMap;

use benchkit::CpsResult;
use proxyengine::stages::Breakdown;
use serde::Serialize;

use super::floor::Floor;

/// Names are those of the JSON.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Compared {
    #[serde(flatten)]
    pub(crate) result: CpsResult,
    #[serde(flatten)]
    pub(crate) floor: Floor,
    /// `busy_cycles_per_connection` by `floor_cycles`.
    pub(crate) ratio_to_floor: f64,
    /// The sum of `parts`.
    pub(crate) parts_cycles: f64,
    /// `busy_cycles_per_connection` by `parts_cycles`.
    pub(crate) ratio_to_parts: f64,
    /// Cycles for a connection of what no engine can do without, each by itself: see `parts`.
    pub(crate) parts: BTreeMap<&'static str, f64>,
    /// Cycles for a connection by stage, if they were counted; reading the counter makes their sum differ a little.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) stage_cycles: Option<BTreeMap<&'static str, f64>>,
    #[serde(skip)]
    pub(crate) breakdown: Option<Breakdown>,
}

impl Compared {
    /// The result is valid only if the floor's is.
    pub(crate) fn new(mut result: CpsResult, floor: Floor, parts: BTreeMap<&'static str, f64>) -> Compared {
        let parts_cycles: f64 = parts.values().sum();
        result.invalid_because.extend(floor.invalid_because.iter().cloned());
        result.valid = result.invalid_because.is_empty();
        let busy = result.busy_cycles_per_connection;
        Compared {
            ratio_to_floor: busy / floor.floor_cycles.max(1.0),
            ratio_to_parts: busy / parts_cycles.max(1.0),
            result,
            floor,
            parts_cycles,
            parts,
            stage_cycles: None,
            breakdown: None,
        }
    }

    /// The same with what was counted by stage, if it was.
    pub(crate) fn with_stages(self, breakdown: Option<Breakdown>) -> Compared {
        let packets = self.result.rx_packets_per_connection;
        let stage_cycles = breakdown.as_ref().map(|breakdown| {
            let per_connection = packets / breakdown.timed_packets.max(1) as f64;
            let stages = breakdown.stages.iter();
            stages
                .map(|(name, cycles)| (*name, *cycles as f64 * per_connection))
                .collect()
        });
        Compared {
            stage_cycles,
            breakdown,
            ..self
        }
    }

    /// Two lines for people.
    pub(crate) fn summary(&self) -> String {
        let parts: Vec<String> = self
            .parts
            .iter()
            .map(|(name, cycles)| format!("{name} {cycles:.0}"))
            .collect();
        format!(
            "{:.2} times the floor of {:.0} cycles (the same packets only received and sent, bursts of {:.1}; {:.0} % of {} slices)\n\
             {:.2} times the {:.0} cycles of what no engine can do without: {}",
            self.ratio_to_floor,
            self.floor.floor_cycles,
            self.floor.floor_mean_burst,
            self.floor.floor_slices_counted_share * 100.0,
            self.floor.coverage.slices,
            self.ratio_to_parts,
            self.parts_cycles,
            parts.join(", "),
        )
    }
}
