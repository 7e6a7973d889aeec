//! UDP: every datagram carries its header, every client has its own socket to the server.
//!
//! A session is named by listener, client and target, so that many clients behind one socket of the balancer stay apart,
//! and a client that comes through several of them is one. Replies go to the socket that spoke last. What a server's host
//! says by ICMP, and datagrams without payload, end nothing.

use crate::config::{HeaderMode, Listener, SendHeader};
use crate::context::{Context, Kind, Token};
use crate::metrics::Reason;
use crate::plan::{self, Refusal};
use crate::segments::{Datagram, Sender, Sent};
use crate::session::encode_header;
use crate::sockets;
use crate::sys::{BATCH, RecvBatch};
use crate::timer::Millis;
use proxy_protocol::{Addresses, Command, Header, ParseOptions, Parsed, Transport, spp};
use rustix::event::epoll::EventFlags;
use rustix::fd::OwnedFd;
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// Batches of one listener before others get their turn.
const ROUNDS: usize = 4;

/// Replies of one session before others get their turn: mostly there is one.
const REPLIES: usize = 8;

#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    listener: u32,
    client: SocketAddr,
    /// The client's address is used; or else it is the balancer's, and ours is.
    spoofed: bool,
    /// With dynamic destinations only.
    target: Option<SocketAddr>,
}

struct Session {
    key: Key,
    server: OwnedFd,
    listening: Arc<OwnedFd>,
    /// The socket of the balancer that spoke last, and the address of ours that it spoke to.
    balancer: SocketAddr,
    local: Option<IpAddr>,
    /// Header that replies need.
    reply_prefix: Option<[u8; spp::LEN]>,
    /// Header that the server gets before each datagram.
    prefix: Vec<u8>,
    strip_spp: bool,
    last: Millis,
    idle: std::time::Duration,
}

#[derive(Default)]
struct Slot {
    generation: u32,
    session: Option<Box<Session>>,
}

/// A datagram on its way to a session's server: where its payload lies in the batch.
#[derive(Copy, Clone)]
struct Piece {
    session: u32,
    order: u32,
    slot: u32,
    start: u32,
    length: u32,
}

/// A slot, its generation and when to look at it: for the wheel.
pub type Started = (u32, u32, Millis);

/// The UDP side of a worker.
pub struct Udp {
    workers: usize,
    /// Sessions of all listeners, by the descriptors there are.
    most: usize,
    requests: Option<Box<RecvBatch>>,
    replies: Option<Box<RecvBatch>>,
    /// Session of each filled slot of `replies`.
    reply_sessions: Vec<u32>,
    pieces: Vec<Piece>,
    started: Vec<Started>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    index: HashMap<Key, u32>,
    per_client: HashMap<IpAddr, u32>,
    sender: Sender,
}

impl Udp {
    /// Without sessions and the right to any, and without buffers until [`prepare`](Self::prepare).
    pub fn new(workers: usize) -> Self {
        Udp {
            workers: workers.max(1),
            most: 0,
            requests: None,
            replies: None,
            reply_sessions: Vec::new(),
            pieces: Vec::new(),
            started: Vec::new(),
            slots: Vec::new(),
            free: Vec::new(),
            index: HashMap::new(),
            per_client: HashMap::new(),
            sender: Sender::default(),
        }
    }

    /// Allows so many sessions from now on.
    pub fn limit(&mut self, most: usize) {
        self.most = most;
    }

    /// Makes the buffers: there is a listener.
    pub fn prepare(&mut self) {
        self.requests.get_or_insert_default();
        self.replies.get_or_insert_default();
    }

    /// Takes what came to a listening socket and sends it on. Returns the sessions that began.
    pub fn handle_datagrams(
        &mut self,
        context: &mut Context,
        place: u32,
        listener: &Arc<Listener>,
        fd: &Arc<OwnedFd>,
    ) -> std::vec::Drain<'_, Started> {
        if let Some(mut batch) = self.requests.take() {
            for _ in 0..ROUNDS {
                let count = match batch.receive(fd, 0, BATCH) {
                    Ok(count) => count,
                    // An ICMP error for a reply: it was taken off the socket by being reported.
                    Err(error) if error.kind() != io::ErrorKind::WouldBlock => continue,
                    Err(_) => break,
                };
                for slot in 0..count {
                    self.handle_message(context, place, listener, fd, &batch, slot);
                }
                self.send_requests(context, &batch);
                if count < BATCH {
                    break;
                }
            }
            self.requests = Some(batch);
        }
        self.started.drain(..)
    }

    fn handle_message(
        &mut self,
        context: &mut Context,
        place: u32,
        listener: &Arc<Listener>,
        fd: &Arc<OwnedFd>,
        batch: &RecvBatch,
        slot: usize,
    ) {
        let message = batch.message(slot);
        let Some(from) = message.from else { return };
        let ip = from.ip().to_canonical();
        if listener.allowed.as_ref().is_some_and(|allowed| !allowed.contains(ip)) {
            return context.refuse(Reason::NotAllowed, &listener.name, from, "not in the allow-list");
        }
        if message.truncated {
            return context.refuse(Reason::BadHeader, &listener.name, from, "longer than any datagram");
        }
        let origin = Origin {
            place,
            listener,
            fd,
            from,
            local: message.to,
        };
        let mut start = 0;
        for datagram in message.datagrams() {
            match self.find_session(context, &origin, datagram) {
                Ok((session, payload)) => {
                    let order = self.pieces.len() as u32;
                    let at = start + (datagram.len() - payload) as u32;
                    self.pieces.push(Piece {
                        session,
                        order,
                        slot: slot as u32,
                        start: at,
                        length: payload as u32,
                    });
                }
                Err(refusal) => context.refuse(refusal.reason, &listener.name, from, refusal.detail),
            }
            start += datagram.len() as u32;
        }
    }

    /// The session of a datagram, begun if need be, and the length of the payload.
    fn find_session(
        &mut self,
        context: &mut Context,
        origin: &Origin<'_>,
        datagram: &[u8],
    ) -> Result<(u32, usize), Refusal> {
        let incoming = Incoming::parse(origin, datagram)?;
        let client = incoming
            .client
            .map(|client| SocketAddr::new(client.ip().to_canonical(), client.port()));
        let key = Key {
            listener: origin.place,
            client: client.unwrap_or(origin.from),
            spoofed: client.is_some(),
            target: origin.listener.dynamic.as_ref().and(incoming.destination),
        };
        let slot = match self.index.get(&key) {
            Some(&slot) => {
                // What is allowed is asked for each datagram: its TLVs are its own, and rules change with a reload.
                if !origin.listener.rules.is_empty() {
                    let spoken = incoming.as_header();
                    plan::decide(origin.listener, &context.surroundings, origin.from, spoken.as_ref())?;
                }
                slot
            }
            None => self.start_session(context, origin, &incoming, key)?,
        };
        if let Some(session) = self.slots[slot as usize].session.as_deref_mut() {
            session.balancer = origin.from;
            session.local = origin.local;
            session.reply_prefix = incoming.spp;
            session.last = context.now;
        }
        Ok((slot, incoming.payload))
    }

    fn start_session(
        &mut self,
        context: &mut Context,
        origin: &Origin<'_>,
        incoming: &Incoming<'_>,
        key: Key,
    ) -> Result<u32, Refusal> {
        let listener = origin.listener;
        let of_client = self.per_client.get(&key.client.ip()).copied().unwrap_or(0) as usize;
        let full = self.index.len() >= self.most || self.index.len() * self.workers >= listener.max_sessions;
        if full || of_client * self.workers >= listener.max_sessions_per_client {
            return Err(Refusal::new(
                Reason::SessionLimit,
                format!("{} sessions, {of_client} of this client", self.index.len()),
            ));
        }
        let spoken = incoming.as_header();
        let plan = plan::decide(listener, &context.surroundings, origin.from, spoken.as_ref())?;
        let connecting = sockets::connect(listener, &context.surroundings, &plan).map_err(|failed| {
            Refusal::new(
                failed.reason,
                format!("{} to {}: {}", key.client, plan.target, failed.error),
            )
        })?;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() as u32 - 1
        });
        let generation = self.slots[slot as usize].generation;
        let token = Token {
            kind: Kind::Replies,
            slot,
            generation,
        };
        if let Err(error) = context.watch(&connecting.fd, token, EventFlags::IN) {
            self.free.push(slot);
            return Err(Refusal::new(Reason::NoResources, error.to_string()));
        }
        let idle = listener.udp_idle();
        self.slots[slot as usize].session = Some(Box::new(Session {
            key,
            server: connecting.fd,
            listening: Arc::clone(origin.fd),
            balancer: origin.from,
            local: origin.local,
            reply_prefix: None,
            prefix: prefix(listener.send, origin, incoming),
            strip_spp: listener.send == SendHeader::Spp,
            last: context.now,
            idle,
        }));
        self.index.insert(key, slot);
        *self.per_client.entry(key.client.ip()).or_default() += 1;
        self.started.push((slot, generation, context.now.after(idle)));
        context.counters.sessions_started.add(1);
        context.counters.sessions.add(1);
        if plan.source.is_none() {
            context.counters.unspoofed.add(1);
        }
        log::debug!(
            "{}: {}: session of {} to {}",
            listener.name,
            origin.from,
            key.client,
            plan.target
        );
        Ok(slot)
    }

    /// Sends the pieces of a batch, session by session, in the order in which they came.
    fn send_requests(&mut self, context: &mut Context, batch: &RecvBatch) {
        self.pieces.sort_unstable_by_key(|piece| (piece.session, piece.order));
        let mut datagrams = [Datagram::default(); BATCH];
        for group in self.pieces.chunk_by(|one, other| one.session == other.session) {
            let session = self.slots[group[0].session as usize].session.as_deref();
            let Some(session) = session else { continue };
            for chunk in group.chunks(BATCH) {
                for (datagram, piece) in datagrams.iter_mut().zip(chunk) {
                    let payload = batch.bytes(piece.slot as usize, piece.start as usize, piece.length as usize);
                    *datagram = Datagram {
                        to: None,
                        from: None,
                        prefix: &session.prefix,
                        payload,
                    };
                }
                let Sent {
                    sent,
                    failed,
                    stale_errors,
                } = self.sender.send(&session.server, &datagrams[..chunk.len()]);
                context.counters.datagrams_to_server.add(sent);
                context.counters.refused[Reason::SendFailed as usize].add(failed);
                context.counters.server_errors.add(stale_errors);
            }
        }
        self.pieces.clear();
    }

    /// Takes what a server answered; [`flush`](Self::flush) sends it.
    pub fn handle_replies(&mut self, context: &mut Context, token: Token) {
        if self.reply_sessions.len() == BATCH {
            self.flush(context);
        }
        let (Some(batch), Some(place)) = (&mut self.replies, self.slots.get_mut(token.slot as usize)) else {
            return;
        };
        let Some(session) = place
            .session
            .as_deref_mut()
            .filter(|_| place.generation == token.generation)
        else {
            return;
        };
        let first = self.reply_sessions.len();
        match batch.receive(&session.server, first, REPLIES) {
            Ok(count) => {
                session.last = context.now;
                self.reply_sessions.extend(std::iter::repeat_n(token.slot, count));
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // The server's port is closed, for now: the client's next datagram tries again.
            Err(_) => context.counters.server_errors.add(1),
        }
    }

    /// Sends the replies that were collected.
    pub fn flush(&mut self, context: &mut Context) {
        if self.reply_sessions.is_empty() {
            return;
        }
        let Some(batch) = &self.replies else { return };
        let mut datagrams = [Datagram::default(); BATCH];
        let mut count = 0;
        let mut through: Option<&Arc<OwnedFd>> = None;
        let mut total = Sent::default();
        let mut send = |sender: &mut Sender, through: Option<&Arc<OwnedFd>>, datagrams: &[Datagram<'_>]| {
            if let Some(fd) = through {
                let sent = sender.send(fd, datagrams);
                total.sent += sent.sent;
                total.failed += sent.failed;
            }
        };
        for (slot, &session) in self.reply_sessions.iter().enumerate() {
            let Some(session) = self.slots[session as usize].session.as_deref() else {
                continue;
            };
            if through.is_none_or(|through| !Arc::ptr_eq(through, &session.listening)) {
                send(&mut self.sender, through, &datagrams[..count]);
                (through, count) = (Some(&session.listening), 0);
            }
            for payload in batch.message(slot).datagrams() {
                if count == BATCH {
                    send(&mut self.sender, through, &datagrams[..count]);
                    count = 0;
                }
                let stripped = if session.strip_spp {
                    spp::Header::parse(payload).map(|(_, payload)| payload)
                } else {
                    None
                };
                datagrams[count] = Datagram {
                    to: Some(session.balancer),
                    from: session.local,
                    prefix: session.reply_prefix.as_ref().map_or(&[], |prefix| &prefix[..]),
                    payload: stripped.unwrap_or(payload),
                };
                count += 1;
            }
        }
        send(&mut self.sender, through, &datagrams[..count]);
        context.counters.datagrams_to_client.add(total.sent);
        context.counters.refused[Reason::SendFailed as usize].add(total.failed);
        self.reply_sessions.clear();
    }

    /// When to look at a session again; ends it if it was idle for long enough.
    pub fn expire(&mut self, context: &mut Context, slot: u32, generation: u32) -> Option<Millis> {
        let place = self
            .slots
            .get(slot as usize)
            .filter(|place| place.generation == generation)?;
        let session = place.session.as_deref()?;
        let deadline = session.last.after(session.idle);
        if deadline > context.now {
            return Some(deadline);
        }
        self.end(context, slot);
        None
    }

    /// Ends the sessions of a listener that is no more.
    pub fn forget_listener(&mut self, context: &mut Context, place: u32) {
        for slot in 0..self.slots.len() as u32 {
            let session = self.slots[slot as usize].session.as_deref();
            if session.is_some_and(|session| session.key.listener == place) {
                self.end(context, slot);
            }
        }
    }

    /// Sends what is collected and ends all sessions.
    pub fn close_all(&mut self, context: &mut Context) {
        self.flush(context);
        for slot in 0..self.slots.len() as u32 {
            self.end(context, slot);
        }
    }

    fn end(&mut self, context: &mut Context, slot: u32) {
        // Replies that are collected name their session by slot.
        self.flush(context);
        let place = &mut self.slots[slot as usize];
        let Some(session) = place.session.take() else { return };
        place.generation = (place.generation + 1) & 0xff_ffff;
        self.free.push(slot);
        self.index.remove(&session.key);
        let client = session.key.client.ip();
        if let Some(count) = self.per_client.get_mut(&client) {
            *count -= 1;
            if *count == 0 {
                self.per_client.remove(&client);
            }
        }
        context.counters.sessions.sub(1);
    }
}

/// Where a datagram came from.
struct Origin<'a> {
    place: u32,
    listener: &'a Arc<Listener>,
    fd: &'a Arc<OwnedFd>,
    from: SocketAddr,
    local: Option<IpAddr>,
}

/// A datagram's header, of whichever form.
struct Incoming<'a> {
    header: Option<Header<'a>>,
    spp: Option<[u8; spp::LEN]>,
    client: Option<SocketAddr>,
    destination: Option<SocketAddr>,
    /// Length of what follows the header.
    payload: usize,
}

impl<'a> Incoming<'a> {
    /// Each datagram is parsed on its own (specification of 2026/04): nothing is remembered from earlier ones.
    fn parse(origin: &Origin<'_>, datagram: &'a [u8]) -> Result<Self, Refusal> {
        let bad = |detail: String| Refusal::new(Reason::BadHeader, detail);
        if origin.listener.header == HeaderMode::Off {
            let client = Some(origin.from);
            return Ok(Incoming {
                header: None,
                spp: None,
                client,
                destination: None,
                payload: datagram.len(),
            });
        }
        if let Some((header, payload)) = spp::Header::parse(datagram) {
            return Ok(Incoming {
                header: None,
                spp: Some(header.encode()),
                client: Some(header.client),
                destination: Some(header.proxy),
                payload: payload.len(),
            });
        }
        if !datagram.starts_with(&proxy_protocol::V2_SIGNATURE) {
            let start = datagram[..datagram.len().min(24)].escape_ascii();
            return Err(bad(format!(
                "neither version 2 nor the Simple Proxy Protocol; it begins with \"{start}\""
            )));
        }
        let options = ParseOptions {
            max_len: origin.listener.header_limit,
            verify_checksum: origin.listener.verify_checksum,
        };
        match options.parse(datagram) {
            Ok(Parsed::Complete { header, length }) => {
                let stream = header.command == Command::Proxy && header.transport == Transport::Stream;
                if stream {
                    return Err(Refusal::new(Reason::WrongTransport, "header of a stream in a datagram"));
                }
                Ok(Incoming {
                    client: header.source(),
                    destination: header.destination(),
                    header: Some(header),
                    spp: None,
                    payload: datagram.len() - length,
                })
            }
            Ok(Parsed::Incomplete { needed }) => {
                Err(bad(format!("the datagram ends {needed} bytes before its header")))
            }
            Err(error) => Err(bad(error.to_string())),
        }
    }

    /// As a version 2 header, for decisions; `None` if the peer is the client.
    fn as_header(&self) -> Option<Header<'a>> {
        match (self.header, self.spp, self.client, self.destination) {
            (Some(header), ..) => Some(header),
            (None, Some(_), Some(client), Some(proxy)) => {
                Some(Header::proxy(Transport::Datagram, Addresses::from_pair(client, proxy)))
            }
            _ => None,
        }
    }
}

/// What the server gets before each datagram.
fn prefix(form: SendHeader, origin: &Origin<'_>, incoming: &Incoming<'_>) -> Vec<u8> {
    if form == SendHeader::Off {
        return Vec::new();
    }
    let bound = || {
        rustix::net::getsockname(origin.fd)
            .ok()
            .and_then(|local| SocketAddr::try_from(local).ok())
    };
    let local = bound().map(|local| SocketAddr::new(origin.local.unwrap_or(local.ip()), local.port()));
    let client = incoming.client.unwrap_or(origin.from);
    let destination = incoming.destination.or(local).unwrap_or(origin.from);
    if form == SendHeader::Spp {
        return spp::Header {
            client,
            proxy: destination,
        }
        .encode()
        .to_vec();
    }
    let own = Header::proxy(Transport::Datagram, Addresses::from_pair(client, destination));
    encode_header(form, &incoming.header.unwrap_or(own))
}
