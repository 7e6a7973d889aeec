//! Which records a sink gets.

use std::sync::Arc;

use netfcts::Side;
use netfcts::format::NameTable;
use netfcts::record::SessionRecord;

use crate::config::{RecordFilter, RecordsConfig};

/// Asks of each record whether it is for a sink.
#[derive(Debug)]
pub(super) struct Filter {
    only: RecordFilter,
    sample: u32,
    names: Arc<NameTable>,
}

impl Filter {
    pub(super) fn new(config: &RecordsConfig, names: Arc<NameTable>) -> Filter {
        Filter {
            only: config.only.clone(),
            sample: config.sample,
            names,
        }
    }

    /// Has numbers mean this from now on.
    pub(super) fn set_names(&mut self, names: Arc<NameTable>) {
        self.names = names;
    }

    pub(super) fn takes(&self, record: &SessionRecord) -> bool {
        let only = &self.only;
        let named = |wanted: &[String], name: Option<&str>| {
            wanted.is_empty()
                || name.is_some_and(|name| wanted.iter().any(|wanted| wanted == name || is_of(name, wanted)))
        };
        (self.sample == 1 || is_sampled(record, self.sample))
            && record.duration() >= only.longer_than
            && (only.causes.is_empty() || only.causes.contains(&record.cause(Side::Client)))
            && (only.listeners.is_empty() || named(&only.listeners, self.names.listener(record)))
            && (only.servers.is_empty() || named(&only.servers, self.names.server(record).map(|named| &*named.name)))
    }
}

/// Whether a server, such as `web@192.0.2.1:80`, is one of an entry that names its servers.
fn is_of(server: &str, entry: &str) -> bool {
    server.split_once('@').is_some_and(|(of, _)| of == entry)
}

/// One connection in `n`, by a hash of what tells connections apart. Whoever is one in 1 000 is also one in 100, so that sinks
/// with different samples can be compared.
fn is_sampled(record: &SessionRecord, n: u32) -> bool {
    // The finaliser of MurmurHash3: every bit of the start, the port and the core changes half of the result.
    let mut hash = record.start().as_nanos() ^ u64::from(record.client_port) << 48 ^ u64::from(record.core) << 40;
    hash = (hash ^ hash >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ hash >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^= hash >> 33;
    hash <= u64::MAX / u64::from(n)
}
