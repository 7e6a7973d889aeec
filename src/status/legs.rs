//! What was seen of the legs of watched connections, by server: whose fault is it, if something is slow?
//!
//! All of it is of a sample, one connection in `one_in`. What is counted twice, because it has passed before, was lost behind us, and
//! what fills a gap was lost before us: so both directions tell of each leg.

use std::sync::Arc;

use serde_json::{Value, json};
use splice::tally::{Count, LegTally, LegsTally, Tally};

use super::times::{distribution, percentiles};
use crate::config::{ServerConfig, Standing};
use crate::engine::Watch;

/// What was seen of one thing, in the tally of a core.
type Of<'a> = &'a dyn Fn(&Tally) -> Option<&LegsTally>;

/// The sum over the cores of a count.
fn sum(tallies: &[Arc<Tally>], of: Of<'_>, count: impl Fn(&LegsTally) -> &Count) -> u64 {
    let of_cores = tallies.iter().filter_map(|tally| of(tally));
    of_cores.map(|legs| count(legs).get()).sum()
}

/// Half of the round-trip times of a leg and 99 % of them are not above these, in ms.
fn round_trips(tallies: &[Arc<Tally>], of: Of<'_>, leg: fn(&LegsTally) -> &LegTally) -> [Option<f64>; 2] {
    percentiles(&distribution(tallies, |tally| of(tally).map(|legs| leg(legs).rtt())))
}

/// So many in a hundred, to three digits behind the point; nothing of nothing.
fn percent(part: u64, all: u64) -> Option<f64> {
    (all > 0).then(|| (part as f64 * 1e5 / all as f64).round() / 1e3)
}

/// A row for each server whose connections are watched.
pub(super) fn list(watch: &Watch) -> Value {
    let (config, tallies) = (watch.config(), watch.tallies());
    let of = |server: &ServerConfig| {
        let index = server.id.index();
        let of: Of<'_> = &|tally| tally.server(index).map(|server| &server.legs);
        let count = |count: fn(&LegsTally) -> &Count| sum(&tallies, of, count);
        let ([client_p50, client_p99], [server_p50, server_p99]) = (
            round_trips(&tallies, of, |legs| &legs.client),
            round_trips(&tallies, of, |legs| &legs.server),
        );
        let [client_segments, client_again, client_late, client_twice, client_closed] = [
            count(|legs| &legs.client.segments),
            count(|legs| &legs.client.retransmitted),
            count(|legs| &legs.client.out_of_order),
            count(|legs| &legs.client.duplicate),
            count(|legs| &legs.client.zero_windows),
        ];
        let [server_segments, server_again, server_late, server_twice, server_closed] = [
            count(|legs| &legs.server.segments),
            count(|legs| &legs.server.retransmitted),
            count(|legs| &legs.server.out_of_order),
            count(|legs| &legs.server.duplicate),
            count(|legs| &legs.server.zero_windows),
        ];
        let segments = client_segments + server_segments;
        json!({
            "name": server.name,
            "one_in": config.engine().leg_sample,
            "connections": count(|legs| &legs.connections),
            "client_rtt_ms_p50": client_p50,
            "client_rtt_ms_p99": client_p99,
            "server_rtt_ms_p50": server_p50,
            "server_rtt_ms_p99": server_p99,
            "client_leg_lost_percent": percent(client_late + server_again, segments),
            "server_leg_lost_percent": percent(server_late + client_again, segments),
            "client_segments": client_segments,
            "client_retransmitted": client_again,
            "client_out_of_order": client_late,
            "client_duplicate": client_twice,
            "client_zero_windows": client_closed,
            "server_segments": server_segments,
            "server_retransmitted": server_again,
            "server_out_of_order": server_late,
            "server_duplicate": server_twice,
            "server_zero_windows": server_closed,
        })
    };
    let counted = |server: &&ServerConfig| {
        let index = server.id.index();
        server.standing != Standing::Nobody && tallies.iter().any(|tally| tally.server(index).is_some())
    };
    config.servers().iter().filter(counted).map(of).collect()
}

/// The rows of servers with the medians of their connections' round-trip times.
pub(super) fn beside(mut servers: Value, watch: &Watch) -> Value {
    let (config, tallies) = (watch.config(), watch.tallies());
    for row in servers.as_array_mut().into_iter().flatten() {
        let name = row["name"].as_str().unwrap_or_default();
        let Some(server) = config.servers().iter().find(|server| server.name == name) else {
            continue;
        };
        let index = server.id.index();
        let of: Of<'_> = &|tally| tally.server(index).map(|server| &server.legs);
        row["client_rtt_ms_p50"] = json!(round_trips(&tallies, of, |legs| &legs.client)[0]);
        row["server_rtt_ms_p50"] = json!(round_trips(&tallies, of, |legs| &legs.server)[0]);
    }
    servers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_told_in_percent() {
        assert_eq!(
            (percent(1, 3), percent(0, 7), percent(7, 7), percent(0, 0)),
            (Some(33.333), Some(0.0), Some(100.0), None)
        );
    }
}
