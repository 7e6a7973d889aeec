//! The core by itself: packets in, packets out, virtual time. No engine, no root, no NIC.

#![allow(unreachable_pub)] // modules of one test program

mod choices;
mod closing;
mod crossing;
mod crossing_icmp;
mod cutting;
mod defects;
mod fallback;
mod giving_up;
mod giving_up_headers;
mod graph;
mod graph_bench;
mod handshake;
mod harness;
mod hoarders;
mod hostile;
mod icmp;
mod inspecting;
mod inspecting_trouble;
mod kernel;
mod life;
mod many_cores;
mod matrix;
mod opening;
mod oracle;
mod overload;
mod probes;
mod promises;
mod proxy_header;
mod proxy_header_chaos;
mod proxy_header_in;
mod proxy_header_syn;
mod proxy_header_syn_trouble;
mod restart;
mod resting;
mod rounds;
mod scribe;
mod servers;
mod simulated;
mod source_ports;
mod steering;
mod syn;
mod syn_trouble;
mod translation;
mod transparent;
