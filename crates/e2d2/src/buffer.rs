//! Packet memory: the traits every other module is generic over, and the heap implementation of them.
//!
//! A packet is one contiguous run of bytes inside a larger piece of memory, with room before it (headroom, for headers
//! put in front) and after it (tailroom):
//!
//! ```text
//!   ├─ headroom ─┼──────── data ────────┼─ tailroom ─┤
//!                0                     len
//! ```
//!
//! Chained segments are not supported: ports are set up with buffers that hold a whole frame, and drop what does not fit.

pub use crate::heap::{HeapBuffer, HeapPool};

/// What the port says about a checksum of a received packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub enum ChecksumStatus {
    /// The port did not look: whoever needs to know must compute it.
    #[default]
    Unknown,
    /// The port found it right.
    Good,
    /// The port found it wrong.
    Bad,
}

/// What the port knows about a received packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub struct RxInfo {
    /// The IPv4 header checksum.
    pub ip_checksum: ChecksumStatus,
    /// The TCP, UDP or ICMPv6 checksum.
    pub l4_checksum: ChecksumStatus,
    /// The hash by which the port chose the queue, if it computed one.
    pub rss_hash: Option<u32>,
}

/// The buffer has too little head- or tailroom for the bytes asked for; it is unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("too little room in the packet buffer")]
pub struct NoRoom;

/// Checksums that the port is to fill in when it transmits a packet.
///
/// Offsets count from the first byte of the frame: `l3` is the IP header's, `l4` the TCP header's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum TxOffload {
    /// The IPv4 header checksum (its field holds 0) and the TCP checksum (its field holds the pseudo header's sum).
    TcpIpv4 {
        /// Offset of the IPv4 header.
        l3: u16,
        /// Offset of the TCP header.
        l4: u16,
    },
    /// The TCP checksum over IPv6 (its field holds the pseudo header's sum).
    TcpIpv6 {
        /// Offset of the IPv6 header.
        l3: u16,
        /// Offset of the TCP header.
        l4: u16,
    },
}

/// Owned, contiguous, single-segment packet memory. Dropping it gives it back to its pool.
pub trait PacketBuffer: Sized + 'static {
    /// The packet's bytes.
    fn data(&self) -> &[u8];

    /// The packet's bytes, for writing.
    fn data_mut(&mut self) -> &mut [u8];

    /// Bytes of the packet.
    fn len(&self) -> usize {
        self.data().len()
    }

    /// Whether the packet has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Free bytes before the packet.
    fn headroom(&self) -> usize;

    /// Free bytes after the packet.
    fn tailroom(&self) -> usize;

    /// Puts `n` zeroed bytes in front.
    ///
    /// # Errors
    /// [`NoRoom`] if the headroom is smaller; the buffer is unchanged.
    fn prepend(&mut self, n: usize) -> Result<(), NoRoom>;

    /// Puts `n` zeroed bytes at the end.
    ///
    /// # Errors
    /// [`NoRoom`] if the tailroom is smaller; the buffer is unchanged.
    fn append(&mut self, n: usize) -> Result<(), NoRoom>;

    /// Makes it a packet of `n` bytes that begins where it begins now. What the bytes hold is anything that was in the
    /// memory before: for who overwrites all of them, and would not have them zeroed first.
    ///
    /// # Errors
    /// [`NoRoom`] if there are fewer behind the headroom; the packet is empty then.
    fn begin_anew(&mut self, n: usize) -> Result<(), NoRoom> {
        self.truncate(0);
        self.append(n)
    }

    /// Takes away the first `n` bytes, or all of them if there are fewer.
    fn trim_front(&mut self, n: usize);

    /// Shortens the packet to `len` bytes; nothing happens if it is not longer.
    fn truncate(&mut self, len: usize);

    /// What the port knows about the packet; all unknown if it was not received.
    fn rx_info(&self) -> RxInfo;

    /// Notes the hash by which the packet's queue was chosen; what else [`rx_info`](Self::rx_info) says stays.
    fn set_rss_hash(&mut self, hash: Option<u32>);

    /// Asks the port that transmits the packet to fill in checksums.
    ///
    /// The fields must already hold what [`TxOffload`] says; ask only a port whose capabilities include it.
    fn set_tx_offload(&mut self, offload: TxOffload);

    /// Starts to load the first two cache lines of the data, where headers are; does nothing where that means nothing.
    fn prefetch(&self);
}

/// Where buffers come from. Owned by one core.
pub trait BufferPool {
    /// What it hands out.
    type Buffer: PacketBuffer;

    /// An empty buffer with the usual headroom, or nothing if all are in use.
    fn take(&mut self) -> Option<Self::Buffer>;

    /// How many buffers there are.
    fn capacity(&self) -> usize;

    /// How many of them can be taken now.
    fn available(&self) -> usize;

    /// A buffer that holds a copy of `frame`; nothing if no buffer is left or the frame does not fit.
    fn take_copy(&mut self, frame: &[u8]) -> Option<Self::Buffer> {
        let mut buffer = self.take()?;
        buffer.append(frame.len()).ok()?;
        buffer.data_mut().copy_from_slice(frame);
        Some(buffer)
    }
}
