//! What the handshake with a client has agreed.

/// What was agreed with the client by SYN and SYN-ACK, as far as the cookie carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// The largest segment the client takes, rounded down to a class.
    pub mss: u16,
    /// The client's window shift, 0..=14; `None` without window scaling.
    pub window_scale: Option<u8>,
    /// SACK is permitted in both directions.
    pub sack: bool,
}
