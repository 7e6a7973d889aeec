//! Servers that the file names: what an entry may say, what answers of DNS make of it, and what is left out of them.

use std::net::SocketAddr;

use e2d2::wire::MacAddr;
use proxyengine::config::{Answers, Config, Found, MOST_SERVERS, Question, Standing};

/// A file with these servers of its pool and that rest.
fn text(servers: &str, rest: &str) -> String {
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
default = "pool"
[[pool]]
name = "pool"
servers = [{servers}]
{rest}
"#
    )
}

const WEB: &str = r#"{ name = "web", address = "Web.example.net.:80" }"#;
const LDAP: &str = r#"{ name = "ldap", address = "_ldap._tcp.example.net" }"#;

fn parse(text: &str, answers: &Answers) -> Config {
    Config::parse_with(text, "test", answers).unwrap_or_else(|error| panic!("{error}"))
}

fn refusal(text: &str) -> String {
    Config::parse(text, "test").expect_err("refused").to_string()
}

fn question(name: &str) -> Question {
    Question {
        name: name.to_owned(),
        is_service: name.starts_with('_'),
    }
}

fn found(priority: u16, weight: u16, address: &str) -> Found {
    let address: SocketAddr = address.parse().expect("an address");
    Found {
        priority,
        weight,
        ip: address.ip(),
        port: address.port(),
        host: String::new(),
    }
}

/// What the name of `WEB` is.
fn web(addresses: &[&str]) -> Answers {
    let hosts = addresses
        .iter()
        .map(|ip| found(0, 0, &SocketAddr::new(ip.parse().expect("an address"), 0).to_string()));
    Answers::from([(question("web.example.net"), hosts.collect())])
}

/// The servers that are in the file now.
fn servers(config: &Config) -> Vec<String> {
    let there = config
        .servers()
        .iter()
        .filter(|server| server.standing == Standing::InFile);
    let mut names: Vec<String> = there.map(|server| server.name.clone()).collect();
    names.sort();
    names
}

#[test]
fn an_entry_becomes_the_servers_of_its_answer() {
    let text = text(WEB, "");
    let config = parse(&text, &Answers::new());
    assert_eq!(config.questions(), [question("web.example.net")].into());
    assert!(config.servers().is_empty() && config.pools()[0].members.is_empty());
    let config = config
        .resolved(&web(&["10.0.0.22", "10.0.0.21"]))
        .expect("the same file");
    assert_eq!(servers(&config), ["web@10.0.0.21:80", "web@10.0.0.22:80"]);
    assert_eq!(config.servers()[0].address, "10.0.0.21:80".parse().expect("an address"));
    let dns = config.dns();
    assert!(dns.asks_v4 && !dns.asks_v6, "the port has no IPv6 address");
    assert!(
        parse(&text.replace("/24\"]", "/24\", \"fd00::1/64\"]"), &Answers::new())
            .dns()
            .asks_v6
    );
}

#[test]
fn a_service_has_weights_and_only_the_least_priority_is_no_backup() {
    let entry = LDAP.replace('}', ", max_connections = 7 }");
    let config = Config::parse(&text(&entry, ""), "test").expect("good");
    let answer = [
        found(1, 0, "10.0.0.21:389"),
        found(1, 65_535, "10.0.0.22:389"),
        found(1, 32_768, "10.0.0.22:1389"),
        found(7, 3, "10.0.0.23:389"),
    ];
    let config = config
        .resolved(&Answers::from([(question("_ldap._tcp.example.net"), answer.into())]))
        .expect("good");
    let members: Vec<_> = config.pools()[0]
        .members
        .iter()
        .map(|member| {
            (
                config.server(member.server).address.to_string(),
                member.weight,
                member.backup,
            )
        })
        .collect();
    let expected = [
        ("10.0.0.21:389", 1, false),
        ("10.0.0.22:389", 256, false),
        ("10.0.0.22:1389", 128, false),
        ("10.0.0.23:389", 1, true),
    ];
    let mut expected = expected
        .map(|(address, weight, backup)| (address.to_owned(), weight, backup))
        .to_vec();
    expected.sort();
    let mut sorted = members;
    sorted.sort();
    assert_eq!(sorted, expected);
    assert!(config.servers().iter().all(|server| server.max_connections == Some(7)));
}

#[test]
fn what_is_wrong_with_an_entry_is_said_by_its_key() {
    for (servers, sentence) in [
        (
            WEB.replace(".:80", ""),
            "test:14: pool[0].servers[0].address is \"Web.example.net\", expected an address with its port",
        ),
        (
            WEB.replace(":80", ":0"),
            "pool[0].servers[0].address is \"Web.example.net.:0\", expected",
        ),
        (
            LDAP.replace(".net", ".net:389"),
            "pool[0].servers[0].address is \"_ldap._tcp.example.net:389\", expected",
        ),
        (WEB.replace("Web", "We b"), "expected an address with its port"),
        (
            WEB.replace("Web.example.net.", "10.0.0.300"),
            "pool[0].servers[0].address is \"10.0.0.300:80\"",
        ),
        (
            WEB.replace('}', ", mac = \"02:00:00:00:00:01\" }"),
            "pool[0].servers[0].mac has no meaning for a name",
        ),
        (
            LDAP.replace('}', ", weight = 3 }"),
            "pool[0].servers[0].weight has no meaning for a service",
        ),
        (
            WEB.replace('}', ", weight = 0 }"),
            "pool[0].servers[0].weight is 0, expected 1 to 256",
        ),
        (WEB.replace('}', ", backup = true }"), "pool[0].servers are all backups"),
        (
            format!("{WEB}, {}", LDAP.replace("ldap\"", "web\"")),
            "pool[0].servers[1].name is \"web\", expected a name that is used only once",
        ),
    ] {
        let said = refusal(&text(&servers, ""));
        assert!(said.contains(sentence), "{said}\n{sentence}");
    }
    let many: Vec<String> = (0..2048)
        .map(|n| format!("{{ name = \"w{n}\", address = \"w{n}.example.net:80\" }}"))
        .collect();
    assert!(refusal(&text(&many.join(", "), "")).contains("pool has too many entries"));
    // Two pools may ask for the same by the same name.
    let again = format!("[[pool]]\nname = \"again\"\nservers = [{WEB}]");
    let config = parse(&text(WEB, &again), &web(&["10.0.0.21"]));
    assert_eq!((servers(&config).len(), config.questions().len()), (1, 1));
}

#[test]
fn what_is_wrong_with_dns_is_said_by_its_key() {
    for (line, sentence) in [
        (
            "servers = [\"ns.example.net\"]",
            "dns.servers[0] is \"ns.example.net\", expected an IP address",
        ),
        ("servers = []", "dns.servers is empty"),
        (
            "servers = [\"0.0.0.0\"]",
            "dns.servers[0] is \"0.0.0.0\", expected the address of a host",
        ),
        ("timeout = \"2m\"", "dns.timeout is \"2m\", expected \"10ms\" to \"1m\""),
        ("retries = 17", "dns.retries is 17, expected 0 to 16"),
        ("hold = 1", "dns.hold is not a key of this table"),
    ] {
        let said = refusal(&text(WEB, &format!("[dns]\n{line}")));
        assert!(said.contains(sentence), "{said}\n{sentence}");
    }
}

#[test]
fn name_servers_are_addresses_with_or_without_ports() {
    let rest =
        "[dns]\nservers = [\"192.0.2.53\", \"[2001:db8::53]:5353\", \"127.0.0.1\"]\ntimeout = \"300ms\"\nretries = 0";
    let config = parse(&text(WEB, rest), &Answers::new());
    let shown: Vec<String> = config.dns().servers.iter().map(ToString::to_string).collect();
    assert_eq!(shown, ["192.0.2.53:53", "[2001:db8::53]:5353", "127.0.0.1:53"]);
    assert_eq!((config.dns().timeout.as_millis(), config.dns().retries), (300, 0));
}

#[test]
fn an_address_that_cannot_be_used_is_left_out_with_its_reason() {
    let static_one = r#"{ name = "s", address = "10.0.0.30:80", max_connections = 5 }"#;
    let other = format!("[[pool]]\nname = \"other\"\nservers = [{static_one}]");
    let answer = web(&[
        "10.0.0.21",
        "192.168.0.1",
        "10.0.0.1",
        "127.0.0.1",
        "2001:db8::1",
        "10.0.0.30",
    ]);
    let config = parse(&text(WEB, &other), &answer);
    assert_eq!(servers(&config), ["s", "web@10.0.0.21:80"]);
    let unusable: Vec<String> = config.pools()[0].names[0]
        .unusable
        .iter()
        .map(|(address, why)| format!("{address} {why}"))
        .collect();
    let reasons = [
        "10.0.0.1:80 is 10.0.0.1, expected an address of another host",
        "10.0.0.30:80 is 10.0.0.30:80, which another pool has as well (\"s\"), expected the same",
        "127.0.0.1:80 is 127.0.0.1:80, expected the unicast address of a host; this is a loopback",
        "192.168.0.1:80 is 192.168.0.1, expected an address in a prefix of a port",
        "[2001:db8::1]:80 is 2001:db8::1, expected an address in a prefix",
    ];
    assert_eq!(unusable.len(), reasons.len(), "{unusable:#?}");
    for (said, reason) in unusable.iter().zip(reasons) {
        assert!(said.starts_with(reason), "{said}\n{reason}");
    }
    // What is at the address in the same pool already, is there once.
    let both = format!("{WEB}, {}", static_one.replace(", max_connections = 5", ""));
    let config = parse(&text(&both, ""), &web(&["10.0.0.30", "10.0.0.31"]));
    assert_eq!(servers(&config), ["s", "web@10.0.0.31:80"]);
    assert_eq!(config.pools()[0].members.len(), 2);
}

#[test]
fn another_answer_drains_who_is_not_in_it_and_keeps_the_numbers_of_the_others() {
    let text = text(WEB, "");
    let config = parse(&text, &web(&["10.0.0.21", "10.0.0.22"]));
    let (next, difference) = config.with_answers(&web(&["10.0.0.23", "10.0.0.22"])).expect("good");
    assert_eq!(servers(&next), ["web@10.0.0.22:80", "web@10.0.0.23:80"]);
    assert_eq!(difference.new_servers, [2]);
    assert_eq!(next.servers()[0].standing, Standing::Past);
    assert_eq!(next.servers()[1], config.servers()[1]);
    assert_eq!(next.pools()[0].members.len(), 2);
    let (same, difference) = next.with_answers(&web(&["10.0.0.22", "10.0.0.23"])).expect("good");
    assert!(
        difference.new_servers.is_empty() && difference.pools.is_empty(),
        "the order says nothing"
    );
    // Back again before it is forgotten, it has its number.
    let (back, difference) = same.with_answers(&web(&["10.0.0.21", "10.0.0.22"])).expect("good");
    assert!(difference.new_servers.is_empty());
    assert_eq!(back.servers()[0].standing, Standing::InFile);
    // An answer of which nothing can be used changes nothing.
    let (kept, _) = back.with_answers(&web(&["192.168.0.1"])).expect("good");
    assert_eq!(servers(&kept), servers(&back));
    let (kept, _) = kept.with_answers(&Answers::new()).expect("good");
    assert_eq!(servers(&kept), servers(&back));
}

#[test]
fn a_reload_keeps_the_answers_and_an_answer_keeps_the_file() {
    let first = text(WEB, "");
    let config = parse(&first, &web(&["10.0.0.21", "10.0.0.22"]));
    let (same, difference) = config.reload_text(&first, "test").expect("good");
    assert_eq!(config.lines_of_difference(&same), "");
    assert!(difference.new_servers.is_empty() && difference.pools.is_empty());
    let second = text(&format!("{WEB}, {{ name = \"s\", address = \"10.0.0.40:80\" }}"), "");
    let (other, _) = same.reload_text(&second, "test").expect("good");
    assert_eq!(
        same.lines_of_difference(&other),
        "~ pool pool\n+ server s 10.0.0.40:80\n"
    );
    let (next, _) = other.with_answers(&web(&["10.0.0.22"])).expect("good");
    assert_eq!(servers(&next), ["s", "web@10.0.0.22:80"]);
    // From names to addresses: they are the same servers.
    let third = text("{ name = \"x\", address = \"10.0.0.22:80\" }", "");
    let (addressed, difference) = next.reload_text(&third, "test").expect("good");
    assert!(difference.new_servers.is_empty() && addressed.questions().is_empty() && addressed.answers().is_empty());
    assert_eq!(servers(&addressed), ["x"]);
}

#[test]
fn a_version_that_is_made_again_with_other_answers_reads_no_list_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("list.txt");
    let write = |lines: &str| std::fs::write(&path, lines).expect("a file");
    let list = format!("[[list]]\nname = \"bad\"\nfile = \"{}\"", path.display());
    let prefixes = |config: &Config| config.lists()[0].entries().count();
    write("192.0.2.1\n");
    let config = parse(&text(WEB, &list), &web(&["10.0.0.21"]));
    write("192.0.2.1\n192.0.2.2\n");
    let (new, _) = config.reload_text(&text(WEB, &list), "test").expect("good");
    write("no prefix\n");
    let again = config.answered(&new, &web(&["10.0.0.22"])).expect("good");
    let (again, difference) = again.expect("it asks something");
    assert_eq!((prefixes(&config), prefixes(&again)), (1, 2));
    assert_eq!(
        (servers(&again), difference.new_servers),
        (vec!["web@10.0.0.22:80".to_owned()], vec![1])
    );
    let nothing = parse(
        &text("{ name = \"x\", address = \"10.0.0.22:80\" }", ""),
        &Answers::new(),
    );
    assert_eq!(config.answered(&nothing, &web(&[])).expect("good"), None);
}

/// The check's own sentences are about the file, and an answer is not in it.
#[test]
fn no_answer_makes_a_file_wrong() {
    let transparent =
        "transparent = true\n[[pool]]\nname = \"t\"\nservers = [{ name = \"old\", address = \"10.0.0.50:80\" }]";
    let text_of = |servers: &str| text(servers, transparent);
    let config = parse(&text_of(WEB), &web(&["10.0.0.21"]));
    // Connections to this one are open, from addresses of ours.
    let (next, _) = config
        .reload_text(&text_of(WEB).replace("10.0.0.50", "10.0.0.51"), "test")
        .expect("good");
    let (after, _) = next
        .with_answers(&web(&["10.0.0.21", "10.0.0.50"]))
        .expect("no error of the file");
    assert_eq!(servers(&after), ["old", "web@10.0.0.21:80"]);
    let why = &after.pools()[0].names[0].unusable[0].1;
    assert!(why.contains("to which connections are open"), "{why}");
    // Their memory is set aside when nothing is known of them yet.
    let empty = parse(&text_of(WEB), &Answers::new());
    assert!(empty.reload_text(&text_of(WEB), "test").is_ok());
    let (filled, _) = empty.with_answers(&web(&["10.0.0.21"])).expect("room");
    assert_eq!(filled.pools()[0].members.len(), 1);
}

#[test]
fn of_more_servers_than_a_name_may_have_those_stay_that_are_there() {
    let all: Vec<String> = (100..200).map(|last| format!("10.0.0.{last}")).collect();
    let some = |range: std::ops::Range<usize>| web(&all[range].iter().map(String::as_str).collect::<Vec<_>>());
    let text = text(WEB, "");
    let config = parse(&text, &some(60..80));
    let (full, _) = config.with_answers(&some(0..100)).expect("good");
    assert_eq!(servers(&full).len(), MOST_SERVERS);
    assert!(servers(&config).iter().all(|server| servers(&full).contains(server)));
    let (again, difference) = full.with_answers(&some(0..99)).expect("good");
    assert!(difference.new_servers.is_empty() && servers(&again) == servers(&full));
    let memory = |answers: &Answers| parse(&text, answers).port_memory();
    assert!(memory(&Answers::new()).at_most >= memory(&some(0..MOST_SERVERS)).at_most);
    assert!(memory(&Answers::new()).at_start < memory(&some(0..2)).at_start);
}

#[test]
fn records_are_filtered_by_the_entry_or_one_of_its_servers() {
    let records = |name: &str| format!("[[records]]\nfile = \"-\"\nservers = [\"{name}\"]");
    assert_eq!(parse(&text(WEB, &records("web")), &Answers::new()).records().len(), 1);
    assert!(refusal(&text(WEB, &records("wed"))).contains("records[0].servers[0]"));
}

#[test]
fn servers_to_be_timed_are_named_or_the_first_64() {
    let of = |named: &str| text(&format!("{WEB}, {{ name = \"a\", address = \"10.0.0.9:80\" }}"), named);
    let answers = web(&["10.0.0.2", "10.0.0.3"]);
    let timed = |named: &str| {
        let config = parse(&of(named), &answers);
        let timed = config.core_settings(0, &[MacAddr::default()], |_| 0).timed_servers;
        let name = |server: &u16| config.servers()[usize::from(*server)].name.clone();
        timed.iter().map(name).collect::<Vec<_>>()
    };
    let both = ["web@10.0.0.2:80", "web@10.0.0.3:80"];
    assert_eq!(timed(""), ["a", both[0], both[1]]);
    assert_eq!(timed("[control]\ntimed_servers = [\"web\"]"), both);
    assert_eq!(timed("[control]\ntimed_servers = [\"a\"]"), ["a"]);
    assert!(timed("[control]\ntimed_servers = []").is_empty());
    let unknown = refusal(&of("[control]\ntimed_servers = [\"a\", \"b\"]"));
    assert!(unknown.contains("control.timed_servers[1]"), "{unknown}");
    let many = refusal(&of(&format!("[control]\ntimed_servers = {:?}", ["a"; 65])));
    assert!(many.contains("expected at most 64"), "{many}");
    // A reload may name others, and takes no restart for it.
    let running = parse(&of(""), &answers);
    let (reloaded, _) = running
        .reload_text(&of("[control]\ntimed_servers = [\"a\"]"), "test")
        .expect("live");
    assert_eq!(
        reloaded.core_settings(0, &[MacAddr::default()], |_| 0).timed_servers,
        [0]
    );
}
