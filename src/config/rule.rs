//! What a rule of a listener wants, and what it does.

use ipnet::IpNet;

use super::dn::DnPattern;
use super::local_address::PortRanges;
use super::pattern::{HostPattern, NamePattern};
use super::payload_regex::PayloadRegex;
use splice::callbacks::Refusal;
use splice::ids::{PoolId, RuleId};

/// One rule of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Under which the core counts it.
    pub id: RuleId,
    /// Unlike that of any other rule of the listener, and unlike what rules without a name are called.
    pub name: Option<String>,
    /// What must be so.
    pub matches: Match,
    /// What then becomes of the connection.
    pub action: RuleAction,
}

impl Rule {
    /// Where connections go for which it decides, if anywhere.
    pub fn pool(&self) -> Option<PoolId> {
        match self.action {
            RuleAction::Pool(pool) => Some(pool),
            RuleAction::Refuse(_) => None,
        }
    }
}

/// A rule that gives clients a class, of which the first that matches counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassRule {
    /// What must be so; known when a SYN arrives.
    pub matches: Match,
    /// The number of the class.
    pub class: u16,
}

/// What becomes of a connection that a rule matches.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum RuleAction {
    /// A server of this pool gets it.
    Pool(PoolId),
    /// Nobody does.
    Refuse(Refusal),
}

/// What a rule wants of a client and of its first payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Match {
    /// An HTTP/1 request.
    Http {
        /// For this host; any when `None`.
        host: Option<HostPattern>,
        /// With a path that begins with these bytes; any when `None`. Begins with `/`.
        path: Option<String>,
    },
    /// A TLS ClientHello.
    Tls {
        /// That names this server; any or none when `None`.
        sni: Option<HostPattern>,
        /// That offers this application protocol, in whatever place; any or none when `None`. 1 to 255 bytes.
        alpn: Option<String>,
    },
    /// A decimal number somewhere; the first, modulo the number of the pool's servers, is the server's place in the pool.
    FirstNumber,
    /// These bytes first. Not empty, at most 256.
    Prefix(Vec<u8>),
    /// A regular expression in the first bytes.
    Regex(PayloadRegex),
    /// An LDAP bind request with such a name.
    LdapBind(DnPattern),
    /// A StartupMessage of PostgreSQL.
    Postgres {
        /// By this user.
        user: NamePattern,
        /// For this database.
        database: NamePattern,
    },
    /// A request of a PostgreSQL client to encrypt: SSLRequest or GSSENCRequest.
    SslRequest,
    /// A client with an address of these.
    Client(Clients),
    /// A client that has connected to one of these ports.
    ListenerPort(PortRanges),
    /// All of these. At least two.
    All(Vec<Match>),
    /// Anything but this.
    Not(Box<Match>),
}

impl Match {
    /// True if the payload has no part in it, so that it is known when a SYN arrives.
    pub fn is_known_at_syn(&self) -> bool {
        match self {
            Match::Client(_) | Match::ListenerPort(_) => true,
            Match::All(parts) => parts.iter().all(Match::is_known_at_syn),
            Match::Not(part) => part.is_known_at_syn(),
            Match::Http { .. }
            | Match::Tls { .. }
            | Match::FirstNumber
            | Match::Prefix(_)
            | Match::Regex(_)
            | Match::LdapBind(_)
            | Match::Postgres { .. }
            | Match::SslRequest => false,
        }
    }

    /// True if it is one of several, or the opposite of one, for which `wanted` says so.
    pub(crate) fn has_within(&self, wanted: &impl Fn(&Match) -> bool) -> bool {
        match self {
            Match::All(parts) => parts.iter().any(|part| part.has_within(wanted)),
            Match::Not(part) => part.has_within(wanted),
            other => wanted(other),
        }
    }
}

/// Addresses of clients. Not empty.
#[derive(Clone, Debug, Default)]
pub struct Clients {
    /// Those with these prefixes, without host bits.
    pub prefixes: Vec<IpNet>,
    /// Those in these lists, of one class or of any.
    pub lists: Vec<(String, Option<String>)>,
    /// The condition's number in the table of clients.
    pub number: u16,
}

/// The number is not what is asked.
impl PartialEq for Clients {
    fn eq(&self, other: &Self) -> bool {
        (&self.prefixes, &self.lists) == (&other.prefixes, &other.lists)
    }
}

impl Eq for Clients {}

impl Clients {
    /// Whether all others are among them, as far as that can be told.
    pub(super) fn covers(&self, others: &Self) -> bool {
        let has = |other: &IpNet| self.prefixes.iter().any(|prefix| prefix.contains(other));
        let names = |(name, class): &(String, Option<String>)| {
            let named = self.lists.iter().filter(|(own, _)| own == name);
            named.into_iter().any(|(_, own)| own.is_none() || own == class)
        };
        others.prefixes.iter().all(has) && others.lists.iter().all(names)
    }
}
