//! What a program sees of a connection's bytes after the server is chosen, and may do with them.
//!
//! An [`InspectPayload`] is called with the bytes of either side in order, each byte once, whatever the network loses,
//! repeats or reorders. It may pass them, change them in place, put others in their place, or end the connection. An
//! engine gets it with its selector: [`inspected`].
//!
//! ```
//! use splice::callbacks::{ConnectionInfo, InspectPayload, Payload, Verdict};
//!
//! /// Takes every carriage return out of what clients send.
//! struct WithoutReturns;
//!
//! impl InspectPayload for WithoutReturns {
//!     type Context = ();
//!
//!     fn open(&mut self, _connection: &ConnectionInfo) -> Option<()> {
//!         Some(())
//!     }
//!
//!     fn inspect(&mut self, _context: &mut (), payload: &mut Payload<'_>) -> Verdict {
//!         if payload.is_to_client() {
//!             return Verdict::Done;
//!         }
//!         let (bytes, output) = payload.replace();
//!         for run in bytes.split(|&byte| byte == b'\r') {
//!             if output.write(run).is_err() {
//!                 return Verdict::Reject;
//!             }
//!         }
//!         Verdict::Replace
//!     }
//! }
//! ```

use std::net::SocketAddr;

use super::{Arrival, FirstPayload, Refusal, SelectServer, Selection, SelectorFactory};
use crate::base::ids::{CoreId, ListenerId, RuleId, ServerId};

/// How many bytes more than it is shown an inspector can write at every call, at least.
pub const GUARANTEED_GROWTH: usize = 8 * 1024;

/// Between whom a connection is.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectionInfo {
    /// The client, as the PROXY header names it that was taken off its stream, if there was one.
    pub client: SocketAddr,
    /// The address and port it connected to, likewise.
    pub local: SocketAddr,
    /// The listener that has them.
    pub listener: ListenerId,
    /// The server that took the connection.
    pub server: ServerId,
    /// Its address and port.
    pub server_address: SocketAddr,
}

impl ConnectionInfo {
    /// As the engine makes it: for programs that test their inspectors.
    pub fn new(
        client: SocketAddr,
        local: SocketAddr,
        listener: ListenerId,
        server: ServerId,
        server_address: SocketAddr,
    ) -> Self {
        Self {
            client,
            local,
            listener,
            server,
            server_address,
        }
    }
}

/// Which way bytes go.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Towards {
    /// The client sent them.
    Server,
    /// The server sent them.
    Client,
}

/// The next bytes of one direction.
#[derive(Debug)]
pub struct Payload<'a> {
    connection: &'a ConnectionInfo,
    towards: Towards,
    offset: u64,
    is_last: bool,
    bytes: &'a mut [u8],
    is_changed: bool,
    output: Output<'a>,
}

impl<'a> Payload<'a> {
    /// As the engine calls: `offset` bytes of the direction have been shown before, and what is written goes into `room`,
    /// which has [`GUARANTEED_GROWTH`] bytes more than `bytes` at least.
    pub fn new(
        connection: &'a ConnectionInfo,
        (towards, offset, is_last): (Towards, u64, bool),
        bytes: &'a mut [u8],
        room: &'a mut [u8],
    ) -> Self {
        Self {
            connection,
            towards,
            offset,
            is_last,
            bytes,
            is_changed: false,
            output: Output { room, len: 0 },
        }
    }

    /// Between whom the connection is.
    pub fn connection(&self) -> &ConnectionInfo {
        self.connection
    }

    /// Where the bytes go.
    pub fn towards(&self) -> Towards {
        self.towards
    }

    /// True for bytes of the server.
    pub fn is_to_client(&self) -> bool {
        self.towards == Towards::Client
    }

    /// How many bytes its sender has sent before these: the number of the first of them, from 0.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// True if no more will come: the sender has closed its direction. Then there may be no bytes at all, and this is the
    /// last chance to write what was kept back.
    pub fn is_last(&self) -> bool {
        self.is_last
    }

    /// The bytes as they came. Where one call ends and the next begins is up to the sender and the network.
    pub fn bytes(&self) -> &[u8] {
        self.bytes
    }

    /// The bytes, to be changed in place: [`Verdict::Pass`] passes them as they are then.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.is_changed = true;
        self.bytes
    }

    /// The bytes, and where to write those that go in their place with [`Verdict::Replace`].
    pub fn replace(&mut self) -> (&[u8], &mut Output<'a>) {
        (self.bytes, &mut self.output)
    }

    /// What has been written so far.
    pub fn written(&self) -> &[u8] {
        self.output.room.get(..self.output.len).unwrap_or_default()
    }

    /// True if [`Payload::bytes_mut`] has been called.
    pub(crate) fn is_changed(&self) -> bool {
        self.is_changed
    }
}

/// Where the bytes go that replace others.
#[derive(Debug)]
pub struct Output<'a> {
    room: &'a mut [u8],
    len: usize,
}

/// There is not enough room for what was to be written; nothing of it was.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{wanted} bytes do not fit the {room} that are left")]
pub struct NoRoom {
    /// The bytes to be written.
    pub wanted: usize,
    /// The bytes that are left.
    pub room: usize,
}

impl Output<'_> {
    /// How many bytes can still be written.
    pub fn room(&self) -> usize {
        self.room.len() - self.len
    }

    /// Writes all of `bytes`.
    ///
    /// # Errors
    /// [`NoRoom`] if they do not fit; none of them is then written.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), NoRoom> {
        let room = self.room();
        let place = self.room.get_mut(self.len..self.len + bytes.len()).ok_or(NoRoom {
            wanted: bytes.len(),
            room,
        })?;
        place.copy_from_slice(bytes);
        self.len += bytes.len();
        Ok(())
    }
}

/// An inspector's answer.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The bytes go on: as they came, or as [`Payload::bytes_mut`] has changed them.
    Pass,
    /// What was written goes on in their place: more, fewer, or none at all. Bytes taken away are acknowledged to their
    /// sender, so an inspector may keep them in its context and write them later.
    Replace,
    /// The connection ends: both sides get RST, and its record says that a callback refused it.
    Reject,
    /// These bytes and all that follow in this direction go on as they come, and are not shown any more. When both
    /// directions are done the connection costs no more than one without an inspector.
    Done,
}

/// Looks at the bytes of connections, and may change them.
///
/// Each core calls its own instance, made by an [`InspectorFactory`]; what belongs to one connection lives in a context.
/// It runs on the packet path: it should not allocate, wait or make system calls, and must not panic.
pub trait InspectPayload: Send + 'static {
    /// What an inspector remembers of one connection.
    type Context: Send + 'static;

    /// A server has taken a connection: called once, before its first bytes go there. `None` leaves the connection
    /// uninspected.
    fn open(&mut self, connection: &ConnectionInfo) -> Option<Self::Context>;

    /// The next bytes of either direction, in order, each byte once.
    fn inspect(&mut self, context: &mut Self::Context, payload: &mut Payload<'_>) -> Verdict;

    /// The connection is over, however it ended, or both directions are done.
    fn close(&mut self, context: Self::Context) {
        drop(context);
    }
}

/// Makes the inspector of each core.
///
/// Closures are factories: `|core| MyInspector::new(core)`.
pub trait InspectorFactory: Send + Sync + 'static {
    /// What it makes.
    type Inspector: InspectPayload;

    /// Called once per core before it starts, from any thread.
    fn inspector(&self, core: CoreId) -> Self::Inspector;
}

impl<F, I> InspectorFactory for F
where
    F: Fn(CoreId) -> I + Send + Sync + 'static,
    I: InspectPayload,
{
    type Inspector = I;

    fn inspector(&self, core: CoreId) -> I {
        self(core)
    }
}

/// A selector and an inspector in one: what an engine with an inspector is started with.
///
/// The engine is compiled for the pair, so that one without an inspector has not even a branch for it.
pub struct Inspected<S, I: InspectPayload> {
    selector: S,
    inspector: I,
    contexts: Vec<Option<I::Context>>,
}

impl<S, I: InspectPayload> Inspected<S, I> {
    /// Lets `selector` choose the server and `inspector` see what follows.
    pub fn new(selector: S, inspector: I) -> Self {
        Self {
            selector,
            inspector,
            contexts: Vec::new(),
        }
    }

    /// The inspector.
    pub fn inspector(&self) -> &I {
        &self.inspector
    }
}

impl<S: SelectServer, I: InspectPayload> SelectServer for Inspected<S, I> {
    fn select(&mut self, payload: &FirstPayload<'_>) -> Selection {
        self.selector.select(payload)
    }

    #[inline(always)]
    fn admit(&mut self, arrival: &Arrival) -> Result<(), Refusal> {
        self.selector.admit(arrival)
    }

    #[inline(always)]
    fn class(&mut self, arrival: &Arrival) -> Option<u16> {
        self.selector.class(arrival)
    }

    #[inline(always)]
    fn admit_to_class(&mut self, arrival: &Arrival) -> Result<Option<u16>, Refusal> {
        self.selector.admit_to_class(arrival)
    }

    #[inline(always)]
    fn looks_ahead(&self) -> bool {
        self.selector.looks_ahead()
    }

    #[inline]
    fn prefetch_client(&self, peer: u128) {
        self.selector.prefetch_client(peer);
    }

    #[inline]
    fn look_ahead<'s>(&mut self, clients: impl Iterator<Item = (u128, &'s mut Option<u16>)>) {
        self.selector.look_ahead(clients);
    }

    fn rule(&self) -> Option<RuleId> {
        self.selector.rule()
    }

    fn inspects(&self) -> bool {
        true
    }

    fn reserve_contexts(&mut self, count: usize) {
        self.contexts.resize_with(count, || None);
    }

    fn open_context(&mut self, index: u32, connection: &ConnectionInfo) -> bool {
        let context = self.inspector.open(connection);
        let is_open = context.is_some();
        if let Some(place) = self.contexts.get_mut(index as usize) {
            *place = context;
        }
        is_open
    }

    #[inline]
    fn inspect(&mut self, index: u32, payload: &mut Payload<'_>) -> Verdict {
        match self.contexts.get_mut(index as usize) {
            Some(Some(context)) => self.inspector.inspect(context, payload),
            _ => Verdict::Pass,
        }
    }

    fn close_context(&mut self, index: u32) {
        if let Some(context) = self.contexts.get_mut(index as usize).and_then(Option::take) {
            self.inspector.close(context);
        }
    }
}

/// Makes pairs of selectors and inspectors; see [`inspected`].
#[derive(Clone, Debug)]
pub struct InspectedFactory<F, G> {
    selectors: F,
    inspectors: G,
}

/// What an engine with an inspector is started with: `Engine::start(config, inspected(selectors, inspectors))`.
pub fn inspected<F: SelectorFactory, G: InspectorFactory>(selectors: F, inspectors: G) -> InspectedFactory<F, G> {
    InspectedFactory { selectors, inspectors }
}

impl<F: SelectorFactory, G: InspectorFactory> SelectorFactory for InspectedFactory<F, G> {
    type Selector = Inspected<F::Selector, G::Inspector>;

    fn selector(&self, core: CoreId) -> Self::Selector {
        Inspected::new(self.selectors.selector(core), self.inspectors.inspector(core))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_takes_what_fits_and_nothing_of_what_does_not() {
        let mut room = [0; 5];
        let mut output = Output {
            room: &mut room,
            len: 0,
        };
        assert_eq!(output.write(b"four"), Ok(()));
        assert_eq!(output.write(b"xy"), Err(NoRoom { wanted: 2, room: 1 }));
        assert_eq!(output.write(b"5"), Ok(()));
        assert_eq!((output.room(), &room), (0, b"four5"));
    }
}
