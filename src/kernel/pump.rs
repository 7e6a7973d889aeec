//! The thread between the rings and a device: the only place where the kernel's frames cost system calls.
//!
//! It looks at the rings of all cores and at the device in turn, at most a burst of each, and rests when there was
//! nothing: until the kernel sends something, for [`BUSY_REST`] at most while frames come and go, else [`IDLE_REST`].
//! So a core never has to wake it.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use e2d2::tap::Tap;
use e2d2::time::{Clock, Instant};
use e2d2::wire::MacAddr;
use e2d2::wire::ethernet::HEADER_LEN;
use netfcts::rate::RateLimiter;

use super::end::{KernelCounterReader, Writers, counters};
use super::ring::{FrameReceiver, FrameSender};
use super::{KernelDrop, KernelEvent};

/// The longest rest while there is traffic: what a frame to the kernel waits at most.
pub const BUSY_REST: Duration = Duration::from_micros(50);
/// The longest rest otherwise: half a percent of a core.
pub const IDLE_REST: Duration = Duration::from_millis(1);
/// For how long after the last frame there is traffic.
const BUSY_FOR: Duration = Duration::from_millis(20);
/// Frames that are taken from each ring, and from the device, before the others have their turn.
const BURST: usize = 32;

/// What the pump reads from and writes to: a TAP, or a test's.
pub trait FrameDevice {
    /// The next frame that the kernel sends, if there is one now.
    ///
    /// # Errors
    /// The device cannot be read.
    fn read(&mut self, into: &mut [u8]) -> io::Result<Option<usize>>;

    /// Lets the kernel receive a frame.
    ///
    /// # Errors
    /// The device does not take it.
    fn write(&mut self, frame: &[u8]) -> io::Result<()>;

    /// Waits until there is something to read, for `limit` at most.
    fn wait(&mut self, limit: Duration);
}

impl FrameDevice for Tap {
    fn read(&mut self, into: &mut [u8]) -> io::Result<Option<usize>> {
        Tap::read(self, into)
    }

    fn write(&mut self, frame: &[u8]) -> io::Result<()> {
        Tap::write(self, frame)
    }

    fn wait(&mut self, limit: Duration) {
        Tap::wait(self, limit);
    }
}

/// What a pump is made of.
pub struct PumpParts<D> {
    /// The device.
    pub device: D,
    /// From each core.
    pub to_kernel: Vec<FrameReceiver>,
    /// To the core that sends.
    pub from_kernel: FrameSender,
    /// The port's MAC address, which every frame of the kernel's comes from.
    pub mac: MacAddr,
    /// The port's MTU in bytes.
    pub mtu: u16,
    /// Frames a second from the kernel.
    pub rate: u32,
}

/// Moves frames between the kernel and the cores.
pub struct Pump<D> {
    parts: PumpParts<D>,
    limit: RateLimiter,
    /// A token that was taken when there turned out to be no frame.
    has_token: bool,
    outgoing: Vec<u8>,
    incoming: Box<[u8]>,
    busy_until: Instant,
    writers: Writers,
    reader: KernelCounterReader,
}

impl<D: FrameDevice> Pump<D> {
    /// A pump at rest.
    pub fn new(parts: PumpParts<D>, now: Instant) -> Self {
        let (writers, reader) = counters();
        Self {
            limit: RateLimiter::new(parts.rate.into(), parts.rate.div_ceil(10).max(1), now),
            has_token: false,
            outgoing: Vec::with_capacity(usize::from(u16::MAX)),
            // One byte more than the longest that passes, so that a longer one shows.
            incoming: vec![0; HEADER_LEN + usize::from(parts.mtu) + 1].into_boxed_slice(),
            busy_until: Instant::ZERO,
            writers,
            reader,
            parts,
        }
    }

    /// The reading end of its counters.
    pub fn counter_reader(&self) -> KernelCounterReader {
        self.reader.clone()
    }

    /// Pumps until `stop`; looks at it between two rests.
    pub fn run(&mut self, clock: &Clock, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) {
            let now = clock.now();
            if self.round(now) == 0 {
                let rest = if now < self.busy_until { BUSY_REST } else { IDLE_REST };
                if self.may_read(now) {
                    self.parts.device.wait(rest);
                } else {
                    // The device may be readable all the time: whoever may not read does not wait for it.
                    std::thread::sleep(rest);
                }
            }
        }
    }

    /// One turn at each ring and the device; returns how many frames moved or were dropped.
    pub fn round(&mut self, now: Instant) -> usize {
        let moved = self.write_all() + self.read_all(now);
        if moved > 0 {
            self.busy_until = now + BUSY_FOR;
        }
        moved
    }

    fn write_all(&mut self) -> usize {
        let mut moved = 0;
        for ring in &mut self.parts.to_kernel {
            for _ in 0..BURST {
                if !ring.pop(&mut self.outgoing) {
                    break;
                }
                moved += 1;
                match self.parts.device.write(&self.outgoing) {
                    Ok(()) => self.writers.events.add(KernelEvent::Written, 1),
                    Err(_) => self.writers.drops.add(KernelDrop::Refused, 1),
                }
            }
        }
        moved
    }

    /// What may not be read now waits in the kernel, whose queue is bounded, too.
    fn read_all(&mut self, now: Instant) -> usize {
        for moved in 0..BURST {
            if !self.may_read(now) {
                return moved;
            }
            // A device that cannot be read (it is down) is asked again after the rest.
            let Ok(Some(length)) = self.parts.device.read(&mut self.incoming) else {
                return moved;
            };
            self.has_token = false;
            self.writers.events.add(KernelEvent::Read, 1);
            let frame = &self.incoming[..length.min(self.incoming.len())];
            if let Err(reason) = check(frame, self.parts.mac, self.parts.mtu)
                .and_then(|()| self.parts.from_kernel.push(frame).map_err(|_| KernelDrop::QueueFull))
            {
                self.writers.drops.add(reason, 1);
            }
        }
        BURST
    }

    fn may_read(&mut self, now: Instant) -> bool {
        if !self.parts.from_kernel.has_room_for(self.incoming.len()) {
            return false;
        }
        self.has_token = self.has_token || self.limit.take(now);
        self.has_token
    }
}

/// Whether a frame of the kernel's may go out of the port: switches learn from its source.
fn check(frame: &[u8], mac: MacAddr, mtu: u16) -> Result<(), KernelDrop> {
    let source: &[u8; 6] = frame
        .get(6..HEADER_LEN)
        .and_then(<[u8]>::first_chunk)
        .ok_or(KernelDrop::TooShort)?;
    if frame.len() > HEADER_LEN + usize::from(mtu) {
        Err(KernelDrop::TooLong)
    } else if *source != mac.0 {
        Err(KernelDrop::ForeignSource)
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;
    use crate::kernel::frame_ring;

    #[derive(Default)]
    struct Fake {
        sends: VecDeque<Vec<u8>>,
        received: Vec<Vec<u8>>,
        is_down: bool,
    }

    impl FrameDevice for Fake {
        fn read(&mut self, into: &mut [u8]) -> io::Result<Option<usize>> {
            let Some(frame) = self.sends.pop_front() else {
                return Ok(None);
            };
            let length = frame.len().min(into.len());
            into[..length].copy_from_slice(&frame[..length]);
            Ok(Some(length))
        }

        fn write(&mut self, frame: &[u8]) -> io::Result<()> {
            if self.is_down {
                return Err(io::Error::from_raw_os_error(5));
            }
            self.received.push(frame.to_vec());
            Ok(())
        }

        fn wait(&mut self, _limit: Duration) {}
    }

    const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);

    fn frame(source: u8, length: usize) -> Vec<u8> {
        let mut frame = vec![0; length];
        frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, source]);
        frame
    }

    fn pump(rate: u32, ring: usize) -> (Pump<Fake>, FrameSender, FrameReceiver) {
        let (to, to_kernel) = frame_ring(4096);
        let (from_kernel, from) = frame_ring(ring);
        let parts = PumpParts {
            device: Fake::default(),
            to_kernel: vec![to_kernel],
            from_kernel,
            mac: MAC,
            mtu: 100,
            rate,
        };
        (Pump::new(parts, Instant::ZERO), to, from)
    }

    #[test]
    fn frames_pass_both_ways_and_what_is_strange_is_counted() {
        let (mut pump, mut to, mut from) = pump(1000, 4096);
        to.push(&frame(7, 60)).expect("room");
        let good = [frame(1, 14), frame(1, 114)];
        let bad = [frame(2, 60), frame(1, 115), vec![0; 13]];
        pump.parts.device.sends.extend(good.iter().chain(&bad).cloned());
        assert_eq!(pump.round(Instant::ZERO), 6);
        assert_eq!(pump.round(Instant::ZERO), 0);
        assert_eq!(pump.parts.device.received, [frame(7, 60)]);
        let mut got = Vec::new();
        for expected in &good {
            assert!(from.pop(&mut got));
            assert_eq!(&got, expected);
        }
        assert!(from.is_empty());
        let counted = pump.counter_reader().snapshot();
        assert_eq!(counted.events[KernelEvent::Written], 1);
        assert_eq!(counted.events[KernelEvent::Read], 5);
        for reason in [KernelDrop::ForeignSource, KernelDrop::TooLong, KernelDrop::TooShort] {
            assert_eq!(counted.drops[reason], 1, "{reason:?}");
        }
    }

    #[test]
    fn the_rate_holds_the_kernel_back_and_loses_nothing() {
        let (mut pump, _to, _from) = pump(20, 1 << 16);
        pump.parts.device.sends.extend((0..30).map(|_| frame(1, 60)));
        assert_eq!(pump.round(Instant::ZERO), 2, "a tenth of a second's at once");
        assert_eq!(pump.round(Instant::ZERO), 0);
        assert_eq!(pump.round(Instant::ZERO + Duration::from_millis(50)), 1);
        assert_eq!(pump.parts.device.sends.len(), 27);
        // A token for which there was no frame is kept, and no second one is taken for it.
        pump.parts.device.sends.clear();
        for _ in 0..100 {
            assert_eq!(pump.round(Instant::ZERO + Duration::from_millis(150)), 0);
        }
        pump.parts.device.sends.extend((0..5).map(|_| frame(1, 60)));
        assert_eq!(pump.round(Instant::ZERO + Duration::from_millis(150)), 2);
        assert_eq!(pump.counter_reader().snapshot().drops.total(), 0);
    }

    #[test]
    fn a_full_ring_holds_the_kernel_back_and_a_device_that_is_down_is_counted() {
        let (mut pump, mut to, mut from) = pump(1000, 240);
        pump.parts.device.sends.extend((0..3).map(|_| frame(1, 114)));
        // 115 bytes have to fit, as the length is not known before.
        assert_eq!(pump.round(Instant::ZERO), 2);
        assert_eq!(pump.round(Instant::ZERO), 0);
        assert!(from.pop(&mut Vec::new()));
        assert_eq!(pump.round(Instant::ZERO), 1);
        pump.parts.device.is_down = true;
        to.push(&frame(7, 60)).expect("room");
        assert_eq!(pump.round(Instant::ZERO), 1);
        assert_eq!(pump.counter_reader().snapshot().drops[KernelDrop::Refused], 1);
    }
}
