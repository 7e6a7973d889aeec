//! Records as flows: IPFIX (RFC 7011) over UDP, one biflow (RFC 5103) a connection with the addresses behind the engine as those
//! after translation.
//!
//! A template for each pair of address families, and for connections without a server. Numbers of information elements are those
//! of IANA's registry.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use netfcts::Side;
use netfcts::format::NameTable;
use netfcts::record::{Cause, SessionRecord};

use super::sink::{Fate, Output};
use super::socket::connected;

/// RFC 7011 10.3.3: an exporter that does not know the path's MTU keeps to 512 bytes; this fits every Ethernet.
const LARGEST_MESSAGE: usize = 1_400;

/// How often a collector that has just begun hears of the templates (RFC 7011 8.4).
const TEMPLATE_INTERVAL: Duration = Duration::from_secs(30);

/// Time between two attempts to reach a collector.
const RETRY: Duration = Duration::from_secs(1);

const VERSION: u16 = 10;
const HEADER: usize = 16;
const SET_HEADER: usize = 4;
const TEMPLATE_SET: u16 = 2;

/// The first number that a template may have.
const FIRST_TEMPLATE: u16 = 256;

/// The enterprise number of reverse information elements (RFC 5103 6.1).
const REVERSE: u32 = 29_305;

/// A field of a template: information element, length, and whether it is about the way back.
type Field = (u16, u16, bool);

/// What every record has, behind the addresses.
const COMMON: [Field; 13] = [
    (7, 2, false),   // sourceTransportPort
    (11, 2, false),  // destinationTransportPort
    (4, 1, false),   // protocolIdentifier
    (152, 8, false), // flowStartMilliseconds
    (153, 8, false), // flowEndMilliseconds
    (1, 8, false),   // octetDeltaCount: payload
    (2, 8, false),   // packetDeltaCount
    (1, 8, true),    // the same from the server
    (2, 8, true),
    (136, 1, false), // flowEndReason
    (239, 1, false), // biflowDirection
    (227, 2, false), // postNAPTSourceTransportPort
    (228, 2, false), // postNAPTDestinationTransportPort
];

/// samplingProbability: a float64 of 0 to 1.
const PROBABILITY: Field = (311, 8, false);

/// sourceIPv4Address, destinationIPv4Address, and of IPv6.
const BEFORE: [[Field; 2]; 2] = [[(8, 4, false), (12, 4, false)], [(27, 16, false), (28, 16, false)]];

/// postNATSourceIPv4Address, postNATDestinationIPv4Address, and of IPv6.
const BEHIND: [[Field; 2]; 2] = [[(225, 4, false), (226, 4, false)], [(281, 16, false), (282, 16, false)]];

/// Which template a record has.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Template {
    /// The client's side is IPv6.
    before: bool,
    /// The server's side is; `None` if there is no server.
    behind: Option<bool>,
}

impl Template {
    const ALL: [Template; 6] = {
        const fn of(before: bool, behind: Option<bool>) -> Template {
            Template { before, behind }
        }
        [
            of(false, None),
            of(true, None),
            of(false, Some(false)),
            of(false, Some(true)),
            of(true, Some(false)),
            of(true, Some(true)),
        ]
    };

    fn id(self) -> u16 {
        let place = Template::ALL.iter().position(|template| *template == self);
        FIRST_TEMPLATE + place.unwrap_or_default() as u16
    }

    fn fields(self) -> impl Iterator<Item = Field> {
        let behind = self.behind.map(|is_v6| BEHIND[usize::from(is_v6)]);
        let addresses = BEFORE[usize::from(self.before)];
        let fields = addresses.into_iter().chain(COMMON).chain([PROBABILITY]);
        fields.chain(behind.into_iter().flatten())
    }

    /// Bytes of a record.
    fn record_len(self) -> usize {
        self.fields().map(|(_, length, _)| usize::from(length)).sum()
    }
}

/// Flows to a collector.
pub(super) struct Flows {
    to: SocketAddr,
    names: Arc<NameTable>,
    /// Observation domain: tells the sinks of one engine apart.
    domain: u32,
    probability: f64,
    socket: Option<UdpSocket>,
    tried: Option<Instant>,
    templates_sent: Option<Instant>,
    /// The message in progress, from its header on; empty if there is none.
    message: Vec<u8>,
    /// The set in progress: its template, and where it begins.
    set: Option<(Template, usize)>,
    /// Records in the message.
    pending: u64,
    /// Data records of all messages so far, modulo 2^32 (RFC 7011 3.1).
    sequence: u32,
}

impl Flows {
    pub(super) fn new(to: SocketAddr, names: Arc<NameTable>, sample: u32, domain: u32) -> Flows {
        Flows {
            to,
            names,
            domain,
            probability: 1.0 / f64::from(sample),
            socket: None,
            tried: None,
            templates_sent: None,
            message: Vec::with_capacity(LARGEST_MESSAGE),
            set: None,
            pending: 0,
            sequence: 0,
        }
    }

    /// Room for a record, in a set of its template.
    fn make_room(&mut self, template: Template, fate: &Fate) -> io::Result<()> {
        let is_same = self.set.is_some_and(|(of, _)| of == template);
        let needed = template.record_len() + if is_same { 0 } else { SET_HEADER };
        let sent = if self.message.len() + needed > LARGEST_MESSAGE {
            self.flush(fate)
        } else {
            Ok(())
        };
        if self.message.is_empty() {
            self.message.resize(HEADER, 0);
            let is_due = self
                .templates_sent
                .is_none_or(|sent| sent.elapsed() >= TEMPLATE_INTERVAL);
            if is_due {
                self.put_templates();
            }
        }
        if self.set.is_none_or(|(of, _)| of != template) {
            self.end_set();
            self.set = Some((template, self.message.len()));
            self.message.extend_from_slice(&template.id().to_be_bytes());
            self.message.extend_from_slice(&[0; 2]);
        }
        sent
    }

    fn end_set(&mut self) {
        if let Some((_, begin)) = self.set.take() {
            let length = (self.message.len() - begin) as u16;
            self.message[begin + 2..begin + 4].copy_from_slice(&length.to_be_bytes());
        }
    }

    /// RFC 7011 3.4.1.
    fn put_templates(&mut self) {
        let begin = self.message.len();
        self.message.extend_from_slice(&TEMPLATE_SET.to_be_bytes());
        self.message.extend_from_slice(&[0; 2]);
        for template in Template::ALL {
            let count = template.fields().count() as u16;
            self.message.extend_from_slice(&template.id().to_be_bytes());
            self.message.extend_from_slice(&count.to_be_bytes());
            for (element, length, is_reverse) in template.fields() {
                let enterprise = u16::from(is_reverse) << 15;
                self.message.extend_from_slice(&(element | enterprise).to_be_bytes());
                self.message.extend_from_slice(&length.to_be_bytes());
                if is_reverse {
                    self.message.extend_from_slice(&REVERSE.to_be_bytes());
                }
            }
        }
        let length = (self.message.len() - begin) as u16;
        self.message[begin + 2..begin + 4].copy_from_slice(&length.to_be_bytes());
        self.templates_sent = Some(Instant::now());
    }

    fn put_record(&mut self, template: Template, record: &SessionRecord) {
        let start = self.names.start_ns(record) / 1_000_000;
        let end = start.saturating_add(record.duration().as_millis() as u64);
        let called = self.names.called(record);
        let message = &mut self.message;
        put_address(message, template.before, Some(record.client()));
        put_address(message, template.before, called.map(|called| called.ip()));
        message.extend_from_slice(&record.client_port.to_be_bytes());
        message.extend_from_slice(&record.called_port.to_be_bytes());
        message.push(6);
        for number in [
            start,
            end,
            record.bytes_to_server(),
            record.packets_to_server.into(),
            record.bytes_to_client(),
            record.packets_to_client.into(),
        ] {
            message.extend_from_slice(&number.to_be_bytes());
        }
        message.push(end_reason(record.cause(Side::Client)));
        // RFC 5103 6.3: the initiator is the source.
        message.push(1);
        let server = self.names.server(record).map(|named| named.address);
        let (local, remote) = match template.behind {
            Some(_) => (record.local_port, server.map_or(0, |server| server.port())),
            None => (0, 0),
        };
        message.extend_from_slice(&local.to_be_bytes());
        message.extend_from_slice(&remote.to_be_bytes());
        message.extend_from_slice(&self.probability.to_be_bytes());
        if let Some(is_v6) = template.behind {
            put_address(message, is_v6, self.names.local_address(record));
            put_address(message, is_v6, server.map(|server| server.ip()));
        }
    }

    fn template_of(&self, record: &SessionRecord) -> Template {
        // A PROXY header may name a client of the other family.
        let called = self.names.called(record);
        Template {
            before: record.client().is_ipv6() || called.is_some_and(|called| called.is_ipv6()),
            behind: self.names.server(record).map(|server| server.address.is_ipv6()),
        }
    }

    fn send(&mut self) -> io::Result<()> {
        self.end_set();
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let header = [
            VERSION.to_be_bytes().as_slice(),
            &(self.message.len() as u16).to_be_bytes(),
            // RFC 7011 3.1: seconds of 32 bits, until 2106.
            &(since_1970.as_secs() as u32).to_be_bytes(),
            &self.sequence.to_be_bytes(),
            &self.domain.to_be_bytes(),
        ]
        .concat();
        self.message[..HEADER].copy_from_slice(&header);
        if self.socket.is_none() {
            if self.tried.is_some_and(|tried| tried.elapsed() < RETRY) {
                return Err(ErrorKind::NotConnected.into());
            }
            self.tried = Some(Instant::now());
            self.socket = Some(connected(self.to)?);
        }
        match &self.socket {
            Some(socket) => socket.send(&self.message).map(drop),
            None => Ok(()),
        }
    }
}

impl Output for Flows {
    fn set_names(&mut self, names: &Arc<NameTable>) {
        self.names = Arc::clone(names);
    }

    fn put(&mut self, record: &SessionRecord, fate: &Fate) -> io::Result<()> {
        let template = self.template_of(record);
        let made = self.make_room(template, fate);
        self.put_record(template, record);
        self.pending += 1;
        made
    }

    fn flush(&mut self, fate: &Fate) -> io::Result<()> {
        if self.pending == 0 {
            return Ok(());
        }
        let sent = self.send();
        let records = std::mem::take(&mut self.pending);
        self.message.clear();
        self.sequence = self.sequence.wrapping_add(records as u32);
        match sent {
            Ok(()) => fate.write(records),
            Err(_) => {
                fate.lose(records);
                self.socket = None;
                // The collector may have lost them with the message.
                self.templates_sent = None;
            }
        }
        sent
    }

    fn pending(&self) -> u64 {
        self.pending
    }
}

/// Four or sixteen bytes, zeros for what is not known. An IPv4 address among IPv6 ones is mapped.
fn put_address(message: &mut Vec<u8>, is_v6: bool, address: Option<IpAddr>) {
    match (is_v6, address) {
        (false, Some(IpAddr::V4(address))) => message.extend_from_slice(&address.octets()),
        (false, _) => message.extend_from_slice(&[0; 4]),
        (true, Some(IpAddr::V6(address))) => message.extend_from_slice(&address.octets()),
        (true, Some(IpAddr::V4(address))) => message.extend_from_slice(&address.to_ipv6_mapped().octets()),
        (true, None) => message.extend_from_slice(&Ipv6Addr::UNSPECIFIED.octets()),
    }
}

/// flowEndReason: idle, detected, forced or for lack of resources.
fn end_reason(cause: Cause) -> u8 {
    match cause {
        Cause::Timeout
        | Cause::HandshakeTimeout
        | Cause::SelectorTimeout
        | Cause::IdleTimeout
        | Cause::HalfCloseTimeout
        | Cause::ServerTimeout
        | Cause::RetransmitLimit => 1,
        Cause::PassiveClose | Cause::ActiveClose | Cause::PassiveRst | Cause::ActiveRst | Cause::ServerRefused => 3,
        Cause::TableFull | Cause::HeldFull | Cause::NoPort | Cause::NoServer => 5,
        Cause::SelectorReject | Cause::BadProxyHeader | Cause::Replaced | Cause::Shutdown | Cause::Unknown => 4,
    }
}

#[cfg(test)]
mod tests;
