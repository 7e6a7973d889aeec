//! ICMP errors about packets that we have passed on or made: who caused the packet hears of it.
//!
//! An error names our end point of one leg; its quote is translated to the packet as the other side sent it, and the
//! error goes there (RFC 5508 4.2). So path-MTU discovery works from end to end, although no path is seen from end to
//! end by anyone. Nothing is believed whose quoted sequence number is not in flight (RFC 5927 4.1), and no error ends
//! anything here: both ends have a TCP that decides (RFC 1122 4.2.3.9). Only our own SYN, which nobody else waits for,
//! makes us try the next server.

use crate::base::callbacks::SelectServer;
use crate::base::drop_reason::DropReason;
use crate::base::output::{NextHops, Output};
use crate::base::path::Path;
use crate::icmp::{self, IcmpError};
use crate::proxy::apply::ActionContext;
use crate::proxy::{Incoming, Proxy, Rooms};
use crate::rewrite::siit;
use crate::session::connection::Connection;
use crate::session::event::Event;
use crate::session::limits::LimitKind;
use crate::session::segment::Segment;
use crate::session::table::FlowRef;
use e2d2::buffer::{BufferPool, PacketBuffer};
use e2d2::time::Instant;
use e2d2::wire::frame::{IpVersion, Packet};
use e2d2::wire::quote::{self, QuotedTcp};
use netfcts::leg::mapped;
use netfcts::seq::SeqNum;
use netfcts::{FourTuple, Side};

impl<P: BufferPool, S: SelectServer, N: NextHops> Proxy<P, S, N> {
    /// An ICMP or ICMPv6 error to one of our addresses, whose own checksums are right.
    pub fn handle_icmp_error(&mut self, now: Instant, packet: Packet<P::Buffer>, out: &mut impl Output<P::Buffer>) {
        self.rooms.set_now(now);
        if let Err(reason) = self.pass_icmp_error(packet, out) {
            self.rooms.emit.dropped(reason);
        }
        self.end_error_group();
    }

    fn pass_icmp_error(
        &mut self,
        packet: Packet<P::Buffer>,
        out: &mut impl Output<P::Buffer>,
    ) -> Result<(), DropReason> {
        let (version, icmp_error, original) =
            IcmpError::read(packet.buffer.data(), packet.kind).ok_or(DropReason::IcmpUnwanted)?;
        let quoted = quote::parse(version, original)
            .ok()
            .flatten()
            .ok_or(DropReason::IcmpUnwanted)?;
        let receiver = (mapped(quoted.dst_addr), quoted.dst_port);
        let key = FourTuple::new(receiver, (mapped(quoted.src_addr), quoted.src_port));
        let hash = self.rooms.flows.hash(&key);
        let Some(flow) = self.find_key(hash, &key) else {
            // Most of a flood is made up (RFC 5927 4.1). While there is not time for all, few errors about flows that are not
            // known here are handed over, genuine ones about those of other cores among them; those about connections
            // of this core are limited by connection.
            let admission = &mut self.rooms.admission;
            if admission.overload.is_shedding() && !admission.shed_errors.take(self.rooms.now) {
                admission.overload.note_drop(self.rooms.now);
                return Err(DropReason::Overload);
            }
            return match self.rooms.hand_over_icmp_error(&key, packet, out) {
                Some(_) => Err(DropReason::IcmpUnwanted),
                None => Ok(()),
            };
        };
        if flow.is_time_wait() {
            return Err(DropReason::IcmpUnwanted);
        }
        self.begin_error_group(flow, hash, (packet.port, packet.buffer.data()));
        let connection = self.connections.get_mut(flow.slot());
        let connection = connection.ok_or(DropReason::IcmpUnwanted)?;
        if connection.spliced().is_some() {
            let error = (version, icmp_error, original);
            return self.rooms.translate_error(flow, connection, error, &quoted, out);
        };
        let is_our_syn = flow.side() == Side::Server
            && connection
                .state
                .server()
                .is_some_and(|server| SeqNum(quoted.seq) == server.iss);
        if !is_our_syn || !matches!(icmp_error, IcmpError::Unreachable(_)) {
            return Err(DropReason::IcmpUnwanted);
        }
        self.drive(
            flow.slot(),
            Event::ServerUnreachable,
            &mut ActionContext::nothing(),
            out,
        );
        Ok(())
    }
}

impl<P: BufferPool, S: SelectServer, N: NextHops> Rooms<P, S, N> {
    /// Tells the sender of a quoted segment, which was passed on to `flow`, what became of it.
    fn translate_error(
        &mut self,
        flow: FlowRef,
        connection: &mut Connection,
        (version, icmp_error, original): (IpVersion, IcmpError, &[u8]),
        quoted: &QuotedTcp,
        out: &mut impl Output<P::Buffer>,
    ) -> Result<(), DropReason> {
        let (slot, towards) = (flow.slot(), flow.side());
        let spliced = connection.spliced().ok_or(DropReason::IcmpUnwanted)?;
        // The quote is in the numbers of the receiver; the flow is kept in those of the sender.
        let seq = match self.inspections.of(slot) {
            Some(inspection) => inspection.sent_by(towards.peer()).to_in(SeqNum(quoted.seq)),
            None => spliced.seq_from_peer(towards.peer(), SeqNum(quoted.seq)),
        };
        let direction = spliced.direction(towards.peer());
        if !(seq.ge(direction.snd_una) && seq.le(direction.end)) {
            return Err(DropReason::IcmpNotInFlight);
        }
        if !self.may_tell(connection, towards.peer(), icmp_error) {
            return Err(DropReason::RateLimited);
        }
        let path = self.path_to(towards.peer(), connection);
        let path = path.ok_or(DropReason::NoNeighbour)?;
        let told = if path.version() == version {
            icmp_error
        } else {
            let told = icmp_error.across(version).ok_or(DropReason::IcmpUnwanted)?;
            self.within_our_links(told, connection, towards, &path)
        };
        let quote = icmp::quote::for_sender(version, original, quoted, &path, seq);
        let quote = quote.ok_or(DropReason::IcmpUnwanted)?;
        self.lower_rtx_mss(slot, connection, towards, icmp_error);
        self.emit_icmp(&path, told, &quote, out)
    }

    /// True if `side` of a live connection may hear of one more error. Only the connection itself limits that: path-MTU
    /// discovery must not stop because of what strangers, or other connections, make us send (RFC 1191, RFC 8201).
    fn may_tell(&mut self, connection: &mut Connection, side: Side, icmp_error: IcmpError) -> bool {
        let grant = match icmp_error {
            IcmpError::TooBig(_) => LimitKind::TooBig(side),
            IcmpError::Unreachable(_) | IcmpError::TimeExceeded(_) | IcmpError::Parameter { .. } => {
                LimitKind::IcmpError
            }
        };
        connection.granted.take(grant, self.now)
    }

    /// RFC 7915 4.2 and 5.2: an MTU that is told in the other version is no larger than our own links' on either leg.
    fn within_our_links(&self, told: IcmpError, connection: &Connection, towards: Side, path: &Path) -> IcmpError {
        let IcmpError::TooBig(mtu) = told else { return told };
        let by = match towards {
            Side::Client => Some(connection.ends.client_device),
            Side::Server => connection.ends.server(&self.settings).map(|server| server.device),
        };
        let of = |device: e2d2::port::PortId| u32::from(self.settings.devices[usize::from(device.0)].mtu);
        let beyond = by.map_or(u32::MAX, |device| siit::mtu_for(path.version(), of(device)));
        IcmpError::TooBig(mtu.min(of(path.device)).min(beyond))
    }

    /// The engine's own retransmissions must fit the path, too.
    fn lower_rtx_mss(&mut self, slot: u32, connection: &Connection, towards: Side, icmp_error: IcmpError) {
        let IcmpError::TooBig(mtu) = icmp_error else { return };
        let mtu = mtu.min(u32::from(u16::MAX)) as u16;
        let lower = |mss: &mut u16, has_timestamps| *mss = (*mss).min(mtu - 60 - if has_timestamps { 12 } else { 0 });
        if let Some(direction) = self.inspections.sent_by_mut(slot, towards.peer()) {
            lower(&mut direction.mss, direction.tsval.is_some());
        }
        let towards_server = connection.spliced().filter(|_| towards == Side::Server);
        if let Some(queue) = towards_server.and_then(|spliced| self.rtx.get_mut(spliced.rtx)) {
            lower(&mut queue.mss, queue.timestamps.is_some());
        }
    }

    /// Tells the sender of a packet that the link it must leave by is too small (RFC 1191 4, RFC 8201 4): it would
    /// take packets of `mtu` bytes as the sender makes them.
    pub(crate) fn send_too_big(
        &mut self,
        sender: Option<(&mut Connection, Side)>,
        incoming: &Incoming<P::Buffer>,
        mtu: u32,
        out: &mut impl Output<P::Buffer>,
    ) {
        let layout = incoming.segment.layout;
        let Some(original) = incoming
            .buffer
            .data()
            .get(usize::from(layout.l3)..usize::from(layout.end))
        else {
            return;
        };
        let may_be_fragmented =
            layout.version == IpVersion::V4 && original.get(6).is_some_and(|flags| flags & 0x40 == 0);
        if may_be_fragmented {
            return;
        }
        let icmp_error = IcmpError::TooBig(mtu);
        let may_tell = match sender {
            Some((connection, side)) => self.may_tell(connection, side, icmp_error),
            // Late segments of a connection that is over.
            None => self.admission.limits.late_too_big.take(self.now),
        };
        if !may_tell {
            return self.emit.dropped(DropReason::RateLimited);
        }
        let path = self.path_back(incoming.segment);
        if let Err(reason) = self.emit_icmp(&path, icmp_error, original, out) {
            self.emit.dropped(reason);
        }
    }

    fn emit_icmp(
        &mut self,
        path: &Path,
        icmp_error: IcmpError,
        original: &[u8],
        out: &mut impl Output<P::Buffer>,
    ) -> Result<(), DropReason> {
        let mut buffer = self.emit.pool.take().ok_or(DropReason::NoBuffer)?;
        icmp_error
            .write(&path.envelope(), original, &mut buffer)
            .map_err(|_| DropReason::NoBuffer)?;
        self.emit.send_own(path.device, buffer, out);
        Ok(())
    }
}

/// True if a segment does not fit a link of this MTU.
#[inline]
pub(crate) fn is_too_big(segment: &Segment, mtu: u16) -> bool {
    segment.layout.end - segment.layout.l3 > mtu
}
