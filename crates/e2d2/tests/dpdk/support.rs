//! What the tests share: the EAL, pools with names of their own, frames, and patience.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use e2d2::BURST;
use e2d2::buffer::{BufferPool, PacketBuffer};
use e2d2::native::{Eal, Mbuf, MbufPool, data_room};
use e2d2::port::Port;

pub(crate) type Burst = ArrayVec<Mbuf, BURST>;

pub(crate) fn eal() -> Eal {
    Eal::hermetic().expect("the EAL starts without privileges")
}

/// A name that no other test of this process has.
pub(crate) fn unique(prefix: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{prefix}{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

pub(crate) fn pool(buffers: u32, mtu: u16) -> MbufPool {
    MbufPool::new(&eal(), &unique("pool"), buffers, data_room(mtu), None).expect("enough memory")
}

/// A frame of `len` bytes that tells its number.
pub(crate) fn frame(number: u32, len: usize) -> Vec<u8> {
    let mut frame: Vec<u8> = (0..len)
        .map(|at| (at as u32).wrapping_mul(31).wrapping_add(number) as u8)
        .collect();
    frame[..4].copy_from_slice(&number.to_be_bytes());
    frame
}

pub(crate) fn packet(pool: &mut MbufPool, bytes: &[u8]) -> Mbuf {
    pool.take_copy(bytes).expect("a buffer is left and large enough")
}

/// Longer than a packet takes on a machine that does other things.
const PATIENCE: Duration = Duration::from_secs(20);

/// Receives until `count` packets are there or [`PATIENCE`] is over.
pub(crate) fn receive(port: &mut impl Port<Buffer = Mbuf>, count: usize) -> Vec<Vec<u8>> {
    receive_matching(port, count, |_| true)
}

/// As [`receive`], of the packets that `wanted` accepts.
pub(crate) fn receive_matching(
    port: &mut impl Port<Buffer = Mbuf>,
    count: usize,
    wanted: impl Fn(&[u8]) -> bool,
) -> Vec<Vec<u8>> {
    receive_within(PATIENCE, port, count, wanted)
}

/// As [`receive_matching`], until so much time has passed.
pub(crate) fn receive_within(
    patience: Duration,
    port: &mut impl Port<Buffer = Mbuf>,
    count: usize,
    wanted: impl Fn(&[u8]) -> bool,
) -> Vec<Vec<u8>> {
    let start = Instant::now();
    let mut received = Vec::new();
    while received.len() < count && start.elapsed() < patience {
        let mut burst = Burst::new();
        port.receive(&mut burst);
        received.extend(
            burst
                .iter()
                .map(|packet| packet.data().to_vec())
                .filter(|packet| wanted(packet)),
        );
    }
    received
}
