//! A core by itself: its network takes every frame, and its neighbours are as the bench says.

use e2d2::buffer::{BufferPool, PacketBuffer};
use e2d2::port::PortId;
use e2d2::time::Instant;
use e2d2::wire::MacAddr;
use proxyengine::callbacks::SelectorFactory;
use proxyengine::config::{Config, CoreId};
use proxyengine::selectors::RuleSelector;
use splice::settings::Settings;
use splice::upstream::Upstream;
use splice::{CoreParts, NextHops, Output, Proxy, Secrets};

/// The address of the core's port.
pub(crate) const PROXY_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xa0]);

/// What the core has sent.
pub(crate) struct Sent<B>(pub(crate) Vec<B>);

impl<B: PacketBuffer> Output<B> for Sent<B> {
    fn send(&mut self, _: PortId, frame: B) {
        self.0.push(frame);
    }

    fn room(&self) -> usize {
        usize::MAX
    }

    fn pass_to_kernel(&mut self, _: Instant, _: PortId, _: B) {}
}

/// The MAC address of all neighbours, if they answer.
pub(crate) struct Hops(pub(crate) Option<MacAddr>);

impl NextHops for Hops {
    fn mac(&self, _: usize) -> Option<MacAddr> {
        self.0
    }
}

/// What the first core of `config` has to know.
pub(crate) fn settings(config: &Config) -> Settings {
    config.core_settings(0, &[PROXY_MAC], |_| 0)
}

/// That core.
pub(crate) fn proxy<P: BufferPool + Clone>(
    config: &Config,
    settings: Settings,
    (pool, next_hops): (&P, Hops),
    now: Instant,
) -> Proxy<P, RuleSelector, Hops> {
    let secrets = Secrets {
        cookie: [1, 2],
        table: [3, 4],
        isn: [5; 16],
        timestamp: 6,
    };
    let parts = CoreParts {
        settings,
        pool: pool.clone(),
        selector: RuleSelector::new(config).selector(CoreId(0)),
        next_hops,
        upstream: Upstream::new(&config.upstream_settings(), 0),
        records: None,
        secrets: &secrets,
    };
    Proxy::new(parts, now)
}
