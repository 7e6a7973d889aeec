//! The PROXY header that a connection to a server begins with (DECISIONS.md 14).
//!
//! The header is the engine's: no client retransmits it. So it becomes the first part of what the engine retransmits to the server
//! ([`rtx`](crate::retransmit::rtx)), goes out before the client's first bytes, in their segment if both fit, and all client bytes move
//! behind it in the server's numbering. Written once, when the server has accepted, to where it stays until then.

use crate::base::settings::{FieldBuf, SendProxy, SendProxyFields, Settings};
use crate::base::sizes::MAX_HEADER;
use crate::proxy_header::received_headers::ReceivedHeader;
use crate::session::connection::Connection;
use e2d2::time::Instant;
use netfcts::leg::unmapped;
use proxy_protocol::{Addresses, Header, Tlv, TlvWriter, Tlvs, Transport, kind};
use std::net::SocketAddr;

/// Room for the fields of a header that came in: the rest of ours with IPv6 addresses takes 52 bytes, the checksum seven.
pub(crate) const MAX_FIELDS: usize = MAX_HEADER - 52 - 7;

/// Writes the header for the server of `connection`, whose client has sent `bytes` so far, behind a header that said what
/// is `carried`. Returns its length: none if the server wants none.
#[inline]
pub(crate) fn header(
    settings: &Settings,
    connection: &Connection,
    said: (&[u8], Option<&ReceivedHeader>),
    started: (u8, Instant),
    out: &mut [u8; MAX_HEADER],
) -> u16 {
    let server = connection.ends.server(settings);
    match server.map_or(SendProxy::Off, |server| server.announce) {
        SendProxy::Off => 0,
        announce => written(announce, settings, connection, said, started, out),
    }
}

fn written(
    announce: SendProxy,
    settings: &Settings,
    connection: &Connection,
    (bytes, carried): (&[u8], Option<&ReceivedHeader>),
    (core, start): (u8, Instant),
    out: &mut [u8; MAX_HEADER],
) -> u16 {
    let own = (
        (connection.ends.client_address(), connection.ends.client_port),
        (
            settings.addresses.value(connection.ends.listener_address),
            connection.ends.listener_port,
        ),
    );
    let (source, destination) = carried.map_or(own, |carried| (carried.source, carried.destination));
    let socket = |(address, port): (u128, u16)| SocketAddr::new(unmapped(address), port);
    let addresses = Addresses::from_pair(socket(source), socket(destination));
    let written = match announce {
        SendProxy::Off => return 0,
        SendProxy::V1 => Header::v1(addresses).encode(out),
        SendProxy::V2(fields) => Header::proxy(Transport::Stream, addresses).encode_with(out, |tlvs| {
            if fields == SendProxyFields::default() {
                return;
            }
            let parse = |fields| Tlvs::new(fields).unwrap_or(Tlvs::EMPTY);
            let incoming = parse(
                carried
                    .filter(|_| fields.incoming)
                    .map_or(&[][..], ReceivedHeader::said),
            );
            let found = parse(carried.map_or(&[][..], ReceivedHeader::found));
            let sought = SendProxyFields {
                alpn: fields.alpn && incoming.find(kind::ALPN).is_none(),
                authority: fields.authority && incoming.find(kind::AUTHORITY).is_none(),
                ..SendProxyFields::default()
            };
            let mut of_payload = FieldBuf::new();
            (settings.payload_fields)(sought, bytes, &mut of_payload);
            let known = [incoming, parse(of_payload.as_slice()), found];
            push_fields(tlvs, fields, known, (core, start, connection.ends.client_port));
        }),
    };
    // Both versions fit by the sizes above; an encoder that says otherwise leaves the server without a header, which it
    // refuses, rather than with a wrong one.
    written.map_or(0, |length| length as u16)
}

/// Writes the fields of the header that came in, and those of our own that it does not have: who spoke to the client
/// knows better. What the first bytes say was `found` in them before they were given up, if they are not there.
fn push_fields(
    tlvs: &mut TlvWriter<'_>,
    wanted: SendProxyFields,
    [incoming, of_payload, found]: [Tlvs<'_>; 3],
    (core, start, port): (u8, Instant, u16),
) {
    let is_missing = |kind: u8| incoming.find(kind).is_none();
    let told = |kind: u8| of_payload.find(kind).or_else(|| found.find(kind));
    // A field that does not fit is left out: the header is a help to the server, not a condition.
    for tlv in incoming.iter() {
        let _ = tlvs.push(&tlv);
    }
    if wanted.alpn
        && is_missing(kind::ALPN)
        && let Some(first) = told(kind::ALPN)
    {
        let _ = tlvs.push(&Tlv::Alpn(first));
    }
    if wanted.authority
        && is_missing(kind::AUTHORITY)
        && let Some(name) = told(kind::AUTHORITY)
    {
        let _ = tlvs.push(&Tlv::Authority(name));
    }
    if wanted.unique_id && is_missing(kind::UNIQUE_ID) {
        let _ = tlvs.push(&Tlv::UniqueId(&unique_id(core, start, port)));
    }
    if wanted.crc32c {
        let _ = tlvs.push_checksum();
    }
}

/// What the client's first bytes say that a header for some server wants to say: the fields that [`header`] would write, one
/// after the other. `None` if they are too many to be kept.
pub(crate) fn found(settings: &Settings, wanted: SendProxyFields, bytes: &[u8]) -> Option<FieldBuf> {
    let mut fields = FieldBuf::new();
    (settings.payload_fields)(wanted, bytes, &mut fields);
    (fields.len() <= MAX_FIELDS).then_some(fields)
}

/// Core, start and client port, as the session record has them: 22 hexadecimal digits.
fn unique_id(core: u8, start: Instant, port: u16) -> [u8; 22] {
    let value = u128::from(core) << 80 | u128::from(start.as_nanos()) << 16 | u128::from(port);
    std::array::from_fn(|digit| b"0123456789abcdef"[(value >> (4 * (21 - digit))) as usize & 0xf])
}
