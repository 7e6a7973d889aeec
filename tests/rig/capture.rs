//! Captures of what curl and nginx say to each other: taken by `ctl`, opened by tshark.

use std::collections::BTreeSet;
use std::path::PathBuf;

use rig::engine::EngineOptions;
use rig::process::Process;
use rig::tshark::{self, Shown};
use rig::{HOSTS, Place, Rig, RigOptions, SERVERS, servers};
use rustix::process::Signal;

use crate::setup::{LIMIT, Setup, binary, family_option};

/// Has `ctl` begin a capture; its file, which has begun.
fn begin(setup: &Setup, name: &str, arguments: &[&str]) -> (Process, PathBuf) {
    let (socket, file) = (setup.rig.file("control"), setup.rig.file(&format!("{name}.pcapng")));
    let mut ctl = setup.rig.command(Place::Engine, &binary().to_string_lossy());
    ctl.arg("ctl")
        .arg("--socket")
        .arg(socket)
        .args(["capture", "start", "--file"]);
    let log = setup.rig.file(&format!("{name}.log"));
    let mut ctl = Process::start(ctl.arg(&file).args(arguments), &log).expect("ctl runs");
    let has_begun = |_: &Process| std::fs::metadata(&file).is_ok_and(|file| file.len() > 0);
    let begun = ctl.wait_for("a capture", LIMIT, has_begun);
    begun.expect("a capture that has begun");
    (ctl, file)
}

/// Ends it with Ctrl-C.
fn end((mut ctl, file): (Process, PathBuf)) -> (PathBuf, Vec<Shown>) {
    ctl.signal(Signal::INT);
    let status = ctl.wait(LIMIT).expect("ctl ends");
    assert!(status.success(), "{}", ctl.printed());
    let frames = tshark::frames(&file);
    (file, frames)
}

/// Lets curl ask each server over both versions of IP.
fn fetch(setup: &Setup) {
    for (address, (number, host)) in setup
        .rig
        .engine_addresses()
        .into_iter()
        .flat_map(|address| HOSTS.iter().enumerate().map(move |host| (address, host)))
    {
        let url = format!("http://{host}/number/{number}");
        let arguments = [family_option(address), "-sS", "--max-time", "50", &url];
        let answer = setup.rig.run(Place::Clients, "curl", &arguments, LIMIT);
        let answer = answer.expect("curl is answered").text();
        assert_eq!(
            answer,
            format!("{} {host} /number/{number}\n", servers::name_of(number))
        );
    }
}

fn connections(frames: &[Shown]) -> BTreeSet<&str> {
    frames.iter().filter_map(|frame| frame.word("conn")).collect()
}

#[test]
fn tshark_pairs_both_legs_of_all_frames_of_curl_and_nginx() {
    if !tshark::is_there("capture::tshark_pairs") {
        return;
    }
    let Some(rig) = Rig::for_test(RigOptions::default(), &["curl", "nginx"]) else {
        return;
    };
    let options = EngineOptions {
        tables: format!("[control]\nsocket = \"{}\"\n", rig.file("control").display()),
        ..EngineOptions::default()
    };
    let setup = Setup::on(rig, &options, |rig| {
        let start = |index| servers::start_nginx(rig, index).expect("nginx starts");
        (0..SERVERS).map(start).collect()
    });
    let capture = begin(&setup, "all", &["--payload", "--snaplen", "9000"]);
    fetch(&setup);
    let (file, frames) = end(capture);
    let passed = tshark::paired(&frames);
    let count = 2 * SERVERS;
    // Answer, ACK and both FINs of each, at the least.
    assert!(passed >= 4 * count, "{passed} of {}", frames.len());
    assert_eq!(connections(&frames).len(), count);
    let ids: BTreeSet<u64> = frames
        .iter()
        .filter(|frame| frame.word("kind") == Some("passed"))
        .map(|frame| frame.id)
        .collect();
    for frame in frames.iter().filter(|frame| frame.word("kind") == Some("received")) {
        let is_spliced = frame.word("phase").is_some_and(|phase| phase.starts_with("Spliced"));
        let goes_on = is_spliced && frame.word("drop").is_none();
        assert!(!goes_on || ids.contains(&frame.id), "{frame:?}");
    }
    let with_record = frames.iter().filter(|frame| frame.comment.contains("record {"));
    assert_eq!(with_record.count(), count, "the record of each");
    // Both stacks' own view: the request and the answer on each leg of each connection, and nothing that TCP finds odd.
    let of = |filter: &str| tshark::said(&file, &["-2", "-Y", filter]).lines().count();
    assert_eq!((of("http.request"), of("http.response")), (2 * count, 2 * count));
    assert_eq!(of("tcp.analysis.lost_segment || tcp.analysis.ack_lost_segment"), 0);
    // The same for one rule of a listener.
    let capture = begin(&setup, "rule", &["--listener", "http4", "--rule", "1"]);
    fetch(&setup);
    let (_, frames) = end(capture);
    assert!(tshark::paired(&frames) >= 4, "{frames:?}");
    assert_eq!(connections(&frames).len(), 1, "of one listener");
    let rules: BTreeSet<_> = frames.iter().filter_map(|frame| frame.word("rule")).collect();
    assert_eq!(rules, BTreeSet::from(["1"]));
    setup.finish();
}
