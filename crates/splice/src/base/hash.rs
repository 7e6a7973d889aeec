//! Keyed hashes of end points whose chance of a collision is proven, at three multiplications over IPv4.
//!
//! [`PairHash`] is the pair-multiply-shift of Thorup, "High Speed Hashing for Integers and Strings" (arXiv:1504.06804,
//! section 3): of two words x and y it makes ((a + y)(b + x) + c mod 2^128) >> 64, with secret a, b and c of 128 bits. For two
//! inputs, say with x ≠ x', the difference of the sums is b(y − y') + a(x − x') and a constant. a(x − x') mod 2^128 is an even
//! chance among the multiples of the largest power of two in x − x', which is at most 2^63, so bits 63 to 127 of the difference
//! are even chances, and with c those of either sum are, too: the two hashes of any two inputs are independent, each of
//! 2^64 values as likely as any other.
//!
//! [`FlowHash`] gives it the two addresses and the ports of an IPv4 flow as they are. Those of IPv6 are first compressed to
//! 128 bits by NH (Black, Halevi, Krawczyk, Krovetz, Rogaway, "UMAC", CRYPTO '99, theorem 4.2), under which two inputs
//! collide with a chance of 2^-64; and one collides with a given IPv4 flow with at most 2^-63, as xy = n has at most one
//! solution y for each x ≠ 0.
//!
//! So of any two flows, chosen by somebody who does not know the secret, the hashes are independent but for 2^-63: two of them
//! have the same one of n lines of a table with a chance of 1/n (and 2^-32 for the scaling). That says nothing about
//! somebody who sees hashes, who could compute the key from a few of them: no hash may leave the core, in a packet or by
//! what is done with a packet. Where that cannot be had, a hash has a key of its own (see
//! [`FlowTable::source_hash`](crate::session::table::FlowTable::source_hash)).
//!
//! The words of the keys are SipHash-2-4 of a counter under the secret, so that for all this the secret may be short: to tell
//! them from random ones is to break SipHash as a PRF.

use netfcts::FourTuple;
use netfcts::leg::are_mapped;
use siphasher::sip::SipHasher24;

/// Words of a key, from a secret.
pub struct KeyWords {
    hasher: SipHasher24,
    counter: u64,
}

impl KeyWords {
    /// Those of `secret`, in the same order each time.
    pub fn new(secret: [u64; 2]) -> Self {
        KeyWords {
            hasher: SipHasher24::new_with_keys(secret[0], secret[1]),
            counter: 0,
        }
    }

    fn word(&mut self) -> u64 {
        self.counter += 1;
        self.hasher.hash(&self.counter.to_le_bytes())
    }

    fn wide(&mut self) -> u128 {
        u128::from(self.word()) << 64 | u128::from(self.word())
    }
}

/// A hash of two words of 64 bits, pairwise independent.
#[derive(Clone, Debug)]
pub struct PairHash {
    factors: [u128; 2],
    summand: u128,
}

impl PairHash {
    /// With the next words of a key.
    pub fn new(words: &mut KeyWords) -> Self {
        PairHash {
            factors: [words.wide(), words.wide()],
            summand: words.wide(),
        }
    }

    /// The hash of `first` and `second`.
    #[inline]
    pub fn of(&self, first: u64, second: u64) -> u64 {
        let [a, b] = self.factors;
        let product = a
            .wrapping_add(u128::from(second))
            .wrapping_mul(b.wrapping_add(u128::from(first)));
        (product.wrapping_add(self.summand) >> 64) as u64
    }

    /// The hash of 128 bits.
    #[inline]
    pub fn of_wide(&self, value: u128) -> u64 {
        self.of(value as u64, (value >> 64) as u64)
    }
}

/// A hash of the addresses and ports of a flow.
#[derive(Clone, Debug)]
pub struct FlowHash {
    compression: [u64; 6],
    pair: PairHash,
}

impl FlowHash {
    /// With the next words of a key.
    pub fn new(words: &mut KeyWords) -> Self {
        FlowHash {
            compression: std::array::from_fn(|_| words.word()),
            pair: PairHash::new(words),
        }
    }

    /// The hash of `key`.
    #[inline]
    pub fn of(&self, key: &FourTuple) -> u64 {
        if are_mapped(key.remote, key.local) {
            return self.of_mapped(key);
        }
        self.pair.of_wide(self.compressed(key, ports_of(key)))
    }

    /// The same of a key that is known to have two addresses of IPv4.
    #[inline(always)]
    pub fn of_mapped(&self, key: &FourTuple) -> u64 {
        debug_assert!(are_mapped(key.remote, key.local), "another version of IP");
        let addresses = (key.remote as u64) << 32 | u64::from(key.local as u32);
        self.pair.of(addresses, ports_of(key))
    }

    /// NH of five words, with nothing for the sixth.
    #[inline]
    fn compressed(&self, key: &FourTuple, ports: u64) -> u128 {
        let k = &self.compression;
        let product = |first: u64, second: u64| u128::from(first) * u128::from(second);
        let halves = |value: u128, at: usize| {
            product(
                (value as u64).wrapping_add(k[at]),
                ((value >> 64) as u64).wrapping_add(k[at + 1]),
            )
        };
        halves(key.remote, 0)
            .wrapping_add(halves(key.local, 2))
            .wrapping_add(product(ports.wrapping_add(k[4]), k[5]))
    }
}

#[inline(always)]
fn ports_of(key: &FourTuple) -> u64 {
    u64::from(key.remote_port) << 16 | u64::from(key.local_port)
}

#[cfg(test)]
mod tests {
    use super::*;

    const V4: FourTuple = FourTuple {
        remote: 0xffff_0a00_0001,
        local: 0xffff_0a00_0009,
        remote_port: 40_000,
        local_port: 80,
    };

    const V6: FourTuple = FourTuple {
        remote: 0xfd00 << 112 | 1,
        local: 0xfd00 << 112 | 9,
        ..V4
    };

    fn hash_of(secret: u64) -> FlowHash {
        FlowHash::new(&mut KeyWords::new([secret, 7]))
    }

    /// All keys that differ from `base` in one bit; over IPv4 of what is not the prefix.
    fn neighbours(base: FourTuple) -> Vec<FourTuple> {
        let bits = if are_mapped(base.remote, base.local) { 32 } else { 128 };
        let mut all = vec![base];
        for bit in 0..bits {
            let (remote, local) = (base.remote ^ 1 << bit, base.local ^ 1 << bit);
            all.extend([FourTuple { remote, ..base }, FourTuple { local, ..base }]);
        }
        for bit in 0..16 {
            let (remote_port, local_port) = (base.remote_port ^ 1 << bit, base.local_port ^ 1 << bit);
            all.extend([FourTuple { remote_port, ..base }, FourTuple { local_port, ..base }]);
        }
        all
    }

    #[test]
    fn every_bit_of_a_flow_counts_and_both_versions_are_told_apart() {
        let all = [neighbours(V4), neighbours(V6)].concat();
        let hash = hash_of(1);
        let mut hashes: Vec<u64> = all.iter().map(|key| hash.of(key)).collect();
        hashes.sort_unstable();
        hashes.dedup();
        assert_eq!(hashes.len(), all.len());
    }

    #[test]
    fn an_address_for_another_is_another_flow() {
        for base in [V4, V6] {
            let swapped = FourTuple {
                remote: base.local,
                local: base.remote,
                ..base
            };
            assert_ne!(hash_of(1).of(&swapped), hash_of(1).of(&base));
        }
    }

    /// The bound itself, over keys: of 1 024 lines two flows share one by a chance of 1/1024, however alike they are, and
    /// whichever bits of the hash name the line.
    #[test]
    fn flows_that_differ_little_collide_no_more_than_by_chance() {
        const KEYS: u64 = 4_096;
        let hashes: Vec<FlowHash> = (0..KEYS).map(hash_of).collect();
        for base in [V4, V6] {
            for shift in [0, 16, 32, 54] {
                let line = |hash: u64| hash >> shift & 1023;
                let others = &neighbours(base)[1..];
                let collisions = |other: &FourTuple| {
                    let shares = |hash: &&FlowHash| line(hash.of(other)) == line(hash.of(&base));
                    hashes.iter().filter(shares).count()
                };
                // 4 expected of each; a sum of Poisson variables is within five standard deviations of its mean.
                let each: Vec<usize> = others.iter().map(collisions).collect();
                let (sum, mean) = (each.iter().sum::<usize>() as f64, 4.0 * others.len() as f64);
                assert!((sum - mean).abs() < 5.0 * mean.sqrt(), "{shift}: {sum} of {mean}");
                assert!(each.iter().all(|&count| count <= 20), "{shift}: {each:?}");
            }
        }
    }

    #[test]
    fn the_pair_hash_is_what_the_formula_says() {
        let hash = PairHash {
            factors: [3 << 64, 5],
            summand: 1 << 64,
        };
        // (3·2^64 + 4)(5 + 2) + 2^64 = 22·2^64 + 28.
        assert_eq!(hash.of(2, 4), 22);
    }
}
