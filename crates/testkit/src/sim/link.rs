//! One direction of a link, and what it does to the frames on it.
//!
//! A frame arrives after the link's delay and behind the frame before it, unless the link loses, repeats, overtakes,
//! corrupts or cuts it, or is down. What the frame check sequence of Ethernet covers alone, namely the Ethernet header
//! and ARP, is never corrupted: such frames do not reach a host. All else is TCP's and IP's own to notice.

use super::Random;
use e2d2::time::Instant;
use std::time::Duration;

/// A time in which a link carries nothing, in ms of the simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outage {
    /// Its begin.
    pub from_ms: u64,
    /// Its end.
    pub to_ms: u64,
}

/// What a link does. Shares are in 1/1000 of the frames.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Impairment {
    /// Frames that vanish.
    pub loss: u16,
    /// Frames that arrive twice.
    pub duplicate: u16,
    /// Frames that later ones overtake.
    pub reorder: u16,
    /// TCP packets of which one byte changes.
    pub corrupt: u16,
    /// Frames that are cut short.
    pub truncate: u16,
    /// The way of a frame takes at least so long.
    pub delay_us: u64,
    /// And up to so much longer.
    pub jitter_us: u64,
    /// How far an overtaken frame falls behind at most.
    pub lag_us: u64,
    /// When it is down.
    pub outages: Vec<Outage>,
}

impl Impairment {
    /// True if every frame arrives as it was sent, each after the one before.
    pub fn is_clean(&self) -> bool {
        let shares = [self.loss, self.duplicate, self.reorder, self.corrupt, self.truncate];
        shares.iter().all(|share| *share == 0) && self.outages.is_empty()
    }
}

/// What became of a frame on a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Treatment {
    /// It, or its only copy, vanished or came out changed.
    pub lost: bool,
    /// It was repeated or overtaken.
    pub disordered: bool,
}

impl Treatment {
    /// It came out as it went in, behind the frame before it.
    pub const CARRIED: Treatment = Treatment {
        lost: false,
        disordered: false,
    };
}

/// One direction of a link.
#[derive(Debug)]
pub struct Link {
    plan: Impairment,
    random: Random,
    start: Instant,
    last_arrival: Instant,
    carried: u64,
}

/// The shortest Ethernet frame without its check sequence: network interfaces fill up to it.
const SHORTEST: usize = 60;

impl Link {
    /// A link that begins its life at `start`.
    pub fn new(plan: Impairment, random: Random, start: Instant) -> Self {
        Link {
            plan,
            random,
            start,
            last_arrival: start,
            carried: 0,
        }
    }

    /// Frames that were sent into it.
    pub fn carried(&self) -> u64 {
        self.carried
    }

    /// Sends a frame; `arrive` gets what comes out, with the time at which it does. Returns what was done to it.
    pub fn send(&mut self, now: Instant, mut frame: Vec<u8>, mut arrive: impl FnMut(Instant, Vec<u8>)) -> Treatment {
        let mut treatment = Treatment::CARRIED;
        self.carried += 1;
        let at_ms = (now - self.start).as_millis() as u64;
        let is_down = |outage: &Outage| (outage.from_ms..outage.to_ms).contains(&at_ms);
        if self.plan.outages.iter().any(is_down) || self.random.chance(self.plan.loss) {
            treatment.lost = true;
            return treatment;
        }
        if frame.len() < SHORTEST {
            frame.resize(SHORTEST, 0);
        }
        if self.random.chance(self.plan.corrupt) {
            self.corrupt(&mut frame);
            treatment.lost = true;
        }
        if self.random.chance(self.plan.truncate) {
            let length = self.random.within(14..=frame.len() as u64) as usize;
            frame.truncate(length);
            treatment.lost = true;
        }
        if self.random.chance(self.plan.duplicate) {
            let late = self.way() + Duration::from_micros(self.random.within(0..=self.plan.lag_us));
            arrive(now + late, frame.clone());
            treatment.disordered = true;
        }
        if self.random.chance(self.plan.reorder) {
            let late = self.way() + Duration::from_micros(self.random.within(0..=self.plan.lag_us));
            arrive(now + late, frame);
            treatment.disordered = true;
            return treatment;
        }
        let arrival = (now + self.way()).max(self.last_arrival);
        self.last_arrival = arrival;
        arrive(arrival, frame);
        treatment
    }

    fn way(&mut self) -> Duration {
        Duration::from_micros(self.plan.delay_us + self.random.within(0..=self.plan.jitter_us))
    }

    fn corrupt(&mut self, frame: &mut [u8]) {
        let is_tcp = match frame.get(12..14) {
            Some([0x08, 0x00]) => frame.get(23) == Some(&6),
            Some([0x86, 0xdd]) => frame.get(20) == Some(&6),
            _ => false,
        };
        if !is_tcp {
            return;
        }
        // Not the addresses of IPv6 nor what only routers read: a changed byte there is another packet, not a wrong one.
        let first = if frame[12] == 0x08 { 14 } else { 54 };
        let at = self.random.within(first..=frame.len() as u64 - 1) as usize;
        frame[at] ^= 1 << self.random.within(0..=7);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn carry(plan: Impairment, count: u8) -> Vec<(u64, Vec<u8>)> {
        let start = Instant::ZERO + Duration::from_secs(5);
        let mut link = Link::new(plan, Random::new(3), start);
        let mut arrived = Vec::new();
        for n in 0..count {
            link.send(
                start + Duration::from_millis(u64::from(n)),
                vec![n; 100],
                |at, frame| {
                    arrived.push(((at - start).as_millis() as u64, frame));
                },
            );
        }
        arrived.sort_by_key(|(at, _)| *at);
        arrived
    }

    #[test]
    fn a_clean_link_delivers_all_in_order() {
        let plan = Impairment {
            delay_us: 2_000,
            jitter_us: 10_000,
            ..Impairment::default()
        };
        assert!(plan.is_clean());
        let arrived = carry(plan, 100);
        let numbers: Vec<u8> = arrived.iter().map(|(_, frame)| frame[0]).collect();
        assert_eq!(numbers, (0..100).collect::<Vec<u8>>());
        assert!(arrived.iter().all(|(at, frame)| *at >= u64::from(frame[0]) + 2));
    }

    #[test]
    fn shares_are_what_they_say() {
        let plan = Impairment {
            loss: 500,
            ..Impairment::default()
        };
        assert!((80..120).contains(&carry(plan, 200).len()));
        let plan = Impairment {
            duplicate: 1000,
            ..Impairment::default()
        };
        assert_eq!(carry(plan, 200).len(), 400);
    }

    #[test]
    fn what_was_done_to_a_frame_is_told() {
        let treated = |plan| {
            let mut link = Link::new(plan, Random::new(3), Instant::ZERO);
            link.send(Instant::ZERO, vec![0; 100], |_, _| {})
        };
        assert_eq!(treated(Impairment::default()), Treatment::CARRIED);
        let lost = treated(Impairment {
            loss: 1000,
            ..Impairment::default()
        });
        assert_eq!((lost.lost, lost.disordered), (true, false));
        let down = Outage { from_ms: 0, to_ms: 1 };
        let lost = treated(Impairment {
            outages: vec![down],
            ..Impairment::default()
        });
        assert!(lost.lost);
        let repeated = treated(Impairment {
            duplicate: 1000,
            ..Impairment::default()
        });
        assert_eq!((repeated.lost, repeated.disordered), (false, true));
    }

    #[test]
    fn overtaken_frames_come_later() {
        let plan = Impairment {
            reorder: 200,
            lag_us: 50_000,
            ..Impairment::default()
        };
        let arrived = carry(plan, 200);
        assert_eq!(arrived.len(), 200);
        assert!(!arrived.is_sorted_by_key(|(_, frame)| frame[0]));
    }

    #[test]
    fn an_outage_swallows_what_is_sent_in_it() {
        let plan = Impairment {
            outages: vec![Outage { from_ms: 10, to_ms: 20 }],
            ..Impairment::default()
        };
        let arrived = carry(plan, 30);
        let lost: Vec<u8> = (0..30).filter(|n| !arrived.iter().any(|(_, f)| f[0] == *n)).collect();
        assert_eq!(lost, (10..20).collect::<Vec<u8>>());
    }
}
