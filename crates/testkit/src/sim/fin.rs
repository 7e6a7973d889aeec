//! Data and FIN of one segment, one after the other.
//!
//! RFC 9293 3.10.7.4: a segment is trimmed to the window, and its FIN lies behind its data: where data is cut off, the FIN is
//! too. smoltcp 0.14 cuts off the data and takes the FIN, as if the stream ended there. As two segments, the FIN has a
//! number of its own, which smoltcp looks at.

use super::host::segment;
use e2d2::wire::frame::{self, IpVersion, Kind};
use e2d2::wire::ipv4::Ipv4Header;
use e2d2::wire::ipv6::Ipv6Packet;
use e2d2::wire::tcp::{TcpFlags, TcpPacket};

/// The data and the FIN of an intact segment that has both.
pub(super) fn apart(frame: &[u8]) -> Option<[Vec<u8>; 2]> {
    let Kind::Tcp(layout) = frame::parse(frame).ok()? else {
        return None;
    };
    let (from, to, tcp) = segment(frame)?;
    let flags = tcp.flags();
    if tcp.payload().is_empty() || !flags.contains(TcpFlags::FIN) || !tcp.is_checksum_valid(from, to) {
        return None;
    }
    let behind = tcp.seq().wrapping_add(tcp.payload().len() as u32);
    let (l3, l4) = (usize::from(layout.l3), usize::from(layout.l4));
    let (payload, end) = (usize::from(layout.payload), usize::from(layout.end));

    let mut data = frame.to_vec();
    let mut tcp = TcpPacket::new_checked(&mut data[l4..end]).ok()?;
    tcp.set_flags(flags - TcpFlags::FIN);
    tcp.fill_checksum(from, to);

    let mut fin = frame.to_vec();
    match layout.version {
        IpVersion::V4 => {
            let mut ip = Ipv4Header(fin[l3..].first_chunk_mut()?);
            ip.set_total_len((payload - l3) as u16);
            ip.fill_checksum();
        }
        IpVersion::V6 => Ipv6Packet::new_checked(&mut fin[l3..end])
            .ok()?
            .set_payload_len((payload - l4) as u16),
    }
    fin.truncate(payload);
    let mut tcp = TcpPacket::new_checked(&mut fin[l4..]).ok()?;
    tcp.set_seq(behind);
    tcp.fill_checksum(from, to);
    Some([data, fin])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Segment, Station};

    #[test]
    fn both_parts_are_whole_segments_side_by_side() {
        for (from, to) in [("10.0.0.1:1", "10.0.0.2:2"), ("[fd00::1]:1", "[fd00::2]:2")] {
            let whole = Segment {
                seq: u32::MAX - 1,
                ack: 7,
                flags: TcpFlags::ACK | TcpFlags::FIN,
                payload: b"abc".to_vec(),
                ..Segment::between(Station::new(1, from), Station::new(2, to))
            };
            let [data, fin] = apart(&whole.frame()).expect("data and FIN");
            for part in [&data, &fin] {
                let (from, to, tcp) = segment(part).expect("a segment");
                assert!(tcp.is_checksum_valid(from, to));
            }
            let flags = TcpFlags::ACK;
            assert_eq!(Segment::read(&data), Segment { flags, ..whole.clone() });
            let rest = Segment {
                seq: 1,
                payload: Vec::new(),
                ..whole.clone()
            };
            assert_eq!(Segment::read(&fin), rest);
            assert_eq!(apart(&data), None);
            assert_eq!(apart(&fin), None);
        }
    }
}
