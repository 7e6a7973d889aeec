//! A strict, incremental, allocation-free codec for the PROXY protocol, versions 1 and 2, and for Cloudflare's
//! Simple Proxy Protocol.
//!
//! A proxy that terminates a connection hides the client's address from the server. The PROXY protocol carries it
//! along: a short header in front of the first byte of a TCP connection, or in front of every UDP datagram. This
//! crate turns such a header into a [`Header`] and back. It does no I/O, allocates nothing, has no dependencies and no
//! `unsafe` code, and never panics on what a peer sends.
//!
//! ```
//! use proxy_protocol::{Addresses, Parsed, parse};
//!
//! let received = b"PROXY TCP4 203.0.113.7 198.51.100.9 40001 443\r\nGET / HTTP/1.1\r\n";
//! match parse(received) {
//!     Ok(Parsed::Complete { header, length }) => {
//!         let Addresses::Inet { source, .. } = header.addresses else { panic!() };
//!         assert_eq!(source.to_string(), "203.0.113.7:40001");
//!         assert_eq!(&received[length..], b"GET / HTTP/1.1\r\n");
//!     }
//!     Ok(Parsed::Incomplete { needed }) => println!("read at least {needed} bytes more"),
//!     Err(reason) => println!("close the connection: {reason}"),
//! }
//! ```
//!
//! A receiver that may not read a byte of the payload reads as many bytes as are said to be missing: they all belong to
//! the header.
//!
//! ```
//! use proxy_protocol::{Header, ParseOptions, Parsed};
//! use std::io::{self, Read};
//!
//! /// Reads one header, and gives it to `with`; the next byte of `stream` is payload.
//! fn read_header<T>(stream: &mut impl Read, with: impl FnOnce(&Header<'_>) -> T) -> io::Result<T> {
//!     let options = ParseOptions { max_len: 4096, ..ParseOptions::default() };
//!     let (mut bytes, mut length) = ([0; 4096], 0);
//!     loop {
//!         let missing = match options.parse(&bytes[..length]) {
//!             Ok(Parsed::Complete { header, .. }) => return Ok(with(&header)),
//!             Ok(Parsed::Incomplete { needed }) => needed,
//!             Err(reason) => return Err(io::Error::other(reason)),
//!         };
//!         // Never more than `max_len` in all.
//!         stream.read_exact(&mut bytes[length..length + missing])?;
//!         length += missing;
//!     }
//! }
//!
//! let mut stream = &b"PROXY TCP6 2001:db8::7 2001:db8::9 40001 443\r\nGET / HTTP/1.1\r\n"[..];
//! let client = read_header(&mut stream, |header| header.source())?;
//! assert_eq!(client, Some("[2001:db8::7]:40001".parse().unwrap()));
//! assert_eq!(stream, b"GET / HTTP/1.1\r\n");
//! # Ok::<(), io::Error>(())
//! ```
//!
//! Writing is the reverse: fill a [`Header`], and [`Header::encode`] it into a buffer of yours. Type-length-value
//! fields (TLVs) are written with a [`TlvWriter`] and read with the iterator [`Tlvs`]:
//!
//! ```
//! use proxy_protocol::{Addresses, Header, Parsed, Tlv, TlvWriter, Transport, parse};
//!
//! let mut room = [0; 64];
//! let mut tlvs = TlvWriter::new(&mut room);
//! tlvs.push(&Tlv::Authority(b"example.org"))?.push_checksum()?;
//! let header = Header::proxy(
//!     Transport::Stream,
//!     Addresses::from_pair("[2001:db8::1]:5000".parse().unwrap(), "[2001:db8::2]:443".parse().unwrap()),
//! )
//! .with_tlvs(tlvs.tlvs());
//! let mut out = [0; 256];
//! let length = header.encode(&mut out)?;
//!
//! let Ok(Parsed::Complete { header, .. }) = parse(&out[..length]) else { panic!() };
//! assert!(header.tlvs.iter().any(|tlv| tlv == Tlv::Authority(b"example.org")));
//! # Ok::<(), proxy_protocol::EncodeError>(())
//! ```
//!
//! # What a receiver must keep in mind
//!
//! - Parse only what comes from a sender you trust and only where you configured it: a header is a claim.
//! - Keep the bytes until the header is complete, with a deadline of at least 3 s (one lost segment) and a limit on
//!   its length; [`ParseOptions`] has the limit.
//! - Strip exactly one header. A second one is payload.
//! - A UDP datagram carries its whole header: [`Parsed::Incomplete`] is an error there, and so is version 1.
//! - [`Command::Local`] and [`Addresses::Unspecified`] mean: use the addresses of the connection itself.
//!
//! Source: HAProxy's `proxy-protocol.txt` of 2026/04/27 ("the specification" below); Cloudflare Spectrum's
//! documentation for the [`spp`] module.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

mod checksum;
mod error;
mod header;
pub mod spp;
mod tlv;
mod v1;
mod v2;

pub use checksum::crc32c;
pub use error::{EncodeError, Error};
pub use header::{Addresses, Command, Header, ParseOptions, Parsed, Transport, UNIX_LEN, Version, parse};
pub use tlv::{Ssl, SslClient, Tlv, TlvError, TlvWriter, Tlvs, kind};
pub use v1::MAX_LEN as V1_MAX_LEN;
pub use v2::{FIXED_LEN as V2_FIXED_LEN, MAX_LEN as V2_MAX_LEN, SIGNATURE as V2_SIGNATURE};
