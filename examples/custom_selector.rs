//! A selector of one's own: every tenant of a line protocol stays on one server.
//!
//! The protocol is made up, but like many: the client speaks first, and its first line is `TENANT name`. All connections
//! of a tenant are to reach the same server, whichever core they arrive at, and when a server is added only the tenants
//! that move to it may change places: rendezvous hashing. Connections that name no tenant go to any server of the pool.
//!
//! ```text
//! cargo run --no-default-features --example custom_selector -- 'TENANT acme' 'TENANT globex' 'HELLO'
//! ```
//!
//! shows which server gets a connection that begins with each of these lines. `engine_with_selector.rs` runs an
//! engine with it: the factory makes each core's selector.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;

use proxyengine::callbacks::{FirstPayload, SelectServer, Selection, SelectorFactory};
use proxyengine::config::{Config, CoreId, ListenerId, PoolId, ServerId};

/// Of a listener whose servers the program chooses, the file says `default = "reject"` and no rules.
pub const CONFIGURATION: &str = r#"
[[port]]
name = "lan"
device = "net_ring0"
addresses = ["192.0.2.1/24"]

[[listener]]
name = "tenants"
addresses = ["192.0.2.1:4000"]
default = "reject"

[[pool]]
name = "shards"
servers = [
  { name = "shard-1", address = "192.0.2.11:4000" },
  { name = "shard-2", address = "192.0.2.12:4000" },
  { name = "shard-3", address = "192.0.2.13:4000" },
]
"#;

/// The longest first line. A client that sends more without a line feed is not one of ours.
const MAX_LINE: usize = 256;

/// Sends each tenant to its server.
pub struct TenantSelector {
    pool: PoolId,
    /// The servers of the pool, each with the hash of its name.
    servers: Vec<(ServerId, u64)>,
}

impl TenantSelector {
    /// A selector for the servers of the pool of that name; `None` when there is no such pool.
    pub fn new(config: &Config, pool: &str) -> Option<Self> {
        let pool = config.find_pool(pool)?;
        let servers = config.pool(pool).members.iter().map(|member| {
            let name = config.server(member.server).name.as_str();
            (member.server, hash(&name))
        });
        Some(Self {
            pool,
            servers: servers.collect(),
        })
    }

    /// The server with the highest score for this tenant: it does not depend on the other servers' being there.
    fn server_of(&self, tenant: &[u8]) -> Option<ServerId> {
        let score = |(_, server): &&(ServerId, u64)| hash(&(tenant, *server));
        self.servers.iter().max_by_key(score).map(|(server, _)| *server)
    }
}

impl SelectServer for TenantSelector {
    fn select(&mut self, payload: &FirstPayload<'_>) -> Selection {
        // The line may arrive in pieces: until its end is there, or can no longer come, the answer is "more".
        let line = match payload.bytes.iter().position(|byte| *byte == b'\n') {
            Some(end) => &payload.bytes[..end],
            None if payload.bytes.len() > MAX_LINE => return Selection::Reject,
            None if payload.complete => payload.bytes,
            None => return Selection::NeedMore,
        };
        match line.strip_prefix(b"TENANT ").map(<[u8]>::trim_ascii) {
            Some(tenant) if !tenant.is_empty() => self.server_of(tenant).map_or(Selection::Reject, Selection::Server),
            Some(_) => Selection::Reject,
            None => Selection::Pool(self.pool),
        }
    }
}

/// Makes the selector of each core. All answer alike, because they share nothing but the configuration.
pub fn factory(config: &Config) -> impl SelectorFactory<Selector = TenantSelector> + use<> {
    let config = config.clone();
    move |_core: CoreId| TenantSelector::new(&config, "shards").expect("the configuration above has this pool")
}

fn hash(value: &impl Hash) -> u64 {
    // Without random keys: the same on every core, and when the same program is started again.
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

fn main() {
    let config = match Config::parse(CONFIGURATION, "custom_selector") {
        Ok(config) => config,
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(1);
        }
    };
    let mut selector = factory(&config).selector(config.engine().cores[0]);
    let client = SocketAddr::from(([198, 51, 100, 7], 40_000));
    let local = SocketAddr::from(([192, 0, 2, 1], 4_000));
    for line in std::env::args().skip(1) {
        let bytes = format!("{line}\n");
        let payload = FirstPayload::new(client, local, ListenerId(0), bytes.as_bytes(), false);
        let answer = match selector.select(&payload) {
            Selection::Server(id) => format!("server {}", config.server(id).name),
            Selection::Pool(id) => format!("any server of pool {}", config.pool(id).name),
            Selection::NeedMore => "needs more".to_owned(),
            Selection::Reject => "reset".to_owned(),
            Selection::Drop => "met with silence".to_owned(),
        };
        println!("{line:?} -> {answer}");
    }
}
