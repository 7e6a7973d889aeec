//! `listener[].rules`: each rule by itself, and that each can match after those before it.

use super::listeners::pool;
use super::pools::Pools;
use super::quoted;
use crate::config::model::{Match, Rule};
use crate::config::pattern::HostPattern;
use crate::config::raw::RawRule;
use crate::config::source::{At, Source};

pub(super) fn check(source: &mut Source<'_>, at: &At, raw: &[RawRule], pools: &Pools) -> Vec<Rule> {
    let mut rules: Vec<(usize, Rule)> = Vec::with_capacity(raw.len());
    for (i, raw) in raw.iter().enumerate() {
        let at = at.index(i);
        let matches = matches(source, &at, raw);
        let pool = pool(source, &at.key("pool"), &raw.pool, pools);
        let Some(matches) = matches else { continue };
        if let Some((j, why)) = rules
            .iter()
            .find_map(|(j, rule)| Some((j, why_covered(&rule.matches, &matches)?)))
        {
            source.complain(&at, format!("can never match, expected it before rules[{j}], {why}"));
        }
        // A rule whose pool is unknown still shadows those that follow; nothing leaves this module with it.
        rules.push((
            i,
            Rule {
                matches,
                pool: pool.unwrap_or(crate::config::PoolId(0)),
            },
        ));
    }
    rules.into_iter().map(|(_, rule)| rule).collect()
}

fn matches(source: &mut Source<'_>, at: &At, raw: &RawRule) -> Option<Match> {
    let is_http = raw.http_host.is_some() || raw.http_path.is_some();
    match (is_http, &raw.tls_sni, raw.first_number) {
        (true, None, None) => {
            let host = raw
                .http_host
                .as_deref()
                .map(|text| host(source, &at.key("http_host"), text));
            let path = raw
                .http_path
                .as_deref()
                .map(|text| path(source, &at.key("http_path"), text));
            let (host, path) = (
                host.map_or(Some(None), |h| h.map(Some)),
                path.map_or(Some(None), |p| p.map(Some)),
            );
            Some(Match::Http {
                host: host?,
                path: path?,
            })
        }
        (false, Some(name), None) => sni(source, &at.key("tls_sni"), name).map(Match::TlsSni),
        (false, None, Some(true)) => Some(Match::FirstNumber),
        (false, None, Some(false)) => {
            source.refuse(&at.key("first_number"), false, "true, or a rule of another kind");
            None
        }
        (false, None, None) => {
            source.complain(
                at,
                "matches nothing, expected http_host and/or http_path, tls_sni, or first_number = true",
            );
            None
        }
        _ => {
            source.complain(
                at,
                "mixes kinds that never match the same payload, expected one of http_host and/or http_path, tls_sni, \
                 first_number",
            );
            None
        }
    }
}

fn host(source: &mut Source<'_>, at: &At, text: &str) -> Option<HostPattern> {
    text.parse()
        .map_err(|expected| source.refuse(at, quoted(text), expected))
        .ok()
}

fn sni(source: &mut Source<'_>, at: &At, text: &str) -> Option<HostPattern> {
    let pattern = host(source, at, text)?;
    // RFC 6066 section 3: literal IPv4 and IPv6 addresses are not permitted in "HostName".
    let is_address = matches!(&pattern, HostPattern::Ipv6(_))
        || matches!(&pattern, HostPattern::Exact(name) if name.parse::<std::net::Ipv4Addr>().is_ok());
    if is_address {
        source.refuse(
            at,
            quoted(text),
            "a host name; TLS clients never send an address (RFC 6066 section 3)",
        );
        return None;
    }
    Some(pattern)
}

fn path(source: &mut Source<'_>, at: &At, text: &str) -> Option<String> {
    // RFC 3986 3.3: what a path is made of; everything else reaches us percent-encoded.
    let is_path = |b: u8| b.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@%/".contains(&b);
    if !text.starts_with('/') || !text.bytes().all(is_path) {
        source.refuse(
            at,
            quoted(text),
            "the beginning of a path as clients send it: \"/\" first, no \"?\" or \"#\", \
                                         other characters percent-encoded",
        );
        return None;
    }
    Some(text.to_owned())
}

/// Why `later` never matches when `earlier` is asked first; `None` when it can.
fn why_covered(earlier: &Match, later: &Match) -> Option<&'static str> {
    let covers_host = |ours: &Option<HostPattern>, theirs: &Option<HostPattern>| match (ours, theirs) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(ours), Some(theirs)) => ours.covers(theirs),
    };
    match (earlier, later) {
        (
            Match::Http { host, path },
            Match::Http {
                host: later_host,
                path: later_path,
            },
        ) => {
            // No path is not "/": CONNECT and OPTIONS * have none.
            let covers_path = path
                .as_deref()
                .is_none_or(|path| later_path.as_deref().is_some_and(|later| later.starts_with(path)));
            (covers_host(host, later_host) && covers_path).then_some("which matches the same requests")
        }
        (Match::TlsSni(host), Match::TlsSni(later)) => host.covers(later).then_some("which matches the same names"),
        (Match::FirstNumber, Match::FirstNumber) => Some("which matches every payload with a number"),
        // The version in the request line, "HTTP/1.1", is a number already.
        (Match::FirstNumber, Match::Http { .. }) => Some("which matches the version number in every HTTP request"),
        _ => None,
    }
}
