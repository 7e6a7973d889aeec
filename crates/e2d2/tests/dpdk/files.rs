//! Devices that are no cable: capture files, and net_null.

use std::fs;
use std::path::{Path, PathBuf};

use e2d2::buffer::{BufferPool, PacketBuffer};
use e2d2::native::{DpdkPort, DpdkQueue, MbufPool, PortConfig, PortError};
use e2d2::port::{Port, PortId};

use crate::support::{Burst, eal, frame, packet, pool, receive, unique};

fn open(device: &str, pools: &[&MbufPool]) -> Result<(DpdkPort, Vec<DpdkQueue>), PortError> {
    DpdkPort::open(&eal(), &PortConfig::new(PortId(0), device.parse()?), pools)
}

/// A capture of Ethernet frames in the classic format, little-endian, written by hand.
fn write_capture(path: &Path, frames: &[Vec<u8>]) {
    let mut bytes = Vec::new();
    for word in [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 65535, 1] {
        bytes.extend(word.to_le_bytes());
    }
    for frame in frames {
        for word in [1, 0, frame.len() as u32, frame.len() as u32] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(frame);
    }
    fs::write(path, bytes).expect("a temporary file");
}

/// The frames of a capture in the same format.
fn read_capture(path: &Path) -> Vec<Vec<u8>> {
    let bytes = fs::read(path).expect("a capture was written");
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes")) as usize;
    let mut frames = Vec::new();
    let mut at = 24;
    while at < bytes.len() {
        let len = word(at + 8);
        frames.push(bytes[at + 16..at + 16 + len].to_vec());
        at += 16 + len;
    }
    frames
}

fn temporary(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("{}-{}-{name}", unique("e2d2-"), std::process::id()))
}

#[test]
fn captures_are_read_and_written() {
    let (input, output) = (temporary("in.pcap"), temporary("out.pcap"));
    let frames: Vec<_> = (0..70).map(|number| frame(number, 60 + number as usize * 20)).collect();
    write_capture(&input, &frames);
    let mut pool = pool(1023, 1500);
    {
        let device = format!(
            "net_pcap_{},rx_pcap={},tx_pcap={}",
            unique("t"),
            input.display(),
            output.display()
        );
        let (port, mut queues) = open(&device, &[&pool]).expect("both files can be opened");
        assert_eq!(receive(&mut queues[0], 70), frames);
        let mut burst: Burst = frames[..32].iter().map(|bytes| packet(&mut pool, bytes)).collect();
        assert_eq!(queues[0].transmit(&mut burst), 32);
        assert_eq!((port.stats().rx_packets, port.stats().tx_packets), (70, 32));
    }
    assert_eq!(read_capture(&output), frames[..32]);
    assert_eq!(pool.in_use(), 0);
    for path in [input, output] {
        fs::remove_file(path).expect("written above");
    }
}

#[test]
fn frames_larger_than_a_segment_are_dropped_and_counted() {
    let (input, output) = (temporary("large.pcap"), temporary("none.pcap"));
    let frames = [
        frame(0, 100),
        frame(1, 2049),
        frame(2, 2048),
        frame(3, 9000),
        frame(4, 200),
    ];
    write_capture(&input, &frames);
    let pool = pool(1023, 1500);
    {
        let device = format!(
            "net_pcap_{},rx_pcap={},tx_pcap={}",
            unique("t"),
            input.display(),
            output.display()
        );
        let (_port, mut queues) = open(&device, &[&pool]).expect("both files can be opened");
        assert_eq!(
            receive(&mut queues[0], 3),
            [frame(0, 100), frame(2, 2048), frame(4, 200)]
        );
        assert_eq!(queues[0].counters().rx_oversized, 2);
    }
    assert_eq!(pool.in_use(), 0);
    for path in [input, output] {
        fs::remove_file(path).expect("written above");
    }
}

#[test]
fn packets_above_the_mtu_are_not_sent_and_counted() {
    let output = temporary("mtu.pcap");
    let mut pool = pool(255, 1500);
    let lengths = [1523, 60, 1522, 2048, 61, 1600];
    let frames: Vec<_> = (0..).zip(lengths).map(|(number, len)| frame(number, len)).collect();
    {
        let device = format!("net_pcap_{},tx_pcap={}", unique("t"), output.display());
        let (_port, mut queues) = open(&device, &[&pool]).expect("the file can be written");
        let mut burst: Burst = frames.iter().map(|bytes| packet(&mut pool, bytes)).collect();
        assert_eq!((queues[0].transmit(&mut burst), burst.len()), (6, 0));
        assert_eq!(queues[0].counters().drops().map(|(_, count)| count), [0, 3, 0]);
        let mut burst: Burst = std::iter::once(packet(&mut pool, &frames[0])).collect();
        assert_eq!((queues[0].transmit(&mut burst), burst.len()), (1, 0));
    }
    assert_eq!(
        read_capture(&output),
        [frames[1].clone(), frames[2].clone(), frames[4].clone()]
    );
    assert_eq!(pool.in_use(), 0);
    fs::remove_file(output).expect("written above");
}

#[test]
fn net_null_makes_and_swallows_packets() {
    let pools = [pool(1023, 1500), pool(1023, 1500)];
    {
        let (port, mut queues) =
            open(&format!("net_null_{},size=80", unique("t")), &[&pools[0], &pools[1]]).expect("net_null");
        assert_eq!((port.driver(), port.descriptors()), ("net_null", (1024, 1024)));
        for queue in &mut queues {
            let mut burst = Burst::new();
            assert_eq!(queue.receive(&mut burst), 32);
            assert!(burst.iter().all(|packet| packet.len() == 80));
            assert_eq!(queue.transmit(&mut burst), 32);
        }
        let rss = port.rss().expect("net_null has a redirection table");
        assert_eq!(
            (rss.reta.len(), rss.shares(2)),
            (128, vec![64, 64]),
            "its own table is queue 0 only"
        );
        assert_eq!(
            (rss.key[..4].to_vec(), rss.key.len()),
            (vec![0x6d, 0x5a, 0x56, 0xda], 40)
        );
    }
    assert!(pools.iter().all(|pool| pool.in_use() == 0));
}

#[test]
fn what_cannot_be_opened_says_why() {
    let mut pool = pool(1023, 1500);
    let error = |device: &str, queues: usize| {
        let pools = vec![&pool; queues];
        open(device, &pools).map(|_| ()).expect_err(device)
    };
    assert!(matches!(error("eth0", 1), PortError::Device(_)));
    assert!(matches!(
        error("net_af_packet0,iface=no-such-if", 1),
        PortError::Device(_)
    ));
    assert!(matches!(
        error("net_pcap_t,rx_pcap=/dev/null", 1),
        PortError::Attach { .. }
    ));
    let bad = temporary("bad.pcap");
    fs::write(&bad, "no capture").expect("a temporary file");
    let refused = error(&format!("net_pcap_{},rx_pcap={}", unique("t"), bad.display()), 1);
    assert!(refused.to_string().contains("bad.pcap"), "{refused}");
    fs::remove_file(bad).expect("written above");

    let device = format!("net_null_{}", unique("t"));
    let (_port, _queues) = open(&device, &[&pool]).expect("net_null");
    assert_eq!(open(&device, &[&pool]).map(|_| ()), Err(PortError::InUse { device }));
    assert_eq!(pool.take().map(|packet| packet.len()), Some(0));
}
