//! What SYN-ACKs promise on behalf of servers that are not chosen yet (DECISIONS.md 13).
//!
//! ```text
//!   probe's SYN-ACK ─┐                    least of all servers that         frozen by the first SYN
//!                    ├─► ServerCaps ─────► the listener's rules reach ─────► of a cookie slot ─────► SYN-ACK
//!   live SYN-ACKs ───┘   by server                                          by listener, 4 slots
//! ```
//!
//! Only the promise of the slot in which a cookie was baked says what its client was told, so all SYN-ACKs of one slot
//! promise the same: what is learned meanwhile waits for the next slot. A cookie shows its slot modulo four and lives for
//! two, so a ring of four promises a listener is enough, and no connection needs to remember what it was promised.
//!
//! A server that has not answered yet is neither trusted nor waited for: all that it could lack can be translated but
//! timestamps, and these are not promised before its first probe is over. After that a server which nobody can reach
//! says nothing about those that serve.
//!
//! What is least is lowered with the answer that says so; that it has risen is found by looking at all servers of a pool again, 64
//! a round ([`least`]).
//!
//! Who asks the servers is in [`probe`](crate::probe). Every core learns for itself.

mod change;
mod least;

pub(crate) use change::OptionsChange;

use crate::base::callbacks::MAX_FIRST_PAYLOAD;
use crate::base::difference::{MOST_LISTENERS, MOST_SERVERS};
use crate::base::ids::ServerId;
use crate::base::settings::{Server, Settings, SynAckSettings};
use crate::base::sizes::LEAST_MSS;
use crate::handshake::cookie::{CookieJar, MSS_CLASSES, slot_bits};
use e2d2::time::Instant;
use e2d2::wire::frame::IpVersion;
use e2d2::wire::tcp::TcpOptions;
use least::{Least, PoolsLeast};
use netfcts::leg::ip_version;
use netfcts::seq::SeqNum;
use std::collections::VecDeque;

/// What SYN-ACKs tell clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdvertisedOptions {
    /// The largest segment that is taken whatever the leg to the client: a limit of the servers and the legs to them.
    mss: u16,
    /// The same as it is configured, over IPv4; 20 less over IPv6.
    pinned_mss: Option<u16>,
    /// The shift of the windows that will come; `None` promises none.
    pub window_scale: Option<u8>,
    /// SACK is permitted.
    pub sack: bool,
    /// Timestamps are sent.
    pub timestamps: bool,
    /// The window, never scaled, at most [`MAX_FIRST_PAYLOAD`](crate::base::callbacks::MAX_FIRST_PAYLOAD).
    pub window: u16,
}

impl AdvertisedOptions {
    /// The MSS to tell a client on a leg with this MTU.
    pub fn mss(&self, version: IpVersion, mtu: u16) -> u16 {
        let headers = version.header_len_with_tcp();
        let of_packet = |mss: u16| mss.saturating_add(IpVersion::V4.header_len_with_tcp());
        let pinned = self.pinned_mss.map_or(u16::MAX, |mss| of_packet(mss) - headers);
        self.mss.min(pinned).min(mtu - headers)
    }

    /// From now on this is what either has offered.
    fn raise(&mut self, other: AdvertisedOptions) {
        self.mss = self.mss.max(other.mss);
        self.window = self.window.max(other.window);
        self.window_scale = self.window_scale.max(other.window_scale);
        self.sack |= other.sack;
        self.timestamps |= other.timestamps;
    }

    /// Whether who has these options does all that was offered.
    fn keeps(&self, offered: &AdvertisedOptions) -> bool {
        self.mss >= offered.mss
            && self.window >= offered.window
            && self.window_scale.unwrap_or(0) >= offered.window_scale.unwrap_or(0)
            && self.sack >= offered.sack
            && self.timestamps >= offered.timestamps
    }
}

/// What one server's TCP can do, as its SYN-ACK says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerCaps {
    /// The largest segment that it takes.
    pub mss: u16,
    /// The shift of its windows; `None` without window scaling.
    pub window_scale: Option<u8>,
    /// It permits SACK.
    pub sack: bool,
    /// It sends timestamps.
    pub timestamps: bool,
    /// The smallest window of its SYN-ACKs.
    pub window: u16,
}

/// The least window that is promised, a segment of the default MSS: with less the first payload would not come, and there
/// are servers behind SYN proxies whose SYN-ACK says 0 and whose first ACK opens the window.
const LEAST_WINDOW: u16 = IpVersion::V4.default_mss();

/// The MSS that a SYN or SYN-ACK names, or means.
pub(crate) fn mss_of(options: &TcpOptions, version: IpVersion) -> u16 {
    options.mss.unwrap_or(version.default_mss()).max(LEAST_MSS)
}

impl ServerCaps {
    /// Of a SYN-ACK to a SYN that offered everything.
    pub(crate) fn of(options: &TcpOptions, window: u16, version: IpVersion) -> Self {
        ServerCaps {
            mss: mss_of(options, version),
            window_scale: options.window_scale,
            sack: options.sack_permitted,
            timestamps: options.timestamps.is_some(),
            window,
        }
    }

    /// Whether a later probe could find more.
    pub(crate) fn lacks_something(&self) -> bool {
        self.window_scale.is_none()
            || !self.sack
            || !self.timestamps
            || usize::from(self.window) < MAX_FIRST_PAYLOAD
            || self.mss < MSS_CLASSES[2]
    }
}

/// What is known of a server.
#[derive(Clone, Copy, Debug)]
struct Known {
    server_caps: Option<ServerCaps>,
    /// Its first probe is not over.
    is_asked: bool,
    /// What is new has not been told.
    is_news: bool,
    /// The slot in which news of it was told last.
    told_in: u64,
    /// The largest segment that the leg to it takes.
    leg_mss: u16,
    /// It is new and takes no connection yet: what it cannot do is not left out of promises.
    is_joining: bool,
}

/// A listener's promises.
#[derive(Clone, Copy, Debug)]
struct Ring {
    /// The slot that was frozen last.
    slot: u64,
    /// By slot modulo four.
    by_slot: [AdvertisedOptions; 4],
}

/// What one core promises.
pub(crate) struct SynAckOptions {
    settings: SynAckSettings,
    servers: Vec<Known>,
    listeners: Vec<Ring>,
    pools: PoolsLeast,
    news: VecDeque<u16>,
}

impl Known {
    fn new(server: &Server, settings: &Settings) -> Self {
        let device = settings.devices.get(usize::from(server.device.0));
        let mtu = device.map_or(1500, |device| device.mtu);
        Known {
            server_caps: None,
            is_asked: settings.promises.offer.probe,
            is_news: false,
            told_in: u64::MAX,
            leg_mss: mtu.saturating_sub(ip_version(server.address).header_len_with_tcp()),
            is_joining: false,
        }
    }
}

impl Ring {
    fn new(unknown: AdvertisedOptions) -> Self {
        Ring {
            slot: u64::MAX,
            by_slot: [unknown; 4],
        }
    }

    /// This is what SYN-ACKs of this slot offer, and those of slots since the last, in which there were none, would have.
    fn freeze(&mut self, slot: u64, offer: AdvertisedOptions) {
        for missed in self.slot.wrapping_add(1).max(slot.saturating_sub(3))..=slot {
            self.by_slot[(missed & 3) as usize] = offer;
        }
        self.slot = slot;
    }

    /// The same, where others have offered something in this slot, too: of each the most.
    fn freeze_more(&mut self, slot: u64, offer: AdvertisedOptions) {
        if self.slot == u64::MAX || slot > self.slot {
            self.freeze(slot, offer);
        } else if self.slot - slot < 4 {
            self.by_slot[(slot & 3) as usize].raise(offer);
        }
    }

    /// What a listener has offered whose clients may come from now on: cookies live for two slots.
    fn join_offers(&mut self, of_listener: &Ring) {
        if of_listener.slot != u64::MAX {
            for slot in of_listener.slot.saturating_sub(1)..=of_listener.slot {
                self.freeze_more(slot, of_listener.by_slot[(slot & 3) as usize]);
            }
        }
    }

    /// Whether a cookie that may still come was given with an offer that a server with these options does not keep.
    fn has_offered_more(&self, own: AdvertisedOptions, now: Instant) -> bool {
        let current = CookieJar::slot(now);
        let slots = current.saturating_sub(1)..=current.min(self.slot);
        self.slot != u64::MAX
            && slots
                .into_iter()
                .any(|slot| !own.keeps(&self.by_slot[(slot & 3) as usize]))
    }
}

/// What our SYN to a server offered, as far as its answer depends on it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offered {
    pub mss: u16,
    pub window_scale: bool,
    pub sack: bool,
    pub timestamps: bool,
}

impl SynAckOptions {
    /// Nothing is known yet.
    pub(crate) fn new(settings: &Settings) -> Self {
        let promises = &settings.promises;
        let unknown = Least::NOTHING.promise(&promises.offer);
        let mut servers = Vec::with_capacity(MOST_SERVERS);
        servers.extend(settings.servers.iter().map(|server| Known::new(server, settings)));
        let mut listeners = Vec::with_capacity(MOST_LISTENERS);
        listeners.resize(promises.reach.len(), Ring::new(unknown));
        let mut pools = PoolsLeast::new(promises.pools.len(), unknown);
        for (server, known) in servers.iter().enumerate() {
            for &pool in &promises.pools_of[server] {
                pools.lower(pool, Least::of(known));
            }
        }
        SynAckOptions {
            servers,
            listeners,
            pools,
            news: VecDeque::with_capacity(MOST_SERVERS),
            settings: promises.clone(),
        }
    }

    /// The first probe of a new server is over. Returns whether there may be clients who were offered more than it can do: it
    /// is to take no connection as long as they may come.
    pub(crate) fn join(&mut self, server: u16, now: Instant) -> bool {
        let Some(known) = self.servers.get_mut(usize::from(server)) else {
            return false;
        };
        known.is_joining = false;
        let (is_known, own) = (known.server_caps.is_some(), Least::of(known));
        self.renew(server);
        // Of a server that has not answered nothing is known.
        if !is_known {
            return false;
        }
        let own = own.promise(&self.settings.offer);
        let mut pools = pools_of(&self.settings, server).iter();
        pools.any(|&pool| {
            self.pools
                .offered(pool)
                .is_some_and(|ring| ring.has_offered_more(own, now))
        })
    }

    /// Whether a server is new and its first probe is not over.
    pub(crate) fn is_joining(&self, server: u16) -> bool {
        self.servers
            .get(usize::from(server))
            .is_some_and(|known| known.is_joining)
    }

    /// What to promise in answer to a SYN that arrives now: from now on all SYN-ACKs of this slot say the same.
    #[inline]
    pub(crate) fn freeze(&mut self, listener: u16, now: Instant) -> AdvertisedOptions {
        let slot = CookieJar::slot(now);
        let index = usize::from(listener);
        if self.listeners[index].slot != slot {
            self.look_again();
            let least = self.pools.of_all(&self.settings.reach[index]);
            let offer = least.promise(&self.settings.offer);
            self.listeners[index].freeze(slot, offer);
            self.pools.note_offered(&self.settings.reach[index], slot, offer);
        }
        self.listeners[index].by_slot[(slot & 3) as usize]
    }

    /// What was promised with `cookie`, which is not older than three slots.
    #[inline]
    pub(crate) fn of_cookie(&self, listener: u16, cookie: SeqNum) -> AdvertisedOptions {
        self.listeners[usize::from(listener)].by_slot[slot_bits(cookie) as usize]
    }

    /// What is known of a server.
    pub(crate) fn server_caps(&self, server: u16) -> Option<ServerCaps> {
        self.servers.get(usize::from(server))?.server_caps
    }

    /// A probe was answered. Returns whether that was news.
    pub(crate) fn note_probe(&mut self, server: u16, found: ServerCaps) -> bool {
        self.end_first_probe(server);
        self.set(server, found)
    }

    /// The first probe of a server is over, answered or not.
    pub(crate) fn end_first_probe(&mut self, server: u16) {
        if let Some(known) = self.servers.get_mut(usize::from(server))
            && std::mem::take(&mut known.is_asked)
        {
            self.renew(server);
        }
    }

    /// A connection's SYN was answered. What it did not offer, the answer says nothing about. Returns whether the server
    /// can do less than was known.
    #[inline]
    pub(crate) fn note_live(
        &mut self,
        server: u16,
        offered: Offered,
        options: &TcpOptions,
        window: u16,
        version: IpVersion,
    ) -> bool {
        if !self.settings.offer.probe {
            return false;
        }
        let Some(known) = self.servers.get(usize::from(server)) else {
            return false;
        };
        let before = known.server_caps.unwrap_or(ServerCaps {
            mss: known.leg_mss,
            window_scale: self.settings.offer.window_scale,
            sack: true,
            // Not before it has shown them: they cannot be translated away.
            timestamps: offered.timestamps && options.timestamps.is_some(),
            window,
        });
        let mss = mss_of(options, version);
        let found = ServerCaps {
            // Some servers repeat the client's MSS where theirs is larger: an equal one says nothing.
            mss: if mss == offered.mss { before.mss.max(mss) } else { mss },
            window_scale: if offered.window_scale {
                options.window_scale
            } else {
                before.window_scale
            },
            sack: if offered.sack {
                options.sack_permitted
            } else {
                before.sack
            },
            timestamps: if offered.timestamps {
                options.timestamps.is_some()
            } else {
                before.timestamps
            },
            window: before.window.min(window),
        };
        self.set(server, found) && found.lacks_something()
    }

    fn set(&mut self, server: u16, found: ServerCaps) -> bool {
        let Some(known) = self.servers.get_mut(usize::from(server)) else {
            return false;
        };
        if known.server_caps == Some(found) {
            return false;
        }
        known.server_caps = Some(found);
        if !known.is_news {
            known.is_news = true;
            self.news.push_back(server);
        }
        self.renew(server);
        true
    }

    /// What is known of a server has changed: its pools can do no more than it from now on, and are looked at again.
    fn renew(&mut self, server: u16) {
        let known = self.servers.get(usize::from(server));
        if let Some(known) = known.filter(|known| !known.is_joining) {
            let own = Least::of(known);
            for &pool in pools_of(&self.settings, server) {
                self.pools.lower(pool, own);
            }
        }
    }

    /// Looks at some servers of pools of which something has changed. Returns whether there were any.
    #[inline]
    pub(crate) fn look_again(&mut self) -> bool {
        self.pools.is_stale() && {
            self.pools.look_again(&self.settings.pools, &self.servers);
            true
        }
    }

    /// Whether there is something to [look at](Self::look_again).
    pub(crate) fn is_stale(&self) -> bool {
        self.pools.is_stale()
    }

    /// A server of which more is known than was told; each at most once a slot.
    pub(crate) fn take_caps_change(&mut self, now: Instant) -> Option<(ServerId, ServerCaps)> {
        let server = self.news.pop_front()?;
        let slot = CookieJar::slot(now);
        let known = self.servers.get_mut(usize::from(server))?;
        if known.told_in == slot {
            self.news.push_back(server);
            return None;
        }
        known.told_in = slot;
        known.is_news = false;
        known.server_caps.map(|server_caps| (ServerId(server), server_caps))
    }

    /// The memory in bytes.
    pub(crate) fn memory(&self) -> usize {
        size_of_val(&*self.servers)
            + size_of_val(&*self.listeners)
            + self.pools.memory()
            + self.news.capacity() * size_of::<u16>()
    }
}

/// The pools that a server is in.
fn pools_of(settings: &SynAckSettings, server: u16) -> &[u16] {
    settings.pools_of.get(usize::from(server)).map_or(&[], Vec::as_slice)
}
