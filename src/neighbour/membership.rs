//! Reports of the multicast groups that a port listens to: MLDv2 (RFC 3810).

use std::net::Ipv6Addr;

use arrayvec::ArrayVec;
use e2d2::wire::ethernet::{self, ethertype};
use e2d2::wire::ipv6::{self, Ipv6Header};
use e2d2::wire::{MacAddr, checksum, protocol};

use super::discovery::group_mac;
use super::topology::link_local_of;

/// Groups in one report: few ports have more, and the report stays below the smallest MTU of IPv6.
pub(super) const GROUPS_PER_REPORT: usize = 32;

const HOP_BY_HOP_LEN: usize = 8;
const REPORT_HEAD_LEN: usize = 8;
const RECORD_LEN: usize = 20;
const MAX_FRAME_LEN: usize =
    ethernet::HEADER_LEN + ipv6::HEADER_LEN + HOP_BY_HOP_LEN + REPORT_HEAD_LEN + GROUPS_PER_REPORT * RECORD_LEN;

/// RFC 3810 5.2.14: all routers that understand MLDv2.
const ALL_MLDV2_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16);

/// RFC 8200 4.3 and RFC 2711 2.1: next header, no further units, router alert with value 0 (MLD), two bytes of padding.
const ROUTER_ALERT: [u8; HOP_BY_HOP_LEN] = [protocol::ICMPV6, 0, 5, 2, 0, 0, 1, 0];

const REPORT: u8 = 143;

/// What a report says about its groups (RFC 3810 5.2.12). No source is left out, so all are heard.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Membership {
    /// It still listens: MODE_IS_EXCLUDE.
    Goes = 2,
    /// It has begun to listen: CHANGE_TO_EXCLUDE_MODE.
    Begins = 4,
}

/// The report of at most [`GROUPS_PER_REPORT`] groups from the port with this MAC address; more are left out.
pub(super) fn report(mac: MacAddr, membership: Membership, groups: &[Ipv6Addr]) -> ArrayVec<u8, MAX_FRAME_LEN> {
    let groups = &groups[..groups.len().min(GROUPS_PER_REPORT)];
    let src = link_local_of(mac);
    let message_len = REPORT_HEAD_LEN + groups.len() * RECORD_LEN;

    let mut message: ArrayVec<u8, { REPORT_HEAD_LEN + GROUPS_PER_REPORT * RECORD_LEN }> = ArrayVec::new();
    message.extend([REPORT, 0, 0, 0, 0, 0, 0, groups.len() as u8]);
    for group in groups {
        message.extend([membership as u8, 0, 0, 0]);
        message.extend(group.octets());
    }
    let pseudo = checksum::pseudo_header_v6(src, ALL_MLDV2_ROUTERS, protocol::ICMPV6, message_len as u16);
    let field = checksum::finish(pseudo + checksum::sum(&message));
    message[2..4].copy_from_slice(&field.to_be_bytes());

    let mut ip = [0; ipv6::HEADER_LEN];
    // RFC 3810 5: hop limit 1. Next header 0 is the hop-by-hop header.
    Ipv6Header(&mut ip).init((HOP_BY_HOP_LEN + message_len) as u16, 0, 1, src, ALL_MLDV2_ROUTERS);
    let mut frame = ArrayVec::new();
    frame.extend(group_mac(ALL_MLDV2_ROUTERS).0);
    frame.extend(mac.0);
    frame.extend(ethertype::IPV6.to_be_bytes());
    frame.extend(ip);
    frame.extend(ROUTER_ALERT);
    frame.extend(message);
    frame
}
