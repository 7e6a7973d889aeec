//! Rules as DPDK's `testpmd` takes them, for a person with the card.

use std::net::IpAddr;

use super::{FlowRule, NicModel};

impl FlowRule {
    /// The command that makes this rule by hand on port `port` of a running `dpdk-testpmd`, item by item what a port of this
    /// crate asks the driver for. `model` is the card; none: one of which no peculiarities are known.
    pub fn testpmd(&self, port: u16, model: Option<NicModel>) -> String {
        let is_82599 = model == Some(NicModel::Intel82599);
        let is_partial = self.port.is_some_and(|port| port.mask != u16::MAX);
        let ip = match self.destination {
            IpAddr::V4(address) if is_82599 && !is_partial => format!("ipv4 proto is 6 dst is {address}"),
            IpAddr::V4(address) => format!("ipv4 dst is {address}"),
            IpAddr::V6(address) => format!("ipv6 dst is {address}"),
        };
        let tcp = match self.port {
            Some(port) => format!("tcp dst spec {} dst mask {}", port.value, port.mask),
            None if is_82599 => "tcp dst spec 0 dst mask 0".to_owned(),
            None => "tcp".to_owned(),
        };
        let queue = self.queue;
        format!("flow create {port} ingress pattern eth / {ip} / {tcp} / end actions queue index {queue} / end")
    }
}
