//! The proxy on memif ports, and its load on the other ends of them in another process.

use std::path::{Path, PathBuf};
use std::time::Duration;

use benchkit::Arm;
use e2d2::native::{Device, DpdkPort, DpdkQueue, MbufPool, PoolDemand, PortConfig, data_room};
use e2d2::port::PortId;
use e2d2::time::Clock;

use super::configuration::configuration;
use super::floor::{self, FloorDevice};
use super::load::load;
use super::port::{LoadPort, mac_of};
use super::proxy::{ProxyDevice, proxy};
use super::{BoxError, Conditions, DESCRIPTORS, HELD_BY_LOAD, Host};

/// How long the other process may take to start DPDK and connect.
const CONNECTING: Duration = Duration::from_secs(30);

/// log2 of the packets that a memif ring holds.
const RING_SIZE: u8 = 11;

/// Which end of the cable: DPDK's server makes the socket and must be there first.
#[derive(Clone, Copy)]
enum Role {
    Server,
    Client,
}

/// The names of the two cables, which are those of the proxy's ports.
const CABLES: [&str; 2] = ["clients", "servers"];

fn socket(folder: &Path, cable: &str) -> PathBuf {
    folder.join(format!("{cable}.memif"))
}

/// An opened end, whose other end may not be there yet.
struct End {
    opened: DpdkPort,
    queue: DpdkQueue,
}

fn wait_for_link(port: &DpdkPort) -> Result<(), BoxError> {
    match port.wait_for_link(CONNECTING) {
        true => Ok(()),
        false => Err(format!("memif: the other process has not connected within {CONNECTING:?}").into()),
    }
}

impl Host {
    fn memif_end(
        &self,
        folder: &Path,
        (index, role, first): (usize, Role, usize),
        conditions: &Conditions,
        pool: &MbufPool,
    ) -> Result<End, BoxError> {
        let (cable, index_byte) = (CABLES[index], index as u8);
        let (name, id) = match role {
            Role::Server => ("server", PortId(index_byte)),
            Role::Client => ("client", PortId(index_byte + 10)),
        };
        let device: Device = format!(
            "net_memif{},role={name},socket={},socket-abstract=no,rsize={RING_SIZE}",
            first + index,
            socket(folder, cable).display()
        )
        .parse()?;
        let config = PortConfig {
            mtu: conditions.mtu,
            rx_descriptors: DESCRIPTORS,
            tx_descriptors: DESCRIPTORS,
            mac: Some(mac_of(id)),
            ..PortConfig::new(id, device)
        };
        let (opened, queues) = DpdkPort::open(&self.eal, &config, &[pool])?;
        let queue = queues.into_iter().next().ok_or("a port without a queue")?;
        Ok(End { opened, queue })
    }

    fn memif_pool(&self, name: &str, conditions: &Conditions) -> Result<MbufPool, BoxError> {
        let demand = PoolDemand {
            // Two ports with two queues each, and what a memif holds on to until the other side has taken it.
            queues: 8 * u32::from(DESCRIPTORS + 1),
            held: HELD_BY_LOAD,
            threads: 1,
        };
        Ok(MbufPool::new(
            &self.eal,
            name,
            demand.buffers(),
            data_room(conditions.mtu),
            None,
        )?)
    }

    /// Opens the proxy's ends in `folder`, has `start_load` start the process of the load, and waits for it.
    pub(crate) fn open_memif<R>(
        &self,
        folder: &Path,
        conditions: &Conditions,
        start_load: impl FnOnce() -> Result<R, BoxError>,
    ) -> Result<(ProxyDevice, R, Clock), BoxError> {
        let pool = self.memif_pool("proxy", conditions)?;
        let end = |index| self.memif_end(folder, (index, Role::Server, 0), conditions, &pool);
        let (clients, servers) = (end(0)?, end(1)?);
        let text = configuration(conditions, ["net_memif0", "net_memif1"], mac_of(PortId(11)));
        let clock = Clock::new();
        let device = proxy(conditions, &text, [clients.queue, servers.queue], pool, clock, None)?;
        // Not before the proxy has its tables, which takes long enough for a load that waits to send again.
        let load = start_load()?;
        wait_for_link(&clients.opened)?;
        wait_for_link(&servers.opened)?;
        Ok((device, load, clock))
    }

    /// The same with the floor in the proxy's place, beside the proxy.
    pub(crate) fn open_memif_floor<R>(
        &self,
        folder: &Path,
        conditions: &Conditions,
        pause: Duration,
        start_load: impl FnOnce() -> Result<R, BoxError>,
    ) -> Result<(FloorDevice, R, Clock), BoxError> {
        let pool = self.memif_pool("floor", conditions)?;
        let end = |index| self.memif_end(folder, (index, Role::Server, CABLES.len()), conditions, &pool);
        let (clients, servers) = (end(0)?, end(1)?);
        let ports = [clients.queue, servers.queue].map(LoadPort::from);
        let device = FloorDevice::new(ports, conditions, pause);
        let load = start_load()?;
        wait_for_link(&clients.opened)?;
        wait_for_link(&servers.opened)?;
        Ok((device, load, Clock::new()))
    }

    /// Opens the load's ends of the cables of the device in `folder`, the proxy or the floor.
    pub(crate) fn load_memif(
        &self,
        folder: &Path,
        conditions: &Conditions,
        is_floor: bool,
    ) -> Result<(Vec<Arm<LoadPort>>, MbufPool, Clock), BoxError> {
        let pool = self.memif_pool("load", conditions)?;
        let end = |index| self.memif_end(folder, (index, Role::Client, 0), conditions, &pool);
        let (clients, servers) = (end(0)?, end(1)?);
        wait_for_link(&clients.opened)?;
        wait_for_link(&servers.opened)?;
        let clock = Clock::new();
        let [client_end, server_end] = [clients.queue, servers.queue].map(LoadPort::from);
        let arms = if is_floor {
            floor::arms(conditions, [client_end, server_end], clock.now())
        } else {
            let macs = [mac_of(PortId(0)), mac_of(PortId(1))];
            load(conditions, &macs, client_end, server_end, clock.now())
        };
        Ok((arms, pool, clock))
    }
}
