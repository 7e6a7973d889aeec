//! Processor, memory and cores.

use super::rules::{
    CLOCKSOURCE, CORES, CPU_FEATURES, GOVERNOR, HUGEPAGES, HUGETLBFS, INTERRUPTS, IRQBALANCE, ISOLATED, NODE_HUGEPAGES,
    NOHZ_FULL, RCU_NOCBS, Rule, SIBLINGS, THP, TSC,
};
use super::{Root, Severity, Visit, cpu_list, show_cpus};
use crate::config::CoreId;

const CPU: &str = "/sys/devices/system/cpu";
pub(crate) const HUGE: &str = "/sys/kernel/mm/hugepages";
/// Interrupts that are named one by one; of more only their number is told.
const INTERRUPTS_NAMED: usize = 3;
/// What is proposed where no configuration says how much: twice the default `memory_mib`.
const MEMORY_MIB: u64 = 512;

fn flags(visit: &Visit<'_>) -> Option<Vec<String>> {
    let info = visit.root.read("/proc/cpuinfo")?;
    // Only x86 calls them so; other architectures have their own list and need none of what is asked for here.
    let line = info.lines().find_map(|line| line.strip_prefix("flags"))?;
    Some(line.split_whitespace().map(str::to_owned).collect())
}

pub(super) fn features(visit: &mut Visit<'_>) {
    let Some(flags) = flags(visit) else { return };
    let missing = |names: &[&str]| -> Vec<String> {
        let names = names.iter().filter(|name| !flags.iter().any(|flag| flag == *name));
        names.map(|name| (*name).to_owned()).collect()
    };
    let (needed, wanted) = (missing(&["sse4_2", "popcnt", "ssse3"]), missing(&["avx2"]));
    if !needed.is_empty() {
        let what = format!("the processor lacks {}", needed.join(", "));
        visit.error(&CPU_FEATURES, what, &[]);
    } else if !wanted.is_empty() {
        let what = format!("the processor lacks {}", wanted.join(", "));
        visit.warn(&CPU_FEATURES, what, &[]);
    } else {
        visit.pass(&CPU_FEATURES, "SSE4.2 and AVX2");
    }
}

pub(super) fn tsc(visit: &mut Visit<'_>) {
    let Some(flags) = flags(visit) else { return };
    let has = |name: &str| flags.iter().any(|flag| flag == name);
    if !has("constant_tsc") || !has("nonstop_tsc") {
        visit.warn(&TSC, "the time stamp counter is not said to be invariant", &[]);
        return;
    }
    visit.pass(&TSC, "invariant");
    let source = visit
        .root
        .read("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    match source {
        None => {}
        Some(source) if source == "tsc" => visit.pass(&CLOCKSOURCE, "tsc"),
        // Paravirtual clocks are made of the counter.
        Some(source) if source == "kvm-clock" || source.starts_with("hyperv") => visit.pass(&CLOCKSOURCE, source),
        Some(source) => visit.warn(&CLOCKSOURCE, format!("the kernel's clock is {source}"), &[]),
    }
}

/// Pages of one size.
pub(crate) struct Pages {
    pub(crate) kib: u64,
    pub(crate) configured: u64,
    pub(crate) free: u64,
}

/// The pages below a directory of the machine or of a node.
pub(crate) fn pages(root: &Root, directory: &str) -> Vec<Pages> {
    let sizes = root.names(directory);
    let size = |name: &String| {
        let kib = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
        let number = |file: &str| {
            let number = root.number(&format!("{directory}/{name}/{file}"));
            number.and_then(|number| u64::try_from(number).ok())
        };
        Some(Pages {
            kib,
            configured: number("nr_hugepages")?,
            free: number("free_hugepages").unwrap_or(0),
        })
    };
    sizes.iter().filter_map(size).collect()
}

fn shown(pages: &[Pages]) -> String {
    let each = pages.iter().map(|of| match of.kib {
        kib if kib >= 1 << 20 => format!("{} of {} pages of {} GiB", of.free, of.configured, kib >> 20),
        kib => format!("{} of {} pages of {} MiB", of.free, of.configured, kib >> 10),
    });
    each.collect::<Vec<_>>().join(", ")
}

pub(super) fn hugepages(visit: &mut Visit<'_>) {
    let all = pages(visit.root, HUGE);
    let needed_mib = visit
        .config
        .map_or(MEMORY_MIB, |config| u64::from(config.engine().memory_mib));
    let free_mib: u64 = all.iter().map(|of| (of.free * of.kib) >> 10).sum();
    // The smallest that there is: 2 MiB on x86.
    let size = all.iter().map(|of| of.kib).min().unwrap_or(2048);
    let count = (needed_mib << 10).div_ceil(size).to_string();
    let values = [("pages", count.as_str()), ("size", &size.to_string())];
    if free_mib >= needed_mib {
        visit.pass(&HUGEPAGES, format!("free: {}", shown(&all)));
    } else {
        let what = if all.is_empty() {
            "the kernel has no hugepages at all (hugetlbfs is not built in)".to_owned()
        } else if all.iter().all(|of| of.configured == 0) {
            format!("none are configured, {needed_mib} MiB are needed")
        } else {
            format!("free are {}, {needed_mib} MiB are needed", shown(&all))
        };
        let severity = if visit.pci_ports().is_empty() {
            Severity::Warning
        } else {
            Severity::Error
        };
        visit.find(&HUGEPAGES, severity, what, &values);
    }
    if free_mib >= needed_mib {
        nodes(visit, needed_mib);
    }
    let mounts = visit.root.read("/proc/mounts").unwrap_or_default();
    let place = mounts.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        let (place, kind) = (words.next()?, words.next()?);
        (kind == "hugetlbfs").then(|| place.to_owned())
    });
    match place {
        Some(place) => visit.pass(&HUGETLBFS, format!("mounted at {place}")),
        None => visit.warn(&HUGETLBFS, "no hugetlbfs is mounted", &[]),
    }
}

/// The nodes that workers run on, and how many MiB each worker's share there comes to.
pub(crate) fn shares(root: &Root, cores: &[u16], needed_mib: u64) -> Vec<(u32, u64)> {
    let of_core = |core: &u16| root.node_of_core(CoreId(*core));
    let nodes: Vec<u32> = cores.iter().filter_map(of_core).collect();
    let mut seen: Vec<u32> = Vec::new();
    for node in &nodes {
        if !seen.contains(node) {
            seen.push(*node);
        }
    }
    let share = |node: &u32| nodes.iter().filter(|of| *of == node).count() as u64;
    let needed = |node: &u32| (needed_mib * share(node)).div_ceil(nodes.len() as u64);
    seen.iter().map(|node| (*node, needed(node))).collect()
}

/// The memory of each worker has to be on its core's node.
fn nodes(visit: &mut Visit<'_>, needed_mib: u64) {
    for (node, needed) in shares(visit.root, &visit.cores(), needed_mib) {
        let there = pages(visit.root, &format!("/sys/devices/system/node/node{node}/hugepages"));
        if there.is_empty() {
            continue;
        }
        let free: u64 = there.iter().map(|of| (of.free * of.kib) >> 10).sum();
        if free >= needed {
            visit.pass(&NODE_HUGEPAGES, format!("node {node}: {}", shown(&there)));
            continue;
        }
        let size = there.iter().map(|of| of.kib).min().unwrap_or(2048);
        let values = [
            ("node", node.to_string()),
            ("pages", (needed << 10).div_ceil(size).to_string()),
            ("size", size.to_string()),
        ];
        let values = values.each_ref().map(|(name, value)| (*name, value.as_str()));
        let what = format!(
            "on node {node}, where workers run, free are {}, {needed} MiB are needed",
            shown(&there)
        );
        visit.warn(&NODE_HUGEPAGES, what, &values);
    }
}

pub(super) fn transparent_hugepages(visit: &mut Visit<'_>) {
    let Some(text) = visit.root.read("/sys/kernel/mm/transparent_hugepage/enabled") else {
        visit.warn(&THP, "the kernel has no transparent hugepages", &[]);
        return;
    };
    if text.contains("[never]") {
        visit.warn(&THP, "they are switched off", &[]);
    } else {
        visit.pass(&THP, text);
    }
}

/// Whether the cores of the configuration exist.
pub(super) fn cores(visit: &mut Visit<'_>) {
    let cores = visit.cores();
    let Some(online) = visit.root.read(&format!("{CPU}/online")) else {
        return;
    };
    let there = cpu_list(&online);
    let missing: Vec<u16> = cores.iter().copied().filter(|core| !there.contains(core)).collect();
    if missing.is_empty() {
        let cores = show_cpus(&cores);
        visit.pass(
            &CORES,
            if cores.is_empty() {
                format!("online: {online}")
            } else {
                cores
            },
        );
    } else {
        let what = format!("core {} is not online; {online} are", show_cpus(&missing));
        visit.error(&CORES, what, &[]);
    }
}

pub(super) fn isolation(visit: &mut Visit<'_>) {
    let isolated = visit.root.read(&format!("{CPU}/isolated")).unwrap_or_default();
    let nohz = visit.root.read(&format!("{CPU}/nohz_full")).unwrap_or_default();
    let line = visit.root.read("/proc/cmdline").unwrap_or_default();
    let nocbs = line.split_whitespace().find_map(|word| word.strip_prefix("rcu_nocbs="));
    // `rcu_nocbs=all`, and every core of nohz_full by itself.
    let nocbs = match nocbs {
        Some("all") => show_cpus(&visit.cores()),
        Some(list) => format!("{list},{nohz}"),
        None => nohz.clone(),
    };
    for (rule, list) in [(&ISOLATED, &isolated), (&NOHZ_FULL, &nohz), (&RCU_NOCBS, &nocbs)] {
        isolated_by(visit, rule, &cpu_list(list));
    }
}

fn isolated_by(visit: &mut Visit<'_>, rule: &'static Rule, set: &[u16]) {
    let cores = visit.cores();
    let left: Vec<u16> = cores.iter().copied().filter(|core| !set.contains(core)).collect();
    if visit.config.is_none() && set.is_empty() {
        let cores = all_but_first(visit);
        visit.warn(rule, "there is none", &[("cores", &show_cpus(&cores))]);
    } else if left.is_empty() {
        visit.pass(rule, show_cpus(set));
    } else {
        let what = format!("core {} is not among them", show_cpus(&left));
        visit.warn(rule, what, &[("cores", &show_cpus(&cores))]);
    }
}

/// What a machine without a configuration could give away: all cores but the first, which Linux keeps.
fn all_but_first(visit: &Visit<'_>) -> Vec<u16> {
    let online = visit.root.read(&format!("{CPU}/online")).unwrap_or_default();
    let cores: Vec<u16> = cpu_list(&online).into_iter().filter(|core| *core != 0).collect();
    if cores.is_empty() { vec![1] } else { cores }
}

/// The workers' cores, or every core where none are named.
fn judged_cores(visit: &Visit<'_>) -> Vec<u16> {
    let cores = visit.cores();
    if cores.is_empty() { all_but_first(visit) } else { cores }
}

pub(super) fn governor(visit: &mut Visit<'_>) {
    let governor = |core: &u16| {
        let file = format!("{CPU}/cpu{core}/cpufreq/scaling_governor");
        Some((*core, visit.root.read(&file)?))
    };
    let seen: Vec<(u16, String)> = judged_cores(visit).iter().filter_map(governor).collect();
    let slow: Vec<u16> = seen
        .iter()
        .filter(|(_, governor)| governor != "performance")
        .map(|(core, _)| *core)
        .collect();
    if let Some((_, first)) = seen.iter().find(|(core, _)| slow.contains(core)) {
        let cores = show_cpus(&slow);
        let what = format!("core {cores}: \"{first}\" in place of \"performance\"");
        visit.warn(&GOVERNOR, what, &[("cores", &cores)]);
    } else if seen.is_empty() {
        visit.pass(&GOVERNOR, "the kernel does not control the frequency here");
    } else {
        visit.pass(&GOVERNOR, "performance");
    }
}

pub(super) fn siblings(visit: &mut Visit<'_>) {
    let cores = visit.cores();
    if cores.is_empty() {
        return;
    }
    let mut found = false;
    for core in &cores {
        let list = visit
            .root
            .read(&format!("{CPU}/cpu{core}/topology/thread_siblings_list"));
        for sibling in cpu_list(&list.unwrap_or_default()) {
            let is_twice = cores.contains(&sibling) && sibling < *core;
            if sibling == *core || is_twice {
                continue;
            }
            found = true;
            let what = if cores.contains(&sibling) {
                format!("workers run on cores {core} and {sibling}, which are one")
            } else {
                format!("the sibling of core {core}, core {sibling}, is online")
            };
            visit.warn(&SIBLINGS, what, &[("sibling", &sibling.to_string())]);
        }
    }
    if !found {
        visit.pass(&SIBLINGS, "none is online");
    }
}

pub(super) fn interrupts(visit: &mut Visit<'_>) {
    let cores = visit.cores();
    if visit.root.exists("/run/irqbalance") {
        visit.warn(&IRQBALANCE, "irqbalance is running", &[]);
    }
    if cores.is_empty() {
        return;
    }
    let comes_to = |irq: &String| {
        // Linux makes a directory for each registered handler; an interrupt without one never comes and cannot be moved.
        let has_handler = |name: &String| visit.root.is_directory(&format!("/proc/irq/{irq}/{name}"));
        if !visit.root.names(&format!("/proc/irq/{irq}")).iter().any(has_handler) {
            return None;
        }
        let read = |file: &str| visit.root.read(&format!("/proc/irq/{irq}/{file}"));
        // Where it really goes, or may go.
        let list = read("effective_affinity_list").filter(|list| !list.is_empty());
        let list = cpu_list(&list.or_else(|| read("smp_affinity_list"))?);
        // One that may go everywhere and was never placed has an empty effective list on some kernels.
        list.iter().any(|cpu| cores.contains(cpu)).then(|| irq.clone())
    };
    let irqs: Vec<String> = visit.root.names("/proc/irq").iter().filter_map(comes_to).collect();
    if irqs.is_empty() {
        visit.pass(&INTERRUPTS, format!("none goes to core {}", show_cpus(&cores)));
        return;
    }
    let online = cpu_list(&visit.root.read(&format!("{CPU}/online")).unwrap_or_default());
    let others: Vec<u16> = online.into_iter().filter(|cpu| !cores.contains(cpu)).collect();
    let others = if others.is_empty() {
        "0".to_owned()
    } else {
        show_cpus(&others)
    };
    for irq in irqs.iter().take(INTERRUPTS_NAMED) {
        let what = format!("interrupt {irq} goes to a worker's core");
        visit.warn(&INTERRUPTS, what, &[("irq", irq), ("others", &others)]);
    }
    if irqs.len() > INTERRUPTS_NAMED {
        let rest = irqs.len() - INTERRUPTS_NAMED;
        let what = format!("{rest} more go there: {}", irqs[INTERRUPTS_NAMED..].join(", "));
        visit.warn(
            &INTERRUPTS,
            what,
            &[("irq", &irqs[INTERRUPTS_NAMED]), ("others", &others)],
        );
    }
}
