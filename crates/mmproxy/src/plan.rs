//! What to do with a connection or datagram, decided from its header: connect where, from which address, or not at all.
//! Pure: no sockets, no clock.

use crate::access::{self, Action, SourceKind};
use crate::address::Target;
use crate::config::{Listener, Protocol};
use crate::metrics::Reason;
use proxy_protocol::{Command, Header, Tlvs, Transport};
use std::net::{IpAddr, SocketAddr};

/// What this host looks like from outside; made at start and at every reload.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    /// Addresses of this host.
    pub own: Vec<IpAddr>,
    /// Addresses that this process listens on.
    pub listening: Vec<SocketAddr>,
    /// The system's congestion control sends by a timer.
    pub paces: bool,
}

impl Surroundings {
    /// Whether what is sent to `ip` stays on this host.
    pub fn is_here(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        ip.is_loopback() || self.own.contains(&ip)
    }
}

/// A connection that is to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Connect from here; `None` for an address of this host.
    pub source: Option<SocketAddr>,
    /// Connect to here.
    pub target: Target,
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// For the counters.
    pub reason: Reason,
    /// For the log.
    pub detail: String,
}

impl Refusal {
    /// A refusal with what is known of it.
    pub fn new(reason: Reason, detail: impl Into<String>) -> Self {
        Refusal {
            reason,
            detail: detail.into(),
        }
    }
}

/// Decides from the header; without one (`None`) the peer itself is the client.
///
/// # Errors
/// The reason why nothing is to be connected.
pub fn decide(
    listener: &Listener,
    surroundings: &Surroundings,
    peer: SocketAddr,
    header: Option<&Header<'_>>,
) -> Result<Plan, Refusal> {
    if let Some(header) = header {
        check_transport(listener.protocol, header)?;
    }
    let client = match header {
        None => Some(peer),
        Some(header) => header.source(),
    }
    .map(|client| SocketAddr::new(client.ip().to_canonical(), client.port()));
    let tlvs = header.map_or(Tlvs::EMPTY, |header| header.tlvs);
    let client_ip = client.map(|client| client.ip());
    if access::decide(&listener.rules, client_ip.or(Some(peer.ip())), tlvs) == Action::Deny {
        return Err(Refusal::new(
            Reason::Denied,
            format!("denied by a rule{}", access::describe_tlvs(tlvs)),
        ));
    }
    let source = client.filter(|_| listener.spoof);
    if let Some(source) = source {
        check_source(listener, surroundings, source.ip())?;
    }
    let target = match (&listener.dynamic, header.and_then(Header::destination)) {
        (Some(allowed), Some(destination)) => dynamic_target(allowed, surroundings, destination)?,
        _ => static_target(listener, source, client_ip.unwrap_or(peer.ip()))?,
    };
    if let (Some(source), Target::Inet(target)) = (source, &target)
        && source.is_ipv4() != target.is_ipv4()
    {
        let detail = format!(
            "{target} cannot be reached from {}: it is of the other family",
            source.ip()
        );
        return Err(Refusal::new(Reason::NoTarget, detail));
    }
    let source = source.filter(|_| matches!(target, Target::Inet(_)));
    Ok(Plan { source, target })
}

fn check_transport(protocol: Protocol, header: &Header<'_>) -> Result<(), Refusal> {
    let fits = match (header.command, header.transport) {
        (Command::Local, _) | (_, Transport::Unspecified) => true,
        (_, Transport::Stream) => protocol == Protocol::Tcp,
        (_, Transport::Datagram) => protocol == Protocol::Udp,
    };
    if fits {
        Ok(())
    } else {
        Err(Refusal::new(
            Reason::WrongTransport,
            "header is for the other transport",
        ))
    }
}

/// The kernel silently takes another address for some of these, and servers trust others: no peer may claim them.
fn check_source(listener: &Listener, surroundings: &Surroundings, source: IpAddr) -> Result<(), Refusal> {
    match SourceKind::of(source, &surroundings.own) {
        Some(kind) if !listener.allow_sources.contains(&kind) => {
            let detail = format!(
                "claims the {} source {source} (allow_sources = [\"{}\"] permits it)",
                kind.name(),
                kind.name()
            );
            Err(Refusal::new(Reason::DangerousSource, detail))
        }
        _ => Ok(()),
    }
}

fn dynamic_target(
    allowed: &access::Networks,
    surroundings: &Surroundings,
    destination: SocketAddr,
) -> Result<Target, Refusal> {
    let destination = SocketAddr::new(destination.ip().to_canonical(), destination.port());
    let ours = |listening: &SocketAddr| {
        let is_everywhere = listening.ip().is_unspecified();
        listening.port() == destination.port()
            && (listening.ip() == destination.ip() || (is_everywhere && surroundings.is_here(destination.ip())))
    };
    if !allowed.contains(destination.ip()) || destination.port() == 0 {
        return Err(Refusal::new(
            Reason::NoTarget,
            format!("destination {destination} is not allowed"),
        ));
    }
    if destination.ip().is_unspecified() || surroundings.listening.iter().any(ours) {
        return Err(Refusal::new(
            Reason::Loop,
            format!("destination {destination} is this proxy itself"),
        ));
    }
    Ok(Target::Inet(destination))
}

/// The target for the client's family. Without spoofing any will do, so the other one serves when there is none.
fn static_target(listener: &Listener, source: Option<SocketAddr>, client: IpAddr) -> Result<Target, Refusal> {
    let other = || {
        if source.is_none() {
            listener.target_v4.as_ref().or(listener.target_v6.as_ref())
        } else {
            None
        }
    };
    let target = listener.target(client).or_else(other).cloned();
    target.ok_or_else(|| {
        let family = if client.is_ipv4() { "IPv4" } else { "IPv6" };
        Refusal::new(Reason::NoTarget, format!("no target for {family} clients"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::{Networks, Rule};
    use proxy_protocol::{Addresses, parse};

    fn address(text: &str) -> SocketAddr {
        text.parse().expect("test address")
    }

    fn listener() -> Listener {
        Listener {
            target_v4: Some(Target::Inet(address("127.0.0.1:443"))),
            target_v6: Some(Target::Inet(address("[::1]:443"))),
            ..Listener::default()
        }
    }

    fn surroundings() -> Surroundings {
        Surroundings {
            own: vec![address("192.0.2.1:0").ip()],
            listening: vec![address("0.0.0.0:8443")],
            paces: true,
        }
    }

    #[test]
    fn loopback_and_own_addresses_are_here() {
        let here = |text: &str| surroundings().is_here(address(text).ip());
        assert!(
            [
                "127.0.0.1:1",
                "127.9.9.9:1",
                "[::1]:1",
                "[::ffff:127.0.0.1]:1",
                "192.0.2.1:1"
            ]
            .into_iter()
            .all(here)
        );
        assert!(here("[::ffff:192.0.2.1]:1") && !here("192.0.2.2:1") && !here("[2001:db8::1]:1"));
    }

    fn v1(source: &str, destination: &str) -> Header<'static> {
        Header::v1(Addresses::from_pair(address(source), address(destination)))
    }

    fn plan(listener: &Listener, header: Option<&Header<'_>>) -> Result<(Option<SocketAddr>, String), Reason> {
        decide(listener, &surroundings(), address("10.0.0.1:999"), header)
            .map(|plan| (plan.source, plan.target.to_string()))
            .map_err(|refusal| refusal.reason)
    }

    #[test]
    fn family_of_the_client_chooses_the_target_whatever_the_balancer_speaks() {
        let v4 = v1("203.0.113.7:1", "198.51.100.9:2");
        let v6 = v1("[2001:db8::7]:1", "[2001:db8::9]:2");
        let mapped = Header::v1(Addresses::from_pair(
            address("[::ffff:203.0.113.7]:1"),
            address("[2001:db8::9]:2"),
        ));
        let l = listener();
        assert_eq!(
            plan(&l, Some(&v4)),
            Ok((Some(address("203.0.113.7:1")), "127.0.0.1:443".into()))
        );
        assert_eq!(
            plan(&l, Some(&v6)),
            Ok((Some(address("[2001:db8::7]:1")), "[::1]:443".into()))
        );
        assert_eq!(
            plan(&l, Some(&mapped)),
            Ok((Some(address("203.0.113.7:1")), "127.0.0.1:443".into()))
        );
        assert_eq!(
            plan(&Listener { target_v6: None, ..l }, Some(&v6)),
            Err(Reason::NoTarget)
        );
    }

    #[test]
    fn local_and_unknown_are_not_spoofed() {
        for header in [Header::local(), Header::v1(Addresses::Unspecified)] {
            assert_eq!(plan(&listener(), Some(&header)), Ok((None, "127.0.0.1:443".into())));
        }
        // Addresses in a LOCAL header are not trusted.
        let mut bytes = [0; 64];
        let length = v1("203.0.113.7:1", "198.51.100.9:2")
            .encode(&mut bytes)
            .expect("encoded");
        assert!(parse(&bytes[..length]).is_ok());
        let mut local = b"\r\n\r\n\0\r\nQUIT\n\x20\x11\x00\x0c".to_vec();
        local.extend([203, 0, 113, 7, 1, 1, 1, 1, 0, 1, 0, 2]);
        let Ok(proxy_protocol::Parsed::Complete { header, .. }) = parse(&local) else {
            panic!()
        };
        assert_eq!(plan(&listener(), Some(&header)), Ok((None, "127.0.0.1:443".into())));
    }

    #[test]
    fn dangerous_sources_need_permission() {
        for source in [
            "0.0.0.0:1",
            "224.0.0.1:1",
            "255.255.255.255:1",
            "127.0.0.1:1",
            "192.0.2.1:1",
        ] {
            let header = v1(source, "198.51.100.9:2");
            assert_eq!(
                plan(&listener(), Some(&header)),
                Err(Reason::DangerousSource),
                "{source}"
            );
        }
        let permissive = Listener {
            allow_sources: vec![SourceKind::Loopback],
            ..listener()
        };
        assert!(plan(&permissive, Some(&v1("127.0.0.1:1", "127.0.0.1:2"))).is_ok());
        assert!(plan(&permissive, Some(&v1("192.0.2.1:1", "127.0.0.1:2"))).is_err());
        // Without spoofing the claim goes nowhere.
        let plain = Listener {
            spoof: false,
            ..listener()
        };
        assert_eq!(
            plan(&plain, Some(&v1("127.0.0.1:1", "127.0.0.1:2"))),
            Ok((None, "127.0.0.1:443".into()))
        );
    }

    #[test]
    fn dynamic_destinations_are_limited_and_never_ourselves() {
        let allowed: Networks = ["127.0.0.0/8", "192.0.2.0/24"]
            .iter()
            .filter_map(|text| access::parse_network(text))
            .collect();
        let dynamic = Listener {
            dynamic: Some(allowed),
            ..listener()
        };
        let to = |destination: &str| plan(&dynamic, Some(&v1("203.0.113.7:1", destination))).map(|(_, target)| target);
        assert_eq!(to("192.0.2.9:25"), Ok("192.0.2.9:25".into()));
        assert_eq!(to("198.51.100.9:25"), Err(Reason::NoTarget));
        assert_eq!(to("192.0.2.9:0"), Err(Reason::NoTarget));
        assert_eq!(to("192.0.2.1:8443"), Err(Reason::Loop));
        assert_eq!(to("127.0.0.1:8443"), Err(Reason::Loop));
        assert_eq!(to("127.0.0.1:443"), Ok("127.0.0.1:443".into()));
        assert_eq!(
            plan(&dynamic, Some(&Header::local())),
            Ok((None, "127.0.0.1:443".into()))
        );
    }

    #[test]
    fn transports_and_rules() {
        let pair = Addresses::from_pair(address("203.0.113.7:1"), address("198.51.100.9:2"));
        let datagram = Header::proxy(Transport::Datagram, pair);
        assert_eq!(plan(&listener(), Some(&datagram)), Err(Reason::WrongTransport));
        let udp = Listener {
            protocol: Protocol::Udp,
            ..listener()
        };
        assert!(plan(&udp, Some(&datagram)).is_ok());
        assert_eq!(
            plan(&udp, Some(&Header::proxy(Transport::Stream, pair))),
            Err(Reason::WrongTransport)
        );
        let deny = Listener {
            rules: vec![Rule {
                action: Action::Deny,
                source: None,
                tlv: None,
            }],
            ..listener()
        };
        assert_eq!(
            plan(&deny, Some(&v1("203.0.113.7:1", "198.51.100.9:2"))),
            Err(Reason::Denied)
        );
    }
}
