//! The server role: accepts connections, checks requests, sends responses, closes as the request asks.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use e2d2::buffer::BufferPool;
use e2d2::time::Instant;
use e2d2::wire::tcp::TcpFlags;
use netfcts::{IsnGenerator, TcpCounter};

use crate::flows::{FlowTable, flow_hash};
use crate::output::{Output, Sender};
use crate::payload::{Check, Close, Format};
use crate::received::{Incoming, octets};
use crate::role::{Role, acknowledge_and_rearm, answer_stray, answer_with_reset, family, take_in};
use crate::stats::{Connections, Failure, ServerStats};
use crate::table::Table;
use crate::tcb::{Acknowledge, Marks, NewData, Peer, Segment, Tcb, TcpSettings, Ticks};

/// One server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Listener {
    /// Where it listens.
    pub address: SocketAddr,
    /// The number that its responses carry.
    pub id: u8,
}

/// What the servers do, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerSettings {
    /// The servers.
    pub listeners: Vec<Listener>,
    /// Form of requests and responses.
    pub format: Format,
    /// Bytes of a request.
    pub request: u32,
    /// Bytes of a response.
    pub response: u32,
    /// Whether the bytes of requests are compared, or only counted.
    pub check: bool,
    /// A PROXY header of version 2 comes before the first request of a connection, whole in the first segment.
    pub proxy_header: bool,
    /// Connections at once at most.
    pub max_open: u32,
    /// How long the peer may do nothing when it is its turn.
    pub idle: Duration,
    /// TCP for IPv4 and for IPv6.
    pub tcp: [TcpSettings; 2],
    /// Key of initial sequence numbers.
    pub seed: u64,
}

/// The length of the PROXY header of version 2 that `bytes` begin with (proxy-protocol.txt 2.2), if it is whole.
fn header_len(bytes: &[u8]) -> Option<usize> {
    let fixed: &[u8; 16] = bytes.first_chunk()?;
    let length = 16 + usize::from(u16::from_be_bytes([fixed[14], fixed[15]]));
    (fixed.starts_with(b"\r\n\r\n\0\r\nQUIT\n\x21") && length <= bytes.len()).then_some(length)
}

/// A listener and the hash of who sends to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flow {
    listener: u32,
    hash: u32,
}

/// See the module documentation.
pub(crate) struct Server {
    settings: ServerSettings,
    table: Table,
    flows: FlowTable,
    isn: IsnGenerator,
    pub(crate) stats: ServerStats,
}

impl Server {
    pub(crate) fn new(settings: ServerSettings, now: Instant) -> Server {
        let mut key = [1; 16];
        key[..8].copy_from_slice(&settings.seed.to_le_bytes());
        Server {
            table: Table::new(settings.max_open as usize, now),
            flows: FlowTable::new(settings.max_open as usize),
            isn: IsnGenerator::new(key),
            stats: ServerStats::default(),
            settings,
        }
    }

    pub(crate) fn memory(&self) -> usize {
        self.table.memory() + self.flows.memory()
    }

    pub(crate) fn open(&self) -> u32 {
        self.table.open()
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.table.next_deadline()
    }

    pub(crate) fn is_listener(&self, address: IpAddr) -> bool {
        self.settings
            .listeners
            .iter()
            .any(|listener| listener.address.ip() == address)
    }

    /// The flow that a segment is of, if it is for one of the listeners. Its place in the table is on its way to the cache.
    #[inline]
    pub(crate) fn find(&self, incoming: &Incoming<'_>) -> Option<Flow> {
        let to = SocketAddr::new(incoming.dst_addr, incoming.dst_port);
        let mut listeners = self.settings.listeners.iter();
        let listener = listeners.position(|listener| listener.address == to)? as u32;
        let hash = flow_hash(&octets(incoming.src_addr), incoming.src_port, listener);
        self.flows.prefetch(hash);
        Some(Flow { listener, hash })
    }

    /// Asks the processor for the connection of a flow, if there is one.
    #[inline]
    pub(crate) fn prefetch(&self, flow: Flow) {
        if let Some(id) = self.flows.guess(flow.hash) {
            self.table.prefetch(id);
        }
    }

    /// Works on a segment of this flow.
    pub(crate) fn receive<L: BufferPool>(&mut self, flow: Flow, incoming: &Incoming<'_>, out: &mut Output<'_, L>) {
        let (index, hash, remote) = (flow.listener, flow.hash, octets(incoming.src_addr));
        let table = &mut self.table;
        let found = self.flows.find(hash, |id| {
            let tcb = table.get(id);
            tcb.remote_port == incoming.src_port && tcb.local == index && tcb.remote == remote
        });
        self.stats.traffic.segments_received += 1;
        match found {
            Some(id) => self.receive_for(id, incoming, out),
            None if is_opening(&incoming.segment) => self.accept(incoming, remote, index, hash, out),
            None => {
                self.stats.tcp.count(TcpCounter::Unexpected);
                answer_stray(incoming, out);
            }
        }
    }

    fn accept<L: BufferPool>(
        &mut self,
        incoming: &Incoming<'_>,
        remote: [u8; 16],
        index: u32,
        hash: u32,
        out: &mut Output<'_, L>,
    ) {
        let peer = Peer {
            remote,
            remote_port: incoming.src_port,
            mac: incoming.src_mac,
            local: index,
            local_port: incoming.dst_port,
        };
        let local = octets(incoming.dst_addr);
        let iss = self
            .isn
            .isn(out.ticks.now, (&local, incoming.dst_port), (&remote, incoming.src_port));
        let tcp = &self.settings.tcp[family(incoming.dst_addr)];
        let tcb = Tcb::accept(peer, iss, &incoming.segment, out.ticks, tcp);
        self.stats.tcp.count(TcpCounter::RecvSyn);
        let Some(id) = self.table.insert(tcb) else {
            self.stats.no_room += 1;
            return;
        };
        // The flow table is made for as many as the table of connections.
        let has_room = self.flows.insert(hash, id);
        debug_assert!(has_room);
        self.count_opening();
        self.send(id, Acknowledge::No, false, out);
    }

    fn receive_for<L: BufferPool>(&mut self, id: u32, incoming: &Incoming<'_>, out: &mut Output<'_, L>) {
        let segment = &incoming.segment;
        let tcp = &self.settings.tcp[family(incoming.dst_addr)];
        let tcb = self.table.get(id);
        let takes_out_of_order = tcb.marks.contains(Marks::HEAD_KNOWN);
        let counts = (&mut self.stats.tcp, &mut self.stats.traffic);
        let received = take_in(tcb, segment, out.ticks, tcp, takes_out_of_order, counts);
        if let Some(seq) = received.answer_reset {
            answer_with_reset(incoming, seq, out);
            return;
        }
        if received.reset {
            // A client that closes by reset has announced it.
            let ended = if tcb.close() == Close::Reset {
                Ok(())
            } else {
                Err(Failure::Reset)
            };
            self.finish(id, ended, out.ticks);
            return;
        }
        self.stats.connections.established += u64::from(received.established);
        if let Some(data) = received.data
            && let Err(failure) = self.take_request(id, segment, data)
        {
            self.abort(id, failure, out);
            return;
        }
        self.progress(id, out);
        if received.peer_fin {
            self.table.get(id).queue_fin();
        }
        self.send(id, received.ack, received.advanced, out);
        if self.table.get(id).is_closed() {
            self.finish(id, Ok(()), out.ticks);
        }
    }

    fn take_request(&mut self, id: u32, segment: &Segment<'_>, mut data: NewData) -> Result<(), Failure> {
        if self.settings.proxy_header && !self.table.get(id).marks.contains(Marks::HEADER_TAKEN) {
            let length = header_len(&segment.payload[data.from..data.to]).ok_or(Failure::WrongBytes)?;
            let tcb = self.table.get(id);
            tcb.marks.insert(Marks::HEADER_TAKEN);
            tcb.skip_incoming(length as u32);
            data.from += length;
            data.seq += length as u32;
            if data.from == data.to {
                return Ok(());
            }
        }
        let settings = &self.settings;
        let tcb = self.table.get(id);
        let bytes = &segment.payload[data.from..data.to];
        let offset = u32::try_from(tcb.rx_offset(data.seq)).map_err(|_| Failure::WrongBytes)?;
        if offset + bytes.len() as u32 > settings.request || tcb.marks.contains(Marks::FIN_QUEUED) {
            return Err(Failure::WrongBytes);
        }
        if !tcb.marks.contains(Marks::HEAD_KNOWN) {
            // The head is in the first segment: requests are made so, and nothing between us cuts that small.
            let head = settings
                .format
                .parse_request(bytes)
                .filter(|_| offset == 0)
                .ok_or(Failure::WrongBytes)?;
            (tcb.key, tcb.tag) = (head.key, head.tag);
            tcb.marks.insert(Marks::HEAD_KNOWN);
            tcb.set_close(head.close);
        }
        let request = crate::payload::RequestId {
            key: tcb.key,
            tag: tcb.tag,
            close: tcb.close(),
        };
        let is_right = !settings.check
            || settings
                .format
                .check_request(request, tcb.round, settings.request, offset, bytes)
                == Check::Right;
        if is_right { Ok(()) } else { Err(Failure::WrongBytes) }
    }

    /// Queues the response when a request is complete.
    fn progress<L: BufferPool>(&mut self, id: u32, out: &mut Output<'_, L>) {
        let (request, response) = (self.settings.request, self.settings.response);
        let tcb = self.table.get(id);
        let is_complete = tcb.marks.contains(Marks::HEAD_KNOWN) && tcb.rx_complete() >= request;
        if !is_complete || !tcb.may_queue() {
            return;
        }
        tcb.next_incoming(request);
        tcb.marks.remove(Marks::HEAD_KNOWN);
        tcb.queue_message(response);
        match tcb.close() {
            Close::Server => tcb.queue_fin(),
            Close::Both => {
                // In a segment of its own, so that it crosses the client's.
                self.send(id, Acknowledge::No, false, out);
                self.table.get(id).queue_fin();
            }
            Close::Client | Close::Reset | Close::Open => {}
        }
    }
}

impl Role for Server {
    fn table(&mut self) -> &mut Table {
        &mut self.table
    }

    fn tally(&mut self) -> (&mut Connections, &mut u32) {
        (&mut self.stats.connections, &mut self.stats.max_open)
    }

    fn sender(&mut self, id: u32) -> (Sender<'_>, &mut Tcb) {
        let tcb = self.table.get(id);
        let address = self.settings.listeners[tcb.local as usize].address;
        let sender = Sender {
            local: (address.ip(), address.port()),
            settings: &self.settings.tcp[family(address.ip())],
            tcp: &mut self.stats.tcp,
            traffic: &mut self.stats.traffic,
        };
        (sender, tcb)
    }

    fn send<L: BufferPool>(&mut self, id: u32, ack: Acknowledge, advanced: bool, out: &mut Output<'_, L>) {
        let settings = &self.settings;
        let tcb = self.table.get(id);
        let listener = &settings.listeners[tcb.local as usize];
        // The round was counted when its request was complete.
        let (tag, round) = (tcb.tag, tcb.round.wrapping_sub(1));
        let mut sender = Sender {
            local: (listener.address.ip(), listener.address.port()),
            settings: &settings.tcp[family(listener.address.ip())],
            tcp: &mut self.stats.tcp,
            traffic: &mut self.stats.traffic,
        };
        let sent = sender.send_due(tcb, out, |offset, bytes| {
            settings
                .format
                .fill_response(listener.id, tag, round, settings.response, offset, bytes);
        });
        let table = (&mut self.table, id);
        acknowledge_and_rearm(table, &mut sender, (sent, ack, advanced), settings.idle, out);
    }

    fn remove(&mut self, id: u32, _is_complete: bool, _ticks: Ticks) {
        let tcb = self.table.get(id);
        let hash = flow_hash(&tcb.remote, tcb.remote_port, tcb.local);
        self.table.remove(id);
        self.flows.remove(hash, id);
    }
}

fn is_opening(segment: &Segment<'_>) -> bool {
    segment.flags & (TcpFlags::SYN | TcpFlags::ACK | TcpFlags::RST | TcpFlags::FIN) == TcpFlags::SYN
}
