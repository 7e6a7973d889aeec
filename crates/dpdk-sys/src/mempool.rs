//! The get and put of `rte_mempool.h`, which are inline in C, over the per-lcore cache that the PMDs share.
//!
//! A registered thread (see [`crate::thread`]) works on its own cache without an atomic read-modify-write; any other thread goes to
//! the pool's ring, which takes many producers and consumers. Both are correct on every thread.
#![allow(unsafe_code)] // FFI is this crate's purpose.

use core::ffi::{c_uint, c_void};
use core::ptr;
use core::sync::atomic::{AtomicU32, Ordering};

use crate::raw::{
    RTE_MAX_LCORE, rte_mempool, rte_mempool_cache, rte_mempool_ops, rte_mempool_ops_table, rte_mempool_walk,
};
use crate::thread;

/// Puts one object back.
///
/// # Safety
/// `object` came from `pool` and nobody else holds it; the pool lives.
#[inline(always)]
pub unsafe fn put(pool: *mut rte_mempool, object: *mut c_void) {
    // SAFETY: as the caller vouches; the cache belongs to this thread.
    unsafe {
        match default_cache(pool) {
            Some(cache) if (*cache).len < (*cache).flushthresh => push(cache, object),
            Some(cache) => {
                flush(pool, cache);
                push(cache, object);
            }
            None => enqueue(pool, &object, 1),
        }
    }
}

/// Takes one object, or null when the pool is empty.
///
/// # Safety
/// The pool lives.
#[inline(always)]
pub unsafe fn get(pool: *mut rte_mempool) -> *mut c_void {
    // SAFETY: the cache belongs to this thread; the first `len` slots hold objects.
    unsafe {
        match default_cache(pool) {
            Some(cache) if (*cache).len > 0 => {
                let len = (*cache).len - 1;
                set_len(cache, len);
                *slot(cache, len)
            }
            _ => get_slow(pool),
        }
    }
}

/// Takes `count` objects or none; false when the pool has fewer.
///
/// # Safety
/// The pool lives and `objects` has room for `count`.
#[inline]
pub unsafe fn get_bulk(pool: *mut rte_mempool, objects: *mut *mut c_void, count: u32) -> bool {
    // SAFETY: the cache belongs to this thread; the first `len` slots hold objects; a refill keeps within `size`.
    unsafe {
        let Some(cache) = default_cache(pool) else {
            return dequeue(pool, objects, count);
        };
        let len = (*cache).len;
        if len < count {
            let refill = (*cache).size + (count - len);
            if count <= (*cache).size && dequeue(pool, slot(cache, len), refill) {
                set_len(cache, len + refill);
            } else {
                // More than a cache holds, or too few for a refill: the ring gives what is missing, the cache the rest.
                if !dequeue(pool, objects.add(len as usize), count - len) {
                    return false;
                }
                ptr::copy_nonoverlapping(slot(cache, 0), objects, len as usize);
                set_len(cache, 0);
                return true;
            }
        }
        let len = (*cache).len - count;
        ptr::copy_nonoverlapping(slot(cache, len), objects, count as usize);
        set_len(cache, len);
        true
    }
}

/// Gives everything in the calling thread's caches back to the pools, all of them.
pub fn flush_own_caches() {
    unsafe extern "C" fn flush_own(pool: *mut rte_mempool, _argument: *mut c_void) {
        // SAFETY: the walk holds the list's lock, so the pool lives; the cache belongs to this thread.
        unsafe {
            if let Some(cache) = default_cache(pool) {
                flush(pool, cache);
            }
        }
    }
    // SAFETY: callable from any thread; without an initialised EAL no thread is registered, hence there is nothing to walk.
    unsafe {
        if thread::lcore_id() != thread::LCORE_ID_ANY {
            rte_mempool_walk(Some(flush_own), ptr::null_mut());
        }
    }
}

/// How many objects are in the pool's ring and in all its caches; exact when no thread is using the pool.
///
/// # Safety
/// The pool lives.
pub unsafe fn available(pool: *const rte_mempool) -> u32 {
    // SAFETY: the lengths of other threads' caches are read atomically and with acquire, so that a full count also means that
    // every put has finished its writes.
    unsafe {
        let in_ring = (*ops(pool)).get_count.map_or(0, |count| count(pool));
        if (*pool).cache_size == 0 || (*pool).local_cache.is_null() {
            return in_ring;
        }
        let in_caches = (0..RTE_MAX_LCORE as usize)
            .map(|lcore| AtomicU32::from_ptr(&raw mut (*(*pool).local_cache.add(lcore)).len).load(Ordering::Acquire));
        in_ring + in_caches.sum::<u32>()
    }
}

/// The cache was empty or the thread has none: refill and take, or take one from the ring.
#[cold]
#[inline(never)]
unsafe fn get_slow(pool: *mut rte_mempool) -> *mut c_void {
    let mut object = ptr::null_mut();
    // SAFETY: `get` vouches for the pool; `object` has room for one.
    if unsafe { get_bulk(pool, &mut object, 1) } {
        object
    } else {
        ptr::null_mut()
    }
}

/// The calling thread's cache, if the pool has caches and the thread is registered.
#[inline(always)]
unsafe fn default_cache(pool: *mut rte_mempool) -> Option<*mut rte_mempool_cache> {
    let lcore = thread::lcore_id();
    // SAFETY: the pool lives; `local_cache` has RTE_MAX_LCORE entries unless `cache_size` is 0.
    unsafe { (lcore < RTE_MAX_LCORE && (*pool).cache_size != 0).then(|| (*pool).local_cache.add(lcore as usize)) }
}

#[inline(always)]
unsafe fn slot(cache: *mut rte_mempool_cache, index: u32) -> *mut *mut c_void {
    // SAFETY: callers stay within twice RTE_MEMPOOL_CACHE_MAX_SIZE, the length of `objs`.
    unsafe { (&raw mut (*cache).objs).cast::<*mut c_void>().add(index as usize) }
}

#[inline(always)]
unsafe fn push(cache: *mut rte_mempool_cache, object: *mut c_void) {
    // SAFETY: callers checked that there is room below `flushthresh`.
    unsafe {
        let len = (*cache).len;
        *slot(cache, len) = object;
        set_len(cache, len + 1);
    }
}

/// Publishes the new length after the slots were written, for [`available`] on another thread; a plain store on x86-64.
#[inline(always)]
unsafe fn set_len(cache: *mut rte_mempool_cache, len: u32) {
    // SAFETY: aligned, and only this thread writes it.
    unsafe { AtomicU32::from_ptr(&raw mut (*cache).len) }.store(len, Ordering::Release);
}

#[cold]
unsafe fn flush(pool: *mut rte_mempool, cache: *mut rte_mempool_cache) {
    // SAFETY: the first `len` slots hold objects of this pool.
    unsafe {
        if (*cache).len > 0 {
            enqueue(pool, slot(cache, 0), (*cache).len);
        }
        set_len(cache, 0);
    }
}

/// `rte_mempool_ops_enqueue_bulk`: puts `count` objects into the pool itself, past the cache of any thread.
///
/// # Safety
/// `pool` is a live pool and `objects` points to `count` objects of it that nobody uses.
#[inline]
pub unsafe fn enqueue(pool: *mut rte_mempool, objects: *const *mut c_void, count: u32) {
    // SAFETY: the ring is as large as the pool, so that giving back cannot fail.
    unsafe {
        if let Some(enqueue) = (*ops(pool)).enqueue {
            let result = enqueue(pool, objects, count as c_uint);
            debug_assert_eq!(result, 0, "an object was given back twice or to another pool");
        }
    }
}

#[inline]
unsafe fn dequeue(pool: *mut rte_mempool, objects: *mut *mut c_void, count: u32) -> bool {
    // SAFETY: `objects` has room for `count`.
    unsafe {
        (*ops(pool))
            .dequeue
            .is_some_and(|dequeue| dequeue(pool, objects, count as c_uint) == 0)
    }
}

#[inline(always)]
unsafe fn ops(pool: *const rte_mempool) -> *const rte_mempool_ops {
    // SAFETY: a live pool's `ops_index` is an index into the table of registered operations.
    unsafe {
        (&raw const rte_mempool_ops_table.ops)
            .cast::<rte_mempool_ops>()
            .add((*pool).ops_index as usize)
    }
}
