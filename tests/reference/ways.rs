//! Ways between the two peers: versions of IP, binding, an inspector that rewrites.

use crate::harness::{CONFIG, Calls, PROXY_MAC, Selector};
use proxyengine::callbacks::{ConnectionInfo, InspectPayload, Inspected, Payload, Verdict};
use testkit::Station;
use testkit::sim::Random;

/// What lies between client and server; by default a listener and servers of IPv4, bound by the first payload.
#[derive(Clone, Copy, Debug, Default)]
pub struct Way {
    pub client_v6: bool,
    pub server_v6: bool,
    /// The listener binds with the SYN.
    pub is_syn: bool,
    /// An inspector rewrites every byte, both ways.
    pub is_rewritten: bool,
}

impl Way {
    pub fn draw(random: &mut Random) -> Self {
        let mut flag = || random.chance(500);
        Way {
            client_v6: flag(),
            server_v6: flag(),
            is_syn: flag(),
            is_rewritten: flag(),
        }
    }

    /// The routers of the test speak ICMPv4, and quote what the peers have sent themselves.
    pub fn has_small_links(self) -> bool {
        !self.client_v6 && !self.server_v6 && !self.is_rewritten
    }

    pub fn config(self) -> String {
        if !self.is_syn {
            return CONFIG.to_owned();
        }
        // A listener that binds with the SYN knows its pool only, which is the one of its number.
        let mut text = CONFIG.to_owned();
        for pool in ["all", "all6"] {
            let rules = format!("rules = [{{ first_number = true, pool = \"{pool}\" }}]\ndefault = \"reject\"");
            let bound = format!("bind = \"syn\"\ndefault = \"{pool}\"");
            text = text.replace(&rules, &bound);
        }
        assert_eq!(text.matches("bind = ").count(), 2);
        if self.client_v6 != self.server_v6 {
            for n in 100..103 {
                let (v4, v6) = (format!("10.1.0.{n}:8080"), format!("[fd01::{n}]:8080"));
                text = text.replace(&v4, "here").replace(&v6, &v4).replace("here", &v6);
            }
        }
        text
    }

    pub fn selector(self) -> Inspected<Selector, Rewriter> {
        let selector = Selector {
            calls: Calls::default(),
            asked: Default::default(),
            pool_only: self.is_syn,
        };
        Inspected::new(selector, Rewriter(self.is_rewritten))
    }

    /// The client, and whom it calls.
    pub fn client(self) -> (Station, Station) {
        if self.client_v6 {
            (
                Station::new(1, "[fd00::1]:40000"),
                Station::new(PROXY_MAC[0], "[fd00::9]:80"),
            )
        } else {
            (
                Station::new(1, "10.0.0.1:40000"),
                Station::new(PROXY_MAC[0], "10.0.0.9:80"),
            )
        }
    }

    /// What the other end gets of these bytes.
    pub fn made_of(self, bytes: &[u8]) -> Vec<u8> {
        if self.is_rewritten {
            bytes.iter().flat_map(|byte| made_of(*byte)).collect()
        } else {
            bytes.to_vec()
        }
    }
}

/// Some bytes are doubled, some vanish, some change.
fn made_of(byte: u8) -> impl Iterator<Item = u8> {
    let (byte, count) = match byte % 16 {
        0 => (byte, 2),
        1 => (byte, 0),
        2 => (!byte, 1),
        _ => (byte, 1),
    };
    std::iter::repeat_n(byte, count)
}

/// Rewrites byte by byte, if it is told so.
pub struct Rewriter(bool);

impl InspectPayload for Rewriter {
    type Context = ();

    fn open(&mut self, _connection: &ConnectionInfo) -> Option<()> {
        self.0.then_some(())
    }

    fn inspect(&mut self, _context: &mut (), payload: &mut Payload<'_>) -> Verdict {
        let made: Vec<u8> = payload.bytes().iter().flat_map(|byte| made_of(*byte)).collect();
        let (_, output) = payload.replace();
        output.write(&made).expect("no more than twice as many");
        Verdict::Replace
    }
}
