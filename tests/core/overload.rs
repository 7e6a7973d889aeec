//! More SYNs than the core can answer: those who are connected go first, and nothing is kept of the others.

use crate::graph_bench::GraphBench;
use crate::harness::{Bench, CONFIG, Client, PROXY_MAC, Server, only};
use crate::many_cores::leg;
use arrayvec::ArrayVec;
use e2d2::BURST;
use e2d2::buffer::{HeapBuffer, PacketBuffer};
use e2d2::port::{Port, PortId};
use e2d2::time::Instant;
use e2d2::wire::frame;
use e2d2::wire::frame::Packet;
use e2d2::wire::tcp::TcpFlags;
use netfcts::leg::mapped;
use netfcts::steering::SteeringPlan;
use proxyengine::callbacks::SelectServer;
use proxyengine::config::Config;
use proxyengine::selectors::RuleSelector;
use splice::drop_reason::DropReason;
use splice::settings::{CoreSteering, Settings};
use splice::{Output, Usage};
use std::sync::Arc;
use std::time::Duration;
use testkit::{Segment, Station};

/// A round of the core in these tests.
const ROUND: Duration = Duration::from_micros(15);

/// Frames that the core has sent in one batch, and how many packets it has handed over.
#[derive(Default)]
struct Sent(Vec<Segment>, usize);

impl Output<HeapBuffer> for Sent {
    fn send(&mut self, _port: PortId, frame: HeapBuffer) {
        self.0.push(Segment::read(frame.data()));
    }

    fn room(&self) -> usize {
        usize::MAX
    }

    fn hand_over(&mut self, _core: usize, _packet: Packet<HeapBuffer>) -> Result<(), Packet<HeapBuffer>> {
        self.1 += 1;
        Ok(())
    }

    fn pass_to_kernel(&mut self, _now: Instant, port: PortId, _frame: HeapBuffer) {
        panic!("no kernel is behind port {port:?}");
    }
}

/// The `n`-th SYN of a flood, from an address that nobody has.
fn flood_syn(n: u32) -> Segment {
    let source = format!("10.0.0.{}:{}", 20 + n / 50_000 % 200, 1024 + n % 50_000);
    let mut client = Client::new(1);
    client.me = Station::new(1, &source);
    client.seq = n.wrapping_mul(2_654_435_761);
    client.syn()
}

fn batch_of<S: SelectServer>(bench: &mut Bench<S>, segments: &[Segment]) -> ArrayVec<Packet<HeapBuffer>, BURST> {
    let mut batch = ArrayVec::<_, BURST>::new();
    for segment in segments {
        let port = PortId(u8::from(segment.to.mac.0[5] == PROXY_MAC[1]));
        let buffer = segment.emit(&mut bench.pool);
        let kind = frame::parse(buffer.data()).expect("the test's own frame");
        batch.push(Packet { buffer, port, kind });
    }
    batch
}

/// Has the core handle a batch as its round would, and returns what it sends in its order.
fn round<S: SelectServer>(bench: &mut Bench<S>, segments: &[Segment], is_full: bool) -> Vec<Segment> {
    round_among(bench, segments, is_full).0
}

/// The same with what it hands over.
fn round_among<S: SelectServer>(bench: &mut Bench<S>, segments: &[Segment], is_full: bool) -> Sent {
    let mut batch = batch_of(bench, segments);
    bench.now += ROUND;
    let mut sent = Sent::default();
    bench.proxy.note_round(bench.now, is_full);
    bench.proxy.handle_batch(bench.now, &mut batch, &mut sent);
    sent
}

/// The same in the middle of a flood, with the rounds for which segments may be put off until there are more of them.
fn eight_rounds<S: SelectServer>(bench: &mut Bench<S>, segments: &[Segment]) -> Vec<Segment> {
    let mut sent = round(bench, segments, true);
    for n in 1..8 {
        let syns: Vec<Segment> = (n * 32..(n + 1) * 32).map(flood_syn).collect();
        sent.extend(round(bench, &syns, true));
    }
    sent
}

/// Full rounds of strangers' SYNs until nothing is left to pay for them; returns the number of SYNs.
fn overload<S: SelectServer>(bench: &mut Bench<S>) -> u32 {
    let mut n = 0;
    let until = bench.now + Duration::from_millis(100);
    while bench.now < until {
        let syns: Vec<Segment> = (n..n + BURST as u32).map(flood_syn).collect();
        n += BURST as u32;
        round(bench, &syns, true);
    }
    n
}

#[test]
fn below_the_limit_every_syn_is_answered() {
    let mut bench = Bench::new();
    for n in 0..2_000 {
        let syns: Vec<Segment> = (0..BURST as u32).map(|i| flood_syn(n * 32 + i)).collect();
        // A queue that gets empty now and then.
        assert_eq!(round(&mut bench, &syns, n % 60 != 0).len(), BURST);
    }
    assert_eq!(bench.dropped(DropReason::Overload), 0);
}

#[test]
fn beyond_it_syns_are_dropped_and_counted_and_nothing_is_kept() {
    let mut bench = Bench::new();
    let memory = bench.proxy.memory();
    let n = overload(&mut bench);
    let dropped = bench.dropped(DropReason::Overload);
    assert!(dropped > u64::from(n) / 2, "{dropped} of {n}");
    assert_eq!((bench.proxy.usage(), bench.proxy.memory()), (Usage::default(), memory));
    bench.assert_all_returned();
}

#[test]
fn without_a_mark_every_syn_is_answered() {
    let mut bench = Bench::with_config(&CONFIG.replace("max_connections", "overload_after = \"0s\"\nmax_connections"));
    overload(&mut bench);
    assert_eq!(bench.dropped(DropReason::Overload), 0);
}

#[test]
fn those_who_are_connected_go_first() {
    let mut bench = Bench::new();
    let (client, server) = crate::harness::spliced(&mut bench, 40000);
    let n = overload(&mut bench);
    // A batch of SYNs with a segment of either side behind them.
    let mut batch: Vec<Segment> = (n..n + 30).map(flood_syn).collect();
    batch.push(client.segment(TcpFlags::PSH, b"more"));
    batch.push(server.segment(TcpFlags::PSH, b"answer"));
    let sent = eight_rounds(&mut bench, &batch);
    assert_eq!(
        [&sent[0].payload[..], &sent[1].payload],
        [&b"more"[..], b"answer"],
        "before any SYN"
    );
    assert!(sent.len() < 10, "most SYNs are dropped: {}", sent.len());
}

#[test]
fn what_was_put_off_is_dealt_with_in_order_when_the_queue_gets_empty() {
    let mut bench = Bench::new();
    let (client, _server) = crate::harness::spliced(&mut bench, 40000);
    // But for a stranger's SYN now and then: nothing is said to them.
    let said = |sent: Vec<Segment>| {
        let payloads = sent.into_iter().map(|segment| segment.payload);
        payloads.filter(|payload| !payload.is_empty()).collect::<Vec<_>>()
    };
    let n = overload(&mut bench);
    let mut put_off = Vec::new();
    for (round_of, byte) in [b"a", b"b", b"c"].into_iter().enumerate() {
        let mut batch: Vec<Segment> = (n..n + 31).map(flood_syn).collect();
        batch.push(client.segment(TcpFlags::PSH, byte));
        put_off.extend(said(round(&mut bench, &batch, true)));
        assert!(put_off.len() <= round_of + 1);
    }
    // A burst of them does not wait any longer.
    let burst: Vec<Segment> = (0..BURST).map(|_| client.segment(TcpFlags::PSH, b"d")).collect();
    put_off.extend(said(round(&mut bench, &burst, true)));
    assert!(put_off.len() >= 3);
    // An empty round, in which nothing but the timers is looked at.
    bench.now += ROUND;
    let mut sent = Sent::default();
    bench.proxy.note_round(bench.now, false);
    bench.proxy.poll_timers(bench.now, &mut sent);
    put_off.extend(said(sent.0));
    assert_eq!(put_off.len(), 3 + BURST);
    assert_eq!(put_off[..4].concat(), b"abcd");
    // What is put off when the engine ends is not lost.
    overload(&mut bench);
    round(&mut bench, &[client.segment(TcpFlags::PSH, b"e")], true);
    let mut sent = Sent::default();
    while !bench.proxy.finish(bench.now, &mut sent) {}
    assert!(
        sent.0.len() >= 2,
        "the segment or nothing more of it, and both ends are told"
    );
    drop(sent);
    bench.assert_all_returned();
}

/// Staff go before strangers, though they were never there; guests do not, though they were.
#[test]
fn a_class_has_a_rank() {
    let rules = "{ client = [\"10.0.0.2\"], class = \"staff\" }, { client = [\"10.0.0.1\"], class = \"guests\" },";
    let ranks = "[[class]]\nname = \"staff\"\nrank = \"first\"\n[[class]]\nname = \"guests\"\nrank = \"last\"\n";
    let text = CONFIG.replacen("rules = [", &format!("rules = [{rules}"), 1) + ranks;
    let config = Config::parse(&text, "test").unwrap_or_else(|error| panic!("{error}"));
    let mut bench = Bench::make_with(&text, false, |_| {}, |_| RuleSelector::new(&config));
    let mut guest = Client::new(40000);
    guest.connect(&mut bench);
    let staff = Client {
        me: Station::new(1, "10.0.0.2:40000"),
        ..Client::new(40000)
    };
    let n = overload(&mut bench);
    let mut batch: Vec<Segment> = (n..n + 30).map(flood_syn).collect();
    batch.push(Client::new(40001).syn());
    batch.push(staff.syn());
    let sent = eight_rounds(&mut bench, &batch);
    assert_eq!(sent[0].to, staff.me, "the first of them all");
    assert!(sent.iter().all(|sent| sent.to.address.ip() != guest.me.address.ip()));
    // A round that leaves the queue empty is one for all.
    assert_eq!(round(&mut bench, &[Client::new(40002).syn()], false).len(), 1);
}

#[test]
fn clients_who_have_been_here_go_before_strangers() {
    let mut bench = Bench::new();
    crate::harness::spliced(&mut bench, 40000);
    let n = overload(&mut bench);
    let mut batch: Vec<Segment> = (n..n + 31).map(flood_syn).collect();
    let again = Client::new(40001);
    batch.push(again.syn());
    let sent = eight_rounds(&mut bench, &batch);
    assert_eq!(sent[0].to, again.me, "the first of them all");
    assert!(sent.len() <= 3, "and hardly another: {}", sent.len());
    // A round that leaves the queue empty is one for all.
    let batch: Vec<Segment> = (n + 31..n + 62).map(flood_syn).collect();
    assert_eq!(round(&mut bench, &batch, false).len(), 31);
}

#[test]
fn a_flood_in_the_name_of_a_client_who_has_been_here_ends_too() {
    let mut bench = Bench::new();
    crate::harness::spliced(&mut bench, 40000);
    let mut n = overload(&mut bench);
    let mut answered = 0;
    let until = bench.now + Duration::from_millis(20);
    while bench.now < until {
        let syns: Vec<Segment> = (n..n + BURST as u32)
            .map(|n| Client::new(1024 + (n % 30_000) as u16).syn())
            .collect();
        n += BURST as u32;
        answered += round(&mut bench, &syns, true).len();
    }
    assert!((500..600).contains(&answered), "half a bucket: {answered}");
}

#[test]
fn icmp_errors_about_strangers_are_shed_in_the_middle_of_it_and_those_about_connections_are_not() {
    let mut bench = Bench::new();
    let (client, _server) = crate::harness::spliced(&mut bench, 40000);
    let passed = only(bench.receive(&client.segment(TcpFlags::PSH, &[b'x'; 1400])));
    let (port, error) = crate::icmp::error_about(&passed, Some(1300));
    let told = |bench: &mut Bench| (0..500).map(|_| bench.receive_icmp(port, &error).len()).sum::<usize>();
    assert_eq!((told(&mut bench), bench.dropped(DropReason::RateLimited)), (1, 499));
    overload(&mut bench);
    bench.now += Duration::from_millis(1024);
    let drops = |bench: &Bench| [DropReason::IcmpUnwanted, DropReason::Overload].map(|reason| bench.dropped(reason));
    let [unwanted, shed] = drops(&bench);
    let mut never_sent = passed.clone();
    never_sent.to.address.set_port(50_000);
    let (_, forged) = crate::icmp::error_about(&never_sent, Some(1300));
    assert!((0..500).all(|_| bench.receive_icmp(port, &forged).is_empty()));
    assert_eq!(drops(&bench), [unwanted + 100, shed + 400]);
    let heard = told(&mut bench);
    assert_eq!((heard, bench.dropped(DropReason::RateLimited)), (1, 499 + 499));
    assert_eq!(drops(&bench), [unwanted + 100, shed + 400]);
}

#[test]
fn a_client_with_a_cookie_is_connected_in_the_middle_of_it() {
    let mut bench = Bench::new();
    let mut client = Client::new(40000);
    let syn_ack = only(bench.receive(&client.syn()));
    client.take_syn_ack(&syn_ack);
    let n = overload(&mut bench);
    let mut batch: Vec<Segment> = (n..n + 31).map(flood_syn).collect();
    batch.push(client.segment(TcpFlags::PSH, b"0 hello"));
    let sent = eight_rounds(&mut bench, &batch);
    assert_eq!(sent[0].flags, TcpFlags::SYN, "the server is called: {:?}", sent[0]);
    round(&mut bench, &[], false);
    let (_, held) = Server::from_syn(&sent[0]).accept(&mut bench);
    assert_eq!(only(held).payload, b"0 hello");
}

#[test]
fn a_syn_that_comes_again_after_the_flood_is_answered() {
    let mut bench = Bench::new();
    overload(&mut bench);
    let answered = |bench: &mut Bench| {
        let syn = Client::new(40000).syn();
        !round(bench, &[syn], false).is_empty()
    };
    // What is due within 10 ms of an idle core is one burst at least.
    bench.now += Duration::from_millis(10);
    assert!(answered(&mut bench));
    let before = bench.dropped(DropReason::Overload);
    for _ in 0..1_000 {
        bench.now += Duration::from_millis(1);
        assert!(answered(&mut bench));
    }
    assert_eq!(bench.dropped(DropReason::Overload), before);
}

/// Connections as fast as the core goes: each full round has the SYNs, cookies and requests of a closed loop.
#[test]
fn an_honest_load_at_the_limit_loses_no_syn() {
    let mut bench = Bench::with_config(&CONFIG.replace("max_connections = 64", "max_connections = 16384"));
    let mut waiting: Vec<Segment> = (0..BURST as u32).map(flood_syn).collect();
    let mut next = BURST as u32;
    let (mut connected, began) = (0, bench.now);
    while bench.now - began < Duration::from_millis(60) {
        let answers = round(&mut bench, &waiting[..BURST.min(waiting.len())], true);
        waiting.drain(..BURST.min(waiting.len()));
        for answer in answers {
            let mut client = Client::new(1);
            client.me = answer.to;
            (client.seq, client.ack) = (answer.ack, answer.seq.wrapping_add(1));
            client.tsecr = answer.options.timestamps.map_or(0, |(value, _)| value);
            client.tsval += 1;
            // What the selector refuses is reset: two packets in for each SYN.
            if answer.flags == TcpFlags::SYN | TcpFlags::ACK {
                waiting.push(client.segment(TcpFlags::PSH, b"refused"));
                connected += 1;
            } else {
                waiting.push(flood_syn(next));
                next += 1;
            }
        }
    }
    assert_eq!(bench.dropped(DropReason::Overload), 0);
    assert!(connected > 10_000, "{connected}");
}

/// The first of two cores, and a function that says which of them a client is.
fn first_of_two() -> (Bench, impl Fn(&Segment) -> usize) {
    let mut plan = SteeringPlan::software(2, 0x1234_5678);
    for address in ["10.0.0.9", "fd00::9"] {
        plan.add_service(mapped(address.parse().expect("an address")), 80..=80, false);
    }
    let plan = Arc::new(plan);
    let steering = CoreSteering {
        plan: Arc::clone(&plan),
        core: 0,
        asks_around: false,
    };
    let adjust = |settings: &mut Settings| settings.steering = Some(steering);
    let bench = Bench::make_with(CONFIG, false, adjust, |selector| selector);
    (bench, move |segment: &Segment| plan.owner(&leg(segment)).expect("ours"))
}

/// A client of this core's.
fn client_of(core: usize, owner: &impl Fn(&Segment) -> usize) -> Client {
    let mut clients = (40_000..).map(Client::new);
    clients.find(|client| owner(&client.syn()) == core).expect("a client")
}

/// What came in by a port here is held against the plan, and what was taken over is not, whenever it has its turn.
#[test]
fn what_was_put_off_is_another_cores_as_before() {
    let (mut bench, owner) = first_of_two();
    let own = client_of(0, &owner).me.address.port();
    let (mut own, _server) = crate::harness::spliced(&mut bench, own);
    let stranger = client_of(1, &owner);
    let mut n = overload(&mut bench);
    let mut sent = Sent::default();
    for _ in 0..16 {
        let mut syns: Vec<Segment> = (n..).map(flood_syn).filter(|syn| owner(syn) == 0).take(31).collect();
        n += 100;
        syns.push(stranger.segment(TcpFlags::PSH, b"of the other core"));
        // The ring from the other core has something as well.
        let mut over = batch_of(&mut bench, &[own.segment(TcpFlags::PSH, b"more")]);
        own.seq = own.seq.wrapping_add(4);
        let mut batch = batch_of(&mut bench, &syns);
        bench.now += ROUND;
        bench.proxy.note_round(bench.now, true);
        bench.proxy.take_over(bench.now, &mut over, &mut sent);
        bench.proxy.handle_batch(bench.now, &mut batch, &mut sent);
    }
    bench.proxy.note_round(bench.now, false);
    bench.proxy.poll_timers(bench.now, &mut sent);
    assert!(!sent.0.iter().any(|sent| sent.to == stranger.me), "nobody is reset");
    let taken = sent.0.iter().filter(|sent| sent.payload == b"more").count();
    assert_eq!((sent.1, taken), (16, 16));
    // Nobody else will say that it knows what was handed over to this core.
    let mut sent = Sent::default();
    let mut over = batch_of(&mut bench, &[stranger.segment(TcpFlags::PSH, b"nobody's")]);
    bench.proxy.take_over(bench.now, &mut over, &mut sent);
    assert_eq!((only(sent.0).to, sent.1), (stranger.me, 0));
}

/// SYNs of other cores' cost this one as much, and fill their rings.
#[test]
fn a_core_that_hands_syns_over_drops_those_beyond_its_means() {
    let (mut bench, owner) = first_of_two();
    let (mut n, mut syns_sent, mut handed) = (0, 0, 0);
    let until = bench.now + Duration::from_millis(100);
    while bench.now < until {
        let syns: Vec<Segment> = (n..).map(flood_syn).filter(|syn| owner(syn) == 1).take(BURST).collect();
        n += 2 * BURST as u32;
        syns_sent += BURST;
        handed += round_among(&mut bench, &syns, true).1;
    }
    let dropped = bench.dropped(DropReason::Overload) as usize;
    assert!(dropped > syns_sent / 2, "{dropped} of {syns_sent}");
    assert!(dropped + handed <= syns_sent, "{handed}");
}

/// Cookies that come back are handed over, too, and earn SYNs as where they are opened.
#[test]
fn cookies_that_are_handed_over_earn_syns() {
    let (mut bench, owner) = first_of_two();
    // All cores have the key of cookies.
    let mut other = Bench::new();
    let mut clients = (10_000..).map(Client::new).filter(|client| owner(&client.syn()) == 1);
    let mut n = overload(&mut bench);
    let mut handed = 0;
    for _ in 0..40 {
        let mut batch: Vec<Segment> = (n..).map(flood_syn).filter(|syn| owner(syn) == 1).take(16).collect();
        n += 64;
        for mut client in clients.by_ref().take(16) {
            client.take_syn_ack(&only(other.receive(&client.syn())));
            batch.push(client.segment(TcpFlags::ACK, b""));
        }
        handed += round_among(&mut bench, &batch, true).1;
    }
    assert!(handed > 40 * (16 + 8), "{handed} of {}", 40 * 32);
}

/// A client repeats the ACK with its cookie: that earns what one does.
#[test]
fn a_cookie_that_is_handed_over_again_earns_nothing() {
    let handed_beside = |has_cookie: bool| {
        let (mut bench, owner) = first_of_two();
        let mut client = (10_000..)
            .map(Client::new)
            .find(|client| owner(&client.syn()) == 1)
            .expect("one of its");
        client.take_syn_ack(&only(Bench::new().receive(&client.syn())));
        let ack = client.segment(TcpFlags::ACK, b"");
        let mut n = overload(&mut bench);
        let (mut handed, acks) = (0, if has_cookie { 16 } else { 0 });
        for _ in 0..40 {
            let mut batch: Vec<Segment> = (n..).map(flood_syn).filter(|syn| owner(syn) == 1).take(16).collect();
            n += 64;
            batch.extend(std::iter::repeat_n(ack.clone(), acks));
            handed += round_among(&mut bench, &batch, true).1;
        }
        // Some may be put off to the next round.
        handed.saturating_sub(40 * acks)
    };
    let (with, without) = (handed_beside(true), handed_beside(false));
    assert!(with <= without + 16, "{with} SYNs beside it, {without} without");
}

/// The whole graph, with cables that are never empty: what is full is seen from what its rounds receive.
#[test]
fn the_graph_sees_that_its_queues_do_not_get_empty() {
    let mut bench = GraphBench::new();
    let flood = |bench: &mut GraphBench, per_round: usize, rounds: u32| {
        for n in 0..rounds {
            let mut burst: ArrayVec<HeapBuffer, BURST> = ArrayVec::new();
            for i in 0..per_round as u32 {
                burst.push(flood_syn(n * 32 + i).emit(&mut bench.core.pool));
            }
            bench.core.far[0].transmit(&mut burst);
            bench.now += ROUND;
            let _worked = bench.core.task.run(bench.now);
            let mut sent: ArrayVec<HeapBuffer, BURST> = ArrayVec::new();
            while bench.core.far[0].receive(&mut sent) > 0 {
                sent.clear();
            }
        }
    };
    flood(&mut bench, BURST - 1, 1_000);
    assert_eq!(bench.dropped(DropReason::Overload), 0);
    flood(&mut bench, BURST, 4_000);
    assert!(bench.dropped(DropReason::Overload) > 10_000);
    let now: Instant = bench.now;
    bench.now = now + Duration::from_secs(1);
    let mut client = Client::new(40000);
    client.connect(&mut bench);
    assert_eq!(only(client.send(&mut bench, b"0 hello")).flags, TcpFlags::SYN);
    bench.assert_all_returned("after a flood");
}
