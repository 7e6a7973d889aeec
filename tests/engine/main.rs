//! The engine on a machine of heap memory and queues between threads: no DPDK, no root.

mod capture;
mod checks;
mod drain;
mod hostile_queries;
mod journal;
mod life;
mod permissions;
mod proxy;
mod reload;
mod software_nic;
mod status;
mod steering;
mod steering_choice;
mod wire;
