//! What the engine runs on: devices and packet memory. DPDK is one (`engine/native.rs`); tests bring their own.

use e2d2::buffer::BufferPool;
use e2d2::flow::{FlowError, FlowRule};
use e2d2::operators::Task;
use e2d2::port::Port;
use e2d2::rss::Rss;
use e2d2::wire::MacAddr;

use crate::config::{Config, CoreId};
use crate::report::{PoolReport, PortReport};

/// The machine's error type: sentences that say what to do.
pub type MachineError = Box<dyn std::error::Error + Send + Sync>;

/// Devices and packet memory, open.
///
/// Values are made by [`Machine::open`] and dropped when all workers have ended; dropping closes the devices, and gives
/// back the buffers that they hold.
pub trait Machine: Sized {
    /// One queue pair of a device. Its packets can change cores.
    type Port: Port<Buffer: Send> + Send + 'static;
    /// Where a core's buffers come from. Clones share the buffers: the engine counts what comes back.
    type Pool: BufferPool<Buffer = <Self::Port as Port>::Buffer> + Clone + Send + 'static;
    /// What a worker thread holds as long as it uses ports and buffers.
    type Thread;

    /// Opens every port of the configuration with one queue pair for each core, and makes one pool for each core.
    ///
    /// # Errors
    /// A sentence that says what is missing and what to do.
    fn open(config: &Config) -> Result<Opened<Self>, MachineError>;

    /// Prepares the calling thread for the use of ports and buffers.
    ///
    /// # Errors
    /// A sentence.
    fn enter_thread(handle: &Self::Handle) -> Result<Self::Thread, MachineError>;

    /// What a thread needs to prepare itself.
    type Handle: Clone + Send + 'static;

    /// The handle for [`Machine::enter_thread`].
    fn handle(&self) -> Self::Handle;

    /// The MAC addresses of the ports, in the order of the configuration.
    fn macs(&self) -> Vec<MacAddr>;

    /// How a port (its index in the configuration) spreads TCP over its queues; nothing if it does not, or does not say.
    fn rss(&self, port: usize) -> Option<Rss> {
        let _spreads_nothing = port;
        None
    }

    /// Has a port receive TCP packets at the queues that the rules say, in place of the rules that it has: all of them, or
    /// none of either. They are removed when the machine is dropped.
    ///
    /// # Errors
    /// A sentence that says why the port cannot; it then has no rules.
    fn install(&mut self, port: usize, rules: &[FlowRule]) -> Result<(), FlowError> {
        let _not_installed = rules;
        Err(FlowError::no_rules(&format!("port {port}")))
    }

    /// Packets that wait in a queue pair to be received; none where that is not known.
    fn waiting(port: &Self::Port) -> Option<u64> {
        let _not_known = port;
        None
    }

    /// Packets that a queue pair has dropped by itself, by reason.
    fn queue_drops(port: &Self::Port) -> impl Iterator<Item = (&'static str, u64)> {
        let _none_counted = port;
        std::iter::empty()
    }

    /// The task behind a queue pair that moves its device's packets, for the core that has it to run beside its graph; given
    /// once. Only devices whose queues are made in software have one, and then at one of their queue pairs.
    fn take_side(port: &mut Self::Port) -> Option<Box<dyn DeviceSide>> {
        let _moves_its_own = port;
        None
    }

    /// Whether the link of a port is up, now; none where the device does not say.
    fn is_link_up(&self, port: usize) -> Option<bool> {
        let _not_said = port;
        None
    }

    /// Whether the device of a port is to be taken away, or has been.
    fn is_removed(&self, port: usize) -> bool {
        let _stays = port;
        false
    }

    /// What the devices have counted, in the order of the configuration.
    fn port_reports(&self) -> Vec<PortReport>;
}

/// The device's side of queues that are made in software.
pub trait DeviceSide: Task {
    /// Whether other threads still have queues of the device, or packets wait to be sent: it must go on then.
    fn is_needed(&self) -> bool;
}

/// What [`Machine::open`] gives.
pub struct Opened<M: Machine> {
    /// What stays with the engine.
    pub machine: M,
    /// What goes to each core, in the order of the configuration.
    pub cores: Vec<CoreParts<M>>,
    /// Every pool, with what it held before a port took anything.
    pub pools: Vec<WatchedPool<M::Pool>>,
}

/// What a core owns.
pub struct CoreParts<M: Machine> {
    /// The core.
    pub core: CoreId,
    /// Its queue pair of each port, in the order of the configuration.
    pub ports: Vec<M::Port>,
    /// Its buffers.
    pub pool: M::Pool,
}

/// A pool whose buffers are counted at the end.
pub struct WatchedPool<P> {
    name: String,
    pool: P,
    capacity: u64,
    available_before: u64,
}

impl<P: BufferPool> WatchedPool<P> {
    /// Takes the count; to be called before the pool is used.
    pub fn new(name: String, pool: P) -> Self {
        let (capacity, available_before) = (pool.capacity() as u64, pool.available() as u64);
        Self {
            name,
            pool,
            capacity,
            available_before,
        }
    }

    /// The counts then and now.
    pub fn report(&self) -> PoolReport {
        PoolReport {
            name: self.name.clone(),
            capacity: self.capacity,
            // Some drivers never give back what they took at the start; their pool says so by a smaller capacity.
            kept_by_driver: self.capacity.saturating_sub(self.pool.capacity() as u64),
            available_before: self.available_before,
            available_after: self.pool.available() as u64,
        }
    }
}
