//! ICMPv6 (RFC 4443): echo, the errors that concern TCP, and neighbour discovery ([`ndp`]).

use core::net::{IpAddr, Ipv6Addr};

use super::bytes::{array, be16, be32, delegate_to_header, packet_view};
use super::emit::{EmitError, Envelope};
use super::icmp::IcmpHeader;
use super::ipv6::{self, Ipv6Header};
use super::{Malformed, checksum, protocol};
use crate::buffer::PacketBuffer;

pub mod ndp;

pub use super::icmp::HEADER_LEN;
pub use ndp::NdpRepr;

/// RFC 4443 3: an error quotes as much as fits into the least MTU.
pub const MAX_QUOTE_LEN: usize = ipv6::MIN_MTU as usize - ipv6::HEADER_LEN - HEADER_LEN;

/// Message types (IANA).
pub mod message_type {
    /// Destination unreachable; see [`super::unreachable_code`].
    pub const UNREACHABLE: u8 = 1;
    /// Packet too big.
    pub const PACKET_TOO_BIG: u8 = 2;
    /// Hop limit or reassembly time exceeded.
    pub const TIME_EXCEEDED: u8 = 3;
    /// Parameter problem.
    pub const PARAMETER_PROBLEM: u8 = 4;
    /// Echo request.
    pub const ECHO_REQUEST: u8 = 128;
    /// Echo reply.
    pub const ECHO_REPLY: u8 = 129;
    /// Router solicitation (RFC 4861).
    pub const ROUTER_SOLICITATION: u8 = 133;
    /// Neighbour solicitation (RFC 4861).
    pub const NEIGHBOUR_SOLICITATION: u8 = 135;
    /// Neighbour advertisement (RFC 4861).
    pub const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
}

/// Codes of destination unreachable (IANA).
pub mod unreachable_code {
    /// No route to the destination.
    pub const NO_ROUTE: u8 = 0;
    /// A filter forbids it.
    pub const PROHIBITED: u8 = 1;
    /// The destination is beyond the source address's scope.
    pub const BEYOND_SCOPE: u8 = 2;
    /// The host does not answer.
    pub const ADDRESS: u8 = 3;
    /// No one listens at the port.
    pub const PORT: u8 = 4;
}

/// A message of at least a header.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Icmpv6Packet<T>(T);

impl<T: AsRef<[u8]>> Icmpv6Packet<T> {
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

    /// What follows the header.
    pub fn payload(&self) -> &[u8] {
        self.0.as_ref().get(HEADER_LEN..).unwrap_or_default()
    }

    /// Whether the checksum is right for a message between these addresses.
    pub fn is_checksum_valid(&self, src: Ipv6Addr, dst: Ipv6Addr) -> bool {
        message_sum(src, dst, self.0.as_ref()).is_some_and(checksum::is_valid)
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Icmpv6Packet<T> {
    /// What follows the header, for writing.
    pub fn payload_mut(&mut self) -> &mut [u8] {
        self.0.as_mut().get_mut(HEADER_LEN..).unwrap_or_default()
    }

    /// Computes the checksum for these addresses.
    pub fn fill_checksum(&mut self, src: Ipv6Addr, dst: Ipv6Addr) {
        self.set_checksum(0);
        if let Some(sum) = message_sum(src, dst, self.0.as_ref()) {
            self.set_checksum(checksum::finish(sum));
        }
    }
}

/// Nothing if the message is longer than a packet can be.
fn message_sum(src: Ipv6Addr, dst: Ipv6Addr, message: &[u8]) -> Option<u32> {
    let len = u16::try_from(message.len()).ok()?;
    Some(checksum::pseudo_header_v6(src, dst, protocol::ICMPV6, len) + checksum::sum(message))
}

packet_view!(Icmpv6Packet, IcmpHeader, HEADER_LEN);
delegate_to_header!(Icmpv6Packet {
    message_type / set_message_type: u8,
    code / set_code: u8,
    checksum / set_checksum: u16,
    word / set_word: u32,
});

/// A message as a value. `original` is the quoted packet from its IP header on, which may be cut off.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Icmpv6Repr<'a> {
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
        /// The packet.
        original: &'a [u8],
    },
    /// The packet does not fit the next link.
    PacketTooBig {
        /// What would fit.
        mtu: u32,
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
        /// 0 a field, 1 a next header, 2 an option.
        code: u8,
        /// Which byte.
        pointer: u32,
        /// The packet.
        original: &'a [u8],
    },
    /// Neighbour discovery.
    Ndp(NdpRepr),
    /// Any other message.
    Other {
        /// Its type.
        message_type: u8,
        /// Its code.
        code: u8,
    },
}

impl<'a> Icmpv6Repr<'a> {
    /// Reads a message: exactly the bytes that the IP packet with this header carries.
    ///
    /// # Errors
    /// [`Malformed::TooShort`], [`Malformed::BadChecksum`], and what makes neighbour discovery invalid
    /// ([`NdpRepr::parse`]).
    pub fn parse(ip: Ipv6Header<&[u8; ipv6::HEADER_LEN]>, message: &'a [u8]) -> Result<Self, Malformed> {
        let (header, rest) = message.split_first_chunk::<HEADER_LEN>().ok_or(Malformed::TooShort)?;
        let sum = message_sum(ip.src_addr(), ip.dst_addr(), message).ok_or(Malformed::BadLength)?;
        if !checksum::is_valid(sum) {
            return Err(Malformed::BadChecksum);
        }
        if let Some(ndp) = NdpRepr::parse(ip, header, rest)? {
            return Ok(Self::Ndp(ndp));
        }
        let [message_type, code] = array(header, 0);
        let (word, [ident, seq]) = (be32(header, 4), [be16(header, 4), be16(header, 6)]);
        Ok(match message_type {
            message_type::ECHO_REQUEST if code == 0 => Self::EchoRequest { ident, seq, data: rest },
            message_type::ECHO_REPLY if code == 0 => Self::EchoReply { ident, seq, data: rest },
            message_type::UNREACHABLE => Self::Unreachable { code, original: rest },
            // RFC 4443 3.2: the receiver ignores the code.
            message_type::PACKET_TOO_BIG => Self::PacketTooBig {
                mtu: word,
                original: rest,
            },
            message_type::TIME_EXCEEDED => Self::TimeExceeded { code, original: rest },
            message_type::PARAMETER_PROBLEM => Self::ParameterProblem {
                code,
                pointer: word,
                original: rest,
            },
            _ => Self::Other { message_type, code },
        })
    }

    /// Writes a whole frame into a buffer, whose old content is lost. A quoted packet is cut to [`MAX_QUOTE_LEN`].
    ///
    /// Neighbour discovery is written with a hop limit of 255, whatever the envelope says (RFC 4861 4).
    ///
    /// # Errors
    /// See [`EmitError`]; addresses of IPv4 are [`EmitError::MixedFamilies`].
    pub fn emit<B: PacketBuffer>(&self, envelope: &Envelope, buffer: &mut B) -> Result<(), EmitError> {
        let (IpAddr::V6(src), IpAddr::V6(dst)) = (envelope.src_addr, envelope.dst_addr) else {
            buffer.truncate(0);
            return Err(EmitError::MixedFamilies);
        };
        let hop_limit = if let Self::Ndp(_) = self {
            ndp::HOP_LIMIT
        } else {
            envelope.hop_limit
        };
        let (message_type, code, word, rest) = self.parts();
        let rest_len = if let Self::Ndp(ndp) = self {
            ndp.rest_len()
        } else {
            rest.len()
        };
        let at = Envelope { hop_limit, ..*envelope }.open(buffer, protocol::ICMPV6, HEADER_LEN + rest_len)?;
        let message = buffer.data_mut().get_mut(at..).ok_or(EmitError::NoRoom)?;
        let mut message = Icmpv6Packet::new_checked(message).map_err(|_| EmitError::NoRoom)?;
        message.set_message_type(message_type);
        message.set_code(code);
        message.set_word(word);
        if let Self::Ndp(ndp) = self {
            ndp.write_rest(message.payload_mut());
        } else {
            message.payload_mut().copy_from_slice(rest);
        }
        message.fill_checksum(src, dst);
        Ok(())
    }

    /// Type, code, second word, and what follows unless it is neighbour discovery.
    fn parts(&self) -> (u8, u8, u32, &'a [u8]) {
        let echo = |ident: u16, seq: u16| u32::from(ident) << 16 | u32::from(seq);
        let quote = |original: &'a [u8]| &original[..original.len().min(MAX_QUOTE_LEN)];
        match *self {
            Self::EchoRequest { ident, seq, data } => (message_type::ECHO_REQUEST, 0, echo(ident, seq), data),
            Self::EchoReply { ident, seq, data } => (message_type::ECHO_REPLY, 0, echo(ident, seq), data),
            Self::Unreachable { code, original } => (message_type::UNREACHABLE, code, 0, quote(original)),
            Self::PacketTooBig { mtu, original } => (message_type::PACKET_TOO_BIG, 0, mtu, quote(original)),
            Self::TimeExceeded { code, original } => (message_type::TIME_EXCEEDED, code, 0, quote(original)),
            Self::ParameterProblem {
                code,
                pointer,
                original,
            } => (message_type::PARAMETER_PROBLEM, code, pointer, quote(original)),
            Self::Ndp(ndp) => (ndp.message_type(), 0, ndp.word(), &[]),
            Self::Other { message_type, code } => (message_type, code, 0, &[]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::{BufferPool, HeapPool};
    use crate::wire::MacAddr;
    use crate::wire::frame::{Kind, parse};

    const ORIGINAL: &[u8] = b"an IPv6 header and some bytes more than that";

    fn envelope() -> Envelope {
        Envelope {
            src_mac: MacAddr([2, 0, 0, 0, 0, 1]),
            dst_mac: MacAddr([2, 0, 0, 0, 0, 2]),
            src_addr: IpAddr::V6([0x20; 16].into()),
            dst_addr: IpAddr::V6([0x21; 16].into()),
            hop_limit: 64,
        }
    }

    #[test]
    fn every_message_reads_back_as_written() {
        let mut buffer = HeapPool::new(1, 1514).take().expect("fresh");
        for repr in [
            Icmpv6Repr::EchoRequest {
                ident: 0x1234,
                seq: 0xfffe,
                data: b"odd",
            },
            Icmpv6Repr::EchoReply {
                ident: 1,
                seq: 2,
                data: &[],
            },
            Icmpv6Repr::Unreachable {
                code: unreachable_code::PORT,
                original: ORIGINAL,
            },
            Icmpv6Repr::PacketTooBig {
                mtu: 1400,
                original: ORIGINAL,
            },
            Icmpv6Repr::TimeExceeded {
                code: 1,
                original: ORIGINAL,
            },
            Icmpv6Repr::ParameterProblem {
                code: 1,
                pointer: 40,
                original: ORIGINAL,
            },
            Icmpv6Repr::Other {
                message_type: 200,
                code: 7,
            },
        ] {
            repr.emit(&envelope(), &mut buffer).expect("fits");
            let Ok(Kind::Icmpv6 { l3, l4, end }) = parse(buffer.data()) else {
                panic!("{repr:?} is no ICMPv6")
            };
            assert_eq!(usize::from(end), buffer.len());
            let ip = buffer.data()[usize::from(l3)..]
                .first_chunk()
                .map(Ipv6Header)
                .expect("parsed");
            assert_eq!(ip.hop_limit(), 64);
            assert_eq!(Icmpv6Repr::parse(ip, &buffer.data()[usize::from(l4)..]), Ok(repr));
        }
    }

    #[test]
    fn checksum_includes_the_pseudo_header() {
        let mut buffer = HeapPool::new(1, 128).take().expect("fresh");
        Icmpv6Repr::EchoReply {
            ident: 1,
            seq: 2,
            data: b"x",
        }
        .emit(&envelope(), &mut buffer)
        .expect("fits");
        for at in [14 + 8, 14 + 39, 54, 62] {
            let mut changed = buffer.data().to_vec();
            changed[at] ^= 1;
            let ip = changed[14..].first_chunk().map(Ipv6Header).expect("long enough");
            assert_eq!(
                Icmpv6Repr::parse(ip, &changed[54..]),
                Err(Malformed::BadChecksum),
                "byte {at}"
            );
        }
        let ip = buffer.data()[14..].first_chunk().map(Ipv6Header).expect("long enough");
        assert_eq!(Icmpv6Repr::parse(ip, &buffer.data()[54..61]), Err(Malformed::TooShort));
    }

    #[test]
    fn quotes_are_cut_so_that_the_packet_has_1280_bytes() {
        let mut buffer = HeapPool::new(1, 1514).take().expect("fresh");
        for (len, expected) in [(1231, 1279), (1232, 1280), (1233, 1280), (1400, 1280)] {
            let original = vec![7; len];
            let repr = Icmpv6Repr::PacketTooBig {
                mtu: 1280,
                original: &original,
            };
            repr.emit(&envelope(), &mut buffer).expect("fits");
            assert_eq!(buffer.len() - 14, expected, "{len}");
        }
    }

    #[test]
    fn addresses_of_ipv4_are_refused() {
        let mut buffer = HeapPool::new(1, 128).take_copy(b"old content").expect("fits");
        let envelope = Envelope {
            dst_addr: [192, 0, 2, 1].into(),
            ..envelope()
        };
        let echo = Icmpv6Repr::EchoReply {
            ident: 1,
            seq: 2,
            data: &[],
        };
        assert_eq!(echo.emit(&envelope, &mut buffer), Err(EmitError::MixedFamilies));
        assert!(buffer.is_empty());
    }
}
