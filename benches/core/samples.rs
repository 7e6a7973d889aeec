//! What the parts of a connection are measured with: a key, a segment, and the values that rewriting puts into it.

use e2d2::wire::MacAddr;
use e2d2::wire::tcp::TcpOptions;
use netfcts::FourTuple;
use splice::translate::Rewrite;
use testkit::{Segment, Station};

/// The key of a flow of its own for each number.
pub(crate) fn key(n: u32) -> FourTuple {
    FourTuple {
        remote: 0xffff_0a00_0000 | u128::from(n),
        local: 0xffff_0a01_0001,
        remote_port: n as u16,
        local_port: 80,
    }
}

/// A segment with timestamps and so many bytes.
pub(crate) fn segment(from: &str, to: &str, payload: usize) -> Segment {
    Segment {
        options: TcpOptions {
            timestamps: Some((1, 2)),
            ..TcpOptions::NONE
        },
        payload: vec![0; payload],
        ..Segment::between(Station::new(1, from), Station::new(9, to))
    }
}

/// A change of everything that splicing changes.
pub(crate) fn values() -> Rewrite {
    Rewrite {
        source_mac: MacAddr([2; 6]),
        destination_mac: MacAddr([4; 6]),
        source: 0xffff_0a01_0009,
        destination: 0xffff_0a01_0064,
        source_port: 1024,
        destination_port: 8080,
        seq: 77,
        ack: 88,
        window: 500,
        tsval_shift: 5,
        tsecr_shift: 6,
        sack_shift: 7,
        blank_sack: false,
        ip_id: 1,
    }
}
