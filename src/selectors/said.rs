//! The keys that pools hash from a client's first payload: a host, a server name, a user.

use arrayvec::ArrayVec;
use splice::choice_table::hash_of_said;
use splice::settings::HashKey;

use super::{Sought, http, postgres, tls};

/// The longest name: that of a host (RFC 1035 2.3.4), with room for brackets.
const LONGEST: usize = 256;

/// The hash of the key, if the payload has it completely. Host names are compared without case.
pub(crate) fn payload_hash(key: HashKey, bytes: &[u8]) -> Option<u64> {
    match key {
        HashKey::Client => None,
        HashKey::Sni => match tls::server_name(bytes) {
            Sought::Found(name) => hash_of_host(name.as_bytes()),
            Sought::NeedMore | Sought::Absent => None,
        },
        HashKey::HttpHost => match http::Request::parse(bytes).map(|request| request.host()) {
            Sought::Found(Sought::Found(host)) => hash_of_host(host),
            _ => None,
        },
        HashKey::PostgresUser => match postgres::startup(bytes) {
            Sought::Found(startup) => Some(hash_of_said(startup.user)),
            Sought::NeedMore | Sought::Absent => None,
        },
    }
}

fn hash_of_host(name: &[u8]) -> Option<u64> {
    let mut lower = ArrayVec::<u8, LONGEST>::new();
    lower.try_extend_from_slice(name).ok()?;
    lower.make_ascii_lowercase();
    Some(hash_of_said(&lower))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_the_same_in_capitals_and_in_every_form_of_a_request() {
        let host = |bytes: &[u8]| payload_hash(HashKey::HttpHost, bytes);
        let known = host(b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n");
        assert!(known.is_some());
        assert_eq!(host(b"GET / HTTP/1.1\r\nhost: A.Example:80\r\n\r\n"), known);
        assert_eq!(host(b"GET http://a.example/x HTTP/1.1\r\nHost: b\r\n\r\n"), known);
        assert_ne!(host(b"GET / HTTP/1.1\r\nHost: b.example\r\n\r\n"), known);
        for other in [&b"GET / HTTP/1.1\r\nHost: a.exa"[..], b"SSH-2.0-x\r\n", b""] {
            assert_eq!(host(other), None);
        }
        let long = [b"GET / HTTP/1.1\r\nHost: ".as_slice(), &[b'a'; 300], b"\r\n\r\n"].concat();
        assert_eq!(host(&long), None);
        assert_eq!(
            payload_hash(HashKey::Client, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"),
            None
        );
    }

    #[test]
    fn a_user_of_postgresql_is_known_when_all_of_the_message_is() {
        let message = b"\0\0\0\x20\0\x03\0\0user\0alice\0database\0d\0\0";
        let message = [&(message.len() as u32).to_be_bytes()[..], &message[4..]].concat();
        let whole = payload_hash(HashKey::PostgresUser, &message);
        assert_eq!(whole, Some(hash_of_said(b"alice")));
        assert_eq!(payload_hash(HashKey::PostgresUser, &message[..message.len() - 1]), None);
    }
}
