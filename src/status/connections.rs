//! Connections over the API: which there are, one with everything that is known of it, and the end of those that are named.
//!
//! A question is answered by one core after the other, and by each as far as a [visit](crate::commands) comes, so that the thread that
//! answers is soon free for others again: `next` says where the next question has to begin.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use netfcts::Side;
use netfcts::leg::unmapped;
use netfcts::legs::Legs;
use serde_json::{Value, json};
use splice::connection::Spliced;
use splice::state::State;
use splice::visit::{ConnectionFilter, ConnectionView, STATES};

use super::query;
use crate::commands::{Purpose, Visit};
use crate::engine::Watch;

/// Connections that one answer shows.
const MOST: u32 = 1000;

/// A status of HTTP and a sentence: what is asked for is wrong (400) or not there (404), or a core does not come round (503).
pub(crate) type Refusal = (u16, String);

/// What was asked, as the part of a URL behind the question mark has it.
struct Question {
    filter: ConnectionFilter,
    /// Where to begin: the index of a core, and a place there.
    from: (usize, u32),
    /// The connection that was named.
    id: Option<Id>,
    most: u32,
}

/// A connection's name: its core, its place there, and its mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Id {
    core: usize,
    slot: u32,
    mark: u32,
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{:08x}", self.core, self.slot, self.mark)
    }
}

impl FromStr for Id {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.splitn(3, '-');
        let mut part = || parts.next().unwrap_or_default();
        let (core, slot, mark) = (part().parse(), part().parse(), u32::from_str_radix(part(), 16));
        match (core, slot, mark) {
            (Ok(core), Ok(slot), Ok(mark)) => Ok(Self { core, slot, mark }),
            _ => Err(format!(
                "`{text}`: expected the id of a connection, such as 0-17-00c0ffee"
            )),
        }
    }
}

/// A page of connections, and where the next begins.
///
/// # Errors
/// See [`Refusal`].
pub(super) fn list(query: &str, watch: &Watch) -> Result<Value, Refusal> {
    let question = Question::read(query, watch)?;
    let (views, next) = question.ask(Purpose::Show, watch)?;
    let rows: Vec<Value> = (views.0.iter())
        .map(|(core, view)| match &view.legs {
            Some(legs) if question.filter.is_watched => with_legs(row(*core, view, watch), legs),
            _ => row(*core, view, watch),
        })
        .collect();
    Ok(json!({ "connections": rows, "next": next }))
}

/// One connection with all that is known of both of its legs.
///
/// # Errors
/// The same.
pub(super) fn one(query: &str, watch: &Watch) -> Result<Value, Refusal> {
    let question = Question::read(query, watch)?;
    question.id.ok_or_else(|| (400, "expected `id`".to_owned()))?;
    let (views, _) = question.ask(Purpose::Show, watch)?;
    let none = || (404, "there is no such connection, or it is over".to_owned());
    let (core, view) = views.0.first().ok_or_else(none)?;
    Ok(everything(*core, view, watch))
}

/// Ends connections: one that is named, or those of a server or of clients; how many, and where to go on.
///
/// # Errors
/// The same; or neither is named.
pub(super) fn end(query: &str, watch: &Watch) -> Result<Value, Refusal> {
    let question = Question::read(query, watch)?;
    let is_named = question.filter.server.is_some() || question.filter.client.is_some();
    if question.id.is_none() && !is_named {
        return Err((400, "expected `id`, `server` or `client`".to_owned()));
    }
    let (views, next) = question.ask(Purpose::End, watch)?;
    Ok(json!({ "ended": views.1, "next": next }))
}

type Views = (Vec<(usize, ConnectionView)>, u32);

impl Question {
    fn read(query: &str, watch: &Watch) -> Result<Self, Refusal> {
        let mut question = Self {
            filter: ConnectionFilter::default(),
            from: (0, 0),
            id: None,
            most: MOST,
        };
        let taken = query::read(query, &[], |key, value| question.take(key, value, watch));
        taken.map_err(|sentence| (400, sentence))?;
        Ok(question)
    }

    fn take(&mut self, key: &str, value: &str, watch: &Watch) -> Result<(), String> {
        let config = watch.config();
        match key {
            "server" => self.filter.server = Some(query::server(value, &config)?),
            "listener" => self.filter.listener = Some(query::listener(value, &config)?),
            "client" => self.filter.client = Some(query::prefix(value)?),
            "older" => self.filter.older_than = Some(Duration::from_secs(query::number::<u32>(key, value)?.into())),
            "state" => {
                let state = STATES.into_iter().find(|state| *state == value);
                self.filter.state = Some(state.ok_or_else(|| format!("expected a state of {}", STATES.join(", ")))?);
            }
            "slow" => self.filter.is_slow = true,
            "watched" => self.filter.is_watched = true,
            "limit" => self.most = query::number::<u32>(key, value)?.clamp(1, MOST),
            "from" => {
                let read = |(core, place): (&str, &str)| Some((core.parse().ok()?, place.parse().ok()?));
                let from = value.split_once('-').and_then(read);
                self.from = from.ok_or_else(|| format!("`{value}`: expected what `next` of an answer says"))?;
            }
            "id" => {
                let id: Id = value.parse()?;
                self.filter.mark = Some(id.mark);
                (self.id, self.from) = (Some(id), (id.core, id.slot));
            }
            _ => {
                return Err(format!(
                    "`{key}`: expected id, server, listener, client, older, state, slow, watched, limit or from"
                ));
            }
        }
        Ok(())
    }

    /// What the core says whose turn it is, and where to go on if that is not all.
    fn ask(&self, purpose: Purpose, watch: &Watch) -> Result<(Views, Option<String>), Refusal> {
        let (core, first) = self.from;
        let end = self.id.map_or(u32::MAX, |_| first.saturating_add(1));
        let visit = Visit {
            purpose,
            places: first..end,
            filter: self.filter,
            most: self.most,
        };
        let Some(number) = watch.cores().nth(core) else {
            return Err((404, format!("there is no core of index {core}")));
        };
        let mut views = Vec::new();
        let visited = watch
            .visit(core, visit, |view| views.push((core, view)))
            .map_err(|error| (503, format!("core {number}: {error}")))?;
        let next = match visited.next {
            _ if self.id.is_some() => None,
            Some(place) => Some(format!("{core}-{place}")),
            None if core + 1 < watch.cores().count() => Some(format!("{}-0", core + 1)),
            None => None,
        };
        Ok(((views, visited.count), next))
    }
}

fn seconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e3).round() / 1e3
}

fn row(core: usize, view: &ConnectionView, watch: &Watch) -> Value {
    let connection = &view.connection;
    let config = watch.config();
    let listener = config.listeners().get(usize::from(connection.listener));
    let server = (connection.ends.leg).and_then(|leg| config.servers().get(usize::from(leg.server.0)));
    let address = |value: u128, port: u16| SocketAddr::new(unmapped(value), port).to_string();
    let id = Id {
        core,
        slot: view.slot,
        mark: view.mark(),
    };
    json!({
        "id": id.to_string(),
        "state": view.state(),
        "client": address(connection.ends.client_address(), connection.ends.client_port),
        "to": address(view.listener_address, connection.ends.listener_port),
        "listener": listener.map(|listener| listener.name.as_str()),
        "source": view.source.map(|(source, port)| address(source, port)),
        "server": server.map(|server| server.name.as_str()),
        "age_s": view.age().map(seconds),
        "silent_s": view.silent_for().map(seconds),
        "slow": view.is_slow(),
        "bytes_to_server": connection.bytes_to_server,
        "bytes_to_client": connection.bytes_to_client,
    })
}

fn everything(core: usize, view: &ConnectionView, watch: &Watch) -> Value {
    let connection = &view.connection;
    let mut all = row(core, view, watch);
    all["legs_of_one_in"] = json!(view.legs.map(|legs| legs.one_in));
    let config = watch.config();
    let server = (connection.ends.leg).and_then(|leg| config.servers().get(usize::from(leg.server.0)));
    all["core"] = json!(watch.cores().nth(core).map(|core| core.0));
    all["phase"] = json!(connection.phase().to_string());
    all["server_address"] = json!(server.map(|server| server.address.to_string()));
    all["client_mac"] = json!(connection.ends.client_mac.to_string());
    all["packets_from_client"] = json!(connection.packets_from_client);
    all["packets_from_server"] = json!(connection.packets_from_server);
    if let State::Spliced(spliced) = &connection.state {
        all["client_leg"] = leg(spliced, view.legs.as_ref(), Side::Client);
        all["server_leg"] = leg(spliced, view.legs.as_ref(), Side::Server);
        all["server_mss"] = json!(spliced.server_mss);
        all["window_scale"] = json!({
            "client": spliced.scale.client,
            "server": spliced.scale.server,
            "advertised": spliced.scale.advertised,
        });
    }
    if let Some(client) = connection.state.client() {
        all["client_leg"] = json!({
            "first_seq": client.irs.0,
            "our_first_seq": client.iss.0,
            "acknowledged": client.last_ack_sent.0,
            "mss": client.mss,
            "window": client.window_bytes(),
            "window_scale": client.window_scale(),
            "sack": client.sack,
            "timestamps": client.timestamps,
        });
    }
    if let Some(call) = connection.state.call() {
        all["server_leg"] = json!({
            "our_first_seq": call.side.iss.0,
            "syns": call.attempts.syns(),
            "retries": call.attempts.retries(),
            "given_up": call.attempts.given_up(),
            "overdue": call.attempts.is_overdue(),
        });
    }
    all
}

/// A row with the round-trip times of both legs, and what was lost on each.
fn with_legs(mut row: Value, legs: &Legs) -> Value {
    let (client, server) = (&legs.client, &legs.server);
    row["client_rtt_ms"] = millis(client.smoothed_rtt, client.rtts);
    row["server_rtt_ms"] = millis(server.smoothed_rtt, server.rtts);
    row["segments"] = json!(u64::from(client.segments) + u64::from(server.segments));
    row["client_leg_lost"] = json!(u64::from(client.out_of_order) + u64::from(server.retransmitted));
    row["server_leg_lost"] = json!(u64::from(server.out_of_order) + u64::from(client.retransmitted));
    row
}

/// A time in µs; nothing if none was measured.
fn millis(micros: u32, measured: u16) -> Value {
    json!((measured > 0).then(|| f64::from(micros) / 1e3))
}

/// What `side` has sent, in its own numbers, and what its peer has said of it; and what was seen of the leg if that is watched.
fn leg(spliced: &Spliced, legs: Option<&Legs>, side: Side) -> Value {
    let sent = spliced.direction(side);
    let (seq_offset, ts_offset) = match side {
        Side::Client => (spliced.client_seq_offset, spliced.client_ts_offset),
        Side::Server => (spliced.server_seq_offset, spliced.server_ts_offset),
    };
    let mut all = json!({
        "sent_up_to": sent.end.0,
        "acknowledged": sent.snd_una.0,
        "in_flight": (sent.end - sent.snd_una).max(0),
        "window_left": (sent.edge - sent.end).max(0),
        "seq_offset": seq_offset,
        "timestamp_offset": ts_offset,
    });
    if let Some(seen) = legs.map(|legs| legs.of(side)) {
        all["rtt_ms"] = millis(seen.smoothed_rtt, seen.rtts);
        all["least_rtt_ms"] = millis(seen.least_rtt, seen.rtts);
        all["rtts"] = json!(seen.rtts);
        all["segments"] = json!(seen.segments);
        all["retransmitted"] = json!(seen.retransmitted);
        all["out_of_order"] = json!(seen.out_of_order);
        all["duplicate"] = json!(seen.duplicate);
        all["zero_windows"] = json!(seen.zero_windows);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_as_they_are_written() {
        let id = Id {
            core: 3,
            slot: 17,
            mark: 0xc0ffee,
        };
        assert_eq!(
            (id.to_string().as_str(), id.to_string().parse()),
            ("3-17-00c0ffee", Ok(id))
        );
        for wrong in ["", "1-2", "1-2-x", "-1-2-3", "1-2-100000000"] {
            assert!(wrong.parse::<Id>().is_err(), "{wrong}");
        }
    }
}
