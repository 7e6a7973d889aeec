//! One core: the whole graph on heap memory, between two cables whose far ends the test holds.

use super::CABLE;
use crate::harness::PROXY_MAC;
use arrayvec::ArrayVec;
use e2d2::BURST;
use e2d2::buffer::{BufferPool, HeapBuffer, HeapPool};
use e2d2::fate::{GraphCounters, GraphReader};
use e2d2::operators::{Task, share};
use e2d2::port::{Port, PortId};
use e2d2::ports::LoopbackPort;
use e2d2::time::Instant;
use e2d2::wire::MacAddr;
use netfcts::ring::{RecordReceiver, record_ring};
use proxyengine::callbacks::SelectServer;
use proxyengine::commands::{Commander, command_ring};
use proxyengine::config::{Config, PortConfig};
use proxyengine::kernel::KernelEnd;
use proxyengine::neighbour::{Interface, Neighbour, SharedNeighbours, Station, Topology};
use proxyengine::pipeline::{self, Beside, CoreLinks, Handle};
use splice::settings::{CoreSteering, SourceSets};
use splice::standby::Standby;
use splice::upstream::Upstream;
use splice::{CoreParts, Proxy, Secrets, Usage};
use std::sync::Arc;

/// The graph, and what is around it.
pub struct OneCore<S> {
    pub task: Box<dyn Task>,
    pub handle: Handle<HeapPool, S>,
    /// The far ends of the cables: the clients' and the servers'.
    pub far: [LoopbackPort<HeapBuffer>; 2],
    pub pool: HeapPool,
    pub reader: GraphReader,
    pub records: RecordReceiver,
    /// Who asks the core what it does.
    pub commander: Commander,
    /// What is out of service.
    pub standby: Arc<Standby>,
}

/// What a core does not have by its configuration.
pub struct Own<S> {
    pub selector: S,
    pub secrets: Secrets,
    /// Its place among others, and its rings to them.
    pub among: Option<(CoreSteering, CoreLinks<HeapBuffer>)>,
    pub kernel: Option<KernelEnd>,
}

/// The addresses of our ports.
pub fn macs() -> [MacAddr; 2] {
    PROXY_MAC.map(|mac| MacAddr([2, 0, 0, 0, 0, mac]))
}

/// Static neighbours, as those of the other benches: the numbers of the servers.
fn topology(config: &Config) -> Arc<Topology> {
    let interface = |(port, mac): (&PortConfig, MacAddr)| Interface {
        port: port.id,
        mac,
        addresses: port.addresses.clone(),
        aliases: vec![],
    };
    let interfaces = config.ports().iter().zip(macs()).map(interface).collect();
    let neighbours: Vec<Neighbour> = (config.servers().iter())
        .map(|server| Neighbour {
            port: server.next_hop.port,
            address: server.next_hop.ip,
            mac: Some(MacAddr([2, 0, 0, 0, 0, 0x50 + server.id.0 as u8])),
        })
        .collect();
    Arc::new(Topology::new(interfaces, &neighbours).expect("a topology"))
}

impl<S: SelectServer> OneCore<S> {
    pub fn new(config: &Config, own: Own<S>, now: Instant) -> Self {
        let (steering, links) = own.among.unzip();
        let index = steering.as_ref().map_or(0, |steering| steering.core);
        let topology = topology(config);
        let shared = Arc::new(SharedNeighbours::new(&topology));
        let leads: &[PortId] = if index == 0 { &[PortId(0), PortId(1)] } else { &[] };
        let station = Station::new(Arc::clone(&topology), Arc::clone(&shared), leads, 1, now);
        let mut settings = config.core_settings(index as u8, &macs(), |server| {
            let hop = topology.next_hop_of(server.next_hop.port, server.next_hop.ip);
            hop.expect("a next hop").index()
        });
        if let Some(steering) = steering {
            settings = settings.among_others(steering, &mut SourceSets::default());
        }
        // Nobody here answers unasked.
        settings.promises.offer.probe = false;
        let (pool, standby) = (HeapPool::new(2048, 2048), Arc::<Standby>::default());
        let (sender, records) = record_ring(1024);
        let parts = CoreParts {
            settings,
            pool: pool.clone(),
            selector: own.selector,
            next_hops: shared,
            upstream: Upstream::new(&config.upstream_settings(), index).with_standby(Arc::clone(&standby)),
            records: Some(sender),
            secrets: &own.secrets,
        };
        let proxy = Proxy::new(parts, now);
        let (near0, far0) = LoopbackPort::pair(PortId(0), PortId(100), CABLE);
        let (near1, far1) = LoopbackPort::pair(PortId(1), PortId(101), CABLE);
        let (counters, reader) = GraphCounters::new();
        let [client_mac, server_mac] = macs();
        let ports = vec![share(near0.with_mac(client_mac)), share(near1.with_mac(server_mac))];
        let (commander, commands) = command_ring();
        let beside = Beside {
            links,
            kernel: own.kernel,
            commands: Some(commands),
            checks: None,
        };
        let (task, handle) = pipeline::build_linked(ports, proxy, station, counters, beside, proxyengine::stages::Off);
        OneCore {
            standby,
            commander,
            task: Box::new(task),
            handle,
            far: [far0, far1],
            pool,
            reader,
            records,
        }
    }

    /// Puts a frame on the cable of a port.
    pub fn put(&mut self, port: PortId, buffer: HeapBuffer) {
        let mut burst: ArrayVec<HeapBuffer, BURST> = ArrayVec::new();
        burst.push(buffer);
        self.far[usize::from(port.0)].transmit(&mut burst);
        assert!(burst.is_empty(), "the cable is full");
    }

    /// Runs the graph once and takes what has been sent. Returns whether it found work.
    pub fn run(&mut self, now: Instant, mut take: impl FnMut(HeapBuffer)) -> bool {
        let worked = !self.task.run(now).is_none();
        for far in &mut self.far {
            let mut burst: ArrayVec<HeapBuffer, BURST> = ArrayVec::new();
            while far.receive(&mut burst) > 0 {
                burst.drain(..).for_each(&mut take);
            }
        }
        worked
    }

    /// Everything has ended, and nothing is held.
    #[track_caller]
    pub fn assert_all_returned(&self, case: &str) {
        assert!(self.handle.is_finished(), "{case}");
        assert_eq!(self.handle.look(|proxy| proxy.usage()), Usage::default(), "{case}");
        assert_eq!(self.reader.held(), 0, "{case}");
        assert_eq!(self.pool.available(), self.pool.capacity(), "{case}");
    }
}
