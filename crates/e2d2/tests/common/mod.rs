//! Frames and a look at both ends of a graph, for the tests of this crate.
#![allow(dead_code, reason = "no test uses all of it")]

use arrayvec::ArrayVec;
use e2d2::BURST;
use e2d2::buffer::{BufferPool, HeapBuffer, HeapPool, PacketBuffer};
use e2d2::fate::{DropReason, GraphReader, Traffic};
use e2d2::operators::{SharedPort, Task, share};
use e2d2::port::{Port, PortId};
use e2d2::ports::LoopbackPort;
use e2d2::time::Instant;

pub(crate) const NOW: Instant = Instant::from_millis(1);

/// Ones-complement sum of RFC 1071, kept apart from the crate's own.
fn internet_checksum(bytes: &[u8]) -> u16 {
    let mut sum: u32 = bytes
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// An Ethernet frame with a TCP segment over IPv4 from 10.0.0.1 to 10.0.0.2; `number` is the TCP sequence number.
pub(crate) fn tcp_frame(number: u32) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x08, 0x00];
    let mut ip = [0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    let checksum = internet_checksum(&ip);
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    frame.extend(ip);
    frame.extend([0x9c, 0x40, 0, 80]);
    frame.extend(number.to_be_bytes());
    frame.extend([0, 0, 0, 0, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0]);
    frame
}

/// The sequence number that [`tcp_frame`] wrote.
pub(crate) fn number_of(frame: &[u8]) -> u32 {
    u32::from_be_bytes(frame[38..42].try_into().expect("four bytes"))
}

/// A broadcast ARP frame of minimal length.
pub(crate) fn arp_frame() -> Vec<u8> {
    let mut frame = vec![0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 1, 0x08, 0x06];
    frame.resize(60, 0);
    frame
}

/// A frame whose EtherType nobody knows.
pub(crate) fn strange_frame() -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xb5];
    frame.resize(60, 0);
    frame
}

/// Transmits `frames` at one end of a cable; all must fit.
pub(crate) fn inject<P: Port<Buffer = HeapBuffer>>(port: &mut P, pool: &mut HeapPool, frames: &[Vec<u8>]) {
    for chunk in frames.chunks(BURST) {
        let mut burst: ArrayVec<_, BURST> = chunk
            .iter()
            .map(|frame| pool.take_copy(frame).expect("a free buffer that is long enough"))
            .collect();
        assert_eq!(port.transmit(&mut burst), chunk.len(), "the cable is full");
    }
}

/// Receives all that has arrived at one end of a cable.
pub(crate) fn collect<P: Port<Buffer = HeapBuffer>>(port: &mut P) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    loop {
        let mut burst = ArrayVec::new();
        if port.receive(&mut burst) == 0 {
            return frames;
        }
        frames.extend(burst.iter().map(|buffer| buffer.data().to_vec()));
    }
}

/// A port of the graph and the far end of its cable, where the test sits.
pub(crate) struct Cable {
    pub(crate) near: SharedPort<LoopbackPort>,
    pub(crate) far: LoopbackPort,
}

pub(crate) fn cable(id: u8, capacity: usize) -> Cable {
    let (near, far) = LoopbackPort::pair(PortId(id), PortId(id + 100), capacity);
    Cable { near: share(near), far }
}

pub(crate) fn drops(reader: &GraphReader) -> Vec<(DropReason, u64)> {
    reader.drops.snapshot().nonzero().collect()
}

pub(crate) fn traffic(reader: &GraphReader, of: Traffic) -> u64 {
    reader.traffic.snapshot()[of]
}

/// Runs a task until it finds nothing to do.
pub(crate) fn settle(task: &mut impl Task) {
    for _ in 0..1_000 {
        if task.run(NOW).is_none() {
            return;
        }
    }
    panic!("the task still finds work after 1000 runs");
}
