//! What was counted by stage as a table and a picture, with packets and bursts over time.

use std::fmt::{self, Write as _};

use super::{CYCLES, LOOKS, ROUNDS_PER_LOOK};
use crate::report::CounterGroups;

/// Where the cycles of all cores went.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Breakdown {
    /// Name and cycles of each stage that took any, in the order of a packet's way.
    pub stages: Vec<(&'static str, u64)>,
    /// Rounds in which packets came, and those that were timed.
    pub rounds: u64,
    /// See above.
    pub timed_rounds: u64,
    /// Packets that came in, and those in timed rounds.
    pub packets: u64,
    /// See above.
    pub timed_packets: u64,
}

/// Packets that came in, and in how many rounds, during a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Second {
    /// Packets.
    pub packets: u64,
    /// Rounds with packets: bursts.
    pub bursts: u64,
}

impl Second {
    /// Between two looks at what was counted.
    pub fn between(before: &Breakdown, after: &Breakdown) -> Second {
        Second {
            packets: after.packets.saturating_sub(before.packets),
            bursts: after.rounds.saturating_sub(before.rounds),
        }
    }

    fn mean_burst(self) -> f64 {
        self.packets as f64 / self.bursts.max(1) as f64
    }
}

impl Breakdown {
    /// Of what cores have counted; nothing if they count no cycles by stage.
    pub fn of(groups: &CounterGroups) -> Option<Breakdown> {
        let (cycles, looks) = (groups.group(CYCLES)?, groups.group(LOOKS)?);
        let look = |name| looks.count(name).unwrap_or_default();
        Some(Breakdown {
            stages: cycles.iter().filter(|(_, cycles)| *cycles > 0).collect(),
            rounds: look("rounds"),
            timed_rounds: look("timed_rounds"),
            packets: look("packets"),
            timed_packets: look("timed_packets"),
        })
    }

    /// Cycles of a stage for each packet that came in.
    fn per_packet(&self, cycles: u64) -> f64 {
        cycles as f64 / self.timed_packets.max(1) as f64
    }

    fn total(&self) -> u64 {
        self.stages.iter().map(|(_, cycles)| cycles).sum()
    }

    /// The picture: a bar for each stage, and below it packets and mean burst by second.
    pub fn to_svg(&self, seconds: &[Second]) -> String {
        let height = 70 + 20 * self.stages.len() + 220;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"900\" height=\"{height}\" font-family=\"sans-serif\" \
             font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
             <text x=\"20\" y=\"24\" font-size=\"15\">Cycles for each packet that comes in, by stage: {:.0} in all; one round \
             in {ROUNDS_PER_LOOK} is timed</text>\n",
            self.per_packet(self.total())
        );
        let most = self.stages.iter().map(|(_, cycles)| *cycles).max().unwrap_or(1).max(1);
        for (index, (name, cycles)) in self.stages.iter().enumerate() {
            let (y, width) = (44 + 20 * index, 520.0 * *cycles as f64 / most as f64);
            // Writing to a String does not fail.
            let _ = writeln!(
                svg,
                "<text x=\"270\" y=\"{}\" text-anchor=\"end\">{name}</text><rect x=\"280\" y=\"{y}\" width=\"{width:.1}\" \
                 height=\"14\" fill=\"#1f6fb4\"/><text x=\"{:.1}\" y=\"{}\">{:.1}</text>",
                y + 11,
                286.0 + width,
                y + 11,
                self.per_packet(*cycles)
            );
        }
        let base = 70 + 20 * self.stages.len();
        curve(&mut svg, base, seconds, ("packets a second", "#1f6fb4"), |second| {
            second.packets as f64
        });
        curve(
            &mut svg,
            base + 105,
            seconds,
            ("mean burst", "#b4501f"),
            Second::mean_burst,
        );
        svg.push_str("</svg>\n");
        svg
    }
}

/// A line over the seconds, 70 high, from `top` on.
fn curve(svg: &mut String, top: usize, seconds: &[Second], (name, colour): (&str, &str), of: fn(Second) -> f64) {
    let most = seconds.iter().map(|second| of(*second)).fold(1.0, f64::max);
    let step = 800.0 / seconds.len().saturating_sub(1).max(1) as f64;
    let points: String = (0..)
        .zip(seconds)
        .map(|(index, second)| {
            let (x, y) = (
                50.0 + step * f64::from(index),
                (top + 85) as f64 - 70.0 * of(*second) / most,
            );
            format!("{x:.1},{y:.1} ")
        })
        .collect();
    let _ = writeln!(
        svg,
        "<text x=\"50\" y=\"{top}\">{name} over {} s, at most {most:.0}</text>\
         <polyline points=\"{points}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
        seconds.len()
    );
}

/// The table.
impl fmt::Display for Breakdown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "cycles by stage: one round in {ROUNDS_PER_LOOK} is timed, {} of {} rounds with packets, {} of {} packets",
            self.timed_rounds, self.rounds, self.timed_packets, self.packets
        )?;
        let total = self.total().max(1);
        writeln!(f, "  {:32}{:>12}{:>9}", "stage", "a packet in", "share")?;
        for (name, cycles) in &self.stages {
            let share = *cycles as f64 * 100.0 / total as f64;
            writeln!(f, "  {name:32}{:12.1}{share:8.1} %", self.per_packet(*cycles))?;
        }
        writeln!(f, "  {:32}{:12.1}{:8.1} %", "all", self.per_packet(self.total()), 100.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::CounterGroup;

    fn counted() -> Breakdown {
        let mut groups = CounterGroups::default();
        assert_eq!(Breakdown::of(&groups), None);
        groups.add(
            CYCLES,
            &CounterGroup::new([("receive", 100), ("parse", 300), ("action_drop", 0)]),
        );
        let looks = [
            ("rounds", 640),
            ("timed_rounds", 10),
            ("packets", 1280),
            ("timed_packets", 20),
        ];
        groups.add(LOOKS, &CounterGroup::new(looks));
        Breakdown::of(&groups).expect("both groups are there")
    }

    #[test]
    fn the_table_has_each_stage_that_took_cycles() {
        let text = counted().to_string();
        assert!(text.starts_with(
            "cycles by stage: one round in 64 is timed, 10 of 640 rounds with packets, 20 of 1280 packets\n"
        ));
        let rows: Vec<Vec<&str>> = text
            .lines()
            .skip(2)
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(
            rows,
            [
                vec!["receive", "5.0", "25.0", "%"],
                vec!["parse", "15.0", "75.0", "%"],
                vec!["all", "20.0", "100.0", "%"]
            ]
        );
    }

    #[test]
    fn the_picture_has_a_bar_for_each_stage_and_a_point_for_each_second() {
        let seconds = [(100, 10), (200, 10), (0, 0)].map(|(packets, bursts)| Second { packets, bursts });
        let svg = counted().to_svg(&seconds);
        assert_eq!(svg.matches("fill=\"#1f6fb4\"").count(), 2);
        let points: Vec<usize> = svg
            .split("points=\"")
            .skip(1)
            .map(|rest| rest.split('"').next().unwrap_or_default().split_whitespace().count())
            .collect();
        assert_eq!(points, [3, 3]);
        assert!(svg.contains("mean burst over 3 s, at most 20") && svg.ends_with("</svg>\n"));
        // Nothing counted, no time passed: still a picture.
        assert!(Breakdown::default().to_svg(&[]).ends_with("</svg>\n"));
    }
}
