//! The rules of the configuration as a selector.

use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;

use netfcts::leg::mapped;

use crate::config::{
    AcceptProxy, ClassRule, Config, CoreId, Fallback, HostPattern, Match, Rule, RuleAction, RuleId, ServerId,
};
use crate::guard::{ClientTable, Hits, ListHits};
use splice::callbacks::{Arrival, FirstPayload, Refusal, SelectServer, Selection, SelectorFactory};

use super::known::{Known, MOST_VERDICTS, Verdict, all, opposite, set_of, verdicts};
use super::names::{Candidates, NameIndex, NameSource};
use super::number::first_number;
use super::{Sought, http, ldap, postgres, tls};

/// Chooses by the rules of each listener, in their order; by its default when no rule matches.
///
/// Rules that refuse by what a SYN tells are asked then already, as far as no rule before them has to wait for a payload.
///
/// A rule is passed over only when it can no longer match. As long as one may still match, the rules behind it have to
/// wait: [`Selection::NeedMore`]. When the payload is complete, a rule that is still waiting does not match.
///
/// For the same payload the answer is the same however it was cut into segments. Work is proportional to the bytes so far,
/// and each protocol is looked for at most once per call; nothing is allocated. Rules for host names that stand behind each
/// other are found by the name, so that their number costs nothing.
#[derive(Clone, Debug)]
pub struct RuleSelector {
    /// By listener.
    listeners: Vec<ListenerRules>,
    /// By pool: its servers in the order of the file.
    pools: Vec<Vec<ServerId>>,
    /// The rule that made the last answer.
    chosen: Option<RuleId>,
    /// Some listener has rules that are asked before there is a payload, or gives classes, or there are lists, whose hits are counted then.
    asks_at_syn: bool,
    /// What answers who a client is.
    clients: Option<Arc<ClientTable>>,
    /// By list: where cores count.
    lists: Vec<Arc<ListHits>>,
    /// Where this core does, and behind them those in no list; empty before it is one core's.
    hits: Vec<Arc<Hits>>,
}

/// What a listener asks of a first payload.
#[derive(Clone, Debug)]
struct ListenerRules {
    /// In the order of the file.
    rules: Vec<Rule>,
    /// Of those rules that are found by a name, in their order.
    indices: Vec<NameIndex>,
    default: Fallback,
    /// Rules that give classes.
    classes: Vec<ClassRule>,
    /// So many of the rules are asked before there is a payload: to the last that can refuse then.
    at_syn: usize,
    /// So many of them are not asked again at the payload: the first ones, as long as they can only refuse.
    settled: usize,
    /// By set of clients: what is known at the SYN. See [`verdicts`].
    verdicts: Option<Arc<[Verdict]>>,
}

impl RuleSelector {
    /// A selector for all listeners of `config`.
    pub fn new(config: &Config) -> Self {
        let mut listeners = config
            .listeners()
            .iter()
            .map(|listener| {
                let (at_syn, settled) = match listener.accept {
                    AcceptProxy::Off => asked_at_syn(&listener.rules),
                    // Who the client is, and where it has connected to, the header says.
                    AcceptProxy::Optional | AcceptProxy::Required => (0, 0),
                };
                ListenerRules {
                    rules: listener.rules.clone(),
                    indices: NameIndex::of_rules(&listener.rules),
                    default: listener.default,
                    classes: listener.classes.clone(),
                    at_syn,
                    settled,
                    verdicts: None,
                }
            })
            .collect::<Vec<_>>();
        if let Some(table) = config.client_table() {
            let mut room = MOST_VERDICTS;
            for listener in &mut listeners {
                listener.verdicts = verdicts(listener.rules_at_syn(), &listener.classes, table, &mut room);
            }
        }
        let pools = config
            .pools()
            .iter()
            .map(|pool| pool.members.iter().map(|member| member.server).collect())
            .collect();
        let is_asked = |listener: &ListenerRules| listener.at_syn > 0 || !listener.classes.is_empty();
        let are_asked = listeners.iter().any(is_asked);
        Self {
            listeners,
            pools,
            chosen: None,
            asks_at_syn: are_asked || !config.lists().is_empty(),
            clients: config.client_table().cloned(),
            lists: config.lists().iter().map(|list| Arc::clone(&list.hits)).collect(),
            hits: Vec::new(),
        }
    }

    /// What the first of all rules says that matches or may still match, and which it is.
    fn ask(&self, listener: &ListenerRules, payload: &mut Findings<'_>) -> Option<(Selection, RuleId)> {
        let mut next = listener.settled;
        for index in &listener.indices {
            let Range { start, end } = index.rules;
            let answer = self.first_of(next..start, listener, payload);
            if answer.is_some() {
                return answer;
            }
            let answer = match payload.candidates(index) {
                Sought::Found(Some(candidates)) => self.first_of(candidates, listener, payload),
                // Rules that want a name do not match without one.
                Sought::Absent => None,
                // A rule may be passed over before the name is known, for its path or protocol.
                Sought::NeedMore | Sought::Found(None) => self.first_of(start..end, listener, payload),
            };
            if answer.is_some() {
                return answer;
            }
            next = end;
        }
        self.first_of(next..listener.rules.len(), listener, payload)
    }

    /// The same of the rules at these places, which ascend.
    fn first_of(
        &self,
        places: impl Iterator<Item = usize>,
        listener: &ListenerRules,
        payload: &mut Findings<'_>,
    ) -> Option<(Selection, RuleId)> {
        for rule in places.filter_map(|place| listener.rules.get(place)) {
            match self.apply(rule, payload) {
                Sought::Found(selection) => return Some((selection, rule.id)),
                Sought::NeedMore if !payload.complete => return Some((Selection::NeedMore, rule.id)),
                Sought::NeedMore | Sought::Absent => (),
            }
        }
        None
    }

    /// The same before there is a payload: the class of somebody, or how the first rule refuses that matches.
    #[inline]
    fn ask_at_syn(&mut self, arrival: &Arrival) -> Result<Option<u16>, Refusal> {
        let clients = self.clients.as_deref().map(|table| (table, set_of(table, arrival)));
        // What follows a SYN belongs to it.
        if arrival.is_syn()
            && let Some((table, set)) = clients
            && let Some(lists) = table.lists_of(set)
        {
            let count = |list: &u16| {
                if let Some(hits) = self.hits.get(usize::from(*list)) {
                    hits.add();
                }
            };
            count(&lists.first);
            lists.others.iter().for_each(count);
        }
        let Some(listener) = self.listeners.get(arrival.listener.index()) else {
            return Ok(None);
        };
        let known = Known {
            clients,
            listener_port: arrival.local_port,
        };
        let asked;
        let verdict = match known.verdict(listener.verdicts.as_deref()) {
            Some(verdict) => verdict,
            None => {
                asked = known.ask(listener.rules_at_syn(), &listener.classes);
                &asked
            }
        };
        match verdict.refusal {
            None => Ok(verdict.class),
            Some((rule, refusal)) => {
                self.chosen = Some(rule);
                Err(refusal)
            }
        }
    }

    fn apply(&self, rule: &Rule, payload: &mut Findings<'_>) -> Sought<Selection> {
        if rule.matches == Match::FirstNumber {
            return self.by_number(rule, payload);
        }
        match payload.matches(&rule.matches) {
            Sought::Found(true) => Sought::Found(match rule.action {
                RuleAction::Pool(pool) => Selection::Pool(pool),
                RuleAction::Refuse(Refusal::Reject) => Selection::Reject,
                // Whose address a list has got since the handshake has a window already.
                RuleAction::Refuse(Refusal::Drop | Refusal::Tarpit) => Selection::Drop,
            }),
            Sought::Found(false) | Sought::Absent => Sought::Absent,
            Sought::NeedMore => Sought::NeedMore,
        }
    }

    fn by_number(&self, rule: &Rule, payload: &Findings<'_>) -> Sought<Selection> {
        let pool = rule.pool().and_then(|pool| self.pools.get(pool.index()));
        let servers = pool.map_or(&[][..], Vec::as_slice);
        // A checked configuration has at most 65535 servers, and no pool without one.
        match first_number(payload.bytes, payload.complete, servers.len() as u16) {
            Sought::Found(n) => servers
                .get(usize::from(n))
                .map_or(Sought::Absent, |server| Sought::Found(Selection::Server(*server))),
            Sought::NeedMore => Sought::NeedMore,
            Sought::Absent => Sought::Absent,
        }
    }
}

impl ListenerRules {
    fn rules_at_syn(&self) -> &[Rule] {
        self.rules.get(..self.at_syn).unwrap_or_default()
    }
}

/// Each core gets a copy.
impl SelectorFactory for RuleSelector {
    type Selector = Self;

    fn selector(&self, core: CoreId) -> Self {
        Self {
            hits: {
                let lists = self.lists.iter().map(|list| list.of_core(core));
                lists.chain([Arc::default()]).collect()
            },
            ..self.clone()
        }
    }
}

impl SelectServer for RuleSelector {
    fn select(&mut self, payload: &FirstPayload<'_>) -> Selection {
        self.chosen = None;
        let Some(listener) = self.listeners.get(payload.listener.index()) else {
            return Selection::Reject;
        };
        match self.ask(listener, &mut Findings::new(payload, self.clients.as_deref())) {
            // The rule may not match after all, and the default be taken.
            Some((Selection::NeedMore, _)) => return Selection::NeedMore,
            Some((selection, rule)) => {
                self.chosen = Some(rule);
                return selection;
            }
            None => {}
        }
        match listener.default {
            Fallback::Pool(pool) => Selection::Pool(pool),
            Fallback::Reject => Selection::Reject,
        }
    }

    #[inline]
    fn admit(&mut self, arrival: &Arrival) -> Result<(), Refusal> {
        if self.asks_at_syn {
            self.ask_at_syn(arrival)?;
        }
        Ok(())
    }

    #[inline]
    fn admit_to_class(&mut self, arrival: &Arrival) -> Result<Option<u16>, Refusal> {
        if self.asks_at_syn {
            return self.ask_at_syn(arrival);
        }
        Ok(None)
    }

    fn class(&mut self, arrival: &Arrival) -> Option<u16> {
        let listener = self.listeners.get(arrival.listener.index())?;
        if listener.classes.is_empty() {
            return None;
        }
        let known = Known {
            clients: self.clients.as_deref().map(|table| (table, set_of(table, arrival))),
            listener_port: arrival.local_port,
        };
        match known.verdict(listener.verdicts.as_deref()) {
            Some(verdict) => verdict.class,
            None => known.class(&listener.classes),
        }
    }

    #[inline]
    fn looks_ahead(&self) -> bool {
        self.asks_at_syn && self.clients.is_some()
    }

    #[inline]
    fn prefetch_client(&self, peer: u128) {
        if let Some(table) = &self.clients {
            table.prefetch(peer);
        }
    }

    #[inline]
    fn look_ahead<'s>(&mut self, clients: impl Iterator<Item = (u128, &'s mut Option<u16>)>) {
        if let Some(table) = &self.clients {
            table.look_ahead(clients);
        }
    }

    fn rule(&self) -> Option<RuleId> {
        self.chosen
    }
}

/// How many of a listener's rules are asked at a SYN, and how many of these have said by then all that they can say.
fn asked_at_syn(rules: &[Rule]) -> (usize, usize) {
    let refuses = |rule: &Rule| rule.pool().is_none() && rule.matches.is_known_at_syn();
    let asked = rules.iter().rposition(refuses).map_or(0, |last| last + 1);
    (asked, rules.iter().take_while(|rule| refuses(rule)).count())
}

/// A payload, and what has been found in it so far.
struct Findings<'a> {
    client: IpAddr,
    listener_port: u16,
    table: Option<&'a ClientTable>,
    /// The set that the client is in, once a rule has asked for it.
    set: Option<u16>,
    bytes: &'a [u8],
    complete: bool,
    http: Option<Sought<http::Request<'a>>>,
    host: Option<Sought<&'a [u8]>>,
    server_name: Option<Sought<tls::ServerName>>,
    protocols: Option<Sought<tls::Protocols>>,
    bind_name: Option<Sought<&'a [u8]>>,
    startup: Option<Sought<postgres::Startup<'a>>>,
}

impl<'a> Findings<'a> {
    fn new(payload: &FirstPayload<'a>, table: Option<&'a ClientTable>) -> Self {
        Self {
            client: payload.client.ip(),
            listener_port: payload.local.port(),
            table,
            set: None,
            bytes: payload.bytes,
            complete: payload.complete,
            http: None,
            host: None,
            server_name: None,
            protocols: None,
            bind_name: None,
            startup: None,
        }
    }

    /// What was known at the SYN.
    fn known(&mut self) -> Known<'a> {
        let client = self.client;
        let clients = self.table.map(|table| {
            let set = *self.set.get_or_insert_with(|| table.set_of(mapped(client)));
            (table, set)
        });
        Known {
            clients,
            listener_port: self.listener_port,
        }
    }

    fn matches(&mut self, wanted: &Match) -> Sought<bool> {
        let bytes = self.bytes;
        match wanted {
            Match::Http { host, path } => self.http_matches(host.as_ref(), path.as_deref()),
            Match::Tls { sni, alpn } => self.tls_matches(sni.as_ref(), alpn.as_deref()),
            Match::Prefix(prefix) => begins_with(bytes, prefix),
            Match::Regex(regex) => match regex.is_match(bytes, self.complete) {
                Some(is_match) => Sought::Found(is_match),
                None => Sought::NeedMore,
            },
            Match::LdapBind(wanted) => {
                let name = *self.bind_name.get_or_insert_with(|| ldap::bind_name(bytes));
                name.map(|name| wanted.matches(name))
            }
            Match::Postgres { user, database } => {
                let startup = *self.startup.get_or_insert_with(|| postgres::startup(bytes));
                startup.map(|startup| user.matches(startup.user) && database.matches(startup.database))
            }
            Match::SslRequest => postgres::encryption_request(bytes).map(|()| true),
            // It names a server, not only a pool: see `by_number`.
            Match::FirstNumber => Sought::Absent,
            Match::Client(_) | Match::ListenerPort(_) => self.known().at_syn(wanted),
            Match::All(parts) => all(parts.iter().map(|part| self.matches(part))),
            Match::Not(part) => match self.matches(part) {
                // Nothing more will come: it does not match.
                Sought::NeedMore if self.complete => Sought::Found(true),
                answer => opposite(answer),
            },
        }
    }

    fn tls_matches(&mut self, sni: Option<&HostPattern>, alpn: Option<&str>) -> Sought<bool> {
        let bytes = self.bytes;
        let name = sni.map_or(Sought::Found(true), |wanted| {
            self.server_name().map(|name| wanted.matches(name.as_bytes()))
        });
        let protocol = alpn.map_or(Sought::Found(true), |wanted| {
            let protocols = self.protocols.get_or_insert_with(|| tls::protocols(bytes));
            let is_wanted = |offered: &[u8]| offered == wanted.as_bytes();
            protocols.as_ref().map(|protocols| protocols.iter().any(is_wanted))
        });
        // As soon as one of them is certain not to be as wanted, the other does not matter.
        match (name, protocol) {
            (Sought::Absent | Sought::Found(false), _) | (_, Sought::Absent | Sought::Found(false)) => Sought::Absent,
            (Sought::NeedMore, _) | (_, Sought::NeedMore) => Sought::NeedMore,
            (Sought::Found(true), Sought::Found(true)) => Sought::Found(true),
        }
    }

    fn http_matches(&mut self, host: Option<&HostPattern>, path: Option<&str>) -> Sought<bool> {
        let request = match self.request() {
            Sought::Found(request) => request,
            Sought::NeedMore => return Sought::NeedMore,
            Sought::Absent => return Sought::Absent,
        };
        if path.is_some_and(|prefix| !request.path().is_some_and(|path| path.starts_with(prefix))) {
            return Sought::Found(false);
        }
        host.map_or(Sought::Found(true), |pattern| {
            self.host().map(|host| pattern.matches(host))
        })
    }

    /// The rules of `index` that may match the payload's name.
    fn candidates<'i>(&mut self, index: &'i NameIndex) -> Sought<Option<Candidates<'i>>> {
        match index.source {
            NameSource::Host => self.host().map(|host| index.candidates(host)),
            NameSource::ServerName => self.server_name().map(|name| index.candidates(name.as_bytes())),
        }
    }

    fn request(&mut self) -> Sought<http::Request<'a>> {
        *self.http.get_or_insert_with(|| http::Request::parse(self.bytes))
    }

    fn host(&mut self) -> Sought<&'a [u8]> {
        let request = self.request();
        *self.host.get_or_insert_with(|| match request {
            Sought::Found(request) => request.host(),
            Sought::NeedMore => Sought::NeedMore,
            Sought::Absent => Sought::Absent,
        })
    }

    fn server_name(&mut self) -> Sought<&tls::ServerName> {
        let bytes = self.bytes;
        self.server_name.get_or_insert_with(|| tls::server_name(bytes)).as_ref()
    }
}

fn begins_with(bytes: &[u8], prefix: &[u8]) -> Sought<bool> {
    let both = bytes.len().min(prefix.len());
    if bytes[..both] != prefix[..both] {
        Sought::Absent
    } else if both == prefix.len() {
        Sought::Found(true)
    } else {
        Sought::NeedMore
    }
}
