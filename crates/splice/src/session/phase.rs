//! The phases of a connection, and nothing else.
//!
//! A connection has two halves that close on their own (RFC 9293 3.6), so the spliced phase carries one [`FinState`] a
//! direction instead of nine names. Before a SYN is acknowledged with a valid cookie there is no connection at all:
//! that is [`Phase::Closed`], the phase of every flow we hold nothing for.
//!
//! ```text
//!   Closed ──valid cookie──► AwaitPayload ──selector decides──► ServerSynSent ──SYN-ACK──► Spliced{open, open}
//!                                  │                                   │                          │ FINs and their ACKs
//!                                  └─FIN, nothing asked─► LastAck      └─refused: next server     ▼
//!   Closed ──SYN passed on──► SynForwarded ──SYN-ACK──► SynAckForwarded ──client's ACK──► Spliced{open, open}
//!                                                        └─client's ACK, header to come─► AwaitProxyHeader ──header──► Spliced{open, open}
//!   every phase ──RST, timer, shutdown──► TimeWait or Closed     TimeWait ◄── Spliced{acknowledged, acknowledged}
//! ```

use crate::session::event::FinChange;

/// How far one direction of a spliced connection has closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FinState {
    /// Its sender may still send data.
    Open,
    /// Its FIN has been seen and passed on; the receiver has not acknowledged it.
    FinSent,
    /// Its FIN has been acknowledged.
    FinAcknowledged,
}

impl FinState {
    /// Every value, for tables and the golden matrix.
    pub const ALL: [FinState; 3] = [FinState::Open, FinState::FinSent, FinState::FinAcknowledged];

    const fn after(self, fin: FinChange, fin_acknowledged: bool) -> FinState {
        match (self, fin, fin_acknowledged) {
            (_, FinChange::Revoked, _) => FinState::Open,
            (FinState::Open, FinChange::Noted, _) => FinState::FinSent,
            (FinState::FinSent, _, true) => FinState::FinAcknowledged,
            (same, _, _) => same,
        }
    }
}

/// Where a connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Nothing is stored: the flow is unknown, or known only to the cookie in the client's ACK number.
    Closed,
    /// The client's handshake is complete; the selector has not yet decided.
    AwaitPayload,
    /// The server is chosen and our SYN to it is out.
    ServerSynSent,
    /// The client's own SYN is on its way to a server; the client waits for the answer.
    SynForwarded,
    /// The server's SYN-ACK is on its way to the client, whose ACK is awaited.
    SynAckForwarded,
    /// The client has acknowledged it and is to begin with a PROXY header: until that is whole the server hears nothing.
    AwaitProxyHeader,
    /// Packets pass through, rewritten.
    Spliced {
        /// The direction client → server.
        client: FinState,
        /// The direction server → client.
        server: FinState,
    },
    /// The client closed before it had asked for anything: our FIN is out, its ACK is awaited.
    LastAck,
    /// Over; late segments are still translated and the server-side port is not used again yet.
    TimeWait,
}

impl Phase {
    /// Packets pass and neither side has closed.
    pub const SPLICED: Phase = Phase::Spliced {
        client: FinState::Open,
        server: FinState::Open,
    };

    /// The phase after a segment of a spliced connection: `fin` is what it says about its sender's FIN,
    /// `acknowledges_fin` is set when it acknowledges the FIN of the other side.
    pub(crate) const fn after_segment(
        client: FinState,
        server: FinState,
        from: netfcts::Side,
        fin: FinChange,
        acknowledges_fin: bool,
    ) -> Phase {
        let (client, server) = match from {
            netfcts::Side::Client => (
                client.after(fin, false),
                server.after(FinChange::Unchanged, acknowledges_fin),
            ),
            netfcts::Side::Server => (
                client.after(FinChange::Unchanged, acknowledges_fin),
                server.after(fin, false),
            ),
        };
        Phase::Spliced { client, server }
    }

    /// True where no connection is kept: what leads here from any other phase frees it (`tests/core/matrix.rs`).
    #[inline]
    pub(crate) const fn has_no_connection(self) -> bool {
        matches!(self, Phase::TimeWait | Phase::Closed)
    }

    /// True when both FINs are acknowledged.
    pub const fn is_over(self) -> bool {
        matches!(
            self,
            Phase::Spliced {
                client: FinState::FinAcknowledged,
                server: FinState::FinAcknowledged
            }
        )
    }
}

impl std::fmt::Display for Phase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Phase::Spliced { client, server } => write!(f, "Spliced({client:?}, {server:?})"),
            other => write!(f, "{other:?}"),
        }
    }
}
