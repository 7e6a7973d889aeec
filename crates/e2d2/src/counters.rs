//! Counters over a closed list of names: "every packet's fate is typed and counted".
//!
//! A [`Reason`] is an enum that [`crate::reasons!`] declares together with the names under which its variants appear in
//! metrics and reports. [`Counters`] is a plain array with one number per variant. A [`CounterWriter`] is the same array
//! in memory that other threads may read while its one core counts: [`CounterReader::snapshot`] gives [`Counters`], and
//! those of several cores are summed with `+=` or `sum()`.
//!
//! ```
//! e2d2::reasons! {
//!     /// Why a bird left the cage.
//!     pub enum Exit {
//!         /// The door stood open.
//!         DoorOpen = "door_open",
//!         /// The bars are too wide.
//!         BarsWide = "bars_wide",
//!     }
//! }
//! let (writer, reader) = e2d2::counters::shared::<Exit>();
//! writer.add(Exit::BarsWide, 2);
//! let counted: Vec<_> = reader.snapshot().nonzero().map(|(exit, count)| (exit, count)).collect();
//! assert_eq!(counted, [(Exit::BarsWide, 2)]);
//! ```
//!
//! Budget: one increment is a load, an add and a store to a line that only this core writes; no locked instruction.

use core::cell::Cell;
use core::fmt;
use core::iter::Sum;
use core::marker::PhantomData;
use core::ops::{AddAssign, Index};
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

/// A closed list of named things to count (or to tell apart): an enum without data.
///
/// Declare it with [`crate::reasons!`], which writes this implementation.
pub trait Reason: Copy + Eq + fmt::Debug + 'static {
    /// How many variants there are.
    const COUNT: usize;
    /// All variants, in the order of [`Reason::index`].
    const ALL: &'static [Self];
    /// `[T; COUNT]`, which stable Rust cannot yet say for a generic `Self`.
    type Array<T>: AsRef<[T]> + AsMut<[T]>;

    /// An array with what `make` gives for each index.
    fn array<T>(make: impl FnMut(usize) -> T) -> Self::Array<T>;

    /// Its place in the list: less than [`Reason::COUNT`].
    fn index(self) -> usize;

    /// Its name in metrics and reports: lower case with underscores.
    fn name(self) -> &'static str;
}

/// Declares an enum and implements [`counters::Reason`](crate::counters::Reason) for it: `Variant = "name"`.
#[macro_export]
macro_rules! reasons {
    (
        $(#[$meta:meta])*
        $visibility:vis enum $name:ident {
            $( $(#[$variant_meta:meta])* $variant:ident = $text:literal ),+ $(,)?
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        $visibility enum $name {
            $( $(#[$variant_meta])* $variant ),+
        }

        impl $crate::counters::Reason for $name {
            const COUNT: usize = Self::ALL.len();
            const ALL: &'static [Self] = &[$( Self::$variant ),+];
            type Array<T> = [T; <Self as $crate::counters::Reason>::COUNT];

            fn array<T>(make: impl FnMut(usize) -> T) -> Self::Array<T> {
                ::core::array::from_fn(make)
            }

            #[inline]
            fn index(self) -> usize {
                self as usize
            }

            fn name(self) -> &'static str {
                match self {
                    $( Self::$variant => $text ),+
                }
            }
        }

        impl ::core::fmt::Display for $name {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                f.pad($crate::counters::Reason::name(*self))
            }
        }
    };
}

/// One number per variant of `R`.
pub struct Counters<R: Reason> {
    counts: R::Array<u64>,
}

impl<R: Reason> Counters<R> {
    /// All zero.
    pub fn new() -> Self {
        Self {
            counts: R::array(|_| 0),
        }
    }

    /// Counts `n` more of `reason`.
    #[inline]
    pub fn add(&mut self, reason: R, n: u64) {
        let count = &mut self.counts.as_mut()[reason.index()];
        *count = count.wrapping_add(n);
    }

    /// The sum over all reasons.
    pub fn total(&self) -> u64 {
        self.counts
            .as_ref()
            .iter()
            .fold(0, |sum, count| sum.wrapping_add(*count))
    }

    /// Every reason with its count, in the order of declaration.
    pub fn iter(&self) -> impl Iterator<Item = (R, u64)> + '_ {
        R::ALL.iter().map(|reason| (*reason, self[*reason]))
    }

    /// The reasons that were counted at least once.
    pub fn nonzero(&self) -> impl Iterator<Item = (R, u64)> + '_ {
        self.iter().filter(|(_, count)| *count != 0)
    }
}

impl<R: Reason> Default for Counters<R> {
    fn default() -> Self {
        Self::new()
    }
}

impl<R: Reason> Clone for Counters<R> {
    fn clone(&self) -> Self {
        let counts = self.counts.as_ref();
        Self {
            counts: R::array(|index| counts[index]),
        }
    }
}

impl<R: Reason> PartialEq for Counters<R> {
    fn eq(&self, other: &Self) -> bool {
        self.counts.as_ref() == other.counts.as_ref()
    }
}

impl<R: Reason> Eq for Counters<R> {}

impl<R: Reason> Index<R> for Counters<R> {
    type Output = u64;

    fn index(&self, reason: R) -> &u64 {
        &self.counts.as_ref()[reason.index()]
    }
}

impl<R: Reason> AddAssign<&Counters<R>> for Counters<R> {
    fn add_assign(&mut self, other: &Counters<R>) {
        for (reason, count) in other.iter() {
            self.add(reason, count);
        }
    }
}

impl<R: Reason> Sum for Counters<R> {
    fn sum<I: Iterator<Item = Self>>(counters: I) -> Self {
        counters.fold(Self::new(), |mut sum, next| {
            sum += &next;
            sum
        })
    }
}

/// `{door_open: 0, bars_wide: 2}` without the zeros.
impl<R: Reason> fmt::Debug for Counters<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map()
            .entries(self.nonzero().map(|(reason, count)| (reason.name(), count)))
            .finish()
    }
}

/// The cells of one core. Aligned so that no other core's data shares a cache line with them.
#[repr(align(64))]
struct Cells<R: Reason>(R::Array<AtomicU64>);

/// Counters that one core writes and any thread may read; see [`shared`].
///
/// There is exactly one writer: it is neither `Clone` nor `Sync`. Several owners on one core share it through an `Rc`.
pub struct CounterWriter<R: Reason> {
    cells: Arc<Cells<R>>,
    one_thread: PhantomData<Cell<()>>,
}

/// The reading end of a [`CounterWriter`].
pub struct CounterReader<R: Reason> {
    cells: Arc<Cells<R>>,
}

/// New counters, all zero: the end for the core that counts and the end for those who look.
pub fn shared<R: Reason>() -> (CounterWriter<R>, CounterReader<R>) {
    let cells = Arc::new(Cells(R::array(|_| AtomicU64::new(0))));
    let reader = CounterReader {
        cells: Arc::clone(&cells),
    };
    let writer = CounterWriter {
        cells,
        one_thread: PhantomData,
    };
    (writer, reader)
}

impl<R: Reason> CounterWriter<R> {
    /// Counts `n` more of `reason`.
    #[inline]
    pub fn add(&self, reason: R, n: u64) {
        let cell = &self.cells.0.as_ref()[reason.index()];
        // No read-modify-write: there is one writer, so nothing can come between the load and the store.
        cell.store(cell.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// The counts up to now.
    pub fn snapshot(&self) -> Counters<R> {
        self.cells.snapshot()
    }
}

impl<R: Reason> CounterReader<R> {
    /// The counts as they are now. Numbers of different reasons may be a few nanoseconds apart.
    pub fn snapshot(&self) -> Counters<R> {
        self.cells.snapshot()
    }
}

impl<R: Reason> Clone for CounterReader<R> {
    fn clone(&self) -> Self {
        Self {
            cells: Arc::clone(&self.cells),
        }
    }
}

impl<R: Reason> Cells<R> {
    fn snapshot(&self) -> Counters<R> {
        let cells = self.0.as_ref();
        Counters {
            counts: R::array(|index| cells[index].load(Ordering::Relaxed)),
        }
    }
}

impl<R: Reason> fmt::Debug for CounterWriter<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.snapshot().fmt(f)
    }
}

impl<R: Reason> fmt::Debug for CounterReader<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.snapshot().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    reasons! {
        enum Fruit {
            Apple = "apple",
            Pear = "pear",
            Plum = "plum",
        }
    }

    #[test]
    fn variants_are_listed_once_in_order() {
        assert_eq!(Fruit::COUNT, 3);
        for (index, fruit) in Fruit::ALL.iter().enumerate() {
            assert_eq!(fruit.index(), index);
        }
        assert_eq!(Fruit::Pear.name(), "pear");
        assert_eq!(format!("{:>6}", Fruit::Plum), "  plum");
    }

    #[test]
    fn counts_add_up_over_cores() {
        let (mut first, mut second) = (Counters::new(), Counters::new());
        first.add(Fruit::Apple, 2);
        first.add(Fruit::Plum, 1);
        second.add(Fruit::Apple, 5);
        let sum: Counters<Fruit> = [first, second].into_iter().sum();
        assert_eq!((sum[Fruit::Apple], sum[Fruit::Pear], sum[Fruit::Plum]), (7, 0, 1));
        assert_eq!(sum.total(), 8);
        assert_eq!(sum.nonzero().collect::<Vec<_>>(), [(Fruit::Apple, 7), (Fruit::Plum, 1)]);
        assert_eq!(format!("{sum:?}"), r#"{"apple": 7, "plum": 1}"#);
    }

    #[test]
    fn reader_on_another_thread_sees_all_that_was_written() {
        let (writer, reader) = shared::<Fruit>();
        let counting = std::thread::spawn(move || {
            for _ in 0..1_000 {
                writer.add(Fruit::Pear, 3);
            }
        });
        let during = reader.snapshot()[Fruit::Pear];
        assert_eq!(during % 3, 0, "a torn or lost write");
        counting.join().expect("counting thread");
        assert_eq!(reader.snapshot()[Fruit::Pear], 3_000);
    }

    #[test]
    fn cells_of_two_writers_share_no_cache_line() {
        assert_eq!(align_of::<Cells<Fruit>>(), 64);
        assert_eq!(size_of::<Cells<Fruit>>() % 64, 0);
    }
}
