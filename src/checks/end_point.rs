//! The client end of one check's connection: smoltcp's TCP over the packets that a core passes, and the conversation over it.

use std::collections::VecDeque;
use std::time::Duration;

use e2d2::time::Instant;
use netfcts::FourTuple;
use netfcts::leg::unmapped;
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Checksum, Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};
use smoltcp::wire::{
    HardwareAddress, IpAddress, IpCidr, IpListenEndpoint, IpVersion, Ipv4Packet, Ipv6Packet, TcpPacket, TcpSeqNumber,
};
use splice::checks::CheckOrder;
use splice::server_state::CheckFailure;

use super::request::Verdict;
use super::talk::Talk;

/// The longest answer that is read: twice the largest head that common HTTP servers send.
pub(super) const MOST_HEARD: usize = 16 << 10;

/// The receive buffer.
const RECEIVE_BUFFER: usize = 4 << 10;

/// The send buffer.
const SEND_BUFFER: usize = 4 << 10;

/// Packets of the server that wait for the end point: a receive buffer's worth of small ones.
const MOST_PACKETS: usize = 64;

/// The client end of a connection to a server.
pub(super) struct EndPoint {
    interface: Interface,
    sockets: SocketSet<'static>,
    socket: SocketHandle,
    wire: Wire,
    talk: Talk,
    is_open: bool,
    deadline: Instant,
    result: Option<Result<(), CheckFailure>>,
    due: Instant,
}

impl EndPoint {
    /// An end point that connects to the order's server; `seed` is unique. `None` if the order's addresses are of two
    /// families.
    pub(super) fn new(order: &CheckOrder, talk: Talk, seed: u64, now: Instant) -> Option<Self> {
        let mut wire = Wire::new(order);
        let mut config = Config::new(HardwareAddress::Ip);
        config.random_seed = seed;
        let mut interface = Interface::new(config, &mut wire, stamp(now));
        let (local, remote) = addresses(&order.key);
        interface.update_ip_addrs(|addresses| {
            // A single one fits.
            let _ = addresses.push(IpCidr::new(
                local,
                if matches!(local, IpAddress::Ipv4(_)) { 32 } else { 128 },
            ));
        });
        let buffer = |bytes: usize| SocketBuffer::new(vec![0; bytes]);
        let mut socket = Socket::new(buffer(RECEIVE_BUFFER), buffer(SEND_BUFFER));
        socket.set_nagle_enabled(false);
        let ours = IpListenEndpoint {
            addr: Some(local),
            port: order.key.local_port,
        };
        socket
            .connect(interface.context(), (remote, order.key.remote_port), ours)
            .ok()?;
        let mut sockets = SocketSet::new(Vec::with_capacity(1));
        let socket = sockets.add(socket);
        Some(EndPoint {
            interface,
            sockets,
            socket,
            wire,
            talk,
            is_open: false,
            deadline: now + order.timeout,
            result: None,
            due: now,
        })
    }

    /// Queues a packet of the server's, or drops it if the queue is full; TCP repeats it.
    pub(super) fn receive(&mut self, packet: &[u8], now: Instant) {
        if self.wire.received.len() < MOST_PACKETS {
            self.wire.receive(packet);
            self.due = now;
        }
    }

    /// Runs what is due at `now`. Packets to send are given by [`EndPoint::packet`] afterwards.
    pub(super) fn poll(&mut self, now: Instant) {
        if now < self.due || self.result.is_some() {
            return;
        }
        self.turn(now);
        self.result = self.judge(now);
        if self.result.is_some() {
            // The server may have more to send, or may not have answered: RST.
            self.sockets.get_mut::<Socket<'_>>(self.socket).abort();
        }
        // Sends what was written, or the RST.
        self.turn(now);
        let next = self.interface.poll_at(stamp(now), &self.sockets);
        self.due = next.map_or(self.deadline, |next| instant(next).max(now).min(self.deadline));
    }

    fn turn(&mut self, now: Instant) {
        self.interface.poll(stamp(now), &mut self.wire, &mut self.sockets);
    }

    /// Reads and writes; returns the result once there is one.
    fn judge(&mut self, now: Instant) -> Option<Result<(), CheckFailure>> {
        let socket = self.sockets.get_mut::<Socket<'_>>(self.socket);
        match socket.state() {
            State::SynSent => return (now >= self.deadline).then_some(Err(CheckFailure::Unanswered)),
            State::Closed if !self.is_open => return Some(Err(CheckFailure::Refused)),
            _ => self.is_open = true,
        }
        while socket.can_recv() {
            // `can_recv` was true, so the socket is open.
            let _ = socket.recv(|bytes| (bytes.len(), self.talk.hear(bytes)));
        }
        let verdict = self.talk.judge(!socket.may_recv());
        while socket.can_send() {
            let sent = socket.send_slice(self.talk.to_say()).unwrap_or(0);
            if sent == 0 {
                break;
            }
            self.talk.note_said(sent);
        }
        match verdict {
            Verdict::Passed => Some(Ok(())),
            Verdict::Wrong => Some(Err(CheckFailure::Wrong)),
            Verdict::More => (now >= self.deadline).then_some(Err(CheckFailure::Unanswered)),
        }
    }

    /// The next packet for the server.
    pub(super) fn packet(&self) -> Option<&[u8]> {
        self.wire.sent.front().map(Vec::as_slice)
    }

    /// Removes the packet that was taken.
    pub(super) fn note_sent(&mut self) {
        self.wire.sent.pop_front();
    }

    /// The result, once nothing is left to be sent, and the sequence number after all that was sent.
    pub(super) fn end(&self) -> Option<(Result<(), CheckFailure>, u32)> {
        let result = self.result.filter(|_| self.wire.sent.is_empty())?;
        Some((result, self.wire.next_seq))
    }
}

/// The packets of one end point. Its sequence numbers are moved to begin where the order says: smoltcp draws its own, which may be
/// below what the server remembers of an older connection of the port's (RFC 6191 2, RFC 9293 3.4.3).
struct Wire {
    received: VecDeque<Vec<u8>>,
    sent: VecDeque<Vec<u8>>,
    addresses: (IpAddress, IpAddress),
    mtu: usize,
    isn: u32,
    /// The offset of our sequence numbers, set by the SYN.
    shift: Option<u32>,
    next_seq: u32,
}

impl Wire {
    fn new(order: &CheckOrder) -> Self {
        Wire {
            received: VecDeque::new(),
            sent: VecDeque::new(),
            addresses: addresses(&order.key),
            mtu: order.mtu.into(),
            isn: order.isn,
            shift: None,
            next_seq: order.isn.wrapping_add(1),
        }
    }

    fn receive(&mut self, packet: &[u8]) {
        let mut packet = packet.to_vec();
        if let Some((segment, shift)) = segment_of(&mut packet).zip(self.shift)
            && let Ok(mut tcp) = TcpPacket::new_checked(segment)
        {
            // The core has verified the checksum; smoltcp is told not to.
            tcp.set_ack_number(moved(tcp.ack_number(), shift.wrapping_neg()));
            self.received.push_back(packet);
        }
    }

    /// Adds the offset to a packet's sequence number.
    fn send(&mut self, mut packet: Vec<u8>) {
        let (local, remote) = self.addresses;
        if let Some(segment) = segment_of(&mut packet)
            && let Ok(mut tcp) = TcpPacket::new_checked(segment)
        {
            let isn = self.isn;
            let shift = *(self.shift).get_or_insert_with(|| isn.wrapping_sub(tcp.seq_number().0 as u32));
            let seq = moved(tcp.seq_number(), shift);
            tcp.set_seq_number(seq);
            tcp.fill_checksum(&local, &remote);
            let end = (seq.0 as u32).wrapping_add(tcp.segment_len() as u32);
            if end.wrapping_sub(self.next_seq) as i32 > 0 {
                self.next_seq = end;
            }
        }
        self.sent.push_back(packet);
    }
}

fn moved(number: TcpSeqNumber, shift: u32) -> TcpSeqNumber {
    TcpSeqNumber((number.0 as u32).wrapping_add(shift) as i32)
}

/// The TCP segment in an IP packet.
fn segment_of(packet: &mut [u8]) -> Option<&mut [u8]> {
    match IpVersion::of_packet(packet).ok()? {
        IpVersion::Ipv4 => {
            let header = Ipv4Packet::new_checked(&*packet).ok()?;
            let within = usize::from(header.header_len())..usize::from(header.total_len());
            packet.get_mut(within)
        }
        IpVersion::Ipv6 => {
            let header = Ipv6Packet::new_checked(&*packet).ok()?;
            let within = header.header_len()..header.total_len();
            packet.get_mut(within)
        }
    }
}

impl Device for Wire {
    type RxToken<'a> = Received;
    type TxToken<'a> = ToSend<'a>;

    fn receive(&mut self, _: smoltcp::time::Instant) -> Option<(Received, ToSend<'_>)> {
        let packet = self.received.pop_front()?;
        Some((Received(packet), ToSend(self)))
    }

    fn transmit(&mut self, _: smoltcp::time::Instant) -> Option<ToSend<'_>> {
        (self.sent.len() < MOST_PACKETS).then_some(ToSend(self))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = self.mtu;
        capabilities.checksum.tcp = Checksum::Tx;
        capabilities.checksum.ipv4 = Checksum::Tx;
        capabilities
    }
}

struct Received(Vec<u8>);

impl RxToken for Received {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, read: F) -> R {
        read(&self.0)
    }
}

struct ToSend<'a>(&'a mut Wire);

impl TxToken for ToSend<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, write: F) -> R {
        let mut packet = vec![0; length];
        let result = write(&mut packet);
        self.0.send(packet);
        result
    }
}

fn addresses(key: &FourTuple) -> (IpAddress, IpAddress) {
    (unmapped(key.local).into(), unmapped(key.remote).into())
}

fn stamp(now: Instant) -> smoltcp::time::Instant {
    smoltcp::time::Instant::from_micros((now.as_nanos() / 1000) as i64)
}

fn instant(at: smoltcp::time::Instant) -> Instant {
    Instant::ZERO + Duration::from_micros(at.total_micros().max(0) as u64)
}
