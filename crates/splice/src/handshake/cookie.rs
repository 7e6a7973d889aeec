//! SYN cookies: the half-open connection lives in our initial sequence number (RFC 4987 3.6).
//!
//! ```text
//!    31   30 29      26  25  24    22 21                     0
//!   ┌───────┬──────────┬────┬────────┬────────────────────────┐
//!   │ slot  │  window  │SACK│  MSS   │  MAC: SipHash-2-4 of   │
//!   │ mod 4 │  scale   │    │ class  │  tuple, ISN, slot, bits│
//!   └───────┴──────────┴────┴────────┴────────────────────────┘
//! ```
//!
//! The upper ten bits are sent exclusive-ored with as many of the MAC: cookies of one slot are spread over all numbers. Else
//! those that clients of one kind get would lie within 2²² of each other, and late segments of a connection before would be
//! in the window of the next from the same port.
//!
//! A slot lasts 8 s and two are valid, so that a random acknowledgement number passes with probability 2⁻²² per live
//! slot and a genuine one lives for 8 to 16 s. Whether timestamps were agreed needs no bit: RFC 7323 3.2 makes the
//! client send them on every segment once they are. Pure: time and keys are arguments.
//!
//! Budget: one SipHash, of 22 octets over IPv4 and 46 over IPv6: what does not fill a word goes with the length, and costs
//! nothing. Source: `benches/core`.

pub use crate::session::options::Agreed;
use e2d2::time::Instant;
use netfcts::FourTuple;
use netfcts::leg::is_mapped;
use netfcts::seq::SeqNum;
use siphasher::sip::SipHasher24;

/// How long one slot lasts.
pub const SLOT: std::time::Duration = std::time::Duration::from_secs(8);

/// The longest life of a cookie: its own slot and the next.
pub const LIFETIME: std::time::Duration = std::time::Duration::from_secs(16);

/// The MSS values a cookie can remember; a client's MSS is rounded down to one of them. They are what common links
/// leave: IPv4 minimum, IPv6 minimum (1 280 − 60), tunnels, Ethernet under IPv6 and IPv4, jumbo frames.
pub const MSS_CLASSES: [u16; 8] = [256, 536, 1220, 1340, 1400, 1440, 1460, 8940];

const NO_SCALE: u32 = 15;
const MAC_MASK: u32 = (1 << 22) - 1;

/// A valid cookie, opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// What the SYN-ACK agreed to.
    pub agreed: Agreed,
    /// The slot in which it was baked; tells which promise the SYN-ACK made.
    pub slot: u64,
}

/// Bakes and checks cookies with one secret key.
#[derive(Clone)]
pub struct CookieJar {
    key: [u64; 2],
}

impl CookieJar {
    /// A jar with the secret `key`, which should come from the system's random generator at start.
    pub const fn new(key: [u64; 2]) -> Self {
        CookieJar { key }
    }

    /// The number of the slot that `now` lies in.
    pub fn slot(now: Instant) -> u64 {
        now.as_nanos() / SLOT.as_nanos() as u64
    }

    /// The initial sequence number of the SYN-ACK for a client's SYN with sequence number `client_isn`.
    pub fn bake(&self, key: &FourTuple, client_isn: SeqNum, agreed: Agreed, now: Instant) -> SeqNum {
        let slot = Self::slot(now);
        let bits = (slot as u32 & 3) << 30 | encode(agreed);
        SeqNum(spread(bits | self.mac(key, client_isn, slot, bits)))
    }

    /// Checks the cookie that a client acknowledged.
    ///
    /// `client_isn` is the sequence number of its ACK less one, `cookie` its acknowledgement number less one. `None`
    /// when the cookie was not ours, was for another flow, or has expired.
    pub fn open(&self, key: &FourTuple, client_isn: SeqNum, cookie: SeqNum, now: Instant) -> Option<Opened> {
        let current = Self::slot(now);
        // Of the two valid slots at most one has the two low bits that the cookie shows.
        if !self.may_be_live(cookie, now) {
            return None;
        }
        let baked = spread(cookie.0);
        let age = (current as u32).wrapping_sub(slot_bits(cookie)) & 3;
        let slot = current.checked_sub(u64::from(age))?;
        let bits = baked & !MAC_MASK;
        if self.mac(key, client_isn, slot, bits) != baked & MAC_MASK {
            return None;
        }
        Some(Opened {
            agreed: decode(bits),
            slot,
        })
    }

    /// False if no cookie with this number can be valid at `now`: its slot is another.
    pub fn may_be_live(&self, cookie: SeqNum, now: Instant) -> bool {
        (Self::slot(now) as u32).wrapping_sub(slot_bits(cookie)) & 3 <= 1
    }

    fn mac(&self, key: &FourTuple, client_isn: SeqNum, slot: u64, bits: u32) -> u32 {
        let ports = u32::from(key.remote_port) << 16 | u32::from(key.local_port);
        let numbers = u64::from(ports) << 32 | u64::from(client_isn.0);
        // Slots count 8 s: what does not fit is centuries away. The bits are the upper ten of the cookie.
        let (slot, bits) = (slot as u32, (bits >> 22) as u16);
        let hasher = SipHasher24::new_with_keys(self.key[0], self.key[1]);
        let hash = if is_mapped(key.remote) && is_mapped(key.local) {
            let addresses = (key.remote as u64) << 32 | key.local as u64 & 0xffff_ffff;
            let mut message = [0; 22];
            message[..8].copy_from_slice(&addresses.to_le_bytes());
            message[8..16].copy_from_slice(&numbers.to_le_bytes());
            message[16..20].copy_from_slice(&slot.to_le_bytes());
            message[20..].copy_from_slice(&bits.to_le_bytes());
            hasher.hash(&message)
        } else {
            let mut message = [0; 46];
            message[..16].copy_from_slice(&key.remote.to_le_bytes());
            message[16..32].copy_from_slice(&key.local.to_le_bytes());
            message[32..40].copy_from_slice(&numbers.to_le_bytes());
            message[40..44].copy_from_slice(&slot.to_le_bytes());
            message[44..].copy_from_slice(&bits.to_le_bytes());
            hasher.hash(&message)
        };
        hash as u32 & MAC_MASK
    }
}

/// The number of the slot that a cookie was baked in, modulo four.
pub(crate) const fn slot_bits(cookie: SeqNum) -> u32 {
    spread(cookie.0) >> 30
}

/// The upper ten bits exclusive-ored with the lowest ten; its own inverse.
const fn spread(number: u32) -> u32 {
    number ^ number << 22
}

fn encode(agreed: Agreed) -> u32 {
    // Rounded down, so that the server never sends more than the client takes.
    let class = MSS_CLASSES.iter().rposition(|&mss| mss <= agreed.mss).unwrap_or(0) as u32;
    // RFC 7323 2.3: a shift above 14 means 14.
    let scale = agreed.window_scale.map_or(NO_SCALE, |shift| u32::from(shift.min(14)));
    scale << 26 | u32::from(agreed.sack) << 25 | class << 22
}

fn decode(bits: u32) -> Agreed {
    let scale = bits >> 26 & 15;
    Agreed {
        mss: MSS_CLASSES[(bits >> 22 & 7) as usize],
        window_scale: (scale != NO_SCALE).then_some(scale as u8),
        sack: bits >> 25 & 1 == 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn jar() -> CookieJar {
        CookieJar::new([0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210])
    }

    fn key() -> FourTuple {
        FourTuple {
            remote: 0xffff_0a00_0001,
            local: 0xffff_0a00_0002,
            remote_port: 40000,
            local_port: 80,
        }
    }

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    const AGREED: Agreed = Agreed {
        mss: 1460,
        window_scale: Some(7),
        sack: true,
    };

    #[test]
    fn carries_every_combination_of_options() {
        for mss in MSS_CLASSES {
            for window_scale in (0..=14).map(Some).chain([None]) {
                for sack in [false, true] {
                    let agreed = Agreed {
                        mss,
                        window_scale,
                        sack,
                    };
                    let cookie = jar().bake(&key(), SeqNum(7), agreed, at(100));
                    let opened = jar().open(&key(), SeqNum(7), cookie, at(100));
                    assert_eq!(opened.map(|o| o.agreed), Some(agreed));
                }
            }
        }
    }

    #[test]
    fn rounds_the_mss_down() {
        for (offered, kept) in [(1459, 1440), (1460, 1460), (1461, 1460), (9000, 8940), (100, 256)] {
            let cookie = jar().bake(&key(), SeqNum(7), Agreed { mss: offered, ..AGREED }, at(100));
            assert_eq!(
                jar().open(&key(), SeqNum(7), cookie, at(100)).map(|o| o.agreed.mss),
                Some(kept)
            );
        }
    }

    #[test]
    fn lives_to_the_end_of_the_next_slot_and_no_longer() {
        let cookie = jar().bake(&key(), SeqNum(7), AGREED, at(80));
        assert!(jar().open(&key(), SeqNum(7), cookie, at(95)).is_some());
        assert!(jar().open(&key(), SeqNum(7), cookie, at(96)).is_none());
        // Four slots later the low bits are the same again; the MAC is not.
        assert!(jar().open(&key(), SeqNum(7), cookie, at(112)).is_none());
    }

    #[test]
    fn belongs_to_one_flow_and_one_initial_sequence_number() {
        let cookie = jar().bake(&key(), SeqNum(7), AGREED, at(100));
        let others = [
            FourTuple {
                remote_port: 40001,
                ..key()
            },
            FourTuple {
                local_port: 81,
                ..key()
            },
            FourTuple {
                remote: key().remote + 1,
                ..key()
            },
            FourTuple {
                local: key().local + 1,
                ..key()
            },
        ];
        for other in others {
            assert!(jar().open(&other, SeqNum(7), cookie, at(100)).is_none(), "{other:?}");
        }
        assert!(jar().open(&key(), SeqNum(8), cookie, at(100)).is_none());
        for bit in 0..32 {
            assert!(
                jar()
                    .open(&key(), SeqNum(7), SeqNum(cookie.0 ^ 1 << bit), at(100))
                    .is_none(),
                "bit {bit}"
            );
        }
    }

    #[test]
    fn cookies_of_one_slot_are_spread_over_all_numbers() {
        // One of 2¹⁵ pairs of random numbers is nearer than 2¹⁶; without spreading it is one of 32.
        let cookies = (0..4096).map(|port| {
            let key = FourTuple {
                remote_port: port,
                ..key()
            };
            jar().bake(&key, SeqNum(7), AGREED, at(100)).0
        });
        let mut cookies: Vec<u32> = cookies.collect();
        let near = cookies
            .windows(2)
            .filter(|pair| pair[0].wrapping_sub(pair[1]).cast_signed().unsigned_abs() < 1 << 16);
        let near = near.count();
        assert!(near <= 4, "{near} of 4095 neighbours are near each other");
        cookies.sort_unstable();
        let widest = cookies.windows(2).map(|pair| pair[1] - pair[0]).max();
        assert!(widest < Some(1 << 24), "{widest:?}");
    }

    #[test]
    fn random_numbers_pass_at_the_computed_rate() {
        // Half of all numbers show a live slot; 2⁻²² of those pass. 2²⁴ trials: 2 expected; above 14 has p < 10⁻⁷.
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let passed = (0..1 << 24)
            .filter(|_| {
                state = state
                    .wrapping_mul(6364136223846793005)
                    .wrapping_add(1442695040888963407);
                jar()
                    .open(&key(), SeqNum(7), SeqNum((state >> 32) as u32), at(100))
                    .is_some()
            })
            .count();
        assert!(passed <= 14, "{passed} of 2^24 random numbers were taken for cookies");
    }
}
