//! `mmproxy setup`, `check` and `teardown`: for a server on loopback and for one in a container.

mod rig;

use rig::{Container, Proxy, greeting, in_bare_namespace, tcp_server, v1};
use std::process::{Command, Output};

fn mmproxy(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_mmproxy"))
        .args(arguments)
        .output()
        .expect("mmproxy runs")
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// What `ip` shows of rules and routes, without what every namespace has.
fn installed() -> String {
    let show = |arguments: &[&str]| text(&Command::new("ip").args(arguments).output().expect("ip runs"));
    ["-4", "-6"]
        .map(|family| {
            show(&[family, "rule", "show", "table", "123"]) + &show(&[family, "route", "show", "table", "123"])
        })
        .concat()
}

#[test]
fn loopback_is_set_up_checked_and_restored() {
    in_bare_namespace(|_| {
        let before = mmproxy(&["check"]);
        assert_eq!(before.status.code(), Some(1), "{}", text(&before));
        assert!(
            text(&before).contains("try: ip -4 rule add from 127.0.0.0/8 iif lo table 123"),
            "{}",
            text(&before)
        );
        assert!(
            text(&before).contains("[FAIL] test connection from 192.0.2.1"),
            "{}",
            text(&before)
        );

        let done = mmproxy(&["setup"]);
        assert!(
            done.status.success() && text(&done).contains("[done]"),
            "{}",
            text(&done)
        );
        let rules = installed();
        for line in ["from 127.0.0.0/8 iif lo", "from ::1 iif lo", "local default dev lo"] {
            assert!(rules.contains(line), "{line} is missing in {rules}");
        }
        let again = mmproxy(&["setup"]);
        assert!(
            again.status.success() && !text(&again).contains("[done]"),
            "{}",
            text(&again)
        );
        assert_eq!(installed(), rules, "nothing twice");

        let checked = mmproxy(&["check"]);
        assert!(
            checked.status.success() && !text(&checked).contains("FAIL"),
            "{}",
            text(&checked)
        );
        assert!(mmproxy(&["teardown"]).status.success());
        assert!(!installed().contains("lo"), "{}", installed());
        let again = mmproxy(&["teardown"]);
        assert!(
            again.status.success() && text(&again).contains("[already]"),
            "{}",
            text(&again)
        );
        assert_eq!(mmproxy(&["check"]).status.code(), Some(1));
    });
}

/// What a proxy says from its start to its end, which comes when it is ready.
fn said_at_start(arguments: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mmproxy"));
    let file = tempfile::NamedTempFile::new().expect("a file");
    command.args(["-l", "127.0.0.1:8443"]).args(arguments);
    let proxy = Proxy::spawn_saying(command, "127.0.0.1:8443", file.reopen().expect("the same").into());
    drop(proxy);
    std::fs::read_to_string(file.path()).expect("what it said")
}

#[test]
fn a_start_without_the_way_back_says_what_makes_it() {
    in_bare_namespace(|_| {
        let said = said_at_start(&[]);
        assert_eq!(said.matches("do not come back").count(), 1, "{said}");
        assert!(
            said.contains("servers on 127.0.0.1") && said.contains("`mmproxy setup`"),
            "{said}"
        );
        assert!(said.contains("--routes") && said.contains("`mmproxy check`"), "{said}");
        // Of a server elsewhere nothing is known, and what `--routes` has made stays when it is killed.
        assert_eq!(said_at_start(&["-4", "10.7.0.2:80", "-6", ""]), "");
        assert_eq!(said_at_start(&["--routes"]), "");
        assert_eq!(said_at_start(&[]), "");
    });
}

#[test]
fn a_container_sees_its_clients() {
    in_bare_namespace(|name| {
        let container = Container::beside(name);
        container.run(|| tcp_server("10.7.0.2:80"));
        let options = ["--interface", "inside", "--from", "10.7.0.2"];
        let check = || mmproxy(&[&["check", "--target", "10.7.0.2:80"], &options[..]].concat());
        let before = check();
        assert_eq!(before.status.code(), Some(1), "{}", text(&before));
        assert!(text(&before).contains("timed out"), "{}", text(&before));
        assert!(mmproxy(&[&["setup"], &options[..]].concat()).status.success());
        let after = check();
        assert!(after.status.success(), "{}", text(&after));

        let proxy = Proxy::start(
            &["-l", "127.0.0.1:8443", "-4", "10.7.0.2:80", "-6", ""],
            "127.0.0.1:8443",
        );
        let mut client = proxy.send(&v1("203.0.113.7:40001", "198.51.100.9:443"));
        assert_eq!(greeting(&mut client).expect("served"), "203.0.113.7:40001");
        drop((client, proxy));
        assert!(mmproxy(&[&["teardown"], &options[..]].concat()).status.success());
        assert_eq!(check().status.code(), Some(1));
    });
}

#[test]
fn a_server_on_another_host_gets_a_rule_by_mark_and_the_firewall_lines() {
    in_bare_namespace(|name| {
        let _container = Container::beside(name);
        let done = mmproxy(&["setup", "--interface", "inside", "--mark", "7"]);
        assert!(done.status.success(), "{}", text(&done));
        assert!(
            text(&done).contains("-i inside -m connmark --mark 7 -j CONNMARK --restore-mark"),
            "{}",
            text(&done)
        );
        assert!(installed().contains("fwmark 0x7 iif inside"), "{}", installed());
    });
}

#[test]
fn a_server_on_another_host_sees_its_clients_with_the_connection_marks_installed() {
    in_bare_namespace(|name| {
        let nft = Command::new("nft").args(["list", "ruleset"]).output();
        if !nft.is_ok_and(|output| output.status.success()) {
            return rig::skip("nft (package nftables) is missing, or the kernel's part of it");
        }
        // Its clients are behind its default route, which is this host; nothing but the mark tells answers to mmproxy's
        // connections from packets that are only to be forwarded.
        let server = Container::beside(name);
        server.run(|| tcp_server("10.7.0.2:80"));
        let options = ["--interface", "inside", "--mark", "7", "--firewall"];
        let check = || mmproxy(&[&["check", "--target", "10.7.0.2:80"], &options[..]].concat());
        let before = check();
        assert_eq!(before.status.code(), Some(1), "{}", text(&before));
        assert!(
            text(&before).contains("[FAIL] firewall: nft list table inet mmproxy_123"),
            "{}",
            text(&before)
        );
        // Twice, as at every start of a service.
        for _ in 0..2 {
            let done = mmproxy(&[&["setup"], &options[..]].concat());
            assert!(done.status.success(), "{}", text(&done));
        }
        let after = check();
        assert!(after.status.success(), "{}", text(&after));
        let proxy = Proxy::start(
            &["-l", "127.0.0.1:8443", "-4", "10.7.0.2:80", "-6", "", "--mark", "7"],
            "127.0.0.1:8443",
        );
        let mut client = proxy.send(&v1("203.0.113.7:40001", "198.51.100.9:443"));
        assert_eq!(greeting(&mut client).expect("served"), "203.0.113.7:40001");
        drop((client, proxy));
        assert!(mmproxy(&[&["teardown"], &options[..]].concat()).status.success());
        let left = Command::new("nft")
            .args(["list", "ruleset"])
            .output()
            .expect("nft")
            .stdout;
        assert!(!String::from_utf8_lossy(&left).contains("mmproxy"), "something is left");
        assert!(!installed().contains("inside"), "{}", installed());
        // Once more: there is nothing to remove, which is no error.
        assert!(mmproxy(&[&["teardown"], &options[..]].concat()).status.success());
    });
}

#[test]
fn a_ban_in_the_firewall_matches_the_client_behind_the_balancer() {
    in_bare_namespace(|_| {
        let nft = |arguments: &str| {
            let output = Command::new("nft").args(arguments.split(' ')).output();
            output.is_ok_and(|output| output.status.success())
        };
        if !nft("list ruleset") {
            return rig::skip("nft (package nftables) is missing, or the kernel's part of it");
        }
        tcp_server("127.0.0.1:443");
        let proxy = Proxy::tcp(&["--routes"]);
        let mut client = proxy.send(&v1("203.0.113.7:40001", "198.51.100.9:443"));
        assert_eq!(
            greeting(&mut client).expect("served before the ban"),
            "203.0.113.7:40001"
        );
        // The lines of docs/mmproxy.md.
        assert!(nft("add table inet guard"));
        assert!(nft(
            "add chain inet guard input { type filter hook input priority filter; policy accept; }"
        ));
        assert!(nft(
            "add rule inet guard input iifname lo ip saddr 203.0.113.0/24 tcp dport 443 reject with tcp reset"
        ));
        let mut banned = proxy.send(&v1("203.0.113.8:40002", "198.51.100.9:443"));
        greeting(&mut banned).expect_err("banned");
        let mut other = proxy.send(&v1("192.0.2.8:40003", "198.51.100.9:443"));
        assert_eq!(greeting(&mut other).expect("another client"), "192.0.2.8:40003");
    });
}

#[test]
fn the_daemon_brings_its_routes_and_takes_them_away() {
    in_bare_namespace(|_| {
        tcp_server("127.0.0.1:443");
        let mut proxy = Proxy::tcp(&["--routes"]);
        let mut client = proxy.send(&v1("203.0.113.7:40001", "198.51.100.9:443"));
        assert_eq!(greeting(&mut client).expect("served"), "203.0.113.7:40001");
        drop(client);
        proxy.signal(rustix::process::Signal::TERM);
        assert!(proxy.child.wait().expect("it ends").success());
        assert!(!installed().contains("lo"), "{}", installed());
    });
}

#[test]
fn a_missing_capability_is_named_with_what_grants_it() {
    in_bare_namespace(|_| {
        let run = |arguments: &[&str]| {
            let output = Command::new("setpriv")
                .args([
                    "--reuid",
                    "65534",
                    "--regid",
                    "65534",
                    "--clear-groups",
                    "--inh-caps=-all",
                    "--bounding-set=-all",
                ])
                .arg(env!("CARGO_BIN_EXE_mmproxy"))
                .args(arguments)
                .output();
            match output {
                Ok(output) => Some(output),
                Err(error) => {
                    rig::skip(&format!("setpriv: {error}"));
                    None
                }
            }
        };
        for command in ["setup", "check"] {
            let Some(output) = run(&[command]) else { return };
            if text(&output).contains("Permission denied") && !text(&output).contains("CAP_NET_ADMIN") {
                return rig::skip("the program is in a folder that others may not enter");
            }
            assert_eq!(output.status.code(), Some(1), "{}", text(&output));
            assert!(text(&output).contains("setcap cap_net_admin"), "{}", text(&output));
        }
    });
}
