//! The packet that an ICMP error quotes, as its sender knows it.

use crate::base::path::Path;
use arrayvec::ArrayVec;
use e2d2::wire::frame::IpVersion;
use e2d2::wire::ipv4::{self, Ipv4Header};
use e2d2::wire::ipv6::{self, Ipv6Header};
use e2d2::wire::protocol;
use e2d2::wire::quote::QuotedTcp;
use netfcts::leg::unmapped;
use netfcts::seq::SeqNum;
use std::net::IpAddr;

/// The longest quote that is passed on: an IP header with options and the eight bytes of TCP that name a segment.
pub(crate) const MAX_QUOTE: usize = 60 + 8;

/// The quote of an error that came in with `version` as the end of `path` sent the packet (RFC 5508 4.2): in the header of its leg,
/// with its addresses, ports and number. `None` if the quote has not got what that takes.
pub(crate) fn for_sender(
    version: IpVersion,
    original: &[u8],
    quoted: &QuotedTcp,
    path: &Path,
    seq: SeqNum,
) -> Option<ArrayVec<u8, MAX_QUOTE>> {
    if path.version() == version {
        translate(version, original, quoted, path, seq)
    } else {
        across(version, original, quoted, path, seq)
    }
}

/// The quoted packet as the receiver of `path` sent it: its addresses, ports and number, and no more of TCP than that.
fn translate(
    version: IpVersion,
    original: &[u8],
    quoted: &QuotedTcp,
    path: &Path,
    seq: SeqNum,
) -> Option<ArrayVec<u8, MAX_QUOTE>> {
    let l4 = usize::from(quoted.l4);
    let mut copy: ArrayVec<u8, MAX_QUOTE> = original.get(..l4 + 8)?.try_into().ok()?;
    let tcp = copy.get_mut(l4..)?.first_chunk_mut::<8>()?;
    tcp[..2].copy_from_slice(&path.destination_port.to_be_bytes());
    tcp[2..4].copy_from_slice(&path.source_port.to_be_bytes());
    tcp[4..].copy_from_slice(&seq.0.to_be_bytes());
    // The path leads to who sent the packet: its source is the path's destination.
    let (source, destination) = (unmapped(path.destination), unmapped(path.source));
    match (version, source, destination) {
        (IpVersion::V4, IpAddr::V4(source), IpAddr::V4(destination)) => {
            let header = copy.get_mut(..l4)?;
            header.get_mut(12..16)?.copy_from_slice(&source.octets());
            header.get_mut(16..20)?.copy_from_slice(&destination.octets());
            header.get_mut(10..12)?.fill(0);
            let sum = e2d2::wire::checksum::internet(header);
            header.get_mut(10..12)?.copy_from_slice(&sum.to_be_bytes());
        }
        (IpVersion::V6, IpAddr::V6(source), IpAddr::V6(destination)) => {
            copy.get_mut(8..24)?.copy_from_slice(&source.octets());
            copy.get_mut(24..40)?.copy_from_slice(&destination.octets());
        }
        _ => return None,
    }
    Some(copy)
}

/// The same for a receiver whose leg has the other version of IP: the quote gets the header that its packet had there, so
/// far as it can be told from the one it was given here (RFC 7915 4.1 and 5.1, of which 4.3 and 5.3 make no exception).
fn across(
    version: IpVersion,
    original: &[u8],
    quoted: &QuotedTcp,
    path: &Path,
    seq: SeqNum,
) -> Option<ArrayVec<u8, MAX_QUOTE>> {
    let (class, segment_len, hop_limit) = match version {
        IpVersion::V4 => {
            let old = Ipv4Header(original.first_chunk::<{ ipv4::HEADER_LEN }>()?);
            let len = old.total_len().saturating_sub(quoted.l4);
            (old.traffic_class(), len, old.hop_limit())
        }
        IpVersion::V6 => {
            let old = Ipv6Header(original.first_chunk::<{ ipv6::HEADER_LEN }>()?);
            (old.traffic_class(), old.payload_len(), old.hop_limit())
        }
    };
    let mut copy = ArrayVec::new();
    match (unmapped(path.destination), unmapped(path.source)) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let mut header = [0; ipv4::HEADER_LEN];
            let mut ip = Ipv4Header(&mut header);
            let total_len = segment_len.saturating_add(ipv4::HEADER_LEN as u16);
            ip.init(total_len, protocol::TCP, hop_limit, source, destination);
            ip.set_traffic_class(class);
            ip.fill_checksum();
            copy.try_extend_from_slice(&header).ok()?;
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let mut header = [0; ipv6::HEADER_LEN];
            let mut ip = Ipv6Header(&mut header);
            ip.init(segment_len, protocol::TCP, hop_limit, source, destination);
            ip.set_traffic_class(class);
            copy.try_extend_from_slice(&header).ok()?;
        }
        _ => return None,
    }
    for part in [path.destination_port, path.source_port] {
        copy.try_extend_from_slice(&part.to_be_bytes()).ok()?;
    }
    copy.try_extend_from_slice(&seq.0.to_be_bytes()).ok()?;
    Some(copy)
}
