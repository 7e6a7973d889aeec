//! `mmproxy status`: what a running mmproxy counts, for people.

use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;

use control::http::{Endpoint, client};

/// Asks the metrics of a running mmproxy, and returns them as lines.
///
/// # Errors
/// If nobody answers there, or somebody else does.
pub fn status(metrics: SocketAddr) -> io::Result<String> {
    let (_, body) = client::ask(&Endpoint::Tcp(metrics), "GET", "/stats")?;
    let stats: serde_json::Value =
        serde_json::from_str(&body).map_err(|_| io::Error::other(format!("{metrics} is no mmproxy")))?;
    Ok(text(&stats))
}

/// Two columns for each mode; what is zero among refusals and events is left out.
fn text(stats: &serde_json::Value) -> String {
    let number = |value: &serde_json::Value| value.as_u64().unwrap_or(0);
    let mut out = String::from("two sockets\n");
    let empty = serde_json::Map::new();
    let line = |out: &mut String, name: &str, value: u64| {
        // Writing to a String cannot fail.
        let _ = writeln!(out, "  {name:<24} {value}");
    };
    let all = stats.as_object().unwrap_or(&empty);
    for (name, value) in all.iter().filter(|(_, value)| value.is_number()) {
        line(&mut out, name, number(value));
    }
    for (title, key) in [("refused", "refused"), ("inline", "inline")] {
        let Some(group) = stats.get(key).and_then(serde_json::Value::as_object) else {
            continue;
        };
        out.push_str(title);
        out.push('\n');
        for (name, value) in group
            .iter()
            .filter(|(name, value)| number(value) != 0 || *name == "active")
        {
            line(&mut out, name, number(value));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_modes_are_shown_and_zero_refusals_are_not() {
        let stats = serde_json::json!({
            "tcp_accepted": 5, "refused": {"idle": 0, "denied": 2}, "inline": {"active": 0, "assigned": 7, "failed": 0},
        });
        let text = text(&stats);
        let words: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(
            words,
            [
                vec!["two", "sockets"],
                vec!["tcp_accepted", "5"],
                vec!["refused"],
                vec!["denied", "2"],
                vec!["inline"],
                vec!["active", "0"],
                vec!["assigned", "7"],
            ]
        );
    }
}
