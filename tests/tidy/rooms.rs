//! The rooms of the core's crate: which may use which is drawn in ARCHITECTURE.md.

use super::{File, code, files, hold, root, words};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;

const CORE: &str = "crates/splice/src/";

/// The shell: it alone may use every room, and it alone implements `Proxy`.
const SHELL: &str = "proxy";

/// The drawing: each room with those that it may use, in the order of its lines.
fn drawing() -> Vec<(String, BTreeSet<String>)> {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("a text");
    let (_, rooms) = text.split_once("\n## Rooms of the core\n").expect("the rooms");
    let rooms = rooms.split("\n## ").next().unwrap_or_default();
    let lines = rooms.lines().filter_map(|line| line.strip_prefix("    "));
    let lines = lines.filter_map(|line| line.split_once("─►"));
    let drawn = lines.map(|(room, used)| (room.trim().to_string(), words(used).map(String::from).collect()));
    drawn.collect()
}

/// The files of the core without its tests, with the room that each is in.
fn sources() -> Vec<(String, File)> {
    let all = files(".rs").into_iter();
    let of_core = all.filter(|file| file.path.starts_with(CORE) && !file.path.contains("/tests"));
    let of_rooms = of_core.filter(|file| file.path != format!("{CORE}lib.rs"));
    let with_room = of_rooms.map(|file| {
        let room = words(&file.path[CORE.len()..]).next().expect("a name").to_string();
        (room, file)
    });
    with_room.collect()
}

/// What a line names behind `crate::`.
fn named(line: &str) -> impl Iterator<Item = &str> {
    line.split("crate::").skip(1).filter_map(|rest| words(rest).next())
}

/// How far up a line goes by `super::`.
fn climbs(line: &str) -> usize {
    let paths = line.split(|c: char| !c.is_alphanumeric() && c != '_' && c != ':');
    let heights = paths.map(|path| path.split("::").take_while(|part| *part == "super").count());
    heights.max().unwrap_or_default()
}

/// How many modules a file is below the crate.
fn depth(path: &str) -> usize {
    let parts = path[CORE.len()..].split('/');
    parts.filter(|part| *part != "mod.rs").count()
}

#[test]
fn rooms_use_what_is_drawn() {
    let mut used = BTreeSet::new();
    let mut rooms = BTreeSet::new();
    for (room, File { path, text }) in sources() {
        for line in code(&text) {
            let others = named(line).filter(|other| *other != room);
            used.extend(others.map(|other| (room.clone(), other.to_string())));
            assert!(climbs(line) < depth(&path), "{path} leaves its room: {line}");
        }
        rooms.insert(room);
    }
    let drawn = drawing();
    let names: BTreeSet<String> = drawn.iter().map(|(room, _)| room.clone()).collect();
    assert_eq!(names, rooms, "the rooms drawn are those of {CORE}");
    let mut allowed = BTreeSet::new();
    for (place, (room, uses)) in drawn.iter().enumerate() {
        let above: Vec<_> = drawn[..place].iter().map(|(above, _)| above.as_str()).collect();
        let uses: BTreeMap<&str, ()> = if room == SHELL {
            above.iter().map(|above| (*above, ())).collect()
        } else {
            uses.iter().map(|other| (other.as_str(), ())).collect()
        };
        for other in uses.into_keys() {
            assert!(above.contains(&other), "{room} uses {other}, which is drawn below it");
            allowed.insert((room.clone(), other.to_string()));
        }
    }
    let unused: Vec<_> = allowed.difference(&used).filter(|(room, _)| room != SHELL).collect();
    assert!(unused.is_empty(), "drawn, and used by nothing: {unused:?}");
    let wrong = used.difference(&allowed);
    let wrong = wrong.map(|(room, other)| format!("{room} uses {other}"));
    hold("rooms of the core use what ARCHITECTURE.md draws", wrong);
}

#[test]
fn only_the_shell_implements_the_proxy() {
    let implements = |line: &str| line.starts_with("impl") && words(line).any(|word| word == "Proxy");
    for (room, File { path, text }) in sources() {
        assert!(room == SHELL || !code(&text).any(implements), "{path}");
    }
}

#[test]
fn uses_are_found() {
    let line = "use crate::base::ids; fn f() -> super::super::A { crate::icmp::f(super::b) }";
    assert_eq!(named(line).collect::<Vec<_>>(), ["base", "icmp"]);
    assert_eq!((climbs(line), climbs("a::super_b")), (2, 0));
    let depths = ["icmp.rs", "base/mod.rs", "base/ids.rs", "base/callbacks/inspect.rs"];
    assert_eq!(depths.map(|path| depth(&format!("{CORE}{path}"))), [1, 1, 2, 3]);
}
