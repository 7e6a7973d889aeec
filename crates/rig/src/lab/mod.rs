//! The NIC lab: an emulated machine with PCI cards that DPDK's own drivers drive, in which a user's way is gone.
//!
//! QEMU emulates the machine in software, on any processor; Debian's kernel and the file system of this machine run in it,
//! read-only. Nothing of this machine is touched: its cards, hugepages and namespaces are not those of the emulated one.
//!
//! What lives here: the machine ([`Machine`]), its cards ([`Card`]) and the walk along a user's way ([`walk`]), with a
//! transcript of every command. Who calls it: `build.sh nic-lab` and `tests/nic/`.

mod card;
mod machine;
mod transcript;
pub mod walk;

pub use card::{Cable, Card, Model};
pub use machine::{Done, Iommu, Machine, prepare};
pub use transcript::Transcript;

use std::path::PathBuf;

use walk::{Binding, Walk};

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
    /// Only these cards.
    #[arg(long, value_name = "CARD", value_delimiter = ',')]
    cards: Vec<String>,
    /// Leave the first machine running at the end, and say how to use it.
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
    })
}

/// Runs the lab; true when everything was as it should be.
///
/// # Errors
/// A sentence about what kept it from running.
pub fn run(options: &NicLabOptions) -> Result<bool, String> {
    let prepared = prepare()?;
    let itself = std::env::current_exe().map_err(|error| error.to_string())?;
    let engine = options.engine.canonicalize().map_err(|error| error.to_string())?;
    let pairs: Vec<[Card; 2]> = [Model::E1000e, Model::Vmxnet3, Model::Virtio { queues: 1 }]
        .into_iter()
        .zip(0..)
        .map(|(model, number)| pair(number, model, true))
        .collect();
    let cards: Vec<Card> = pairs.iter().flatten().copied().collect();
    let mut machine = Machine::boot(&prepared, Iommu::PassThrough, &cards, None).map_err(|error| error.to_string())?;
    let mut good = true;
    for [card, linux] in pairs {
        if !options.cards.is_empty() && !options.cards.iter().any(|name| name == card.model.name()) {
            continue;
        }
        let way = Walk {
            card,
            linux,
            binding: Binding::Vfio,
            brief: false,
        };
        let shown = walk::walk(&mut machine, &way, &engine.to_string_lossy(), &itself.to_string_lossy())
            .map_err(|error| error.to_string())?;
        println!(
            "{}\n{:?} {} {}",
            shown.transcript, shown.requests, shown.link_recovered, shown.given_back
        );
        for fault in &shown.faults {
            println!("FAULT {fault}");
        }
        good &= shown.faults.is_empty();
    }
    Ok(good)
}
