//! Where the engine shows itself.

use std::path::PathBuf;

use ::control::http::Endpoint;

/// `[control]`: where the engine shows itself while it runs. Nowhere unless the file says so.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ControlConfig {
    /// The Unix socket of `proxyengine ctl`.
    pub socket: Option<Endpoint>,
    /// The address, or one more Unix socket, for scrapers and browsers.
    pub http: Option<Endpoint>,
    /// Whether connections, which name clients, are shown over TCP as well.
    pub show_clients: bool,
    /// Names that requests over TCP may ask for, beside IP addresses and `localhost`.
    pub hosts: Vec<String>,
    /// Where what `ctl` changes is kept; by default `journal` in the first folder of `STATE_DIRECTORY`, which systemd sets.
    pub journal: Option<PathBuf>,
}

impl ControlConfig {
    /// Whether the engine can be asked for its numbers.
    pub fn is_there(&self) -> bool {
        self.socket.is_some() || self.http.is_some()
    }
}
