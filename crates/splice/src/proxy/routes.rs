//! The paths to the peers of a connection.

use crate::base::output::NextHops;
use crate::base::path::Path;
use crate::base::settings::Settings;
use crate::base::transparent_sources::TransparentSources;
use crate::session::endpoints::Endpoints;
use netfcts::FourTuple;

/// The way to the client of a connection: on the path of every packet, where it is not put together in memory.
#[inline(always)]
pub(crate) fn way_to_client(settings: &Settings, ends: &Endpoints) -> Path {
    let listener = (settings.addresses.value(ends.listener_address), ends.listener_port);
    let key = FourTuple::new((ends.client_address(), ends.client_port), listener);
    settings.path(&key, ends.client_mac, ends.client_device)
}

/// The way to its server, likewise; `None` while the next hop is not resolved.
#[inline(always)]
pub(crate) fn way_to_server(
    settings: &Settings,
    transparent_sources: &TransparentSources,
    neighbours: &impl NextHops,
    ends: &Endpoints,
) -> Option<Path> {
    let server = ends.server(settings)?;
    let key = FourTuple::new(
        (server.address, server.port),
        ends.source(settings, transparent_sources)?,
    );
    Some(settings.path(&key, neighbours.mac(server.next_hop)?, server.device))
}
