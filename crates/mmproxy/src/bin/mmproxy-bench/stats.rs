//! Ratios to no proxy, round by round; medians and their intervals.

use crate::{Column, Sample};
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
    column: Column,
    systems: Vec<OfSystem>,
}

struct OfSystem {
    name: String,
    rounds: usize,
    /// To no proxy.
    ratio: Option<Median>,
    cpu: Option<Median>,
    machine_cpu: Option<Median>,
    /// Of the machine's CPU time to that with no proxy.
    cpu_ratio: Option<Median>,
    rate: Option<Median>,
    /// In milliseconds.
    p99: Option<Median>,
}

/// By column and system, one for each round.
pub(crate) type Samples = BTreeMap<String, BTreeMap<String, Vec<Option<Sample>>>>;

impl OfSystem {
    fn new(name: &str, base: &[Option<Sample>], rounds: &[Option<Sample>]) -> Self {
        let all = |value: fn(&Sample) -> Option<f64>| {
            let values: Vec<f64> = rounds.iter().flatten().filter_map(value).collect();
            median(&values)
        };
        let to_base = |value: fn(&Sample) -> Option<f64>| {
            let pairs = base.iter().zip(rounds);
            let ratio = |(base, this): (&Option<Sample>, &Option<Sample>)| {
                Some(value(this.as_ref()?)? / value(base.as_ref()?)?).filter(|ratio| ratio.is_finite())
            };
            median(&pairs.filter_map(ratio).collect::<Vec<_>>())
        };
        OfSystem {
            name: name.to_owned(),
            rounds: rounds.iter().flatten().count(),
            ratio: to_base(|sample| Some(sample.rate)),
            cpu: all(|sample| sample.cpu),
            machine_cpu: all(|sample| sample.machine_cpu),
            cpu_ratio: to_base(|sample| sample.machine_cpu),
            rate: all(|sample| Some(sample.rate)),
            p99: all(|sample| sample.p99),
        }
    }

    /// Whether inline mode reaches its bar in this column, in speed and in what the whole machine does for it.
    fn holds(&self, column: &Column) -> Option<bool> {
        const ROUNDS: usize = 21;
        const LEAST: f64 = 0.9;
        const CPU: f64 = 1.1;
        let (bar, ratio, cpu) = (column.bar()?, self.ratio?, self.cpu_ratio?);
        let enough = self.rounds >= ROUNDS;
        (self.name == "inline").then_some(enough && ratio.high >= bar && ratio.value >= LEAST && cpu.value <= CPU)
    }
}

pub(crate) fn summarise(columns: &[Column], samples: &Samples) -> Summary {
    let figures = |column: &Column| {
        let of_column = samples.get(column.name)?;
        let base = of_column.get("no-proxy").map_or(&[][..], Vec::as_slice);
        let systems = of_column
            .iter()
            .map(|(name, rounds)| OfSystem::new(name, base, rounds))
            .collect();
        let column = *column;
        Some(Figures { column, systems })
    };
    Summary {
        columns: columns.iter().filter_map(figures).collect(),
    }
}

impl Figures {
    /// What mmproxy is beside this peer: `ahead` or `behind` only where the intervals of their ratios do not overlap.
    fn verdict(&self, peer: &str) -> Option<&'static str> {
        let ratio = |name: &str| self.systems.iter().find(|system| system.name == name)?.ratio;
        if ["mmproxy", "inline", "no-proxy"].contains(&peer) {
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
            "column        system         ratio [95 %]              cpu        machine    its ratio [95 %]          p99 ms   verdict  \
             rate/s\n",
        );
        let interval = |median: Option<Median>| {
            median.map_or("-".into(), |median| {
                format!("{:.3} [{:.3} {:.3}]", median.value, median.low, median.high)
            })
        };
        let number = |median: Option<Median>, digits: usize| {
            median.map_or("-".into(), |median| format!("{:.digits$}", median.value))
        };
        for figures in &self.columns {
            for system in &figures.systems {
                let verdict = match system.holds(&figures.column) {
                    Some(true) => "holds",
                    Some(false) => "short",
                    None => figures.verdict(&system.name).unwrap_or("-"),
                };
                // Writing to a String cannot fail.
                let _ = writeln!(
                    out,
                    "{:13} {:14} {:25} {:10} {:10} {:25} {:8} {verdict:8} {}",
                    figures.column.name,
                    system.name,
                    interval(system.ratio),
                    number(system.cpu, 3),
                    number(system.machine_cpu, 3),
                    interval(system.cpu_ratio),
                    number(system.p99, 2),
                    number(system.rate, 0)
                );
            }
        }
        out
    }

    /// `{column: {system: ratio}, column_cpu: {system: cost}, column_interval: {system: [low, high]}, column_p99_ms, ...}`.
    pub(crate) fn json(&self, seconds: f64) -> serde_json::Map<String, serde_json::Value> {
        use serde_json::Value;
        let value = |median: Option<Median>| median.map_or(Value::Null, |median| median.value.into());
        let interval =
            |median: Option<Median>| median.map_or(Value::Null, |median| vec![median.low, median.high].into());
        let mut object = serde_json::Map::new();
        for figures in &self.columns {
            let column = &figures.column;
            let mut put = |suffix: &str, value: &dyn Fn(&OfSystem) -> Value| {
                let values: serde_json::Map<String, Value> = figures
                    .systems
                    .iter()
                    .map(|system| (system.name.clone(), value(system)))
                    .filter(|(_, value)| !value.is_null())
                    .collect();
                if suffix.is_empty() || !values.is_empty() {
                    object.insert(format!("{}{suffix}", column.name), values.into());
                }
            };
            put("", &|system| value(system.ratio));
            put("_cpu", &|system| value(system.cpu));
            put("_machine_cpu", &|system| value(system.machine_cpu));
            put("_machine_cpu_ratio", &|system| value(system.cpu_ratio));
            put("_machine_cpu_interval", &|system| interval(system.cpu_ratio));
            put("_verdict", &|system| {
                figures.verdict(&system.name).map_or(Value::Null, Value::from)
            });
            put("_holds", &|system| {
                system.holds(column).map_or(Value::Null, Value::from)
            });
            put("_rate", &|system| value(system.rate));
            put("_p99_ms", &|system| value(system.p99));
            put("_interval", &|system| interval(system.ratio));
            put("_rounds", &|system| system.rounds.into());
            if let Some(bar) = column.bar() {
                object.insert(format!("{}_bar", column.name), bar.into());
            }
        }
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

    fn sample(rate: f64) -> Option<Sample> {
        Some(Sample {
            rate,
            cpu: Some(rate / 10.0),
            machine_cpu: Some(rate),
            p99: None,
        })
    }

    fn json(column: &str, systems: &[(&str, &[Option<Sample>])]) -> serde_json::Map<String, serde_json::Value> {
        let rounds = systems
            .iter()
            .map(|(name, rounds)| ((*name).to_owned(), rounds.to_vec()));
        let samples = Samples::from([(column.to_owned(), rounds.collect())]);
        summarise(&crate::COLUMNS, &samples).json(1.0)
    }

    #[test]
    fn ratios_are_of_the_same_round() {
        let json = json(
            "cps",
            &[
                ("no-proxy", &[sample(100.0), sample(200.0), sample(400.0)]),
                ("mmproxy", &[sample(50.0), sample(100.0), None]),
            ],
        );
        assert_eq!(json["cps"]["mmproxy"], 0.5);
        assert_eq!(json["cps"]["no-proxy"], 1.0);
        assert_eq!(json["cps_cpu"]["mmproxy"], 7.5);
        assert_eq!(json["cps_machine_cpu"]["mmproxy"], 75.0);
        assert_eq!(json["cps_machine_cpu_ratio"]["mmproxy"], 0.5);
        assert_eq!(json["cps_rounds"]["mmproxy"], 2);
    }

    /// The last that holds and the first that falls short, by each of its conditions.
    #[test]
    fn a_column_holds_with_its_interval_its_median_and_its_cpu_time() {
        let base = [sample(100.0); 21];
        let holds = |rates: [f64; 21], cpu: f64, rounds: usize| {
            let of_round = |rate| {
                Some(Sample {
                    machine_cpu: Some(cpu),
                    ..sample(rate)?
                })
            };
            let inline: Vec<_> = rates.into_iter().map(of_round).collect();
            let systems = [("no-proxy", &base[..rounds]), ("inline", &inline[..rounds])];
            json("veth_rr1", &systems)["veth_rr1_holds"]["inline"].clone()
        };
        let mut rates = [91.0; 21];
        // The interval of 21 ends with the sixth from above.
        rates[..6].fill(98.0);
        assert_eq!(holds(rates, 110.0, 21), true);
        assert_eq!(holds(rates, 111.0, 21), false);
        assert_eq!(holds(rates, 110.0, 20), false);
        rates[5] = 96.0;
        assert_eq!(holds(rates, 110.0, 21), false);
        rates[5..].fill(89.0);
        rates[..10].fill(98.0);
        assert_eq!(holds(rates, 100.0, 21), false);
    }

    #[test]
    fn ahead_is_only_where_intervals_do_not_overlap() {
        let rounds = |rates: [f64; 7]| rates.map(sample);
        let json = json(
            "cps",
            &[
                ("no-proxy", &rounds([100.0; 7])),
                ("mmproxy", &rounds([60.0, 61.0, 62.0, 63.0, 64.0, 65.0, 66.0])),
                ("slower", &rounds([50.0, 51.0, 52.0, 53.0, 54.0, 55.0, 59.0])),
                ("touching", &rounds([50.0, 51.0, 52.0, 53.0, 54.0, 55.0, 60.0])),
                ("quicker", &rounds([67.0, 68.0, 69.0, 70.0, 71.0, 72.0, 73.0])),
            ],
        );
        let verdicts = serde_json::json!({"slower": "ahead", "touching": "equal", "quicker": "behind"});
        assert_eq!(json["cps_verdict"], verdicts);
    }
}
