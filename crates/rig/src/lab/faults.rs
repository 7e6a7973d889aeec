//! Faults that only cards have: a cable that comes and goes, a receive queue that nobody empties, a card that is pulled out.
//!
//! An engine has two ports, each with clients and servers of its own behind it; what happens to one may not touch the other.

use std::time::Duration;

use super::walk::{Binding, LONG, NAME, SHORT};
use super::{Card, Done, Machine, Transcript};
use crate::{RigError, cleanup};

/// What a receive queue holds, by the engine's default.
const DESCRIPTORS: usize = 1024;
/// How often the cable is pulled and put back.
const STORM: usize = 30;
/// The kernel takes the power from a slot five seconds after its button was pressed; an overloaded machine is much slower.
const PULLING: Duration = Duration::from_secs(300);

/// What the faults have shown.
#[derive(Clone, Debug)]
pub struct Endured {
    /// The faults by name, and whether the engine bore each as it should.
    pub steps: Vec<(&'static str, bool)>,
    /// Every command with what it printed.
    pub transcript: String,
    /// What went otherwise than it should.
    pub faults: Vec<String>,
}

struct Trial<'m> {
    transcript: Transcript<'m>,
    steps: Vec<(&'static str, bool)>,
}

/// Starts an engine on the first cards of both pairs, whose second are Linux's, and does them all; the first of `goes` is
/// pulled out at the end.
///
/// # Errors
/// When the machine no longer answers. What goes wrong in it is in [`Endured::faults`].
pub fn endure(
    machine: &mut Machine,
    stays: [Card; 2],
    goes: [Card; 2],
    binding: Binding,
    engine: &str,
) -> Result<Endured, RigError> {
    let mut trial = Trial {
        transcript: Transcript::new(machine, Vec::new()),
        steps: Vec::new(),
    };
    trial.start(stays, goes, binding, engine)?;
    trial.storm(&goes[0])?;
    trial.flood()?;
    trial.pull(&goes[0])?;
    let steps = trial.steps;
    let (transcript, faults) = trial.transcript.finish();
    Ok(Endured {
        steps,
        transcript,
        faults,
    })
}

/// A request through the port of the cable `stays` or `goes`.
fn curl(cable: &str) -> String {
    let network = if cable == "stays" { 88 } else { 89 };
    format!("ip netns exec {cable} curl -s --max-time 20 http://10.{network}.0.1/")
}

impl Trial<'_> {
    fn step(&mut self, name: &'static str, holds: bool, what: impl FnOnce() -> String) {
        self.transcript.check(holds, || format!("{name}: {}", what()));
        self.steps.push((name, holds));
    }

    fn start(&mut self, stays: [Card; 2], goes: [Card; 2], binding: Binding, engine: &str) -> Result<(), RigError> {
        let cable = |name: &str, network: u8, [card, linux]: [Card; 2]| {
            format!(
                "modprobe {}; modprobe {}; sleep 0.3
                 interface=$(name {}); ip netns add {name}; ip link set $interface netns {name}
                 ip -n {name} link set lo up; ip -n {name} link set $interface up
                 ip -n {name} addr add 10.{network}.0.2/24 dev $interface; ip -n {name} addr add 10.{network}.0.3/24 dev $interface
                 printf 'pid /tmp/{name}.pid; error_log /tmp/{name}.err; events {{}} http {{ access_log off; server {{ listen 10.{network}.0.3:80; return 200 {name}; }} }}' >/tmp/{name}.conf
                 ip netns exec {name} nginx -c /tmp/{name}.conf
                 dpdk-devbind.py --bind={} {} || exit 1
                 cat >>/tmp/faults.toml <<CONF
[[port]]
name = \"{name}\"
device = \"{}\"
addresses = [\"10.{network}.0.1/24\"]
[[listener]]
name = \"{name}\"
addresses = [\"10.{network}.0.1:80\"]
default = \"{name}\"
[[pool]]
name = \"{name}\"
servers = [{{ name = \"{name}\", address = \"10.{network}.0.3:80\" }}]
CONF
",
                linux.model.kernel_driver(),
                card.model.kernel_driver(),
                linux.address(),
                binding.driver(),
                card.address(),
                card.address(),
            )
        };
        let script = format!(
            "{NAME}; cd {root}; modprobe {driver}; echo 96 >/proc/sys/vm/nr_hugepages; mkdir -p /dev/hugepages
             grep -q ' hugetlbfs ' /proc/mounts || mount -t hugetlbfs hugetlbfs /dev/hugepages
             cat >/tmp/faults.toml <<CONF
[engine]
name = \"faults\"
cores = [0]
memory_mib = 128
buffers = 16384
max_connections = 10000
idle = \"adaptive\"
drain = \"1s\"
CONF
             {}{}
             ({engine} run /tmp/faults.toml --report /tmp/faults.json >/tmp/faults.log 2>&1 & echo $! >/tmp/faults.pid; wait $!; echo $? >/tmp/faults.code) &
             sleep 1
             for i in $(seq 300); do {} && {} && exit 0; kill -0 $(cat /tmp/faults.pid) || break; sleep 0.2; done
             cat /tmp/faults.log; exit 1",
            cable("stays", 88, stays),
            cable("goes", 89, goes),
            curl("stays"),
            curl("goes"),
            root = cleanup::root().display(),
            driver = binding.driver(),
        );
        let [goes, stays] = [goes, stays].map(|[card, _]| (card.model.name(), binding.driver()));
        self.transcript.note(&format!(
            "An engine with two ports, each with a client and a server behind it: `goes` is {} on {}, `stays` is {} on {}.",
            goes.0, goes.1, stays.0, stays.1
        ));
        let started = self.transcript.aside(&script, LONG)?;
        self.step("two_ports_serve", started.code == 0, || started.text);
        Ok(())
    }

    /// Interrupts of the link come faster than anybody looks.
    fn storm(&mut self, card: &Card) -> Result<(), RigError> {
        self.transcript.chapter("A cable that comes and goes");
        let load = "for i in $(seq 1000); do [ -e /tmp/calm ] && break; ip netns exec goes curl -s --max-time 1 http://10.89.0.1/; done >/dev/null 2>&1 &";
        self.transcript.aside(load, SHORT)?;
        let cable = card.cable_name();
        for change in 0..2 * STORM {
            let state = if change % 2 == 0 { "off" } else { "on" };
            self.transcript
                .machine()
                .monitor(&format!("set_link {cable} {state}"))?;
            std::thread::sleep(Duration::from_millis(20));
        }
        self.transcript
            .by_hand("The cable is pulled:", &format!("set_link {cable} off"))?;
        let down = self.told("down")?;
        self.transcript
            .by_hand("It is put back:", &format!("set_link {cable} on"))?;
        let up = self.told("up")?;
        self.transcript.aside("touch /tmp/calm; sleep 1.5", SHORT)?;
        let goes = self.transcript.type_in(&curl("goes"), SHORT)?;
        let stays = self.transcript.type_in(&curl("stays"), SHORT)?;
        let holds =
            down.text.contains("link is down") && up.text.contains("link is up") && goes.code == 0 && stays.code == 0;
        self.step("link_storm", holds, || down.text + &up.text);
        Ok(())
    }

    /// The last that the engine's log says of the link, once that is `state`.
    fn told(&mut self, state: &str) -> Result<Done, RigError> {
        let last = "grep 'link is' /tmp/faults.log | tail -n 1";
        let before = format!("for i in $(seq 100); do {last} | grep -q {state} && break; sleep 0.1; done");
        self.transcript.type_after(&before, last, SHORT, |_| true)
    }

    /// More comes in than the card's queue holds, as the engine stands still.
    fn flood(&mut self) -> Result<(), RigError> {
        self.transcript.chapter("A receive queue that nobody empties");
        let flood = "kill -STOP $(cat /tmp/faults.pid)
             ip netns exec goes ping -q -f -l 20000 -c 20000 -w 5 10.89.0.1; kill -CONT $(cat /tmp/faults.pid)";
        let sent = self.transcript.type_in(flood, LONG)?;
        // "N packets transmitted, 0 received"
        let sent = sent
            .text
            .lines()
            .find_map(|line| line.split(" packets transmitted").next()?.parse().ok());
        let overflows = sent.is_some_and(|count: usize| count > DESCRIPTORS);
        let goes = self.transcript.type_in(&curl("goes"), SHORT)?;
        let stays = self.transcript.type_in(&curl("stays"), SHORT)?;
        self.step(
            "full_receive_queue",
            overflows && goes.code == 0 && stays.code == 0,
            || format!("{sent:?} sent; {}{}", goes.text, stays.text),
        );
        Ok(())
    }

    /// The card is pulled out while requests pass on both ports.
    fn pull(&mut self, card: &Card) -> Result<(), RigError> {
        self.transcript.chapter("A card that is pulled out");
        let load = "rm -f /tmp/calm; for i in $(seq 1000); do [ -e /tmp/calm ] && break; ip netns exec goes curl -s --max-time 1 http://10.89.0.1/; done >/dev/null 2>&1 &";
        self.transcript.aside(load, SHORT)?;
        self.transcript
            .by_hand("The card is pulled out:", &format!("device_del {}", card.device_name()))?;
        let before = "for i in $(seq 400); do grep -q 'its device' /tmp/faults.log && break; sleep 0.1; done";
        let told = "grep 'its device' /tmp/faults.log";
        let told = self.transcript.type_after(before, told, PULLING, |_| true)?;
        self.step("told_that_the_card_goes", told.code == 0, || told.text);
        let stays = self.transcript.type_in(&curl("stays"), SHORT)?;
        self.step("other_port_goes_on", stays.code == 0, || stays.text);
        let before = "touch /tmp/calm; kill -INT $(cat /tmp/faults.pid)
             for i in $(seq 1200); do kill -0 $(cat /tmp/faults.pid) 2>/dev/null || break; sleep 0.1; done";
        let end = "grep -E '^(port|buffers)' /tmp/faults.log; echo exit code: $(cat /tmp/faults.code); [ \"$(cat /tmp/faults.code)\" = 6 ]";
        let ended = self.transcript.type_after(before, end, LONG, |_| true)?;
        self.step("ends_with_code_6", ended.code == 0, || ended.text);
        let gone = format!(
            "for i in $(seq 300); do [ -e /sys/bus/pci/devices/{0} ] || break; sleep 0.1; done; ! lspci -s {0} 2>/dev/null | grep .",
            card.address()
        );
        let gone = self.transcript.aside(&gone, PULLING)?;
        self.step("card_is_let_go", gone.code == 0, || gone.text);
        Ok(())
    }
}
