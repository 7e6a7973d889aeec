//! Bytes that an inspector has put in the place of others, until their receiver acknowledges them.
//!
//! A queue for each direction in blocks of a pool of fixed size: what one connection does not need another can have.
//! Blocks are linked by index; a queue has at most 33 of them, so walking one is bounded.

/// The size of a block.
const BLOCK: usize = 2 * 1024;

/// The most bytes that one direction keeps (DECISIONS.md 23).
pub(crate) const LIMIT: usize = 64 * 1024;

/// No block.
const NONE: u32 = u32::MAX;

/// The blocks of one core.
pub(crate) struct KeptPool {
    bytes: Box<[u8]>,
    next: Box<[u32]>,
    free: u32,
    free_count: usize,
}

/// A queue of bytes; its memory is the pool's.
#[derive(Debug)]
pub(crate) struct Kept {
    first: u32,
    last: u32,
    /// Bytes of the first block that are gone already.
    skip: usize,
    len: usize,
}

impl Kept {
    /// An empty queue.
    pub(crate) const EMPTY: Kept = Kept {
        first: NONE,
        last: NONE,
        skip: 0,
        len: 0,
    };

    /// The number of bytes in it.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Bytes that fit the last block.
    fn slack(&self) -> usize {
        if self.first == NONE {
            return 0;
        }
        (BLOCK - (self.skip + self.len) % BLOCK) % BLOCK
    }
}

impl KeptPool {
    pub(crate) fn new(blocks: usize) -> Self {
        let next = (1..=blocks as u32)
            .map(|next| if next == blocks as u32 { NONE } else { next })
            .collect();
        KeptPool {
            bytes: vec![0; blocks * BLOCK].into_boxed_slice(),
            next,
            free: if blocks == 0 { NONE } else { 0 },
            free_count: blocks,
        }
    }

    /// How many bytes `kept` can take now.
    pub(crate) fn room(&self, kept: &Kept) -> usize {
        (LIMIT - kept.len.min(LIMIT)).min(kept.slack() + self.free_count * BLOCK)
    }

    /// Appends all of `bytes`; false, and nothing is done, if there is no room for them.
    pub(crate) fn append(&mut self, kept: &mut Kept, bytes: &[u8]) -> bool {
        if bytes.len() > self.room(kept) {
            return false;
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            if kept.slack() == 0 {
                let block = self.take();
                self.next[block as usize] = NONE;
                match kept.last {
                    NONE => kept.first = block,
                    last => self.next[last as usize] = block,
                }
                kept.last = block;
            }
            let used = (kept.skip + kept.len) % BLOCK;
            let (now, later) = rest.split_at(rest.len().min(BLOCK - used));
            let start = kept.last as usize * BLOCK + used;
            self.bytes[start..start + now.len()].copy_from_slice(now);
            kept.len += now.len();
            rest = later;
        }
        true
    }

    /// Forgets the first `count` bytes.
    pub(crate) fn release(&mut self, kept: &mut Kept, count: usize) {
        let count = count.min(kept.len);
        kept.len -= count;
        kept.skip += count;
        while kept.first != NONE && (kept.skip >= BLOCK || kept.len == 0) {
            let block = kept.first;
            kept.first = self.next[block as usize];
            kept.skip = if kept.len == 0 { 0 } else { kept.skip - BLOCK };
            self.next[block as usize] = self.free;
            self.free = block;
            self.free_count += 1;
        }
        if kept.first == NONE {
            kept.last = NONE;
        }
    }

    /// Copies bytes from the `at`-th on into `out`, as many as there are and fit; returns how many.
    pub(crate) fn copy(&self, kept: &Kept, at: usize, out: &mut [u8]) -> usize {
        let wanted = out.len().min(kept.len.saturating_sub(at));
        let mut position = kept.skip + at;
        let mut block = kept.first;
        while position >= BLOCK && block != NONE {
            block = self.next[block as usize];
            position -= BLOCK;
        }
        let mut done = 0;
        while done < wanted && block != NONE {
            let count = (wanted - done).min(BLOCK - position);
            let start = block as usize * BLOCK + position;
            out[done..done + count].copy_from_slice(&self.bytes[start..start + count]);
            done += count;
            position = 0;
            block = self.next[block as usize];
        }
        done
    }

    /// The number of blocks in use.
    pub(crate) fn in_use(&self) -> usize {
        self.next.len() - self.free_count
    }

    /// The memory of the pool in bytes.
    pub(crate) fn memory(&self) -> usize {
        self.bytes.len() + size_of_val(&*self.next)
    }

    /// A free block: [`KeptPool::room`] has said that there is one.
    fn take(&mut self) -> u32 {
        let block = self.free;
        self.free = self.next[block as usize];
        self.free_count -= 1;
        block
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    #[test]
    fn a_queue_gives_back_what_it_got_in_any_steps() {
        let mut pool = KeptPool::new(100);
        let mut state = 7_u64;
        let mut random = |n: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % n as u64) as usize
        };
        let mut queues: [(Kept, VecDeque<u8>); 4] = std::array::from_fn(|_| (Kept::EMPTY, VecDeque::new()));
        for step in 0..20_000 {
            let (kept, model) = &mut queues[random(4)];
            if random(2) == 0 {
                let bytes: Vec<u8> = (0..random(5000)).map(|i| (i * 31 + step) as u8).collect();
                let room = pool.room(kept);
                assert_eq!(pool.append(kept, &bytes), bytes.len() <= room);
                if bytes.len() <= room {
                    model.extend(&bytes);
                }
            } else {
                let count = random(5000);
                pool.release(kept, count);
                model.drain(..count.min(model.len()));
            }
            assert_eq!(kept.len(), model.len());
            let at = random(kept.len() + 1);
            let mut out = vec![0; random(9000)];
            let copied = pool.copy(kept, at, &mut out);
            assert_eq!(copied, out.len().min(kept.len() - at));
            assert!(out[..copied].iter().eq(model.range(at..at + copied)), "step {step}");
        }
        for (kept, _) in &mut queues {
            pool.release(kept, usize::MAX);
        }
        assert_eq!(pool.in_use(), 0);
    }

    #[test]
    fn limits_are_exact() {
        let mut pool = KeptPool::new(40);
        let mut kept = Kept::EMPTY;
        assert!(!pool.append(&mut kept, &vec![1; LIMIT + 1]));
        assert!(pool.append(&mut kept, &vec![1; LIMIT]));
        assert_eq!((pool.room(&kept), pool.in_use()), (0, 32));
        let mut other = Kept::EMPTY;
        assert_eq!(pool.room(&other), 8 * BLOCK);
        assert!(pool.append(&mut other, &[1; 8 * BLOCK]));
        assert!(!pool.append(&mut other, &[1]));
        // A block that is begun and not the first keeps its beginning: 33 at most.
        pool.release(&mut kept, 1);
        assert_eq!(pool.room(&kept), 0);
        pool.release(&mut other, 1);
        pool.release(&mut other, 8 * BLOCK);
        assert_eq!(pool.room(&kept), 1);
        assert!(pool.append(&mut kept, &[2]));
        pool.release(&mut kept, usize::MAX);
        assert_eq!(pool.in_use(), 0);
        assert!(KeptPool::new(0).room(&Kept::EMPTY) == 0);
    }
}
