//! Where the buffers of a pool lie in ordinary pages: each at another place of its page.
//!
//! DPDK lets no buffer reach over the end of a page, as a card's DMA needs it, and so gives each a page to itself where two do
//! not fit, which is so with 2 KiB of data in pages of 4 KiB. By itself it begins them all with their page. Then what is read
//! of every packet, its header and the beginning of its data, differs in no address bit below the page's, which are those that
//! choose the set of a first-level cache: 32 packets of a burst want three sets of 64, of eight to twelve lines each, and what
//! was asked for ahead is gone before its turn. The rest of the page is room to move: with 28 places in turn nothing is lost.
//!
//! In hugepages buffers follow each other, an odd number of lines apart, which spreads them as well.

#![allow(unsafe_code)] // FFI: adds to DPDK's table of mempool operations, and is called by it

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::ptr;
use std::sync::OnceLock;

use dpdk_sys as sys;

use super::eal_args::Memory;

/// The operations' name in DPDK's table; at most 31 bytes.
const NAME: &CStr = c"ring_mp_mc_spread";

/// Bytes of a cache line, by which places differ: DPDK aligns buffers to it.
const LINE: usize = sys::RTE_CACHE_LINE_SIZE as usize;

/// The name of the mempool operations for a pool of packets in `memory`, as `rte_pktmbuf_pool_create_by_ops` takes it: null for
/// DPDK's own choice.
pub(super) fn operations(memory: &Memory) -> *const c_char {
    // DPDK's table is global to the process, keeps what is in it and has sixteen places.
    static IS_REGISTERED: OnceLock<bool> = OnceLock::new();
    match memory {
        Memory::Ordinary { .. } if *IS_REGISTERED.get_or_init(register) => NAME.as_ptr(),
        _ => ptr::null(),
    }
}

/// Enters the operations of DPDK's default pool under [`NAME`], with [`populate`] instead of their own; returns whether that
/// was possible. Without them everything works, only slower.
fn register() -> bool {
    // SAFETY: the table is static, and the first `num_ops` entries of it are complete and stay as they are.
    let mut known = unsafe {
        let table = &raw const sys::rte_mempool_ops_table;
        let first = (&raw const (*table).ops).cast::<sys::rte_mempool_ops>();
        (0..(*table).num_ops as usize).map(move |index| first.add(index).read())
    };
    // SAFETY: names end with NUL, as `rte_mempool_register_ops` sees to.
    let is_default =
        |known: &sys::rte_mempool_ops| unsafe { CStr::from_ptr(known.name.as_ptr()) }.to_bytes_with_nul() == DEFAULT;
    let Some(mut operations) = known.find(is_default) else {
        log::warn!("DPDK has no mempool operations of the usual name: packets share few sets of the cache");
        return false;
    };
    for (to, &from) in operations.name.iter_mut().zip(NAME.to_bytes_with_nul()) {
        *to = from as c_char;
    }
    operations.populate = Some(populate);
    // SAFETY: the entry is copied, and its functions are static.
    let is_entered = unsafe { sys::rte_mempool_register_ops(&raw const operations) } >= 0;
    if !is_entered {
        log::warn!("DPDK has no place left for mempool operations: packets share few sets of the cache");
    }
    is_entered
}

/// The name of the operations that `rte_pktmbuf_pool_create` chooses.
const DEFAULT: &[u8] = sys::RTE_MBUF_DEFAULT_MEMPOOL_OPS;

/// The `populate` of `rte_mempool_ops`: puts up to `most` buffers into the `len` bytes at `start` and gives each to `each` and
/// to the pool; returns how many.
///
/// # Safety
/// As for `rte_mempool_op_populate_default`: the memory is the new pool's.
unsafe extern "C" fn populate(
    pool: *mut sys::rte_mempool,
    most: c_uint,
    start: *mut c_void,
    iova: sys::rte_iova_t,
    len: usize,
    each: sys::rte_mempool_populate_obj_cb_t,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: the pool lives.
    let (header, size) = unsafe {
        let pool = &*pool;
        (
            pool.header_size as usize,
            (pool.header_size + pool.elt_size + pool.trailer_size) as usize,
        )
    };
    let page = rustix::param::page_size();
    if page / size != 1 {
        // SAFETY: the arguments are those of our caller, which are those of this function's.
        return unsafe { sys::rte_mempool_op_populate_default(pool, most, start, iova, len, each, argument) };
    }
    let mut count = 0;
    for place in places(start.addr(), len, (page, size)).take(most as usize) {
        // SAFETY: a buffer's header, itself and its trailer lie within the memory from `place` on.
        unsafe {
            let object = start.byte_add(place + header);
            if let Some(each) = each {
                // An address that is not known stays so.
                let is_known = iova != sys::rte_iova_t::MAX;
                let iova = if is_known { iova + (place + header) as u64 } else { iova };
                each(pool, argument, object, iova);
            }
            sys::mempool::enqueue(pool, &raw const object, 1);
        }
        count += 1;
    }
    count
}

/// Where buffers of `size` bytes begin, in bytes from `start`: one in each page that has room for one, as many as DPDK's own
/// operations put there, at each line in turn from which it still fits.
fn places(start: usize, len: usize, (page, size): (usize, usize)) -> impl Iterator<Item = usize> {
    let end = start + len;
    let lines = (page - size) / LINE + 1;
    let pages = (start / page * page..end).step_by(page);
    pages.zip((0..lines).cycle()).filter_map(move |(begin, line)| {
        // The first page may have begun before, and the memory may end within the last.
        let from = begin.max(start);
        let room = end.min(begin + page).checked_sub(from + size)?;
        let shift = Some(line * LINE).filter(|&shift| shift <= room);
        Some(from + shift.unwrap_or_default() - start)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 4096;

    /// As of 2 KiB of data: 28 places.
    const SIZE: usize = 37 * LINE;

    fn found(start: usize, len: usize) -> Vec<usize> {
        places(start, len, (PAGE, SIZE)).collect()
    }

    #[test]
    fn buffers_lie_in_pages_of_their_own_and_at_every_line_in_turn() {
        for (number, place) in found(100 * PAGE, 60 * PAGE).into_iter().enumerate() {
            assert_eq!(place, number * PAGE + number % 28 * LINE);
            assert!(place % PAGE + SIZE <= PAGE);
        }
        assert_eq!(found(100 * PAGE, 60 * PAGE).len(), 60);
    }

    #[test]
    fn what_there_is_of_the_first_and_the_last_page_is_used_if_it_is_enough() {
        let late = PAGE - SIZE;
        for (start, len, expected) in [
            (PAGE, PAGE + SIZE - 1, vec![0]),
            (PAGE, PAGE + SIZE, vec![0, PAGE]),
            (PAGE, PAGE + SIZE + LINE, vec![0, PAGE + LINE]),
            (PAGE + late, SIZE, vec![0]),
            (PAGE + late, SIZE + PAGE, vec![0, SIZE + LINE]),
            (PAGE + late + LINE, SIZE + PAGE, vec![SIZE - LINE + LINE]),
            (PAGE, SIZE - 1, vec![]),
            (PAGE, 0, vec![]),
        ] {
            assert_eq!(found(start, len), expected, "{start} {len}");
        }
    }

    #[test]
    fn as_many_fit_as_dpdk_asks_memory_for() {
        // `rte_mempool_op_calc_mem_size_default` with one buffer for each page, wherever the memory begins.
        for count in 1..100 {
            let len = (count - 1) * PAGE + SIZE + SIZE - 1;
            for start in (0..PAGE).step_by(LINE) {
                assert!(found(start, len).len() >= count, "{count} at {start}");
            }
        }
    }

    #[test]
    fn a_buffer_as_large_as_a_page_has_one_place() {
        let places = places(PAGE, 3 * PAGE, (PAGE, PAGE));
        assert_eq!(places.collect::<Vec<_>>(), [0, PAGE, 2 * PAGE]);
    }
}
