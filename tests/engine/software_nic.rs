//! A NIC in software under the engine: the first worker moves the packets, and stays for the other's last ones.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use arrayvec::ArrayVec;
use e2d2::BURST;
use e2d2::buffer::{BufferPool, HeapBuffer, HeapPool};
use e2d2::flow::NicModel;
use e2d2::port::Port;
use e2d2::ports::{NicConfig, NicParts, NicQueue, NicSide, SoftwareNic};
use e2d2::scheduler::{Task, Work};
use e2d2::time::Instant;
use e2d2::wire::MacAddr;
use proxyengine::config::Config;
use proxyengine::engine::machine::{CoreParts, DeviceSide, Machine, MachineError, Opened, WatchedPool};
use proxyengine::engine::{CoreStart, Engine, Program};
use proxyengine::report::{CounterGroups, PortReport};
use proxyengine::selectors::RuleSelector;

use crate::wire::{OUR_MAC, Wire, WirePort, arp_request, wire};

/// One wire behind as many queues as there are cores.
struct SoftMachine;

struct SoftPort {
    queue: NicQueue<HeapBuffer>,
    side: Option<Box<WireSide>>,
}

struct WireSide(NicSide<WirePort>);

impl Task for WireSide {
    fn run(&mut self, now: Instant) -> Work {
        self.0.run(now)
    }

    fn next_deadline(&self) -> Option<Instant> {
        None
    }
}

impl DeviceSide for WireSide {
    fn is_needed(&self) -> bool {
        self.0.is_needed_beside(Some(0))
    }
}

impl Port for SoftPort {
    type Buffer = HeapBuffer;

    fn id(&self) -> e2d2::port::PortId {
        self.queue.id()
    }

    fn mac(&self) -> MacAddr {
        self.queue.mac()
    }

    fn mtu(&self) -> u16 {
        self.queue.mtu()
    }

    fn capabilities(&self) -> e2d2::port::Capabilities {
        self.queue.capabilities()
    }

    fn receive(&mut self, into: &mut ArrayVec<HeapBuffer, BURST>) -> usize {
        self.queue.receive(into)
    }

    fn transmit(&mut self, from: &mut ArrayVec<HeapBuffer, BURST>) -> usize {
        self.queue.transmit(from)
    }
}

impl Machine for SoftMachine {
    type Port = SoftPort;
    type Pool = HeapPool;
    type Thread = ();
    type Handle = ();

    fn open(config: &Config) -> Result<Opened<Self>, MachineError> {
        let pool = HeapPool::new(64, 2048);
        let cores = &config.engine().cores;
        let nic = NicConfig::new(NicModel::Rss, cores.len() as u16);
        let NicParts { side, queues, .. } = SoftwareNic::open(WirePort::new(wire(config), pool.clone()), &nic)?;
        let mut side = Some(Box::new(WireSide(side)));
        let part = |(core, queue): (&_, _)| CoreParts {
            core: *core,
            ports: vec![SoftPort {
                queue,
                side: side.take(),
            }],
            pool: pool.clone(),
        };
        let cores = cores.iter().zip(queues).map(part).collect();
        Ok(Opened {
            machine: Self,
            cores,
            pools: vec![WatchedPool::new("all".to_owned(), pool)],
        })
    }

    fn enter_thread((): &()) -> Result<(), MachineError> {
        Ok(())
    }

    fn handle(&self) {}

    fn macs(&self) -> Vec<MacAddr> {
        vec![OUR_MAC]
    }

    fn take_side(port: &mut SoftPort) -> Option<Box<dyn DeviceSide>> {
        port.side.take().map(|side| side as Box<dyn DeviceSide>)
    }

    fn port_reports(&self) -> Vec<PortReport> {
        Vec::new()
    }
}

fn config(name: &str, cores: &str) -> Config {
    let engine = format!("name = \"{name}\"\ncores = {cores}\nsteering = \"software\"");
    crate::wire::config(&engine, "")
}

#[test]
fn a_core_with_its_graph_answers_through_a_software_nic() {
    let config = config("soft-arp", "[0]");
    let wire = wire(&config);
    let rules = RuleSelector::new(&config);
    let engine = Engine::start_on::<SoftMachine, _>(config, rules);
    let mut engine = engine.unwrap_or_else(|error| panic!("{error}"));
    wire.send(&arp_request());
    wire.wait_for(|frame| frame[12..14] == [8, 6] && frame[20..22] == [0, 2]);
    assert!(engine.failures().is_empty());
    let outcome = engine.shutdown();
    assert_eq!((outcome.failures, outcome.report.buffers.leaked), (Vec::new(), Some(0)));
}

/// The second worker: sends its last packets when it is gone already, as its peer may end first.
struct Late {
    port: SoftPort,
    pool: HeapPool,
    wire: Wire,
}

const LATE: usize = 40;

impl Drop for Late {
    fn drop(&mut self) {
        // The other has ended its own connections long since.
        std::thread::sleep(Duration::from_millis(100));
        let mut burst = ArrayVec::new();
        for number in 0..LATE as u8 {
            burst.push(self.pool.take_copy(&[number; 60]).expect("a buffer"));
            if burst.is_full() || usize::from(number) + 1 == LATE {
                self.port.transmit(&mut burst);
            }
        }
        self.wire.open_connections.store(1, Ordering::SeqCst);
    }
}

enum Worker {
    Mover(Rc<RefCell<Box<dyn DeviceSide>>>),
    Late(#[allow(dead_code, reason = "dropped at the end")] Box<Late>),
}

/// What a worker schedules: the device's side, or nothing.
struct Mover(Option<Rc<RefCell<Box<dyn DeviceSide>>>>);

impl Task for Mover {
    fn run(&mut self, now: Instant) -> Work {
        self.0.as_ref().map_or(Work::NONE, |side| side.borrow_mut().run(now))
    }

    fn next_deadline(&self) -> Option<Instant> {
        None
    }
}

impl Program for Worker {
    fn begin_drain(&mut self) {}

    fn finish(&mut self) {}

    fn is_finished(&self) -> bool {
        true
    }

    fn is_needed(&self) -> bool {
        match self {
            Self::Mover(side) => side.borrow().is_needed(),
            Self::Late(_) => false,
        }
    }

    fn open_connections(&self) -> u64 {
        0
    }

    fn count(&self, groups: &mut CounterGroups) {
        groups.set_to_zero();
    }
}

#[test]
fn the_first_worker_stays_until_the_other_is_gone_and_all_is_sent() {
    let config = config("soft-late", "[0, 1]");
    let wire = wire(&config);
    let make = move |start: CoreStart<SoftMachine>| {
        let mut port = start.parts.ports.into_iter().next().ok_or("no port")?;
        match SoftMachine::take_side(&mut port) {
            Some(side) => {
                let side = Rc::new(RefCell::new(side));
                Ok((Worker::Mover(Rc::clone(&side)), Mover(Some(side))))
            }
            None => {
                let late = Late {
                    port,
                    pool: start.parts.pool,
                    wire: crate::wire::wire(&start.config),
                };
                Ok((Worker::Late(Box::new(late)), Mover(None)))
            }
        }
    };
    let engine = Engine::start_with::<SoftMachine, _, _, _>(config, make).expect("it starts");
    let outcome = engine.shutdown();
    assert_eq!((outcome.failures, outcome.report.buffers.leaked), (Vec::new(), Some(0)));
    assert_eq!(wire.open_connections.load(Ordering::SeqCst), 1, "the other was late");
    let sent: Vec<u8> = (0..LATE).map(|_| wire.wait_for(|_| true)[0]).collect();
    assert!(sent.iter().copied().eq(0..LATE as u8), "in order");
}
