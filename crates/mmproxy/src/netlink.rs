//! A little of rtnetlink(7): policy rules, routes, addresses.

use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use std::io;
use std::net::IpAddr;

const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;
const RTM_NEWROUTE: u16 = 24;
const RTM_DELROUTE: u16 = 25;
const RTM_GETROUTE: u16 = 26;
const RTM_NEWRULE: u16 = 32;
const RTM_DELRULE: u16 = 33;
const RTM_GETRULE: u16 = 34;

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;

const REQUEST: u16 = 1;
const ACK: u16 = 4;
const DUMP: u16 = 0x300;
const EXCLUSIVE: u16 = 0x200;
const CREATE: u16 = 0x400;

const FRA_SRC: u16 = 2;
const FRA_IIFNAME: u16 = 3;
const FRA_PRIORITY: u16 = 6;
const FRA_FWMARK: u16 = 10;
const FRA_TABLE: u16 = 15;
const FR_ACT_TO_TBL: u8 = 1;

const RTA_OIF: u16 = 4;
const RTA_TABLE: u16 = 15;
const RTN_LOCAL: u8 = 2;
const RTPROT_STATIC: u8 = 4;
const RT_SCOPE_HOST: u8 = 254;

const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;

/// Families as netlink numbers them.
const INET: u8 = 2;
const INET6: u8 = 10;

/// A policy rule: packets that fit look their route up in `table`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyRule {
    /// For IPv6.
    pub v6: bool,
    /// Source network.
    pub from: Option<ipnet::IpNet>,
    /// Interface that they came in on; `lo` for those of this host.
    pub interface: Option<String>,
    /// Firewall mark.
    pub mark: Option<u32>,
    /// The table.
    pub table: u32,
    /// Place among the rules; the kernel chooses if `None`.
    pub priority: Option<u32>,
}

impl PolicyRule {
    fn encode(&self) -> Vec<u8> {
        let mut body = vec![
            family(self.v6),
            0,
            0,
            0,
            table_byte(self.table),
            0,
            0,
            FR_ACT_TO_TBL,
            0,
            0,
            0,
            0,
        ];
        if let Some(from) = self.from {
            body[2] = from.prefix_len();
            attribute(&mut body, FRA_SRC, &octets(from.network()));
        }
        if let Some(interface) = &self.interface {
            attribute(&mut body, FRA_IIFNAME, &[interface.as_bytes(), b"\0"].concat());
        }
        if let Some(mark) = self.mark {
            attribute(&mut body, FRA_FWMARK, &mark.to_ne_bytes());
        }
        if let Some(priority) = self.priority {
            attribute(&mut body, FRA_PRIORITY, &priority.to_ne_bytes());
        }
        attribute(&mut body, FRA_TABLE, &self.table.to_ne_bytes());
        body
    }

    /// From a message of a dump; the priority is left out.
    fn decode(body: &[u8]) -> Option<Self> {
        let (header, attributes) = body.split_first_chunk::<12>()?;
        let v6 = header[0] == INET6;
        let mut rule = PolicyRule {
            v6,
            from: None,
            interface: None,
            mark: None,
            table: header[4].into(),
            priority: None,
        };
        for (kind, value) in Attributes(attributes) {
            match kind {
                FRA_SRC => rule.from = ip(value).and_then(|ip| ipnet::IpNet::new(ip, header[2]).ok()),
                FRA_IIFNAME => {
                    rule.interface = std::str::from_utf8(value)
                        .ok()
                        .map(|name| name.trim_end_matches('\0').to_owned());
                }
                FRA_FWMARK => rule.mark = number(value).filter(|&mark| mark != 0),
                FRA_TABLE => rule.table = number(value)?,
                _ => {}
            }
        }
        Some(rule)
    }

    /// Whether `found`, of a dump, does what this rule asks for.
    pub fn is_same(&self, found: &PolicyRule) -> bool {
        let from = |rule: &PolicyRule| rule.from.map(|from| from.trunc());
        from(self) == from(found)
            && (self.v6, &self.interface, self.mark, self.table)
                == (found.v6, &found.interface, found.mark, found.table)
    }
}

/// The route that makes every destination local, in a table of its own.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct LocalRoute {
    /// For IPv6.
    pub v6: bool,
    /// The table.
    pub table: u32,
}

impl LocalRoute {
    fn encode(self, loopback: u32) -> Vec<u8> {
        let scope = if self.v6 { 0 } else { RT_SCOPE_HOST };
        let mut body = vec![
            family(self.v6),
            0,
            0,
            0,
            table_byte(self.table),
            RTPROT_STATIC,
            scope,
            RTN_LOCAL,
            0,
            0,
            0,
            0,
        ];
        attribute(&mut body, RTA_OIF, &loopback.to_ne_bytes());
        attribute(&mut body, RTA_TABLE, &self.table.to_ne_bytes());
        body
    }

    /// From a message of a dump, if it is such a route.
    fn decode(body: &[u8]) -> Option<Self> {
        let (header, attributes) = body.split_first_chunk::<12>()?;
        let mut table = u32::from(header[4]);
        for (kind, value) in Attributes(attributes) {
            if kind == RTA_TABLE {
                table = number(value)?;
            }
        }
        let fits = header[1] == 0 && header[7] == RTN_LOCAL;
        fits.then_some(LocalRoute {
            v6: header[0] == INET6,
            table,
        })
    }
}

fn family(v6: bool) -> u8 {
    if v6 { INET6 } else { INET }
}

/// Tables over 255 are named by attribute alone.
fn table_byte(table: u32) -> u8 {
    u8::try_from(table).unwrap_or(0)
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

fn ip(value: &[u8]) -> Option<IpAddr> {
    match value.len() {
        4 => value.first_chunk::<4>().map(|octets| IpAddr::from(*octets)),
        16 => value.first_chunk::<16>().map(|octets| IpAddr::from(*octets)),
        _ => None,
    }
}

fn number(value: &[u8]) -> Option<u32> {
    value.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}

fn attribute(body: &mut Vec<u8>, kind: u16, value: &[u8]) {
    body.extend(((value.len() + 4) as u16).to_ne_bytes());
    body.extend(kind.to_ne_bytes());
    body.extend(value);
    body.resize(body.len().next_multiple_of(4), 0);
}

struct Attributes<'a>(&'a [u8]);

impl<'a> Iterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (length, rest) = self.0.split_first_chunk::<2>()?;
        let length = usize::from(u16::from_ne_bytes(*length));
        let kind = u16::from_ne_bytes(*rest.first_chunk()?);
        let value = self.0.get(4..length)?;
        self.0 = self.0.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    }
}

/// A connection to the kernel's routing tables.
pub struct Netlink {
    fd: OwnedFd,
    sequence: u32,
}

impl Netlink {
    /// Opens it.
    ///
    /// # Errors
    /// What the system reports.
    pub fn open() -> io::Result<Self> {
        // No protocol is NETLINK_ROUTE.
        let fd = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
        rustix::net::bind(&fd, &SocketAddrNetlink::new(0, 0))?;
        rustix::net::sockopt::set_socket_timeout(
            &fd,
            rustix::net::sockopt::Timeout::Recv,
            Some(std::time::Duration::from_secs(5)),
        )?;
        Ok(Netlink { fd, sequence: 0 })
    }

    /// Adds a rule. Returns whether it was not there before.
    ///
    /// # Errors
    /// What the kernel reports; `PermissionDenied` without `CAP_NET_ADMIN`.
    pub fn add_rule(&mut self, rule: &PolicyRule) -> io::Result<bool> {
        // Without a priority the kernel would choose another one and take the same rule twice.
        if self.rules()?.iter().any(|found| rule.is_same(found)) {
            return Ok(false);
        }
        unless(
            self.change(RTM_NEWRULE, CREATE | EXCLUSIVE, &rule.encode()),
            Errno::EXIST,
        )
    }

    /// Removes a rule. Returns whether it was there.
    ///
    /// # Errors
    /// As for [`add_rule`](Self::add_rule).
    pub fn remove_rule(&mut self, rule: &PolicyRule) -> io::Result<bool> {
        let mut removed = false;
        // Other tools may have made it twice.
        while unless(self.change(RTM_DELRULE, 0, &rule.encode()), Errno::NOENT)? {
            removed = true;
        }
        Ok(removed)
    }

    /// Adds the route. Returns whether it was not there before.
    ///
    /// # Errors
    /// As for [`add_rule`](Self::add_rule).
    pub fn add_route(&mut self, route: LocalRoute) -> io::Result<bool> {
        let body = route.encode(self.loopback()?);
        unless(self.change(RTM_NEWROUTE, CREATE | EXCLUSIVE, &body), Errno::EXIST)
    }

    /// Removes the route. Returns whether it was there.
    ///
    /// # Errors
    /// As for [`add_rule`](Self::add_rule).
    pub fn remove_route(&mut self, route: LocalRoute) -> io::Result<bool> {
        let body = route.encode(self.loopback()?);
        unless(self.change(RTM_DELROUTE, 0, &body), Errno::SRCH)
    }

    /// All policy rules.
    ///
    /// # Errors
    /// What the kernel reports.
    pub fn rules(&mut self) -> io::Result<Vec<PolicyRule>> {
        let messages = self.dump(RTM_GETRULE, RTM_NEWRULE, &[0; 12])?;
        Ok(messages.iter().filter_map(|body| PolicyRule::decode(body)).collect())
    }

    /// All routes that make every destination local.
    ///
    /// # Errors
    /// What the kernel reports.
    pub fn local_routes(&mut self) -> io::Result<Vec<LocalRoute>> {
        let messages = self.dump(RTM_GETROUTE, RTM_NEWROUTE, &[0; 12])?;
        Ok(messages.iter().filter_map(|body| LocalRoute::decode(body)).collect())
    }

    /// The addresses of this host.
    ///
    /// # Errors
    /// What the kernel reports.
    pub fn addresses(&mut self) -> io::Result<Vec<IpAddr>> {
        let messages = self.dump(RTM_GETADDR, RTM_NEWADDR, &[0; 8])?;
        let address = |body: &Vec<u8>| {
            let attributes: Vec<_> = Attributes(body.get(8..)?).collect();
            // On point-to-point links IFA_ADDRESS is the other end.
            let local = attributes.iter().find(|(kind, _)| *kind == IFA_LOCAL);
            local
                .or_else(|| attributes.iter().find(|(kind, _)| *kind == IFA_ADDRESS))
                .and_then(|(_, value)| ip(value))
        };
        Ok(messages.iter().filter_map(address).collect())
    }

    fn loopback(&self) -> io::Result<u32> {
        let any = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None)?;
        Ok(rustix::net::netdevice::name_to_index(any, "lo")?)
    }

    fn change(&mut self, kind: u16, flags: u16, body: &[u8]) -> Result<(), Errno> {
        self.send(kind, REQUEST | ACK | flags, body)?;
        let mut done = false;
        while !done {
            self.receive(|kind, body| {
                if kind == NLMSG_ERROR {
                    done = true;
                    return error(body);
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    fn dump(&mut self, kind: u16, answers: u16, body: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        self.send(kind, REQUEST | DUMP, body)?;
        let mut messages = Vec::new();
        let mut done = false;
        while !done {
            self.receive(|kind, body| {
                match kind {
                    NLMSG_DONE => done = true,
                    NLMSG_ERROR => {
                        done = true;
                        return error(body);
                    }
                    kind if kind == answers => messages.push(body.to_vec()),
                    _ => {}
                }
                Ok(())
            })?;
        }
        Ok(messages)
    }

    fn send(&mut self, kind: u16, flags: u16, body: &[u8]) -> Result<(), Errno> {
        self.sequence += 1;
        let mut message = Vec::with_capacity(16 + body.len());
        message.extend((16 + body.len() as u32).to_ne_bytes());
        message.extend(kind.to_ne_bytes());
        message.extend(flags.to_ne_bytes());
        message.extend(self.sequence.to_ne_bytes());
        message.extend(0u32.to_ne_bytes());
        message.extend(body);
        rustix::net::sendto(&self.fd, &message, SendFlags::empty(), &SocketAddrNetlink::new(0, 0)).map(drop)
    }

    /// Reads once and shows type and body of each message that answers the last request.
    fn receive(&self, mut each: impl FnMut(u16, &[u8]) -> Result<(), Errno>) -> Result<(), Errno> {
        let mut buffer = vec![0; 64 * 1024];
        let (length, _) = rustix::net::recv(&self.fd, &mut buffer[..], RecvFlags::empty())?;
        let mut rest = &buffer[..length];
        while let Some(header) = rest.first_chunk::<16>() {
            let length = number(&header[..4]).map_or(0, |length| length as usize);
            let kind = u16::from_ne_bytes([header[4], header[5]]);
            let Some(body) = rest.get(16..length) else {
                return Err(Errno::BADMSG);
            };
            if number(&header[8..12]) == Some(self.sequence) {
                each(kind, body)?;
            }
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
        Ok(())
    }
}

/// The errno of an NLMSG_ERROR; 0 is an acknowledgement.
fn error(body: &[u8]) -> Result<(), Errno> {
    match body.first_chunk().map(|code| i32::from_ne_bytes(*code)) {
        Some(0) => Ok(()),
        Some(code) => Err(Errno::from_raw_os_error(-code)),
        None => Err(Errno::BADMSG),
    }
}

/// `true` if it was done, `false` if it was as it should be already.
fn unless(result: Result<(), Errno>, harmless: Errno) -> io::Result<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(error) if error == harmless => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_addresses_and_rules_are_found() {
        let mut netlink = Netlink::open().expect("socket");
        let addresses = netlink.addresses().expect("addresses");
        assert!(addresses.contains(&IpAddr::from([127, 0, 0, 1])), "{addresses:?}");
        // Every host has the rule for table local (255).
        let rules = netlink.rules().expect("rules");
        assert!(rules.iter().any(|rule| rule.table == 255 && !rule.v6), "{rules:?}");
        netlink.local_routes().expect("routes");
    }

    #[test]
    fn what_is_encoded_is_decoded() {
        let rule = PolicyRule {
            v6: false,
            from: "10.1.2.0/24".parse().ok(),
            interface: Some("docker0".into()),
            mark: Some(7),
            table: 1000,
            priority: Some(5),
        };
        let decoded = PolicyRule::decode(&rule.encode()).expect("decoded");
        assert!(rule.is_same(&decoded), "{decoded:?}");
        assert!(!PolicyRule { mark: None, ..rule }.is_same(&decoded));
        let route = LocalRoute { v6: true, table: 300 };
        assert_eq!(LocalRoute::decode(&route.encode(1)), Some(route));
    }
}
