//! The EAL's whole life in one process: one test, because there is one EAL.
#![cfg(feature = "dpdk")]

use std::fs;
use std::path::Path;

use e2d2::buffer::{BufferPool, PacketBuffer};
use e2d2::native::{Eal, EalConfig, EalError, MbufPool, Memory, PoolError};
use rustix::process::getuid;
use rustix::thread::sched_getaffinity;

#[test]
fn the_eal_starts_once_and_leaves_nothing_behind() {
    let prefix = format!("e2d2-life-{}", std::process::id());
    let config = EalConfig {
        file_prefix: prefix.clone(),
        ..EalConfig::hermetic()
    };

    // What is wrong is found before DPDK is started, so that it can be put right.
    let wrong = EalConfig {
        packet_cores: vec![100_000],
        ..config.clone()
    };
    assert!(matches!(
        Eal::start(&wrong),
        Err(EalError::NoSuchCore { core: 100_000, .. })
    ));
    let wrong = EalConfig {
        pci: vec!["ffff:00:00.0".to_owned()],
        ..config.clone()
    };
    assert!(matches!(Eal::start(&wrong), Err(EalError::Device(_))));
    let wrong = EalConfig {
        file_prefix: "nul\0".to_owned(),
        ..config.clone()
    };
    assert!(matches!(Eal::start(&wrong), Err(EalError::Nul(_))));

    let affinity = sched_getaffinity(None).expect("this thread has CPUs");
    let eal = Eal::start(&config).expect("the EAL starts without privileges");
    assert_eq!(
        sched_getaffinity(None).expect("this thread has CPUs"),
        affinity,
        "the caller keeps its CPUs"
    );
    assert!(
        matches!(eal.memory(), Memory::Ordinary { mib: 256, .. }),
        "{:?}",
        eal.memory()
    );
    assert_eq!(Eal::start(&config).map(|_| ()), Err(EalError::AlreadyStarted));

    match MbufPool::new(&eal, "large", 1 << 20, 9216, None) {
        Err(PoolError::NoMemory { mib, .. }) => assert!(mib > 9216, "{mib}"),
        other => panic!("a pool of 9 GiB in 256 MiB: {other:?}"),
    }
    // Nothing of the failed attempt is left: more than half of the memory fits into one pool.
    let fits = MbufPool::new(&eal, "fits", 60_000, 2048, None).expect("the memory is free again");
    drop(fits);

    // A packet that outlives its pool and the last handle keeps its memory.
    let mut pool = MbufPool::new(&eal, "outlived", 127, 2048, None).expect("enough memory");
    let mut packet = pool.take_copy(&[7; 60]).expect("a full pool");
    let thread = eal.register_thread().expect("an lcore id is left");
    drop((pool, eal, thread));
    packet.data_mut()[0] = 8;
    assert_eq!((packet.data()[0], packet.data()[59]), (8, 7));
    drop(packet);

    let base = if getuid().is_root() {
        "/var/run/dpdk"
    } else {
        "/tmp/dpdk"
    };
    assert!(!Path::new(base).join(&prefix).exists(), "no directory is left");
    for directory in ["/dev/hugepages", "/tmp"]
        .map(Path::new)
        .into_iter()
        .filter(|path| path.exists())
    {
        let left = fs::read_dir(directory).expect("a directory that anyone may read");
        let left = left
            .flatten()
            .filter(|entry| entry.file_name().to_string_lossy().contains(&prefix));
        assert_eq!(left.count(), 0, "no file is left in {}", directory.display());
    }
}
