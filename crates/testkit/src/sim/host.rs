//! A host on an Ethernet link: smoltcp's interface and sockets, driven in virtual time.

use super::duty::{Duties, Ends, Numbers};
use super::fin;
use super::next::{self, Nexts};
use super::places::{Places, SocketId, end_listening_again};
use super::window::{self, Window, Windows};
use super::wire::Wire;
use e2d2::time::Instant;
use e2d2::wire::frame::{self, Kind};
use e2d2::wire::ipv4::Ipv4Header;
use e2d2::wire::ipv6::Ipv6Header;
use e2d2::wire::tcp::options::{self, kind};
use e2d2::wire::tcp::{TcpFlags, TcpPacket};
use netfcts::SeqNum;
use smoltcp::iface::{Config, Interface, SocketSet};
use smoltcp::socket::{Socket, tcp};
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpCidr};
use std::cell::Cell;
use std::collections::VecDeque;
use std::net::IpAddr;

thread_local! {
    static CLOCK_MS: Cell<u32> = const { Cell::new(0) };
}

/// What smoltcp's sockets use as their clock for timestamps, which they take as a plain function.
fn timestamp() -> u32 {
    CLOCK_MS.get()
}

/// Sets the timestamp clock of all hosts of this thread.
pub fn set_clock(now: Instant) {
    CLOCK_MS.set(now.as_millis() as u32);
}

/// The options that a host's SYNs and SYN-ACKs may carry; the others are blanked in the SYNs it sends and receives, so
/// that its TCP neither offers nor hears of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SynOptions {
    /// Maximum segment size.
    pub mss: bool,
    /// Window scale.
    pub window_scale: bool,
    /// SACK permitted.
    pub sack: bool,
    /// Timestamps.
    pub timestamps: bool,
}

impl SynOptions {
    /// What every current stack has.
    pub const ALL: SynOptions = SynOptions {
        mss: true,
        window_scale: true,
        sack: true,
        timestamps: true,
    };

    fn lacks(self, option: u8) -> bool {
        match option {
            kind::MSS => !self.mss,
            kind::WINDOW_SCALE => !self.window_scale,
            kind::SACK_PERMITTED => !self.sack,
            kind::TIMESTAMPS => !self.timestamps,
            _ => false,
        }
    }
}

/// How a host is made.
#[derive(Clone, Debug)]
pub struct HostPlan {
    /// Its MAC address ends in this.
    pub mac: u8,
    /// Its addresses with the length of the prefix, e.g. `10.0.0.1/24`; at most two.
    pub addresses: Vec<String>,
    /// The largest IP packet it sends.
    pub mtu: u16,
    /// The options it knows.
    pub options: SynOptions,
}

/// A host.
///
/// A segment goes to the socket that is connected to its sender, and only if there is none to one that listens
/// (RFC 9293 3.10.7). smoltcp by itself gives it to the first of all sockets that would take it, so that a SYN that
/// arrives twice makes two connections; listening sockets are kept apart from the others for that.
pub struct Host {
    sockets: Places,
    listeners: SocketSet<'static>,
    /// Its listening sockets wait before they answer a SYN.
    is_late: bool,
    accepted: Vec<SocketId>,
    duplicates: u16,
    /// A host that is off neither hears nor says anything.
    pub is_off: bool,
    interface: Interface,
    arrived: VecDeque<Vec<u8>>,
    wire: Wire,
    mac: [u8; 6],
    options: SynOptions,
    duties: Duties,
    windows: Windows,
    nexts: Nexts,
}

impl Host {
    /// A host without sockets.
    ///
    /// # Panics
    /// If the plan names an address that is none, or more than two.
    pub fn new(plan: &HostPlan, seed: u64, now: Instant) -> Self {
        let mac = [2, 0, 0, 0, 0, plan.mac];
        let mut wire = Wire::new(plan.mtu);
        let mut config = Config::new(HardwareAddress::Ethernet(EthernetAddress(mac)));
        config.random_seed = seed;
        let mut interface = Interface::new(config, &mut wire, time(now));
        interface.update_ip_addrs(|addresses| {
            for address in &plan.addresses {
                let address: IpCidr = address.parse().unwrap_or_else(|()| panic!("no address: {address}"));
                addresses.push(address).expect("two addresses at most");
            }
        });
        Host {
            sockets: Places::default(),
            listeners: SocketSet::new(Vec::new()),
            is_late: false,
            accepted: Vec::new(),
            duplicates: 0,
            is_off: false,
            interface,
            arrived: VecDeque::new(),
            wire,
            mac,
            options: plan.options,
            duties: Duties::default(),
            windows: Windows::default(),
            nexts: Nexts::default(),
        }
    }

    /// True for frames to its address and to groups.
    pub fn takes(&self, frame: &[u8]) -> bool {
        frame.first().is_some_and(|first| first & 1 == 1) || frame.get(..6) == Some(&self.mac)
    }

    /// A frame arrives. It is dealt with by the next [`Host::poll`].
    pub fn receive(&mut self, mut frame: Vec<u8>) {
        if !self.is_off {
            blank_options(&mut frame, self.options);
            match fin::apart(&frame) {
                Some(parts) => self.arrived.extend(parts),
                None => self.arrived.push_back(frame),
            }
        }
    }

    /// smoltcp 0.14 never repeats a lost FIN after three duplicate ACKs: its fast retransmission finds no data to send,
    /// and leaves no timer behind. What comes with another window is no duplicate to it; so while only its FIN is out,
    /// every segment without payload does. The same happens if an ACK of all data follows the third duplicate before
    /// anything could be sent: a socket for which this returns true must have the chance to send after each segment.
    fn make_no_duplicate(&mut self, id: SocketId, frame: &mut [u8]) -> bool {
        let socket = self.sockets.look(id);
        let is_closing = matches!(
            socket.state(),
            tcp::State::FinWait1 | tcp::State::Closing | tcp::State::LastAck
        );
        let Ok(Kind::Tcp(layout)) = frame::parse(frame) else {
            return is_closing;
        };
        if !is_closing || socket.send_queue() > 0 || layout.payload != layout.end {
            return is_closing;
        }
        self.duplicates = self.duplicates.wrapping_add(1);
        window::write(&mut frame[usize::from(layout.l4)..], 0x2000 | self.duplicates & 1);
        true
    }

    /// See [`window`].
    fn show_newest_window(&mut self, ends: Ends, numbers: Numbers, frame: &mut [u8]) {
        let (Some(ack), Ok(Kind::Tcp(layout))) = (numbers.ack, frame::parse(frame)) else {
            return;
        };
        let tcp = &mut frame[usize::from(layout.l4)..];
        let shown = Window {
            seq: SeqNum(numbers.seq),
            ack: SeqNum(ack),
            window: u16::from_be_bytes([tcp[14], tcp[15]]),
        };
        let newest = self.windows.newest(ends, shown);
        if newest != shown.window {
            window::write(tcp, newest);
        }
    }

    /// RFC 9293 3.6.1: a SYN may end a TIME-WAIT. smoltcp never lets it, every stack of a server does.
    fn gives_way(&mut self, id: SocketId, frame: &[u8]) -> bool {
        let Ok(Kind::Tcp(layout)) = frame::parse(frame) else {
            return false;
        };
        let is_syn = frame[usize::from(layout.l4) + 13] & 0x17 == 0x02;
        let gives_way = is_syn && self.sockets.look(id).state() == tcp::State::TimeWait && has_right_sum(frame);
        if gives_way {
            self.sockets.stir(id);
            *self.sockets.touch(id) =
                tcp::Socket::new(tcp::SocketBuffer::new(Vec::new()), tcp::SocketBuffer::new(Vec::new()));
        }
        gives_way
    }

    fn move_accepted(&mut self) {
        let is_called = |socket: &Socket<'_>| {
            let Socket::Tcp(socket) = socket;
            socket.state() != tcp::State::Listen
        };
        let called = self.listeners.iter().find(|(_, socket)| is_called(socket));
        if let Some((handle, _)) = called {
            let Socket::Tcp(socket) = self.listeners.remove(handle);
            let id = self.sockets.add(socket, self.is_late);
            self.accepted.push(id);
        }
    }

    /// The sockets that have got a SYN since the last call.
    pub fn take_accepted(&mut self) -> Vec<SocketId> {
        std::mem::take(&mut self.accepted)
    }

    /// The number of sockets that listen.
    pub fn listening(&self) -> usize {
        self.listeners.iter().count()
    }

    /// One more listening socket. With `late` it waits for [`Host::answer`] before it answers a SYN.
    ///
    /// # Panics
    /// If `port` is zero.
    pub fn listen(&mut self, port: u16, (receive_buffer, send_buffer): (usize, usize), late: bool) {
        let mut socket = self.new_socket(receive_buffer, send_buffer);
        self.is_late = late;
        socket.pause_synack(late);
        socket.listen(port).expect("a closed socket and a port");
        self.listeners.add(socket);
    }

    /// All connections and listening sockets are forgotten, as when it is switched off.
    pub fn forget_everything(&mut self) {
        self.sockets.clear();
        self.listeners = SocketSet::new(Vec::new());
        self.accepted.clear();
        self.arrived.clear();
    }

    /// Lets its TCP work; returns the frames that it sends.
    pub fn poll(&mut self, now: Instant) -> impl Iterator<Item = Vec<u8>> + '_ {
        if !self.is_off {
            set_clock(now);
            while let Some(mut frame) = self.arrived.pop_front() {
                let ends = sender_and_ports(&frame);
                if let Some((ends, numbers)) = ends.zip(numbers(&frame)) {
                    self.duties.received(now, ends, numbers);
                    self.show_newest_window(ends, numbers, &mut frame);
                    // Not without a connection: that answers a question by a RST, and a RST gets no RST (RFC 9293 3.10.7.1).
                    if numbers.is_rst
                        && self.sockets.find(ends).is_some()
                        && let Some(numbers) = self.duties.question_in_place_of_rst(ends, SeqNum(numbers.seq))
                    {
                        next::write_question(&mut frame, numbers);
                    }
                }
                let connection = ends.and_then(|ends| self.sockets.find(ends));
                let connection = connection.filter(|&id| !self.gives_way(id, &frame));
                let is_closing = connection.is_some_and(|id| self.make_no_duplicate(id, &mut frame));
                self.wire.received.push_back(frame);
                if let Some(id) = connection {
                    let set = self.sockets.stir(id);
                    self.interface.poll_ingress_single(time(now), &mut self.wire, set);
                    if is_closing {
                        self.interface.poll_egress(time(now), &mut self.wire, set);
                    }
                    end_listening_again(set);
                } else {
                    self.interface
                        .poll_ingress_single(time(now), &mut self.wire, &mut self.listeners);
                    self.move_accepted();
                }
                if ends.is_none() {
                    self.sockets.touch_all();
                }
            }
            self.interface.poll_maintenance(time(now));
            self.sockets.poll(now, &mut self.interface, &mut self.wire);
        }
        let (options, duties) = (self.options, &mut self.duties);
        let (nexts, windows) = (&mut self.nexts, &mut self.windows);
        self.wire.sent.drain(..).map(move |mut frame| {
            blank_options(&mut frame, options);
            if let Some((ends, numbers)) = receiver_and_ports(&frame).zip(numbers(&frame)) {
                if numbers.is_syn {
                    windows.begin(ends, SeqNum(numbers.seq));
                }
                let seq = nexts.number(ends, numbers, windows.is_closed(ends));
                if seq != numbers.seq {
                    next::write(&mut frame, seq);
                }
                duties.sent(now, ends, numbers);
            }
            frame
        })
    }

    /// True if one of its connections has bytes to repeat and has long ceased to: it cannot go on, and that is this host's
    /// fault.
    pub fn neglects(&self, now: Instant, ends: Ends) -> bool {
        self.duties.is_neglected(now, ends)
    }

    /// When it wants to be polled again.
    pub fn next_poll(&self, now: Instant) -> Option<Instant> {
        self.sockets.next_poll(now).filter(|_| !self.is_off)
    }

    /// A socket with these buffer sizes, not connected.
    pub fn add_socket(&mut self, receive_buffer: usize, send_buffer: usize) -> SocketId {
        let socket = self.new_socket(receive_buffer, send_buffer);
        self.sockets.add(socket, false)
    }

    /// True if a socket is closed and has said so. The RST of an abort waits for a neighbour that has to be asked for first.
    ///
    /// # Panics
    /// If it is not one of this host.
    pub fn is_over(&self, id: SocketId) -> bool {
        self.sockets.is_over(id)
    }

    /// Forgets a socket that is over.
    pub fn remove(&mut self, id: SocketId) {
        self.sockets.remove(id);
    }

    /// A socket that waits with its answer to a SYN does so no longer.
    ///
    /// # Panics
    /// If it is not one of this host.
    pub fn answer(&mut self, id: SocketId) {
        self.sockets.answer(id);
    }

    /// True if a socket got a segment, sent one or was added since the last call for it: its application has a look.
    pub fn take_stirred(&mut self, id: SocketId) -> bool {
        self.sockets.take_stirred(id)
    }

    fn new_socket(&self, receive_buffer: usize, send_buffer: usize) -> tcp::Socket<'static> {
        let buffer = |size| tcp::SocketBuffer::new(vec![0; size]);
        let mut socket = tcp::Socket::new(buffer(receive_buffer), buffer(send_buffer));
        if self.options.timestamps {
            socket.set_tsval_generator(Some(timestamp));
        }
        socket
    }

    /// A socket of this host, for its application to use.
    ///
    /// # Panics
    /// If it is not one of this host.
    pub fn socket(&mut self, id: SocketId) -> &mut tcp::Socket<'static> {
        self.sockets.touch(id)
    }

    /// Begins to connect a socket.
    ///
    /// # Panics
    /// If it is not closed, or an address is unusable.
    pub fn connect(&mut self, id: SocketId, to: std::net::SocketAddr, from: std::net::SocketAddr) {
        let socket = self.sockets.touch(id);
        let (to, from) = ((to.ip(), to.port()), (from.ip(), from.port()));
        let connected = socket.connect(self.interface.context(), to, from);
        connected.expect("a closed socket and proper addresses");
        self.sockets.note_ends(id);
    }
}

/// smoltcp counts microseconds; what is less is cut off, so that it never thinks it is later than it is.
pub(super) fn time(now: Instant) -> smoltcp::time::Instant {
    smoltcp::time::Instant::from_micros((now.as_nanos() / 1000).cast_signed())
}

/// A time of smoltcp's; what lies before all time is now.
pub(super) fn instant(at: smoltcp::time::Instant) -> Instant {
    Instant::from_nanos(at.total_micros().max(0).cast_unsigned() * 1000)
}

/// Blanks options in SYNs, as a firewall does.
fn blank_options(frame: &mut [u8], known: SynOptions) {
    if known == SynOptions::ALL {
        return;
    }
    let Ok(Kind::Tcp(layout)) = frame::parse(frame) else {
        return;
    };
    let (tcp, payload) = (usize::from(layout.l4), usize::from(layout.payload));
    let (is_syn, is_ack) = (frame[tcp + 13] & 0x02 != 0, frame[tcp + 13] & 0x10 != 0);
    if !is_syn || is_ack {
        return;
    }
    let delta = options::blank(&mut frame[tcp + 20..payload], |option| known.lacks(option));
    let old = u16::from_be_bytes([frame[tcp + 16], frame[tcp + 17]]);
    frame[tcp + 16..tcp + 18].copy_from_slice(&delta.apply(old).to_be_bytes());
}

/// Where a segment goes and whence it comes, as its receiver sees it.
fn sender_and_ports(frame: &[u8]) -> Option<Ends> {
    let (from, _, tcp) = segment(frame)?;
    Some((tcp.dst_port(), (from, tcp.src_port())))
}

/// The same as its sender sees it.
fn receiver_and_ports(frame: &[u8]) -> Option<Ends> {
    let (_, to, tcp) = segment(frame)?;
    Some((tcp.src_port(), (to, tcp.dst_port())))
}

/// A TCP segment with its addresses, from and to.
pub(super) fn segment(frame: &[u8]) -> Option<(IpAddr, IpAddr, TcpPacket<&[u8]>)> {
    let Kind::Tcp(layout) = frame::parse(frame).ok()? else {
        return None;
    };
    let ip = frame.get(usize::from(layout.l3)..)?;
    let (from, to): (IpAddr, IpAddr) = match layout.version {
        frame::IpVersion::V4 => {
            let ip = Ipv4Header(ip.first_chunk()?);
            (ip.src_addr().into(), ip.dst_addr().into())
        }
        frame::IpVersion::V6 => {
            let ip = Ipv6Header(ip.first_chunk()?);
            (ip.src_addr().into(), ip.dst_addr().into())
        }
    };
    let tcp = TcpPacket::new_checked(frame.get(usize::from(layout.l4)..usize::from(layout.end))?).ok()?;
    Some((from, to, tcp))
}

/// The sequence fields of an intact segment.
fn numbers(frame: &[u8]) -> Option<Numbers> {
    let (from, to, tcp) = segment(frame)?;
    tcp.is_checksum_valid(from, to).then(|| Numbers {
        seq: tcp.seq(),
        len: tcp.segment_len(),
        // What comes with a RST is no longer any use to its receiver.
        ack: (tcp.flags() & (TcpFlags::ACK | TcpFlags::RST) == TcpFlags::ACK).then(|| tcp.ack()),
        is_syn: tcp.flags().contains(TcpFlags::SYN),
        is_rst: tcp.flags().contains(TcpFlags::RST),
    })
}

fn has_right_sum(frame: &[u8]) -> bool {
    segment(frame).is_some_and(|(from, to, tcp)| tcp.is_checksum_valid(from, to))
}
