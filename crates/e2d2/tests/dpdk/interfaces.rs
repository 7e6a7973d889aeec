//! Ports over kernel interfaces, each in a namespace of the test's own: the kernel at the other end is a stranger that answers.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use e2d2::buffer::{BufferPool, ChecksumStatus, PacketBuffer, TxOffload};
use e2d2::native::{DpdkPort, DpdkQueue, MbufPool, PortConfig, PortError};
use e2d2::port::{Port, PortId};
use e2d2::wire::MacAddr;
use e2d2::wire::frame::{IpVersion, Kind, TcpLayout, parse};

use crate::namespace::{in_namespace, run};
use crate::support::{Burst, eal, frame, packet, pool, receive_matching, receive_within, unique};

fn open(device: &str, mtu: u16, pools: &[&MbufPool]) -> (DpdkPort, Vec<DpdkQueue>) {
    let config = PortConfig {
        mtu,
        ..PortConfig::new(PortId(0), device.parse().expect(device))
    };
    DpdkPort::open(&eal(), &config, pools).unwrap_or_else(|error| panic!("{device}: {error}"))
}

/// A frame of the experimental EtherType, which no kernel answers.
fn experimental(number: u32, len: usize) -> Vec<u8> {
    let mut bytes = frame(number, len);
    bytes[..14].copy_from_slice(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 9, 0x88, 0xb5]);
    bytes[14..18].copy_from_slice(&number.to_be_bytes());
    bytes
}

fn is_experimental(bytes: &[u8]) -> bool {
    bytes[12..14] == [0x88, 0xb5]
}

/// Sends frames of several sizes from one port to the other and back.
fn exchange(pool: &mut MbufPool, left: &mut DpdkQueue, right: &mut DpdkQueue, largest: usize) {
    for (from, to) in [(true, false), (false, true)] {
        let (sender, receiver) = if from && !to {
            (&mut *left, &mut *right)
        } else {
            (&mut *right, &mut *left)
        };
        let frames: Vec<_> = (0..32)
            .map(|number| experimental(number, if number % 2 == 0 { 60 } else { largest }))
            .collect();
        let mut burst: Burst = frames.iter().map(|bytes| packet(pool, bytes)).collect();
        while !burst.is_empty() {
            sender.transmit(&mut burst);
        }
        let received = receive_matching(receiver, 32, is_experimental);
        assert_eq!(received.len(), 32);
        assert!(received == frames, "contents are intact and in order");
    }
}

/// Asks the kernel behind the port who has 10.9.0.2, and expects the answer that names its address.
fn kernel_answers(pool: &mut MbufPool, port: &mut DpdkQueue) -> MacAddr {
    let mut request = vec![0xff; 6];
    request.extend(port.mac().0);
    request.extend([0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 1]);
    request.extend(port.mac().0);
    request.extend([10, 9, 0, 1, 0, 0, 0, 0, 0, 0, 10, 9, 0, 2]);
    request.resize(60, 0);
    // Asked again, because what is sent while an interface comes up is lost.
    for _ in 0..10 {
        let mut burst: Burst = std::iter::once(packet(pool, &request)).collect();
        assert_eq!(port.transmit(&mut burst), 1);
        let is_reply =
            |bytes: &[u8]| bytes[12..14] == [8, 6] && bytes[20..22] == [0, 2] && bytes[28..32] == [10, 9, 0, 2];
        if let Some(reply) = receive_within(Duration::from_secs(2), port, 1, is_reply).first() {
            assert_eq!(reply[..6], port.mac().0);
            return MacAddr(reply[22..28].try_into().expect("six bytes"));
        }
    }
    panic!("the kernel does not answer");
}

#[test]
fn af_packet_carries_packets_over_a_veth() {
    in_namespace(|| {
        let mut pool = pool(4095, 1500);
        {
            let (near, mut near_queues) = open(&format!("net_af_packet_{},iface=near", unique("n")), 1500, &[&pool]);
            let (_far, mut far_queues) = open(&format!("net_af_packet_{},iface=far", unique("n")), 1500, &[&pool]);
            assert_eq!(near.driver(), "net_af_packet");
            exchange(&mut pool, &mut near_queues[0], &mut far_queues[0], 1514);
            drop(far_queues);
            run("ip address add 10.9.0.2/24 dev far");
            kernel_answers(&mut pool, &mut near_queues[0]);
            assert!(near.stats().rx_packets > 32, "{:?}", near.stats());
        }
        assert_eq!(pool.in_use(), 0);
    });
}

#[test]
fn af_packet_carries_jumbo_frames() {
    in_namespace(|| {
        run("ip link set dev near mtu 9000");
        run("ip link set dev far mtu 9000");
        let mut pool = pool(1023, 9000);
        {
            let (_near, mut near) = open(&format!("net_af_packet_{},iface=near", unique("n")), 9000, &[&pool]);
            let (_far, mut far) = open(&format!("net_af_packet_{},iface=far", unique("n")), 9000, &[&pool]);
            exchange(&mut pool, &mut near[0], &mut far[0], 9014);
        }
        assert_eq!(pool.in_use(), 0);
    });
}

#[test]
fn tags_stay_where_they_are() {
    in_namespace(|| {
        let mut pool = pool(8191, 1500);
        let tagged: Vec<_> = (0..32)
            .map(|number| {
                let mut bytes = experimental(number, if number % 2 == 0 { 64 } else { 1518 });
                bytes[12..16].copy_from_slice(&[0x81, 0x00, 0x20, 0x64]);
                bytes[16..18].copy_from_slice(&[0x88, 0xb5]);
                bytes
            })
            .collect();
        let is_tagged = |bytes: &[u8]| bytes[12..18] == [0x81, 0x00, 0x20, 0x64, 0x88, 0xb5];
        for driver in ["net_af_packet", "net_af_xdp"] {
            let (_near, mut near) = open(&format!("{driver}_{},iface=near", unique("n")), 1500, &[&pool]);
            let (_far, mut far) = open(&format!("net_af_packet_{},iface=far", unique("n")), 1500, &[&pool]);
            let (mut sender, mut receiver) = (&mut near[0], &mut far[0]);
            for _ in 0..2 {
                let mut burst: Burst = tagged.iter().map(|bytes| packet(&mut pool, bytes)).collect();
                assert_eq!(sender.transmit(&mut burst), 32);
                assert!(receive_matching(receiver, 32, is_tagged) == tagged, "{driver}");
                (sender, receiver) = (receiver, sender);
            }
        }
    });
}

#[test]
fn af_xdp_carries_packets_over_a_veth() {
    in_namespace(|| {
        let mut pool = pool(8191, 1500);
        {
            let (_near, mut near) = open(&format!("net_af_xdp_{},iface=near", unique("n")), 1500, &[&pool]);
            let (_far, mut far) = open(&format!("net_af_packet_{},iface=far", unique("n")), 1500, &[&pool]);
            exchange(&mut pool, &mut near[0], &mut far[0], 1514);
            run("ip address add 10.9.0.2/24 dev far");
            kernel_answers(&mut pool, &mut near[0]);
        }
        assert_eq!(pool.in_use(), 0);
        assert_eq!(
            pool.capacity(),
            8191 - 2048,
            "the driver keeps what was in its fill ring"
        );
        let (_near, mut near) = open(&format!("net_af_packet_{},iface=near", unique("n")), 1500, &[&pool]);
        kernel_answers(&mut pool, &mut near[0]);
    });
}

#[test]
fn tap_is_an_interface_of_the_kernel() {
    in_namespace(|| {
        let mut pool = pool(4095, 1500);
        {
            let (port, mut queues) = open(&format!("net_tap_{},iface=cable", unique("n")), 1500, &[&pool]);
            run("ip address add 10.9.0.2/24 dev cable");
            run("ip link set dev cable up");
            assert!(port.wait_for_link(Duration::from_secs(20)));
            kernel_answers(&mut pool, &mut queues[0]);
        }
        assert_eq!(pool.in_use(), 0);
        assert_eq!(pool.available(), pool.capacity());
    });
}

#[test]
fn several_queues_share_the_packets_of_an_interface() {
    in_namespace(|| {
        let (mut pool, other) = (pool(4095, 1500), pool(4095, 1500));
        {
            let (tap, mut queues) = open(&format!("net_tap_{},iface=cable", unique("n")), 1500, &[&pool, &other]);
            run("ip link set dev cable up");
            assert_eq!((tap.driver(), queues.len()), ("net_tap", 2));
            for queue in &mut queues {
                let mut burst: Burst = (0..10)
                    .map(|number| packet(&mut pool, &experimental(number, 60)))
                    .collect();
                assert_eq!(queue.transmit(&mut burst), 10);
            }
            let (_near, mut near) = open(
                &format!("net_af_packet_{},iface=near", unique("n")),
                1500,
                &[&pool, &other],
            );
            let (_far, mut far) = open(&format!("net_af_packet_{},iface=far", unique("n")), 1500, &[&pool]);
            let mut burst: Burst = (0..32)
                .map(|number| packet(&mut pool, &experimental(number, 60)))
                .collect();
            assert_eq!(far[0].transmit(&mut burst), 32);
            let (mut received, start) = (0, Instant::now());
            while received < 32 {
                assert!(start.elapsed() < Duration::from_secs(20), "{received} of 32 came");
                for queue in &mut near {
                    let soon = Duration::from_millis(5);
                    received += receive_within(soon, queue, 32 - received, is_experimental).len();
                }
            }
            for (number, queue) in near.iter_mut().enumerate() {
                let mut burst: Burst = std::iter::once(packet(&mut pool, &experimental(number as u32, 60))).collect();
                assert_eq!(queue.transmit(&mut burst), 1);
                assert_eq!(
                    receive_matching(&mut far[0], 1, is_experimental),
                    [experimental(number as u32, 60)]
                );
            }
        }
        assert_eq!((pool.in_use(), other.in_use()), (0, 0));
    });
}

#[test]
fn limits_of_interfaces_are_told() {
    in_namespace(|| {
        let (small, large) = (pool(4095, 1500), pool(255, 9000));
        let error = |device: String, mtu: u16, pools: &[&MbufPool]| {
            let config = PortConfig {
                mtu,
                ..PortConfig::new(PortId(0), device.parse().expect("a device"))
            };
            DpdkPort::open(&eal(), &config, pools).map(|_| ()).expect_err(&device)
        };
        let device = format!("net_af_packet_{},iface=near", unique("n"));
        assert!(matches!(
            error(device.clone(), 9000, &[&large]),
            PortError::InterfaceMtu {
                actual: 1500,
                asked: 9000,
                ..
            }
        ));
        assert!(matches!(error(device, 9000, &[&small]), PortError::DataRoom { .. }));
        run("ip link set dev near mtu 9000");
        let device = format!("net_af_xdp_{},iface=near", unique("n"));
        let refused = error(device, 9000, &[&large]);
        assert!(
            matches!(
                refused,
                PortError::Mtu {
                    asked: 9000,
                    most: 3300..3600,
                    ..
                }
            ),
            "{refused}"
        );
        let refused = error(format!("net_af_xdp_{},iface=near", unique("n")), 1500, &[&small; 2]);
        assert!(matches!(refused, PortError::Attach { .. }), "{refused}");
        let refused = error(format!("net_tap_{},mac=nonsense", unique("n")), 1500, &[&small]);
        assert!(matches!(refused, PortError::Attach { .. }), "{refused}");
        let refused = error(format!("net_tap_{}", unique("n")), 1500, &[&small; 17]);
        assert!(
            matches!(
                refused,
                PortError::Queues {
                    asked: 17,
                    most: 16,
                    ..
                }
            ),
            "{refused}"
        );
        assert_eq!((small.in_use(), large.in_use()), (0, 0));
    });
}

#[test]
fn an_interface_takes_the_address_that_is_asked_for() {
    in_namespace(|| {
        let mut pool = pool(4095, 1500);
        let mac = MacAddr([2, 0, 0, 0, 0, 0x77]);
        for driver in ["net_af_packet", "net_af_xdp"] {
            let device = format!("{driver}_{},iface=near", unique("n"))
                .parse()
                .expect("a device");
            let config = PortConfig {
                mac: Some(mac),
                ..PortConfig::new(PortId(0), device)
            };
            let (port, mut queues) =
                DpdkPort::open(&eal(), &config, &[&pool]).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!((port.mac(), queues[0].mac()), (mac, mac));
            run("ip address replace 10.9.0.2/24 dev far");
            kernel_answers(&mut pool, &mut queues[0]);
        }
    });
}

/// A TCP segment that answers `syn` with a reset, its checksum fields as the offload wants them.
fn reset(syn: &[u8], layout: TcpLayout) -> (Vec<u8>, TxOffload) {
    let (l3, l4) = (usize::from(layout.l3), usize::from(layout.l4));
    let mut answer = syn[..l4 + 20].to_vec();
    answer[..6].copy_from_slice(&syn[6..12]);
    answer[6..12].copy_from_slice(&syn[..6]);
    let (address, length) = if layout.version == IpVersion::V4 {
        (l3 + 12, 4)
    } else {
        (l3 + 8, 16)
    };
    answer[address..address + length].copy_from_slice(&syn[address + length..address + 2 * length]);
    answer[address + length..address + 2 * length].copy_from_slice(&syn[address..address + length]);
    let offload = match layout.version {
        IpVersion::V4 => {
            answer[l3 + 2..l3 + 4].copy_from_slice(&40u16.to_be_bytes());
            answer[l3 + 10..l3 + 12].fill(0);
            TxOffload::TcpIpv4 {
                l3: layout.l3,
                l4: layout.l4,
            }
        }
        IpVersion::V6 => {
            answer[l3 + 4..l3 + 6].copy_from_slice(&20u16.to_be_bytes());
            TxOffload::TcpIpv6 {
                l3: layout.l3,
                l4: layout.l4,
            }
        }
    };
    answer[l4..l4 + 2].copy_from_slice(&syn[l4 + 2..l4 + 4]);
    answer[l4 + 2..l4 + 4].copy_from_slice(&syn[l4..l4 + 2]);
    let number = u32::from_be_bytes(syn[l4 + 4..l4 + 8].try_into().expect("four bytes")).wrapping_add(1);
    answer[l4 + 4..l4 + 8].fill(0);
    answer[l4 + 8..l4 + 12].copy_from_slice(&number.to_be_bytes());
    answer[l4 + 12..l4 + 14].copy_from_slice(&[5 << 4, 0x14]);
    answer[l4 + 14..l4 + 20].fill(0);
    let pseudo: u32 = answer[address..address + 2 * length]
        .chunks(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])))
        .sum::<u32>()
        + 6
        + 20;
    let pseudo = (pseudo & 0xffff) + (pseudo >> 16);
    let pseudo = (pseudo & 0xffff) + (pseudo >> 16);
    answer[l4 + 16..l4 + 18].copy_from_slice(&(pseudo as u16).to_be_bytes());
    (answer, offload)
}

#[test]
fn checksums_are_verified_and_finished_by_a_port_that_does_so() {
    in_namespace(|| {
        let mut pool = pool(4095, 1500);
        let (port, mut queues) = open(&format!("net_tap_{},iface=cable", unique("n")), 1500, &[&pool]);
        assert!(port.capabilities().rx_checksum && port.capabilities().tx_checksum);
        for command in [
            "ip link set dev cable up",
            "ip address add 10.9.0.2/24 dev cable",
            "ip address add fd00::2/64 dev cable nodad",
            "ip neighbour add 10.9.0.1 lladdr 02:00:00:00:00:77 dev cable",
            "ip neighbour add fd00::1 lladdr 02:00:00:00:00:77 dev cable",
        ] {
            run(command);
        }
        for (server, version) in [("10.9.0.1:80", IpVersion::V4), ("[fd00::1]:80", IpVersion::V6)] {
            let server: SocketAddr = server.parse().expect("an address");
            // Inherits the namespace.
            let client = thread::spawn(move || TcpStream::connect_timeout(&server, Duration::from_secs(30)));
            let start = Instant::now();
            let mut burst = Burst::new();
            let (syn, layout) = loop {
                assert!(start.elapsed() < Duration::from_secs(20), "the client sends a SYN");
                burst.clear();
                queues[0].receive(&mut burst);
                let found = burst.iter().find_map(|packet| match parse(packet.data()) {
                    Ok(Kind::Tcp(layout)) if layout.version == version => Some((packet, layout)),
                    _ => None,
                });
                let Some((packet, layout)) = found else { continue };
                assert_eq!(packet.rx_info().l4_checksum, ChecksumStatus::Good);
                if version == IpVersion::V4 {
                    assert_eq!(packet.rx_info().ip_checksum, ChecksumStatus::Good);
                }
                break (packet.data().to_vec(), layout);
            };
            let (answer, offload) = reset(&syn, layout);
            let mut answer = packet(&mut pool, &answer);
            answer.set_tx_offload(offload);
            let mut burst: Burst = std::iter::once(answer).collect();
            assert_eq!(queues[0].transmit(&mut burst), 1);
            let result = client.join().expect("the client ends");
            assert_eq!(
                result.map(|_| ()).map_err(|error| error.kind()),
                Err(ErrorKind::ConnectionRefused),
                "{version:?}"
            );
        }
        drop((port, queues));
        assert_eq!(pool.in_use(), 0);
    });
}
