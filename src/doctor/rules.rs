//! What is looked at, why it matters, and the command that mends it: one row each, of which `rt-tuning.md` has a copy.
//!
//! A command's words in braces are filled in for the machine: `{cores}` the workers' cores, `{others}` the rest, `{core}`
//! one of them, `{sibling}` its other hyper-thread, `{node}` a NUMA node, `{pages}` a number of hugepages, `{size}` of
//! which size in KiB, `{pci}` a PCI device, `{irq}` an interrupt, `{interface}` a network interface, `{iommu}` the
//! parameter for this processor, `{driver}` a driver of DPDK, `{bind}` the kernel driver to bind a device to, `{file}` the configuration.

/// One thing that is looked at.
#[derive(Debug, PartialEq, Eq)]
pub struct Rule {
    /// Its name in the output.
    pub id: &'static str,
    /// Why it matters: a sentence without its full stop.
    pub why: &'static str,
    /// The command that mends it.
    pub fix: &'static str,
}

macro_rules! rules {
    ($($name:ident: $id:literal, $why:literal, $fix:literal;)*) => {
        $(pub(super) const $name: Rule = Rule { id: $id, why: $why, fix: $fix };)*
        /// All of them, in the order in which they are looked at.
        pub const RULES: &[&Rule] = &[$(&$name),*];
    };
}

rules! {
    PRIVILEGES: "privileges",
        "opening a port takes capabilities that only root has by itself",
        "sudo proxyengine {file}";
    MEMLOCK: "memlock",
        "DPDK locks its memory, and vfio all that a device may reach; beyond the limit that fails",
        "ulimit -l unlimited";
    DPDK_LIBRARIES: "dpdk-libraries",
        "the engine is linked to them and does not start without",
        "apt-get install dpdk libdpdk-dev";
    DPDK_DRIVER: "dpdk-driver",
        "a port is opened by the driver that its device names",
        "apt-get install dpdk libdpdk-dev # has {driver}";
    CPU_FEATURES: "cpu-features",
        "DPDK as Debian builds it stops at once without SSE4.2, and receives without vector instructions without AVX2; in a \
         virtual machine the hypervisor hides them",
        "virsh edit GUEST # <cpu mode=\"host-passthrough\"/>";
    TSC: "tsc",
        "the time stamp counter is the engine's clock; one that is not invariant is replaced by a system call for every look",
        "virsh edit GUEST # <feature policy=\"require\" name=\"invtsc\"/>";
    CLOCKSOURCE: "clocksource",
        "the kernel does not trust the time stamp counter itself",
        "echo tsc > /sys/devices/system/clocksource/clocksource0/current_clocksource";
    HUGEPAGES: "hugepages",
        "packet memory in pages of 4 KiB misses the TLB with every packet, and a PCI device cannot use it at all",
        "echo {pages} > /sys/kernel/mm/hugepages/hugepages-{size}kB/nr_hugepages";
    NODE_HUGEPAGES: "node-hugepages",
        "packet memory on another node costs a trip over the interconnect per packet",
        "echo {pages} > /sys/devices/system/node/node{node}/hugepages/hugepages-{size}kB/nr_hugepages";
    HUGETLBFS: "hugetlbfs",
        "DPDK takes its hugepages from a file system that has to be mounted",
        "mkdir -p /dev/hugepages && mount -t hugetlbfs nodev /dev/hugepages";
    THP: "transparent-hugepages",
        "the tables of connections ask for large pages; in small ones nearly every look-up costs a page walk",
        "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled";
    CORES: "cores",
        "a worker runs on the core that the configuration names, and only there",
        "cat /sys/devices/system/cpu/online # choose from these for cores in {file}";
    ISOLATED: "isolated-cores",
        "whatever else the scheduler places on a worker's core makes packets wait",
        "sed -i 's/^GRUB_CMDLINE_LINUX=\"/&isolcpus=managed_irq,domain,{cores} /' /etc/default/grub && update-grub && reboot";
    NOHZ_FULL: "nohz-full",
        "the timer tick interrupts a worker up to a thousand times a second",
        "sed -i 's/^GRUB_CMDLINE_LINUX=\"/&nohz_full={cores} /' /etc/default/grub && update-grub && reboot";
    RCU_NOCBS: "rcu-nocbs",
        "the kernel's deferred work (RCU callbacks) runs on a worker's core",
        "sed -i 's/^GRUB_CMDLINE_LINUX=\"/&rcu_nocbs={cores} /' /etc/default/grub && update-grub && reboot";
    GOVERNOR: "governor",
        "a core that has to climb to full speed first is slow at the start of every burst",
        "cpupower -c {cores} frequency-set -g performance";
    SIBLINGS: "smt-siblings",
        "two hyper-threads share the core's caches and execution units",
        "echo 0 > /sys/devices/system/cpu/cpu{sibling}/online";
    INTERRUPTS: "interrupts",
        "each interrupt on a worker's core takes microseconds from it and cools its caches",
        "echo {others} > /proc/irq/{irq}/smp_affinity_list";
    IRQBALANCE: "irqbalance",
        "it moves interrupts back to where they are not wanted",
        "systemctl disable --now irqbalance";
    IOMMU: "iommu",
        "vfio-pci gives a device to a process only behind an IOMMU",
        "sed -i 's/^GRUB_CMDLINE_LINUX=\"/&{iommu} iommu=pt /' /etc/default/grub && update-grub && reboot";
    PCI_DEVICE: "pci-device",
        "the port's device has to be there",
        "lspci -Dnn | grep -i ethernet # choose from these for device in {file}";
    PCI_DRIVER: "pci-driver",
        "DPDK drives a PCI device only if its kernel driver leaves it alone",
        "modprobe {bind} && dpdk-devbind.py --bind={bind} {pci}";
    IOMMU_TRANSLATES: "iommu-translates",
        "a uio driver hands the device physical addresses, and an IOMMU that translates refuses them: the link is up and nothing \
         passes; vfio-pci or the kernel parameter iommu=pt mends that",
        "modprobe vfio-pci && dpdk-devbind.py --bind=vfio-pci {pci}";
    INTERRUPT_REMAPPING: "interrupt-remapping",
        "without it a device can raise any interrupt of the machine, so vfio refuses the device until that risk is accepted",
        "echo 1 > /sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts";
    PCIE_LINK: "pcie-link",
        "a link with fewer lanes or a lower speed than the card can do is full before the wire is; only another slot, or the \
         firmware's settings for this one, can mend that",
        "lspci -s {pci} -vv | grep -E 'LnkCap:|LnkSta:'";
    NUMA: "numa",
        "each packet crosses the interconnect between the nodes twice",
        "cat /sys/devices/system/node/node{node}/cpulist # choose from these for cores in {file}";
    DESCRIPTORS: "descriptors",
        "a short ring overflows while the worker is busy with one burst, and the NIC drops what follows",
        "sed -i 's/_descriptors = .*/_descriptors = 1024/' {file}";
    INTERFACE: "interface",
        "the port's driver stands on an interface of the kernel's, in the namespace that the engine runs in",
        "ip link show # choose from these for iface in {file}";
    TUN: "tun",
        "the way to the kernel is a TAP device",
        "modprobe tun";
}

/// `template` with its words in braces replaced.
pub fn fill(template: &str, values: &[(&str, &str)]) -> String {
    let mut text = template.to_owned();
    for (name, value) in values {
        text = text.replace(&format!("{{{name}}}"), value);
    }
    text
}

/// The table of all rules as `rt-tuning.md` has it, with the values that are examples there.
pub fn table() -> String {
    const EXAMPLES: &[(&str, &str)] = &[
        ("cores", "2-3"),
        ("others", "0-1"),
        ("sibling", "10"),
        ("node", "0"),
        ("pages", "1024"),
        ("size", "2048"),
        ("pci", "0000:07:00.0"),
        ("irq", "42"),
        ("iommu", "intel_iommu=on"),
        ("driver", "net_i40e"),
        ("bind", "vfio-pci"),
        ("file", "engine.toml"),
    ];
    let mut text = String::from("| finding | why it matters | what mends it |\n|---|---|---|\n");
    for rule in RULES {
        let fix = fill(rule.fix, EXAMPLES).replace('|', "\\|");
        text.push_str(&format!("| {} | {} | `{fix}` |\n", rule.id, rule.why));
    }
    text
}
