//! What tshark says of a capture of the engine: frames with their comments, and what an engineer sees in Wireshark.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// A frame of a capture.
#[derive(Clone, Debug)]
pub struct Shown {
    /// The interface's name.
    pub interface: String,
    /// The packet ID, which frames share that were one.
    pub id: u64,
    /// The comments, one behind the other.
    pub comment: String,
}

impl Shown {
    /// The value behind a key in the comment.
    pub fn word(&self, key: &str) -> Option<&str> {
        let mut words = self.comment.split([' ', '\n']).filter_map(|word| word.split_once('='));
        words.find(|(name, _)| *name == key).map(|(_, value)| value)
    }
}

/// Whether there is a tshark; if not, `test` is skipped for that.
pub fn is_there(test: &str) -> bool {
    let is_there = Command::new("tshark").arg("--version").output().is_ok();
    if !is_there {
        crate::skip(test, "no tshark");
    }
    is_there
}

/// What tshark prints about `file` with these arguments.
///
/// # Panics
/// If it says a word on its standard error, but for whom it runs as.
pub fn said(file: &Path, arguments: &[&str]) -> String {
    said_by(Command::new("tshark"), file, arguments)
}

/// The same of a tshark with an environment of its own.
///
/// # Panics
/// As [`said`].
pub fn said_by(mut command: Command, file: &Path, arguments: &[&str]) -> String {
    command.arg("-n").arg("-r").arg(file).args(arguments);
    let output = command.env("HOME", "/nonexistent").output().expect("tshark runs");
    let complaints = String::from_utf8_lossy(&output.stderr).into_owned();
    let complaints: Vec<&str> = complaints
        .lines()
        .filter(|line| !line.contains("Running as user"))
        .collect();
    assert!(output.status.success() && complaints.is_empty(), "{complaints:?}");
    String::from_utf8(output.stdout).expect("text")
}

/// These fields of each frame of `file`, one line for each frame.
///
/// # Panics
/// As [`said`].
pub fn fields(file: &Path, arguments: &[&str], names: &[&str]) -> Vec<Vec<String>> {
    let names = names.iter().flat_map(|name| ["-e", name]);
    let how = ["-T", "fields", "-E", "separator=|", "-E", "aggregator= "];
    let all: Vec<&str> = arguments.iter().copied().chain(how).chain(names).collect();
    let text = said(file, &all);
    let split = |line: &str| line.split('|').map(str::to_owned).collect();
    text.lines().map(split).collect()
}

/// All frames of `file`.
///
/// # Panics
/// If tshark has anything to say against it.
pub fn frames(file: &Path) -> Vec<Shown> {
    let names = ["frame.interface_name", "frame.packet_id", "frame.comment"];
    let shown = |line: Vec<String>| {
        let [interface, id, comment @ ..] = &line[..] else {
            panic!("three fields: {line:?}");
        };
        let digits = id.strip_prefix("0x");
        let id = digits.map_or(id.parse(), |digits| u64::from_str_radix(digits, 16));
        Shown {
            interface: interface.clone(),
            id: id.expect("a number"),
            comment: comment.join("|"),
        }
    };
    fields(file, &[], &names).into_iter().map(shown).collect()
}

/// How many frames were passed on. Each came in on the other leg of the same connection, under the same number; what was held for its
/// server names those in which it came.
///
/// # Panics
/// If one did not.
pub fn paired(frames: &[Shown]) -> usize {
    let mut received: BTreeMap<u64, Vec<&Shown>> = BTreeMap::new();
    for frame in frames.iter().filter(|frame| frame.word("kind") == Some("received")) {
        received.entry(frame.id).or_default().push(frame);
    }
    let passed = frames.iter().filter(|frame| frame.word("kind") == Some("passed"));
    for frame in passed.clone() {
        let Some([other]) = received.get(&frame.id).map(Vec::as_slice) else {
            panic!("{frame:?} came from {:?}", received.get(&frame.id));
        };
        assert_ne!(other.word("leg"), frame.word("leg"), "the other leg of {frame:?}");
        assert_ne!(other.interface, frame.interface, "the other leg of {frame:?}");
        assert_eq!(other.word("conn"), frame.word("conn"), "{frame:?}");
    }
    for frame in frames.iter().filter(|frame| frame.word("kind") == Some("held")) {
        let of = frame
            .word("of")
            .unwrap_or_else(|| panic!("{frame:?} came from nowhere"));
        for packet in of.split(',') {
            let came = frames.iter().find(|other| other.word("pkt") == Some(packet));
            let came = came.unwrap_or_else(|| panic!("{frame:?} came from nowhere"));
            assert_eq!(
                (came.word("kind"), came.word("leg")),
                (Some("received"), Some("client"))
            );
            assert_eq!(
                (came.word("conn"), frame.word("leg")),
                (frame.word("conn"), Some("server"))
            );
        }
    }
    passed.count()
}
