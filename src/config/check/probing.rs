//! `check` of a `[[pool]]` and of its servers.

use std::fs;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::{choice, duration, number, quoted};
use crate::config::defaults;
use crate::config::raw::RawCheck;
use crate::config::source::{At, Source};
use crate::config::{CheckContent, CheckRequest, CheckTls, HttpCheck};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use splice::checks::{Check, CheckKind};

/// What `kind` can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Off,
    Tcp,
    Http,
    Https,
    Tls,
    Send,
    Postgres,
    Ldap,
    Redis,
}

const KINDS: [(&str, Kind); 9] = [
    ("tcp", Kind::Tcp),
    ("http", Kind::Http),
    ("https", Kind::Https),
    ("tls", Kind::Tls),
    ("send", Kind::Send),
    ("postgres", Kind::Postgres),
    ("ldap", Kind::Ldap),
    ("redis", Kind::Redis),
    ("off", Kind::Off),
];

/// `check = { kind = "tcp", … }`. What it does not say is as by default, so a server's own says all anew.
pub(super) fn check(source: &mut Source<'_>, at: &At, raw: Option<&RawCheck>) -> Option<(Check, Option<CheckContent>)> {
    let raw = raw?;
    let kind = choice(source, &at.key("kind"), Some(&raw.kind), &KINDS);
    let interval = duration(
        source,
        &at.key("interval"),
        raw.interval.as_deref(),
        defaults::CHECK_INTERVAL,
        &defaults::CHECK_INTERVAL_RANGE,
    );
    let fast_interval = duration(
        source,
        &at.key("fast_interval"),
        raw.fast_interval.as_deref(),
        defaults::CHECK_FAST_INTERVAL.min(interval),
        &(*defaults::CHECK_INTERVAL_RANGE.start()..=interval),
    );
    let timeout = raw.timeout.as_deref().map(|timeout| {
        let at = at.key("timeout");
        duration(
            source,
            &at,
            Some(timeout),
            Duration::ZERO,
            &defaults::CHECK_TIMEOUT_RANGE,
        )
    });
    let content = content(source, at, raw, kind);
    let port = raw
        .port
        .map(|port| number(source, &at.key("port"), Some(port), 1, &defaults::CHECK_PORT_RANGE) as u16);
    let mut times =
        |key: &str, value, default| number(source, &at.key(key), value, default, &defaults::CHECK_TIMES_RANGE) as u8;
    let check = Check {
        kind: if content.is_some() {
            CheckKind::Content
        } else {
            CheckKind::Syn
        },
        port,
        interval,
        fast_interval,
        timeout,
        rise: times("rise", raw.rise, defaults::CHECK_RISE),
        fall: times("fall", raw.fall, defaults::CHECK_FALL),
    };
    (kind != Kind::Off).then_some((check, content))
}

/// What the check says, if it says something.
fn content(source: &mut Source<'_>, at: &At, raw: &RawCheck, kind: Kind) -> Option<CheckContent> {
    const HTTP: &[Kind] = &[Kind::Http, Kind::Https];
    const TLS: &[Kind] = &[Kind::Https, Kind::Tls];
    let of_kinds = [
        ("method", raw.method.is_some(), HTTP),
        ("path", raw.path.is_some(), HTTP),
        ("host", raw.host.is_some(), HTTP),
        ("statuses", raw.statuses.is_some(), HTTP),
        ("body", raw.body.is_some(), HTTP),
        ("send", raw.send.is_some(), &[Kind::Send]),
        ("expect", raw.expect.is_some(), &[Kind::Send]),
        ("user", raw.user.is_some(), &[Kind::Postgres]),
        ("server_name", raw.server_name.is_some(), TLS),
        ("alpn", raw.alpn.is_some(), TLS),
        ("ca", raw.ca.is_some(), TLS),
    ];
    for (key, _, kinds) in of_kinds.iter().filter(|(_, is_there, _)| *is_there) {
        if !kinds.contains(&kind) {
            source.complain(&at.key(key), format!("is no key of a check of kind \"{}\"", raw.kind));
        }
    }
    let request = match kind {
        Kind::Off | Kind::Tcp => return None,
        Kind::Tls => None,
        Kind::Http | Kind::Https => Some(CheckRequest::Http(http(source, at, raw))),
        Kind::Send => Some(text(source, at, raw)),
        Kind::Postgres => Some(CheckRequest::Postgres {
            user: line(source, &at.key("user"), raw.user.as_deref(), defaults::CHECK_USER),
        }),
        Kind::Ldap => Some(CheckRequest::Ldap),
        Kind::Redis => Some(CheckRequest::Redis),
    };
    let tls = TLS.contains(&kind).then(|| tls(source, at, raw));
    Some(CheckContent { tls, request })
}

fn tls(source: &mut Source<'_>, at: &At, raw: &RawCheck) -> CheckTls {
    if let Some(name) = raw.server_name.as_deref()
        && !matches!(ServerName::try_from(name), Ok(ServerName::DnsName(_)))
    {
        source.refuse(&at.key("server_name"), quoted(name.escape_debug()), "a DNS name");
    }
    let alpn = raw.alpn.clone().unwrap_or_default();
    for (i, name) in alpn.iter().enumerate() {
        // RFC 7301 3.1: a protocol's name has one to 255 bytes.
        if name.is_empty() || name.len() > 255 {
            source.refuse(&at.key("alpn").index(i), quoted(name), "1 to 255 bytes");
        }
    }
    CheckTls {
        server_name: raw.server_name.clone(),
        alpn,
        authorities: raw.ca.as_deref().map(|file| authorities(source, &at.key("ca"), file)),
    }
}

/// The certificates of a PEM file (RFC 7468).
fn authorities(source: &mut Source<'_>, at: &At, file: &str) -> Vec<CertificateDer<'static>> {
    let certificates = match fs::read(file) {
        Ok(text) => CertificateDer::pem_slice_iter(&text)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    let certificates = certificates.and_then(|certificates| {
        let (good, _) = RootCertStore::empty().add_parsable_certificates(certificates.iter().cloned());
        let is_good = good > 0 && good == certificates.len();
        if is_good {
            Ok(certificates)
        } else {
            Err("no certificates".to_owned())
        }
    });
    certificates.unwrap_or_else(|error| {
        source.refuse(
            at,
            format!("{}: {error}", quoted(file)),
            "a PEM file with certificates of authorities",
        );
        Vec::new()
    })
}

fn http(source: &mut Source<'_>, at: &At, raw: &RawCheck) -> HttpCheck {
    let method = line(source, &at.key("method"), raw.method.as_deref(), "GET");
    let path = line(source, &at.key("path"), raw.path.as_deref(), "/");
    if !path.starts_with('/') {
        source.refuse(&at.key("path"), quoted(&path), "a path such as \"/health\"");
    }
    if let Some(body) = raw.body.as_deref()
        && !(1..=defaults::CHECK_TEXT).contains(&body.len())
    {
        let expected = format!("1 to {} bytes", defaults::CHECK_TEXT);
        source.refuse(&at.key("body"), format!("{} bytes", body.len()), expected);
    }
    let host = raw.host.as_deref();
    let host = host.map(|host| line(source, &at.key("host"), Some(host), ""));
    HttpCheck {
        method,
        path,
        host,
        statuses: statuses(source, &at.key("statuses"), raw.statuses.as_deref()),
        body: raw.body.clone(),
    }
}

/// Visible characters of ASCII, at least one: what can stand in a line of a request.
fn line(source: &mut Source<'_>, at: &At, text: Option<&str>, default: &str) -> String {
    let text = text.unwrap_or(default);
    if text.is_empty() || text.len() > defaults::CHECK_TEXT || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        let expected = format!("1 to {} visible characters of ASCII", defaults::CHECK_TEXT);
        source.refuse(at, quoted(text.escape_debug()), expected);
    }
    text.to_owned()
}

fn statuses(source: &mut Source<'_>, at: &At, texts: Option<&[String]>) -> Vec<RangeInclusive<u16>> {
    let Some(texts) = texts else {
        return vec![defaults::CHECK_STATUSES];
    };
    let mut statuses = Vec::with_capacity(texts.len());
    for (i, text) in texts.iter().enumerate() {
        let range = super::listeners::port_range(text);
        match range.filter(|range| *range.start() >= 100 && *range.end() <= 599) {
            Some(range) => statuses.push(range),
            None => source.refuse(
                &at.index(i),
                quoted(text),
                "a status such as \"204\", or some such as \"200-399\"",
            ),
        }
    }
    if texts.is_empty() {
        source.refuse(at, "empty", "statuses that are right");
    }
    statuses
}

fn text(source: &mut Source<'_>, at: &At, raw: &RawCheck) -> CheckRequest {
    let expect = raw.expect.as_deref().unwrap_or_default();
    let send = raw.send.as_deref().unwrap_or_default();
    if expect.is_empty() {
        source.complain(
            &at.key("expect"),
            "is missing, expected what is to be in the server's answer",
        );
    }
    for (key, text) in [("send", send), ("expect", expect)] {
        if text.len() > defaults::CHECK_TEXT {
            let expected = format!("at most {}", defaults::CHECK_TEXT);
            source.refuse(&at.key(key), format!("{} bytes long", text.len()), expected);
        }
    }
    CheckRequest::Text {
        send: send.into(),
        expect: expect.into(),
    }
}
