//! UDP: who is who, where replies go, and that nothing a balancer or a server sends ends anything.

mod rig;

use proxy_protocol::{Transport, spp};
use rig::{PATIENCE, Proxy, in_namespace, inet, metric, raw_v2, tlv, udp_server, v1, v2, wait_for};
use std::net::{SocketAddr, UdpSocket};
use std::process::Command;
use std::time::Duration;

/// A socket of the balancer.
struct Balancer(UdpSocket);

impl Balancer {
    fn new() -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("bound");
        socket.set_read_timeout(Some(PATIENCE)).expect("timeout");
        socket.connect("127.0.0.1:8443").expect("connected");
        Balancer(socket)
    }

    fn send(&self, header: &[u8], payload: &[u8]) {
        self.0.send(&[header, payload].concat()).expect("sent");
    }

    fn receive(&self) -> Vec<u8> {
        let mut buffer = vec![0; 70_000];
        let length = self.0.recv(&mut buffer).expect("a reply");
        buffer.truncate(length);
        buffer
    }

    #[track_caller]
    fn expect(&self, reply: &str) {
        assert_eq!(String::from_utf8_lossy(&self.receive()), reply);
    }

    fn expect_nothing(&self) {
        self.0
            .set_read_timeout(Some(Duration::from_millis(200)))
            .expect("timeout");
        assert!(self.0.recv(&mut [0; 2000]).is_err(), "there was a reply");
        self.0.set_read_timeout(Some(PATIENCE)).expect("timeout");
    }
}

fn client(source: &str) -> Vec<u8> {
    let destination = if source.starts_with('[') {
        "[2001:db8::9]:443"
    } else {
        "198.51.100.9:443"
    };
    v2(Transport::Datagram, source, destination)
}

#[test]
fn clients_are_told_apart_and_replies_go_to_who_spoke_last() {
    in_namespace(|| {
        udp_server("127.0.0.1:443");
        udp_server("[::1]:443");
        let _proxy = Proxy::udp(&[]);
        let (one, two) = (Balancer::new(), Balancer::new());
        let a = client("203.0.113.7:4001");
        one.send(&a, b"first");
        one.expect("203.0.113.7:4001 first");
        // Two clients over one socket of the balancer.
        one.send(&client("203.0.113.8:4001"), b"second");
        one.expect("203.0.113.8:4001 second");
        // One client over two of them.
        two.send(&a, b"third");
        two.expect("203.0.113.7:4001 third");
        one.expect_nothing();
        // IPv6 over an IPv4 balancer.
        one.send(&client("[2001:db8::7]:4001"), b"six");
        one.expect("[2001:db8::7]:4001 six");
        // TLVs, LOCAL, UNSPEC.
        one.send(
            &raw_v2(0x21, 0x12, &[inet(4002), tlv(2, b"example.org")].concat()),
            b"tlv",
        );
        one.expect("203.0.113.7:4002 tlv");
        for header in [
            raw_v2(0x20, 0x00, &[]),
            raw_v2(0x20, 0x12, &inet(1)),
            raw_v2(0x21, 0x00, &[]),
        ] {
            one.send(&header, b"local");
            assert!(one.receive().starts_with(b"127.0.0.1:"));
        }
        assert_eq!(
            metric("mmproxy_udp_sessions"),
            5,
            "four clients and the balancer itself"
        );
    });
}

#[test]
fn any_size_passes() {
    in_namespace(|| {
        udp_server("127.0.0.1:443");
        let _proxy = Proxy::udp(&[]);
        let one = Balancer::new();
        let header = client("203.0.113.7:4001");
        one.send(&header, b"");
        one.expect("203.0.113.7:4001 ");
        for length in [1, 1400, 1500, 9000, 60_000, 65_000] {
            let payload: Vec<u8> = (0..length).map(|index: u32| index as u8).collect();
            one.send(&header, &payload);
            let reply = one.receive();
            assert!(reply.ends_with(&payload), "{length} bytes became {}", reply.len());
        }
    });
}

#[test]
fn bad_datagrams_are_dropped_one_by_one() {
    in_namespace(|| {
        udp_server("127.0.0.1:443");
        let mut proxy = Proxy::udp(&[]);
        let one = Balancer::new();
        let good = client("203.0.113.7:4001");
        let mut cut_crc = raw_v2(0x21, 0x12, &[inet(1), tlv(3, &[0; 4])].concat());
        cut_crc.push(0);
        let bad = [
            b"garbage first".to_vec(),
            vec![],
            b"x".to_vec(),
            v1("203.0.113.7:1", "198.51.100.9:443"),
            b"PROXY TCP4 203.0.113.7 198.51.100.9 1 2\r".to_vec(),
            good[..12].to_vec(),
            good[..16].to_vec(),
            good[..27].to_vec(),
            raw_v2(0x21, 0x12, &[]),
            raw_v2(0x21, 0x12, &[1; 4]),
            // Longer than the datagram.
            [&proxy_protocol::V2_SIGNATURE[..], &[0x21, 0x12, 0xff, 0xff], &inet(1)].concat(),
            raw_v2(0x21, 0x11, &inet(1)),
            raw_v2(0x22, 0x12, &inet(1)),
            raw_v2(0x11, 0x12, &inet(1)),
            raw_v2(0x21, 0x42, &inet(1)),
            raw_v2(0x21, 0x12, &[inet(1), vec![2, 0, 9, 1]].concat()),
            cut_crc,
            client("127.0.0.1:4001"),
            client("224.0.0.1:4001"),
            v2(Transport::Datagram, "0.0.0.0:1", "198.51.100.9:443"),
        ];
        for datagram in &bad {
            one.send(datagram, b"");
        }
        // A header in one datagram says nothing about the next.
        one.send(&good, b"with");
        one.expect("203.0.113.7:4001 with");
        one.send(b"", b"without");
        one.expect_nothing();
        assert!(proxy.is_alive());
        let refused = || {
            ["bad_header", "wrong_transport", "dangerous_source"]
                .map(|reason| metric(&format!("mmproxy_refused_total{{reason=\"{reason}\"}}")))
        };
        let wanted = bad.len() as u64 + 1;
        wait_for("each is counted", || refused().iter().sum::<u64>() >= wanted);
        assert_eq!(refused().iter().sum::<u64>(), wanted, "{:?}", refused());
    });
}

#[test]
fn a_server_that_comes_back_is_found_again() {
    in_namespace(|| {
        let _proxy = Proxy::udp(&[]);
        let one = Balancer::new();
        let header = client("203.0.113.7:4001");
        for _ in 0..5 {
            one.send(&header, b"nobody there");
            std::thread::sleep(Duration::from_millis(20));
        }
        udp_server("127.0.0.1:443");
        one.send(&header, b"back");
        one.expect("203.0.113.7:4001 back");
        assert!(metric("mmproxy_udp_server_errors_total") >= 1);
        assert_eq!(
            metric("mmproxy_udp_sessions_started_total"),
            1,
            "it is the same session"
        );
    });
}

#[test]
fn an_empty_reply_is_a_reply() {
    in_namespace(|| {
        let server = UdpSocket::bind("127.0.0.1:443").expect("bound");
        server.set_read_timeout(Some(PATIENCE)).expect("timeout");
        let _proxy = Proxy::udp(&[]);
        let one = Balancer::new();
        one.send(&client("203.0.113.7:4001"), b"x");
        let (_, from) = server.recv_from(&mut [0; 10]).expect("datagram");
        assert_eq!(from, "203.0.113.7:4001".parse::<SocketAddr>().expect("address"));
        for reply in [&b""[..], b"a", b"", b"bb"] {
            server.send_to(reply, from).expect("sent");
            assert_eq!(one.receive(), reply);
        }
    });
}

#[test]
fn idle_sessions_end_and_begin_anew() {
    in_namespace(|| {
        udp_server("127.0.0.1:443");
        let proxy = Proxy::udp(&["-close-after", "1"]);
        let before = proxy.descriptors();
        let one = Balancer::new();
        for index in 0..500u32 {
            one.send(&client(&format!("203.0.113.7:{}", 5000 + index)), b"x");
            one.receive();
        }
        // On a busy machine the first have ended by now.
        assert_eq!(metric("mmproxy_udp_sessions_started_total"), 500);
        wait_for("idle sessions end", || metric("mmproxy_udp_sessions") == 0);
        // The connection of the last look at the metrics may take a moment to go.
        wait_for("descriptors come back", || proxy.descriptors() <= before);
        one.send(&client("203.0.113.7:5000"), b"again");
        one.expect("203.0.113.7:5000 again");
    });
}

#[test]
fn sessions_of_one_client_are_limited() {
    in_namespace(|| {
        udp_server("127.0.0.1:443");
        let mut config = tempfile::NamedTempFile::new().expect("file");
        let text = "workers = 1\nmetrics = \"127.0.0.1:9110\"\n[[listener]]\nlisten = \"127.0.0.1:8443\"\n\
                    protocol = \"udp\"\ntarget = \"127.0.0.1:443\"\nmax_sessions_per_client = 3\nmax_sessions = 5\n";
        std::io::Write::write_all(&mut config, text.as_bytes()).expect("written");
        let _proxy = Proxy::start(&["--config", config.path().to_str().expect("path")], "127.0.0.1:9110");
        let one = Balancer::new();
        for source in ["203.0.113.7", "203.0.113.8"] {
            for port in 1..=4 {
                one.send(&client(&format!("{source}:{port}")), b"x");
            }
        }
        (0..5).for_each(|_| drop(one.receive()));
        one.expect_nothing();
        let refused = || metric("mmproxy_refused_total{reason=\"session_limit\"}");
        wait_for("each is counted", || refused() >= 3);
        assert_eq!(refused(), 3);
    });
}

/// Rules ask what each datagram says: another sender may have the address of one that is served.
#[test]
fn rules_are_asked_for_each_datagram() {
    in_namespace(|| {
        udp_server("127.0.0.1:443");
        let mut config = tempfile::NamedTempFile::new().expect("a file");
        let text = "metrics = \"127.0.0.1:9110\"\nworkers = 1\n\
                    [[listener]]\nlisten = \"127.0.0.1:8443\"\nprotocol = \"udp\"\ntarget = \"127.0.0.1:443\"\n\
                    [[listener.rule]]\naction = \"allow\"\ntlv = \"authority\"\nvalue = \"good\"\n\
                    [[listener.rule]]\naction = \"deny\"\n";
        std::io::Write::write_all(&mut config, text.as_bytes()).expect("written");
        let path = config.path().to_str().expect("a path");
        let _proxy = Proxy::start(&["--config", path], "127.0.0.1:9110");
        let of = |name: &[u8]| raw_v2(0x21, 0x12, &[inet(4002), tlv(2, name)].concat());
        let (one, two) = (Balancer::new(), Balancer::new());
        one.send(&of(b"good"), b"first");
        one.expect("203.0.113.7:4002 first");
        two.send(&of(b"bad"), b"second");
        two.expect_nothing();
        assert_eq!(metric("mmproxy_refused_total{reason=\"denied\"}"), 1);
        one.send(&of(b"good"), b"third");
        one.expect("203.0.113.7:4002 third");
    });
}

#[test]
fn the_simple_proxy_protocol_works_both_ways() {
    in_namespace(|| {
        udp_server("127.0.0.1:443");
        let _proxy = Proxy::udp(&[]);
        let one = Balancer::new();
        let header = spp::Header {
            client: "203.0.113.7:4001".parse().expect("address"),
            proxy: "198.51.100.9:53".parse().expect("address"),
        };
        one.send(&header.encode(), b"query");
        let reply = one.receive();
        assert_eq!(
            spp::Header::parse(&reply),
            Some((header, &b"203.0.113.7:4001 query"[..]))
        );
        one.send(&client("203.0.113.7:4001"), b"v2 again");
        one.expect("203.0.113.7:4001 v2 again");
    });
}

#[test]
fn many_clients_in_bursts_get_their_own_replies() {
    in_namespace(|| {
        udp_server("127.0.0.1:443");
        let _proxy = Proxy::udp(&[]);
        let one = Balancer::new();
        for _ in 0..20 {
            let mut expected = Vec::new();
            for index in 0..60 {
                let source = format!("203.0.113.{}:{}", index % 20, 7000 + index % 3);
                let payload = "x".repeat(index % 5 + 1) + &index.to_string();
                one.send(&client(&source), payload.as_bytes());
                expected.push(format!("{source} {payload}"));
            }
            let mut received: Vec<String> = (0..60)
                .map(|_| String::from_utf8(one.receive()).expect("text"))
                .collect();
            received.sort();
            expected.sort();
            assert_eq!(received, expected);
        }
    });
}

#[test]
fn replies_leave_from_the_address_that_was_asked() {
    in_namespace(|| {
        assert!(
            Command::new("ip")
                .args(["addr", "add", "10.9.9.1/32", "dev", "lo"])
                .status()
                .expect("ip")
                .success()
        );
        udp_server("127.0.0.1:443");
        for listen in ["0.0.0.0:8443", "[::]:8443"] {
            let _proxy = Proxy::udp(&["-l", listen]);
            let socket = UdpSocket::bind("127.0.0.1:0").expect("bound");
            socket.set_read_timeout(Some(PATIENCE)).expect("timeout");
            for to in ["10.9.9.1:8443", "127.0.0.1:8443"] {
                socket
                    .send_to(&[client("203.0.113.7:1"), b"x".to_vec()].concat(), to)
                    .expect("sent");
                let (_, from) = socket.recv_from(&mut [0; 100]).expect("a reply");
                assert_eq!(from.to_string(), to, "listening on {listen}");
            }
        }
    });
}

#[test]
fn udppps_command_lines_carry_datagrams_there_and_back() {
    in_namespace(|| {
        udp_server("127.0.0.1:8001");
        let udppp = |by_name: bool, arguments: &str, address: &str| {
            let folder = tempfile::tempdir().expect("a folder");
            let binary = env!("CARGO_BIN_EXE_mmproxy");
            let link = folder.path().join("udppp");
            std::os::unix::fs::symlink(binary, &link).expect("a link");
            let mut command = if by_name {
                std::process::Command::new(link)
            } else {
                let mut command = std::process::Command::new(binary);
                command.arg("udppp");
                command
            };
            command.args(arguments.split(' '));
            (Proxy::spawn(command, address), folder)
        };
        // The README's two lines; the loopback client is one that mode 2 refuses to imitate, so headers are sent by the test there.
        let _receiver = udppp(
            true,
            "-m 2 -b 0.0.0.0 -l 8000 -h 127.0.0.1 -r 8001 -p",
            "127.0.0.1:8000",
        );
        let socket = UdpSocket::bind("127.0.0.1:0").expect("bound");
        socket.set_read_timeout(Some(PATIENCE)).expect("timeout");
        let datagram = [client("203.0.113.7:4001"), b"there".to_vec()].concat();
        socket.send_to(&datagram, "127.0.0.1:8000").expect("sent");
        let mut reply = [0; 200];
        let length = socket.recv(&mut reply).expect("a reply");
        assert_eq!(String::from_utf8_lossy(&reply[..length]), "203.0.113.7:4001 there");

        // What mode 1 puts before a datagram, and what it does not without -p.
        let server = UdpSocket::bind("127.0.0.1:9001").expect("bound");
        server.set_read_timeout(Some(PATIENCE)).expect("timeout");
        for (option, listen) in [(" -p", 9000), ("", 9002)] {
            let arguments = format!("-m 1 -b 127.0.0.1 -l {listen} -h 127.0.0.1 -r 9001{option}");
            let _sender = udppp(false, &arguments, &format!("127.0.0.1:{listen}"));
            socket.send_to(b"back", ("127.0.0.1", listen)).expect("sent");
            let (length, from) = server.recv_from(&mut reply).expect("a datagram");
            let expected = if option.is_empty() {
                b"back".to_vec()
            } else {
                let source = socket.local_addr().expect("address").to_string();
                let header = rig::v2(Transport::Datagram, &source, &format!("127.0.0.1:{listen}"));
                [header, b"back".to_vec()].concat()
            };
            assert_eq!(reply[..length], expected, "{arguments}");
            server.send_to(b"answer", from).expect("sent");
            let length = socket.recv(&mut reply).expect("an answer");
            assert_eq!(&reply[..length], b"answer");
        }
    });
}

#[test]
fn sending_ends_wrap_datagrams() {
    in_namespace(|| {
        udp_server("127.0.0.1:443");
        let _receiver = Proxy::udp(&["--allow-source", "loopback"]);
        for (port, form) in [("7001", "v2"), ("7002", "spp")] {
            let listen = format!("127.0.0.1:{port}");
            let metrics = format!("127.0.0.1:{}", 9200 + port.parse::<u16>().expect("port") % 100);
            let arguments = [
                "send",
                "-p",
                "udp",
                "-l",
                &listen,
                "--target",
                "127.0.0.1:8443",
                "--send",
                form,
                "--metrics",
                &metrics,
            ];
            let _sender = Proxy::start(&arguments, &metrics);
            let socket = UdpSocket::bind("127.0.0.1:0").expect("bound");
            socket.set_read_timeout(Some(PATIENCE)).expect("timeout");
            for payload in ["one", "two"] {
                socket.send_to(payload.as_bytes(), &listen).expect("sent");
                let mut reply = [0; 100];
                let length = socket.recv(&mut reply).expect("a reply");
                let reply = String::from_utf8_lossy(&reply[..length]);
                // On one host the client's port is taken by the client itself.
                assert!(
                    reply.starts_with("127.0.0.1:") && reply.ends_with(&format!(" {payload}")),
                    "{form}: {reply}"
                );
            }
        }
    });
}
