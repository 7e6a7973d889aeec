//! What a PostgreSQL client sends first: its StartupMessage, or the request to encrypt before it.
//!
//! PostgreSQL documentation, "Message Formats": a length of four bytes that counts itself, a code of four bytes, and for a
//! StartupMessage pairs of zero-terminated strings up to a zero byte. There is no type byte.
//!
//! A client that may encrypt (psql does by default) sends SSLRequest or GSSENCRequest first and waits for the server's
//! answer, so that user and database are not known when the server is chosen. [`encryption_request`] is for those. One that
//! starts TLS directly (`sslnegotiation=direct`) names server and protocol in its ClientHello: see [`tls`](super::tls).

use super::Sought;

/// The first two bytes of every first message, because none is longer than 64 KiB.
pub const MESSAGE_START: [u8; 2] = [0, 0];
/// The first seven bytes of SSLRequest and GSSENCRequest.
pub const ENCRYPTION_REQUEST_START: [u8; 7] = [0, 0, 0, 8, 0x04, 0xd2, 0x16];

/// The server's MAX_STARTUP_PACKET_LENGTH, and the length field that it does not count.
const MAX_STARTUP: usize = 10_000 + 4;
/// Length, code and the terminating zero.
const MIN_STARTUP: usize = 9;
/// Protocol 3; the minor version behind it may be any, the server offers what it has.
const MAJOR_VERSION: [u8; 2] = [0, 3];
/// The last byte of SSLRequest (code 80877103) and of GSSENCRequest (80877104).
const LAST_BYTES: [u8; 2] = [0x2f, 0x30];

/// Who wants to get at what.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Startup<'a> {
    /// The user; not empty.
    pub user: &'a [u8],
    /// The database: the one of the user's name when none is asked for.
    pub database: &'a [u8],
}

/// The StartupMessage that `bytes` begin with; known when it is there as a whole, since of two values for one name the
/// server takes the last.
pub fn startup(bytes: &[u8]) -> Sought<Startup<'_>> {
    let Some((length, rest)) = bytes.split_first_chunk::<4>() else {
        // The length is at most 0x2714.
        let may_be = bytes.iter().zip(MESSAGE_START).all(|(byte, start)| *byte == start);
        let small = bytes.get(2).is_none_or(|byte| usize::from(*byte) <= MAX_STARTUP >> 8);
        return if may_be && small {
            Sought::NeedMore
        } else {
            Sought::Absent
        };
    };
    let length = u32::from_be_bytes(*length) as usize;
    if !(MIN_STARTUP..=MAX_STARTUP).contains(&length) {
        return Sought::Absent;
    }
    if !rest.iter().zip(MAJOR_VERSION).all(|(byte, version)| *byte == version) {
        return Sought::Absent;
    }
    // The code is a part of the length, and 4 bytes of each were counted with MIN_STARTUP.
    match bytes.get(8..length) {
        Some(parameters) => parse(parameters).map_or(Sought::Absent, Sought::Found),
        None => Sought::NeedMore,
    }
}

fn parse(mut parameters: &[u8]) -> Option<Startup<'_>> {
    let mut user = None;
    let mut database = None;
    loop {
        let name = string(&mut parameters)?;
        if name.is_empty() {
            break;
        }
        let value = string(&mut parameters)?;
        match name {
            b"user" => user = Some(value),
            b"database" => database = Some(value),
            _ => (),
        }
    }
    // The server refuses what has something behind its end, and what names no user.
    let user = user.filter(|user| !user.is_empty() && parameters.is_empty())?;
    let database = database.filter(|database| !database.is_empty()).unwrap_or(user);
    Some(Startup { user, database })
}

/// Takes a zero-terminated string from the front.
fn string<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let end = bytes.iter().position(|byte| *byte == 0)?;
    let (string, rest) = (bytes.get(..end)?, bytes.get(end + 1..)?);
    *bytes = rest;
    Some(string)
}

/// Whether `bytes` begin with an SSLRequest or a GSSENCRequest.
pub fn encryption_request(bytes: &[u8]) -> Sought<()> {
    let start = bytes.len().min(ENCRYPTION_REQUEST_START.len());
    if bytes[..start] != ENCRYPTION_REQUEST_START[..start] {
        return Sought::Absent;
    }
    match bytes.get(ENCRYPTION_REQUEST_START.len()) {
        Some(last) if LAST_BYTES.contains(last) => Sought::Found(()),
        Some(_) => Sought::Absent,
        None => Sought::NeedMore,
    }
}
