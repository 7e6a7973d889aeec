//! Agreement with the `ppp` crate, which nobody here wrote, on headers where it follows the specification.
//!
//! It does not look into TLVs or verify checksums, and is looser in version 1 (leading zeros in ports); so what it reads
//! is compared for headers that we write, and what it accepts is not taken for right.

use core::net::SocketAddr;
use proptest::prelude::*;
use proxy_protocol::{Addresses, Header, Parsed, Tlv, TlvWriter, Transport, parse};

fn socket_address() -> impl Strategy<Value = SocketAddr> {
    prop_oneof![
        (any::<[u8; 4]>(), any::<u16>()).prop_map(SocketAddr::from),
        (any::<[u8; 16]>(), any::<u16>()).prop_map(SocketAddr::from),
    ]
}

proptest! {
    #[test]
    fn reads_our_v2_as_we_do(source in socket_address(), destination in socket_address(), id in any::<[u8; 16]>()) {
        let addresses = Addresses::from_pair(source, destination);
        let mut room = [0; 64];
        let mut tlvs = TlvWriter::new(&mut room);
        tlvs.push(&Tlv::UniqueId(&id)).unwrap().push(&Tlv::Alpn(b"h2")).unwrap().push_checksum().unwrap();
        let mut out = [0; 256];
        let length =
            Header::proxy(Transport::Datagram, addresses).with_tlvs(tlvs.tlvs()).encode(&mut out).unwrap();

        let theirs = ppp::v2::Header::try_from(&out[..length]).unwrap();
        prop_assert_eq!(theirs.command, ppp::v2::Command::Proxy);
        prop_assert_eq!(theirs.protocol, ppp::v2::Protocol::Datagram);
        let read = match theirs.addresses {
            ppp::v2::Addresses::IPv4(ip) => (
                SocketAddr::from((ip.source_address, ip.source_port)),
                SocketAddr::from((ip.destination_address, ip.destination_port)),
            ),
            ppp::v2::Addresses::IPv6(ip) => (
                SocketAddr::from((ip.source_address, ip.source_port)),
                SocketAddr::from((ip.destination_address, ip.destination_port)),
            ),
            ref other => return Err(TestCaseError::fail(format!("{other:?}"))),
        };
        prop_assert_eq!(Some(read), addresses.as_pair());
        let Ok(Parsed::Complete { header, .. }) = parse(&out[..length]) else { panic!("ours") };
        let fields: Vec<(u8, Vec<u8>)> =
            theirs.tlvs().map(|tlv| tlv.unwrap()).map(|tlv| (tlv.kind, tlv.value.to_vec())).collect();
        let ours: Vec<(u8, Vec<u8>)> = header.tlvs.raw().map(|(kind, value)| (kind, value.to_vec())).collect();
        prop_assert_eq!(fields, ours);
    }

    #[test]
    fn reads_our_v1_as_we_do(source in socket_address(), destination in socket_address()) {
        let addresses = Addresses::from_pair(source, destination);
        let mut out = [0; 128];
        let length = Header::v1(addresses).encode(&mut out).unwrap();
        let theirs = ppp::v1::Header::try_from(&out[..length]).unwrap();
        let read = match theirs.addresses {
            ppp::v1::Addresses::Tcp4(ip) => (
                SocketAddr::from((ip.source_address, ip.source_port)),
                SocketAddr::from((ip.destination_address, ip.destination_port)),
            ),
            ppp::v1::Addresses::Tcp6(ip) => (
                SocketAddr::from((ip.source_address, ip.source_port)),
                SocketAddr::from((ip.destination_address, ip.destination_port)),
            ),
            other => return Err(TestCaseError::fail(format!("{other:?}"))),
        };
        prop_assert_eq!(Some(read), addresses.as_pair());
    }

    #[test]
    fn what_we_accept_of_random_v2_it_accepts(bytes in proptest::collection::vec(any::<u8>(), 0..64), kind in 0u8..4) {
        let family = [0x11, 0x12, 0x21, 0x00][usize::from(kind)];
        let mut input = proxy_protocol::V2_SIGNATURE.to_vec();
        input.extend([0x21, family]);
        input.extend((bytes.len() as u16).to_be_bytes());
        input.extend(&bytes);
        if let Ok(Parsed::Complete { length, .. }) = parse(&input) {
            let theirs = ppp::v2::Header::try_from(&input[..]).unwrap();
            prop_assert_eq!(theirs.len(), length);
        }
    }
}
