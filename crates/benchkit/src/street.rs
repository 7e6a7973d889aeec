//! A street: several hosts behind one end of a cable, and what the way to them does to packets.
//!
//! ```text
//!   generator ── house ─┐
//!   generator ── house ─┼─ street ── uplink ── device
//!   attacker  ── house ─┘   loses, repeats, reorders (each way, from a seed), takes its time (from the houses)
//! ```
//!
//! All share the device's queue, as on a wire: what does not fit into it is lost, whoever sent it, and the houses take
//! turns so that none of them is the first to find it full.

use arrayvec::ArrayVec;
use e2d2::BURST;
use e2d2::buffer::{BufferPool, PacketBuffer};
use e2d2::port::{Port, PortId};
use e2d2::ports::LoopbackPort;
use e2d2::time::Instant;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

use trafficengine::AddressRange;
use trafficengine::attack::Random;

/// Packets that wait on the way to a house, and in front of one.
const HOUSE_QUEUE: usize = 4096;

/// How many packets overtake one that is late.
const LATE_BY: usize = 4;

/// What a way does to packets, each in 1/1000 of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Roughness {
    /// Lost.
    pub lost: u16,
    /// Arrive twice.
    pub repeated: u16,
    /// Overtaken by the next four.
    pub late: u16,
}

/// What a street has done to packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StreetStats {
    /// Lost on purpose.
    pub lost: u64,
    /// Repeated.
    pub repeated: u64,
    /// Overtaken.
    pub late: u64,
    /// Refused by the device's full queue.
    pub overflowed: u64,
    /// Refused by a full house.
    pub crowded: u64,
    /// At the end of their long way without a buffer to arrive in.
    pub without_buffer: u64,
    /// For nobody here.
    pub astray: u64,
    /// For hosts that are silent.
    pub unheard: u64,
}

/// One direction.
struct Way<B> {
    late: Option<(usize, B)>,
}

impl<B: PacketBuffer> Way<B> {
    /// Passes a packet on to `each`, or does what is rough about this way.
    fn pass<L: BufferPool<Buffer = B>>(
        &mut self,
        packet: B,
        roughness: Roughness,
        (random, pool, stats): (&mut Random, &mut L, &mut StreetStats),
        mut each: impl FnMut(B, &mut StreetStats),
    ) {
        if roughness == Roughness::default() && self.late.is_none() {
            return each(packet, stats);
        }
        if random.chance(roughness.lost) {
            stats.lost += 1;
            return;
        }
        if random.chance(roughness.repeated)
            && let Some(copy) = pool.take_copy(packet.data())
        {
            stats.repeated += 1;
            each(copy, stats);
        }
        if self.late.is_none() && random.chance(roughness.late) {
            stats.late += 1;
            self.late = Some((LATE_BY, packet));
            return;
        }
        each(packet, stats);
        if let Some((left, late)) = self.late.take() {
            if left > 1 {
                self.late = Some((left - 1, late));
            } else {
                each(late, stats);
            }
        }
    }
}

struct House<B: PacketBuffer> {
    addresses: Vec<AddressRange>,
    door: LoopbackPort<B>,
}

/// See the module documentation.
pub struct Street<P: Port, L> {
    uplink: P,
    pool: L,
    houses: Vec<House<P::Buffer>>,
    first: usize,
    out: Way<P::Buffer>,
    back: Way<P::Buffer>,
    /// What it does to packets from now on.
    pub roughness: Roughness,
    /// How long packets of its hosts take from now on. They leave in the order in which they came.
    pub delay: Duration,
    /// Hosts that hear nothing from now on.
    pub silent: Option<AddressRange>,
    /// Packets on their long way, as bytes: the pool of buffers has no room for all of a far host's.
    under_way: VecDeque<(Instant, Vec<u8>)>,
    random: Random,
    stats: StreetStats,
    sending: ArrayVec<P::Buffer, BURST>,
    carrying: ArrayVec<P::Buffer, BURST>,
}

impl<P: Port, L: BufferPool<Buffer = P::Buffer>> Street<P, L> {
    /// A smooth street without a house; `pool` is for packets that are repeated, `seed` for all that is random.
    pub fn new(uplink: P, pool: L, seed: u64) -> Street<P, L> {
        Street {
            uplink,
            pool,
            houses: Vec::new(),
            first: 0,
            out: Way { late: None },
            back: Way { late: None },
            roughness: Roughness::default(),
            delay: Duration::ZERO,
            silent: None,
            under_way: VecDeque::new(),
            random: Random::new(seed),
            stats: StreetStats::default(),
            sending: ArrayVec::new(),
            carrying: ArrayVec::new(),
        }
    }

    /// Builds a house for the hosts with these addresses and returns its port. One with the same addresses takes its place
    /// once that is gone.
    pub fn house(&mut self, addresses: &[AddressRange]) -> LoopbackPort<P::Buffer> {
        self.remove(addresses);
        let id = self.uplink.id();
        let (door, port) = LoopbackPort::pair(PortId(id.0.wrapping_add(100)), id, HOUSE_QUEUE);
        self.houses.push(House {
            addresses: addresses.to_vec(),
            door,
        });
        port.with_mac(self.uplink.mac()).with_mtu(self.uplink.mtu())
    }

    /// Pulls the house with these addresses down, with all that is on its way to it.
    pub fn remove(&mut self, addresses: &[AddressRange]) {
        self.houses.retain(|house| house.addresses != addresses);
        self.first = 0;
    }

    /// What happened on it.
    pub fn stats(&self) -> StreetStats {
        self.stats
    }

    /// Carries everything that waits, both ways; returns how many packets.
    pub fn carry(&mut self, now: Instant) -> usize {
        self.carry_back() + self.carry_out(now)
    }

    /// From the device to the houses.
    fn carry_back(&mut self) -> usize {
        let mut count = 0;
        loop {
            let received = self.uplink.receive(&mut self.carrying);
            if received == 0 {
                return count;
            }
            count += received;
            let houses = &mut self.houses;
            for packet in self.carrying.drain(..) {
                let with = (&mut self.random, &mut self.pool, &mut self.stats);
                self.back.pass(packet, self.roughness, with, |packet, stats| {
                    let to = destination(packet.data());
                    if to.is_some_and(|to| self.silent.is_some_and(|silent| silent.index_of(to).is_some())) {
                        stats.unheard += 1;
                        return;
                    }
                    let is_for = |house: &&mut House<P::Buffer>| {
                        to.is_some_and(|to| house.addresses.iter().any(|range| range.index_of(to).is_some()))
                    };
                    let Some(house) = houses.iter_mut().find(is_for) else {
                        stats.astray += 1;
                        return;
                    };
                    let mut one = ArrayVec::new();
                    one.push(packet);
                    house.door.transmit(&mut one);
                    stats.crowded += one.len() as u64;
                });
            }
        }
    }

    /// From the houses to the device, a burst from each in turn until all are empty.
    fn carry_out(&mut self, now: Instant) -> usize {
        let (mut count, mut silent, mut index) = (0, 0, self.first);
        while silent < self.houses.len() {
            let received = self.houses[index].door.receive(&mut self.carrying);
            index = (index + 1) % self.houses.len();
            count += received;
            silent = if received == 0 { silent + 1 } else { 0 };
            if !self.delay.is_zero() {
                let due = now + self.delay;
                let packets = self.carrying.drain(..);
                self.under_way
                    .extend(packets.map(|packet| (due, packet.data().to_vec())));
                continue;
            }
            for packet in self.carrying.drain(..) {
                let (uplink, sending) = (&mut self.uplink, &mut self.sending);
                let with = (&mut self.random, &mut self.pool, &mut self.stats);
                self.out.pass(packet, self.roughness, with, |packet, stats| {
                    if sending.is_full() {
                        drop_refused(uplink, sending, stats);
                    }
                    sending.push(packet);
                });
            }
        }
        count += self.arrive(now);
        drop_refused(&mut self.uplink, &mut self.sending, &mut self.stats);
        if !self.houses.is_empty() {
            self.first = (self.first + 1) % self.houses.len();
        }
        count
    }

    /// What has come to the end of its long way.
    fn arrive(&mut self, now: Instant) -> usize {
        let mut count = 0;
        while self.under_way.front().is_some_and(|(due, _)| *due <= now)
            && let Some((_, bytes)) = self.under_way.pop_front()
        {
            if self.sending.is_full() {
                drop_refused(&mut self.uplink, &mut self.sending, &mut self.stats);
            }
            match self.pool.take_copy(&bytes) {
                Some(packet) => self.sending.push(packet),
                None => self.stats.without_buffer += 1,
            }
            count += 1;
        }
        count
    }

    /// Lets go of a late packet that nothing overtakes any more.
    pub fn clear(&mut self) {
        (self.out.late, self.back.late) = (None, None);
    }
}

/// A queue that is full loses what comes next.
fn drop_refused<P: Port>(uplink: &mut P, sending: &mut ArrayVec<P::Buffer, BURST>, stats: &mut StreetStats) {
    uplink.transmit(sending);
    stats.overflowed += sending.len() as u64;
    sending.clear();
}

/// Where an untagged IP packet goes.
fn destination(frame: &[u8]) -> Option<IpAddr> {
    match frame.get(12..14)? {
        [0x08, 0x00] => Some(IpAddr::from(*frame.get(30..)?.first_chunk::<4>()?)),
        [0x86, 0xdd] => Some(IpAddr::from(*frame.get(38..)?.first_chunk::<16>()?)),
        _ => None,
    }
}
