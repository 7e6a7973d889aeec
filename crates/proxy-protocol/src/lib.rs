//! proxy-protocol
