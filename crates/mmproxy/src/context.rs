//! What the parts of one worker share: the epoll instance, buffers, counters, the clock, the log.

use crate::metrics::{Counters, Reason};
use crate::plan::Surroundings;
use crate::relay::Pool;
use crate::timer::Millis;
use rustix::event::epoll;
use rustix::fd::{AsFd, OwnedFd};
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

/// What an event is about, packed into epoll's 64 bits.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// What kind of thing.
    pub kind: Kind,
    /// Which of them: a slot that is used again with another generation.
    pub slot: u32,
    /// Tells an event that was already under way from one for the slot's next user.
    pub generation: u32,
}

/// Kinds of things that have events.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A listening TCP socket.
    Listener,
    /// The client's side of a TCP session.
    Client,
    /// The server's side of a TCP session.
    Server,
    /// A listening UDP socket.
    Datagrams,
    /// The server's side of a UDP session.
    Replies,
    /// Orders from the main thread.
    Mailbox,
}

const KINDS: [Kind; 6] = [
    Kind::Listener,
    Kind::Client,
    Kind::Server,
    Kind::Datagrams,
    Kind::Replies,
    Kind::Mailbox,
];

impl Token {
    const GENERATION: u32 = (1 << 24) - 1;

    /// As epoll's user data.
    pub fn pack(self) -> epoll::EventData {
        let kind = self.kind as u64;
        epoll::EventData::new_u64(
            kind << 56 | u64::from(self.generation & Self::GENERATION) << 32 | u64::from(self.slot),
        )
    }

    /// From epoll's user data.
    pub fn unpack(data: epoll::EventData) -> Option<Self> {
        let bits = data.u64();
        let kind = *KINDS.get((bits >> 56) as usize)?;
        Some(Token {
            kind,
            slot: bits as u32,
            generation: (bits >> 32) as u32 & Self::GENERATION,
        })
    }
}

/// Shared by everything in one worker.
pub struct Context {
    /// The epoll instance.
    pub epoll: OwnedFd,
    /// Buffers and pipes.
    pub pool: Pool,
    /// What this worker counts.
    pub counters: Arc<Counters>,
    /// Addresses of this host.
    pub surroundings: Arc<Surroundings>,
    /// The time of the current round.
    pub now: Millis,
    /// Limits what is logged.
    pub log: LogLimit,
    /// Peers that fail.
    pub failures: Failures,
}

impl Context {
    /// Registers a socket.
    ///
    /// # Errors
    /// What `epoll_ctl` reports: no memory, or the user's limit of watches.
    pub fn watch(&self, fd: impl AsFd, token: Token, events: epoll::EventFlags) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, fd, token.pack(), events)?)
    }

    /// Counts and logs that something is not relayed.
    pub fn refuse(&mut self, reason: Reason, listener: &str, peer: impl fmt::Display, detail: impl fmt::Display) {
        self.counters.refuse(reason);
        if let Some(suppressed) = self.log.permit(self.now) {
            let name = reason.name();
            log::warn!("{listener}: {peer}: {name}: {detail}{suppressed}");
        }
    }
}

/// Lets a number of lines per second through, so that a flood of bad peers does not become one of log lines.
#[derive(Debug, Default)]
pub struct LogLimit {
    second: u64,
    lines: u32,
    suppressed: u64,
}

/// How many lines were left out before this one; shows nothing for none.
#[derive(Debug, PartialEq, Eq)]
pub struct Suppressed(u64);

impl fmt::Display for Suppressed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            Ok(())
        } else {
            write!(f, " ({} lines like this were left out)", self.0)
        }
    }
}

impl LogLimit {
    const LINES_PER_SECOND: u32 = 10;

    /// Whether a line may be written now.
    pub fn permit(&mut self, now: Millis) -> Option<Suppressed> {
        let second = now.0 / 1000;
        if second != self.second {
            (self.second, self.lines) = (second, 0);
        }
        if self.lines >= Self::LINES_PER_SECOND {
            self.suppressed += 1;
            return None;
        }
        self.lines += 1;
        Some(Suppressed(std::mem::take(&mut self.suppressed)))
    }
}

/// Counts failed headers by peer, in a bounded table.
#[derive(Debug)]
pub struct Failures {
    limit: u32,
    window: u64,
    counts: HashMap<IpAddr, u32>,
}

impl Failures {
    const WINDOW: u64 = 10_000;
    const PEERS: usize = 16_384;

    /// Refuses peers after `limit` failures in ten seconds; 0 for never.
    pub fn new(limit: u32) -> Self {
        Failures {
            limit,
            window: 0,
            counts: HashMap::new(),
        }
    }

    fn turn(&mut self, now: Millis) {
        let window = now.0 / Self::WINDOW;
        if window != self.window {
            self.window = window;
            self.counts.clear();
        }
    }

    /// One more failure of this peer.
    pub fn add(&mut self, peer: IpAddr, now: Millis) {
        self.turn(now);
        if self.limit != 0 && (self.counts.len() < Self::PEERS || self.counts.contains_key(&peer)) {
            *self.counts.entry(peer).or_default() += 1;
        }
    }

    /// Whether the peer is refused for now.
    pub fn is_refused(&mut self, peer: IpAddr, now: Millis) -> bool {
        self.turn(now);
        self.limit != 0 && self.counts.get(&peer).is_some_and(|&count| count >= self.limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_return() {
        for kind in KINDS {
            let token = Token {
                kind,
                slot: u32::MAX,
                generation: 0xff_fffe,
            };
            assert_eq!(Token::unpack(token.pack()), Some(token));
        }
        assert_eq!(Token::unpack(epoll::EventData::new_u64(u64::MAX)), None);
    }

    #[test]
    fn a_flood_leaves_ten_lines_a_second_and_says_how_many_are_missing() {
        let mut limit = LogLimit::default();
        let written = (0..100).filter(|_| limit.permit(Millis(5)).is_some()).count();
        assert_eq!(written, 10);
        let line = limit.permit(Millis(1005)).expect("a new second");
        assert_eq!(line.to_string(), " (90 lines like this were left out)");
    }

    #[test]
    fn failing_peers_are_refused_until_the_window_ends() {
        let mut failures = Failures::new(2);
        let peer: IpAddr = [192, 0, 2, 1].into();
        failures.add(peer, Millis(1));
        assert!(!failures.is_refused(peer, Millis(2)));
        failures.add(peer, Millis(3));
        assert!(failures.is_refused(peer, Millis(9_999)));
        assert!(!failures.is_refused([192, 0, 2, 2].into(), Millis(9_999)));
        assert!(!failures.is_refused(peer, Millis(10_000)));
        let mut unlimited = Failures::new(0);
        unlimited.add(peer, Millis(0));
        assert!(!unlimited.is_refused(peer, Millis(0)));
    }
}
