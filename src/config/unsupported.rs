//! What the configuration can say but the engine cannot do yet: the only place to lift a restriction.
//!
//! The types of the checked configuration already hold all of it.

use super::Config;
use super::model::{Bind, ListenerConfig};
use super::source::{At, Source};

/// Complains about everything in `config` that the engine does not do.
pub(super) fn refuse(source: &mut Source<'_>, config: &Config) {
    several_workers(source, config);
    for listener in config.listeners() {
        let at = At::root().key("listener").index(listener.id.index());
        early_binding(source, &at, listener);
    }
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

fn early_binding(source: &mut Source<'_>, at: &At, listener: &ListenerConfig) {
    if listener.bind == Bind::Syn {
        source.complain(
            &at.key("bind"),
            "is \"syn\", expected \"payload\" or \"handshake\": this engine does not pass on the client's SYN yet"
                .to_owned(),
        );
    }
}
