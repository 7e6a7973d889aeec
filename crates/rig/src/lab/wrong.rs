//! Machines that are set up wrongly: what `doctor` and the scripts say there, in place of an engine that gets no packet.

use std::time::Duration;

use super::walk::Programs;
use super::{Card, Done, Iommu, Machine};
use crate::{RigError, cleanup};

const SHORT: Duration = Duration::from_secs(120);
const FILE: &str = "/tmp/wrong.toml";

/// Loads Linux's drivers, names its interface in `$linux`, and writes a configuration for the card.
fn preface(card: &Card, linux: &Card) -> String {
    format!(
        "cd {root}; modprobe {}; modprobe {}; sleep 0.5
         linux=$(ls /sys/bus/pci/devices/{}/virtio*/net)
         sed -e 's|^device = .*|device = \"{}\"|' -e '/^checksum_offload/d' -e 's|^memory_mib = .*|memory_mib = 64|' config/demo.toml >{FILE}\n",
        linux.model.kernel_driver(),
        card.model.kernel_driver(),
        linux.address(),
        card.address(),
        root = cleanup::root().display(),
    )
}

struct Findings<'a> {
    machine: &'a mut Machine,
    preface: String,
    faults: Vec<String>,
}

impl<'a> Findings<'a> {
    fn new(machine: &'a mut Machine, card: &Card, linux: &Card) -> Self {
        Self {
            machine,
            preface: preface(card, linux),
            faults: Vec::new(),
        }
    }

    /// Runs a command that has to end with `code` and to print each of `words`.
    fn expect(&mut self, command: &str, code: i32, words: &[&str]) -> Result<(), RigError> {
        let Done { code: ended, text } = self.machine.run(&format!("{}{command}", self.preface), SHORT)?;
        let missing: Vec<&&str> = words.iter().filter(|word| !text.contains(**word)).collect();
        if ended != code || !missing.is_empty() {
            self.faults.push(format!(
                "`{command}` ended with {ended}, not {code}, without {missing:?}:\n{text}"
            ));
        }
        Ok(())
    }
}

/// Without an IOMMU: `prepNet.sh` refuses before it has made anything, with and without `--noiommu`, and names the other way.
///
/// # Errors
/// When the machine no longer answers; what is not as it should be comes back.
pub fn without_iommu(
    machine: &mut Machine,
    card: &Card,
    linux: &Card,
    programs: &Programs,
) -> Result<Vec<String>, RigError> {
    let mut findings = Findings::new(machine, card, linux);
    let up = format!(
        "./prepNet.sh up --pci {} --linux-if $linux --hugepages 64 --quiet",
        card.address()
    );
    findings.expect(&up, 1, &["no IOMMU", "./prepNet.uio.sh"])?;
    // Debian's kernels are built without CONFIG_VFIO_NOIOMMU.
    findings.expect(
        &format!("{up} --noiommu"),
        1,
        &["CONFIG_VFIO_NOIOMMU", "./prepNet.uio.sh"],
    )?;
    findings.expect(
        "ip netns list; ls /sys/class/net | tr '\\n' ' '; [ -z \"$(ip netns list)\" ]",
        0,
        &["lo"],
    )?;
    let doctor = format!("{} doctor {FILE}", programs.engine);
    findings.expect(&doctor, 1, &["ERROR    pci-driver", "--bind=uio_pci_generic"])?;
    Ok(findings.faults)
}

/// With an IOMMU that translates for a uio driver, or without interrupt remapping.
///
/// # Errors
/// As [`without_iommu`].
pub fn with_iommu(
    machine: &mut Machine,
    iommu: Iommu,
    card: &Card,
    linux: &Card,
    programs: &Programs,
) -> Result<Vec<String>, RigError> {
    let mut findings = Findings::new(machine, card, linux);
    let address = card.address();
    let doctor = format!("{} doctor {FILE}", programs.engine);
    let allow = "echo 1 >/sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts";
    if iommu == Iommu::NoRemapping {
        findings.expect("modprobe vfio-pci", 0, &[])?;
        findings.expect(&format!("dpdk-devbind.py --bind=vfio-pci {address}"), 0, &[])?;
        findings.expect(&doctor, 1, &["ERROR    interrupt-remapping", "allow_unsafe_interrupts"])?;
        findings.expect(&format!("{allow}; ! {doctor} | grep interrupt-remapping"), 0, &[])?;
    } else {
        let up = format!("./prepNet.uio.sh up --pci {address} --linux-if $linux --hugepages 64 --quiet");
        findings.expect(&up, 1, &["behind an IOMMU that translates", "./prepNet.sh"])?;
        findings.expect("modprobe uio_pci_generic", 0, &[])?;
        findings.expect(&format!("dpdk-devbind.py --bind=uio_pci_generic {address}"), 0, &[])?;
        findings.expect(&doctor, 1, &["ERROR    iommu-translates"])?;
    }
    Ok(findings.faults)
}
