//! Records on their way to a file, and what is lost when there is trouble.

use super::*;
use crate::config::{Endpoint, RecordFilter, Rotation};
use e2d2::time::Instant as At;
use netfcts::Side;
use netfcts::format::{Named, RecordFormat};
use netfcts::progress::{Ended, Ends, Micros, Progress};
use netfcts::record::{Cause, NO_SERVER, State};
use netfcts::ring::record_ring;
use std::collections::HashSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::Path;
use std::sync::Mutex;
use std::time::Instant;

mod replacing;
mod rotating;
mod stuck;

fn ended(port: u16) -> Ended {
    Ended {
        progress: Progress::NONE,
        ends: Ends {
            client_port: port,
            ..Ends::default()
        },
    }
}

fn sink_to(to: Destination) -> RecordsConfig {
    RecordsConfig::all(to, RecordFormat::JsonLines)
}

fn json_to(path: &Path) -> RecordsConfig {
    sink_to(Destination::File(path.to_owned()))
}

fn start(receivers: Vec<RecordReceiver>, sinks: &[RecordsConfig]) -> RecordKeeper {
    RecordKeeper::start(receivers, sinks, NameTable::default()).expect("start")
}

fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < deadline, "never {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn lines(path: &Path) -> usize {
    fs::read_to_string(path).map_or(0, |text| text.lines().count())
}

fn totals(written: u64, lost: u64) -> RecordTotals {
    RecordTotals {
        written,
        lost,
        left_out: 0,
    }
}

/// An output that fails as long as it is told to, as a full disk does.
#[derive(Clone, Default)]
struct Disk(Arc<Mutex<(bool, Vec<u8>)>>);

impl Disk {
    fn set_full(&self, full: bool) {
        self.0.lock().expect("lock").0 = full;
    }

    fn lines(&self) -> usize {
        self.0
            .lock()
            .expect("lock")
            .1
            .iter()
            .filter(|byte| **byte == b'\n')
            .count()
    }
}

impl Write for Disk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut disk = self.0.lock().expect("lock");
        if disk.0 {
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        disk.1.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn start_on(disk: &Disk, receivers: Vec<RecordReceiver>) -> RecordKeeper {
    let names = Arc::new(NameTable::default());
    let lines = RecordLines::new(RecordFormat::JsonLines, Arc::clone(&names), 1);
    let output = Box::new(Lines::to(Box::new(disk.clone()), lines).expect("no header"));
    let sink = Sink::start(&sink_to(Destination::Stdout), output, names).expect("thread");
    RecordKeeper::start_with(receivers, vec![sink]).expect("thread")
}

#[test]
fn a_file_that_was_renamed_is_opened_again_and_no_record_is_lost() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let (path, moved) = (dir.path().join("records.csv"), dir.path().join("records.moved"));
    let sink = RecordsConfig {
        format: RecordFormat::Csv,
        ..json_to(&path)
    };
    let (mut sender, receiver) = record_ring(64);
    let keeper = start(vec![receiver], &[sink]);
    let watch = keeper.watch();
    (0..3).for_each(|port| sender.send(|| ended(port)));
    // The name leads to the file: nothing changes.
    watch.reopen();
    wait_for("written", || lines(&path) == 4);
    fs::rename(&path, &moved).expect("rename");
    watch.reopen();
    wait_for("opened again", || path.exists());
    (3..5).for_each(|port| sender.send(|| ended(port)));
    assert_eq!(keeper.finish().totals(), totals(5, 0));
    // Each has its heading.
    assert_eq!((lines(&moved), lines(&path)), (4, 3));
    // Clients are named in both: for the owner and the group.
    for path in [&moved, &path] {
        let mode = fs::metadata(path).expect("metadata").permissions().mode();
        assert_eq!(mode & 0o137, 0, "{mode:o}");
    }
    assert!(!dir.path().join("records.csv.1").exists());
}

/// What is put aside and what is left: every record once, in order, and no file longer than it may be by more than a line.
#[test]
fn a_file_that_is_full_is_put_aside_and_no_record_is_lost() {
    const SIZE: u64 = 4_096;
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().join("records.jsonl");
    let sink = RecordsConfig {
        rotation: Rotation {
            size: Some(SIZE),
            every: None,
            keep: 99,
        },
        ..json_to(&path)
    };
    let (mut sender, receiver) = record_ring(1024);
    let keeper = start(vec![receiver], &[sink]);
    (0..500).for_each(|port| sender.send(|| ended(port)));
    assert_eq!(keeper.finish().totals(), totals(500, 0));
    let mut ports = Vec::new();
    let aside = (1..=99)
        .rev()
        .map(|number| dir.path().join(format!("records.jsonl.{number}")));
    for path in aside.filter(|path| path.exists()).chain([path]) {
        let text = fs::read_to_string(&path).expect("read");
        assert!((text.len() as u64) < SIZE + 1_024, "{}", path.display());
        ports.extend(text.lines().map(port_of));
    }
    assert_eq!(ports, (0..500).collect::<Vec<_>>());
    assert!(dir.path().join("records.jsonl.5").exists());
}

#[test]
fn an_old_file_is_put_aside_and_the_oldest_goes() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().join("records");
    let sink = RecordsConfig {
        rotation: Rotation {
            size: None,
            every: Some(Duration::from_millis(1)),
            keep: 2,
        },
        ..json_to(&path)
    };
    let (mut sender, receiver) = record_ring(64);
    let keeper = start(vec![receiver], &[sink]);
    let watch = keeper.watch();
    for port in 0..4 {
        sender.send(|| ended(port));
        wait_for("written", || watch.totals().written == u64::from(port) + 1);
    }
    assert_eq!(keeper.finish().totals(), totals(4, 0));
    let kept = |name: &str| {
        fs::read_to_string(dir.path().join(name))
            .ok()
            .map(|text| port_of(&text))
    };
    assert_eq!(
        [kept("records.1"), kept("records.2"), kept("records.3")],
        [Some(3), Some(2), None]
    );
}

fn port_of(line: &str) -> u64 {
    let record: serde_json::Value = serde_json::from_str(line.trim()).expect("JSON");
    record["client_port"].as_u64().expect("port")
}

#[test]
fn records_that_nobody_wants_are_counted() {
    let (mut sender, receiver) = record_ring(64);
    let keeper = start(vec![receiver], &[]);
    let watch = keeper.watch();
    let mut send = |count: u64| {
        let taken = || watch.totals().written + watch.totals().left_out;
        let before = taken();
        (0..count).for_each(|port| sender.send(|| ended(port as u16)));
        wait_for("taken", || taken() == before + count);
    };
    send(3);
    watch.keep(false);
    send(5);
    watch.keep(true);
    send(7);
    let wanted = RecordTotals {
        left_out: 5,
        ..totals(10, 0)
    };
    assert_eq!(keeper.finish().totals(), wanted);
}

#[test]
fn records_of_all_rings_are_in_the_file_when_it_has_finished() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().join("records.jsonl");
    let ((mut one, one_end), (mut two, two_end)) = (record_ring(64), record_ring(64));
    let keeper = start(vec![one_end, two_end], &[json_to(&path)]);
    (0..50).for_each(|port| one.send(|| ended(port)));
    (50..60).for_each(|port| two.send(|| ended(port)));
    assert_eq!(keeper.finish().totals(), totals(60, 0));
    let text = fs::read_to_string(&path).expect("read");
    let mut ports: Vec<u64> = text.lines().map(port_of).collect();
    ports.sort_unstable();
    assert_eq!(ports, (0..60).collect::<Vec<_>>());
}

/// Three readers of a socket each, one of whom never reads: he loses his own records, counted, and the others none.
#[test]
fn a_reader_that_is_slow_loses_its_own_records_and_nothing_else() {
    const RECORDS: u64 = 150_000;
    let dir = tempfile::tempdir().expect("temporary directory");
    let [file, stream, datagram] = ["file", "stream", "datagram"].map(|name| dir.path().join(name));
    let listener = UnixListener::bind(&stream).expect("listen");
    let deaf = UnixDatagram::bind(&datagram).expect("bind");
    let reader = std::thread::spawn(move || {
        let (stream, _) = listener.accept().expect("accept");
        let ports = BufReader::new(stream).lines().map(|line| port_of(&line.expect("line")));
        ports.fold(0_u64, |lines, _| lines + 1)
    });
    let (mut sender, receiver) = record_ring(RING_CAPACITY);
    let sinks = [
        json_to(&file),
        sink_to(Destination::Stream(stream)),
        sink_to(Destination::Datagram(datagram)),
    ];
    let keeper = start(vec![receiver], &sinks);
    let watch = keeper.watch();
    for number in 0..RECORDS {
        sender.send(|| ended(number as u16));
        if number % 10_000 == 9_999 {
            // As fast as those who read can, not faster.
            wait_for("written", || {
                watch.sinks()[..2].iter().all(|sink| sink.written + 20_000 > number)
            });
        }
    }
    let sinks = keeper.finish().sinks();
    let of = |number: usize| (sinks[number].written, sinks[number].lost);
    assert_eq!((of(0), of(1)), ((RECORDS, 0), (RECORDS, 0)));
    assert_eq!(
        (lines(&file) as u64, reader.join().expect("reader")),
        (RECORDS, RECORDS)
    );
    let (written, lost) = of(2);
    assert_eq!(written + lost, RECORDS);
    assert!(lost > 0, "nobody reads, and nothing is lost");
    deaf.set_nonblocking(true).expect("nonblocking");
    let mut message = [0; 2_048];
    let received = std::iter::from_fn(|| deaf.recv(&mut message).ok()).count() as u64;
    assert_eq!(received, written);
}

#[test]
fn a_reader_that_comes_late_or_again_gets_whole_lines() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().join("stream");
    let (mut sender, receiver) = record_ring(64);
    let keeper = start(vec![receiver], &[sink_to(Destination::Stream(path.clone()))]);
    let watch = keeper.watch();
    sender.send(|| ended(1));
    wait_for("lost", || watch.totals().lost == 1);
    let listener = UnixListener::bind(&path).expect("listen");
    for port in [2, 3] {
        // The first call comes a second after the last; a record that finds nobody is lost.
        let written = watch.totals().written;
        wait_for("taken", || {
            sender.send(|| ended(port));
            std::thread::sleep(Duration::from_millis(100));
            watch.totals().written > written
        });
        let (stream, _) = listener.accept().expect("accept");
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).expect("line");
        assert_eq!(port_of(&line), u64::from(port));
    }
    drop(keeper);
}

/// RFC 5424 6: each part at its place.
#[test]
fn syslog_gets_a_message_each() {
    let collector = UdpSocket::bind("127.0.0.1:0").expect("bind");
    let to = Endpoint::Udp(collector.local_addr().expect("address"));
    let (mut sender, receiver) = record_ring(64);
    let keeper = start(vec![receiver], &[sink_to(Destination::Syslog(to))]);
    (7..9).for_each(|port| sender.send(|| ended(port)));
    assert_eq!(keeper.finish().totals(), totals(2, 0));
    let mut message = [0; 2_048];
    for port in 7..9 {
        let length = collector.recv(&mut message).expect("message");
        let text = std::str::from_utf8(&message[..length]).expect("UTF-8");
        let parts: Vec<&str> = text.splitn(8, ' ').collect();
        assert_eq!(
            (parts[0], parts[2].is_empty(), parts[3]),
            ("<134>1", false, "proxyengine"),
            "{text}"
        );
        assert!(
            parts[1].parse::<humantime_serde::re::humantime::Timestamp>().is_ok(),
            "{text}"
        );
        assert_eq!(
            (parts[4].parse(), parts[5], parts[6]),
            (Ok(std::process::id()), "session", "-"),
            "{text}"
        );
        assert_eq!(port_of(parts[7]), port);
        assert!(!text.ends_with('\n'));
    }
}

/// Of ten thousand connections one in ten and one in a hundred, the hundredth among the tenth, and each line says so.
#[test]
fn a_sample_is_one_in_so_many_and_says_it() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let of = |sample: u32| RecordsConfig {
        sample,
        ..json_to(&dir.path().join(sample.to_string()))
    };
    let (mut sender, receiver) = record_ring(16_384);
    let keeper = start(vec![receiver], &[of(10), of(100)]);
    (0..10_000).for_each(|port| sender.send(|| ended(port)));
    let sinks = keeper.finish().sinks();
    for (sink, expected) in sinks.iter().zip([800..1_200, 60..150]) {
        assert!(expected.contains(&sink.written), "{sink:?}");
        assert_eq!((sink.written + sink.left_out, sink.lost), (10_000, 0));
    }
    let read = |sample: u32| fs::read_to_string(dir.path().join(sample.to_string())).expect("read");
    let (tenth, hundredth) = (read(10), read(100));
    assert!(tenth.lines().all(|line| line.ends_with(",\"sample\":10}")));
    let ports: HashSet<u64> = tenth.lines().map(port_of).collect();
    assert!(hundredth.lines().all(|line| ports.contains(&port_of(line))));
}

#[test]
fn a_filter_takes_what_all_of_its_lists_name() {
    let named = |name: &str| Named {
        name: name.to_owned(),
        address: "192.0.2.1:80".parse().expect("address"),
    };
    let names = NameTable {
        listeners: vec!["web".to_owned(), "ldap".to_owned()],
        servers: vec![named("s0")],
        ..NameTable::default()
    };
    let dir = tempfile::tempdir().expect("temporary directory");
    let sink = RecordsConfig {
        only: RecordFilter {
            listeners: vec!["ldap".to_owned()],
            servers: vec!["s0".to_owned()],
            causes: vec![Cause::ActiveClose, Cause::IdleTimeout],
            longer_than: Duration::from_millis(2),
        },
        ..json_to(&dir.path().join("records"))
    };
    let connection = |port, listener, server, cause, micros: u64| {
        let mut progress = Progress::NONE;
        progress.begin(Side::Client, State::Established, Micros::default());
        progress.push_state(Side::Client, State::Closed, At::from_nanos(micros * 1_000).into());
        Ended {
            progress,
            ends: Ends {
                client_port: port,
                listener,
                server,
                cause,
                at: At::from_nanos(micros * 1_000).into(),
                ..Ends::default()
            },
        }
    };
    let (mut sender, receiver) = record_ring(64);
    let keeper = RecordKeeper::start(vec![receiver], &[sink], names).expect("start");
    for (port, listener, server, cause, micros) in [
        (1, 1, 0, Cause::ActiveClose, 2_000),
        (2, 0, 0, Cause::ActiveClose, 2_000),
        (3, 1, NO_SERVER, Cause::ActiveClose, 2_000),
        (4, 1, 0, Cause::PassiveClose, 2_000),
        (5, 1, 0, Cause::ActiveClose, 1_999),
        (6, 1, 0, Cause::IdleTimeout, 90_000),
    ] {
        sender.send(|| connection(port, listener, server, cause, micros));
    }
    keeper.finish();
    let text = fs::read_to_string(dir.path().join("records")).expect("read");
    assert_eq!(text.lines().map(port_of).collect::<Vec<_>>(), [1, 6]);
}

#[test]
fn a_full_disk_loses_records_counts_them_and_stops_nothing() {
    let (mut sender, receiver) = record_ring(1024);
    let disk = Disk::default();
    disk.set_full(true);
    let keeper = start_on(&disk, vec![receiver]);
    (0..100).for_each(|port| sender.send(|| ended(port)));
    assert_eq!(keeper.finish().totals(), totals(0, 100));
    assert_eq!(disk.lines(), 0);
}

#[test]
fn what_the_buffer_kept_is_written_when_the_disk_has_room_again() {
    let (mut sender, receiver) = record_ring(1024);
    let disk = Disk::default();
    disk.set_full(true);
    let keeper = start_on(&disk, vec![receiver]);
    (0..3).for_each(|port| sender.send(|| ended(port)));
    std::thread::sleep(Duration::from_millis(1_200));
    disk.set_full(false);
    assert_eq!(keeper.finish().totals(), totals(3, 0));
    assert_eq!(disk.lines(), 3);
}

#[test]
fn lines_are_readable_while_the_engine_runs() {
    let (mut sender, receiver) = record_ring(8);
    let disk = Disk::default();
    let keeper = start_on(&disk, vec![receiver]);
    let watch = keeper.watch();
    sender.send(|| ended(1));
    wait_for("flushed", || disk.lines() == 1);
    wait_for("counted", || watch.totals().written == 1);
}

#[test]
fn full_rings_count_as_lost() {
    let (mut sender, receiver) = record_ring(4);
    (0..10).for_each(|port| sender.send(|| ended(port)));
    let keeper = start_on(&Disk::default(), vec![receiver]);
    assert_eq!(keeper.finish().totals(), totals(4, 6));
}

#[test]
fn without_an_output_records_are_counted() {
    let (mut sender, receiver) = record_ring(4);
    sender.send(|| ended(1));
    let keeper = start(vec![receiver], &[]);
    assert_eq!(keeper.finish().totals(), totals(1, 0));
}

#[test]
fn an_older_file_is_kept_aside() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().join("records");
    fs::write(&path, "older").expect("write");
    start(vec![], &[json_to(&path)]).finish();
    assert_eq!(fs::read_to_string(dir.path().join("records.1")).expect("read"), "older");
    assert_eq!(fs::read_to_string(&path).expect("read"), "");
}

#[test]
fn a_file_that_cannot_be_opened_is_a_sentence() {
    let path = Path::new("/nonexistent/records");
    let error = RecordKeeper::start(vec![], &[json_to(path)], NameTable::default()).expect_err("no such directory");
    let message = error.to_string();
    let parts = ["/nonexistent/records", "No such file"];
    assert!(parts.iter().all(|part| message.contains(part)), "{message}");
}
