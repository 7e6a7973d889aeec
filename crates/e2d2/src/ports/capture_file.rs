//! Files of captured frames: reads pcap and pcapng, writes pcapng.
//!
//! Only the framing of the files is the library's; the packet blocks of pcapng are taken apart here, because the library
//! works out their time stamps, which nobody needs, in a way that panics on resolutions that a file may well claim.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufWriter, Cursor, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use pcap_file::pcap::PcapReader;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{InterfaceDescriptionBlock, InterfaceDescriptionOption};
use pcap_file::pcapng::{PcapNgReader, PcapNgWriter};
use pcap_file::{DataLink, Endianness, PcapError};

/// Why a capture file cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// It cannot be opened or created.
    #[error("{}: {error}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// It is not, or no longer, a capture file.
    #[error("malformed capture file: {0}")]
    Malformed(#[source] PcapError),
    /// It ends within a packet, or a length in it is absurd.
    #[error("the capture file ends within a packet")]
    Truncated,
    /// Reading or writing failed.
    #[error("capture file: {0}")]
    Io(#[source] io::Error),
    /// It holds no Ethernet frames.
    #[error("the capture file holds frames of link type {0:?}; expected Ethernet")]
    NotEthernet(DataLink),
}

impl From<PcapError> for CaptureError {
    fn from(error: PcapError) -> Self {
        match error {
            PcapError::IncompleteBuffer => Self::Truncated,
            PcapError::IoError(error) if error.kind() == io::ErrorKind::UnexpectedEof => Self::Truncated,
            PcapError::IoError(error) => Self::Io(error),
            other => Self::Malformed(other),
        }
    }
}

/// First block of a pcapng file, the same in both byte orders.
const PCAPNG_MAGIC: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];

/// The blocks of pcapng that hold frames: draft-ietf-opsawg-pcapng section 11.1.
const PACKET_BLOCK: u32 = 2;
const SIMPLE_PACKET_BLOCK: u32 = 3;
const ENHANCED_PACKET_BLOCK: u32 = 6;

/// Reads the Ethernet frames of a pcap or pcapng file one after the other.
pub struct FrameReader {
    format: Format,
}

enum Format {
    Pcap(PcapReader<Box<dyn Read>>),
    PcapNg(PcapNgReader<Box<dyn Read>>),
}

impl FrameReader {
    /// Opens a file; its first bytes tell its format.
    ///
    /// # Errors
    /// [`CaptureError`] if it cannot be opened, is in neither format, or is not of Ethernet.
    pub fn open(path: &Path) -> Result<Self, CaptureError> {
        let file = File::open(path).map_err(|error| CaptureError::Open {
            path: path.to_owned(),
            error,
        })?;
        Self::new(file)
    }

    /// Reads from anything.
    ///
    /// # Errors
    /// [`CaptureError`] if it is in neither format or not of Ethernet.
    pub fn new(mut source: impl Read + 'static) -> Result<Self, CaptureError> {
        let mut magic = [0; 4];
        source.read_exact(&mut magic).map_err(PcapError::IoError)?;
        let source: Box<dyn Read> = Box::new(Cursor::new(magic).chain(source));
        let format = if magic == PCAPNG_MAGIC {
            Format::PcapNg(PcapNgReader::new(source)?)
        } else {
            let reader = PcapReader::new(source)?;
            require_ethernet(reader.header().datalink)?;
            Format::Pcap(reader)
        };
        Ok(Self { format })
    }

    /// Puts the next frame into `frame`, in place of what it holds; false at the end of the file.
    ///
    /// Frames that were cut when they were captured come as they are.
    ///
    /// # Errors
    /// [`CaptureError`] if the file is malformed here. Reading on after that is pointless.
    pub fn next_frame(&mut self, frame: &mut Vec<u8>) -> Result<bool, CaptureError> {
        match &mut self.format {
            Format::Pcap(reader) => {
                let Some(packet) = reader.next_raw_packet().transpose()? else {
                    return Ok(false);
                };
                frame.clear();
                frame.extend_from_slice(&packet.data);
                Ok(true)
            }
            Format::PcapNg(reader) => next_pcapng_frame(reader, frame),
        }
    }
}

fn require_ethernet(link: DataLink) -> Result<(), CaptureError> {
    if link == DataLink::ETHERNET {
        Ok(())
    } else {
        Err(CaptureError::NotEthernet(link))
    }
}

fn next_pcapng_frame<R: Read>(reader: &mut PcapNgReader<R>, frame: &mut Vec<u8>) -> Result<bool, CaptureError> {
    loop {
        // No packet block changes it, and all other blocks are skipped.
        let is_big = reader.section().endianness == Endianness::Big;
        let Some(block) = reader.next_raw_block().transpose()? else {
            return Ok(false);
        };
        let number = |at: usize| number_at(&block.body, at, is_big).ok_or(CaptureError::Truncated);
        // draft-ietf-opsawg-pcapng 4.3, 4.4 and appendix A: where the interface, the length and the data are.
        let (interface, length, start, is_cut_by_interface) = match block.type_ {
            ENHANCED_PACKET_BLOCK => (number(0)?, number(12)?, 20, false),
            // The obsolete block: the interface is the first 16 bits, in the order of the bytes.
            PACKET_BLOCK if is_big => (number(0)? >> 16, number(12)?, 20, false),
            PACKET_BLOCK => (number(0)? & 0xffff, number(12)?, 20, false),
            // It has but the length on the wire; the first interface says how much of it was kept.
            SIMPLE_PACKET_BLOCK => (0, number(0)?, 4, true),
            _ => continue,
        };
        frame.clear();
        frame.extend_from_slice(block.body.get(start..).unwrap_or_default());

        let Some(description) = reader.interfaces().get(interface as usize) else {
            return Err(PcapError::InvalidInterfaceId(interface).into());
        };
        require_ethernet(description.linktype)?;
        let is_cut = is_cut_by_interface && description.snaplen != 0;
        let length = if is_cut {
            length.min(description.snaplen)
        } else {
            length
        };
        // Padding follows, and options.
        if frame.len() < length as usize {
            return Err(CaptureError::Truncated);
        }
        frame.truncate(length as usize);
        return Ok(true);
    }
}

fn number_at(body: &[u8], at: usize, is_big: bool) -> Option<u32> {
    let bytes = *body.get(at..)?.first_chunk::<4>()?;
    Some(if is_big {
        u32::from_be_bytes(bytes)
    } else {
        u32::from_le_bytes(bytes)
    })
}

/// Which way a captured frame went, seen from the port.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Direction {
    /// The port received it.
    Inbound,
    /// The port transmitted it.
    Outbound,
}

/// The interface of a capture file that belongs to a port.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct InterfaceId(u32);

/// Writes Ethernet frames of one or more ports to a pcapng file, with nanoseconds and directions.
///
/// The file is complete when the writer is flushed or dropped.
pub struct FrameWriter {
    writer: PcapNgWriter<Box<dyn Write>>,
    interfaces: u32,
}

impl FrameWriter {
    /// Creates a file, or empties it if it exists.
    ///
    /// # Errors
    /// [`CaptureError`] if it cannot be created or written.
    pub fn create(path: &Path) -> Result<Self, CaptureError> {
        let file = File::create(path).map_err(|error| CaptureError::Open {
            path: path.to_owned(),
            error,
        })?;
        Self::new(BufWriter::new(file))
    }

    /// Writes to anything. Each frame is a few small writes: put a buffer before a file.
    ///
    /// # Errors
    /// [`CaptureError`] if it cannot be written.
    pub fn new(sink: impl Write + 'static) -> Result<Self, CaptureError> {
        let writer = PcapNgWriter::new(Box::new(sink) as Box<dyn Write>)?;
        Ok(Self { writer, interfaces: 0 })
    }

    /// Adds a port to the file under `name`.
    ///
    /// # Errors
    /// [`CaptureError`] if it cannot be written.
    pub fn add_interface(&mut self, name: &str) -> Result<InterfaceId, CaptureError> {
        let mut interface = InterfaceDescriptionBlock::new(DataLink::ETHERNET, 0);
        interface.options = vec![
            InterfaceDescriptionOption::IfName(Cow::Borrowed(name)),
            InterfaceDescriptionOption::IfTsResol(9),
        ];
        self.writer.write_pcapng_block(interface)?;
        self.interfaces += 1;
        Ok(InterfaceId(self.interfaces - 1))
    }

    /// Writes a frame that passed `interface` at `time` since the Unix epoch.
    ///
    /// # Errors
    /// [`CaptureError`] if it cannot be written; the file then ends in a part of the frame.
    pub fn write(
        &mut self,
        interface: InterfaceId,
        direction: Direction,
        time: Duration,
        frame: &[u8],
    ) -> Result<(), CaptureError> {
        // draft-ietf-opsawg-pcapng 4.3.1, epb_flags: the two lowest bits are the direction.
        let flags = EnhancedPacketOption::Flags(match direction {
            Direction::Inbound => 1,
            Direction::Outbound => 2,
        });
        self.writer.write_pcapng_block(EnhancedPacketBlock {
            interface_id: interface.0,
            timestamp: time,
            original_len: frame.len() as u32,
            data: Cow::Borrowed(frame),
            options: vec![flags],
        })?;
        Ok(())
    }

    /// Writes out what is buffered.
    ///
    /// # Errors
    /// [`CaptureError`] if it cannot be written.
    pub fn flush(&mut self) -> Result<(), CaptureError> {
        self.writer.get_mut().flush().map_err(CaptureError::Io)
    }
}

/// Where captured frames get their time from: since the Unix epoch. A test gives a counter, everything else
/// [`wall_clock`].
pub type TimeStamps = Box<dyn FnMut() -> Duration>;

/// The system's clock.
pub fn wall_clock() -> TimeStamps {
    Box::new(|| {
        SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default()
    })
}

#[cfg(test)]
#[path = "capture_file_tests.rs"]
mod tests;
