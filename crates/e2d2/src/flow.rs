//! Flow rules as values: which TCP packets a port is to receive at which of its queues, and why it cannot.
//!
//! [`RuleTable`] knows the limits of some cards. Rules take precedence over [RSS](crate::rss). Who makes them is netfcts, who brings them to a device is `native` or a
//! [software NIC](crate::ports). Devices differ in what they can do, and some do less than they are told without a word;
//! [`FlowError`] is for both.

mod table;
mod testpmd;

use std::fmt;
use std::net::IpAddr;

pub(crate) use table::RuleIndex;
pub use table::{NicModel, RuleTable};

/// TCP packets to an address, and to some of its ports if it says so, are received at a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowRule {
    /// The destination address; whole, never a prefix.
    pub destination: IpAddr,
    /// The destination ports; none: all.
    pub port: Option<MaskedPort>,
    /// The queue, counted from 0.
    pub queue: u16,
}

/// The ports p for which `p & mask == value`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MaskedPort {
    /// What the bits of the mask are; no other bit is set.
    pub value: u16,
    /// Which bits count; all of them for one port, not 0.
    pub mask: u16,
}

impl MaskedPort {
    /// Whether `port` is one of them.
    pub fn contains(self, port: u16) -> bool {
        port & self.mask == self.value
    }
}

/// `tcp to 10.0.0.1 port 0x4000/0xc000 at queue 1`.
impl fmt::Display for FlowRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tcp to {}", self.destination)?;
        if let Some(MaskedPort { value, mask }) = self.port {
            write!(f, " port {value:#06x}/{mask:#06x}")?;
        }
        write!(f, " at queue {}", self.queue)
    }
}

/// Why a port does not take rules. None of them is installed then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FlowError {
    /// It has no rules of this kind, or none at all.
    #[error("{device} cannot steer by rules: {reason}")]
    Unsupported {
        /// The device, or its driver.
        device: String,
        /// What it lacks.
        reason: String,
    },
    /// It would take a rule and do less than the rule says.
    #[error("{device} would take the rule \"{rule}\" and do less than it says: {reason}")]
    WouldBeWeakened {
        /// The device, or its driver.
        device: String,
        /// The rule.
        rule: FlowRule,
        /// What would become of it.
        reason: String,
    },
    /// It refuses a rule.
    #[error("{device} refuses the rule \"{rule}\": {reason}")]
    Refused {
        /// The device, or its driver.
        device: String,
        /// The rule.
        rule: FlowRule,
        /// Why.
        reason: String,
    },
}

impl FlowError {
    /// The answer of what has no flow rules at all.
    pub fn no_rules(device: &str) -> Self {
        Self::Unsupported {
            device: device.to_owned(),
            reason: "it has no flow rules".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masked_port_contains_what_agrees_in_the_mask() {
        let quarter = MaskedPort {
            value: 0x4000,
            mask: 0xc000,
        };
        for (port, is_in) in [(0x3fff, false), (0x4000, true), (0x7fff, true), (0x8000, false)] {
            assert_eq!(quarter.contains(port), is_in, "{port:#x}");
        }
    }

    #[test]
    fn errors_name_device_rule_and_reason() {
        let rule = FlowRule {
            destination: IpAddr::from([10, 0, 0, 1]),
            port: Some(MaskedPort {
                value: 0x400,
                mask: 0xfc00,
            }),
            queue: 1,
        };
        let error = FlowError::Refused {
            device: "net_ixgbe".to_owned(),
            rule,
            reason: "no".to_owned(),
        };
        assert_eq!(
            error.to_string(),
            "net_ixgbe refuses the rule \"tcp to 10.0.0.1 port 0x0400/0xfc00 at queue 1\": no"
        );
        let bare = FlowRule { port: None, ..rule };
        assert_eq!(bare.to_string(), "tcp to 10.0.0.1 at queue 1");
        assert_eq!(
            FlowError::no_rules("net_ring0").to_string(),
            "net_ring0 cannot steer by rules: it has no flow rules"
        );
    }
}
