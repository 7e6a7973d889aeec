//! The rig proves itself with Linux in the engine's place: forwarding between its two ports. What these tests find wrong
//! is the rig's fault, not the engine's.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rig::capture::{Capture, Tap};
use rig::loss::{Direction, Loss};
use rig::process::{self, Process};
use rig::servers::{self, Certificates};
use rig::{Arms, HOSTS, Place, Rig, RigError, RigOptions};

const LIMIT: Duration = Duration::from_secs(30);

fn two_armed() -> RigOptions {
    RigOptions {
        arms: Arms::Two,
        ..RigOptions::default()
    }
}

/// Gives the engine's namespace its addresses and lets it forward: a router in the engine's place.
fn route_with_linux(rig: &Rig) {
    let script = format!(
        "sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.disable_ipv6=0 net.ipv6.conf.all.forwarding=1
         ip address add {}/24 dev pe-eng0; ip -6 address add {}/64 dev pe-eng0 nodad
         ip address add {}/24 dev pe-eng1; ip -6 address add {}/64 dev pe-eng1 nodad",
        rig.engine_addresses()[0],
        rig.engine_addresses()[1],
        rig.engine_addresses_for_servers()[0],
        rig.engine_addresses_for_servers()[1],
    );
    rig.run(Place::Engine, "sh", &["-ec", &script], LIMIT)
        .expect("Linux forwards");
}

fn namespace_of(rig: &Rig, place: Place) -> String {
    format!("/run/netns/{}", place.name(rig.prefix()))
}

#[test]
fn clients_reach_each_server_and_learn_its_name() {
    let Some(rig) = Rig::for_test(two_armed(), &["nginx", "openssl", "socat", "curl"]) else {
        return;
    };
    route_with_linux(&rig);
    let certificates = Certificates::make(&rig).expect("certificates");
    let trusted = certificates.trusted().to_string_lossy().into_owned();
    for (index, host) in HOSTS.iter().enumerate() {
        let _nginx = servers::start_nginx(&rig, index).expect("nginx");
        let _tls = servers::start_tls(&rig, index, &certificates).expect("s_server");
        let _numbers = servers::start_numbers(&rig, index).expect("socat");
        let curl = |arguments: &[&str]| {
            rig.run(
                Place::Clients,
                "curl",
                &[&["-sS", "--max-time", "10"], arguments].concat(),
                LIMIT,
            )
            .expect("curl is answered")
            .text()
        };
        for address in rig.server_addresses(index) {
            let at = SocketAddr::new(address, servers::HTTP);
            assert_eq!(servers::named_in(&curl(&[&format!("http://{at}/")])), Some(index));

            let resolve = format!("{host}:{}:{address}", servers::TLS);
            let url = format!("https://{host}/whoami");
            let answer = curl(&["--cacert", &trusted, "--resolve", &resolve, &url]);
            assert_eq!(servers::named_in(&answer), Some(index));

            let at = SocketAddr::new(address, servers::NUMBERS);
            let mut answer = String::new();
            let mut stream = rig
                .at(Place::Clients, || TcpStream::connect(at))
                .expect("there")
                .expect("connected");
            stream.write_all(b"17 bottles\n").expect("sent");
            stream.read_to_string(&mut answer).expect("received");
            assert_eq!(answer, format!("{} read: 17 bottles\n", servers::name_of(index)));
        }
    }
}

#[test]
fn databases_directories_and_ssh_servers_say_who_they_are() {
    let postgres = servers::postgres_program();
    let postgres = postgres.to_string_lossy();
    let tools = [
        "openssl",
        "setpriv",
        "psql",
        &postgres,
        "slapd",
        "slapadd",
        "ldapsearch",
        "dropbear",
        "ssh-keyscan",
    ];
    let Some(rig) = Rig::for_test(RigOptions::default(), &tools) else {
        return;
    };
    let certificates = Certificates::make(&rig).expect("certificates");
    let _postgres = servers::start_postgres(&rig, &certificates).expect("PostgreSQL");
    let ask = |program: &str, arguments: &[&str]| {
        let answer = rig.run(Place::Clients, program, arguments, LIMIT);
        answer.unwrap_or_else(|error| panic!("{error}")).text()
    };
    for index in 0..2 {
        let _slapd = servers::start_slapd(&rig, index).expect("slapd");
        let (_dropbear, key) = servers::start_ssh(&rig, index).expect("Dropbear");
        for address in rig.server_addresses(index) {
            let shop = format!("host={address} dbname=shop user=alice sslmode=require");
            let name = ask("psql", &["-XAt", "-c", "SHOW cluster_name", &shop]);
            assert_eq!(name.trim(), servers::name_of(index));
            let url = format!("ldap://{}", SocketAddr::new(address, servers::LDAP));
            let alice = ["-D", "cn=alice,ou=people,dc=example,dc=org", "-w", servers::PASSWORD];
            let who = ["-x", "-LLL", "-H", &url, "-b", "dc=example,dc=org", "-s", "base", "o"];
            assert_eq!(
                servers::named_in(&ask("ldapsearch", &[&who[..4], &alice, &who[4..]].concat())),
                Some(index)
            );
            let keys = ask("ssh-keyscan", &["-t", "ed25519", &address.to_string()]);
            assert_eq!(keys.trim(), format!("{address} {key}"));
        }
    }
}

#[test]
fn a_capture_sees_what_linux_offers() {
    let Some(rig) = Rig::for_test(two_armed(), &["tcpdump"]) else {
        return;
    };
    route_with_linux(&rig);
    let capture = Capture::start(&rig, Tap::Clients).expect("tcpdump");
    for address in [rig.server_addresses(0)[0], rig.server_addresses(0)[1]] {
        talk(&rig, SocketAddr::new(address, 9000), b"hello");
    }
    let segments = capture.finish().expect("a capture");
    for v6 in [false, true] {
        let of_family = || segments.iter().filter(move |segment| segment.from.is_ipv6() == v6);
        let syn = of_family()
            .find(|segment| segment.opens())
            .unwrap_or_else(|| panic!("no SYN in {segments:#?}"));
        assert_eq!(syn.mss, Some(if v6 { 1440 } else { 1460 }));
        assert!(
            syn.sack_permitted && syn.timestamps.is_some() && syn.window_scale.is_some(),
            "{syn:?}"
        );
        assert_eq!(
            of_family()
                .filter(|segment| segment.to.port() == 9000)
                .map(|segment| segment.payload)
                .sum::<u32>(),
            5
        );
        assert!(of_family().any(|segment| segment.answers_open()));
        assert!(of_family().any(|segment| segment.fin));
    }
}

/// Sends `bytes` from the clients to a server at `at`, and checks that they arrive.
fn talk(rig: &Rig, at: SocketAddr, bytes: &[u8]) {
    assert_eq!(transfer(rig, at, bytes), bytes);
}

#[test]
fn losses_happen_and_are_counted_and_linux_recovers() {
    let Some(rig) = Rig::for_test(two_armed(), &["nft", "tcpdump"]) else {
        return;
    };
    route_with_linux(&rig);
    let data: Vec<u8> = (0..2_000_000u32).map(|n| (n % 251) as u8).collect();
    let at = SocketAddr::new(rig.server_v4(0).into(), 9000);
    for direction in Direction::ALL {
        let loss = Loss::start(&rig, &[direction], 50).expect("nftables");
        let capture = Capture::start(&rig, Tap::Clients).expect("tcpdump");
        // Linux may send two megabytes as 30 large segments and acknowledge them with fewer, of which a draw can spare
        // all: some transfers have losses, not each.
        let mut transfers = 0;
        while loss.lost().expect("a counter") < 5 {
            assert!(
                transfers < 50,
                "one in twenty is lost, hardly one was of what went {direction:?}"
            );
            transfers += 1;
            let received = transfer(&rig, at, &data);
            assert!(received == data, "the bytes are right in spite of the losses");
        }
        let segments = capture.finish().expect("a capture");
        if direction == Direction::FromClients {
            assert!(
                segments.iter().any(|segment| segment.sack_blocks > 0),
                "Linux reports the holes"
            );
        }
    }
}

/// Sends `data` from the clients to a server at `at` that exists for this one connection: what arrived.
fn transfer(rig: &Rig, at: SocketAddr, data: &[u8]) -> Vec<u8> {
    let listener = rig
        .at(Place::Servers, || TcpListener::bind(at))
        .expect("there")
        .expect("bound");
    let mut received = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = rig
                .at(Place::Clients, || TcpStream::connect(at))
                .expect("there")
                .expect("connected");
            client.write_all(data).expect("sent");
        });
        listener
            .accept()
            .expect("accepted")
            .0
            .read_to_end(&mut received)
            .expect("received");
    });
    received
}

#[test]
fn one_segment_of_one_kind_is_lost_and_no_other() {
    let Some(rig) = Rig::for_test(RigOptions::default(), &["nft"]) else {
        return;
    };
    let expression = "tcp dport 9000 tcp flags syn numgen inc mod 1000 == 0";
    let loss = Loss::of(&rig, &[Direction::FromClients], expression).expect("nftables");
    for address in rig.server_addresses(0) {
        let start = Instant::now();
        talk(&rig, SocketAddr::new(address, 9000), b"hello");
        // Linux repeats a SYN after a second; only the first was lost.
        assert!(start.elapsed() >= Duration::from_millis(900) || address.is_ipv6());
    }
    assert_eq!(loss.lost().expect("a counter"), 1);
}

#[test]
fn nothing_is_left_behind() {
    let Some(rig) = Rig::for_test(RigOptions::default(), &["sleep"]) else {
        return;
    };
    let namespaces = Place::ALL.map(|place| namespace_of(&rig, place));
    let folder = rig.folder().to_owned();
    let sleeper = rig.start(Place::Servers, "sleep", "sleep", &["600"]).expect("sleep");
    let pid = sleeper.id();
    // Outlives its handle, as what a killed test has started does.
    sleeper.release();
    assert!(namespaces.iter().all(|path| Path::new(path).exists()));
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
        let _rig = rig;
        std::panic::resume_unwind(Box::new("a failed assertion"));
    }));
    assert!(panicked.is_err());
    assert!(
        !namespaces.iter().any(|path| Path::new(path).exists()),
        "namespaces are gone"
    );
    assert!(!folder.exists(), "files are gone");
    let state = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    assert!(
        state.is_empty() || state.contains(") Z "),
        "the process is gone: {state}"
    );
}

#[test]
fn a_rig_that_a_killed_program_left_is_removed_by_the_next() {
    if let Err(reason) = rig::requirements(&[]) {
        return rig::skip("a_rig_that_a_killed_program_left_is_removed_by_the_next", &reason);
    }
    // A process id that no process has: larger than the kernel's largest.
    let stale = "pet99999999n1-clients";
    process::run(Command::new("ip").args(["netns", "add", stale]), b"", LIMIT).expect("made");
    let _rig = Rig::new(RigOptions::default()).expect("the rig comes up");
    assert!(!Path::new("/run/netns").join(stale).exists());
}

#[test]
fn the_status_of_a_rig_is_told() {
    let Some(rig) = Rig::for_test(RigOptions::default(), &[]) else {
        return;
    };
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../prepNet.sh");
    let status_of = |prefix: &str| {
        let status = Command::new(script)
            .args(["status", "--prefix", prefix])
            .output()
            .expect("the script runs");
        (
            status.status.code(),
            String::from_utf8_lossy(&status.stdout).into_owned(),
        )
    };
    let (code, text) = status_of(rig.prefix());
    assert_eq!(code, Some(0), "{text}");
    // The script and this crate speak of the same addresses.
    for place in [
        "10.77.0.1 ",
        "fd77::1\n",
        "10.77.0.{101,102,103,104}",
        "fd77::{101,",
        "10.77.0.{11,12,13}",
        "fd77::{11,",
    ] {
        assert!(text.contains(place), "{place} in {text}");
    }
    let hosts = rig
        .run(Place::Clients, "cat", &["/etc/hosts"], LIMIT)
        .expect("hosts")
        .text();
    assert!(HOSTS.iter().all(|host| hosts.contains(host)), "{hosts}");
    for (place, address) in [
        (Place::Clients, rig.client_v4(3).to_string()),
        (Place::Clients, rig.client_v6(3).to_string()),
        (Place::Servers, rig.server_v4(2).to_string()),
        (Place::Servers, rig.server_v6(2).to_string()),
    ] {
        let addresses = rig.run(place, "ip", &["address"], LIMIT).expect("ip").text();
        assert!(addresses.contains(&format!(" {address}/")), "{address} in {addresses}");
    }
    rig.run(Place::Switch, "ip", &["link", "delete", "engine0"], LIMIT)
        .expect("unplugged");
    let (code, text) = status_of(rig.prefix());
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("missing: port engine0"), "{text}");
    assert_eq!(status_of("pet-none").0, Some(1));
}

#[test]
fn a_program_that_takes_too_long_is_ended_with_all_it_started() {
    let start = Instant::now();
    let mut shell = Command::new("sh");
    shell.args(["-c", "echo begun; sleep 600 & wait"]);
    let error = process::run(&mut shell, b"", Duration::from_millis(300)).expect_err("too long");
    assert!(start.elapsed() < Duration::from_secs(10));
    assert!(
        matches!(error, RigError::TimedOut { .. }) && error.to_string().contains("begun"),
        "{error}"
    );
}

#[test]
fn a_failing_program_is_quoted() {
    let error = process::run(Command::new("sh").args(["-c", "echo why >&2; exit 3"]), b"", LIMIT).expect_err("failed");
    assert!(
        error.to_string().contains("why") && error.to_string().contains('3'),
        "{error}"
    );
}

#[test]
fn a_program_that_ends_instead_of_listening_is_noticed() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut process = Process::start(
        Command::new("sh").args(["-c", "echo no port"]),
        &folder.path().join("log"),
    )
    .expect("started");
    let error = process
        .wait_for_listeners(&[SocketAddr::from(([127, 0, 0, 1], 1))], LIMIT)
        .expect_err("it has ended");
    assert!(error.to_string().contains("no port"), "{error}");
}

#[test]
fn a_listener_at_another_address_is_not_waited_for_in_its_place() {
    let Some(rig) = Rig::for_test(two_armed(), &["socat"]) else {
        return;
    };
    let [v4, v6] = rig
        .server_addresses(0)
        .map(|address| SocketAddr::new(address, servers::NUMBERS));
    let listen = format!("TCP4-LISTEN:{},bind={}", v4.port(), v4.ip());
    let mut socat = rig
        .start(Place::Servers, "socat", "socat", &[&listen, "EXEC:cat"])
        .expect("socat starts");
    socat.wait_for_listeners(&[v4], LIMIT).expect("it listens there");
    let error = socat
        .wait_for_listeners(&[v4, v6], Duration::from_millis(100))
        .expect_err("nothing listens at the other");
    assert!(error.to_string().contains("listening"), "{error}");
}
