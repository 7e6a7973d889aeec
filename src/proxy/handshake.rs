//! Strangers: the cookie SYN-ACK, the ACK that redeems it, and the refusal of everything else.
//!
//! Nothing here remembers anything: what a stranger sends costs cycles and at most one frame, no larger than its own
//! plus options (DESIGN: decision 12).

use super::action::Action;
use super::connection::{Connection, NO_SERVER, Opening};
use super::cookie::{Agreed, Opened};
use super::drop_reason::DropReason;
use super::event::{Event, Side};
use super::held::HeldId;
use super::phase::Phase;
use super::segment::{Segment, address_of};
use super::send::{Control, HOP_LIMIT, Path};
use super::settings::Strangers;
use super::step::step;
use super::table::FlowRef;
use super::{Incoming, NextHops, Outbox, Proxy, is_intact};
use crate::callbacks::SelectServer;
use e2d2::buffer::{BufferPool, PacketBuffer};
use e2d2::time::Instant;
use e2d2::wire::Envelope;
use e2d2::wire::frame::IpVersion;
use e2d2::wire::tcp::{TcpFlags, TcpOptions};
use netfcts::counters::TcpCounter;
use netfcts::record::Cause;
use netfcts::seq::SeqNum;

/// RFC 9293 3.7.1: the MSS of a peer that names none.
fn default_mss(version: IpVersion) -> u16 {
    match version {
        IpVersion::V4 => 536,
        IpVersion::V6 => 1220,
    }
}

impl<P, S, N> Proxy<P, S, N>
where
    P: BufferPool,
    S: SelectServer,
    N: NextHops,
{
    /// A segment to one of our addresses, from a flow without a live connection.
    pub(super) fn meet_stranger(
        &mut self,
        now: Instant,
        (phase, mut event): (Phase, Event),
        (address, listener): (u16, Option<u16>),
        incoming: Incoming<P::Buffer>,
        out: &mut impl Outbox<P::Buffer>,
    ) {
        let mut opened = None;
        if event == Event::CookieAck {
            if !is_intact(&incoming) {
                return self.drops.add(DropReason::BadTcpChecksum, 1);
            }
            opened = self.opens_cookie(now, &incoming.segment);
            if opened.is_none() {
                event = Event::ClientAck;
            }
        }
        if event == Event::Syn {
            self.log.count(Side::Client, TcpCounter::RecvSyn);
        }
        for action in step(phase, event).actions {
            match (action, listener, opened) {
                (Action::SendCookie, Some(_), _) => return self.send_cookie(now, incoming, out),
                (Action::CreateConnection, Some(listener), Some(opened)) => {
                    return self.create(now, (listener, address), opened, incoming, out);
                }
                (Action::Drop(reason), _, _) => return self.drops.add(*reason, 1),
                _ => return self.refuse(now, incoming, out),
            }
        }
    }

    /// The cookie that a segment acknowledges, if it is one of ours and still good.
    pub(super) fn opens_cookie(&self, now: Instant, segment: &Segment) -> Option<Opened> {
        self.cookies.open(&segment.key, segment.seq - 1, segment.ack - 1, now)
    }

    fn send_cookie(&mut self, now: Instant, incoming: Incoming<P::Buffer>, out: &mut impl Outbox<P::Buffer>) {
        if self.draining {
            return self.drops.add(DropReason::Draining, 1);
        }
        let Incoming { buffer, segment } = incoming;
        let offered = TcpOptions::parse(segment.options(buffer.data()));
        let promise = self.settings.promise;
        let agreed = Agreed {
            mss: offered.mss.unwrap_or(default_mss(segment.layout.version)),
            window_scale: offered.window_scale.filter(|_| promise.window_scale.is_some()),
            sack: offered.sack_permitted && promise.sack,
        };
        let headers = if segment.layout.version == IpVersion::V4 {
            40
        } else {
            60
        };
        let mtu = self.settings.devices[usize::from(segment.device.0)].mtu;
        let path = self.path_back(&segment);
        let control = Control {
            seq: self.cookies.bake(&segment.key, segment.seq, agreed, now),
            // RFC 9293 3.10.7.2: data on a SYN is not acknowledged; the client sends it again.
            ack: segment.seq + 1,
            flags: TcpFlags::SYN | TcpFlags::ACK,
            window: promise.window,
            options: TcpOptions {
                mss: Some((promise.mss + 40 - headers).min(mtu - headers)),
                window_scale: promise.window_scale.filter(|_| agreed.window_scale.is_some()),
                sack_permitted: agreed.sack,
                timestamps: offered
                    .timestamps
                    .filter(|_| promise.timestamps)
                    .map(|(tsval, _)| (self.timestamp(now), tsval)),
            },
        };
        self.log.count(Side::Client, TcpCounter::SentSynAck);
        self.emit(Some(buffer), &path, &control, &[], out);
    }

    fn create(
        &mut self,
        now: Instant,
        (listener, address): (u16, u16),
        opened: Opened,
        incoming: Incoming<P::Buffer>,
        out: &mut impl Outbox<P::Buffer>,
    ) {
        let segment = incoming.segment;
        if self.draining {
            return self.refuse(now, incoming, out);
        }
        // While the table fills up, only those who also have something to say get a place in it.
        let capacity = self.connections.capacity();
        if segment.payload_len() == 0 && self.connections.len() >= capacity / 4 * 3 {
            return self.drops.add(DropReason::Pressure, 1);
        }
        if self.connections.len() == capacity {
            return self.drops.add(DropReason::TableFull, 1);
        }
        if !self.used_cookies.note(segment.hash, segment.ack, now) {
            return self.drops.add(DropReason::UsedCookie, 1);
        }
        let opening = self.new_opening(opened, &incoming);
        let connection = Connection::new(
            (segment.key.remote, segment.key.remote_port),
            segment.source_mac,
            segment.device,
            (listener, address, segment.key.local_port),
            opening,
            now.as_millis() as u32,
        );
        self.free_key(segment.hash, &segment.key);
        let Ok(slot) = self.connections.insert(connection) else {
            return self.drops.add(DropReason::TableFull, 1);
        };
        if self.table.insert(segment.hash, FlowRef::client(slot)).is_err() {
            self.connections.remove(slot);
            return self.drops.add(DropReason::TableFull, 1);
        }
        self.log.count(Side::Client, TcpCounter::RecvSynAck2);
        if let Some(connection) = self.connections.get(slot) {
            self.log.begin(slot, connection, now);
        }
        let select = self.settings.listeners[usize::from(listener)].select;
        self.wheel.arm(slot, now + select);
        if segment.len() == 0 {
            if let Some(connection) = self.connections.get_mut(slot) {
                connection.packets_from_client = 1;
            }
            return self.drops.add(DropReason::Consumed, 1);
        }
        self.handle_connection(now, FlowRef::client(slot), incoming, out);
    }

    fn new_opening(&self, opened: Opened, incoming: &Incoming<P::Buffer>) -> Opening {
        let segment = &incoming.segment;
        let options = TcpOptions::parse(segment.options(incoming.buffer.data()));
        let timestamps = options.timestamps.filter(|_| self.settings.promise.timestamps);
        let scaled = opened.agreed.window_scale.is_some();
        Opening {
            client_isn: segment.seq - 1,
            cookie: segment.ack - 1,
            client_tsval: timestamps.map_or(0, |(tsval, _)| tsval),
            acknowledged: segment.seq,
            held: HeldId::NONE,
            server_side_isn: SeqNum(0),
            tsval_shift: 0,
            pool: Opening::NO_POOL,
            agreed: opened.agreed,
            client_window: segment.window,
            fin_offset: Opening::NO_FIN,
            promised_scale: self.settings.promise.window_scale.filter(|_| scaled).unwrap_or(0),
            timestamps: timestamps.is_some(),
            tries: 0,
            tried: [NO_SERVER; Opening::MAX_TRIED],
            failure: Cause::NoServer,
        }
    }

    /// RFC 9293 3.10.7.1: the RST of a closed port, with numbers that its sender believes.
    fn refuse(&mut self, now: Instant, incoming: Incoming<P::Buffer>, out: &mut impl Outbox<P::Buffer>) {
        self.drops.add(DropReason::UnknownFlow, 1);
        if self.settings.strangers == Strangers::Ignore {
            return;
        }
        if !self.answers.take(now) {
            return self.drops.add(DropReason::RateLimited, 1);
        }
        let Incoming { buffer, segment } = incoming;
        let path = self.path_back(&segment);
        let (seq, ack, flags) = if segment.has(TcpFlags::ACK) {
            (segment.ack, SeqNum(0), TcpFlags::RST)
        } else {
            (SeqNum(0), segment.end(), TcpFlags::RST | TcpFlags::ACK)
        };
        let control = Control {
            seq,
            ack,
            flags,
            window: 0,
            options: TcpOptions::NONE,
        };
        self.emit(Some(buffer), &path, &control, &[], out);
    }

    /// The way back to the sender of a segment that belongs to no connection.
    pub(super) fn path_back(&self, segment: &Segment) -> Path {
        Path {
            envelope: Envelope {
                src_mac: self.settings.devices[usize::from(segment.device.0)].mac,
                dst_mac: segment.source_mac,
                src_addr: address_of(segment.key.local),
                dst_addr: address_of(segment.key.remote),
                hop_limit: HOP_LIMIT,
            },
            source_port: segment.key.local_port,
            destination_port: segment.key.remote_port,
            device: segment.device,
        }
    }
}
