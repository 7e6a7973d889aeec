//! How a pool chooses among its servers, and when it asks which.

use std::time::Duration;

use super::{choice, duration, limits, number};
use crate::config::Standing;
use crate::config::defaults;
use crate::config::model::PoolConfig;
use crate::config::raw::{RawHash, RawPool};
use crate::config::source::{At, Source};
use splice::ids::PoolId;
use splice::settings::{HashKey, HashSettings, Policy};

/// The pool without its servers.
pub(super) fn pool(source: &mut Source<'_>, at: &At, raw: &RawPool, id: PoolId) -> PoolConfig {
    let policies = [
        ("round_robin", Policy::RoundRobin),
        ("least_connections", Policy::LeastConnections),
        ("client_hash", Policy::ClientHash),
        ("maglev", Policy::Maglev),
    ];
    let policy = choice(source, &at.key("policy"), raw.policy.as_deref(), &policies);
    PoolConfig {
        standing: Standing::InFile,
        id,
        name: raw.name.clone(),
        policy,
        hash: hash(source, &at.key("hash"), raw.hash.as_ref(), policy),
        slow_start: duration(
            source,
            &at.key("slow_start"),
            raw.slow_start.as_deref(),
            Duration::ZERO,
            &defaults::SLOW_START_RANGE,
        ),
        panic_below: number(source, &at.key("panic_below"), raw.panic_below, 0, &(0..=100)) as u8,
        members: Vec::with_capacity(raw.servers.len()),
        names: Vec::new(),
        eject_most: number(
            source,
            &at.key("eject_most"),
            raw.eject_most,
            defaults::EJECT_MOST,
            &defaults::EJECT_MOST_RANGE,
        ) as u8,
        limit: limits::of_pool(source, &at.key("limit"), raw.limit.as_ref()),
    }
}

/// `hash = { key, prefix_v4, prefix_v6, seed, balance_factor }`
fn hash(source: &mut Source<'_>, at: &At, raw: Option<&RawHash>, policy: Policy) -> HashSettings {
    let usual = HashSettings::default();
    let Some(raw) = raw else { return usual };
    if !policy.is_hash() {
        source.complain(
            at,
            "means something with policy = \"client_hash\" or \"maglev\" only, expected none",
        );
    }
    let keys = [
        ("client", HashKey::Client),
        ("tls_sni", HashKey::Sni),
        ("http_host", HashKey::HttpHost),
        ("postgres_user", HashKey::PostgresUser),
    ];
    let mut within =
        |key: &str, value, usual: u8| number(source, &at.key(key), value, usual.into(), &(1..=usual.into())) as u8;
    let prefix_v4 = within("prefix_v4", raw.prefix_v4, usual.prefix_v4);
    let prefix_v6 = within("prefix_v6", raw.prefix_v6, usual.prefix_v6);
    HashSettings {
        key: choice(source, &at.key("key"), raw.key.as_deref(), &keys),
        prefix_v4,
        prefix_v6,
        seed: number(source, &at.key("seed"), raw.seed, 0, &(0..=i64::MAX)) as u64,
        balance_factor: raw.balance_factor.map(|percent| {
            let at = at.key("balance_factor");
            number(source, &at, Some(percent), 150, &defaults::BALANCE_FACTOR_RANGE) as u16
        }),
    }
}
