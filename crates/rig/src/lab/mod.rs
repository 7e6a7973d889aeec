//! The NIC lab: an emulated machine with PCI cards that DPDK's own drivers drive, in which a user's way is gone.
//!
//! QEMU emulates the machine in software, on any processor; Debian's kernel and the file system of this machine run in it,
//! read-only. Nothing of this machine is touched: its cards and hugepages are not those of the emulated one.
//!
//! What lives here: the machine ([`Machine`]), its cards ([`Card`]), the walk along a user's way ([`walk`]) with a
//! transcript of every command, what a machine that is set up wrongly is told ([`wrong`]), and the spreading of packets over
//! queues ([`rss`]), and faults that only cards have ([`faults`]). Who calls it: `build.sh nic-lab` and `tests/nic/`.

mod card;
pub mod faults;
mod machine;
mod parts;
mod results;
pub mod rss;
mod service;
mod transcript;
pub mod walk;
pub mod wrong;

pub use card::{Cable, Card, Model};
pub use machine::{Done, Iommu, Machine, prepare};
pub use transcript::Transcript;

use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::{RigError, requirements};
use parts::{Lab, Part};
use walk::Programs;

/// What no emulated card can show.
pub const NOT_PROVEN: [&str; 4] = [
    "rte_flow and Flow Director of the 82599 and the X710",
    "hash keys and tables of ixgbe and i40e",
    "a full transmit queue: emulated cards send at once",
    "rates, NUMA, PCIe width",
];

/// What the lab is asked to do.
#[derive(Debug, clap::Args)]
pub struct NicLabOptions {
    /// The engine's program.
    #[arg(long, value_name = "FILE")]
    engine: PathBuf,
    /// Write the results to this file as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write every command with what it printed to this file.
    #[arg(long, value_name = "FILE")]
    transcript: Option<PathBuf>,
    /// Do this part alone; may be given several times.
    #[arg(long, value_name = "PART")]
    only: Vec<Part>,
    /// Leave a machine with all cards running at the end, and say how to use it.
    #[arg(long)]
    keep: bool,
}

/// Card `number` of the lab, 0 to 2, and Linux's at the other end of its cable.
pub fn pair(number: u8, model: Model, behind_iommu: bool) -> [Card; 2] {
    let (slot, cable) = (4 + 2 * number, Cable::Hub(number));
    let linux = Model::Virtio { queues: 1 };
    [(model, slot), (linux, slot + 1)].map(|(model, slot)| Card {
        model,
        slot,
        cable,
        behind_iommu,
        can_be_pulled: false,
    })
}

/// The three cards of the lab, each with Linux's.
pub fn pairs(behind_iommu: bool) -> [[Card; 2]; 3] {
    [
        pair(0, Model::E1000e, behind_iommu),
        pair(1, Model::Vmxnet3, behind_iommu),
        pair(2, Model::Virtio { queues: 1 }, behind_iommu),
    ]
}

/// A card in a slot that it can be pulled out of, and Linux's at the other end of its cable.
pub fn pair_to_pull(behind_iommu: bool) -> [Card; 2] {
    let [card, linux] = pair(3, Model::E1000e, behind_iommu);
    let can_be_pulled = true;
    [Card { can_be_pulled, ..card }, linux]
}

/// The card with this many queues, whose cable leads to a TAP.
pub fn card_with_queues(queues: u8) -> Card {
    Card {
        model: Model::Virtio { queues },
        slot: 12,
        cable: Cable::Tap(rss::TAP),
        behind_iommu: true,
        can_be_pulled: false,
    }
}

/// Runs the lab; true when everything was as it should be.
///
/// # Errors
/// A sentence about what kept it from running.
pub fn run(options: &NicLabOptions) -> Result<bool, String> {
    requirements(walk::TOOLS)?;
    let prepared = prepare()?;
    let path = |path: &Path| {
        path.canonicalize()
            .map_err(|error| format!("{}: {error}", path.display()))
    };
    let itself = path(&std::env::current_exe().map_err(|error| error.to_string())?)?;
    let programs = Programs {
        engine: path(&options.engine)?.display().to_string(),
        demo: format!("{} demo", itself.display()),
    };
    let lab = Lab { prepared, programs };
    let parts: &[Part] = if options.only.is_empty() {
        &Part::ALL
    } else {
        &options.only
    };
    let begin = Instant::now();
    let all = parts::run_all(&lab, parts, |found| {
        // After each: what was found stays, whatever becomes of the next.
        write(options.json.as_deref(), &results::json(found, begin.elapsed()))?;
        write(options.transcript.as_deref(), &results::transcript(found))
    })?;
    if options.keep {
        keep(&lab.prepared).map_err(|error| error.to_string())?;
    }
    Ok(results::are_good(&all))
}

fn write(path: Option<&Path>, text: &str) -> Result<(), String> {
    let Some(path) = path else { return Ok(()) };
    std::fs::write(path, text).map_err(|error| format!("writing {}: {error}", path.display()))
}

/// Leaves a machine with all cards to the user.
fn keep(prepared: &Path) -> Result<(), RigError> {
    let cards: Vec<Card> = pairs(true).into_iter().flatten().collect();
    let (folder, process) = Machine::boot_to_keep(prepared, Iommu::PassThrough, &cards)?;
    println!(
        "nic-lab: a machine with all cards is left running for half an hour, process {process}; ./build.sh clean ends it.
    type in it:     echo 'lspci -nn' >{0}/command.part && mv {0}/command.part {0}/command.1; cat {0}/output.1
    its console:    {0}/console
    QEMU's monitor: socat - UNIX-CONNECT:{0}/monitor",
        folder.display()
    );
    Ok(())
}
