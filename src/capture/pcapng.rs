//! The blocks of a pcapng file that a capture needs, as bytes.
//!
//! Source: draft-ietf-opsawg-pcapng-03, by its sections. Numbers are little-endian: a reader sees that from the section header.

/// Ethernet (draft-ietf-opsawg-pcaplinktype 3).
pub(super) const ETHERNET: u16 = 1;

/// A packet of this program's own making, in the form that Wireshark reads exported PDUs in.
pub(super) const UPPER_PDU: u16 = 252;

/// Bytes of a comment, at most; an option has 65 535.
const MOST_COMMENT: usize = 32_768;

/// An enhanced packet block (4.3).
#[derive(Clone, Debug)]
pub(super) struct Packet<'a> {
    /// The interface, by the order of their blocks.
    pub(super) interface: u32,
    /// Nanoseconds from 1970.
    pub(super) at_ns: u64,
    /// What was captured.
    pub(super) bytes: &'a [u8],
    /// Bytes on the wire.
    pub(super) length: u32,
    /// Lines for readers.
    pub(super) comments: &'a [String],
    /// Whether it came in.
    pub(super) is_inbound: bool,
    /// Packets that were lost between the one before and this one.
    pub(super) lost: u64,
    /// The same for packets that were one.
    pub(super) id: u64,
    /// The core.
    pub(super) queue: u32,
}

/// An interface statistics block (4.6).
#[derive(Clone, Copy, Debug)]
pub(super) struct Statistics<'a> {
    /// The interface.
    pub(super) interface: u32,
    /// When the capture began and ended, in nanoseconds from 1970.
    pub(super) from_to_ns: (u64, u64),
    /// Packets that are in the file or were lost.
    pub(super) received: u64,
    /// Packets that were lost.
    pub(super) lost: u64,
    /// A line for readers.
    pub(super) comment: Option<&'a str>,
}

/// Begins a block of this type and returns where.
fn begin(out: &mut Vec<u8>, kind: u32) -> usize {
    let at = out.len();
    out.extend_from_slice(&kind.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    at
}

/// Ends the block that begins at `at`.
fn end(out: &mut Vec<u8>, at: usize) {
    // A block is far smaller than 2^32 bytes.
    let length = ((out.len() - at + 4) as u32).to_le_bytes();
    out.extend_from_slice(&length);
    out[at + 4..at + 8].copy_from_slice(&length);
}

fn pad(out: &mut Vec<u8>) {
    while !out.len().is_multiple_of(4) {
        out.push(0);
    }
}

/// 3.5: every block has a length that four divides, so that options are aligned by the length of what is there.
fn option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    let length = value.len().min(usize::from(u16::MAX)) as u16;
    out.extend_from_slice(&code.to_le_bytes());
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(&value[..usize::from(length)]);
    pad(out);
}

fn end_of_options(out: &mut Vec<u8>) {
    out.extend_from_slice(&[0; 4]);
}

/// 4.1: the section header block, with which a file begins.
pub(super) fn section_header(out: &mut Vec<u8>, application: &str, comment: &str) {
    let at = begin(out, 0x0a0d_0d0a);
    out.extend_from_slice(&0x1a2b_3c4d_u32.to_le_bytes());
    out.extend_from_slice(&1_u16.to_le_bytes());
    out.extend_from_slice(&0_u16.to_le_bytes());
    // The length of the section is not known.
    out.extend_from_slice(&u64::MAX.to_le_bytes());
    option(out, 1, comment.as_bytes());
    option(out, 4, application.as_bytes());
    end_of_options(out);
    end(out, at);
}

/// 4.2: an interface description block; times are in nanoseconds.
pub(super) fn interface(out: &mut Vec<u8>, link: u16, snaplen: u32, (name, description): (&str, &str)) {
    let at = begin(out, 1);
    out.extend_from_slice(&link.to_le_bytes());
    out.extend_from_slice(&[0; 2]);
    out.extend_from_slice(&snaplen.to_le_bytes());
    option(out, 2, name.as_bytes());
    option(out, 3, description.as_bytes());
    option(out, 9, &[9]);
    end_of_options(out);
    end(out, at);
}

fn time(out: &mut Vec<u8>, nanoseconds: u64) {
    out.extend_from_slice(&((nanoseconds >> 32) as u32).to_le_bytes());
    out.extend_from_slice(&(nanoseconds as u32).to_le_bytes());
}

/// 4.3: a packet.
pub(super) fn packet(out: &mut Vec<u8>, packet: &Packet<'_>) {
    let at = begin(out, 6);
    out.extend_from_slice(&packet.interface.to_le_bytes());
    time(out, packet.at_ns);
    out.extend_from_slice(&(packet.bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(&packet.length.to_le_bytes());
    out.extend_from_slice(packet.bytes);
    pad(out);
    for comment in packet.comments {
        option(out, 1, &comment.as_bytes()[..end_of_text(comment)]);
    }
    let direction: u32 = if packet.is_inbound { 1 } else { 2 };
    option(out, 2, &direction.to_le_bytes());
    if packet.lost > 0 {
        option(out, 4, &packet.lost.to_le_bytes());
    }
    option(out, 5, &packet.id.to_le_bytes());
    option(out, 6, &packet.queue.to_le_bytes());
    end_of_options(out);
    end(out, at);
}

/// As much of a comment as an option takes, in whole characters.
fn end_of_text(comment: &str) -> usize {
    let mut end = comment.len().min(MOST_COMMENT);
    while !comment.is_char_boundary(end) {
        end -= 1;
    }
    end
}

/// 4.6: what became of an interface's packets.
pub(super) fn statistics(out: &mut Vec<u8>, of: &Statistics<'_>) {
    let at = begin(out, 5);
    out.extend_from_slice(&of.interface.to_le_bytes());
    let (from, to) = of.from_to_ns;
    time(out, to);
    if let Some(comment) = of.comment {
        option(out, 1, &comment.as_bytes()[..end_of_text(comment)]);
    }
    for (code, moment) in [(2, from), (3, to)] {
        let mut value = Vec::with_capacity(8);
        time(&mut value, moment);
        option(out, code, &value);
    }
    option(out, 4, &of.received.to_le_bytes());
    option(out, 5, &of.lost.to_le_bytes());
    end_of_options(out);
    end(out, at);
}

/// A text as a packet of [`UPPER_PDU`]: two tags name who shows it and end the tags, and the text follows.
///
/// Source: epan/exported_pdu.h of Wireshark: a tag and a length in network byte order, padded to four.
pub(super) fn text_packet(text: &str) -> Vec<u8> {
    const DISSECTOR_NAME: u16 = 12;
    let name = b"data-text-lines\0";
    let mut packet = Vec::with_capacity(24 + text.len());
    packet.extend_from_slice(&DISSECTOR_NAME.to_be_bytes());
    packet.extend_from_slice(&(name.len() as u16).to_be_bytes());
    packet.extend_from_slice(name);
    packet.extend_from_slice(&[0; 4]);
    packet.extend_from_slice(text.as_bytes());
    packet
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Type, length, and what stands between its two lengths, of each block.
    fn blocks(mut bytes: &[u8]) -> Vec<(u32, &[u8])> {
        let mut found = Vec::new();
        while let Some((head, _)) = bytes.split_first_chunk::<8>() {
            let word = |at: usize| u32::from_le_bytes(*head[at..].first_chunk().expect("a word"));
            let (kind, length) = (word(0), word(4) as usize);
            assert!(length.is_multiple_of(4) && length <= bytes.len());
            assert_eq!(bytes[4..8], bytes[length - 4..length], "both lengths");
            found.push((kind, &bytes[8..length - 4]));
            bytes = &bytes[length..];
        }
        assert!(bytes.is_empty());
        found
    }

    #[test]
    fn every_block_says_its_length_twice_and_is_aligned() {
        let mut out = Vec::new();
        section_header(&mut out, "proxyengine", "a capture");
        interface(&mut out, ETHERNET, 128, ("eth0", "clients"));
        let comments = ["a".to_owned(), "ä".repeat(40_000)];
        for length in 0..9 {
            let of = Packet {
                interface: 0,
                at_ns: 1_700_000_000_123_456_789,
                bytes: &[7; 9][..length],
                length: 1500,
                comments: &comments,
                is_inbound: true,
                lost: 3,
                id: 17,
                queue: 1,
            };
            packet(&mut out, &of);
        }
        let of = Statistics {
            interface: 0,
            from_to_ns: (1, 2),
            received: 12,
            lost: 3,
            comment: Some("it has ended"),
        };
        statistics(&mut out, &of);
        let kinds: Vec<u32> = blocks(&out).iter().map(|(kind, _)| *kind).collect();
        assert_eq!(kinds, [vec![0x0a0d_0d0a, 1], vec![6; 9], vec![5]].concat());
        let (_, first) = blocks(&out)[2];
        let ns = u64::from(u32::from_le_bytes(*first[4..].first_chunk().expect("high"))) << 32
            | u64::from(u32::from_le_bytes(*first[8..].first_chunk().expect("low")));
        assert_eq!(ns, 1_700_000_000_123_456_789);
    }
}
