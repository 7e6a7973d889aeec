//! What stands behind a port: a PCI device or one of DPDK's virtual devices.

use std::fmt;
use std::str::FromStr;

/// A device as DPDK names it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Device {
    /// A PCI function, perhaps with arguments for its driver: `0000:07:00.0`.
    Pci {
        /// Where it is.
        address: PciAddress,
        /// What follows the first comma.
        arguments: String,
    },
    /// A virtual device with its arguments: `net_af_packet0,iface=pe-eng0`.
    Virtual {
        /// Driver and number: `net_af_packet0`.
        name: String,
        /// What follows the first comma: `iface=pe-eng0`.
        arguments: String,
    },
}

/// Domain, bus, device and function of a PCI device.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct PciAddress {
    /// Domain, 0 on most machines.
    pub domain: u16,
    /// Bus.
    pub bus: u8,
    /// Device on the bus, below 32.
    pub device: u8,
    /// Function of the device, below 8.
    pub function: u8,
}

/// The drivers of virtual devices that ports can have. Which arguments each takes is e2d2's affair, which opens them.
const DRIVERS: &[&str] = &[
    "net_af_packet",
    "net_af_xdp",
    "net_memif",
    "net_null",
    "net_pcap",
    "net_ring",
    "net_tap",
];

impl Device {
    /// The Linux interface that a device of AF_PACKET, AF_XDP or pcap opens: no two ports can share it.
    pub fn linux_interface(&self) -> Option<&str> {
        let Self::Virtual { arguments, .. } = self else {
            return None;
        };
        arguments
            .split(',')
            .find_map(|argument| argument.strip_prefix("iface="))
    }

    /// What two ports that would open the same device have in common.
    pub(super) fn key(&self) -> String {
        match self {
            Self::Pci { address, .. } => address.to_string(),
            Self::Virtual { name, .. } => name.clone(),
        }
    }
}

/// Says what was expected in place of the text.
impl FromStr for Device {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.contains(char::is_whitespace) {
            return Err("no white space in the name of a device".to_owned());
        }
        let (name, arguments) = text.split_once(',').unwrap_or((text, ""));
        if let Some(address) = PciAddress::parse(name) {
            let arguments = arguments.to_owned();
            return Ok(Self::Pci { address, arguments });
        }
        let driver = name.trim_end_matches(|c: char| c.is_ascii_digit());
        if !DRIVERS.contains(&driver) {
            return Err(format!(
                "a PCI address such as \"0000:07:00.0\", or one of DPDK's virtual devices such as \
                 \"net_af_packet0,iface=eth1\" ({})",
                DRIVERS.join(", ")
            ));
        }
        if driver.len() == name.len() {
            return Err(format!("a number after the driver's name, such as \"{driver}0\""));
        }
        if matches!(driver, "net_af_packet" | "net_af_xdp") && !arguments.split(',').any(|a| a.starts_with("iface=")) {
            return Err(format!("the interface to open, such as \"{name},iface=eth1\""));
        }
        // DPDK 22.11 closes the descriptors of a memif's regions when it is connected; without copies they are those of
        // EAL's own memory, so that a second port hands out something else and never comes up.
        if driver == "net_memif" && arguments.split(',').any(|argument| argument == "zero-copy=yes") {
            return Err(
                "a memif that copies, without \"zero-copy=yes\": DPDK 22.11 can have one such port at most".to_owned(),
            );
        }
        Ok(Self::Virtual {
            name: name.to_owned(),
            arguments: arguments.to_owned(),
        })
    }
}

/// The device as EAL's `--vdev` and `--allow` take it.
impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let arguments = match self {
            Self::Pci { address, arguments } => {
                address.fmt(f)?;
                arguments
            }
            Self::Virtual { name, arguments } => {
                f.write_str(name)?;
                arguments
            }
        };
        if arguments.is_empty() {
            Ok(())
        } else {
            write!(f, ",{arguments}")
        }
    }
}

impl PciAddress {
    /// `0000:07:00.0`, or `07:00.0` in domain 0.
    fn parse(text: &str) -> Option<Self> {
        let hex = |text: &str, digits: usize| {
            let fits = text.len() == digits && text.bytes().all(|b| b.is_ascii_hexdigit());
            if fits { u16::from_str_radix(text, 16).ok() } else { None }
        };
        let (front, function) = text.split_once('.')?;
        let (front, device) = front.rsplit_once(':')?;
        let (domain, bus) = front.split_once(':').unwrap_or(("0000", front));
        let address = Self {
            domain: hex(domain, 4)?,
            bus: u8::try_from(hex(bus, 2)?).ok()?,
            device: u8::try_from(hex(device, 2)?).ok()?,
            function: u8::try_from(hex(function, 1)?).ok()?,
        };
        (address.device < 32 && address.function < 8).then_some(address)
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:04x}:{:02x}:{:02x}.{:x}",
            self.domain, self.bus, self.device, self.function
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_print_as_dpdk_takes_them() {
        for (text, printed) in [
            ("0000:07:00.0", "0000:07:00.0"),
            ("07:1F.7", "0000:07:1f.7"),
            ("0000:07:00.0,a=1", "0000:07:00.0,a=1"),
            ("net_ring0", "net_ring0"),
            (
                "net_af_packet0,iface=pe-eng0,qpairs=2",
                "net_af_packet0,iface=pe-eng0,qpairs=2",
            ),
        ] {
            assert_eq!(text.parse::<Device>().unwrap().to_string(), printed);
        }
        let veth = "net_af_packet0,qpairs=2,iface=pe-eng0".parse::<Device>().unwrap();
        assert_eq!(veth.linux_interface(), Some("pe-eng0"));
    }

    #[test]
    fn what_is_no_device_is_refused() {
        for (text, hint) in [
            ("", "PCI address"),
            ("eth0", "PCI address"),
            ("07:20.0", "PCI address"),
            ("07:00.8", "PCI address"),
            ("0000:07:00", "PCI address"),
            ("00000:07:00.0", "PCI address"),
            ("+007:07:00.0", "PCI address"),
            ("net_ring", "number after"),
            ("net_vhost0", "net_af_packet, net_af_xdp"),
            ("net_af_packet0", "interface to open"),
            ("net_tap0,iface=a b", "white space"),
        ] {
            let error = text.parse::<Device>().unwrap_err();
            assert!(error.contains(hint), "{text}: {error}");
        }
    }
}
