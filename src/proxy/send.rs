//! Frames of our own making: numbers in, frame out.

use super::connection::{Connection, NO_SERVER, Opening, Spliced, Stage};
use super::drop_reason::DropReason;
use super::event::Side;
use super::segment::address_of;
use super::settings::Settings;
use super::{NextHops, Outbox, Proxy, held};
use crate::callbacks::SelectServer;
use e2d2::buffer::BufferPool;
use e2d2::port::PortId;
use e2d2::time::Instant;
use e2d2::wire::emit::Envelope;
use e2d2::wire::tcp::options::TcpOptions;
use e2d2::wire::tcp::{TcpFlags, TcpRepr};
use netfcts::seq::SeqNum;

/// The hop limit of what we originate, as Linux and BSD have it.
pub(super) const HOP_LIMIT: u8 = 64;

/// The control part of a frame of ours.
#[derive(Clone, Copy, Debug)]
pub(super) struct Control {
    pub seq: SeqNum,
    pub ack: SeqNum,
    pub flags: TcpFlags,
    pub window: u16,
    pub options: TcpOptions,
}

impl Control {
    pub(super) fn segment<'a>(&self, path: &Path, payload: &'a [u8]) -> TcpRepr<'a> {
        TcpRepr {
            envelope: path.envelope,
            src_port: path.source_port,
            dst_port: path.destination_port,
            seq: self.seq.0,
            ack: self.ack.0,
            flags: self.flags,
            window: self.window,
            options: self.options,
            sack_blocks: &[],
            payload,
        }
    }
}

/// Between which end points, and by which port, a frame of ours goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Path {
    pub envelope: Envelope,
    pub source_port: u16,
    pub destination_port: u16,
    pub device: PortId,
}

/// The way to the client of a connection.
pub(super) fn path_to_client(settings: &Settings, connection: &Connection) -> Path {
    let device = connection.client_device;
    Path {
        envelope: Envelope {
            src_mac: settings.devices[usize::from(device.0)].mac,
            dst_mac: connection.client_mac,
            src_addr: address_of(settings.addresses.value(connection.listener_address)),
            dst_addr: address_of(connection.client_address()),
            hop_limit: HOP_LIMIT,
        },
        source_port: connection.listener_port,
        destination_port: connection.client_port,
        device,
    }
}

/// The way to the server of a connection.
///
/// # Errors
/// [`DropReason::NoNeighbour`] while its next hop is not resolved.
pub(super) fn path_to_server(
    settings: &Settings,
    neighbours: &impl NextHops,
    connection: &Connection,
) -> Result<Path, DropReason> {
    let server = settings.servers.get(usize::from(connection.server)).ok_or(DropReason::NoNeighbour)?;
    Ok(Path {
        envelope: Envelope {
            src_mac: settings.devices[usize::from(server.device.0)].mac,
            dst_mac: neighbours.mac(server.next_hop).ok_or(DropReason::NoNeighbour)?,
            src_addr: address_of(settings.addresses.value(connection.local_address)),
            dst_addr: address_of(server.address),
            hop_limit: HOP_LIMIT,
        },
        source_port: connection.local_port,
        destination_port: server.port,
        device: server.device,
    })
}

/// The options of a segment that carries nothing but timestamps, if they were agreed.
pub(super) fn timestamps(values: Option<(u32, u32)>) -> TcpOptions {
    TcpOptions { timestamps: values, ..TcpOptions::NONE }
}

impl<P, S, N> Proxy<P, S, N>
where
    P: BufferPool,
    S: SelectServer,
    N: NextHops,
{
    /// Our timestamp clock towards clients: 1 ms, as RFC 7323 5.4 recommends.
    pub(super) fn timestamp(&self, now: Instant) -> u32 {
        self.timestamp_base.wrapping_add(now.as_millis() as u32)
    }

    /// Writes a frame into `memory`, or a buffer of the pool, and sends it.
    pub(super) fn emit(
        &mut self,
        memory: Option<P::Buffer>,
        path: &Path,
        control: &Control,
        payload: &[u8],
        out: &mut impl Outbox<P::Buffer>,
    ) {
        if let Err(reason) = emit_into(&mut self.pool, memory, path, control, payload, out) {
            self.drops.count(reason);
        }
    }

    /// The numbers that we have last told `to`: what a challenge ACK and an answer to a keep-alive say.
    pub(super) fn current_numbers(&self, connection: &Connection, to: Side) -> Control {
        let (seq, ack, window) = match &connection.stage {
            Stage::Opening(opening) => opening_numbers(connection, opening, to),
            Stage::Spliced(spliced) => spliced_numbers(spliced, to),
        };
        Control { seq, ack, flags: TcpFlags::ACK, window, options: TcpOptions::NONE }
    }

    /// Sends a RST to one side of a connection, with a number that its receiver believes.
    pub(super) fn reset(&mut self, slot: u32, to: Side, out: &mut impl Outbox<P::Buffer>) {
        let Some(connection) = self.connections.get(slot) else { return };
        if to == Side::Server && (connection.server == NO_SERVER || connection.local_port == 0) {
            return;
        }
        let path = match to {
            Side::Client => Ok(path_to_client(&self.settings, connection)),
            Side::Server => path_to_server(&self.settings, &self.neighbours, connection),
        };
        let path = match path {
            Ok(path) => path,
            Err(reason) => return self.drops.count(reason),
        };
        let mut control = self.current_numbers(connection, to);
        control.flags = if to == Side::Server && connection.opening().is_some() {
            // RFC 9293 3.10.7.4: nothing of the server's has been acknowledged that an ACK could name.
            TcpFlags::RST
        } else {
            TcpFlags::RST | TcpFlags::ACK
        };
        control.window = 0;
        // RFC 5961 3.2: the receiver acts only on its exact RCV.NXT. That is its last ACK, or, if its next ACK is still
        // on the way, the end of what was sent.
        let acknowledged = connection.spliced().map(|spliced| match to {
            Side::Client => spliced.to_client.acknowledged + spliced.server_shift,
            Side::Server => spliced.to_server.acknowledged + spliced.client_shift,
        });
        self.emit(None, &path, &control, &[], out);
        if let Some(seq) = acknowledged.filter(|&seq| seq != control.seq) {
            self.emit(None, &path, &Control { seq, ..control }, &[], out);
        }
    }
}

/// Writes a frame and hands it to the outbox.
///
/// # Errors
/// [`DropReason::NoBuffer`] if the pool is empty or its buffers are too small.
pub(super) fn emit_into<P: BufferPool>(
    pool: &mut P,
    memory: Option<P::Buffer>,
    path: &Path,
    control: &Control,
    payload: &[u8],
    out: &mut impl Outbox<P::Buffer>,
) -> Result<(), DropReason> {
    let mut buffer = memory.or_else(|| pool.take()).ok_or(DropReason::NoBuffer)?;
    control.segment(path, payload).emit(&mut buffer).map_err(|_| DropReason::NoBuffer)?;
    out.send(path.device, buffer);
    Ok(())
}

fn opening_numbers(connection: &Connection, opening: &Opening, to: Side) -> (SeqNum, SeqNum, u16) {
    match to {
        Side::Client => {
            // Our FIN, if it is out, follows our SYN.
            let sent_fin = u32::from(connection.phase == super::phase::Phase::LastAck);
            (opening.cookie + 1 + sent_fin, opening.acknowledged, opening_window(opening))
        }
        Side::Server => (opening.server_side_isn + 1, SeqNum(0), opening.client_window),
    }
}

/// What is left of the room for held bytes, as the field that the client expects.
pub(super) fn opening_window(opening: &Opening) -> u16 {
    let taken = (opening.acknowledged - opening.first_byte()).max(0) as usize;
    let left = held::LARGE.saturating_sub(taken);
    (left >> opening.promised_scale).min(0xffff) as u16
}

fn spliced_numbers(spliced: &Spliced, to: Side) -> (SeqNum, SeqNum, u16) {
    let (sent, received) = match to {
        Side::Client => (spliced.to_client, spliced.to_server),
        Side::Server => (spliced.to_server, spliced.to_client),
    };
    let window = (received.edge - received.acknowledged).max(0) as u32;
    let (seq, shift) = match to {
        Side::Client => (sent.end + spliced.server_shift, spliced.scale.promised),
        Side::Server if spliced.scale.server_scales => (sent.end + spliced.client_shift, spliced.scale.client),
        Side::Server => (sent.end + spliced.client_shift, 0),
    };
    (seq, received.acknowledged, (window >> shift).min(0xffff) as u16)
}
