//! libproxyproto_connect.so: preloaded into a client, it puts a PROXY protocol header before each of its TCP connections.
//!
//! ```text
//! LD_PRELOAD=libproxyproto_connect.so LIBPROXYPROTO_ADDR=203.0.113.7 LIBPROXYPROTO_PORT=40001 curl http://server/
//! ```
//!
//! The header says that the connection comes from `LIBPROXYPROTO_ADDR` (127.0.0.1) and `LIBPROXYPROTO_PORT` (8080) and
//! goes to where the program connects; `LIBPROXYPROTO_VERSION` is 2, or 1, or 0 for none; `LIBPROXYPROTO_DEBUG` says what
//! is done. Datagram and UNIX sockets are left alone. A non-blocking `connect` waits until the connection stands, for up
//! to `LIBPROXYPROTO_TIMEOUT` seconds (10), as the header has to be there before the program's first byte.

mod connect;

use proxy_protocol::{Addresses, Header, Transport};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::OnceLock;
use std::time::Duration;

/// Longest header that is written here: version 1.
const HEADER: usize = proxy_protocol::V1_MAX_LEN;

struct Options {
    source: SocketAddr,
    version: u8,
    debug: bool,
    timeout: Duration,
}

fn options() -> &'static Options {
    static OPTIONS: OnceLock<Options> = OnceLock::new();
    OPTIONS.get_or_init(|| {
        let variable = |name: &str| std::env::var(name).ok();
        let ip = variable("LIBPROXYPROTO_ADDR").map_or(Ok(IpAddr::V4(Ipv4Addr::LOCALHOST)), |text| text.parse());
        let port = variable("LIBPROXYPROTO_PORT").map_or(Ok(8080), |text| text.parse());
        let version = variable("LIBPROXYPROTO_VERSION").map_or(Ok(2), |text| text.parse());
        let timeout = variable("LIBPROXYPROTO_TIMEOUT")
            .and_then(|text| text.parse().ok())
            .unwrap_or(10);
        let (source, version) = match (ip, port, version) {
            (Ok(ip), Ok(port), Ok(version @ 0..=2)) => (SocketAddr::new(ip, port), version),
            _ => {
                eprintln!(
                    "libproxyproto_connect: LIBPROXYPROTO_ADDR, _PORT or _VERSION cannot be understood: no header"
                );
                (SocketAddr::from(([127, 0, 0, 1], 0)), 0)
            }
        };
        Options {
            source,
            version,
            debug: variable("LIBPROXYPROTO_DEBUG").is_some(),
            timeout: Duration::from_secs(timeout),
        }
    })
}

/// The header of a connection to `destination`, and its length; `None` if none is wanted.
fn header(options: &Options, destination: SocketAddr) -> Option<([u8; HEADER], usize)> {
    // Of different families both are written as IPv6.
    let source = SocketAddr::new(options.source.ip().to_canonical(), options.source.port());
    let destination = SocketAddr::new(destination.ip().to_canonical(), destination.port());
    let addresses = Addresses::from_pair(source, destination);
    let header = match options.version {
        1 => Header::v1(addresses),
        2 => Header::proxy(Transport::Stream, addresses),
        _ => return None,
    };
    let mut out = [0; HEADER];
    let length = header.encode(&mut out).ok()?;
    Some((out, length))
}
