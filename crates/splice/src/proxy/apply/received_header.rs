//! The PROXY header at the start of a client's stream, and the client's own address as a source towards servers.

use super::ActionContext;
use crate::base::callbacks::SelectServer;
use crate::base::drop_reason::DropReason;
use crate::base::ids::ServerId;
use crate::base::output::{NextHops, Output};
use crate::base::settings::{AcceptProxy, Bind};
use crate::base::transparent_sources;
use crate::proxy::Rooms;
use crate::proxy_header::received_headers::{self, HeaderParse, ReceivedHeader};
use crate::reassembly::EvictionClass;
use crate::session::connection::Connection;
use crate::session::event::Event;
use crate::session::numbers;
use crate::session::state::ClientSide;
use e2d2::buffer::BufferPool;
use netfcts::FourTuple;
use netfcts::leg::unmapped;
use std::net::SocketAddr;
use std::ops::ControlFlow;

impl<P: BufferPool, S: SelectServer, N: NextHops> Rooms<P, S, N> {
    /// Looks for the PROXY header in what the client has sent, and takes it off. Goes on when the bytes that are held
    /// begin with payload; otherwise nothing else may look at them, and the next event, if any, is given.
    pub(crate) fn read_header(
        &mut self,
        slot: u32,
        connection: &mut Connection,
        context: &mut ActionContext<P::Buffer>,
        out: &mut impl Output<P::Buffer>,
    ) -> ControlFlow<Option<Event>> {
        if !self.headers.received.is_awaited(slot) {
            return ControlFlow::Continue(());
        }
        let Some(client) = connection.state.client() else {
            return ControlFlow::Break(None);
        };
        let Some(listener) = self.settings.listeners.get(usize::from(connection.listener)) else {
            return ControlFlow::Break(None);
        };
        let peer = unmapped(connection.ends.client_address());
        let trusted = self.settings.trusts(connection.listener, peer);
        let bytes = self.reassembly.in_order(client.held);
        let length = match received_headers::look(listener.accept, trusted, bytes, is_complete(client, bytes.len())) {
            HeaderParse::Absent => {
                self.headers.received.settle(slot);
                return ControlFlow::Continue(());
            }
            HeaderParse::Incomplete => return ControlFlow::Break((!bytes.is_empty()).then_some(Event::NeedMore)),
            HeaderParse::Refused(reason) => {
                self.emit.dropped(reason);
                return ControlFlow::Break(Some(Event::BadHeader));
            }
            HeaderParse::Whole(header, length) => {
                match ReceivedHeader::of(&header, self.settings.passes_fields_on()) {
                    None => self.headers.received.settle(slot),
                    Some(said) => {
                        let (address, port) = said.source;
                        if !self.headers.received.keep(slot, said) {
                            // Nothing has been acknowledged: the client repeats what it has sent.
                            self.emit.dropped(DropReason::ReassemblyFull);
                            return ControlFlow::Break(None);
                        }
                        self.records.proxied(slot, unmapped(address), port);
                    }
                }
                length
            }
        };
        let inspect_delay = listener
            .inspect_delay
            .filter(|_| listener.accept == AcceptProxy::Required);
        self.strip(connection, length);
        self.charge_client(slot, connection);
        if let Some(delay) = inspect_delay {
            // The wait for the first payload begins behind a header that has to come.
            self.timers.arm(slot, self.now + delay);
        }
        self.follow_header(connection, context, out)
    }

    /// Cuts the header off: the client's stream begins behind it from now on.
    fn strip(&mut self, connection: &mut Connection, length: usize) {
        let Some(client) = connection.state.client_mut() else {
            return;
        };
        self.reassembly.strip(&mut client.held, length);
        client.irs += length as u32;
        client.last_ack_sent = client.last_ack_sent.later(client.first_byte());
        client.set_fin(client.fin_offset().map(|offset| offset.saturating_sub(length)));
        if client.acknowledged_len() == 0 {
            // Only the header is: the client repeats what came behind it.
            self.reassembly.set_claim(client.held, EvictionClass::Unacked);
        }
    }

    /// What came behind the header takes its place in the share of the client that the header has named. Where that is used
    /// up it is forgotten: nothing of it has been acknowledged, and the client repeats it.
    fn charge_client(&mut self, slot: u32, connection: &mut Connection) {
        let share = self.share_of(slot, connection);
        let Some(client) = connection.state.client_mut() else {
            return;
        };
        if self.reassembly.charge(&mut client.held, share).is_err() {
            client.set_fin(None);
            self.emit.dropped(DropReason::ReassemblyQuota);
        }
    }

    /// What to do about a header when it has been taken off: it is acknowledged at once, unless payload came with it, whose
    /// ACK will cover it.
    fn follow_header(
        &mut self,
        connection: &mut Connection,
        context: &mut ActionContext<P::Buffer>,
        out: &mut impl Output<P::Buffer>,
    ) -> ControlFlow<Option<Event>> {
        let Some(client) = connection.state.client().copied() else {
            return ControlFlow::Break(None);
        };
        if !self.reassembly.in_order(client.held).is_empty() {
            return ControlFlow::Continue(());
        }
        if client.fin_offset() == Some(0) && context.incoming.is_some() {
            // A health check: it wants to know that we are there, and nothing else.
            return ControlFlow::Break(Some(Event::ClientFin));
        }
        self.acknowledge_held(connection, context, out);
        ControlFlow::Continue(())
    }

    /// The time for the client's first bytes is over while they have not been judged.
    pub(crate) fn header_overdue(&mut self, slot: u32, connection: &Connection) -> Option<Event> {
        let listener = *self.settings.listeners.get(usize::from(connection.listener))?;
        let client = connection.state.client()?;
        let waits_in_vain = listener.bind == Bind::Payload && listener.inspect_delay.is_none();
        // proxy-protocol.txt 2.2: neither no header, where one has to come, nor a part of one leads on; nor may bytes behind
        // a gap, in which there may be one.
        let bytes = self.reassembly.in_order(client.held);
        let begins_with_gap = bytes.is_empty()
            && (self.reassembly.runs(client.held).next().is_some()
                || client.fin_offset().is_some_and(|offset| offset > 0));
        if listener.accept == AcceptProxy::Required
            || received_headers::may_begin(bytes)
            || begins_with_gap && !waits_in_vain
        {
            self.emit.dropped(DropReason::HeaderMissing);
            return Some(Event::BadHeader);
        }
        // A client that stays silent has no header: the server is to speak first.
        match (listener.bind, listener.inspect_delay) {
            (Bind::Payload, None) => Some(Event::SelectTimeout),
            (Bind::Payload, Some(_)) => {
                self.headers.received.settle(slot);
                Some(Event::WaitOver)
            }
            (Bind::Handshake | Bind::Syn, _) => {
                self.headers.received.settle(slot);
                Some(Event::HeaderDone)
            }
        }
    }

    /// Whom the connection is from, as its PROXY header says, or as it came.
    pub(crate) fn source_of(&self, slot: u32, connection: &Connection) -> (u128, u16) {
        let own = (connection.ends.client_address(), connection.ends.client_port);
        self.headers.received.get(slot).map_or(own, |carried| carried.source)
    }

    /// The same as a value of the standard library.
    pub(crate) fn client_of(&self, slot: u32, connection: &Connection) -> SocketAddr {
        let (address, port) = self.source_of(slot, connection);
        SocketAddr::new(unmapped(address), port)
    }

    /// What it connected to, likewise.
    pub(crate) fn destination_of(&self, slot: u32, connection: &Connection) -> SocketAddr {
        let listener = self.settings.addresses.value(connection.ends.listener_address);
        let own = (listener, connection.ends.listener_port);
        let carried = self.headers.received.get(slot);
        let (address, port) = carried.map_or(own, |carried| carried.destination);
        SocketAddr::new(unmapped(address), port)
    }

    /// The flow to a transparent server: from the client's own address and port.
    pub(crate) fn client_source(&self, slot: u32, connection: &Connection, server: ServerId) -> Option<FourTuple> {
        let server = self.settings.servers.get(usize::from(server.0))?;
        let key = FourTuple::new((server.address, server.port), self.source_of(slot, connection));
        server.transparent.then_some(key)
    }

    /// Takes the client's own address and port as our source towards a server.
    ///
    /// # Errors
    /// Why this server cannot be reached from there.
    pub(crate) fn reserve_client_source(
        &mut self,
        slot: u32,
        connection: &Connection,
        server: u128,
        is_taken: bool,
    ) -> Result<(u16, u16), DropReason> {
        let source = self.source_of(slot, connection);
        let is_ours = self.settings.addresses.index(source.0).is_some();
        if is_ours || source.0 == server || source.1 == 0 || !is_usable(source.0, server) {
            return Err(DropReason::SourceRefused);
        }
        if is_taken {
            return Err(DropReason::SourceInUse);
        }
        if self.headers.received.get(slot).is_none() {
            return Ok((transparent_sources::CLIENT, source.1));
        }
        let entry = self.transparent_sources.take(source);
        entry.ok_or(DropReason::TableFull)
    }
}

/// No more bytes can come.
fn is_complete(client: &ClientSide, in_order: usize) -> bool {
    client.fin_offset() == Some(in_order) || numbers::room_as_window(client, in_order) == 0
}

/// A source must be a host's address, or a header could name one whose answers go astray, and of the server's family.
fn is_usable(source: u128, server: u128) -> bool {
    match (unmapped(source), unmapped(server)) {
        (std::net::IpAddr::V4(ip), std::net::IpAddr::V4(_)) => {
            !(ip.is_unspecified() || ip.is_loopback() || ip.is_multicast() || ip.is_broadcast() || ip.octets()[0] == 0)
        }
        (std::net::IpAddr::V6(ip), std::net::IpAddr::V6(_)) => {
            !(ip.is_unspecified() || ip.is_loopback() || ip.is_multicast() || ip.is_unicast_link_local())
        }
        _ => false,
    }
}
