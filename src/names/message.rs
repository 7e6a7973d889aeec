//! DNS messages (RFC 1035 4): a question, and what an answer to it says.
//!
//! Only what answers the question counts: its records, and those that its CNAMEs lead to. All else in a message is left alone.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use domain::base::iana::{Class, Opcode, Rcode};
use domain::base::wire::ParseError;
use domain::base::{Message, MessageBuilder, Name, ParsedName, ParsedRecord, RecordSection, Rtype};
use domain::rdata::{A, Aaaa, Cname, Soa, Srv};

use crate::config::{host_name, why_no_host};

/// The largest datagram that is asked for: it passes everywhere without fragments (RFC 9715).
const LARGEST_DATAGRAM: u16 = 1232;

/// So many CNAMEs are followed.
const MOST_ALIASES: usize = 8;

/// An answer with more addresses or targets is refused.
const MOST_RECORDS: usize = 256;

/// What is asked for.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// IPv4 addresses.
    A,
    /// IPv6 addresses.
    Aaaa,
    /// Services.
    Srv,
}

/// What an SRV record says (RFC 2782).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Target {
    /// The least is served first.
    pub priority: u16,
    /// Its share among those of its priority.
    pub weight: u16,
    /// Where it listens.
    pub port: u16,
    /// Its host, in lower case.
    pub name: String,
}

/// What there is of a name. The order of records says nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
    /// For [`Kind::A`] and [`Kind::Aaaa`].
    Addresses(BTreeSet<IpAddr>),
    /// For [`Kind::Srv`].
    Targets(BTreeSet<Target>),
}

impl Data {
    /// Whether there is nothing.
    pub fn is_empty(&self) -> bool {
        match self {
            Data::Addresses(addresses) => addresses.is_empty(),
            Data::Targets(targets) => targets.is_empty(),
        }
    }
}

/// What an answer says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// There is this, and it holds for so long, if the answer says it.
    Told(Data, Option<Duration>),
    /// It was too long for a datagram (RFC 7766: it is asked for over TCP).
    Truncated,
    /// The name server cannot say it, or what it says cannot be.
    Failed,
}

/// A message that is to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Its number, by which what is heard of it is told.
    pub token: u64,
    /// To whom.
    pub server: SocketAddr,
    /// Over TCP, else UDP.
    pub by_tcp: bool,
    /// The message, without a length.
    pub message: Vec<u8>,
}

/// What was heard of an [`Ask`].
#[derive(Copy, Clone, Debug)]
pub enum Heard<'a> {
    /// A message, perhaps not the name server's.
    Message(&'a [u8]),
    /// Nothing will be: it was refused, or the connection has ended.
    Gone,
}

/// This does not answer the question.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Foreign;

fn rtype(kind: Kind) -> Rtype {
    match kind {
        Kind::A => Rtype::A,
        Kind::Aaaa => Rtype::AAAA,
        Kind::Srv => Rtype::SRV,
    }
}

/// The message that asks; `None` for what is no name.
pub fn question(id: u16, name: &str, kind: Kind) -> Option<Vec<u8>> {
    let name = Name::<Vec<u8>>::from_str(name).ok()?;
    let mut builder = MessageBuilder::new_vec();
    builder.header_mut().set_id(id);
    builder.header_mut().set_rd(true);
    let mut question = builder.question();
    question.push((&name, rtype(kind))).ok()?;
    let mut additional = question.additional();
    // RFC 6891 6.2.3: how much the asker takes.
    additional
        .opt(|opt| {
            opt.set_udp_payload_size(LARGEST_DATAGRAM);
            Ok(())
        })
        .ok()?;
    Some(additional.finish())
}

/// What `bytes` say to the question with this number.
///
/// # Errors
/// It is no answer, or one to another question: its asker goes on waiting.
pub fn answer(bytes: &[u8], id: u16, name: &str, kind: Kind) -> Result<Reply, Foreign> {
    let message = Message::from_octets(bytes).map_err(|_| Foreign)?;
    let header = message.header();
    if header.id() != id || !header.qr() || header.opcode() != Opcode::QUERY {
        return Err(Foreign);
    }
    let asked = message.sole_question().map_err(|_| Foreign)?;
    let own = Name::<Vec<u8>>::from_str(name).map_err(|_| Foreign)?;
    if *asked.qname() != own || asked.qtype() != rtype(kind) || asked.qclass() != Class::IN {
        return Err(Foreign);
    }
    if header.tc() {
        return Ok(Reply::Truncated);
    }
    match header.rcode() {
        Rcode::NOERROR => Ok(read(&message, *asked.qname(), kind).unwrap_or(Reply::Failed)),
        Rcode::NXDOMAIN => Ok(Reply::Told(none_of(kind), negative_ttl(&message).ok().flatten())),
        _ => Ok(Reply::Failed),
    }
}

fn none_of(kind: Kind) -> Data {
    match kind {
        Kind::A | Kind::Aaaa => Data::Addresses(BTreeSet::new()),
        Kind::Srv => Data::Targets(BTreeSet::new()),
    }
}

type OfMessage<'m> = &'m Message<&'m [u8]>;

/// # Errors
/// The message is cut or makes no sense.
fn read(message: OfMessage<'_>, name: ParsedName<&[u8]>, kind: Kind) -> Result<Reply, ParseError> {
    let records = message.answer()?;
    let mut ttl = u32::MAX;
    let Some(owner) = alias(records, name, &mut ttl)? else {
        return Ok(Reply::Failed);
    };
    let mut told = none_of(kind);
    let mut bogus = 0;
    for record in records {
        let record = record?;
        if record.class() != Class::IN || record.rtype() != rtype(kind) || record.owner() != owner {
            continue;
        }
        ttl = ttl.min(record.ttl().as_secs());
        bogus += usize::from(!take(&record, &mut told)?);
        if len(&told) > MOST_RECORDS {
            return Ok(Reply::Failed);
        }
    }
    match (told.is_empty(), bogus) {
        (false, _) => Ok(Reply::Told(told, Some(Duration::from_secs(ttl.into())))),
        (true, 0) => Ok(Reply::Told(told, negative_ttl(message)?)),
        // All addresses are such that no host can have: a forged answer, or a resolver that blocks the name.
        (true, _) => Ok(Reply::Failed),
    }
}

fn len(data: &Data) -> usize {
    match data {
        Data::Addresses(addresses) => addresses.len(),
        Data::Targets(targets) => targets.len(),
    }
}

/// The name that a name stands for (RFC 1034 3.6.2), and the shortest time on the way; `None` if it leads nowhere.
fn alias<'m>(
    records: RecordSection<'m, &'m [u8]>,
    name: ParsedName<&'m [u8]>,
    ttl: &mut u32,
) -> Result<Option<ParsedName<&'m [u8]>>, ParseError> {
    let mut owner = name;
    for _ in 0..=MOST_ALIASES {
        let mut next = None;
        for record in records.limit_to_in::<Cname<_>>() {
            let record = record?;
            if *record.owner() == owner {
                *ttl = (*ttl).min(record.ttl().as_secs());
                next = Some(record.into_data().into_cname());
                break;
            }
        }
        match next {
            Some(next) => owner = next,
            None => return Ok(Some(owner)),
        }
    }
    Ok(None)
}

/// Adds what a record says; whether a host can have that.
fn take(record: &ParsedRecord<'_, &[u8]>, told: &mut Data) -> Result<bool, ParseError> {
    match told {
        Data::Addresses(addresses) => {
            let v4 = record.to_record::<A>()?.map(|record| IpAddr::V4(record.data().addr()));
            let v6 = record
                .to_record::<Aaaa>()?
                .map(|record| IpAddr::V6(record.data().addr()));
            let address = v4.or(v6).filter(|address| why_no_host(*address).is_none());
            addresses.extend(address);
            Ok(address.is_some())
        }
        Data::Targets(targets) => {
            let Some(record) = record.to_record::<Srv<_>>()? else {
                return Ok(false);
            };
            let data = record.data();
            // RFC 2782: the target "." says that there is no such service.
            let name = host_name(&data.target().to_string()).filter(|_| data.port() != 0);
            targets.extend(name.clone().map(|name| Target {
                priority: data.priority(),
                weight: data.weight(),
                port: data.port(),
                name,
            }));
            Ok(name.is_some())
        }
    }
}

/// How long it holds that there is nothing: RFC 2308 5.
fn negative_ttl(message: OfMessage<'_>) -> Result<Option<Duration>, ParseError> {
    let mut authority = message.authority()?.limit_to_in::<Soa<_>>();
    let Some(record) = authority.next().transpose()? else {
        return Ok(None);
    };
    let seconds = record.ttl().as_secs().min(record.data().minimum().as_secs());
    Ok(Some(Duration::from_secs(seconds.into())))
}
