//! RSS by a device that is not ours: a virtio card with several queues in the machine, Linux clients and servers outside it.
//!
//! The card's cable leads to a TAP on the bridge of a software rig, in place of that rig's engine. The engine in the machine
//! forecasts from the hash that it has configured to which queue a packet comes, and chooses source ports by it; a packet
//! that comes elsewhere is counted as mis-steered.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use socket2::{Domain, Protocol, Socket, Type};

use super::walk::{Programs, are_right, checksums_in};
use super::{Card, Machine, Transcript};
use crate::process::Process;
use crate::{HOSTS, Place, Rig, RigError, cleanup, servers};

/// The TAP that the card's cable leads to.
pub const TAP: &str = "lab-tap0";
/// Clients at the same time.
const AT_ONCE: usize = 8;
const SHORT: Duration = Duration::from_secs(60);
const LONG: Duration = Duration::from_secs(600);
/// One connection, emulated beside a build.
const PATIENCE: Duration = Duration::from_secs(20);
const FILE: &str = "/tmp/rss.toml";
/// In the rig's folder.
const CAPTURED: &str = "tap.pcap";

/// What so many connections have shown.
#[derive(Clone, Debug)]
pub struct Steered {
    /// Connections that got the right answer.
    pub connections: u64,
    /// Packets that came in on another queue than forecast.
    pub mis_steered: u64,
    /// Packets that each queue received.
    pub by_core: Vec<u64>,
    /// What the engine has said of its card, and the checksums of what it has sent, as commands and their answers.
    pub transcript: String,
    /// What went otherwise than it should.
    pub faults: Vec<String>,
}

/// Puts the TAP in the place of the rig's engine. It goes with the rig's namespaces.
///
/// # Errors
/// When a step fails.
pub fn lay_tap(rig: &Rig) -> Result<(), RigError> {
    let ip = |arguments: &[&str]| rig.run(Place::Switch, "ip", arguments, SHORT).map(|_| ());
    ip(&["tuntap", "add", TAP, "mode", "tap", "multi_queue", "vnet_hdr"])?;
    ip(&["link", "set", TAP, "master", "br0", "up"])?;
    ip(&["link", "set", "engine0", "down"])
}

/// Makes `connections` through the engine on `card`, with a core for each of its queues.
///
/// # Errors
/// When the rig or the machine no longer answers. What goes wrong is in [`Steered::faults`].
pub fn steer(
    machine: &mut Machine,
    rig: &Rig,
    card: &Card,
    programs: &Programs,
    connections: usize,
) -> Result<Steered, RigError> {
    let servers = (0..HOSTS.len()).map(|index| servers::start_nginx(rig, index));
    let _servers: Vec<Process> = servers.collect::<Result<_, _>>()?;
    let capture = capture(rig, card)?;
    let mut transcript = Transcript::new(machine, programs.short());
    let runs = start(&mut transcript, card, &programs.engine)?;
    let right = if runs { load(rig, connections)? } else { 0 };
    transcript.check(right == connections, || {
        format!("{right} of {connections} connections got the right answer")
    });
    transcript.note(&format!("{right} connections have got the right answer."));
    let sums = checksums(rig, capture)?;
    transcript.note(&format!(
        "TCP checksums of what the card has sent, at the TAP:\n\n    {sums}"
    ));
    // A connection takes three segments to either side at least.
    transcript.check(are_right(&sums, 6 * right as u64), || {
        format!("checksums of what the card has sent: {sums}")
    });
    let report = stop(&mut transcript, card)?;
    let mis_steered = report
        .pointer("/counters/steering/mis_steered")
        .and_then(serde_json::Value::as_u64);
    transcript.check(mis_steered.is_some(), || {
        "the engine has left no report of its steering".to_owned()
    });
    let received = |core: &serde_json::Value| core.pointer("/counters/traffic/received")?.as_u64();
    let cores = report["cores"].as_array().into_iter().flatten();
    let by_core: Vec<u64> = cores.filter_map(received).collect();
    let all_receive = by_core.len() == usize::from(card.model.queues()) && !by_core.contains(&0);
    transcript.check(all_receive, || format!("not every queue has received: {by_core:?}"));
    let (transcript, faults) = transcript.finish();
    Ok(Steered {
        connections: right as u64,
        mis_steered: mis_steered.unwrap_or(u64::MAX),
        by_core,
        transcript,
        faults,
    })
}

/// Has `proxyengine devices` bind the card, and starts the engine on it; false if that fails.
fn start(transcript: &mut Transcript<'_>, card: &Card, engine: &str) -> Result<bool, RigError> {
    let address = card.address();
    let cores: Vec<String> = (0..card.model.queues()).map(|core| core.to_string()).collect();
    let script = format!(
        "cd {root} && mkdir -p /dev/hugepages
         grep -q ' hugetlbfs ' /proc/mounts || mount -t hugetlbfs hugetlbfs /dev/hugepages
         sed -e 's|^device = .*|device = \"{address}\"|' -e '/^checksum_offload/d' -e 's|^cores = .*|cores = [{cores}]\\nsteering = \"rss\"\\nbuffers = 16384\\nmax_connections = 20000|' -e 's|^memory_mib = .*|memory_mib = 200|' config/demo.toml >{FILE}
         {engine} devices {FILE} || exit 1
         {engine} run {FILE} --report /lab/rss.json >/tmp/rss.log 2>&1 & echo $! >/tmp/rss.pid
         for i in $(seq 600); do grep -q 'running;' /tmp/rss.log && break; kill -0 $(cat /tmp/rss.pid) || break; sleep 0.1; done
         cat /tmp/rss.log; grep -q 'running;' /tmp/rss.log",
        root = cleanup::root().display(),
        cores = cores.join(", "),
    );
    let started = transcript.aside(&script, LONG)?;
    transcript.type_in("grep -E 'checksums in hardware|spreads|steering' /tmp/rss.log", SHORT)?;
    Ok(transcript.check(started.code == 0, || {
        format!("the engine on {address} does not start:\n{}", started.text)
    }))
}

/// Ends the engine and returns its report; null if there is none.
fn stop(transcript: &mut Transcript<'_>, card: &Card) -> Result<serde_json::Value, RigError> {
    let end = "kill -INT $(cat /tmp/rss.pid)
        for i in $(seq 300); do kill -0 $(cat /tmp/rss.pid) 2>/dev/null || break; sleep 0.1; done";
    let steered = "grep -o '\"mis_steered\": *[0-9]*' /lab/rss.json | sort -u";
    transcript.type_after(end, steered, LONG, |_| true)?;
    let give_back = format!(
        "dpdk-devbind.py --unbind {}; echo 0 >/proc/sys/vm/nr_hugepages",
        card.address()
    );
    transcript.aside(&give_back, SHORT)?;
    let text = std::fs::read(transcript.machine().folder().join("rss.json"));
    Ok(text
        .ok()
        .and_then(|text| serde_json::from_slice(&text).ok())
        .unwrap_or_default())
}

/// Writes what the card sends to a file, as it comes out of the TAP.
fn capture(rig: &Rig, card: &Card) -> Result<Process, RigError> {
    let (file, mac) = (rig.file(CAPTURED).display().to_string(), card.mac());
    let arguments = [
        "-n", "-U", "-B", "16384", "-Z", "root", "-w", &file, "-i", TAP, "ether", "src", &mac,
    ];
    let mut tcpdump = rig.start(Place::Switch, "capture-tap", "tcpdump", &arguments)?;
    tcpdump.wait_for("the capture", SHORT, |process| {
        process.printed().contains("listening on")
    })?;
    Ok(tcpdump)
}

/// Ends the capture; the right and the wrong checksums in it.
fn checksums(rig: &Rig, mut capture: Process) -> Result<String, RigError> {
    // The kernel hands frames on after a second at the latest.
    thread::sleep(Duration::from_millis(1500));
    capture.signal(Signal::INT);
    capture.wait(SHORT)?;
    let count = checksums_in(&rig.file(CAPTURED).display().to_string());
    Ok(rig
        .run(Place::Switch, "sh", &["-c", &count], SHORT)?
        .text()
        .trim()
        .to_owned())
}

/// Requests from all the clients' addresses, of both families, to all hosts; how many reached the right server.
fn load(rig: &Rig, connections: usize) -> Result<usize, RigError> {
    let clients: Vec<IpAddr> = (0..4)
        .flat_map(|index| [IpAddr::V4(rig.client_v4(index)), IpAddr::V6(rig.client_v6(index))])
        .collect();
    let [v4, v6] = rig.engine_addresses();
    let (next, right) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let work = || loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        if number >= connections {
            return;
        }
        let client = clients[number % clients.len()];
        let engine = if client.is_ipv4() { v4 } else { v6 };
        let host = number / clients.len() % HOSTS.len();
        if request(client, engine, host).is_ok_and(|answer| servers::named_in(&answer) == Some(host)) {
            right.fetch_add(1, Ordering::Relaxed);
        }
    };
    rig.at(Place::Clients, || {
        thread::scope(|scope| {
            for _ in 0..AT_ONCE {
                // A thread inherits the namespace of who makes it.
                scope.spawn(work);
            }
        });
    })?;
    Ok(right.into_inner())
}

fn request(client: IpAddr, engine: IpAddr, host: usize) -> std::io::Result<String> {
    let domain = if client.is_ipv4() { Domain::IPV4 } else { Domain::IPV6 };
    let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
    socket.bind(&SocketAddr::new(client, 0).into())?;
    socket.connect_timeout(&SocketAddr::new(engine, servers::HTTP).into(), PATIENCE)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    let mut text = String::new();
    // Writing to a String does not fail.
    let _ = write!(
        text,
        "GET /whoami HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n",
        HOSTS[host]
    );
    (&socket).write_all(text.as_bytes())?;
    let mut answer = String::new();
    (&socket).read_to_string(&mut answer)?;
    Ok(answer)
}
