//! What keeps the code readable, held in every file: lengths, items that documents name, what packet threads do not do,
//! and public functions that somebody uses. Today's exceptions are in `exceptions.txt`; one that is no longer needed fails.

mod rooms;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Of a file.
const MOST_LINES: usize = 500;

/// Of a function, from its first to the one with its closing brace.
const MOST_LINES_OF_FUNCTION: usize = 70;

/// What packet threads run, as paths begin. In the kernel path the TAP's thread may wait; in engine, records and reports
/// the main thread may.
const QUIET: [&str; 10] = [
    "crates/e2d2/src/operators/",
    "crates/e2d2/src/scheduler/",
    "crates/e2d2/src/wire/",
    "crates/netfcts/src/",
    "crates/splice/src/",
    "src/kernel/claims.rs",
    "src/kernel/end.rs",
    "src/neighbour/",
    "src/pipeline.rs",
    "src/selectors/",
];

/// Clocks, locks, the log and formatting.
const LOUD: [&str; 14] = [
    "Instant::now",
    "SystemTime",
    "Mutex",
    "RwLock",
    "Condvar",
    "Atomic",
    "sleep(",
    "println!",
    "format!",
    "error!(",
    "warn!(",
    "info!(",
    "debug!(",
    "trace!(",
];

struct File {
    /// From the root, with `/`.
    path: String,
    text: String,
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The files of the repository whose names end so.
fn files(ending: &str) -> Vec<File> {
    let mut found = Vec::new();
    collect(&root(), ending, &mut found);
    assert!(!found.is_empty(), "no {ending}");
    found
}

fn collect(folder: &Path, ending: &str, found: &mut Vec<File>) {
    for entry in fs::read_dir(folder).expect("a readable folder").flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        if path.is_dir() && !name.starts_with('.') && !name.starts_with("target") {
            collect(&path, ending, found);
        } else if path.is_file() && name.ends_with(ending) {
            let text = fs::read_to_string(&path).expect("a text");
            let path = path.strip_prefix(root()).expect("a file of the repository");
            let path = path.to_string_lossy().into_owned();
            found.push(File { path, text });
        }
    }
}

/// Holds what breaks a rule against its exceptions, which stand below its name.
fn hold(rule: &str, broken_by: impl IntoIterator<Item = String>) {
    let title = format!("[{rule}]");
    let below = include_str!("exceptions.txt")
        .lines()
        .skip_while(|line| *line != title)
        .skip(1);
    let known: BTreeSet<String> = below.take_while(|line| !line.is_empty()).map(String::from).collect();
    let found: BTreeSet<String> = broken_by.into_iter().collect();
    let new: Vec<_> = found.difference(&known).collect();
    assert!(new.is_empty(), "{rule}, but: {new:#?}");
    let gone: Vec<_> = known.difference(&found).collect();
    assert!(gone.is_empty(), "{rule}: these are no exceptions any more: {gone:#?}");
}

/// The lines before the tests, which come last, without comments.
fn code(text: &str) -> impl Iterator<Item = &str> {
    let lines = text.lines().take_while(|line| *line != "#[cfg(test)]");
    lines.map(|line| line.split_once("//").map_or(line, |(code, _)| code))
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    let of_none = |c: char| !c.is_alphanumeric() && c != '_';
    text.split(of_none).filter(|word| !word.is_empty())
}

/// The name behind `keyword` in a line that declares something so, and whether it is public.
fn declared<'a>(line: &'a str, keyword: &str) -> Option<(&'a str, bool)> {
    let (before, after) = line.trim_start().split_once(keyword)?;
    let is_modifier = |word: &str| {
        matches!(word, "pub" | "const" | "async" | "unsafe" | "extern" | "\"C\"")
            || word.starts_with("pub(")
            || word.ends_with(')')
    };
    let is_declaration = before.is_empty() || before.ends_with(' ') && before.split_whitespace().all(is_modifier);
    let name = words(after).next().filter(|name| after.starts_with(name))?;
    is_declaration.then_some((name, before.starts_with("pub ")))
}

/// The functions of a text that rustfmt has laid out, with their lengths: each ends with a brace below its first
/// character.
fn functions(text: &str) -> Vec<(&str, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (first, line) in lines.iter().enumerate() {
        let Some((name, _)) = declared(line, "fn ") else {
            continue;
        };
        let indent = &line[..line.len() - line.trim_start().len()];
        let rest = &lines[first..];
        let signature = rest.iter().position(|line| line.ends_with(['{', '}', ';']));
        let has_body = signature.is_some_and(|last| rest[last].ends_with('{'));
        let is_end = |line: &&str| line.strip_prefix(indent) == Some("}");
        if let Some(last) = rest.iter().position(is_end).filter(|_| has_body) {
            found.push((name, last + 1));
        }
    }
    found
}

#[test]
fn no_file_is_too_long() {
    let long = files(".rs").into_iter();
    let long = long.filter(|file| file.text.lines().count() > MOST_LINES);
    hold("a file has at most 500 lines", long.map(|file| file.path));
}

#[test]
fn no_function_is_too_long() {
    let mut long = Vec::new();
    for File { path, text } in files(".rs") {
        let of_file = functions(&text).into_iter();
        let of_file = of_file.filter(|(_, lines)| *lines > MOST_LINES_OF_FUNCTION);
        long.extend(of_file.map(|(name, _)| format!("{path} {name}")));
    }
    hold("a function has at most 70 lines", long);
}

#[test]
fn the_length_of_a_function_is_found() {
    let text = "trait T {\n    fn a();\n    pub(in crate::b) const fn b(\n        c: u8,\n    ) -> u8 {\n        d(|| {\n        })\n    }\n}\n\
                fn e() {}\n// fn f() {\nasync fn g() {\n}\n";
    assert_eq!(functions(text), [("b", 6), ("g", 2)]);
}

/// A plan names what does not exist yet. Files are looked for in `tests/documented/`.
const PLANS: &str = "docs/lab/";

#[test]
fn items_and_links_of_documents_exist() {
    let sources = files(".rs");
    let mut known: BTreeSet<&str> = sources.iter().flat_map(|file| words(&file.text)).collect();
    known.extend(sources.iter().flat_map(|file| words(&file.path)));
    // `beginning_*` stands for several.
    let is_word = |word: &str| {
        known.contains(word)
            || word.ends_with('_') && known.range(word..).next().is_some_and(|next| next.starts_with(word))
    };
    let mut unknown = Vec::new();
    for File { path, text } in files(".md").iter().filter(|file| !file.path.starts_with(PLANS)) {
        let mut note = |name: &str| unknown.push(format!("{path} {name}"));
        links(text)
            .filter(|link| !leads_somewhere(path, link))
            .for_each(&mut note);
        for item in items(text) {
            if !item.split("::").all(is_word) {
                note(item);
            }
        }
    }
    hold("items and links of documents exist", unknown);
}

/// What a Markdown text links to in the repository: files, headings, or both.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    targets
        .map(|(target, _)| target)
        .filter(|target| !target.is_empty() && !target.contains("://"))
}

/// Whether the file of a link is there, seen from another, and has the heading.
fn leads_somewhere(from: &str, link: &str) -> bool {
    let (file, heading) = link.split_once('#').unwrap_or((link, ""));
    let from = root().join(from);
    let to = if file.is_empty() {
        from
    } else {
        from.with_file_name(file)
    };
    if heading.is_empty() {
        return to.exists();
    }
    let text = fs::read_to_string(to).unwrap_or_default();
    let titles = text.lines().filter(|line| line.starts_with('#'));
    titles.map(anchor).any(|anchor| anchor == heading)
}

/// What a heading is called in links, by GitHub and mdbook alike.
fn anchor(heading: &str) -> String {
    let kept = heading.trim_start_matches('#').trim().chars();
    let kept = kept.filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

#[test]
fn links_lead_to_headings_that_are_there() {
    assert_eq!(
        anchor("## `[promise]` — what SYN-ACKs promise"),
        "promise--what-syn-acks-promise"
    );
    assert!(leads_somewhere("docs/start.md", "packages.md#the-service"));
    assert!(leads_somewhere("docs/start.md", "#on-a-nic"));
    assert!(!leads_somewhere("docs/start.md", "packages.md#no-such-heading"));
    assert!(!leads_somewhere("docs/start.md", "../packages.md"));
}

/// Paths of items between backticks, such as `Segment::read`.
fn items(text: &str) -> impl Iterator<Item = &str> {
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("```"));
    let quoted = lines.flat_map(|line| line.split('`').skip(1).step_by(2));
    let paths = quoted.flat_map(|code| code.split(|c: char| !c.is_alphanumeric() && c != '_' && c != ':'));
    let paths = paths.map(|path| path.trim_matches(':'));
    let is_name = |part: &str| part.starts_with(|c: char| c.is_alphabetic() || c == '_') && !part.contains(':');
    paths.filter(move |path| path.contains("::") && path.split("::").all(is_name))
}

#[test]
fn packet_threads_neither_wait_nor_write() {
    let mut loud = Vec::new();
    let is_quiet = |path: &str| QUIET.iter().any(|beginning| path.starts_with(beginning)) && !path.contains("/tests");
    for File { path, text } in files(".rs").iter().filter(|file| is_quiet(&file.path)) {
        let has = |word: &str| code(text).any(|line| line.contains(word));
        let words = LOUD.iter().filter(|word| has(word));
        loud.extend(words.map(|word| format!("{path} {word}")));
    }
    hold("packet threads use no clock, lock, atomic, log or formatter", loud);
}

#[test]
fn public_functions_have_users() {
    let sources = files(".rs");
    let mut users: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for File { path, text } in &sources {
        for word in words(text) {
            users.entry(word).or_default().insert(path);
        }
    }
    let mut unused = Vec::new();
    for File { path, text } in sources.iter().filter(|file| file.path.contains("src/")) {
        for line in code(text) {
            let item = declared(line, "fn ").or_else(|| declared(line, "const "));
            if let Some((name, true)) = item
                && users.get(name).is_some_and(|files| files.len() == 1)
            {
                unused.push(format!("{path} {name}"));
            }
        }
    }
    hold("what is public is used outside its file", unused);
}
