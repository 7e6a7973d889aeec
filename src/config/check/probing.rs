//! `check` of a `[[pool]]` and of its servers.

use std::time::Duration;

use super::{choice, duration, number};
use crate::config::defaults;
use crate::config::raw::RawCheck;
use crate::config::source::{At, Source};
use splice::settings::Check;

/// `check = { kind = "tcp", … }`. What it does not say is as by default, so a server's own says all anew.
pub(super) fn check(source: &mut Source<'_>, at: &At, raw: Option<&RawCheck>) -> Option<Check> {
    let raw = raw?;
    let is_checked = choice(
        source,
        &at.key("kind"),
        Some(&raw.kind),
        &[("tcp", true), ("off", false)],
    );
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
    let mut times =
        |key: &str, value, default| number(source, &at.key(key), value, default, &defaults::CHECK_TIMES_RANGE) as u8;
    let check = Check {
        interval,
        fast_interval,
        timeout,
        rise: times("rise", raw.rise, defaults::CHECK_RISE),
        fall: times("fall", raw.fall, defaults::CHECK_FALL),
    };
    is_checked.then_some(check)
}
