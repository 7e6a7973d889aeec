//! The binary on AF_PACKET, AF_XDP and TAP against Linux's TCP, in the rig's namespaces: skipped where there is no root.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use rig::engine::Driver;
use rig::loss::{Direction, Loss};
use rig::process::Process;
use rig::{Place, Rig, RigOptions};
use rustix::process::Signal;
use serde_json::Value;
use trafficengine::payload::{Check, RequestId};
use trafficengine::{Close, Format};

const BINARY: &str = env!("CARGO_BIN_EXE_trafficengine");
const LIMIT: Duration = Duration::from_secs(60);
const PORT: u16 = 9000;

/// Sizes of a test's messages and the number that the server gives itself.
#[derive(Clone)]
struct Service {
    format: Format,
    request: u32,
    response: u32,
    id: u8,
}

/// A plain server: a thread per connection, reads requests, checks and answers them, closes when asked to.
fn serve(rig: &Rig, address: IpAddr, service: Service) {
    serve_at(rig, Place::Servers, address, service);
}

fn serve_at(rig: &Rig, place: Place, address: IpAddr, service: Service) {
    let listener = rig
        .at(place, || TcpListener::bind(SocketAddr::new(address, PORT)))
        .expect("a namespace");
    let listener = listener.expect("a listener");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, service) = (stream.expect("a connection"), service.clone());
            std::thread::spawn(move || answer(stream, &service));
        }
    });
}

fn answer(mut stream: TcpStream, service: &Service) {
    stream.set_nodelay(true).expect("an option");
    let mut request = vec![0; service.request as usize];
    let mut response = vec![0; service.response as usize];
    for round in 0.. {
        // The client's end, by FIN or RST.
        if stream.read_exact(&mut request).is_err() {
            return;
        }
        let id = service.format.parse_request(&request).expect("a request");
        let check = service.format.check_request(id, round, service.request, 0, &request);
        assert_eq!(check, Check::Right, "the generator sent wrong bytes");
        service
            .format
            .fill_response(service.id, id.tag, round, service.response, 0, &mut response);
        if stream.write_all(&response).is_err() || id.close == Close::Server {
            return;
        }
    }
}

/// Runs the generator in the engine's place to its end; returns its exit code and its JSON.
fn play(rig: &Rig, name: &str, text: &str) -> (Option<i32>, Value) {
    play_on(rig, name, &Driver::AfPacket.device(0), text, |_| ())
}

/// The same on another device; `connect` is called when the device is there.
fn play_on(
    rig: &Rig,
    name: &str,
    device: &str,
    text: &str,
    connect: impl FnOnce(&mut Process),
) -> (Option<i32>, Value) {
    let (file, json) = write_configuration(rig, name, device, text);
    let arguments = [
        "run",
        file.to_str().expect("text"),
        "--json",
        json.to_str().expect("text"),
    ];
    let mut process = rig
        .start(Place::Engine, name, BINARY, &arguments)
        .expect("the binary starts");
    connect(&mut process);
    let status = process.wait(LIMIT).expect("it ends");
    let printed = process.printed();
    let json = std::fs::read_to_string(&json).unwrap_or_else(|error| panic!("{error}: {printed}"));
    (status.code(), serde_json::from_str(&json).expect("JSON"))
}

fn write_configuration(rig: &Rig, name: &str, device: &str, text: &str) -> (PathBuf, PathBuf) {
    let file = rig.file(&format!("{name}.toml"));
    let port = format!("[port]\ndevice = \"{device}\"\nmemory_mib = 128\nchecksum_offload = false\n");
    std::fs::write(&file, format!("{port}{text}")).expect("a file");
    (file, rig.file(&format!("{name}.json")))
}

#[track_caller]
fn assert_clean(report: &Value, connections: u64) {
    let client = &report["client"];
    assert_eq!(client["completed"], connections, "{report:#}");
    assert_eq!(
        (&report["bad_checksums"], &report["packets_not_sent"]),
        (&0.into(), &0.into())
    );
}

fn client_of(rig: &Rig, script: &str, load: &str) -> String {
    let [v4, v6] = rig.server_addresses(0);
    format!(
        r#"
        [script]
        {script}
        [client]
        addresses = ["10.77.0.1-10.77.0.8", "fd77::1-fd77::8"]
        ports = "20000-29999"
        targets = ["{v4}:{PORT}", "[{v6}]:{PORT}"]
        [load]
        {load}
        "#
    )
}

/// A rig whose servers do `service`; `None` where there can be none, or without these programs.
fn rig_with(service: &Service, programs: &[&str]) -> Option<Rig> {
    let rig = Rig::for_test(RigOptions::default(), programs)?;
    for address in rig.server_addresses(0) {
        serve(&rig, address, service.clone());
    }
    Some(rig)
}

#[test]
fn a_linux_server_gets_and_gives_the_right_bytes_for_every_close() {
    let service = Service {
        format: Format::Http {
            domain: "example".to_owned(),
        },
        request: 2_000,
        response: 30_000,
        id: 0,
    };
    let Some(rig) = rig_with(&service, &[]) else {
        return;
    };
    for close in ["client", "server", "reset"] {
        let script = format!("format = \"http\"\nrounds = 3\nrequest = 2000\nresponse = 30000\nclose = \"{close}\"");
        let text = client_of(&rig, &script, "mode = \"closed\"\nopen = 20\ntotal = 200");
        let (code, report) = play(&rig, close, &text);
        assert_clean(&report, 200);
        assert_eq!(code, Some(0), "{close}");
        assert_eq!(report["client"]["bytes_received"], 200 * 3 * 30_000);
        assert_eq!(report["latency_us"]["whole"]["count"], 200);
    }
}

#[test]
fn a_linux_server_of_another_number_is_noticed() {
    let service = Service {
        format: Format::Text,
        request: 16,
        response: 8,
        id: 1,
    };
    let Some(rig) = rig_with(&service, &[]) else {
        return;
    };
    // Odd keys are right by chance.
    let text = client_of(
        &rig,
        "keys = 100\nservers = 2",
        "mode = \"open\"\nrate = 500\nduration = \"1s\"",
    );
    let (code, report) = play(&rig, "wrong", &text);
    let (wrong, right) = (
        &report["client"]["failed"]["wrong_server"],
        &report["client"]["completed"],
    );
    let (wrong, right) = (wrong.as_u64().expect("a count"), right.as_u64().expect("a count"));
    assert_eq!((wrong + right, code), (500, Some(1)), "{report:#}");
    assert!((150..350).contains(&wrong), "about half: {wrong}");
}

#[test]
fn loss_between_the_generator_and_linux_is_survived_and_counted() {
    let service = Service {
        format: Format::Text,
        request: 20_000,
        response: 100_000,
        id: 0,
    };
    let Some(rig) = rig_with(&service, &["nft"]) else {
        return;
    };
    let loss = Loss::start(&rig, &[Direction::FromServers, Direction::FromEngine], 20).expect("a lossy cable");
    let script = "rounds = 2\nrequest = 20000\nresponse = 100000";
    let text = client_of(
        &rig,
        script,
        "mode = \"closed\"\nopen = 10\ntotal = 40\ngrace = \"40s\"",
    );
    let (code, report) = play(&rig, "lossy", &text);
    assert_clean(&report, 40);
    assert_eq!(code, Some(0));
    let lost = loss.lost().expect("a count");
    let retransmitted = report["client"]["retransmitted"].as_u64().expect("a count");
    assert!(
        lost > 20 && retransmitted > 0,
        "{lost} lost, {retransmitted} sent again"
    );
}

#[test]
fn linux_clients_get_the_right_bytes_from_the_server_role() {
    let Some(rig) = Rig::for_test(RigOptions::default(), &[]) else {
        return;
    };
    let addresses = rig.engine_addresses();
    let listen = addresses
        .map(|address| format!("\"{}\"", SocketAddr::new(address, PORT)))
        .join(", ");
    let text = format!("[script]\nrequest = 500\nresponse = 50000\n[server]\nlisten = [{listen}]\nfirst_id = 7\n");
    let (file, json) = write_configuration(&rig, "server", &Driver::AfPacket.device(0), &text);
    let arguments = [
        "run",
        file.to_str().expect("text"),
        "--json",
        json.to_str().expect("text"),
    ];
    let mut server: Process = rig
        .start(Place::Engine, "server", BINARY, &arguments)
        .expect("the binary starts");
    server
        .wait_for("its role", LIMIT, |process| process.printed().contains("roles: server"))
        .expect("it begins");
    for (index, address) in addresses.into_iter().enumerate() {
        for number in 0..20 {
            let close = if number % 2 == 0 { Close::Server } else { Close::Client };
            let id = 7 + index as u8;
            rig.at(Place::Clients, || {
                ask(SocketAddr::new(address, PORT), id, number, close)
            })
            .expect("a namespace");
        }
    }
    server.signal(Signal::INT);
    assert_eq!(
        server.wait(LIMIT).expect("it ends").code(),
        Some(0),
        "{}",
        server.printed()
    );
    let report: Value = serde_json::from_str(&std::fs::read_to_string(json).expect("JSON")).expect("JSON");
    assert_eq!(report["server"]["completed"], 40, "{report:#}");
}

/// Asks twice on one connection and sees the server close it, or closes it.
fn ask(address: SocketAddr, server: u8, tag: u32, close: Close) {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(10)).expect("a connection");
    stream
        .set_read_timeout(Some(Duration::from_secs(10)))
        .expect("an option");
    for (round, close) in [(0, Close::Open), (1, close)] {
        let id = RequestId { key: 5, tag, close };
        let (mut request, mut response) = (vec![0; 500], vec![0; 50_000]);
        Format::Text.fill_request(id, round, 500, 0, &mut request);
        stream.write_all(&request).expect("sent");
        stream.read_exact(&mut response).expect("a response");
        assert_eq!(
            Format::Text.check_response(server, tag, round, 50_000, 0, &response),
            Check::Right
        );
    }
    if close == Close::Server {
        assert_eq!(
            stream.read(&mut [0]).expect("an end"),
            0,
            "the server closes and sends no more"
        );
    }
}

#[test]
fn a_linux_server_is_served_right_over_af_xdp() {
    let service = Service {
        format: Format::Text,
        request: 3_000,
        response: 20_000,
        id: 0,
    };
    let Some(rig) = rig_with(&service, &[]) else {
        return;
    };
    let script = "rounds = 2\nrequest = 3000\nresponse = 20000";
    let text = client_of(&rig, script, "mode = \"closed\"\nopen = 20\ntotal = 200");
    let (code, report) = play_on(&rig, "xdp", &Driver::AfXdp.device(0), &text, |_| ());
    assert_clean(&report, 200);
    assert_eq!(code, Some(0));
    assert_eq!(report["client"]["bytes_received"], 200 * 2 * 20_000);
}

#[test]
fn a_linux_server_is_served_right_over_tap() {
    if !std::path::Path::new("/dev/net/tun").exists() {
        rig::skip("a_linux_server_is_served_right_over_tap", "there is no /dev/net/tun");
        return;
    }
    let Some(rig) = Rig::for_test(RigOptions::default(), &[]) else {
        return;
    };
    let service = Service {
        format: Format::Text,
        request: 3_000,
        response: 20_000,
        id: 0,
    };
    // The interface that DPDK makes is in its own namespace, and so is the Linux stack behind it.
    let everywhere = IpAddr::from([0, 0, 0, 0]);
    serve_at(&rig, Place::Engine, everywhere, service);
    let text = format!(
        "[script]\nrounds = 2\nrequest = 3000\nresponse = 20000\n[client]\naddresses = [\"10.79.0.1-10.79.0.8\"]\n\
         targets = [\"10.79.1.1:{PORT}\"]\n[load]\nmode = \"closed\"\nopen = 20\ntotal = 200\n"
    );
    let (code, report) = play_on(&rig, "tap", "net_tap0,iface=te-tap", &text, |process| {
        process
            .wait_for("its role", LIMIT, |process| process.printed().contains("roles: client"))
            .expect("it begins");
        let ip = |words: &str| {
            let words: Vec<&str> = words.split(' ').collect();
            rig.run(Place::Engine, "ip", &words, LIMIT).expect("ip")
        };
        ip("addr add 10.79.1.1/16 dev te-tap");
        ip("link set te-tap up");
    });
    assert_clean(&report, 200);
    assert_eq!(code, Some(0));
    assert_eq!(report["client"]["bytes_received"], 200 * 2 * 20_000);
}
