//! Any bytes as PROXY protocol headers.

use proxy_protocol::{Header, ParseOptions, Parsed, Tlvs, Version, parse, spp};

/// No panic, a verdict that more bytes do not change, and what was accepted can be written and read again.
pub fn any(bytes: &[u8]) {
    match parse(bytes) {
        Ok(Parsed::Complete { header, length }) => {
            accepted(&header, length, bytes);
        }
        Ok(Parsed::Incomplete { needed }) => {
            assert!(needed > 0);
            let lenient = ParseOptions {
                verify_checksum: false,
                ..ParseOptions::default()
            };
            assert_eq!(lenient.parse(bytes), Ok(Parsed::Incomplete { needed }));
        }
        Err(_) => {
            let mut longer = bytes.to_vec();
            longer.extend(b"\r\n");
            assert!(parse(&longer).is_err(), "more bytes cured it");
        }
    }
    if let Ok(tlvs) = Tlvs::new(bytes) {
        let _ = tlvs.iter().count();
    }
    if let Some((header, payload)) = spp::Header::parse(bytes) {
        let again = header.encode();
        assert_eq!(spp::Header::parse(&again), Some((header, &[][..])));
        assert_eq!(payload.len() + again.len(), bytes.len());
    }
}

fn accepted(header: &Header<'_>, length: usize, bytes: &[u8]) {
    assert!(length <= bytes.len());
    assert_eq!(parse(&bytes[..length]), parse(bytes), "payload changed the verdict");
    for cut in 0..length.min(128) {
        assert!(matches!(parse(&bytes[..cut]), Ok(Parsed::Incomplete { needed }) if needed <= length - cut));
    }
    let mut out = vec![0; header.encoded_len()];
    let written = header.encode(&mut out).expect("an accepted header can be written");
    assert_eq!(written, out.len());
    let Ok(Parsed::Complete { header: again, .. }) = parse(&out) else {
        panic!("not accepted any more")
    };
    assert_eq!(again, *header);
    if header.version == Version::V2 && !header.tlvs.is_empty() {
        assert_eq!(&out[..], &bytes[..length]);
    }
}
