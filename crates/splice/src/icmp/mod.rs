//! What an ICMP error says, in one version of IP or the other, and what it says in the other one (RFC 7915 4.2 and 5.2).

pub(crate) mod quote;

use crate::rewrite::siit;
use e2d2::buffer::PacketBuffer;
use e2d2::wire::frame::{IpVersion, Kind};
use e2d2::wire::icmpv4::{Icmpv4Repr, unreachable_code as v4};
use e2d2::wire::icmpv6::{Icmpv6Repr, unreachable_code as v6};
use e2d2::wire::ipv6::Ipv6Header;
use e2d2::wire::{EmitError, Envelope};

/// RFC 1191 7.1: the MTUs of common links, for routers that do not say theirs.
const PLATEAUS: [u16; 10] = [65535, 32000, 17914, 8166, 4352, 2002, 1492, 1006, 508, 296];

/// The codes of IPv4's "destination unreachable" that only the translation knows (RFC 792, RFC 1122 3.2.2.1, RFC 1812).
mod v4_only {
    pub(crate) const SOURCE_ROUTE_FAILED: u8 = 5;
    pub(crate) const NETWORK_UNKNOWN: u8 = 6;
    pub(crate) const HOST_UNKNOWN: u8 = 7;
    pub(crate) const HOST_ISOLATED: u8 = 8;
    pub(crate) const NETWORK_PROHIBITED: u8 = 9;
    pub(crate) const HOST_PROHIBITED: u8 = 10;
    pub(crate) const NETWORK_FOR_SERVICE: u8 = 11;
    pub(crate) const HOST_FOR_SERVICE: u8 = 12;
    pub(crate) const PRECEDENCE_CUTOFF: u8 = 15;
}

/// The codes of "parameter problem" (RFC 792, RFC 1108, RFC 4443 3.4).
mod parameter {
    /// Both versions: the byte pointed to.
    pub(crate) const FIELD: u8 = 0;
    pub(crate) const V4_BAD_LENGTH: u8 = 2;
    pub(crate) const V6_NEXT_HEADER: u8 = 1;
}

/// Where the header names the protocol it carries.
const V4_PROTOCOL_AT: u32 = 9;
const V6_NEXT_HEADER_AT: u32 = 6;

/// What an error says, with the codes of the version of IP that it came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IcmpError {
    /// Destination unreachable, with its code.
    Unreachable(u8),
    /// The packet does not fit a link of this MTU.
    TooBig(u32),
    /// The hop limit was used up, or a fragment was missed.
    TimeExceeded(u8),
    /// A header was not understood: code and the offset of the byte.
    Parameter { code: u8, pointer: u32 },
}

impl IcmpError {
    /// What an ICMP packet says, and about which packet: from its IP header on. An MTU that no link may have is raised.
    pub(crate) fn read(frame: &[u8], kind: Kind) -> Option<(IpVersion, IcmpError, &[u8])> {
        match kind {
            Kind::Icmpv4 { l4, end, .. } => {
                let (icmp_error, original) = read_v4(frame.get(usize::from(l4)..usize::from(end))?)?;
                Some((IpVersion::V4, icmp_error, original))
            }
            Kind::Icmpv6 { l3, l4, end } => {
                let header = Ipv6Header(frame.get(usize::from(l3)..)?.first_chunk()?);
                let (icmp_error, original) = read_v6(header, frame.get(usize::from(l4)..usize::from(end))?)?;
                Some((IpVersion::V6, icmp_error, original))
            }
            Kind::Tcp(_) | Kind::Arp | Kind::Other { .. } => None,
        }
    }

    /// Writes the error about `original`; `self` and `original` are of the version of the envelope's addresses.
    pub(crate) fn write<B: PacketBuffer>(
        self,
        envelope: &Envelope,
        original: &[u8],
        buffer: &mut B,
    ) -> Result<(), EmitError> {
        if envelope.dst_addr.is_ipv4() {
            self.as_v4(original).emit(envelope, buffer)
        } else {
            self.as_v6(original).emit(envelope, buffer)
        }
    }

    /// The same in the other version than `from`; `None` if nothing there corresponds to it, and it ends here.
    pub(crate) fn across(self, from: IpVersion) -> Option<IcmpError> {
        match from {
            IpVersion::V4 => self.v4_as_v6(),
            IpVersion::V6 => self.v6_as_v4(),
        }
    }

    /// RFC 7915 4.2.
    fn v4_as_v6(self) -> Option<IcmpError> {
        use v4_only as more;
        Some(match self {
            IcmpError::Unreachable(code) => match code {
                v4::PROTOCOL => IcmpError::Parameter {
                    code: parameter::V6_NEXT_HEADER,
                    pointer: V6_NEXT_HEADER_AT,
                },
                v4::PORT => IcmpError::Unreachable(v6::PORT),
                more::NETWORK_PROHIBITED | more::HOST_PROHIBITED | v4::PROHIBITED | more::PRECEDENCE_CUTOFF => {
                    IcmpError::Unreachable(v6::PROHIBITED)
                }
                v4::NETWORK
                | v4::HOST
                | more::SOURCE_ROUTE_FAILED
                | more::NETWORK_UNKNOWN
                | more::HOST_UNKNOWN
                | more::HOST_ISOLATED
                | more::NETWORK_FOR_SERVICE
                | more::HOST_FOR_SERVICE => IcmpError::Unreachable(v6::NO_ROUTE),
                _ => return None,
            },
            IcmpError::TooBig(mtu) => IcmpError::TooBig(siit::mtu_for(IpVersion::V6, mtu)),
            IcmpError::TimeExceeded(code) => IcmpError::TimeExceeded(code),
            IcmpError::Parameter {
                code: parameter::FIELD | parameter::V4_BAD_LENGTH,
                pointer,
            } => IcmpError::Parameter {
                code: parameter::FIELD,
                pointer: v4_pointer_in_v6(pointer)?,
            },
            IcmpError::Parameter { .. } => return None,
        })
    }

    /// RFC 7915 5.2.
    fn v6_as_v4(self) -> Option<IcmpError> {
        Some(match self {
            IcmpError::Unreachable(code) => match code {
                v6::NO_ROUTE | v6::BEYOND_SCOPE | v6::ADDRESS => IcmpError::Unreachable(v4::HOST),
                v6::PROHIBITED => IcmpError::Unreachable(v4_only::HOST_PROHIBITED),
                v6::PORT => IcmpError::Unreachable(v4::PORT),
                _ => return None,
            },
            IcmpError::TooBig(mtu) => IcmpError::TooBig(siit::mtu_for(IpVersion::V4, mtu)),
            IcmpError::TimeExceeded(code) => IcmpError::TimeExceeded(code),
            IcmpError::Parameter {
                code: parameter::FIELD,
                pointer,
            } => IcmpError::Parameter {
                code: parameter::FIELD,
                pointer: v6_pointer_in_v4(pointer)?,
            },
            IcmpError::Parameter {
                code: parameter::V6_NEXT_HEADER,
                ..
            } => IcmpError::Unreachable(v4::PROTOCOL),
            IcmpError::Parameter { .. } => return None,
        })
    }

    fn as_v4(self, original: &[u8]) -> Icmpv4Repr<'_> {
        match self {
            IcmpError::Unreachable(code) => Icmpv4Repr::Unreachable {
                code,
                next_hop_mtu: 0,
                original,
            },
            IcmpError::TooBig(mtu) => Icmpv4Repr::Unreachable {
                code: v4::FRAGMENTATION_NEEDED,
                next_hop_mtu: mtu.min(u32::from(u16::MAX)) as u16,
                original,
            },
            IcmpError::TimeExceeded(code) => Icmpv4Repr::TimeExceeded { code, original },
            IcmpError::Parameter { code, pointer } => Icmpv4Repr::ParameterProblem {
                code,
                pointer: pointer.min(u32::from(u8::MAX)) as u8,
                original,
            },
        }
    }

    fn as_v6(self, original: &[u8]) -> Icmpv6Repr<'_> {
        match self {
            IcmpError::Unreachable(code) => Icmpv6Repr::Unreachable { code, original },
            IcmpError::TooBig(mtu) => Icmpv6Repr::PacketTooBig { mtu, original },
            IcmpError::TimeExceeded(code) => Icmpv6Repr::TimeExceeded { code, original },
            IcmpError::Parameter { code, pointer } => Icmpv6Repr::ParameterProblem {
                code,
                pointer,
                original,
            },
        }
    }
}

fn read_v4(message: &[u8]) -> Option<(IcmpError, &[u8])> {
    Some(match Icmpv4Repr::parse(message).ok()? {
        Icmpv4Repr::Unreachable {
            code: v4::FRAGMENTATION_NEEDED,
            next_hop_mtu,
            original,
        } => {
            let mtu = if next_hop_mtu == 0 {
                likely_mtu(original)
            } else {
                next_hop_mtu
            };
            (IcmpError::TooBig(mtu.max(IpVersion::V4.min_mtu()).into()), original)
        }
        Icmpv4Repr::Unreachable { code, original, .. } => (IcmpError::Unreachable(code), original),
        Icmpv4Repr::TimeExceeded { code, original } => (IcmpError::TimeExceeded(code), original),
        Icmpv4Repr::ParameterProblem {
            code,
            pointer,
            original,
        } => {
            let pointer = u32::from(pointer);
            (IcmpError::Parameter { code, pointer }, original)
        }
        _ => return None,
    })
}

fn read_v6<'a>(header: Ipv6Header<&[u8; 40]>, message: &'a [u8]) -> Option<(IcmpError, &'a [u8])> {
    Some(match Icmpv6Repr::parse(header, message).ok()? {
        Icmpv6Repr::PacketTooBig { mtu, original } => {
            let least = u32::from(IpVersion::V6.min_mtu());
            (IcmpError::TooBig(mtu.max(least)), original)
        }
        Icmpv6Repr::Unreachable { code, original } => (IcmpError::Unreachable(code), original),
        Icmpv6Repr::TimeExceeded { code, original } => (IcmpError::TimeExceeded(code), original),
        Icmpv6Repr::ParameterProblem {
            code,
            pointer,
            original,
        } => (IcmpError::Parameter { code, pointer }, original),
        _ => return None,
    })
}

/// RFC 1191 5 and RFC 7915 4.2: the next plateau below the length of the packet that did not fit, when the router is too
/// old to say more; its total length is in the quote.
fn likely_mtu(original: &[u8]) -> u16 {
    let total_len = original.get(2..4).map_or(0, |len| u16::from_be_bytes([len[0], len[1]]));
    PLATEAUS
        .into_iter()
        .find(|&plateau| plateau < total_len)
        .unwrap_or_default()
}

/// RFC 7915 4.2, figure 3: where the field at an offset of an IPv4 header is in that of IPv6.
fn v4_pointer_in_v6(pointer: u32) -> Option<u32> {
    Some(match pointer {
        // Version and header length; type of service.
        0 | 1 => pointer,
        // Total length.
        2 | 3 => 4,
        // Time to live.
        8 => 7,
        V4_PROTOCOL_AT => V6_NEXT_HEADER_AT,
        // The addresses.
        12..=15 => 8,
        16..=19 => 24,
        _ => return None,
    })
}

/// RFC 7915 5.2, figure 6: where the field at an offset of an IPv6 header is in that of IPv4.
fn v6_pointer_in_v4(pointer: u32) -> Option<u32> {
    Some(match pointer {
        // Version; traffic class.
        0 | 1 => pointer,
        // Payload length.
        4 | 5 => 2,
        V6_NEXT_HEADER_AT => V4_PROTOCOL_AT,
        // Hop limit.
        7 => 8,
        // The addresses.
        8..=23 => 12,
        24..=39 => 16,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use test_case::test_case;

    #[test_case(1500 => 1492; "an Ethernet frame")]
    #[test_case(1492 => 1006; "exactly a plateau")]
    #[test_case(9000 => 8166; "a jumbo frame")]
    #[test_case(297 => 296; "just above the last")]
    #[test_case(296 => 0; "the last")]
    fn likely_mtu_of_a_packet_of(total_len: u16) -> u16 {
        let mut header = [0x45; 20];
        header[2..4].copy_from_slice(&total_len.to_be_bytes());
        likely_mtu(&header)
    }

    #[test]
    fn a_quote_without_a_length_gives_no_mtu() {
        assert_eq!(likely_mtu(&[0x45, 0, 5]), 0);
    }

    /// RFC 7915 4.2, word for word.
    #[test]
    fn every_code_of_unreachable_from_ipv4() {
        let no_route = Some(IcmpError::Unreachable(0));
        let prohibited = Some(IcmpError::Unreachable(1));
        let expected = |code: u8| match code {
            0 | 1 | 5..=8 | 11 | 12 => no_route,
            2 => Some(IcmpError::Parameter { code: 1, pointer: 6 }),
            3 => Some(IcmpError::Unreachable(4)),
            9 | 10 | 13 | 15 => prohibited,
            // 4 is too-big, and never read as unreachable; 14 and all others end here.
            _ => None,
        };
        for code in 0..=u8::MAX {
            assert_eq!(
                IcmpError::Unreachable(code).across(IpVersion::V4),
                expected(code),
                "{code}"
            );
        }
    }

    /// RFC 7915 5.2, word for word.
    #[test]
    fn every_code_of_unreachable_from_ipv6() {
        let expected = |code: u8| match code {
            0 | 2 | 3 => Some(IcmpError::Unreachable(1)),
            1 => Some(IcmpError::Unreachable(10)),
            4 => Some(IcmpError::Unreachable(3)),
            _ => None,
        };
        for code in 0..=u8::MAX {
            assert_eq!(
                IcmpError::Unreachable(code).across(IpVersion::V6),
                expected(code),
                "{code}"
            );
        }
    }

    /// RFC 7915 figures 3 and 6.
    #[test]
    fn every_pointer_of_a_parameter_problem() {
        let pointer =
            |from: IpVersion, code: u8, pointer: u32| match (IcmpError::Parameter { code, pointer }).across(from) {
                Some(IcmpError::Parameter { code: 0, pointer }) => Some(pointer),
                None => None,
                other => panic!("{other:?}"),
            };
        for code in [0, 2] {
            let to_v6: Vec<_> = (0..21).map(|at| pointer(IpVersion::V4, code, at)).collect();
            let none = None;
            assert_eq!(
                to_v6,
                [
                    Some(0),
                    Some(1),
                    Some(4),
                    Some(4),
                    none,
                    none,
                    none,
                    none,
                    Some(7),
                    Some(6),
                    none,
                    none,
                    Some(8),
                    Some(8),
                    Some(8),
                    Some(8),
                    Some(24),
                    Some(24),
                    Some(24),
                    Some(24),
                    none
                ]
            );
        }
        let to_v4: Vec<_> = (0..41).map(|at| pointer(IpVersion::V6, 0, at)).collect();
        let mut expected = vec![Some(0), Some(1), None, None, Some(2), Some(2), Some(9), Some(8)];
        expected.extend([Some(12); 16]);
        expected.extend([Some(16); 16]);
        expected.push(None);
        assert_eq!(to_v4, expected);
    }

    #[test_case(IpVersion::V4, 1 => None; "IPv4, a missing option")]
    #[test_case(IpVersion::V4, 3 => None; "IPv4, unknown")]
    #[test_case(IpVersion::V6, 1 => Some(IcmpError::Unreachable(2)); "IPv6, an unknown next header")]
    #[test_case(IpVersion::V6, 2 => None; "IPv6, an unknown option")]
    #[test_case(IpVersion::V6, 3 => None; "IPv6, unknown")]
    fn other_parameter_problems(from: IpVersion, code: u8) -> Option<IcmpError> {
        IcmpError::Parameter { code, pointer: 6 }.across(from)
    }

    #[test_case(IpVersion::V4, IcmpError::TooBig(576) => Some(IcmpError::TooBig(1280)); "the floors of both")]
    #[test_case(IpVersion::V4, IcmpError::TooBig(1400) => Some(IcmpError::TooBig(1420)); "more over IPv6")]
    #[test_case(IpVersion::V6, IcmpError::TooBig(1280) => Some(IcmpError::TooBig(1260)); "less over IPv4")]
    #[test_case(IpVersion::V6, IcmpError::TooBig(u32::MAX) => Some(IcmpError::TooBig(u32::MAX - 20)); "nonsense")]
    #[test_case(IpVersion::V4, IcmpError::TimeExceeded(1) => Some(IcmpError::TimeExceeded(1)); "time, from IPv4")]
    #[test_case(IpVersion::V6, IcmpError::TimeExceeded(0) => Some(IcmpError::TimeExceeded(0)); "time, from IPv6")]
    fn what_has_its_like(from: IpVersion, icmp_error: IcmpError) -> Option<IcmpError> {
        icmp_error.across(from)
    }
}
