//! What a rule asks about a client before it has said anything: `client` and `listener_port`.

use std::net::IpAddr;

use ipnet::IpNet;

use super::accept::prefix;
use super::listeners::port_range;
use super::{choices, quoted};
use crate::config::lists::ListConfig;
use crate::config::local_address::PortRanges;
use crate::config::rule::{Clients, Match};
use crate::config::source::{At, Source};

/// Addresses, prefixes, names of lists, and `list:class`.
pub(super) fn clients(source: &mut Source<'_>, at: &At, texts: &[String], lists: &[ListConfig]) -> Option<Match> {
    if texts.is_empty() {
        source.complain(at, "is empty, expected at least one address, prefix or list");
    }
    let mut clients = Clients::default();
    for (i, text) in texts.iter().enumerate() {
        let (name, class) = text
            .split_once(':')
            .map_or((&**text, None), |(name, class)| (name, Some(class)));
        let Some(list) = lists.iter().find(|list| list.name == name) else {
            clients
                .prefixes
                .extend(prefix_or_list(source, &at.index(i), text, lists));
            continue;
        };
        if let Some(class) = class.filter(|class| !list.classes.iter().any(|of| of == class)) {
            let warning = format!("is \"{text}\", but nothing in the list \"{name}\" has the class \"{class}\" so far");
            source.warn(&at.index(i), warning);
        }
        clients.lists.push((name.to_owned(), class.map(str::to_owned)));
    }
    Some(Match::Client(clients))
}

fn prefix_or_list(source: &mut Source<'_>, at: &At, text: &str, lists: &[ListConfig]) -> Option<IpNet> {
    // What looks like a name is meant as one.
    if !text.contains([':', '/']) && text.parse::<IpAddr>().is_err() {
        let names: Vec<_> = lists.iter().map(|list| &list.name).collect();
        let known = match names.is_empty() {
            true => "there is no [[list]]".to_owned(),
            false => choices(&names),
        };
        source.refuse(
            at,
            quoted(text),
            format!("an address, a prefix such as \"192.0.2.0/24\", or a list: {known}"),
        );
        return None;
    }
    prefix(source, at, text)
}

pub(super) fn listener_ports(source: &mut Source<'_>, at: &At, texts: &[String]) -> Option<Match> {
    let mut ports = PortRanges::default();
    if texts.is_empty() {
        source.complain(at, "is empty, expected at least one port such as \"443\"");
    }
    for (i, text) in texts.iter().enumerate() {
        match port_range(text) {
            Some(range) => ports.add(&range),
            None => source.refuse(
                &at.index(i),
                quoted(text),
                "a port or a range of ports such as \"443\" or \"8000-8099\"",
            ),
        }
    }
    Some(Match::ListenerPort(ports))
}
