//! HTTP/1.1 for few readers: one request for each connection, on one thread.
//!
//! Whatever peers do, the server holds at most [`MOST_CONNECTIONS`] of them, each with a request of at most
//! [`MOST_REQUEST`] bytes, for a few seconds: an incomplete request is closed after [`REQUEST_TIME`], an answer that nobody
//! takes after [`ANSWER_TIME`]; what the handler takes does not count. When all places are taken, a new connection gets that of one
//! whose answer is sent, or whose request has been incomplete for longest. So a reader that sends its request at once is served while
//! others hold theirs back. Eight places are for Unix sockets only, if there is one: readers over TCP keep no local peer out.
//!
//! The `Host` of a request over TCP has to be an IP address, `localhost`, or a name that the server is told
//! ([`Server::allow_hosts`]): a web page cannot make a browser read what is here under a name of its own (DNS rebinding).
//!
//! An answer may go on for as long as there is something to say ([`Answer::stream`]), or take long to make ([`Answer::beside`]): it has
//! a thread of its own and no place among those. Who lets it begin says how many there may be.
//!
//! A request with a body is refused: RFC 9110 15.5.14 (413). The answer to `HEAD` is that to `GET` without its body.

pub mod client;
mod connection;
mod endpoint;
mod request;
mod server;
mod stream;

pub use endpoint::Endpoint;
pub use request::{Answer, Peer, Request};
pub use server::{Hosts, Running, Server};
pub use stream::Body;

use std::time::Duration;

/// Connections at once.
pub const MOST_CONNECTIONS: usize = 64;

/// Bytes of a request, its headers included.
pub const MOST_REQUEST: usize = 8192;

/// How long a request may take to be complete.
pub const REQUEST_TIME: Duration = Duration::from_secs(2);

/// How long an answer may take to be taken.
pub const ANSWER_TIME: Duration = Duration::from_secs(5);
