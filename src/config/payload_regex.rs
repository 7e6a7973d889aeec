//! Regular expressions over the first bytes of a payload.
//!
//! An expression becomes a table (a dense DFA) when the file is read, and is then walked byte by byte: one look-up a byte,
//! no allocation, no backtracking, whatever the bytes are. The table also knows what a search in text does not tell: that
//! no more bytes can make a match, so that the next rule can be asked. The price is its size, which has a limit.
//!
//! Bytes, not characters: `.` is any byte but a line feed, `\d`, `\w`, `\b` and `(?i)` are about ASCII.

use std::collections::HashSet;
use std::error::Error;
use std::sync::Arc;

use regex_automata::Anchored;
use regex_automata::dfa::{Automaton, StartKind, dense};
use regex_automata::nfa::thompson;
use regex_automata::util::primitives::StateID;
use regex_automata::util::{start, syntax};

/// The largest table in bytes: with it the second-level cache of a core is full.
const MAX_TABLE: usize = 1 << 20;
/// What may be needed while the table is made; also a bound on the time it takes.
const MAX_WORK: usize = 8 << 20;
/// The longest expression.
pub(super) const MAX_EXPRESSION: usize = 4096;

/// An expression and how many bytes it looks at.
#[derive(Clone)]
pub struct PayloadRegex {
    expression: String,
    first_bytes: u16,
    /// Shared by all cores: it never changes.
    table: Arc<dense::DFA<Vec<u32>>>,
    start: StateID,
}

impl PayloadRegex {
    /// Reads an expression that looks at the first `first_bytes` bytes of a payload.
    ///
    /// # Errors
    /// What was expected in place of the expression: it cannot be read, is too big, matches nothing or everything.
    pub fn new(expression: &str, first_bytes: u16) -> Result<Self, String> {
        if expression.len() > MAX_EXPRESSION {
            return Err(format!("an expression of at most {MAX_EXPRESSION} bytes"));
        }
        let config = dense::Config::new()
            .start_kind(StartKind::Unanchored)
            .dfa_size_limit(Some(MAX_TABLE))
            .determinize_size_limit(Some(MAX_WORK));
        let built = dense::Builder::new()
            .configure(config)
            .syntax(syntax::Config::new().unicode(false).utf8(false))
            .thompson(thompson::Config::new().utf8(false).nfa_size_limit(Some(MAX_WORK)))
            .build(expression);
        let table = built.map_err(|error| why_not(&error))?;
        let start = table
            .start_state(&start::Config::new().anchored(Anchored::No))
            .map_err(|error| format!("an expression without {error}"))?;
        let regex = Self {
            expression: expression.to_owned(),
            first_bytes,
            table: Arc::new(table),
            start,
        };
        if regex.matches_whatever_follows(start) {
            return Err("an expression that does not match every payload; a default does that".to_owned());
        }
        match regex.least_bytes() {
            None => Err("an expression that can match something".to_owned()),
            Some(least) if least > usize::from(first_bytes) => Err(format!(
                "an expression that can match within the first {first_bytes} bytes; this one takes {least}, see regex_bytes"
            )),
            Some(_) => Ok(regex),
        }
    }

    /// Whether `payload` matches; `None` when it may still come to it with more bytes.
    ///
    /// The end of the text, as `$` and `\z` mean it, is the end of a `complete` payload or of the first bytes.
    pub fn is_match(&self, payload: &[u8], complete: bool) -> Option<bool> {
        let limit = usize::from(self.first_bytes);
        let text = payload.get(..limit).unwrap_or(payload);
        match self.walk(text) {
            Walk::Match => Some(true),
            Walk::Dead => Some(false),
            Walk::Open(state) if complete || text.len() == limit => Some(self.matches_at_end(state)),
            // The table shows a match one byte late, because that byte may matter. A client that waits for an answer will
            // not send it.
            Walk::Open(state) if self.matches_whatever_follows(state) => Some(true),
            Walk::Open(_) => None,
        }
    }

    /// Whether every payload that begins with `bytes` matches.
    pub fn covers(&self, bytes: &[u8]) -> bool {
        self.is_match(bytes, false) == Some(true)
    }

    fn walk(&self, text: &[u8]) -> Walk {
        let mut state = self.start;
        for byte in text {
            state = self.table.next_state(state, *byte);
            if self.table.is_special_state(state) {
                if self.table.is_match_state(state) {
                    return Walk::Match;
                }
                if self.is_over(state) {
                    return Walk::Dead;
                }
            }
        }
        Walk::Open(state)
    }

    /// States that nothing leads out of.
    fn is_over(&self, state: StateID) -> bool {
        self.table.is_dead_state(state) || self.table.is_quit_state(state)
    }

    /// The states that one more byte leads to; bytes that the expression does not tell apart are tried once.
    fn after(&self, state: StateID) -> impl Iterator<Item = StateID> {
        let bytes = self.table.byte_classes().representatives(0_u8..=255);
        bytes.filter_map(move |unit| Some(self.table.next_state(state, unit.as_u8()?)))
    }

    fn matches_at_end(&self, state: StateID) -> bool {
        self.table.is_match_state(self.table.next_eoi_state(state))
    }

    fn matches_whatever_follows(&self, state: StateID) -> bool {
        self.matches_at_end(state) && self.after(state).all(|after| self.table.is_match_state(after))
    }

    /// The length of the shortest payload that matches.
    fn least_bytes(&self) -> Option<usize> {
        let mut seen = HashSet::from([self.start]);
        let mut here = vec![self.start];
        for length in 0.. {
            // A match is seen with the byte behind it, or with the end.
            if here.iter().any(|state| self.matches_at_end(*state)) {
                return Some(length);
            }
            let mut next = Vec::new();
            for state in here.iter().flat_map(|state| self.after(*state)) {
                if self.table.is_match_state(state) {
                    return Some(length + 1);
                }
                if !self.is_over(state) && seen.insert(state) {
                    next.push(state);
                }
            }
            if next.is_empty() {
                return None;
            }
            here = next;
        }
        None
    }
}

/// Where a walk through the table has led.
enum Walk {
    Match,
    Dead,
    Open(StateID),
}

impl PartialEq for PayloadRegex {
    fn eq(&self, other: &Self) -> bool {
        (&self.expression, self.first_bytes) == (&other.expression, other.first_bytes)
    }
}

impl Eq for PayloadRegex {}

impl std::fmt::Debug for PayloadRegex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PayloadRegex({:?} in {} bytes)", self.expression, self.first_bytes)
    }
}

/// In one line what was expected.
fn why_not(error: &dense::BuildError) -> String {
    let mut cause: &dyn Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    let text = cause.to_string();
    // The parser's message shows the place in lines of their own; its last line is the sentence.
    let last = text.lines().last().unwrap_or_default();
    let sentence = last.strip_prefix("error: ").unwrap_or(last);
    if error.is_size_limit_exceeded() || text.contains("exceeded limit") {
        return format!("a smaller expression: {sentence}");
    }
    format!("a regular expression: {sentence}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use test_case::test_case;

    fn regex(expression: &str, first_bytes: u16) -> PayloadRegex {
        PayloadRegex::new(expression, first_bytes).unwrap_or_else(|error| panic!("{expression}: {error}"))
    }

    #[test_case("^abc", b"abc" => Some(true); "anchored")]
    #[test_case("^abc", b"ab" => None; "anchored, may still match")]
    #[test_case("^abc", b"ax" => Some(false); "anchored, can no longer match")]
    #[test_case("abc", b"xx" => None; "anywhere, may still match")]
    #[test_case("abc", b"xxabc" => Some(true); "anywhere")]
    #[test_case("^abc\\b", b"abc" => None; "the byte behind it counts")]
    #[test_case("^a.c$", b"abc" => None; "the end may not have come")]
    #[test_case("^a.c$", b"abcd" => Some(false); "longer than the expression")]
    #[test_case("^(a|b)c", b"c" => Some(false); "no alternative")]
    #[test_case("^\\d+ ", b"12" => None; "digits")]
    #[test_case("^\\d+ ", "\u{661} ".as_bytes() => Some(false); "digits are ASCII")]
    #[test_case("(?i)^helo", b"HeLO x" => Some(true); "any case")]
    #[test_case(r"^\x16\x03", b"\x16\x03\x01" => Some(true); "bytes")]
    #[test_case(r"^\xff", b"\xff " => Some(true); "bytes that are no text")]
    #[test_case("^\u{fc}", "\u{fc} ".as_bytes() => Some(true); "a character is its bytes")]
    #[test_case(r"^[^\n]*\n", b"a line" => None; "a line that goes on")]
    #[test_case(r"\bcat\b", b"concat " => None; "word boundary")]
    #[test_case(r"\bcat\b", b"the cat " => Some(true); "word")]
    fn so_far(expression: &str, bytes: &[u8]) -> Option<bool> {
        regex(expression, 1000).is_match(bytes, false)
    }

    #[test_case("^a.c$", b"abc" => Some(true); "the end")]
    #[test_case("abc", b"abc" => Some(true); "a match at the end")]
    #[test_case("abc", b"ab" => Some(false); "half a match")]
    #[test_case("^$", b"" => Some(true); "nothing")]
    fn complete(expression: &str, bytes: &[u8]) -> Option<bool> {
        regex(expression, 1000).is_match(bytes, true)
    }

    #[test]
    fn only_the_first_bytes_count() {
        let three = regex("abc", 3);
        assert_eq!(three.is_match(b"abc", false), Some(true), "the limit is the end");
        assert_eq!(three.is_match(b"abcd", false), Some(true));
        assert_eq!(three.is_match(b"xabc", false), Some(false));
        assert_eq!(regex("^abc$", 3).is_match(b"abcdef", false), Some(true));
    }

    #[test_case("a(b" => "a regular expression: unclosed group"; "open group")]
    #[test_case(r"(a)\1" => "a regular expression: backreferences are not supported"; "back reference")]
    #[test_case("[^\\x00-\\xff]" => "an expression that can match something"; "no byte")]
    #[test_case("a^b" => "an expression that can match something"; "a start within")]
    #[test_case("$a" => "an expression that can match something"; "bytes behind the end")]
    #[test_case("a*" => "an expression that does not match every payload; a default does that"; "nothing is enough")]
    #[test_case("" => "an expression that does not match every payload; a default does that"; "empty")]
    #[test_case("a{11}" => "an expression that can match within the first 10 bytes; this one takes 11, see regex_bytes"; "too long")]
    fn refused(expression: &str) -> String {
        PayloadRegex::new(expression, 10).expect_err("an error")
    }

    #[test]
    fn what_would_be_too_big_is_refused() {
        for big in ["[01]*1[01]{20}", "(a{1000}){1000}", "(.*a){30}.{30}b", r"\w{5000}"] {
            let error = PayloadRegex::new(big, 1000).expect_err(big);
            assert!(
                error.starts_with("a smaller expression: ") && !error.contains('\n'),
                "{big}: {error}"
            );
        }
        let long = format!("^{}", "a".repeat(MAX_EXPRESSION));
        assert!(PayloadRegex::new(&long, 10_000).is_err());
        assert!(PayloadRegex::new(&long[..MAX_EXPRESSION], 10_000).is_ok());
    }

    #[test]
    fn covering_is_about_all_that_begins_so() {
        assert!(regex("^SSH-", 100).covers(b"SSH-2.0-"));
        assert!(!regex("^SSH-2", 100).covers(b"SSH-"), "SSH-1 is left");
        assert!(!regex("^SSH-$", 100).covers(b"SSH-2.0"));
        assert!(!regex("SSH-", 4).covers(b"xxSSH-"), "beyond the first bytes");
    }
}
