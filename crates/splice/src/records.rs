//! What a core tells about its connections: the record of each, and the ancestors' counters.

use crate::base::ids::ServerId;
use crate::base::settings::{Records, Settings};
use crate::base::transparent_sources;
use crate::session::connection::Connection;
use crate::session::segment::Segment;
use e2d2::memory::LargeSlice;
use e2d2::time::Instant;
use e2d2::wire::tcp::TcpFlags;
use netfcts::Side;
use netfcts::counters::{TcpCounter, TcpCounters};
use netfcts::legs::Legs;
use netfcts::progress::{Ended, Ends, Micros, Progress};
use netfcts::record::{self, Cause, RecordFlags, State};
use netfcts::ring::RecordSender;

/// Where ended connections go; without a ring, nowhere.
pub type RecordSink = Option<RecordSender>;

/// Records in progress, by slot, and counters.
pub struct Log {
    sink: RecordSink,
    /// The sink gets the records of connections that end.
    is_sent: bool,
    records: LargeSlice<Progress>,
    now: Micros,
    core: u8,
    client: TcpCounters,
    server: TcpCounters,
}

impl Log {
    pub(crate) fn new(sink: RecordSink, settings: &Settings) -> Self {
        Log {
            sink,
            is_sent: settings.records == Records::Sent,
            records: table(settings),
            now: Micros::default(),
            core: settings.core,
            client: TcpCounters::default(),
            server: TcpCounters::default(),
        }
    }

    /// What a core with the settings `before` has to take in, if records begin to be kept or no longer are.
    pub(crate) fn for_change(settings: &Settings, before: &Settings) -> Option<LargeSlice<Progress>> {
        let is_kept = |settings: &Settings| settings.records != Records::Off;
        (is_kept(settings) != is_kept(before)).then(|| table(settings))
    }

    /// Takes a change in, and leaves in it what was there. With another table, connections that are open have no record.
    pub(crate) fn adopt(&mut self, settings: &Settings, change: &mut Option<LargeSlice<Progress>>) {
        self.is_sent = settings.records == Records::Sent;
        if let Some(table) = change {
            std::mem::swap(&mut self.records, table);
        }
    }

    /// Sets the time of what is noted from now on.
    #[inline]
    pub(crate) fn set_now(&mut self, now: Instant) {
        self.now = now.into();
    }

    /// The counters of the client's or the server's side.
    pub fn counters(&self, side: Side) -> &TcpCounters {
        match side {
            Side::Client => &self.client,
            Side::Server => &self.server,
        }
    }

    /// Records lost because the ring was full.
    pub fn records_lost(&self) -> u64 {
        self.sink.as_ref().map_or(0, RecordSender::records_lost)
    }

    pub(crate) fn memory(&self) -> usize {
        size_of_val(&*self.records)
    }

    pub(crate) fn count(&mut self, side: Side, counter: TcpCounter) {
        match side {
            Side::Client => self.client.count(counter),
            Side::Server => self.server.count(counter),
        }
    }

    /// Counts a RST and payload as they come in; the rest is counted where its meaning is known.
    pub(crate) fn count_received(&mut self, from: Side, segment: &Segment) {
        if segment.has(TcpFlags::RST) {
            self.count(from, TcpCounter::RecvRst);
        }
        if segment.payload_len() > 0 {
            self.count(from, TcpCounter::RecvPayload);
        }
    }

    /// Counts a segment of a spliced connection on both sides: `fin` tells whether its FIN is the first or the second.
    pub(crate) fn count_passed(&mut self, from: Side, payload: bool, fin: Option<Fin>, acknowledges_fin: bool) {
        let to = from.peer();
        if payload {
            self.count(to, TcpCounter::SentPayload);
        }
        match fin {
            Some(Fin::First) => {
                self.count(from, TcpCounter::RecvFin);
                self.count(to, TcpCounter::SentFin);
            }
            Some(Fin::Second) => {
                self.count(from, TcpCounter::RecvFinPssv);
                self.count(to, TcpCounter::SentFinPssv);
            }
            None => {}
        }
        if acknowledges_fin {
            self.count(from, TcpCounter::RecvAck4Fin);
            self.count(to, TcpCounter::SentAck4Fin);
        } else if !payload && fin.is_none() {
            self.count(from, TcpCounter::RecvAck);
            self.count(to, TcpCounter::SentAck);
        }
    }

    /// Asks the processor for what is noted of the connection in `slot`.
    #[inline]
    pub(crate) fn prefetch(&self, slot: u32) {
        if let Some(record) = self.records.get(slot as usize) {
            e2d2::prefetch(record);
        }
    }

    /// Begins the record of the connection in `slot`, whose client has completed its handshake.
    pub(crate) fn begin(&mut self, slot: u32) {
        if let Some(record) = self.records.get_mut(slot as usize) {
            record.begin(Side::Client, State::SynSent, self.now);
            record.push_state(Side::Client, State::Established, self.now);
            record.set_flags(RecordFlags::COOKIE);
        }
    }

    /// Begins the record of the connection in `slot`, whose client has sent a SYN.
    pub(crate) fn begin_with_syn(&mut self, slot: u32) {
        if let Some(record) = self.records.get_mut(slot as usize) {
            record.begin(Side::Client, State::SynSent, self.now);
        }
    }

    /// A PROXY header names the client of the connection in `slot`.
    pub(crate) fn proxied(&mut self, slot: u32, client: std::net::IpAddr, port: u16) {
        if let Some(record) = self.record(slot) {
            record.set_proxied_client(client, port);
        }
    }

    /// Whom a PROXY header has named, if the record of the connection in `slot` is kept.
    pub(crate) fn proxied_client(&self, slot: u32) -> Option<u128> {
        self.kept(slot)?.proxied_client()
    }

    /// When the connection in `slot` began, if its record is kept.
    pub(crate) fn start(&self, slot: u32) -> Option<Instant> {
        Some(self.kept(slot)?.start().into())
    }

    /// How many microseconds ago the connection in `slot` began, if its record is kept.
    pub(crate) fn age(&self, slot: u32) -> Option<u64> {
        Some(self.now.since(self.kept(slot)?.start()))
    }

    /// How many microseconds ago a side of the connection in `slot` has entered a state, the last time, if its record is kept and
    /// knows.
    pub(crate) fn micros_since(&self, slot: u32, change: (Side, State)) -> Option<u64> {
        self.kept(slot)?.micros_since(change, self.now)
    }

    /// Notes that the server of the connection in `slot` has answered, and says how many microseconds after its SYN-ACK, if the record is
    /// kept and knows.
    pub(crate) fn answered(&mut self, slot: u32) -> Option<u64> {
        let now = self.now;
        let record = self.record(slot)?;
        let took = record.micros_since((Side::Server, State::Established), now);
        record.push_state(Side::Server, State::Answered, now);
        took
    }

    pub(crate) fn state(&mut self, slot: u32, side: Side, state: State) {
        self.states(slot, [(side, state)]);
    }

    /// Both sides enter states at once.
    pub(crate) fn states<const N: usize>(&mut self, slot: u32, changes: [(Side, State); N]) {
        let now = self.now;
        if let Some(record) = self.record(slot) {
            changes
                .into_iter()
                .for_each(|(side, state)| record.push_state(side, state, now));
        }
    }

    pub(crate) fn flag(&mut self, slot: u32, flag: RecordFlags) {
        if let Some(record) = self.record(slot) {
            record.set_flags(flag);
        }
    }

    /// One more server is called.
    pub(crate) fn called(&mut self, slot: u32) {
        let now = self.now;
        if let Some(record) = self.record(slot) {
            record.note_server();
            record.push_state(Side::Server, State::SynReceived, now);
        }
    }

    /// Hands over the record of `connection`, which used `local_port` towards its server and ends for `cause` as the
    /// client's side sees it; without a leg it names the server that was given up last. It has what was seen of the legs, if they
    /// were watched. A capture of it gets a copy.
    pub(crate) fn end(
        &mut self,
        slot: u32,
        connection: &Connection,
        (end, legs): (EndOf, Option<&Legs>),
        tap: Option<&mut RecordSender>,
    ) {
        let (now, core) = (self.now, self.core);
        let Some(record) = self.records.get_mut(slot as usize).filter(|record| record.is_begun()) else {
            return;
        };
        let ended = || Ended {
            progress: record.clone(),
            ends: ends_of(connection, end, (now, core)),
        };
        let sink = self.sink.as_mut().filter(|_| self.is_sent);
        if legs.is_some() || tap.is_some() {
            send_seen(&ended(), legs, [sink, tap]);
        } else if let Some(sink) = sink {
            // Made in its place.
            sink.send(ended);
        }
        record.clear();
    }

    #[inline]
    fn kept(&self, slot: u32) -> Option<&Progress> {
        self.records.get(slot as usize).filter(|record| record.is_begun())
    }

    /// The record in this place, begun or not: flags that are noted before it begins are overwritten then.
    #[inline]
    fn record(&mut self, slot: u32) -> Option<&mut Progress> {
        self.records.get_mut(slot as usize)
    }
}

/// Sends a connection that was watched or captured.
#[cold]
fn send_seen(ended: &Ended, legs: Option<&Legs>, to: [Option<&mut RecordSender>; 2]) {
    for sink in to.into_iter().flatten() {
        match legs {
            None => sink.send(|| ended.clone()),
            Some(legs) => sink.send_sampled(legs, ended.clone()),
        }
    }
}

/// What the connection knows at its end.
#[inline]
fn ends_of(connection: &Connection, (cause, local_port, given_up, class): EndOf, (at, core): (Micros, u8)) -> Ends {
    let leg = connection.ends.leg;
    let own = |local: &u16| *local < transparent_sources::FIRST;
    let local_address = Some(leg.map_or(0, |leg| leg.local_address)).filter(own);
    Ends {
        at,
        client: connection.ends.client_address(),
        client_port: connection.ends.client_port,
        listener: connection.listener,
        called: (connection.ends.listener_address, connection.ends.listener_port),
        local: (local_address.unwrap_or(record::TRANSPARENT), local_port),
        server: (leg.map(|leg| leg.server).or(given_up)).map_or(record::NO_SERVER, |server| server.0),
        core,
        packets: (connection.packets_from_client, connection.packets_from_server),
        bytes: (connection.bytes_to_server.into(), connection.bytes_to_client.into()),
        cause,
        class: class.unwrap_or(record::NO_CLASS),
    }
}

/// A record in progress for each connection that there can be, if records are kept.
fn table(settings: &Settings) -> LargeSlice<Progress> {
    let count = match settings.records {
        Records::Off => 0,
        Records::Kept | Records::Sent => settings.capacity.connections,
    };
    LargeSlice::of(Progress::NONE, count)
}

/// Why a connection ends, with which port of ours and which server that was given up, and the class of its client.
pub(crate) type EndOf = (Cause, u16, Option<ServerId>, Option<u16>);

/// Which of the two FINs of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fin {
    First,
    Second,
}
