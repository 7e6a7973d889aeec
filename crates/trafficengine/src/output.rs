//! Writes segments into packet buffers and hands them to the port in bursts.

use std::net::{IpAddr, Ipv6Addr};

use arrayvec::ArrayVec;
use e2d2::BURST;
use e2d2::buffer::{BufferPool, PacketBuffer};
use e2d2::port::Port;
use e2d2::wire::tcp::{TcpFlags, TcpOptions, TcpRepr};
use e2d2::wire::{Checksums, Envelope, MacAddr};
use netfcts::{SeqNum, TcpCounter, TcpCounters};

use crate::stats::Traffic;
use crate::tcb::{Marks, Outgoing, Tcb, TcpSettings, Ticks};

/// Packets that wait for a port that takes none: as many as two large transmit rings hold.
const MAX_WAITING: usize = 8_192;

/// Segments of one connection that go out in one go: the largest congestion window can wait for its turn.
const MAX_PER_TURN: usize = 64;

const HOP_LIMIT: u8 = 64;

/// Packets on their way to the port, in bursts as the port takes them, so that none is moved twice.
pub(crate) struct Transmitter<B> {
    /// The first `used` hold packets in order; the others are empty and wait to be used again.
    bursts: Vec<ArrayVec<B, BURST>>,
    used: usize,
    waiting: usize,
    payload: Vec<u8>,
    pub(crate) packets: u64,
    pub(crate) dropped: u64,
}

impl<B: PacketBuffer> Transmitter<B> {
    pub(crate) fn new() -> Transmitter<B> {
        Transmitter {
            bursts: Vec::with_capacity(4),
            used: 0,
            waiting: 0,
            payload: vec![0; usize::from(u16::MAX)],
            packets: 0,
            dropped: 0,
        }
    }

    /// Whether packets are left that the port did not take.
    pub(crate) fn is_blocked(&self) -> bool {
        self.waiting > 2 * BURST
    }

    fn push(&mut self, buffer: B) {
        if self.used == 0 || self.bursts[self.used - 1].is_full() {
            if self.used == self.bursts.len() {
                self.bursts.push(ArrayVec::new());
            }
            self.used += 1;
        }
        self.bursts[self.used - 1].push(buffer);
        self.waiting += 1;
    }

    /// Offers everything that waits to the port; returns how many packets it took.
    pub(crate) fn flush<P: Port<Buffer = B>>(&mut self, port: &mut P) -> usize {
        let (mut taken, mut done) = (0, 0);
        while done < self.used {
            taken += port.transmit(&mut self.bursts[done]);
            if !self.bursts[done].is_empty() {
                break;
            }
            done += 1;
        }
        if done < self.used {
            self.bursts[..self.used].rotate_left(done);
        }
        self.used -= done;
        self.waiting -= taken;
        self.packets += taken as u64;
        taken
    }
}

/// Everything needed to send a packet now.
pub(crate) struct Output<'a, L: BufferPool> {
    pub(crate) pool: &'a mut L,
    pub(crate) transmitter: &'a mut Transmitter<L::Buffer>,
    pub(crate) mac: MacAddr,
    pub(crate) checksums: Checksums,
    pub(crate) ticks: Ticks,
}

/// A segment that belongs to no connection.
pub(crate) struct Loose {
    pub(crate) envelope: Envelope,
    pub(crate) src_port: u16,
    pub(crate) dst_port: u16,
    pub(crate) seq: SeqNum,
    pub(crate) ack: SeqNum,
    pub(crate) flags: TcpFlags,
}

impl<L: BufferPool> Output<'_, L> {
    /// A buffer for a packet that `write` fills in; returns whether it is on its way.
    pub(crate) fn send_with(&mut self, write: impl FnOnce(&mut L::Buffer) -> bool) -> bool {
        if self.transmitter.waiting >= MAX_WAITING {
            self.transmitter.dropped += 1;
            return false;
        }
        let Some(mut buffer) = self.pool.take() else {
            self.transmitter.dropped += 1;
            return false;
        };
        if !write(&mut buffer) {
            self.transmitter.dropped += 1;
            return false;
        }
        self.transmitter.push(buffer);
        true
    }

    /// Sends a segment that belongs to no connection.
    pub(crate) fn send_loose(&mut self, loose: &Loose) {
        let repr = TcpRepr {
            envelope: loose.envelope,
            src_port: loose.src_port,
            dst_port: loose.dst_port,
            seq: loose.seq.0,
            ack: loose.ack.0,
            flags: loose.flags,
            window: 0,
            options: TcpOptions::NONE,
            sack_blocks: &[],
            payload: &[],
        };
        let checksums = self.checksums;
        self.send_with(|buffer| repr.emit_with(buffer, checksums).is_ok());
    }
}

/// What sending from a connection needs to know beside the connection.
pub(crate) struct Sender<'a> {
    pub(crate) local: (IpAddr, u16),
    pub(crate) settings: &'a TcpSettings,
    pub(crate) tcp: &'a mut TcpCounters,
    pub(crate) traffic: &'a mut Traffic,
}

impl Sender<'_> {
    /// Sends what the connection may send now, payload made by `fill(offset, bytes)`; returns how many segments.
    pub(crate) fn send_due<L: BufferPool>(
        &mut self,
        tcb: &mut Tcb,
        out: &mut Output<'_, L>,
        mut fill: impl FnMut(u32, &mut [u8]),
    ) -> usize {
        let mut count = 0;
        while count < MAX_PER_TURN {
            let Some(outgoing) = tcb.next_segment(out.ticks) else {
                break;
            };
            self.send(tcb, outgoing, out, &mut fill);
            count += 1;
        }
        count
    }

    /// Sends an acknowledgement and nothing else.
    pub(crate) fn send_ack<L: BufferPool>(&mut self, tcb: &mut Tcb, counter: TcpCounter, out: &mut Output<'_, L>) {
        self.tcp.count(counter);
        let outgoing = Outgoing {
            seq: tcb.snd_max(),
            len: 0,
            flags: TcpFlags::ACK,
            is_retransmission: false,
        };
        self.emit(tcb, outgoing, out, &mut |_, _| ());
    }

    /// Sends RST for a connection that is given up.
    pub(crate) fn send_reset<L: BufferPool>(&mut self, tcb: &mut Tcb, out: &mut Output<'_, L>) {
        let flags = TcpFlags::RST | TcpFlags::ACK;
        let outgoing = Outgoing {
            seq: tcb.snd_max(),
            len: 0,
            flags,
            is_retransmission: false,
        };
        self.emit(tcb, outgoing, out, &mut |_, _| ());
    }

    fn send<L: BufferPool>(
        &mut self,
        tcb: &mut Tcb,
        outgoing: Outgoing,
        out: &mut Output<'_, L>,
        fill: &mut impl FnMut(u32, &mut [u8]),
    ) {
        let Outgoing {
            len,
            flags,
            is_retransmission,
            ..
        } = outgoing;
        self.traffic.retransmitted += u64::from(is_retransmission);
        self.traffic.bytes_sent += u64::from(len);
        if flags.contains(TcpFlags::SYN) {
            let is_first = !flags.contains(TcpFlags::ACK);
            self.tcp.count(if is_first {
                TcpCounter::SentSyn
            } else {
                TcpCounter::SentSynAck
            });
        }
        if len > 0 {
            self.tcp.count(TcpCounter::SentPayload);
        }
        if flags.contains(TcpFlags::FIN) {
            let is_second = tcb.marks.contains(Marks::PEER_FIN);
            self.tcp.count(if is_second {
                TcpCounter::SentFinPssv
            } else {
                TcpCounter::SentFin
            });
        }
        self.emit(tcb, outgoing, out, fill);
    }

    fn emit<L: BufferPool>(
        &mut self,
        tcb: &mut Tcb,
        outgoing: Outgoing,
        out: &mut Output<'_, L>,
        fill: &mut impl FnMut(u32, &mut [u8]),
    ) {
        let Outgoing { seq, len, flags, .. } = outgoing;
        let mut payload = std::mem::take(&mut out.transmitter.payload);
        let bytes = &mut payload[..usize::from(len)];
        if len > 0 {
            fill(tcb.tx_offset(seq), bytes);
        }
        let block = tcb.sack_block().filter(|_| flags == TcpFlags::ACK);
        let repr = TcpRepr {
            envelope: Envelope {
                src_mac: out.mac,
                dst_mac: tcb.mac,
                src_addr: self.local.0,
                dst_addr: Ipv6Addr::from(tcb.remote).to_canonical(),
                hop_limit: HOP_LIMIT,
            },
            src_port: self.local.1,
            dst_port: tcb.remote_port,
            seq: seq.0,
            ack: if flags.contains(TcpFlags::ACK) {
                tcb.rcv_nxt().0
            } else {
                0
            },
            flags,
            window: tcb.window(flags, self.settings),
            options: tcb.options(flags, out.ticks, self.settings),
            sack_blocks: block.as_slice(),
            payload: bytes,
        };
        let checksums = out.checksums;
        let is_sent = out.send_with(|buffer| repr.emit_with(buffer, checksums).is_ok());
        out.transmitter.payload = payload;
        self.traffic.segments_sent += u64::from(is_sent);
        self.traffic.not_sent += u64::from(!is_sent);
        tcb.marks.remove(Marks::ACK_DUE);
    }
}
