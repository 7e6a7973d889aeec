//! The configuration file.
//!
//! ```toml
//! metrics = "127.0.0.1:9110"
//!
//! [[listener]]
//! listen = "0.0.0.0:8443"
//! target_v4 = "127.0.0.1:443"
//! target_v6 = "[::1]:443"
//! allowed_subnets = "/etc/mmproxy/balancers"
//! ```

use crate::access::{self, Action, Networks, Rule, SourceKind};
use crate::address::{Family, ListenSpec, TargetSpec};
use crate::config::{
    Bind, Config, ConfigError, Duplicate, HeaderMode, Inline, Listener, Protocol, SendHeader, SourcePort,
};
use crate::sockets;
use serde::Deserialize;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// One value or several.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum OneOrMany<T> {
    One(T),
    Many(Vec<T>),
}

impl<T: Clone> OneOrMany<T> {
    fn as_slice(&self) -> &[T] {
        match self {
            OneOrMany::One(value) => std::slice::from_ref(value),
            OneOrMany::Many(values) => values,
        }
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct File {
    pub(crate) workers: Option<usize>,
    pub(crate) metrics: Option<SocketAddr>,
    pub(crate) max_connections: Option<usize>,
    pub(crate) max_header_failures: Option<u32>,
    #[serde(with = "humantime_serde")]
    pub(crate) drain: Option<Duration>,
    pub(crate) user: Option<String>,
    pub(crate) group: Option<String>,
    pub(crate) sandbox: Option<bool>,
    pub(crate) routes: Option<bool>,
    pub(crate) cpu_affinity: Option<bool>,
    pub(crate) pin: Option<PathBuf>,
    pub(crate) interfaces: Vec<String>,
    pub(crate) verbosity: Option<u8>,
    pub(crate) listener: Vec<Section>,
}

/// A `[[listener]]` section; the command lines are turned into one as well.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Section {
    pub(crate) name: Option<String>,
    pub(crate) listen: Option<OneOrMany<String>>,
    pub(crate) protocol: Option<OneOrMany<Protocol>>,
    pub(crate) header: Option<HeaderMode>,
    #[serde(with = "humantime_serde")]
    pub(crate) header_timeout: Option<Duration>,
    pub(crate) header_limit: Option<usize>,
    pub(crate) verify_checksum: Option<bool>,
    pub(crate) allowed_subnets: Option<PathBuf>,
    pub(crate) allowed: Option<Vec<String>>,
    pub(crate) rule: Vec<RuleSection>,
    pub(crate) target: Option<String>,
    pub(crate) target_v4: Option<String>,
    pub(crate) target_v6: Option<String>,
    pub(crate) dynamic_destination: bool,
    pub(crate) allowed_destinations: Option<Vec<String>>,
    pub(crate) spoof: Option<bool>,
    pub(crate) source_port: Option<SourcePort>,
    pub(crate) duplicate: Option<Duplicate>,
    pub(crate) allow_sources: Vec<SourceKind>,
    pub(crate) mark: u32,
    pub(crate) send: Option<SendHeader>,
    #[serde(with = "humantime_serde")]
    pub(crate) connect_timeout: Option<Duration>,
    #[serde(with = "humantime_serde")]
    pub(crate) idle_timeout: Option<Duration>,
    #[serde(with = "humantime_serde")]
    pub(crate) keepalive: Option<Duration>,
    pub(crate) transparent: bool,
    pub(crate) backlog: Option<i32>,
    pub(crate) fast_open: u32,
    pub(crate) multipath: bool,
    pub(crate) congestion: Option<String>,
    pub(crate) max_sessions: Option<usize>,
    pub(crate) max_sessions_per_client: Option<usize>,
    pub(crate) inline: InlineValue,
}

/// `inline = false`, `true` or `"auto"`.
#[derive(Copy, Clone, Debug, Default, Deserialize)]
#[serde(from = "InlineForm")]
pub(crate) struct InlineValue(pub(crate) Inline);

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected true, false or \"auto\"")]
enum InlineForm {
    Switch(bool),
    Word(InlineWord),
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum InlineWord {
    Auto,
}

impl From<InlineForm> for InlineValue {
    fn from(form: InlineForm) -> Self {
        InlineValue(match form {
            InlineForm::Switch(false) => Inline::Off,
            InlineForm::Switch(true) => Inline::On,
            InlineForm::Word(InlineWord::Auto) => Inline::Auto,
        })
    }
}

/// A `[[listener.rule]]` section.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RuleSection {
    action: Action,
    source: Option<Vec<String>>,
    tlv: Option<String>,
    value: Option<String>,
}

/// Reads and checks a configuration file.
///
/// # Errors
/// Names the file, the key and what was expected.
pub fn load(path: &Path) -> Result<Config, ConfigError> {
    let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
        path: path.to_owned(),
        source,
    })?;
    let file: File = toml::from_str(&text).map_err(|source| ConfigError::Syntax {
        path: path.to_owned(),
        source: Box::new(source),
    })?;
    check(file, &path.display().to_string())
}

pub(crate) fn check(file: File, place: &str) -> Result<Config, ConfigError> {
    let defaults = Config::default();
    if file.listener.is_empty() {
        return Err(value(place, "listener", "at least one [[listener]] is needed".into()));
    }
    let workers = file.workers.filter(|&workers| workers != 0).unwrap_or(defaults.workers);
    if workers > 1024 {
        return Err(value(place, "workers", format!("{workers} is more than 1024")));
    }
    let mut listeners = Vec::new();
    for (index, section) in file.listener.iter().enumerate() {
        let name = section
            .name
            .clone()
            .unwrap_or_else(|| format!("listener {}", index + 1));
        listeners.extend(check_section(section, &name, &format!("{place}: {name}"))?);
    }
    for (index, one) in listeners.iter().enumerate() {
        if let Some(other) = listeners[..index]
            .iter()
            .find(|other| other.bind == one.bind && other.protocol == one.protocol)
        {
            return Err(value(
                place,
                "listen",
                format!("`{}` and `{}` have the same address", other.name, one.name),
            ));
        }
    }
    let is_inline = listeners.iter().any(|listener| listener.inline != Inline::Off);
    if is_inline && file.interfaces.is_empty() {
        let reason = "names none; inline listeners need those that balancers come in on".into();
        return Err(value(place, "interfaces", reason));
    }
    if !is_inline && file.interfaces.is_empty() && file.pin.is_some() {
        let reason = "is for inline listeners; cpu_affinity keeps each worker on a CPU of its own".into();
        return Err(value(place, "pin", reason));
    }
    Ok(Config {
        workers,
        metrics: file.metrics,
        max_connections: file.max_connections,
        max_header_failures: file.max_header_failures.unwrap_or(defaults.max_header_failures),
        drain: file.drain.unwrap_or(defaults.drain),
        user: file.user,
        group: file.group,
        sandbox: file.sandbox.unwrap_or(defaults.sandbox),
        routes: file.routes.unwrap_or(defaults.routes),
        cpu_affinity: file.cpu_affinity.unwrap_or(defaults.cpu_affinity),
        pin: file.pin,
        interfaces: file.interfaces,
        verbosity: file.verbosity.unwrap_or(defaults.verbosity),
        listeners: listeners.into_iter().map(Arc::new).collect(),
    })
}

fn value(place: &str, key: &'static str, reason: String) -> ConfigError {
    ConfigError::Value {
        place: place.to_owned(),
        key,
        reason,
    }
}

/// All listeners of a section: one per address, port and protocol.
fn check_section(section: &Section, name: &str, place: &str) -> Result<Vec<Listener>, ConfigError> {
    let listen = section
        .listen
        .as_ref()
        .ok_or_else(|| value(place, "listen", "is missing".into()))?;
    let common = common_part(section, name, place)?;
    let protocols = section
        .protocol
        .as_ref()
        .map_or(&[Protocol::Tcp][..], OneOrMany::as_slice);
    let mut listeners = Vec::new();
    for text in listen.as_slice() {
        let spec = ListenSpec::parse(text).map_err(|error| value(place, "listen", error.to_string()))?;
        for &protocol in protocols {
            check_protocol(section, protocol, place)?;
            for (bind, port, range) in binds(&spec, protocol).map_err(|reason| value(place, "listen", reason))? {
                let mut listener = Listener {
                    bind,
                    protocol,
                    ..common.clone()
                };
                set_targets(&mut listener, section, port, &range, place)?;
                listeners.push(listener);
            }
        }
    }
    Ok(listeners)
}

fn check_protocol(section: &Section, protocol: Protocol, place: &str) -> Result<(), ConfigError> {
    let header = section.header.unwrap_or(HeaderMode::Required);
    match (protocol, section.send.unwrap_or(SendHeader::Off)) {
        (Protocol::Udp, SendHeader::V1) => Err(value(place, "send", "version 1 does not exist for udp".into())),
        (Protocol::Tcp, SendHeader::Spp) => Err(value(place, "send", "\"spp\" exists for udp only".into())),
        (Protocol::Udp, _) if header == HeaderMode::Optional => {
            Err(value(place, "header", "\"optional\" exists for tcp only".into()))
        }
        _ => Ok(()),
    }
}

/// The sockets of a `listen` entry with the port (0 if unknown) and the range it belongs to.
fn binds(spec: &ListenSpec, protocol: Protocol) -> Result<Vec<(Bind, u16, RangeInclusive<u16>)>, String> {
    match spec {
        ListenSpec::Inet { ip, ports } => Ok(ports
            .clone()
            .map(|port| (Bind::Address(SocketAddr::new(*ip, port)), port, ports.clone()))
            .collect()),
        ListenSpec::Systemd(name) => {
            let passed = sockets::passed_sockets(name.as_deref(), protocol == Protocol::Tcp);
            if passed.is_empty() {
                return Err("no such socket was passed by systemd (LISTEN_FDS, LISTEN_FDNAMES)".into());
            }
            Ok(passed
                .into_iter()
                .map(|(fd, local)| {
                    let port = local.map_or(0, |local| local.port());
                    (Bind::Passed(fd, local), port, port..=port)
                })
                .collect())
        }
    }
}

fn set_targets(
    listener: &mut Listener,
    section: &Section,
    port: u16,
    range: &RangeInclusive<u16>,
    place: &str,
) -> Result<(), ConfigError> {
    let resolve = |key, text: &Option<String>, family| match text.as_deref() {
        // `-6 ""` is how go-mmproxy's users say that there is none.
        None | Some("") => Ok(None),
        Some(text) => TargetSpec::parse(text)
            .and_then(|spec| spec.resolve(family, port, range))
            .map(Some)
            .map_err(|error| value(place, key, error.to_string())),
    };
    listener.target_v4 = resolve("target_v4", &section.target_v4, Family::V4)?;
    listener.target_v6 = resolve("target_v6", &section.target_v6, Family::V6)?;
    if let Some(target) = resolve("target", &section.target, Family::Any)? {
        // One target for both families: what is of the other family cannot be spoofed, and is refused, unless it is a
        // UNIX socket or spoofing is off.
        listener.target_v4.get_or_insert_with(|| target.clone());
        listener.target_v6.get_or_insert(target);
    }
    let nowhere = listener.target_v4.is_none() && listener.target_v6.is_none() && listener.dynamic.is_none();
    if nowhere {
        return Err(value(
            place,
            "target",
            "target, target_v4, target_v6 or dynamic_destination is needed".into(),
        ));
    }
    Ok(())
}

fn common_part(section: &Section, name: &str, place: &str) -> Result<Listener, ConfigError> {
    let defaults = Listener::default();
    let networks = |key, list: &[String]| -> Result<Networks, ConfigError> {
        list.iter()
            .map(|text| access::parse_network(text).ok_or_else(|| value(place, key, format!("`{text}` is no network"))))
            .collect()
    };
    let mut allowed = section
        .allowed
        .as_deref()
        .map(|list| networks("allowed", list))
        .transpose()?;
    if let Some(path) = &section.allowed_subnets {
        let read = Networks::read(path).map_err(|error| value(place, "allowed_subnets", error.to_string()))?;
        allowed = Some(match allowed {
            Some(inline) => inline.merged(read),
            None => read,
        });
    }
    let dynamic = match (section.dynamic_destination, section.allowed_destinations.as_deref()) {
        (false, None) => None,
        (false, Some(_)) => {
            return Err(value(
                place,
                "allowed_destinations",
                "needs dynamic_destination = true".into(),
            ));
        }
        (true, Some(list)) => Some(networks("allowed_destinations", list)?),
        (true, None) => Some(networks("allowed_destinations", &["0.0.0.0/0".into(), "::/0".into()])?),
    };
    let nonzero = |key, time: Option<Duration>, default| match time.unwrap_or(default) {
        Duration::ZERO => Err(value(place, key, "must not be zero".into())),
        time => Ok(time),
    };
    let header_limit = section.header_limit.unwrap_or(defaults.header_limit);
    if !(216 + 16..=proxy_protocol::V2_MAX_LEN).contains(&header_limit) {
        return Err(value(
            place,
            "header_limit",
            format!("{header_limit} is not in 232 to 65551"),
        ));
    }
    let rules = section
        .rule
        .iter()
        .map(|rule| check_rule(rule, place, &networks))
        .collect::<Result<_, _>>()?;
    Ok(Listener {
        name: name.to_owned(),
        header: section.header.unwrap_or(defaults.header),
        header_timeout: nonzero("header_timeout", section.header_timeout, defaults.header_timeout)?,
        header_limit,
        verify_checksum: section.verify_checksum.unwrap_or(true),
        allowed,
        rules,
        dynamic,
        spoof: section.spoof.unwrap_or(true),
        source_port: section.source_port.unwrap_or(defaults.source_port),
        duplicate: section.duplicate.unwrap_or(defaults.duplicate),
        allow_sources: section.allow_sources.clone(),
        mark: section.mark,
        send: section.send.unwrap_or(SendHeader::Off),
        connect_timeout: nonzero("connect_timeout", section.connect_timeout, defaults.connect_timeout)?,
        idle_timeout: section.idle_timeout.filter(|time| !time.is_zero()),
        keepalive: section.keepalive.or(defaults.keepalive).filter(|time| !time.is_zero()),
        transparent: section.transparent,
        backlog: section.backlog.unwrap_or(defaults.backlog),
        fast_open: section.fast_open,
        multipath: section.multipath,
        congestion: section.congestion.clone(),
        max_sessions: section.max_sessions.unwrap_or(defaults.max_sessions),
        max_sessions_per_client: section
            .max_sessions_per_client
            .unwrap_or(defaults.max_sessions_per_client),
        inline: section.inline.0,
        ..defaults
    })
}

fn check_rule(
    rule: &RuleSection,
    place: &str,
    networks: &impl Fn(&'static str, &[String]) -> Result<Networks, ConfigError>,
) -> Result<Rule, ConfigError> {
    let source = rule.source.as_deref().map(|list| networks("rule", list)).transpose()?;
    let tlv = match (&rule.tlv, &rule.value) {
        (None, None) => None,
        (None, Some(_)) => return Err(value(place, "rule", "value needs tlv".into())),
        (Some(name), wanted) => {
            let kind = access::tlv_kind(name).ok_or_else(|| {
                value(
                    place,
                    "rule",
                    format!("`{name}` is no TLV type (authority, aws-vpce, 0xE4 …)"),
                )
            })?;
            Some((kind, wanted.as_ref().map(|wanted| wanted.as_bytes().to_vec())))
        }
    };
    Ok(Rule {
        action: rule.action,
        source,
        tlv,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(text: &str) -> Result<Config, ConfigError> {
        let file = toml::from_str(text).map_err(|source| ConfigError::Syntax {
            path: "test".into(),
            source: Box::new(source),
        })?;
        check(file, "test")
    }

    #[test]
    fn ranges_and_protocols_are_laid_out() {
        let config = checked(
            "[[listener]]\nlisten = [\"0.0.0.0:1000-1002\", \"[::]:2000-2002\"]\nprotocol = [\"tcp\", \"udp\"]\n\
             target_v4 = \"127.0.0.1:3000-3002\"\ntarget_v6 = \"[::1]:443\"",
        )
        .expect("accepted");
        assert_eq!(config.listeners.len(), 12);
        let last = &config.listeners[11];
        assert_eq!(last.bind, Bind::Address("[::]:2002".parse().expect("address")));
        assert_eq!(
            last.target_v4.as_ref().map(ToString::to_string).as_deref(),
            Some("127.0.0.1:3002")
        );
        assert_eq!(
            last.target_v6.as_ref().map(ToString::to_string).as_deref(),
            Some("[::1]:443")
        );
    }

    #[test]
    fn the_packaged_file_is_accepted_and_names_every_key() {
        let text = include_str!("../packaging/mmproxy.toml");
        let config = checked(text).expect("accepted");
        assert_eq!(config.listeners.len(), 4 + 10 + 1 + 1);
        // What stands there as a comment is accepted as well.
        let uncommented: String = text
            .lines()
            .filter_map(|line| match line.strip_prefix("# ") {
                Some(key) if key.contains(" = ") && !key.starts_with("allowed_subnets") => Some(format!("{key}\n")),
                Some(_) => None,
                None => Some(format!("{line}\n")),
            })
            .collect();
        checked(&uncommented).expect("accepted with every default written out");
        for key in [
            "workers",
            "drain",
            "header_timeout",
            "duplicate",
            "max_sessions_per_client",
            "multipath",
        ] {
            assert!(uncommented.lines().any(|line| line.starts_with(key)), "{key}");
        }
    }

    #[test]
    fn errors_name_the_place_the_key_and_what_was_expected() {
        let base = "[[listener]]\nlisten = \"0.0.0.0:1\"\ntarget_v4 = \"127.0.0.1:1\"\n";
        let cases = [
            ("", "at least one [[listener]]"),
            (
                "[[listener]]\ntarget_v4 = \"127.0.0.1:1\"",
                "listener 1: listen: is missing",
            ),
            ("[[listener]]\nlisten = \"0.0.0.0:1\"", "target, target_v4"),
            (&format!("{base}nonsense = 1"), "unknown field `nonsense`"),
            (
                &format!("{base}header_timeout = \"0s\""),
                "header_timeout: must not be zero",
            ),
            (
                &format!("{base}allowed = [\"10.0.0.0/99\"]"),
                "allowed: `10.0.0.0/99` is no network",
            ),
            (
                &format!("{base}allowed_subnets = \"/nonexistent\""),
                "cannot read /nonexistent",
            ),
            (
                &format!("{base}protocol = \"udp\"\nsend = \"v1\""),
                "version 1 does not exist for udp",
            ),
            (&format!("{base}allow_sources = [\"martian\"]"), "martian"),
            (
                &format!("{base}[[listener.rule]]\naction = \"deny\"\ntlv = \"what\""),
                "`what` is no TLV type",
            ),
            (&format!("{base}{base}"), "have the same address"),
            (&format!("{base}header_limit = 10"), "232 to 65551"),
        ];
        for (text, expected) in cases {
            let error = checked(text).expect_err(text).to_string();
            assert!(error.contains(expected), "{error}\nshould contain: {expected}");
        }
    }
}
