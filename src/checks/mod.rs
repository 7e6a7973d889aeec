//! Checks with content: one thread that speaks to servers through the cores' own ports.
//!
//! ```text
//!            orders, packets of servers ──► rings ──►┐
//!   core                                             thread: an end point of smoltcp for each check
//!            packets to servers, ends  ◄── a ring ◄──┘
//! ```
//!
//! The core does with such a check what it does with a SYN ([`splice::CheckEvent`]): when it is time, from which of the server's
//! source ports, what counts, what all cores are told. So nothing of it has to be reserved, and every packet comes to the core that
//! waits for it. Only what is said is here: the core's end of the rings ([`CheckLine`]), the thread's ([`Checker`], a function of time
//! and packets), and the thread itself ([`CheckThread`]).
//!
//! **Bounds.** [`MOST_AT_ONCE`] checks at a time, of which each holds some 30 KiB; the rest are put off by the core. A server may
//! say 16 KiB before it has to have answered, in 96 KiB of TLS, and a check ends at its timeout whatever comes. The rings have fixed sizes:
//! what finds no room is lost, as on any way, and repeated.
//!
//! A core looks at its ring once a round; a packet costs it something only if no connection has it, and no listener.

mod checker;
mod end_point;
mod line;
mod request;
mod talk;
mod thread;
mod tls;

pub use checker::{Checker, MOST_AT_ONCE};
pub use line::{CheckLine, CheckerLine, check_line};
pub use thread::CheckThread;
