//! Start, orders, failures and the end, with a program that does as the wire says.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use e2d2::buffer::{BufferPool, HeapPool, PacketBuffer};
use e2d2::port::{Port, PortId};
use e2d2::scheduler::{Task, Work};
use e2d2::wire::frame::parse;
use netfcts::progress::{Ended, Ends, Progress};
use netfcts::ring::RecordSender;
use proxyengine::config::Config;
use proxyengine::engine::{CoreStart, Engine, NotReady, Program, RunningEngine, StartError};
use proxyengine::neighbour::{Station, Verdict};
use proxyengine::report::CounterGroups;

use crate::wire::{Wire, WireMachine, WirePort, arp_request, assert_in_order, wire};

/// A core that answers as a station and otherwise does as the wire says.
struct Core {
    port: WirePort,
    station: Station,
    pool: HeapPool,
    records: RecordSender,
    wire: Wire,
    drained: u64,
    finished: u64,
}

/// So many open connections let a worker go on that hangs.
const RELEASED: u64 = 99;

struct StationProgram(Rc<RefCell<Core>>);
struct StationTask(Rc<RefCell<Core>>);

impl StationProgram {
    fn new(start: CoreStart<WireMachine>) -> Result<(Self, StationTask), String> {
        let CoreStart {
            parts,
            topology,
            neighbours,
            leads,
            records,
            log,
            clock,
            config,
            ..
        } = start;
        let port = parts.ports.into_iter().next().ok_or("no port")?;
        let station = Station::new(topology, neighbours, &leads, 1, clock.now()).logging_to(log.shared());
        let wire = wire(&config);
        let core = Core {
            port,
            station,
            pool: parts.pool,
            records,
            wire,
            drained: 0,
            finished: 0,
        };
        let core = Rc::new(RefCell::new(core));
        Ok((Self(Rc::clone(&core)), StationTask(core)))
    }
}

impl Task for StationTask {
    fn run(&mut self, now: e2d2::time::Instant) -> Work {
        let Core {
            port,
            station,
            pool,
            wire,
            ..
        } = &mut *self.0.borrow_mut();
        let mut batch = ArrayVec::new();
        let mut out = ArrayVec::new();
        let received = port.receive(&mut batch);
        for mut buffer in batch {
            if buffer.data() == b"leak" {
                std::mem::forget(buffer);
                continue;
            }
            if buffer.data() == b"hang" {
                while wire.open_connections.load(Ordering::SeqCst) != RELEASED {
                    std::thread::sleep(Duration::from_millis(1));
                }
                continue;
            }
            if buffer.data() == b"close" {
                wire.open_connections.fetch_sub(1, Ordering::SeqCst);
                continue;
            }
            let Ok(kind) = parse(buffer.data()) else { continue };
            if matches!(station.handle(now, PortId(0), kind, &mut buffer), Verdict::Answer(_)) {
                out.push(buffer);
            }
        }
        let sent = station.poll(now, &mut |_, frame| match pool.take_copy(frame) {
            Some(buffer) if !out.is_full() => {
                out.push(buffer);
                true
            }
            _ => false,
        });
        port.transmit(&mut out);
        Work::units(received + sent)
    }

    fn next_deadline(&self) -> Option<e2d2::time::Instant> {
        Some(self.0.borrow().station.next_deadline())
    }
}

impl Program for StationProgram {
    fn begin_drain(&mut self) {
        self.0.borrow_mut().drained += 1;
    }

    fn finish(&mut self) {
        let core = &mut *self.0.borrow_mut();
        core.finished += 1;
        let left = core.wire.open_connections.swap(0, Ordering::SeqCst);
        for port in 0..left {
            core.records.send(|| Ended {
                progress: Progress::NONE,
                ends: Ends {
                    client_port: port as u16,
                    ..Ends::default()
                },
            });
        }
    }

    fn is_finished(&self) -> bool {
        self.0.borrow().finished > 0
    }

    fn open_connections(&self) -> u64 {
        self.0.borrow().wire.open_connections.load(Ordering::SeqCst)
    }

    fn count(&self, groups: &mut CounterGroups) {
        let core = self.0.borrow();
        groups.count_reasons("neighbour", &core.station.counters().events);
        groups.count("orders", [("drain", core.drained), ("finish", core.finished)]);
    }
}

fn config(name: &str) -> Config {
    let engine = format!("name = \"{name}\"\ncores = [0]\n[records]\nenabled = false");
    crate::wire::config(&engine, "")
}

fn start(name: &str) -> (RunningEngine<WireMachine>, Wire) {
    let config = config(name);
    let wire = wire(&config);
    let engine = Engine::start_with(config, StationProgram::new).unwrap_or_else(|error| panic!("{error}"));
    (engine, wire)
}

#[test]
fn a_packet_gets_through_and_the_report_shows_it() {
    let (mut engine, wire) = start("through");
    wire.send(&arp_request());
    let answer = wire.wait_for(|frame| frame[12..14] == [8, 6] && frame[21] == 2);
    assert_eq!(answer[..6], [2, 0, 0, 0, 0, 5]);
    let report = engine.report();
    assert_eq!(
        report
            .counters
            .group("neighbour")
            .and_then(|group| group.count("arp_answered")),
        Some(1)
    );
    assert_eq!((report.next_hops.total, report.next_hops.resolved), (1, 0));
    assert_eq!((report.cores.len(), report.cores[0].core), (1, 0));
    assert!(report.cores[0].busy_rounds > 0 && report.cores[0].idle_rounds > 0);
    assert_eq!(report.buffers.leaked, None);
    assert_eq!(report.ports[0].name, "left");
    assert_in_order(&engine.shutdown());
}

#[test]
fn draining_ends_when_the_last_connection_has() {
    let (mut engine, wire) = start("drains");
    wire.open_connections.store(2, Ordering::SeqCst);
    assert_eq!(engine.open_connections(), 2);
    let closer = wire.clone();
    let start = Instant::now();
    let thread = std::thread::spawn(move || {
        for _ in 0..2 {
            std::thread::sleep(Duration::from_millis(50));
            closer.send(b"close");
        }
    });
    assert_eq!(engine.drain(Duration::from_secs(30), || false), 0);
    assert!(start.elapsed() >= Duration::from_millis(90) && start.elapsed() < Duration::from_secs(20));
    thread.join().expect("closer");
    let outcome = engine.shutdown();
    let orders = outcome.report.counters.group("orders").expect("orders").clone();
    assert_eq!((orders.count("drain"), orders.count("finish")), (Some(1), Some(1)));
    assert_in_order(&outcome);
}

#[test]
fn draining_gives_up_after_its_time_and_what_is_left_is_recorded() {
    let (mut engine, wire) = start("left");
    wire.open_connections.store(3, Ordering::SeqCst);
    let start = Instant::now();
    assert_eq!(engine.drain(Duration::from_millis(200), || false), 3);
    assert!(start.elapsed() >= Duration::from_millis(200));
    let outcome = engine.shutdown();
    assert_eq!((outcome.report.records, outcome.report.records_lost), (3, 0));
    assert_in_order(&outcome);
}

#[test]
fn draining_can_be_cut_short() {
    let (mut engine, wire) = start("short");
    wire.open_connections.store(1, Ordering::SeqCst);
    let start = Instant::now();
    assert_eq!(
        engine.drain(Duration::from_secs(60), || start.elapsed() > Duration::from_millis(50)),
        1
    );
    assert!(start.elapsed() < Duration::from_secs(10));
    assert_in_order(&engine.shutdown());
}

#[test]
fn a_worker_that_panics_is_reported_and_takes_nothing_with_it() {
    let (mut engine, wire) = start("panics");
    assert_eq!(engine.failures(), Vec::<String>::new());
    wire.send(b"panic");
    let deadline = Instant::now() + Duration::from_secs(10);
    while engine.failures().is_empty() {
        assert!(Instant::now() < deadline, "nobody noticed");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(
        engine.failures()[0].starts_with("core 0: it panicked: "),
        "{:?}",
        engine.failures()
    );
    // Each of them would take a second otherwise; this thread may stand still during one, but not during all.
    let quickest = (0..5).map(|_| {
        let asked = Instant::now();
        engine.report();
        asked.elapsed()
    });
    let quickest = quickest.min().expect("five");
    assert!(
        quickest < Duration::from_millis(500),
        "a report does not wait for the dead: {quickest:?}"
    );
    let outcome = engine.shutdown();
    assert_eq!(outcome.failures.len(), 1);
    assert_eq!(outcome.report.buffers.leaked, Some(0));
}

#[test]
fn a_worker_that_hangs_can_still_be_looked_at_and_is_told_of() {
    let (mut engine, wire) = start("hangs");
    let watch = engine.watch();
    let wait_for = |what: &str, is_so: &dyn Fn() -> bool| {
        let deadline = Instant::now() + Duration::from_secs(30);
        while !is_so() {
            assert!(Instant::now() < deadline, "never {what}: {:?}", watch.is_ready());
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    wait_for("ready", &|| watch.is_ready().is_ok());
    wire.open_connections.store(7, Ordering::SeqCst);
    wait_for("seen", &|| watch.report().connections_open == 7);
    wire.send(b"hang");
    wait_for("hanging", &|| matches!(watch.is_ready(), Err(NotReady::Silent { .. })));
    assert!(watch.is_alive().is_err());
    assert_eq!(watch.report().connections_open, 7, "its last numbers");
    wire.open_connections.store(RELEASED, Ordering::SeqCst);
    wait_for("back", &|| {
        watch.is_ready().is_ok() && watch.report().connections_open == RELEASED
    });
    wire.open_connections.store(0, Ordering::SeqCst);
    assert_eq!(engine.drain(Duration::from_secs(30), || false), 0);
    assert_eq!(watch.is_ready(), Err(NotReady::Draining));
    assert_in_order(&engine.shutdown());
}

#[test]
fn a_lost_buffer_is_counted() {
    let (engine, wire) = start("leaks");
    wire.send(b"leak");
    wire.send(&arp_request());
    wire.wait_for(|frame| frame[12..14] == [8, 6] && frame[21] == 2);
    let outcome = engine.shutdown();
    assert_eq!(outcome.report.buffers.leaked, Some(1));
    assert_eq!(outcome.failures, Vec::<String>::new());
}

#[test]
fn a_program_that_cannot_be_made_is_a_sentence() {
    let make = |_: CoreStart<WireMachine>| -> Result<(StationProgram, StationTask), String> {
        Err("no secret numbers".to_owned())
    };
    match Engine::start_with::<WireMachine, _, _, _>(config("unmade"), make) {
        Err(error @ StartError::Worker { .. }) => assert_eq!(error.to_string(), "core 0: no secret numbers"),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("started"),
    }
}

#[test]
fn a_missing_device_is_a_sentence() {
    match Engine::start_with::<WireMachine, _, _, _>(config("no-device"), StationProgram::new) {
        Err(error) => assert!(error.to_string().contains("eth9 does not exist"), "{error}"),
        Ok(_) => panic!("started"),
    }
}

#[test]
fn a_network_with_too_many_neighbours_is_refused_before_a_port_is_opened() {
    let one_too_many = 0..=proxyengine::neighbour::MAX_NEXT_HOPS as u32;
    let server = |index: u32| {
        let address = std::net::Ipv4Addr::from(0x0a01_0000 + index);
        format!(r#"{{ name = "s{index}", address = "{address}:80" }}"#)
    };
    let servers: Vec<String> = one_too_many.map(server).collect();
    let engine = "name = \"wrong-network\"\ncores = [0]";
    let pool = "local_ports = \"1024-1123\"";
    let config = crate::wire::config_of("10.0.0.1/8", engine, pool, &servers.join(", "));
    let wire = wire(&config);
    match Engine::start_with::<WireMachine, _, _, _>(config, StationProgram::new) {
        Err(error) => assert!(error.to_string().contains("put servers behind a gateway"), "{error}"),
        Ok(_) => panic!("started"),
    }
    assert_eq!(wire.opened.load(Ordering::SeqCst), 0);
}

#[test]
fn an_engine_that_is_dropped_ends_its_threads() {
    let (engine, wire) = start("dropped");
    wire.send(&arp_request());
    wire.wait_for(|frame| frame[12..14] == [8, 6] && frame[21] == 2);
    drop(engine);
    // The thread is joined: nobody receives any more.
    wire.send(&arp_request());
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(wire.to_engine.lock().expect("lock").len(), 1);
}
