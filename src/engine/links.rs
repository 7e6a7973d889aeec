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
}

impl LinkWatch {
    /// Nothing is known yet of the configuration's ports.
    pub(super) fn new(config: &Config) -> Self {
        let link = |port: &crate::config::PortConfig| Link {
            port: port.name.clone(),
            is_up: None,
            downs: 0,
        };
        Self {
            links: config.ports().iter().map(link).collect(),
        }
    }

    /// Looks at all links by `is_up`, and calls `came_up` with the index of each port whose link is up again.
    pub(super) fn look(&mut self, is_up: impl Fn(usize) -> Option<bool>, mut came_up: impl FnMut(usize)) {
        for (index, link) in self.links.iter_mut().enumerate() {
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
            }],
        };
        for state in [None, Some(true), None, Some(true)] {
            watch.look(|_| state, |_| panic!("nothing changed"));
        }
        assert_eq!(watch.add_to(vec![PortReport::default()])[0].link_downs, 0);
    }
}
