//! What an interface is given: a few rtnetlink requests to the kernel of the calling thread's network namespace.
//!
//! Source: rtnetlink(7), netlink(7); Linux' `uapi/linux/rtnetlink.h`, `if_link.h` and `if_addr.h` for the numbers.

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netdevice, recv, sendto, socket, socket_with,
};

use crate::wire::MacAddr;

const RTM_NEWLINK: u16 = 16;
const RTM_NEWADDR: u16 = 20;
const RTM_NEWROUTE: u16 = 24;
const NLMSG_ERROR: u16 = 2;

const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_REPLACE: u16 = 0x100;
const NLM_F_CREATE: u16 = 0x400;

const IFLA_ADDRESS: u16 = 1;
const IFLA_MTU: u16 = 4;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_FLAGS: u16 = 8;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;

/// No duplicate address detection: the engine announces and defends the address.
const IFA_F_NODAD: u32 = 2;
const IFF_UP: u32 = 1;
const RT_TABLE_MAIN: u8 = 254;
const RTPROT_STATIC: u8 = 4;
const RTN_UNICAST: u8 = 1;

/// `struct nlmsghdr`.
const HEADER_LEN: usize = 16;

/// An interface, and the socket by which it is spoken of.
pub(super) struct Link {
    socket: OwnedFd,
    index: u32,
    sequence: u32,
}

impl Link {
    /// The interface of this name in the calling thread's namespace.
    pub(super) fn of(name: &str) -> io::Result<Self> {
        let any = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
        let index = netdevice::name_to_index(&any, name)?;
        // Protocol 0 is NETLINK_ROUTE.
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
        Ok(Self {
            socket,
            index,
            sequence: 0,
        })
    }

    /// Gives it MAC address and MTU, and brings it up.
    pub(super) fn set_up(&mut self, mac: MacAddr, mtu: u16) -> io::Result<()> {
        // struct ifinfomsg: family and padding, type, index, flags, which of them are meant.
        let mut request = Request::new(RTM_NEWLINK, 0);
        request.put(&[0; 4]);
        request.put(&self.index.to_ne_bytes());
        request.put(&IFF_UP.to_ne_bytes());
        request.put(&IFF_UP.to_ne_bytes());
        request.attribute(IFLA_ADDRESS, &mac.0);
        request.attribute(IFLA_MTU, &u32::from(mtu).to_ne_bytes());
        self.ask(request)
    }

    /// Gives it an address; the kernel adds the way to its prefix.
    pub(super) fn add_address(&mut self, address: IpAddr, prefix: u8) -> io::Result<()> {
        // struct ifaddrmsg: family, prefix length, flags, scope, index.
        let mut request = Request::new(RTM_NEWADDR, NLM_F_CREATE | NLM_F_REPLACE);
        request.put(&[family(address), prefix, 0, 0]);
        request.put(&self.index.to_ne_bytes());
        let bytes = bytes_of(address);
        request.attribute(IFA_LOCAL, &bytes);
        request.attribute(IFA_ADDRESS, &bytes);
        if address.is_ipv6() {
            request.attribute(IFA_FLAGS, &IFA_F_NODAD.to_ne_bytes());
        }
        self.ask(request)
    }

    /// Adds the way to a prefix by a router.
    pub(super) fn add_route(&mut self, to: IpAddr, prefix: u8, via: IpAddr) -> io::Result<()> {
        // struct rtmsg: family, lengths of destination and source prefix, TOS, table, protocol, scope, type, flags.
        let mut request = Request::new(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_REPLACE);
        request.put(&[family(to), prefix, 0, 0, RT_TABLE_MAIN, RTPROT_STATIC, 0, RTN_UNICAST]);
        request.put(&[0; 4]);
        request.attribute(RTA_DST, &bytes_of(to));
        request.attribute(RTA_OIF, &self.index.to_ne_bytes());
        request.attribute(RTA_GATEWAY, &bytes_of(via));
        self.ask(request)
    }

    /// Sends a request and waits for what the kernel says to it, which it does at once.
    fn ask(&mut self, request: Request) -> io::Result<()> {
        self.sequence += 1;
        let message = request.finish(self.sequence);
        sendto(
            &self.socket,
            &message,
            SendFlags::empty(),
            &SocketAddrNetlink::new(0, 0),
        )?;
        let mut answer = [0_u8; 1024];
        let (length, _) = recv(&self.socket, &mut answer, RecvFlags::empty())?;
        verdict(&answer[..length])
    }
}

/// What an answer says: `struct nlmsghdr`, then for an error its number, negative; 0 is consent.
fn verdict(answer: &[u8]) -> io::Result<()> {
    let strange = || io::Error::new(io::ErrorKind::InvalidData, "the kernel's answer is no verdict");
    let kind: &[u8; 2] = answer.get(4..).and_then(<[u8]>::first_chunk).ok_or_else(strange)?;
    let code: &[u8; 4] = answer
        .get(HEADER_LEN..)
        .and_then(<[u8]>::first_chunk)
        .ok_or_else(strange)?;
    match (u16::from_ne_bytes(*kind), i32::from_ne_bytes(*code)) {
        (NLMSG_ERROR, 0) => Ok(()),
        (NLMSG_ERROR, code) => Err(io::Error::from_raw_os_error(code.wrapping_neg())),
        _ => Err(strange()),
    }
}

/// A request that is being written.
struct Request(Vec<u8>);

impl Request {
    fn new(kind: u16, flags: u16) -> Self {
        let mut bytes = vec![0; HEADER_LEN];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(flags | NLM_F_REQUEST | NLM_F_ACK).to_ne_bytes());
        Self(bytes)
    }

    fn put(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// `struct rtattr`: length, type, value; the next begins at a multiple of four.
    fn attribute(&mut self, kind: u16, value: &[u8]) {
        self.put(&(value.len() as u16 + 4).to_ne_bytes());
        self.put(&kind.to_ne_bytes());
        self.put(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    fn finish(mut self, sequence: u32) -> Vec<u8> {
        let length = self.0.len() as u32;
        self.0[..4].copy_from_slice(&length.to_ne_bytes());
        self.0[8..12].copy_from_slice(&sequence.to_ne_bytes());
        self.0
    }
}

fn family(address: IpAddr) -> u8 {
    let family = if address.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    family.as_raw() as u8
}

fn bytes_of(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_laid_out_as_the_kernel_reads_them() {
        let mut request = Request::new(RTM_NEWADDR, NLM_F_CREATE);
        request.put(&[2, 24, 0, 0]);
        request.put(&7_u32.to_ne_bytes());
        request.attribute(IFA_LOCAL, &[10, 0, 0, 1]);
        request.attribute(IFLA_ADDRESS, &[1, 2, 3, 4, 5, 6]);
        let bytes = request.finish(9);
        assert_eq!(bytes.len(), 16 + 8 + 8 + 12, "the second attribute is padded");
        assert_eq!(bytes[..4], 44_u32.to_ne_bytes());
        assert_eq!(bytes[4..6], 20_u16.to_ne_bytes());
        assert_eq!(bytes[6..8], 0x405_u16.to_ne_bytes());
        assert_eq!(bytes[8..12], 9_u32.to_ne_bytes());
        assert_eq!(bytes[24..26], 8_u16.to_ne_bytes());
        assert_eq!(bytes[32..34], 10_u16.to_ne_bytes());
    }

    #[test]
    fn an_answer_is_consent_or_an_error() {
        let answer = |kind: u16, code: i32| {
            let mut bytes = vec![0; HEADER_LEN];
            bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
            bytes.extend(code.to_ne_bytes());
            bytes
        };
        assert!(verdict(&answer(NLMSG_ERROR, 0)).is_ok());
        let error = verdict(&answer(NLMSG_ERROR, -libc::EPERM)).expect_err("refused");
        assert_eq!(error.raw_os_error(), Some(libc::EPERM));
        assert!(verdict(&answer(RTM_NEWLINK, 0)).is_err());
        assert!(verdict(&[0; 10]).is_err());
    }
}
