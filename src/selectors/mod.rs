//! Ready-made ways to choose a server by the first payload.
//!
//! [`RuleSelector`] is what the configuration's rules become. The parsers below it are public, for selectors that want to
//! know the same things and decide otherwise:
//!
//! - [`http`]: target and host of an HTTP/1 request,
//! - [`tls`]: the server name and the application protocols of a TLS ClientHello,
//! - [`ldap`]: the name in an LDAP bind request,
//! - [`postgres`]: user and database of a PostgreSQL client, or its request to encrypt,
//! - [`number`]: the first decimal number.
//!
//! All of them read the bytes from the first on and never look at how many there are before they miss one. So it does not
//! matter how the payload was cut into segments: with more bytes the answer changes from [`Sought::NeedMore`] to a final
//! one, and never again.

pub mod http;
mod known;
pub mod ldap;
mod names;
pub mod number;
pub mod postgres;
mod rules;
mod said;
pub mod tls;

pub use rules::RuleSelector;
pub(crate) use said::payload_hash;

/// What a parser says of the thing it looks for in the bytes so far.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Sought<T> {
    /// Here it is; more bytes change nothing.
    Found(T),
    /// It may still come.
    NeedMore,
    /// It is not there, and will not be: the bytes are of another protocol, malformed, or complete without it.
    Absent,
}

impl<T> Sought<T> {
    /// The same about what `change` makes of it.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Sought<U> {
        match self {
            Self::Found(found) => Sought::Found(change(found)),
            Self::NeedMore => Sought::NeedMore,
            Self::Absent => Sought::Absent,
        }
    }

    /// The same about a reference to it.
    pub fn as_ref(&self) -> Sought<&T> {
        match self {
            Self::Found(found) => Sought::Found(found),
            Self::NeedMore => Sought::NeedMore,
            Self::Absent => Sought::Absent,
        }
    }
}
