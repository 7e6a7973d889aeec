//! The control bits of a segment.

use core::fmt;

bitflags::bitflags! {
    /// The control bits (RFC 9293 3.1), in the order they have on the wire.
    #[derive(Copy, Clone, PartialEq, Eq, Hash, Default)]
    pub struct TcpFlags: u8 {
        /// No more data from the sender.
        const FIN = 0x01;
        /// Synchronise sequence numbers.
        const SYN = 0x02;
        /// Reset the connection.
        const RST = 0x04;
        /// Hand the data to the application.
        const PSH = 0x08;
        /// The acknowledgment number means something.
        const ACK = 0x10;
        /// The urgent pointer means something.
        const URG = 0x20;
        /// ECN echo (RFC 3168).
        const ECE = 0x40;
        /// Congestion window reduced (RFC 3168).
        const CWR = 0x80;
    }
}

impl TcpFlags {
    /// How many sequence numbers the flags take: one each for SYN and FIN.
    #[inline]
    pub const fn sequence_len(self) -> u32 {
        let bits = self.bits() as u32;
        (bits & 1) + (bits >> 1 & 1)
    }
}

/// `SYN|ACK`, or `-` if none is set.
impl fmt::Debug for TcpFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("-");
        }
        for (index, (name, _)) in self.iter_names().enumerate() {
            if index > 0 {
                f.write_str("|")?;
            }
            f.write_str(name)?;
        }
        Ok(())
    }
}

impl fmt::Display for TcpFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn syn_and_fin_take_a_sequence_number_each() {
        assert_eq!((TcpFlags::SYN | TcpFlags::FIN | TcpFlags::ACK).sequence_len(), 2);
        assert_eq!((TcpFlags::SYN | TcpFlags::ACK).sequence_len(), 1);
        assert_eq!(TcpFlags::FIN.sequence_len(), 1);
        assert_eq!((!(TcpFlags::SYN | TcpFlags::FIN)).sequence_len(), 0);
    }

    #[test]
    fn names_are_shown_in_wire_order() {
        assert_eq!((TcpFlags::ACK | TcpFlags::SYN).to_string(), "SYN|ACK");
        assert_eq!(format!("{:?}", TcpFlags::empty()), "-");
    }
}
