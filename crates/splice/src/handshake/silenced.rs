//! Connections that a rule has dropped: what their clients still send gets no answer. And, in a table of their own, handshakes
//! that will not be completed, as their clients have sent a RST or were refused: their SYN-ACKs are not sent again. RSTs can be
//! forged in any number, and must not take the places of the former.
//!
//! A client that is not answered repeats what it has said, for longer than its cookie is remembered as used
//! ([`replay_filter`](super::replay_filter)); a RST then would say that somebody is there. Eight bytes a connection, at the place that its hash
//! names; whoever comes there next takes it over, which gives the one before the RST that anybody gets.

use e2d2::memory::LargeSlice;
use e2d2::time::Instant;
use std::time::Duration;

/// For how long.
const SILENCE: Duration = Duration::from_secs(60);

/// The low bits of an entry: when it expires, in seconds. The others are a tag of the flow's hash.
const TIME: u64 = (1 << 24) - 1;

/// The flows dropped lately; zero where there is none.
pub(crate) struct SilencedFlows {
    entries: LargeSlice<u64>,
}

impl SilencedFlows {
    /// `capacity` places, allocated now.
    pub(crate) fn new(capacity: usize) -> Self {
        SilencedFlows {
            entries: LargeSlice::of(0, capacity.max(1)),
        }
    }

    /// The flow with this hash is silenced from now on.
    pub(crate) fn note(&mut self, flow_hash: u64, now: Instant) {
        let place = self.place(flow_hash);
        self.entries[place] = flow_hash & !TIME | seconds(now + SILENCE);
    }

    /// True if it is. Of others, one in 2^40 that are asked about at the same place seems to be.
    pub(crate) fn contains(&self, flow_hash: u64, now: Instant) -> bool {
        let entry = self.entries[self.place(flow_hash)];
        let left = (entry & TIME).wrapping_sub(seconds(now)) & TIME;
        entry != 0 && (entry ^ flow_hash) & !TIME == 0 && (1..=SILENCE.as_secs()).contains(&left)
    }

    fn place(&self, flow_hash: u64) -> usize {
        // The lower half of the hash scaled to the size: the upper one is what is compared.
        (((flow_hash & 0xffff_ffff) * self.entries.len() as u64) >> 32) as usize
    }

    /// The memory in bytes.
    pub(crate) fn memory(&self) -> usize {
        size_of_val(&*self.entries)
    }
}

fn seconds(now: Instant) -> u64 {
    (now.as_nanos() / 1_000_000_000) & TIME
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_lasts_a_minute_and_is_for_one_flow() {
        let mut silenced = SilencedFlows::new(64);
        let (flow, now) = (0x1234_5678_9abc_def0, Instant::ZERO + Duration::from_secs(100));
        assert!(!silenced.contains(flow, now));
        silenced.note(flow, now);
        assert!(silenced.contains(flow, now) && !silenced.contains(flow ^ 1 << 40, now));
        assert!(silenced.contains(flow, now + Duration::from_millis(59_999)));
        assert!(!silenced.contains(flow, now + SILENCE));
        // The clock's seconds come round after half a year: what is as old is no news.
        assert!(!silenced.contains(flow, now + Duration::from_secs(1 << 24) - Duration::from_secs(1)));
    }

    #[test]
    fn a_place_is_of_the_last_who_came() {
        let mut silenced = SilencedFlows::new(1);
        let now = Instant::ZERO + Duration::from_secs(100);
        silenced.note(1 << 50, now);
        silenced.note(2 << 50, now);
        assert!(!silenced.contains(1 << 50, now) && silenced.contains(2 << 50, now));
    }
}
