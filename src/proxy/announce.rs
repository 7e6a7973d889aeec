//! The PROXY header that a connection to a server begins with (DESIGN: decision 5).
//!
//! The header is ours: no client will repeat it. So it becomes the first part of what we owe to the server
//! ([`owed`](super::owed)), goes out as a segment of its own, and all client bytes move behind it in the server's
//! numbering. Built once, when the server has accepted; no allocation.

use super::connection::Connection;
use super::segment::address_of;
use super::settings::Settings;
use crate::config::{Announce, AnnounceFields};
use crate::selectors::{Sought, tls};
use arrayvec::{ArrayString, ArrayVec};
use e2d2::time::Instant;
use proxy_protocol::{Addresses, Header, Tlv, TlvWriter, Transport};
use std::fmt::Write;
use std::net::SocketAddr;

/// The longest header: what HAProxy's specification lets every receiver expect in one piece (536 less TCP's and IP's
/// room for options). Fields that do not fit are left out.
pub(super) const MAX_HEADER: usize = 496;

/// Room for the fields: the rest of the header with IPv6 addresses takes 52 bytes, the checksum seven.
const MAX_FIELDS: usize = MAX_HEADER - 52 - 7;

/// A header, or nothing.
pub(super) type HeaderBytes = ArrayVec<u8, MAX_HEADER>;

/// The header for the server of `connection`, whose client has sent `bytes` so far.
pub(super) fn header(
    settings: &Settings,
    connection: &Connection,
    bytes: &[u8],
    (core, start): (u8, Instant),
) -> HeaderBytes {
    let announce = settings
        .servers
        .get(usize::from(connection.server))
        .map_or(Announce::Off, |server| server.announce);
    let client = SocketAddr::new(address_of(connection.client_address()), connection.client_port);
    let local = address_of(settings.addresses.value(connection.listener_address));
    let addresses = Addresses::from_pair(client, SocketAddr::new(local, connection.listener_port));
    let mut room = [0; MAX_FIELDS + 7];
    let mut out = [0; MAX_HEADER];
    let written = match announce {
        Announce::Off => return HeaderBytes::new(),
        Announce::V1 => Header::v1(addresses).encode(&mut out),
        Announce::V2(fields) => {
            let mut tlvs = TlvWriter::new(&mut room);
            push_fields(
                &mut tlvs,
                fields,
                bytes,
                unique_id(core, start, client.port()).as_bytes(),
            );
            Header::proxy(Transport::Stream, addresses)
                .with_tlvs(tlvs.tlvs())
                .encode(&mut out)
        }
    };
    // Both versions fit by the sizes above; an encoder that says otherwise leaves the server without a header, which it
    // refuses, rather than with a wrong one.
    written
        .ok()
        .and_then(|length| out.get(..length)?.try_into().ok())
        .unwrap_or_default()
}

fn push_fields(tlvs: &mut TlvWriter<'_>, wanted: AnnounceFields, bytes: &[u8], unique_id: &[u8]) {
    // A field that does not fit is left out: the header is a help to the server, not a condition.
    if wanted.alpn
        && let Sought::Found(protocols) = tls::protocols(bytes)
        && let Some(first) = protocols.iter().next()
    {
        let _ = tlvs.push(&Tlv::Alpn(first));
    }
    if wanted.authority
        && let Sought::Found(name) = tls::server_name(bytes)
    {
        let _ = tlvs.push(&Tlv::Authority(name.as_bytes()));
    }
    if wanted.unique_id {
        let _ = tlvs.push(&Tlv::UniqueId(unique_id));
    }
    if wanted.crc32c {
        let _ = tlvs.push_checksum();
    }
}

/// Core, start and client port, as the session record has them: 26 hexadecimal digits.
fn unique_id(core: u8, start: Instant, port: u16) -> ArrayString<32> {
    let mut id = ArrayString::new();
    let _ = write!(id, "{core:02x}{:016x}{port:04x}", start.as_nanos());
    id
}
