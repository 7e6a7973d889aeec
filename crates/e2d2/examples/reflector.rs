//! Answers every TCP segment of a capture file with itself: addresses and ports swapped, on the port it came from.
//!
//! ```text
//!   in.pcap ─► receive ─► parse ─► filter(TCP) ─► process(Reflector) ─► send ─► out.pcapng
//! ```
//!
//! `cargo run -p e2d2 --no-default-features --example reflector in.pcap out.pcapng`

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;
use std::rc::Rc;

use e2d2::buffer::{HeapBuffer, HeapPool, PacketBuffer};
use e2d2::fate::GraphCounters;
use e2d2::operators::{Burst, Frame, Node, Outbox, Round, Source, Task, receive, share};
use e2d2::port::PortId;
use e2d2::ports::{FrameReader, FrameWriter, PcapPort, wall_clock};
use e2d2::time::{Clock, Instant};
use e2d2::wire::MacAddr;
use e2d2::wire::frame::{IpHeader, Kind, Packet, TcpLayout};

/// Swaps both ends of each TCP segment.
struct Reflector;

impl Node for Reflector {
    type Input = Packet<HeapBuffer>;
    type Output = Frame<HeapBuffer>;

    fn process(&mut self, round: &mut Round<'_>, batch: &mut Burst<Self::Input>, out: &mut Outbox<Self::Output>) {
        for mut packet in batch.drain(..) {
            if let Kind::Tcp(layout) = packet.kind {
                swap_ends(packet.buffer.data_mut(), layout);
            }
            out.emit(round, packet.into());
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        None
    }
}

/// All checksums stay right: they are sums, and the parts of a sum may change places.
fn swap_ends(frame: &mut [u8], layout: TcpLayout) {
    let Some(parts) = layout.split_mut(frame) else {
        return;
    };
    swap_runs(parts.ethernet.0, 0, 6, 6);
    match parts.ip {
        IpHeader::V4(ip) => swap_runs(ip.0, 12, 16, 4),
        IpHeader::V6(ip) => swap_runs(ip.0, 8, 24, 16),
    }
    swap_runs(parts.tcp.0, 0, 2, 2);
}

/// Swaps `len` bytes at `first` with those at `second`, which lie behind them.
fn swap_runs(bytes: &mut [u8], first: usize, second: usize, len: usize) {
    let (before, from_second) = bytes.split_at_mut(second);
    before[first..first + len].swap_with_slice(&mut from_second[..len]);
}

fn reflect(input: &Path, output: &Path) -> Result<(), Box<dyn Error>> {
    let (counters, reader) = GraphCounters::new();
    let pool = HeapPool::new(1024, 9216);
    let mac = MacAddr([2, 0, 0, 0, 0, 1]);
    let port = PcapPort::new(PortId(0), mac, pool, Rc::clone(&counters))
        .reading(FrameReader::open(input)?)
        .writing(FrameWriter::create(output)?, wall_clock())?;
    let port = share(port);
    let mut task = receive(&port)
        .parse()
        .filter(|packet| matches!(packet.kind, Kind::Tcp(_)))
        .process(Reflector, 32)
        .send([Rc::clone(&port)], 32, counters);

    let clock = Clock::new();
    while !task.run(clock.now()).is_none() {}

    println!("{:?}, dropped {:?}", reader.traffic, reader.drops);
    match port.borrow().failure() {
        Some(failure) => Err(failure.to_string().into()),
        None => Ok(()),
    }
}

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let [input, output] = arguments.as_slice() else {
        eprintln!("usage: reflector IN.pcap OUT.pcapng");
        return ExitCode::FAILURE;
    };
    match reflect(Path::new(input), Path::new(output)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("reflector: {error}");
            ExitCode::FAILURE
        }
    }
}
