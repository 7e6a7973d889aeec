//! `docs/reference/keys.md`: every key of the configuration, found by asking the program. Keys it lists itself when it meets
//! one that it does not know; types and ranges it names when it meets a value that cannot be; a default is what
//! `docs/configuration.md` says, and must lead to the same configuration as no value at all.

use std::fmt::Write as _;
use std::fs;

use proxyengine::config::Config;
use toml::{Table, Value};

use super::root;

/// Has every table, and in them what must be there.
const BASE: &str = r#"
[engine]
cores = [0]
[[port]]
name = "p"
device = "net_ring0"
addresses = ["10.0.0.1/24"]
software_nic = {}
routes = [{ to = "10.9.0.0/16", via = "10.0.0.9" }]
neighbours = [{ ip = "10.0.0.9", mac = "02:00:00:00:00:09" }]
[[port]]
name = "q"
device = "net_ring1"
addresses = ["10.1.0.1/24"]
kernel = { device = "pe-k0" }
[[listener]]
name = "l"
addresses = ["10.0.0.1:80"]
rules = [{ prefix = "a", pool = "s" }]
default = "s"
timeouts = {}
proxy_protocol = { accept = "required", from = ["10.0.0.2"] }
[[listener]]
name = "m"
addresses = ["10.0.0.1:81"]
rules = [{ client = ["10.9.0.0/16"], class = "c" }]
default = "s"
client_limit = { connections = 9, rate = 9 }
[[list]]
name = "t"
[[class]]
name = "c"
[[pool]]
name = "s"
policy = "maglev"
check = { kind = "http" }
hash = {}
proxy_protocol = {}
servers = [{ name = "one", address = "10.0.0.21:80" }]
[timeouts]
[syn_ack]
[[records]]
[log]
[dns]
"#;

/// How a table is called, where it is in `BASE`, and where its defaults are described: a document, and the text before.
const TABLES: [(&str, &str, &str, &str); 23] = [
    ("[engine]", "engine", "configuration.md", "## `[engine]`"),
    ("[[port]]", "port.0", "configuration.md", "## `[[port]]`"),
    ("[[port]] routes", "port.0.routes.0", "configuration.md", ""),
    ("[[port]] neighbours", "port.0.neighbours.0", "configuration.md", ""),
    (
        "[[port]] software_nic",
        "port.0.software_nic",
        "configuration.md",
        "A `software_nic` has",
    ),
    ("[[port]] kernel", "port.1.kernel", "kernel.md", "| key of `kernel`"),
    ("[[listener]]", "listener.0", "configuration.md", "## `[[listener]]`"),
    (
        "[[listener]] proxy_protocol",
        "listener.0.proxy_protocol",
        "configuration.md",
        "Its `proxy_protocol` has",
    ),
    ("[[listener]] timeouts", "listener.0.timeouts", "configuration.md", ""),
    ("[[listener]] rules", "listener.0.rules.0", "configuration.md", ""),
    ("[[list]]", "list.0", "configuration.md", "## `[[list]]`"),
    (
        "[[listener]] client_limit, and limit",
        "listener.1.client_limit",
        "configuration.md",
        "## Limits",
    ),
    ("[[class]]", "class.0", "configuration.md", "## `[[class]]`"),
    ("[[pool]]", "pool.0", "configuration.md", "## `[[pool]]`"),
    ("[[pool]] hash", "pool.0.hash", "configuration.md", "A `hash` has"),
    ("[[pool]] check", "pool.0.check", "configuration.md", "A `check` has"),
    (
        "[[pool]] proxy_protocol",
        "pool.0.proxy_protocol",
        "configuration.md",
        "A `proxy_protocol` has",
    ),
    (
        "[[pool]] servers",
        "pool.0.servers.0",
        "configuration.md",
        "Each of `servers` has",
    ),
    ("[timeouts]", "timeouts", "configuration.md", "## `[timeouts]`"),
    ("[syn_ack]", "syn_ack", "configuration.md", "## `[syn_ack]`"),
    ("[[records]]", "records.0", "configuration.md", "## `[[records]]`"),
    ("[log]", "log", "configuration.md", "## `[log]`"),
    ("[dns]", "dns", "configuration.md", "## `[dns]`"),
];

fn base() -> Table {
    BASE.parse().expect("TOML")
}

/// The table of that path.
fn at<'a>(file: &'a mut Table, path: &str) -> &'a mut Table {
    let mut steps = path.split('.');
    let mut value = file.get_mut(steps.next().expect("a step")).expect("a table");
    for step in steps {
        value = match step.parse::<usize>() {
            Ok(index) => &mut value.as_array_mut().expect("a list")[index],
            Err(_) => &mut value.as_table_mut().expect("a table")[step],
        };
    }
    value.as_table_mut().expect("a table")
}

/// What is said of the file with this value of this key.
fn with(path: &str, key: &str, value: Value) -> Result<Config, String> {
    let mut file = base();
    at(&mut file, path).insert(key.to_owned(), value);
    Config::parse(&file.to_string(), "keys").map_err(|error| error.to_string())
}

fn keys(path: &str) -> Vec<String> {
    let error = with(path, "unknown", Value::Boolean(true)).expect_err("an unknown key");
    let (_, list) = error
        .split_once("expected ")
        .unwrap_or_else(|| panic!("{path}: {error}"));
    let list = list.lines().next().unwrap_or_default();
    list.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// What was expected, from the first line that is about the key, or about a type.
fn expected(error: &str, key: &str) -> Option<String> {
    let about = [format!(".{key} "), format!(".{key}["), "invalid type".to_owned()];
    let is_about = |line: &&str| about.iter().any(|words| line.contains(words));
    let (_, expected) = error.lines().find(is_about)?.split_once("expected ")?;
    Some(expected.to_owned())
}

/// The type, and what is expected of a value of that type.
fn kind(path: &str, key: &str) -> (&'static str, String) {
    let date = Value::Datetime("1979-05-27".parse().expect("a date"));
    let said = with(path, key, date).err().unwrap_or_default();
    // A date is read as a table of one key.
    if said.contains("is not a key of this table") {
        return ("table", String::new());
    }
    let said = expected(&said, key).unwrap_or_else(|| panic!("{path}.{key}: {said:?}"));
    let (kind, probes): (_, Vec<Value>) = match said.as_str() {
        "i64" | "f64" => ("number", vec![i64::from(i32::MIN).into()]),
        "a string" => ("text", vec!["?~".into(), "".into()]),
        "a boolean" => return ("`true` or `false`", String::new()),
        "a sequence" => (
            "list",
            vec![Value::Array(vec!["?~".into()]), Value::Array(vec![(-1).into()])],
        ),
        other if other.starts_with("struct") => return ("table", String::new()),
        other => return ("number or text", other.to_owned()),
    };
    for probe in probes {
        let said = with(path, key, probe).err().and_then(|said| expected(&said, key));
        if let Some(said) =
            said.filter(|said| !said.starts_with("struct") && !["i64", "f64", "a string"].contains(&said.as_str()))
        {
            return (kind, said);
        }
    }
    (kind, String::new())
}

/// The second cell of the key's row, if its table has defaults.
fn described(document: &str, before: &str, key: &str) -> Option<String> {
    let text = fs::read_to_string(root().join("docs").join(document)).expect("the document");
    let (_, text) = text.split_once(before).filter(|_| !before.is_empty())?;
    let text = text.split("\n## ").next().unwrap_or(text);
    let name = format!("`{key}`");
    let mut rows = text.lines().map(|line| line.split(" | ").collect::<Vec<_>>());
    let row = rows.find(|row| row.len() > 2 && row[0].starts_with('|') && row[0].contains(&name));
    Some(row.unwrap_or_else(|| panic!("docs/{document} has no row for {key} of {before}"))[1].to_owned())
}

/// The default as the document has it. A value must lead to the configuration that is there without one, and where there is
/// none, nothing may go without the key.
fn default(table: &(&str, &str, &str, &str), key: &str) -> String {
    let (_, path, document, before) = *table;
    let must_be_there = {
        let mut file = base();
        at(&mut file, path).remove(key);
        let said = Config::parse(&file.to_string(), "keys").err();
        let said = said.map(|error| error.to_string()).unwrap_or_default();
        said.contains(&format!("lacks the key `{key}`")) || said.contains(&format!(".{key} is missing"))
    };
    let Some(cell) = described(document, before, key) else {
        return if must_be_there { "–" } else { "none" }.to_owned();
    };
    let value = cell.strip_prefix('`').and_then(|cell| cell.strip_suffix('`'));
    let value = value.and_then(|value| format!("value = {value}").parse::<Table>().ok());
    let is_in_base = at(&mut base(), path).contains_key(key);
    if let Some(mut value) = value {
        if !is_in_base {
            let same = with(path, key, value.remove("value").expect("a value"));
            let same = same.unwrap_or_else(|error| panic!("{path}.{key}: the default {cell}: {error}"));
            let without = Config::parse(BASE, "keys").unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(same, without, "{path}.{key}: {cell} is not what is assumed");
        }
    } else {
        assert!(cell != "–" || must_be_there, "{path}.{key} can be left out");
    }
    cell
}

pub(crate) fn page(written: &str) -> String {
    let mut page = format!(
        "# Keys\n\n{written}\nWhat each means: [configuration](../configuration.md). A key without a default (–) has to be there. \
         Ranges are what the checks say of a value that cannot be; where there is none, the description says what can be.\n"
    );
    for table in &TABLES {
        let (name, path, ..) = *table;
        _ = write!(
            page,
            "\n## `{name}`\n\n| key | type | default | range |\n|---|---|---|---|\n"
        );
        for key in keys(path) {
            let (kind, range) = kind(path, &key);
            _ = writeln!(
                page,
                "| `{key}` | {kind} | {} | {} |",
                default(table, &key),
                range.replace('|', "\\|")
            );
        }
    }
    page
}
