//! Asking servers what their TCP can do: a SYN with every option, and a RST when it is answered.
//!
//! Each core asks every server by itself, from its own ports, so that nothing is shared and the answers come to the core
//! that waits for them. At start every server is asked once, a few dozen at a time; nobody waits for the answers, but what
//! cannot be translated is not promised before them ([`syn_ack_options`](super::syn_ack_options)). A server that does not answer is
//! asked again after 2 s, and so is one that lacks something, each time after twice as long, up to five minutes; one that
//! has all there is, never: its live SYN-ACKs tell if that changes.
//!
//! An answer counts only if it acknowledges the number of the SYN (RFC 9293 3.10.7.3), which is as hard to guess as that
//! of any connection. Nothing is learned from anything else.

use super::budget::RoundBudget;
use super::drop_reason::DropReason;
use super::ids::ServerId;
use super::segment::Segment;
use super::send::{Control, Path};
use super::settings::Settings;
use super::syn_ack_options::{Offered, ServerCaps};
use super::{Incoming, NextHops, Output, Proxy};
use crate::callbacks::SelectServer;
use e2d2::buffer::{BufferPool, PacketBuffer};
use e2d2::counters::Counters;
use e2d2::time::Instant;
use e2d2::wire::frame::IpVersion;
use e2d2::wire::tcp::{TcpFlags, TcpOptions};
use netfcts::FourTuple;
use netfcts::leg::ip_version;
use netfcts::pool::{LastUse, PortPool};
use netfcts::seq::SeqNum;
use netfcts::wheel::TimerWheel;
use std::time::Duration;

/// Servers asked at the same time: their answers are found by looking through all of them.
const AT_ONCE: usize = 64;

/// How long each SYN waits for its answer.
const WAITS: [Duration; 3] = [
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
];

/// How often to look whether fewer are being asked: thousands of dead servers must cost next to nothing.
const FOR_ROOM: Duration = Duration::from_millis(250);

/// How often to look whether the next hop's address is known, and how often before that counts as silence.
const FOR_NEXT_HOP: Duration = Duration::from_millis(50);
const NEXT_HOP_TRIES: u8 = 60;

/// How long after it to ask a server again whose answer leaves something to be wished; doubled each time.
const AGAIN: Duration = Duration::from_secs(2);
const LATEST: Duration = Duration::from_secs(300);

/// The window shift of our SYN: any, for nothing will be sent.
const SHIFT: u8 = 7;

e2d2::reasons! {
    /// What becomes of a probe.
    pub enum ProbeEvent {
        /// A SYN was sent, the first or a repetition.
        SynSent = "syn_sent",
        /// The server has said what it can do.
        Answered = "answered",
        /// Nothing listens there.
        Refused = "refused",
        /// No answer, or no MAC address to ask.
        Unanswered = "unanswered",
        /// The server still has an older connection from the port; it was reset.
        StaleConnection = "stale_connection",
        /// No source port could be spared.
        NoPort = "no_port",
        /// An answer has changed what is known of a server.
        Learned = "learned",
        /// The answer to a connection has shown that a server can do less than was known.
        LearnedLess = "learned_less",
    }
}

/// A server that is being asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Probe {
    server: u16,
    /// Index among the server's local addresses.
    local: u16,
    port: u16,
    isn: SeqNum,
    tsval: u32,
    /// SYNs sent.
    tries: u8,
}

/// What is kept of each server.
#[derive(Clone, Copy, Debug, Default)]
struct ProbeBackoff {
    /// Rounds that left something to be wished, in a row.
    rounds: u8,
    /// How often its next hop was not known, in a row.
    without_next_hop: u8,
}

/// The probes of one core.
pub(super) struct Probes {
    /// By server: when to ask, or to ask again.
    wheel: TimerWheel,
    asked: Vec<Probe>,
    patience: Box<[ProbeBackoff]>,
    counters: Counters<ProbeEvent>,
}

impl Probes {
    /// All servers are to be asked now, if any are.
    pub(super) fn new(settings: &Settings, now: Instant) -> Self {
        let count = if settings.promises.probe {
            settings.servers.len()
        } else {
            0
        };
        let mut wheel = TimerWheel::new(count.max(1), now);
        for server in 0..count as u32 {
            wheel.arm(server, now);
        }
        Probes {
            wheel,
            asked: Vec::with_capacity(AT_ONCE),
            patience: vec![ProbeBackoff::default(); count].into_boxed_slice(),
            counters: Counters::default(),
        }
    }

    /// The probe that a segment with this key answers.
    #[inline]
    pub(super) fn find(&self, settings: &Settings, key: &FourTuple) -> Option<Probe> {
        let is_it = |probe: &&Probe| probe.port == key.local_port && probe.key(settings).as_ref() == Some(key);
        self.asked.iter().find(is_it).copied()
    }

    /// How many servers are being asked.
    pub(super) fn len(&self) -> usize {
        self.asked.len()
    }

    pub(super) fn counters(&self) -> &Counters<ProbeEvent> {
        &self.counters
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.wheel.next_deadline()
    }

    pub(super) fn memory(&self) -> usize {
        self.wheel.memory() + self.asked.capacity() * size_of::<Probe>() + size_of_val(&*self.patience)
    }

    /// Ends a round that left something to be wished: when the next one begins.
    fn ask_again(&mut self, server: u16, now: Instant) {
        let Some(patience) = self.patience.get_mut(usize::from(server)) else {
            return;
        };
        let wait = AGAIN.saturating_mul(1 << patience.rounds.min(16)).min(LATEST);
        patience.rounds = patience.rounds.saturating_add(1);
        patience.without_next_hop = 0;
        self.wheel.arm(u32::from(server), now + wait);
    }
}

impl Probe {
    fn key(&self, settings: &Settings) -> Option<FourTuple> {
        let server = settings.servers.get(usize::from(self.server))?;
        let local = server.locals.get(usize::from(self.local))?;
        Some(FourTuple {
            remote: server.address,
            local: settings.addresses.value(local.address),
            remote_port: server.port,
            local_port: self.port,
        })
    }
}

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
        self.syn_ack_options.server_caps(server.0)
    }

    /// The next server of which something new is known, each at most once in 8 s.
    pub fn take_caps_change(&mut self, now: Instant) -> Option<(ServerId, ServerCaps)> {
        self.syn_ack_options.take_caps_change(now)
    }

    /// Asks whom it is time to ask. Returns true if anyone was.
    pub(super) fn poll_probes(
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
                None if self.draining => {}
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
        if self.neighbours.mac(settings.next_hop).is_none() {
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
        let local = (0..locals).find(|&local| can_spare(self.ports.pool(of_server, local)));
        let taken = local.and_then(|local| Some(local as u16).zip(self.ports.take(of_server, local, now)));
        let Some((local, taken)) = taken else {
            self.probes.counters.add(ProbeEvent::NoPort, 1);
            return self.end_silence(now, server);
        };
        let mut probe = Probe {
            server,
            local,
            port: taken.port,
            isn: SeqNum(0),
            tsval: self.timestamp(now),
            tries: 0,
        };
        let Some(key) = probe.key(&self.settings) else { return };
        // As for any connection: nothing of the port's last one may come back (RFC 6528 3, RFC 6191 2).
        probe.isn = self.isn.isn(
            now,
            (&key.local.to_be_bytes(), key.local_port),
            (&key.remote.to_be_bytes(), key.remote_port),
        );
        if let Some(last) = taken.last_use {
            probe.isn = probe.isn.later(last.next_seq);
            probe.tsval = SeqNum(probe.tsval).later(SeqNum(last.next_tsval)).0;
        }
        let hash = self.table.hash(&key);
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
            return self.drops.add(DropReason::NoNeighbour, 1);
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
        self.emit(None, &path, &control, &[], out);
    }

    /// A segment from a server to the port that asks it.
    pub(super) fn handle_probe_answer(
        &mut self,
        now: Instant,
        probe: Probe,
        incoming: Incoming<P::Buffer>,
        out: &mut impl Output<P::Buffer>,
    ) {
        if !incoming.is_intact() {
            return self.drops.add(DropReason::BadTcpChecksum, 1);
        }
        let Incoming { buffer, segment } = incoming;
        let is_answer = segment.has(TcpFlags::ACK) && segment.ack == probe.isn + 1;
        if segment.has(TcpFlags::RST) {
            // RFC 9293 3.10.7.3: in SYN-SENT a RST counts only if it acknowledges the SYN.
            if !is_answer {
                return self.drops.add(DropReason::OutOfWindowRst, 1);
            }
            self.drops.add(DropReason::Consumed, 1);
            self.probes.counters.add(ProbeEvent::Refused, 1);
            self.syn_ack_options.note_silence(probe.server);
            self.release_probe(now, &probe);
            return self.probes.ask_again(probe.server, now);
        }
        if !segment.has(TcpFlags::ACK) || is_answer && !segment.has(TcpFlags::SYN) {
            return self.drops.add(DropReason::NotAnAnswer, 1);
        }
        if is_answer {
            let options = TcpOptions::parse(segment.options(buffer.data()));
            self.learn(now, &probe, &options, segment.window);
        } else {
            // RFC 9293 3.10.7.3: an unacceptable ACK in SYN-SENT is answered by a RST with its own number. Who can send
            // one knows our port, not our number: the SYN is repeated by its timer only.
            if !self.limits.probes.take(now) {
                return self.drops.add(DropReason::RateLimited, 1);
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
        if self.syn_ack_options.note_probe(probe.server, found) {
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
    pub(super) fn learn_server_caps(
        &mut self,
        now: Instant,
        (server, offered): (u16, Offered),
        segment: &Segment,
        options: &TcpOptions,
    ) {
        let version = ip_version(segment.key.remote);
        if !(self.syn_ack_options).note_live(server, offered, options, segment.window, version) {
            return;
        }
        self.probes.counters.add(ProbeEvent::LearnedLess, 1);
        if !self.probes.wheel.is_armed(u32::from(server)) {
            self.probes.ask_again(server, now);
        }
    }

    fn end_silence(&mut self, now: Instant, server: u16) {
        self.probes.counters.add(ProbeEvent::Unanswered, 1);
        self.syn_ack_options.note_silence(server);
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
        self.ports.release(pool, probe.port, last, now);
    }

    /// Forgets all probes: the engine stops.
    pub(super) fn end_probes(&mut self, now: Instant) {
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
            destination_mac: self.neighbours.mac(server.next_hop)?,
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
