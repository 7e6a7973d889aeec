//! A client behind two routers, one of which forwards at a time and the other takes its place.
//!
//! ```text
//!             ┌── router1 ──┐
//!   engine ── br0           br2 ── far
//!             └── router2 ──┘
//! ```
//!
//! Towards the client both have the addresses and the MAC address of one virtual router, as with VRRP; towards the engine
//! each has its own, which is all that the engine sees of a fail-over (RFC 9568 8.1.2 and 8.2.2: the virtual MAC address
//! is for the protected network alone).

use crate::far::ip;
use crate::{Place, Rig, RigError};

/// The routers with the MAC address that the engine sees, and the last part of their addresses on its segment.
const ROUTERS: [(Place, &str, &str); 2] = [
    (Place::FirstRouter, "02:00:00:77:00:a1", "201"),
    (Place::SecondRouter, "02:00:00:77:00:a2", "202"),
];

/// RFC 9568 7.3: that of virtual router 1.
const VIRTUAL_MAC: &str = "00:00:5e:00:01:01";

/// Both routers' addresses towards the client.
const VIRTUAL: [&str; 2] = ["10.77.2.1", "fd77:0:0:2::1"];

impl Rig {
    /// Adds a client, [`Place::Far`] at [`crate::FAR_HOST`], behind two routers that do not forward yet; all go with the
    /// rig.
    ///
    /// # Errors
    /// When a step fails.
    pub fn add_routers(&self) -> Result<(), RigError> {
        let switch = Place::Switch.name(self.prefix());
        ip(&[
            "-n",
            &switch,
            "link",
            "add",
            "br2",
            "type",
            "bridge",
            "stp_state",
            "0",
            "forward_delay",
            "0",
            "mcast_snooping",
            "0",
        ])?;
        ip(&[
            "-n",
            &switch,
            "link",
            "set",
            "br2",
            "mtu",
            &self.options().mtu.to_string(),
            "up",
        ])?;
        for (number, (place, mac, host)) in ROUTERS.into_iter().enumerate() {
            let router = place.name(self.prefix());
            self.add_namespace(place)?;
            self.forward(place)?;
            self.plug(place, ("eth0", mac), ("br0", &format!("router{number}")))?;
            self.plug(place, ("eth1", VIRTUAL_MAC), ("br2", &format!("virtual{number}")))?;
            ip(&[
                "-n",
                &router,
                "address",
                "add",
                &format!("10.77.0.{host}/24"),
                "dev",
                "eth0",
            ])?;
        }
        let far = Place::Far.name(self.prefix());
        self.add_namespace(Place::Far)?;
        self.plug(Place::Far, ("eth0", "02:00:00:77:00:0f"), ("br2", "far"))?;
        ip(&["-n", &far, "link", "set", "eth0", "up"])?;
        for (address, router) in ["10.77.2.11/24", "fd77:0:0:2::11/64"].into_iter().zip(VIRTUAL) {
            ip(&["-n", &far, "address", "add", address, "dev", "eth0"])?;
            ip(&["-n", &far, "route", "add", "default", "via", router])?;
        }
        Ok(())
    }

    /// Takes one router's links down, and then lets the other forward in its place.
    ///
    /// # Errors
    /// When a step fails.
    ///
    /// # Panics
    /// When `place` is no router.
    pub fn route_by(&self, place: Place) -> Result<(), RigError> {
        let is_chosen = |router: &(Place, &str, &str)| router.0 == place;
        let (_, _, host) = ROUTERS.into_iter().find(is_chosen).expect("a router");
        for (other, ..) in ROUTERS.into_iter().filter(|router| !is_chosen(router)) {
            let other = other.name(self.prefix());
            for interface in ["eth1", "eth0"] {
                ip(&["-n", &other, "link", "set", interface, "down"])?;
            }
        }
        let router = place.name(self.prefix());
        for interface in ["eth0", "eth1"] {
            ip(&["-n", &router, "link", "set", interface, "up"])?;
        }
        // An interface that goes down loses its IPv6 addresses.
        let [v4, v6] = VIRTUAL;
        for (address, interface) in [
            (format!("fd77::{host}/64"), "eth0"),
            (format!("{v4}/24"), "eth1"),
            (format!("{v6}/64"), "eth1"),
        ] {
            ip(&["-n", &router, "address", "replace", &address, "dev", interface])?;
        }
        Ok(())
    }

    /// A cable from an interface, which stays down, to a port of a bridge.
    fn plug(&self, place: Place, (interface, mac): (&str, &str), (bridge, port): (&str, &str)) -> Result<(), RigError> {
        let (name, switch) = (place.name(self.prefix()), Place::Switch.name(self.prefix()));
        let mtu = self.options().mtu.to_string();
        ip(&[
            "-n", &name, "link", "add", interface, "address", mac, "mtu", &mtu, "type", "veth", "peer", "name", port,
            "mtu", &mtu, "netns", &switch,
        ])?;
        self.offloads_off(place, interface)?;
        self.offloads_off(Place::Switch, port)?;
        ip(&["-n", &switch, "link", "set", port, "master", bridge, "up"])
    }
}
