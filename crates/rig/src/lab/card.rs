//! The cards of the emulated machine and their cables.

/// A network card that QEMU emulates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Model {
    /// Intel 82574L.
    E1000e,
    /// VMware's paravirtual card.
    Vmxnet3,
    /// The paravirtual card of KVM and most clouds, behind the IOMMU where there is one.
    Virtio {
        /// Pairs of queues; more than one of them with RSS.
        queues: u8,
    },
}

impl Model {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::E1000e => "e1000e",
            Self::Vmxnet3 => "vmxnet3",
            Self::Virtio { .. } => "virtio-net",
        }
    }

    /// Its pairs of queues.
    pub fn queues(self) -> u8 {
        match self {
            Self::Virtio { queues } => queues,
            Self::E1000e | Self::Vmxnet3 => 1,
        }
    }

    /// Linux's driver of it, as modprobe knows it.
    pub fn kernel_driver(self) -> &'static str {
        match self {
            Self::E1000e => "e1000e",
            Self::Vmxnet3 => "vmxnet3",
            Self::Virtio { .. } => "virtio_net",
        }
    }
}

/// The other end of a card's cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cable {
    /// A hub of this number; all cards on it hear each other, and nobody else does.
    Hub(u8),
    /// The TAP of this name in the namespace that QEMU runs in.
    Tap(&'static str),
}

/// A card in its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Card {
    /// What it is.
    pub model: Model,
    /// Its slot on the machine's root bus, 3 to 15.
    pub slot: u8,
    /// Where its cable leads.
    pub cable: Cable,
    /// Whether an IOMMU stands before it: virtio cards pass it by unless told.
    pub behind_iommu: bool,
    /// Whether it is in a slot of its own that cards can be pulled out of, of which a machine has one.
    pub can_be_pulled: bool,
}

impl Card {
    /// Its PCI address in the machine.
    pub fn address(&self) -> String {
        if self.can_be_pulled {
            // The first bus behind the root bus.
            "0000:01:00.0".to_owned()
        } else {
            format!("0000:00:{:02x}.0", self.slot)
        }
    }

    /// Its Ethernet address: locally administered, by slot.
    pub fn mac(&self) -> String {
        format!("02:00:00:4e:49:{:02x}", self.slot)
    }

    /// What QEMU's monitor calls its cable.
    pub fn cable_name(&self) -> String {
        format!("n{}", self.slot)
    }

    /// What QEMU's monitor calls it.
    pub fn device_name(&self) -> String {
        format!("c{}", self.slot)
    }

    /// For QEMU's command line.
    pub(super) fn arguments(&self) -> Vec<String> {
        let cable = self.cable_name();
        let queues = self.model.queues();
        let backend = match self.cable {
            Cable::Hub(hub) => format!("hubport,id={cable},hubid={hub}"),
            Cable::Tap(name) => {
                format!("tap,id={cable},ifname={name},queues={queues},script=no,downscript=no,vhost=off")
            }
        };
        let model = match self.model {
            Model::E1000e => "e1000e".to_owned(),
            Model::Vmxnet3 => "vmxnet3".to_owned(),
            Model::Virtio { queues } => {
                let many = match queues {
                    1 => String::new(),
                    queues => format!(",mq=on,rss=on,vectors={}", 2 * queues + 2),
                };
                let iommu = if self.behind_iommu {
                    ",iommu_platform=on,disable-legacy=on"
                } else {
                    ""
                };
                format!("virtio-net-pci{many}{iommu}")
            }
        };
        // QEMU reads slots in hexadecimal.
        let (port, place) = if self.can_be_pulled {
            let bus = format!("p{}", self.slot);
            let port = format!("pcie-root-port,id={bus},chassis=1,addr={:x}", self.slot);
            (vec!["-device".to_owned(), port], format!("bus={bus}"))
        } else {
            (Vec::new(), format!("addr={:x}", self.slot))
        };
        // Without its boot ROM, which would cost seconds.
        let device = format!(
            "{model},id={},netdev={cable},mac={},{place},romfile=",
            self.device_name(),
            self.mac()
        );
        [port, vec!["-netdev".into(), backend, "-device".into(), device]].concat()
    }
}
