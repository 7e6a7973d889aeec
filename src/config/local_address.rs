//! From where servers are connected to: our addresses, and the source ports that may be used at each.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// A source address towards a server, with the source ports that may be used.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LocalAddress {
    /// A unicast address.
    pub ip: IpAddr,
    /// Ports of `local_ports` on which no listener of this address listens. Not empty while the file has the server.
    pub ports: PortRanges,
    /// All of `local_ports`.
    pub of_file: PortRanges,
    /// Of these, those on which a listener has begun to listen while the engine runs: connections may be open from them.
    pub withheld: PortRanges,
}

impl LocalAddress {
    /// An address with all of its ports.
    pub fn new(ip: IpAddr, ports: RangeInclusive<u16>) -> Self {
        let ports = PortRanges::new(ports);
        Self {
            ip,
            of_file: ports.clone(),
            ports,
            withheld: PortRanges::default(),
        }
    }

    /// This one for a server that had `before` in the version before: of its ports those on which nobody listens now. What a
    /// listener has given up is for servers that are new from then on.
    #[must_use]
    pub(super) fn after(&self, before: &LocalAddress) -> Self {
        let mut after = before.clone();
        if self.ports != before.ports {
            let mut gone = before.ports.clone();
            self.ports.ranges().iter().for_each(|range| gone.remove(range));
            gone.ranges().iter().for_each(|range| after.withhold(range));
        }
        after
    }

    /// A listener has begun to listen on these ports.
    pub(super) fn withhold(&mut self, range: &RangeInclusive<u16>) {
        if !self.ports.overlaps(range) {
            return;
        }
        let mut left = self.ports.clone();
        left.remove(range);
        let mut gone = self.ports.clone();
        left.ranges().iter().for_each(|range| gone.remove(range));
        gone.ranges().iter().for_each(|range| self.withheld.add(range));
        self.ports = left;
    }

    /// Whether connections may be open, or opened, from ports of this range.
    pub(crate) fn may_have(&self, range: &RangeInclusive<u16>) -> bool {
        self.ports.overlaps(range) || self.withheld.overlaps(range)
    }
}

/// A set of TCP ports as ascending, disjoint ranges. Ten thousand servers share those of their pools.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PortRanges(Arc<[RangeInclusive<u16>]>);

impl PortRanges {
    /// The ports of one range.
    pub fn new(range: RangeInclusive<u16>) -> Self {
        if range.is_empty() {
            return Self::default();
        }
        Self(Arc::from([range]))
    }

    /// Adds the ports of `range`.
    pub fn add(&mut self, range: &RangeInclusive<u16>) {
        self.remove(range);
        if !range.is_empty() {
            let mut all = self.0.to_vec();
            let place = all.partition_point(|ours| ours.start() < range.start());
            all.insert(place, range.clone());
            self.0 = all.into();
        }
    }

    /// Takes out the ports of `range`.
    pub fn remove(&mut self, range: &RangeInclusive<u16>) {
        if !self.overlaps(range) {
            return;
        }
        let mut left = Vec::with_capacity(self.0.len() + 1);
        for ours in &*self.0 {
            if ours.end() < range.start() || range.end() < ours.start() {
                left.push(ours.clone());
                continue;
            }
            if ours.start() < range.start() {
                left.push(*ours.start()..=*range.start() - 1);
            }
            if range.end() < ours.end() {
                left.push(*range.end() + 1..=*ours.end());
            }
        }
        self.0 = left.into();
    }

    /// Whether some port of `range` is one of them.
    pub fn overlaps(&self, range: &RangeInclusive<u16>) -> bool {
        let shares = |ours: &RangeInclusive<u16>| ours.start() <= range.end() && range.start() <= ours.end();
        !range.is_empty() && self.0.iter().any(shares)
    }

    /// The ranges, ascending.
    pub fn ranges(&self) -> &[RangeInclusive<u16>] {
        &self.0
    }

    /// Every port, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u16> + '_ {
        self.0.iter().cloned().flatten()
    }

    /// How many ports there are.
    pub fn len(&self) -> usize {
        self.0
            .iter()
            .map(|range| usize::from(range.end() - range.start()) + 1)
            .sum()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether `port` is one of them.
    pub fn contains(&self, port: u16) -> bool {
        self.0.iter().any(|range| range.contains(&port))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removing_ports_splits_and_shortens_ranges() {
        let mut ports = PortRanges::new(1024..=65535);
        ports.remove(&(80..=80));
        assert_eq!(ports.ranges(), [1024..=65535]);
        ports.remove(&(8080..=8089));
        ports.remove(&(1..=1024));
        ports.remove(&(65535..=65535));
        assert_eq!(ports.ranges(), [1025..=8079, 8090..=65534]);
        assert_eq!(ports.len(), ports.iter().count());
        assert!(ports.contains(8079) && !ports.contains(8080) && !ports.contains(8089) && ports.contains(8090));
        ports.add(&(8079..=8090));
        assert_eq!(ports.ranges(), [1025..=8078, 8079..=8090, 8091..=65534]);
        ports.remove(&(0..=65535));
        assert!(ports.is_empty());
        assert_eq!(ports.len(), 0);
    }

    #[test]
    fn ports_of_a_server_that_goes_on_only_become_fewer() {
        let ip = IpAddr::from([10, 0, 0, 1]);
        let mut before = LocalAddress::new(ip, 1024..=2047);
        before.ports.remove(&(1500..=1500));
        let mut now = LocalAddress::new(ip, 1024..=2047);
        now.ports.remove(&(1100..=1199));
        let now = now.after(&before);
        assert_eq!(now.ports.ranges(), [1024..=1099, 1200..=1499, 1501..=2047]);
        assert_eq!(now.withheld.ranges(), [1100..=1199]);
        let mut later = LocalAddress::new(ip, 1024..=2047).after(&now);
        assert_eq!(
            (&later.ports, &later.withheld),
            (&now.ports, &now.withheld),
            "nothing comes back"
        );
        later.withhold(&(1150..=1250));
        assert_eq!(later.ports.ranges(), [1024..=1099, 1251..=1499, 1501..=2047]);
        assert!(later.may_have(&(1150..=1150)) && !later.may_have(&(1500..=1500)) && later.may_have(&(1400..=1500)));
    }
}
