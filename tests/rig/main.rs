//! The engine between real Linux stacks: programs that nobody here wrote, on the software rig.
//!
//! Each test raises a rig of its own, one at a time on a machine; where that cannot be done (no root, no namespaces, a
//! program missing) it says so and is counted as skipped by `build.sh test`. What the rig itself does is proved in
//! `crates/rig/tests/`, so a failure here is the engine's.

mod banner;
mod capture;
mod checks;
mod failover;
mod families;
mod family;
mod files;
mod guard;
mod http;
mod inline;
mod inspecting;
mod kernel;
mod ldap;
mod legs;
mod many_cores;
mod names;
mod neighbours;
mod numbers;
mod page;
mod page_keys;
mod postgres;
mod proxy_banner;
mod proxy_protocol;
mod refusal;
mod routers;
mod setup;
mod shutdown;
mod small_link;
mod standby;
mod syn;
mod throughput;
mod tls;
