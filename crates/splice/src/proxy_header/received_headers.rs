//! The PROXY header that a client's stream begins with: what it may be, and what it said.
//!
//! It is looked for in the held bytes, which are in order whatever the segments were, before anything else sees them
//! (`Rooms::read_header`). Once whole it is cut off: the client's numbering then begins behind it
//! for all that follows. What it said is kept beside the connection until the server is connected, then only in the
//! record.

use crate::base::callbacks::MAX_FIRST_PAYLOAD;
use crate::base::drop_reason::DropReason;
use crate::base::settings::AcceptProxy;
use crate::session::slab::Slab;
use arrayvec::ArrayVec;
use netfcts::leg::mapped;
use proxy_protocol::{Header, ParseOptions, Parsed, Transport, V2_SIGNATURE, kind};
use std::net::SocketAddr;

/// The longest header that is taken: all that is held of a connection. Version 1 has its own limit of 107 bytes.
const LONGEST: usize = MAX_FIRST_PAYLOAD;

/// Room for the fields that may be passed on: as many as the longest header that we send has.
pub(crate) const MAX_FIELDS: usize = crate::proxy_header::send_proxy::MAX_FIELDS;

/// What version 1 begins with; nothing that does is anything else (proxy-protocol.txt 2.3).
const V1_START: &[u8] = b"PROXY ";

/// What is known of the headers of a core's connections: nothing at all unless some listener takes them, or some server wants
/// one with fields from the client's first bytes.
pub(crate) struct ReceivedHeaders {
    /// By slot of the connection: the entry, or [`OWN`] or [`AWAITED`].
    by_slot: Box<[u16]>,
    entries: Slab<ReceivedHeader>,
}

/// The connection has its own addresses.
const OWN: u16 = u16::MAX;

/// The start of the stream has not been judged yet.
const AWAITED: u16 = u16::MAX - 1;

impl ReceivedHeaders {
    /// For so many `connections`, of which so many `entries` at once have a header and no server yet; their memory is touched
    /// as it is used.
    pub(crate) fn new(connections: usize, entries: usize) -> Self {
        ReceivedHeaders {
            by_slot: vec![OWN; connections].into_boxed_slice(),
            entries: Slab::reserved(entries.min(usize::from(AWAITED))),
        }
    }

    /// The connection in `slot` is to begin with a header.
    pub(crate) fn await_header(&mut self, slot: u32) {
        self.set(slot, AWAITED);
    }

    /// True while the start of its stream has not been judged.
    pub(crate) fn is_awaited(&self, slot: u32) -> bool {
        self.by_slot.get(slot as usize) == Some(&AWAITED)
    }

    /// It has no header, or one that leaves it its own addresses.
    pub(crate) fn settle(&mut self, slot: u32) {
        self.set(slot, OWN);
    }

    /// Keeps what its header said. Returns false if there is no room.
    pub(crate) fn keep(&mut self, slot: u32, carried: ReceivedHeader) -> bool {
        match self.entries.insert(carried) {
            // There are no more entries than indices.
            Ok(entry) => self.set(slot, entry as u16),
            Err(_) => return false,
        }
        true
    }

    /// What its header said, if it said anything.
    pub(crate) fn get(&self, slot: u32) -> Option<&ReceivedHeader> {
        self.kept(slot).filter(|carried| carried.is_said)
    }

    /// The same, or what was kept of its first bytes.
    pub(crate) fn kept(&self, slot: u32) -> Option<&ReceivedHeader> {
        self.entries.get(u32::from(*self.by_slot.get(slot as usize)?))
    }

    /// Keeps `found`, fields that its first bytes have told, for the header that its server gets; `ends` are its client and
    /// whom that called. Returns false if there is no room.
    pub(crate) fn keep_found(&mut self, slot: u32, found: &[u8], ends: [(u128, u16); 2]) -> bool {
        let Some(&entry) = self.by_slot.get(slot as usize) else {
            return false;
        };
        if let Some(carried) = self.entries.get_mut(u32::from(entry)) {
            carried.fields.truncate(usize::from(carried.said_len));
            return carried.fields.try_extend_from_slice(found).is_ok();
        }
        let [source, destination] = ends;
        let mut carried = ReceivedHeader {
            source,
            destination,
            fields: ArrayVec::new(),
            said_len: 0,
            is_said: false,
        };
        carried.fields.try_extend_from_slice(found).is_ok() && self.keep(slot, carried)
    }

    /// That is needed no more.
    #[inline]
    pub(crate) fn forget(&mut self, slot: u32) {
        if let Some(entry) = self.by_slot.get_mut(slot as usize) {
            self.entries.free(u32::from(std::mem::replace(entry, OWN)));
        }
    }

    /// The number of headers kept.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Bytes of all headers kept.
    pub(crate) fn bytes_in_use(&self) -> usize {
        self.len() * (Slab::<ReceivedHeader>::slot_size() + size_of::<u16>())
    }

    /// The memory that it has touched, in bytes.
    pub(crate) fn memory(&self) -> usize {
        size_of_val(&*self.by_slot) + self.grown()
    }

    /// That of it which it had not touched at the start.
    pub(crate) fn grown(&self) -> usize {
        self.entries.memory()
    }

    fn set(&mut self, slot: u32, value: u16) {
        if let Some(known) = self.by_slot.get_mut(slot as usize) {
            *known = value;
        }
    }
}

/// Whom a connection is from, and what it was to, as a header says.
#[derive(Clone, Debug)]
pub(crate) struct ReceivedHeader {
    /// The client's address, IPv4 in its mapped form, and port.
    pub source: (u128, u16),
    /// What it connected to.
    pub destination: (u128, u16),
    /// Its fields as they came, one after the other; only if some server wants them. Behind them those that the first bytes
    /// of the payload have told, if these bytes were given up.
    fields: ArrayVec<u8, MAX_FIELDS>,
    /// The length of the fields that came in a header.
    said_len: u16,
    /// There was a header; otherwise source and destination are the connection's own.
    is_said: bool,
}

/// What the first bytes of a client are.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum HeaderParse<'a> {
    /// They are payload: no header will come.
    Absent,
    /// They may become a header.
    Incomplete,
    /// The connection must end, for this reason.
    Refused(DropReason),
    /// A header, and its length.
    Whole(Header<'a>, usize),
}

/// True if `bytes` begin like a header and nothing else.
pub(crate) fn begins(bytes: &[u8]) -> bool {
    bytes.starts_with(&V2_SIGNATURE) || bytes.starts_with(V1_START)
}

/// The same, or if they are all of a part of what a header begins with: the rest may be lost.
pub(crate) fn may_begin(bytes: &[u8]) -> bool {
    let is_part = !bytes.is_empty() && (V2_SIGNATURE.starts_with(bytes) || V1_START.starts_with(bytes));
    is_part || begins(bytes)
}

/// Looks for a header in the first `bytes` of a client that is `trusted` or not; `complete` when no more will come.
pub(crate) fn look(accept: AcceptProxy, trusted: bool, bytes: &[u8], complete: bool) -> HeaderParse<'_> {
    let required = accept == AcceptProxy::Required;
    if accept == AcceptProxy::Off {
        return HeaderParse::Absent;
    }
    if required && !trusted {
        return HeaderParse::Refused(DropReason::HeaderUntrusted);
    }
    let options = ParseOptions {
        max_len: LONGEST,
        verify_checksum: true,
    };
    let is_header = begins(bytes);
    if is_header && !trusted {
        return HeaderParse::Refused(DropReason::HeaderUntrusted);
    }
    match options.parse(bytes) {
        // proxy-protocol.txt 2.2: what a stream carries is no datagram's.
        Ok(Parsed::Complete { header, .. }) if header.transport == Transport::Datagram => {
            HeaderParse::Refused(DropReason::HeaderMalformed)
        }
        Ok(Parsed::Complete { header, length }) => HeaderParse::Whole(header, length),
        Ok(Parsed::Incomplete { .. }) if !complete => HeaderParse::Incomplete,
        // proxy-protocol.txt 2.2: a connection that ends within its header is refused.
        Ok(Parsed::Incomplete { .. }) if bytes.is_empty() && required => {
            HeaderParse::Refused(DropReason::HeaderMissing)
        }
        Ok(Parsed::Incomplete { .. }) | Err(_) if required || is_header => {
            HeaderParse::Refused(DropReason::HeaderMalformed)
        }
        Ok(Parsed::Incomplete { .. }) | Err(_) => HeaderParse::Absent,
    }
}

impl ReceivedHeader {
    /// What `header` says of the connection; `None` if the connection's own addresses are meant (LOCAL, UNKNOWN,
    /// UNSPEC) or the ones it has are of no use here (UNIX). Its fields are kept if `keeps_fields`.
    pub(crate) fn of(header: &Header<'_>, keeps_fields: bool) -> Option<Self> {
        let (source, destination) = header.addresses.as_pair()?;
        let value = |address: SocketAddr| (mapped(address.ip()), address.port());
        let mut fields = ArrayVec::new();
        if keeps_fields {
            for (kind, value) in header.tlvs.raw() {
                // The checksum is of that header only, and padding is of no use to anyone.
                if kind == kind::CRC32C || kind == kind::NOOP {
                    continue;
                }
                let length = (value.len() as u16).to_be_bytes();
                if fields.remaining_capacity() >= 3 + value.len() {
                    fields.push(kind);
                    fields.extend(length);
                    // There is room: it was asked for above.
                    let _ = fields.try_extend_from_slice(value);
                }
            }
        }
        Some(ReceivedHeader {
            source: value(source),
            destination: value(destination),
            said_len: fields.len() as u16,
            fields,
            is_said: true,
        })
    }

    /// The fields that came in its header.
    pub(crate) fn said(&self) -> &[u8] {
        self.fields.get(..usize::from(self.said_len)).unwrap_or_default()
    }

    /// The fields that the first bytes of its payload have told, if these bytes were given up.
    pub(crate) fn found(&self) -> &[u8] {
        self.fields.get(usize::from(self.said_len)..).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proxy_protocol::{Addresses, Tlv, TlvWriter};
    use test_case::test_case;

    const V1: &[u8] = b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n";
    const SHORT: DropReason = DropReason::HeaderMalformed;
    const MISSING: DropReason = DropReason::HeaderMissing;
    const STRANGER: DropReason = DropReason::HeaderUntrusted;

    #[test_case(AcceptProxy::Required, true, b"", false => Ok("incomplete"); "nothing yet")]
    #[test_case(AcceptProxy::Required, true, b"", true => Err(MISSING); "left without a word")]
    #[test_case(AcceptProxy::Required, true, b"PROX", true => Err(SHORT); "left in the middle")]
    #[test_case(AcceptProxy::Required, true, b"PROX", false => Ok("incomplete"); "in the middle")]
    #[test_case(AcceptProxy::Required, true, b"GET /", false => Err(SHORT); "payload where a header must be")]
    #[test_case(AcceptProxy::Required, false, b"", false => Err(STRANGER); "a stranger is told at once")]
    #[test_case(AcceptProxy::Required, false, V1, false => Err(STRANGER); "a stranger's header")]
    #[test_case(AcceptProxy::Optional, true, b"GET /", false => Ok("absent"); "none")]
    #[test_case(AcceptProxy::Optional, true, b"\r\n", false => Ok("incomplete"); "empty line, or a signature")]
    #[test_case(AcceptProxy::Optional, true, b"\r\nx", false => Ok("absent"); "an empty line")]
    #[test_case(AcceptProxy::Optional, true, b"PRO", true => Ok("absent"); "payload after all")]
    #[test_case(AcceptProxy::Optional, true, b"PROXY TCP4 x", false => Err(SHORT); "a bad one")]
    #[test_case(AcceptProxy::Optional, false, b"GET /", false => Ok("absent"); "a stranger without")]
    #[test_case(AcceptProxy::Optional, false, b"PROXY", false => Ok("incomplete"); "a stranger's first word")]
    #[test_case(AcceptProxy::Optional, false, V1, false => Err(STRANGER); "a stranger with")]
    #[test_case(AcceptProxy::Optional, true, V1, false => Ok("whole"); "a whole one")]
    #[test_case(AcceptProxy::Off, true, V1, false => Ok("absent"); "not looked for")]
    fn sightings(accept: AcceptProxy, trusted: bool, bytes: &[u8], complete: bool) -> Result<&'static str, DropReason> {
        match look(accept, trusted, bytes, complete) {
            HeaderParse::Absent => Ok("absent"),
            HeaderParse::Incomplete => Ok("incomplete"),
            HeaderParse::Whole(..) => Ok("whole"),
            HeaderParse::Refused(reason) => Err(reason),
        }
    }

    #[test]
    fn a_length_beyond_what_is_held_is_refused_at_once() {
        let mut start = V2_SIGNATURE.to_vec();
        start.extend([0x21, 0x11]);
        let with = |length: usize| [&start[..], &(length as u16).to_be_bytes()].concat();
        let longest = with(LONGEST - 16);
        assert_eq!(
            look(AcceptProxy::Required, true, &longest, false),
            HeaderParse::Incomplete
        );
        let longer = with(LONGEST - 15);
        assert_eq!(
            look(AcceptProxy::Required, true, &longer, false),
            HeaderParse::Refused(SHORT)
        );
    }

    #[test]
    fn fields_are_kept_as_far_as_there_is_room_and_without_checksum() {
        let mut room = [0; 2 * MAX_FIELDS];
        let mut tlvs = TlvWriter::new(&mut room);
        let large = [7; MAX_FIELDS - 10];
        tlvs.push(&Tlv::Authority(b"a.test"))
            .and_then(|tlvs| tlvs.push_checksum())
            .and_then(|tlvs| tlvs.push(&Tlv::Netns(&large)))
            .and_then(|tlvs| tlvs.push(&Tlv::UniqueId(b"1")))
            .expect("room");
        let from = |text: &str| text.parse().expect("address");
        let header = Header::proxy(
            Transport::Stream,
            Addresses::from_pair(from("192.0.2.1:5"), from("192.0.2.2:6")),
        )
        .with_tlvs(tlvs.tlvs());
        let carried = ReceivedHeader::of(&header, true).expect("addresses");
        let kept = proxy_protocol::Tlvs::new(carried.said()).expect("fields");
        let kinds: Vec<u8> = kept.raw().map(|(kind, _)| kind).collect();
        assert_eq!(kinds, [kind::AUTHORITY, kind::UNIQUE_ID]);
        assert!(ReceivedHeader::of(&header, false).expect("addresses").said().is_empty());
        assert!(ReceivedHeader::of(&Header::local(), true).is_none());
    }
}
