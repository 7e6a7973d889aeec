//! Raw bindings to the DPDK 22.11 that Debian packages, and the handful of its inline functions that a packet path needs.
//!
//! What lives here: what bindgen makes of the headers ([`raw`], re-exported at the root), and Rust versions of the
//! functions that DPDK defines as `static inline` and that therefore no library exports: rx and tx burst over
//! `rte_eth_fp_ops` ([`ethdev`]), allocation over the mempool's per-lcore cache ([`mempool`], [`mbuf`]) and the two
//! thread-local variables of the EAL ([`thread`]). There is no C shim: a burst costs three loads and one indirect call, as
//! in C. What does not live here: anything safe; that is `e2d2::native`.
//!
//! Everything is `unsafe` with the contract of the DPDK function of the same name.

pub mod ethdev;
pub mod mbuf;
pub mod mempool;
pub mod raw;
pub mod thread;

pub use raw::*;
