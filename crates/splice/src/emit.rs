//! Frames go out here, and what is dropped is counted; a capture sees both.

use crate::base::drop_reason::DropReason;
use crate::base::output::Output;
use crate::base::path::Path;
use crate::capture::{FrameKind, Sieve, Stepped, Tap};
use crate::session::action::Action;
use crate::session::event::Event;
use crate::session::numbers::Control;
use crate::session::phase::Phase;
use crate::session::segment::Segment;
use e2d2::buffer::{BufferPool, PacketBuffer};
use e2d2::counters::Counters;
use e2d2::port::PortId;
use netfcts::{Cause, Side};

/// The buffers of a core's own frames, the reasons for what it drops, and who is shown them.
pub(crate) struct Emitter<P> {
    pub(crate) pool: P,
    pub(crate) drops: Counters<DropReason>,
    /// Nothing while nobody captures.
    pub(crate) tap: Option<Box<Tap>>,
    /// How much of what is dealt with the tap is told.
    pub(crate) telling: Telling,
    /// Frames that were sent.
    pub(crate) sent: u64,
    /// Frames that came for no listener, and those that were sent for them: no capture is of these.
    pub(crate) without_listener: u64,
    ip_id: u16,
}

/// How much of what is dealt with a tap is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Telling {
    /// What is sent and dropped, too.
    All,
    /// What becomes of connections: what is sent and dropped for them is lost.
    Connections,
    /// There is no tap, or no connection that is dealt with is captured.
    Nothing,
}

impl<P: BufferPool> Emitter<P> {
    pub(crate) fn new(pool: P) -> Self {
        Emitter {
            pool,
            drops: Counters::default(),
            tap: None,
            telling: Telling::Nothing,
            sent: 0,
            without_listener: 0,
            ip_id: 0,
        }
    }

    /// What tells of most segments that they are not captured.
    #[inline]
    pub(crate) fn sieve(&self) -> Sieve {
        self.tap.as_ref().map_or(Sieve::NOTHING, |tap| tap.sieve())
    }

    /// Counts one that is dropped.
    #[inline]
    pub(crate) fn dropped(&mut self, reason: DropReason) {
        self.drops.add(reason, 1);
        if self.telling == Telling::All
            && let Some(tap) = &mut self.tap
        {
            tap.note_drop(reason);
        }
    }

    /// The tap, if it is told of the connections that are dealt with.
    #[inline]
    pub(crate) fn concerned_tap(&mut self) -> Option<&mut Tap> {
        match self.telling {
            Telling::Nothing => None,
            Telling::All | Telling::Connections => self.tap.as_deref_mut(),
        }
    }

    /// A segment for no listener was dealt with, before which so many frames had been sent.
    pub(crate) fn note_no_listener(&mut self, sent_before: u64) {
        self.without_listener += 1 + (self.sent - sent_before);
    }

    /// A connection is made by a segment to this listener. Returns whether its legs are to be marked as captured: where all are, no mark
    /// is asked for.
    #[inline]
    pub(crate) fn note_made(&mut self, slot: u32, by: &Segment, listener: u16) -> bool {
        let Some(tap) = &mut self.tap else { return false };
        let is_captured = tap.note_made(slot, (by.key.remote, listener), by.hash);
        if is_captured && !tap.is_shut() {
            self.telling = Telling::All;
        }
        is_captured && !tap.has_all()
    }

    /// The segment of a resting connection's client that is dealt with begins another, or is meant to.
    pub(crate) fn note_anew(&mut self) {
        if let Some(tap) = &mut self.tap {
            tap.note_anew();
        }
    }

    /// An event happens to the connection in `slot` in the phase `before`, when it has called its server in vain for `failure`, and leads to
    /// `after` by these actions.
    #[cold]
    pub(crate) fn note_step(
        &mut self,
        slot: u32,
        (before, event, failure): (Phase, Event, Option<Cause>),
        (after, actions): (Phase, &'static [Action]),
    ) {
        if let Some(tap) = &mut self.tap {
            let stepped = Stepped {
                before,
                event,
                after,
                actions,
                failure,
            };
            tap.note_step(slot, stepped);
        }
    }

    /// Sends a frame that came in and has been rewritten.
    #[inline(always)]
    pub(crate) fn pass(&mut self, port: PortId, frame: P::Buffer, out: &mut impl Output<P::Buffer>) {
        self.show(FrameKind::Passed, port, frame.data());
        out.send(port, frame);
    }

    /// Sends a SYN, or an answer to it, that is passed on from this side and was written anew. What this side has not just sent is of our
    /// own making: a SYN that the next server gets.
    pub(crate) fn pass_anew(&mut self, from: Side, port: PortId, frame: P::Buffer, out: &mut impl Output<P::Buffer>) {
        let has_come = self.tap.as_ref().is_some_and(|tap| tap.has_received(from));
        let kind = if has_come { FrameKind::Passed } else { FrameKind::Own };
        self.show(kind, port, frame.data());
        out.send(port, frame);
    }

    /// Sends a frame of our own making.
    #[inline(always)]
    pub(crate) fn send_own(&mut self, port: PortId, frame: P::Buffer, out: &mut impl Output<P::Buffer>) {
        self.show(FrameKind::Own, port, frame.data());
        out.send(port, frame);
    }

    #[inline(always)]
    fn show(&mut self, kind: FrameKind, port: PortId, frame: &[u8]) {
        self.sent += 1;
        if self.telling == Telling::All
            && let Some(tap) = &mut self.tap
        {
            tap.note_sent(kind, port, frame);
        }
    }

    /// The identification of the next IPv4 header.
    #[inline]
    pub(crate) fn next_ip_id(&mut self) -> u16 {
        self.ip_id = self.ip_id.wrapping_add(1);
        self.ip_id
    }

    /// Writes a frame into `memory`, or a buffer of the pool, and sends it; counts if it cannot.
    pub(crate) fn send(
        &mut self,
        memory: Option<P::Buffer>,
        path: &Path,
        control: &Control,
        payload: &[u8],
        out: &mut impl Output<P::Buffer>,
    ) {
        if let Err(reason) = self.send_as(FrameKind::Own, memory, path, control, (&[], payload), out) {
            self.dropped(reason);
        }
    }

    /// The same for a frame of this kind, whose bytes stand in two places.
    ///
    /// # Errors
    /// [`DropReason::NoBuffer`] if the pool is empty or its buffers are too small.
    #[inline(always)]
    pub(crate) fn send_as(
        &mut self,
        kind: FrameKind,
        memory: Option<P::Buffer>,
        path: &Path,
        control: &Control,
        (front, payload): (&[u8], &[u8]),
        out: &mut impl Output<P::Buffer>,
    ) -> Result<(), DropReason> {
        let mut buffer = memory.or_else(|| self.pool.take()).ok_or(DropReason::NoBuffer)?;
        control
            .segment(path, payload)
            .emit_behind(front, &mut buffer, path.checksums)
            .map_err(|_| DropReason::NoBuffer)?;
        self.show(kind, path.device, buffer.data());
        out.send(path.device, buffer);
        Ok(())
    }
}
