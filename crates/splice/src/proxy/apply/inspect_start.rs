//! How an inspection begins: the inspector is offered the connection, and shown the first payload before the server gets
//! it (DECISIONS.md 23).

use super::connecting::SpliceParams;
use super::inspecting::InspectOutcome;
use crate::base::callbacks::{ConnectionInfo, GUARANTEED_GROWTH, SelectServer};
use crate::base::drop_reason::DropReason;
use crate::base::ids::ListenerId;
use crate::base::output::{NextHops, Output};
use crate::inspect::Inspection;
use crate::inspect::direction::InspectedDirection;
use crate::proxy::Rooms;
use crate::session::close::Direction;
use crate::session::connection::Connection;
use crate::session::event::{Event, FinChange};
use crate::session::state::State;
use e2d2::buffer::BufferPool;
use netfcts::Side;
use netfcts::counters::TcpCounter;
use netfcts::leg::unmapped;
use netfcts::record::RecordFlags;
use std::net::SocketAddr;

/// What comes of a connection that is offered to the inspector.
pub(super) enum InspectStart {
    /// The inspector does not want it: an ordinary splice.
    Ordinary,
    /// It is inspected.
    Inspected,
    /// There is no room to inspect it, and uninspected it must not go on.
    NoRoom,
}

impl<P: BufferPool, S: SelectServer, N: NextHops> Rooms<P, S, N> {
    /// Offers a connection that a server has just accepted to the inspector.
    pub(super) fn begin_inspection(
        &mut self,
        slot: u32,
        connection: &Connection,
        splice_params: &SpliceParams,
    ) -> InspectStart {
        let Some(inspection) = self.new_inspection(connection, splice_params) else {
            return InspectStart::Ordinary;
        };
        let info = inspection.info;
        let Some(index) = self.inspections.open(slot, inspection) else {
            return InspectStart::NoRoom;
        };
        if !self.selector.open_context(index, &info) {
            self.inspections.close(slot);
            return InspectStart::Ordinary;
        }
        let held = self.reassembly.in_order(splice_params.client.held).len();
        let needed = usize::from(splice_params.header_len) + held + GUARANTEED_GROWTH;
        if self.inspections.room(slot, Side::Client) < needed {
            return InspectStart::NoRoom;
        }
        InspectStart::Inspected
    }

    fn new_inspection(&self, connection: &Connection, splice_params: &SpliceParams) -> Option<Inspection> {
        let spliced = connection.spliced()?;
        let leg = connection.ends.leg?;
        let server = connection.ends.server(&self.settings)?;
        let side = &splice_params.client;
        let (client, local) = splice_params.ends?;
        let info = ConnectionInfo::new(
            client,
            local,
            ListenerId(connection.listener),
            leg.server,
            SocketAddr::new(unmapped(server.address), server.port),
        );
        let path = self.path_to_client(connection);
        let mtu = self.settings.devices[usize::from(path.device.0)].mtu;
        // RFC 6691 3: the MSS does not count options.
        let options = if splice_params.timestamps.is_some() { 12 } else { 0 };
        let client_mss = side.mss.min(mtu - path.header_len()).saturating_sub(options);
        let mut to_server = InspectedDirection::new(
            side.first_byte(),
            splice_params.iss + 1,
            spliced.to_server.edge + spliced.client_seq_offset,
            splice_params.mss,
            splice_params
                .timestamps
                .map(|(tsval, _)| tsval.wrapping_sub(spliced.client_ts_offset)),
        );
        to_server.floor = side.last_ack_sent.later(to_server.floor);
        to_server.advertised.0 = to_server.floor;
        let to_client = InspectedDirection::new(
            splice_params.ack,
            side.iss + 1,
            spliced.to_client.edge + spliced.server_seq_offset,
            client_mss,
            splice_params.timestamps.map(|(_, tsval)| tsval),
        );
        Some(Inspection {
            info,
            to_server,
            to_client,
        })
    }

    /// There was no room to inspect a connection: it ends.
    pub(super) fn refuse_inspection(&mut self, splice_params: &SpliceParams) -> Option<Event> {
        self.emit.dropped(DropReason::InspectFull);
        let mut held = splice_params.client.held;
        self.reassembly.close(&mut held);
        Some(Event::Rejected)
    }

    /// Shows the first payload and sends what became of it, behind the PROXY header. Bytes behind a hole are forgotten:
    /// their sender repeats them.
    pub(super) fn send_first(
        &mut self,
        slot: u32,
        connection: &mut Connection,
        splice_params: &SpliceParams,
        out: &mut impl Output<P::Buffer>,
    ) -> Option<Event> {
        let now_ms = self.now.as_millis() as u32;
        let mut first = std::mem::take(&mut self.inspections.first);
        let mut kept = splice_params.client.held;
        let held = self.reassembly.in_order(kept);
        let len = held.len().min(first.len());
        first[..len].copy_from_slice(&held[..len]);
        self.reassembly.close(&mut kept);
        let fin = splice_params.client.fin_offset() == Some(len);
        let mut is_kept = true;
        if splice_params.header_len > 0 {
            // The header is a change like any other: nothing of the client's became these bytes.
            self.records.flag(slot, RecordFlags::PROXY_OUT);
            let header = self.rtx.drafted(splice_params.header_len);
            is_kept = self.inspections.keep(slot, Side::Client, 0, header, now_ms);
        }
        if len > 0 || fin {
            is_kept &= match self.show(slot, Side::Client, &mut first[..len], fin) {
                InspectOutcome::Rejected => false,
                // All of it is kept: the client has been told of some, and the held bytes were copied anyway.
                InspectOutcome::Passed { .. } => {
                    (self.inspections).keep(slot, Side::Client, len as u32, &first[..len], now_ms)
                }
                InspectOutcome::Replaced(out_len) => self.keep_scratch(slot, Side::Client, len as u32, out_len, now_ms),
            };
        }
        self.inspections.first = first;
        if !is_kept {
            return Some(Event::Rejected);
        }
        self.accept_first(slot, connection, len as u64, fin);
        if len > 0 {
            self.records.count(Side::Server, TcpCounter::SentPayload);
        }
        self.pump(slot, connection, Side::Client, out);
        self.tell(slot, connection, Side::Client, out);
        self.arm_spliced(slot, connection);
        fin.then_some(Event::Segment {
            from: Side::Client,
            fin: FinChange::Noted,
            acknowledges_fin: false,
        })
    }

    /// Brings the splice's own numbers in line with those of the first payload.
    fn accept_first(&mut self, slot: u32, connection: &mut Connection, len: u64, fin: bool) {
        let Some(inspection) = self.inspections.of_mut(slot) else {
            return;
        };
        let direction = &mut inspection.to_server;
        if fin {
            direction.advance(1);
            direction.fin = true;
        }
        let (shift, next_in, floor) = (direction.shift(), direction.next_in, direction.floor);
        connection.count_bytes(Side::Client, len as i64);
        let State::Spliced(spliced) = &mut connection.state else {
            return;
        };
        spliced.client_seq_offset = shift;
        let edge = spliced.to_server.edge.later(next_in);
        let first = next_in - len as u32 - u32::from(fin);
        spliced.to_server = Direction::new(first, (edge - first).max(0) as u32);
        spliced.to_server.note_sent(first, next_in);
        spliced.to_server.note_acknowledged(floor, 0);
    }
}
