//! mmproxy: accepts the PROXY protocol and connects to the server from the client's own address.
//!
//! A load balancer hides the client's address from the server behind it. mmproxy runs on the server's host, takes the
//! address from the PROXY protocol header, and opens the connection to the server with it as source address, so that a
//! server that knows nothing of all this sees, logs and filters its real clients. TCP and UDP, IPv4 and IPv6.
//!
//! ```text
//!  balancer ──► accept ─► header ─► plan ─► connect from the client's address ─► relay   (worker: one thread per core)
//!               worker    session   plan    sockets                             relay, udp
//! ```
//!
//! Where to look: [`cli`] and [`mod@file`] make a [`config`]; [`daemon`] opens sockets, starts the workers and obeys signals;
//! [`worker`] is the loop of one thread, [`session`] a TCP connection, [`udp`] the datagrams, [`relay`] the moving of
//! bytes; [`plan`] and [`access`] decide without doing; [`netsetup`] makes and checks the routing that spoofing needs.
//!
//! This is the library behind the `mmproxy` binary; its API serves that binary and its tests.

pub mod access;
pub mod address;
pub mod cli;
pub mod config;
pub mod context;
pub mod daemon;
pub mod file;
pub mod firewall;
pub mod inline;
pub mod metrics;
pub mod netlink;
pub mod netsetup;
pub mod plan;
pub mod privileges;
pub mod relay;
pub mod segments;
pub mod session;
pub mod sockets;
pub mod status;
pub mod steering;
pub mod sys;
pub mod timer;
pub mod udp;
mod udppp;
pub mod worker;
