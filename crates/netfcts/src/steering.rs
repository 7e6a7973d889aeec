//! Steering plans: which core owns which packet, as a pure function of its headers and the configuration.
//!
//! ```text
//!                       ┌── our own address? ──── no ──► lent by a client: the core of that end point
//!   remote, local, ─────┤                    └── (nobody's, where no addresses are lent)
//!   and both ports      ├── a rule for it? ──── yes ─► the rule's core           modes port and ip
//!                       └── the port's spread ───────► RETA[Toeplitz(tuple)]     mode rss, clients of port and ip
//!                                                   or a hash of our own         mode software
//! ```
//!
//! Every core asks the same plan, so two cores never both take a connection for theirs. A connection's first segment
//! makes its owner; that core then takes only source ports whose answers the plan sends back to it
//! ([`SteeringPlan::source_ports`]). Where the NIC does what the plan says nothing has to be handed over; where it does
//! something else, whoever gets a packet that it does not know asks [`owner`](SteeringPlan::owner) and passes it on.
//!
//! Toeplitz is linear over xor: the hash of an answer is that of its addresses and the server's port, which a pair of end
//! points has once and for all, xor what our port adds. So the ports of a core are those of some classes, and finding
//! them for a new server costs a look-up for each port, once at start.
//!
//! What lives here: the function. What does not: who chooses a plan and tells the NIC (the engine), and the rings on
//! which packets change cores ([`e2d2::handover`]).

use std::ops::RangeInclusive;

use e2d2::flow::{FlowRule, MaskedPort};
use e2d2::rss::{Rss, Toeplitz};

use crate::leg::{FourTuple, is_mapped, mapped};

/// Why there can be no such plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// A core gets nothing.
    #[error(
        "the table of {entries} entries spreads over {shares:?} entries for queues 0 to {last}, expected some for every queue",
        last = shares.len().saturating_sub(1)
    )]
    IdleCore {
        /// Entries of the redirection table.
        entries: usize,
        /// By queue, how many of them are its own.
        shares: Vec<usize>,
    },
    /// A queue that nobody serves.
    #[error("the table leads to queue {queue}, but there are {cores} cores, for queues 0 to {}", cores - 1)]
    NoSuchCore {
        /// The queue.
        queue: u16,
        /// How many cores there are.
        cores: usize,
    },
    /// The table's length.
    #[error("a table of {entries} entries, expected a power of two")]
    BadTable {
        /// Its length.
        entries: usize,
    },
    /// Packets of a version of IP that is in use are not spread.
    #[error("TCP over {version} is not spread")]
    NotSpread {
        /// `IPv4` or `IPv6`.
        version: &'static str,
    },
}

/// How packets are spread that no rule is about.
#[derive(Clone, Debug)]
enum Spread {
    /// By the port, and we know how.
    Rss { toeplitz: Toeplitz, reta: Box<[u16]> },
    /// By a hash of our own: clients by their end point, answers by our port.
    Hash,
}

/// A listener's addresses.
#[derive(Clone, Debug)]
struct Service {
    address: u128,
    ports: RangeInclusive<u16>,
    /// Its clients' addresses can become sources towards servers.
    is_transparent: bool,
}

#[derive(Clone, Copy, Debug)]
struct Rule {
    destination: u128,
    port: MaskedPort,
    core: u16,
}

/// Which core owns which packet. Immutable; shared by all cores.
#[derive(Clone, Debug)]
pub struct SteeringPlan {
    cores: usize,
    seed: u64,
    spread: Spread,
    rules: Vec<Rule>,
    /// Sorted.
    ours: Vec<u128>,
    services: Vec<Service>,
    is_transparent: bool,
    /// Servers that may have been called from ports on which somebody has begun to listen since: their answers go by the port.
    /// Sorted.
    called: Vec<(u128, u16)>,
}

/// Legs to servers between which a plan makes no difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SourceKind {
    /// Rules say, by this address of ours.
    Ruled(u128),
    /// The low bits of a hash that is linear in the port.
    Hashed {
        /// Those of port 0.
        entry: u32,
        /// By which half of the key the port is hashed.
        is_ipv4: bool,
    },
    /// The port alone says.
    Even,
}

impl SteeringPlan {
    /// The plan of `cores` cores that spreads by a hash of our own, keyed with `seed`: right whatever the ports do. It
    /// knows none of our addresses yet.
    pub fn software(cores: usize, seed: u64) -> Self {
        Self {
            cores: cores.max(1),
            seed,
            spread: Spread::Hash,
            rules: Vec::new(),
            ours: Vec::new(),
            services: Vec::new(),
            is_transparent: false,
            called: Vec::new(),
        }
    }

    /// Spreads as ports do whose queue `n` is core `n`'s. `ipv4` and `ipv6` say what is in use.
    ///
    /// # Errors
    /// Why ports that spread so leave a core out, or lead to none.
    pub fn spread_by(mut self, rss: &Rss, ipv4: bool, ipv6: bool) -> Result<Self, PlanError> {
        let (entries, cores) = (rss.reta.len(), self.cores);
        if !entries.is_power_of_two() {
            return Err(PlanError::BadTable { entries });
        }
        if let Some(&queue) = rss.reta.iter().find(|&&queue| usize::from(queue) >= cores) {
            return Err(PlanError::NoSuchCore { queue, cores });
        }
        let shares = rss.shares(cores as u16);
        if shares.contains(&0) {
            return Err(PlanError::IdleCore { entries, shares });
        }
        for (in_use, spread, version) in [(ipv4, rss.tcp_ipv4, "IPv4"), (ipv6, rss.tcp_ipv6, "IPv6")] {
            if in_use && !spread {
                return Err(PlanError::NotSpread { version });
            }
        }
        self.spread = Spread::Rss {
            toeplitz: Toeplitz::new(&rss.key),
            reta: rss.reta.clone().into_boxed_slice(),
        };
        Ok(self)
    }

    /// Adds an address of ours.
    pub fn add_address(&mut self, address: u128) {
        if let Err(place) = self.ours.binary_search(&address) {
            self.ours.insert(place, address);
        }
    }

    /// Adds what a listener listens on. With `is_transparent` its clients' addresses and ports can become those of connections to
    /// servers, whose answers then go to them and not to us.
    pub fn add_service(&mut self, address: u128, ports: RangeInclusive<u16>, is_transparent: bool) {
        self.add_address(address);
        self.services.push(Service {
            address,
            ports,
            is_transparent,
        });
        self.is_transparent |= is_transparent;
    }

    /// Says which servers may have been called from ports on which somebody has begun to listen since.
    pub fn set_called(&mut self, servers: impl IntoIterator<Item = (u128, u16)>) {
        self.called = servers.into_iter().collect();
        self.called.sort_unstable();
        self.called.dedup();
    }

    /// The same plan without what listeners listen on; addresses that were ours keep their owner.
    #[must_use]
    pub fn without_services(&self) -> Self {
        Self {
            services: Vec::new(),
            is_transparent: false,
            called: Vec::new(),
            ..self.clone()
        }
    }

    /// Adds a rule that the ports follow, whose queue is the core. Of several the first counts.
    pub fn add_rule(&mut self, rule: &FlowRule) {
        self.rules.push(Rule {
            destination: mapped(rule.destination),
            port: rule.port.unwrap_or(MaskedPort { value: 0, mask: 0 }),
            core: rule.queue,
        });
    }

    /// How many cores share the work.
    pub fn cores(&self) -> usize {
        self.cores
    }

    /// Whether clients' addresses are used towards servers.
    pub fn is_transparent(&self) -> bool {
        self.is_transparent
    }

    /// Whether `address` is one of ours.
    pub fn is_ours(&self, address: u128) -> bool {
        self.ours.binary_search(&address).is_ok()
    }

    /// The core that owns what arrives on this leg, below [`cores`](Self::cores); nothing if it is not for us.
    pub fn owner(&self, leg: &FourTuple) -> Option<usize> {
        if !self.is_ours(leg.local) {
            return self
                .is_transparent
                .then(|| self.of_end_point(leg.local, leg.local_port));
        }
        // Only the hash of our own and lending ask who listens there.
        if self.is_transparent && self.service(leg).is_some_and(|service| service.is_transparent) {
            return Some(self.of_end_point(leg.remote, leg.remote_port));
        }
        if let Some(core) = self.ruled(leg.local, leg.local_port) {
            return Some(core);
        }
        Some(match &self.spread {
            Spread::Rss { toeplitz, reta } => entry(reta, hash(toeplitz, leg)),
            Spread::Hash if self.service(leg).is_some() => self.of_end_point(leg.remote, leg.remote_port),
            Spread::Hash => self.of_port(leg.local_port),
        })
    }

    /// The hash by which ports choose the queue of this leg; nothing where they do not choose by one.
    pub fn rss_hash(&self, leg: &FourTuple) -> Option<u32> {
        match &self.spread {
            Spread::Rss { toeplitz, .. } => Some(hash(toeplitz, leg)),
            Spread::Hash => None,
        }
    }

    /// Which of our ports at `local` bring answers of a server back to `core`: true for those.
    ///
    /// The same as asking [`owner`](Self::owner) for each port on which nobody listens, in a tenth of the time; but where there
    /// are rules for the address, only for the ports that they are about.
    pub fn source_ports(&self, server: (u128, u16), local: u128, core: usize) -> impl Fn(u16) -> bool + '_ {
        let leg = FourTuple {
            remote: server.0,
            local,
            remote_port: server.1,
            local_port: 0,
        };
        let base = self.rss_hash(&leg).unwrap_or_default();
        let is_ipv4 = is_mapped(local);
        let has_rules = self.rules.iter().any(|rule| rule.destination == local);
        move |port| {
            let owner = match &self.spread {
                // The other ports are spread, but who has rules may have nothing else.
                _ if has_rules => return self.ruled(local, port) == Some(core),
                Spread::Rss { toeplitz, reta } if is_ipv4 => entry(reta, base ^ toeplitz.destination_port4(port)),
                Spread::Rss { toeplitz, reta } => entry(reta, base ^ toeplitz.destination_port6(port)),
                Spread::Hash => self.of_port(port),
            };
            owner == core
        }
    }

    /// What [`source_ports`](Self::source_ports) depend on beside the core: they are the same where it is.
    pub fn source_kind(&self, server: (u128, u16), local: u128) -> SourceKind {
        if self.rules.iter().any(|rule| rule.destination == local) {
            return SourceKind::Ruled(local);
        }
        let leg = FourTuple {
            remote: server.0,
            local,
            remote_port: server.1,
            local_port: 0,
        };
        match &self.spread {
            Spread::Rss { toeplitz, reta } => SourceKind::Hashed {
                entry: hash(toeplitz, &leg) & (reta.len() as u32 - 1),
                is_ipv4: is_mapped(local),
            },
            Spread::Hash => SourceKind::Even,
        }
    }

    /// Who listens there, but for answers of servers.
    fn service(&self, leg: &FourTuple) -> Option<&Service> {
        let is_it = |service: &&Service| service.address == leg.local && service.ports.contains(&leg.local_port);
        let is_client = |_: &&Service| self.called.binary_search(&(leg.remote, leg.remote_port)).is_err();
        self.services.iter().find(is_it).filter(is_client)
    }

    fn ruled(&self, local: u128, port: u16) -> Option<usize> {
        let rule = self
            .rules
            .iter()
            .find(|rule| rule.destination == local && rule.port.contains(port))?;
        Some(usize::from(rule.core))
    }

    /// The core of an end point that is not ours.
    fn of_end_point(&self, address: u128, port: u16) -> usize {
        let folded = fold(
            address as u64 ^ self.seed,
            (address >> 64) as u64 ^ self.seed.rotate_left(32) | 1,
        );
        let hash = fold(folded ^ u64::from(port), 0x9e37_79b9_7f4a_7c15);
        ((u128::from(hash) * self.cores as u128) >> 64) as usize
    }

    /// The core of a port of ours: neighbouring ports go to different cores, so that any range has some for each.
    fn of_port(&self, port: u16) -> usize {
        // Multiples of the golden ratio fill the circle evenly (Knuth, The Art of Computer Programming 3, 6.4).
        let place = port.wrapping_mul(40_503);
        (usize::from(place) * self.cores) >> 16
    }
}

/// RSS takes the low bits of the hash; the table's length is a power of two.
#[inline]
fn entry(reta: &[u16], hash: u32) -> usize {
    let index = hash as usize & (reta.len() - 1);
    usize::from(reta[index])
}

fn hash(toeplitz: &Toeplitz, leg: &FourTuple) -> u32 {
    if is_mapped(leg.local) {
        let four = |address: u128| (address as u32).to_be_bytes();
        toeplitz.tcp4(four(leg.remote), four(leg.local), leg.remote_port, leg.local_port)
    } else {
        toeplitz.tcp6(
            leg.remote.to_be_bytes(),
            leg.local.to_be_bytes(),
            leg.remote_port,
            leg.local_port,
        )
    }
}

/// Both halves of a 128-bit product: every bit of both factors reaches every bit of the result's.
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use e2d2::rss::{DEFAULT_KEY, even_reta};
    use proptest::prelude::*;

    use super::*;
    use crate::leg::MAPPED;

    /// Whose hash is the same both ways.
    const SYMMETRIC: [u8; 40] = {
        let mut key = [0x5a; 40];
        let mut at = 0;
        while at < 40 {
            key[at] = 0x6d;
            at += 2;
        }
        key
    };

    fn keys() -> [Vec<u8>; 3] {
        let mut long = DEFAULT_KEY.to_vec();
        long.extend([0x35, 0x8a, 0x9c, 0x01, 0xfe, 0x77, 0x20, 0x4d, 0xe1, 0x13, 0x68, 0xbb]);
        [DEFAULT_KEY.to_vec(), SYMMETRIC.to_vec(), long]
    }

    fn rss(key: &[u8], entries: u16, cores: usize) -> Rss {
        Rss::new(key, even_reta(entries, cores as u16))
    }

    fn four(text: &str) -> u128 {
        mapped(text.parse().expect("an address"))
    }

    fn plan(cores: usize, ours: &[u128]) -> SteeringPlan {
        let mut plan = SteeringPlan::software(cores, 0xfeed);
        ours.iter().for_each(|address| plan.add_address(*address));
        plan
    }

    fn leg(remote: u128, remote_port: u16, local: u128, local_port: u16) -> FourTuple {
        FourTuple {
            remote,
            local,
            remote_port,
            local_port,
        }
    }

    /// For every server whatsoever each core has the same share of the ports, but for the rounding of the table.
    #[test]
    fn classes_of_ports_part_all_ports_among_all_cores() {
        for key in keys() {
            for (cores, entries) in [(2, 128), (3, 128), (4, 128), (8, 512), (16, 128), (16, 512)] {
                for (server, local) in [("10.0.0.7", "10.0.0.1"), ("2001:db8::7", "2001:db8::1")] {
                    let (server, local) = ((four(server), 8080), four(local));
                    let plan = plan(cores, &[local]).spread_by(&rss(&key, entries, cores), true, true);
                    let plan = plan.expect("a plan");
                    let mut owners = vec![0; 1 << 16];
                    let mut shares = vec![0_usize; cores];
                    for (core, share) in shares.iter_mut().enumerate() {
                        let is_its = plan.source_ports(server, local, core);
                        for port in (1024..=u16::MAX).filter(|&port| is_its(port)) {
                            owners[usize::from(port)] += 1;
                            *share += 1;
                        }
                    }
                    assert!(
                        owners[1024..].iter().all(|owners| *owners == 1),
                        "each port has one owner"
                    );
                    let even = 64_512 / cores;
                    let fair = even - even / 32..=even + even / 32;
                    assert!(
                        shares.iter().all(|share| fair.contains(share)),
                        "{cores} {entries} {shares:?}"
                    );
                    if cores.is_power_of_two() {
                        assert_eq!(shares, vec![even; cores], "{entries}");
                    }
                }
            }
        }
    }

    #[test]
    fn any_small_range_of_ports_has_some_for_every_core_in_software() {
        for cores in [2, 3, 4, 8, 16] {
            let plan = plan(cores, &[]);
            for first in [1024_u16, 40_000, 65_000] {
                let mut shares = vec![0_usize; cores];
                (first..first + 400).for_each(|port| shares[plan.of_port(port)] += 1);
                let even = 400 / cores;
                assert!(
                    shares.iter().all(|share| share.abs_diff(even) <= even / 3 + 2),
                    "{cores}: {shares:?}"
                );
            }
        }
    }

    #[test]
    fn clients_are_spread_evenly_by_the_hash_of_our_own() {
        let local = four("10.0.0.1");
        for cores in [2, 3, 7, 16] {
            let mut plan = plan(cores, &[]);
            plan.add_service(local, 80..=80, false);
            let mut shares = vec![0_usize; cores];
            for n in 0..16_000_u32 {
                let client = four("10.9.0.0") + u128::from(n / 100);
                let owner = plan.owner(&leg(client, 1024 + (n % 100) as u16, local, 80));
                shares[owner.expect("ours")] += 1;
            }
            let even = 16_000 / cores;
            assert!(
                shares.iter().all(|share| share.abs_diff(even) <= even / 10),
                "{shares:?}"
            );
        }
    }

    #[test]
    fn rules_go_before_the_spread_and_the_first_counts() {
        let (one, other) = (four("10.0.0.1"), four("10.0.0.2"));
        let spread = plan(4, &[one, other]).spread_by(&rss(&DEFAULT_KEY, 128, 4), true, false);
        let mut plan = spread.expect("a plan");
        let rule = |address: &str, port, queue| FlowRule {
            destination: address.parse().expect("an address"),
            port,
            queue,
        };
        for core in 0..4_u16 {
            let value = 0xf000 - core * 0x1000;
            plan.add_rule(&rule("10.0.0.1", Some(MaskedPort { value, mask: 0xf000 }), core));
        }
        plan.add_rule(&rule("10.0.0.2", None, 3));
        plan.add_rule(&rule("10.0.0.2", None, 1));
        let server = four("10.0.0.9");
        for (port, core) in [(0xffff, 0), (0xf000, 0), (0xefff, 1), (0xd123, 2), (0xc000, 3)] {
            assert_eq!(plan.owner(&leg(server, 80, one, port)), Some(core));
            assert!(plan.source_ports((server, 80), one, core)(port));
        }
        assert_eq!(plan.owner(&leg(server, 80, other, 5)), Some(3));
        // Below the rules the spread goes on.
        let hashed = plan.rss_hash(&leg(server, 80, one, 0x1234)).expect("a hash") as usize % 128 % 4;
        assert_eq!(plan.owner(&leg(server, 80, one, 0x1234)), Some(hashed));
    }

    #[test]
    fn what_is_not_ours_is_nobodys_unless_addresses_are_lent() {
        let (ours, client) = (four("10.0.0.1"), four("192.0.2.7"));
        let mut plan = plan(3, &[ours]);
        let answer = leg(four("10.0.0.9"), 80, client, 4000);
        assert_eq!(plan.owner(&answer), None);
        plan.add_service(ours, 80..=80, true);
        let called = plan.owner(&leg(client, 4000, ours, 80));
        assert!(called.is_some());
        assert_eq!(plan.owner(&answer), called, "the same on both legs");
        assert_eq!(
            plan.owner(&leg(four("10.0.0.8"), 443, client, 4000)),
            called,
            "whatever the server"
        );
    }

    #[test]
    fn answers_to_a_port_on_which_somebody_listens_by_now_go_where_they_went() {
        let (ours, server, client) = (four("10.0.0.1"), four("10.0.0.9"), four("192.0.2.7"));
        for is_transparent in [false, true] {
            let before = plan(8, &[ours]);
            let mut after = before.without_services();
            after.add_service(ours, 8080..=8090, is_transparent);
            let answers = || (8080..=8090).map(|port| leg(server, 80, ours, port));
            let owners = |plan: &SteeringPlan| answers().map(|leg| plan.owner(&leg)).collect::<Vec<_>>();
            assert_ne!(owners(&before), owners(&after), "a client would be elsewhere");
            after.set_called([(server, 80)]);
            assert_eq!(owners(&before), owners(&after));
            let of_client = |port| after.owner(&leg(client, port, ours, 8080));
            assert!(
                (1024..1100).any(|port| of_client(port) != of_client(1024)),
                "clients are spread"
            );
        }
    }

    #[test]
    fn tables_that_leave_a_core_out_are_refused() {
        let refused = |reta: Vec<u16>| {
            plan(4, &[])
                .spread_by(&Rss::new(&DEFAULT_KEY, reta), true, true)
                .map(|_| ())
        };
        assert_eq!(
            refused(even_reta(128, 3)).unwrap_err().to_string(),
            "the table of 128 entries spreads over [43, 43, 42, 0] entries for queues 0 to 3, expected some for every queue"
        );
        assert_eq!(
            refused(even_reta(128, 8)).unwrap_err().to_string(),
            "the table leads to queue 4, but there are 4 cores, for queues 0 to 3"
        );
        assert_eq!(refused(even_reta(96, 4)), Err(PlanError::BadTable { entries: 96 }));
        assert_eq!(refused(Vec::new()), Err(PlanError::BadTable { entries: 0 }));
        let blind = Rss {
            tcp_ipv6: false,
            ..rss(&DEFAULT_KEY, 128, 4)
        };
        let six = plan(4, &[]).spread_by(&blind, true, true);
        assert_eq!(six.unwrap_err(), PlanError::NotSpread { version: "IPv6" });
        assert!(plan(4, &[]).spread_by(&blind, true, false).is_ok());
    }

    fn any_plan() -> impl Strategy<Value = (SteeringPlan, u128)> {
        let addresses = prop_oneof![any::<u32>().prop_map(|ip| MAPPED | u128::from(ip)), any::<u128>()];
        (1_usize..=16, 0_usize..4, prop::bool::ANY, addresses).prop_map(|(cores, key, rules, ours)| {
            let mut plan = plan(cores, &[]);
            plan.add_service(ours, 80..=443, false);
            if let Some(key) = keys().get(key) {
                plan = plan.spread_by(&rss(key, 128, cores), true, true).expect("a plan");
            }
            if rules && is_mapped(ours) {
                let destination = std::net::Ipv4Addr::from(ours as u32).into();
                for core in 0..cores as u16 {
                    let port = Some(MaskedPort {
                        value: 0xf800 - core * 0x800,
                        mask: 0xf800,
                    });
                    plan.add_rule(&FlowRule {
                        destination,
                        port,
                        queue: core,
                    });
                }
            }
            (plan, ours)
        })
    }

    proptest! {
        /// Whoever calls from a port of its own is who gets the answer, and nobody else.
        #[test]
        fn answers_come_back_to_whoever_may_call_from_the_port(
            (plan, ours) in any_plan(), remote: u128, server_port: u16, port in 1024_u16..,
        ) {
            let remote = if is_mapped(ours) { MAPPED | remote & 0xffff_ffff } else { remote };
            let owner = plan.owner(&leg(remote, server_port, ours, port));
            let callers: Vec<usize> = (0..plan.cores())
                .filter(|&core| plan.source_ports((remote, server_port), ours, core)(port))
                .collect();
            if plan.rules.is_empty() || plan.ruled(ours, port).is_some() {
                prop_assert_eq!(callers, vec![owner.expect("ours")]);
            } else {
                prop_assert!(callers.is_empty(), "beside the rules nobody calls");
            }
        }

        #[test]
        fn legs_of_one_kind_may_call_from_the_same_ports(
            (plan, ours) in any_plan(), remotes: [(u128, u16); 9], port in 1024_u16..,
        ) {
            let remotes = remotes.map(|(remote, port)| {
                (if is_mapped(ours) { MAPPED | remote & 0xffff_ffff } else { remote }, port)
            });
            let kinds = remotes.map(|remote| plan.source_kind(remote, ours));
            let owners = remotes.map(|remote| {
                (0..plan.cores()).filter(|&core| plan.source_ports(remote, ours, core)(port)).collect::<Vec<_>>()
            });
            for (one, other) in (0..9).flat_map(|one| (0..one).map(move |other| (one, other))) {
                prop_assert!(kinds[one] != kinds[other] || owners[one] == owners[other]);
            }
        }

        #[test]
        fn owners_are_cores((plan, ours) in any_plan(), remote: u128, ports: [u16; 2]) {
            let remote = if is_mapped(ours) { MAPPED | remote & 0xffff_ffff } else { remote };
            let owner = plan.owner(&leg(remote, ports[0], ours, ports[1]));
            prop_assert!(owner.is_some_and(|owner| owner < plan.cores()), "{:?}", owner);
            prop_assert_eq!(plan.owner(&leg(remote, ports[0], ours ^ 1, ports[1])), None);
        }
    }
}
