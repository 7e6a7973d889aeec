//! Received segments: from a frame to what the roles work on.

use std::net::IpAddr;

use e2d2::wire::frame::TcpLayout;
use e2d2::wire::tcp::{TcpFlags, TcpOptions};
use e2d2::wire::{Envelope, MacAddr};
use netfcts::{SeqNum, TcpCounter, TcpCounters};

use crate::stats::Traffic;
use crate::tcb::{Marks, Received, Segment};

/// A segment and where it came from.
pub(crate) struct Incoming<'a> {
    pub(crate) src_mac: MacAddr,
    pub(crate) src_addr: IpAddr,
    pub(crate) dst_addr: IpAddr,
    pub(crate) src_port: u16,
    pub(crate) dst_port: u16,
    pub(crate) segment: Segment<'a>,
}

impl<'a> Incoming<'a> {
    /// Takes a parsed frame apart.
    #[inline]
    pub(crate) fn new(frame: &'a [u8], layout: &TcpLayout) -> Option<Incoming<'a>> {
        let parts = layout.split(frame)?;
        Some(Incoming {
            src_mac: parts.ethernet.src_mac(),
            src_addr: parts.ip.src_addr(),
            dst_addr: parts.ip.dst_addr(),
            src_port: parts.tcp.src_port(),
            dst_port: parts.tcp.dst_port(),
            segment: Segment {
                seq: SeqNum(parts.tcp.seq()),
                ack: SeqNum(parts.tcp.ack()),
                flags: parts.tcp.flags(),
                window: parts.tcp.window(),
                options: TcpOptions::parse(parts.options),
                payload: parts.payload,
            },
        })
    }

    /// Addresses of an answer.
    pub(crate) fn way_back(&self, mac: MacAddr) -> Envelope {
        Envelope {
            src_mac: mac,
            dst_mac: self.src_mac,
            src_addr: self.dst_addr,
            dst_addr: self.src_addr,
            hop_limit: 64,
        }
    }
}

/// An address as IPv6, or IPv4-mapped.
#[inline]
pub(crate) fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// Counts a segment of a connection, given the connection's marks before and after it.
pub(crate) fn count_received(
    tcp: &mut TcpCounters,
    traffic: &mut Traffic,
    segment: &Segment<'_>,
    received: &Received,
    before: Marks,
    after: Marks,
) {
    traffic.duplicates += u64::from(received.duplicate);
    let mut counted = false;
    let mut count = |condition: bool, counter| {
        if condition {
            tcp.count(counter);
            counted = true;
        }
    };
    let is_syn = segment.flags.contains(TcpFlags::SYN);
    let is_ack = segment.flags.contains(TcpFlags::ACK);
    count(is_syn && is_ack, TcpCounter::RecvSynAck);
    count(is_syn && !is_ack, TcpCounter::RecvSyn);
    count(segment.flags.contains(TcpFlags::RST), TcpCounter::RecvRst);
    count(received.established && !is_syn, TcpCounter::RecvSynAck2);
    count(!segment.payload.is_empty(), TcpCounter::RecvPayload);
    if segment.flags.contains(TcpFlags::FIN) {
        let is_second = before.contains(Marks::FIN_QUEUED);
        count(
            true,
            if is_second {
                TcpCounter::RecvFinPssv
            } else {
                TcpCounter::RecvFin
            },
        );
    }
    count(
        after.contains(Marks::FIN_ACKED) && !before.contains(Marks::FIN_ACKED),
        TcpCounter::RecvAck4Fin,
    );
    if !counted {
        tcp.count(TcpCounter::RecvAck);
    }
}
