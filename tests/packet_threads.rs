//! What packet threads do for the log and for reports: nothing that waits, and nothing that allocates. Standard error is a full
//! pipe here, which nobody reads.

#![allow(dead_code, unreachable_pub)] // modules shared with another test program

#[path = "../crates/e2d2/tests/counting/mod.rs"]
mod counting;
#[path = "engine/wire.rs"]
mod wire;

use std::io::{PipeReader, PipeWriter, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use proxyengine::engine::{Engine, Program, RunningEngine};
use proxyengine::report::{CoreServer, CounterGroups};
use proxyengine::selectors::RuleSelector;
use wire::{Wire, WireMachine, arp_request, assert_in_order, wire};

/// A log that is written to a pipe.
struct PipeLog {
    pipe: Mutex<PipeWriter>,
    begun: Arc<AtomicUsize>,
    ended: Arc<AtomicUsize>,
}

impl log::Log for PipeLog {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        self.begun.fetch_add(1, Ordering::SeqCst);
        // More than any pipe holds.
        let line = format!("{}{}\n", record.args(), " ".repeat(1 << 20));
        let _ = self.pipe.lock().expect("lock").write_all(line.as_bytes());
        self.ended.fetch_add(1, Ordering::SeqCst);
    }

    fn flush(&self) {}
}

/// The engine's own program, and what its thread has allocated after each round.
struct Watched<P> {
    program: P,
    allocations: Arc<AtomicUsize>,
}

impl<P: Program> Program for Watched<P> {
    fn begin_drain(&mut self) {
        self.program.begin_drain();
    }

    fn finish(&mut self) {
        self.program.finish();
    }

    fn is_finished(&self) -> bool {
        self.program.is_finished()
    }

    fn open_connections(&self) -> u64 {
        self.program.open_connections()
    }

    fn server_count(&self) -> usize {
        self.program.server_count()
    }

    fn servers(&self, first: usize, known: &mut [CoreServer]) {
        self.program.servers(first, known);
    }

    fn tell_news(&mut self, now: e2d2::time::Instant) {
        self.program.tell_news(now);
        self.allocations.store(counting::allocations(), Ordering::SeqCst);
    }

    fn count(&self, groups: &mut CounterGroups) {
        self.program.count(groups);
    }
}

/// 10.0.0.9, the server, says by ARP which MAC address it has.
fn answer_of_server(last_byte: u8) -> Vec<u8> {
    let mac = [2, 0, 0, 0, 0, last_byte];
    let head = [
        &[2, 0, 0, 0, 0, 1][..],
        &mac,
        &[8, 6, 0, 1, 8, 0, 6, 4, 0, 2],
        &mac,
        &[10, 0, 0, 9],
    ];
    [&head.concat()[..], &[2, 0, 0, 0, 0, 1, 10, 0, 0, 1]].concat()
}

/// An engine whose log nobody reads; the reading end of the pipe has to live as long.
fn start(allocations: &Arc<AtomicUsize>) -> (RunningEngine<WireMachine>, Wire) {
    let engine = "name = \"unread-log\"\ncores = [0]\n[records]\nenabled = false\n[syn_ack]\nprobe = false";
    let config = wire::config(engine, "");
    let wire = wire(&config);
    let rules = RuleSelector::new(&config);
    let allocations = Arc::clone(allocations);
    let make = move |start| {
        let (program, task) = Engine::core_program::<WireMachine, _>(start, &rules)?;
        let allocations = Arc::clone(&allocations);
        Ok((Watched { program, allocations }, task))
    };
    let engine = Engine::start_with(config, make).unwrap_or_else(|error| panic!("{error}"));
    (engine, wire)
}

fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_log_that_nobody_reads_stops_no_packet_and_reports_allocate_nothing_on_the_core() {
    let (_unread, pipe): (PipeReader, PipeWriter) = std::io::pipe().expect("a pipe");
    let (begun, ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let allocations = Arc::new(AtomicUsize::new(0));
    let (mut engine, wire) = start(&allocations);
    let logger = PipeLog {
        pipe: Mutex::new(pipe),
        begun: Arc::clone(&begun),
        ended: Arc::clone(&ended),
    };
    log::set_boxed_logger(Box::new(logger)).expect("the only logger");
    log::set_max_level(log::LevelFilter::Info);

    // The first line is begun, and will never be at its end; the others come after it.
    for last_byte in [9, 10, 11, 12] {
        wire.send(&answer_of_server(last_byte));
    }
    wait_for("the log is written", || begun.load(Ordering::SeqCst) == 1);
    for _ in 0..20 {
        wire.send(&arp_request());
        wire.wait_for(|frame| frame[12..14] == [8, 6] && frame[21] == 2);
    }
    let report = engine.report();
    assert_eq!((report.next_hops.resolved, report.log_lost), (1, 0));
    assert_eq!((report.servers.len(), report.servers[0].name.as_str()), (1, "one"));
    let changed = report
        .counters
        .group("neighbour")
        .and_then(|group| group.count("mac_changed"));
    assert_eq!(changed, Some(3));

    // The wire allocates for each frame of the engine's own, now and then; some time is free of them.
    let is_free = || {
        let before = allocations.load(Ordering::SeqCst);
        let busy: Vec<u64> = (0..20)
            .map(|_| {
                engine.open_connections();
                engine.report().cores[0].busy_rounds + engine.report().cores[0].idle_rounds
            })
            .collect();
        assert!(
            busy.windows(2).all(|pair| pair[0] < pair[1]),
            "each report is a new one: {busy:?}"
        );
        allocations.load(Ordering::SeqCst) == before
    };
    let mut is_free = is_free;
    assert!((0..100).any(|_| is_free()), "reports allocate on the core's thread");

    let start = Instant::now();
    assert_in_order(&engine.shutdown());
    assert!(
        start.elapsed() < Duration::from_secs(8),
        "the end does not wait for the log: {:?}",
        start.elapsed()
    );
    assert_eq!((begun.load(Ordering::SeqCst), ended.load(Ordering::SeqCst)), (1, 0));
}
