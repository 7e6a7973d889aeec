//! Servers that the file names: what is asked of DNS, what it has answered, and which addresses of an answer are used.
//!
//! A configuration is the text of its file and the present answers. An address that DNS answers with passes the same checks as one
//! in the file; one that does not is left out with the checks' own sentence, and nothing else is refused because of it.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use splice::difference::Difference;
use splice::settings::SendProxy;

use super::check::{self, Place};
use super::continued::Continued;
use super::error::ConfigError;
use super::lists::ListConfig;
use super::local_address::LocalAddress;
use super::source::{Source, Unusable};
use super::{Config, Standing};

/// The most servers that one entry of the file becomes: an answer of so many AAAA records fits into one datagram of 1232 bytes.
pub const MOST_SERVERS: usize = 32;

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Question {
    /// In lower case, without the last dot.
    pub name: String,
    /// For SRV records (RFC 2782), and for the addresses of their targets; else for addresses.
    pub is_service: bool,
}

/// A server that is in an answer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Found {
    /// Of its SRV record; the least is served first.
    pub priority: u16,
    /// Its address.
    pub ip: IpAddr,
    /// Of its SRV record; 0 in an answer of addresses.
    pub port: u16,
    /// Of its SRV record.
    pub weight: u16,
    /// The target of its SRV record; empty in an answer of addresses.
    pub host: String,
}

/// The last good answer to each question.
pub type Answers = BTreeMap<Question, BTreeSet<Found>>;

/// An entry of `servers` that names its servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedServers {
    /// Its name in the file: its servers are called `NAME@ADDRESS`.
    pub name: String,
    /// What is asked.
    pub question: Question,
    /// Where its servers listen; none if the answer says it.
    pub port: Option<u16>,
    /// Whether its servers are.
    pub transparent: bool,
    /// What they are sent first.
    pub announce: SendProxy,
    /// From where they are called, if they are of the family that has more addresses.
    pub local: Vec<LocalAddress>,
    /// What is used of the answer.
    pub used: Vec<Found>,
    /// What is not, and why.
    pub unusable: Vec<(SocketAddr, String)>,
}

impl NamedServers {
    /// Where a server that was found listens.
    pub(super) fn address_of(&self, found: &Found) -> SocketAddr {
        SocketAddr::new(found.ip, self.port.unwrap_or(found.port))
    }
}

/// `[dns]`: who is asked, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsConfig {
    /// The name servers; empty for those of `/etc/resolv.conf`.
    pub servers: Vec<SocketAddr>,
    /// How long one try waits for its answer.
    pub timeout: Duration,
    /// How many more tries each server gets.
    pub retries: u8,
    /// Whether servers can have IPv4 addresses.
    pub asks_v4: bool,
    /// Whether they can have IPv6 addresses.
    pub asks_v6: bool,
}

/// The text that a configuration was made of, and what errors call it. Not compared: two texts may say the same.
#[derive(Clone, Debug, Default)]
pub(super) struct Origin(Arc<(String, String)>);

impl Origin {
    pub(super) fn text(&self) -> &str {
        &self.0.0
    }
}

impl PartialEq for Origin {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Origin {}

/// What a version of the file is read with.
pub(super) struct Outside<'a> {
    answers: &'a Answers,
    before: Option<&'a Config>,
    /// The lists as they were read before; none to read them.
    pub(super) lists: Option<&'a [ListConfig]>,
    unusable: BTreeMap<(usize, SocketAddr), String>,
}

impl<'a> Outside<'a> {
    pub(super) fn new(answers: &'a Answers, before: Option<&'a Config>) -> Self {
        Self {
            answers,
            before,
            lists: None,
            unusable: BTreeMap::new(),
        }
    }

    /// Leaves addresses out from now on; whether there are some that were not.
    fn leave_out(&mut self, unusable: Vec<Unusable>) -> bool {
        let before = self.unusable.len();
        unusable.into_iter().for_each(|(answer, why)| {
            self.unusable.entry(answer).or_insert(why);
        });
        self.unusable.len() > before
    }

    /// What an entry has of its answer, and what it was before if nothing of the answer can be used. Of more servers than there may
    /// be, those stay that are there.
    pub(super) fn fill(&self, entry: usize, pool: &str, named: &mut NamedServers) {
        let pools = self.before.into_iter().flat_map(|config| &config.pools);
        let in_file = pools.filter(|of| of.standing == Standing::InFile && of.name == pool);
        let mut entries = in_file.flat_map(|pool| &pool.names);
        let before = entries.find(|of| of.name == named.name && of.question == named.question);
        let before = before.map_or(&[][..], |before| &before.used);
        let mut seen = HashSet::new();
        let mut usable = |found: &&Found| {
            let address = named.address_of(found);
            seen.insert(address) && !self.unusable.contains_key(&(entry, address))
        };
        let answer = self.answers.get(&named.question).into_iter().flatten();
        let mut used: Vec<Found> = answer.filter(&mut usable).cloned().collect();
        if used.is_empty() {
            used = before.iter().filter(usable).cloned().collect();
        }
        if used.len() > MOST_SERVERS {
            let known: HashSet<(IpAddr, u16)> = before.iter().map(|found| (found.ip, found.port)).collect();
            used.sort_by_key(|found| !known.contains(&(found.ip, found.port)));
            used.truncate(MOST_SERVERS);
            used.sort();
        }
        named.used = used;
        let of_entry = self
            .unusable
            .range((entry, LEAST)..)
            .take_while(|((of, _), _)| *of == entry);
        named.unusable = of_entry.map(|((_, address), why)| (*address, why.clone())).collect();
    }
}

/// The first of all addresses in their order.
const LEAST: SocketAddr = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), 0);

impl Config {
    /// Checks the text of a file with these answers; `name` is what errors call it.
    ///
    /// # Errors
    /// As [`Config::parse`].
    pub fn parse_with(text: &str, name: &str, answers: &Answers) -> Result<Self, ConfigError> {
        let mut outside = Outside::new(answers, None);
        let mut config = loop {
            let mut source = Source::parse(text, name)?;
            let (config, _) = check::check(&mut source, &outside)?;
            if !outside.leave_out(source.take_unusable()) {
                break config;
            }
        };
        config.remember(text, name, answers);
        config.finish_table(name)?;
        config.make_choice_tables(None);
        Ok(config)
    }

    /// The same file with these answers, for an engine that has not begun.
    ///
    /// # Errors
    /// As [`Config::parse`]: a file that it names has changed.
    pub fn resolved(self, answers: &Answers) -> Result<Self, ConfigError> {
        if self.names().next().is_none() {
            return Ok(self);
        }
        Self::parse_with(&self.origin.0.0, &self.origin.0.1, answers)
    }

    /// The same file as it was read last, with these answers, for an engine that runs with this one.
    ///
    /// # Errors
    /// As [`Config::reload`].
    pub fn with_answers(&self, answers: &Answers) -> Result<(Config, Difference), ConfigError> {
        let other = self.answered(self, answers)?;
        Ok(other.unwrap_or_else(|| (self.clone(), Difference::default())))
    }

    /// A version that goes on from this one, made again with these answers, of its file and its lists as they were read; nothing if it
    /// asks nothing.
    ///
    /// # Errors
    /// As [`Config::reload`].
    pub fn answered(&self, new: &Config, answers: &Answers) -> Result<Option<(Config, Difference)>, ConfigError> {
        if new.names().next().is_none() {
            return Ok(None);
        }
        let (text, name) = &*new.origin.0;
        let mut outside = Outside::new(answers, Some(self));
        outside.lists = Some(&new.lists);
        self.go_on((text, name), outside).map(Some)
    }

    /// Another version of the file, or of the answers, whose numbers go on from this one's.
    pub(super) fn go_on(
        &self,
        (text, name): (&str, &str),
        mut outside: Outside<'_>,
    ) -> Result<(Config, Difference), ConfigError> {
        let continued = loop {
            let mut source = Source::parse(text, name)?;
            let (new, places): (Config, Vec<Place>) = check::check(&mut source, &outside)?;
            self.refuse_other_parts(&mut source, &new);
            let continued = Continued::of(self, new, &places, &mut source);
            source.checked()?;
            if !outside.leave_out(source.take_unusable()) {
                break continued;
            }
        };
        let (mut config, difference) = continued.finish(self);
        config.remember(text, name, outside.answers);
        config.take_over(self, outside.lists.is_none(), name)?;
        Ok((config, difference))
    }

    /// What another version needs is kept of this one, and what is shown of it.
    fn remember(&mut self, text: &str, name: &str, answers: &Answers) {
        self.origin = Origin(Arc::new((text.to_owned(), name.to_owned())));
        let questions = self.questions();
        self.answers = answers.clone();
        self.answers.retain(|question, _| questions.contains(question));
    }

    /// What is asked of DNS, each once.
    pub fn questions(&self) -> BTreeSet<Question> {
        self.names().map(|(_, named)| named.question.clone()).collect()
    }

    /// The entries of the file that name their servers, with their pools.
    pub fn names(&self) -> impl Iterator<Item = (&str, &NamedServers)> {
        let pools = self.pools.iter().filter(|pool| pool.standing == Standing::InFile);
        pools.flat_map(|pool| pool.names.iter().map(|named| (pool.name.as_str(), named)))
    }

    /// The answers that it was made with.
    pub fn answers(&self) -> &Answers {
        &self.answers
    }

    /// The name servers, and how they are asked.
    pub fn dns(&self) -> &DnsConfig {
        &self.dns
    }
}
