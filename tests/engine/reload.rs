//! Another version of the configuration while an engine runs.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use e2d2::wire::tcp::TcpFlags;
use proxyengine::config::ListChange;
use proxyengine::engine::ReloadError;
use testkit::{Segment, Station};

use crate::proxy::{Bench, Ends};
use crate::wire::assert_in_order;

pub(crate) const ONE: &str = "{ name = \"one\", address = \"10.0.0.9:8080\" }";
pub(crate) const TWO: &str = "{ name = \"two\", address = \"10.0.0.10:8080\", mac = \"02:00:00:00:00:0a\" }";

pub(crate) fn servers() -> [Station; 2] {
    [Station::new(9, "10.0.0.9:8080"), Station::new(10, "10.0.0.10:8080")]
}

/// Files with these servers beside the bench's own: each with its path.
pub(crate) fn versions<const N: usize>(bench: &Bench, servers: [String; N]) -> [PathBuf; N] {
    let own = fs::read_to_string(bench.directory.path().join("engine.toml")).expect("the bench's file");
    assert!(own.contains(ONE), "{own}");
    let mut number = 0;
    servers.map(|servers| {
        number += 1;
        let path = bench.directory.path().join(format!("{number}.toml"));
        fs::write(&path, own.replace(ONE, &servers)).expect("a file");
        path
    })
}

/// A connection that was opened goes on: bytes to the server, and back.
pub(crate) fn talk(ends: &Ends, client: &mut Segment, server: &mut Segment) {
    say(ends, client, server, b"more");
    say(ends, server, client, b"answer");
}

fn say(ends: &Ends, from: &mut Segment, to: &mut Segment, words: &[u8]) {
    let said = Segment {
        payload: words.to_vec(),
        flags: TcpFlags::ACK | TcpFlags::PSH,
        ..from.clone()
    };
    ends.send(&said.frame());
    while ends.segment_to(to.from).payload != words {}
    from.seq = from.seq.wrapping_add(words.len() as u32);
    to.ack = to.ack.wrapping_add(words.len() as u32);
}

fn reset(ends: &Ends, client: &Segment) {
    let reset = Segment {
        flags: TcpFlags::RST,
        payload: Vec::new(),
        ..client.clone()
    };
    ends.send(&reset.frame());
}

#[test]
fn reloads_under_load_fail_no_connection_and_reset_none() {
    let mut bench = Bench::start("proxy-reloaded", None);
    let versions = versions(&bench, [TWO.to_owned(), ONE.to_owned(), format!("{ONE}, {TWO}")]);
    let (mut client, mut server) = bench.open(Station::new(5, "10.0.0.5:50000"));
    let (stop, opened) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let (ends, is_over, count) = (bench.ends.clone(), Arc::clone(&stop), Arc::clone(&opened));
    // Every one of them is opened, or the load panics: nothing is lost on this wire.
    let load = thread::spawn(move || {
        let mut port = 20_000;
        while !is_over.load(Ordering::Relaxed) {
            port += 1;
            let from = Station::new(6, "10.0.0.6:1").with_port(port);
            let (mut near, mut far) = ends.open_to(from, &servers());
            talk(&ends, &mut near, &mut far);
            reset(&ends, &near);
            talk(&ends, &mut client, &mut server);
            count.fetch_add(1, Ordering::Relaxed);
        }
        (client, server)
    });
    let mut slowest = Duration::ZERO;
    for turn in 0..60 {
        let began = Instant::now();
        bench
            .engine
            .reload(&versions[turn % 3])
            .unwrap_or_else(|error| panic!("{error}"));
        slowest = slowest.max(began.elapsed());
        bench.engine.forget_past();
        thread::sleep(Duration::from_millis(10));
    }
    stop.store(true, Ordering::Relaxed);
    let (mut client, mut server) = load.join().expect("the load");
    let opened = opened.load(Ordering::Relaxed);
    assert!(opened >= 60, "{opened} connections in 60 reloads");
    assert!(slowest < Duration::from_secs(1), "{slowest:?}");
    // The server of the first connection is gone, then comes back; it never noticed.
    bench
        .engine
        .reload(&versions[0])
        .unwrap_or_else(|error| panic!("{error}"));
    talk(&bench.ends, &mut client, &mut server);
    assert!(bench.engine.config().has_past());
    bench.engine.forget_past();
    assert!(bench.engine.config().has_past(), "a connection names it");
    reset(&bench.ends, &client);
    let deadline = Instant::now() + Duration::from_secs(60);
    while bench.engine.config().has_past() {
        assert!(Instant::now() < deadline, "never forgotten");
        bench.engine.forget_past();
        thread::sleep(Duration::from_millis(20));
    }
    assert!(bench.engine.config().servers().len() <= 2, "numbers come back");
    assert_in_order(&bench.engine.shutdown());
}

#[test]
fn a_core_that_does_not_come_round_fails_the_reload_before_any_uses_it() {
    let mut bench = Bench::start("proxy-stuck", None);
    let [two] = versions(&bench, [TWO.to_owned()]);
    let wire = bench.wire.clone();
    let stuck = wire.to_engine.lock().expect("the worker waits for it");
    // It may sleep now, and look at its orders before its next round.
    thread::sleep(Duration::from_millis(100));
    let error = bench.engine.reload(&two).expect_err("the worker is stuck");
    assert!(matches!(error, ReloadError::Cores(_)), "{error}");
    assert!(error.to_string().contains("no core uses it"), "{error}");
    assert_eq!(bench.engine.config().servers()[0].name, "one");
    drop(stuck);
    // It comes round, and holds what is never valid.
    bench.open(Station::new(5, "10.0.0.5:50000"));
    bench.engine.reload(&two).unwrap_or_else(|error| panic!("{error}"));
    bench.ends.open_to(Station::new(5, "10.0.0.5:50001"), &servers()[1..]);
    assert_in_order(&bench.engine.shutdown());
}

/// While a core hangs the table is not made again and again, and the main thread is free.
#[test]
fn what_cannot_be_taken_out_of_a_list_is_put_off() {
    let mut bench = Bench::start_with_list("proxy-stuck-list");
    let add = ListChange::Add {
        prefixes: vec!["10.0.0.5/32".parse().expect("a prefix")],
        class: String::new(),
        until: Some(Instant::now()),
    };
    bench.engine.change_list("noticed", add).expect("a change");
    let left = |bench: &Bench| bench.engine.config().lists()[0].changes.len();
    let wire = bench.wire.clone();
    let stuck = wire.to_engine.lock().expect("the worker waits for it");
    thread::sleep(Duration::from_millis(100));
    bench.engine.expire_lists();
    let began = Instant::now();
    bench.engine.expire_lists();
    assert!(began.elapsed() < Duration::from_millis(500), "{:?}", began.elapsed());
    assert_eq!(left(&bench), 1);
    drop(stuck);
    let deadline = Instant::now() + Duration::from_secs(60);
    while left(&bench) > 0 {
        assert!(Instant::now() < deadline, "never taken out");
        bench.engine.expire_lists();
        thread::sleep(Duration::from_millis(20));
    }
    assert_in_order(&bench.engine.shutdown());
}

#[test]
fn a_file_with_an_error_changes_nothing() {
    let mut bench = Bench::start("proxy-erroneous", None);
    let [wrong, other] = versions(&bench, ["{ name = \"one\" }".to_owned(), TWO.to_owned()]);
    let error = bench.engine.reload(&wrong).expect_err("an error");
    assert!(error.to_string().contains("pool[0].servers[0]"), "{error}");
    let text = fs::read_to_string(&other)
        .expect("a file")
        .replace("cores = [0]", "cores = [1]");
    fs::write(&other, text).expect("a file");
    let error = bench.engine.reload(&other).expect_err("another core").to_string();
    assert!(
        error.contains("engine.cores has changed, which needs a restart"),
        "{error}"
    );
    bench.open(Station::new(5, "10.0.0.5:50000"));
    assert_in_order(&bench.engine.shutdown());
}

/// What the file says of a host is for open connections, too, and for servers there that it has no longer.
#[test]
fn another_mac_address_of_a_server_is_for_open_connections_too() {
    let mut bench = Bench::start("proxy-mac", None);
    let moved = TWO.replace(":0a\"", ":0b\"");
    let other = "{ name = \"three\", address = \"10.0.0.10:8081\", mac = \"02:00:00:00:00:0c\" }";
    let versions = versions(&bench, [TWO.to_owned(), moved, other.to_owned(), TWO.to_owned()]);
    bench
        .engine
        .reload(&versions[0])
        .unwrap_or_else(|error| panic!("{error}"));
    let (mut client, mut server) = bench.ends.open_to(Station::new(5, "10.0.0.5:50000"), &servers()[1..]);
    for (version, mac) in [(1, 0x0b), (2, 0x0c)] {
        bench
            .engine
            .reload(&versions[version])
            .unwrap_or_else(|error| panic!("{error}"));
        server.from.mac = Station::new(mac, "10.0.0.10:8080").mac;
        talk(&bench.ends, &mut client, &mut server);
    }
    // A version that no core takes has changed nothing.
    let wire = bench.wire.clone();
    let stuck = wire.to_engine.lock().expect("the worker waits for it");
    thread::sleep(Duration::from_millis(100));
    bench.engine.reload(&versions[3]).expect_err("the worker is stuck");
    drop(stuck);
    talk(&bench.ends, &mut client, &mut server);
    assert_in_order(&bench.engine.shutdown());
}

/// The last sink goes with a reload, and the first comes with one.
#[test]
fn records_end_and_begin_with_a_reload() {
    let mut bench = Bench::start("proxy-recorded", None);
    let [without, with] = versions(&bench, [ONE.to_owned(), ONE.to_owned()]);
    let text = fs::read_to_string(&with).expect("a file");
    let (head, rest) = text.split_once("[records]").expect("a sink");
    let (_, tail) = rest.split_once("[[port]]").expect("ports");
    fs::write(&without, format!("{head}[[port]]{tail}")).expect("a file");
    let file = bench.directory.path().join("records");
    let lines = |file: &PathBuf| fs::read_to_string(file).map_or(0, |text| text.lines().count());
    let served = |bench: &mut Bench, port: u16| {
        let (client, _) = bench.open(Station::new(5, "10.0.0.5:1").with_port(port));
        reset(&bench.ends, &client);
        let deadline = Instant::now() + Duration::from_secs(60);
        while bench.engine.open_connections() > 0 {
            assert!(Instant::now() < deadline, "it never ends");
        }
    };
    bench.engine.reload(&without).unwrap_or_else(|error| panic!("{error}"));
    served(&mut bench, 50_000);
    bench.engine.reload(&with).unwrap_or_else(|error| panic!("{error}"));
    served(&mut bench, 50_001);
    let deadline = Instant::now() + Duration::from_secs(60);
    while lines(&file) < 1 {
        assert!(Instant::now() < deadline, "never written");
        thread::sleep(Duration::from_millis(10));
    }
    bench.engine.reload(&without).unwrap_or_else(|error| panic!("{error}"));
    served(&mut bench, 50_002);
    assert_in_order(&bench.engine.shutdown());
    let text = fs::read_to_string(&file).expect("records");
    assert!(text.lines().count() == 1 && text.contains(":50001"), "{text}");
}
