//! The ends of a connection, which say what the test lets them say.

use super::{PROXY_MAC, Receive, nothing, only};
use e2d2::wire::tcp::{TcpFlags, TcpOptions};
use testkit::{Segment, Station};

/// A client with the options of Linux.
pub struct Client {
    pub me: Station,
    pub proxy: Station,
    pub seq: u32,
    pub ack: u32,
    pub tsval: u32,
    pub tsecr: u32,
}

pub const CLIENT_ISN: u32 = u32::MAX - 2;

impl Client {
    pub fn new(port: u16) -> Self {
        Client {
            me: Station::new(1, "10.0.0.1:1").with_port(port),
            proxy: Station::new(PROXY_MAC[0], "10.0.0.9:80"),
            seq: CLIENT_ISN,
            ack: 0,
            tsval: 500,
            tsecr: 0,
        }
    }

    pub fn new_v6(port: u16) -> Self {
        Client {
            me: Station::new(1, "[fd00::1]:1").with_port(port),
            proxy: Station::new(PROXY_MAC[0], "[fd00::9]:80"),
            ..Client::new(port)
        }
    }

    pub fn syn(&self) -> Segment {
        Segment {
            seq: self.seq,
            flags: TcpFlags::SYN,
            options: TcpOptions {
                mss: Some(1460),
                window_scale: Some(7),
                sack_permitted: true,
                timestamps: Some((self.tsval, 0)),
            },
            ..Segment::between(self.me, self.proxy)
        }
    }

    pub fn segment(&self, flags: TcpFlags, payload: &[u8]) -> Segment {
        Segment {
            seq: self.seq,
            ack: self.ack,
            flags: flags | TcpFlags::ACK,
            window: 502,
            options: TcpOptions {
                timestamps: Some((self.tsval, self.tsecr)),
                ..TcpOptions::NONE
            },
            payload: payload.to_vec(),
            ..Segment::between(self.me, self.proxy)
        }
    }

    /// Shakes hands.
    pub fn connect(&mut self, bench: &mut impl Receive) {
        let syn_ack = only(bench.receive(&self.syn()));
        self.take_syn_ack(&syn_ack);
        nothing(bench.receive(&self.segment(TcpFlags::ACK, b"")));
    }

    pub fn take_syn_ack(&mut self, syn_ack: &Segment) {
        assert_eq!(syn_ack.flags, TcpFlags::SYN | TcpFlags::ACK);
        assert_eq!(syn_ack.ack, self.seq.wrapping_add(1));
        assert_eq!(syn_ack.to, self.me);
        self.seq = syn_ack.ack;
        self.ack = syn_ack.seq.wrapping_add(1);
        self.tsecr = syn_ack.options.timestamps.expect("timestamps were offered").0;
        self.tsval += 1;
    }

    /// Sends payload; what the proxy sends then is for the caller.
    pub fn send(&mut self, bench: &mut impl Receive, payload: &[u8]) -> Vec<Segment> {
        let segment = self.segment(TcpFlags::PSH, payload);
        self.seq = self.seq.wrapping_add(payload.len() as u32);
        bench.receive(&segment)
    }
}

/// A server, made by the SYN that it gets.
pub struct Server {
    pub me: Station,
    pub proxy: Station,
    pub seq: u32,
    pub ack: u32,
    pub tsval: u32,
    pub tsecr: u32,
    pub isn: u32,
    pub options: TcpOptions,
}

/// The same segments with a PROXY header that the first one begins with as a segment of its own.
fn header_apart(mut segments: Vec<Segment>) -> Vec<Segment> {
    if let Some(first) = segments.first_mut()
        && let Ok(proxy_protocol::Parsed::Complete { length, .. }) = proxy_protocol::parse(&first.payload)
        && length < first.payload.len()
    {
        let behind = first.payload.split_off(length);
        let header = Segment {
            flags: TcpFlags::ACK | TcpFlags::PSH,
            ..first.clone()
        };
        (first.seq, first.payload) = (first.seq.wrapping_add(length as u32), behind);
        segments.insert(0, header);
    }
    segments
}

pub const SERVER_ISN: u32 = 0x7fff_fff0;

impl Server {
    pub fn from_syn(syn: &Segment) -> Self {
        assert_eq!(syn.flags, TcpFlags::SYN, "{syn:?}");
        Server {
            me: syn.to,
            proxy: Station {
                mac: syn.from.mac,
                address: syn.from.address,
            },
            seq: SERVER_ISN,
            ack: syn.seq.wrapping_add(1),
            tsval: 90_000,
            tsecr: syn.options.timestamps.map_or(0, |(value, _)| value),
            isn: SERVER_ISN,
            options: TcpOptions {
                mss: Some(1460),
                window_scale: Some(7),
                sack_permitted: true,
                timestamps: Some((90_000, syn.options.timestamps.map_or(0, |(value, _)| value))),
            },
        }
    }

    pub fn syn_ack(&self) -> Segment {
        Segment {
            seq: self.isn,
            ack: self.ack,
            flags: TcpFlags::SYN | TcpFlags::ACK,
            window: 65160,
            options: self.options,
            ..Segment::between(self.me, self.proxy)
        }
    }

    /// Answers a SYN that was passed on: returns the SYN-ACK as the client gets it, which has taken it.
    pub fn shake(&mut self, bench: &mut impl Receive, client: &mut Client) -> Segment {
        let syn_ack = only(bench.receive(&self.syn_ack()));
        self.seq = self.isn.wrapping_add(1);
        client.take_syn_ack(&syn_ack);
        syn_ack
    }

    /// Answers the SYN: returns the proxy's ACK and what follows it, a PROXY header apart from the bytes that came in its
    /// segment.
    pub fn accept(&mut self, bench: &mut impl Receive) -> (Segment, Vec<Segment>) {
        let mut answers = bench.receive(&self.syn_ack());
        self.seq = self.isn.wrapping_add(1);
        let ack = answers.remove(0);
        assert_eq!((ack.flags, ack.payload.len()), (TcpFlags::ACK, 0));
        assert_eq!((ack.seq, ack.ack), (self.ack, self.seq));
        (ack, header_apart(answers))
    }

    pub fn segment(&self, flags: TcpFlags, payload: &[u8]) -> Segment {
        let timestamps = self.options.timestamps.map(|_| (self.tsval, self.tsecr));
        Segment {
            seq: self.seq,
            ack: self.ack,
            flags: flags | TcpFlags::ACK,
            window: 509,
            options: TcpOptions {
                timestamps,
                ..TcpOptions::NONE
            },
            payload: payload.to_vec(),
            ..Segment::between(self.me, self.proxy)
        }
    }

    pub fn send(&mut self, bench: &mut impl Receive, payload: &[u8]) -> Vec<Segment> {
        let segment = self.segment(TcpFlags::PSH, payload);
        self.seq = self.seq.wrapping_add(payload.len() as u32);
        bench.receive(&segment)
    }
}

/// A client that has connected and sent "0 hello", and its server, which has acknowledged it.
pub fn spliced(bench: &mut impl Receive, port: u16) -> (Client, Server) {
    let mut client = Client::new(port);
    client.connect(bench);
    let syn = only(client.send(bench, b"0 hello"));
    let mut server = Server::from_syn(&syn);
    server.accept(bench);
    server.ack = server.ack.wrapping_add(7);
    only(bench.receive(&server.segment(TcpFlags::ACK, b"")));
    (client, server)
}

/// The client closes, then the server: both FINs and their ACKs pass.
pub fn close(bench: &mut impl Receive, client: &mut Client, server: &mut Server) {
    only(bench.receive(&client.segment(TcpFlags::FIN, b"")));
    client.seq = client.seq.wrapping_add(1);
    server.ack = server.ack.wrapping_add(1);
    only(bench.receive(&server.segment(TcpFlags::FIN, b"")));
    server.seq = server.seq.wrapping_add(1);
    client.ack = client.ack.wrapping_add(1);
    only(bench.receive(&client.segment(TcpFlags::ACK, b"")));
}
