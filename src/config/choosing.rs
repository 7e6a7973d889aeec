//! The choice tables of pools: made once for each version of the file, shared by all cores.

use std::sync::Arc;

use splice::choice_table::ChoiceTable;
use splice::difference::Difference;
use splice::ids::ServerId;
use splice::settings::{PoolSettings, counts_connections};

use super::model::PoolConfig;
use super::{Config, Standing};

/// By pool. Not compared: they follow from the pools.
#[derive(Clone, Debug, Default)]
pub(super) struct ChoiceTables(Vec<Arc<ChoiceTable>>);

impl PartialEq for ChoiceTables {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for ChoiceTables {}

impl PoolConfig {
    /// Whether two versions of a pool choose alike, so that the table can be kept.
    pub(super) fn chooses_as(&self, other: &PoolConfig) -> bool {
        let of = |pool: &PoolConfig| {
            (
                pool.policy,
                pool.hash,
                pool.eject_most,
                pool.slow_start,
                pool.panic_below,
            )
        };
        of(self) == of(other) && self.members == other.members
    }
}

impl Config {
    /// Makes the tables of new and changed pools, and takes the others from the version before.
    pub(super) fn make_choice_tables(&mut self, before: Option<&Config>) {
        let is_same_server = |before: &Config, server: ServerId| {
            let known = before.servers.get(server.index());
            known.is_some_and(|known| {
                known.standing != Standing::Nobody && known.address == self.servers[server.index()].address
            })
        };
        let known = |pool: &PoolConfig| {
            let before = before?;
            let table = before.choice_tables.0.get(pool.id.index())?;
            let is_same = before.pools.get(pool.id.index())?.chooses_as(pool)
                && pool.members.iter().all(|member| is_same_server(before, member.server));
            is_same.then(|| Arc::clone(table))
        };
        let address_of = |server: ServerId| self.servers[server.index()].address;
        let make = |pool: &PoolConfig| {
            let new = || {
                Arc::new(ChoiceTable::new(
                    (pool.policy, pool.hash.seed),
                    &pool.members,
                    address_of,
                ))
            };
            known(pool).unwrap_or_else(new)
        };
        self.choice_tables = ChoiceTables(self.pools.iter().map(make).collect());
    }

    /// The pools for cores.
    pub(super) fn pool_settings(&self) -> Vec<PoolSettings> {
        let pools = self.pools.iter().zip(&self.choice_tables.0);
        let settings = |(pool, table): (&PoolConfig, &Arc<ChoiceTable>)| PoolSettings {
            policy: pool.policy,
            members: {
                let mut members = pool.members.clone();
                members.sort_by_key(|member| member.backup);
                members
            },
            hash: pool.hash,
            slow_start: pool.slow_start,
            panic_below: pool.panic_below,
            table: Arc::clone(table),
            eject_most: pool.eject_most,
        };
        pools.map(settings).collect()
    }

    /// By server: whether its connections are counted over all cores because a pool chooses by them.
    pub(super) fn counted_servers(&self) -> Vec<bool> {
        let mut counted = vec![false; self.servers.len()];
        let counting = self
            .pools
            .iter()
            .filter(|pool| counts_connections(pool.policy, &pool.hash));
        for member in counting.flat_map(|pool| &pool.members) {
            counted[member.server.index()] = true;
        }
        counted
    }
}

/// Servers whose connections are counted over all cores from now on, or no longer.
pub(super) fn add_counted(difference: &mut Difference, old: &Config, config: &Config) {
    let (before, now) = (old.counted_servers(), config.counted_servers());
    let is_counted_anew = |id: &u16| before.get(usize::from(*id)) != now.get(usize::from(*id));
    let known = (0..old.servers.len() as u16).filter(is_counted_anew);
    difference.limits.extend(known);
    difference.limits.sort_unstable();
    difference.limits.dedup();
    let new = &difference.new_servers;
    difference.limits.retain(|id| !new.contains(id));
}
