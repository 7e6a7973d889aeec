//! A bit for each place.

/// They are counted from 0.
pub(super) struct Bits {
    words: Vec<u64>,
    /// Where few places are set, most look-ups end here.
    classes: Classes,
    /// How many places are set, by either class.
    counts: [[u32; 64]; 2],
}

/// Which places may be set: those whose number modulo 64 has a bit in the first word, and the number of whose word modulo 64 has
/// one in the second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Classes([u64; 2]);

impl Classes {
    pub(super) const ALL: Classes = Classes([u64::MAX; 2]);

    /// In the lowest bit, whether this place may be set.
    #[inline]
    pub(super) fn may_have(self, place: u32) -> u64 {
        let [low, high] = classes_of(place);
        self.0[0] >> low & self.0[1] >> high
    }
}

/// The classes of a place.
#[inline]
fn classes_of(place: u32) -> [usize; 2] {
    [place as usize % 64, place as usize / 64 % 64]
}

impl Bits {
    pub(super) fn new(places: usize) -> Self {
        Self {
            words: vec![0; places.div_ceil(64)],
            classes: Classes::default(),
            counts: [[0; 64]; 2],
        }
    }

    #[inline]
    pub(super) fn has(&self, place: u32) -> bool {
        self.classes.may_have(place) & 1 == 1 && self.has_by_word(place)
    }

    pub(super) fn classes(&self) -> Classes {
        self.classes
    }

    fn has_by_word(&self, place: u32) -> bool {
        let word = self.words.get(place as usize / 64);
        word.is_some_and(|word| word >> (place % 64) & 1 == 1)
    }

    pub(super) fn set(&mut self, place: u32, is_set: bool) {
        let Some(word) = self.words.get_mut(place as usize / 64) else {
            return;
        };
        let was_set = *word >> (place % 64) & 1 == 1;
        if was_set == is_set {
            return;
        }
        *word ^= 1 << (place % 64);
        let all = self.counts.iter_mut().zip(&mut self.classes.0);
        for ((counts, classes), class) in all.zip(classes_of(place)) {
            let count = &mut counts[class];
            *count = if is_set { *count + 1 } else { *count - 1 };
            *classes = *classes & !(1 << class) | u64::from(*count > 0) << class;
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
        (0..PLACES as u32).for_each(|place| bits.set(place, false));
        assert_eq!((bits.classes, bits.has(7)), (Classes::default(), false));
        bits.set(7 + 64 * 5, true);
        let may_be = [7, 7 + 64 * 5, 8 + 64 * 5, 7 + 64 * 69].map(|place| bits.classes.may_have(place) & 1);
        assert_eq!(may_be, [0, 1, 0, 1]);
        bits.set(16_384, true);
        assert!(!bits.has(16_384) && !bits.has(20_000), "there are no such places");
    }
}
