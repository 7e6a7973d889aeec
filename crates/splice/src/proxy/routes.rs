//! The end points of a connection, and the paths to its peers.

use crate::base::output::NextHops;
use crate::base::path::Path;
use crate::base::settings::Settings;
use crate::session::connection::Connection;
use crate::time_wait::TimeWaitEntry;
use e2d2::port::PortId;
use e2d2::wire::MacAddr;
use netfcts::{FourTuple, Side};

/// The end points of a connection, open or resting.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Endpoints {
    client: u128,
    client_port: u16,
    client_mac: MacAddr,
    client_device: PortId,
    listener_address: u16,
    listener_port: u16,
    local_address: u16,
    local_port: u16,
    server: u16,
}

impl From<&Connection> for Endpoints {
    #[inline(always)]
    fn from(connection: &Connection) -> Self {
        Endpoints {
            client: connection.client_address(),
            client_port: connection.client_port,
            client_mac: connection.client_mac,
            client_device: connection.client_device,
            listener_address: connection.listener_address,
            listener_port: connection.listener_port,
            local_address: connection.local_address,
            local_port: connection.local_port,
            server: connection.server,
        }
    }
}

impl From<&TimeWaitEntry> for Endpoints {
    fn from(rested: &TimeWaitEntry) -> Self {
        Endpoints {
            client: rested.client_address(),
            client_port: rested.client_port,
            client_mac: rested.client_mac,
            client_device: rested.client_device,
            listener_address: rested.listener_address,
            listener_port: rested.listener_port,
            local_address: rested.local_address,
            local_port: rested.local_port,
            server: rested.server,
        }
    }
}

impl Endpoints {
    /// The key of one leg in the flow table; `None` for the server leg while there is no server.
    #[inline]
    pub(crate) fn key(&self, settings: &Settings, side: Side) -> Option<FourTuple> {
        Some(match side {
            Side::Client => FourTuple {
                remote: self.client,
                local: settings.addresses.value(self.listener_address),
                remote_port: self.client_port,
                local_port: self.listener_port,
            },
            Side::Server => {
                let server = settings.servers.get(usize::from(self.server))?;
                let (local, local_port) = self.source(settings);
                FourTuple {
                    remote: server.address,
                    local,
                    remote_port: server.port,
                    local_port,
                }
            }
        })
    }
}

impl Endpoints {
    /// Our address and port towards the server.
    #[inline]
    pub(crate) fn source(&self, settings: &Settings) -> (u128, u16) {
        settings
            .addresses
            .source(self.local_address, self.local_port, self.client)
    }
}

/// True if `key` is that of the leg to `side` of a connection: [`Endpoints::key`] without making it.
#[inline]
pub(crate) fn is_leg(settings: &Settings, connection: &Connection, side: Side, key: &FourTuple) -> bool {
    match side {
        Side::Client => {
            connection.client_port == key.remote_port
                && connection.listener_port == key.local_port
                && connection.client_address() == key.remote
                && settings.addresses.value(connection.listener_address) == key.local
        }
        Side::Server => {
            let server = settings.servers.get(usize::from(connection.server));
            let (address, port, client) = (
                connection.local_address,
                connection.local_port,
                connection.client_address(),
            );
            server.is_some_and(|server| server.port == key.remote_port && server.address == key.remote)
                && settings.addresses.source(address, port, client) == (key.local, key.local_port)
        }
    }
}

/// The way to the client of a connection.
pub(crate) fn path_to_client(settings: &Settings, ends: impl Into<Endpoints>) -> Path {
    way_to_client(settings, ends.into())
}

/// [`path_to_client`] on the path of every packet, where it is not put together in memory.
#[inline(always)]
pub(crate) fn way_to_client(settings: &Settings, ends: Endpoints) -> Path {
    let ours = &settings.devices[usize::from(ends.client_device.0)];
    Path {
        source_mac: ours.mac,
        destination_mac: ends.client_mac,
        source: settings.addresses.value(ends.listener_address),
        destination: ends.client,
        source_port: ends.listener_port,
        destination_port: ends.client_port,
        device: ends.client_device,
        mtu: ours.mtu,
        checksums: ours.checksums,
    }
}

/// The way to the server of a connection; `None` while its next hop is not resolved.
pub(crate) fn path_to_server(
    settings: &Settings,
    neighbours: &impl NextHops,
    ends: impl Into<Endpoints>,
) -> Option<Path> {
    way_to_server(settings, neighbours, ends.into())
}

/// [`path_to_server`] on the path of every packet, where it is not put together in memory.
#[inline(always)]
pub(crate) fn way_to_server(settings: &Settings, neighbours: &impl NextHops, ends: Endpoints) -> Option<Path> {
    let server = settings.servers.get(usize::from(ends.server))?;
    let (source, source_port) = ends.source(settings);
    let ours = &settings.devices[usize::from(server.device.0)];
    Some(Path {
        source_mac: ours.mac,
        destination_mac: neighbours.mac(server.next_hop)?,
        source,
        destination: server.address,
        source_port,
        destination_port: server.port,
        device: server.device,
        mtu: ours.mtu,
        checksums: ours.checksums,
    })
}
