//! The engine in service on a card: what of its addresses is the kernel's, a pulled cable, a killed process, a tagged cable
//! with large frames.

use crate::RigError;

use super::machine::Done;
use super::walk::{FILE, LONG, SHORT, Way, are_right, checksums_in};

/// The configuration with a kernel beside the engine.
const SHARED: &str = "/tmp/shared.toml";
/// The configuration for a tagged cable with large frames.
const LARGE: &str = "/tmp/large.toml";
/// What the server has below `/large`, in bytes.
const LARGE_FILE: usize = 2_000_000;
/// The largest frame with a tag.
const LARGEST_FRAME: usize = 9_018;
/// What the engine says of its card.
const OFFLOADS: &str = "grep 'checksums in hardware' /tmp/engine.log";
/// Waits until the engine's process is gone, as a service manager does.
const ENDED: &str = "for i in $(seq 300); do kill -0 $(cat /tmp/engine.pid) 2>/dev/null || break; sleep 0.1; done";
/// A request that a server of the demo's addresses answers.
const CURL: &str = "ip netns exec pe-clients curl -s --max-time 60 http://one.test/whoami";

/// Goes through all of it, from a card on which no engine runs to such a one.
pub(super) fn serve(way: &mut Way<'_, '_>) -> Result<(), RigError> {
    way.transcript.aside(PREPARE, SHORT)?;
    share(way)?;
    pull_the_cable(way)?;
    kill(way)?;
    stop(way, "ends_in_order")?;
    enlarge(way)?;
    way.transcript.aside("pkill nginx; true", SHORT)?;
    Ok(())
}

/// Starts the engine with a configuration, and waits until it answers pings.
fn start(way: &mut Way<'_, '_>, file: &str) -> Result<(), RigError> {
    let run = format!(
        "{} run {file} --report /tmp/report.json >/tmp/engine.log 2>&1 & echo $! >/tmp/engine.pid",
        way.engine
    );
    way.transcript
        .type_after("rm -f /tmp/report.json", &run, SHORT, |_| true)?;
    let answers = "for i in $(seq 300); do
             ip netns exec pe-clients ping -c1 -W1 10.77.0.1 >/dev/null && exit 0
             kill -0 $(cat /tmp/engine.pid) || break
         done
         cat /tmp/engine.log; exit 1";
    let done = way.transcript.aside(answers, LONG)?;
    way.transcript.check(done.code == 0, || {
        format!("the engine does not start with {file}:\n{}", done.text)
    });
    Ok(())
}

/// Ends the engine as an operator would; no buffer may be missing then.
fn stop(way: &mut Way<'_, '_>, step: &'static str) -> Result<(), RigError> {
    way.transcript.must("kill -INT $(cat /tmp/engine.pid)", SHORT)?;
    way.transcript
        .type_after(ENDED, "grep ^buffers /tmp/engine.log", LONG, |_| true)?;
    let none_lost = "tail -n 20 /tmp/engine.log; cat /tmp/report.json
        ! kill -0 $(cat /tmp/engine.pid) 2>/dev/null && grep -q '\"leaked\": *0' /tmp/report.json";
    let done = way.transcript.aside(none_lost, SHORT)?;
    way.step(step, done.code == 0, || done.text);
    Ok(())
}

/// ssh and pings on the engine's own address, which the kernel answers.
fn share(way: &mut Way<'_, '_>) -> Result<(), RigError> {
    way.transcript.chapter("The kernel on the same addresses");
    let kernel = r#"kernel = { device = "pe-k0", namespace = "edge", local_ports = "61000-61999" }"#;
    let write = format!("sed -e 's|^mtu = .*|&\\n{kernel}|' {FILE} >{SHARED}");
    way.transcript.must(&write, SHORT)?;
    start(way, SHARED)?;
    way.transcript.type_in(OFFLOADS, SHORT)?;
    way.transcript.aside(
        "ip netns exec edge /usr/sbin/sshd -f /tmp/ssh/config -E /tmp/ssh/log",
        SHORT,
    )?;
    let ssh = "ip netns exec pe-clients ssh -F /tmp/ssh/client root@10.77.0.1 'echo here: $SSH_CONNECTION'";
    let by_ssh = way.transcript.type_in(ssh, LONG)?;
    let reached = by_ssh.code == 0 && by_ssh.text.contains("10.77.0.1 22");
    way.step("ssh_by_the_kernel", reached, || by_ssh.text);
    let four = ping(way, "10.77.0.1")?;
    let six = ping(way, "fd77::1")?;
    let proxied = way.transcript.type_in(CURL, SHORT)?;
    let all = all_answered(&four) && all_answered(&six) && proxied.code == 0;
    way.step("pings", all, || four.text + &six.text + &proxied.text);
    way.transcript.aside("kill $(cat /tmp/ssh/pid)", SHORT)?;
    Ok(())
}

/// Three pings from the clients.
fn ping(way: &mut Way<'_, '_>, arguments: &str) -> Result<Done, RigError> {
    let command = format!("ip netns exec pe-clients ping -c 3 -i 0.3 {arguments} | grep transmitted");
    way.transcript.type_in(&command, SHORT)
}

fn all_answered(pings: &Done) -> bool {
    pings.text.contains(" 3 received")
}

/// The cable is pulled and put back: both are logged, requests are answered again, and the addresses are announced.
fn pull_the_cable(way: &mut Way<'_, '_>) -> Result<(), RigError> {
    way.transcript.chapter("The cable, pulled and put back");
    let cable = way.walk.card.cable_name();
    way.transcript
        .by_hand("The cable is pulled:", &format!("set_link {cable} off"))?;
    let down = told(way, "link is down")?;
    let listen = format!(
        "ip netns exec pe-switch timeout 60 tcpdump -n -l -i {} 'ether src {} and (arp or icmp6)' >/tmp/announced.log 2>/tmp/announced.err &
         for i in $(seq 100); do grep -q listening /tmp/announced.err && break; sleep 0.1; done",
        way.interface,
        way.walk.card.mac()
    );
    way.transcript.aside(&listen, SHORT)?;
    way.transcript
        .by_hand("It is put back:", &format!("set_link {cable} on"))?;
    let up = told(way, "link is up")?;
    let after = way.transcript.must(CURL, SHORT)?;
    let counted = way.transcript.type_after(
        "kill -USR1 $(cat /tmp/engine.pid); for i in $(seq 50); do [ -s /tmp/report.json ] && break; sleep 0.1; done",
        "grep -o '\"link_downs\": *[0-9]*' /tmp/report.json",
        SHORT,
        |_| true,
    )?;
    way.step("link_counted", counted.text.trim().ends_with(": 1"), || counted.text);
    let recovered = down.text.contains("link is down") && up.text.contains("link is up") && after.code == 0;
    way.step("link_recovered", recovered, || down.text + &up.text + &after.text);
    // RFC 5227 3: an announcement has the same address as sender and target; RFC 4861 7.2.6: an unsolicited advertisement.
    let [four, six] = [
        "who-has 10.77.0.1 .*tell 10.77.0.1\\|Announcement 10.77.0.1",
        "tgt is fd77::1",
    ];
    let announced = way.transcript.type_after(
        &format!("for i in $(seq 50); do grep -q '{four}' /tmp/announced.log && grep -q '{six}' /tmp/announced.log && break; sleep 0.1; done"),
        &format!("grep '{four}' /tmp/announced.log && grep '{six}' /tmp/announced.log"),
        SHORT,
        |_| true,
    )?;
    way.transcript.aside("pkill -INT tcpdump; true", SHORT)?;
    way.step("announced_after_link_up", announced.code == 0, || announced.text);
    Ok(())
}

/// What the engine's log says of the link, once it says `words`.
fn told(way: &mut Way<'_, '_>, words: &str) -> Result<Done, RigError> {
    way.transcript.type_after(
        &format!("for i in $(seq 100); do grep -q '{words}' /tmp/engine.log && break; sleep 0.1; done"),
        "grep 'link is' /tmp/engine.log",
        SHORT,
        |_| true,
    )
}

fn kill(way: &mut Way<'_, '_>) -> Result<(), RigError> {
    way.transcript.chapter("The process is killed and started again");
    way.transcript.must("kill -9 $(cat /tmp/engine.pid)", SHORT)?;
    // Linux resets the card before the process is gone, and nobody else can open it until then.
    way.transcript.aside(ENDED, LONG)?;
    start(way, SHARED)?;
    let again = way.transcript.type_in(CURL, SHORT)?;
    way.step("started_again_after_kill", again.code == 0, || again.text);
    Ok(())
}

/// A cable on which all frames are tagged and up to 9018 bytes long.
fn enlarge(way: &mut Way<'_, '_>) -> Result<(), RigError> {
    way.transcript.chapter("VLAN 5 and an MTU of 9000");
    let interface = way.interface.clone();
    let lay = format!(
        "for port in clients servers {interface}; do ip -n pe-switch link set $port mtu 9000; done
         ip -n pe-clients link set eth0 mtu 9000; ip -n pe-servers link set eth0 mtu 9000
         ip -n pe-switch link set {interface} nomaster
         ip -n pe-switch link add link {interface} name tagged type vlan id 5
         ip -n pe-switch link set br0 mtu 9000
         ip -n pe-switch link set tagged mtu 9000 master br0 up"
    );
    way.transcript.must(&lay, SHORT)?;
    let write =
        format!("sed -e 's|^mtu = .*|mtu = 9000\\nvlan = 5|' -e 's|^buffers = .*|buffers = 4096|' {FILE} >{LARGE}");
    way.transcript.must(&write, SHORT)?;
    start(way, LARGE)?;
    way.transcript.type_in(OFFLOADS, SHORT)?;
    way.capture("/tmp/large.pcap")?;
    let ping = ping(way, "-M do -s 8972 10.77.0.1")?;
    let fetched = way.transcript.type_in(
        "ip netns exec pe-clients curl -s --max-time 60 http://one.test/large | cmp - /tmp/www/large && echo the same",
        LONG,
    )?;
    let sizes = "tcpdump -r /tmp/large.pcap -n -e 2>/dev/null | grep -oE 'length [0-9]{4,}: vlan 5' | sort | uniq -c";
    let end = way.end_of_capture("/tmp/large.pcap");
    let sizes = way.transcript.type_after(&end, sizes, SHORT, |_| true)?;
    let seen = are_large(&sizes.text);
    way.step(
        "vlan_and_mtu_9000",
        all_answered(&ping) && fetched.code == 0 && seen,
        || format!("{}{}{}", ping.text, fetched.text, sizes.text),
    );
    let sums = way.transcript.type_in(&checksums_in("/tmp/large.pcap"), SHORT)?;
    way.step("checksums_of_large_frames", are_right(&sums.text, 200), || sums.text);
    stop(way, "ends_in_order_with_large_frames")?;
    let back = format!(
        "ip -n pe-switch link del tagged; for port in {interface} clients servers br0; do ip -n pe-switch link set $port mtu 1500; done
         ip -n pe-switch link set {interface} master br0"
    );
    way.transcript.aside(&back, SHORT)?;
    Ok(())
}

/// Whether nearly all of the file has come in the largest frames that there may be, by how many there were of each size:
/// lines of `COUNT length BYTES: vlan 5`.
fn are_large(sizes: &str) -> bool {
    let (mut large, mut allowed) = (0, true);
    for line in sizes.lines() {
        let numbers = line.split_once(':').map_or("", |(numbers, _)| numbers);
        let (count, bytes) = numbers.split_once(" length ").unwrap_or_default();
        let [count, bytes] = [count, bytes].map(|number| number.trim().parse::<usize>().unwrap_or(0));
        allowed &= bytes <= LARGEST_FRAME;
        if bytes == LARGEST_FRAME {
            large += count;
        }
    }
    allowed && large * LARGEST_FRAME > LARGE_FILE / 10 * 9
}

/// Server, keys and the module for the kernel's interface.
const PREPARE: &str = "modprobe tun
mkdir -p /run/sshd /tmp/ssh /tmp/www
[ -e /tmp/ssh/host ] || ssh-keygen -q -t ed25519 -N '' -f /tmp/ssh/host
[ -e /tmp/ssh/user ] || ssh-keygen -q -t ed25519 -N '' -f /tmp/ssh/user
cp /tmp/ssh/user.pub /tmp/ssh/authorized
cat >/tmp/ssh/config <<'CONF'
HostKey /tmp/ssh/host
AuthorizedKeysFile /tmp/ssh/authorized
PidFile /tmp/ssh/pid
StrictModes no
UsePAM no
PermitRootLogin prohibit-password
CONF
cat >/tmp/ssh/client <<'CONF'
IdentityFile /tmp/ssh/user
StrictHostKeyChecking no
UserKnownHostsFile /dev/null
ConnectTimeout 20
LogLevel ERROR
CONF
[ -e /tmp/www/large ] || head -c 2000000 /dev/urandom >/tmp/www/large
cat >/tmp/nginx.conf <<'CONF'
user root;
pid /tmp/nginx.pid;
error_log /tmp/nginx.error.log;
events {}
http {
  access_log off;
  sendfile on;
  root /tmp/www;
  server {
    listen 10.77.0.11:80; listen [fd77::11]:80;
    location / { return 200 \"one $remote_addr\\n\"; }
    location /large { }
  }
}
CONF
ip netns exec pe-servers nginx -c /tmp/nginx.conf";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_comes_in_the_largest_frames_or_not() {
        assert!(are_large("     96 length 90: vlan 5\n    222 length 9018: vlan 5\n"));
        for bad in [
            "",
            "    34 length 9018: vlan 5\n    40 length 62658: vlan 5\n",
            "   222 length 9018: vlan 5\n     1 length 9022: vlan 5\n",
            "  1600 length 1518: vlan 5\n",
        ] {
            assert!(!are_large(bad), "{bad}");
        }
    }
}
