//! How many records a second one thread makes lines of and writes: the engine's own records thread, fed by a ring that is never
//! empty, into a file and into `/dev/null`.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant as WallClock};

use e2d2::time::Instant;
use netfcts::Side;
use netfcts::format::{NameTable, Named, RecordFormat};
use netfcts::progress::{Ended, Ends, Micros, Progress};
use netfcts::record::State;
use netfcts::ring::record_ring;
use proxyengine::config::{Destination, RecordsConfig};
use proxyengine::records::{RING_CAPACITY, RecordKeeper};

use crate::device::BoxError;

/// The formats by their names in a configuration.
const FORMATS: [(&str, RecordFormat); 3] = [
    ("text", RecordFormat::Text),
    ("csv", RecordFormat::Csv),
    ("json", RecordFormat::JsonLines),
];

/// Records a second by format.
pub(crate) type Rates = BTreeMap<&'static str, f64>;

/// What a file took, and what `/dev/null` did.
pub(crate) fn measure(length: Duration) -> Result<[Rates; 2], BoxError> {
    let folder = tempfile::tempdir()?;
    let (mut to_file, mut to_nothing) = (Rates::new(), Rates::new());
    for (name, format) in FORMATS {
        let file = folder.path().join(name);
        to_file.insert(name, rate(&file, format, length)?);
        // A hundred megabytes a second, which nobody needs any more.
        std::fs::remove_file(&file)?;
        to_nothing.insert(name, rate(Path::new("/dev/null"), format, length)?);
    }
    Ok([to_file, to_nothing])
}

fn rate(path: &Path, format: RecordFormat, length: Duration) -> Result<f64, BoxError> {
    let (mut sender, receiver) = record_ring(RING_CAPACITY);
    let sink = RecordsConfig::all(Destination::File(path.to_owned()), format);
    let keeper = RecordKeeper::start(vec![receiver], &[sink], names())?;
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let core = std::thread::Builder::new().name("core".to_owned()).spawn(move || {
        let mut number = 0_u32;
        while !stopped.load(Ordering::Relaxed) {
            let lost = sender.records_lost();
            sender.send(|| ended(number));
            number = number.wrapping_add(1);
            if sender.records_lost() != lost {
                // The ring is full: it gets room while this thread leaves it alone.
                std::thread::sleep(Duration::from_micros(200));
            }
        }
    })?;
    let began = WallClock::now();
    std::thread::sleep(length);
    stop.store(true, Ordering::Relaxed);
    core.join().map_err(|_| "the thread that makes records has panicked")?;
    // It ends when it has written what is in the ring.
    let written = keeper.finish().totals().written;
    Ok(written as f64 / began.elapsed().as_secs_f64())
}

fn names() -> NameTable {
    let named = |name: &str, address: &str| -> Option<Named> {
        let address: SocketAddr = address.parse().ok()?;
        Some(Named {
            name: name.to_owned(),
            address,
        })
    };
    NameTable {
        listeners: vec!["bench".to_owned()],
        servers: (0..4)
            .filter_map(|index| named(&format!("s{index}"), &format!("10.2.0.{}:80", index + 1)))
            .collect(),
        local_addresses: vec![IpAddr::from([10, 1, 255, 254]), IpAddr::from([10, 2, 100, 1])],
        classes: Vec::new(),
        epoch_ns: 1_700_000_000_000_000_000,
    }
}

/// A connection like those of `bench cps`, another client each time.
fn ended(number: u32) -> Ended {
    let at = |micros: u64| Micros::from(Instant::from_nanos(u64::from(number) * 1_000 + micros * 1_000));
    let mut progress = Progress::NONE;
    progress.begin(Side::Client, State::Established, at(0));
    for (side, state, micros) in [
        (Side::Server, State::SynSent, 120),
        (Side::Server, State::Established, 180),
        (Side::Server, State::FinWait1, 230),
        (Side::Client, State::LastAck, 250),
    ] {
        progress.push_state(side, state, at(micros));
    }
    let client = Ipv4Addr::from_bits(0x0a01_0000 | (number % 0xffff));
    Ended {
        progress,
        ends: Ends {
            client: client.to_ipv6_mapped().to_bits(),
            client_port: number as u16,
            server: (number % 4) as u16,
            packets: (5, 4),
            bytes: (16.into(), 8.into()),
            local: (1, 1024),
            at: at(300),
            ..Ends::default()
        },
    }
}
