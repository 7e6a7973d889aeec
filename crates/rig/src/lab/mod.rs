//! The NIC lab: an emulated machine with PCI cards that DPDK's own drivers drive, in which a user's way is gone.
//!
//! QEMU emulates the machine in software, on any processor; Debian's kernel and the file system of this machine run in it,
//! read-only. Nothing of this machine is touched: its cards and hugepages are not those of the emulated one.
//!
//! What lives here: the machine ([`Machine`]), its cards ([`Card`]), the walk along a user's way ([`walk`]) with a
//! transcript of every command, what a machine that is set up wrongly is told ([`wrong`]), and the spreading of packets over
//! queues ([`rss`]). Who calls it: `build.sh nic-lab`.

mod card;
mod machine;
pub mod rss;
mod transcript;
pub mod walk;
pub mod wrong;

pub use card::{Cable, Card, Model};
pub use machine::{Done, Iommu, Machine, prepare};
pub use transcript::Transcript;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::{Place, Rig, RigError, RigOptions, requirements};
use walk::{Binding, Programs, Shown, Walk};

/// Connections of the RSS part.
const CONNECTIONS: usize = 10_000;

/// What no emulated card can show.
pub const NOT_PROVEN: [&str; 3] = [
    "rte_flow and Flow Director of the 82599 and the X710",
    "hash keys and tables of ixgbe and i40e",
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

/// The card with several queues, whose cable leads to a TAP.
pub fn card_with_queues(queues: u8) -> Card {
    Card {
        model: Model::Virtio { queues },
        slot: 12,
        cable: Cable::Tap(rss::TAP),
        behind_iommu: true,
    }
}

/// Runs the lab; true when everything was as it should be.
///
/// # Errors
/// A sentence about what kept it from running.
pub fn run(options: &NicLabOptions) -> Result<bool, String> {
    requirements(&["nginx", "openssl", "socat", "curl"])?;
    let prepared = prepare()?;
    let path = |path: &Path| {
        path.canonicalize()
            .map_err(|error| format!("{}: {error}", path.display()))
    };
    let itself = path(&std::env::current_exe().map_err(|error| error.to_string())?)?;
    let programs = Programs {
        engine: path(&options.engine)?.display().to_string(),
        demo: format!("{} nic-lab-demo", itself.display()),
    };
    let results = all(&prepared, &programs).map_err(|error| error.to_string())?;
    for line in &results.lines {
        println!("{line}");
    }
    write(options.json.as_deref(), &format!("{:#}\n", results.json))?;
    write(options.transcript.as_deref(), &results.transcript)?;
    if options.keep {
        keep(&prepared).map_err(|error| error.to_string())?;
    }
    Ok(results.good)
}

fn write(path: Option<&Path>, text: &str) -> Result<(), String> {
    let Some(path) = path else { return Ok(()) };
    std::fs::write(path, text).map_err(|error| format!("writing {}: {error}", path.display()))
}

struct Results {
    json: Value,
    transcript: String,
    lines: Vec<String>,
    good: bool,
}

impl Results {
    fn add(&mut self, shown: &Shown) {
        let [requests, wrong, failed] = shown.requests;
        self.lines.push(format!(
            "nic-lab: {} on {}: {requests} requests, {wrong} wrong, {failed} failed; link {}; card {}",
            shown.card,
            shown.binding,
            if shown.link_recovered {
                "recovered"
            } else {
                "NOT recovered"
            },
            if shown.given_back {
                "given back"
            } else {
                "NOT given back"
            },
        ));
        let _ = write!(
            self.transcript,
            "\n## {} on {}\n{}",
            shown.card, shown.binding, shown.transcript
        );
        if let Some(cards) = self.json["cards"].as_array_mut() {
            cards.push(json!({
                "card": shown.card,
                "binding": shown.binding,
                "requests": requests,
                "wrong": wrong,
                "failed": failed,
                "link_recovered": shown.link_recovered,
                "given_back": shown.given_back,
            }));
        }
        self.fault(&shown.faults);
    }

    fn fault(&mut self, faults: &[String]) {
        for fault in faults {
            self.good = false;
            self.lines.push(format!("nic-lab: FAULT: {fault}"));
        }
    }
}

fn all(prepared: &Path, programs: &Programs) -> Result<Results, RigError> {
    let mut results = Results {
        json: json!({ "cards": [], "not_proven": NOT_PROVEN }),
        transcript: String::from("# What the NIC lab did\n"),
        lines: Vec::new(),
        good: true,
    };
    let rig = Rig::new(RigOptions::default())?;
    rss::lay_tap(&rig)?;
    let place = Place::Switch.name(rig.prefix());
    let queues = card_with_queues(2);
    {
        let cards: Vec<Card> = pairs(true).into_iter().flatten().chain([queues]).collect();
        let mut machine = Machine::boot(prepared, Iommu::PassThrough, &cards, Some(&place))?;
        for [card, linux] in pairs(true) {
            let binding = Binding::Vfio;
            let way = Walk { card, linux, binding };
            results.add(&walk::walk(&mut machine, &way, programs)?);
        }
        let steered = rss::steer(&mut machine, &rig, &queues, &programs.engine, CONNECTIONS)?;
        results.json["virtio_rss_mis_steered"] = steered.mis_steered.into();
        results.json["virtio_rss_connections"] = steered.connections.into();
        results.lines.push(format!(
            "nic-lab: virtio-net with two queues: {} connections, {} mis-steered, received by core {:?}",
            steered.connections, steered.mis_steered, steered.by_core
        ));
        results.fault(&steered.faults);
    }
    drop(rig);
    {
        let [card, linux] = pair(0, Model::E1000e, false);
        let mut machine = Machine::boot(prepared, Iommu::None, &[card, linux], None)?;
        results.fault(&wrong::without_iommu(&mut machine, &card, &linux, programs)?);
        let binding = Binding::Uio;
        let way = Walk { card, linux, binding };
        results.add(&walk::walk(&mut machine, &way, programs)?);
    }
    for iommu in [Iommu::Translating, Iommu::NoRemapping] {
        let [card, linux] = pair(0, Model::E1000e, true);
        let mut machine = Machine::boot(prepared, iommu, &[card, linux], None)?;
        results.fault(&wrong::with_iommu(&mut machine, iommu, &card, &linux, programs)?);
    }
    Ok(results)
}

/// Leaves a machine with all cards to the user.
fn keep(prepared: &Path) -> Result<(), RigError> {
    let cards: Vec<Card> = pairs(true).into_iter().flatten().collect();
    let machine = Machine::boot(prepared, Iommu::PassThrough, &cards, None)?;
    let (folder, process) = machine.keep();
    println!(
        "nic-lab: a machine with all cards is left running for half an hour, process {process}; ./build.sh clean ends it.
    type in it:     echo 'lspci -nn' >{0}/command.part && mv {0}/command.part {0}/command.1; cat {0}/output.1
    its console:    {0}/console
    QEMU's monitor: socat - UNIX-CONNECT:{0}/monitor",
        folder.display()
    );
    Ok(())
}
