//! Frames of our own making: numbers in, frame out.

use super::connection::{Connection, NO_SERVER, Opening, Spliced, Stage};
use super::drop_reason::DropReason;
use super::forwarded_syn::ForwardedSyn;
use super::settings::Settings;
use super::syn_ack_options::Offered;
use super::time_wait::TimeWaitEntry;
use super::{NextHops, Output, Proxy, reassembly};
use crate::callbacks::SelectServer;
use e2d2::buffer::BufferPool;
use e2d2::port::PortId;
use e2d2::time::Instant;
use e2d2::wire::frame::IpVersion;
use e2d2::wire::tcp::{TcpFlags, TcpOptions, TcpRepr};
use e2d2::wire::{Checksums, Envelope, MacAddr};
use netfcts::leg::{ip_version, unmapped};
use netfcts::seq::SeqNum;
use netfcts::{FourTuple, Side};

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
            envelope: path.envelope(),
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
    pub source_mac: MacAddr,
    pub destination_mac: MacAddr,
    pub source: u128,
    pub destination: u128,
    pub source_port: u16,
    pub destination_port: u16,
    pub device: PortId,
    pub mtu: u16,
    pub checksums: Checksums,
}

impl Path {
    /// What a frame of our own says about it.
    pub(super) fn envelope(&self) -> Envelope {
        Envelope {
            src_mac: self.source_mac,
            dst_mac: self.destination_mac,
            src_addr: unmapped(self.source),
            dst_addr: unmapped(self.destination),
            hop_limit: HOP_LIMIT,
        }
    }

    /// The version of IP on this path.
    #[inline]
    pub(super) fn version(&self) -> IpVersion {
        ip_version(self.destination)
    }

    /// The length of an IP and a TCP header without options on this path.
    pub(super) fn header_len(&self) -> u16 {
        self.version().header_len_with_tcp()
    }
}

/// The end points of a connection, open or resting.
#[derive(Clone, Copy, Debug)]
pub(super) struct Endpoints {
    client: u128,
    client_port: u16,
    client_mac: MacAddr,
    client_device: PortId,
    listener_address: u16,
    listener_port: u16,
    local_address: u16,
    local_port: u16,
    server: u16,
}

impl From<&Connection> for Endpoints {
    #[inline(always)]
    fn from(connection: &Connection) -> Self {
        Endpoints {
            client: connection.client_address(),
            client_port: connection.client_port,
            client_mac: connection.client_mac,
            client_device: connection.client_device,
            listener_address: connection.listener_address,
            listener_port: connection.listener_port,
            local_address: connection.local_address,
            local_port: connection.local_port,
            server: connection.server,
        }
    }
}

impl From<&TimeWaitEntry> for Endpoints {
    fn from(rested: &TimeWaitEntry) -> Self {
        Endpoints {
            client: rested.client_address(),
            client_port: rested.client_port,
            client_mac: rested.client_mac,
            client_device: rested.client_device,
            listener_address: rested.listener_address,
            listener_port: rested.listener_port,
            local_address: rested.local_address,
            local_port: rested.local_port,
            server: rested.server,
        }
    }
}

impl Endpoints {
    /// The key of one leg in the flow table; `None` for the server leg while there is no server.
    #[inline]
    pub(super) fn key(&self, settings: &Settings, side: Side) -> Option<FourTuple> {
        Some(match side {
            Side::Client => FourTuple {
                remote: self.client,
                local: settings.addresses.value(self.listener_address),
                remote_port: self.client_port,
                local_port: self.listener_port,
            },
            Side::Server => {
                let server = settings.servers.get(usize::from(self.server))?;
                let (local, local_port) = self.source(settings);
                FourTuple {
                    remote: server.address,
                    local,
                    remote_port: server.port,
                    local_port,
                }
            }
        })
    }
}

impl Endpoints {
    /// Our address and port towards the server.
    #[inline]
    pub(super) fn source(&self, settings: &Settings) -> (u128, u16) {
        settings
            .addresses
            .source(self.local_address, self.local_port, self.client)
    }
}

/// True if `key` is that of the leg to `side` of a connection: [`Endpoints::key`] without making it.
#[inline]
pub(super) fn is_leg(settings: &Settings, connection: &Connection, side: Side, key: &FourTuple) -> bool {
    match side {
        Side::Client => {
            connection.client_port == key.remote_port
                && connection.listener_port == key.local_port
                && connection.client_address() == key.remote
                && settings.addresses.value(connection.listener_address) == key.local
        }
        Side::Server => {
            let server = settings.servers.get(usize::from(connection.server));
            let (address, port, client) = (
                connection.local_address,
                connection.local_port,
                connection.client_address(),
            );
            server.is_some_and(|server| server.port == key.remote_port && server.address == key.remote)
                && settings.addresses.source(address, port, client) == (key.local, key.local_port)
        }
    }
}

/// The way to the client of a connection.
pub(super) fn path_to_client(settings: &Settings, ends: impl Into<Endpoints>) -> Path {
    way_to_client(settings, ends.into())
}

/// [`path_to_client`] on the path of every packet, where it is not put together in memory.
#[inline(always)]
pub(super) fn way_to_client(settings: &Settings, ends: Endpoints) -> Path {
    let ours = &settings.devices[usize::from(ends.client_device.0)];
    Path {
        source_mac: ours.mac,
        destination_mac: ends.client_mac,
        source: settings.addresses.value(ends.listener_address),
        destination: ends.client,
        source_port: ends.listener_port,
        destination_port: ends.client_port,
        device: ends.client_device,
        mtu: ours.mtu,
        checksums: ours.checksums,
    }
}

/// The way to the server of a connection; `None` while its next hop is not resolved.
pub(super) fn path_to_server(
    settings: &Settings,
    neighbours: &impl NextHops,
    ends: impl Into<Endpoints>,
) -> Option<Path> {
    way_to_server(settings, neighbours, ends.into())
}

/// [`path_to_server`] on the path of every packet, where it is not put together in memory.
#[inline(always)]
pub(super) fn way_to_server(settings: &Settings, neighbours: &impl NextHops, ends: Endpoints) -> Option<Path> {
    let server = settings.servers.get(usize::from(ends.server))?;
    let (source, source_port) = ends.source(settings);
    let ours = &settings.devices[usize::from(server.device.0)];
    Some(Path {
        source_mac: ours.mac,
        destination_mac: neighbours.mac(server.next_hop)?,
        source,
        destination: server.address,
        source_port,
        destination_port: server.port,
        device: server.device,
        mtu: ours.mtu,
        checksums: ours.checksums,
    })
}

/// What our SYN offers to the server of a connection, in segments that fit both legs: what was agreed with the client, or
/// what the client's own SYN says that is passed on.
pub(super) fn offered(
    settings: &Settings,
    connection: &Connection,
    opening: &Opening,
    syn: Option<&ForwardedSyn>,
) -> Offered {
    let leg = |peer: u128, device: PortId| {
        settings.devices[usize::from(device.0)].mtu - ip_version(peer).header_len_with_tcp()
    };
    let server = settings.servers.get(usize::from(connection.server));
    let to_server = server.map_or(u16::MAX, |server| leg(server.address, server.device));
    let to_client = leg(connection.client_address(), connection.client_device);
    let passed = syn.map(|syn| TcpOptions::parse(&syn.options));
    if let Some(options) = passed {
        return Offered {
            mss: opening.agreed.mss.min(to_server).min(to_client),
            window_scale: options.window_scale.is_some(),
            sack: options.sack_permitted,
            timestamps: options.timestamps.is_some(),
        };
    }
    Offered {
        mss: opening.agreed.mss.min(to_server).min(to_client),
        window_scale: opening.agreed.window_scale.is_some(),
        sack: opening.agreed.sack,
        timestamps: opening.timestamps,
    }
}

/// The options of a segment that carries nothing but timestamps, if they were agreed.
pub(super) fn timestamps(values: Option<(u32, u32)>) -> TcpOptions {
    TcpOptions {
        timestamps: values,
        ..TcpOptions::NONE
    }
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
        out: &mut impl Output<P::Buffer>,
    ) {
        if let Err(reason) = emit_into(&mut self.pool, memory, path, control, payload, out) {
            self.drops.add(reason, 1);
        }
    }

    /// The numbers that we have last told `to`: what a challenge ACK and an answer to a keep-alive say.
    pub(super) fn current_numbers(&self, connection: &Connection, to: Side) -> Control {
        let (seq, mut ack, window) = match &connection.stage {
            Stage::Opening(opening) => {
                let (seq, ack, window) = opening_numbers(connection, opening, to);
                (seq, ack, self.answered_window(opening, to).unwrap_or(window))
            }
            Stage::Spliced(spliced) => spliced_numbers(spliced, to),
        };
        // What the client has been told stays true while the server has not acknowledged it.
        if to == Side::Client
            && let Some(debt) = connection.spliced().and_then(|spliced| self.rtx.get(spliced.owed))
        {
            ack = ack.later(debt.end);
        }
        Control {
            seq,
            ack,
            flags: TcpFlags::ACK,
            window,
            options: TcpOptions::NONE,
        }
    }

    /// Sends a RST to one side of a connection, with a number that its receiver believes.
    pub(super) fn reset(&mut self, slot: u32, to: Side, out: &mut impl Output<P::Buffer>) {
        let Some(connection) = self.connections.get(slot) else {
            return;
        };
        if to == Side::Server && (connection.server == NO_SERVER || connection.local_port == 0) {
            return;
        }
        let path = match to {
            Side::Client => Some(path_to_client(&self.settings, connection)),
            Side::Server => path_to_server(&self.settings, &self.neighbours, connection),
        };
        let Some(path) = path else {
            return self.drops.add(DropReason::NoNeighbour, 1);
        };
        let mut control = self.current_numbers(connection, to);
        control.flags = if to == Side::Server && connection.opening().is_some() {
            // RFC 9293 3.10.7.4: nothing of the server's has been acknowledged that an ACK could name.
            TcpFlags::RST
        } else {
            TcpFlags::RST | TcpFlags::ACK
        };
        control.window = 0;
        if to == Side::Client && self.has_heard_nothing(connection) {
            // RFC 9293 3.10.7.1: what a closed port answers to a SYN.
            control.seq = SeqNum(0);
        }
        // RFC 5961 3.2: the receiver acts only on its exact RCV.NXT. That is its last ACK, or, if its next ACK is still
        // on the way, the end of what was sent.
        let acknowledged = connection.spliced().map(|spliced| match to {
            Side::Client => spliced.to_client.snd_una + spliced.server_seq_offset,
            Side::Server => spliced.to_server.snd_una + spliced.client_seq_offset,
        });
        // Where bytes have been changed, only the receiver's own numbers name what it expects.
        let inspected = self
            .inspections
            .of(slot)
            .map(|inspection| inspection.sent_by(to.peer()));
        control.seq = inspected.map_or(control.seq, |direction| direction.sent);
        let acknowledged = inspected.map(|direction| direction.acked).or(acknowledged);
        self.emit(None, &path, &control, &[], out);
        if let Some(seq) = acknowledged.filter(|&seq| seq != control.seq) {
            self.emit(None, &path, &Control { seq, ..control }, &[], out);
        }
    }
}

impl<P: BufferPool, S, N> Proxy<P, S, N> {
    /// What the server's SYN-ACK has offered the client, if that was passed on: not what we could hold.
    fn answered_window(&self, opening: &Opening, to: Side) -> Option<u16> {
        let answer = self.forwarded_syns.get(opening.syn.into())?.answer?;
        // RFC 7323 2.2: the window of a SYN-ACK is never scaled, that of each later segment is.
        let shift = answer.options.window_scale.map_or(0, |shift| shift.min(14));
        (to == Side::Client).then_some(answer.window >> shift)
    }

    /// True if the client's SYN was passed on and nothing has come back.
    fn has_heard_nothing(&self, connection: &Connection) -> bool {
        let syn = connection
            .opening()
            .and_then(|opening| self.forwarded_syns.get(opening.syn.into()));
        syn.is_some_and(|syn| syn.answer.is_none())
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
    out: &mut impl Output<P::Buffer>,
) -> Result<(), DropReason> {
    emit_joined(pool, memory, path, control, (&[], payload), out)
}

/// As [`emit_into`], with bytes that stand in two places.
///
/// # Errors
/// As there.
#[inline(always)]
pub(super) fn emit_joined<P: BufferPool>(
    pool: &mut P,
    memory: Option<P::Buffer>,
    path: &Path,
    control: &Control,
    (front, payload): (&[u8], &[u8]),
    out: &mut impl Output<P::Buffer>,
) -> Result<(), DropReason> {
    let mut buffer = memory.or_else(|| pool.take()).ok_or(DropReason::NoBuffer)?;
    control
        .segment(path, payload)
        .emit_behind(front, &mut buffer, path.checksums)
        .map_err(|_| DropReason::NoBuffer)?;
    out.send(path.device, buffer);
    Ok(())
}

fn opening_numbers(connection: &Connection, opening: &Opening, to: Side) -> (SeqNum, SeqNum, u16) {
    match to {
        Side::Client => {
            // Our FIN, if it is out, follows our SYN.
            let sent_fin = u32::from(connection.phase == super::phase::Phase::LastAck);
            (
                opening.cookie + 1 + sent_fin,
                opening.acknowledged,
                opening_window(opening),
            )
        }
        Side::Server => (opening.server_side_isn + 1, SeqNum(0), opening.client_window),
    }
}

/// The window that the client is offered while its bytes are held.
///
/// Never more than was promised with the SYN-ACK: when the server has taken what is held, its own window reaches as far.
pub(super) fn opening_window(opening: &Opening) -> u16 {
    let taken = (opening.acknowledged - opening.first_byte()).max(0) as usize;
    let beyond_promise = reassembly::LARGE.saturating_sub(opening.advertised_window() as usize);
    room_as_window(opening, taken.max(beyond_promise))
}

/// The first number that the client has not been allowed to send before there was a server.
pub(super) fn advertised_edge(opening: &Opening) -> SeqNum {
    let later = opening.acknowledged + (u32::from(opening_window(opening)) << opening.advertised_scale);
    (opening.first_byte() + opening.advertised_window()).later(later)
}

/// What is left of the room for held bytes when `taken` of it is used, as the field that the client expects. As in
/// [`WindowScale::to_client`](super::connection::WindowScale::to_client) only a unit beyond any segment is rounded up.
pub(super) fn room_as_window(opening: &Opening, taken: usize) -> u16 {
    const LARGEST_ROUNDED_DOWN: usize = 512;
    let left = reassembly::LARGE.saturating_sub(taken);
    let unit = 1 << opening.advertised_scale;
    let units = if unit <= LARGEST_ROUNDED_DOWN {
        left / unit
    } else {
        left.div_ceil(unit)
    };
    units.min(0xffff) as u16
}

fn spliced_numbers(spliced: &Spliced, to: Side) -> (SeqNum, SeqNum, u16) {
    let (sent, received) = match to {
        Side::Client => (spliced.to_client, spliced.to_server),
        Side::Server => (spliced.to_server, spliced.to_client),
    };
    let window = (received.edge - received.snd_una).max(0) as u32;
    let (seq, shift) = match to {
        Side::Client => (sent.end + spliced.server_seq_offset, spliced.scale.advertised),
        Side::Server if spliced.scale.server_scales => (sent.end + spliced.client_seq_offset, spliced.scale.client),
        Side::Server => (sent.end + spliced.client_seq_offset, 0),
    };
    (seq, received.snd_una, (window >> shift).min(0xffff) as u16)
}
