//! DPDK ports and packet memory, on devices that need neither hardware nor, but for the kernel's interfaces, privileges.
//!
//! One process, hence one EAL, for all tests of this file.
#![cfg(feature = "dpdk")]

mod buffers;
mod files;
mod flows;
mod interfaces;
mod memif;
mod namespace;
mod rings;
mod softnic;
mod softrss;
mod support;
