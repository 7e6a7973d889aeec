//! The rewriting of a spliced segment, in place: each field that differs between the legs, touched once.
//!
//! The new values come from the connection; this file knows only where they stand in the packet. The TCP checksum is
//! brought along incrementally (RFC 1624 eqn. 3): an error that a sender's checksum would reveal stays revealed to the
//! receiver, because no sum is ever made afresh over bytes we have not made.
//!
//! Budget: 40 cycles for an IPv4 segment with timestamps. Source: `benches/core`.

use crate::base::drop_reason::DropReason;
use e2d2::wire::MacAddr;
use e2d2::wire::checksum::Delta;
use e2d2::wire::frame::{IpVersion, TcpLayout};
use e2d2::wire::tcp::options;

/// The values that a forwarded segment gets.
#[derive(Clone, Copy, Debug)]
pub struct Rewrite {
    /// Our MAC address on the port it leaves by.
    pub source_mac: MacAddr,
    /// The next hop's.
    pub destination_mac: MacAddr,
    /// Our address, IPv4 in its mapped form.
    pub source: u128,
    /// The receiver's.
    pub destination: u128,
    /// Our port.
    pub source_port: u16,
    /// The receiver's.
    pub destination_port: u16,
    /// SEQ in the receiver's view.
    pub seq: u32,
    /// ACK in the receiver's view; ignored without ACK flag.
    pub ack: u32,
    /// The window field in the receiver's view.
    pub window: u16,
    /// Added to TSval.
    pub tsval_shift: u32,
    /// Taken from TSecr.
    pub tsecr_shift: u32,
    /// Taken from the edges of SACK blocks.
    pub sack_shift: u32,
    /// SACK blocks become NOPs.
    pub blank_sack: bool,
    /// The IPv4 identification for packets that may be fragmented (RFC 6864 4.1).
    pub ip_id: u16,
}

/// Rewrites the TCP packet in `frame`, whose headers are where `layout` says, and whose version of IP is that of the
/// addresses in `values`. For those of the other version there is [`siit`](crate::rewrite::siit).
///
/// # Errors
/// [`DropReason::HopLimit`] if the packet may not be passed on; the frame is then as it was.
pub fn rewrite(frame: &mut [u8], layout: &TcpLayout, values: &Rewrite) -> Result<(), DropReason> {
    rewrite_here(frame, *layout, values)
}

/// [`rewrite`] on the path of every packet, where the values are not put together in memory.
///
/// # Errors
/// As there.
#[inline(always)]
pub(crate) fn rewrite_here(frame: &mut [u8], layout: TcpLayout, values: &Rewrite) -> Result<(), DropReason> {
    let (lower, tcp) = frame
        .split_at_mut_checked(usize::from(layout.l4))
        .ok_or(DropReason::BadLayout)?;
    let (ethernet, ip) = lower
        .split_at_mut_checked(usize::from(layout.l3))
        .ok_or(DropReason::BadLayout)?;
    let addresses = match layout.version {
        IpVersion::V4 => rewrite_ipv4(ip, values)?,
        IpVersion::V6 => rewrite_ipv6(ip, values)?,
    };
    if let Some(macs) = ethernet.first_chunk_mut::<12>() {
        macs[..6].copy_from_slice(&values.destination_mac.0);
        macs[6..].copy_from_slice(&values.source_mac.0);
    }
    let header_len = usize::from(layout.payload - layout.l4);
    rewrite_tcp(tcp, header_len, addresses, values);
    Ok(())
}

/// Returns what the change of addresses does to the TCP checksum.
#[inline(always)]
fn rewrite_ipv4(ip: &mut [u8], values: &Rewrite) -> Result<Delta, DropReason> {
    let Some(header) = ip.first_chunk_mut::<20>() else {
        return Err(DropReason::BadLayout);
    };
    // RFC 1812 5.3.1: a router never passes on a packet whose TTL it counts down to zero.
    let old_ttl = read16(header, 8);
    if old_ttl >> 8 <= 1 {
        return Err(DropReason::HopLimit);
    }
    let old_source = read32(header, 12);
    let old_destination = read32(header, 16);
    let (source, destination) = (values.source as u32, values.destination as u32);
    let addresses = Delta::ZERO
        .replace32(old_source, source)
        .replace32(old_destination, destination);
    let mut ip_delta = addresses;

    let new_ttl = old_ttl - 0x0100;
    ip_delta = ip_delta.replace16(old_ttl, new_ttl);
    write16(header, 8, new_ttl);

    // RFC 6864 4.1: an atomic datagram's ID means nothing; all others get one that is unique for our address.
    let flags = read16(header, 6);
    if flags & 0x4000 == 0 {
        ip_delta = ip_delta.replace16(read16(header, 4), values.ip_id);
        write16(header, 4, values.ip_id);
    }
    write32(header, 12, source);
    write32(header, 16, destination);
    let checksum = ip_delta.apply(read16(header, 10));
    write16(header, 10, checksum);
    Ok(addresses)
}

/// Returns what the change of addresses does to the TCP checksum.
#[inline]
fn rewrite_ipv6(ip: &mut [u8], values: &Rewrite) -> Result<Delta, DropReason> {
    let Some(header) = ip.first_chunk_mut::<40>() else {
        return Err(DropReason::BadLayout);
    };
    // RFC 8200 3: the same for the hop limit.
    if header[7] <= 1 {
        return Err(DropReason::HopLimit);
    }
    header[7] -= 1;
    let mut addresses = Delta::ZERO;
    for (at, new) in [(8, values.source), (24, values.destination)] {
        let new = new.to_be_bytes();
        for word in 0..4 {
            let value = read32(&new, word * 4);
            addresses = addresses.replace32(read32(header, at + word * 4), value);
            write32(header, at + word * 4, value);
        }
    }
    Ok(addresses)
}

/// Rewrites a TCP header of `header_len` bytes, with its options; `addresses` is what has become of the pseudo header.
#[inline(always)]
pub(crate) fn rewrite_tcp(tcp: &mut [u8], header_len: usize, addresses: Delta, values: &Rewrite) {
    let Some((header, rest)) = tcp.split_first_chunk_mut::<20>() else {
        return;
    };
    let mut delta = addresses;
    let old_ports = read32(header, 0);
    let ports = u32::from(values.source_port) << 16 | u32::from(values.destination_port);
    delta = delta.replace32(old_ports, ports);
    write32(header, 0, ports);

    delta = delta.replace32(read32(header, 4), values.seq);
    write32(header, 4, values.seq);

    const ACK: u8 = 0x10;
    if header[13] & ACK != 0 {
        delta = delta.replace32(read32(header, 8), values.ack);
        write32(header, 8, values.ack);
    }
    delta = delta.replace16(read16(header, 14), values.window);
    write16(header, 14, values.window);

    let options = rest.get_mut(..header_len.saturating_sub(20)).unwrap_or_default();
    if !options.is_empty() {
        delta = rewrite_options(options, delta, values);
    }
    let checksum = delta.apply(read16(header, 16));
    write16(header, 16, checksum);
}

/// Translates timestamps and SACK blocks; everything else passes as it is.
#[inline(always)]
fn rewrite_options(raw: &mut [u8], mut delta: Delta, values: &Rewrite) -> Delta {
    // RFC 7323 3.2: TSecr is valid whenever ACK is set, and every spliced segment has ACK.
    let shift = |tsval: u32, tsecr: u32| {
        (
            tsval.wrapping_add(values.tsval_shift),
            tsecr.wrapping_sub(values.tsecr_shift),
        )
    };
    if let Some(delta_of_both) = options::replace_only_timestamps(raw, shift) {
        return delta + delta_of_both;
    }
    if let Some(at) = options::find_timestamps(raw)
        && let Some((tsval, tsecr)) = options::read_timestamps(raw, at)
    {
        let (tsval, tsecr) = shift(tsval, tsecr);
        delta += options::write_timestamps(raw, at, tsval, tsecr);
    }
    if values.blank_sack {
        delta += options::blank(raw, |kind| kind == options::kind::SACK);
    } else {
        let shift = values.sack_shift;
        delta += options::translate_sack(raw, |left, right| (left.wrapping_sub(shift), right.wrapping_sub(shift)));
    }
    delta
}

#[inline]
fn read16(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).map_or(0, |b| u16::from_be_bytes([b[0], b[1]]))
}

#[inline]
fn read32(bytes: &[u8], at: usize) -> u32 {
    bytes
        .get(at..at + 4)
        .map_or(0, |b| u32::from_be_bytes([b[0], b[1], b[2], b[3]]))
}

#[inline]
fn write16(bytes: &mut [u8], at: usize, value: u16) {
    if let Some(b) = bytes.get_mut(at..at + 2) {
        b.copy_from_slice(&value.to_be_bytes());
    }
}

#[inline]
fn write32(bytes: &mut [u8], at: usize, value: u32) {
    if let Some(b) = bytes.get_mut(at..at + 4) {
        b.copy_from_slice(&value.to_be_bytes());
    }
}
