//! Watched connections by the network of their clients: which of them is far away, or loses?

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use serde_json::{Value, json};

/// What was seen of the connections of one network.
#[derive(Default)]
struct Network {
    connections: u64,
    /// Smoothed round-trip times of those that have one, in ms.
    client_rtts: Vec<f64>,
    segments: u64,
    client_leg_lost: u64,
    server_leg_lost: u64,
}

/// A row for each network of `rows`, which are those of watched connections: the one with the most first.
pub(super) fn by_network(rows: &[Value]) -> Vec<Value> {
    let mut networks: BTreeMap<String, Network> = BTreeMap::new();
    for row in rows {
        let client = row["client"].as_str().and_then(|text| text.parse::<SocketAddr>().ok());
        let Some(client) = client else { continue };
        let network = networks.entry(network_of(client.ip())).or_default();
        let number = |name: &str| row[name].as_u64().unwrap_or(0);
        network.connections += 1;
        network.client_rtts.extend(row["client_rtt_ms"].as_f64());
        network.segments += number("segments");
        network.client_leg_lost += number("client_leg_lost");
        network.server_leg_lost += number("server_leg_lost");
    }
    let mut networks: Vec<_> = networks.into_iter().collect();
    networks.sort_by_key(|(_, network)| std::cmp::Reverse(network.connections));
    networks.into_iter().map(|(name, network)| network.row(&name)).collect()
}

impl Network {
    fn row(mut self, name: &str) -> Value {
        self.client_rtts.sort_by(f64::total_cmp);
        let percent = |lost: u64| (self.segments > 0).then(|| (lost as f64 * 1e5 / self.segments as f64).round() / 1e3);
        json!({
            "name": name,
            "connections": self.connections,
            "client_rtt_ms_p50": self.client_rtts.get(self.client_rtts.len() / 2),
            "segments": self.segments,
            "client_leg_lost_percent": percent(self.client_leg_lost),
            "server_leg_lost_percent": percent(self.server_leg_lost),
        })
    }
}

/// The /24 or /48 of an address: what is routed as one, mostly (RFC 6177 2).
fn network_of(address: IpAddr) -> String {
    match address.to_canonical() {
        IpAddr::V4(v4) => format!("{}/24", Ipv4Addr::from_bits(v4.to_bits() & !0xff)),
        IpAddr::V6(v6) => format!("{}/48", Ipv6Addr::from_bits(v6.to_bits() >> 80 << 80)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(client: &str, rtt: Option<f64>, lost: u64) -> Value {
        json!({"client": client, "client_rtt_ms": rtt, "segments": 50, "client_leg_lost": lost, "server_leg_lost": 0})
    }

    #[test]
    fn connections_are_put_together_by_their_clients_networks() {
        let rows = [
            row("[2001:db8:7:1::1]:5", Some(3.0), 0),
            row("192.0.2.1:1", Some(30.0), 1),
            row("192.0.2.255:2", None, 0),
            row("192.0.2.9:3", Some(10.0), 0),
            row("192.0.3.1:4", Some(1.0), 0),
            row("nobody", Some(1.0), 0),
        ];
        let networks = by_network(&rows);
        let names: Vec<_> = networks.iter().filter_map(|row| row["name"].as_str()).collect();
        assert_eq!(names, ["192.0.2.0/24", "192.0.3.0/24", "2001:db8:7::/48"]);
        let of = |name: &str| &networks[0][name];
        assert_eq!((of("connections"), of("client_rtt_ms_p50")), (&json!(3), &json!(30.0)));
        assert_eq!(
            (of("client_leg_lost_percent"), of("server_leg_lost_percent")),
            (&json!(0.667), &json!(0.0))
        );
        assert!(by_network(&[]).is_empty());
    }
}
