//! What SYN-ACKs offer by configuration.

/// Which of the values that SYN-ACKs promise hold whatever the servers can do.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Pinned {
    /// The MSS.
    pub mss: bool,
    /// The shift of the windows.
    pub window_scale: bool,
    /// Whether SACK is permitted.
    pub sack: bool,
    /// Whether timestamps are sent.
    pub timestamps: bool,
    /// The window.
    pub window: bool,
}

impl Pinned {
    /// Whether nothing is left to learn.
    pub fn is_everything(self) -> bool {
        self.mss && self.window_scale && self.sack && self.timestamps && self.window
    }
}

/// What SYN-ACKs offer as long as nothing is known about the servers, and for good where it is [pinned](SynAck::pinned) or
/// `probe` is off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SynAck {
    /// Servers are probed, and listened to.
    pub probe: bool,
    /// Which of the values below hold whatever the servers can do.
    pub pinned: Pinned,
    /// The MSS over IPv4, 20 less over IPv6; `None` promises what the legs take.
    pub mss: Option<u16>,
    /// The shift of the windows that will come; `None` promises none.
    pub window_scale: Option<u8>,
    /// SACK is permitted.
    pub sack: bool,
    /// Timestamps are sent.
    pub timestamps: bool,
    /// The window, never scaled, at most [`MAX_FIRST_PAYLOAD`](crate::base::callbacks::MAX_FIRST_PAYLOAD).
    pub window: u16,
}

/// What SYN-ACKs promise by configuration, and whom the listeners can reach.
#[derive(Clone, Debug)]
pub struct SynAckSettings {
    /// What they offer.
    pub offer: SynAck,
    /// By pool, its servers.
    pub pools: Vec<Vec<u16>>,
    /// By listener, the pools that its connections can come to.
    pub reach: Vec<Vec<u16>>,
    /// By server, the pools that it is in.
    pub pools_of: Vec<Vec<u16>>,
}
