//! Names of hosts, users and databases as rules write them, and how they compare with the names that clients send.

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

/// Longest host name in text form: RFC 1035 2.3.4 allows 255 bytes on the wire, which is 253 characters.
pub const MAX_HOST_LEN: usize = 253;

/// Which hosts a rule wants. Comparison ignores case and one trailing dot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostPattern {
    /// `*`: every host, as long as one is named.
    Any,
    /// `a.example`, `192.0.2.1`: this host. Lower case, no trailing dot.
    Exact(String),
    /// `*.example`: every host below this domain at any depth, not the domain itself. Holds `.example` in lower case.
    Below(String),
    /// `[2001:db8::1]`: this address, however it is written.
    Ipv6(Ipv6Addr),
}

impl HostPattern {
    /// Whether `host` is one of the hosts. `host` is a name or an address, without port; IPv6 addresses are in brackets.
    pub fn matches(&self, host: &[u8]) -> bool {
        let host = host.strip_suffix(b".").unwrap_or(host);
        match self {
            Self::Any => !host.is_empty(),
            Self::Exact(name) => host.eq_ignore_ascii_case(name.as_bytes()),
            Self::Below(suffix) => {
                let suffix = suffix.as_bytes();
                let start = host.len().saturating_sub(suffix.len());
                start > 0 && host.get(start..).is_some_and(|tail| tail.eq_ignore_ascii_case(suffix))
            }
            Self::Ipv6(address) => bracketed(host).is_some_and(|other| other == *address),
        }
    }

    /// Whether every host that `other` matches is matched by this one.
    pub fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Any, _) => true,
            (Self::Below(ours), Self::Below(theirs)) => theirs.ends_with(ours.as_str()),
            (Self::Below(_), Self::Exact(name)) => self.matches(name.as_bytes()),
            (Self::Exact(ours), Self::Exact(theirs)) => ours == theirs,
            (Self::Ipv6(ours), Self::Ipv6(theirs)) => ours == theirs,
            _ => false,
        }
    }
}

/// Says what was expected in place of the text.
impl FromStr for HostPattern {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "*" {
            return Ok(Self::Any);
        }
        if text.starts_with('[') {
            return bracketed(text.as_bytes())
                .map(Self::Ipv6)
                .ok_or("an IPv6 address between the brackets");
        }
        if text.parse::<Ipv6Addr>().is_ok() {
            return Err("an IPv6 address in brackets, as clients send it");
        }
        if text.contains(':') {
            return Err("a host name without a port");
        }
        let (name, below) = text.strip_prefix("*.").map_or((text, false), |name| (name, true));
        let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
        if name.is_empty() || name.len() > MAX_HOST_LEN {
            return Err("a host name of 1 to 253 characters");
        }
        // RFC 1035 2.3.4: labels of 1 to 63 bytes. Names in other scripts travel as A-labels (RFC 5890 2.3.2.1).
        let is_label = |label: &str| {
            (1..=63).contains(&label.len())
                && label
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
        };
        if !name.split('.').all(is_label) {
            return Err(
                "a host name (letters, digits, \"-\", \"_\" in labels of 1 to 63 characters; other scripts as \
                        \"xn--…\"), \"*.\" before a domain, or \"*\"",
            );
        }
        Ok(if below {
            Self::Below(format!(".{name}"))
        } else {
            Self::Exact(name)
        })
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("*"),
            Self::Exact(name) => f.write_str(name),
            Self::Below(suffix) => write!(f, "*{suffix}"),
            Self::Ipv6(address) => write!(f, "[{address}]"),
        }
    }
}

/// Which names of users or databases a rule wants. Comparison is exact, byte by byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NamePattern {
    /// `*`: every name.
    Any,
    /// This name.
    Exact(String),
}

impl NamePattern {
    /// Whether `name` is one of the names.
    pub fn matches(&self, name: &[u8]) -> bool {
        match self {
            Self::Any => true,
            Self::Exact(wanted) => wanted.as_bytes() == name,
        }
    }

    /// Whether every name that `other` matches is matched by this one.
    pub fn covers(&self, other: &Self) -> bool {
        *self == Self::Any || self == other
    }
}

fn bracketed(host: &[u8]) -> Option<Ipv6Addr> {
    let inner = host.strip_prefix(b"[")?.strip_suffix(b"]")?;
    std::str::from_utf8(inner).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use test_case::test_case;

    #[test_case("a.example", "a.example" => true)]
    #[test_case("A.Example.", "a.eXample" => true; "case and trailing dot of the pattern")]
    #[test_case("a.example", "a.example." => true; "trailing dot of the host")]
    #[test_case("a.example", "a.example.." => false; "two trailing dots")]
    #[test_case("a.example", "b.a.example" => false)]
    #[test_case("*.example", "a.example" => true; "below")]
    #[test_case("*.example", "b.A.Example." => true; "far below")]
    #[test_case("*.example", "example" => false; "the domain itself")]
    #[test_case("*.example", ".example" => false; "an empty label")]
    #[test_case("*.example", "aexample" => false; "no label boundary")]
    #[test_case("*", "x" => true)]
    #[test_case("*", "" => false; "nothing is no host")]
    #[test_case("*", "." => false; "the root is no host")]
    #[test_case("192.0.2.1", "192.0.2.1" => true)]
    #[test_case("[2001:DB8::1]", "[2001:db8:0:0::1]" => true; "the same address")]
    #[test_case("[2001:db8::1]", "2001:db8::1" => false; "without brackets")]
    #[test_case("[2001:db8::1]", "[2001:db8::2]" => false; "another address")]
    fn hosts(pattern: &str, host: &str) -> bool {
        pattern.parse::<HostPattern>().unwrap().matches(host.as_bytes())
    }

    #[test_case(""; "empty")]
    #[test_case("."; "root")]
    #[test_case("*."; "nothing below")]
    #[test_case("a..example"; "empty label")]
    #[test_case("a.*.example"; "star within")]
    #[test_case("*example"; "star without dot")]
    #[test_case("a.example:80"; "port")]
    #[test_case("2001:db8::1"; "bare IPv6")]
    #[test_case("[2001:db8::1"; "open bracket")]
    #[test_case("a b"; "space")]
    #[test_case("bücher.example"; "not ASCII")]
    fn is_no_pattern(text: &str) {
        assert!(text.parse::<HostPattern>().is_err());
    }

    #[test]
    fn lengths_have_bounds() {
        let label = "a".repeat(63);
        assert!(label.parse::<HostPattern>().is_ok());
        assert!(format!("{label}a").parse::<HostPattern>().is_err());
        let longest = format!("{label}.{label}.{label}.{}", "a".repeat(61));
        assert_eq!(longest.len(), MAX_HOST_LEN);
        assert!(longest.parse::<HostPattern>().is_ok());
        assert!(format!("{longest}a").parse::<HostPattern>().is_err());
    }

    #[test]
    fn covering() {
        let covers = |a: &str, b: &str| a.parse::<HostPattern>().unwrap().covers(&b.parse().unwrap());
        assert!(covers("*", "*") && covers("*", "*.example") && covers("*", "a.example") && covers("*", "[::1]"));
        assert!(
            covers("*.example", "a.example") && covers("*.example", "*.a.example") && covers("*.example", "*.example")
        );
        assert!(covers("a.example", "A.EXAMPLE.") && covers("[::1]", "[0::1]"));
        assert!(!covers("*.example", "*") && !covers("*.example", "example") && !covers("a.example", "*.a.example"));
        assert!(!covers("*.a.example", "*.example") && !covers("a.example", "b.example") && !covers("[::1]", "[::2]"));
    }
}
