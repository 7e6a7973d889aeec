//! Bytes that a client has sent before there was a server to send them to.
//!
//! They are copied out of the packet buffers, so that a slow client can never pin the port's memory, into memory whose size
//! is fixed at start and which is touched as it is used ([`chunks`]). A connection starts with a block of the size that its
//! first bytes need and moves to a larger one when its request outgrows it; within a block a byte stands at its distance from
//! the start of the stream, so that segments out of order fall into place and the selector always sees one slice.
//!
//! Nobody can have it all: each source has a [quota](crate::reassembly::source_quota), and who holds something stands in the order in which it
//! has begun to ([`EvictionClass`]), so that whoever has waited longest can give way when the memory is nearly full. What is refused is
//! dropped and counted, and the client repeats it.
//!
//! Budget: what is known of a block is one cache line; taking one and giving it back touches that, the chunk's word and
//! those of the neighbours in the order.

mod chunks;
pub mod source_quota;

use crate::base::drop_reason::DropReason;
use crate::reassembly::source_quota::{Quota, SourceQuotas};
pub use crate::session::handles::BufferId;
use arrayvec::ArrayVec;
use chunks::{BlockId, CHUNK, Chunk, Chunks, PER_CHUNK, SIZES, class_of, neighbours};
use e2d2::memory::LargeSlice;

/// The most bytes a connection can have held: the window that SYN-ACKs promise is never larger.
pub const LARGE: usize = CHUNK;

/// The most runs of bytes with holes between them; a client with more loses the newest and repeats it.
const MAX_RUNS: usize = 8;

/// Memory that a chunk takes, with all that is known of it.
const CHUNK_MEMORY: usize = CHUNK + PER_CHUNK * size_of::<Block>() + size_of::<Chunk>();

/// How many requests of up to so many bytes fit into `memory` bytes before anyone gives way.
pub fn requests_in(memory: usize, bytes: usize) -> usize {
    let size = class_of(bytes).map_or(usize::MAX, |class| SIZES[class]);
    high_water_mark(memory / CHUNK_MEMORY) / size
}

/// The most connections that can have something held in `memory` bytes.
pub fn most_in(memory: usize) -> usize {
    memory / CHUNK_MEMORY * PER_CHUNK
}

/// The bytes of blocks that may be in use before someone gives way: fifteen sixteenths. What is above is for those who come
/// meanwhile.
const fn high_water_mark(chunks: usize) -> usize {
    chunks * CHUNK / 16 * 15
}

impl BufferId {
    const fn block(self) -> BlockId {
        BlockId(self.number())
    }

    const fn index(self) -> usize {
        self.block().index() as usize
    }
}

/// What can be done about a connection's bytes when the memory is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvictionClass {
    /// They can be forgotten, or a part of them: the client repeats what was not acknowledged.
    Unacked,
    /// The connection has asked for more of them, which was acknowledged: only with it are they gone.
    Acked,
    /// Nothing: they are acknowledged, and in a retransmission queue.
    Pinned,
}

/// Why bytes were not held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReassemblyError {
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

impl From<ReassemblyError> for DropReason {
    fn from(error: ReassemblyError) -> Self {
        match error {
            ReassemblyError::Exhausted => DropReason::ReassemblyFull,
            ReassemblyError::ShareUsed => DropReason::ReassemblyQuota,
            ReassemblyError::BeyondWindow => DropReason::OutOfWindow,
            ReassemblyError::TooManyHoles => DropReason::TooManyHoles,
        }
    }
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
    pub share: Quota,
}

/// The end of a list.
const NOBODY: u32 = u32::MAX;

/// What is known of a block.
#[derive(Clone, Debug)]
#[repr(align(64))]
struct Block {
    owner: Owner,
    /// Its neighbours in the order of its claim.
    earlier: u32,
    later: u32,
    claim: EvictionClass,
    runs: ArrayVec<Run, MAX_RUNS>,
}

const _: () = assert!(size_of::<Block>() == 64);

/// Who waits, from the longest to the latest.
#[derive(Clone, Copy, Debug)]
struct Order {
    longest: u32,
    latest: u32,
}

/// All held bytes of one core.
pub struct ReassemblyPool {
    chunks: Chunks,
    /// By block; those of chunks that were never used are not there yet.
    blocks: LargeSlice<Block>,
    /// By class; what is pinned stands in none.
    orders: [Order; 2],
    shares: SourceQuotas,
}

impl ReassemblyPool {
    /// So many bytes of `memory`, what it takes to keep account of them included: reserved now, touched as used, never
    /// allocated again. One source may have `percent` of it, but always one request.
    pub fn new(memory: usize, percent: u8) -> Self {
        let count = memory / CHUNK_MEMORY;
        let limit = ((count * CHUNK) as u64 * u64::from(percent) / 100).max(LARGE as u64);
        let nobody = Order {
            longest: NOBODY,
            latest: NOBODY,
        };
        ReassemblyPool {
            chunks: Chunks::new(count),
            blocks: LargeSlice::reserved(count * PER_CHUNK),
            orders: [nobody; 2],
            shares: SourceQuotas::new(limit.min(u64::from(u32::MAX)) as u32),
        }
    }

    /// True if so much is in use that someone must give way.
    pub fn is_pressed(&self) -> bool {
        self.chunks.bytes_in_use() > high_water_mark(self.chunks.capacity())
    }

    /// The slot of the connection that waits longest of those with this claim, but for the one in the slot `but`.
    pub fn longest(&self, claim: EvictionClass, but: u32) -> Option<u32> {
        let of = |index: u32| self.blocks.get(index as usize);
        let first = of(self.orders.get(claim as usize)?.longest)?;
        let longest = if first.owner.slot == but {
            of(first.later)?
        } else {
            first
        };
        Some(longest.owner.slot)
    }

    /// The slots of those whose copies are in the same chunk as that of the one that waits longest: when all of them have
    /// given way there is room for any size, if nothing else is in it.
    pub fn beside_longest(&self) -> ArrayVec<u32, PER_CHUNK> {
        let mut slots = ArrayVec::new();
        let longest = self.orders[EvictionClass::Unacked as usize].longest;
        if longest != NOBODY {
            let known = neighbours(longest).filter_map(|index| self.blocks.get(index as usize));
            let copies = known.filter(|block| block.claim == EvictionClass::Unacked);
            slots.extend(copies.map(|block| block.owner.slot));
        }
        slots
    }

    /// Notes what can be done about the bytes from now on; who has another claim than before begins to wait anew.
    pub fn set_claim(&mut self, held: Option<BufferId>, claim: EvictionClass) {
        if let Some(held) = held
            && self.blocks[held.index()].claim != claim
        {
            self.leave(held.index());
            self.join(held.index(), claim);
        }
    }

    /// True if only the first `length` bytes would fit a smaller block.
    pub fn is_smaller_without_rest(&self, held: Option<BufferId>, length: usize) -> bool {
        let is_smaller =
            |held: BufferId| class_of(length).is_some_and(|class| length == 0 || class < held.block().class());
        held.is_some_and(is_smaller)
    }

    /// Forgets all but the first `length` bytes, which are held without a hole. Returns false, and forgets nothing, if that
    /// would bring nothing, or if there is no smaller block.
    pub fn shorten(&mut self, held: &mut Option<BufferId>, length: usize) -> bool {
        let Some(large) = held.filter(|_| self.is_smaller_without_rest(*held, length)) else {
            return false;
        };
        if length == 0 {
            self.close(held);
            return true;
        }
        let Some(block) = class_of(length).and_then(|class| self.chunks.take(class)) else {
            return false;
        };
        if block.size() >= large.block().size() {
            self.chunks.release(block);
            return false;
        }
        let owner = self.blocks[large.index()].owner;
        self.chunks.copy(large.block(), block, length);
        self.close(held);
        self.shares.add(owner.share, block.size() as u32);
        let small = self.begin(block, owner, EvictionClass::Pinned);
        self.blocks[small.index()].runs.push(Run {
            start: 0,
            end: length as u16,
        });
        *held = Some(small);
        true
    }

    /// The number of blocks in use.
    pub fn in_use(&self) -> usize {
        self.chunks.blocks_in_use()
    }

    /// Bytes of the blocks in use, with what is known of them.
    pub fn bytes_in_use(&self) -> usize {
        self.chunks.bytes_in_use() + self.in_use() * size_of::<Block>()
    }

    /// The memory that has been touched so far, in bytes.
    pub fn memory(&self) -> usize {
        self.grown() + self.shares.memory()
    }

    /// That of it which had not been touched at the start.
    pub fn grown(&self) -> usize {
        self.chunks.used_ever() * CHUNK_MEMORY
    }

    /// Keeps `bytes`, whose first is the `offset`-th of the stream, in the block `held` of `owner`, which is opened or
    /// exchanged for a larger one as needed. Returns whether any of them was new.
    ///
    /// # Errors
    /// [`ReassemblyError`]; the block is then as it was.
    pub fn insert(
        &mut self,
        held: &mut Option<BufferId>,
        offset: usize,
        bytes: &[u8],
        owner: Owner,
    ) -> Result<bool, ReassemblyError> {
        let end = offset + bytes.len();
        if end > LARGE {
            return Err(ReassemblyError::BeyondWindow);
        }
        if bytes.is_empty() {
            return Ok(false);
        }
        let run = Run {
            start: offset as u16,
            end: end as u16,
        };
        let id = match *held {
            None => self.open(end, owner)?,
            Some(id) if self.blocks[id.index()].runs.iter().any(|known| known.has(run)) => return Ok(false),
            Some(small) if end > small.block().size() => self.grow(small, end)?,
            Some(id) => id,
        };
        *held = Some(id);
        merge(&mut self.blocks[id.index()].runs, run)?;
        self.chunks.slice_mut(id.block())[offset..end].copy_from_slice(bytes);
        Ok(true)
    }

    /// The bytes from the start of the stream to the first hole.
    pub fn in_order(&self, held: Option<BufferId>) -> &[u8] {
        match self.runs(held).next() {
            Some((0, bytes)) => bytes,
            _ => &[],
        }
    }

    /// Every run of held bytes with its offset, in order.
    pub fn runs(&self, held: Option<BufferId>) -> impl Iterator<Item = (usize, &[u8])> {
        let (runs, bytes): (&[Run], &[u8]) = match held {
            None => (&[], &[]),
            Some(held) => (&self.blocks[held.index()].runs, self.chunks.slice(held.block())),
        };
        runs.iter().map(|run| {
            (
                usize::from(run.start),
                &bytes[usize::from(run.start)..usize::from(run.end)],
            )
        })
    }

    /// Where the last of the bytes ends.
    pub(crate) fn end(&self, held: Option<BufferId>) -> usize {
        self.runs(held).last().map_or(0, |(start, bytes)| start + bytes.len())
    }

    /// Takes the first `length` bytes of the stream out, which are held without a hole: what follows them is the start of
    /// the stream from now on. A block with nothing left is given back.
    pub fn strip(&mut self, held: &mut Option<BufferId>, length: usize) {
        let Some(id) = held.filter(|_| self.in_order(*held).len() >= length) else {
            return;
        };
        let runs = &mut self.blocks[id.index()].runs;
        let end = runs.last().map_or(0, |run| usize::from(run.end));
        self.chunks.slice_mut(id.block()).copy_within(length..end, 0);
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
    /// [`ReassemblyError::ShareUsed`] if that source holds its share already; the block is then given back.
    pub fn charge(&mut self, held: &mut Option<BufferId>, share: Quota) -> Result<(), ReassemblyError> {
        let Some(id) = *held else {
            return Ok(());
        };
        let (before, size) = (self.blocks[id.index()].owner.share, id.block().size() as u32);
        if before == share {
            return Ok(());
        }
        if !self.shares.give(share, size) {
            self.close(held);
            return Err(ReassemblyError::ShareUsed);
        }
        self.shares.take(before, size);
        self.blocks[id.index()].owner.share = share;
        Ok(())
    }

    /// Gives the block back, if there is one.
    pub fn close(&mut self, held: &mut Option<BufferId>) {
        let Some(held) = held.take() else {
            return;
        };
        self.leave(held.index());
        let share = self.blocks[held.index()].owner.share;
        self.shares.take(share, held.block().size() as u32);
        self.chunks.release(held.block());
    }

    fn open(&mut self, end: usize, owner: Owner) -> Result<BufferId, ReassemblyError> {
        let block = self.take(end)?;
        if !self.shares.give(owner.share, block.size() as u32) {
            self.chunks.release(block);
            return Err(ReassemblyError::ShareUsed);
        }
        Ok(self.begin(block, owner, EvictionClass::Unacked))
    }

    fn grow(&mut self, small: BufferId, end: usize) -> Result<BufferId, ReassemblyError> {
        let Block {
            owner,
            earlier,
            later,
            claim,
            ..
        } = self.blocks[small.index()];
        let large = self.take(end)?;
        let (before, after) = (small.block().size(), large.size());
        if !self.shares.give(owner.share, (after - before) as u32) {
            self.chunks.release(large);
            return Err(ReassemblyError::ShareUsed);
        }
        self.chunks.copy(small.block(), large, before);
        let runs = std::mem::take(&mut self.blocks[small.index()].runs);
        self.chunks.release(small.block());
        let large = self.begin(large, owner, EvictionClass::Pinned);
        self.blocks[small.index()].claim = EvictionClass::Pinned;
        // It waits where it has waited.
        let block = &mut self.blocks[large.index()];
        (block.earlier, block.later, block.claim, block.runs) = (earlier, later, claim, runs);
        self.link((earlier, large.index() as u32), claim);
        self.link((large.index() as u32, later), claim);
        Ok(large)
    }

    fn take(&mut self, bytes: usize) -> Result<BlockId, ReassemblyError> {
        let class = class_of(bytes).ok_or(ReassemblyError::BeyondWindow)?;
        self.chunks.take(class).ok_or(ReassemblyError::Exhausted)
    }

    /// What is known of a block that was just taken: its owner begins to wait.
    fn begin(&mut self, block: BlockId, owner: Owner, claim: EvictionClass) -> BufferId {
        let held = BufferId::of(block.0);
        let new = Block {
            owner,
            earlier: NOBODY,
            later: NOBODY,
            claim: EvictionClass::Pinned,
            runs: ArrayVec::new(),
        };
        if held.index() >= self.blocks.len() {
            self.blocks.grow_to(self.chunks.used_ever() * PER_CHUNK, new.clone());
        }
        self.blocks[held.index()] = new;
        self.join(held.index(), claim);
        held
    }

    /// Puts a block that is in no order behind those who wait.
    fn join(&mut self, index: usize, claim: EvictionClass) {
        let Some(order) = self.orders.get_mut(claim as usize) else {
            return;
        };
        let last = std::mem::replace(&mut order.latest, index as u32);
        match self.blocks.get_mut(last as usize) {
            Some(block) => block.later = index as u32,
            None => order.longest = index as u32,
        }
        let block = &mut self.blocks[index];
        (block.claim, block.earlier, block.later) = (claim, last, NOBODY);
    }

    /// Takes a block out of its order.
    fn leave(&mut self, index: usize) {
        let Block {
            earlier, later, claim, ..
        } = self.blocks[index];
        self.blocks[index].claim = EvictionClass::Pinned;
        self.link((earlier, later), claim);
    }

    /// Makes two blocks neighbours in the order of a claim, or one the first or last of it.
    #[inline]
    fn link(&mut self, (earlier, later): (u32, u32), claim: EvictionClass) {
        let Some(order) = self.orders.get_mut(claim as usize) else {
            return;
        };
        match self.blocks.get_mut(earlier as usize) {
            Some(block) => block.later = later,
            None => order.longest = later,
        }
        match self.blocks.get_mut(later as usize) {
            Some(block) => block.earlier = earlier,
            None => order.latest = earlier,
        }
    }
}

impl Run {
    fn has(self, other: Run) -> bool {
        self.start <= other.start && other.end <= self.end
    }
}

/// Adds `new` to the sorted, disjoint, non-adjacent `runs`.
fn merge(runs: &mut ArrayVec<Run, MAX_RUNS>, mut new: Run) -> Result<(), ReassemblyError> {
    let first = runs.iter().position(|run| run.end >= new.start).unwrap_or(runs.len());
    let behind = runs.iter().position(|run| run.start > new.end).unwrap_or(runs.len());
    if first == behind {
        return runs.try_insert(first, new).map_err(|_| ReassemblyError::TooManyHoles);
    }
    // Runs first..behind touch the new one: they become one.
    new.start = new.start.min(runs[first].start);
    new.end = new.end.max(runs[behind - 1].end);
    runs[first] = new;
    runs.drain(first + 1..behind);
    Ok(())
}

#[cfg(test)]
mod tests;
