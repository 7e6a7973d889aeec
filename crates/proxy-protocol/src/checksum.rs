//! CRC32C (Castagnoli), as PP2_TYPE_CRC32C wants it.
//!
//! Eight tables, eight bytes per step: about 1.5 GB/s without any instruction set extension, so that a header of
//! 64 KiB costs well under 100 µs and one of a hundred bytes about as much as reading it.

/// Reflected form of the polynomial 0x1EDC6F41 (RFC 4960 appendix B).
const POLYNOMIAL: u32 = 0x82f6_3b78;

static TABLES: [[u32; 256]; 8] = tables();

const fn tables() -> [[u32; 256]; 8] {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 {
                (crc >> 1) ^ POLYNOMIAL
            } else {
                crc >> 1
            };
            bit += 1;
        }
        tables[0][byte] = crc;
        byte += 1;
    }
    let mut table = 1;
    while table < 8 {
        let mut byte = 0;
        while byte < 256 {
            let previous = tables[table - 1][byte];
            tables[table][byte] = (previous >> 8) ^ tables[0][(previous & 0xff) as usize];
            byte += 1;
        }
        table += 1;
    }
    tables
}

/// A CRC32C under way.
#[derive(Copy, Clone)]
pub(crate) struct Crc32c(u32);

impl Crc32c {
    pub(crate) const fn new() -> Self {
        Crc32c(!0)
    }

    pub(crate) fn update(mut self, bytes: &[u8]) -> Self {
        let (blocks, rest) = bytes.as_chunks::<8>();
        for block in blocks {
            let folded = u64::from_le_bytes(*block) ^ u64::from(self.0);
            self.0 = folded
                .to_le_bytes()
                .iter()
                .zip(TABLES.iter().rev())
                .fold(0, |crc, (&byte, table)| crc ^ table[usize::from(byte)]);
        }
        for &byte in rest {
            self.0 = (self.0 >> 8) ^ TABLES[0][usize::from(self.0 as u8 ^ byte)];
        }
        self
    }

    pub(crate) const fn finish(self) -> u32 {
        !self.0
    }
}

/// The CRC32C (Castagnoli) of `bytes`, as in RFC 4960 appendix B.
pub fn crc32c(bytes: &[u8]) -> u32 {
    Crc32c::new().update(bytes).finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_value_of_the_polynomial() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(b""), 0);
        // RFC 3720 B.4: 32 bytes of zeros, of ones, ascending.
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        let ascending: [u8; 32] = core::array::from_fn(|i| i as u8);
        assert_eq!(crc32c(&ascending), 0x46dd_794e);
    }

    #[test]
    fn any_split_gives_the_same() {
        let bytes: [u8; 61] = core::array::from_fn(|i| (i * 37) as u8);
        for cut in 0..bytes.len() {
            let (front, back) = bytes.split_at(cut);
            assert_eq!(Crc32c::new().update(front).update(back).finish(), crc32c(&bytes));
        }
    }
}
