//! The phases of a connection, and nothing else.
//!
//! A connection has two halves that close on their own (RFC 9293 3.6), so the spliced phase carries one [`Half`] a
//! direction instead of nine names. Before a SYN is acknowledged with a valid cookie there is no connection at all:
//! that is [`Phase::Unbound`], the phase of every flow we hold nothing for.
//!
//! ```text
//!   Unbound ──valid cookie──► AwaitPayload ──selector decides──► ServerHandshake ──SYN-ACK──► Spliced{open, open}
//!                                  │                                   │                          │ FINs and their ACKs
//!                                  └─FIN, nothing asked─► LastAck      └─refused: next server     ▼
//!   Unbound ──SYN passed on──► SynForwarded ──SYN-ACK──► SynAnswered ──client's ACK──► Spliced{open, open}
//!                                                        └─client's ACK, header to come─► AwaitHeader ──header──► Spliced{open, open}
//!   every phase ──RST, timer, shutdown──► Quarantine or Unbound     Quarantine ◄── Spliced{acknowledged, acknowledged}
//! ```

use super::event::SentFin;

/// How far one direction of a spliced connection has closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Half {
    /// Its sender may still send data.
    Open,
    /// Its FIN has been seen and passed on; the receiver has not acknowledged it.
    FinSent,
    /// Its FIN has been acknowledged.
    FinAcknowledged,
}

impl Half {
    /// Every value, for tables and the golden matrix.
    pub const ALL: [Half; 3] = [Half::Open, Half::FinSent, Half::FinAcknowledged];

    const fn after(self, fin: SentFin, fin_acknowledged: bool) -> Half {
        match (self, fin, fin_acknowledged) {
            (_, SentFin::Revoked, _) => Half::Open,
            (Half::Open, SentFin::Noted, _) => Half::FinSent,
            (Half::FinSent, _, true) => Half::FinAcknowledged,
            (same, _, _) => same,
        }
    }
}

/// Where a connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Nothing is stored: the flow is unknown, or known only to the cookie in the client's ACK number.
    Unbound,
    /// The client's handshake is complete; the selector has not yet decided.
    AwaitPayload,
    /// The server is chosen and our SYN to it is out.
    ServerHandshake,
    /// The client's own SYN is on its way to a server; the client waits for the answer.
    SynForwarded,
    /// The server's SYN-ACK is on its way to the client, whose ACK is awaited.
    SynAnswered,
    /// The client has acknowledged it and is to begin with a PROXY header: until that is whole the server hears nothing.
    AwaitHeader,
    /// Packets pass through, rewritten.
    Spliced {
        /// The direction client → server.
        client: Half,
        /// The direction server → client.
        server: Half,
    },
    /// The client closed before it had asked for anything: our FIN is out, its ACK is awaited.
    LastAck,
    /// Over; late segments are still translated and the server-side port is not used again yet.
    Quarantine,
}

impl Phase {
    /// Packets pass and neither side has closed.
    pub const SPLICED: Phase = Phase::Spliced {
        client: Half::Open,
        server: Half::Open,
    };

    /// Every phase, for tables and the golden matrix.
    pub fn all() -> Vec<Phase> {
        let halves = Half::ALL.into_iter().flat_map(|client| {
            Half::ALL
                .into_iter()
                .map(move |server| Phase::Spliced { client, server })
        });
        // Both halves acknowledged is the quarantine itself, never a state of its own.
        let spliced = halves.filter(|phase| !phase.is_over());
        [
            Phase::Unbound,
            Phase::AwaitPayload,
            Phase::ServerHandshake,
            Phase::SynForwarded,
            Phase::SynAnswered,
            Phase::AwaitHeader,
        ]
        .into_iter()
        .chain(spliced)
        .chain([Phase::LastAck, Phase::Quarantine])
        .collect()
    }

    /// The phase after a segment of a spliced connection: `fin` is what it says about its sender's FIN,
    /// `acknowledges_fin` is set when it acknowledges the FIN of the other side.
    pub(super) const fn after_segment(
        client: Half,
        server: Half,
        from: super::Side,
        fin: SentFin,
        acknowledges_fin: bool,
    ) -> Phase {
        let (client, server) = match from {
            super::Side::Client => (
                client.after(fin, false),
                server.after(SentFin::Unchanged, acknowledges_fin),
            ),
            super::Side::Server => (
                client.after(SentFin::Unchanged, acknowledges_fin),
                server.after(fin, false),
            ),
        };
        Phase::Spliced { client, server }
    }

    /// True when both FINs are acknowledged.
    pub const fn is_over(self) -> bool {
        matches!(
            self,
            Phase::Spliced {
                client: Half::FinAcknowledged,
                server: Half::FinAcknowledged
            }
        )
    }

    /// True while packets are rewritten and passed on.
    pub const fn is_spliced(self) -> bool {
        matches!(self, Phase::Spliced { .. })
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
