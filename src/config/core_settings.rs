//! What one core has to know, made of the checked configuration: dense indices instead of names and addresses.

use std::net::IpAddr;
use std::sync::Arc;

use e2d2::wire::{Checksums, MacAddr};
use netfcts::leg::mapped;
use netfcts::pool::PortSet;

use super::check_sources::check_sources;
use super::{
    AcceptProxy, Config, Fallback, ListenerConfig, PoolConfig, PortConfig, PortRanges, SendProxy, ServerConfig,
    Standing,
};
use crate::kernel::Claims;
use crate::selectors::{payload_hash, tls};
use splice::addresses::{Addresses, Claim};
use splice::reassembly;
use splice::settings::{
    Capacity, Device, Listener, Local, Records, Server, Settings, SynAck, SynAckSettings, UpstreamServer,
    UpstreamSettings,
};

/// For what memory is set aside at start only if somebody needs it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Needs {
    /// SYN-ACKs that are repeated.
    pub(super) half_open: bool,
    /// SYNs that are passed on.
    pub(super) forwarded_syns: bool,
    /// PROXY headers that come, or what the first bytes say for those that go.
    pub(super) headers: bool,
    /// PROXY headers that go.
    pub(super) sent_headers: bool,
    /// Clients' addresses that headers name, as sources.
    pub(super) transparent_sources: bool,
}

impl Config {
    /// What the core number `core` has to know, with the MAC addresses that the ports really have.
    ///
    /// `next_hop` gives the index under which the neighbour table knows a server's next hop.
    pub fn core_settings(&self, core: u8, macs: &[MacAddr], next_hop: impl Fn(&ServerConfig) -> usize) -> Settings {
        let mut addresses = listened_on(&self.address_order, &self.listeners);
        let servers = servers(&self.servers, &mut addresses, next_hop);
        let device = |(port, &mac): (&PortConfig, &MacAddr)| Device {
            mac,
            mtu: port.mtu,
            checksums: Checksums::Software,
        };
        let trusted = |listener: &ListenerConfig| listener.trusted.clone();
        Settings {
            core,
            devices: self.ports.iter().zip(macs).map(device).collect(),
            addresses,
            listeners: self.listeners.iter().map(listener).collect(),
            trusted: self.listeners.iter().map(trusted).collect(),
            servers,
            limits: self.limits(),
            rules: self.rule_count(),
            renumbered_rules: Vec::new(),
            payload_fields: tls::proxy_fields,
            payload_hash,
            promises: self.syn_ack_settings(),
            time_wait: self.timeouts.time_wait,
            unknown_flows: self.engine.unknown_flows,
            replies_per_second: self.engine.replies_per_second,
            overload_after: Some(self.engine.overload_after).filter(|after| !after.is_zero()),
            verify: self.engine.verify,
            capacity: self.capacity(),
            records: if !self.records.is_empty() {
                Records::Sent
            } else if self.control.is_there() {
                // They tell the times that it shows.
                Records::Kept
            } else {
                Records::Off
            },
            timed_servers: self.timed_servers(),
            leg_sample: self.engine.leg_sample,
            steering: None,
            kernel: Claims::new(self, macs).into_exception_path(),
        }
    }

    /// What there is to choose servers from.
    pub fn upstream_settings(&self) -> UpstreamSettings {
        let server = |server: &ServerConfig| UpstreamServer {
            address: server.address,
            max_connections: server.max_connections,
            connect_timeout: server.connect_timeout,
            eject_after: server.eject_after,
            eject_for: server.eject_for,
        };
        UpstreamSettings {
            workers: self.engine.cores.len(),
            pools: self.pool_settings(),
            servers: self.servers.iter().map(server).collect(),
        }
    }

    fn syn_ack_settings(&self) -> SynAckSettings {
        let syn_ack = &self.syn_ack;
        let members = |pool: &PoolConfig| pool.members.iter().map(|member| member.server.0).collect();
        let mut pools_of = vec![Vec::new(); self.servers.len()];
        for pool in &self.pools {
            (pool.members.iter()).for_each(|member| pools_of[member.server.index()].push(pool.id.0));
        }
        let reach = |listener: &ListenerConfig| {
            let mut pools: Vec<u16> = listener.pools().iter().map(|pool| pool.0).collect();
            if pools.is_empty() {
                // A program of its own chooses, and may choose any.
                pools.extend(self.pools.iter().map(|pool| pool.id.0));
            }
            pools
        };
        SynAckSettings {
            offer: SynAck {
                probe: syn_ack.probe && !syn_ack.pinned.is_everything(),
                window: syn_ack.window.min(reassembly::LARGE as u16),
                ..*syn_ack
            },
            pools: self.pools.iter().map(members).collect(),
            reach: self.listeners.iter().map(reach).collect(),
            pools_of,
        }
    }

    /// For what memory is set aside at start only if somebody needs it.
    pub(super) fn needs(&self) -> Needs {
        let accepts = (self.listeners.iter()).any(|listener| listener.accept != AcceptProxy::Off);
        let fields = |announce: SendProxy| matches!(announce, SendProxy::V2(of) if of.alpn || of.authority);
        // Memory is for servers that a name may have, too.
        let named = || self.names().map(|(_, named)| (named.announce, named.transparent));
        let servers = || {
            self.servers
                .iter()
                .map(|server| (server.announce, server.transparent))
                .chain(named())
        };
        Needs {
            half_open: self.listeners.iter().any(ListenerConfig::needs_half_open),
            forwarded_syns: self.listeners.iter().any(ListenerConfig::needs_forwarded_syns),
            headers: accepts || servers().any(|(announce, _)| fields(announce)),
            sent_headers: servers().any(|(announce, _)| announce != SendProxy::Off),
            transparent_sources: accepts && servers().any(|(_, transparent)| transparent),
        }
    }

    /// Places of one core.
    pub fn capacity(&self) -> Capacity {
        let connections = self.engine.max_connections as usize;
        let memory = self.engine.reassembly_memory as usize;
        // A quarter of the connections may be in a state that a stranger can bring about.
        let strange = |needed| if needed { connections / 4 } else { 0 };
        Capacity {
            half_open: strange(self.needs().half_open),
            forwarded_syns: strange(self.needs().forwarded_syns),
            reassembly_quota: self.engine.reassembly_quota,
            ..Capacity::for_connections(connections, memory, reassembly::most_in(memory))
        }
    }
}

/// The addresses of all listeners, with who listens there, behind those that have numbers already.
fn listened_on(known: &[IpAddr], listeners: &[ListenerConfig]) -> Addresses {
    let in_file = |listener: &&ListenerConfig| listener.standing == Standing::InFile;
    let claims = listeners.iter().filter(in_file).flat_map(|listener| {
        listener.addresses.iter().map(|address| Claim {
            address: address.ip,
            ports: address.ports.clone(),
            listener: listener.id.0,
        })
    });
    let devices = listeners.iter().map(|listener| listener.ports.clone()).collect();
    Addresses::new(known, &claims.collect::<Vec<_>>(), devices)
}

fn listener(listener: &ListenerConfig) -> Listener {
    Listener {
        bind: listener.bind,
        default: match listener.default {
            Fallback::Pool(pool) => Some(pool),
            Fallback::Reject => None,
        },
        inspect_delay: listener.inspect_delay,
        select: listener.timeouts.select,
        idle: listener.timeouts.idle,
        half_close: listener.timeouts.half_close,
        accept: listener.accept,
    }
}

/// The servers; where we connect to them from is added to our addresses.
fn servers(
    servers: &[ServerConfig],
    addresses: &mut Addresses,
    next_hop: impl Fn(&ServerConfig) -> usize,
) -> Vec<Server> {
    let mut sets: Vec<(&PortRanges, Arc<PortSet>)> = Vec::new();
    let mut made = Vec::with_capacity(servers.len());
    let check_sources = check_sources(servers);
    for server in servers {
        let mut locals = Vec::with_capacity(server.local.len());
        for local in &server.local {
            locals.push(Local {
                address: addresses.add(local.ip),
                ports: set_of(&mut sets, &local.ports),
            });
        }
        made.push(Server {
            address: mapped(server.address.ip()),
            port: server.address.port(),
            device: server.next_hop.port,
            next_hop: next_hop(server),
            locals,
            transparent: server.transparent,
            announce: server.announce,
            syn_retry: server.syn_retry,
            retries: server.retries,
            connect_timeout: server.connect_timeout,
            check: server.check,
            check_source: check_sources[server.id.index()].0,
        });
    }
    made
}

/// The ports of `ranges`: one set for all servers with the same.
fn set_of<'a>(sets: &mut Vec<(&'a PortRanges, Arc<PortSet>)>, ranges: &'a PortRanges) -> Arc<PortSet> {
    if let Some((_, set)) = sets.iter().find(|(known, _)| *known == ranges) {
        return Arc::clone(set);
    }
    let set: Arc<PortSet> = Arc::new(ranges.iter().collect());
    sets.push((ranges, Arc::clone(&set)));
    set
}
