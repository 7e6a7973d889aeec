//! Pictures of the manual: small, shown somewhere, and of the programs as they are.
//!
//! That those of the status page show its columns is held by `tests/rig/page.rs`, which has a browser; those of `top` in `src/main/top`.

use std::collections::BTreeSet;
use std::fs;

use super::reference::{all_lists, list};
use super::{files, root};

/// Of each picture: it is read over networks, and kept in every copy of the repository.
const MOST_BYTES: u64 = 61_440;

#[test]
fn the_picture_of_binding_is_what_its_script_draws() {
    let drawn = std::process::Command::new(root().join("scripts/draw-binding.sh")).output();
    let drawn = drawn.expect("bash");
    assert!(drawn.status.success(), "{drawn:?}");
    let kept = fs::read(root().join("docs/binding.svg")).expect("the picture");
    assert!(drawn.stdout == kept, "scripts/draw-binding.sh >docs/binding.svg");
}

#[test]
fn pictures_are_small_and_shown() {
    let mut known = BTreeSet::new();
    files(&root().join("docs"), &mut known);
    let documents = known.iter().filter(|path| path.ends_with(".md"));
    let mut texts: Vec<String> = documents
        .map(|path| fs::read_to_string(root().join(path)).expect("a document"))
        .collect();
    texts.push(fs::read_to_string(root().join("README.md")).expect("a document"));
    let is_picture = |path: &&String| path.ends_with(".png") || path.ends_with(".svg");
    let pictures: Vec<_> = known.iter().filter(is_picture).collect();
    assert!(pictures.len() >= 7, "{pictures:?}");
    for path in pictures {
        let size = fs::metadata(root().join(path)).expect("a picture").len();
        assert!(size <= MOST_BYTES, "{path} has {size} bytes, more than {MOST_BYTES}");
        let name = path.rsplit('/').next().expect("a name");
        let is_shown = texts.iter().any(|text| text.contains(&format!("{name})")));
        assert!(is_shown, "{path} is in no document");
    }
}

/// A picture's cells by their columns, the names of which are in its first line.
fn cells(picture: &str) -> Vec<(String, &str)> {
    let (mut heads, mut cells) = (Vec::new(), Vec::new());
    for cell in picture.lines().filter_map(|line| line.strip_prefix("<text x=\"")) {
        let (x, rest) = cell.split_once('"').expect("a place");
        let text = rest
            .split_once('>')
            .map_or("", |(_, text)| text.trim_end_matches("</text>"));
        if rest.contains("class=\"head\"") {
            heads.push((x, text.to_owned()));
        } else {
            let (_, head) = heads.iter().find(|(of, _)| *of == x).expect("a column");
            cells.push((head.clone(), text));
        }
    }
    cells
}

#[test]
fn the_picture_of_a_capture_has_the_words_of_today() {
    let picture = fs::read_to_string(root().join("docs/capture.svg")).expect("the picture");
    let cells = cells(&picture);
    let column = |name: &str| {
        let of = cells.iter().filter(|(head, _)| head == name).map(|(_, text)| *text);
        of.flat_map(|text| text.split(';')).collect::<BTreeSet<&str>>()
    };
    let lists = all_lists();
    let names = |name: &str, title: &str| -> BTreeSet<String> {
        let entries = &list(&lists, name, title).entries;
        entries.iter().map(|(name, _)| name.to_lowercase()).collect()
    };
    let causes = names("Cause", "");
    for (shown, known) in [
        (column("Ended by"), causes),
        (
            column("Kind"),
            ["received", "passed", "held", "own"].map(str::to_owned).into(),
        ),
    ] {
        assert!(!shown.is_empty());
        for word in shown {
            assert!(
                known.contains(&word.to_lowercase()),
                "no {word}: run scripts/screenshots.sh"
            );
        }
    }
    let source = fs::read_to_string(root().join("crates/splice/src/session/event.rs")).expect("the events");
    let events = column("Events");
    assert!(events.len() > 5, "{events:?}");
    for event in events {
        let name = event.split('(').next().unwrap_or_default();
        let is_there = ["(", ",", " {"]
            .iter()
            .any(|end| source.contains(&format!("\n    {name}{end}")));
        assert!(is_there, "no event {event}: run scripts/screenshots.sh");
    }
}
