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

use crate::base::settings::Settings;
use e2d2::counters::Counters;
use e2d2::time::Instant;
use netfcts::FourTuple;
use netfcts::seq::SeqNum;
use netfcts::wheel::TimerWheel;
use std::time::Duration;

/// Servers asked at the same time: their answers are found by looking through all of them.
pub(crate) const AT_ONCE: usize = 64;

/// How long each SYN waits for its answer.
pub(crate) const WAITS: [Duration; 3] = [
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
];

/// How often to look whether fewer are being asked: thousands of dead servers must cost next to nothing.
pub(crate) const FOR_ROOM: Duration = Duration::from_millis(250);

/// How often to look whether the next hop's address is known, and how often before that counts as silence.
pub(crate) const FOR_NEXT_HOP: Duration = Duration::from_millis(50);
pub(crate) const NEXT_HOP_TRIES: u8 = 60;

/// How long after it to ask a server again whose answer leaves something to be wished; doubled each time.
const AGAIN: Duration = Duration::from_secs(2);
const LATEST: Duration = Duration::from_secs(300);

/// The window shift of our SYN: any, for nothing will be sent.
pub(crate) const SHIFT: u8 = 7;

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
pub(crate) struct Probe {
    pub(crate) server: u16,
    /// Index among the server's local addresses.
    pub(crate) local: u16,
    pub(crate) port: u16,
    pub(crate) isn: SeqNum,
    pub(crate) tsval: u32,
    /// SYNs sent.
    pub(crate) tries: u8,
}

/// What is kept of each server.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ProbeBackoff {
    /// Rounds that left something to be wished, in a row.
    pub(crate) rounds: u8,
    /// How often its next hop was not known, in a row.
    pub(crate) without_next_hop: u8,
}

/// The probes of one core.
pub(crate) struct Probes {
    /// By server: when to ask, or to ask again.
    pub(crate) wheel: TimerWheel,
    pub(crate) asked: Vec<Probe>,
    pub(crate) patience: Box<[ProbeBackoff]>,
    pub(crate) counters: Counters<ProbeEvent>,
}

impl Probes {
    /// All servers are to be asked now, if any are.
    pub(crate) fn new(settings: &Settings, now: Instant) -> Self {
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
    pub(crate) fn find(&self, settings: &Settings, key: &FourTuple) -> Option<Probe> {
        let is_it = |probe: &&Probe| probe.port == key.local_port && probe.key(settings).as_ref() == Some(key);
        self.asked.iter().find(is_it).copied()
    }

    /// How many servers are being asked.
    pub(crate) fn len(&self) -> usize {
        self.asked.len()
    }

    pub(crate) fn counters(&self) -> &Counters<ProbeEvent> {
        &self.counters
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.wheel.next_deadline()
    }

    pub(crate) fn memory(&self) -> usize {
        self.wheel.memory() + self.asked.capacity() * size_of::<Probe>() + size_of_val(&*self.patience)
    }

    /// Ends a round that left something to be wished: when the next one begins.
    pub(crate) fn ask_again(&mut self, server: u16, now: Instant) {
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
    pub(crate) fn key(&self, settings: &Settings) -> Option<FourTuple> {
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
