//! PROXY headers: those that clients send, and those that servers get.

pub(crate) mod received_headers;
pub(crate) mod send_proxy;
