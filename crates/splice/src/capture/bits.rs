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
            let bit = 1 << (place % 64);
            *word = if is_set { *word | bit } else { *word & !bit };
        }
    }
}
