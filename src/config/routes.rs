//! Through which port and neighbour an address is reached.

use std::net::IpAddr;

use ipnet::IpNet;

use splice::ids::PortIndex;

/// The neighbour that a packet is handed to: the key of the neighbour table.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NextHop {
    /// The port it is behind.
    pub port: PortIndex,
    /// Its address: the destination itself when that is on-link, a gateway otherwise.
    pub ip: IpAddr,
}

/// One way: `to` is on-link when `via` is `None`.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The destinations, without host bits.
    pub to: IpNet,
    /// The port.
    pub port: PortIndex,
    /// The gateway, on-link at that port.
    pub via: Option<IpAddr>,
}

/// The routes of all ports, the longest prefix first.
///
/// A look-up compares with each route in turn: for servers at start, and for the rare packet of the engine's own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Routes(Vec<Route>);

impl Routes {
    pub(super) fn new(mut routes: Vec<Route>) -> Self {
        routes.sort_by_key(|route| std::cmp::Reverse(route.to.prefix_len()));
        Self(routes)
    }

    /// The next hop to `ip` by the longest prefix; `None` when no route leads there.
    pub fn next_hop(&self, ip: IpAddr) -> Option<NextHop> {
        let route = self.0.iter().find(|route| route.to.contains(&ip))?;
        Some(NextHop {
            port: route.port,
            ip: route.via.unwrap_or(ip),
        })
    }

    /// All routes, the longest prefix first.
    pub fn iter(&self) -> impl Iterator<Item = &Route> {
        self.0.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_prefix_wins() {
        let (left, right) = (e2d2::port::PortId(0), e2d2::port::PortId(1));
        let net = |text: &str| text.parse::<IpNet>().unwrap();
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let routes = Routes::new(vec![
            Route {
                to: net("0.0.0.0/0"),
                port: left,
                via: Some(ip("10.0.0.254")),
            },
            Route {
                to: net("10.0.0.0/24"),
                port: left,
                via: None,
            },
            Route {
                to: net("10.9.0.0/16"),
                port: right,
                via: Some(ip("10.1.0.7")),
            },
            Route {
                to: net("10.9.9.9/32"),
                port: right,
                via: None,
            },
        ]);
        assert_eq!(
            routes.next_hop(ip("10.0.0.5")),
            Some(NextHop {
                port: left,
                ip: ip("10.0.0.5")
            })
        );
        assert_eq!(
            routes.next_hop(ip("10.9.9.8")),
            Some(NextHop {
                port: right,
                ip: ip("10.1.0.7")
            })
        );
        assert_eq!(
            routes.next_hop(ip("10.9.9.9")),
            Some(NextHop {
                port: right,
                ip: ip("10.9.9.9")
            })
        );
        assert_eq!(
            routes.next_hop(ip("192.0.2.1")),
            Some(NextHop {
                port: left,
                ip: ip("10.0.0.254")
            })
        );
        assert_eq!(routes.next_hop(ip("2001:db8::1")), None);
    }
}
