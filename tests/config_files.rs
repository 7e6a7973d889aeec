//! The files in config/ load, and docs/configuration.md knows every key.

use std::fs;
use std::path::{Path, PathBuf};

use proxyengine::config::Config;

fn file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

#[test]
fn every_file_loads() {
    let mut names = Vec::new();
    for entry in fs::read_dir(file("config")).expect("config/") {
        let path = entry.expect("an entry").path();
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .expect("a name")
            .to_owned();
        // Those are for the load generator, which has tests of its own.
        if name.ends_with(".toml") && !name.starts_with("traffic") {
            let config = Config::load(&path).unwrap_or_else(|error| panic!("{error}"));
            assert!(!config.servers().is_empty(), "{name}");
            names.push(name);
        }
    }
    names.sort();
    for expected in ["82599.toml", "demo.toml", "services.toml", "vm.toml", "x710.toml"] {
        assert!(names.iter().any(|name| name == expected), "{expected} among {names:?}");
    }
}

#[test]
fn the_demo_asks_for_every_kind_of_choice_on_both_address_families() {
    let config = Config::load(file("config/demo.toml")).unwrap_or_else(|error| panic!("{error}"));
    let names: Vec<&str> = config
        .listeners()
        .iter()
        .map(|listener| listener.name.as_str())
        .collect();
    assert_eq!(names, ["http4", "http6", "tls4", "tls6", "numbers4", "numbers6"]);
    assert_eq!(config.servers().len(), 18);
    assert_eq!(config.ports()[0].device.linux_interface(), Some("pe-eng0"));
}

/// The keys of a table as serde knows them: it lists them when it meets one that it does not know.
fn keys(text: &str) -> Vec<String> {
    let error = Config::parse(text, "keys").expect_err("an unknown key").to_string();
    let list = error
        .split_once("expected ")
        .unwrap_or_else(|| panic!("no list: {error}"))
        .1;
    let keys = list
        .split(['`', '"'])
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect::<Vec<_>>();
    assert!(keys.len() > 1 || list.contains('`'), "{error}");
    keys
}

#[test]
fn every_key_is_documented() {
    let document = fs::read_to_string(file("docs/configuration.md")).expect("docs/configuration.md");
    let port = "[[port]]\nname = \"p\"\ndevice = \"net_ring0\"\n";
    let listener = "[[listener]]\nname = \"l\"\naddresses = []\n";
    let tables = [
        ("# Configuration", "unknown = 1".to_owned()),
        ("[engine]", "[engine]\nunknown = 1".to_owned()),
        ("[[port]]", "[[port]]\nunknown = 1".to_owned()),
        ("[[port]]", format!("{port}routes = [{{ unknown = 1 }}]")),
        ("[[port]]", format!("{port}neighbours = [{{ unknown = 1 }}]")),
        ("[[port]]", format!("{port}kernel = {{ unknown = 1 }}")),
        ("[[listener]]", "[[listener]]\nunknown = 1".to_owned()),
        ("[[listener]]", format!("{listener}rules = [{{ unknown = 1 }}]")),
        ("[[listener]]", format!("{listener}timeouts = {{ unknown = 1 }}")),
        ("[[pool]]", "[[pool]]\nunknown = 1".to_owned()),
        (
            "[[pool]]",
            "[[pool]]\nname = \"p\"\nservers = [{ unknown = 1 }]".to_owned(),
        ),
        ("[timeouts]", "[timeouts]\nunknown = 1".to_owned()),
        ("[syn_ack]", "[syn_ack]\nunknown = 1".to_owned()),
        ("[[records]]", "[[records]]\nunknown = 1".to_owned()),
        ("[log]", "[log]\nunknown = 1".to_owned()),
    ];
    let mut count = 0;
    for (section, table) in tables {
        let heading = format!("\n## `{section}`");
        let text = document
            .split_once(&heading)
            .map_or(document.as_str(), |(_, rest)| rest);
        let text = if section.starts_with('[') {
            text.split("\n## ").next().unwrap_or(text)
        } else {
            text
        };
        for key in keys(&table) {
            let known = [
                format!("`{key}`"),
                format!("`[{key}]`"),
                format!("`[[{key}]]`"),
                format!("{{ {key} = "),
            ];
            assert!(
                known.iter().any(|known| text.contains(known)),
                "docs/configuration.md says nothing of {key} in {section}"
            );
            count += 1;
        }
    }
    assert!(count > 60, "all tables have been listed: {count}");
}

#[test]
fn the_examples_in_the_documentation_load() {
    let document = fs::read_to_string(file("docs/configuration.md")).expect("docs/configuration.md");
    let examples: Vec<&str> = document
        .split("```toml\n")
        .skip(1)
        .filter_map(|rest| rest.split("```").next())
        .collect();
    assert!(!examples.is_empty());
    for example in examples {
        Config::parse(example, "docs/configuration.md").unwrap_or_else(|error| panic!("{error}\nin:\n{example}"));
    }
}

/// The configuration checks devices without DPDK; what it lets through in our files must be what e2d2 opens.
#[cfg(feature = "dpdk")]
#[test]
fn dpdk_knows_every_device() {
    use e2d2::native::Device;

    let files = ["demo", "vm", "82599", "x710"].map(|name| file(&format!("config/{name}.toml")));
    let configs = files.map(|path| Config::load(path).unwrap_or_else(|error| panic!("{error}")));
    let in_files = configs
        .iter()
        .flat_map(|config| config.ports())
        .map(|port| port.device.to_string());
    // Those that docs/configuration.md and the comments in config/ name.
    let in_text = [
        "net_af_packet0,iface=eth1",
        "net_af_xdp0,iface=eth1",
        "net_tap0,iface=pe-tap0",
        "net_memif0,role=client,socket=/run/a.sock,socket-abstract=no",
        "net_ring0",
        "net_pcap0,iface=eth1",
        "net_null0",
        "0000:00:04.0",
    ];
    for device in in_files.chain(in_text.map(str::to_owned)) {
        let ours = device
            .parse::<proxyengine::config::Device>()
            .unwrap_or_else(|error| panic!("{device}: {error}"));
        let theirs = ours
            .to_string()
            .parse::<Device>()
            .unwrap_or_else(|error| panic!("{device}: {error}"));
        assert_eq!(theirs.to_string(), device);
    }
}
