//! The packet that an ICMP error quotes: the beginning of one that we, or someone in our name, sent.
//!
//! Routers quote at least the IP header and 8 bytes (RFC 792); that is enough to find the connection and to see whether
//! the quoted sequence number can be ours (RFC 5927 4).

use core::net::IpAddr;

use super::bytes::{be16, be32};
use super::frame::{IpVersion, ParseError};
use super::ipv4::{self, Ipv4Header};
use super::ipv6::{self, Ipv6Header, is_extension_header};
use super::protocol;

/// What of the TCP header has to be there.
const TCP_QUOTE_LEN: usize = 8;

/// A quoted TCP segment: the fields that every quote has.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct QuotedTcp {
    /// Who sent the packet.
    pub src_addr: IpAddr,
    /// To whom.
    pub dst_addr: IpAddr,
    /// From which port.
    pub src_port: u16,
    /// To which port.
    pub dst_port: u16,
    /// SEG.SEQ.
    pub seq: u32,
    /// The TCP header, in bytes from the start of the quote, which is the IP header.
    pub l4: u16,
}

/// Reads a quoted packet; nothing if it is sound but not TCP.
///
/// Checksums, total length and time to live are not looked at: the quote may be cut off, and routers have changed the
/// fields on the way.
///
/// # Errors
/// Why the connection cannot be told.
pub fn parse(version: IpVersion, quote: &[u8]) -> Result<Option<QuotedTcp>, ParseError> {
    let (src_addr, dst_addr, protocol, l4) = match version {
        IpVersion::V4 => parse_ipv4(quote)?,
        IpVersion::V6 => parse_ipv6(quote)?,
    };
    if protocol != protocol::TCP {
        return Ok(None);
    }
    let segment = quote
        .get(l4..)
        .and_then(|rest| rest.first_chunk::<TCP_QUOTE_LEN>())
        .ok_or(ParseError::TooShort)?;
    Ok(Some(QuotedTcp {
        src_addr,
        dst_addr,
        src_port: be16(segment, 0),
        dst_port: be16(segment, 2),
        seq: be32(segment, 4),
        l4: l4 as u16,
    }))
}

fn parse_ipv4(quote: &[u8]) -> Result<(IpAddr, IpAddr, u8, usize), ParseError> {
    let ip = Ipv4Header(
        quote
            .first_chunk::<{ ipv4::HEADER_LEN }>()
            .ok_or(ParseError::TooShort)?,
    );
    if ip.version() != 4 {
        return Err(ParseError::BadVersion);
    }
    if ip.header_len() < ipv4::HEADER_LEN {
        return Err(ParseError::BadHeaderLength);
    }
    // The first fragment has the ports; what a router in the path has cut off after them does not matter.
    if ip.fragment_offset() != 0 {
        return Err(ParseError::Fragment);
    }
    Ok((
        ip.src_addr().into(),
        ip.dst_addr().into(),
        ip.protocol(),
        ip.header_len(),
    ))
}

fn parse_ipv6(quote: &[u8]) -> Result<(IpAddr, IpAddr, u8, usize), ParseError> {
    let ip = Ipv6Header(
        quote
            .first_chunk::<{ ipv6::HEADER_LEN }>()
            .ok_or(ParseError::TooShort)?,
    );
    if ip.version() != 6 {
        return Err(ParseError::BadVersion);
    }
    match ip.next_header() {
        protocol::IPV6_FRAGMENT => Err(ParseError::Fragment),
        other if is_extension_header(other) => Err(ParseError::ExtensionHeader),
        other => Ok((ip.src_addr().into(), ip.dst_addr().into(), other, ipv6::HEADER_LEN)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4() -> Vec<u8> {
        let mut bytes = [0; 28];
        let header = bytes.first_chunk_mut().map(Ipv4Header);
        header
            .expect("20 bytes")
            .init(1500, 6, 1, [192, 0, 2, 1].into(), [192, 0, 2, 2].into());
        bytes[20..].copy_from_slice(&[0x9c, 0x40, 1, 0xbb, 1, 2, 3, 4]);
        bytes.to_vec()
    }

    fn v6() -> Vec<u8> {
        let mut bytes = [0; 48];
        let header = bytes.first_chunk_mut().map(Ipv6Header);
        header
            .expect("40 bytes")
            .init(1460, 6, 1, [0x20; 16].into(), [0x21; 16].into());
        bytes[40..].copy_from_slice(&[0x9c, 0x40, 1, 0xbb, 1, 2, 3, 4]);
        bytes.to_vec()
    }

    fn quoted(src: impl Into<IpAddr>, dst: impl Into<IpAddr>, l4: u16) -> QuotedTcp {
        QuotedTcp {
            src_addr: src.into(),
            dst_addr: dst.into(),
            src_port: 40_000,
            dst_port: 443,
            seq: 0x0102_0304,
            l4,
        }
    }

    #[test]
    fn least_quote_tells_the_connection() {
        assert_eq!(
            parse(IpVersion::V4, &v4()),
            Ok(Some(quoted([192, 0, 2, 1], [192, 0, 2, 2], 20)))
        );
        assert_eq!(
            parse(IpVersion::V6, &v6()),
            Ok(Some(quoted([0x20; 16], [0x21; 16], 40)))
        );
    }

    #[test]
    fn one_byte_less_does_not() {
        for (version, bytes) in [(IpVersion::V4, v4()), (IpVersion::V6, v6())] {
            for len in 0..bytes.len() {
                assert_eq!(
                    parse(version, &bytes[..len]),
                    Err(ParseError::TooShort),
                    "{version:?} {len}"
                );
            }
        }
    }

    #[test]
    fn ipv4_options_are_passed_over() {
        let mut bytes = v4();
        bytes[0] = 0x46;
        assert_eq!(parse(IpVersion::V4, &bytes), Err(ParseError::TooShort));
        bytes.splice(20..20, [1, 1, 1, 1]);
        assert_eq!(
            parse(IpVersion::V4, &bytes),
            Ok(Some(quoted([192, 0, 2, 1], [192, 0, 2, 2], 24)))
        );
    }

    #[test]
    fn other_quotes_are_refused_or_not_tcp() {
        let patched = |mut bytes: Vec<u8>, at: usize, byte: u8| {
            bytes[at] = byte;
            bytes
        };
        for (at, byte, expected) in [
            (0, 0x65, Err(ParseError::BadVersion)),
            (0, 0x44, Err(ParseError::BadHeaderLength)),
            (7, 1, Err(ParseError::Fragment)),
            (9, 17, Ok(None)),
        ] {
            assert_eq!(parse(IpVersion::V4, &patched(v4(), at, byte)), expected, "{at} {byte}");
        }
        // The first of several fragments has the ports.
        assert!(parse(IpVersion::V4, &patched(v4(), 6, 0x20)).is_ok_and(|quoted| quoted.is_some()));
        for (at, byte, expected) in [
            (0, 0x45, Err(ParseError::BadVersion)),
            (6, 44, Err(ParseError::Fragment)),
            (6, 0, Err(ParseError::ExtensionHeader)),
            (6, 58, Ok(None)),
        ] {
            assert_eq!(parse(IpVersion::V6, &patched(v6(), at, byte)), expected, "{at} {byte}");
        }
    }
}
