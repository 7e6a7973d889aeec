//! Ports over kernel interfaces, each in a namespace of the test's own: the kernel at the other end is a stranger that answers.

use e2d2::buffer::BufferPool;
use e2d2::native::{DpdkPort, DpdkQueue, MbufPool, PortConfig, PortError};
use e2d2::port::{Port, PortId};
use e2d2::wire::MacAddr;

use crate::namespace::{in_namespace, run};
use crate::support::{Burst, eal, frame, packet, pool, receive_matching, unique};

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
    for _ in 0..5 {
        let mut burst: Burst = std::iter::once(packet(pool, &request)).collect();
        assert_eq!(port.transmit(&mut burst), 1);
        let is_reply =
            |bytes: &[u8]| bytes[12..14] == [8, 6] && bytes[20..22] == [0, 2] && bytes[28..32] == [10, 9, 0, 2];
        if let Some(reply) = receive_matching(port, 1, is_reply).first() {
            assert_eq!(reply[..6], port.mac().0);
            return MacAddr(reply[22..28].try_into().expect("six bytes"));
        }
    }
    panic!("the kernel does not answer");
}

#[test]
fn af_packet_carries_packets_over_a_veth() {
    in_namespace("af_packet", || {
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
    in_namespace("af_packet with MTU 9000", || {
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
fn af_xdp_carries_packets_over_a_veth() {
    in_namespace("af_xdp", || {
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
    in_namespace("tap", || {
        let mut pool = pool(4095, 1500);
        {
            let (port, mut queues) = open(&format!("net_tap_{},iface=cable", unique("n")), 1500, &[&pool]);
            run("ip address add 10.9.0.2/24 dev cable");
            run("ip link set dev cable up");
            assert!(port.wait_for_link(std::time::Duration::from_secs(1)));
            kernel_answers(&mut pool, &mut queues[0]);
        }
        assert_eq!(pool.in_use(), 0);
        assert_eq!(pool.available(), pool.capacity());
    });
}

#[test]
fn several_queues_share_the_packets_of_an_interface() {
    in_namespace("several queues", || {
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
            let mut received = receive_matching(&mut near[0], 32, is_experimental);
            received.extend(receive_matching(&mut near[1], 32 - received.len(), is_experimental));
            assert_eq!(received.len(), 32, "the kernel chose a queue for each packet");
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
    in_namespace("limits", || {
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
