//! Who may send headers, what they may claim, and where they may send connections.

use ipnet::IpNet;
use proxy_protocol::{Tlv, Tlvs, kind};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// A list of networks that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// A line is no network.
    #[error("{}:{line}: `{text}` is not a network such as 192.0.2.0/24 or 2001:db8::/32", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Its line, from 1.
        line: usize,
        /// What stands there.
        text: String,
    },
    /// The list is empty, which would be read as "nobody" or "everybody" depending on the reader.
    #[error("{} lists no network; name 0.0.0.0/0 and ::/0 to allow everybody", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
}

/// A set of networks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Networks {
    v4: Vec<ipnet::Ipv4Net>,
    v6: Vec<ipnet::Ipv6Net>,
}

impl Networks {
    /// Reads a file with one network or address per line. `#` and `;` begin comments, blank lines are skipped, host bits
    /// are ignored.
    ///
    /// # Errors
    /// If the file cannot be read, has a line that is no network, or no network at all: a list never fails open.
    pub fn read(path: &Path) -> Result<Self, AccessError> {
        let text = std::fs::read_to_string(path).map_err(|source| AccessError::Read {
            path: path.to_owned(),
            source,
        })?;
        let mut networks = Networks::default();
        for (index, line) in text.lines().enumerate() {
            let entry = line.split(['#', ';']).next().unwrap_or_default().trim();
            if entry.is_empty() {
                continue;
            }
            let network = parse_network(entry).ok_or_else(|| AccessError::Line {
                path: path.to_owned(),
                line: index + 1,
                text: entry.to_owned(),
            })?;
            networks.add(network);
        }
        if networks.is_empty() {
            Err(AccessError::Empty { path: path.to_owned() })
        } else {
            Ok(networks)
        }
    }

    /// Adds a network. An IPv4-mapped one counts as IPv4.
    pub fn add(&mut self, network: IpNet) {
        match network {
            IpNet::V4(network) => self.v4.push(network),
            IpNet::V6(network) => match network.addr().to_ipv4_mapped() {
                Some(ip) if network.prefix_len() >= 96 => {
                    // The prefix is 96 to 128 here, so 0 to 32 remains.
                    self.v4.extend(ipnet::Ipv4Net::new(ip, network.prefix_len() - 96));
                }
                _ => self.v6.push(network),
            },
        }
    }

    /// The networks of both.
    pub fn merged(mut self, other: Self) -> Self {
        self.v4.extend(other.v4);
        self.v6.extend(other.v6);
        self
    }

    /// Whether there is no network in it.
    pub fn is_empty(&self) -> bool {
        self.v4.is_empty() && self.v6.is_empty()
    }

    /// The networks, IPv4 first.
    pub fn iter(&self) -> impl Iterator<Item = IpNet> {
        let v4 = self.v4.iter().copied().map(IpNet::V4);
        v4.chain(self.v6.iter().copied().map(IpNet::V6))
    }

    /// Whether the address is in one of the networks. An IPv4-mapped address counts as IPv4.
    pub fn contains(&self, ip: IpAddr) -> bool {
        match ip.to_canonical() {
            IpAddr::V4(ip) => self.v4.iter().any(|network| network.contains(&ip)),
            IpAddr::V6(ip) => self.v6.iter().any(|network| network.contains(&ip)),
        }
    }
}

impl FromIterator<IpNet> for Networks {
    fn from_iter<I: IntoIterator<Item = IpNet>>(iter: I) -> Self {
        let mut networks = Networks::default();
        iter.into_iter().for_each(|network| networks.add(network));
        networks
    }
}

/// A network, or an address as a network of its own.
pub fn parse_network(text: &str) -> Option<IpNet> {
    text.parse()
        .ok()
        .or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from))
}

/// Kinds of source addresses that gain trust, or that the kernel silently replaces with another when spoofed.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SourceKind {
    /// 0.0.0.0/8 and `::`: the kernel would take an address of its own, often 127.0.0.1.
    Unspecified,
    /// 224.0.0.0/4 and ff00::/8: likewise.
    Multicast,
    /// 255.255.255.255: likewise.
    Broadcast,
    /// 127.0.0.0/8 and `::1`: many servers trust it.
    Loopback,
    /// An address of this host: likewise.
    Own,
}

impl SourceKind {
    /// All of them, by their names in configuration files.
    pub const ALL: [(SourceKind, &str); 5] = [
        (SourceKind::Unspecified, "unspecified"),
        (SourceKind::Multicast, "multicast"),
        (SourceKind::Broadcast, "broadcast"),
        (SourceKind::Loopback, "loopback"),
        (SourceKind::Own, "own"),
    ];

    /// The name in configuration files.
    pub fn name(self) -> &'static str {
        Self::ALL
            .iter()
            .find(|(kind, _)| *kind == self)
            .map_or("", |(_, name)| name)
    }

    /// What is dangerous about `ip`, if anything; `own` are the addresses of this host.
    pub fn of(ip: IpAddr, own: &[IpAddr]) -> Option<Self> {
        let ip = ip.to_canonical();
        let this_network = matches!(ip, IpAddr::V4(ip) if ip.octets()[0] == 0);
        if ip.is_unspecified() || this_network {
            Some(SourceKind::Unspecified)
        } else if ip.is_multicast() {
            Some(SourceKind::Multicast)
        } else if matches!(ip, IpAddr::V4(ip) if ip.is_broadcast()) {
            Some(SourceKind::Broadcast)
        } else if ip.is_loopback() {
            Some(SourceKind::Loopback)
        } else if own.contains(&ip) {
            Some(SourceKind::Own)
        } else {
            None
        }
    }
}

/// What a rule decides.
#[derive(Copy, Clone, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// Relay.
    Allow,
    /// Close.
    Deny,
}

/// A rule over what a header says. All conditions that are there must hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// What happens to connections it fits.
    pub action: Action,
    /// The client's address is in one of these.
    pub source: Option<Networks>,
    /// A TLV of this type is there, with this value if one is given.
    pub tlv: Option<(u8, Option<Vec<u8>>)>,
}

impl Rule {
    fn fits(&self, source: Option<IpAddr>, tlvs: Tlvs<'_>) -> bool {
        let source_fits = match (&self.source, source) {
            (None, _) => true,
            (Some(networks), Some(source)) => networks.contains(source),
            (Some(_), None) => false,
        };
        let tlv_fits = match &self.tlv {
            None => true,
            Some((wanted, value)) => tlvs.raw().any(|(kind, found)| {
                kind == *wanted && value.as_ref().is_none_or(|value| value == comparable(kind, found))
            }),
        };
        source_fits && tlv_fits
    }
}

/// The first rule that fits decides; if none does, the connection is relayed.
pub fn decide(rules: &[Rule], source: Option<IpAddr>, tlvs: Tlvs<'_>) -> Action {
    rules
        .iter()
        .find(|rule| rule.fits(source, tlvs))
        .map_or(Action::Allow, |rule| rule.action)
}

/// The part of a TLV's value that a user would write down: without the sub-type of AWS.
fn comparable(kind: u8, value: &[u8]) -> &[u8] {
    if kind == kind::AWS {
        value.strip_prefix(&[1]).unwrap_or(value)
    } else {
        value
    }
}

/// A TLV type by its name in configuration files, or as a number such as `0xE4`.
pub fn tlv_kind(name: &str) -> Option<u8> {
    Some(match name {
        "alpn" => kind::ALPN,
        "authority" => kind::AUTHORITY,
        "unique-id" => kind::UNIQUE_ID,
        "netns" => kind::NETNS,
        "aws-vpce" => kind::AWS,
        "azure" => kind::AZURE,
        "gcp" => kind::GCP,
        "alibaba" => kind::ALIBABA,
        number => {
            return number
                .strip_prefix("0x")
                .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        }
    })
}

/// TLVs for a log line: known ones by name, values escaped and cut at 64 bytes.
pub fn describe_tlvs(tlvs: Tlvs<'_>) -> String {
    let text = |value: &[u8]| value[..value.len().min(64)].escape_ascii().to_string();
    let mut out = String::new();
    for tlv in tlvs.iter() {
        let described = match tlv {
            Tlv::Checksum(_) | Tlv::Noop(_) => continue,
            Tlv::Alpn(value) => format!("alpn={}", text(value)),
            Tlv::Authority(value) => format!("authority={}", text(value)),
            Tlv::UniqueId(value) => format!("unique-id={}", text(value)),
            Tlv::Netns(value) => format!("netns={}", text(value)),
            Tlv::AwsVpcEndpoint(value) => format!("aws-vpce={}", text(value)),
            Tlv::AzureLinkId(id) => format!("azure-link={id}"),
            Tlv::GcpConnectionId(id) => format!("gcp-psc={id}"),
            Tlv::Alibaba { subtype, value } => format!("alibaba-{subtype}={}", text(value)),
            Tlv::Ssl(ssl) => {
                let field = |kind| text(ssl.field(kind).unwrap_or_default());
                format!(
                    "ssl={}/{} verify={}",
                    field(kind::SSL_VERSION),
                    field(kind::SSL_CN),
                    ssl.verify
                )
            }
            other => format!("{:#04x}", other.kind()),
        };
        out.push(' ');
        out.push_str(&described);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn list(text: &str) -> Result<Networks, AccessError> {
        let mut file = tempfile::NamedTempFile::new().expect("temporary file");
        file.write_all(text.as_bytes()).expect("written");
        Networks::read(file.path())
    }

    #[test]
    fn list_takes_comments_host_bits_addresses_and_mapped_networks() {
        let list = list("# balancers\n\n127.0.0.1/8 ; host bits\n 192.0.2.7\n2001:db8::/32\n::ffff:198.51.100.0/120\n");
        let list = list.expect("accepted");
        for inside in [
            "127.9.9.9",
            "192.0.2.7",
            "2001:db8::1",
            "::ffff:127.0.0.1",
            "198.51.100.77",
        ] {
            assert!(list.contains(inside.parse().expect("address")), "{inside}");
        }
        for outside in ["128.0.0.1", "192.0.2.8", "2001:db9::1", "::1", "::ffff:192.0.2.8"] {
            assert!(!list.contains(outside.parse().expect("address")), "{outside}");
        }
    }

    #[test]
    fn list_never_fails_open() {
        assert!(matches!(
            Networks::read(Path::new("/nonexistent/list")),
            Err(AccessError::Read { .. })
        ));
        assert!(matches!(
            list("10.0.0.0/8\nnonsense\n"),
            Err(AccessError::Line { line: 2, .. })
        ));
        assert!(matches!(list("10.0.0.0/33\n"), Err(AccessError::Line { line: 1, .. })));
        assert!(matches!(list("# nothing\n"), Err(AccessError::Empty { .. })));
    }

    #[test]
    fn dangerous_sources_are_told_by_kind() {
        let own = ["192.0.2.1".parse().expect("address")];
        let cases = [
            ("0.0.0.0", Some(SourceKind::Unspecified)),
            ("0.1.2.3", Some(SourceKind::Unspecified)),
            ("::", Some(SourceKind::Unspecified)),
            ("224.0.0.1", Some(SourceKind::Multicast)),
            ("ff02::1", Some(SourceKind::Multicast)),
            ("255.255.255.255", Some(SourceKind::Broadcast)),
            ("127.0.0.1", Some(SourceKind::Loopback)),
            ("::1", Some(SourceKind::Loopback)),
            ("::ffff:127.0.0.1", Some(SourceKind::Loopback)),
            ("::ffff:0.0.0.0", Some(SourceKind::Unspecified)),
            ("192.0.2.1", Some(SourceKind::Own)),
            ("203.0.113.7", None),
            ("2001:db8::7", None),
        ];
        for (ip, expected) in cases {
            assert_eq!(SourceKind::of(ip.parse().expect("address"), &own), expected, "{ip}");
        }
    }

    #[test]
    fn first_rule_that_fits_decides() {
        let vpce = |value: &str| [&[0xea, 0, value.len() as u8 + 1, 1], value.as_bytes()].concat();
        let rules = [
            Rule {
                action: Action::Allow,
                source: None,
                tlv: Some((kind::AWS, Some(b"vpce-good".to_vec()))),
            },
            Rule {
                action: Action::Allow,
                source: Some([parse_network("10.0.0.0/8").expect("network")].into_iter().collect()),
                tlv: None,
            },
            Rule {
                action: Action::Deny,
                source: None,
                tlv: None,
            },
        ];
        let client: Option<IpAddr> = "203.0.113.7".parse().ok();
        assert_eq!(
            decide(&rules, client, Tlvs::new(&vpce("vpce-good")).expect("tlvs")),
            Action::Allow
        );
        assert_eq!(
            decide(&rules, client, Tlvs::new(&vpce("vpce-bad")).expect("tlvs")),
            Action::Deny
        );
        assert_eq!(decide(&rules, client, Tlvs::EMPTY), Action::Deny);
        assert_eq!(decide(&rules, "10.1.1.1".parse().ok(), Tlvs::EMPTY), Action::Allow);
        assert_eq!(decide(&rules, None, Tlvs::EMPTY), Action::Deny);
        assert_eq!(decide(&[], None, Tlvs::EMPTY), Action::Allow);
    }
}
