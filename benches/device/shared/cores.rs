//! Several proxies at once, each in a thread with a load of its own, that share what the cores of an engine share: the plan of
//! who owns what, the next hops, and rings to each other.
//!
//! The listener's address and the addresses towards servers say the core, so that nothing is ever handed over: what is
//! compared is what sharing costs those who have nothing to do with each other.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use e2d2::flow::FlowRule;
use e2d2::handover::mesh;
use e2d2::native::{Eal, Mbuf, RegisteredThread};
use e2d2::wire::MacAddr;
use netfcts::leg::mapped;
use netfcts::steering::SteeringPlan;
use proxyengine::config::Config;
use proxyengine::engine::{Desk, Others, Reloader};
use proxyengine::neighbour::{SharedNeighbours, Topology};
use proxyengine::pipeline::HANDOVER_RING;
use proxyengine::selectors::RuleSelector;
use splice::settings::CoreSteering;

use super::configuration::configuration;
use super::{BoxError, Conditions, Host, InlineProxy, LISTENER, open_on};

/// Addresses of each core towards the servers.
const LOCALS: u8 = 8;

/// What all proxies take for the MAC addresses of their ports.
const MACS: [MacAddr; 2] = [MacAddr([2, 0, 0, 0, 0, 0]), MacAddr([2, 0, 0, 0, 0, 1])];

/// One of several proxies, before it is opened by the thread that runs it.
pub(crate) struct Member {
    pub(super) text: String,
    pub(super) topology: Arc<Topology>,
    pub(super) neighbours: Arc<SharedNeighbours>,
    pub(super) others: Others<Mbuf>,
    pub(super) listener: SocketAddr,
    /// Where other versions of the configuration come from, if any do.
    pub(super) desk: Option<Desk<RuleSelector>>,
    eal: Eal,
}

impl Host {
    /// What `count` proxies share, and what each needs.
    pub(crate) fn members(&self, count: u8, conditions: &Conditions) -> Result<Vec<Member>, BoxError> {
        let macs = MACS;
        let text = shared_configuration(count, conditions);
        let config = Config::parse(&text, "bench")?;
        let topology = Arc::new(Topology::from_config(&config, &macs)?);
        let neighbours = Arc::new(SharedNeighbours::new(&topology));
        let mut plan = SteeringPlan::software(usize::from(count), 1);
        for core in 0..count {
            let address = listener(core);
            plan.add_service(mapped(address.ip()), address.port()..=address.port(), false);
            let locals = locals(core).map(IpAddr::V4);
            for destination in locals.chain([address.ip()]) {
                plan.add_address(mapped(destination));
                plan.add_rule(&FlowRule {
                    destination,
                    port: None,
                    queue: u16::from(core),
                });
            }
        }
        let plan = Arc::new(plan);
        let member = |(core, links)| Member {
            text: text.clone(),
            topology: Arc::clone(&topology),
            neighbours: Arc::clone(&neighbours),
            others: Others {
                steering: CoreSteering {
                    plan: Arc::clone(&plan),
                    core,
                    asks_around: false,
                },
                links,
            },
            listener: listener(core as u8),
            desk: None,
            eal: self.eal.clone(),
        };
        Ok(mesh(usize::from(count), HANDOVER_RING)
            .into_iter()
            .enumerate()
            .map(member)
            .collect())
    }
}

impl Member {
    /// What has all of these go on with other versions of their configuration, and that configuration's text.
    pub(crate) fn reloader(members: &mut [Member]) -> Result<(Reloader, String), BoxError> {
        let first = members.first().ok_or("no proxy")?;
        let text = first.text.clone();
        let hops = (Arc::clone(&first.neighbours), Arc::clone(&first.topology));
        let config = Arc::new(Config::parse(&text, "bench")?);
        let (reloader, desks) = Reloader::new(config, hops, MACS.to_vec(), members.len());
        for (member, desk) in members.iter_mut().zip(desks) {
            member.desk = Some(desk);
        }
        Ok((reloader, text))
    }

    /// The text of its configuration.
    pub(crate) fn into_text(self) -> String {
        self.text
    }

    /// Opens it on the thread that runs it, as long as the registration lasts; one at a time.
    pub(crate) fn open(self, name: char, conditions: &Conditions) -> Result<(RegisteredThread, InlineProxy), BoxError> {
        let eal = self.eal.clone();
        let thread = eal.register_thread()?;
        Ok((thread, open_on(&eal, name, conditions, Some(self))?))
    }
}

fn listener(core: u8) -> SocketAddr {
    let [a, b, c, d] = LISTENER.octets();
    SocketAddr::new(IpAddr::from([a, b, c, d - core]), 8080)
}

fn locals(core: u8) -> impl Iterator<Item = Ipv4Addr> {
    (1..=LOCALS).map(move |last| Ipv4Addr::new(10, 2, 100 + core, last))
}

/// The configuration of a bench with a listener and addresses for each core.
fn shared_configuration(count: u8, conditions: &Conditions) -> String {
    let text = configuration(conditions, ["net_ring0", "net_ring1"], MacAddr([2, 0, 0, 0, 0, 11]));
    let quoted = |items: Vec<String>| {
        items
            .iter()
            .map(|item| format!("\"{item}\""))
            .collect::<Vec<_>>()
            .join(", ")
    };
    let listeners = quoted((0..count).map(|core| listener(core).to_string()).collect());
    let ours = quoted((0..count).flat_map(locals).map(|local| local.to_string()).collect());
    let line = |line: &str| {
        if line.starts_with("local_addresses = ") {
            format!("local_addresses = [{ours}]\n")
        } else if line == format!("addresses = [\"{LISTENER}:8080\"]") {
            format!("addresses = [{listeners}]\n")
        } else {
            format!("{line}\n")
        }
    };
    text.lines().map(line).collect()
}
