//! The leaves of a trie: ranges that follow each other, in one line of the cache. A leaf of IPv4 has addresses, one of IPv6 distances.

use wide::i32x4;

/// What a trie looks up: an address whose bits are the first of a space of 128.
pub(super) trait Address: Copy + Ord {
    const BITS: u32;
    type Leaf: Leaf<Self>;

    /// The address that begins a range, from its place in the space.
    fn of_start(start: u128) -> Self;

    /// The address without its last bits, fewer than it has: the lower 32 of what is left.
    fn behind(self, last: u32) -> u32;
}

/// Where some ranges begin, and their sets.
pub(super) trait Leaf<A>: Copy {
    /// As many as fit the line.
    const MOST_STARTS: usize;

    /// Of one start or more, and the sets before and behind them. `None` if they do not fit.
    fn of(starts: &[u128], sets: &[u16]) -> Option<Self>;

    /// The set of an address of the block that the leaf is for.
    fn set_of(&self, address: A) -> u16;
}

impl Address for u32 {
    const BITS: u32 = u32::BITS;
    type Leaf = LeafV4;

    fn of_start(start: u128) -> Self {
        (start >> 96) as u32
    }

    #[inline]
    fn behind(self, last: u32) -> u32 {
        self >> last
    }
}

impl Address for u128 {
    const BITS: u32 = u128::BITS;
    type Leaf = LeafV6;

    fn of_start(start: u128) -> Self {
        start
    }

    #[inline]
    fn behind(self, last: u32) -> u32 {
        shifted(self, last) as u32
    }
}

/// A number without its last bits. Most prefixes of IPv6 lie in the upper half, whose shift is one step where that of both takes many.
#[inline]
fn shifted(number: u128, bits: u32) -> u128 {
    match bits.checked_sub(64) {
        Some(bits) => u128::from((number >> 64) as u64 >> bits),
        None => number >> bits,
    }
}

/// Starts as they are.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct LeafV4 {
    /// [Signed](signed), and the largest for none.
    starts: [i32; Self::MOST_STARTS],
    /// The set before the first start, and behind each. Those behind none are as the last.
    sets: [u16; 1 + Self::MOST_STARTS],
}

/// Starts in units of a power of two, which all have in common.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct LeafV6 {
    /// One unit before the first start.
    base: u128,
    /// Units from `base` to each start, [signed], and the largest number for none.
    starts: [i32; Self::MOST_STARTS],
    /// As of IPv4.
    sets: [u16; 1 + Self::MOST_STARTS],
    /// The binary logarithm of the unit.
    unit: u8,
}

const _: () = assert!(size_of::<LeafV4>() == 64 && size_of::<LeafV6>() == 64);

impl Leaf<u32> for LeafV4 {
    const MOST_STARTS: usize = 10;

    fn of(starts: &[u128], sets: &[u16]) -> Option<Self> {
        let mut leaf = LeafV4 {
            starts: [signed(u32::MAX); Self::MOST_STARTS],
            sets: [*sets.last()?; 1 + Self::MOST_STARTS],
        };
        for (place, start) in starts.iter().enumerate() {
            *leaf.starts.get_mut(place)? = signed(u32::of_start(*start));
        }
        leaf.sets.get_mut(..sets.len())?.copy_from_slice(sets);
        Some(leaf)
    }

    #[inline]
    fn set_of(&self, address: u32) -> u16 {
        self.sets[up_to(&self.starts, signed(address))]
    }
}

impl Leaf<u128> for LeafV6 {
    const MOST_STARTS: usize = 7;

    fn of(starts: &[u128], sets: &[u16]) -> Option<Self> {
        let unit = starts.iter().map(|start| start.trailing_zeros()).min()?;
        let mut leaf = LeafV6 {
            // It is a multiple of the unit, and not 0.
            base: starts.first()?.checked_sub(1 << unit)?,
            starts: [signed(u32::MAX); Self::MOST_STARTS],
            sets: [*sets.last()?; 1 + Self::MOST_STARTS],
            unit: unit as u8,
        };
        for (place, start) in starts.iter().enumerate() {
            let units = u32::try_from((start - leaf.base) >> unit).ok()?;
            *leaf.starts.get_mut(place).filter(|_| units < u32::MAX)? = signed(units);
        }
        leaf.sets.get_mut(..sets.len())?.copy_from_slice(sets);
        Some(leaf)
    }

    #[inline]
    fn set_of(&self, address: u128) -> u16 {
        let units = shifted(address.saturating_sub(self.base), self.unit.into());
        self.sets[up_to(&self.starts, signed(units.min(u32::MAX.into()) as u32))]
    }
}

/// A number less 2^31, which compares with others as signed numbers do: four at once.
const fn signed(number: u32) -> i32 {
    (number ^ 1 << 31) as i32
}

/// How many starts are not above this address. Without a branch, as nothing tells of the addresses of a flood where they lie.
#[inline]
fn up_to(starts: &[i32], address: i32) -> usize {
    let (fours, others) = starts.as_chunks();
    let fours = fours.iter().map(|four| {
        let above = i32x4::new(*four).simd_gt(i32x4::splat(address));
        4 - above.to_bitmask().count_ones()
    });
    let others = others.iter().map(|start| u32::from(*start <= address));
    fours.chain(others).sum::<u32>() as usize
}
