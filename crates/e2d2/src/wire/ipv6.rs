//! IPv6 (RFC 8200). Extension headers are recognised, not followed.

use core::borrow::{Borrow, BorrowMut};
use core::net::Ipv6Addr;

use super::Malformed;
use super::bytes::{array, be16, be32, delegate_to_header, packet_view, put};

/// Bytes of the header.
pub const HEADER_LEN: usize = 40;

/// RFC 8200 5: every link carries packets of this many bytes.
pub const MIN_MTU: u16 = 1280;

/// The header as an array; no access is bounds-checked.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Ipv6Header<T>(pub T);

impl<T: Borrow<[u8; HEADER_LEN]>> Ipv6Header<T> {
    /// The version; 6 in what has been parsed.
    #[inline]
    pub fn version(&self) -> u8 {
        self.0.borrow()[0] >> 4
    }

    /// DSCP and ECN (RFC 2474, RFC 3168).
    #[inline]
    pub fn traffic_class(&self) -> u8 {
        (be16(self.0.borrow(), 0) >> 4) as u8
    }

    /// The flow label (RFC 6437), 20 bits.
    #[inline]
    pub fn flow_label(&self) -> u32 {
        be32(self.0.borrow(), 0) & 0x000f_ffff
    }

    /// Bytes behind the header.
    #[inline]
    pub fn payload_len(&self) -> u16 {
        be16(self.0.borrow(), 4)
    }

    /// What follows the header; see [`super::protocol`].
    #[inline]
    pub fn next_header(&self) -> u8 {
        self.0.borrow()[6]
    }

    /// How many routers it may still pass.
    #[inline]
    pub fn hop_limit(&self) -> u8 {
        self.0.borrow()[7]
    }

    /// Where it comes from.
    #[inline]
    pub fn src_addr(&self) -> Ipv6Addr {
        Ipv6Addr::from(array::<HEADER_LEN, 16>(self.0.borrow(), 8))
    }

    /// Where it goes.
    #[inline]
    pub fn dst_addr(&self) -> Ipv6Addr {
        Ipv6Addr::from(array::<HEADER_LEN, 16>(self.0.borrow(), 24))
    }
}

impl<T: BorrowMut<[u8; HEADER_LEN]>> Ipv6Header<T> {
    /// Writes the header, whole: traffic class and flow label 0.
    #[inline]
    pub fn init(&mut self, payload_len: u16, next_header: u8, hop_limit: u8, src: Ipv6Addr, dst: Ipv6Addr) {
        let bytes = self.0.borrow_mut();
        put(bytes, 0, [0x60, 0, 0, 0]);
        put(bytes, 4, payload_len.to_be_bytes());
        bytes[6] = next_header;
        bytes[7] = hop_limit;
        put(bytes, 8, src.octets());
        put(bytes, 24, dst.octets());
    }

    /// Sets DSCP and ECN.
    #[inline]
    pub fn set_traffic_class(&mut self, traffic_class: u8) {
        let bytes = self.0.borrow_mut();
        bytes[0] = bytes[0] & 0xf0 | traffic_class >> 4;
        bytes[1] = bytes[1] & 0x0f | traffic_class << 4;
    }

    /// Sets the flow label; bits above the twentieth are cut off.
    #[inline]
    pub fn set_flow_label(&mut self, flow_label: u32) {
        let bytes = self.0.borrow_mut();
        let word = be32(bytes, 0) & 0xfff0_0000 | flow_label & 0x000f_ffff;
        put(bytes, 0, word.to_be_bytes());
    }

    /// Sets the bytes behind the header.
    #[inline]
    pub fn set_payload_len(&mut self, payload_len: u16) {
        put(self.0.borrow_mut(), 4, payload_len.to_be_bytes());
    }

    /// Sets what follows the header.
    #[inline]
    pub fn set_next_header(&mut self, next_header: u8) {
        self.0.borrow_mut()[6] = next_header;
    }

    /// Sets how many routers it may still pass.
    #[inline]
    pub fn set_hop_limit(&mut self, hop_limit: u8) {
        self.0.borrow_mut()[7] = hop_limit;
    }

    /// Sets where it comes from.
    #[inline]
    pub fn set_src_addr(&mut self, addr: Ipv6Addr) {
        put(self.0.borrow_mut(), 8, addr.octets());
    }

    /// Sets where it goes.
    #[inline]
    pub fn set_dst_addr(&mut self, addr: Ipv6Addr) {
        put(self.0.borrow_mut(), 24, addr.octets());
    }
}

/// Whether a next-header value names an extension header, and not what the packet carries.
///
/// Source: IANA, IPv6 Extension Header Types: hop-by-hop, routing, fragment, ESP, AH, destination options, mobility,
/// HIP, shim6, and two for experiments.
#[inline]
pub fn is_extension_header(next_header: u8) -> bool {
    matches!(next_header, 0 | 43 | 44 | 50 | 51 | 60 | 135 | 139 | 140 | 253 | 254)
}

/// The group on which a neighbour listens for solicitations of `addr` (RFC 4291 2.7.1).
pub fn solicited_node(addr: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = addr.octets();
    Ipv6Addr::from([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, a, b, c])
}

/// A packet whose lengths have been checked.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Ipv6Packet<T>(T);

impl<T: AsRef<[u8]>> Ipv6Packet<T> {
    /// Takes a packet from its first byte; bytes behind its payload length (padding) may follow.
    ///
    /// # Errors
    /// What is wrong with version and length.
    pub fn new_checked(packet: T) -> Result<Self, Malformed> {
        let bytes = packet.as_ref();
        let header = Ipv6Header(bytes.first_chunk::<HEADER_LEN>().ok_or(Malformed::TooShort)?);
        if header.version() != 6 {
            Err(Malformed::BadVersion)
        } else if HEADER_LEN + usize::from(header.payload_len()) > bytes.len() {
            Err(Malformed::BadLength)
        } else {
            Ok(Self(packet))
        }
    }

    /// What follows the header, padding excluded.
    pub fn payload(&self) -> &[u8] {
        self.0
            .as_ref()
            .get(HEADER_LEN..HEADER_LEN + usize::from(self.payload_len()))
            .unwrap_or_default()
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Ipv6Packet<T> {
    /// What follows the header, for writing.
    pub fn payload_mut(&mut self) -> &mut [u8] {
        let range = HEADER_LEN..HEADER_LEN + usize::from(self.payload_len());
        self.0.as_mut().get_mut(range).unwrap_or_default()
    }
}

packet_view!(Ipv6Packet, Ipv6Header, HEADER_LEN);
delegate_to_header!(Ipv6Packet {
    version: u8,
    traffic_class / set_traffic_class: u8,
    flow_label / set_flow_label: u32,
    payload_len / set_payload_len: u16,
    next_header / set_next_header: u8,
    hop_limit / set_hop_limit: u8,
    src_addr / set_src_addr: Ipv6Addr,
    dst_addr / set_dst_addr: Ipv6Addr,
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_where_rfc_8200_puts_them() {
        let mut bytes = [0xff; 42];
        let (src, dst) = (Ipv6Addr::from([1; 16]), Ipv6Addr::from([2; 16]));
        Ipv6Header(bytes.first_chunk_mut::<40>().expect("long enough")).init(2, 6, 64, src, dst);
        let mut packet = Ipv6Packet::new_checked(bytes).expect("sound");
        packet.set_traffic_class(0xab);
        packet.set_flow_label(0xfff1_2345);
        assert_eq!(
            (packet.version(), packet.traffic_class(), packet.flow_label()),
            (6, 0xab, 0x1_2345)
        );
        packet.set_traffic_class(0);
        assert_eq!(
            (packet.version(), packet.traffic_class(), packet.flow_label()),
            (6, 0, 0x1_2345)
        );
        assert_eq!(
            (packet.payload_len(), packet.next_header(), packet.hop_limit()),
            (2, 6, 64)
        );
        assert_eq!((packet.src_addr(), packet.dst_addr()), (src, dst));
        assert_eq!(packet.payload(), [0xff; 2]);
        assert_eq!(packet.into_inner()[..8], [0x60, 1, 0x23, 0x45, 0, 2, 6, 64]);
    }

    #[test]
    fn lengths_are_checked_at_their_boundaries() {
        let mut bytes = [0; 44];
        bytes[0] = 0x60;
        for (len, payload_len, expected) in [
            (39, 0, Err(Malformed::TooShort)),
            (40, 0, Ok(0)),
            (40, 1, Err(Malformed::BadLength)),
            (44, 4, Ok(4)),
            (44, 3, Ok(3)),
            (44, 5, Err(Malformed::BadLength)),
        ] {
            bytes[5] = payload_len;
            let payload = Ipv6Packet::new_checked(&bytes[..len]).map(|packet| packet.payload().len());
            assert_eq!(payload, expected, "{len} {payload_len}");
        }
        bytes[0] = 0x40;
        assert_eq!(Ipv6Packet::new_checked(bytes), Err(Malformed::BadVersion));
    }

    #[test]
    fn solicited_node_group_keeps_the_last_three_bytes() {
        let addr: Ipv6Addr = "4037::01:800:200e:8c6c".parse().expect("address");
        assert_eq!(
            solicited_node(addr),
            "ff02::1:ff0e:8c6c".parse::<Ipv6Addr>().expect("address")
        );
    }
}
