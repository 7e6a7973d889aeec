//! Checks of servers: how they are made, and what passes between a core and who makes those with content.

use crate::base::server_state::CheckFailure;
use netfcts::FourTuple;
use std::time::Duration;

/// How a check asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckKind {
    /// By a SYN, which is reset when it has been answered.
    Syn,
    /// By a connection, at whose end points is whoever [makes such checks](crate::Output::begin_check).
    Content,
}

/// How a server is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Check {
    /// How it asks.
    pub kind: CheckKind,
    /// Another port of the server than that of its connections.
    pub port: Option<u16>,
    /// From one check to the next.
    pub interval: Duration,
    /// The same while the last one contradicts those before.
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
    /// Which of its checks this is, so that what comes too late is not taken for the next one's.
    pub turn: u16,
}

/// A check with content that is to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckOrder {
    /// Which.
    pub check: CheckId,
    /// Between which end points; the server is the remote one.
    pub key: FourTuple,
    /// The number of its SYN: what the server may remember of our port is older.
    pub isn: u32,
    /// How long an IP packet may be, in bytes.
    pub mtu: u16,
    /// How long it may take.
    pub timeout: Duration,
}

/// What has become of a check with content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckEnd {
    /// Its result. `None` if it could not be made, which says nothing of the server.
    pub result: Option<Result<(), CheckFailure>>,
    /// The sequence number behind all that was sent.
    pub next_seq: u32,
}
