//! Benches that alternate load and device in one thread, with the cycle counter around the device; and, beside them, with
//! the load on another core.
//!
//! Waiting can neither hide nor invent work that way: the device's rounds are charged in full, the load's are not, and a
//! device that puts work off into a round without packets is charged for that round, too.
//!
//! ```text
//!   loop { client and server poll (≤ 32 packets each) ── count ─ device.round() ─ count ── poll … }
//! ```
//!
//! *Busy* cycles are those of rounds in which the device did anything: packets, timers, hand-overs, deferred work, as it
//! says itself. *Saturated* cycles are those of all rounds. A device that works and does not say so shows as a difference
//! of the two, and the result is invalid when they differ by more than 15 %.

mod accounts;
mod apart;
mod contention;
mod cps;
mod distance;
mod inline;
mod load;
mod paired;
mod process;
mod quiet;
mod result_file;
mod street;
mod undisturbed;
mod verdict;

pub use accounts::{Accounts, CycleCounter, DeviceCounts, DeviceUnderTest, RoundWork};
pub use apart::{LoadThread, TwoCoreBench, Waited};
pub use cps::{
    CpsResult, CpsSettings, LatencyMicros, MAX_SATURATED_TO_BUSY, SliceCycles, cps_arms, cps_client, cps_generator,
    cps_server,
};
pub use distance::Distance;
pub use inline::{Arm, Coverage, InlineBench, LEAST_SHARE, Measured, Sum};
pub use load::{LoadOrders, LoadStatus, LoadTotals, RemoteLoad};
pub use paired::{Ratio, median};
pub use process::{LoadProcess, serve_load};
pub use result_file::ResultFile;
pub use street::{Roughness, Street, StreetStats};
pub use undisturbed::{Absence, Undisturbed, Watch};
pub use verdict::{unwanted, verdict};

/// Whether this program was built with what a run of it has taught the compiler: `build.rs` looks at the flags.
pub const PGO: bool = cfg!(pgo);
