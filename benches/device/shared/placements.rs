//! Two kinds of proxy in turns, several times over, each time in other memory.
//!
//! Where the tables of a proxy lie decides which of their lines displace each other: two proxies differ by that for as long as they live,
//! by a per cent or two and sometimes by ten. Pairs of turns of the same two would tell it as the difference of their kinds, with a narrow
//! interval.

use std::time::Duration;

use benchkit::{CpsResult, Measured};

use super::pairs::{self, Pairs, Turn};
use super::{BoxError, Conditions, Host, InlineProxy};

/// So often both are opened anew, the first as often before the second as behind it.
const PLACEMENTS: u32 = 12;

/// What two kinds of proxy have come to.
pub(crate) struct Placed {
    /// First by second.
    pub(crate) paired: Pairs,
    /// Pairs of turns.
    pub(crate) pairs: usize,
    /// Packets that a connection of the first and of the second has taken out of the proxy.
    pub(crate) tx_packets: [f64; 2],
    /// What must not have happened, of all.
    pub(crate) unwanted: Unwanted,
    /// Why it is not valid.
    pub(crate) invalid_because: Vec<String>,
}

/// What must not have happened, and how often it has.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Unwanted {
    pub(crate) lost: u64,
    pub(crate) retransmitted: u64,
    pub(crate) failed: u64,
    pub(crate) records_lost: u64,
}

impl Placed {
    /// Takes at least so many pairs of turns of this length.
    pub(crate) fn take(host: &Host, kinds: [&Conditions; 2], pairs: u32, length: Duration) -> Result<Placed, BoxError> {
        let mut turns: Vec<(Turn, Turn)> = Vec::new();
        let mut unwanted = Unwanted::default();
        for placement in 0..PLACEMENTS {
            let mut both = open(host, kinds, placement)?;
            turns.extend(pairs::take(pairs.div_ceil(PLACEMENTS), |is_first| {
                pairs::turn_of(&mut both[usize::from(!is_first)], length)
            }));
            for inline in &both {
                unwanted.add(&inline.result(&kinds[0].settings, &Measured::default()));
            }
        }
        let paired = Pairs::of(&turns);
        Ok(Placed {
            invalid_because: paired.reasons_against(unwanted.named()),
            paired,
            pairs: turns.len(),
            tx_packets: [
                tx_packets(turns.iter().flat_map(|(first, _)| first)),
                tx_packets(turns.iter().flat_map(|(_, second)| second)),
            ],
            unwanted,
        })
    }
}

impl Unwanted {
    fn add(&mut self, result: &CpsResult) {
        self.lost += result.lost;
        self.retransmitted += result.retransmitted;
        self.failed += result.failed;
        self.records_lost += result.records_lost;
    }

    fn named(&self) -> [(&'static str, u64); 4] {
        [
            ("lost", self.lost),
            ("retransmitted", self.retransmitted),
            ("failed", self.failed),
            ("records_lost", self.records_lost),
        ]
    }
}

/// Two proxies that have done some work. Names are unique in the process, as rings of DPDK keep theirs.
fn open(host: &Host, kinds: [&Conditions; 2], placement: u32) -> Result<[InlineProxy; 2], BoxError> {
    let name = |kind: u32| char::from_u32(u32::from('A') + 2 * placement + kind).ok_or("too many placements");
    let one = |kind: usize| -> Result<InlineProxy, BoxError> { host.open_warm(name(kind as u32)?, kinds[kind]) };
    if placement.is_multiple_of(2) {
        let second = one(1)?;
        return Ok([one(0)?, second]);
    }
    Ok([one(0)?, one(1)?])
}

/// Packets that the proxy has sent for a connection.
fn tx_packets<'a>(measured: impl Iterator<Item = &'a Measured>) -> f64 {
    let mut sum = (0, 0);
    for one in measured {
        sum.0 += one.all.accounts.sent;
        sum.1 += one.all.completed;
    }
    sum.0 as f64 / sum.1.max(1) as f64
}
