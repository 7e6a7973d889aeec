//! The parts of a simulated network in virtual time: random numbers, links that misbehave, hosts with smoltcp's TCP.
//!
//! Nothing here reads a clock or the system's random numbers: one seed and one plan give one course of events.
//!
//! What smoltcp 0.14 does not do, and so cannot be blamed on what is between two of it: its sender ignores SACK blocks,
//! it neither checks nor keeps RFC 7323 timestamps (no PAWS), it ignores packet-too-big messages, its TIME-WAIT lasts
//! ten seconds, and it never gives up a connection unless a time-out is set. Its sender does not survive a window whose
//! right edge moves back: it neither repeats what fell outside nor probes from the first unacknowledged byte. What else
//! it does not survive, [`Host`] keeps from it.

mod duty;
mod fin;
mod host;
mod link;
mod next;
mod places;
mod random;
mod window;
mod wire;

pub use duty::Ends;
pub use host::{Host, HostPlan, SynOptions, set_clock};
pub use link::{Impairment, Link, Outage, Treatment};
pub use places::SocketId;
pub use random::Random;
pub use smoltcp::socket::tcp;
