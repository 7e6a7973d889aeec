//! Counts and times of connections by listener, rule, pool and server, for whoever looks on: the core writes, any thread reads.
//!
//! Each number has one writer, the core, which stores it as it happens: a load, an addition and a store, relaxed, as nobody
//! is told anything else by it. Readers take no part. What a connection is counted for:
//!
//! ```text
//!  client ACK ── choice ── server chosen, SYN ── connect ── SYN-ACK, request ── first byte ── response … end
//!     │        by rule and pool                by pool and server         by pool and server     │
//!     └──────────────────────────── duration and bytes, by pool ─────────────────────────────────┘
//! ```
//!
//! Legs are counted for pools, and for servers that are timed. What is of no pool is counted as of one more: connections that end
//! before a server is chosen, or whose selector named the server.
//!
//! Budget: for each connection six counts and at most seven histograms of two stores each. Counts and sums of a listener, a pool
//! or a server have one cache line together, and each histogram adds that of a cell, which other connections use, too.

mod histogram;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::base::ids::{PoolId, RuleId};
use crate::base::settings::Settings;
use netfcts::Side;
use netfcts::legs::Sent;

use histogram::Cells;
pub use histogram::{CELLS, Distribution, Histogram};

/// A number that one core counts and all may read.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// What it has come to.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// No other core counts here, so nothing is lost between the load and the store.
    #[inline]
    fn add(&self, more: u64) {
        self.0.store(self.get().wrapping_add(more), Ordering::Relaxed);
    }
}

/// What one core has counted. Times are in microseconds.
#[derive(Debug)]
pub struct Tally {
    listeners: Box<[Arc<ListenerTally>]>,
    /// By number plus one, behind that of no pool.
    pools: Box<[Arc<PoolTally>]>,
    /// By number, up to the last of [`Settings::timed_servers`].
    servers: Box<[Option<Arc<ServerTally>>]>,
    rules: Box<[Arc<RuleTally>]>,
}

/// Whose counts.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Of {
    /// A listener's.
    Listener(u16),
    /// A pool's.
    Pool(u16),
    /// A server's.
    Server(u16),
    /// A rule's.
    Rule(u32),
}

/// Of a listener.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct ListenerTally {
    /// Connections whose client has shaken hands, or whose SYN was passed on.
    pub connections: Count,
    /// Those that are over.
    pub ended: Count,
    /// Payload bytes of those that are over, each sequence number once.
    pub bytes_to_server: Count,
    /// The same from the servers.
    pub bytes_to_client: Count,
    handshake_sum: Count,
    /// Connections about which none of its rules has decided: its default has, which may refuse, or a selector that has no rules.
    pub by_default: Count,
    handshake: Cells,
}

impl ListenerTally {
    /// From a SYN-ACK of ours to the client's ACK of it, to the millisecond that its timestamp has (RFC 7323 5.4), or from a
    /// server's SYN-ACK that was passed on, where records are kept; of other clients nobody knows.
    pub fn handshake(&self) -> Histogram<'_> {
        self.handshake.with_sum(self.handshake_sum.get())
    }
}

/// Of a pool.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct PoolTally {
    /// Connections that it was chosen for.
    pub chosen: Count,
    choice_sum: Count,
    connect_sum: Count,
    first_byte_sum: Count,
    duration_sum: Count,
    bytes_sum: Count,
    choice: Cells,
    connect: Cells,
    first_byte: Cells,
    duration: Cells,
    bytes: Cells,
    /// Of its connections that are watched.
    pub legs: LegsTally,
}

impl PoolTally {
    /// From the SYN to a server until its SYN-ACK; not of calls whose SYN was repeated.
    pub fn connect(&self) -> Histogram<'_> {
        self.connect.with_sum(self.connect_sum.get())
    }

    /// From the beginning until a server was chosen, where records are kept.
    pub fn choice(&self) -> Histogram<'_> {
        self.choice.with_sum(self.choice_sum.get())
    }

    /// From the server's SYN-ACK, when the client's first bytes go to it, until its first byte, where records are kept.
    pub fn first_byte(&self) -> Histogram<'_> {
        self.first_byte.with_sum(self.first_byte_sum.get())
    }

    /// From the beginning to the end, where records are kept.
    pub fn duration(&self) -> Histogram<'_> {
        self.duration.with_sum(self.duration_sum.get())
    }

    /// Payload bytes of both directions.
    pub fn bytes(&self) -> Histogram<'_> {
        self.bytes.with_sum(self.bytes_sum.get())
    }
}

/// Of a rule.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct RuleTally {
    /// Connections whose server it chose, or that it refused; SYNs, where it refuses these.
    pub chosen: Count,
}

/// Of one of the [`Settings::timed_servers`].
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct ServerTally {
    connect_sum: Count,
    first_byte_sum: Count,
    connect: Cells,
    first_byte: Cells,
    /// Of its connections that are watched.
    pub legs: LegsTally,
}

impl ServerTally {
    /// As [`PoolTally::connect`].
    pub fn connect(&self) -> Histogram<'_> {
        self.connect.with_sum(self.connect_sum.get())
    }

    /// As [`PoolTally::first_byte`].
    pub fn first_byte(&self) -> Histogram<'_> {
        self.first_byte.with_sum(self.first_byte_sum.get())
    }
}

/// Of connections whose legs are watched, one in [`Settings::leg_sample`].
#[derive(Debug, Default)]
pub struct LegsTally {
    /// Connections that have begun to be watched.
    pub connections: Count,
    /// The leg to the client, and what clients have sent.
    pub client: LegTally,
    /// The leg to the server, and what servers have sent.
    pub server: LegTally,
}

/// Of one of the two legs; what each is says [`LegFigures`](netfcts::legs::LegFigures).
#[derive(Debug, Default)]
pub struct LegTally {
    rtt: Cells,
    rtt_sum: Count,
    /// Segments with data or a FIN that this side has sent.
    pub segments: Count,
    /// Of these, those that had passed before and were not acknowledged.
    pub retransmitted: Count,
    /// Of these, those that filled a gap.
    pub out_of_order: Count,
    /// Of these, those that were acknowledged before.
    pub duplicate: Count,
    /// Times that this side has closed its window.
    pub zero_windows: Count,
}

impl LegsTally {
    /// The leg to this side.
    pub fn of(&self, side: Side) -> &LegTally {
        match side {
            Side::Client => &self.client,
            Side::Server => &self.server,
        }
    }

    pub(crate) fn note_begin(&self) {
        self.connections.add(1);
    }
}

impl LegTally {
    /// Round-trip times between us and this side.
    pub fn rtt(&self) -> Histogram<'_> {
        self.rtt.with_sum(self.rtt_sum.get())
    }

    pub(crate) fn note_sent(&self, sent: Sent) {
        self.segments.add(1);
        match sent {
            Sent::New => {}
            Sent::Retransmitted => self.retransmitted.add(1),
            Sent::OutOfOrder => self.out_of_order.add(1),
            Sent::Duplicate => self.duplicate.add(1),
        }
    }

    pub(crate) fn note_rtt(&self, micros: u32) {
        self.rtt.add(micros.into(), &self.rtt_sum);
    }

    pub(crate) fn note_zero_window(&self) {
        self.zero_windows.add(1);
    }
}

impl Tally {
    /// Of nothing: what is noted is counted nowhere.
    pub fn none() -> Tally {
        Tally {
            listeners: Box::default(),
            pools: Box::default(),
            servers: Box::default(),
            rules: Box::default(),
        }
    }

    /// Whether it is [none](Self::none): no core is without a listener.
    pub(crate) fn is_none(&self) -> bool {
        self.listeners.is_empty()
    }

    /// Zeros for the listeners, rules and servers of these settings, and so many pools.
    pub(crate) fn new(settings: &Settings, pools: usize) -> Tally {
        Tally::none().with(settings, pools, |_| false)
    }

    /// The same counts for other settings, of which those begin anew that `is_new`.
    pub(crate) fn with(&self, settings: &Settings, pools: usize, is_new: impl Fn(Of) -> bool) -> Tally {
        let timed = &settings.timed_servers;
        let servers = |server: u16| {
            let before = self
                .servers
                .get(usize::from(server))
                .filter(|_| !is_new(Of::Server(server)));
            let goes_on = before.cloned().flatten();
            (timed.contains(&server)).then(|| goes_on.unwrap_or_default())
        };
        let last_timed = timed.iter().max();
        Tally {
            listeners: continued(&self.listeners, settings.listeners.len(), |of| {
                is_new(Of::Listener(of as u16))
            }),
            pools: continued(&self.pools, pools + 1, |of| of > 0 && is_new(Of::Pool((of - 1) as u16))),
            servers: last_timed.map_or_else(Box::default, |last| (0..=*last).map(servers).collect()),
            rules: continued(&self.rules, settings.rules, |of| is_new(Of::Rule(of as u32))),
        }
    }

    /// By number of the listener.
    pub fn listener(&self, listener: usize) -> Option<&ListenerTally> {
        self.listeners.get(listener).map(Arc::as_ref)
    }

    /// By number of the pool.
    pub fn pool(&self, pool: usize) -> Option<&PoolTally> {
        self.pools.get(pool + 1).map(Arc::as_ref)
    }

    /// What is of no pool.
    pub fn no_pool(&self) -> Option<&PoolTally> {
        self.pools.first().map(Arc::as_ref)
    }

    /// Of this pool, or of none.
    #[inline]
    fn of_pool(&self, pool: Option<PoolId>) -> Option<&PoolTally> {
        self.pools.get(pool.map_or(0, |pool| pool.index() + 1)).map(Arc::as_ref)
    }

    /// By number of the rule.
    pub fn rule(&self, rule: RuleId) -> Option<&RuleTally> {
        self.rules.get(rule.index()).map(Arc::as_ref)
    }

    /// By number of the server, if it is timed.
    #[inline]
    pub fn server(&self, server: usize) -> Option<&ServerTally> {
        self.servers.get(server)?.as_deref()
    }

    /// Where what is seen of a connection from this pool, which may be none, to this server is counted.
    pub(crate) fn legs(&self, pool: Option<PoolId>, server: u16) -> [Option<&LegsTally>; 2] {
        let pool = pool.and_then(|pool| self.pool(pool.index()));
        let server = self.server(usize::from(server));
        [pool.map(|pool| &pool.legs), server.map(|server| &server.legs)]
    }

    /// A client has acknowledged a SYN-ACK after so many microseconds.
    #[inline]
    pub(crate) fn note_handshake(&self, listener: u16, took: u64) {
        if let Some(listener) = self.listeners.get(usize::from(listener)) {
            listener.handshake.add(took, &listener.handshake_sum);
        }
    }

    /// A connection begins.
    pub(crate) fn note_begin(&self, listener: u16) {
        if let Some(listener) = self.listeners.get(usize::from(listener)) {
            listener.connections.add(1);
        }
    }

    /// A server was chosen for a connection by a rule from a pool, or the connection refused, as there may be none of either, so many
    /// microseconds after its beginning if that is known.
    pub(crate) fn note_choice(&self, listener: u16, by: (Option<RuleId>, Option<PoolId>), took: Option<u64>) {
        let (rule, pool) = by;
        if let Some(rule) = rule.and_then(|rule| self.rule(rule)) {
            rule.chosen.add(1);
        } else if let Some(listener) = self.listeners.get(usize::from(listener)) {
            listener.by_default.add(1);
        }
        let Some(counted) = self.of_pool(pool) else { return };
        if pool.is_some() {
            counted.chosen.add(1);
        }
        if let Some(took) = took {
            counted.choice.add(took, &counted.choice_sum);
        }
    }

    /// Somebody is refused by a rule, or by a selector that has none.
    pub(crate) fn note_refusal(&self, rule: Option<RuleId>) {
        if let Some(rule) = rule.and_then(|rule| self.rule(rule)) {
            rule.chosen.add(1);
        }
    }

    /// `server` of `pool`, which may be none, has answered its only SYN after so many microseconds.
    pub(crate) fn note_connect(&self, pool: Option<PoolId>, server: u16, took: u64) {
        if let Some(pool) = self.of_pool(pool) {
            pool.connect.add(took, &pool.connect_sum);
        }
        if let Some(server) = self.server(usize::from(server)) {
            server.connect.add(took, &server.connect_sum);
        }
    }

    /// The first byte of `server` of `pool` has come, so many microseconds after its SYN-ACK.
    pub(crate) fn note_first_byte(&self, pool: Option<PoolId>, server: u16, took: u64) {
        if let Some(pool) = self.of_pool(pool) {
            pool.first_byte.add(took, &pool.first_byte_sum);
        }
        if let Some(server) = self.server(usize::from(server)) {
            server.first_byte.add(took, &server.first_byte_sum);
        }
    }

    /// A connection to a server of `pool` is over, with so many bytes to server and client, and so many microseconds after its beginning
    /// if that is known.
    pub(crate) fn note_end(&self, listener: u16, pool: Option<PoolId>, bytes: (u64, u64), lasted: Option<u64>) {
        if let Some(listener) = self.listeners.get(usize::from(listener)) {
            listener.ended.add(1);
            listener.bytes_to_server.add(bytes.0);
            listener.bytes_to_client.add(bytes.1);
        }
        let Some(pool) = self.of_pool(pool) else { return };
        pool.bytes.add(bytes.0.wrapping_add(bytes.1), &pool.bytes_sum);
        if let Some(lasted) = lasted {
            pool.duration.add(lasted, &pool.duration_sum);
        }
    }
}

/// So many counts: those that there are, and new ones.
fn continued<T: Default>(before: &[Arc<T>], count: usize, is_new: impl Fn(usize) -> bool) -> Box<[Arc<T>]> {
    let one = |index| match before.get(index) {
        Some(counts) if !is_new(index) => Arc::clone(counts),
        _ => Arc::default(),
    };
    (0..count).map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(listeners: usize, pools: usize, servers: usize, rules: usize) -> Tally {
        Tally {
            listeners: continued(&[], listeners, |_| false),
            pools: continued(&[], pools + 1, |_| false),
            servers: (0..servers).map(|_| Some(Arc::default())).collect(),
            rules: continued(&[], rules, |_| false),
        }
    }

    #[test]
    fn what_is_not_there_is_not_counted() {
        let tally = of(1, 1, 64, 1);
        let time = 10;
        tally.note_begin(1);
        tally.note_choice(1, (None, None), Some(time));
        tally.note_choice(0, (Some(RuleId(0)), Some(PoolId(0))), None);
        // Of a rule that nobody counts.
        tally.note_choice(0, (Some(RuleId(1)), None), None);
        tally.note_connect(Some(PoolId(u16::MAX)), u16::MAX, time);
        tally.note_first_byte(Some(PoolId(1)), 64, time);
        tally.note_end(1, Some(PoolId(1)), (1, 1), Some(time));
        let (listener, pool) = (&*tally.listeners[0], &*tally.pools[1]);
        assert_eq!(
            (listener.connections.get(), listener.ended.get(), pool.chosen.get()),
            (0, 0, 1)
        );
        assert_eq!((tally.rules[0].chosen.get(), listener.by_default.get()), (1, 1));
        let mut all = Distribution::default();
        for histogram in [
            pool.choice(),
            pool.connect(),
            pool.first_byte(),
            pool.duration(),
            pool.bytes(),
        ] {
            all.add(histogram);
        }
        assert_eq!(all.count(), 0);
        let none = tally.no_pool().expect("what is of no pool");
        let counted = [none.choice(), none.connect(), none.duration()].map(|of| {
            let mut all = Distribution::default();
            all.add(of);
            all.count()
        });
        assert_eq!(
            counted,
            [1, 0, 0],
            "what has no pool, not what names one that is not there"
        );
    }

    #[test]
    fn what_is_new_begins_anew_and_all_else_goes_on() {
        let before = of(0, 0, 0, 3);
        before.rules.iter().for_each(|rule| rule.chosen.add(7));
        let after = continued(&before.rules, 4, |rule| rule == 1);
        before.rules[2].chosen.add(1);
        let counts: Vec<u64> = after.iter().map(|rule| rule.chosen.get()).collect();
        assert_eq!(counts, [7, 0, 8, 0]);
    }
}
