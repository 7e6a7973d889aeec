//! What must be true of a simulation that is over.
//!
//! Every stream is complete and equal at both ends, or the connection's record names a cause that the scenario explains.
//! Bytes themselves are compared as they are read ([`End`](crate::ends::End)); a wrong one ends the simulation at once.

use crate::engine::{IDLE_SECONDS, SELECT_SECONDS};
use crate::scenario::{Binding, Choice, ConnectionPlan, EndPlan, Families, Fate, Scenario};
use crate::trouble::{self, Touched, Trouble, Troubles};
use crate::world::by_client;
use e2d2::time::Instant;
use netfcts::progress::Micros;
use netfcts::record::RecordFlags;
use netfcts::{Cause, SessionRecord, Side};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

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
    /// When its first SYN has reached the engine.
    pub heard: Option<Instant>,
    pub ended: Instant,
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
    /// Its host was switched off when it had acknowledged every byte, and the application had written all and not read all.
    pub is_unread: bool,
}

/// Time-outs double from a second: so many frames are lost at least, one after the other, before a minute is over.
pub const LOST_IN_A_MINUTE: usize = 4;

/// And before `connect` is, which is 20 s.
const LOST_IN_A_CALL: usize = 3;

/// And before an end is silent for [`IDLE_SECONDS`]: it repeats after a minute at most.
const LOST_IN_SILENCE: usize = IDLE_SECONDS as usize / 60 - 1;

/// And before a cookie expires, which lives for 8 s at least.
const LOST_IN_A_COOKIE: usize = 1;

/// The judgement.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// What is wrong; empty if all is well.
    pub faults: Vec<String>,
    pub connections: usize,
    /// Connections whose two streams were complete.
    pub complete: usize,
    /// Connections that nothing touched (no loss, abort, refusal, server away or want of ports), those of them that were
    /// complete, and how the others ended.
    pub ordinary: usize,
    pub ordinary_complete: usize,
    pub hindered: Vec<String>,
    /// Connections that were not complete for a cause that what happened to them explains.
    pub excused: usize,
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

/// A simulation that is over, but for its clients and records.
pub struct Course<'a> {
    pub scenario: &'a Scenario,
    pub start: Instant,
    pub troubles: &'a Troubles,
    pub servers: &'a [ServerResult],
}

/// Judges what is left when all is over.
pub fn judge(course: &Course<'_>, clients: Vec<(ConnectionPlan, ClientResult)>, records: &[SessionRecord]) -> Report {
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
        // Until its SYN is there, what happens is the last connection's. Records tell whole microseconds.
        let heard = |result: &ClientResult| Instant::from(Micros::from(result.heard.unwrap_or(result.ended)));
        let next = next.map(|(_, result)| heard(result)).min();
        let all = records.get(&(address, plan.port)).map_or(&[][..], Vec::as_slice);
        let own = all
            .iter()
            .filter(|record| record.start() >= heard(client) && next.is_none_or(|next| record.start() < next));
        let own: Vec<&SessionRecord> = own.collect();
        let sessions: Vec<_> = course.servers.iter().filter(|server| server.id == plan.id).collect();
        let case = Case::new(course, (plan, client), &sessions, (address, &own));
        report.bytes += u64::from(client.received) + sessions.iter().map(|s| u64::from(s.received)).sum::<u64>();
        report.complete += usize::from(case.is_complete());
        let must_complete = case.must_complete();
        report.ordinary += usize::from(must_complete);
        report.ordinary_complete += usize::from(must_complete && case.is_complete());
        if must_complete && !case.is_complete() {
            let causes = own.iter().map(|record| format!("{:?}", record.cause(Side::Client)));
            let causes = causes.collect::<Vec<_>>().join(", ");
            let fault = if case.is_neglected() {
                ", as smoltcp repeats no more"
            } else {
                ""
            };
            report.hindered.push(format!("connection {}: {causes}{fault}", plan.id));
        }
        let lacks_a_fin = |record: &&SessionRecord| case.lacks_a_fin(record.cause(Side::Client));
        let lacks_a_fin = !case.is_complete() && own.iter().any(lacks_a_fin);
        report.unrepeated_fins += usize::from(lacks_a_fin);
        report.neglected += usize::from(case.is_neglected());
        let judgement = case.judge();
        let is_counted = case.is_complete() || lacks_a_fin || case.is_neglected();
        report.excused += usize::from(judgement.is_ok() && !is_counted);
        if let Err(what) = judgement {
            report.faults.push(format!(
                "connection {}: {what}\n    {plan:?}\n    client {client:?}\n    servers {sessions:?}\n    touched {:?}\n    {}",
                plan.id,
                case.touched,
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
        record.servers_tried(),
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
    touched: Trouble,
}

impl<'a> Case<'a> {
    fn new(
        course: &Course<'a>,
        (plan, client): (&'a ConnectionPlan, &'a ClientResult),
        sessions: &'a [&'a ServerResult],
        (address, records): (IpAddr, &'a [&'a SessionRecord]),
    ) -> Self {
        let scenario = course.scenario;
        let from = client.began;
        let ends = records.iter().map(|record| record.start() + record.duration());
        let last = ends.max().unwrap_or(client.ended);
        let to = client.ended.max(last);
        // Every server that it may have been tried at, unless it was served by the first.
        let tried = records
            .iter()
            .any(|record| record.servers_tried() > 1 || record.local_port == 0);
        let mut candidates: Vec<u16> = records
            .iter()
            .map(|record| record.server)
            .filter(|server| *server < 6)
            .collect();
        if tried || candidates.is_empty() {
            candidates.extend(match plan.choice {
                Choice::Server(n) => vec![u16::from(n) + 3 * u16::from(plan.server_v6)],
                Choice::Pool | Choice::Reject => (0..6).collect(),
            });
        }
        // Before the engine's end of it: a client that did not hear of that goes on for long.
        let lately = last - Duration::from_secs(IDLE_SECONDS);
        let mut lost_lately = course.troubles.of((address, plan.port), lately, last).lost;
        let mut server = Touched::default();
        for record in records {
            let of = match record.local_port {
                0 => candidates
                    .iter()
                    .map(|server| course.troubles.of_host(trouble::address_of_server(*server), from, to))
                    .fold(Touched::default(), Touched::plus),
                port if record.server < 6 => {
                    course
                        .troubles
                        .of((trouble::address_of_server(record.server), port), from, to)
                }
                _ => Touched::default(),
            };
            server = server.plus(of);
            if record.server < 6 {
                let leg = (trouble::address_of_server(record.server), record.local_port);
                lost_lately += course.troubles.of(leg, lately, last).lost;
            }
        }
        let misbehaves =
            |server: &u16| trouble::misbehaves(scenario, usize::from(server % 3), course.start, (from, to));
        Case {
            scenario,
            plan,
            client,
            sessions,
            records,
            touched: Trouble {
                client: course.troubles.of((address, plan.port), from, to),
                server,
                lost_lately,
                by_server: candidates.iter().any(misbehaves),
            },
        }
    }

    /// Nothing stands between it and its end: no frame of it was lost, and no server, abort or want of ports touched it.
    fn must_complete(&self) -> bool {
        let has_place = usize::from(self.scenario.local_ports) >= self.scenario.connections.len();
        let is_served = self.plan.choice != Choice::Reject && self.plan.to_server > 0;
        has_place
            && is_served
            && !self.is_aborted()
            && !self.touched.by_server
            && self.touched.lost() == 0
            && !self.may_lack_a_server()
    }

    fn is_complete(&self) -> bool {
        self.client.is_complete && matches!(self.sessions, [server] if server.is_complete)
    }

    fn judge(&self) -> Result<(), String> {
        if self.sessions.len() > 1 {
            return Err("its bytes went to more than one server".into());
        }
        let record = match self.records {
            [record] => record,
            // Its cookie expired before any of its segments came through (DECISIONS.md 5).
            [] if self.was_never_heard() => return Ok(()),
            [] => return Err("there is no record of it".into()),
            all if self.scenario.binding == Binding::Syn => one_that_was_served(self.without_a_late_copy(all))?,
            _ => return Err(format!("there are {} records of it", self.records.len())),
        };
        let cause = record.cause(Side::Client);
        if self.is_neglected() && (cause == Cause::ActiveRst || is_silence(cause)) {
            // How often that may be is limited ([`Report::neglected`]).
            return Ok(());
        }
        // The RST that would have told it was lost, or its server was gone.
        if self.client.gave_up && self.touched.lost() == 0 && !self.touched.by_server && !self.is_aborted() {
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
        if matches!(cause, Cause::SelectorTimeout | Cause::BadProxyHeader) && self.may_repeat_too_late(record) {
            return Ok(());
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
        let all_came = matches!(self.sessions, [server] if server.has_all && self.client.has_all);
        is_silence(cause) && self.touched.any_frame() && all_came
    }

    /// One of its end points no longer did what TCP asks of it: it lacks bytes, or nothing but the end of a last FIN.
    fn is_neglected(&self) -> bool {
        let ended_by_silence = |record: &&SessionRecord| is_silence(record.cause(Side::Client));
        (self.client.is_neglected || self.sessions.iter().any(|server| server.is_neglected))
            && (!self.is_complete() || self.records.iter().any(ended_by_silence))
    }

    fn was_never_heard(&self) -> bool {
        // Whoever believes to be connected and waits for the server's first word waits for ever, once the SYN-ACK was
        // repeated three times without an ACK.
        let may_give_up = self.scenario.binding != Binding::Payload && self.plan.client.speaks_after > 0;
        let nothing_came = self.client.received == 0 && self.sessions.is_empty();
        self.touched.client.lost >= LOST_IN_A_COOKIE && (!self.client.gave_up || may_give_up) && nothing_came
    }

    /// Another server gets the connection when the one chosen lacks what was promised; who chose it by name has no other.
    fn may_lack_a_server(&self) -> bool {
        let mut servers = self.server_plans().into_iter();
        self.scenario.may_promise_timestamps() && servers.any(|server| !server.options.timestamps)
    }

    fn is_aborted(&self) -> bool {
        self.plan.is_aborted()
    }

    fn judge_complete(&self, cause: Cause) -> Result<(), String> {
        match cause {
            Cause::ActiveClose | Cause::PassiveClose => Ok(()),
            // smoltcp's TIME-WAIT lasts ten seconds: a FIN repeated after that is answered by RST. So is a late copy by an
            // end that has closed last (RFC 9293 3.10.7.1), and the RST may overtake its last ACK.
            Cause::ActiveRst | Cause::PassiveRst if self.touched.any_frame() || self.touched.by_server => Ok(()),
            // As its FIN was never acknowledged in that time; an inspected connection's is retransmitted by the engine.
            Cause::HalfCloseTimeout | Cause::IdleTimeout | Cause::RetransmitLimit if self.touched.by_server => Ok(()),
            cause => Err(format!("it was complete and ended by {cause:?}")),
        }
    }

    fn judge_incomplete(&self, cause: Cause) -> Result<(), String> {
        let server = self.server_plans();
        let any = |is: &dyn Fn(Fate) -> bool| server.iter().any(|server| is(server.fate));
        let is_explained = match cause {
            Cause::ActiveRst | Cause::PassiveRst => self.is_aborted() || self.touched.by_server,
            // An orderly end must never come before the last byte; a host may lose what it has acknowledged.
            Cause::ActiveClose | Cause::PassiveClose => {
                self.client.is_complete && matches!(self.sessions, [server] if server.is_unread)
            }
            Cause::NoServer => self.may_lack_a_server(),
            Cause::NoPort => usize::from(self.scenario.local_ports) < self.scenario.connections.len(),
            Cause::ServerRefused => {
                self.touched.by_server && any(&|fate| matches!(fate, Fate::Refuses | Fate::Restarts { .. }))
            }
            // The RST of an abort was lost, or came with a number ahead of lost data, which is no proof: it passed, its
            // receiver believed it, and here only silence shows the end (DECISIONS.md 9).
            Cause::IdleTimeout | Cause::HalfCloseTimeout if self.is_aborted() && self.touched.any_frame() => true,
            Cause::IdleTimeout | Cause::HalfCloseTimeout if self.reads_in_silence() => true,
            _ => self.may_have_timed_out(cause),
        };
        match is_explained {
            true => Ok(()),
            false => Err(format!("it ended by {cause:?} incomplete, which nothing explains")),
        }
    }

    /// An end takes longer to read what it has got than both may be silent.
    fn reads_in_silence(&self) -> bool {
        let silence = |end: &EndPlan, bytes: u32, buffer: usize| {
            let kept = (bytes as usize + self.scenario.banner().len()).min(buffer);
            Duration::from_millis(kept.div_ceil(end.chunk.max(1)) as u64 * end.pause_ms)
        };
        let ends = [
            silence(&self.plan.client, self.plan.to_client, self.plan.client_buffers.0),
            silence(&self.plan.server, self.plan.to_server, usize::MAX),
        ];
        ends.iter().any(|silence| silence.as_secs() >= IDLE_SECONDS)
    }

    /// Time may have run out: a peer was gone, or so much was lost of this connection that nothing came in time.
    fn may_have_timed_out(&self, cause: Cause) -> bool {
        let (client, server, by_server) = (self.touched.client, self.touched.server, self.touched.by_server);
        match cause {
            Cause::ServerTimeout => by_server || server.lost >= LOST_IN_A_CALL,
            // SYNs that were lost have backed the client's timer off to a minute before it sends its first byte.
            // A header that lacks a part when the time is over is a bad one.
            Cause::SelectorTimeout => client.lost >= self.lost_in_a_request(),
            Cause::BadProxyHeader => client.lost >= LOST_IN_A_MINUTE,
            Cause::IdleTimeout | Cause::HalfCloseTimeout if self.touched.lost_lately >= LOST_IN_SILENCE => true,
            Cause::RetransmitLimit | Cause::IdleTimeout | Cause::HalfCloseTimeout => by_server,
            // The server's SYN-ACK and its repetitions were lost, or the server went away behind the first.
            Cause::HandshakeTimeout => by_server || client.lost + server.lost >= LOST_IN_A_MINUTE,
            _ => false,
        }
    }

    /// So many frames are lost at least before `select` is over, less the time that the client takes to write what the selector
    /// wants to see.
    fn lost_in_a_request(&self) -> usize {
        let left = Duration::from_secs(SELECT_SECONDS).saturating_sub(self.plan.writes_for());
        let enough = |lost: &usize| Duration::from_secs((1 << lost) - 1) >= left;
        (0..LOST_IN_A_MINUTE).find(enough).unwrap_or(LOST_IN_A_MINUTE)
    }

    /// The records but for the last, if that is of a copy of the SYN: the client was refused, and its RST answers the SYN-ACK.
    fn without_a_late_copy<'b>(&self, records: &'b [&'a SessionRecord]) -> &'b [&'a SessionRecord] {
        match records {
            [others @ .., copy]
                if copy.cause(Side::Client) == Cause::ActiveRst
                    && copy.bytes_to_server() + copy.bytes_to_client() == 0
                    && copy.start() + copy.duration() >= self.client.ended
                    && self.touched.client.disordered > 0
                    && others
                        .iter()
                        .any(|other| other.start() + other.duration() <= self.client.ended) =>
            {
                others
            }
            all => all,
        }
    }

    /// The client's timer has doubled while no server was heard (RFC 6298 5.5): a repetition that is lost is a minute then.
    fn may_repeat_too_late(&self, record: &SessionRecord) -> bool {
        let called_again = self.scenario.binding == Binding::Syn && record.servers_tried() > 1;
        let has_waited = called_again || record.flags().contains(RecordFlags::COPY_GIVEN_UP);
        let (server, by_server) = (self.touched.server, self.touched.by_server);
        has_waited && (by_server || server.lost >= LOST_IN_A_MINUTE) && self.touched.client.lost > 0
    }

    fn server_plans(&self) -> Vec<crate::scenario::ServerPlan> {
        match self.plan.choice {
            Choice::Server(n) => vec![self.scenario.servers[usize::from(n)]],
            Choice::Pool | Choice::Reject => self.scenario.servers.to_vec(),
        }
    }
}

/// Both ends were silent until a timer of the engine was over.
fn is_silence(cause: Cause) -> bool {
    matches!(cause, Cause::IdleTimeout | Cause::HalfCloseTimeout)
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
