//! Which address belongs to which socket.
//!
//! Indexed by descriptor, and named by the socket's cookie, which the kernel never gives twice: an entry whose socket is gone
//! is not found, and is overwritten when its descriptor is used again.
//!
//! No lock, no wait, no allocator: `accept`, `dup2` and `getpeername` may be called in a signal handler that has interrupted one of
//! them, by a child between `fork` and `exec`, and by any number of threads. An entry is a cache line of words with a sum over them. Whoever
//! reads words of two writers finds that the sum is wrong, and takes the entry for none. That needs two writers for one
//! descriptor at the same time, which are two calls of `dup2` to it; the search by cookie still finds the original.
//!
//! Cost: 8 stores to note a client, 8 loads to find one, as many as with a lock but without its two locked instructions.
#![allow(unsafe_code)]

use crate::sys;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

/// What a header said.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    /// The client.
    pub(crate) peer: SocketAddr,
    /// What it connected to.
    pub(crate) destination: SocketAddr,
}

/// Entries of a block, and blocks: together a bound in case descriptors are numbered wildly (`F_DUPFD`). Nobody has more.
const BLOCK: usize = 1024;
const BLOCKS: usize = 1024;

/// Words of a claim: the two addresses, their ports, their families.
const CLAIM: usize = 6;

/// A block is mapped when one of its descriptors is first noted, and stays.
static TABLE: [AtomicPtr<Block>; BLOCKS] = [const { AtomicPtr::new(ptr::null_mut()) }; BLOCKS];

/// A block was mapped.
static IS_USED: AtomicBool = AtomicBool::new(false);

/// All zero as mapped: the sum of no entry is 0.
#[repr(C)]
struct Block([Entry; BLOCK]);

#[repr(C, align(64))]
struct Entry {
    cookie: AtomicU64,
    claim: [AtomicU64; CLAIM],
    sum: AtomicU64,
}

impl Entry {
    fn write(&self, cookie: u64, claim: &Claim) {
        let words = encode(claim);
        // Relaxed: the sum says what belongs together, in whatever order it is seen.
        self.cookie.store(cookie, Ordering::Relaxed);
        for (cell, word) in self.claim.iter().zip(words) {
            cell.store(word, Ordering::Relaxed);
        }
        self.sum.store(sum(cookie, &words), Ordering::Relaxed);
    }

    /// The claim if it is this socket's and whole.
    fn read(&self, cookie: u64) -> Option<Claim> {
        if self.cookie.load(Ordering::Relaxed) != cookie {
            return None;
        }
        let words = std::array::from_fn(|index| self.claim[index].load(Ordering::Relaxed));
        (self.sum.load(Ordering::Relaxed) == sum(cookie, &words)).then(|| decode(&words))
    }
}

/// Notes what a socket's header said.
pub(crate) fn insert(fd: i32, cookie: u64, claim: Claim) {
    let Some(index) = usize::try_from(fd).ok().filter(|&index| index < BLOCK * BLOCKS) else {
        return;
    };
    if let Some(block) = block_for(index / BLOCK) {
        block.0[index % BLOCK].write(cookie, &claim);
    }
}

/// What this socket's header said. A duplicate that was not seen being made is found by a search.
pub(crate) fn find(fd: i32, cookie: u64) -> Option<Claim> {
    let index = usize::try_from(fd).ok().filter(|&index| index < BLOCK * BLOCKS);
    let own = index.and_then(|index| block(index / BLOCK)?.0[index % BLOCK].read(cookie));
    own.or_else(|| {
        let mut entries = (0..BLOCKS).filter_map(block).flat_map(|block| &block.0);
        entries.find_map(|entry| entry.read(cookie))
    })
}

/// Whether anything was ever noted: most processes that are preloaded never accept.
pub(crate) fn is_empty() -> bool {
    !IS_USED.load(Ordering::Relaxed)
}

fn block(number: usize) -> Option<&'static Block> {
    let block = TABLE[number].load(Ordering::Acquire);
    // SAFETY: it is null, or points to a whole block of zeros and atomics that is never unmapped.
    unsafe { block.as_ref() }
}

/// The block, mapped if it is not there; `None` without memory.
fn block_for(number: usize) -> Option<&'static Block> {
    if let Some(block) = block(number) {
        return Some(block);
    }
    // A system call of its own: the allocator has locks.
    let fresh = sys::map_zeroed::<Block>()?;
    let kept = TABLE[number].compare_exchange(ptr::null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire);
    IS_USED.store(true, Ordering::Relaxed);
    if kept.is_err() {
        // SAFETY: it was mapped here, and nobody else has seen it.
        unsafe { sys::unmap(fresh) };
    }
    block(number)
}

fn encode(claim: &Claim) -> [u64; CLAIM] {
    let (peer, destination) = (words(claim.peer.ip()), words(claim.destination.ip()));
    let ports = u64::from(claim.peer.port()) << 16 | u64::from(claim.destination.port());
    let families = u64::from(claim.peer.is_ipv6()) << 1 | u64::from(claim.destination.is_ipv6());
    [peer[0], peer[1], destination[0], destination[1], ports, families]
}

fn decode(words: &[u64; CLAIM]) -> Claim {
    let [peer, more_peer, destination, more_destination, ports, families] = *words;
    Claim {
        peer: SocketAddr::new(address([peer, more_peer], families & 2 != 0), (ports >> 16) as u16),
        destination: SocketAddr::new(
            address([destination, more_destination], families & 1 != 0),
            ports as u16,
        ),
    }
}

fn words(ip: IpAddr) -> [u64; 2] {
    match ip {
        IpAddr::V4(ip) => [u64::from(ip.to_bits()), 0],
        IpAddr::V6(ip) => [(ip.to_bits() >> 64) as u64, ip.to_bits() as u64],
    }
}

fn address(words: [u64; 2], is_ipv6: bool) -> IpAddr {
    if is_ipv6 {
        Ipv6Addr::from_bits(u128::from(words[0]) << 64 | u128::from(words[1])).into()
    } else {
        Ipv4Addr::from_bits(words[0] as u32).into()
    }
}

/// Never 0, which is what an entry has that was never written.
fn sum(cookie: u64, words: &[u64; CLAIM]) -> u64 {
    let mix = |sum: u64, word: &u64| (sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    words.iter().fold(mix(0x5052_4f58_594c_4942, &cookie), mix) | 1
}
