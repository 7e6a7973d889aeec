//! A core by itself, whose client and network are the bench.

use std::error::Error;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant as Time};

use crate::FLOOD;
use crate::alone::{self, Hops, PROXY_MAC, Sent};
use arrayvec::ArrayVec;
use e2d2::BURST;
use e2d2::buffer::{HeapBuffer, HeapPool, PacketBuffer};
use e2d2::port::PortId;
use e2d2::time::{Clock, Instant};
use e2d2::wire::MacAddr;
use e2d2::wire::frame::{self, Packet};
use e2d2::wire::tcp::{TcpFlags, TcpOptions};
use proxyengine::callbacks::SelectorFactory;
use proxyengine::config::{Config, CoreId};
use proxyengine::selectors::RuleSelector;
use splice::difference::Difference;
use splice::{Change, Proxy, Usage};
use testkit::{Segment, Station};

/// Two listeners, and the rule that asks who the client is, if there is a list.
pub(crate) fn config(list: Option<&Path>) -> Result<Config, Box<dyn Error>> {
    match list {
        Some(file) => config_with(
            "{ client = [\"seen:block\"], action = \"drop\" }, ",
            &format!("[[list]]\nname = \"seen\"\nfile = \"{}\"\n", file.display()),
        ),
        None => config_with("", ""),
    }
}

/// The same with this rule and this list.
fn config_with(rule: &str, list: &str) -> Result<Config, Box<dyn Error>> {
    let listener = |name: &str, address: &str| {
        format!(
            "[[listener]]\nname = \"{name}\"\naddresses = [\"{address}:80\"]\n\
             rules = [{rule}{{ prefix = \"GET\", pool = \"s\" }}]\n"
        )
    };
    let text = format!(
        "[engine]\ncores = [0]\nmax_connections = 1024\n\
         [[port]]\nname = \"p\"\ndevice = \"net_null0\"\naddresses = [\"10.0.0.9/8\", \"fd00::9/64\"]\n\
         {}{}{list}[[pool]]\nname = \"s\"\nservers = [{{ name = \"one\", address = \"10.0.0.21:80\" }}]\n",
        listener("four", "10.0.0.9"),
        listener("six", "[fd00::9]"),
    );
    Ok(Config::parse(&text, "bench guard")?)
}

pub(crate) struct Core {
    config: Config,
    proxy: Proxy<HeapPool, RuleSelector, Hops>,
    pool: HeapPool,
    sent: Sent<HeapBuffer>,
    now: Instant,
}

impl Core {
    pub(crate) fn new(list: Option<&Path>) -> Result<Core, Box<dyn Error>> {
        Ok(Core::of(config(list)?))
    }

    fn of(config: Config) -> Core {
        let mut settings = alone::settings(&config);
        settings.promises.offer.probe = false;
        let now = Instant::ZERO + Duration::from_secs(100);
        let pool = HeapPool::new(2 * FLOOD, 256);
        Core {
            proxy: alone::proxy(&config, settings, (&pool, Hops(None)), now),
            config,
            pool,
            sent: Sent(Vec::with_capacity(BURST)),
            now,
        }
    }

    pub(crate) fn table_bytes(&self) -> usize {
        self.config.client_table().map_or(0, |table| table.memory())
    }

    /// A flood of SYNs from these clients, [`BURST`] at a time. Appends to `cycles` those in which the core answers each batch but
    /// the first ones, which bring its memory into the caches.
    ///
    /// # Errors
    /// It has not answered each of them.
    pub(crate) fn flood(
        &mut self,
        peers: &[IpAddr],
        clock: &Clock,
        cycles: &mut Vec<u64>,
    ) -> Result<(), Box<dyn Error>> {
        let batches: Result<Vec<_>, _> = peers.chunks(BURST).map(|peers| self.syns(peers)).collect();
        let mut batches = batches?;
        let first = batches.len() / 8;
        for (number, batch) in batches.iter_mut().enumerate() {
            let asked = batch.len();
            let start = clock.tsc();
            self.proxy.handle_batch(self.now, batch, &mut self.sent);
            let took = clock.tsc() - start;
            let answered = self.sent.0.len();
            self.sent.0.clear();
            if answered != asked {
                return Err(format!("{answered} of {asked} SYNs were answered").into());
            }
            if number >= first {
                cycles.push(took);
            }
        }
        Ok(())
    }

    fn syns(&mut self, peers: &[IpAddr]) -> Result<ArrayVec<Packet<HeapBuffer>, BURST>, Box<dyn Error>> {
        let mut batch = ArrayVec::new();
        for (place, peer) in peers.iter().enumerate() {
            let to = if peer.is_ipv4() { "10.0.0.9:80" } else { "[fd00::9]:80" };
            let from = SocketAddr::new(*peer, 1024 + place as u16);
            let syn = Segment {
                seq: place as u32,
                flags: TcpFlags::SYN,
                options: TcpOptions {
                    mss: Some(1460),
                    window_scale: Some(7),
                    sack_permitted: true,
                    timestamps: Some((1, 0)),
                },
                ..Segment::between(Station::new(1, &from.to_string()), Station::new(PROXY_MAC.0[5], to))
            };
            let buffer = syn.emit(&mut self.pool);
            let kind = frame::parse(buffer.data()).map_err(|_| "the bench's own frame")?;
            let port = PortId(0);
            batch.push(Packet { buffer, port, kind });
        }
        Ok(batch)
    }

    /// What the core is to go on with.
    fn change(&self) -> Change<RuleSelector> {
        let before = self.proxy.settings();
        let macs: Vec<MacAddr> = before.devices.iter().map(|device| device.mac).collect();
        let mut settings = self.config.core_settings(0, &macs, |_| 0);
        settings.promises.offer.probe = false;
        Change::new(
            settings,
            (&*before, &*self.proxy.tally()),
            (&self.config.upstream_settings(), 0),
            Some(RuleSelector::new(&self.config).selector(CoreId(0))),
            Difference::default(),
        )
    }

    /// Bytes of all that the core holds, and the connections and SYNs that it knows.
    fn held(&self) -> (usize, Usage) {
        (self.proxy.memory() + self.proxy.memory_in_use(), self.proxy.usage())
    }
}

/// Milliseconds from a table of this list to the last of so many cores that uses it, one after the other. Waits for cores to come
/// round are not in it.
///
/// # Errors
/// There is no table.
pub(crate) fn swap(list: &Path, cores: usize) -> Result<f64, Box<dyn Error>> {
    let mut cores: Vec<Core> = (0..cores).map(|_| Core::new(Some(list))).collect::<Result<_, _>>()?;
    let start = Time::now();
    // All are made before the first core has its own, as the engine does.
    let mut changes: Vec<_> = cores.iter().map(Core::change).collect();
    for (core, change) in cores.iter_mut().zip(&mut changes) {
        core.proxy.adopt(change, core.now);
    }
    Ok(start.elapsed().as_secs_f64() * 1e3)
}

/// Bytes that a core holds more for each of so many clients that it tarpits: after their SYNs, ACKs and first bytes.
///
/// # Errors
/// It knows a connection or a SYN of them, or has answered too few.
pub(crate) fn tarpit(clients: u32) -> Result<f64, Box<dyn Error>> {
    let mut core = Core::of(config_with("{ client = [\"0.0.0.0/0\"], action = \"tarpit\" }, ", "")?);
    let before = core.held();
    let mut answered = 0;
    for flags in [TcpFlags::SYN, TcpFlags::ACK, TcpFlags::ACK | TcpFlags::PSH] {
        for number in 0..clients {
            let from = SocketAddr::new(Ipv4Addr::from(0x0b00_0000 + number).into(), 1024);
            let to = Station::new(PROXY_MAC.0[5], "10.0.0.9:80");
            // Our number is the client's own.
            let next = if flags == TcpFlags::SYN { number } else { number + 1 };
            let segment = Segment {
                seq: next,
                ack: next,
                flags,
                payload: if flags.contains(TcpFlags::PSH) {
                    b"GET".to_vec()
                } else {
                    Vec::new()
                },
                ..Segment::between(Station::new(1, &from.to_string()), to)
            };
            let buffer = segment.emit(&mut core.pool);
            let kind = frame::parse(buffer.data()).map_err(|_| "the bench's own frame")?;
            let port = PortId(0);
            let mut batch = ArrayVec::new();
            batch.push(Packet { buffer, port, kind });
            // So slowly that the budget of answers is enough for all.
            core.now += Duration::from_millis(2);
            core.proxy.handle_batch(core.now, &mut batch, &mut core.sent);
            answered += core.sent.0.drain(..).count();
        }
    }
    let after = core.held();
    if after.1 != before.1 {
        return Err(format!("{:?} in use, {:?} before", after.1, before.1).into());
    }
    if answered != 3 * clients as usize {
        return Err(format!("{answered} of {} segments were answered", 3 * clients).into());
    }
    Ok((after.0 as f64 - before.0 as f64) / f64::from(clients))
}
