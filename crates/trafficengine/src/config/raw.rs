//! The file as it is written: strings and numbers, nothing checked but the keys.

use serde::Deserialize;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawConfig {
    pub(super) port: RawPort,
    #[serde(default)]
    pub(super) link: RawLink,
    #[serde(default)]
    pub(super) tcp: RawTcp,
    #[serde(default)]
    pub(super) script: RawScript,
    pub(super) client: Option<RawClient>,
    pub(super) load: Option<RawLoad>,
    pub(super) server: Option<RawServer>,
    #[serde(default)]
    pub(super) report: RawReport,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawPort {
    pub(super) device: String,
    pub(super) mac: Option<String>,
    pub(super) mtu: Option<u16>,
    pub(super) core: Option<usize>,
    pub(super) memory_mib: Option<u32>,
    pub(super) descriptors: Option<u16>,
    pub(super) checksum_offload: Option<bool>,
    pub(super) verify_checksums: Option<bool>,
    pub(super) idle: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct RawLink {
    #[serde(default)]
    pub(super) prefixes: Vec<String>,
    #[serde(default)]
    pub(super) gateways: Vec<String>,
    pub(super) next_hop_mac: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct RawTcp {
    pub(super) mss: Option<u16>,
    pub(super) window: Option<u32>,
    pub(super) window_scale: Option<u8>,
    pub(super) no_window_scale: Option<bool>,
    pub(super) timestamps: Option<bool>,
    pub(super) sack: Option<bool>,
    pub(super) rto_initial: Option<String>,
    pub(super) rto_min: Option<String>,
    pub(super) rto_max: Option<String>,
    pub(super) ack_delay: Option<String>,
    pub(super) retries: Option<u8>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct RawScript {
    pub(super) format: Option<String>,
    pub(super) domain: Option<String>,
    pub(super) rounds: Option<u16>,
    pub(super) request: Option<u32>,
    pub(super) response: Option<u32>,
    pub(super) close: Option<String>,
    pub(super) keys: Option<u16>,
    pub(super) servers: Option<u8>,
    pub(super) check: Option<bool>,
    pub(super) idle: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawClient {
    pub(super) addresses: Vec<String>,
    pub(super) ports: Option<String>,
    pub(super) targets: Vec<String>,
    pub(super) max_open: Option<u32>,
    pub(super) seed: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawLoad {
    pub(super) mode: String,
    pub(super) rate: Option<f64>,
    pub(super) open: Option<u32>,
    pub(super) depth: Option<u32>,
    pub(super) ramp: Option<String>,
    pub(super) duration: Option<String>,
    pub(super) total: Option<u64>,
    pub(super) port_rest: Option<String>,
    pub(super) grace: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawServer {
    pub(super) listen: Vec<String>,
    pub(super) first_id: Option<u8>,
    pub(super) same_id: Option<bool>,
    pub(super) max_open: Option<u32>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct RawReport {
    pub(super) json: Option<String>,
    pub(super) svg: Option<String>,
    pub(super) progress: Option<bool>,
}
