//! What a device is asked to do besides moving packets: checksums, and letting a port's VLAN through.

use dpdk_sys as sys;

use super::port::PortConfig;

/// Both or none, so that a packet is finished in one place.
pub(super) const RX_CHECKSUMS: u64 = sys::DPDK_RX_OFFLOAD_IPV4_CKSUM | sys::DPDK_RX_OFFLOAD_TCP_CKSUM;
/// Likewise.
pub(super) const TX_CHECKSUMS: u64 = sys::DPDK_TX_OFFLOAD_IPV4_CKSUM | sys::DPDK_TX_OFFLOAD_TCP_CKSUM;

/// What the device is asked to do besides moving packets, of what its driver says that it can.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Offloads {
    pub(super) rx: u64,
    pub(super) tx: u64,
}

impl Offloads {
    pub(super) fn of(config: &PortConfig, info: &sys::rte_eth_dev_info) -> Self {
        let mut offloads = Self::default();
        // A virtio device that is asked for TCP alone lets its peers leave their checksums to it (GUEST_CSUM, virtio 1.2
        // 5.1.6.4) and delivers them unfinished.
        if config.checksum_offload && info.rx_offload_capa & RX_CHECKSUMS == RX_CHECKSUMS {
            offloads.rx |= RX_CHECKSUMS;
        }
        // The header lengths that a packet asks with do not count its tag.
        if config.checksum_offload && config.vlan.is_none() && info.tx_offload_capa & TX_CHECKSUMS == TX_CHECKSUMS {
            offloads.tx |= TX_CHECKSUMS;
        }
        // virtio-net filters tags as soon as its driver could tell it which (VIRTIO_NET_F_CTRL_VLAN, virtio 1.2 5.1.6.5.3).
        if config.vlan.is_some() {
            offloads.rx |= info.rx_offload_capa & sys::DPDK_RX_OFFLOAD_VLAN_FILTER;
        }
        offloads
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::PortId;

    const FILTER: u64 = sys::DPDK_RX_OFFLOAD_VLAN_FILTER;

    fn asked(config: &PortConfig, rx: u64, tx: u64) -> Offloads {
        let info = sys::rte_eth_dev_info {
            rx_offload_capa: rx,
            tx_offload_capa: tx,
            ..Default::default()
        };
        Offloads::of(config, &info)
    }

    fn config(vlan: Option<u16>) -> PortConfig {
        PortConfig {
            vlan,
            ..PortConfig::new(PortId(0), "0000:01:00.0".parse().expect("a device"))
        }
    }

    /// The capabilities are those of e1000e, virtio-net (which vmxnet3 shares) and of a device that has one half only.
    #[test]
    fn a_device_does_both_checksums_or_none() {
        let all = Offloads {
            rx: RX_CHECKSUMS,
            tx: TX_CHECKSUMS,
        };
        let none = Offloads::default();
        let tcp = (sys::DPDK_RX_OFFLOAD_TCP_CKSUM, sys::DPDK_TX_OFFLOAD_TCP_CKSUM);
        let ip = (sys::DPDK_RX_OFFLOAD_IPV4_CKSUM, sys::DPDK_TX_OFFLOAD_IPV4_CKSUM);
        for ((rx, tx), wanted) in [
            ((RX_CHECKSUMS, TX_CHECKSUMS), all),
            (tcp, none),
            (ip, none),
            ((0, 0), none),
        ] {
            assert_eq!(asked(&config(None), rx, tx), wanted, "{rx:x} {tx:x}");
        }
    }

    #[test]
    fn a_device_that_is_not_trusted_does_no_checksum() {
        let config = PortConfig {
            checksum_offload: false,
            ..config(None)
        };
        assert_eq!(asked(&config, RX_CHECKSUMS, TX_CHECKSUMS), Offloads::default());
    }

    #[test]
    fn a_port_with_a_tag_has_it_filtered_and_finishes_what_it_sends_itself() {
        let can = (RX_CHECKSUMS | FILTER, TX_CHECKSUMS);
        let tagged = asked(&config(Some(5)), can.0, can.1);
        assert_eq!(tagged, Offloads { rx: can.0, tx: 0 });
        assert_eq!(asked(&config(None), can.0, can.1).rx, RX_CHECKSUMS, "no tag, no filter");
        assert_eq!(
            asked(&config(Some(5)), 0, 0),
            Offloads::default(),
            "a device that cannot filter"
        );
    }
}
