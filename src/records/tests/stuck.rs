//! Outputs that take nothing any more.

use super::*;
use std::sync::mpsc;

/// More than a pipe holds.
const RECORDS: u16 = 2_000;

/// They are on their way into a pipe from which nobody reads.
fn stuck() -> (io::PipeReader, RecordKeeper) {
    let (reader, writer) = io::pipe().expect("a pipe");
    let names = Arc::new(NameTable::default());
    let lines = RecordLines::new(RecordFormat::JsonLines, Arc::clone(&names), 1);
    let output = Box::new(Lines::to(Box::new(writer), lines).expect("no header"));
    let sink = Sink::start(&sink_to(Destination::Stdout), output, names).expect("thread");
    let (mut sender, receiver) = record_ring(4_096);
    let keeper = RecordKeeper::start_with(vec![receiver], vec![sink]).expect("thread");
    (0..RECORDS).for_each(|port| sender.send(|| ended(port)));
    (reader, keeper)
}

/// A pipe whose reader has stopped: what is beyond the pipe's own memory is lost, counted, and holds nobody up.
#[test]
fn an_output_that_takes_nothing_does_not_keep_the_engine_from_ending() {
    let (reader, keeper) = stuck();
    let (told, ended) = mpsc::channel();
    std::thread::spawn(move || told.send(keeper.finish().totals()));
    let totals = ended.recv_timeout(Duration::from_secs(60)).expect("it ends");
    assert_eq!(totals.written + totals.lost, u64::from(RECORDS));
    assert!(totals.lost > 0);
    drop(reader);
}

/// Its reader goes on when all have been counted as lost: none is counted a second time.
#[test]
fn an_output_that_takes_something_again_changes_no_count() {
    let (mut reader, keeper) = stuck();
    let watch = keeper.finish();
    let totals = watch.totals();
    assert_eq!(totals.written + totals.lost, u64::from(RECORDS));
    // The thread ends with what it had begun, and closes the pipe.
    io::copy(&mut reader, &mut io::sink()).expect("read");
    assert_eq!(watch.totals(), totals);
}
