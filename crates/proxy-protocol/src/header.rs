//! The header in its decoded form, common to both versions, and the entry to parsing.

use crate::tlv::{TlvWriter, Tlvs};
use crate::{EncodeError, Error, v1, v2};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// Bytes of a UNIX socket address in a version 2 header (`sun_path`, padded with NUL).
pub const UNIX_LEN: usize = 108;

/// Which wire format a header has.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Version {
    /// The line of text.
    V1,
    /// The binary form.
    V2,
}

/// Who the connection is from.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Command {
    /// From the proxy itself, a health check for instance: the receiver uses the connection's own addresses.
    Local,
    /// On behalf of the client whose addresses follow.
    Proxy,
}

/// What the client speaks to the proxy. Version 1 knows only [`Transport::Stream`].
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// Not said.
    Unspecified,
    /// TCP or a UNIX stream.
    Stream,
    /// UDP or a UNIX datagram.
    Datagram,
}

/// Source and destination of the connection as the sender of the header saw it.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Addresses<'a> {
    /// Not said (`UNKNOWN`, `UNSPEC`, or a LOCAL header): use the connection's own.
    Unspecified,
    /// IPv4.
    Inet {
        /// The client.
        source: SocketAddrV4,
        /// What the client connected to.
        destination: SocketAddrV4,
    },
    /// IPv6. Flow label and scope are always 0.
    Inet6 {
        /// The client.
        source: SocketAddrV6,
        /// What the client connected to.
        destination: SocketAddrV6,
    },
    /// UNIX sockets: `sun_path`, padded with NUL.
    Unix {
        /// The client.
        source: &'a [u8; UNIX_LEN],
        /// What the client connected to.
        destination: &'a [u8; UNIX_LEN],
    },
}

impl Addresses<'_> {
    /// The addresses of an IP connection. If only one of the two is IPv4, it is written as IPv4-mapped IPv6, as a
    /// header has one family for both. Flow label and scope are not carried.
    pub fn from_pair(source: SocketAddr, destination: SocketAddr) -> Self {
        match (source, destination) {
            (SocketAddr::V4(source), SocketAddr::V4(destination)) => Addresses::Inet { source, destination },
            _ => Addresses::Inet6 {
                source: to_v6(source),
                destination: to_v6(destination),
            },
        }
    }

    /// Source and destination, if they are IP addresses.
    pub fn as_pair(&self) -> Option<(SocketAddr, SocketAddr)> {
        match *self {
            Addresses::Inet { source, destination } => Some((source.into(), destination.into())),
            Addresses::Inet6 { source, destination } => Some((source.into(), destination.into())),
            Addresses::Unspecified | Addresses::Unix { .. } => None,
        }
    }
}

fn to_v6(address: SocketAddr) -> SocketAddrV6 {
    let ip = match address.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    SocketAddrV6::new(ip, address.port(), 0, 0)
}

pub(crate) fn v4(ip: [u8; 4], port: [u8; 2]) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::from(ip), u16::from_be_bytes(port))
}

pub(crate) fn v6(ip: [u8; 16], port: [u8; 2]) -> SocketAddrV6 {
    SocketAddrV6::new(Ipv6Addr::from(ip), u16::from_be_bytes(port), 0, 0)
}

/// A header, decoded. It borrows TLVs and UNIX addresses from the bytes it was parsed from.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct Header<'a> {
    /// The format it came in, or shall be written in.
    pub version: Version,
    /// On whose behalf.
    pub command: Command,
    /// What the client speaks.
    pub transport: Transport,
    /// The client's addresses; [`Addresses::Unspecified`] with [`Command::Local`].
    pub addresses: Addresses<'a>,
    /// Further fields; empty in version 1 and in LOCAL headers.
    pub tlvs: Tlvs<'a>,
}

impl<'a> Header<'a> {
    /// A version 2 PROXY header without TLVs.
    pub const fn proxy(transport: Transport, addresses: Addresses<'a>) -> Self {
        let transport = if matches!(addresses, Addresses::Unspecified) {
            Transport::Unspecified
        } else {
            transport
        };
        Header {
            version: Version::V2,
            command: Command::Proxy,
            transport,
            addresses,
            tlvs: Tlvs::EMPTY,
        }
    }

    /// A version 2 LOCAL header: the connection is the proxy's own.
    pub const fn local() -> Self {
        Header {
            version: Version::V2,
            command: Command::Local,
            transport: Transport::Unspecified,
            addresses: Addresses::Unspecified,
            tlvs: Tlvs::EMPTY,
        }
    }

    /// A version 1 header. [`Addresses::Unspecified`] is written as `UNKNOWN`.
    pub const fn v1(addresses: Addresses<'a>) -> Self {
        let transport = match addresses {
            Addresses::Unspecified => Transport::Unspecified,
            _ => Transport::Stream,
        };
        Header {
            version: Version::V1,
            command: Command::Proxy,
            transport,
            addresses,
            tlvs: Tlvs::EMPTY,
        }
    }

    /// The same header with these TLVs.
    pub const fn with_tlvs(self, tlvs: Tlvs<'a>) -> Self {
        Header { tlvs, ..self }
    }

    /// The client's address, if the header names one that replaces the connection's own.
    pub fn source(&self) -> Option<SocketAddr> {
        self.addresses.as_pair().map(|(source, _)| source)
    }

    /// What the client connected to, if the header names it.
    pub fn destination(&self) -> Option<SocketAddr> {
        self.addresses.as_pair().map(|(_, destination)| destination)
    }

    /// The number of bytes that [`encode`](Self::encode) writes.
    pub fn encoded_len(&self) -> usize {
        match self.version {
            Version::V1 => v1::encoded_len(&self.addresses),
            Version::V2 => v2::encoded_len(self),
        }
    }

    /// Writes the header to the front of `out` and returns its length. A CRC32C among the TLVs is computed anew.
    ///
    /// # Errors
    /// [`EncodeError::NoRoom`] if `out` is too short; otherwise see [`EncodeError`]. `out` may have been written to.
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, EncodeError> {
        match self.version {
            Version::V1 => v1::encode(self, out),
            Version::V2 => v2::encode(self, out),
        }
    }

    /// As [`encode`](Self::encode), with the fields that `push` writes instead of the header's own: they are written where
    /// they are to stay, into what is left of `out` behind the addresses.
    ///
    /// ```
    /// use proxy_protocol::{Addresses, Header, Tlv, Transport, V2_FIXED_LEN};
    ///
    /// let addresses = Addresses::from_pair("192.0.2.1:5000".parse().unwrap(), "192.0.2.2:443".parse().unwrap());
    /// let mut out = [0; 64];
    /// let length = Header::proxy(Transport::Stream, addresses).encode_with(&mut out, |fields| {
    ///     // What does not fit is left out.
    ///     let _ = fields.push(&Tlv::Alpn(b"h2"));
    ///     let _ = fields.push_checksum();
    /// })?;
    /// assert_eq!(length, V2_FIXED_LEN + 12 + 5 + 7);
    /// # Ok::<(), proxy_protocol::EncodeError>(())
    /// ```
    ///
    /// # Errors
    /// As [`encode`](Self::encode). [`EncodeError::NotInV1`] if anything was pushed and the header is of version 1.
    #[inline]
    pub fn encode_with(&self, out: &mut [u8], push: impl FnOnce(&mut TlvWriter<'_>)) -> Result<usize, EncodeError> {
        match self.version {
            Version::V1 => {
                let mut fields = TlvWriter::new(out);
                push(&mut fields);
                if !fields.tlvs().is_empty() {
                    return Err(EncodeError::NotInV1);
                }
                v1::encode(&self.with_tlvs(Tlvs::EMPTY), out)
            }
            Version::V2 => v2::encode_with(self, out, push),
        }
    }
}

/// How far parsing came with the bytes there are.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Parsed<'a> {
    /// The header is whole.
    Complete {
        /// What it says.
        header: Header<'a>,
        /// Its length: payload begins at this index.
        length: usize,
    },
    /// So far it may become a header.
    Incomplete {
        /// At least so many bytes are missing (never 0, and never more than the header has). Version 2 says it
        /// exactly once 16 bytes are there.
        needed: usize,
    },
}

/// What a receiver accepts.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct ParseOptions {
    /// Longest version 2 header, in bytes, all included. The format allows 65 551.
    pub max_len: usize,
    /// Refuse a header whose CRC32C does not fit. The specification leaves the check to the receiver.
    pub verify_checksum: bool,
}

impl Default for ParseOptions {
    fn default() -> Self {
        ParseOptions {
            max_len: v2::MAX_LEN,
            verify_checksum: true,
        }
    }
}

impl ParseOptions {
    /// Parses the header at the front of `bytes`: see [`parse`].
    ///
    /// # Errors
    /// The reason why the bytes cannot be, or become, an acceptable header.
    pub fn parse<'a>(&self, bytes: &'a [u8]) -> Result<Parsed<'a>, Error> {
        match bytes.first() {
            Some(&first) if first == v2::SIGNATURE[0] => v2::parse(bytes, self),
            _ => v1::parse(bytes),
        }
    }
}

/// Parses the header at the front of `bytes`, which are all bytes received so far, with the default [`ParseOptions`].
///
/// Call it again with more bytes after [`Parsed::Incomplete`]. Nothing is kept between calls; a header that is not whole
/// is looked at in constant time (version 2) or over at most 107 bytes (version 1).
///
/// # Errors
/// The reason why the bytes cannot be, or become, an acceptable header, as early as it can be told.
pub fn parse(bytes: &[u8]) -> Result<Parsed<'_>, Error> {
    ParseOptions::default().parse(bytes)
}
