//! The handshake with clients before there is a connection: SYN cookies, half-open and forwarded SYNs, and what a SYN-ACK
//! offers.

pub mod cookie;
pub(crate) mod forwarded_syn;
pub(crate) mod half_open;
pub(crate) mod replay_filter;
pub(crate) mod silenced;
pub mod syn_ack_options;

use crate::base::settings::{Secrets, Settings};
use crate::session::slab::Slab;
use cookie::CookieJar;
use e2d2::time::Instant;
use forwarded_syn::ForwardedSyn;
use half_open::HalfOpenTable;
use netfcts::FourTuple;
use netfcts::isn::IsnGenerator;
use netfcts::seq::SeqNum;
use replay_filter::ReplayFilter;
use silenced::SilencedFlows;
use syn_ack_options::SynAckOptions;

/// What a core knows of handshakes that are under way.
pub(crate) struct Handshake {
    pub(crate) cookies: CookieJar,
    pub(crate) replay_filter: ReplayFilter,
    /// What follows these gets no answer.
    pub(crate) silenced: SilencedFlows,
    /// The SYN-ACKs of these are not sent again. Anybody's RST writes here, so that it has no place among those above.
    pub(crate) given_up: SilencedFlows,
    /// Initial sequence numbers towards servers.
    isn: IsnGenerator,
    timestamp_base: u32,
    pub(crate) half_open: HalfOpenTable,
    pub(crate) forwarded_syns: Slab<ForwardedSyn>,
    pub(crate) syn_ack_options: SynAckOptions,
}

impl Handshake {
    pub(crate) fn new(settings: &Settings, secrets: &Secrets) -> Self {
        let capacity = settings.capacity;
        Handshake {
            cookies: CookieJar::new(secrets.cookie),
            replay_filter: ReplayFilter::new(capacity.connections),
            silenced: SilencedFlows::new(capacity.connections / 4),
            given_up: SilencedFlows::new(capacity.half_open),
            isn: IsnGenerator::new(secrets.isn),
            timestamp_base: secrets.timestamp,
            half_open: HalfOpenTable::new(capacity.half_open),
            forwarded_syns: Slab::new(capacity.forwarded_syns.min(forwarded_syn::MOST)),
            syn_ack_options: SynAckOptions::new(settings),
        }
    }

    /// The initial sequence number of a leg (RFC 6528 3).
    pub(crate) fn iss(&self, now: Instant, key: &FourTuple) -> SeqNum {
        let (local, remote) = (key.local.to_be_bytes(), key.remote.to_be_bytes());
        self.isn.isn(now, (&local, key.local_port), (&remote, key.remote_port))
    }

    /// Our timestamp clock towards clients: 1 ms, as RFC 7323 5.4 recommends.
    #[inline]
    pub(crate) fn timestamp(&self, now: Instant) -> u32 {
        self.timestamp_base.wrapping_add(now.as_millis() as u32)
    }
}
