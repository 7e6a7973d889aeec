//! `[engine]`.

use std::collections::HashSet;

use super::{choice, duration, number};
use crate::config::defaults;
use crate::config::model::{EngineConfig, Idle, PortConfig, Steering};
use crate::config::raw::RawEngine;
use crate::config::source::{At, Source};
use splice::ids::CoreId;
use splice::settings::{UnknownFlows, Verify};

pub(super) fn check(source: &mut Source<'_>, raw: &RawEngine, ports: &[PortConfig]) -> EngineConfig {
    let at = At::root().key("engine");
    if ports.is_empty() && source.problem_count() == 0 {
        source.complain(&At::root(), "there is no [[port]], expected at least one");
    }
    let name = raw.name.as_deref().unwrap_or(defaults::NAME);
    super::name(source, &at.key("name"), name, &mut HashSet::new());
    EngineConfig {
        name: name.to_owned(),
        cores: cores(source, &at.key("cores"), raw),
        memory_mib: number(
            source,
            &at.key("memory_mib"),
            raw.memory_mib,
            defaults::MEMORY_MIB,
            &defaults::MEMORY_MIB_RANGE,
        ) as u32,
        idle: choice(
            source,
            &at.key("idle"),
            raw.idle.as_deref(),
            &[("adaptive", Idle::Adaptive), ("poll", Idle::Poll)],
        ),
        announce: choice(
            source,
            &at.key("announce"),
            raw.announce.as_deref(),
            &[("on", true), ("off", false)],
        ),
        drain: duration(
            source,
            &at.key("drain"),
            raw.drain.as_deref(),
            defaults::DRAIN,
            &defaults::DRAIN_RANGE,
        ),
        unknown_flows: choice(
            source,
            &at.key("unknown_flows"),
            raw.unknown_flows.as_deref(),
            &[("rst", UnknownFlows::Rst), ("silent", UnknownFlows::Silent)],
        ),
        replies_per_second: number(
            source,
            &at.key("replies_per_second"),
            raw.replies_per_second,
            defaults::REPLIES_PER_SECOND,
            &defaults::REPLIES_PER_SECOND_RANGE,
        ) as u32,
        overload_after: duration(
            source,
            &at.key("overload_after"),
            raw.overload_after.as_deref(),
            defaults::OVERLOAD_AFTER,
            &defaults::OVERLOAD_AFTER_RANGE,
        ),
        leg_sample: number(
            source,
            &at.key("leg_sample"),
            raw.leg_sample,
            defaults::LEG_SAMPLE,
            &defaults::LEG_SAMPLE_RANGE,
        ) as u32,
        max_connections: number(
            source,
            &at.key("max_connections"),
            raw.max_connections,
            defaults::MAX_CONNECTIONS,
            &defaults::MAX_CONNECTIONS_RANGE,
        ) as u32,
        reassembly_memory: number(
            source,
            &at.key("reassembly_memory"),
            raw.reassembly_memory,
            defaults::REASSEMBLY_MEMORY,
            &defaults::REASSEMBLY_MEMORY_RANGE,
        ) as u64
            * (1 << 20),
        reassembly_quota: number(
            source,
            &at.key("reassembly_quota"),
            raw.reassembly_quota,
            defaults::REASSEMBLY_QUOTA,
            &defaults::REASSEMBLY_QUOTA_RANGE,
        ) as u8,
        verify: choice(
            source,
            &at.key("verify"),
            raw.verify.as_deref(),
            &[("acted", Verify::Acted), ("all", Verify::All)],
        ),
        buffers: buffers(source, &at.key("buffers"), raw, ports),
        steering: choice(
            source,
            &at.key("steering"),
            raw.steering.as_deref(),
            &[
                Steering::Auto,
                Steering::Rss,
                Steering::Port,
                Steering::Ip,
                Steering::Software,
            ]
            .map(|way| (way.name(), way)),
        ),
        port_mask: port_mask(source, &at.key("port_mask"), raw),
    }
}

/// Ones from the left, and at least one of each: a mask of all bits would leave each core a single port.
fn port_mask(source: &mut Source<'_>, at: &At, raw: &RawEngine) -> Option<u16> {
    let value = raw.port_mask?;
    let mask = u16::try_from(value)
        .ok()
        .filter(|&mask| !matches!(mask, 0 | u16::MAX) && mask.leading_ones() + mask.trailing_zeros() == u16::BITS);
    if mask.is_none() {
        let expected = "a mask of the highest bits of a port, such as 0xC000 for four parts of 16384 ports";
        source.refuse(at, format!("{value:#x}"), expected);
    }
    mask
}

fn cores(source: &mut Source<'_>, at: &At, raw: &RawEngine) -> Vec<CoreId> {
    let numbers = raw.cores.as_deref().unwrap_or(defaults::CORES);
    if numbers.is_empty() {
        source.complain(at, "is empty, expected the numbers of the cores that run workers");
    }
    let mut cores = Vec::with_capacity(numbers.len());
    for (i, &core) in numbers.iter().enumerate() {
        number(source, &at.index(i), Some(core), 0, &defaults::CORE);
        let core = CoreId(core as u16);
        if cores.contains(&core) {
            source.refuse(&at.index(i), core, "a core that is named only once");
        }
        cores.push(core);
    }
    cores
}

fn buffers(source: &mut Source<'_>, at: &At, raw: &RawEngine, ports: &[PortConfig]) -> u32 {
    let buffers = number(source, at, raw.buffers, defaults::BUFFERS, &defaults::BUFFERS_RANGE);
    let descriptors: i64 = ports
        .iter()
        .map(|port| i64::from(port.rx_descriptors) + i64::from(port.tx_descriptors))
        .sum();
    let needed = descriptors + defaults::BUFFERS_IN_FLIGHT;
    if buffers < needed {
        let in_flight = defaults::BUFFERS_IN_FLIGHT;
        source.refuse(
            at,
            buffers,
            format!("at least {needed}: {descriptors} for the descriptors of all ports and {in_flight} in flight"),
        );
    }
    buffers as u32
}
