//! proxyengine

pub mod proxy;
pub mod backends;
pub mod callbacks;
pub mod config;
pub mod neighbour;
pub mod records;
pub mod report;
pub mod selectors;
