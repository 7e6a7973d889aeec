//! What the rule tables of known cards take: their limits as their drivers of DPDK 22.11 have them, without the cards.
//!
//! A port with such a card asks this table first, for a driver may take a rule and do less than it says; a
//! [software NIC](crate::ports::SoftwareNic) has nothing else. The limits and where they are from:
//!
//! * **82599** (`ixgbe_flow.c`, `ixgbe_fdir.c`): a rule whose masks are full goes to the table of 128 five-tuple filters. Any
//!   other goes to Flow Director, which has one mask for the whole port: the first rule sets it, every other must have the same,
//!   and it stays until the device is initialised anew, rules or none. Rules are only made after the first start: Flow Director
//!   at a start costs the vector receive path. IPv6 is matched by signature only, which is a hash and can be wrong.
//! * **X710** (`i40e_flow.c`, `i40e_fdir.c`): one set of fields is matched for each packet type as long as there is a rule of the
//!   type. A port is among the fields under a full mask only; under any other it is left out without a word, and the rule is
//!   for all ports.

use std::net::IpAddr;

use super::{FlowError, FlowRule, MaskedPort};

/// Cards whose limits are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NicModel {
    /// Receive-side scaling and no rules, as a virtual NIC of a cloud.
    Rss,
    /// Intel 82599 and its kin (X520, X540).
    Intel82599,
    /// Intel X710 and its kin (XL710, XXV710).
    X710,
}

/// Filters in the five-tuple table of the 82599: `IXGBE_MAX_FTQF_FILTERS`.
const FIVE_TUPLES: usize = 128;

/// Perfect filters of the 82599 with the smallest allocation, which is the driver's own: 2 k less one.
const PERFECT_FILTERS: usize = 2047;

/// Filters that the X710's driver keeps: `I40E_MAX_FDIR_FILTER_NUM`.
const X710_FILTERS: usize = 8192;

impl NicModel {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Rss, Self::Intel82599, Self::X710];

    /// Its name in configurations.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rss => "rss",
            Self::Intel82599 => "82599",
            Self::X710 => "x710",
        }
    }

    /// The card that a driver of DPDK drives, if its limits are known here.
    pub fn of_driver(driver: &str) -> Option<Self> {
        match driver {
            "net_ixgbe" => Some(Self::Intel82599),
            "net_i40e" => Some(Self::X710),
            _ => None,
        }
    }

    /// Queues that receive-side scaling spreads over at most.
    pub const fn most_queues(self) -> u16 {
        match self {
            Self::Intel82599 => 16,
            Self::Rss | Self::X710 => 64,
        }
    }

    /// Entries of the redirection table.
    pub const fn reta_entries(self) -> u16 {
        match self {
            Self::Rss | Self::Intel82599 => 128,
            Self::X710 => 512,
        }
    }

    /// Bytes of the key.
    pub const fn key_length(self) -> usize {
        match self {
            Self::Rss | Self::Intel82599 => 40,
            Self::X710 => 52,
        }
    }
}

/// The rules of one port, and what its card remembers of those it has had.
#[derive(Clone, Debug)]
pub struct RuleTable {
    device: String,
    model: NicModel,
    queues: u16,
    is_started: bool,
    /// The 82599's one mask for destination ports.
    mask: Option<u16>,
    rules: Vec<FlowRule>,
}

impl RuleTable {
    /// An empty table of the card `model` with `queues` queues; `device` is its name in errors.
    pub fn new(device: &str, model: NicModel, queues: u16) -> Self {
        Self {
            device: device.to_owned(),
            model,
            queues,
            is_started: false,
            mask: None,
            rules: Vec::new(),
        }
    }

    /// The port has been started: from now on it takes rules.
    pub fn start(&mut self) {
        self.is_started = true;
    }

    /// The rules that are in force, in the order in which they came.
    pub fn rules(&self) -> &[FlowRule] {
        &self.rules
    }

    /// Takes all of `rules` or none. What a card cannot forget is remembered of those that were taken before one was refused.
    ///
    /// # Errors
    /// The first rule that the card would refuse or weaken, and why.
    pub fn install(&mut self, rules: &[FlowRule]) -> Result<(), FlowError> {
        let before = self.rules.len();
        for rule in rules {
            if let Err(error) = self.take(*rule) {
                self.rules.truncate(before);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Removes all rules after the first `count`.
    #[cfg(feature = "dpdk")]
    pub(crate) fn keep(&mut self, count: usize) {
        self.rules.truncate(count);
    }

    /// Removes all rules. The 82599's mask stays.
    pub fn clear(&mut self) {
        self.rules.clear();
    }

    fn take(&mut self, rule: FlowRule) -> Result<(), FlowError> {
        if self.model == NicModel::Rss {
            return Err(FlowError::no_rules(&self.device));
        }
        self.check_rule(rule)?;
        match self.model {
            NicModel::Intel82599 => self.check_82599(rule)?,
            NicModel::X710 => self.check_x710(rule)?,
            NicModel::Rss => {}
        }
        self.rules.push(rule);
        Ok(())
    }

    /// What every card refuses.
    fn check_rule(&self, rule: FlowRule) -> Result<(), FlowError> {
        if rule.queue >= self.queues {
            let reason = format!("it has the queues 0 to {}", self.queues.saturating_sub(1));
            return Err(self.refused(rule, reason));
        }
        if let Some(MaskedPort { value, mask }) = rule.port {
            if mask == 0 {
                return Err(self.refused(rule, "a mask without bits is for all ports".to_owned()));
            }
            if value & !mask != 0 {
                return Err(self.refused(
                    rule,
                    "no port agrees with a value that has bits outside its mask".to_owned(),
                ));
            }
        }
        if self
            .rules
            .iter()
            .any(|other| (other.destination, other.port) == (rule.destination, rule.port))
        {
            return Err(self.refused(rule, "it has a rule for these packets".to_owned()));
        }
        Ok(())
    }

    fn check_82599(&mut self, rule: FlowRule) -> Result<(), FlowError> {
        if !self.is_started {
            return Err(self.refused(rule, "it takes rules after its first start".to_owned()));
        }
        if rule.destination.is_ipv6() {
            let reason = "it matches IPv6 by signature only, which other packets can have as well";
            return Err(self.refused(rule, reason.to_owned()));
        }
        let Some(partial) = partial_mask(rule) else {
            let taken = self.count(|rule| partial_mask(**rule).is_none());
            return self.check_room(rule, taken, FIVE_TUPLES, "five-tuple filters");
        };
        if let Some(mask) = self.mask
            && mask != partial
        {
            let reason = format!("it has one port mask for all rules, {mask:#06x}, until it is initialised anew");
            return Err(self.refused(rule, reason));
        }
        let taken = self.count(|rule| partial_mask(**rule).is_some());
        self.check_room(rule, taken, PERFECT_FILTERS, "perfect filters of Flow Director")?;
        self.mask = Some(partial);
        Ok(())
    }

    fn check_x710(&self, rule: FlowRule) -> Result<(), FlowError> {
        if partial_mask(rule).is_some() {
            return Err(FlowError::WouldBeWeakened {
                device: self.device.clone(),
                rule,
                reason: "its driver leaves a port out that is not masked in full, and the rule would be for all ports"
                    .to_owned(),
            });
        }
        let version = |rule: &FlowRule| rule.destination.is_ipv6();
        let of_type = |other: &&FlowRule| version(other) == version(&rule);
        if let Some(first) = self.rules.iter().find(of_type)
            && first.port.is_some() != rule.port.is_some()
        {
            let reason = format!(
                "it matches the same fields in all rules for TCP over {}, and the first rule has {} port",
                if version(&rule) { "IPv6" } else { "IPv4" },
                if first.port.is_some() { "a" } else { "no" },
            );
            return Err(self.refused(rule, reason));
        }
        self.check_room(rule, self.rules.len(), X710_FILTERS, "filters of Flow Director")
    }

    fn count(&self, is_counted: impl Fn(&&FlowRule) -> bool) -> usize {
        self.rules.iter().filter(is_counted).count()
    }

    fn check_room(&self, rule: FlowRule, taken: usize, most: usize, what: &str) -> Result<(), FlowError> {
        if taken < most {
            return Ok(());
        }
        Err(self.refused(rule, format!("all of its {most} {what} are in use")))
    }

    fn refused(&self, rule: FlowRule, reason: String) -> FlowError {
        FlowError::Refused {
            device: self.device.clone(),
            rule,
            reason,
        }
    }
}

/// The mask of a rule that is neither for all ports nor for one.
fn partial_mask(rule: FlowRule) -> Option<u16> {
    rule.port.map(|port| port.mask).filter(|mask| *mask != u16::MAX)
}

/// Rules in the order in which a card would apply them, for looking them up.
#[derive(Clone, Debug, Default)]
pub(crate) struct RuleIndex {
    /// By address; those for the same address with the fullest mask first, as the five-tuple filters of the 82599 go before
    /// Flow Director.
    rules: Vec<FlowRule>,
}

impl RuleIndex {
    pub(crate) fn new(rules: &[FlowRule]) -> Self {
        let mut rules = rules.to_vec();
        let mask = |rule: &FlowRule| rule.port.map_or(0, |port| port.mask.count_ones());
        rules.sort_by_key(|rule| (rule.destination, std::cmp::Reverse(mask(rule))));
        Self { rules }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// The queue for TCP packets to `port` of `destination`.
    pub(crate) fn find(&self, destination: IpAddr, port: u16) -> Option<u16> {
        let first = self.rules.partition_point(|rule| rule.destination < destination);
        let of_address = self.rules[first..]
            .iter()
            .take_while(|rule| rule.destination == destination);
        of_address
            .filter(|rule| rule.port.is_none_or(|masked| masked.contains(port)))
            .map(|rule| rule.queue)
            .next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V4: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
    const V6: IpAddr = IpAddr::V6(std::net::Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1));

    fn rule(destination: IpAddr, port: Option<(u16, u16)>, queue: u16) -> FlowRule {
        FlowRule {
            destination,
            port: port.map(|(value, mask)| MaskedPort { value, mask }),
            queue,
        }
    }

    fn address(number: usize) -> IpAddr {
        IpAddr::from([10, 1, (number >> 8) as u8, number as u8])
    }

    fn table(model: NicModel) -> RuleTable {
        let mut table = RuleTable::new("card", model, 4);
        table.start();
        table
    }

    fn refusal(table: &mut RuleTable, rule: FlowRule) -> String {
        let before = table.rules().len();
        let error = table.install(&[rule]).expect_err("refused");
        assert_eq!(table.rules().len(), before);
        error.to_string()
    }

    #[test]
    fn a_card_without_rules_takes_none() {
        let mut rss = table(NicModel::Rss);
        assert_eq!(rss.install(&[rule(V4, None, 0)]), Err(FlowError::no_rules("card")));
    }

    #[test]
    fn no_card_takes_what_makes_no_sense() {
        for model in [NicModel::Intel82599, NicModel::X710] {
            let mut table = table(model);
            assert!(refusal(&mut table, rule(V4, None, 4)).contains("queues 0 to 3"));
            assert!(refusal(&mut table, rule(V4, Some((0, 0)), 0)).contains("without bits"));
            assert!(refusal(&mut table, rule(V4, Some((0x4001, 0xc000)), 0)).contains("outside its mask"));
            table.install(&[rule(V4, None, 0)]).expect("a good rule");
            assert!(refusal(&mut table, rule(V4, None, 1)).contains("has a rule for these"));
        }
    }

    #[test]
    fn the_82599_has_one_mask_and_never_forgets_it() {
        let mut table = table(NicModel::Intel82599);
        let quarters = [0, 0x4000, 0x8000, 0xc000].map(|value| rule(V4, Some((value, 0xc000)), value >> 14));
        table.install(&quarters).expect("one mask");
        assert!(refusal(&mut table, rule(address(1), Some((0, 0x8000)), 0)).contains("0xc000"));
        table.clear();
        assert!(refusal(&mut table, rule(V4, Some((0, 0x8000)), 0)).contains("initialised anew"));
        table.install(&quarters[..2]).expect("the same mask");
    }

    #[test]
    fn the_82599_remembers_a_mask_of_rules_that_were_taken_back() {
        let mut table = table(NicModel::Intel82599);
        let rules = [rule(V4, Some((0, 0xc000)), 0), rule(V4, Some((0, 0x8000)), 1)];
        assert!(table.install(&rules).is_err());
        assert!(table.rules().is_empty(), "all or none");
        assert!(refusal(&mut table, rules[1]).contains("0xc000"));
    }

    #[test]
    fn the_82599_takes_rules_after_its_start_and_no_ipv6() {
        let mut table = RuleTable::new("card", NicModel::Intel82599, 4);
        assert!(refusal(&mut table, rule(V4, None, 0)).contains("after its first start"));
        table.start();
        assert!(refusal(&mut table, rule(V6, Some((0, 0xc000)), 0)).contains("signature"));
        assert!(refusal(&mut table, rule(V6, None, 0)).contains("signature"));
        table.install(&[rule(V4, None, 0)]).expect("started");
    }

    #[test]
    fn full_masks_go_to_the_82599s_small_table() {
        let mut table = table(NicModel::Intel82599);
        for number in 0..FIVE_TUPLES {
            let port = (number % 2 == 0).then_some((80, u16::MAX));
            table.install(&[rule(address(number), port, 1)]).expect("room");
        }
        assert!(refusal(&mut table, rule(V4, None, 0)).contains("all of its 128"));
        for number in 0..PERFECT_FILTERS {
            let partial = Some((0, 0xc000));
            table
                .install(&[rule(address(number), partial, 1)])
                .expect("room elsewhere");
        }
        assert!(refusal(&mut table, rule(V4, Some((0, 0xc000)), 0)).contains("all of its 2047"));
    }

    #[test]
    fn the_x710_would_weaken_a_partial_mask() {
        let mut table = table(NicModel::X710);
        let partial = rule(V4, Some((0x4000, 0xc000)), 1);
        let error = table.install(&[rule(V4, None, 0), partial]).expect_err("weakened");
        assert!(
            matches!(&error, FlowError::WouldBeWeakened { rule, .. } if *rule == partial),
            "{error}"
        );
        assert!(table.rules().is_empty(), "all or none");
    }

    #[test]
    fn the_x710_matches_one_set_of_fields_for_each_packet_type() {
        let mut table = table(NicModel::X710);
        let http = Some((80, u16::MAX));
        table
            .install(&[rule(V4, None, 0), rule(V6, http, 1)])
            .expect("two types");
        assert!(refusal(&mut table, rule(address(1), http, 0)).contains("IPv4, and the first rule has no port"));
        let other = IpAddr::from([1; 16]);
        assert!(refusal(&mut table, rule(other, None, 0)).contains("IPv6, and the first rule has a port"));
        table.clear();
        table
            .install(&[rule(address(1), http, 0)])
            .expect("no rule of the type is left");
    }

    #[test]
    fn the_x710s_filters_have_an_end() {
        let mut table = table(NicModel::X710);
        let rules: Vec<_> = (0..X710_FILTERS).map(|number| rule(address(number), None, 0)).collect();
        table.install(&rules).expect("room");
        assert!(refusal(&mut table, rule(V4, None, 0)).contains("all of its 8192"));
    }

    #[test]
    fn the_index_finds_the_fullest_rule_of_the_address() {
        let index = RuleIndex::new(&[
            rule(V4, None, 0),
            rule(V4, Some((0x4000, 0xc000)), 1),
            rule(V4, Some((0x4001, u16::MAX)), 2),
            rule(V6, Some((0x4000, 0xc000)), 3),
        ]);
        for (destination, port, queue) in [
            (V4, 0x3fff, Some(0)),
            (V4, 0x4000, Some(1)),
            (V4, 0x4001, Some(2)),
            (V6, 0x4001, Some(3)),
            (V6, 0x8000, None),
            (address(1), 0x4000, None),
        ] {
            assert_eq!(index.find(destination, port), queue, "{destination} {port:#x}");
        }
        assert!(!index.is_empty() && RuleIndex::default().is_empty());
    }

    #[test]
    fn names_and_drivers_lead_to_models() {
        assert_eq!(NicModel::ALL.map(NicModel::name), ["rss", "82599", "x710"]);
        assert_eq!(NicModel::of_driver("net_ixgbe"), Some(NicModel::Intel82599));
        assert_eq!(NicModel::of_driver("net_i40e"), Some(NicModel::X710));
        assert_eq!(NicModel::of_driver("net_ring"), None);
        for model in NicModel::ALL {
            assert!(model.reta_entries().is_power_of_two() && model.key_length() >= 40);
        }
    }
}
