//! Those that begin connections and never say who they are: nothing is kept of them.

use super::*;
use socket2::{Domain, Protocol, Socket, Type};

/// Sockets of this host in any state with their memory, without those of whoever asks for metrics.
fn sockets() -> Vec<String> {
    let output = Command::new("ss").args(["-tanmH"]).output().expect("ss runs");
    let text = String::from_utf8(output.stdout).expect("text").replace("\n\t", " ");
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut lines: Vec<String> = text.lines().filter(|line| !line.contains(":9110")).map(words).collect();
    lines.sort();
    lines
}

/// A SYN from one of many clients. Nobody looks at its sum before the connection is there.
fn syn(number: u32) -> [u8; 44] {
    let mut packet = [0; 44];
    packet[0] = 0x45;
    packet[8] = 64;
    packet[9] = 6;
    packet[12..16].copy_from_slice(&(0x0a09_0000u32 + number % 60_000).to_be_bytes());
    packet[16..20].copy_from_slice(&[10, 7, 0, 1]);
    packet[20..22].copy_from_slice(&(1024 + (number / 60_000) as u16).to_be_bytes());
    packet[22..24].copy_from_slice(&8443u16.to_be_bytes());
    packet[24..28].copy_from_slice(&number.to_be_bytes());
    packet[32..36].copy_from_slice(&[0x60, 2, 0xff, 0xff]);
    packet[40..44].copy_from_slice(&[2, 4, 5, 0xb4]);
    packet
}

fn send_syns(count: u32) {
    let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::from(libc::IPPROTO_RAW))).expect("socket");
    let to: SocketAddr = "10.7.0.1:0".parse().expect("address");
    for number in 0..count {
        // What the interface has no room for is sent again by the test.
        let _ = socket.send_to(&syn(number), &to.into());
    }
}

/// A handshake, after which the peer is gone without a word.
fn fall_silent(number: u32) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("socket");
    mmproxy::sys::set_option(&socket, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1).expect("set");
    let from = SocketAddr::from(([10, 9, (number / 250 % 250) as u8, (number % 250 + 1) as u8], 0));
    socket.bind(&from.into()).expect("bound");
    let to: SocketAddr = V4.parse().expect("address");
    socket.connect(&to.into()).expect("connected");
    // Under repair a socket is closed without a packet.
    mmproxy::sys::set_option(&socket, libc::IPPROTO_TCP, libc::TCP_REPAIR, 1).expect("set");
}

#[test]
fn syns_and_silent_peers_leave_nothing() {
    flood(100_000, 10_000);
}

#[test]
#[ignore = "a minute"]
fn a_million_syns_and_a_hundred_thousand_silent_peers_leave_nothing() {
    flood(1_000_000, 100_000);
}

fn flood(syns: u32, silent: u32) {
    with_balancer(move |container| {
        let _server = tcp_server("127.0.0.1:443");
        let _proxy = inline(&[]);
        run("ip route add 10.9.0.0/16 via 10.7.0.2");
        let entries = || metric("mmproxy_inline_active");
        let pieces = || whole(&numbered(40_001));
        let (client, seen) = container.run(move || begin_exchange(V4, &pieces()));
        assert_eq!(seen, "203.0.113.7:40001");
        // Entries are counted once a second: before that, 0 says nothing.
        wait_for("the first is counted", || entries() == 1);
        end_exchange(client, &pieces());
        wait_for("the first is forgotten", || entries() == 0);
        let before = sockets();

        let answered = counted("syn_answered");
        let mut missing = syns;
        while missing > 0 {
            container.run(move || send_syns(missing));
            std::thread::sleep(Duration::from_millis(1200));
            missing = (answered + u64::from(syns)).saturating_sub(counted("syn_answered")) as u32;
        }
        assert_eq!((entries(), sockets()), (0, before.clone()));

        let dropped = counted("ack_dropped");
        container.run(move || {
            run("ip route add local 10.9.0.0/16 dev lo");
            (0..silent).for_each(fall_silent);
        });
        wait_for("all were heard", || {
            counted("ack_dropped") - dropped >= u64::from(silent)
        });
        assert_eq!((entries(), sockets()), (0, before));
        let seen = container.run(move || exchange(V4, &pieces()));
        assert!(seen.starts_with("203.0.113.7:"));
    });
}
