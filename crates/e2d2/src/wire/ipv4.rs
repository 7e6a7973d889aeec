//! IPv4 (RFC 791).

use core::borrow::{Borrow, BorrowMut};
use core::net::Ipv4Addr;

use super::Malformed;
use super::bytes::{array, be16, delegate_to_header, packet_view, put};
use super::checksum::{self, Delta};

/// Bytes of the header without options.
pub const HEADER_LEN: usize = 20;

const DONT_FRAGMENT: u16 = 0x4000;
const MORE_FRAGMENTS: u16 = 0x2000;
const FRAGMENT_OFFSET: u16 = 0x1fff;

/// The fixed part of the header as an array; no access is bounds-checked.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Ipv4Header<T>(pub T);

impl<T: Borrow<[u8; HEADER_LEN]>> Ipv4Header<T> {
    /// The version; 4 in what has been parsed.
    #[inline]
    pub fn version(&self) -> u8 {
        self.0.borrow()[0] >> 4
    }

    /// Bytes of the header, options included.
    #[inline]
    pub fn header_len(&self) -> usize {
        usize::from(self.0.borrow()[0] & 0x0f) * 4
    }

    /// DSCP and ECN (RFC 2474, RFC 3168).
    #[inline]
    pub fn traffic_class(&self) -> u8 {
        self.0.borrow()[1]
    }

    /// Bytes of the packet, header included.
    #[inline]
    pub fn total_len(&self) -> u16 {
        be16(self.0.borrow(), 2)
    }

    /// The identification; means something only in what may be fragmented (RFC 6864).
    #[inline]
    pub fn ident(&self) -> u16 {
        be16(self.0.borrow(), 4)
    }

    /// Whether routers must not fragment it.
    #[inline]
    pub fn dont_fragment(&self) -> bool {
        be16(self.0.borrow(), 6) & DONT_FRAGMENT != 0
    }

    /// Whether it is a piece of a larger packet.
    #[inline]
    pub fn is_fragment(&self) -> bool {
        be16(self.0.borrow(), 6) & (MORE_FRAGMENTS | FRAGMENT_OFFSET) != 0
    }

    /// The fragment offset in units of 8 bytes.
    #[inline]
    pub fn fragment_offset(&self) -> u16 {
        be16(self.0.borrow(), 6) & FRAGMENT_OFFSET
    }

    /// Time to live.
    #[inline]
    pub fn hop_limit(&self) -> u8 {
        self.0.borrow()[8]
    }

    /// What it carries; see [`super::protocol`].
    #[inline]
    pub fn protocol(&self) -> u8 {
        self.0.borrow()[9]
    }

    /// The header checksum.
    #[inline]
    pub fn checksum(&self) -> u16 {
        be16(self.0.borrow(), 10)
    }

    /// Where it comes from.
    #[inline]
    pub fn src_addr(&self) -> Ipv4Addr {
        Ipv4Addr::from(array::<HEADER_LEN, 4>(self.0.borrow(), 12))
    }

    /// Where it goes.
    #[inline]
    pub fn dst_addr(&self) -> Ipv4Addr {
        Ipv4Addr::from(array::<HEADER_LEN, 4>(self.0.borrow(), 16))
    }
}

/// No setter touches the checksum; see [`Ipv4Header::adjust_checksum`] and [`Ipv4Header::fill_checksum`].
impl<T: BorrowMut<[u8; HEADER_LEN]>> Ipv4Header<T> {
    /// Writes a header without options, whole: don't-fragment set, identification 0 (RFC 6864 4.1), right checksum.
    #[inline(always)]
    pub fn init(&mut self, total_len: u16, protocol: u8, hop_limit: u8, src: Ipv4Addr, dst: Ipv4Addr) {
        let words = [
            0x4500_0000 | u32::from(total_len),
            u32::from(DONT_FRAGMENT),
            u32::from(hop_limit) << 24 | u32::from(protocol) << 16,
            src.to_bits(),
            dst.to_bits(),
        ];
        let bytes = self.0.borrow_mut();
        put(bytes, 0, words[0].to_be_bytes());
        put(bytes, 4, words[1].to_be_bytes());
        put(bytes, 8, words[2].to_be_bytes());
        put(bytes, 12, src.octets());
        put(bytes, 16, dst.octets());
        self.set_checksum(checksum::finish(checksum::sum_values(words)));
    }

    /// Sets DSCP and ECN.
    #[inline]
    pub fn set_traffic_class(&mut self, traffic_class: u8) {
        self.0.borrow_mut()[1] = traffic_class;
    }

    /// Sets the bytes of the packet, header included.
    #[inline]
    pub fn set_total_len(&mut self, total_len: u16) {
        put(self.0.borrow_mut(), 2, total_len.to_be_bytes());
    }

    /// Sets the identification.
    #[inline]
    pub fn set_ident(&mut self, ident: u16) {
        put(self.0.borrow_mut(), 4, ident.to_be_bytes());
    }

    /// Sets or clears don't-fragment and leaves the other flags and the offset.
    #[inline]
    pub fn set_dont_fragment(&mut self, dont_fragment: bool) {
        let bytes = self.0.borrow_mut();
        bytes[6] = bytes[6] & !0x40 | u8::from(dont_fragment) << 6;
    }

    /// Sets the time to live.
    #[inline]
    pub fn set_hop_limit(&mut self, hop_limit: u8) {
        self.0.borrow_mut()[8] = hop_limit;
    }

    /// Sets what it carries.
    #[inline]
    pub fn set_protocol(&mut self, protocol: u8) {
        self.0.borrow_mut()[9] = protocol;
    }

    /// Sets the header checksum.
    #[inline]
    pub fn set_checksum(&mut self, checksum: u16) {
        put(self.0.borrow_mut(), 10, checksum.to_be_bytes());
    }

    /// Sets where it comes from.
    #[inline]
    pub fn set_src_addr(&mut self, addr: Ipv4Addr) {
        put(self.0.borrow_mut(), 12, addr.octets());
    }

    /// Sets where it goes.
    #[inline]
    pub fn set_dst_addr(&mut self, addr: Ipv4Addr) {
        put(self.0.borrow_mut(), 16, addr.octets());
    }

    /// Carries changes of header fields over into the checksum.
    #[inline]
    pub fn adjust_checksum(&mut self, delta: Delta) {
        let checksum = delta.apply(be16(self.0.borrow(), 10));
        self.set_checksum(checksum);
    }

    /// Computes the checksum of a header that has no options.
    #[inline]
    pub fn fill_checksum(&mut self) {
        self.set_checksum(0);
        let checksum = checksum::internet(self.0.borrow());
        self.set_checksum(checksum);
    }
}

/// A packet whose lengths have been checked.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Ipv4Packet<T>(T);

impl<T: AsRef<[u8]>> Ipv4Packet<T> {
    /// Takes a packet from its first byte; bytes behind its total length (padding) may follow.
    ///
    /// # Errors
    /// What is wrong with version and lengths. The checksum is not looked at.
    pub fn new_checked(packet: T) -> Result<Self, Malformed> {
        let bytes = packet.as_ref();
        let header = Ipv4Header(bytes.first_chunk::<HEADER_LEN>().ok_or(Malformed::TooShort)?);
        let (header_len, total_len) = (header.header_len(), usize::from(header.total_len()));
        if header.version() != 4 {
            Err(Malformed::BadVersion)
        } else if header_len < HEADER_LEN || header_len > total_len || total_len > bytes.len() {
            Err(Malformed::BadLength)
        } else {
            Ok(Self(packet))
        }
    }

    /// Whether the header checksum is right, options included.
    pub fn is_checksum_valid(&self) -> bool {
        self.0
            .as_ref()
            .get(..self.header_len())
            .is_some_and(|header| checksum::is_valid(checksum::sum(header)))
    }

    /// The header's options; empty in nearly all packets.
    pub fn options(&self) -> &[u8] {
        self.0.as_ref().get(HEADER_LEN..self.header_len()).unwrap_or_default()
    }

    /// What the packet carries, padding excluded.
    pub fn payload(&self) -> &[u8] {
        self.0
            .as_ref()
            .get(self.header_len()..usize::from(self.total_len()))
            .unwrap_or_default()
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Ipv4Packet<T> {
    /// What the packet carries, for writing.
    pub fn payload_mut(&mut self) -> &mut [u8] {
        let range = self.header_len()..usize::from(self.total_len());
        self.0.as_mut().get_mut(range).unwrap_or_default()
    }
}

packet_view!(Ipv4Packet, Ipv4Header, HEADER_LEN);
delegate_to_header!(Ipv4Packet {
    version: u8,
    header_len: usize,
    traffic_class / set_traffic_class: u8,
    total_len / set_total_len: u16,
    ident / set_ident: u16,
    dont_fragment / set_dont_fragment: bool,
    is_fragment: bool,
    fragment_offset: u16,
    hop_limit / set_hop_limit: u8,
    protocol / set_protocol: u8,
    checksum / set_checksum: u16,
    src_addr / set_src_addr: Ipv4Addr,
    dst_addr / set_dst_addr: Ipv4Addr,
});

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of Wikipedia's article on the IPv4 header checksum.
    const HEADER: [u8; 20] = [
        0x45, 0x00, 0x00, 0x73, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11, 0xb8, 0x61, 0xc0, 0xa8, 0x00, 0x01, 0xc0, 0xa8,
        0x00, 0xc7,
    ];

    fn packet(header: &[u8; 20], len: usize) -> Vec<u8> {
        let mut bytes = header.to_vec();
        bytes.resize(len, 0);
        bytes
    }

    #[test]
    fn known_header_reads_back() {
        let packet = Ipv4Packet::new_checked(packet(&HEADER, 0x73)).expect("sound");
        assert_eq!(
            (packet.version(), packet.header_len(), packet.total_len()),
            (4, 20, 0x73)
        );
        assert_eq!(
            (packet.protocol(), packet.hop_limit(), packet.checksum()),
            (17, 64, 0xb861)
        );
        assert!(packet.dont_fragment() && !packet.is_fragment() && packet.is_checksum_valid());
        assert_eq!(packet.src_addr(), Ipv4Addr::new(192, 168, 0, 1));
        assert_eq!(packet.dst_addr(), Ipv4Addr::new(192, 168, 0, 199));
        assert_eq!((packet.options().len(), packet.payload().len()), (0, 0x73 - 20));
    }

    #[test]
    fn lengths_are_checked_at_their_boundaries() {
        assert_eq!(Ipv4Packet::new_checked(&HEADER[..19]), Err(Malformed::TooShort));
        assert_eq!(
            Ipv4Packet::new_checked(packet(&HEADER, 0x72)),
            Err(Malformed::BadLength)
        );
        assert!(Ipv4Packet::new_checked(packet(&HEADER, 0x74)).is_ok());
        for (first, total, expected) in [
            (0x65, 20, Err(Malformed::BadVersion)),
            (0x44, 20, Err(Malformed::BadLength)),
            (0x45, 19, Err(Malformed::BadLength)),
            (0x45, 20, Ok(0)),
            (0x4f, 59, Err(Malformed::BadLength)),
            (0x4f, 60, Ok(40)),
        ] {
            let mut bytes = packet(&HEADER, 60);
            (bytes[0], bytes[3]) = (first, total);
            let options = Ipv4Packet::new_checked(bytes).map(|packet| packet.options().len());
            assert_eq!(options, expected, "{first:#x} {total}");
        }
    }

    #[test]
    fn header_that_is_written_is_the_one_known() {
        let mut bytes = [0xff; 20];
        Ipv4Header(&mut bytes).init(
            0x73,
            17,
            64,
            Ipv4Addr::new(192, 168, 0, 1),
            Ipv4Addr::new(192, 168, 0, 199),
        );
        assert_eq!(bytes, HEADER);
    }

    #[test]
    fn setters_keep_out_of_each_others_bits() {
        let mut header = Ipv4Header([0; 20]);
        header.set_dont_fragment(true);
        header.set_ident(0xabcd);
        header.set_traffic_class(0xb8);
        assert!(header.dont_fragment() && !header.is_fragment());
        header.0[6] |= 0x20;
        header.set_dont_fragment(false);
        assert!(!header.dont_fragment() && header.is_fragment());
        assert_eq!(
            (header.ident(), header.traffic_class(), header.fragment_offset()),
            (0xabcd, 0xb8, 0)
        );
    }

    #[test]
    fn adjusted_checksum_is_the_computed_one() {
        let mut header = Ipv4Header(HEADER);
        let (old, new) = (header.dst_addr(), Ipv4Addr::new(10, 9, 8, 7));
        header.set_dst_addr(new);
        header.adjust_checksum(Delta::ZERO.replace32(old.to_bits(), new.to_bits()));
        let adjusted = header.checksum();
        header.fill_checksum();
        assert_eq!(adjusted, header.checksum());
    }
}
