//! The numbers of segments of our own.

use crate::base::callbacks::MAX_FIRST_PAYLOAD;
use crate::base::path::Path;
use crate::session::connection::Spliced;
use crate::session::state::{ClientSide, Stage, State};
use e2d2::wire::tcp::{TcpFlags, TcpOptions, TcpRepr};
use netfcts::Side;
use netfcts::seq::SeqNum;

/// The control part of a frame of ours.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Control {
    pub seq: SeqNum,
    pub ack: SeqNum,
    pub flags: TcpFlags,
    pub window: u16,
    pub options: TcpOptions,
}

impl Control {
    pub(crate) fn new(seq: SeqNum, ack: SeqNum, flags: TcpFlags, window: u16) -> Self {
        Control {
            seq,
            ack,
            flags,
            window,
            options: TcpOptions::NONE,
        }
    }

    /// The same with timestamps, if they were agreed.
    pub(crate) fn timed(mut self, timestamps: Option<(u32, u32)>) -> Self {
        self.options.timestamps = timestamps;
        self
    }

    pub(crate) fn segment<'a>(&self, path: &Path, payload: &'a [u8]) -> TcpRepr<'a> {
        TcpRepr {
            envelope: path.envelope(),
            src_port: path.source_port,
            dst_port: path.destination_port,
            seq: self.seq.0,
            ack: self.ack.0,
            flags: self.flags,
            window: self.window,
            options: self.options,
            sack_blocks: &[],
            payload,
        }
    }
}

/// An ACK to the client of what is held of its bytes.
pub(crate) fn ack_of_held(client: &ClientSide, flags: TcpFlags, tsval: u32) -> Control {
    let timestamps = client.timestamps.then_some((tsval, client.tsval));
    Control::new(client.iss + 1, client.last_ack_sent, flags, opening_window(client)).timed(timestamps)
}

pub(crate) fn numbers_before_splice(state: &State, client: &ClientSide, to: Side) -> (SeqNum, SeqNum, u16) {
    match to {
        Side::Client => {
            // Our FIN, if it is out, follows our SYN.
            let sent_fin = u32::from(matches!(state.stage(), Some(Stage::LastAck)));
            (client.iss + 1 + sent_fin, client.last_ack_sent, opening_window(client))
        }
        Side::Server => (state.server().unwrap_or_default().iss + 1, SeqNum(0), client.window),
    }
}

/// The window that the client is offered while its bytes are held.
///
/// Never more than was promised with the SYN-ACK: when the server has taken what is held, its own window reaches as far.
pub(crate) fn opening_window(client: &ClientSide) -> u16 {
    let taken = client.acknowledged_len();
    let beyond_promise = MAX_FIRST_PAYLOAD.saturating_sub(client.advertised_window() as usize);
    room_as_window(client, taken.max(beyond_promise))
}

/// The first number that the client has not been allowed to send before there was a server.
pub(crate) fn advertised_edge(client: &ClientSide) -> SeqNum {
    let later = client.last_ack_sent + (u32::from(opening_window(client)) << client.advertised_scale);
    (client.first_byte() + client.advertised_window()).later(later)
}

/// What is left of the room for held bytes when `taken` of it is used, as the field that the client expects. As in
/// [`WindowScale::to_client`](crate::session::connection::WindowScale::to_client) only a unit beyond any segment is rounded up.
pub(crate) fn room_as_window(client: &ClientSide, taken: usize) -> u16 {
    const LARGEST_ROUNDED_DOWN: usize = 512;
    let left = MAX_FIRST_PAYLOAD.saturating_sub(taken);
    let unit = 1 << client.advertised_scale;
    let units = if unit <= LARGEST_ROUNDED_DOWN {
        left / unit
    } else {
        left.div_ceil(unit)
    };
    units.min(0xffff) as u16
}

/// The newest numbers for `to`, which was told that its bytes have arrived up to `told`, whatever its peer has acknowledged. The
/// window reaches as far as it ever has: its right edge does not move back (RFC 9293 3.8.6).
pub(crate) fn spliced_numbers(spliced: &Spliced, to: Side, told: Option<SeqNum>) -> (SeqNum, SeqNum, u16) {
    let (sent, received) = (spliced.direction(to.peer()), spliced.direction(to));
    let ack = told.map_or(received.snd_una, |told| received.snd_una.later(told));
    let window = (received.edge - ack).max(0) as u32 >> spliced.scale.shift_for(to);
    (
        spliced.seq_for_peer(to.peer(), sent.end),
        ack,
        window.min(0xffff) as u16,
    )
}
