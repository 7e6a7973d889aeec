//! What is wrong now, the worst first: what the page, `top` and `ctl show wrong` have before all else.
//!
//! Only what one look can tell. How fast frames are dropped takes two, and is for whoever looks again.

use serde_json::{Value, json};

use super::state::{DOWN, DRAINED, IN_MAINTENANCE, OUT, PARTLY_OUT, PAST, State, UP};
use crate::config::Standing;
use crate::engine::{NotReady, Watch};
use crate::report::Report;

/// Servers, and pools, that are named one by one; of more there is a number.
const MOST_NAMED: usize = 10;

/// Sentences, the worst first.
#[derive(Default)]
struct Found {
    /// Clients are not served, or not all of them.
    critical: Vec<String>,
    /// It may become so.
    warnings: Vec<String>,
}

/// A sentence for each thing that is wrong.
pub(super) fn list(report: &Report, watch: &Watch) -> Value {
    let mut found = Found::default();
    match watch.is_ready() {
        // All ports are told of below.
        Ok(()) | Err(NotReady::Down { .. }) => {}
        Err(reason) => found.critical.push(reason.to_string()),
    }
    servers_and_pools(report, watch, &mut found);
    for port in &report.ports {
        if port.removed {
            found.critical.push(format!("port {}: its device is gone", port.name));
        } else if port.link_up == Some(false) {
            found.critical.push(format!("port {}: its link is down", port.name));
        }
    }
    let unresolved = report.next_hops.total.saturating_sub(report.next_hops.resolved);
    if unresolved > 0 {
        let total = report.next_hops.total;
        found
            .warnings
            .push(format!("{unresolved} of {total} next hops have no MAC address"));
    }
    if report.records_lost > 0 {
        found
            .warnings
            .push(format!("{} session records were lost", report.records_lost));
    }
    let rows = |severity: &'static str, sentences: Vec<String>| {
        let row = move |sentence| json!({ "severity": severity, "sentence": sentence });
        sentences.into_iter().map(row)
    };
    rows("critical", found.critical)
        .chain(rows("warning", found.warnings))
        .collect()
}

fn servers_and_pools(report: &Report, watch: &Watch, found: &mut Found) {
    let (config, standby) = (watch.config(), watch.standby());
    let servers = config.servers().iter().zip(&report.servers);
    let states: Vec<State> = servers
        .map(|(server, told)| State::of(server, told, report, &standby))
        .collect();
    let takes_none = |server: usize| {
        let state = states.get(server).map_or(UP, |state| state.word);
        [OUT, DOWN, DRAINED, IN_MAINTENANCE].contains(&state)
    };
    let pools = config.pools().iter().filter(|pool| pool.standing == Standing::InFile);
    let passed_over: Vec<_> = pools
        .filter(|pool| pool.members.iter().all(|member| takes_none(member.server.index())))
        .collect();
    for pool in passed_over.iter().take(MOST_NAMED) {
        found
            .critical
            .push(format!("pool {}: every server is passed over", pool.name));
    }
    if passed_over.len() > MOST_NAMED {
        let more = passed_over.len() - MOST_NAMED;
        found.critical.push(format!("{more} more pools have no server either"));
    }
    let told = config.servers().iter().zip(&report.servers).zip(&states);
    let out: Vec<_> = told
        .filter(|((server, _), state)| server.standing == Standing::InFile && ![UP, PAST].contains(&state.word))
        .collect();
    for ((server, told), state) in out.iter().take(MOST_NAMED) {
        let calls = match state.word {
            OUT | PARTLY_OUT => format!(" ({} of {} so far failed)", told.failures, told.calls),
            _ => String::new(),
        };
        let (word, seconds, why) = (state.word, state.seconds(report), state.why.unwrap_or_default());
        found
            .warnings
            .push(format!("server {}: {word} for {seconds} s, {why}{calls}", server.name));
    }
    if out.len() > MOST_NAMED {
        found
            .warnings
            .push(format!("{} more servers are out", out.len() - MOST_NAMED));
    }
    let slow = watch.slow_servers();
    for slow in slow.iter().take(MOST_NAMED) {
        found.warnings.push(format!("server {}: {slow}", slow.server));
    }
    if slow.len() > MOST_NAMED {
        found
            .warnings
            .push(format!("{} more servers are slow", slow.len() - MOST_NAMED));
    }
}
