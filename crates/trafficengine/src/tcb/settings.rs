//! What all end points of a generator have in common.

use std::time::Duration;

/// What a TCP end point does, the same for all connections of a generator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpSettings {
    /// Largest segment that we take, options not counted; announced in SYN.
    pub mss: u16,
    /// Window that we announce, in bytes. Data is consumed at once, so it never shrinks.
    pub window: u32,
    /// Window scale that we offer, if any.
    pub window_scale: Option<u8>,
    /// Whether we offer timestamps.
    pub timestamps: bool,
    /// Whether we offer selective acknowledgements.
    pub sack: bool,
    /// Retransmission time-out before the round-trip time is known.
    pub rto_initial: Duration,
    /// Lower limit of the retransmission time-out.
    pub rto_min: Duration,
    /// Upper limit of the retransmission time-out, doubled ones included.
    pub rto_max: Duration,
    /// How long an acknowledgement waits for data to go with, where data may follow at any time: at most 500 ms (RFC 1122
    /// 4.2.3.2), and less than the peer's shortest retransmission time-out.
    pub ack_delay: Duration,
    /// Transmissions of the same thing without an answer after which a connection is given up.
    pub retries: u8,
}

impl Default for TcpSettings {
    fn default() -> TcpSettings {
        TcpSettings {
            mss: 1460,
            window: 1 << 20,
            window_scale: Some(7),
            timestamps: true,
            sack: true,
            // RFC 6298 2.1; Linux's lower limit, since RFC 6298's (1 s) is longer than any of our paths needs.
            rto_initial: Duration::from_secs(1),
            rto_min: Duration::from_millis(200),
            rto_max: Duration::from_secs(60),
            // As Linux.
            ack_delay: Duration::from_millis(40),
            retries: 8,
        }
    }
}
