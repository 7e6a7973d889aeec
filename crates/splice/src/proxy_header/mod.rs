//! PROXY headers: those that clients send, and those that servers get.

pub(crate) mod received_headers;
pub(crate) mod send_proxy;

use crate::base::settings::{SendProxyFields, Settings};
use received_headers::ReceivedHeaders;

/// What PROXY headers have said, and what they are to say.
pub(crate) struct ProxyHeaders {
    pub(crate) received: ReceivedHeaders,
    /// What the first bytes of clients tell for the headers that servers get.
    pub(crate) payload_fields: SendProxyFields,
}

impl ProxyHeaders {
    pub(crate) fn new(settings: &Settings) -> Self {
        let capacity = settings.capacity;
        let payload_fields = settings.fields_from_payload();
        let (connections, entries) = if settings.accepts_headers() || payload_fields != SendProxyFields::default() {
            (capacity.connections, capacity.rtx_queues)
        } else {
            (0, 0)
        };
        ProxyHeaders {
            received: ReceivedHeaders::new(connections, entries),
            payload_fields,
        }
    }
}
