//! A bit for each place.

/// They are counted from 0.
pub(super) struct Bits(Vec<u64>);

impl Bits {
    pub(super) fn new(places: usize) -> Self {
        Self(vec![0; places.div_ceil(64)])
    }

    #[inline]
    pub(super) fn has(&self, place: u32) -> bool {
        let word = self.0.get(place as usize / 64);
        word.is_some_and(|word| word >> (place % 64) & 1 == 1)
    }

    pub(super) fn set(&mut self, place: u32, is_set: bool) {
        if let Some(word) = self.0.get_mut(place as usize / 64) {
            *word = *word & !(1 << (place % 64)) | u64::from(is_set) << (place % 64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_set_until_it_is_not_whatever_others_are() {
        const PLACES: usize = 10_000;
        let mut bits = Bits::new(PLACES);
        let mut expected = [false; PLACES];
        let mut state = 1_u64;
        for _ in 0..20_000 {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            let (place, is_set) = ((state >> 33) as usize % PLACES, state >> 63 == 1);
            bits.set(place as u32, is_set);
            expected[place] = is_set;
        }
        let found: Vec<bool> = (0..PLACES as u32).map(|place| bits.has(place)).collect();
        assert_eq!(found, expected);
        bits.set(16_384, true);
        assert!(!bits.has(16_384) && !bits.has(20_000), "there are no such places");
    }
}
