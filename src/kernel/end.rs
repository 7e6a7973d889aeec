//! A core's end of the way to the kernel.

use std::sync::Arc;

use e2d2::counters::{CounterReader, CounterWriter, Counters, shared as shared_counters};
use e2d2::port::PortId;
use e2d2::time::Instant;
use e2d2::wire::frame::Kind;
use netfcts::rate::RateLimiter;

use super::claims::{Claims, Share};
use super::ring::{FrameReceiver, FrameSender};
use super::{KernelDrop, KernelEvent};

/// Frames of the kernel's that one poll sends at most: a burst.
pub const FRAMES_PER_POLL: usize = 32;

/// What one thread has counted.
#[derive(Clone, Debug, Default)]
pub struct KernelCounters {
    /// Frames that ended here.
    pub drops: Counters<KernelDrop>,
    /// The others.
    pub events: Counters<KernelEvent>,
}

/// The reading end of a thread's counters, for any thread.
#[derive(Clone, Debug)]
pub struct KernelCounterReader {
    drops: CounterReader<KernelDrop>,
    events: CounterReader<KernelEvent>,
}

impl KernelCounterReader {
    /// The counts as they are now.
    pub fn snapshot(&self) -> KernelCounters {
        KernelCounters {
            drops: self.drops.snapshot(),
            events: self.events.snapshot(),
        }
    }
}

/// The writing ends.
pub(super) struct Writers {
    pub(super) drops: CounterWriter<KernelDrop>,
    pub(super) events: CounterWriter<KernelEvent>,
}

pub(super) fn counters() -> (Writers, KernelCounterReader) {
    let ((drops, drops_read), (events, events_read)) = (shared_counters(), shared_counters());
    let reader = KernelCounterReader {
        drops: drops_read,
        events: events_read,
    };
    (Writers { drops, events }, reader)
}

/// The rings between this core and the kernel behind one port.
pub struct Lane {
    /// The port.
    pub port: PortId,
    /// To the kernel.
    pub to: FrameSender,
    /// From the kernel; on the one core that sends its frames.
    pub from: Option<FrameReceiver>,
    /// Frames a second to the kernel, from this core.
    pub rate: u32,
}

struct OpenLane {
    lane: Lane,
    limit: RateLimiter,
}

impl OpenLane {
    fn put(&mut self, now: Instant, frame: &[u8]) -> Result<(), KernelDrop> {
        if !self.limit.take(now) {
            return Err(KernelDrop::RateLimited);
        }
        self.lane.to.push(frame).map_err(|_| KernelDrop::QueueFull)
    }
}

/// A core's end. Belongs to the core; no call waits, allocates or enters the system.
pub struct KernelEnd {
    claims: Arc<Claims>,
    lanes: Vec<OpenLane>,
    frame: Vec<u8>,
    writers: Writers,
    reader: KernelCounterReader,
    others: Vec<KernelCounterReader>,
}

impl KernelEnd {
    /// An end with a lane for each port that has a kernel behind it. `others` are counters that are shown with this
    /// core's: those of the kernel's threads, on one core of all.
    pub fn new(claims: Arc<Claims>, lanes: Vec<Lane>, others: Vec<KernelCounterReader>, now: Instant) -> Self {
        let (writers, reader) = counters();
        // A tenth of a second's frames at once, as with the proxy's answers to strangers.
        let limit = |rate: u32| RateLimiter::new(rate.into(), rate.div_ceil(10).max(1), now);
        let open = |lane: Lane| OpenLane {
            limit: limit(lane.rate),
            lane,
        };
        Self {
            claims,
            lanes: lanes.into_iter().map(open).collect(),
            frame: Vec::with_capacity(usize::from(u16::MAX)),
            writers,
            reader,
            others,
        }
    }

    /// Whose a frame is; see [`Claims::share`].
    pub fn share(&self, port: PortId, kind: Kind, frame: &[u8]) -> Share {
        self.claims.share(port, kind, frame)
    }

    /// Hands a frame to the kernel, or drops it and counts why.
    pub fn pass(&mut self, now: Instant, port: PortId, frame: &[u8]) {
        self.put(now, port, frame, KernelEvent::Passed);
    }

    /// Hands a copy to the kernel of a frame that the engine uses, or counts why not.
    pub fn copy(&mut self, now: Instant, port: PortId, frame: &[u8]) {
        self.put(now, port, frame, KernelEvent::Copied);
    }

    fn put(&mut self, now: Instant, port: PortId, frame: &[u8], event: KernelEvent) {
        let lane = self.lanes.iter_mut().find(|open| open.lane.port == port);
        let put = match lane {
            None => Err(KernelDrop::NotForKernel),
            Some(open) => open.put(now, frame),
        };
        match put {
            Ok(()) => self.writers.events.add(event, 1),
            Err(reason) => self.writers.drops.add(reason, 1),
        }
    }

    /// Counts a frame that is nobody's.
    pub fn drop_foreign(&self) {
        self.writers.drops.add(KernelDrop::NotForKernel, 1);
    }

    /// Takes frames of the kernel's, at most [`FRAMES_PER_POLL`], and gives each to `send`, which says whether it had a
    /// buffer for it. Returns how many there were. One load for each port where there is nothing.
    pub fn poll(&mut self, send: &mut dyn FnMut(PortId, &[u8]) -> bool) -> usize {
        let mut taken = 0;
        for open in &mut self.lanes {
            let Some(from) = &mut open.lane.from else { continue };
            while taken < FRAMES_PER_POLL && from.pop(&mut self.frame) {
                taken += 1;
                if send(open.lane.port, &self.frame) {
                    self.writers.events.add(KernelEvent::Sent, 1);
                } else {
                    self.writers.drops.add(KernelDrop::NoBuffer, 1);
                }
            }
        }
        taken
    }

    /// The counters of this core and of those that were given to [`new`](Self::new).
    pub fn counter_readers(&self) -> Vec<KernelCounterReader> {
        let own = std::iter::once(&self.reader);
        own.chain(&self.others).cloned().collect()
    }
}
