//! Device strings: what they name, what DPDK is told, and everything about them that can be checked before DPDK sees them.
//!
//! ```text
//!   0000:01:00.0                      a NIC bound to vfio-pci, uio_pci_generic or igb_uio (or a Mellanox one as it is)
//!   net_af_packet0,iface=veth0        a virtual device: driver, then anything that makes the name unique, then arguments
//! ```

use std::fmt;
use std::fs;
use std::str::FromStr;

use super::drivers::{self, Driver, check_installed};
use super::host::{check_pci, has_capability, interface_exists};

/// Why a device string does not name a usable device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// Neither a PCI address nor a virtual device.
    #[error(
        "`{device}` names no device: expected a PCI address (0000:01:00.0) or one of {known}, e.g. net_af_packet0,iface=eth1"
    )]
    Unknown {
        /// The string as given.
        device: String,
        /// The drivers there are.
        known: String,
    },
    /// A part that is no `key=value`.
    #[error("`{part}` in `{device}` is no key=value")]
    Syntax {
        /// The string as given.
        device: String,
        /// The part in question.
        part: String,
    },
    /// An argument that the driver does not have.
    #[error("{driver} has no argument `{argument}`; it has {known}")]
    UnknownArgument {
        /// The driver.
        driver: &'static str,
        /// The argument in question.
        argument: String,
        /// The arguments there are.
        known: String,
    },
    /// An argument that the driver cannot do without.
    #[error("{driver} needs the argument `{argument}`, as in {driver}0,{argument}=…")]
    MissingArgument {
        /// The driver.
        driver: &'static str,
        /// What is missing.
        argument: &'static str,
    },
    /// The driver is not installed.
    #[error("the driver {driver} is not installed: apt-get install {package}")]
    MissingDriver {
        /// The driver.
        driver: &'static str,
        /// Its Debian package.
        package: String,
    },
    /// The kernel interface does not exist in this network namespace.
    #[error("{driver}: there is no interface `{interface}` in this network namespace (see `ip link`)")]
    NoInterface {
        /// The driver.
        driver: &'static str,
        /// The interface.
        interface: String,
    },
    /// A file that is to be read does not exist or may not be read.
    #[error("{driver}: {path} cannot be read: {reason}")]
    NoFile {
        /// The driver.
        driver: &'static str,
        /// The file.
        path: String,
        /// What the system says.
        reason: String,
    },
    /// The process lacks a capability.
    #[error("{driver} needs {capability}: run as root, or `setcap {capability}+ep` the program")]
    NoPermission {
        /// The driver.
        driver: &'static str,
        /// The capability.
        capability: &'static str,
    },
    /// No such PCI device.
    #[error("there is no PCI device {address} (see `dpdk-devbind.py --status`)")]
    NoPciDevice {
        /// Its address.
        address: String,
    },
    /// A PCI device that a kernel driver holds.
    #[error("PCI device {address} is bound to {driver}: `dpdk-devbind.py -b vfio-pci {address}` hands it to DPDK")]
    PciNotBound {
        /// Its address.
        address: String,
        /// The kernel driver, or `no driver`.
        driver: String,
    },
}

/// A parsed device string.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device(Kind);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    Pci {
        address: String,
        arguments: String,
    },
    Virtual {
        driver: &'static Driver,
        name: String,
        arguments: Vec<(String, String)>,
    },
}

impl FromStr for Device {
    type Err = DeviceError;

    /// Parses a device string and checks its arguments' names; nothing outside is looked at.
    fn from_str(text: &str) -> Result<Self, DeviceError> {
        let (name, rest) = text.split_once(',').unwrap_or((text, ""));
        if let Some(address) = pci_address(name) {
            return Ok(Self(Kind::Pci {
                address,
                arguments: rest.to_owned(),
            }));
        }
        // `net_ring` is no prefix of another driver's name, nor is any other.
        let driver = drivers::DRIVERS
            .iter()
            .find(|driver| name.starts_with(driver.name))
            .ok_or_else(|| DeviceError::Unknown {
                device: text.to_owned(),
                known: drivers::names(),
            })?;
        let arguments = rest
            .split(',')
            .filter(|part| !part.is_empty())
            .map(|part| {
                part.split_once('=')
                    .map(|(key, value)| (key.to_owned(), value.to_owned()))
                    .ok_or_else(|| DeviceError::Syntax {
                        device: text.to_owned(),
                        part: part.to_owned(),
                    })
            })
            .collect::<Result<Vec<_>, _>>()?;
        if let Some((key, _)) = arguments
            .iter()
            .find(|(key, _)| !driver.arguments.contains(&key.as_str()))
        {
            let known = if driver.arguments.is_empty() {
                "none".to_owned()
            } else {
                driver.arguments.join(", ")
            };
            return Err(DeviceError::UnknownArgument {
                driver: driver.name,
                argument: key.clone(),
                known,
            });
        }
        if let Some(argument) = driver
            .required
            .iter()
            .find(|&&needed| !arguments.iter().any(|(key, _)| key == needed))
        {
            return Err(DeviceError::MissingArgument {
                driver: driver.name,
                argument,
            });
        }
        Ok(Self(Kind::Virtual {
            driver,
            name: name.to_owned(),
            arguments,
        }))
    }
}

/// The string that it was parsed from, with a full PCI address.
impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match &self.0 {
            Kind::Pci { arguments, .. } if arguments.is_empty() => Ok(()),
            Kind::Pci { arguments, .. } => write!(f, ",{arguments}"),
            Kind::Virtual { arguments, .. } => arguments
                .iter()
                .try_for_each(|(key, value)| write!(f, ",{key}={value}")),
        }
    }
}

impl Device {
    /// What DPDK calls the device: its PCI address, or the virtual device's name.
    pub fn name(&self) -> &str {
        match &self.0 {
            Kind::Pci { address, .. } => address,
            Kind::Virtual { name, .. } => name,
        }
    }

    /// The entry for [`super::EalConfig::pci`], if it is a PCI device.
    pub fn as_pci(&self) -> Option<String> {
        matches!(self.0, Kind::Pci { .. }).then(|| self.to_string())
    }

    /// The driver of a virtual device, such as `net_memif`.
    pub fn driver(&self) -> Option<&'static str> {
        match &self.0 {
            Kind::Pci { .. } => None,
            Kind::Virtual { driver, .. } => Some(driver.name),
        }
    }

    /// The kernel interface whose packets it takes, if it takes those of one.
    pub fn kernel_interface(&self) -> Option<&str> {
        match &self.0 {
            Kind::Virtual { driver, .. } if driver.required.contains(&"iface") => self.argument("iface"),
            _ => None,
        }
    }

    /// The socket that another process must have made, if it is a memif client.
    pub(super) fn server_socket(&self) -> Option<&str> {
        let is_client = self.driver() == Some("net_memif") && self.argument("role") != Some("server");
        let has_file = self.argument("socket-abstract").is_none_or(|value| value == "no");
        self.argument("socket").filter(|_| is_client && has_file)
    }

    /// Checks what can be checked without DPDK: that the driver is installed, the interface or file exists, the process is
    /// allowed to use it, and a PCI device is bound to a driver that leaves it to DPDK.
    ///
    /// # Errors
    /// [`DeviceError`], each saying what to do.
    pub fn check(&self) -> Result<(), DeviceError> {
        let Kind::Virtual { driver, arguments, .. } = &self.0 else {
            return check_pci(self.name());
        };
        check_installed(driver.name)?;
        for (key, value) in arguments {
            if driver.interfaces.contains(&key.as_str()) && !interface_exists(value) {
                return Err(DeviceError::NoInterface {
                    driver: driver.name,
                    interface: value.clone(),
                });
            }
            if driver.files.contains(&key.as_str()) {
                fs::File::open(value).map_err(|error| DeviceError::NoFile {
                    driver: driver.name,
                    path: value.clone(),
                    reason: error.to_string(),
                })?;
            }
        }
        match driver.capability {
            Some((needed, capability)) if !has_capability(needed) => Err(DeviceError::NoPermission {
                driver: driver.name,
                capability,
            }),
            _ => Ok(()),
        }
    }

    pub(super) fn bus(&self) -> &'static str {
        if matches!(self.0, Kind::Pci { .. }) {
            "pci"
        } else {
            "vdev"
        }
    }

    /// What DPDK is told: the arguments as given, and those that follow from the port's configuration unless given.
    pub(super) fn arguments(&self, queues: usize, data_room: u16) -> String {
        let (driver, given) = match &self.0 {
            Kind::Pci { arguments, .. } => return arguments.clone(),
            Kind::Virtual { driver, arguments, .. } => (driver, arguments),
        };
        let mut all: Vec<String> = given.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let mut add = |key: &str, value: String| {
            if self.argument(key).is_none() {
                all.push(format!("{key}={value}"));
            }
        };
        if let Some(key) = driver.queues.filter(|_| queues > 1) {
            add(key, queues.to_string());
        }
        if driver.name == "net_af_packet" && data_room > AF_PACKET_FRAME {
            // A block must hold whole frames and whole pages: four frames of a multiple of 1024 bytes do.
            add("framesz", data_room.to_string());
            add("blocksz", (u32::from(data_room) * 4).to_string());
        }
        if driver.name == "net_memif" {
            // The ring's buffers, whose size the client decides, must hold a frame. DPDK 22.11 parts a larger one but never
            // clears the mark of that in its descriptors: after one turn of the ring it joins what does not belong together.
            add("bsize", data_room.to_string());
            // Abstract sockets, DPDK's default, do not cross network namespaces and leave nothing to look for.
            if self.argument("socket").is_some() {
                add("socket-abstract", "no".to_owned());
            }
        }
        all.join(",")
    }

    /// The argument that says how many queues the device has, if it is given.
    pub(super) fn queue_argument(&self) -> Option<(&str, &str)> {
        let Kind::Virtual { driver, .. } = &self.0 else {
            return None;
        };
        driver.queues.and_then(|key| Some((key, self.argument(key)?)))
    }

    fn argument(&self, wanted: &str) -> Option<&str> {
        match &self.0 {
            Kind::Pci { .. } => None,
            Kind::Virtual { arguments, .. } => arguments
                .iter()
                .find(|(key, _)| key == wanted)
                .map(|(_, value)| value.as_str()),
        }
    }
}

/// The frame size that net_af_packet has by itself.
const AF_PACKET_FRAME: u16 = 2048;

/// `[domain:]bus:device.function` in hexadecimal, with the domain filled in.
pub(super) fn pci_address(text: &str) -> Option<String> {
    let hex = |part: &str, most: usize| {
        (!part.is_empty() && part.len() <= most)
            .then(|| u32::from_str_radix(part, 16).ok())
            .flatten()
    };
    let (place, function) = text.rsplit_once('.')?;
    let (rest, device) = place.rsplit_once(':')?;
    let (domain, bus) = rest.split_once(':').unwrap_or(("0", rest));
    let (domain, bus, device, function) = (hex(domain, 8)?, hex(bus, 2)?, hex(device, 2)?, hex(function, 1)?);
    (device < 32 && function < 8).then(|| format!("{domain:04x}:{bus:02x}:{device:02x}.{function}"))
}

#[cfg(test)]
mod tests {
    use super::drivers::DRIVERS;
    use super::*;

    fn parse(text: &str) -> Device {
        text.parse().expect(text)
    }

    #[test]
    fn pci_addresses_are_completed_and_checked() {
        for (text, full) in [
            ("0000:01:00.0", "0000:01:00.0"),
            ("3:0.1", "0000:03:00.1"),
            ("10000:AF:1f.7", "10000:af:1f.7"),
        ] {
            assert_eq!(parse(text).as_pci().as_deref(), Some(full), "{text}");
        }
        for text in [
            "01:20.0",
            "01:00.8",
            "100:00.0",
            "01:00",
            "",
            "0000:01:00.",
            "g:00.0",
            "a:b:c:d.0",
        ] {
            assert!(
                matches!(text.parse::<Device>(), Err(DeviceError::Unknown { .. })),
                "{text}"
            );
        }
        assert_eq!(parse("01:00.0,a=b,c").to_string(), "0000:01:00.0,a=b,c");
    }

    #[test]
    fn virtual_devices_keep_their_arguments() {
        let device = parse("net_af_packet7,iface=veth0,qpairs=2");
        assert_eq!(
            (device.name(), device.driver()),
            ("net_af_packet7", Some("net_af_packet"))
        );
        assert_eq!(device.kernel_interface(), Some("veth0"));
        assert_eq!(device.to_string(), "net_af_packet7,iface=veth0,qpairs=2");
        assert_eq!(device.arguments(4, 2048), "iface=veth0,qpairs=2");
        assert_eq!(
            parse("net_tap0,iface=tap7").kernel_interface(),
            None,
            "net_tap makes its interface"
        );
    }

    #[test]
    fn queues_and_frame_sizes_follow_from_the_configuration() {
        assert_eq!(parse("net_af_packet0,iface=v").arguments(1, 2048), "iface=v");
        assert_eq!(parse("net_af_packet0,iface=v").arguments(2, 2048), "iface=v,qpairs=2");
        assert_eq!(
            parse("net_af_packet0,iface=v").arguments(1, 9216),
            "iface=v,framesz=9216,blocksz=36864"
        );
        assert_eq!(parse("net_af_xdp0,iface=v").arguments(3, 2048), "iface=v,queue_count=3");
        assert_eq!(parse("net_null0").arguments(3, 2048), "");
        assert_eq!(
            parse("net_memif0,role=server").arguments(1, 3072),
            "role=server,bsize=3072"
        );
    }

    #[test]
    fn what_is_wrong_is_named() {
        let error = |text: &str| text.parse::<Device>().expect_err(text).to_string();
        assert!(error("eth0").contains("net_af_packet"), "the drivers there are");
        assert!(error("net_af_packet0").contains("`iface`"));
        assert!(error("net_af_packet0,iface").contains("`iface`"));
        assert!(error("net_tap0,ifname=x").contains("iface, remote, mac"));
        assert!(error("net_ring0,x=1").contains("it has none"));
    }

    #[test]
    fn what_does_not_exist_is_named_before_dpdk_is_asked() {
        let check = |text: &str| parse(text).check().expect_err(text);
        assert!(matches!(
            check("net_af_packet0,iface=no-such-if"),
            DeviceError::NoInterface { .. }
        ));
        assert!(matches!(
            check("net_af_xdp0,iface=no-such-if"),
            DeviceError::NoInterface { .. }
        ));
        assert!(matches!(
            check("net_pcap0,rx_pcap=/no/such/file"),
            DeviceError::NoFile { .. }
        ));
        assert!(matches!(check("ffff:00:00.0"), DeviceError::NoPciDevice { .. }));
        let missing = check_installed("net_no_such").expect_err("no such driver");
        assert!(
            missing.to_string().contains("apt-get install librte-net-no-such23"),
            "{missing}"
        );
        for driver in &DRIVERS {
            assert_eq!(
                check_installed(driver.name),
                Ok(()),
                "the build needs the package dpdk with all drivers"
            );
        }
    }
}
