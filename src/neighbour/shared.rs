//! The MAC addresses of the next hops, shared by all cores.
//!
//! One 64-bit word per next hop holds the MAC address and whether it is valid, so the packet path reads it with one
//! relaxed load and can never see half of an address. What a core learns or wants is left as a bit for the core that
//! keeps the timers of the neighbour's port ([`super::resolver`]); it looks at the bits only when a flag of that port
//! says so.
//!
//! The words order nothing else: a MAC address is complete in itself, and an old one that is used for another
//! microsecond is what the network allows anyway. Hence relaxed accesses, except that a bit is published (release)
//! after the word it speaks of and taken (acquire) before it.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};

use e2d2::port::PortId;
use e2d2::wire::MacAddr;

use super::topology::{MAX_NEXT_HOPS, NextHop, NextHopId, Topology};

const VALID: u64 = 1 << 48;
const STATIC: u64 = 1 << 49;

/// What a core leaves for the core that keeps the timers.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
pub(super) struct News(u8);

impl News {
    /// The neighbour answered us: it is reachable now.
    pub(super) const CONFIRMED: News = News(1);
    /// The neighbour, or someone in its name, said something that has to be asked back.
    pub(super) const DOUBTED: News = News(2);
    /// A core has a packet for it.
    pub(super) const WANTED: News = News(4);

    pub(super) fn has(self, other: News) -> bool {
        self.0 & other.0 != 0
    }

    pub(super) fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// What became of an offered MAC address.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Learned {
    /// The entry had none.
    New,
    /// The entry had this one.
    Same,
    /// The entry had this other one.
    Changed(MacAddr),
    /// The entry is configured by hand and stays.
    Static,
}

/// The MAC addresses of all next hops of a [`Topology`]; every core holds it by `Arc`.
#[derive(Debug)]
pub struct SharedNeighbours {
    words: Box<[AtomicU64]>,
    news: Box<[AtomicU8]>,
    ports: Box<[AtomicU8]>,
    /// Next hops that lead to somewhere.
    used: AtomicUsize,
    any_news: Box<[AtomicBool]>,
    /// Whether a port's own addresses are to be announced again.
    announce: Box<[AtomicBool]>,
    /// Whether another engine answers for the addresses of listeners.
    leaves_listeners: AtomicBool,
}

impl SharedNeighbours {
    /// A table for the next hops of `topology`, with room for all that there can be; those with a configured MAC address are
    /// valid from the start.
    pub fn new(topology: &Topology) -> Self {
        let last = topology.interfaces().iter().map(|interface| interface.port.0).max();
        let of_each_port = || (0..=last.unwrap_or(0)).map(|_| AtomicBool::new(false)).collect();
        let bytes = || (0..MAX_NEXT_HOPS).map(|_| AtomicU8::new(0)).collect();
        let shared = Self {
            words: (0..MAX_NEXT_HOPS).map(|_| AtomicU64::new(0)).collect(),
            news: bytes(),
            ports: bytes(),
            used: AtomicUsize::new(0),
            any_news: of_each_port(),
            announce: of_each_port(),
            leaves_listeners: AtomicBool::new(false),
        };
        shared.go_on_with(topology, &[]);
        shared
    }

    /// Makes the numbers that have another next hop in `topology` than they had `before` its own: no core uses them yet, but for
    /// those whose MAC address the file has changed.
    pub fn go_on_with(&self, topology: &Topology, before: &[NextHop]) {
        let hops = topology.next_hops();
        for (index, hop) in hops.iter().enumerate() {
            if !before.get(index).is_some_and(|before| before.is_same(hop)) {
                let word = hop.static_mac.map_or(0, |mac| to_bits(mac) | VALID | STATIC);
                self.words[index].store(word, Ordering::Relaxed);
                self.ports[index].store(hop.port.0, Ordering::Relaxed);
            }
        }
        let used = hops.iter().filter(|hop| hop.is_used).count();
        self.used.store(used, Ordering::Relaxed);
    }

    /// The MAC address of a next hop, if it is known. One relaxed load; any core.
    pub fn mac(&self, next_hop: NextHopId) -> Option<MacAddr> {
        let word = self.words.get(next_hop.index())?.load(Ordering::Relaxed);
        (word & VALID != 0).then(|| from_bits(word))
    }

    /// Asks for a next hop whose [`mac`](Self::mac) is not known. Any core, as often as it likes: requests are merged,
    /// and at most one frame per second and neighbour goes out.
    pub fn request(&self, next_hop: NextHopId) {
        self.tell(next_hop, News::WANTED);
    }

    /// Has the port's own addresses announced again by the core that keeps its timers: the link came up, or an address moved
    /// here (RFC 5227 2.3, RFC 4861 7.2.6). Any thread.
    pub fn announce(&self, port: PortId) {
        if let (Some(announce), Some(news)) = (self.announce.get(usize::from(port.0)), self.flag(port)) {
            announce.store(true, Ordering::Relaxed);
            news.store(true, Ordering::Release);
        }
    }

    /// Answers for the addresses of listeners from now on, and announces them on these ports; or leaves them to another engine.
    /// Any thread.
    pub fn set_announces(&self, announces: bool, ports: impl IntoIterator<Item = PortId>) {
        let left = self.leaves_listeners.swap(!announces, Ordering::Relaxed);
        if announces && left {
            ports.into_iter().for_each(|port| self.announce(port));
        }
    }

    /// Whether it does.
    pub fn announces(&self) -> bool {
        !self.leaves_listeners.load(Ordering::Relaxed)
    }

    /// Whether that was asked for since the last call.
    pub(super) fn take_announce(&self, port: PortId) -> bool {
        let announce = self.announce.get(usize::from(port.0));
        announce.is_some_and(|announce| announce.load(Ordering::Acquire) && announce.swap(false, Ordering::Acquire))
    }

    /// Number of next hops in the table.
    pub fn len(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Whether there is no next hop at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of next hops whose MAC address is known.
    pub fn resolved(&self) -> usize {
        self.words
            .iter()
            .filter(|word| word.load(Ordering::Relaxed) & VALID != 0)
            .count()
    }

    pub(super) fn is_static(&self, next_hop: NextHopId) -> bool {
        self.words
            .get(next_hop.index())
            .is_some_and(|word| word.load(Ordering::Relaxed) & STATIC != 0)
    }

    /// Takes over a MAC address, unless the entry is static.
    pub(super) fn learn(&self, next_hop: NextHopId, mac: MacAddr) -> Learned {
        let Some(word) = self.words.get(next_hop.index()) else {
            return Learned::Static;
        };
        let old = word.load(Ordering::Relaxed);
        if old & STATIC != 0 {
            return Learned::Static;
        }
        let new = to_bits(mac) | VALID;
        if old == new {
            return Learned::Same;
        }
        // No core ever sets STATIC after `new`, so a plain store cannot overwrite a static entry.
        word.store(new, Ordering::Relaxed);
        if old & VALID == 0 {
            Learned::New
        } else {
            Learned::Changed(from_bits(old))
        }
    }

    /// Takes back the MAC address that the caller saw, unless another core has learned a new one meanwhile.
    pub(super) fn forget(&self, next_hop: NextHopId, seen: MacAddr) {
        if let Some(word) = self.words.get(next_hop.index()) {
            // A failure means that the entry is fresh or static: it stays.
            let _ = word.compare_exchange(to_bits(seen) | VALID, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    pub(super) fn tell(&self, next_hop: NextHopId, news: News) {
        let Some(cell) = self.news.get(next_hop.index()) else {
            return;
        };
        if cell.load(Ordering::Relaxed) & news.0 == news.0 {
            return;
        }
        cell.fetch_or(news.0, Ordering::Release);
        let port = self.ports.get(next_hop.index());
        if let Some(flag) = port.and_then(|port| self.flag(PortId(port.load(Ordering::Relaxed)))) {
            flag.store(true, Ordering::Release);
        }
    }

    /// Whether there may be news of the port's neighbours. One relaxed load.
    pub(super) fn has_news(&self, port: PortId) -> bool {
        self.flag(port).is_some_and(|flag| flag.load(Ordering::Relaxed))
    }

    /// Starts to take the news of a port's neighbours: `false` if there is none. Only the core that keeps their timers.
    pub(super) fn begin_news(&self, port: PortId) -> bool {
        // Cleared first: a bit set after this line sets the flag again and is seen by the next call at the latest.
        self.has_news(port) && self.flag(port).is_some_and(|flag| flag.swap(false, Ordering::Acquire))
    }

    /// Takes what was left about one neighbour since the last call.
    pub(super) fn take_news(&self, next_hop: NextHopId) -> News {
        News(
            self.news
                .get(next_hop.index())
                .map_or(0, |cell| cell.swap(0, Ordering::Acquire)),
        )
    }

    fn flag(&self, port: PortId) -> Option<&AtomicBool> {
        self.any_news.get(usize::from(port.0))
    }
}

/// The lowest six bytes in the order of the wire: on the way back nothing has to be turned round.
fn to_bits(mac: MacAddr) -> u64 {
    let [a, b, c, d, e, f] = mac.0;
    u64::from_le_bytes([a, b, c, d, e, f, 0, 0])
}

fn from_bits(word: u64) -> MacAddr {
    let [a, b, c, d, e, f, ..] = word.to_le_bytes();
    MacAddr([a, b, c, d, e, f])
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::topology::{Interface, Neighbour};
    use super::*;

    fn table() -> SharedNeighbours {
        let interface = Interface {
            port: PortId(0),
            mac: MacAddr([2, 0, 0, 0, 0, 1]),
            addresses: vec!["10.0.0.1/24".parse().expect("a prefix")],
            aliases: vec![],
        };
        let neighbour = Neighbour {
            port: PortId(0),
            address: [10, 0, 0, 2].into(),
            mac: None,
        };
        let topology = Topology::new(vec![interface], &[neighbour]).expect("a topology");
        SharedNeighbours::new(&topology)
    }

    /// Every core may answer for the others: what they learn at the same time is one address or the other, never half of
    /// each, and no news is lost to whoever keeps the timers.
    #[test]
    fn several_cores_learn_forget_and_ask_at_once() {
        const MACS: [MacAddr; 2] = [MacAddr([2, 1, 1, 1, 1, 1]), MacAddr([2, 0xee, 0xee, 0xee, 0xee, 0xee])];
        let shared = Arc::new(table());
        let id = NextHopId::from_index(0);
        let core = |mac: MacAddr| {
            let shared = Arc::clone(&shared);
            move || {
                for round in 0..20_000 {
                    shared.learn(id, mac);
                    shared.tell(id, News::CONFIRMED);
                    match shared.mac(id) {
                        Some(seen) if round % 3 == 0 => shared.forget(id, seen),
                        Some(seen) => assert!(MACS.contains(&seen), "{seen}"),
                        None => shared.request(id),
                    }
                }
            }
        };
        let cores: Vec<_> = MACS.map(|mac| std::thread::spawn(core(mac))).into();
        let mut heard = false;
        while cores.iter().any(|core| !core.is_finished()) {
            if shared.begin_news(PortId(0)) {
                heard |= shared.take_news(id).has(News::CONFIRMED);
            }
        }
        cores.into_iter().for_each(|core| core.join().expect("a core"));
        heard |= shared.begin_news(PortId(0)) && shared.take_news(id).has(News::CONFIRMED);
        assert!(heard);
        assert!(!shared.begin_news(PortId(0)), "all of it was taken");
        shared.learn(id, MACS[0]);
        assert_eq!(shared.mac(id), Some(MACS[0]));
    }
}
