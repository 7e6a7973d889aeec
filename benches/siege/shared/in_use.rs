//! A field that comes to rest, and what is in use then.

use std::time::Duration;

use benchkit::DeviceUnderTest;
use e2d2::buffer::BufferPool;
use e2d2::native::MbufPool;

use super::{Field, STEADY_PORTS};

impl Field {
    /// Waits until honest clients and attackers are gone and all that is left is what stays; then what is in use: bytes of
    /// state, and buffers that are not in their pools. `None` if it does not come to rest in `patience`.
    pub(crate) fn come_to_rest(&mut self, patience: Duration) -> Option<InUse> {
        self.stop_honest();
        self.stop_attack();
        let is_over = |field: &Field| {
            field.honest().is_none_or(|honest| honest.open().0 == 0)
                && field.attacker().is_none_or(|attacker| attacker.open() == 0)
        };
        let clients_gone = self.rest(patience, is_over);
        self.remove_attack();
        if self.honest.take().is_some() {
            self.clients.remove(&self.honest_from);
        }
        let stays = STEADY_PORTS.len() as u64;
        let proxy_rests = self.rest(patience, |field| field.device.counts().open <= stays) && {
            // Ports and addresses rest a little longer than connections.
            self.rest(Duration::from_secs(1), |_| false);
            self.rest(patience, |field| field.usage("time_wait") == 0)
        };
        self.steady_at = Some(self.now + Duration::from_secs(3600));
        self.rest(Duration::from_millis(100), |_| false);
        self.clients.clear();
        self.servers.clear();
        let in_use = InUse::of(self);
        self.steady_at = Some(self.now);
        (clients_gone && proxy_rests).then_some(in_use)
    }
}

/// What is in use of a proxy at rest.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct InUse {
    /// Connections that are open.
    pub(crate) open: u64,
    /// Bytes of connection state.
    pub(crate) state: u64,
    /// Bytes of all structures, empty places included.
    pub(crate) memory: u64,
    /// Buffers that the proxy's pool lacks, and the load's.
    pub(crate) buffers: u64,
}

impl InUse {
    fn of(field: &Field) -> InUse {
        let counts = field.device.counts();
        let out = |pool: &MbufPool| pool.capacity().saturating_sub(pool.available()) as u64;
        InUse {
            open: counts.open,
            state: field.device.state_in_use(),
            // Ports keep what connections have brought into use.
            memory: counts.state_bytes - field.device.state_grown(),
            buffers: out(&field.proxy_pool) + out(&field.load_pool),
        }
    }
}

/// Bytes of this process in memory; 0 where the system does not say.
pub(crate) fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: Option<u64> = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    kib.unwrap_or(0) * 1024
}
