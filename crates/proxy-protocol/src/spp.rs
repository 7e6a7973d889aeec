//! Cloudflare's Simple Proxy Protocol: 38 bytes in front of the payload of a UDP datagram, in both directions.
//!
//! ```text
//!  0         2                18               34            36            38
//!  | 56 ec   | client address | proxy address  | client port | proxy port  | payload ...
//! ```
//!
//! IPv4 addresses are IPv4-mapped. The server puts the same header in front of its replies.
//!
//! ```
//! use proxy_protocol::spp::Header;
//!
//! let header = Header { client: "203.0.113.7:40001".parse().unwrap(), proxy: "198.51.100.9:53".parse().unwrap() };
//! let mut datagram = header.encode().to_vec();
//! datagram.extend(b"payload");
//! assert_eq!(Header::parse(&datagram), Some((header, &b"payload"[..])));
//! ```

use core::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Length of the header.
pub const LEN: usize = 38;

/// First bytes of the header.
pub const MAGIC: [u8; 2] = [0x56, 0xec];

/// The header.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct Header {
    /// The client that sent the datagram to the proxy.
    pub client: SocketAddr,
    /// The address at the proxy that the client sent it to.
    pub proxy: SocketAddr,
}

impl Header {
    /// The header at the front of `datagram` and the payload after it; `None` if there is no header.
    pub fn parse(datagram: &[u8]) -> Option<(Self, &[u8])> {
        let (header, payload) = datagram.split_first_chunk::<LEN>()?;
        let fields = header.strip_prefix(&MAGIC)?;
        let (client, fields) = fields.split_first_chunk::<16>()?;
        let (proxy, fields) = fields.split_first_chunk::<16>()?;
        let (client_port, fields) = fields.split_first_chunk::<2>()?;
        let proxy_port = fields.first_chunk::<2>()?;
        Some((
            Header {
                client: address(*client, *client_port),
                proxy: address(*proxy, *proxy_port),
            },
            payload,
        ))
    }

    /// The header in wire form.
    pub fn encode(&self) -> [u8; LEN] {
        let mut out = [0; LEN];
        out[..2].copy_from_slice(&MAGIC);
        out[2..18].copy_from_slice(&octets(self.client.ip()));
        out[18..34].copy_from_slice(&octets(self.proxy.ip()));
        out[34..36].copy_from_slice(&self.client.port().to_be_bytes());
        out[36..38].copy_from_slice(&self.proxy.port().to_be_bytes());
        out
    }
}

fn address(ip: [u8; 16], port: [u8; 2]) -> SocketAddr {
    SocketAddr::new(Ipv6Addr::from(ip).to_canonical(), u16::from_be_bytes(port))
}

fn octets(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;

    #[test]
    fn every_cut_is_refused_and_both_families_return() {
        for (client, proxy) in [
            ("203.0.113.7:40001", "198.51.100.9:53"),
            ("[2001:db8::1]:0", "[2001:db8::2]:65535"),
            ("[2001:db8::1]:1", "198.51.100.9:2"),
        ] {
            let header = Header {
                client: client.parse().unwrap(),
                proxy: proxy.parse().unwrap(),
            };
            let bytes = header.encode();
            assert_eq!(Header::parse(&bytes), Some((header, &[][..])));
            for cut in 0..LEN {
                assert_eq!(Header::parse(&bytes[..cut]), None, "{cut} bytes");
            }
        }
    }

    #[test]
    fn wire_form_is_cloudflares() {
        let header = Header {
            client: "1.2.3.4:258".parse().unwrap(),
            proxy: "5.6.7.8:772".parse().unwrap(),
        };
        let mut expected = vec![0x56, 0xec];
        expected.extend([0; 10].iter().chain(&[0xff, 0xff, 1, 2, 3, 4]));
        expected.extend([0; 10].iter().chain(&[0xff, 0xff, 5, 6, 7, 8, 1, 2, 3, 4]));
        assert_eq!(header.encode().to_vec(), expected);
        expected[0] = 0x57;
        assert_eq!(Header::parse(&expected), None);
    }
}
