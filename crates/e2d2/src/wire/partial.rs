//! Checksums that a sender on the same host has left to its device.
//!
//! Linux gives a virtual device whose peer it trusts (veth, a virtio queue, a TAP) segments whose checksum field holds only the
//! sum of the pseudo header, not inverted (`CHECKSUM_PARTIAL` in its `include/linux/skbuff.h`): the device adds the rest.
//! What is read from such a device by AF_PACKET or AF_XDP comes as it is, and nothing says which packets are meant.
//!
//! They are told by the field itself. A packet whose checksum is complete and happens to look like that stays what it is, since
//! completing it gives the same value; of damaged ones, one in 2^16 more passes, on devices that have no wire to damage them.

use super::headers::Headers;
use super::{checksum, protocol};

/// Completes the TCP or UDP checksum of a frame, from its first Ethernet byte, if the field holds the sum of the pseudo header
/// alone. Returns whether it did. Fragments, and packets with IPv6 extension headers, are left as they are.
///
/// Source: RFC 9293 3.1 and RFC 768 for the sum; Linux, `include/linux/skbuff.h`, for what the field holds before.
pub fn complete(frame: &mut [u8]) -> bool {
    complete_frame(frame).is_some()
}

fn complete_frame(frame: &mut [u8]) -> Option<()> {
    let headers = Headers::read(frame).filter(|headers| !headers.is_fragment)?;
    let field = match headers.protocol {
        protocol::TCP => 16,
        protocol::UDP => 6,
        _ => return None,
    };
    let segment = frame.get_mut(headers.l4..headers.end)?;
    let length = u16::try_from(segment.len()).ok()?;
    let pseudo = checksum::pseudo_header(headers.source, headers.destination, headers.protocol, length)?;
    let held = segment.get(field..)?.first_chunk::<2>().copied()?;
    if u16::from_be_bytes(held) != !checksum::finish(pseudo) {
        return None;
    }
    // The field holds the pseudo header's share already.
    let sum = checksum::finish(checksum::sum(segment));
    // RFC 768: a sum of zero is sent as its other representation, since zero says that there is none.
    let sum = if headers.protocol == protocol::UDP && sum == 0 {
        0xffff
    } else {
        sum
    };
    *segment.get_mut(field..)?.first_chunk_mut::<2>()? = sum.to_be_bytes();
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::ethernet;
    use crate::wire::ipv4::{self, Ipv4Header};
    use crate::wire::ipv6::{self, Ipv6Header};
    use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    const V4: [IpAddr; 2] = [
        IpAddr::V4(Ipv4Addr::new(10, 77, 0, 101)),
        IpAddr::V4(Ipv4Addr::new(10, 77, 0, 1)),
    ];
    const V6: [IpAddr; 2] = [
        IpAddr::V6(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 0x101)),
        IpAddr::V6(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1)),
    ];

    /// A frame with `payload` behind a header of `protocol` whose checksum field is `field` of the right value and the pseudo
    /// header's sum.
    fn frame(
        addresses: [IpAddr; 2],
        protocol: u8,
        payload: &[u8],
        tagged: bool,
        field: impl Fn(u16, u16) -> u16,
    ) -> Vec<u8> {
        let (header, at) = if protocol == protocol::TCP { (20, 16) } else { (8, 6) };
        let mut segment = vec![0_u8; header];
        segment[..4].copy_from_slice(&[0x9c, 0x40, 0, 80]);
        if protocol == protocol::TCP {
            segment[12] = 0x50;
        }
        segment.extend_from_slice(payload);
        let length = segment.len() as u16;
        let pseudo = checksum::pseudo_header(addresses[0], addresses[1], protocol, length).expect("one family");
        let right = checksum::finish(pseudo + checksum::sum(&segment));
        segment[at..at + 2].copy_from_slice(&field(right, !checksum::finish(pseudo)).to_be_bytes());
        let mut frame = vec![2; 12];
        if tagged {
            frame.extend_from_slice(&[0x81, 0, 0, 7]);
        }
        match addresses {
            [IpAddr::V4(source), IpAddr::V4(destination)] => {
                frame.extend_from_slice(&ethernet::ethertype::IPV4.to_be_bytes());
                let mut ip = [0; ipv4::HEADER_LEN];
                Ipv4Header(&mut ip).init(20 + length, protocol, 64, source, destination);
                frame.extend_from_slice(&ip);
            }
            [IpAddr::V6(source), IpAddr::V6(destination)] => {
                frame.extend_from_slice(&ethernet::ethertype::IPV6.to_be_bytes());
                let mut ip = [0; ipv6::HEADER_LEN];
                Ipv6Header(&mut ip).init(length, protocol, 64, source, destination);
                frame.extend_from_slice(&ip);
            }
            _ => unreachable!("one family"),
        }
        frame.extend_from_slice(&segment);
        frame
    }

    #[test]
    fn a_partial_checksum_is_completed() {
        for addresses in [V4, V6] {
            for protocol in [protocol::TCP, protocol::UDP] {
                for payload in [&b""[..], b"G", b"GET / HTTP/1.1\r\n\r\n"] {
                    for tagged in [false, true] {
                        let mut partial = frame(addresses, protocol, payload, tagged, |_, pseudo| pseudo);
                        let whole = frame(addresses, protocol, payload, tagged, |right, _| right);
                        // Ethernet pads short frames; the padding is not part of the sum.
                        partial.extend_from_slice(&[0xaa; 6]);
                        assert!(complete(&mut partial));
                        assert_eq!(partial[..whole.len()], whole, "{addresses:?} {protocol} {payload:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn any_other_checksum_stays() {
        for field in [|right: u16, _: u16| right, |right, _| right ^ 1, |_, pseudo| pseudo ^ 1] {
            let mut frame = frame(V4, protocol::TCP, b"GET /", false, field);
            let before = frame.clone();
            assert!(!complete(&mut frame));
            assert_eq!(frame, before);
        }
    }

    #[test]
    fn what_cannot_be_told_is_left_alone() {
        let whole = frame(V4, protocol::TCP, b"GET /", false, |_, pseudo| pseudo);
        for length in 0..whole.len() {
            let mut short = whole[..length].to_vec();
            assert!(!complete(&mut short), "{length}");
        }
        let mut fragment = whole.clone();
        fragment[14 + 6] = 0x20;
        assert!(!complete(&mut fragment));
        let mut icmp = whole;
        icmp[14 + 9] = protocol::ICMP;
        assert!(!complete(&mut icmp));
    }
}
