//! Machines that are set up wrongly: what `doctor` and the scripts say there, in place of an engine that gets no packet.

use std::time::Duration;

use super::walk::{Programs, errors_of_doctor};
use super::{Card, Iommu, Machine, Transcript};
use crate::{RigError, cleanup};

const SHORT: Duration = Duration::from_secs(120);
const FILE: &str = "/tmp/wrong.toml";

/// What was said on a machine, and what of it was not as it should be.
#[derive(Clone, Debug)]
pub struct Said {
    /// The commands with what they printed.
    pub transcript: String,
    /// What went otherwise than it should.
    pub faults: Vec<String>,
}

struct Findings<'a> {
    transcript: Transcript<'a>,
    /// Linux's interface at the other end of the card's cable.
    interface: String,
}

impl<'a> Findings<'a> {
    /// Loads Linux's drivers, and writes a configuration for the card.
    fn begin(machine: &'a mut Machine, card: &Card, linux: &Card, programs: &Programs) -> Result<Self, RigError> {
        let script = format!(
            "modprobe {}; modprobe {}; sleep 0.5; cd {root}
             sed -e 's|^device = .*|device = \"{}\"|' -e '/^checksum_offload/d' -e 's|^memory_mib = .*|memory_mib = 64|' config/demo.toml >{FILE}
             ls /sys/bus/pci/devices/{}/virtio*/net",
            linux.model.kernel_driver(),
            card.model.kernel_driver(),
            card.address(),
            linux.address(),
            root = cleanup::root().display(),
        );
        let mut transcript = Transcript::new(machine, programs.short());
        let done = transcript.aside(&script, SHORT)?;
        transcript.check(done.code == 0, || {
            format!("Linux has no interface on {}", linux.address())
        });
        let interface = done.text.trim().to_owned();
        Ok(Self { transcript, interface })
    }

    /// Types a command that has to end with `code` and to print each of `words`.
    fn expect(&mut self, command: &str, code: i32, words: &[&str]) -> Result<(), RigError> {
        // Errors of `doctor` alone; `prepNet.sh` is quiet and says what is wrong.
        let mut of_doctor = errors_of_doctor();
        let is_doctor = command.contains(" doctor ");
        let is_shown = move |line: &str| !is_doctor || of_doctor(line);
        let in_tree = format!("cd {}", cleanup::root().display());
        let done = self.transcript.type_after(&in_tree, command, SHORT, is_shown)?;
        let missing: Vec<&&str> = words.iter().filter(|word| !done.text.contains(**word)).collect();
        self.transcript.check(done.code == code && missing.is_empty(), || {
            format!(
                "`{command}` ended with {}, not {code}, without {missing:?}:\n{}",
                done.code, done.text
            )
        });
        Ok(())
    }

    fn finish(self) -> Said {
        let (transcript, faults) = self.transcript.finish();
        Said { transcript, faults }
    }
}

/// Without an IOMMU: `prepNet.sh` refuses before it has made anything, with and without `--noiommu`, and names the other way.
///
/// # Errors
/// When the machine no longer answers; what is not as it should be comes back.
pub fn without_iommu(machine: &mut Machine, card: &Card, linux: &Card, programs: &Programs) -> Result<Said, RigError> {
    let mut findings = Findings::begin(machine, card, linux, programs)?;
    let up = format!(
        "./prepNet.sh up --pci {} --linux-if {} --hugepages 64 --quiet",
        card.address(),
        findings.interface
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
    Ok(findings.finish())
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
) -> Result<Said, RigError> {
    let mut findings = Findings::begin(machine, card, linux, programs)?;
    let address = card.address();
    let doctor = format!("{} doctor {FILE}", programs.engine);
    let allow = "echo 1 >/sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts";
    if iommu == Iommu::NoRemapping {
        findings.expect("modprobe vfio-pci", 0, &[])?;
        findings.expect(&format!("dpdk-devbind.py --bind=vfio-pci {address}"), 0, &[])?;
        findings.expect(&doctor, 1, &["ERROR    interrupt-remapping", "allow_unsafe_interrupts"])?;
        findings.expect(&format!("{allow}; ! {doctor} | grep interrupt-remapping"), 0, &[])?;
    } else {
        let interface = &findings.interface;
        let up = format!("./prepNet.uio.sh up --pci {address} --linux-if {interface} --hugepages 64 --quiet");
        findings.expect(&up, 1, &["behind an IOMMU that translates", "./prepNet.sh"])?;
        findings.expect("modprobe uio_pci_generic", 0, &[])?;
        findings.expect(&format!("dpdk-devbind.py --bind=uio_pci_generic {address}"), 0, &[])?;
        findings.expect(&doctor, 1, &["ERROR    iommu-translates"])?;
    }
    Ok(findings.finish())
}
