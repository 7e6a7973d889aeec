//! ARP for IPv4 over Ethernet (RFC 826).

use core::borrow::{Borrow, BorrowMut};
use core::net::Ipv4Addr;

use super::bytes::{array, be16, delegate_to_header, packet_view, put};
use super::emit::EmitError;
use super::ethernet::{self, EthernetHeader, ethertype};
use super::{MacAddr, Malformed};
use crate::buffer::PacketBuffer;

/// Bytes of a packet.
pub const PACKET_LEN: usize = 28;

const HARDWARE_ETHERNET: u16 = 1;

/// Hardware type, protocol type and the lengths of their addresses: Ethernet and IPv4.
const PREAMBLE: [u8; 6] = [0, 1, 8, 0, 6, 4];

/// What a packet wants.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum ArpOperation {
    /// Who has the target address?
    Request,
    /// The sender has the sender address.
    Reply,
}

/// The packet as an array; no access is bounds-checked.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct ArpHeader<T>(pub T);

impl<T: Borrow<[u8; PACKET_LEN]>> ArpHeader<T> {
    /// 1 for a request, 2 for a reply.
    pub fn operation(&self) -> u16 {
        be16(self.0.borrow(), 6)
    }

    /// The sender's Ethernet address.
    pub fn sender_mac(&self) -> MacAddr {
        MacAddr(array(self.0.borrow(), 8))
    }

    /// The sender's IPv4 address; unspecified in a probe (RFC 5227).
    pub fn sender_addr(&self) -> Ipv4Addr {
        Ipv4Addr::from(array::<PACKET_LEN, 4>(self.0.borrow(), 14))
    }

    /// The target's Ethernet address; means nothing in a request.
    pub fn target_mac(&self) -> MacAddr {
        MacAddr(array(self.0.borrow(), 18))
    }

    /// The target's IPv4 address.
    pub fn target_addr(&self) -> Ipv4Addr {
        Ipv4Addr::from(array::<PACKET_LEN, 4>(self.0.borrow(), 24))
    }
}

impl<T: BorrowMut<[u8; PACKET_LEN]>> ArpHeader<T> {
    /// Sets 1 for a request, 2 for a reply.
    pub fn set_operation(&mut self, operation: u16) {
        put(self.0.borrow_mut(), 6, operation.to_be_bytes());
    }

    /// Sets the sender's Ethernet address.
    pub fn set_sender_mac(&mut self, mac: MacAddr) {
        put(self.0.borrow_mut(), 8, mac.0);
    }

    /// Sets the sender's IPv4 address.
    pub fn set_sender_addr(&mut self, addr: Ipv4Addr) {
        put(self.0.borrow_mut(), 14, addr.octets());
    }

    /// Sets the target's Ethernet address.
    pub fn set_target_mac(&mut self, mac: MacAddr) {
        put(self.0.borrow_mut(), 18, mac.0);
    }

    /// Sets the target's IPv4 address.
    pub fn set_target_addr(&mut self, addr: Ipv4Addr) {
        put(self.0.borrow_mut(), 24, addr.octets());
    }
}

/// A packet that is about Ethernet and IPv4.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct ArpPacket<T>(T);

impl<T: AsRef<[u8]>> ArpPacket<T> {
    /// Takes a packet from its first byte; padding may follow.
    ///
    /// # Errors
    /// [`Malformed::TooShort`], or [`Malformed::BadField`] if it is about another hardware or protocol.
    pub fn new_checked(packet: T) -> Result<Self, Malformed> {
        let bytes = packet.as_ref().first_chunk::<PACKET_LEN>().ok_or(Malformed::TooShort)?;
        if be16(bytes, 0) != HARDWARE_ETHERNET || !bytes.starts_with(&PREAMBLE) {
            return Err(Malformed::BadField);
        }
        Ok(Self(packet))
    }
}

packet_view!(ArpPacket, ArpHeader, PACKET_LEN);
delegate_to_header!(ArpPacket {
    operation / set_operation: u16,
    sender_mac / set_sender_mac: MacAddr,
    sender_addr / set_sender_addr: Ipv4Addr,
    target_mac / set_target_mac: MacAddr,
    target_addr / set_target_addr: Ipv4Addr,
});

/// A packet as a value.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct ArpRepr {
    /// What it wants.
    pub operation: ArpOperation,
    /// The sender's Ethernet address.
    pub sender_mac: MacAddr,
    /// The sender's IPv4 address.
    pub sender_addr: Ipv4Addr,
    /// The target's Ethernet address.
    pub target_mac: MacAddr,
    /// The target's IPv4 address.
    pub target_addr: Ipv4Addr,
}

impl ArpRepr {
    /// Who has `target_addr`?
    pub const fn request(sender_mac: MacAddr, sender_addr: Ipv4Addr, target_addr: Ipv4Addr) -> Self {
        let (operation, target_mac) = (ArpOperation::Request, MacAddr::UNSPECIFIED);
        Self {
            operation,
            sender_mac,
            sender_addr,
            target_mac,
            target_addr,
        }
    }

    /// Tells everyone that `addr` is at `mac` (RFC 5227 2.3).
    pub const fn announcement(mac: MacAddr, addr: Ipv4Addr) -> Self {
        Self::request(mac, addr, addr)
    }

    /// The answer to this request: its target is at `mac`.
    #[must_use]
    pub const fn reply(&self, mac: MacAddr) -> Self {
        Self {
            operation: ArpOperation::Reply,
            sender_mac: mac,
            sender_addr: self.target_addr,
            target_mac: self.sender_mac,
            target_addr: self.sender_addr,
        }
    }

    /// Reads a packet, without its Ethernet header.
    ///
    /// # Errors
    /// As [`ArpPacket::new_checked`], and [`Malformed::BadField`] for another operation or a sender that is a group.
    pub fn parse(packet: &[u8]) -> Result<Self, Malformed> {
        let packet = ArpPacket::new_checked(packet)?;
        let operation = match packet.operation() {
            1 => ArpOperation::Request,
            2 => ArpOperation::Reply,
            _ => return Err(Malformed::BadField),
        };
        // A neighbour table must not learn that an address is at a group (or nowhere).
        if !packet.sender_mac().is_unicast()
            || packet.sender_addr().is_multicast()
            || packet.sender_addr().is_broadcast()
        {
            return Err(Malformed::BadField);
        }
        Ok(Self {
            operation,
            sender_mac: packet.sender_mac(),
            sender_addr: packet.sender_addr(),
            target_mac: packet.target_mac(),
            target_addr: packet.target_addr(),
        })
    }

    /// Writes a whole frame from the sender to `dst_mac` into a buffer, whose old content is lost.
    ///
    /// # Errors
    /// [`EmitError::NoRoom`].
    pub fn emit<B: PacketBuffer>(&self, buffer: &mut B, dst_mac: MacAddr) -> Result<(), EmitError> {
        buffer.truncate(0);
        buffer
            .append(ethernet::HEADER_LEN + PACKET_LEN)
            .map_err(|_| EmitError::NoRoom)?;
        let (link, packet) = buffer.data_mut().split_first_chunk_mut().ok_or(EmitError::NoRoom)?;
        let mut link = EthernetHeader(link);
        link.set_dst_mac(dst_mac);
        link.set_src_mac(self.sender_mac);
        link.set_ethertype(ethertype::ARP);

        let packet = packet.first_chunk_mut::<PACKET_LEN>().ok_or(EmitError::NoRoom)?;
        put(packet, 0, PREAMBLE);
        let mut packet = ArpHeader(packet);
        packet.set_operation(match self.operation {
            ArpOperation::Request => 1,
            ArpOperation::Reply => 2,
        });
        packet.set_sender_mac(self.sender_mac);
        packet.set_sender_addr(self.sender_addr);
        packet.set_target_mac(self.target_mac);
        packet.set_target_addr(self.target_addr);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::{BufferPool, HeapPool};
    use crate::wire::frame::{Kind, parse};

    const OURS: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
    const THEIRS: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
    const REQUEST: ArpRepr = ArpRepr::request(OURS, Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));

    const REQUEST_BYTES: [u8; 42] = [
        255, 255, 255, 255, 255, 255, 2, 0, 0, 0, 0, 1, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1, 10, 0, 0, 1, 0,
        0, 0, 0, 0, 0, 10, 0, 0, 2,
    ];

    #[test]
    fn request_is_written_as_rfc_826_says() {
        let mut buffer = HeapPool::new(1, 64).take_copy(b"old content").expect("fits");
        REQUEST.emit(&mut buffer, MacAddr::BROADCAST).expect("fits");
        assert_eq!(buffer.data(), REQUEST_BYTES);
        assert_eq!(parse(buffer.data()), Ok(Kind::Arp));
        assert_eq!(
            HeapPool::new(1, 41)
                .take()
                .map(|mut small| REQUEST.emit(&mut small, OURS)),
            Some(Err(EmitError::NoRoom))
        );
    }

    #[test]
    fn packets_read_back_as_written() {
        let mut buffer = HeapPool::new(1, 64).take().expect("fresh");
        for repr in [
            REQUEST,
            REQUEST.reply(THEIRS),
            ArpRepr::announcement(OURS, Ipv4Addr::new(10, 0, 0, 1)),
        ] {
            repr.emit(&mut buffer, THEIRS).expect("fits");
            assert_eq!(ArpRepr::parse(&buffer.data()[14..]), Ok(repr));
        }
    }

    #[test]
    fn reply_goes_back_to_who_asked() {
        let reply = REQUEST.reply(THEIRS);
        assert_eq!(
            (reply.operation, reply.sender_mac, reply.target_mac),
            (ArpOperation::Reply, THEIRS, OURS)
        );
        assert_eq!(
            (reply.sender_addr, reply.target_addr),
            (REQUEST.target_addr, REQUEST.sender_addr)
        );
    }

    #[test]
    fn what_is_not_ethernet_and_ipv4_is_refused() {
        let good = &REQUEST_BYTES[14..];
        assert_eq!(ArpRepr::parse(good), Ok(REQUEST));
        assert_eq!(ArpRepr::parse(&good[..27]), Err(Malformed::TooShort));
        for at in 0..8 {
            let mut bad = good.to_vec();
            bad[at] ^= 4;
            assert_eq!(ArpRepr::parse(&bad), Err(Malformed::BadField), "byte {at}");
        }
        for (at, byte) in [(8, 3), (14, 224), (7, 0), (7, 3)] {
            let mut bad = good.to_vec();
            bad[at] = byte;
            assert_eq!(ArpRepr::parse(&bad), Err(Malformed::BadField), "byte {at} = {byte}");
        }
        let mut probe = good.to_vec();
        probe[14..18].fill(0);
        assert!(ArpRepr::parse(&probe).is_ok_and(|probe| probe.sender_addr.is_unspecified()));
    }
}
