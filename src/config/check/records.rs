//! `[[records]]`

use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use netfcts::format::RecordFormat;
use netfcts::record::Cause;

use super::pools::Pools;
use super::{choice, choices, duration, number, quoted};
use crate::config::defaults;
use crate::config::model::ListenerConfig;
use crate::config::raw::RawRecords;
use crate::config::records::{Destination, Endpoint, RecordFilter, RecordsConfig, Rotation};
use crate::config::source::{At, Source};

/// The longest path of a Unix socket: `sun_path` with its zero byte.
const LONGEST_SOCKET: usize = 107;

/// What is enabled, in the order of the file.
pub(super) fn check(
    source: &mut Source<'_>,
    raw: &[RawRecords],
    listeners: &[ListenerConfig],
    pools: &Pools,
) -> Vec<RecordsConfig> {
    let (mut taken, mut aside) = (HashSet::new(), HashSet::new());
    let mut sinks = Vec::new();
    for (i, raw) in raw.iter().enumerate() {
        let at = At::root().key("records").index(i);
        let to = destination(source, &at, raw);
        let sink = RecordsConfig {
            format: format(source, &at, raw, to.as_ref()),
            only: RecordFilter {
                listeners: known(source, &at.key("listeners"), &raw.listeners, || {
                    listeners.iter().map(|listener| &*listener.name).collect()
                }),
                servers: known(source, &at.key("servers"), &raw.servers, || {
                    let names = pools.pools.iter().flat_map(|pool| &pool.names);
                    let servers = pools.servers.iter().map(|server| &*server.name);
                    servers.chain(names.map(|named| &*named.name)).collect()
                }),
                causes: causes(source, &at.key("causes"), &raw.causes),
                longer_than: duration(
                    source,
                    &at.key("longer_than"),
                    raw.longer_than.as_deref(),
                    Duration::ZERO,
                    &defaults::LONGER_THAN_RANGE,
                ),
            },
            sample: number(
                source,
                &at.key("sample"),
                raw.sample,
                defaults::SAMPLE,
                &defaults::SAMPLE_RANGE,
            ) as u32,
            rotation: rotation(source, &at, raw, to.as_ref()),
            to: to.clone().unwrap_or(Destination::Stdout),
        };
        if sink.format == RecordFormat::Text && sink.sample > 1 {
            source.complain(
                &at.key("sample"),
                "needs the format \"csv\" or \"json\": text has no place for it",
            );
        }
        let Some(to) = to else { continue };
        let (name, aside_as) = names_of(&to, sink.rotation.keep);
        if taken.contains(&name) {
            source.complain(&at, format!("names {to} a second time"));
        } else if aside.contains(&name) {
            source.complain(&at, format!("names {to}, which another sink puts its file aside as"));
        } else if let Some(name) = aside_as.iter().find(|name| taken.contains(*name)) {
            source.complain(&at, format!("puts its file aside as {name}, which another sink has"));
        }
        taken.insert(name);
        aside.extend(aside_as);
        if raw.enabled != Some(false) {
            sinks.push(sink);
        }
    }
    sinks
}

/// What a sink writes to, and of a file the names that it is put aside under.
fn names_of(to: &Destination, keep: u8) -> (String, Vec<String>) {
    let Destination::File(path) = to else {
        return (to.to_string(), Vec::new());
    };
    // `a//b` and `./a/b` are `a/b`.
    let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
    let aside = (1..=keep.max(1)).map(|number| format!("{}.{number}", path.display()));
    (path.display().to_string(), aside.collect())
}

fn destination(source: &mut Source<'_>, at: &At, raw: &RawRecords) -> Option<Destination> {
    let named = [
        ("file", &raw.file),
        ("stream", &raw.stream),
        ("datagram", &raw.datagram),
        ("syslog", &raw.syslog),
        ("ipfix", &raw.ipfix),
    ];
    let mut named = named
        .into_iter()
        .filter_map(|(key, value)| Some((key, value.as_deref()?)));
    let Some((key, value)) = named.next() else {
        if raw.enabled == Some(true) {
            source.complain(
                at,
                "lacks the key `file`: the path of a file, or \"-\" for standard output; or one of `stream`, `datagram`, `syslog` \
                 and `ipfix`",
            );
        }
        return None;
    };
    let at_key = at.key(key);
    if let Some((other, _)) = named.next() {
        source.complain(
            &at.key(other),
            format!("stands beside `{key}`: a sink has one place; write [[records]] once more"),
        );
        return None;
    }
    let socket = |text: &str| {
        let is_path = text.starts_with('/') && text.len() <= LONGEST_SOCKET;
        is_path.then(|| PathBuf::from(text))
    };
    let address = |text: &str| text.parse::<SocketAddr>().ok().filter(|address| address.port() != 0);
    let (found, expected) = match key {
        "file" => (
            match value {
                "" => None,
                "-" => Some(Destination::Stdout),
                path => Some(Destination::File(path.into())),
            },
            "the path of a file, or \"-\" for standard output",
        ),
        "stream" => (
            socket(value).map(Destination::Stream),
            "the path of a Unix stream socket: it begins with / and has at most 107 bytes",
        ),
        "datagram" => (
            socket(value).map(Destination::Datagram),
            "the path of a Unix datagram socket: it begins with / and has at most 107 bytes",
        ),
        "syslog" => (
            socket(value)
                .map(Endpoint::Unix)
                .or_else(|| address(value).map(Endpoint::Udp))
                .map(Destination::Syslog),
            "the path of a Unix datagram socket such as \"/dev/log\", or an address with its port",
        ),
        _ => (
            address(value).map(Destination::Ipfix),
            "the address of a collector with its port, such as \"192.0.2.1:4739\"",
        ),
    };
    if found.is_none() {
        source.refuse(&at_key, quoted(value), expected);
    }
    found
}

/// Text is for people: what programs read is JSON, unless the file says something else.
fn format(source: &mut Source<'_>, at: &At, raw: &RawRecords, to: Option<&Destination>) -> RecordFormat {
    let at = at.key("format");
    let read = choice(
        source,
        &at,
        raw.format.as_deref(),
        &[
            ("text", RecordFormat::Text),
            ("csv", RecordFormat::Csv),
            ("json", RecordFormat::JsonLines),
        ],
    );
    match to {
        Some(Destination::Ipfix(_)) if raw.format.is_some() => {
            source.complain(&at, "has no meaning beside `ipfix`, which is a format itself");
            RecordFormat::JsonLines
        }
        Some(Destination::Datagram(_) | Destination::Syslog(_) | Destination::Ipfix(_)) if raw.format.is_none() => {
            RecordFormat::JsonLines
        }
        Some(Destination::Datagram(_) | Destination::Syslog(_)) if read == RecordFormat::Text => {
            source.complain(
                &at,
                "is \"text\", which has two lines a record, expected \"csv\" or \"json\"",
            );
            read
        }
        _ => read,
    }
}

/// Names that the file gives to something else.
fn known<'n>(source: &mut Source<'_>, at: &At, wanted: &[String], names: impl FnOnce() -> Vec<&'n str>) -> Vec<String> {
    if wanted.is_empty() {
        return Vec::new();
    }
    let names = names();
    for (i, name) in wanted.iter().enumerate() {
        if !names.contains(&name.as_str()) {
            source.refuse(&at.index(i), quoted(name), choices(&names));
        }
    }
    wanted.to_vec()
}

fn causes(source: &mut Source<'_>, at: &At, wanted: &[String]) -> Vec<Cause> {
    let mut causes = Vec::with_capacity(wanted.len());
    for (i, name) in wanted.iter().enumerate() {
        match Cause::ALL.iter().find(|cause| cause.name() == name) {
            Some(cause) => causes.push(*cause),
            None => source.refuse(&at.index(i), quoted(name), choices(&Cause::ALL.map(Cause::name))),
        }
    }
    causes
}

fn rotation(source: &mut Source<'_>, at: &At, raw: &RawRecords, to: Option<&Destination>) -> Rotation {
    let given = [
        ("rotate_mib", raw.rotate_mib.is_some()),
        ("rotate_every", raw.rotate_every.is_some()),
    ];
    if !matches!(to, Some(Destination::File(_))) {
        for (key, _) in given.iter().filter(|(_, is_given)| *is_given) {
            source.complain(&at.key(key), "has no meaning without `file` and its path");
        }
    }
    let every = raw.rotate_every.as_deref();
    let size = raw.rotate_mib.map(|size| {
        let mib = number(
            source,
            &at.key("rotate_mib"),
            Some(size),
            1,
            &defaults::ROTATE_MIB_RANGE,
        );
        mib as u64 * 1024 * 1024
    });
    Rotation {
        size,
        every: every.map(|_| {
            let (at, range) = (at.key("rotate_every"), &defaults::ROTATE_EVERY_RANGE);
            duration(source, &at, every, *range.start(), range)
        }),
        keep: number(
            source,
            &at.key("rotate_keep"),
            raw.rotate_keep,
            defaults::ROTATE_KEEP,
            &defaults::ROTATE_KEEP_RANGE,
        ) as u8,
    }
}
