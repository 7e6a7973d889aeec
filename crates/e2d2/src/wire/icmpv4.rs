//! ICMP for IPv4 (RFC 792): echo and the errors that concern TCP.

use super::bytes::{array, be16, delegate_to_header, packet_view};
use super::emit::{EmitError, Envelope};
use super::icmp::IcmpHeader;
use super::{Malformed, checksum, protocol};
use crate::buffer::PacketBuffer;

pub use super::icmp::HEADER_LEN;

/// RFC 1812 4.3.2.3: an error quotes as much as fits into 576 bytes, header included.
pub const MAX_QUOTE_LEN: usize = 576 - super::ipv4::HEADER_LEN - HEADER_LEN;

/// Message types (IANA).
pub mod message_type {
    /// Answer to an echo request.
    pub const ECHO_REPLY: u8 = 0;
    /// Destination unreachable; see [`super::unreachable_code`].
    pub const UNREACHABLE: u8 = 3;
    /// Echo request.
    pub const ECHO_REQUEST: u8 = 8;
    /// Time to live or reassembly time exceeded.
    pub const TIME_EXCEEDED: u8 = 11;
    /// Parameter problem.
    pub const PARAMETER_PROBLEM: u8 = 12;
}

/// Codes of destination unreachable (IANA).
pub mod unreachable_code {
    /// No route to the network.
    pub const NETWORK: u8 = 0;
    /// The host does not answer.
    pub const HOST: u8 = 1;
    /// The host does not speak the protocol.
    pub const PROTOCOL: u8 = 2;
    /// No one listens at the port.
    pub const PORT: u8 = 3;
    /// The packet is too big and must not be fragmented (RFC 1191).
    pub const FRAGMENTATION_NEEDED: u8 = 4;
    /// A filter forbids it (RFC 1812).
    pub const PROHIBITED: u8 = 13;
}

/// A message of at least a header.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Icmpv4Packet<T>(T);

impl<T: AsRef<[u8]>> Icmpv4Packet<T> {
    /// Takes a message: exactly the bytes that the IP packet carries.
    ///
    /// # Errors
    /// [`Malformed::TooShort`] if there is no whole header.
    pub fn new_checked(message: T) -> Result<Self, Malformed> {
        if message.as_ref().len() < HEADER_LEN {
            Err(Malformed::TooShort)
        } else {
            Ok(Self(message))
        }
    }

    /// What follows the header: echo data, or the quoted packet.
    pub fn payload(&self) -> &[u8] {
        self.0.as_ref().get(HEADER_LEN..).unwrap_or_default()
    }

    /// Whether the checksum is right.
    pub fn is_checksum_valid(&self) -> bool {
        checksum::is_valid(checksum::sum(self.0.as_ref()))
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Icmpv4Packet<T> {
    /// What follows the header, for writing.
    pub fn payload_mut(&mut self) -> &mut [u8] {
        self.0.as_mut().get_mut(HEADER_LEN..).unwrap_or_default()
    }

    /// Computes the checksum.
    pub fn fill_checksum(&mut self) {
        self.set_checksum(0);
        let checksum = checksum::internet(self.0.as_ref());
        self.set_checksum(checksum);
    }
}

packet_view!(Icmpv4Packet, IcmpHeader, HEADER_LEN);
delegate_to_header!(Icmpv4Packet {
    message_type / set_message_type: u8,
    code / set_code: u8,
    checksum / set_checksum: u16,
    word / set_word: u32,
});

/// A message as a value. `original` is the quoted packet from its IP header on, which may be cut off.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Icmpv4Repr<'a> {
    /// Are you there?
    EchoRequest {
        /// Who asks.
        ident: u16,
        /// Which time.
        seq: u16,
        /// Comes back in the reply.
        data: &'a [u8],
    },
    /// Yes.
    EchoReply {
        /// As in the request.
        ident: u16,
        /// As in the request.
        seq: u16,
        /// As in the request.
        data: &'a [u8],
    },
    /// The packet did not reach its destination.
    Unreachable {
        /// See [`unreachable_code`].
        code: u8,
        /// What would fit, with [`unreachable_code::FRAGMENTATION_NEEDED`]; 0 if unknown. Other codes have none.
        next_hop_mtu: u16,
        /// The packet.
        original: &'a [u8],
    },
    /// The packet was on its way for too long.
    TimeExceeded {
        /// 0 in transit, 1 in reassembly.
        code: u8,
        /// The packet.
        original: &'a [u8],
    },
    /// The packet's header was not understood.
    ParameterProblem {
        /// What is wrong at the pointer.
        code: u8,
        /// Which byte.
        pointer: u8,
        /// The packet.
        original: &'a [u8],
    },
    /// Any other message.
    Other {
        /// Its type.
        message_type: u8,
        /// Its code.
        code: u8,
    },
}

impl<'a> Icmpv4Repr<'a> {
    /// Reads a message: exactly the bytes that the IP packet carries.
    ///
    /// # Errors
    /// [`Malformed::TooShort`] or [`Malformed::BadChecksum`].
    pub fn parse(message: &'a [u8]) -> Result<Self, Malformed> {
        let (header, rest) = message.split_first_chunk::<HEADER_LEN>().ok_or(Malformed::TooShort)?;
        if !checksum::is_valid(checksum::sum(message)) {
            return Err(Malformed::BadChecksum);
        }
        let [ident, seq] = [be16(header, 4), be16(header, 6)];
        let [message_type, code] = array(header, 0);
        Ok(match message_type {
            message_type::ECHO_REQUEST if code == 0 => Self::EchoRequest { ident, seq, data: rest },
            message_type::ECHO_REPLY if code == 0 => Self::EchoReply { ident, seq, data: rest },
            message_type::UNREACHABLE => {
                let next_hop_mtu = if code == unreachable_code::FRAGMENTATION_NEEDED {
                    seq
                } else {
                    0
                };
                Self::Unreachable {
                    code,
                    next_hop_mtu,
                    original: rest,
                }
            }
            message_type::TIME_EXCEEDED => Self::TimeExceeded { code, original: rest },
            message_type::PARAMETER_PROBLEM => Self::ParameterProblem {
                code,
                pointer: header[4],
                original: rest,
            },
            _ => Self::Other { message_type, code },
        })
    }

    /// Writes a whole frame into a buffer, whose old content is lost. A quoted packet is cut to [`MAX_QUOTE_LEN`].
    ///
    /// # Errors
    /// See [`EmitError`]; addresses of IPv6 are [`EmitError::MixedFamilies`].
    pub fn emit<B: PacketBuffer>(&self, envelope: &Envelope, buffer: &mut B) -> Result<(), EmitError> {
        if !envelope.src_addr.is_ipv4() {
            buffer.truncate(0);
            return Err(EmitError::MixedFamilies);
        }
        let (message_type, code, word, rest) = self.parts();
        let at = envelope.open(buffer, protocol::ICMP, HEADER_LEN + rest.len())?;
        let message = buffer.data_mut().get_mut(at..).ok_or(EmitError::NoRoom)?;
        let mut message = Icmpv4Packet::new_checked(message).map_err(|_| EmitError::NoRoom)?;
        message.set_message_type(message_type);
        message.set_code(code);
        message.set_word(word);
        message.payload_mut().copy_from_slice(rest);
        message.fill_checksum();
        Ok(())
    }

    /// Type, code, second word, and what follows.
    fn parts(&self) -> (u8, u8, u32, &'a [u8]) {
        let echo = |ident: u16, seq: u16| u32::from(ident) << 16 | u32::from(seq);
        let quote = |original: &'a [u8]| &original[..original.len().min(MAX_QUOTE_LEN)];
        match *self {
            Self::EchoRequest { ident, seq, data } => (message_type::ECHO_REQUEST, 0, echo(ident, seq), data),
            Self::EchoReply { ident, seq, data } => (message_type::ECHO_REPLY, 0, echo(ident, seq), data),
            Self::Unreachable {
                code,
                next_hop_mtu,
                original,
            } => {
                let has_mtu = code == unreachable_code::FRAGMENTATION_NEEDED;
                (
                    message_type::UNREACHABLE,
                    code,
                    if has_mtu { next_hop_mtu.into() } else { 0 },
                    quote(original),
                )
            }
            Self::TimeExceeded { code, original } => (message_type::TIME_EXCEEDED, code, 0, quote(original)),
            Self::ParameterProblem {
                code,
                pointer,
                original,
            } => (
                message_type::PARAMETER_PROBLEM,
                code,
                u32::from(pointer) << 24,
                quote(original),
            ),
            Self::Other { message_type, code } => (message_type, code, 0, &[]),
        }
    }
}

#[cfg(test)]
mod tests {
    use core::net::IpAddr;

    use super::*;
    use crate::buffer::{BufferPool, HeapPool};
    use crate::wire::MacAddr;
    use crate::wire::frame::{Kind, parse};

    const ORIGINAL: &[u8] = b"an IP header and eight bytes more";

    fn envelope() -> Envelope {
        Envelope {
            src_mac: MacAddr([2, 0, 0, 0, 0, 1]),
            dst_mac: MacAddr([2, 0, 0, 0, 0, 2]),
            src_addr: [192, 0, 2, 1].into(),
            dst_addr: [192, 0, 2, 2].into(),
            hop_limit: 64,
        }
    }

    #[test]
    fn echo_request_of_linux_ping_is_understood_and_answered() {
        let mut request = vec![8, 0, 0xf7, 0xf9, 0, 5, 0, 1];
        assert_eq!(
            Icmpv4Repr::parse(&request),
            Ok(Icmpv4Repr::EchoRequest {
                ident: 5,
                seq: 1,
                data: &[]
            })
        );
        request[7] = 2;
        assert_eq!(Icmpv4Repr::parse(&request), Err(Malformed::BadChecksum));
        assert_eq!(Icmpv4Repr::parse(&request[..7]), Err(Malformed::TooShort));
    }

    #[test]
    fn every_message_reads_back_as_written() {
        let mut buffer = HeapPool::new(1, 1514).take().expect("fresh");
        for repr in [
            Icmpv4Repr::EchoRequest {
                ident: 0x1234,
                seq: 0xfffe,
                data: b"odd",
            },
            Icmpv4Repr::EchoReply {
                ident: 1,
                seq: 2,
                data: &[],
            },
            Icmpv4Repr::Unreachable {
                code: unreachable_code::PORT,
                next_hop_mtu: 0,
                original: ORIGINAL,
            },
            Icmpv4Repr::Unreachable {
                code: unreachable_code::FRAGMENTATION_NEEDED,
                next_hop_mtu: 1400,
                original: ORIGINAL,
            },
            Icmpv4Repr::TimeExceeded {
                code: 1,
                original: ORIGINAL,
            },
            Icmpv4Repr::ParameterProblem {
                code: 0,
                pointer: 9,
                original: ORIGINAL,
            },
            Icmpv4Repr::Other {
                message_type: 13,
                code: 7,
            },
        ] {
            repr.emit(&envelope(), &mut buffer).expect("fits");
            let Ok(Kind::Icmpv4 { l4, end, .. }) = parse(buffer.data()) else {
                panic!("{repr:?} is no ICMP")
            };
            assert_eq!(usize::from(end), buffer.len());
            assert_eq!(Icmpv4Repr::parse(&buffer.data()[usize::from(l4)..]), Ok(repr));
        }
    }

    #[test]
    fn quotes_are_cut_so_that_the_packet_has_576_bytes() {
        let mut buffer = HeapPool::new(1, 1514).take().expect("fresh");
        for (len, expected) in [(547, 575), (548, 576), (549, 576), (1400, 576)] {
            let original = vec![7; len];
            let repr = Icmpv4Repr::TimeExceeded {
                code: 0,
                original: &original,
            };
            repr.emit(&envelope(), &mut buffer).expect("fits");
            assert_eq!(buffer.len() - 14, expected, "{len}");
        }
    }

    #[test]
    fn what_cannot_be_written_leaves_an_empty_buffer() {
        let mut buffer = HeapPool::new(1, 42).take_copy(b"old content").expect("fits");
        let echo = Icmpv4Repr::EchoReply {
            ident: 1,
            seq: 2,
            data: b"1",
        };
        assert_eq!(echo.emit(&envelope(), &mut buffer), Err(EmitError::NoRoom));
        assert!(buffer.is_empty());
        let six = IpAddr::V6([0x20; 16].into());
        let envelope = Envelope {
            src_addr: six,
            dst_addr: six,
            ..envelope()
        };
        assert_eq!(echo.emit(&envelope, &mut buffer), Err(EmitError::MixedFamilies));
    }
}
