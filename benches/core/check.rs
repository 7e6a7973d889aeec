//! A core that checks servers by SYN, whose servers and network are the bench. Its packets live in mbufs, as the engine's do.

use std::error::Error;
use std::fmt::Write as _;
use std::time::Duration;

use crate::alone::{self, Hops, Sent};
use arrayvec::ArrayVec;
use e2d2::BURST;
use e2d2::buffer::{BufferPool, PacketBuffer};
use e2d2::native::{Eal, EalConfig, Mbuf, MbufPool, PoolDemand, data_room};
use e2d2::port::PortId;
use e2d2::time::{Clock, Instant};
use e2d2::wire::MacAddr;
use e2d2::wire::frame::{self, Packet};
use e2d2::wire::tcp::{TcpFlags, TcpOptions};
use proxyengine::config::Config;
use proxyengine::selectors::RuleSelector;
use splice::{CheckEvent, Proxy};
use testkit::{Segment, Station};

const SERVERS: u16 = 1_000;

/// Ten checks a second of each server, and one in each round.
const ROUND: Duration = Duration::from_micros(100);

/// A turn is so many rounds, some hundred microseconds of the machine.
const ROUNDS: u32 = 100;

const TURNS: usize = 5_000;

const SERVER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 0x50]);

/// The proxy of a core, and what it has sent.
struct Core {
    proxy: Proxy<MbufPool, RuleSelector, Hops>,
    pool: MbufPool,
    sent: Sent<Mbuf>,
    cycles: u64,
}

fn config(check: &str) -> Result<Config, Box<dyn Error>> {
    let mut servers = String::new();
    for n in 0..SERVERS {
        writeln!(
            servers,
            "{{ name = \"s{n}\", address = \"10.2.{}.{}:80\" }},",
            n / 250,
            n % 250 + 1
        )?;
    }
    let text = format!(
        "[engine]\ncores = [0]\nmax_connections = 1024\n[syn_ack]\nprobe = false\n\
         [[port]]\nname = \"p\"\ndevice = \"net_null0\"\naddresses = [\"10.0.0.9/8\"]\n\
         [[listener]]\nname = \"l\"\naddresses = [\"10.0.0.9:80\"]\ndefault = \"s\"\n\
         [[pool]]\nname = \"s\"\n{check}\
         servers = [{servers}]\n"
    );
    Ok(Config::parse(&text, "bench choice")?)
}

const CHECK: &str = "check = { kind = \"tcp\", interval = \"100ms\", fast_interval = \"100ms\", timeout = \"50ms\" }\n";

/// Cycles that a check which passes takes of a core: SYN, SYN-ACK and RST. They are what its rounds take more than those of a core
/// that checks nobody; the median of the turns, as other guests of the host slow some.
///
/// # Errors
/// Hardly any has passed.
pub(crate) fn cycles() -> Result<f64, Box<dyn Error>> {
    let mut now = Instant::ZERO + Duration::from_secs(100);
    let eal = Eal::start(&EalConfig {
        memory_mib: 64,
        ..EalConfig::default()
    })?;
    let _thread = eal.register_thread()?;
    let (mut checking, mut other) = (Core::new(&eal, CHECK, now)?, Core::new(&eal, "", now)?);
    let clock = Clock::new();
    let mut of_turns = Vec::with_capacity(TURNS);
    for _ in 0..TURNS {
        let before = checking.so_far();
        let of_other = other.cycles;
        for round in 0..ROUNDS {
            now += ROUND;
            // Which is first alternates, so that what the caches have helps both alike.
            if round % 2 == 0 {
                checking.round(now, &clock)?;
                other.round(now, &clock)?;
            } else {
                other.round(now, &clock)?;
                checking.round(now, &clock)?;
            }
        }
        let (cycles, passed) = checking.so_far();
        let (cycles, passed) = (cycles - before.0, passed - before.1);
        if passed > 0 {
            of_turns.push((cycles as f64 - (other.cycles - of_other) as f64) / passed as f64);
        }
    }
    let (_, passed) = checking.so_far();
    if passed < u64::from(ROUNDS) * TURNS as u64 / 5 * 4 {
        return Err(format!("{passed} checks have passed").into());
    }
    Ok(benchkit::median(&of_turns))
}

impl Core {
    fn new(eal: &Eal, check: &str, now: Instant) -> Result<Core, Box<dyn Error>> {
        let config = config(check)?;
        let name = if check.is_empty() { "other" } else { "checking" };
        let demand = PoolDemand {
            queues: 0,
            held: 2 * BURST as u32,
            threads: 1,
        };
        let pool = MbufPool::new(eal, name, demand.buffers(), data_room(1500), None)?;
        let hops = Hops(Some(SERVER_MAC));
        Ok(Core {
            proxy: alone::proxy(&config, alone::settings(&config), (&pool, hops), now),
            pool,
            sent: Sent(Vec::new()),
            cycles: 0,
        })
    }

    /// Its cycles, and checks that have passed.
    fn so_far(&self) -> (u64, u64) {
        (self.cycles, self.proxy.checks()[CheckEvent::Passed])
    }

    /// A round: what is due, and the answers to what was sent.
    fn round(&mut self, now: Instant, clock: &Clock) -> Result<(), Box<dyn Error>> {
        let start = clock.tsc();
        self.proxy.poll_timers(now, &mut self.sent);
        self.cycles += clock.tsc() - start;
        let mut answers: ArrayVec<Packet<Mbuf>, BURST> = ArrayVec::new();
        for syn in self.sent.0.drain(..) {
            answers
                .try_push(answer(&syn, &mut self.pool)?)
                .map_err(|_| "more checks in a round than a burst")?;
        }
        let start = clock.tsc();
        self.proxy.handle_batch(now, &mut answers, &mut self.sent);
        self.cycles += clock.tsc() - start;
        self.sent.0.clear();
        Ok(())
    }
}

fn answer(syn: &Mbuf, pool: &mut MbufPool) -> Result<Packet<Mbuf>, Box<dyn Error>> {
    let syn = Segment::read(syn.data());
    let answer = Segment {
        seq: 1_000,
        ack: syn.seq.wrapping_add(1),
        flags: TcpFlags::SYN | TcpFlags::ACK,
        window: 0xffff,
        options: TcpOptions {
            mss: Some(1460),
            window_scale: Some(7),
            sack_permitted: true,
            timestamps: syn.options.timestamps.map(|(tsval, _)| (1, tsval)),
        },
        ..Segment::between(Station { ..syn.to }, syn.from)
    };
    let buffer = pool.take_copy(&answer.frame()).ok_or("a buffer")?;
    let kind = frame::parse(buffer.data()).map_err(|_| "the bench's own frame")?;
    Ok(Packet {
        buffer,
        port: PortId(0),
        kind,
    })
}
