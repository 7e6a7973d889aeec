//! The table of a pool's policy: a pick takes the same time in a pool of two servers and of a thousand.
//!
//! A table is made for one version of a pool, off the packet threads, and only read afterwards; all cores share it. It does
//! not depend on which servers are down or full: the caller passes over those and takes the next ([`upstream`](crate::upstream)).
//!
//! | policy | table | size | made in time for n servers |
//! |---|---|---|---|
//! | `round_robin` | the order of turns | the sum of weights, 2 bytes each | sum of weights × different weights |
//! | `least_connections` | an alias for each server, for draws by weight | 8 bytes a server | n |
//! | `client_hash` | the first two choices of each of 65 536 rows | 256 KiB | 65 536 n |
//! | `maglev` | one choice of each of 65 537 entries | 128 KiB | 65 537 log n |

use crate::base::ids::ServerId;
use crate::base::settings::{Member, Policy};
use siphasher::sip::SipHasher13;
use std::hash::Hasher;
use std::hint::select_unpredictable;
use std::net::{IpAddr, SocketAddr};

/// Rows of `client_hash`; the upper bits of a key's hash are its row.
pub const ROWS: usize = 1 << 16;

/// Entries of `maglev`: the smallest prime above 2^16, over a hundred for each of 655 servers.
pub const ENTRIES: usize = 65_537;

/// The place of a member in its pool.
pub(crate) type Place = u16;

/// A member of a pool as the tables need it.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    weight: u16,
    /// The hash of its address with the seed: name, number and place in the file do not matter.
    hash: u64,
}

/// The contents of a table, by policy.
#[derive(Clone, Debug)]
enum Table {
    Turns(Box<[Place]>),
    Draws(Box<[Draw]>),
    Rows(Box<[[Place; 2]]>),
    Entries(Box<[Place]>),
}

/// A member below the threshold, its alias from there on.
#[derive(Clone, Copy, Debug)]
struct Draw {
    threshold: u32,
    alias: Place,
}

/// The table of one pool.
#[derive(Clone, Debug)]
pub struct ChoiceTable {
    candidates: Box<[Candidate]>,
    table: Table,
}

impl ChoiceTable {
    /// The table of a pool of those `members` that are no backups; `address_of` gives the address of a server. Takes up to
    /// some 30 ms for a hundred servers.
    pub fn new(
        (policy, seed): (Policy, u64),
        members: &[Member],
        address_of: impl Fn(ServerId) -> SocketAddr,
    ) -> ChoiceTable {
        let candidate = |member: &Member| Candidate {
            weight: member.weight.max(1),
            hash: hash_of_server(address_of(member.server), seed),
        };
        let primaries = members.iter().filter(|member| !member.backup);
        let candidates: Box<[Candidate]> = primaries.map(candidate).collect();
        let table = match policy {
            Policy::RoundRobin => Table::Turns(turns(&candidates)),
            Policy::LeastConnections => Table::Draws(draws(&candidates)),
            Policy::ClientHash => Table::Rows(rows(&candidates)),
            Policy::Maglev => Table::Entries(entries(&candidates)),
        };
        ChoiceTable { candidates, table }
    }

    /// The number of members it was made for.
    pub(crate) fn len(&self) -> usize {
        self.candidates.len()
    }

    /// The order of turns of `round_robin`; empty for other policies.
    #[inline]
    pub(crate) fn turns(&self) -> &[Place] {
        match &self.table {
            Table::Turns(turns) => turns,
            _ => &[],
        }
    }

    /// The member that a random number draws, by weight. `None` for policies other than `least_connections`.
    #[inline]
    pub(crate) fn draw(&self, random: u64) -> Option<Place> {
        let Table::Draws(draws) = &self.table else { return None };
        let place = scaled(random, draws.len());
        let draw = draws.get(place)?;
        // No branch: none can be predicted that chance decides.
        Some(select_unpredictable(
            (random as u32) < draw.threshold,
            place as Place,
            draw.alias,
        ))
    }

    /// The key's own member. `None` for policies that do not hash.
    #[inline]
    pub(crate) fn first(&self, key: u64) -> Option<Place> {
        match &self.table {
            Table::Rows(rows) => rows.get(row_of(key)).map(|[first, _]| *first),
            Table::Entries(entries) => entries.get(scaled(key, entries.len())).copied(),
            _ => None,
        }
    }

    /// The first of the key's members that `may_be`, among the few that the table has for it. `None` for policies that do not hash.
    pub(crate) fn first_of(&self, key: u64, may_be: impl Fn(Place) -> bool) -> Option<Place> {
        /// Entries of `maglev` that are tried, from the key's own on.
        const LOOKS: usize = 32;
        match &self.table {
            Table::Rows(rows) => rows.get(row_of(key))?.iter().copied().find(|place| may_be(*place)),
            Table::Entries(entries) => {
                let (before, after) = entries.split_at_checked(scaled(key, entries.len()))?;
                let looks = after.iter().chain(before).take(LOOKS);
                looks.copied().find(|place| may_be(*place))
            }
            _ => None,
        }
    }

    /// The first of all members, in the order of the key's row, that `may_be`. Takes time in proportion to the pool.
    #[cold]
    pub(crate) fn first_of_all(&self, key: u64, may_be: impl Fn(Place) -> bool) -> Option<Place> {
        let row = hash_of_row(row_of(key));
        let left = (0..).zip(&self.candidates).filter(|(place, _)| may_be(*place));
        let first = left.min_by(|(_, a), (_, b)| time(row, a).total_cmp(&time(row, b)))?;
        Some(first.0)
    }
}

/// The upper bits of a hash, as a number below `count`.
#[inline]
fn scaled(hash: u64, count: usize) -> usize {
    ((u128::from(hash) * count as u128) >> 64) as usize
}

#[inline]
fn row_of(key: u64) -> usize {
    (key >> (u64::BITS - ROWS.trailing_zeros())) as usize
}

fn hash_of_row(row: usize) -> u64 {
    mix((row as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// Weighted rendezvous hashing: row and server address seed a draw from the exponential distribution with the server's weight
/// as its rate; the smallest wins. Source: Schindelhauer and Schomaker, "Weighted
/// distributed hash tables", SPAA 2005 (the logarithmic method).
fn time(row: u64, candidate: &Candidate) -> f64 {
    -uniform(mix(row ^ candidate.hash)).ln() / f64::from(candidate.weight)
}

/// The first two members of each row; with a single member, that one twice.
fn rows(candidates: &[Candidate]) -> Box<[[Place; 2]]> {
    let Some(first) = candidates.first() else {
        return Box::default();
    };
    let are_equal = candidates.iter().all(|of| of.weight == first.weight);
    // Among equals the order of times is that of the draws, without a logarithm.
    let drawn = |row: u64, of: &Candidate| !(mix(row ^ of.hash) >> 12);
    let row = |row: usize| {
        let row = hash_of_row(row);
        match are_equal {
            true => first_two(candidates, u64::MAX, |of| drawn(row, of)),
            false => first_two(candidates, f64::INFINITY, |of| time(row, of)),
        }
    };
    (0..ROWS).map(row).collect()
}

/// The two members with the smallest order, which is below `most`; among equals the earlier.
#[inline]
fn first_two<T: PartialOrd + Copy>(candidates: &[Candidate], most: T, order: impl Fn(&Candidate) -> T) -> [Place; 2] {
    let mut two = [(most, 0); 2];
    for (place, of) in (0..).zip(candidates) {
        let order = order(of);
        if order < two[0].0 {
            two = [(order, place), two[0]];
        } else if order < two[1].0 {
            two[1] = (order, place);
        }
    }
    two.map(|(_, place)| place)
}

/// The order of turns of smooth weighted round robin, as nginx finds it one by one: each server's credit grows by its weight;
/// the server with the most is next, and pays the sum of all. Servers of one weight take turns, so that only one of
/// each weight has to be looked at.
fn turns(candidates: &[Candidate]) -> Box<[Place]> {
    let divisor = candidates
        .iter()
        .fold(0, |divisor, of| common_divisor(divisor, of.weight));
    let mut groups: Vec<Group> = Vec::new();
    for (place, of) in (0..).zip(candidates) {
        match groups
            .iter_mut()
            .find(|group| group.weight == i64::from(of.weight / divisor))
        {
            Some(group) => group.places.push(place),
            None => groups.push(Group {
                weight: i64::from(of.weight / divisor),
                places: vec![place],
                turns: 0,
            }),
        }
    }
    let sum: i64 = candidates.iter().map(|of| i64::from(of.weight / divisor)).sum();
    let mut order = Vec::with_capacity(sum as usize);
    for turn in 1..=sum {
        let next =
            (groups.iter_mut()).max_by_key(|group| (group.credit(turn, sum), std::cmp::Reverse(group.next_place())));
        if let Some(group) = next {
            order.push(group.next_place());
            group.turns += 1;
        }
    }
    order.into()
}

/// Servers of the same weight.
struct Group {
    weight: i64,
    places: Vec<Place>,
    /// Turns that they have had.
    turns: usize,
}

impl Group {
    fn next_place(&self) -> Place {
        self.places[self.turns % self.places.len()]
    }

    /// The credit of the one that is next.
    fn credit(&self, turn: i64, sum: i64) -> i64 {
        self.weight * turn - sum * (self.turns / self.places.len()) as i64
    }
}

fn common_divisor(a: u16, b: u16) -> u16 {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

/// The alias method: each place is shared by at most two servers. Source: Vose, "A linear algorithm for generating random
/// numbers with a given distribution", IEEE TSE 17 (1991).
fn draws(candidates: &[Candidate]) -> Box<[Draw]> {
    let sum: u64 = candidates.iter().map(|of| u64::from(of.weight)).sum();
    let count = candidates.len() as u64;
    // A place has `sum` parts.
    let mut parts: Vec<u64> = candidates.iter().map(|of| u64::from(of.weight) * count).collect();
    let whole = |alias| Draw {
        threshold: u32::MAX,
        alias,
    };
    let mut draws: Vec<Draw> = (0..candidates.len() as Place).map(whole).collect();
    let (mut small, mut large): (Vec<usize>, Vec<usize>) = (0..candidates.len()).partition(|&i| parts[i] < sum);
    while let (Some(less), Some(&more)) = (small.pop(), large.last()) {
        draws[less].threshold = ((parts[less] << 32) / sum) as u32;
        draws[less].alias = more as Place;
        parts[more] -= sum - parts[less];
        if parts[more] < sum {
            large.pop();
            small.push(more);
        }
    }
    draws.into()
}

/// Entries that a server looks at in one turn. Where hardly any is free, a long search finds another one for each entry that
/// is taken in another order, and moves further entries; a server that has found none in its turn has two in its next. With
/// 128 of them a hundred servers of one weight have shares within 1 % of each other.
const LOOKS_PER_TURN: u32 = 128;

/// Each server prefers the entries in an order of its own and takes them in turns, as often as its weight says. Source:
/// Eisenbud et al., "Maglev", NSDI 2016, section 3.4; weights as Katran has them. Here a turn is [bounded](LOOKS_PER_TURN).
fn entries(candidates: &[Candidate]) -> Box<[Place]> {
    let Some(most) = candidates.iter().map(|of| of.weight).max() else {
        return Box::default();
    };
    // The table depends on the order of the servers: by address, not by the file.
    let mut all: Vec<Preference> = (0..)
        .zip(candidates)
        .map(|(place, of)| Preference::new(place, of))
        .collect();
    all.sort_by_key(|of| of.hash);
    let mut table = vec![None; ENTRIES];
    let mut left = ENTRIES;
    while left > 0 {
        for of in &mut all {
            of.credit += u32::from(of.weight);
            let mut looks = LOOKS_PER_TURN;
            while of.credit >= u32::from(most) && looks > 0 && left > 0 {
                looks -= 1;
                let entry = &mut table[of.next_entry()];
                if entry.is_none() {
                    *entry = Some(of.place);
                    of.credit -= u32::from(most);
                    left -= 1;
                }
            }
        }
    }
    table.into_iter().flatten().collect()
}

/// The order in which a server prefers the entries, and how many it has to take.
struct Preference {
    place: Place,
    weight: u16,
    hash: u64,
    next: usize,
    step: usize,
    /// Its weight times its turns, without what it has taken.
    credit: u32,
}

impl Preference {
    fn new(place: Place, of: &Candidate) -> Self {
        let entries = ENTRIES as u64;
        Preference {
            place,
            weight: of.weight,
            hash: of.hash,
            next: (of.hash % entries) as usize,
            step: (mix(of.hash) % (entries - 1)) as usize + 1,
            credit: 0,
        }
    }

    /// The entry that it looks at next: each one once, as their number is a prime.
    fn next_entry(&mut self) -> usize {
        let entry = self.next;
        self.next = (entry + self.step) % ENTRIES;
        entry
    }
}

fn hash_of_server(server: SocketAddr, seed: u64) -> u64 {
    hash_of(server.ip(), server.port(), seed)
}

/// The hash of a prefix of an address. It depends on the configured seed and no secret, so that other engines, and this one after
/// a restart, choose the same. A client can pick its server by its address; `max_connections` protects the server.
#[inline(never)]
pub(crate) fn hash_of_client(client: IpAddr, (v4, v6): (u8, u8), seed: u64) -> u64 {
    let upper = |bits: u8, of: u8| u128::MAX.checked_shl(u32::from(of - bits.min(of))).unwrap_or(0);
    let client = match client {
        IpAddr::V4(ip) => IpAddr::V4((u32::from(ip) & upper(v4, 32) as u32).into()),
        IpAddr::V6(ip) => IpAddr::V6((u128::from(ip) & upper(v6, 128)).into()),
    };
    hash_of(client, 0, seed)
}

fn hash_of(ip: IpAddr, port: u16, seed: u64) -> u64 {
    let mut hasher = SipHasher13::new_with_keys(seed, 0);
    match ip {
        IpAddr::V4(ip) => hasher.write(&ip.octets()),
        IpAddr::V6(ip) => hasher.write(&ip.octets()),
    }
    hasher.write(&port.to_be_bytes());
    hasher.finish()
}

/// The hash of a key in a client's payload.
pub fn hash_of_said(bytes: &[u8]) -> u64 {
    SipHasher13::new().hash(bytes)
}

/// The finalizer of SplitMix64: each bit of the sum of two hashes changes every bit of the result with even chances.
/// Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
pub(crate) fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A number between 0 and 1, both excluded.
fn uniform(x: u64) -> f64 {
    ((x >> 12) as f64 + 0.5) / (1_u64 << 52) as f64
}

#[cfg(test)]
mod tests;
