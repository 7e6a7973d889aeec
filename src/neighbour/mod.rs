//! The engine as a station on its links: ARP, IPv6 neighbour discovery, ping, and the MAC addresses of the next hops.
//!
//! What lives here: answers to ARP requests, neighbour solicitations and echo requests for our own addresses; their
//! announcement at start; the report of our multicast groups; the table of next hops with its timers. What does not: routes
//! ([`crate::config::Routes`]), TCP, ICMP errors about connections, and any I/O or clock: a frame and the time come in,
//! at most one frame goes out.
//!
//! ```text
//!            frame ──► Station::handle ──► Verdict::Answer: the buffer now holds the one answer
//!                          │ learns                (arp, discovery, echo)
//!                          ▼
//!   packet path ──► SharedNeighbours::mac / request        one AtomicU64 per next hop, all cores
//!                          ▲ news
//!            timers ──► Station::poll ──► announcements and questions, copied into buffers by the caller
//!                             (rounds, resolver; one core per port)
//! ```
//!
//! Nothing a stranger sends makes a table grow: the next hops are those of the configuration. Whoever is not among them
//! is answered at the address that it wrote from and forgotten.
//!
//! ```
//! use std::sync::Arc;
//! use e2d2::port::PortId;
//! use e2d2::time::Instant;
//! use proxyengine::neighbour::{Interface, Neighbour, SharedNeighbours, Station, Topology};
//!
//! let port = PortId(0);
//! let interface = Interface {
//!     port,
//!     mac: "02:00:00:00:00:01".parse()?,
//!     addresses: vec!["10.0.0.1/24".parse()?],
//!     aliases: vec![],
//! };
//! let server = Neighbour { port, address: "10.0.0.9".parse()?, mac: Some("02:00:00:00:00:09".parse()?) };
//! let topology = Arc::new(Topology::new(vec![interface], &[server])?);
//! let shared = Arc::new(SharedNeighbours::new(&topology));
//! let mut station = Station::new(Arc::clone(&topology), Arc::clone(&shared), &[port], 1, Instant::ZERO);
//!
//! // The first poll announces our two addresses, the configured and the link-local one, and reports a multicast group.
//! let mut frames = 0;
//! station.poll(Instant::ZERO, &mut |_, _| { frames += 1; true });
//! assert_eq!(frames, 3);
//! let next_hop = topology.next_hop_of(port, "10.0.0.9".parse()?).unwrap();
//! assert_eq!(shared.mac(next_hop), server.mac);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod arp;
mod discovery;
mod echo;
mod from_config;
mod log_lines;
mod membership;
mod reason;
mod resolver;
mod rounds;
mod shared;
mod station;
mod topology;

pub use reason::{NeighbourDrop, NeighbourEvent};
pub use resolver::{MAX_BACKOFF, REACHABLE_TIME, RETRANSMIT, UNICAST_PROBES};
pub use shared::SharedNeighbours;
pub use station::{
    ECHO_BURST, ECHO_PER_SECOND, FRAMES_PER_POLL, NeighbourCounterReader, NeighbourCounters, Station, StationChange,
    Verdict,
};
pub use topology::{Interface, MAX_NEXT_HOPS, Neighbour, NextHop, NextHopId, Topology, TopologyError, link_local_of};
