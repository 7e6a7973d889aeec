//! What must be true of a simulation that is over.
//!
//! Every stream is complete and equal at both ends, or the connection's record names a cause that the scenario explains.
//! Bytes themselves are compared as they are read ([`End`](crate::ends::End)); a wrong one ends the simulation at once.

use crate::scenario::{Binding, Choice, ConnectionPlan, Families, Fate, Scenario};
use crate::world::by_client;
use e2d2::time::Instant;
use e2d2::wire::checksum;
use e2d2::wire::frame::{self, Kind, ParseError};
use netfcts::record::{Cause, SessionRecord, Side};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// What became of a client's connection.
#[derive(Clone, Debug)]
#[allow(dead_code)] // some fields only for the report of a failure, by `Debug`
pub struct ClientResult {
    pub sent: u32,
    pub received: u32,
    pub end_seen: bool,
    pub has_all: bool,
    pub is_complete: bool,
    pub gave_up: bool,
    /// It ended because an end point had ceased to repeat what it was asked for.
    pub is_neglected: bool,
    pub began: Instant,
}

/// What became of a server's.
#[derive(Clone, Debug)]
#[allow(dead_code)] // some fields only for the report of a failure, by `Debug`
pub struct ServerResult {
    pub id: u8,
    pub host: usize,
    pub sent: u32,
    pub received: u32,
    pub end_seen: bool,
    pub has_all: bool,
    pub is_complete: bool,
    /// It had ceased to repeat what it was asked for when it ended.
    pub is_neglected: bool,
}

/// The judgement.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// What is wrong; empty if all is well.
    pub faults: Vec<String>,
    pub connections: usize,
    /// Connections whose two streams were complete.
    pub complete: usize,
    /// Connections that lacked nothing but a FIN that its sender did not repeat.
    pub unrepeated_fins: usize,
    /// Connections that came to a standstill because smoltcp no longer repeated its oldest unacknowledged byte.
    pub neglected: usize,
    /// Bytes compared, both ways.
    pub bytes: u64,
    /// Records by cause.
    pub causes: BTreeMap<String, usize>,
    pub drops: Vec<(&'static str, u64)>,
    /// Virtual time.
    pub seconds: u64,
    /// A hash of every frame at the engine's ports, with its time.
    pub digest: u64,
}

/// Judges what is left when all is over.
pub fn judge(
    scenario: &Scenario,
    clients: Vec<(ConnectionPlan, ClientResult)>,
    servers: &[ServerResult],
    records: &[SessionRecord],
) -> Report {
    let mut report = Report {
        connections: clients.len(),
        ..Report::default()
    };
    for record in records {
        *report
            .causes
            .entry(format!("{:?}", record.cause(Side::Client)))
            .or_default() += 1;
    }
    let records = by_client(records);
    for (plan, client) in &clients {
        let address: IpAddr = if plan.v6 {
            format!("fd00::{}", 1 + plan.host).parse().expect("an address")
        } else {
            format!("10.0.0.{}", 1 + plan.host).parse().expect("an address")
        };
        let next = clients.iter().filter(|(other, result)| {
            (other.port, other.host, other.v6) == (plan.port, plan.host, plan.v6) && result.began > client.began
        });
        let next = next.map(|(_, result)| result.began).min();
        let all = records.get(&(address, plan.port)).map_or(&[][..], Vec::as_slice);
        let own = all
            .iter()
            .filter(|record| record.start() >= client.began && next.is_none_or(|next| record.start() < next));
        let own: Vec<&SessionRecord> = own.collect();
        let sessions: Vec<_> = servers.iter().filter(|server| server.id == plan.id).collect();
        let case = Case {
            scenario,
            plan,
            client,
            sessions: &sessions,
            records: &own,
        };
        report.bytes += u64::from(client.received) + sessions.iter().map(|s| u64::from(s.received)).sum::<u64>();
        report.complete += usize::from(case.is_complete());
        let lacks_a_fin = |record: &&SessionRecord| case.lacks_a_fin(record.cause(Side::Client));
        report.unrepeated_fins += usize::from(!case.is_complete() && own.iter().any(lacks_a_fin));
        report.neglected += usize::from(case.is_neglected());
        if let Err(what) = case.judge() {
            report.faults.push(format!(
                "connection {}: {what}\n    {plan:?}\n    client {client:?}\n    servers {sessions:?}\n    {}",
                plan.id,
                own.iter()
                    .map(|record| describe(record))
                    .collect::<Vec<_>>()
                    .join("\n    ")
            ));
        }
    }
    report
}

fn describe(record: &SessionRecord) -> String {
    let changes: Vec<String> = record.changes().map(|change| format!("{change:?}")).collect();
    format!(
        "record: cause {:?}, server {}, local port {}, tried {}, flags {:?}, bytes {}/{}, packets {}/{}, {}",
        record.cause(Side::Client),
        record.server,
        record.local_port,
        record.servers_tried,
        record.flags(),
        record.bytes_to_server(),
        record.bytes_to_client(),
        record.packets_to_server,
        record.packets_to_client,
        changes.join(" ")
    )
}

struct Case<'a> {
    scenario: &'a Scenario,
    plan: &'a ConnectionPlan,
    client: &'a ClientResult,
    sessions: &'a [&'a ServerResult],
    records: &'a [&'a SessionRecord],
}

impl Case<'_> {
    fn is_complete(&self) -> bool {
        self.client.is_complete && matches!(self.sessions, [server] if server.is_complete)
    }

    fn judge(&self) -> Result<(), String> {
        if self.sessions.len() > 1 {
            return Err("its bytes went to more than one server".into());
        }
        let record = match self.records {
            [record] => record,
            // Its cookie expired before any of its segments came through (DESIGN: decision 2).
            [] if self.was_never_heard() => return Ok(()),
            [] => return Err("there is no record of it".into()),
            all if self.scenario.binding == Binding::Syn => one_that_was_served(all)?,
            _ => return Err(format!("there are {} records of it", self.records.len())),
        };
        let cause = record.cause(Side::Client);
        if self.is_neglected() && matches!(cause, Cause::ActiveRst | Cause::IdleTimeout | Cause::HalfCloseTimeout) {
            // How often that may be is limited ([`Report::neglected`]).
            return Ok(());
        }
        if self.client.gave_up && !self.scenario.is_troubled() && !self.is_aborted() {
            return Err("it did not end".into());
        }
        if self.plan.to_server == 0 {
            return match cause {
                // Its server has spoken all the same.
                cause if self.scenario.binding != Binding::Payload && self.sessions.is_empty() => {
                    self.judge_complete(cause).or_else(|_| self.judge_incomplete(cause))
                }
                Cause::ActiveClose if self.sessions.is_empty() => Ok(()),
                Cause::BadProxyHeader if self.may_have_timed_out(cause) => Ok(()),
                cause => Err(format!("it said nothing and ended by {cause:?}")),
            };
        }
        if self.plan.choice == Choice::Reject {
            return match cause {
                Cause::SelectorReject if self.sessions.is_empty() && self.client.received == 0 => Ok(()),
                cause if self.may_have_timed_out(cause) => Ok(()),
                cause => Err(format!("it was refused and ended by {cause:?}")),
            };
        }
        if self.is_complete() {
            self.judge_family(record)?;
            return self.judge_complete(cause);
        }
        if self.lacks_a_fin(cause) {
            return Ok(());
        }
        self.judge_incomplete(cause)
    }

    /// It was served over the version of IP that it was to be led to; the first three servers have IPv4.
    fn judge_family(&self, record: &SessionRecord) -> Result<(), String> {
        let is_free = self.plan.choice == Choice::Pool && self.scenario.families == Families::Both;
        if is_free || (record.server >= 3) == self.plan.server_v6 {
            Ok(())
        } else {
            Err(format!("it was led to server {}", record.server))
        }
    }

    /// Every byte came, both ways, but not every FIN, until silence ended it: smoltcp does not always repeat a lost FIN.
    /// How often that may be is limited ([`Report::unrepeated_fins`]).
    fn lacks_a_fin(&self, cause: Cause) -> bool {
        let all_came = |server: &ServerResult| server.has_all && self.client.has_all;
        matches!(cause, Cause::HalfCloseTimeout | Cause::IdleTimeout)
            && self.scenario.links().iter().any(|link| !link.is_clean())
            && matches!(self.sessions, [server] if all_came(server))
    }

    /// One of its end points no longer did what TCP asks of it.
    fn is_neglected(&self) -> bool {
        !self.is_complete() && (self.client.is_neglected || self.sessions.iter().any(|server| server.is_neglected))
    }

    fn was_never_heard(&self) -> bool {
        let from = &self.scenario.from_clients;
        let is_lossy = from.loss + from.corrupt + from.truncate > 50 || !from.outages.is_empty();
        // Whoever believes to be connected and waits for the server's first word waits for ever, once the SYN-ACK was
        // repeated three times without an ACK.
        let may_give_up = self.scenario.binding != Binding::Payload && self.plan.client.speaks_after > 0;
        is_lossy && (!self.client.gave_up || may_give_up) && self.client.received == 0 && self.sessions.is_empty()
    }

    fn is_aborted(&self) -> bool {
        self.plan.is_aborted()
    }

    fn judge_complete(&self, cause: Cause) -> Result<(), String> {
        match cause {
            Cause::ActiveClose | Cause::PassiveClose => Ok(()),
            // smoltcp's TIME-WAIT lasts ten seconds: a FIN repeated after that is answered by RST.
            Cause::ActiveRst | Cause::PassiveRst if self.scenario.loses_frames() || self.scenario.is_troubled() => {
                Ok(())
            }
            // As its FIN was never acknowledged in that time.
            Cause::HalfCloseTimeout | Cause::IdleTimeout if self.scenario.is_troubled() => Ok(()),
            cause => Err(format!("it was complete and ended by {cause:?}")),
        }
    }

    fn judge_incomplete(&self, cause: Cause) -> Result<(), String> {
        let server = self.server_plans();
        let any = |is: &dyn Fn(Fate) -> bool| server.iter().any(|server| is(server.fate));
        let is_explained = match cause {
            Cause::ActiveRst | Cause::PassiveRst => self.is_aborted() || self.scenario.is_troubled(),
            // Another server gets the connection when the one chosen lacks what was promised.
            Cause::NoServer => server
                .iter()
                .any(|server| !server.options.timestamps && self.scenario.may_promise_timestamps()),
            Cause::NoPort => usize::from(self.scenario.local_ports) < self.scenario.connections.len(),
            Cause::ServerRefused => any(&|fate| matches!(fate, Fate::Refuses | Fate::Restarts { .. })),
            // The RST of an abort was lost, or came with a number ahead of lost data, which is no proof: it passed, its
            // receiver believed it, and here only silence shows the end (DESIGN: decision 12).
            Cause::IdleTimeout | Cause::HalfCloseTimeout if self.is_aborted() && self.scenario.loses_frames() => true,
            Cause::ServerTimeout | Cause::RetransmitLimit | Cause::IdleTimeout | Cause::HalfCloseTimeout => {
                self.may_have_timed_out(cause)
            }
            Cause::SelectorTimeout | Cause::BadProxyHeader | Cause::HandshakeTimeout => self.may_have_timed_out(cause),
            // An orderly end of an incomplete connection is what must never happen.
            _ => false,
        };
        if is_explained {
            Ok(())
        } else {
            Err(format!(
                "it ended by {cause:?}, which nothing explains, and is incomplete"
            ))
        }
    }

    /// Time may have run out: a peer was gone, or so much was lost that nothing came in time.
    fn may_have_timed_out(&self, cause: Cause) -> bool {
        match cause {
            Cause::ServerTimeout => self.scenario.is_troubled() || self.heavy_loss(),
            // SYNs that were lost have backed the client's timer off to a minute before it sends its first byte.
            // A header that lacks a part when the time is over is a bad one.
            Cause::SelectorTimeout | Cause::BadProxyHeader => {
                let from = &self.scenario.from_clients;
                from.loss + from.corrupt + from.truncate > 50
                    || self.scenario.links().iter().any(|link| !link.outages.is_empty())
            }
            Cause::RetransmitLimit | Cause::IdleTimeout | Cause::HalfCloseTimeout => self.scenario.is_troubled(),
            // The server's SYN-ACK and its repetitions were lost, or the server went away behind the first.
            Cause::HandshakeTimeout => {
                let to = &self.scenario.to_clients;
                self.scenario.is_troubled() || to.loss + to.corrupt + to.truncate > 50
            }
            _ => false,
        }
    }

    fn heavy_loss(&self) -> bool {
        let [_, _, from, to] = self.scenario.links();
        u32::from(from.loss + from.corrupt + from.truncate) + u32::from(to.loss + to.corrupt + to.truncate) > 50
    }

    fn server_plans(&self) -> Vec<crate::scenario::ServerPlan> {
        match self.plan.choice {
            Choice::Server(n) => vec![self.scenario.servers[usize::from(n)]],
            Choice::Pool | Choice::Reject => self.scenario.servers.to_vec(),
        }
    }
}

/// A SYN makes a connection: a copy that comes late, or one that the client repeats because it has missed a RST, makes
/// another, which ends without a byte.
fn one_that_was_served<'a>(records: &[&'a SessionRecord]) -> Result<&'a SessionRecord, String> {
    let has_bytes = |record: &&SessionRecord| record.bytes_to_server() + record.bytes_to_client() > 0;
    let mut served = records.iter().copied().filter(has_bytes);
    match (served.next(), served.next()) {
        (Some(record), None) => Ok(record),
        (None, _) => records.last().copied().ok_or_else(String::new),
        (Some(_), Some(_)) => Err(format!("there are {} records of it", records.len())),
    }
}

/// Every TCP packet that the engine makes or passes on has a right checksum, if it came in with one.
///
/// # Errors
/// What is wrong with it.
pub fn frame(frame: &[u8]) -> Result<(), String> {
    let layout = match frame::parse(frame) {
        Ok(Kind::Tcp(layout)) => layout,
        // Reports of multicast groups have a router alert.
        Ok(_) | Err(ParseError::ExtensionHeader) => return Ok(()),
        Err(error) => return Err(error.to_string()),
    };
    let (l3, l4, end) = (usize::from(layout.l3), usize::from(layout.l4), usize::from(layout.end));
    let addresses: (IpAddr, IpAddr) = match layout.version {
        frame::IpVersion::V4 => {
            let address = |at: usize| <[u8; 4]>::try_from(&frame[at..at + 4]).map(IpAddr::from);
            (address(l3 + 12).expect("4 bytes"), address(l3 + 16).expect("4 bytes"))
        }
        frame::IpVersion::V6 => {
            let address = |at: usize| <[u8; 16]>::try_from(&frame[at..at + 16]).map(IpAddr::from);
            (address(l3 + 8).expect("16 bytes"), address(l3 + 24).expect("16 bytes"))
        }
    };
    let pseudo = checksum::pseudo_header(addresses.0, addresses.1, 6, (end - l4) as u16).expect("one family");
    if checksum::is_valid(pseudo + checksum::sum(&frame[l4..end])) {
        Ok(())
    } else {
        Err("the TCP checksum".into())
    }
}
