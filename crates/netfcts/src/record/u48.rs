//! A count in six bytes.

/// A count that stops at 2^48 - 1, its lowest 16 bits first: three stores, where bytes would be six.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct U48([u16; 3]);

impl U48 {
    /// The number.
    pub fn get(self) -> u64 {
        let [low, middle, high] = self.0.map(u64::from);
        low | middle << 16 | high << 32
    }

    pub(super) fn from_le_bytes([a, b, c, d, e, f]: [u8; 6]) -> U48 {
        U48([[a, b], [c, d], [e, f]].map(u16::from_le_bytes))
    }

    pub(super) fn to_le_bytes(self) -> [u8; 6] {
        let [[a, b], [c, d], [e, f]] = self.0.map(u16::to_le_bytes);
        [a, b, c, d, e, f]
    }
}

impl From<u64> for U48 {
    #[inline]
    fn from(value: u64) -> Self {
        let value = value.min((1 << 48) - 1);
        U48([value as u16, (value >> 16) as u16, (value >> 32) as u16])
    }
}
