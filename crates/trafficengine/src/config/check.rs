//! From what is written to what is meant.

use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use e2d2::scheduler::IdleMode;
use serde::Deserialize;
use serde::de::IntoDeserializer;
use serde::de::value::{Error as PlainError, StrDeserializer};

use super::raw::{RawClient, RawConfig, RawLink, RawLoad, RawPort, RawReport, RawScript, RawServer, RawTcp};
use super::{Config, ConfigError, PortSettings, ReportSettings, same_version};
use crate::client::ClientSettings;
use crate::endpoints::AddressRange;
use crate::generator::GeneratorSettings;
use crate::link::LinkSettings;
use crate::pace::{Pace, Span};
use crate::payload::{Close, Format, MAX_DOMAIN};
use crate::server::{Listener, ServerSettings};
use crate::tcb::TcpSettings;

/// Longest message: far below half of the sequence space, which offsets are compared in.
const MAX_MESSAGE: u32 = 1 << 29;

/// Connections at once if nothing else limits them: 144 MiB.
const DEFAULT_MAX_OPEN: u32 = 1 << 20;

type Checked<T> = Result<T, ConfigError>;

/// Turns the parts of a file into settings.
pub(super) struct Checker<'a> {
    pub(super) file: &'a str,
}

/// What client and server have in common.
struct Script {
    format: Format,
    rounds: u16,
    request: u32,
    response: u32,
    close: Close,
    keys: u16,
    servers: u8,
    check: bool,
    idle: Duration,
    tcp: [TcpSettings; 2],
}

impl Checker<'_> {
    fn wrong<T>(&self, key: &'static str, value: impl Display, expected: impl Display) -> Checked<T> {
        let (value, expected) = (value.to_string(), expected.to_string());
        Err(ConfigError::Value {
            file: self.file.to_owned(),
            key,
            value,
            expected,
        })
    }

    fn impossible<T>(&self, key: &'static str, arithmetic: String) -> Checked<T> {
        Err(ConfigError::Impossible {
            file: self.file.to_owned(),
            key,
            arithmetic,
        })
    }

    fn parse<T: FromStr>(&self, key: &'static str, text: &str, expected: &str) -> Checked<T> {
        text.trim()
            .parse()
            .or_else(|_| self.wrong(key, format_args!("`{text}`"), expected))
    }

    fn duration(&self, key: &'static str, text: &Option<String>, default: Duration) -> Checked<Duration> {
        let Some(text) = text else { return Ok(default) };
        let deserializer: StrDeserializer<'_, PlainError> = text.as_str().into_deserializer();
        humantime_serde::Serde::<Duration>::deserialize(deserializer)
            .map(humantime_serde::Serde::into_inner)
            .or_else(|_| self.wrong(key, format_args!("`{text}`"), "a duration such as 500ms, 10s or 2min"))
    }

    fn positive_duration(&self, key: &'static str, text: &Option<String>, default: Duration) -> Checked<Duration> {
        let duration = self.duration(key, text, default)?;
        if duration.is_zero() {
            self.wrong(key, "0 s", "more than zero")
        } else {
            Ok(duration)
        }
    }

    pub(super) fn config(&self, raw: RawConfig) -> Checked<Config> {
        let port = self.port(&raw.port)?;
        let script = self.script(&raw.script, self.tcp(&raw.tcp, port.mtu)?)?;
        let client = match (&raw.client, &raw.load) {
            (Some(client), Some(load)) => Some(self.client(client, load, &script)?),
            (None, None) => None,
            (Some(_), None) => return self.wrong("load", "missing", "a [load] for the [client]"),
            (None, Some(_)) => return self.wrong("client", "missing", "a [client] for the [load]"),
        };
        let server = raw
            .server
            .as_ref()
            .map(|server| self.server(server, &script))
            .transpose()?;
        if client.is_none() && server.is_none() {
            return self.wrong("client", "missing", "a [client] with a [load], a [server], or both");
        }
        let grace = raw.load.as_ref().and_then(|load| load.grace.clone());
        Ok(Config {
            port,
            generator: GeneratorSettings {
                link: self.link(&raw.link)?,
                client,
                server,
                verify_checksums: raw.port.verify_checksums.unwrap_or(true),
            },
            grace: self.duration("load.grace", &grace, Duration::from_secs(10))?,
            report: report(raw.report),
            warnings: Vec::new(),
        })
    }

    fn port(&self, raw: &RawPort) -> Checked<PortSettings> {
        let mtu = raw.mtu.unwrap_or(1500);
        if !(576..=9000).contains(&mtu) {
            return self.wrong("port.mtu", mtu, "576 to 9000");
        }
        let mac = raw
            .mac
            .as_deref()
            .map(|mac| self.parse("port.mac", mac, "an Ethernet address"))
            .transpose()?;
        let idle = match raw.idle.as_deref().unwrap_or("adaptive") {
            "poll" => IdleMode::Poll,
            "adaptive" => IdleMode::ADAPTIVE,
            other => return self.wrong("port.idle", format_args!("`{other}`"), "`poll` or `adaptive`"),
        };
        Ok(PortSettings {
            device: raw.device.clone(),
            mac,
            mtu,
            core: raw.core,
            memory_mib: raw.memory_mib.unwrap_or(256),
            descriptors: raw.descriptors.unwrap_or(1024),
            checksum_offload: raw.checksum_offload.unwrap_or(true),
            idle,
        })
    }

    fn link(&self, raw: &RawLink) -> Checked<LinkSettings> {
        let prefixes = raw.prefixes.iter().map(|text| {
            let expected = "a prefix such as 10.0.0.0/24 or fd00::/64";
            let prefix: ipnet::IpNet = self.parse("link.prefixes", text, expected)?;
            Ok((prefix.network(), prefix.prefix_len()))
        });
        let gateways = raw
            .gateways
            .iter()
            .map(|text| self.parse("link.gateways", text, "an IP address"));
        let gateways: Vec<IpAddr> = gateways.collect::<Checked<_>>()?;
        for version in [true, false] {
            if gateways.iter().filter(|gateway| gateway.is_ipv4() == version).count() > 1 {
                return self.wrong(
                    "link.gateways",
                    format_args!("{gateways:?}"),
                    "at most one per IP version",
                );
            }
        }
        let mac = raw.next_hop_mac.as_deref();
        Ok(LinkSettings {
            prefixes: prefixes.collect::<Checked<_>>()?,
            gateways,
            next_hop_mac: mac
                .map(|mac| self.parse("link.next_hop_mac", mac, "an Ethernet address"))
                .transpose()?,
        })
    }

    /// Settings for IPv4 and IPv6, whose headers leave room for segments of different length.
    fn tcp(&self, raw: &RawTcp, mtu: u16) -> Checked<[TcpSettings; 2]> {
        let default = TcpSettings::default();
        let most = mtu - 40;
        let mss = raw.mss.unwrap_or(most);
        if !(64..=most).contains(&mss) {
            return self.wrong(
                "tcp.mss",
                mss,
                format_args!("64 to {most} (the MTU of {mtu} less 40 bytes of headers)"),
            );
        }
        let shift = raw.window_scale.unwrap_or(7);
        if shift > 14 {
            return self.wrong("tcp.window_scale", shift, "0 to 14 (RFC 7323 2.3)");
        }
        let window_scale = (!raw.no_window_scale.unwrap_or(false)).then_some(shift);
        let largest = 0xffff << window_scale.unwrap_or(0);
        let window = raw.window.unwrap_or(default.window.min(largest));
        if !(1..=largest).contains(&window) {
            let scale = window_scale.unwrap_or(0);
            return self.wrong("tcp.window", window, format_args!("1 to {largest} (65535 × 2^{scale})"));
        }
        let settings = TcpSettings {
            mss,
            window,
            window_scale,
            timestamps: raw.timestamps.unwrap_or(true),
            sack: raw.sack.unwrap_or(true),
            rto_initial: self.positive_duration("tcp.rto_initial", &raw.rto_initial, default.rto_initial)?,
            rto_min: self.positive_duration("tcp.rto_min", &raw.rto_min, default.rto_min)?,
            rto_max: self.positive_duration("tcp.rto_max", &raw.rto_max, default.rto_max)?,
            ack_delay: self.duration("tcp.ack_delay", &raw.ack_delay, default.ack_delay)?,
            retries: raw.retries.unwrap_or(default.retries),
        };
        if settings.ack_delay > Duration::from_millis(500) {
            let delay = settings.ack_delay;
            return self.wrong(
                "tcp.ack_delay",
                format_args!("{delay:?}"),
                "at most 500ms (RFC 1122 4.2.3.2)",
            );
        }
        let (min, max) = (settings.rto_min, settings.rto_max);
        if min > max {
            return self.wrong(
                "tcp.rto_min",
                format_args!("{min:?}"),
                format_args!("no more than rto_max, {max:?}"),
            );
        }
        let for_ipv6 = TcpSettings {
            mss: mss.min(mtu - 60),
            ..settings.clone()
        };
        Ok([settings, for_ipv6])
    }

    fn script(&self, raw: &RawScript, tcp: [TcpSettings; 2]) -> Checked<Script> {
        let format = match raw.format.as_deref().unwrap_or("text") {
            "text" => Format::Text,
            "http" => Format::Http {
                domain: raw.domain.clone().unwrap_or_else(|| "example".to_owned()),
            },
            "tls" => Format::Tls {
                domain: raw.domain.clone().unwrap_or_else(|| "example".to_owned()),
            },
            other => return self.wrong("script.format", format_args!("`{other}`"), "`text`, `http` or `tls`"),
        };
        if let Format::Http { domain } | Format::Tls { domain } = &format {
            let is_name = domain
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b".-".contains(&byte));
            if domain.is_empty() || domain.len() > MAX_DOMAIN || !is_name {
                let expected = format!("1 to {MAX_DOMAIN} letters, digits, dots and hyphens");
                return self.wrong("script.domain", format_args!("`{domain}`"), expected);
            }
        }
        let close = match raw.close.as_deref().unwrap_or("server") {
            "client" => Close::Client,
            "server" => Close::Server,
            "both" => Close::Both,
            "reset" => Close::Reset,
            other => {
                let expected = "`client`, `server`, `both` or `reset`";
                return self.wrong("script.close", format_args!("`{other}`"), expected);
            }
        };
        let rounds = raw.rounds.unwrap_or(1);
        if rounds == 0 && matches!(close, Close::Server | Close::Both) {
            return self.wrong(
                "script.close",
                "by the server",
                "`client` or `reset`: without a request it is never told to",
            );
        }
        let (min_request, min_response) = (format.min_request(), format.min_response());
        let request = raw.request.unwrap_or(min_request.max(16));
        let max_request = format.max_request().min(MAX_MESSAGE);
        if !(min_request..=max_request).contains(&request) {
            let expected = format!("{min_request} (what the format needs) to {max_request}");
            return self.wrong("script.request", request, expected);
        }
        let response = raw.response.unwrap_or(min_response.max(8));
        if !(min_response..=MAX_MESSAGE).contains(&response) {
            let expected = format!("{min_response} (what the format needs) to {MAX_MESSAGE}");
            return self.wrong("script.response", response, expected);
        }
        let (keys, servers) = (raw.keys.unwrap_or(1000), raw.servers.unwrap_or(1));
        if keys == 0 || servers == 0 {
            return self.wrong(
                "script.keys and script.servers",
                format_args!("{keys} and {servers}"),
                "at least 1",
            );
        }
        let idle = self.positive_duration("script.idle", &raw.idle, Duration::from_secs(30))?;
        let check = raw.check.unwrap_or(true);
        Ok(Script {
            format,
            rounds,
            request,
            response,
            close,
            keys,
            servers,
            check,
            idle,
            tcp,
        })
    }

    fn ports(&self, text: &str) -> Checked<RangeInclusive<u16>> {
        let expected = "a range of ports such as 1024-65535, from 1 on and rising";
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let (first, last) = (
            self.parse::<u16>("client.ports", first, expected)?,
            self.parse::<u16>("client.ports", last, expected)?,
        );
        if first == 0 || first > last {
            return self.wrong("client.ports", format_args!("`{text}`"), expected);
        }
        Ok(first..=last)
    }

    fn client(&self, raw: &RawClient, load: &RawLoad, script: &Script) -> Checked<ClientSettings> {
        let parse_range = |text: &String| {
            text.parse()
                .or_else(|error: crate::ParseRangeError| self.wrong("client.addresses", text, error))
        };
        let sources: Vec<AddressRange> = raw.addresses.iter().map(parse_range).collect::<Checked<_>>()?;
        let ports = self.ports(raw.ports.as_deref().unwrap_or("1024-65535"))?;
        let targets = raw.targets.iter().map(|text| {
            self.parse(
                "client.targets",
                text,
                "an address and port such as 10.0.0.1:80 or [fd00::1]:80",
            )
        });
        let targets: Vec<SocketAddr> = targets.collect::<Checked<_>>()?;
        if targets.is_empty() {
            return self.wrong("client.targets", "empty", "at least one");
        }
        for version in [true, false] {
            let (name, ranges) = (
                if version { 4 } else { 6 },
                sources.iter().filter(|range| range.is_ipv4() == version),
            );
            let (ranges, wanted) = (ranges.count(), targets.iter().any(|target| target.is_ipv4() == version));
            if ranges > 1 || (wanted && ranges == 0) {
                let expected = format!("one range of IPv{name} addresses for the IPv{name} targets");
                return self.wrong("client.addresses", format_args!("{:?}", raw.addresses), expected);
            }
        }
        let (pace, depth) = self.pace(load)?;
        let span = self.span(load)?;
        let max_open = self.capacity(raw, load, &pace, &sources, &targets, &ports)?;
        Ok(ClientSettings {
            sources,
            ports,
            targets,
            format: script.format.clone(),
            rounds: script.rounds,
            request: script.request,
            response: script.response,
            close: script.close,
            keys: script.keys,
            servers: script.servers,
            check: script.check,
            pace,
            span,
            max_open,
            depth,
            idle: script.idle,
            tcp: script.tcp.clone(),
            seed: raw.seed.unwrap_or(1),
        })
    }

    fn pace(&self, load: &RawLoad) -> Checked<(Pace, u32)> {
        let open = || match load.open {
            Some(open) if open > 0 => Ok(open),
            other => self.wrong("load.open", other.unwrap_or(0), "at least one connection"),
        };
        let pace = match load.mode.as_str() {
            "open" => match load.rate {
                // Below one per day nobody waits for; above, a connection per nanosecond is out of any reach.
                Some(rate) if (1e-5..=1e9).contains(&rate) => Pace::Open { rate },
                Some(rate) => return self.wrong("load.rate", rate, "connections per second, 0.00001 to 10^9"),
                None => return self.wrong("load.rate", "missing", "connections per second for the open loop"),
            },
            "closed" => Pace::Closed { open: open()? },
            "drawn" => Pace::Drawn { open: open()? },
            other => return self.wrong("load.mode", format_args!("`{other}`"), "`open`, `closed` or `drawn`"),
        };
        let depth = load.depth.unwrap_or(64);
        if depth == 0 {
            self.wrong("load.depth", 0, "at least 1")
        } else {
            Ok((pace, depth))
        }
    }

    fn span(&self, load: &RawLoad) -> Checked<Span> {
        let ramp = self.duration("load.ramp", &load.ramp, Duration::ZERO)?;
        let duration = match &load.duration {
            Some(_) => Some(self.positive_duration("load.duration", &load.duration, Duration::ZERO)?),
            None => None,
        };
        if let Some(duration) = duration.filter(|duration| ramp > *duration) {
            let arithmetic = format!("a ramp of {ramp:?} does not fit into a duration of {duration:?}");
            return self.impossible("load.ramp", arithmetic);
        }
        if load.total == Some(0) {
            return self.wrong("load.total", 0, "at least one connection");
        }
        Ok(Span {
            ramp,
            duration,
            total: load.total,
        })
    }

    /// Connections at once, after making sure that there are end points for the load.
    fn capacity(
        &self,
        raw: &RawClient,
        load: &RawLoad,
        pace: &Pace,
        sources: &[AddressRange],
        targets: &[SocketAddr],
        ports: &RangeInclusive<u16>,
    ) -> Checked<u32> {
        let per_address = ports.len() as u64;
        let used = |range: &&AddressRange| targets.iter().any(|target| same_version(target.ip(), range.at(0)));
        let addresses: u64 = sources.iter().filter(used).map(|range| u64::from(range.count())).sum();
        let endpoints = addresses * per_address;
        // Targets take turns, so with two IP versions the smaller range is the first to run out.
        let product = format!("{addresses} addresses × {per_address} ports = {endpoints}");
        if endpoints > u64::from(u32::MAX >> 1) {
            return self.impossible("client.addresses", format!("{product} end points, more than 2^31 - 1"));
        }
        let open = match pace {
            Pace::Closed { open } | Pace::Drawn { open } => u64::from(*open),
            Pace::Open { rate } => {
                let rest = self.duration("load.port_rest", &load.port_rest, Duration::from_secs(1))?;
                let needed = rate * rest.as_secs_f64();
                if needed > endpoints as f64 {
                    let arithmetic = format!(
                        "{rate} per second × {rest:?} of rest need {needed:.0} end points; there are {product}"
                    );
                    return self.impossible("load.rate", arithmetic);
                }
                0
            }
        };
        if open > endpoints {
            let arithmetic = format!("{open} connections at once; there are {product} end points");
            return self.impossible("load.open", arithmetic);
        }
        let default = open.max(endpoints.min(u64::from(DEFAULT_MAX_OPEN)).min(u64::from(u32::MAX >> 1)));
        let max_open = raw.max_open.map_or(default, u64::from);
        if max_open < open.max(1) {
            let arithmetic = format!("{max_open} connections at most, but load.open is {open}");
            return self.impossible("client.max_open", arithmetic);
        }
        Ok(max_open.min(endpoints) as u32)
    }

    fn server(&self, raw: &RawServer, script: &Script) -> Checked<ServerSettings> {
        let first = raw.first_id.unwrap_or(0);
        if raw.listen.is_empty() || raw.listen.len() > 256 - usize::from(first) {
            let expected = format!(
                "1 to {} addresses, numbered from {first} to 255",
                256 - u16::from(first)
            );
            return self.wrong(
                "server.listen",
                format_args!("{} addresses", raw.listen.len()),
                expected,
            );
        }
        let listeners = (first..=255).zip(&raw.listen).map(|(id, text)| {
            let expected = "an address and port such as 10.0.0.1:80 or [fd00::1]:80";
            Ok(Listener {
                address: self.parse("server.listen", text, expected)?,
                id: if raw.same_id == Some(true) { first } else { id },
            })
        });
        let max_open = raw.max_open.unwrap_or(DEFAULT_MAX_OPEN);
        if max_open == 0 || max_open > 1 << 30 {
            return self.wrong("server.max_open", max_open, "1 to 2^30");
        }
        Ok(ServerSettings {
            listeners: listeners.collect::<Checked<_>>()?,
            format: script.format.clone(),
            request: script.request,
            response: script.response,
            check: script.check,
            proxy_header: false,
            max_open,
            idle: script.idle,
            tcp: script.tcp.clone(),
            seed: 2,
        })
    }
}

fn report(raw: RawReport) -> ReportSettings {
    ReportSettings {
        json: raw.json.map(Into::into),
        svg: raw.svg.map(Into::into),
        progress: raw.progress.unwrap_or(true),
    }
}
