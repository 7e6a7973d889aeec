//! Version 1, the line of text: `PROXY TCP4 203.0.113.7 198.51.100.9 40001 443\r\n`.

use crate::{Addresses, Command, EncodeError, Error, Header, Parsed, Tlvs, Transport, Version};
use core::fmt::{self, Write};
use core::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4, SocketAddrV6};
use core::str::FromStr;

/// Longest header with its CR LF: specification 2.1, the worst `UNKNOWN` line.
pub const MAX_LEN: usize = 107;

const PREFIX: &[u8] = b"PROXY ";
const CR_LF: &[u8] = b"\r\n";

#[derive(Copy, Clone, PartialEq, Eq)]
enum Protocol {
    Tcp4,
    Tcp6,
    Unknown,
}

impl Protocol {
    const ALL: [(Protocol, &'static [u8]); 3] = [
        (Protocol::Tcp4, b"TCP4"),
        (Protocol::Tcp6, b"TCP6"),
        (Protocol::Unknown, b"UNKNOWN"),
    ];

    /// Whether `byte` can stand in the fields of such a line: finds garbage before the line is whole.
    fn allows(self, byte: u8) -> bool {
        match self {
            Protocol::Tcp4 => byte.is_ascii_digit() || matches!(byte, b'.' | b' '),
            Protocol::Tcp6 => byte.is_ascii_hexdigit() || matches!(byte, b'.' | b':' | b' '),
            // Specification 2.1: the receiver must ignore anything before the CR LF.
            Protocol::Unknown => true,
        }
    }
}

pub(crate) fn parse(bytes: &[u8]) -> Result<Parsed<'_>, Error> {
    let Some(rest) = bytes.strip_prefix(PREFIX) else {
        return if PREFIX.starts_with(bytes) {
            Ok(Parsed::Incomplete {
                needed: shortest() - bytes.len(),
            })
        } else {
            Err(Error::NoHeader)
        };
    };
    let Some((protocol, fields)) = split_protocol(rest)? else {
        return Ok(Parsed::Incomplete {
            needed: shortest() - bytes.len(),
        });
    };
    match find_end(protocol, fields, bytes.len() - fields.len())? {
        None => Ok(Parsed::Incomplete {
            needed: missing(protocol, bytes),
        }),
        Some(end) => {
            let length = bytes.len() - fields.len() + end + CR_LF.len();
            let (transport, addresses) = match protocol {
                Protocol::Unknown => (Transport::Unspecified, Addresses::Unspecified),
                Protocol::Tcp4 | Protocol::Tcp6 => (Transport::Stream, addresses(protocol, &fields[..end])?),
            };
            let header = Header {
                version: Version::V1,
                command: Command::Proxy,
                transport,
                addresses,
                tlvs: Tlvs::EMPTY,
            };
            Ok(Parsed::Complete { header, length })
        }
    }
}

/// Length of the shortest header, `PROXY UNKNOWN\r\n`.
const fn shortest() -> usize {
    15
}

/// At least so many bytes are missing from a line whose end is not there yet.
fn missing(protocol: Protocol, bytes: &[u8]) -> usize {
    let shortest = match protocol {
        Protocol::Tcp4 => b"PROXY TCP4 0.0.0.0 0.0.0.0 0 0\r\n".len(),
        Protocol::Tcp6 => b"PROXY TCP6 :: :: 0 0\r\n".len(),
        Protocol::Unknown => shortest(),
    };
    let line_end = if bytes.ends_with(b"\r") { 1 } else { 2 };
    shortest.saturating_sub(bytes.len()).max(line_end)
}

/// The protocol word and what follows it; `None` if the word is not whole.
fn split_protocol(rest: &[u8]) -> Result<Option<(Protocol, &[u8])>, Error> {
    for (protocol, word) in Protocol::ALL {
        if let Some(fields) = rest.strip_prefix(word) {
            return match (protocol, fields.first()) {
                (_, None) => Ok(None),
                (_, Some(b' ')) | (Protocol::Unknown, Some(b'\r')) => Ok(Some((protocol, fields))),
                _ => Err(Error::V1Protocol),
            };
        }
        if word.starts_with(rest) {
            return Ok(None);
        }
    }
    Err(Error::V1Protocol)
}

/// Index of the CR LF in `fields`, which begin `before` bytes into the line.
fn find_end(protocol: Protocol, fields: &[u8], before: usize) -> Result<Option<usize>, Error> {
    let window = &fields[..fields.len().min(MAX_LEN - before)];
    for (index, &byte) in window.iter().enumerate() {
        match byte {
            b'\n' => return Err(Error::V1LineEnd),
            b'\r' => match window.get(index + 1) {
                Some(b'\n') => return Ok(Some(index)),
                Some(_) => return Err(Error::V1LineEnd),
                None if window.len() == MAX_LEN - before => return Err(Error::V1TooLong),
                None => return Ok(None),
            },
            _ if !protocol.allows(byte) => return Err(Error::V1Address),
            _ => {}
        }
    }
    // The last byte of the longest line is its LF: without a CR before that place it cannot end in time.
    if before + window.len() >= MAX_LEN - 1 {
        Err(Error::V1TooLong)
    } else {
        Ok(None)
    }
}

/// ` source destination port port`, each with one space before it.
fn addresses(protocol: Protocol, fields: &[u8]) -> Result<Addresses<'static>, Error> {
    let text = core::str::from_utf8(fields).map_err(|_| Error::V1Fields)?;
    let mut words = text.split(' ');
    // The field before the first space is empty: `fields` begins with the space after the protocol word.
    let (Some(""), Some(source), Some(destination), Some(source_port), Some(destination_port), None) = (
        words.next(),
        words.next(),
        words.next(),
        words.next(),
        words.next(),
        words.next(),
    ) else {
        return Err(Error::V1Fields);
    };
    if [source, destination, source_port, destination_port].contains(&"") {
        return Err(Error::V1Fields);
    }
    let ports = (port(source_port)?, port(destination_port)?);
    if protocol == Protocol::Tcp4 {
        Ok(Addresses::Inet {
            source: SocketAddrV4::new(address::<Ipv4Addr>(source)?, ports.0),
            destination: SocketAddrV4::new(address::<Ipv4Addr>(destination)?, ports.1),
        })
    } else {
        Ok(Addresses::Inet6 {
            source: SocketAddrV6::new(address::<Ipv6Addr>(source)?, ports.0, 0, 0),
            destination: SocketAddrV6::new(address::<Ipv6Addr>(destination)?, ports.1, 0, 0),
        })
    }
}

/// The standard library's parser is as strict as the specification: no leading zeros in an octet, no zone, no brackets.
/// It takes the dotted tail (`::ffff:192.0.2.1`), which senders that use `inet_ntop` write.
fn address<A: FromStr>(word: &str) -> Result<A, Error> {
    word.parse().map_err(|_| Error::V1Address)
}

fn port(word: &str) -> Result<u16, Error> {
    let canonical = word == "0" || !word.starts_with(['0', '+']);
    word.parse().ok().filter(|_| canonical).ok_or(Error::V1Port)
}

pub(crate) fn encoded_len(addresses: &Addresses<'_>) -> usize {
    let mut counter = Counter(0);
    // Counting cannot fail.
    let _ = write_line(&mut counter, addresses);
    counter.0
}

pub(crate) fn encode(header: &Header<'_>, out: &mut [u8]) -> Result<usize, EncodeError> {
    let says_more = header.transport == Transport::Datagram || !header.tlvs.is_empty();
    if says_more || matches!(header.addresses, Addresses::Unix { .. }) {
        return Err(EncodeError::NotInV1);
    }
    // Version 1 has no LOCAL; the specification's equivalent is UNKNOWN.
    let addresses = match header.command {
        Command::Local => Addresses::Unspecified,
        Command::Proxy => header.addresses,
    };
    let mut cursor = Cursor { out, length: 0 };
    match write_line(&mut cursor, &addresses) {
        Ok(()) => Ok(cursor.length),
        Err(fmt::Error) => Err(EncodeError::NoRoom {
            required: encoded_len(&addresses),
        }),
    }
}

fn write_line(to: &mut impl Write, addresses: &Addresses<'_>) -> fmt::Result {
    let ports = match addresses {
        Addresses::Unspecified | Addresses::Unix { .. } => return to.write_str("PROXY UNKNOWN\r\n"),
        Addresses::Inet { source, destination } => {
            to.write_str("PROXY TCP4 ")?;
            write_v4(to, source.ip())?;
            to.write_str(" ")?;
            write_v4(to, destination.ip())?;
            [source.port(), destination.port()]
        }
        Addresses::Inet6 { source, destination } => {
            write!(to, "PROXY TCP6 {} {}", source.ip(), destination.ip())?;
            [source.port(), destination.port()]
        }
    };
    for port in ports {
        to.write_str(" ")?;
        write_number(to, port)?;
    }
    to.write_str("\r\n")
}

fn write_v4(to: &mut impl Write, address: &Ipv4Addr) -> fmt::Result {
    let [first, rest @ ..] = address.octets();
    write_number(to, first.into())?;
    for octet in rest {
        to.write_str(".")?;
        write_number(to, octet.into())?;
    }
    Ok(())
}

/// As `write!("{number}")`, which takes several times as long: an engine writes a header for every connection.
fn write_number(to: &mut impl Write, number: u16) -> fmt::Result {
    let mut digits = [0; 5];
    let (mut at, mut rest) = (digits.len(), number);
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    to.write_str(core::str::from_utf8(&digits[at..]).map_err(|_| fmt::Error)?)
}

struct Cursor<'a> {
    out: &'a mut [u8],
    length: usize,
}

impl Write for Cursor<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.length + text.len();
        self.out
            .get_mut(self.length..end)
            .ok_or(fmt::Error)?
            .copy_from_slice(text.as_bytes());
        self.length = end;
        Ok(())
    }
}

struct Counter(usize);

impl Write for Counter {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0 += text.len();
        Ok(())
    }
}
