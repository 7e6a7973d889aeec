//! The example program that rewrites lines, between the kernels of both ends: what arrives is what `tr` and `sed` make of
//! what was sent, by its hash, and as long as it must be.

use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use rig::engine::{Choice, Engine, EngineOptions, Service};
use rig::loss::{Direction, Loss};
use rig::{Place, RigOptions, process};

use crate::setup::{LIMIT, Setup, binary};

const LINES: u16 = 7007;
/// On a machine that does other things at the same time.
const LOSSY_LIMIT: Duration = Duration::from_secs(240);

/// The example, built as the engine under test was: `cargo test --test rig` alone would leave it out.
fn example() -> PathBuf {
    let folder = binary().parent().expect("a program is in a folder");
    let mut cargo = Command::new(env!("CARGO"));
    cargo
        .args(["build", "--quiet", "--example", "inspect_payload", "--target-dir"])
        .arg(folder.parent().expect("a target folder"))
        .current_dir(env!("CARGO_MANIFEST_DIR"));
    if folder.ends_with("release") {
        cargo.arg("--release");
    }
    process::run(&mut cargo, b"", Duration::from_secs(600)).expect("the example builds");
    folder.join("examples/inspect_payload")
}

/// Lines of words, `count` of them, each ending in `end`; now and then the word that nobody is to see.
fn text(count: u64, end: &str) -> String {
    let words = ["alpha", "secret", "beta\t", "se", "secre", "gamma", "sec", "delta"];
    let mut state = 0x9e37_79b9_7f4a_7c15_u64 ^ count;
    let mut text = String::new();
    for number in 0..count {
        text += &number.to_string();
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        for shift in 0..state >> 60 {
            text.push(' ');
            text += words[(state >> (3 * shift)) as usize % words.len()];
        }
        text += end;
    }
    text
}

/// What `command` makes of a file, as its hash.
fn hash_of(command: &str, file: &Path) -> String {
    let script = format!("({command}) < '{}' | sha256sum", file.display());
    let output = process::run(Command::new("sh").args(["-c", &script]), b"", LIMIT).expect("a hash");
    output.text().split_whitespace().next().expect("a hash").to_owned()
}

/// One connection: `up` goes to the server, and when it has all of that `down` comes back. Returns what each end got.
fn exchange(setup: &Setup, (engine, server): (IpAddr, IpAddr), up: &str, down: &str, limit: Duration) -> [Vec<u8>; 2] {
    let bind = || TcpListener::bind(SocketAddr::new(server, LINES));
    let listener = setup.rig.at(Place::Servers, bind).expect("there").expect("bound");
    thread::scope(|scope| {
        let server = scope.spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            stream.set_read_timeout(Some(limit)).expect("a limit");
            let mut heard = Vec::new();
            stream.read_to_end(&mut heard).expect("everything");
            stream.write_all(down.as_bytes()).expect("sent");
            heard
        });
        let connect = || TcpStream::connect(SocketAddr::new(engine, LINES));
        let mut client = setup
            .rig
            .at(Place::Clients, connect)
            .expect("there")
            .expect("connected");
        client.set_read_timeout(Some(limit)).expect("a limit");
        client.write_all(up.as_bytes()).expect("sent");
        client.shutdown(Shutdown::Write).expect("half closed");
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).expect("an answer");
        [server.join().expect("a server"), answer]
    })
}

fn rewrites_lines(lines: u64, loss: Option<u16>) {
    let service = Service {
        name: "lines",
        port: LINES,
        choice: Choice::Always(0),
    };
    // The server listens only when the engine is up, too late for a probe. Without timestamps a client cannot take back a
    // doubled time-out until a segment gets through at once (RFC 6298 3), and waits for minutes.
    let options = EngineOptions {
        services: vec![service],
        tables: "[syn_ack]\nwindow_scale = 7\nsack = true\ntimestamps = true\n".into(),
        ..EngineOptions::default()
    };
    let tools = ["tr", "sed", "sha256sum", "nft"];
    let start = |rig: &rig::Rig| Engine::start_program(rig, &example(), &options);
    let Some(setup) = Setup::with(RigOptions::default(), &tools, |_| Vec::new(), start) else {
        return;
    };
    let (up, down) = (text(lines, "\r\n"), text(lines + 1, "\n"));
    let [sent_up, sent_down, got_up, got_down] =
        ["sent-up", "sent-down", "got-up", "got-down"].map(|name| setup.rig.file(name));
    fs::write(&sent_up, &up).expect("written");
    fs::write(&sent_down, &down).expect("written");
    let pairs: Vec<_> = setup
        .rig
        .engine_addresses()
        .into_iter()
        .zip(setup.rig.server_addresses(0))
        .collect();
    for &pair in &pairs {
        let losing = loss.map(|per_mille| Loss::start(&setup.rig, &Direction::ALL, per_mille).expect("nftables"));
        let [at_server, at_client] = exchange(&setup, pair, &up, &down, LOSSY_LIMIT);
        if let Some(losing) = losing {
            assert!(losing.lost().expect("a counter") > 20);
        }
        fs::write(&got_up, &at_server).expect("written");
        fs::write(&got_down, &at_client).expect("written");
        assert_eq!(at_server.len() as u64, up.len() as u64 - lines);
        assert_eq!(at_client.len() as u64, down.len() as u64 + lines + 1);
        let blot = "sed 's/secret/******/g'";
        assert_eq!(
            hash_of("cat", &got_up),
            hash_of(&format!("tr -d '\\r' | {blot}"), &sent_up)
        );
        assert_eq!(
            hash_of("cat", &got_down),
            hash_of(&format!("{blot} | sed 's/$/\\r/'"), &sent_down)
        );
        assert_ne!(
            hash_of("cat", &got_up),
            hash_of("tr -d '\\r'", &sent_up),
            "a word was blotted out"
        );
    }
    let (report, _rig) = setup.finish();
    let dropped = |reason| report.number(&format!("/counters/proxy_drops/{reason}"));
    assert_eq!((dropped("out_of_window"), dropped("inspect_full")), (0, 0));
    assert!(dropped("inspect_buffer_full") < 100, "the window says what can be kept");
    assert_eq!(report.records.len(), pairs.len());
    for record in &report.records {
        // Bytes are counted as they come in.
        assert_eq!(record.bytes_to_server, up.len() as u64);
        assert_eq!(record.bytes_to_client, down.len() as u64);
    }
    let totals = format!("connections: {}, lines_to_server: {}", pairs.len(), lines * 2);
    assert!(report.log.contains(&totals), "{}", report.log);
}

#[test]
fn what_the_example_rewrites_arrives_as_tr_and_sed_would_have_it() {
    rewrites_lines(80_000, None);
}

#[test]
fn with_two_per_cent_lost_it_arrives_just_so() {
    rewrites_lines(20_000, Some(20));
}
