//! A capture over the control socket: what tshark says of the file, who gets one, and when it ends.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use std::process::Command;
use std::thread::JoinHandle;
use std::time::Duration;

use control::http::client;
use e2d2::wire::tcp::TcpFlags;
use testkit::{Segment, Station};

use crate::status::Served;

/// A frame as tshark reads it.
#[derive(Debug)]
struct Shown {
    interface: String,
    id: u64,
    comment: String,
}

impl Shown {
    /// The value behind a key in the comment.
    fn word(&self, key: &str) -> Option<&str> {
        let words = self.comment.split([' ', '\n']);
        words
            .filter_map(|word| word.split_once('='))
            .find(|(name, _)| *name == key)
            .map(|(_, value)| value)
    }
}

/// Begins a capture; its file when it is over, and how to end it.
fn begin(served: &Served, query: &str) -> (JoinHandle<Vec<u8>>, client::Enough) {
    let path = format!("/api/v1/capture?{query}");
    let (mut answer, enough) = client::stream(&served.socket, "POST", &path).expect("an answer");
    assert_eq!(answer.status, 200);
    let read = move || {
        let mut bytes = Vec::new();
        answer.read_to_end(&mut bytes).expect("a whole file");
        bytes
    };
    (std::thread::spawn(read), enough)
}

/// What tshark says on both of its outputs of a file, which has to be nothing on the second.
fn tshark(file: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new("tshark");
    command.arg("-n").arg("-r").arg(file).args(arguments);
    let output = command.env("HOME", "/nonexistent").output().expect("tshark runs");
    // It says so itself if it runs as root, which is not about the file.
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let complaints: Vec<&str> = said.lines().filter(|line| !line.contains("Running as user")).collect();
    assert!(output.status.success() && complaints.is_empty(), "{complaints:?}");
    String::from_utf8(output.stdout).expect("text")
}

fn shown(file: &Path) -> Vec<Shown> {
    let fields = ["frame.interface_name", "frame.packet_id", "frame.comment"];
    let fields: Vec<&str> = fields.iter().flat_map(|field| ["-e", field]).collect();
    let text = tshark(
        file,
        &[
            &["-T", "fields", "-E", "separator=|", "-E", "aggregator= "][..],
            &fields,
        ]
        .concat(),
    );
    let read = |line: &str| {
        let mut parts = line.splitn(3, '|').map(str::to_owned);
        let mut part = || parts.next().expect("three fields");
        let (interface, id) = (part(), part());
        let id = id
            .strip_prefix("0x")
            .map_or(id.parse(), |digits| u64::from_str_radix(digits, 16));
        Shown {
            interface,
            id: id.expect("a number"),
            comment: part(),
        }
    };
    text.lines().map(read).collect()
}

fn has_tshark(test: &str) -> bool {
    let is_there = Command::new("tshark").arg("--version").output().is_ok();
    if !is_there {
        rig::skip(test, "no tshark");
    }
    is_there
}

/// A connection from its SYN to a RST of its server.
fn reset_by_server(served: &Served, client: Station) {
    let (_, server) = served.bench.open(client);
    let reset = Segment {
        flags: TcpFlags::RST | TcpFlags::ACK,
        ..server
    };
    served.bench.send(&reset.frame());
    while !served.bench.segment_to(client).flags.contains(TcpFlags::RST) {}
}

/// Every frame that was passed on came in on the other leg, under the same number.
fn assert_both_legs_are_paired(frames: &[Shown]) {
    let mut by_id: BTreeMap<u64, Vec<&Shown>> = BTreeMap::new();
    for frame in frames {
        by_id.entry(frame.id).or_default().push(frame);
    }
    let passed = frames.iter().filter(|frame| frame.word("kind") == Some("passed"));
    assert!(passed.clone().count() >= 2, "{frames:?}");
    for frame in passed {
        let others: Vec<_> = by_id[&frame.id]
            .iter()
            .filter(|of| of.word("kind") == Some("received"))
            .collect();
        let [received] = others[..] else {
            panic!("{frame:?}: {others:?}")
        };
        assert_ne!(received.interface, frame.interface, "the other leg");
        assert_eq!(received.word("conn"), frame.word("conn"));
    }
}

#[test]
fn tshark_opens_a_capture_and_both_legs_of_every_frame_are_paired() {
    if !has_tshark("engine::capture::paired") {
        return;
    }
    let served = Served::start("proxy-capture");
    let before = Station::new(4, "10.0.0.4:50000");
    let (before_end, _) = served.bench.open(before);
    let (file, enough) = begin(&served, "payload");
    // One that was there before is captured as soon as it is found.
    std::thread::sleep(Duration::from_millis(300));
    let more = Segment {
        payload: b"more".to_vec(),
        ..before_end
    };
    served.bench.send(&more.frame());
    reset_by_server(&served, Station::new(5, "10.0.0.5:50001"));
    let (status, second) = served.change("capture?");
    assert_eq!(
        (status, second.as_str()),
        (409, Some("a capture runs already, and there is one at a time\n"))
    );
    std::thread::sleep(Duration::from_millis(100));
    enough.say().expect("said");
    let path = served.bench.directory.path().join("capture.pcapng");
    std::fs::write(&path, file.join().expect("a file")).expect("written");
    let frames = shown(&path);
    assert_both_legs_are_paired(&frames);
    let names: Vec<&str> = frames.iter().map(|frame| frame.interface.as_str()).collect();
    assert!(
        names.iter().all(|name| ["left.client", "left.server"].contains(name)),
        "{names:?}"
    );
    let syn = frames
        .iter()
        .find(|frame| frame.word("events").is_some_and(|events| events.contains("PortTaken")));
    let syn = syn.expect("a server was called");
    assert_eq!(
        (syn.word("server"), syn.word("client")),
        (Some("one"), Some("10.0.0.5:50001"))
    );
    let last = frames
        .iter()
        .rfind(|frame| frame.word("end").is_some())
        .expect("it has ended");
    assert!(last.word("end").is_some_and(|cause| cause.ends_with("Rst")), "{last:?}");
    assert!(
        frames
            .iter()
            .any(|frame| frame.comment.contains("record {\"start_ns\":")),
        "{frames:?}"
    );
    let bytes = tshark(&path, &["-T", "fields", "-e", "tcp.payload", "-Y", "tcp.len>0"]);
    assert!(
        bytes.contains("68656c6c6f") && bytes.contains("6d6f7265"),
        "hello and more: {bytes}"
    );
    served.end();
}

#[test]
fn only_those_are_written_that_end_for_the_cause_and_a_capture_ends_by_itself() {
    if !has_tshark("engine::capture::cause") {
        return;
    }
    let served = Served::start("proxy-capture-cause");
    let (file, _enough) = begin(&served, "cause=reset&duration=1500ms");
    served.bench.open(Station::new(6, "10.0.0.6:50002"));
    reset_by_server(&served, Station::new(7, "10.0.0.7:50003"));
    let path = served.bench.directory.path().join("capture.pcapng");
    std::fs::write(&path, file.join().expect("a file")).expect("written");
    let frames = shown(&path);
    assert!(frames.len() > 8, "{frames:?}");
    // What scripts/draw-capture.sh draws.
    if let Some(kept) = std::env::var_os("PROXYENGINE_KEEP_CAPTURE") {
        std::fs::copy(&path, kept).expect("kept");
    }
    let clients: Vec<_> = frames.iter().filter_map(|frame| frame.word("client")).collect();
    assert!(clients.iter().all(|client| *client == "10.0.0.7:50003"), "{clients:?}");
    assert_eq!(frames[0].word("kind"), Some("received"));
    // Headers only, unless payload is asked for.
    let payload = tshark(&path, &["-T", "fields", "-e", "tcp.payload"]);
    assert_eq!(payload.trim(), "");
    // Nobody was as slow as this.
    let (file, _enough) = begin(&served, "slower_than=10s&duration=300ms");
    reset_by_server(&served, Station::new(8, "10.0.0.8:50004"));
    std::fs::write(&path, file.join().expect("a file")).expect("written");
    assert!(shown(&path).is_empty());
    let (file, _enough) = begin(&served, "count=3");
    served.bench.open(Station::new(3, "10.0.0.3:50005"));
    std::fs::write(&path, file.join().expect("a file")).expect("written");
    assert_eq!(shown(&path).len(), 3);
    // The next may be asked for as soon as one is over.
    for _ in 0..20 {
        let (file, _enough) = begin(&served, "duration=1ms");
        file.join().expect("a file");
    }
    for (wrong, sentence) in [
        ("server=nobody", "there is no server `nobody`\n"),
        (
            "sample=often",
            "`sample=often`: expected one of how many, such as 1/1000\n",
        ),
        (
            "rule=1",
            "`rule`: expected `listener`, too, as rules are numbered there\n",
        ),
    ] {
        let (status, said) = served.change(&format!("capture?{wrong}"));
        assert_eq!((status, said.as_str()), (400, Some(sentence)));
    }
    served.end();
}
