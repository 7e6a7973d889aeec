//! TCP sequence numbers.
//!
//! RFC 9293 3.4: the space is finite and all arithmetic is modulo 2^32, so comparison is by signed distance and is only
//! meaningful for numbers less than 2^31 apart.

use std::cmp::Ordering;
use std::fmt;
use std::ops::{Add, AddAssign, Sub, SubAssign};

/// A 32-bit sequence number that wraps.
///
/// `<`, `<=`, `>`, `>=` compare by signed distance. Two numbers exactly 2^31 apart are neither before nor after each
/// other: `partial_cmp` returns `None` and every comparison is false.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(transparent)]
pub struct SeqNum(pub u32);

impl SeqNum {
    /// Signed distance from `earlier` to `self`: positive when `self` is later. `i32::MIN` for the undecidable distance.
    #[inline]
    pub const fn distance_from(self, earlier: SeqNum) -> i32 {
        self.0.wrapping_sub(earlier.0) as i32
    }

    /// Whether `self` lies before `other`.
    #[inline]
    pub const fn lt(self, other: SeqNum) -> bool {
        other.distance_from(self) > 0
    }

    /// Whether `self` is `other` or lies before it.
    #[inline]
    pub const fn le(self, other: SeqNum) -> bool {
        other.distance_from(self) >= 0
    }

    /// Whether `self` lies after `other`.
    #[inline]
    pub const fn gt(self, other: SeqNum) -> bool {
        self.distance_from(other) > 0
    }

    /// Whether `self` is `other` or lies after it.
    #[inline]
    pub const fn ge(self, other: SeqNum) -> bool {
        self.distance_from(other) >= 0
    }

    /// Whether `self` lies in the half-open window of `len` numbers that begins at `start`.
    #[inline]
    pub const fn in_window(self, start: SeqNum, len: u32) -> bool {
        self.0.wrapping_sub(start.0) < len
    }

    /// The later of two numbers, `self` when the distance is undecidable.
    #[inline]
    pub const fn later(self, other: SeqNum) -> SeqNum {
        if other.gt(self) { other } else { self }
    }

    /// The earlier of two numbers, `self` when the distance is undecidable.
    #[inline]
    pub const fn earlier(self, other: SeqNum) -> SeqNum {
        if other.lt(self) { other } else { self }
    }
}

impl PartialOrd for SeqNum {
    #[inline]
    fn partial_cmp(&self, other: &SeqNum) -> Option<Ordering> {
        match self.distance_from(*other) {
            i32::MIN => None,
            distance => Some(distance.cmp(&0)),
        }
    }
}

impl Add<u32> for SeqNum {
    type Output = SeqNum;
    #[inline]
    fn add(self, n: u32) -> SeqNum {
        SeqNum(self.0.wrapping_add(n))
    }
}

impl AddAssign<u32> for SeqNum {
    #[inline]
    fn add_assign(&mut self, n: u32) {
        *self = *self + n;
    }
}

impl Sub<u32> for SeqNum {
    type Output = SeqNum;
    #[inline]
    fn sub(self, n: u32) -> SeqNum {
        SeqNum(self.0.wrapping_sub(n))
    }
}

impl SubAssign<u32> for SeqNum {
    #[inline]
    fn sub_assign(&mut self, n: u32) {
        *self = *self - n;
    }
}

impl Sub<SeqNum> for SeqNum {
    type Output = i32;
    #[inline]
    fn sub(self, earlier: SeqNum) -> i32 {
        self.distance_from(earlier)
    }
}

impl From<u32> for SeqNum {
    #[inline]
    fn from(value: u32) -> SeqNum {
        SeqNum(value)
    }
}

impl From<SeqNum> for u32 {
    #[inline]
    fn from(value: SeqNum) -> u32 {
        value.0
    }
}

impl fmt::Debug for SeqNum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SeqNum({})", self.0)
    }
}

impl fmt::Display for SeqNum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn compares_across_the_wrap() {
        let (before, after) = (SeqNum(u32::MAX), SeqNum(3));
        assert_eq!(before.partial_cmp(&after), Some(Ordering::Less));
        assert_eq!(after.partial_cmp(&before), Some(Ordering::Greater));
        assert_eq!(
            [before.lt(after), before.le(after), before.ge(after), before.gt(after)],
            [true, true, false, false]
        );
        assert_eq!(
            [after.lt(before), after.le(before), after.ge(before), after.gt(before)],
            [false, false, true, true]
        );
        assert_eq!(after - before, 4);
        assert_eq!(before - after, -4);
        assert_eq!(before + 4, after);
        assert_eq!(after - 4u32, before);
        assert_eq!(before.later(after), after);
        assert_eq!(before.earlier(after), before);
    }

    #[test]
    fn half_the_space_apart_is_undecidable() {
        let (a, b) = (SeqNum(5), SeqNum(5) + (1 << 31));
        assert_eq!(a.partial_cmp(&b), None);
        assert_eq!([a.lt(b), a.le(b), a.ge(b), a.gt(b)], [false; 4]);
        // One less decides.
        assert!(a < b - 1u32 && a > b + 1);
    }

    #[test]
    fn window_is_half_open_and_wraps() {
        let start = SeqNum(u32::MAX - 1);
        assert!(!(start - 1u32).in_window(start, 4));
        assert!(start.in_window(start, 4));
        assert!(SeqNum(1).in_window(start, 4));
        assert!(!SeqNum(2).in_window(start, 4));
        assert!(!start.in_window(start, 0));
    }

    proptest! {
        #[test]
        fn methods_agree_with_operators(a: u32, b: u32) {
            let (a, b) = (SeqNum(a), SeqNum(b));
            prop_assume!(a - b != i32::MIN);
            prop_assert_eq!(SeqNum::lt(a, b), a < b);
            prop_assert_eq!(SeqNum::le(a, b), a <= b);
            prop_assert_eq!(SeqNum::gt(a, b), a > b);
            prop_assert_eq!(SeqNum::ge(a, b), a >= b);
        }

        #[test]
        fn nearer_than_half_orders_like_integers(a: u32, n in 1u32..(1 << 31)) {
            let (a, b) = (SeqNum(a), SeqNum(a) + n);
            prop_assert!(a < b);
            prop_assert_eq!(b - a, n as i32);
            prop_assert!(a.in_window(a, n));
            prop_assert!(!b.in_window(a, n));
        }
    }
}
