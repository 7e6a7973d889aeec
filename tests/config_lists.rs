//! `[[list]]`: files of prefixes with classes, what is refused, what a reload and the control socket make of them.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use netfcts::leg::mapped;
use proxyengine::callbacks::{Arrival, Refusal, SelectServer, SelectorFactory};
use proxyengine::config::{Config, CoreId, ListChange, ListenerId};
use proxyengine::selectors::RuleSelector;
use tempfile::TempDir;

/// A file of that content in a folder of its own.
fn file(content: &str) -> (TempDir, String) {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("list.txt");
    std::fs::write(&path, content).expect("a file");
    let path = path.display().to_string();
    (folder, path)
}

fn config(file: &str, rules: &str) -> String {
    format!(
        r#"
[engine]
cores = [0]
[[port]]
name = "p"
device = "net_ring0"
addresses = ["10.0.0.1/24"]
[[listener]]
name = "l"
addresses = ["10.0.0.1:80"]
rules = [{rules}]
default = "s"
[[list]]
name = "bad"
file = "{file}"
[[list]]
name = "by-hand"
[[pool]]
name = "s"
servers = [{{ name = "one", address = "10.0.0.21:80" }}]
"#
    )
}

const RULES: &str = r#"
    { client = ["bad:slow", "192.0.2.9"], action = "tarpit" },
    { client = ["bad"], not = [{ client = ["bad:friend"] }], action = "drop" },
    { client = ["by-hand"], action = "reject" }"#;

fn parse(text: &str) -> Config {
    Config::parse(text, "test").unwrap_or_else(|error| panic!("{error}"))
}

fn refusal(selector: &mut RuleSelector, client: &str) -> Option<Refusal> {
    selector.admit(&arrival(client)).err()
}

fn arrival(client: &str) -> Arrival {
    let client: IpAddr = client.parse().expect("an address");
    Arrival::new(client, 80, ListenerId(0))
}

const LIST: &str = "10.9.0.0/16\n10.9.1.0/24 friend\n10.9.1.7 slow\n2001:db8::/32 slow\n";

#[test]
fn the_class_of_the_longest_prefix_counts() {
    let (_folder, path) = file(LIST);
    let config = parse(&config(&path, RULES));
    let mut selector = RuleSelector::new(&config).selector(CoreId(0));
    let expected = [
        ("10.9.0.1", Some(Refusal::Drop)),
        ("10.9.1.1", None),
        ("10.9.1.7", Some(Refusal::Tarpit)),
        ("10.8.1.7", None),
        ("2001:db8::5", Some(Refusal::Tarpit)),
        ("192.0.2.9", Some(Refusal::Tarpit)),
        ("192.0.2.8", None),
    ];
    for (client, refused) in expected {
        assert_eq!(refusal(&mut selector, client), refused, "{client}");
    }
    // As a batch is looked up, in this order and in another.
    assert!(selector.looks_ahead());
    for order in [expected.to_vec(), expected.iter().rev().copied().collect()] {
        let peers = order
            .iter()
            .map(|(client, _)| mapped(client.parse().expect("an address")));
        let mut looked_up = [None; 7];
        selector.look_ahead(peers.zip(&mut looked_up));
        for ((client, refused), looked_up) in order.into_iter().zip(looked_up) {
            assert!(looked_up.is_some(), "{client}");
            let arrival = arrival(client).with_looked_up(looked_up);
            assert_eq!(selector.admit(&arrival).err(), refused, "{client}");
        }
    }
    let hits: Vec<u64> = config.lists().iter().map(|list| list.hits.sum()).collect();
    assert_eq!(hits, [3 * 4, 0]);
}

#[test]
fn what_was_found_out_for_a_set_of_clients_is_what_the_rules_say_of_each() {
    const CLASSES: &str = r#"
        { client = ["bad:friend"], class = "friends" },
        { not = [{ client = ["bad", "2001:db8:7::/48"] }], class = "others" },
        { prefix = "late", action = "drop" },
        { client = ["192.0.2.0/28"], action = "reject" }"#;
    let (_folder, path) = file(LIST);
    let text = |more: &str| {
        let text = config(&path, &format!("{RULES},{CLASSES}{more}"));
        text + "[[class]]\nname = \"friends\"\n[[class]]\nname = \"others\"\n"
    };
    let selector = |text: &str| RuleSelector::new(&parse(text)).selector(CoreId(0));
    // Where a rule asks for the port, nothing is found out before.
    let asks_for_port =
        r#", { listener_port = ["81"], action = "drop" }, { listener_port = ["81"], class = "others" }"#;
    let (mut before, mut each) = (selector(&text("")), selector(&text(asks_for_port)));
    let clients = [
        "10.9.0.1",
        "10.9.1.1",
        "10.9.1.7",
        "10.8.1.7",
        "2001:db8::5",
        "2001:db8:7::1",
        "2001:db9::",
        "192.0.2.9",
        "192.0.2.7",
        "0.0.0.0",
    ];
    let said = clients.map(|client| {
        let both = [&mut before, &mut each].map(|selector| {
            let (refusal, rule) = (refusal(selector, client), selector.rule());
            let class = selector.class(&arrival(client));
            assert_eq!(
                selector.admit_to_class(&arrival(client)),
                refusal.map_or(Ok(class), Err),
                "{client} in one look-up"
            );
            (refusal, rule, class)
        });
        assert_eq!(both[0], both[1], "{client}");
        both[0]
    });
    assert!(said.iter().any(|(refusal, ..)| refusal.is_some()) && said.iter().any(|(refusal, ..)| refusal.is_none()));
    let classes: Vec<_> = said.iter().map(|(.., class)| *class).collect();
    assert!(
        [None, Some(0), Some(1)].iter().all(|class| classes.contains(class)),
        "{classes:?}"
    );
}

#[test]
fn a_file_that_is_no_list_is_named_with_its_line() {
    for (content, complaint) in [
        (
            "10.0.0.0/8\n10.0.0.0/33\n",
            "line 2: has \"10.0.0.0/33\", expected an address or a prefix",
        ),
        ("::/0\n::/0\n", "line 2: has ::/0 again, which is in line 1"),
    ] {
        let (_folder, path) = file(content);
        let error = Config::parse(&config(&path, RULES), "test")
            .expect_err("no list")
            .to_string();
        assert!(error.contains("list[0].file") && error.contains(complaint), "{error}");
    }
    let error = Config::parse(&config("/nonexistent", RULES), "test")
        .expect_err("no file")
        .to_string();
    assert!(error.contains("list[0].file /nonexistent: cannot be read"), "{error}");
}

#[test]
fn names_of_lists_are_known_and_unlike_addresses() {
    let (_folder, path) = file(LIST);
    let text = config(&path, RULES);
    for (from, to, complaint) in [
        (
            "\"by-hand\"], action",
            "\"by-head\"], action",
            "client[0] is \"by-head\", expected an address, a prefix such as \"192.0.2.0/24\", or a list: \"bad\" or \"by-hand\"",
        ),
        (
            "name = \"by-hand\"",
            "name = \"bad\"",
            "list[1].name is \"bad\", expected a name that is used only once",
        ),
        (
            "name = \"by-hand\"",
            "name = \"10.0.0.1\"",
            "list[1].name is \"10.0.0.1\", expected a name that is no address",
        ),
    ] {
        let error = Config::parse(&text.replacen(from, to, 1), "test")
            .expect_err(to)
            .to_string();
        assert!(error.contains(complaint), "{error}");
    }
    // A class that nobody has yet may come with the next version of the file.
    let config = parse(&text.replacen("bad:slow", "bad:slower", 1));
    assert!(config.warnings()[0].contains("nothing in the list \"bad\" has the class \"slower\" so far"));
    assert_eq!(
        refusal(&mut RuleSelector::new(&config), "10.9.1.7"),
        Some(Refusal::Drop)
    );
}

#[test]
fn a_reload_reads_the_file_again_or_keeps_what_there_was() {
    let (_folder, path) = file(LIST);
    let text = config(&path, RULES);
    let before = parse(&text);
    std::fs::write(&path, "10.9.0.0/16\nrubbish\n").expect("a file");
    let error = before.reload_text(&text, "test").expect_err("no list").to_string();
    assert!(error.contains("line 2: has \"rubbish\""), "{error}");
    std::fs::write(&path, "10.7.0.0/16 slow\n").expect("a file");
    let mut selector = RuleSelector::new(&before).selector(CoreId(0));
    assert_eq!(refusal(&mut selector, "10.9.0.1"), Some(Refusal::Drop));
    let (after, _) = before.reload_text(&text, "test").expect("a version");
    let mut selector = RuleSelector::new(&after).selector(CoreId(0));
    assert_eq!(refusal(&mut selector, "10.9.0.1"), None);
    assert_eq!(refusal(&mut selector, "10.7.0.1"), Some(Refusal::Tarpit));
    assert_eq!(after.lists()[0].hits.sum(), 2, "what is counted goes on");
}

/// As when its download has failed.
#[test]
fn a_list_whose_file_has_become_empty_is_named() {
    let (_folder, path) = file(LIST);
    let text = config(&path, RULES);
    let before = parse(&text);
    std::fs::write(&path, "# nothing\n").expect("a file");
    let (after, _) = before.reload_text(&text, "test").expect("a version");
    assert_eq!(after.emptied_lists(&before).collect::<Vec<_>>(), [("bad", 4)]);
    assert_eq!(
        after.emptied_lists(&after).count() + before.emptied_lists(&before).count(),
        0
    );
}

fn add(prefix: &str, class: &str, until: Option<Instant>) -> ListChange {
    ListChange::Add {
        prefixes: vec![prefix.parse().expect("a prefix")],
        class: class.to_owned(),
        until,
    }
}

#[test]
fn what_is_added_counts_before_the_file_and_for_its_time() {
    let (_folder, path) = file(LIST);
    let text = config(&path, RULES);
    let now = Instant::now();
    let asked = |config: &Config, client: &str| refusal(&mut RuleSelector::new(config), client);
    let config = parse(&text);
    let config = config
        .with_list("by-hand", add("172.16.0.0/12", "", None))
        .expect("a change");
    let config = config
        .with_list("bad", add("10.9.1.0/24", "slow", Some(now + Duration::from_secs(5))))
        .expect("a change");
    assert_eq!(asked(&config, "172.16.9.9"), Some(Refusal::Reject));
    assert_eq!(asked(&config, "10.9.1.1"), Some(Refusal::Tarpit));
    // It outlives a reload, and then its time.
    let (config, _) = config.reload_text(&text, "test").expect("a version");
    assert_eq!(asked(&config, "10.9.1.1"), Some(Refusal::Tarpit));
    assert_eq!(config.without_expired(now + Duration::from_secs(4)), Ok(None));
    let config = config
        .without_expired(now + Duration::from_secs(5))
        .expect("a table")
        .expect("a change");
    assert_eq!(asked(&config, "10.9.1.1"), None, "as the file says");
    assert_eq!(asked(&config, "172.16.9.9"), Some(Refusal::Reject));
    // What is taken out of the file comes back with it.
    let out = ListChange::Remove(vec!["10.9.0.0/16".parse().expect("a prefix")]);
    let config = config.with_list("bad", out.clone()).expect("a change");
    assert_eq!(asked(&config, "10.9.0.1"), None);
    let error = config.with_list("bad", out).expect_err("gone");
    assert_eq!(error, "10.9.0.0/16 is not in the list \"bad\"");
    let (config, _) = config.reload_text(&text, "test").expect("a version");
    assert_eq!(asked(&config, "10.9.0.1"), Some(Refusal::Drop));
    assert_eq!(
        config.with_list("other", add("::/0", "", None)).expect_err("no list"),
        "there is no list \"other\""
    );
    assert!(
        config
            .with_list("bad", add("::/0", "two words", None))
            .expect_err("no class")
            .contains("a class is 1 to 64 letters")
    );
}

/// After its time a prefix is what it was before: taken out, of another class, or what the file says.
#[test]
fn what_was_there_before_a_time_to_live_comes_back_after_it() {
    let (_folder, path) = file(LIST);
    let text = config(&path, RULES);
    let now = Instant::now();
    let until = now + Duration::from_secs(5);
    let asked = |config: &Config, client: &str| refusal(&mut RuleSelector::new(config), client);
    let changed = |config: Config, change| config.with_list("bad", change).expect("a change");
    let expired = |config: &Config| config.without_expired(until).expect("a table").expect("a change");
    let out = ListChange::Remove(vec!["10.9.0.0/16".parse().expect("a prefix")]);

    let config = changed(parse(&text), out.clone());
    let config = changed(config, add("10.9.0.0/16", "slow", Some(until)));
    assert_eq!(asked(&config, "10.9.0.1"), Some(Refusal::Tarpit));
    assert_eq!(asked(&expired(&config), "10.9.0.1"), None, "taken out");
    // A reload reads the file again: what it has is no longer taken out.
    let (reloaded, _) = config.reload_text(&text, "test").expect("a version");
    assert_eq!(asked(&reloaded, "10.9.0.1"), Some(Refusal::Tarpit));
    assert_eq!(asked(&expired(&reloaded), "10.9.0.1"), Some(Refusal::Drop));

    let config = changed(config, add("10.9.0.0/16", "friend", None));
    assert_eq!(config.without_expired(until), Ok(None), "for good");
    let config = changed(config, add("10.9.0.0/16", "slow", Some(until)));
    assert_eq!(asked(&config, "10.9.0.1"), Some(Refusal::Tarpit));
    assert_eq!(asked(&expired(&config), "10.9.0.1"), None, "a friend again");
    let config = changed(config, out);
    assert_eq!(asked(&config, "10.9.0.1"), None);
    assert_eq!(config.without_expired(until), Ok(None), "taken out for good");
}

#[test]
fn classes_are_bounded_and_forgotten_with_the_last_prefix_that_has_them() {
    let (_folder, path) = file(LIST);
    let text = config(&path, RULES);
    let until = Instant::now() + Duration::from_secs(5);
    let classes = |config: &Config| config.lists()[0].classes.len();
    let mut config = parse(&text);
    assert_eq!(classes(&config), 3, "none, friend, slow");
    let brief = add("192.0.2.1/32", "brief", Some(until));
    config = config.with_list("bad", brief).expect("a change");
    assert_eq!(classes(&config), 4);
    let expired = config.without_expired(until).expect("a table").expect("a change");
    assert_eq!(classes(&expired), 3);
    config = config
        .with_list("bad", add("192.0.2.1/32", "other", None))
        .expect("a change");
    assert_eq!(classes(&config), 4, "of one prefix");
    let out = ListChange::Remove(vec!["192.0.2.1/32".parse().expect("a prefix")]);
    config = config.with_list("bad", out).expect("a change");
    assert_eq!(classes(&config), 3);

    let lines = |count: u32| (0..count).map(|n| format!("{} c{n}\n", std::net::Ipv4Addr::from(n)));
    std::fs::write(&path, lines(4_094).collect::<String>()).expect("a file");
    config = parse(&text);
    config = config
        .with_list("bad", add("192.0.2.1/32", "last", None))
        .expect("the last");
    let error = config
        .with_list("bad", add("192.0.2.2/32", "more", None))
        .expect_err("too many");
    assert_eq!(error, "the list \"bad\" would have more than 4095 classes");
    // And those of the next file, with what has been added.
    std::fs::write(&path, lines(4_095).collect::<String>()).expect("a file");
    let error = config.reload_text(&text, "test").expect_err("too many").to_string();
    assert!(
        error.contains("the list \"bad\" would have more than 4095 classes"),
        "{error}"
    );
}

#[test]
fn a_rule_is_the_same_after_a_reload_that_numbers_its_clients_anew() {
    let (_folder, path) = file(LIST);
    let text = config(&path, RULES);
    let before = parse(&text);
    let more = format!("{{ client = [\"192.0.2.77\"], action = \"drop\" }}, {RULES}");
    let (after, difference) = before.reload_text(&config(&path, &more), "test").expect("a version");
    let ids = |config: &Config| -> Vec<u32> { config.listeners()[0].rules.iter().map(|rule| rule.id.0).collect() };
    assert_eq!((ids(&before), ids(&after)), (vec![0, 1, 2], vec![3, 0, 1, 2]));
    assert_eq!(difference.new_rules, [3]);
    let mut selector = RuleSelector::new(&after);
    assert_eq!(refusal(&mut selector, "192.0.2.77"), Some(Refusal::Drop));
    assert_eq!(refusal(&mut selector, "192.0.2.9"), Some(Refusal::Tarpit));
}

/// `ctl diff` names lists and classes that come, go or hold something else, and `[dns]`.
#[test]
fn lists_classes_and_dns_are_among_what_differs() {
    let (_folder, path) = file("192.0.2.0/24 slow\n");
    let before = parse(&config(&path, RULES));
    let lines = |text: &str| {
        let (after, _) = before
            .reload_text(text, "test")
            .unwrap_or_else(|error| panic!("{error}"));
        before.lines_of_difference(&after)
    };
    let text = config(&path, RULES);
    assert_eq!(lines(&text), "");
    let renamed = text.replace("by-hand", "manual");
    assert_eq!(lines(&renamed), "~ listener l\n+ list manual\n- list by-hand\n");
    let classed = config(
        &path,
        &format!("{RULES},\n{{ client = [\"192.0.2.7\"], class = \"a\" }}"),
    );
    assert_eq!(lines(&classed), "~ listener l\n+ class a\n");
    let dns = "[dns]\nservers = [\"10.0.0.53\"]\n";
    assert_eq!(lines(&format!("{text}{dns}")), "~ [dns]\n");
    std::fs::write(&path, "192.0.2.0/25 slow\n").expect("a file");
    assert_eq!(lines(&text), "~ list bad\n");
}
