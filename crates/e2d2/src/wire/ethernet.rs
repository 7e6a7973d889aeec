//! Ethernet II (RFC 894, RFC 2464): destination, source, EtherType.

use core::borrow::{Borrow, BorrowMut};

use super::bytes::{array, be16, delegate_to_header, packet_view, put};
use super::{MacAddr, Malformed};

/// Bytes of the header, without a VLAN tag.
pub const HEADER_LEN: usize = 14;

/// EtherTypes (IEEE 802 numbers at IANA) that this crate knows.
pub mod ethertype {
    /// RFC 894.
    pub const IPV4: u16 = 0x0800;
    /// RFC 826.
    pub const ARP: u16 = 0x0806;
    /// IEEE 802.1Q customer tag.
    pub const VLAN: u16 = 0x8100;
    /// IEEE 802.1ad service tag.
    pub const SERVICE_VLAN: u16 = 0x88a8;
    /// RFC 2464.
    pub const IPV6: u16 = 0x86dd;
}

/// The header as an array; no access is bounds-checked.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct EthernetHeader<T>(pub T);

impl<T: Borrow<[u8; HEADER_LEN]>> EthernetHeader<T> {
    /// Where the frame goes.
    #[inline]
    pub fn dst_mac(&self) -> MacAddr {
        MacAddr(array(self.0.borrow(), 0))
    }

    /// Where it comes from.
    #[inline]
    pub fn src_mac(&self) -> MacAddr {
        MacAddr(array(self.0.borrow(), 6))
    }

    /// What it carries; see [`ethertype`]. Below 0x600 it is the length of an IEEE 802.3 frame.
    #[inline]
    pub fn ethertype(&self) -> u16 {
        be16(self.0.borrow(), 12)
    }
}

impl<T: BorrowMut<[u8; HEADER_LEN]>> EthernetHeader<T> {
    /// Sets where the frame goes.
    #[inline]
    pub fn set_dst_mac(&mut self, mac: MacAddr) {
        put(self.0.borrow_mut(), 0, mac.0);
    }

    /// Sets where it comes from.
    #[inline]
    pub fn set_src_mac(&mut self, mac: MacAddr) {
        put(self.0.borrow_mut(), 6, mac.0);
    }

    /// Sets what it carries.
    #[inline]
    pub fn set_ethertype(&mut self, ethertype: u16) {
        put(self.0.borrow_mut(), 12, ethertype.to_be_bytes());
    }
}

/// A frame of at least a header.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct EthernetFrame<T>(T);

impl<T: AsRef<[u8]>> EthernetFrame<T> {
    /// Takes a frame from its first byte.
    ///
    /// # Errors
    /// [`Malformed::TooShort`] if there is no whole header.
    pub fn new_checked(frame: T) -> Result<Self, Malformed> {
        if frame.as_ref().len() < HEADER_LEN {
            Err(Malformed::TooShort)
        } else {
            Ok(Self(frame))
        }
    }

    /// What follows the header, padding included.
    pub fn payload(&self) -> &[u8] {
        self.0.as_ref().get(HEADER_LEN..).unwrap_or_default()
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> EthernetFrame<T> {
    /// What follows the header, for writing.
    pub fn payload_mut(&mut self) -> &mut [u8] {
        self.0.as_mut().get_mut(HEADER_LEN..).unwrap_or_default()
    }
}

packet_view!(EthernetFrame, EthernetHeader, HEADER_LEN);
delegate_to_header!(EthernetFrame {
    dst_mac / set_dst_mac: MacAddr,
    src_mac / set_src_mac: MacAddr,
    ethertype / set_ethertype: u16,
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_byte_less_than_a_header_is_no_frame() {
        assert_eq!(EthernetFrame::new_checked([0; 13]), Err(Malformed::TooShort));
        assert_eq!(
            EthernetFrame::new_checked([0; 14]).map(|frame| frame.payload().len()),
            Ok(0)
        );
    }

    #[test]
    fn fields_are_where_the_standard_puts_them() {
        let mut frame = EthernetFrame::new_checked([0; 15]).expect("long enough");
        frame.set_dst_mac(MacAddr([1, 2, 3, 4, 5, 6]));
        frame.set_src_mac(MacAddr([7, 8, 9, 10, 11, 12]));
        frame.set_ethertype(ethertype::IPV6);
        frame.payload_mut()[0] = 13;
        assert_eq!(
            (frame.dst_mac(), frame.src_mac()),
            (MacAddr([1, 2, 3, 4, 5, 6]), MacAddr([7, 8, 9, 10, 11, 12]))
        );
        assert_eq!(frame.ethertype(), 0x86dd);
        assert_eq!(
            frame.into_inner(),
            [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0x86, 0xdd, 13]
        );
    }
}
