//! Checks with content: one thread that talks to servers through the cores' ports.
//!
//! ```text
//!            orders, packets of servers ──► rings ──►┐
//!   core                                             thread: an end point of smoltcp for each check
//!            packets to servers, ends  ◄── a ring ◄──┘
//! ```
//!
//! The core does for such a check what it does for a check by SYN ([`splice::CheckEvent`]): it keeps the schedule, chooses one of the
//! server's source ports, counts results and publishes the server's state. So packets of checks are steered like those of
//! connections. Only the conversation is here: the core's end of the rings ([`CheckLine`]), the thread's ([`Checker`], a function
//! of time and packets), and the thread ([`CheckThread`]).
//!
//! **Bounds.** At most [`MOST_AT_ONCE`] checks are under way, each of some 30 KiB; the others wait for their turn (`turns`). An
//! answer has at most 16 KiB, in at most 96 KiB of TLS, and a check ends at its timeout. The rings have fixed sizes: a packet that
//! finds no room is dropped, and TCP repeats it.
//!
//! A core looks at its ring once a round. A packet is looked up among checks only if it belongs to no connection and no listener.

mod checker;
mod end_point;
mod line;
mod request;
mod talk;
mod thread;
mod tls;
mod turns;

pub use checker::{Checker, MOST_AT_ONCE};
pub use line::{CheckLine, CheckerLine, check_line};
pub use thread::CheckThread;
