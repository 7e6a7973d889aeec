//! libproxyproto.so: preloaded into a server, it takes PROXY protocol headers off accepted connections and lets the
//! server see the client's address, without a further process, copy or hop.
//!
//! ```text
//! LD_PRELOAD=libproxyproto.so LIBPROXYPROTO_MUST_USE_PROTOCOL_HEADER=1 redis-server
//! ```
//!
//! What is replaced, and nothing else: `listen` (asks the kernel to hold connections back until data is there), `accept`
//! and `accept4` (header off, address changed), `getpeername` and, if asked for, `getsockname`, `dup`, `dup2`, `dup3`,
//! and the `exec` family (addresses survive it). Reading and writing are the kernel's own: no call is added.
//!
//! ```text
//!            accept ──► header whole? ──yes──► address noted (`table.rs`), connection returned
//!                           │ no: split, or the client is silent
//!                           ▼
//!                     `pending.rs`: one helper thread waits, with a deadline, then connects to the listener, so that
//!                     whatever the server waits with (select, poll, epoll, a blocking accept) wakes up
//! ```
//!
//! So a non-blocking listener is never blocked, and a blocking one is not blocked by one silent client while others are
//! there. Addresses are found by the socket itself (its cookie): a descriptor that was closed, by whatever means, and
//! used again never shows an old address, and nothing has to be freed. Across `exec` they travel with the socket, as
//! constants of a packet filter that passes everything (`stash.rs`).
//!
//! Static programs, raw system calls and `io_uring` do not come by here. `docs/libproxyproto.md` has the details.

mod hooks;
mod lock;
mod options;
mod pending;
mod stash;
mod sys;
mod table;
