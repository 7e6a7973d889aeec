//! `listener[].rules`: each rule by itself. That each can match after those before it is for [`covers`](super::covers).

use std::collections::HashSet;

use super::covers::why_covered;
use super::limits::{self, REFUSALS};
use super::listeners::pool;
use super::pools::Pools;
use super::who::{clients, listener_ports};
use super::{choice, choices, name, number, quoted};
use crate::config::RuleId;
use crate::config::defaults;
use crate::config::dn::DnPattern;
use crate::config::limits::ClassConfig;
use crate::config::lists::ListConfig;
use crate::config::pattern::{HostPattern, NamePattern};
use crate::config::payload_regex::PayloadRegex;
use crate::config::raw::RawRule;
use crate::config::rule::{ClassRule, Match, Rule, RuleAction};
use crate::config::rule_numbers::{BY_DEFAULT, OTHER_RULES};
use crate::config::source::{At, Source};
use splice::callbacks::Refusal;
use splice::settings::{AcceptProxy, Bind};

/// What a rule can be about.
const KINDS: &str = "http_host and/or http_path, tls_sni and/or tls_alpn, first_number = true, prefix or prefix_hex, regex, \
                     ldap_bind_dn, postgres_user and/or postgres_database, or ssl_request = true";

/// Labels under which connections are shown that are of none of the rules that are shown by themselves.
const SHOWN_NAMES: [&str; 2] = [BY_DEFAULT, OTHER_RULES];

/// What a rule can be about beside that.
const OTHERS: &str = "client, listener_port, and, or not";

/// What of a listener its rules depend on.
#[derive(Clone, Copy)]
pub(super) struct Basis<'a> {
    pub(super) bind: Bind,
    pub(super) accept: AcceptProxy,
    /// That rules can name.
    pub(super) lists: &'a [ListConfig],
    pub(super) classes: &'a [ClassConfig],
}

impl Basis<'_> {
    /// Whether a rule's answer is there when a SYN is: with a PROXY header, that says who the client is.
    fn tells_at_syn(self, matches: &Match) -> bool {
        self.accept == AcceptProxy::Off && matches.is_known_at_syn()
    }
}

/// The rules that decide, and those that give classes.
pub(super) fn check(
    source: &mut Source<'_>,
    at: &At,
    raw: &[RawRule],
    basis: Basis<'_>,
    pools: &Pools,
) -> (Vec<Rule>, Vec<ClassRule>) {
    let mut names = HashSet::new();
    let mut classes = Vec::new();
    let mut rules: Vec<(usize, Rule)> = Vec::with_capacity(raw.len());
    let (mut is_told, all) = (false, at);
    for (i, raw) in raw.iter().enumerate() {
        let at = at.index(i);
        if let Some(text) = &raw.class {
            classes.extend(class_rule(source, &at, (raw, text), basis));
            continue;
        }
        if let Some(text) = &raw.name {
            rule_name(source, &at.key("name"), text, &mut names);
        }
        let matches = condition(source, &at, raw, basis.lists);
        let action = action(source, &at, raw, pools);
        let Some(matches) = matches else { continue };
        if let Some((j, why)) = rules
            .iter()
            .find_map(|(j, rule)| Some((j, why_covered(&rule.matches, &matches)?)))
        {
            source.complain(&at, format!("can never match, expected it before rules[{j}], {why}"));
        }
        // One of them says it for all.
        if !is_told && let Some(why) = why_never_asked(&matches, basis) {
            source.complain(all, format!("{why} (rules[{i}])"));
            is_told = true;
        }
        can_be_done(source, &at, (&matches, action), basis, &rules);
        // A rule whose pool is unknown still shadows those that follow; nothing leaves this module with it.
        rules.push((
            i,
            Rule {
                id: RuleId(0),
                name: raw.name.clone(),
                matches,
                action: action.unwrap_or(RuleAction::Refuse(Refusal::Reject)),
            },
        ));
    }
    (rules.into_iter().map(|(_, rule)| rule).collect(), classes)
}

/// A rule that gives a class decides nothing else, and is asked before anything is said.
fn class_rule(source: &mut Source<'_>, at: &At, (raw, class): (&RawRule, &str), basis: Basis<'_>) -> Option<ClassRule> {
    if raw.name.is_some() || raw.pool.is_some() || raw.action.is_some() {
        source.complain(
            at,
            "gives a class, expected neither name, pool nor action beside it: a rule behind it may decide",
        );
    }
    let matches = condition(source, at, raw, basis.lists)?;
    if !basis.tells_at_syn(&matches) {
        let what = if matches.is_known_at_syn() {
            "no class where PROXY headers are accepted: they say who the client is"
        } else {
            "only client and listener_port: a class is known when a client shakes hands"
        };
        source.complain(at, format!("gives a class, expected {what}"));
    }
    let class = limits::class(source, &at.key("class"), class, basis.classes)?;
    Some(ClassRule { matches, class })
}

/// A rule leads to a pool, or refuses.
fn action(source: &mut Source<'_>, at: &At, raw: &RawRule, pools: &Pools) -> Option<RuleAction> {
    match (&raw.pool, &raw.action) {
        (Some(name), None) => pool(source, &at.key("pool"), name, pools).map(RuleAction::Pool),
        (None, Some(word)) => {
            let refusal = choice(source, &at.key("action"), Some(word), &REFUSALS);
            Some(RuleAction::Refuse(refusal))
        }
        (named, _) => {
            let words = choices(&REFUSALS.map(|(word, _)| word));
            let what = if named.is_some() { "both" } else { "neither" };
            source.complain(
                at,
                format!("has {what} of pool and action, expected a pool, or action = {words}"),
            );
            None
        }
    }
}

/// Where there is no payload, or another client than the one that is meant, a rule cannot ask for it.
fn why_never_asked(matches: &Match, basis: Basis<'_>) -> Option<String> {
    let bind = match basis.bind {
        Bind::Payload => return None,
        Bind::Handshake => "handshake",
        Bind::Syn => "syn",
    };
    if !matches.is_known_at_syn() {
        return Some(format!(
            "can never match, expected only client and listener_port: with bind = \"{bind}\" the server is chosen before the \
             client has sent anything"
        ));
    }
    (basis.bind == Bind::Syn && basis.accept != AcceptProxy::Off).then(|| {
        "asks who the client is, expected no rule: with bind = \"syn\" the server is chosen before the PROXY header that \
         says so"
            .to_owned()
    })
}

/// A window of zero is in the SYN-ACK or nowhere; and a number is no condition to refuse by.
fn can_be_done(
    source: &mut Source<'_>,
    at: &At,
    (matches, action): (&Match, Option<RuleAction>),
    basis: Basis<'_>,
    before: &[(usize, Rule)],
) {
    let is_number = *matches == Match::FirstNumber;
    if is_number && !matches!(action, Some(RuleAction::Pool(_)) | None) || !is_number && has_number(matches) {
        source.complain(
            &at.key("first_number"),
            "names a server of a pool, expected no other condition and no action beside it",
        );
    }
    if action != Some(RuleAction::Refuse(Refusal::Tarpit)) {
        return;
    }
    let at = at.key("action");
    if !basis.tells_at_syn(matches) {
        source.refuse(
            &at,
            quoted("tarpit"),
            "\"reject\" or \"drop\": a connection is tarpitted by its first SYN, which does not tell whether this rule matches",
        );
    } else if let Some((j, _)) = before.iter().find(|(_, rule)| !rule.matches.is_known_at_syn()) {
        source.refuse(
            &at,
            quoted("tarpit"),
            format!(
                "it before rules[{j}]: a connection is tarpitted by its first SYN, and that rule waits for what follows"
            ),
        );
    }
}

fn has_number(matches: &Match) -> bool {
    matches.has_within(&|part| *part == Match::FirstNumber)
}

fn rule_name(source: &mut Source<'_>, at: &At, text: &str, taken: &mut HashSet<String>) {
    if SHOWN_NAMES.contains(&text) || text.bytes().all(|byte| byte.is_ascii_digit()) && !text.is_empty() {
        let expected = format!(
            "another: numbers and {} are what others are called",
            choices(&SHOWN_NAMES)
        );
        source.refuse(at, quoted(text), expected);
    } else {
        name(source, at, text, taken);
    }
}

/// Reads the one kind that a rule is of.
type Read = fn(&mut Source<'_>, &At, &RawRule) -> Option<Match>;

/// All that a rule wants, or a part of it in `and` and `not`.
fn condition(source: &mut Source<'_>, at: &At, raw: &RawRule, lists: &[ListConfig]) -> Option<Match> {
    let mut parts = Vec::new();
    let problems = source.problem_count();
    if let Some(texts) = &raw.client {
        parts.extend(clients(source, &at.key("client"), texts, lists));
    }
    if let Some(texts) = &raw.listener_port {
        parts.extend(listener_ports(source, &at.key("listener_port"), texts));
    }
    parts.extend(of_payload(source, at, raw));
    for (key, raws) in [("and", &raw.and), ("not", &raw.not)] {
        for (i, raw) in raws.iter().enumerate() {
            let at = at.key(key).index(i);
            if [&raw.name, &raw.pool, &raw.action, &raw.class]
                .iter()
                .any(|of| of.is_some())
            {
                source.complain(
                    &at,
                    "is a part of a rule, expected conditions without name, pool, action and class",
                );
            }
            let part = condition(source, &at, raw, lists);
            parts.extend(part.map(|part| if key == "not" { Match::Not(Box::new(part)) } else { part }));
        }
    }
    if source.problem_count() > problems {
        return None;
    }
    match parts.len() {
        0 => {
            source.complain(at, format!("matches nothing, expected {KINDS}; or {OTHERS}"));
            None
        }
        1 => parts.pop(),
        _ => Some(Match::All(parts)),
    }
}

/// What it wants of the payload, if anything: of one kind.
fn of_payload(source: &mut Source<'_>, at: &At, raw: &RawRule) -> Option<Match> {
    let kinds: [(bool, Read); 9] = [
        (raw.http_host.is_some() || raw.http_path.is_some(), http),
        (raw.tls_sni.is_some() || raw.tls_alpn.is_some(), tls),
        (raw.first_number.is_some(), first_number),
        (raw.prefix.is_some(), first_bytes),
        (raw.prefix_hex.is_some(), prefix_hex),
        (raw.regex.is_some() || raw.regex_bytes.is_some(), regex),
        (raw.ldap_bind_dn.is_some(), ldap),
        (raw.postgres_user.is_some() || raw.postgres_database.is_some(), postgres),
        (raw.ssl_request.is_some(), ssl_request),
    ];
    let mut said = kinds.iter().filter(|(is_said, _)| *is_said);
    match (said.next(), said.next()) {
        (Some((_, read)), None) => read(source, at, raw),
        (None, _) => None,
        (Some(_), Some(_)) => {
            source.complain(at, format!("mixes kinds, expected one of {KINDS}"));
            None
        }
    }
}

fn http(source: &mut Source<'_>, at: &At, raw: &RawRule) -> Option<Match> {
    let host = optional(&raw.http_host, |text| host(source, &at.key("http_host"), text));
    let path = optional(&raw.http_path, |text| path(source, &at.key("http_path"), text));
    Some(Match::Http {
        host: host?,
        path: path?,
    })
}

fn tls(source: &mut Source<'_>, at: &At, raw: &RawRule) -> Option<Match> {
    let sni = optional(&raw.tls_sni, |text| sni(source, &at.key("tls_sni"), text));
    let alpn = optional(&raw.tls_alpn, |text| alpn(source, &at.key("tls_alpn"), text));
    Some(Match::Tls { sni: sni?, alpn: alpn? })
}

fn first_number(source: &mut Source<'_>, at: &At, raw: &RawRule) -> Option<Match> {
    is_true(source, &at.key("first_number"), raw.first_number, Match::FirstNumber)
}

fn ssl_request(source: &mut Source<'_>, at: &At, raw: &RawRule) -> Option<Match> {
    is_true(source, &at.key("ssl_request"), raw.ssl_request, Match::SslRequest)
}

fn is_true(source: &mut Source<'_>, at: &At, value: Option<bool>, meant: Match) -> Option<Match> {
    if value == Some(false) {
        source.refuse(at, false, "true, or a rule of another kind");
        return None;
    }
    Some(meant)
}

fn first_bytes(source: &mut Source<'_>, at: &At, raw: &RawRule) -> Option<Match> {
    let text = raw.prefix.as_deref()?;
    prefix_of(source, &at.key("prefix"), text, text.as_bytes().to_vec())
}

fn prefix_hex(source: &mut Source<'_>, at: &At, raw: &RawRule) -> Option<Match> {
    let at = at.key("prefix_hex");
    let text = raw.prefix_hex.as_deref()?;
    let Some(bytes) = hex(text) else {
        source.refuse(
            &at,
            quoted(text),
            "bytes as pairs of hexadecimal digits, such as \"16 03 01\"",
        );
        return None;
    };
    prefix_of(source, &at, text, bytes)
}

fn prefix_of(source: &mut Source<'_>, at: &At, text: &str, bytes: Vec<u8>) -> Option<Match> {
    if bytes.is_empty() || bytes.len() > defaults::PREFIX_MAX {
        source.refuse(at, quoted(text), format!("1 to {} bytes", defaults::PREFIX_MAX));
        return None;
    }
    Some(Match::Prefix(bytes))
}

/// Pairs of digits, with or without blanks between them.
fn hex(text: &str) -> Option<Vec<u8>> {
    let digit = |c: u8| char::from(c).to_digit(16).map(|digit| digit as u8);
    let mut bytes = Vec::with_capacity(text.len() / 2);
    for word in text.split_ascii_whitespace() {
        let pairs = word.as_bytes().chunks_exact(2);
        if !pairs.remainder().is_empty() {
            return None;
        }
        for pair in pairs {
            bytes.push(digit(pair[0])? << 4 | digit(pair[1])?);
        }
    }
    Some(bytes)
}

fn regex(source: &mut Source<'_>, at: &At, raw: &RawRule) -> Option<Match> {
    let first_bytes = number(
        source,
        &at.key("regex_bytes"),
        raw.regex_bytes,
        defaults::REGEX_BYTES,
        &defaults::REGEX_BYTES_RANGE,
    );
    let Some(text) = raw.regex.as_deref() else {
        source.complain(at, "lacks the key `regex`, to which regex_bytes belongs");
        return None;
    };
    PayloadRegex::new(text, first_bytes as u16)
        .map_err(|expected| source.refuse(&at.key("regex"), shortened(text), expected))
        .map(Match::Regex)
        .ok()
}

/// Expressions may be long; a complaint stays in one line of reasonable length.
fn shortened(text: &str) -> String {
    let mut shown: String = text.chars().take(60).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    format!("{shown:?}")
}

fn ldap(source: &mut Source<'_>, at: &At, raw: &RawRule) -> Option<Match> {
    let text = raw.ldap_bind_dn.as_deref()?;
    text.parse::<DnPattern>()
        .map_err(|expected| source.refuse(&at.key("ldap_bind_dn"), quoted(text), expected))
        .map(Match::LdapBind)
        .ok()
}

fn postgres(source: &mut Source<'_>, at: &At, raw: &RawRule) -> Option<Match> {
    let user = optional(&raw.postgres_user, |text| {
        pg_name(source, &at.key("postgres_user"), text)
    });
    let database = optional(&raw.postgres_database, |text| {
        pg_name(source, &at.key("postgres_database"), text)
    });
    // Every StartupMessage has both: without a database it is the user's.
    Some(Match::Postgres {
        user: user?.unwrap_or(NamePattern::Any),
        database: database?.unwrap_or(NamePattern::Any),
    })
}

fn pg_name(source: &mut Source<'_>, at: &At, text: &str) -> Option<NamePattern> {
    if text == "*" {
        return Some(NamePattern::Any);
    }
    // NAMEDATALEN: a longer one is cut by the server, and then two names would be one.
    if text.is_empty() || text.len() > 63 || text.contains('\0') {
        source.refuse(at, quoted(text), "a name of 1 to 63 bytes, or \"*\" for any");
        return None;
    }
    Some(NamePattern::Exact(text.to_owned()))
}

fn alpn(source: &mut Source<'_>, at: &At, text: &str) -> Option<String> {
    // RFC 7301 3.1: ProtocolName<1..2^8-1>.
    if text.is_empty() || text.len() > 255 {
        source.refuse(
            at,
            quoted(text),
            "the name of a protocol such as \"h2\", of 1 to 255 bytes",
        );
        return None;
    }
    Some(text.to_owned())
}

/// `None` when there was a complaint, `Some(None)` when the key is not there.
fn optional<T>(text: &Option<String>, read: impl FnOnce(&str) -> Option<T>) -> Option<Option<T>> {
    match text.as_deref().map(read) {
        None => Some(None),
        Some(read) => read.map(Some),
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
            "the beginning of a path as clients send it: \"/\" first, no \"?\" or \"#\", other characters \
             percent-encoded",
        );
        return None;
    }
    Some(text.to_owned())
}
