//! What requests and responses consist of, and how they are checked.
//!
//! Every byte follows from a few numbers, so nothing is stored: a segment is filled when it is sent (or sent again) and
//! checked when it comes, in order or not.
//!
//! ```text
//! text   request   "17 0000002as " + filler          17 = selector key, 2a = tag of the connection, s = who closes
//!        response  "0100002a" + filler               01 = server, 00002a = the tag's last 24 bits
//! http   request   "GET /0000002as HTTP/1.1⏎Host: s17.example⏎X-Fill: " + filler + "⏎⏎"
//!        response  "HTTP/1.1 200 OK⏎Content-Length: 100⏎⏎0100002a" + filler
//! tls    request   a ClientHello with the name s17.example, tag and closer in its random, filler in its padding
//!        response  as text: nobody between reads it
//! ```
//!
//! The filler is printable and depends on key or server, tag, round and place.

use std::io::Write as _;

use arrayvec::ArrayVec;

/// Bytes of a response that name the server and the connection; shorter responses are refused.
pub const MIN_RESPONSE: u32 = 8;

/// Longest domain of the HTTP format.
pub const MAX_DOMAIN: usize = 64;

/// Longest fixed text before the filler.
const MAX_HEAD: usize = 192;

type Head = ArrayVec<u8, MAX_HEAD>;

/// Form of requests and responses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Format {
    /// Text that begins with the selector key as a decimal number.
    Text,
    /// HTTP/1.1, the selector key is in the host name: `s<key>.<domain>`.
    Http {
        /// What follows `s<key>.` in the Host header.
        domain: String,
    },
    /// A TLS ClientHello in one record, the selector key is in the server name: `s<key>.<domain>`. No handshake follows.
    Tls {
        /// What follows `s<key>.` in the server name.
        domain: String,
    },
}

/// Who closes a connection after its last response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Close {
    /// The client's FIN comes first.
    Client = b'c',
    /// The server's FIN comes first, in the segment of its response's last byte.
    Server = b's',
    /// Both send FIN without having seen the other's.
    Both = b'b',
    /// The client sends RST.
    Reset = b'r',
    /// Nobody yet: more requests follow.
    Open = b'-',
}

impl Close {
    fn from_byte(byte: u8) -> Option<Close> {
        [Close::Client, Close::Server, Close::Both, Close::Reset, Close::Open]
            .into_iter()
            .find(|close| *close as u8 == byte)
    }
}

/// What a request says; the response follows from it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestId {
    /// Selector key.
    pub key: u16,
    /// Number of the connection.
    pub tag: u32,
    /// Who closes after the response.
    pub close: Close,
}

/// Result of comparing bytes with what they should be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Check {
    /// All are right.
    Right,
    /// The response names another server than the key's.
    WrongServer,
    /// Some byte is wrong.
    WrongBytes,
}

impl Format {
    /// Shortest request that this format can express, for any key and tag.
    pub fn min_request(&self) -> u32 {
        let longest = RequestId {
            key: u16::MAX,
            tag: u32::MAX,
            close: Close::Server,
        };
        (self.request_head(longest, MAX_HEAD as u32).len() + self.request_tail().len()) as u32
    }

    /// Longest request that this format can express.
    pub fn max_request(&self) -> u32 {
        match self {
            Format::Text | Format::Http { .. } => 1 << 29,
            // RFC 8446 5.1: 2^14 bytes of plaintext in a record, behind a header of five.
            Format::Tls { .. } => (1 << 14) + 5,
        }
    }

    /// Shortest response, for any length.
    pub fn min_response(&self) -> u32 {
        self.response_head(0, 0, u32::MAX).len() as u32
    }

    /// Writes the bytes `offset..offset + out.len()` of a request of `len` bytes.
    pub fn fill_request(&self, id: RequestId, round: u16, len: u32, offset: u32, out: &mut [u8]) {
        let seed = seed(u32::from(id.key), id.tag, round);
        fill(
            || self.request_head(id, len),
            seed,
            self.request_tail(),
            len,
            offset,
            out,
        );
    }

    /// Writes the bytes `offset..offset + out.len()` of the response of `server` of `len` bytes.
    pub fn fill_response(&self, server: u8, tag: u32, round: u16, len: u32, offset: u32, out: &mut [u8]) {
        let seed = seed(0x1_0000 | u32::from(server), tag, round);
        fill(|| self.response_head(server, tag, len), seed, b"", len, offset, out);
    }

    /// Compares `bytes` with the same place of a request.
    pub fn check_request(&self, id: RequestId, round: u16, len: u32, offset: u32, bytes: &[u8]) -> Check {
        compare(bytes, |at, chunk| self.fill_request(id, round, len, offset + at, chunk))
            .map_or(Check::Right, |_| Check::WrongBytes)
    }

    /// Compares `bytes` with the same place of the response of `server`.
    pub fn check_response(&self, server: u8, tag: u32, round: u16, len: u32, offset: u32, bytes: &[u8]) -> Check {
        let wrong = compare(bytes, |at, chunk| {
            self.fill_response(server, tag, round, len, offset + at, chunk)
        });
        let Some(wrong) = wrong else { return Check::Right };
        // The server's number stands right before the last six bytes of the head.
        let number_at = self.response_head(server, tag, len).len() as u32 - MIN_RESPONSE;
        if (number_at..number_at + 2).contains(&(offset + wrong)) {
            Check::WrongServer
        } else {
            Check::WrongBytes
        }
    }

    /// Reads a request's beginning. `None` if it is none of this format, or not complete.
    pub fn parse_request(&self, bytes: &[u8]) -> Option<RequestId> {
        match self {
            Format::Text => {
                let (key, rest) = parse_decimal(bytes)?;
                let (tag, close) = parse_tag(rest.strip_prefix(b" ")?)?;
                Some(RequestId { key, tag, close })
            }
            Format::Http { .. } => {
                let rest = bytes.strip_prefix(b"GET /")?;
                let (tag, close) = parse_tag(rest)?;
                let (key, _) = parse_decimal(rest.get(9..)?.strip_prefix(b" HTTP/1.1\r\nHost: s")?)?;
                Some(RequestId { key, tag, close })
            }
            Format::Tls { .. } => {
                let (tag, close) = parse_tag(bytes.strip_prefix(&[22, 3, 1])?.get(HELLO_RANDOM_AT - 3..)?)?;
                let (key, _) = parse_decimal(bytes.get(HELLO_NAME_AT..)?.strip_prefix(b"s")?)?;
                Some(RequestId { key, tag, close })
            }
        }
    }

    fn request_head(&self, id: RequestId, len: u32) -> Head {
        let mut head = Head::new();
        let (key, tag, close) = (id.key, id.tag, char::from(id.close as u8));
        // The capacity is checked by `min_request` when the configuration is read: the text always fits.
        let written = match self {
            Format::Text => write_text_head(&mut head, key, tag, id.close),
            Format::Http { domain } => {
                let connection = if id.close == Close::Open { "keep-alive" } else { "close" };
                write!(
                    head,
                    "GET /{tag:08x}{close} HTTP/1.1\r\nHost: s{key}.{domain}\r\nConnection: {connection}\r\nX-Fill: "
                )
            }
            Format::Tls { domain } => write_hello(&mut head, id, domain, len),
        };
        debug_assert!(written.is_ok(), "head of a request longer than {MAX_HEAD} bytes");
        head
    }

    fn request_tail(&self) -> &'static [u8] {
        match self {
            Format::Text | Format::Tls { .. } => b"",
            Format::Http { .. } => b"\r\n\r\n",
        }
    }

    fn response_head(&self, server: u8, tag: u32, len: u32) -> Head {
        let mut head = Head::new();
        if let Format::Http { .. } = self {
            // The digits of the length are part of it: padded so that the head's length is the same for all.
            let body = len.saturating_sub(HTTP_RESPONSE_HEAD);
            let written = write!(head, "HTTP/1.1 200 OK\r\nContent-Length: {body:010}\r\n\r\n");
            debug_assert!(written.is_ok() && head.len() == HTTP_RESPONSE_HEAD as usize);
        }
        push_hex(&mut head, u32::from(server), 2);
        push_hex(&mut head, tag, 6);
        head
    }
}

/// Length of the HTTP header of a response.
const HTTP_RESPONSE_HEAD: u32 = 47;

fn write_text_head(head: &mut Head, key: u16, tag: u32, close: Close) -> std::io::Result<()> {
    write!(head, "{key} ")?;
    push_hex(head, tag, 8);
    head.write_all(&[close as u8, b' '])
}

/// Where the random of a ClientHello stands: behind the headers of record and handshake, and the version.
const HELLO_RANDOM_AT: usize = 5 + 4 + 2;

/// Where its name stands: behind the random, no session, one cipher suite, no compression, and the lengths of the first extension.
const HELLO_NAME_AT: usize = HELLO_RANDOM_AT + 32 + 1 + 4 + 2 + 2 + 9;

/// A ClientHello (RFC 8446 4.1.2) of `len` bytes, record header included, up to the content of its last extension, which is
/// padding (RFC 7685).
fn write_hello(head: &mut Head, id: RequestId, domain: &str, len: u32) -> std::io::Result<()> {
    let mut name = ArrayVec::<u8, { MAX_DOMAIN + 8 }>::new();
    write!(name, "s{}.{domain}", id.key)?;
    let (len, name_len) = (len as usize, name.len());
    let rest = |at: usize| len.saturating_sub(at).min(usize::from(u16::MAX)) as u16;
    head.write_all(&[22, 3, 1])?;
    head.write_all(&rest(5).to_be_bytes())?;
    head.write_all(&[1, 0])?;
    head.write_all(&rest(9).to_be_bytes())?;
    head.write_all(&[3, 3])?;
    push_hex(head, id.tag, 8);
    head.write_all(&[id.close as u8])?;
    head.write_all(&[b'r'; 23])?;
    // No session; TLS_AES_128_GCM_SHA256; no compression.
    head.write_all(&[0, 0, 2, 0x13, 0x01, 1, 0])?;
    head.write_all(&rest(HELLO_NAME_AT - 9).to_be_bytes())?;
    head.write_all(&[0, 0])?;
    head.write_all(&(name_len as u16 + 5).to_be_bytes())?;
    head.write_all(&(name_len as u16 + 3).to_be_bytes())?;
    head.write_all(&[0])?;
    head.write_all(&(name_len as u16).to_be_bytes())?;
    debug_assert_eq!(head.len(), HELLO_NAME_AT);
    head.write_all(&name)?;
    head.write_all(&[0, 21])?;
    head.write_all(&rest(HELLO_NAME_AT + name_len + 4).to_be_bytes())
}

fn push_hex(head: &mut Head, value: u32, digits: u32) {
    for digit in (0..digits).rev() {
        head.push(b"0123456789abcdef"[(value >> (4 * digit)) as usize & 0xf]);
    }
}

fn parse_decimal(bytes: &[u8]) -> Option<(u16, &[u8])> {
    let digits = bytes.iter().take(5).take_while(|byte| byte.is_ascii_digit()).count();
    let (number, rest) = bytes.split_at_checked(digits)?;
    let number = std::str::from_utf8(number).ok()?.parse().ok()?;
    (!rest.is_empty()).then_some((number, rest))
}

fn parse_tag(bytes: &[u8]) -> Option<(u32, Close)> {
    let (hex, rest) = bytes.split_at_checked(8)?;
    let tag = u32::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok()?;
    Some((tag, Close::from_byte(*rest.first()?)?))
}

/// Seed of a message's filler; `who` is the key or `0x1_0000` and the server.
fn seed(who: u32, tag: u32, round: u16) -> u64 {
    let mixed = (u64::from(who) << 32 | u64::from(tag)) ^ u64::from(round) << 50;
    mixed.wrapping_mul(0xff51_afd7_ed55_8ccd)
}

/// Eight printable bytes: `0` to `o`.
#[inline]
fn word(seed: u64, index: u32) -> [u8; 8] {
    let mixed = (seed ^ u64::from(index)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (((mixed ^ mixed >> 32) & 0x3f3f_3f3f_3f3f_3f3f) + 0x3030_3030_3030_3030).to_le_bytes()
}

fn fill(head: impl FnOnce() -> Head, seed: u64, tail: &[u8], len: u32, offset: u32, out: &mut [u8]) {
    fill_pattern(seed, offset, out);
    if (offset as usize) < MAX_HEAD {
        overlay(&head(), 0, offset, out);
    }
    overlay(tail, len.saturating_sub(tail.len() as u32), offset, out);
}

fn fill_pattern(seed: u64, offset: u32, out: &mut [u8]) {
    let skip = (offset % 8) as usize;
    let mut index = offset / 8;
    let lead = ((8 - skip) % 8).min(out.len());
    let (first, rest) = out.split_at_mut(lead);
    if lead > 0 {
        first.copy_from_slice(&word(seed, index)[skip..skip + lead]);
        index += 1;
    }
    let mut chunks = rest.chunks_exact_mut(8);
    for chunk in &mut chunks {
        chunk.copy_from_slice(&word(seed, index));
        index += 1;
    }
    let last = chunks.into_remainder();
    last.copy_from_slice(&word(seed, index)[..last.len()]);
}

/// Copies the part of `text` (which stands at `at` of the message) that lies in `out` (which stands at `offset`).
fn overlay(text: &[u8], at: u32, offset: u32, out: &mut [u8]) {
    let (from, to) = (at.max(offset), (at + text.len() as u32).min(offset + out.len() as u32));
    if from < to {
        out[(from - offset) as usize..(to - offset) as usize]
            .copy_from_slice(&text[(from - at) as usize..(to - at) as usize]);
    }
}

/// Place of the first byte that differs from what `fill` writes.
fn compare(bytes: &[u8], fill: impl Fn(u32, &mut [u8])) -> Option<u32> {
    let mut expected = [0; 256];
    for (index, chunk) in bytes.chunks(expected.len()).enumerate() {
        let at = index * expected.len();
        let expected = &mut expected[..chunk.len()];
        fill(at as u32, expected);
        if chunk != expected {
            let place = chunk.iter().zip(&*expected).position(|(is, should)| is != should)?;
            return Some((at + place) as u32);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn formats() -> [Format; 3] {
        let domain = "example".to_owned();
        [
            Format::Text,
            Format::Http { domain: domain.clone() },
            Format::Tls { domain },
        ]
    }

    fn request(format: &Format, id: RequestId, len: u32) -> Vec<u8> {
        let mut bytes = vec![0; len as usize];
        format.fill_request(id, 0, len, 0, &mut bytes);
        bytes
    }

    #[test]
    fn text_request_begins_with_the_key_and_fits_sixteen_bytes() {
        let id = RequestId {
            key: 17,
            tag: 0x2a,
            close: Close::Server,
        };
        assert!(request(&Format::Text, id, 20).starts_with(b"17 0000002as "));
        assert_eq!(Format::Text.min_request(), 16);
        assert_eq!(Format::Text.min_response(), MIN_RESPONSE);
    }

    #[test]
    fn http_messages_are_what_httparse_expects() {
        let format = &formats()[1];
        let id = RequestId {
            key: 3,
            tag: 0xabcdef01,
            close: Close::Open,
        };
        let bytes = request(format, id, 200);
        let text = std::str::from_utf8(&bytes).unwrap();
        assert!(text.starts_with("GET /abcdef01- HTTP/1.1\r\nHost: s3.example\r\nConnection: keep-alive\r\nX-Fill: "));
        assert!(text.ends_with("\r\n\r\n") && text.matches("\r\n\r\n").count() == 1);
        let mut response = vec![0; 100];
        format.fill_response(2, 0xabcdef01, 0, 100, 0, &mut response);
        let text = std::str::from_utf8(&response).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert_eq!(head, "HTTP/1.1 200 OK\r\nContent-Length: 0000000053");
        assert_eq!((body.len(), &body[..8]), (53, "02cdef01"));
    }

    #[test]
    fn every_length_of_a_hello_ends_with_the_request() {
        let id = RequestId {
            key: 999,
            tag: 0x2a,
            close: Close::Server,
        };
        let hello = request(&formats()[2], id, 200);
        let number = |at: usize| usize::from(u16::from_be_bytes([hello[at], hello[at + 1]]));
        // Record, handshake, extensions, padding.
        assert_eq!([5 + number(3), 9 + number(7)], [200; 2]);
        assert_eq!(HELLO_NAME_AT - 9 + number(HELLO_NAME_AT - 11), 200);
        assert_eq!(&hello[HELLO_NAME_AT..HELLO_NAME_AT + 12], b"s999.example");
        let padding = HELLO_NAME_AT + 12 + 4;
        assert_eq!(padding + number(padding - 2), 200);
        assert!(formats()[2].min_request() <= 200);
    }

    #[test]
    fn wrong_server_is_told_from_wrong_bytes() {
        for format in formats() {
            let mut bytes = vec![0; 500];
            format.fill_response(3, 77, 1, 500, 0, &mut bytes);
            let check = |server, tag, round, bytes: &[u8]| format.check_response(server, tag, round, 500, 0, bytes);
            assert_eq!(check(3, 77, 1, &bytes), Check::Right);
            assert_eq!(check(4, 77, 1, &bytes), Check::WrongServer);
            assert_eq!(check(3, 78, 1, &bytes), Check::WrongBytes);
            assert_eq!(check(3, 77, 2, &bytes), Check::WrongBytes);
            *bytes.last_mut().unwrap() ^= 1;
            assert_eq!(check(3, 77, 1, &bytes), Check::WrongBytes);
        }
    }

    #[test]
    fn what_is_no_request_is_not_parsed() {
        for bytes in [
            &b""[..],
            b"x",
            b"17",
            b"17 0000002",
            b"17 0000002a",
            b"17 0000002ax ",
            b"99999 0000002as ",
            b" 1",
        ] {
            assert_eq!(Format::Text.parse_request(bytes), None, "{bytes:?}");
        }
        for bytes in [
            &b"GET /"[..],
            b"GET /0000002as HTTP/1.1\r\nHost: s",
            b"POST /0000002as HTTP/1.1\r\nHost: s1.x",
        ] {
            assert_eq!(formats()[1].parse_request(bytes), None, "{bytes:?}");
        }
        let id = RequestId {
            key: 1,
            tag: 1,
            close: Close::Server,
        };
        let hello = request(&formats()[2], id, 200);
        for bytes in [&b""[..], &hello[..11], &hello[..61], &hello[1..]] {
            assert_eq!(formats()[2].parse_request(bytes), None, "{bytes:?}");
        }
    }

    proptest! {
        #[test]
        fn any_cut_of_a_message_is_filled_and_checked_alike(
            format in 0usize..3, key: u16, tag: u32, round: u16, server: u8, len in 256u32..2000, cut in 0.0..1.0, size in 0usize..600,
        ) {
            let format = &formats()[format];
            let id = RequestId { key, tag, close: Close::Both };
            let (mut whole, mut answer) = (vec![0; len as usize], vec![0; len as usize]);
            format.fill_request(id, round, len, 0, &mut whole);
            format.fill_response(server, tag, round, len, 0, &mut answer);
            prop_assert_eq!(format.parse_request(&whole), Some(id));
            let offset = (f64::from(len) * cut) as usize;
            let end = (offset + size).min(whole.len());
            let mut part = vec![0; end - offset];
            format.fill_request(id, round, len, offset as u32, &mut part);
            prop_assert_eq!(&part, &whole[offset..end]);
            prop_assert_eq!(format.check_request(id, round, len, offset as u32, &part), Check::Right);
            prop_assert_eq!(
                format.check_response(server, tag, round, len, offset as u32, &answer[offset..end]),
                Check::Right
            );
            if let Some(byte) = part.last_mut() {
                *byte = byte.wrapping_add(1);
                prop_assert_eq!(format.check_request(id, round, len, offset as u32, &part), Check::WrongBytes);
            }
        }
    }
}
