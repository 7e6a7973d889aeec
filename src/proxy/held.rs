//! Bytes that a client has sent before there was a server to send them to.
//!
//! They are copied out of the packet buffers, so that a slow client can never pin the port's memory, into a pool whose
//! size is fixed at start. A connection starts with a small buffer and moves to a large one when its request outgrows
//! it; within a buffer a byte stands at its distance from the start of the stream, so that segments out of order fall
//! into place and the selector always sees one slice.
//!
//! Nobody can have it all: each source has a [share](super::shares), and the connections that hold something stand in
//! the order in which they have begun to, so that the one that has waited longest can give way when the pool is nearly
//! full. What is refused is dropped and counted, and the client repeats it.

use super::shares::{Share, Shares};
use arrayvec::ArrayVec;

/// The most bytes a connection can have held: the window that SYN-ACKs promise is never larger.
pub const LARGE: usize = 16 * 1024;

/// Enough for a request in one or two segments, a post-quantum ClientHello among them.
pub const SMALL: usize = 2 * 1024;

/// The most runs of bytes with holes between them; a client with more loses the newest and repeats it.
const MAX_RUNS: usize = 8;

/// A buffer of the pool; [`HeldId::NONE`] stands for no buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldId(u32);

impl HeldId {
    /// No buffer.
    pub const NONE: HeldId = HeldId(u32::MAX);
    const LARGE_BIT: u32 = 1 << 31;

    /// True if there is no buffer.
    pub const fn is_none(self) -> bool {
        self.0 == u32::MAX
    }

    fn is_large(self) -> bool {
        self.0 & Self::LARGE_BIT != 0
    }

    fn index(self) -> usize {
        (self.0 & !Self::LARGE_BIT) as usize
    }
}

/// Why bytes were not held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HoldError {
    /// Every buffer of the size needed is in use.
    #[error("the pool for held bytes is exhausted")]
    Exhausted,
    /// The source holds its share already.
    #[error("the source holds its share already")]
    ShareUsed,
    /// The bytes lie beyond the largest buffer.
    #[error("the bytes lie beyond the window that was offered")]
    BeyondWindow,
    /// Too many holes.
    #[error("more holes than are kept track of")]
    TooManyHoles,
}

/// A run of bytes without a hole, as offsets from the start of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    start: u16,
    end: u16,
}

/// Whose bytes are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Owner {
    /// The connection's slot.
    pub slot: u32,
    /// Its source.
    pub share: Share,
}

/// The end of a list.
const NOBODY: u32 = u32::MAX;

/// A buffer's place in the order of waiting.
#[derive(Clone, Copy, Debug)]
struct Place {
    owner: Owner,
    earlier: u32,
    later: u32,
    is_waiting: bool,
}

/// Buffers of one size, with the runs that each holds.
struct Slab {
    size: usize,
    bytes: Box<[u8]>,
    runs: Box<[ArrayVec<Run, MAX_RUNS>]>,
    free: Vec<u32>,
    places: Box<[Place]>,
    longest: u32,
    latest: u32,
}

impl Slab {
    fn new(size: usize, count: usize) -> Self {
        Slab {
            size,
            bytes: vec![0; size * count].into_boxed_slice(),
            runs: vec![ArrayVec::new(); count].into_boxed_slice(),
            free: (0..count as u32).rev().collect(),
            places: vec![
                Place {
                    owner: Owner::default(),
                    earlier: NOBODY,
                    later: NOBODY,
                    is_waiting: false,
                };
                count
            ]
            .into_boxed_slice(),
            longest: NOBODY,
            latest: NOBODY,
        }
    }

    fn in_use(&self) -> usize {
        self.runs.len() - self.free.len()
    }

    /// Takes a buffer for `owner`, who begins to wait.
    fn take(&mut self, owner: Owner) -> Option<u32> {
        let index = self.free.pop()?;
        self.places[index as usize] = Place {
            owner,
            earlier: self.latest,
            later: NOBODY,
            is_waiting: true,
        };
        match self.places.get_mut(self.latest as usize) {
            Some(latest) => latest.later = index,
            None => self.longest = index,
        }
        self.latest = index;
        Some(index)
    }

    /// Takes its owner out of those who wait.
    fn settle(&mut self, index: usize) {
        let Place {
            earlier,
            later,
            is_waiting,
            ..
        } = self.places[index];
        if !is_waiting {
            return;
        }
        self.places[index].is_waiting = false;
        match self.places.get_mut(earlier as usize) {
            Some(place) => place.later = later,
            None => self.longest = later,
        }
        match self.places.get_mut(later as usize) {
            Some(place) => place.earlier = earlier,
            None => self.latest = earlier,
        }
    }

    fn give_back(&mut self, index: usize) {
        self.settle(index);
        self.runs[index].clear();
        self.free.push(index as u32);
    }

    /// Who has waited longest, if more than three quarters of the buffers are in use.
    fn pressed(&self) -> Option<u32> {
        let is_pressed = self.in_use() * 4 > self.runs.len() * 3;
        let longest = self.places.get(self.longest as usize).filter(|_| is_pressed);
        longest.map(|place| place.owner.slot)
    }

    fn slice(&self, index: usize) -> &[u8] {
        &self.bytes[index * self.size..][..self.size]
    }

    fn slice_mut(&mut self, index: usize) -> &mut [u8] {
        &mut self.bytes[index * self.size..][..self.size]
    }
}

/// All held bytes of one core.
pub struct HeldPool {
    small: Slab,
    large: Slab,
    shares: Shares,
}

impl HeldPool {
    /// A pool of `small` buffers of 2 KiB and `large` ones of 16 KiB, allocated now, of which one source may have
    /// `percent`, but always one request.
    pub fn new(small: usize, large: usize, percent: u8) -> Self {
        let bytes = small * SMALL + large * LARGE;
        let limit = (bytes as u64 * u64::from(percent) / 100).max(LARGE as u64);
        HeldPool {
            small: Slab::new(SMALL, small),
            large: Slab::new(LARGE, large),
            shares: Shares::new(limit.min(u64::from(u32::MAX)) as u32),
        }
    }

    /// The slot of the connection that has waited longest, if more than three quarters of the buffers of some size are in
    /// use. Those whose bytes are only kept until the server has acknowledged them do not wait any more.
    pub fn pressed(&self) -> Option<u32> {
        self.small.pressed().or_else(|| self.large.pressed())
    }

    /// The connection waits no more: what is held is owed to its server.
    pub fn settle(&mut self, held: HeldId) {
        if !held.is_none() {
            self.slab_mut(held).settle(held.index());
        }
    }

    fn slab_mut(&mut self, held: HeldId) -> &mut Slab {
        if held.is_large() {
            &mut self.large
        } else {
            &mut self.small
        }
    }

    /// The number of buffers in use.
    pub fn in_use(&self) -> usize {
        self.small.in_use() + self.large.in_use()
    }

    /// Bytes of the buffers in use.
    pub fn bytes_in_use(&self) -> usize {
        [&self.small, &self.large]
            .iter()
            .map(|slab| slab.in_use() * slab.size)
            .sum()
    }

    /// The memory of the pool in bytes.
    pub fn memory(&self) -> usize {
        [&self.small, &self.large]
            .iter()
            .map(|s| s.bytes.len() + size_of_val(&*s.runs) + size_of_val(&*s.places) + s.free.capacity() * 4)
            .sum::<usize>()
            + self.shares.memory()
    }

    /// Keeps `bytes`, whose first is the `offset`-th of the stream, in the buffer `held` of `owner`, which is opened or
    /// exchanged for a larger one as needed. Returns whether any of them was new.
    ///
    /// # Errors
    /// [`HoldError`]; the buffer is then as it was.
    pub fn insert(&mut self, held: &mut HeldId, offset: usize, bytes: &[u8], owner: Owner) -> Result<bool, HoldError> {
        let end = offset + bytes.len();
        if end > LARGE {
            return Err(HoldError::BeyondWindow);
        }
        if bytes.is_empty() {
            return Ok(false);
        }
        if held.is_none() {
            *held = self.open(end, owner)?;
        } else if end > SMALL && !held.is_large() {
            *held = self.grow(*held)?;
        }
        let slab = if held.is_large() {
            &mut self.large
        } else {
            &mut self.small
        };
        let run = Run {
            start: offset as u16,
            end: end as u16,
        };
        let runs = &mut slab.runs[held.index()];
        if runs
            .iter()
            .any(|known| known.start <= run.start && run.end <= known.end)
        {
            return Ok(false);
        }
        merge(runs, run)?;
        slab.slice_mut(held.index())[offset..end].copy_from_slice(bytes);
        Ok(true)
    }

    /// The bytes from the start of the stream to the first hole.
    pub fn in_order(&self, held: HeldId) -> &[u8] {
        match self.runs(held).next() {
            Some((0, bytes)) => bytes,
            _ => &[],
        }
    }

    /// Every run of held bytes with its offset, in order.
    pub fn runs(&self, held: HeldId) -> impl Iterator<Item = (usize, &[u8])> {
        let slab = if held.is_large() { &self.large } else { &self.small };
        let (runs, bytes): (&[Run], &[u8]) = if held.is_none() {
            (&[], &[])
        } else {
            (&slab.runs[held.index()], slab.slice(held.index()))
        };
        runs.iter().map(|run| {
            (
                usize::from(run.start),
                &bytes[usize::from(run.start)..usize::from(run.end)],
            )
        })
    }

    /// Takes the first `length` bytes of the stream out, which are held without a hole: what follows them is the start of
    /// the stream from now on. A buffer with nothing left is given back.
    pub fn strip(&mut self, held: &mut HeldId, length: usize) {
        if held.is_none() || self.in_order(*held).len() < length {
            return;
        }
        let slab = if held.is_large() {
            &mut self.large
        } else {
            &mut self.small
        };
        let end = slab.runs[held.index()].last().map_or(0, |run| usize::from(run.end));
        slab.slice_mut(held.index()).copy_within(length..end, 0);
        let runs = &mut slab.runs[held.index()];
        for run in runs.iter_mut() {
            run.start = run.start.saturating_sub(length as u16);
            run.end = run.end.saturating_sub(length as u16);
        }
        runs.retain(|run| run.start < run.end);
        if runs.is_empty() {
            self.close(held);
        }
    }

    /// Moves what is held to another source's `share`.
    ///
    /// # Errors
    /// [`HoldError::ShareUsed`] if that source holds its share already; the buffer is then given back.
    pub fn charge(&mut self, held: &mut HeldId, share: Share) -> Result<(), HoldError> {
        if held.is_none() {
            return Ok(());
        }
        let slab = self.slab_mut(*held);
        let (before, size) = (slab.places[held.index()].owner.share, slab.size as u32);
        if before == share {
            return Ok(());
        }
        if !self.shares.give(share, size) {
            self.close(held);
            return Err(HoldError::ShareUsed);
        }
        self.shares.take(before, size);
        self.slab_mut(*held).places[held.index()].owner.share = share;
        Ok(())
    }

    /// Gives the buffer back and leaves [`HeldId::NONE`].
    pub fn close(&mut self, held: &mut HeldId) {
        if held.is_none() {
            return;
        }
        let slab = self.slab_mut(*held);
        let (share, size) = (slab.places[held.index()].owner.share, slab.size);
        slab.give_back(held.index());
        self.shares.take(share, size as u32);
        *held = HeldId::NONE;
    }

    fn open(&mut self, end: usize, owner: Owner) -> Result<HeldId, HoldError> {
        let is_small = end <= SMALL && !self.small.free.is_empty();
        let (slab, bit) = if is_small {
            (&mut self.small, 0)
        } else {
            (&mut self.large, HeldId::LARGE_BIT)
        };
        if slab.free.is_empty() {
            return Err(HoldError::Exhausted);
        }
        if !self.shares.give(owner.share, slab.size as u32) {
            return Err(HoldError::ShareUsed);
        }
        slab.take(owner)
            .map(|index| HeldId(index | bit))
            .ok_or(HoldError::Exhausted)
    }

    fn grow(&mut self, small: HeldId) -> Result<HeldId, HoldError> {
        let owner = self.small.places[small.index()].owner;
        if self.large.free.is_empty() {
            return Err(HoldError::Exhausted);
        }
        if !self.shares.give(owner.share, (LARGE - SMALL) as u32) {
            return Err(HoldError::ShareUsed);
        }
        let large = self.large.take(owner).ok_or(HoldError::Exhausted)? as usize;
        self.large.slice_mut(large)[..SMALL].copy_from_slice(self.small.slice(small.index()));
        self.large.runs[large] = std::mem::take(&mut self.small.runs[small.index()]);
        self.small.give_back(small.index());
        Ok(HeldId(large as u32 | HeldId::LARGE_BIT))
    }
}

/// Adds `new` to the sorted, disjoint, non-adjacent `runs`.
fn merge(runs: &mut ArrayVec<Run, MAX_RUNS>, mut new: Run) -> Result<(), HoldError> {
    let first = runs.iter().position(|run| run.end >= new.start).unwrap_or(runs.len());
    let behind = runs.iter().position(|run| run.start > new.end).unwrap_or(runs.len());
    if first == behind {
        return runs.try_insert(first, new).map_err(|_| HoldError::TooManyHoles);
    }
    // Runs first..behind touch the new one: they become one.
    new.start = new.start.min(runs[first].start);
    new.end = new.end.max(runs[behind - 1].end);
    runs[first] = new;
    runs.drain(first + 1..behind);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: Owner = Owner {
        slot: 0,
        share: Share::NOBODY,
    };

    fn stream(n: usize) -> Vec<u8> {
        (0..n).map(|i| (i * 7 + i / 251) as u8).collect()
    }

    #[test]
    fn segments_in_any_order_and_overlap_make_one_slice() {
        let bytes = stream(6000);
        let cuts = [(4000, 6000), (0, 100), (50, 1500), (1400, 2900), (2900, 4000)];
        let mut pool = HeldPool::new(1, 1, 100);
        let mut held = HeldId::NONE;
        for (start, end) in cuts {
            assert_eq!(
                pool.insert(&mut held, start, &bytes[start..end], ME),
                Ok(true),
                "{start}..{end}"
            );
        }
        assert_eq!(pool.in_order(held), bytes);
        assert_eq!(pool.insert(&mut held, 10, &bytes[10..5000], ME), Ok(false));
        pool.close(&mut held);
        assert_eq!(pool.in_use(), 0);
    }

    #[test]
    fn bytes_before_the_first_hole_are_in_order() {
        let mut pool = HeldPool::new(1, 1, 100);
        let mut held = HeldId::NONE;
        pool.insert(&mut held, 5, b"world", ME).expect("room");
        assert_eq!(pool.in_order(held), b"");
        pool.insert(&mut held, 0, b"hell", ME).expect("room");
        assert_eq!(pool.in_order(held), b"hell");
        assert_eq!(pool.runs(held).collect::<Vec<_>>(), [(0, &b"hell"[..]), (5, b"world")]);
        pool.insert(&mut held, 4, b"o", ME).expect("room");
        assert_eq!(pool.in_order(held), b"helloworld");
    }

    #[test]
    fn stripping_moves_the_start_and_what_lies_behind_holes() {
        let bytes = stream(3000);
        let mut pool = HeldPool::new(0, 1, 100);
        let mut held = HeldId::NONE;
        pool.insert(&mut held, 0, &bytes[..100], ME).expect("room");
        pool.insert(&mut held, 2000, &bytes[2000..3000], ME).expect("room");
        pool.strip(&mut held, 101);
        assert_eq!(
            pool.in_order(held),
            &bytes[..100],
            "what is not there cannot be taken out"
        );
        pool.strip(&mut held, 40);
        assert_eq!(
            pool.runs(held).collect::<Vec<_>>(),
            [(0, &bytes[40..100]), (1960, &bytes[2000..3000])]
        );
        pool.strip(&mut held, 60);
        assert_eq!(pool.in_order(held), b"");
        pool.insert(&mut held, 0, &bytes[100..2000], ME).expect("room");
        assert_eq!(pool.in_order(held), &bytes[100..]);
        pool.strip(&mut held, 2900);
        assert!(held.is_none() && pool.in_use() == 0);
    }

    #[test]
    fn limits_are_exact() {
        let mut pool = HeldPool::new(0, 1, 100);
        let mut held = HeldId::NONE;
        assert_eq!(pool.insert(&mut held, LARGE - 1, b"x", ME), Ok(true));
        assert_eq!(pool.insert(&mut held, LARGE, b"x", ME), Err(HoldError::BeyondWindow));
        let mut other = HeldId::NONE;
        assert_eq!(pool.insert(&mut other, 0, b"x", ME), Err(HoldError::Exhausted));
        for hole in 1..MAX_RUNS {
            assert_eq!(pool.insert(&mut held, hole * 2, b"x", ME), Ok(true));
        }
        assert_eq!(pool.insert(&mut held, 100, b"x", ME), Err(HoldError::TooManyHoles));
        // Filling a hole needs no new run.
        assert_eq!(pool.insert(&mut held, 3, b"x", ME), Ok(true));
    }

    #[test]
    fn a_request_that_outgrows_its_buffer_moves() {
        let bytes = stream(LARGE);
        let mut pool = HeldPool::new(1, 1, 100);
        let mut held = HeldId::NONE;
        pool.insert(&mut held, 0, &bytes[..SMALL], ME).expect("room");
        pool.insert(&mut held, SMALL, &bytes[SMALL..], ME).expect("room");
        assert_eq!(pool.in_order(held), bytes);
        assert_eq!(pool.in_use(), 1);
    }

    #[test]
    fn any_cuts_in_any_order_give_the_stream_back() {
        let bytes = stream(LARGE);
        for seed in 0..200_u64 {
            let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            let mut random = |n: usize| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                (state % n as u64) as usize
            };
            let length = 1 + random(LARGE);
            let mut pool = HeldPool::new(1, 1, 100);
            let mut held = HeldId::NONE;
            let mut rounds = 0;
            while pool.in_order(held).len() < length {
                let start = random(length);
                let end = length.min(start + 1 + random(3000));
                let _ = pool.insert(&mut held, start, &bytes[start..end], ME);
                for (offset, run) in pool.runs(held) {
                    assert_eq!(run, &bytes[offset..offset + run.len()], "seed {seed}");
                }
                rounds += 1;
                // Holes can only be closed from the front when all runs are taken.
                let front = pool.in_order(held).len();
                if rounds % 8 == 0 && front < length {
                    let _ = pool.insert(&mut held, front, &bytes[front..length.min(front + 1460)], ME);
                }
            }
            assert_eq!(pool.in_order(held), &bytes[..length], "seed {seed}");
        }
    }
}
