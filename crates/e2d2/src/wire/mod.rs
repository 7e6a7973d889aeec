//! Wire formats: how Ethernet, ARP, IP, TCP and ICMP look as bytes, and nothing of what they mean to a connection.
//!
//! Three levels, each for its use:
//!
//! * [`frame::parse`] checks a received frame once and returns offsets that are known to be good: the packet path.
//! * `XHeader` is the fixed part of a header as an array (one bounds check to get it, none to use it) and `XPacket` a
//!   view of a whole packet: `new_checked`, then accessors, in smoltcp's manner. No accessor panics, whatever the bytes.
//! * value types that write a whole message with its checksums: what is originated here.
//!
//! Setters do not touch checksums; [`checksum::Delta`] carries changes over.

mod bytes;
mod emit;
mod mac;

pub mod arp;
pub mod checksum;
pub mod ethernet;
pub mod frame;
pub mod headers;
pub mod icmp;
pub mod icmpv4;
pub mod icmpv6;
pub mod ipv4;
pub mod ipv6;
pub mod partial;
pub mod quote;
pub mod tcp;
pub mod vlan;

pub use emit::{Checksums, EmitError, Envelope};
pub use mac::{MacAddr, ParseMacError};

/// IP protocol numbers (IANA) that this crate knows.
pub mod protocol {
    /// RFC 792.
    pub const ICMP: u8 = 1;
    /// RFC 9293.
    pub const TCP: u8 = 6;
    /// RFC 768.
    pub const UDP: u8 = 17;
    /// RFC 8200 4.5: the fragment header of IPv6.
    pub const IPV6_FRAGMENT: u8 = 44;
    /// RFC 4443.
    pub const ICMPV6: u8 = 58;
}

/// Why bytes are not the packet that a view was asked to show.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Malformed {
    /// They end inside the fixed part of the header.
    #[error("the packet ends inside its header")]
    TooShort,
    /// They are of another version of the protocol.
    #[error("the packet is of another protocol version")]
    BadVersion,
    /// A length field contradicts the protocol or goes beyond the bytes.
    #[error("a length field contradicts the packet")]
    BadLength,
    /// A field has a value that this message must not have.
    #[error("a field has a value that is not allowed")]
    BadField,
    /// The checksum is wrong.
    #[error("the checksum is wrong")]
    BadChecksum,
}
