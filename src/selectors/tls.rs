//! The server name and the application protocols of a TLS ClientHello (RFC 8446 4.1.2, RFC 6066 section 3, RFC 7301).
//!
//! The hello is read across segments and across records: it may be cut anywhere, and hellos with post-quantum key shares
//! are longer than a segment. Each is known as soon as its extension has been read; whether the rest is well-formed is
//! for the server to say, which gets to see all of it. With Encrypted Client Hello these are the public, outer ones.
//!
//! The parser reads one byte after the other, within the bounds that each length field sets, so it neither panics nor
//! allocates, and what it says depends on the bytes it has read only.

use arrayvec::{ArrayString, ArrayVec};
use proxy_protocol::kind;

use super::Sought;
use splice::settings::{FieldBuf, SendProxyFields};

/// The longest hello that is read. It is BoringSSL's limit for a handshake message of a client; other stacks take more,
/// but more is never collected of a first payload.
const MAX_HELLO: usize = 16 * 1024;
/// RFC 8446 5.1: a record holds at most 2^14 bytes of plaintext.
const MAX_RECORD: usize = 1 << 14;
/// The longest name in text form (RFC 1035 2.3.4), and a dot after it.
const MAX_NAME: usize = crate::config::MAX_HOST_LEN + 1;

/// The longest list of protocols that is read, lengths included. Browsers send 12 bytes (h2, http/1.1).
const MAX_PROTOCOLS: usize = 512;

/// What every ClientHello begins with: a record of the handshake, major version 3.
pub const HELLO_START: [u8; 2] = [RECORD_HANDSHAKE, 3];
const RECORD_HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const EXTENSION_SERVER_NAME: u16 = 0;
const EXTENSION_PROTOCOLS: u16 = 16;
const NAME_TYPE_HOST: u8 = 0;

/// A host name as the client sent it: printable ASCII.
pub type ServerName = ArrayString<MAX_NAME>;

/// The application protocols that a client offers, each behind a byte with its length: RFC 7301 3.1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Protocols(ArrayVec<u8, MAX_PROTOCOLS>);

impl Protocols {
    /// The protocols, the client's favourite first.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = &self.0[..];
        std::iter::from_fn(move || {
            let (length, after) = rest.split_first()?;
            let (name, after) = after.split_at_checked(usize::from(*length))?;
            rest = after;
            Some(name)
        })
    }
}

/// The server name in the ClientHello that `bytes` begin with.
pub fn server_name(bytes: &[u8]) -> Sought<ServerName> {
    sought(Hello::new(bytes).server_name())
}

/// The application protocols in the ClientHello that `bytes` begin with.
pub fn protocols(bytes: &[u8]) -> Sought<Protocols> {
    sought(Hello::new(bytes).protocols())
}

/// Appends what the ClientHello that `bytes` begin with says to a PROXY header: `PP2_TYPE_ALPN` with the client's favourite
/// protocol and `PP2_TYPE_AUTHORITY` with the server name, so far as they are `wanted`.
pub(crate) fn proxy_fields(wanted: SendProxyFields, bytes: &[u8], fields: &mut FieldBuf) {
    if wanted.alpn
        && let Sought::Found(protocols) = protocols(bytes)
        && let Some(first) = protocols.iter().next()
    {
        push_field(fields, kind::ALPN, first);
    }
    if wanted.authority
        && let Sought::Found(name) = server_name(bytes)
    {
        push_field(fields, kind::AUTHORITY, name.as_bytes());
    }
}

fn push_field(fields: &mut FieldBuf, kind: u8, value: &[u8]) {
    let [high, low] = (value.len() as u16).to_be_bytes();
    // There is room for both: neither value has more than 255 bytes.
    _ = fields.try_extend_from_slice(&[kind, high, low]);
    _ = fields.try_extend_from_slice(value);
}

fn sought<T>(read: Result<Option<T>, Stop>) -> Sought<T> {
    match read {
        Ok(Some(found)) => Sought::Found(found),
        Ok(None) | Err(Stop::Malformed) => Sought::Absent,
        Err(Stop::NeedMore) => Sought::NeedMore,
    }
}

/// Why reading ended early.
enum Stop {
    NeedMore,
    Malformed,
}

/// The handshake bytes inside the records inside `bytes`.
struct Hello<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Bytes left in the record at `at`.
    in_record: usize,
}

/// Bytes left in the vector that is being read.
struct Left(usize);

impl Left {
    fn take(&mut self, count: usize) -> Result<(), Stop> {
        self.0 = self.0.checked_sub(count).ok_or(Stop::Malformed)?;
        Ok(())
    }
}

impl<'a> Hello<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            at: 0,
            in_record: 0,
        }
    }

    fn server_name(&mut self) -> Result<Option<ServerName>, Stop> {
        let Some(mut extension) = self.extension(EXTENSION_SERVER_NAME)? else {
            return Ok(None);
        };
        let list = usize::from(self.u16(&mut extension)?);
        if list == 0 || list != extension.0 {
            return Err(Stop::Malformed);
        }
        self.name_list(&mut extension)
    }

    /// RFC 7301 3.1: a list of at least one name, none of them empty.
    fn protocols(&mut self) -> Result<Option<Protocols>, Stop> {
        let Some(mut extension) = self.extension(EXTENSION_PROTOCOLS)? else {
            return Ok(None);
        };
        let list = usize::from(self.u16(&mut extension)?);
        if list == 0 || list != extension.0 || list > MAX_PROTOCOLS {
            return Err(Stop::Malformed);
        }
        let mut protocols = ArrayVec::new();
        while extension.0 > 0 {
            let length = self.u8(&mut extension)?;
            if length == 0 || usize::from(length) > extension.0 {
                return Err(Stop::Malformed);
            }
            // There is room for every list whose length passed above.
            _ = protocols.try_push(length);
            for _ in 0..length {
                _ = protocols.try_push(self.u8(&mut extension)?);
            }
        }
        Ok(Some(Protocols(protocols)))
    }

    /// Reads up to the body of the first extension of this type.
    fn extension(&mut self, wanted: u16) -> Result<Option<Left>, Stop> {
        let Some(mut extensions) = self.extensions()? else {
            return Ok(None);
        };
        while extensions.0 > 0 {
            let kind = self.u16(&mut extensions)?;
            let length = usize::from(self.u16(&mut extensions)?);
            if kind == wanted {
                extensions.take(length)?;
                return Ok(Some(Left(length)));
            }
            // Among them GREASE (RFC 8701), which is like any other that is not wanted.
            self.skip(length, &mut extensions)?;
        }
        Ok(None)
    }

    /// Reads up to the first extension.
    fn extensions(&mut self) -> Result<Option<Left>, Stop> {
        let mut header = Left(4);
        if self.u8(&mut header)? != CLIENT_HELLO {
            return Err(Stop::Malformed);
        }
        let length = usize::from(self.u8(&mut header)?) << 16 | usize::from(self.u16(&mut header)?);
        if length > MAX_HELLO {
            return Err(Stop::Malformed);
        }
        let mut hello = Left(length);
        // legacy_version and random. 0x0300 to 0x0303; later versions are agreed on in an extension.
        if self.u8(&mut hello)? != 3 {
            return Err(Stop::Malformed);
        }
        self.skip(1 + 32, &mut hello)?;
        let session_id = self.u8(&mut hello)?;
        if session_id > 32 {
            return Err(Stop::Malformed);
        }
        self.skip(session_id.into(), &mut hello)?;
        let cipher_suites = self.u16(&mut hello)?;
        if cipher_suites < 2 || cipher_suites % 2 != 0 {
            return Err(Stop::Malformed);
        }
        self.skip(cipher_suites.into(), &mut hello)?;
        let compression_methods = self.u8(&mut hello)?;
        if compression_methods == 0 {
            return Err(Stop::Malformed);
        }
        self.skip(compression_methods.into(), &mut hello)?;
        if hello.0 == 0 {
            // Before TLS 1.3 a hello may end here.
            return Ok(None);
        }
        let extensions = usize::from(self.u16(&mut hello)?);
        if extensions != hello.0 {
            return Err(Stop::Malformed);
        }
        Ok(Some(hello))
    }

    /// RFC 6066 section 3: at most one name of each type. Types other than host names do not exist; by their length they
    /// could be skipped.
    fn name_list(&mut self, list: &mut Left) -> Result<Option<ServerName>, Stop> {
        let mut found = None;
        while list.0 > 0 {
            let kind = self.u8(list)?;
            let length = usize::from(self.u16(list)?);
            if kind != NAME_TYPE_HOST {
                self.skip(length, list)?;
                continue;
            }
            if found.is_some() || length == 0 || length > MAX_NAME {
                return Err(Stop::Malformed);
            }
            let mut name = ServerName::new();
            for _ in 0..length {
                let byte = self.u8(list)?;
                if !byte.is_ascii_graphic() {
                    return Err(Stop::Malformed);
                }
                // The name has room for every length that passed above.
                _ = name.try_push(char::from(byte));
            }
            found = Some(name);
        }
        Ok(found)
    }

    fn u16(&mut self, left: &mut Left) -> Result<u16, Stop> {
        Ok(u16::from_be_bytes([self.u8(left)?, self.u8(left)?]))
    }

    fn u8(&mut self, left: &mut Left) -> Result<u8, Stop> {
        left.take(1)?;
        self.enter_record()?;
        let byte = self.raw()?;
        self.in_record -= 1;
        Ok(byte)
    }

    fn skip(&mut self, count: usize, left: &mut Left) -> Result<(), Stop> {
        left.take(count)?;
        let mut count = count;
        while count > 0 {
            self.enter_record()?;
            let here = count.min(self.in_record).min(self.bytes.len() - self.at);
            if here == 0 {
                return Err(Stop::NeedMore);
            }
            self.at += here;
            self.in_record -= here;
            count -= here;
        }
        Ok(())
    }

    /// Reads the header of the next record when the one before is used up.
    ///
    /// RFC 8446 5.1: handshake messages may be spread over records, but nothing else may come between them, and a record
    /// without a byte of them is forbidden. legacy_record_version is ignored but for its first byte, which never changed.
    fn enter_record(&mut self) -> Result<(), Stop> {
        if self.in_record > 0 {
            return Ok(());
        }
        if self.raw()? != RECORD_HANDSHAKE || self.raw()? != 3 {
            return Err(Stop::Malformed);
        }
        self.raw()?;
        let length = usize::from(u16::from_be_bytes([self.raw()?, self.raw()?]));
        if length == 0 || length > MAX_RECORD {
            return Err(Stop::Malformed);
        }
        self.in_record = length;
        Ok(())
    }

    fn raw(&mut self) -> Result<u8, Stop> {
        let byte = *self.bytes.get(self.at).ok_or(Stop::NeedMore)?;
        self.at += 1;
        Ok(byte)
    }
}
