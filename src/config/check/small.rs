//! `[timeouts]`, `[syn_ack]`, `[log]` and `[control]`.

use std::path::PathBuf;

use ::control::http::Endpoint;
use log::LevelFilter;

use super::{choice, duration, number, quoted};
use crate::config::control::ControlConfig;
use crate::config::defaults;
use crate::config::model::{ListenerTimeouts, PortConfig, Timeouts};
use crate::config::raw::{RawControl, RawListenerTimeouts, RawLog, RawSynAck, RawTimeouts};
use crate::config::source::{At, Source};
use splice::settings::{Pinned, SynAck};

/// `[timeouts]`
pub(super) fn timeouts(source: &mut Source<'_>, raw: &RawTimeouts) -> Timeouts {
    let at = At::root().key("timeouts");
    let mut read = |key: &str, value: &Option<String>, default, range| {
        duration(source, &at.key(key), value.as_deref(), default, range)
    };
    Timeouts {
        select: read("select", &raw.select, defaults::SELECT, &defaults::TIMEOUT_RANGE),
        connect: read("connect", &raw.connect, defaults::CONNECT, &defaults::TIMEOUT_RANGE),
        idle: read("idle", &raw.idle, defaults::IDLE, &defaults::TIMEOUT_RANGE),
        half_close: read(
            "half_close",
            &raw.half_close,
            defaults::HALF_CLOSE,
            &defaults::TIMEOUT_RANGE,
        ),
        time_wait: read(
            "time_wait",
            &raw.time_wait,
            defaults::TIME_WAIT,
            &defaults::TIME_WAIT_RANGE,
        ),
    }
}

/// `listener[].timeouts`: what it does not say is as in `[timeouts]`.
pub(super) fn listener_timeouts(
    source: &mut Source<'_>,
    at: &At,
    raw: &RawListenerTimeouts,
    general: &Timeouts,
) -> ListenerTimeouts {
    let mut read = |key: &str, value: &Option<String>, default| {
        duration(
            source,
            &at.key(key),
            value.as_deref(),
            default,
            &defaults::TIMEOUT_RANGE,
        )
    };
    ListenerTimeouts {
        select: read("select", &raw.select, general.select),
        idle: read("idle", &raw.idle, general.idle),
        half_close: read("half_close", &raw.half_close, general.half_close),
    }
}

/// `[syn_ack]`
pub(super) fn syn_ack(source: &mut Source<'_>, raw: &RawSynAck, ports: &[PortConfig]) -> SynAck {
    let at = At::root().key("syn_ack");
    let mss = raw.mss.map(|mss| {
        let at = at.key("mss");
        let checked = number(
            source,
            &at,
            Some(mss),
            *defaults::MSS_RANGE.start(),
            &defaults::MSS_RANGE,
        );
        let widest = ports
            .iter()
            .map(|port| i64::from(port.mtu) - 40)
            .max()
            .unwrap_or(*defaults::MSS_RANGE.end());
        if checked > widest {
            source.refuse(
                &at,
                mss,
                format!("at most {widest}, the largest MTU of a port less 40 bytes of headers"),
            );
        }
        checked as u16
    });
    SynAck {
        probe: raw.probe.unwrap_or(true),
        pinned: Pinned {
            mss: raw.mss.is_some(),
            window_scale: raw.window_scale.is_some(),
            sack: raw.sack.is_some(),
            timestamps: raw.timestamps.is_some(),
            window: raw.window.is_some(),
        },
        mss,
        window_scale: window_scale(source, &at.key("window_scale"), raw.window_scale.as_ref()),
        sack: raw.sack.unwrap_or(true),
        timestamps: raw.timestamps.unwrap_or(true),
        window: number(
            source,
            &at.key("window"),
            raw.window,
            defaults::WINDOW,
            &defaults::WINDOW_RANGE,
        ) as u16,
    }
}

fn window_scale(source: &mut Source<'_>, at: &At, value: Option<&toml::Value>) -> Option<u8> {
    match value {
        None => Some(defaults::WINDOW_SCALE as u8),
        Some(toml::Value::String(word)) if word == "off" => None,
        Some(toml::Value::Integer(scale)) if defaults::WINDOW_SCALE_RANGE.contains(scale) => Some(*scale as u8),
        Some(other) => {
            source.refuse(at, other, "0 to 14, or \"off\"");
            None
        }
    }
}

/// `[control]`
pub(super) fn control(source: &mut Source<'_>, raw: &RawControl) -> ControlConfig {
    let at = At::root().key("control");
    let socket = endpoint(source, &at.key("socket"), raw.socket.as_deref());
    if let (Some(Endpoint::Tcp(_)), Some(text)) = (&socket, &raw.socket) {
        source.refuse(
            &at.key("socket"),
            quoted(text),
            "the path of a Unix socket; addresses go to `http`",
        );
    }
    let http = endpoint(source, &at.key("http"), raw.http.as_deref());
    if let (Some(text), true) = (&raw.http, http.is_some() && http == socket) {
        source.refuse(&at.key("http"), quoted(text), "another place than that of `socket`");
    }
    ControlConfig {
        socket,
        http,
        show_clients: raw.show_clients,
        hosts: raw.hosts.clone(),
        journal: journal(source, &at.key("journal"), raw.journal.as_deref()),
    }
}

fn journal(source: &mut Source<'_>, at: &At, text: Option<&str>) -> Option<PathBuf> {
    let path = PathBuf::from(text?);
    if !path.is_absolute() || path.file_name().is_none() {
        source.refuse(at, quoted(text?), "the path of a file: it begins with /");
    }
    Some(path)
}

fn endpoint(source: &mut Source<'_>, at: &At, text: Option<&str>) -> Option<Endpoint> {
    let parsed = text?.parse();
    if parsed.is_err() {
        let expected =
            "an address with its port, or the path of a Unix socket: it begins with / and has at most 107 bytes";
        source.refuse(at, quoted(text?), expected);
    }
    parsed.ok()
}

/// `[log]`
pub(super) fn log_level(source: &mut Source<'_>, raw: &RawLog) -> LevelFilter {
    choice(
        source,
        &At::root().key("log").key("level"),
        raw.level.as_deref(),
        &[
            ("info", LevelFilter::Info),
            ("off", LevelFilter::Off),
            ("error", LevelFilter::Error),
            ("warn", LevelFilter::Warn),
            ("debug", LevelFilter::Debug),
            ("trace", LevelFilter::Trace),
        ],
    )
}
