//! What client and server do alike: opening, sending what is due, timers, ending.

use std::net::IpAddr;
use std::time::Duration;

use e2d2::buffer::BufferPool;
use e2d2::wire::tcp::TcpFlags;
use netfcts::{SeqNum, TcpCounter, TcpCounters};

use crate::output::{Loose, Output, Sender};
use crate::received::{Incoming, count_received};
use crate::stats::{Connections, Failure, Traffic};
use crate::table::Table;
use crate::tcb::{Acknowledge, Marks, Received, Segment, State, Tcb, TcpSettings, Ticks};

/// A role: its own part, and what follows from it for both.
pub(crate) trait Role {
    /// Its connections.
    fn table(&mut self) -> &mut Table;

    /// Counts of its connections, and the most that were open at once.
    fn tally(&mut self) -> (&mut Connections, &mut u32);

    /// What sending for a connection needs, and the connection.
    fn sender(&mut self, id: u32) -> (Sender<'_>, &mut Tcb);

    /// Sends what is due and sets the timer.
    fn send<L: BufferPool>(&mut self, id: u32, ack: Acknowledge, advanced: bool, out: &mut Output<'_, L>);

    /// Takes a connection out of the table and out of what leads to it.
    fn remove(&mut self, id: u32, is_complete: bool, ticks: Ticks);

    /// Counts a connection that has been put into the table.
    fn count_opening(&mut self) {
        let open = self.table().open();
        let (connections, max_open) = self.tally();
        connections.started += 1;
        *max_open = (*max_open).max(open);
    }

    /// Sends an acknowledgement and nothing else.
    fn send_ack<L: BufferPool>(&mut self, id: u32, counter: TcpCounter, out: &mut Output<'_, L>) {
        let (mut sender, tcb) = self.sender(id);
        sender.send_ack(tcb, counter, out);
    }

    /// Sends the acknowledgements that waited for the end of the burst.
    fn end_burst<L: BufferPool>(&mut self, out: &mut Output<'_, L>) {
        while let Some(id) = self.table().next_due() {
            self.send_ack(id, TcpCounter::SentAck, out);
        }
    }

    /// Works on timers that have fired, one budget of the wheel; returns how many.
    fn expire<L: BufferPool>(&mut self, out: &mut Output<'_, L>) -> usize {
        self.table().expire(out.ticks.now);
        let mut count = 0;
        while let Some(id) = self.table().next_expired() {
            count += 1;
            let (sender, tcb) = self.sender(id);
            if tcb.marks.contains(Marks::HELD) {
                // Only a delayed acknowledgement has set the timer; something else may have carried it since.
                if tcb.marks.contains(Marks::ACK_DUE) {
                    self.send_ack(id, TcpCounter::SentAck, out);
                }
            } else if !tcb.is_waiting_for_ack() {
                self.abort(id, Failure::Stalled, out);
            } else if tcb.on_timeout(sender.settings) {
                self.send(id, Acknowledge::No, true, out);
            } else {
                self.abort(id, Failure::Timeout, out);
            }
        }
        count
    }

    /// Gives up all open connections.
    fn abort_all<L: BufferPool>(&mut self, out: &mut Output<'_, L>) {
        for id in self.table().ids() {
            self.abort(id, Failure::Unfinished, out);
        }
    }

    /// Gives a connection up.
    fn abort<L: BufferPool>(&mut self, id: u32, failure: Failure, out: &mut Output<'_, L>) {
        let (mut sender, tcb) = self.sender(id);
        // A peer that has not answered our SYN has nothing to forget.
        if tcb.state != State::SynSent {
            sender.send_reset(tcb, out);
        }
        self.finish(id, Err(failure), out.ticks);
    }

    /// Ends a connection that needs no more packets.
    fn finish(&mut self, id: u32, result: Result<(), Failure>, ticks: Ticks) {
        let (connections, _) = self.tally();
        match result {
            Ok(()) => connections.completed += 1,
            Err(failure) => connections.fail(failure),
        }
        self.remove(id, result.is_ok(), ticks);
    }
}

/// Has a connection take a segment in, and counts what that brought.
pub(crate) fn take_in(
    tcb: &mut Tcb,
    segment: &Segment<'_>,
    ticks: Ticks,
    settings: &TcpSettings,
    takes_out_of_order: bool,
    (tcp, traffic): (&mut TcpCounters, &mut Traffic),
) -> Received {
    let before = tcb.marks;
    let received = tcb.receive(segment, ticks, settings, takes_out_of_order);
    count_received(tcp, traffic, segment, &received, before, tcb.marks);
    traffic.bytes_received += u64::from(received.delivered);
    received
}

/// After `sent` segments have gone out: an acknowledgement that none of them carried, and the timer.
pub(crate) fn acknowledge_and_rearm<L: BufferPool>(
    (table, id): (&mut Table, u32),
    sender: &mut Sender<'_>,
    (sent, ack, advanced): (usize, Acknowledge, bool),
    idle: Duration,
    out: &mut Output<'_, L>,
) {
    let tcb = table.get(id);
    match ack {
        Acknowledge::Now if sent == 0 => {
            let is_for_fin = tcb.marks.contains(Marks::PEER_FIN);
            let counter = if is_for_fin {
                TcpCounter::SentAck4Fin
            } else {
                TcpCounter::SentAck
            };
            sender.send_ack(tcb, counter, out);
        }
        // A held connection's acknowledgement goes with its next request, or when the timer says so.
        Acknowledge::Soon if sent == 0 && tcb.marks.contains(Marks::HELD) => {
            table.delay_ack(id, out.ticks.now + sender.settings.ack_delay);
            return;
        }
        Acknowledge::Soon if sent == 0 => table.owe_ack(id),
        Acknowledge::No | Acknowledge::Soon | Acknowledge::Now => {}
    }
    table.rearm(id, out.ticks.now, advanced || sent > 0, idle, sender.settings);
}

/// Place of an address's IP version in pairs of settings.
pub(crate) fn family(address: IpAddr) -> usize {
    usize::from(address.is_ipv6())
}

/// RFC 9293 3.10.7.3: an acknowledgement of something else is answered with RST of its own number; we go on waiting.
pub(crate) fn answer_with_reset<L: BufferPool>(incoming: &Incoming<'_>, seq: SeqNum, out: &mut Output<'_, L>) {
    send_back(incoming, TcpFlags::RST, seq, SeqNum(0), out);
}

/// A segment for no connection of ours. A FIN is acknowledged and a bare acknowledgement ignored, as by the TIME-WAIT that
/// we do not keep; anything else is answered with RST (RFC 9293 3.10.7.1).
pub(crate) fn answer_stray<L: BufferPool>(incoming: &Incoming<'_>, out: &mut Output<'_, L>) {
    let segment = &incoming.segment;
    let has = |flag| segment.flags.contains(flag);
    if has(TcpFlags::RST) || segment.sequence_len() == 0 {
        return;
    }
    let end = segment.seq + segment.sequence_len();
    let (flags, seq, ack) = match has(TcpFlags::ACK) {
        true if has(TcpFlags::FIN) => (TcpFlags::ACK, segment.ack, end),
        true => (TcpFlags::RST, segment.ack, SeqNum(0)),
        false => (TcpFlags::RST | TcpFlags::ACK, SeqNum(0), end),
    };
    send_back(incoming, flags, seq, ack, out);
}

fn send_back<L: BufferPool>(
    incoming: &Incoming<'_>,
    flags: TcpFlags,
    seq: SeqNum,
    ack: SeqNum,
    out: &mut Output<'_, L>,
) {
    out.send_loose(&Loose {
        envelope: incoming.way_back(out.mac),
        src_port: incoming.dst_port,
        dst_port: incoming.src_port,
        seq,
        ack,
        flags,
    });
}
