//! The settings by which a pool chooses its servers.

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
    /// The server with the fewest connections of all cores for its weight: of all in small pools, else of two drawn at random.
    LeastConnections,
    /// By weighted rendezvous hashing: when a server goes, only its own keys move.
    ClientHash,
    /// By Maglev's table: shares are more even, and a few other keys move when a server goes.
    Maglev,
}

impl Policy {
    /// Whether the policy hashes a key.
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

/// How a pool hashes. A client whose payload lacks the key is hashed by its address.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct HashSettings {
    /// The key.
    pub key: HashKey,
    /// Bits of an IPv4 address that are hashed, 1 to 32.
    pub prefix_v4: u8,
    /// Bits of an IPv6 address that are hashed, 1 to 128.
    pub prefix_v6: u8,
    /// Pools with different seeds choose independently of each other.
    pub seed: u64,
    /// The most connections of one server, in per cent of the mean for its weight, over 100; unbounded if `None`.
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

/// Hashes the key in a client's first payload, if it is there. Never called for [`HashKey::Client`].
pub type PayloadHash = fn(HashKey, &[u8]) -> Option<u64>;

/// The client that a server is chosen for.
#[derive(Clone, Copy, Debug)]
pub struct Seeker {
    /// The client's address.
    pub client: IpAddr,
    /// The hash of the key in its payload, if the pool hashes one and it is there.
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
    /// Its weight, 1 to 256.
    pub weight: u16,
    /// Whether it is chosen only when no other may be.
    pub backup: bool,
}

/// What the choice among a pool's servers depends on.
#[derive(Clone, Debug)]
pub struct PoolSettings {
    /// How a server is picked.
    pub policy: Policy,
    /// Its servers, backups last. Not empty.
    pub members: Vec<Member>,
    /// How it hashes; unused by policies that do not.
    pub hash: HashSettings,
    /// The table of its policy, of the members that are no backups; shared by all cores.
    pub table: Arc<ChoiceTable>,
    /// How long a server that was out or down gets less than its weight, from a twentieth up.
    pub slow_start: Duration,
    /// If less than this share of the servers may be chosen, all are; backups do not count. Per cent, 0 to 100.
    pub panic_below: u8,
    /// The share of the servers that may be ejected, per cent, 1 to 100; at least one may be, and at least one is left.
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

/// Whether a pool needs the connections of its servers counted over all cores, also without limits.
pub fn counts_connections(policy: Policy, hash: &HashSettings) -> bool {
    policy == Policy::LeastConnections || policy.is_hash() && hash.balance_factor.is_some()
}
