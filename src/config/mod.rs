//! The configuration: one TOML file, read into plain structs, checked once, and from then on consistent.
//!
//! [`Config::load`] and [`Config::parse`] are the only ways to a [`Config`]. Whoever holds one can rely on it: every id
//! is an index that exists, every range is within its bounds, every server can be reached and connected to from somewhere.
//! Complaints are collected, so that one run of `proxyengine check FILE` shows as many as possible; each names file, line,
//! key, value and what was expected. `docs/configuration.md` describes the keys. [`Config::core_settings`] makes of a `Config`
//! what one core has to know.
//!
//! ```text
//! text ──► source (TOML, lines) ──► raw (serde) ──► check ──► Config
//!                               └─► ancestor ──┘   (files of the ProxyEngine before this one)
//! ```
//!
//! Nothing here opens a device or looks at the machine: a configuration can be checked anywhere.

mod ancestor;
mod check;
mod check_content;
mod check_sources;
mod choosing;
mod continued;
mod control;
mod core_settings;
mod defaults;
mod device;
mod differences;
mod dn;
mod error;
mod limits;
mod lists;
mod local_address;
mod memory;
mod model;
mod names;
mod numbers;
mod pattern;
mod payload_regex;
mod raw;
mod records;
mod routes;
mod rule;
mod rule_numbers;
mod shown;
mod source;
mod timed;

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use log::LevelFilter;

pub(crate) use self::check::names::{PORT as DNS_PORT, host_name};
pub(crate) use self::check::why_no_host;
pub use self::check_content::{CheckContent, CheckRequest, CheckTls, HttpCheck};
pub use self::continued::{Named, Standing};
pub use self::control::ControlConfig;
pub use device::{Device, PciAddress};
pub use dn::DnPattern;
pub use error::{ConfigError, Problem};
pub use limits::ClassConfig;
pub use lists::{Changed, Kept, ListChange, ListConfig};
pub use local_address::{LocalAddress, PortRanges};
pub use memory::{PortMemory, RequestsCarried};
pub use model::{
    EngineConfig, Fallback, Idle, KernelConfig, ListenAddress, ListenerConfig, ListenerTimeouts, PoolConfig,
    PortConfig, ServerConfig, SoftwareNicConfig, Steering, Timeouts,
};
pub use names::{Answers, DnsConfig, Found, MOST_SERVERS, NamedServers, Question};
pub use pattern::{HostPattern, MAX_HOST_LEN, NamePattern};
pub use payload_regex::PayloadRegex;
pub use records::{Destination, Endpoint, RecordFilter, RecordsConfig, Rotation};
pub use routes::{NextHop, Route, Routes};
pub use rule::{ClassRule, Clients, Match, Rule, RuleAction};
pub use rule_numbers::{BY_DEFAULT, OTHER_RULES};
pub use splice::ids::{CoreId, ListenerId, PoolId, PortIndex, RuleId, ServerId};
pub use splice::settings::{
    AcceptProxy, Bind, Member, Pinned, Policy, SendProxy, SendProxyFields, SynAck, UnknownFlows, Verify,
};

use crate::guard::{ClientTable, TableError};
use choosing::ChoiceTables;
use names::Origin;

/// A checked configuration.
///
/// Only read access is given out: what was checked stays true.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    engine: EngineConfig,
    ports: Vec<PortConfig>,
    routes: Routes,
    listeners: Vec<ListenerConfig>,
    pools: Vec<PoolConfig>,
    servers: Vec<ServerConfig>,
    /// What pools look up.
    choice_tables: ChoiceTables,
    lists: Vec<ListConfig>,
    classes: Vec<ClassConfig>,
    /// Who clients are, if that is asked.
    client_table: Option<Arc<ClientTable>>,
    timeouts: Timeouts,
    syn_ack: SynAck,
    records: Vec<RecordsConfig>,
    log_level: LevelFilter,
    control: ControlConfig,
    /// `[control] timed_servers`.
    timed_servers: Option<Vec<String>>,
    warnings: Vec<String>,
    /// Our addresses in the order of their numbers, as far as earlier versions have given them.
    address_order: Vec<IpAddr>,
    dns: DnsConfig,
    /// What names have been answered with.
    answers: Answers,
    origin: Origin,
    /// Folders below which this engine and its later versions may write; anywhere without.
    writable: Option<Arc<[PathBuf]>>,
}

impl Config {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// The file cannot be read, or all that is wrong with what it says.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, ConfigError> {
        let (text, name) = read(path.as_ref())?;
        Self::parse(&text, &name)
    }

    /// Checks the text of a file; `name` is what errors call it.
    ///
    /// # Errors
    /// All that is wrong with what it says.
    pub fn parse(text: &str, name: &str) -> Result<Self, ConfigError> {
        Self::parse_with(text, name, &Answers::new())
    }

    fn finish_table(&mut self, name: &str) -> Result<(), ConfigError> {
        self.make_table()
            .map_err(|error: TableError| refused_lists(name, error.to_string()))
    }

    /// What concerns the process and its cores.
    pub fn engine(&self) -> &EngineConfig {
        &self.engine
    }

    /// The ports; a [`PortIndex`] is the index. Not empty.
    pub fn ports(&self) -> &[PortConfig] {
        &self.ports
    }

    /// The listeners; a [`ListenerId`] is the index. Not empty.
    pub fn listeners(&self) -> &[ListenerConfig] {
        &self.listeners
    }

    /// The pools; a [`PoolId`] is the index.
    pub fn pools(&self) -> &[PoolConfig] {
        &self.pools
    }

    /// The servers of all pools, each once; a [`ServerId`] is the index.
    pub fn servers(&self) -> &[ServerConfig] {
        &self.servers
    }

    /// The lists, in the order of the file.
    pub fn lists(&self) -> &[ListConfig] {
        &self.lists
    }

    /// What answers who a client is; none if neither rules nor lists ask.
    pub fn client_table(&self) -> Option<&Arc<ClientTable>> {
        self.client_table.as_ref()
    }

    /// One port.
    ///
    /// # Panics
    /// When `id` is from another configuration with more ports; so do the other three.
    pub fn port(&self, id: PortIndex) -> &PortConfig {
        &self.ports[usize::from(id.0)]
    }

    /// One listener.
    pub fn listener(&self, id: ListenerId) -> &ListenerConfig {
        &self.listeners[id.index()]
    }

    /// One pool.
    pub fn pool(&self, id: PoolId) -> &PoolConfig {
        &self.pools[id.index()]
    }

    /// One server.
    pub fn server(&self, id: ServerId) -> &ServerConfig {
        &self.servers[id.index()]
    }

    /// The number of the pool of that name.
    pub fn find_pool(&self, name: &str) -> Option<PoolId> {
        let is_it = |pool: &&PoolConfig| pool.standing == Standing::InFile && pool.name == name;
        self.pools.iter().find(is_it).map(|pool| pool.id)
    }

    /// The listener of that name: that in the file, or the last that was there, of which connections may be left.
    pub fn find_listener(&self, name: &str) -> Option<ListenerId> {
        let named = self
            .listeners
            .iter()
            .filter(|of| of.standing != Standing::Nobody && of.name == name);
        named.max_by_key(|of| of.standing == Standing::InFile).map(|of| of.id)
    }

    /// The server of that name, in the same way.
    pub fn find_server(&self, name: &str) -> Option<ServerId> {
        let named = self
            .servers
            .iter()
            .filter(|of| of.standing != Standing::Nobody && of.name == name);
        named.max_by_key(|of| of.standing == Standing::InFile).map(|of| of.id)
    }

    /// From where servers are called, each list once of those that are the same one after the other.
    pub(crate) fn local_addresses(&self) -> impl Iterator<Item = &LocalAddress> {
        let mut before: &[LocalAddress] = &[];
        let lists = self.servers.iter().filter_map(move |server| {
            let is_another = server.local != before;
            before = &server.local;
            is_another.then_some(before)
        });
        lists.flatten()
    }

    /// The ways to addresses.
    pub fn routes(&self) -> &Routes {
        &self.routes
    }

    /// Every address for which the engine answers on `port`, each once: the port's own, those of its listeners, and those
    /// it connects from to the servers behind it.
    pub fn own_addresses(&self, port: PortIndex) -> Vec<IpAddr> {
        let mut own: Vec<IpAddr> = self.port(port).addresses.iter().map(|net| net.addr()).collect();
        let listeners = self.listeners.iter().filter(|listener| listener.ports.contains(&port));
        own.extend(
            listeners
                .flat_map(|listener| &listener.addresses)
                .map(|address| address.ip),
        );
        let are_named = |server: &&ServerConfig| server.standing != Standing::Nobody;
        let servers = self.servers.iter().filter(are_named);
        let servers = servers.filter(|server| server.next_hop.port == port);
        own.extend(servers.flat_map(|server| &server.local).map(|local| local.ip));
        let mut seen = std::collections::HashSet::new();
        own.retain(|ip| seen.insert(*ip));
        own
    }

    /// Of these, the addresses that only listeners have: another engine may answer for them in this one's place.
    pub fn listener_addresses(&self, port: PortIndex) -> Vec<IpAddr> {
        let mut addresses = self.own_addresses(port);
        let is_ours_anyway = |ip: &IpAddr| {
            let of_port = self.port(port).addresses.iter().any(|net| net.addr() == *ip);
            let mut servers = self.servers.iter().filter(|server| server.standing != Standing::Nobody);
            of_port || servers.any(|server| server.local.iter().any(|local| local.ip == *ip))
        };
        addresses.retain(|ip| !is_ours_anyway(ip));
        addresses
    }

    /// After how long what is ended.
    pub fn timeouts(&self) -> &Timeouts {
        &self.timeouts
    }

    /// What SYN-ACKs offer as long as nothing is known about the servers.
    pub fn syn_ack(&self) -> &SynAck {
        &self.syn_ack
    }

    /// Where the records of ended connections go; empty when they are not wanted.
    pub fn records(&self) -> &[RecordsConfig] {
        &self.records
    }

    /// Says below which folders the engine that runs with this may write: sinks that later versions of the file bring are refused
    /// elsewhere.
    pub fn set_writable(&mut self, folders: &[PathBuf]) {
        self.writable = Some(folders.into());
    }

    /// Where the engine shows itself while it runs.
    pub fn control(&self) -> &ControlConfig {
        &self.control
    }

    /// What whoever wrote the file should know, one line each: with files of the ancestors, every key that has no meaning
    /// here.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Which log messages are written.
    pub fn log_level(&self) -> LevelFilter {
        self.log_level
    }
}

/// What is wrong with the lists and what rules ask of them.
fn refused_lists(name: &str, complaint: String) -> ConfigError {
    let problem = Problem {
        path: "list".to_owned(),
        line: None,
        complaint,
    };
    ConfigError::new(name, vec![problem])
}

/// The text of a file, and what errors call it.
fn read(path: &Path) -> Result<(String, String), ConfigError> {
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|error| {
        let complaint = format!("the file cannot be read: {error}");
        ConfigError::new(
            &name,
            vec![Problem {
                path: String::new(),
                line: None,
                complaint,
            }],
        )
    })?;
    Ok((text, name))
}
