//! ACKs of our own to an end that may be somebody else, or may have lost count.
//!
//! Strangers can cause them, so each connection sends few of them to either end, and the core a random number a second
//! ([`limits`](crate::admission::limits)).

use super::ActionContext;
use crate::base::callbacks::SelectServer;
use crate::base::drop_reason::DropReason;
use crate::base::output::{NextHops, Output};
use crate::proxy::{Incoming, Proxy, routes};
use crate::session::limits::LimitKind;
use crate::session::numbers;
use e2d2::buffer::{BufferPool, PacketBuffer};
use e2d2::time::Instant;
use e2d2::wire::tcp::TcpOptions;
use netfcts::Side;
use netfcts::counters::TcpCounter;

impl<P, S, N> Proxy<P, S, N>
where
    P: BufferPool,
    S: SelectServer,
    N: NextHops,
{
    /// True if one more challenge ACK, or question, may go to `to` (RFC 5961 10). The connection's own limit comes first:
    /// what it refuses takes nothing from the budget that others share.
    pub(crate) fn may_challenge(&mut self, now: Instant, slot: u32, to: Side) -> bool {
        let connection = self.connections.get_mut(slot);
        connection.is_some_and(|connection| connection.granted.take(LimitKind::Challenge(to), now))
            && self.admission.limits.challenges.take(now)
    }

    /// RFC 5961 4.2 and 7: an ACK of the present numbers, within the limits.
    pub(crate) fn challenge(
        &mut self,
        now: Instant,
        slot: u32,
        scene: &mut ActionContext<P::Buffer>,
        out: &mut impl Output<P::Buffer>,
    ) {
        let Some(Incoming { buffer, segment }) = scene.incoming.take() else {
            return;
        };
        let Some(connection) = self.connections.get(slot) else {
            return;
        };
        let to = self.side_of(connection, segment);
        if !self.may_challenge(now, slot, to) {
            return self.emit.dropped(DropReason::RateLimited);
        }
        let Some(connection) = self.connections.get(slot) else {
            return;
        };
        let mut control = self.current_numbers(connection, to);
        // Its echo is the newest of our timestamps that it has seen, so that ours is not older (RFC 7323 5.3). A SYN
        // echoes nothing, and gets none.
        let options = TcpOptions::parse(segment.options(buffer.data()));
        control.options = numbers::timestamps(
            options
                .timestamps
                .filter(|&(_, echo)| echo != 0)
                .map(|(val, ecr)| (ecr, val)),
        );
        let path = self.path_back(segment);
        self.records.count(to, TcpCounter::Unexpected);
        self.records.count(to, TcpCounter::SentAck);
        self.emit.send(Some(buffer), &path, &control, &[], out);
    }

    /// Asks who has sent a RST that proves nothing whether it is still there: if it is not, its answer is a RST that does,
    /// and if it is, an ACK (RFC 1122 4.2.3.6, a keep-alive). So a connection whose RST has overtaken lost data ends soon,
    /// and one about which a stranger has guessed does not.
    pub(crate) fn probe(&mut self, now: Instant, slot: u32, whom: Side, out: &mut impl Output<P::Buffer>) {
        let Some(connection) = self.connections.get(slot) else {
            return;
        };
        let Some(spliced) = connection.spliced() else { return };
        let path = match whom {
            Side::Client => Some(routes::path_to_client(&self.settings, connection)),
            Side::Server => routes::path_to_server(&self.settings, &self.next_hops, connection),
        };
        let Some(path) = path else { return };
        let (flow, shift) = match whom {
            Side::Client => (spliced.to_client, spliced.server_seq_offset),
            Side::Server => (spliced.to_server, spliced.client_seq_offset),
        };
        let mut control = self.current_numbers(connection, whom);
        control.seq = flow.snd_una + shift - 1;
        if self.may_challenge(now, slot, whom) {
            self.emit.send(None, &path, &control, &[], out);
        }
    }
}
