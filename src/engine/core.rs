//! The program of one core: proxy and station in the graph of [`crate::pipeline`].

use std::fs::File;
use std::io::{self, Read};
use std::rc::Rc;
use std::sync::Arc;

use e2d2::fate::{GraphCounters, GraphReader, Traffic};
use e2d2::operators::{SharedPort, Task, share};
use e2d2::port::Port;
use e2d2::time::Instant;
use netfcts::Side;

use super::CoreStart;
use super::generation::Desk;
use super::machine::Machine;
use super::port::{EnginePort, StagedPort};
use super::sides::{CoreTask, Sides};
use super::worker::{Program, Shown};
use crate::config::Config;
use crate::kernel::{KernelCounterReader, KernelEnd};
use crate::log_ring::{LogEvent, SharedLog};
use crate::neighbour::{NeighbourCounterReader, Station};
use crate::pipeline::{self, Beside, Handle};
use crate::report::{CoreServer, CounterGroups, ReportedServerCaps, TCP_CLIENT, TCP_SERVER, WAITING};
use crate::stages::Stages;
use splice::callbacks::{SelectServer, SelectorFactory};
use splice::settings::SourceSets;
use splice::syn_ack_options::ServerCaps;
use splice::tally::Tally;
use splice::upstream::{ServerHealth, Upstream};
use splice::{CoreParts, Proxy, Secrets};

/// Secret numbers of the engine, from which each core gets its own.
#[derive(Clone)]
pub(super) struct Seeds {
    /// The same for all cores: any of them may get the ACK that a cookie comes back with.
    cookie: [u64; 2],
}

impl Seeds {
    /// Draws them from the kernel.
    pub(super) fn draw() -> io::Result<Self> {
        let bytes: [u8; 16] = random()?;
        Ok(Self { cookie: words(&bytes) })
    }

    fn for_core(&self) -> io::Result<Secrets> {
        let table: [u8; 16] = random()?;
        let timestamp: [u8; 4] = random()?;
        Ok(Secrets {
            cookie: self.cookie,
            table: words(&table),
            isn: random()?,
            timestamp: u32::from_ne_bytes(timestamp),
        })
    }
}

/// Bytes from the kernel.
pub(super) fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn words<const N: usize>(bytes: &[u8]) -> [u64; N] {
    let mut words = [0; N];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *word = u64::from_ne_bytes(*bytes);
    }
    words
}

/// What the worker sees of its core's proxy.
pub(super) struct ProxyProgram<M: Machine, S, C> {
    handle: Handle<M::Pool, S>,
    ports: Vec<SharedPort<StagedPort<M::Port, C>>>,
    stages: C,
    sides: Option<Sides>,
    graph: GraphReader,
    station: NeighbourCounterReader,
    kernel: Vec<KernelCounterReader>,
    log: SharedLog,
    config: Arc<Config>,
    desk: Option<Desk<S>>,
}

/// Builds the program of one core, on its thread.
pub(super) fn build<M, F, C>(
    start: CoreStart<M>,
    seeds: &Seeds,
    selectors: &F,
    desk: Option<Desk<F::Selector>>,
) -> Result<(ProxyProgram<M, F::Selector, C>, impl Task + 'static + use<M, F, C>), String>
where
    M: Machine + 'static,
    F: SelectorFactory,
    C: Stages,
{
    let CoreStart {
        index,
        config,
        parts,
        topology,
        neighbours,
        leads,
        kernel,
        records,
        log,
        others,
        commands,
        checks,
        clock,
        standby,
    } = start;
    let log = log.shared();
    let now = clock.now();
    let secrets = seeds
        .for_core()
        .map_err(|error| format!("no secret numbers from /dev/urandom: {error}"))?;
    let macs: Vec<_> = topology.interfaces().iter().map(|interface| interface.mac).collect();
    // A server whose next hop the topology does not have would never be reached; every server has one.
    let next_hop = |server: &_| {
        topology
            .next_hop_to(server)
            .map_or(usize::MAX, |next_hop| next_hop.index())
    };
    let core = u8::try_from(parts.core.0).unwrap_or(u8::MAX);
    let settings = config.core_settings(core, &macs, next_hop);
    let (mut settings, links) = match others {
        Some(others) => (
            settings.among_others(others.steering, &mut SourceSets::default()),
            Some(others.links),
        ),
        None => (settings, None),
    };

    let (counters, graph) = GraphCounters::new();
    let vlans = config.ports().iter().map(|port| port.vlan);
    let stages = C::new(&clock);
    let wrap = |(port, vlan)| {
        let port = EnginePort::new(port, vlan, Rc::clone(&counters))?;
        Ok::<_, String>(share(StagedPort::new(port, stages.clone())))
    };
    let mut ports = parts.ports;
    let sides = Sides::new(ports.iter_mut().filter_map(M::take_side).collect());
    let ports: Vec<_> = ports.into_iter().zip(vlans).map(wrap).collect::<Result<_, _>>()?;
    let capabilities: Vec<_> = ports.iter().map(|port| port.borrow().capabilities()).collect();
    settings = settings.with_capabilities(&capabilities);

    let seed = secrets.table[0];
    let station =
        Station::new(Arc::clone(&topology), Arc::clone(&neighbours), &leads, seed, now).logging_to(Rc::clone(&log));
    let station_counters = station.counter_reader();
    let selector = selectors.selector(parts.core);
    let core_parts = CoreParts {
        settings,
        pool: parts.pool,
        selector,
        next_hops: neighbours,
        upstream: Upstream::new(&config.upstream_settings(), index).with_standby(standby),
        records: Some(records),
        secrets: &secrets,
    };
    let proxy = Proxy::new(core_parts, now);
    if let Some(desk) = &desk {
        desk.begin(proxy.settings(), proxy.tally());
    }
    let kernel_counters = kernel.as_ref().map(KernelEnd::counter_readers).unwrap_or_default();
    let beside = Beside {
        links,
        kernel,
        commands,
        checks,
    };
    let (graph_task, handle) = pipeline::build_linked(ports.clone(), proxy, station, counters, beside, stages.clone());
    let task = CoreTask {
        sides: sides.clone(),
        graph: graph_task,
        stages: stages.clone(),
    };
    Ok((
        ProxyProgram {
            handle,
            ports,
            sides,
            graph,
            station: station_counters,
            kernel: kernel_counters,
            log,
            config,
            desk,
            stages,
        },
        task,
    ))
}

fn core_server(caps: Option<ServerCaps>, health: Option<ServerHealth>) -> CoreServer {
    let caps = caps.map(server_caps);
    let Some(health) = health else {
        return CoreServer {
            caps,
            ..CoreServer::default()
        };
    };
    CoreServer {
        caps,
        open: health.open.into(),
        calls: health.calls,
        failures: health.failures,
        ejected_by_failure: health.ejected_by_failure,
        ejected_by_silence: health.ejected_by_silence,
        is_out: health.is_out,
        since_ms: health.since.as_millis(),
    }
}

fn server_caps(of: ServerCaps) -> ReportedServerCaps {
    ReportedServerCaps {
        mss: of.mss,
        window_scale: of.window_scale,
        sack: of.sack,
        timestamps: of.timestamps,
        window: of.window,
    }
}

impl<M: Machine, S: SelectServer, C: Stages> Program for ProxyProgram<M, S, C> {
    fn begin_drain(&mut self) {
        self.handle.change(Proxy::begin_drain);
    }

    fn finish(&mut self) {
        self.handle.finish();
    }

    fn is_finished(&self) -> bool {
        self.handle.is_finished()
    }

    fn is_needed(&self) -> bool {
        self.sides.as_ref().is_some_and(Sides::is_needed)
    }

    fn open_connections(&self) -> u64 {
        self.handle.look(|proxy| proxy.usage().connections as u64)
    }

    fn state_bytes(&self) -> Vec<(&'static str, u64)> {
        let parts = self.handle.look(|proxy| proxy.memory_by_structure());
        parts.map(|(name, bytes)| (name, bytes as u64)).to_vec()
    }

    fn state_grown(&self) -> u64 {
        self.handle.look(|proxy| proxy.memory_grown() as u64)
    }

    fn state_in_use(&self) -> u64 {
        self.handle.look(|proxy| proxy.memory_in_use() as u64)
    }

    fn server_count(&self) -> usize {
        self.config.servers().len()
    }

    fn servers(&self, first: usize, known: &mut [CoreServer]) {
        self.handle.look(|proxy| {
            let servers = self.config.servers().get(first..).unwrap_or_default();
            for (server, known) in servers.iter().zip(known) {
                *known = core_server(proxy.server_caps(server.id), proxy.server_health(server.id));
            }
        });
    }

    fn tally(&self) -> Option<Arc<Tally>> {
        Some(self.handle.look(Proxy::tally))
    }

    fn swap_tally(&mut self, other: &mut Arc<Tally>) {
        self.handle.change(|proxy| proxy.swap_tally(other));
    }

    fn follow(&mut self, now: Instant, shown: &mut Shown) -> bool {
        let Some(desk) = &mut self.desk else { return false };
        if !desk.is_busy() {
            return false;
        }
        if let Some(mut update) = desk.follow() {
            self.handle.adopt(&mut update.core, &mut update.station, now);
            std::mem::swap(&mut self.config, &mut update.config);
            shown.renew(&mut update.shown);
            desk.give_back(update);
        }
        if let Some(look) = desk.look() {
            self.handle.look(|proxy| proxy.look_at_names(look));
            if look.is_over() {
                desk.end_look();
            }
        }
        true
    }

    fn tell_news(&mut self, now: Instant) {
        while let Some((server, news)) = self.handle.change(|proxy| proxy.take_caps_change(now)) {
            let server_caps = server_caps(news);
            self.log.borrow_mut().send(LogEvent::Server { server, server_caps });
        }
        if let Some(trouble) = self.handle.change(Proxy::take_steering_trouble) {
            self.log.borrow_mut().send(LogEvent::Steering(trouble));
        }
    }

    fn packets(&self) -> (u64, u64) {
        let traffic = self.graph.traffic.snapshot();
        (traffic[Traffic::Received], traffic[Traffic::Sent])
    }

    fn count(&self, groups: &mut CounterGroups) {
        self.handle.look(|proxy| {
            groups.count(TCP_CLIENT, proxy.log().counters(Side::Client).iter());
            groups.count(TCP_SERVER, proxy.log().counters(Side::Server).iter());
            groups.count_reasons("proxy_drops", proxy.drops());
            groups.count_reasons("probes", proxy.probes());
            groups.count_reasons("checks", proxy.checks());
            groups.count_reasons("calls", proxy.calls());
            if let Some(steering) = proxy.steering() {
                groups.count_reasons("steering", steering);
            }
            groups.count("time_wait", [("evicted", proxy.time_wait_evicted())]);
            let usage = proxy.usage();
            let usage = [
                ("connections", usage.connections),
                ("time_wait", usage.time_wait),
                ("half_open", usage.half_open),
                ("forwarded_syns", usage.forwarded_syns),
                ("flows", usage.flows),
                ("reassembly", usage.held),
                ("held_bytes", usage.held_bytes),
                ("retransmission", usage.rtx_queues),
                ("received_headers", usage.headers),
                ("transparent_sources", usage.transparent_sources),
                ("inspected", usage.inspected),
                ("watched_legs", usage.watched),
                ("inspect_buffers", usage.kept),
                ("timers", usage.timers),
                ("ports", usage.ports),
            ];
            groups.count("usage", usage.map(|(name, count)| (name, count as u64)));
        });
        groups.count_reasons("graph_drops", &self.graph.drops.snapshot());
        let station = self.station.snapshot();
        groups.count_reasons("neighbour_drops", &station.drops);
        for port in &self.ports {
            groups.count("queue_drops", M::queue_drops(port.borrow().inner()));
            if let Some(waiting) = M::waiting(port.borrow().inner()) {
                groups.count(WAITING, [("rx", waiting)]);
            }
        }
        if let Some(waiting) = self.handle.handed_waiting() {
            groups.count(WAITING, [("handover", waiting as u64)]);
        }
        groups.count_reasons("neighbour", &station.events);
        for counted in self.kernel.iter().map(KernelCounterReader::snapshot) {
            groups.count_reasons("kernel", &counted.events);
            groups.count_reasons("kernel_drops", &counted.drops);
        }
        self.stages.count(groups);
        groups.count_reasons("traffic", &self.graph.traffic.snapshot());
    }
}
