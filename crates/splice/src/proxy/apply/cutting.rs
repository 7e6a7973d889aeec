//! Segments that are longer than the server takes: its MSS was not known when the client was promised one.
//!
//! They are cut, so that nothing is lost, and the client is told the MTU that its packets should have, so that it soon
//! sends none of them any more. Rare, and over with the slot in which the server was heard.

use crate::base::callbacks::SelectServer;
use crate::base::drop_reason::DropReason;
use crate::base::output::{NextHops, Output};
use crate::base::path::Path;
use crate::proxy::{Incoming, Proxy};
use crate::rewrite::translate::Rewrite;
use crate::session::numbers::{self, Control};
use crate::session::segment::Segment;
use e2d2::buffer::{BufferPool, PacketBuffer};
use e2d2::wire::tcp::{TcpFlags, TcpOptions};
use netfcts::seq::SeqNum;

/// Whether a segment, its TCP options included, is longer than `mss` (RFC 6691 3). A RST passes as it is: its payload is
/// for no one.
#[inline]
pub(super) fn is_too_long(segment: &Segment, mss: u16) -> bool {
    segment.layout.end - segment.layout.l4 > mss.saturating_add(20) && !segment.has(TcpFlags::RST)
}

impl<P, S, N> Proxy<P, S, N>
where
    P: BufferPool,
    S: SelectServer,
    N: NextHops,
{
    /// Passes a segment of the client on in pieces of `mss`, with the numbers that it would have had as one.
    #[cold]
    pub(super) fn resegment(
        &mut self,
        incoming: &Incoming<P::Buffer>,
        (values, mss): (&Rewrite, u16),
        path: &Path,
        out: &mut impl Output<P::Buffer>,
    ) {
        // Each piece gets a checksum of ours: what the sender's would reveal must be found here.
        if !incoming.is_intact() {
            return self.emit.dropped(DropReason::BadTcpChecksum);
        }
        self.emit.dropped(DropReason::Resegmented);
        self.tell_mtu(incoming, mss, out);
        let Incoming { buffer, segment } = incoming;
        let options = TcpOptions::parse(segment.options(buffer.data()));
        let timestamps = options.timestamps.map(|(tsval, tsecr)| {
            (
                tsval.wrapping_add(values.tsval_shift),
                tsecr.wrapping_sub(values.tsecr_shift),
            )
        });
        let options = numbers::timestamps(timestamps);
        let payload = segment.payload(buffer.data());
        let room = usize::from(mss).saturating_sub(options.encoded_len(0)).max(1);
        let pieces = payload.len().div_ceil(room);
        for (index, piece) in payload.chunks(room).enumerate() {
            let is_last = index + 1 == pieces;
            let mut flags = segment.flags & (TcpFlags::ACK | TcpFlags::PSH | TcpFlags::FIN);
            if !is_last {
                flags.remove(TcpFlags::PSH | TcpFlags::FIN);
            }
            let control = Control {
                seq: SeqNum(values.seq) + (index * room) as u32,
                ack: SeqNum(values.ack),
                flags,
                window: values.window,
                options,
            };
            self.emit.send(None, path, &control, piece, out);
        }
    }

    /// Tells the client the MTU with which its segments have the MSS that the server takes.
    fn tell_mtu(&mut self, incoming: &Incoming<P::Buffer>, mss: u16, out: &mut impl Output<P::Buffer>) {
        // Below these nobody believes it (RFC 791, RFC 8200 5), and the pieces have to do.
        let version = incoming.segment.layout.version;
        let mtu = mss.saturating_add(version.header_len_with_tcp());
        if mtu >= version.min_mtu() {
            self.send_too_big(self.now, incoming, u32::from(mtu), out);
        }
    }
}
