//! What the EAL is asked for: the configuration, the choice of memory, and the arguments made of both. All of it is pure.

use super::eal::EalError;

/// How DPDK's environment is to be started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EalConfig {
    /// Names this process among other DPDK processes; two with one prefix clash. The default contains the process id.
    pub file_prefix: String,
    /// The CPU of the EAL's own threads (interrupts, memif control); none: the first that is no packet core.
    pub main_core: Option<usize>,
    /// CPUs that packet threads will be pinned to; the EAL's own threads keep off them.
    pub packet_cores: Vec<usize>,
    /// Memory for pools and rings, in MiB.
    pub memory_mib: u32,
    /// Which pages that memory is to be made of.
    pub pages: PageChoice,
    /// PCI devices that may be used, each an address with optional device arguments. Empty: the PCI bus is not looked at.
    pub pci: Vec<String>,
    /// Whether DPDK's telemetry socket is opened.
    pub telemetry: bool,
    /// The most detailed DPDK messages that are passed on to `log`, target `dpdk`.
    pub log_level: log::LevelFilter,
}

impl Default for EalConfig {
    fn default() -> Self {
        Self {
            file_prefix: format!("e2d2-{}", std::process::id()),
            main_core: None,
            packet_cores: Vec::new(),
            memory_mib: 512,
            pages: PageChoice::Auto,
            pci: Vec::new(),
            telemetry: false,
            log_level: log::LevelFilter::Warn,
        }
    }
}

impl EalConfig {
    /// What tests use: ordinary pages, no PCI, nothing outside the process; needs neither root nor hugepages.
    pub fn hermetic() -> Self {
        Self {
            memory_mib: 256,
            pages: PageChoice::Ordinary,
            ..Self::default()
        }
    }
}

/// Which pages packet memory is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageChoice {
    /// Hugepages when enough are free, else ordinary ones.
    Auto,
    /// Hugepages, or an error.
    Huge,
    /// Ordinary pages.
    Ordinary,
}

/// The free hugepages of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HugePages {
    /// Size of one page in KiB.
    pub size_kib: u64,
    /// How many are free.
    pub free: u64,
}

/// The memory that was chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Hugepages: few TLB misses, and what a NIC's DMA needs.
    Huge {
        /// How much, in MiB.
        mib: u32,
    },
    /// Ordinary pages: works everywhere, costs TLB misses.
    Ordinary {
        /// How much, in MiB.
        mib: u32,
        /// The command that would provide hugepages.
        hint: String,
    },
}

/// Decides what the memory is made of.
///
/// A NIC reads and writes the memory itself, by physical address or through an IOMMU whose table is too small for ordinary
/// pages, so naming a PCI device asks for hugepages.
///
/// # Errors
/// [`EalError::NoHugepages`] when hugepages are asked for, or needed by a PCI device, and too few are free.
pub(super) fn choose_memory(config: &EalConfig, free: &[HugePages]) -> Result<Memory, EalError> {
    let mib = config.memory_mib;
    let free_mib = free.iter().map(|pages| pages.size_kib * pages.free).sum::<u64>() / 1024;
    let hint = format!("sysctl -w vm.nr_hugepages={}", mib.div_ceil(2));
    let needed = config.pages == PageChoice::Huge || !config.pci.is_empty();
    match config.pages {
        PageChoice::Auto | PageChoice::Huge if free_mib >= u64::from(mib) => Ok(Memory::Huge { mib }),
        _ if needed => Err(EalError::NoHugepages {
            needed_mib: mib,
            free_mib,
            hint,
        }),
        _ => Ok(Memory::Ordinary { mib, hint }),
    }
}

/// The argument vector of `rte_eal_init`.
///
/// Nothing is shared through files: `--in-memory` with hugepages, so that none is left in a hugepage directory, and
/// `--no-shconf` with ordinary pages, with which `--in-memory` is refused. memif needs no more, as it passes its own memory
/// over its socket; only DPDK's secondary processes do, and those cannot be had together with registered threads in any
/// case (`rte_thread_register` refuses). Always `--no-pci` or a list of allowed devices: otherwise the EAL tries every NIC
/// of the machine.
pub(super) fn arguments(config: &EalConfig, memory: &Memory, main_core: usize) -> Vec<String> {
    let mut arguments = vec![
        "e2d2".to_owned(),
        format!("--lcores=0@{main_core}"),
        format!("--file-prefix={}", config.file_prefix),
    ];
    if config.pci.is_empty() {
        arguments.push("--no-pci".to_owned());
    }
    for device in &config.pci {
        arguments.push("-a".to_owned());
        arguments.push(device.clone());
    }
    let mib = match memory {
        Memory::Huge { mib } => {
            arguments.push("--in-memory".to_owned());
            mib
        }
        Memory::Ordinary { mib, .. } => {
            arguments.extend(["--no-huge".to_owned(), "--no-shconf".to_owned()]);
            mib
        }
    };
    // Physical addresses need privileges and matter to NICs only; those choose for themselves.
    if config.pci.is_empty() {
        arguments.push("--iova-mode=va".to_owned());
    }
    arguments.extend(["-m".to_owned(), mib.to_string()]);
    if !config.telemetry {
        arguments.push("--no-telemetry".to_owned());
    }
    arguments.push(format!("--log-level={}", log_level(config.log_level)));
    if config.log_level >= log::LevelFilter::Debug {
        arguments.push("--log-level=*:debug".to_owned());
    }
    arguments
}

/// DPDK's number for a level: `RTE_LOG_ERR` 4 to `RTE_LOG_DEBUG` 8; 1 lets only emergencies pass.
fn log_level(level: log::LevelFilter) -> u32 {
    match level {
        log::LevelFilter::Off => 1,
        log::LevelFilter::Error => 4,
        log::LevelFilter::Warn => 5,
        log::LevelFilter::Info => 7,
        log::LevelFilter::Debug | log::LevelFilter::Trace => 8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> EalConfig {
        EalConfig {
            file_prefix: "unit".to_owned(),
            memory_mib: 512,
            ..EalConfig::default()
        }
    }

    const ENOUGH: HugePages = HugePages {
        size_kib: 2048,
        free: 256,
    };
    const ONE_SHORT: HugePages = HugePages {
        size_kib: 2048,
        free: 255,
    };

    #[test]
    fn hugepages_are_used_when_enough_are_free() {
        assert_eq!(choose_memory(&config(), &[ENOUGH]), Ok(Memory::Huge { mib: 512 }));
        let gigabyte = HugePages {
            size_kib: 1 << 20,
            free: 1,
        };
        assert_eq!(
            choose_memory(&config(), &[gigabyte, ONE_SHORT]),
            Ok(Memory::Huge { mib: 512 })
        );
    }

    #[test]
    fn ordinary_pages_are_used_when_one_hugepage_is_missing() {
        let hint = "sysctl -w vm.nr_hugepages=256".to_owned();
        assert_eq!(
            choose_memory(&config(), &[ONE_SHORT]),
            Ok(Memory::Ordinary {
                mib: 512,
                hint: hint.clone()
            })
        );
        assert_eq!(choose_memory(&config(), &[]), Ok(Memory::Ordinary { mib: 512, hint }));
    }

    #[test]
    fn ordinary_pages_are_used_when_asked_for() {
        let config = EalConfig {
            pages: PageChoice::Ordinary,
            ..config()
        };
        assert!(matches!(
            choose_memory(&config, &[ENOUGH]),
            Ok(Memory::Ordinary { mib: 512, .. })
        ));
    }

    #[test]
    fn a_pci_device_or_the_configuration_makes_hugepages_a_must() {
        let pci = EalConfig {
            pci: vec!["0000:01:00.0".to_owned()],
            ..config()
        };
        let huge = EalConfig {
            pages: PageChoice::Huge,
            ..config()
        };
        let ordinary = EalConfig {
            pages: PageChoice::Ordinary,
            ..pci.clone()
        };
        for config in [&pci, &huge, &ordinary] {
            let error = choose_memory(config, &[ONE_SHORT]).expect_err("too few hugepages");
            assert!(error.to_string().contains("sysctl -w vm.nr_hugepages=256"), "{error}");
        }
        assert_eq!(choose_memory(&pci, &[ENOUGH]), Ok(Memory::Huge { mib: 512 }));
    }

    #[test]
    fn without_a_pci_address_the_pci_bus_is_not_looked_at() {
        let memory = Memory::Ordinary {
            mib: 512,
            hint: String::new(),
        };
        assert_eq!(
            arguments(&config(), &memory, 1).join(" "),
            "e2d2 --lcores=0@1 --file-prefix=unit --no-pci --no-huge --no-shconf --iova-mode=va -m 512 --no-telemetry --log-level=5"
        );
    }

    #[test]
    fn named_pci_devices_are_allowed_and_no_others() {
        let config = EalConfig {
            pci: vec!["0000:01:00.0".to_owned(), "0000:01:00.1,a=b".to_owned()],
            telemetry: true,
            log_level: log::LevelFilter::Debug,
            ..config()
        };
        assert_eq!(
            arguments(&config, &Memory::Huge { mib: 64 }, 0).join(" "),
            "e2d2 --lcores=0@0 --file-prefix=unit -a 0000:01:00.0 -a 0000:01:00.1,a=b --in-memory -m 64 --log-level=8 --log-level=*:debug"
        );
    }
}
