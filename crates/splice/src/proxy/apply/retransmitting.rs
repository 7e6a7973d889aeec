//! Bytes that the engine retransmits to a server, from the connection's side: sent, retransmitted, acknowledged. [`rtx`](crate::retransmit::rtx) keeps them.
//!
//! `passing.rs` asks here before a segment of a connection with a queue goes on.

use super::ActionContext;
use crate::admission::round_budget::has_room_for_data;
use crate::base::callbacks::SelectServer;
use crate::base::drop_reason::DropReason;
use crate::base::output::{NextHops, Output};
use crate::proxy::Rooms;
use crate::retransmit::rtx::AckEffect;
use crate::session::connection::Connection;
use e2d2::buffer::BufferPool;
use e2d2::wire::tcp::TcpFlags;
use netfcts::Side;
use netfcts::record::RecordFlags;
use netfcts::seq::SeqNum;

impl<P: BufferPool, S: SelectServer, N: NextHops> Rooms<P, S, N> {
    /// Updates the retransmission queue, now that the server has acknowledged `ack` with this window and these timestamps; `pure` is set when
    /// its segment says nothing else.
    pub(super) fn on_server_ack(
        &mut self,
        slot: u32,
        connection: &mut Connection,
        (ack, window, pure): (SeqNum, u16, bool),
        timestamps: Option<(u32, u32)>,
        out: &mut impl Output<P::Buffer>,
    ) -> AckHold {
        let index = connection.spliced().map(|spliced| spliced.rtx);
        let Some(queue) = index.and_then(|id| self.rtx.get_mut(id)) else {
            return AckHold::Nothing;
        };
        let floor = queue.end;
        queue.note_timestamps(timestamps);
        // The client has never seen our header: an ACK of nothing else is news to nobody, unless it opens the window (RFC 9293
        // 3.8.6.1: who waits for that hears of it, or asks).
        let opens = window > 0 && std::mem::take(&mut queue.is_shut);
        let is_news = opens || !(pure && queue.is_header_only() && ack.le(floor));
        match queue.note_ack((ack, window), pure, self.now.as_millis() as u32) {
            AckEffect::Full => self.drop_rtx(connection),
            AckEffect::Retransmit => self.send_rtx(connection, out),
            AckEffect::Progress => self.arm_spliced(slot, connection),
            AckEffect::Open => {}
        }
        match is_news {
            false => AckHold::NoNews,
            true if ack.lt(floor) => AckHold::HeldUp(floor),
            true => AckHold::Nothing,
        }
    }

    /// True if the segment acknowledges all of the queue, and says nothing that its receiver must not hear of.
    #[inline]
    pub(super) fn acks_all(&self, connection: &Connection, from: Side, context: &ActionContext<P::Buffer>) -> bool {
        let (Some(incoming), Some(spliced)) = (&context.incoming, connection.spliced()) else {
            return false;
        };
        let ack = spliced.ack_for_peer(from, incoming.segment.ack);
        from == Side::Server
            && spliced.is_acknowledged_by(incoming.segment, ack)
            && self.rtx.get(spliced.rtx).is_some_and(|queue| queue.is_acked_by(ack))
    }

    pub(crate) fn drop_rtx(&mut self, connection: &mut Connection) {
        let Some(spliced) = connection.spliced_mut() else {
            return;
        };
        let mut held = self.rtx.forget(spliced.rtx.take());
        self.reassembly.close(&mut held);
    }

    pub(crate) fn on_rtx_timeout(&mut self, slot: u32, connection: &Connection, out: &mut impl Output<P::Buffer>) {
        let Some(index) = connection.spliced().map(|spliced| spliced.rtx) else {
            return;
        };
        self.retransmit_kept(slot, connection, out);
        if let Some(queue) = self.rtx.get_mut(index) {
            queue.timer.on_timeout(self.now.as_millis() as u32);
            self.records.flag(slot, RecordFlags::RETRANSMITTED);
            self.send_rtx(connection, out);
        }
        self.arm_spliced(slot, connection);
    }

    /// True if a segment of the client that begins at `seq` has bytes before its first one, where our header stands in the
    /// server's numbering, while the server has not acknowledged that.
    pub(super) fn begins_before_rtx_queue(&self, connection: &Connection, seq: SeqNum) -> bool {
        let index = connection.spliced();
        let queue = index.and_then(|spliced| self.rtx.get(spliced.rtx));
        queue.is_some_and(|queue| seq.lt(queue.first) && queue.snd_una.lt(queue.first))
    }

    /// True if a segment of the client that begins at `seq` repeats its first bytes, while the server has not
    /// acknowledged the header before them.
    pub(super) fn repeats_first_bytes(&mut self, connection: &Connection, seq: SeqNum) -> bool {
        let index = connection.spliced();
        let Some(queue) = index.and_then(|spliced| self.rtx.get_mut(spliced.rtx)) else {
            return false;
        };
        seq == queue.first && queue.snd_una.lt(queue.first) && std::mem::replace(&mut queue.first_bytes_sent, true)
    }

    /// Sends what is unacknowledged: at most the window that every server was promised to take.
    pub(super) fn send_rtx(&mut self, connection: &Connection, out: &mut impl Output<P::Buffer>) {
        let Some(spliced) = connection.spliced() else { return };
        let Some((queue, header)) = self.rtx.with_header(spliced.rtx) else {
            return;
        };
        let Some(path) = self.path_to(Side::Server, connection) else {
            return self.emit.dropped(DropReason::NoNeighbour);
        };
        let mut control = self.current_numbers(connection, Side::Server).timed(queue.timestamps);
        control.flags = TcpFlags::ACK | TcpFlags::PSH;
        let header_len = header.len();
        let start = queue.first - header_len as u32;
        let done = (queue.snd_una - start).max(0) as usize;
        let client_bytes = (queue.end - queue.first).max(0) as usize;
        let header = header.get(done.min(header_len)..).unwrap_or_default();
        let held = self.reassembly.in_order(queue.held);
        let bytes = held
            .get(done.saturating_sub(header_len)..client_bytes)
            .unwrap_or_default();
        let mss = usize::from(queue.mss.max(1));
        let mut at = queue.snd_una;
        for payload in header.chunks(mss).chain(bytes.chunks(mss)) {
            if !has_room_for_data(out) {
                // The timer goes on from what is acknowledged by then.
                return self.emit.dropped(DropReason::NoRoom);
            }
            control.seq = at + spliced.client_seq_offset;
            self.emit.send(None, &path, &control, payload, out);
            at += payload.len() as u32;
        }
    }
}

/// What an open queue does to a segment of the server.
pub(super) enum AckHold {
    /// Nothing.
    Nothing,
    /// The client has been told more: up to here.
    HeldUp(SeqNum),
    /// The segment acknowledges only what the client knows nothing of.
    NoNews,
}
