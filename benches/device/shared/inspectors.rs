//! Inspectors that cost what inspecting costs, and nothing of their own.

use proxyengine::callbacks::{ConnectionInfo, InspectPayload, Payload, Verdict};
use proxyengine::config::CoreId;

use super::Inspect;

/// Looks at every byte's place, or writes each again.
pub(super) struct Inspector(Inspect);

impl Inspector {
    /// Makes one for each core.
    pub(super) fn factory(inspect: Inspect) -> impl Fn(CoreId) -> Inspector {
        move |_core| Inspector(inspect)
    }
}

impl InspectPayload for Inspector {
    type Context = ();

    fn open(&mut self, _connection: &ConnectionInfo) -> Option<()> {
        Some(())
    }

    fn inspect(&mut self, _context: &mut (), payload: &mut Payload<'_>) -> Verdict {
        match self.0 {
            Inspect::Pass => {
                std::hint::black_box(payload.bytes());
                Verdict::Pass
            }
            Inspect::Rewrite => {
                let (bytes, output) = payload.replace();
                match output.write(bytes) {
                    Ok(()) => Verdict::Replace,
                    Err(_no_room) => Verdict::Reject,
                }
            }
        }
    }
}
