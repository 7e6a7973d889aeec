//! Distinguished names of directories as rules write them, and how they compare with the names that clients bind with.

use std::fmt;
use std::str::FromStr;

use arrayvec::ArrayVec;

/// The longest part of a name that is compared, in bytes of its normal form.
const MAX_PART: usize = 256;
/// The most parts of a name that is compared.
const MAX_PARTS: usize = 64;

/// A part of a name (an RDN) in its normal form.
type Part = ArrayVec<u8, MAX_PART>;

/// Which names a rule wants.
///
/// Names are compared part by part in their normal form: types and values in lower case (ASCII), without the blanks around
/// them, runs of blanks as one, escapes resolved. `2.5.4.3=x` and `cn=x` are different, as are `cn=a+sn=b` and `sn=b+cn=a`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DnPattern {
    /// `*`: every bind, with whatever name.
    Any,
    /// The empty name: anonymous binds, and those of SASL that name nobody.
    Anonymous,
    /// This name and every one below it. As it was written, and its parts from left to right.
    Below(String, Vec<Vec<u8>>),
}

impl DnPattern {
    /// Whether `name`, as a client sent it, is one of the names. What is no distinguished name (`user@domain`, as Active
    /// Directory takes it) is matched by `*` only.
    pub fn matches(&self, name: &[u8]) -> bool {
        match self {
            Self::Any => true,
            Self::Anonymous => name.is_empty(),
            Self::Below(_, wanted) => parts(name).is_some_and(|parts| is_below(&parts, wanted)),
        }
    }

    /// Whether every name that `other` matches is matched by this one.
    pub fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Any, _) | (Self::Anonymous, Self::Anonymous) => true,
            (Self::Below(_, ours), Self::Below(_, theirs)) => theirs.ends_with(ours),
            _ => false,
        }
    }
}

fn is_below(parts: &[&[u8]], wanted: &[Vec<u8>]) -> bool {
    let Some(first) = parts.len().checked_sub(wanted.len()) else {
        return false;
    };
    // Every part has to be one, also those that are not compared.
    let mut normal = parts.iter().map(|part| normal_form(part));
    let below_well_formed = normal.by_ref().take(first).all(|part| part.is_some());
    let end_is_wanted = normal
        .zip(wanted)
        .all(|(ours, theirs)| ours.is_some_and(|ours| ours[..] == theirs[..]));
    below_well_formed && end_is_wanted
}

/// Says what was expected in place of the text.
impl FromStr for DnPattern {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "*" => return Ok(Self::Any),
            "" => return Ok(Self::Anonymous),
            _ => (),
        }
        let expected = "a distinguished name such as \"ou=people,dc=example,dc=org\" (RFC 4514), \"*\" for any, or \"\" for \
                        anonymous";
        let parts = parts(text.as_bytes()).ok_or(expected)?;
        let normal: Option<Vec<Vec<u8>>> = parts
            .iter()
            .map(|part| normal_form(part).map(|part| part.to_vec()))
            .collect();
        Ok(Self::Below(text.to_owned(), normal.ok_or(expected)?))
    }
}

impl fmt::Display for DnPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("*"),
            Self::Anonymous => Ok(()),
            Self::Below(text, _) => f.write_str(text),
        }
    }
}

/// The parts between the commas that are not escaped; `None` for the empty name and for what has too many.
fn parts(name: &[u8]) -> Option<ArrayVec<&[u8], MAX_PARTS>> {
    let mut parts = ArrayVec::new();
    let mut start = 0;
    let mut at = 0;
    while let Some(byte) = name.get(at) {
        match byte {
            b'\\' => at += 1,
            b',' => {
                parts.try_push(&name[start..at]).ok()?;
                start = at + 1;
            }
            _ => (),
        }
        at += 1;
    }
    parts.try_push(name.get(start..)?).ok()?;
    (!name.is_empty()).then_some(parts)
}

/// `type=value`, and more of them behind `+`. RFC 4514 section 3, but blanks around types and values are skipped, as all
/// directories do.
fn normal_form(part: &[u8]) -> Option<Part> {
    let mut normal = Part::new();
    let mut rest = part;
    loop {
        let equals = rest.iter().position(|byte| *byte == b'=')?;
        let kind = rest[..equals].trim_ascii();
        // A short name or numbers with dots.
        let is_kind = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
        if kind.is_empty() || !kind.iter().all(is_kind) {
            return None;
        }
        for byte in kind {
            normal.try_push(byte.to_ascii_lowercase()).ok()?;
        }
        normal.try_push(b'=').ok()?;
        rest = value(&rest[equals + 1..], &mut normal)?;
        if rest.is_empty() {
            return Some(normal);
        }
        // The byte is in no value, so that a value cannot pose as another type.
        normal.try_push(0).ok()?;
        rest = &rest[1..];
    }
}

/// Appends a value to the normal form and returns what follows it: nothing, or what begins with `+`.
fn value<'a>(text: &'a [u8], normal: &mut Part) -> Option<&'a [u8]> {
    let start = normal.len();
    let mut at = 0;
    while let Some(byte) = text.get(at) {
        let byte = match byte {
            b'+' => break,
            b'\\' => {
                let (byte, length) = escaped(text.get(at + 1..)?)?;
                at += length;
                byte
            }
            // RFC 4514 2.4: these are always escaped.
            b'"' | b';' | b'<' | b'>' | 0 => return None,
            byte => *byte,
        };
        at += 1;
        let blank_again = byte == b' ' && (normal.len() == start || normal.last() == Some(&b' '));
        if byte == 0 {
            return None;
        }
        if !blank_again {
            normal.try_push(byte.to_ascii_lowercase()).ok()?;
        }
    }
    while normal.len() > start && normal.last() == Some(&b' ') {
        normal.pop();
    }
    text.get(at..)
}

/// The byte that is escaped by what follows a backslash, and how many bytes that takes.
fn escaped(text: &[u8]) -> Option<(u8, usize)> {
    let hex = |byte: &u8| char::from(*byte).to_digit(16).map(|digit| digit as u8);
    let first = text.first()?;
    match (hex(first), text.get(1).and_then(hex)) {
        (Some(high), Some(low)) => Some((high << 4 | low, 2)),
        _ if b" \"#+,;<=>\\".contains(first) => Some((*first, 1)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use test_case::test_case;

    #[test_case("dc=example,dc=org", "dc=example,dc=org" => true; "the name itself")]
    #[test_case("dc=example,dc=org", "uid=a,ou=people,dc=example,dc=org" => true; "below")]
    #[test_case("dc=example,dc=org", "dc=org" => false; "above")]
    #[test_case("dc=example,dc=org", "dc=xexample,dc=org" => false; "no boundary of parts")]
    #[test_case("dc=example,dc=org", "uid=a, DC = Example , dc=ORG " => true; "case and blanks")]
    #[test_case("o=Big Corp", "o=big   corp" => true; "runs of blanks")]
    #[test_case("o=Big Corp", "o=bigcorp" => false; "no blank")]
    #[test_case(r"o=Sue\, Grabbit", r"cn=x,o=sue\2C grabbit" => true; "escapes")]
    #[test_case("dc=org", r"cn=a\,dc=org" => false; "an escaped comma parts nothing")]
    #[test_case("dc=org", r"cn=a\\,dc=org" => true; "an escaped backslash before a comma")]
    #[test_case("cn=a+sn=b", "cn=A + sn=B" => true; "of several values")]
    #[test_case("cn=a+sn=b", r"cn=a\+sn=b" => false; "an escaped plus")]
    #[test_case("cn=a+sn=b", r"cn=a\00sn=b" => false; "a zero is no plus")]
    #[test_case("dc=org", "user@dc=org" => false; "no distinguished name")]
    #[test_case("dc=org", "user,dc=org" => false; "a part without a type")]
    #[test_case("dc=org", r#"cn="a",dc=org"# => false; "quotes as before RFC 2253")]
    #[test_case("dc=org", r"cn=a\zz,dc=org" => false; "no escape")]
    #[test_case("dc=org", "dc=org\\" => false; "half an escape")]
    #[test_case("dc=org", "" => false; "anonymous")]
    #[test_case("", "" => true; "anonymous is wanted")]
    #[test_case("", "dc=org" => false; "only anonymous")]
    #[test_case("*", "user@example.org" => true; "any")]
    #[test_case("cn=Bj\u{f6}rn", "uid=x,cn=bj\\C3\\B6RN" => true; "escaped UTF-8")]
    fn names(pattern: &str, name: &str) -> bool {
        pattern.parse::<DnPattern>().unwrap().matches(name.as_bytes())
    }

    #[test_case("example.org"; "host name")]
    #[test_case("dc=example,"; "empty part")]
    #[test_case("=x"; "no type")]
    #[test_case("cn=a+"; "nothing behind the plus")]
    #[test_case("c n=a"; "blank in the type")]
    #[test_case("*,dc=org"; "star within")]
    #[test_case(r"cn=a\"; "half an escape")]
    fn is_no_pattern(text: &str) {
        assert!(text.parse::<DnPattern>().is_err());
    }

    #[test]
    fn sizes_have_bounds() {
        let part = |len: usize| format!("cn={}", "a".repeat(len));
        assert!(part(MAX_PART - 3).parse::<DnPattern>().is_ok());
        assert!(part(MAX_PART - 2).parse::<DnPattern>().is_err());
        let deep = |count: usize| vec!["cn=a"; count].join(",");
        assert!(deep(MAX_PARTS).parse::<DnPattern>().is_ok());
        assert!(deep(MAX_PARTS + 1).parse::<DnPattern>().is_err());
    }

    #[test]
    fn covering() {
        let covers = |a: &str, b: &str| a.parse::<DnPattern>().unwrap().covers(&b.parse().unwrap());
        assert!(covers("*", "dc=org") && covers("*", "") && covers("*", "*") && covers("", ""));
        assert!(covers("dc=org", "ou=a,DC=Org") && covers("dc=org", "dc=org"));
        assert!(
            !covers("ou=a,dc=org", "dc=org") && !covers("dc=org", "*") && !covers("dc=org", "") && !covers("", "*")
        );
    }
}
