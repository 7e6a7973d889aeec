//! The RSS of a port: key and redirection table are set, and read back as the device has them.
#![allow(unsafe_code)] // FFI: configures ethdev ports.

use dpdk_sys as sys;

use super::port::{PortConfig, PortInner};
use crate::rss::{Rss, even_reta};

/// Entries of a redirection table that are read and written together.
const GROUP: u16 = 64;

/// The key as long as the device wants it; empty if none is configured.
pub(super) fn key_for(config: &PortConfig, info: &sys::rte_eth_dev_info) -> Vec<u8> {
    config.rss_key.iter().copied().cycle().take(key_length(info)).collect()
}

fn key_length(info: &sys::rte_eth_dev_info) -> usize {
    match info.hash_key_size {
        0 => 40,
        length => usize::from(length),
    }
}

/// How the device spreads TCP, once each queue has its share: drivers fill the table when they are configured, some with
/// nothing but queue 0.
pub(super) fn spread_evenly(
    inner: &PortInner,
    config: &PortConfig,
    info: &sys::rte_eth_dev_info,
    rss_hf: u64,
) -> Option<Rss> {
    let (queues, asked) = (inner.pools.len() as u16, key_for(config, info));
    let mut rss = read_rss(inner, info)?;
    if rss.key != asked {
        set_key(inner, asked.clone(), rss_hf);
        rss = read_rss(inner, info)?;
        if rss.key != asked {
            log::warn!("{}: keeps an RSS key of its own", inner.name);
        }
    }
    if is_even(&rss, queues) {
        return Some(rss);
    }
    let mut groups = vec![sys::rte_eth_rss_reta_entry64::default(); usize::from(info.reta_size.div_ceil(GROUP))];
    for (entry, queue) in even_reta(info.reta_size, queues).into_iter().enumerate() {
        let (group, place) = (&mut groups[entry / usize::from(GROUP)], entry % usize::from(GROUP));
        group.mask |= 1 << place;
        group.reta[place] = queue;
    }
    // SAFETY: `groups` holds `reta_size` entries in groups of 64; the port is started.
    let result = unsafe { sys::rte_eth_dev_rss_reta_update(inner.port, groups.as_mut_ptr(), info.reta_size) };
    let now = read_rss(inner, info)?;
    if result != 0 || !is_even(&now, queues) {
        let (name, shares) = (&inner.name, now.shares(queues));
        log::warn!("{name}: the redirection table gives its queues {shares:?} entries and cannot be set evenly");
    }
    Some(now)
}

/// Sets the key of a port whose driver has not done so when it was configured; whether it does now is seen by reading.
fn set_key(inner: &PortInner, mut key: Vec<u8>, rss_hf: u64) {
    let mut conf = sys::rte_eth_rss_conf {
        rss_key: key.as_mut_ptr(),
        rss_key_len: key.len() as u8,
        rss_hf,
    };
    // SAFETY: the port is configured; `key` has the length that is told and lives during the call.
    unsafe { sys::rte_eth_dev_rss_hash_update(inner.port, &mut conf) };
}

/// Whether no queue has more than one entry more than another, and every entry is a queue's.
fn is_even(rss: &Rss, queues: u16) -> bool {
    let shares = rss.shares(queues);
    let (least, most) = (shares.iter().min().copied(), shares.iter().max().copied());
    let is_level = least.zip(most).is_some_and(|(least, most)| most - least <= 1);
    is_level && shares.iter().sum::<usize>() == rss.reta.len()
}

/// Reads key and redirection table back; none if the device does not tell them.
fn read_rss(inner: &PortInner, info: &sys::rte_eth_dev_info) -> Option<Rss> {
    let mut key = vec![0; key_length(info)];
    let mut conf = sys::rte_eth_rss_conf {
        rss_key: key.as_mut_ptr(),
        rss_key_len: key.len() as u8,
        ..Default::default()
    };
    // SAFETY: the port is configured; `key` has the length that is told.
    if unsafe { sys::rte_eth_dev_rss_hash_conf_get(inner.port, &mut conf) } != 0 || info.reta_size == 0 {
        return None;
    }
    let mut groups = vec![sys::rte_eth_rss_reta_entry64::default(); usize::from(info.reta_size.div_ceil(GROUP))];
    groups.iter_mut().for_each(|group| group.mask = u64::MAX);
    // SAFETY: `groups` holds `reta_size` entries in groups of 64, all of them asked for.
    if unsafe { sys::rte_eth_dev_rss_reta_query(inner.port, groups.as_mut_ptr(), info.reta_size) } != 0 {
        return None;
    }
    let reta = groups
        .iter()
        .flat_map(|group| group.reta)
        .take(usize::from(info.reta_size))
        .collect();
    Some(Rss {
        key,
        reta,
        tcp_ipv4: conf.rss_hf & sys::DPDK_RSS_NONFRAG_IPV4_TCP != 0,
        tcp_ipv6: conf.rss_hf & sys::DPDK_RSS_NONFRAG_IPV6_TCP != 0,
    })
}
