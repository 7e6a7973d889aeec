//! The way of a batch: every header is read before the first packet is dealt with, so that what the packets will need is on
//! its way from memory while others have their turn.

use crate::base::callbacks::SelectServer;
use crate::base::drop_reason::DropReason;
use crate::base::output::{NextHops, Output};
use crate::base::settings::Verify;
use crate::base::stage::WorkStage;
use crate::emit::Telling;
use crate::proxy::{Incoming, Proxy};
use crate::session::classify;
use crate::session::segment::{self, Segment};
use crate::session::state::Stage;
use crate::session::table::{FlowRef, Mark};
use arrayvec::ArrayVec;
use e2d2::BURST;
use e2d2::buffer::{BufferPool, ChecksumStatus, PacketBuffer};
use e2d2::wire::MacAddr;
use e2d2::wire::frame::{Kind, Packet, TcpLayout};
use e2d2::wire::tcp::TcpFlags;
use netfcts::{FourTuple, Side};

/// A packet's connection is prefetched while the packet so many places before it in the batch is dealt with. A processor has some twenty
/// lines on their way at once and drops prefetches beyond them; the connections of a whole batch take up to a hundred.
const CONNECTION_AHEAD: usize = 6;

/// The same for what only the connection leads to.
const BESIDE_AHEAD: usize = 3;

impl<P: BufferPool, S: SelectServer, N: NextHops> Proxy<P, S, N> {
    /// Reads the packets, asks for what they will need, and deals with them in turn.
    pub(crate) fn handle_all(
        &mut self,
        batch: &mut ArrayVec<Packet<P::Buffer>, BURST>,
        out: &mut impl Output<P::Buffer>,
    ) {
        // The bucket of each packet is on its way while the first ones are dealt with.
        out.enter(WorkStage::Parse);
        let mut buffers: ArrayVec<P::Buffer, BURST> = ArrayVec::new();
        let mut segments: ArrayVec<Segment, BURST> = ArrayVec::new();
        for packet in batch.drain(..) {
            match self.read(&packet, classify::check_flags, &mut segments) {
                Ok(()) => buffers.push(packet.buffer),
                Err(reason) => self.drop_unread(&packet, reason),
            }
        }
        out.enter(WorkStage::LookUp);
        if self.ask_ahead(&mut segments) && self.is_one_captured(&segments) {
            return self.handle_tapped(&mut buffers, &mut segments, out);
        }
        let telling = std::mem::replace(&mut self.rooms.emit.telling, Telling::Nothing);
        self.handle_each(&mut buffers, &mut segments, out);
        self.rooms.emit.telling = telling;
    }

    /// Deals with segments of which a capture need not know one by one.
    #[inline(never)]
    pub(super) fn handle_each(
        &mut self,
        buffers: &mut ArrayVec<P::Buffer, BURST>,
        segments: &mut [Segment],
        out: &mut impl Output<P::Buffer>,
    ) {
        for (turn, buffer) in buffers.drain(..).enumerate() {
            self.ask_while_at(turn, segments);
            let Some(segment) = segments.get_mut(turn) else { break };
            out.enter(WorkStage::Checksum);
            match self.verify(segment, buffer.data()) {
                Ok(()) => self.handle(Incoming { buffer, segment }, out),
                Err(reason) => self.drop_damaged(segment, buffer.data(), reason),
            }
        }
    }

    /// Notes which flows the segments of a batch most likely belong to, and asks for what the first of them need. Returns whether one of
    /// them may be captured.
    #[inline(always)]
    fn ask_ahead(&mut self, segments: &mut [Segment]) -> bool {
        let sieve = self.rooms.emit.sieve();
        let looks_ahead = self.rooms.selector.looks_ahead();
        let (mut has_strangers, mut may_be) = (false, false);
        for segment in &mut *segments {
            segment.guess = self.rooms.flows.guess(segment.hash);
            may_be |= sieve.may_have(segment);
            if segment.guess.is_none() {
                has_strangers = true;
                if looks_ahead {
                    self.rooms.selector.prefetch_client(segment.key.remote);
                }
            }
        }
        segments
            .iter()
            .take(CONNECTION_AHEAD)
            .for_each(|segment| self.ask_for_connection(segment));
        if has_strangers && looks_ahead {
            self.look_strangers_up(segments);
        }
        may_be
    }

    /// While the segment at `turn` of its batch is dealt with, asks for what later ones need.
    #[inline(always)]
    pub(super) fn ask_while_at(&self, turn: usize, segments: &[Segment]) {
        if let Some(segment) = segments.get(turn + CONNECTION_AHEAD) {
            self.ask_for_connection(segment);
        }
        if let Some(segment) = segments.get(turn + BESIDE_AHEAD) {
            self.ask_for_neighbours(segment);
        }
    }

    /// Asks for the connection of a segment and what is kept for it elsewhere, or for what a new one is looked up in.
    #[inline(always)]
    fn ask_for_connection(&self, segment: &Segment) {
        match segment.guess {
            Some(flow) if flow.is_time_wait() => {}
            Some(flow) => {
                self.connections.prefetch(flow.slot());
                self.rooms.records.prefetch(flow.slot());
                if flow.has(Mark::Watched) {
                    self.rooms.legs.prefetch_places(flow.slot());
                }
                if may_call(flow, segment) {
                    self.rooms.timers.prefetch(flow.slot());
                } else if segment.payload_len() == 0 {
                    // It may be the last.
                    self.rooms.admission.quotas.prefetch(flow.slot());
                }
            }
            // The ACK of a cookie, most likely.
            None if !segment.has(TcpFlags::SYN) => self.rooms.handshake.replay_filter.prefetch(segment.hash),
            None => {}
        }
    }

    /// Asks for what the lines that [`ask_for_connection`](Self::ask_for_connection) has asked for lead to.
    #[inline(always)]
    fn ask_for_neighbours(&self, segment: &Segment) {
        let Some(flow) = segment.guess.filter(|flow| !flow.is_time_wait()) else {
            return;
        };
        if flow.has(Mark::Watched) {
            self.rooms.legs.prefetch_entry(flow.slot());
        }
        // Payload ends the wait for it: the timer is set to an earlier time, and may have stood among others for long.
        if may_call(flow, segment)
            && let Some(connection) = self.connections.get(flow.slot())
            && matches!(connection.state.stage(), Some(Stage::AwaitPayload))
        {
            self.rooms.timers.prefetch_neighbours(flow.slot());
        }
    }

    /// Has the selector look up whom it will be asked about.
    #[inline(never)]
    fn look_strangers_up(&mut self, segments: &mut [Segment]) {
        let strangers = segments.iter_mut().filter(|segment| segment.guess.is_none());
        self.rooms
            .selector
            .look_ahead(strangers.map(|segment| (segment.key.remote, &mut segment.looked_up)));
    }

    /// Reads a packet's headers, whose flags must pass `check`.
    #[inline(always)]
    pub(super) fn read<const MOST: usize>(
        &self,
        packet: &Packet<P::Buffer>,
        check: impl Fn(TcpFlags) -> Result<(), DropReason>,
        into: &mut ArrayVec<Segment, MOST>,
    ) -> Result<(), DropReason> {
        let Kind::Tcp(layout) = packet.kind else {
            return Err(DropReason::BadLayout);
        };
        let frame = packet.buffer.data();
        let device = self.rooms.settings.devices.get(usize::from(packet.port.0));
        let device = device.ok_or(DropReason::OtherStation)?;
        if !starts_with(frame, device.mac) {
            return Err(DropReason::OtherStation);
        }
        let header = segment::Header::read(frame, layout).ok_or(DropReason::BadLayout)?;
        check(header.flags)?;
        let key = header.key;
        let hash = self.rooms.flows.hash_of_packet(&key, layout.version);
        self.rooms.flows.prefetch(hash);
        into.push(Segment {
            key,
            hash,
            seq: header.seq,
            ack: header.ack,
            window: header.window,
            flags: header.flags,
            source_mac: header.source_mac,
            device: packet.port,
            layout,
            checksum: packet.buffer.rx_info().l4_checksum,
            guess: None,
            looked_up: None,
        });
        Ok(())
    }

    /// Verifies the checksum of a segment that must be right whatever it says. Like [`Self::find`] a part of its callers, as every
    /// segment goes through both.
    #[inline(always)]
    pub(super) fn verify(&self, segment: &mut Segment, frame: &[u8]) -> Result<(), DropReason> {
        let acts_on_it = segment.flags.intersects(TcpFlags::SYN | TcpFlags::FIN | TcpFlags::RST);
        if acts_on_it || self.rooms.settings.verify == Verify::All {
            if !is_intact(segment.checksum, segment.layout, frame) {
                return Err(DropReason::BadTcpChecksum);
            }
            segment.checksum = ChecksumStatus::Good;
        }
        Ok(())
    }

    #[inline]
    fn handle(&mut self, incoming: Incoming<P::Buffer>, out: &mut impl Output<P::Buffer>) {
        out.enter(WorkStage::LookUp);
        let found = self.find(incoming.segment);
        if found != incoming.segment.guess && self.rooms.emit.tap.is_some() {
            return self.handle_unforeseen(found, incoming, out);
        }
        self.handle_found(found, incoming, out);
    }

    /// Deals with a segment of this flow, or of none.
    #[inline(always)]
    pub(super) fn handle_found(
        &mut self,
        found: Option<FlowRef>,
        incoming: Incoming<P::Buffer>,
        out: &mut impl Output<P::Buffer>,
    ) {
        out.enter(WorkStage::Classify);
        match found {
            None => self.handle_unbound(incoming, out),
            Some(flow) if flow.is_time_wait() => self.on_time_wait(flow, incoming, out),
            Some(flow) => self.handle_connection(flow, incoming, out),
        }
    }

    /// The flow of a segment: nearly always the one that stood in the table when its batch was read.
    #[inline(always)]
    pub(crate) fn find(&self, segment: &Segment) -> Option<FlowRef> {
        match segment.guess {
            Some(flow) if !flow.is_time_wait() && self.is_open_leg(flow, &segment.key) => Some(flow),
            _ => self.look_up(segment),
        }
    }

    #[inline(never)]
    fn look_up(&self, segment: &Segment) -> Option<FlowRef> {
        let is_it = |flow| self.is_leg(flow, &segment.key);
        self.rooms.flows.find(segment.hash, is_it)
    }

    /// True if `key` is that of a flow in the table.
    fn is_leg(&self, flow: FlowRef, key: &FourTuple) -> bool {
        if flow.is_time_wait() {
            return self.rooms.key_at_rest(flow).as_ref() == Some(key);
        }
        self.is_open_leg(flow, key)
    }

    /// The same for one that does not rest. Whatever the table says: who has this key is in it.
    #[inline]
    fn is_open_leg(&self, flow: FlowRef, key: &FourTuple) -> bool {
        let connection = self.connections.get(flow.slot());
        connection.is_some_and(|connection| {
            (connection.ends).is_leg(&self.rooms.settings, &self.rooms.transparent_sources, flow.side(), key)
        })
    }

    /// The flow with this key, open or at rest.
    pub(crate) fn find_key(&self, hash: u64, key: &FourTuple) -> Option<FlowRef> {
        self.rooms.flows.find(hash, |flow| self.is_leg(flow, key))
    }
}

impl<B: PacketBuffer> Incoming<'_, B> {
    /// Verifies the TCP checksum, unless the port has, or we.
    #[inline]
    pub(crate) fn is_intact(&self) -> bool {
        is_intact(self.segment.checksum, self.segment.layout, self.buffer.data())
    }
}

/// Whether a segment of this flow may be the first payload, for which a server is called.
#[inline]
fn may_call(flow: FlowRef, segment: &Segment) -> bool {
    flow.side() == Side::Client && segment.payload_len() > 0
}

/// Verifies the TCP checksum of the segment in `frame`, unless that has been done.
#[inline]
fn is_intact(known: ChecksumStatus, layout: TcpLayout, frame: &[u8]) -> bool {
    match known {
        ChecksumStatus::Good => true,
        ChecksumStatus::Bad => false,
        ChecksumStatus::Unknown => layout.is_checksum_valid(frame),
    }
}

/// True if a frame is for the station with this address: two comparisons of numbers.
#[inline]
fn starts_with(frame: &[u8], mac: MacAddr) -> bool {
    let Some(&[a, b, c, d, e, f]) = frame.first_chunk() else {
        return false;
    };
    let [g, h, i, j, k, l] = mac.0;
    let high = u32::from_ne_bytes([a, b, c, d]) ^ u32::from_ne_bytes([g, h, i, j]);
    let low = u16::from_ne_bytes([e, f]) ^ u16::from_ne_bytes([k, l]);
    high | u32::from(low) == 0
}
