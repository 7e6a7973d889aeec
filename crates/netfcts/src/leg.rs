//! One leg of a proxied connection: whose it is, its 4-tuple, and the form in which tables keep addresses.
//!
//! That form is one number for both versions of IP: IPv6 as it is, IPv4 as the IPv4-mapped IPv6 address
//! (RFC 4291 2.5.5.2), which a checked packet never carries as IPv6.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use e2d2::wire::frame::IpVersion;

/// One of the two peers of a proxied connection, and the leg to it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Side {
    /// Who connected to us.
    Client = 0,
    /// Whom we connected to.
    Server = 1,
}

impl Side {
    /// The other peer.
    #[inline]
    pub const fn peer(self) -> Side {
        match self {
            Side::Client => Side::Server,
            Side::Server => Side::Client,
        }
    }

    /// The name as records have it.
    pub const fn name(self) -> &'static str {
        match self {
            Side::Client => "Client",
            Side::Server => "Server",
        }
    }
}

/// What identifies one leg, seen from us: the peer's end point and ours. Addresses are [`mapped`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FourTuple {
    /// The peer's address.
    pub remote: u128,
    /// Our address: where the peer's packets go.
    pub local: u128,
    /// The peer's port.
    pub remote_port: u16,
    /// Our port.
    pub local_port: u16,
}

impl FourTuple {
    /// The leg between the peer's address and port and ours.
    #[inline(always)]
    pub fn new((remote, remote_port): (u128, u16), (local, local_port): (u128, u16)) -> Self {
        FourTuple {
            remote,
            local,
            remote_port,
            local_port,
        }
    }
}

/// The prefix of IPv4-mapped IPv6 addresses.
pub const MAPPED: u128 = 0xffff << 32;

/// The form in which an address is kept.
#[inline]
pub fn mapped(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => MAPPED | u128::from(u32::from(v4)),
        IpAddr::V6(v6) => u128::from(v6),
    }
}

/// The address that is kept as `value`.
#[inline]
pub fn unmapped(value: u128) -> IpAddr {
    if is_mapped(value) {
        Ipv4Addr::from_bits(value as u32).into()
    } else {
        Ipv6Addr::from_bits(value).into()
    }
}

/// True for an address that [`mapped`] made of an IPv4 one.
#[inline]
pub const fn is_mapped(value: u128) -> bool {
    has_32_bits(value ^ MAPPED)
}

/// Whether all bits above the lowest 32 are zero. By halves: of one shift over both LLVM makes `shld`, which takes processors of AMD
/// six steps.
#[inline(always)]
const fn has_32_bits(value: u128) -> bool {
    (value >> 64) as u64 | (value as u64) >> 32 == 0
}

/// Whether an address is in a prefix of its family: its address and its bits, of the mapped form for IPv4. Prefixes of IPv6 that all
/// mapped addresses are in as well are not meant for them.
#[inline]
pub fn is_in(address: u128, (prefix, bits): (u128, u128)) -> bool {
    address & bits == prefix && (is_mapped(prefix) || !is_mapped(address))
}

/// True for two addresses of IPv4: one comparison.
#[inline(always)]
pub const fn are_mapped(one: u128, other: u128) -> bool {
    has_32_bits((one ^ MAPPED) | (other ^ MAPPED))
}

/// The version of IP that carries the address that is kept as `value`.
#[inline]
pub const fn ip_version(value: u128) -> IpVersion {
    if is_mapped(value) { IpVersion::V4 } else { IpVersion::V6 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_the_address() {
        for (text, version) in [
            ("0.0.0.0", IpVersion::V4),
            ("255.255.255.255", IpVersion::V4),
            ("::fffe:ffff:ffff", IpVersion::V6),
            ("::1:0:0:0", IpVersion::V6),
        ] {
            let address: IpAddr = text.parse().expect("an address");
            assert_eq!(unmapped(mapped(address)), address);
            assert_eq!(ip_version(mapped(address)), version, "{text}");
        }
    }
}
