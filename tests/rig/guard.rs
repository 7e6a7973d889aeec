//! Rules that refuse, and lists that a file or an operator fills, as curl, nmap and hping3 meet them.

use std::fs;
use std::net::IpAddr;
use std::time::Duration;

use rig::engine::EngineOptions;
use rig::process::{self, Process};
use rig::servers::{self, HTTP};
use rig::{Place, Rig, RigError, RigOptions};

use crate::setup::{LIMIT, Setup, family_option};

/// Which of the rig's clients is what.
const SERVED: usize = 0;
const SCANNER: usize = 1;
const RUDE: usize = 2;
const FOREIGN: usize = 3;

/// curl's exit codes: connection refused; a time-out.
const REFUSED: i32 = 7;
const TIMED_OUT: i32 = 28;

/// Longer than a handshake and a page take, and than the first repetition of a SYN.
const PATIENCE: &str = "4";

fn clients(rig: &Rig, index: usize) -> [IpAddr; 2] {
    [rig.client_v4(index).into(), rig.client_v6(index).into()]
}

/// One list from a file, with what is to be done to each class; one that is filled later.
fn tables(rig: &Rig) -> String {
    let file = rig.file("known.txt");
    let lines: String = [(SCANNER, "scanner"), (RUDE, "rude"), (FOREIGN, "")]
        .into_iter()
        .flat_map(|(index, class)| clients(rig, index).map(|client| format!("{client} {class}\n")))
        .collect();
    fs::write(&file, lines).expect("a list");
    let [v4, v6] = rig.engine_addresses();
    format!(
        r#"
[control]
socket = "{socket}"

[[list]]
name = "known"
file = "{file}"

[[list]]
name = "noticed"

[[listener]]
name = "web"
addresses = ["{v4}:{HTTP}", "[{v6}]:{HTTP}"]
ports = ["clients"]
client_limit = {{ connections = 2 }}
rules = [
  {{ client = ["known:scanner"], action = "tarpit" }},
  {{ client = ["known:rude"], action = "reject" }},
  {{ client = ["known", "noticed"], action = "drop" }},
]
default = "web"

[[pool]]
name = "web"
servers = [{{ name = "one", address = "{server}:{HTTP}" }}]
"#,
        socket = rig.file("control").display(),
        file = file.display(),
        server = rig.server_v4(0),
    )
}

/// Exit code of a program of the clients, and what it said.
fn run(setup: &Setup, program: &str, arguments: &[&str]) -> (i32, String) {
    match setup.rig.run(Place::Clients, program, arguments, LIMIT) {
        Ok(output) => (0, output.text()),
        Err(RigError::Failed { output, status, .. }) => (status.code().expect("no signal"), output),
        Err(error) => panic!("{program}: {error}"),
    }
}

/// curl's exit code for a page asked from this address, and whether its connection was made.
fn curl(setup: &Setup, client: IpAddr) -> (i32, bool) {
    let [v4, v6] = setup.rig.engine_addresses();
    let url = match client {
        IpAddr::V4(_) => format!("http://{v4}/number/0"),
        IpAddr::V6(_) => format!("http://[{v6}]/number/0"),
    };
    let client = client.to_string();
    let arguments = [
        "-s",
        "--interface",
        &client,
        "--max-time",
        PATIENCE,
        "-o",
        "/dev/null",
        "-w",
        "connected in %{time_connect} s",
        &url,
    ];
    let (code, said) = run(setup, "curl", &arguments);
    let never = said.contains("connected in 0.000000 s");
    assert!(said.contains("connected in"), "{said}");
    (code, !never)
}

/// What nmap's half-open scan calls the port.
fn nmap(setup: &Setup, client: IpAddr) -> &'static str {
    let [v4, v6] = setup.rig.engine_addresses();
    let (port, source) = (HTTP.to_string(), client.to_string());
    let target = if client.is_ipv4() { v4 } else { v6 }.to_string();
    let mut arguments = vec!["-n", "-Pn", "-sS", "--max-retries", "1", "-e", "eth0", "-p", &port];
    arguments.extend(["-S", &source, family_option(client), &target]);
    arguments.retain(|argument| *argument != "-4");
    let (code, said) = run(setup, "nmap", &arguments);
    assert_eq!(code, 0, "{said}");
    let states = ["open", "closed", "filtered"];
    let is = |state: &&&str| said.contains(&format!("{port}/tcp {state}"));
    states.iter().find(is).unwrap_or_else(|| panic!("{said}"))
}

/// What hping3 tells of the answers to its SYNs.
fn hping3(setup: &Setup, client: usize) -> String {
    let (port, target) = (HTTP.to_string(), setup.rig.engine_v4().to_string());
    let source = setup.rig.client_v4(client).to_string();
    let arguments = [
        "-I", "eth0", "-S", "-c", "2", "-i", "u200000", "-p", &port, "-a", &source, &target,
    ];
    run(setup, "hping3", &arguments).1
}

fn set_up() -> Option<Setup> {
    let rig = Rig::for_test(RigOptions::default(), &["curl", "nginx", "nmap", "hping3", "nc"])?;
    let options = EngineOptions {
        services: Vec::new(),
        tables: tables(&rig),
        ..EngineOptions::default()
    };
    Some(Setup::on(rig, &options, |rig| {
        vec![servers::start_nginx(rig, 0).expect("nginx starts")]
    }))
}

#[test]
fn reject_drop_and_tarpit_are_what_curl_nmap_and_hping3_call_so() {
    let Some(setup) = set_up() else { return };
    let cases = [
        (SERVED, (0, true), "open"),
        (SCANNER, (TIMED_OUT, true), "open"),
        (RUDE, (REFUSED, false), "closed"),
        (FOREIGN, (TIMED_OUT, false), "filtered"),
    ];
    for (index, of_curl, of_nmap) in cases {
        for client in clients(&setup.rig, index) {
            assert_eq!(curl(&setup, client), of_curl, "curl from {client}");
            assert_eq!(nmap(&setup, client), of_nmap, "nmap from {client}");
        }
    }
    let said = hping3(&setup, SERVED);
    assert!(said.contains("flags=SA") && !said.contains("win=0 "), "{said}");
    let said = hping3(&setup, SCANNER);
    assert!(said.contains("flags=SA") && said.contains("win=0 "), "{said}");
    let said = hping3(&setup, RUDE);
    assert!(said.contains("flags=RA"), "{said}");
    let said = hping3(&setup, FOREIGN);
    assert!(!said.contains("flags=") && said.contains("100% packet loss"), "{said}");
    let (report, _rig) = setup.finish();
    for reason in ["rule_rejected", "rule_dropped", "rule_tarpitted"] {
        let counted = report.number(&format!("/counters/proxy_drops/{reason}"));
        assert!(counted > 0, "{reason}: {}", report.totals);
    }
}

#[test]
fn who_is_put_into_a_list_is_refused_until_taken_out() {
    let Some(setup) = set_up() else { return };
    let [client, client_v6] = clients(&setup.rig, SERVED);
    let (of_v4, of_v6) = (client.to_string(), client_v6.to_string());
    assert_eq!(curl(&setup, client).0, 0);
    // Two that are open, and say nothing: as many as a client may have.
    let open = ["nc-1.log", "nc-2.log"].map(|log| {
        let mut nc = setup.rig.command(Place::Clients, "nc");
        nc.args(["-d", "-s", &of_v4, &setup.rig.engine_v4().to_string()])
            .arg(HTTP.to_string());
        Process::start(&mut nc, &setup.rig.file(log)).expect("nc runs")
    });
    let are_shown = || {
        let shown = setup.ctl(&["show", "connections", "--json"]);
        shown.matches(&of_v4).count() == 2
    };
    process::wait_for("open connections", LIMIT, are_shown).expect("they are open");
    assert_ne!(curl(&setup, client).0, 0, "one too many");
    assert_eq!(curl(&setup, client_v6).0, 0);
    let shown = setup.ctl(&["show", "limits", "--json"]);
    // Its request, too, if that was sent before the RST came.
    assert!(
        shown.contains("\"refused\":1") || shown.contains("\"refused\":2"),
        "{shown}"
    );
    assert!(shown.contains("\"kind\":\"client\""), "{shown}");
    setup.ctl(&["list", "add", "noticed", &of_v4, &of_v6, "--ttl", "1h", "--kill"]);
    for mut nc in open {
        nc.wait(LIMIT).expect("its connection is ended");
    }
    for client in [client, client_v6] {
        assert_eq!(curl(&setup, client), (TIMED_OUT, false), "{client}");
    }
    let shown = setup.ctl(&["list", "show"]);
    let noticed = shown.lines().find(|line| line.starts_with("noticed"));
    assert!(noticed.is_some_and(|line| line.contains('2')), "{shown}");
    let shown = setup.ctl(&["list", "show", "noticed"]);
    let row = shown.lines().find(|line| line.starts_with(&format!("{of_v4}/32")));
    assert!(
        row.is_some_and(|row| row.contains("added") && row.contains('Z')),
        "{shown}"
    );
    setup.ctl(&["list", "del", "noticed", &of_v4]);
    assert_eq!(curl(&setup, client).0, 0);
    let shown = setup.ctl(&["list", "show", "noticed", "--json"]);
    assert!(!shown.contains(&of_v4) && shown.contains("\"left_s\":3"), "{shown}");
    assert_eq!(curl(&setup, client_v6).0, TIMED_OUT);
    // For a second, after which nobody has to take it out.
    setup.ctl(&["list", "add", "noticed", &of_v4, "--ttl", "1s"]);
    let is_served = || curl(&setup, client).0 == 0;
    process::wait_for("service again", Duration::from_secs(20), is_served).expect("it is taken out by itself");
    setup.finish();
}
