//! Where the parts of a parsed TCP frame are, and how to get at them.

use core::borrow::{Borrow, BorrowMut};
use core::net::IpAddr;

use super::IpVersion;
use crate::wire::checksum::{self, Delta};
use crate::wire::ethernet::{self, EthernetHeader};
use crate::wire::ipv4::{self, Ipv4Header};
use crate::wire::ipv6::{self, Ipv6Header};
use crate::wire::protocol;
use crate::wire::tcp::{self, TcpHeader};

/// Where the parts of a TCP packet begin, in bytes from the start of the frame.
///
/// From [`super::parse`] it always holds that `14 = l3`, `l3 + IP header = l4`, `l4 + 20 ≤ payload ≤ end ≤ frame.len()`.
/// The functions that take a frame return nothing if it is not one that the layout fits.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct TcpLayout {
    /// The IP version.
    pub version: IpVersion,
    /// The IP header.
    pub l3: u16,
    /// The TCP header.
    pub l4: u16,
    /// The TCP payload: behind the TCP options.
    pub payload: u16,
    /// The end of the IP packet (`l3` + total length). What follows in the frame is Ethernet padding.
    pub end: u16,
}

/// The IP header of either version.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum IpHeader<V4, V6> {
    /// Without its options.
    V4(Ipv4Header<V4>),
    /// The whole of it.
    V6(Ipv6Header<V6>),
}

/// A parsed TCP frame, taken apart. No access to a header is bounds-checked any more.
#[derive(Copy, Clone, Debug)]
pub struct TcpParts<'a> {
    /// The Ethernet header.
    pub ethernet: EthernetHeader<&'a [u8; ethernet::HEADER_LEN]>,
    /// The IP header.
    pub ip: IpHeader<&'a [u8; ipv4::HEADER_LEN], &'a [u8; ipv6::HEADER_LEN]>,
    /// The fixed part of the TCP header.
    pub tcp: TcpHeader<&'a [u8; tcp::HEADER_LEN]>,
    /// The TCP options.
    pub options: &'a [u8],
    /// The TCP payload, without Ethernet padding.
    pub payload: &'a [u8],
}

/// As [`TcpParts`], for writing: all parts at the same time.
#[derive(Debug)]
pub struct TcpPartsMut<'a> {
    /// The Ethernet header.
    pub ethernet: EthernetHeader<&'a mut [u8; ethernet::HEADER_LEN]>,
    /// The IP header.
    pub ip: IpHeader<&'a mut [u8; ipv4::HEADER_LEN], &'a mut [u8; ipv6::HEADER_LEN]>,
    /// The fixed part of the TCP header.
    pub tcp: TcpHeader<&'a mut [u8; tcp::HEADER_LEN]>,
    /// The TCP options.
    pub options: &'a mut [u8],
    /// The TCP payload, without Ethernet padding.
    pub payload: &'a mut [u8],
}

impl TcpLayout {
    /// Bytes of TCP payload.
    #[inline]
    pub const fn payload_len(&self) -> u16 {
        self.end.saturating_sub(self.payload)
    }

    /// Bytes of TCP header, options and payload.
    #[inline]
    pub const fn segment_len(&self) -> u16 {
        self.end.saturating_sub(self.l4)
    }

    /// The TCP header, for one bounds check.
    #[inline]
    pub fn tcp<'a>(&self, frame: &'a [u8]) -> Option<TcpHeader<&'a [u8; tcp::HEADER_LEN]>> {
        frame.get(usize::from(self.l4)..)?.first_chunk().map(TcpHeader)
    }

    /// The IP header.
    #[inline]
    pub fn ip<'a>(&self, frame: &'a [u8]) -> Option<IpHeader<&'a [u8; ipv4::HEADER_LEN], &'a [u8; ipv6::HEADER_LEN]>> {
        let bytes = frame.get(usize::from(self.l3)..)?;
        Some(match self.version {
            IpVersion::V4 => IpHeader::V4(Ipv4Header(bytes.first_chunk()?)),
            IpVersion::V6 => IpHeader::V6(Ipv6Header(bytes.first_chunk()?)),
        })
    }

    /// The TCP options.
    #[inline]
    pub fn options<'a>(&self, frame: &'a [u8]) -> Option<&'a [u8]> {
        frame.get(usize::from(self.l4) + tcp::HEADER_LEN..usize::from(self.payload))
    }

    /// The TCP payload, without Ethernet padding.
    #[inline]
    pub fn payload<'a>(&self, frame: &'a [u8]) -> Option<&'a [u8]> {
        frame.get(usize::from(self.payload)..usize::from(self.end))
    }

    /// Takes a frame apart.
    #[inline]
    pub fn split<'a>(&self, frame: &'a [u8]) -> Option<TcpParts<'a>> {
        let packet = frame.get(usize::from(self.l3)..usize::from(self.end))?;
        let (ip, segment) = packet.split_at_checked(self.ip_header_len()?)?;
        let (tcp, rest) = segment.split_first_chunk()?;
        let (options, payload) = rest.split_at_checked(self.options_len()?)?;
        Some(TcpParts {
            ethernet: EthernetHeader(frame.first_chunk()?),
            ip: match self.version {
                IpVersion::V4 => IpHeader::V4(Ipv4Header(ip.first_chunk()?)),
                IpVersion::V6 => IpHeader::V6(Ipv6Header(ip.first_chunk()?)),
            },
            tcp: TcpHeader(tcp),
            options,
            payload,
        })
    }

    /// Takes a frame apart for writing.
    #[inline]
    pub fn split_mut<'a>(&self, frame: &'a mut [u8]) -> Option<TcpPartsMut<'a>> {
        let frame = frame.get_mut(..usize::from(self.end))?;
        let (link, packet) = frame.split_at_mut_checked(usize::from(self.l3))?;
        let (ip, segment) = packet.split_at_mut_checked(self.ip_header_len()?)?;
        let (tcp, rest) = segment.split_first_chunk_mut()?;
        let (options, payload) = rest.split_at_mut_checked(self.options_len()?)?;
        Some(TcpPartsMut {
            ethernet: EthernetHeader(link.first_chunk_mut()?),
            ip: match self.version {
                IpVersion::V4 => IpHeader::V4(Ipv4Header(ip.first_chunk_mut()?)),
                IpVersion::V6 => IpHeader::V6(Ipv6Header(ip.first_chunk_mut()?)),
            },
            tcp: TcpHeader(tcp),
            options,
            payload,
        })
    }

    /// Whether the TCP checksum is right; wrong for a frame that the layout does not fit.
    #[inline(always)] // A fifth of a short segment's checksum is the call.
    pub fn is_checksum_valid(&self, frame: &[u8]) -> bool {
        let (ip_header_len, addresses_len) = match self.version {
            IpVersion::V4 => (ipv4::HEADER_LEN, 8),
            IpVersion::V6 => (ipv6::HEADER_LEN, 32),
        };
        // The addresses stand right before the TCP header, but for IPv4 options: one run of bytes.
        if self.ip_header_len() == Some(ip_header_len) {
            let begin = usize::from(self.l4) - addresses_len;
            let rest = u32::from(protocol::TCP) + u32::from(self.segment_len());
            let run = frame.get(begin..usize::from(self.end));
            return run.is_some_and(|run| checksum::is_valid_with(rest, run));
        }
        self.is_checksum_valid_behind_options(frame)
    }

    #[cold]
    fn is_checksum_valid_behind_options(&self, frame: &[u8]) -> bool {
        self.pseudo_header_sum(frame)
            .zip(frame.get(usize::from(self.l4)..usize::from(self.end)))
            .is_some_and(|(pseudo, segment)| checksum::is_valid(pseudo + checksum::sum(segment)))
    }

    /// The sum of the pseudo header, not inverted.
    #[inline]
    pub fn pseudo_header_sum(&self, frame: &[u8]) -> Option<u32> {
        let len = self.segment_len();
        Some(match self.ip(frame)? {
            IpHeader::V4(ip) => checksum::pseudo_header_v4(ip.src_addr(), ip.dst_addr(), protocol::TCP, len),
            IpHeader::V6(ip) => checksum::pseudo_header_v6(ip.src_addr(), ip.dst_addr(), protocol::TCP, len),
        })
    }

    #[inline]
    fn ip_header_len(&self) -> Option<usize> {
        self.l4.checked_sub(self.l3).map(usize::from)
    }

    #[inline]
    fn options_len(&self) -> Option<usize> {
        usize::from(self.payload).checked_sub(usize::from(self.l4) + tcp::HEADER_LEN)
    }
}

impl<V4: Borrow<[u8; ipv4::HEADER_LEN]>, V6: Borrow<[u8; ipv6::HEADER_LEN]>> IpHeader<V4, V6> {
    /// Where the packet comes from.
    #[inline]
    pub fn src_addr(&self) -> IpAddr {
        match self {
            Self::V4(ip) => IpAddr::V4(ip.src_addr()),
            Self::V6(ip) => IpAddr::V6(ip.src_addr()),
        }
    }

    /// Where it goes.
    #[inline]
    pub fn dst_addr(&self) -> IpAddr {
        match self {
            Self::V4(ip) => IpAddr::V4(ip.dst_addr()),
            Self::V6(ip) => IpAddr::V6(ip.dst_addr()),
        }
    }

    /// TTL or hop limit.
    #[inline]
    pub fn hop_limit(&self) -> u8 {
        match self {
            Self::V4(ip) => ip.hop_limit(),
            Self::V6(ip) => ip.hop_limit(),
        }
    }

    /// DSCP and ECN.
    #[inline]
    pub fn traffic_class(&self) -> u8 {
        match self {
            Self::V4(ip) => ip.traffic_class(),
            Self::V6(ip) => ip.traffic_class(),
        }
    }
}

impl<V4: BorrowMut<[u8; ipv4::HEADER_LEN]>, V6: BorrowMut<[u8; ipv6::HEADER_LEN]>> IpHeader<V4, V6> {
    /// Sets both addresses and the hop limit, with the IPv4 header checksum carried along; returns what that does to the
    /// checksum of what the packet carries. Nothing happens if an address is of the other version.
    #[inline]
    pub fn readdress(&mut self, src: IpAddr, dst: IpAddr, hop_limit: u8) -> Option<Delta> {
        match (self, src, dst) {
            (Self::V4(ip), IpAddr::V4(src), IpAddr::V4(dst)) => {
                let delta = Delta::ZERO
                    .replace32(ip.src_addr().to_bits(), src.to_bits())
                    .replace32(ip.dst_addr().to_bits(), dst.to_bits());
                let old_hops = u16::from(ip.hop_limit()) << 8;
                ip.set_src_addr(src);
                ip.set_dst_addr(dst);
                ip.set_hop_limit(hop_limit);
                ip.adjust_checksum(delta.replace16(old_hops, u16::from(hop_limit) << 8));
                Some(delta)
            }
            (Self::V6(ip), IpAddr::V6(src), IpAddr::V6(dst)) => {
                let delta = Delta::ZERO
                    .replace128(ip.src_addr().to_bits(), src.to_bits())
                    .replace128(ip.dst_addr().to_bits(), dst.to_bits());
                ip.set_src_addr(src);
                ip.set_dst_addr(dst);
                ip.set_hop_limit(hop_limit);
                Some(delta)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::{BufferPool, HeapPool, PacketBuffer};
    use crate::wire::frame::{Kind, parse};
    use crate::wire::tcp::{TcpFlags, TcpOptions, TcpRepr};
    use crate::wire::{Envelope, MacAddr};

    fn frames() -> Vec<(Vec<u8>, TcpLayout, TcpRepr<'static>)> {
        let v4 = ([192, 0, 2, 1].into(), [198, 51, 100, 2].into());
        let v6 = (IpAddr::V6([0x20; 16].into()), IpAddr::V6([0x21; 16].into()));
        let mut pool = HeapPool::new(1, 256);
        [v4, v6]
            .into_iter()
            .map(|(src_addr, dst_addr)| {
                let repr = TcpRepr {
                    envelope: Envelope {
                        src_mac: MacAddr([2, 0, 0, 0, 0, 1]),
                        dst_mac: MacAddr([2, 0, 0, 0, 0, 2]),
                        src_addr,
                        dst_addr,
                        hop_limit: 64,
                    },
                    src_port: 1,
                    dst_port: 2,
                    seq: 3,
                    ack: 4,
                    flags: TcpFlags::ACK,
                    window: 5,
                    options: TcpOptions {
                        timestamps: Some((6, 7)),
                        ..TcpOptions::NONE
                    },
                    sack_blocks: &[],
                    payload: b"payload",
                };
                let mut buffer = pool.take().expect("free");
                let layout = repr.emit(&mut buffer).expect("fits");
                // Ethernet padding, which is no part of any part.
                buffer.append(3).expect("fits");
                (buffer.data().to_vec(), layout, repr)
            })
            .collect()
    }

    #[test]
    fn parts_are_what_was_emitted() {
        for (mut frame, layout, repr) in frames() {
            let parts = layout.split(&frame).expect("its own layout");
            assert_eq!(parts.ethernet.src_mac(), repr.envelope.src_mac);
            assert_eq!(
                (parts.ip.src_addr(), parts.ip.dst_addr()),
                (repr.envelope.src_addr, repr.envelope.dst_addr)
            );
            assert_eq!(
                (parts.ip.hop_limit(), parts.ip.traffic_class(), parts.tcp.seq()),
                (64, 0, 3)
            );
            assert_eq!(
                (TcpOptions::parse(parts.options), parts.payload),
                (repr.options, repr.payload)
            );
            assert_eq!((usize::from(layout.payload_len()), layout.segment_len()), (7, 39));
            assert_eq!(layout.tcp(&frame), Some(parts.tcp));
            assert_eq!(
                (layout.options(&frame), layout.payload(&frame)),
                (Some(parts.options), Some(parts.payload))
            );

            let expected = (parts.options.to_vec(), parts.payload.to_vec(), *parts.tcp.0);
            let parts = layout.split_mut(&mut frame).expect("its own layout");
            assert_eq!((parts.options.to_vec(), parts.payload.to_vec(), *parts.tcp.0), expected);
        }
    }

    #[test]
    fn checksum_covers_segment_and_pseudo_header_but_not_padding() {
        for (frame, layout, _) in frames() {
            assert!(layout.is_checksum_valid(&frame));
            for at in usize::from(layout.l4)..frame.len() {
                let mut changed = frame.clone();
                changed[at] ^= 0x10;
                assert_eq!(
                    layout.is_checksum_valid(&changed),
                    at >= usize::from(layout.end),
                    "byte {at}"
                );
            }
            let mut readdressed = frame.clone();
            readdressed[usize::from(layout.l4) - 1] ^= 1;
            assert!(!layout.is_checksum_valid(&readdressed));
            assert!(!layout.is_checksum_valid(&frame[..usize::from(layout.end) - 1]));
        }
    }

    #[test]
    fn readdressed_frames_stay_sound() {
        for (mut frame, layout, repr) in frames() {
            let (src, dst) = match layout.version {
                IpVersion::V4 => ([10, 1, 2, 3].into(), [10, 255, 0, 9].into()),
                IpVersion::V6 => (IpAddr::V6([0xfd; 16].into()), IpAddr::V6([0x2a; 16].into())),
            };
            let mut parts = layout.split_mut(&mut frame).expect("its own layout");
            let delta = parts.ip.readdress(src, dst, 63).expect("same version");
            parts.tcp.set_src_port(50_000);
            parts.tcp.adjust_checksum(delta.replace16(repr.src_port, 50_000));

            assert_eq!(parse(&frame), Ok(Kind::Tcp(layout)));
            assert!(layout.is_checksum_valid(&frame));
            let ip = layout.ip(&frame).expect("its own layout");
            assert_eq!((ip.src_addr(), ip.dst_addr(), ip.hop_limit()), (src, dst, 63));
        }
    }

    #[test]
    fn address_of_the_other_version_changes_nothing() {
        for (mut frame, layout, repr) in frames() {
            let before = frame.clone();
            let other = if layout.version == IpVersion::V4 {
                IpAddr::V6([0x20; 16].into())
            } else {
                [10, 0, 0, 1].into()
            };
            let mut parts = layout.split_mut(&mut frame).expect("its own layout");
            assert_eq!(parts.ip.readdress(repr.envelope.src_addr, other, 1), None);
            assert_eq!(parts.ip.readdress(other, repr.envelope.src_addr, 1), None);
            assert_eq!(frame, before);
        }
    }

    #[test]
    fn layout_that_does_not_fit_the_frame_gives_nothing() {
        for (mut frame, layout, _) in frames() {
            for wrong in [
                TcpLayout {
                    l4: layout.l3,
                    ..layout
                },
                TcpLayout {
                    l4: layout.l3 - 1,
                    ..layout
                },
                TcpLayout {
                    payload: layout.l4 + 19,
                    ..layout
                },
                TcpLayout {
                    end: layout.payload - 1,
                    ..layout
                },
                TcpLayout {
                    end: frame.len() as u16 + 1,
                    ..layout
                },
            ] {
                assert!(wrong.split(&frame).is_none(), "{wrong:?}");
                assert!(wrong.split_mut(&mut frame).is_none(), "{wrong:?}");
            }
        }
    }
}
