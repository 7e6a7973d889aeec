//! What a running program shows to those who look after it.
//!
//! - [`http`]: a server for few readers, on TCP or a Unix socket, on one thread, with a bound on everything a peer can do to
//!   it; and the client's half of it ([`http::client`]).
//! - [`metrics`]: counters and gauges in Prometheus' text format and in OpenMetrics.
//!
//! What lives here: bytes in, bytes out. What does not: any counter, and what a path means; the program's handler decides that.
//!
//! ```
//! use control::http::{Answer, Endpoint, Server, client};
//!
//! let folder = tempfile::tempdir()?;
//! let path = folder.path().join("control");
//! let mut server = Server::new();
//! server.listen(&Endpoint::Unix(path.clone()))?;
//! let running = server.spawn("control", |request| match request.path {
//!     "/healthz" => Answer::text("ok\n"),
//!     _ => Answer::not_found("/healthz\n"),
//! })?;
//! let (status, body) = client::ask(&Endpoint::Unix(path), "GET", "/healthz")?;
//! assert_eq!((status, body.as_str()), (200, "ok\n"));
//! drop(running);
//! # Ok::<(), std::io::Error>(())
//! ```

pub mod http;
pub mod metrics;
