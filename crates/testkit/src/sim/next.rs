//! The sequence number of a segment that only acknowledges.
//!
//! RFC 9293 3.10.7.4: an ACK is sent with SEQ=SND.NXT, the number behind all that was sent; one whose number lies before
//! RCV.NXT is not acceptable, and its acknowledgement is not looked at. smoltcp 0.14 sets SND.NXT back to the first
//! unacknowledged byte when its retransmission timer expires, and Nagle's algorithm (RFC 9293 3.7.4) then holds back a last
//! part that fills no segment: its ACKs have a number inside what its peer already has. If that befalls both ends, each
//! drops the acknowledgements of the other, for ever.

use super::duty::{Ends, Numbers};
use super::host::segment;
use e2d2::wire::frame::{self, Kind};
use e2d2::wire::tcp::TcpPacket;
use netfcts::SeqNum;
use std::collections::BTreeMap;

/// SND.NXT of a host's connections, as if it never went back.
#[derive(Debug, Default)]
pub(super) struct Nexts(BTreeMap<Ends, SeqNum>);

impl Nexts {
    /// The number that a segment is to have that a host sends. What it sends while the peer's window `is_closed` is a probe,
    /// which the peer need not take: SND.NXT stays before it until it is acknowledged.
    pub(super) fn number(&mut self, ends: Ends, numbers: Numbers, is_closed: bool) -> u32 {
        let end = SeqNum(numbers.seq) + numbers.len;
        if numbers.is_syn {
            self.0.insert(ends, end);
        } else if let (Some(next), Some(_)) = (self.0.get_mut(&ends), numbers.ack) {
            if numbers.len == 0 && end < *next {
                return next.0;
            }
            if end > *next && !is_closed {
                *next = end;
            }
        }
        numbers.seq
    }
}

/// Writes another sequence number into a segment, and the checksum that goes with it.
pub(super) fn write(frame: &mut [u8], seq: u32) {
    let (Ok(Kind::Tcp(layout)), Some((from, to, _))) = (frame::parse(frame), segment(frame)) else {
        return;
    };
    let tcp = TcpPacket::new_checked(&mut frame[usize::from(layout.l4)..usize::from(layout.end)]);
    if let Ok(mut tcp) = tcp {
        tcp.set_seq(seq);
        tcp.fill_checksum(from, to);
    }
}

/// Makes an ACK with these numbers of a segment.
pub(super) fn write_question(frame: &mut [u8], (seq, ack): (SeqNum, SeqNum)) {
    let (Ok(Kind::Tcp(layout)), Some((from, to, _))) = (frame::parse(frame), segment(frame)) else {
        return;
    };
    let tcp = &mut frame[usize::from(layout.l4)..usize::from(layout.end)];
    tcp[8..12].copy_from_slice(&ack.0.to_be_bytes());
    tcp[13] = 0x10;
    if let Ok(mut tcp) = TcpPacket::new_checked(tcp) {
        tcp.set_seq(seq.0);
        tcp.fill_checksum(from, to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{Host, HostPlan, SocketId, SynOptions};
    use e2d2::time::Instant;
    use std::net::{IpAddr, Ipv4Addr, SocketAddr};
    use std::time::Duration;

    #[test]
    fn an_ack_has_the_number_behind_all_that_the_window_let_through() {
        let ends = (1, (IpAddr::V4(Ipv4Addr::LOCALHOST), 2));
        let numbers = |seq, len| Numbers {
            seq,
            len,
            ack: Some(7),
            is_syn: false,
            is_rst: false,
        };
        let syn = Numbers {
            is_syn: true,
            ack: None,
            ..numbers(u32::MAX, 1)
        };
        let mut nexts = Nexts::default();
        assert_eq!(nexts.number(ends, numbers(3, 0), false), 3, "not of this connection");
        assert_eq!(nexts.number(ends, syn, false), u32::MAX);
        assert_eq!(nexts.number(ends, numbers(0, 100), false), 0);
        assert_eq!(nexts.number(ends, numbers(0, 60), false), 0, "repeated");
        assert_eq!(nexts.number(ends, numbers(60, 0), false), 100, "an ACK behind it");
        assert_eq!(nexts.number(ends, numbers(100, 1), true), 100, "a probe");
        assert_eq!(nexts.number(ends, numbers(100, 0), true), 100);
        assert_eq!(nexts.number(ends, numbers(101, 0), true), 101, "the probe was taken");
        let reset = Numbers {
            ack: None,
            ..numbers(60, 0)
        };
        assert_eq!(nexts.number(ends, reset, false), 60);
        assert_eq!(
            nexts.number(ends, Numbers { seq: 5, ..syn }, false),
            5,
            "another connection"
        );
        assert_eq!(nexts.number(ends, numbers(6, 0), false), 6);
    }

    /// Two hosts on one cable.
    struct Pair {
        hosts: [Host; 2],
        now: Instant,
    }

    impl Pair {
        fn new() -> Self {
            let host = |n: u8| {
                let plan = HostPlan {
                    mac: n,
                    addresses: vec![format!("10.0.0.{n}/24")],
                    mtu: 1500,
                    options: SynOptions {
                        timestamps: false,
                        ..SynOptions::ALL
                    },
                };
                Host::new(&plan, u64::from(n), Instant::ZERO)
            };
            Pair {
                hosts: [host(1), host(2)],
                now: Instant::ZERO,
            }
        }

        /// Some time passes; segments without payload get lost if so wanted.
        fn pass(&mut self, time: Duration, loses_acks: bool) {
            let until = self.now + time;
            loop {
                let sent = [0, 1].map(|n| self.hosts[n].poll(self.now).collect::<Vec<_>>());
                let is_quiet = sent.iter().all(Vec::is_empty);
                for (frames, to) in sent.into_iter().zip([1, 0]) {
                    let is_bare = |frame: &Vec<u8>| segment(frame).is_some_and(|(_, _, tcp)| tcp.payload().is_empty());
                    let arriving = frames.into_iter().filter(|frame| !(loses_acks && is_bare(frame)));
                    arriving.for_each(|frame| self.hosts[to].receive(frame));
                }
                if is_quiet {
                    let next = self.hosts.iter().filter_map(|host| host.next_poll(self.now)).min();
                    self.now = next.unwrap_or(until).max(self.now + Duration::from_millis(1));
                    if self.now >= until {
                        self.now = until;
                        return;
                    }
                }
            }
        }

        fn send(&mut self, sockets: [SocketId; 2], bytes: usize) {
            for (host, id) in self.hosts.iter_mut().zip(sockets) {
                assert_eq!(host.socket(id).send_slice(&vec![b'x'; bytes]), Ok(bytes));
            }
        }
    }

    /// Both ends have got all from each other, and all ACKs were lost: both repeat all but the last part.
    #[test]
    fn two_ends_that_repeat_hear_each_other() {
        let mut pair = Pair::new();
        pair.hosts[1].listen(80, (10_000, 10_000), false);
        let address = |n, port| SocketAddr::from((Ipv4Addr::new(10, 0, 0, n), port));
        let client = pair.hosts[0].add_socket(10_000, 10_000);
        pair.hosts[0].connect(client, address(2, 80), address(1, 1000));
        pair.pass(Duration::from_secs(1), false);
        let server = pair.hosts[1].take_accepted()[0];
        let sockets = [client, server];

        pair.send(sockets, 100);
        let first = [0, 1].map(|n| pair.hosts[n].poll(pair.now).collect::<Vec<_>>());
        pair.send(sockets, 1460);
        let second = [0, 1].map(|n| pair.hosts[n].poll(pair.now).collect::<Vec<_>>());
        for (n, to) in [(0, 1), (1, 0)] {
            let frames = [&first[n], &second[n]].into_iter().flatten();
            frames.for_each(|frame| pair.hosts[to].receive(frame.clone()));
        }
        pair.pass(Duration::from_millis(500), true);
        for (host, id) in pair.hosts.iter_mut().zip(sockets) {
            let socket = host.socket(id);
            assert_eq!((socket.recv_queue(), socket.send_queue()), (1560, 1560));
        }
        pair.pass(Duration::from_secs(60), false);
        for (host, id) in pair.hosts.iter_mut().zip(sockets) {
            assert_eq!(host.socket(id).send_queue(), 0, "all is acknowledged");
        }
    }
}
