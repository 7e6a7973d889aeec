//! The parts of the lab, each with machines of its own, and how many of them run at the same time.

use std::fs;
use std::num::NonZero;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use super::results::{self, Results};
use super::walk::{self, Binding, Programs, Walk};
use super::{Card, Iommu, Machine, Model, card_with_queues, faults, pair, pair_to_pull, rss, wrong};
use crate::{Place, Rig, RigError, RigOptions};

/// Connections with two queues, and with four.
const CONNECTIONS: usize = 5_000;
/// What a machine takes of this one's memory.
const MACHINE_KIB: usize = 2_500_000;

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

/// Where what machines start from is, and what runs in them.
pub(super) struct Lab {
    pub(super) prepared: PathBuf,
    pub(super) programs: Programs,
}

/// Does the parts, as many at a time as this machine can do, and shows what is there after each.
///
/// # Errors
/// What `show` says. A machine that no longer answers is a fault among the results.
pub(super) fn run_all(
    lab: &Lab,
    parts: &[Part],
    mut show: impl FnMut(&[Results]) -> Result<(), String>,
) -> Result<Vec<Results>, String> {
    let mut all: Vec<Results> = parts.iter().map(|_| Results::default()).collect();
    let next = AtomicUsize::new(0);
    let (done, found) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..machines_at_once() {
            let (done, next) = (done.clone(), &next);
            scope.spawn(move || {
                // Nobody listens any more when showing has failed.
                while let Some((index, part)) = take(parts, next)
                    && done.send((index, part.run(lab))).is_ok()
                {}
            });
        }
        drop(done);
        for (index, results) in found {
            all[index] = results;
            show(&all)?;
        }
        Ok(all)
    })
}

fn take(parts: &[Part], next: &AtomicUsize) -> Option<(usize, Part)> {
    let index = next.fetch_add(1, Ordering::Relaxed);
    parts.get(index).map(|&part| (index, part))
}

/// One for each processor, as far as memory goes.
fn machines_at_once() -> usize {
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = memory.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let available = available.and_then(|rest| rest.trim().strip_suffix(" kB")?.parse().ok());
    let room = available.map_or(1, |kib: usize| kib / MACHINE_KIB);
    processors.min(room).max(1)
}

impl Part {
    /// The longest first, so that none of them is alone at the end.
    pub(super) const ALL: [Self; 7] = [
        Self::E1000e,
        Self::Vmxnet3,
        Self::Virtio,
        Self::Uio,
        Self::Rss,
        Self::Faults,
        Self::Wrong,
    ];

    fn run(self, lab: &Lab) -> Results {
        let mut results = Results::default();
        if let Err(error) = self.try_run(lab, &mut results) {
            results.add(&format!("{self:?}"), "", &[error.to_string()]);
        }
        results
    }

    fn try_run(self, lab: &Lab, results: &mut Results) -> Result<(), RigError> {
        match self {
            Self::E1000e => go(lab, results, &Walk::on(Model::E1000e, Binding::Vfio)),
            Self::Vmxnet3 => go(lab, results, &Walk::on(Model::Vmxnet3, Binding::Vfio)),
            Self::Virtio => go(lab, results, &Walk::on(Model::Virtio { queues: 1 }, Binding::Vfio)),
            Self::Uio => go(lab, results, &Walk::on(Model::E1000e, Binding::Uio)),
            Self::Rss => [2, 4].into_iter().try_for_each(|queues| spread(lab, results, queues)),
            Self::Faults => [Binding::Vfio, Binding::Uio]
                .into_iter()
                .try_for_each(|binding| endure(lab, results, binding)),
            Self::Wrong => [Iommu::Translating, Iommu::NoRemapping]
                .into_iter()
                .try_for_each(|iommu| set_up_wrongly(lab, results, iommu)),
        }
    }
}

fn go(lab: &Lab, results: &mut Results, way: &Walk) -> Result<(), RigError> {
    let mut machine = Machine::boot(&lab.prepared, way.binding.iommu(), &way.cards(), None)?;
    if way.binding == Binding::Uio {
        let said = wrong::without_iommu(&mut machine, &way.card, &way.linux, &lab.programs)?;
        results.add("Without an IOMMU", &said.transcript, &said.faults);
    }
    results.add_shown(&walk::walk(&mut machine, way, &lab.programs)?);
    Ok(())
}

fn spread(lab: &Lab, results: &mut Results, queues: u8) -> Result<(), RigError> {
    let rig = Rig::new(RigOptions::default())?;
    rss::lay_tap(&rig)?;
    let card = card_with_queues(queues);
    let place = Place::Switch.name(rig.prefix());
    let mut machine = Machine::boot(&lab.prepared, Iommu::PassThrough, &[card], Some(&place))?;
    let steered = rss::steer(&mut machine, &rig, &card, &lab.programs, CONNECTIONS)?;
    results.add_steered(queues, steered);
    Ok(())
}

fn endure(lab: &Lab, results: &mut Results, binding: Binding) -> Result<(), RigError> {
    let behind_iommu = binding == Binding::Vfio;
    let (stays, goes) = (pair(0, Model::Vmxnet3, behind_iommu), pair_to_pull(behind_iommu));
    let cards: Vec<Card> = [stays, goes].concat();
    let mut machine = Machine::boot(&lab.prepared, binding.iommu(), &cards, None)?;
    let endured = faults::endure(&mut machine, stays, goes, binding, &lab.programs.engine)?;
    results.add_endured(binding, endured);
    Ok(())
}

fn set_up_wrongly(lab: &Lab, results: &mut Results, iommu: Iommu) -> Result<(), RigError> {
    let [card, linux] = pair(0, Model::E1000e, true);
    let mut machine = Machine::boot(&lab.prepared, iommu, &[card, linux], None)?;
    let said = wrong::with_iommu(&mut machine, iommu, &card, &linux, &lab.programs)?;
    let title = match iommu {
        Iommu::Translating => "An IOMMU that translates before a uio driver",
        _ => "An IOMMU without interrupt remapping",
    };
    results::say(&format!("{title}: {} faults", said.faults.len()));
    results.add(title, &said.transcript, &said.faults);
    Ok(())
}
