//! Two engines with the same listener, of which keepalived (VRRP, RFC 9568) says whose turn it is.
//!
//! Both engines are in the engine's namespace, each with a port of its own on the bridge. VRRP is spoken between the servers'
//! namespace and the clients', whose kernels have addresses: where keepalived runs does not matter to an engine that it
//! asks over a socket.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use rig::process::{self, Process};
use rig::servers::{self, HTTP};
use rig::{Place, Rig, RigOptions};
use rustix::process::Signal;

use crate::setup::{LIMIT, binary};

/// The address of the listeners, which is no port's.
const SERVICE: &str = "10.77.0.20";

/// The address that goes with the active one in the kernels; keepalived insists on one.
const ACTIVE: &str = "10.77.0.30/24";

/// An engine, and the keepalived that asks and tells it.
struct Half<'a> {
    rig: &'a Rig,
    /// The first is preferred.
    is_first: bool,
    engine: Process,
    keepalived: Process,
}

impl<'a> Half<'a> {
    fn start(rig: &'a Rig, is_first: bool) -> Self {
        let name = if is_first { "first" } else { "second" };
        fs::write(rig.file(&format!("{name}.toml")), engine_file(rig, is_first)).expect("written");
        fs::write(rig.file(&format!("{name}.conf")), keepalived_file(rig, is_first)).expect("written");
        let engine = start_engine(rig, name);
        process::wait_for("an engine that is ready", LIMIT, || is_ready(rig, name)).expect("it is ready");
        let keepalived = start_keepalived(rig, is_first);
        Self {
            rig,
            is_first,
            engine,
            keepalived,
        }
    }

    /// It has taken connections of clients since it has begun.
    fn connections(&self) -> u64 {
        let name = if self.is_first { "first" } else { "second" };
        let shown = ctl(self.rig, name, &["show", "listeners", "--json"]).expect("ctl is answered");
        let shown: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
        shown[0]["connections"].as_u64().expect("a count")
    }
}

fn start_engine(rig: &Rig, name: &str) -> Process {
    let mut engine = rig.command(Place::Engine, &binary().to_string_lossy());
    engine.arg("run").arg(rig.file(&format!("{name}.toml")));
    Process::start(&mut engine, &rig.file(&format!("{name}.log"))).expect("the engine starts")
}

fn start_keepalived(rig: &Rig, is_first: bool) -> Process {
    let (place, name) = if is_first {
        (Place::Servers, "first")
    } else {
        (Place::Clients, "second")
    };
    let mut keepalived = rig.command(place, "keepalived");
    keepalived.args(["--dont-fork", "--log-console", "--use-file"]);
    keepalived.arg(rig.file(&format!("{name}.conf")));
    for (option, ending) in [("--pid", "pid"), ("--vrrp_pid", "vrrp"), ("--checkers_pid", "checkers")] {
        keepalived.arg(option).arg(rig.file(&format!("{name}.{ending}")));
    }
    let log = rig.file(&format!("{name}.keepalived"));
    Process::start(&mut keepalived, &log).expect("keepalived starts")
}

fn socket(rig: &Rig, name: &str) -> PathBuf {
    rig.file(&format!("{name}.socket"))
}

fn engine_file(rig: &Rig, is_first: bool) -> String {
    let (name, number) = if is_first { ("first", 0) } else { ("second", 1) };
    format!(
        r#"
[engine]
name = "{prefix}-{name}"
cores = [0]
memory_mib = 64
buffers = 8192
announce = "off"

[control]
socket = "{socket}"

[[port]]
name = "lan"
device = "net_af_packet0,iface=pe-eng{number}"
addresses = ["10.77.0.{own}/24"]
checksum_offload = false

[[listener]]
name = "web"
addresses = ["{SERVICE}:{HTTP}"]
default = "web"

[[pool]]
name = "web"
servers = [{{ name = "one", address = "{server}:{HTTP}" }}]
"#,
        prefix = rig.prefix(),
        socket = socket(rig, name).display(),
        own = number + 2,
        server = rig.server_v4(0),
    )
}

fn keepalived_file(rig: &Rig, is_first: bool) -> String {
    let (name, priority) = if is_first { ("first", 110) } else { ("second", 100) };
    let [own, peer] = match is_first {
        true => [rig.server_v4(0), rig.client_v4(0)],
        false => [rig.client_v4(0), rig.server_v4(0)],
    };
    let (program, socket) = (binary().display(), socket(rig, name));
    let socket = socket.display();
    let announce = |word: &str| format!("\"{program} ctl --socket {socket} announce {word}\"");
    format!(
        r#"
global_defs {{
    script_user root
    vrrp_version 3
}}
vrrp_script ready {{
    script "curl -sf -o /dev/null --unix-socket {socket} http://localhost/ready"
    interval 1
    timeout 2
    fall 2
    rise 2
}}
vrrp_instance engine {{
    interface eth0
    state BACKUP
    virtual_router_id 51
    priority {priority}
    advert_int 0.5
    unicast_src_ip {own}
    unicast_peer {{
        {peer}
    }}
    virtual_ipaddress {{
        {ACTIVE}
    }}
    track_script {{
        ready
    }}
    notify_master {on}
    notify_backup {off}
    notify_fault {off}
    notify_stop {off}
}}
"#,
        on = announce("on"),
        off = announce("off"),
    )
}

fn ctl(rig: &Rig, name: &str, arguments: &[&str]) -> Option<String> {
    let socket = socket(rig, name).display().to_string();
    let all = [&["ctl", "--socket", &socket], arguments].concat();
    let output = rig.run(Place::Engine, &binary().to_string_lossy(), &all, LIMIT);
    output.ok().map(|output| output.text())
}

fn is_ready(rig: &Rig, name: &str) -> bool {
    let socket = socket(rig, name).display().to_string();
    let arguments = ["-sf", "--unix-socket", &socket, "http://localhost/ready"];
    rig.run(Place::Engine, "curl", &arguments, LIMIT).is_ok()
}

/// Whether a request is served, within so many seconds.
fn is_served(rig: &Rig, seconds: &str) -> bool {
    let url = format!("http://{SERVICE}/");
    let arguments = ["-sS", "--fail", "--max-time", seconds, &url];
    rig.run(Place::Clients, "curl", &arguments, LIMIT).is_ok()
}

fn wait_for_service(rig: &Rig, what: &str) {
    process::wait_for(what, LIMIT, || is_served(rig, "1")).expect("service");
}

/// A second port beside the first.
fn add_port(rig: &Rig) {
    let switch = format!("{}-switch", rig.prefix());
    let run = |place, words: &str| {
        let words: Vec<&str> = words.split(' ').collect();
        rig.run(place, words[0], &words[1..], LIMIT).expect("a port")
    };
    run(
        Place::Engine,
        &format!("ip link add pe-eng1 type veth peer name standby netns {switch}"),
    );
    run(
        Place::Engine,
        "ethtool -K pe-eng1 rx off sg off tso off gso off gro off",
    );
    run(Place::Engine, "ip link set pe-eng1 up");
    run(Place::Switch, "ip link set standby master br0");
    run(Place::Switch, "ip link set standby up");
}

#[test]
fn keepalived_switches_when_an_engine_is_killed_and_when_it_is_asked_to() {
    let tools = ["curl", "nginx", "keepalived", "ethtool"];
    let Some(rig) = Rig::for_test(RigOptions::default(), &tools) else {
        return;
    };
    add_port(&rig);
    let _nginx = servers::start_nginx(&rig, 0).expect("nginx starts");
    let mut first = Half::start(&rig, true);
    wait_for_service(&rig, "service of the first, alone");
    let mut second = Half::start(&rig, false);
    assert!(is_served(&rig, "20"));
    assert!(first.connections() > 0);
    assert_eq!(second.connections(), 0, "it keeps silent");
    // Nobody has told keepalived.
    first.engine.signal(Signal::KILL);
    first.engine.wait(LIMIT).expect("it is gone");
    wait_for_service(&rig, "service of the second");
    assert!(second.connections() > 0);
    // It comes back, and it is its turn again.
    let before = second.connections();
    first.engine = start_engine(&rig, "first");
    let is_back = || is_ready(&rig, "first") && is_served(&rig, "1") && first.connections() > 0;
    process::wait_for("service of the first again", LIMIT, is_back).expect("it is preferred");
    assert!(second.connections() >= before);
    // Its keepalived is told to end: what comes then is served as well, if by another. A connection that is open when the addresses move is
    // reset by the engine that they move to, and its client connects again.
    let before = second.connections();
    first.keepalived.signal(Signal::TERM);
    let mut resets = 0;
    for _ in 0..10 {
        if !is_served(&rig, "20") {
            resets += 1;
            assert!(resets == 1 && is_served(&rig, "20"));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    first.keepalived.wait(LIMIT).expect("keepalived ends");
    let has_served = || is_served(&rig, "20") && second.connections() > before;
    process::wait_for("service of the second again", LIMIT, has_served).expect("it has taken over");
    for half in [&mut first, &mut second] {
        half.engine.signal(Signal::TERM);
        let status = half.engine.wait(LIMIT).expect("it ends");
        assert!(status.success(), "{}", half.engine.printed());
    }
    second.keepalived.signal(Signal::TERM);
    second.keepalived.wait(LIMIT).expect("keepalived ends");
}
