//! The connected sockets of a host, each in a set of its own, so that only those are worked on that have something to do.
//!
//! smoltcp looks at every socket of a set for each segment and each deadline. A host of the simulation has dozens of sockets,
//! and nearly all of them wait.

use super::duty::Ends;
use super::host::instant;
use e2d2::time::Instant;
use smoltcp::iface::{Interface, PollResult, SocketHandle, SocketSet};
use smoltcp::phy::Device;
use smoltcp::socket::{Socket, tcp};
use smoltcp::wire::IpEndpoint;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

/// One connected socket of a host. Numbers are not used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SocketId(u32);

struct Place {
    set: SocketSet<'static>,
    handle: SocketHandle,
    ends: Option<Ends>,
    /// When its timers want it to be polled.
    wake: Option<Instant>,
    /// A segment came, or its application may have done something: it may have something to send.
    is_touched: bool,
    /// Its state may have changed since [`Places::take_stirred`].
    is_stirred: bool,
    /// It leaves a SYN without an answer for now. smoltcp would have such a socket polled all the time.
    is_paused: bool,
}

impl Place {
    fn tcp(&self) -> &tcp::Socket<'static> {
        self.set.get(self.handle)
    }

    fn tcp_mut(&mut self) -> &mut tcp::Socket<'static> {
        self.set.get_mut(self.handle)
    }

    fn is_due(&self, now: Instant) -> bool {
        let waits = self.is_paused && self.tcp().state() == tcp::State::SynReceived;
        !waits && (self.is_touched || self.wake.is_some_and(|at| at <= now))
    }
}

/// The sockets of a host.
#[derive(Default)]
pub(super) struct Places {
    all: BTreeMap<SocketId, Place>,
    /// The newest socket with these ends; an older one with the same is over.
    by_ends: HashMap<Ends, SocketId>,
    next: u32,
}

impl Places {
    /// Adds a socket. One with a SYN that is not to be answered yet is `is_paused`.
    pub(super) fn add(&mut self, socket: tcp::Socket<'static>, is_paused: bool) -> SocketId {
        let mut set = SocketSet::new(Vec::with_capacity(1));
        let handle = set.add(socket);
        let id = SocketId(self.next);
        self.next += 1;
        let place = Place {
            set,
            handle,
            ends: None,
            wake: None,
            is_touched: true,
            is_stirred: true,
            is_paused,
        };
        self.all.insert(id, place);
        self.note_ends(id);
        id
    }

    /// Notes the ends of a socket that has got them.
    pub(super) fn note_ends(&mut self, id: SocketId) {
        let Some(place) = self.all.get_mut(&id) else { return };
        place.ends = ends(place.tcp());
        if let Some(ends) = place.ends {
            self.by_ends.insert(ends, id);
        }
    }

    /// Forgets a socket.
    pub(super) fn remove(&mut self, id: SocketId) {
        let ends = self.all.remove(&id).and_then(|place| place.ends);
        if let Some(ends) = ends.filter(|ends| self.by_ends.get(ends) == Some(&id)) {
            self.by_ends.remove(&ends);
        }
    }

    /// Forgets all sockets.
    pub(super) fn clear(&mut self) {
        self.all.clear();
        self.by_ends.clear();
    }

    /// The socket of a connection that is not over.
    pub(super) fn find(&self, wanted: Ends) -> Option<SocketId> {
        let id = *self.by_ends.get(&wanted)?;
        let place = self.all.get(&id)?;
        (ends(place.tcp()) == Some(wanted)).then_some(id)
    }

    /// A socket, to look at.
    ///
    /// # Panics
    /// If there is none of this number.
    pub(super) fn look(&self, id: SocketId) -> &tcp::Socket<'static> {
        self.all[&id].tcp()
    }

    /// True if a socket is closed and has said so.
    ///
    /// # Panics
    /// If there is none of this number.
    pub(super) fn is_over(&self, id: SocketId) -> bool {
        let socket = self.look(id);
        socket.state() == tcp::State::Closed && socket.remote_endpoint().is_none()
    }

    /// A socket, to do something with: it is polled next time.
    ///
    /// # Panics
    /// If there is none of this number.
    pub(super) fn touch(&mut self, id: SocketId) -> &mut tcp::Socket<'static> {
        let place = self.all.get_mut(&id).expect("a socket of this host");
        place.is_touched = true;
        place.tcp_mut()
    }

    /// The set of a socket that gets a segment.
    ///
    /// # Panics
    /// If there is none of this number.
    pub(super) fn stir(&mut self, id: SocketId) -> &mut SocketSet<'static> {
        let place = self.all.get_mut(&id).expect("a socket of this host");
        (place.is_touched, place.is_stirred) = (true, true);
        &mut place.set
    }

    /// All sockets are polled next time: a neighbour may have become known.
    pub(super) fn touch_all(&mut self) {
        self.all.values_mut().for_each(|place| place.is_touched = true);
    }

    /// The SYN of a paused socket is answered.
    ///
    /// # Panics
    /// If there is none of this number.
    pub(super) fn answer(&mut self, id: SocketId) {
        self.touch(id).pause_synack(false);
        self.all.get_mut(&id).expect("a socket of this host").is_paused = false;
    }

    /// True if the state of a socket may have changed since the last call.
    pub(super) fn take_stirred(&mut self, id: SocketId) -> bool {
        let place = self.all.get_mut(&id);
        place.is_some_and(|place| std::mem::take(&mut place.is_stirred))
    }

    /// Lets all that are due send, in turns of one segment each, until none has more.
    pub(super) fn poll(&mut self, now: Instant, interface: &mut Interface, device: &mut impl Device) {
        let time = super::host::time(now);
        let due = self.all.iter_mut().filter(|(_, place)| place.is_due(now));
        let mut due: Vec<&mut Place> = due.map(|(_, place)| place).collect();
        for place in &mut due {
            (place.is_touched, place.is_stirred) = (false, true);
        }
        while !due.is_empty() {
            due.retain_mut(|place| {
                let sends = interface.poll_egress(time, device, &mut place.set) == PollResult::SocketStateChanged;
                if !sends {
                    place.wake = interface.poll_at(time, &place.set).map(instant);
                }
                sends
            });
        }
    }

    /// When one of them wants to be polled at the earliest.
    pub(super) fn next_poll(&self, now: Instant) -> Option<Instant> {
        let waking = self.all.values().filter_map(|place| {
            if place.is_due(now) {
                Some(now)
            } else {
                place.wake.filter(|_| !place.is_paused)
            }
        });
        waking.min()
    }
}

/// The two ends of a socket, if it has both.
fn ends(socket: &tcp::Socket<'_>) -> Option<Ends> {
    let (local, remote): (IpEndpoint, IpEndpoint) = (socket.local_endpoint()?, socket.remote_endpoint()?);
    Some((local.port, (IpAddr::from(remote.addr), remote.port)))
}

/// smoltcp lets a socket listen again that got a RST before its handshake was complete; its place here is over.
pub(super) fn end_listening_again(set: &mut SocketSet<'static>) {
    for (_, socket) in set.iter_mut() {
        let Socket::Tcp(socket) = socket;
        if socket.state() == tcp::State::Listen {
            socket.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::sim::tcp::State;
    use crate::sim::{Host, HostPlan, SynOptions};
    use e2d2::time::Instant;
    use std::net::{Ipv4Addr, SocketAddr};
    use std::time::Duration;

    /// Lets two hosts talk until both are silent.
    fn talk(hosts: &mut [Host; 2], now: Instant) {
        loop {
            let sent = [0, 1].map(|n| hosts[n].poll(now).collect::<Vec<_>>());
            if sent.iter().all(Vec::is_empty) {
                return;
            }
            for (frames, to) in sent.into_iter().zip([1, 0]) {
                frames.into_iter().for_each(|frame| hosts[to].receive(frame));
            }
        }
    }

    #[test]
    fn an_aborted_socket_is_over_once_its_reset_has_left() {
        let mut hosts = [1, 2].map(|n: u8| {
            let plan = HostPlan {
                mac: n,
                addresses: vec![format!("10.0.0.{n}/24")],
                mtu: 1500,
                options: SynOptions::ALL,
            };
            Host::new(&plan, u64::from(n), Instant::ZERO)
        });
        hosts[1].listen(80, (1000, 1000), false);
        let address = |n, port| SocketAddr::from((Ipv4Addr::new(10, 0, 0, n), port));
        let client = hosts[0].add_socket(1000, 1000);
        hosts[0].connect(client, address(2, 80), address(1, 1000));
        talk(&mut hosts, Instant::ZERO);
        let server = hosts[1].take_accepted()[0];
        assert_eq!(hosts[1].socket(server).state(), State::Established);

        // smoltcp forgets a neighbour after a minute, and asks for it before it sends the RST.
        let now = Instant::ZERO + Duration::from_secs(120);
        hosts[0].socket(client).abort();
        let asked: Vec<_> = hosts[0].poll(now).collect();
        assert!(!hosts[0].is_over(client), "its RST has not left");
        asked.into_iter().for_each(|frame| hosts[1].receive(frame));
        talk(&mut hosts, now);
        assert!(hosts[0].is_over(client));
        assert_eq!(hosts[1].socket(server).state(), State::Closed);
        assert!(hosts[1].is_over(server), "who gets a RST answers nothing");
    }
}
