//! Finds the rules that a host name may match, however many rules there are.

use std::collections::HashMap;
use std::ops::Range;

use arrayvec::ArrayVec;

use crate::config::{HostPattern, MAX_HOST_LEN, Match, Rule};

/// Rules fewer than these are asked one by one: that costs less than a look-up.
const FEW: usize = 8;

/// A domain with more labels than these is not in the index: its rules are asked for every name. It bounds the look-ups
/// for one name, as a name of 253 characters has up to 127 labels.
const MAX_LABELS: usize = 6;

/// Where a rule looks for the name that it wants.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum NameSource {
    /// The host of an HTTP/1 request.
    Host,
    /// The server name of a TLS ClientHello.
    ServerName,
}

/// Rules that stand behind each other in the file and want a name from the same source, by that name.
///
/// It only leaves out rules that do not match; whether one of the others does is for the rule to say, as it may want a path
/// or a protocol as well. So the first rule of the file that matches wins, with the index as without.
#[derive(Clone, Debug)]
pub(super) struct NameIndex {
    pub(super) source: NameSource,
    /// Places of these rules in the listener's list.
    pub(super) rules: Range<usize>,
    /// Names as [`HostPattern`] holds them: `a.example`, and `.example` for what is below it.
    by_name: HashMap<Box<[u8]>, Vec<usize>>,
    /// Rules that want any name, an IPv6 address, or a domain of many labels.
    others: Vec<usize>,
    /// Labels of the longest domain in `by_name`: 0 to [`MAX_LABELS`].
    labels: usize,
}

impl NameIndex {
    /// The indices of a listener's rules, in their order; rules in none of them are asked one by one.
    pub(super) fn of_rules(rules: &[Rule]) -> Vec<Self> {
        let mut indices = Vec::new();
        let mut start = 0;
        for alike in rules.chunk_by(|a, b| source_of(a) == source_of(b)) {
            let end = start + alike.len();
            if let Some(source) = source_of(&alike[0])
                && alike.len() >= FEW
            {
                indices.push(Self::new(source, rules, start..end));
            }
            start = end;
        }
        indices
    }

    fn new(source: NameSource, all: &[Rule], rules: Range<usize>) -> Self {
        let mut index = Self {
            source,
            rules: rules.clone(),
            by_name: HashMap::new(),
            others: Vec::new(),
            labels: 0,
        };
        for place in rules {
            match pattern_of(&all[place]) {
                Some(HostPattern::Exact(name)) => index.insert(name, place),
                Some(HostPattern::Below(domain)) if labels(domain.as_bytes()) <= MAX_LABELS => {
                    index.labels = index.labels.max(labels(domain.as_bytes()));
                    index.insert(domain, place);
                }
                _ => index.others.push(place),
            }
        }
        index
    }

    fn insert(&mut self, name: &str, place: usize) {
        self.by_name.entry(name.as_bytes().into()).or_default().push(place);
    }

    /// The places of the rules that may match `name`, ascending; `None` if it is too long to be looked up.
    pub(super) fn candidates(&self, name: &[u8]) -> Option<Candidates<'_>> {
        let name = name.strip_suffix(b".").unwrap_or(name);
        let mut lower = ArrayVec::<u8, MAX_HOST_LEN>::new();
        lower.try_extend_from_slice(name).ok()?;
        lower.make_ascii_lowercase();
        let mut candidates = Candidates(ArrayVec::new());
        candidates.push(Some(&self.others));
        candidates.push(self.by_name.get(&lower[..]));
        let dots = (0..lower.len()).rev().filter(|at| lower[*at] == b'.');
        for at in dots.take(self.labels) {
            candidates.push(self.by_name.get(&lower[at..]));
        }
        Some(candidates)
    }
}

/// Places of rules, ascending: lists that are ascending, merged.
pub(super) struct Candidates<'a>(ArrayVec<&'a [usize], { MAX_LABELS + 2 }>);

impl<'a> Candidates<'a> {
    fn push(&mut self, places: Option<&'a Vec<usize>>) {
        if let Some(places) = places.filter(|places| !places.is_empty()) {
            // There is room for `others`, the whole name and `MAX_LABELS` domains.
            _ = self.0.try_push(places);
        }
    }
}

impl Iterator for Candidates<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let next = self.0.iter().filter_map(|places| places.first()).min().copied()?;
        for places in &mut self.0 {
            // A name that begins with a dot is looked up twice as the same.
            if places.first() == Some(&next) {
                *places = &places[1..];
            }
        }
        Some(next)
    }
}

fn labels(domain: &[u8]) -> usize {
    domain.iter().filter(|byte| **byte == b'.').count()
}

fn source_of(rule: &Rule) -> Option<NameSource> {
    match rule.matches {
        Match::Http { host: Some(_), .. } => Some(NameSource::Host),
        Match::Tls { sni: Some(_), .. } => Some(NameSource::ServerName),
        _ => None,
    }
}

fn pattern_of(rule: &Rule) -> Option<&HostPattern> {
    match &rule.matches {
        Match::Http { host, .. } => host.as_ref(),
        Match::Tls { sni, .. } => sni.as_ref(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{PoolId, RuleAction};

    fn rule(sni: &str) -> Rule {
        let sni = Some(sni.parse().expect("a pattern"));
        Rule {
            id: crate::config::RuleId(0),
            name: None,
            matches: Match::Tls { sni, alpn: None },
            action: RuleAction::Pool(PoolId(0)),
        }
    }

    fn index(rules: &[Rule]) -> NameIndex {
        let mut indices = NameIndex::of_rules(rules);
        assert_eq!(indices.len(), 1);
        indices.remove(0)
    }

    #[test]
    fn of_ten_thousand_rules_few_are_asked() {
        let mut rules: Vec<Rule> = (0..10_000).map(|n| rule(&format!("n{n}.example"))).collect();
        rules.extend((0..10_000).map(|n| rule(&format!("*.d{n}.example"))));
        rules.push(rule("*.example"));
        rules.push(rule("*"));
        rules.push(rule("[2001:db8::1]"));
        let index = index(&rules);
        let asked = |name: &str| index.candidates(name.as_bytes()).unwrap().collect::<Vec<_>>();
        assert_eq!(asked("N77.Example."), [77, 20_000, 20_001, 20_002]);
        assert_eq!(asked("x.y.d5.example"), [10_005, 20_000, 20_001, 20_002]);
        assert_eq!(asked("elsewhere"), [20_001, 20_002]);
    }

    #[test]
    fn many_labels_cost_a_bounded_number_of_look_ups() {
        let deep = "*.1.2.3.4.5.6.7";
        let rules: Vec<Rule> = (0..8).map(|_| rule("*.2.3.4.5.6.7")).chain([rule(deep)]).collect();
        let index = index(&rules);
        assert_eq!((index.labels, index.others.as_slice()), (MAX_LABELS, &[8][..]));
        let name = "a.".repeat(119) + "1.2.3.4.5.6.7";
        assert_eq!(index.candidates(name.as_bytes()).unwrap().count(), 9);
        assert!(index.candidates(&[b'a'; MAX_HOST_LEN + 1]).is_none());
    }

    #[test]
    fn a_name_that_begins_with_a_dot_finds_each_rule_once() {
        let rules: Vec<Rule> = (0..8).map(|_| rule("*.example")).collect();
        let places: Vec<usize> = index(&rules).candidates(b".example").unwrap().collect();
        assert_eq!(places, [0, 1, 2, 3, 4, 5, 6, 7]);
    }
}
