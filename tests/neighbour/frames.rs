//! Frames as other stations send them, written byte by byte: nothing here uses the code under test.

use std::net::{Ipv4Addr, Ipv6Addr};

pub(crate) type Mac = [u8; 6];

pub(crate) const BROADCAST: Mac = [0xff; 6];

pub(crate) fn v4(text: &str) -> Ipv4Addr {
    text.parse().expect("IPv4 address")
}

pub(crate) fn v6(text: &str) -> Ipv6Addr {
    text.parse().expect("IPv6 address")
}

/// The textbook sum, one 16-bit word after the other.
pub(crate) fn checksum(bytes: &[u8]) -> u16 {
    let mut sum = 0u64;
    for pair in bytes.chunks(2) {
        sum += u64::from(pair[0]) << 8 | u64::from(pair.get(1).copied().unwrap_or(0));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

fn ethernet(dst: Mac, src: Mac, ethertype: u16) -> Vec<u8> {
    [&dst[..], &src[..], &ethertype.to_be_bytes()[..]].concat()
}

#[derive(Clone, Debug)]
pub(crate) struct Arp {
    pub(crate) dst: Mac,
    pub(crate) src: Mac,
    pub(crate) head: [u8; 6],
    pub(crate) operation: u16,
    pub(crate) sender_mac: Mac,
    pub(crate) sender: Ipv4Addr,
    pub(crate) target_mac: Mac,
    pub(crate) target: Ipv4Addr,
}

impl Arp {
    pub(crate) fn request(mac: Mac, sender: &str, target: &str) -> Self {
        Self {
            dst: BROADCAST,
            src: mac,
            head: [0, 1, 8, 0, 6, 4],
            operation: 1,
            sender_mac: mac,
            sender: v4(sender),
            target_mac: [0; 6],
            target: v4(target),
        }
    }

    pub(crate) fn reply(mac: Mac, sender: &str, to: Mac, target: &str) -> Self {
        let request = Self::request(mac, sender, target);
        Self {
            dst: to,
            operation: 2,
            target_mac: to,
            ..request
        }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        [
            &ethernet(self.dst, self.src, 0x0806)[..],
            &self.head,
            &self.operation.to_be_bytes(),
            &self.sender_mac,
            &self.sender.octets(),
            &self.target_mac,
            &self.target.octets(),
        ]
        .concat()
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Icmp6 {
    pub(crate) dst_mac: Mac,
    pub(crate) src_mac: Mac,
    pub(crate) src: Ipv6Addr,
    pub(crate) dst: Ipv6Addr,
    pub(crate) hop_limit: u8,
    /// From the type on; the checksum is filled in.
    pub(crate) message: Vec<u8>,
    /// Added to the right checksum.
    pub(crate) checksum_error: u16,
}

impl Icmp6 {
    pub(crate) fn solicitation(mac: Mac, src: &str, target: &str) -> Self {
        let octets = v6(target).octets();
        let group = [
            0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, octets[13], octets[14], octets[15],
        ];
        let option = if src == "::" { vec![] } else { link_address(1, mac) };
        Self {
            dst_mac: [0x33, 0x33, 0xff, octets[13], octets[14], octets[15]],
            src_mac: mac,
            src: v6(src),
            dst: group.into(),
            hop_limit: 255,
            message: [&[135, 0, 0, 0, 0, 0, 0, 0][..], &octets, &option].concat(),
            checksum_error: 0,
        }
    }

    pub(crate) fn advertisement(mac: Mac, target: &str, to: Mac, dst: &str, flags: u8) -> Self {
        Self {
            dst_mac: to,
            src_mac: mac,
            src: v6(target),
            dst: v6(dst),
            hop_limit: 255,
            message: [
                &[136, 0, 0, 0, flags, 0, 0, 0][..],
                &v6(target).octets(),
                &link_address(2, mac),
            ]
            .concat(),
            checksum_error: 0,
        }
    }

    pub(crate) fn echo(mac: Mac, src: &str, to: Mac, dst: &str, payload: &[u8]) -> Self {
        Self {
            dst_mac: to,
            src_mac: mac,
            src: v6(src),
            dst: v6(dst),
            hop_limit: 60,
            message: [&[128, 0, 0, 0, 0x12, 0x34, 0, 1][..], payload].concat(),
            checksum_error: 0,
        }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let len = self.message.len() as u16;
        let mut message = self.message.clone();
        message[2..4].fill(0);
        let sum = icmp6_checksum(self.src, self.dst, &message).wrapping_add(self.checksum_error);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        [
            &ethernet(self.dst_mac, self.src_mac, 0x86dd)[..],
            &[0x60, 0, 0, 0],
            &len.to_be_bytes(),
            &[58, self.hop_limit],
            &self.src.octets(),
            &self.dst.octets(),
            &message,
        ]
        .concat()
    }
}

pub(crate) fn icmp6_checksum(src: Ipv6Addr, dst: Ipv6Addr, message: &[u8]) -> u16 {
    let len = (message.len() as u32).to_be_bytes();
    checksum(&[&src.octets()[..], &dst.octets(), &len, &[0, 0, 0, 58], message].concat())
}

pub(crate) fn link_address(kind: u8, mac: Mac) -> Vec<u8> {
    [&[kind, 1][..], &mac].concat()
}

#[derive(Clone, Debug)]
pub(crate) struct Icmp4 {
    pub(crate) dst_mac: Mac,
    pub(crate) src_mac: Mac,
    pub(crate) src: Ipv4Addr,
    pub(crate) dst: Ipv4Addr,
    pub(crate) options: Vec<u8>,
    pub(crate) message: Vec<u8>,
    pub(crate) checksum_error: u16,
    /// Ethernet padding.
    pub(crate) padding: usize,
}

impl Icmp4 {
    pub(crate) fn echo(mac: Mac, src: &str, to: Mac, dst: &str, payload: &[u8]) -> Self {
        Self {
            dst_mac: to,
            src_mac: mac,
            src: v4(src),
            dst: v4(dst),
            options: vec![],
            message: [&[8, 0, 0, 0, 0xab, 0xcd, 0, 7][..], payload].concat(),
            checksum_error: 0,
            padding: 0,
        }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut message = self.message.clone();
        message[2..4].fill(0);
        let sum = checksum(&message).wrapping_add(self.checksum_error);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        let header_len = 20 + self.options.len();
        let total = (header_len + message.len()) as u16;
        let mut header = [
            &[0x40 | (header_len / 4) as u8, 0x03][..],
            &total.to_be_bytes(),
            &[0x77, 0x88, 0x40, 0, 17, 1, 0, 0],
            &self.src.octets(),
            &self.dst.octets(),
            &self.options,
        ]
        .concat();
        let sum = checksum(&header);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        [
            &ethernet(self.dst_mac, self.src_mac, 0x0800)[..],
            &header,
            &message,
            &vec![0; self.padding],
        ]
        .concat()
    }
}
