//! What went over a cable: tcpdump writes it, and each TCP segment is read back with its options.

use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use etherparse::{LaxNetSlice, LaxSlicedPacket, TcpOptionElement, TcpSlice, TransportSlice};
use pcap_file::TsResolution;
use pcap_file::pcap::PcapReader;
use rustix::process::Signal;

use crate::process::{self, Process};
use crate::{Place, Rig, RigError};

/// Headers only: Ethernet 14 + 4, IPv6 40, TCP 60, rounded up.
const SNAP_LENGTH: &str = "128";
const TOOL_LIMIT: Duration = Duration::from_secs(10);
/// A delayed acknowledgement of Linux comes within 40 to 200 ms.
const SILENCE: Duration = Duration::from_millis(300);

/// A port of the switch, where a capture sees every frame before it can be lost there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tap {
    /// The cable of the clients.
    Clients,
    /// The cable of the servers.
    Servers,
    /// The cable of the engine's first port.
    Engine,
}

/// tcpdump at work.
#[derive(Debug)]
pub struct Capture {
    tcpdump: Process,
    file: PathBuf,
}

impl Capture {
    /// Starts capturing TCP at `tap`; returns when the capture has begun.
    ///
    /// # Errors
    /// When tcpdump does not start.
    pub fn start(rig: &Rig, tap: Tap) -> Result<Self, RigError> {
        let port = match tap {
            Tap::Clients => "clients",
            Tap::Servers => "servers",
            Tap::Engine => "engine0",
        };
        let name = format!("capture-{port}");
        let file = rig.file(&format!("{name}.pcap"));
        let path = file.to_string_lossy().into_owned();
        let arguments = [
            "-i",
            port,
            "-s",
            SNAP_LENGTH,
            "-B",
            "65536",
            "-Z",
            "root",
            "-U",
            "--immediate-mode",
            "-n",
            "-w",
            &path,
            "tcp or (ip6 and tcp)",
        ];
        let mut tcpdump = rig.start(Place::Switch, &name, "tcpdump", &arguments)?;
        tcpdump.wait_for("the capture", TOOL_LIMIT, |process| {
            process.printed().contains("listening on")
        })?;
        Ok(Self { tcpdump, file })
    }

    /// Ends the capture, once the cable has been silent for a moment, and reads it.
    ///
    /// # Errors
    /// When tcpdump does not end, has missed frames, or has written what cannot be read.
    pub fn finish(mut self) -> Result<Vec<Segment>, RigError> {
        // What is still in its buffer when the signal arrives would not be written.
        let (mut length, mut since) = (0, Instant::now());
        process::wait_for("silence on the cable", TOOL_LIMIT, || {
            let now = self.file.metadata().map_or(0, |metadata| metadata.len());
            if now != length {
                (length, since) = (now, Instant::now());
            }
            since.elapsed() > SILENCE
        })?;
        self.tcpdump.signal(Signal::INT);
        self.tcpdump.wait(TOOL_LIMIT)?;
        if !self.tcpdump.printed().contains("\n0 packets dropped by kernel") {
            let reason = format!("frames are missing: {}", self.tcpdump.printed());
            return Err(RigError::Unreadable {
                path: self.file,
                reason,
            });
        }
        read_segments(&self.file)
    }
}

/// One TCP segment as it was on the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// When, since 1970.
    pub time: Duration,
    /// Its source.
    pub from: SocketAddr,
    /// Its destination.
    pub to: SocketAddr,
    /// Sequence number.
    pub sequence: u32,
    /// Acknowledgement number, meaningful when `ack`.
    pub acknowledgement: u32,
    /// The window field, not scaled.
    pub window: u16,
    /// Flag.
    pub syn: bool,
    /// Flag.
    pub ack: bool,
    /// Flag.
    pub fin: bool,
    /// Flag.
    pub rst: bool,
    /// Bytes of data, by the IP header's length.
    pub payload: u32,
    /// Option 2.
    pub mss: Option<u16>,
    /// Option 3.
    pub window_scale: Option<u8>,
    /// Option 4.
    pub sack_permitted: bool,
    /// How many blocks option 5 has.
    pub sack_blocks: usize,
    /// Option 8: value and echo reply.
    pub timestamps: Option<(u32, u32)>,
}

impl Segment {
    /// Is it a SYN that opens a connection?
    pub fn opens(&self) -> bool {
        self.syn && !self.ack
    }

    /// Is it the answer to such a SYN?
    pub fn answers_open(&self) -> bool {
        self.syn && self.ack
    }
}

/// Reads the TCP segments of a pcap file; other frames are passed over.
///
/// # Errors
/// When the file is not a capture, or a TCP header in it is cut off.
pub fn read_segments(path: &Path) -> Result<Vec<Segment>, RigError> {
    let unreadable = |reason: String| RigError::Unreadable {
        path: path.to_owned(),
        reason,
    };
    let file = File::open(path).map_err(RigError::io(format!("opening {}", path.display())))?;
    let mut reader = PcapReader::new(file).map_err(|error| unreadable(error.to_string()))?;
    let per_second = match reader.header().ts_resolution {
        TsResolution::MicroSecond => 1_000_000,
        TsResolution::NanoSecond => 1_000_000_000,
    };
    let mut segments = Vec::new();
    // Raw: the library takes a frame that was longer than the capture's snap length for an error.
    while let Some(packet) = reader.next_raw_packet() {
        let packet = packet.map_err(|error| unreadable(error.to_string()))?;
        let fraction = Duration::from_secs(packet.ts_frac.into()) / per_second;
        let time = Duration::from_secs(packet.ts_sec.into()) + fraction;
        segments.extend(segment_of(time, &packet.data).map_err(unreadable)?);
    }
    Ok(segments)
}

fn segment_of(time: Duration, frame: &[u8]) -> Result<Option<Segment>, String> {
    let sliced = LaxSlicedPacket::from_ethernet(frame).map_err(|error| error.to_string())?;
    let Some(TransportSlice::Tcp(tcp)) = sliced.transport else {
        return Ok(None);
    };
    let (source, destination, length): (std::net::IpAddr, std::net::IpAddr, usize) = match sliced.net {
        Some(LaxNetSlice::Ipv4(ip)) => {
            let header = ip.header();
            let length = usize::from(header.total_len()).saturating_sub(header.slice().len());
            (header.source_addr().into(), header.destination_addr().into(), length)
        }
        Some(LaxNetSlice::Ipv6(ip)) => {
            let header = ip.header();
            (
                header.source_addr().into(),
                header.destination_addr().into(),
                header.payload_length().into(),
            )
        }
        _ => return Ok(None),
    };
    let mut segment = Segment {
        time,
        from: SocketAddr::new(source, tcp.source_port()),
        to: SocketAddr::new(destination, tcp.destination_port()),
        sequence: tcp.sequence_number(),
        acknowledgement: tcp.acknowledgment_number(),
        window: tcp.window_size(),
        syn: tcp.syn(),
        ack: tcp.ack(),
        fin: tcp.fin(),
        rst: tcp.rst(),
        payload: length.saturating_sub(usize::from(tcp.data_offset()) * 4) as u32,
        mss: None,
        window_scale: None,
        sack_permitted: false,
        sack_blocks: 0,
        timestamps: None,
    };
    read_options(&mut segment, &tcp)?;
    Ok(Some(segment))
}

fn read_options(segment: &mut Segment, tcp: &TcpSlice<'_>) -> Result<(), String> {
    for option in tcp.options_iterator() {
        match option.map_err(|error| format!("a segment from {} to {}: {error}", segment.from, segment.to))? {
            TcpOptionElement::Noop => {}
            TcpOptionElement::MaximumSegmentSize(mss) => segment.mss = Some(mss),
            TcpOptionElement::WindowScale(scale) => segment.window_scale = Some(scale),
            TcpOptionElement::SelectiveAcknowledgementPermitted => segment.sack_permitted = true,
            TcpOptionElement::SelectiveAcknowledgement(_, more) => {
                segment.sack_blocks = 1 + more.iter().flatten().count();
            }
            TcpOptionElement::Timestamp(value, echo) => segment.timestamps = Some((value, echo)),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use etherparse::PacketBuilder;

    use super::*;

    /// A SYN as Linux sends it, over IPv4.
    fn syn(payload: &[u8]) -> Vec<u8> {
        let builder = PacketBuilder::ethernet2([2; 6], [4; 6])
            .ipv4([10, 77, 0, 101], [10, 77, 0, 1], 64)
            .tcp(4321, 80, 77, 64240)
            .syn()
            .options(&[
                TcpOptionElement::MaximumSegmentSize(1460),
                TcpOptionElement::SelectiveAcknowledgementPermitted,
                TcpOptionElement::Timestamp(5, 0),
                TcpOptionElement::Noop,
                TcpOptionElement::WindowScale(7),
            ])
            .expect("the options fit");
        let mut frame = Vec::new();
        builder.write(&mut frame, payload).expect("a vector takes it");
        frame
    }

    #[test]
    fn options_of_a_syn_are_read() {
        let segment = segment_of(Duration::ZERO, &syn(b"")).expect("readable").expect("TCP");
        assert!(segment.opens());
        assert_eq!((segment.mss, segment.window_scale), (Some(1460), Some(7)));
        assert!(segment.sack_permitted);
        assert_eq!(segment.timestamps, Some((5, 0)));
        assert_eq!((segment.from.port(), segment.to.port(), segment.payload), (4321, 80, 0));
    }

    #[test]
    fn payload_is_counted_though_the_capture_cuts_it_off() {
        let frame = syn(&[0; 1000]);
        let segment = segment_of(Duration::ZERO, &frame[..128])
            .expect("readable")
            .expect("TCP");
        assert_eq!(segment.payload, 1000);
    }

    #[test]
    fn other_frames_are_passed_over() {
        let mut frame = Vec::new();
        let builder = PacketBuilder::ethernet2([2; 6], [4; 6])
            .ipv4([1; 4], [2; 4], 64)
            .udp(1, 2);
        builder.write(&mut frame, b"x").expect("a vector takes it");
        assert_eq!(segment_of(Duration::ZERO, &frame), Ok(None));
    }
}
