//! The engine as a station on its links: frames and virtual time in, frames out.

mod announce;
mod arp;
mod discovery;
mod echo;
mod frames;
mod random;
mod resolve;
mod standby;
mod topology;
mod world;
