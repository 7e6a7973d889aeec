//! The name in an LDAP bind request (RFC 4511 4.2), which clients send first to say who they are.
//!
//! The message is read as BER within the bounds of RFC 4511 5.1, from the first byte on, so that bytes of another protocol
//! are known as such at once; the name is known with its last byte. Whether the credentials behind it are well-formed is
//! for the server to say, which gets to see all of it. A client that begins with another operation (a search without bind,
//! StartTLS) names nobody.

use super::Sought;

/// What every LDAP message begins with: the tag of a SEQUENCE. It is also the digit "0".
pub const MESSAGE_START: u8 = 0x30;
/// The longest name that is read. Directories allow 1 KiB and less in practice; with more the first payload would soon not
/// hold the request.
pub const MAX_NAME: usize = 4096;

const INTEGER: u8 = 0x02;
const OCTET_STRING: u8 = 0x04;
/// RFC 4511 4.2: `BindRequest ::= [APPLICATION 0] SEQUENCE`.
const BIND_REQUEST: u8 = 0x60;

/// The name in the bind request that `bytes` begin with; empty for an anonymous one and for most of SASL.
pub fn bind_name(bytes: &[u8]) -> Sought<&[u8]> {
    let mut message = Reader { bytes, at: 0 };
    match message.bind_name() {
        Ok(name) => Sought::Found(name),
        Err(Stop::NeedMore) => Sought::NeedMore,
        Err(Stop::Malformed) => Sought::Absent,
    }
}

/// Why reading ended early.
enum Stop {
    NeedMore,
    Malformed,
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn bind_name(&mut self) -> Result<&'a [u8], Stop> {
        self.tag(MESSAGE_START)?;
        let message = self.length()?;
        let end = self.at.checked_add(message).ok_or(Stop::Malformed)?;
        // RFC 4511 4.1.1.1: a request's messageID is not zero.
        if self.integer(end, 4)? == 0 {
            return Err(Stop::Malformed);
        }
        self.tag_before(BIND_REQUEST, end)?;
        let bind = self.length()?;
        let end = self.within(bind, end)?;
        // RFC 4511 4.2: version 1 to 127.
        if self.integer(end, 1)? == 0 {
            return Err(Stop::Malformed);
        }
        self.tag_before(OCTET_STRING, end)?;
        let length = self.length()?;
        let name_end = self.within(length, end)?;
        // Behind the name there are at least the tag and the length of the credentials.
        if length > MAX_NAME || end - name_end < 2 {
            return Err(Stop::Malformed);
        }
        let name = self.bytes.get(self.at..name_end).ok_or(Stop::NeedMore)?;
        // RFC 4511 4.1.3: a string of UTF-8.
        if std::str::from_utf8(name).is_err() {
            return Err(Stop::Malformed);
        }
        Ok(name)
    }

    /// A positive integer, or 0, of at most `longest` bytes. X.690 8.3.2: the first nine bits are not all the same.
    fn integer(&mut self, end: usize, longest: usize) -> Result<u32, Stop> {
        self.tag_before(INTEGER, end)?;
        let length = self.length()?;
        self.within(length, end)?;
        if length == 0 || length > longest {
            return Err(Stop::Malformed);
        }
        let mut value = 0;
        for i in 0..length {
            let byte = self.byte()?;
            let negative = i == 0 && byte >= 0x80;
            let padded = i == 1 && value == 0 && byte < 0x80;
            if negative || padded {
                return Err(Stop::Malformed);
            }
            value = value << 8 | u32::from(byte);
        }
        Ok(value)
    }

    /// X.690 8.1.3 without the indefinite form, which RFC 4511 5.1 excludes. Long forms need not be the shortest possible:
    /// clients of Windows always send five bytes.
    fn length(&mut self) -> Result<usize, Stop> {
        let first = self.byte()?;
        if first < 0x80 {
            return Ok(usize::from(first));
        }
        let count = first & 0x7f;
        if !(1..=4).contains(&count) {
            return Err(Stop::Malformed);
        }
        let mut length = 0_u32;
        for _ in 0..count {
            length = length << 8 | u32::from(self.byte()?);
        }
        usize::try_from(length).map_err(|_| Stop::Malformed)
    }

    /// Where an element of this length ends, which is not behind `end`.
    fn within(&self, length: usize, end: usize) -> Result<usize, Stop> {
        let inner = self.at.checked_add(length).ok_or(Stop::Malformed)?;
        if inner > end {
            return Err(Stop::Malformed);
        }
        Ok(inner)
    }

    /// A tag for which there is room with its length.
    fn tag_before(&mut self, expected: u8, end: usize) -> Result<(), Stop> {
        if end < self.at + 2 {
            return Err(Stop::Malformed);
        }
        self.tag(expected)
    }

    fn tag(&mut self, expected: u8) -> Result<(), Stop> {
        if self.byte()? != expected {
            return Err(Stop::Malformed);
        }
        Ok(())
    }

    fn byte(&mut self) -> Result<u8, Stop> {
        let byte = *self.bytes.get(self.at).ok_or(Stop::NeedMore)?;
        self.at += 1;
        Ok(byte)
    }
}
