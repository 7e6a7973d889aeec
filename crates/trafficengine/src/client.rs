//! The client role: starts connections, sends requests, checks responses, closes.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use arrayvec::ArrayVec;
use e2d2::BURST;
use e2d2::buffer::BufferPool;
use e2d2::time::Instant;
use e2d2::wire::MacAddr;
use netfcts::{IsnGenerator, TcpCounter};

use crate::endpoints::{AddressRange, Endpoints};
use crate::output::{Output, Sender};
use crate::pace::{Pace, Pacer, Span};
use crate::payload::{Check, Close, Format, RequestId};
use crate::received::{Incoming, octets};
use crate::role::{Role, acknowledge_and_rearm, answer_stray, answer_with_reset, family, take_in};
use crate::stats::{ClientStats, Connections, Failure, Life, record};
use crate::table::Table;
use crate::tcb::{Acknowledge, Marks, NewData, Peer, Segment, State, Tcb, TcpSettings, Ticks};

/// What a client does, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct ClientSettings {
    /// Source addresses, at most one range per IP version.
    pub sources: Vec<AddressRange>,
    /// Source ports of each address.
    pub ports: std::ops::RangeInclusive<u16>,
    /// Where to connect to, in turn.
    pub targets: Vec<SocketAddr>,
    /// Form of requests and responses.
    pub format: Format,
    /// Requests per connection.
    pub rounds: u16,
    /// Bytes of a request.
    pub request: u32,
    /// Bytes of a response.
    pub response: u32,
    /// Who closes.
    pub close: Close,
    /// Selector keys are drawn from `0..keys`.
    pub keys: u16,
    /// The right server for a key is the key modulo this number.
    pub servers: u8,
    /// Whether the bytes of responses are compared, or only counted.
    pub check: bool,
    /// When connections start.
    pub pace: Pace,
    /// When the load begins and ends.
    pub span: Span,
    /// Connections at once at most.
    pub max_open: u32,
    /// `Pace::Drawn`: connections that are not waiting to be drawn, at most.
    pub depth: u32,
    /// How long the peer may do nothing when it is its turn.
    pub idle: Duration,
    /// TCP for IPv4 and for IPv6.
    pub tcp: [TcpSettings; 2],
    /// Key of initial sequence numbers and start of the random choice of keys.
    pub seed: u64,
}

struct Target {
    address: SocketAddr,
    octets: [u8; 16],
    family: usize,
    mac: Option<MacAddr>,
}

/// One of the client's own addresses and ports.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Endpoint {
    family: usize,
    number: u32,
}

/// See the module documentation.
pub(crate) struct Client {
    settings: ClientSettings,
    endpoints: [Option<Endpoints>; 2],
    targets: Vec<Target>,
    next_target: usize,
    table: Table,
    pacer: Pacer,
    isn: IsnGenerator,
    random: u64,
    next_tag: u32,
    /// Established connections that wait to be drawn.
    held: Vec<u32>,
    pub(crate) stats: ClientStats,
}

/// End points of the second family are told by this bit of `Tcb::local`.
const FAMILY_BIT: u32 = 1 << 31;

impl Client {
    pub(crate) fn new(settings: ClientSettings, now: Instant) -> Client {
        let mut endpoints = [None, None];
        for range in &settings.sources {
            endpoints[usize::from(!range.is_ipv4())] = Some(Endpoints::new(*range, &settings.ports));
        }
        let target = |address: &SocketAddr| Target {
            address: *address,
            octets: octets(address.ip()),
            family: family(address.ip()),
            mac: None,
        };
        let mut key = [0; 16];
        key[..8].copy_from_slice(&settings.seed.to_le_bytes());
        Client {
            endpoints,
            targets: settings.targets.iter().map(target).collect(),
            next_target: 0,
            table: Table::new(settings.max_open as usize, now),
            pacer: Pacer::new(settings.pace, settings.span),
            isn: IsnGenerator::new(key),
            random: settings.seed | 1,
            next_tag: 0,
            held: Vec::new(),
            stats: ClientStats::default(),
            settings,
        }
    }

    pub(crate) fn settings(&self) -> &ClientSettings {
        &self.settings
    }

    pub(crate) fn memory(&self) -> usize {
        self.table.memory() + self.endpoints.iter().flatten().map(Endpoints::memory).sum::<usize>()
    }

    pub(crate) fn open(&self) -> u32 {
        self.table.open()
    }

    pub(crate) fn held(&self) -> u32 {
        self.held.len() as u32
    }

    pub(crate) fn is_over(&self, now: Instant) -> bool {
        self.pacer.is_over(now)
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        [self.table.next_deadline(), self.pacer.next_intended()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Addresses to reach, with the place to put the next hop's Ethernet address.
    pub(crate) fn targets_mut(&mut self) -> impl Iterator<Item = (IpAddr, &mut Option<MacAddr>)> {
        self.targets
            .iter_mut()
            .map(|target| (target.address.ip(), &mut target.mac))
    }

    pub(crate) fn is_source(&self, address: IpAddr) -> bool {
        self.settings
            .sources
            .iter()
            .any(|range| range.index_of(address).is_some())
    }

    /// Starts the connections that are due, at most `limit`; returns how many started.
    pub(crate) fn start_due<L: BufferPool>(&mut self, limit: usize, out: &mut Output<'_, L>) -> usize {
        let mut count = 0;
        while count < limit && self.start_next(out) {
            count += 1;
        }
        count
    }

    fn start_next<L: BufferPool>(&mut self, out: &mut Output<'_, L>) -> bool {
        let ticks = out.ticks;
        if self.settings.pace.is_drawn() && self.in_motion() >= self.settings.depth {
            return false;
        }
        let Some(intended) = self.pacer.next_start(ticks.now, self.table.open()) else {
            return false;
        };
        self.stats.max_behind = self.stats.max_behind.max(ticks.now - intended);
        let target = &self.targets[self.next_target];
        let (Some(mac), Some(endpoints)) = (target.mac, &mut self.endpoints[target.family]) else {
            return false;
        };
        if self.table.is_full() {
            return false;
        }
        let Some(endpoint) = endpoints.take() else { return false };
        let local = endpoints.address(endpoint);
        let iss = self.isn.isn(
            ticks.now,
            (&octets(local.0), local.1),
            (&target.octets, target.address.port()),
        );
        let peer = Peer {
            remote: target.octets,
            remote_port: target.address.port(),
            mac,
            local: endpoint | (FAMILY_BIT * target.family as u32),
            local_port: local.1,
        };
        let mut tcb = Tcb::connect(peer, iss, intended, &self.settings.tcp[target.family]);
        tcb.tag = self.next_tag;
        let Some(id) = self.table.insert(tcb) else {
            endpoints.release(endpoint);
            return false;
        };
        endpoints.set_user(endpoint, id);
        self.next_tag = self.next_tag.wrapping_add(1);
        self.next_target = (self.next_target + 1) % self.targets.len();
        self.table.get(id).key = self.draw(u32::from(self.settings.keys)) as u16;
        self.pacer.started();
        self.count_opening();
        self.send(id, Acknowledge::No, false, out);
        true
    }

    /// Connections that are being opened, used or closed.
    fn in_motion(&self) -> u32 {
        self.table.open().saturating_sub(self.held.len() as u32)
    }

    /// xorshift64: any sequence that fills the range serves.
    fn draw(&mut self, below: u32) -> u32 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (((self.random >> 32) * u64::from(below)) >> 32) as u32
    }

    /// Draws held connections at random and has them go on, when all that should be open are; returns how many.
    pub(crate) fn draw_due<L: BufferPool>(&mut self, limit: usize, out: &mut Output<'_, L>) -> usize {
        let Pace::Drawn { open } = self.settings.pace else {
            return 0;
        };
        if !self.pacer.is_over(out.ticks.now) && self.table.open() < open {
            return 0;
        }
        // All are drawn before the first is worked on: they were held for long, and are on their way to the cache meanwhile.
        let mut drawn = ArrayVec::<u32, BURST>::new();
        while drawn.len() < limit.min(BURST) && !self.held.is_empty() && self.in_motion() < self.settings.depth {
            let index = self.draw(self.held.len() as u32) as usize;
            let id = self.held.swap_remove(index);
            self.table.prefetch(id);
            drawn.push(id);
        }
        let mut count = 0;
        for id in drawn {
            let tcb = self.table.get(id);
            // A connection that was reset while it waited is gone.
            if !tcb.marks.contains(Marks::HELD) {
                continue;
            }
            tcb.marks.remove(Marks::HELD);
            // It is asked for now: latencies of a held connection do not count the time it was held.
            tcb.intended = out.ticks.now;
            self.queue_request(id);
            self.send(id, Acknowledge::No, false, out);
            count += 1;
        }
        count
    }

    /// The end point that a segment is for, if its address and port are ours. Who uses it is on its way to the cache.
    #[inline]
    pub(crate) fn find(&self, incoming: &Incoming<'_>) -> Option<Endpoint> {
        let family = family(incoming.dst_addr);
        let endpoints = self.endpoints[family].as_ref()?;
        let number = endpoints.find(incoming.dst_addr, incoming.dst_port)?;
        endpoints.prefetch(number);
        Some(Endpoint { family, number })
    }

    /// Asks the processor for the connection of an end point.
    #[inline]
    pub(crate) fn prefetch(&self, endpoint: Endpoint) {
        if let Some(id) = self.user(endpoint) {
            self.table.prefetch(id);
        }
    }

    fn user(&self, endpoint: Endpoint) -> Option<u32> {
        let endpoints = self.endpoints[endpoint.family].as_ref()?;
        endpoints.user(endpoint.number)
    }

    /// Works on a segment for one of our end points.
    pub(crate) fn receive<L: BufferPool>(
        &mut self,
        endpoint: Endpoint,
        incoming: &Incoming<'_>,
        out: &mut Output<'_, L>,
    ) {
        let remote = octets(incoming.src_addr);
        let user = self.user(endpoint);
        self.stats.traffic.segments_received += 1;
        match user {
            Some(id) if self.table.get(id).remote == remote && self.table.get(id).remote_port == incoming.src_port => {
                self.receive_for(id, incoming, out);
            }
            _ => {
                self.stats.tcp.count(TcpCounter::Unexpected);
                answer_stray(incoming, out);
            }
        }
    }

    fn receive_for<L: BufferPool>(&mut self, id: u32, incoming: &Incoming<'_>, out: &mut Output<'_, L>) {
        let segment = &incoming.segment;
        let tcb = self.table.get(id);
        let (was_opening, tcp) = (tcb.state == State::SynSent, &self.settings.tcp[family_of(tcb)]);
        let counts = (&mut self.stats.tcp, &mut self.stats.traffic);
        let received = take_in(tcb, segment, out.ticks, tcp, true, counts);
        if let Some(seq) = received.answer_reset {
            answer_with_reset(incoming, seq, out);
            return;
        }
        if received.reset {
            self.finish(
                id,
                Err(if was_opening { Failure::Refused } else { Failure::Reset }),
                out.ticks,
            );
            return;
        }
        if received.established {
            self.established(id, out);
        }
        if let Some(data) = received.data
            && let Err(failure) = self.take_response(id, segment, data, out.ticks)
        {
            self.abort(id, failure, out);
            return;
        }
        if self.progress(id, out) {
            return;
        }
        if received.peer_fin && !self.table.get(id).marks.contains(Marks::DONE) {
            self.abort(id, Failure::ClosedEarly, out);
            return;
        }
        // The handshake's acknowledgement has gone out by itself.
        let ack = if received.established {
            Acknowledge::No
        } else {
            received.ack
        };
        self.send(id, ack, received.advanced, out);
        if self.table.get(id).is_closed() {
            self.finish(id, Ok(()), out.ticks);
        }
    }

    fn established<L: BufferPool>(&mut self, id: u32, out: &mut Output<'_, L>) {
        let tcb = self.table.get(id);
        let latency = out.ticks.now - tcb.intended;
        record(&mut self.stats.latencies.connect, latency);
        self.stats.connections.established += 1;
        self.send_ack(id, TcpCounter::SentSynAck2, out);
        let tcb = self.table.get(id);
        tcb.round = 0;
        if self.settings.rounds == 0 {
            return;
        }
        self.ask_next(id);
    }

    /// Queues the next request, or has the connection wait for it to be drawn.
    fn ask_next(&mut self, id: u32) {
        if self.settings.pace.is_drawn() {
            self.table.get(id).marks.insert(Marks::HELD);
            self.held.push(id);
        } else {
            self.queue_request(id);
        }
    }

    fn queue_request(&mut self, id: u32) {
        let len = self.settings.request;
        self.table.get(id).queue_message(len);
    }

    fn take_response(&mut self, id: u32, segment: &Segment<'_>, data: NewData, ticks: Ticks) -> Result<(), Failure> {
        let settings = &self.settings;
        let tcb = self.table.get(id);
        let bytes = &segment.payload[data.from..data.to];
        let is_asked = !tcb.marks.intersects(Marks::DONE | Marks::HELD);
        let offset = u32::try_from(tcb.rx_offset(data.seq)).map_err(|_| Failure::WrongBytes)?;
        if !is_asked || offset + bytes.len() as u32 > settings.response {
            return Err(Failure::WrongBytes);
        }
        if !tcb.marks.contains(Marks::FIRST_BYTE) {
            tcb.marks.insert(Marks::FIRST_BYTE);
            let life = Life {
                intended: tcb.intended,
                first_byte: ticks.now,
            };
            record(&mut self.stats.latencies.first_byte, life.first_byte - life.intended);
            if self.stats.lives.len() < self.stats.lives.capacity() {
                self.stats.lives.push(life);
            }
        }
        if !settings.check {
            return Ok(());
        }
        let server = (tcb.key % u16::from(settings.servers)) as u8;
        match settings
            .format
            .check_response(server, tcb.tag, tcb.round, settings.response, offset, bytes)
        {
            Check::Right => Ok(()),
            Check::WrongServer => Err(Failure::WrongServer),
            Check::WrongBytes => Err(Failure::WrongBytes),
        }
    }

    /// Goes on to the next round or the close when a response is complete. Returns whether the connection is over.
    fn progress<L: BufferPool>(&mut self, id: u32, out: &mut Output<'_, L>) -> bool {
        let (rounds, response, close) = (self.settings.rounds, self.settings.response, self.settings.close);
        let tcb = self.table.get(id);
        if tcb.state != State::Open || tcb.marks.contains(Marks::HELD) {
            return false;
        }
        if !tcb.marks.contains(Marks::DONE) {
            if tcb.round < rounds {
                if tcb.rx_complete() < response || !tcb.may_queue() {
                    return false;
                }
                tcb.next_incoming(response);
            }
            if tcb.round < rounds {
                self.ask_next(id);
                return false;
            }
            tcb.marks.insert(Marks::DONE);
        }
        let closes_first = matches!(close, Close::Client | Close::Both);
        if closes_first || tcb.marks.contains(Marks::PEER_FIN) {
            tcb.queue_fin();
        } else if close == Close::Reset {
            let (mut sender, tcb) = self.sender(id);
            sender.send_reset(tcb, out);
            self.finish(id, Ok(()), out.ticks);
            return true;
        }
        false
    }
}

impl Role for Client {
    fn table(&mut self) -> &mut Table {
        &mut self.table
    }

    fn tally(&mut self) -> (&mut Connections, &mut u32) {
        (&mut self.stats.connections, &mut self.stats.max_open)
    }

    fn sender(&mut self, id: u32) -> (Sender<'_>, &mut Tcb) {
        let tcb = self.table.get(id);
        let sender = Sender {
            local: local_of(&self.endpoints, tcb),
            settings: &self.settings.tcp[family_of(tcb)],
            tcp: &mut self.stats.tcp,
            traffic: &mut self.stats.traffic,
        };
        (sender, tcb)
    }

    fn send<L: BufferPool>(&mut self, id: u32, ack: Acknowledge, advanced: bool, out: &mut Output<'_, L>) {
        let settings = &self.settings;
        let tcb = self.table.get(id);
        let (round, last_round) = (tcb.round, settings.rounds.saturating_sub(1));
        let close = if round >= last_round {
            settings.close
        } else {
            Close::Open
        };
        let request = RequestId {
            key: tcb.key,
            tag: tcb.tag,
            close,
        };
        let mut sender = Sender {
            local: local_of(&self.endpoints, tcb),
            settings: &settings.tcp[family_of(tcb)],
            tcp: &mut self.stats.tcp,
            traffic: &mut self.stats.traffic,
        };
        let sent = sender.send_due(tcb, out, |offset, bytes| {
            settings
                .format
                .fill_request(request, round, settings.request, offset, bytes);
        });
        let table = (&mut self.table, id);
        acknowledge_and_rearm(table, &mut sender, (sent, ack, advanced), settings.idle, out);
    }

    fn remove(&mut self, id: u32, is_complete: bool, ticks: Ticks) {
        let tcb = self.table.get(id);
        if is_complete {
            record(&mut self.stats.latencies.whole, ticks.now - tcb.intended);
        }
        let (family, endpoint) = (family_of(tcb), tcb.local & !FAMILY_BIT);
        self.table.remove(id);
        if let Some(endpoints) = &mut self.endpoints[family] {
            endpoints.release(endpoint);
        }
    }
}

fn family_of(tcb: &Tcb) -> usize {
    (tcb.local / FAMILY_BIT) as usize
}

fn local_of(endpoints: &[Option<Endpoints>; 2], tcb: &Tcb) -> (IpAddr, u16) {
    match &endpoints[family_of(tcb)] {
        Some(endpoints) => endpoints.address(tcb.local & !FAMILY_BIT),
        // A connection is made from an end point only.
        None => (IpAddr::from([0; 4]), 0),
    }
}
