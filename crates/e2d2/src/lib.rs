//! Packets, operators, ports and the run-to-completion scheduler: a small operator graph for network functions.
//!
//! A network function is a chain of operators, put together at compile time and run batch by batch on one core:
//!
//! ```text
//!   port ─► receive ─► parse ─► group_by ─┬─► filter ─► map ─────┐
//!                                         ├─► process (n → m) ───┼─► merge ─► send ─► port
//!                                         └─► … ─────────────────┘
//! ```
//!
//! `receive` takes up to [`BURST`] packets from a [`port::Port`], `parse` checks them once ([`wire::frame::parse`]) so
//! that everything after it works with offsets that are known to be good, `group_by` parts the batch by what the packet
//! is, `process` is where a user's own code sits, and `merge` brings the branches together for `send`. The chain ends in a
//! [`scheduler::Task`]; the [`scheduler::Scheduler`] of a core runs its tasks in rounds. No packet is sent through a `dyn`
//! call and no operator allocates. A packet has one owner at any time, and when it is dropped, a reason is counted
//! ([`fate::DropReason`]).
//!
//! ```
//! use std::rc::Rc;
//! use e2d2::buffer::{BufferPool, HeapBuffer, HeapPool, PacketBuffer};
//! use e2d2::fate::GraphCounters;
//! use e2d2::operators::{Frame, Source, receive, share};
//! use e2d2::port::{Port, PortId};
//! use e2d2::ports::LoopbackPort;
//! use e2d2::scheduler::{IdleMode, Priority, Scheduler};
//! use e2d2::time::Instant;
//!
//! // A hub of two ports: what comes in at one goes out at the other, unless it is too short for Ethernet.
//! let (left, mut left_end) = LoopbackPort::<HeapBuffer>::pair(PortId(0), PortId(10), 64);
//! let (right, mut right_end) = LoopbackPort::pair(PortId(1), PortId(11), 64);
//! let (left, right) = (share(left), share(right));
//! let (counters, reader) = GraphCounters::new();
//! let hub = e2d2::operators::merge([receive(&left), receive(&right)])
//!     .filter(|frame| frame.buffer.len() >= 14)
//!     .map(|frame| Frame { port: PortId(1 - frame.port.0), ..frame })
//!     .send([left, right], 64, counters);
//! let mut scheduler = Scheduler::new(IdleMode::ADAPTIVE);
//! scheduler.add(Priority::PACKETS, hub);
//!
//! let mut pool = HeapPool::new(8, 1514);
//! let mut burst = [60, 13].into_iter().filter_map(|len| pool.take_copy(&vec![7; len])).collect();
//! left_end.transmit(&mut burst);
//! let _ = scheduler.round(Instant::ZERO); // `Scheduler::run` does this until it is told to stop
//! assert_eq!(right_end.receive(&mut burst), 1);
//! assert_eq!(format!("{:?}", reader.drops), r#"{"filtered": 1}"#);
//! ```
//!
//! Everything is generic over packet memory ([`buffer::PacketBuffer`]): DPDK's mbufs (feature `dpdk`) or plain heap
//! memory ([`buffer::HeapBuffer`]), so the same graph runs on a NIC, in `cargo test` and under a fuzzer.
//!
//! What lives here: packet memory, ports, wire formats, operators, queues, the scheduler, counters. What does not:
//! anything that knows a connection; this crate has no TCP state.
//!
//! | module | what it holds |
//! |---|---|
//! | [`time`] | [`time::Instant`] and the TSC clock |
//! | [`buffer`] | packet memory: the traits and the heap implementation |
//! | [`port`] | the trait of everything that receives and transmits |
//! | [`ports`] | ports that need no NIC, and ports around ports |
//! | [`operators`] | what a graph is made of: [`operators::Source`] and its chain |
//! | [`scheduler`] | rounds of tasks on one core, by priority; what an idle core does |
//! | [`queue`], [`handover`] | bounded queues on a core, and between cores |
//! | [`rss`], [`flow`] | how ports spread TCP over queues: the Toeplitz hash, and rules |
//! | [`counters`], [`fate`] | counters over a closed list of names; what becomes of a packet |
//! | [`tap`] | an interface of the Linux kernel whose cable is a file |
//! | `native` | DPDK: mbufs, ports, the EAL (feature `dpdk`) |
//! | [`wire`] | Ethernet, VLAN, ARP, IPv4, IPv6, TCP, ICMP, checksums; [`wire::frame`] is the one parse of a received frame |

pub mod buffer;
pub mod counters;
pub mod fate;
pub mod flow;
pub mod handover;
mod heap;
mod in_place;
pub mod memory;
#[cfg(feature = "dpdk")]
pub mod native;
pub mod operators;
pub mod port;
pub mod ports;
mod prefetch;
pub mod queue;
pub mod rss;
pub mod scheduler;
pub mod tap;
pub mod time;
pub mod wire;

pub use in_place::send_in_place;
pub use prefetch::{prefetch, prefetch_lines};

/// The largest number of packets that moves between operators, queues and ports at once.
///
/// 32 is what DPDK's vector drivers handle in one call; larger bursts gain nothing and cost latency and L1 cache.
pub const BURST: usize = 32;
