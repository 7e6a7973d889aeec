//! The files in config/ that are the generator's load, and traffic.toml shows every key.

use std::path::{Path, PathBuf};

use trafficengine::config::{Config, Overrides};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config")
}

#[test]
fn every_traffic_file_loads() {
    let mut count = 0;
    for entry in std::fs::read_dir(folder()).expect("config/") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
        if name.starts_with("traffic") {
            Config::load(&path, &Overrides::default()).unwrap_or_else(|error| panic!("{error}"));
            count += 1;
        }
    }
    assert!(count >= 3, "{count} files");
}

/// The keys of a table as serde knows them: it lists them when it meets one that it does not know.
fn keys(text: &str) -> Vec<String> {
    let error = Config::parse(text, "keys", &Overrides::default())
        .expect_err("an unknown key")
        .to_string();
    let list = error.split("expected").nth(1).expect("a list of keys");
    list.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn traffic_toml_shows_every_key() {
    let text = std::fs::read_to_string(folder().join("traffic.toml")).expect("a file");
    let tables = keys("[no_such_table]");
    assert_eq!(tables.len(), 8, "{tables:?}");
    for table in tables {
        let section = text
            .split(&format!("\n[{table}]"))
            .nth(1)
            .unwrap_or_else(|| panic!("[{table}] is missing"));
        let section = section.split("\n[").next().expect("a section");
        let shown = |key: &str| {
            let lines = section.lines().map(|line| line.trim_start_matches("# "));
            lines
                .into_iter()
                .any(|line| line.split('=').next().is_some_and(|name| name.trim() == key))
        };
        for key in keys(&format!("[{table}]\nno_such_key = 1")) {
            assert!(shown(&key), "{table}.{key} is not in traffic.toml");
        }
    }
}
