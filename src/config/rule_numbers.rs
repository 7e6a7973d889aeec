//! Which rule is which: its number, under which cores count the connections that it has decided about, and its name.
//!
//! Numbers go over the rules of all listeners. A rule keeps its own from version to version of the file; that of a rule that
//! is gone goes to a new one in a later version, when no core chooses by it any more.

use std::collections::HashSet;

use super::model::ListenerConfig;
use super::rule::Rule;
use super::{Config, RuleId, Standing};

/// What connections are shown under that no rule of their listener has chosen a server for.
pub const BY_DEFAULT: &str = "default";

/// What connections are shown under where a listener has too many rules to show each.
pub const OTHER_RULES: &str = "other";

impl Rule {
    /// What it is called where rules are shown: its name, or its place among the rules of the listener, from 0.
    pub fn shown_as(&self, place: usize) -> String {
        self.name.clone().unwrap_or_else(|| place.to_string())
    }

    /// Whether it is the same in another version of the file: by its name, or without one by what it wants.
    pub(super) fn is_same_as(&self, other: &Self) -> bool {
        match (&self.name, &other.name) {
            (None, None) => self.matches == other.matches,
            (one, other) => one == other,
        }
    }
}

impl Config {
    /// One more than the largest number of a rule.
    pub(super) fn rule_count(&self) -> usize {
        let numbers = numbers(&self.listeners);
        numbers.max().map_or(0, |last| last as usize + 1)
    }
}

fn numbers(listeners: &[ListenerConfig]) -> impl Iterator<Item = u32> {
    let rules = listeners.iter().flat_map(|listener| &listener.rules);
    rules.map(|rule| rule.id.0)
}

/// Numbers rules of a first version in their order.
pub(super) fn give(listeners: &mut [ListenerConfig]) {
    let rules = listeners.iter_mut().flat_map(|listener| &mut listener.rules);
    rules.zip(0..).for_each(|(rule, number)| rule.id = RuleId(number));
}

/// Numbers the rules of listeners that have their numbers already as the version before does; returns the numbers of those
/// that are new, which ascend.
pub(super) fn go_on(before: &[ListenerConfig], listeners: &mut [ListenerConfig]) -> Vec<u32> {
    let taken: HashSet<u32> = numbers(before).collect();
    let mut free = (0..=u32::MAX).filter(|number| !taken.contains(number));
    let mut new = Vec::new();
    for listener in listeners {
        let known = before.get(listener.id.index());
        let known = known.filter(|known| known.standing == Standing::InFile);
        let known = known.map_or(&[][..], |known| &known.rules);
        // Rules mostly stand in the order in which they stood.
        let mut next = 0;
        for rule in &mut listener.rules {
            let mut places = (next..known.len()).chain(0..next.min(known.len()));
            if let Some(place) = places.find(|place| known[*place].is_same_as(rule)) {
                (rule.id, next) = (known[place].id, place + 1);
            } else if let Some(number) = free.next() {
                rule.id = RuleId(number);
                new.push(number);
            }
        }
    }
    new
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(rules: &str) -> String {
        format!(
            "[engine]\nname = \"rules\"\ncores = [0]\n\
             [[port]]\nname = \"left\"\ndevice = \"net_ring0\"\naddresses = [\"10.0.0.1/24\"]\n\
             [[listener]]\nname = \"web\"\naddresses = [\"10.0.0.1:80\"]\ndefault = \"a\"\nrules = [{rules}]\n\
             [[pool]]\nname = \"a\"\nservers = [{{ name = \"one\", address = \"10.0.0.9:80\" }}]\n"
        )
    }

    #[test]
    fn a_name_is_of_one_rule_and_of_nothing_else() {
        let rules = |one: &str, other: &str| {
            let rule =
                |name: &str, host: &str| format!("{{ name = \"{name}\", http_host = \"{host}\", pool = \"a\" }}");
            Config::parse(
                &config(&[rule(one, "a.example"), rule(other, "b.example")].join(", ")),
                "test",
            )
        };
        assert!(rules("a", "b-2").is_ok());
        for (one, other) in [
            ("a", "a"),
            ("a", "7"),
            ("a", BY_DEFAULT),
            ("a", OTHER_RULES),
            ("a", ""),
            ("a", "b c"),
        ] {
            let error = rules(one, other).expect_err(other).to_string();
            assert!(error.contains("rules[1].name"), "{error}");
        }
    }

    fn numbered(config: &Config) -> Vec<(String, u32)> {
        let rules = config.listeners()[0].rules.iter().enumerate();
        rules.map(|(place, rule)| (rule.shown_as(place), rule.id.0)).collect()
    }

    #[test]
    fn a_rule_keeps_its_number_and_a_new_one_has_none_that_a_core_may_use() {
        let host = |host: &str| format!("{{ http_host = \"{host}\", pool = \"a\" }}");
        let named = |name: &str, host: &str| format!("{{ name = \"{name}\", http_host = \"{host}\", pool = \"a\" }}");
        let first = [host("a.example"), named("b", "b.example"), host("c.example")].join(", ");
        let first = Config::parse(&config(&first), "test").unwrap_or_else(|error| panic!("{error}"));
        let of = |names: &[(&str, u32)]| -> Vec<(String, u32)> {
            names
                .iter()
                .map(|(name, number)| ((*name).to_owned(), *number))
                .collect()
        };
        assert_eq!(numbered(&first), of(&[("0", 0), ("b", 1), ("2", 2)]));
        assert_eq!(first.rule_count(), 3);

        // The named one wants something else, one is gone, and one is new before them.
        let second = [host("new.example"), named("b", "bb.example"), host("a.example")].join(", ");
        let (second, difference) = first.reload_text(&config(&second), "test").expect("a version");
        assert_eq!(numbered(&second), of(&[("0", 3), ("b", 1), ("2", 0)]));
        assert_eq!((difference.new_rules, second.rule_count()), (vec![3], 4));

        // Nobody has number 2 now.
        let third = [host("new.example"), host("c.example"), named("b", "bb.example")].join(", ");
        let (third, difference) = second.reload_text(&config(&third), "test").expect("a version");
        assert_eq!(numbered(&third), of(&[("0", 3), ("1", 2), ("b", 1)]));
        assert_eq!(difference.new_rules, [2]);
    }
}
