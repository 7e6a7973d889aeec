//! Why a rule can never match: an earlier one matches all that it does.
//!
//! What is said is certain; what is not said may still be so (two regular expressions are compared as text only).

use crate::config::pattern::HostPattern;
use crate::config::rule::Match;
use crate::selectors::{ldap, postgres, tls};

/// Why `later` never matches when `earlier` is asked first; `None` when it can.
pub(super) fn why_covered(earlier: &Match, later: &Match) -> Option<&'static str> {
    match (earlier, later) {
        // What wants several things covers what each of them does; what covers a part of what is wanted covers the whole.
        (Match::All(parts), later) => {
            let whys = parts.iter().map(|part| why_covered(part, later));
            whys.collect::<Option<Vec<_>>>().map(|_| "which matches the same")
        }
        (earlier, Match::All(parts)) => parts.iter().find_map(|part| why_covered(earlier, part)),
        (Match::Client(clients), Match::Client(later)) => {
            clients.covers(later).then_some("which matches the same clients")
        }
        (Match::ListenerPort(ports), Match::ListenerPort(later)) => later
            .iter()
            .all(|port| ports.contains(port))
            .then_some("which matches the same ports"),
        (Match::Not(part), Match::Not(later)) if part == later => Some("which matches the same"),
        _ => why_payload_covered(earlier, later),
    }
}

/// The same of two conditions of the payload.
fn why_payload_covered(earlier: &Match, later: &Match) -> Option<&'static str> {
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
        (
            Match::Tls { sni, alpn },
            Match::Tls {
                sni: later_sni,
                alpn: later_alpn,
            },
        ) => {
            let covers_protocol = alpn.is_none() || alpn == later_alpn;
            (covers_host(sni, later_sni) && covers_protocol).then_some(match alpn {
                None => "which matches the same names",
                Some(_) => "which matches the same names and protocols",
            })
        }
        (Match::FirstNumber, Match::FirstNumber) => Some("which matches every payload with a number"),
        // The version in the request line, "HTTP/1.1", is a number already.
        (Match::FirstNumber, Match::Http { .. }) => Some("which matches the version number in every HTTP request"),
        // What ends the digits, or the end of the payload, comes with every such payload.
        (Match::FirstNumber, later) if beginning(later).iter().any(u8::is_ascii_digit) => {
            Some("which matches the digit with which every such payload begins")
        }
        (Match::Prefix(prefix), later) if beginning(later).starts_with(prefix) => {
            Some("which matches how every such payload begins")
        }
        (Match::Regex(regex), Match::Regex(later)) if regex == later => Some("which is the same expression"),
        (Match::Regex(regex), later) if regex.covers(beginning(later)) => {
            Some("which matches how every such payload begins")
        }
        (Match::LdapBind(name), Match::LdapBind(later)) => name.covers(later).then_some("which matches the same names"),
        (
            Match::Postgres { user, database },
            Match::Postgres {
                user: later_user,
                database: later_database,
            },
        ) => {
            let is_covered = user.covers(later_user) && database.covers(later_database);
            is_covered.then_some("which matches the same users and databases")
        }
        (Match::SslRequest, Match::SslRequest) => Some("which matches the same requests"),
        _ => None,
    }
}

fn covers_host(ours: &Option<HostPattern>, theirs: &Option<HostPattern>) -> bool {
    match (ours, theirs) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(ours), Some(theirs)) => ours.covers(theirs),
    }
}

/// The bytes with which every payload begins that matches.
fn beginning(matches: &Match) -> &[u8] {
    match matches {
        Match::Prefix(prefix) => prefix,
        Match::Tls { .. } => &tls::HELLO_START,
        Match::LdapBind(_) => &[ldap::MESSAGE_START],
        Match::Postgres { .. } => &postgres::MESSAGE_START,
        Match::SslRequest => &postgres::ENCRYPTION_REQUEST_START,
        Match::Http { .. }
        | Match::FirstNumber
        | Match::Regex(_)
        | Match::Client(_)
        | Match::ListenerPort(_)
        | Match::All(_)
        | Match::Not(_) => &[],
    }
}
