//! Ratios to no proxy, round by round; medians and their intervals.

use crate::Sample;
use std::collections::BTreeMap;
use std::fmt::Write;

/// A median and the interval that holds it with 95 %.
#[derive(Copy, Clone, Debug, PartialEq)]
pub(crate) struct Median {
    pub(crate) value: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

/// The median of the values; `None` if there are none.
pub(crate) fn median(values: &[f64]) -> Option<Median> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let count = sorted.len();
    let middle = |lower: usize, upper: usize| (sorted[lower] + sorted[upper]) / 2.0;
    let value = if count == 0 {
        return None;
    } else {
        middle((count - 1) / 2, count / 2)
    };
    let rank = interval_rank(count);
    Some(Median {
        value,
        low: sorted[rank],
        high: sorted[count - 1 - rank],
    })
}

/// How many values at either end can be left out so that the rest still spans the median with 95 %: the number of values
/// below the median is binomial with one half, and may be so small with a probability of 2.5 % at most.
fn interval_rank(count: usize) -> usize {
    let mut below = 0.0;
    let mut term = 0.5f64.powi(count as i32);
    let mut rank = 0;
    for left_out in 0..count / 2 {
        below += term;
        if below > 0.025 {
            break;
        }
        rank = left_out;
        term *= (count - left_out) as f64 / (left_out + 1) as f64;
    }
    rank.min(count.saturating_sub(1) / 2)
}

/// Results of all rounds.
pub(crate) struct Summary {
    columns: Vec<Figures>,
}

struct Figures {
    column: String,
    systems: Vec<OfSystem>,
}

struct OfSystem {
    name: String,
    /// To no proxy.
    ratio: Option<Median>,
    cpu: Option<Median>,
    machine_cpu: Option<Median>,
    rate: Option<Median>,
    /// In milliseconds.
    p99: Option<Median>,
}

type Samples<'a> = BTreeMap<(&'a str, &'a str), Vec<Option<Sample>>>;

pub(crate) fn summarise(columns: &[&str], samples: &Samples<'_>) -> Summary {
    let figures = |&column: &&str| {
        let base = samples.get(&(column, "no-proxy"));
        let systems = samples
            .iter()
            .filter(|((this, _), _)| *this == column)
            .map(|((_, system), rounds)| {
                let ratios: Vec<f64> = base
                    .into_iter()
                    .flat_map(|base| base.iter().zip(rounds))
                    .filter_map(|(base, this)| Some(this.as_ref()?.rate / base.as_ref()?.rate))
                    .collect();
                let cpu: Vec<f64> = rounds.iter().flatten().filter_map(|sample| sample.cpu).collect();
                let machine: Vec<f64> = rounds
                    .iter()
                    .flatten()
                    .filter_map(|sample| sample.machine_cpu)
                    .collect();
                let rates: Vec<f64> = rounds.iter().flatten().map(|sample| sample.rate).collect();
                let p99: Vec<f64> = rounds.iter().flatten().filter_map(|sample| sample.p99).collect();
                OfSystem {
                    p99: median(&p99),
                    name: (*system).to_owned(),
                    ratio: median(&ratios),
                    cpu: median(&cpu),
                    machine_cpu: median(&machine),
                    rate: median(&rates),
                }
            })
            .collect();
        Figures {
            column: column.to_owned(),
            systems,
        }
    };
    Summary {
        columns: columns.iter().map(figures).collect(),
    }
}

impl Figures {
    /// What mmproxy is beside this peer: `ahead` or `behind` only where the intervals of their ratios do not overlap.
    fn verdict(&self, peer: &str) -> Option<&'static str> {
        let ratio = |name: &str| self.systems.iter().find(|system| system.name == name)?.ratio;
        if ["mmproxy", "no-proxy"].contains(&peer) {
            return None;
        }
        let (ours, theirs) = (ratio("mmproxy")?, ratio(peer)?);
        Some(if ours.low > theirs.high {
            "ahead"
        } else if ours.high < theirs.low {
            "behind"
        } else {
            "equal"
        })
    }
}

impl Summary {
    /// For people.
    pub(crate) fn table(&self) -> String {
        let mut out = String::from(
            "column        system         ratio [95 %]              cpu        machine    p99 ms   verdict  rate/s\n",
        );
        for figures in &self.columns {
            for OfSystem {
                name: system,
                ratio,
                cpu,
                machine_cpu,
                rate,
                p99,
            } in &figures.systems
            {
                let ratio = ratio.map_or("-".into(), |ratio| {
                    format!("{:.3} [{:.3} {:.3}]", ratio.value, ratio.low, ratio.high)
                });
                let verdict = figures.verdict(system).unwrap_or("-");
                let cpu = cpu.map_or("-".into(), |cpu| format!("{:.3}", cpu.value));
                let machine = machine_cpu.map_or("-".into(), |cpu| format!("{:.3}", cpu.value));
                let rate = rate.map_or("-".into(), |rate| format!("{:.0}", rate.value));
                let p99 = p99.map_or("-".into(), |p99| format!("{:.2}", p99.value));
                // Writing to a String cannot fail.
                let _ = writeln!(
                    out,
                    "{:13} {system:14} {ratio:25} {cpu:10} {machine:10} {p99:8} {verdict:8} {rate}",
                    figures.column
                );
            }
        }
        out
    }

    /// `{column: {system: ratio}, column_cpu: {system: cost}, column_interval: {system: [low, high]}, column_p99_ms, ...}`.
    pub(crate) fn json(&self, rounds: usize, seconds: f64) -> serde_json::Map<String, serde_json::Value> {
        let mut object = serde_json::Map::new();
        for figures in &self.columns {
            let mut put = |suffix: &str, value: &dyn Fn(&OfSystem) -> serde_json::Value| {
                let values: serde_json::Map<String, serde_json::Value> = figures
                    .systems
                    .iter()
                    .map(|system| (system.name.clone(), value(system)))
                    .filter(|(_, value)| !value.is_null())
                    .collect();
                if suffix.is_empty() || !values.is_empty() {
                    object.insert(format!("{}{suffix}", figures.column), values.into());
                }
            };
            let of = |median: Option<Median>| median.map_or(serde_json::Value::Null, |median| median.value.into());
            put("", &|system| of(system.ratio));
            put("_cpu", &|system| of(system.cpu));
            put("_machine_cpu", &|system| of(system.machine_cpu));
            put("_verdict", &|system| {
                figures
                    .verdict(&system.name)
                    .map_or(serde_json::Value::Null, serde_json::Value::from)
            });
            put("_rate", &|system| of(system.rate));
            put("_p99_ms", &|system| of(system.p99));
            put("_interval", &|system| match system.ratio {
                Some(median) => vec![median.low, median.high].into(),
                None => serde_json::Value::Null,
            });
        }
        object.insert("rounds".into(), rounds.into());
        object.insert("seconds".into(), seconds.into());
        object
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_their_intervals() {
        assert_eq!(median(&[]), None);
        assert_eq!(
            median(&[3.0]),
            Some(Median {
                value: 3.0,
                low: 3.0,
                high: 3.0
            })
        );
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]).map(|median| median.value), Some(2.5));
        // Tables of order statistics: 7 values, the first to the last (98.4 %); 15 values, the fourth to the twelfth (96.5 %).
        let values: Vec<f64> = (1..=7).map(f64::from).collect();
        assert_eq!(
            median(&values),
            Some(Median {
                value: 4.0,
                low: 1.0,
                high: 7.0
            })
        );
        let values: Vec<f64> = (1..=15).map(f64::from).collect();
        assert_eq!(
            median(&values),
            Some(Median {
                value: 8.0,
                low: 4.0,
                high: 12.0
            })
        );
    }

    #[test]
    fn ratios_are_of_the_same_round() {
        let sample = |rate| {
            Some(Sample {
                rate,
                cpu: Some(rate / 10.0),
                machine_cpu: Some(rate),
                p99: None,
            })
        };
        let samples: Samples<'_> = BTreeMap::from([
            (("cps", "no-proxy"), vec![sample(100.0), sample(200.0), sample(400.0)]),
            (("cps", "mmproxy"), vec![sample(50.0), sample(100.0), None]),
        ]);
        let json = summarise(&["cps"], &samples).json(3, 1.0);
        assert_eq!(json["cps"]["mmproxy"], 0.5);
        assert_eq!(json["cps"]["no-proxy"], 1.0);
        assert_eq!(json["cps_cpu"]["mmproxy"], 7.5);
        assert_eq!(json["cps_machine_cpu"]["mmproxy"], 75.0);
    }

    #[test]
    fn ahead_is_only_where_intervals_do_not_overlap() {
        let rounds = |rates: [f64; 7]| {
            let sample = |rate| Sample {
                rate,
                cpu: None,
                machine_cpu: None,
                p99: None,
            };
            rates.map(|rate| Some(sample(rate))).to_vec()
        };
        let samples: Samples<'_> = BTreeMap::from([
            (("cps", "no-proxy"), rounds([100.0; 7])),
            (("cps", "mmproxy"), rounds([60.0, 61.0, 62.0, 63.0, 64.0, 65.0, 66.0])),
            (("cps", "slower"), rounds([50.0, 51.0, 52.0, 53.0, 54.0, 55.0, 59.0])),
            (("cps", "touching"), rounds([50.0, 51.0, 52.0, 53.0, 54.0, 55.0, 60.0])),
            (("cps", "quicker"), rounds([67.0, 68.0, 69.0, 70.0, 71.0, 72.0, 73.0])),
        ]);
        let json = summarise(&["cps"], &samples).json(7, 1.0);
        let verdicts = serde_json::json!({"slower": "ahead", "touching": "equal", "quicker": "behind"});
        assert_eq!(json["cps_verdict"], verdicts);
    }
}
