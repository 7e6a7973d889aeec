//! Too-big and ICMP errors between the versions of IP: the tables of RFC 7915 4.2 and 5.2, and what is quoted.

use crate::crossing::crossed;
use crate::harness::{Bench, CONFIG, Client, Server, only};
use crate::oracle::{self, IcmpError, Quoted};
use e2d2::port::PortId;
use e2d2::wire::tcp::TcpFlags;
use splice::drop_reason::DropReason;
use test_case::test_case;
use testkit::{Segment, Station};

/// What an error says: type, code, second word.
type Says = (u8, u8, u32);

/// A connection with a segment of one side on its way to the other.
struct Case {
    bench: Bench,
    client: Client,
    server: Server,
    from_client: bool,
    sent: Segment,
    passed: Segment,
}

impl Case {
    fn new(client_is_v6: bool, from_client: bool) -> Self {
        Self::with_config(CONFIG, client_is_v6, from_client)
    }

    fn with_config(config: &str, client_is_v6: bool, from_client: bool) -> Self {
        let mut bench = Bench::with_config(config);
        let (client, server) = crossed(&mut bench, client_is_v6);
        let payload = [b'x'; 1000];
        let sent = match from_client {
            true => client.segment(TcpFlags::PSH, &payload),
            false => server.segment(TcpFlags::PSH, &payload),
        };
        let passed = only(bench.receive(&sent));
        Case {
            bench,
            client,
            server,
            from_client,
            sent,
            passed,
        }
    }

    /// Lets a router complain about the packet that was passed on.
    fn complain(&mut self, says: Says) -> Option<IcmpError> {
        let quote = self.passed.frame()[14..].to_vec();
        self.complain_about(says, &quote)
    }

    fn complain_about(&mut self, says: Says, quote: &[u8]) -> Option<IcmpError> {
        let router = match self.passed.to.address.is_ipv4() {
            true => "10.9.9.9:0",
            false => "[fd09::9]:0",
        };
        let router = Station {
            mac: self.passed.to.mac,
            ..Station::new(0, router)
        };
        let frame = oracle::icmp_frame(router, self.passed.from, says, quote);
        let port = PortId(u8::from(self.from_client));
        let mut sent = self.bench.receive_icmp(port, &frame);
        assert!(sent.len() <= 1);
        sent.pop().map(|frame| oracle::read_icmp(&frame))
    }

    /// The side that sent the segment, and our end point there.
    fn sender(&self) -> (Station, Station) {
        match self.from_client {
            true => (self.client.me, self.client.proxy),
            false => (self.server.me, self.server.proxy),
        }
    }
}

/// Both legs on which a packet of IPv6 goes on as one of IPv4, or the other way round.
fn cases(reported_by_v4: bool) -> [Case; 2] {
    [true, false].map(|from_client| Case::new(from_client == reported_by_v4, from_client))
}

// RFC 7915 4.2.
#[test_case((3, 0, 0) => Some((1, 0, 0)); "network unreachable")]
#[test_case((3, 1, 0) => Some((1, 0, 0)); "host unreachable")]
#[test_case((3, 2, 0) => Some((4, 1, 6)); "protocol unreachable")]
#[test_case((3, 3, 0) => Some((1, 4, 0)); "port unreachable")]
#[test_case((3, 4, 1400) => Some((2, 0, 1420)); "too big")]
#[test_case((3, 4, 1300) => Some((2, 0, 1320)); "much too big")]
#[test_case((3, 4, 1260) => Some((2, 0, 1280)); "the least MTU of IPv6")]
#[test_case((3, 4, 1259) => Some((2, 0, 1280)); "less than that")]
#[test_case((3, 4, 68) => Some((2, 0, 1280)); "an unbelievable MTU")]
#[test_case((3, 4, 1490) => Some((2, 0, 1500)); "no more than our own link")]
#[test_case((3, 4, 0) => Some((2, 0, 1280)); "an old router: the plateau below 1 052 bytes")]
#[test_case((3, 5, 0) => Some((1, 0, 0)); "source route failed")]
#[test_case((3, 6, 0) => Some((1, 0, 0)); "network unknown")]
#[test_case((3, 7, 0) => Some((1, 0, 0)); "host unknown")]
#[test_case((3, 8, 0) => Some((1, 0, 0)); "host isolated")]
#[test_case((3, 9, 0) => Some((1, 1, 0)); "network prohibited")]
#[test_case((3, 10, 0) => Some((1, 1, 0)); "host prohibited")]
#[test_case((3, 11, 0) => Some((1, 0, 0)); "network unreachable for this service")]
#[test_case((3, 12, 0) => Some((1, 0, 0)); "host unreachable for this service")]
#[test_case((3, 13, 0) => Some((1, 1, 0)); "filtered")]
#[test_case((3, 14, 0) => None; "precedence violation")]
#[test_case((3, 15, 0) => Some((1, 1, 0)); "precedence cut-off")]
#[test_case((3, 16, 0) => None; "an unknown code")]
#[test_case((11, 0, 0) => Some((3, 0, 0)); "time exceeded")]
#[test_case((11, 1, 0) => Some((3, 1, 0)); "reassembly time exceeded")]
#[test_case((12, 0, 0x0900_0000) => Some((4, 0, 6)); "problem with the protocol field")]
#[test_case((12, 0, 0x0a00_0000) => None; "problem with the header checksum")]
#[test_case((12, 1, 0) => None; "a missing option")]
#[test_case((12, 2, 0x0200_0000) => Some((4, 0, 4)); "bad length")]
#[test_case((4, 0, 0) => None; "source quench")]
#[test_case((5, 1, 0x0a09_0909) => None; "redirect")]
fn from_ipv4(says: Says) -> Option<Says> {
    told(says, true)
}

// RFC 7915 5.2.
#[test_case((1, 0, 0) => Some((3, 1, 0)); "no route")]
#[test_case((1, 1, 0) => Some((3, 10, 0)); "prohibited")]
#[test_case((1, 2, 0) => Some((3, 1, 0)); "beyond scope")]
#[test_case((1, 3, 0) => Some((3, 1, 0)); "address unreachable")]
#[test_case((1, 4, 0) => Some((3, 3, 0)); "port unreachable")]
#[test_case((1, 5, 0) => None; "ingress policy")]
#[test_case((1, 6, 0) => None; "reject route")]
#[test_case((2, 0, 1400) => Some((3, 4, 1380)); "too big")]
#[test_case((2, 0, 1280) => Some((3, 4, 1260)); "the least MTU")]
#[test_case((2, 0, 1000) => Some((3, 4, 1260)); "an unbelievable MTU")]
#[test_case((2, 0, 9000) => Some((3, 4, 1480)); "no more than our own link")]
#[test_case((2, 0, u32::MAX) => Some((3, 4, 1480)); "no MTU at all")]
#[test_case((3, 0, 0) => Some((11, 0, 0)); "time exceeded")]
#[test_case((3, 1, 0) => Some((11, 1, 0)); "reassembly time exceeded")]
#[test_case((4, 0, 6) => Some((12, 0, 0x0900_0000)); "problem with the next header field")]
#[test_case((4, 0, 2) => None; "problem with the flow label")]
#[test_case((4, 1, 6) => Some((3, 2, 0)); "an unknown next header")]
#[test_case((4, 2, 42) => None; "an unknown option")]
#[test_case((100, 0, 0) => None; "an unknown error")]
fn from_ipv6(says: Says) -> Option<Says> {
    told(says, false)
}

fn told(says: Says, reported_by_v4: bool) -> Option<Says> {
    let heard = cases(reported_by_v4).map(|mut case| {
        let heard = case.complain(says);
        if heard.is_none() {
            assert_eq!(case.bench.dropped(DropReason::IcmpUnwanted), 1, "counted");
        }
        heard.map(|heard| heard.says)
    });
    assert_eq!(heard[0], heard[1], "about either leg the same");
    heard[0]
}

#[test_case(true; "from IPv4")]
#[test_case(false; "from IPv6")]
fn the_quote_is_the_packet_as_its_sender_made_it(reported_by_v4: bool) {
    for mut case in cases(reported_by_v4) {
        let mut quote = case.passed.frame()[14..].to_vec();
        // A class of service on the way, as routers see it.
        match reported_by_v4 {
            true => quote[1] = 0xb8,
            false => quote[..2].copy_from_slice(&[0x6b, 0x80]),
        }
        let unreachable = if reported_by_v4 { (3, 1, 0) } else { (1, 3, 0) };
        let heard = case.complain_about(unreachable, &quote).expect("told");
        let (sender, ours) = case.sender();
        assert_eq!(heard.destination_mac, sender.mac);
        assert_eq!(
            (heard.destination, heard.source),
            (sender.address.ip(), ours.address.ip())
        );
        // IP, TCP with timestamps, 1000 bytes.
        let headers = if sender.address.is_ipv4() { 20 } else { 40 };
        assert_eq!(
            oracle::read_quote(&heard.quote),
            Quoted {
                source: (sender.address.ip(), sender.address.port()),
                destination: (ours.address.ip(), ours.address.port()),
                seq: case.sent.seq,
                packet_len: headers + 32 + 1000,
                class: 0xb8,
            }
        );
    }
}

/// RFC 792: an IP header and eight bytes are all that a router must quote; the header may have options.
#[test]
fn the_shortest_quote_will_do() {
    let mut case = Case::new(true, true);
    let quote = case.passed.frame()[14..14 + 28].to_vec();
    assert!(
        case.complain_about((3, 1, 0), &quote[..27]).is_none(),
        "not a number's last byte"
    );
    let heard = case.complain_about((3, 1, 0), &quote).expect("told");
    assert_eq!(oracle::read_quote(&heard.quote).seq, case.sent.seq);
    case.bench.now += std::time::Duration::from_secs(2);
    let mut with_options = quote.clone();
    with_options[0] = 0x46;
    with_options.splice(20..20, [1, 1, 1, 1]);
    let heard = case.complain_about((3, 1, 0), &with_options).expect("told");
    assert_eq!(oracle::read_quote(&heard.quote).packet_len, 40 + 32 + 1000 - 4);
}

#[test]
fn an_error_about_nothing_in_flight_is_not_believed() {
    for reported_by_v4 in [true, false] {
        for mut case in cases(reported_by_v4) {
            let wrong = Segment {
                seq: case.passed.seq.wrapping_add(1001),
                ..case.passed.clone()
            };
            let unreachable = if reported_by_v4 { (3, 1, 0) } else { (1, 3, 0) };
            let quote = wrong.frame()[14..].to_vec();
            assert!(case.complain_about(unreachable, &quote).is_none());
            assert_eq!(case.bench.dropped(DropReason::IcmpNotInFlight), 1);
        }
    }
}

#[test_case(false, b"3 hello", (1, 3, 0); "IPv4 client")]
#[test_case(true, b"0 hello", (3, 1, 0); "IPv6 client")]
fn an_unreachable_server_of_the_other_version_is_given_up(client_is_v6: bool, request: &[u8], says: Says) {
    let mut bench = Bench::new();
    let mut client = if client_is_v6 {
        Client::new_v6(40000)
    } else {
        Client::new(40000)
    };
    client.connect(&mut bench);
    let syn = only(client.send(&mut bench, request));
    let router = Station {
        address: syn.to.address,
        ..Station::new(0x77, "10.9.9.9:0")
    };
    let frame = oracle::icmp_frame(router, syn.from, says, &syn.frame()[14..]);
    let sent = bench.receive_icmp(PortId(1), &frame);
    let refusal = oracle::read_tcp(&sent[0]);
    assert!(refusal.tcp.rst, "the selector has named no other");
    assert_eq!(refusal.destination, client.me.address.ip());
}

fn with_server_mtu(mtu: u16) -> String {
    CONFIG.replace(
        "device = \"net_null1\"",
        &format!("device = \"net_null1\"\nmtu = {mtu}"),
    )
}

fn with_client_mtu(mtu: u16) -> String {
    CONFIG.replace(
        "device = \"net_null0\"",
        &format!("device = \"net_null0\"\nmtu = {mtu}"),
    )
}

/// Twenty bytes are what IPv6 needs more: a segment that came in as a full frame of IPv4 does not go out.
#[test_case(false, true, with_server_mtu(1500), 1480; "IPv4 client")]
#[test_case(false, true, with_server_mtu(1280), 1260; "IPv4 client, the least MTU")]
#[test_case(true, true, with_server_mtu(1400), 1420; "IPv6 client")]
#[test_case(true, true, with_server_mtu(1280), 1300; "IPv6 client, a small link")]
#[test_case(true, false, with_client_mtu(1400), 1380; "IPv4 server")]
#[test_case(false, false, with_client_mtu(1400), 1420; "IPv6 server")]
fn a_segment_too_big_for_the_other_leg_is_answered(client_is_v6: bool, from_client: bool, config: String, mtu: u16) {
    let mut case = Case::with_config(&config, client_is_v6, from_client);
    let (sender, ours) = case.sender();
    let is_v4 = sender.address.is_ipv4();
    let room = usize::from(mtu) - if is_v4 { 20 } else { 40 } - 32;
    let segment = |payload: usize| Segment {
        payload: vec![b'x'; payload],
        ..case.sent.clone()
    };
    let (fits, too_big) = (segment(room), segment(room + 1));
    let passed = only(case.bench.receive(&fits));
    assert_eq!(passed.payload.len(), room);
    let mut sent = case.bench.receive_raw(&too_big);
    assert_eq!(sent.len(), 1);
    let heard = oracle::read_icmp(&sent.remove(0));
    let expected = if is_v4 {
        (3, 4, u32::from(mtu))
    } else {
        (2, 0, u32::from(mtu))
    };
    assert_eq!(heard.says, expected);
    assert_eq!(
        (heard.destination, heard.source),
        (sender.address.ip(), ours.address.ip())
    );
    let quoted = oracle::read_quote(&heard.quote);
    assert_eq!((quoted.seq, quoted.packet_len), (too_big.seq, usize::from(mtu) + 1));
    assert_eq!(case.bench.dropped(DropReason::TooBig), 1);
}
