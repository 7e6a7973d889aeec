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
use crate::proxy::{Incoming, Proxy, routes};
use crate::rewrite::siit;
use crate::session::connection::{Connection, Stage};
use crate::session::event::Event;
use crate::session::limits::LimitKind;
use crate::session::segment::Segment;
use e2d2::buffer::{BufferPool, PacketBuffer};
use e2d2::time::Instant;
use e2d2::wire::Envelope;
use e2d2::wire::frame::{IpVersion, Packet};
use e2d2::wire::quote;
use netfcts::leg::mapped;
use netfcts::seq::SeqNum;
use netfcts::{FourTuple, Side};

impl<P, S, N> Proxy<P, S, N>
where
    P: BufferPool,
    S: SelectServer,
    N: NextHops,
{
    /// An ICMP or ICMPv6 error to one of our addresses, whose own checksums are right.
    pub fn handle_icmp_error(&mut self, now: Instant, packet: Packet<P::Buffer>, out: &mut impl Output<P::Buffer>) {
        self.now = now;
        // Errors are advice (RFC 5927 4.1: most of a flood is made up); while there is not time for all they wait behind
        // connections, as SYNs do.
        if self.admission.overload.is_shedding() && !self.admission.shed_errors.take(now) {
            self.admission.overload.note_drop(now);
            return self.emit.dropped(DropReason::Overload);
        }
        if let Err(reason) = self.pass_icmp_error(now, packet, out) {
            self.emit.dropped(reason);
        }
    }

    fn pass_icmp_error(
        &mut self,
        now: Instant,
        packet: Packet<P::Buffer>,
        out: &mut impl Output<P::Buffer>,
    ) -> Result<(), DropReason> {
        let (version, icmp_error, original) =
            IcmpError::read(packet.buffer.data(), packet.kind).ok_or(DropReason::IcmpUnwanted)?;
        let quoted = quote::parse(version, original)
            .ok()
            .flatten()
            .ok_or(DropReason::IcmpUnwanted)?;
        let key = FourTuple {
            remote: mapped(quoted.dst_addr),
            local: mapped(quoted.src_addr),
            remote_port: quoted.dst_port,
            local_port: quoted.src_port,
        };
        let hash = self.flows.hash(&key);
        let Some(flow) = self.flows.find(hash, |flow| self.key_of(flow) == Some(key)) else {
            return match self.hand_over_icmp_error(&key, packet, out) {
                Some(_) => Err(DropReason::IcmpUnwanted),
                None => Ok(()),
            };
        };
        if flow.is_time_wait() {
            return Err(DropReason::IcmpUnwanted);
        }
        let (slot, towards) = (flow.slot(), flow.side());
        let connection = self.connections.get(slot).ok_or(DropReason::IcmpUnwanted)?;
        match &connection.stage {
            Stage::Opening(opening) => {
                let is_our_syn = towards == Side::Server && SeqNum(quoted.seq) == opening.server_side_isn;
                if !is_our_syn || !matches!(icmp_error, IcmpError::Unreachable(_)) {
                    return Err(DropReason::IcmpUnwanted);
                }
                self.drive(now, slot, Event::ServerUnreachable, None, out);
                Ok(())
            }
            Stage::Spliced(spliced) => {
                // The quote is in the numbers of the receiver; the flow is kept in those of the sender.
                let seq = match self.inspections.of(slot) {
                    Some(inspection) => inspection.sent_by(towards.peer()).to_in(SeqNum(quoted.seq)),
                    None => spliced.seq_from_peer(towards.peer(), SeqNum(quoted.seq)),
                };
                let flow = match towards {
                    Side::Server => spliced.to_server,
                    Side::Client => spliced.to_client,
                };
                if !(seq.ge(flow.snd_una) && seq.le(flow.end)) {
                    return Err(DropReason::IcmpNotInFlight);
                }
                let path = match towards {
                    Side::Server => routes::path_to_client(&self.settings, connection),
                    Side::Client => routes::path_to_server(&self.settings, &self.next_hops, connection)
                        .ok_or(DropReason::NoNeighbour)?,
                };
                let told = if path.version() == version {
                    icmp_error
                } else {
                    let told = icmp_error.across(version).ok_or(DropReason::IcmpUnwanted)?;
                    self.within_our_links(told, connection, towards, &path)
                };
                let quote = icmp::quote::for_sender(version, original, &quoted, &path, seq);
                let quote = quote.ok_or(DropReason::IcmpUnwanted)?;
                let envelope = path.envelope();
                let device = path.device;
                if !self.may_tell(now, slot, towards.peer(), icmp_error) {
                    return Err(DropReason::RateLimited);
                }
                self.lower_rtx_mss(slot, towards, icmp_error);
                self.emit_icmp(&envelope, told, &quote, device, out)
            }
        }
    }

    /// True if `side` of a live connection may hear of one more error. Only the connection itself limits that: path-MTU
    /// discovery must not stop because of what strangers, or other connections, make us send (RFC 1191, RFC 8201).
    fn may_tell(&mut self, now: Instant, slot: u32, side: Side, icmp_error: IcmpError) -> bool {
        let grant = match icmp_error {
            IcmpError::TooBig(_) => LimitKind::TooBig(side),
            IcmpError::Unreachable(_) | IcmpError::TimeExceeded(_) | IcmpError::Parameter { .. } => {
                LimitKind::IcmpError
            }
        };
        let connection = self.connections.get_mut(slot);
        connection.is_some_and(|connection| connection.granted.take(grant, now))
    }

    /// RFC 7915 4.2 and 5.2: an MTU that is told in the other version is no larger than our own links' on either leg.
    fn within_our_links(&self, told: IcmpError, connection: &Connection, towards: Side, path: &Path) -> IcmpError {
        let IcmpError::TooBig(mtu) = told else { return told };
        let by = match towards {
            Side::Client => Some(connection.client_device),
            Side::Server => self
                .settings
                .servers
                .get(usize::from(connection.server))
                .map(|server| server.device),
        };
        let of = |device: e2d2::port::PortId| u32::from(self.settings.devices[usize::from(device.0)].mtu);
        let beyond = by.map_or(u32::MAX, |device| siit::mtu_for(path.version(), of(device)));
        IcmpError::TooBig(mtu.min(of(path.device)).min(beyond))
    }

    /// What we owe is cut into segments by us: they must fit the path, too.
    fn lower_rtx_mss(&mut self, slot: u32, towards: Side, icmp_error: IcmpError) {
        if let (IcmpError::TooBig(mtu), Some(inspection)) = (icmp_error, self.inspections.of_mut(slot)) {
            let direction = inspection.sent_by_mut(towards.peer());
            let options = if direction.tsval.is_some() { 12 } else { 0 };
            let mtu = mtu.min(u32::from(u16::MAX)) as u16;
            direction.mss = direction.mss.min(mtu - 60 - options);
        }
        let (IcmpError::TooBig(mtu), Side::Server) = (icmp_error, towards) else {
            return;
        };
        let owed = self
            .connections
            .get(slot)
            .and_then(|connection| connection.spliced())
            .map(|spliced| spliced.owed);
        if let Some(debt) = owed.and_then(|index| self.rtx.get_mut(index)) {
            let options = if debt.timestamps.is_some() { 12 } else { 0 };
            let mtu = mtu.min(u32::from(u16::MAX)) as u16;
            debt.mss = debt.mss.min(mtu - 60 - options);
        }
    }

    /// Tells the sender of a packet that the link it must leave by is too small (RFC 1191 4, RFC 8201 4): it would
    /// take packets of `mtu` bytes as the sender makes them.
    pub(crate) fn send_too_big(
        &mut self,
        now: Instant,
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
        let may_tell = match self.find(incoming.segment) {
            Some(flow) if !flow.is_time_wait() => self.may_tell(now, flow.slot(), flow.side(), icmp_error),
            // Late segments of a connection that is over.
            _ => self.admission.limits.rst.take(now),
        };
        if !may_tell {
            return self.emit.dropped(DropReason::RateLimited);
        }
        let path = self.path_back(incoming.segment);
        if let Err(reason) = self.emit_icmp(&path.envelope(), icmp_error, original, path.device, out) {
            self.emit.dropped(reason);
        }
    }

    fn emit_icmp(
        &mut self,
        envelope: &Envelope,
        icmp_error: IcmpError,
        original: &[u8],
        device: e2d2::port::PortId,
        out: &mut impl Output<P::Buffer>,
    ) -> Result<(), DropReason> {
        let mut buffer = self.emit.pool.take().ok_or(DropReason::NoBuffer)?;
        icmp_error
            .write(envelope, original, &mut buffer)
            .map_err(|_| DropReason::NoBuffer)?;
        out.send(device, buffer);
        Ok(())
    }
}

/// True if a segment does not fit a link of this MTU.
#[inline]
pub(crate) fn is_too_big(segment: &Segment, mtu: u16) -> bool {
    segment.layout.end - segment.layout.l3 > mtu
}
