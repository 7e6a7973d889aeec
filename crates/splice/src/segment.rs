//! The header of a received segment as plain values, read once.

use super::replay_filter::Returned;
use super::table::FlowRef;
use e2d2::buffer::ChecksumStatus;
use e2d2::port::PortId;
use e2d2::wire::MacAddr;
use e2d2::wire::frame::{IpVersion, TcpLayout};
use e2d2::wire::tcp::TcpFlags;
use netfcts::FourTuple;
use netfcts::leg::MAPPED;
use netfcts::seq::SeqNum;

/// What the core decides by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    /// Sender as remote, receiver (us) as local.
    pub(super) key: FourTuple,
    /// The hash of `key` in the flow table.
    pub(super) hash: u64,
    /// SEG.SEQ.
    pub(super) seq: SeqNum,
    /// SEG.ACK; meaningless without the flag.
    pub(super) ack: SeqNum,
    /// The window field as sent.
    pub(super) window: u16,
    /// The flags.
    pub(super) flags: TcpFlags,
    /// The sender's MAC address.
    pub(super) source_mac: MacAddr,
    /// The port it came by.
    pub(super) device: PortId,
    /// Where the headers are.
    pub(super) layout: TcpLayout,
    /// What is known of its checksum.
    pub(super) checksum: ChecksumStatus,
    /// Where the table had a flow like this, unchecked, when its batch was read.
    pub(super) guess: Option<FlowRef>,
}

/// What the headers say: the part of a [`Segment`] that is read.
pub(super) struct Header {
    pub(super) key: FourTuple,
    pub(super) seq: SeqNum,
    pub(super) ack: SeqNum,
    pub(super) window: u16,
    pub(super) flags: TcpFlags,
    pub(super) source_mac: MacAddr,
}

impl Header {
    /// Reads the headers of `frame`; `None` if they do not fit `layout`.
    #[inline(always)]
    pub(super) fn read(frame: &[u8], layout: TcpLayout) -> Option<Header> {
        let source_mac = MacAddr(*frame.get(6..12)?.first_chunk()?);
        let l3 = usize::from(layout.l3);
        let (remote, local) = match layout.version {
            IpVersion::V4 => {
                let addresses: &[u8; 8] = frame.get(l3 + 12..)?.first_chunk()?;
                let remote = u32::from_be_bytes([addresses[0], addresses[1], addresses[2], addresses[3]]);
                let local = u32::from_be_bytes([addresses[4], addresses[5], addresses[6], addresses[7]]);
                (MAPPED | u128::from(remote), MAPPED | u128::from(local))
            }
            IpVersion::V6 => {
                let remote: &[u8; 16] = frame.get(l3 + 8..)?.first_chunk()?;
                let local: &[u8; 16] = frame.get(l3 + 24..)?.first_chunk()?;
                (u128::from_be_bytes(*remote), u128::from_be_bytes(*local))
            }
        };
        let tcp: &[u8; 20] = frame.get(usize::from(layout.l4)..)?.first_chunk()?;
        let word = |at: usize| u32::from_be_bytes([tcp[at], tcp[at + 1], tcp[at + 2], tcp[at + 3]]);
        let (ports, fourth) = (word(0), word(12));
        Some(Header {
            key: FourTuple {
                remote,
                local,
                remote_port: (ports >> 16) as u16,
                local_port: ports as u16,
            },
            seq: SeqNum(word(4)),
            ack: SeqNum(word(8)),
            window: fourth as u16,
            flags: TcpFlags::from_bits_retain((fourth >> 16) as u8),
            source_mac,
        })
    }
}

/// Who sent the segment in `frame`, in the form in which the core keeps an address; `None` if that does not fit `layout`.
#[inline]
pub(super) fn sender(frame: &[u8], layout: TcpLayout) -> Option<u128> {
    let l3 = usize::from(layout.l3);
    match layout.version {
        IpVersion::V4 => Some(MAPPED | u128::from(u32::from_be_bytes(*frame.get(l3 + 12..)?.first_chunk()?))),
        IpVersion::V6 => Some(u128::from_be_bytes(*frame.get(l3 + 8..)?.first_chunk()?)),
    }
}

impl Segment {
    /// The number of payload bytes.
    pub(super) fn payload_len(&self) -> u32 {
        u32::from(self.layout.payload_len())
    }

    /// SEG.LEN: payload, and one each for SYN and FIN (RFC 9293 3.3.1).
    pub(super) fn len(&self) -> u32 {
        self.payload_len() + u32::from(self.has(TcpFlags::SYN)) + u32::from(self.has(TcpFlags::FIN))
    }

    /// SEG.SEQ + SEG.LEN.
    pub(super) fn end(&self) -> SeqNum {
        self.seq + self.len()
    }

    /// What it says if it brings a cookie back.
    pub(super) fn returned_cookie(&self) -> Returned {
        Returned {
            seq: self.seq,
            ack: self.ack,
        }
    }

    /// True if all of `flags` are set.
    pub(super) fn has(&self, flags: TcpFlags) -> bool {
        self.flags.contains(flags)
    }

    /// The payload in the `frame` that this segment was read from.
    pub(super) fn payload<'a>(&self, frame: &'a [u8]) -> &'a [u8] {
        frame
            .get(usize::from(self.layout.payload)..usize::from(self.layout.end))
            .unwrap_or_default()
    }

    /// The options in the `frame` that this segment was read from.
    pub(super) fn options<'a>(&self, frame: &'a [u8]) -> &'a [u8] {
        frame
            .get(usize::from(self.layout.l4) + 20..usize::from(self.layout.payload))
            .unwrap_or_default()
    }
}
