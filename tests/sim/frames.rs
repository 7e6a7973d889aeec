//! What frames at the engine's ports must be, and which of them open connections.

use e2d2::wire::checksum;
use e2d2::wire::frame::{self, Kind, ParseError};
use std::net::IpAddr;

/// Every TCP packet that the engine makes or passes on has a right checksum, if it came in with one.
///
/// # Errors
/// What is wrong with it.
pub fn check(frame: &[u8]) -> Result<(), String> {
    let layout = match frame::parse(frame) {
        Ok(Kind::Tcp(layout)) => layout,
        // Reports of multicast groups have a router alert.
        Ok(_) | Err(ParseError::ExtensionHeader) => return Ok(()),
        Err(error) => return Err(error.to_string()),
    };
    let (l3, l4, end) = (usize::from(layout.l3), usize::from(layout.l4), usize::from(layout.end));
    let addresses: (IpAddr, IpAddr) = match layout.version {
        frame::IpVersion::V4 => {
            let address = |at: usize| <[u8; 4]>::try_from(&frame[at..at + 4]).map(IpAddr::from);
            (address(l3 + 12).expect("4 bytes"), address(l3 + 16).expect("4 bytes"))
        }
        frame::IpVersion::V6 => {
            let address = |at: usize| <[u8; 16]>::try_from(&frame[at..at + 16]).map(IpAddr::from);
            (address(l3 + 8).expect("16 bytes"), address(l3 + 24).expect("16 bytes"))
        }
    };
    let pseudo = checksum::pseudo_header(addresses.0, addresses.1, 6, (end - l4) as u16).expect("one family");
    if checksum::is_valid(pseudo + checksum::sum(&frame[l4..end])) {
        Ok(())
    } else {
        Err("the TCP checksum".into())
    }
}

/// The sequence number of a SYN.
pub fn number_of_syn(frame: &[u8]) -> Option<u32> {
    let Ok(Kind::Tcp(layout)) = frame::parse(frame) else {
        return None;
    };
    let header = &frame[usize::from(layout.l4)..];
    let number = <[u8; 4]>::try_from(header.get(4..8)?).ok()?;
    (header[13] & 0x17 == 0x02).then(|| u32::from_be_bytes(number))
}
