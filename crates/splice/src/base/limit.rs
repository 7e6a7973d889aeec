//! How many connections something may have: what a configuration says of listeners, pools, classes and clients.

use crate::base::callbacks::Refusal;
use e2d2::time::Instant;
use std::time::Duration;

/// What connections are counted of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Limited {
    /// A listener.
    Listener = 0,
    /// A class of clients.
    Class = 1,
    /// A pool.
    Pool = 2,
    /// The clients of a listener, each for itself.
    Clients = 3,
    /// A server.
    Server = 4,
}

impl Limited {
    /// All, by their numbers.
    pub(crate) const ALL: [Limited; 5] = [
        Limited::Listener,
        Limited::Class,
        Limited::Pool,
        Limited::Clients,
        Limited::Server,
    ];
}

/// How many connections there may be, and what becomes of those beyond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// So many at a time; any number when `None`.
    pub connections: Option<u32>,
    /// So many new ones; any number when `None`.
    pub rate: Option<Rate>,
    /// How those beyond are refused.
    pub beyond: Refusal,
}

/// How many may begin: a bucket of `burst` that a new connection takes one from, filled by one each `interval` (the generic cell
/// rate algorithm of ITU-T I.371 A.1, in its virtual scheduling form).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// From one to the next, if they come evenly. Not zero.
    pub interval: Duration,
    /// How many may begin at once, after a pause. At least 1.
    pub burst: u32,
}

impl Rate {
    fn interval(self) -> u64 {
        (self.interval.as_nanos() as u64).max(1)
    }

    /// How many are missing from the bucket at `now`, if it is full again at `due`.
    pub(crate) fn used(self, due: u64, now: Instant) -> u64 {
        due.saturating_sub(now.as_nanos()).div_ceil(self.interval())
    }

    /// How many are left in it.
    pub(crate) fn left(self, due: u64, now: Instant) -> u64 {
        u64::from(self.burst).saturating_sub(self.used(due, now))
    }

    /// When it is full again if `count` are taken from it.
    pub(crate) fn after(self, due: u64, count: u32, now: Instant) -> u64 {
        let taken = self.interval().saturating_mul(u64::from(count));
        due.max(now.as_nanos()).saturating_add(taken)
    }

    /// What is added to it in `time`.
    pub(crate) fn in_time(self, time: Duration) -> u32 {
        (time.as_nanos() as u64 / self.interval()).min(u32::MAX.into()) as u32
    }
}

/// A limit of each client of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientLimit {
    /// What each may have.
    pub limit: Limit,
    /// So many bits of an IPv4 address are a client, 1 to 32.
    pub prefix_v4: u8,
    /// So many of an IPv6 address, 1 to 128.
    pub prefix_v6: u8,
}

/// When clients of a class are served in overload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rank {
    /// As clients that are known.
    First,
    /// By whether they are known.
    #[default]
    Usual,
    /// As strangers, known or not.
    Last,
}

/// A class of clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassSettings {
    /// What all of them together may have.
    pub limit: Option<Limit>,
    /// When they are served in overload.
    pub rank: Rank,
}

/// All limits, by number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// By listener: of all its connections.
    listeners: Vec<Option<Limit>>,
    /// By listener: of each of its clients.
    pub(crate) clients: Vec<Option<ClientLimit>>,
    /// By pool.
    pools: Vec<Option<Limit>>,
    /// By class.
    pub(crate) classes: Vec<ClassSettings>,
    /// Something is counted when a connection begins.
    pub(crate) are_any: bool,
    /// Some class is not served as all others are in overload.
    pub(crate) have_ranks: bool,
}

impl Limits {
    /// All of them.
    pub fn new(
        (listeners, clients): (Vec<Option<Limit>>, Vec<Option<ClientLimit>>),
        pools: Vec<Option<Limit>>,
        classes: Vec<ClassSettings>,
    ) -> Self {
        let mut shared = listeners.iter().chain(&pools);
        Limits {
            are_any: !classes.is_empty() || clients.iter().any(Option::is_some) || shared.any(Option::is_some),
            have_ranks: classes.iter().any(|class| class.rank != Rank::Usual),
            listeners,
            clients,
            pools,
            classes,
        }
    }

    /// What is said of one thing, but for the clients of a listener.
    pub(crate) fn of(&self, kind: Limited, id: u16) -> Option<&Limit> {
        let id = usize::from(id);
        match kind {
            Limited::Listener => self.listeners.get(id)?.as_ref(),
            Limited::Pool => self.pools.get(id)?.as_ref(),
            Limited::Class => self.classes.get(id)?.limit.as_ref(),
            Limited::Clients | Limited::Server => None,
        }
    }
}
