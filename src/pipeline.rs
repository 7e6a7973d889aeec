//! The operator graph of one core: the only file that wires operators.
//!
//! ```text
//!  port 0 ─► receive ─┐                     ┌─► Tcp ─────► proxy ────┐
//!                     ├─► merge ─► parse ─► group_by                 ├─► merge ─► send ─┬─► port 0
//!  port 1 ─► receive ─┘                     ├─► Control ─► station ──┘                  └─► port 1
//!                                           └─► Other ──► dropped, counted
//! ```
//!
//! `proxy` is [`Proxy`], `station` answers ARP, neighbour discovery and ping ([`neighbour`](crate::neighbour)). Both are
//! nodes: a batch in, any number of frames out. The graph is generic over packet memory and ports, so that the very
//! graph of the engine runs in tests. Whoever owns it steers it through a [`Handle`], on the same core.

use crate::callbacks::SelectServer;
use crate::config::ServerId;
use crate::neighbour::{NextHopId, SharedNeighbours, Station, Verdict};
use crate::proxy::promises::Abilities;
use crate::proxy::{self, NextHops, Proxy};
use e2d2::buffer::{BufferPool, PacketBuffer};
use e2d2::fate::GraphCounters;
use e2d2::operators::{Burst, Frame, Node, Outbox, Round, SharedPort, Source, Task, merge, merge_by_priority, receive};
use e2d2::port::{Port, PortId};
use e2d2::time::Instant;
use e2d2::wire::MacAddr;
use e2d2::wire::frame::{Kind, Packet};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

/// Frames that the proxy may emit in one round: a burst of 32 connections that each send a held request of 16 KiB in
/// segments of 536 bytes.
const PROXY_OUTBOX: usize = 1024;

/// Frames that the station may emit in one round: an answer to each packet of a burst, and its own.
const STATION_OUTBOX: usize = 64;

/// Frames that wait for each port when it refuses more: a quarter of a large descriptor ring.
const BACKLOG: usize = 1024;

/// Connections ended in one round when the engine stops: each may cause two RSTs to either side.
const ENDED_PER_ROUND: usize = PROXY_OUTBOX / 4;

/// Frames that the graph of a core with so many ports can hold between two rounds: its pool must have as many buffers
/// besides those in the ports' queues.
pub const fn frames_held(ports: usize) -> usize {
    PROXY_OUTBOX + STATION_OUTBOX + ports * BACKLOG
}

e2d2::reasons! {
    /// What a packet is to this engine.
    enum Group {
        /// TCP over IPv4 or IPv6.
        Tcp = "tcp",
        /// ARP, ICMP, ICMPv6.
        Control = "control",
        /// Anything else.
        Other = "other",
    }
}

fn group_of<B>(packet: &Packet<B>) -> Group {
    match packet.kind {
        Kind::Tcp(_) => Group::Tcp,
        Kind::Arp | Kind::Icmpv4 { .. } | Kind::Icmpv6 { .. } => Group::Control,
        Kind::Other { .. } => Group::Other,
    }
}

/// A proxy that its core's graph and its core's commands share.
pub type SharedProxy<L, S> = Rc<RefCell<Proxy<L, S, Arc<SharedNeighbours>>>>;

/// Builds the graph of one core over its `ports`. The task goes to the core's scheduler; the handle steers it.
pub fn build<P, L, S>(
    ports: Vec<SharedPort<P>>,
    proxy: Proxy<L, S, Arc<SharedNeighbours>>,
    station: Station,
    counters: Rc<GraphCounters>,
) -> (impl Task + use<P, L, S>, Handle<L, S>)
where
    P: Port + 'static,
    L: BufferPool<Buffer = P::Buffer> + 'static,
    S: SelectServer,
{
    let proxy = Rc::new(RefCell::new(proxy));
    let state = Rc::new(Cell::new(Stage::Running));
    let handle = Handle {
        proxy: Rc::clone(&proxy),
        stage: Rc::clone(&state),
    };
    let groups = merge(ports.iter().map(receive).collect::<Vec<_>>())
        .parse()
        .group_by(group_of);
    let tcp = ProxyNode {
        proxy: Rc::clone(&proxy),
        stage: state,
    };
    let control = StationNode { station, proxy };
    let tcp = groups.group(Group::Tcp).process(tcp, PROXY_OUTBOX);
    let control = groups.group(Group::Control).process(control, STATION_OUTBOX);
    // Asked first, TCP skips the group's queue; the station cannot starve, for `send` pulls without a limit.
    (merge_by_priority((tcp, control)).send(ports, BACKLOG, counters), handle)
}

/// How far the end has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Running,
    Finishing,
    Finished,
}

/// The owner's hold on a running graph. Used between rounds, on the core that runs the graph.
pub struct Handle<L: BufferPool, S> {
    proxy: SharedProxy<L, S>,
    stage: Rc<Cell<Stage>>,
}

impl<L: BufferPool, S: SelectServer> Handle<L, S> {
    /// Takes no new connection from now on.
    pub fn begin_drain(&self) {
        self.proxy.borrow_mut().begin_drain();
    }

    /// Ends what is still open with a RST to both sides, over the next rounds.
    pub fn finish(&self) {
        self.stage.set(Stage::Finishing);
    }

    /// True when everything has been ended.
    pub fn is_finished(&self) -> bool {
        self.stage.get() == Stage::Finished
    }

    /// The next server of which something new is known.
    pub fn take_news(&self, now: Instant) -> Option<(ServerId, Abilities)> {
        self.proxy.borrow_mut().take_news(now)
    }

    /// Looks into the core: counters, usage, memory.
    pub fn look<T>(&self, look: impl FnOnce(&Proxy<L, S, Arc<SharedNeighbours>>) -> T) -> T {
        look(&self.proxy.borrow())
    }
}

impl NextHops for Arc<SharedNeighbours> {
    #[inline]
    fn mac(&self, next_hop: usize) -> Option<MacAddr> {
        let next_hop = NextHopId::from_index(u16::try_from(next_hop).ok()?);
        let mac = SharedNeighbours::mac(self, next_hop);
        if mac.is_none() {
            self.request(next_hop);
        }
        mac
    }
}

struct ProxyNode<L: BufferPool, S> {
    proxy: SharedProxy<L, S>,
    stage: Rc<Cell<Stage>>,
}

impl<L: BufferPool, S: SelectServer> Node for ProxyNode<L, S> {
    type Input = Packet<L::Buffer>;
    type Output = Frame<L::Buffer>;

    fn process(&mut self, round: &mut Round<'_>, batch: &mut Burst<Self::Input>, out: &mut Outbox<Self::Output>) {
        let mut proxy = self.proxy.borrow_mut();
        let now = round.now();
        let mut emitter = Emitter { round, out };
        if !batch.is_empty() {
            proxy.handle_batch(now, batch, &mut emitter);
        }
        if proxy.poll_timers(now, &mut emitter) {
            emitter.round.add_work(1);
        }
        if self.stage.get() == Stage::Finishing {
            emitter.round.add_work(1);
            if proxy.finish(now, ENDED_PER_ROUND, &mut emitter) {
                self.stage.set(Stage::Finished);
            }
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.proxy.borrow().next_deadline()
    }
}

struct Emitter<'a, 'r, B> {
    round: &'a mut Round<'r>,
    out: &'a mut Outbox<Frame<B>>,
}

impl<B> proxy::Outbox<B> for Emitter<'_, '_, B> {
    #[inline]
    fn send(&mut self, port: PortId, buffer: B) {
        self.out.emit(self.round, Frame { buffer, port });
    }
}

struct StationNode<L: BufferPool, S> {
    station: Station,
    proxy: SharedProxy<L, S>,
}

impl<L: BufferPool, S: SelectServer> Node for StationNode<L, S> {
    type Input = Packet<L::Buffer>;
    type Output = Frame<L::Buffer>;

    fn process(&mut self, round: &mut Round<'_>, batch: &mut Burst<Self::Input>, out: &mut Outbox<Self::Output>) {
        let now = round.now();
        for Packet { mut buffer, port, kind } in batch.drain(..) {
            match self.station.handle(now, port, kind, &mut buffer) {
                Verdict::Answer(_) => out.emit(round, Frame { buffer, port }),
                Verdict::Used(_) | Verdict::Dropped(_) => {}
                Verdict::IcmpError | Verdict::NotOurs => {
                    let mut emitter = Emitter { round, out };
                    self.proxy
                        .borrow_mut()
                        .handle_icmp_error(now, Packet { buffer, port, kind }, &mut emitter);
                }
            }
        }
        let proxy = &self.proxy;
        let sent = self.station.poll(now, &mut |port, frame| {
            let Some(mut buffer) = proxy.borrow_mut().pool_mut().take() else {
                return false;
            };
            if buffer.append(frame.len()).is_err() {
                return false;
            }
            buffer.data_mut().copy_from_slice(frame);
            out.emit(round, Frame { buffer, port });
            true
        });
        round.add_work(sent);
    }

    fn next_deadline(&self) -> Option<Instant> {
        Some(self.station.next_deadline())
    }
}
