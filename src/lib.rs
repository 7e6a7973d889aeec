//! proxyengine

pub mod backends;
pub mod callbacks;
pub mod config;
pub mod engine;
pub mod neighbour;
pub mod pipeline;
pub mod proxy;
pub mod records;
pub mod report;
pub mod selectors;
