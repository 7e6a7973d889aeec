//! A capture over the control socket: what tshark says of the file, who gets one, and when it ends.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::JoinHandle;
use std::time::Duration;

use control::http::{Endpoint, client};
use control::metrics::Format;
use e2d2::wire::tcp::TcpFlags;
use proxyengine::status::metrics;
use rig::process::Process;
use rig::tshark;
use rustix::process::Signal;
use testkit::{Segment, Station};

use crate::reload::{ONE, TWO, versions};
use crate::status::Served;

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

/// The file of a capture that is over, in the engine's folder.
fn written(served: &Served, file: JoinHandle<Vec<u8>>) -> PathBuf {
    let path = served.bench.directory.path().join("capture.pcapng");
    std::fs::write(&path, file.join().expect("a file")).expect("written");
    path
}

#[test]
fn tshark_opens_a_capture_and_both_legs_of_every_frame_are_paired() {
    if !tshark::is_there("engine::capture::paired") {
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
    let path = written(&served, file);
    let frames = tshark::frames(&path);
    assert!(tshark::paired(&frames) >= 2, "{frames:?}");
    let told = metrics::text(&served.bench.engine.watch(), Format::Text);
    for (fate, count) in [("written", frames.len()), ("lost", 0)] {
        let line = format!("proxyengine_captured_frames_total{{fate=\"{fate}\"}} {count}\n");
        assert!(told.contains(&line), "{line} in {told}");
    }
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
    let bytes = tshark::said(&path, &["-T", "fields", "-e", "tcp.payload", "-Y", "tcp.len>0"]);
    assert!(
        bytes.contains("68656c6c6f") && bytes.contains("6d6f7265"),
        "hello and more: {bytes}"
    );
    served.end();
}

#[test]
fn only_those_are_written_that_end_for_the_cause_and_a_capture_ends_by_itself() {
    if !tshark::is_there("engine::capture::cause") {
        return;
    }
    let served = Served::start("proxy-capture-cause");
    let (file, _enough) = begin(&served, "cause=reset&duration=1500ms");
    served.bench.open(Station::new(6, "10.0.0.6:50002"));
    reset_by_server(&served, Station::new(7, "10.0.0.7:50003"));
    // The RSTs are the engine's own.
    served.bench.open(Station::new(9, "10.0.0.9:50004"));
    assert_eq!(served.change("connections/end?client=10.0.0.9").1["ended"], 1);
    let path = written(&served, file);
    let frames = tshark::frames(&path);
    let of = |client| frames.iter().filter(move |frame| frame.word("client") == Some(client));
    let (by_server, by_engine) = (of("10.0.0.7:50003").count(), of("10.0.0.9:50004").count());
    assert!(by_server > 6 && by_engine > 6, "{frames:?}");
    let others = frames.iter().filter_map(|frame| frame.word("client"));
    assert_eq!(others.count(), by_server + by_engine, "{frames:?}");
    let mut ends = frames.iter().filter_map(|frame| frame.word("end"));
    assert_eq!((ends.next(), ends.next()), (Some("PassiveRst"), Some("Shutdown")));
    assert_eq!(frames[0].word("kind"), Some("received"));
    // Headers only, unless payload is asked for.
    let payload = tshark::said(&path, &["-T", "fields", "-e", "tcp.payload"]);
    assert_eq!(payload.trim(), "");
    // Nobody was as slow as this.
    let (file, _enough) = begin(&served, "slower_than=10s&duration=300ms");
    reset_by_server(&served, Station::new(8, "10.0.0.8:50004"));
    let path = written(&served, file);
    assert!(tshark::frames(&path).is_empty());
    let (file, _enough) = begin(&served, "count=3");
    served.bench.open(Station::new(3, "10.0.0.3:50005"));
    let path = written(&served, file);
    assert_eq!(tshark::frames(&path).len(), 3);
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
        ("payload=0", "`payload=0`: it takes no value\n"),
    ] {
        let (status, said) = served.change(&format!("capture?{wrong}"));
        assert_eq!((status, said.as_str()), (400, Some(sentence)));
    }
    served.end();
}

/// More than `ctl` needs on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn ctrl_c_has_the_engine_end_the_file_which_is_its_owners() {
    if !tshark::is_there("engine::capture::ctrl_c") {
        return;
    }
    let served = Served::start("proxy-capture-ctl");
    let Endpoint::Unix(socket) = &served.socket else {
        panic!("a Unix socket");
    };
    let path = served.bench.directory.path().join("ctl.pcapng");
    let mut ctl = Command::new(env!("CARGO_BIN_EXE_proxyengine"));
    ctl.arg("ctl").arg("--socket").arg(socket);
    ctl.args(["capture", "start", "--client", "10.0.0.5", "--file"])
        .arg(&path);
    let log = served.bench.directory.path().join("ctl.log");
    let mut ctl = Process::start(&mut ctl, &log).expect("ctl runs");
    let length = || std::fs::metadata(&path).map_or(0, |file| file.len());
    let begins = ctl.wait_for("a file that has begun", LIMIT, |_| length() > 0);
    begins.expect("a capture");
    let head = length();
    let client = Station::new(5, "10.0.0.5:50000");
    served.bench.open(client);
    let grows = ctl.wait_for("frames", LIMIT, |_| length() > head);
    grows.expect("what has come is written at once");
    reset_by_server(&served, client.with_port(50_001));
    ctl.signal(Signal::INT);
    let status = ctl.wait(LIMIT).expect("it ends");
    assert!(status.success(), "{status}: {}", ctl.printed());
    let mode = std::fs::metadata(&path).expect("a file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let frames = tshark::frames(&path);
    assert_eq!(tshark::paired(&frames), 1, "the RST: {frames:?}");
    assert!(frames.iter().any(|frame| frame.word("end").is_some()), "{frames:?}");
    // pcapng 4.6: what the file ends with says how many were lost.
    let bytes = std::fs::read(&path).expect("read");
    let length = u32::from_le_bytes(*bytes.last_chunk().expect("a length"));
    assert_eq!(bytes[bytes.len() - length as usize..][..4], 5_u32.to_le_bytes());
    served.end();
}

#[test]
fn only_what_is_asked_for_is_captured() {
    if !tshark::is_there("engine::capture::rule") {
        return;
    }
    let rules = r#"{ name = "greeting", prefix = "hel", pool = "pool" }, { prefix = "x", pool = "pool" }"#;
    let served = Served::start_by("proxy-capture-rule", rules);
    for (port, query, count) in [
        (50_000, "listener=web&rule=greeting", 1),
        (50_001, "rule=1&listener=web", 0),
        (50_002, "listener=web&server=one&rule=greeting", 1),
        (50_003, "server=one", 1),
        (50_004, "sample=1/1", 1),
        (50_005, "sample=1/4000000000", 0),
        // Its server never says a word.
        (50_006, "slower_than=1ns", 1),
        (50_007, "slower_than=1h", 0),
    ] {
        let (file, enough) = begin(&served, query);
        reset_by_server(&served, Station::new(5, "10.0.0.5:50000").with_port(port));
        std::thread::sleep(Duration::from_millis(100));
        enough.say().expect("said");
        let frames = tshark::frames(&written(&served, file));
        let ends = frames.iter().filter(|frame| frame.word("end").is_some()).count();
        assert_eq!(ends, count, "{query}: {frames:?}");
        assert!(count == 1 || frames.is_empty(), "{query}: {frames:?}");
        let rules: Vec<_> = frames.iter().filter_map(|frame| frame.word("rule")).collect();
        assert!(rules.iter().all(|rule| *rule == "greeting"), "{query}: {frames:?}");
        assert_eq!(rules.is_empty(), count == 0, "{query}: {frames:?}");
        // From its SYN on, though its rule was not known then.
        assert!(
            count == 0 || frames[0].word("kind") == Some("received"),
            "{query}: {frames:?}"
        );
    }
    let (status, said) = served.change("capture?listener=web&rule=none");
    assert_eq!(
        (status, said.as_str()),
        (400, Some("listener `web` has no rule `none`\n"))
    );
    served.end();
}

#[test]
fn wiresharks_script_makes_fields_of_the_comments_and_links_twins() {
    if !tshark::is_there("engine::capture::lua") {
        return;
    }
    let served = Served::start("proxy-capture-lua");
    let (file, enough) = begin(&served, "");
    reset_by_server(&served, Station::new(5, "10.0.0.5:50000"));
    std::thread::sleep(Duration::from_millis(100));
    enough.say().expect("said");
    let path = written(&served, file);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/wireshark/proxyengine.lua");
    let script = format!("lua_script:{}", script.display());
    let words = ["conn", "pkt", "leg", "kind", "of", "client", "server", "events", "end"];
    let names: Vec<String> = words.iter().map(|word| format!("proxyengine.{word}")).collect();
    let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
    names.extend(["proxyengine.twin", "proxyengine.came", "proxyengine.record"]);
    // With two passes, of which the first looks at fields as Wireshark does for its colours, every frame knows its twins.
    let told = tshark::fields(&path, &["-2", "-R", "frame", "-X", &script], &names);
    let frames = tshark::frames(&path);
    assert_eq!(told.len(), frames.len());
    for (fields, frame) in told.iter().zip(&frames) {
        for (field, word) in fields.iter().zip(words) {
            assert_eq!(field, frame.word(word).unwrap_or_default(), "{word} of {frame:?}");
        }
        let same = |(_, other): &(usize, &tshark::Shown)| other.id == frame.id && !std::ptr::eq(*other, frame);
        let twins = (1..).zip(&frames).filter(same).map(|(number, _)| number.to_string());
        assert_eq!(fields[words.len()], twins.collect::<Vec<_>>().join(" "), "{frame:?}");
        let came = |other: &tshark::Shown| other.word("pkt") == frame.word("of");
        let came = frames
            .iter()
            .position(came)
            .map_or(String::new(), |place| (place + 1).to_string());
        assert_eq!(fields[words.len() + 1], came, "{frame:?}");
    }
    assert!(frames.iter().any(|frame| frame.word("of").is_some()), "its request");
    assert!(
        told.iter()
            .any(|fields| fields.last().is_some_and(|record| record.starts_with("{\"start_ns\":")))
    );
    // The profile: its columns, and its colour of a connection's end.
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/wireshark");
    let mut with_profile = Command::new("tshark");
    with_profile.env("WIRESHARK_CONFIG_DIR", folder);
    let how = ["-C", "proxyengine", "-X", &script, "-T", "psml", "--color"];
    let shown = tshark::said_by(with_profile, &path, &how);
    let (columns, packets) = shown.split_once("</structure>").expect("a structure");
    let of_packet = |packet: &&str| packet.contains("<section>PassiveRst</section>");
    let end = packets.split("<packet").find(of_packet).expect("an end");
    assert!(
        columns.contains("<section>Ended</section>") && end.contains("#fffacd"),
        "{shown}"
    );
    let of_server = tshark::said(
        &path,
        &[
            "-X",
            &script,
            "-Y",
            "proxyengine.conn == 1 && proxyengine.leg == \"server\"",
        ],
    );
    let on_leg = frames.iter().filter(|frame| frame.word("leg") == Some("server"));
    assert_eq!(of_server.lines().count(), on_leg.count());
    served.end();
}

/// Numbers of servers are given again: nobody is taken for another.
#[test]
fn a_reload_changes_names_and_ends_the_capture_of_a_server_that_is_gone() {
    if !tshark::is_there("engine::capture::reload") {
        return;
    }
    let mut served = Served::start("proxy-capture-reload");
    let three = ONE.replace("\"one\"", "\"three\"");
    let [two, three] = versions(&served.bench, [TWO.to_owned(), three]);
    let (file, _enough) = begin(&served, "server=one");
    served
        .bench
        .engine
        .reload(&two)
        .unwrap_or_else(|error| panic!("{error}"));
    let deadline = std::time::Instant::now() + LIMIT;
    while !file.is_finished() {
        assert!(std::time::Instant::now() < deadline, "the capture goes on");
        served.bench.engine.forget_past();
        std::thread::sleep(Duration::from_millis(5));
    }
    let bytes = file.join().expect("a file");
    let said = "ended by a reload: there is no server `one`";
    assert!(bytes.windows(said.len()).any(|bytes| bytes == said.as_bytes()));
    let (file, enough) = begin(&served, "");
    served
        .bench
        .engine
        .reload(&three)
        .unwrap_or_else(|error| panic!("{error}"));
    reset_by_server(&served, Station::new(5, "10.0.0.5:50000"));
    std::thread::sleep(Duration::from_millis(100));
    enough.say().expect("said");
    let frames = tshark::frames(&written(&served, file));
    let servers: Vec<_> = frames.iter().filter_map(|frame| frame.word("server")).collect();
    assert!(
        !servers.is_empty() && servers.iter().all(|name| *name == "three"),
        "{frames:?}"
    );
    served.end();
}

/// The engine does not end before the file of a capture has.
#[test]
fn a_capture_ends_with_the_engine() {
    let served = Served::start("proxy-capture-end");
    let (file, _enough) = begin(&served, "");
    reset_by_server(&served, Station::new(5, "10.0.0.5:50001"));
    let watch = served.bench.engine.watch();
    served.bench.engine.shutdown();
    assert!(watch.claim_capture().is_some(), "it is over");
    let file = file.join().expect("a file");
    // An interface statistics block (draft-ietf-opsawg-pcapng 4.6) is the last one.
    let length = u32::from_ne_bytes(*file.last_chunk().expect("a block")) as usize;
    let last = &file[file.len() - length..];
    assert_eq!(last[..4], 5_u32.to_ne_bytes());
}
