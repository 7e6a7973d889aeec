//! The rings between a core and the thread that makes checks with content.

use std::time::Duration;

use e2d2::buffer::BufferPool;
use e2d2::time::Instant;
use rtrb::{Consumer, Producer, RingBuffer};
use splice::callbacks::SelectServer;
use splice::checks::{CheckEnd, CheckId, CheckOrder};
use splice::server_state::CheckFailure;
use splice::{NextHops, Output, Proxy};

use super::MOST_AT_ONCE;
use crate::kernel::{FrameReceiver, FrameSender, RingFull, frame_ring};

/// Bytes of a core's ring of packets, each way: 80 frames of 1 500 bytes. Memory is touched as it fills.
const RING: usize = 128 << 10;

/// Messages that a core takes in a round at most: a burst.
const TAKEN_PER_ROUND: usize = 32;

/// The header of each message: its check.
const ID: usize = 4;

/// The kind of a message to a core: a packet, or a result.
const PACKET: u8 = 0;
const PASSED: u8 = 1;
const REFUSED: u8 = 2;
const UNANSWERED: u8 = 3;
const WRONG: u8 = 4;
const NOT_MADE: u8 = 5;

/// A core's end. No call waits, allocates or enters the system.
pub struct CheckLine {
    orders: Producer<CheckOrder>,
    packets: FrameSender,
    back: FrameReceiver,
    message: Vec<u8>,
}

/// The thread's end.
pub struct CheckerLine {
    orders: Consumer<CheckOrder>,
    packets: FrameReceiver,
    back: FrameSender,
}

/// Both ends of one core's rings.
pub fn check_line() -> (CheckLine, CheckerLine) {
    let (orders, orders_out) = RingBuffer::new(MOST_AT_ONCE);
    let (packets, packets_out) = frame_ring(RING);
    let (back_in, back) = frame_ring(RING);
    let of_core = CheckLine {
        orders,
        packets,
        back,
        message: Vec::with_capacity(usize::from(u16::MAX)),
    };
    let of_thread = CheckerLine {
        orders: orders_out,
        packets: packets_out,
        back: back_in,
    };
    (of_core, of_thread)
}

fn id_bytes(check: CheckId) -> [u8; ID] {
    let ([a, b], [c, d]) = (check.server.to_ne_bytes(), check.turn.to_ne_bytes());
    [a, b, c, d]
}

fn id_of([a, b, c, d]: [u8; ID]) -> CheckId {
    CheckId {
        server: u16::from_ne_bytes([a, b]),
        turn: u16::from_ne_bytes([c, d]),
    }
}

impl CheckLine {
    /// Orders a check. Returns false if the ring is full.
    pub fn begin(&mut self, order: &CheckOrder) -> bool {
        self.orders.push(*order).is_ok()
    }

    /// Passes a packet of this check's server. Returns false if the ring is full.
    pub fn pass(&mut self, check: CheckId, packet: &[u8]) -> bool {
        self.packets.push_joined(&id_bytes(check), packet).is_ok()
    }

    /// Takes up to a burst of the thread's messages into the core; returns how many. Costs one load if there is none.
    pub fn work<P: BufferPool, S: SelectServer, N: NextHops>(
        &mut self,
        now: Instant,
        proxy: &mut Proxy<P, S, N>,
        out: &mut impl Output<P::Buffer>,
    ) -> usize {
        let most = TAKEN_PER_ROUND.min(out.room());
        let mut taken = 0;
        while taken < most && self.back.pop(&mut self.message) {
            taken += 1;
            let Some((id, [kind, rest @ ..])) = self.message.split_first_chunk() else {
                continue;
            };
            let check = id_of(*id);
            match (end_of(*kind, rest), *kind) {
                (Some(end), _) => proxy.end_check(now, check, end),
                (None, PACKET) => proxy.send_for_check(now, check, rest, out),
                (None, _) => {}
            }
        }
        taken
    }
}

fn end_of(kind: u8, rest: &[u8]) -> Option<CheckEnd> {
    let result = match kind {
        PASSED => Some(Ok(())),
        REFUSED => Some(Err(CheckFailure::Refused)),
        UNANSWERED => Some(Err(CheckFailure::Unanswered)),
        WRONG => Some(Err(CheckFailure::Wrong)),
        NOT_MADE => None,
        _ => return None,
    };
    let (next_seq, rest) = rest.split_first_chunk()?;
    Some(CheckEnd {
        result,
        next_seq: u32::from_ne_bytes(*next_seq),
        waited: Duration::from_micros(u32::from_ne_bytes(*rest.first_chunk()?).into()),
    })
}

impl CheckerLine {
    /// The next order.
    pub(super) fn order(&mut self) -> Option<CheckOrder> {
        self.orders.pop().ok()
    }

    /// Copies the next packet of a server, after the header with its check, into `message`.
    pub(super) fn packet<'m>(&mut self, message: &'m mut Vec<u8>) -> Option<(CheckId, &'m [u8])> {
        if !self.packets.pop(message) {
            return None;
        }
        let (id, packet) = message.split_first_chunk()?;
        Some((id_of(*id), packet))
    }

    /// Sends a packet to the server of this check.
    pub(super) fn send(&mut self, check: CheckId, packet: &[u8]) -> Result<(), RingFull> {
        let [a, b, c, d] = id_bytes(check);
        self.back.push_joined(&[a, b, c, d, PACKET], packet)
    }

    /// Tells the core how this check has ended.
    pub(super) fn end(&mut self, check: CheckId, end: CheckEnd) -> Result<(), RingFull> {
        let [a, b, c, d] = id_bytes(check);
        let kind = match end.result {
            Some(Ok(())) => PASSED,
            Some(Err(CheckFailure::Refused)) => REFUSED,
            Some(Err(CheckFailure::Unanswered)) => UNANSWERED,
            Some(Err(CheckFailure::Wrong)) => WRONG,
            None => NOT_MADE,
        };
        let [e, f, g, h] = end.next_seq.to_ne_bytes();
        // It is about a second at most.
        let waited = (end.waited.as_micros() as u32).to_ne_bytes();
        self.back.push_joined(&[a, b, c, d, kind, e, f, g, h], &waited)
    }
}
