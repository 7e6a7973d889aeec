//! Files put aside by the sink and renamed by somebody else, while records come as quickly as they can be made.

use super::*;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

const RECORDS: u32 = 100_000;

/// One after the other has a client of its own.
fn ended_of(client: u32) -> Ended {
    let mut ended = ended(1);
    ended.ends.client = std::net::Ipv4Addr::from(client).to_ipv6_mapped().to_bits();
    ended
}

fn client_of(line: &str) -> u32 {
    let record: serde_json::Value = serde_json::from_str(line).expect("JSON");
    let client: std::net::Ipv4Addr = record["client"].as_str().expect("client").parse().expect("IPv4");
    client.into()
}

/// Files that the sink has put aside.
fn put_aside(folder: &Path) -> usize {
    let names = fs::read_dir(folder)
        .expect("directory")
        .map(|entry| entry.expect("file").file_name());
    names
        .filter(|name| name.to_string_lossy().starts_with("records."))
        .count()
}

#[test]
fn no_record_is_lost_or_there_twice_while_files_are_rotated_by_size_and_time_and_renamed() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().join("records");
    let sink = RecordsConfig {
        rotation: Rotation {
            size: Some(1 << 20),
            every: Some(Duration::from_millis(100)),
            keep: u8::MAX,
        },
        ..json_to(&path)
    };
    let (mut sender, receiver) = record_ring(RECORDS as usize);
    let keeper = start(vec![receiver], &[sink]);
    let watch = keeper.watch();
    let is_over = AtomicBool::new(false);
    let renamed = std::thread::scope(|scope| {
        let renaming = scope.spawn(|| {
            let mut renamed = 0;
            while !is_over.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(1));
                // By turns with the sink: on a slow machine no file would ever be old or large enough for it.
                if put_aside(dir.path()) <= renamed as usize {
                    continue;
                }
                let moved = dir.path().join(format!("moved.{renamed}"));
                renamed += u32::from(fs::rename(&path, moved).is_ok());
                watch.reopen();
            }
            renamed
        });
        for client in 0..RECORDS {
            sender.send(|| ended_of(client));
            if client % 1_000 == 0 {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        wait_for("written", || watch.totals().written == u64::from(RECORDS));
        is_over.store(true, Ordering::Relaxed);
        renaming.join().expect("renamed")
    });
    assert_eq!(keeper.finish().totals(), totals(RECORDS.into(), 0));
    let mut clients = BTreeSet::new();
    for entry in fs::read_dir(dir.path()).expect("directory") {
        let entry = entry.expect("file");
        let text = fs::read_to_string(entry.path()).expect("read");
        let twice = text.lines().map(client_of).find(|client| !clients.insert(*client));
        assert_eq!(twice, None, "{:?}", entry.path());
    }
    assert_eq!(clients, (0..RECORDS).collect());
    assert!(renamed > 1 && put_aside(dir.path()) > 1, "{renamed}");
}
