//! Source addresses and ports of one IP version, and which connection uses which.
//!
//! An end point is a number; the address changes with every number and the port when all addresses have had it, so that
//! neighbours in time come from different addresses. Free ones wait in a ring, used first in first out: an end point rests as long as possible.
//!
//! Budget: 8 bytes per end point, both touched in order as the ring goes round.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::str::FromStr;

/// A contiguous range of addresses of one version: `10.0.0.1`, `10.0.0.1-10.0.0.16`, `2001:db8::1-2001:db8::ff`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AddressRange {
    first: IpAddr,
    count: u32,
}

/// The text is no range of addresses.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "`{0}` is no range of addresses: expected `10.0.0.1`, `10.0.0.1-10.0.0.16` or the same for IPv6, at most 2^22 of them"
)]
pub struct ParseRangeError(String);

/// Far above what a generator needs (millions of connections from one port each), far below what would not fit memory.
const MAX_ADDRESSES: u128 = 1 << 22;

impl FromStr for AddressRange {
    type Err = ParseRangeError;

    fn from_str(text: &str) -> Result<AddressRange, ParseRangeError> {
        let wrong = || ParseRangeError(text.to_owned());
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let parse = |address: &str| address.trim().parse::<IpAddr>().map_err(|_| wrong());
        let (first, last) = (parse(first)?, parse(last)?);
        if first.is_ipv4() != last.is_ipv4() {
            return Err(wrong());
        }
        let span = bits(last)
            .checked_sub(bits(first))
            .filter(|span| *span < MAX_ADDRESSES)
            .ok_or_else(wrong)?;
        Ok(AddressRange {
            first,
            count: span as u32 + 1,
        })
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.count {
            1 => self.first.fmt(f),
            count => write!(f, "{}-{}", self.first, self.at(count - 1)),
        }
    }
}

impl AddressRange {
    /// Number of addresses.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Whether they are IPv4 addresses.
    pub fn is_ipv4(&self) -> bool {
        self.first.is_ipv4()
    }

    /// The address `index` places after the first.
    #[inline]
    pub fn at(&self, index: u32) -> IpAddr {
        match self.first {
            IpAddr::V4(first) => IpAddr::V4(Ipv4Addr::from_bits(first.to_bits().wrapping_add(index))),
            IpAddr::V6(first) => IpAddr::V6(Ipv6Addr::from_bits(first.to_bits().wrapping_add(u128::from(index)))),
        }
    }

    /// Place of an address in the range.
    #[inline]
    pub fn index_of(&self, address: IpAddr) -> Option<u32> {
        let index = match (self.first, address) {
            (IpAddr::V4(first), IpAddr::V4(address)) => u128::from(address.to_bits().wrapping_sub(first.to_bits())),
            (IpAddr::V6(first), IpAddr::V6(address)) => address.to_bits().wrapping_sub(first.to_bits()),
            _ => return None,
        };
        (index < u128::from(self.count)).then_some(index as u32)
    }
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// In place of a connection: nobody uses the end point.
const FREE: u32 = u32::MAX;

/// End points and their users. See the module documentation.
pub(crate) struct Endpoints {
    addresses: AddressRange,
    first_port: u16,
    /// Connection by end point.
    users: Box<[u32]>,
    ring: Box<[u32]>,
    head: usize,
    free: usize,
}

impl Endpoints {
    pub(crate) fn new(addresses: AddressRange, ports: &RangeInclusive<u16>) -> Endpoints {
        let count = addresses.count() * ports.len() as u32;
        Endpoints {
            addresses,
            first_port: *ports.start(),
            users: vec![FREE; count as usize].into_boxed_slice(),
            ring: (0..count).collect(),
            head: 0,
            free: count as usize,
        }
    }

    pub(crate) fn memory(&self) -> usize {
        size_of_val(&*self.users) + size_of_val(&*self.ring)
    }

    /// The end point that has rested longest.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<u32> {
        self.free = self.free.checked_sub(1)?;
        let endpoint = self.ring[self.head];
        self.head = if self.head + 1 == self.ring.len() {
            0
        } else {
            self.head + 1
        };
        Some(endpoint)
    }

    #[inline]
    pub(crate) fn set_user(&mut self, endpoint: u32, user: u32) {
        self.users[endpoint as usize] = user;
    }

    /// Gives an end point back; it goes to the end of the ring.
    #[inline]
    pub(crate) fn release(&mut self, endpoint: u32) {
        self.users[endpoint as usize] = FREE;
        let mut tail = self.head + self.free;
        if tail >= self.ring.len() {
            tail -= self.ring.len();
        }
        self.ring[tail] = endpoint;
        self.free += 1;
    }

    #[inline]
    pub(crate) fn address(&self, endpoint: u32) -> (IpAddr, u16) {
        let (port, address) = (endpoint / self.addresses.count(), endpoint % self.addresses.count());
        // Below the number of ports, so the sum is a port.
        (self.addresses.at(address), self.first_port + port as u16)
    }

    /// The end point with this address and port.
    #[inline]
    pub(crate) fn find(&self, address: IpAddr, port: u16) -> Option<u32> {
        let address = self.addresses.index_of(address)?;
        let port = u32::from(port.checked_sub(self.first_port)?);
        let endpoint = port * self.addresses.count() + address;
        ((endpoint as usize) < self.users.len()).then_some(endpoint)
    }

    /// Asks the processor for what [`user`](Self::user) reads.
    #[inline]
    pub(crate) fn prefetch(&self, endpoint: u32) {
        if let Some(user) = self.users.get(endpoint as usize) {
            e2d2::prefetch(user);
        }
    }

    /// The connection that uses the end point.
    #[inline]
    pub(crate) fn user(&self, endpoint: u32) -> Option<u32> {
        self.users.get(endpoint as usize).copied().filter(|user| *user != FREE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(text: &str) -> AddressRange {
        text.parse().unwrap()
    }

    #[test]
    fn ranges_of_both_versions() {
        for (text, count) in [
            ("10.0.0.1", 1),
            ("10.0.0.250-10.0.1.5", 12),
            ("fd00::fffe-fd00::1:0001", 4),
        ] {
            let parsed = range(text);
            assert_eq!(parsed.count(), count, "{text}");
            for index in 0..count {
                assert_eq!(parsed.index_of(parsed.at(index)), Some(index));
            }
            assert_eq!(parsed.index_of(parsed.at(count)), None);
        }
        assert_eq!(range("10.0.0.250-10.0.1.5").to_string(), "10.0.0.250-10.0.1.5");
        assert_eq!(range("fd00::1").to_string(), "fd00::1");
        assert_eq!(range("10.0.0.1").index_of("::ffff:10.0.0.1".parse().unwrap()), None);
    }

    #[test]
    fn what_is_no_range_is_refused() {
        for text in [
            "",
            "x",
            "10.0.0.2-10.0.0.1",
            "10.0.0.1-fd00::1",
            "10.0.0.0-11.0.0.0",
            "10.0.0.1-10.0.0.2-10.0.0.3",
        ] {
            assert!(text.parse::<AddressRange>().is_err(), "{text}");
        }
    }

    #[test]
    fn each_end_point_is_used_once_and_in_turn() {
        let mut endpoints = Endpoints::new(range("10.0.0.1-10.0.0.3"), &(1000..=1003));
        let taken: Vec<_> = std::iter::from_fn(|| endpoints.take()).collect();
        let addresses: Vec<_> = taken.iter().map(|endpoint| endpoints.address(*endpoint)).collect();
        assert_eq!(addresses.iter().collect::<std::collections::HashSet<_>>().len(), 12);
        assert_eq!(
            addresses[1],
            ("10.0.0.2".parse().unwrap(), 1000),
            "neighbours in time differ in address"
        );
        for (endpoint, (address, port)) in taken.iter().zip(&addresses) {
            assert_eq!(endpoints.find(*address, *port), Some(*endpoint));
            endpoints.set_user(*endpoint, endpoint + 100);
            assert_eq!(endpoints.user(*endpoint), Some(endpoint + 100));
        }
        endpoints.release(taken[5]);
        endpoints.release(taken[2]);
        assert_eq!(endpoints.user(taken[5]), None);
        assert_eq!(
            (endpoints.take(), endpoints.take(), endpoints.take()),
            (Some(taken[5]), Some(taken[2]), None)
        );
    }

    #[test]
    fn foreign_addresses_and_ports_are_not_found() {
        let endpoints = Endpoints::new(range("10.0.0.1-10.0.0.3"), &(1000..=1003));
        for (address, port) in [
            ("10.0.0.4", 1000),
            ("10.0.0.0", 1000),
            ("10.0.0.1", 999),
            ("10.0.0.1", 1004),
            ("::1", 1000),
        ] {
            assert_eq!(endpoints.find(address.parse().unwrap(), port), None);
        }
    }
}
