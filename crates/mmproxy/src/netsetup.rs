//! The routing that spoofing needs: answers of the server to the client's address must come back to this host's proxy.
//!
//! | server | rule | how |
//! |---|---|---|
//! | on this host, on loopback | from 127.0.0.0/8 and ::1, sent by this host | `mmproxy setup` |
//! | in a container or VM | from its address, coming in on its bridge | `mmproxy setup --interface docker0 --from 172.17.0.2` |
//! | on another host that routes back through this one | marked, coming in on that interface | `mmproxy setup --interface eth1 --mark 7` and the connmark lines it prints |
//!
//! Each rule leads to a table in which every destination is local.

use crate::address::{Family, Target};
use crate::cli::RouteOptions;
use crate::config::Config;
use crate::firewall;
use crate::inline::{control, host};
use crate::netlink::{LocalRoute, Netlink, PolicyRule};
use crate::privileges;
use crate::sockets;
use std::fmt::Write;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::time::Duration;

/// Longest wait for a test connection.
const PROBE: Duration = Duration::from_secs(2);

/// The same before the start, which it holds up: on loopback an answer comes at once or never.
const AT_START: Duration = Duration::from_millis(500);

/// What has to be there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The rules.
    pub rules: Vec<PolicyRule>,
    /// The routes of their table.
    pub routes: Vec<LocalRoute>,
}

/// Works out the rules and routes.
pub fn wanted(options: &RouteOptions) -> Wanted {
    let table = options.table;
    let rule = |v6, from| PolicyRule {
        v6,
        from,
        interface: Some(options.interface.clone()),
        mark: options.mark,
        table,
        priority: options.priority,
    };
    let loopback = || {
        ["127.0.0.0/8", "::1/128"]
            .iter()
            .filter_map(|text| text.parse().ok())
            .collect()
    };
    let networks: Vec<ipnet::IpNet> = if options.from.is_empty() && options.interface == "lo" {
        loopback()
    } else {
        options.from.clone()
    };
    let rules: Vec<PolicyRule> = if networks.is_empty() {
        [false, true].map(|v6| rule(v6, None)).to_vec()
    } else {
        networks
            .iter()
            .map(|&network| rule(matches!(network, ipnet::IpNet::V6(_)), Some(network)))
            .collect()
    };
    let routes = [false, true]
        .into_iter()
        .filter(|&v6| rules.iter().any(|rule| rule.v6 == v6))
        .map(|v6| LocalRoute { v6, table })
        .collect();
    Wanted { rules, routes }
}

/// The rule as a command for a shell.
pub fn rule_command(verb: &str, rule: &PolicyRule) -> String {
    let mut text = format!("ip {} rule {verb}", if rule.v6 { "-6" } else { "-4" });
    // Writing to a String cannot fail.
    if let Some(from) = rule.from {
        let _ = write!(text, " from {from}");
    }
    if let Some(interface) = &rule.interface {
        let _ = write!(text, " iif {interface}");
    }
    if let Some(mark) = rule.mark {
        let _ = write!(text, " fwmark {mark}");
    }
    if let Some(priority) = rule.priority {
        let _ = write!(text, " priority {priority}");
    }
    let _ = write!(text, " table {}", rule.table);
    text
}

/// The route as a command for a shell.
pub fn route_command(verb: &str, route: LocalRoute) -> String {
    let (family, all) = if route.v6 { ("-6", "::/0") } else { ("-4", "0.0.0.0/0") };
    format!("ip {family} route {verb} local {all} dev lo table {}", route.table)
}

/// The firewall lines that mark what comes back from a server on another host.
pub fn connmark_recipe(options: &RouteOptions) -> Option<String> {
    let mark = options.mark?;
    let interface = &options.interface;
    Some(format!(
        "# connections that mmproxy --mark {mark} opens, and what comes back on them:\n\
         iptables -t mangle -A OUTPUT -m mark --mark {mark} -j CONNMARK --save-mark\n\
         iptables -t mangle -A PREROUTING -i {interface} -m connmark --mark {mark} -j CONNMARK --restore-mark\n\
         # the same for IPv6 with ip6tables; reverse path filtering must not be strict there:\n\
         sysctl -w net.ipv4.conf.{interface}.rp_filter=2\n\
         # and the server must route its clients back through this host.\n"
    ))
}

/// What was done, line by line, for the user.
pub type Report = Vec<String>;

/// Adds what is missing.
///
/// # Errors
/// What the kernel reports, with the command that would have done it.
pub fn setup(options: &RouteOptions) -> io::Result<Report> {
    let wanted = wanted(options);
    let mut netlink = Netlink::open()?;
    let mut report = Report::new();
    for rule in &wanted.rules {
        apply(&mut report, rule_command("add", rule), rule.v6, netlink.add_rule(rule))?;
    }
    for &route in &wanted.routes {
        apply(
            &mut report,
            route_command("add", route),
            route.v6,
            netlink.add_route(route),
        )?;
    }
    if options.firewall {
        firewall::install(options)?;
        report.push(format!("[done]    {}", firewall::command(options, "add")));
    } else {
        report.extend(connmark_recipe(options));
    }
    Ok(report)
}

/// Removes what [`setup`] adds.
///
/// # Errors
/// As for [`setup`].
pub fn teardown(options: &RouteOptions) -> io::Result<Report> {
    let wanted = wanted(options);
    let mut netlink = Netlink::open()?;
    let mut report = Report::new();
    for rule in &wanted.rules {
        apply(
            &mut report,
            rule_command("del", rule),
            rule.v6,
            netlink.remove_rule(rule),
        )?;
    }
    for &route in &wanted.routes {
        apply(
            &mut report,
            route_command("del", route),
            route.v6,
            netlink.remove_route(route),
        )?;
    }
    if options.firewall {
        let removed = firewall::remove(options);
        apply(&mut report, firewall::command(options, "delete"), false, removed)?;
    }
    Ok(report)
}

fn apply(report: &mut Report, command: String, v6: bool, done: io::Result<bool>) -> io::Result<()> {
    match done {
        Ok(true) => report.push(format!("[done]    {command}")),
        Ok(false) => report.push(format!("[already] {command}")),
        // A kernel without IPv6: nothing to do, and nothing that could go wrong later.
        Err(error) if v6 && error.raw_os_error() == Some(libc::EAFNOSUPPORT) => {
            report.push(format!("[no IPv6] {command}"));
        }
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            return Err(io::Error::new(
                error.kind(),
                format!("{command}: {error}; {}", privileges::ADMIN_HINT),
            ));
        }
        Err(error) => return Err(io::Error::new(error.kind(), format!("{command}: {error}"))),
    }
    Ok(())
}

/// Verifies capability, rules, routes, and makes a connection from an address that nobody has.
/// Returns the report and whether all is well.
///
/// # Errors
/// If the kernel's tables cannot be read.
pub fn check(options: &RouteOptions) -> io::Result<(Report, bool)> {
    let mut report = Report::new();
    let mut good = true;
    let mut line = |ok: bool, what: String, fix: Option<String>| {
        good &= ok;
        report.push(format!("[{}] {what}", if ok { " ok " } else { "FAIL" }));
        if let (false, Some(fix)) = (ok, fix) {
            report.push(format!("       try: {fix}"));
        }
    };
    let admin = privileges::has_net_admin();
    line(
        admin,
        "capability CAP_NET_ADMIN".into(),
        Some(privileges::ADMIN_HINT.into()),
    );
    if options.inline {
        let result = control::try_out();
        let what = result
            .as_ref()
            .map_or_else(|error| format!(": {error}"), |()| String::new());
        line(result.is_ok(), format!("inline mode: test connection{what}"), None);
        for finding in host::findings(std::slice::from_ref(&options.interface)) {
            line(false, format!("inline mode: {finding}"), None);
        }
        // The interface is that of the balancers, and the servers are on this host.
        let loopback = RouteOptions {
            inline: false,
            interface: RouteOptions::default().interface,
            ..options.clone()
        };
        let (rest, rest_good) = check(&loopback)?;
        report.extend(rest);
        return Ok((report, good && rest_good));
    }
    let wanted = wanted(options);
    let mut netlink = Netlink::open()?;
    let (rules, routes) = (netlink.rules()?, netlink.local_routes()?);
    let has_v6 = TcpListener::bind("[::1]:0").is_ok();
    for rule in wanted.rules.iter().filter(|rule| has_v6 || !rule.v6) {
        let there = rules.iter().any(|found| rule.is_same(found));
        line(
            there,
            format!("rule: {}", rule_command("add", rule)),
            Some(rule_command("add", rule)),
        );
    }
    for &route in wanted.routes.iter().filter(|route| has_v6 || !route.v6) {
        line(
            routes.contains(&route),
            format!("route: {}", route_command("add", route)),
            Some(route_command("add", route)),
        );
    }
    if options.firewall {
        let there = firewall::is_installed(options)?;
        let setup = "mmproxy setup with the same options".to_owned();
        line(
            there,
            format!("firewall: {}", firewall::command(options, "list")),
            Some(setup),
        );
    }
    for (what, result) in probes(options, has_v6) {
        match result {
            Ok(()) => line(true, what, None),
            Err(error) => line(false, format!("{what}: {error}"), Some(probe_hint(&error))),
        }
    }
    Ok((report, good))
}

fn probe_hint(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied => privileges::ADMIN_HINT.into(),
        io::ErrorKind::TimedOut => {
            "mmproxy setup; the server's answer does not come back to this host's sockets".into()
        }
        io::ErrorKind::ConnectionRefused => "start the server: nobody listens there".into(),
        _ => "mmproxy setup".into(),
    }
}

/// Test connections: to the given target, or to listeners of our own.
fn probes(options: &RouteOptions, has_v6: bool) -> Vec<Probed> {
    let mark = options.mark.unwrap_or(0);
    let probe = |target: SocketAddr| {
        let source = sockets::test_source(Family::of(target.ip()));
        let what = format!("test connection from {source} to {target}");
        (what, sockets::probe_connect(source, target, mark, PROBE))
    };
    if let Some(target) = options.target {
        return vec![probe(target)];
    }
    if options.interface != "lo" {
        // Only the server itself can answer from behind an interface.
        return vec![];
    }
    let loopback: [IpAddr; 2] = [[127, 0, 0, 1].into(), std::net::Ipv6Addr::LOCALHOST.into()];
    let there = loopback.into_iter().filter(|ip| has_v6 || ip.is_ipv4());
    there.map(|ip| with_listener(ip, probe)).collect()
}

type Probed = (String, io::Result<()>);

/// A test connection to a listener of our own.
fn with_listener(ip: IpAddr, probe: impl FnOnce(SocketAddr) -> Probed) -> Probed {
    let listener = TcpListener::bind(SocketAddr::new(ip, 0));
    match listener.and_then(|listener| Ok((listener.local_addr()?, listener))) {
        Ok((address, _open)) => probe(address),
        Err(error) => (format!("test listener on {ip}"), Err(error)),
    }
}

/// Why connections from clients' addresses will fail, as far as this host can tell: a sentence. A server on loopback is tried with a
/// test connection to a listener beside it; the way to others is tried by [`check`] with their address.
pub fn complaint(config: &Config) -> Option<String> {
    let spoofing: Vec<_> = config.listeners.iter().filter(|listener| listener.spoof).collect();
    if spoofing.is_empty() {
        return None;
    }
    if !privileges::has_net_admin() {
        let hint = privileges::ADMIN_HINT;
        return Some(format!("connections cannot be made from clients' addresses: {hint}"));
    }
    let mut tried: Vec<(IpAddr, u32)> = Vec::new();
    for listener in spoofing {
        for target in [&listener.target_v4, &listener.target_v6].into_iter().flatten() {
            match target {
                Target::Inet(address) if address.ip().is_loopback() => tried.push((address.ip(), listener.mark)),
                Target::Inet(_) | Target::Unix(_) => {}
            }
        }
    }
    tried.sort_unstable();
    tried.dedup();
    let is_lost = |(ip, mark): &(IpAddr, u32)| {
        let source = sockets::test_source(Family::of(*ip));
        let probe = |target| (String::new(), sockets::probe_connect(source, target, *mark, AT_START));
        // Where there is no IPv6 nothing listens.
        matches!(with_listener(*ip, probe).1, Err(error) if error.kind() == io::ErrorKind::TimedOut)
    };
    let (ip, _) = tried.into_iter().find(is_lost)?;
    Some(format!(
        "answers of servers on {ip} to clients' addresses do not come back to this host: `mmproxy setup` makes the routing rules that it \
         needs, or start with --routes; `mmproxy check` says what is missing"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_those_of_the_readmes() {
        let wanted = wanted(&RouteOptions::default());
        let commands: Vec<String> = wanted
            .rules
            .iter()
            .map(|rule| rule_command("add", rule))
            .chain(wanted.routes.iter().map(|&route| route_command("add", route)))
            .collect();
        assert_eq!(
            commands,
            [
                "ip -4 rule add from 127.0.0.0/8 iif lo table 123",
                "ip -6 rule add from ::1/128 iif lo table 123",
                "ip -4 route add local 0.0.0.0/0 dev lo table 123",
                "ip -6 route add local ::/0 dev lo table 123",
            ]
        );
    }

    #[test]
    fn containers_and_other_hosts() {
        let container = RouteOptions {
            interface: "docker0".into(),
            from: vec!["172.17.0.2/32".parse().expect("network")],
            ..RouteOptions::default()
        };
        let container = wanted(&container);
        assert_eq!((container.rules.len(), container.routes.len()), (1, 1));
        assert_eq!(
            rule_command("add", &container.rules[0]),
            "ip -4 rule add from 172.17.0.2/32 iif docker0 table 123"
        );
        let host = RouteOptions {
            interface: "eth1".into(),
            mark: Some(7),
            ..RouteOptions::default()
        };
        assert_eq!(
            rule_command("add", &wanted(&host).rules[0]),
            "ip -4 rule add iif eth1 fwmark 7 table 123"
        );
        assert!(connmark_recipe(&host).is_some_and(|recipe| recipe.contains("-i eth1 -m connmark --mark 7")));
    }
}
