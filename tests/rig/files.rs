//! 100 MB files through the engine, each way, with and without losses: the hashes are right.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rig::capture::{Capture, Segment, Tap};
use rig::engine::EngineOptions;
use rig::loss::{Direction, Loss};
use rig::{HOSTS, Place, RigOptions, SERVERS, process, servers};

use crate::setup::{LIMIT, Setup, family_option};

const SIZE: u64 = 100_000_000;
/// One per cent each way, on a machine that does other things at the same time.
const LOSSY_LIMIT: Duration = Duration::from_secs(240);

/// The servers of the service `http`, as the engine's configuration names them.
const HTTP_SERVERS: [&str; 2 * SERVERS] = ["http4-1", "http4-2", "http4-3", "http6-1", "http6-2", "http6-3"];

fn with_nginx(options: RigOptions) -> Option<Setup> {
    let start = |rig: &rig::Rig| {
        (0..SERVERS)
            .map(|index| servers::start_nginx(rig, index).expect("nginx starts"))
            .collect()
    };
    Setup::new(
        options,
        &EngineOptions::default(),
        &["curl", "nginx", "sha256sum", "tcpdump", "nft"],
        start,
    )
}

/// Writes `size` bytes that do not repeat: a generator by G. Marsaglia (xorshift64).
pub(crate) fn write_noise(path: &Path, size: u64) {
    let mut out = BufWriter::new(File::create(path).expect("a file"));
    let mut state = 0x9e37_79b9_7f4a_7c15_u64 ^ size;
    for _ in 0..size / 8 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.write_all(&state.to_le_bytes()).expect("written");
    }
    out.flush().expect("written");
}

pub(crate) fn hash(path: &Path) -> String {
    let output = process::run(Command::new("sha256sum").arg(path), b"", LIMIT).expect("sha256sum");
    output.text().split_whitespace().next().expect("a hash").to_owned()
}

/// Gets a file from server `index` with curl and checks that it is the one there.
fn download(setup: &Setup, index: usize, family: &str, size: u64, limit: Duration) {
    let (there, here) = (
        servers::files_of(&setup.rig, index).join("down"),
        setup.rig.file("downloaded"),
    );
    write_noise(&there, size);
    let url = format!("http://{}/files/down", HOSTS[index]);
    let here_name = here.to_string_lossy();
    let arguments = [family, "-sS", "--fail", "--output", &here_name, &url];
    setup
        .rig
        .run(Place::Clients, "curl", &arguments, limit)
        .expect("the file comes");
    assert_eq!(hash(&here), hash(&there));
}

/// Stores a file at server `index` with curl and checks that it is the same there.
fn upload(setup: &Setup, index: usize, family: &str, size: u64, limit: Duration) {
    let (here, there) = (
        setup.rig.file("to-upload"),
        servers::files_of(&setup.rig, index).join("up"),
    );
    write_noise(&here, size);
    let url = format!("http://{}/files/up", HOSTS[index]);
    let here_name = here.to_string_lossy();
    let arguments = [family, "-sS", "--fail", "--upload-file", &here_name, &url];
    setup
        .rig
        .run(Place::Clients, "curl", &arguments, limit)
        .expect("the file goes");
    assert_eq!(hash(&there), hash(&here));
}

#[test]
fn a_hundred_megabytes_each_way_arrive_whole() {
    let Some(setup) = with_nginx(RigOptions::default()) else {
        return;
    };
    for (index, address) in setup.rig.engine_addresses().into_iter().enumerate() {
        download(&setup, index, family_option(address), SIZE, LIMIT);
        upload(&setup, index, family_option(address), SIZE, LIMIT);
    }
    let (report, _rig) = setup.finish();
    assert_eq!(report.records.len(), 4);
    assert_eq!(
        report
            .records
            .iter()
            .filter(|record| record.bytes_to_client > SIZE)
            .count(),
        2
    );
    assert_eq!(
        report
            .records
            .iter()
            .filter(|record| record.bytes_to_server > SIZE)
            .count(),
        2
    );
}

#[test]
fn with_one_per_cent_lost_each_way_they_arrive_whole_by_sack_and_timestamps() {
    let Some(setup) = with_nginx(RigOptions::default()) else {
        return;
    };
    let setup = setup.knowing(&HTTP_SERVERS);
    for (index, address) in setup.rig.engine_addresses().into_iter().enumerate() {
        let loss = Loss::start(&setup.rig, &Direction::ALL, 10).expect("nftables");
        let capture = Capture::start(&setup.rig, Tap::Clients).expect("tcpdump");
        download(&setup, index, family_option(address), SIZE, LOSSY_LIMIT);
        check_capture(&capture.finish().expect("a capture"), address);
        let capture = Capture::start(&setup.rig, Tap::Clients).expect("tcpdump");
        upload(&setup, index, family_option(address), SIZE, LOSSY_LIMIT);
        check_capture(&capture.finish().expect("a capture"), address);
        // 100 MB are at least 70 000 segments each way, of which two links each lose one in a hundred.
        assert!(loss.lost().expect("a counter") > 1_000);
    }
    setup.finish();
}

/// The handshake agreed on SACK, timestamps and window scaling, and they were used.
fn check_capture(segments: &[Segment], engine: std::net::IpAddr) {
    let (from_engine, from_client): (Vec<_>, Vec<_>) = segments.iter().partition(|segment| segment.from.ip() == engine);
    let syn = from_client.iter().find(|segment| segment.opens()).expect("a SYN");
    let answer = from_engine
        .iter()
        .find(|segment| segment.answers_open())
        .expect("its answer");
    for segment in [syn, answer] {
        assert!(segment.sack_permitted && segment.window_scale.is_some(), "{segment:?}");
    }
    let untimed = segments
        .iter()
        .find(|segment| segment.timestamps.is_none() && !segment.rst);
    assert_eq!(untimed, None, "RFC 7323 3.2: once agreed, every segment has the option");
    let with_sack = segments.iter().filter(|segment| segment.sack_blocks > 0).count();
    assert!(with_sack > 100, "{with_sack} segments with SACK blocks");
    let scaled = segments.iter().any(|segment| !segment.syn && segment.window > 0);
    assert!(scaled, "windows are announced");
}

#[test]
fn jumbo_frames_carry_a_file_each_way() {
    let Some(setup) = with_nginx(RigOptions {
        mtu: 9000,
        ..RigOptions::default()
    }) else {
        return;
    };
    // An earlier client is promised no timestamps, and sends 12 bytes more in a segment.
    let setup = setup.knowing(&HTTP_SERVERS);
    let capture = Capture::start(&setup.rig, Tap::Clients).expect("tcpdump");
    for (index, address) in setup.rig.engine_addresses().into_iter().enumerate() {
        download(&setup, index, family_option(address), SIZE / 10, LIMIT);
        upload(&setup, index, family_option(address), SIZE / 10, LIMIT);
    }
    let largest = capture
        .finish()
        .expect("a capture")
        .iter()
        .map(|segment| segment.payload)
        .max();
    assert_eq!(largest, Some(9000 - 20 - 32), "a full frame over IPv4 with timestamps");
    setup.finish();
}
