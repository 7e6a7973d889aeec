//! One row of the result for each attack: honest load without it, with it, and after it.

use std::collections::BTreeMap;
use std::time::Duration;

use benchkit::{DeviceUnderTest, median};
use e2d2::buffer::BufferPool;
use e2d2::native::Mbuf;
use trafficengine::Pace;
use trafficengine::attack::Kind;

use super::closed;
use super::result::{AttackResult, AttackRow, Bar, PerSyn, RECOVERY};
use crate::siege::{Field, Work};

/// Honest connections at once when the maximum is looked for: more than any queue of bursts holds.
const SATURATING: u32 = 512;

/// Length of a measurement of the honest maximum, after as long that is not measured.
const MAXIMUM: Duration = Duration::from_millis(100);

/// Packets of an attack by itself, for its cycles.
const ALONE: u64 = 50_000;

/// Honest load before an attack: until it is steady, then measured.
const BEFORE: Duration = Duration::from_millis(200);

/// From the beginning of an attack until honest load is measured: ten times what the engine takes to notice it.
const ONSET: Duration = Duration::from_millis(50);

/// The same of a flood of SYNs: so long that who has lost a SYN has sent it twice more (RFC 6298 2.1 and 5.5: after one
/// second and after two), and as many as that complete in the window as were begun before it.
const SYN_ONSET: Duration = Duration::from_millis(3_300);

/// In which the attackers of a mass expiry connect, less than they may wait for.
const CONNECTED_IN: Duration = Duration::from_millis(300);

/// How long the machine stands still then: longer than that.
const STOOD_STILL: Duration = Duration::from_millis(2_500);

/// Recovery is looked for in steps of this.
const STEP: Duration = Duration::from_millis(50);

/// Recovered is who completes this part of what it completed before the attack.
const RECOVERED: f64 = 0.95;

/// How long to look for recovery.
const LOOK_FOR_RECOVERY: Duration = Duration::from_secs(3);

/// How long everything that an attack has left may take to end by itself: the longest time-outs are 31 s.
const PATIENCE: Duration = Duration::from_secs(90);

/// Honest connections per second where there is little of something.
const MODEST: f64 = 20_000.0;

/// How fast an attack comes.
#[derive(Clone, Copy)]
enum Rate {
    /// This part of what the core could do of it if it did nothing else, but not more packets than of SYNs. A quarter makes
    /// three quarters with the honest load, which a core must be able to do.
    Flood(f64),
    /// This part of the core's capacity for SYNs.
    OfSynCapacity(f64),
    /// Connections per second.
    Connections(f64),
}

/// An attack.
#[derive(Clone, Copy)]
pub(crate) struct Row {
    name: &'static str,
    kind: Kind,
    rate: Rate,
    on_victims: bool,
    peers: u32,
    bar: Bar,
    /// Whether each honest connection comes from an address that has never been here.
    newcomers: bool,
    /// Buffers that are left to the proxy, if they are what is attacked.
    buffers: Option<usize>,
    /// Whether all that the attackers have connected is over in the same moment.
    expires: bool,
    /// One turn is enough.
    once: bool,
}

impl Row {
    const fn flood(name: &'static str, kind: Kind, on_victims: bool) -> Row {
        Row {
            name,
            kind,
            rate: Rate::Flood(0.25),
            on_victims,
            peers: 0,
            bar: Bar::Honest,
            newcomers: false,
            buffers: None,
            expires: false,
            once: false,
        }
    }

    /// A flood of which the core could do no more, or no more than twice as much, and that besides the honest load.
    const fn hard(name: &'static str, part: f64, kind: Kind, on_victims: bool) -> Row {
        Row {
            rate: Rate::Flood(part),
            bar: Bar::Recovery,
            once: true,
            ..Row::flood(name, kind, on_victims)
        }
    }

    const fn syn(name: &'static str, part: f64, bar: Bar) -> Row {
        Row {
            rate: Rate::OfSynCapacity(part),
            bar,
            ..Row::flood(name, Kind::Syn, false)
        }
    }

    const fn syn_and_newcomers(name: &'static str, part: f64) -> Row {
        Row {
            newcomers: true,
            ..Row::syn(name, part, Bar::Recovery)
        }
    }

    /// Connections that say nothing and are all over at once: the machine has stood still for longer than they may wait.
    const MASS_EXPIRY: Row = Row {
        expires: true,
        ..Row::peers("mass expiry", Kind::Silent, 400_000.0, 100_000, Bar::Honest)
    };

    const fn peers(name: &'static str, kind: Kind, rate: f64, peers: u32, bar: Bar) -> Row {
        Row {
            rate: Rate::Connections(rate),
            peers,
            bar,
            ..Row::flood(name, kind, false)
        }
    }

    /// More connections than there are places.
    pub(crate) const TABLE_FULL: Row = Row::peers("table full", Kind::Holder, 100_000.0, 20_000, Bar::Recovery);
    /// More than there are ports: 2048 of two addresses towards four servers.
    pub(crate) const PORTS: Row = Row::peers("ports exhausted", Kind::Holder, 100_000.0, 30_000, Bar::Recovery);
    /// Almost no buffers, and those who need them.
    pub(crate) const BUFFERS: Row = Row {
        buffers: Some(32),
        ..Row::peers("buffers exhausted", Kind::Holder, 10_000.0, 10_000, Bar::Recovery)
    };
}

/// A flood at a quarter, a half and all of what the core could do of it.
macro_rules! floods {
    ($name:literal, $kind:expr, $on_victims:expr) => {
        [
            Row::flood($name, $kind, $on_victims),
            Row::hard(concat!($name, " at 50 %"), 0.5, $kind, $on_victims),
            Row::hard(concat!($name, " at 100 %"), 1.0, $kind, $on_victims),
        ]
    };
}

const SYN_FLOODS: [Row; 5] = [
    Row::syn("syn flood at 50 %", 0.5, Bar::Honest),
    Row::syn("syn flood at 100 %", 1.0, Bar::Recovery),
    Row::syn("syn flood at 200 %", 2.0, Bar::Recovery),
    Row::syn_and_newcomers("syn flood at 50 %, new clients", 0.5),
    Row::syn_and_newcomers("syn flood at 100 %, new clients", 1.0),
];

const FLOODS: [[Row; 3]; 13] = [
    floods!("ack flood at nothing", Kind::Ack, false),
    floods!("ack flood at connections", Kind::Ack, true),
    floods!("rst flood at nothing", Kind::Rst, false),
    floods!("rst flood at connections", Kind::Rst, true),
    floods!("fin flood at nothing", Kind::Fin, false),
    floods!("fin flood at connections", Kind::Fin, true),
    floods!("data flood at nothing", Kind::Data, false),
    floods!("data flood at connections", Kind::Data, true),
    floods!("syn flood at connections", Kind::Syn, true),
    floods!("land", Kind::Land, false),
    floods!("christmas tree", Kind::ChristmasTree, false),
    floods!("overlapping fragments", Kind::Fragments, false),
    floods!("spoofed icmp", Kind::Icmp, true),
];

const CONNECTED: [Row; 4] = [
    Row::peers("half-open and silent", Kind::Silent, 100_000.0, 500_000, Bar::Honest),
    Row::peers("slow first payloads", Kind::Slow, 20_000.0, 100_000, Bar::Honest),
    Row::peers("one-byte hoarders", Kind::Hoarder, 50_000.0, 500_000, Bar::Honest),
    Row::MASS_EXPIRY,
];

/// How rows are measured.
pub(crate) struct Rows<'a> {
    /// Of each turn.
    pub(crate) attack: Duration,
    pub(crate) turns: u32,
    pub(crate) only: &'a str,
}

/// Honest connections in some time.
#[derive(Clone, Copy, Default)]
struct Window {
    offered: f64,
    completed: f64,
}

impl Window {
    fn ratio(self) -> f64 {
        self.completed / self.offered.max(1.0)
    }
}

/// One turn of a row.
#[derive(Default)]
struct Turn {
    without: Window,
    during: Window,
    repeated: u64,
    packets: u64,
    not_sent: u64,
    peak: u64,
    recovered_after: Option<f64>,
    wrong: u64,
    leaked_state: u64,
    leaked_buffers: u64,
    came_to_rest: bool,
}

impl Rows<'_> {
    pub(crate) fn wants(&self, name: &str) -> bool {
        name.contains(self.only)
    }

    fn wanted_floods(&self) -> impl Iterator<Item = &'static Row> {
        let all = SYN_FLOODS.iter().chain(FLOODS.as_flattened()).chain(&CONNECTED);
        all.filter(|row| self.wants(row.name))
    }

    /// Whether some attack of [`floods`](Self::floods) is wanted.
    pub(crate) fn wants_floods(&self) -> bool {
        self.wanted_floods().next().is_some()
    }

    /// All attacks on a proxy that has enough of everything. What a core can answer of SYNs says one that answers them all.
    pub(crate) fn floods(&self, (field, unguarded): (&mut Field, &mut Field), result: &mut AttackResult) {
        for row in self.wanted_floods() {
            let honest = 0.5 * honest_maximum(field);
            let cycles = cycles_alone(field, row);
            let hz = field.hz();
            let mut syn_capacity = || hz / cycles_per_syn(unguarded);
            let rate = match row.rate {
                Rate::OfSynCapacity(part) => part * syn_capacity(),
                Rate::Flood(part) => part * (hz / cycles).min(syn_capacity()),
                Rate::Connections(rate) => rate,
            };
            self.measure(field, row, (honest, rate, cycles), result);
        }
    }

    /// An attack on what there is little of.
    pub(crate) fn exhaust(&self, field: &mut Field, row: Row, result: &mut AttackResult) {
        let Rate::Connections(rate) = row.rate else { return };
        self.measure(field, &row, (MODEST, rate, 0.0), result);
        result.count_rounds(field);
    }

    fn measure(
        &self,
        field: &mut Field,
        row: &Row,
        (honest, rate, cycles): (f64, f64, f64),
        result: &mut AttackResult,
    ) {
        let mut drops = BTreeMap::new();
        let (wrong, steady) = (field.wrong_of_others(), field.steady_failed());
        let work = field.work;
        let turns = if row.once { 1 } else { self.turns };
        let turns: Vec<Turn> = (0..turns)
            .map(|_| self.turn(field, row, (honest, rate), &mut drops))
            .collect();
        let middle = |of: &dyn Fn(&Turn) -> f64| median(&turns.iter().map(of).collect::<Vec<_>>());
        let sum = |of: &dyn Fn(&Turn) -> u64| turns.iter().map(of).sum::<u64>();
        let recovered_after = turns
            .iter()
            .map(|turn| turn.recovered_after)
            .collect::<Option<Vec<_>>>();
        let latest = recovered_after.map(|times| times.into_iter().fold(0.0, f64::max));
        let mut row = AttackRow {
            name: row.name,
            kind: row.kind.name(),
            bar: row.bar,
            rate_per_second: rate,
            attack_packets: sum(&|turn| turn.packets),
            attack_packets_not_sent: sum(&|turn| turn.not_sent),
            honest_per_second: honest,
            honest_offered: turns.iter().map(|turn| turn.during.offered).sum(),
            honest_completed: turns.iter().map(|turn| turn.during.completed).sum(),
            honest_retransmitted: sum(&|turn| turn.repeated),
            honest_without: middle(&|turn| turn.without.ratio()),
            honest_during: middle(&|turn| turn.during.ratio()),
            honest_ratio: middle(&|turn| turn.during.ratio() / turn.without.ratio()),
            cycles_per_attack_packet: (cycles > 0.0).then_some(cycles),
            peak_state_bytes: turns.iter().map(|turn| turn.peak).max().unwrap_or(0),
            leaked_bytes: sum(&|turn| turn.leaked_state),
            leaked_buffers: sum(&|turn| turn.leaked_buffers),
            came_to_rest: turns.iter().all(|turn| turn.came_to_rest),
            recovered_after_s: latest,
            recovered: latest.is_some_and(|after| after <= RECOVERY),
            wrong: sum(&|turn| turn.wrong) + field.wrong_of_others() - wrong,
            steady_lost: field.steady_failed() - steady,
            rounds_over_50us: field.work.since(&work).over_50us,
            drops,
            met: false,
            violated: Vec::new(),
        };
        row.judge();
        println!("{row}");
        result.attacks.push(row);
    }

    fn turn(
        &self,
        field: &mut Field,
        row: &Row,
        (honest, rate): (f64, f64),
        drops: &mut BTreeMap<String, u64>,
    ) -> Turn {
        let mut turn = Turn::default();
        let Some(at_rest) = field.come_to_rest(PATIENCE) else {
            return turn;
        };
        match row.newcomers {
            true => field.begin_newcomers(Pace::Open { rate: honest }),
            false => field.begin_honest(Pace::Open { rate: honest }, |_| ()),
        }
        field.run(BEFORE);
        turn.without = window(field, honest, BEFORE, |_| ());
        let usual = field.device.state_in_use();
        let (before, overflowed, lost) = (field.drops(), field.overflowed(), field.lost_by_load());
        let attack = field.attack_settings(row.kind, rate, row.on_victims, row.peers);
        field.begin_attack(attack);
        let taken = row.buffers.map(|left| take_buffers(field, left));
        let mut peak = 0;
        let mut look = |field: &Field| peak = peak.max(field.device.state_in_use());
        let onset = match row.rate {
            Rate::OfSynCapacity(_) => SYN_ONSET,
            _ if row.expires => CONNECTED_IN,
            _ => ONSET,
        };
        window(field, honest, onset, &mut look);
        if row.expires {
            self.expire(field, honest, &mut look);
        }
        let repeated = field.honest_retransmitted();
        turn.during = window(field, honest, self.attack, &mut look);
        turn.repeated = field.honest_retransmitted() - repeated;
        drop(taken);
        turn.peak = peak.saturating_sub(usual);
        let stats = field.attacker().map(|attacker| attacker.stats()).unwrap_or_default();
        (turn.packets, turn.not_sent) = (stats.sent, stats.not_sent);
        field.stop_attack();
        turn.recovered_after = recovery(field, honest, turn.without);
        *drops.entry("queue_overflow".to_owned()).or_default() += field.overflowed() - overflowed;
        *drops.entry("load_overflow".to_owned()).or_default() += field.lost_by_load() - lost;
        turn.wrong = field.wrong_of_honest();
        for ((reason, before), (_, after)) in before.into_iter().zip(field.drops()) {
            if after > before {
                *drops.entry(reason).or_default() += after - before;
            }
        }
        if let Some(left) = field.come_to_rest(PATIENCE) {
            turn.came_to_rest = true;
            turn.leaked_state = left.state.saturating_sub(at_rest.state) + left.memory.saturating_sub(at_rest.memory);
            turn.leaked_buffers = left.buffers.saturating_sub(at_rest.buffers);
        }
        turn
    }
}

impl Rows<'_> {
    /// The attackers have connected, and their time is over in the moment in which the machine goes on. Honest clients begin
    /// then, for those before have waited, too.
    fn expire(&self, field: &mut Field, honest: f64, look: &mut impl FnMut(&Field)) {
        field.hush_attack();
        field.stop_honest();
        field.run(ONSET);
        look(field);
        field.stand_still(STOOD_STILL);
        field.begin_honest(Pace::Open { rate: honest }, |_| ());
    }
}

/// Takes buffers out of the proxy's pool until so many are left.
fn take_buffers(field: &mut Field, left: usize) -> Vec<Mbuf> {
    let pool = &mut field.proxy_pool;
    let count = pool.available().saturating_sub(left);
    (0..count).map_while(|_| pool.take()).collect()
}

/// Runs for `length` and counts; `look` is called every millisecond.
fn window(field: &mut Field, rate: f64, length: Duration, mut look: impl FnMut(&Field)) -> Window {
    let (began, completed) = (field.now, field.completed());
    let end = began + length;
    while field.now < end {
        field.run(Duration::from_millis(1).min(end - field.now));
        look(field);
    }
    Window {
        offered: rate * (field.now - began).as_secs_f64(),
        completed: (field.completed() - completed) as f64,
    }
}

/// Seconds until honest clients complete as many as before, if they do.
fn recovery(field: &mut Field, rate: f64, before: Window) -> Option<f64> {
    let began = field.now;
    while field.now - began < LOOK_FOR_RECOVERY {
        let now = window(field, rate, STEP, |_| ());
        if now.ratio() >= RECOVERED * before.ratio() {
            return Some((field.now - began).as_secs_f64());
        }
    }
    None
}

/// Honest connections per second that the core can do.
pub(crate) fn honest_maximum(field: &mut Field) -> f64 {
    field.begin_honest(closed(SATURATING), |_| ());
    field.run(MAXIMUM);
    let (work, completed) = (field.work, field.completed());
    field.run(MAXIMUM);
    let (work, completed): (Work, _) = (field.work.since(&work), field.completed() - completed);
    field.come_to_rest(PATIENCE);
    field.hz() * completed as f64 / (work.busy_cycles as f64).max(1.0)
}

/// Cycles of a SYN in bursts that leave the queue empty, on a proxy that answers each.
pub(crate) fn cycles_per_syn(field: &mut Field) -> f64 {
    cycles_alone(field, &Row::syn("", 1.0, Bar::Honest))
}

/// Cycles of a packet of an attack by itself.
fn cycles_alone(field: &mut Field, row: &Row) -> f64 {
    let settings = field.attack_settings(row.kind, f64::INFINITY, row.on_victims, row.peers.min(4096));
    field.begin_attack(settings);
    let before = field.work;
    while field.work.received - before.received < ALONE {
        field.turn();
        // The queue is empty now: a round that finds nothing says so.
        field.turn_of_device();
    }
    let work = field.work.since(&before);
    let stats = field.attacker().map(|attacker| attacker.stats()).unwrap_or_default();
    // Of peers, each packet; of a flood, each of its own, with all that servers and clients answer to it.
    let packets = if row.kind.is_blind() { stats.sent } else { work.received };
    field.come_to_rest(PATIENCE);
    work.busy_cycles as f64 / packets.max(1) as f64
}

/// What a flood of SYNs at this rate leaves in the proxy's memory, at its height; none if the proxy does not come to rest
/// before it.
pub(crate) fn state_per_syn(field: &mut Field, rate: f64) -> Option<PerSyn> {
    let before = field.come_to_rest(PATIENCE)?;
    let (resident, memory) = (crate::siege::resident(), field.device.counts().state_bytes);
    let settings = field.attack_settings(Kind::Syn, rate, false, 0);
    field.begin_attack(settings);
    field.run(Duration::from_secs(1));
    let sent = field.attacker().map_or(1, |attacker| attacker.stats().sent).max(1) as f64;
    let counts = field.device.counts();
    let in_use = field.device.state_in_use().saturating_sub(before.state);
    let grown = counts.state_bytes.saturating_sub(memory);
    let per_syn = PerSyn {
        state_per_flood_syn_bytes: (in_use + grown) as f64 / sent,
        resident_per_flood_syn_bytes: crate::siege::resident().saturating_sub(resident) as f64 / sent,
        flood_syns: sent as u64,
    };
    field.come_to_rest(PATIENCE);
    Some(per_syn)
}
