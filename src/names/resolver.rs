//! What is asked when, and what becomes of an answer. Pure: messages and times in, messages out.
//!
//! Each name and kind of record is asked for by itself, and again when it no longer holds. An answer to a question of the configuration is
//! put together of these records: addresses of a host, or of the hosts of a service.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use super::message::{self, Ask, Data, Heard, Kind, Reply};
use crate::config::{Answers, DnsConfig, Found, Question};
use crate::report::NameReport;

/// How long an answer holds at least and at most, whatever it says itself.
const TTL: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(3600));

/// How long it holds at most that a family has no address: the other has some.
const LONGEST_NOTHING: Duration = Duration::from_secs(60);

/// After a failure it is asked again.
const AGAIN: Duration = Duration::from_secs(5);

/// So many questions are under way at once.
const MOST_AT_ONCE: usize = 64;

/// Numbers that cannot be guessed.
pub type Random = Box<dyn FnMut() -> u16 + Send>;

type Key = (String, Kind);

/// What is known of a name and a kind.
struct Record {
    known: Option<Data>,
    /// It was answered or has failed since the start.
    is_asked: bool,
    /// The last answer was that there is nothing, which is not believed yet.
    is_withdrawn: bool,
    state: State,
}

impl Record {
    fn has_something(&self) -> bool {
        self.known.as_ref().is_some_and(|data| !data.is_empty())
    }

    fn due(&self) -> Instant {
        match &self.state {
            State::Due(at) => *at,
            State::Asking(asking) => asking.until,
        }
    }
}

#[derive(Clone, Debug)]
enum State {
    Due(Instant),
    Asking(Asking),
}

#[derive(Clone, Debug)]
struct Asking {
    token: u64,
    id: u16,
    /// The server that was asked first, and how many were tried since.
    first: usize,
    tries: usize,
    until: Instant,
    by_tcp: bool,
}

/// What is counted of a question.
#[derive(Clone, Debug, Default)]
struct Note {
    answered_at: Option<Instant>,
    failures: u64,
    refused: u64,
}

/// Asks all questions, and has the last good answers.
pub struct Resolver {
    dns: DnsConfig,
    servers: Vec<SocketAddr>,
    questions: BTreeSet<Question>,
    records: BTreeMap<Key, Record>,
    /// Records that wait for an answer, by token.
    asking: BTreeMap<u64, Key>,
    /// Addresses of each host before the start, or as they were answered since: a family that fails now keeps its servers, and so does a
    /// target that a service names again.
    hosts_before: BTreeMap<String, BTreeSet<IpAddr>>,
    answers: Answers,
    notes: BTreeMap<Question, Note>,
    /// The server that has answered last is asked first.
    preferred: usize,
    next_token: u64,
    random: Random,
}

impl Resolver {
    /// With answers of before, which hold until there are others. All is due `now`.
    pub fn new((dns, servers): (DnsConfig, Vec<SocketAddr>), known: Answers, random: Random) -> Self {
        let mut hosts_before: BTreeMap<String, BTreeSet<IpAddr>> = BTreeMap::new();
        for (question, all) in &known {
            for found in all {
                let [host, target] = [&question.name, &found.host];
                let host = if question.is_service { target } else { host };
                hosts_before.entry(host.clone()).or_default().insert(found.ip);
            }
        }
        Self {
            dns,
            servers,
            questions: BTreeSet::new(),
            records: BTreeMap::new(),
            asking: BTreeMap::new(),
            hosts_before,
            answers: known,
            notes: BTreeMap::new(),
            preferred: 0,
            next_token: 0,
            random,
        }
    }

    /// Asks these from now on; what is known of others is forgotten.
    pub fn set_questions(
        &mut self,
        dns: DnsConfig,
        servers: Vec<SocketAddr>,
        questions: BTreeSet<Question>,
        now: Instant,
    ) {
        (self.dns, self.servers, self.preferred) = (dns, servers, 0);
        self.answers.retain(|question, _| questions.contains(question));
        self.notes.retain(|question, _| questions.contains(question));
        for question in questions.difference(&self.questions) {
            self.notes.insert(question.clone(), Note::default());
        }
        self.questions = questions;
        self.settle(now);
    }

    /// What was known of a name before its record was there.
    fn known_before(&self, (name, kind): &Key) -> Option<Data> {
        let of_kind = |ip: &&IpAddr| ip.is_ipv4() == (*kind == Kind::A);
        let before = self.hosts_before.get(name).filter(|_| *kind != Kind::Srv)?;
        Some(Data::Addresses(before.iter().filter(of_kind).copied().collect()))
    }

    /// The kinds of addresses that servers can have.
    fn kinds(&self) -> impl Iterator<Item = Kind> + use<> {
        let kinds = [(Kind::A, self.dns.asks_v4), (Kind::Aaaa, self.dns.asks_v6)];
        kinds.into_iter().filter(|(_, asks)| *asks).map(|(kind, _)| kind)
    }

    /// The last good answers.
    pub fn answers(&self) -> &Answers {
        &self.answers
    }

    /// Whether each question has been answered, or has failed.
    pub fn is_settled(&self) -> bool {
        self.records.values().all(|record| record.is_asked)
    }

    /// Whether something is still to be heard of an [`Ask`].
    pub fn is_waiting(&self, token: u64) -> bool {
        self.asking.contains_key(&token)
    }

    /// When [`poll`](Self::poll) has something to do next; never without questions.
    pub fn next_due(&self) -> Option<Instant> {
        let is_full = self.asking.len() >= MOST_AT_ONCE;
        let waits = |record: &&Record| is_full && matches!(record.state, State::Due(_));
        let records = self.records.values().filter(|record| !waits(record));
        records.map(Record::due).min()
    }

    /// What is to be sent now.
    pub fn poll(&mut self, now: Instant) -> Vec<Ask> {
        let is_over = |record: &Record| matches!(&record.state, State::Asking(asking) if asking.until <= now);
        let over: Vec<Key> = self.keys(is_over);
        let mut asks: Vec<Ask> = over.into_iter().filter_map(|key| self.try_next(key, now)).collect();
        let is_due = |record: &Record| matches!(record.state, State::Due(at) if at <= now);
        let mut due = self.keys(is_due);
        // The longest wait is first: otherwise records that fail would keep the others waiting.
        due.sort_by_key(|key| self.records.get(key).map(|record| record.due()));
        for key in due {
            if self.asking.len() >= MOST_AT_ONCE {
                break;
            }
            asks.extend(self.ask(key, (self.preferred, 0), false, now));
        }
        asks
    }

    fn keys(&self, wanted: impl Fn(&Record) -> bool) -> Vec<Key> {
        let records = self.records.iter().filter(|(_, record)| wanted(record));
        records.map(|(key, _)| key.clone()).collect()
    }

    /// Something was heard of an [`Ask`]. Returns what is to be sent for that.
    pub fn hear(&mut self, token: u64, heard: Heard<'_>, now: Instant) -> Option<Ask> {
        let key = self.asking.get(&token)?.clone();
        let State::Asking(asking) = self.records.get(&key)?.state.clone() else {
            return None;
        };
        let reply = match heard {
            Heard::Gone => Ok(Reply::Failed),
            Heard::Message(bytes) => message::answer(bytes, asking.id, &key.0, key.1),
        };
        match reply {
            Err(message::Foreign) => {
                self.note(&key, |note| note.refused += 1);
                None
            }
            Ok(Reply::Truncated) if !asking.by_tcp => self.ask(key, (asking.first, asking.tries), true, now),
            Ok(Reply::Truncated | Reply::Failed) => self.try_next(key, now),
            Ok(Reply::Told(data, ttl)) => {
                self.preferred = self.server_of(asking.first, asking.tries);
                self.told(&key, data, ttl, now);
                None
            }
        }
    }

    fn server_of(&self, first: usize, tries: usize) -> usize {
        (first + tries).checked_rem(self.servers.len()).unwrap_or(0)
    }

    /// Asks the server whose turn it is.
    fn ask(&mut self, key: Key, (first, tries): (usize, usize), by_tcp: bool, now: Instant) -> Option<Ask> {
        self.forget_ask(&key);
        let id = (self.random)();
        let server = self.servers.get(self.server_of(first, tries)).copied();
        let (Some(server), Some(message)) = (server, message::question(id, &key.0, key.1)) else {
            self.failed(&key, now);
            return None;
        };
        let token = self.next_token;
        self.next_token += 1;
        let asking = Asking {
            token,
            id,
            first,
            tries,
            until: now + self.dns.timeout,
            by_tcp,
        };
        self.records.get_mut(&key)?.state = State::Asking(asking);
        self.asking.insert(token, key);
        Some(Ask {
            token,
            server,
            by_tcp,
            message,
        })
    }

    fn forget_ask(&mut self, key: &Key) {
        if let Some(State::Asking(asking)) = self.records.get(key).map(|record| &record.state) {
            self.asking.remove(&asking.token);
        }
    }

    /// A try has failed: the next, or it is given up for a while.
    fn try_next(&mut self, key: Key, now: Instant) -> Option<Ask> {
        let State::Asking(asking) = &self.records.get(&key)?.state else {
            return None;
        };
        let (first, tries) = (asking.first, asking.tries + 1);
        if tries < self.servers.len() * (1 + usize::from(self.dns.retries)) {
            return self.ask(key, (first, tries), false, now);
        }
        self.failed(&key, now);
        None
    }

    fn failed(&mut self, key: &Key, now: Instant) {
        self.forget_ask(key);
        if let Some(record) = self.records.get_mut(key) {
            (record.is_asked, record.state) = (true, State::Due(now + AGAIN));
        }
        self.note(key, |note| note.failures += 1);
        self.changed(key, now);
    }

    fn told(&mut self, key: &Key, data: Data, ttl: Option<Duration>, now: Instant) {
        self.forget_ask(key);
        let holds = if data.is_empty() {
            self.told_nothing(key, data, ttl, now)
        } else {
            self.told_something(key, data);
            self.note(key, |note| note.answered_at = Some(now));
            ttl.unwrap_or(AGAIN).clamp(TTL.0, TTL.1)
        };
        if let Some(record) = self.records.get_mut(key) {
            record.state = State::Due(now + holds);
        }
        self.changed(key, now);
    }

    fn told_something(&mut self, key: &Key, data: Data) {
        if let (Data::Addresses(now), Some(before)) = (&data, self.hosts_before.get_mut(&key.0)) {
            before.retain(|ip| ip.is_ipv4() != (key.1 == Kind::A));
            before.extend(now);
        }
        for ((_, kind), record) in self.of_name(&key.0) {
            if *kind == key.1 {
                (record.known, record.is_asked, record.is_withdrawn) = (Some(data.clone()), true, false);
            } else if std::mem::take(&mut record.is_withdrawn) {
                // The name is there, so the other family really has nothing.
                record.known = Some(Data::Addresses(BTreeSet::new()));
            }
        }
    }

    /// Nothing is no answer as long as the other family does not say that the name is there: one mistake in a zone would take
    /// all servers away. Returns how long that holds.
    fn told_nothing(&mut self, key: &Key, data: Data, ttl: Option<Duration>, now: Instant) -> Duration {
        let mut withdraws = false;
        for ((_, kind), record) in self.of_name(&key.0) {
            if *kind != key.1 {
                continue;
            }
            record.is_asked = true;
            if record.has_something() {
                withdraws = !std::mem::replace(&mut record.is_withdrawn, true);
            } else {
                record.known = Some(data.clone());
            }
        }
        let (mut all_asked, mut is_there) = (true, false);
        for (_, record) in self.of_name(&key.0) {
            all_asked &= record.is_asked;
            is_there |= record.has_something() && !record.is_withdrawn;
            if withdraws && !record.is_withdrawn && matches!(record.state, State::Due(_)) {
                record.state = State::Due(now);
            }
        }
        if all_asked && !is_there {
            self.note(key, |note| note.failures += 1);
        }
        match ttl {
            Some(ttl) if is_there && !withdraws => ttl.clamp(TTL.0, LONGEST_NOTHING),
            _ => AGAIN,
        }
    }

    /// The records of a name.
    fn of_name(&mut self, name: &str) -> impl Iterator<Item = (&Key, &mut Record)> {
        let first = (name.to_owned(), Kind::A);
        let last = (name.to_owned(), Kind::Srv);
        self.records.range_mut(first..=last)
    }

    /// Notes it of all questions that a record is for.
    fn note(&mut self, key: &Key, note: impl Fn(&mut Note)) {
        let of_key = self
            .notes
            .iter_mut()
            .filter(|(question, _)| is_for(&self.records, question, key));
        of_key.for_each(|(_, of_question)| note(of_question));
    }

    /// What the records of a host say now.
    fn addresses_of(&self, name: &str) -> BTreeSet<IpAddr> {
        let record = |kind| self.records.get(&(name.to_owned(), kind))?.known.as_ref();
        let addresses = [Kind::A, Kind::Aaaa].into_iter().filter_map(record);
        let addresses = addresses.filter_map(|data| match data {
            Data::Addresses(addresses) => Some(addresses),
            Data::Targets(_) => None,
        });
        addresses.flatten().copied().collect()
    }

    /// The records that a question needs.
    fn keys_of(&self, question: &Question) -> Vec<Key> {
        let of_host = |name: &str| self.kinds().map(|kind| (name.to_owned(), kind)).collect::<Vec<_>>();
        if !question.is_service {
            return of_host(&question.name);
        }
        let of_targets = targets(&self.records, question).flat_map(|target| of_host(&target.name));
        [(question.name.clone(), Kind::Srv)]
            .into_iter()
            .chain(of_targets)
            .collect()
    }

    /// Has a record for whatever is needed, and for nothing else; and answers the questions whose records are there.
    fn settle(&mut self, now: Instant) {
        let needed: BTreeSet<Key> = self
            .questions
            .iter()
            .flat_map(|question| self.keys_of(question))
            .collect();
        self.records.retain(|key, _| needed.contains(key));
        self.asking.retain(|_, key| needed.contains(key));
        for key in needed
            .iter()
            .filter(|key| !self.records.contains_key(*key))
            .collect::<Vec<_>>()
        {
            let record = Record {
                known: self.known_before(key),
                is_asked: false,
                is_withdrawn: false,
                state: State::Due(now),
            };
            self.records.insert(key.clone(), record);
        }
        self.answer(|_, _| true);
    }

    fn answer(&mut self, wanted: impl Fn(&Self, &Question) -> bool) {
        let questions = self.questions.iter().filter(|question| wanted(self, question));
        let answered: Vec<_> = questions.filter_map(|question| self.answer_to(question)).collect();
        self.answers.extend(answered);
    }

    /// A record has changed, or was asked for: which records are needed follows from those of services only.
    fn changed(&mut self, key: &Key, now: Instant) {
        match key.1 {
            Kind::Srv => self.settle(now),
            Kind::A | Kind::Aaaa => self.answer(|this, question| is_for(&this.records, question, key)),
        }
    }

    /// The answer to a question, if what it needs is there and says something.
    fn answer_to(&self, question: &Question) -> Option<(Question, BTreeSet<Found>)> {
        let keys = self.keys_of(question);
        let records: Vec<&Record> = keys.iter().filter_map(|key| self.records.get(key)).collect();
        if records.iter().any(|record| record.known.is_none() && !record.is_asked) {
            return None;
        }
        let of_host = |name: &str, found: &dyn Fn(IpAddr) -> Found| -> Vec<Found> {
            self.addresses_of(name).into_iter().map(found).collect()
        };
        let found = |priority, weight, port, host: &str| {
            let host = host.to_owned();
            move |ip| Found {
                priority,
                ip,
                port,
                weight,
                host: host.clone(),
            }
        };
        let of_target = |target: &message::Target| {
            of_host(
                &target.name,
                &found(target.priority, target.weight, target.port, &target.name),
            )
        };
        let answer: BTreeSet<Found> = match question.is_service {
            false => of_host(&question.name, &found(0, 0, 0, "")).into_iter().collect(),
            true => targets(&self.records, question).flat_map(of_target).collect(),
        };
        (!answer.is_empty()).then(|| (question.clone(), answer))
    }

    /// What there is of each question.
    pub fn report(&self, now: Instant) -> Vec<NameReport> {
        let of = |(question, note): (&Question, &Note)| NameReport {
            name: question.name.clone(),
            addresses: self.answers.get(question).map_or(0, |found| found.len() as u64),
            age_ms: note
                .answered_at
                .map(|at| now.saturating_duration_since(at).as_millis() as u64),
            failures: note.failures,
            refused: note.refused,
        };
        self.notes.iter().map(of).collect()
    }
}

fn is_for(records: &BTreeMap<Key, Record>, question: &Question, key: &Key) -> bool {
    question.name == key.0 || targets(records, question).any(|target| target.name == key.0)
}

/// The targets of a service, as far as they are known.
fn targets<'r>(
    records: &'r BTreeMap<Key, Record>,
    question: &Question,
) -> impl Iterator<Item = &'r message::Target> + use<'r> {
    let key = (question.name.clone(), Kind::Srv);
    let known = records
        .get(&key)
        .filter(|_| question.is_service)
        .and_then(|record| record.known.as_ref());
    let targets = known.and_then(|data| match data {
        Data::Targets(targets) => Some(targets),
        Data::Addresses(_) => None,
    });
    targets.into_iter().flatten()
}
