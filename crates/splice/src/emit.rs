//! Frames of our own making go out here, and what is dropped is counted.

use crate::base::drop_reason::DropReason;
use crate::base::output::Output;
use crate::base::path::Path;
use crate::session::numbers::Control;
use e2d2::buffer::BufferPool;
use e2d2::counters::Counters;

/// The buffers of a core's own frames, and the reasons for what it drops.
pub(crate) struct Emitter<P> {
    pub(crate) pool: P,
    pub(crate) drops: Counters<DropReason>,
    ip_id: u16,
}

impl<P: BufferPool> Emitter<P> {
    pub(crate) fn new(pool: P) -> Self {
        Emitter {
            pool,
            drops: Counters::default(),
            ip_id: 0,
        }
    }

    /// Counts one that is dropped.
    #[inline]
    pub(crate) fn dropped(&mut self, reason: DropReason) {
        self.drops.add(reason, 1);
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
        if let Err(reason) = self.send_joined(memory, path, control, (&[], payload), out) {
            self.dropped(reason);
        }
    }

    /// Sends a frame whose bytes stand in two places.
    ///
    /// # Errors
    /// [`DropReason::NoBuffer`] if the pool is empty or its buffers are too small.
    #[inline(always)]
    pub(crate) fn send_joined(
        &mut self,
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
        out.send(path.device, buffer);
        Ok(())
    }
}
