//! What the host's TCP agrees to with its peers: SYN-ACKs that the programs write must be those that it would have written.

use crate::inline::kernel;
use std::io;
use std::path::Path;

/// From the `net.ipv4.tcp_*` settings of this network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// RFC 7323 window scaling.
    pub window_scaling: bool,
    /// RFC 7323 timestamps.
    pub timestamps: bool,
    /// RFC 2018 selective acknowledgements.
    pub sack: bool,
    /// RFC 3168, when the peer asks.
    pub ecn: bool,
    /// Shift of the windows that servers announce, 0 to 14.
    pub window_scale: u32,
    /// Bytes that a peer may send before a server has said more.
    pub window: u32,
}

impl Default for Host {
    fn default() -> Self {
        Host {
            window_scaling: true,
            timestamps: true,
            sack: true,
            ecn: true,
            window_scale: 7,
            window: 65_535,
        }
    }
}

/// The numbers of a file in /proc/sys; none if it cannot be read.
pub(crate) fn sysctl(name: &str) -> Vec<u64> {
    let path = Path::new("/proc/sys").join(name.replace('.', "/"));
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

impl Host {
    /// Reads the settings; what cannot be read has Linux's default.
    pub fn read() -> Self {
        let default = Host::default();
        let number = |name: &str| sysctl(name).first().copied();
        let buffers = sysctl("net.ipv4.tcp_rmem");
        // tcp_select_initial_window() of net/ipv4/tcp_output.c.
        let space = buffers.get(2).copied().max(number("net.core.rmem_max"));
        let window_scale = space
            .filter(|&space| space != 0)
            .map_or(default.window_scale, |space| space.ilog2().saturating_sub(15).min(14));
        let window = buffers
            .get(1)
            .map_or(default.window, |&buffer| (buffer / 2).min(65_535) as u32);
        let is_on = |name: &str| number(name).is_none_or(|value| value != 0);
        Host {
            window_scaling: is_on("net.ipv4.tcp_window_scaling"),
            timestamps: is_on("net.ipv4.tcp_timestamps"),
            sack: is_on("net.ipv4.tcp_sack"),
            ecn: is_on("net.ipv4.tcp_ecn"),
            window_scale,
            window,
        }
    }
}

/// What keeps connections from arriving that come in on these interfaces, each with what mends it.
pub fn findings(interfaces: &[String]) -> Vec<String> {
    let number = |name: &str| sysctl(name).first().copied();
    let mut found = Vec::new();
    if number("net.ipv4.tcp_syncookies") == Some(0) {
        found.push(
            "net.ipv4.tcp_syncookies = 0: the kernel refuses handshakes that it has not seen; set it to 1".into(),
        );
    }
    // The greater of both counts: ip-sysctl.rst.
    let everywhere = number("net.ipv4.conf.all.rp_filter").unwrap_or(0);
    for name in interfaces {
        // Names may have dots: as a file, not as a setting's name.
        let path = format!("/proc/sys/net/ipv4/conf/{name}/rp_filter");
        let own = std::fs::read_to_string(path).ok();
        let own = own.and_then(|text| text.trim().parse().ok()).unwrap_or(0);
        if everywhere.max(own) == 1 && name != "lo" {
            found.push(format!(
                "net.ipv4.conf.{name}.rp_filter = 1: clients that are not reached by {name} are dropped; set it to 2"
            ));
        }
    }
    if number("net.netfilter.nf_conntrack_tcp_loose") == Some(0) {
        found.push(
            "net.netfilter.nf_conntrack_tcp_loose = 0: connections without a SYN are invalid; set it to 1".into(),
        );
    }
    found.extend(interfaces.iter().flat_map(|name| other_programs(name)));
    found.extend(rules_against_new().map(|rule| {
        format!(
            "nftables drops connections that it has not seen begin: accept balancers' ports before this rule: {rule}"
        )
    }));
    found
}

/// The number of an interface.
///
/// # Errors
/// If there is none of this name.
pub(crate) fn interface_index(name: &str) -> io::Result<u32> {
    let socket = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None)?;
    Ok(rustix::net::netdevice::name_to_index(socket, name)?)
}

/// What else looks at the packets of an interface. Filters come behind all programs that links run.
fn other_programs(interface: &str) -> Vec<String> {
    let mut found = Vec::new();
    let programs = interface_index(interface).map_or_else(|_| vec![], kernel::other_programs);
    if !programs.is_empty() {
        found.push(format!(
            "{interface} has other tcx programs ({}): before mmproxy's they see balancers' addresses, behind them nothing of inline \
             connections; inline = true takes that as it is",
            programs.join(", ")
        ));
    }
    let has_filters = ["ingress", "egress"].iter().any(|way| {
        let output = std::process::Command::new("tc")
            .args(["filter", "show", "dev", interface, way])
            .output();
        output.is_ok_and(|output| !output.stdout.is_empty())
    });
    if has_filters {
        found.push(format!(
            "{interface} has tc filters: they see nothing of inline connections; inline = true takes that as it is"
        ));
    }
    found
}

/// Rules of this network that drop a connection whose SYN they have not seen. Nothing is found where there is no nft, or no right to
/// ask it.
fn rules_against_new() -> impl Iterator<Item = String> {
    let output = std::process::Command::new("nft")
        .args(["--stateless", "list", "ruleset"])
        .output();
    let text = output.map(|output| output.stdout).unwrap_or_default();
    let text = String::from_utf8_lossy(&text).into_owned();
    let rules: Vec<String> = text
        .lines()
        .filter(|rule| is_against_new(rule))
        .map(|rule| rule.trim().into())
        .collect();
    rules.into_iter()
}

/// Whether a rule drops what is new and no SYN, as nft prints it: `ct state new tcp flags & (fin | syn | rst | ack) != syn drop`, or
/// `tcp flags ! syn / …`.
fn is_against_new(rule: &str) -> bool {
    let says = |text: &str| rule.contains(text);
    let drops = rule.split_whitespace().any(|word| matches!(word, "drop" | "reject"));
    says("ct state") && says("new") && says("tcp flags") && (says("!= syn") || says("! syn")) && drops
}

#[cfg(test)]
mod tests {
    use super::is_against_new;

    #[test]
    fn rules_against_connections_without_a_syn_are_found() {
        for rule in [
            "tcp flags & (fin | syn | rst | ack) != syn ct state new counter packets 0 bytes 0 drop",
            "ct state new tcp flags ! syn / fin,syn,rst,ack drop",
            "tcp flags != syn ct state new reject with tcp reset",
        ] {
            assert!(is_against_new(rule), "{rule}");
        }
        for rule in [
            "ct state established,related accept",
            "ct state new tcp dport 443 accept",
            "tcp flags & (fin | syn | rst | ack) != syn ct state new counter",
            "tcp flags syn ct state new drop",
        ] {
            assert!(!is_against_new(rule), "{rule}");
        }
    }
}
