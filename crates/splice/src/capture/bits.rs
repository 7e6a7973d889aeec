//! A bit for each place.

/// They are counted from 0.
pub(super) struct Bits {
    words: Vec<u64>,
    /// Bit `n` is set while any place is set whose number is `n` modulo 64. Where few places are set, most look-ups end here.
    classes: u64,
    /// How many places are set, by their number modulo 64.
    counts: [u32; 64],
}

impl Bits {
    pub(super) fn new(places: usize) -> Self {
        Self {
            words: vec![0; places.div_ceil(64)],
            classes: 0,
            counts: [0; 64],
        }
    }

    #[inline]
    pub(super) fn has(&self, place: u32) -> bool {
        self.classes >> (place % 64) & 1 == 1 && self.has_by_word(place)
    }

    fn has_by_word(&self, place: u32) -> bool {
        let word = self.words.get(place as usize / 64);
        word.is_some_and(|word| word >> (place % 64) & 1 == 1)
    }

    pub(super) fn set(&mut self, place: u32, is_set: bool) {
        let class = place % 64;
        let Some(word) = self.words.get_mut(place as usize / 64) else {
            return;
        };
        let was_set = *word >> class & 1 == 1;
        if was_set == is_set {
            return;
        }
        *word ^= 1 << class;
        let count = &mut self.counts[class as usize];
        *count = if is_set { *count + 1 } else { *count - 1 };
        self.classes = self.classes & !(1 << class) | u64::from(*count > 0) << class;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_set_until_it_is_not_whatever_others_are() {
        let mut bits = Bits::new(1000);
        let mut expected = [false; 1000];
        let mut state = 1_u64;
        for _ in 0..20_000 {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            let (place, is_set) = ((state >> 33) as usize % 1000, state >> 63 == 1);
            bits.set(place as u32, is_set);
            expected[place] = is_set;
        }
        let found: Vec<bool> = (0..1000).map(|place| bits.has(place)).collect();
        assert_eq!(found, expected);
        (0..1000).for_each(|place| bits.set(place, false));
        assert_eq!((bits.classes, bits.has(7)), (0, false));
        bits.set(1024, true);
        assert!(!bits.has(1024) && !bits.has(2048), "there are no such places");
    }
}
