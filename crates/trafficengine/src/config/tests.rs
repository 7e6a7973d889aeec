use super::*;
use crate::pace::Pace;
use crate::payload::{Close, Format};

const CLIENT: &str = r#"
[port]
device = "net_af_packet0,iface=veth0"
[client]
addresses = ["10.0.0.1-10.0.0.4"]
ports = "1001-2000"
targets = ["10.0.1.1:80"]
[load]
mode = "closed"
open = 4000
"#;

fn parse(text: &str) -> Result<Config, ConfigError> {
    Config::parse(text, "t.toml", &Overrides::default())
}

/// The client's file with one line replaced.
fn with(from: &str, to: &str) -> String {
    assert!(CLIENT.contains(from));
    CLIENT.replace(from, to)
}

#[track_caller]
fn refusal(text: &str) -> String {
    parse(text)
        .map(|config| panic!("accepted: {config:#?}"))
        .unwrap_or_else(|error| error.to_string())
}

#[test]
fn defaults_are_the_ancestors_connection() {
    let config = parse(CLIENT).unwrap();
    let client = config.generator.client.unwrap();
    assert_eq!(
        (client.rounds, client.request, client.response, client.close),
        (1, 16, 8, Close::Server)
    );
    assert_eq!(
        (client.format, client.pace),
        (Format::Text, Pace::Closed { open: 4000 })
    );
    assert_eq!((client.tcp[0].mss, client.tcp[1].mss), (1460, 1440));
    assert!(config.generator.server.is_none() && config.generator.verify_checksums);
    assert_eq!((config.grace, config.port.mtu), (Duration::from_secs(10), 1500));
}

#[test]
fn both_roles_and_versions_with_everything_said() {
    let text = r#"
        [port]
        device = "0000:03:00.0"
        mtu = 9000
        mac = "02:00:00:00:00:01"
        core = 1
        idle = "poll"
        [link]
        prefixes = ["10.0.0.0/16", "fd00::/64"]
        gateways = ["10.0.0.254", "fd00::fe"]
        [tcp]
        timestamps = false
        rto_min = "20ms"
        [script]
        format = "http"
        domain = "test.example"
        rounds = 3
        request = 1000
        response = 100000
        close = "both"
        keys = 4
        servers = 4
        [client]
        addresses = ["10.0.0.1-10.0.0.16", "fd00::1-fd00::10"]
        targets = ["10.1.0.1:80", "[fd01::1]:80"]
        [load]
        mode = "open"
        rate = 1000.5
        ramp = "2s"
        duration = "1min"
        grace = "3s"
        [server]
        listen = ["10.0.0.20:80", "[fd00::20]:80"]
        first_id = 254
        [report]
        json = "out.json"
        progress = false
    "#;
    let config = parse(text).unwrap();
    let (client, server) = (config.generator.client.unwrap(), config.generator.server.unwrap());
    assert_eq!(client.tcp[1].mss, 8940);
    assert_eq!(client.span.duration, Some(Duration::from_secs(60)));
    assert_eq!(
        server.listeners.iter().map(|listener| listener.id).collect::<Vec<_>>(),
        [254, 255]
    );
    assert_eq!(config.generator.link.prefixes.len(), 2);
    assert_eq!(config.report.json, Some("out.json".into()));
    assert_eq!(config.port.idle, IdleMode::Poll);
}

#[test]
fn more_connections_than_end_points_are_refused_with_the_arithmetic() {
    assert!(parse(&with("open = 4000", "open = 4000")).is_ok());
    assert_eq!(
        refusal(&with("open = 4000", "open = 4001")),
        "t.toml: load.open: 4001 connections at once; there are 4 addresses × 1000 ports = 4000 end points"
    );
}

#[test]
fn rates_that_ports_cannot_rest_for_are_refused_with_the_arithmetic() {
    let open_loop = |rate| {
        with(
            "mode = \"closed\"\nopen = 4000",
            &format!("mode = \"open\"\nrate = {rate}\nport_rest = \"2s\""),
        )
    };
    assert!(parse(&open_loop("2000.0")).is_ok());
    assert_eq!(
        refusal(&open_loop("2001.0")),
        "t.toml: load.rate: 2001 per second × 2s of rest need 4002 end points; there are 4 addresses × 1000 ports = 4000"
    );
    assert_eq!(
        refusal(&open_loop("0.0")),
        "t.toml: load.rate is 0, expected connections per second, 0.00001 to 10^9"
    );
}

#[test]
fn loads_of_nothing_are_refused() {
    for (line, key) in [
        (
            "open = 4000\nduration = \"0s\"",
            "load.duration is 0 s, expected more than zero",
        ),
        (
            "open = 4000\ntotal = 0",
            "load.total is 0, expected at least one connection",
        ),
        ("open = 0", "load.open is 0, expected at least one connection"),
        ("open = 4\ndepth = 0", "load.depth is 0, expected at least 1"),
    ] {
        assert_eq!(refusal(&with("open = 4000", line)), format!("t.toml: {key}"));
    }
    let ramp = with("open = 4000", "open = 4000\nramp = \"3s\"\nduration = \"2s\"");
    assert_eq!(
        refusal(&ramp),
        "t.toml: load.ramp: a ramp of 3s does not fit into a duration of 2s"
    );
}

#[test]
fn wrong_values_name_key_and_expectation() {
    let script = |line: &str| format!("{CLIENT}\n[script]\n{line}\n");
    for (text, expected) in [
        (
            with("1001-2000", "2000-1001"),
            "client.ports is `2000-1001`, expected a range of ports",
        ),
        (
            with("1001-2000", "0-5"),
            "client.ports is `0-5`, expected a range of ports",
        ),
        (
            with("10.0.0.1-10.0.0.4", "10.0.0.4-10.0.0.1"),
            "client.addresses is 10.0.0.4-10.0.0.1, expected",
        ),
        (
            with("10.0.1.1:80", "[fd00::1]:80"),
            "client.addresses is [\"10.0.0.1-10.0.0.4\"], expected one range of IPv6",
        ),
        (
            with("10.0.1.1:80", "10.0.1.1"),
            "client.targets is `10.0.1.1`, expected an address and port",
        ),
        (
            with("\"closed\"", "\"half\""),
            "load.mode is `half`, expected `open`, `closed` or `drawn`",
        ),
        (
            with("open = 4000", "open = 4\nramp = \"soon\""),
            "load.ramp is `soon`, expected a duration",
        ),
        (
            script("request = 15"),
            "script.request is 15, expected 16 (what the format needs) to",
        ),
        (
            script("response = 7"),
            "script.response is 7, expected 8 (what the format needs) to",
        ),
        (
            script("format = \"ftp\""),
            "script.format is `ftp`, expected `text`, `http` or `tls`",
        ),
        (
            script("rounds = 0"),
            "script.close is by the server, expected `client` or `reset`",
        ),
        (
            script("servers = 0"),
            "script.keys and script.servers is 1000 and 0, expected at least 1",
        ),
        (script("close = \"never\""), "script.close is `never`"),
        (
            format!("{CLIENT}\n[tcp]\nmss = 1461"),
            "tcp.mss is 1461, expected 64 to 1460 (the MTU of 1500 less 40",
        ),
        (
            format!("{CLIENT}\n[tcp]\nwindow_scale = 15"),
            "tcp.window_scale is 15, expected 0 to 14",
        ),
        (
            format!("{CLIENT}\n[tcp]\nwindow = 70000\nno_window_scale = true"),
            "tcp.window is 70000, expected 1 to 65535",
        ),
        (
            format!("{CLIENT}\n[server]\nlisten = []"),
            "server.listen is 0 addresses, expected 1 to 256",
        ),
    ] {
        let message = refusal(&text);
        assert!(message.starts_with(&format!("t.toml: {expected}")), "{message}");
    }
}

#[test]
fn unknown_and_missing_keys_are_named() {
    assert!(refusal(&format!("{CLIENT}\nspeed = 3")).contains("unknown field `speed`"));
    assert!(refusal("[client]\naddresses = []\ntargets = []").contains("missing field `port`"));
    let nothing = "[port]\ndevice = \"x\"";
    assert!(refusal(nothing).contains("expected a [client] with a [load], a [server], or both"));
}

#[test]
fn the_command_line_wins() {
    let overrides = Overrides {
        open: Some(7),
        total: Some(9),
        duration: Some("3s".to_owned()),
        rate: None,
    };
    let config = Config::parse(CLIENT, "t.toml", &overrides).unwrap();
    let client = config.generator.client.unwrap();
    assert_eq!((client.pace, client.span.total), (Pace::Closed { open: 7 }, Some(9)));
    assert_eq!(client.span.duration, Some(Duration::from_secs(3)));
    let overrides = Overrides {
        open: Some(4001),
        ..Overrides::default()
    };
    assert!(Config::parse(CLIENT, "t.toml", &overrides).is_err());
}

#[test]
fn servers_are_numbered_or_all_the_same() {
    let ids = |extra: &str| {
        let text = format!(
            "[port]\ndevice = \"net_null0\"\n[server]\nlisten = [\"10.0.0.1:80\", \"10.0.0.2:80\"]\nfirst_id = 3\n{extra}"
        );
        let server = parse(&text).unwrap().generator.server.unwrap();
        server.listeners.iter().map(|listener| listener.id).collect::<Vec<_>>()
    };
    assert_eq!(ids(""), [3, 4]);
    assert_eq!(ids("same_id = true"), [3, 3]);
}
