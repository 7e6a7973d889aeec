//! One thread: its listening sockets, its sessions, its loop. Nothing is shared with other workers but counters.

use crate::config::{Config, HeaderMode, Listener, Protocol};
use crate::context::{Context, Failures, Kind, LogLimit, Token};
use crate::metrics::{Counters, Reason};
use crate::plan::Surroundings;
use crate::relay::Pool;
use crate::session::{Booked, Session, Side, Step};
use crate::timer::{Millis, Wheel};
use crate::udp::Udp;
use rustix::event::epoll::{self, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::SocketFlags;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Events taken at once.
const EVENTS: usize = 256;

/// Longest pause of accepting when descriptors or memory are short; the queue of the kernel holds the connections meanwhile. It
/// ends earlier when a session does. The time is for what others free: memory, and the descriptors of the whole system.
const PAUSE: Duration = Duration::from_millis(100);

/// How long a connection has to send its header, though others wait for its descriptor. Balancers send it with the connection.
const GRACE: Duration = PAUSE;

/// Most connections without a header for whose second descriptor room is kept. Beyond, peers that send none would have half of
/// the room for themselves.
const MOST_AWAITED: usize = 64;

/// Descriptors of a TCP connection: two sockets. The pool has pipes of what sessions leave.
pub const PER_SESSION: usize = 2;

/// Bytes of headers that are not whole, all connections together: 256 of the longest, or 150 000 of the usual ones.
const HEADERS: usize = 16 << 20;

/// What one worker may have at once.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Shares {
    /// TCP connections; at least 1.
    pub connections: usize,
    /// Descriptors of TCP connections and of pipes; at least 2.
    pub descriptors: usize,
    /// Sessions of UDP clients; at least 1.
    pub datagram_sessions: usize,
    /// Pipes for splicing; without one, bytes are copied.
    pub pipes: usize,
}

/// What the main thread tells a worker.
pub enum Order {
    /// Serve these listeners. A socket is there for the new ones; the others keep theirs.
    Serve(Vec<(Arc<Listener>, Option<OwnedFd>)>, Arc<Surroundings>, Shares),
    /// Accept what is waiting, then nothing more; end when all sessions have ended or after this time.
    Drain(Duration),
}

/// The way from the main thread to a worker.
pub struct Mailbox {
    orders: Mutex<VecDeque<Order>>,
    bell: OwnedFd,
}

impl Mailbox {
    /// An empty mailbox.
    ///
    /// # Errors
    /// If there are no descriptors.
    pub fn new() -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Mailbox {
            orders: Mutex::default(),
            bell,
        })
    }

    /// Leaves an order and wakes the worker.
    pub fn post(&self, order: Order) {
        self.orders
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push_back(order);
        // It only fails if the bell rings already.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    fn take(&self) -> VecDeque<Order> {
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        std::mem::take(&mut *self.orders.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

struct Listening {
    listener: Arc<Listener>,
    fd: Arc<OwnedFd>,
    paused: bool,
    /// It has a place in the queue of the paused.
    is_queued: bool,
    /// A timer will resume it.
    is_timed: bool,
}

#[derive(Default)]
struct Slot {
    generation: u32,
    session: Option<Box<Session>>,
}

/// A session that had no whole header when it was accepted.
#[derive(Copy, Clone)]
struct Waiting {
    slot: u32,
    generation: u32,
    since: Millis,
}

#[derive(Copy, Clone)]
enum Due {
    Session { slot: u32, generation: u32 },
    Replies { slot: u32, generation: u32 },
    Resume { slot: u32 },
}

/// A worker; [`run`](Worker::run) is its thread.
pub struct Worker {
    context: Context,
    mailbox: Arc<Mailbox>,
    listening: Vec<Option<Listening>>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    sessions: usize,
    max_sessions: usize,
    /// What all sessions hold.
    held: Booked,
    max_descriptors: usize,
    /// Listeners that were paused, oldest first, each once; some go on again already.
    paused: VecDeque<u32>,
    /// Sessions that have ended since the paused were looked at.
    ended: usize,
    /// Sessions that had no whole header when they were accepted, oldest first; some have it by now, or are gone.
    waiting: VecDeque<Waiting>,
    again: VecDeque<(u32, u32)>,
    wheel: Wheel<Due>,
    udp: Udp,
    started: Instant,
    ends: Option<Millis>,
}

impl Worker {
    /// A worker that serves nothing yet.
    ///
    /// # Errors
    /// If there are no descriptors.
    pub fn new(config: &Config, counters: Arc<Counters>, mailbox: Arc<Mailbox>) -> io::Result<Self> {
        let context = Context {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            pool: Pool::new(true),
            counters,
            surroundings: Arc::default(),
            now: Millis(0),
            log: LogLimit::default(),
            failures: Failures::new(config.max_header_failures),
        };
        let bell = Token {
            kind: Kind::Mailbox,
            slot: 0,
            generation: 0,
        };
        context.watch(&mailbox.bell, bell, EventFlags::IN)?;
        Ok(Worker {
            context,
            mailbox,
            listening: Vec::new(),
            slots: Vec::new(),
            free: Vec::new(),
            sessions: 0,
            max_sessions: 0,
            held: Booked::default(),
            max_descriptors: 0,
            paused: VecDeque::new(),
            ended: 0,
            waiting: VecDeque::new(),
            again: VecDeque::new(),
            wheel: Wheel::new(),
            udp: Udp::new(config.workers),
            started: Instant::now(),
            ends: None,
        })
    }

    /// Works until the daemon ends.
    ///
    /// # Errors
    /// If waiting for events fails, which has no cause in what peers do.
    pub fn run(mut self) -> io::Result<()> {
        let mut events = Vec::with_capacity(EVENTS);
        while !self.is_over() {
            let timeout = self.timeout();
            let timeout = timeout
                .map(rustix::time::Timespec::try_from)
                .transpose()
                .map_err(io::Error::other)?;
            events.clear();
            match epoll::wait(
                &self.context.epoll,
                rustix::buffer::spare_capacity(&mut events),
                timeout.as_ref(),
            ) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            self.context.now = Millis(self.started.elapsed().as_millis() as u64);
            for event in &events {
                if let Some(token) = Token::unpack(event.data) {
                    self.dispatch(token, event.flags);
                }
            }
            self.udp.flush(&mut self.context);
            self.continue_sessions();
            self.expire();
            self.resume_paused();
        }
        self.close_all();
        Ok(())
    }

    fn timeout(&self) -> Option<Duration> {
        if !self.again.is_empty() {
            return Some(Duration::ZERO);
        }
        let drain = self.ends.map(|_| Duration::from_millis(50));
        match (self.wheel.sleep(self.context.now), drain) {
            (Some(wheel), Some(drain)) => Some(wheel.min(drain)),
            (wheel, drain) => wheel.or(drain),
        }
    }

    fn dispatch(&mut self, token: Token, flags: EventFlags) {
        match token.kind {
            Kind::Listener => {
                self.accept(token.slot);
            }
            Kind::Client => self.session_event(token, Side::Client, flags),
            Kind::Server => self.session_event(token, Side::Server, flags),
            Kind::Datagrams => self.datagrams(token.slot),
            Kind::Replies => self.udp.handle_replies(&mut self.context, token),
            Kind::Mailbox => {
                for order in self.mailbox.take() {
                    match order {
                        Order::Serve(listeners, surroundings, shares) => {
                            self.max_sessions = shares.connections;
                            self.max_descriptors = shares.descriptors;
                            self.context.pool.limit_pipes(shares.pipes);
                            self.udp.limit(shares.datagram_sessions);
                            self.serve(listeners, surroundings);
                        }
                        Order::Drain(time) => self.drain(time),
                    }
                }
            }
        }
    }

    /// Takes the new set of listeners. Those with the same socket keep their place, so that sessions stay.
    fn serve(&mut self, listeners: Vec<(Arc<Listener>, Option<OwnedFd>)>, surroundings: Arc<Surroundings>) {
        self.context.surroundings = surroundings;
        let mut kept = vec![false; self.listening.len()];
        for (listener, fd) in listeners {
            let place = self.listening.iter().position(|old| {
                old.as_ref()
                    .is_some_and(|old| fd.is_none() && old.listener.same_socket(&listener))
            });
            match (place, fd) {
                (Some(place), _) => {
                    kept[place] = true;
                    if let Some(listening) = &mut self.listening[place] {
                        listening.listener = listener;
                    }
                }
                (None, Some(fd)) => self.add_listener(listener, fd),
                (None, None) => log::error!("{}: no socket for it", listener.name),
            }
        }
        for (place, kept) in kept.into_iter().enumerate() {
            if !kept && self.stop_listening(place) {
                self.udp.forget_listener(&mut self.context, place as u32);
            }
        }
    }

    fn add_listener(&mut self, listener: Arc<Listener>, fd: OwnedFd) {
        let slot = self.listening.len() as u32;
        let (kind, flags) = match listener.protocol {
            // Passed sockets are shared by the workers: one is woken.
            Protocol::Tcp => (Kind::Listener, EventFlags::IN | EventFlags::EXCLUSIVE),
            Protocol::Udp => (Kind::Datagrams, EventFlags::IN),
        };
        if let Err(error) = self.context.watch(
            &fd,
            Token {
                kind,
                slot,
                generation: 0,
            },
            flags,
        ) {
            log::error!("{}: cannot be watched: {error}", listener.name);
            return;
        }
        if listener.protocol == Protocol::Udp {
            self.udp.prepare();
        }
        self.listening.push(Some(Listening {
            listener,
            fd: Arc::new(fd),
            paused: false,
            is_queued: false,
            is_timed: false,
        }));
    }

    /// Whether there was a listener in this place. A socket that was passed to us, or that sessions have, stays open: it is watched no
    /// more (epoll(7), questions and answers 6).
    fn stop_listening(&mut self, place: usize) -> bool {
        let Some(listening) = self.listening[place].take() else {
            return false;
        };
        let _ = epoll::delete(&self.context.epoll, &listening.fd);
        true
    }

    fn drain(&mut self, time: Duration) {
        for slot in 0..self.listening.len() as u32 {
            // What the kernel has accepted already would be reset with the socket.
            while self.accept(slot) {}
        }
        for place in 0..self.listening.len() {
            let tcp = self.listening[place]
                .as_ref()
                .is_some_and(|one| one.listener.protocol == Protocol::Tcp);
            if tcp {
                self.stop_listening(place);
            }
        }
        self.ends = Some(self.context.now.after(time));
    }

    /// UDP has no end of its own: its sessions do not hold the daemon back.
    fn is_over(&self) -> bool {
        self.ends
            .is_some_and(|ends| self.sessions == 0 || self.context.now >= ends)
    }

    fn close_all(&mut self) {
        for slot in 0..self.slots.len() {
            if let Some(mut session) = self.slots[slot].session.take() {
                self.context.counters.refuse(Reason::Shutdown);
                session.close(&mut self.context);
            }
        }
        self.context.counters.active.sub(self.sessions as u64);
        self.udp.close_all(&mut self.context);
    }

    /// Accepts one connection; returns whether there may be more. Watching is level-triggered, so the next one has its
    /// event: trying until there is none would cost a call that fails for each that succeeds, except in bursts.
    fn accept(&mut self, slot: u32) -> bool {
        let Some(Some(listening)) = self.listening.get(slot as usize) else {
            return false;
        };
        if listening.listener.protocol != Protocol::Tcp || listening.paused {
            return false;
        }
        if self.is_full() && !(self.has_waited() && self.crowd_out(None)) {
            self.pause(slot, "the limit of connections is reached");
            return false;
        }
        let Some(Some(listening)) = self.listening.get(slot as usize) else {
            return false;
        };
        match rustix::net::acceptfrom_with(&listening.fd, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
            Ok((fd, peer)) => {
                let listener = Arc::clone(&listening.listener);
                let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
                self.admit(listener, fd, peer);
                true
            }
            Err(Errno::AGAIN) => false,
            Err(error @ (Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)) => {
                self.pause(slot, &error.to_string());
                false
            }
            // The peer has gone, or the network said something about it: accept(2) tells to try again.
            Err(_) => true,
        }
    }

    /// Whether one more session does not fit. Pipes that nobody uses are closed first.
    fn is_full(&mut self) -> bool {
        let fits = |worker: &Self| {
            let awaited = worker.held.awaiting.min(MOST_AWAITED);
            worker.descriptors() + awaited + PER_SESSION <= worker.max_descriptors
        };
        if !fits(self) {
            self.context.pool.close_idle_pipes();
        }
        self.sessions >= self.max_sessions || !fits(self)
    }

    /// Descriptors of all sessions and pipes.
    fn descriptors(&self) -> usize {
        self.held.descriptors + self.context.pool.pipe_descriptors()
    }

    /// Stops accepting until a session ends, or for [`PAUSE`]. Watching is level-triggered: without this the loop would spin.
    fn pause(&mut self, slot: u32, why: &str) {
        let Some(Some(listening)) = self.listening.get_mut(slot as usize) else {
            return;
        };
        listening.paused = true;
        if !std::mem::replace(&mut listening.is_queued, true) {
            self.paused.push_back(slot);
        }
        if !std::mem::replace(&mut listening.is_timed, true) {
            self.wheel.arm(Due::Resume { slot }, self.context.now.after(PAUSE));
        }
        let _ = epoll::delete(&self.context.epoll, &listening.fd);
        self.context.counters.accept_pauses.add(1);
        if let Some(suppressed) = self.context.log.permit(self.context.now) {
            log::warn!("{}: accepting pauses: {why}{suppressed}", listening.listener.name);
        }
    }

    /// One paused listener goes on for each session that has ended: not all of them, as most would only pause again.
    fn resume_paused(&mut self) {
        for _ in 0..std::mem::take(&mut self.ended) {
            let Some(slot) = self.paused.pop_front() else { return };
            if let Some(Some(listening)) = self.listening.get_mut(slot as usize) {
                listening.is_queued = false;
                self.resume(slot);
            }
        }
    }

    fn resume(&mut self, slot: u32) {
        let Some(Some(listening)) = self.listening.get_mut(slot as usize) else {
            return;
        };
        if !std::mem::replace(&mut listening.paused, false) {
            return;
        }
        let token = Token {
            kind: Kind::Listener,
            slot,
            generation: 0,
        };
        if self
            .context
            .watch(&listening.fd, token, EventFlags::IN | EventFlags::EXCLUSIVE)
            .is_err()
        {
            listening.paused = true;
            if !std::mem::replace(&mut listening.is_timed, true) {
                self.wheel.arm(Due::Resume { slot }, self.context.now.after(PAUSE));
            }
        }
    }

    fn admit(&mut self, listener: Arc<Listener>, fd: OwnedFd, peer: Option<SocketAddr>) {
        self.context.counters.accepted.add(1);
        let Some(peer) = peer else { return };
        let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
        let optional = listener.header == HeaderMode::Optional;
        if !optional
            && listener
                .allowed
                .as_ref()
                .is_some_and(|allowed| !allowed.contains(peer.ip()))
        {
            return self
                .context
                .refuse(Reason::NotAllowed, &listener.name, peer, "not in the allow-list");
        }
        if self.context.failures.is_refused(peer.ip(), self.context.now) {
            return self.context.counters.refuse(Reason::RateLimited);
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() as u32 - 1
        });
        let generation = self.slots[slot as usize].generation;
        let session = Session::new(listener, peer, fd, slot, generation, self.context.now);
        self.slots[slot as usize].session = Some(Box::new(session));
        self.sessions += 1;
        self.context.counters.active.add(1);
        self.advance(slot, Session::advance);
        if self.is_waiting(slot, generation) {
            self.waiting.push_back(Waiting {
                slot,
                generation,
                since: self.context.now,
            });
            self.bound_headers();
        }
    }

    fn is_waiting(&self, slot: u32, generation: u32) -> bool {
        let session = self.slots.get(slot as usize).and_then(|slot| slot.session.as_ref());
        session.is_some_and(|session| session.is_generation(generation) && session.awaits_header())
    }

    /// Closes the connection that has waited longest for its header, so that peers who send none keep nobody out for as
    /// long as the deadline allows them. Returns whether there was one other than `spared`.
    fn crowd_out(&mut self, spared: Option<u32>) -> bool {
        let mut kept = None;
        let victim = loop {
            match self.waiting.pop_front() {
                Some(entry) if !self.is_waiting(entry.slot, entry.generation) => {}
                Some(entry) if spared == Some(entry.slot) => kept = Some(entry),
                found => break found,
            }
        };
        self.waiting.extend(kept);
        let Some(Waiting { slot, .. }) = victim else {
            return false;
        };
        self.advance(slot, Session::crowd_out);
        true
    }

    /// Forgets at the front what waits no more: what is behind it is younger, so the queue is never longer than what was
    /// accepted within the header's deadline.
    fn trim_waiting(&mut self) {
        while let Some(entry) = self.waiting.front()
            && !self.is_waiting(entry.slot, entry.generation)
        {
            self.waiting.pop_front();
        }
    }

    /// Whether somebody has had [`GRACE`] and has sent no header.
    fn has_waited(&mut self) -> bool {
        self.trim_waiting();
        let oldest = self.waiting.front();
        oldest.is_some_and(|oldest| self.context.now >= oldest.since.after(GRACE))
    }

    fn session_event(&mut self, token: Token, side: Side, flags: EventFlags) {
        let Some(session) = self
            .slots
            .get_mut(token.slot as usize)
            .and_then(|slot| slot.session.as_mut())
        else {
            return;
        };
        if !session.is_generation(token.generation) {
            return;
        }
        session.note(side, flags);
        if session.awaits_header() {
            // It may be about to take its second descriptor.
            if self.descriptors() >= self.max_descriptors {
                self.context.pool.close_idle_pipes();
            }
            if self.descriptors() >= self.max_descriptors {
                self.crowd_out(Some(token.slot));
            }
            self.trim_waiting();
        }
        self.advance(token.slot, Session::advance);
        self.bound_headers();
    }

    /// Headers may be 64 kB long; ten thousand that are never completed shall not be.
    fn bound_headers(&mut self) {
        while self.held.header > HEADERS && self.crowd_out(None) {}
    }

    /// Lets a session act, and does what its answer asks for.
    fn advance(&mut self, slot: u32, act: impl FnOnce(&mut Session, &mut Context) -> Step) {
        let place = &mut self.slots[slot as usize];
        let Some(session) = &mut place.session else { return };
        let step = act(session, &mut self.context);
        let booked = session.booked;
        if step == Step::Close {
            self.held.descriptors -= booked.descriptors;
            self.held.header -= booked.header;
            self.held.awaiting -= booked.awaiting;
            session.close(&mut self.context);
            place.session = None;
            place.generation = (place.generation + 1) & 0xff_ffff;
            self.free.push(slot);
            self.sessions -= 1;
            self.ended += 1;
            self.context
                .pool
                .leave(self.max_descriptors.saturating_sub(self.held.descriptors));
            return self.context.counters.active.sub(1);
        }
        session.booked = session.holds();
        self.held.descriptors = self.held.descriptors + session.booked.descriptors - booked.descriptors;
        self.held.header = self.held.header + session.booked.header - booked.header;
        self.held.awaiting = self.held.awaiting + session.booked.awaiting - booked.awaiting;
        self.context
            .pool
            .leave(self.max_descriptors.saturating_sub(self.held.descriptors));
        if step == Step::Again {
            self.again.push_back((slot, place.generation));
        }
        // A later deadline is found when the earlier one comes up; an earlier one needs an entry of its own.
        if let Some(deadline) = session.deadline()
            && session.armed.is_none_or(|armed| deadline < armed)
        {
            session.armed = Some(deadline);
            self.wheel.arm(
                Due::Session {
                    slot,
                    generation: place.generation,
                },
                deadline,
            );
        }
    }

    fn continue_sessions(&mut self) {
        for _ in 0..self.again.len() {
            let Some((slot, generation)) = self.again.pop_front() else {
                return;
            };
            if self.slots[slot as usize].generation == generation {
                self.advance(slot, Session::advance);
            }
        }
    }

    fn datagrams(&mut self, slot: u32) {
        let Some(Some(listening)) = self.listening.get(slot as usize) else {
            return;
        };
        let sessions = self
            .udp
            .handle_datagrams(&mut self.context, slot, &listening.listener, &listening.fd);
        for (slot, generation, deadline) in sessions {
            self.wheel.arm(Due::Replies { slot, generation }, deadline);
        }
    }

    fn expire(&mut self) {
        let now = self.context.now;
        let mut late = Vec::new();
        let (slots, udp, context) = (&mut self.slots, &mut self.udp, &mut self.context);
        self.wheel.expire(now, |due| match due {
            Due::Session { slot, generation } => {
                let place = slots.get_mut(slot as usize)?;
                let session = place.session.as_mut().filter(|_| place.generation == generation)?;
                if session.armed.is_some_and(|armed| armed > now) {
                    // Another entry will look.
                    return None;
                }
                session.armed = session.deadline().filter(|&deadline| deadline > now);
                if session.armed.is_none() && session.deadline().is_some() {
                    late.push(due);
                }
                session.armed
            }
            Due::Replies { slot, generation } => udp.expire(context, slot, generation),
            Due::Resume { .. } => {
                late.push(due);
                None
            }
        });
        for due in late {
            match due {
                Due::Session { slot, .. } => self.advance(slot, Session::expire),
                Due::Resume { slot } => {
                    if let Some(Some(listening)) = self.listening.get_mut(slot as usize) {
                        listening.is_timed = false;
                    }
                    self.resume(slot);
                }
                Due::Replies { .. } => {}
            }
        }
    }
}
