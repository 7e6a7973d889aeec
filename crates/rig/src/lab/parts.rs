//! The parts of the lab, each with machines of its own, and what they have shown.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::{Value, json};

use super::walk::{self, Binding, Programs, Shown, Walk};
use super::{Card, Iommu, Machine, Model, NOT_PROVEN, card_with_queues, faults, pair, pair_to_pull, rss, wrong};
use crate::{Place, Rig, RigError, RigOptions};

/// Connections of each RSS part.
const CONNECTIONS: usize = 10_000;

/// A part of the lab.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Part {
    /// The way of a user on an Intel 82574L behind an IOMMU.
    E1000e,
    /// The same on VMware's card.
    Vmxnet3,
    /// The same on virtio-net.
    Virtio,
    /// The same on a card without an IOMMU, and what a user is told who expects one.
    Uio,
    /// Packets spread over two queues, and over four.
    Rss,
    /// A cable that comes and goes, a flood that nobody reads, a card that is pulled out.
    Faults,
    /// IOMMUs that are set up wrongly.
    Wrong,
}

impl Part {
    pub(super) const ALL: [Self; 7] = [
        Self::E1000e,
        Self::Vmxnet3,
        Self::Virtio,
        Self::Uio,
        Self::Rss,
        Self::Faults,
        Self::Wrong,
    ];

    pub(super) fn run(self, prepared: &Path, programs: &Programs, results: &mut Results) -> Result<(), RigError> {
        let lab = (prepared, programs);
        match self {
            Self::E1000e => with_vfio(lab, results, Model::E1000e, Model::Vmxnet3),
            Self::Vmxnet3 => with_vfio(lab, results, Model::Vmxnet3, Model::E1000e),
            Self::Virtio => with_vfio(lab, results, Model::Virtio { queues: 1 }, Model::E1000e),
            Self::Uio => with_uio(lab, results),
            Self::Rss => [2, 4].into_iter().try_for_each(|queues| spread(lab, results, queues)),
            Self::Faults => [Binding::Vfio, Binding::Uio]
                .into_iter()
                .try_for_each(|binding| endure(lab, results, binding)),
            Self::Wrong => set_up_wrongly(lab, results),
        }
    }
}

/// Where what machines start from is, and what runs in them.
type Lab<'a> = (&'a Path, &'a Programs);

fn with_vfio((prepared, programs): Lab<'_>, results: &mut Results, model: Model, other: Model) -> Result<(), RigError> {
    let ([card, linux], others) = (pair(0, model, true), pair(1, other, true));
    let cards = [[card, linux], others].concat();
    let mut machine = Machine::boot(prepared, Iommu::PassThrough, &cards, None)?;
    let binding = Binding::Vfio;
    let way = Walk {
        card,
        linux,
        others,
        binding,
    };
    results.add(&walk::walk(&mut machine, &way, programs)?);
    Ok(())
}

fn with_uio((prepared, programs): Lab<'_>, results: &mut Results) -> Result<(), RigError> {
    let ([card, linux], others) = (pair(0, Model::E1000e, false), pair(1, Model::Vmxnet3, false));
    let cards = [[card, linux], others].concat();
    let mut machine = Machine::boot(prepared, Iommu::None, &cards, None)?;
    results.fault(&wrong::without_iommu(&mut machine, &card, &linux, programs)?);
    let binding = Binding::Uio;
    let way = Walk {
        card,
        linux,
        others,
        binding,
    };
    results.add(&walk::walk(&mut machine, &way, programs)?);
    Ok(())
}

fn spread((prepared, programs): Lab<'_>, results: &mut Results, queues: u8) -> Result<(), RigError> {
    let rig = Rig::new(RigOptions::default())?;
    rss::lay_tap(&rig)?;
    let card = card_with_queues(queues);
    let place = Place::Switch.name(rig.prefix());
    let mut machine = Machine::boot(prepared, Iommu::PassThrough, &[card], Some(&place))?;
    let steered = rss::steer(&mut machine, &rig, &card, &programs.engine, CONNECTIONS)?;
    results.add_steered(queues, &steered);
    Ok(())
}

fn endure((prepared, programs): Lab<'_>, results: &mut Results, binding: Binding) -> Result<(), RigError> {
    let has_iommu = binding == Binding::Vfio;
    let iommu = if has_iommu { Iommu::PassThrough } else { Iommu::None };
    let (stays, goes) = (pair(0, Model::Vmxnet3, has_iommu), pair_to_pull(has_iommu));
    let cards: Vec<Card> = [stays, goes].concat();
    let mut machine = Machine::boot(prepared, iommu, &cards, None)?;
    let endured = faults::endure(&mut machine, stays, goes, binding, &programs.engine)?;
    results.add_endured(binding, &endured);
    Ok(())
}

fn set_up_wrongly((prepared, programs): Lab<'_>, results: &mut Results) -> Result<(), RigError> {
    for iommu in [Iommu::Translating, Iommu::NoRemapping] {
        let [card, linux] = pair(0, Model::E1000e, true);
        let mut machine = Machine::boot(prepared, iommu, &[card, linux], None)?;
        let found = wrong::with_iommu(&mut machine, iommu, &card, &linux, programs)?;
        results.say(&format!("{iommu:?}: {} faults", found.len()));
        results.fault(&found);
    }
    Ok(())
}

/// What has been shown so far; each line is printed at once.
pub(super) struct Results {
    json: Value,
    transcript: String,
    good: bool,
}

impl Results {
    pub(super) fn new() -> Self {
        Self {
            json: json!({ "cards": [], "faults": {}, "not_proven": NOT_PROVEN }),
            transcript: String::from("# What the NIC lab did\n"),
            good: true,
        }
    }

    pub(super) fn json_text(&self) -> String {
        format!("{:#}\n", self.json)
    }

    pub(super) fn transcript(&self) -> &str {
        &self.transcript
    }

    pub(super) fn are_good(&self) -> bool {
        self.good
    }

    fn say(&mut self, line: &str) {
        println!("nic-lab: {line}");
    }

    fn record(&mut self, title: &str, text: &str) {
        // Writing to a String does not fail.
        let _ = write!(self.transcript, "\n## {title}\n{text}");
    }

    fn add(&mut self, shown: &Shown) {
        let [requests, wrong, failed] = shown.requests;
        let well = shown.steps.iter().filter(|(_, well)| *well).count();
        self.say(&format!(
            "{} on {}: {requests} requests, {wrong} wrong, {failed} failed; {well} of {} steps went well",
            shown.card,
            shown.binding,
            shown.steps.len()
        ));
        self.record(&format!("{} on {}", shown.card, shown.binding), &shown.transcript);
        if let Some(cards) = self.json["cards"].as_array_mut() {
            cards.push(json!({
                "card": shown.card,
                "binding": shown.binding,
                "requests": requests,
                "wrong": wrong,
                "failed": failed,
                "link_recovered": shown.went_well("link_recovered"),
                "given_back": shown.went_well("given_back"),
                "steps": steps(&shown.steps),
            }));
        }
        self.fault(&shown.faults);
    }

    fn add_steered(&mut self, queues: u8, steered: &rss::Steered) {
        self.say(&format!(
            "virtio-net with {queues} queues: {} connections, {} mis-steered, received by core {:?}",
            steered.connections, steered.mis_steered, steered.by_core
        ));
        // The names that the first run had; further ones say how many queues.
        let sum = |before: &Value, more: u64| before.as_u64().unwrap_or(0).saturating_add(more);
        let mis_steered = sum(&self.json["virtio_rss_mis_steered"], steered.mis_steered);
        self.json["virtio_rss_mis_steered"] = mis_steered.into();
        let connections = sum(&self.json["virtio_rss_connections"], steered.connections);
        self.json["virtio_rss_connections"] = connections.into();
        self.json["virtio_rss_received_by_core"][queues.to_string()] = json!(steered.by_core);
        self.fault(&steered.faults);
    }

    fn add_endured(&mut self, binding: Binding, endured: &faults::Endured) {
        let well = endured.steps.iter().filter(|(_, well)| *well).count();
        self.say(&format!(
            "faults on {}: {well} of {} steps went well",
            binding.driver(),
            endured.steps.len()
        ));
        self.record(&format!("Faults on {}", binding.driver()), &endured.transcript);
        self.json["faults"][binding.driver()] = steps(&endured.steps);
        self.fault(&endured.faults);
    }

    fn fault(&mut self, faults: &[String]) {
        for fault in faults {
            self.good = false;
            self.say(&format!("FAULT: {fault}"));
        }
    }
}

fn steps(steps: &[(&'static str, bool)]) -> Value {
    steps
        .iter()
        .map(|(name, well)| ((*name).to_owned(), Value::from(*well)))
        .collect::<serde_json::Map<_, _>>()
        .into()
}
