//! The conversation of one check: PROXY header, TLS if configured, request, answer.

use std::io::{Read, Write};
use std::net::SocketAddr;

use netfcts::FourTuple;
use netfcts::leg::unmapped;
use proxy_protocol::{Addresses, Header};
use rustls::ClientConnection;
use splice::settings::SendProxy;

use super::end_point::MOST_HEARD;
use super::request::{self, Verdict};
use super::tls;
use crate::config::{CheckContent, CheckRequest};

/// Room for a PROXY header without fields; the longest is that of version 1.
const HEADER: usize = proxy_protocol::V1_MAX_LEN;

/// Bytes that a server may send in TLS: the longest chain of certificates that rustls accepts, and an answer.
const MOST_ENCRYPTED: usize = 96 << 10;

/// The conversation of one check.
pub(super) struct Talk {
    request: Option<CheckRequest>,
    tls: Option<Tls>,
    say: Vec<u8>,
    said: usize,
    heard: Vec<u8>,
    /// Whether bytes have arrived since the last verdict.
    is_news: bool,
}

struct Tls {
    connection: Box<ClientConnection>,
    /// Whether the server has to choose one of the offered protocols.
    needs_alpn: bool,
    is_broken: bool,
    /// Bytes received in TLS.
    heard: usize,
}

impl Talk {
    /// The conversation for this connection; `header` is the PROXY header of the server's pool. `None` if rustls refuses the name or
    /// the certificates, which a checked configuration excludes.
    pub(super) fn new(content: &CheckContent, announce: SendProxy, key: &FourTuple) -> Option<Self> {
        let request = content.request.as_ref();
        let request_bytes = request.map_or_else(Vec::new, |request| request::bytes(request, server(key)));
        let mut talk = Talk {
            request: content.request.clone(),
            tls: None,
            say: header(announce, key),
            said: 0,
            heard: Vec::new(),
            is_news: true,
        };
        match &content.tls {
            None => talk.say.extend_from_slice(&request_bytes),
            Some(asked) => {
                let mut connection = Box::new(tls::connection(asked, server(key).ip())?);
                // rustls keeps it until the handshake is complete.
                connection.writer().write_all(&request_bytes).ok()?;
                let mut tls = Tls {
                    connection,
                    needs_alpn: !asked.alpn.is_empty(),
                    is_broken: false,
                    heard: 0,
                };
                tls.take_written(&mut talk.say);
                talk.tls = Some(tls);
            }
        }
        Some(talk)
    }

    /// Bytes to send.
    pub(super) fn to_say(&self) -> &[u8] {
        &self.say[self.said..]
    }

    /// Removes what was sent.
    pub(super) fn note_said(&mut self, bytes: usize) {
        self.said += bytes;
    }

    /// Takes bytes that the server has sent.
    pub(super) fn hear(&mut self, bytes: &[u8]) {
        self.is_news = true;
        match &mut self.tls {
            None => note_heard(&mut self.heard, bytes),
            Some(tls) => {
                tls.hear(bytes, &mut self.heard);
                tls.take_written(&mut self.say);
            }
        }
    }

    /// The verdict so far; `is_all` once the server has closed.
    pub(super) fn judge(&mut self, is_all: bool) -> Verdict {
        let too_much = self.tls.as_ref().is_some_and(|tls| tls.heard >= MOST_ENCRYPTED);
        let is_all = is_all || too_much || self.heard.len() >= MOST_HEARD;
        if !self.is_news && !is_all {
            return Verdict::More;
        }
        self.is_news = false;
        if let Some(tls) = &self.tls {
            match tls.judge() {
                Verdict::Passed => {}
                Verdict::More if is_all => return Verdict::Wrong,
                verdict => return verdict,
            }
        }
        match &self.request {
            Some(request) => request::judge(request, &self.heard, is_all),
            None => Verdict::Passed,
        }
    }
}

impl Tls {
    fn hear(&mut self, mut bytes: &[u8], heard: &mut Vec<u8>) {
        self.heard += bytes.len();
        let mut plain = [0; 4096];
        while !bytes.is_empty() && !self.is_broken {
            let read = self.connection.read_tls(&mut bytes);
            self.is_broken = !matches!(read, Ok(1..)) || self.connection.process_new_packets().is_err();
            // Reads all of it, to make room.
            while let Ok(length @ 1..) = self.connection.reader().read(&mut plain) {
                note_heard(heard, &plain[..length]);
            }
        }
    }

    /// The verdict about the handshake: complete, and with one of the offered protocols if there are any.
    fn judge(&self) -> Verdict {
        let lacks_alpn = self.needs_alpn && self.connection.alpn_protocol().is_none();
        match (self.is_broken, self.connection.is_handshaking()) {
            (true, _) => Verdict::Wrong,
            (false, true) => Verdict::More,
            (false, false) if lacks_alpn => Verdict::Wrong,
            (false, false) => Verdict::Passed,
        }
    }

    fn take_written(&mut self, say: &mut Vec<u8>) {
        while self.connection.wants_write() && matches!(self.connection.write_tls(say), Ok(1..)) {}
    }
}

fn note_heard(heard: &mut Vec<u8>, bytes: &[u8]) {
    let room = MOST_HEARD.saturating_sub(heard.len());
    heard.extend_from_slice(&bytes[..bytes.len().min(room)]);
}

/// The header of a connection without a client: LOCAL in version 2, our own address in version 1.
fn header(announce: SendProxy, key: &FourTuple) -> Vec<u8> {
    let ours = SocketAddr::new(unmapped(key.local), key.local_port);
    let mut bytes = [0; HEADER];
    let written = match announce {
        SendProxy::Off => Ok(0),
        SendProxy::V1 => Header::v1(Addresses::from_pair(ours, server(key))).encode(&mut bytes),
        SendProxy::V2(_) => Header::local().encode(&mut bytes),
    };
    // Both fit.
    bytes[..written.unwrap_or(0)].to_vec()
}

fn server(key: &FourTuple) -> SocketAddr {
    SocketAddr::new(unmapped(key.remote), key.remote_port)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::config::{CheckTls, HttpCheck};
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    use rustls::{ServerConfig, ServerConnection};
    use test_case::test_case;

    /// Made by openssl for this: an authority, and a certificate of its for `db.example.org` and 10.1.0.100, until 2126.
    const AUTHORITY: &[u8] = include_bytes!("certificates/ca.pem");
    const CERTIFICATE: &[u8] = include_bytes!("certificates/server.pem");
    const KEY: &[u8] = include_bytes!("certificates/server.key");

    const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\n\r\n";

    fn certificates(pem: &[u8]) -> Vec<CertificateDer<'static>> {
        let all = CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>();
        all.expect("certificates")
    }

    fn talk(tls: CheckTls, is_http: bool) -> Talk {
        let http = HttpCheck {
            method: "GET".into(),
            path: "/".into(),
            host: None,
            statuses: vec![200..=399],
            body: None,
        };
        let content = CheckContent {
            tls: Some(tls),
            request: is_http.then_some(CheckRequest::Http(http)),
        };
        let mapped = |octets: [u8; 4]| u128::from(std::net::Ipv4Addr::from(octets).to_ipv6_mapped());
        let key = FourTuple {
            local: mapped([10, 1, 0, 9]),
            remote: mapped([10, 1, 0, 100]),
            local_port: 5000,
            remote_port: 443,
        };
        Talk::new(&content, SendProxy::Off, &key).expect("a check that can be made")
    }

    fn tls(server_name: Option<&str>, alpn: &[&str], has_authority: bool) -> CheckTls {
        CheckTls {
            server_name: server_name.map(Into::into),
            alpn: alpn.iter().map(|name| (*name).to_owned()).collect(),
            authorities: has_authority.then(|| certificates(AUTHORITY)),
        }
    }

    /// What comes of a talk with a server that speaks these protocols and answers a request so; its bytes come one by one.
    fn outcome(mut talk: Talk, alpn: &[&str], answer: &[u8]) -> Verdict {
        let key = PrivateKeyDer::from_pem_slice(KEY).expect("a key");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = config.expect("versions").with_no_client_auth();
        let mut config = config.with_single_cert(certificates(CERTIFICATE), key).expect("a pair");
        config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        let mut server = ServerConnection::new(Arc::new(config)).expect("a server");
        for _ in 0..16 {
            let said = talk.to_say().to_vec();
            talk.note_said(said.len());
            let mut rest = &said[..];
            while !rest.is_empty() {
                server.read_tls(&mut rest).expect("room");
                // An alert of the client's is in what comes of the talk, too.
                let _ = server.process_new_packets();
            }
            if server.reader().read(&mut [0; 4096]).is_ok_and(|read| read > 0) {
                server.writer().write_all(answer).expect("room");
            }
            let mut bytes = Vec::new();
            while server.wants_write() {
                server.write_tls(&mut bytes).expect("room");
            }
            for byte in bytes {
                talk.hear(&[byte]);
                match talk.judge(false) {
                    Verdict::More => {}
                    verdict => return verdict,
                }
            }
        }
        talk.judge(true)
    }

    #[test_case(tls(Some("db.example.org"), &[], true), Verdict::Passed; "the name of the certificate")]
    #[test_case(tls(None, &[], true), Verdict::Passed; "the address of the certificate")]
    #[test_case(tls(Some("www.example.org"), &[], true), Verdict::Wrong; "another name")]
    #[test_case(tls(Some("www.example.org"), &[], false), Verdict::Passed; "another name that nobody asks about")]
    #[test_case(CheckTls { authorities: Some(certificates(CERTIFICATE)), ..tls(Some("db.example.org"), &[], false) }, Verdict::Wrong; "another authority")]
    #[test_case(tls(None, &["h2", "http/1.1"], false), Verdict::Passed; "a protocol that the server has")]
    #[test_case(tls(None, &["imap"], false), Verdict::Wrong; "a protocol that it has not")]
    fn a_handshake_is_as_the_check_wants_it(tls: CheckTls, expected: Verdict) {
        assert_eq!(outcome(talk(tls, false), &["http/1.1"], b""), expected);
    }

    #[test]
    fn a_server_that_knows_no_protocols_does_not_choose_one() {
        assert_eq!(
            outcome(talk(tls(None, &["h2"], false), false), &[], b""),
            Verdict::Wrong
        );
    }

    #[test_case(ANSWER, Verdict::Passed; "right")]
    #[test_case(b"HTTP/1.1 503 Sorry\r\n\r\n", Verdict::Wrong; "wrong")]
    #[test_case(b"HTTP/1.1 20", Verdict::Wrong; "an end too early")]
    fn a_request_within_tls_is_judged_as_without(answer: &[u8], expected: Verdict) {
        let talk = talk(tls(Some("db.example.org"), &[], true), true);
        assert_eq!(outcome(talk, &[], answer), expected);
    }

    #[test]
    fn a_thread_that_only_computes_speaks_tls_and_http() {
        let restricted = std::thread::spawn(|| {
            crate::privileges::enter_checking_thread();
            assert!(std::fs::read("/proc/self/stat").is_err(), "it opens files");
            let talk = talk(tls(Some("db.example.org"), &[], true), true);
            outcome(talk, &["http/1.1"], ANSWER)
        });
        assert_eq!(restricted.join().expect("it ends"), Verdict::Passed);
    }

    #[test_case(b"HTTP/1.1 400 Bad Request\r\n\r\n"; "no tls")]
    #[test_case(b"\x15\x03\x03\0\x02\x02\x28"; "an alert")]
    #[test_case(b"\x16\x03\x03\xff\xff\x00"; "a record that is too long")]
    fn what_is_no_handshake_is_wrong_at_once(bytes: &[u8]) {
        let mut talk = talk(tls(None, &[], false), true);
        talk.hear(bytes);
        assert_eq!(talk.judge(false), Verdict::Wrong);
    }

    #[test]
    fn a_handshake_without_end_is_given_up() {
        let mut talk = talk(tls(None, &[], false), true);
        // Records of one byte that begin a message of 16 MiB.
        let record = b"\x16\x03\x03\0\x01\x0b";
        let given_up = (0..MOST_ENCRYPTED).find(|_| {
            talk.hear(record);
            talk.judge(false) == Verdict::Wrong
        });
        assert!(given_up.is_some_and(|records| records * record.len() <= MOST_ENCRYPTED));
    }
}
