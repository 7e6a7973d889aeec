//! The Ethernet address.

use core::fmt;
use core::str::FromStr;

/// An IEEE 802 MAC address in transmission order.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    /// All stations of the link.
    pub const BROADCAST: Self = Self([0xff; 6]);
    /// No address: what an unset field holds.
    pub const UNSPECIFIED: Self = Self([0; 6]);

    /// Whether it names a group of stations; the broadcast address is such a group.
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// Whether it is [`MacAddr::BROADCAST`].
    pub fn is_broadcast(self) -> bool {
        self == Self::BROADCAST
    }

    /// Whether it can name one station: neither a group nor unspecified.
    pub fn is_unicast(self) -> bool {
        !self.is_multicast() && self != Self::UNSPECIFIED
    }
}

/// `02:00:5e:10:00:01`
impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<[u8; 6]> for MacAddr {
    fn from(octets: [u8; 6]) -> Self {
        Self(octets)
    }
}

/// The text is no MAC address.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{0}` is no MAC address: expected six hexadecimal octets like 02:00:5e:10:00:01")]
pub struct ParseMacError(String);

/// Six groups of one or two hexadecimal digits, all separated by `:` or all by `-`.
impl FromStr for MacAddr {
    type Err = ParseMacError;

    fn from_str(text: &str) -> Result<Self, ParseMacError> {
        let refuse = || ParseMacError(text.to_owned());
        let separator = if text.contains('-') { '-' } else { ':' };
        let mut groups = text.split(separator);
        let mut octets = [0; 6];
        for octet in &mut octets {
            let group = groups.next().ok_or_else(refuse)?;
            let is_hex = matches!(group.len(), 1..=2) && group.bytes().all(|byte| byte.is_ascii_hexdigit());
            *octet = u8::from_str_radix(group, 16)
                .ok()
                .filter(|_| is_hex)
                .ok_or_else(refuse)?;
        }
        if groups.next().is_some() {
            return Err(refuse());
        }
        Ok(Self(octets))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_round_trips() {
        let mac = MacAddr([0x02, 0, 0x5e, 0x10, 0xab, 0xff]);
        assert_eq!(mac.to_string(), "02:00:5e:10:ab:ff");
        assert_eq!("02:00:5e:10:ab:ff".parse(), Ok(mac));
        assert_eq!("2-0-5E-10-AB-FF".parse(), Ok(mac));
    }

    #[test]
    fn other_text_is_refused() {
        for text in [
            "",
            "02:00:5e:10:00",
            "02:00:5e:10:00:01:02",
            "02:00:5e:10:00:001",
            "02:00-5e:10:00:01",
        ] {
            assert!(text.parse::<MacAddr>().is_err(), "{text}");
        }
        for text in ["+2:00:5e:10:00:01", "g2:00:5e:10:00:01", "::::::", "0200.5e10.0001"] {
            assert!(text.parse::<MacAddr>().is_err(), "{text}");
        }
    }

    #[test]
    fn kinds_of_addresses_are_told_apart() {
        assert!(MacAddr::BROADCAST.is_broadcast() && MacAddr::BROADCAST.is_multicast());
        assert!(MacAddr([0x33, 0x33, 0, 0, 0, 1]).is_multicast());
        assert!(MacAddr([2, 0, 0, 0, 0, 1]).is_unicast());
        assert!(!MacAddr::UNSPECIFIED.is_unicast() && !MacAddr::BROADCAST.is_unicast());
    }
}
