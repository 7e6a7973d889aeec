//! The header that ICMP for IPv4 (RFC 792) and ICMPv6 (RFC 4443 2.1) share.

use core::borrow::{Borrow, BorrowMut};

use super::bytes::{be16, be32, put};

/// Bytes of the header that all messages here have.
pub const HEADER_LEN: usize = 8;

/// The header as an array; no access is bounds-checked.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct IcmpHeader<T>(pub T);

impl<T: Borrow<[u8; HEADER_LEN]>> IcmpHeader<T> {
    /// What kind of message it is: see [`icmpv4::message_type`](super::icmpv4::message_type) and [`icmpv6::message_type`](super::icmpv6::message_type).
    pub fn message_type(&self) -> u8 {
        self.0.borrow()[0]
    }

    /// What the type means in detail.
    pub fn code(&self) -> u8 {
        self.0.borrow()[1]
    }

    /// The checksum over the message; in IPv6 over its pseudo header as well.
    pub fn checksum(&self) -> u16 {
        be16(self.0.borrow(), 2)
    }

    /// The second word, whose meaning is the type's.
    pub fn word(&self) -> u32 {
        be32(self.0.borrow(), 4)
    }
}

impl<T: BorrowMut<[u8; HEADER_LEN]>> IcmpHeader<T> {
    /// Sets the type.
    pub fn set_message_type(&mut self, message_type: u8) {
        self.0.borrow_mut()[0] = message_type;
    }

    /// Sets the code.
    pub fn set_code(&mut self, code: u8) {
        self.0.borrow_mut()[1] = code;
    }

    /// Sets the checksum.
    pub fn set_checksum(&mut self, checksum: u16) {
        put(self.0.borrow_mut(), 2, checksum.to_be_bytes());
    }

    /// Sets the second word.
    pub fn set_word(&mut self, word: u32) {
        put(self.0.borrow_mut(), 4, word.to_be_bytes());
    }
}
