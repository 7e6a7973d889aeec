//! Frames of our own making: numbers in, frame out. Among them are RSTs, and ACKs to an end that may be somebody else, or may
//! have lost count.
//!
//! Strangers can cause such ACKs, so each connection sends few of them to either end, and the core a random number a second
//! ([`limits`](crate::admission::limits)).

use crate::base::callbacks::SelectServer;
use crate::base::drop_reason::DropReason;
use crate::base::output::{NextHops, Output};
use crate::base::path::Path;
use crate::base::settings::Settings;
use crate::handshake::forwarded_syn::ForwardedSyn;
use crate::handshake::syn_ack_options::Offered;
use crate::proxy::apply::ActionContext;
use crate::proxy::routes;
use crate::proxy::{Incoming, Rooms};
use crate::session::connection::{Connection, Spliced};
use crate::session::endpoints::Endpoints;
use crate::session::limits::LimitKind;
use crate::session::numbers::{Control, numbers_before_splice, spliced_numbers};
use crate::session::segment::Segment;
use crate::session::state::{ClientSide, Stage, State};
use e2d2::buffer::{BufferPool, PacketBuffer};
use e2d2::port::PortId;
use e2d2::wire::tcp::{TcpFlags, TcpOptions};
use netfcts::Side;
use netfcts::counters::TcpCounter;
use netfcts::leg::ip_version;
use netfcts::seq::SeqNum;

/// What our SYN offers to the server of a connection, in segments that fit both legs: what was agreed with the client, or
/// what the client's own SYN says that is passed on.
pub(crate) fn offered(
    settings: &Settings,
    connection: &Connection,
    client: &ClientSide,
    syn: Option<&ForwardedSyn>,
) -> Offered {
    let leg = |peer: u128, device: PortId| {
        settings.devices[usize::from(device.0)].mtu - ip_version(peer).header_len_with_tcp()
    };
    let server = connection.ends.server(settings);
    let to_server = server.map_or(u16::MAX, |server| leg(server.address, server.device));
    let to_client = leg(connection.ends.client_address(), connection.ends.client_device);
    let (window_scale, sack, timestamps) = match syn.map(|syn| TcpOptions::parse(&syn.options)) {
        Some(of) => (of.window_scale.is_some(), of.sack_permitted, of.timestamps.is_some()),
        None => (client.window_scale().is_some(), client.sack, client.timestamps),
    };
    Offered {
        mss: client.mss.min(to_server).min(to_client),
        window_scale,
        sack,
        timestamps,
    }
}

impl<P: BufferPool, S: SelectServer, N: NextHops> Rooms<P, S, N> {
    /// The way to one side of a connection; `None` while the next hop to its server is not resolved.
    pub(crate) fn path_to(&self, side: Side, connection: &Connection) -> Option<Path> {
        self.path_of(side, &connection.ends)
    }

    /// [`Self::path_to`]; counts if there is none.
    pub(crate) fn resolved(&mut self, connection: &Connection, side: Side) -> Option<Path> {
        let path = self.path_to(side, connection);
        if path.is_none() {
            self.emit.dropped(DropReason::NoNeighbour);
        }
        path
    }

    /// The way to the client of a connection.
    pub(crate) fn path_to_client(&self, connection: &Connection) -> Path {
        routes::way_to_client(&self.settings, &connection.ends)
    }

    /// [`Self::path_to`] for one that may be at rest.
    pub(crate) fn path_of(&self, side: Side, ends: &Endpoints) -> Option<Path> {
        match side {
            Side::Client => Some(routes::way_to_client(&self.settings, ends)),
            Side::Server => routes::way_to_server(&self.settings, &self.transparent_sources, &self.next_hops, ends),
        }
    }

    /// The newest SEQ, ACK and window towards `to`: those of a challenge ACK and of an answer to a keep-alive.
    pub(crate) fn current_numbers(&self, connection: &Connection, to: Side) -> Control {
        let (seq, ack, window) = match (&connection.state, connection.state.client()) {
            (State::Spliced(spliced), _) => {
                // What the client has been told stays true while the server has not acknowledged it.
                let queue = self.rtx.get(spliced.rtx).filter(|_| to == Side::Client);
                spliced_numbers(spliced, to, queue.map(|queue| queue.end))
            }
            (_, None) => (SeqNum(0), SeqNum(0), 0),
            (state, Some(client)) => {
                let (seq, ack, window) = numbers_before_splice(state, client, to);
                (seq, ack, self.answered_window(state, to).unwrap_or(window))
            }
        };
        Control::new(seq, ack, TcpFlags::ACK, window)
    }

    /// Sends a RST to one side of a connection, with a number that its receiver believes.
    pub(crate) fn reset(&mut self, slot: u32, connection: &Connection, to: Side, out: &mut impl Output<P::Buffer>) {
        if to == Side::Server && connection.ends.leg.is_none() {
            return;
        }
        let Some(path) = self.resolved(connection, to) else {
            return;
        };
        let mut control = self.current_numbers(connection, to);
        control.flags = if to == Side::Server && connection.spliced().is_none() {
            // RFC 9293 3.10.7.4: nothing of the server's has been acknowledged that an ACK could name.
            TcpFlags::RST
        } else {
            TcpFlags::RST | TcpFlags::ACK
        };
        control.window = 0;
        if to == Side::Client && matches!(connection.state.stage(), Some(Stage::SynForwarded(..))) {
            // RFC 9293 3.10.7.1: what a closed port answers to a SYN.
            control.seq = SeqNum(0);
        }
        // RFC 5961 3.2: the receiver acts only on its exact RCV.NXT. That is its last ACK, or, if its next ACK is still
        // on the way, the end of what was sent.
        let snd_una = |spliced: &Spliced| spliced.seq_for_peer(to.peer(), spliced.direction(to.peer()).snd_una);
        let acknowledged = connection.spliced().map(snd_una);
        // Where bytes have been changed, only the receiver's own numbers name what it expects.
        let inspected = self.inspections.sent_by(slot, to.peer());
        control.seq = inspected.map_or(control.seq, |direction| direction.sent);
        let acknowledged = inspected.map(|direction| direction.acked).or(acknowledged);
        self.emit.send(None, &path, &control, &[], out);
        if let Some(seq) = acknowledged.filter(|&seq| seq != control.seq) {
            self.emit.send(None, &path, &Control { seq, ..control }, &[], out);
        }
    }

    /// What the server's SYN-ACK has offered the client, if that was passed on: not what we could hold.
    fn answered_window(&self, state: &State, to: Side) -> Option<u16> {
        let answer = self.handshake.forwarded_syns.get(state.syn()?)?.answer?;
        // RFC 7323 2.2: the window of a SYN-ACK is never scaled, that of each later segment is.
        let shift = answer.options.window_scale.map_or(0, |shift| shift.min(14));
        (to == Side::Client).then_some(answer.window >> shift)
    }

    /// True if one more challenge ACK, or question, may go to `to` (RFC 5961 10). The connection's own limit comes first:
    /// what it refuses takes nothing from the budget that others share.
    pub(crate) fn may_challenge(&mut self, connection: &mut Connection, to: Side) -> bool {
        let now = self.now;
        connection.granted.take(LimitKind::Challenge(to), now) && self.admission.limits.challenges.take(now)
    }

    /// RFC 5961 4.2 and 7: an ACK of the present numbers, within the limits.
    pub(crate) fn challenge(
        &mut self,
        connection: &mut Connection,
        context: &mut ActionContext<P::Buffer>,
        out: &mut impl Output<P::Buffer>,
    ) {
        let Some(Incoming { buffer, segment }) = context.incoming.take() else {
            return;
        };
        let to = context.from;
        if !self.may_challenge(connection, to) {
            return self.emit.dropped(DropReason::RateLimited);
        }
        let options = TcpOptions::parse(segment.options(buffer.data()));
        let timestamps = self.timestamps_for_sender(connection, to, segment, &options);
        let control = self.current_numbers(connection, to).timed(timestamps);
        let path = self.path_back(segment);
        self.records.count(to, TcpCounter::Unexpected);
        self.records.count(to, TcpCounter::SentAck);
        self.emit.send(Some(buffer), &path, &control, &[], out);
    }

    /// TSval and TSecr for the sender of a segment that was not accepted (RFC 7323 3.2), if there are any that do no harm: a
    /// TSval that is too new makes its receiver refuse all that the other end sends afterwards (5.3).
    ///
    /// Before the splice both are known. Afterwards the newest of ours that the sender has seen is what it echoes; that counts
    /// only in a segment with its very last ACK, which nobody guesses. A SYN has none, and who begins anew has agreed on nothing.
    fn timestamps_for_sender(
        &self,
        connection: &Connection,
        sender: Side,
        segment: &Segment,
        options: &TcpOptions,
    ) -> Option<(u32, u32)> {
        if let Some(client) = connection.state.client() {
            let ours = || (self.tsval_for_client(connection), client.tsval);
            return client.timestamps.then(ours);
        }
        let spliced = connection.spliced()?;
        let acknowledged = spliced.direction(sender.peer()).snd_una;
        let is_its_last = segment.has(TcpFlags::ACK) && spliced.ack_for_peer(sender, segment.ack) == acknowledged;
        options
            .timestamps
            .filter(|_| is_its_last)
            .map(|(tsval, tsecr)| (tsecr, tsval))
    }

    /// Our TSval for a client that has no server yet, or one whose SYN-ACK was passed on: the server's clock goes on where that
    /// has left it, so ours must not run ahead of it (RFC 7323 5.3).
    pub(crate) fn tsval_for_client(&self, connection: &Connection) -> u32 {
        let syn = connection.state.syn();
        let passed = syn.and_then(|syn| self.handshake.forwarded_syns.get(syn)?.answer);
        passed.map_or_else(|| self.handshake.timestamp(self.now), |answer| answer.newest_tsval)
    }

    /// Asks who has sent a RST that proves nothing whether it is still there: if it is not, its answer is a RST that does,
    /// and if it is, an ACK (RFC 1122 4.2.3.6, a keep-alive). So a connection whose RST has overtaken lost data ends soon,
    /// and one about which a stranger has guessed does not.
    pub(crate) fn probe(
        &mut self,
        connection: &mut Connection,
        whom: Side,
        said: Option<(u32, u32)>,
        out: &mut impl Output<P::Buffer>,
    ) {
        if connection.spliced().is_some() && self.may_challenge(connection, whom) {
            let echoed = said.filter(|&(_, tsecr)| tsecr != 0);
            self.send_keep_alive(connection, whom, echoed.map(|(tsval, tsecr)| (tsecr, tsval)), out);
        }
    }

    /// Has one side of a spliced connection tell its numbers: it answers a segment before those it awaits. What that says it
    /// does not believe, timestamps included (RFC 7323 5.3, R2 before R3), so those may be of a segment that nobody has proven;
    /// without any it may drop a segment unanswered (3.2).
    pub(crate) fn send_keep_alive(
        &mut self,
        connection: &Connection,
        whom: Side,
        timestamps: Option<(u32, u32)>,
        out: &mut impl Output<P::Buffer>,
    ) {
        let Some(spliced) = connection.spliced() else { return };
        let Some(path) = self.path_to(whom, connection) else {
            return;
        };
        let snd_una = spliced.seq_for_peer(whom.peer(), spliced.direction(whom.peer()).snd_una);
        let mut control = self.current_numbers(connection, whom).timed(timestamps);
        control.seq = snd_una - 1;
        self.emit.send(None, &path, &control, &[], out);
    }
}
