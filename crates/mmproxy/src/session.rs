//! A TCP connection through the proxy: header, connecting, relaying.
//!
//! ```text
//! accept ─► Header ─► Connecting ─► Relaying ─► closed
//!              │           │            └ both directions ended, reset by either side, idle
//!              │           └ refused, no answer in time
//!              └ bad, late, not allowed
//! ```

use crate::access;
use crate::config::{HeaderMode, Listener, SendHeader};
use crate::context::{Context, Kind, Token};
use crate::metrics::Reason;
use crate::plan::{self, Plan, Refusal};
use crate::relay::{self, AtEnd, Direction, Endpoint, Outcome};
use crate::sockets;
use crate::timer::Millis;
use proxy_protocol::{Addresses, Command, Error, Header, ParseOptions, Parsed, Transport, Version};
use rustix::event::epoll::{self, EventFlags};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use std::net::SocketAddr;
use std::sync::Arc;

/// Which of a session's two sockets.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Side {
    /// Towards the balancer and the client.
    Client,
    /// Towards the server.
    Server,
}

/// What becomes of a session after it did what it could.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// It waits for an event or its deadline.
    Wait,
    /// It has more to do, after others.
    Again,
    /// It is over; drop it.
    Close,
}

#[derive(Debug)]
enum Phase {
    /// Waiting for the header, of which so much is here.
    Header(Vec<u8>),
    Connecting,
    Relaying,
}

/// A TCP connection through the proxy.
#[derive(Debug)]
pub struct Session {
    listener: Arc<Listener>,
    peer: SocketAddr,
    phase: Phase,
    slot: u32,
    generation: u32,
    client: Endpoint,
    client_watched: bool,
    server: Option<Endpoint>,
    to_server: Direction,
    to_client: Direction,
    /// When the current phase ends by itself.
    deadline: Option<Millis>,
    /// When the first of the wheel's entries will look at the deadline.
    pub(crate) armed: Option<Millis>,
    /// What the worker has booked for it.
    pub(crate) booked: Booked,
}

/// What a session holds, for the worker's limits.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Booked {
    /// Descriptors, without pipes.
    pub descriptors: usize,
    /// Bytes of memory for a header that is not whole.
    pub header: usize,
    /// 1 if its header is not whole, and it will take a descriptor more when it is.
    pub awaiting: usize,
}

impl Session {
    /// A session for a connection that was just accepted.
    pub fn new(
        listener: Arc<Listener>,
        peer: SocketAddr,
        fd: OwnedFd,
        slot: u32,
        generation: u32,
        now: Millis,
    ) -> Self {
        let deadline = Some(now.after(listener.header_timeout));
        Session {
            listener,
            peer,
            phase: Phase::Header(Vec::new()),
            slot,
            generation,
            client: Endpoint::new(fd),
            client_watched: false,
            server: None,
            to_server: Direction::default(),
            to_client: Direction::default(),
            deadline,
            armed: None,
            booked: Booked::default(),
        }
    }

    /// What it holds now.
    pub fn holds(&self) -> Booked {
        Booked {
            descriptors: 1 + usize::from(self.server.is_some()),
            header: match &self.phase {
                Phase::Header(received) => received.capacity(),
                Phase::Connecting | Phase::Relaying => 0,
            },
            awaiting: usize::from(self.awaits_header()),
        }
    }

    /// Whether its header is not whole yet.
    pub fn awaits_header(&self) -> bool {
        matches!(self.phase, Phase::Header(_))
    }

    /// Others need the descriptor, and this one has not said who it is for.
    pub fn crowd_out(&mut self, context: &mut Context) -> Step {
        self.refuse_peer(
            context,
            Reason::HeaderCrowded,
            "descriptors or memory are needed for others",
        );
        Step::Close
    }

    /// When the session wants to be looked at again, come what may.
    pub fn deadline(&self) -> Option<Millis> {
        self.deadline
    }

    /// Whether events of this generation are for this session.
    pub fn is_generation(&self, generation: u32) -> bool {
        self.generation == generation
    }

    /// Notes what the kernel says of one of the sockets.
    pub fn note(&mut self, side: Side, flags: EventFlags) {
        let endpoint = match (side, &mut self.server) {
            (Side::Client, _) => &mut self.client,
            (Side::Server, Some(server)) => server,
            (Side::Server, None) => return,
        };
        let broken = flags.intersects(EventFlags::ERR | EventFlags::HUP);
        endpoint.readable |= broken || flags.intersects(EventFlags::IN | EventFlags::RDHUP);
        endpoint.writable |= broken || flags.contains(EventFlags::OUT);
        endpoint.ended |= broken || flags.contains(EventFlags::RDHUP);
    }

    /// Does all that can be done now.
    pub fn advance(&mut self, context: &mut Context) -> Step {
        loop {
            let next = match self.phase {
                Phase::Header(_) => self.receive_header(context),
                Phase::Connecting => self.finish_connecting(context),
                Phase::Relaying => return self.relay(context),
            };
            match next {
                Next::Continue => {}
                Next::Wait => return self.wait(context),
                Next::Close => return Step::Close,
            }
        }
    }

    /// The deadline has passed.
    pub fn expire(&mut self, context: &mut Context) -> Step {
        match &self.phase {
            Phase::Header(received) if received.is_empty() && self.listener.header == HeaderMode::Optional => {
                // A client that waits for the server to speak: there will be no header.
                match self.start(context, None, &[]) {
                    Next::Close => Step::Close,
                    Next::Wait | Next::Continue => self.advance(context),
                }
            }
            Phase::Header(received) => {
                let detail = format!("{} bytes in {:?}", received.len(), self.listener.header_timeout);
                self.refuse_peer(context, Reason::HeaderTimeout, detail);
                Step::Close
            }
            Phase::Connecting => {
                self.refuse(
                    context,
                    Reason::ConnectTimeout,
                    "no answer from the target; does `mmproxy check` find the routes?",
                );
                relay::reset_on_close(&self.client.fd);
                Step::Close
            }
            Phase::Relaying => {
                context.counters.refuse(Reason::Idle);
                log::debug!("{}: {}: idle", self.listener.name, self.peer);
                Step::Close
            }
        }
    }

    /// Counts what was relayed and gives back what was borrowed. Call it once, before dropping the session.
    pub fn close(&mut self, context: &mut Context) {
        self.to_server.abandon(&mut context.pool);
        self.to_client.abandon(&mut context.pool);
        if matches!(self.phase, Phase::Relaying) {
            let (up, down) = (self.to_server.bytes, self.to_client.bytes);
            log::debug!(
                "{}: {}: closed, {up} bytes to the server, {down} to the client",
                self.listener.name,
                self.peer
            );
        }
    }

    fn refuse(&self, context: &mut Context, reason: Reason, detail: impl std::fmt::Display) {
        context.refuse(reason, &self.listener.name, self.peer, detail);
    }

    /// A refusal that counts against the peer.
    fn refuse_peer(&self, context: &mut Context, reason: Reason, detail: impl std::fmt::Display) {
        context.failures.add(self.peer.ip(), context.now);
        self.refuse(context, reason, detail);
    }

    /// Makes sure that the kernel will report what the session waits for.
    fn wait(&mut self, context: &mut Context) -> Step {
        match self.watch(context) {
            Ok(()) => Step::Wait,
            Err(error) => {
                self.refuse(context, Reason::NoResources, error);
                Step::Close
            }
        }
    }

    fn token(&self, kind: Kind) -> Token {
        Token {
            kind,
            slot: self.slot,
            generation: self.generation,
        }
    }

    fn watch(&mut self, context: &Context) -> std::io::Result<()> {
        let base = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
        if !self.client_watched {
            self.client_watched = true;
            context.watch(&self.client.fd, self.token(Kind::Client), base)?;
        }
        let tokens = [self.token(Kind::Client), self.token(Kind::Server)];
        for (endpoint, token) in [Some(&mut self.client), self.server.as_mut()]
            .into_iter()
            .flatten()
            .zip(tokens)
        {
            if !endpoint.writable && !endpoint.watches_room {
                endpoint.watches_room = true;
                epoll::modify(&context.epoll, &endpoint.fd, token.pack(), base | EventFlags::OUT)?;
            }
        }
        Ok(())
    }

    fn receive_header(&mut self, context: &mut Context) -> Next {
        if !self.expects_header() {
            return self.start(context, None, &[]);
        }
        while self.client.readable {
            let scratch = &mut context.pool.scratch[..relay::FRUGAL_READ];
            match rustix::net::recv(&self.client.fd, &mut *scratch, RecvFlags::empty()) {
                Ok((0, _)) => return self.header_end(context),
                Ok((count, _)) => {
                    if count < relay::FRUGAL_READ && !self.client.ended {
                        self.client.readable = false;
                    }
                    let scratch = std::mem::take(&mut context.pool.scratch);
                    let next = self.handle_bytes(context, &scratch[..count]);
                    context.pool.scratch = scratch;
                    if !matches!(next, Next::Wait) {
                        return next;
                    }
                }
                Err(Errno::AGAIN) => self.client.readable = false,
                Err(Errno::INTR) => {}
                Err(_) => return self.header_end(context),
            }
        }
        Next::Wait
    }

    /// With an optional header, what untrusted peers send is never looked at.
    fn expects_header(&self) -> bool {
        match self.listener.header {
            HeaderMode::Required => true,
            HeaderMode::Off => false,
            HeaderMode::Optional => self
                .listener
                .allowed
                .as_ref()
                .is_none_or(|allowed| allowed.contains(self.peer.ip())),
        }
    }

    /// The peer left before its header was whole. Health checks that only connect do that, and are no news.
    fn header_end(&mut self, context: &mut Context) -> Next {
        match &self.phase {
            Phase::Header(received) if !received.is_empty() => {
                let detail = format!("closed after {} bytes", received.len());
                self.refuse_peer(context, Reason::HeaderEnd, detail);
            }
            _ => context.counters.refuse(Reason::HeaderEnd),
        }
        Next::Close
    }

    fn handle_bytes(&mut self, context: &mut Context, bytes: &[u8]) -> Next {
        let Phase::Header(received) = &mut self.phase else {
            return Next::Continue;
        };
        let mut received = std::mem::take(received);
        let options = ParseOptions {
            max_len: self.listener.header_limit,
            verify_checksum: self.listener.verify_checksum,
        };
        let all = if received.is_empty() {
            bytes
        } else {
            // To the byte: it is counted, and shall not be twice what was sent.
            received.reserve_exact(bytes.len());
            received.extend_from_slice(bytes);
            &received
        };
        match options.parse(all) {
            Ok(Parsed::Complete { header, length }) => self.start(context, Some(&header), &all[length..]),
            Ok(Parsed::Incomplete { .. }) => {
                let all = if received.is_empty() { bytes.to_vec() } else { received };
                self.phase = Phase::Header(all);
                Next::Wait
            }
            Err(Error::NoHeader) if self.listener.header == HeaderMode::Optional => self.start(context, None, all),
            Err(reason) => {
                let start = all[..all.len().min(24)].escape_ascii();
                self.refuse_peer(
                    context,
                    Reason::BadHeader,
                    format_args!("{reason}; it begins with \"{start}\""),
                );
                Next::Close
            }
        }
    }

    /// The client is known: connect, and write what came after the header.
    fn start(&mut self, context: &mut Context, header: Option<&Header<'_>>, payload: &[u8]) -> Next {
        let plan = match plan::decide(&self.listener, &context.surroundings, self.peer, header) {
            Ok(plan) => plan,
            Err(Refusal { reason, detail }) => {
                // The header is a good one: it is no failure of the balancer's, which has other clients.
                self.refuse(context, reason, detail);
                return Next::Close;
            }
        };
        self.phase = Phase::Connecting;
        match sockets::connect(&self.listener, &context.surroundings, &plan) {
            Ok(connecting) => {
                self.server = Some(Endpoint {
                    nodelay_is_due: true,
                    ..Endpoint::new(connecting.fd)
                });
                if connecting.port_changed {
                    context.counters.port_changed.add(1);
                }
            }
            Err(failed) => {
                let detail = describe_failure(&plan, &failed.error);
                self.refuse(context, failed.reason, detail);
                relay::reset_on_close(&self.client.fd);
                return Next::Close;
            }
        }
        if plan.source.is_none() {
            context.counters.unspoofed.add(1);
        }
        self.announce(&plan, header);
        let mut pending = self.server_header(header);
        pending.extend_from_slice(payload);
        self.first_write(context, pending)
    }

    fn announce(&self, plan: &Plan, header: Option<&Header<'_>>) {
        if log::log_enabled!(log::Level::Debug) {
            let client = plan
                .source
                .map_or_else(|| "an address of this host".to_owned(), |source| source.to_string());
            let tlvs = header
                .map(|header| access::describe_tlvs(header.tlvs))
                .unwrap_or_default();
            log::debug!(
                "{}: {}: {client} to {}{tlvs}",
                self.listener.name,
                self.peer,
                plan.target
            );
        }
    }

    /// The header for the server, if it gets one.
    fn server_header(&self, header: Option<&Header<'_>>) -> Vec<u8> {
        if self.listener.send == SendHeader::Off {
            return Vec::new();
        }
        let local = || {
            rustix::net::getsockname(&self.client.fd)
                .ok()
                .and_then(|local| SocketAddr::try_from(local).ok())
        };
        let own = match (header, local()) {
            (Some(header), _) => *header,
            (None, Some(local)) => Header::proxy(Transport::Stream, Addresses::from_pair(self.peer, local)),
            (None, None) => Header::local(),
        };
        encode_header(self.listener.send, &own)
    }

    /// Writes at once: on the same host the connection usually stands by now. What is not taken stays pending.
    fn first_write(&mut self, context: &mut Context, pending: Vec<u8>) -> Next {
        let Some(server) = &mut self.server else {
            return Next::Close;
        };
        let sent = if pending.is_empty() {
            Err(Errno::AGAIN)
        } else {
            rustix::net::send(&server.fd, &pending, SendFlags::NOSIGNAL)
        };
        let established = match sent {
            Ok(count) => {
                server.writable = count == pending.len();
                context.counters.bytes_to_server.add(count as u64);
                self.to_server = Direction::with_pending(pending, count);
                true
            }
            // ENOTCONN: a socket that is still connecting, where EAGAIN is not given.
            Err(Errno::AGAIN | Errno::NOTCONN | Errno::INTR) => {
                server.writable = false;
                self.to_server = Direction::with_pending(pending, 0);
                false
            }
            Err(error) => return self.connect_failed(context, error),
        };
        let mut events = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
        if !server.writable {
            server.watches_room = true;
            events |= EventFlags::OUT;
        }
        server.readable = false;
        let token = Token {
            kind: Kind::Server,
            slot: self.slot,
            generation: self.generation,
        };
        if let Err(error) = context.watch(&server.fd, token, events) {
            self.refuse(context, Reason::NoResources, error);
            return Next::Close;
        }
        if established {
            self.established(context);
        } else {
            self.deadline = Some(context.now.after(self.listener.connect_timeout));
        }
        Next::Continue
    }

    fn finish_connecting(&mut self, context: &mut Context) -> Next {
        let Some(server) = &mut self.server else {
            return Next::Close;
        };
        if self.client.ended && self.client.readable && !server.writable {
            // The client may have gone; if it only closed its sending side, the server still gets what it sent.
            if rustix::net::sockopt::socket_error(&self.client.fd).is_ok_and(|error| error.is_err()) {
                return Next::Close;
            }
        }
        if !server.writable {
            return Next::Wait;
        }
        match rustix::net::sockopt::socket_error(&server.fd) {
            Ok(Ok(())) => {
                self.established(context);
                Next::Continue
            }
            Ok(Err(error)) | Err(error) => self.connect_failed(context, error),
        }
    }

    fn established(&mut self, context: &mut Context) {
        context.counters.connected.add(1);
        self.phase = Phase::Relaying;
        self.deadline = self.listener.idle_timeout.map(|idle| context.now.after(idle));
    }

    fn connect_failed(&mut self, context: &mut Context, error: Errno) -> Next {
        self.refuse(context, Reason::ConnectFailed, std::io::Error::from(error));
        relay::reset_on_close(&self.client.fd);
        Next::Close
    }

    fn relay(&mut self, context: &mut Context) -> Step {
        let Some(server) = &mut self.server else {
            return Step::Close;
        };
        let pool = &mut context.pool;
        let before = (self.to_server.bytes, self.to_client.bytes);
        let up = self
            .to_server
            .pump(&mut self.client, server, pool, other_end(&self.to_client), context.now);
        let down = self
            .to_client
            .pump(server, &mut self.client, pool, other_end(&self.to_server), context.now);
        context.counters.bytes_to_server.add(self.to_server.bytes - before.0);
        context.counters.bytes_to_client.add(self.to_client.bytes - before.1);
        context.counters.spliced.add(std::mem::take(&mut pool.spliced));
        if let Some(idle) = self.listener.idle_timeout {
            self.deadline = Some(context.now.after(idle));
        }
        match (up, down) {
            // A reset passes through, so that neither side takes the other's end for an orderly one.
            (Outcome::SourceFailed(_), _) => {
                relay::reset_on_close(&server.fd);
                Step::Close
            }
            (_, Outcome::SourceFailed(_)) => {
                relay::reset_on_close(&self.client.fd);
                Step::Close
            }
            // Nobody reads the server's data any more.
            (_, Outcome::TargetFailed(_)) => {
                relay::reset_on_close(&server.fd);
                Step::Close
            }
            _ if self.to_server.is_finished() && self.to_client.is_finished() => Step::Close,
            (Outcome::Again, _) | (_, Outcome::Again) => match self.wait(context) {
                Step::Wait => Step::Again,
                step => step,
            },
            _ => self.wait(context),
        }
    }
}

/// What a direction does at its end, by the state of the other one.
fn other_end(other: &Direction) -> AtEnd {
    if other.is_finished() {
        AtEnd::Leave
    } else {
        AtEnd::Shutdown
    }
}

/// What the phases of a session say to its loop.
enum Next {
    Continue,
    Wait,
    Close,
}

/// `header` in the form the server gets. The parts that the form cannot say are left out.
pub fn encode_header(form: SendHeader, header: &Header<'_>) -> Vec<u8> {
    let header = match form {
        SendHeader::Off | SendHeader::Spp => return Vec::new(),
        SendHeader::V2 => Header {
            version: Version::V2,
            ..*header
        },
        SendHeader::V1 => {
            let says_addresses = header.command == Command::Proxy && header.addresses.as_pair().is_some();
            Header::v1(if says_addresses {
                header.addresses
            } else {
                Addresses::Unspecified
            })
        }
    };
    let mut out = vec![0; header.encoded_len()];
    match header.encode(&mut out) {
        Ok(_) => out,
        Err(_) => Vec::new(),
    }
}

/// What failed, and for the usual mistake how to mend it.
fn describe_failure(plan: &Plan, error: &std::io::Error) -> String {
    let hint = match error.raw_os_error() {
        Some(libc::EPERM) => {
            "; spoofing needs CAP_NET_ADMIN: run as root, with systemd's AmbientCapabilities=CAP_NET_ADMIN, or after \
             `setcap cap_net_admin,cap_net_bind_service+ep mmproxy`"
        }
        Some(libc::ENETUNREACH) => "; is the route missing? try `mmproxy check`",
        _ => "",
    };
    match plan.source {
        Some(source) => format!("{source} to {}: {error}{hint}", plan.target),
        None => format!("to {}: {error}{hint}", plan.target),
    }
}
