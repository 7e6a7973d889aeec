//! A TCP segment as a value: written into a frame to be received, read back from a frame that was sent.
//!
//! A test shows only the fields that matter, the rest comes from a template:
//!
//! ```
//! use testkit::{Segment, Station};
//! use e2d2::wire::tcp::TcpFlags;
//!
//! let client = Station::new(1, "10.0.0.1:40000");
//! let proxy = Station::new(9, "10.0.0.9:80");
//! let syn = Segment { seq: 1000, flags: TcpFlags::SYN, ..Segment::between(client, proxy) };
//! assert_eq!(Segment::read(&syn.frame()), syn);
//! ```

use e2d2::buffer::{BufferPool, HeapBuffer, HeapPool, PacketBuffer};
use e2d2::wire::frame::{self, Kind};
use e2d2::wire::tcp::{TcpFlags, TcpHeader, TcpOptions, TcpRepr, options};
use e2d2::wire::{Envelope, MacAddr, checksum};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// An end point with its MAC address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Station {
    /// The MAC address: `02:00:00:00:00:n`.
    pub mac: MacAddr,
    /// Address and port.
    pub address: SocketAddr,
}

impl Station {
    /// The end point `address` behind the MAC address that ends in `mac`.
    pub fn new(mac: u8, address: &str) -> Self {
        Station {
            mac: MacAddr([2, 0, 0, 0, 0, mac]),
            address: address.parse().expect("an address and a port"),
        }
    }

    /// The same station on another port.
    #[must_use]
    pub fn with_port(mut self, port: u16) -> Self {
        self.address.set_port(port);
        self
    }
}

/// A TCP segment with everything that a proxy may look at or change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The sender.
    pub from: Station,
    /// The receiver.
    pub to: Station,
    /// SEG.SEQ.
    pub seq: u32,
    /// SEG.ACK; 0 without ACK.
    pub ack: u32,
    /// The flags.
    pub flags: TcpFlags,
    /// The window field.
    pub window: u16,
    /// SEG.UP; 0 without URG.
    pub urgent: u16,
    /// The options that matter.
    pub options: TcpOptions,
    /// The SACK blocks.
    pub sack: Vec<(u32, u32)>,
    /// The payload.
    pub payload: Vec<u8>,
    /// TTL or hop limit.
    pub hop_limit: u8,
}

impl Segment {
    /// An ACK without payload from one station to another.
    pub fn between(from: Station, to: Station) -> Self {
        Segment {
            from,
            to,
            seq: 0,
            ack: 0,
            flags: TcpFlags::ACK,
            window: 64240,
            urgent: 0,
            options: TcpOptions::NONE,
            sack: Vec::new(),
            payload: Vec::new(),
            hop_limit: 64,
        }
    }

    /// SEG.LEN.
    pub fn len(&self) -> u32 {
        self.payload.len() as u32
            + u32::from(self.flags.contains(TcpFlags::SYN))
            + u32::from(self.flags.contains(TcpFlags::FIN))
    }

    /// True if it takes no room in the sequence space.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The frame, checksums and all.
    pub fn frame(&self) -> Vec<u8> {
        let mut pool = HeapPool::new(1, 128 + 14 + 40 + 60 + self.payload.len());
        self.emit(&mut pool).data().to_vec()
    }

    /// The frame in a buffer of `pool`.
    pub fn emit(&self, pool: &mut HeapPool) -> HeapBuffer {
        let mut buffer = pool.take().expect("a buffer for the test's own frame");
        let repr = TcpRepr {
            envelope: Envelope {
                src_mac: self.from.mac,
                dst_mac: self.to.mac,
                src_addr: self.from.address.ip(),
                dst_addr: self.to.address.ip(),
                hop_limit: self.hop_limit,
            },
            src_port: self.from.address.port(),
            dst_port: self.to.address.port(),
            seq: self.seq,
            ack: self.ack,
            flags: self.flags,
            window: self.window,
            options: self.options,
            sack_blocks: &self.sack,
            payload: &self.payload,
        };
        repr.emit(&mut buffer).expect("room for the test's own frame");
        if self.urgent != 0 {
            let tcp = if self.from.address.is_ipv4() { 14 + 20 } else { 14 + 40 };
            let frame = buffer.data_mut();
            frame[tcp + 18..tcp + 20].copy_from_slice(&self.urgent.to_be_bytes());
            // It was zero.
            let (sum, carry) = u16::from_be_bytes([!frame[tcp + 16], !frame[tcp + 17]]).overflowing_add(self.urgent);
            let sum = !(sum + u16::from(carry));
            frame[tcp + 16..tcp + 18].copy_from_slice(&sum.to_be_bytes());
        }
        buffer
    }

    /// Reads a frame that somebody sent.
    ///
    /// # Panics
    /// If it is not a TCP packet with right checksums: nobody may send such a thing.
    pub fn read(frame: &[u8]) -> Segment {
        let kind = frame::parse(frame).unwrap_or_else(|error| panic!("a sent frame must parse: {error}: {frame:02x?}"));
        let Kind::Tcp(layout) = kind else {
            panic!("not a TCP packet: {kind:?}")
        };
        let (l3, l4) = (usize::from(layout.l3), usize::from(layout.l4));
        let (source, destination, hop_limit) = match layout.version {
            frame::IpVersion::V4 => {
                let ip = |at: usize| IpAddr::V4(Ipv4Addr::from(<[u8; 4]>::try_from(&frame[at..at + 4]).expect("4")));
                (ip(l3 + 12), ip(l3 + 16), frame[l3 + 8])
            }
            frame::IpVersion::V6 => {
                let ip = |at: usize| IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(&frame[at..at + 16]).expect("16")));
                (ip(l3 + 8), ip(l3 + 24), frame[l3 + 7])
            }
        };
        let segment = &frame[l4..usize::from(layout.end)];
        let pseudo = checksum::pseudo_header(source, destination, 6, segment.len() as u16).expect("one family");
        assert!(
            checksum::is_valid(pseudo + checksum::sum(segment)),
            "wrong TCP checksum: {frame:02x?}"
        );
        let header = TcpHeader(<&[u8; 20]>::try_from(&segment[..20]).expect("20 bytes"));
        let raw_options = &frame[l4 + 20..usize::from(layout.payload)];
        let flags = header.flags();
        Segment {
            from: Station {
                mac: MacAddr(frame[6..12].try_into().expect("6 bytes")),
                address: SocketAddr::new(source, header.src_port()),
            },
            to: Station {
                mac: MacAddr(frame[..6].try_into().expect("6 bytes")),
                address: SocketAddr::new(destination, header.dst_port()),
            },
            seq: header.seq(),
            ack: if flags.contains(TcpFlags::ACK) { header.ack() } else { 0 },
            flags,
            window: header.window(),
            urgent: if flags.contains(TcpFlags::URG) {
                header.urgent()
            } else {
                0
            },
            options: TcpOptions::parse(raw_options),
            sack: options::sack_blocks(raw_options).to_vec(),
            payload: frame[usize::from(layout.payload)..usize::from(layout.end)].to_vec(),
            hop_limit,
        }
    }
}
