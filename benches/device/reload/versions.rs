//! The versions of a configuration that the cores are given, one after the other.

use std::fmt::Write as _;

/// Servers of the pool that every version has.
const STAY: usize = 2;

/// Pools of the large version, and servers of each.
const POOLS: u16 = 100;
const SERVERS: u16 = 100;

/// The text with servers and weights of its pool, rules and a second listener that depend on `number`: the first two servers
/// stay, and so does the first listener.
pub(crate) fn version(base: &str, number: u32) -> String {
    // Whatever is next to each other differs in all of them.
    let drawn = number.wrapping_mul(0x9e37_79b1) >> 8;
    let mut text = String::with_capacity(base.len() + 512);
    let mut server = 0;
    for line in base.lines() {
        if line.starts_with("  { name = \"s") {
            server += 1;
            if server > STAY && drawn >> server & 1 == 0 {
                continue;
            }
            let weight = 1 + (drawn as usize >> 3).wrapping_add(server) % 4;
            push(&mut text, &line.replace(" },", &format!(", weight = {weight} }},")));
        } else if line.starts_with("default = ") {
            let rules =
                (0..number % 3).map(|rule| format!("{{ prefix = \"nobody-{number}-{rule}\", pool = \"servers\" }}"));
            push(
                &mut text,
                &format!("rules = [{}]", rules.collect::<Vec<_>>().join(", ")),
            );
            push(&mut text, line);
        } else if line == "[timeouts]" {
            if number % 2 == 1 {
                let port = 9000 + number % 7;
                push(&mut text, "[[listener]]\nname = \"comes-and-goes\"");
                push(
                    &mut text,
                    &format!("addresses = [\"10.1.255.200:{port}\"]\ndefault = \"servers\""),
                );
            }
            push(&mut text, line);
        } else {
            push(&mut text, line);
        }
    }
    text
}

/// The text with 10 000 more servers in 100 pools; `generation` is in the address of the first server of each.
pub(crate) fn large(base: &str, generation: u16) -> String {
    let mac = base
        .split("mac = \"")
        .nth(1)
        .and_then(|rest| rest.split('"').next())
        .unwrap_or_default();
    // One of each core: a pool of ports for each server and address is memory that is reserved.
    let line = base.lines().find(|line| line.starts_with("local_addresses = "));
    let all = line.unwrap_or_default().split(['[', ']', ',']).map(str::trim);
    let locals: Vec<&str> = all.filter(|local| local.ends_with(".1\"")).collect();
    let locals = locals.join(", ");
    let mut text = base.to_owned();
    for pool in 0..POOLS {
        let _ = write!(
            text,
            "\n[[pool]]\nname = \"large-{pool}\"\nlocal_addresses = [{locals}]\nservers = [\n"
        );
        for server in 0..SERVERS {
            let port = if server == 0 { 8000 + generation } else { 80 };
            let address = format!("10.2.{}.{}:{port}", 110 + pool, 1 + server);
            let _ = writeln!(
                text,
                "  {{ name = \"l{pool}-{server}\", address = \"{address}\", mac = \"{mac}\" }},"
            );
        }
        text.push_str("]\n");
    }
    text
}

fn push(text: &mut String, line: &str) {
    text.push_str(line);
    text.push('\n');
}
