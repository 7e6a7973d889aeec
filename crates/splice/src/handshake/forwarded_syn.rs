//! SYNs that are passed on: what must be remembered of one until its client has acknowledged the server's answer
//! (DECISIONS.md 22).
//!
//! The client repeats its SYN, but another server may have to get it before that, and every repetition must look the same
//! to the server. So the SYN is kept here, in a table of fixed size, and written afresh each time; the connection knows
//! its place. Nothing of it is left once packets pass.

use crate::base::drop_reason::DropReason;
use crate::base::ids::PoolId;
use crate::base::path::Path;
use crate::session::numbers::Control;
use crate::session::segment::Segment;
use e2d2::buffer::PacketBuffer;
use e2d2::wire::Checksums;
use e2d2::wire::checksum::Delta;
use e2d2::wire::tcp::options::{self, OptionBytes, kind};
use e2d2::wire::tcp::{HEADER_LEN, TcpFlags, TcpOptions, TcpPacket};
use netfcts::seq::SeqNum;

/// The most SYNs that are remembered: their places are numbered with 16 bits.
pub(crate) const MOST: usize = u16::MAX as usize;

/// A client's SYN, and the answer to it.
#[derive(Clone, Debug)]
pub(crate) struct ForwardedSyn {
    /// Its options, those taken out that must not pass.
    pub options: OptionBytes,
    /// SYN and what it says about ECN.
    pub flags: TcpFlags,
    /// Its window, never scaled (RFC 7323 2.2).
    pub window: u16,
    /// What the server has answered.
    pub answer: Option<ServerSynAck>,
    /// The pool that the server was chosen from, once it has answered.
    pub pool: Option<PoolId>,
}

/// The server's SYN-ACK.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerSynAck {
    /// The server's initial sequence number.
    pub isn: SeqNum,
    /// Its window, never scaled.
    pub window: u16,
    /// Its options.
    pub options: TcpOptions,
    /// What is added to its TSval towards the client.
    pub tsval_shift: u32,
    /// The TSval that the client was sent last.
    pub newest_tsval: u32,
}

impl ServerSynAck {
    /// That in `segment`, with these options, when the clock of timestamps for the client stands at `clock`.
    pub(crate) fn of(segment: &Segment, options: TcpOptions, clock: u32) -> Self {
        ServerSynAck {
            isn: segment.seq,
            window: segment.window,
            options,
            tsval_shift: options.timestamps.map_or(0, |(tsval, _)| clock.wrapping_sub(tsval)),
            newest_tsval: clock,
        }
    }
}

impl ForwardedSyn {
    /// What is kept of the client's SYN in `frame`. Data on it are not: no fast-open cookie vouches for them, so the
    /// server would not take them either (RFC 7413 4.2.2), and the client sends them again when they are not acknowledged
    /// (RFC 9293 3.10.7.3).
    ///
    /// Where bytes may end here, as those of a header or of what an inspector replaces: whoever sends them would hear nothing of
    /// the marks on them, so ECN is not agreed on (RFC 3168 6.1.3).
    pub(crate) fn of(segment: &Segment, frame: &[u8], ends_here: bool) -> Self {
        ForwardedSyn {
            options: passable(segment.options(frame)),
            flags: if ends_here {
                TcpFlags::SYN
            } else {
                TcpFlags::SYN | ecn(segment)
            },
            window: segment.window,
            answer: None,
            pool: None,
        }
    }
}

/// What a SYN or SYN-ACK says about ECN passes (RFC 3168 6.1.1): from then on every mark in IP and TCP passes as well, so
/// both ends can rely on it.
pub(crate) fn ecn(segment: &Segment) -> TcpFlags {
    segment.flags & (TcpFlags::ECE | TcpFlags::CWR)
}

/// The options of a SYN or SYN-ACK without those that would not survive the change of addresses and numbers (DECISIONS.md
/// 13): fast-open cookies are bound to addresses, MPTCP's tokens to both ends, MD5 and AO sign the numbers.
pub(crate) fn passable(raw: &[u8]) -> OptionBytes {
    let mut passed: OptionBytes = raw.iter().copied().take(OptionBytes::new().capacity()).collect();
    let _: Delta = options::blank(&mut passed, |kind| {
        matches!(
            kind,
            kind::FAST_OPEN | kind::MULTIPATH | kind::MD5 | kind::AUTHENTICATION
        )
    });
    passed
}

/// `raw` for the other side: an MSS that fits the links on both sides, and timestamps in its view.
pub(crate) fn translated(raw: &OptionBytes, largest_mss: u16, timestamps: Option<(u32, u32)>) -> OptionBytes {
    let mut bytes = raw.clone();
    let of_mss: arrayvec::ArrayVec<usize, 10> = options::iter(raw)
        .filter(|option| option.kind == kind::MSS && option.data.len() == 2)
        .map(|option| option.offset + 2)
        .take(10)
        .collect();
    for at in of_mss {
        if let Some(value) = bytes.get_mut(at..).and_then(|tail| tail.first_chunk_mut::<2>()) {
            *value = u16::from_be_bytes(*value).min(largest_mss).to_be_bytes();
        }
    }
    if let (Some(at), Some((tsval, tsecr))) = (options::find_timestamps(raw), timestamps) {
        // The checksum is made afterwards.
        let _: Delta = options::write_timestamps(&mut bytes, at, tsval, tsecr);
    }
    bytes
}

/// Writes a SYN or SYN-ACK with these very options into `buffer`.
///
/// # Errors
/// [`DropReason::NoBuffer`] if the buffer is too small.
pub(crate) fn write<B: PacketBuffer>(
    buffer: &mut B,
    path: &Path,
    control: &Control,
    options: &OptionBytes,
) -> Result<(), DropReason> {
    // The options of a header are a multiple of four bytes: written as payload, they become options by the data offset.
    let layout = control
        .segment(path, options)
        .emit_with(buffer, Checksums::Software)
        .map_err(|_| DropReason::NoBuffer)?;
    let tcp = buffer.data_mut().get_mut(usize::from(layout.l4)..);
    let mut packet = tcp
        .and_then(|tcp| TcpPacket::new_checked(tcp).ok())
        .ok_or(DropReason::NoBuffer)?;
    let len = HEADER_LEN + options.len() / 4 * 4;
    let flags = u16::from(control.flags.bits());
    let word = |len: usize| ((len / 4) as u16) << 12 | flags;
    let checksum = Delta::ZERO
        .replace16(word(HEADER_LEN), word(len))
        .apply(packet.checksum());
    packet.set_checksum(checksum);
    packet.set_header_len(len);
    Ok(())
}
