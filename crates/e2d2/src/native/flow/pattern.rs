//! A rule as `rte_flow` has it: items with spec and mask, and the queue.
#![allow(unsafe_code)] // Items point to their specs and masks.

use std::ffi::c_void;
use std::net::IpAddr;
use std::ptr;

use dpdk_sys as sys;

use crate::flow::{FlowRule, MaskedPort, NicModel};

/// The protocol number of TCP.
const TCP: u8 = 6;

/// What an item asks for, and which bits of it count.
#[derive(Clone, Copy, Default)]
struct Item<T> {
    spec: T,
    mask: T,
}

#[derive(Clone, Copy)]
enum IpItem {
    V4(Item<sys::rte_flow_item_ipv4>),
    V6(Item<sys::rte_flow_item_ipv6>),
}

/// `eth / ipv4 or ipv6 / tcp / end → queue / end`, in the form that a card's driver takes.
///
/// The Ethernet item never has contents: on the 82599 they would mean another mode of Flow Director.
pub(super) struct Pattern {
    ip: IpItem,
    tcp: Option<Item<sys::rte_flow_item_tcp>>,
    queue: sys::rte_flow_action_queue,
}

impl Pattern {
    /// The rule for a card of this model, or for a driver of which no peculiarities are known.
    ///
    /// * 82599, port masked in part, thus Flow Director (`ixgbe_parse_fdir_filter_normal`): IPv4 and TCP items must have masks,
    ///   and only addresses and ports may be in them. The TCP item itself is what says that the rule is for TCP.
    /// * 82599, else: the five-tuple table (`cons_parse_ntuple_filter`). It compares the protocol only if the IPv4 item's mask
    ///   says so; without it the rule would be for UDP as well.
    /// * X710 (`i40e_flow_parse_fdir_pattern`): the items name the packet type; the protocol in the IP item would be a field to
    ///   match, which its TCP types do not have.
    pub(super) fn new(rule: FlowRule, model: Option<NicModel>) -> Self {
        let is_82599 = model == Some(NicModel::Intel82599);
        let is_partial = rule.port.is_some_and(|port| port.mask != u16::MAX);
        let ip = match rule.destination {
            IpAddr::V4(address) => {
                let mut item = Item::<sys::rte_flow_item_ipv4>::default();
                item.spec.hdr.dst_addr = u32::from_ne_bytes(address.octets());
                item.mask.hdr.dst_addr = u32::MAX;
                if is_82599 && !is_partial {
                    (item.spec.hdr.next_proto_id, item.mask.hdr.next_proto_id) = (TCP, u8::MAX);
                }
                IpItem::V4(item)
            }
            IpAddr::V6(address) => {
                let mut item = Item::<sys::rte_flow_item_ipv6>::default();
                item.spec.hdr.dst_addr = address.octets();
                item.mask.hdr.dst_addr = [u8::MAX; 16];
                IpItem::V6(item)
            }
        };
        let with_port = |MaskedPort { value, mask }| {
            let mut item = Item::<sys::rte_flow_item_tcp>::default();
            (item.spec.hdr.dst_port, item.mask.hdr.dst_port) = (value.to_be(), mask.to_be());
            item
        };
        // The 82599 wants masks even if they are of nothing.
        let bare = is_82599.then(Item::default);
        Self {
            ip,
            tcp: rule.port.map(with_port).or(bare),
            queue: sys::rte_flow_action_queue { index: rule.queue },
        }
    }

    /// Calls `act` with attributes, items and actions, which are good for that call.
    pub(super) fn with<R>(
        &self,
        act: impl FnOnce(&sys::rte_flow_attr, &[sys::rte_flow_item; 4], &[sys::rte_flow_action; 2]) -> R,
    ) -> R {
        let mut attributes = sys::rte_flow_attr::default();
        attributes.set_ingress(1);
        let (ip_type, ip_spec, ip_mask) = match &self.ip {
            IpItem::V4(item) => (
                sys::RTE_FLOW_ITEM_TYPE_IPV4,
                address_of(&item.spec),
                address_of(&item.mask),
            ),
            IpItem::V6(item) => (
                sys::RTE_FLOW_ITEM_TYPE_IPV6,
                address_of(&item.spec),
                address_of(&item.mask),
            ),
        };
        let (tcp_spec, tcp_mask) = match &self.tcp {
            Some(item) => (address_of(&item.spec), address_of(&item.mask)),
            None => (ptr::null(), ptr::null()),
        };
        let item = |type_, spec, mask| sys::rte_flow_item {
            type_,
            spec,
            last: ptr::null(),
            mask,
        };
        let items = [
            item(sys::RTE_FLOW_ITEM_TYPE_ETH, ptr::null(), ptr::null()),
            item(ip_type, ip_spec, ip_mask),
            item(sys::RTE_FLOW_ITEM_TYPE_TCP, tcp_spec, tcp_mask),
            item(sys::RTE_FLOW_ITEM_TYPE_END, ptr::null(), ptr::null()),
        ];
        let action = |type_, conf| sys::rte_flow_action { type_, conf };
        let actions = [
            action(sys::RTE_FLOW_ACTION_TYPE_QUEUE, address_of(&self.queue)),
            action(sys::RTE_FLOW_ACTION_TYPE_END, ptr::null()),
        ];
        act(&attributes, &items, &actions)
    }
}

fn address_of<T>(item: &T) -> *const c_void {
    ptr::from_ref(item).cast()
}

#[cfg(test)]
mod tests {
    use std::slice;

    use super::*;

    const V4: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 1, 2, 3));
    const V6: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9];

    fn rule(destination: IpAddr, port: Option<(u16, u16)>) -> FlowRule {
        FlowRule {
            destination,
            port: port.map(|(value, mask)| MaskedPort { value, mask }),
            queue: 3,
        }
    }

    /// Bytes of an item's spec or mask as a driver reads them; nothing if there is no item.
    fn bytes(pointer: *const c_void, length: usize) -> Option<Vec<u8>> {
        // SAFETY: the tests ask for the length of the item's header, while the pattern lives.
        (!pointer.is_null()).then(|| unsafe { slice::from_raw_parts(pointer.cast::<u8>(), length) }.to_vec())
    }

    /// All that a driver sees: type, spec and mask of each item, of 20 bytes for IPv4 and TCP and 40 for IPv6.
    type Seen = Vec<(sys::rte_flow_item_type, Option<Vec<u8>>, Option<Vec<u8>>)>;

    fn seen(rule: FlowRule, model: Option<NicModel>) -> Seen {
        Pattern::new(rule, model).with(|attributes, items, actions| {
            assert_eq!(
                (attributes.group, attributes.priority),
                (0, 0),
                "Flow Director takes no other"
            );
            assert_eq!(
                (attributes.ingress(), attributes.egress(), attributes.transfer()),
                (1, 0, 0)
            );
            assert_eq!(actions[0].type_, sys::RTE_FLOW_ACTION_TYPE_QUEUE);
            assert_eq!(bytes(actions[0].conf, 2), Some(3_u16.to_ne_bytes().to_vec()));
            assert_eq!(actions[1].type_, sys::RTE_FLOW_ACTION_TYPE_END);
            assert!(items.iter().all(|item| item.last.is_null()), "no ranges");
            let length = |type_| if type_ == sys::RTE_FLOW_ITEM_TYPE_IPV6 { 40 } else { 20 };
            items
                .iter()
                .map(|item| {
                    let length = length(item.type_);
                    (item.type_, bytes(item.spec, length), bytes(item.mask, length))
                })
                .collect()
        })
    }

    /// A header of zeros but for `parts`, each at its offset.
    fn header(length: usize, parts: &[(usize, &[u8])]) -> Option<Vec<u8>> {
        let mut header = vec![0; length];
        for (at, part) in parts {
            header[*at..at + part.len()].copy_from_slice(part);
        }
        Some(header)
    }

    fn expected(
        ip: sys::rte_flow_item_type,
        (ip_spec, ip_mask): (Option<Vec<u8>>, Option<Vec<u8>>),
        (tcp_spec, tcp_mask): (Option<Vec<u8>>, Option<Vec<u8>>),
    ) -> Seen {
        vec![
            (sys::RTE_FLOW_ITEM_TYPE_ETH, None, None),
            (ip, ip_spec, ip_mask),
            (sys::RTE_FLOW_ITEM_TYPE_TCP, tcp_spec, tcp_mask),
            (sys::RTE_FLOW_ITEM_TYPE_END, None, None),
        ]
    }

    const IPV4: sys::rte_flow_item_type = sys::RTE_FLOW_ITEM_TYPE_IPV4;
    const IPV6: sys::rte_flow_item_type = sys::RTE_FLOW_ITEM_TYPE_IPV6;

    /// IPv4: the protocol is byte 9, the destination bytes 16 to 19. TCP: the destination port is bytes 2 and 3.
    #[test]
    fn a_masked_port_on_the_82599_is_all_that_flow_director_compares() {
        let seen = seen(rule(V4, Some((0x4000, 0xc000))), Some(NicModel::Intel82599));
        let ip = (header(20, &[(16, &[10, 1, 2, 3])]), header(20, &[(16, &[255; 4])]));
        let tcp = (header(20, &[(2, &[0x40, 0])]), header(20, &[(2, &[0xc0, 0])]));
        assert_eq!(seen, expected(IPV4, ip, tcp));
    }

    #[test]
    fn an_address_on_the_82599_is_a_five_tuple_filter_for_tcp_with_masks_of_nothing() {
        let seen = seen(rule(V4, None), Some(NicModel::Intel82599));
        let ip = (
            header(20, &[(9, &[6]), (16, &[10, 1, 2, 3])]),
            header(20, &[(9, &[255]), (16, &[255; 4])]),
        );
        assert_eq!(seen, expected(IPV4, ip, (header(20, &[]), header(20, &[]))));
    }

    #[test]
    fn a_whole_port_on_the_82599_is_a_five_tuple_filter_too() {
        let seen = seen(rule(V4, Some((443, u16::MAX))), Some(NicModel::Intel82599));
        let ip = (
            header(20, &[(9, &[6]), (16, &[10, 1, 2, 3])]),
            header(20, &[(9, &[255]), (16, &[255; 4])]),
        );
        let tcp = (header(20, &[(2, &[1, 187])]), header(20, &[(2, &[255, 255])]));
        assert_eq!(seen, expected(IPV4, ip, tcp));
    }

    /// IPv6: the next header is byte 6, the destination bytes 24 to 39.
    #[test]
    fn an_address_on_the_x710_is_an_address_and_a_packet_type() {
        let ip = (header(20, &[(16, &[10, 1, 2, 3])]), header(20, &[(16, &[255; 4])]));
        assert_eq!(
            seen(rule(V4, None), Some(NicModel::X710)),
            expected(IPV4, ip, (None, None))
        );
        let ip = (header(40, &[(24, &V6)]), header(40, &[(24, &[255; 16])]));
        assert_eq!(
            seen(rule(IpAddr::from(V6), None), Some(NicModel::X710)),
            expected(IPV6, ip, (None, None))
        );
    }

    #[test]
    fn other_drivers_get_what_the_rule_says_and_no_more() {
        let ip = (header(20, &[(16, &[10, 1, 2, 3])]), header(20, &[(16, &[255; 4])]));
        let tcp = (header(20, &[(2, &[0x40, 0])]), header(20, &[(2, &[0xc0, 0])]));
        assert_eq!(seen(rule(V4, Some((0x4000, 0xc000))), None), expected(IPV4, ip, tcp));
    }
}
