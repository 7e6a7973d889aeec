//! What a program can decide for the engine: the product's extension point.
//!
//! A [`SelectServer`] is called with the first bytes that a client sends and names the server that gets the connection.
//! An [`InspectPayload`] sees all bytes after that, and may change them. How to use both, with their costs and limits:
//! `docs/callbacks.md`.
//!
//! Each core calls its own instance, made by a [`SelectorFactory`] before the core starts, so that an implementation
//! needs no lock and may keep state; nothing is shared unless the program shares it.
//!
//! A callback runs on the packet path: it should not allocate, wait or make system calls. It must not panic; a core whose
//! callback panics ends.
//!
//! The rules of the configuration are such a callback as well: `proxyengine::selectors::RuleSelector`.
//!
//! ```
//! use splice::callbacks::{FirstPayload, Selection, SelectServer};
//! use splice::ids::PoolId;
//!
//! /// Connections whose first byte is `!` go to pool 1, all others to pool 0.
//! fn by_first_byte(payload: &FirstPayload<'_>) -> Selection {
//!     match payload.bytes.first() {
//!         Some(b'!') => Selection::Pool(PoolId(1)),
//!         Some(_) => Selection::Pool(PoolId(0)),
//!         None => Selection::NeedMore,
//!     }
//! }
//!
//! let mut selector = by_first_byte; // a function or closure is a SelectServer
//! # let client = "192.0.2.1:40000".parse().unwrap();
//! # let local = "198.51.100.1:80".parse().unwrap();
//! # let listener = splice::ids::ListenerId(0);
//! let payload = FirstPayload::new(client, local, listener, b"!hello", false);
//! assert_eq!(selector.select(&payload), Selection::Pool(PoolId(1)));
//! ```

mod inspect;

use netfcts::leg::{mapped, unmapped};
use std::net::{IpAddr, SocketAddr};

use crate::base::ids::{CoreId, ListenerId, PoolId, RuleId, ServerId};

pub use inspect::{
    ConnectionInfo, GUARANTEED_GROWTH, InspectPayload, Inspected, InspectedFactory, InspectorFactory, NoRoom, Output,
    Payload, Towards, Verdict, inspected,
};

/// The most bytes of a first payload that are collected for a selection. A selector that wants more has to do without.
pub const MAX_FIRST_PAYLOAD: usize = 16 * 1024;

/// What a client has sent so far, in order and without gaps, before a server is known.
#[derive(Copy, Clone, Debug)]
#[non_exhaustive]
pub struct FirstPayload<'a> {
    /// The client; if the connection began with a PROXY header, the one it named.
    pub client: SocketAddr,
    /// The address and port it connected to, in the same way.
    pub local: SocketAddr,
    /// Who connected to the engine: the client, or the proxy that sent the header.
    pub peer: SocketAddr,
    /// The listener that has them.
    pub listener: ListenerId,
    /// The bytes from the first on, at most [`MAX_FIRST_PAYLOAD`]; never fewer than at the call before.
    pub bytes: &'a [u8],
    /// No more will be waited for: the client has closed its half, the limit is reached, or the listener's `inspect_delay`
    /// is over.
    pub complete: bool,
}

impl<'a> FirstPayload<'a> {
    /// As the engine calls: for programs that test their selectors.
    pub fn new(client: SocketAddr, local: SocketAddr, listener: ListenerId, bytes: &'a [u8], complete: bool) -> Self {
        Self {
            client,
            local,
            peer: client,
            listener,
            bytes,
            complete,
        }
    }

    /// The same from a client for whom `peer` speaks.
    #[must_use]
    pub fn with_peer(self, peer: SocketAddr) -> Self {
        Self { peer, ..self }
    }
}

/// A segment of no connection to a listener, as far as it is known before a payload: a SYN, or the ACK of its cookie.
#[derive(Copy, Clone, Debug)]
#[non_exhaustive]
pub struct Arrival {
    /// Who has sent it; IPv4 in its mapped form.
    peer: u128,
    /// The port that it is for.
    pub local_port: u16,
    /// The listener that has that port.
    pub listener: ListenerId,
    /// What the selector has [looked up](SelectServer::look_ahead) for its sender.
    looked_up: Option<u16>,
    is_syn: bool,
}

impl Arrival {
    /// A SYN, as the engine asks about it: for programs that test their selectors.
    pub fn new(peer: IpAddr, local_port: u16, listener: ListenerId) -> Self {
        Self::of_mapped(mapped(peer), local_port, listener)
    }

    /// The same from an address whose IPv4 is in its mapped form.
    #[inline]
    pub(crate) fn of_mapped(peer: u128, local_port: u16, listener: ListenerId) -> Self {
        Self {
            peer,
            local_port,
            listener,
            looked_up: None,
            is_syn: true,
        }
    }

    /// The same with what the selector has looked up for its sender.
    #[doc(hidden)]
    #[inline]
    #[must_use]
    pub fn with_looked_up(self, looked_up: Option<u16>) -> Self {
        Self { looked_up, ..self }
    }

    /// The same, with whether the segment is a SYN.
    #[inline]
    #[must_use]
    pub(crate) fn with_syn(self, is_syn: bool) -> Self {
        Self { is_syn, ..self }
    }

    /// Whether the segment is a SYN, the first one of an attempt to connect or its retransmission.
    #[doc(hidden)]
    #[inline]
    pub fn is_syn(&self) -> bool {
        self.is_syn
    }

    /// What the selector has looked up for its sender, if it has.
    #[doc(hidden)]
    #[inline]
    pub fn looked_up(&self) -> Option<u16> {
        self.looked_up
    }

    /// Who has sent it. On a listener that takes PROXY headers that may be a proxy.
    pub fn peer(&self) -> IpAddr {
        unmapped(self.peer)
    }

    /// The same; IPv4 in its mapped form.
    #[doc(hidden)]
    #[inline]
    pub fn mapped_peer(&self) -> u128 {
        self.peer
    }
}

/// How somebody is refused who has no connection.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// By a RST.
    Reject,
    /// By silence.
    Drop,
    /// By a connection that takes no byte: a SYN is answered with a window of zero, and so is all that follows. Nothing is
    /// stored, and no frame is larger than what it answers.
    Tarpit,
}

/// A selector's answer.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    /// This server, or none if it cannot be reached.
    Server(ServerId),
    /// A server of this pool by the pool's policy; another one if it cannot be reached.
    Pool(PoolId),
    /// The bytes do not tell yet: they are acknowledged and kept, and the selector is called again with more. When the
    /// payload is [complete](FirstPayload::complete) this means the same as `Reject`, but after `inspect_delay` the
    /// listener's default; and when the listener's `select` time ends before more has come, the client gets RST.
    NeedMore,
    /// No server: the client gets RST.
    Reject,
    /// No server: the connection is forgotten, and what its client still sends is met with silence for a minute.
    Drop,
}

/// Chooses the server of a connection by what its client sends first.
///
/// Called when the first bytes have arrived, and with all bytes so far each time more have after an answer of
/// [`Selection::NeedMore`]. Any other answer is final for the connection; later requests on it stay with the server.
/// Connections are interleaved: state for one of them belongs into a map by `client` and `local`.
pub trait SelectServer: Send + 'static {
    /// Decides about one connection.
    fn select(&mut self, payload: &FirstPayload<'_>) -> Selection;

    /// Says whether a sender may begin a connection. Asked at a SYN, and again at the ACK that follows, as nothing is
    /// stored between them; and about any other segment to a listener that belongs to no connection, but for a RST.
    ///
    /// # Errors
    /// How the sender is refused.
    #[inline(always)]
    fn admit(&mut self, _arrival: &Arrival) -> Result<(), Refusal> {
        Ok(())
    }

    /// The class of a sender, a number of the configuration; asked only where there are classes.
    #[doc(hidden)]
    #[inline]
    fn class(&mut self, _arrival: &Arrival) -> Option<u16> {
        None
    }

    /// The [class](Self::class) of a sender that it [admits](Self::admit).
    ///
    /// # Errors
    /// How the sender is refused.
    #[doc(hidden)]
    #[inline]
    fn admit_to_class(&mut self, arrival: &Arrival) -> Result<Option<u16>, Refusal> {
        self.admit(arrival)?;
        Ok(self.class(arrival))
    }

    /// True if it wants to know who will be [asked about](Self::admit) next.
    #[doc(hidden)]
    #[inline(always)]
    fn looks_ahead(&self) -> bool {
        false
    }

    /// Prefetches what a look-up of this client reads first, before its batch is [looked up](Self::look_ahead); IPv4 in its mapped form.
    #[doc(hidden)]
    #[inline(always)]
    fn prefetch_client(&self, _peer: u128) {}

    /// Looks up the clients of a batch, IPv4 in its mapped form. What it writes behind each it gets again with the client's
    /// [`Arrival`], if that is of the same batch.
    #[doc(hidden)]
    #[inline(always)]
    fn look_ahead<'s>(&mut self, _clients: impl Iterator<Item = (u128, &'s mut Option<u16>)>) {}

    /// The rule of the configuration that made the last answer, of either kind; none if it was the listener's default, or another selector.
    #[doc(hidden)]
    #[inline]
    fn rule(&self) -> Option<RuleId> {
        None
    }

    /// True if an inspector comes with it: only [`Inspected`] says so. The answer never changes.
    #[doc(hidden)]
    #[inline(always)]
    fn inspects(&self) -> bool {
        false
    }

    /// At most `count` contexts will be open at a time.
    #[doc(hidden)]
    fn reserve_contexts(&mut self, _count: usize) {}

    /// Opens the context `index`; false leaves the connection uninspected.
    #[doc(hidden)]
    fn open_context(&mut self, _index: u32, _connection: &ConnectionInfo) -> bool {
        false
    }

    /// Shows bytes to the inspector.
    #[doc(hidden)]
    #[inline(always)]
    fn inspect(&mut self, _index: u32, _payload: &mut Payload<'_>) -> Verdict {
        Verdict::Pass
    }

    /// Ends the context `index`.
    #[doc(hidden)]
    fn close_context(&mut self, _index: u32) {}
}

impl<F> SelectServer for F
where
    F: FnMut(&FirstPayload<'_>) -> Selection + Send + 'static,
{
    fn select(&mut self, payload: &FirstPayload<'_>) -> Selection {
        self(payload)
    }
}

/// Makes the selector of each core.
///
/// Closures are factories: `|core| MySelector::new(core)`, or `|_| by_first_byte` for a function.
pub trait SelectorFactory: Send + Sync + 'static {
    /// What it makes.
    type Selector: SelectServer;

    /// Called once per core before it starts, from any thread.
    fn selector(&self, core: CoreId) -> Self::Selector;
}

impl<F, S> SelectorFactory for F
where
    F: Fn(CoreId) -> S + Send + Sync + 'static,
    S: SelectServer,
{
    type Selector = S;

    fn selector(&self, core: CoreId) -> S {
        self(core)
    }
}
