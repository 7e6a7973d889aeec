//! Receive-side scaling: the Toeplitz hash in software, and how a port spreads TCP over its queues with it.
//!
//! The hash is linear over exclusive or, which is what steering lives on: the hash of a tuple is the xor of what each of
//! its bytes adds, so that a source port can be chosen for the queue that the answer is to meet.
//!
//! ```
//! use e2d2::rss::{DEFAULT_KEY, Toeplitz};
//!
//! let toeplitz = Toeplitz::new(&DEFAULT_KEY);
//! let (server, ours) = ([10, 0, 0, 1], [10, 0, 0, 2]);
//! let base = toeplitz.tcp4(server, ours, 443, 0);
//! assert_eq!(toeplitz.tcp4(server, ours, 443, 50_000), base ^ toeplitz.destination_port4(50_000));
//! ```
//!
//! What lives here: keys, the hash, the table of queues. What does not: who sets them on a device (`native`), and who owns
//! which connection (netfcts).

use std::fmt;

/// Bytes that are hashed of a TCP packet over IPv4: both addresses and both ports.
const INPUT4: usize = 12;

/// Bytes that are hashed of a TCP packet over IPv6.
const INPUT6: usize = 36;

/// The key that every steering plan assumes unless another is configured: the one of Microsoft's RSS verification suite,
/// which is ixgbe's default as well.
pub const DEFAULT_KEY: [u8; 40] = [
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca, 0x2b,
    0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac,
    0x01, 0xfa,
];

/// The Toeplitz hash with one key: a table look-up for each byte of the input.
///
/// Addresses are in network order, ports are numbers. The 36 KiB of tables are allocated once, when the key is known.
///
/// Source: Microsoft, "RSS Hashing Functions"; DPDK's `rte_softrss`, against which it is tested.
#[derive(Clone)]
pub struct Toeplitz {
    /// What a byte of each value adds to the hash at each place of the input.
    places: Box<[[u32; 256]; INPUT6]>,
}

impl Toeplitz {
    /// The hash with `key`, of 40 bytes (most devices) or 52 (Intel's 700 series), of which TCP needs the first 40. A
    /// shorter key is repeated, as ports of this crate do when they set it; an empty one hashes everything to 0.
    pub fn new(key: &[u8]) -> Self {
        let byte = |index: usize| match key.len() {
            0 => 0,
            length => u64::from(key[index % length]),
        };
        let mut places = Box::new([[0; 256]; INPUT6]);
        for (place, table) in places.iter_mut().enumerate() {
            // The 40 bits of the key that the eight bits of this byte slide over.
            let window = (place..place + 5).fold(0, |window, index| window << 8 | byte(index));
            for (value, sum) in table.iter_mut().enumerate() {
                *sum = (0..8)
                    .filter(|bit| value >> (7 - bit) & 1 == 1)
                    .fold(0, |sum, bit| sum ^ (window >> (8 - bit)) as u32);
            }
        }
        Self { places }
    }

    /// The hash of a TCP packet over IPv4 from `src`, port `sport`, to `dst`, port `dport`.
    #[inline]
    pub fn tcp4(&self, src: [u8; 4], dst: [u8; 4], sport: u16, dport: u16) -> u32 {
        self.sum(0, &src) ^ self.sum(4, &dst) ^ self.sum(8, &sport.to_be_bytes()) ^ self.destination_port4(dport)
    }

    /// The hash of a TCP packet over IPv6 from `src`, port `sport`, to `dst`, port `dport`.
    #[inline]
    pub fn tcp6(&self, src: [u8; 16], dst: [u8; 16], sport: u16, dport: u16) -> u32 {
        self.sum(0, &src) ^ self.sum(16, &dst) ^ self.sum(32, &sport.to_be_bytes()) ^ self.destination_port6(dport)
    }

    /// What the destination port alone adds to the hash of a packet over IPv4.
    #[inline]
    pub fn destination_port4(&self, port: u16) -> u32 {
        self.sum(INPUT4 - 2, &port.to_be_bytes())
    }

    /// What the destination port alone adds to the hash of a packet over IPv6.
    #[inline]
    pub fn destination_port6(&self, port: u16) -> u32 {
        self.sum(INPUT6 - 2, &port.to_be_bytes())
    }

    /// What `bytes` add at `first` and the places behind it. The callers' sums of both are within the input.
    #[inline]
    fn sum(&self, first: usize, bytes: &[u8]) -> u32 {
        let places = self.places[first..].iter().zip(bytes);
        places.fold(0, |sum, (table, byte)| sum ^ table[usize::from(*byte)])
    }
}

/// Without the tables.
impl fmt::Debug for Toeplitz {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Toeplitz").finish_non_exhaustive()
    }
}

/// How a port spreads received TCP packets over its queues: queue = `reta[toeplitz(key, tuple) % reta.len()]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rss {
    /// The key, as long as the device wants it: 40 or 52 bytes.
    pub key: Vec<u8>,
    /// The redirection table. Not empty; its length is a power of two.
    pub reta: Vec<u16>,
    /// Whether TCP over IPv4 is hashed by addresses and ports; else it is all received at queue 0.
    pub tcp_ipv4: bool,
    /// Whether TCP over IPv6 is; else it is all received at queue 0.
    pub tcp_ipv6: bool,
}

impl Rss {
    /// A port that hashes TCP over IPv4 and IPv6.
    pub fn new(key: &[u8], reta: Vec<u16>) -> Self {
        Self {
            key: key.to_vec(),
            reta,
            tcp_ipv4: true,
            tcp_ipv6: true,
        }
    }

    /// The queue at which packets with this hash arrive.
    pub fn queue_of(&self, hash: u32) -> u16 {
        let entries = self.reta.len().max(1);
        self.reta.get(hash as usize % entries).copied().unwrap_or(0)
    }

    /// How many entries of the table lead to each of the queues `0..queues`.
    pub fn shares(&self, queues: u16) -> Vec<usize> {
        let mut shares = vec![0; usize::from(queues)];
        for queue in &self.reta {
            if let Some(share) = shares.get_mut(usize::from(*queue)) {
                *share += 1;
            }
        }
        shares
    }
}

/// The redirection table that spreads over `queues` as evenly as `entries` of them can: the queues in turn.
pub fn even_reta(entries: u16, queues: u16) -> Vec<u16> {
    (0..entries).map(|entry| entry % queues.max(1)).collect()
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use proptest::prelude::*;

    use super::*;

    /// Source, port, destination, port, hash: Microsoft, "Verifying the RSS Hash Calculation".
    const VECTORS4: [(&str, u16, &str, u16, u32); 5] = [
        ("66.9.149.187", 2794, "161.142.100.80", 1766, 0x51cc_c178),
        ("199.92.111.2", 14230, "65.69.140.83", 4739, 0xc626_b0ea),
        ("24.19.198.95", 12898, "12.22.207.184", 38024, 0x5c2b_394a),
        ("38.27.205.30", 48228, "209.142.163.6", 2217, 0xafc7_327f),
        ("153.39.163.191", 44251, "202.188.127.2", 1303, 0x10e8_28a2),
    ];
    const VECTORS6: [(&str, u16, &str, u16, u32); 3] = [
        ("3ffe:2501:200:1fff::7", 2794, "3ffe:2501:200:3::1", 1766, 0x4020_7d3d),
        ("3ffe:501:8::260:97ff:fe40:efab", 14230, "ff02::1", 4739, 0xdde5_1bbf),
        (
            "3ffe:1900:4545:3:200:f8ff:fe21:67cf",
            44251,
            "fe80::200:f8ff:fe21:67cf",
            38024,
            0x02d1_feef,
        ),
    ];

    fn v4(text: &str) -> [u8; 4] {
        text.parse::<Ipv4Addr>().expect("an address").octets()
    }

    fn v6(text: &str) -> [u8; 16] {
        text.parse::<Ipv6Addr>().expect("an address").octets()
    }

    /// Bit by bit, as the definition has it.
    fn by_definition(key: &[u8], input: &[u8]) -> u32 {
        let bit = |bytes: &[u8], index: usize| bytes[index / 8] >> (7 - index % 8) & 1;
        let mut hash = 0;
        for index in (0..input.len() * 8).filter(|&index| bit(input, index) == 1) {
            hash ^= (index..index + 32).fold(0, |window, at| window << 1 | u32::from(bit(key, at)));
        }
        hash
    }

    #[test]
    fn microsofts_vectors_come_out() {
        let mut long = DEFAULT_KEY.to_vec();
        long.extend([0xab; 12]);
        for key in [&DEFAULT_KEY[..], &long] {
            let toeplitz = Toeplitz::new(key);
            for (src, sport, dst, dport, hash) in VECTORS4 {
                assert_eq!(toeplitz.tcp4(v4(src), v4(dst), sport, dport), hash, "{src}");
            }
            for (src, sport, dst, dport, hash) in VECTORS6 {
                assert_eq!(toeplitz.tcp6(v6(src), v6(dst), sport, dport), hash, "{src}");
            }
        }
    }

    #[test]
    fn short_and_empty_keys_are_no_trouble() {
        let doubled: Vec<u8> = DEFAULT_KEY[..20].repeat(2);
        let (short, whole) = (Toeplitz::new(&DEFAULT_KEY[..20]), Toeplitz::new(&doubled));
        assert_eq!(short.tcp4([1; 4], [2; 4], 3, 4), whole.tcp4([1; 4], [2; 4], 3, 4));
        assert_eq!(Toeplitz::new(&[]).tcp6([1; 16], [2; 16], 3, 4), 0);
    }

    #[test]
    fn every_queue_has_its_share_of_an_even_table() {
        for (entries, queues, shares) in [
            (128, 2, vec![64, 64]),
            (128, 3, vec![43, 43, 42]),
            (512, 8, vec![64; 8]),
        ] {
            let rss = Rss::new(&DEFAULT_KEY, even_reta(entries, queues));
            assert_eq!(rss.shares(queues), shares);
            assert_eq!(rss.queue_of(u32::from(entries) + 1), 1);
        }
    }

    proptest! {
        #[test]
        fn tables_compute_what_the_definition_says(
            key in prop_oneof![prop::collection::vec(any::<u8>(), 40), prop::collection::vec(any::<u8>(), 52)],
            src in any::<[u8; 16]>(), dst in any::<[u8; 16]>(), sport: u16, dport: u16,
        ) {
            let toeplitz = Toeplitz::new(&key);
            let ports = [sport.to_be_bytes(), dport.to_be_bytes()].concat();
            let (short_src, short_dst) = ([src[0], src[1], src[2], src[3]], [dst[0], dst[1], dst[2], dst[3]]);
            let input = [&short_src[..], &short_dst, &ports].concat();
            prop_assert_eq!(toeplitz.tcp4(short_src, short_dst, sport, dport), by_definition(&key, &input));
            let input = [&src[..], &dst, &ports].concat();
            prop_assert_eq!(toeplitz.tcp6(src, dst, sport, dport), by_definition(&key, &input));
        }

        #[test]
        fn the_destination_port_adds_by_xor(
            key in prop::collection::vec(any::<u8>(), 40), a: u16, b: u16, sport: u16, src: [u8; 16], dst: [u8; 16],
        ) {
            let toeplitz = Toeplitz::new(&key);
            prop_assert_eq!(toeplitz.destination_port4(a) ^ toeplitz.destination_port4(b), toeplitz.destination_port4(a ^ b));
            let base = toeplitz.tcp6(src, dst, sport, 0);
            prop_assert_eq!(toeplitz.tcp6(src, dst, sport, a), base ^ toeplitz.destination_port6(a));
            let (src, dst) = ([src[0], src[1], src[2], src[3]], [dst[4], dst[5], dst[6], dst[7]]);
            let base = toeplitz.tcp4(src, dst, sport, 0);
            prop_assert_eq!(toeplitz.tcp4(src, dst, sport, a), base ^ toeplitz.destination_port4(a));
        }
    }
}
