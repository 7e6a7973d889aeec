//! Checks of servers: their settings, and the messages between a core and the thread that makes checks with content.

use crate::base::server_state::CheckFailure;
use netfcts::FourTuple;
use std::time::Duration;

/// How long a check with content may wait for its turn, where more are ordered than can be made at once. Then it is not made,
/// and ordered anew.
pub const PATIENCE: Duration = Duration::from_secs(1);

/// How a check asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckKind {
    /// By a SYN, which is reset when it has been answered.
    Syn,
    /// By a connection of its own, which [the program](crate::Output::begin_check) makes: the core passes its packets.
    Content,
}

/// How a server is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Check {
    /// How it asks.
    pub kind: CheckKind,
    /// Another port of the server than that of its connections.
    pub port: Option<u16>,
    /// Time from one check to the next.
    pub interval: Duration,
    /// Time to the next check while the last one contradicts those before.
    pub fast_interval: Duration,
    /// How long an answer may take; `None` for 100 ms, with content for 1 s, or four times as long as it usually takes if
    /// that is longer.
    pub timeout: Option<Duration>,
    /// Checks in a row that pass and end a failure, 1 to 100.
    pub rise: u8,
    /// Checks in a row that fail and begin one, 1 to 100.
    pub fall: u8,
}

/// One check of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CheckId {
    /// The server's number.
    pub server: u16,
    /// Which of the server's checks this is: a late result is not taken for the next check's.
    pub turn: u16,
}

/// A check with content that is to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckOrder {
    /// Which check.
    pub check: CheckId,
    /// The connection's addresses and ports; the server is the remote one.
    pub key: FourTuple,
    /// The initial sequence number, above any that the server may remember of our port (RFC 6191 2).
    pub isn: u32,
    /// The MTU, in bytes of an IP packet.
    pub mtu: u16,
    /// The timeout, from the SYN on.
    pub timeout: Duration,
    /// The server is down.
    pub is_down: bool,
}

/// The end of a check with content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckEnd {
    /// Its result. `None` if it could not be made, which says nothing of the server.
    pub result: Option<Result<(), CheckFailure>>,
    /// The sequence number after all that was sent.
    pub next_seq: u32,
    /// How long it waited for its turn, before its SYN.
    pub waited: Duration,
}
