//! Frames of our own making: numbers in, frame out.

use super::routes::{path_to_client, path_to_server};
use crate::base::callbacks::SelectServer;
use crate::base::drop_reason::DropReason;
use crate::base::output::{NextHops, Output};
use crate::base::settings::Settings;
use crate::handshake::forwarded_syn::ForwardedSyn;
use crate::handshake::syn_ack_options::Offered;
use crate::proxy::Proxy;
use crate::session::connection::{Connection, NO_SERVER, Opening, Stage};
use crate::session::numbers::{Control, opening_numbers, spliced_numbers};
use e2d2::buffer::BufferPool;
use e2d2::port::PortId;
use e2d2::wire::tcp::{TcpFlags, TcpOptions};
use netfcts::Side;
use netfcts::leg::ip_version;
use netfcts::seq::SeqNum;

/// What our SYN offers to the server of a connection, in segments that fit both legs: what was agreed with the client, or
/// what the client's own SYN says that is passed on.
pub(crate) fn offered(
    settings: &Settings,
    connection: &Connection,
    opening: &Opening,
    syn: Option<&ForwardedSyn>,
) -> Offered {
    let leg = |peer: u128, device: PortId| {
        settings.devices[usize::from(device.0)].mtu - ip_version(peer).header_len_with_tcp()
    };
    let server = settings.servers.get(usize::from(connection.server));
    let to_server = server.map_or(u16::MAX, |server| leg(server.address, server.device));
    let to_client = leg(connection.client_address(), connection.client_device);
    let passed = syn.map(|syn| TcpOptions::parse(&syn.options));
    if let Some(options) = passed {
        return Offered {
            mss: opening.agreed.mss.min(to_server).min(to_client),
            window_scale: options.window_scale.is_some(),
            sack: options.sack_permitted,
            timestamps: options.timestamps.is_some(),
        };
    }
    Offered {
        mss: opening.agreed.mss.min(to_server).min(to_client),
        window_scale: opening.agreed.window_scale.is_some(),
        sack: opening.agreed.sack,
        timestamps: opening.timestamps,
    }
}

impl<P, S, N> Proxy<P, S, N>
where
    P: BufferPool,
    S: SelectServer,
    N: NextHops,
{
    /// The numbers that we have last told `to`: what a challenge ACK and an answer to a keep-alive say.
    pub(crate) fn current_numbers(&self, connection: &Connection, to: Side) -> Control {
        let (seq, mut ack, window) = match &connection.stage {
            Stage::Opening(opening) => {
                let (seq, ack, window) = opening_numbers(connection, opening, to);
                (seq, ack, self.answered_window(opening, to).unwrap_or(window))
            }
            Stage::Spliced(spliced) => spliced_numbers(spliced, to),
        };
        // What the client has been told stays true while the server has not acknowledged it.
        if to == Side::Client
            && let Some(debt) = connection.spliced().and_then(|spliced| self.rtx.get(spliced.owed))
        {
            ack = ack.later(debt.end);
        }
        Control {
            seq,
            ack,
            flags: TcpFlags::ACK,
            window,
            options: TcpOptions::NONE,
        }
    }

    /// Sends a RST to one side of a connection, with a number that its receiver believes.
    pub(crate) fn reset(&mut self, slot: u32, to: Side, out: &mut impl Output<P::Buffer>) {
        let Some(connection) = self.connections.get(slot) else {
            return;
        };
        if to == Side::Server && (connection.server == NO_SERVER || connection.local_port == 0) {
            return;
        }
        let path = match to {
            Side::Client => Some(path_to_client(&self.settings, connection)),
            Side::Server => path_to_server(&self.settings, &self.next_hops, connection),
        };
        let Some(path) = path else {
            return self.emit.dropped(DropReason::NoNeighbour);
        };
        let mut control = self.current_numbers(connection, to);
        control.flags = if to == Side::Server && connection.opening().is_some() {
            // RFC 9293 3.10.7.4: nothing of the server's has been acknowledged that an ACK could name.
            TcpFlags::RST
        } else {
            TcpFlags::RST | TcpFlags::ACK
        };
        control.window = 0;
        if to == Side::Client && self.has_heard_nothing(connection) {
            // RFC 9293 3.10.7.1: what a closed port answers to a SYN.
            control.seq = SeqNum(0);
        }
        // RFC 5961 3.2: the receiver acts only on its exact RCV.NXT. That is its last ACK, or, if its next ACK is still
        // on the way, the end of what was sent.
        let acknowledged = connection.spliced().map(|spliced| match to {
            Side::Client => spliced.to_client.snd_una + spliced.server_seq_offset,
            Side::Server => spliced.to_server.snd_una + spliced.client_seq_offset,
        });
        // Where bytes have been changed, only the receiver's own numbers name what it expects.
        let inspected = self
            .inspections
            .of(slot)
            .map(|inspection| inspection.sent_by(to.peer()));
        control.seq = inspected.map_or(control.seq, |direction| direction.sent);
        let acknowledged = inspected.map(|direction| direction.acked).or(acknowledged);
        self.emit.send(None, &path, &control, &[], out);
        if let Some(seq) = acknowledged.filter(|&seq| seq != control.seq) {
            self.emit.send(None, &path, &Control { seq, ..control }, &[], out);
        }
    }
}

impl<P: BufferPool, S, N> Proxy<P, S, N> {
    /// What the server's SYN-ACK has offered the client, if that was passed on: not what we could hold.
    fn answered_window(&self, opening: &Opening, to: Side) -> Option<u16> {
        let answer = self.handshake.forwarded_syns.get(opening.syn.into())?.answer?;
        // RFC 7323 2.2: the window of a SYN-ACK is never scaled, that of each later segment is.
        let shift = answer.options.window_scale.map_or(0, |shift| shift.min(14));
        (to == Side::Client).then_some(answer.window >> shift)
    }

    /// True if the client's SYN was passed on and nothing has come back.
    fn has_heard_nothing(&self, connection: &Connection) -> bool {
        let syn = connection
            .opening()
            .and_then(|opening| self.handshake.forwarded_syns.get(opening.syn.into()));
        syn.is_some_and(|syn| syn.answer.is_none())
    }
}
