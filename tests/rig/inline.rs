//! Client → engine, which sends version 2 headers → mmproxy's inline mode on the server's host → a server that knows nothing of
//! it: the server's own sockets have the clients as their peers, over links that lose segments.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rig::engine::EngineOptions;
use rig::loss::{Direction, Loss};
use rig::process::Process;
use rig::{Place, Rig, RigOptions};
use socket2::{Domain, Socket, Type};

use crate::family::built;
use crate::setup::{LIMIT, Setup};

/// Where clients find the engine.
const PORT: u16 = 80;
/// Where the engine finds the server's host.
const PROXIED: u16 = 8443;
/// Where the server listens, on loopback.
const PLAIN: u16 = 8080;
const METRICS: &str = "127.0.0.1:9110";
const CONNECTIONS: usize = 2000;
const AT_ONCE: usize = 100;
/// Of a thousand segments, each way on each link.
const LOST: u16 = 10;
/// Bytes each way: several segments.
const LENGTH: usize = 5000;
/// A segment may be lost several times, the later the longer apart.
const PATIENCE: Duration = Duration::from_secs(60);

/// Starts mmproxy on the server's host; `None`, and the reason said, where the kernel or the build has no inline mode.
fn start_mmproxy(rig: &Rig) -> Option<Process> {
    let program = built("mmproxy");
    let program = program.to_string_lossy();
    let tried = rig
        .command(Place::Servers, &program)
        .args(["-l", "127.0.0.1:8442", "--inline"])
        .args(["-i", "lo", "-i", "nowhere"])
        .output();
    let said = String::from_utf8_lossy(&tried.expect("mmproxy runs").stderr).into_owned();
    // All goes well up to the interface that is not there.
    if !said.contains("interface nowhere") {
        rig::lacking("two_thousand_clients_of_the_engine_reach_the_server_inline", &said);
        return None;
    }
    rig.run(Place::Servers, &program, &["setup"], LIMIT)
        .expect("routing rules");
    let servers = rig.server_addresses(0).map(|ip| SocketAddr::new(ip, PROXIED));
    let [server4, server6] = servers;
    let [engine4, engine6] = rig.engine_addresses_for_servers();
    let text = format!(
        "interfaces = [\"eth0\"]\nmetrics = \"{METRICS}\"\n[[listener]]\nlisten = [\"{server4}\", \"{server6}\"]\n\
         target_v4 = \"127.0.0.1:{PLAIN}\"\ntarget_v6 = \"[::1]:{PLAIN}\"\nallowed = [\"{engine4}\", \"{engine6}\"]\n\
         inline = true\n"
    );
    let file = rig.file("mmproxy.toml");
    fs::write(&file, text).expect("a configuration");
    let mut mmproxy = rig
        .start(
            Place::Servers,
            "mmproxy",
            &program,
            &["--config", &file.to_string_lossy()],
        )
        .expect("mmproxy starts");
    mmproxy.wait_for_listeners(&servers, LIMIT).expect("mmproxy listens");
    Some(mmproxy)
}

/// A listener for each family, to whatever is sent with its end answers the client's address and the same again.
fn start_server(rig: &Rig) {
    for address in [format!("127.0.0.1:{PLAIN}"), format!("[::1]:{PLAIN}")] {
        let address: SocketAddr = address.parse().expect("an address");
        let listener = rig.at(Place::Servers, || listen(address)).expect("at the servers");
        let listener = listener.expect("it listens");
        std::thread::spawn(move || {
            while let Ok((client, _)) = listener.accept() {
                std::thread::spawn(move || {
                    // The client finds out that it failed, and this is why.
                    if let Err(error) = answer(client) {
                        eprintln!("the server: {error}");
                    }
                });
            }
        });
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.bind(&address.into())?;
    socket.listen(4096)?;
    Ok(socket.into())
}

fn answer(mut client: TcpStream) -> io::Result<()> {
    let mut got = Vec::new();
    client.read_to_end(&mut got)?;
    let peer = client.peer_addr()?;
    client.write_all(format!("{peer}\n").as_bytes())?;
    client.write_all(&got)
}

/// One connection from one of the clients' addresses: the server knows it, and got what it sent.
fn connect(rig: &Rig, number: usize) -> io::Result<()> {
    let index = number / 2 % 4;
    let (from, to): (IpAddr, IpAddr) = if number.is_multiple_of(2) {
        (rig.client_v4(index).into(), rig.engine_v4().into())
    } else {
        (rig.client_v6(index).into(), rig.engine_v6().into())
    };
    let to = SocketAddr::new(to, PORT);
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
    // Below Linux's own choice, and never the same again: a RST that follows a late ACK ends TIME-WAIT.
    socket.bind(&SocketAddr::new(from, 10_000 + number as u16).into())?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.set_write_timeout(Some(PATIENCE))?;
    socket.connect(&to.into())?;
    let mut client = TcpStream::from(socket);
    let sent: Vec<u8> = (0..LENGTH).map(|at| (at * 31 + number * 7 + at / 256) as u8).collect();
    client.write_all(&sent)?;
    client.shutdown(Shutdown::Write)?;
    let mut got = Vec::new();
    client.read_to_end(&mut got)?;
    let wanted = [format!("{}\n", client.local_addr()?).as_bytes(), &sent].concat();
    if got == wanted {
        return Ok(());
    }
    let beginning = got[..got.len().min(60)].escape_ascii();
    let client = client.local_addr()?;
    Err(io::Error::other(format!(
        "{client} got {} bytes: {beginning}",
        got.len()
    )))
}

fn metrics(rig: &Rig) -> String {
    let text = rig
        .at(Place::Servers, || -> io::Result<String> {
            let mut connection = TcpStream::connect(METRICS)?;
            connection.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
            let mut text = String::new();
            connection.read_to_string(&mut text)?;
            Ok(text)
        })
        .expect("at the servers");
    text.expect("metrics")
}

fn metric(rig: &Rig, name: &str) -> u64 {
    let text = metrics(rig);
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    value.unwrap_or_else(|| panic!("no {name} in {text}"))
}

/// The engine's configuration: a listener and a pool for each family.
fn engine_options(rig: &Rig) -> EngineOptions {
    let mut tables = String::new();
    let pairs = rig.engine_addresses().into_iter().zip(rig.server_addresses(0));
    for (number, (engine, server)) in pairs.enumerate() {
        let (engine, server) = (SocketAddr::new(engine, PORT), SocketAddr::new(server, PROXIED));
        tables += &format!(
            "[[listener]]\nname = \"in{number}\"\naddresses = [\"{engine}\"]\nports = [\"clients\"]\ndefault = \"out{number}\"\n\n\
             [[pool]]\nname = \"out{number}\"\nproxy_protocol = {{ send = \"v2\", tlvs = [\"unique_id\", \"crc32c\"] }}\n\
             servers = [{{ name = \"out{number}\", address = \"{server}\" }}]\n\n"
        );
    }
    EngineOptions {
        services: Vec::new(),
        tables,
        ..EngineOptions::default()
    }
}

#[test]
fn two_thousand_clients_of_the_engine_reach_the_server_inline() {
    let Some(rig) = Rig::for_test(RigOptions::default(), &["nft"]) else {
        return;
    };
    let Some(mmproxy) = start_mmproxy(&rig) else { return };
    start_server(&rig);
    let options = engine_options(&rig);
    let setup = Setup::on(rig, &options, |_| vec![mmproxy]);
    let rig = &setup.rig;
    let loss = Loss::start(rig, &Direction::ALL, LOST).expect("losses");
    let next = AtomicUsize::new(0);
    let failures: Vec<String> = std::thread::scope(|scope| {
        let one = || {
            let work = || {
                let numbers = std::iter::repeat_with(|| next.fetch_add(1, Ordering::Relaxed));
                let numbers = numbers.take_while(|&number| number < CONNECTIONS);
                let failed = |number| connect(rig, number).err().map(|error| format!("{number}: {error}"));
                numbers.filter_map(failed).collect::<Vec<_>>()
            };
            rig.at(Place::Clients, work).expect("at the clients")
        };
        let threads: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(one)).collect();
        threads
            .into_iter()
            .flat_map(|thread| thread.join().expect("it ends"))
            .collect()
    });
    let told = if failures.is_empty() {
        String::new()
    } else {
        metrics(rig)
    };
    assert!(failures.is_empty(), "{} failed: {failures:?}\n{told}", failures.len());
    assert!(loss.lost().expect("counted") > 0);
    drop(loss);
    // A first segment that is lost behind the programs is handed over again.
    let assigned = || metric(rig, "mmproxy_inline_assigned_total");
    rig::process::wait_for("counters are read", LIMIT, || assigned() >= CONNECTIONS as u64).expect("all were inline");
    assert_eq!(metric(rig, "mmproxy_inline_fall_back_total"), 0);
    assert_eq!(metric(rig, "mmproxy_tcp_connected_total"), 0);
    let (report, _rig) = setup.finish();
    assert_eq!(report.records.len(), CONNECTIONS);
}
