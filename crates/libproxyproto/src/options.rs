//! What the environment asks for. Read once, when the library is loaded.

use ipnet::IpNet;
use std::net::IpAddr;
use std::sync::OnceLock;
use std::time::Duration;

/// The environment variables, checked.
pub(crate) struct Options {
    /// `LIBPROXYPROTO_DEBUG`: say on standard error what happens.
    pub(crate) debug: bool,
    /// `LIBPROXYPROTO_MUST_USE_PROTOCOL_HEADER`: connections without a header are closed.
    pub(crate) required: bool,
    /// `LIBPROXYPROTO_VERSION`, bit 0: version 1 counts. Its header is taken off even if not.
    pub(crate) v1: bool,
    /// Bit 1: version 2 counts.
    pub(crate) v2: bool,
    /// `LIBPROXYPROTO_ALLOWED`: who may send a header; `None` for everybody.
    allowed: Option<Vec<IpNet>>,
    /// `LIBPROXYPROTO_TIMEOUT`: seconds until a header must be whole.
    pub(crate) timeout: Duration,
    /// `LIBPROXYPROTO_GETPEERNAME_CACHE`: `getpeername` shows the header's client, too, and not `accept` alone. On unless it says
    /// `DISABLED` or 0; where the original has it, it is chosen when that is compiled.
    pub(crate) getpeername: bool,
    /// `LIBPROXYPROTO_GETSOCKNAME`: show the header's destination as the local address.
    pub(crate) destination: bool,
}

static OPTIONS: OnceLock<Options> = OnceLock::new();

/// The options of this process.
pub(crate) fn options() -> &'static Options {
    OPTIONS.get_or_init(|| Options::from(|name| std::env::var(name).ok()))
}

impl Options {
    fn from(variable: impl Fn(&str) -> Option<String>) -> Self {
        let is_set = |name: &str| variable(name).is_some();
        // As the original: both versions unless a number says otherwise.
        let version = variable("LIBPROXYPROTO_VERSION")
            .and_then(|text| text.trim().parse::<u8>().ok())
            .unwrap_or(3);
        let timeout = variable("LIBPROXYPROTO_TIMEOUT").and_then(|text| text.trim().parse::<u32>().ok());
        Options {
            debug: is_set("LIBPROXYPROTO_DEBUG"),
            required: is_set("LIBPROXYPROTO_MUST_USE_PROTOCOL_HEADER"),
            v1: version & 1 != 0,
            v2: version & 2 != 0,
            allowed: variable("LIBPROXYPROTO_ALLOWED").map(|list| networks(&list)),
            timeout: Duration::from_secs(timeout.filter(|&seconds| seconds != 0).unwrap_or(10).into()),
            getpeername: !variable("LIBPROXYPROTO_GETPEERNAME_CACHE")
                .is_some_and(|text| text == "0" || text.eq_ignore_ascii_case("disabled")),
            destination: is_set("LIBPROXYPROTO_GETSOCKNAME"),
        }
    }

    /// Whether there is a list of those whose headers are believed.
    pub(crate) fn is_choosy(&self) -> bool {
        self.allowed.is_some()
    }

    /// Whether headers of this peer are believed.
    pub(crate) fn allows(&self, peer: IpAddr) -> bool {
        let peer = peer.to_canonical();
        self.allowed
            .as_ref()
            .is_none_or(|networks| networks.iter().any(|network| network.contains(&peer)))
    }
}

/// The networks of a list separated by commas or spaces. One that cannot be read leaves the list empty: nobody is
/// believed, rather than everybody.
fn networks(list: &str) -> Vec<IpNet> {
    let words = list.split([',', ' ']).map(str::trim).filter(|word| !word.is_empty());
    let parsed: Option<Vec<IpNet>> = words
        .map(|word| {
            word.parse()
                .ok()
                .or_else(|| word.parse::<IpAddr>().ok().map(IpNet::from))
        })
        .collect();
    parsed.unwrap_or_else(|| {
        eprintln!("libproxyproto: LIBPROXYPROTO_ALLOWED is not a list of networks: nobody is allowed");
        vec![]
    })
}

/// Says something if `LIBPROXYPROTO_DEBUG` is set.
macro_rules! debug {
    ($($text:tt)*) => {
        if $crate::options::options().debug {
            $crate::sys::say(format_args!("libproxyproto[{}]: {}", std::process::id(), format_args!($($text)*)));
        }
    };
}
pub(crate) use debug;
