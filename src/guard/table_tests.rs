//! The table against looking through the lists.

use super::*;
use netfcts::leg::mapped;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;

/// Numbers that are as good as random, and the same in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        let mixed = self.0 ^ self.0 >> 33;
        mixed.wrapping_mul(0xff51_afd7_ed55_8ccd) ^ mixed >> 29
    }

    fn below(&mut self, most: u64) -> u64 {
        self.next() % most
    }

    /// Mostly in a few places, so that prefixes contain each other.
    fn address(&mut self, is_v4: bool) -> IpAddr {
        let crowded = self.below(4) > 0;
        if is_v4 {
            let any = self.next() as u32;
            IpAddr::V4(if crowded { 0x0a00_0000 | any & 0xffff } else { any }.into())
        } else {
            let any = u128::from(self.next()) << 64 | u128::from(self.next());
            let place = 0x2001_0db8_0000_0000_0000_0000_0000_0000_u128;
            IpAddr::V6(
                if crowded {
                    place | any & 0xff00_0000_0000_0000_00ff
                } else {
                    any
                }
                .into(),
            )
        }
    }

    fn list(&mut self, count: usize) -> Vec<Entry> {
        let mut entries: Vec<Entry> = Vec::new();
        for _ in 0..count {
            let is_v4 = self.below(2) == 0;
            let address = self.address(is_v4);
            let longest = if is_v4 { 32 } else { 128 };
            let length = if self.below(50) == 0 {
                0
            } else {
                longest - self.below(u64::from(longest) / 2) as u8
            };
            let prefix = IpNet::new(address, length).expect("a length").trunc();
            let class = self.below(3) as u16;
            entries.push(Entry { prefix, class });
        }
        entries.sort_by_key(|entry| entry.prefix);
        entries.dedup_by_key(|entry| entry.prefix);
        entries
    }
}

/// The class of the longest prefix.
fn class_in(list: &[Entry], address: IpAddr) -> Option<u16> {
    let around = list.iter().filter(|entry| entry.prefix.contains(&address));
    around
        .max_by_key(|entry| entry.prefix.prefix_len())
        .map(|entry| entry.class)
}

/// A list for those questions that looking through it takes too long for: by length, the longest last, and by network.
struct ByLength(BTreeMap<u8, HashMap<IpAddr, u16>>);

impl ByLength {
    fn of(list: &[Entry]) -> Self {
        let mut lengths: BTreeMap<u8, HashMap<IpAddr, u16>> = BTreeMap::new();
        for Entry { prefix, class } in list {
            // Prefixes of one length are of one family each in a map, as the networks are.
            let of_length = lengths.entry(prefix.prefix_len()).or_default();
            of_length.insert(prefix.network(), *class);
        }
        ByLength(lengths)
    }

    /// The class of the longest prefix.
    fn class_of(&self, address: IpAddr) -> Option<u16> {
        let lengths = self.0.iter().rev();
        lengths
            .filter_map(|(length, of_length)| Some((of_length, IpNet::new(address, *length).ok()?.network())))
            .find_map(|(of_length, network)| of_length.get(&network).copied())
    }
}

fn source(entries: &[Entry]) -> Source {
    Source {
        entries: entries.to_vec(),
        classes: 3,
    }
}

/// 13 tables with 100 000 questions each, about addresses at both edges of prefixes and anywhere. The last three have as many
/// prefixes as real lists.
#[test]
fn a_million_questions_are_answered_as_by_looking_through_the_lists() {
    let mut random = Random(7);
    let counts = [0, 1, 3, 9, 40, 100, 100, 200, 200, 300, 20_000, 40_000, 90_000];
    for (round, count) in counts.into_iter().enumerate() {
        let lists = [random.list(count), random.list(count / 3)];
        let prefixes: Vec<IpNet> = random.list(5).iter().map(|entry| entry.prefix).collect();
        let asked = [
            (vec![], vec![(0, None)]),
            (vec![], vec![(1, Some(2)), (0, Some(1))]),
            (prefixes.clone(), vec![]),
            (prefixes.clone(), vec![(1, None)]),
        ];
        let asked = asked.map(|(prefixes, lists)| Asked { prefixes, lists });
        let table = ClientTable::new(&lists.each_ref().map(|list| source(list)), &asked).expect("a table");
        let is_large = count >= 20_000;
        let v4_prefixes = lists[0].iter().filter(|entry| entry.prefix.addr().is_ipv4()).count();
        assert_eq!(is_large, v4_prefixes >= 5_000, "{v4_prefixes} in round {round}");
        let by_length = lists.each_ref().map(|list| ByLength::of(list));
        let mut sets = Vec::new();
        for question in 0..100_000 {
            let edge = lists[0].get(random.below(lists[0].len().max(1) as u64) as usize);
            let address = match (random.below(4), edge) {
                (0, Some(entry)) => entry.prefix.network(),
                (1, Some(entry)) => entry.prefix.broadcast(),
                (2, Some(entry)) => {
                    let before = mapped(entry.prefix.network()).wrapping_sub(1);
                    netfcts::leg::unmapped(before)
                }
                (kind, _) => random.address(kind == 3),
            };
            let set = table.set_of(mapped(address));
            let looked_through = || lists.each_ref().map(|list| class_in(list, address));
            let classes = if is_large {
                by_length.each_ref().map(|list| list.class_of(address))
            } else {
                looked_through()
            };
            if is_large && question % 1_000 == 0 {
                assert_eq!(classes, looked_through(), "{address}");
            }
            let is_named = prefixes.iter().any(|prefix| prefix.contains(&address));
            let expected = [
                classes[0].is_some(),
                classes[1] == Some(2) || classes[0] == Some(1),
                is_named,
                is_named || classes[1].is_some(),
            ];
            let answered = [0, 1, 2, 3].map(|condition| table.meets(set, condition));
            assert_eq!(answered, expected, "{address} in round {round}");
            let mut places = (0..2).filter(|list| classes[usize::from(*list)].is_some());
            let lists = Lists {
                first: places.next().unwrap_or(2),
                others: places.collect(),
            };
            assert_eq!(table.lists_of(set), Some(&lists), "{address} in round {round}");
            sets.push((mapped(address), set));
        }
        assert_found_together(&table, &sets);
    }
}

/// Many addresses are found together as one by one.
fn assert_found_together(table: &ClientTable, sets: &[(u128, u16)]) {
    for some in sets.chunks(BURST) {
        let mut found = [None; BURST];
        table.look_ahead(some.iter().map(|(address, _)| *address).zip(&mut found));
        for ((address, set), found) in some.iter().zip(found) {
            assert_eq!(found, Some(*set), "{address:x}");
        }
    }
}

#[test]
fn prefixes_at_the_ends_of_the_address_space() {
    let entry = |text: &str| Entry {
        prefix: text.parse().expect("a prefix"),
        class: 0,
    };
    let entries = [
        "0.0.0.0/32",
        "255.255.255.255/32",
        "::/128",
        "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/128",
    ]
    .map(entry);
    let asked = [Asked {
        prefixes: vec![],
        lists: vec![(0, None)],
    }];
    let sources = [Source {
        entries: entries.to_vec(),
        classes: 1,
    }];
    let table = ClientTable::new(&sources, &asked).expect("a table");
    let is_in = |text: &str| table.meets(table.set_of(mapped(text.parse().expect("an address"))), 0);
    assert!(entries.iter().all(|entry| is_in(&entry.prefix.addr().to_string())));
    assert!(
        [
            "0.0.0.1",
            "255.255.255.254",
            "::1",
            "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe"
        ]
        .iter()
        .all(|text| !is_in(text))
    );
    // Both families whole.
    let all = [entry("0.0.0.0/0"), entry("::/0")];
    let table = ClientTable::new(
        &[Source {
            entries: all.to_vec(),
            classes: 1,
        }],
        &asked,
    )
    .expect("a table");
    assert!(table.meets(table.set_of(0), 0) && table.meets(table.set_of(u128::MAX), 0));
    assert!(table.meets(table.set_of(0xffff_0000_0000), 0) && table.meets(table.set_of(0xffff_ffff_ffff), 0));
}

#[test]
fn crowded_prefixes_stay_small() {
    // Every second host of a /15.
    let hosts = (0..1 << 16).map(|n| Entry {
        prefix: IpNet::new(IpAddr::V4((0x0a00_0000 + 2 * n).into()), 32).expect("a length"),
        class: 0,
    });
    let hosts: Vec<Entry> = hosts.collect();
    let asked = [Asked {
        prefixes: vec![],
        lists: vec![(0, None)],
    }];
    let table = ClientTable::new(
        &[Source {
            entries: hosts.clone(),
            classes: 1,
        }],
        &asked,
    )
    .expect("a table");
    // Leaves of 64 bytes for four ranges each, and a slot for each leaf.
    let bytes = table.memory();
    assert!(bytes < 131_072 * 18, "{bytes}");
    assert!(
        hosts
            .iter()
            .all(|host| table.meets(table.set_of(mapped(host.prefix.addr())), 0))
    );
}

/// So many dependent reads does a look-up take at most among hosts that lie together in places at random.
const STEPS: usize = 8;

#[test]
fn hosts_beside_each_other_in_many_networks_take_few_places_and_few_steps() {
    let mut random = Random(11);
    // Five hosts that do not touch each other, in each of 200 000 networks of /64.
    let networks: Vec<u128> = (0..200_000)
        .map(|_| u128::from(0x2000 << 48 | random.next() >> 3) << 64)
        .collect();
    let hosts: HashSet<u128> = networks
        .iter()
        .flat_map(|network| (1..=5).map(move |host| network | host << 4))
        .collect();
    let entries: Vec<Entry> = hosts
        .iter()
        .map(|host| Entry {
            prefix: IpNet::new(IpAddr::V6((*host).into()), 128).expect("a length"),
            class: 0,
        })
        .collect();
    assert!(entries.len() > 999_000);
    let asked = [Asked {
        prefixes: vec![],
        lists: vec![(0, None)],
    }];
    let table = ClientTable::new(&[source(&entries)], &asked).expect("a table");
    let bytes = table.memory() / entries.len();
    assert!((36..60).contains(&bytes), "{bytes} bytes a prefix");
    let mut sets = Vec::new();
    for network in networks.iter().step_by(7) {
        let around = (0..7).flat_map(|host| {
            [
                network | host << 4,
                network | host << 4 | 1,
                (network | host << 4).wrapping_sub(1),
            ]
        });
        let elsewhere = [
            network ^ 1 << 63,
            network ^ 1 << 64,
            network | 1 << 40,
            network | 0xff,
            !network,
        ];
        for address in around.chain(elsewhere) {
            let set = table.set_of(address);
            assert_eq!(table.meets(set, 0), hosts.contains(&address), "{address:x}");
            let mut walk = table.v6.begin();
            let steps = (1..).find(|_| table.v6.go_on(&mut walk, address).is_some());
            assert!(steps.is_some_and(|steps| steps <= STEPS), "{steps:?} for {address:x}");
            sets.push((address, set));
        }
    }
    assert_found_together(&table, &sets);
}
