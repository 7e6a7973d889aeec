//! Our addresses, and who listens on their ports: asked for every SYN and for every segment without a connection.
//!
//! A look-up takes the same time for one address as for ten thousand, whatever it is for. Addresses stand in an
//! open-addressed table that grows until none stands more than [`REACH`] places from where its hash points, at most a quarter
//! full. The ports of an address are a page table of two levels: 256 pages of 256 ports. Pages, and tables of pages, with
//! the same content are kept once: ten thousand addresses with the same ports take 1.5 KiB for these. What most engines have,
//! one claim to an address for clients behind one port of ours, stands beside the address.
//!
//! Built with the settings that it is a part of; nothing here changes afterwards.

use e2d2::port::PortId;
use netfcts::leg::mapped;
use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::ops::RangeInclusive;

/// A listener's claim to ports of an address. No port of an address is claimed twice.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The address.
    pub address: IpAddr,
    /// Its ports.
    pub ports: RangeInclusive<u16>,
    /// The number of the listener.
    pub listener: u16,
}

/// Our addresses, with what listens on each.
#[derive(Clone, Debug, Default)]
pub struct Addresses {
    entries: Vec<Entry>,
    places: Places,
    /// By address, as far as anybody listens: the number of its [`Pages`].
    ports: Vec<u32>,
    tables: Vec<Pages>,
    pages: Vec<Page>,
    /// By listener: the ports of ours that its clients are behind.
    devices: Vec<Vec<PortId>>,
}

/// An address, and the first claim to its ports.
#[derive(Clone, Copy, Debug)]
struct Entry {
    value: u128,
    first: u16,
    /// Below `first` if nobody listens.
    last: u16,
    listener: u16,
    /// One of the ports of ours that the listener's clients are behind.
    device: PortId,
}

/// The listeners of 256 ports, [`NOBODY`] where there is none.
type Page = [u16; 256];

/// By the upper half of a port: the number of a page.
type Pages = [u32; 256];

const NOBODY: u16 = u16::MAX;

impl Addresses {
    /// The addresses of all claims, behind those that are `known` by their place already; `devices` has, by listener, the
    /// ports that its clients are behind.
    pub fn new(known: &[IpAddr], claims: &[Claim], devices: Vec<Vec<PortId>>) -> Self {
        let mut addresses = Addresses {
            devices,
            ..Addresses::default()
        };
        for address in known {
            addresses.add(*address);
        }
        let mut of_address: Vec<Vec<&Claim>> = vec![Vec::new(); addresses.len()];
        for claim in claims {
            let index = usize::from(addresses.add(claim.address));
            of_address.resize(of_address.len().max(index + 1), Vec::new());
            of_address[index].push(claim);
            addresses.note_beside(index, claim);
        }
        let (mut tables, mut pages) = (Distinct::default(), Distinct::default());
        // Most addresses may be those that we only connect from.
        let mut nobodys = None;
        for claims in of_address {
            let table = match claims.is_empty() {
                true => *nobodys.get_or_insert_with(|| pages_of(&[], &mut pages)),
                false => pages_of(&claims, &mut pages),
            };
            addresses.ports.push(tables.number(table));
        }
        (addresses.tables, addresses.pages) = (tables.all, pages.all);
        addresses
    }

    /// The index of `address`, which is added if it is new. Nobody listens on it.
    pub fn add(&mut self, address: IpAddr) -> u16 {
        let value = mapped(address);
        if let Some(index) = self.index(value) {
            return index;
        }
        self.entries.push(Entry {
            value,
            first: 1,
            last: 0,
            listener: NOBODY,
            device: PortId(0),
        });
        self.places.fill(&self.entries);
        (self.entries.len() - 1) as u16
    }

    /// Keeps a claim beside its address, if it is the first.
    fn note_beside(&mut self, index: usize, claim: &Claim) {
        let device = self
            .devices
            .get(usize::from(claim.listener))
            .and_then(|devices| devices.first());
        let entry = &mut self.entries[index];
        if entry.listener == NOBODY
            && let Some(&device) = device
        {
            (entry.first, entry.last) = (*claim.ports.start(), *claim.ports.end());
            (entry.listener, entry.device) = (claim.listener, device);
        }
    }

    /// The index of one of our addresses.
    #[inline]
    pub fn index(&self, value: u128) -> Option<u16> {
        // As many engines have no other.
        if self.entries.first().is_some_and(|entry| entry.value == value) {
            return Some(0);
        }
        self.candidates(value).find(|&index| self.value(index) == value)
    }

    /// The addresses that [`Addresses::index`] compares with `value` until it finds it: at most [`REACH`].
    #[inline]
    fn candidates(&self, value: u128) -> impl Iterator<Item = u16> {
        self.places.after(value)
    }

    /// The address with this index.
    #[inline]
    pub fn value(&self, index: u16) -> u128 {
        self.entries.get(usize::from(index)).map_or(0, |entry| entry.value)
    }

    /// Who listens on `port` of the address with this index, for clients behind `device`.
    #[inline]
    pub fn listener(&self, index: u16, port: u16, device: PortId) -> Option<u16> {
        let entry = self.entries.get(usize::from(index))?;
        if entry.device == device && (entry.first..=entry.last).contains(&port) {
            return Some(entry.listener);
        }
        self.listener_in_pages(index, port, device)
    }

    #[inline(never)]
    fn listener_in_pages(&self, index: u16, port: u16, device: PortId) -> Option<u16> {
        let table = self.tables.get(*self.ports.get(usize::from(index))? as usize)?;
        let page = self.pages.get(table[usize::from(port >> 8)] as usize)?;
        let listener = page[usize::from(port & 0xff)];
        let devices = self.devices.get(usize::from(listener))?;
        devices.contains(&device).then_some(listener)
    }

    /// The number of addresses.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True without any address.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The memory for look-ups in bytes.
    #[cfg(test)]
    fn memory(&self) -> usize {
        size_of_val(&*self.entries)
            + size_of_val(&*self.places.indices)
            + size_of_val(&*self.ports)
            + size_of_val(&*self.tables)
            + size_of_val(&*self.pages)
    }
}

/// The pages of one address.
fn pages_of(claims: &[&Claim], pages: &mut Distinct<Page>) -> Pages {
    let mut listeners = vec![NOBODY; 1 << 16];
    for claim in claims {
        let (first, last) = (usize::from(*claim.ports.start()), usize::from(*claim.ports.end()));
        listeners[first..=last].fill(claim.listener);
    }
    let (all, _) = listeners.as_chunks::<256>();
    std::array::from_fn(|page| pages.number(all[page]))
}

/// Values, each once, by number.
struct Distinct<T> {
    all: Vec<T>,
    numbers: HashMap<T, u32>,
}

impl<T> Default for Distinct<T> {
    fn default() -> Self {
        Distinct {
            all: Vec::new(),
            numbers: HashMap::new(),
        }
    }
}

impl<T: Copy + Eq + Hash> Distinct<T> {
    fn number(&mut self, value: T) -> u32 {
        *self.numbers.entry(value).or_insert_with(|| {
            self.all.push(value);
            (self.all.len() - 1) as u32
        })
    }
}

/// Places that a look-up of an address reads at most.
const REACH: usize = 8;

const FREE: u16 = u16::MAX;

/// Odd numbers whose bits follow no pattern: the fractions of the golden ratio and of the square root of two, times 2^64.
const FACTORS: [u64; 2] = [0x9e37_79b9_7f4a_7c15, 0x6a09_e667_f3bc_c909];

/// Indices of addresses, by the hash of the address.
#[derive(Clone, Debug, Default)]
struct Places {
    /// Homes, at least four times as many as addresses, and [`REACH`] more for the last of them.
    indices: Vec<u16>,
    filled: usize,
}

impl Places {
    /// The indices from the place of `value` to the next that is free.
    #[inline]
    fn after(&self, value: u128) -> impl Iterator<Item = u16> {
        let from = self.home(value);
        let reach = self.indices.get(from..from + REACH).unwrap_or_default();
        reach.iter().copied().take_while(|&index| index != FREE)
    }

    /// The hash scaled to the homes. No secret: what is looked for has no influence on where our addresses stand.
    #[inline]
    fn home(&self, value: u128) -> usize {
        let homes = self.indices.len().saturating_sub(REACH);
        let folded = (value as u64).wrapping_add(((value >> 64) as u64).wrapping_mul(FACTORS[0]));
        let hash = folded.wrapping_mul(FACTORS[1]);
        ((u128::from(hash) * homes as u128) >> 64) as usize
    }

    /// Takes in those of `entries` that are new, which are the last.
    fn fill(&mut self, entries: &[Entry]) {
        let mut homes = self.indices.len().saturating_sub(REACH).max(4);
        while self.filled < entries.len() {
            let has_room = entries.len() * 4 <= homes && self.indices.len() > homes;
            if has_room && self.put(entries[self.filled].value, self.filled as u16) {
                self.filled += 1;
            } else {
                homes *= 2;
                self.indices = vec![FREE; homes + REACH];
                self.filled = 0;
            }
        }
    }

    /// Puts `index` into the first free place for `value`. Returns false if there is none within reach.
    fn put(&mut self, value: u128, index: u16) -> bool {
        let from = self.home(value);
        let free = self.indices[from..from + REACH].iter().position(|&place| place == FREE);
        free.map(|place| self.indices[from + place] = index).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    const MANY: u32 = 10_000;

    fn v4(n: u32) -> IpAddr {
        Ipv4Addr::from_bits(0x0a00_0000 + n).into()
    }

    /// Hosts of one network, or networks that differ in their upper half alone.
    fn v6(n: u32) -> IpAddr {
        let (network, host) = if n.is_multiple_of(2) { (0, n) } else { (n, 1) };
        Ipv6Addr::from_bits(0xfd00 << 112 | u128::from(network) << 64 | u128::from(host)).into()
    }

    fn claim(address: IpAddr, ports: RangeInclusive<u16>, listener: u16) -> Claim {
        Claim {
            address,
            ports,
            listener,
        }
    }

    fn behind_port_0(listeners: usize) -> Vec<Vec<PortId>> {
        vec![vec![PortId(0)]; listeners]
    }

    fn listener_of(addresses: &Addresses, address: IpAddr, port: u16) -> Option<u16> {
        let index = addresses.index(mapped(address))?;
        addresses.listener(index, port, PortId(0))
    }

    fn compared(addresses: &Addresses, address: IpAddr) -> usize {
        addresses.candidates(mapped(address)).count()
    }

    #[test]
    fn ten_thousand_addresses_cost_a_look_up_no_more_than_one() {
        for address in [v4, v6] {
            let claims: Vec<Claim> = (0..MANY).map(|n| claim(address(n), 443..=443, 0)).collect();
            let addresses = Addresses::new(&[], &claims, behind_port_0(1));
            assert_eq!(addresses.len(), MANY as usize);
            let mut total = 0;
            for n in 0..MANY {
                assert_eq!(addresses.index(mapped(address(n))), Some(n as u16));
                assert_eq!(listener_of(&addresses, address(n), 443), Some(0));
                assert_eq!(listener_of(&addresses, address(n), 444), None);
                // What is ours, and what strangers ask for.
                assert!(compared(&addresses, address(n)) <= REACH);
                assert_eq!(addresses.index(mapped(address(MANY + n))), None);
                let strange = compared(&addresses, address(MANY + n));
                assert!(strange <= REACH);
                total += strange;
            }
            assert!(
                total < MANY as usize,
                "{total}: less than one comparison for an address that is not ours"
            );
            // All have the same ports: one table and two pages.
            assert_eq!((addresses.tables.len(), addresses.pages.len()), (1, 2));
            assert!(addresses.memory() < 1 << 20, "{}", addresses.memory());
        }
    }

    #[test]
    fn ten_thousand_ports_and_listeners_are_told_apart() {
        let claims: Vec<Claim> = (0..MANY as u16)
            .map(|n| claim(v4(1), 1_000 + 3 * n..=1_001 + 3 * n, n))
            .collect();
        let addresses = Addresses::new(&[], &claims, behind_port_0(MANY as usize));
        for n in 0..MANY as u16 {
            let ports = 1_000 + 3 * n..=1_002 + 3 * n;
            let found: Vec<Option<u16>> = ports.map(|port| listener_of(&addresses, v4(1), port)).collect();
            assert_eq!(found, [Some(n), Some(n), None]);
        }
        assert_eq!((addresses.len(), addresses.tables.len()), (1, 1));
    }

    #[test]
    fn ten_thousand_addresses_may_have_each_a_port_of_its_own() {
        let port = |n: u32| 20_000 + n as u16;
        let claims: Vec<Claim> = (0..MANY).map(|n| claim(v6(n), port(n)..=port(n), n as u16)).collect();
        let addresses = Addresses::new(&[], &claims, behind_port_0(MANY as usize));
        for n in 0..MANY {
            assert_eq!(listener_of(&addresses, v6(n), port(n)), Some(n as u16));
            assert_eq!(listener_of(&addresses, v6(n), port(n) ^ 1), None);
        }
        assert!(addresses.memory() < 17 << 20, "{}", addresses.memory());
    }

    #[test]
    fn ranges_end_where_they_end_and_clients_come_from_the_ports_of_their_listener() {
        let claims = [
            claim(v4(1), 80..=80, 0),
            claim(v4(1), 256..=511, 1),
            claim(v4(1), 8_000..=8_099, 0),
            claim(v6(1), 1..=u16::MAX, 1),
        ];
        let mut addresses = Addresses::new(&[], &claims, vec![vec![PortId(0)], vec![PortId(0), PortId(2)]]);
        for (port, expected) in [
            (79, None),
            (80, Some(0)),
            (81, None),
            (255, None),
            (256, Some(1)),
            (511, Some(1)),
            (512, None),
            (7_999, None),
            (8_000, Some(0)),
            (8_099, Some(0)),
            (8_100, None),
        ] {
            assert_eq!(listener_of(&addresses, v4(1), port), expected, "{port}");
        }
        for port in [1, 80, 255, 256, u16::MAX] {
            assert_eq!(listener_of(&addresses, v6(1), port), Some(1), "{port}");
        }
        assert_eq!(listener_of(&addresses, v6(1), 0), None);
        let of = |addresses: &Addresses, address, device| {
            let index = addresses.index(mapped(address))?;
            addresses.listener(index, 80, PortId(device))
        };
        assert_eq!(
            [0, 1, 2].map(|device| of(&addresses, v4(1), device)),
            [Some(0), None, None]
        );
        assert_eq!(
            [0, 1, 2].map(|device| of(&addresses, v6(1), device)),
            [Some(1), None, Some(1)]
        );
        // An address to call from has no listener; one that has listeners is the same one.
        assert_eq!(addresses.add(v4(2)), 2);
        assert_eq!((addresses.add(v4(2)), addresses.add(v6(1))), (2, 1));
        assert_eq!(of(&addresses, v4(2), 0), None);
        assert_eq!((addresses.value(2), addresses.value(3)), (mapped(v4(2)), 0));
    }

    #[test]
    fn without_an_address_nothing_is_found() {
        let addresses = Addresses::default();
        assert_eq!((addresses.index(0), addresses.index(u128::MAX)), (None, None));
        assert_eq!(addresses.listener(0, 80, PortId(0)), None);
    }
}
