//! Checks with content: their requests, and the answers they expect.

use std::ops::RangeInclusive;

use rustls::pki_types::CertificateDer;

/// Request and expected answer of a check with content. A PROXY header precedes it if the pool sends one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckContent {
    /// The TLS handshake, if there is one.
    pub tls: Option<CheckTls>,
    /// The request; `None` if the check is the handshake alone.
    pub request: Option<CheckRequest>,
}

/// A handshake of TLS 1.2 or 1.3.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckTls {
    /// The DNS name in the ClientHello, which the certificate has to be for; without one the certificate has to be for the server's
    /// address.
    pub server_name: Option<String>,
    /// ALPN protocols; if there are any the server has to choose one.
    pub alpn: Vec<String>,
    /// Authorities, one of which has to have signed the certificate; without any every certificate is accepted.
    pub authorities: Option<Vec<CertificateDer<'static>>>,
}

/// A request, and what the answer has to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckRequest {
    /// HTTP/1.0 (RFC 1945): the body of the answer has no chunks.
    Http(HttpCheck),
    /// Bytes to send, and bytes to find in the answer.
    Text {
        /// Empty if the server speaks first.
        send: Vec<u8>,
        /// Not empty.
        expect: Vec<u8>,
    },
    /// A PostgreSQL StartupMessage for this user: whether the server accepts sessions.
    Postgres {
        /// Without a NUL.
        user: String,
    },
    /// An anonymous search for the root DSE (RFC 4512 5.1).
    Ldap,
    /// `PING`.
    Redis,
}

/// A request over HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpCheck {
    /// A token (RFC 9110 5.6.2).
    pub method: String,
    /// Begins with `/`; visible characters.
    pub path: String,
    /// The field `Host`; the server's address without one.
    pub host: Option<String>,
    /// Statuses that pass.
    pub statuses: Vec<RangeInclusive<u16>>,
    /// Bytes that the body has to contain, if any.
    pub body: Option<String>,
}
