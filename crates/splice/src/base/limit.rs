//! Limits of connections as a configuration gives them, of listeners, pools, classes and clients.

use crate::base::callbacks::Refusal;
use e2d2::time::Instant;
use std::num::NonZeroU64;
use std::time::Duration;

/// The kinds of things that connections are counted for.
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
    /// All kinds, in the order of their numbers.
    pub(crate) const ALL: [Limited; 5] = [
        Limited::Listener,
        Limited::Class,
        Limited::Pool,
        Limited::Clients,
        Limited::Server,
    ];
}

/// A limit of open connections, of new ones a second, or both, and how others are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Open connections at a time; unlimited when `None`.
    pub connections: Option<u32>,
    /// New connections; unlimited when `None`.
    pub rate: Option<Rate>,
    /// How connections beyond the limit are refused.
    pub beyond: Refusal,
}

/// A rate of new connections: a bucket of `burst` from which each takes one, filled by one each `interval` (the generic cell
/// rate algorithm of ITU-T I.371 A.1, in its virtual scheduling form).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Nanoseconds between two connections that come evenly.
    pub interval_ns: NonZeroU64,
    /// The size of the bucket, at least 1.
    pub burst: u32,
}

impl Rate {
    /// What is missing from the bucket at `now`, if it is full at `due`.
    pub(crate) fn used(self, due: u64, now: Instant) -> u64 {
        due.saturating_sub(now.as_nanos()).div_ceil(self.interval_ns.get())
    }

    /// What is left in the bucket at `now`, if it is full at `due`.
    pub(crate) fn left(self, due: u64, now: Instant) -> u64 {
        u64::from(self.burst).saturating_sub(self.used(due, now))
    }

    /// Whether something is left in the bucket at `now`, if it is full at `due`: without the division of [`Rate::left`].
    #[inline]
    pub(crate) fn has_left(self, due: u64, now: Instant) -> bool {
        let most = self.burst.checked_sub(1);
        most.is_some_and(|most| {
            due.saturating_sub(now.as_nanos()) <= self.interval_ns.get().saturating_mul(u64::from(most))
        })
    }

    /// When the bucket is full after `count` are taken from it.
    pub(crate) fn after(self, due: u64, count: u32, now: Instant) -> u64 {
        let taken = self.interval_ns.get().saturating_mul(u64::from(count));
        due.max(now.as_nanos()).saturating_add(taken)
    }

    /// When an empty bucket is full again: nobody owes more, unless another rate held before.
    pub(crate) fn fullest(self, now: Instant) -> u64 {
        self.after(0, self.burst, now)
    }

    /// Whether `count` are more than what is added to the bucket in `time`.
    #[inline]
    pub(crate) fn is_less_in(self, time: Duration, count: u32) -> bool {
        self.interval_ns.get().saturating_mul(u64::from(count)) > time.as_nanos() as u64
    }
}

/// The limit that each client of a listener has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientLimit {
    /// The limit.
    pub limit: Limit,
    /// Bits of an IPv4 address that make a client, 1 to 32.
    pub prefix_v4: u8,
    /// Bits of an IPv6 address that make a client, 1 to 128.
    pub prefix_v6: u8,
}

/// The turn of a class's clients in overload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rank {
    /// That of known clients.
    First,
    /// That of known clients or of strangers, whichever the client is.
    #[default]
    Usual,
    /// That of strangers, also for known clients.
    Last,
}

/// A class of clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassSettings {
    /// The limit of all its clients together.
    pub limit: Option<Limit>,
    /// Their turn in overload.
    pub rank: Rank,
}

/// All limits, by number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// By listener: of all its connections.
    listeners: Vec<Option<Limit>>,
    /// By listener: of each of its clients.
    clients: Vec<Option<ClientLimit>>,
    /// By pool.
    pools: Vec<Option<Limit>>,
    /// By class.
    pub(crate) classes: Vec<ClassSettings>,
    /// Whether anything is counted when a connection begins.
    pub(crate) are_any: bool,
    /// Whether some class has a rank other than the usual.
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

    /// The rates of listeners, pools and classes.
    pub(crate) fn rates(&self) -> impl Iterator<Item = (Limited, u16, Rate)> {
        let counts = [
            (Limited::Listener, self.listeners.len()),
            (Limited::Pool, self.pools.len()),
            (Limited::Class, self.classes.len()),
        ];
        let all = counts
            .into_iter()
            .flat_map(|(kind, count)| (0..count as u16).map(move |id| (kind, id)));
        all.filter_map(|(kind, id)| Some((kind, id, self.of(kind, id)?.rate?)))
    }

    /// The limit of each client of a listener.
    pub(crate) fn of_clients(&self, listener: u16) -> Option<&ClientLimit> {
        self.clients.get(usize::from(listener))?.as_ref()
    }

    /// The limit of one listener, pool or class; `None` for all else.
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
