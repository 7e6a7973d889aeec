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

/// Nobody reads from the pipe when the engine starts: that waits for no reader, who gets what came before.
#[test]
fn a_pipe_without_a_reader_keeps_nobody_waiting() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().join("pipe");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).expect("a pipe");
    let (mut sender, receiver) = record_ring(64);
    let keeper = start(vec![receiver], &[json_to(&path)]);
    let watch = keeper.watch();
    (0..3).for_each(|port| sender.send(|| ended(port)));
    wait_for("written", || watch.totals().written == 3);
    let reader = BufReader::new(fs::File::open(&path).expect("open"));
    let ports: Vec<u64> = reader
        .lines()
        .take(3)
        .map(|line| port_of(&line.expect("line")))
        .collect();
    assert_eq!(ports, [0, 1, 2]);
    assert_eq!(keeper.finish().totals(), totals(3, 0));
}

/// A reader goes in the middle of what is sent to it: what it could read is written, and only the rest is lost.
#[test]
fn what_a_reader_has_got_before_it_goes_is_not_lost() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().join("stream");
    let listener = UnixListener::bind(&path).expect("listen");
    let (mut sender, receiver) = record_ring(4_096);
    let keeper = start(vec![receiver], &[sink_to(Destination::Stream(path))]);
    (0..RECORDS).for_each(|port| sender.send(|| ended(port)));
    let (mut stream, _) = listener.accept().expect("accept");
    drop(listener);
    // Its memory fills.
    std::thread::sleep(Duration::from_millis(500));
    stream.shutdown(std::net::Shutdown::Read).expect("shutdown");
    let mut got = Vec::new();
    io::Read::read_to_end(&mut stream, &mut got).expect("read");
    let whole = got.iter().filter(|byte| **byte == b'\n').count() as u64;
    assert!((1..u64::from(RECORDS)).contains(&whole), "{whole}");
    assert_eq!(keeper.finish().totals(), totals(whole, u64::from(RECORDS) - whole));
}
