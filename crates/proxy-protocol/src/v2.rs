//! Version 2, the binary form.
//!
//! ```text
//!  0            12        13        14        16
//!  | signature  | ver cmd | fam prt | length  | addresses ... | TLVs ...
//! ```

use crate::checksum::Crc32c;
use crate::header::{v4, v6};
use crate::tlv::Checked;
use crate::{
    Addresses, Command, EncodeError, Error, Header, ParseOptions, Parsed, TlvWriter, Tlvs, Transport, UNIX_LEN, Version,
};

/// The first bytes of every version 2 header.
pub const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";

/// Bytes before the addresses.
pub const FIXED_LEN: usize = 16;

/// Longest header that the 16-bit length allows.
pub const MAX_LEN: usize = FIXED_LEN + u16::MAX as usize;

const INET_LEN: usize = 12;
const INET6_LEN: usize = 36;

pub(crate) fn parse<'a>(bytes: &'a [u8], options: &ParseOptions) -> Result<Parsed<'a>, Error> {
    let known = bytes.len().min(SIGNATURE.len());
    if bytes[..known] != SIGNATURE[..known] {
        return Err(Error::NoHeader);
    }
    let command = bytes.get(12).map(|&byte| command(byte)).transpose()?;
    if let (Some(Command::Proxy), Some(&family)) = (command, bytes.get(13)) {
        addresses_len(family)?;
    }
    let (Some(command), &[_, _, _, _, _, _, _, _, _, _, _, _, _, family, high, low, ref rest @ ..]) = (command, bytes)
    else {
        return Ok(Parsed::Incomplete {
            needed: FIXED_LEN - bytes.len(),
        });
    };
    let announced = u16::from_be_bytes([high, low]);
    let length = FIXED_LEN + usize::from(announced);
    let block_len = match command {
        Command::Local => 0,
        Command::Proxy => addresses_len(family)?,
    };
    if usize::from(announced) < block_len {
        // Checked before any field is read: peers took addresses from the payload or from the stack here.
        return Err(Error::V2TooShort {
            announced,
            required: block_len as u16,
        });
    }
    if length > options.max_len {
        return Err(Error::V2TooLong {
            length,
            limit: options.max_len,
        });
    }
    let Some(body) = rest.get(..usize::from(announced)) else {
        return Ok(Parsed::Incomplete {
            needed: length - bytes.len(),
        });
    };
    let header = match command {
        // Specification 2.2: LOCAL is accepted, the protocol block discarded including the family, the length skipped.
        Command::Local => Header::local(),
        Command::Proxy => {
            let (block, tlvs) = body.split_at(block_len);
            let (transport, addresses) = addresses(family, block)?;
            let checked = Tlvs::check(tlvs)?;
            if options.verify_checksum {
                verify(&bytes[..length], FIXED_LEN + block_len, &checked)?;
            }
            Header {
                version: Version::V2,
                command,
                transport,
                addresses,
                tlvs: checked.tlvs,
            }
        }
    };
    Ok(Parsed::Complete { header, length })
}

fn command(byte: u8) -> Result<Command, Error> {
    match (byte >> 4, byte & 0x0f) {
        (2, 0) => Ok(Command::Local),
        (2, 1) => Ok(Command::Proxy),
        (2, other) => Err(Error::V2Command(other)),
        (version, _) => Err(Error::V2Version(version)),
    }
}

/// Bytes of the address block. Specification 2.2: only these combinations are defined, others are rejected.
fn addresses_len(family: u8) -> Result<usize, Error> {
    match family {
        0x00 => Ok(0),
        0x11 | 0x12 => Ok(INET_LEN),
        0x21 | 0x22 => Ok(INET6_LEN),
        0x31 | 0x32 => Ok(2 * UNIX_LEN),
        other => Err(Error::V2Family(other)),
    }
}

fn addresses(family: u8, block: &[u8]) -> Result<(Transport, Addresses<'_>), Error> {
    let transport = match family & 0x0f {
        1 => Transport::Stream,
        2 => Transport::Datagram,
        _ => Transport::Unspecified,
    };
    let addresses = match family >> 4 {
        1 => inet(block),
        2 => inet6(block),
        3 => unix(block),
        _ => Some(Addresses::Unspecified),
    };
    addresses
        .map(|addresses| (transport, addresses))
        .ok_or(Error::V2Family(family))
}

fn inet(block: &[u8]) -> Option<Addresses<'static>> {
    let (source, block) = block.split_first_chunk::<4>()?;
    let (destination, block) = block.split_first_chunk::<4>()?;
    let (source_port, block) = block.split_first_chunk::<2>()?;
    let destination_port = block.first_chunk::<2>()?;
    Some(Addresses::Inet {
        source: v4(*source, *source_port),
        destination: v4(*destination, *destination_port),
    })
}

fn inet6(block: &[u8]) -> Option<Addresses<'static>> {
    let (source, block) = block.split_first_chunk::<16>()?;
    let (destination, block) = block.split_first_chunk::<16>()?;
    let (source_port, block) = block.split_first_chunk::<2>()?;
    let destination_port = block.first_chunk::<2>()?;
    Some(Addresses::Inet6 {
        source: v6(*source, *source_port),
        destination: v6(*destination, *destination_port),
    })
}

fn unix(block: &[u8]) -> Option<Addresses<'_>> {
    let (source, block) = block.split_first_chunk::<UNIX_LEN>()?;
    Some(Addresses::Unix {
        source,
        destination: block.first_chunk()?,
    })
}

/// Compares the CRC32C, if there is one, with that of the header with the field set to zero.
fn verify(header: &[u8], tlvs_at: usize, checked: &Checked<'_>) -> Result<(), Error> {
    let Some(at) = checked.checksum_at.map(|at| tlvs_at + at) else {
        return Ok(());
    };
    let received = header[at..].first_chunk().map_or(0, |field| u32::from_be_bytes(*field));
    let computed = checksum(header, at);
    if received == computed {
        Ok(())
    } else {
        Err(Error::Checksum { received, computed })
    }
}

/// The CRC32C of `header` with the four bytes at `at` taken as zero.
fn checksum(header: &[u8], at: usize) -> u32 {
    Crc32c::new()
        .update(&header[..at])
        .update(&[0; 4])
        .update(&header[at + 4..])
        .finish()
}

pub(crate) fn encoded_len(header: &Header<'_>) -> usize {
    FIXED_LEN + block_len(header) + header.tlvs.as_bytes().len()
}

/// Bytes of the addresses of a header to be written.
fn block_len(header: &Header<'_>) -> usize {
    match (header.command, &header.addresses) {
        (Command::Local, _) | (_, Addresses::Unspecified) => 0,
        (_, Addresses::Inet { .. }) => INET_LEN,
        (_, Addresses::Inet6 { .. }) => INET6_LEN,
        (_, Addresses::Unix { .. }) => 2 * UNIX_LEN,
    }
}

pub(crate) fn encode(header: &Header<'_>, out: &mut [u8]) -> Result<usize, EncodeError> {
    let fields = header.tlvs.as_bytes();
    if fields.is_empty() {
        return encode_with(header, out, |_| {});
    }
    let required = encoded_len(header);
    announced(required)?;
    let checksum_at = Tlvs::check(fields)?.checksum_at;
    let (_, room) = write_front(header, out).ok_or(EncodeError::NoRoom { required })?;
    room.get_mut(..fields.len())
        .ok_or(EncodeError::NoRoom { required })?
        .copy_from_slice(fields);
    finish(out, required - fields.len(), (fields.len(), checksum_at))
}

/// Writes the header with those fields that `push` adds, where they are to stay; the header's own do not count.
#[inline]
pub(crate) fn encode_with(
    header: &Header<'_>,
    out: &mut [u8],
    push: impl FnOnce(&mut TlvWriter<'_>),
) -> Result<usize, EncodeError> {
    let (fields_at, room) = write_front(header, out).ok_or(EncodeError::NoRoom {
        required: FIXED_LEN + block_len(header),
    })?;
    let mut fields = TlvWriter::new(room);
    push(&mut fields);
    let written = (fields.tlvs().as_bytes().len(), fields.checksum_at());
    finish(out, fields_at, written)
}

/// Writes what is before the fields, and returns its length and the rest of `out`; nothing if there is no room.
#[inline]
fn write_front<'b>(header: &Header<'_>, out: &'b mut [u8]) -> Option<(usize, &'b mut [u8])> {
    let (fixed, rest) = out.split_first_chunk_mut::<FIXED_LEN>()?;
    let command = match header.command {
        Command::Local => 0x20,
        Command::Proxy => 0x21,
    };
    let (block_len, rest) = match (header.command, &header.addresses) {
        (Command::Local, _) | (_, Addresses::Unspecified) => (0, rest),
        (Command::Proxy, Addresses::Inet { source, destination }) => {
            let (block, rest) = rest.split_first_chunk_mut::<INET_LEN>()?;
            let addresses = u64::from(source.ip().to_bits()) << 32 | u64::from(destination.ip().to_bits());
            block[..8].copy_from_slice(&addresses.to_be_bytes());
            block[8..].copy_from_slice(&both_ports(source.port(), destination.port()));
            (INET_LEN, rest)
        }
        (Command::Proxy, Addresses::Inet6 { source, destination }) => {
            let (block, rest) = rest.split_first_chunk_mut::<INET6_LEN>()?;
            block[..16].copy_from_slice(&source.ip().octets());
            block[16..32].copy_from_slice(&destination.ip().octets());
            block[32..].copy_from_slice(&both_ports(source.port(), destination.port()));
            (INET6_LEN, rest)
        }
        (Command::Proxy, Addresses::Unix { source, destination }) => {
            let (block, rest) = rest.split_first_chunk_mut::<{ 2 * UNIX_LEN }>()?;
            block[..UNIX_LEN].copy_from_slice(*source);
            block[UNIX_LEN..].copy_from_slice(*destination);
            (2 * UNIX_LEN, rest)
        }
    };
    // The length is right for a header without fields, and else not known yet.
    let [high, low] = (block_len as u16).to_be_bytes();
    fixed[..12].copy_from_slice(&SIGNATURE);
    fixed[12..].copy_from_slice(&[command, family(header), high, low]);
    Some((FIXED_LEN + block_len, rest))
}

#[inline]
fn both_ports(source: u16, destination: u16) -> [u8; 4] {
    (u32::from(source) << 16 | u32::from(destination)).to_be_bytes()
}

/// Puts the length right, and the CRC32C, of a header whose fields have been written: so many bytes `at` this place.
#[inline]
fn finish(out: &mut [u8], at: usize, (fields, checksum_at): (usize, Option<usize>)) -> Result<usize, EncodeError> {
    if fields == 0 {
        return Ok(at);
    }
    let required = at + fields;
    let announced = announced(required)?;
    let out = out.get_mut(..required).ok_or(EncodeError::NoRoom { required })?;
    out[14..16].copy_from_slice(&announced.to_be_bytes());
    if let Some(place) = checksum_at {
        let place = at + place;
        let sum = checksum(out, place);
        out[place..place + 4].copy_from_slice(&sum.to_be_bytes());
    }
    Ok(required)
}

/// What a header of `required` bytes says of its length.
fn announced(required: usize) -> Result<u16, EncodeError> {
    let length = required - FIXED_LEN;
    let limit = usize::from(u16::MAX);
    u16::try_from(length).map_err(|_| EncodeError::TooLong { length, limit })
}

/// Byte 14. A transport that was not said counts as a stream where the family needs one.
fn family(header: &Header<'_>) -> u8 {
    let family = match (header.command, &header.addresses) {
        (Command::Local, _) | (_, Addresses::Unspecified) => return 0,
        (_, Addresses::Inet { .. }) => 0x10,
        (_, Addresses::Inet6 { .. }) => 0x20,
        (_, Addresses::Unix { .. }) => 0x30,
    };
    family
        | match header.transport {
            Transport::Datagram => 2,
            Transport::Stream | Transport::Unspecified => 1,
        }
}
