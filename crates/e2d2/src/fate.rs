//! What becomes of a packet in the graph, as names to count under.
//!
//! With the counters of one graph at rest (nothing held in a queue of its own) it always holds that
//!
//! ```text
//! Received + FromQueue + Emitted  =  Sent + ToQueue + Consumed + Σ DropReason
//! ```
//!
//! What a user node does with the packets it consumes is the node's to count, in a list of its own.

use std::rc::Rc;

use crate::counters::{self, CounterReader, CounterWriter};
use crate::reasons;
use crate::wire::frame::ParseError;

reasons! {
    /// Where packets enter and leave a graph other than by being dropped.
    pub enum Traffic {
        /// Taken from a port.
        Received = "received",
        /// Taken from a queue that another core fills.
        FromQueue = "from_queue",
        /// Made or passed on by a [`Node`](crate::operators::Node).
        Emitted = "emitted",
        /// Taken by a port for transmission.
        Sent = "sent",
        /// Put into a queue that another core empties.
        ToQueue = "to_queue",
        /// Taken by a [`Node`](crate::operators::Node).
        Consumed = "consumed",
    }
}

reasons! {
    /// Why this crate dropped a packet.
    pub enum DropReason {
        /// The frame or the IP payload ends inside a header.
        TooShort = "too_short",
        /// The EtherType and the version in the IP header differ.
        BadIpVersion = "bad_ip_version",
        /// The IPv4 header length is below 20 or above the total length.
        BadIpHeaderLength = "bad_ip_header_length",
        /// The IP length goes beyond the frame.
        BadIpTotalLength = "bad_ip_total_length",
        /// The IPv4 header checksum is wrong.
        BadIpChecksum = "bad_ip_checksum",
        /// A fragment.
        Fragment = "fragment",
        /// An IPv6 extension header other than a fragment header.
        Ipv6ExtensionHeader = "ipv6_extension_header",
        /// The TCP data offset is below 5 or beyond the packet.
        BadTcpDataOffset = "bad_tcp_data_offset",
        /// No host can have this source address (Ethernet or IP).
        MartianSource = "martian_source",
        /// The destination address (Ethernet or IP) names no single host on a link.
        MartianDestination = "martian_destination",
        /// A filter did not want it.
        Filtered = "filtered",
        /// It belongs to a group of `group_by` that nobody takes packets from.
        NoSuchGroup = "no_such_group",
        /// A node left it in its batch: neither emitted nor consumed.
        LeftByNode = "left_by_node",
        /// A node emitted more than its outbox holds.
        OutboxFull = "outbox_full",
        /// The queue of its group was full.
        QueueFull = "queue_full",
        /// It is to leave by a port that this graph does not send to.
        UnknownPort = "unknown_port",
        /// The port refused it and the queue for refused packets was full.
        TxRefused = "tx_refused",
        /// It came without an 802.1Q tag, or with another VLAN's.
        VlanMismatch = "vlan_mismatch",
        /// A header was to be put in front and the buffer had no room for it.
        NoHeadroom = "no_headroom",
        /// No buffer was left to hold it.
        NoBuffer = "no_buffer",
        /// It is longer than a buffer, or than what the port carries.
        TooLong = "too_long",
        /// Writing it to a file failed.
        WriteFailed = "write_failed",
        /// Nobody asked for it: the port was told to write nothing.
        Unwanted = "unwanted",
    }
}

impl From<ParseError> for DropReason {
    fn from(error: ParseError) -> Self {
        match error {
            ParseError::TooShort => Self::TooShort,
            ParseError::BadVersion => Self::BadIpVersion,
            ParseError::BadHeaderLength => Self::BadIpHeaderLength,
            ParseError::BadTotalLength => Self::BadIpTotalLength,
            ParseError::BadIpChecksum => Self::BadIpChecksum,
            ParseError::Fragment => Self::Fragment,
            ParseError::ExtensionHeader => Self::Ipv6ExtensionHeader,
            ParseError::BadDataOffset => Self::BadTcpDataOffset,
            ParseError::MartianSource => Self::MartianSource,
            ParseError::MartianDestination => Self::MartianDestination,
        }
    }
}

/// The counters of one graph, or of all graphs of one core: tasks and ports of a core may share them.
#[derive(Debug)]
pub struct GraphCounters {
    /// Packets that were dropped.
    pub drops: CounterWriter<DropReason>,
    /// Packets that came and went.
    pub traffic: CounterWriter<Traffic>,
}

/// The reading end of [`GraphCounters`], for any thread.
#[derive(Clone, Debug)]
pub struct GraphReader {
    /// Packets that were dropped.
    pub drops: CounterReader<DropReason>,
    /// Packets that came and went.
    pub traffic: CounterReader<Traffic>,
}

impl GraphCounters {
    /// New counters, all zero, and the reading end of them.
    pub fn new() -> (Rc<Self>, GraphReader) {
        let (drops, drops_reader) = counters::shared();
        let (traffic, traffic_reader) = counters::shared();
        let reader = GraphReader {
            drops: drops_reader,
            traffic: traffic_reader,
        };
        (Rc::new(Self { drops, traffic }), reader)
    }

    /// Drops `packet` and counts why.
    #[inline]
    pub fn discard<T>(&self, packet: T, reason: DropReason) {
        drop(packet);
        self.drops.add(reason, 1);
    }

    /// Counts a packet that a port received but does not deliver. It is counted as received, too, for the operator
    /// that receives from the port never sees it.
    #[inline]
    pub fn count_refused(&self, reason: DropReason) {
        self.traffic.add(Traffic::Received, 1);
        self.drops.add(reason, 1);
    }
}

impl GraphReader {
    /// Packets that came in less those that went out: what the graph holds, in its queues and outboxes.
    ///
    /// Negative only while the graph runs, for the counters are not read at the same moment.
    pub fn held(&self) -> i64 {
        let traffic = self.traffic.snapshot();
        let entered = traffic[Traffic::Received] + traffic[Traffic::FromQueue] + traffic[Traffic::Emitted];
        let left = traffic[Traffic::Sent] + traffic[Traffic::ToQueue] + traffic[Traffic::Consumed];
        entered.wrapping_sub(left + self.drops.snapshot().total()).cast_signed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::Reason;

    #[test]
    fn every_parse_error_has_a_reason_of_its_own_and_the_same_name() {
        for error in ParseError::ALL {
            assert_eq!(DropReason::from(error).name(), error.name());
        }
    }

    #[test]
    fn names_are_distinct() {
        let mut names: Vec<_> = DropReason::ALL.iter().map(|reason| reason.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), DropReason::COUNT);
    }
}
