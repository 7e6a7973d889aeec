//! Which numbers connections name: what is past can be forgotten when none of them is its.
//!
//! A look goes through all connections, those that rest last, a part of them in each round: what is past gets no new
//! connection, and one that ends meanwhile goes from the places looked at first to those looked at last.

use super::Proxy;
use crate::base::callbacks::SelectServer;
use crate::base::output::NextHops;
use e2d2::buffer::BufferPool;

/// Places that are looked at in a round: two cache lines each that nobody has asked for, some 5 us.
const PER_ROUND: u32 = 64;

/// What one look has found so far.
pub struct Look {
    listeners: Numbers,
    pools: Numbers,
    servers: Numbers,
    /// The next place: of a connection, or behind all of those of a connection at rest.
    next: u32,
    /// Places of connections that were ever in use when it began: what comes into use later names nothing past.
    open: Option<u32>,
    is_over: bool,
}

/// A set of numbers.
struct Numbers(Box<[u64; 1024]>);

impl Numbers {
    fn note(&mut self, number: u16) {
        self.0[usize::from(number) / 64] |= 1 << (number % 64);
    }

    fn iter(&self) -> impl Iterator<Item = u16> {
        (0..=u16::MAX).filter(|number| self.0[usize::from(*number) / 64] >> (number % 64) & 1 != 0)
    }
}

impl Default for Look {
    fn default() -> Self {
        let none = || Numbers(Box::new([0; 1024]));
        Look {
            listeners: none(),
            pools: none(),
            servers: none(),
            next: 0,
            open: None,
            is_over: false,
        }
    }
}

impl Look {
    /// Whether all connections were looked at.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// The listeners that connections name.
    pub fn listeners(&self) -> impl Iterator<Item = u16> {
        self.listeners.iter()
    }

    /// The pools, likewise.
    pub fn pools(&self) -> impl Iterator<Item = u16> {
        self.pools.iter()
    }

    /// The servers, likewise.
    pub fn servers(&self) -> impl Iterator<Item = u16> {
        self.servers.iter()
    }
}

impl<P: BufferPool, S: SelectServer, N: NextHops> Proxy<P, S, N> {
    /// Goes on with a look: a round's part of it.
    pub fn look_at_names(&self, look: &mut Look) {
        let open = *look.open.get_or_insert(self.connections.touched());
        let resting = self.rooms.time_wait.capacity() as u32;
        for _ in 0..PER_ROUND {
            let place = look.next;
            if place >= open + resting {
                look.is_over = true;
                return;
            }
            look.next += 1;
            let leg = if place < open {
                let Some(connection) = self.connections.get(place) else {
                    continue;
                };
                look.listeners.note(connection.listener);
                let chosen = self.rooms.pool_of(&connection.state);
                let counted = self.rooms.admission.quotas.pool(place);
                for pool in chosen.map(|pool| pool.0).into_iter().chain(counted) {
                    look.pools.note(pool);
                }
                connection.ends.leg
            } else {
                let Some(rested) = self.rooms.time_wait.entry(place - open) else {
                    continue;
                };
                rested.ends.leg
            };
            if let Some(leg) = leg {
                look.servers.note(leg.server.0);
            }
        }
    }
}
