//! TCP segments (RFC 9293 3.1). [`options`] has their options, [`TcpRepr`] writes whole frames.

use core::borrow::{Borrow, BorrowMut};
use core::net::IpAddr;

use super::bytes::{be16, be32, delegate_to_header, packet_view, put};
use super::checksum::{self, Delta};
use super::{Malformed, protocol};

mod emit;
mod flags;
pub mod options;

pub use emit::TcpRepr;
pub use flags::TcpFlags;
pub use options::TcpOptions;

/// Bytes of the header without options.
pub const HEADER_LEN: usize = 20;

/// Most bytes of options that a header can have.
pub const MAX_OPTIONS_LEN: usize = 40;

/// Where the checksum is in the header.
pub const CHECKSUM_OFFSET: usize = 16;

/// The fixed part of the header as an array; no access is bounds-checked.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct TcpHeader<T>(pub T);

impl<T: Borrow<[u8; HEADER_LEN]>> TcpHeader<T> {
    /// The sender's port.
    #[inline]
    pub fn src_port(&self) -> u16 {
        be16(self.0.borrow(), 0)
    }

    /// The receiver's port.
    #[inline]
    pub fn dst_port(&self) -> u16 {
        be16(self.0.borrow(), 2)
    }

    /// SEG.SEQ: the number of the first byte, or of the SYN.
    #[inline]
    pub fn seq(&self) -> u32 {
        be32(self.0.borrow(), 4)
    }

    /// SEG.ACK: the next number expected; means something only with [`TcpFlags::ACK`].
    #[inline]
    pub fn ack(&self) -> u32 {
        be32(self.0.borrow(), 8)
    }

    /// Bytes of the header, options included: 0 to 60, at least 20 in what has been parsed.
    #[inline]
    pub fn header_len(&self) -> usize {
        usize::from(self.0.borrow()[12] >> 4) * 4
    }

    /// The control bits.
    #[inline]
    pub fn flags(&self) -> TcpFlags {
        TcpFlags::from_bits_retain(self.0.borrow()[13])
    }

    /// SEG.WND as on the wire, not scaled.
    #[inline]
    pub fn window(&self) -> u16 {
        be16(self.0.borrow(), 14)
    }

    /// The checksum.
    #[inline]
    pub fn checksum(&self) -> u16 {
        be16(self.0.borrow(), CHECKSUM_OFFSET)
    }

    /// SEG.UP, relative to SEG.SEQ; means something only with [`TcpFlags::URG`].
    #[inline]
    pub fn urgent(&self) -> u16 {
        be16(self.0.borrow(), 18)
    }
}

/// No setter touches the checksum; see [`TcpHeader::adjust_checksum`].
impl<T: BorrowMut<[u8; HEADER_LEN]>> TcpHeader<T> {
    /// Sets the sender's port.
    #[inline]
    pub fn set_src_port(&mut self, port: u16) {
        put(self.0.borrow_mut(), 0, port.to_be_bytes());
    }

    /// Sets the receiver's port.
    #[inline]
    pub fn set_dst_port(&mut self, port: u16) {
        put(self.0.borrow_mut(), 2, port.to_be_bytes());
    }

    /// Sets SEG.SEQ.
    #[inline]
    pub fn set_seq(&mut self, seq: u32) {
        put(self.0.borrow_mut(), 4, seq.to_be_bytes());
    }

    /// Sets SEG.ACK.
    #[inline]
    pub fn set_ack(&mut self, ack: u32) {
        put(self.0.borrow_mut(), 8, ack.to_be_bytes());
    }

    /// Sets the bytes of the header: a multiple of 4 from 20 to 60.
    #[inline]
    pub fn set_header_len(&mut self, header_len: usize) {
        let bytes = self.0.borrow_mut();
        bytes[12] = bytes[12] & 0x0f | ((header_len / 4) as u8) << 4;
    }

    /// Sets the control bits.
    #[inline]
    pub fn set_flags(&mut self, flags: TcpFlags) {
        self.0.borrow_mut()[13] = flags.bits();
    }

    /// Sets SEG.WND.
    #[inline]
    pub fn set_window(&mut self, window: u16) {
        put(self.0.borrow_mut(), 14, window.to_be_bytes());
    }

    /// Sets the checksum.
    #[inline]
    pub fn set_checksum(&mut self, checksum: u16) {
        put(self.0.borrow_mut(), CHECKSUM_OFFSET, checksum.to_be_bytes());
    }

    /// Sets SEG.UP.
    #[inline]
    pub fn set_urgent(&mut self, urgent: u16) {
        put(self.0.borrow_mut(), 18, urgent.to_be_bytes());
    }

    /// Carries changes of the segment or its pseudo header over into the checksum.
    #[inline]
    pub fn adjust_checksum(&mut self, delta: Delta) {
        let checksum = delta.apply(self.checksum());
        self.set_checksum(checksum);
    }
}

/// A segment whose data offset has been checked.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct TcpPacket<T>(T);

impl<T: AsRef<[u8]>> TcpPacket<T> {
    /// Takes a segment: exactly the bytes that the IP packet carries, no padding.
    ///
    /// # Errors
    /// What is wrong with the length or the data offset. The checksum is not looked at.
    pub fn new_checked(segment: T) -> Result<Self, Malformed> {
        let bytes = segment.as_ref();
        let header = TcpHeader(bytes.first_chunk::<HEADER_LEN>().ok_or(Malformed::TooShort)?);
        let header_len = header.header_len();
        if header_len < HEADER_LEN || header_len > bytes.len() {
            Err(Malformed::BadLength)
        } else {
            Ok(Self(segment))
        }
    }

    /// The raw options, padding included; see [`TcpOptions::parse`] and [`options::iter`].
    pub fn options(&self) -> &[u8] {
        self.0.as_ref().get(HEADER_LEN..self.header_len()).unwrap_or_default()
    }

    /// The payload.
    pub fn payload(&self) -> &[u8] {
        self.0.as_ref().get(self.header_len()..).unwrap_or_default()
    }

    /// Whether the checksum is right for a segment between these addresses; wrong if they are of two families.
    pub fn is_checksum_valid(&self, src: IpAddr, dst: IpAddr) -> bool {
        let bytes = self.0.as_ref();
        segment_sum(src, dst, bytes).is_some_and(checksum::is_valid)
    }

    /// SEG.LEN: bytes of payload, and one each for SYN and FIN.
    pub fn segment_len(&self) -> u32 {
        self.payload().len() as u32 + self.flags().sequence_len()
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> TcpPacket<T> {
    /// The payload, for writing.
    pub fn payload_mut(&mut self) -> &mut [u8] {
        let start = self.header_len();
        self.0.as_mut().get_mut(start..).unwrap_or_default()
    }

    /// Computes the checksum for these addresses; nothing happens if they are of two families.
    pub fn fill_checksum(&mut self, src: IpAddr, dst: IpAddr) {
        self.set_checksum(0);
        if let Some(sum) = segment_sum(src, dst, self.0.as_ref()) {
            self.set_checksum(checksum::finish(sum));
        }
    }
}

fn segment_sum(src: IpAddr, dst: IpAddr, segment: &[u8]) -> Option<u32> {
    let len = u16::try_from(segment.len()).ok()?;
    Some(checksum::pseudo_header(src, dst, protocol::TCP, len)? + checksum::sum(segment))
}

packet_view!(TcpPacket, TcpHeader, HEADER_LEN);
delegate_to_header!(TcpPacket {
    src_port / set_src_port: u16,
    dst_port / set_dst_port: u16,
    seq / set_seq: u32,
    ack / set_ack: u32,
    header_len / set_header_len: usize,
    flags / set_flags: TcpFlags,
    window / set_window: u16,
    checksum / set_checksum: u16,
    urgent / set_urgent: u16,
});

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;

    use super::*;

    /// SYN from 10.0.0.1:0x1234 to 10.0.0.2:80 with an MSS option.
    const SYN: [u8; 24] = [
        0x12, 0x34, 0, 80, 1, 2, 3, 4, 5, 6, 7, 8, 0x60, 0x02, 0xfa, 0xf0, 0, 0, 0, 9, 2, 4, 5, 0xb4,
    ];

    #[test]
    fn fields_are_where_rfc_9293_puts_them() {
        let packet = TcpPacket::new_checked(SYN).expect("sound");
        assert_eq!((packet.src_port(), packet.dst_port()), (0x1234, 80));
        assert_eq!((packet.seq(), packet.ack()), (0x0102_0304, 0x0506_0708));
        assert_eq!(
            (packet.header_len(), packet.flags(), packet.window()),
            (24, TcpFlags::SYN, 0xfaf0)
        );
        assert_eq!(
            (packet.urgent(), packet.options(), packet.payload()),
            (9, &[2, 4, 5, 0xb4][..], &[][..])
        );
        assert_eq!(packet.segment_len(), 1);
    }

    #[test]
    fn every_setter_is_read_back_and_touches_nothing_else() {
        let mut header = TcpHeader([0xff; 20]);
        header.set_src_port(1);
        header.set_dst_port(2);
        header.set_seq(3);
        header.set_ack(4);
        header.set_header_len(20);
        header.set_flags(TcpFlags::ACK);
        header.set_window(5);
        header.set_checksum(6);
        header.set_urgent(7);
        assert_eq!(
            header.0,
            [0, 1, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0x5f, 0x10, 0, 5, 0, 6, 0, 7]
        );
    }

    #[test]
    fn data_offset_is_checked_at_its_boundaries() {
        for (len, offset, expected) in [
            (19, 0x50, Err(Malformed::TooShort)),
            (20, 0x40, Err(Malformed::BadLength)),
            (20, 0x50, Ok((0, 0))),
            (20, 0x60, Err(Malformed::BadLength)),
            (59, 0xf0, Err(Malformed::BadLength)),
            (60, 0xf0, Ok((40, 0))),
            (61, 0xf0, Ok((40, 1))),
        ] {
            let mut bytes = vec![0; len];
            bytes[12] = offset;
            let lengths = TcpPacket::new_checked(bytes).map(|packet| (packet.options().len(), packet.payload().len()));
            assert_eq!(lengths, expected, "{len} {offset:#x}");
        }
    }

    #[test]
    fn filled_checksum_is_valid_and_any_flipped_bit_is_found() {
        let (src, dst) = (
            IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)),
            IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)),
        );
        let mut packet = TcpPacket::new_checked(SYN).expect("sound");
        packet.fill_checksum(src, dst);
        assert!(packet.is_checksum_valid(src, dst));
        assert!(!packet.is_checksum_valid(src, IpAddr::V4(Ipv4Addr::new(10, 0, 0, 3))));
        let good = packet.into_inner();
        for bit in (0..good.len() * 8).filter(|bit| !(96..100).contains(bit)) {
            let mut bad = good;
            bad[bit / 8] ^= 1 << (7 - bit % 8);
            assert!(
                !TcpPacket::new_checked(bad)
                    .expect("same offset")
                    .is_checksum_valid(src, dst),
                "bit {bit}"
            );
        }
    }

    #[test]
    fn lengthened_header_does_not_reach_beyond_the_segment() {
        let mut packet = TcpPacket::new_checked(SYN).expect("sound");
        packet.set_header_len(60);
        assert_eq!((packet.options(), packet.payload()), (&[][..], &[][..]));
        packet.set_header_len(0);
        assert_eq!((packet.options(), packet.payload().len()), (&[][..], 24));
    }
}
