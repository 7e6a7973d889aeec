//! What a packet and a connection cost, measured in the kernel itself.

use crate::inline::kernel::Kernel;
use crate::inline::layout::{self, Entry};
use libbpf_rs::ProgramInput;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

/// Costs of inline mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Costs {
    /// Program, IP version, and the nanoseconds that it takes for a segment of an established connection.
    pub ns_per_packet: Vec<(&'static str, u8, u64)>,
    /// Bytes that the kernel counts for both entries of a connection.
    pub bytes_per_connection: u64,
}

/// Measures them on programs that are attached to nothing.
///
/// # Errors
/// What the kernel reports: capabilities, or a kernel without what the programs need.
pub fn costs() -> io::Result<Costs> {
    const CONNECTIONS: u16 = 1000;
    let kernel = Kernel::load(u32::from(CONNECTIONS) + 2, None)?;
    for entry in layout::ports([8443].into_iter()) {
        kernel.put("ports", &entry)?;
    }
    let mut ways = Vec::new();
    for version in [4, 6] {
        let [balancer, _, server] = endpoints(version == 6);
        // A connection that stays itself, so that each turn finds it.
        put_flow(&kernel, balancer, server, 0, balancer)?;
        put_flow(&kernel, balancer, server, 1, balancer)?;
        ways.push(("to_server", version, packet(version == 6, balancer, server)));
        ways.push(("to_client", version, packet(version == 6, server, balancer)));
    }
    let ns_per_packet = best_of_runs(&kernel, &ways)?;
    let before = memory(&kernel)?;
    let [(balancer, _), client, server] = endpoints(false);
    for port in 1..=CONNECTIONS {
        put_flow(&kernel, (balancer, port), server, 0, (client.0, port))?;
        put_flow(&kernel, (client.0, port), server, 1, (balancer, port))?;
    }
    Ok(Costs {
        ns_per_packet,
        bytes_per_connection: (memory(&kernel)? - before) / u64::from(CONNECTIONS),
    })
}

/// What else the machine does only adds, and for seconds where its CPU is shared: runs are short, in turn, and over some time.
fn best_of_runs(kernel: &Kernel, ways: &[(&'static str, u8, Vec<u8>)]) -> io::Result<Vec<(&'static str, u8, u64)>> {
    const ROUNDS: usize = 100;
    const PAUSE: Duration = Duration::from_millis(25);
    let mut best: Vec<_> = ways
        .iter()
        .map(|&(name, version, _)| (name, version, u64::MAX))
        .collect();
    for _ in 0..ROUNDS {
        for ((name, _, bytes), (.., best)) in ways.iter().zip(&mut best) {
            let input = ProgramInput {
                data_in: Some(bytes),
                repeat: 10_000,
                ..ProgramInput::default()
            };
            let output = kernel.program(name)?.test_run(input).map_err(io::Error::other)?;
            *best = (*best).min(output.duration.as_nanos() as u64);
        }
        std::thread::sleep(PAUSE);
    }
    Ok(best)
}

/// Bytes of the map of connections, as the kernel accounts for it.
fn memory(kernel: &Kernel) -> io::Result<u64> {
    let map = kernel.map("flows")?;
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", map.as_fd().as_raw_fd()))?;
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix("memlock:")?.trim().parse().ok());
    value.ok_or_else(|| io::Error::other("the kernel does not say how large a map is"))
}

/// Bytes of a segment of 100 bytes with its right checksums, from `source` to `destination`.
pub(super) fn packet(v6: bool, source: ([u8; 16], u16), destination: ([u8; 16], u16)) -> Vec<u8> {
    let mut tcp = [source.1.to_be_bytes(), destination.1.to_be_bytes()].concat();
    tcp.extend([0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
    tcp.extend([7; 100]);
    let length = tcp.len() as u16;
    let sum = checksum(&[&source.0[..], &destination.0, &[0, 6], &length.to_be_bytes(), &tcp].concat());
    tcp[16..18].copy_from_slice(&sum.to_be_bytes());
    let mut bytes = vec![0; 12];
    if v6 {
        bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        bytes.extend(length.to_be_bytes());
        bytes.extend([6, 64]);
        bytes.extend([source.0, destination.0].concat());
    } else {
        let mut ip = vec![0x45, 0];
        ip.extend((length + 20).to_be_bytes());
        ip.extend([0, 0, 0x40, 0, 64, 6, 0, 0]);
        ip.extend([&source.0[12..], &destination.0[12..]].concat());
        let sum = checksum(&ip);
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        bytes.extend([8, 0]);
        bytes.extend(ip);
    }
    bytes.extend(tcp);
    bytes
}

/// RFC 1071. The prefix of mapped addresses, twice ffff, adds nothing.
fn checksum(bytes: &[u8]) -> u16 {
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
    let mut sum: u32 = bytes.chunks(2).map(word).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

pub(super) fn key(remote: ([u8; 16], u16), local: ([u8; 16], u16), direction: u32) -> Vec<u8> {
    let ports = [remote.1.to_be_bytes(), local.1.to_be_bytes()].concat();
    [&remote.0[..], &local.0, &ports, &direction.to_ne_bytes()].concat()
}

pub(super) type Endpoint = ([u8; 16], u16);

pub(super) fn put_flow(
    kernel: &Kernel,
    remote: Endpoint,
    local: Endpoint,
    direction: u32,
    other: Endpoint,
) -> io::Result<()> {
    const LIVE: u16 = 1;
    let value = [&other.0[..], &other.1.to_be_bytes(), &LIVE.to_ne_bytes(), &[0; 12]].concat();
    let key = key(remote, local, direction);
    kernel.put("flows", &Entry { key, value })
}

pub(super) fn endpoints(v6: bool) -> [Endpoint; 3] {
    let mapped = |address: [u8; 4]| Ipv4Addr::from(address).to_ipv6_mapped().octets();
    let six = |last| Ipv6Addr::new(0x2001, 0xdb8, 1, 2, 3, 4, 5, last).octets();
    let address = |v4, last| if v6 { six(last) } else { mapped(v4) };
    [
        (address([10, 7, 0, 2], 2), 50_001),
        (address([203, 0, 113, 7], 7), 40_001),
        (address([10, 7, 0, 1], 1), 8443),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Limits of time are five times what a quiet machine takes.
    #[test]
    fn packets_and_connections_cost_little() {
        let costs = match costs() {
            Ok(costs) => costs,
            Err(error) => return crate::inline::lacking(&error),
        };
        println!("{costs:?}");
        assert_eq!(costs.ns_per_packet.len(), 4);
        assert!(costs.ns_per_packet.iter().all(|&(_, _, ns)| ns < 600), "{costs:?}");
        assert!(costs.bytes_per_connection <= 256, "{costs:?}");
    }
}
