//! `[[port]] software_nic`, which has to fit the cores.

use e2d2::flow::NicModel;

use super::{choice, number};
use crate::config::defaults;
use crate::config::model::{EngineConfig, PortConfig, SoftwareNicConfig};
use crate::config::raw::RawPort;
use crate::config::source::{At, Source};
use splice::ids::CoreId;

/// Adds what the file says to the ports that have been checked.
pub(super) fn check(source: &mut Source<'_>, raw: &[RawPort], engine: &EngineConfig, ports: &mut [PortConfig]) {
    for (i, (raw, port)) in raw.iter().zip(ports).enumerate() {
        let Some(raw) = &raw.software_nic else { continue };
        let at = At::root().key("port").index(i).key("software_nic");
        let cores = engine.cores.len();
        let model = choice(
            source,
            &at.key("model"),
            raw.model.as_deref(),
            &NicModel::ALL.map(|model| (model.name(), model)),
        );
        let most = i64::from(model.most_queues());
        let queues = number(source, &at.key("queues"), raw.queues, cores as i64, &(1..=most));
        if queues > most {
            let complaint = format!(
                "has {cores} cores, and a card of model \"{}\" spreads over {most} queues",
                model.name()
            );
            source.complain(&At::root().key("engine").key("cores"), complaint);
        } else if queues != cores as i64 {
            source.refuse(
                &at.key("queues"),
                queues,
                format!("{cores}: one for each of `cores`, or packets would wait at a queue that nobody asks"),
            );
        }
        let core = raw.core.map(|core| {
            let at = at.key("core");
            number(source, &at, Some(core), 0, &defaults::CORE);
            let core = CoreId(core as u16);
            if engine.cores.contains(&core) {
                source.refuse(&at, core, "a core that runs no worker");
            }
            core
        });
        port.software_nic = Some(SoftwareNicConfig {
            model,
            queues: queues as u16,
            core,
        });
    }
}
