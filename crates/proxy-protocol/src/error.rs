//! Why a header cannot be read or written.

use crate::tlv::TlvError;
use core::fmt;

/// Why the bytes are not a header that may be accepted. None of these can be cured by more bytes.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The bytes start like neither version.
    NoHeader,
    /// Version 1: no CR LF within the 107 bytes that a header may have.
    V1TooLong,
    /// Version 1: a CR without LF, or an LF without CR.
    V1LineEnd,
    /// Version 1: the word after `PROXY` is none of `TCP4`, `TCP6` and `UNKNOWN`.
    V1Protocol,
    /// Version 1: not exactly four fields, separated by exactly one space.
    V1Fields,
    /// Version 1: an address that is not one of the announced family in its textual form.
    V1Address,
    /// Version 1: a port that is not a decimal number from 0 to 65535 without leading zeros.
    V1Port,
    /// Version 2: another version number than 2 in byte 13.
    V2Version(u8),
    /// Version 2: a command other than LOCAL and PROXY.
    V2Command(u8),
    /// Version 2: a combination of address family and transport (byte 14) that the specification does not define.
    V2Family(u8),
    /// Version 2: the length is shorter than the addresses of the announced family.
    V2TooShort {
        /// Bytes that the header announced.
        announced: u16,
        /// Bytes that the addresses take.
        required: u16,
    },
    /// Version 2: the header is longer than the receiver's limit.
    V2TooLong {
        /// Length of the whole header.
        length: usize,
        /// The limit of [`ParseOptions`](crate::ParseOptions).
        limit: usize,
    },
    /// Version 2: a type-length-value field breaks its rules.
    Tlv(TlvError),
    /// Version 2: the CRC32C does not fit the header.
    Checksum {
        /// What the header says.
        received: u32,
        /// What its bytes give.
        computed: u32,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Error::NoHeader => write!(f, "no PROXY protocol header"),
            Error::V1TooLong => write!(
                f,
                "no CR LF within the {} bytes of a version 1 header",
                crate::V1_MAX_LEN
            ),
            Error::V1LineEnd => write!(f, "a lone CR or LF in a version 1 header"),
            Error::V1Protocol => write!(f, "version 1 protocol is none of TCP4, TCP6, UNKNOWN"),
            Error::V1Fields => write!(
                f,
                "version 1 header does not have exactly four fields with one space between"
            ),
            Error::V1Address => write!(f, "version 1 header has an address that is not of its family"),
            Error::V1Port => write!(
                f,
                "version 1 header has a port that is not 0 to 65535 without leading zeros"
            ),
            Error::V2Version(version) => write!(f, "binary header of version {version} instead of 2"),
            Error::V2Command(command) => write!(f, "unknown version 2 command {command}"),
            Error::V2Family(family) => write!(f, "undefined version 2 family and transport {family:#04x}"),
            Error::V2TooShort { announced, required } => {
                write!(
                    f,
                    "version 2 header announces {announced} bytes where its addresses take {required}"
                )
            }
            Error::V2TooLong { length, limit } => write!(f, "header of {length} bytes is over the limit of {limit}"),
            Error::Tlv(reason) => write!(f, "{reason}"),
            Error::Checksum { received, computed } => {
                write!(f, "CRC32C of the header is {computed:#010x}, it says {received:#010x}")
            }
        }
    }
}

impl core::error::Error for Error {}

impl From<TlvError> for Error {
    fn from(reason: TlvError) -> Self {
        Error::Tlv(reason)
    }
}

/// Why a header cannot be written.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EncodeError {
    /// The buffer is too small.
    NoRoom {
        /// Bytes that are needed.
        required: usize,
    },
    /// A value is longer than its length field (or the field's rule) allows.
    TooLong {
        /// Length of the value.
        length: usize,
        /// The most that is allowed.
        limit: usize,
    },
    /// Version 1 cannot say this: UNIX addresses, datagrams, TLVs.
    NotInV1,
    /// Source and destination are of different families, which no header can say.
    MixedFamilies,
    /// The TLVs are malformed.
    Tlv(TlvError),
}

impl fmt::Display for EncodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            EncodeError::NoRoom { required } => write!(f, "the buffer is too small, {required} bytes are needed"),
            EncodeError::TooLong { length, limit } => write!(f, "{length} bytes where at most {limit} are allowed"),
            EncodeError::NotInV1 => write!(f, "version 1 cannot carry UNIX addresses, datagrams or TLVs"),
            EncodeError::MixedFamilies => write!(f, "source and destination are of different families"),
            EncodeError::Tlv(reason) => write!(f, "{reason}"),
        }
    }
}

impl core::error::Error for EncodeError {}

impl From<TlvError> for EncodeError {
    fn from(reason: TlvError) -> Self {
        EncodeError::Tlv(reason)
    }
}
