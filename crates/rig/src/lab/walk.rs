//! The way of a user on a card: look at the machine, lay the cable, run the engine, pull the cable, take it all down.

use std::time::Duration;

use super::{Card, Machine, Transcript};
use crate::{RigError, cleanup};

/// A command that does little.
const SHORT: Duration = Duration::from_secs(60);
/// Binding a card, opening it, or the whole of the requests, emulated beside a build.
const LONG: Duration = Duration::from_secs(240);
/// Where the walk's own files are in the machine.
const FILE: &str = "/tmp/card.toml";

/// Which kernel driver leaves the card to user space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binding {
    /// Behind an IOMMU, by `prepNet.sh`.
    Vfio,
    /// Without one, by `prepNet.uio.sh`.
    Uio,
}

impl Binding {
    /// The driver's name.
    pub fn driver(self) -> &'static str {
        match self {
            Self::Vfio => "vfio-pci",
            Self::Uio => "uio_pci_generic",
        }
    }

    fn script(self) -> &'static str {
        match self {
            Self::Vfio => "./prepNet.sh",
            Self::Uio => "./prepNet.uio.sh",
        }
    }
}

/// A card, the card at the other end of its cable, and how it is bound.
#[derive(Clone, Copy, Debug)]
pub struct Walk {
    /// The engine's card.
    pub card: Card,
    /// Linux's card, on the same hub.
    pub linux: Card,
    /// How the engine's card is bound.
    pub binding: Binding,
}

/// What a walk has shown.
#[derive(Clone, Debug)]
pub struct Shown {
    /// The card's name.
    pub card: &'static str,
    /// The driver it was bound to.
    pub binding: &'static str,
    /// Requests of the demo, those at the wrong server, and those that failed.
    pub requests: [u64; 3],
    /// Whether traffic went on after the cable was pulled and put back, the engine having said and counted both.
    pub link_recovered: bool,
    /// Whether Linux had both cards again under their names, and used them.
    pub given_back: bool,
    /// Every command with what it printed.
    pub transcript: String,
    /// What went otherwise than it should.
    pub faults: Vec<String>,
}

/// The programs that are tried; both are reached in the machine by the paths that they have here.
#[derive(Clone, Debug)]
pub struct Programs {
    /// `proxyengine`.
    pub engine: String,
    /// A command that runs [`crate::demo::on_rig`] on the rig `pe`, with the engine, the configuration and the JSON file as
    /// its arguments.
    pub demo: String,
}

/// Goes the way.
///
/// # Errors
/// When the machine no longer answers. What goes wrong in it is in [`Shown::faults`].
pub fn walk(machine: &mut Machine, walk: &Walk, programs: &Programs) -> Result<Shown, RigError> {
    let mut way = Way {
        transcript: Transcript::new(machine),
        walk,
        engine: &programs.engine,
        demo: &programs.demo,
    };
    let interface = way.begin()?;
    way.look_and_lay(&interface)?;
    let requests = way.demo()?;
    let link_recovered = way.pull_the_cable()?;
    let given_back = way.give_back(&interface)?;
    let (transcript, faults) = way.transcript.finish();
    Ok(Shown {
        card: walk.card.model.name(),
        binding: walk.binding.driver(),
        requests,
        link_recovered,
        given_back,
        transcript,
        faults,
    })
}

struct Way<'a, 'm> {
    transcript: Transcript<'m>,
    walk: &'a Walk,
    engine: &'a str,
    demo: &'a str,
}

impl Way<'_, '_> {
    /// Loads Linux's drivers, as udev would, and writes the configuration; returns the name of Linux's interface.
    fn begin(&mut self) -> Result<String, RigError> {
        let Walk { card, linux, .. } = self.walk;
        let text = format!(
            "cd {root} && modprobe {} && modprobe {} && sleep 0.5
             sed -e 's|^device = .*|device = \"{pci}\"|' -e '/^checksum_offload/d' -e 's|^memory_mib = .*|memory_mib = 128\\nbuffers = 16384\\nmax_connections = 10000|' config/demo.toml >{FILE}
             ls /sys/bus/pci/devices/{}/net /sys/bus/pci/devices/{}/virtio*/net 2>/dev/null | grep -v : | grep .",
            linux.model.kernel_driver(),
            card.model.kernel_driver(),
            linux.address(),
            linux.address(),
            root = cleanup::root().display(),
            pci = card.address(),
        );
        let done = self.transcript.aside(&text, SHORT)?;
        let interface = done.text.trim().to_owned();
        self.transcript
            .check(done.code == 0 && !interface.contains(char::is_whitespace), || {
                format!("Linux has no interface on {}: {}", linux.address(), done.text)
            });
        Ok(interface)
    }

    fn in_tree(&self, command: &str) -> String {
        format!("cd {} && {command}", cleanup::root().display())
    }

    fn look_and_lay(&mut self, interface: &str) -> Result<(), RigError> {
        let (engine, address) = (self.engine, self.walk.card.address());
        let doctor = format!("{engine} doctor {FILE}");
        self.transcript.chapter("What is missing");
        let before = self.transcript.type_in(&doctor, SHORT)?;
        let told = before.text.contains("ERROR    hugepages") && before.text.contains("ERROR    pci-driver");
        self.transcript.check(told, || {
            format!("doctor does not name hugepages and driver:\n{}", before.text)
        });

        self.transcript.chapter("The cable");
        let up = format!(
            "{} up --pci {address} --linux-if {interface} --hugepages 128",
            self.walk.binding.script()
        );
        let up = self.in_tree(&up);
        self.transcript.must(&up, LONG)?;
        let again = self.transcript.must(&up, LONG)?;
        self.transcript.check(again.text.contains("already up"), || {
            format!("a second up: {}", again.text)
        });
        let after = self.transcript.type_in(&doctor, SHORT)?;
        self.transcript.check(!after.text.contains("ERROR"), || {
            format!("doctor is not content:\n{}", after.text)
        });
        Ok(())
    }

    fn demo(&mut self) -> Result<[u64; 3], RigError> {
        self.transcript.chapter("72 requests");
        let demo = format!("{} {} {FILE} /lab/demo.json", self.demo, self.engine);
        self.transcript.must(&demo, LONG)?;
        let path = self.transcript.machine().folder().join("demo.json");
        let totals: serde_json::Value = std::fs::read(&path)
            .ok()
            .and_then(|text| serde_json::from_slice(&text).ok())
            .unwrap_or_default();
        let _ = std::fs::remove_file(&path);
        let number = |name: &str| totals[name].as_u64().unwrap_or(0);
        let requests = ["requests", "wrong_server", "failed"].map(number);
        self.transcript.check(requests == [72, 0, 0], || {
            format!("requests, wrong, failed: {requests:?}")
        });
        Ok(requests)
    }

    /// The engine runs; the cable is pulled and put back; the process is killed and started again.
    fn pull_the_cable(&mut self) -> Result<bool, RigError> {
        self.transcript.chapter("The cable is pulled");
        let start = format!(
            "ip netns exec pe-servers nginx -c /tmp/nginx.conf
             {} run {FILE} --report /tmp/report.json >/tmp/engine.log 2>&1 & echo $! >/tmp/engine.pid
             for i in $(seq 300); do ip netns exec pe-clients ping -c1 -W1 10.77.0.1 >/dev/null && break; done",
            self.engine
        );
        self.transcript.aside(NGINX, SHORT)?;
        self.transcript.aside(&start, LONG)?;
        let curl = "ip netns exec pe-clients curl -s --max-time 20 http://one.test/whoami";
        self.transcript.must(curl, SHORT)?;
        let cable = self.walk.card.cable_name();
        self.transcript
            .by_hand("The cable is pulled:", &format!("set_link {cable} off"))?;
        let told = "for i in $(seq 100); do grep -q 'link is down' /tmp/engine.log && break; sleep 0.1; done; grep 'link is' /tmp/engine.log";
        let down = self.transcript.type_in(told, SHORT)?;
        self.transcript
            .by_hand("It is put back:", &format!("set_link {cable} on"))?;
        let told = told.replace("link is down", "link is up");
        let up = self.transcript.type_in(&told, SHORT)?;
        let after = self.transcript.must(curl, SHORT)?;
        let kill = "kill -9 $(cat /tmp/engine.pid)";
        self.transcript.chapter("The process is killed and started again");
        self.transcript.must(kill, SHORT)?;
        self.transcript.aside(&start, LONG)?;
        self.transcript.must(curl, SHORT)?;
        self.transcript.aside(&format!("{STOP}; pkill nginx"), LONG)?;
        Ok(down.text.contains("link is down") && up.text.contains("link is up") && after.code == 0)
    }

    fn give_back(&mut self, interface: &str) -> Result<bool, RigError> {
        let Walk {
            card, linux, binding, ..
        } = self.walk;
        self.transcript.chapter("The card is given back");
        let down = self.in_tree(&format!("{} down", binding.script()));
        let done = self.transcript.must(&down, LONG)?;
        // Both ends of the cable are Linux's again: each answers the other, each in a namespace of its own.
        let script = format!(
            "name() {{ ls /sys/bus/pci/devices/$1/net /sys/bus/pci/devices/$1/virtio*/net 2>/dev/null | grep -v : | grep .; }}
             for i in $(seq 50); do a=$(name {}); b=$(name {}); [ -n \"$a\" ] && [ \"$b\" = {interface} ] && break; sleep 0.1; done
             echo engine: $a linux: $b; [ \"$b\" = {interface} ] || exit 1
             ip netns add back && ip link set $b netns back && ip -n back addr add 192.0.2.2/24 dev $b && ip -n back link set $b up
             ip addr add 192.0.2.1/24 dev $a; ip link set $a up
             for i in $(seq 100); do [ \"$(cat /sys/class/net/$a/carrier)\" = 1 ] && break; sleep 0.1; done
             ping -c 3 -i 0.3 -W 5 192.0.2.2; code=$?
             ip addr del 192.0.2.1/24 dev $a; ip link set $a down; ip -n back link set $b netns 1; ip netns del back; exit $code",
            card.address(),
            linux.address(),
        );
        let pinged = self.transcript.aside(&script, SHORT)?;
        self.transcript
            .check(pinged.code == 0, || format!("the cards after down: {}", pinged.text));
        Ok(done.code == 0 && pinged.code == 0)
    }
}

const STOP: &str = "kill -INT $(cat /tmp/engine.pid); for i in $(seq 200); do kill -0 $(cat /tmp/engine.pid) 2>/dev/null || break; sleep 0.1; done; tail -n 5 /tmp/engine.log";

const NGINX: &str = "cat >/tmp/nginx.conf <<'CONF'
pid /tmp/nginx.pid;
error_log /tmp/nginx.error.log;
events {}
http {
  access_log off;
  server { listen 10.77.0.11:80; listen [fd77::11]:80; location / { return 200 \"one $remote_addr\\n\"; } }
}
CONF";
