//! What a PROXY header towards the server costs a connection, or a guard: two proxies in one process, one with and one
//! without, take turns, so that whatever else the machine does hits both alike; each pair of turns gives a ratio.

use serde::Serialize;

use super::prefixes::Prefixes;
use crate::device::cli::Common;
use crate::device::pairs::Pairs;
use crate::device::placements::Placed;
use crate::device::{BoxError, Conditions, Host};

/// Names are those of the JSON.
#[derive(Serialize)]
struct PairedResult {
    mode: &'static str,
    /// Cycles of a connection with it by cycles without.
    #[serde(flatten)]
    paired: Pairs,
    /// The ratio that must not be exceeded.
    limit: f64,
    cycles_with: f64,
    cycles_without: f64,
    tx_packets_with: f64,
    tx_packets_without: f64,
    pairs: usize,
    lost: u64,
    retransmitted: u64,
    failed: u64,
    valid: bool,
    invalid_because: Vec<String>,
}

/// What one of the proxies has and the other has not.
#[derive(Clone, Copy, Debug)]
pub(crate) enum What {
    /// A PROXY header towards the server.
    Header,
    /// A list of 100 000 prefixes of each family that nobody is in, and limits on each client and on the class of all.
    Guard,
}

impl What {
    /// At most an eighth more for a header: it may cost no more than one packet of eight.
    fn limit(self) -> f64 {
        match self {
            What::Header => 1.12,
            What::Guard => 1.04,
        }
    }

    fn name(self) -> &'static str {
        match self {
            What::Header => "a PROXY header costs",
            What::Guard => "a list of 200 000 prefixes and limits cost",
        }
    }
}

/// Prefixes of each family in the list.
const PREFIXES: usize = 100_000;

/// Returns whether the result is valid, and the ratio within its limit.
pub(crate) fn run(conditions: &Conditions, what: What, pairs: u32, common: &Common) -> Result<bool, BoxError> {
    if pairs < 6 {
        return Err(format!("--pairs {pairs}: expected at least 6, or there is no interval").into());
    }
    let settings = conditions.settings;
    let length = settings.length / (2 * pairs);
    let host = Host::start(2, 1500)?;
    let folder = tempfile::TempDir::new()?;
    let conditions_with = match what {
        What::Header => Conditions {
            proxy_out: true,
            ..*conditions
        },
        What::Guard => Conditions {
            guarded_by: Some(Prefixes::new(PREFIXES).file_without_clients(folder.path())?),
            ..*conditions
        },
    };
    let placed = Placed::take(&host, [&conditions_with, conditions], pairs, length)?;
    let (paired, invalid_because) = (placed.paired, placed.invalid_because);
    let [tx_packets_with, tx_packets_without] = placed.tx_packets;
    let result = PairedResult {
        mode: "inline, paired",
        paired,
        limit: what.limit(),
        cycles_with: paired.cycles[0],
        cycles_without: paired.cycles[1],
        tx_packets_with,
        tx_packets_without,
        pairs: placed.pairs,
        lost: placed.unwanted.lost,
        retransmitted: placed.unwanted.retransmitted,
        failed: placed.unwanted.failed,
        valid: invalid_because.is_empty(),
        invalid_because,
    };
    println!(
        "{} {:.1} % ({:.1} to {:.1} %, at most {:.0} %): {:.0} cycles per connection with, {:.0} \
         without; {}; {:.2} and {:.2} packets out; {}",
        what.name(),
        (paired.ratio - 1.0) * 100.0,
        (paired.interval[0] - 1.0) * 100.0,
        (paired.interval[1] - 1.0) * 100.0,
        (what.limit() - 1.0) * 100.0,
        result.cycles_with,
        result.cycles_without,
        paired.rests_on(),
        result.tx_packets_with,
        result.tx_packets_without,
        paired.verdict(what.limit(), &result.invalid_because),
    );
    common.write(&result)?;
    Ok(result.valid && paired.ratio <= what.limit())
}
