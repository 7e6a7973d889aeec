//! The connection marks that a server on another host needs: what mmproxy opens is marked, and what comes back on such a
//! connection gets the mark of its first packet, by which `mmproxy setup` routes it to this host's sockets.
//!
//! `setup --firewall` puts them into a table of their own through nft(8), for IPv4 and IPv6, and touches no other table.

use crate::cli::RouteOptions;
use std::io::{self, Write};
use std::process::{Command, Stdio};

/// Longest name of an interface (`IFNAMSIZ` less the final zero).
const NAME: usize = 15;

/// The name of our table; one for each routing table.
fn table(options: &RouteOptions) -> String {
    format!("inet mmproxy_{}", options.table)
}

/// What nft shall read: the table, made anew whatever it held before.
///
/// # Errors
/// `InvalidInput` without a mark, or if the interface's name is none.
pub fn script(options: &RouteOptions) -> io::Result<String> {
    let invalid = |text: String| io::Error::new(io::ErrorKind::InvalidInput, text);
    let Some(mark) = options.mark.filter(|&mark| mark != 0) else {
        return Err(invalid("--firewall needs --mark".into()));
    };
    let interface = &options.interface;
    let sound = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if interface.is_empty() || interface.len() > NAME || !interface.bytes().all(sound) {
        return Err(invalid(format!("`{interface}` is no name of an interface")));
    }
    let table = table(options);
    // Conntrack comes before both hooks (priority -200, mangle is -150), the routing decision after the second.
    Ok(format!(
        "table {table} {{}}\n\
         delete table {table}\n\
         table {table} {{\n\
         \tchain output {{\n\
         \t\ttype route hook output priority mangle; policy accept;\n\
         \t\tmeta mark {mark} ct mark set meta mark\n\
         \t}}\n\
         \tchain prerouting {{\n\
         \t\ttype filter hook prerouting priority mangle; policy accept;\n\
         \t\tiifname \"{interface}\" ct mark {mark} meta mark set ct mark\n\
         \t}}\n\
         }}\n"
    ))
}

/// Installs the rules.
///
/// # Errors
/// If nft is missing or refuses, with what it says.
pub fn install(options: &RouteOptions) -> io::Result<()> {
    nft(&["-f", "-"], &script(options)?).map(drop)
}

/// Removes the rules; returns whether there were any.
///
/// # Errors
/// If nft is missing or refuses.
pub fn remove(options: &RouteOptions) -> io::Result<bool> {
    if !is_installed(options)? {
        return Ok(false);
    }
    nft(&["-f", "-"], &format!("delete table {}\n", table(options)))?;
    Ok(true)
}

/// Whether the rules are there, for this interface and mark.
///
/// # Errors
/// If nft is missing or may not look.
pub fn is_installed(options: &RouteOptions) -> io::Result<bool> {
    let all = nft(&["-n", "list", "ruleset"], "")?;
    let own = all.split_once(&format!("table {} {{", table(options)));
    let own = own.and_then(|(_, rest)| rest.split("\n}").next()).unwrap_or_default();
    let mark = options.mark.unwrap_or(0);
    let interface = format!("iifname \"{}\" ct mark", options.interface);
    let rule = own.lines().find_map(|line| line.split_once(&interface));
    // nft shows marks in hexadecimal.
    Ok(rule.is_some_and(|(_, rest)| rest.trim_start().starts_with(&format!("{mark:#010x} "))))
}

/// The same for a shell.
pub fn command(options: &RouteOptions, verb: &str) -> String {
    format!("nft {verb} table {}", table(options))
}

fn nft(arguments: &[&str], input: &str) -> io::Result<String> {
    let spawned = Command::new("nft")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = spawned.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => io::Error::new(error.kind(), "nft is missing: apt-get install nftables"),
        _ => error,
    })?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(input.as_bytes())?;
    }
    let output = child.wait_with_output()?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let kind = if said.contains("Operation not permitted") {
        io::ErrorKind::PermissionDenied
    } else {
        io::ErrorKind::Other
    };
    Err(io::Error::new(kind, format!("nft: {}", said.trim())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_name_mark_and_interface_and_nothing_that_is_no_name() {
        let options = |interface: &str, mark| RouteOptions {
            interface: interface.into(),
            mark,
            ..RouteOptions::default()
        };
        let text = script(&options("br-0.7", Some(7))).expect("rules");
        assert!(
            text.contains("iifname \"br-0.7\" ct mark 7 meta mark set ct mark"),
            "{text}"
        );
        assert!(text.starts_with("table inet mmproxy_123 {}\ndelete table"), "{text}");
        for (interface, mark) in [
            ("eth1", None),
            ("eth1", Some(0)),
            ("", Some(7)),
            ("eth1\" accept; #", Some(7)),
            ("a-name-of-16-byte", Some(7)),
        ] {
            let error = script(&options(interface, mark)).expect_err(interface);
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        }
    }
}
