//! `docs/reference/`: written from the code, and held against it. After a change that is meant: `UPDATE_GOLDEN=1 cargo test
//! --test documented reference`.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::process::Command;

use super::{files, keys, root};

/// Names with what the code says of them.
pub(crate) struct Listed {
    /// Of the whole.
    title: String,
    pub(crate) entries: Vec<(String, String)>,
}

/// The enums and flags of a source with a doc comment for each variant: `Variant = "name"`, `Variant = 1`, `Variant`, or
/// `const NAME = 1`; by their names.
fn lists(text: &str) -> Vec<(String, Listed)> {
    let (mut found, mut doc): (Vec<(String, Listed)>, _) = (Vec::new(), String::new());
    for line in text.lines().map(str::trim) {
        if let Some(more) = line.strip_prefix("///") {
            doc.push_str(more);
        } else if let Some(name) = enum_name(line) {
            let title = plain(&std::mem::take(&mut doc));
            found.push((
                name.to_owned(),
                Listed {
                    title,
                    entries: Vec::new(),
                },
            ));
        } else if !line.starts_with("#[") {
            let doc = plain(&std::mem::take(&mut doc));
            if let (Some((_, listed)), Some(name)) = (found.last_mut(), variant(line).filter(|_| !doc.is_empty())) {
                listed.entries.push((name, doc));
            }
        }
    }
    found
}

fn enum_name(line: &str) -> Option<&str> {
    let rest = line.trim_start_matches("pub ");
    let rest = rest
        .strip_prefix("enum ")
        .or_else(|| rest.strip_prefix("struct RecordFlags").map(|_| "RecordFlags {"))?;
    rest.strip_suffix(" {")
}

/// The name that a variant is counted or written under.
fn variant(line: &str) -> Option<String> {
    let line = line.strip_suffix([',', ';'])?;
    let (name, value) = line.split_once(" = ").unwrap_or((line, ""));
    let name = name.trim_start_matches("const ");
    let is_name = name.chars().all(|c| c.is_alphanumeric() || c == '_') && name.starts_with(char::is_uppercase);
    let written = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
    is_name.then(|| written.unwrap_or(name).to_owned())
}

/// A doc comment without what is for readers of the code.
fn plain(doc: &str) -> String {
    let mut text = doc.trim().trim_end_matches('.').to_owned();
    while let Some((before, rest)) = text.split_once("[`") {
        let Some((name, after)) = rest.split_once("`]") else {
            break;
        };
        let after = match after.strip_prefix('(') {
            Some(target) => target.split_once(')').map_or("", |(_, after)| after),
            None => after,
        };
        text = format!("{before}`{name}`{after}");
    }
    text
}

/// All lists of the engine, but for those of tests and benchmarks.
pub(crate) fn all_lists() -> Vec<(String, Listed)> {
    let mut paths = BTreeSet::new();
    files(&root(), &mut paths);
    let sources = paths.iter().filter(|path| {
        let is_source = path.starts_with("src/") || path.starts_with("crates/") && path.contains("/src/");
        is_source && path.ends_with(".rs")
    });
    let texts = sources.map(|path| fs::read_to_string(root().join(path)).expect("a source"));
    texts.flat_map(|text| lists(&text)).collect()
}

/// The one list of that name whose title begins so.
pub(crate) fn list<'a>(lists: &'a [(String, Listed)], name: &str, title: &str) -> &'a Listed {
    let mut found = lists
        .iter()
        .filter(|(known, listed)| known == name && listed.title.starts_with(title));
    let (_, listed) = found.next().unwrap_or_else(|| panic!("no enum {name}: {title}"));
    assert!(
        found.next().is_none() && !listed.entries.is_empty(),
        "enum {name}: {title}"
    );
    listed
}

/// Groups of the report: where their names are declared, and what is counted.
const GROUPS: [(&str, &str, &str, &str); 12] = [
    (
        "tcp_client` and `tcp_server",
        "TcpCounter",
        "What is counted",
        "segments on either side",
    ),
    (
        "proxy_drops",
        "DropReason",
        "Why the core dropped",
        "TCP packets that the proxy did not pass on",
    ),
    (
        "graph_drops",
        "DropReason",
        "Why this crate dropped",
        "frames that did not reach anyone",
    ),
    (
        "neighbour_drops",
        "NeighbourDrop",
        "",
        "ARP, ICMP and neighbour discovery that were not answered or used",
    ),
    (
        "kernel_drops",
        "KernelDrop",
        "",
        "frames that did not pass to the kernel or from it",
    ),
    ("calls", "CallEvent", "", "calls to servers, and servers passed over"),
    ("checks", "CheckEvent", "", "SYNs that ask whether servers live"),
    ("probes", "ProbeEvent", "", "SYNs that ask servers what they can do"),
    (
        "steering",
        "SteeringEvent",
        "",
        "with several cores, packets and their cores",
    ),
    (
        "neighbour",
        "NeighbourEvent",
        "",
        "answers, announcements, questions, changes",
    ),
    ("kernel", "KernelEvent", "", "frames to the kernel and from it"),
    ("traffic", "Traffic", "", "packets through the graph"),
];

/// Groups that are put together where they are reported.
const OTHERS: [(&str, &[(&str, &str)]); 2] = [
    (
        "time_wait",
        &[("evicted", "Connections in TIME-WAIT that had to make room for others")],
    ),
    (
        "waiting",
        &[
            (
                "rx",
                "Frames that wait now in the receive queues, where their drivers tell",
            ),
            ("handover", "Packets that wait now on their way from other cores"),
        ],
    ),
];

/// The fields of a struct under the names of the report, where these are put beside what `owner` has.
fn fields(structure: &str, owner: &str) -> Vec<(String, String)> {
    let mut paths = BTreeSet::new();
    files(&root(), &mut paths);
    let (mut fields, mut names) = (Vec::new(), Vec::new());
    for path in paths
        .iter()
        .filter(|path| path.contains("src/") && path.ends_with(".rs"))
    {
        let text = fs::read_to_string(root().join(path)).expect("a source");
        if let Some((_, rest)) = text.split_once(&format!("pub struct {structure} {{")) {
            let mut doc = String::new();
            for line in rest.lines().map(str::trim).take_while(|line| *line != "}") {
                match line.strip_prefix("pub ").and_then(|line| line.split(':').next()) {
                    Some(field) => fields.push((field.to_owned(), plain(&std::mem::take(&mut doc)))),
                    None => doc.push_str(line.trim_start_matches('/')),
                }
            }
        }
        for line in text.lines().map(str::trim) {
            let pair = line.strip_prefix("(\"").and_then(|line| line.strip_suffix("),"));
            if let Some((name, field)) = pair.and_then(|pair| pair.split_once(&format!("\", {owner}."))) {
                names.push((name.to_owned(), field.to_owned()));
            }
        }
    }
    let meaning = |field: &str| {
        fields
            .iter()
            .find(|(known, _)| known == field)
            .map(|(_, doc)| doc.clone())
    };
    let named = names
        .into_iter()
        .filter_map(|(name, field)| Some((name, meaning(&field)?)));
    let named: Vec<_> = named.collect();
    assert!(!named.is_empty(), "{structure}");
    named
}

const WRITTEN: &str = "Written from the code by `tests/documented/`; changes belong there.\n";

fn table(page: &mut String, heads: [&str; 2], entries: &[(String, String)]) {
    _ = writeln!(page, "| {} | {} |\n|---|---|", heads[0], heads[1]);
    for (name, doc) in entries {
        _ = writeln!(page, "| `{name}` | {} |", doc.replace('|', "\\|"));
    }
    page.push('\n');
}

fn counters() -> String {
    let lists = all_lists();
    let mut page = format!(
        "# Counters, drop reasons, causes\n\n{WRITTEN}\nWhere they are shown: [the report](../operation.md#the-report). All count \
         packets or events since the start, but for `usage`.\n\n"
    );
    for (group, name, title, what) in GROUPS {
        _ = writeln!(page, "## `{group}`\n\nCounts {what}.\n");
        table(&mut page, ["name", "meaning"], &list(&lists, name, title).entries);
    }
    page.push_str("## `queue_drops`\n\nCounts what a queue of DPDK dropped by itself.\n\n");
    table(&mut page, ["name", "meaning"], &fields("QueueCounters", "self"));
    page.push_str("## `usage`\n\nWhat is in use now.\n\n");
    table(&mut page, ["name", "meaning"], &fields("Usage", "usage"));
    for (group, names) in OTHERS {
        _ = writeln!(page, "## `{group}`\n");
        let entries: Vec<_> = names
            .iter()
            .map(|(name, doc)| (name.to_string(), doc.to_string()))
            .collect();
        table(&mut page, ["name", "meaning"], &entries);
    }
    page.push_str("## Causes\n\n`client_cause` and `server_cause` of a session record.\n\n");
    table(
        &mut page,
        ["cause", "meaning"],
        &list(&lists, "Cause", "Why one side").entries,
    );
    page.push_str("## Flags\n\n`flags` of a session record, there in small letters.\n\n");
    table(&mut page, ["flag", "meaning"], &list(&lists, "RecordFlags", "").entries);
    page.trim_end().to_owned() + "\n"
}

fn help(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_proxyengine"))
        .args(arguments)
        .arg("--help")
        .output();
    let output = output.expect("the engine");
    assert!(output.status.success(), "{arguments:?}");
    String::from_utf8(output.stdout).expect("text")
}

/// The commands within one, as its help lists them.
pub(crate) fn subcommands(arguments: &[&str]) -> Vec<String> {
    let help = help(arguments);
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let listed = listed.take_while(|line| line.starts_with("  "));
    let names = listed.filter_map(|line| line.split_whitespace().next());
    names.filter(|name| *name != "help").map(str::to_owned).collect()
}

fn commands() -> String {
    let mut page = format!(
        "# Commands and exit codes\n\n{WRITTEN}\nWhat they are for: [operation](../operation.md#commands).\n\n"
    );
    let own = subcommands(&[]);
    let nested = own.iter().flat_map(|name| {
        let inner = subcommands(&[name.as_str()]).into_iter();
        let inner = inner.map(|inner| vec![name.clone(), inner]);
        [vec![name.clone()]].into_iter().chain(inner).collect::<Vec<_>>()
    });
    for words in [Vec::new()].into_iter().chain(nested) {
        let arguments: Vec<&str> = words.iter().map(String::as_str).collect();
        let title = format!("proxyengine {}", arguments.join(" "));
        let title = title.trim_end();
        let help = help(&arguments);
        let lines: Vec<&str> = help.lines().map(str::trim_end).collect();
        _ = writeln!(page, "## {title}\n\n```text\n{}\n```\n", lines.join("\n").trim());
    }
    let source = fs::read_to_string(root().join("src/main.rs")).expect("the source");
    let exits = lists(&source);
    let codes = list(&exits, "Exit", "").entries.iter().enumerate();
    let codes: Vec<(String, String)> = codes.map(|(code, (_, doc))| (code.to_string(), doc.clone())).collect();
    page.push_str("## Exit codes\n\n");
    table(&mut page, ["code", "meaning"], &codes);
    page.trim_end().to_owned() + "\n"
}

/// Holds a page against the code, or writes it.
fn hold(name: &str, text: &str) {
    let path = root().join("docs/reference").join(name);
    if std::env::var("UPDATE_GOLDEN").is_ok_and(|set| set == "1") {
        fs::create_dir_all(root().join("docs/reference")).expect("the folder");
        fs::write(&path, text).expect("written");
        return;
    }
    let kept = fs::read_to_string(&path).unwrap_or_default();
    let changed: Vec<&str> = text
        .lines()
        .filter(|line| !kept.lines().any(|known| known == *line))
        .collect();
    assert!(
        kept == text,
        "docs/reference/{name} is not what the code says: {changed:#?}\nUPDATE_GOLDEN=1 cargo test --test documented reference"
    );
}

#[test]
fn reference_of_counters_is_what_the_code_says() {
    hold("counters.md", &counters());
}

/// `tests/engine/` holds the list against a report.
#[test]
fn reference_has_every_counter_of_the_report() {
    let names = fs::read_to_string(root().join("tests/golden/report_keys.txt")).expect("the list");
    let page = counters();
    let mut found = 0;
    for (group, name) in names
        .lines()
        .filter_map(|key| key.strip_prefix("counters.")?.split_once('.'))
    {
        // Both sides of TCP have one section.
        let is_titled = |section: &&str| {
            section
                .lines()
                .next()
                .is_some_and(|title| title.contains(&format!("`{group}`")))
        };
        let mut sections = page.split("\n## ").skip(1);
        let section = sections.find(is_titled).unwrap_or_else(|| panic!("no {group}"));
        assert!(section.contains(&format!("\n| `{name}` |")), "{group}: {name}");
        found += 1;
    }
    assert!(found > 100, "{found} counters");
}

#[test]
fn reference_of_commands_is_what_the_engine_says() {
    hold("commands.md", &commands());
}

#[test]
fn reference_of_keys_is_what_the_checks_say() {
    hold("keys.md", &keys::page(WRITTEN));
}
