//! Frames and TCP options.

use e2d2::wire::frame::{self, Kind};
use e2d2::wire::icmpv4::Icmpv4Repr;
use e2d2::wire::tcp::{TcpOptions, TcpPacket, options};

/// Any bytes as a frame: what is accepted lies inside it, and is what smaller parsers say, too.
pub fn frame(bytes: &[u8]) {
    let Ok(kind) = frame::parse(bytes) else {
        return;
    };
    match kind {
        Kind::Tcp(layout) => {
            let [l3, l4, payload, end] = [layout.l3, layout.l4, layout.payload, layout.end].map(usize::from);
            assert!(14 <= l3 && l3 + 20 <= l4 && l4 + 20 <= payload && payload <= end && end <= bytes.len());
            let packet = TcpPacket::new_checked(&bytes[l4..end]).expect("the frame's parser accepted it");
            assert_eq!(packet.payload(), &bytes[payload..end]);
            tcp_options(packet.options());
        }
        Kind::Icmpv4 { l4, end, .. } => {
            let _ = Icmpv4Repr::parse(&bytes[usize::from(l4)..usize::from(end)]);
        }
        _ => {}
    }
}

/// Any bytes as TCP options: nothing outside them is touched, what is changed in place changes the sum by what is said,
/// and what was understood is understood again when written anew.
pub fn tcp_options(bytes: &[u8]) {
    let bytes = &bytes[..bytes.len().min(40)];
    let understood = TcpOptions::parse(bytes);
    let again = TcpOptions::parse(&understood.encode(&[]));
    assert_eq!(again, understood);
    for option in options::iter(bytes) {
        let _ = format!("{option:?}");
    }
    if let Some(at) = options::find_timestamps(bytes) {
        assert!(at + 10 <= bytes.len());
        changed(bytes, |raw| {
            options::write_timestamps(raw, at, 0x0102_0304, 0xfffe_fdfc)
        });
    }
    changed(bytes, |raw| {
        options::translate_sack(raw, |left, right| (left.wrapping_add(7), right.wrapping_add(7)))
    });
    changed(bytes, |raw| options::blank(raw, |kind| kind % 2 == 1));
    let mut all = bytes.to_vec();
    options::blank(&mut all, |_| true);
    assert_eq!(TcpOptions::parse(&all), TcpOptions::NONE);
}

/// A change in place tells by how much the checksum over it moves (RFC 1624).
fn changed(bytes: &[u8], change: impl FnOnce(&mut [u8]) -> e2d2::wire::checksum::Delta) {
    use e2d2::wire::checksum;
    // A sum goes over whole words; options always fill them.
    if !bytes.len().is_multiple_of(4) {
        return;
    }
    // Never all zeros, whose two representations of zero no sum tells apart.
    let with = |raw: &[u8]| checksum::finish(checksum::sum(raw) + checksum::sum(&[0, 1]));
    let mut raw = bytes.to_vec();
    let field = with(&raw);
    let delta = change(&mut raw);
    assert_eq!(delta.apply(field), with(&raw), "{bytes:02x?} became {raw:02x?}");
}
