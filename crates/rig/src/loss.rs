//! Lossy links: nftables drops a share of the TCP segments that enter the switch, or those of one kind.
//!
//! At the switch and not at the ends, because Linux notices when its own output hook drops a packet, and a tap sees a
//! packet before the input hook drops it: only in the middle is a loss what it is on a wire.

use std::time::Duration;

use crate::process;
use crate::{Arms, Place, Rig, RigError};

const TOOL_LIMIT: Duration = Duration::from_secs(10);

/// Which way the lost segments were going.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Sent by clients.
    FromClients,
    /// Sent by servers.
    FromServers,
    /// Sent by the engine, to either.
    FromEngine,
}

impl Direction {
    /// Every direction.
    pub const ALL: [Self; 3] = [Self::FromClients, Self::FromServers, Self::FromEngine];

    fn switch_ports(self, arms: Arms) -> &'static [&'static str] {
        match (self, arms) {
            (Self::FromClients, _) => &["clients"],
            (Self::FromServers, _) => &["servers"],
            (Self::FromEngine, Arms::One) => &["engine0"],
            (Self::FromEngine, Arms::Two) => &["engine0", "engine1"],
        }
    }
}

/// Losses in force until dropped.
#[derive(Debug)]
pub struct Loss<'rig> {
    rig: &'rig Rig,
}

impl<'rig> Loss<'rig> {
    /// Loses `per_mille` of all TCP segments going in these directions, at random.
    ///
    /// # Errors
    /// When nftables refuses.
    pub fn start(rig: &'rig Rig, directions: &[Direction], per_mille: u16) -> Result<Self, RigError> {
        Self::of(rig, directions, &format!("numgen random mod 1000 < {per_mille}"))
    }

    /// Loses every TCP segment going in these directions that an expression of nftables matches: `tcp flags syn` or
    /// `tcp dport 443 numgen inc mod 1000 == 1`, which is the second of a thousand.
    ///
    /// # Errors
    /// When nftables refuses.
    pub fn of(rig: &'rig Rig, directions: &[Direction], expression: &str) -> Result<Self, RigError> {
        let mut rules = String::from("table netdev loss {\n");
        for port in directions
            .iter()
            .flat_map(|direction| direction.switch_ports(rig.options().arms))
        {
            rules.push_str(&format!(
                "chain {port} {{ type filter hook ingress device \"{port}\" priority 0; \
                 meta l4proto tcp {expression} counter drop; }}\n"
            ));
        }
        rules.push_str("}\n");
        let mut nft = rig.command(Place::Switch, "nft");
        process::run(nft.args(["-f", "-"]), rules.as_bytes(), TOOL_LIMIT)?;
        Ok(Self { rig })
    }

    /// How many segments have been lost so far.
    ///
    /// # Errors
    /// When nftables cannot be asked.
    pub fn lost(&self) -> Result<u64, RigError> {
        let listing = self
            .rig
            .run(Place::Switch, "nft", &["list", "table", "netdev", "loss"], TOOL_LIMIT)?
            .text();
        Ok(counted_packets(&listing))
    }
}

/// Sums the `counter packets N bytes M` of a listing.
fn counted_packets(listing: &str) -> u64 {
    let counters = listing.split("counter packets ").skip(1);
    counters
        .filter_map(|rest| rest.split_whitespace().next()?.parse::<u64>().ok())
        .sum()
}

impl Drop for Loss<'_> {
    fn drop(&mut self) {
        // The namespace takes what is left with it.
        let _ = self
            .rig
            .run(Place::Switch, "nft", &["delete", "table", "netdev", "loss"], TOOL_LIMIT);
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn counters_are_summed() {
        let listing = "meta l4proto tcp counter packets 12 bytes 800 drop\n … counter packets 30 bytes 1 drop";
        assert_eq!(super::counted_packets(listing), 42);
    }
}
