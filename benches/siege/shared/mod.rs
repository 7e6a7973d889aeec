//! The engine's core under siege: honest clients, their servers and attackers around it, in the time of its core.
//!
//! One thread plays all of them, so the clock of the system says nothing: it runs while the load is made, and while the
//! machine does other things. The clock here is the proxy's own work. Each of its rounds is measured in cycles, and the
//! time goes on by those, corrected by how fast the machine is just now ([`Yardstick`]); an idle round takes a microsecond.
//! The load is paced against that clock and takes no time. So a flood at half of the core's capacity is that on any
//! machine, fast, slow or busy, and a queue overflows when the core has too much to do and not when somebody else had the
//! CPU.
//!
//! Here are the clock, the connections that stay and the servers; who comes and goes is in `load`, what must be left when
//! they are gone in `in_use`, and `soak` does all of it in turns.

#![allow(dead_code, reason = "a module of several benches, each of which uses a part")]

mod in_use;
mod load;
pub(crate) mod soak;
mod yardstick;

use std::time::Duration;

use benchkit::{CpsSettings, DeviceUnderTest, RoundWork, Street, StreetStats, cps_generator};
use e2d2::native::{Mbuf, MbufPool};
use e2d2::ports::LoopbackPort;
use e2d2::time::{Clock, Instant};
use e2d2::wire::MacAddr;
use nix::sys::resource::{UsageWho, getrusage};
use proxyengine::report::CounterGroups;
use rustix::time::{ClockId, clock_gettime};
use trafficengine::attack::Attacker;
use trafficengine::{AddressRange, ClientSettings, Close, Generator, Pace, TcpSettings};

use crate::device::load::roles;
use crate::device::{BoxError, Conditions, Ends, Host, LoadPort, ProxyDevice};
pub(crate) use in_use::{InUse, resident};
use yardstick::Yardstick;

/// The client of the connections that stay.
const STEADY: &str = "10.1.1.1";

/// Its ports: all of them are connected.
pub(crate) const STEADY_PORTS: std::ops::RangeInclusive<u16> = 2000..=2299;

/// The servers' addresses: as many as there can be.
const SERVERS: &str = "10.2.0.1-10.2.0.254";

/// How often connections that stay are used.
const STEADY_EVERY: Duration = Duration::from_millis(1);

/// Connections of clients and of servers at once: more than a second of them.
const MOST_OPEN: u32 = 400_000;

/// What an idle round takes.
const IDLE_ROUND: Duration = Duration::from_micros(1);

/// How often the machine's speed is looked at.
const MEASURED_EVERY: Duration = Duration::from_micros(200);

/// A round should not take longer: two full ones of 32 connections each take a quarter of it.
const LONGEST_ROUND: Duration = Duration::from_micros(50);

/// Packets that a round moves in half that time at 200 ns each, more than any costs: one that has moved more may be long by
/// its own work.
const MOVED_IN_TIME: u32 = 128;

/// A thread that was away from its CPU for less was not switched out: the system's two clocks do not agree better.
const SWITCHED_OUT: Duration = Duration::from_micros(5);

/// How often the load may answer itself before the proxy has its round.
const LOAD_TURNS: usize = 4;

/// What the proxy's rounds came to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Work {
    /// As charged: corrected by how fast the machine was, interrupted rounds as the others on average.
    pub(crate) busy_cycles: u64,
    /// Of the busy rounds that were not interrupted, as charged and as the counter saw them.
    pub(crate) charged_cycles: f64,
    pub(crate) counted_cycles: f64,
    pub(crate) received: u64,
    pub(crate) rounds: u64,
    /// Rounds that were interrupted, and charged as the others on average.
    pub(crate) disturbed: u64,
    /// Those of them that touched pages for the first time, and those that the machine has stopped without a clock that knows.
    pub(crate) paged: u64,
    pub(crate) stopped: u64,
    /// Rounds of more than 50 µs that nothing excuses: charged in full.
    pub(crate) over_50us: u64,
    /// Of these, those that have moved more packets than take half of that time: they may be long by their own work, and nothing
    /// but a slow machine excuses them.
    pub(crate) full_over_50us: u64,
    /// Cycles of the longest of these.
    pub(crate) longest: u64,
}

impl Work {
    pub(crate) fn since(&self, earlier: &Work) -> Work {
        Work {
            busy_cycles: self.busy_cycles - earlier.busy_cycles,
            charged_cycles: self.charged_cycles - earlier.charged_cycles,
            counted_cycles: self.counted_cycles - earlier.counted_cycles,
            received: self.received - earlier.received,
            rounds: self.rounds - earlier.rounds,
            disturbed: self.disturbed - earlier.disturbed,
            paged: self.paged - earlier.paged,
            stopped: self.stopped - earlier.stopped,
            over_50us: self.over_50us - earlier.over_50us,
            full_over_50us: self.full_over_50us - earlier.full_over_50us,
            longest: self.longest,
        }
    }
}

/// Packets that a queue of the proxy holds, as a NIC's by default.
const DESCRIPTORS: u16 = 1023;

/// A proxy with room for a second of connections at rest.
pub(crate) fn conditions() -> Conditions {
    let settings = CpsSettings {
        open: STEADY_PORTS.len() as u32,
        length: Duration::ZERO,
        time_wait: Duration::from_millis(200),
    };
    Conditions {
        descriptors: DESCRIPTORS,
        ..Conditions::new(settings)
    }
}

/// Times in which a bench can see the end of what an attack has left.
pub(crate) fn impatient(text: String) -> String {
    text.replace("select = \"10m\"", "select = \"2s\"\nhalf_close = \"5s\"")
        .replace("idle = \"1h\"", "idle = \"20s\"")
}

/// The same with limits of all kinds: on the listener, each client, a class, the pool and each server.
pub(crate) fn limited(text: String) -> String {
    let listener = "limit = { connections = 1000000, rate = 1000000 }\n\
                    client_limit = { connections = 20000, rate = 200000, beyond = \"drop\" }\n";
    let class = "[[class]]\nname = \"all\"\nlimit = { connections = 1000000 }\n\n[timeouts]";
    impatient(text)
        .replace("name = \"bench\"\n", &format!("name = \"bench\"\n{listener}"))
        .replace(
            "rules = [\n",
            "rules = [{ client = [\"10.0.0.0/8\"], class = \"all\" },\n",
        )
        .replace("[timeouts]", class)
        .replace("[[pool]]", "[[pool]]\nlimit = { connections = 1000000 }")
        .replace("mac = \"", "max_connections = 100000, mac = \"")
}

/// Opens a proxy with everything around it; requests and responses are so long.
pub(crate) fn open(host: &Host, name: char, seed: u64, messages: (u32, u32)) -> Result<Field, BoxError> {
    open_with(host, name, (seed, messages), impatient)
}

/// The same with another configuration.
pub(crate) fn open_with(
    host: &Host,
    name: char,
    (seed, (request, response)): (u64, (u32, u32)),
    adjust: fn(String) -> String,
) -> Result<Field, BoxError> {
    let conditions = Conditions {
        request,
        response,
        ..conditions()
    };
    let ends = host.open_ends(name, &conditions, adjust)?;
    Field::new(ends, &conditions, seed)
}

/// Hosts and their port.
struct Hosts<H> {
    hosts: H,
    port: LoopbackPort<Mbuf>,
}

/// See the module documentation.
pub(crate) struct Field {
    pub(crate) device: ProxyDevice,
    pub(crate) clients: Street<LoadPort, MbufPool>,
    pub(crate) servers: Street<LoadPort, MbufPool>,
    honest: Option<Hosts<Generator<Mbuf>>>,
    honest_from: Vec<AddressRange>,
    loads_of_newcomers: u32,
    steady: Hosts<Generator<Mbuf>>,
    server: Hosts<Generator<Mbuf>>,
    attacker: Option<Hosts<Attacker<Mbuf>>>,
    /// The servers' machine does nothing: what comes for them waits in front of it, as far as there is room.
    pub(crate) servers_away: bool,
    conditions: Conditions,
    macs: [MacAddr; 2],
    pub(crate) load_pool: MbufPool,
    pub(crate) proxy_pool: MbufPool,
    clock: Clock,
    pub(crate) now: Instant,
    pub(crate) work: Work,
    /// Cycles of a busy round, averaged over some hundred.
    usual: f64,
    yardstick: Yardstick,
    /// Cycles of all rounds as the counter saw them.
    counted: f64,
    measure_at: Instant,
    /// When the connections that stay are used next; `None` while they are used all the time.
    steady_at: Option<Instant>,
    seed: u64,
}

fn range(text: &str) -> AddressRange {
    text.parse().expect("a range of addresses")
}

/// What hosts do: nobody is as patient here as in benches without loss.
fn tcp(mss: u16) -> TcpSettings {
    TcpSettings {
        mss,
        // A SYN is given up after 31 s.
        retries: 4,
        ..TcpSettings::default()
    }
}

impl Field {
    /// Servers, and clients with connections that stay, around an opened proxy; time begins.
    pub(crate) fn new(ends: Ends, conditions: &Conditions, seed: u64) -> Result<Field, BoxError> {
        let Ends {
            device,
            cables,
            macs,
            load_pool,
            proxy_pool,
            clock,
        } = ends;
        let [client_end, server_end] = cables;
        let mut clients = Street::new(client_end, load_pool.clone(), seed);
        let mut servers = Street::new(server_end, load_pool.clone(), seed + 1);
        let now = clock.now();
        let (mut client, mut server) = roles(conditions);
        (client.tcp, server.tcp) = ([tcp(1460), tcp(1440)], [tcp(1460), tcp(1440)]);
        (server.idle, server.max_open) = (Duration::from_secs(20), MOST_OPEN);
        let steady = ClientSettings {
            sources: vec![range(STEADY)],
            ports: STEADY_PORTS,
            rounds: u16::MAX,
            close: Close::Client,
            pace: Pace::Drawn {
                open: STEADY_PORTS.len() as u32,
            },
            depth: 2,
            max_open: STEADY_PORTS.len() as u32,
            // A connection is held for as long as the others take to be drawn.
            idle: Duration::from_secs(600),
            seed: seed + 2,
            ..client
        };
        let server_port = servers.house(&[range(SERVERS)]);
        let steady_port = clients.house(&[range(STEADY)]);
        let mut field = Field {
            device,
            clients,
            servers,
            honest: None,
            honest_from: Vec::new(),
            loads_of_newcomers: 0,
            steady: Hosts {
                hosts: cps_generator(Some(steady), None, macs[0], now),
                port: steady_port,
            },
            server: Hosts {
                hosts: cps_generator(None, Some(server), macs[1], now),
                port: server_port,
            },
            attacker: None,
            servers_away: false,
            conditions: *conditions,
            macs,
            load_pool,
            proxy_pool,
            clock,
            now,
            work: Work::default(),
            usual: 0.0,
            yardstick: Yardstick::new(&clock, LONGEST_ROUND),
            counted: 0.0,
            measure_at: now,
            steady_at: None,
            seed,
        };
        field.settle_down()?;
        field.steady_at = Some(field.now);
        Ok(field)
    }

    /// Waits until every connection that stays has been used.
    fn settle_down(&mut self) -> Result<(), BoxError> {
        let wanted = STEADY_PORTS.len() as u64;
        for _ in 0..40 {
            self.run(Duration::from_millis(50));
            if self.usage("ports") == wanted {
                return Ok(());
            }
        }
        Err(format!(
            "{} connections are open of {wanted} that are to stay",
            self.usage("ports")
        )
        .into())
    }

    /// Cycles per second.
    pub(crate) fn hz(&self) -> f64 {
        self.clock.tsc_hz() as f64
    }

    /// One turn: the load moves everything that it has, the proxy has a round, time goes on by what that took.
    pub(crate) fn turn(&mut self) -> RoundWork {
        if let Some(at) = self.steady_at {
            self.steady.hosts.set_paused(self.now < at);
            if self.now >= at {
                self.steady_at = Some(self.now + STEADY_EVERY);
            }
        }
        for _ in 0..LOAD_TURNS {
            if self.move_load() == 0 {
                break;
            }
        }
        self.round()
    }

    fn move_load(&mut self) -> usize {
        let (now, pool) = (self.now, &mut self.load_pool);
        let mut units = 0;
        if !self.servers_away {
            units += self.server.hosts.poll(now, &mut self.server.port, pool).count() as usize;
        }
        units += self.steady.hosts.poll(now, &mut self.steady.port, pool).count() as usize;
        if let Some(Hosts { hosts, port }) = &mut self.honest {
            units += hosts.poll(now, port, pool).count() as usize;
        }
        if let Some(Hosts { hosts, port }) = &mut self.attacker {
            units += hosts.poll(now, port, pool).count() as usize;
        }
        units + self.clients.carry(now) + self.servers.carry(now)
    }

    /// A round of the proxy without any load moved before it.
    pub(crate) fn turn_of_device(&mut self) -> RoundWork {
        self.round()
    }

    /// A round of the proxy.
    fn round(&mut self) -> RoundWork {
        let (running, touched) = (thread_time(), first_touches());
        let before = self.clock.tsc();
        let work = self.device.round(self.now);
        let counted = self.clock.tsc().saturating_sub(before) as f64;
        let (mut cycles, disturbed) = (counted, self.work.disturbed);
        self.work.rounds += 1;
        self.counted += counted;
        let longest = LONGEST_ROUND.as_secs_f64() * self.hz();
        if cycles > longest {
            let away = cycles / self.hz() - thread_time().saturating_sub(running).as_secs_f64();
            cycles = self.judge_long(cycles, away, first_touches() - touched, work.moved());
        } else {
            cycles = self.yardstick.normal(cycles);
        }
        if self.now >= self.measure_at {
            self.measure_at = self.now + MEASURED_EVERY;
            self.yardstick.measure(&self.clock);
        }
        let took = Duration::from_secs_f64(cycles / self.hz());
        if work.is_busy() {
            self.usual += (cycles - self.usual) / 256.0;
            self.work.busy_cycles += cycles as u64;
            self.work.received += u64::from(work.received);
            if self.work.disturbed == disturbed {
                self.work.charged_cycles += cycles;
                self.work.counted_cycles += counted;
            }
            self.now += took;
        } else {
            self.now += took.max(IDLE_ROUND);
        }
        work
    }

    /// What a round of more than 50 µs is charged with: the usual if the thread was `away` for so many of these seconds that the
    /// rest is no more, if the machine is so slow just now, or if it has moved few packets and the kernel had to find pages for it
    /// or the machine stops so often; and else all that it has worked.
    fn judge_long(&mut self, cycles: f64, away: f64, pages: u64, moved: u32) -> f64 {
        let longest = LONGEST_ROUND.as_secs_f64() * self.hz();
        let is_short = moved <= MOVED_IN_TIME;
        let was_away = away > SWITCHED_OUT.as_secs_f64();
        // Who was switched out for a moment may have worked for long all the same.
        let cycles = if was_away { cycles - away * self.hz() } else { cycles };
        let work = &mut self.work;
        if was_away && cycles <= longest || self.yardstick.excuses(cycles, longest, &self.clock) {
            work.disturbed += 1;
        } else if is_short && pages > 0 {
            work.disturbed += 1;
            work.paged += 1;
        } else if is_short && self.yardstick.explains_more_than(work.stopped, self.counted) {
            work.disturbed += 1;
            work.stopped += 1;
        } else {
            work.over_50us += 1;
            work.full_over_50us += u64::from(!is_short);
            work.longest = work.longest.max(cycles as u64);
            return self.yardstick.normal(cycles);
        }
        self.usual
    }

    /// How often the machine has stopped in the time of all rounds, by the fixed work of the yardstick.
    pub(crate) fn stops_expected(&self) -> f64 {
        self.yardstick.stops_in(self.counted)
    }

    /// The machine stands still for so long, as a virtual one that is moved: nothing runs, and all clocks go on.
    pub(crate) fn stand_still(&mut self, time: Duration) {
        self.now += time;
    }

    /// Goes on for so long.
    pub(crate) fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.turn();
        }
    }

    /// Lets time pass without much happening in it: a millisecond with each turn.
    pub(crate) fn rest(&mut self, time: Duration, mut is_enough: impl FnMut(&Field) -> bool) -> bool {
        let end = self.now + time;
        while self.now < end {
            for _ in 0..8 {
                if !self.turn().is_busy() {
                    break;
                }
            }
            self.now += Duration::from_millis(1);
            if is_enough(self) {
                return true;
            }
        }
        false
    }

    /// What the proxy has in use of something.
    pub(crate) fn usage(&self, what: &str) -> u64 {
        let counters = self.device.counters();
        counters.group("usage").and_then(|group| group.count(what)).unwrap_or(0)
    }

    /// Packets that did not fit into the proxy's queues.
    pub(crate) fn overflowed(&self) -> u64 {
        self.clients.stats().overflowed + self.servers.stats().overflowed
    }

    /// Packets that hosts had no room for, or the way to them no buffer.
    pub(crate) fn lost_by_load(&self) -> u64 {
        let lost = |stats: StreetStats| stats.crowded + stats.without_buffer;
        lost(self.clients.stats()) + lost(self.servers.stats())
    }

    /// Everything that was dropped so far, by group and reason.
    pub(crate) fn drops(&self) -> Vec<(String, u64)> {
        drops(&self.device.counters())
    }
}

/// How long this thread has been running: not while it was switched out.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Pages that this thread has touched for the first time.
fn first_touches() -> u64 {
    getrusage(UsageWho::RUSAGE_THREAD).map_or(0, |usage| usage.minor_page_faults() as u64)
}

/// Dropped packets by group and reason.
fn drops(counters: &CounterGroups) -> Vec<(String, u64)> {
    let groups = ["proxy_drops", "graph_drops", "neighbour_drops", "queue_drops"];
    let Ok(serde_json::Value::Object(all)) = serde_json::to_value(counters) else {
        return Vec::new();
    };
    let mut drops = Vec::new();
    for group in groups {
        let counts = all.get(group).and_then(|group| group.as_object());
        for (reason, count) in counts.into_iter().flatten() {
            drops.push((reason.clone(), count.as_u64().unwrap_or(0)));
        }
    }
    drops
}
