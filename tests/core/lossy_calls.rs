//! A load of connections whose servers are behind a link that loses packets: segments in, segments out.

use crate::harness::{Bench, CONFIG, Client, Server};
use e2d2::time::Instant;
use e2d2::wire::tcp::TcpFlags;
use splice::upstream::CallEvent;
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;
use testkit::{Segment, Station};

/// Between the beginnings of two connections: 50 000 in a second.
const EVERY: Duration = Duration::from_micros(20);

/// From a segment that reaches a server to the answer at the core.
const ANSWERED_IN: Duration = Duration::from_millis(1);

/// Segments of 1 000 that are lost, each way.
const LOST: u64 = 20;

/// Clients at different ports of one address.
const PORTS: u32 = 60_000;

/// Ten servers, each as good as any other.
fn config() -> String {
    let servers: String = (100..110)
        .map(|host| format!("  {{ name = \"s{host}\", address = \"10.1.0.{host}:8080\" }},\n"))
        .collect();
    let three = CONFIG
        .split("servers = [\n")
        .nth(1)
        .and_then(|rest| rest.split(']').next());
    let three = three.expect("the servers of the first pool");
    CONFIG
        .replacen(three, &servers, 1)
        .replace("max_connections = 64\n", "max_connections = 65536\n")
}

/// Clients and servers around a core.
struct Load {
    bench: Bench,
    seed: u64,
    random: u64,
    waiting: HashMap<u32, Client>,
    /// What the servers have sent, and when it is here.
    answers: VecDeque<(Instant, Server)>,
    completed: u32,
}

impl Load {
    fn new(seed: u64) -> Self {
        Load {
            bench: Bench::with_config(&config()),
            seed,
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            waiting: HashMap::new(),
            answers: VecDeque::new(),
            completed: 0,
        }
    }

    fn is_lost(&mut self) -> bool {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 20) % 1000 < LOST
    }

    /// Client `number` connects and sends its request.
    fn connect(&mut self, number: u32) {
        let host = [10, 0, 0, 16 + (number / PORTS) as u8];
        let me = Station {
            address: SocketAddr::from((host, 1_024 + (number % PORTS) as u16)),
            ..Station::new(1, "10.0.0.1:1")
        };
        let mut client = Client { me, ..Client::new(1) };
        let syn_ack = self.bench.receive(&client.syn());
        client.take_syn_ack(&syn_ack[0]);
        let sent = client.send(&mut self.bench, format!("p{number}").as_bytes());
        self.waiting.insert(number, client);
        self.take(sent);
    }

    /// What the core has sent to servers: SYNs and their answers may be lost, and a request completes its connection, which the
    /// client then resets. What else there is, the RST of that and ACKs, nobody answers.
    fn take(&mut self, sent: Vec<Segment>) {
        for segment in sent {
            if segment.flags == TcpFlags::SYN {
                if !self.is_lost() && !self.is_lost() {
                    let at = self.bench.now + ANSWERED_IN;
                    self.answers.push_back((at, Server::from_syn(&segment)));
                }
            } else if let Some(number) = segment.payload.strip_prefix(b"p") {
                let number = std::str::from_utf8(number).ok().and_then(|text| text.parse().ok());
                let client = self.waiting.remove(&number.expect("a client's number"));
                let client = client.expect("a request that was not here before");
                self.completed += 1;
                self.bench.receive(&client.segment(TcpFlags::RST, b""));
            }
        }
    }

    /// All that is due until then.
    fn until(&mut self, now: Instant) {
        while self.answers.front().is_some_and(|(at, _)| *at <= now) {
            let Some((at, server)) = self.answers.pop_front() else {
                break;
            };
            self.bench.now = at;
            let sent = self.bench.receive(&server.syn_ack());
            self.take(sent);
        }
        self.bench.now = now;
        let sent = self.bench.round().0;
        self.take(sent);
    }

    fn run(&mut self, connections: u32) {
        let began = self.bench.now;
        for number in 0..connections {
            self.until(began + EVERY * number);
            self.connect(number);
        }
        // The last ones may lose several calls in a row.
        let end = self.bench.now + Duration::from_secs(2);
        while self.bench.now < end {
            self.until(self.bench.now + Duration::from_millis(1));
        }
    }

    fn count(&self, event: CallEvent) -> u64 {
        self.bench.proxy.calls()[event]
    }
}

/// Seconds of virtual time: a tenth of a minute, unless `PROXYENGINE_LOSSY_SECONDS` says otherwise. Sixty are three million
/// connections, and take ten times as long.
fn seconds() -> u32 {
    let wanted = std::env::var("PROXYENGINE_LOSSY_SECONDS");
    wanted.ok().and_then(|text| text.parse().ok()).unwrap_or(6)
}

#[test]
fn two_percent_of_loss_at_50_000_connections_per_second_eject_nobody() {
    let connections = 50_000 * seconds();
    let mut load = Load::new(1);
    println!("seed {}", load.seed);
    load.run(connections);
    assert_eq!(
        (load.completed, load.waiting.len()),
        (connections, 0),
        "seed {}",
        load.seed
    );
    let ejections = load.count(CallEvent::EjectedBySilence) + load.count(CallEvent::EjectedByFailure);
    assert_eq!(ejections, 0, "seed {}", load.seed);
    // The SYN or its answer is lost of 3.96 %, and of as many of those that are repeated.
    let (given_up, expected) = (load.count(CallEvent::GivenUp), f64::from(connections) * 0.0396 / 0.9604);
    assert!(
        (given_up as f64 / expected - 1.0).abs() < 0.1,
        "{given_up}, expected {expected}"
    );
}
