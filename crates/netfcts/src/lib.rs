//! Parts that every TCP network function needs and that know nothing of a particular one.
//!
//! | module | gives |
//! |---|---|
//! | [`seq`] | [`SeqNum`]: sequence numbers that wrap |
//! | [`wheel`] | [`TimerWheel`]: millions of timers, O(1), 12 bytes each |
//! | [`pool`] | [`PortPools`]: source ports with quarantine and the numbers their next connection must exceed |
//! | [`record`] | [`SessionRecord`]: one connection in 128 bytes |
//! | [`progress`] | [`Progress`]: the part of it that is kept while the connection is open, in 64 |
//! | [`ring`] | from the core to the writing thread without waiting |
//! | [`mod@format`] | records as text, CSV and JSON lines |
//! | [`counters`] | [`TcpCounters`]: ProxyEngine's eighteen |
//! | [`isn`] | [`IsnGenerator`]: initial sequence numbers after RFC 6528 |
//! | [`rate`] | [`RateLimiter`]: a token bucket |
//! | [`leg`] | [`FourTuple`], [`Side`], and addresses of both versions as one number |
//! | [`steering`] | which core owns which packet |
//!
//! Nothing here reads a clock, does I/O (but for the record writer) or shares data between cores (but for the record
//! ring). Time is an argument.
//!
//! ```
//! use std::time::Duration;
//! use e2d2::time::Instant;
//! use netfcts::TimerWheel;
//!
//! let start = Instant::ZERO;
//! let mut wheel = TimerWheel::new(1_000, start);
//! wheel.arm(7, start + Duration::from_secs(5));
//! let mut fired = Vec::new();
//! wheel.expire(start + Duration::from_secs(6), &mut |id| fired.push(id));
//! assert_eq!(fired, [7]);
//! ```

pub mod counters;
pub mod format;
pub mod isn;
pub mod leg;
pub mod legs;
pub mod pool;
pub mod progress;
pub mod rate;
pub mod record;
pub mod ring;
pub mod seq;
pub mod steering;
pub mod wheel;

pub use counters::{TcpCounter, TcpCounters};
pub use format::{NameTable, Named, RecordFormat, RecordLines};
pub use isn::IsnGenerator;
pub use leg::{FourTuple, Side};
pub use legs::Legs;
pub use pool::{LastUse, PortPools, PortSet, Taken};
pub use progress::Progress;
pub use rate::RateLimiter;
pub use record::{Cause, RecordFlags, SessionRecord, State};
pub use ring::{RecordReceiver, RecordSender, record_ring};
pub use seq::SeqNum;
pub use wheel::TimerWheel;
