//! Chooses how packets find their cores: what the configuration wants, as far as the ports can do it.
//!
//! ```text
//!   auto ─► rss ─► port ─► ip ─► software      the first that configuration and ports allow
//! ```
//!
//! A mode that is asked for by name and that cannot be (no hash, no rules, too few addresses or ports) is refused at start
//! with the arithmetic. Where a driver has rules, but refuses ours or would do less than they say, the next mode is taken,
//! for that is nothing that whoever wrote the file could have known. Either way the choice and its reason are logged, and
//! whatever is chosen, packets on the wrong core are handed over.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use e2d2::flow::{FlowError, FlowRule, MaskedPort};
use e2d2::rss::Rss;
use netfcts::leg::mapped;
use netfcts::steering::{PlanError, SteeringPlan};

use super::machine::Machine;
use crate::config::{AcceptProxy, Config, ListenerConfig, ServerConfig, Standing, Steering};

/// RSS takes no more of a key than this for TCP: longer ones are the same up to here.
const KEY: usize = 40;

/// Why packets cannot be steered as the configuration says.
#[derive(Debug, thiserror::Error)]
pub enum SteeringError {
    /// A port has no hash, or does not say which.
    #[error(
        "port \"{port}\" does not spread TCP by a hash that it tells of; other ways are steering = \"software\", or a \
         software_nic in front of it"
    )]
    NoRss {
        /// Its name.
        port: String,
    },
    /// Two ports hash differently, so that one answer would have two owners.
    #[error(
        "ports \"{first}\" and \"{other}\" spread TCP by different keys or tables, expected the same for all ports"
    )]
    UnlikeRss {
        /// Name of the first.
        first: String,
        /// Name of the one that differs.
        other: String,
    },
    /// What the hash leads to does not fit the cores.
    #[error("port \"{port}\": {error}")]
    Plan {
        /// The first port.
        port: String,
        /// Why.
        error: PlanError,
    },
    /// The mask has too few parts.
    #[error(
        "port_mask {mask:#06x} makes {parts} parts of {size} ports, expected at least one for each of {cores} cores"
    )]
    SmallMask {
        /// The mask.
        mask: u16,
        /// Two to the number of its bits.
        parts: u32,
        /// Ports of each.
        size: u32,
        /// How many there are.
        cores: usize,
    },
    /// A core has no source port towards a server.
    #[error(
        "core number {core} of {cores} has none of the {ports} source ports towards server \"{server}\" (steering = \
         \"{mode}\"); more of them in local_ports, or another port_mask, would help"
    )]
    NoPorts {
        /// The mode.
        mode: &'static str,
        /// The server.
        server: String,
        /// The core's place in `cores`.
        core: usize,
        /// How many cores there are.
        cores: usize,
        /// How many ports they share.
        ports: usize,
    },
    /// A server is reached from fewer addresses than there are cores.
    #[error(
        "server \"{server}\" is reached from {addresses} of local_addresses, expected one for each of {cores} cores with \
         steering = \"ip\""
    )]
    FewAddresses {
        /// The server.
        server: String,
        /// How many it has.
        addresses: usize,
        /// How many cores there are.
        cores: usize,
    },
    /// A rule would send all clients of a listener to one core.
    #[error(
        "the rule \"{rule}\" would bring all clients of listener \"{listener}\" to one core; its address must not be one of \
         local_addresses, or its port must lie outside the rule"
    )]
    Overlap {
        /// The rule.
        rule: FlowRule,
        /// The listener.
        listener: String,
    },
    /// The ports have no rules, or not for this.
    #[error(transparent)]
    Flow(#[from] FlowError),
}

/// How packets find their cores.
#[derive(Clone, Debug)]
pub struct Chosen {
    /// Never [`Steering::Auto`].
    pub mode: Steering,
    /// Who owns what.
    pub plan: Arc<SteeringPlan>,
    /// Answers to addresses that PROXY headers have named must be asked for.
    pub asks_around: bool,
}

/// Chooses for `cores` cores, more than one. `seed` keys the hash of our own.
///
/// # Errors
/// Why the mode that the configuration names cannot be.
pub(super) fn choose<M: Machine>(
    config: &Config,
    machine: &mut M,
    cores: usize,
    seed: u64,
) -> Result<Chosen, SteeringError> {
    let wanted = config.engine().steering;
    let mut chooser = Chooser {
        config,
        machine,
        cores,
        seed,
    };
    let all = [Steering::Rss, Steering::Port, Steering::Ip, Steering::Software];
    let order = std::iter::once(wanted).chain(all.into_iter().filter(|mode| *mode != wanted));
    let mut reasons = String::new();
    for mode in order.filter(|mode| *mode != Steering::Auto) {
        match chooser.plan(mode) {
            Ok(plan) => {
                log::info!("steering: {} for {cores} cores{reasons}", mode.name());
                return Ok(chooser.chosen(mode, plan));
            }
            Err(SteeringError::Flow(error @ (FlowError::WouldBeWeakened { .. } | FlowError::Refused { .. }))) => {
                log::warn!("steering: not \"{}\": {error}", mode.name());
            }
            Err(error) if mode == wanted => return Err(error),
            Err(error) => reasons.push_str(&format!("; not {}: {error}", mode.name())),
        }
    }
    // Software asks for nothing but a source port for each core, which it complains about by name.
    chooser
        .plan(Steering::Software)
        .map(|plan| chooser.chosen(Steering::Software, plan))
}

struct Chooser<'a, M> {
    config: &'a Config,
    machine: &'a mut M,
    cores: usize,
    seed: u64,
}

impl<M: Machine> Chooser<'_, M> {
    fn chosen(&self, mode: Steering, plan: SteeringPlan) -> Chosen {
        let accepts = self
            .config
            .listeners()
            .iter()
            .any(|listener| listener.accept != AcceptProxy::Off);
        Chosen {
            mode,
            asks_around: accepts && plan.is_transparent(),
            plan: Arc::new(plan),
        }
    }

    fn plan(&mut self, mode: Steering) -> Result<SteeringPlan, SteeringError> {
        let mut plan = self.bare();
        match mode {
            Steering::Rss => plan = self.spread(plan)?,
            Steering::Port | Steering::Ip => {
                // Clients are spread by the ports where these can; if not, they are handed over.
                plan = self.spread(plan).unwrap_or_else(|_| self.bare());
                let rules = self.rules().of(mode)?;
                rules.iter().flatten().for_each(|rule| plan.add_rule(rule));
                self.check_ports(&plan, mode)?;
                return self.install(&rules).map(|()| plan);
            }
            Steering::Software | Steering::Auto => {}
        }
        self.check_ports(&plan, mode)?;
        Ok(plan)
    }

    fn rules(&self) -> Rules<'_> {
        Rules {
            config: self.config,
            cores: self.cores,
        }
    }

    /// A plan that knows our addresses, and no port.
    fn bare(&self) -> SteeringPlan {
        let mut plan = SteeringPlan::software(self.cores, self.seed);
        for listener in self.config.listeners() {
            let is_transparent = is_transparent(self.config, listener);
            for address in &listener.addresses {
                plan.add_service(mapped(address.ip), address.ports.clone(), is_transparent);
            }
        }
        for local in self.config.servers().iter().flat_map(|server| &server.local) {
            plan.add_address(mapped(local.ip));
        }
        plan
    }

    /// The plan as the ports spread TCP, which must be all alike.
    fn spread(&self, plan: SteeringPlan) -> Result<SteeringPlan, SteeringError> {
        let ports = self.config.ports();
        let name = |index: usize| ports[index].name.clone();
        let mut first: Option<Rss> = None;
        for index in 0..ports.len() {
            let rss = self
                .machine
                .rss(index)
                .ok_or_else(|| SteeringError::NoRss { port: name(index) })?;
            let is_like = |first: &Rss| {
                let key = |rss: &Rss| rss.key.iter().copied().take(KEY).collect::<Vec<_>>();
                key(first) == key(&rss)
                    && (&first.reta, first.tcp_ipv4, first.tcp_ipv6) == (&rss.reta, rss.tcp_ipv4, rss.tcp_ipv6)
            };
            if !first.as_ref().is_none_or(is_like) {
                return Err(SteeringError::UnlikeRss {
                    first: name(0),
                    other: name(index),
                });
            }
            first.get_or_insert(rss);
        }
        let Some(rss) = first else { return Ok(plan) };
        let listen = self.config.listeners().iter().flat_map(|listener| &listener.addresses);
        let servers = self.config.servers().iter().map(|server| server.address.ip());
        let (mut ipv4, mut ipv6) = (false, false);
        for address in listen.map(|address| address.ip).chain(servers) {
            ipv4 |= address.is_ipv4();
            ipv6 |= address.is_ipv6();
        }
        plan.spread_by(&rss, ipv4, ipv6)
            .map_err(|error| SteeringError::Plan { port: name(0), error })
    }

    /// Every core needs a port towards every server.
    fn check_ports(&self, plan: &SteeringPlan, mode: Steering) -> Result<(), SteeringError> {
        for server in self.config.servers() {
            let end_point = (mapped(server.address.ip()), server.address.port());
            for core in 0..self.cores {
                let has_some = server.local.iter().any(|local| {
                    let is_its = plan.source_ports(end_point, mapped(local.ip), core);
                    local.ports.iter().any(is_its)
                });
                if !has_some {
                    return Err(SteeringError::NoPorts {
                        mode: mode.name(),
                        server: server.name.clone(),
                        core,
                        cores: self.cores,
                        ports: server.local.iter().map(|local| local.ports.len()).sum(),
                    });
                }
            }
        }
        Ok(())
    }

    /// Brings the rules to the ports: all of them, or none.
    fn install(&mut self, rules: &[Vec<FlowRule>]) -> Result<(), SteeringError> {
        for (port, of_port) in rules.iter().enumerate().filter(|(_, of_port)| !of_port.is_empty()) {
            if let Err(error) = self.machine.install(port, of_port) {
                // None of the ports before it may go on with rules that nobody follows.
                for before in (0..port).filter(|before| !rules[*before].is_empty()) {
                    self.machine.install(before, &[])?;
                }
                return Err(error.into());
            }
        }
        Ok(())
    }
}

/// The rules that a configuration takes, whatever the ports can do.
struct Rules<'a> {
    config: &'a Config,
    cores: usize,
}

impl Rules<'_> {
    /// Those of modes port and ip, for each port of ours.
    fn of(&self, mode: Steering) -> Result<Vec<Vec<FlowRule>>, SteeringError> {
        let rules = match mode {
            Steering::Port => self.by_port()?,
            Steering::Ip => self.by_address()?,
            Steering::Auto | Steering::Rss | Steering::Software => Vec::new(),
        };
        self.check_overlap(&rules)?;
        Ok(rules)
    }

    /// Those of the file.
    fn servers(&self) -> impl Iterator<Item = &ServerConfig> {
        let servers = self.config.servers().iter();
        servers.filter(|server| server.standing == Standing::InFile)
    }

    /// For each port of ours, the rules of every address that servers behind it are reached from: the highest part of the
    /// ports for the first core, the next for the second, as ProxyEngine has it.
    fn by_port(&self) -> Result<Vec<Vec<FlowRule>>, SteeringError> {
        let mask = self.mask()?;
        let size = u32::from(!mask) + 1;
        let part = |core: usize| MaskedPort {
            value: mask - (core as u32 * size) as u16,
            mask,
        };
        let rule = |(destination, core)| FlowRule {
            destination,
            port: Some(part(core)),
            queue: core as u16,
        };
        let of_port = |port: usize| {
            let addresses = self.local_addresses(port).into_iter();
            addresses
                .flat_map(|address| (0..self.cores).map(move |core| (address, core)))
                .map(rule)
                .collect()
        };
        Ok((0..self.config.ports().len()).map(of_port).collect())
    }

    /// The mask of the configuration; without one, the largest parts that leave the lowest, where services listen, to none.
    fn mask(&self) -> Result<u16, SteeringError> {
        let cores = self.cores;
        let bits = usize::BITS - cores.leading_zeros();
        let mask = self
            .config
            .engine()
            .port_mask
            .unwrap_or(!(u16::MAX.checked_shr(bits).unwrap_or(0)));
        let size = u32::from(!mask) + 1;
        let parts = (1 << u16::BITS) / size;
        if cores > parts as usize {
            return Err(SteeringError::SmallMask {
                mask,
                parts,
                size,
                cores,
            });
        }
        Ok(mask)
    }

    /// For each port of ours, whose packets an address is: those of each server take turns among the cores.
    fn by_address(&self) -> Result<Vec<Vec<FlowRule>>, SteeringError> {
        let cores = self.cores;
        let mut core_of: HashMap<IpAddr, usize> = HashMap::new();
        for server in self.servers() {
            let mut shares = vec![0_usize; cores];
            for local in &server.local {
                let fewest = (0..cores).min_by_key(|core| shares[*core]).unwrap_or(0);
                let core = *core_of.entry(local.ip).or_insert(fewest);
                shares[core] += 1;
            }
            if shares.contains(&0) {
                return Err(SteeringError::FewAddresses {
                    server: server.name.clone(),
                    addresses: server.local.len(),
                    cores,
                });
            }
        }
        let rule = |destination: IpAddr| FlowRule {
            destination,
            port: None,
            queue: core_of.get(&destination).copied().unwrap_or(0) as u16,
        };
        let of_port = |port: usize| self.local_addresses(port).into_iter().map(rule).collect();
        Ok((0..self.config.ports().len()).map(of_port).collect())
    }

    /// From where servers behind a port are reached, each address once, in the order of the file.
    fn local_addresses(&self, port: usize) -> Vec<IpAddr> {
        let behind = |server: &&ServerConfig| usize::from(server.next_hop.port.0) == port;
        let servers = self.servers().filter(behind);
        let mut addresses = Vec::new();
        for local in servers.flat_map(|server| &server.local) {
            if !addresses.contains(&local.ip) {
                addresses.push(local.ip);
            }
        }
        addresses
    }

    /// No listener may be where a rule leads all its clients to one core.
    fn check_overlap(&self, rules: &[Vec<FlowRule>]) -> Result<(), SteeringError> {
        let in_file = |listener: &&ListenerConfig| listener.standing == Standing::InFile;
        for listener in self.config.listeners().iter().filter(in_file) {
            for address in &listener.addresses {
                let catches = |rule: &&FlowRule| {
                    let has = |port: MaskedPort| address.ports.clone().any(|listen| port.contains(listen));
                    rule.destination == address.ip && rule.port.is_none_or(has)
                };
                if let Some(rule) = rules.iter().flatten().find(catches) {
                    return Err(SteeringError::Overlap {
                        rule: *rule,
                        listener: listener.name.clone(),
                    });
                }
            }
        }
        Ok(())
    }
}

/// Whether an engine could start with the mode that the configuration names, as far as the configuration alone says: one that runs
/// does not go on with what would not start again.
///
/// # Errors
/// Why not.
pub fn check(config: &Config) -> Result<(), SteeringError> {
    let cores = config.engine().cores.len();
    if cores < 2 {
        return Ok(());
    }
    let rules = Rules { config, cores };
    rules.of(config.engine().steering).map(drop)
}

/// Whether clients of `listener` can come to a server that is connected to from their own addresses.
pub(super) fn is_transparent(config: &Config, listener: &ListenerConfig) -> bool {
    let pools = listener.pools();
    if pools.is_empty() {
        // A program of its own chooses, and may choose any.
        let may_be = config.servers().iter().any(|server| server.transparent);
        return may_be || config.names().any(|(_, named)| named.transparent);
    }
    let mut pools = pools.iter().map(|pool| config.pool(*pool));
    pools.any(|pool| {
        let mut members = pool.members.iter();
        members.any(|member| config.server(member.server).transparent)
            || pool.names.iter().any(|named| named.transparent)
    })
}
