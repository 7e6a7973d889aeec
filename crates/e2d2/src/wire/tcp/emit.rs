//! Writing whole TCP frames.
//!
//! Budget: ≤ 60 cycles for a segment with options and without payload; 40 (an ACK) to 45 (a SYN) on a 2.6 GHz EPYC
//! (`benches/wire.rs`).

use core::net::IpAddr;

use super::{CHECKSUM_OFFSET, HEADER_LEN, TcpFlags, TcpOptions};
use crate::buffer::{PacketBuffer, TxOffload};
use crate::wire::bytes::put;
use crate::wire::checksum;
use crate::wire::emit::{Checksums, EmitError, Envelope};
use crate::wire::frame::{IpVersion, TcpLayout};
use crate::wire::{ethernet, protocol};

/// A TCP segment to be written, with all the headers in front of it.
///
/// IPv4 headers have don't-fragment set and identification 0 (RFC 6864 4.1).
///
/// ```
/// use e2d2::buffer::{BufferPool, HeapPool, PacketBuffer};
/// use e2d2::wire::tcp::{TcpFlags, TcpOptions, TcpRepr};
/// use e2d2::wire::{Envelope, MacAddr, frame};
///
/// let syn = TcpRepr {
///     envelope: Envelope {
///         src_mac: MacAddr([2, 0, 0, 0, 0, 1]),
///         dst_mac: MacAddr([2, 0, 0, 0, 0, 2]),
///         src_addr: [192, 0, 2, 1].into(),
///         dst_addr: [192, 0, 2, 2].into(),
///         hop_limit: 64,
///     },
///     src_port: 40_000,
///     dst_port: 80,
///     seq: 1,
///     ack: 0,
///     flags: TcpFlags::SYN,
///     window: 64_240,
///     options: TcpOptions { mss: Some(1460), ..TcpOptions::NONE },
///     sack_blocks: &[],
///     payload: &[],
/// };
/// let mut buffer = HeapPool::new(1, 1514).take().expect("a fresh pool has a buffer");
/// let layout = syn.emit(&mut buffer).expect("a SYN fits");
/// assert_eq!(frame::parse(buffer.data()), Ok(frame::Kind::Tcp(layout)));
/// ```
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct TcpRepr<'a> {
    /// Ethernet and IP.
    pub envelope: Envelope,
    /// The sender's port.
    pub src_port: u16,
    /// The receiver's port.
    pub dst_port: u16,
    /// SEG.SEQ.
    pub seq: u32,
    /// SEG.ACK; written even if the ACK flag is not set.
    pub ack: u32,
    /// The control bits.
    pub flags: TcpFlags,
    /// SEG.WND as on the wire, not scaled.
    pub window: u16,
    /// The options.
    pub options: TcpOptions,
    /// SACK blocks, as many of them as fit.
    pub sack_blocks: &'a [(u32, u32)],
    /// The payload.
    pub payload: &'a [u8],
}

impl TcpRepr<'_> {
    /// Writes the frame into a buffer, whose old content is lost, with all checksums.
    ///
    /// # Errors
    /// See [`EmitError`].
    pub fn emit<B: PacketBuffer>(&self, buffer: &mut B) -> Result<TcpLayout, EmitError> {
        self.emit_with(buffer, Checksums::Software)
    }

    /// Writes the frame and leaves the checksums to the port if asked to.
    ///
    /// # Errors
    /// See [`EmitError`].
    #[inline(always)] // So that what is written need not be put together in memory first.
    pub fn emit_with<B: PacketBuffer>(&self, buffer: &mut B, checksums: Checksums) -> Result<TcpLayout, EmitError> {
        self.emit_behind(&[], buffer, checksums)
    }

    /// As [`TcpRepr::emit_with`], with `front` before the payload: for bytes that do not stand together in memory.
    ///
    /// # Errors
    /// See [`EmitError`].
    #[inline(always)]
    pub fn emit_behind<B: PacketBuffer>(
        &self,
        front: &[u8],
        buffer: &mut B,
        checksums: Checksums,
    ) -> Result<TcpLayout, EmitError> {
        let options_len = self
            .options
            .encoded_len(self.options.fitting_blocks(self.sack_blocks.len()));
        let header_len = HEADER_LEN + options_len;
        let segment_len = header_len + front.len() + self.payload.len();
        let l4 = self.envelope.open_for_all(buffer, protocol::TCP, segment_len)?;

        // `open` made sure that every offset fits into 16 bits.
        let (src, dst, len) = (self.envelope.src_addr, self.envelope.dst_addr, segment_len as u16);
        let pseudo = checksum::wide_pseudo_header(src, dst, protocol::TCP, len).ok_or(EmitError::MixedFamilies)?;
        let segment = buffer.data_mut().get_mut(l4..).ok_or(EmitError::NoRoom)?;
        self.write_segment(segment, options_len, front, pseudo, checksums)
            .ok_or(EmitError::NoRoom)?;

        let layout = TcpLayout {
            version: if src.is_ipv4() { IpVersion::V4 } else { IpVersion::V6 },
            l3: ethernet::HEADER_LEN as u16,
            l4: l4 as u16,
            payload: (l4 + header_len) as u16,
            end: (l4 + segment_len) as u16,
        };
        if checksums == Checksums::Port {
            leave_to_port(buffer, &layout, src);
        }
        Ok(layout)
    }

    /// Fills a segment of the right length; nothing is returned if it is not.
    ///
    /// The checksum is taken from the values, not from what was just written; see [`checksum::sum_values`].
    #[inline(always)]
    fn write_segment(
        &self,
        segment: &mut [u8],
        options_len: usize,
        front: &[u8],
        pseudo: u64,
        checksums: Checksums,
    ) -> Option<()> {
        let (header, rest) = segment.split_first_chunk_mut::<HEADER_LEN>()?;
        let (options_at, payload_at) = rest.split_at_mut_checked(options_len)?;
        let mut sum = pseudo;
        let mut slots = options_at.as_chunks_mut::<4>().0.iter_mut();
        self.options.for_each_word(self.sack_blocks, |word| {
            if let Some(slot) = slots.next() {
                *slot = word;
                sum += u64::from(u32::from_be_bytes(word));
            }
        });
        let (front_at, payload_at) = payload_at.split_at_mut_checked(front.len())?;
        if payload_at.len() != self.payload.len() {
            return None;
        }

        let header_len = HEADER_LEN + options_len;
        let fourth = ((header_len / 4) as u32) << 28 | u32::from(self.flags.bits()) << 16 | u32::from(self.window);
        let ports = u32::from(self.src_port) << 16 | u32::from(self.dst_port);
        sum += [ports, self.seq, self.ack, fourth].map(u64::from).iter().sum::<u64>();
        if !front.is_empty() {
            front_at.copy_from_slice(front);
            sum += u64::from(checksum::sum(front));
        }
        if !self.payload.is_empty() {
            payload_at.copy_from_slice(self.payload);
            sum += u64::from(checksum::sum_at(front.len(), self.payload));
        }
        let checksum = match checksums {
            Checksums::Software => checksum::finish_wide(sum),
            Checksums::Port => !checksum::finish_wide(pseudo),
        };
        put(header, 0, ports.to_be_bytes());
        put(header, 4, self.seq.to_be_bytes());
        put(header, 8, self.ack.to_be_bytes());
        put(header, 12, fourth.to_be_bytes());
        // The urgent pointer behind it is zero.
        put(header, CHECKSUM_OFFSET, (u32::from(checksum) << 16).to_be_bytes());
        Some(())
    }
}

/// [`TxOffload`] wants the IPv4 header checksum zeroed.
fn leave_to_port<B: PacketBuffer>(buffer: &mut B, layout: &TcpLayout, src: IpAddr) {
    let TcpLayout { l3, l4, .. } = *layout;
    if src.is_ipv4() {
        if let Some(header) = buffer
            .data_mut()
            .get_mut(usize::from(l3)..)
            .and_then(|ip| ip.first_chunk_mut())
        {
            crate::wire::ipv4::Ipv4Header(header).set_checksum(0);
        }
        buffer.set_tx_offload(TxOffload::TcpIpv4 { l3, l4 });
    } else {
        buffer.set_tx_offload(TxOffload::TcpIpv6 { l3, l4 });
    }
}

#[cfg(test)]
mod tests {
    use core::net::{Ipv4Addr, Ipv6Addr};

    use super::*;
    use crate::buffer::{BufferPool, HeapPool};
    use crate::wire::MacAddr;
    use crate::wire::ethernet::EthernetFrame;
    use crate::wire::frame::{Kind, parse};
    use crate::wire::ipv4::Ipv4Packet;
    use crate::wire::ipv6::Ipv6Packet;
    use crate::wire::tcp::TcpPacket;

    const PAYLOAD: &[u8] = b"GET / HTTP/1.1\r\n\r\n!";

    fn segment(src_addr: IpAddr, dst_addr: IpAddr) -> TcpRepr<'static> {
        TcpRepr {
            envelope: Envelope {
                src_mac: MacAddr([2, 0, 0, 0, 0, 1]),
                dst_mac: MacAddr([2, 0, 0, 0, 0, 2]),
                src_addr,
                dst_addr,
                hop_limit: 64,
            },
            src_port: 40_000,
            dst_port: 443,
            seq: 0xfffe_0001,
            ack: 0x8000_0002,
            flags: TcpFlags::ACK | TcpFlags::PSH,
            window: 501,
            options: TcpOptions {
                timestamps: Some((5, 6)),
                ..TcpOptions::NONE
            },
            sack_blocks: &[(10, 20)],
            payload: PAYLOAD,
        }
    }

    fn v4() -> TcpRepr<'static> {
        segment(
            Ipv4Addr::new(192, 0, 2, 1).into(),
            Ipv4Addr::new(198, 51, 100, 2).into(),
        )
    }

    fn v6() -> TcpRepr<'static> {
        segment(Ipv6Addr::from([0x20; 16]).into(), Ipv6Addr::from([0x21; 16]).into())
    }

    #[test]
    fn emitted_segments_parse_back_with_right_checksums() {
        let mut pool = HeapPool::new(1, 1514);
        for repr in [v4(), v6()] {
            let mut buffer = pool.take_copy(b"old content").expect("free");
            let layout = repr.emit(&mut buffer).expect("fits");
            assert_eq!(parse(buffer.data()), Ok(Kind::Tcp(layout)));
            assert_eq!(usize::from(layout.end), buffer.len());

            let segment = &buffer.data()[usize::from(layout.l4)..];
            let packet = TcpPacket::new_checked(segment).expect("sound");
            assert!(packet.is_checksum_valid(repr.envelope.src_addr, repr.envelope.dst_addr));
            assert_eq!((packet.src_port(), packet.dst_port()), (40_000, 443));
            assert_eq!(
                (packet.seq(), packet.ack(), packet.window()),
                (0xfffe_0001, 0x8000_0002, 501)
            );
            assert_eq!(
                (packet.flags(), packet.urgent(), packet.payload()),
                (repr.flags, 0, PAYLOAD)
            );
            assert_eq!(TcpOptions::parse(packet.options()), repr.options);
            assert_eq!(super::super::options::sack_blocks(packet.options())[..], [(10, 20)]);
        }
    }

    #[test]
    fn ip_headers_are_those_of_rfc_6864_and_8200() {
        let mut buffer = HeapPool::new(1, 1514).take().expect("fresh");
        v4().emit(&mut buffer).expect("fits");
        let link = EthernetFrame::new_checked(buffer.data()).expect("sound");
        assert_eq!(
            (link.src_mac(), link.dst_mac()),
            (MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2]))
        );
        let ip = Ipv4Packet::new_checked(link.payload()).expect("sound");
        assert!(ip.is_checksum_valid() && ip.dont_fragment());
        assert_eq!((ip.ident(), ip.hop_limit(), ip.traffic_class()), (0, 64, 0));
        assert_eq!(usize::from(ip.total_len()), link.payload().len());

        v6().emit(&mut buffer).expect("fits");
        let ip = Ipv6Packet::new_checked(&buffer.data()[14..]).expect("sound");
        assert_eq!(
            (ip.traffic_class(), ip.flow_label(), ip.hop_limit(), ip.next_header()),
            (0, 0, 64, 6)
        );
        assert_eq!(usize::from(ip.payload_len()), buffer.len() - 54);
    }

    /// The port adds the segment to what the field holds and inverts: the result must be the software's.
    #[test]
    fn checksums_left_to_the_port_come_out_the_same() {
        let mut pool = HeapPool::new(2, 1514);
        for repr in [v4(), v6()] {
            let (mut ours, mut ports) = (pool.take().expect("free"), pool.take().expect("free"));
            let layout = repr.emit(&mut ours).expect("fits");
            repr.emit_with(&mut ports, Checksums::Port).expect("fits");
            let offload = ports.take_tx_offload();
            let (l3, l4) = (layout.l3, layout.l4);
            if repr.envelope.src_addr.is_ipv4() {
                assert_eq!(offload, Some(TxOffload::TcpIpv4 { l3, l4 }));
                let mut ip = Ipv4Packet::new_checked(&mut ports.data_mut()[14..]).expect("sound");
                assert_eq!(ip.checksum(), 0);
                ip.header_mut().fill_checksum();
            } else {
                assert_eq!(offload, Some(TxOffload::TcpIpv6 { l3, l4 }));
            }
            let field = checksum::internet(&ports.data()[usize::from(l4)..]);
            let segment = &mut ports.data_mut()[usize::from(l4)..];
            TcpPacket::new_checked(segment).expect("sound").set_checksum(field);
            assert_eq!(ours.data(), ports.data());
        }
    }

    /// Wherever the bytes are cut, the frame is that of all of them.
    #[test]
    fn bytes_in_two_pieces_make_the_same_frame() {
        let mut pool = HeapPool::new(2, 1514);
        for (repr, checksums) in [
            (v4(), Checksums::Software),
            (v6(), Checksums::Software),
            (v4(), Checksums::Port),
        ] {
            let mut whole = pool.take().expect("free");
            let layout = repr.emit_with(&mut whole, checksums).expect("fits");
            for cut in 0..=PAYLOAD.len() {
                let (front, payload) = PAYLOAD.split_at(cut);
                let mut joined = pool.take_copy(&[0xee; 200]).expect("free");
                let behind = TcpRepr { payload, ..repr };
                assert_eq!(behind.emit_behind(front, &mut joined, checksums), Ok(layout));
                assert_eq!(joined.data(), whole.data(), "cut at {cut}");
            }
        }
    }

    #[test]
    fn what_cannot_be_written_is_refused_and_leaves_an_empty_buffer() {
        let mut pool = HeapPool::new(1, 14 + 20 + 20 + 12 + 12 + PAYLOAD.len());
        let mut buffer = pool.take().expect("fresh");
        assert!(v4().emit(&mut buffer).is_ok());
        let longer = [0; PAYLOAD.len() + 1];
        assert_eq!(
            TcpRepr {
                payload: &longer,
                ..v4()
            }
            .emit(&mut buffer),
            Err(EmitError::NoRoom)
        );
        assert!(buffer.is_empty());
        let mixed = segment(Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into());
        assert_eq!(mixed.emit(&mut buffer), Err(EmitError::MixedFamilies));
        assert_eq!(
            TcpRepr {
                payload: &[0; 65_535],
                ..v6()
            }
            .emit(&mut buffer),
            Err(EmitError::TooLong)
        );
        assert!(buffer.is_empty());
    }
}
