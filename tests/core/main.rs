//! The core by itself: packets in, packets out, virtual time. No engine, no root, no NIC.

#![allow(unreachable_pub)] // modules of one test program

mod harness;
mod life;
