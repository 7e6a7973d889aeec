//! What is common to all frames that are originated here: Ethernet and IP header in front of a message.

use core::net::IpAddr;

use super::MacAddr;
use super::ethernet::{self, EthernetHeader, ethertype};
use super::ipv4::{self, Ipv4Header};
use super::ipv6::{self, Ipv6Header};
use crate::buffer::PacketBuffer;

/// Between whom a frame passes, and how far.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct Envelope {
    /// Ethernet source.
    pub src_mac: MacAddr,
    /// Ethernet destination.
    pub dst_mac: MacAddr,
    /// IP source.
    pub src_addr: IpAddr,
    /// IP destination, of the same family.
    pub dst_addr: IpAddr,
    /// TTL or hop limit.
    pub hop_limit: u8,
}

/// Why a frame was not written. The buffer is empty then.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum EmitError {
    /// The buffer is too small for the frame.
    #[error("the buffer is too small for the frame")]
    NoRoom,
    /// One address is of IPv4, the other of IPv6, or the message belongs to the other version.
    #[error("the addresses are not of the same IP version as the message")]
    MixedFamilies,
    /// The message is longer than an IP packet can be.
    #[error("the message is longer than an IP packet can be")]
    TooLong,
}

/// Who fills in the transport checksum of an emitted frame (and the IPv4 header's, where there is one).
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Default)]
pub enum Checksums {
    /// We do, now.
    #[default]
    Software,
    /// The port does; only for ports whose capabilities say so.
    Port,
}

impl Envelope {
    /// Empties the buffer and writes headers and zeroed room for a message; returns the offset of the message.
    pub(crate) fn open<B: PacketBuffer>(&self, buffer: &mut B, protocol: u8, len: usize) -> Result<usize, EmitError> {
        buffer.truncate(0);
        let message_at = self.measure(len)?;
        buffer.append(message_at + len).map_err(|_| EmitError::NoRoom)?;
        self.write(buffer.data_mut(), protocol, len as u16)
            .ok_or(EmitError::NoRoom)?;
        Ok(message_at)
    }

    /// As [`Envelope::open`] for a message all of whose bytes will be written: the room for it is not zeroed.
    #[inline(always)]
    pub(crate) fn open_for_all<B: PacketBuffer>(
        &self,
        buffer: &mut B,
        protocol: u8,
        len: usize,
    ) -> Result<usize, EmitError> {
        let message_at = match self.measure(len) {
            Ok(message_at) => message_at,
            Err(error) => {
                buffer.truncate(0);
                return Err(error);
            }
        };
        buffer.begin_anew(message_at + len).map_err(|_| EmitError::NoRoom)?;
        self.write(buffer.data_mut(), protocol, len as u16)
            .ok_or(EmitError::NoRoom)?;
        Ok(message_at)
    }

    /// Empties the buffer and writes an IP packet that somebody else has made behind an Ethernet header; of this only the MAC
    /// addresses and the version of IP are used.
    ///
    /// # Errors
    /// [`EmitError::NoRoom`]; the buffer is empty then.
    pub fn wrap<B: PacketBuffer>(&self, packet: &[u8], buffer: &mut B) -> Result<(), EmitError> {
        buffer.truncate(0);
        let len = ethernet::HEADER_LEN + packet.len();
        buffer.append(len).map_err(|_| EmitError::NoRoom)?;
        let (link, room) = (buffer.data_mut().split_first_chunk_mut()).ok_or(EmitError::NoRoom)?;
        let mut link = EthernetHeader(link);
        link.set_dst_mac(self.dst_mac);
        link.set_src_mac(self.src_mac);
        link.set_ethertype(match self.dst_addr {
            IpAddr::V4(_) => ethertype::IPV4,
            IpAddr::V6(_) => ethertype::IPV6,
        });
        room.copy_from_slice(packet);
        Ok(())
    }

    /// The offset of a message of `len` bytes, if it can be sent.
    #[inline(always)]
    fn measure(&self, len: usize) -> Result<usize, EmitError> {
        let ip_header_len = match (self.src_addr, self.dst_addr) {
            (IpAddr::V4(_), IpAddr::V4(_)) => ipv4::HEADER_LEN,
            (IpAddr::V6(_), IpAddr::V6(_)) => ipv6::HEADER_LEN,
            _ => return Err(EmitError::MixedFamilies),
        };
        let message_at = ethernet::HEADER_LEN + ip_header_len;
        // Offsets in a frame are 16 bits wide, so the Ethernet header counts, too.
        if message_at + len > usize::from(u16::MAX) {
            return Err(EmitError::TooLong);
        }
        Ok(message_at)
    }

    /// Writes all bytes of the headers before a message of `len` bytes; nothing if the frame is too short for them.
    #[inline(always)]
    fn write(&self, frame: &mut [u8], protocol: u8, len: u16) -> Option<()> {
        let (link, packet) = frame.split_first_chunk_mut()?;
        let mut link = EthernetHeader(link);
        link.set_dst_mac(self.dst_mac);
        link.set_src_mac(self.src_mac);
        match (self.src_addr, self.dst_addr) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                link.set_ethertype(ethertype::IPV4);
                let packet_len = ipv4::HEADER_LEN as u16 + len;
                Ipv4Header(packet.first_chunk_mut()?).init(packet_len, protocol, self.hop_limit, src, dst);
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                link.set_ethertype(ethertype::IPV6);
                Ipv6Header(packet.first_chunk_mut()?).init(len, protocol, self.hop_limit, src, dst);
            }
            _ => return None,
        }
        Some(())
    }
}
