//! Asking servers what their TCP can do: a SYN with every option, and a RST when it is answered.
//!
//! Each core asks every server by itself, from its own ports, so that nothing is shared and the answers come to the core
//! that waits for them. At start every server is asked once, a few dozen at a time; nobody waits for the answers, but what
//! cannot be translated is not promised before them ([`syn_ack_options`](crate::handshake::syn_ack_options)). A server that does not answer is
//! asked again after 2 s, and so is one that lacks something, each time after twice as long, up to five minutes; one that
//! has all there is, never: its live SYN-ACKs tell if that changes.
//!
//! An answer counts only if it acknowledges the number of the SYN (RFC 9293 3.10.7.3), which is as hard to guess as that
//! of any connection. Nothing is learned from anything else.

mod checks;

pub use checks::CheckEvent;
pub(crate) use checks::Checks;

use crate::base::checks::CheckId;
use crate::base::difference::{Difference, MOST_SERVERS, put};
use crate::base::settings::Settings;
use crate::session::numbers::Control;
use e2d2::counters::Counters;
use e2d2::time::Instant;
use e2d2::wire::tcp::{TcpFlags, TcpOptions};
use netfcts::FourTuple;
use netfcts::pool::LastUse;
use netfcts::seq::SeqNum;
use netfcts::wheel::TimerWheel;
use std::collections::VecDeque;
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

/// How often to look whether a server is still in maintenance.
const FOR_MAINTENANCE: Duration = Duration::from_secs(1);

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

/// What a probe is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asks {
    /// What the server's TCP can do.
    Options,
    /// Whether it is there.
    Life,
    /// What it says, which somebody else asks by this check.
    Content(CheckId),
}

/// A server that is being asked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Probe {
    pub(crate) server: u16,
    /// The server whose source ports it uses.
    pub(crate) source: u16,
    /// Index among that server's local addresses.
    pub(crate) local: u16,
    /// Between which ends; ours is the local one.
    pub(crate) key: FourTuple,
    pub(crate) isn: SeqNum,
    pub(crate) tsval: u32,
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
    /// When it takes connections, if it is new and that is known.
    joins_at: Option<Instant>,
}

/// The probes of one core.
pub(crate) struct Probes {
    /// By server: when to ask, or to ask again.
    wheel: TimerWheel,
    asked: Vec<Probe>,
    patience: Vec<ProbeBackoff>,
    /// New servers that take no connection yet, and from when on each will, in the order of these times. Who has another time, or
    /// none, has been replaced since.
    joining: VecDeque<(u16, Instant)>,
    counters: Counters<ProbeEvent>,
}

impl Probes {
    /// All servers are to be asked now, if any are.
    pub(crate) fn new(settings: &Settings, now: Instant) -> Self {
        let mut probes = Probes {
            wheel: TimerWheel::new(MOST_SERVERS, now),
            asked: Vec::with_capacity(AT_ONCE),
            patience: Vec::with_capacity(MOST_SERVERS),
            joining: VecDeque::with_capacity(MOST_SERVERS),
            counters: Counters::default(),
        };
        probes.ask_all(settings, now);
        probes
    }

    /// All servers of pools are to be asked now, as if never before, if any are.
    fn ask_all(&mut self, settings: &Settings, now: Instant) {
        if settings.promises.offer.probe {
            self.patience.iter_mut().for_each(ProbeBackoff::begin_anew);
            self.patience.resize(settings.servers.len(), ProbeBackoff::default());
            let in_pools = (0..)
                .zip(&settings.promises.pools_of)
                .filter(|(_, pools)| !pools.is_empty());
            in_pools.for_each(|(server, _)| self.wheel.arm(server, now));
        }
    }

    /// Goes on with other settings. Forgets the servers that had these numbers; those that are new, which follow the others, are to be
    /// asked now, and to take no connection before. If none was asked, all are.
    pub(crate) fn adopt(&mut self, (settings, before): (&Settings, &Settings), difference: &Difference, now: Instant) {
        match [before, settings].map(|settings| settings.promises.offer.probe) {
            [false, _] => return self.ask_all(settings, now),
            [true, false] => return,
            [true, true] => {}
        }
        for server in difference.replaced() {
            self.wheel.disarm(u32::from(server));
            put(&mut self.patience, server, &mut Some(ProbeBackoff::default()));
        }
        for &server in &difference.new_servers {
            self.wheel.arm(u32::from(server), now);
        }
    }

    /// A new server takes connections from this time on, which is not before that of another. False if that cannot be kept: more
    /// were replaced meanwhile than there is room for.
    #[must_use]
    pub(crate) fn set_join(&mut self, server: u16, from: Instant) -> bool {
        let Some(patience) = self.patience.get_mut(usize::from(server)) else {
            return false;
        };
        if self.joining.len() == self.joining.capacity() {
            return false;
        }
        patience.joins_at = Some(from);
        self.joining.push_back((server, from));
        true
    }

    /// Looks at the next server whose time has come: it takes connections from now on, if it is still the same.
    pub(crate) fn pop_joined(&mut self, now: Instant) -> Option<Option<u16>> {
        let &(server, from) = self.joining.front().filter(|(_, from)| *from <= now)?;
        self.joining.pop_front();
        let patience = self.patience.get_mut(usize::from(server));
        let is_same = patience.is_some_and(|patience| {
            let is_same = patience.joins_at == Some(from);
            patience.joins_at = patience.joins_at.filter(|_| !is_same);
            is_same
        });
        Some(is_same.then_some(server))
    }

    /// The probe that a segment with this key answers.
    #[inline]
    pub(crate) fn find(&self, key: &FourTuple) -> Option<Probe> {
        self.asked.iter().find(|probe| probe.key == *key).copied()
    }

    /// How many servers are being asked.
    pub(crate) fn len(&self) -> usize {
        self.asked.len()
    }

    pub(crate) fn counters(&self) -> &Counters<ProbeEvent> {
        &self.counters
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let joins = self.joining.front().map(|(_, from)| *from);
        self.wheel.next_deadline().into_iter().chain(joins).min()
    }

    pub(crate) fn memory(&self) -> usize {
        self.wheel.memory() + self.asked.capacity() * size_of::<Probe>() + size_of_val(&*self.patience)
    }

    /// The next server that is due; what is moved on the way is paid for with `moves`.
    pub(crate) fn pop_due(&mut self, now: Instant, moves: &mut usize) -> Option<u16> {
        self.wheel.pop_expired(now, moves).map(|server| server as u16)
    }

    /// A server's probe, if one is under way.
    pub(crate) fn of(&self, server: u16) -> Option<Probe> {
        self.asked.iter().find(|probe| probe.server == server).copied()
    }

    /// The place of a server's probe among those under way.
    pub(crate) fn place_of(&self, server: u16) -> Option<usize> {
        self.asked.iter().position(|probe| probe.server == server)
    }

    /// True if one more server can be asked; otherwise it is looked again later.
    pub(crate) fn has_room(&mut self, server: u16, now: Instant) -> bool {
        let has_room = self.asked.len() < AT_ONCE;
        if !has_room {
            self.wheel.arm(u32::from(server), now + FOR_ROOM);
        }
        has_room
    }

    /// A server is not to be asked now; it is looked again later.
    pub(crate) fn put_off(&mut self, server: u16, now: Instant) {
        self.wheel.arm(u32::from(server), now + FOR_MAINTENANCE);
    }

    /// The MAC address of a server's next hop is not known. Returns true if that has lasted so long that the server counts as
    /// silent.
    pub(crate) fn on_no_next_hop(&mut self, server: u16, now: Instant) -> bool {
        let patience = &mut self.patience[usize::from(server)];
        patience.without_next_hop += 1;
        let is_over = patience.without_next_hop == NEXT_HOP_TRIES;
        if !is_over {
            self.wheel.arm(u32::from(server), now + FOR_NEXT_HOP);
        }
        is_over
    }

    /// No source port could be spared.
    pub(crate) fn on_no_port(&mut self) {
        self.counters.add(ProbeEvent::NoPort, 1);
    }

    /// A probe is under way; returns its place.
    pub(crate) fn begin(&mut self, probe: Probe) -> usize {
        self.asked.push(probe);
        self.asked.len() - 1
    }

    /// The probe in this place is due: another SYN of it, or none, as it has waited for its last.
    pub(crate) fn next_try(&mut self, place: usize, now: Instant) -> (Probe, bool) {
        let probe = &mut self.asked[place];
        let wait = WAITS.get(usize::from(probe.tries));
        if let Some(&wait) = wait {
            probe.tries += 1;
            self.wheel.arm(u32::from(probe.server), now + wait);
        }
        (*probe, wait.is_some())
    }

    /// A SYN of a probe goes out.
    pub(crate) fn on_syn(&mut self) {
        self.counters.add(ProbeEvent::SynSent, 1);
    }

    /// An older connection of the server's answers from the port of a probe.
    pub(crate) fn on_stale_connection(&mut self) {
        self.counters.add(ProbeEvent::StaleConnection, 1);
    }

    /// The server has refused.
    pub(crate) fn on_refusal(&mut self, server: u16, now: Instant) {
        self.counters.add(ProbeEvent::Refused, 1);
        self.ask_again(server, now);
    }

    /// The server has answered; `is_news` says that this changes what was known, `is_lacking` that a later answer may be better.
    pub(crate) fn on_answer(&mut self, server: u16, now: Instant, is_news: bool, is_lacking: bool) {
        self.counters.add(ProbeEvent::Answered, 1);
        self.counters.add(ProbeEvent::Learned, u64::from(is_news));
        if is_lacking {
            self.ask_again(server, now);
        } else if let Some(patience) = self.patience.get_mut(usize::from(server)) {
            (patience.rounds, patience.without_next_hop) = (0, 0);
            self.wheel.disarm(u32::from(server));
        }
    }

    /// A server has not answered, or there was no way to ask it.
    pub(crate) fn on_silence(&mut self, server: u16, now: Instant) {
        self.counters.add(ProbeEvent::Unanswered, 1);
        self.ask_again(server, now);
    }

    /// The SYN-ACK to a connection has shown that a server can do less than was known: a probe will tell whether that lasts.
    pub(crate) fn on_less(&mut self, server: u16, now: Instant) {
        self.counters.add(ProbeEvent::LearnedLess, 1);
        if !self.wheel.is_armed(u32::from(server)) {
            self.ask_again(server, now);
        }
    }

    /// Forgets the probe of a server.
    pub(crate) fn forget(&mut self, server: u16) {
        self.asked.retain(|asked| asked.server != server);
    }

    /// One that is under way; none when all are over.
    pub(crate) fn last(&self) -> Option<Probe> {
        self.asked.last().copied()
    }

    /// No server is asked any more.
    pub(crate) fn stop(&mut self) {
        // `Proxy::finish` calls this in each round.
        if self.wheel.is_empty() {
            return;
        }
        for server in 0..self.patience.len() as u32 {
            self.wheel.disarm(server);
        }
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

impl ProbeBackoff {
    /// What was asked is forgotten; a time from which the server takes connections stays.
    fn begin_anew(&mut self) {
        *self = ProbeBackoff {
            joins_at: self.joins_at,
            ..ProbeBackoff::default()
        };
    }
}

impl Probe {
    pub(crate) fn new(server: u16, (source, local): (u16, u16), key: FourTuple) -> Self {
        Probe {
            server,
            source,
            local,
            key,
            isn: SeqNum(0),
            tsval: 0,
            tries: 0,
        }
    }

    /// Its SYN: every option, and an MSS that fits the link.
    pub(crate) fn syn(&self, mss: u16) -> Control {
        Control {
            seq: self.isn,
            ack: SeqNum(0),
            flags: TcpFlags::SYN,
            window: u16::MAX,
            options: TcpOptions {
                mss: Some(mss),
                window_scale: Some(SHIFT),
                sack_permitted: true,
                timestamps: Some((self.tsval, 0)),
            },
        }
    }

    /// This is the number behind all that was sent.
    fn note_sent(&mut self, next_seq: u32) {
        self.isn = SeqNum(next_seq) - 1;
    }

    /// What the server may remember of it.
    pub(crate) fn last_use(&self) -> LastUse {
        LastUse {
            next_seq: self.isn + 2,
            next_tsval: self.tsval.wrapping_add(1),
        }
    }
}
