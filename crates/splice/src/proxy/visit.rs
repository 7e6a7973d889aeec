//! Connections as somebody outside asks for them: a few places are looked at in a round, and what is wanted is shown or ended.
//!
//! The core neither waits nor allocates for it: who asks says which places, and comes again for the next.

use crate::admission::round_budget::FRAMES_OF_TIMER;
use crate::base::callbacks::SelectServer;
use crate::base::ids::{ListenerId, ServerId};
use crate::base::output::{NextHops, Output};
use crate::proxy::Proxy;
use crate::proxy::apply::ActionContext;
use crate::proxy::timeout::time_since;
use crate::session::connection::Connection;
use crate::session::event::Event;
use crate::session::phase::{FinState, Phase};
use crate::session::state::{Stage, State};
use e2d2::buffer::BufferPool;
use e2d2::time::Instant;
use netfcts::leg::is_in;
use netfcts::legs::Legs;
use std::ops::Range;
use std::time::Duration;

/// Places that a round looks at, at most: two cache lines each, in their order.
pub const LOOKED_AT_PER_ROUND: usize = 64;

/// Connections that a round ends for it, at most.
pub const ENDED_PER_ROUND: u32 = 16;

/// How long a connection may wait for its server before it is slow.
pub const SLOW: Duration = Duration::from_secs(1);

/// A connection as it is in one moment.
#[derive(Clone, Debug)]
pub struct ConnectionView {
    /// Its place.
    pub slot: u32,
    /// What the core knows of it.
    pub connection: Connection,
    /// The address that its client connected to, IPv4 in its mapped form.
    pub listener_address: u128,
    /// Our address and port towards its server.
    pub source: Option<(u128, u16)>,
    /// When it began, where records are kept.
    pub began: Option<Instant>,
    /// What was seen of its legs, if they are watched.
    pub legs: Option<Legs>,
    /// When it was looked at.
    pub at: Instant,
}

/// Which connections are wanted: those that are all that is said here.
#[derive(Clone, Copy, Debug, Default)]
pub struct ConnectionFilter {
    /// Connections with this [mark](ConnectionView::mark).
    pub mark: Option<u32>,
    /// Of this listener.
    pub listener: Option<ListenerId>,
    /// To this server.
    pub server: Option<ServerId>,
    /// Of clients whose address is the first in the bits of the second, and of its family: an IPv4 address is compared as it is
    /// mapped, with prefixes that are mapped as a whole. Where a PROXY header has named the client, it is that one, for as long
    /// as the header or a record is kept; else it is who has connected.
    pub client: Option<(u128, u128)>,
    /// That have lasted for so long; never where no record says.
    pub older_than: Option<Duration>,
    /// In this [state](ConnectionView::state).
    pub state: Option<&'static str>,
    /// That wait for their server for longer than [`SLOW`].
    pub is_slow: bool,
    /// That the closing of this number [ends](crate::standby::Standby).
    pub closing: Option<u8>,
    /// Whose legs are watched.
    pub is_watched: bool,
}

/// The states that connections are shown in.
pub const STATES: [&str; 7] = [
    "await_payload",
    "server_syn_sent",
    "syn_forwarded",
    "await_header",
    "spliced",
    "closing",
    "last_ack",
];

impl ConnectionView {
    /// Its state in a word, one of [`STATES`].
    pub fn state(&self) -> &'static str {
        state_of(&self.connection)
    }

    /// A number that others which have had the same place most likely do not have.
    pub fn mark(&self) -> u32 {
        mark_of(&self.connection, self.began)
    }

    /// How long it has lasted, where a record says.
    pub fn age(&self) -> Option<Duration> {
        age(self.began, self.at)
    }

    /// How long no packet of it was accepted; not known before it is spliced.
    pub fn silent_for(&self) -> Option<Duration> {
        silence(&self.connection, self.at)
    }

    /// Whether it has waited for its server for longer than [`SLOW`].
    pub fn is_slow(&self) -> bool {
        is_slow(&self.connection, self.at)
    }
}

/// A connection that is wanted, where the core has it.
#[derive(Clone, Copy)]
pub struct Found<'a> {
    slot: u32,
    connection: &'a Connection,
    began: Option<Instant>,
    at: Instant,
}

fn mark_of(connection: &Connection, began: Option<Instant>) -> u32 {
    let ends = &connection.ends;
    let client = ends.client_address();
    let began = began.map_or(0, Instant::as_nanos);
    let words = [
        client as u64,
        (client >> 64) as u64,
        u64::from(ends.client_port) << 32 | u64::from(ends.listener_port) << 16 | u64::from(ends.listener_address),
        began,
    ];
    // Multiplication by an odd number and folding: what is wanted is that numbers differ, not that nobody finds equal ones.
    let mixed = words.into_iter().fold(0_u64, |mark, word| {
        (mark ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
    });
    (mixed >> 32) as u32 ^ mixed as u32
}

fn age(began: Option<Instant>, at: Instant) -> Option<Duration> {
    Some(at.saturating_since(began?))
}

fn state_of(connection: &Connection) -> &'static str {
    match connection.phase() {
        Phase::AwaitPayload => STATES[0],
        Phase::ServerSynSent => STATES[1],
        Phase::SynForwarded | Phase::SynAckForwarded => STATES[2],
        Phase::AwaitProxyHeader => STATES[3],
        Phase::Spliced {
            client: FinState::Open,
            server: FinState::Open,
        } => STATES[4],
        Phase::Spliced { .. } | Phase::TimeWait | Phase::Closed => STATES[5],
        Phase::LastAck => STATES[6],
    }
}

fn silence(connection: &Connection, now: Instant) -> Option<Duration> {
    let spliced = connection.spliced()?;
    let silent = (now.as_millis() as u32).wrapping_sub(spliced.last_seen);
    Some(Duration::from_millis(silent.into()))
}

fn is_slow(connection: &Connection, now: Instant) -> bool {
    let waits = match &connection.state {
        State::Opening(_, Stage::ServerSynSent(call) | Stage::SynForwarded(call, _)) => {
            Some(time_since(now, call.called_at))
        }
        State::Spliced(_) if connection.bytes_to_client == 0 && connection.bytes_to_server > 0 => {
            silence(connection, now)
        }
        _ => None,
    };
    waits.is_some_and(|waits| waits > SLOW)
}

impl ConnectionFilter {
    /// All that the connection itself tells; and its client, whom a header may have named.
    fn wants(&self, connection: &Connection, named: impl FnOnce() -> Option<u128>, now: Instant) -> bool {
        let ends = &connection.ends;
        self.server
            .is_none_or(|server| ends.leg.is_some_and(|leg| leg.server == server))
            && self.listener.is_none_or(|listener| listener.0 == connection.listener)
            && self
                .client
                .is_none_or(|prefix| is_in(named().unwrap_or_else(|| ends.client_address()), prefix))
            && self.state.is_none_or(|state| state == state_of(connection))
            && (!self.is_slow || is_slow(connection, now))
            && (!self.is_watched || connection.is_watched())
    }

    /// And what is known beside it.
    fn wants_found(&self, found: Found<'_>) -> bool {
        self.older_than
            .is_none_or(|least| age(found.began, found.at).is_some_and(|age| age >= least))
            && self
                .mark
                .is_none_or(|mark| mark == mark_of(found.connection, found.began))
    }
}

impl<P: BufferPool, S: SelectServer, N: NextHops> Proxy<P, S, N> {
    /// Places up to the last that was ever in use.
    pub fn places_used(&self) -> u32 {
        self.connections.touched()
    }

    /// Looks at the next of `places`, [`LOOKED_AT_PER_ROUND`] at most, and gives `show` the connections there that are wanted, until
    /// it says false. What is left of `places` was not looked at.
    pub fn look_at(
        &self,
        now: Instant,
        places: &mut Range<u32>,
        filter: &ConnectionFilter,
        mut show: impl FnMut(Found<'_>) -> bool,
    ) {
        for _ in 0..LOOKED_AT_PER_ROUND {
            let Some(slot) = places.next() else { return };
            if let Some(found) = self.wanted(now, slot, filter)
                && !show(found)
            {
                return;
            }
        }
    }

    /// What is shown of a connection that was found.
    #[inline]
    pub fn view(&self, found: Found<'_>) -> ConnectionView {
        let (slot, connection) = (found.slot, found.connection);
        let settings = &self.rooms.settings;
        ConnectionView {
            slot,
            listener_address: settings.addresses.value(connection.ends.listener_address),
            source: connection.ends.source(settings, &self.rooms.transparent_sources),
            began: found.began,
            // Whoever is not watched has no place there to be looked for.
            legs: (connection.is_watched())
                .then(|| self.rooms.legs.figures(slot).copied())
                .flatten(),
            at: found.at,
            connection: connection.clone(),
        }
    }

    /// Ends the connections there that are wanted with a RST to both sides, `most` of them and [`ENDED_PER_ROUND`], and only while
    /// what it takes has room; returns how many.
    pub fn end_wanted(
        &mut self,
        now: Instant,
        places: &mut Range<u32>,
        (filter, most): (&ConnectionFilter, u32),
        out: &mut impl Output<P::Buffer>,
    ) -> u32 {
        self.rooms.set_now(now);
        let mut ended = 0;
        for _ in 0..LOOKED_AT_PER_ROUND {
            if ended == most.min(ENDED_PER_ROUND) || out.room() < FRAMES_OF_TIMER {
                break;
            }
            let Some(slot) = places.next() else { break };
            if self.wanted(now, slot, filter).is_some() {
                self.drive(slot, Event::Shutdown, &mut ActionContext::nothing(), out);
                ended += 1;
            }
        }
        ended
    }

    /// The client that a PROXY header has named, as far as it is known still.
    fn named_client(&self, slot: u32) -> Option<u128> {
        let header = self.rooms.headers.received.get(slot).map(|header| header.source.0);
        header.or_else(|| self.rooms.records.proxied_client(slot))
    }

    fn wanted(&self, now: Instant, slot: u32, filter: &ConnectionFilter) -> Option<Found<'_>> {
        let connection = self.connections.get(slot)?;
        if !filter.wants(connection, || self.named_client(slot), now) {
            return None;
        }
        if let Some(number) = filter.closing {
            let server = connection.ends.leg.map(|leg| leg.server.0);
            let standby = self.rooms.upstream.standby();
            if !standby.closes(number, connection.listener, server) {
                return None;
            }
        }
        let found = Found {
            slot,
            connection,
            began: self.rooms.records.start(slot),
            at: now,
        };
        filter.wants_found(found).then_some(found)
    }
}
