//! The file of a list: a prefix in each line, and its class behind it if it has one.
//!
//! ```text
//! # an office, and a country
//! 192.0.2.0/24
//! 2001:db8::/32   DE      # the class, a word
//! ```
//!
//! A file may come from anywhere: it is read line by line, and refused with the first line that is not right.

use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Read};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use ipnet::{IpNet, Ipv4Net};
use rustix::fs::OFlags;

use super::table::Entry;

/// The class of prefixes that name none.
pub const NO_CLASS: &str = "";

/// So many prefixes are in a list at most.
pub const MOST_ENTRIES: usize = 2_000_000;

/// So many classes.
pub const MOST_CLASSES: usize = 4096;

/// Bytes of a line at most.
const LONGEST_LINE: u64 = 512;

/// Bytes of a file at most: [`MOST_ENTRIES`] of the longest prefixes, with the longest classes, have room.
const MOST_BYTES: u64 = 128 * MOST_ENTRIES as u64;

/// What is in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListContent {
    /// By prefix; none twice.
    pub entries: Vec<Entry>,
    /// Names by number; the first is [`NO_CLASS`].
    pub classes: Vec<String>,
}

impl Default for ListContent {
    fn default() -> Self {
        ListContent {
            entries: Vec::new(),
            classes: vec![NO_CLASS.to_owned()],
        }
    }
}

/// Why a file is no list.
#[derive(Debug, thiserror::Error)]
pub enum ListError {
    /// It cannot be read.
    #[error("cannot be read: {0}")]
    Unreadable(#[from] std::io::Error),
    /// It is a folder, a device or a FIFO.
    #[error("is no regular file")]
    NoFile,
    /// One of its lines.
    #[error("line {line}: {complaint}")]
    Line {
        /// From 1.
        line: usize,
        /// What is wrong with it, and what was expected.
        complaint: String,
    },
}

impl ListContent {
    /// Reads a file.
    ///
    /// # Errors
    /// See [`ListError`].
    pub fn load(path: &Path) -> Result<Self, ListError> {
        // A FIFO that nobody writes to is opened at once.
        let not_to_wait = OFlags::NONBLOCK.bits().cast_signed();
        let file = OpenOptions::new().read(true).custom_flags(not_to_wait).open(path)?;
        if !file.metadata()?.is_file() {
            return Err(ListError::NoFile);
        }
        Self::read(file)
    }

    /// Reads what a file has in it.
    ///
    /// # Errors
    /// See [`ListError`].
    pub fn read(file: impl Read) -> Result<Self, ListError> {
        let mut content = ListContent::default();
        let mut numbers: HashMap<String, u16> = HashMap::from([(NO_CLASS.to_owned(), 0)]);
        let mut lines: Vec<u32> = Vec::new();
        let mut file = BufReader::with_capacity(1 << 16, file);
        let (mut text, mut bytes) = (Vec::new(), 0);
        for line in 1.. {
            let refuse = |complaint: String| Err(ListError::Line { line, complaint });
            text.clear();
            if file.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut text)? == 0 {
                break;
            }
            bytes += text.len() as u64;
            if bytes > MOST_BYTES {
                return refuse(format!("is beyond the {MOST_BYTES} bytes that a file can have"));
            }
            if text.len() as u64 == LONGEST_LINE {
                return refuse(format!("is longer than {LONGEST_LINE} bytes"));
            }
            let Some(line_text) = std::str::from_utf8(&text).ok() else {
                return refuse("is no text".to_owned());
            };
            let mut words = line_text.split('#').next().unwrap_or_default().split_ascii_whitespace();
            let Some(first) = words.next() else { continue };
            let prefix = match prefix(first) {
                Ok(prefix) => prefix,
                Err(complaint) => return refuse(complaint),
            };
            let class = words.next().unwrap_or(NO_CLASS);
            if let Some(more) = words.next() {
                return refuse(format!(
                    "has \"{}\" behind its class, expected a prefix and one word",
                    more.escape_debug()
                ));
            }
            let class = match numbers.get(class) {
                Some(number) => *number,
                None if !is_class(class) => {
                    return refuse(format!("has the class \"{}\", expected {CLASS}", class.escape_debug()));
                }
                None if content.classes.len() == MOST_CLASSES => {
                    let most = MOST_CLASSES - 1;
                    return refuse(format!("has one class more than the {most} that a list can have"));
                }
                None => {
                    let number = content.classes.len() as u16;
                    numbers.insert(class.to_owned(), number);
                    content.classes.push(class.to_owned());
                    number
                }
            };
            if content.entries.len() == MOST_ENTRIES {
                return refuse(format!(
                    "is one more than the {MOST_ENTRIES} prefixes that a list can have"
                ));
            }
            content.entries.push(Entry { prefix, class });
            lines.push(line as u32);
        }
        content.sort(&lines)?;
        Ok(content)
    }

    /// Sorts the entries, which came from these lines.
    fn sort(&mut self, lines: &[u32]) -> Result<(), ListError> {
        let mut order: Vec<u32> = (0..self.entries.len() as u32).collect();
        let prefix_of = |place: u32| self.entries[place as usize].prefix;
        order.sort_unstable_by_key(|place| (prefix_of(*place), *place));
        let twice = order.windows(2).filter(|pair| prefix_of(pair[0]) == prefix_of(pair[1]));
        if let Some(pair) = twice.min_by_key(|pair| pair[1]) {
            let complaint = format!(
                "has {} again, which is in line {}",
                prefix_of(pair[1]),
                lines[pair[0] as usize]
            );
            let line = lines[pair[1] as usize] as usize;
            return Err(ListError::Line { line, complaint });
        }
        self.entries = order.into_iter().map(|place| self.entries[place as usize]).collect();
        Ok(())
    }
}

/// What a class can be called.
pub const CLASS: &str = "1 to 64 letters, digits, \"-\", \"_\" or \".\"";

/// Whether a class can be called so.
pub fn is_class(name: &str) -> bool {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    (1..=64).contains(&name.len()) && name.bytes().all(is_plain)
}

/// An address, or a prefix without host bits.
///
/// # Errors
/// What was expected.
pub fn prefix(text: &str) -> Result<IpNet, String> {
    let shown = || text.chars().take(60).collect::<String>().escape_debug().to_string();
    let address = || text.parse::<IpAddr>().ok().map(IpNet::from);
    let Some(prefix) = text.parse::<IpNet>().ok().or_else(address) else {
        return Err(format!(
            "has \"{}\", expected an address or a prefix such as 192.0.2.0/24",
            shown()
        ));
    };
    if prefix.trunc() != prefix {
        return Err(format!(
            "has \"{}\", expected a prefix without host bits: {}",
            shown(),
            prefix.trunc()
        ));
    }
    Ok(as_ipv4(prefix))
}

/// The IPv4 prefix that a prefix of mapped addresses stands for (RFC 4291 2.5.5.2), as logs of programs with IPv6 sockets have it; any
/// other as it is.
pub fn as_ipv4(prefix: IpNet) -> IpNet {
    let IpNet::V6(mapped) = prefix else { return prefix };
    let length = mapped.prefix_len().checked_sub(96);
    let net = mapped
        .addr()
        .to_ipv4_mapped()
        .zip(length)
        .and_then(|(address, length)| Ipv4Net::new(address, length).ok());
    net.map_or(prefix, IpNet::V4)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use test_case::test_case;

    #[test]
    fn a_prefix_of_mapped_addresses_is_one_of_ipv4() {
        for (text, meant) in [
            ("::ffff:203.0.113.7", "203.0.113.7/32"),
            ("::ffff:203.0.113.0/120", "203.0.113.0/24"),
            ("::ffff:0:0/96", "0.0.0.0/0"),
            ("::/0", "::/0"),
            ("2001:db8::/32", "2001:db8::/32"),
        ] {
            assert_eq!(prefix(text).map(|prefix| prefix.to_string()), Ok(meant.to_owned()));
        }
    }

    #[test]
    fn prefixes_classes_and_comments() {
        let text = "# a list\n\n192.0.2.0/24\n 2001:db8::/32\tDE # there\r\n10.0.0.1 DE\n0.0.0.0/0 x-y_z.1";
        let content = ListContent::read(text.as_bytes()).expect("a list");
        assert_eq!(content.classes, ["", "DE", "x-y_z.1"]);
        let shown: Vec<_> = content
            .entries
            .iter()
            .map(|entry| (entry.prefix.to_string(), entry.class))
            .collect();
        let expected = [
            ("0.0.0.0/0", 2),
            ("10.0.0.1/32", 1),
            ("192.0.2.0/24", 0),
            ("2001:db8::/32", 1),
        ];
        assert_eq!(shown, expected.map(|(prefix, class)| (prefix.to_owned(), class)));
        assert_eq!(ListContent::read(&b""[..]).expect("a list"), ListContent::default());
    }

    #[test_case("10.0.0.0/33" => "line 1: has \"10.0.0.0/33\", expected an address or a prefix such as 192.0.2.0/24"; "length")]
    #[test_case("::1\n10.0.0.1/8" => "line 2: has \"10.0.0.1/8\", expected a prefix without host bits: 10.0.0.0/8"; "host bits")]
    #[test_case("a b c" => "line 1: has \"a\", expected an address or a prefix such as 192.0.2.0/24"; "words")]
    #[test_case("10.0.0.1 a b" => "line 1: has \"b\" behind its class, expected a prefix and one word"; "two classes")]
    #[test_case("10.0.0.1 a:b" => "line 1: has the class \"a:b\", expected 1 to 64 letters, digits, \"-\", \"_\" or \".\""; "class")]
    #[test_case("10.0.0.0/8\n\n::/0\n10.0.0.0/8 x\n::/0" => "line 4: has 10.0.0.0/8 again, which is in line 1"; "twice")]
    #[test_case("\u{1b}[2J" => "line 1: has \"\\u{1b}[2J\", expected an address or a prefix such as 192.0.2.0/24"; "control characters")]
    fn what_is_no_list_is_refused_by_its_line(text: &str) -> String {
        ListContent::read(text.as_bytes()).expect_err("no list").to_string()
    }

    #[test]
    fn lines_and_lists_without_end_are_refused_early() {
        let refused = |file: &mut dyn Read| ListContent::read(file).expect_err("no list").to_string();
        assert_eq!(refused(&mut std::io::repeat(b'1')), "line 1: is longer than 512 bytes");
        assert_eq!(refused(&mut &b"\xff\xfe\n"[..]), "line 1: is no text");
        let many = (0..10_000_000_u32).flat_map(|n| format!("{}\n", std::net::Ipv4Addr::from(n)).into_bytes());
        struct Bytes<I>(I);
        impl<I: Iterator<Item = u8>> Read for Bytes<I> {
            fn read(&mut self, room: &mut [u8]) -> std::io::Result<usize> {
                Ok(room
                    .iter_mut()
                    .zip(&mut self.0)
                    .map(|(place, byte)| *place = byte)
                    .count())
            }
        }
        let expected = "line 2000001: is one more than the 2000000 prefixes that a list can have";
        assert_eq!(refused(&mut Bytes(many)), expected);
        struct Comments;
        impl Read for Comments {
            fn read(&mut self, room: &mut [u8]) -> std::io::Result<usize> {
                room[..511].fill(b'#');
                room[510] = b'\n';
                Ok(511)
            }
        }
        let expected = "line 500979: is beyond the 256000000 bytes that a file can have";
        assert_eq!(refused(&mut Comments), expected);
    }

    #[test]
    fn only_a_regular_file_is_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let fifo = folder.path().join("fifo");
        mknodat(CWD, &fifo, FileType::Fifo, Mode::RWXU, 0).expect("a fifo");
        for path in [folder.path(), &fifo, Path::new("/dev/zero")] {
            let error = ListContent::load(path).expect_err("no list");
            assert_eq!(error.to_string(), "is no regular file", "{}", path.display());
        }
    }
}
