//! The way of a user on a card: look at the machine, lay the cable, run the engine, pull the cable, take it all down.

use std::time::Duration;

use super::{Card, Iommu, Machine, Model, Transcript, pair, service};
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

    /// The IOMMU that it wants.
    pub fn iommu(self) -> Iommu {
        match self {
            Self::Vfio => Iommu::PassThrough,
            Self::Uio => Iommu::None,
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

impl Walk {
    /// The way on a card of this model; the others are of another.
    pub fn on(model: Model, binding: Binding) -> Self {
        let other = match model {
            Model::E1000e => Model::Vmxnet3,
            Model::Vmxnet3 | Model::Virtio { .. } => Model::E1000e,
        };
        let behind_iommu = binding == Binding::Vfio;
        let [card, linux] = pair(0, model, behind_iommu);
        Self {
            card,
            linux,
            others: pair(1, other, behind_iommu),
            binding,
        }
    }

    /// All of its cards.
    pub fn cards(&self) -> Vec<Card> {
        [[self.card, self.linux], self.others].concat()
    }
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
        self.steps.iter().any(|(name, well)| *name == step && *well)
    }
}

/// The programs that are tried; both are reached in the machine by the paths that they have here.
#[derive(Clone, Debug)]
pub struct Programs {
    /// `proxyengine`.
    pub engine: String,
    /// What `rig demo` is, which takes `--on RIG --engine FILE --config FILE --json FILE`.
    pub demo: String,
}

impl Programs {
    /// What transcripts show in place of where programs are.
    pub(super) fn short(&self) -> Vec<(String, &'static str)> {
        vec![
            (format!("cd {} && ", cleanup::root().display()), ""),
            (self.engine.clone(), "proxyengine"),
            (self.demo.clone(), "rig demo"),
        ]
    }
}

/// Goes the way.
///
/// # Errors
/// When the machine no longer answers. What goes wrong in it is in [`Shown::faults`].
pub fn walk(machine: &mut Machine, walk: &Walk, programs: &Programs) -> Result<Shown, RigError> {
    let mut way = Way {
        transcript: Transcript::new(machine, programs.short()),
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

/// A command that counts the right and the wrong checksums of IPv4 and TCP in a capture.
pub(super) fn checksums_in(file: &str) -> String {
    format!("tcpdump -r {file} -n -vv 2>/dev/null | grep -owE 'correct|incorrect|bad cksum' | sort | uniq -c")
}

/// Whether it counted right ones alone, and more than `least` of them.
pub(super) fn are_right(counted: &str, least: u64) -> bool {
    match counted.split_whitespace().collect::<Vec<_>>()[..] {
        [count, "correct"] => count.parse().is_ok_and(|count: u64| count > least),
        _ => false,
    }
}

/// Of what `doctor` prints: its errors with reason and cure, and the line that ends it.
pub(super) fn errors_of_doctor() -> impl FnMut(&str) -> bool {
    let mut is_error = false;
    move |line| {
        if !line.starts_with(' ') {
            is_error = line.starts_with("ERROR") || line.contains("in order;");
        }
        is_error
    }
}

/// Of what the demo prints: how it went, and one request of each kind.
fn some_requests() -> impl FnMut(&str) -> bool {
    let mut row = 0;
    move |line| {
        if line.is_empty() || line.starts_with("demo:") || line.starts_with("client ") {
            return true;
        }
        row += 1;
        // HTTP, text and TLS; IPv6 begins with the 37th.
        [1, 9, 41].contains(&row)
    }
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

    /// Whether a line of `prepNet.sh` is about the card, not about namespaces and bridges, which are those of every rig.
    fn about_card(&self) -> impl Fn(&str) -> bool + use<> {
        let card = self.walk.card.address();
        let linux = [
            format!("link set {} netns", self.interface),
            format!("pe-switch link set {}", self.interface),
        ];
        move |line| {
            let of_interest = ["modprobe", "hugepages", "already up"];
            line.contains(&card)
                || line.starts_with("  ")
                || linux.iter().any(|words| line.contains(words))
                || of_interest.iter().any(|word| line.contains(word))
        }
    }

    fn in_tree(command: &str) -> String {
        format!("cd {} && {command}", cleanup::root().display())
    }

    fn look_and_lay(&mut self) -> Result<(), RigError> {
        let (engine, address) = (self.engine, self.walk.card.address());
        let doctor = format!("{engine} doctor {FILE}");
        self.transcript.chapter("What is missing");
        let before = self.transcript.type_after("", &doctor, SHORT, errors_of_doctor())?;
        let told = before.text.contains("ERROR    hugepages") && before.text.contains("ERROR    pci-driver");
        self.step("doctor_names_what_is_missing", told, || before.text);

        self.transcript.chapter("The cable");
        let up = format!(
            "{} up --pci {address} --linux-if {} --hugepages 128",
            self.walk.binding.script(),
            self.interface
        );
        let up = Self::in_tree(&up);
        let about_card = self.about_card();
        self.transcript.must_show(&up, LONG, about_card)?;
        let again = self.transcript.must(&up, LONG)?;
        self.step("up_twice", again.text.contains("already up"), || again.text);
        let after = self.transcript.type_after("", &doctor, SHORT, errors_of_doctor())?;
        self.step("doctor_is_content", !after.text.contains("ERROR"), || after.text);
        Ok(())
    }

    /// The demo's requests, and the checksums of all frames that the card has sent in them, as they came in at the other end.
    fn demo(&mut self) -> Result<[u64; 3], RigError> {
        self.transcript.chapter("72 requests");
        self.capture("/tmp/card.pcap")?;
        let demo = format!(
            "{} --on pe --engine {} --config {FILE} --json /lab/demo.json",
            self.demo, self.engine
        );
        self.transcript.must_show(&demo, LONG, some_requests())?;
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

        self.transcript.chapter("Checksums at the other end of the cable");
        let count = checksums_in("/tmp/card.pcap");
        let end = self.end_of_capture("/tmp/card.pcap");
        let sums = self.transcript.type_after(&end, &count, SHORT, |_| true)?;
        // Each request takes more than ten segments of the engine's.
        self.step("checksums", are_right(&sums.text, 10 * requests[0]), || sums.text);
        Ok(requests)
    }

    /// Has a file written of every frame that the card sends, as it comes in at the other end.
    pub(super) fn capture(&mut self, file: &str) -> Result<(), RigError> {
        // Linux would put segments together before a capture sees them.
        let script = format!(
            "ip netns exec pe-switch ethtool -K {0} gro off
             ip netns exec pe-switch tcpdump -n -U -B 16384 -Z root -w {file} -i {0} ether src {1} >/tmp/capture.log 2>&1 &
             for i in $(seq 100); do grep -q listening /tmp/capture.log && break; sleep 0.1; done",
            self.interface,
            self.walk.card.mac()
        );
        self.transcript.aside(&script, SHORT).map(|_| ())
    }

    /// A script that ends it, when all frames are in the file: the kernel hands them on after a second at the latest.
    pub(super) fn end_of_capture(&self, file: &str) -> String {
        format!(
            "size=; until [ \"$size\" = \"$(stat -c %s {file})\" ]; do size=$(stat -c %s {file}); sleep 1.5; done
             pkill -INT tcpdump; for i in $(seq 100); do pgrep -x tcpdump >/dev/null || break; sleep 0.1; done
             ip netns exec pe-switch ethtool -K {} gro on",
            self.interface
        )
    }

    fn give_back(&mut self) -> Result<(), RigError> {
        let Walk {
            card, linux, binding, ..
        } = self.walk;
        let interface = &self.interface;
        self.transcript.chapter("The card is given back");
        let down = Self::in_tree(&format!("{} down", binding.script()));
        let about_card = self.about_card();
        let done = self.transcript.must_show(&down, LONG, about_card)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_right_only_without_a_wrong_one() {
        assert!(are_right("   1043 correct\n", 720));
        for bad in [
            "",
            "    720 correct\n",
            "   1043 correct\n      1 incorrect\n",
            "   1043 incorrect\n",
        ] {
            assert!(!are_right(bad, 720), "{bad}");
        }
    }

    #[test]
    fn of_doctor_its_errors_are_shown_with_reason_and_cure() {
        let is_shown = errors_of_doctor();
        let lines = [
            "ERROR    a: b",
            "         why: c",
            "warning  d: e",
            "         why: f",
            "ok       g",
            "1 error, 1 warning, 1 in order; h",
        ];
        assert_eq!(lines.map(is_shown), [true, true, false, false, false, true]);
    }
}
