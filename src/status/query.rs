//! What is asked for behind the question mark of a URL: keys, values and names of the configuration, each refused with a sentence that
//! names it.

use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use netfcts::leg::mapped;
use splice::ids::{ListenerId, ServerId};

use crate::config::Config;

/// Gives each key with its value to `take`. A key is there once, unless it is `repeatable`.
///
/// # Errors
/// A key is there twice, a value is no text, or what `take` says.
pub(crate) fn read<'a>(
    query: &'a str,
    repeatable: &[&str],
    mut take: impl FnMut(&'a str, &str) -> Result<(), String>,
) -> Result<(), String> {
    // No more than there are keys: another one ends it.
    let mut seen = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        if seen.contains(&key) {
            return Err(format!("`{key}` is there twice"));
        }
        take(key, &decoded(value)?)?;
        if !repeatable.contains(&key) {
            seen.push(key);
        }
    }
    Ok(())
}

/// Text of a URL's query (RFC 3986 2.1). Nothing that can be asked for has control characters in it.
pub(crate) fn decoded(text: &str) -> Result<String, String> {
    let wrong = || format!("`{text}`: expected text, with two hexadecimal digits behind each %");
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digits = [rest.next(), rest.next()].map(|digit| char::from(digit.unwrap_or(b'-')).to_digit(16));
        match digits {
            [Some(high), Some(low)] => bytes.push((high * 16 + low) as u8),
            _ => return Err(wrong()),
        }
    }
    let decoded = String::from_utf8(bytes).map_err(|_| wrong())?;
    if decoded.contains(char::is_control) {
        return Err(wrong());
    }
    Ok(decoded)
}

/// The value of `key` as a number.
pub(crate) fn number<T: FromStr>(key: &str, value: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("`{key}={value}`: expected a number"))
}

/// An address or prefix as connections are compared with it.
pub(crate) fn prefix(text: &str) -> Result<(u128, u128), String> {
    let net = text
        .parse::<IpNet>()
        .or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
    let net = net.map_err(|_| format!("`{text}`: expected an address or a prefix, such as 192.0.2.0/24"))?;
    let length = match net {
        IpNet::V4(net) => 96 + u32::from(net.prefix_len()),
        IpNet::V6(net) => u32::from(net.prefix_len()),
    };
    let bits = u128::MAX.checked_shl(128 - length).unwrap_or(0);
    Ok((mapped(net.addr()) & bits, bits))
}

/// The listener of this name, as [`Config::find_listener`] finds it.
pub(crate) fn listener(name: &str, config: &Config) -> Result<ListenerId, String> {
    let listener = config.find_listener(name);
    listener.ok_or_else(|| format!("there is no listener `{name}`"))
}

/// The server of this name, likewise.
pub(crate) fn server(name: &str, config: &Config) -> Result<ServerId, String> {
    let server = config.find_server(name);
    server.ok_or_else(|| format!("there is no server `{name}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_are_of_either_version() {
        let of = |text: &str| prefix(text).map(|(address, bits)| (address, bits.leading_ones()));
        assert_eq!(of("10.1.2.3/8"), Ok((0xffff_0a00_0000, 104)));
        assert_eq!(of("10.1.2.3"), Ok((0xffff_0a01_0203, 128)));
        assert_eq!(of("fd00::1/64"), Ok((0xfd00 << 112, 64)));
        // Of IPv6 only, as in lists: what is compared with it says so (`tests/core/commands.rs`).
        assert_eq!((of("0.0.0.0/0"), of("::/0")), (Ok((0xffff_0000_0000, 96)), Ok((0, 0))));
        assert!(of("10.1.2").is_err() && of("").is_err());
    }

    #[test]
    fn escapes_are_read_as_they_are_written() {
        assert_eq!(decoded("a%20b%2F").as_deref(), Ok("a b/"));
        for wrong in ["%", "%2", "%zz", "%ff", "%0a", "%C2%85"] {
            assert!(decoded(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_key_is_there_once_unless_it_may_be_there_again() {
        let mut taken = Vec::new();
        let mut take = |key: &str, value: &str| {
            taken.push(format!("{key}:{value}"));
            Ok(())
        };
        assert_eq!(read("a=1&&b&c=%2F&c=2", &["c"], &mut take), Ok(()));
        assert_eq!(read("a=1&a=2", &["c"], &mut take), Err("`a` is there twice".to_owned()));
        assert_eq!(taken, ["a:1", "b:", "c:/", "c:2", "a:1"]);
    }
}
