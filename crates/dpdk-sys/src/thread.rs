//! The EAL's thread-local variables, and the lcore id that the mempool caches are indexed by.
//!
//! `rte_errno` and `rte_lcore_id()` are macros over C thread-locals, which stable Rust cannot declare. `dlsym` resolves a
//! thread-local symbol to the calling thread's instance, which is enough for errors and registration. The packet path
//! reads a Rust thread-local instead, set by [`register`].
#![allow(unsafe_code)] // FFI is this crate's purpose.

use core::cell::Cell;
use core::ffi::{CStr, c_int, c_void};
use core::ptr;

use crate::{mempool, raw};

/// The lcore id of a thread that is not registered, `LCORE_ID_ANY` of `rte_lcore.h`.
pub const LCORE_ID_ANY: u32 = u32::MAX;

thread_local! {
    // `const` and without `Drop`: reading it is one instruction relative to the thread pointer.
    static LCORE: Cell<u32> = const { Cell::new(LCORE_ID_ANY) };
}

/// The calling thread's lcore id, or [`LCORE_ID_ANY`]; as cheap as `rte_lcore_id()`.
#[inline(always)]
pub fn lcore_id() -> u32 {
    LCORE.get()
}

/// Gives the calling thread an lcore id, hence its own cache in every mempool, for our inline functions and the PMDs alike.
///
/// # Errors
/// The `rte_errno`: `ENOMEM` when all `RTE_MAX_LCORE` ids are taken, `EINVAL` before `rte_eal_init`.
pub fn register() -> Result<u32, c_int> {
    // SAFETY: callable from any thread; before EAL initialisation it fails with EINVAL.
    let result = unsafe { raw::rte_thread_register() };
    if result < 0 {
        return Err(errno());
    }
    let id = thread_local_address(c"per_lcore__lcore_id")
        // SAFETY: the symbol is an `unsigned int` in librte_eal and the address is this thread's instance.
        .map_or(LCORE_ID_ANY, |address| unsafe { *address.cast::<u32>() });
    LCORE.set(id);
    Ok(id)
}

/// Takes the lcore id back, after what is in its mempool caches, where no other thread could take it.
pub fn unregister() {
    mempool::flush_own_caches();
    LCORE.set(LCORE_ID_ANY);
    // SAFETY: callable from any thread; it does nothing to a thread that is not registered.
    unsafe { raw::rte_thread_unregister() };
}

/// The calling thread's `rte_errno`.
pub fn errno() -> c_int {
    thread_local_address(c"per_lcore__rte_errno")
        // SAFETY: the symbol is an `int` in librte_eal and the address is this thread's instance.
        .map_or(0, |address| unsafe { *address.cast::<c_int>() })
}

/// What `errno` means, by `rte_strerror`.
pub fn error_text(errno: c_int) -> String {
    // SAFETY: returns a NUL-terminated string in static or per-thread memory, copied at once.
    unsafe { CStr::from_ptr(raw::rte_strerror(errno)) }
        .to_string_lossy()
        .into_owned()
}

/// The calling thread's instance of an exported thread-local variable.
fn thread_local_address(symbol: &CStr) -> Option<*mut c_void> {
    // SAFETY: a null handle is RTLD_DEFAULT, the name is NUL-terminated; a missing symbol gives null.
    let address = unsafe { raw::dlsym(ptr::null_mut(), symbol.as_ptr()) };
    (!address.is_null()).then_some(address)
}
