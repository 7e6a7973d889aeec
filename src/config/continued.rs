//! Another version of the file for an engine that runs: its numbers go on from those of the version before.
//!
//! Who has a number keeps it: a server is its address and port, a pool its name, a listener its name, or else its addresses.
//! What the new version no longer has is [`Standing::Past`]: it stays with its number, for the connections that name it, and
//! gets no new one. When none is left its number is [`Standing::Nobody`]'s until something new takes it.
//!
//! What cannot change while the engine runs is refused by the name of its key.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::Path;

use super::check::Place;
use super::check_sources::add_moved;
use super::choosing::add_counted;
use super::error::ConfigError;
use super::model::{Fallback, PoolConfig};
use super::names::Outside;
use super::numbers;
use super::rule::RuleAction;
use super::rule_numbers;
use super::source::{At, Source};
use super::{Config, read, refused_lists};
use splice::difference::Difference;
use splice::ids::{ListenerId, PoolId, ServerId};

/// Whether the file has a listener, a pool or a server that has a number.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It has.
    InFile,
    /// An earlier version had; connections may name it.
    Past,
    /// Nobody has the number.
    Nobody,
}

impl Standing {
    /// In a version that does not have it.
    fn past(self) -> Self {
        match self {
            Standing::InFile | Standing::Past => Standing::Past,
            Standing::Nobody => Standing::Nobody,
        }
    }
}

/// Numbers of past listeners, pools and servers that connections still name.
#[derive(Clone, Debug, Default)]
pub struct Named {
    /// Of listeners.
    pub listeners: HashSet<u16>,
    /// Of pools.
    pub pools: HashSet<u16>,
    /// Of servers.
    pub servers: HashSet<u16>,
}

impl Named {
    /// Those that `other` has, too.
    #[must_use]
    pub fn and(&self, other: &Named) -> Named {
        Named {
            listeners: &self.listeners & &other.listeners,
            pools: &self.pools & &other.pools,
            servers: &self.servers & &other.servers,
        }
    }

    /// Adds those of `all` that `left_out` has not.
    pub fn add_others(&mut self, all: &Named, left_out: &Named) {
        self.listeners.extend(all.listeners.difference(&left_out.listeners));
        self.pools.extend(all.pools.difference(&left_out.pools));
        self.servers.extend(all.servers.difference(&left_out.servers));
    }
}

impl Config {
    /// All numbers that are past, whether or not connections name them.
    pub fn past(&self) -> Named {
        let past = |(id, standing): (usize, Standing)| (standing == Standing::Past).then_some(id as u16);
        let listeners = self.listeners.iter().map(|listener| listener.standing);
        let pools = self.pools.iter().map(|pool| pool.standing);
        let servers = self.servers.iter().map(|server| server.standing);
        Named {
            listeners: listeners.enumerate().filter_map(past).collect(),
            pools: pools.enumerate().filter_map(past).collect(),
            servers: servers.enumerate().filter_map(past).collect(),
        }
    }

    /// Reads and checks another version of the file, for an engine that runs with this one.
    ///
    /// # Errors
    /// As [`Config::load`]; and what differs that cannot change while the engine runs.
    pub fn reload(&self, path: impl AsRef<Path>) -> Result<(Config, Difference), ConfigError> {
        let (text, name) = read(path.as_ref())?;
        self.reload_text(&text, &name)
    }

    /// The same of a text; `name` is what errors call it.
    ///
    /// # Errors
    /// The same.
    pub fn reload_text(&self, text: &str, name: &str) -> Result<(Config, Difference), ConfigError> {
        self.go_on((text, name), Outside::new(&self.answers, Some(self)))
    }

    /// What else goes on from the version before; `is_new` if lists were read again.
    pub(super) fn take_over(&mut self, before: &Config, is_new: bool, name: &str) -> Result<(), ConfigError> {
        for list in self.lists.iter_mut().filter(|_| is_new) {
            if let Some(before) = before.lists.iter().find(|before| before.name == list.name) {
                list.go_on_from(before)
                    .map_err(|complaint| refused_lists(name, complaint))?;
            }
        }
        self.continue_classes(before);
        self.finish_table(name)?;
        self.make_choice_tables(Some(before));
        self.refuse_too_many(name)
    }

    /// The same configuration when of what is past no connection names any but these: nothing if that frees no number.
    pub fn without_past(&self, named: &Named) -> Option<(Config, Difference)> {
        let mut config = self.clone();
        let is_over = |standing, id: &u16, named: &HashSet<u16>| standing == Standing::Past && !named.contains(id);
        let listeners = config.listeners.iter_mut();
        let over: Vec<_> = listeners
            .filter(|it| is_over(it.standing, &it.id.0, &named.listeners))
            .collect();
        let mut count = over.len();
        for listener in over {
            (listener.standing, listener.default) = (Standing::Nobody, Fallback::Reject);
            listener.addresses.clear();
            listener.rules.clear();
        }
        // Past listeners lead to past pools, and these to past servers, which the next connection may choose.
        let led_to: HashSet<u16> = config
            .listeners
            .iter()
            .flat_map(|it| it.pools())
            .map(|pool| pool.0)
            .collect();
        for pool in &mut config.pools {
            if is_over(pool.standing, &pool.id.0, &named.pools) && !led_to.contains(&pool.id.0) {
                pool.standing = Standing::Nobody;
                pool.members.clear();
                count += 1;
            }
        }
        let members = config.pools.iter().flat_map(|pool| &pool.members);
        let chosen_from: HashSet<u16> = members.map(|member| member.server.0).collect();
        let mut difference = Difference::default();
        for server in &mut config.servers {
            if is_over(server.standing, &server.id.0, &named.servers) && !chosen_from.contains(&server.id.0) {
                server.standing = Standing::Nobody;
                difference.past_servers.push(server.id.0);
            }
        }
        count += difference.past_servers.len();
        let changed = |(new, old): (&PoolConfig, &PoolConfig)| (new.members != old.members).then_some(new.id.0);
        difference.pools = config.pools.iter().zip(&self.pools).filter_map(changed).collect();
        difference.past_groups = groups_of(self).difference(&groups_of(&config)).copied().collect();
        difference.past_groups.sort_unstable();
        add_moved(&mut difference, self, &config);
        config.make_choice_tables(Some(self));
        (count > 0).then_some((config, difference))
    }

    /// Whether something is there only for connections that name it.
    pub fn has_past(&self) -> bool {
        let past = |standing| standing == Standing::Past;
        self.servers.iter().any(|server| past(server.standing))
            || self.listeners.iter().any(|listener| past(listener.standing))
            || self.pools.iter().any(|pool| past(pool.standing))
    }

    /// Our addresses by the number that cores give them: listeners' and those to connect from, those of earlier versions first.
    pub fn addresses(&self) -> Vec<IpAddr> {
        let listeners = self.listeners.iter().flat_map(|listener| &listener.addresses);
        let locals = self.local_addresses();
        let all = (self.address_order.iter().copied())
            .chain(listeners.map(|address| address.ip))
            .chain(locals.map(|local| local.ip));
        let mut seen = HashSet::new();
        all.filter(|address| seen.insert(*address)).collect()
    }
}

/// The groups of source ports that servers have.
fn groups_of(config: &Config) -> HashSet<u16> {
    let servers = config.servers.iter();
    let there = servers.filter(|server| server.standing != Standing::Nobody);
    there.map(|server| server.group).collect()
}

/// A new version with the numbers of the one before.
pub(super) struct Continued {
    config: Config,
    /// By number in the new version.
    servers: Vec<ServerId>,
    pools: Vec<PoolId>,
    listeners: Vec<(ListenerId, Option<u16>)>,
    group: u16,
}

impl Continued {
    pub(super) fn of(old: &Config, new: Config, places: &[Place], source: &mut Source<'_>) -> Self {
        let groups = groups_of(old);
        let mut continued = Continued {
            servers: numbers::servers(old, &new, places, source),
            pools: numbers::pools(old, &new),
            listeners: numbers::listeners(old, &new),
            group: (0..=u16::MAX).find(|group| !groups.contains(group)).unwrap_or(0),
            config: new,
        }
        .renumbered();
        continued.config.address_order = old.addresses();
        continued.config.writable.clone_from(&old.writable);
        continued.refuse_room(old, source);
        continued
    }

    /// The items of the new version with their numbers.
    fn renumbered(mut self) -> Self {
        for (server, id) in self.config.servers.iter_mut().zip(&self.servers) {
            server.id = *id;
        }
        for (pool, id) in self.config.pools.iter_mut().zip(&self.pools) {
            pool.id = *id;
            for member in &mut pool.members {
                member.server = self.servers[member.server.index()];
            }
        }
        for (listener, (id, _)) in self.config.listeners.iter_mut().zip(&self.listeners) {
            listener.id = *id;
            for rule in &mut listener.rules {
                if let RuleAction::Pool(pool) = &mut rule.action {
                    *pool = self.pools[pool.index()];
                }
            }
            if let Fallback::Pool(pool) = &mut listener.default {
                *pool = self.pools[pool.index()];
            }
        }
        self
    }

    /// Complains about what memory would have to be set aside for that was not at the start.
    fn refuse_room(&self, old: &Config, source: &mut Source<'_>) {
        let (had, needs) = (old.needs(), self.config.needs());
        let listeners = At::root().key("listener");
        for (index, listener) in self.config.listeners.iter().enumerate() {
            let at = listeners.index(index);
            let is_first = |key: &str| {
                format!("is the first of its kind ({key}), for which memory is taken at start only; restart")
            };
            if !had.half_open && listener.needs_half_open() {
                source.complain(&at, is_first("bind or inspect_delay"));
            }
            if !had.forwarded_syns && listener.needs_forwarded_syns() {
                source.complain(&at.key("bind"), is_first("bind = \"syn\""));
            }
        }
        if (needs.headers && !had.headers)
            || (needs.sent_headers && !had.sent_headers)
            || (needs.transparent_sources && !had.transparent_sources)
        {
            let complaint =
                "has the first PROXY header or transparent server, for which memory is taken at start only; restart";
            source.complain(&At::root(), complaint);
        }
    }

    /// The old version with the new one's items in their places.
    pub(super) fn finish(self, old: &Config) -> (Config, Difference) {
        let mut config = self.config;
        let mut difference = Difference {
            group: self.group,
            ..Difference::default()
        };
        for server in &mut config.servers {
            match old
                .servers
                .get(server.id.index())
                .filter(|before| before.standing != Standing::Nobody)
            {
                Some(before) => {
                    server.group = before.group;
                    let locals = server.local.iter_mut().zip(&before.local);
                    let differ = locals.filter(|(local, before)| local != before);
                    differ.for_each(|(local, before)| *local = local.after(before));
                    if before.max_connections != server.max_connections {
                        difference.limits.push(server.id.0);
                    }
                    if (before.check, &before.content) != (server.check, &server.content) {
                        difference.checks.push(server.id.0);
                    }
                }
                None => {
                    server.group = self.group;
                    difference.new_servers.push(server.id.0);
                }
            }
        }
        config.servers = placed(config.servers, &old.servers, |server| {
            (server.id.0, &mut server.standing)
        });
        put_pools(&mut config, old, &mut difference);
        difference.new_rules = rule_numbers::go_on(&old.listeners, &mut config.listeners);
        for (listener, (_, before)) in config.listeners.iter().zip(&self.listeners) {
            let is_known = old
                .listeners
                .get(listener.id.index())
                .is_some_and(|of| of.standing != Standing::Nobody);
            if !is_known {
                difference.new_listeners.push((listener.id.0, *before));
            }
        }
        config.listeners = placed(config.listeners, &old.listeners, |listener| {
            (listener.id.0, &mut listener.standing)
        });
        withhold_from_past(&mut config);
        add_counted(&mut difference, old, &config);
        difference.new_servers.sort_unstable();
        add_moved(&mut difference, old, &config);
        difference.pools.sort_unstable();
        difference.new_pools.sort_unstable();
        difference.new_listeners.sort_unstable();
        (config, difference)
    }
}

/// Those who have gone from the file may be called, too, by connections of listeners that have.
fn withhold_from_past(config: &mut Config) {
    let listeners = config.listeners.iter().filter(|of| of.standing == Standing::InFile);
    let mut listened: HashMap<IpAddr, Vec<&RangeInclusive<u16>>> = HashMap::new();
    for address in listeners.flat_map(|listener| &listener.addresses) {
        listened.entry(address.ip).or_default().push(&address.ports);
    }
    let past = config
        .servers
        .iter_mut()
        .filter(|server| server.standing == Standing::Past);
    for local in past.flat_map(|server| &mut server.local) {
        for range in listened.get(&local.ip).into_iter().flatten() {
            local.withhold(range);
        }
    }
}

/// Puts the pools into their places among those that were there before.
fn put_pools(config: &mut Config, old: &Config, difference: &mut Difference) {
    for pool in &config.pools {
        let before = old.pools.get(pool.id.index());
        if before.is_none_or(|before| !before.chooses_as(pool)) {
            difference.pools.push(pool.id.0);
        }
        if before.is_none_or(|before| before.standing == Standing::Nobody) {
            difference.new_pools.push(pool.id.0);
        }
    }
    let pools = std::mem::take(&mut config.pools);
    config.pools = placed(pools, &old.pools, |pool| (pool.id.0, &mut pool.standing));
}

/// The items of the new version in their places, and in the places between them those that only the old one has. `what` says number
/// and standing of each.
fn placed<T: Clone>(items: Vec<T>, old: &[T], what: impl Fn(&mut T) -> (u16, &mut Standing)) -> Vec<T> {
    let mut new: Vec<(u16, T)> = (items.into_iter()).map(|mut item| (what(&mut item).0, item)).collect();
    new.sort_unstable_by_key(|(number, _)| *number);
    let mut new = new.into_iter().peekable();
    let mut all = Vec::with_capacity(old.len().max(new.len()));
    let past = |old: &T| {
        let mut item = old.clone();
        let standing = what(&mut item).1;
        *standing = standing.past();
        item
    };
    for (number, old) in old.iter().enumerate() {
        let is_there = new.next_if(|(place, _)| usize::from(*place) == number);
        all.push(is_there.map_or_else(|| past(old), |(_, item)| item));
    }
    // Numbers that nobody has had follow those that somebody has.
    all.extend(new.map(|(_, item)| item));
    all
}
