//! A network behind the servers' namespace, which becomes its router, over a link with an MTU of its own.
//!
//! ```text
//!   engine ── br0 ── servers (router) ──── small link ──── far
//! ```
//!
//! The far host names a segment size that the link does not take, as if the small link lay between two routers: only
//! path-MTU discovery shows it to who sends there.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::Command;
use std::time::Duration;

use crate::{Place, Rig, RigError, process};

const LIMIT: Duration = Duration::from_secs(20);

/// The networks of the far host, and the routes that lead to them.
pub const FAR_NETWORKS: [&str; 2] = ["10.77.2.0/24", "fd77:0:0:2::/64"];

/// The far host.
pub const FAR_HOST: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(10, 77, 2, 11)),
    IpAddr::V6(Ipv6Addr::new(0xfd77, 0, 0, 2, 0, 0, 0, 0x11)),
];

impl Rig {
    /// Adds the far host, [`Place::Far`], behind a link of this MTU, 1280 to the rig's own; it goes with the rig.
    ///
    /// # Errors
    /// When a step fails.
    pub fn add_far_host(&self, mtu: u16) -> Result<(), RigError> {
        let (far, router) = (Place::Far.name(self.prefix()), Place::Servers.name(self.prefix()));
        let mtu = mtu.to_string();
        self.add_namespace(Place::Far)?;
        ip(&[
            "-n", &router, "link", "add", "far0", "mtu", &mtu, "type", "veth", "peer", "name", "eth0", "mtu", &mtu,
            "netns", &far,
        ])?;
        for (place, name, interface, hosts) in [
            (Place::Servers, &router, "far0", ["10.77.2.1/24", "fd77:0:0:2::1/64"]),
            (Place::Far, &far, "eth0", ["10.77.2.11/24", "fd77:0:0:2::11/64"]),
        ] {
            self.offloads_off(place, interface)?;
            for host in hosts {
                ip(&["-n", name, "address", "add", host, "dev", interface])?;
            }
            ip(&["-n", name, "link", "set", interface, "up"])?;
        }
        self.forward(Place::Servers)?;
        ip(&[
            "-n",
            &far,
            "route",
            "add",
            "default",
            "via",
            "10.77.2.1",
            "advmss",
            "1460",
        ])?;
        ip(&[
            "-n",
            &far,
            "route",
            "add",
            "default",
            "via",
            "fd77:0:0:2::1",
            "advmss",
            "1440",
        ])
    }

    /// A namespace beside those that every rig has: no noise, and addresses at once.
    pub(crate) fn add_namespace(&self, place: Place) -> Result<(), RigError> {
        let name = place.name(self.prefix());
        ip(&["netns", "add", &name])?;
        let quiet = [
            "net.ipv6.conf.default.accept_dad=0",
            "net.ipv6.conf.default.router_solicitations=0",
        ];
        self.sysctl(place, &quiet)?;
        ip(&["-n", &name, "link", "set", "lo", "up"])
    }

    /// What is sent by an interface is segmented and has its checksums, as on a wire.
    pub(crate) fn offloads_off(&self, place: Place, interface: &str) -> Result<(), RigError> {
        let offloads = [
            "-K", interface, "tx", "off", "rx", "off", "sg", "off", "tso", "off", "gso", "off", "gro", "off",
        ];
        self.run(place, "ethtool", &offloads, LIMIT).map(drop)
    }

    /// The place routes between its interfaces.
    pub(crate) fn forward(&self, place: Place) -> Result<(), RigError> {
        self.sysctl(place, &["net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"])
    }

    fn sysctl(&self, place: Place, settings: &[&str]) -> Result<(), RigError> {
        let arguments = [&["--quiet", "--write"], settings].concat();
        self.run(place, "sysctl", &arguments, LIMIT).map(drop)
    }
}

/// Runs `ip` in the namespace of the caller.
pub(crate) fn ip(arguments: &[&str]) -> Result<(), RigError> {
    process::run(Command::new("ip").args(arguments), b"", LIMIT).map(drop)
}
