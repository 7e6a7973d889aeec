//! Other sinks while records come.

use super::*;

/// Replaces the sinks by these.
fn replace(keeper: &mut RecordKeeper, sinks: &[RecordsConfig]) {
    let replacement = keeper.prepare(sinks, NameTable::default()).expect("open");
    keeper.replace(replacement);
}

#[test]
fn sinks_come_go_and_stay_and_no_record_is_lost() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let [stays, goes, comes] = ["stays", "goes", "comes"].map(|name| dir.path().join(name));
    let (mut sender, receiver) = record_ring(1 << 14);
    let mut keeper = start(vec![receiver], &[json_to(&goes), json_to(&stays)]);
    let watch = keeper.watch();
    (0..1_000).for_each(|port| sender.send(|| ended(port)));
    wait_for("taken", || lines(&stays) == 1_000);
    replace(&mut keeper, &[json_to(&stays), json_to(&comes)]);
    wait_for("written by the one that goes", || lines(&goes) == 1_000);
    let sinks: Vec<String> = watch.sinks().into_iter().map(|sink| sink.to).collect();
    assert_eq!(sinks, [&stays, &comes].map(|path| path.display().to_string()));
    (1_000..1_500).for_each(|port| sender.send(|| ended(port)));
    // In the middle of them.
    replace(&mut keeper, &[json_to(&comes)]);
    assert_eq!(keeper.finish().totals().lost, 0);
    assert_eq!((lines(&goes), lines(&comes)), (1_000, 500));
    let kept = lines(&stays) as u64;
    assert_eq!(watch.totals().written, 1_000 + kept + 500);
}

#[test]
fn another_format_of_the_same_file_puts_it_aside() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().join("records");
    let (mut sender, receiver) = record_ring(64);
    let mut keeper = start(vec![receiver], &[json_to(&path)]);
    (0..3).for_each(|port| sender.send(|| ended(port)));
    wait_for("written", || lines(&path) == 3);
    let csv = RecordsConfig {
        format: RecordFormat::Csv,
        ..json_to(&path)
    };
    replace(&mut keeper, &[csv]);
    (3..5).for_each(|port| sender.send(|| ended(port)));
    assert_eq!(keeper.finish().totals(), totals(5, 0));
    assert_eq!((lines(&dir.path().join("records.1")), lines(&path)), (3, 3));
}

#[test]
fn a_sink_that_cannot_be_opened_changes_nothing() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().join("records");
    let (mut sender, receiver) = record_ring(64);
    let keeper = start(vec![receiver], &[json_to(&path)]);
    let [new, nowhere] = ["new", "no/where"].map(|name| json_to(&dir.path().join(name)));
    let error = keeper.prepare(&[new, nowhere], NameTable::default()).map(|_| ());
    assert!(error.expect_err("no folder").to_string().contains("no/where"));
    sender.send(|| ended(1));
    assert_eq!(keeper.finish().totals(), totals(1, 0));
    assert_eq!(lines(&path), 1);
}

#[test]
fn a_file_that_a_failed_change_has_put_aside_is_begun_anew_by_its_sink() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().join("records");
    let (mut sender, receiver) = record_ring(64);
    let keeper = start(vec![receiver], &[json_to(&path)]);
    (0..3).for_each(|port| sender.send(|| ended(port)));
    wait_for("written", || lines(&path) == 3);
    let csv = RecordsConfig {
        format: RecordFormat::Csv,
        ..json_to(&path)
    };
    let nowhere = json_to(&dir.path().join("no/where"));
    assert!(keeper.prepare(&[csv, nowhere], NameTable::default()).is_err());
    wait_for("begun anew", || lines(&path) == 0);
    (3..5).for_each(|port| sender.send(|| ended(port)));
    assert_eq!(keeper.finish().totals(), totals(5, 0));
    let aside = lines(&dir.path().join("records.1"));
    assert_eq!(aside + lines(&path), 5);
    let begun = fs::read_to_string(&path).expect("there");
    assert!(begun.lines().all(|line| line.starts_with('{')), "{begun}");
}

/// A reader that takes a datagram every few milliseconds keeps its own records waiting, and nobody else.
#[test]
fn a_slow_sink_that_goes_is_not_waited_for() {
    const RECORDS: u16 = 20_000;
    let dir = tempfile::tempdir().expect("temporary directory");
    let [socket, file] = ["socket", "file"].map(|name| dir.path().join(name));
    let reader = UnixDatagram::bind(&socket).expect("bind");
    let is_over = Arc::new(AtomicBool::new(false));
    let over = Arc::clone(&is_over);
    let reads = std::thread::spawn(move || {
        let mut count = 0;
        while reader.recv(&mut [0; 2_048]).is_ok() && !over.load(Ordering::Relaxed) {
            count += 1;
            std::thread::sleep(Duration::from_millis(5));
        }
        count
    });
    let (mut sender, receiver) = record_ring(1 << 15);
    let mut keeper = start(vec![receiver], &[sink_to(Destination::Datagram(socket.clone()))]);
    let watch = keeper.watch();
    (0..RECORDS).for_each(|port| sender.send(|| ended(port)));
    wait_for("slow", || watch.totals().written > 10);
    let began = Instant::now();
    replace(&mut keeper, &[json_to(&file)]);
    // All of its records would take it a hundred seconds.
    assert!(watch.totals().written < 1_000);
    sender.send(|| ended(1));
    // It gets what had not been handed over yet, too.
    wait_for("another sink's", || lines(&file) > 0);
    let totals = keeper.finish().totals();
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    assert_eq!(totals.written + totals.lost, u64::from(RECORDS) + 1);
    assert!(totals.lost > 0);
    is_over.store(true, Ordering::Relaxed);
    let last = UnixDatagram::unbound().expect("socket");
    // One that is full has woken the reader already.
    let _ = last
        .set_nonblocking(true)
        .and_then(|()| last.send_to(b"", &socket).map(drop));
    reads.join().expect("the reader ends");
}

/// Somebody has put a file of his own under the name: it is written on, and nothing in it is lost.
#[test]
fn a_file_that_stands_under_the_name_is_appended_to() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().join("records");
    let (mut sender, receiver) = record_ring(64);
    let keeper = start(vec![receiver], &[json_to(&path)]);
    sender.send(|| ended(1));
    wait_for("written", || lines(&path) == 1);
    fs::rename(&path, dir.path().join("moved")).expect("rename");
    fs::write(&path, "{}\n{}\n").expect("write");
    keeper.watch().reopen();
    let (renamed, there) = (dir.path().join("moved"), path.clone());
    let mut sent = 1;
    wait_for("opened again", || {
        sender.send(|| ended(1));
        sent += 1;
        lines(&there) > 2
    });
    assert_eq!(keeper.finish().totals(), totals(sent, 0));
    assert_eq!(lines(&renamed) + lines(&path) - 2, sent as usize);
}

/// What cannot be put aside is written on, and no record is told as lost.
#[test]
fn a_device_is_not_put_aside() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().join("records");
    std::os::unix::fs::symlink("/dev/null", &path).expect("link");
    let (mut sender, receiver) = record_ring(64);
    let sink = RecordsConfig {
        rotation: Rotation {
            size: Some(1),
            every: None,
            keep: 2,
        },
        ..json_to(&path)
    };
    let keeper = start(vec![receiver], &[sink]);
    (0..3).for_each(|port| sender.send(|| ended(port)));
    assert_eq!(keeper.finish().totals(), totals(3, 0));
    assert!(!fs::metadata(&path).expect("there").is_file());
}
