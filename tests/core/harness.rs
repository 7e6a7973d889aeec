//! A core between one client and some servers, all of them the test itself (`peers.rs`).

use arrayvec::ArrayVec;
use e2d2::buffer::{BufferPool, HeapBuffer, HeapPool, PacketBuffer};
use e2d2::port::PortId;
use e2d2::time::Instant;
use e2d2::wire::MacAddr;
use e2d2::wire::frame::{self, Kind, Packet};
use e2d2::wire::tcp::TcpFlags;
use netfcts::record::SessionRecord;
use netfcts::ring::{RecordReceiver, record_ring};
use proxyengine::callbacks::{FirstPayload, SelectServer, Selection};
use proxyengine::checks::CheckLine;
use proxyengine::config::{Config, PoolId, ServerId};
use splice::drop_reason::DropReason;
use splice::settings::Settings;
use splice::standby::Standby;
use splice::upstream::Upstream;
use splice::visit::ConnectionFilter;
use splice::{CoreParts, NextHops, Proxy, Secrets, Usage};
use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use testkit::Segment;

#[path = "peers.rs"]
mod peers;
#[path = "sent.rs"]
mod sent;

#[allow(unused_imports)] // of one of the programs that share this
pub use peers::{CLIENT_ISN, Client, SERVER_ISN, Server, close, spliced};

use sent::Sent;

/// Our MAC address on port 0 and port 1.
pub const PROXY_MAC: [u8; 2] = [0xa0, 0xa1];

/// Two ports; clients on 10.0.0.0/24 and fd00::/64 behind the first, servers 0 to 2 (IPv4) and 3 to 5 (IPv6) behind the
/// second.
pub const CONFIG: &str = r#"
[engine]
name = "test"
cores = [0]
max_connections = 64

[[port]]
name = "client"
device = "net_null0"
addresses = ["10.0.0.9/24", "fd00::9/64"]

[[port]]
name = "server"
device = "net_null1"
addresses = ["10.1.0.9/24", "fd01::9/64"]

[[listener]]
name = "web"
addresses = ["10.0.0.9:80"]
rules = [{ first_number = true, pool = "all" }]
default = "reject"

[[pool]]
name = "all"
servers = [
  { name = "s0", address = "10.1.0.100:8080" },
  { name = "s1", address = "10.1.0.101:8080" },
  { name = "s2", address = "10.1.0.102:8080" },
]

[[listener]]
name = "web6"
addresses = ["[fd00::9]:80"]
rules = [{ first_number = true, pool = "all6" }]
default = "reject"

[[pool]]
name = "all6"
servers = [
  { name = "s3", address = "[fd01::100]:8080" },
  { name = "s4", address = "[fd01::101]:8080" },
  { name = "s5", address = "[fd01::102]:8080" },
]

[records]
file = "records.txt"
"#;

/// [`CONFIG`] with listeners that bind with the SYN, to their pools; these lines are theirs as well.
pub fn bound_with_syn(lines: &str) -> String {
    ["all", "all6"].iter().fold(CONFIG.to_owned(), |text, pool| {
        let rules = format!("rules = [{{ first_number = true, pool = \"{pool}\" }}]\ndefault = \"reject\"");
        text.replacen(&rules, &format!("bind = \"syn\"\ndefault = \"{pool}\"\n{lines}"), 1)
    })
}

/// When the core starts, unless a test says otherwise.
const STARTED: Instant = Instant::from_millis(100_000);

/// What the keys of the flow table are made of, in an engine that was not restarted.
pub const TABLE_SECRET: [u64; 2] = [3, 4];

/// Next hops whose MAC addresses end in 0x50 + index; those in the list are unknown.
#[derive(Clone, Default)]
pub struct Hops(pub Rc<RefCell<Vec<usize>>>);

impl NextHops for Hops {
    fn mac(&self, next_hop: usize) -> Option<MacAddr> {
        let known = !self.0.borrow().contains(&next_hop);
        known.then_some(MacAddr([2, 0, 0, 0, 0, 0x50_u8.wrapping_add(next_hop as u8)]))
    }
}

/// What the selector was asked: bytes, and whether they were all there will be.
pub type Calls = Arc<Mutex<Vec<(Vec<u8>, bool)>>>;

/// Whom the selector was asked about: client, its destination, peer.
pub type Asked = Arc<Mutex<Vec<[SocketAddr; 3]>>>;

/// "n…" goes to server n; "pool" to the pool; "?" wants more until a newline; all else is refused.
pub struct Selector {
    pub calls: Calls,
    pub asked: Asked,
    /// Every connection goes to the pool of its listener, whatever it says.
    pub pool_only: bool,
}

impl SelectServer for Selector {
    fn select(&mut self, payload: &FirstPayload<'_>) -> Selection {
        let asked = [payload.client, payload.local, payload.peer];
        self.asked.lock().expect("one thread").push(asked);
        self.calls
            .lock()
            .expect("one thread")
            .push((payload.bytes.to_vec(), payload.complete));
        match payload.bytes.first() {
            _ if self.pool_only => Selection::Pool(PoolId(payload.listener.0)),
            Some(digit @ b'0'..=b'9') => Selection::Server(ServerId(u16::from(digit - b'0'))),
            Some(b'p') => Selection::Pool(PoolId(payload.listener.0)),
            Some(b'?') if payload.bytes.contains(&b'\n') => Selection::Server(ServerId(0)),
            Some(b'?') => Selection::NeedMore,
            _ => Selection::Reject,
        }
    }
}

/// The core under test with everything around it.
pub struct Bench<S = Selector> {
    pub proxy: Proxy<HeapPool, S, Hops>,
    pub now: Instant,
    pub pool: HeapPool,
    pub hops: Hops,
    pub calls: Calls,
    /// ICMP messages are left out of what the core sends; all others are to be TCP segments.
    pub ignores_icmp: bool,
    pub asked: Asked,
    records: RecordReceiver,
    sent: Sent,
    #[allow(dead_code)] // of one of the programs that share this
    pub config: Config,
    #[allow(dead_code)] // likewise
    pub probes: bool,
    /// What is out of service, and what all cores know of servers.
    #[allow(dead_code)] // likewise
    pub standby: Arc<Standby>,
}

impl Bench {
    pub fn new() -> Self {
        Self::with_config(CONFIG)
    }

    pub fn with_config(text: &str) -> Self {
        Self::make(text, false)
    }

    /// One that asks its servers what they can do.
    pub fn probing(text: &str) -> Self {
        Self::build((text, Arc::default(), STARTED), false, 0, |_| {}, |selector| selector)
    }

    /// The engine after it has been started so many times: other secrets.
    pub fn restarted(text: &str, epoch: u8) -> Self {
        let quiet = |settings: &mut Settings| settings.promises.offer.probe = false;
        Self::build((text, Arc::default(), STARTED), false, epoch, quiet, |selector| {
            selector
        })
    }

    /// With a selector that always names the pool.
    pub fn for_pools(text: &str) -> Self {
        Self::make(text, true)
    }

    /// Nobody is asked: all other tests are about connections.
    fn make(text: &str, pool_only: bool) -> Self {
        Self::make_with(text, pool_only, |_| {}, |selector| selector)
    }
}

impl<S: SelectServer> Bench<S> {
    /// With a selector that `wrap` makes of the usual one, and settings that `adjust` changes.
    pub fn make_with(
        text: &str,
        pool_only: bool,
        adjust: impl FnOnce(&mut Settings),
        wrap: impl FnOnce(Selector) -> S,
    ) -> Self {
        let quiet = |settings: &mut Settings| {
            settings.promises.offer.probe = false;
            adjust(settings);
        };
        Self::build((text, Arc::default(), STARTED), pool_only, 0, quiet, wrap)
    }

    /// One of several cores that share what all of them know.
    #[allow(dead_code)] // of one of the programs that share this
    pub fn sharing(text: &str, standby: &Arc<Standby>, wrap: impl FnOnce(Selector) -> S) -> Self {
        let quiet = |settings: &mut Settings| settings.promises.offer.probe = false;
        Self::build((text, Arc::clone(standby), STARTED), false, 0, quiet, wrap)
    }

    pub fn build(
        (text, standby, now): (&str, Arc<Standby>, Instant),
        pool_only: bool,
        epoch: u8,
        adjust: impl FnOnce(&mut Settings),
        wrap: impl FnOnce(Selector) -> S,
    ) -> Self {
        let config = Config::parse(text, "test").unwrap_or_else(|error| panic!("{error}"));
        let macs = PROXY_MAC.map(|mac| MacAddr([2, 0, 0, 0, 0, mac]));
        let mut settings = config.core_settings(0, &macs, |server| usize::from(server.id.0));
        adjust(&mut settings);
        let probes = settings.promises.offer.probe;
        let pool = HeapPool::new(512, 2048);
        let (sender, records) = record_ring(1024);
        let (hops, calls, asked) = (Hops::default(), Calls::default(), Asked::default());
        let secrets = Secrets {
            cookie: [1 + u64::from(epoch), 2],
            table: TABLE_SECRET.map(|word| word + u64::from(epoch)),
            isn: [6 + epoch; 16],
            timestamp: 7_000_000,
        };
        let parts = CoreParts {
            settings,
            pool: pool.clone(),
            selector: wrap(Selector {
                calls: Arc::clone(&calls),
                asked: Arc::clone(&asked),
                pool_only,
            }),
            next_hops: hops.clone(),
            upstream: Upstream::new(&config.upstream_settings(), 0).with_standby(Arc::clone(&standby)),
            records: Some(sender),
            secrets: &secrets,
        };
        let proxy = Proxy::new(parts, now);
        Bench {
            proxy,
            now,
            pool,
            hops,
            calls,
            ignores_icmp: false,
            asked,
            records,
            sent: Sent(Vec::new(), usize::MAX, None),
            config,
            probes,
            standby,
        }
    }

    /// Lets the core receive a segment on the port of its sender and returns what it sends.
    pub fn receive(&mut self, segment: &Segment) -> Vec<Segment> {
        let port = PortId(u8::from(segment.to.mac.0[5] == PROXY_MAC[1]));
        let buffer = segment.emit(&mut self.pool);
        self.receive_frame(port, buffer)
    }

    pub fn receive_frame(&mut self, port: PortId, buffer: HeapBuffer) -> Vec<Segment> {
        let kind = frame::parse(buffer.data()).expect("the test's own frame");
        let mut batch = ArrayVec::new();
        batch.push(Packet { buffer, port, kind });
        self.proxy.handle_batch(self.now, &mut batch, &mut self.sent);
        self.take_sent()
    }

    /// Lets the core receive a frame and returns the frames that it sends.
    pub fn receive_bytes(&mut self, port: PortId, frame: &[u8]) -> Vec<Vec<u8>> {
        let buffer = self.pool.take_copy(frame).expect("a buffer for the test's own frame");
        let kind = frame::parse(frame).expect("the test's own frame");
        let mut batch = ArrayVec::new();
        batch.push(Packet { buffer, port, kind });
        self.proxy.handle_batch(self.now, &mut batch, &mut self.sent);
        self.sent
            .0
            .drain(..)
            .map(|(_, buffer)| buffer.data().to_vec())
            .collect()
    }

    /// Lets the core receive an ICMP error and returns the frames that it sends.
    pub fn receive_icmp(&mut self, port: PortId, frame: &[u8]) -> Vec<Vec<u8>> {
        let buffer = self.pool.take_copy(frame).expect("a buffer for the test's own frame");
        let kind = frame::parse(frame).expect("the test's own frame");
        self.proxy
            .handle_icmp_error(self.now, Packet { buffer, port, kind }, &mut self.sent);
        self.sent
            .0
            .drain(..)
            .map(|(_, buffer)| buffer.data().to_vec())
            .collect()
    }

    /// As [`Bench::receive`], for answers that are not TCP.
    pub fn receive_raw(&mut self, segment: &Segment) -> Vec<Vec<u8>> {
        let port = PortId(u8::from(segment.to.mac.0[5] == PROXY_MAC[1]));
        let buffer = segment.emit(&mut self.pool);
        self.exchange_buffer(port, buffer)
    }

    /// Lets the core receive a frame of any TCP and returns the frames that it sends.
    pub fn exchange(&mut self, port: PortId, frame: &[u8]) -> Vec<Vec<u8>> {
        let buffer = self.pool.take_copy(frame).expect("a buffer for the test's own frame");
        self.exchange_buffer(port, buffer)
    }

    pub fn exchange_buffer(&mut self, port: PortId, buffer: HeapBuffer) -> Vec<Vec<u8>> {
        let kind = frame::parse(buffer.data()).expect("the test's own frame");
        let mut batch = ArrayVec::new();
        batch.push(Packet { buffer, port, kind });
        self.proxy.handle_batch(self.now, &mut batch, &mut self.sent);
        let sent = self.sent.0.drain(..);
        sent.map(|(_, buffer)| buffer.data().to_vec()).collect()
    }

    /// Lets time pass in steps of at most 50 ms and returns what the core sends meanwhile.
    pub fn wait(&mut self, time: Duration) -> Vec<Segment> {
        let end = self.now + time;
        while self.now < end {
            let step = Duration::from_millis(50).min(end - self.now);
            self.now += step;
            while self.proxy.poll_timers(self.now, &mut self.sent) {}
        }
        self.take_sent()
    }

    /// Lets the core do what it does in one round without packets, and returns what it sends and whether it did anything.
    #[allow(dead_code)] // of one of the programs that share this
    pub fn round(&mut self) -> (Vec<Segment>, bool) {
        let worked = self.proxy.poll_timers(self.now, &mut self.sent);
        (self.take_sent(), worked)
    }

    /// Lets the core receive segments in one batch, with room for so many frames, and returns what it sends.
    #[allow(dead_code)] // of one of the programs that share this
    pub fn receive_all(&mut self, segments: &[Segment], room: usize) -> Vec<Segment> {
        let mut batch = ArrayVec::new();
        for segment in segments {
            let buffer = segment.emit(&mut self.pool);
            let kind = frame::parse(buffer.data()).expect("the test's own frame");
            let port = PortId(u8::from(segment.to.mac.0[5] == PROXY_MAC[1]));
            batch.push(Packet { buffer, port, kind });
        }
        self.sent.1 = room;
        self.proxy.handle_batch(self.now, &mut batch, &mut self.sent);
        self.sent.1 = usize::MAX;
        self.take_sent()
    }

    /// Lets time pass from timer to timer and returns what the core sends meanwhile.
    #[allow(dead_code)] // of one of the programs that share this
    pub fn skip(&mut self, time: Duration) -> Vec<Segment> {
        let end = self.now + time;
        while self.now < end {
            let next = self.proxy.next_deadline().unwrap_or(end);
            self.now = next.max(self.now + Duration::from_millis(1)).min(end);
            self.proxy.poll_timers(self.now, &mut self.sent);
        }
        self.take_sent()
    }

    /// Lets the core end what is wanted as in one round; how many, and what it sends.
    #[allow(dead_code)] // of one of the programs that share this
    pub fn end_wanted(&mut self, places: &mut std::ops::Range<u32>, filter: &ConnectionFilter) -> (u32, Vec<Segment>) {
        let ended = self
            .proxy
            .end_wanted(self.now, places, (filter, u32::MAX), &mut self.sent);
        (ended, self.take_sent())
    }

    /// The other end of this makes checks with content.
    #[allow(dead_code)] // of one of the programs that share this
    pub fn set_check_line(&mut self, line: CheckLine) {
        self.sent.2 = Some(line);
    }

    /// Lets the core take the messages of the maker of checks, and returns what it sends.
    #[allow(dead_code)] // likewise
    pub fn work_checks(&mut self) -> Vec<Segment> {
        if let Some(mut line) = self.sent.2.take() {
            line.work(self.now, &mut self.proxy, &mut self.sent);
            self.sent.2 = Some(line);
        }
        self.take_sent()
    }

    pub fn finish(&mut self) -> Vec<Segment> {
        while !self.proxy.finish(self.now, &mut self.sent) {}
        self.take_sent()
    }

    fn take_sent(&mut self) -> Vec<Segment> {
        let read = |(port, buffer): (PortId, HeapBuffer)| {
            let segment = Segment::read(buffer.data());
            let expected = PROXY_MAC[usize::from(port.0)];
            assert_eq!(segment.from.mac.0[5], expected, "sent by the wrong port: {segment:?}");
            segment
        };
        let is_icmp = |buffer: &HeapBuffer| {
            matches!(
                frame::parse(buffer.data()),
                Ok(Kind::Icmpv4 { .. } | Kind::Icmpv6 { .. })
            )
        };
        let ignores_icmp = self.ignores_icmp;
        let sent = self
            .sent
            .0
            .drain(..)
            .filter(|(_, buffer)| !(ignores_icmp && is_icmp(buffer)));
        sent.map(read).collect()
    }

    pub fn records(&mut self) -> Vec<SessionRecord> {
        let mut records = Vec::new();
        self.records.drain(|record| records.push(*record));
        records
    }

    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.proxy
            .drops()
            .iter()
            .find(|(r, _)| *r == reason)
            .map_or(0, |(_, n)| n)
    }

    /// Asserts that nothing is held any more: slots, table, timers, ports, held bytes, buffers.
    #[track_caller]
    pub fn assert_all_returned(&mut self) {
        self.wait(Duration::from_secs(6));
        assert_eq!(self.proxy.usage(), Usage::default());
        assert_eq!(self.pool.available(), self.pool.capacity());
    }
}

/// Something that clients and servers can talk to: the core by itself, or in its graph.
pub trait Receive {
    /// Takes a segment from the port of its sender and returns the TCP segments sent in answer.
    fn receive(&mut self, segment: &Segment) -> Vec<Segment>;
}

impl<S: SelectServer> Receive for Bench<S> {
    fn receive(&mut self, segment: &Segment) -> Vec<Segment> {
        Bench::receive(self, segment)
    }
}

/// Asserts that a server which answers this SYN out of a connection that it remembers is reset, and gets the SYN again.
#[allow(dead_code)] // of one of the programs that share this
#[track_caller]
pub fn assert_reset_and_called_again(bench: &mut Bench, syn: &Segment) {
    let stale = Segment {
        seq: 77,
        ack: 12345,
        ..Segment::between(syn.to, syn.from)
    };
    let sent = bench.receive(&stale);
    assert_eq!(sent.len(), 2, "{sent:#?}");
    assert_eq!((sent[0].flags, sent[0].seq), (TcpFlags::RST, 12345));
    assert_eq!(sent[1], *syn);
}

/// The one element of a list that must have one.
#[track_caller]
pub fn only(mut segments: Vec<Segment>) -> Segment {
    assert_eq!(segments.len(), 1, "one segment expected: {segments:#?}");
    segments.remove(0)
}

#[track_caller]
pub fn nothing(segments: Vec<Segment>) {
    assert!(segments.is_empty(), "nothing expected: {segments:#?}");
}
