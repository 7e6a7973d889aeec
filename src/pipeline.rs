//! The operator graph of one core: the only file that wires operators.
//!
//! ```text
//!  port 0 ─► receive ─┐                     ┌─► Tcp ─────► proxy ────┐
//!                     ├─► merge ─► parse ─► group_by                 ├─► merge ─► send ─┬─► port 0
//!  port 1 ─► receive ─┘                     ├─► Control ─► station ──┘                  └─► port 1
//!                                           └─► Other ──► dropped, counted
//! ```
//!
//! With several cores `proxy` has a ring to and from each other core, for packets that came in where their owner is not
//! ([`splice::steering`]); what it takes over it deals with before its own batch.
//!
//! With a kernel behind a port ([`kernel`](crate::kernel)), Other is part of Control, the station's node asks first whose
//! a frame is, the proxy passes on what is nobody's connection, and what the kernel sends comes out of the station's node.
//!
//! `proxy` is [`Proxy`], `station` answers ARP, neighbour discovery and ping ([`neighbour`](crate::neighbour)). Both are
//! nodes: a batch in, any number of frames out. The graph is generic over packet memory and ports, so that the very
//! graph of the engine runs in tests. Whoever owns it steers it through a [`Handle`], on the same core.

use crate::checks::CheckLine;
use crate::commands::CommandEnd;
use crate::kernel::{FRAMES_PER_POLL, KernelEnd, Share};
use crate::neighbour::{NextHopId, SharedNeighbours, Station, StationChange, Verdict};
use crate::stages::{Off, Stages};
use e2d2::BURST;
use e2d2::buffer::{BufferPool, PacketBuffer};
use e2d2::fate::{GraphCounters, Traffic};
use e2d2::handover::{Incoming, Links, Outgoing};
use e2d2::operators::{Burst, Frame, Node, Outbox, Round, SharedPort, Source, Task, merge, merge_by_priority, receive};
use e2d2::port::{Port, PortId};
use e2d2::time::Instant;
use e2d2::wire::MacAddr;
use e2d2::wire::frame::{Kind, Packet};
use splice::callbacks::SelectServer;
use splice::checks::{CheckId, CheckOrder};
use splice::round_budget::KEPT_FOR_CONTROL;
use splice::{Change, NextHops, Proxy};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

/// Frames that the proxy may emit in one round: a burst of 32 connections that each send a held request of 16 KiB in
/// segments of 536 bytes, and what is kept for all else.
const PROXY_OUTBOX: usize = 1024 + KEPT_FOR_CONTROL;

/// Frames that the station may emit in one round: an answer to each packet of a burst, its own, and the kernel's.
const STATION_OUTBOX: usize = 64 + FRAMES_PER_POLL;

/// Frames that wait for each port when it refuses more: a quarter of a large descriptor ring.
const BACKLOG: usize = 1024;

/// Packets that can wait on the way from one core to another: what a port's descriptors hold that no core has looked at for
/// a while. They are some 40 bytes each.
pub const HANDOVER_RING: usize = 1024;

/// Frames that the graph of a core with so many ports can hold between two rounds: its pool must have as many buffers
/// besides those in the ports' queues.
pub const fn frames_held(ports: usize) -> usize {
    PROXY_OUTBOX + STATION_OUTBOX + ports * (BURST + BACKLOG)
}

e2d2::reasons! {
    /// What a packet is to this engine.
    enum Group {
        /// TCP over IPv4 or IPv6.
        Tcp = "tcp",
        /// ARP, ICMP, ICMPv6.
        Control = "control",
        /// Anything else: the kernel's, if there is one.
        Other = "other",
    }
}

#[inline]
fn group_of<B>(packet: &Packet<B>, has_kernel: bool) -> Group {
    match packet.kind {
        Kind::Tcp(_) => Group::Tcp,
        Kind::Arp | Kind::Icmpv4 { .. } | Kind::Icmpv6 { .. } => Group::Control,
        Kind::Other { .. } if has_kernel => Group::Control,
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
    build_linked(ports, proxy, station, counters, Beside::default(), Off)
}

/// The ends of the rings that a core holds.
pub type CoreLinks<B> = Links<Packet<B>>;

/// What a core has to do with beside its ports.
pub struct Beside<B> {
    /// The other cores, where there are several.
    pub links: Option<CoreLinks<B>>,
    /// The kernel behind some port; it is there exactly if the proxy's settings leave something to it.
    pub kernel: Option<KernelEnd>,
    /// Who asks what it does, and orders things.
    pub commands: Option<CommandEnd>,
    /// Who makes checks with content.
    pub checks: Option<CheckLine>,
}

impl<B> Default for Beside<B> {
    fn default() -> Self {
        Self {
            links: None,
            kernel: None,
            commands: None,
            checks: None,
        }
    }
}

/// The same with all that a core may have beside its ports.
pub fn build_linked<P, L, S, T>(
    ports: Vec<SharedPort<P>>,
    proxy: Proxy<L, S, Arc<SharedNeighbours>>,
    station: Station,
    counters: Rc<GraphCounters>,
    beside: Beside<P::Buffer>,
    stages: T,
) -> (impl Task + use<P, L, S, T>, Handle<L, S>)
where
    P: Port + 'static,
    L: BufferPool<Buffer = P::Buffer> + 'static,
    S: SelectServer,
    T: Stages,
{
    let proxy = Rc::new(RefCell::new(proxy));
    let state = Rc::new(Cell::new(Stage::Running));
    let Beside {
        links,
        kernel,
        commands,
        checks,
    } = beside;
    let has_kernel = kernel.is_some();
    let (incoming, outgoing) = links.map_or((None, None), |links| (Some(links.incoming), Some(links.outgoing)));
    let ways = Rc::new(Ways {
        incoming: RefCell::new(incoming),
        outgoing: RefCell::new(outgoing),
        kernel: kernel.map(RefCell::new),
        commands: commands.map(RefCell::new),
        checks: checks.map(RefCell::new),
    });
    let station = Rc::new(RefCell::new(station));
    let handle = Handle {
        proxy: Rc::clone(&proxy),
        station: Rc::clone(&station),
        stage: Rc::clone(&state),
        ways: Rc::clone(&ways),
    };
    let groups = merge(ports.iter().map(receive).collect::<Vec<_>>())
        .parse()
        .group_by(move |packet| group_of(packet, has_kernel));
    let tcp = ProxyNode {
        hold: Handle {
            proxy: Rc::clone(&proxy),
            station: Rc::clone(&station),
            stage: state,
            ways: Rc::clone(&ways),
        },
        stages: stages.clone(),
    };
    let control = StationNode {
        station,
        proxy,
        ways,
        stages,
    };
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
    station: Rc<RefCell<Station>>,
    stage: Rc<Cell<Stage>>,
    ways: Rc<Ways<L::Buffer>>,
}

impl<L: BufferPool, S: SelectServer> Handle<L, S> {
    /// Packets that other cores have handed over and that wait; none for a core that is alone.
    pub fn handed_waiting(&self) -> Option<usize> {
        self.ways.incoming.borrow().as_ref().map(Incoming::waiting)
    }

    /// Ends what is still open with a RST to both sides, over the next rounds.
    pub fn finish(&self) {
        self.stage.set(Stage::Finishing);
    }

    /// True when everything has been ended.
    pub fn is_finished(&self) -> bool {
        self.stage.get() == Stage::Finished
    }

    /// Goes on with other settings and addresses, and leaves in the changes what there was. Connections go on.
    pub fn adopt(&self, change: &mut Change<S>, station: &mut StationChange, now: Instant) {
        self.proxy.borrow_mut().adopt(change, now);
        self.station.borrow_mut().adopt(station);
    }

    /// Has the core do something, or say what is news.
    pub fn change<T>(&self, change: impl FnOnce(&mut Proxy<L, S, Arc<SharedNeighbours>>) -> T) -> T {
        change(&mut self.proxy.borrow_mut())
    }

    /// Looks into the core: counters, usage, memory.
    pub fn look<T>(&self, look: impl FnOnce(&Proxy<L, S, Arc<SharedNeighbours>>) -> T) -> T {
        look(&self.proxy.borrow())
    }
}

impl NextHops for SharedNeighbours {
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

/// The ways into the graph and out of it beside its ports; proxy and station share them.
struct Ways<B> {
    /// From the other cores; only the proxy takes what is there.
    incoming: RefCell<Option<Incoming<Packet<B>>>>,
    /// To the other cores, if there are any.
    outgoing: RefCell<Option<Outgoing<Packet<B>>>>,
    /// To the kernel, if there is one behind some port.
    kernel: Option<RefCell<KernelEnd>>,
    /// To and from those who ask and order, if there are any.
    commands: Option<RefCell<CommandEnd>>,
    /// To and from the thread that makes checks with content, if there is one.
    checks: Option<RefCell<CheckLine>>,
}

struct ProxyNode<L: BufferPool, S, T> {
    hold: Handle<L, S>,
    stages: T,
}

impl<L: BufferPool, S: SelectServer> Handle<L, S> {
    /// A round of the proxy. Not a method of the node: for one [`Stages`] it is the same code in every graph, and so is what a
    /// compiler has learned of it from a run.
    fn process<T: Stages>(
        &self,
        stages: &T,
        round: &mut Round<'_>,
        batch: &mut Burst<Packet<L::Buffer>>,
        out: &mut Outbox<Frame<L::Buffer>>,
    ) {
        let mut proxy = self.proxy.borrow_mut();
        let now = round.now();
        let ways = &*self.ways;
        let mut emitter = Emitter {
            round,
            out,
            ways,
            stages,
        };
        let mut taken: Burst<Packet<L::Buffer>> = Burst::new();
        if let Some(incoming) = &mut *ways.incoming.borrow_mut() {
            let count = incoming.take(taken.capacity(), |packet| taken.push(packet));
            if count > 0 {
                emitter.round.count(Traffic::FromQueue, count);
                emitter.round.count(Traffic::Consumed, count);
                emitter.round.add_work(count);
                emitter.round.note_backlog(count == BURST);
            }
        }
        // Before any packet, which would set the time of the round before.
        proxy.note_round(now, emitter.round.is_backlogged());
        if !taken.is_empty() {
            proxy.take_over(now, &mut taken, &mut emitter);
        }
        if !batch.is_empty() {
            proxy.handle_batch(now, batch, &mut emitter);
        }
        if self.stage.get() == Stage::Finishing {
            emitter.round.add_work(1);
            if proxy.finish(now, &mut emitter) {
                self.stage.set(Stage::Finished);
            }
        } else if proxy.poll_timers(now, &mut emitter) {
            emitter.round.add_work(1);
        }
        if let Some(commands) = &ways.commands
            && commands.borrow_mut().work(now, &mut proxy, &mut emitter)
        {
            emitter.round.add_work(1);
        }
        // It has the proxy send and note, which begins no check.
        if let Some(checks) = &ways.checks {
            let worked = checks.borrow_mut().work(now, &mut proxy, &mut emitter);
            emitter.round.add_work(worked);
        }
    }
}

impl<L: BufferPool, S: SelectServer, T: Stages> Node for ProxyNode<L, S, T> {
    type Input = Packet<L::Buffer>;
    type Output = Frame<L::Buffer>;

    #[inline]
    fn process(&mut self, round: &mut Round<'_>, batch: &mut Burst<Self::Input>, out: &mut Outbox<Self::Output>) {
        // The code of a graph that times nothing, also between two rounds that are timed.
        if self.stages.is_timed() {
            self.hold.process(&self.stages, round, batch, out);
            self.stages.enter(splice::stage::WorkStage::Rest);
        } else {
            self.hold.process(&Off, round, batch, out);
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let of_command = |commands: &RefCell<CommandEnd>| commands.borrow().next_deadline();
        let commands = self.hold.ways.commands.as_ref().and_then(of_command);
        let proxy = self.hold.proxy.borrow().next_deadline();
        proxy.into_iter().chain(commands).min()
    }
}

struct Emitter<'a, 'r, B, T> {
    round: &'a mut Round<'r>,
    out: &'a mut Outbox<Frame<B>>,
    ways: &'a Ways<B>,
    stages: &'a T,
}

impl<B: PacketBuffer, T: Stages> splice::Output<B> for Emitter<'_, '_, B, T> {
    #[inline(always)]
    fn enter(&mut self, stage: splice::stage::WorkStage) {
        self.stages.enter(stage);
    }

    #[inline]
    fn send(&mut self, port: PortId, buffer: B) {
        self.out.emit(self.round, Frame { buffer, port });
    }

    #[inline]
    fn room(&self) -> usize {
        self.out.room()
    }

    #[inline]
    fn is_congested(&self) -> bool {
        self.round.is_congested()
    }

    fn hand_over(&mut self, core: usize, packet: Packet<B>) -> Result<(), Packet<B>> {
        match &mut *self.ways.outgoing.borrow_mut() {
            Some(outgoing) => outgoing.push(core, packet)?,
            None => return Err(packet),
        }
        // It was counted as consumed by this node, and leaves it again without passing the outbox.
        self.round.count(Traffic::Emitted, 1);
        self.round.count(Traffic::ToQueue, 1);
        Ok(())
    }

    fn begin_check(&mut self, order: &CheckOrder) -> bool {
        (self.ways.checks.as_ref()).is_some_and(|checks| checks.borrow_mut().begin(order))
    }

    fn pass_to_check(&mut self, check: CheckId, packet: &[u8]) -> bool {
        (self.ways.checks.as_ref()).is_some_and(|checks| checks.borrow_mut().pass(check, packet))
    }

    fn pass_to_kernel(&mut self, now: Instant, port: PortId, buffer: B) {
        if let Some(kernel) = &self.ways.kernel {
            kernel.borrow_mut().pass(now, port, buffer.data());
        }
    }
}

struct StationNode<L: BufferPool, S, T> {
    station: Rc<RefCell<Station>>,
    proxy: SharedProxy<L, S>,
    ways: Rc<Ways<L::Buffer>>,
    stages: T,
}

impl<L: BufferPool, S: SelectServer, T> StationNode<L, S, T> {
    /// Whether the engine has to do with the packet; the kernel gets what is its.
    fn is_engines(&self, now: Instant, packet: &Packet<L::Buffer>) -> bool {
        let Some(kernel) = &self.ways.kernel else { return true };
        let mut kernel = kernel.borrow_mut();
        let (port, frame) = (packet.port, packet.buffer.data());
        match kernel.share(port, packet.kind, frame) {
            Share::Engine => return true,
            Share::Both => {
                kernel.copy(now, port, frame);
                return true;
            }
            Share::Kernel => kernel.pass(now, port, frame),
            Share::Nobody => kernel.drop_foreign(),
        }
        false
    }

    /// Sends what the kernel wants sent.
    fn send_kernels(&self, round: &mut Round<'_>, out: &mut Outbox<Frame<L::Buffer>>) {
        let Some(kernel) = &self.ways.kernel else { return };
        let sent = kernel.borrow_mut().poll(&mut |port, frame| {
            let Some(buffer) = self.proxy.borrow_mut().pool_mut().take_copy(frame) else {
                return false;
            };
            out.emit(round, Frame { buffer, port });
            true
        });
        round.add_work(sent);
    }
}

impl<L: BufferPool, S: SelectServer, T: Stages> Node for StationNode<L, S, T> {
    type Input = Packet<L::Buffer>;
    type Output = Frame<L::Buffer>;

    fn process(&mut self, round: &mut Round<'_>, batch: &mut Burst<Self::Input>, out: &mut Outbox<Self::Output>) {
        let now = round.now();
        let mut station = self.station.borrow_mut();
        for packet in batch.drain(..) {
            if !self.is_engines(now, &packet) {
                continue;
            }
            let Packet { mut buffer, port, kind } = packet;
            match station.handle(now, port, kind, &mut buffer) {
                Verdict::Answer(_) => out.emit(round, Frame { buffer, port }),
                Verdict::Used(_) | Verdict::Dropped(_) => {}
                Verdict::IcmpError | Verdict::NotOurs => {
                    let (ways, stages) = (&*self.ways, &self.stages);
                    let mut emitter = Emitter {
                        round,
                        out,
                        ways,
                        stages,
                    };
                    self.proxy
                        .borrow_mut()
                        .handle_icmp_error(now, Packet { buffer, port, kind }, &mut emitter);
                }
            }
        }
        let proxy = &self.proxy;
        let sent = station.poll(now, &mut |port, frame| {
            let Some(buffer) = proxy.borrow_mut().pool_mut().take_copy(frame) else {
                return false;
            };
            out.emit(round, Frame { buffer, port });
            true
        });
        round.add_work(sent);
        self.send_kernels(round, out);
    }

    fn next_deadline(&self) -> Option<Instant> {
        Some(self.station.borrow().next_deadline())
    }
}
