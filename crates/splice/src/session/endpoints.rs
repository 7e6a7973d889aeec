//! The end points of both legs of a connection, open or in TIME-WAIT.

use crate::base::ids::ServerId;
use crate::base::settings::{Server, Settings};
use crate::base::transparent_sources::{self, TransparentSources};
use e2d2::port::PortId;
use e2d2::wire::MacAddr;
use netfcts::{FourTuple, Side};
use std::num::NonZeroU16;

/// The end points of a connection. Addresses of ours are indices: [`Settings`] holds them.
#[derive(Clone, Copy, Debug)]
pub struct Endpoints {
    /// The client's address, IPv4 in its mapped form; in bytes, or it would be padded.
    pub(crate) client: [u8; 16],
    /// The client's port.
    pub client_port: u16,
    /// The port it connected to.
    pub listener_port: u16,
    /// Index of the address it connected to.
    pub listener_address: u16,
    /// The leg to the server, once one is called.
    pub leg: Option<ServerLeg>,
    /// Where the client's frames come from: replies go back there. It follows segments that were accepted.
    pub client_mac: MacAddr,
    /// The port that the client is on.
    pub client_device: PortId,
}

/// The leg to a server.
#[derive(Clone, Copy, Debug)]
pub struct ServerLeg {
    /// The server.
    pub server: ServerId,
    /// Index of our address, or what [`transparent_sources`](crate::base::transparent_sources) makes of a client's.
    pub local_address: u16,
    /// Our port.
    pub local_port: NonZeroU16,
}

const _: () = assert!(size_of::<Option<ServerLeg>>() == 6, "no leg costs no byte");

impl ServerLeg {
    /// Our address and port in it; `client` is the client's address.
    #[inline]
    pub(crate) fn source(
        self,
        client: u128,
        settings: &Settings,
        transparent_sources: &TransparentSources,
    ) -> (u128, u16) {
        let (index, port) = (self.local_address, self.local_port.get());
        if index < transparent_sources::FIRST {
            (settings.addresses.value(index), port)
        } else if index == transparent_sources::CLIENT {
            (client, port)
        } else {
            transparent_sources.entry(index, port).unwrap_or_default()
        }
    }
}

impl Endpoints {
    /// The client's address, IPv4 in its mapped form.
    #[inline]
    pub fn client_address(&self) -> u128 {
        u128::from_ne_bytes(self.client)
    }

    /// The key of one leg in the flow table; `None` for the server leg while there is no server.
    #[inline]
    pub(crate) fn key(
        &self,
        settings: &Settings,
        transparent_sources: &TransparentSources,
        side: Side,
    ) -> Option<FourTuple> {
        Some(match side {
            Side::Client => {
                let listener = (settings.addresses.value(self.listener_address), self.listener_port);
                FourTuple::new((self.client_address(), self.client_port), listener)
            }
            Side::Server => {
                let server = self.server(settings)?;
                FourTuple::new(
                    (server.address, server.port),
                    self.source(settings, transparent_sources)?,
                )
            }
        })
    }

    /// The server that is called, or was.
    #[inline]
    pub(crate) fn server<'a>(&self, settings: &'a Settings) -> Option<&'a Server> {
        settings.servers.get(usize::from(self.leg?.server.0))
    }

    /// Our address and port towards it.
    #[inline]
    pub(crate) fn source(&self, settings: &Settings, transparent_sources: &TransparentSources) -> Option<(u128, u16)> {
        let leg = self.leg?;
        Some(leg.source(self.client_address(), settings, transparent_sources))
    }

    /// True if `key` is that of the leg to `side`: [`Endpoints::key`] without making it.
    #[inline]
    pub(crate) fn is_leg(
        &self,
        settings: &Settings,
        transparent_sources: &TransparentSources,
        side: Side,
        key: &FourTuple,
    ) -> bool {
        match side {
            Side::Client => {
                self.client_port == key.remote_port
                    && self.listener_port == key.local_port
                    && self.client_address() == key.remote
                    && settings.addresses.value(self.listener_address) == key.local
            }
            Side::Server => {
                let server = self.server(settings);
                server.is_some_and(|server| server.port == key.remote_port && server.address == key.remote)
                    && self.source(settings, transparent_sources) == Some((key.local, key.local_port))
            }
        }
    }
}
