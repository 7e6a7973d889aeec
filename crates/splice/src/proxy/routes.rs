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
            Side::Client => {
                let listener = (settings.addresses.value(self.listener_address), self.listener_port);
                FourTuple::new((self.client, self.client_port), listener)
            }
            Side::Server => {
                let server = settings.servers.get(usize::from(self.server))?;
                FourTuple::new((server.address, server.port), self.source(settings))
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

/// The way to the client of a connection: on the path of every packet, where it is not put together in memory.
#[inline(always)]
pub(crate) fn way_to_client(settings: &Settings, ends: Endpoints) -> Path {
    let listener = (settings.addresses.value(ends.listener_address), ends.listener_port);
    let key = FourTuple::new((ends.client, ends.client_port), listener);
    settings.path(&key, ends.client_mac, ends.client_device)
}

/// The way to its server, likewise; `None` while the next hop is not resolved.
#[inline(always)]
pub(crate) fn way_to_server(settings: &Settings, neighbours: &impl NextHops, ends: Endpoints) -> Option<Path> {
    let server = settings.servers.get(usize::from(ends.server))?;
    let key = FourTuple::new((server.address, server.port), ends.source(settings));
    Some(settings.path(&key, neighbours.mac(server.next_hop)?, server.device))
}
