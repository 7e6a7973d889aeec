//! Sends [probes](crate::probe) and reads their answers.

use crate::admission::round_budget::RoundBudget;
use crate::base::callbacks::SelectServer;
use crate::base::drop_reason::DropReason;
use crate::base::ids::ServerId;
use crate::base::output::{NextHops, Output};
use crate::base::path::Path;
use crate::handshake::syn_ack_options::{Offered, ServerCaps};
use crate::probe::{AT_ONCE, FOR_NEXT_HOP, FOR_ROOM, NEXT_HOP_TRIES, Probe, ProbeBackoff, ProbeEvent, SHIFT, WAITS};
use crate::proxy::{Incoming, Proxy};
use crate::session::numbers::Control;
use crate::session::segment::Segment;
use e2d2::buffer::{BufferPool, PacketBuffer};
use e2d2::counters::Counters;
use e2d2::time::Instant;
use e2d2::wire::frame::IpVersion;
use e2d2::wire::tcp::{TcpFlags, TcpOptions};
use netfcts::leg::ip_version;
use netfcts::pool::{LastUse, PortPool};
use netfcts::seq::SeqNum;

impl<P, S, N> Proxy<P, S, N>
where
    P: BufferPool,
    S: SelectServer,
    N: NextHops,
{
    /// What was asked of servers, and what came of it.
    pub fn probes(&self) -> &Counters<ProbeEvent> {
        self.probes.counters()
    }

    /// What is known of a server; `None` as long as it has not answered.
    pub fn server_caps(&self, server: ServerId) -> Option<ServerCaps> {
        self.handshake.syn_ack_options.server_caps(server.0)
    }

    /// The next server of which something new is known, each at most once in 8 s.
    pub fn take_caps_change(&mut self, now: Instant) -> Option<(ServerId, ServerCaps)> {
        self.handshake.syn_ack_options.take_caps_change(now)
    }

    /// Asks whom it is time to ask. Returns true if anyone was.
    pub(crate) fn poll_probes(
        &mut self,
        now: Instant,
        budget: &mut RoundBudget,
        out: &mut impl Output<P::Buffer>,
    ) -> bool {
        let before = *budget.moves();
        while budget.affords_one(out)
            && let Some(server) = self.probes.wheel.pop_expired(now, budget.moves())
        {
            budget.note_fired();
            let server = server as u16;
            match self.probes.asked.iter().position(|probe| probe.server == server) {
                Some(index) => self.repeat_probe(now, index, out),
                None if self.shutdown.is_draining => {}
                None => self.begin_probe(now, server, out),
            }
        }
        *budget.moves() < before
    }

    fn begin_probe(&mut self, now: Instant, server: u16, out: &mut impl Output<P::Buffer>) {
        let Some(settings) = self.settings.servers.get(usize::from(server)) else {
            return;
        };
        if self.probes.asked.len() == AT_ONCE {
            return self.probes.wheel.arm(u32::from(server), now + FOR_ROOM);
        }
        if self.next_hops.mac(settings.next_hop).is_none() {
            let patience = &mut self.probes.patience[usize::from(server)];
            patience.without_next_hop += 1;
            if patience.without_next_hop == NEXT_HOP_TRIES {
                return self.end_silence(now, server);
            }
            return self.probes.wheel.arm(u32::from(server), now + FOR_NEXT_HOP);
        }
        // Connections have the ports first: where there are few, the last one is theirs.
        let can_spare = |pool: &PortPool| pool.free() > usize::from(pool.capacity() > 1);
        let (of_server, locals) = (usize::from(server), settings.locals.len());
        let local = (0..locals).find(|&local| can_spare(self.sources.ports.pool(of_server, local)));
        let taken = local.and_then(|local| Some(local as u16).zip(self.sources.ports.take(of_server, local, now)));
        let Some((local, taken)) = taken else {
            self.probes.counters.add(ProbeEvent::NoPort, 1);
            return self.end_silence(now, server);
        };
        let mut probe = Probe {
            server,
            local,
            port: taken.port,
            isn: SeqNum(0),
            tsval: self.handshake.timestamp(now),
            tries: 0,
        };
        let Some(key) = probe.key(&self.settings) else { return };
        // As for any connection: nothing of the port's last one may come back (RFC 6528 3, RFC 6191 2).
        probe.isn = self.handshake.isn.isn(
            now,
            (&key.local.to_be_bytes(), key.local_port),
            (&key.remote.to_be_bytes(), key.remote_port),
        );
        if let Some(last) = taken.last_use {
            probe.isn = probe.isn.later(last.next_seq);
            probe.tsval = SeqNum(probe.tsval).later(SeqNum(last.next_tsval)).0;
        }
        let hash = self.flows.hash(&key);
        self.free_key(hash, &key);
        self.probes.asked.push(probe);
        self.repeat_probe(now, self.probes.asked.len() - 1, out);
    }

    /// Sends the SYN of a probe, or gives the server up.
    fn repeat_probe(&mut self, now: Instant, index: usize, out: &mut impl Output<P::Buffer>) {
        let probe = self.probes.asked[index];
        let Some(&wait) = WAITS.get(usize::from(probe.tries)) else {
            self.release_probe(now, &probe);
            return self.end_silence(now, probe.server);
        };
        self.probes.asked[index].tries += 1;
        self.probes.wheel.arm(u32::from(probe.server), now + wait);
        let Some(path) = self.path_of_probe(&probe) else {
            return self.emit.dropped(DropReason::NoNeighbour);
        };
        let mtu = self.settings.devices[usize::from(path.device.0)].mtu;
        let control = Control {
            seq: probe.isn,
            ack: SeqNum(0),
            flags: TcpFlags::SYN,
            window: u16::MAX,
            options: TcpOptions {
                mss: Some(mtu - path.header_len()),
                window_scale: Some(SHIFT),
                sack_permitted: true,
                timestamps: Some((probe.tsval, 0)),
            },
        };
        self.probes.counters.add(ProbeEvent::SynSent, 1);
        self.emit.send(None, &path, &control, &[], out);
    }

    /// A segment from a server to the port that asks it.
    pub(crate) fn handle_probe_answer(
        &mut self,
        now: Instant,
        probe: Probe,
        incoming: Incoming<P::Buffer>,
        out: &mut impl Output<P::Buffer>,
    ) {
        if !incoming.is_intact() {
            return self.emit.dropped(DropReason::BadTcpChecksum);
        }
        let Incoming { buffer, segment } = incoming;
        let is_answer = segment.has(TcpFlags::ACK) && segment.ack == probe.isn + 1;
        if segment.has(TcpFlags::RST) {
            // RFC 9293 3.10.7.3: in SYN-SENT a RST counts only if it acknowledges the SYN.
            if !is_answer {
                return self.emit.dropped(DropReason::OutOfWindowRst);
            }
            self.emit.dropped(DropReason::Consumed);
            self.probes.counters.add(ProbeEvent::Refused, 1);
            self.handshake.syn_ack_options.note_silence(probe.server);
            self.release_probe(now, &probe);
            return self.probes.ask_again(probe.server, now);
        }
        if !segment.has(TcpFlags::ACK) || is_answer && !segment.has(TcpFlags::SYN) {
            return self.emit.dropped(DropReason::NotAnAnswer);
        }
        if is_answer {
            let options = TcpOptions::parse(segment.options(buffer.data()));
            self.learn(now, &probe, &options, segment.window);
        } else {
            // RFC 9293 3.10.7.3: an unacceptable ACK in SYN-SENT is answered by a RST with its own number. Who can send
            // one knows our port, not our number: the SYN is repeated by its timer only.
            if !self.admission.limits.probes.take(now) {
                return self.emit.dropped(DropReason::RateLimited);
            }
            self.probes.counters.add(ProbeEvent::StaleConnection, 1);
        }
        self.reset_sender(segment, buffer, out);
    }

    fn learn(&mut self, now: Instant, probe: &Probe, options: &TcpOptions, window: u16) {
        let version = (self.settings.servers)
            .get(usize::from(probe.server))
            .map_or(IpVersion::V4, |server| ip_version(server.address));
        let found = ServerCaps::of(options, window, version);
        self.probes.counters.add(ProbeEvent::Answered, 1);
        if self.handshake.syn_ack_options.note_probe(probe.server, found) {
            self.probes.counters.add(ProbeEvent::Learned, 1);
        }
        self.release_probe(now, probe);
        if found.lacks_something() {
            self.probes.ask_again(probe.server, now);
        } else if let Some(patience) = self.probes.patience.get_mut(usize::from(probe.server)) {
            *patience = ProbeBackoff::default();
            self.probes.wheel.disarm(u32::from(probe.server));
        }
    }

    /// Learns from the SYN-ACK to a connection whose SYN offered this. If the server can do less than was known, a probe
    /// will tell whether that lasts.
    #[inline]
    pub(crate) fn learn_server_caps(
        &mut self,
        now: Instant,
        (server, offered): (u16, Offered),
        segment: &Segment,
        options: &TcpOptions,
    ) {
        let version = ip_version(segment.key.remote);
        if !(self.handshake.syn_ack_options).note_live(server, offered, options, segment.window, version) {
            return;
        }
        self.probes.counters.add(ProbeEvent::LearnedLess, 1);
        if !self.probes.wheel.is_armed(u32::from(server)) {
            self.probes.ask_again(server, now);
        }
    }

    fn end_silence(&mut self, now: Instant, server: u16) {
        self.probes.counters.add(ProbeEvent::Unanswered, 1);
        self.handshake.syn_ack_options.note_silence(server);
        self.probes.ask_again(server, now);
    }

    /// Forgets a probe and gives its port back, with what the server may remember of it.
    fn release_probe(&mut self, now: Instant, probe: &Probe) {
        self.probes.asked.retain(|asked| asked.server != probe.server);
        let last = LastUse {
            next_seq: probe.isn + 2,
            next_tsval: probe.tsval.wrapping_add(1),
        };
        let pool = (usize::from(probe.server), usize::from(probe.local));
        self.sources.ports.release(pool, probe.port, last, now);
    }

    /// Forgets all probes: the engine stops.
    pub(crate) fn end_probes(&mut self, now: Instant) {
        while let Some(probe) = self.probes.asked.last().copied() {
            self.release_probe(now, &probe);
        }
        for server in 0..self.probes.patience.len() as u32 {
            self.probes.wheel.disarm(server);
        }
    }

    fn path_of_probe(&self, probe: &Probe) -> Option<Path> {
        let server = self.settings.servers.get(usize::from(probe.server))?;
        let key = probe.key(&self.settings)?;
        let ours = self.settings.devices[usize::from(server.device.0)];
        Some(Path {
            source_mac: ours.mac,
            destination_mac: self.next_hops.mac(server.next_hop)?,
            source: key.local,
            destination: key.remote,
            source_port: key.local_port,
            destination_port: key.remote_port,
            device: server.device,
            mtu: ours.mtu,
            checksums: ours.checksums,
        })
    }
}
