//! The handshake with clients before there is a connection: SYN cookies, half-open and forwarded SYNs, and what a SYN-ACK
//! offers.

pub mod cookie;
pub(crate) mod forwarded_syn;
pub(crate) mod half_open;
pub(crate) mod replay_filter;
pub mod syn_ack_options;
