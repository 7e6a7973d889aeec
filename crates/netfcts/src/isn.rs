//! Initial sequence numbers after RFC 6528.

use e2d2::time::Instant;
use siphasher::sip::SipHasher24;

use crate::SeqNum;
use crate::leg::is_mapped;

/// Makes initial sequence numbers: `ISN = M + F(local address, local port, remote address, remote port, key)`.
///
/// `M` counts 4 µs steps, `F` is SipHash-2-4: numbers of one 4-tuple grow with time, those of different ones tell nothing
/// about each other to who does not know the key.
///
/// Source: RFC 6528 3. Addresses are IPv6 or IPv4-mapped (`::ffff:a.b.c.d`), as octets in network order.
#[derive(Clone)]
pub struct IsnGenerator {
    key: [u64; 2],
}

impl IsnGenerator {
    /// A generator for `key`, which should come from the system's random source at every start.
    pub fn new(key: [u8; 16]) -> IsnGenerator {
        let (words, _) = key.as_chunks::<8>();
        IsnGenerator {
            key: [u64::from_le_bytes(words[0]), u64::from_le_bytes(words[1])],
        }
    }

    /// The initial sequence number for a connection opened at `now`.
    #[inline]
    pub fn isn(&self, now: Instant, local: (&[u8; 16], u16), remote: (&[u8; 16], u16)) -> SeqNum {
        let [from, to] = [local.0, remote.0].map(|octets| u128::from_be_bytes(*octets));
        let ports = (u32::from(local.1) << 16 | u32::from(remote.1)).to_le_bytes();
        let hasher = SipHasher24::new_with_keys(self.key[0], self.key[1]);
        let hash = match (mapped_ipv4(from), mapped_ipv4(to)) {
            (Some(from), Some(to)) => {
                let addresses = u64::from(from) << 32 | u64::from(to);
                let mut message = [0; 12];
                message[..8].copy_from_slice(&addresses.to_le_bytes());
                message[8..].copy_from_slice(&ports);
                hasher.hash(&message)
            }
            _ => {
                let mut message = [0; 36];
                message[..16].copy_from_slice(&from.to_le_bytes());
                message[16..32].copy_from_slice(&to.to_le_bytes());
                message[32..].copy_from_slice(&ports);
                hasher.hash(&message)
            }
        };
        SeqNum(hash as u32) + (now.as_nanos() / 4_000) as u32
    }
}

/// The IPv4 address that is mapped into an IPv6 one.
#[inline]
fn mapped_ipv4(address: u128) -> Option<u32> {
    is_mapped(address).then_some(address as u32)
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
