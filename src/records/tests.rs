//! Records on their way to a file, and what is lost when there is trouble.

use super::*;
use netfcts::progress::{Ended, Ends, Progress};
use netfcts::ring::record_ring;
use std::sync::Mutex;

fn ended(port: u16) -> Ended {
    Ended {
        progress: Progress::NONE,
        ends: Ends {
            client: ([0; 16], port),
            ..Ends::default()
        },
    }
}

fn json_to(path: &Path) -> Option<RecordOutput> {
    Some(RecordOutput {
        path: path.to_owned(),
        format: RecordFormat::JsonLines,
    })
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
    let sink: Box<dyn Write + Send> = Box::new(disk.clone());
    RecordKeeper::start_with(receivers, Some(sink), RecordFormat::JsonLines, NameTable::default()).expect("start")
}

#[test]
fn a_file_that_was_renamed_is_opened_again_and_no_record_is_lost() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let (path, moved) = (dir.path().join("records.csv"), dir.path().join("records.1"));
    let output = RecordOutput {
        path: path.clone(),
        format: RecordFormat::Csv,
    };
    let (mut sender, receiver) = record_ring(64);
    let keeper = RecordKeeper::start(vec![receiver], Some(output), NameTable::default()).expect("start");
    let switch = keeper.switch();
    let lines = |path: &Path| fs::read_to_string(path).map_or(0, |text| text.lines().count());
    let wait_for = |what: &str, is_so: &dyn Fn() -> bool| {
        let deadline = Instant::now() + Duration::from_secs(30);
        while !is_so() {
            assert!(Instant::now() < deadline, "never {what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    (0..3).for_each(|port| sender.send(|| ended(port)));
    // The name leads to the file: nothing changes.
    switch.reopen();
    wait_for("written", &|| lines(&path) == 4);
    fs::rename(&path, &moved).expect("rename");
    switch.reopen();
    wait_for("opened again", &|| path.exists());
    (3..5).for_each(|port| sender.send(|| ended(port)));
    assert_eq!(keeper.finish(), totals(5, 0));
    // Each has its heading.
    assert_eq!((lines(&moved), lines(&path)), (4, 3));
    assert!(!dir.path().join("records.csv.old").exists());
}

#[test]
fn records_that_nobody_wants_are_counted() {
    let (mut sender, receiver) = record_ring(64);
    let keeper = RecordKeeper::start(vec![receiver], None, NameTable::default()).expect("start");
    let switch = keeper.switch();
    let mut send = |count: u64| {
        let before = keeper.totals();
        (0..count).for_each(|port| sender.send(|| ended(port as u16)));
        let deadline = Instant::now() + Duration::from_secs(30);
        let sum = |totals: RecordTotals| totals.written + totals.left_out;
        while sum(keeper.totals()) < sum(before) + count {
            assert!(Instant::now() < deadline, "never taken");
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    send(3);
    switch.keep(false);
    send(5);
    switch.keep(true);
    send(7);
    let wanted = RecordTotals {
        left_out: 5,
        ..totals(10, 0)
    };
    assert_eq!(keeper.finish(), wanted);
}

#[test]
fn records_of_all_rings_are_in_the_file_when_it_has_finished() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().join("records.jsonl");
    let ((mut one, one_end), (mut two, two_end)) = (record_ring(64), record_ring(64));
    let keeper = RecordKeeper::start(vec![one_end, two_end], json_to(&path), NameTable::default()).expect("start");
    (0..50).for_each(|port| one.send(|| ended(port)));
    (50..60).for_each(|port| two.send(|| ended(port)));
    assert_eq!(keeper.finish(), totals(60, 0));
    let text = fs::read_to_string(&path).expect("read");
    let mut ports: Vec<u64> = text
        .lines()
        .map(|line| {
            serde_json::from_str::<serde_json::Value>(line).expect("JSON")["client_port"]
                .as_u64()
                .expect("port")
        })
        .collect();
    ports.sort_unstable();
    assert_eq!(ports, (0..60).collect::<Vec<_>>());
}

#[test]
fn lines_are_readable_while_the_engine_runs() {
    let (mut sender, receiver) = record_ring(8);
    let disk = Disk::default();
    let keeper = start_on(&disk, vec![receiver]);
    sender.send(|| ended(1));
    let deadline = Instant::now() + Duration::from_secs(10);
    while disk.lines() == 0 {
        assert!(Instant::now() < deadline, "nothing was flushed");
        std::thread::sleep(Duration::from_millis(20));
    }
    let deadline = Instant::now() + Duration::from_secs(10);
    while keeper.totals().written == 0 {
        assert!(Instant::now() < deadline, "nothing was counted");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_full_disk_loses_records_counts_them_and_stops_nothing() {
    let (mut sender, receiver) = record_ring(1024);
    let disk = Disk::default();
    disk.set_full(true);
    let keeper = start_on(&disk, vec![receiver]);
    (0..100).for_each(|port| sender.send(|| ended(port)));
    assert_eq!(keeper.finish(), totals(0, 100));
    assert_eq!(disk.lines(), 0);
}

#[test]
fn what_the_buffer_kept_is_written_when_the_disk_has_room_again() {
    let (mut sender, receiver) = record_ring(1024);
    let disk = Disk::default();
    disk.set_full(true);
    let keeper = start_on(&disk, vec![receiver]);
    (0..3).for_each(|port| sender.send(|| ended(port)));
    std::thread::sleep(FLUSH_INTERVAL + Duration::from_millis(200));
    disk.set_full(false);
    assert_eq!(keeper.finish(), totals(3, 0));
    assert_eq!(disk.lines(), 3);
}

#[test]
fn full_rings_count_as_lost() {
    let (mut sender, receiver) = record_ring(4);
    (0..10).for_each(|port| sender.send(|| ended(port)));
    let keeper = start_on(&Disk::default(), vec![receiver]);
    assert_eq!(keeper.finish(), totals(4, 6));
}

#[test]
fn without_an_output_records_are_counted() {
    let (mut sender, receiver) = record_ring(4);
    sender.send(|| ended(1));
    let keeper = RecordKeeper::start(vec![receiver], None, NameTable::default()).expect("start");
    assert_eq!(keeper.finish(), totals(1, 0));
}

#[test]
fn an_older_file_is_kept_aside() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().join("records");
    fs::write(&path, "older").expect("write");
    RecordKeeper::start(vec![], json_to(&path), NameTable::default())
        .expect("start")
        .finish();
    assert_eq!(
        fs::read_to_string(dir.path().join("records.old")).expect("read"),
        "older"
    );
    assert_eq!(fs::read_to_string(&path).expect("read"), "");
}

#[test]
fn a_file_that_cannot_be_opened_is_a_sentence() {
    let path = Path::new("/nonexistent/records");
    let error = RecordKeeper::start(vec![], json_to(path), NameTable::default()).expect_err("no such directory");
    let message = error.to_string();
    assert!(
        message.contains("/nonexistent/records") && message.contains("No such file"),
        "{message}"
    );
}

fn totals(written: u64, lost: u64) -> RecordTotals {
    RecordTotals {
        written,
        lost,
        left_out: 0,
    }
}
