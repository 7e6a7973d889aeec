//! For whom a server is chosen: by the client's address, or by what it has said first, if the pool asks for that.

use crate::base::callbacks::SelectServer;
use crate::base::ids::PoolId;
use crate::base::output::NextHops;
use crate::base::settings::Seeker;
use crate::proxy::Rooms;
use crate::session::connection::Connection;
use e2d2::buffer::BufferPool;
use std::net::IpAddr;

impl<P: BufferPool, S: SelectServer, N: NextHops> Rooms<P, S, N> {
    /// A client that has sent these bytes first, as the pool looks at it.
    #[inline]
    pub(super) fn seeker(&self, pool: PoolId, client: IpAddr, bytes: &[u8]) -> Seeker {
        let key = self.upstream.said_key(pool);
        Seeker {
            client,
            said: key.and_then(|key| (self.settings.payload_hash)(key, bytes)),
        }
    }

    /// The same when its server is called already. If the copy of what it has said was given up, its address has to do.
    pub(super) fn seeker_again(&self, slot: u32, connection: &Connection, pool: PoolId) -> Seeker {
        let held = connection.state.client().map(|client| client.held);
        let bytes = held.map_or(&[][..], |held| self.reassembly.in_order(held));
        self.seeker(pool, self.client_of(slot, connection).ip(), bytes)
    }
}
