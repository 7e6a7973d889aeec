//! What checks with content say to a server, and what they expect of it.

use std::ops::RangeInclusive;

use rustls::pki_types::CertificateDer;

/// What a check with content says and expects, behind the PROXY header if the server's connections begin with one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckContent {
    /// The handshake before it, if there is one.
    pub tls: Option<CheckTls>,
    /// The request; without one the handshake is what is asked for.
    pub request: Option<CheckRequest>,
}

/// A handshake of TLS 1.2 or 1.3.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckTls {
    /// A DNS name that the hello says and the certificate has to be for; without one the hello says none, and it is the server's
    /// address.
    pub server_name: Option<String>,
    /// Protocols that the hello offers; if there are any the server has to choose one.
    pub alpn: Vec<String>,
    /// Who has to have signed the certificate; without any it may be anybody's.
    pub authorities: Option<Vec<CertificateDer<'static>>>,
}

/// A request to a server, each with what is an answer to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckRequest {
    /// HTTP/1.0 (RFC 1945): the body of the answer has no chunks.
    Http(HttpCheck),
    /// These bytes, and such bytes somewhere in the answer.
    Text {
        /// Nothing if the server speaks first.
        send: Vec<u8>,
        /// Not empty.
        expect: Vec<u8>,
    },
    /// PostgreSQL's start of a session, for this user: whether the server would let somebody in.
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
    /// What the field `Host` says; without one it says the server's address.
    pub host: Option<String>,
    /// Statuses that are right.
    pub statuses: Vec<RangeInclusive<u16>>,
    /// What has to be in the body, if anything.
    pub body: Option<String>,
}
