//! Type-length-value fields: reading, checking and writing.

use crate::EncodeError;
use core::fmt;

/// The types that have a meaning here.
pub mod kind {
    /// Protocol negotiated with ALPN, as its bytes.
    pub const ALPN: u8 = 0x01;
    /// Host name that the client asked for (SNI), UTF-8.
    pub const AUTHORITY: u8 = 0x02;
    /// CRC32C of the whole header.
    pub const CRC32C: u8 = 0x03;
    /// Padding.
    pub const NOOP: u8 = 0x04;
    /// Identifier of the connection, at most 128 opaque bytes.
    pub const UNIQUE_ID: u8 = 0x05;
    /// What TLS said, with sub-fields.
    pub const SSL: u8 = 0x20;
    /// Sub-field: TLS version, text.
    pub const SSL_VERSION: u8 = 0x21;
    /// Sub-field: common name of the client's certificate, UTF-8.
    pub const SSL_CN: u8 = 0x22;
    /// Sub-field: cipher, text.
    pub const SSL_CIPHER: u8 = 0x23;
    /// Sub-field: signature algorithm of the certificate, text.
    pub const SSL_SIG_ALG: u8 = 0x24;
    /// Sub-field: key algorithm of the certificate, text.
    pub const SSL_KEY_ALG: u8 = 0x25;
    /// Sub-field: key exchange group, text.
    pub const SSL_GROUP: u8 = 0x26;
    /// Sub-field: signature scheme, text.
    pub const SSL_SIG_SCHEME: u8 = 0x27;
    /// Sub-field: the client's certificate, DER.
    pub const SSL_CLIENT_CERT: u8 = 0x28;
    /// Name of the network namespace.
    pub const NETNS: u8 = 0x30;
    /// Google Cloud: Private Service Connect connection id.
    pub const GCP: u8 = 0xe0;
    /// Alibaba Cloud: NLB and PrivateLink, sub-typed.
    pub const ALIBABA: u8 = 0xe1;
    /// Amazon Web Services: NLB, sub-typed.
    pub const AWS: u8 = 0xea;
    /// Microsoft Azure: Private Link, sub-typed.
    pub const AZURE: u8 = 0xee;
}

/// Sub-type of [`kind::AWS`]: id of the VPC endpoint, text.
const AWS_VPC_ENDPOINT: u8 = 0x01;
/// Sub-type of [`kind::AZURE`]: link id of the private endpoint, little-endian.
const AZURE_PRIVATE_ENDPOINT: u8 = 0x01;

/// Specification 2.2.5: a unique id has at most 128 bytes.
const UNIQUE_ID_MAX: usize = 128;

/// One field, decoded.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Tlv<'a> {
    /// Protocol negotiated with ALPN.
    Alpn(&'a [u8]),
    /// Host name that the client asked for; UTF-8 by the specification, not checked.
    Authority(&'a [u8]),
    /// CRC32C of the header.
    Checksum(u32),
    /// Padding, to be ignored.
    Noop(&'a [u8]),
    /// Identifier of the connection, at most 128 bytes.
    UniqueId(&'a [u8]),
    /// What TLS said.
    Ssl(Ssl<'a>),
    /// Name of the network namespace.
    Netns(&'a [u8]),
    /// Amazon Web Services: id of the VPC endpoint, such as `vpce-08d2bf15fac5001c9`.
    AwsVpcEndpoint(&'a [u8]),
    /// Microsoft Azure: link id of the private endpoint.
    AzureLinkId(u32),
    /// Google Cloud: Private Service Connect connection id.
    GcpConnectionId(u64),
    /// Alibaba Cloud: a sub-type and its value.
    Alibaba {
        /// Which of the endpoint, VPC and service ids.
        subtype: u8,
        /// The id.
        value: &'a [u8],
    },
    /// Any other type, or a vendor's in a form that is not known.
    Other {
        /// The type.
        kind: u8,
        /// The value.
        value: &'a [u8],
    },
}

impl<'a> Tlv<'a> {
    /// The field's type on the wire.
    pub const fn kind(&self) -> u8 {
        match self {
            Tlv::Alpn(_) => kind::ALPN,
            Tlv::Authority(_) => kind::AUTHORITY,
            Tlv::Checksum(_) => kind::CRC32C,
            Tlv::Noop(_) => kind::NOOP,
            Tlv::UniqueId(_) => kind::UNIQUE_ID,
            Tlv::Ssl(_) => kind::SSL,
            Tlv::Netns(_) => kind::NETNS,
            Tlv::AwsVpcEndpoint(_) => kind::AWS,
            Tlv::AzureLinkId(_) => kind::AZURE,
            Tlv::GcpConnectionId(_) => kind::GCP,
            Tlv::Alibaba { .. } => kind::ALIBABA,
            Tlv::Other { kind, .. } => *kind,
        }
    }

    fn decode(kind: u8, value: &'a [u8]) -> Self {
        let known = match kind {
            kind::ALPN => Some(Tlv::Alpn(value)),
            kind::AUTHORITY => Some(Tlv::Authority(value)),
            kind::CRC32C => value
                .try_into()
                .ok()
                .map(|field| Tlv::Checksum(u32::from_be_bytes(field))),
            kind::NOOP => Some(Tlv::Noop(value)),
            kind::UNIQUE_ID => Some(Tlv::UniqueId(value)),
            kind::SSL => Ssl::decode(value).map(Tlv::Ssl),
            kind::NETNS => Some(Tlv::Netns(value)),
            kind::AWS => value.strip_prefix(&[AWS_VPC_ENDPOINT]).map(Tlv::AwsVpcEndpoint),
            kind::AZURE => value
                .strip_prefix(&[AZURE_PRIVATE_ENDPOINT])
                .and_then(|id| id.try_into().ok())
                .map(|id| Tlv::AzureLinkId(u32::from_le_bytes(id))),
            kind::GCP => value
                .try_into()
                .ok()
                .map(|id| Tlv::GcpConnectionId(u64::from_be_bytes(id))),
            kind::ALIBABA => value
                .split_first()
                .map(|(&subtype, value)| Tlv::Alibaba { subtype, value }),
            _ => None,
        };
        known.unwrap_or(Tlv::Other { kind, value })
    }
}

/// What a TLV of type SSL says of the client's TLS connection to the proxy.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ssl<'a> {
    /// How the client connected.
    pub client: SslClient,
    /// 0 if the client presented a certificate and it was verified.
    pub verify: u32,
    /// The sub-fields.
    pub fields: Tlvs<'a>,
}

impl<'a> Ssl<'a> {
    fn decode(value: &'a [u8]) -> Option<Self> {
        let (&client, rest) = value.split_first()?;
        let (verify, fields) = rest.split_first_chunk()?;
        Some(Ssl {
            client: SslClient(client),
            verify: u32::from_be_bytes(*verify),
            fields: Tlvs {
                bytes: well_formed(fields).ok()?,
            },
        })
    }

    /// The value of the first sub-field of this type, [`kind::SSL_CN`] for example.
    pub fn field(&self, kind: u8) -> Option<&'a [u8]> {
        self.fields
            .raw()
            .find(|&(this, _)| this == kind)
            .map(|(_, value)| value)
    }
}

/// The bits of the SSL field's first byte.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct SslClient(pub u8);

impl SslClient {
    /// The client connected over TLS.
    pub const SSL: u8 = 0x01;
    /// It presented a certificate on this connection.
    pub const CERT_CONN: u8 = 0x02;
    /// It presented a certificate at least once in this TLS session.
    pub const CERT_SESS: u8 = 0x04;

    /// Whether the client connected over TLS.
    pub const fn is_tls(self) -> bool {
        self.0 & Self::SSL != 0
    }

    /// Whether the client presented a certificate, on this connection or earlier in the session.
    pub const fn has_certificate(self) -> bool {
        self.0 & (Self::CERT_CONN | Self::CERT_SESS) != 0
    }
}

/// How a field breaks its rules.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TlvError {
    /// The field, or a sub-field in it, ends after the header's end.
    Overrun {
        /// Type of the field that does not fit; `None` if not even its type and length do.
        kind: Option<u8>,
    },
    /// The value has a length that its type forbids.
    Length {
        /// The type.
        kind: u8,
        /// The length.
        length: usize,
    },
    /// A second CRC32C.
    RepeatedChecksum,
}

impl fmt::Display for TlvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            TlvError::Overrun { kind: Some(kind) } => write!(f, "field of type {kind:#04x} runs over the end"),
            TlvError::Overrun { kind: None } => write!(f, "fewer than the three bytes of a field are left"),
            TlvError::Length { kind, length } => write!(f, "field of type {kind:#04x} with a length of {length}"),
            TlvError::RepeatedChecksum => write!(f, "more than one CRC32C"),
        }
    }
}

impl core::error::Error for TlvError {}

/// The fields of a header, well-formed by construction.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Tlvs<'a> {
    bytes: &'a [u8],
}

/// Fields that were checked, and where the value of their CRC32C stands.
pub(crate) struct Checked<'a> {
    pub(crate) tlvs: Tlvs<'a>,
    pub(crate) checksum_at: Option<usize>,
}

impl<'a> Tlvs<'a> {
    /// No fields.
    pub const EMPTY: Tlvs<'static> = Tlvs { bytes: &[] };

    /// Fields in wire form.
    ///
    /// # Errors
    /// If a field or sub-field overruns the end, has a length that its type forbids, or the CRC32C stands twice.
    pub fn new(bytes: &'a [u8]) -> Result<Self, TlvError> {
        Self::check(bytes).map(|checked| checked.tlvs)
    }

    pub(crate) fn check(bytes: &'a [u8]) -> Result<Checked<'a>, TlvError> {
        let mut checksum_at = None;
        let mut rest = bytes;
        while !rest.is_empty() {
            let (kind, value, after) = split(rest)?;
            let bad_length = TlvError::Length {
                kind,
                length: value.len(),
            };
            match kind {
                kind::CRC32C if value.len() != 4 => return Err(bad_length),
                kind::CRC32C if checksum_at.is_some() => return Err(TlvError::RepeatedChecksum),
                kind::CRC32C => checksum_at = Some(bytes.len() - after.len() - value.len()),
                kind::UNIQUE_ID if value.len() > UNIQUE_ID_MAX => return Err(bad_length),
                kind::SSL => {
                    well_formed(value.get(5..).ok_or(bad_length)?)?;
                }
                _ => {}
            }
            rest = after;
        }
        Ok(Checked {
            tlvs: Tlvs { bytes },
            checksum_at,
        })
    }

    /// The fields in wire form.
    pub const fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The fields, decoded, in their order.
    pub fn iter(&self) -> impl Iterator<Item = Tlv<'a>> + Clone + use<'a> {
        self.raw().map(|(kind, value)| Tlv::decode(kind, value))
    }

    /// The fields as type and value, in their order.
    pub fn raw(&self) -> impl Iterator<Item = (u8, &'a [u8])> + Clone + use<'a> {
        Raw { rest: self.bytes }
    }

    /// The value of the first field of this type.
    pub fn find(&self, kind: u8) -> Option<&'a [u8]> {
        self.raw().find(|&(this, _)| this == kind).map(|(_, value)| value)
    }
}

#[derive(Clone)]
struct Raw<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Raw<'a> {
    type Item = (u8, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (kind, value, rest) = split(self.rest).ok()?;
        self.rest = rest;
        Some((kind, value))
    }
}

/// The first field's type and value, and what follows it.
fn split(bytes: &[u8]) -> Result<(u8, &[u8], &[u8]), TlvError> {
    let &[kind, high, low, ref rest @ ..] = bytes else {
        return Err(TlvError::Overrun { kind: None });
    };
    let length = usize::from(u16::from_be_bytes([high, low]));
    let (value, after) = rest
        .split_at_checked(length)
        .ok_or(TlvError::Overrun { kind: Some(kind) })?;
    Ok((kind, value, after))
}

/// `bytes` if they are a sequence of whole fields, of whatever type.
fn well_formed(bytes: &[u8]) -> Result<&[u8], TlvError> {
    let mut rest = bytes;
    while !rest.is_empty() {
        rest = split(rest)?.2;
    }
    Ok(bytes)
}

/// Writes fields into a buffer of the caller's, one after the other.
#[derive(Debug)]
pub struct TlvWriter<'b> {
    out: &'b mut [u8],
    length: usize,
    checksum_at: Option<usize>,
}

impl<'b> TlvWriter<'b> {
    /// Starts at the front of `out`.
    pub fn new(out: &'b mut [u8]) -> Self {
        TlvWriter {
            out,
            length: 0,
            checksum_at: None,
        }
    }

    /// What was written so far.
    pub fn tlvs(&self) -> Tlvs<'_> {
        Tlvs {
            bytes: self.out.get(..self.length).unwrap_or_default(),
        }
    }

    /// Where the value of the CRC32C stands, if there is one.
    pub(crate) fn checksum_at(&self) -> Option<usize> {
        self.checksum_at
    }

    /// Appends a field.
    ///
    /// # Errors
    /// If it does not fit into the buffer or breaks its rules; nothing is written then.
    pub fn push(&mut self, tlv: &Tlv<'_>) -> Result<&mut Self, EncodeError> {
        match *tlv {
            Tlv::Alpn(value) | Tlv::Authority(value) | Tlv::Noop(value) | Tlv::Netns(value) => {
                self.parts(tlv.kind(), &[value])
            }
            Tlv::UniqueId(value) if value.len() > UNIQUE_ID_MAX => Err(EncodeError::TooLong {
                length: value.len(),
                limit: UNIQUE_ID_MAX,
            }),
            Tlv::UniqueId(value) => self.parts(tlv.kind(), &[value]),
            Tlv::Checksum(_) => self.push_checksum(),
            Tlv::Ssl(ssl) => self.parts(
                tlv.kind(),
                &[&[ssl.client.0], &ssl.verify.to_be_bytes(), ssl.fields.as_bytes()],
            ),
            Tlv::AwsVpcEndpoint(id) => self.parts(tlv.kind(), &[&[AWS_VPC_ENDPOINT], id]),
            Tlv::AzureLinkId(id) => self.parts(tlv.kind(), &[&[AZURE_PRIVATE_ENDPOINT], &id.to_le_bytes()]),
            Tlv::GcpConnectionId(id) => self.parts(tlv.kind(), &[&id.to_be_bytes()]),
            Tlv::Alibaba { subtype, value } => self.parts(tlv.kind(), &[&[subtype], value]),
            Tlv::Other { kind, value } => {
                // A known type does not get round its rules in this way.
                if matches!(kind, kind::CRC32C | kind::SSL) || (kind == kind::UNIQUE_ID && value.len() > UNIQUE_ID_MAX)
                {
                    return Err(TlvError::Length {
                        kind,
                        length: value.len(),
                    }
                    .into());
                }
                self.parts(kind, &[value])
            }
        }
    }

    /// Appends a CRC32C, whose value [`Header::encode`](crate::Header::encode) fills in.
    ///
    /// # Errors
    /// If there is one already, or no room.
    pub fn push_checksum(&mut self) -> Result<&mut Self, EncodeError> {
        if self.checksum_at.is_some() {
            return Err(TlvError::RepeatedChecksum.into());
        }
        self.parts(kind::CRC32C, &[&[0; 4]])?;
        self.checksum_at = Some(self.length - 4);
        Ok(self)
    }

    /// Appends a NOOP field so that all fields together have `length` bytes. Nothing happens if they have it already.
    ///
    /// # Errors
    /// If they are longer already, or if only one or two bytes are missing, as a field has at least three.
    pub fn pad_to(&mut self, length: usize) -> Result<&mut Self, EncodeError> {
        let missing = length.checked_sub(self.length).ok_or(EncodeError::TooLong {
            length: self.length,
            limit: length,
        })?;
        if missing == 0 {
            return Ok(self);
        }
        let value = missing.checked_sub(3).ok_or(TlvError::Length {
            kind: kind::NOOP,
            length: missing,
        })?;
        let at = self.length + 3;
        self.head(kind::NOOP, value)?;
        self.out[at..at + value].fill(0);
        self.length = at + value;
        Ok(self)
    }

    fn parts(&mut self, kind: u8, parts: &[&[u8]]) -> Result<&mut Self, EncodeError> {
        let length = parts.iter().map(|part| part.len()).sum();
        self.head(kind, length)?;
        let mut at = self.length + 3;
        for part in parts {
            self.out[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        self.length = at;
        Ok(self)
    }

    /// Writes type and length, having made sure that the value fits after them.
    fn head(&mut self, kind: u8, value: usize) -> Result<(), EncodeError> {
        let limit = usize::from(u16::MAX);
        let length = u16::try_from(value).map_err(|_| EncodeError::TooLong { length: value, limit })?;
        let required = self.length + 3 + value;
        if required > self.out.len() {
            return Err(EncodeError::NoRoom { required });
        }
        let [high, low] = length.to_be_bytes();
        self.out[self.length..self.length + 3].copy_from_slice(&[kind, high, low]);
        Ok(())
    }
}
