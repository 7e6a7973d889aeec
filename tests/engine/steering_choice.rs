//! Which way of steering is chosen, and what is refused at start, with the arithmetic.

use e2d2::buffer::{HeapBuffer, HeapPool};
use e2d2::flow::RuleTable;
use e2d2::flow::{FlowError, FlowRule, NicModel};
use e2d2::ports::NicQueue;
use e2d2::rss::{DEFAULT_KEY, Rss, even_reta};
use e2d2::wire::MacAddr;
use netfcts::FourTuple;
use netfcts::leg::mapped;
use proxyengine::config::Config;
use proxyengine::engine::Engine;
use proxyengine::engine::machine::{Machine, MachineError, Opened};
use proxyengine::report::PortReport;
use test_case::test_case;

/// One port: its hash, and its rules.
struct Card {
    rss: Option<Rss>,
    rules: Option<RuleTable>,
}

impl Card {
    fn new(model: NicModel, queues: u16) -> Self {
        let mut rules = RuleTable::new("the card", model, queues);
        rules.start();
        Self {
            rss: Some(Rss::new(&DEFAULT_KEY, even_reta(128, queues))),
            rules: Some(rules),
        }
    }

    fn plain() -> Self {
        Self { rss: None, rules: None }
    }
}

impl Machine for Card {
    type Port = NicQueue<HeapBuffer>;
    type Pool = HeapPool;
    type Thread = ();
    type Handle = ();

    fn open(_: &Config) -> Result<Opened<Self>, MachineError> {
        Err("it is asked for nothing but steering".into())
    }

    fn enter_thread((): &()) -> Result<(), MachineError> {
        Ok(())
    }

    fn handle(&self) {}

    fn macs(&self) -> Vec<MacAddr> {
        Vec::new()
    }

    fn rss(&self, _: usize) -> Option<Rss> {
        self.rss.clone()
    }

    fn install(&mut self, _: usize, rules: &[FlowRule]) -> Result<(), FlowError> {
        let Some(table) = &mut self.rules else {
            return Err(FlowError::no_rules("the card"));
        };
        table.clear();
        table.install(rules)
    }

    fn port_reports(&self) -> Vec<PortReport> {
        Vec::new()
    }
}

fn config(engine: &str, pool: &str) -> Config {
    crate::wire::config(&format!("cores = [0, 1, 2, 3]\n{engine}"), pool)
}

const FOUR: &str = "local_addresses = [\"10.0.0.2\", \"10.0.0.3\", \"10.0.0.4\", \"10.0.0.5\"]";

#[test_case("steering = \"rss\"", "", Card::plain(), "port \"left\" does not spread TCP by a hash"; "no hash")]
#[test_case("steering = \"rss\"", "", Card::new(NicModel::Rss, 3), "spreads over [43, 43, 42, 0] entries for queues 0 to 3"; "more cores than queues")]
#[test_case("steering = \"rss\"", "", Card::new(NicModel::Rss, 8), "leads to queue 4, but there are 4 cores"; "more queues than cores")]
#[test_case("steering = \"rss\"", "local_ports = \"5000-5001\"", Card::new(NicModel::Rss, 4), "none of the 2 source ports towards server \"one\""; "too few ports for a hash")]
#[test_case("steering = \"software\"", "local_ports = \"5000-5002\"", Card::plain(), "none of the 3 source ports towards server \"one\""; "too few ports for anything")]
#[test_case("steering = \"port\"\nport_mask = 0x8000", "", Card::new(NicModel::Intel82599, 4), "port_mask 0x8000 makes 2 parts of 32768 ports, expected at least one for each of 4 cores"; "a small mask")]
#[test_case("steering = \"port\"\nport_mask = 0xf000", "local_ports = \"1024-50000\"", Card::new(NicModel::Intel82599, 4), "core number 0 of 4 has none of the 48977 source ports"; "a mask that leaves no ports")]
#[test_case("steering = \"port\"", "", Card::plain(), "the card cannot steer by rules"; "no rules")]
#[test_case("steering = \"port\"\nport_mask = 0xc000", "", Card::new(NicModel::Intel82599, 4), "would bring all clients of listener \"web\" to one core"; "a listener among the ports")]
#[test_case("steering = \"ip\"", "", Card::new(NicModel::X710, 4), "server \"one\" is reached from 1 of local_addresses, expected one for each of 4 cores"; "one address")]
#[test_case("steering = \"ip\"", "local_addresses = [\"10.0.0.2\", \"10.0.0.3\", \"10.0.0.4\", \"10.0.0.1\"]", Card::new(NicModel::X710, 4), "would bring all clients of listener \"web\" to one core"; "overlapping addresses")]
fn what_cannot_be_is_refused_with_the_arithmetic(engine: &str, pool: &str, mut card: Card, sentence: &str) {
    let steered = Engine::steer(&config(engine, pool), &mut card, 4).map(|_| ());
    let error = steered.expect_err("refused").to_string();
    assert!(error.contains(sentence), "{error}");
}

/// The rules that a card has after the choice, and whether its hash was taken.
fn chosen(engine: &str, pool: &str, mut card: Card) -> (usize, bool) {
    let others = Engine::steer(&config(engine, pool), &mut card, 4).unwrap_or_else(|error| panic!("{error}"));
    let first = others.into_iter().next().flatten().expect("a core of four");
    let leg = FourTuple {
        remote: mapped([10, 0, 0, 9].into()),
        local: mapped([10, 0, 0, 1].into()),
        remote_port: 80,
        local_port: 5000,
    };
    let rules = card.rules.map_or(0, |table| table.rules().len());
    (rules, first.steering.plan.rss_hash(&leg).is_some())
}

#[test]
fn auto_takes_the_first_that_configuration_and_ports_allow() {
    let without_hash = |model| Card {
        rss: None,
        ..Card::new(model, 4)
    };
    assert_eq!(chosen("", "", Card::new(NicModel::Rss, 4)), (0, true), "rss");
    assert_eq!(
        chosen("", FOUR, without_hash(NicModel::Intel82599)),
        (16, false),
        "port"
    );
    assert_eq!(chosen("", FOUR, without_hash(NicModel::X710)), (4, false), "ip");
    assert_eq!(
        chosen("", "", without_hash(NicModel::X710)),
        (0, false),
        "software: one address"
    );
    assert_eq!(chosen("", FOUR, Card::plain()), (0, false), "software: nothing else");
}

/// A card that would do less than its rule says leads to the next way, and keeps none of the rules.
#[test]
fn a_rule_that_would_be_weakened_leads_to_the_next_way() {
    assert_eq!(
        chosen("steering = \"port\"", "", Card::new(NicModel::X710, 4)),
        (0, true)
    );
}

#[test]
fn one_core_is_not_steered() {
    let mut card = Card::plain();
    let others = Engine::steer(&config("steering = \"rss\"", ""), &mut card, 1).expect("nothing to steer");
    assert!(others.iter().all(Option::is_none) && others.len() == 1);
}

/// What an engine that runs does not go on with, for it would not start with it: whatever its ports can do.
#[test_case("steering = \"ip\"", FOUR, None; "enough addresses")]
#[test_case("steering = \"ip\"", "", Some("is reached from 1 of local_addresses"); "one address")]
#[test_case("steering = \"ip\"", "local_addresses = [\"10.0.0.2\", \"10.0.0.3\", \"10.0.0.4\", \"10.0.0.1\"]", Some("must not be one of local_addresses"); "a listener's address")]
#[test_case("steering = \"port\"\nport_mask = 0xc000", "", Some("its port must lie outside the rule"); "a listener's port")]
#[test_case("steering = \"port\"", "", None; "ports")]
#[test_case("", "", None; "whatever can be")]
fn a_reload_refuses_what_would_not_start(engine: &str, pool: &str, sentence: Option<&str>) {
    let said = proxyengine::engine::steering::check(&config(engine, pool)).map_err(|error| error.to_string());
    match sentence {
        None => assert_eq!(said, Ok(())),
        Some(sentence) => assert!(said.as_ref().is_err_and(|error| error.contains(sentence)), "{said:?}"),
    }
}
