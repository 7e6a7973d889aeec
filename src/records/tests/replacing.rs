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
    assert_eq!(lines(&goes), 1_000, "it has written what it had");
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
