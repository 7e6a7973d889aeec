//! Wire formats: how Ethernet, ARP, IP, TCP and ICMP look as bytes, and nothing of what they mean to a connection.
//!
//! Three levels, each for its use:
//!
//! * [`frame::parse`] checks a received frame once and returns offsets that are known to be good: the packet path.
//! * `XPacket` views (`new_checked`, then accessors) in smoltcp's manner: everything that is not the packet path.
//!   No accessor panics, whatever the bytes are.
//! * value types that write a whole message with its checksums: what is originated here.

mod mac;

pub mod frame;

pub use mac::MacAddr;
