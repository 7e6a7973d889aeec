//! The engine in service on a card: what of its addresses is the kernel's, a pulled cable, a killed process, a tagged cable
//! with large frames.

use crate::RigError;

use super::walk::{FILE, LONG, SHORT, Way};

/// The configuration with a kernel beside the engine.
const SHARED: &str = "/tmp/shared.toml";
/// The configuration for a tagged cable with large frames.
const LARGE: &str = "/tmp/large.toml";
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
    let script = format!(
        "rm -f /tmp/report.json; {} run {file} --report /tmp/report.json >/tmp/engine.log 2>&1 & echo $! >/tmp/engine.pid
         for i in $(seq 300); do
             ip netns exec pe-clients ping -c1 -W1 10.77.0.1 >/dev/null && exit 0
             kill -0 $(cat /tmp/engine.pid) || break
         done
         cat /tmp/engine.log; exit 1",
        way.engine
    );
    let done = way.transcript.aside(&script, LONG)?;
    way.transcript.check(done.code == 0, || {
        format!("the engine does not start with {file}:\n{}", done.text)
    });
    Ok(())
}

/// Ends the engine as an operator would; no buffer may be missing then.
fn stop(way: &mut Way<'_, '_>, step: &'static str) -> Result<(), RigError> {
    let script = "kill -INT $(cat /tmp/engine.pid)
        for i in $(seq 300); do kill -0 $(cat /tmp/engine.pid) 2>/dev/null || break; sleep 0.1; done
        tail -n 20 /tmp/engine.log; cat /tmp/report.json
        ! kill -0 $(cat /tmp/engine.pid) 2>/dev/null && grep -q '\"leaked\": *0' /tmp/report.json";
    let done = way.transcript.aside(script, LONG)?;
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
    way.transcript
        .type_in("grep 'checksums in hardware' /tmp/engine.log", SHORT)?;
    way.transcript.aside(
        "ip netns exec edge /usr/sbin/sshd -f /tmp/ssh/config -E /tmp/ssh/log",
        SHORT,
    )?;
    let ssh = "ip netns exec pe-clients ssh -i /tmp/ssh/user -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o ConnectTimeout=20 root@10.77.0.1 'echo here: $SSH_CONNECTION'";
    let by_ssh = way.transcript.type_in(ssh, LONG)?;
    let reached = by_ssh.code == 0 && by_ssh.text.contains("10.77.0.1 22");
    way.step("ssh_by_the_kernel", reached, || by_ssh.text);
    let four = way
        .transcript
        .type_in("ip netns exec pe-clients ping -c 3 -i 0.3 10.77.0.1", SHORT)?;
    let six = way
        .transcript
        .type_in("ip netns exec pe-clients ping -c 3 -i 0.3 fd77::1", SHORT)?;
    let proxied = way.transcript.type_in(CURL, SHORT)?;
    way.step("pings", four.code == 0 && six.code == 0 && proxied.code == 0, || {
        four.text + &six.text + &proxied.text
    });
    way.transcript.aside("kill $(cat /tmp/ssh/pid)", SHORT)?;
    Ok(())
}

/// The cable is pulled and put back: both are logged, requests are answered again, and the addresses are announced.
fn pull_the_cable(way: &mut Way<'_, '_>) -> Result<(), RigError> {
    way.transcript.chapter("The cable is pulled");
    let cable = way.walk.card.cable_name();
    way.transcript
        .by_hand("The cable is pulled:", &format!("set_link {cable} off"))?;
    let told = "for i in $(seq 100); do grep -q 'link is down' /tmp/engine.log && break; sleep 0.1; done; grep 'link is' /tmp/engine.log";
    let down = way.transcript.type_in(told, SHORT)?;
    let listen = format!(
        "ip netns exec pe-switch timeout 60 tcpdump -n -l -i {} 'ether src {} and (arp or icmp6)' >/tmp/announced.log 2>/tmp/announced.err &
         for i in $(seq 100); do grep -q listening /tmp/announced.err && break; sleep 0.1; done",
        way.interface,
        way.walk.card.mac()
    );
    way.transcript.aside(&listen, SHORT)?;
    way.transcript
        .by_hand("It is put back:", &format!("set_link {cable} on"))?;
    let up = way
        .transcript
        .type_in(&told.replace("link is down", "link is up"), SHORT)?;
    let after = way.transcript.must(CURL, SHORT)?;
    let counted = way.transcript.type_in(
        "kill -USR1 $(cat /tmp/engine.pid); for i in $(seq 50); do [ -s /tmp/report.json ] && break; sleep 0.1; done; grep -o '\"link_downs\": *[0-9]*' /tmp/report.json",
        SHORT,
    )?;
    way.step("link_counted", counted.text.trim().ends_with(": 1"), || counted.text);
    let recovered = down.text.contains("link is down") && up.text.contains("link is up") && after.code == 0;
    way.step("link_recovered", recovered, || down.text + &up.text + &after.text);
    // RFC 5227 3: an announcement has the same address as sender and target; RFC 4861 7.2.6: an unsolicited advertisement.
    let announced = way.transcript.type_in(
        "for i in $(seq 50); do grep -q 'Announcement 10.77.0.1\\|who-has 10.77.0.1 .*tell 10.77.0.1' /tmp/announced.log && grep -q 'tgt is fd77::1' /tmp/announced.log && break; sleep 0.1; done
         grep 'Announcement 10.77.0.1\\|who-has 10.77.0.1 .*tell 10.77.0.1' /tmp/announced.log && grep 'tgt is fd77::1' /tmp/announced.log",
        SHORT,
    )?;
    way.transcript.aside("pkill -INT tcpdump; true", SHORT)?;
    way.step("announced_after_link_up", announced.code == 0, || announced.text);
    Ok(())
}

fn kill(way: &mut Way<'_, '_>) -> Result<(), RigError> {
    way.transcript.chapter("The process is killed and started again");
    way.transcript.must("kill -9 $(cat /tmp/engine.pid)", SHORT)?;
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
    let capture = format!(
        "ip netns exec pe-switch tcpdump -n -U -Z root -s 64 -w /tmp/large.pcap -i {interface} 'ether src {}' >/tmp/capture.log 2>&1 &
         for i in $(seq 100); do grep -q listening /tmp/capture.log && break; sleep 0.1; done",
        way.walk.card.mac()
    );
    way.transcript.aside(&capture, SHORT)?;
    let ping = way.transcript.type_in(
        "ip netns exec pe-clients ping -c 3 -i 0.3 -M do -s 8972 10.77.0.1",
        SHORT,
    )?;
    let fetched = way.transcript.type_in(
        "ip netns exec pe-clients curl -s --max-time 60 http://one.test/large | cmp - /tmp/www/large && echo the same",
        LONG,
    )?;
    way.transcript
        .aside("sleep 0.5; pkill -INT tcpdump; sleep 0.5", SHORT)?;
    let large = way.transcript.type_in(
        "tcpdump -r /tmp/large.pcap -n -e 2>/dev/null | grep -cE 'length (89|90)[0-9][0-9]: vlan 5'",
        SHORT,
    )?;
    let seen = large.text.trim().parse::<u64>().is_ok_and(|count| count > 20);
    way.step("vlan_and_mtu_9000", ping.code == 0 && fetched.code == 0 && seen, || {
        format!("{}{}{} large frames", ping.text, fetched.text, large.text.trim())
    });
    stop(way, "ends_in_order_with_large_frames")?;
    let back = format!(
        "ip -n pe-switch link del tagged; for port in {interface} clients servers br0; do ip -n pe-switch link set $port mtu 1500; done
         ip -n pe-switch link set {interface} master br0"
    );
    way.transcript.aside(&back, SHORT)?;
    Ok(())
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
[ -e /tmp/www/large ] || head -c 2000000 /dev/urandom >/tmp/www/large
cat >/tmp/nginx.conf <<'CONF'
user root;
pid /tmp/nginx.pid;
error_log /tmp/nginx.error.log;
events {}
http {
  access_log off;
  root /tmp/www;
  server {
    listen 10.77.0.11:80; listen [fd77::11]:80;
    location / { return 200 \"one $remote_addr\\n\"; }
    location /large { }
  }
}
CONF
ip netns exec pe-servers nginx -c /tmp/nginx.conf";
