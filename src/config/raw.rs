//! The file as it is written: names, strings and numbers, nothing checked but the keys.
//!
//! Addresses, durations and choices stay strings here, so that the checks can complain about all of them at once and in
//! the words of this program. `docs/configuration.md` describes every key.

use serde::Deserialize;

/// The tables of a file, read but not checked.
pub(super) struct RawConfig {
    pub(super) engine: RawEngine,
    pub(super) ports: Vec<RawPort>,
    pub(super) listeners: Vec<RawListener>,
    pub(super) pools: Vec<RawPool>,
    pub(super) timeouts: RawTimeouts,
    pub(super) syn_ack: RawSynAck,
    pub(super) records: Vec<RawRecords>,
    pub(super) log: RawLog,
    pub(super) control: RawControl,
    pub(super) lists: Vec<RawList>,
    pub(super) classes: Vec<RawClass>,
    pub(super) dns: RawDns,
}

/// Every top-level key.
pub(super) const SECTIONS: &[&str] = &[
    "engine", "port", "listener", "pool", "list", "class", "timeouts", "syn_ack", "records", "log", "control", "dns",
];

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct RawEngine {
    pub(super) name: Option<String>,
    pub(super) cores: Option<Vec<i64>>,
    pub(super) memory_mib: Option<i64>,
    pub(super) idle: Option<String>,
    pub(super) announce: Option<String>,
    pub(super) drain: Option<String>,
    pub(super) unknown_flows: Option<String>,
    pub(super) replies_per_second: Option<i64>,
    pub(super) overload_after: Option<String>,
    pub(super) leg_sample: Option<i64>,
    pub(super) max_connections: Option<i64>,
    pub(super) reassembly_memory: Option<i64>,
    pub(super) reassembly_quota: Option<i64>,
    pub(super) verify: Option<String>,
    pub(super) buffers: Option<i64>,
    pub(super) steering: Option<String>,
    pub(super) port_mask: Option<i64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawPort {
    pub(super) name: String,
    pub(super) device: String,
    pub(super) mac: Option<String>,
    pub(super) mtu: Option<i64>,
    pub(super) vlan: Option<i64>,
    #[serde(default)]
    pub(super) addresses: Vec<String>,
    #[serde(default)]
    pub(super) gateways: Vec<String>,
    #[serde(default)]
    pub(super) routes: Vec<RawRoute>,
    #[serde(default)]
    pub(super) neighbours: Vec<RawNeighbour>,
    pub(super) rx_descriptors: Option<i64>,
    pub(super) tx_descriptors: Option<i64>,
    pub(super) checksum_offload: Option<bool>,
    pub(super) software_nic: Option<RawSoftwareNic>,
    pub(super) kernel: Option<RawKernel>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawSoftwareNic {
    pub(super) queues: Option<i64>,
    pub(super) model: Option<String>,
    pub(super) core: Option<i64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawKernel {
    pub(super) device: String,
    pub(super) namespace: Option<String>,
    pub(super) addresses: Option<Vec<String>>,
    pub(super) rate: Option<i64>,
    pub(super) local_ports: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawRoute {
    pub(super) to: String,
    pub(super) via: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawNeighbour {
    pub(super) ip: String,
    pub(super) mac: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawListener {
    pub(super) name: String,
    pub(super) addresses: Vec<String>,
    pub(super) ports: Option<Vec<String>>,
    pub(super) bind: Option<String>,
    #[serde(default)]
    pub(super) rules: Vec<RawRule>,
    pub(super) default: Option<String>,
    pub(super) inspect_delay: Option<String>,
    #[serde(default)]
    pub(super) timeouts: RawListenerTimeouts,
    pub(super) proxy_protocol: Option<RawProxyIn>,
    pub(super) limit: Option<RawLimit>,
    pub(super) client_limit: Option<RawClientLimit>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawLimit {
    pub(super) connections: Option<i64>,
    pub(super) rate: Option<f64>,
    pub(super) burst: Option<i64>,
    pub(super) beyond: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawClientLimit {
    pub(super) connections: Option<i64>,
    pub(super) rate: Option<f64>,
    pub(super) burst: Option<i64>,
    pub(super) beyond: Option<String>,
    pub(super) prefix_v4: Option<i64>,
    pub(super) prefix_v6: Option<i64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawClass {
    pub(super) name: String,
    pub(super) limit: Option<RawLimit>,
    pub(super) rank: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawProxyIn {
    pub(super) accept: Option<String>,
    #[serde(default)]
    pub(super) from: Vec<String>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct RawRule {
    pub(super) name: Option<String>,
    pub(super) http_host: Option<String>,
    pub(super) http_path: Option<String>,
    pub(super) tls_sni: Option<String>,
    pub(super) tls_alpn: Option<String>,
    pub(super) first_number: Option<bool>,
    pub(super) prefix: Option<String>,
    pub(super) prefix_hex: Option<String>,
    pub(super) regex: Option<String>,
    pub(super) regex_bytes: Option<i64>,
    pub(super) ldap_bind_dn: Option<String>,
    pub(super) postgres_user: Option<String>,
    pub(super) postgres_database: Option<String>,
    pub(super) ssl_request: Option<bool>,
    pub(super) client: Option<Vec<String>>,
    pub(super) listener_port: Option<Vec<String>>,
    #[serde(default)]
    pub(super) and: Vec<RawRule>,
    #[serde(default)]
    pub(super) not: Vec<RawRule>,
    pub(super) pool: Option<String>,
    pub(super) action: Option<String>,
    pub(super) class: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawList {
    pub(super) name: String,
    pub(super) file: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawPool {
    pub(super) name: String,
    pub(super) policy: Option<String>,
    pub(super) hash: Option<RawHash>,
    pub(super) slow_start: Option<String>,
    pub(super) panic_below: Option<i64>,
    pub(super) servers: Vec<RawServer>,
    #[serde(default)]
    pub(super) local_addresses: Vec<String>,
    pub(super) local_ports: Option<String>,
    pub(super) connect_timeout: Option<String>,
    pub(super) syn_retry: Option<String>,
    pub(super) retries: Option<i64>,
    pub(super) eject_after: Option<i64>,
    pub(super) eject_for: Option<String>,
    pub(super) eject_most: Option<i64>,
    pub(super) proxy_protocol: Option<RawProxyOut>,
    pub(super) transparent: Option<bool>,
    pub(super) check: Option<RawCheck>,
    pub(super) limit: Option<RawLimit>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawHash {
    pub(super) key: Option<String>,
    pub(super) prefix_v4: Option<i64>,
    pub(super) prefix_v6: Option<i64>,
    pub(super) seed: Option<i64>,
    pub(super) balance_factor: Option<i64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawCheck {
    pub(super) kind: String,
    pub(super) interval: Option<String>,
    pub(super) fast_interval: Option<String>,
    pub(super) timeout: Option<String>,
    pub(super) rise: Option<i64>,
    pub(super) fall: Option<i64>,
    pub(super) port: Option<i64>,
    pub(super) method: Option<String>,
    pub(super) path: Option<String>,
    pub(super) host: Option<String>,
    pub(super) statuses: Option<Vec<String>>,
    pub(super) body: Option<String>,
    pub(super) send: Option<String>,
    pub(super) expect: Option<String>,
    pub(super) user: Option<String>,
    pub(super) server_name: Option<String>,
    pub(super) alpn: Option<Vec<String>>,
    pub(super) ca: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawProxyOut {
    pub(super) send: Option<String>,
    #[serde(default)]
    pub(super) tlvs: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawServer {
    pub(super) name: String,
    pub(super) address: String,
    pub(super) weight: Option<i64>,
    pub(super) backup: Option<bool>,
    pub(super) max_connections: Option<i64>,
    pub(super) mac: Option<String>,
    pub(super) check: Option<RawCheck>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct RawTimeouts {
    pub(super) select: Option<String>,
    pub(super) connect: Option<String>,
    pub(super) idle: Option<String>,
    pub(super) half_close: Option<String>,
    pub(super) time_wait: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct RawListenerTimeouts {
    pub(super) select: Option<String>,
    pub(super) idle: Option<String>,
    pub(super) half_close: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct RawSynAck {
    pub(super) probe: Option<bool>,
    pub(super) mss: Option<i64>,
    pub(super) window_scale: Option<toml::Value>,
    pub(super) sack: Option<bool>,
    pub(super) timestamps: Option<bool>,
    pub(super) window: Option<i64>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct RawRecords {
    pub(super) enabled: Option<bool>,
    pub(super) file: Option<String>,
    pub(super) stream: Option<String>,
    pub(super) datagram: Option<String>,
    pub(super) syslog: Option<String>,
    pub(super) ipfix: Option<String>,
    pub(super) format: Option<String>,
    #[serde(default)]
    pub(super) listeners: Vec<String>,
    #[serde(default)]
    pub(super) servers: Vec<String>,
    #[serde(default)]
    pub(super) causes: Vec<String>,
    pub(super) longer_than: Option<String>,
    pub(super) sample: Option<i64>,
    pub(super) rotate_mib: Option<i64>,
    pub(super) rotate_every: Option<String>,
    pub(super) rotate_keep: Option<i64>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct RawLog {
    pub(super) level: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct RawDns {
    pub(super) servers: Option<Vec<String>>,
    pub(super) timeout: Option<String>,
    pub(super) retries: Option<i64>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct RawControl {
    pub(super) socket: Option<String>,
    pub(super) http: Option<String>,
    pub(super) journal: Option<String>,
    #[serde(default)]
    pub(super) hosts: Vec<String>,
    pub(super) timed_servers: Option<Vec<String>>,
    #[serde(default)]
    pub(super) show_clients: bool,
}
