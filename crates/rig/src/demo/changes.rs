//! The demo's second part: the engine is reloaded, and a server killed, while requests go on; and a client is refused.
//!
//! After the reload there is one more host, which all three nginx serve in turn: what one of them no longer does, the others do.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::process::{self, Process};
use crate::servers::{self, HTTP};
use crate::{HOSTS, Place, Rig, RigError, SERVERS};

/// Requests during each of the two.
const REQUESTS: usize = 30;

/// The host that all three serve.
const ANY: &str = "any.test";

/// The list of the configuration whose clients are refused, and the client that is put into it.
const REFUSED: (&str, usize) = ("refused", 3);

/// The server that is killed.
pub(super) const KILLED: usize = 1;

const LIMIT: Duration = Duration::from_secs(60);

/// How many requests were made, and how many of them failed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Shown {
    pub(super) requests: usize,
    pub(super) failed: usize,
}

/// Has the engine, which answers at `socket` and has read `file`, go on with one more host while requests go on; then kills
/// the nginx of a server while its turn comes again and again; then refuses a client by a list. A line for each.
///
/// # Errors
/// What kept one of them from being shown.
pub(super) fn show(rig: &Rig, program: &Path, socket: &Path, nginx: &mut Process) -> Result<Shown, RigError> {
    let file = rig.file("engine.toml");
    let text = fs::read_to_string(&file).map_err(RigError::io(format!("reading {}", file.display())))?;
    fs::write(&file, with_any(&text)?).map_err(RigError::io(format!("writing {}", file.display())))?;
    let (reloaded, took) = std::thread::scope(|scope| {
        let load = scope.spawn(|| load(rig, HOSTS[0], |_| {}));
        let began = Instant::now();
        let reload = ctl(rig, program, socket, &["reload"]).map(|()| began.elapsed());
        let failed = load.join().unwrap_or(REQUESTS);
        reload.map(|took| (failed, took))
    })?;
    println!(
        "demo: reloaded with one more host in {} ms, while {REQUESTS} requests went on: {reloaded} failed",
        took.as_millis()
    );
    let mut is_gone = Ok(());
    let killed = load(rig, ANY, |number| {
        if number == SERVERS {
            nginx.signal(Signal::KILL);
            is_gone = nginx.wait(LIMIT).map(|_| ());
        }
    });
    is_gone?;
    println!(
        "demo: nginx of server {} was killed while {REQUESTS} requests to three servers in turn went on: {killed} failed",
        servers::name_of(KILLED)
    );
    let refused = refuse(rig, program, socket)?;
    Ok(Shown {
        requests: 2 * REQUESTS + refused.requests,
        failed: reloaded + killed + refused.failed,
    })
}

/// Puts a client into the list, asks as that one and as another, and takes it out.
fn refuse(rig: &Rig, program: &Path, socket: &Path) -> Result<Shown, RigError> {
    let (list, index) = REFUSED;
    let (refused, other) = (rig.client_v4(index).to_string(), rig.client_v4(0).to_string());
    let is_served = |client: &str| ask(rig, HOSTS[0], &["--interface", client]);
    ctl(rig, program, socket, &["list", "add", list, &refused])?;
    let during = [is_served(&refused), is_served(&other)];
    ctl(rig, program, socket, &["list", "del", list, &refused])?;
    let after = is_served(&refused);
    let said = |is_served: bool| if is_served { "served" } else { "refused" };
    println!(
        "demo: client {refused} was put into list \"{list}\": {}, while {other} was {}; taken out again: {}",
        said(during[0]),
        said(during[1]),
        said(after)
    );
    // Those that are refused make no connection.
    let failed = [during[0], !during[1], !after];
    Ok(Shown {
        requests: 2 + usize::from(during[0]),
        failed: failed.into_iter().filter(|failed| *failed).count(),
    })
}

/// Has `proxyengine ctl` do something.
fn ctl(rig: &Rig, program: &Path, socket: &Path, arguments: &[&str]) -> Result<(), RigError> {
    let mut ctl = rig.command(Place::Engine, &program.to_string_lossy());
    ctl.args(["ctl", "--socket"]).arg(socket).args(arguments);
    process::run(&mut ctl, b"", LIMIT).map(|_| ())
}

/// Requests one after the other, before each of which `before` is called with its number; how many failed.
fn load(rig: &Rig, host: &str, mut before: impl FnMut(usize)) -> usize {
    let is_served = |number: usize| {
        before(number);
        ask(rig, host, &[])
    };
    let served = (0..REQUESTS).map(is_served).filter(|served| *served).count();
    REQUESTS - served
}

/// One request to this host with these options of curl; whether a server has answered.
fn ask(rig: &Rig, host: &str, options: &[&str]) -> bool {
    let to = SocketAddr::new(rig.engine_addresses()[0], HTTP);
    let (url, host) = (format!("http://{to}/"), format!("Host: {host}"));
    let arguments = ["-sS", "--fail", "--max-time", "10", "-H", &host, &url];
    let answer = rig.run(Place::Clients, "curl", &[options, &arguments].concat(), LIMIT);
    answer.is_ok_and(|answer| servers::named_in(&answer.text()).is_some())
}

/// The configuration with one more host, for which the servers of all others stand.
fn with_any(text: &str) -> Result<String, RigError> {
    let unreadable = |reason: String| RigError::Unreadable {
        path: "engine.toml".into(),
        reason,
    };
    let mut table: toml::Table = text
        .parse()
        .map_err(|error: toml::de::Error| unreadable(error.to_string()))?;
    let missing = || unreadable("no pool or listener \"http4\"".to_owned());
    let array = |table: &mut toml::Table, key: &str| table.get(key).and_then(toml::Value::as_array).cloned();
    let (mut pools, mut listeners) = (
        array(&mut table, "pool").ok_or_else(missing)?,
        array(&mut table, "listener").ok_or_else(missing)?,
    );
    let name_of = |item: &toml::Value| {
        item.get("name")
            .and_then(toml::Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let of_http = pools.iter().filter(|pool| name_of(pool).starts_with("http4-"));
    let servers: Vec<toml::Value> = of_http
        .filter_map(|pool| pool.get("servers")?.as_array())
        .flatten()
        .cloned()
        .collect();
    pools.push(toml::toml! { name = "http4-any" servers = servers }.into());
    let listener = listeners
        .iter_mut()
        .find(|listener| name_of(listener) == "http4")
        .ok_or_else(missing)?;
    let rules = listener
        .get_mut("rules")
        .and_then(toml::Value::as_array_mut)
        .ok_or_else(missing)?;
    rules.push(toml::toml! { http_host = ANY pool = "http4-any" }.into());
    table.insert("pool".into(), pools.into());
    table.insert("listener".into(), listeners.into());
    Ok(table.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reload_adds_a_host_that_all_servers_serve() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../config/demo.toml");
        let text = fs::read_to_string(path).expect("the demo's configuration");
        let other: toml::Table = with_any(&text).expect("another").parse().expect("TOML");
        let pools = other["pool"].as_array().expect("pools");
        let any = pools.last().expect("one more");
        assert_eq!(any["servers"].as_array().map(Vec::len), Some(SERVERS), "{any}");
        let rules = other["listener"][0]["rules"].as_array().expect("rules");
        assert_eq!(rules.last().expect("one more")["http_host"].as_str(), Some(ANY));
        assert_eq!(rules[0]["client"][0].as_str(), Some(REFUSED.0), "the first");
        assert_eq!(other["list"][0]["name"].as_str(), Some(REFUSED.0));
    }
}
