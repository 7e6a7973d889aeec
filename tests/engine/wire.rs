//! A machine of heap memory and queues between threads, and the far end of its only port.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use e2d2::BURST;
use e2d2::buffer::{BufferPool, HeapBuffer, HeapPool, PacketBuffer};
use e2d2::port::{Capabilities, Port, PortId};
use e2d2::wire::{MacAddr, checksum, partial};
use proxyengine::config::Config;
use proxyengine::engine::Outcome;
use proxyengine::engine::machine::{CoreParts, Machine, MachineError, Opened, WatchedPool};
use proxyengine::report::PortReport;

pub(crate) const OUR_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);

type Frames = Arc<Mutex<VecDeque<Vec<u8>>>>;

/// The far end of an engine's only port, and the counts that its program shows.
#[derive(Clone, Default)]
pub(crate) struct Wire {
    pub(crate) to_engine: Frames,
    from_engine: Frames,
    pub(crate) open_connections: Arc<AtomicU64>,
    pub(crate) opened: Arc<AtomicU64>,
    /// The port fills in checksums, and has done so for as many frames.
    pub(crate) offloads: Arc<AtomicBool>,
    pub(crate) offloaded: Arc<AtomicU64>,
}

/// By engine name: [`Machine::open`] gets nothing but the configuration.
static WIRES: LazyLock<Mutex<HashMap<String, Wire>>> = LazyLock::new(Mutex::default);

pub(crate) fn wire(config: &Config) -> Wire {
    WIRES
        .lock()
        .expect("lock")
        .entry(config.engine().name.clone())
        .or_default()
        .clone()
}

impl Wire {
    pub(crate) fn send(&self, frame: &[u8]) {
        self.to_engine.lock().expect("lock").push_back(frame.to_vec());
    }

    pub(crate) fn wait_for(&self, wanted: impl Fn(&[u8]) -> bool) -> Vec<u8> {
        let deadline = Instant::now() + Duration::from_secs(10);
        while Instant::now() < deadline {
            while let Some(frame) = self.from_engine.lock().expect("lock").pop_front() {
                if wanted(&frame) {
                    return frame;
                }
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("no answer");
    }
}

pub(crate) struct WirePort {
    wire: Wire,
    pool: HeapPool,
}

impl WirePort {
    pub(crate) fn new(wire: Wire, pool: HeapPool) -> Self {
        Self { wire, pool }
    }
}

impl Port for WirePort {
    type Buffer = HeapBuffer;

    fn id(&self) -> PortId {
        PortId(0)
    }

    fn mac(&self) -> MacAddr {
        OUR_MAC
    }

    fn mtu(&self) -> u16 {
        1500
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            tx_checksum: self.wire.offloads.load(Ordering::SeqCst),
            ..Capabilities::default()
        }
    }

    fn receive(&mut self, into: &mut ArrayVec<HeapBuffer, BURST>) -> usize {
        let mut frames = self.wire.to_engine.lock().expect("lock");
        let count = frames.len().min(into.remaining_capacity());
        for frame in frames.drain(..count) {
            assert_ne!(frame, b"panic", "a frame that nobody can handle");
            into.push(self.pool.take_copy(&frame).expect("a buffer"));
        }
        count
    }

    fn transmit(&mut self, from: &mut ArrayVec<HeapBuffer, BURST>) -> usize {
        let mut frames = self.wire.from_engine.lock().expect("lock");
        let count = from.len();
        frames.extend(from.drain(..).map(|mut buffer| {
            if buffer.take_tx_offload().is_some() {
                self.wire.offloaded.fetch_add(1, Ordering::SeqCst);
                fill_in_checksums(buffer.data_mut());
            }
            buffer.data().to_vec()
        }));
        count
    }
}

/// What a device does that was asked for both checksums of a TCP segment of IPv4 without options.
fn fill_in_checksums(frame: &mut [u8]) {
    assert_eq!(frame[24..26], [0, 0], "it is the device's to fill in");
    let checksum = checksum::internet(&frame[14..34]);
    frame[24..26].copy_from_slice(&checksum.to_be_bytes());
    assert!(partial::complete(frame), "the pseudo-header's sum was there");
}

pub(crate) struct WireMachine {
    wire: Wire,
}

impl Machine for WireMachine {
    type Port = WirePort;
    type Pool = HeapPool;
    type Thread = ();
    type Handle = ();

    fn open(config: &Config) -> Result<Opened<Self>, MachineError> {
        let wire = wire(config);
        wire.opened.fetch_add(1, Ordering::SeqCst);
        let offloads = config.engine().name.contains("offload");
        wire.offloads.store(offloads, Ordering::SeqCst);
        if config.engine().name.contains("no-device") {
            return Err("eth9 does not exist: `ip link` shows what does".into());
        }
        let pool = HeapPool::new(64, 2048);
        let core = CoreParts {
            core: config.engine().cores[0],
            ports: vec![WirePort {
                wire: wire.clone(),
                pool: pool.clone(),
            }],
            pool: pool.clone(),
        };
        let pools = vec![WatchedPool::new("core".to_owned(), pool)];
        Ok(Opened {
            machine: Self { wire },
            cores: vec![core],
            pools,
        })
    }

    fn enter_thread((): &()) -> Result<(), MachineError> {
        Ok(())
    }

    fn handle(&self) {}

    fn macs(&self) -> Vec<MacAddr> {
        vec![OUR_MAC]
    }

    fn port_reports(&self) -> Vec<PortReport> {
        let rx_packets = self.wire.open_connections.load(Ordering::SeqCst);
        vec![PortReport {
            name: "left".to_owned(),
            rx_packets,
            ..PortReport::default()
        }]
    }
}

/// One port, one listener and one server, with these lines for the engine and for the server's pool.
pub(crate) fn config(engine: &str, pool: &str) -> Config {
    config_of(
        "10.0.0.1/24",
        engine,
        pool,
        r#"{ name = "one", address = "10.0.0.9:80" }"#,
    )
}

/// The same with this address of the port and these servers; the listener is at 10.0.0.1 all the same.
pub(crate) fn config_of(address: &str, engine: &str, pool: &str, servers: &str) -> Config {
    let text = format!(
        r#"
        [engine]
        {engine}
        [[port]]
        name = "left"
        device = "net_ring0"
        addresses = ["{address}"]
        [[listener]]
        name = "web"
        addresses = ["10.0.0.1:80"]
        default = "pool"
        [[pool]]
        name = "pool"
        {pool}
        servers = [{servers}]
        "#
    );
    Config::parse(&text, "test.toml").unwrap_or_else(|error| panic!("{error}"))
}

/// Station 5 asks for 10.0.0.1.
pub(crate) fn arp_request() -> Vec<u8> {
    let head = [
        0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 5, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1,
    ];
    [
        &head[..],
        &[2, 0, 0, 0, 0, 5, 10, 0, 0, 5],
        &[0, 0, 0, 0, 0, 0, 10, 0, 0, 1],
    ]
    .concat()
}

pub(crate) fn assert_in_order(outcome: &Outcome) {
    assert_eq!(outcome.failures, Vec::<String>::new());
    assert_eq!(outcome.report.buffers.leaked, Some(0), "{}", outcome.report.buffers);
    assert_eq!(outcome.report.buffers.available_after, 64);
}
