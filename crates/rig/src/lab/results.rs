//! What the parts of the lab have shown: said line by line as it comes, as JSON, and as a transcript.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::{Value, json};

use super::NOT_PROVEN;
use super::faults::Endured;
use super::rss::Steered;
use super::walk::{Binding, Shown};

/// What one part has shown.
#[derive(Default)]
pub(super) struct Results {
    cards: Vec<Value>,
    steered: Vec<(u8, Steered)>,
    endured: Vec<(Binding, Vec<Step>)>,
    transcript: String,
    faults: usize,
}

/// A step by name, and whether it went as it should.
type Step = (&'static str, bool);

impl Results {
    /// Adds a chapter to the transcript, and what in it went wrong.
    pub(super) fn add(&mut self, title: &str, transcript: &str, faults: &[String]) {
        if !transcript.is_empty() {
            // Writing to a String does not fail.
            let _ = write!(
                self.transcript,
                "\n## {title}\n\n{}",
                transcript.trim_start_matches('\n')
            );
        }
        for fault in faults {
            self.faults += 1;
            say(&format!("FAULT: {title}: {fault}"));
        }
    }

    pub(super) fn add_shown(&mut self, shown: &Shown) {
        let (title, [requests, wrong, failed]) = (format!("{} on {}", shown.card, shown.binding), shown.requests);
        say(&format!(
            "{title}: {requests} requests, {wrong} wrong, {failed} failed; {}",
            how_many(&shown.steps)
        ));
        self.cards.push(json!({
            "card": shown.card,
            "binding": shown.binding,
            "requests": requests,
            "wrong": wrong,
            "failed": failed,
            "link_recovered": shown.went_well("link_recovered"),
            "given_back": shown.went_well("given_back"),
            "steps": steps(&shown.steps),
        }));
        self.add(&title, &shown.transcript, &shown.faults);
    }

    pub(super) fn add_steered(&mut self, queues: u8, steered: Steered) {
        let title = format!("virtio-net with {queues} queues");
        say(&format!(
            "{title}: {} connections, {} mis-steered, received by core {:?}",
            steered.connections, steered.mis_steered, steered.by_core
        ));
        self.add(&title, &steered.transcript, &steered.faults);
        self.steered.push((queues, steered));
    }

    pub(super) fn add_endured(&mut self, binding: Binding, endured: Endured) {
        let title = format!("Faults on {}", binding.driver());
        say(&format!("{title}: {}", how_many(&endured.steps)));
        self.add(&title, &endured.transcript, &endured.faults);
        self.endured.push((binding, endured.steps));
    }
}

/// One line for a person who waits. Parts that run at the same time take turns by lines.
pub(super) fn say(line: &str) {
    println!("nic-lab: {line}");
}

/// Everything as JSON, in the order of the parts.
pub(super) fn json(all: &[Results], elapsed: Duration) -> String {
    let cards: Vec<&Value> = all.iter().flat_map(|results| &results.cards).collect();
    let faults: serde_json::Map<_, _> = all
        .iter()
        .flat_map(|results| &results.endured)
        .map(|(binding, well)| (binding.driver().to_owned(), steps(well)))
        .collect();
    let mut json = json!({
        "cards": cards,
        "faults": faults,
        "not_proven": NOT_PROVEN,
        "seconds": elapsed.as_secs(),
    });
    let steered: Vec<_> = all.iter().flat_map(|results| &results.steered).collect();
    if !steered.is_empty() {
        let sum = |of: fn(&Steered) -> u64| {
            steered
                .iter()
                .map(|(_, steered)| of(steered))
                .fold(0, u64::saturating_add)
        };
        json["virtio_rss_mis_steered"] = sum(|steered| steered.mis_steered).into();
        json["virtio_rss_connections"] = sum(|steered| steered.connections).into();
        for (queues, steered) in steered {
            json["virtio_rss_received_by_core"][queues.to_string()] = json!(steered.by_core);
        }
    }
    format!("{json:#}\n")
}

/// Every command with what it printed, in the order of the parts.
pub(super) fn transcript(all: &[Results]) -> String {
    all.iter().map(|results| results.transcript.as_str()).collect()
}

/// Whether nothing went wrong.
pub(super) fn are_good(all: &[Results]) -> bool {
    all.iter().all(|results| results.faults == 0)
}

fn how_many(steps: &[Step]) -> String {
    let well = steps.iter().filter(|(_, well)| *well).count();
    format!("{well} of {} steps went well", steps.len())
}

fn steps(steps: &[Step]) -> Value {
    let steps = steps
        .iter()
        .map(|(name, well)| ((*name).to_owned(), Value::from(*well)));
    steps.collect::<serde_json::Map<_, _>>().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steered(connections: u64) -> Steered {
        Steered {
            connections,
            mis_steered: 0,
            by_core: vec![connections, connections],
            transcript: String::new(),
            faults: Vec::new(),
        }
    }

    fn shown() -> Shown {
        Shown {
            card: "e1000e",
            binding: "vfio-pci",
            requests: [72, 0, 0],
            steps: vec![("link_recovered", true), ("given_back", false)],
            transcript: "\n### What is missing\n".to_owned(),
            faults: Vec::new(),
        }
    }

    #[test]
    fn results_are_written_as_agreed() {
        let (mut walk, mut rss) = (Results::default(), Results::default());
        walk.add_shown(&shown());
        rss.add_steered(2, steered(5_000));
        rss.add_steered(4, steered(5_000));
        let all = [walk, rss];
        let json: Value = json(&all, Duration::from_secs(600)).parse().expect("JSON");
        let card = &json["cards"][0];
        assert_eq!(
            (&card["card"], &card["binding"]),
            (&json!("e1000e"), &json!("vfio-pci"))
        );
        let numbers = ["requests", "wrong", "failed"].map(|name| card[name].as_u64());
        assert_eq!(numbers, [Some(72), Some(0), Some(0)]);
        assert_eq!(
            (&card["link_recovered"], &card["given_back"]),
            (&json!(true), &json!(false))
        );
        assert_eq!(
            (&json["virtio_rss_mis_steered"], &json["virtio_rss_connections"]),
            (&json!(0), &json!(10_000))
        );
        assert_eq!(json["not_proven"].as_array().map(Vec::len), Some(NOT_PROVEN.len()));
        assert_eq!(transcript(&all), "\n## e1000e on vfio-pci\n\n### What is missing\n");
    }

    #[test]
    fn one_fault_spoils_everything() {
        let (good, mut bad) = (Results::default(), Results::default());
        bad.add("a machine", "", &["does not boot".to_owned()]);
        assert!(!are_good(&[good, bad]));
        assert!(are_good(&[Results::default()]));
    }
}
