//! `proxyengine doctor` on machines that are directories: good ones, bad ones, and one that has nothing.

use std::fs;
use std::path::Path;

use proxyengine::config::Config;
use proxyengine::doctor::rules::{RULES, table};
use proxyengine::doctor::{Diagnosis, Root, Severity, examine, misplaced};
use tempfile::TempDir;

/// A machine's files.
struct Machine(TempDir);

const NIC: &str = "0000:07:00.0";

impl Machine {
    fn empty() -> Self {
        Self(tempfile::tempdir().expect("a directory"))
    }

    /// Two nodes of four cores; the NIC and the engine's cores 2 and 3 on node 0; everything as rt-tuning.md wants it.
    fn good() -> Self {
        let machine = Self::empty();
        let flags = "fpu sse4_2 popcnt ssse3 avx2 constant_tsc nonstop_tsc";
        machine.put(
            "/proc/cpuinfo",
            &format!("vendor_id\t: GenuineIntel\nflags\t\t: {flags}\n"),
        );
        machine.put("/proc/self/status", "Name:\tproxyengine\nCapEff:\t000001ffffffffff\n");
        machine.put(
            "/proc/self/limits",
            "Max locked memory         unlimited            unlimited            bytes\n",
        );
        machine.put("/proc/mounts", "nodev /dev/hugepages hugetlbfs rw 0 0\n");
        machine.put(
            "/proc/cmdline",
            "BOOT_IMAGE=/vmlinuz isolcpus=managed_irq,domain,2-3 nohz_full=2-3 rcu_nocbs=2-3\n",
        );
        machine.interrupt(42, "0-7\n");
        machine.put("/proc/irq/42/effective_affinity_list", "1\n");
        machine.put(
            "/sys/kernel/mm/transparent_hugepage/enabled",
            "always [madvise] never\n",
        );
        machine.hugepages("/sys/kernel/mm/hugepages", 1024, 1024);
        machine.hugepages("/sys/devices/system/node/node0/hugepages", 1024, 1024);
        machine.hugepages("/sys/devices/system/node/node1/hugepages", 0, 0);
        machine.put(
            "/sys/devices/system/clocksource/clocksource0/current_clocksource",
            "tsc\n",
        );
        for (file, text) in [("online", "0-7"), ("isolated", "2-3"), ("nohz_full", "2-3")] {
            machine.put(&format!("/sys/devices/system/cpu/{file}"), text);
        }
        for cpu in 0..8 {
            let cpu_directory = format!("/sys/devices/system/cpu/cpu{cpu}");
            machine.put(
                &format!("{cpu_directory}/topology/thread_siblings_list"),
                &cpu.to_string(),
            );
            machine.put(&format!("{cpu_directory}/cpufreq/scaling_governor"), "performance\n");
            machine.put(&format!("{cpu_directory}/node{}/cpulist", cpu / 4), "");
        }
        machine.put("/sys/kernel/iommu_groups/0/type", "DMA\n");
        machine.nic(NIC, Some("vfio-pci"), ("8.0 GT/s PCIe", "8"), 0);
        for library in ["librte_eal.so.23", "librte_ethdev.so.23", "librte_mempool.so.23"] {
            machine.put(&format!("/usr/lib/x86_64-linux-gnu/{library}"), "");
        }
        machine.put(
            "/usr/lib/x86_64-linux-gnu/dpdk/pmds-23.0/librte_net_af_packet.so.23",
            "",
        );
        machine.put("/sys/class/net/eth1/ifindex", "3");
        machine.put("/dev/net/tun", "");
        machine
    }

    fn put(&self, path: &str, text: &str) -> &Self {
        let path = self.path(path);
        fs::create_dir_all(path.parent().expect("a directory")).expect("made");
        fs::write(path, text).expect("written");
        self
    }

    fn remove(&self, path: &str) -> &Self {
        let path = self.path(path);
        if path.is_dir() {
            fs::remove_dir_all(path).expect("removed");
        } else {
            fs::remove_file(path).expect("removed");
        }
        self
    }

    fn path(&self, path: &str) -> std::path::PathBuf {
        self.0.path().join(path.trim_start_matches('/'))
    }

    fn hugepages(&self, directory: &str, configured: u32, free: u32) -> &Self {
        let directory = format!("{directory}/hugepages-2048kB");
        self.put(&format!("{directory}/nr_hugepages"), &configured.to_string());
        self.put(&format!("{directory}/free_hugepages"), &free.to_string())
    }

    /// An interrupt with a handler.
    fn interrupt(&self, irq: u32, cpus: &str) -> &Self {
        fs::create_dir_all(self.path(&format!("/proc/irq/{irq}/wire"))).expect("made");
        self.put(&format!("/proc/irq/{irq}/smp_affinity_list"), cpus)
    }

    fn nic(&self, address: &str, driver: Option<&str>, link: (&str, &str), node: i32) -> &Self {
        let directory = format!("/sys/bus/pci/devices/{address}");
        self.put(&format!("{directory}/class"), "0x020000\n");
        self.put(&format!("{directory}/numa_node"), &node.to_string());
        self.put(&format!("{directory}/current_link_speed"), link.0);
        self.put(&format!("{directory}/current_link_width"), link.1);
        self.put(&format!("{directory}/max_link_speed"), "8.0 GT/s PCIe");
        self.put(&format!("{directory}/max_link_width"), "8");
        let link = self.path(&format!("{directory}/driver"));
        let _ = fs::remove_file(&link);
        if let Some(driver) = driver {
            let target = format!("/sys/bus/pci/drivers/{driver}");
            std::os::unix::fs::symlink(target, link).expect("a link");
        }
        self
    }

    fn root(&self) -> Root {
        Root::at(self.0.path())
    }

    fn examine(&self, config: &str) -> Diagnosis {
        let config = Config::parse(config, "edge.toml").unwrap_or_else(|error| panic!("{error}"));
        examine(&self.root(), Some((&config, "edge.toml")))
    }
}

fn config() -> String {
    format!(
        r#"
        [engine]
        cores = [2]
        memory_mib = 1024
        [[port]]
        name = "wire"
        device = "{NIC}"
        addresses = ["10.0.0.1/24"]
        [[port]]
        name = "side"
        device = "net_af_packet0,iface=eth1"
        addresses = ["10.1.0.1/24"]
        kernel = {{ device = "pe-k0", namespace = "edge" }}
        [[listener]]
        name = "web"
        addresses = ["10.0.0.1:80"]
        default = "pool"
        [[pool]]
        name = "pool"
        servers = [{{ name = "s", address = "10.0.0.9:80" }}]
        "#
    )
}

/// What is wrong with a machine in which one thing was changed: the rule and the words that must be said.
#[track_caller]
fn assert_finds(change: impl FnOnce(&Machine), expected: &[(&str, Severity, &str, &str)]) {
    let machine = Machine::good();
    change(&machine);
    let found = machine.examine(&config());
    let ids: Vec<_> = found
        .findings
        .iter()
        .map(|finding| (finding.id, finding.severity))
        .collect();
    let expected_ids: Vec<_> = expected.iter().map(|(id, severity, ..)| (*id, *severity)).collect();
    assert_eq!(ids, expected_ids, "{found}");
    for (finding, (_, _, what, fix)) in found.findings.iter().zip(expected) {
        assert!(finding.what.contains(what), "{what:?} in {finding:?}");
        assert!(finding.fix.contains(fix), "{fix:?} in {finding:?}");
        assert!(!finding.fix.contains('{'), "{finding:?}");
    }
}

use Severity::{Error, Warning};

#[test]
fn a_good_machine_is_well() {
    let machine = Machine::good();
    let found = machine.examine(&config());
    assert!(found.is_well(), "{found}");
    assert!(found.passed.len() >= 18, "{found}");
    assert!(
        found
            .to_string()
            .ends_with("0 errors, 0 warnings, 25 in order; rt-tuning.md explains more\n"),
        "{found}"
    );
    let without = examine(&machine.root(), None);
    assert!(without.is_well(), "{without}");
}

#[test]
fn a_machine_that_has_nothing_is_told_everything() {
    let machine = Machine::empty();
    machine.put("/proc/cpuinfo", "flags : fpu\n");
    machine.put("/proc/self/status", "CapEff:\t0000000000000000\n");
    machine.put(
        "/proc/self/limits",
        "Max locked memory         65536                65536                bytes\n",
    );
    let found = examine(&machine.root(), None);
    let ids: Vec<&str> = found.findings.iter().map(|finding| finding.id).collect();
    for id in [
        "privileges",
        "memlock",
        "dpdk-libraries",
        "cpu-features",
        "tsc",
        "hugepages",
        "hugetlbfs",
        "transparent-hugepages",
        "isolated-cores",
        "nohz-full",
        "rcu-nocbs",
        "iommu",
        "pci-device",
    ] {
        assert!(ids.contains(&id), "{id} in {found}");
    }
    assert!(found.errors > 0 && found.warnings > 0);
    let severities: Vec<_> = found.findings.iter().map(|finding| finding.severity).collect();
    assert!(severities.is_sorted_by(|a, b| a >= b), "errors first: {found}");
    let text = found.to_string();
    assert_eq!(text.matches("why: ").count(), ids.len());
    assert_eq!(text.matches("fix: ").count(), ids.len());
    // A configuration makes the device that is missing an error.
    let found = machine.examine(&config());
    let missing = found
        .findings
        .iter()
        .find(|finding| finding.id == "pci-device")
        .expect("found");
    assert_eq!(missing.severity, Error);
    assert!(missing.what.contains("wire") && missing.what.contains(NIC));
    assert!(
        found
            .findings
            .iter()
            .any(|finding| finding.id == "interface" && finding.what.contains("eth1"))
    );
    assert!(found.findings.iter().any(|finding| finding.id == "tun"));
}

#[test]
fn hugepages_are_counted_in_all_and_on_each_node() {
    let pages = "/sys/kernel/mm/hugepages";
    let none = |machine: &Machine| _ = machine.hugepages(pages, 0, 0);
    let echo = "echo 512 > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
    assert_finds(
        none,
        &[("hugepages", Error, "none are configured, 1024 MiB are needed", echo)],
    );
    let used = |machine: &Machine| _ = machine.hugepages(pages, 1024, 511);
    assert_finds(
        used,
        &[("hugepages", Error, "free are 511 of 1024 pages of 2 MiB", echo)],
    );
    let enough = |machine: &Machine| _ = machine.hugepages(pages, 1024, 512);
    assert_finds(enough, &[]);
    let elsewhere = |machine: &Machine| {
        machine.hugepages("/sys/devices/system/node/node0/hugepages", 100, 100);
        machine.hugepages("/sys/devices/system/node/node1/hugepages", 924, 924);
    };
    let echo = "echo 512 > /sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages";
    assert_finds(
        elsewhere,
        &[("node-hugepages", Warning, "on node 0, where workers run", echo)],
    );
    let unmounted = |machine: &Machine| _ = machine.put("/proc/mounts", "tmpfs /tmp tmpfs rw 0 0\n");
    assert_finds(
        unmounted,
        &[("hugetlbfs", Warning, "no hugetlbfs", "mount -t hugetlbfs")],
    );
    let never =
        |machine: &Machine| _ = machine.put("/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]");
    assert_finds(
        never,
        &[("transparent-hugepages", Warning, "switched off", "echo madvise")],
    );
}

#[test]
fn cores_are_to_be_there_alone_and_fast() {
    let cpu = "/sys/devices/system/cpu";
    let offline = |machine: &Machine| _ = machine.put(&format!("{cpu}/online"), "0-1");
    assert_finds(offline, &[("cores", Error, "core 2 is not online", "edge.toml")]);
    let shared = |machine: &Machine| {
        machine.put(&format!("{cpu}/isolated"), "3");
        machine.put(&format!("{cpu}/nohz_full"), "(null)");
        machine.put("/proc/cmdline", "quiet");
    };
    let expected = [
        (
            "isolated-cores",
            Warning,
            "core 2 is not",
            "isolcpus=managed_irq,domain,2 ",
        ),
        ("nohz-full", Warning, "core 2 is not among", "nohz_full=2 "),
        ("rcu-nocbs", Warning, "core 2 is not among", "rcu_nocbs=2 "),
    ];
    assert_finds(shared, &expected);
    // The cores of nohz_full offload their callbacks by themselves.
    let implied = |machine: &Machine| _ = machine.put("/proc/cmdline", "nohz_full=2-3");
    assert_finds(implied, &[]);
    let slow = |machine: &Machine| _ = machine.put(&format!("{cpu}/cpu2/cpufreq/scaling_governor"), "powersave\n");
    assert_finds(
        slow,
        &[(
            "governor",
            Warning,
            "powersave",
            "cpupower -c 2 frequency-set -g performance",
        )],
    );
    let fixed = |machine: &Machine| _ = machine.remove(&format!("{cpu}/cpu2/cpufreq"));
    assert_finds(fixed, &[]);
    let twins = |machine: &Machine| _ = machine.put(&format!("{cpu}/cpu2/topology/thread_siblings_list"), "2,6");
    assert_finds(
        twins,
        &[(
            "smt-siblings",
            Warning,
            "core 6, is online",
            "echo 0 > /sys/devices/system/cpu/cpu6/online",
        )],
    );
}

#[test]
fn interrupts_are_kept_off() {
    let there = |machine: &Machine| {
        machine.interrupt(43, "0-7\n");
        machine.put("/proc/irq/43/effective_affinity_list", "2\n");
        machine.interrupt(44, "3\n");
        machine.put("/proc/irq/default_smp_affinity", "ff");
        machine.put("/run/irqbalance/irqbalance1.sock", "");
    };
    let expected = [
        ("irqbalance", Warning, "running", "systemctl disable --now irqbalance"),
        (
            "interrupts",
            Warning,
            "interrupt 43",
            "echo 0-1,3-7 > /proc/irq/43/smp_affinity_list",
        ),
    ];
    assert_finds(there, &expected);
    let many = |machine: &Machine| {
        for irq in 50..60 {
            machine.interrupt(irq, "0-7");
        }
    };
    let found = {
        let machine = Machine::good();
        many(&machine);
        machine.examine(&config())
    };
    assert_eq!(found.warnings, 4, "three by name and the rest in one: {found}");
    assert!(found.findings[3].what.contains("7 more"), "{found}");
    // The cascade of the 8259 has no handler: it never comes, and the kernel refuses to move it.
    let cascade = |machine: &Machine| _ = machine.put("/proc/irq/2/smp_affinity_list", "0-7");
    assert_finds(cascade, &[]);
}

#[test]
fn a_uio_driver_needs_an_iommu_that_does_not_translate() {
    let group = format!("/sys/bus/pci/devices/{NIC}/iommu_group/type");
    let uio = |kind: &'static str| {
        let group = group.clone();
        move |machine: &Machine| {
            machine.nic(NIC, Some("uio_pci_generic"), ("8.0 GT/s PCIe", "8"), 0);
            machine.put(&group, kind);
        }
    };
    let finding = [(
        "iommu-translates",
        Error,
        "0000:07:00.0",
        "--bind=vfio-pci 0000:07:00.0",
    )];
    assert_finds(uio("DMA\n"), &finding);
    assert_finds(uio("DMA-FQ\n"), &finding);
    assert_finds(uio("identity\n"), &[]);
    let vfio = |machine: &Machine| _ = machine.put(&group, "DMA\n");
    assert_finds(vfio, &[]);
}

#[test]
fn vfio_needs_interrupt_remapping() {
    let ecap = "/sys/class/iommu/dmar0/intel-iommu/ecap";
    let finding = [("interrupt-remapping", Error, "0000:07:00.0", "allow_unsafe_interrupts")];
    // The unit of an emulated board with remapping, and the same without bit 3.
    assert_finds(|machine| _ = machine.put(ecap, "f00f4a\n"), &[]);
    assert_finds(|machine| _ = machine.put(ecap, "f00f42\n"), &finding);
    let off = |machine: &Machine| {
        let line = fs::read_to_string(machine.path("/proc/cmdline")).expect("text");
        machine.put("/proc/cmdline", &format!("{} intremap=off\n", line.trim()));
    };
    assert_finds(off, &finding);
    let accepted = |machine: &Machine| {
        machine.put(ecap, "f00f42\n");
        machine.put("/sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts", "Y\n");
    };
    assert_finds(accepted, &[]);
    let uio = |machine: &Machine| {
        machine.put(ecap, "f00f42\n");
        machine.nic(NIC, Some("uio_pci_generic"), ("8.0 GT/s PCIe", "8"), 0);
    };
    assert_finds(uio, &[]);
}

#[test]
fn a_nic_is_to_be_bound_near_and_wide() {
    let kernels = |machine: &Machine| _ = machine.nic(NIC, Some("ixgbe"), ("8.0 GT/s PCIe", "8"), 0);
    let bind = "dpdk-devbind.py --bind=vfio-pci 0000:07:00.0";
    assert_finds(kernels, &[("pci-driver", Error, "bound to ixgbe", bind)]);
    let no_vfio = |machine: &Machine| {
        machine.nic(NIC, Some("ixgbe"), ("8.0 GT/s PCIe", "8"), 0);
        machine.remove("/sys/kernel/iommu_groups");
    };
    let expected = [
        (
            "pci-driver",
            Error,
            "bound to ixgbe",
            "modprobe uio_pci_generic && dpdk-devbind.py --bind=uio_pci_generic",
        ),
        ("iommu", Warning, "no IOMMU group", "intel_iommu=on"),
    ];
    assert_finds(no_vfio, &expected);
    let unbound = |machine: &Machine| _ = machine.nic(NIC, None, ("8.0 GT/s PCIe", "8"), 0);
    assert_finds(unbound, &[("pci-driver", Error, "bound to no driver", bind)]);
    let narrow = |machine: &Machine| _ = machine.nic(NIC, Some("vfio-pci"), ("8.0 GT/s PCIe", "4"), 0);
    assert_finds(
        narrow,
        &[(
            "pcie-link",
            Warning,
            "4 lanes at 8 GT/s, of 8 at 8 GT/s",
            "lspci -s 0000:07:00.0",
        )],
    );
    let slow = |machine: &Machine| _ = machine.nic(NIC, Some("vfio-pci"), ("2.5 GT/s PCIe", "8"), 0);
    assert_finds(slow, &[("pcie-link", Warning, "8 lanes at 2.5 GT/s", "lspci")]);
    let virtual_function = |machine: &Machine| _ = machine.nic(NIC, Some("vfio-pci"), ("Unknown", "0"), -1);
    assert_finds(virtual_function, &[]);
    let far = |machine: &Machine| _ = machine.nic(NIC, Some("vfio-pci"), ("8.0 GT/s PCIe", "8"), 1);
    let choose = "cat /sys/devices/system/node/node1/cpulist";
    assert_finds(
        far,
        &[(
            "numa",
            Warning,
            "port wire is on node 1, core 2 with its packet memory on node 0",
            choose,
        )],
    );
    let gone = |machine: &Machine| _ = machine.remove(&format!("/sys/bus/pci/devices/{NIC}"));
    assert_finds(
        gone,
        &[("pci-device", Error, "no device at 0000:07:00.0", "lspci -Dnn")],
    );
    let no_iommu = |machine: &Machine| _ = machine.remove("/sys/kernel/iommu_groups");
    assert_finds(
        no_iommu,
        &[("iommu", Error, "no IOMMU group", "intel_iommu=on iommu=pt")],
    );
    let without = |machine: &Machine| {
        machine.remove("/sys/kernel/iommu_groups");
        machine.put("/sys/module/vfio/parameters/enable_unsafe_noiommu_mode", "Y\n");
    };
    assert_finds(without, &[]);
    let amd = |machine: &Machine| {
        machine.remove("/sys/kernel/iommu_groups");
        let info = fs::read_to_string(machine.path("/proc/cpuinfo")).expect("text");
        machine.put("/proc/cpuinfo", &info.replace("GenuineIntel", "AuthenticAMD"));
    };
    assert_finds(amd, &[("iommu", Error, "no IOMMU group", "amd_iommu=on iommu=pt")]);
}

#[test]
fn short_rings_are_told() {
    let machine = Machine::good();
    let short = config().replacen(
        "addresses = [\"10.0.0.1/24\"]",
        "addresses = [\"10.0.0.1/24\"]\nrx_descriptors = 128",
        1,
    );
    let found = machine.examine(&short);
    assert_eq!(found.findings.len(), 1, "{found}");
    assert!(
        found.findings[0]
            .what
            .contains("port wire: 128 to receive, 1024 to send"),
        "{found}"
    );
}

#[test]
fn the_process_and_its_libraries() {
    // Without CAP_NET_RAW, which the second port takes.
    let poor = |machine: &Machine| _ = machine.put("/proc/self/status", "CapEff:\t000001ffffffdfff\n");
    assert_finds(
        poor,
        &[("privileges", Error, "lacks CAP_NET_RAW", "sudo proxyengine edge.toml")],
    );
    let bound = |machine: &Machine| {
        machine.put(
            "/proc/self/limits",
            "Max locked memory         8388608              8388608              bytes\n",
        );
    };
    // The limit does not hold for who has CAP_IPC_LOCK.
    assert_finds(bound, &[]);
    let bound_without = |machine: &Machine| {
        bound(machine);
        machine.put("/proc/self/status", "CapEff:\t000001ffffffbfff\n");
    };
    assert_finds(
        bound_without,
        &[
            (
                "privileges",
                Warning,
                "lacks CAP_IPC_LOCK",
                "sudo proxyengine edge.toml",
            ),
            (
                "memlock",
                Warning,
                "8192 KiB may be locked, 1024 MiB",
                "ulimit -l unlimited",
            ),
        ],
    );
    let no_driver = |machine: &Machine| _ = machine.remove("/usr/lib/x86_64-linux-gnu/dpdk");
    assert_finds(no_driver, &[("dpdk-driver", Error, "net_af_packet", "apt-get install")]);
    let no_dpdk = |machine: &Machine| _ = machine.remove("/usr/lib/x86_64-linux-gnu");
    assert_finds(
        no_dpdk,
        &[("dpdk-libraries", Error, "not there", "apt-get install dpdk")],
    );
    let no_tun = |machine: &Machine| _ = machine.remove("/dev/net/tun");
    assert_finds(no_tun, &[("tun", Error, "/dev/net/tun", "modprobe tun")]);
    let no_interface = |machine: &Machine| _ = machine.remove("/sys/class/net/eth1");
    assert_finds(no_interface, &[("interface", Error, "no interface eth1", "ip link")]);
}

#[test]
fn the_clock_and_the_processor() {
    let flags =
        |flags: &'static str| move |machine: &Machine| _ = machine.put("/proc/cpuinfo", &format!("flags : {flags}\n"));
    assert_finds(
        flags("popcnt ssse3 avx2 constant_tsc nonstop_tsc"),
        &[("cpu-features", Error, "lacks sse4_2", "virsh edit")],
    );
    assert_finds(
        flags("sse4_2 popcnt ssse3 constant_tsc nonstop_tsc"),
        &[("cpu-features", Warning, "lacks avx2", "virsh edit")],
    );
    assert_finds(
        flags("sse4_2 popcnt ssse3 avx2 constant_tsc"),
        &[("tsc", Warning, "not said to be invariant", "invtsc")],
    );
    let clock = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    let hpet = |machine: &Machine| _ = machine.put(clock, "hpet\n");
    assert_finds(
        hpet,
        &[("clocksource", Warning, "the kernel's clock is hpet", "echo tsc")],
    );
    let kvm = |machine: &Machine| _ = machine.put(clock, "kvm-clock\n");
    assert_finds(kvm, &[]);
}

#[test]
fn without_a_configuration_every_network_device_is_looked_at() {
    let machine = Machine::good();
    machine.nic("0000:0a:00.0", Some("i40e"), ("8.0 GT/s PCIe", "4"), 0);
    machine.put("/sys/bus/pci/devices/0000:00:1f.0/class", "0x060100\n");
    let found = examine(&machine.root(), None);
    let told: Vec<_> = found
        .findings
        .iter()
        .map(|finding| (finding.id, finding.severity))
        .collect();
    assert_eq!(told, [("pci-driver", Warning), ("pcie-link", Warning)], "{found}");
    assert!(
        found.findings[0].fix.ends_with("--bind=vfio-pci 0000:0a:00.0"),
        "{found}"
    );
}

/// Whoever follows the advice over the network must not be locked out by it.
#[test]
fn the_way_out_is_not_to_be_given_away() {
    let routed = |net: &str, route: (&str, &str)| {
        let machine = Machine::good();
        machine.nic(NIC, Some("ixgbe"), ("8.0 GT/s PCIe", "8"), 0);
        machine.put(&format!("/sys/bus/pci/devices/{NIC}/{net}/address"), "");
        machine.put(route.0, route.1);
        machine
    };
    let header = "Iface\tDestination\tGateway\n";
    let zeros = "0".repeat(32);
    for machine in [
        routed(
            "net/eth0",
            ("/proc/net/route", &format!("{header}eth0\t00000000\t0102000A\n")),
        ),
        routed(
            "virtio3/net/eth0",
            ("/proc/net/route", &format!("{header}eth0\t00000000\t0102000A\n")),
        ),
        routed(
            "net/eth0",
            (
                "/proc/net/ipv6_route",
                &format!("{zeros} 00 {zeros} 00 {zeros} 0 0 0 0 eth0\n"),
            ),
        ),
    ] {
        assert!(examine(&machine.root(), None).is_well(), "it stays with Linux");
        let found = machine.examine(&config());
        assert!(
            found.findings[0].what.contains("this machine may be out of reach"),
            "{found}"
        );
    }
    let other = routed(
        "net/eth0",
        ("/proc/net/route", &format!("{header}eth0\t0002000A\t00000000\n")),
    );
    let found = examine(&other.root(), None);
    assert_eq!(found.findings[0].what, "0000:07:00.0 is bound to ixgbe");
}

#[test]
fn json_has_what_the_text_has() {
    let machine = Machine::good();
    machine.hugepages("/sys/kernel/mm/hugepages", 0, 0);
    let found = machine.examine(&config());
    let json: serde_json::Value = serde_json::from_str(&found.to_json()).expect("JSON");
    assert_eq!((&json["errors"], &json["warnings"]), (&1.into(), &0.into()));
    let first = &json["findings"][0];
    assert_eq!(
        (&first["id"], &first["severity"]),
        (&"hugepages".into(), &"error".into())
    );
    for key in ["what", "why", "fix"] {
        assert!(first[key].as_str().is_some_and(|text| !text.is_empty()), "{key}");
    }
    assert_eq!(json["passed"].as_array().expect("a list").len(), found.passed.len());
}

#[test]
fn nodes_that_are_not_known_are_not_complained_about() {
    let machine = Machine::good();
    let text = config();
    let config = Config::parse(&text, "edge.toml").unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(misplaced(&machine.root(), &config), []);
    machine.nic(NIC, Some("vfio-pci"), ("8.0 GT/s PCIe", "8"), 1);
    machine.put("/sys/class/net/eth1/device/numa_node", "1\n");
    let found: Vec<String> = misplaced(&machine.root(), &config)
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(found.len(), 2, "both ports: {found:?}");
    machine.nic(NIC, Some("vfio-pci"), ("8.0 GT/s PCIe", "8"), -1);
    assert_eq!(misplaced(&machine.root(), &config).len(), 1);
    assert_eq!(misplaced(&Machine::empty().root(), &config), []);
}

/// The table in rt-tuning.md is that of the program; `UPDATE_GOLDEN=1` writes it.
#[test]
fn rt_tuning_has_every_command() {
    const BEGIN: &str = "<!-- doctor: written by tests/doctor.rs -->\n";
    const END: &str = "<!-- end of doctor -->";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("rt-tuning.md");
    let text = fs::read_to_string(&path).expect("rt-tuning.md");
    let (before, rest) = text.split_once(BEGIN).expect("where the table begins");
    let (written, after) = rest.split_once(END).expect("where it ends");
    if std::env::var("UPDATE_GOLDEN").is_ok_and(|set| set == "1") {
        fs::write(&path, format!("{before}{BEGIN}{}{END}{after}", table())).expect("written");
        return;
    }
    assert_eq!(written, table(), "UPDATE_GOLDEN=1 writes it anew");
    let mut ids: Vec<&str> = RULES.iter().map(|rule| rule.id).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), RULES.len(), "one name each");
}
