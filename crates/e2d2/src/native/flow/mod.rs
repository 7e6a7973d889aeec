//! Flow rules on a DPDK port: checked against what is known of the card, validated and made through `rte_flow`, removed at the
//! end.
//!
//! A driver's word is not enough. i40e takes a partial port mask and leaves the port out; so what a known card cannot do is
//! refused before its driver is asked ([`RuleTable`]), and partial masks go only to drivers that are known to keep them.
#![allow(unsafe_code)] // FFI: rte_flow.

mod pattern;

use std::ffi::CStr;
use std::ptr::NonNull;
use std::sync::Arc;

use dpdk_sys as sys;

use self::pattern::Pattern;
use super::port::PortInner;
use crate::flow::{FlowError, FlowRule, NicModel, RuleTable};

/// Drivers of unknown cards that compare a port under any mask, besides those of known cards.
const KEEPS_PARTIAL_MASKS: [&str; 1] = ["net_mlx5"];

/// The rules of one port. Dropping it removes them.
#[derive(Debug)]
pub(super) struct Flows {
    device: String,
    driver: String,
    /// What is known of the card, and which mask it cannot forget; none of an unknown one.
    table: Option<RuleTable>,
    made: Rules<PortRules>,
}

impl Flows {
    /// No rules on `port`, which is started, with `queues` queues.
    pub(super) fn new(port: &Arc<PortInner>, queues: u16) -> Self {
        let (device, driver) = (port.name.clone(), port.driver.clone());
        let table = NicModel::of_driver(&driver).map(|model| {
            let mut table = RuleTable::new(&format!("{device} ({driver})"), model, queues);
            table.start();
            table
        });
        Self {
            device,
            driver,
            table,
            made: Rules::new(PortRules(Arc::clone(port))),
        }
    }

    /// Makes all of `rules` or none, besides those that there are.
    pub(super) fn install(&mut self, rules: &[FlowRule]) -> Result<(), FlowError> {
        let model = NicModel::of_driver(&self.driver);
        match &mut self.table {
            Some(table) => table.install(rules)?,
            None => check_unknown(&self.device, &self.driver, rules)?,
        }
        let made = self
            .made
            .install(rules, model, &format!("{} ({})", self.device, self.driver));
        if made.is_err()
            && let Some(table) = &mut self.table
        {
            // The driver refuses what the table took: the table says no more than what is in force.
            table.keep(table.rules().len() - rules.len());
        }
        made
    }

    /// Removes all rules.
    pub(super) fn remove(&mut self) {
        self.made.remove_from(0);
        if let Some(table) = &mut self.table {
            table.clear();
        }
    }
}

/// A driver that drops a mask silently would send all ports to one queue, and no test on this side would show it.
fn check_unknown(device: &str, driver: &str, rules: &[FlowRule]) -> Result<(), FlowError> {
    let is_partial = |rule: &&FlowRule| rule.port.is_some_and(|port| port.mask != u16::MAX);
    if rules.iter().any(|rule| is_partial(&rule)) && !KEEPS_PARTIAL_MASKS.contains(&driver) {
        return Err(FlowError::Unsupported {
            device: device.to_owned(),
            reason: format!(
                "its driver {driver} is not known to keep a port mask, and without it a rule would be for all ports"
            ),
        });
    }
    Ok(())
}

/// What rules are made with: `rte_flow`, or a test's.
trait Maker {
    type Rule: std::fmt::Debug;

    /// Asks whether the rule can be made; with the error number and the driver's words if not.
    fn validate(&mut self, pattern: &Pattern) -> Result<(), (i32, String)>;

    fn create(&mut self, pattern: &Pattern) -> Result<Self::Rule, (i32, String)>;

    fn destroy(&mut self, rule: Self::Rule);
}

/// Rules that have been made.
#[derive(Debug)]
struct Rules<M: Maker> {
    maker: M,
    made: Vec<M::Rule>,
}

impl<M: Maker> Rules<M> {
    fn new(maker: M) -> Self {
        Self {
            maker,
            made: Vec::new(),
        }
    }

    /// Validates all before the first is made: what is refused by its form leaves no trace in the card.
    fn install(&mut self, rules: &[FlowRule], model: Option<NicModel>, device: &str) -> Result<(), FlowError> {
        let patterns: Vec<Pattern> = rules.iter().map(|rule| Pattern::new(*rule, model)).collect();
        for (rule, pattern) in rules.iter().zip(&patterns) {
            self.maker
                .validate(pattern)
                .map_err(|error| flow_error(device, *rule, error))?;
        }
        let before = self.made.len();
        for (rule, pattern) in rules.iter().zip(&patterns) {
            match self.maker.create(pattern) {
                Ok(made) => self.made.push(made),
                Err(error) => {
                    self.remove_from(before);
                    return Err(flow_error(device, *rule, error));
                }
            }
        }
        Ok(())
    }

    /// Removes those after the first `keep`, the last first.
    fn remove_from(&mut self, keep: usize) {
        while self.made.len() > keep
            && let Some(rule) = self.made.pop()
        {
            self.maker.destroy(rule);
        }
    }
}

impl<M: Maker> Drop for Rules<M> {
    fn drop(&mut self) {
        self.remove_from(0);
    }
}

fn flow_error(device: &str, rule: FlowRule, (number, reason): (i32, String)) -> FlowError {
    // A driver without the functions, or without any filters.
    const ENOSYS: i32 = 38;
    const ENOTSUP: i32 = 95;
    let device = device.to_owned();
    match number {
        ENOSYS | ENOTSUP => FlowError::Unsupported { device, reason },
        _ => FlowError::Refused { device, rule, reason },
    }
}

/// `rte_flow` of a started port.
#[derive(Debug)]
struct PortRules(Arc<PortInner>);

/// A rule that a driver has made: a name for it, never looked into here.
#[derive(Debug)]
struct Handle(NonNull<sys::rte_flow>);

// SAFETY: only ever given back to the driver, which is done through `&mut PortRules`, by any one thread.
unsafe impl Send for Handle {}
// SAFETY: a shared reference to it allows nothing.
unsafe impl Sync for Handle {}

impl Maker for PortRules {
    type Rule = Handle;

    fn validate(&mut self, pattern: &Pattern) -> Result<(), (i32, String)> {
        let mut error = sys::rte_flow_error::default();
        let result = pattern.with(|attributes, items, actions| {
            // SAFETY: the port is started; all that is pointed to lives during the call.
            unsafe { sys::rte_flow_validate(self.0.port, attributes, items.as_ptr(), actions.as_ptr(), &mut error) }
        });
        if result == 0 {
            Ok(())
        } else {
            Err((-result, words(&error, -result)))
        }
    }

    fn create(&mut self, pattern: &Pattern) -> Result<Self::Rule, (i32, String)> {
        let mut error = sys::rte_flow_error::default();
        let made = pattern.with(|attributes, items, actions| {
            // SAFETY: as for `validate`; the driver copies what it keeps.
            unsafe { sys::rte_flow_create(self.0.port, attributes, items.as_ptr(), actions.as_ptr(), &mut error) }
        });
        NonNull::new(made).map(Handle).ok_or_else(|| {
            let number = sys::thread::errno();
            (number, words(&error, number))
        })
    }

    fn destroy(&mut self, rule: Self::Rule) {
        let mut error = sys::rte_flow_error::default();
        // SAFETY: made by this port, which is still open, and not used again.
        let result = unsafe { sys::rte_flow_destroy(self.0.port, rule.0.as_ptr(), &mut error) };
        if result != 0 {
            let name = &self.0.name;
            log::warn!("{name}: a flow rule was not removed: {}", words(&error, -result));
        }
    }
}

/// What the driver says, with its own words first.
fn words(error: &sys::rte_flow_error, number: i32) -> String {
    let text = sys::thread::error_text(number);
    if error.message.is_null() {
        return text;
    }
    // SAFETY: a message is a static string of the driver.
    let message = unsafe { CStr::from_ptr(error.message) }.to_string_lossy();
    format!("{message} ({text})")
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::net::IpAddr;
    use std::rc::Rc;

    use super::*;
    use crate::flow::MaskedPort;

    /// Makes numbers, refuses as told, and notes what is there.
    #[derive(Debug, Default)]
    struct Fake {
        next: u32,
        invalid: Option<u16>,
        fails: Option<u16>,
        there: Rc<RefCell<Vec<u32>>>,
    }

    fn queue_of(pattern: &Pattern) -> u16 {
        pattern.with(|_, _, actions| {
            // SAFETY: the first action is the queue.
            unsafe { (*actions[0].conf.cast::<sys::rte_flow_action_queue>()).index }
        })
    }

    impl Maker for Fake {
        type Rule = u32;

        fn validate(&mut self, pattern: &Pattern) -> Result<(), (i32, String)> {
            if self.invalid == Some(queue_of(pattern)) {
                return Err((22, "Not supported by fdir filter".to_owned()));
            }
            Ok(())
        }

        fn create(&mut self, pattern: &Pattern) -> Result<u32, (i32, String)> {
            if self.fails == Some(queue_of(pattern)) {
                return Err((22, "Failed to create flow.".to_owned()));
            }
            self.next += 1;
            self.there.borrow_mut().push(self.next);
            Ok(self.next)
        }

        fn destroy(&mut self, rule: u32) {
            self.there.borrow_mut().retain(|there| *there != rule);
        }
    }

    fn rules(count: u16) -> Vec<FlowRule> {
        let rule = |queue| FlowRule {
            destination: IpAddr::from([10, 0, 0, 1]),
            port: Some(MaskedPort {
                value: queue << 12,
                mask: 0xf000,
            }),
            queue,
        };
        (0..count).map(rule).collect()
    }

    #[test]
    fn rules_are_made_all_or_none_and_removed_at_the_end() {
        let there = Rc::new(RefCell::new(Vec::new()));
        let mut made = Rules::new(Fake {
            there: Rc::clone(&there),
            ..Fake::default()
        });
        made.install(&rules(3), Some(NicModel::Intel82599), "card")
            .expect("all");
        assert_eq!(*there.borrow(), [1, 2, 3]);

        made.maker.fails = Some(2);
        let error = made
            .install(&rules(4), Some(NicModel::Intel82599), "card")
            .expect_err("one fails");
        assert_eq!(*there.borrow(), [1, 2, 3], "those before it are taken back");
        assert!(
            matches!(&error, FlowError::Refused { rule, .. } if rule.queue == 2),
            "{error}"
        );

        made.maker.invalid = Some(3);
        let error = made
            .install(&rules(4), Some(NicModel::Intel82599), "card")
            .expect_err("one is invalid");
        assert!(
            matches!(&error, FlowError::Refused { rule, .. } if rule.queue == 3),
            "{error}"
        );
        assert_eq!(made.maker.next, 5, "none is made before all are valid");
        drop(made);
        assert!(there.borrow().is_empty());
    }

    #[test]
    fn a_driver_without_rules_is_told_from_one_that_refuses() {
        let rule = rules(1)[0];
        for (number, is_unsupported) in [(38, true), (95, true), (22, false), (28, false)] {
            let error = flow_error("card", rule, (number, "no".to_owned()));
            assert_eq!(
                matches!(error, FlowError::Unsupported { .. }),
                is_unsupported,
                "{error}"
            );
        }
    }

    #[test]
    fn unknown_drivers_get_no_partial_masks() {
        assert!(check_unknown("a", "net_mlx5", &rules(2)).is_ok());
        let error = check_unknown("0000:07:00.0", "net_ice", &rules(2)).expect_err("not known");
        assert!(
            error.to_string().contains("net_ice is not known to keep a port mask"),
            "{error}"
        );
        let whole = FlowRule {
            port: None,
            ..rules(1)[0]
        };
        assert!(check_unknown("a", "net_ice", &[whole]).is_ok());
    }
}
