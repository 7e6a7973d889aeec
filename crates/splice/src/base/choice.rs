//! How servers are chosen: what a configuration says of pools.

use crate::base::choice_table::ChoiceTable;
use crate::base::ids::ServerId;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// How a pool picks a server.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Policy {
    /// In turn, in proportion to the weights.
    RoundRobin,
    /// The one with the fewest connections of all cores for its weight: of a few, or of two that chance draws.
    LeastConnections,
    /// By a hash: the same server for the same key as long as it is there, and nobody else moves when another goes.
    ClientHash,
    /// By a hash, too, as evenly as can be: when a server goes, a few others move.
    Maglev,
}

impl Policy {
    /// The key decides, not what the core has seen.
    pub fn is_hash(self) -> bool {
        matches!(self, Policy::ClientHash | Policy::Maglev)
    }
}

/// What is hashed.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum HashKey {
    /// The client's address.
    #[default]
    Client,
    /// The server name of a TLS ClientHello.
    Sni,
    /// The host of an HTTP request.
    HttpHost,
    /// The user of a PostgreSQL startup message.
    PostgresUser,
}

/// How a pool hashes. Who has not said what is asked for is hashed by his address.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct HashSettings {
    /// What.
    pub key: HashKey,
    /// So many bits of an IPv4 address, 1 to 32.
    pub prefix_v4: u8,
    /// So many of an IPv6 address, 1 to 128.
    pub prefix_v6: u8,
    /// Pools with other seeds choose independently.
    pub seed: u64,
    /// How many per cent of the mean, by weight, the connections of one server may be, over 100; no bound if `None`.
    pub balance_factor: Option<u16>,
}

impl Default for HashSettings {
    fn default() -> Self {
        HashSettings {
            key: HashKey::Client,
            prefix_v4: 32,
            prefix_v6: 128,
            seed: 0,
            balance_factor: None,
        }
    }
}

/// Hashes what a client has said first, if it has said what is asked for. Never asked for [`HashKey::Client`].
pub type PayloadHash = fn(HashKey, &[u8]) -> Option<u64>;

/// For whom a server is chosen.
#[derive(Clone, Copy, Debug)]
pub struct Seeker {
    /// The client's address.
    pub client: IpAddr,
    /// The hash of what the client has said, if the pool asks for that and it is known.
    pub said: Option<u64>,
}

impl From<IpAddr> for Seeker {
    fn from(client: IpAddr) -> Self {
        Seeker { client, said: None }
    }
}

/// A server as a member of a pool.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Which server.
    pub server: ServerId,
    /// Its share, 1 to 256.
    pub weight: u16,
    /// It is only asked when none of the others may be.
    pub backup: bool,
}

/// A pool, as far as the choice among its servers goes.
#[derive(Clone, Debug)]
pub struct PoolSettings {
    /// How a server is picked.
    pub policy: Policy,
    /// Its servers, backups last. Not empty.
    pub members: Vec<Member>,
    /// How it hashes, if it does.
    pub hash: HashSettings,
    /// What its policy looks up: made for the members that are no backups, and shared by all cores.
    pub table: Arc<ChoiceTable>,
    /// For so long after it was out or down, a server gets less than its weight: from a twentieth on.
    pub slow_start: Duration,
    /// If fewer of a hundred servers may be asked, all are, whatever is known of them; backups do not count. 0 to 100.
    pub panic_below: u8,
    /// How many of a hundred servers may be ejected, 1 to 100; one in any case, and one is left in any case.
    pub eject_most: u8,
}

impl PoolSettings {
    /// A pool and its table; `address_of` knows where each server listens.
    pub fn new(
        (policy, hash): (Policy, HashSettings),
        members: Vec<Member>,
        eject_most: u8,
        address_of: impl Fn(ServerId) -> SocketAddr,
    ) -> Self {
        PoolSettings {
            policy,
            hash,
            slow_start: Duration::ZERO,
            panic_below: 0,
            table: Arc::new(ChoiceTable::new((policy, hash.seed), &members, address_of)),
            members,
            eject_most,
        }
    }

    /// See [`counts_connections`].
    pub(crate) fn counts_connections(&self) -> bool {
        counts_connections(self.policy, &self.hash)
    }
}

/// Whether the connections of a pool's servers are counted over all cores, whatever limits they have.
pub fn counts_connections(policy: Policy, hash: &HashSettings) -> bool {
    policy == Policy::LeastConnections || policy.is_hash() && hash.balance_factor.is_some()
}
