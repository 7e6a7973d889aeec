//! Servers that are checked: when, by whom, what counts as an answer, and what all cores make of it.

use crate::harness::{Bench, CONFIG, close, nothing, only, spliced};
use crate::probes::{ABLE, number, syn_ack};
use e2d2::time::Instant;
use e2d2::wire::tcp::TcpFlags;
use netfcts::steering::SteeringPlan;
use proxyengine::config::PoolId;
use splice::CheckEvent;
use splice::server_state::CheckFailure;
use splice::settings::{CoreSteering, Settings, SourceSets};
use splice::standby::Service;
use splice::upstream::Upstream;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use test_case::test_case;
use testkit::Segment;

const POOL: PoolId = PoolId(0);
pub const SECOND: Duration = Duration::from_secs(1);
/// A tick of the wheel is 1.05 ms, and each of a check's two timers may be late by one.
const TICKS: Duration = Duration::from_millis(8);

pub fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// [`CONFIG`], whose IPv4 servers are checked.
pub fn checked(check: &str) -> String {
    CONFIG.replacen("name = \"all\"\n", &format!("name = \"all\"\ncheck = {check}\n"), 1)
}

pub const DEFAULT: &str = "{ kind = \"tcp\" }";

/// What a server does with a SYN.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mood {
    Alive,
    Silent,
    Refusing,
}

/// A core, and servers that answer its checks after a time.
pub struct Farm {
    pub bench: Bench,
    pub moods: [Mood; 6],
    pub far: Duration,
    answers: VecDeque<(Instant, Segment)>,
    /// When each SYN came, and for whom.
    pub syns: Vec<(Instant, usize)>,
}

impl Farm {
    pub fn new(text: &str) -> Self {
        Self::over(Bench::with_config(text))
    }

    fn over(bench: Bench) -> Self {
        Farm {
            bench,
            moods: [Mood::Alive; 6],
            far: millis(1),
            answers: VecDeque::new(),
            syns: Vec::new(),
        }
    }

    pub fn run(&mut self, time: Duration) {
        let end = self.bench.now + time;
        while self.bench.now < end {
            self.step();
        }
    }

    /// A millisecond.
    pub fn step(&mut self) {
        for syn in self.bench.wait(millis(1)) {
            assert_eq!(syn.flags, TcpFlags::SYN);
            let server = number(&syn);
            self.syns.push((self.bench.now, server));
            let answer = match self.moods[server] {
                Mood::Silent => continue,
                Mood::Alive => syn_ack(&syn, ABLE),
                Mood::Refusing => refusal(&syn),
            };
            self.answers.push_back((self.bench.now + self.far, answer));
        }
        while (self.answers.front()).is_some_and(|(at, _)| *at <= self.bench.now) {
            let (_, answer) = self.answers.pop_front().expect("the first");
            let sent = self.bench.receive(&answer);
            if answer.flags.contains(TcpFlags::RST) {
                nothing(sent);
            } else {
                let reset = only(sent);
                assert_eq!(
                    (reset.flags, reset.seq, reset.to),
                    (TcpFlags::RST, answer.ack, answer.from)
                );
            }
        }
    }

    /// How long it takes until server 0 is down, or up.
    pub fn time_until(&mut self, down: bool) -> Duration {
        let start = self.bench.now;
        while self.is_down(0) != down {
            assert!(self.bench.now - start < Duration::from_secs(60), "never");
            self.step();
        }
        self.bench.now - start
    }

    pub fn is_down(&self, server: u16) -> bool {
        self.bench.standby.server(server).down().is_some()
    }

    pub fn syns_to(&self, server: usize) -> Vec<Instant> {
        let to = self.syns.iter().filter(|(_, to)| *to == server);
        to.map(|(at, _)| *at).collect()
    }

    fn counted(&self, event: CheckEvent) -> u64 {
        self.bench.proxy.checks()[event]
    }

    /// Which servers another core picks.
    fn picks_elsewhere(&self) -> Vec<u16> {
        let mut other = Upstream::new(&self.bench.config.upstream_settings(), 1);
        other = other.with_standby(Arc::clone(&self.bench.standby));
        let client: IpAddr = [10, 0, 0, 1].into();
        let mut picks: Vec<u16> = (0..6)
            .filter_map(|_| other.pick(POOL, client, self.bench.now))
            .map(|server| server.0)
            .collect();
        picks.sort_unstable();
        picks.dedup();
        picks
    }

    #[track_caller]
    pub fn assert_all_returned(&mut self) {
        self.answers.clear();
        nothing(self.bench.finish());
        self.bench.assert_all_returned();
    }
}

/// A core whose time begins with it, as an engine's does.
fn from_zero(text: &str) -> Bench {
    let quiet = |settings: &mut Settings| settings.promises.offer.probe = false;
    let start = (text, Arc::default(), Instant::ZERO);
    Bench::build(start, false, 0, quiet, |selector| selector)
}

fn refusal(syn: &Segment) -> Segment {
    Segment {
        ack: syn.seq.wrapping_add(1),
        flags: TcpFlags::RST | TcpFlags::ACK,
        ..Segment::between(syn.to, syn.from)
    }
}

#[test]
fn each_server_is_checked_once_a_second_at_a_time_of_its_own() {
    let mut farm = Farm::new(&checked(DEFAULT));
    farm.run(Duration::from_secs(10));
    for server in 0..3 {
        let syns = farm.syns_to(server);
        assert_eq!(syns.len(), 10, "server {server}");
        for pair in syns.windows(2) {
            let time = pair[1] - pair[0];
            assert!(time >= SECOND && time <= SECOND + millis(3), "{time:?}");
        }
    }
    let first = |server: usize| farm.syns_to(server)[0];
    assert!(first(0) != first(1) && first(1) != first(2));
    assert_eq!(farm.syns.len(), 30, "the others are not checked");
    assert_eq!(
        (farm.counted(CheckEvent::SynSent), farm.counted(CheckEvent::Passed)),
        (30, 30)
    );
    farm.assert_all_returned();
}

/// At time zero no server has answered a call yet.
#[test]
fn the_first_checks_of_an_engine_are_not_saved_and_stay_apart() {
    let mut farm = Farm::over(from_zero(&checked(DEFAULT)));
    farm.run(Duration::from_secs(4));
    assert_eq!(farm.counted(CheckEvent::Saved), 0);
    for turn in 0..4 {
        let mut times = [0, 1, 2].map(|server| farm.syns_to(server)[turn]);
        times.sort_unstable();
        assert!(
            times[1] - times[0] > millis(5) && times[2] - times[1] > millis(5),
            "turn {turn}: {times:?}"
        );
    }
    farm.assert_all_returned();
}

#[test_case(Mood::Silent, 1300, CheckFailure::Unanswered; "silent")]
#[test_case(Mood::Refusing, 1200, CheckFailure::Refused; "refusing")]
fn a_dead_server_is_out_on_every_core_in_time_and_back_after_two_answers(mood: Mood, most: u64, failure: CheckFailure) {
    for phase in 0..20 {
        let mut farm = Farm::new(&checked(DEFAULT));
        farm.run(Duration::from_secs(2) + millis(phase * 50));
        farm.moods[0] = mood;
        let took = farm.time_until(true);
        assert!(
            took >= millis(200) && took <= millis(most) + TICKS,
            "phase {phase}: {took:?}"
        );
        assert_eq!(farm.bench.standby.server(0).down(), Some((failure, farm.bench.now)));
        assert_eq!(farm.picks_elsewhere(), [1, 2]);
        farm.run(Duration::from_secs(5));
        assert!(farm.is_down(0) && !farm.is_down(1));
        farm.moods[0] = Mood::Alive;
        let took = farm.time_until(false);
        assert!(
            took >= millis(100) && took <= millis(1100) + TICKS,
            "phase {phase}: {took:?}"
        );
        assert_eq!(farm.picks_elsewhere(), [0, 1, 2]);
        assert_eq!((farm.counted(CheckEvent::Down), farm.counted(CheckEvent::Up)), (1, 1));
        farm.assert_all_returned();
    }
}

#[test]
fn a_dead_server_is_checked_no_more_often_than_one_that_lives() {
    let mut farm = Farm::new(&checked(DEFAULT));
    farm.moods[0] = Mood::Silent;
    farm.time_until(true);
    let before = farm.syns_to(0).len();
    farm.run(Duration::from_secs(10));
    assert_eq!(farm.syns_to(0).len() - before, 10);
}

#[test]
fn what_is_configured_holds() {
    let check =
        "{ kind = \"tcp\", interval = \"200ms\", fast_interval = \"20ms\", timeout = \"30ms\", rise = 1, fall = 1 }";
    let mut farm = Farm::new(&checked(check));
    farm.run(SECOND);
    assert_eq!(farm.syns_to(0).len(), 5);
    farm.moods[0] = Mood::Silent;
    let took = farm.time_until(true);
    assert!(took >= millis(30) && took <= millis(230) + TICKS, "{took:?}");
    farm.moods[0] = Mood::Alive;
    assert!(farm.time_until(false) <= millis(200) + TICKS);
}

#[test]
fn two_lost_checks_put_nobody_out() {
    let mut farm = Farm::new(&checked(DEFAULT));
    farm.run(Duration::from_secs(2));
    for _ in 0..20 {
        farm.moods[0] = Mood::Silent;
        let lost = farm.counted(CheckEvent::Unanswered) + 2;
        while farm.counted(CheckEvent::Unanswered) < lost {
            farm.step();
        }
        farm.moods[0] = Mood::Alive;
        farm.run(Duration::from_secs(2));
    }
    assert_eq!(farm.counted(CheckEvent::Unanswered), 40);
    assert_eq!(farm.counted(CheckEvent::Down), 0);
}

#[test]
fn a_far_server_has_four_times_as_long_as_usual() {
    let mut farm = Farm::new(&checked(DEFAULT));
    farm.far = millis(80);
    farm.run(Duration::from_secs(4));
    farm.far = millis(250);
    farm.run(Duration::from_secs(2));
    assert_eq!(farm.counted(CheckEvent::Unanswered), 0);
    farm.far = millis(450);
    farm.run(SECOND);
    assert!(farm.counted(CheckEvent::Unanswered) > 0);
}

/// How often a server of which each check is lost with this chance is expected to go down in so many checks: from one
/// check to the next, by how many failures or passes in a row there were.
fn expected_downs(lost: f64, checks: usize) -> f64 {
    // Up after 0, 1 or 2 failures, down after 0 passes or one.
    let mut up = [1.0, 0.0, 0.0];
    let mut down = [0.0, 0.0];
    let mut downs = 0.0;
    for _ in 0..checks {
        let fell = up[2] * lost;
        let rose = down[1] * (1.0 - lost);
        downs += fell;
        let up_passed = (up[0] + up[1] + up[2]) * (1.0 - lost);
        let down_lost = (down[0] + down[1]) * lost;
        (up, down) = (
            [up_passed + rose, up[0] * lost, up[1] * lost],
            [down_lost + fell, down[0] * (1.0 - lost)],
        );
    }
    downs
}

#[test]
fn loss_puts_servers_out_as_often_as_chance_has_it_and_no_more_often() {
    let mut bench = Bench::with_config(&checked(
        "{ kind = \"tcp\", interval = \"20ms\", fast_interval = \"20ms\", timeout = \"10ms\" }",
    ));
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let checks = 100_000;
    while bench.proxy.checks()[CheckEvent::SynSent] < checks {
        for syn in bench.skip(millis(5)) {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            if (random >> 20) % 10 >= 3 {
                only(bench.receive(&syn_ack(&syn, ABLE)));
            }
        }
    }
    let downs = bench.proxy.checks()[CheckEvent::Down] as f64;
    let expected = expected_downs(0.3, checks as usize);
    println!("{downs} downs in {checks} checks, {expected:.0} expected");
    assert!(
        (downs - expected).abs() <= 4.0 * expected.sqrt(),
        "{downs}, expected {expected}"
    );
}

/// A connection to server 0 begins and ends.
fn call(farm: &mut Farm, port: u16) {
    let (mut client, mut server) = spliced(&mut farm.bench, port);
    close(&mut farm.bench, &mut client, &mut server);
}

#[test]
fn live_calls_that_are_answered_save_checks() {
    let mut farm = Farm::new(&checked(DEFAULT));
    farm.run(Duration::from_secs(2));
    let before = farm.syns_to(0).len();
    for port in 0..50 {
        call(&mut farm, 40000 + port);
        farm.run(millis(200));
    }
    assert_eq!(farm.syns_to(0).len(), before, "none in ten seconds");
    assert!(farm.counted(CheckEvent::Saved) >= 9);
    assert_eq!(farm.syns_to(1).len(), 12);
    // From its last answer on it is as with any other.
    call(&mut farm, 41000);
    farm.moods[0] = Mood::Silent;
    let took = farm.time_until(true);
    assert!(took >= SECOND && took <= millis(1300) + TICKS, "{took:?}");
}

/// What listens at one port says nothing about another.
#[test]
fn live_calls_save_no_check_of_another_port() {
    let mut farm = Farm::new(&checked("{ kind = \"tcp\", port = 9000 }"));
    for port in 0..20 {
        call(&mut farm, 40000 + port);
        farm.run(millis(200));
    }
    assert_eq!((farm.syns_to(0).len(), farm.counted(CheckEvent::Saved)), (4, 0));
    // A check may name the port of the server itself.
    let mut farm = Farm::new(&checked("{ kind = \"tcp\", port = 8080 }"));
    for port in 0..20 {
        call(&mut farm, 40000 + port);
        farm.run(millis(200));
    }
    assert!(farm.counted(CheckEvent::Saved) >= 3);
}

#[test]
fn when_all_are_down_they_are_called_all_the_same() {
    let mut farm = Farm::new(&checked(DEFAULT));
    farm.moods = [Mood::Silent; 6];
    farm.run(Duration::from_secs(3));
    assert_eq!(farm.counted(CheckEvent::Down), 3);
    assert_eq!(farm.picks_elsewhere(), [0, 1, 2]);
}

#[test]
fn a_server_that_is_drained_is_checked_all_the_same() {
    let mut farm = Farm::new(&checked(DEFAULT));
    farm.bench.standby.set_server(0, Service::Drained, Instant::ZERO);
    farm.run(Duration::from_secs(3));
    assert_eq!(farm.syns_to(0).len(), 3);
    assert_eq!(farm.picks_elsewhere(), [1, 2]);
    farm.moods[0] = Mood::Refusing;
    farm.time_until(true);
    farm.bench.standby.set_server(0, Service::In, Instant::ZERO);
    assert_eq!(farm.picks_elsewhere(), [1, 2]);
}

#[test]
fn a_server_in_maintenance_is_not_checked_until_it_is_back() {
    let mut farm = Farm::new(&checked(DEFAULT));
    farm.bench.standby.set_server(0, Service::InMaintenance, Instant::ZERO);
    farm.run(Duration::from_secs(3));
    assert_eq!((farm.syns_to(0).len(), farm.syns_to(1).len()), (0, 3));
    farm.bench.standby.set_server(0, Service::In, Instant::ZERO);
    farm.run(Duration::from_secs(3));
    assert_eq!(farm.syns_to(0).len(), 3);
}

#[test]
fn only_what_acknowledges_the_syn_is_an_answer() {
    let mut farm = Farm::new(&checked(DEFAULT));
    farm.moods[0] = Mood::Silent;
    while farm.syns_to(0).is_empty() {
        farm.step();
    }
    // The port and the number of that SYN, from what the next one shows of it.
    let mut syn = None;
    while syn.is_none() {
        syn = farm.bench.wait(millis(1)).into_iter().find(|syn| number(syn) == 0);
    }
    let syn = syn.expect("a SYN");
    let passed = farm.counted(CheckEvent::Passed);
    let blind = |flags, ack: u32| Segment {
        seq: 7,
        ack: syn.seq.wrapping_add(ack),
        flags,
        ..Segment::between(syn.to, syn.from)
    };
    nothing(farm.bench.receive(&blind(TcpFlags::RST | TcpFlags::ACK, 2)));
    nothing(farm.bench.receive(&blind(TcpFlags::RST, 1)));
    nothing(farm.bench.receive(&blind(TcpFlags::SYN, 1)));
    let reset = only(farm.bench.receive(&blind(TcpFlags::SYN | TcpFlags::ACK, 2)));
    assert_eq!((reset.flags, reset.seq), (TcpFlags::RST, syn.seq.wrapping_add(2)));
    assert_eq!(
        (farm.counted(CheckEvent::Passed), farm.counted(CheckEvent::Refused)),
        (passed, 0)
    );
    only(farm.bench.receive(&syn_ack(&syn, ABLE)));
    assert_eq!(farm.counted(CheckEvent::Passed), passed + 1);
    // The same once more is an answer to nothing.
    let sent = farm.bench.receive(&syn_ack(&syn, ABLE));
    assert!(sent.iter().all(|of| of.flags.contains(TcpFlags::RST)), "{sent:?}");
    assert_eq!(farm.counted(CheckEvent::Passed), passed + 1);
}

#[test]
fn a_server_whose_next_hop_nobody_knows_is_down() {
    let mut farm = Farm::new(&checked(DEFAULT));
    farm.bench.hops.0.borrow_mut().push(0);
    let took = farm.time_until(true);
    assert!(took <= millis(1300) + TICKS, "{took:?}");
    assert!(farm.syns_to(0).is_empty());
    farm.bench.hops.0.borrow_mut().clear();
    assert!(farm.time_until(false) <= millis(1100) + TICKS);
    farm.assert_all_returned();
}

#[test]
fn of_two_cores_each_checks_every_other_server() {
    let mut all = Vec::new();
    for core in 0..2 {
        let among = |settings: &mut Settings| {
            let mut plan = SteeringPlan::software(2, 1);
            for local in settings.servers.iter().flat_map(|server| &server.locals) {
                plan.add_address(settings.addresses.value(local.address));
            }
            let steering = CoreSteering {
                plan: Arc::new(plan),
                core,
                asks_around: false,
            };
            *settings = settings.clone().among_others(steering, &mut SourceSets::default());
        };
        let mut farm = Farm::over(Bench::make_with(&checked(DEFAULT), false, among, |selector| selector));
        farm.run(Duration::from_secs(3));
        assert_eq!(farm.counted(CheckEvent::Passed), farm.counted(CheckEvent::SynSent));
        let mut servers: Vec<usize> = farm.syns.iter().map(|(_, server)| *server).collect();
        servers.sort_unstable();
        servers.dedup();
        all.push(servers);
    }
    assert_eq!(all, [vec![0, 2], vec![1]]);
}

#[test]
fn where_no_port_is_left_nothing_is_said_about_the_server() {
    let text = checked(DEFAULT).replacen("name = \"all\"\n", "name = \"all\"\nlocal_ports = \"5000-5001\"\n", 1);
    let mut farm = Farm::new(&text);
    spliced(&mut farm.bench, 40000);
    spliced(&mut farm.bench, 40001);
    farm.run(Duration::from_secs(4));
    assert!(farm.counted(CheckEvent::NoPort) > 20);
    assert!(farm.syns_to(0).is_empty());
    assert!(!farm.is_down(0));
}
