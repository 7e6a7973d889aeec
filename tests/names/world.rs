//! Name servers with their zones, and a resolver that asks them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use domain::base::iana::Rcode;
use domain::base::{Message, MessageBuilder, Name, Rtype, ToName, Ttl};
use domain::rdata::{A, Aaaa, Cname, Srv};
use proxyengine::config::{Answers, DnsConfig, Question};
use proxyengine::names::{Ask, Heard, Resolver};

pub(crate) const SECOND: Duration = Duration::from_secs(1);

pub(crate) fn name(text: &str) -> Name<Vec<u8>> {
    text.parse().expect("a name")
}

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

pub(crate) fn host(name: &str) -> Question {
    Question {
        name: name.to_owned(),
        is_service: false,
    }
}

pub(crate) fn service(name: &str) -> Question {
    Question {
        name: name.to_owned(),
        is_service: true,
    }
}

/// A record of a zone: its owner, how long it holds, and what it says.
#[derive(Clone, Debug)]
pub(crate) enum Says {
    Address(IpAddr),
    Alias(&'static str),
    Target(u16, u16, u16, &'static str),
}

pub(crate) type Zone = Vec<(&'static str, u32, Says)>;

/// What a name server does with questions.
#[derive(Clone)]
pub(crate) enum Does {
    Answers(Zone),
    Refuses(Rcode),
    Truncates(Zone),
    /// It says nothing.
    IsAway,
    /// Its host refuses.
    IsGone,
    /// What comes are these changes of the right answer.
    Lies(Zone, fn(&mut Vec<u8>)),
}

/// The answer of a zone: all that is said of the question's name and what it leads to, as name servers give it.
pub(crate) fn answer(asked: &[u8], zone: &Zone, rcode: Rcode) -> Vec<u8> {
    let asked = Message::from_octets(asked).expect("a message");
    let question = asked.sole_question().expect("a question");
    let mut builder = MessageBuilder::new_vec().start_answer(&asked, rcode).expect("room");
    builder.header_mut().set_ra(true);
    let mut owner: Name<Vec<u8>> = question.qname().to_name();
    for _ in 0..zone.len() + 1 {
        let of_owner = zone.iter().filter(|(of, ..)| name(of) == owner);
        let mut next = None;
        for (_, ttl, says) in of_owner {
            let ttl = Ttl::from_secs(*ttl);
            match says {
                Says::Address(IpAddr::V4(v4)) if question.qtype() == Rtype::A => {
                    builder.push((&owner, ttl, A::new(*v4))).expect("room");
                }
                Says::Address(IpAddr::V6(v6)) if question.qtype() == Rtype::AAAA => {
                    builder.push((&owner, ttl, Aaaa::new(*v6))).expect("room");
                }
                Says::Target(priority, weight, port, target) if question.qtype() == Rtype::SRV => {
                    let data = Srv::new(*priority, *weight, *port, name(target));
                    builder.push((&owner, ttl, data)).expect("room");
                }
                Says::Alias(target) => {
                    builder.push((&owner, ttl, Cname::new(name(target)))).expect("room");
                    next = Some(name(target));
                }
                _ => {}
            }
        }
        match next {
            Some(next) => owner = next,
            None => break,
        }
    }
    builder.finish()
}

/// A resolver and its name servers, in virtual time.
pub(crate) struct World {
    pub(crate) resolver: Resolver,
    pub(crate) servers: Vec<Does>,
    pub(crate) now: Instant,
    pub(crate) began: Instant,
    pub(crate) asked: usize,
}

pub(crate) const FIRST: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 53)), 53);
pub(crate) const SECOND_SERVER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 54)), 53);

pub(crate) fn dns() -> DnsConfig {
    DnsConfig {
        servers: Vec::new(),
        timeout: SECOND,
        retries: 1,
        asks_v4: true,
        asks_v6: true,
    }
}

impl World {
    pub(crate) fn new(servers: Vec<Does>, questions: &[Question]) -> Self {
        Self::knowing(Answers::new(), servers, questions)
    }

    pub(crate) fn knowing(known: Answers, servers: Vec<Does>, questions: &[Question]) -> Self {
        let now = Instant::now();
        let mut number = 0_u16;
        let random = Box::new(move || {
            number = number.wrapping_add(12_345);
            number
        });
        let addresses = [FIRST, SECOND_SERVER][..servers.len()].to_vec();
        let mut resolver = Resolver::new((dns(), addresses.clone()), known, random);
        resolver.set_questions(dns(), addresses, questions.iter().cloned().collect(), now);
        World {
            resolver,
            servers,
            now,
            began: now,
            asked: 0,
        }
    }

    /// Hears what the name server does with a message.
    pub(crate) fn send(&mut self, ask: Ask) {
        let mut next = Some(ask);
        while let Some(ask) = next.take() {
            self.asked += 1;
            let does = self.servers[usize::from(ask.server == SECOND_SERVER)].clone();
            let message = match &does {
                Does::Answers(zone) => answer(&ask.message, zone, Rcode::NOERROR),
                Does::Truncates(zone) if ask.by_tcp => answer(&ask.message, zone, Rcode::NOERROR),
                Does::Truncates(zone) => {
                    let mut message = answer(&ask.message, zone, Rcode::NOERROR);
                    message[2] |= 2;
                    message
                }
                Does::Refuses(rcode) => answer(&ask.message, &Vec::new(), *rcode),
                Does::Lies(zone, lie) => {
                    let mut message = answer(&ask.message, zone, Rcode::NOERROR);
                    lie(&mut message);
                    message
                }
                Does::IsAway => continue,
                Does::IsGone => {
                    next = self.resolver.hear(ask.token, Heard::Gone, self.now);
                    continue;
                }
            };
            next = self.resolver.hear(ask.token, Heard::Message(&message), self.now);
        }
    }

    /// Goes on for so long.
    pub(crate) fn run(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            let asks = self.resolver.poll(self.now);
            let is_idle = asks.is_empty();
            asks.into_iter().for_each(|ask| self.send(ask));
            match self.resolver.next_due() {
                Some(due) if due <= self.now => assert!(!is_idle, "it turns in a circle"),
                Some(due) if due <= end => self.now = due,
                _ => break,
            }
        }
        self.now = end;
    }

    pub(crate) fn addresses(&self, question: &Question) -> Vec<IpAddr> {
        let found = self.resolver.answers().get(question);
        found.into_iter().flatten().map(|found| found.ip).collect()
    }

    pub(crate) fn failures(&self) -> u64 {
        self.resolver.report(self.now).iter().map(|name| name.failures).sum()
    }

    pub(crate) fn refused(&self) -> u64 {
        self.resolver.report(self.now).iter().map(|name| name.refused).sum()
    }
}

pub(crate) fn web(ttl: u32, addresses: &[&str]) -> Zone {
    let says = |address: &&str| ("web.example.net", ttl, Says::Address(ip(address)));
    addresses.iter().map(says).collect()
}

pub(crate) const WEB: &str = "web.example.net";

pub(crate) const LDAP: &str = "_ldap._tcp.example.net";

pub(crate) fn ldap(targets: &[(u16, u16, u16, &'static str)], hosts: &[(&'static str, &str)]) -> Zone {
    let targets = targets
        .iter()
        .map(|&(priority, weight, port, host)| (LDAP, 10, Says::Target(priority, weight, port, host)));
    let hosts = hosts
        .iter()
        .map(|(name, address)| (*name, 10, Says::Address(ip(address))));
    targets.chain(hosts).collect()
}
