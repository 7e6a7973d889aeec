//! proxyengine

pub mod backends;
pub mod callbacks;
pub mod config;
