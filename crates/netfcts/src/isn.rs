//! Initial sequence numbers after RFC 6528.

use std::hash::Hasher;

use e2d2::time::Instant;
use siphasher::sip::SipHasher24;

use crate::SeqNum;

/// Makes initial sequence numbers: `ISN = M + F(local address, local port, remote address, remote port, key)`.
///
/// `M` counts 4 µs steps, `F` is SipHash-2-4: numbers of one 4-tuple grow with time, those of different ones tell nothing
/// about each other to who does not know the key.
///
/// Source: RFC 6528 3. Addresses are IPv6 or IPv4-mapped (`::ffff:a.b.c.d`), as octets in network order.
#[derive(Clone)]
pub struct IsnGenerator {
    key: [u8; 16],
}

impl IsnGenerator {
    /// A generator for `key`, which should come from the system's random source at every start.
    pub fn new(key: [u8; 16]) -> IsnGenerator {
        IsnGenerator { key }
    }

    /// The initial sequence number for a connection opened at `now`.
    #[inline]
    pub fn isn(&self, now: Instant, local: (&[u8; 16], u16), remote: (&[u8; 16], u16)) -> SeqNum {
        let mut hasher = SipHasher24::new_with_key(&self.key);
        let mut input = [0; 36];
        input[..16].copy_from_slice(local.0);
        input[16..32].copy_from_slice(remote.0);
        input[32..34].copy_from_slice(&local.1.to_be_bytes());
        input[34..].copy_from_slice(&remote.1.to_be_bytes());
        hasher.write(&input);
        SeqNum(hasher.finish() as u32) + (now.as_nanos() / 4_000) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> [u8; 16] {
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, last]
    }

    #[test]
    fn grows_by_one_every_four_microseconds_and_wraps() {
        let isn = IsnGenerator::new([7; 16]);
        let at = |nanos| isn.isn(Instant::from_nanos(nanos), (&address(1), 1), (&address(2), 2));
        assert_eq!(at(3_999), at(0));
        assert_eq!(at(4_000) - at(0), 1);
        assert_eq!(at((1 << 32) * 4_000), at(0));
    }

    #[test]
    fn every_part_of_the_tuple_and_the_key_count() {
        let isn = |key, local: (u8, u16), remote: (u8, u16)| {
            let generator = IsnGenerator::new([key; 16]);
            generator.isn(
                Instant::ZERO,
                (&address(local.0), local.1),
                (&address(remote.0), remote.1),
            )
        };
        let base = isn(7, (1, 2), (3, 4));
        let others = [
            isn(8, (1, 2), (3, 4)),
            isn(7, (9, 2), (3, 4)),
            isn(7, (1, 9), (3, 4)),
            isn(7, (1, 2), (9, 4)),
            isn(7, (1, 2), (3, 9)),
            isn(7, (3, 4), (1, 2)),
        ];
        assert!(others.iter().all(|other| *other != base), "{base:?} among {others:?}");
    }
}
