//! Between which end points, and by which port, a frame goes.

use e2d2::port::PortId;
use e2d2::wire::frame::IpVersion;
use e2d2::wire::{Checksums, Envelope, MacAddr};
use netfcts::leg::{ip_version, unmapped};

/// The hop limit of what we originate, as Linux and BSD have it.
pub(crate) const HOP_LIMIT: u8 = 64;

/// Between which end points, and by which port, a frame of ours goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Path {
    pub source_mac: MacAddr,
    pub destination_mac: MacAddr,
    pub source: u128,
    pub destination: u128,
    pub source_port: u16,
    pub destination_port: u16,
    pub device: PortId,
    pub mtu: u16,
    pub checksums: Checksums,
}

impl Path {
    /// What a frame of our own says about it.
    pub(crate) fn envelope(&self) -> Envelope {
        Envelope {
            src_mac: self.source_mac,
            dst_mac: self.destination_mac,
            src_addr: unmapped(self.source),
            dst_addr: unmapped(self.destination),
            hop_limit: HOP_LIMIT,
        }
    }

    /// The version of IP on this path.
    #[inline]
    pub(crate) fn version(&self) -> IpVersion {
        ip_version(self.destination)
    }

    /// The length of an IP and a TCP header without options on this path.
    pub(crate) fn header_len(&self) -> u16 {
        self.version().header_len_with_tcp()
    }
}
