//! The header of a received segment as plain values, read once.

use crate::session::table::FlowRef;
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
pub(crate) struct Segment {
    /// Sender as remote, receiver (us) as local.
    pub(crate) key: FourTuple,
    /// The hash of `key` in the flow table.
    pub(crate) hash: u64,
    /// SEG.SEQ.
    pub(crate) seq: SeqNum,
    /// SEG.ACK; meaningless without the flag.
    pub(crate) ack: SeqNum,
    /// The window field as sent.
    pub(crate) window: u16,
    /// The flags.
    pub(crate) flags: TcpFlags,
    /// The sender's MAC address.
    pub(crate) source_mac: MacAddr,
    /// The port it came by.
    pub(crate) device: PortId,
    /// Where the headers are.
    pub(crate) layout: TcpLayout,
    /// The status of its checksum, by the port or by our own sum.
    pub(crate) checksum: ChecksumStatus,
    /// Where the table had a flow like this, unchecked, when its batch was read.
    pub(crate) guess: Option<FlowRef>,
    /// What the selector has looked up for a sender without a flow.
    pub(crate) looked_up: Option<u16>,
}

/// What the headers say: the part of a [`Segment`] that is read.
pub(crate) struct Header {
    pub(crate) key: FourTuple,
    pub(crate) seq: SeqNum,
    pub(crate) ack: SeqNum,
    pub(crate) window: u16,
    pub(crate) flags: TcpFlags,
    pub(crate) source_mac: MacAddr,
}

impl Header {
    /// Reads the headers of `frame`; `None` if they do not fit `layout`.
    #[inline(always)]
    pub(crate) fn read(frame: &[u8], layout: TcpLayout) -> Option<Header> {
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
pub(crate) fn sender(frame: &[u8], layout: TcpLayout) -> Option<u128> {
    let l3 = usize::from(layout.l3);
    match layout.version {
        IpVersion::V4 => Some(MAPPED | u128::from(u32::from_be_bytes(*frame.get(l3 + 12..)?.first_chunk()?))),
        IpVersion::V6 => Some(u128::from_be_bytes(*frame.get(l3 + 8..)?.first_chunk()?)),
    }
}

impl Segment {
    /// The number of payload bytes.
    pub(crate) fn payload_len(&self) -> u32 {
        u32::from(self.layout.payload_len())
    }

    /// SEG.LEN: payload, and one each for SYN and FIN (RFC 9293 3.3.1).
    pub(crate) fn len(&self) -> u32 {
        self.payload_len() + u32::from(self.has(TcpFlags::SYN)) + u32::from(self.has(TcpFlags::FIN))
    }

    /// SEG.SEQ + SEG.LEN.
    pub(crate) fn end(&self) -> SeqNum {
        self.seq + self.len()
    }

    /// What it says if it brings a cookie back.
    pub(crate) fn returned_cookie(&self) -> Returned {
        Returned {
            seq: self.seq,
            ack: self.ack,
        }
    }

    /// True if all of `flags` are set.
    pub(crate) fn has(&self, flags: TcpFlags) -> bool {
        self.flags.contains(flags)
    }

    /// The payload in the `frame` that this segment was read from.
    pub(crate) fn payload<'a>(&self, frame: &'a [u8]) -> &'a [u8] {
        frame
            .get(usize::from(self.layout.payload)..usize::from(self.layout.end))
            .unwrap_or_default()
    }

    /// The options in the `frame` that this segment was read from.
    pub(crate) fn options<'a>(&self, frame: &'a [u8]) -> &'a [u8] {
        frame
            .get(usize::from(self.layout.l4) + 20..usize::from(self.layout.payload))
            .unwrap_or_default()
    }
}

/// The numbers of the segment that brings a cookie back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Returned {
    /// The number after the client's initial one.
    pub seq: SeqNum,
    /// The number after the cookie.
    pub ack: SeqNum,
}
