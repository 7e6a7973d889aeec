//! Memory in blocks of a few sizes, cut from chunks of 16 KiB.
//!
//! A chunk has blocks of one size while any of them is taken, and may have another the next time. Which of its blocks are
//! free is one word. Chunks are used for the first time in order, and those that have been used before come first: memory
//! that nobody needs is never touched.

use e2d2::memory::LargeSlice;

/// The bytes of a chunk, and the largest block.
pub(super) const CHUNK: usize = crate::base::callbacks::MAX_FIRST_PAYLOAD;

/// The sizes of blocks.
pub(super) const SIZES: [usize; 5] = [512, 1024, 2048, 4096, CHUNK];

/// The most blocks of a chunk.
pub(super) const PER_CHUNK: usize = CHUNK / SIZES[0];

const BITS: u32 = PER_CHUNK.trailing_zeros();

/// The end of a list.
const NONE: u32 = u32::MAX;

/// A block: its size, the number of its chunk, and its place there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlockId(pub(super) u32);

/// Where the index of a block's size begins.
const CLASS_SHIFT: u32 = u32::BITS - 3;

/// The most chunks there can be.
const MOST_CHUNKS: usize = 1 << (CLASS_SHIFT - BITS);

impl BlockId {
    fn new(class: usize, chunk: u32, place: u32) -> Self {
        BlockId((class as u32) << CLASS_SHIFT | chunk << BITS | place)
    }

    /// The number of its place among those of all chunks.
    pub(super) const fn index(self) -> u32 {
        self.0 & (u32::MAX >> 3)
    }

    /// The index of its size.
    pub(super) const fn class(self) -> usize {
        (self.0 >> CLASS_SHIFT) as usize
    }

    /// Its size in bytes.
    pub(super) const fn size(self) -> usize {
        SIZES[self.class()]
    }

    const fn start(self) -> usize {
        self.chunk() * CHUNK + self.place() * self.size()
    }

    const fn chunk(self) -> usize {
        (self.index() >> BITS) as usize
    }

    const fn place(self) -> usize {
        self.0 as usize % PER_CHUNK
    }
}

/// All places of the chunk of the place with this number, whether they are blocks or not.
pub(super) fn neighbours(index: u32) -> impl Iterator<Item = u32> {
    let first = index >> BITS << BITS;
    first..first + PER_CHUNK as u32
}

/// A chunk that has been used before.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chunk {
    /// A bit for each free block.
    free: u32,
    /// Its neighbours in the list of its size's chunks with a free block, or in that of empty chunks.
    earlier: u32,
    later: u32,
}

/// All chunks of one core.
pub(super) struct Chunks {
    bytes: LargeSlice<u8>,
    chunks: LargeSlice<Chunk>,
    capacity: usize,
    empty: u32,
    with_room: [u32; SIZES.len()],
    bytes_in_use: usize,
    blocks_in_use: usize,
}

/// The index of the smallest size that has room for so many bytes.
pub(super) fn class_of(bytes: usize) -> Option<usize> {
    SIZES.iter().position(|&size| bytes <= size)
}

/// The [`free`](Chunk::free) of a chunk of which no block is taken, by class.
const ALL_FREE: [u32; SIZES.len()] = {
    let (mut all, mut class) = ([0; SIZES.len()], 0);
    while class < SIZES.len() {
        all[class] = u32::MAX >> (PER_CHUNK - CHUNK / SIZES[class]);
        class += 1;
    }
    all
};

impl Chunks {
    /// Room for so many chunks, none of it touched.
    pub(super) fn new(capacity: usize) -> Self {
        // No block has a size of index 6 or 7, and so none the largest number.
        let capacity = capacity.min(MOST_CHUNKS);
        Chunks {
            bytes: LargeSlice::reserved(capacity * CHUNK),
            chunks: LargeSlice::reserved(capacity),
            capacity,
            empty: NONE,
            with_room: [NONE; SIZES.len()],
            bytes_in_use: 0,
            blocks_in_use: 0,
        }
    }

    /// Chunks that have ever been used.
    pub(super) fn used_ever(&self) -> usize {
        self.chunks.len()
    }

    /// The number of chunks.
    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    /// The bytes of all blocks that are taken.
    pub(super) fn bytes_in_use(&self) -> usize {
        self.bytes_in_use
    }

    /// The number of blocks that are taken.
    pub(super) fn blocks_in_use(&self) -> usize {
        self.blocks_in_use
    }

    /// Takes a block of this class, or of a larger one if it must be.
    pub(super) fn take(&mut self, class: usize) -> Option<BlockId> {
        if self.with_room[class] == NONE
            && let Some(chunk) = self.take_chunk()
        {
            self.chunks[chunk as usize].free = ALL_FREE[class];
            self.link(chunk, class);
        }
        let class = (class..SIZES.len()).find(|&class| self.with_room[class] != NONE)?;
        let chunk = self.with_room[class];
        let entry = &mut self.chunks[chunk as usize];
        let place = entry.free.trailing_zeros();
        entry.free &= entry.free - 1;
        if entry.free == 0 {
            self.unlink(chunk, class);
        }
        self.bytes_in_use += SIZES[class];
        self.blocks_in_use += 1;
        Some(BlockId::new(class, chunk, place))
    }

    /// Gives a taken block back.
    pub(super) fn release(&mut self, block: BlockId) {
        let (chunk, class) = (block.chunk() as u32, block.class());
        let free = self.chunks[block.chunk()].free;
        debug_assert!(free & 1 << block.place() == 0, "given back twice");
        self.chunks[block.chunk()].free = free | 1 << block.place();
        self.bytes_in_use -= SIZES[class];
        self.blocks_in_use -= 1;
        if free == 0 {
            self.link(chunk, class);
        }
        if self.chunks[block.chunk()].free == ALL_FREE[class] {
            self.unlink(chunk, class);
            self.chunks[block.chunk()].later = std::mem::replace(&mut self.empty, chunk);
        }
    }

    /// A block's bytes: whatever was written there last.
    pub(super) fn slice(&self, block: BlockId) -> &[u8] {
        &self.bytes[block.start()..][..block.size()]
    }

    /// The same, to be written.
    pub(super) fn slice_mut(&mut self, block: BlockId) -> &mut [u8] {
        &mut self.bytes[block.start()..][..block.size()]
    }

    /// Copies the first `length` bytes of a block to another.
    pub(super) fn copy(&mut self, from: BlockId, to: BlockId, length: usize) {
        self.bytes.copy_within(from.start()..from.start() + length, to.start());
    }

    /// An empty chunk, one that has been used before if there is any.
    fn take_chunk(&mut self) -> Option<u32> {
        if self.empty != NONE {
            let chunk = self.empty;
            self.empty = self.chunks[chunk as usize].later;
            return Some(chunk);
        }
        let chunk = self.chunks.len();
        if chunk == self.capacity {
            return None;
        }
        let unused = Chunk {
            free: 0,
            earlier: NONE,
            later: NONE,
        };
        self.chunks.grow_to(chunk + 1, unused);
        self.bytes.grow_to((chunk + 1) * CHUNK, 0);
        Some(chunk as u32)
    }

    fn link(&mut self, chunk: u32, class: usize) {
        let later = std::mem::replace(&mut self.with_room[class], chunk);
        (self.chunks[chunk as usize].earlier, self.chunks[chunk as usize].later) = (NONE, later);
        if let Some(later) = self.chunks.get_mut(later as usize) {
            later.earlier = chunk;
        }
    }

    fn unlink(&mut self, chunk: u32, class: usize) {
        let Chunk { earlier, later, .. } = self.chunks[chunk as usize];
        match self.chunks.get_mut(earlier as usize) {
            Some(entry) => entry.later = later,
            None => self.with_room[class] = later,
        }
        if let Some(entry) = self.chunks.get_mut(later as usize) {
            entry.earlier = earlier;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_apart_and_chunks_serve_any_size_in_turn() {
        let mut chunks = Chunks::new(2);
        for (class, &size) in SIZES.iter().enumerate() {
            let blocks: Vec<_> = std::iter::from_fn(|| chunks.take(class)).collect();
            assert_eq!(blocks.len(), 2 * CHUNK / size);
            for (mark, &block) in blocks.iter().enumerate() {
                assert_eq!(chunks.slice(block).len(), size);
                chunks.slice_mut(block).fill(mark as u8);
            }
            for (mark, &block) in blocks.iter().enumerate() {
                assert!(chunks.slice(block).iter().all(|&byte| byte == mark as u8));
                chunks.release(block);
            }
            assert_eq!((chunks.bytes_in_use(), chunks.blocks_in_use()), (0, 0));
        }
    }

    #[test]
    fn a_chunk_is_touched_when_it_is_needed_and_not_before() {
        let mut chunks = Chunks::new(1000);
        for _ in 0..10_000 {
            let blocks: Vec<_> = (0..PER_CHUNK).filter_map(|_| chunks.take(0)).collect();
            blocks.into_iter().for_each(|block| chunks.release(block));
        }
        assert_eq!(chunks.used_ever(), 1);
        let (_large, _small) = (chunks.take(4), chunks.take(0));
        assert_eq!(chunks.used_ever(), 2);
    }

    #[test]
    fn a_larger_block_serves_where_there_is_no_other() {
        let mut chunks = Chunks::new(1);
        let first = chunks.take(3).expect("room");
        let second = chunks.take(0).expect("a larger one");
        assert_eq!((first.size(), second.size()), (4096, 4096));
        assert_eq!(chunks.take(4), None);
    }
}
