//! A port whose frames are also written to a file.

use std::cell::RefCell;
use std::rc::Rc;

use arrayvec::ArrayVec;

use super::capture_file::{CaptureError, Direction, FrameWriter, InterfaceId, TimeStamps};
use crate::BURST;
use crate::buffer::PacketBuffer;
use crate::port::{Capabilities, Port, PortId};
use crate::wire::MacAddr;

/// Passes everything on to another port and writes it to a pcapng file, both directions, as the wire would see it.
///
/// For tests and for looking into a running engine: it copies and writes every frame, and reads the clock once per burst.
/// If writing fails, recording ends ([`CapturePort::failure`]) and the port goes on without. Checksums that the port fills
/// in when it transmits are not in the file.
pub struct CapturePort<P> {
    port: P,
    recorder: Option<Recorder>,
    failure: Option<CaptureError>,
    /// Copies of the frames of one transmitted burst, one after the other; kept for its memory.
    copies: Vec<u8>,
}

struct Recorder {
    file: Rc<RefCell<FrameWriter>>,
    interface: InterfaceId,
    time: TimeStamps,
}

impl<P: Port> CapturePort<P> {
    /// Records `port` as the interface `name` of `file`, which several ports may share.
    ///
    /// # Errors
    /// [`CaptureError`] if the file cannot be written.
    pub fn new(port: P, name: &str, file: Rc<RefCell<FrameWriter>>, time: TimeStamps) -> Result<Self, CaptureError> {
        let interface = file.borrow_mut().add_interface(name)?;
        Ok(Self {
            port,
            recorder: Some(Recorder { file, interface, time }),
            failure: None,
            copies: Vec::new(),
        })
    }

    /// Why recording ended, if it did.
    pub fn failure(&self) -> Option<&CaptureError> {
        self.failure.as_ref()
    }

    fn end_recording_on_error(&mut self, result: Result<(), CaptureError>) {
        if let Err(error) = result {
            log::warn!("port {}: recording ends: {error}", self.port.id().0);
            self.recorder = None;
            self.failure = Some(error);
        }
    }
}

impl Recorder {
    fn record<'a>(
        &mut self,
        direction: Direction,
        mut frames: impl Iterator<Item = &'a [u8]>,
    ) -> Result<(), CaptureError> {
        let time = (self.time)();
        let mut file = self.file.borrow_mut();
        frames.try_for_each(|frame| file.write(self.interface, direction, time, frame))
    }
}

impl<P: Port> Port for CapturePort<P> {
    type Buffer = P::Buffer;

    fn id(&self) -> PortId {
        self.port.id()
    }

    fn mac(&self) -> MacAddr {
        self.port.mac()
    }

    fn mtu(&self) -> u16 {
        self.port.mtu()
    }

    fn capabilities(&self) -> Capabilities {
        self.port.capabilities()
    }

    fn receive(&mut self, into: &mut ArrayVec<P::Buffer, BURST>) -> usize {
        let before = into.len();
        let received = self.port.receive(into);
        if received > 0
            && let Some(recorder) = &mut self.recorder
        {
            let frames = into.iter().skip(before).map(PacketBuffer::data);
            let result = recorder.record(Direction::Inbound, frames);
            self.end_recording_on_error(result);
        }
        received
    }

    fn transmit(&mut self, from: &mut ArrayVec<P::Buffer, BURST>) -> usize {
        let Some(recorder) = &mut self.recorder else {
            return self.port.transmit(from);
        };
        // Which frames the port takes is known when they are gone.
        self.copies.clear();
        let mut lengths: ArrayVec<usize, BURST> = ArrayVec::new();
        for buffer in from.iter() {
            self.copies.extend_from_slice(buffer.data());
            lengths.push(buffer.len());
        }
        let sent = self.port.transmit(from);
        if sent > 0 {
            let mut rest = self.copies.as_slice();
            let frames = lengths.iter().take(sent).map_while(|length| {
                let (frame, behind) = rest.split_at_checked(*length)?;
                rest = behind;
                Some(frame)
            });
            let result = recorder.record(Direction::Outbound, frames);
            self.end_recording_on_error(result);
        }
        sent
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::buffer::{BufferPool, HeapBuffer, HeapPool};
    use crate::ports::{FrameReader, LoopbackPort};

    fn burst(pool: &mut HeapPool, bytes: &[u8]) -> ArrayVec<HeapBuffer, BURST> {
        bytes
            .iter()
            .map(|byte| pool.take_copy(&[*byte; 20]).expect("buffer"))
            .collect()
    }

    #[test]
    fn what_passes_is_recorded_once_and_what_is_refused_is_not() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let path = directory.path().join("both.pcapng");
        let file = Rc::new(RefCell::new(FrameWriter::create(&path).expect("created")));
        let (near, mut far) = LoopbackPort::pair(PortId(0), PortId(1), 2);
        let mut ticks = 0;
        let time = Box::new(move || {
            ticks += 1;
            Duration::from_secs(ticks)
        });
        let mut port = CapturePort::new(near, "near", Rc::clone(&file), time).expect("interface");
        let mut pool = HeapPool::new(8, 64);

        let mut frames = burst(&mut pool, &[1, 2, 3]);
        assert_eq!(port.transmit(&mut frames), 2);
        far.transmit(&mut burst(&mut pool, &[9]));
        let mut received = ArrayVec::new();
        assert_eq!(port.receive(&mut received), 1);
        assert_eq!(port.transmit(&mut frames), 0);
        far.receive(&mut received);
        assert_eq!(port.transmit(&mut frames), 1);
        assert!(port.failure().is_none());
        file.borrow_mut().flush().expect("flushed");

        let mut reader = FrameReader::open(&path).expect("readable");
        let (mut frame, mut recorded) = (Vec::new(), Vec::new());
        while reader.next_frame(&mut frame).expect("well formed") {
            assert_eq!(frame.len(), 20);
            recorded.push(frame[0]);
        }
        assert_eq!(recorded, [1, 2, 9, 3]);
    }
}
