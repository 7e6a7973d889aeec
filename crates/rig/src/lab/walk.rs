//! The way of a user on a card: look at the machine, lay the cable, run the engine, pull the cable, take it all down.

use std::time::Duration;

use super::{Card, Machine, Transcript, service};
use crate::{RigError, cleanup};

/// Programs that the way needs, on this machine as in the emulated one.
pub const TOOLS: &[&str] = &[
    "nginx",
    "openssl",
    "socat",
    "curl",
    "tcpdump",
    "ssh",
    "sshd",
    "cmp",
    "dpdk-devbind.py",
];
/// A command that does little.
pub(super) const SHORT: Duration = Duration::from_secs(120);
/// Binding a card, opening it, or the whole of the requests: half a minute where the emulator has a processor for itself, ten
/// minutes on a machine that is ten times overloaded.
pub(super) const LONG: Duration = Duration::from_secs(600);
/// The engine's configuration for the card, in the machine.
pub(super) const FILE: &str = "/tmp/card.toml";

/// Prints the name of Linux's interface on a PCI device.
pub(super) const NAME: &str =
    "name() { ls /sys/bus/pci/devices/$1/net /sys/bus/pci/devices/$1/virtio*/net 2>/dev/null | grep -v : | grep .; }";

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
    /// Two cards on a cable of their own that stay with Linux, and whose traffic nothing may disturb.
    pub others: [Card; 2],
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
    /// The steps of the way by name, and whether each went as it should.
    pub steps: Vec<(&'static str, bool)>,
    /// Every command with what it printed.
    pub transcript: String,
    /// What went otherwise than it should.
    pub faults: Vec<String>,
}

impl Shown {
    /// Whether the step of this name was taken and went as it should.
    pub fn went_well(&self, step: &str) -> bool {
        self.steps.contains(&(self.known(step), true))
    }

    fn known(&self, step: &str) -> &'static str {
        let found = self.steps.iter().find(|(name, _)| *name == step);
        found.map_or("", |(name, _)| name)
    }
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
        interface: String::new(),
        steps: Vec::new(),
    };
    way.begin()?;
    way.look_and_lay()?;
    let requests = way.demo()?;
    service::serve(&mut way)?;
    way.give_back()?;
    let steps = way.steps;
    let (transcript, faults) = way.transcript.finish();
    Ok(Shown {
        card: walk.card.model.name(),
        binding: walk.binding.driver(),
        requests,
        steps,
        transcript,
        faults,
    })
}

/// The way as far as it has been gone.
pub(super) struct Way<'a, 'm> {
    pub(super) transcript: Transcript<'m>,
    pub(super) walk: &'a Walk,
    pub(super) engine: &'a str,
    demo: &'a str,
    /// Linux's interface at the other end of the card's cable.
    pub(super) interface: String,
    steps: Vec<(&'static str, bool)>,
}

impl Way<'_, '_> {
    /// Notes how a step went; one that did not go as it should is a fault.
    pub(super) fn step(&mut self, name: &'static str, holds: bool, what: impl FnOnce() -> String) {
        self.transcript.check(holds, || format!("{name}: {}", what()));
        self.steps.push((name, holds));
    }

    /// Loads Linux's drivers, as udev would, has the other cards talk, and writes the configuration.
    fn begin(&mut self) -> Result<(), RigError> {
        let Walk {
            card, linux, others, ..
        } = self.walk;
        let text = format!(
            "{NAME}
             cd {root} && modprobe {} && modprobe {} && modprobe {} && sleep 0.5
             sed -e 's|^device = .*|device = \"{pci}\"|' -e '/^checksum_offload/d' -e 's|^memory_mib = .*|memory_mib = 128\\nbuffers = 16384\\nmax_connections = 10000|' config/demo.toml >{FILE}
             number=1
             for device in {} {}; do
                 other=$(name $device)
                 ip netns add other$number && ip link set $other netns other$number && ip -n other$number link set $other name other
                 ip -n other$number addr add 198.51.100.$number/24 dev other && ip -n other$number link set other up
                 number=$((number + 1))
             done
             for i in $(seq 50); do ip netns exec other1 ping -c1 -W1 198.51.100.2 >/dev/null && break; sleep 0.1; done
             ip netns exec other1 ping -n -i 0.5 198.51.100.2 >/tmp/other.log 2>&1 & echo $! >/tmp/other.pid
             name {}",
            linux.model.kernel_driver(),
            card.model.kernel_driver(),
            others[0].model.kernel_driver(),
            others[0].address(),
            others[1].address(),
            linux.address(),
            root = cleanup::root().display(),
            pci = card.address(),
        );
        let done = self.transcript.aside(&text, SHORT)?;
        done.text.trim().clone_into(&mut self.interface);
        let is_name = !self.interface.contains(char::is_whitespace);
        self.transcript.check(done.code == 0 && is_name, || {
            format!("Linux has no interface on {}: {}", linux.address(), done.text)
        });
        Ok(())
    }

    fn in_tree(command: &str) -> String {
        format!("cd {} && {command}", cleanup::root().display())
    }

    fn look_and_lay(&mut self) -> Result<(), RigError> {
        let (engine, address) = (self.engine, self.walk.card.address());
        let doctor = format!("{engine} doctor {FILE}");
        self.transcript.chapter("What is missing");
        let before = self.transcript.type_in(&doctor, SHORT)?;
        let told = before.text.contains("ERROR    hugepages") && before.text.contains("ERROR    pci-driver");
        self.step("doctor_names_what_is_missing", told, || before.text);

        self.transcript.chapter("The cable");
        let up = format!(
            "{} up --pci {address} --linux-if {} --hugepages 128",
            self.walk.binding.script(),
            self.interface
        );
        let up = Self::in_tree(&up);
        self.transcript.must(&up, LONG)?;
        let again = self.transcript.must(&up, LONG)?;
        self.step("up_twice", again.text.contains("already up"), || again.text);
        let after = self.transcript.type_in(&doctor, SHORT)?;
        self.step("doctor_is_content", !after.text.contains("ERROR"), || after.text);
        Ok(())
    }

    /// The demo's requests, and the checksums of all frames that the card has sent in them, as they came in at the other end.
    fn demo(&mut self) -> Result<[u64; 3], RigError> {
        self.transcript.chapter("72 requests");
        let capture = format!(
            "ip netns exec pe-switch tcpdump -n -U -Z root -w /tmp/card.pcap -i {} ether src {} >/tmp/capture.log 2>&1 &
             for i in $(seq 100); do grep -q listening /tmp/capture.log && break; sleep 0.1; done",
            self.interface,
            self.walk.card.mac()
        );
        self.transcript.aside(&capture, SHORT)?;
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
        self.step("requests", requests == [72, 0, 0], || {
            format!("requests, wrong, failed: {requests:?}")
        });

        self.transcript
            .aside("sleep 0.5; pkill -INT tcpdump; sleep 0.5", SHORT)?;
        self.transcript.chapter("Checksums at the other end of the cable");
        let count = |words: &str| format!("tcpdump -r /tmp/card.pcap -n -vv 2>/dev/null | grep -cE '{words}'");
        let right = self
            .transcript
            .type_in(&count(r"cksum 0x[0-9a-f]+ \(correct\)"), SHORT)?;
        let wrong = self
            .transcript
            .type_in(&count(r"cksum 0x[0-9a-f]+ \(incorrect|bad cksum"), SHORT)?;
        let number = |text: &str| text.trim().parse::<u64>().ok();
        // Each request takes more than ten segments of the engine's.
        let holds = number(&right.text) > Some(10 * requests[0]) && number(&wrong.text) == Some(0);
        self.step("checksums", holds, || {
            format!("{} right, {} wrong", right.text.trim(), wrong.text.trim())
        });
        Ok(requests)
    }

    fn give_back(&mut self) -> Result<(), RigError> {
        let Walk {
            card, linux, binding, ..
        } = self.walk;
        let interface = &self.interface;
        self.transcript.chapter("The card is given back");
        let down = Self::in_tree(&format!("{} down", binding.script()));
        let done = self.transcript.must(&down, LONG)?;
        // Both ends of the cable are Linux's again: each answers the other, each in a namespace of its own.
        let script = format!(
            "{NAME}
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
        self.step("given_back", done.code == 0 && pinged.code == 0, || pinged.text);
        // The last answer may still be on its way. The interfaces come back under free names.
        let others = "kill -INT $(cat /tmp/other.pid); sleep 0.3; tail -n 3 /tmp/other.log
             for number in 1 2; do
                 ip -n other$number link set other down; ip -n other$number link set other netns 1
                 ip link set other name eth%d; ip netns del other$number
             done
             awk '/packets transmitted/ { lost = $1 - $4; sent = $1 } END { exit !(sent > 10 && lost <= 1) }' /tmp/other.log";
        let undisturbed = self.transcript.aside(others, SHORT)?;
        self.step("other_cards_undisturbed", undisturbed.code == 0, || undisturbed.text);
        Ok(())
    }
}
