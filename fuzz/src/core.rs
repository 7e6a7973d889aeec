//! The core by a sequence of events: two clients and their servers do as the bytes say, in virtual time.

use super::harness::{Bench, CONFIG, PROXY_MAC};
use e2d2::buffer::{BufferPool, HeapPool, PacketBuffer};
use e2d2::port::PortId;
use e2d2::wire::frame;
use e2d2::wire::icmpv4::Icmpv4Repr;
use e2d2::wire::tcp::{TcpFlags, TcpOptions, TcpPacket};
use e2d2::wire::{Envelope, MacAddr};
use splice::settings::Settings;
use std::time::Duration;
use testkit::{Segment, Station};

/// Events of one input; what follows is not looked at. Setting a core up costs as much as some hundred of them.
const MOST_EVENTS: usize = 4_000;

/// Ports towards each server. A core sets all of them aside at its start.
const LOCAL_PORTS: &str = "40000-40063";

/// Frames that one event may cause: what was held for a connection, its retransmissions and resets of all.
const MOST_ANSWERS: usize = 256;

/// Reads the input; zeros after its end.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn next(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }

    /// Mostly near zero, sometimes anywhere.
    fn offset(&mut self) -> u32 {
        let byte = self.next();
        match byte {
            0..=127 => 0,
            128..=199 => u32::from(byte).wrapping_sub(164),
            200..=229 => u32::from(byte).wrapping_sub(215).wrapping_mul(1_000),
            _ => u32::from_be_bytes([byte, self.next(), self.next(), self.next()]),
        }
    }
}

/// The byte at a sequence number of a peer: who gets it somewhere else notices.
fn byte_at(peer: u8, seq: u32) -> u8 {
    let mixed = (seq ^ u32::from(peer).wrapping_mul(0x9e37_79b9)).wrapping_mul(0x85eb_ca6b);
    (mixed ^ (mixed >> 15)) as u8
}

/// An end point that knows its numbers and may lie about them.
struct Peer {
    number: u8,
    me: Station,
    proxy: Station,
    /// Initial sequence numbers that it has used.
    begins: Vec<u32>,
    /// The next byte, as far as the other end has acknowledged, and what it has of the other end.
    seq: u32,
    ack: u32,
    echo: u32,
    /// Of a server: the client that it hears, and where that begins, once it has heard something.
    hears: Option<(usize, u32)>,
}

impl Peer {
    fn segment(&self, bytes: &mut Bytes<'_>, flags: TcpFlags) -> Segment {
        let seq = self.seq.wrapping_add(bytes.offset());
        // Half of all segments are bare, and few are long: a byte costs as much as a packet's way through the core has steps.
        let length = match usize::from(bytes.next()) {
            0..128 => 0,
            short @ 128..240 => short - 127,
            long => (long - 239) * 90,
        };
        let payload = (0..length as u32)
            .map(|at| byte_at(self.number, seq.wrapping_add(at)))
            .collect();
        let mut options = TcpOptions {
            timestamps: Some((1_000 + u32::from(bytes.next()), self.echo)),
            ..TcpOptions::NONE
        };
        if flags.contains(TcpFlags::SYN) {
            let kinds = bytes.next();
            options = TcpOptions {
                mss: (kinds & 1 == 0).then_some(1_460),
                window_scale: (kinds & 2 == 0).then_some(kinds >> 4),
                sack_permitted: kinds & 4 == 0,
                timestamps: options.timestamps.filter(|_| kinds & 8 == 0),
            };
        }
        Segment {
            seq,
            ack: if flags.contains(TcpFlags::ACK) {
                self.ack.wrapping_add(bytes.offset())
            } else {
                0
            },
            flags,
            window: u16::from(bytes.next()) << 4,
            options,
            payload,
            ..Segment::between(self.me, self.proxy)
        }
    }

    fn hear(&mut self, segment: &Segment) {
        self.ack = segment.seq.wrapping_add(segment.len());
        if segment.flags.contains(TcpFlags::ACK) {
            self.seq = segment.ack;
        }
        if let Some((value, _)) = segment.options.timestamps {
            self.echo = value;
        }
    }
}

struct World {
    bench: Bench,
    clients: Vec<Peer>,
    servers: Vec<Peer>,
    last: Option<Segment>,
    /// Spoilt segments: the client's port, the number of the first byte, and the bytes that came with it.
    spoilt: Vec<(u16, u32, Vec<u8>)>,
}

/// A core for two clients: what it sets aside at its start is most of the work of a short input.
fn make_small(settings: &mut Settings) {
    let capacity = &mut settings.capacity;
    (capacity.reassembly_memory, capacity.rtx_queues) = (80 << 10, 10);
    (capacity.time_wait, capacity.inspected, capacity.kept_blocks) = (16, 0, 0);
}

/// Plays the events that the bytes name. Whatever they are, every byte that a server gets is one that a client sent at that
/// place, answers are bounded, and at the end nothing is held: once with a listener that binds by payload, once with the SYN.
/// Returns the number of events.
pub fn events(bytes: &[u8]) -> usize {
    let text = CONFIG.replace("servers = [", &format!("local_ports = \"{LOCAL_PORTS}\"\nservers = ["));
    let rules = "rules = [{ first_number = true, pool = \"all\" }]\ndefault = \"reject\"";
    let bound = text.replacen(rules, "bind = \"syn\"\ndefault = \"all\"", 1);
    assert!(text != CONFIG && bound != text);
    play(bytes, &text) + play(bytes, &bound)
}

fn play(bytes: &[u8], text: &str) -> usize {
    let mut bytes = Bytes(bytes);
    let clients = [(40_000, u32::MAX - 700), (40_001, 5)].map(|(port, isn)| Peer {
        number: (port - 40_000) as u8,
        me: Station::new(1, "10.0.0.1:1").with_port(port),
        proxy: Station::new(PROXY_MAC[0], "10.0.0.9:80"),
        begins: vec![isn],
        seq: isn,
        ack: 0,
        echo: 0,
        hears: None,
    });
    let mut world = World {
        bench: Bench::make_with(text, true, make_small, |selector| selector),
        clients: clients.into(),
        servers: Vec::new(),
        last: None,
        spoilt: Vec::new(),
    };
    // Servers that name no MSS take 536 bytes, and the clients hear of it.
    world.bench.ignores_icmp = true;
    let mut events = 0;
    while events < MOST_EVENTS && !bytes.0.is_empty() {
        world.event(&mut bytes);
        events += 1;
    }
    world.bench.finish();
    world.bench.skip(Duration::from_secs(10));
    world.bench.assert_all_returned();
    events
}

impl World {
    fn event(&mut self, bytes: &mut Bytes<'_>) {
        let event = bytes.next();
        let which = usize::from(event >> 4);
        let sent = match event & 15 {
            0 | 1 => self.open(which, event & 1 == 1),
            2..=5 => {
                let flags = flags(bytes);
                let count = self.clients.len();
                let client = &mut self.clients[which % count];
                let segment = client.segment(bytes, flags);
                // Where a SYN begins, a connection may.
                if flags.contains(TcpFlags::SYN) {
                    client.begins.push(segment.seq);
                }
                self.bench.receive(&segment)
            }
            6..=9 if !self.servers.is_empty() => {
                let flags = flags(bytes);
                let server = &self.servers[which % self.servers.len()];
                let segment = server.segment(bytes, flags);
                self.bench.receive(&segment)
            }
            10 if !self.servers.is_empty() => {
                let server = &self.servers[which % self.servers.len()];
                let segment = server.segment(bytes, TcpFlags::SYN | TcpFlags::ACK);
                self.bench.receive(&Segment {
                    seq: server.begins[0],
                    payload: Vec::new(),
                    ..segment
                })
            }
            11 => self.spoilt(which, bytes),
            12 => {
                self.complain(which, bytes);
                Vec::new()
            }
            _ => {
                let time = Duration::from_millis(u64::from(bytes.next()).pow(2));
                self.bench.skip(time)
            }
        };
        assert!(sent.len() <= MOST_ANSWERS, "{} answers to one event", sent.len());
        for segment in sent {
            self.hear(segment);
        }
        let usage = self.bench.proxy.usage();
        assert!(usage.connections <= 4, "two clients have two connections: {usage:?}");
    }

    fn open(&mut self, which: usize, anew: bool) -> Vec<Segment> {
        let count = self.clients.len();
        let client = &mut self.clients[which % count];
        if anew && client.begins.len() < 50 {
            let newest = client.begins[client.begins.len() - 1];
            client.begins.push(newest.wrapping_add(1_000_000));
        }
        client.seq = client.begins[client.begins.len() - 1];
        let syn = Segment {
            seq: client.seq,
            flags: TcpFlags::SYN,
            window: 64_000,
            options: TcpOptions {
                mss: Some(1_460),
                window_scale: Some(7),
                sack_permitted: true,
                timestamps: Some((1_000, 0)),
            },
            ..Segment::between(client.me, client.proxy)
        };
        self.bench.receive(&syn)
    }

    /// A segment with one byte of its TCP header or payload wrong, and the checksum of that.
    fn spoilt(&mut self, which: usize, bytes: &mut Bytes<'_>) -> Vec<Segment> {
        let segment = self.clients[which % self.clients.len()].segment(bytes, TcpFlags::ACK | TcpFlags::PSH);
        let mut buffer = segment.emit(&mut self.bench.pool);
        let at = 34 + usize::from(bytes.next()) % (buffer.len() - 34);
        buffer.data_mut()[at] ^= bytes.next();
        let Ok(frame::Kind::Tcp(layout)) = frame::parse(buffer.data()) else {
            return Vec::new();
        };
        let (tcp, end) = (usize::from(layout.l4), usize::from(layout.end));
        let Ok(mut packet) = TcpPacket::new_checked(&mut buffer.data_mut()[tcp..end]) else {
            return Vec::new();
        };
        packet.fill_checksum(segment.from.address.ip(), segment.to.address.ip());
        // The byte that changed may be in the payload, or in what says whose bytes these are and where they belong.
        let (port, seq) = (packet.src_port(), packet.seq());
        let is_syn = packet.flags().contains(TcpFlags::SYN);
        let first = seq.wrapping_add(u32::from(is_syn));
        if !packet.payload().is_empty() {
            self.spoilt.push((port, first, packet.payload().to_vec()));
        }
        if is_syn && let Some(client) = self.clients.iter_mut().find(|client| client.me.address.port() == port) {
            client.begins.push(seq);
        }
        self.bench.receive_frame(PortId(0), buffer)
    }

    /// An ICMP error about the last segment that the core sent.
    fn complain(&mut self, which: usize, bytes: &mut Bytes<'_>) {
        let Some(last) = &self.last else { return };
        let original = last.frame();
        let side = u8::from(last.from.mac.0[5] == PROXY_MAC[1]);
        let (std::net::IpAddr::V4(from), std::net::IpAddr::V4(to)) = (last.to.address.ip(), last.from.address.ip())
        else {
            return;
        };
        let envelope = Envelope {
            src_mac: last.to.mac,
            dst_mac: MacAddr([2, 0, 0, 0, 0, PROXY_MAC[usize::from(side)]]),
            src_addr: from.into(),
            dst_addr: to.into(),
            hop_limit: 64,
        };
        let unreachable = Icmpv4Repr::Unreachable {
            code: which as u8,
            next_hop_mtu: u16::from(bytes.next()) << 3,
            original: &original[14..],
        };
        let mut buffer = HeapPool::new(1, 2048).take().expect("a buffer");
        unreachable.emit(&envelope, &mut buffer).expect("room for an error");
        let sent = self.bench.receive_icmp(PortId(side), buffer.data());
        assert!(sent.len() <= 1, "{} answers to an ICMP error", sent.len());
    }

    fn hear(&mut self, segment: Segment) {
        if let Some(client) = self
            .clients
            .iter_mut()
            .find(|client| client.me.address == segment.to.address)
        {
            client.hear(&segment);
        } else {
            self.hear_as_server(&segment);
        }
        self.last = Some(segment);
    }

    fn hear_as_server(&mut self, segment: &Segment) {
        let ends =
            |server: &Peer| (server.me.address, server.proxy.address) == (segment.to.address, segment.from.address);
        if segment.flags == TcpFlags::SYN {
            self.servers.retain(|server| !ends(server));
            if self.servers.len() == 16 {
                self.servers.remove(0);
            }
            // What a server says begins with its own number; `begins[1]` is the other end's.
            let isn = 0x7fff_ff00;
            self.servers.push(Peer {
                number: 0xff,
                me: segment.to,
                proxy: segment.from,
                begins: vec![isn, segment.seq],
                seq: isn,
                ack: segment.seq.wrapping_add(1),
                echo: 0,
                hears: None,
            });
        }
        let Some(place) = self.servers.iter().position(ends) else {
            return;
        };
        self.servers[place].hear(segment);
        if segment.payload.is_empty() {
            return;
        }
        let from_start = segment.seq.wrapping_sub(self.servers[place].begins[1]);
        // Nearly always the one that was heard before.
        let heard = self.servers[place].hears;
        if heard.is_some_and(|heard| self.is_of(heard, from_start, &segment.payload, false)) {
            return;
        }
        let all = || {
            let clients = self.clients.iter().enumerate();
            clients.flat_map(|(client, peer)| peer.begins.iter().map(move |&begin| (client, begin)))
        };
        let found = [false, true].into_iter().find_map(|may_be_spoilt| {
            all().find(|&begin| self.is_of(begin, from_start, &segment.payload, may_be_spoilt))
        });
        assert!(found.is_some(), "bytes that no client sent there: {segment:?}");
        self.servers[place].hears = found;
    }

    /// True if these bytes are those of a client that begins at some number, so many behind it.
    fn is_of(&self, (client, begin): (usize, u32), from_start: u32, bytes: &[u8], may_be_spoilt: bool) -> bool {
        let client = &self.clients[client];
        let port = client.me.address.port();
        let spoilt = |seq: u32, byte: u8| {
            self.spoilt.iter().any(|(of, first, bytes)| {
                *of == port
                    && bytes
                        .get(seq.wrapping_sub(*first) as usize)
                        .is_some_and(|&came| came == byte)
            })
        };
        let first = begin.wrapping_add(from_start);
        (0_u32..).zip(bytes).all(|(at, &byte)| {
            let seq = first.wrapping_add(at);
            byte == byte_at(client.number, seq) || may_be_spoilt && spoilt(seq, byte)
        })
    }
}

/// Mostly those of a sound segment, sometimes any.
fn flags(bytes: &mut Bytes<'_>) -> TcpFlags {
    let byte = bytes.next();
    match byte & 7 {
        0..=2 => TcpFlags::ACK,
        3 | 4 => TcpFlags::ACK | TcpFlags::PSH,
        5 => TcpFlags::ACK | TcpFlags::FIN,
        6 => TcpFlags::RST,
        _ => TcpFlags::from_bits_truncate(bytes.next()),
    }
}
