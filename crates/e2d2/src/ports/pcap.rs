//! A port whose cable is a pair of files.

use std::rc::Rc;

use arrayvec::ArrayVec;

use super::capture_file::{CaptureError, Direction, FrameReader, FrameWriter, InterfaceId, TimeStamps};
use crate::BURST;
use crate::buffer::{BufferPool, HeapPool, PacketBuffer};
use crate::fate::{DropReason, GraphCounters};
use crate::port::{Capabilities, Port, PortId};
use crate::wire::MacAddr;

/// Receives the frames of a capture file and writes what it transmits to another.
///
/// Frames come as fast as they are asked for and there are buffers; without a buffer they wait in the file. Those longer
/// than a buffer are dropped as [`DropReason::TooLong`]. An error in either file ends that direction: see
/// [`PcapPort::failure`]. What is transmitted without a file to write to is dropped as [`DropReason::Unwanted`], and as
/// [`DropReason::WriteFailed`] after an error.
pub struct PcapPort<L: BufferPool = HeapPool> {
    id: PortId,
    mac: MacAddr,
    pool: L,
    reader: Option<FrameReader>,
    /// The frame that was read last; kept for its memory.
    frame: Vec<u8>,
    writer: Option<Output>,
    /// Why there is no writer.
    unwritten: DropReason,
    failure: Option<CaptureError>,
    counters: Rc<GraphCounters>,
}

struct Output {
    file: FrameWriter,
    interface: InterfaceId,
    time: TimeStamps,
}

impl<L: BufferPool> PcapPort<L> {
    /// A port that receives nothing and drops what it transmits; give it files with the next two functions.
    pub fn new(id: PortId, mac: MacAddr, pool: L, counters: Rc<GraphCounters>) -> Self {
        Self {
            id,
            mac,
            pool,
            reader: None,
            frame: Vec::new(),
            writer: None,
            unwritten: DropReason::Unwanted,
            failure: None,
            counters,
        }
    }

    /// Receives the frames of `file`.
    pub fn reading(self, file: FrameReader) -> Self {
        Self {
            reader: Some(file),
            ..self
        }
    }

    /// Writes transmitted frames to `file`, with the time that `time` tells.
    ///
    /// # Errors
    /// [`CaptureError`] if the file cannot be written.
    pub fn writing(self, mut file: FrameWriter, time: TimeStamps) -> Result<Self, CaptureError> {
        let interface = file.add_interface(&format!("port {}", self.id.0))?;
        Ok(Self {
            writer: Some(Output { file, interface, time }),
            ..self
        })
    }

    /// Whether no frame will be received any more: the file is at its end, or was malformed.
    #[cfg(test)]
    fn is_exhausted(&self) -> bool {
        self.reader.is_none()
    }

    /// What went wrong first, if anything did.
    pub fn failure(&self) -> Option<&CaptureError> {
        self.failure.as_ref()
    }

    fn fail(&mut self, error: CaptureError) {
        log::warn!("port {}: {error}", self.id.0);
        self.failure.get_or_insert(error);
    }
}

impl<L: BufferPool> Port for PcapPort<L> {
    type Buffer = L::Buffer;

    fn id(&self) -> PortId {
        self.id
    }

    fn mac(&self) -> MacAddr {
        self.mac
    }

    fn mtu(&self) -> u16 {
        1500
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    fn receive(&mut self, into: &mut ArrayVec<L::Buffer, BURST>) -> usize {
        let before = into.len();
        while !into.is_full()
            && let Some(reader) = &mut self.reader
            && let Some(mut buffer) = self.pool.take()
        {
            match reader.next_frame(&mut self.frame) {
                Ok(true) => {
                    if buffer.append(self.frame.len()).is_ok() {
                        buffer.data_mut().copy_from_slice(&self.frame);
                        into.push(buffer);
                    } else {
                        self.counters.count_refused(DropReason::TooLong);
                    }
                }
                Ok(false) => self.reader = None,
                Err(error) => {
                    self.reader = None;
                    self.fail(error);
                }
            }
        }
        into.len() - before
    }

    fn transmit(&mut self, from: &mut ArrayVec<L::Buffer, BURST>) -> usize {
        let frames = from.len();
        let mut written = 0;
        if let Some(output) = &mut self.writer {
            let time = (output.time)();
            let result = from.iter().try_for_each(|buffer| {
                output
                    .file
                    .write(output.interface, Direction::Outbound, time, buffer.data())?;
                written += 1;
                Ok(())
            });
            if let Err(error) = result {
                self.writer = None;
                self.unwritten = DropReason::WriteFailed;
                self.fail(error);
            }
        }
        from.clear();
        self.counters.drops.add(self.unwritten, (frames - written) as u64);
        written
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::time::Duration;

    use super::*;
    use crate::buffer::HeapBuffer;
    use crate::fate::{GraphReader, Traffic};

    const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);

    /// A pcap file of Ethernet frames of these lengths, each filled with its length.
    fn pcap_of(lengths: &[u8]) -> Vec<u8> {
        let mut file = vec![
            0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 1, 0, 0, 0,
        ];
        for &length in lengths {
            file.extend([0; 8]);
            file.extend([length, 0, 0, 0, length, 0, 0, 0]);
            file.extend(vec![length; usize::from(length)]);
        }
        file
    }

    fn port(file: Vec<u8>, pool: &HeapPool) -> (PcapPort, GraphReader) {
        let (counters, reader) = GraphCounters::new();
        let file = FrameReader::new(io::Cursor::new(file)).expect("a good header");
        (
            PcapPort::new(PortId(3), MAC, pool.clone(), counters).reading(file),
            reader,
        )
    }

    fn receive(port: &mut PcapPort) -> Vec<usize> {
        let mut burst = ArrayVec::new();
        port.receive(&mut burst);
        burst.iter().map(HeapBuffer::len).collect()
    }

    #[test]
    fn frames_wait_in_the_file_until_there_are_buffers() {
        let pool = HeapPool::new(2, 100);
        let (mut port, _) = port(pcap_of(&[60, 61, 62]), &pool);
        let mut burst = ArrayVec::new();
        assert_eq!(port.receive(&mut burst), 2);
        assert_eq!(port.receive(&mut burst), 0);
        assert!(!port.is_exhausted());
        burst.clear();
        assert_eq!(port.receive(&mut burst), 1);
        assert_eq!(burst[0].data(), [62; 62]);
        assert!(port.is_exhausted() && port.failure().is_none());
        drop(burst);
        assert_eq!(pool.available(), 2);
    }

    #[test]
    fn frame_longer_than_a_buffer_is_counted() {
        let pool = HeapPool::new(8, 61);
        let (mut port, reader) = port(pcap_of(&[60, 61, 62]), &pool);
        assert_eq!(receive(&mut port), [60, 61]);
        assert_eq!(reader.drops.snapshot()[DropReason::TooLong], 1);
        assert_eq!(reader.traffic.snapshot()[Traffic::Received], 1);
        assert_eq!(pool.available(), 8);
    }

    #[test]
    fn file_that_breaks_off_gives_what_is_good_and_then_an_error() {
        let pool = HeapPool::new(8, 100);
        let mut file = pcap_of(&[60, 61]);
        file.truncate(file.len() - 1);
        let (mut port, _) = port(file, &pool);
        assert_eq!(receive(&mut port), [60]);
        assert!(port.is_exhausted());
        assert!(
            matches!(port.failure(), Some(CaptureError::Truncated)),
            "{:?}",
            port.failure()
        );
        assert_eq!(pool.available(), 8);
    }

    /// A disk with room for `0` bytes more.
    struct FullDisk(usize);

    impl Write for FullDisk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 = self.0.checked_sub(bytes.len()).ok_or(io::ErrorKind::StorageFull)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn transmitted_frames_are_written_until_the_disk_is_full_and_counted_after() {
        let mut pool = HeapPool::new(8, 100);
        let (counters, reader) = GraphCounters::new();
        let mut port = PcapPort::new(PortId(0), MAC, pool.clone(), counters);
        let mut send = |port: &mut PcapPort, frames: usize| {
            let mut burst = (0..frames).map(|_| pool.take_copy(&[7; 60]).expect("buffer")).collect();
            let sent = port.transmit(&mut burst);
            assert!(burst.is_empty());
            sent
        };
        assert_eq!(send(&mut port, 2), 0);
        assert_eq!(reader.drops.snapshot()[DropReason::Unwanted], 2);

        // Section header 28, interface with a name of 6 bytes 44; each frame 32 + 60 + 12 for the option.
        let disk = FrameWriter::new(FullDisk(28 + 44 + 2 * 104 + 50)).expect("room for the header");
        let mut port = port
            .writing(disk, Box::new(|| Duration::ZERO))
            .expect("room for the interface");
        assert_eq!(send(&mut port, 3), 2);
        assert_eq!(send(&mut port, 3), 0);
        assert_eq!(reader.drops.snapshot()[DropReason::WriteFailed], 4);
        assert!(matches!(port.failure(), Some(CaptureError::Io(_))));
        assert_eq!(pool.available(), 8);
    }
}
