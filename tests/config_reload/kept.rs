//! What servers that stay are called from while listeners come and go, and where the engine may write: both are settled before.

use std::net::IpAddr;

use proxyengine::config::{Config, Standing};

use crate::drawn::small;
use crate::parse;

/// Where ports are connected from by default, listeners come and go, and the servers that are called from there keep their numbers.
#[test]
fn listeners_come_and_go_at_an_address_that_servers_are_called_from() {
    let usual = small();
    let listener = "[[listener]]\nname = \"more\"\naddresses = [\"10.1.0.1:8080-8089\"]\ndefault = \"p0\"\n";
    let (alone, more) = (parse(&usual), parse(&format!("{usual}{listener}")));
    let ports = |config: &Config| config.servers()[0].local[0].ports.clone();
    let reload = |running: &Config, text: &str| {
        let (next, difference) = running
            .reload_text(text, "f.toml")
            .unwrap_or_else(|error| panic!("{error}"));
        assert!(difference.new_servers.is_empty(), "they stay");
        next
    };
    let added = reload(&alone, &format!("{usual}{listener}"));
    assert_eq!(
        ports(&added),
        ports(&more),
        "no call comes from a port on which somebody listens"
    );
    assert_eq!(alone.lines_of_difference(&added), "+ listener more\n");
    let removed = reload(&added, &usual);
    assert_eq!(ports(&removed), ports(&more), "connections of its clients may be there");
    assert_eq!(added.lines_of_difference(&removed), "- listener more\n");
    assert_eq!(
        ports(&reload(&more, &usual)),
        ports(&more),
        "nor have cores room for others"
    );
    // Servers that are new have what is there then.
    let (without, _) = removed
        .reload_text(&usual.replace("10.1.0.100", "10.1.0.110"), "f.toml")
        .unwrap_or_else(|error| panic!("{error}"));
    let new = without
        .servers()
        .iter()
        .find(|server| server.address.ip() == IpAddr::from([10, 1, 0, 110]));
    assert_eq!(new.map(|server| &server.local), Some(&alone.servers()[0].local));
}

/// A server of the version before that is in no pool any more is called by connections that its listener has begun.
#[test]
fn ports_of_servers_that_have_gone_are_withheld_too() {
    let usual = small();
    let listener = "[[listener]]\nname = \"more\"\naddresses = [\"10.1.0.1:8080\"]\ndefault = \"p0\"\n";
    let text = usual.replace("10.1.0.100", "10.1.0.110") + listener;
    let (next, _) = parse(&usual)
        .reload_text(&text, "f.toml")
        .unwrap_or_else(|error| panic!("{error}"));
    let past: Vec<_> = next
        .servers()
        .iter()
        .filter(|server| server.standing == Standing::Past)
        .collect();
    assert!(past.len() == 1 && !past[0].local[0].ports.contains(8080));
}

/// What a server is called from cannot change: the key that has is named.
#[test]
fn other_source_addresses_or_ports_are_refused_by_their_key() {
    let usual = small();
    let with = |keys: &str| usual.replacen("name = \"p0\"\n", &format!("name = \"p0\"\n{keys}\n"), 1);
    let refused = |before: &str, after: &str| {
        let error = parse(before).reload_text(after, "f.toml").map(|_| ()).expect_err(after);
        error
            .problems()
            .iter()
            .map(|problem| problem.path.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        refused(&usual, &with("local_ports = \"5000-5001\"")),
        ["pool[0].local_ports"]
    );
    assert_eq!(
        refused(&usual, &with("local_addresses = [\"10.1.0.7\"]")),
        ["pool[0].local_addresses"]
    );
    // Listeners that have taken all of them, one after the other.
    let few = with("local_ports = \"8080-8081\"");
    let on = |port: u16| {
        format!("{few}[[listener]]\nname = \"more\"\naddresses = [\"10.1.0.1:{port}\"]\ndefault = \"p0\"\n")
    };
    let (one, _) = parse(&few)
        .reload_text(&on(8080), "f.toml")
        .unwrap_or_else(|error| panic!("{error}"));
    let error = one
        .reload_text(&on(8081), "f.toml")
        .map(|_| ())
        .expect_err("none is left")
        .to_string();
    assert!(
        error.contains("pool[0].local_ports has no port left for 10.1.0.100:80 at 10.1.0.1"),
        "{error}"
    );
}

/// Where an engine may write is settled when it starts: a file elsewhere is refused by its key, and not when it cannot be made.
#[test]
fn a_file_of_records_in_another_folder_needs_a_restart() {
    let one = small();
    let file = |path: &str| format!("{one}\n[[records]]\nfile = \"{path}\"\n");
    let mut running = parse(&one);
    assert!(
        running.reload_text(&file("/var/log/r"), "f.toml").is_ok(),
        "it may write anywhere"
    );
    running.set_writable(&["/tmp".into(), "/run/pe".into()]);
    let (next, _) = running
        .reload_text(&file("/run/pe/more/r"), "f.toml")
        .unwrap_or_else(|error| panic!("{error}"));
    let error = next
        .reload_text(&file("/var/log/r"), "f.toml")
        .map(|_| ())
        .expect_err("elsewhere");
    let [problem] = error.problems() else { panic!("{error}") };
    assert_eq!(problem.path, "records");
    assert!(problem.complaint.contains("the file /var/log/r in a folder"), "{error}");
}

/// A header is for the next connection, a MAC address for the next frame: whom they are said of stays who it is.
#[test]
fn proxy_headers_and_mac_addresses_of_servers_that_stay_are_live() {
    let with = |send: &str, mac: &str| {
        let usual = small().replacen(
            "name = \"p0\"\n",
            &format!("name = \"p0\"\nproxy_protocol = {{ send = \"{send}\" }}\n"),
            1,
        );
        let server = "address = \"10.1.0.100:80\"";
        assert!(usual.contains(server), "{usual}");
        usual.replacen(server, &format!("{server}, mac = \"02:00:00:00:00:{mac}\""), 1)
    };
    let running = parse(&with("v1", "0a"));
    for text in [with("v2", "0a"), with("v1", "0b"), with("off", "0b")] {
        let (next, difference) = running
            .reload_text(&text, "f.toml")
            .unwrap_or_else(|error| panic!("{error}"));
        assert!(difference.new_servers.is_empty());
        let (now, alone) = (&next.servers()[0], parse(&text));
        assert_eq!(
            (now.announce, now.mac),
            (alone.servers()[0].announce, alone.servers()[0].mac)
        );
    }
}
