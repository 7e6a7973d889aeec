//! Prefixes as the lists of registries and of those who collect attackers have them, and addresses at random.

#![allow(dead_code, reason = "a module of three benches, each of which uses a part")]

use std::collections::BTreeSet;
use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::{fs, io};

/// Numbers that are as good as random, and the same in every run.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, most: usize) -> usize {
        ((u128::from(self.next()) * most as u128) >> 64) as usize
    }
}

pub(crate) struct Prefixes {
    /// First address and length.
    v4: Vec<(u32, u8)>,
    v6: Vec<(u128, u8)>,
}

/// The blocks that registries give addresses out of.
const REGISTRIES: [u128; 6] = [0x2001, 0x2400, 0x2600, 0x2800, 0x2a00, 0x2c00];

/// One of the addresses that hosts can have: neither loopback nor multicast, whose frames no core takes.
fn host(any: u32) -> u32 {
    match any % 0xdf00_0000 + 0x0100_0000 {
        loopback if loopback >> 24 == 127 => loopback - (1 << 24),
        other => other,
    }
}

impl Prefixes {
    /// So many of each family: IPv4 mostly /24, some larger and some single hosts; IPv6 /32 to /48 out of registries' blocks.
    pub(crate) fn new(count: usize) -> Self {
        let mut random = Random::new(7);
        let (mut v4, mut v6) = (BTreeSet::new(), BTreeSet::new());
        while v4.len() < count {
            let length = [24, 24, 24, 24, 24, 22, 20, 32, 32, 28][random.below(10)];
            let any = host(random.next() as u32);
            v4.insert((any & u32::MAX << (32 - length), length as u8));
        }
        while v6.len() < count {
            let length = [32, 36, 40, 44, 48, 48, 48, 48][random.below(8)];
            let block = REGISTRIES[random.below(6)] << 112;
            // Twelve bits of the block are the registry's; half of the prefixes are in a sixteenth of what it gives out.
            let below = (u128::from(random.next()) << 64 | u128::from(random.next()))
                >> if random.next() & 1 == 0 { 12 } else { 16 };
            v6.insert(((block | below) & u128::MAX << (128 - length), length as u8));
        }
        Prefixes {
            v4: v4.into_iter().collect(),
            v6: v6.into_iter().collect(),
        }
    }

    /// As a file has them.
    pub(crate) fn text(&self) -> String {
        let mut text = String::from("192.0.2.0/24 block\n");
        for (first, length) in &self.v4 {
            let _ = writeln!(text, "{}/{length} seen", Ipv4Addr::from(*first));
        }
        for (first, length) in &self.v6 {
            let _ = writeln!(text, "{}/{length} seen", Ipv6Addr::from(*first));
        }
        text
    }

    /// Writes a file of them in this folder, without prefixes that clients of the benches have, and says where: for as long as the
    /// process runs.
    pub(crate) fn file_without_clients(&self, folder: &Path) -> io::Result<&'static str> {
        let file = folder.join("list.txt");
        let text = self.text();
        let others = text.lines().filter(|line| !line.starts_with("10."));
        fs::write(&file, others.map(|line| format!("{line}\n")).collect::<String>())?;
        Ok(Box::leak(file.display().to_string().into_boxed_str()))
    }

    /// One of a prefix, or anyone else.
    pub(crate) fn address(&self, is_v6: bool, random: &mut Random) -> IpAddr {
        let is_listed = random.next() & 1 == 0;
        if is_v6 {
            let any = u128::from(random.next()) << 64 | u128::from(random.next());
            let (first, length) = if is_listed {
                self.v6[random.below(self.v6.len())]
            } else {
                (REGISTRIES[random.below(6)] << 112, 12)
            };
            return IpAddr::V6((first | any >> length).into());
        }
        let any = random.next() as u32;
        let (first, length) = if is_listed {
            self.v4[random.below(self.v4.len())]
        } else {
            (host(any), 32)
        };
        IpAddr::V4((first | any.checked_shr(length.into()).unwrap_or(0)).into())
    }
}
