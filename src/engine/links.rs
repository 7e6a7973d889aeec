//! The links of the ports, watched by the main thread: a change is logged and counted, and a link that comes up has the port's
//! addresses announced again, as the switch or the neighbours at the other end may be others.

use crate::config::Config;
use crate::report::PortReport;

/// What is known of each port's link.
pub(super) struct LinkWatch {
    links: Vec<Link>,
}

struct Link {
    port: String,
    is_up: Option<bool>,
    downs: u64,
    is_removed: bool,
}

impl LinkWatch {
    /// Nothing is known yet of the configuration's ports.
    pub(super) fn new(config: &Config) -> Self {
        let link = |port: &crate::config::PortConfig| Link {
            port: port.name.clone(),
            is_up: None,
            downs: 0,
            is_removed: false,
        };
        Self {
            links: config.ports().iter().map(link).collect(),
        }
    }

    /// Looks for devices that are taken away: the others go on, and it is for the operator to end the engine.
    pub(super) fn look_for_removed(&mut self, is_removed: impl Fn(usize) -> bool) {
        for (index, link) in self.links.iter_mut().enumerate() {
            if !link.is_removed && is_removed(index) {
                link.is_removed = true;
                // What is gone says anything when it is asked.
                link.is_up = None;
                log::error!(
                    "port {}: its device is being taken away; other ports go on. The kernel may wait for the engine's end to let go of it",
                    link.port
                );
            }
        }
    }

    /// Looks at all links by `is_up`, and calls `came_up` with the index of each port whose link is up again.
    pub(super) fn look(&mut self, is_up: impl Fn(usize) -> Option<bool>, mut came_up: impl FnMut(usize)) {
        for (index, link) in self.links.iter_mut().enumerate().filter(|(_, link)| !link.is_removed) {
            let now = is_up(index);
            match (link.is_up, now) {
                (Some(true), Some(false)) => {
                    link.downs += 1;
                    log::warn!("port {}: link is down", link.port);
                }
                (Some(false), Some(true)) => {
                    log::info!("port {}: link is up", link.port);
                    came_up(index);
                }
                _ => {}
            }
            link.is_up = now;
        }
    }

    /// Adds to the devices' reports what is known of their links.
    pub(super) fn add_to(&self, mut reports: Vec<PortReport>) -> Vec<PortReport> {
        for (report, link) in reports.iter_mut().zip(&self.links) {
            (report.link_up, report.link_downs) = (link.is_up, link.downs);
            report.removed = link.is_removed;
        }
        reports
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_is_noticed_once() {
        let link = |port: &str| Link {
            port: port.to_owned(),
            is_up: None,
            downs: 0,
            is_removed: false,
        };
        let mut watch = LinkWatch {
            links: vec![link("a"), link("b")],
        };
        let mut announced = Vec::new();
        // A link that is found up or down at the start has not changed.
        for states in [
            [true, false],
            [true, false],
            [false, true],
            [false, true],
            [true, false],
        ] {
            watch.look(|port| Some(states[port]), |port| announced.push(port));
        }
        assert_eq!(announced, [1, 0]);
        let reports = watch.add_to(vec![PortReport::default(), PortReport::default()]);
        let told: Vec<_> = reports
            .iter()
            .map(|report| (report.link_up, report.link_downs))
            .collect();
        assert_eq!(told, [(Some(true), 1), (Some(false), 1)]);
    }

    #[test]
    fn a_device_that_does_not_say_is_left_alone() {
        let mut watch = LinkWatch {
            links: vec![Link {
                port: "a".to_owned(),
                is_up: None,
                downs: 0,
                is_removed: false,
            }],
        };
        for state in [None, Some(true), None, Some(true)] {
            watch.look(|_| state, |_| panic!("nothing changed"));
        }
        assert_eq!(watch.add_to(vec![PortReport::default()])[0].link_downs, 0);
    }

    #[test]
    fn a_device_that_is_taken_away_is_told_of_and_left_alone() {
        let link = |port: &str| Link {
            port: port.to_owned(),
            is_up: None,
            downs: 0,
            is_removed: false,
        };
        let mut watch = LinkWatch {
            links: vec![link("a"), link("b")],
        };
        watch.look(|_| Some(true), |_| panic!("nothing changed"));
        watch.look_for_removed(|port| port == 1);
        watch.look(
            |port| {
                assert_eq!(port, 0);
                Some(false)
            },
            |_| panic!("nothing came up"),
        );
        let reports = watch.add_to(vec![PortReport::default(), PortReport::default()]);
        let told: Vec<_> = reports
            .iter()
            .map(|report| (report.removed, report.link_up, report.link_downs))
            .collect();
        assert_eq!(told, [(false, Some(false), 1), (true, None, 0)]);
    }
}
