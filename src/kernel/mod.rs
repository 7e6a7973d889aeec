//! The exception path: what is not the engine's goes to the Linux kernel and comes back, so that one NIC serves both.
//!
//! ```text
//!              core 0 … n                        one thread per port              kernel
//!   port ─► parse ─► engine's? ─► proxy, station
//!                       │ no
//!                       ▼ rate
//!                  KernelEnd ──── frame ring ───────► Pump ─── write ───► TAP ─► sshd, bgpd, ping …
//!   port ◄── send ◄────┘ (core 0) ◄── frame ring ──── Pump ◄── read ───── TAP
//! ```
//!
//! What lives here: who gets which frame ([`Claims`]), the ends of the way on the cores ([`KernelEnd`]), the thread that
//! reads and writes the TAP ([`pump`]), and what all of it counts. What does not: the device itself ([`e2d2::tap`]).
//!
//! **Who gets what.** The engine comes first: its listeners' addresses and ports, the ports that it connects from, ICMP
//! errors about either, and ARP and neighbour discovery for every address that it answers for. The kernel gets what is left
//! of the traffic to *its* addresses, which may be the engine's: TCP that no listener takes, UDP and other protocols, ping.
//! Answers to ARP requests and solicitations go to both, as either may have asked. Exactly one of them answers requests:
//! the kernel for addresses that it alone has, the engine for all others; both have the same MAC address, the port's.
//!
//! **Bounds.** A core makes no system call: it copies the frame into a ring of fixed size. A token bucket per core and one
//! per device limit the frames a second; everything that does not pass is counted under a [`KernelDrop`].
//!
//! Fragments, packets with IPv6 extension headers and frames to groups do not get here: they are dropped before.

mod claims;
mod end;
mod link;
mod namespace;
pub mod pump;
mod ring;

pub use claims::{Claims, Share};
pub use end::{FRAMES_PER_POLL, KernelCounterReader, KernelCounters, KernelEnd, Lane};
pub use link::{KernelError, KernelLinks, connect};
pub use ring::{FrameReceiver, FrameSender, RingFull, frame_ring};

e2d2::reasons! {
    /// Why a frame did not get to the kernel, or not from it.
    pub enum KernelDrop {
        /// More frames a second than the port's `kernel.rate`.
        RateLimited = "rate_limited",
        /// The ring to the kernel's thread is full.
        QueueFull = "queue_full",
        /// Neither the engine nor the kernel has to do with it.
        NotForKernel = "not_for_kernel",
        /// No buffer for a frame of the kernel's.
        NoBuffer = "no_buffer",
        /// A frame of the kernel's that is no Ethernet frame.
        TooShort = "too_short",
        /// A frame of the kernel's that is longer than the port's MTU allows.
        TooLong = "too_long",
        /// A frame of the kernel's that has another source than the port's MAC address.
        ForeignSource = "foreign_source",
        /// The kernel did not take it: the device is down, or it has no memory.
        Refused = "refused",
    }
}

e2d2::reasons! {
    /// What passed.
    pub enum KernelEvent {
        /// A core has put a frame for the kernel into its ring.
        Passed = "passed",
        /// A core has put a copy there of what the engine uses as well.
        Copied = "copied",
        /// A core has sent a frame of the kernel's.
        Sent = "sent",
        /// The kernel has taken a frame.
        Written = "written",
        /// The kernel has given a frame.
        Read = "read",
    }
}
