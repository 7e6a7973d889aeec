//! How new settings differ from those that a core has, as far as tables of the core go with them.

/// Servers that there can be at a time, those included that are only left to their connections: the last number is nobody's.
pub const MOST_SERVERS: usize = u16::MAX as usize;

/// Listeners that there can be at a time, likewise.
pub const MOST_LISTENERS: usize = u16::MAX as usize;

/// What has another occupant or another beginning from now on. All else keeps what the core has counted and learned of it.
/// All lists ascend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// Numbers of servers that are new; behind those that there were, they follow each other.
    pub new_servers: Vec<u16>,
    /// Numbers of servers that are nobody's any more.
    pub past_servers: Vec<u16>,
    /// Servers with another `max_connections`.
    pub limits: Vec<u16>,
    /// Servers that were there before with another check, or none, or whose checks use another server's ports.
    pub checks: Vec<u16>,
    /// Numbers of listeners that are new, each with the listener that had its addresses before, if one had.
    pub new_listeners: Vec<(u16, Option<u16>)>,
    /// Numbers of rules that are new.
    pub new_rules: Vec<u32>,
    /// Pools with other members, weights or policies, and new ones.
    pub pools: Vec<u16>,
    /// Of these, those that are new.
    pub new_pools: Vec<u16>,
    /// The group of source ports that those of new servers make.
    pub group: u16,
    /// Groups of which no server is left.
    pub past_groups: Vec<u16>,
}

impl Difference {
    /// All numbers of servers about which the core forgets what it knew.
    pub(crate) fn replaced(&self) -> impl Iterator<Item = u16> {
        self.new_servers.iter().chain(&self.past_servers).copied()
    }
}

/// Puts a value into its place of a table, or behind its end: there is room. What was there is left in `value`.
pub(crate) fn put<T>(table: &mut Vec<T>, place: u16, value: &mut Option<T>) {
    match (table.get_mut(usize::from(place)), value) {
        (Some(old), Some(value)) => std::mem::swap(old, value),
        (None, value) => table.extend(value.take()),
        (Some(_), None) => {}
    }
}
