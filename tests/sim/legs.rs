//! What the engine tells of its legs, against what has passed its ports: every frame is looked at, and every byte remembered.

use crate::engine::Engine;
use crate::headers::Headers;
use crate::scenario::{Choice, Close, EndPlan, Families, Fate, Scenario, ServerPlan};
use crate::trouble::{self, Leg};
use crate::world;
use e2d2::time::Instant;
use e2d2::wire::frame::{self, Kind};
use splice::tally::{Count, Distribution, LegTally};
use std::collections::{BTreeMap, HashMap};
use testkit::sim::{Impairment, SynOptions};

/// The two sides of the engine, as the simulation numbers them.
const SIDES: usize = 2;

/// New, retransmitted, out of order, duplicate.
type Counts = [u64; 4];

/// Sums over all legs of a side.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    pub counts: Counts,
    pub rtts: u64,
    pub rtt_sum_us: u64,
}

impl Figures {
    fn add(&mut self, other: &Figures) {
        self.counts
            .iter_mut()
            .zip(other.counts)
            .for_each(|(sum, one)| *sum += one);
        self.rtts += other.rtts;
        self.rtt_sum_us += other.rtt_sum_us;
    }
}

/// All that passes the ports.
#[derive(Default)]
pub struct Truth {
    flows: [HashMap<Leg, Flow>; SIDES],
    over: [Figures; SIDES],
}

/// A leg: what its host has sent, and what is timed that was sent to it.
#[derive(Default)]
struct Flow {
    /// The host's first number.
    first: u32,
    /// Bytes that have come in, from each of these to before the one beside it.
    seen: BTreeMap<i64, i64>,
    end: i64,
    acknowledged: i64,
    /// The next number that the host has not been sent.
    next: Option<u32>,
    /// The end of the segment that is timed.
    timed: Option<(u32, Instant)>,
    /// The end of what was sent behind a gap: nothing is timed before the host has all of it.
    gap: Option<u32>,
    figures: Figures,
}

struct Header {
    seq: u32,
    ack: u32,
    flags: u8,
    len: u32,
}

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;

fn header(bytes: &[u8]) -> Option<Header> {
    let Ok(Kind::Tcp(layout)) = frame::parse(bytes) else {
        return None;
    };
    let tcp = &bytes[usize::from(layout.l4)..];
    let number = |at: usize| Some(u32::from_be_bytes(tcp.get(at..at + 4)?.try_into().ok()?));
    let flags = tcp[13];
    Some(Header {
        seq: number(4)?,
        ack: number(8)?,
        flags,
        len: u32::from(layout.payload_len()) + u32::from(flags & FIN != 0),
    })
}

fn is_before(one: u32, other: u32) -> bool {
    (one.wrapping_sub(other) as i32) < 0
}

impl Truth {
    /// A frame passes a port of the engine.
    pub fn note(&mut self, side: usize, to_engine: bool, bytes: &[u8], now: Instant) {
        let (Some(leg), Some(header)) = (trouble::leg_of(bytes, side == 0, to_engine), header(bytes)) else {
            return;
        };
        let flows = &mut self.flows[side];
        if header.flags & SYN != 0 {
            let (is_new, first) = (flows.get(&leg).map(|flow| flow.first), header.seq.wrapping_add(1));
            if to_engine && is_new != Some(first) {
                let before = flows.insert(
                    leg,
                    Flow {
                        first,
                        ..Flow::default()
                    },
                );
                before.iter().for_each(|flow| self.over[side].add(&flow.figures));
            }
            return;
        }
        let Some(flow) = flows.get_mut(&leg).filter(|_| header.flags & RST == 0) else {
            return;
        };
        if to_engine {
            flow.note_acknowledged(header.ack, now);
            flow.note_received(&header);
        } else {
            let ack = i64::from(header.ack.wrapping_sub(flow.first) as i32);
            flow.acknowledged = flow.acknowledged.max(ack);
            flow.note_sent(&header, now);
        }
    }

    /// The sums over all legs, by side.
    pub fn sums(&self) -> [Figures; SIDES] {
        let mut sums = self.over.clone();
        for (sum, flows) in sums.iter_mut().zip(&self.flows) {
            flows.values().for_each(|flow| sum.add(&flow.figures));
        }
        sums
    }
}

impl Flow {
    fn note_received(&mut self, header: &Header) {
        if header.len == 0 {
            return;
        }
        let start = i64::from(header.seq.wrapping_sub(self.first) as i32);
        let end = start + i64::from(header.len);
        let kind = if start >= self.end {
            0
        } else if end <= self.acknowledged {
            if header.len == 1 && end == self.acknowledged {
                return;
            }
            3
        } else if self.has_unseen(start, end.min(self.end)) {
            2
        } else {
            1
        };
        self.figures.counts[kind] += 1;
        self.end = self.end.max(end);
        self.remember(start, end);
    }

    fn has_unseen(&self, start: i64, end: i64) -> bool {
        let known = self.seen.range(..=start).next_back();
        known.is_none_or(|(_, known_end)| *known_end < end)
    }

    fn remember(&mut self, mut start: i64, mut end: i64) {
        while let Some((&from, &to)) = self.seen.range(..=end).next_back()
            && to >= start
        {
            self.seen.remove(&from);
            (start, end) = (start.min(from), end.max(to));
        }
        self.seen.insert(start, end);
    }

    fn note_sent(&mut self, header: &Header, now: Instant) {
        if header.len == 0 {
            return;
        }
        let end = header.seq.wrapping_add(header.len);
        let next = *self.next.get_or_insert(header.seq);
        if is_before(header.seq, next) {
            if self.timed.is_some_and(|(timed, _)| is_before(header.seq, timed)) {
                self.timed = None;
            }
            self.next = Some(if is_before(next, end) { end } else { next });
            return;
        }
        self.next = Some(end);
        if header.seq != next || self.gap.is_some() {
            self.gap = Some(end);
        } else if self.timed.is_none() {
            self.timed = Some((end, now));
        }
    }

    fn note_acknowledged(&mut self, ack: u32, now: Instant) {
        self.gap = self.gap.filter(|gap| is_before(ack, *gap));
        if let Some((_, at)) = self.timed.take_if(|(end, _)| !is_before(ack, *end)) {
            self.figures.rtts += 1;
            self.figures.rtt_sum_us += (now - at).as_micros() as u64;
        }
    }
}

/// What the engine tells, by side.
pub fn told(engine: &Engine) -> [Figures; SIDES] {
    let tally = engine.tally();
    let mut sums = <[Figures; SIDES]>::default();
    for pool in (0..).map_while(|pool| tally.pool(pool)) {
        for (sum, leg) in sums.iter_mut().zip([&pool.legs.client, &pool.legs.server]) {
            sum.add(&figures(leg));
        }
    }
    sums
}

fn figures(leg: &LegTally) -> Figures {
    let [segments, again, late, twice] =
        [&leg.segments, &leg.retransmitted, &leg.out_of_order, &leg.duplicate].map(Count::get);
    let mut rtt = Distribution::default();
    rtt.add(leg.rtt());
    Figures {
        counts: [segments - again - late - twice, again, late, twice],
        rtts: rtt.count(),
        rtt_sum_us: rtt.sum(),
    }
}

/// Long streams both ways over links of these delays in µs, which lose so many frames of a thousand: from clients, to clients,
/// from servers, to servers.
fn scenario(seed: u64, delays: [u64; 4], losses: [u16; 4]) -> Scenario {
    let mut scenario = Scenario::from_seed(seed, 80);
    (scenario.families, scenario.headers) = (Families::Own, Headers::default());
    (scenario.client_mtu, scenario.server_mtu) = (1500, 1500);
    (scenario.held_chunks, scenario.local_ports, scenario.verify_all) = (None, 1_000, false);
    (scenario.promise.is_learned, scenario.promise.window) = (true, 16_384);
    scenario.clients = [SynOptions::ALL; 2];
    scenario.servers = [ServerPlan {
        options: SynOptions::ALL,
        mtu: 1500,
        fate: Fate::Well,
        receive_buffer: 16_384,
        send_buffer: 16_384,
    }; 3];
    for (link, (delay_us, loss)) in scenario.links_mut().into_iter().zip(delays.into_iter().zip(losses)) {
        *link = Impairment {
            loss,
            delay_us,
            ..Impairment::default()
        };
    }
    let end = EndPlan {
        close: Close::AfterAll,
        speaks_after: 0,
        think_ms: 0,
        chunk: 16_384,
        pause_ms: 0,
    };
    for plan in &mut scenario.connections {
        (plan.v6, plan.server_v6) = (false, false);
        (plan.to_server, plan.to_client) = (100_000, 100_000);
        (plan.choice, plan.needs, plan.client_buffers) = (Choice::Pool, 1, (16_384, 16_384));
        (plan.client, plan.server) = (end, end);
    }
    scenario
}

/// Sums of what has passed, and of what the engine tells of it.
fn sums(seeds: std::ops::Range<u64>, delays: [u64; 4], losses: [u16; 4]) -> [[Figures; SIDES]; 2] {
    let mut sums = <[[Figures; SIDES]; 2]>::default();
    for seed in seeds {
        let (report, of_seed) = world::run_told(&scenario(seed, delays, losses));
        assert!(report.faults.is_empty(), "seed {seed}: {:?}", report.faults);
        for (sum, one) in sums.iter_mut().flatten().zip(of_seed.iter().flatten()) {
            sum.add(one);
        }
    }
    println!("passed {:?}\ntold   {:?}", sums[0], sums[1]);
    sums
}

/// Within so many in a hundred, and three more.
#[track_caller]
fn assert_near(what: &str, told: u64, truth: u64, percent: u64) {
    assert!(
        told.abs_diff(truth) * 100 <= truth * percent + 300,
        "{what}: {told} told, {truth} true"
    );
}

/// What servers send has passed only when packets pass; what clients have sent until then is not in what is told, but as what
/// has passed before.
fn assert_agrees([truth, told]: &[[Figures; SIDES]; 2]) {
    for (side, name) in [(0, "clients"), (1, "servers")] {
        for (kind, (told, truth)) in told[side]
            .counts
            .iter()
            .zip(truth[side].counts)
            .enumerate()
            .skip(1 - side)
        {
            assert_near(
                &format!("{name}, kind {kind}"),
                *told,
                truth,
                if side == 1 { 2 } else { 10 },
            );
        }
        assert!(told[side].rtts >= 1_000 && truth[side].rtts >= 1_000, "{name}");
        let means = [&told[side], &truth[side]].map(|of| of.rtt_sum_us / of.rtts);
        assert_near(&format!("{name}, µs"), means[0], means[1], 10);
    }
}

#[test]
fn what_is_told_of_legs_is_what_has_passed() {
    // One connection after the other on clean links: the round trip is that of the links, and of the host's ACK.
    let delays = [20_000, 30_000, 700, 800];
    let clean = sums(1..3, delays, [0; 4]);
    assert_agrees(&clean);
    let [_, told] = &clean;
    for (figures, delay) in told.iter().zip([50_000, 1_500]) {
        assert_eq!(figures.counts[2..], [0; 2], "nothing was lost");
        let mean = figures.rtt_sum_us / figures.rtts;
        // smoltcp waits 10 ms before it acknowledges less than two segments.
        assert!((delay..=delay + 10_100).contains(&mean), "{mean} µs over {delay}");
    }
    // What clients send again is of their first flight, before there is a server.
    assert_eq!(told[1].counts[1], 0, "nothing was lost");
    // Losses on one way at a time: only what is lost before the engine leaves gaps, and all else is sent again.
    for (lossy, (side, kind)) in [(0, (0, 2)), (1, (1, 1)), (2, (1, 2)), (3, (0, 1))] {
        let mut losses = [0; 4];
        losses[lossy] = 20;
        let of_link = sums(10..13, delays, losses);
        assert_agrees(&of_link);
        let [_, told] = &of_link;
        assert!(told[side].counts[kind] >= 100, "link {lossy}: {told:?}");
        for (of, figures) in told.iter().enumerate() {
            assert_eq!(figures.counts[2] > 0, (of, 2) == (side, kind), "link {lossy}: {told:?}");
        }
    }
}
