//! Neighbour discovery (RFC 4861): who has an address, and that we have one.

use core::net::Ipv6Addr;

use super::{HEADER_LEN, message_type};
use crate::wire::ipv6::{self, Ipv6Header, solicited_node};
use crate::wire::{MacAddr, Malformed};

/// RFC 4861 6.1, 7.1: a packet with less has passed a router and is none of the link's.
pub const HOP_LIMIT: u8 = 255;

const SOURCE_LINK_LAYER_ADDRESS: u8 = 1;
const TARGET_LINK_LAYER_ADDRESS: u8 = 2;

/// An option with an Ethernet address: type, length 1 (of 8 bytes), address.
const OPTION_LEN: usize = 8;

const ROUTER: u32 = 1 << 31;
const SOLICITED: u32 = 1 << 30;
const OVERRIDE: u32 = 1 << 29;

/// A message as a value.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum NdpRepr {
    /// Which routers are there?
    RouterSolicitation {
        /// Where the sender is.
        source_mac: Option<MacAddr>,
    },
    /// Who has the target address?
    NeighbourSolicitation {
        /// The address asked for.
        target: Ipv6Addr,
        /// Where the sender is; must be there if the message goes to a group, unless the sender has no address yet.
        source_mac: Option<MacAddr>,
    },
    /// The target address is at the target's Ethernet address.
    NeighbourAdvertisement {
        /// The sender is a router.
        router: bool,
        /// It answers a solicitation.
        solicited: bool,
        /// It replaces what the receiver knew.
        overrides: bool,
        /// The address asked for.
        target: Ipv6Addr,
        /// Where it is; may be left out in an answer to a unicast solicitation.
        target_mac: Option<MacAddr>,
    },
}

impl NdpRepr {
    /// Reads a message whose checksum has been found right; nothing if it is none of these.
    ///
    /// # Errors
    /// What RFC 4861 6.1.1, 7.1.1 and 7.1.2 say to discard silently.
    pub fn parse(
        ip: Ipv6Header<&[u8; ipv6::HEADER_LEN]>,
        header: &[u8; HEADER_LEN],
        rest: &[u8],
    ) -> Result<Option<Self>, Malformed> {
        let message_type = header[0];
        if !matches!(
            message_type,
            message_type::ROUTER_SOLICITATION
                | message_type::NEIGHBOUR_SOLICITATION
                | message_type::NEIGHBOUR_ADVERTISEMENT
        ) {
            return Ok(None);
        }
        if ip.hop_limit() != HOP_LIMIT || header[1] != 0 {
            return Err(Malformed::BadField);
        }
        match message_type {
            message_type::ROUTER_SOLICITATION => parse_router_solicitation(ip.src_addr(), rest),
            message_type::NEIGHBOUR_SOLICITATION => parse_solicitation(ip.src_addr(), ip.dst_addr(), rest),
            _ => parse_advertisement(ip.dst_addr(), crate::wire::bytes::be32(header, 4), rest),
        }
        .map(Some)
    }

    pub(super) fn message_type(&self) -> u8 {
        match self {
            Self::RouterSolicitation { .. } => message_type::ROUTER_SOLICITATION,
            Self::NeighbourSolicitation { .. } => message_type::NEIGHBOUR_SOLICITATION,
            Self::NeighbourAdvertisement { .. } => message_type::NEIGHBOUR_ADVERTISEMENT,
        }
    }

    /// The second word of the header.
    pub(super) fn word(&self) -> u32 {
        let flag = |is_set: bool, bit: u32| if is_set { bit } else { 0 };
        match *self {
            Self::NeighbourAdvertisement {
                router,
                solicited,
                overrides,
                ..
            } => flag(router, ROUTER) | flag(solicited, SOLICITED) | flag(overrides, OVERRIDE),
            Self::RouterSolicitation { .. } | Self::NeighbourSolicitation { .. } => 0,
        }
    }

    /// What follows the header: the target and the option.
    fn parts(&self) -> (Option<Ipv6Addr>, u8, Option<MacAddr>) {
        match *self {
            Self::RouterSolicitation { source_mac } => (None, SOURCE_LINK_LAYER_ADDRESS, source_mac),
            Self::NeighbourSolicitation { target, source_mac } => (Some(target), SOURCE_LINK_LAYER_ADDRESS, source_mac),
            Self::NeighbourAdvertisement { target, target_mac, .. } => {
                (Some(target), TARGET_LINK_LAYER_ADDRESS, target_mac)
            }
        }
    }

    pub(super) fn rest_len(&self) -> usize {
        let (target, _, mac) = self.parts();
        target.map_or(0, |_| 16) + mac.map_or(0, |_| OPTION_LEN)
    }

    /// Fills `rest_len` bytes; fewer stay as they are.
    pub(super) fn write_rest(&self, rest: &mut [u8]) {
        let (target, kind, mac) = self.parts();
        let target = target.map(|target| target.octets());
        let option = mac.map(|MacAddr([a, b, c, d, e, f])| [kind, 1, a, b, c, d, e, f]);
        let bytes = target.iter().flatten().chain(option.iter().flatten());
        for (slot, byte) in rest.iter_mut().zip(bytes) {
            *slot = *byte;
        }
    }
}

/// RFC 4861 6.1.1.
fn parse_router_solicitation(src: Ipv6Addr, rest: &[u8]) -> Result<NdpRepr, Malformed> {
    let source_mac = link_layer_address(rest, SOURCE_LINK_LAYER_ADDRESS)?;
    if src.is_unspecified() && source_mac.is_some() {
        return Err(Malformed::BadField);
    }
    Ok(NdpRepr::RouterSolicitation { source_mac })
}

/// RFC 4861 7.1.1.
fn parse_solicitation(src: Ipv6Addr, dst: Ipv6Addr, rest: &[u8]) -> Result<NdpRepr, Malformed> {
    let (target, options) = target(rest)?;
    let source_mac = link_layer_address(options, SOURCE_LINK_LAYER_ADDRESS)?;
    // Duplicate address detection asks the group and says nothing of the sender.
    if src.is_unspecified() && (source_mac.is_some() || dst != solicited_node(target)) {
        return Err(Malformed::BadField);
    }
    Ok(NdpRepr::NeighbourSolicitation { target, source_mac })
}

/// RFC 4861 7.1.2.
fn parse_advertisement(dst: Ipv6Addr, flags: u32, rest: &[u8]) -> Result<NdpRepr, Malformed> {
    let (target, options) = target(rest)?;
    let target_mac = link_layer_address(options, TARGET_LINK_LAYER_ADDRESS)?;
    let solicited = flags & SOLICITED != 0;
    if solicited && dst.is_multicast() {
        return Err(Malformed::BadField);
    }
    Ok(NdpRepr::NeighbourAdvertisement {
        router: flags & ROUTER != 0,
        solicited,
        overrides: flags & OVERRIDE != 0,
        target,
        target_mac,
    })
}

fn target(rest: &[u8]) -> Result<(Ipv6Addr, &[u8]), Malformed> {
    let (target, options) = rest.split_first_chunk::<16>().ok_or(Malformed::TooShort)?;
    let target = Ipv6Addr::from(*target);
    if target.is_multicast() {
        Err(Malformed::BadField)
    } else {
        Ok((target, options))
    }
}

/// The Ethernet address of the first option of a kind. All options are walked: one of length 0, or beyond the end,
/// makes the message invalid; unknown ones do not (RFC 4861 4.6).
fn link_layer_address(mut options: &[u8], wanted: u8) -> Result<Option<MacAddr>, Malformed> {
    let mut found = None;
    while let [kind, units, ..] = *options {
        let len = usize::from(units) * 8;
        if len == 0 {
            return Err(Malformed::BadLength);
        }
        let (option, rest) = options.split_at_checked(len).ok_or(Malformed::BadLength)?;
        if let (true, None, &[_, 1, a, b, c, d, e, f]) = (kind == wanted, found, option) {
            let mac = MacAddr([a, b, c, d, e, f]);
            // A neighbour table must not learn that an address is at a group (or nowhere).
            if !mac.is_unicast() {
                return Err(Malformed::BadField);
            }
            found = Some(mac);
        }
        options = rest;
    }
    if options.is_empty() {
        Ok(found)
    } else {
        Err(Malformed::BadLength)
    }
}

#[cfg(test)]
mod tests {
    use core::net::IpAddr;

    use super::*;
    use crate::buffer::{BufferPool, HeapPool, PacketBuffer};
    use crate::wire::Envelope;
    use crate::wire::icmpv6::{Icmpv6Packet, Icmpv6Repr};

    const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);

    fn addr(text: &str) -> Ipv6Addr {
        text.parse().expect("address")
    }

    fn solicitation() -> NdpRepr {
        NdpRepr::NeighbourSolicitation {
            target: addr("fe80::2"),
            source_mac: Some(MAC),
        }
    }

    fn advertisement() -> NdpRepr {
        NdpRepr::NeighbourAdvertisement {
            router: false,
            solicited: true,
            overrides: true,
            target: addr("fe80::2"),
            target_mac: Some(MAC),
        }
    }

    fn frame(ndp: NdpRepr, src: Ipv6Addr, dst: Ipv6Addr) -> Vec<u8> {
        let envelope = Envelope {
            src_mac: MAC,
            dst_mac: MacAddr([0x33, 0x33, 0xff, 0, 0, 2]),
            src_addr: IpAddr::V6(src),
            dst_addr: IpAddr::V6(dst),
            hop_limit: 64,
        };
        let mut buffer = HeapPool::new(1, 128).take().expect("fresh");
        Icmpv6Repr::Ndp(ndp).emit(&envelope, &mut buffer).expect("fits");
        buffer.data().to_vec()
    }

    /// Reads what may have been changed, with its checksum made right again.
    fn read(mut frame: Vec<u8>) -> Result<NdpRepr, Malformed> {
        let ip = Ipv6Header(*frame[14..].first_chunk::<40>().expect("long enough"));
        Icmpv6Packet::new_checked(&mut frame[54..])
            .expect("long enough")
            .fill_checksum(ip.src_addr(), ip.dst_addr());
        match Icmpv6Repr::parse(Ipv6Header(&ip.0), &frame[54..])? {
            Icmpv6Repr::Ndp(ndp) => Ok(ndp),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn messages_read_back_as_written() {
        let (src, dst) = (addr("fe80::1"), addr("fe80::2"));
        let mut messages = vec![
            solicitation(),
            NdpRepr::NeighbourSolicitation {
                target: addr("2001:db8::1"),
                source_mac: None,
            },
            NdpRepr::RouterSolicitation { source_mac: Some(MAC) },
            NdpRepr::RouterSolicitation { source_mac: None },
        ];
        for bits in 0..16u8 {
            messages.push(NdpRepr::NeighbourAdvertisement {
                router: bits & 1 != 0,
                solicited: bits & 2 != 0,
                overrides: bits & 4 != 0,
                target: dst,
                target_mac: (bits & 8 != 0).then_some(MAC),
            });
        }
        for message in messages {
            assert_eq!(read(frame(message, src, dst)), Ok(message));
        }
    }

    #[test]
    fn solicitation_is_written_as_rfc_4861_says() {
        let frame = frame(solicitation(), addr("fe80::1"), addr("ff02::1:ff00:2"));
        assert_eq!(frame[21], 255);
        assert_eq!(frame[54..56], [135, 0]);
        let mut expected = vec![0, 0, 0, 0, 0xfe, 0x80];
        expected.extend([0; 13]);
        expected.extend([2, 1, 1, 2, 0, 0, 0, 0, 1]);
        assert_eq!(frame[58..], expected);
    }

    #[test]
    fn what_has_passed_a_router_is_invalid() {
        for message in [
            solicitation(),
            advertisement(),
            NdpRepr::RouterSolicitation { source_mac: None },
        ] {
            let mut frame = frame(message, addr("fe80::1"), addr("fe80::2"));
            assert_eq!(read(frame.clone()), Ok(message));
            frame[21] = 254;
            assert_eq!(read(frame.clone()), Err(Malformed::BadField));
            frame[21] = 255;
            frame[55] = 1;
            assert_eq!(read(frame), Err(Malformed::BadField));
        }
    }

    #[test]
    fn solicitation_without_source_address_must_be_for_duplicate_detection() {
        let none = Ipv6Addr::UNSPECIFIED;
        let quiet = NdpRepr::NeighbourSolicitation {
            target: addr("fe80::2"),
            source_mac: None,
        };
        assert_eq!(read(frame(quiet, none, addr("ff02::1:ff00:2"))), Ok(quiet));
        assert_eq!(read(frame(quiet, none, addr("fe80::2"))), Err(Malformed::BadField));
        assert_eq!(
            read(frame(solicitation(), none, addr("ff02::1:ff00:2"))),
            Err(Malformed::BadField)
        );
        let router = NdpRepr::RouterSolicitation { source_mac: Some(MAC) };
        assert_eq!(read(frame(router, none, addr("ff02::2"))), Err(Malformed::BadField));
    }

    #[test]
    fn answer_to_a_solicitation_must_not_go_to_a_group() {
        assert_eq!(
            read(frame(advertisement(), addr("fe80::1"), addr("ff02::1"))),
            Err(Malformed::BadField)
        );
    }

    #[test]
    fn targets_and_addresses_that_are_groups_are_invalid() {
        for message in [solicitation(), advertisement()] {
            let good = frame(message, addr("fe80::1"), addr("fe80::2"));
            let mut bad = good.clone();
            bad[62] = 0xff;
            assert_eq!(read(bad), Err(Malformed::BadField));
            let mut bad = good.clone();
            bad[80] = 3;
            assert_eq!(read(bad), Err(Malformed::BadField));
        }
    }

    #[test]
    fn options_are_walked_to_the_end() {
        let good = frame(solicitation(), addr("fe80::1"), addr("fe80::2"));
        let option = &good[78..];
        let with_options = |options: &[u8]| [&good[..78], options].concat();
        let unknown = [14, 1, 0, 0, 0, 0, 0, 0];
        for (options, expected) in [
            (
                vec![],
                Ok(NdpRepr::NeighbourSolicitation {
                    target: addr("fe80::2"),
                    source_mac: None,
                }),
            ),
            ([&unknown, option].concat(), Ok(solicitation())),
            ([option, &unknown].concat(), Ok(solicitation())),
            ([option, &[14, 0, 0, 0, 0, 0, 0, 0]].concat(), Err(Malformed::BadLength)),
            ([option, &[14, 2, 0, 0, 0, 0, 0, 0]].concat(), Err(Malformed::BadLength)),
            ([option, &[14]].concat(), Err(Malformed::BadLength)),
            (option[..7].to_vec(), Err(Malformed::BadLength)),
        ] {
            assert_eq!(read(with_options(&options)), expected, "{options:?}");
        }
        assert_eq!(read(good[..77].to_vec()), Err(Malformed::TooShort));
    }
}
