//! What the configuration can say but the engine cannot do yet: the only place to lift a restriction.
//!
//! The types of the checked configuration already hold all of it.

use super::Config;
use super::source::{At, Source};

/// Complains about everything in `config` that the engine does not do.
pub(super) fn refuse(source: &mut Source<'_>, config: &Config) {
    several_workers(source, config);
}

/// Without steering, the packets of a connection's two legs would meet different cores.
fn several_workers(source: &mut Source<'_>, config: &Config) {
    let cores = &config.engine().cores;
    if cores.len() > 1 {
        source.complain(
            &At::root().key("engine").key("cores"),
            format!(
                "names {} cores, expected exactly one: this engine does not run several workers yet",
                cores.len()
            ),
        );
    }
}
