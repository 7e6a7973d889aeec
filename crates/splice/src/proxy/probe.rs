//! Sends [probes](crate::probe) and reads their answers.

use crate::admission::round_budget::RoundBudget;
use crate::base::callbacks::SelectServer;
use crate::base::difference::Difference;
use crate::base::drop_reason::DropReason;
use crate::base::ids::ServerId;
use crate::base::output::{NextHops, Output};
use crate::base::path::Path;
use crate::base::server_state::CheckFailure;
use crate::base::settings::Local;
use crate::handshake::cookie;
use crate::handshake::syn_ack_options::{Offered, ServerCaps};
use crate::probe::{Asks, Probe, ProbeEvent};
use crate::proxy::{Incoming, Proxy, Rooms};
use crate::session::segment::Segment;
use e2d2::buffer::{BufferPool, PacketBuffer};
use e2d2::counters::Counters;
use e2d2::time::Instant;
use e2d2::wire::frame::IpVersion;
use e2d2::wire::tcp::{TcpFlags, TcpOptions};
use netfcts::FourTuple;
use netfcts::leg::ip_version;
use netfcts::pool::PortPool;
use netfcts::seq::SeqNum;

/// New servers whose time to take connections has come that a round looks at.
const JOINED_PER_ROUND: usize = 64;

impl<P: BufferPool, S: SelectServer, N: NextHops> Proxy<P, S, N> {
    /// What was asked of servers, and what came of it.
    pub fn probes(&self) -> &Counters<ProbeEvent> {
        self.rooms.probes.counters()
    }

    /// What is known of a server; `None` as long as it has not answered.
    pub fn server_caps(&self, server: ServerId) -> Option<ServerCaps> {
        self.rooms.handshake.syn_ack_options.server_caps(server.0)
    }

    /// The next server of which something new is known, each at most once in 8 s.
    pub fn take_caps_change(&mut self, now: Instant) -> Option<(ServerId, ServerCaps)> {
        self.rooms.handshake.syn_ack_options.take_caps_change(now)
    }
}

impl<P: BufferPool, S: SelectServer, N: NextHops> Rooms<P, S, N> {
    /// Asks whom it is time to ask, and looks again at what servers can do. Returns true if there was something to do.
    pub(crate) fn poll_probes(&mut self, budget: &mut RoundBudget, out: &mut impl Output<P::Buffer>) -> bool {
        let joined = (0..JOINED_PER_ROUND).map_while(|_| self.probes.pop_joined(self.now));
        for server in joined.flatten() {
            self.upstream.admit(ServerId(server));
        }
        let looked = self.handshake.syn_ack_options.look_again();
        let before = *budget.moves();
        while budget.affords_one(out)
            && let Some(server) = self.probes.pop_due(self.now, budget.moves())
        {
            budget.note_fired();
            // Some are still due when they are no longer asked.
            if !self.settings.promises.offer.probe {
                continue;
            }
            if self.upstream.standby().is_in_maintenance(server) {
                self.rest_probe(server);
                continue;
            }
            match self.probes.place_of(server) {
                Some(place) => self.retransmit_probe(place, out),
                None if self.is_draining => {}
                None => self.begin_probe(server, out),
            }
        }
        looked || *budget.moves() < before
    }

    /// A server in maintenance is not asked until it is back.
    fn rest_probe(&mut self, server: u16) {
        if let Some(probe) = self.probes.of(server) {
            self.release_probe(&probe);
        }
        self.probes.put_off(server, self.now);
    }

    fn begin_probe(&mut self, server: u16, out: &mut impl Output<P::Buffer>) {
        let now = self.now;
        let Some(settings) = self.settings.servers.get(usize::from(server)) else {
            return;
        };
        if !self.probes.has_room(server, now) {
            return;
        }
        if self.next_hops.mac(settings.next_hop).is_none() {
            if self.probes.on_no_next_hop(server, now) {
                self.end_silence(server);
            }
            return;
        }
        let server_port = settings.port;
        let Some(probe) = self.take_probe(server, server, server_port) else {
            self.probes.on_no_port();
            return self.end_silence(server);
        };
        let place = self.probes.begin(probe);
        self.retransmit_probe(place, out);
    }

    /// A probe of this port of a server that is there: with a port of ours, from those of `source`, which is to be
    /// [released](Self::release_probe). `None` if none can be spared.
    pub(crate) fn take_probe(&mut self, server: u16, source: u16, server_port: u16) -> Option<Probe> {
        let (now, settings) = (self.now, self.settings.servers.get(usize::from(source))?);
        // Connections have the ports first: where there are few, the last one is theirs.
        let can_spare = |pool: &PortPool| match pool.free() {
            0 => false,
            1 => pool.capacity() == 1,
            _ => true,
        };
        let of_server = usize::from(source);
        let can_be = |(local, _): &(usize, &Local)| can_spare(self.sources.pool(of_server, *local));
        let (local, from) = settings.locals.iter().enumerate().find(can_be)?;
        let taken = self.sources.take(of_server, (local, from), now)?;
        let key = FourTuple {
            remote: settings.address,
            local: self.settings.addresses.value(from.address),
            remote_port: server_port,
            local_port: taken.port,
        };
        let mut probe = Probe::new(server, (source, local as u16), key);
        probe.tsval = self.handshake.timestamp(now);
        // As for any connection: nothing of the port's last one may come back (RFC 6528 3, RFC 6191 2).
        probe.isn = self.handshake.iss(now, &key);
        if let Some(last) = taken.last_use {
            probe.isn = probe.isn.later(last.next_seq);
            probe.tsval = SeqNum(probe.tsval).later(SeqNum(last.next_tsval)).0;
        }
        let hash = self.flows.hash(&key);
        self.free_key(hash, &key);
        Some(probe)
    }

    /// Sends the SYN of a probe, or gives the server up.
    fn retransmit_probe(&mut self, place: usize, out: &mut impl Output<P::Buffer>) {
        let (probe, goes_on) = self.probes.next_try(place, self.now);
        if !goes_on {
            self.release_probe(&probe);
            return self.end_silence(probe.server);
        }
        if self.send_probe(&probe, out) {
            self.probes.on_syn();
        }
    }

    /// Sends the SYN of a probe. Returns false if nobody knows where its next hop is.
    pub(crate) fn send_probe(&mut self, probe: &Probe, out: &mut impl Output<P::Buffer>) -> bool {
        let Some(path) = self.path_of_probe(probe) else {
            self.emit.dropped(DropReason::NoNeighbour);
            return false;
        };
        let mtu = self.settings.devices[usize::from(path.device.0)].mtu;
        let control = probe.syn(mtu - path.header_len());
        self.emit.send(None, &path, &control, &[], out);
        true
    }

    /// The probe or check that a segment with this key answers.
    #[inline]
    pub(crate) fn find_probe(&self, key: &FourTuple) -> Option<(Probe, Asks)> {
        let probe = self.probes.find(key).map(|probe| (probe, Asks::Options));
        probe.or_else(|| self.checks.find(key))
    }

    /// A segment from a server to the port that asks it.
    pub(crate) fn handle_probe_answer(
        &mut self,
        (probe, asks): (Probe, Asks),
        incoming: Incoming<P::Buffer>,
        out: &mut impl Output<P::Buffer>,
    ) {
        let now = self.now;
        if !incoming.is_intact() {
            return self.emit.dropped(DropReason::BadTcpChecksum);
        }
        if let Asks::Content(check) = asks {
            return self.pass_to_check(check, incoming, out);
        }
        let Incoming { buffer, segment } = incoming;
        let is_answer = segment.has(TcpFlags::ACK) && segment.ack == probe.isn + 1;
        if segment.has(TcpFlags::RST) {
            // RFC 9293 3.10.7.3: in SYN-SENT a RST counts only if it acknowledges the SYN.
            if !is_answer {
                return self.emit.dropped(DropReason::OutOfWindowRst);
            }
            self.emit.dropped(DropReason::Consumed);
            return match asks {
                Asks::Options => self.end_refused(&probe),
                Asks::Life | Asks::Content(_) => self.end_check(probe.server, Some(Err(CheckFailure::Refused))),
            };
        }
        if !segment.has(TcpFlags::ACK) || is_answer && !segment.has(TcpFlags::SYN) {
            return self.emit.dropped(DropReason::NotAnAnswer);
        }
        if is_answer {
            match asks {
                Asks::Options => {
                    let options = TcpOptions::parse(segment.options(buffer.data()));
                    self.learn(&probe, &options, segment.window);
                }
                Asks::Life | Asks::Content(_) => self.end_check(probe.server, Some(Ok(()))),
            }
        } else {
            // RFC 9293 3.10.7.3: an unacceptable ACK in SYN-SENT is answered by a RST with its own number. Who can send
            // one knows our port, not our number: the SYN is repeated by its timer only.
            if !self.admission.limits.probes.take(now) {
                return self.emit.dropped(DropReason::RateLimited);
            }
            self.probes.on_stale_connection();
        }
        self.reset_sender(segment, buffer, out);
    }

    fn learn(&mut self, probe: &Probe, options: &TcpOptions, window: u16) {
        let version = (self.settings.servers)
            .get(usize::from(probe.server))
            .map_or(IpVersion::V4, |server| ip_version(server.address));
        let found = ServerCaps::of(options, window, version);
        let is_news = self.handshake.syn_ack_options.note_probe(probe.server, found);
        self.join(probe.server);
        self.release_probe(probe);
        (self.probes).on_answer(probe.server, self.now, is_news, found.lacks_something());
    }

    /// Learns from the SYN-ACK to a connection whose SYN offered this. If the server can do less than was known, a probe
    /// will tell whether that lasts.
    #[inline]
    pub(crate) fn learn_server_caps(
        &mut self,
        (server, offered): (u16, Offered),
        segment: &Segment,
        options: &TcpOptions,
    ) {
        let version = ip_version(segment.key.remote);
        if !(self.handshake.syn_ack_options).note_live(server, offered, options, segment.window, version) {
            return;
        }
        self.probes.on_less(server, self.now);
    }

    fn end_refused(&mut self, probe: &Probe) {
        self.handshake.syn_ack_options.end_first_probe(probe.server);
        self.join(probe.server);
        self.release_probe(probe);
        self.probes.on_refusal(probe.server, self.now);
    }

    fn end_silence(&mut self, server: u16) {
        self.handshake.syn_ack_options.end_first_probe(server);
        self.join(server);
        self.probes.on_silence(server, self.now);
    }

    /// The first probe of a server is over: if it is new, it takes connections from now on, or, if it cannot do what
    /// clients were offered, when no cookie of theirs is left.
    fn join(&mut self, server: u16) {
        if !self.handshake.syn_ack_options.is_joining(server) {
            return;
        }
        let waits = self.handshake.syn_ack_options.join(server, self.now);
        if !waits || !self.probes.set_join(server, self.now + 2 * cookie::SLOT) {
            self.upstream.admit(ServerId(server));
        }
    }

    /// Forgets the probes of servers that are no more.
    pub(crate) fn end_probes_of(&mut self, difference: &Difference) {
        for server in difference.replaced() {
            if let Some(probe) = self.probes.of(server) {
                self.release_probe(&probe);
            }
        }
    }

    /// Servers are no longer asked: those that are new wait for no answer.
    pub(crate) fn end_all_probes(&mut self) {
        while let Some(probe) = self.probes.last() {
            self.release_probe(&probe);
        }
        (0..self.settings.servers.len() as u16).for_each(|server| self.join(server));
    }

    /// Forgets a probe and gives its port back.
    fn release_probe(&mut self, probe: &Probe) {
        self.probes.forget(probe.server);
        self.release_port_of(probe);
    }

    /// Gives the port of a probe back, with what the server may remember of it.
    pub(crate) fn release_port_of(&mut self, probe: &Probe) {
        let pool = (usize::from(probe.source), usize::from(probe.local));
        self.sources
            .release(pool, probe.key.local_port, probe.last_use(), self.now);
    }

    /// Forgets all probes: the engine stops.
    pub(crate) fn end_probes(&mut self) {
        while let Some(probe) = self.probes.last() {
            self.release_probe(&probe);
        }
        self.probes.stop();
    }

    pub(crate) fn path_of_probe(&self, probe: &Probe) -> Option<Path> {
        let server = self.settings.servers.get(usize::from(probe.server))?;
        let next_hop = self.next_hops.mac(server.next_hop)?;
        Some(self.settings.path(&probe.key, next_hop, server.device))
    }
}
